//! The request on its way to the peer: a head, then content from memory, from a file, or from the client as it comes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use net::Transport;
use proto::fields::Fields;
use rt::file::File;

use super::no_response::NoResponse;
use super::protocol::{Carried, Protocol};
use super::retry::RequestSent;
use crate::body_reader::{self, BodyReadError, TemporaryFile};
use crate::request::Request;

/// How much content is framed and sent at a time, in bytes.
pub(super) const PIECE: usize = 64 * 1024;

/// How much is sent in one poll, in bytes. A peer that takes all as fast as it comes may have answered meanwhile, and others
/// wait: that is looked at before more is sent.
const SHARE: usize = 4 * PIECE;

/// How much is taken from the client at a time, in bytes.
const CLIENT_READ: usize = 16 * 1024;

/// A piece of a file that is being read.
type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

/// A request being sent. It can be sent again from its beginning, unless its content comes from the client.
pub(super) struct Transmit {
    /// The head, and the first piece of content when that is in memory.
    first: Vec<u8>,
    /// Bytes of `first` that are sent.
    first_sent: usize,
    /// What follows, framed.
    out: Vec<u8>,
    out_sent: usize,
    source: ContentSource,
    /// Where in `source` the next piece begins.
    position: u64,
    /// Where `first` ends in the content.
    first_end: u64,
    done: bool,
    reading: Option<Reading>,
    /// Bytes sent on the present connection.
    sent: u64,
    scratch: Vec<u8>,
    client_timer: rt::Timer,
}

/// Where content comes from.
pub(super) enum ContentSource {
    /// There is none.
    None,
    /// It is all in the memory of the request.
    Memory,
    /// It is all in a file.
    File(Rc<TemporaryFile>, u64),
    /// The client sends it.
    Client,
}

/// Why sending failed.
pub(super) enum SendFailure {
    /// The connection to the peer.
    Peer(io::Error),
    /// What the client sends is refused.
    Client(NoResponse),
}

/// What a call of [`Transmit::poll`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything is sent.
    Done,
    /// The peer takes nothing now.
    PeerBusy {
        /// Whether it took something in this call.
        moved: bool,
    },
    /// The client has not sent the next piece, or a disk has not.
    Waiting,
}

impl Transmit {
    /// A request whose head is `first`.
    pub(super) fn new(
        mut first: Vec<u8>,
        source: ContentSource,
        request: &Request,
        protocol: &mut dyn Protocol,
    ) -> Transmit {
        let mut first_end = 0;
        let mut done = false;
        match &source {
            // The connection decides how it is written.
            ContentSource::None if protocol.is_framed() => done = true,
            ContentSource::Memory if protocol.is_framed() => {}
            ContentSource::None => {
                protocol.write_content_end(&Fields::default(), &mut first);
                done = true;
            }
            ContentSource::Memory => {
                let content = request.body.in_memory().unwrap_or_default();
                let piece = &content[..content.len().min(PIECE)];
                first_end = piece.len() as u64;
                done = piece.len() == content.len();
                if done {
                    protocol.write_last_content(piece, &request.body.trailers, &mut first);
                } else {
                    protocol.write_content(piece, &mut first);
                }
            }
            ContentSource::File(..) | ContentSource::Client => {}
        }
        let source = if done { ContentSource::None } else { source };
        Transmit {
            first,
            first_sent: 0,
            out: Vec::new(),
            out_sent: 0,
            source,
            position: first_end,
            first_end,
            done,
            reading: None,
            sent: 0,
            scratch: Vec::new(),
            client_timer: rt::Timer::new(),
        }
    }

    /// The head, for the connection that it goes to now.
    pub(super) fn begin(&mut self, protocol: &mut dyn Protocol, carried: Option<Carried>) {
        if protocol.is_framed() {
            self.first.clear();
            protocol.begin_request(carried, &mut self.first);
        }
    }

    /// Whether there is something to send.
    pub(super) fn has_work(&self, protocol: &dyn Protocol) -> bool {
        !self.is_done() || protocol.has_control()
    }

    /// Whether everything was sent.
    pub(super) fn is_done(&self) -> bool {
        self.done && self.first_sent == self.first.len() && self.out_sent == self.out.len()
    }

    /// Bytes sent on the present connection.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// What has left on the present connection, as far as it matters to another one.
    pub(super) fn request_sent(&self) -> RequestSent {
        match self.source {
            _ if self.sent == 0 => RequestSent::Nothing,
            ContentSource::Client => RequestSent::Streamed,
            ContentSource::None | ContentSource::Memory | ContentSource::File(..) => {
                RequestSent::Repeatable
            }
        }
    }

    /// Goes back to the beginning, for another connection.
    pub(super) fn rewind(&mut self) {
        self.first_sent = 0;
        self.out.clear();
        self.out_sent = 0;
        self.position = self.first_end;
        self.done = matches!(self.source, ContentSource::None);
        self.reading = None;
        self.sent = 0;
    }

    /// Gives the memory back, when the exchange is over.
    pub(super) fn release(&mut self) {
        self.abandon();
        self.first_sent = 0;
        crate::buffers::give(std::mem::take(&mut self.first));
    }

    /// Sends no more: the peer does not want it.
    pub(super) fn abandon(&mut self) {
        self.first_sent = self.first.len();
        self.out.clear();
        self.out_sent = 0;
        self.source = ContentSource::None;
        self.done = true;
    }

    /// Sends what can be sent now.
    pub(super) fn poll(
        &mut self,
        request: &mut Request,
        stream: &Transport,
        protocol: &mut dyn Protocol,
        context: &mut Context<'_>,
    ) -> Result<Progress, SendFailure> {
        let before = self.sent;
        if self.sent == 0 && self.out.is_empty() && !self.done {
            // What is there of the content already travels with the head.
            self.poll_refill(request, protocol, context)?;
        }
        loop {
            let (first, out) = (&self.first[self.first_sent..], &self.out[self.out_sent..]);
            if !first.is_empty() || !out.is_empty() {
                let written = match (first.is_empty(), out.is_empty()) {
                    (false, false) => {
                        stream.poll_writev(context, &[IoSlice::new(first), IoSlice::new(out)])
                    }
                    (false, true) => stream.poll_write(context, first),
                    (true, _) => stream.poll_write(context, out),
                };
                match written {
                    Poll::Pending => return Ok(self.busy(before)),
                    Poll::Ready(Err(error)) => return Err(SendFailure::Peer(error)),
                    Poll::Ready(Ok(n)) => {
                        let of_first = n.min(first.len());
                        self.first_sent += of_first;
                        self.out_sent += n - of_first;
                        self.sent += n as u64;
                        continue;
                    }
                }
            }
            self.out.clear();
            self.out_sent = 0;
            protocol.take_control(&mut self.out);
            if !self.out.is_empty() {
                continue;
            }
            if self.done {
                return match stream.poll_flush(context) {
                    Poll::Ready(Ok(())) => Ok(Progress::Done),
                    Poll::Ready(Err(error)) => Err(SendFailure::Peer(error)),
                    Poll::Pending => Ok(self.busy(before)),
                };
            }
            if self.sent - before >= SHARE as u64 {
                // Polled again after the next look at the sockets.
                let _ = std::pin::pin!(rt::yield_now()).poll(context);
                return Ok(self.busy(before));
            }
            if !self.poll_refill(request, protocol, context)? {
                return Ok(Progress::Waiting);
            }
        }
    }

    /// The peer takes nothing now; `before` is what it had when the call began.
    fn busy(&self, before: u64) -> Progress {
        Progress::PeerBusy {
            moved: self.sent > before,
        }
    }

    /// Puts the next piece into `out`. `false` when it is not there yet.
    fn poll_refill(
        &mut self,
        request: &mut Request,
        protocol: &mut dyn Protocol,
        context: &mut Context<'_>,
    ) -> Result<bool, SendFailure> {
        let room = protocol.room();
        if room == 0 {
            return Ok(self.done);
        }
        match &self.source {
            ContentSource::None => self.done = true,
            ContentSource::Memory => {
                let content = request.body.in_memory().unwrap_or_default();
                let from = usize::try_from(self.position)
                    .unwrap_or(usize::MAX)
                    .min(content.len());
                let piece = &content[from..content.len().min(from + PIECE.min(room))];
                self.position += piece.len() as u64;
                let is_last = self.position >= content.len() as u64;
                self.put(piece, is_last.then_some(&request.body.trailers), protocol);
            }
            ContentSource::File(file, length) => {
                let (file, length) = (file.file.clone(), *length);
                let Some(piece) = self.poll_read_file(file, length, room, context) else {
                    return Ok(false);
                };
                let piece = piece.map_err(|error| {
                    let error = base::Errno(&error);
                    request.log(host::error_log::Level::Crit, format_args!("read() of request content failed{error} while sending request to upstream"));
                    SendFailure::Client(NoResponse::new(500))
                })?;
                self.position += piece.len() as u64;
                let is_last = piece.is_empty() || self.position >= length;
                self.put(&piece, is_last.then_some(&request.body.trailers), protocol);
                // Its room serves the next one.
                self.scratch = piece;
            }
            ContentSource::Client => return self.poll_client(request, protocol, room, context),
        }
        Ok(true)
    }

    /// Frames a piece of content; with `trailers` it is the last.
    fn put(&mut self, piece: &[u8], trailers: Option<&Fields>, protocol: &mut dyn Protocol) {
        match trailers {
            Some(trailers) => {
                protocol.write_last_content(piece, trailers, &mut self.out);
                self.done = true;
            }
            None => protocol.write_content(piece, &mut self.out),
        }
    }

    fn poll_read_file(
        &mut self,
        file: File,
        length: u64,
        room: usize,
        context: &mut Context<'_>,
    ) -> Option<io::Result<Vec<u8>>> {
        let position = self.position;
        let wanted = usize::try_from(length.saturating_sub(position))
            .unwrap_or(PIECE)
            .min(PIECE)
            .min(room);
        if self.reading.is_none() {
            self.scratch.clear();
            match file.try_read_into(&mut self.scratch, wanted, position) {
                Ok(_) => return Some(Ok(std::mem::take(&mut self.scratch))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Some(Err(error)),
            }
            let read = async move {
                file.read_at(Vec::new(), position, wanted, &rt::pool::default_pool())
                    .await
            };
            self.reading = Some(Box::pin(read));
        }
        let reading = self.reading.as_mut()?;
        match reading.as_mut().poll(context) {
            Poll::Pending => None,
            Poll::Ready(result) => {
                self.reading = None;
                Some(result)
            }
        }
    }

    fn poll_client(
        &mut self,
        request: &mut Request,
        protocol: &mut dyn Protocol,
        room: usize,
        context: &mut Context<'_>,
    ) -> Result<bool, SendFailure> {
        self.scratch.clear();
        let core = request.core();
        let ended = match request
            .body
            .poll_read(&mut self.scratch, CLIENT_READ.min(room), context)
        {
            Poll::Pending => {
                if !self.client_timer.is_set() {
                    self.client_timer.set(core.client_body_timeout);
                }
                if self.client_timer.poll_expired(context).is_ready() {
                    return Err(client_failed(request, BodyReadError::TimedOut));
                }
                return Ok(false);
            }
            Poll::Ready(Err(error)) => {
                return Err(client_failed(request, error));
            }
            Poll::Ready(Ok(ended)) => ended,
        };
        self.client_timer.clear();
        let limit = core.client_max_body_size;
        if limit != 0 && request.body.length() > limit {
            let length = request.body.length();
            request.error(format_args!(
                "client intended to send too large chunked body: {length} bytes"
            ));
            request.body.withhold();
            return Err(SendFailure::Client(NoResponse::new(413)));
        }
        let piece = std::mem::take(&mut self.scratch);
        self.put(&piece, ended.then_some(&request.body.trailers), protocol);
        self.scratch = piece;
        Ok(true)
    }
}

fn client_failed(request: &mut Request, error: BodyReadError) -> SendFailure {
    SendFailure::Client(NoResponse::new(body_reader::refuse(request, error)))
}
