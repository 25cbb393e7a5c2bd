//! What carries the bytes of an exchange with a peer: a socket, or a stream of a QUIC connection.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};

use crate::quic::{
    QuicClosed, QuicConnection, QuicReceiveStream, QuicReceived, QuicSendStream, QuicStreamError,
};
use crate::transport::Transport;

/// How much is handed to a QUIC stream at a time, in bytes: it is copied.
const WRITE_SIZE: usize = 64 * 1024;

/// What carries the bytes of one exchange at a time.
pub enum PeerStream {
    /// A socket, with or without TLS.
    Socket(Transport),
    /// A QUIC connection, of which each exchange has a stream of its own.
    Quic(Box<QuicPeerStream>),
}

/// A QUIC connection to a peer, and its present stream.
pub struct QuicPeerStream {
    connection: Rc<QuicConnection>,
    stream: RefCell<Option<OpenPeerStream>>,
    /// The code with which the connection is closed (H3_NO_ERROR, say).
    close_code: u64,
    /// What the protocol keeps for as long as the connection lives.
    _companion: Box<dyn Any>,
}

struct OpenPeerStream {
    send: QuicSendStream,
    receive: QuicReceiveStream,
    /// What has been received and not been read.
    held: Bytes,
    is_finished: Cell<bool>,
}

impl QuicPeerStream {
    /// `companion` lives as long as the connection, which is closed with `close_code`.
    pub fn new(
        connection: Rc<QuicConnection>,
        close_code: u64,
        companion: Box<dyn Any>,
    ) -> Box<QuicPeerStream> {
        Box::new(QuicPeerStream {
            connection,
            stream: RefCell::default(),
            close_code,
            _companion: companion,
        })
    }

    /// Opens the stream of the next exchange.
    async fn begin_stream(&self) -> Result<(), QuicClosed> {
        drop(self.stream.take());
        let (send, receive) =
            std::future::poll_fn(|context| self.connection.poll_open_bidirectional(context))
                .await?;
        self.stream.replace(Some(OpenPeerStream {
            send,
            receive,
            held: Bytes::new(),
            is_finished: Cell::new(false),
        }));
        Ok(())
    }

    fn with_stream<T>(
        &self,
        act: impl FnOnce(&mut OpenPeerStream) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.stream.borrow_mut() {
            Some(stream) => act(stream),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl OpenPeerStream {
    fn poll_write(&mut self, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let part = &buf[..buf.len().min(WRITE_SIZE)];
        let written = self
            .send
            .poll_write(context, &mut Bytes::copy_from_slice(part));
        written.map_err(|error| stream_error(&error))
    }

    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        if self.held.is_empty() {
            match std::task::ready!(self.receive.poll_read(context, max)) {
                Ok(QuicReceived::Data(bytes)) => self.held = bytes,
                Ok(QuicReceived::Finished) => return Poll::Ready(Ok(0)),
                Ok(QuicReceived::Reset(code)) => {
                    return Poll::Ready(Err(io::Error::other(format!(
                        "upstream reset the stream with code {code:#x}"
                    ))));
                }
                Err(closed) => return Poll::Ready(Err(closed_error(&closed))),
            }
        }
        let n = self.held.len().min(max);
        buf.extend_from_slice(&self.held[..n]);
        self.held.advance(n);
        Poll::Ready(Ok(n))
    }
}

fn closed_error(closed: &QuicClosed) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, closed.to_string())
}

fn stream_error(error: &QuicStreamError) -> io::Error {
    match error {
        // Its response comes nevertheless.
        QuicStreamError::Stopped(_) | QuicStreamError::Ended => io::ErrorKind::BrokenPipe.into(),
        QuicStreamError::Closed(closed) => closed_error(closed),
    }
}

impl PeerStream {
    /// Prepares a connection for an exchange. `false`: it is of no use any more.
    pub async fn begin_exchange(&self) -> bool {
        match self {
            PeerStream::Socket(_) => true,
            PeerStream::Quic(quic) => quic.begin_stream().await.is_ok(),
        }
    }

    /// The socket; `None` where many connections share one.
    pub fn transport(&self) -> Option<&Transport> {
        match self {
            PeerStream::Socket(transport) => Some(transport),
            PeerStream::Quic(_) => None,
        }
    }

    /// Writes what is taken now, or registers the task to be woken.
    #[inline]
    pub fn poll_write(&self, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            PeerStream::Socket(transport) => transport.poll_write(context, buf),
            PeerStream::Quic(quic) => quic.with_stream(|stream| stream.poll_write(context, buf)),
        }
    }

    /// [`PeerStream::poll_write`] from several buffers.
    #[inline]
    pub fn poll_writev(
        &self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            PeerStream::Socket(transport) => transport.poll_writev(context, bufs),
            PeerStream::Quic(quic) => quic.with_stream(|stream| {
                let first = bufs.iter().find(|buf| !buf.is_empty());
                stream.poll_write(context, first.map_or(&[], |buf| &buf[..]))
            }),
        }
    }

    /// Sends what was written of a request and may still wait; with QUIC the stream ends with it.
    #[inline]
    pub fn poll_end_request(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            PeerStream::Socket(transport) => transport.poll_flush(context),
            PeerStream::Quic(quic) => quic.with_stream(|stream| {
                if !stream.is_finished.replace(true) {
                    // The error: the server wants no more of it.
                    let _ = stream.send.finish();
                }
                Poll::Ready(Ok(()))
            }),
        }
    }

    /// Writes what the socket takes now (`WouldBlock` if nothing).
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            PeerStream::Socket(transport) => transport.try_write(buf),
            PeerStream::Quic(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Appends at most `max` bytes of the response to `buf`, or registers the task to be woken; 0 at the end.
    #[inline]
    pub fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            PeerStream::Socket(transport) => transport.poll_read_into(context, buf, max),
            PeerStream::Quic(quic) => {
                quic.with_stream(|stream| stream.poll_read_into(context, buf, max))
            }
        }
    }

    /// Tells the peer that the connection ends in order, before it is dropped.
    pub fn say_goodbye(&self) {
        match self {
            PeerStream::Socket(transport) => transport.say_goodbye(),
            PeerStream::Quic(quic) => quic.connection.close(quic.close_code, b""),
        }
    }

    /// Whether a read would find nothing: no event has come since one emptied the socket. It costs no call; what TLS or QUIC
    /// have is not looked at.
    pub fn is_known_to_be_empty(&self) -> bool {
        match self {
            PeerStream::Socket(transport) => !transport.is_tls() && transport.socket().is_quiet(),
            PeerStream::Quic(_) => false,
        }
    }

    /// Whether the connection is as good as when it was left: see [`Transport::is_quiet`].
    pub fn is_quiet(&self) -> bool {
        match self {
            PeerStream::Socket(transport) => transport.is_quiet(),
            PeerStream::Quic(quic) => quic.connection.is_usable(),
        }
    }

    /// The socket, to move it to another loop; `None` for what cannot be moved.
    pub(super) fn into_transport(self) -> Option<Transport> {
        match self {
            PeerStream::Socket(transport) => Some(transport),
            PeerStream::Quic(_) => None,
        }
    }
}

impl Drop for QuicPeerStream {
    fn drop(&mut self) {
        // A connection that is closed already ignores it.
        self.connection.close(self.close_code, b"");
    }
}

impl fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerStream::Socket(transport) => transport.fmt(f),
            PeerStream::Quic(_) => f.write_str("QuicPeerStream"),
        }
    }
}
