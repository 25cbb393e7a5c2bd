//! How long a stored response is fresh, and how old it is (RFC 9111 section 4.2).

use crate::fields::Fields;
use crate::known_fields::KnownField;

/// Where a response's lifetime comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LifetimeSource {
    /// Nowhere: it may only be used after validation.
    Nobody,
    /// `X-Accel-Expires`
    XAccelExpires,
    /// A targeted field, such as `CDN-Cache-Control`.
    Targeted,
    /// `Cache-Control`
    CacheControl,
    /// `Expires`
    Expires,
    /// The configuration, by the status.
    Configured,
    /// Guessed from the age of `Last-Modified`.
    Heuristic,
}

/// What is stored with a response about its age and its use. Plain data of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// When it was received, in milliseconds since the epoch.
    pub received_ms: u64,
    /// Its age at that time, in seconds, as other caches reported it.
    pub initial_age_s: u32,
    /// The end of its freshness, in milliseconds since the epoch.
    pub fresh_until_ms: u64,
    /// Where that comes from.
    pub source: LifetimeSource,
    /// How long after that it may be served during its validation (`stale-while-revalidate`, RFC
    /// 5861), in seconds.
    pub while_revalidate_s: u32,
    /// How long after that it may be served in place of an error (`stale-if-error`), in seconds.
    pub if_error_s: u32,
    /// The origin forbids serving it stale, whatever the operator configures: `must-revalidate`,
    /// `proxy-revalidate`, `s-maxage` or `no-cache`.
    pub must_revalidate: bool,
    /// It must be validated before each use: `no-cache`.
    pub always_revalidate: bool,
}

/// The largest number of seconds in calculations (RFC 9111, section 1.2.2).
const MAX_SECONDS: u64 = 1 << 31;

impl Freshness {
    /// The length of [`Freshness::to_bytes`].
    pub const BYTES: usize = 32;

    /// The response's age in seconds: the `Age` of a hit.
    pub fn age_s(&self, now_ms: u64) -> u32 {
        let resident = now_ms.saturating_sub(self.received_ms) / 1000;
        u32::try_from((u64::from(self.initial_age_s) + resident).min(MAX_SECONDS))
            .unwrap_or(u32::MAX)
    }

    /// Whether it has been here for a second or longer.
    pub fn has_aged(&self, now_ms: u64) -> bool {
        self.age_s(now_ms) > self.initial_age_s
    }

    /// How long it has been stale, in milliseconds; 0 while it is fresh.
    pub fn stale_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.fresh_until_ms)
    }

    /// The remaining freshness in seconds, negative if it is stale (the `ttl` of Cache-Status).
    pub fn ttl_s(&self, now_ms: u64) -> i64 {
        let left = i128::from(self.fresh_until_ms) - i128::from(now_ms);
        i64::try_from(left.div_euclid(1000)).unwrap_or(i64::MAX)
    }

    /// For the store:
    ///
    /// ```text
    ///  0  8  received_ms        16  4  initial_age_s        28  1  source
    ///  8  8  fresh_until_ms     20  4  while_revalidate_s   29  1  1 must, 2 always revalidate
    ///                           24  4  if_error_s           30  2  0
    /// ```
    pub fn to_bytes(&self) -> [u8; Freshness::BYTES] {
        let mut bytes = [0; Freshness::BYTES];
        bytes[..8].copy_from_slice(&self.received_ms.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.fresh_until_ms.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.initial_age_s.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.while_revalidate_s.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.if_error_s.to_le_bytes());
        bytes[28] = self.source as u8;
        bytes[29] = u8::from(self.must_revalidate) | u8::from(self.always_revalidate) << 1;
        bytes
    }

    /// Decodes what [`Freshness::to_bytes`] wrote; `None` if this is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Freshness> {
        let bytes: &[u8; Freshness::BYTES] = bytes.first_chunk()?;
        let long = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_le_bytes(*b));
        let short = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_le_bytes(*b));
        let source = match bytes[28] {
            0 => LifetimeSource::Nobody,
            1 => LifetimeSource::XAccelExpires,
            2 => LifetimeSource::Targeted,
            3 => LifetimeSource::CacheControl,
            4 => LifetimeSource::Expires,
            5 => LifetimeSource::Configured,
            6 => LifetimeSource::Heuristic,
            _ => return None,
        };
        (bytes[29] < 4 && bytes[30..] == [0, 0]).then_some(())?;
        Some(Freshness {
            received_ms: long(0)?,
            fresh_until_ms: long(8)?,
            initial_age_s: short(16)?,
            while_revalidate_s: short(20)?,
            if_error_s: short(24)?,
            source,
            must_revalidate: bytes[29] & 1 != 0,
            always_revalidate: bytes[29] & 2 != 0,
        })
    }
}

/// A response's age on arrival, in seconds. `delay_ms` is the time that the request took.
///
/// Without `Age` no cache was on the way, so the response was generated while we waited, and its
/// age is zero. The clocks of the two machines are not compared, which RFC 9111, section 4.2.3,
/// permits if every cache on the way sends `Age`.
pub(super) fn initial_age_s(response: &Fields, delay_ms: u64) -> u32 {
    let Some(age) = response.get_known(KnownField::Age).and_then(parse_age) else {
        return 0;
    };
    age.saturating_add(u32::try_from(delay_ms / 1000).unwrap_or(u32::MAX))
        .min(MAX_SECONDS as u32)
}

/// The first number in `Age`; `None` if there is none: then the field is ignored (RFC 9111, section
/// 5.1).
fn parse_age(value: &[u8]) -> Option<u32> {
    let first = value.split(|&b| b == b',').next()?.trim_ascii();
    if first.is_empty() || !first.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = first.iter().fold(0u64, |number, digit| {
        (number * 10 + u64::from(digit - b'0')).min(MAX_SECONDS)
    });
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(values: &[&str], delay_ms: u64) -> u32 {
        let mut fields = Fields::new();
        for value in values {
            fields.push(b"Age", value.as_bytes());
        }
        initial_age_s(&fields, delay_ms)
    }

    #[test]
    fn ages_are_read_with_doubt() {
        assert_eq!(age(&["30"], 0), 30);
        assert_eq!(age(&["30"], 2500), 32);
        assert_eq!(age(&[], 2500), 0);
        for ignored in ["abc", "-7200", "7200.0", "", "7200;foo=bar"] {
            assert_eq!(age(&[ignored], 0), 0, "{ignored}");
        }
        assert_eq!(age(&["7200, 0"], 0), 7200);
        assert_eq!(age(&["0, 7200"], 0), 0);
        assert_eq!(age(&["0", "7200"], 0), 0);
        assert_eq!(age(&["99999999999999999999999"], 9000), 1 << 31);
    }

    #[test]
    fn bytes_come_back() {
        let freshness = Freshness {
            received_ms: 5_000,
            initial_age_s: 3,
            fresh_until_ms: 12_345,
            source: LifetimeSource::Expires,
            while_revalidate_s: 4,
            if_error_s: 5,
            must_revalidate: false,
            always_revalidate: true,
        };
        let bytes = freshness.to_bytes();
        assert_eq!(Freshness::from_bytes(&bytes), Some(freshness));
        assert_eq!(Freshness::from_bytes(&bytes[..31]), None);
        for (at, value) in [(28, 7), (29, 4), (30, 1)] {
            let mut damaged = bytes;
            damaged[at] = value;
            assert_eq!(Freshness::from_bytes(&damaged), None);
        }
        assert_eq!(freshness.age_s(8_999), 6);
        assert_eq!(freshness.age_s(0), 3);
        assert_eq!((freshness.ttl_s(12_344), freshness.ttl_s(12_346)), (0, -1));
        assert_eq!(
            (freshness.stale_ms(12_345), freshness.stale_ms(12_350)),
            (0, 5)
        );
    }
}
