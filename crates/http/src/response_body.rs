//! The body of a response on its way from the handler to the wire.
//!
//! A body is plain data for as long as possible: nothing, bytes, or ranges of files. A response that no filter touches
//! therefore reaches the connection as the file range that the handler found, and leaves by `sendfile`. Only a filter
//! that works on the bytes, or a handler that produces them over time, makes a [`BodySource`].
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
pub enum ResponseBody {
    /// No content.
    #[default]
    Empty,
    /// Content in memory.
    Bytes(Bytes),
    /// One range of a file.
    File(FileRange),
    /// Bytes and file ranges in order, as a multipart range response has them.
    Parts(VecDeque<BodyChunk>),
    /// Content that is produced while it is sent.
    Stream(Box<dyn BodySource>),
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

impl FileRange {
    /// What is left of it from `offset` on, which is a place in the file.
    pub(crate) fn rest_from(mut self, offset: u64) -> FileRange {
        self.length -= offset - self.offset;
        self.offset = offset;
        self
    }
}

/// A piece of a body, as the connection gets it: what it can send with one operation.
#[derive(Clone, Debug)]
pub enum BodyChunk {
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

/// What is left to be done at the end of a response.
pub type EndWork = Box<dyn FnOnce(&mut Request)>;

/// A producer of content: a handler that makes it over time, or a filter around another body.
pub trait BodySource {
    /// The next chunk, `None` at the end.
    ///
    /// `request` is the request whose response this is; it is lent for the call so that a producer may evaluate
    /// variables. Must not be called again after `None` or an error.
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>>;

    /// Called while the client takes nothing: a producer that works ahead continues, and keeps what it produces until
    /// it is asked. A producer that wraps another one passes the call on.
    fn poll_ahead(&mut self, _request: &mut Request, _context: &mut Context<'_>) {}

    /// Whether this producer can keep this many bytes, which a slow client does not take, elsewhere than in memory.
    fn takes_back(&self, _bytes: u64) -> bool {
        false
    }

    /// Takes a chunk back that the client does not take: it comes again before everything else, and not from memory.
    /// Called only if [`BodySource::takes_back`] says so.
    fn take_back(&mut self, _chunk: BodyChunk) {}

    /// The number of bytes still to come, when that is known.
    fn length(&self) -> Option<u64> {
        None
    }

    /// Restricts the body to `length` bytes at `offset`, if this producer can do better than to produce and drop what
    /// comes before. Called only before the first chunk.
    fn limit_to_range(&mut self, _offset: u64, _length: u64) -> bool {
        false
    }

    /// The `length` bytes at `offset` as a body of their own, if they are all at hand. Called only before the first
    /// chunk.
    fn slice(&self, _offset: u64, _length: u64) -> Option<ResponseBody> {
        None
    }

    /// Whether trailers may follow, which are known only at the end of the content. HTTP/1 needs chunked framing for
    /// them even if the length is known.
    fn may_have_trailers(&self) -> bool {
        false
    }

    /// The content is read elsewhere, for this response and others, which takes the place of this body. Returns what is left
    /// to be done when the response has ended.
    fn read_elsewhere(self: Box<Self>) -> Option<EndWork> {
        None
    }

    /// Whether the producer may still find out that there is no response at all. Then the head is better held back:
    /// once it has left, a failure can only be shown by a broken connection.
    fn is_undecided(&self) -> bool {
        false
    }
}

/// The content of a response to HEAD whose length is unknown. [`ResponseBody::Empty`] would claim a length of 0.
struct UnsentBody;

impl BodySource for UnsentBody {
    fn poll_next(
        &mut self,
        _request: &mut Request,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        Poll::Ready(None)
    }
}

impl BodyChunk {
    /// The number of bytes of content in it.
    pub fn len(&self) -> u64 {
        match self {
            BodyChunk::Bytes(bytes) => bytes.len() as u64,
            BodyChunk::File(range) => range.length,
            BodyChunk::Flush => 0,
        }
    }

    /// The `length` bytes of the chunk that begin at `start`; both must lie within it.
    pub fn into_range(self, start: u64, length: u64) -> BodyChunk {
        match self {
            // The casts lose nothing: both bounds lie within bytes that are in memory.
            BodyChunk::Bytes(bytes) => {
                BodyChunk::Bytes(bytes.slice(start as usize..(start + length) as usize))
            }
            BodyChunk::File(range) => BodyChunk::File(FileRange {
                offset: range.offset + start,
                length,
                ..range
            }),
            BodyChunk::Flush => BodyChunk::Flush,
        }
    }

    /// The same as [`BodyChunk::into_range`], for a chunk that is kept.
    pub fn clone_range(&self, start: u64, length: u64) -> BodyChunk {
        match self {
            // The casts lose nothing: both bounds lie within bytes that are in memory.
            BodyChunk::Bytes(bytes) => {
                BodyChunk::Bytes(bytes.slice(start as usize..(start + length) as usize))
            }
            BodyChunk::File(range) => BodyChunk::File(FileRange {
                file: range.file.clone(),
                offset: range.offset + start,
                length,
            }),
            BodyChunk::Flush => BodyChunk::Flush,
        }
    }

    /// Whether it carries no content.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ResponseBody {
    /// A body that `source` produces.
    pub fn stream(source: impl BodySource + 'static) -> ResponseBody {
        ResponseBody::Stream(Box::new(source))
    }

    /// Content of unknown length that is not sent, because the request is a HEAD.
    pub fn unsent() -> ResponseBody {
        ResponseBody::stream(UnsentBody)
    }

    /// A body of bytes in memory.
    pub fn bytes(bytes: impl Into<Bytes>) -> ResponseBody {
        let bytes = bytes.into();
        if bytes.is_empty() {
            ResponseBody::Empty
        } else {
            ResponseBody::Bytes(bytes)
        }
    }

    /// A body of one range of a file.
    pub fn file(file: rt::file::File, offset: u64, length: u64) -> ResponseBody {
        if length == 0 {
            ResponseBody::Empty
        } else {
            ResponseBody::File(FileRange {
                file,
                offset,
                length,
            })
        }
    }

    /// The number of bytes still to come, when that is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            ResponseBody::Empty => Some(0),
            ResponseBody::Bytes(bytes) => Some(bytes.len() as u64),
            ResponseBody::File(range) => Some(range.length),
            ResponseBody::Parts(parts) => Some(parts.iter().map(BodyChunk::len).sum()),
            ResponseBody::Stream(source) => source.length(),
        }
    }

    /// The next chunk, taken out of the body; `None` at the end.
    pub fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        match self {
            ResponseBody::Stream(source) => source.poll_next(request, context),
            ResponseBody::Parts(parts) => Poll::Ready(parts.pop_front().map(Ok)),
            ResponseBody::Empty => Poll::Ready(None),
            ResponseBody::Bytes(_) | ResponseBody::File(_) => {
                Poll::Ready(std::mem::take(self).into_chunk().map(Ok))
            }
        }
    }

    /// Lets the producer of the response's body work ahead while the client takes nothing.
    pub fn poll_ahead_of(request: &mut Request, context: &mut Context<'_>) {
        if matches!(request.out.body, ResponseBody::Stream(_)) {
            let mut body = std::mem::take(&mut request.out.body);
            body.poll_ahead(request, context);
            request.out.body = body;
        }
    }

    /// Lets a producer work ahead; `request` is the one that it belongs to.
    pub fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        if let ResponseBody::Stream(source) = self {
            source.poll_ahead(request, context);
        }
    }

    /// The next chunk of the response's body. The body is taken out of the request for the call, because its producer
    /// gets the request as `&mut`.
    pub async fn next_of(request: &mut Request) -> Option<Result<BodyChunk, BodyError>> {
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
    pub fn slice(&self, offset: u64, length: u64) -> Option<ResponseBody> {
        match self {
            ResponseBody::Empty => (offset == 0 && length == 0).then_some(ResponseBody::Empty),
            ResponseBody::Bytes(bytes) => {
                let start = usize::try_from(offset).ok()?;
                let end = start.checked_add(usize::try_from(length).ok()?)?;
                (end <= bytes.len()).then(|| ResponseBody::bytes(bytes.slice(start..end)))
            }
            ResponseBody::File(range) => (offset.checked_add(length)? <= range.length)
                .then(|| ResponseBody::file(range.file.clone(), range.offset + offset, length)),
            ResponseBody::Parts(parts) => slice_parts(parts, offset, length),
            ResponseBody::Stream(source) => source.slice(offset, length),
        }
    }

    /// Restricts this body to `length` bytes at `offset`; `false` if they could only be reached by producing everything
    /// before them.
    pub fn limit_to_range(&mut self, offset: u64, length: u64) -> bool {
        if let ResponseBody::Stream(source) = self {
            return source.limit_to_range(offset, length);
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
    pub fn append_to(self, parts: &mut VecDeque<BodyChunk>) {
        match self {
            ResponseBody::Parts(more) => parts.extend(more),
            other => parts.extend(other.into_chunk()),
        }
    }

    fn into_chunk(self) -> Option<BodyChunk> {
        match self {
            ResponseBody::Bytes(bytes) => Some(BodyChunk::Bytes(bytes)),
            ResponseBody::File(range) => Some(BodyChunk::File(range)),
            ResponseBody::Empty | ResponseBody::Parts(_) | ResponseBody::Stream(_) => None,
        }
    }
}

/// The `length` bytes at `offset` of a list of chunks, cut out of the chunks that they overlap.
fn slice_parts(parts: &VecDeque<BodyChunk>, offset: u64, length: u64) -> Option<ResponseBody> {
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
            taken.push_back(chunk.clone_range(from - begin, to - from));
        }
    }
    // A range that ends behind the last chunk is not shortened: the caller has already announced its length.
    (end <= at).then_some(ResponseBody::Parts(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_bytes_is_that_part_or_nothing() {
        let body = ResponseBody::bytes(&b"0123456789"[..]);
        assert_eq!(body.slice(2, 3).and_then(|b| b.length()), Some(3));
        assert!(body.slice(8, 3).is_none());
        assert!(body.slice(u64::MAX, 2).is_none());
    }

    #[test]
    fn a_slice_of_parts_is_cut_out_of_each() {
        let parts = ["0123", "45", "6789"].map(|text| BodyChunk::Bytes(text.into()));
        let body = ResponseBody::Parts(parts.into());
        let text = |body: ResponseBody| match body {
            ResponseBody::Parts(parts) => parts
                .into_iter()
                .flat_map(|chunk| match chunk {
                    BodyChunk::Bytes(bytes) => bytes.to_vec(),
                    BodyChunk::File(_) | BodyChunk::Flush => Vec::new(),
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
        ResponseBody::bytes(&b"ab"[..]).append_to(&mut parts);
        ResponseBody::bytes(&b"cde"[..]).append_to(&mut parts);
        assert_eq!(ResponseBody::Parts(parts).length(), Some(5));
        assert_eq!(ResponseBody::bytes(&b""[..]).length(), Some(0));
    }
}
