//! The content of a request: what has been received so far, and the input that brings the rest.
//!
//! How the bytes arrive is the protocol's business, behind [`BodyInput`]. [`crate::body_reader`] reads all of it, with
//! limits and temporary files.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use proto::fields::Fields;

use crate::core::BodyInFile;

/// Why the content of a request cannot be read.
#[derive(Debug)]
pub enum BodyReadError {
    /// The client closed the connection, or reset the stream.
    Closed,
    /// The client was silent for longer than `client_body_timeout`.
    TimedOut,
    /// The chunked framing is malformed (RFC 9112, section 7.1): where the next request begins is not known any more.
    Malformed,
    /// An HTTP/2 stream brought more or less than its `Content-Length` announced; with the line for the log.
    Length(String),
    /// Reading the connection failed.
    Io(io::Error),
}

/// Where the content of a request comes from: a protocol implements this for its connection or stream.
pub trait BodyInput {
    /// Appends content to `out`, about `max` bytes at most. `Ok(true)` means that this was the end.
    fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>>;

    /// `Content-Length`; `None` for chunked content.
    fn length(&self) -> Option<u64>;

    /// The trailer fields, once the content has ended.
    fn trailers(&mut self) -> Fields {
        Fields::default()
    }

    /// Bytes taken from the connection so far, framing included.
    fn bytes_taken(&self) -> u64;

    /// The response will not need the content: no `100 Continue` is sent any more.
    fn refuse_continue(&mut self);
}

/// The content of a request: in memory, in a temporary file, or still to come from the client. Once complete it can be
/// sent more than once.
pub struct RequestBody {
    input: Option<Box<dyn BodyInput>>,
    /// [`RequestBody::bytes_taken`] at the time when discarding began: log variables do not count what is discarded.
    taken_before_discard: Option<u64>,
    /// The input of content that handlers must not see: see [`RequestBody::withhold_content`].
    withheld: Option<Box<dyn BodyInput>>,
    /// What has been read and not yet written to the file.
    pub(crate) memory: Vec<u8>,
    pub(crate) file: Option<Rc<TemporaryFile>>,
    pub(crate) length: u64,
    /// The trailer fields, if there are any.
    trailers: Option<Box<Fields>>,
    pub(crate) complete: bool,
    /// What is being done with the file. It belongs to the content: a reader that is dropped, such as a script that
    /// another of its light threads ends, must not take along what is on its way to the file.
    pub(crate) file_work: Option<FileWork>,
    /// The client sent content, though it may have been empty. Subrequests and scripts bring theirs without a client.
    came: bool,
    announced: Option<u64>,
    taken: u64,
    /// A handler will read the content while the response is being sent: see [`RequestBody::keep_unread`].
    is_wanted: bool,
}

/// What is being done with the temporary file; the client is not read meanwhile.
pub(crate) enum FileWork {
    Creating(
        BodyInFile,
        Pin<Box<dyn Future<Output = io::Result<CreatedFile>>>>,
    ),
    Writing(Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>),
}

/// What [`create_temporary`] gives.
pub type CreatedFile = (rt::file::File, PathBuf);

/// A file that holds request content.
pub struct TemporaryFile {
    /// The open file.
    pub file: rt::file::File,
    /// Its path. Unless the file is to stay, it is unlinked as soon as it is open, so that a crash leaves nothing
    /// behind.
    pub path: PathBuf,
    /// Whether it must be unlinked when the last reference goes.
    pub(crate) unlink: Cell<bool>,
}

impl TemporaryFile {
    /// An open file; `unlink` says whether its name goes with the last reference.
    pub fn new(file: rt::file::File, path: PathBuf, unlink: bool) -> Self {
        let unlink = Cell::new(unlink);
        Self { file, path, unlink }
    }

    /// The file was renamed to its final place (a WebDAV PUT), and must not be removed.
    pub fn mark_moved(&self) {
        self.unlink.set(false);
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.unlink.get() {
            let path = std::mem::take(&mut self.path);
            // Unlinking can block on the device, and `drop` cannot wait: a task does it through the pool.
            rt::spawn(async move {
                // It may be gone already; there is nothing to do about another error, and the request is over.
                let _ = rt::file::remove_file(&path, &rt::pool::default_pool()).await;
            });
        }
    }
}

impl RequestBody {
    /// The content of a request that has none.
    pub fn none() -> RequestBody {
        RequestBody {
            taken_before_discard: None,
            input: None,
            withheld: None,
            memory: Vec::new(),
            file: None,
            length: 0,
            trailers: None,
            complete: true,
            file_work: None,
            came: false,
            announced: None,
            taken: 0,
            is_wanted: false,
        }
    }

    /// The trailer fields.
    pub fn trailers(&self) -> &Fields {
        static NONE: Fields = Fields::new();
        self.trailers.as_deref().unwrap_or(&NONE)
    }

    /// Drops the content, for the next request of the connection.
    pub(crate) fn clear(&mut self) {
        // Most requests have none; then there is nothing to write.
        if self.came || self.announced.is_some() || self.length > 0 {
            *self = RequestBody::none();
        }
    }

    /// Content that the client is still sending, read through `input`.
    pub fn from_input(input: Box<dyn BodyInput>) -> RequestBody {
        let announced = input.length();
        RequestBody {
            taken_before_discard: None,
            input: Some(input),
            complete: false,
            came: true,
            announced,
            ..RequestBody::none()
        }
    }

    /// Content that is in memory already, from a subrequest or a script.
    pub fn from_bytes(bytes: Vec<u8>) -> RequestBody {
        let length = bytes.len() as u64;
        RequestBody {
            taken_before_discard: None,
            memory: bytes,
            length,
            announced: Some(length),
            ..RequestBody::none()
        }
    }

    /// Content that a script has in a file.
    pub fn from_file(file: Rc<TemporaryFile>, length: u64) -> RequestBody {
        RequestBody {
            file: Some(file),
            length,
            announced: Some(length),
            ..RequestBody::none()
        }
    }

    /// The same content for another request. It must have been read to its end: the input cannot be shared.
    pub fn share_content(&self) -> RequestBody {
        RequestBody {
            taken_before_discard: None,
            memory: self.memory.clone(),
            file: self.file.clone(),
            length: self.length,
            trailers: self.trailers.clone(),
            announced: Some(self.length),
            ..RequestBody::none()
        }
    }

    /// The content for a request that becomes a part of the response; `None` where there is none, or where it has been passed
    /// on and is gone.
    pub fn for_included(&self) -> Option<RequestBody> {
        (self.length > 0 && self.is_kept()).then(|| self.share_content())
    }

    /// `Content-Length`; `None` for chunked content and where there is no content.
    pub fn announced_length(&self) -> Option<u64> {
        self.announced
    }

    /// Whether there is content, or some may still come.
    pub fn exists(&self) -> bool {
        self.input.is_some() || self.length > 0
    }

    /// Whether the client has sent content, though it may have been empty.
    pub fn has_come(&self) -> bool {
        self.came
    }

    /// Whether all of it has been read, and is where it stays.
    pub fn is_complete(&self) -> bool {
        self.complete && self.file_work.is_none()
    }

    /// Whether a handler has read some of it, or announced that it will.
    pub fn was_read(&self) -> bool {
        self.length > 0 || self.is_wanted
    }

    /// A handler announces that it reads the content while the response is already being sent. What has arrived must
    /// not be discarded before.
    pub fn keep_unread(&mut self) {
        self.is_wanted = true;
    }

    /// No `100 Continue` is sent any more.
    pub fn refuse_continue(&mut self) {
        if let Some(input) = &mut self.input {
            input.refuse_continue();
        }
    }

    /// Whether all of it has been read and kept, so that it can be sent to another upstream server, too.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_complete() && self.holds_what_was_read()
    }

    /// Whether what has been read is there, and was not passed on.
    pub(crate) fn holds_what_was_read(&self) -> bool {
        self.file.is_some() || self.memory.len() as u64 == self.length
    }

    /// Hides the content from handlers and error pages: from here on the request looks as if it had `Content-Length:
    /// 0`. The connection discards what is left of the content, after the response.
    pub(crate) fn withhold_content(&mut self) {
        // A client that still waits for `100 Continue` then need not send the content at all.
        self.refuse_continue();
        self.taken = self.bytes_taken();
        let rest = RequestBody {
            taken_before_discard: None,
            withheld: self.input.take().or(self.withheld.take()),
            came: self.came,
            announced: self.came.then_some(0),
            taken: self.taken,
            is_wanted: false,
            ..RequestBody::none()
        };
        *self = rest;
    }

    /// Returns the hidden input to the connection, which has to find the end of the content on the wire; `false` if
    /// nothing was hidden.
    pub(crate) fn restore_content(&mut self) -> bool {
        let Some(input) = self.withheld.take() else {
            return false;
        };
        self.input = Some(input);
        self.complete = false;
        true
    }

    /// What is read from now on is discarded, and does not count in `$request_length`.
    pub(crate) fn begin_discard(&mut self) {
        self.taken_before_discard = Some(self.bytes_taken());
    }

    /// Whether all of it was discarded, and none of it read.
    pub fn is_thrown_away(&self) -> bool {
        self.taken_before_discard == Some(0)
    }

    /// Bytes that it took on the wire so far, framing included, without those that were discarded, as nginx counts
    /// them.
    pub fn bytes_taken(&self) -> u64 {
        if let Some(taken) = self.taken_before_discard {
            return taken;
        }
        let input = self.input.as_ref().or(self.withheld.as_ref());
        input.map_or(self.taken, |input| input.bytes_taken())
    }

    /// Bytes of content read so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The content, if all of it is in memory.
    pub fn in_memory(&self) -> Option<&[u8]> {
        (self.complete && self.file.is_none()).then_some(&self.memory[..])
    }

    /// The file that holds the content, if that did not stay in memory.
    pub fn file(&self) -> Option<&Rc<TemporaryFile>> {
        self.file.as_ref()
    }

    /// Reads the next piece of content without keeping it: appends to `out`, `Ok(true)` at the end.
    pub fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>> {
        let Some(input) = &mut self.input else {
            out.append(&mut self.memory);
            // The input was taken over (by a protocol upgrade, say) and never given back: there is no end to report.
            return Poll::Ready(match self.complete {
                true => Ok(true),
                false => Err(BodyReadError::Closed),
            });
        };
        let before = out.len();
        let done = match input.poll_read(out, max, context) {
            Poll::Ready(Ok(done)) => done,
            other => return other,
        };
        self.length += (out.len() - before) as u64;
        if done {
            // The input goes with the end of the content, so what only it knows is kept now.
            let trailers = input.trailers();
            self.trailers = (!trailers.is_empty()).then(|| Box::new(trailers));
            self.taken = input.bytes_taken();
            self.complete = true;
            self.input = None;
        }
        Poll::Ready(Ok(done))
    }

    /// Takes the input out, for the connection to discard what is left of the content.
    pub fn take_input(&mut self) -> Option<Box<dyn BodyInput>> {
        self.taken = self.bytes_taken();
        self.input.take()
    }
}
