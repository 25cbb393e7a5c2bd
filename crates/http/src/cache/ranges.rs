//! Ranges from the cache's point of view: which bytes a client wants, which bytes a response has, and whether two
//! responses are of the same version.

use std::ops::Range;

use bstr::{BStr, BString, ByteSlice};
use proto::conditional::{self, Validators};
use proto::message::{Method, ResponseHead};
use proto::range::SelectedRanges;
use proto::{Fields, KnownField, date, etag};

use super::cache_settings::CacheSettings;
use super::decide::WantedRange;
use super::stored_head::StoredHead;
use crate::request::Request;

/// How the request's `Range` is treated by a fetch.
pub(super) fn range_wanted(request: &Request, settings: &CacheSettings) -> WantedRange {
    let Some(value) = request.head.known(KnownField::Range) else {
        return WantedRange::Whole;
    };
    let is_beyond = settings
        .max_range_offset
        .is_some_and(|most| most == 0 || first_byte(value).is_some_and(|first| first >= most));
    // As in nginx, a range that begins below `…_cache_max_range_offset` is cut out of the whole response.
    let is_fetched_alone = settings.max_range_offset.is_none() || is_beyond;
    match is_fetched_alone && can_be_a_part(request, value, settings) {
        true => WantedRange::Part,
        false if is_beyond => WantedRange::Beyond,
        false => WantedRange::Whole,
    }
}

/// Whether the range can be fetched alone, and kept as a part of the object.
fn can_be_a_part(request: &Request, value: &BStr, settings: &CacheSettings) -> bool {
    // If the key contains the range, as with `slice`, a part is stored as a whole object.
    if !settings.partial || request.method != Method::Get || settings.key_has_range() {
        return false;
    }
    let core = &request.site.location(request.location).core;
    // The length is not known yet. The range is parsed against the largest one, and a range that covers all of that is
    // the whole body.
    let endless = i64::MAX as u64;
    match proto::range::parse(value, endless, core.max_ranges) {
        SelectedRanges::One(range) => range != (0..endless),
        // Several ranges cannot be stored as one part.
        SelectedRanges::Many(_) | SelectedRanges::Ignore | SelectedRanges::Unsatisfiable => false,
    }
}

/// The first byte of a `Range` field's first range; the maximum for a suffix range, which lies at the end of any body.
pub(super) fn first_byte(value: &BStr) -> Option<u64> {
    let (unit, rest) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(())?;
    let rest = rest.trim_start_with(|c| c == ' ');
    if rest.starts_with(b"-") {
        return Some(u64::MAX);
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    rest[..digits].to_str().ok()?.parse().ok()
}

/// The bytes that the client wants: the whole unless it asks for exactly one range.
pub(super) fn wanted_part(request: &Request, stored: &StoredHead, length: u64) -> Range<u64> {
    one_range(request, stored, length).unwrap_or(0..length)
}

/// The range that the client asks for, if it is exactly one.
pub(super) fn one_range(request: &Request, stored: &StoredHead, length: u64) -> Option<Range<u64>> {
    match wanted_ranges(request, stored, length) {
        SelectedRanges::One(range) => Some(range),
        SelectedRanges::Many(_) | SelectedRanges::Ignore | SelectedRanges::Unsatisfiable => None,
    }
}

/// The ranges that the client asks for, if `If-Range` holds for this response.
pub(super) fn wanted_ranges(request: &Request, stored: &StoredHead, length: u64) -> SelectedRanges {
    let fields = &stored.head.fields;
    let head = &request.head;
    let Some(range) = head.known(KnownField::Range) else {
        return SelectedRanges::Ignore;
    };
    // RFC 9110, section 13.1.5: if the validator does not match, `Range` is ignored and the whole is sent.
    let agrees = head.known(KnownField::IfRange).is_none_or(|condition| {
        let validators = Validators {
            etag: fields.get_known(KnownField::Etag),
            last_modified: fields
                .get_known(KnownField::LastModified)
                .and_then(date::parse),
        };
        conditional::if_range(condition, validators)
    });
    let core = &request.site.location(request.location).core;
    match agrees {
        true => proto::range::parse(range, length, core.max_ranges),
        false => SelectedRanges::Ignore,
    }
}

/// Whether a part contains the first byte that is wanted, and the rest can be obtained: it is in this part too, or a
/// version makes it possible to append other parts.
pub(super) fn is_begun_by(wanted: &Range<u64>, part: &Range<u64>, has_version: bool) -> bool {
    part.contains(&wanted.start) && (has_version || wanted.end <= part.end)
}

/// The validator that is sent in `If-Range`.
pub(super) fn strong_validator(fields: &Fields) -> Option<BString> {
    // A weak ETag does not prove that the bytes are equal (RFC 9110, section 13.1.5).
    let tag = fields
        .get_known(KnownField::Etag)
        .filter(|tag| !etag::is_weak(tag));
    tag.or(fields.get_known(KnownField::LastModified))
        .map(BString::from)
}

/// Whether a response is exactly this part of a response with these fields and this length.
pub(super) fn is_requested_part(
    head: &ResponseHead,
    fields: &Fields,
    part: Range<u64>,
    length: u64,
) -> bool {
    let range = head
        .fields
        .get_known(KnownField::ContentRange)
        .and_then(proto::range::parse_content_range);
    // A 206 may omit fields that the client already has (RFC 9110, section 15.3.7), but must not contradict them.
    let same = [KnownField::Etag, KnownField::LastModified]
        .iter()
        .all(|known| {
            head.fields
                .get_known(*known)
                .is_none_or(|value| fields.get_known(*known) == Some(value))
        });
    head.status == 206 && same && range == Some((Some(part), Some(length)))
}
