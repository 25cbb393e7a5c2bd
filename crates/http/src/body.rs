//! The body of a response on its way from the handler to the wire.
//!
//! A body is plain data for as long as it can be: nothing, bytes, or ranges of files. A response that no filter touches
//! therefore reaches the connection as the file range that the handler found, and leaves by `sendfile`. Only a filter
//! that works on the bytes, or a handler that produces them over time, makes a [`Source`].
//!
//! The connection pulls: it asks for the next chunk when the socket took the one before, so a slow client stops the
//! producer without any further machinery. Nothing here knows HTTP/1 or HTTP/2 framing.

use std::collections::VecDeque;
use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::request::Request;

/// What is left to send of a response's content.
#[derive(Default)]
pub enum Body {
    /// No content.
    #[default]
    Empty,
    /// Content in memory.
    Bytes(Bytes),
    /// One range of a file.
    File(FileRange),
    /// Bytes and file ranges in order, as a multipart range response has them.
    Parts(VecDeque<Chunk>),
    /// Content that is produced while it is sent.
    Stream(Box<dyn Source>),
}

/// A range of an open file.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The open file.
    pub file: rt::file::File,
    /// The first byte, counted from the file's start.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// A piece of a body.
#[derive(Clone, Debug)]
pub enum Chunk {
    /// Bytes in memory; never empty.
    Bytes(Bytes),
    /// A range of a file; never empty.
    File(FileRange),
    /// Nothing to send, but what was sent so far must leave now.
    Flush,
}

/// Why a body ended before its end. The response is cut then, so that the client can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The file became shorter than it was when the head was sent.
    FileTruncated,
    /// Reading the file failed, with errno's text.
    File(String),
    /// Whoever produces the content stopped short. Its own line in the error log says why.
    Producer,
    /// The response is taken back: what of it has not left by now is not sent.
    Withdrawn,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::FileTruncated => {
                f.write_str("the file was truncated while it was being sent")
            }
            BodyError::File(why) => write!(f, "reading the file failed: {why}"),
            BodyError::Producer => f.write_str("the body ended prematurely"),
            BodyError::Withdrawn => f.write_str("the response was withdrawn"),
        }
    }
}

/// A producer of content.
pub trait Source {
    /// The next chunk, `None` at the end.
    ///
    /// `request` is the request whose response this is; it is lent for the call so that a producer may evaluate
    /// variables. Must not be called again after `None` or an error.
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>>;

    /// Goes on producing while the client takes nothing, if this is a producer that works ahead. What it produces stays
    /// with it until it is asked for. One that wraps another passes the call on.
    fn poll_ahead(&mut self, _request: &mut Request, _context: &mut Context<'_>) {}

    /// The number of bytes still to come, when that is known.
    fn length(&self) -> Option<u64> {
        None
    }

    /// Leaves away all but the part that stands at `offset`, if this producer can do better than to produce what is
    /// before it. Only asked before the first chunk.
    fn narrow(&mut self, _offset: u64, _length: u64) -> bool {
        false
    }

    /// The part that stands at `offset`, if all of it is there already. Only asked before the first chunk.
    fn slice(&self, _offset: u64, _length: u64) -> Option<Body> {
        None
    }

    /// Whether fields may follow the content: they show when it ends, even if its length is known.
    fn may_have_trailers(&self) -> bool {
        false
    }

    /// Whether what it waits for may mean that there is no response at all, so that the head had better not leave
    /// meanwhile.
    fn is_undecided(&self) -> bool {
        false
    }
}

/// Content that nobody has: unlike [`Body::Empty`] it is not known to be none.
struct Unsent;

impl Source for Unsent {
    fn poll_next(
        &mut self,
        _request: &mut Request,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        Poll::Ready(None)
    }
}

impl Chunk {
    /// The number of bytes of content in it.
    pub fn len(&self) -> u64 {
        match self {
            Chunk::Bytes(bytes) => bytes.len() as u64,
            Chunk::File(range) => range.length,
            Chunk::Flush => 0,
        }
    }

    /// The part of it that begins at `start`, `length` bytes long, both within it.
    pub fn part(self, start: u64, length: u64) -> Chunk {
        match self {
            // The bounds fit, because they are within bytes in memory.
            Chunk::Bytes(bytes) => {
                Chunk::Bytes(bytes.slice(start as usize..(start + length) as usize))
            }
            Chunk::File(range) => Chunk::File(FileRange {
                offset: range.offset + start,
                length,
                ..range
            }),
            Chunk::Flush => Chunk::Flush,
        }
    }

    /// The part that begins at `start`; it must be within the chunk.
    pub fn cut(&self, start: u64, length: u64) -> Chunk {
        match self {
            // The bounds fit, because they are within bytes in memory.
            Chunk::Bytes(bytes) => {
                Chunk::Bytes(bytes.slice(start as usize..(start + length) as usize))
            }
            Chunk::File(range) => Chunk::File(FileRange {
                file: range.file.clone(),
                offset: range.offset + start,
                length,
            }),
            Chunk::Flush => Chunk::Flush,
        }
    }

    /// Whether it carries no content.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Body {
    /// A body that `source` produces.
    pub fn stream(source: impl Source + 'static) -> Body {
        Body::Stream(Box::new(source))
    }

    /// Content of unknown length that is not sent, because the request is a HEAD.
    pub fn unsent() -> Body {
        Body::stream(Unsent)
    }

    /// A body of bytes in memory.
    pub fn bytes(bytes: impl Into<Bytes>) -> Body {
        let bytes = bytes.into();
        if bytes.is_empty() {
            Body::Empty
        } else {
            Body::Bytes(bytes)
        }
    }

    /// A body of one range of a file.
    pub fn file(file: rt::file::File, offset: u64, length: u64) -> Body {
        if length == 0 {
            Body::Empty
        } else {
            Body::File(FileRange {
                file,
                offset,
                length,
            })
        }
    }

    /// The number of bytes still to come, when that is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Body::Empty => Some(0),
            Body::Bytes(bytes) => Some(bytes.len() as u64),
            Body::File(range) => Some(range.length),
            Body::Parts(parts) => Some(parts.iter().map(Chunk::len).sum()),
            Body::Stream(source) => source.length(),
        }
    }

    /// The next chunk, taken out of the body; `None` at the end.
    pub fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        match self {
            Body::Stream(source) => source.poll_next(request, context),
            Body::Parts(parts) => Poll::Ready(parts.pop_front().map(Ok)),
            Body::Empty => Poll::Ready(None),
            Body::Bytes(_) | Body::File(_) => {
                Poll::Ready(std::mem::take(self).into_chunk().map(Ok))
            }
        }
    }

    /// Lets the producer of `request`'s body work ahead: called while the client takes nothing.
    pub fn poll_ahead_of(request: &mut Request, context: &mut Context<'_>) {
        if matches!(request.out.body, Body::Stream(_)) {
            let mut body = std::mem::take(&mut request.out.body);
            body.poll_ahead(request, context);
            request.out.body = body;
        }
    }

    /// Lets a producer work ahead; `request` is the one that it belongs to.
    pub fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        if let Body::Stream(source) = self {
            source.poll_ahead(request, context);
        }
    }

    /// The next chunk of the body of `request`'s response. The body stands aside while it is asked, because it is
    /// lent the request.
    pub async fn next_of(request: &mut Request) -> Option<Result<Chunk, BodyError>> {
        std::future::poll_fn(|context| {
            let mut body = std::mem::take(&mut request.out.body);
            let next = body.poll_next(request, context);
            if !matches!(next, Poll::Ready(None)) {
                request.out.body = body;
            }
            next
        })
        .await
    }

    /// The part of a body of known extent that stands at `offset`, `length` bytes long.
    ///
    /// `None` for a body that is produced while it is sent, unless its producer has that part.
    pub fn slice(&self, offset: u64, length: u64) -> Option<Body> {
        match self {
            Body::Empty => (offset == 0 && length == 0).then_some(Body::Empty),
            Body::Bytes(bytes) => {
                let start = usize::try_from(offset).ok()?;
                let end = start.checked_add(usize::try_from(length).ok()?)?;
                (end <= bytes.len()).then(|| Body::bytes(bytes.slice(start..end)))
            }
            Body::File(range) => (offset.checked_add(length)? <= range.length)
                .then(|| Body::file(range.file.clone(), range.offset + offset, length)),
            Body::Parts(parts) => slice_parts(parts, offset, length),
            Body::Stream(source) => source.slice(offset, length),
        }
    }

    /// Makes this body the part of it that stands at `offset`, `length` bytes long; `false` if it would have to be
    /// produced from its beginning.
    pub fn narrow(&mut self, offset: u64, length: u64) -> bool {
        if let Body::Stream(source) = self {
            return source.narrow(offset, length);
        }
        match self.slice(offset, length) {
            Some(part) => {
                *self = part;
                true
            }
            None => false,
        }
    }

    /// Appends what stands in this body to a list of parts.
    pub fn append_to(self, parts: &mut VecDeque<Chunk>) {
        match self {
            Body::Parts(more) => parts.extend(more),
            other => parts.extend(other.into_chunk()),
        }
    }

    fn into_chunk(self) -> Option<Chunk> {
        match self {
            Body::Bytes(bytes) => Some(Chunk::Bytes(bytes)),
            Body::File(range) => Some(Chunk::File(range)),
            Body::Empty | Body::Parts(_) | Body::Stream(_) => None,
        }
    }
}

/// The part of a list of chunks that stands at `offset`.
fn slice_parts(parts: &VecDeque<Chunk>, offset: u64, length: u64) -> Option<Body> {
    let end = offset.checked_add(length)?;
    let mut taken = VecDeque::new();
    let mut at = 0;
    for chunk in parts {
        let (begin, len) = (at, chunk.len());
        at += len;
        let from = offset.max(begin);
        let to = end.min(at);
        if from < to {
            taken.push_back(chunk.cut(from - begin, to - from));
        }
    }
    (end <= at).then_some(Body::Parts(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_bytes_is_that_part_or_nothing() {
        let body = Body::bytes(&b"0123456789"[..]);
        assert_eq!(body.slice(2, 3).and_then(|b| b.length()), Some(3));
        assert!(body.slice(8, 3).is_none());
        assert!(body.slice(u64::MAX, 2).is_none());
    }

    #[test]
    fn a_slice_of_parts_is_cut_out_of_each() {
        let parts = ["0123", "45", "6789"].map(|text| Chunk::Bytes(text.into()));
        let body = Body::Parts(parts.into());
        let text = |body: Body| match body {
            Body::Parts(parts) => parts
                .into_iter()
                .flat_map(|chunk| match chunk {
                    Chunk::Bytes(bytes) => bytes.to_vec(),
                    Chunk::File(_) | Chunk::Flush => Vec::new(),
                })
                .collect::<Vec<u8>>(),
            _ => Vec::new(),
        };
        for from in 0..=10 {
            for to in from..=10 {
                let slice = body.slice(from, to - from).expect("it is within");
                assert_eq!(text(slice), b"0123456789"[from as usize..to as usize]);
            }
        }
        assert!(body.slice(9, 2).is_none());
        assert!(body.slice(2, u64::MAX).is_none());
    }

    #[test]
    fn lengths_add_up() {
        let mut parts = VecDeque::new();
        Body::bytes(&b"ab"[..]).append_to(&mut parts);
        Body::bytes(&b"cde"[..]).append_to(&mut parts);
        assert_eq!(Body::Parts(parts).length(), Some(5));
        assert_eq!(Body::bytes(&b""[..]).length(), Some(0));
    }
}
