//! `slice`: fetches and caches a response in slices of one size, so that a range of a large file
//! costs only the slices that it covers.
//!
//! ```nginx
//! location / {
//!     slice             1m;
//!     proxy_cache       cache;
//!     proxy_cache_key   $uri$is_args$args$slice_range;
//!     proxy_set_header  Range $slice_range;
//!     proxy_cache_valid 200 206 1h;
//!     proxy_pass        http://origin;
//! }
//! ```
//!
//! The client's own request fetches the first slice that is needed. Its 206 becomes a 200 with the
//! whole length, which all filters see, the range filter among them; the other slices are fetched
//! one by one as the client receives them. Each is fetched by a copy of the request that begins at
//! the location's content handler. All slices must belong to the same representation: one entity
//! tag, one length.
//!
//! The filters of the location apply to the whole response, not to the slices. Their number is
//! unlimited.

use std::ops::Range;
use std::task::{Context, Poll, ready};

use bstr::BString;
use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter, Variable};
use http::module::internal_status;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::subrequest::{self, IncludedSubrequest};
use http::{FilterVerdict, HttpModule, Request};
use proto::{KnownField, range};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "slice",
    doc: "Fetches a response in slices of equal size.",
    location: &DIRECTIVES,
    filter: Some(begin_whole),
    enabled: |location| location.confs.get::<Conf>().size > 0,
    variables: &[Variable::new(
        "slice_range",
        slice_range,
        "The range of the current slice as a `Range` header value: `bytes=0-1048575`.",
    )
    .volatile()],
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["slice"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "slice",
    syntax: "size",
    default: Some("0"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "The slice size; 0 disables slicing. `$slice_range` must be sent upstream and be part of the cache key.",
    set: Setter::Size(|c| &mut c.size),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    size: u64,
}

/// The slice that a request fetches. It exists from the first use of `$slice_range`.
#[derive(Clone, Copy)]
struct RequestedSlice {
    /// A multiple of the size.
    start: u64,
    size: u64,
}

/// `$slice_range`. The first use chooses the slice that the client's own request fetches.
fn slice_range(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let piece = match request.fact::<RequestedSlice>() {
        Some(piece) => *piece,
        None => {
            let size = request.conf::<Conf>().size;
            // A subrequest fetches a slice only if it got one with its copy; after the response it
            // is too late to choose.
            if request.is_subrequest() || request.out.status != 0 || size == 0 {
                return false;
            }
            // Rounded down to a multiple of the size: slices of all requests must have the same boundaries, or the
            // cache would not find them again.
            let start = first_wanted(request) / size * size;
            let piece = RequestedSlice { start, size };
            request.set_fact(piece);
            piece
        }
    };
    let last = piece.start.saturating_add(piece.size - 1);
    out.extend_from_slice(format!("bytes={}-{last}", piece.start).as_bytes());
    true
}

/// The first byte that the client asks for, if that is certain: a single range with a first
/// position, and no `If-Range`, which may turn it into the whole. Otherwise 0; it is only a guess
/// where to start.
fn first_wanted(request: &Request) -> u64 {
    let wanted = || {
        let value = request.head.known(KnownField::Range)?;
        let (unit, ranges) = value.split_at_checked(6)?;
        let is_one = unit.eq_ignore_ascii_case(b"bytes=") && !ranges.contains(&b',');
        let digits = ranges
            .trim_ascii_start()
            .split(|b| !b.is_ascii_digit())
            .next()?;
        let is_plain = is_one && request.head.known(KnownField::IfRange).is_none();
        is_plain.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())?
    };
    wanted().filter(|&start| start < 1 << 62).unwrap_or(0)
}

/// The filter: makes the response of the first slice that of the whole.
fn begin_whole(request: &mut Request) -> FilterVerdict {
    let Some(piece) = request.fact::<RequestedSlice>().map(|piece| *piece) else {
        return FilterVerdict::Pass;
    };
    if request.is_subrequest() {
        return FilterVerdict::Pass;
    }
    if request.out.status != 206 {
        // Not a slice, for example an error: from here on the response is an ordinary one.
        request.forget_fact::<RequestedSlice>();
        return FilterVerdict::Pass;
    }
    let found = match ReceivedSlice::of(request, piece, None) {
        Ok(found) => found,
        Err(wrong) => {
            request.error(format_args!("{wrong} in slice response"));
            // The response cannot be passed on as it is: the client asked for the whole and would take a part for
            // it.
            return FilterVerdict::Status(internal_status::CLOSE);
        }
    };
    let out = &mut request.out;
    out.status = 200;
    out.reason = None;
    out.content_length = Some(found.total);
    out.fields.remove_known(KnownField::ContentRange);
    out.fields.remove_known(KnownField::AcceptRanges);
    // The range filter then serves the client's range, from the slices. nginx allows only one range
    // here, too.
    out.transforms.ranges = true;
    out.transforms.single_range = true;
    // The object is one slice, the content is all of them.
    out.identity = None;
    let body = std::mem::take(&mut out.body);
    if !request.delivery.header_only {
        out.body = ResponseBody::stream(SlicedBody {
            size: piece.size,
            position: 0,
            end: found.total,
            at: found.range.start,
            current: CurrentSlice::Own(body),
            current_end: found.range.end,
            received: found,
        });
    }
    FilterVerdict::Pass
}

/// What the response of a slice says about the representation.
struct ReceivedSlice {
    range: Range<u64>,
    /// The length of the whole, which must not change between slices.
    total: u64,
    /// The entity tag, which must not either.
    etag: Option<BString>,
}

impl ReceivedSlice {
    /// Checks the response of `request` for `piece`; `before` is the slice before it.
    fn of(
        request: &Request,
        piece: RequestedSlice,
        before: Option<&ReceivedSlice>,
    ) -> Result<ReceivedSlice, String> {
        let out = &request.out;
        if out.status != 206 {
            return Err(format!("unexpected status code {}", out.status));
        }
        let etag = out.etag.clone();
        // The file changed between two slices: joining them would produce a corrupt response.
        if let Some(before) = before
            && before.etag.is_some()
            && before.etag != etag
        {
            return Err("etag mismatch".to_owned());
        }
        let value = out.fields.get_known(KnownField::ContentRange);
        let Some((Some(found), total)) = value.and_then(range::parse_content_range) else {
            return Err("invalid range".to_owned());
        };
        let Some(total) = total else {
            return Err("no complete length".to_owned());
        };
        // The last slice ends with the file; every other one must be complete, because the next one begins where it
        // should end.
        let end = total.min(piece.start.saturating_add(piece.size));
        if found != (piece.start..end) || before.is_some_and(|before| before.total != total) {
            return Err(format!(
                "unexpected range: {}-{}/{total}, expected: {}-{end}",
                found.start, found.end, piece.start
            ));
        }
        Ok(ReceivedSlice {
            range: found,
            total,
            etag,
        })
    }
}

/// The content that the client gets, slice by slice.
struct SlicedBody {
    /// The size of a slice.
    size: u64,
    received: ReceivedSlice,
    /// The next byte to send, and the end of the range to send.
    position: u64,
    end: u64,
    /// The slice being read, the position of its next byte, and its end.
    current: CurrentSlice,
    at: u64,
    current_end: u64,
}

/// The slice being read.
enum CurrentSlice {
    /// The first one: the content of the client's own request.
    Own(ResponseBody),
    /// A requested one, whose response has not been checked.
    Requested(IncludedSubrequest, RequestedSlice),
    /// One whose response was checked.
    Piece(IncludedSubrequest),
    /// None: between two slices.
    None,
}

impl SlicedBody {
    /// Requests the slice with the next byte.
    fn request_slice(&mut self, request: &Request) {
        let piece = RequestedSlice {
            start: self.position / self.size * self.size,
            size: self.size,
        };
        // One at a time, when the client needs it: a client that leaves early costs no more than the slice it was
        // reading.
        let mut copy = Box::new(subrequest::copy_request(request));
        copy.set_fact(piece);
        self.at = piece.start;
        self.current_end = self.end.min(piece.start.saturating_add(self.size));
        self.current =
            CurrentSlice::Requested(IncludedSubrequest::unfiltered(request, copy), piece);
    }

    /// Waits for the response of the requested slice and checks it.
    fn poll_checked(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        let CurrentSlice::Requested(inclusion, piece) = &mut self.current else {
            return Poll::Ready(Ok(()));
        };
        ready!(inclusion.poll_response(context));
        let judged = match inclusion.request_mut() {
            Some(copy) => ReceivedSlice::of(copy, *piece, Some(&self.received)),
            None => Err("missing slice".to_owned()),
        };
        match (
            judged,
            std::mem::replace(&mut self.current, CurrentSlice::None),
        ) {
            (Ok(found), CurrentSlice::Requested(inclusion, _)) => {
                self.current_end = found.range.end;
                self.received = found;
                self.current = CurrentSlice::Piece(inclusion);
                Poll::Ready(Ok(()))
            }
            (Ok(_), _) => Poll::Ready(Err(BodyError::Producer)),
            (Err(wrong), _) => {
                request.error(format_args!("{wrong} in slice response"));
                // Nothing more is sent: a response that breaks off is better than one of two
                // versions.
                Poll::Ready(Err(BodyError::Withdrawn))
            }
        }
    }

    /// The part of a chunk at `self.at` that the client asked for.
    fn trim(&mut self, chunk: BodyChunk) -> Option<BodyChunk> {
        let start = self.at;
        self.at += chunk.len();
        let from = self.position.max(start);
        let to = self.end.min(self.at);
        if from >= to {
            return None;
        }
        self.position = to;
        Some(chunk.into_range(from - start, to - from))
    }
}

impl BodySource for SlicedBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        while self.position < self.end {
            if let Err(error) = ready!(self.poll_checked(request, context)) {
                return Poll::Ready(Some(Err(error)));
            }
            let next = match &mut self.current {
                // The slice begins after the next byte: the client's range was not applied after
                // all.
                CurrentSlice::Own(_) if self.at > self.position => None,
                CurrentSlice::Own(body) => ready!(body.poll_next(request, context)),
                CurrentSlice::Piece(inclusion) => ready!(inclusion.poll_next(context)),
                CurrentSlice::Requested(..) | CurrentSlice::None => {
                    self.request_slice(request);
                    continue;
                }
            };
            match next {
                // The slice ended early.
                None if self.at <= self.position && self.at < self.current_end => {
                    return Poll::Ready(Some(Err(BodyError::Producer)));
                }
                None => self.current = CurrentSlice::None,
                Some(Ok(BodyChunk::Flush)) => return Poll::Ready(Some(Ok(BodyChunk::Flush))),
                Some(Ok(chunk)) => {
                    if let Some(chunk) = self.trim(chunk) {
                        return Poll::Ready(Some(Ok(chunk)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            }
        }
        Poll::Ready(None)
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        match &mut self.current {
            CurrentSlice::Own(body) => body.poll_ahead(request, context),
            CurrentSlice::Piece(inclusion) => inclusion.poll_ahead(context),
            CurrentSlice::Requested(inclusion, _) => {
                // The result is asked for again when the slice is needed.
                let _ = inclusion.poll_response(context);
            }
            CurrentSlice::None => {}
        }
    }

    fn length(&self) -> Option<u64> {
        Some(self.end - self.position)
    }

    fn limit_to_range(&mut self, offset: u64, length: u64) -> bool {
        self.position = offset;
        self.end = offset.saturating_add(length).min(self.received.total);
        let first = &self.received.range;
        if offset >= first.end || offset < first.start {
            // The first slice is not part of the range after all.
            self.current = CurrentSlice::None;
        }
        true
    }

    fn is_undecided(&self) -> bool {
        matches!(self.current, CurrentSlice::Requested(..))
    }
}
