//! Ranges, as the cache needs them: which part of a response a client wants, which one it gets, and whether two belong to
//! the same version.

use std::ops::Range;

use bstr::{BStr, BString, ByteSlice};
use proto::conditional::{self, Validators};
use proto::message::{Method, ResponseHead};
use proto::range::Ranges;
use proto::{Fields, Known, date, etag};

use super::decide::RangeWanted;
use super::head::StoredHead;
use super::settings::Settings;
use crate::request::Request;

/// What the `Range` of a request means for a fetch.
pub(super) fn range_wanted(request: &Request, settings: &Settings) -> RangeWanted {
    let Some(value) = request.head.known(Known::Range) else {
        return RangeWanted::Whole;
    };
    let is_beyond = settings
        .max_range_offset
        .is_some_and(|most| most == 0 || first_byte(value).is_some_and(|first| first >= most));
    // With an offset, what begins before it is fetched as a whole, and as in nginx the range is taken out of that.
    let is_fetched_alone = settings.max_range_offset.is_none() || is_beyond;
    match is_fetched_alone && can_be_a_part(request, value, settings) {
        true => RangeWanted::Part,
        false if is_beyond => RangeWanted::Beyond,
        false => RangeWanted::Whole,
    }
}

/// Whether a range can be fetched alone and kept as a part of the object.
fn can_be_a_part(request: &Request, value: &BStr, settings: &Settings) -> bool {
    // Where the key names the range, a part is the whole object.
    if !settings.partial || request.method != Method::Get || settings.key_has_range() {
        return false;
    }
    let core = &request.site.location(request.location).core;
    let endless = i64::MAX as u64;
    match proto::range::parse(value, endless, core.max_ranges) {
        Ranges::One(range) => range != (0..endless),
        Ranges::Many(_) | Ranges::Ignore | Ranges::Unsatisfiable => false,
    }
}

/// Where the first range of a `Range` field begins; the largest number for a suffix.
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

/// The part of the content that the client wants: all, if it is not one range.
pub(super) fn wanted_part(request: &Request, stored: &StoredHead, length: u64) -> Range<u64> {
    one_range(request, stored, length).unwrap_or(0..length)
}

/// The one range that the client wants.
pub(super) fn one_range(request: &Request, stored: &StoredHead, length: u64) -> Option<Range<u64>> {
    match ranges(request, stored, length) {
        Ranges::One(range) => Some(range),
        Ranges::Many(_) | Ranges::Ignore | Ranges::Unsatisfiable => None,
    }
}

/// The ranges that the client wants, if they are those of this response.
pub(super) fn ranges(request: &Request, stored: &StoredHead, length: u64) -> Ranges {
    let fields = &stored.head.fields;
    let head = &request.head;
    let Some(range) = head.known(Known::Range) else {
        return Ranges::Ignore;
    };
    let agrees = head.known(Known::IfRange).is_none_or(|condition| {
        let validators = Validators {
            etag: fields.get_known(Known::Etag),
            last_modified: fields.get_known(Known::LastModified).and_then(date::parse),
        };
        conditional::if_range(condition, validators)
    });
    let core = &request.site.location(request.location).core;
    match agrees {
        true => proto::range::parse(range, length, core.max_ranges),
        false => Ranges::Ignore,
    }
}

/// Whether a part of a response is where what a client wants begins, and the rest of that can be had: it is in the part
/// too, or other parts can be told to be of the same version.
pub(super) fn is_begun_by(wanted: &Range<u64>, part: &Range<u64>, has_version: bool) -> bool {
    part.contains(&wanted.start) && (has_version || wanted.end <= part.end)
}

/// What tells one version of a response from the next, for `If-Range`.
pub(super) fn validator(fields: &Fields) -> Option<BString> {
    // A weak tag is no validator for parts of content (RFC 9110, section 13.1.5).
    let tag = fields
        .get_known(Known::Etag)
        .filter(|tag| !etag::is_weak(tag));
    tag.or(fields.get_known(Known::LastModified))
        .map(BString::from)
}

/// Whether a response is this part of one with these fields and this length.
pub(super) fn continues(
    head: &ResponseHead,
    fields: &Fields,
    part: Range<u64>,
    length: u64,
) -> bool {
    let range = head
        .fields
        .get_known(Known::ContentRange)
        .and_then(proto::range::parse_content_range);
    let same = [Known::Etag, Known::LastModified].iter().all(|known| {
        head.fields
            .get_known(*known)
            .is_none_or(|value| fields.get_known(*known) == Some(value))
    });
    head.status == 206 && same && range == Some((Some(part), Some(length)))
}
