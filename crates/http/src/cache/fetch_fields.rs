//! What a fetch asks the origin for: header fields that replace the client's conditions and range.

use std::ops::Range;

use bstr::BString;
use proto::KnownField;

use crate::request::Request;

/// The conditions and the range of a fetch. Those of the client are not sent, because the response is for all clients.
#[derive(Clone, Debug, Default)]
pub struct FetchFields {
    /// For `If-None-Match`.
    pub etag: Option<BString>,
    /// For `If-Modified-Since`.
    pub last_modified: Option<BString>,
    /// A part of the body, if the whole is not wanted.
    pub range: Option<RequestedRange>,
}

/// The part of a body that is asked for.
#[derive(Clone, Debug)]
pub struct RequestedRange {
    /// The value of `Range`.
    pub value: BString,
    /// The value of `If-Range`: the part is wanted only if the body is still the one with this validator.
    pub condition: Option<BString>,
}

impl RequestedRange {
    /// These bytes of the body with this validator. The end may lie beyond that of the body.
    fn new(range: &Range<u64>, validator: BString) -> RequestedRange {
        RequestedRange {
            value: match range.end {
                u64::MAX => format!("bytes={}-", range.start).into(),
                end => format!("bytes={}-{}", range.start, end - 1).into(),
            },
            condition: Some(validator),
        }
    }
}

impl FetchFields {
    /// What the fetch that uses this request asks for; `None` for a request that is passed on as it is.
    pub fn of_request(request: &mut Request) -> Option<&FetchFields> {
        request.state().map(|ask| &*ask)
    }

    /// Asks for these bytes of the body with this validator.
    pub(super) fn for_part(range: &Range<u64>, validator: BString) -> FetchFields {
        FetchFields {
            range: Some(RequestedRange::new(range, validator)),
            ..FetchFields::default()
        }
    }

    /// Whether the client's field is not sent to the origin.
    pub fn replaces_field(field: KnownField) -> bool {
        // With the client's conditions, the origin could answer 304 or 412, which says nothing to other clients. With
        // its range, the stored response would lack the rest.
        matches!(
            field,
            KnownField::IfModifiedSince
                | KnownField::IfUnmodifiedSince
                | KnownField::IfNoneMatch
                | KnownField::IfMatch
                | KnownField::Range
                | KnownField::IfRange
        )
    }

    /// The fields that are sent instead of those that [`FetchFields::replaces_field`] suppresses.
    pub fn fields(&self) -> impl Iterator<Item = (KnownField, BString)> {
        let range = self.range.as_ref();
        [
            (KnownField::IfModifiedSince, self.last_modified.clone()),
            (KnownField::IfNoneMatch, self.etag.clone()),
            (KnownField::Range, range.map(|range| range.value.clone())),
            (
                KnownField::IfRange,
                range.and_then(|range| range.condition.clone()),
            ),
        ]
        .into_iter()
        .filter_map(|(known, value)| Some((known, value?)))
    }
}
