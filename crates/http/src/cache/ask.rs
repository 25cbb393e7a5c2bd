//! What a fetch asks the origin for: the fields that stand in the place of the client's conditions and ranges.

use std::ops::Range;

use bstr::BString;
use proto::Known;

use crate::request::Request;

/// What a fetch says to the server beside what the client's request says. The client's own conditions and ranges are not
/// sent: the response is for all clients.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// For `If-None-Match`.
    pub etag: Option<BString>,
    /// For `If-Modified-Since`.
    pub last_modified: Option<BString>,
    /// A part of the content, where not all of it is wanted.
    pub range: Option<AskedRange>,
}

/// A part of the content that is asked for.
#[derive(Clone, Debug)]
pub struct AskedRange {
    /// The `Range` field.
    pub value: BString,
    /// Only if the content is still what this validator says, for `If-Range`.
    pub condition: Option<BString>,
}

impl AskedRange {
    /// The part of these bytes, if it is still that of this validator. Its end may lie behind that of the content.
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
    /// What the fetch that `request` belongs to asks for; `None` for requests that are passed on as they are.
    pub fn of(request: &mut Request) -> Option<&Ask> {
        request.state().map(|ask| &*ask)
    }

    /// Asks for these bytes, if they are still those of this validator.
    pub(super) fn for_part(range: &Range<u64>, validator: BString) -> Ask {
        Ask {
            range: Some(AskedRange::new(range, validator)),
            ..Ask::default()
        }
    }

    /// Whether a field of the client's request stays behind.
    pub fn replaces(field: Known) -> bool {
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

    /// The fields that are sent in the place of those that [`Ask::replaces`] holds back.
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
