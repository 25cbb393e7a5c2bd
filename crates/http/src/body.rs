//! The body of a response on its way from the handler to the wire.
//!
//! A body is plain data for as long as possible: nothing, bytes, or ranges of files. A response that no filter touches
//! therefore reaches the connection as the file range that the handler found, and leaves by `sendfile`. Only a filter
//! that works on the bytes, or a handler that produces them over time, makes a [`Source`].
//!
//! The connection pulls: it asks for the next chunk once the socket has accepted the previous one, so that a slow
//! client stops the producer without further machinery. Nothing here knows the framing of HTTP/1 or HTTP/2.

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
    /// The length in bytes; beyond the end of the file it is an error of the body, never a short response.
    pub length: u64,
}

/// A piece of a body, as the connection gets it: what it can send with one operation.
#[derive(Clone, Debug)]
pub enum Chunk {
    /// Bytes in memory; never empty.
    Bytes(Bytes),
    /// A range of a file; never empty.
    File(FileRange),
    /// Nothing to send itself, but everything before it must leave now instead of being gathered into larger writes.
    Flush,
}

/// Why a body broke off. The response is cut then, so that the client can tell that it is incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The file became shorter than it was when the head was sent.
    FileTruncated,
    /// Reading the file failed, with errno's text.
    File(String),
    /// The producer failed. It has written its own line to the error log.
    Producer,
    /// The response is taken back: whatever is still in our output must not be sent.
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

/// A producer of content: a handler that makes it over time, or a filter around another body.
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

    /// Called while the client takes nothing: a producer that works ahead continues, and keeps what it produces until
    /// it is asked. A producer that wraps another one passes the call on.
    fn poll_ahead(&mut self, _request: &mut Request, _context: &mut Context<'_>) {}

    /// The number of bytes still to come, when that is known.
    fn length(&self) -> Option<u64> {
        None
    }

    /// Restricts the body to `length` bytes at `offset`, if this producer can do better than to produce and drop what
    /// comes before. Called only before the first chunk.
    fn narrow(&mut self, _offset: u64, _length: u64) -> bool {
        false
    }

    /// The `length` bytes at `offset` as a body of their own, if they are all at hand. Called only before the first
    /// chunk.
    fn slice(&self, _offset: u64, _length: u64) -> Option<Body> {
        None
    }

    /// Whether trailers may follow, which are known only at the end of the content. HTTP/1 needs chunked framing for
    /// them even if the length is known.
    fn may_have_trailers(&self) -> bool {
        false
    }

    /// Whether the producer may still find out that there is no response at all. Then the head is better held back:
    /// once it has left, a failure can only be shown by a broken connection.
    fn is_undecided(&self) -> bool {
        false
    }
}

/// The content of a response to HEAD whose length is unknown. [`Body::Empty`] would claim a length of 0.
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

    /// The `length` bytes of the chunk that begin at `start`; both must lie within it.
    pub fn part(self, start: u64, length: u64) -> Chunk {
        match self {
            // The casts lose nothing: both bounds lie within bytes that are in memory.
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

    /// The same as [`Chunk::part`], for a chunk that is kept.
    pub fn cut(&self, start: u64, length: u64) -> Chunk {
        match self {
            // The casts lose nothing: both bounds lie within bytes that are in memory.
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

    /// Lets the producer of the response's body work ahead while the client takes nothing.
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

    /// The next chunk of the response's body. The body is taken out of the request for the call, because its producer
    /// gets the request as `&mut`.
    pub async fn next_of(request: &mut Request) -> Option<Result<Chunk, BodyError>> {
        std::future::poll_fn(|context| {
            // Out of the request for the call, because the producer gets the request as `&mut`.
            let mut body = std::mem::take(&mut request.out.body);
            let next = body.poll_next(request, context);
            if !matches!(next, Poll::Ready(None)) {
                request.out.body = body;
            }
            next
        })
        .await
    }

    /// The `length` bytes at `offset` of a body.
    ///
    /// `None` if they lie beyond its end, or if the body is produced while it is sent and its producer does not have
    /// them.
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

    /// Restricts this body to `length` bytes at `offset`; `false` if they could only be reached by producing everything
    /// before them.
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

    /// Appends this body's chunks to a list, as a multipart response needs them. Not for a body that is still produced.
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

/// The `length` bytes at `offset` of a list of chunks, cut out of the chunks that they overlap.
fn slice_parts(parts: &VecDeque<Chunk>, offset: u64, length: u64) -> Option<Body> {
    let end = offset.checked_add(length)?;
    let mut taken = VecDeque::new();
    let mut at = 0;
    for chunk in parts {
        // The chunk covers `begin..at`; the requested range is `offset..end`. Their overlap is what is taken.
        let (begin, len) = (at, chunk.len());
        at += len;
        let from = offset.max(begin);
        let to = end.min(at);
        if from < to {
            taken.push_back(chunk.cut(from - begin, to - from));
        }
    }
    // A range that ends behind the last chunk is not shortened: the caller has already announced its length.
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
