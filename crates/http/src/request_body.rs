//! The content of a request: what has come of it, and the input that brings the rest.
//!
//! How the bytes arrive is the protocol's business, behind [`BodyInput`]. Reading all of it, with bounds and temporary files,
//! is [`crate::body_reader`]'s.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::{Context, Poll};

use proto::fields::Fields;

/// Why a request's content can not be had.
#[derive(Debug)]
pub enum BodyReadError {
    /// The client left.
    Closed,
    /// The client was silent for longer than `client_body_timeout`.
    TimedOut,
    /// The framing is broken.
    Malformed,
    /// It is more, or less, than the client announced; with the words for the log.
    Length(String),
    /// Reading the connection failed.
    Io(io::Error),
}

/// A connection's way to hand over the content of a request.
pub trait BodyInput {
    /// Appends content to `out`, at most `max` bytes. `Ok(true)` says that this was the end.
    fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>>;

    /// The length that the client announced.
    fn length(&self) -> Option<u64>;

    /// Fields that followed the content, once it ended.
    fn trailers(&mut self) -> Fields {
        Fields::default()
    }

    /// Bytes taken from the connection so far, framing included.
    fn taken(&self) -> u64;

    /// A client that waits to be told to go on will not be told.
    fn refuse_continue(&mut self);
}

/// The content of a request.
pub struct RequestBody {
    input: Option<Box<dyn BodyInput>>,
    /// [`RequestBody::taken`] when what was left began to be thrown away.
    taken_before_discard: Option<u64>,
    /// The input of content that no handler shall see: see [`RequestBody::withhold`].
    withheld: Option<Box<dyn BodyInput>>,
    /// What has been read and is kept in memory.
    pub(crate) memory: Vec<u8>,
    pub(crate) file: Option<Rc<TemporaryFile>>,
    pub(crate) length: u64,
    /// Fields that followed the content.
    pub trailers: Fields,
    pub(crate) complete: bool,
    /// The client has sent content, though it may have been empty.
    came: bool,
    announced: Option<u64>,
    taken: u64,
    /// See [`RequestBody::want`].
    is_wanted: bool,
}

/// A file that holds request content.
pub struct TemporaryFile {
    /// The open file.
    pub file: rt::file::File,
    /// Where it is, or was: unless it shall stay, its name is gone as soon as it is open.
    pub path: PathBuf,
    /// Whether its name still has to be removed.
    pub(crate) unlink: Cell<bool>,
}

impl TemporaryFile {
    /// Its name is not its any more: somebody moved the file to where it belongs.
    pub fn moved(&self) {
        self.unlink.set(false);
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.unlink.get() {
            let path = std::mem::take(&mut self.path);
            rt::spawn(async move {
                // Whoever else removed it did what was wanted.
                let _ = rt::file::remove_file(&path, &rt::pool::default_pool()).await;
            });
        }
    }
}

impl RequestBody {
    /// No content.
    pub fn none() -> RequestBody {
        RequestBody {
            taken_before_discard: None,
            input: None,
            withheld: None,
            memory: Vec::new(),
            file: None,
            length: 0,
            trailers: Fields::default(),
            complete: true,
            came: false,
            announced: None,
            taken: 0,
            is_wanted: false,
        }
    }

    /// Lets go of the content.
    pub(crate) fn clear(&mut self) {
        // Most requests have none.
        if self.came || self.announced.is_some() || self.length > 0 {
            *self = RequestBody::none();
        }
    }

    /// Content that `input` will bring.
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

    /// Content that is there already, as a subrequest or a script brings it.
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

    /// The same content, which has been read, for another request.
    pub fn share(&self) -> RequestBody {
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

    /// The length that the client announced; `None` for chunked content and for none.
    pub fn announced_length(&self) -> Option<u64> {
        self.announced
    }

    /// Whether there is, or may be, content.
    pub fn exists(&self) -> bool {
        self.input.is_some() || self.length > 0
    }

    /// Whether the client has sent content, though it may have been empty.
    pub fn has_come(&self) -> bool {
        self.came
    }

    /// Whether all of it has been read.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether a handler has read of it, or means to.
    pub fn was_read(&self) -> bool {
        self.length > 0 || self.is_wanted
    }

    /// It may be read while the response is sent already: what has come is not to be thrown away before.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// A client that waits for `100 Continue` will not get it.
    pub fn refuse_continue(&mut self) {
        if let Some(input) = &mut self.input {
            input.refuse_continue();
        }
    }

    /// Whether all of it has been read, and is here to be read again.
    pub(crate) fn is_kept(&self) -> bool {
        self.complete && (self.file.is_some() || self.memory.len() as u64 == self.length)
    }

    /// Takes the content away from the handlers: from here on the request is one with `Content-Length: 0`, for what is
    /// left of the content will be thrown away, by the connection.
    pub(crate) fn withhold(&mut self) {
        self.refuse_continue();
        self.taken = self.taken();
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

    /// Gives the connection back what handlers were not to see; whether there was such content.
    pub(crate) fn restore(&mut self) -> bool {
        let Some(input) = self.withheld.take() else {
            return false;
        };
        self.input = Some(input);
        self.complete = false;
        true
    }

    /// What is read from now on is thrown away, and counts for nobody.
    pub(crate) fn begin_discard(&mut self) {
        self.taken_before_discard = Some(self.taken());
    }

    /// True when all of it was thrown away.
    pub fn is_thrown_away(&self) -> bool {
        self.taken_before_discard == Some(0)
    }

    /// Bytes that it took on the wire so far, without those that are thrown away, as nginx counts them.
    pub fn taken(&self) -> u64 {
        if let Some(taken) = self.taken_before_discard {
            return taken;
        }
        let input = self.input.as_ref().or(self.withheld.as_ref());
        input.map_or(self.taken, |input| input.taken())
    }

    /// Bytes of content read so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The content, when it is in memory as a whole.
    pub fn in_memory(&self) -> Option<&[u8]> {
        (self.complete && self.file.is_none()).then_some(&self.memory[..])
    }

    /// The file that holds the content, when it did not stay in memory.
    pub fn file(&self) -> Option<&Rc<TemporaryFile>> {
        self.file.as_ref()
    }

    /// Takes the next piece of content without keeping it: appends to `out`, `Ok(true)` at the end.
    pub fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>> {
        let Some(input) = &mut self.input else {
            out.append(&mut self.memory);
            // Content that somebody took over and never gave back has no end here.
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
            self.trailers = input.trailers();
            self.taken = input.taken();
            self.complete = true;
            self.input = None;
        }
        Poll::Ready(Ok(done))
    }

    /// Hands the connection its input back, for what is left of the content to be thrown away.
    pub fn take_input(&mut self) -> Option<Box<dyn BodyInput>> {
        self.taken = self.taken();
        self.input.take()
    }
}
