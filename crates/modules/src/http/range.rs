//! Ranges of content (RFC 9110, section 14): 206 with one part or several, 416 when there is no such part.
//!
//! It runs last of the filters that look at content, since ranges are ranges of what is sent; a filter that changed
//! the content took `transforms.ranges` away.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use http::body::{Body, BodyError, Chunk, Source};
use http::request::Version;
use http::{Module, Request, Verdict};
use proto::Known;
use proto::conditional::{self, Validators};
use proto::range::{self, Multipart, Ranges};

pub(crate) static MODULE: Module = Module {
    name: "range",
    doc: "Serves byte ranges.",
    filter: Some(apply),
    ..Module::EMPTY
};

fn apply(request: &mut Request) -> Verdict {
    let max_ranges = request.site.location(request.location).core.max_ranges;
    let out = &request.out;
    if out.status != 200
        || !out.transforms.ranges
        || max_ranges == Some(0)
        || request.is_subrequest()
        || request.head.version() < Version::Http10
    {
        return Verdict::Pass;
    }
    let Some(length) = out.length() else {
        return Verdict::Pass;
    };
    let max_ranges = if out.transforms.single_range {
        Some(1)
    } else {
        max_ranges
    };
    match wanted(request, length, max_ranges) {
        Ranges::Ignore => accept_ranges(request),
        Ranges::One(range) => one(request, range, length),
        Ranges::Many(ranges) => many(request, &ranges, length),
        Ranges::Unsatisfiable => {
            let write = |out: &mut Vec<u8>| range::write_unsatisfied_range(length, out);
            request.out.fields.remove_known(Known::ContentRange);
            request
                .out
                .fields
                .push_known_with(Known::ContentRange, write);
            request.flow.has_added_fields = true;
            Verdict::Status(416)
        }
    }
}

/// What the request asks for, if its `If-Range` agrees with the response.
fn wanted(request: &Request, length: u64, max_ranges: Option<usize>) -> Ranges {
    let Some(value) = request.head.known(Known::Range) else {
        return Ranges::Ignore;
    };
    if let Some(condition) = request.head.known(Known::IfRange) {
        let validators = Validators {
            etag: request.out.etag.as_ref().map(|etag| etag.as_slice()),
            last_modified: request.out.last_modified,
        };
        if !conditional::if_range(condition, validators) {
            return Ranges::Ignore;
        }
    }
    range::parse(value, length, max_ranges)
}

fn accept_ranges(request: &mut Request) -> Verdict {
    request.out.fields.push_known(Known::AcceptRanges, b"bytes");
    Verdict::Pass
}

fn one(request: &mut Request, range: Range<u64>, length: u64) -> Verdict {
    let out = &mut request.out;
    out.status = 206;
    out.reason = None;
    // A part speaks for itself; an origin may have said it of what is stored.
    out.fields.remove_known(Known::AcceptRanges);
    out.fields.remove_known(Known::ContentRange);
    out.fields.push_known_with(Known::ContentRange, |text| {
        range::write_content_range(&range, length, text)
    });
    let wanted = range.end - range.start;
    if !out.body.narrow(range.start, wanted) {
        // Nobody knows yet where the part is, or there is no content, as in a response to HEAD.
        let whole = std::mem::take(&mut out.body);
        if !matches!(whole, Body::Empty) {
            out.body = Body::stream(Window {
                body: whole,
                skip: range.start,
                left: wanted,
            });
        }
    }
    out.content_length = Some(wanted);
    Verdict::Pass
}

fn many(request: &mut Request, ranges: &[Range<u64>], length: u64) -> Verdict {
    /// Boundaries are numbers that begin anew with each process: they must be unlike the content, not secret.
    static BOUNDARY: AtomicU64 = AtomicU64::new(1);
    let out = &mut request.out;
    let Some(contents) = ranges
        .iter()
        .map(|range| out.body.slice(range.start, range.end - range.start))
        .collect::<Option<Vec<Body>>>()
        .or_else(|| request.flow.header_only.then(Vec::new))
    else {
        // Content that is made while it is sent can not be sent in another order, or twice.
        return accept_ranges(request);
    };
    let mut content_type = out.content_type.to_vec();
    if !out.charset.is_empty() {
        content_type.extend_from_slice(b"; charset=");
        content_type.extend_from_slice(&out.charset);
    }
    let boundary = BOUNDARY.fetch_add(1, Ordering::Relaxed);
    let multipart = Multipart {
        boundary,
        content_type: &content_type,
        length,
    };
    let mut parts = VecDeque::with_capacity(2 * ranges.len() + 1);
    for (range, content) in ranges.iter().zip(contents) {
        let mut head = Vec::new();
        multipart.write_part_head(range, &mut head);
        parts.push_back(Chunk::Bytes(head.into()));
        content.append_to(&mut parts);
    }
    let mut end = Vec::new();
    multipart.write_end(&mut end);
    parts.push_back(Chunk::Bytes(end.into()));
    out.status = 206;
    out.reason = None;
    out.fields.remove_known(Known::AcceptRanges);
    out.fields.remove_known(Known::ContentRange);
    out.content_length = Some(multipart.content_length(ranges));
    let mut text = Vec::new();
    multipart.write_content_type(&mut text);
    out.content_type = text.into();
    out.charset.clear();
    out.body = Body::Parts(parts);
    Verdict::Pass
}

/// A part of content that is produced while it is sent.
struct Window {
    body: Body,
    /// Bytes before the part.
    skip: u64,
    /// Bytes of the part still to come.
    left: u64,
}

impl Source for Window {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        while self.left > 0 {
            let chunk = match ready!(self.body.poll_next(request, context)) {
                None => return Poll::Ready(Some(Err(BodyError::Producer))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Chunk::Flush)) => return Poll::Ready(Some(Ok(Chunk::Flush))),
                Some(Ok(chunk)) => chunk,
            };
            let skipped = self.skip.min(chunk.len());
            self.skip -= skipped;
            let length = (chunk.len() - skipped).min(self.left);
            if length == 0 {
                continue;
            }
            self.left -= length;
            return Poll::Ready(Some(Ok(chunk.part(skipped, length))));
        }
        Poll::Ready(None)
    }

    fn length(&self) -> Option<u64> {
        Some(self.left)
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }
}
