//! The two directions of a stream.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use quinn_proto::{ReadError, StreamId, VarInt, WriteError};

use super::closed::QuicClosed;
use super::connection::QuicConnection;
use super::link::{ConnectionLink, WaitingFor};

/// Our direction of a stream.
pub struct QuicSendStream {
    connection: Rc<QuicConnection>,
    id: StreamId,
    /// It was finished or reset.
    is_ended: bool,
}

/// The peer's direction of a stream.
pub struct QuicReceiveStream {
    connection: Rc<QuicConnection>,
    id: StreamId,
    is_early: bool,
    /// How it ended.
    end: Option<QuicReceived>,
}

/// What a stream has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicReceived {
    /// The next bytes, in their order; never empty.
    Data(Bytes),
    /// The peer has finished the stream.
    Finished,
    /// The peer has abandoned the stream (RESET_STREAM), with this code of the application.
    Reset(u64),
}

/// Why a stream takes no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicStreamError {
    /// The peer does not want more of it (STOP_SENDING), with this code of the application.
    Stopped(u64),
    /// It was finished or reset on this side.
    Ended,
    /// The connection is over.
    Closed(QuicClosed),
}

/// A code of the application; those that the wire cannot carry become its largest.
pub(super) fn code_of(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// A stream's number (RFC 9000, section 2.1).
fn number_of(id: StreamId) -> u64 {
    VarInt::from(id).into_inner()
}

impl QuicSendStream {
    pub(super) fn new(connection: &Rc<QuicConnection>, id: StreamId) -> QuicSendStream {
        QuicSendStream {
            connection: Rc::clone(connection),
            id,
            is_ended: false,
        }
    }

    fn link(&self) -> &Rc<ConnectionLink> {
        self.connection.link()
    }

    /// The stream's number (RFC 9000, section 2.1).
    pub fn id(&self) -> u64 {
        number_of(self.id)
    }

    /// Hands over bytes: what was taken is cut off the front of `data`, and its length returned, at least 1. Pending while
    /// neither the peer's windows nor the send buffer have room. Empty `data` is ready with 0.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Bytes,
    ) -> Poll<Result<usize, QuicStreamError>> {
        if let Some(closed) = self.connection.closed() {
            return Poll::Ready(Err(QuicStreamError::Closed(closed)));
        }
        if self.is_ended {
            return Poll::Ready(Err(QuicStreamError::Ended));
        }
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let link = self.link();
        let written = {
            let mut core = link.core.borrow_mut();
            core.send_stream(self.id)
                .write_chunks(std::slice::from_mut(data))
        };
        Poll::Ready(match written {
            Ok(written) => {
                link.mark_dirty();
                Ok(written.bytes)
            }
            Err(WriteError::Blocked) => {
                link.wait_for(WaitingFor::Write(self.id), context);
                // A frame may have to tell the peer that it is in the way (RFC 9000, section 4.1).
                link.mark_dirty();
                return Poll::Pending;
            }
            Err(WriteError::Stopped(code)) => Err(QuicStreamError::Stopped(code.into_inner())),
            Err(WriteError::ClosedStream) => Err(QuicStreamError::Ended),
        })
    }

    /// Says that nothing follows (FIN). What was written is still delivered.
    pub fn finish(&mut self) -> Result<(), QuicStreamError> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Err(QuicStreamError::Ended);
        }
        if let Some(closed) = self.connection.closed() {
            return Err(QuicStreamError::Closed(closed));
        }
        let finished = self.link().core.borrow_mut().send_stream(self.id).finish();
        self.link().mark_dirty();
        finished.map_err(|error| match error {
            quinn_proto::FinishError::Stopped(code) => QuicStreamError::Stopped(code.into_inner()),
            quinn_proto::FinishError::ClosedStream => QuicStreamError::Ended,
        })
    }

    /// Hands over the last bytes of the stream and its end, if all of them are taken now: `true`. Else what was taken is cut off
    /// `parts`, and the rest goes the way of [`QuicSendStream::poll_write`] and [`QuicSendStream::finish`].
    pub fn finish_with(&mut self, parts: &mut [Bytes]) -> Result<bool, QuicStreamError> {
        if self.is_ended {
            return Err(QuicStreamError::Ended);
        }
        let is_all = {
            let mut core = self.link().core.borrow_mut();
            let mut stream = core.send_stream(self.id);
            match stream.write_chunks(parts) {
                Ok(_) => parts.iter().all(Bytes::is_empty) && stream.finish().is_ok(),
                // Why shows when the rest is handed over.
                Err(_) => false,
            }
        };
        self.is_ended |= is_all;
        self.link().mark_dirty();
        Ok(is_all)
    }

    /// Abandons the stream (RESET_STREAM): what was not delivered yet is dropped. Nothing after the end.
    pub fn reset(&mut self, code: u64) {
        self.is_ended = true;
        // An error: all of it was delivered, or the connection is over.
        let _ = self
            .link()
            .core
            .borrow_mut()
            .send_stream(self.id)
            .reset(code_of(code));
        self.link().mark_dirty();
    }

    /// Ready once the peer wants no more (STOP_SENDING: its code), or has acknowledged all of a finished stream (`None`), or
    /// the connection is over.
    pub fn poll_stopped(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<u64>, QuicClosed>> {
        if let Some(closed) = self.connection.closed() {
            return Poll::Ready(Err(closed));
        }
        let stopped = {
            let mut core = self.link().core.borrow_mut();
            core.send_stream(self.id).stopped()
        };
        match stopped {
            Ok(Some(code)) => Poll::Ready(Ok(Some(code.into_inner()))),
            // The library has forgotten it: it was delivered, or reset.
            Err(_) => Poll::Ready(Ok(None)),
            Ok(None) => {
                self.link().wait_for(WaitingFor::Stop(self.id), context);
                Poll::Pending
            }
        }
    }

    /// Which of the streams with something to send goes first: the one with the highest number; 0 if nothing is said. Equal
    /// ones take turns.
    pub fn set_priority(&self, priority: i32) {
        // An error: it has ended.
        let _ = self
            .link()
            .core
            .borrow_mut()
            .send_stream(self.id)
            .set_priority(priority);
    }

    /// Its connection.
    pub fn connection(&self) -> &Rc<QuicConnection> {
        &self.connection
    }
}

impl Drop for QuicSendStream {
    fn drop(&mut self) {
        if !self.is_ended && self.connection.closed().is_none() {
            self.reset(self.connection.drop_code());
        }
        let link = self.connection.link();
        link.forget_waiting(WaitingFor::Write(self.id));
        link.forget_waiting(WaitingFor::Stop(self.id));
    }
}

impl QuicReceiveStream {
    pub(super) fn new(connection: &Rc<QuicConnection>, id: StreamId) -> QuicReceiveStream {
        QuicReceiveStream {
            is_early: !connection.is_handshake_complete(),
            connection: Rc::clone(connection),
            id,
            end: None,
        }
    }

    fn link(&self) -> &Rc<ConnectionLink> {
        self.connection.link()
    }

    /// The stream's number (RFC 9000, section 2.1).
    pub fn id(&self) -> u64 {
        number_of(self.id)
    }

    /// Takes the next bytes, at most `most`, without copying them. After `Finished` or `Reset` it says the same again.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<QuicReceived, QuicClosed>> {
        if let Some(end) = &self.end {
            return Poll::Ready(Ok(end.clone()));
        }
        if self.link().still_waits(WaitingFor::Read(self.id), context) {
            return Poll::Pending;
        }
        let (read, is_all, has_news) = {
            let mut core = self.link().core.borrow_mut();
            let mut stream = core.recv_stream(self.id);
            match stream.read(true) {
                Ok(mut chunks) => {
                    let read = chunks.next(most);
                    // The end mostly comes with the last bytes: asked for now, it needs no second opening of the stream. No
                    // bytes are asked for, so none are taken.
                    let is_all = matches!(read, Ok(Some(_))) && matches!(chunks.next(0), Ok(None));
                    (Some(read), is_all, chunks.finalize().should_transmit())
                }
                // It was stopped on this side.
                Err(_) => (None, false, false),
            }
        };
        if has_news {
            self.link().mark_dirty();
        }
        let received = match read {
            Some(Ok(Some(chunk))) => {
                if is_all {
                    self.end = Some(QuicReceived::Finished);
                }
                return Poll::Ready(Ok(QuicReceived::Data(chunk.bytes)));
            }
            Some(Ok(None)) => QuicReceived::Finished,
            Some(Err(ReadError::Reset(code))) => QuicReceived::Reset(code.into_inner()),
            Some(Err(ReadError::Blocked)) | None => {
                if let Some(closed) = self.connection.closed() {
                    return Poll::Ready(Err(closed));
                }
                self.link().wait_for(WaitingFor::Read(self.id), context);
                return Poll::Pending;
            }
        };
        self.end = Some(received.clone());
        Poll::Ready(Ok(received))
    }

    /// Asks the peer to send no more of it (STOP_SENDING), and drops what has arrived. Nothing after the end.
    pub fn stop_sending(&mut self, code: u64) {
        if self.end.is_some() {
            return;
        }
        // What is read from now on is the end.
        self.end = Some(QuicReceived::Reset(code));
        // An error: it was stopped or has ended.
        let _ = self
            .link()
            .core
            .borrow_mut()
            .recv_stream(self.id)
            .stop(code_of(code));
        self.link().mark_dirty();
    }

    /// Whether this stream began before the handshake was complete, so that its first bytes may have been replayed by
    /// someone else (0-RTT; RFC 8470).
    pub fn is_early(&self) -> bool {
        self.is_early
    }

    /// Its connection.
    pub fn connection(&self) -> &Rc<QuicConnection> {
        &self.connection
    }
}

impl Drop for QuicReceiveStream {
    fn drop(&mut self) {
        if self.connection.closed().is_none() {
            self.stop_sending(self.connection.drop_code());
        }
        self.link().forget_waiting(WaitingFor::Read(self.id));
    }
}
