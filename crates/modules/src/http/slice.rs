//! `slice`: a response is fetched, and cached, in pieces of one size, so that a range of a large file costs the pieces
//! that it lies in.
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
//! The client's own request asks for the first piece that is needed. Its 206 becomes a 200 of the whole length, which
//! the filters see, the range filter among them; the other pieces are fetched one by one while the client takes them.
//! Each is a copy of the request that begins at the location's content handler. All pieces must be of the same thing:
//! one entity tag, one length.

use std::ops::Range;
use std::task::{Context, Poll, ready};

use bstr::BString;
use conf::{Directive, HTTP_SERVER_LOCATION, Setter, Table, Variable};
use http::body::{Body, BodyError, Chunk, Source};
use http::module::internal_status;
use http::subrequest::{self, Inclusion};
use http::{Module, Request, Verdict};
use proto::{Known, range};

pub(crate) static MODULE: Module = Module {
    name: "slice",
    doc: "Fetches a response in slices of equal size.",
    location: &DIRECTIVES,
    filter: Some(begin),
    enabled: |location| location.confs.get::<Conf>().size > 0,
    variables: &[Variable::new(
        "slice_range",
        slice_range,
        "The range of the current slice as a `Range` header value: `bytes=0-1048575`.",
    )
    .volatile()],
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
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

/// The piece that a request asks for; there since the first use of `$slice_range`.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    size: u64,
}

fn slice_range(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let piece = match request.fact::<Piece>() {
        Some(piece) => *piece,
        None => {
            let size = request.conf::<Conf>().size;
            if request.is_subrequest() || request.out.status != 0 || size == 0 {
                return false;
            }
            let start = first_wanted(request) / size * size;
            let piece = Piece { start, size };
            request.set_fact(piece);
            piece
        }
    };
    let last = piece.start.saturating_add(piece.size - 1);
    out.extend_from_slice(format!("bytes={}-{last}", piece.start).as_bytes());
    true
}

/// The first byte that the client wants, as far as its request tells: of one range with a beginning, and without a
/// condition that may make it the whole.
fn first_wanted(request: &Request) -> u64 {
    let wanted = || {
        let value = request.head.known(Known::Range)?;
        let (unit, ranges) = value.split_at_checked(6)?;
        let is_one = unit.eq_ignore_ascii_case(b"bytes=") && !ranges.contains(&b',');
        let digits = ranges
            .trim_ascii_start()
            .split(|b| !b.is_ascii_digit())
            .next()?;
        let is_plain = is_one && request.head.known(Known::IfRange).is_none();
        is_plain.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())?
    };
    wanted().filter(|&start| start < 1 << 62).unwrap_or(0)
}

/// Makes the first piece the beginning of the whole.
fn begin(request: &mut Request) -> Verdict {
    let Some(piece) = request.fact::<Piece>().map(|piece| *piece) else {
        return Verdict::Pass;
    };
    if request.is_subrequest() {
        return Verdict::Pass;
    }
    if request.out.status != 206 {
        // What came is not a slice, so later requests for this slice do not find one.
        request.forget_fact::<Piece>();
        return Verdict::Pass;
    }
    let found = match Found::of(request, piece, None) {
        Ok(found) => found,
        Err(wrong) => {
            request.error(format_args!("{wrong} in slice response"));
            return Verdict::Status(internal_status::CLOSE);
        }
    };
    let out = &mut request.out;
    out.status = 200;
    out.reason = None;
    out.content_length = Some(found.total);
    out.fields.remove_known(Known::ContentRange);
    out.fields.remove_known(Known::AcceptRanges);
    out.transforms.ranges = true;
    out.transforms.single_range = true;
    let body = std::mem::take(&mut out.body);
    if !request.flow.header_only {
        out.body = Body::stream(Sliced {
            size: piece.size,
            position: 0,
            end: found.total,
            at: found.range.start,
            current: Current::Own(body),
            current_end: found.range.end,
            found,
        });
    }
    Verdict::Pass
}

/// What a piece says of the whole.
struct Found {
    range: Range<u64>,
    total: u64,
    etag: Option<BString>,
}

impl Found {
    /// Judges the response of `request` to `piece`; `before` is what the piece before it said.
    fn of(request: &Request, piece: Piece, before: Option<&Found>) -> Result<Found, String> {
        let out = &request.out;
        if out.status != 206 {
            return Err(format!("unexpected status code {}", out.status));
        }
        let etag = out.etag.clone();
        if let Some(before) = before
            && before.etag.is_some()
            && before.etag != etag
        {
            return Err("etag mismatch".to_owned());
        }
        let value = out.fields.get_known(Known::ContentRange);
        let Some((Some(found), total)) = value.and_then(range::parse_content_range) else {
            return Err("invalid range".to_owned());
        };
        let Some(total) = total else {
            return Err("no complete length".to_owned());
        };
        let end = total.min(piece.start.saturating_add(piece.size));
        if found != (piece.start..end) || before.is_some_and(|before| before.total != total) {
            return Err(format!(
                "unexpected range: {}-{}/{total}, expected: {}-{end}",
                found.start, found.end, piece.start
            ));
        }
        Ok(Found {
            range: found,
            total,
            etag,
        })
    }
}

/// The whole, or the part of it that the client wants, piece by piece.
struct Sliced {
    size: u64,
    found: Found,
    /// The next byte to send, and the end of what is sent.
    position: u64,
    end: u64,
    /// What is read now, where its next byte stands, and where it ends.
    current: Current,
    at: u64,
    current_end: u64,
}

enum Current {
    /// The content of the client's own request.
    Own(Body),
    /// A piece that is on its way: its response was not judged yet.
    Asked(Inclusion, Piece),
    /// A piece whose response is what it should be.
    Piece(Inclusion),
    /// Between two pieces.
    None,
}

impl Sliced {
    /// Asks for the piece that the next byte is in.
    fn ask(&mut self, request: &Request) {
        let piece = Piece {
            start: self.position / self.size * self.size,
            size: self.size,
        };
        let mut copy = Box::new(subrequest::copy(request));
        copy.set_fact(piece);
        self.at = piece.start;
        self.current_end = self.end.min(piece.start.saturating_add(self.size));
        self.current = Current::Asked(Inclusion::unfiltered(request, copy), piece);
    }

    /// Judges the piece that was asked for, when it is there.
    fn poll_judged(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        let Current::Asked(inclusion, piece) = &mut self.current else {
            return Poll::Ready(Ok(()));
        };
        ready!(inclusion.poll_response(context));
        let judged = match inclusion.request_mut() {
            Some(copy) => Found::of(copy, *piece, Some(&self.found)),
            None => Err("missing slice".to_owned()),
        };
        match (judged, std::mem::replace(&mut self.current, Current::None)) {
            (Ok(found), Current::Asked(inclusion, _)) => {
                self.current_end = found.range.end;
                self.found = found;
                self.current = Current::Piece(inclusion);
                Poll::Ready(Ok(()))
            }
            (Ok(_), _) => Poll::Ready(Err(BodyError::Producer)),
            (Err(wrong), _) => {
                request.error(format_args!("{wrong} in slice response"));
                Poll::Ready(Err(BodyError::Withdrawn))
            }
        }
    }

    /// The part of a chunk at `self.at` that is to be sent.
    fn trim(&mut self, chunk: Chunk) -> Option<Chunk> {
        let start = self.at;
        self.at += chunk.len();
        let from = self.position.max(start);
        let to = self.end.min(self.at);
        if from >= to {
            return None;
        }
        self.position = to;
        Some(chunk.part(from - start, to - from))
    }
}

impl Source for Sliced {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        while self.position < self.end {
            if let Err(error) = ready!(self.poll_judged(request, context)) {
                return Poll::Ready(Some(Err(error)));
            }
            let next = match &mut self.current {
                // It begins after the next byte: the client's range did not count after all.
                Current::Own(_) if self.at > self.position => None,
                Current::Own(body) => ready!(body.poll_next(request, context)),
                Current::Piece(inclusion) => ready!(inclusion.poll_next(context)),
                Current::Asked(..) | Current::None => {
                    self.ask(request);
                    continue;
                }
            };
            match next {
                None if self.at <= self.position && self.at < self.current_end => {
                    return Poll::Ready(Some(Err(BodyError::Producer)));
                }
                None => self.current = Current::None,
                Some(Ok(Chunk::Flush)) => return Poll::Ready(Some(Ok(Chunk::Flush))),
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
            Current::Own(body) => body.poll_ahead(request, context),
            Current::Piece(inclusion) => inclusion.poll_ahead(context),
            Current::Asked(inclusion, _) => {
                // Whether it is there is asked again when it is wanted.
                let _ = inclusion.poll_response(context);
            }
            Current::None => {}
        }
    }

    fn length(&self) -> Option<u64> {
        Some(self.end - self.position)
    }

    fn narrow(&mut self, offset: u64, length: u64) -> bool {
        self.position = offset;
        self.end = offset.saturating_add(length).min(self.found.total);
        let first = &self.found.range;
        if offset >= first.end || offset < first.start {
            // What the client's own request fetched is not wanted.
            self.current = Current::None;
        }
        true
    }

    fn is_undecided(&self) -> bool {
        matches!(self.current, Current::Asked(..))
    }
}
