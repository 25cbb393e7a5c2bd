//! A connection as the engines use it: a socket, with or without TLS.
//!
//! Without TLS every call goes straight to the socket, so a plain connection pays one branch. With TLS the calls
//! have the same meaning for the plaintext, with one difference: bytes that a write has accepted may still wait
//! here, encrypted, for room in the socket. [`Transport::poll_flush`] sends them, and so does a read. A caller that
//! has written and turns to something else must flush first.

use std::cell::OnceCell;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rt::net::StreamSocket;

use crate::tls::TlsSession;

/// A connection, plain or TLS.
pub struct Transport {
    socket: StreamSocket,
    /// Set once, after the handshake.
    tls: OnceCell<Box<TlsSession>>,
}

/// A connection that is not registered with any loop: see [`Transport::into_parts`].
pub struct TransportParts {
    /// The socket.
    pub fd: OwnedFd,
    /// The TLS session.
    pub tls: Option<Box<TlsSession>>,
}

/// Formats the error of a read as nginx does: `recv() failed (104: Connection reset by peer)`, or for an error of
/// TLS `SSL_read() failed (SSL: …)`.
pub struct ReadFailed<'a>(pub &'a io::Error);

impl fmt::Display for ReadFailed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match crate::tls::openssl_reason(self.0) {
            Some(words) => write!(f, "SSL_read() failed (SSL: {words})"),
            None => write!(f, "recv() failed{}", base::ErrnoText(self.0)),
        }
    }
}

impl Transport {
    /// A connection without TLS.
    pub fn plain(socket: StreamSocket) -> Transport {
        Transport {
            socket,
            tls: OnceCell::new(),
        }
    }

    /// Adds TLS, after the handshake was done on the socket.
    pub fn set_tls(&self, session: TlsSession) {
        // A second handshake would be a bug of the caller. The session in use stays: replacing it would lose its
        // keys and the peer could read nothing more.
        let _ = self.tls.set(Box::new(session));
    }

    /// The TLS session; `None` without TLS.
    #[inline]
    pub fn tls(&self) -> Option<&TlsSession> {
        self.tls.get().map(|session| &**session)
    }

    /// The socket, for addresses, options and kernel state. Reading or writing it directly bypasses TLS.
    pub fn socket(&self) -> &StreamSocket {
        &self.socket
    }

    /// Whether the connection has TLS. If not, `sendfile` and `splice` may use the socket directly.
    #[inline]
    pub fn is_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Takes the connection out of this loop, so that it can move to another one.
    pub fn into_parts(self) -> TransportParts {
        TransportParts {
            fd: self.socket.into_fd(),
            tls: self.tls.into_inner(),
        }
    }

    /// Registers a connection with this loop. The error is the socket's.
    pub fn from_parts(parts: TransportParts) -> io::Result<Transport> {
        Ok(Transport {
            socket: StreamSocket::from_fd(parts.fd)?,
            tls: parts.tls.map_or_else(OnceCell::new, OnceCell::from),
        })
    }

    // -- reading --

    /// Reads what is there: `WouldBlock` if there is nothing, 0 at the end of the stream.
    #[inline]
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_read(buf),
            Some(tls) => {
                // The session decrypts into a vector of its own. The copy is for rare callers: those that matter
                // read into a vector.
                let mut held = Vec::new();
                let n = tls.try_read_into(&self.socket, &mut held, buf.len())?;
                buf[..n].copy_from_slice(&held[..n]);
                Ok(n)
            }
        }
    }

    /// Appends to `buf` at most `max` bytes.
    #[inline]
    pub fn try_read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_read_into(buf, max),
            Some(tls) => tls.try_read_into(&self.socket, buf, max),
        }
    }

    /// Reads, or registers the task to be woken.
    #[inline]
    pub fn poll_read(&self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.tls.get() {
            None => self.socket.poll_read(context, buf),
            Some(tls) => {
                let mut held = Vec::new();
                let read = tls.poll_read_into(&self.socket, context, &mut held, buf.len());
                read.map_ok(|n| {
                    buf[..n].copy_from_slice(&held[..n]);
                    n
                })
            }
        }
    }

    /// [`Self::try_read_into`], or registers the task to be woken.
    #[inline]
    pub fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        match self.tls.get() {
            None => self.socket.poll_read_into(context, buf, max),
            Some(tls) => tls.poll_read_into(&self.socket, context, buf, max),
        }
    }

    /// Waits for at least one byte; 0 at the end of the stream.
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read(context, buf)).await
    }

    /// Waits for at least one byte and appends at most `max`; 0 at the end of the stream.
    pub async fn read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read_into(context, buf, max)).await
    }

    /// Discards received bytes without decrypting them; 0 at the end of the stream. For lingering close, where
    /// nothing that the client still sends matters.
    pub fn poll_discard(&self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.socket.poll_discard(context)
    }

    // -- writing --

    /// Writes what the socket takes now (`WouldBlock` if nothing).
    #[inline]
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_write(buf),
            Some(tls) => tls.try_writev(&self.socket, &[IoSlice::new(buf)]),
        }
    }

    /// [`Self::try_write`] with MSG_MORE: the kernel holds back a partial segment because more follows at once.
    /// With TLS this is a plain write.
    #[inline]
    pub fn try_write_more(&self, buf: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_write_more(buf),
            Some(tls) => tls.try_writev(&self.socket, &[IoSlice::new(buf)]),
        }
    }

    /// [`Self::try_write`] from several buffers.
    #[inline]
    pub fn try_writev(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_writev(bufs),
            Some(tls) => tls.try_writev(&self.socket, bufs),
        }
    }

    /// [`Self::try_write`], or registers the task to be woken.
    #[inline]
    pub fn poll_write(&self, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.tls.get() {
            None => self.socket.poll_write(context, buf),
            Some(tls) => tls.poll_writev(&self.socket, context, &[IoSlice::new(buf)]),
        }
    }

    /// [`Self::try_writev`], or registers the task to be woken.
    #[inline]
    pub fn poll_writev(
        &self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.tls.get() {
            None => self.socket.poll_writev(context, bufs),
            Some(tls) => tls.poll_writev(&self.socket, context, bufs),
        }
    }

    /// Writes all of `buf` and flushes.
    pub async fn write_all(&self, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match std::future::poll_fn(|context| self.poll_write(context, buf)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => buf = &buf[n..],
            }
        }
        self.flush().await
    }

    /// Whether encrypted bytes wait for room in the socket. Always false without TLS.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.has_pending())
    }

    /// Sends the bytes of [`Self::has_pending`]. Ready at once without TLS.
    #[inline]
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.tls.get() {
            None => Poll::Ready(Ok(())),
            Some(tls) => tls.poll_flush(&self.socket, context),
        }
    }

    /// Waits for [`Self::poll_flush`].
    pub async fn flush(&self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_flush(context)).await
    }

    /// Ends the sending direction when everything has been sent, with TLS the `close_notify`, too: it may have to wait for
    /// room, and what is left of it must not be written after the end.
    pub fn poll_shutdown_write(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.say_goodbye();
        std::task::ready!(self.poll_flush(context))?;
        Poll::Ready(self.socket.shutdown_write())
    }

    /// Ends the sending direction, with TLS after a `close_notify`, which is lost if there is no room for it. For a connection
    /// to which nothing is written any more. Flush first: pending bytes would follow the end.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.say_goodbye();
        self.socket.shutdown_write()
    }

    /// Sends TLS's `close_notify`, so that the peer knows that the data was not cut off by an attacker (RFC 8446,
    /// section 6.1). For a connection that is about to be dropped after everything was sent. It never waits: if the
    /// socket is full, the alert is lost.
    pub fn say_goodbye(&self) {
        if let Some(tls) = self.tls.get() {
            // A socket that has just moved here from another loop has had no event yet, and would count as not
            // writable.
            self.socket.look_again();
            tls.say_goodbye(&self.socket);
        }
    }

    // -- the connection --

    /// Ready when the peer has closed its side or the connection is broken. Consumes nothing that the peer has
    /// sent.
    #[inline]
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_closed(context)
    }

    /// Waits for [`Self::poll_closed`].
    pub async fn closed(&self) {
        self.socket.closed().await;
    }

    /// Ready when a read would probably return something.
    #[inline]
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Plaintext that is already decrypted raises no event on the socket any more.
        if self.tls.get().is_some_and(|tls| tls.is_readable()) {
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_readable(context)
    }

    /// Ready when the socket would probably take bytes.
    #[inline]
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(context)
    }

    /// Whether the peer has neither closed nor sent anything. Either makes an idle connection useless for the next
    /// request: unexpected bytes would be read as its response.
    pub fn is_quiet(&self) -> bool {
        if let Some(tls) = self.tls.get() {
            return tls.is_quiet(&self.socket);
        }
        // epoll has reported nothing since the last read. That is what nginx relies on too, and it saves a system
        // call; a close that crosses the request shows when the request is sent.
        if self.socket.is_quiet() {
            return true;
        }
        let peeked = self.socket.try_peek(&mut [0]);
        matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("socket", &self.socket)
            .field("tls", &self.is_tls())
            .finish()
    }
}
