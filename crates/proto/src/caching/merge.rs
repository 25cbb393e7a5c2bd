//! How a 304, or the response to HEAD, updates a stored response (RFC 9111, sections 3.2 and 4.3).

use super::storable_fields::storable_fields;
use crate::etag;
use crate::fields::Fields;
use crate::known_fields::KnownField;

/// The fields by which an origin recognises a stored response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredValidators<'a> {
    /// For If-None-Match.
    pub etag: Option<&'a [u8]>,
    /// For If-Modified-Since.
    pub last_modified: Option<&'a [u8]>,
}

/// The validators of a stored response.
pub fn stored_validators(stored: &Fields) -> StoredValidators<'_> {
    StoredValidators {
        etag: stored.get_known(KnownField::Etag),
        last_modified: stored.get_known(KnownField::LastModified),
    }
}

/// The fields that describe the stored bytes, and are right for them only.
const OF_THE_BYTES: &[KnownField] = &[
    KnownField::ContentLength,
    KnownField::ContentEncoding,
    KnownField::ContentRange,
];

/// The stored fields updated by those of a 304: a field of the 304 replaces all stored ones of its
/// name. `None` if the 304 has another strong tag, so it is about something else; then the request
/// must be repeated without conditions.
pub fn merge_304(stored: &Fields, fresh: &Fields) -> Option<Fields> {
    if let (Some(new), Some(old)) = (
        fresh.get_known(KnownField::Etag),
        stored.get_known(KnownField::Etag),
    ) && !etag::is_weak(new)
        && !etag::weak_eq(new, old)
    {
        return None;
    }
    Some(renewed(stored, fresh))
}

fn renewed(stored: &Fields, fresh: &Fields) -> Fields {
    let mut fresh = storable_fields(fresh);
    fresh.retain(|known, _, _| !OF_THE_BYTES.contains(&known));
    let mut merged = stored.clone();
    merged.retain(|known, name, value| {
        // Age and Date were those of the previous transfer. Warning has been obsoleted (section
        // 5.5).
        let is_of_transfer = matches!(known, KnownField::Age | KnownField::Date);
        let is_warning = name.eq_ignore_ascii_case(b"Warning") && value.starts_with(b"1");
        !is_of_transfer && !is_warning && fresh.get(name).is_none()
    });
    merged.extend_from(&fresh);
    merged
}

/// What the 200 of a HEAD says about a stored response to GET (RFC 9111, section 4.3.5).
#[derive(Debug)]
pub enum HeadUpdate {
    /// The stored response is current; these are its updated fields.
    Same(Fields),
    /// The resource has changed, so the stored response is stale.
    Changed,
}

/// Compares the response to HEAD with what is stored, and with its length if that is known.
pub fn head_update(stored: &Fields, head: &Fields, stored_length: Option<u64>) -> HeadUpdate {
    let differs = |known| match (head.get_known(known), stored.get_known(known)) {
        (Some(new), Some(old)) => new != old,
        _ => false,
    };
    let length = head
        .get_known(KnownField::ContentLength)
        .and_then(crate::message::parse_length);
    let has_other_length = matches!((length, stored_length), (Some(a), Some(b)) if a != b);
    if differs(KnownField::Etag) || differs(KnownField::LastModified) || has_other_length {
        return HeadUpdate::Changed;
    }
    HeadUpdate::Same(renewed(stored, head))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in text {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    fn text(fields: &Fields) -> String {
        let lines: Vec<String> = fields
            .iter()
            .map(|(name, value)| {
                format!(
                    "{}={}",
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(value)
                )
            })
            .collect();
        lines.join(" ")
    }

    #[test]
    fn a_304_renews_fields() {
        let stored = fields(&[
            ("Etag", "\"a\""),
            ("Content-Length", "5"),
            ("Age", "9"),
            ("Date", "x"),
            ("Warning", "110 - \"stale\""),
            ("Warning", "299 - \"kept\""),
            ("X", "1"),
            ("Y", "2"),
            ("Y", "3"),
        ]);
        let fresh = fields(&[
            ("ETag", "\"a\""),
            ("Content-Length", "0"),
            ("Connection", "z"),
            ("Z", "0"),
            ("y", "4"),
        ]);
        let merged = merge_304(&stored, &fresh).as_ref().map(text);
        assert_eq!(
            merged.as_deref(),
            Some("Content-Length=5 Warning=299 - \"kept\" X=1 ETag=\"a\" y=4")
        );
    }

    #[test]
    fn a_304_about_another_is_none() {
        let stored = fields(&[("ETag", "\"a\""), ("Last-Modified", "1")]);
        let other = fields(&[("ETag", "\"b\"")]);
        assert!(merge_304(&stored, &other).is_none());
        let weak = fields(&[("ETag", "W/\"a\"")]);
        assert!(merge_304(&stored, &weak).is_some());
    }

    #[test]
    fn a_head_renews_or_ends() {
        let stored = fields(&[("ETag", "\"a\""), ("A", "1")]);
        let same = fields(&[("ETag", "\"a\""), ("A", "2"), ("Content-Length", "5")]);
        assert!(matches!(
            head_update(&stored, &same, Some(5)),
            HeadUpdate::Same(fields) if fields.get(b"A") == Some(b"2") && fields.len() == 2
        ));
        assert!(matches!(
            head_update(&stored, &same, Some(6)),
            HeadUpdate::Changed
        ));
        let other = fields(&[("ETag", "\"b\"")]);
        assert!(matches!(
            head_update(&stored, &other, None),
            HeadUpdate::Changed
        ));
    }
}
