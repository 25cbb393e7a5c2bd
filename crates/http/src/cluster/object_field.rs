//! `Weir-Cluster-Object`: what a member says about its answer besides the answer itself.
//!
//! ```text
//! fresh=64 hex digits;took=12     it may be stored: its freshness, and how long the answer took to begin
//! private                         it is for one client; or, with 421, so were the last ones: ask the origin
//! ask=10.0.0.2:7070               with 421: the key is that member's
//! none                            with 421: nothing is stored, and nothing will be fetched for this
//! here;age=12000                  the answer to a request whether the member is there, and for how many milliseconds it runs
//! ```
//!
//! An answer without the field is none: it is an error page, or of a location that has no cache.
//!
//! Members do not trust each other's clocks. Times are therefore sent as differences from the moment at which the answer
//! begins. How long that moment is ago when the head arrives is not known; it is at most what the exchange took beyond what
//! the other member needed. All of that is counted, so that a copy is never fresh for longer than the original.

use std::net::SocketAddr;

use bstr::ByteSlice;
use proto::Fields;
use proto::caching::Freshness;

/// The field of a request of a member.
pub(crate) const REQUEST_FIELD: &[u8] = b"Weir-Cluster";

/// The field of the answer to it.
pub(crate) const RESPONSE_FIELD: &[u8] = b"Weir-Cluster-Object";

/// Makes the moment at which the answer begins the middle of the range, so that the end of freshness can lie before it.
const BIAS_MS: u64 = 1 << 45;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectField {
    /// It may be stored.
    Stored {
        /// With times as differences.
        freshness: Freshness,
        /// How long it took to begin the answer, in milliseconds.
        took_ms: u64,
    },
    /// It is for one client.
    Private,
    /// Another member is to be asked.
    AskOther(SocketAddr),
    /// There is nothing.
    Nothing,
    /// The member is there.
    Here {
        /// For how long it runs, in milliseconds.
        age_ms: u64,
    },
}

/// For how long a member runs that gives this answer to the question whether it is there, in milliseconds; `None` if it does
/// not say so.
pub fn age_of_member(fields: &Fields) -> Option<u64> {
    match ObjectField::read(fields.get(RESPONSE_FIELD)?)? {
        ObjectField::Here { age_ms } => Some(age_ms),
        _ => None,
    }
}

/// What a member has said about the response that a fetch works on: a state of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerVerdict {
    /// It comes from the origin, and has to be judged here.
    Unjudged,
    /// It may be stored.
    Storable(Freshness),
    /// It is for one client.
    Private,
}

impl ObjectField {
    /// What is said of a stored response at this time.
    pub(crate) fn stored(freshness: &Freshness, now_ms: u64, took_ms: u64) -> ObjectField {
        let left = (BIAS_MS.saturating_add(freshness.fresh_until_ms)).saturating_sub(now_ms);
        ObjectField::Stored {
            freshness: Freshness {
                received_ms: 0,
                initial_age_s: freshness.age_s(now_ms),
                fresh_until_ms: left.min(2 * BIAS_MS),
                ..*freshness
            },
            took_ms,
        }
    }

    /// Appends the value of the field.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            ObjectField::Stored { freshness, took_ms } => {
                out.extend_from_slice(b"fresh=");
                for byte in freshness.to_bytes() {
                    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
                    out.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
                }
                out.extend_from_slice(b";took=");
                base::text::write_number(*took_ms, out);
            }
            ObjectField::Private => out.extend_from_slice(b"private"),
            ObjectField::AskOther(member) => {
                out.extend_from_slice(format!("ask={member}").as_bytes())
            }
            ObjectField::Nothing => out.extend_from_slice(b"none"),
            ObjectField::Here { age_ms } => {
                out.extend_from_slice(b"here;age=");
                base::text::write_number(*age_ms, out);
            }
        }
    }

    /// Reads the value of the field; `None` if it is something else.
    pub(crate) fn read(value: &[u8]) -> Option<ObjectField> {
        match value {
            b"private" => return Some(ObjectField::Private),
            b"none" => return Some(ObjectField::Nothing),
            _ => {}
        }
        if let Some(age) = value.strip_prefix(b"here;age=") {
            let age_ms = age.to_str().ok()?.parse().ok()?;
            return Some(ObjectField::Here { age_ms });
        }
        if let Some(member) = value.strip_prefix(b"ask=") {
            let member = member.to_str().ok()?.parse().ok()?;
            return Some(ObjectField::AskOther(member));
        }
        let (digits, took) = value.strip_prefix(b"fresh=")?.split_once_str(";took=")?;
        if digits.len() != 2 * Freshness::BYTES {
            return None;
        }
        let mut bytes = [0; Freshness::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
        }
        Some(ObjectField::Stored {
            freshness: Freshness::from_bytes(&bytes)?,
            took_ms: took.to_str().ok()?.parse().ok()?,
        })
    }
}

/// The freshness of a copy, in this server's time: of a response that was asked for and whose head arrived at these times,
/// in milliseconds.
pub(crate) fn freshness_here(
    sent: &Freshness,
    took_ms: u64,
    (requested_ms, received_ms): (u64, u64),
) -> Freshness {
    let exchange_ms = received_ms.saturating_sub(requested_ms);
    let way_ms = exchange_ms.saturating_sub(took_ms);
    let began_ms = received_ms.saturating_sub(way_ms);
    let way_s = u32::try_from(way_ms.div_ceil(1000)).unwrap_or(u32::MAX);
    Freshness {
        received_ms,
        // A part of a second on the way makes nothing older: `Age` is in whole seconds, and each hop would add one.
        initial_age_s: sent
            .initial_age_s
            .saturating_add(if way_ms < 1000 { 0 } else { way_s }),
        fresh_until_ms: began_ms
            .saturating_add(sent.fresh_until_ms)
            .saturating_sub(BIAS_MS),
        ..*sent
    }
}

#[cfg(test)]
mod tests {
    use proto::caching::LifetimeSource;

    use super::*;

    const NOW: u64 = 1_764_200_000_000;

    fn freshness(fresh_until_ms: u64) -> Freshness {
        Freshness {
            received_ms: NOW - 5_000,
            initial_age_s: 7,
            fresh_until_ms,
            source: LifetimeSource::CacheControl,
            while_revalidate_s: 3,
            if_error_s: 4,
            must_revalidate: true,
            always_revalidate: false,
        }
    }

    fn sent(field: &ObjectField) -> Option<ObjectField> {
        let mut value = Vec::new();
        field.write(&mut value);
        ObjectField::read(&value)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let fields = [
            ObjectField::stored(&freshness(NOW + 60_000), NOW, 12),
            ObjectField::stored(&freshness(u64::MAX), NOW, 12),
            ObjectField::Private,
            ObjectField::AskOther("[2001:db8::1]:7070".parse().expect("it is one")),
            ObjectField::Nothing,
            ObjectField::Here { age_ms: 12 },
        ];
        for field in fields {
            assert_eq!(sent(&field), Some(field));
        }
        for other in [
            "",
            "fresh=;took=1",
            "ask=",
            "ask=here",
            "fresh=00;took=",
            "x",
        ] {
            assert_eq!(ObjectField::read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_copy_is_never_fresh_for_longer_than_the_original() {
        // The clock of the other member is an hour ahead, and half a second passed on the way.
        let there = NOW + 3_600_000;
        let original = Freshness {
            received_ms: there - 5_000,
            ..freshness(there + 60_000)
        };
        let field = ObjectField::stored(&original, there, 2_000);
        let Some(ObjectField::Stored { freshness, took_ms }) = sent(&field) else {
            panic!("it is a stored one");
        };
        let here = freshness_here(&freshness, took_ms, (NOW - 2_500, NOW));
        assert_eq!(here.fresh_until_ms, NOW - 500 + 60_000);
        assert_eq!((here.received_ms, here.initial_age_s), (NOW, 12));
        assert_eq!((here.while_revalidate_s, here.must_revalidate), (3, true));
        let stale = ObjectField::stored(
            &Freshness {
                fresh_until_ms: there - 9_000,
                ..original
            },
            there,
            0,
        );
        let Some(ObjectField::Stored { freshness, took_ms }) = sent(&stale) else {
            panic!("it is a stored one");
        };
        assert_eq!(
            freshness_here(&freshness, took_ms, (NOW, NOW)).fresh_until_ms,
            NOW - 9_000
        );
    }
}
