//! What is stored of a response besides its body, in a format that the store does not interpret.
//!
//! ```text
//! marker:    0 2 | names
//! response:  0 1 | 1 kind | 2 status | 32 freshness | reason | vary | fields
//!   kind     0 with content · 1 without (HEAD) · 2 made here, for an origin that failed
//!   vary     1 flag, and if set: 8 birth of the marker | names | values
//!   names    2 count, and each as text · values: text · reason: text
//!   fields   2 count, and each: name and value as text
//!   text     4 length, bytes
//! ```
//!
//! All numbers are little-endian. The first byte is the version of the format. A head with another version is not
//! decoded, and its object is fetched anew.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use proto::caching::{Freshness, vary};
use proto::fields::Fields;
use proto::message::ResponseHead;
use proto::{KnownField, date, etag};

/// The head of a stored response, with the decisions that were made when it was stored.
#[derive(Clone, Debug)]
pub struct StoredHead {
    /// Status and fields as the server sent them, without those of the connection (RFC 9111, section 3.1).
    pub head: Arc<ResponseHead>,
    /// The reason phrase, if it is not the usual one.
    pub reason: Option<BString>,
    /// How long it is fresh, and whether it may be served when it is stale.
    pub freshness: Freshness,
    /// The variant that it is, if the response varies.
    pub variant: Option<StoredVariant>,
    /// What its body is.
    pub kind: StoredKind,
}

/// What the body of a stored response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKind {
    /// The bytes in the store.
    Content,
    /// None: the response answered HEAD, and its fields describe a body that was not sent.
    HeadOnly,
    /// None: the origin did not answer, and the status is that of the failure.
    Error,
}

/// The variant that a stored response is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVariant {
    /// The marker's number, which is a part of the key.
    pub born: u64,
    /// The request fields that select the variant.
    pub names: Vec<Box<[u8]>>,
    /// Their values in the request, encoded by `variant_values`, or by `values_by_language` where the language selects. A request
    /// that followed the fill compares its own with these.
    pub values: Vec<u8>,
}

/// The content of a marker: it is stored under the primary key of a response that varies, whose variants have keys of
/// their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerHead {
    /// The request fields that select a variant.
    pub names: Vec<Box<[u8]>>,
}

const RESPONSE: u8 = 1;
const MARKER: u8 = 2;

/// A head with this status and these fields.
pub(super) fn head_of(status: u16, fields: Fields) -> ResponseHead {
    let mut head = ResponseHead::default();
    head.status = status;
    head.fields = fields;
    head
}

/// Adds `Date` if it is missing: a recipient with a clock records the time of reception (RFC 9110, section 6.6.1), and
/// a hit must not be dated by the time of the hit.
pub(super) fn with_date(mut fields: Fields) -> Fields {
    if !fields.has(KnownField::Date) {
        fields.push_known_with(KnownField::Date, crate::clock::write_http_date);
    }
    fields
}

/// The values of the request's selecting fields, as one string for use in a key.
pub(super) fn variant_values(names: &[Box<[u8]>], request: &Fields) -> Vec<u8> {
    let mut text = Vec::new();
    for value in vary::variant_key_values(names, request) {
        write_text(&value, &mut text);
    }
    text
}

/// The same string for all requests that prefer this language to all others.
pub(super) fn values_by_language(
    names: &[Box<[u8]>],
    request: &Fields,
    language: &[u8],
) -> Vec<u8> {
    let mut text = Vec::new();
    for value in vary::select_by_language(names, request, language) {
        write_text(&value, &mut text);
    }
    text
}

/// The field that language variants are selected by.
pub(super) const ACCEPT_LANGUAGE: &[u8] = b"accept-language";

impl MarkerHead {
    /// The encoded bytes for the store.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![MARKER];
        write_names(&self.names, &mut out);
        out.into()
    }

    /// Decodes what [`MarkerHead::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<MarkerHead> {
        let mut reader = HeadReader(bytes);
        (reader.byte()? == MARKER).then_some(())?;
        let names = reader.names()?;
        Some(MarkerHead { names })
    }
}

impl StoredHead {
    /// The encoded bytes for the store.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(64 + self.head.fields.bytes());
        out.push(RESPONSE);
        out.push(match self.kind {
            StoredKind::Content => 0,
            StoredKind::HeadOnly => 1,
            StoredKind::Error => 2,
        });
        out.extend_from_slice(&self.head.status.to_le_bytes());
        out.extend_from_slice(&self.freshness.to_bytes());
        write_text(
            self.reason.as_deref().map_or(&[][..], |reason| reason),
            &mut out,
        );
        match &self.variant {
            None => out.push(0),
            Some(variant) => {
                out.push(1);
                out.extend_from_slice(&variant.born.to_le_bytes());
                write_names(&variant.names, &mut out);
                write_text(&variant.values, &mut out);
            }
        }
        let count = u16::try_from(self.head.fields.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        for (name, value) in self.head.fields.iter().take(count.into()) {
            write_text(name, &mut out);
            write_text(value, &mut out);
        }
        out.into()
    }

    /// The freshness in what [`StoredHead::encode`] wrote, without the rest of it.
    pub fn freshness_in(bytes: &[u8]) -> Option<Freshness> {
        let mut reader = HeadReader(bytes);
        (reader.byte()? == RESPONSE).then_some(())?;
        // Kind and status.
        reader.take(3)?;
        Freshness::from_bytes(reader.take(Freshness::BYTES)?)
    }

    /// Decodes what [`StoredHead::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<StoredHead> {
        let mut reader = HeadReader(bytes);
        (reader.byte()? == RESPONSE).then_some(())?;
        let kind = match reader.byte()? {
            0 => StoredKind::Content,
            1 => StoredKind::HeadOnly,
            2 => StoredKind::Error,
            _ => return None,
        };
        let mut head = head_of(reader.short()?, Fields::new());
        let freshness = Freshness::from_bytes(reader.take(Freshness::BYTES)?)?;
        let reason = reader.text()?;
        let variant = match reader.byte()? {
            0 => None,
            _ => Some(StoredVariant {
                born: u64::from_le_bytes(*reader.take(8)?.first_chunk()?),
                names: reader.names()?,
                values: reader.text()?.to_vec(),
            }),
        };
        for _ in 0..reader.short()? {
            let name = reader.text()?;
            head.fields.push(name, reader.text()?);
        }
        Some(StoredHead {
            head: Arc::new(head),
            reason: (!reason.is_empty()).then(|| reason.into()),
            freshness,
            variant,
            kind,
        })
    }

    /// Whether `Last-Modified` is a strong validator: the response was generated in a later second than the change, so
    /// there cannot be a second version with the same time (RFC 9110, section 8.8.2.2).
    fn is_strong(&self, modified: &[u8]) -> bool {
        let date = self
            .head
            .fields
            .get_known(KnownField::Date)
            .and_then(date::parse);
        let modified = date::parse(modified);
        modified.is_some_and(|modified| date.is_some_and(|date| date > modified))
    }

    /// The strong validator as a number; 0 if there is none. `length` is that of the whole body.
    pub fn validator_hash(&self, length: Option<u64>) -> u64 {
        let fields = &self.head.fields;
        // `DefaultHasher::new()` has fixed keys, so the number remains valid across restarts. With another algorithm in
        // a later toolchain the numbers would differ, and stored parts would be fetched anew.
        let mut hasher = DefaultHasher::new();
        match (
            fields.get_known(KnownField::Etag),
            fields.get_known(KnownField::LastModified),
        ) {
            (Some(tag), _) if !etag::is_weak(tag) => hasher.write(tag),
            // A time of one second's resolution is combined with the length, as an additional check.
            (None, Some(date)) if length.is_some() && self.is_strong(date) => {
                hasher.write(date);
                hasher.write_u64(length.unwrap_or_default());
            }
            _ => return 0,
        }
        // 0 means that there is no validator.
        hasher.finish().max(1)
    }
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap_or(0);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&text[..length as usize]);
}

fn write_names(names: &[Box<[u8]>], out: &mut Vec<u8>) {
    let count = u16::try_from(names.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_le_bytes());
    for name in names.iter().take(count.into()) {
        write_text(name, out);
    }
}

/// Reads from the front of some bytes. Each method returns `None` if they are too few: what is on disk may be damaged.
struct HeadReader<'a>(&'a [u8]);

impl<'a> HeadReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn short(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(*self.take(2)?.first_chunk()?))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_le_bytes(*self.take(4)?.first_chunk()?);
        self.take(usize::try_from(length).ok()?)
    }

    fn names(&mut self) -> Option<Vec<Box<[u8]>>> {
        let count = self.short()?;
        (0..count).map(|_| Some(self.text()?.into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proto::caching::LifetimeSource;

    use super::*;

    fn sample() -> StoredHead {
        let mut head = head_of(203, Fields::new());
        head.fields.push(b"ETag", b"\"a\"");
        head.fields.push(b"x-y", b"");
        StoredHead {
            head: Arc::new(head),
            reason: Some("Well".into()),
            freshness: Freshness {
                received_ms: 5,
                initial_age_s: 1,
                fresh_until_ms: 9,
                source: LifetimeSource::Configured,
                while_revalidate_s: 0,
                if_error_s: 2,
                must_revalidate: true,
                always_revalidate: false,
            },
            variant: Some(StoredVariant {
                born: 77,
                names: vec![b"accept"[..].into(), b"cookie"[..].into()],
                values: b"any bytes".to_vec(),
            }),
            kind: StoredKind::HeadOnly,
        }
    }

    #[test]
    fn heads_come_back_and_cut_ones_do_not() {
        let bytes = sample().encode();
        let back = StoredHead::decode(&bytes).expect("what was encoded");
        assert_eq!(StoredHead::freshness_in(&bytes), Some(sample().freshness));
        assert_eq!((back.head.status, back.kind), (203, StoredKind::HeadOnly));
        assert_eq!(
            (&back.variant, back.freshness),
            (&sample().variant, sample().freshness)
        );
        assert_eq!(back.reason, sample().reason);
        let fields: Vec<_> = back.head.fields.iter().collect();
        assert_eq!(fields, [(&b"ETag"[..], &b"\"a\""[..]), (b"x-y", b"")]);
        for end in 0..bytes.len() {
            assert!(StoredHead::decode(&bytes[..end]).is_none(), "{end}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x80;
            // Whatever it says: it must say it without a panic, and without memory in proportion to a claim.
            let _ = StoredHead::decode(&damaged);
            let _ = MarkerHead::decode(&damaged);
            let _ = StoredHead::freshness_in(&damaged);
        }
    }

    #[test]
    fn markers_come_back() {
        let marker = MarkerHead {
            names: vec![b"accept-encoding"[..].into()],
        };
        assert_eq!(MarkerHead::decode(&marker.encode()), Some(marker.clone()));
        assert!(StoredHead::decode(&marker.encode()).is_none());
    }

    #[test]
    fn versions_need_a_strong_validator() {
        let mut stored = sample();
        assert_ne!(stored.validator_hash(None), 0);
        let with = |name: &[u8], value: &[u8]| {
            let mut head = ResponseHead::default();
            head.fields.push(b"Date", b"Thu, 01 Jan 1970 00:00:09 GMT");
            head.fields.push(name, value);
            Arc::new(head)
        };
        stored.head = with(b"ETag", b"W/\"a\"");
        assert_eq!(stored.validator_hash(Some(5)), 0);
        stored.head = with(b"Last-Modified", b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(stored.validator_hash(None), 0);
        assert_ne!(
            stored.validator_hash(Some(5)),
            stored.validator_hash(Some(6))
        );
        stored.head = with(b"Last-Modified", b"Thu, 01 Jan 1970 00:00:09 GMT");
        assert_eq!(
            stored.validator_hash(Some(5)),
            0,
            "it may change again in that second"
        );
    }
}
