//! The two directions of a stream.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::connection::{QuicClosed, QuicConnection};

/// Our direction of a stream.
pub struct QuicSendStream {
    connection: Rc<QuicConnection>,
    id: u64,
}

/// The peer's direction of a stream.
pub struct QuicReceiveStream {
    connection: Rc<QuicConnection>,
    id: u64,
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

impl QuicSendStream {
    /// The stream's number (RFC 9000, section 2.1).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Hands over bytes: what was taken is cut off the front of `data`, and its length returned, at least 1. Pending while
    /// neither the peer's windows nor the send buffer have room. Empty `data` is ready with 0.
    pub fn poll_write(
        &mut self,
        _context: &mut Context<'_>,
        _data: &mut Bytes,
    ) -> Poll<Result<usize, QuicStreamError>> {
        todo!()
    }

    /// Says that nothing follows (FIN). What was written is still delivered.
    pub fn finish(&mut self) -> Result<(), QuicStreamError> {
        todo!()
    }

    /// Abandons the stream (RESET_STREAM): what was not delivered yet is dropped. Nothing after the end.
    pub fn reset(&mut self, _code: u64) {
        todo!()
    }

    /// Ready once the peer wants no more (STOP_SENDING: its code), or has acknowledged all of a finished stream (`None`), or
    /// the connection is over.
    pub fn poll_stopped(
        &mut self,
        _context: &mut Context<'_>,
    ) -> Poll<Result<Option<u64>, QuicClosed>> {
        todo!()
    }

    /// Which of the streams with something to send goes first: the one with the highest number; 0 if nothing is said. Equal
    /// ones take turns.
    pub fn set_priority(&self, _priority: i32) {
        todo!()
    }

    /// Its connection.
    pub fn connection(&self) -> &Rc<QuicConnection> {
        &self.connection
    }
}

impl QuicReceiveStream {
    /// The stream's number (RFC 9000, section 2.1).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Takes the next bytes, at most `most`, without copying them. After `Finished` or `Reset` it says the same again.
    pub fn poll_read(
        &mut self,
        _context: &mut Context<'_>,
        _most: usize,
    ) -> Poll<Result<QuicReceived, QuicClosed>> {
        todo!()
    }

    /// Asks the peer to send no more of it (STOP_SENDING), and drops what has arrived. Nothing after the end.
    pub fn stop_sending(&mut self, _code: u64) {
        todo!()
    }

    /// Whether this stream began before the handshake was complete, so that its first bytes may have been replayed by
    /// someone else (0-RTT; RFC 8470).
    pub fn is_early(&self) -> bool {
        todo!()
    }

    /// Its connection.
    pub fn connection(&self) -> &Rc<QuicConnection> {
        &self.connection
    }
}
