//! Range requests (RFC 9110, section 14): 206 with one part or several, 416 if no part can be
//! satisfied.
//!
//! It runs last of the filters that deal with content, because ranges refer to what is sent. A
//! filter that changed the content has cleared `transforms.ranges`.
//!
//! A stored response is served in ranges even if its origin did not offer them, unless it says
//! `Accept-Ranges: none`; nginx requires the offer.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use http::request::HttpVersion;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::{FilterVerdict, HttpModule, Request};
use proto::KnownField;
use proto::conditional::{self, Validators};
use proto::range::{self, MultipartRanges, SelectedRanges};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "range",
    doc: "Serves byte ranges.",
    filter: Some(apply_ranges),
    filters_for_members: true,
    explain: http::module::ModuleExplain::Runs(&[]),
    ..HttpModule::EMPTY
};

/// The filter.
fn apply_ranges(request: &mut Request) -> FilterVerdict {
    let max_ranges = request.site.location(request.location).core.max_ranges;
    let out = &request.out;
    // Only a 200 has a representation to take parts of.
    if out.status != 200
        || !out.transforms.ranges
        || max_ranges == Some(0)
        || request.is_subrequest()
        // HTTP/0.9 has no header to say which part it is.
        || request.head.version() < HttpVersion::Http10
    {
        return FilterVerdict::Pass;
    }
    // `Content-Range` needs the length, and so does a range that counts from the end.
    let Some(length) = out.length() else {
        return FilterVerdict::Pass;
    };
    let max_ranges = if out.transforms.single_range {
        Some(1)
    } else {
        max_ranges
    };
    match requested_ranges(request, length, max_ranges) {
        SelectedRanges::Ignore => accept_ranges(request),
        SelectedRanges::One(range) => respond_single(request, range, length),
        SelectedRanges::Many(ranges) => respond_multipart(request, &ranges, length),
        SelectedRanges::Unsatisfiable => {
            let write = |out: &mut Vec<u8>| range::write_unsatisfied_range(length, out);
            request.out.fields.remove_known(KnownField::ContentRange);
            request
                .out
                .fields
                .push_known_with(KnownField::ContentRange, write);
            // The error page passes the header filters again, which must not add their fields
            // twice.
            request.delivery.has_added_fields = true;
            FilterVerdict::Status(416)
        }
    }
}

/// The requested ranges, if `If-Range` matches the response (RFC 9110, section 13.1.5).
fn requested_ranges(request: &Request, length: u64, max_ranges: Option<usize>) -> SelectedRanges {
    let Some(value) = request.head.known(KnownField::Range) else {
        return SelectedRanges::Ignore;
    };
    if let Some(condition) = request.head.known(KnownField::IfRange) {
        let validators = Validators {
            etag: request.out.etag.as_ref().map(|etag| etag.as_slice()),
            last_modified: request.out.last_modified,
        };
        // The client has another version, with which a part of this one would not fit together.
        if !conditional::if_range(condition, validators) {
            return SelectedRanges::Ignore;
        }
    }
    range::parse(value, length, max_ranges)
}

/// The whole response, with the offer of ranges.
fn accept_ranges(request: &mut Request) -> FilterVerdict {
    request
        .out
        .fields
        .push_known(KnownField::AcceptRanges, b"bytes");
    FilterVerdict::Pass
}

/// A 206 makes the offer redundant; a stored response may bring the field along. What a directive has set stays.
fn drop_offer(out: &mut http::response::Response) {
    if out.fields.get_known(KnownField::AcceptRanges) == Some(b"bytes") {
        out.fields.remove_known(KnownField::AcceptRanges);
    }
}

/// A 206 with a single part.
fn respond_single(request: &mut Request, range: Range<u64>, length: u64) -> FilterVerdict {
    let out = &mut request.out;
    out.status = 206;
    out.reason = None;
    drop_offer(out);
    out.fields.remove_known(KnownField::ContentRange);
    out.fields
        .push_known_with(KnownField::ContentRange, |text| {
            range::write_content_range(&range, length, text)
        });
    let wanted = range.end - range.start;
    if !out.body.limit_to_range(range.start, wanted) {
        // The body is produced as it is sent, so everything before the part has to be skipped; or
        // there is none, as in a response to HEAD.
        let whole = std::mem::take(&mut out.body);
        if !matches!(whole, ResponseBody::Empty) {
            out.body = ResponseBody::stream(RangeBody {
                body: whole,
                skip: range.start,
                remaining: wanted,
            });
        }
    }
    out.content_length = Some(wanted);
    FilterVerdict::Pass
}

/// A 206 with several parts, `multipart/byteranges` (RFC 9110, section 14.6).
fn respond_multipart(request: &mut Request, ranges: &[Range<u64>], length: u64) -> FilterVerdict {
    /// Boundaries are numbers that start over with each process. They must not occur in the content
    /// by chance; they need not be secret.
    static BOUNDARY: AtomicU64 = AtomicU64::new(1);
    let out = &mut request.out;
    let Some(contents) = ranges
        .iter()
        .map(|range| out.body.slice(range.start, range.end - range.start))
        .collect::<Option<Vec<ResponseBody>>>()
        .or_else(|| request.delivery.header_only.then(Vec::new))
    else {
        // Content that is produced as it is sent cannot be sent twice or in another order.
        // Responding with all of it is always allowed.
        return accept_ranges(request);
    };
    let mut content_type = out.content_type.to_vec();
    if !out.charset.is_empty() {
        content_type.extend_from_slice(b"; charset=");
        content_type.extend_from_slice(&out.charset);
    }
    // Only now that it is certain to be used.
    let boundary = BOUNDARY.fetch_add(1, Ordering::Relaxed);
    let multipart = MultipartRanges {
        boundary,
        content_type: &content_type,
        length,
    };
    let mut parts = VecDeque::with_capacity(2 * ranges.len() + 1);
    for (range, content) in ranges.iter().zip(contents) {
        let mut head = Vec::new();
        multipart.write_part_head(range, &mut head);
        parts.push_back(BodyChunk::Bytes(head.into()));
        content.append_to(&mut parts);
    }
    let mut end = Vec::new();
    multipart.write_end(&mut end);
    parts.push_back(BodyChunk::Bytes(end.into()));
    out.status = 206;
    out.reason = None;
    drop_offer(out);
    out.fields.remove_known(KnownField::ContentRange);
    out.content_length = Some(multipart.content_length(ranges));
    let mut text = Vec::new();
    multipart.write_content_type(&mut text);
    out.content_type = text.into();
    out.charset.clear();
    out.body = ResponseBody::Parts(parts);
    FilterVerdict::Pass
}

/// A part of a body that is produced as it is sent.
struct RangeBody {
    /// Still to be read in full up to the part.
    body: ResponseBody,
    /// Bytes before the part that remain to be skipped.
    skip: u64,
    /// Bytes of the part still to come.
    remaining: u64,
}

impl BodySource for RangeBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        while self.remaining > 0 {
            let chunk = match ready!(self.body.poll_next(request, context)) {
                // The length has been announced already, so a body that ends early is an error: the connection has
                // to be closed.
                None => return Poll::Ready(Some(Err(BodyError::Producer))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(BodyChunk::Flush)) => return Poll::Ready(Some(Ok(BodyChunk::Flush))),
                Some(Ok(chunk)) => chunk,
            };
            let skipped = self.skip.min(chunk.len());
            self.skip -= skipped;
            let length = (chunk.len() - skipped).min(self.remaining);
            if length == 0 {
                continue;
            }
            self.remaining -= length;
            return Poll::Ready(Some(Ok(chunk.into_range(skipped, length))));
        }
        Poll::Ready(None)
    }

    fn length(&self) -> Option<u64> {
        Some(self.remaining)
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }
}
