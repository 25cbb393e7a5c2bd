//! A connection as the engines use it: a socket, with or without TLS on it.
//!
//! Without TLS every call goes straight to the socket, so that a plain connection pays nothing for the possibility.
//! With TLS the calls mean the same of the plaintext, with one difference: what a write has accepted may still wait
//! here, encrypted, for room in the socket. [`Transport::poll_flush`] sends it, and so does a read; whoever has written
//! and is about to do something else flushes first.

use std::cell::OnceCell;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rt::net::Stream;

use crate::tls::Session;

/// A connection, plain or TLS.
pub struct Transport {
    socket: Stream,
    /// Set once, after the handshake.
    tls: OnceCell<Box<Session>>,
}

/// What is left of a connection that leaves its loop: see [`Transport::into_parts`].
pub struct Parts {
    /// The socket.
    pub fd: OwnedFd,
    /// The state of TLS on it.
    pub tls: Option<Box<Session>>,
}

/// Why a read failed, in nginx's words: `recv() failed (104: Connection reset by peer)`, or what TLS has to say:
/// `SSL_read() failed (SSL: …)`.
pub struct ReadFailed<'a>(pub &'a io::Error);

impl fmt::Display for ReadFailed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match crate::tls::words(self.0) {
            Some(words) => write!(f, "SSL_read() failed (SSL: {words})"),
            None => write!(f, "recv() failed{}", base::Errno(self.0)),
        }
    }
}

impl Transport {
    /// A connection without TLS.
    pub fn plain(socket: Stream) -> Transport {
        Transport {
            socket,
            tls: OnceCell::new(),
        }
    }

    /// Puts TLS on it, after a handshake on its socket.
    pub fn secure(&self, session: Session) {
        // A second handshake would be a defect of the caller; the session that is in use stays.
        let _ = self.tls.set(Box::new(session));
    }

    /// What TLS agreed on; `None` without it.
    #[inline]
    pub fn tls(&self) -> Option<&Session> {
        self.tls.get().map(|session| &**session)
    }

    /// The socket: for addresses, options and what the kernel knows. Reading or writing there bypasses TLS.
    pub fn socket(&self) -> &Stream {
        &self.socket
    }

    /// Whether TLS is on it. If not, `sendfile` and `splice` may use the socket.
    #[inline]
    pub fn is_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Takes the connection apart, out of the loop's care, so that it may move to another loop.
    pub fn into_parts(self) -> Parts {
        Parts {
            fd: self.socket.into_fd(),
            tls: self.tls.into_inner(),
        }
    }

    /// Puts a connection together on this loop. Errors: the socket's.
    pub fn from_parts(parts: Parts) -> io::Result<Transport> {
        Ok(Transport {
            socket: Stream::from_fd(parts.fd)?,
            tls: parts.tls.map_or_else(OnceCell::new, OnceCell::from),
        })
    }

    // -- reading --

    /// Reads if there is something (`WouldBlock` if not; 0: the peer has finished).
    #[inline]
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_read(buf),
            Some(tls) => {
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

    /// Reads, or waits.
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

    /// [`Self::try_read_into`], or waits.
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

    /// Reads at least a byte; 0 when the peer has finished.
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read(context, buf)).await
    }

    /// Appends at least a byte and at most `max`; 0 when the peer has finished.
    pub async fn read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read_into(context, buf, max)).await
    }

    /// Throws away some of what the peer sends, unread by TLS too, or waits; 0 when the peer has finished. For a
    /// connection on which nothing is said any more.
    pub fn poll_discard(&self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.socket.poll_discard(context)
    }

    // -- writing --

    /// Writes what is taken now (`WouldBlock` if nothing).
    #[inline]
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_write(buf),
            Some(tls) => tls.try_writev(&self.socket, &[IoSlice::new(buf)]),
        }
    }

    /// [`Self::try_write`], telling the kernel that more follows at once.
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

    /// [`Self::try_write`], or waits.
    #[inline]
    pub fn poll_write(&self, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.tls.get() {
            None => self.socket.poll_write(context, buf),
            Some(tls) => tls.poll_writev(&self.socket, context, &[IoSlice::new(buf)]),
        }
    }

    /// [`Self::try_writev`], or waits.
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

    /// Writes all of `buf`, and sends it.
    pub async fn write_all(&self, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match std::future::poll_fn(|context| self.poll_write(context, buf)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => buf = &buf[n..],
            }
        }
        self.flush().await
    }

    /// Whether something that was written waits for room in the socket. Never without TLS.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.has_pending())
    }

    /// Sends what waits ([`Self::has_pending`]). Ready at once without TLS.
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

    /// Says that nothing more will be written; with TLS by its own word for that first. Flush before.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.say_goodbye();
        self.socket.shutdown_write()
    }

    /// With TLS, tells the peer that nothing more comes, so that it knows that nothing was cut off (RFC 8446, section
    /// 6.1). For a connection that is about to be dropped after all was said; never waits.
    pub fn say_goodbye(&self) {
        if let Some(tls) = self.tls.get() {
            // A socket that has come from another loop a moment ago is not known to take anything.
            self.socket.look_again();
            tls.say_goodbye(&self.socket);
        }
    }

    // -- the connection --

    /// Ready when the peer has closed its side or the connection is broken; what it has sent is not touched.
    #[inline]
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_closed(context)
    }

    /// Waits for [`Self::poll_closed`].
    pub async fn closed(&self) {
        self.socket.closed().await;
    }

    /// Ready when a read would probably give something.
    #[inline]
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.tls.get().is_some_and(|tls| tls.is_readable()) {
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_readable(context)
    }

    /// Ready when a write would probably take something.
    #[inline]
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(context)
    }

    /// Whether the peer has neither closed nor sent anything: either makes a connection useless for the next request.
    pub fn is_quiet(&self) -> bool {
        if let Some(tls) = self.tls.get() {
            return tls.is_quiet(&self.socket);
        }
        // What the loop knows is as good as what nginx knows, and costs no call; the rest shows when the request is sent.
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
