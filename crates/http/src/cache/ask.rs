//! What a fetch asks the origin for: header fields that replace the client's conditions and range.

use std::ops::Range;

use bstr::BString;
use proto::Known;

use crate::request::Request;

/// The conditions and the range of a fetch. Those of the client are not sent, because the response is for all clients.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// For `If-None-Match`.
    pub etag: Option<BString>,
    /// For `If-Modified-Since`.
    pub last_modified: Option<BString>,
    /// A part of the body, if the whole is not wanted.
    pub range: Option<AskedRange>,
}

/// The part of a body that is asked for.
#[derive(Clone, Debug)]
pub struct AskedRange {
    /// The value of `Range`.
    pub value: BString,
    /// The value of `If-Range`: the part is wanted only if the body is still the one with this validator.
    pub condition: Option<BString>,
}

impl AskedRange {
    /// These bytes of the body with this validator. The end may lie beyond that of the body.
    fn new(range: &Range<u64>, validator: BString) -> AskedRange {
        AskedRange {
            value: match range.end {
                u64::MAX => format!("bytes={}-", range.start).into(),
                end => format!("bytes={}-{}", range.start, end - 1).into(),
            },
            condition: Some(validator),
        }
    }
}

impl Ask {
    /// What the fetch that uses this request asks for; `None` for a request that is passed on as it is.
    pub fn of(request: &mut Request) -> Option<&Ask> {
        request.state().map(|ask| &*ask)
    }

    /// Asks for these bytes of the body with this validator.
    pub(super) fn for_part(range: &Range<u64>, validator: BString) -> Ask {
        Ask {
            range: Some(AskedRange::new(range, validator)),
            ..Ask::default()
        }
    }

    /// Whether the client's field is not sent to the origin.
    pub fn replaces(field: Known) -> bool {
        // With the client's conditions, the origin could answer 304 or 412, which says nothing to other clients. With its
        // range, the stored response would lack the rest.
        matches!(
            field,
            Known::IfModifiedSince
                | Known::IfUnmodifiedSince
                | Known::IfNoneMatch
                | Known::IfMatch
                | Known::Range
                | Known::IfRange
        )
    }

    /// The fields that are sent instead of those that [`Ask::replaces`] suppresses.
    pub fn fields(&self) -> impl Iterator<Item = (Known, BString)> {
        let range = self.range.as_ref();
        [
            (Known::IfModifiedSince, self.last_modified.clone()),
            (Known::IfNoneMatch, self.etag.clone()),
            (Known::Range, range.map(|range| range.value.clone())),
            (
                Known::IfRange,
                range.and_then(|range| range.condition.clone()),
            ),
        ]
        .into_iter()
        .filter_map(|(known, value)| Some((known, value?)))
    }
}
