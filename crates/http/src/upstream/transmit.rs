//! The request on its way to the upstream: a head, then a body from memory, from a file, or from the client as it
//! arrives.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use host::error_log::LogLevel;
use net::upstream::PeerStream;
use proto::fields::Fields;
use rt::file::File;

use super::no_response::NoResponse;
use super::protocol::{CarriedState, UpstreamProtocol};
use super::retry::RequestSent;
use crate::body_reader::{self, BodyReadError, TemporaryFile};
use crate::request::Request;

/// The maximum number of body bytes that are framed and sent at a time.
pub(super) const PIECE: usize = 64 * 1024;

/// The maximum number of bytes sent in one poll. A fast upstream may already have answered, and other requests are
/// waiting; both are looked at before more is sent.
const SHARE: usize = 4 * PIECE;

/// The maximum number of bytes that are taken from the client at a time.
const CLIENT_READ: usize = 16 * 1024;

/// A read of the body's file that is in progress on the thread pool.
type PendingFileRead = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

/// A request that is being sent. It can be sent again from its beginning, unless its body comes from the client.
pub(super) struct RequestTransmit {
    /// The head, together with the first piece of the body if that is in memory: both leave in one write.
    first: Vec<u8>,
    /// The number of bytes of `first` that have been sent.
    first_sent: usize,
    /// What follows, framed for the protocol.
    out: Vec<u8>,
    out_sent: usize,
    source: ContentSource,
    /// The position in the body at which the next piece begins.
    position: u64,
    /// The position in the body at which `first` ends, for sending again.
    first_end: u64,
    stage: TransmitStage,
    /// All that the client sends has been taken from it.
    has_client_end: bool,
    reading: Option<PendingFileRead>,
    /// The number of bytes sent on the current connection.
    sent: u64,
    scratch: Vec<u8>,
    client_timer: rt::Timer,
}

/// How far a request has been put into the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransmitStage {
    /// More of the body follows.
    Filling,
    /// All of it is in the buffers, or has left them.
    Filled,
    /// The upstream does not take the rest. The source stays as it was, because another upstream needs all of it.
    Stopped,
}

impl TransmitStage {
    fn filled_if(is_filled: bool) -> TransmitStage {
        match is_filled {
            true => TransmitStage::Filled,
            false => TransmitStage::Filling,
        }
    }
}

/// Where the body comes from.
pub(super) enum ContentSource {
    /// There is no body.
    None,
    /// All of it is in the request's memory.
    Memory,
    /// All of it is in a file of this length.
    File(Rc<TemporaryFile>, u64),
    /// The client is still sending it.
    Client,
}

/// Why sending failed.
pub(super) enum SendFailure {
    /// The connection to the upstream failed.
    Peer(io::Error),
    /// The client's body is refused.
    Client(NoResponse),
}

/// The result of a call of [`RequestTransmit::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransmitProgress {
    /// Everything has been sent.
    Done,
    /// The upstream accepts nothing at the moment.
    PeerBusy {
        /// Whether it accepted something in this call: that restarts `…_send_timeout`.
        moved: bool,
    },
    /// The next piece has not arrived from the client, or from the disk.
    Waiting,
}

impl RequestTransmit {
    /// A request with the head `first`.
    pub(super) fn new(
        mut first: Vec<u8>,
        source: ContentSource,
        request: &Request,
        protocol: &mut dyn UpstreamProtocol,
    ) -> RequestTransmit {
        let mut first_end = 0;
        let mut done = false;
        match &source {
            // A framed protocol (HTTP/2) writes the head for each connection, so nothing can be joined with it here.
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
                    protocol.write_last_content(piece, request.body.trailers(), &mut first);
                } else {
                    protocol.write_content(piece, &mut first);
                }
            }
            ContentSource::File(..) | ContentSource::Client => {}
        }
        // With everything in `first`, sending again needs no source.
        let source = if done { ContentSource::None } else { source };
        RequestTransmit {
            first,
            first_sent: 0,
            out: Vec::new(),
            out_sent: 0,
            source,
            position: first_end,
            first_end,
            stage: TransmitStage::filled_if(done),
            has_client_end: false,
            reading: None,
            sent: 0,
            scratch: Vec::new(),
            client_timer: rt::Timer::new(),
        }
    }

    /// Writes the head for the connection that it is sent on, if the protocol requires that.
    pub(super) fn begin(
        &mut self,
        protocol: &mut dyn UpstreamProtocol,
        carried: Option<CarriedState>,
    ) {
        if protocol.is_framed() {
            self.first.clear();
            protocol.begin_request(carried, &mut self.first);
        }
    }

    /// Whether there is something to send.
    pub(super) fn has_work(&self, protocol: &dyn UpstreamProtocol) -> bool {
        match self.stage {
            TransmitStage::Stopped => false,
            TransmitStage::Filling | TransmitStage::Filled => {
                !self.is_complete() || protocol.has_control()
            }
        }
    }

    /// Whether nothing more of the request will be sent on this connection.
    pub(super) fn is_over(&self) -> bool {
        self.stage == TransmitStage::Stopped || self.is_complete()
    }

    /// Whether everything has been sent.
    pub(super) fn is_complete(&self) -> bool {
        self.stage == TransmitStage::Filled
            && self.first_sent == self.first.len()
            && self.out_sent == self.out.len()
    }

    /// The number of bytes sent on the current connection.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// How much of the request has been sent on the current connection, for the decision about another try.
    pub(super) fn request_sent(&self) -> RequestSent {
        match self.source {
            _ if self.sent == 0 => RequestSent::Nothing,
            ContentSource::Client => RequestSent::Streamed,
            ContentSource::None | ContentSource::Memory | ContentSource::File(..) => {
                RequestSent::Repeatable
            }
        }
    }

    /// Starts again from the beginning, for another connection.
    pub(super) fn rewind(&mut self) {
        self.first_sent = 0;
        self.out_sent = 0;
        self.position = self.first_end;
        let is_filled = match self.source {
            ContentSource::None => true,
            // What was taken from the client is in `out` only. Nothing of it has been sent, or there would be no other try.
            ContentSource::Client => self.has_client_end,
            ContentSource::Memory | ContentSource::File(..) => {
                self.out.clear();
                false
            }
        };
        self.stage = TransmitStage::filled_if(is_filled);
        self.reading = None;
        self.sent = 0;
    }

    /// Releases the memory at the end of the exchange.
    pub(super) fn release(&mut self) {
        self.stop_sending();
        self.out.clear();
        self.out_sent = 0;
        self.source = ContentSource::None;
        self.first_sent = 0;
        crate::buffers::give_buffer(std::mem::take(&mut self.first));
    }

    /// Stops sending on this connection: the upstream does not want the rest.
    pub(super) fn stop_sending(&mut self) {
        self.stage = TransmitStage::Stopped;
    }

    /// Sends as much as can be sent now.
    pub(super) fn poll(
        &mut self,
        request: &mut Request,
        stream: &PeerStream,
        protocol: &mut dyn UpstreamProtocol,
        context: &mut Context<'_>,
    ) -> Result<TransmitProgress, SendFailure> {
        let before = self.sent;
        // The part of the body that is at hand leaves together with the head. What comes from the client can be taken
        // only once, and `rewind` keeps it; but a framed protocol frames it for one connection, so there it waits.
        let is_tied = protocol.is_framed() && matches!(self.source, ContentSource::Client);
        if self.sent == 0 && self.out.is_empty() && self.stage == TransmitStage::Filling && !is_tied
        {
            self.poll_refill(request, protocol, context)?;
        }
        loop {
            let (first, out) = (&self.first[self.first_sent..], &self.out[self.out_sent..]);
            if !first.is_empty() || !out.is_empty() {
                // One system call for both, and one segment if they are small.
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
            // Acknowledgements go between two pieces: the upstream may wait for them before it opens its window.
            protocol.take_control(&mut self.out);
            if !self.out.is_empty() {
                continue;
            }
            if self.stage != TransmitStage::Filling {
                // With TLS, accepted bytes may still be in the session's buffer.
                return match stream.poll_end_request(context) {
                    Poll::Ready(Ok(())) => Ok(TransmitProgress::Done),
                    Poll::Ready(Err(error)) => Err(SendFailure::Peer(error)),
                    Poll::Pending => Ok(self.busy(before)),
                };
            }
            if self.sent - before >= SHARE as u64 {
                // This task is polled again after the event loop has looked at the sockets.
                let _ = std::pin::pin!(rt::yield_now()).poll(context);
                return Ok(self.busy(before));
            }
            if !self.poll_refill(request, protocol, context)? {
                // However long the client is silent, it costs no buffers: both are empty.
                crate::buffers::give_buffer(std::mem::take(&mut self.scratch));
                crate::buffers::give_buffer(std::mem::take(&mut self.out));
                // What has been taken from the client is gone, so the head is not sent again either.
                if self.request_sent() == RequestSent::Streamed {
                    self.first_sent = 0;
                    crate::buffers::give_buffer(std::mem::take(&mut self.first));
                }
                return Ok(TransmitProgress::Waiting);
            }
        }
    }

    /// The result for an upstream that accepts nothing; `before` is the number of bytes sent when the call began.
    fn busy(&self, before: u64) -> TransmitProgress {
        TransmitProgress::PeerBusy {
            moved: self.sent > before,
        }
    }

    /// Puts the next piece into `out`. `false` if it is not available yet.
    fn poll_refill(
        &mut self,
        request: &mut Request,
        protocol: &mut dyn UpstreamProtocol,
        context: &mut Context<'_>,
    ) -> Result<bool, SendFailure> {
        let room = protocol.send_window();
        // The flow-control window is closed (RFC 9113, section 5.2). The upstream's next frame opens it.
        if room == 0 {
            return Ok(self.stage != TransmitStage::Filling);
        }
        match &self.source {
            ContentSource::None => self.stage = TransmitStage::Filled,
            ContentSource::Memory => {
                let content = request.body.in_memory().unwrap_or_default();
                let from = usize::try_from(self.position)
                    .unwrap_or(usize::MAX)
                    .min(content.len());
                let piece = &content[from..content.len().min(from + PIECE.min(room))];
                self.position += piece.len() as u64;
                let is_last = self.position >= content.len() as u64;
                self.put(piece, is_last.then_some(request.body.trailers()), protocol);
            }
            ContentSource::File(file, length) => {
                let (temporary, length) = (Rc::clone(file), *length);
                let file = temporary.file.clone();
                let Some(piece) = self.poll_read_file(file, length, room, context) else {
                    return Ok(false);
                };
                let piece = piece.map_err(|error| read_failed(request, &temporary, &error))?;
                self.position += piece.len() as u64;
                let is_last = piece.is_empty() || self.position >= length;
                self.put(&piece, is_last.then_some(request.body.trailers()), protocol);
                // The memory is reused for the next piece.
                self.scratch = piece;
            }
            ContentSource::Client => return self.poll_client(request, protocol, room, context),
        }
        Ok(true)
    }

    /// Frames a piece of the body. With `trailers` it is the last one.
    fn put(
        &mut self,
        piece: &[u8],
        trailers: Option<&Fields>,
        protocol: &mut dyn UpstreamProtocol,
    ) {
        match trailers {
            Some(trailers) => {
                protocol.write_last_content(piece, trailers, &mut self.out);
                self.stage = TransmitStage::Filled;
            }
            None => protocol.write_content(piece, &mut self.out),
        }
    }

    /// Reads the next piece of the body's file. `None` while the thread pool is reading it.
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
            // Tried without waiting first: a body that was just written is usually still in the page cache.
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

    /// Takes the next piece of the body from the client.
    fn poll_client(
        &mut self,
        request: &mut Request,
        protocol: &mut dyn UpstreamProtocol,
        room: usize,
        context: &mut Context<'_>,
    ) -> Result<bool, SendFailure> {
        for buffer in [&mut self.scratch, &mut self.out] {
            if buffer.capacity() == 0 {
                *buffer = crate::buffers::take_buffer();
            }
        }
        self.scratch.clear();
        let core = request.core();
        let ended = match request
            .body
            .poll_read(&mut self.scratch, CLIENT_READ.min(room), context)
        {
            // The client's silence is limited by its own directive, not by the upstream's timeouts.
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
        // A body of unknown length was let in, so it has to be measured as it arrives.
        let limit = core.client_max_body_size;
        if limit != 0 && request.body.length() > limit {
            let length = request.body.length();
            request.error(format_args!(
                "client intended to send too large chunked body: {length} bytes"
            ));
            request.body.withhold_content();
            return Err(SendFailure::Client(NoResponse::new(413)));
        }
        let piece = std::mem::take(&mut self.scratch);
        self.put(&piece, ended.then_some(request.body.trailers()), protocol);
        self.has_client_end = ended;
        self.scratch = piece;
        Ok(true)
    }
}

/// The failure if the body's file cannot be read. It is this server's, so no other upstream is tried.
fn read_failed(request: &Request, file: &TemporaryFile, error: &io::Error) -> SendFailure {
    let (path, error) = (file.path.display(), base::ErrnoText(error));
    request.log_while(
        LogLevel::Crit,
        "sending request to upstream",
        format_args!("pread() \"{path}\" failed{error}"),
    );
    SendFailure::Client(NoResponse::new(500))
}

/// The failure for a client that does not send what it announced.
fn client_failed(request: &mut Request, error: BodyReadError) -> SendFailure {
    SendFailure::Client(NoResponse::new(body_reader::refuse_body(request, error)))
}
