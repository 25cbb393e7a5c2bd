//! Conditional requests (RFC 9110 section 13).
//!
//! Where nginx considers both dates and tags, the RFC's order is followed: a tag is a better
//! validator than a date with a resolution of one second, so dates are ignored if tags were sent.

use crate::date;
use crate::etag;
use crate::fields::Fields;
use crate::known_fields::KnownField;

/// The validators of a response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Validators<'a> {
    /// The ETag, as it would be sent.
    pub etag: Option<&'a [u8]>,
    /// Last-Modified, in seconds since the epoch.
    pub last_modified: Option<i64>,
}

/// How If-Modified-Since is compared: nginx's directive `if_modified_since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfModifiedSinceMode {
    /// Not at all.
    Off,
    /// Only an equal time means "not modified": nginx's default.
    Exact,
    /// A later time means "not modified", too.
    Before,
}

/// How to answer a GET or HEAD that would otherwise be answered with 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreconditionOutcome {
    /// The request proceeds as without conditions.
    Proceed,
    /// 304
    NotModified,
    /// 412
    PreconditionFailed,
}

/// Evaluates the conditions in the order of RFC 9110, section 13.2.2.
pub fn evaluate(
    request: &Fields,
    response: Validators<'_>,
    dates: IfModifiedSinceMode,
) -> PreconditionOutcome {
    let date_of = |known| request.get_known(known).map(date::parse);
    if let Some(list) = request.get_known(KnownField::IfMatch) {
        if !matches(list, response.etag, etag::strong_eq) {
            return PreconditionOutcome::PreconditionFailed;
        }
    } else if let Some(since) = date_of(KnownField::IfUnmodifiedSince) {
        // As in nginx, an unknown date on either side fails: better 412 than a lost update.
        let unmodified = since
            .zip(response.last_modified)
            .is_some_and(|(since, modified)| modified <= since);
        if !unmodified {
            return PreconditionOutcome::PreconditionFailed;
        }
    }
    let not_modified = match request.get_known(KnownField::IfNoneMatch) {
        Some(list) => matches(list, response.etag, etag::weak_eq),
        None => date_of(KnownField::IfModifiedSince)
            .is_some_and(|since| !is_modified(since, response, dates)),
    };
    if not_modified {
        PreconditionOutcome::NotModified
    } else {
        PreconditionOutcome::Proceed
    }
}

/// Whether a list contains our tag; `*` matches even if there is none.
fn matches(list: &[u8], ours: Option<&[u8]>, same: fn(&[u8], &[u8]) -> bool) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    ours.is_some_and(|ours| etag::list_has(list, |theirs| same(theirs, ours)))
}

fn is_modified(since: Option<i64>, response: Validators<'_>, dates: IfModifiedSinceMode) -> bool {
    let (Some(since), Some(modified)) = (since, response.last_modified) else {
        return true;
    };
    match dates {
        IfModifiedSinceMode::Off => true,
        IfModifiedSinceMode::Exact => since != modified,
        IfModifiedSinceMode::Before => since < modified,
    }
}

/// Whether Range may be honoured with this If-Range (RFC 9110, section 13.1.5): a tag must be equal
/// and strong, a date equal. Not if the response lacks that validator.
pub fn if_range(value: &[u8], response: Validators<'_>) -> bool {
    if value.len() >= 2 && value.ends_with(b"\"") {
        return response.etag.is_some_and(|tag| etag::strong_eq(tag, value));
    }
    response.last_modified.is_some() && date::parse(value) == response.last_modified
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const TAGGED: Validators<'_> = Validators {
        etag: Some(b"\"a\""),
        last_modified: Some(784_111_777),
    };
    const BARE: Validators<'_> = Validators {
        etag: None,
        last_modified: None,
    };

    fn ask(
        fields: &[(&str, &str)],
        response: Validators<'_>,
        dates: IfModifiedSinceMode,
    ) -> PreconditionOutcome {
        let mut request = Fields::new();
        for (name, value) in fields {
            request.push(name.as_bytes(), value.as_bytes());
        }
        evaluate(&request, response, dates)
    }

    #[test]
    fn tags_decide() {
        use PreconditionOutcome::*;
        for (name, value, outcome) in [
            ("If-None-Match", "\"a\"", NotModified),
            ("If-None-Match", "W/\"a\"", NotModified),
            ("If-None-Match", "*", NotModified),
            ("If-None-Match", "\"x\", \"y\" , \"a\"", NotModified),
            ("If-None-Match", "\"ab\"", Proceed),
            ("If-None-Match", "a", Proceed),
            ("If-None-Match", "", Proceed),
            ("If-Match", "\"a\"", Proceed),
            ("If-Match", "*", Proceed),
            ("If-Match", "\"x\",\t\"a\"", Proceed),
            ("If-Match", "W/\"a\"", PreconditionFailed),
            ("If-Match", "\"x\"", PreconditionFailed),
        ] {
            assert_eq!(
                ask(&[(name, value)], TAGGED, IfModifiedSinceMode::Exact),
                outcome,
                "{name}: {value}"
            );
        }
        assert_eq!(
            ask(
                &[("If-None-Match", "\"a\"")],
                BARE,
                IfModifiedSinceMode::Exact
            ),
            Proceed
        );
        assert_eq!(
            ask(&[("If-Match", "\"a\"")], BARE, IfModifiedSinceMode::Exact),
            PreconditionFailed
        );
        let weak = Validators {
            etag: Some(b"W/\"a\""),
            ..TAGGED
        };
        assert_eq!(
            ask(
                &[("If-None-Match", "\"a\"")],
                weak,
                IfModifiedSinceMode::Exact
            ),
            NotModified
        );
        assert_eq!(
            ask(&[("If-Match", "W/\"a\"")], weak, IfModifiedSinceMode::Exact),
            PreconditionFailed
        );
    }

    #[test]
    fn dates_decide_as_configured() {
        use IfModifiedSinceMode::*;
        use PreconditionOutcome::*;
        let ims = |value, dates| ask(&[("If-Modified-Since", value)], TAGGED, dates);
        assert_eq!(
            [ims(THEN, Exact), ims(LATER, Exact), ims(EARLIER, Exact)],
            [NotModified, Proceed, Proceed]
        );
        assert_eq!(
            [ims(THEN, Before), ims(LATER, Before), ims(EARLIER, Before)],
            [NotModified, NotModified, Proceed]
        );
        assert_eq!(
            [ims(THEN, Off), ims("nonsense", Before)],
            [Proceed, Proceed]
        );
        assert_eq!(ask(&[("If-Modified-Since", THEN)], BARE, Before), Proceed);
        let ius = |value| ask(&[("If-Unmodified-Since", value)], TAGGED, Exact);
        assert_eq!([ius(THEN), ius(LATER)], [Proceed, Proceed]);
        assert_eq!(
            [ius(EARLIER), ius("nonsense")],
            [PreconditionFailed, PreconditionFailed]
        );
        assert_eq!(
            ask(&[("If-Unmodified-Since", THEN)], BARE, Exact),
            PreconditionFailed
        );
    }

    #[test]
    fn tags_go_before_dates() {
        let both = |tag, date| {
            ask(
                &[("If-None-Match", tag), ("If-Modified-Since", date)],
                TAGGED,
                IfModifiedSinceMode::Exact,
            )
        };
        assert_eq!(both("\"a\"", EARLIER), PreconditionOutcome::NotModified);
        assert_eq!(both("\"x\"", THEN), PreconditionOutcome::Proceed);
        let both = |tag, date| {
            ask(
                &[("If-Match", tag), ("If-Unmodified-Since", date)],
                TAGGED,
                IfModifiedSinceMode::Exact,
            )
        };
        assert_eq!(both("\"a\"", EARLIER), PreconditionOutcome::Proceed);
        assert_eq!(both("\"x\"", THEN), PreconditionOutcome::PreconditionFailed);
    }

    #[test]
    fn if_range_wants_the_very_same() {
        assert!(if_range(b"\"a\"", TAGGED) && if_range(THEN.as_bytes(), TAGGED));
        assert!(
            !if_range(LATER.as_bytes(), TAGGED)
                && !if_range(b"\"b\"", TAGGED)
                && !if_range(b"wrong", TAGGED)
        );
        assert!(
            !if_range(b"\"a\"", BARE)
                && !if_range(THEN.as_bytes(), BARE)
                && !if_range(b"wrong", BARE)
        );
        let weak = Validators {
            etag: Some(b"W/\"a\""),
            ..TAGGED
        };
        assert!(!if_range(b"W/\"a\"", weak) && !if_range(b"", TAGGED) && !if_range(b"\"", TAGGED));
    }
}
