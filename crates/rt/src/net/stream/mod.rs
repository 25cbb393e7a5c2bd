//! A connected stream socket, TCP or unix.
//!
//! All methods take `&self`, so that one task may read while another writes. Each call is tried first. The socket
//! is registered with epoll when a call says `EAGAIN` for the first time, and then stays registered,
//! edge-triggered, for its life. A read that returns less than was asked for has emptied the socket: the next one
//! waits for an event without a call.
//!
//! A task whose sockets are always ready would hold the loop. So the waiting forms count the bytes they move, and
//! make the task wait for the next turn when it has used up its budget. The `try_` forms do not.

mod first_reads;
mod options;
mod sending;

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, SocketType};

use super::SocketAddress;
use crate::event_loop;
use crate::reactor::{IoInterest, Registration};
use first_reads::{FirstReads, with_first_reads};

pub use options::SocketOption;
pub use sending::VECTORS;

/// The most bytes that one call discards.
const DISCARDED: usize = 64 * 1024;

/// A connected stream socket on this thread's loop.
pub struct StreamSocket {
    // Before the descriptor, so that it is dropped before that is closed.
    registration: OnceCell<Registration>,
    fd: OwnedFd,
    /// The last read emptied the socket, and no event is known since. Only used while the socket is not registered:
    /// a registration has this information itself.
    drained: Cell<bool>,
    /// Just accepted and not read from yet: see [`FirstReads`].
    is_fresh: Cell<bool>,
    peer: SocketAddress,
    /// Our own address, once it has been asked for. In a box, as most connections never need it.
    local: OnceCell<Box<SocketAddress>>,
}

/// An accepted connection that no loop knows yet.
pub struct DetachedSocket(OwnedFd, SocketAddress);

impl DetachedSocket {
    /// A connection that another process has accepted.
    pub fn of(fd: OwnedFd) -> io::Result<Self> {
        let peer = SocketAddress::from_any(rustix::net::getpeername(&fd)?);
        Ok(DetachedSocket(fd, peer))
    }

    /// Binds the connection to this thread's loop.
    pub fn attach(self) -> StreamSocket {
        StreamSocket::accepted(self.0, self.1)
    }
}

impl AsFd for DetachedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl StreamSocket {
    pub(super) fn accepted(fd: OwnedFd, peer: SocketAddress) -> Self {
        Self {
            registration: OnceCell::new(),
            fd,
            drained: Cell::new(false),
            is_fresh: Cell::new(false),
            peer,
            local: OnceCell::new(),
        }
    }

    /// A connection that was just accepted.
    pub(super) fn new_client(fd: OwnedFd, peer: SocketAddress) -> Self {
        let stream = Self::accepted(fd, peer);
        let is_worth_it = with_first_reads(FirstReads::is_worth_it);
        stream.is_fresh.set(is_worth_it);
        stream.drained.set(!is_worth_it);
        stream
    }

    /// Says what its own address is.
    #[cfg(feature = "simulation")]
    pub(super) fn assume_local(&self, local: SocketAddress) {
        let _not_asked_before = self.local.set(Box::new(local));
    }

    /// Takes over a connected socket and makes it non-blocking.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let peer = SocketAddress::from_any(rustix::net::getpeername(&fd)?);
        Ok(Self::accepted(fd, peer))
    }

    /// Releases the descriptor from this loop: it may move to another loop or process.
    pub fn into_fd(mut self) -> OwnedFd {
        if let Some(registration) = self.registration.take() {
            registration.remove(self.fd.as_fd());
        }
        self.fd
    }

    /// Releases the connection from this loop, for another one.
    pub fn detach(self) -> DetachedSocket {
        let peer = self.peer.clone();
        DetachedSocket(self.into_fd(), peer)
    }

    /// Lets the connection move to another loop or process while other references to this value exist: they must
    /// not use it any more. Fails if there are no descriptors left.
    pub fn move_away(&self) -> io::Result<OwnedFd> {
        let moved = self.fd.try_clone()?;
        if let Some(registration) = self.registration.get() {
            // By this descriptor: the copy keeps the socket open, and so its entry would stay in the epoll set.
            registration.deregister(self.fd.as_fd());
        }
        Ok(moved)
    }

    /// A connected pair of unix sockets.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = rustix::net::AddressFamily::UNIX;
        let (a, b) = rustix::net::socketpair(family, SocketType::STREAM, flags, None)?;
        Ok((
            Self::accepted(a, SocketAddress::from_any(None)),
            Self::accepted(b, SocketAddress::from_any(None)),
        ))
    }

    // -- reading --

    /// Reads what is there: `WouldBlock` if there is nothing, 0 at the end of the stream.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.attempt_read(buf.len(), || {
            Ok(rustix::net::recv(&self.fd, &mut *buf, RecvFlags::empty())?.0)
        })
    }

    /// Appends to `buf` at most `max` bytes, into its spare capacity (reserved here).
    pub fn try_read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        self.attempt_read(max, || {
            // Only here: a socket that is known to have nothing must not make an empty buffer grow.
            buf.reserve(max);
            let spare = &mut buf.spare_capacity_mut()[..max];
            let (_, n) = rustix::net::recv(&self.fd, spare, RecvFlags::empty())?;
            // SAFETY: `recv` has written the first `n` bytes of the spare capacity, and `n <= max <=
            // capacity - len` because that was the length of the slice it got (no `TRUNC` flag, by
            // which it could claim more).
            // JUSTIFICATION: without it the buffer has to be zeroed first: 40 ns for each KB free, at
            // each request.
            unsafe { buf.set_len(buf.len() + n) };
            Ok(n)
        })
    }

    /// Reads, or waits for the next edge.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_io(IoInterest::Read, cx, || self.try_read(buf))
    }

    /// [`Self::try_read_into`], or waits for the next edge.
    pub fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(IoInterest::Read, cx, || self.try_read_into(buf, max))
    }

    /// Discards received bytes, or waits for the next event; 0 at the end of the stream. The kernel copies nothing
    /// (tcp(7): `MSG_TRUNC`).
    pub fn poll_discard(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        thread_local! {
            /// Never written to: the call needs a slice for its length only.
            static NOWHERE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        self.poll_io(IoInterest::Read, cx, || {
            NOWHERE.with_borrow_mut(|nowhere| {
                nowhere.resize(DISCARDED, 0);
                self.attempt_read(DISCARDED, || {
                    Ok(rustix::net::recv(&self.fd, &mut nowhere[..], RecvFlags::TRUNC)?.0)
                })
            })
        })
    }

    /// Waits for at least one byte; 0 at the end of the stream.
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// Waits for at least one byte and appends at most `max`; 0 at the end of the stream.
    pub async fn read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read_into(cx, buf, max)).await
    }

    /// Reads without consuming, if there is something.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        retry(|| Ok(rustix::net::recv(&self.fd, &mut *buf, RecvFlags::PEEK)?.0))
    }

    /// Waits until there is something and reads it without consuming it.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_io(IoInterest::Read, cx, || self.try_peek(buf))).await
    }

    // -- the connection --

    /// Ready when the peer has closed its side or the connection is broken. Consumes nothing that the peer has
    /// sent.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.poll_ready(IoInterest::Closed, cx) {
            Poll::Pending => Poll::Pending,
            // The socket cannot be watched, so nothing is known about the peer; the next write will show.
            Poll::Ready(Err(_)) => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(()),
        }
    }

    /// Whether no event has come on this socket since a read emptied it: no data, no end, no error. It costs no
    /// call, so it does not know what has arrived since the loop last asked epoll.
    pub fn is_quiet(&self) -> bool {
        let quiet = |registration: &Registration| {
            !registration.is_ready(IoInterest::Read) && !registration.is_ready(IoInterest::Closed)
        };
        self.registration.get().is_some_and(quiet)
    }

    /// Whether a read right after the connection was accepted is worth its call: see [`FirstReads`].
    pub fn is_first_read_worth_it(&self) -> bool {
        self.is_fresh.get()
    }

    /// Whether an event has said that the peer has closed its side or that the connection is broken. What the peer
    /// sent before may still be unread.
    pub fn has_ended(&self) -> bool {
        let ended = |registration: &Registration| registration.is_ready(IoInterest::Closed);
        self.registration.get().is_some_and(ended)
    }

    /// Makes the next read and the next write try their calls, whatever is known about the socket. Used before it
    /// is closed for being silent, and for a last alert.
    pub fn look_again(&self) {
        self.drained.set(false);
        if let Some(registration) = self.registration.get() {
            registration.assume_ready(IoInterest::Read);
            registration.assume_ready(IoInterest::Write);
        }
    }

    /// Waits for [`Self::poll_closed`].
    pub async fn closed(&self) {
        std::future::poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Ready when a read would probably return something.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(IoInterest::Read, cx)
    }

    /// Ready when the socket would probably take bytes.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(IoInterest::Write, cx)
    }

    // -- how all of these wait --

    fn attempt_read(
        &self,
        asked: usize,
        read: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let registration = self.registration.get();
        match registration {
            Some(registration) if !registration.is_ready(IoInterest::Read) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            _ => {}
        }
        let result = retry(read);
        #[cfg(feature = "simulation")]
        let result = match result {
            Ok(0) if asked > 0 && crate::simulation::network::was_reset(&self.fd) => {
                Err(Errno::CONNRESET.into())
            }
            result => result,
        };
        if self.is_fresh.take() {
            let in_vain =
                matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            with_first_reads(|first| first.note_first_read(in_vain));
        }
        let drained = match &result {
            // Not on a unix socket, where a read also ends where passed descriptors begin.
            Ok(n) => *n > 0 && *n < asked && !self.peer.is_unix(),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        match registration {
            // After a hang-up no further event comes, and the end of the stream still has to be read.
            Some(registration) if drained && !registration.is_ready(IoInterest::Closed) => {
                registration.clear_ready(IoInterest::Read);
            }
            Some(_) => {}
            None => self.drained.set(drained),
        }
        result
    }

    fn attempt_write(&self, write: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
        let registration = self.registration.get();
        if registration.is_some_and(|registration| !registration.is_ready(IoInterest::Write)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let result = retry(write);
        if let (Err(error), Some(registration)) = (&result, registration)
            && error.kind() == io::ErrorKind::WouldBlock
        {
            registration.clear_ready(IoInterest::Write);
        }
        result
    }

    /// Runs another module's call that reads from the socket, such as `splice`.
    pub(super) fn poll_transfer_in(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // It may return less than was asked for although more is there, so the socket does not count as emptied.
        self.poll_io(IoInterest::Read, cx, || {
            self.attempt_read(0, || call(self.fd.as_fd()))
        })
    }

    /// Runs another module's call that writes to the socket, such as `splice`.
    pub(super) fn poll_transfer_out(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(IoInterest::Write, cx, || {
            self.attempt_write(|| call(self.fd.as_fd()))
        })
    }

    fn poll_io(
        &self,
        interest: IoInterest,
        cx: &mut Context<'_>,
        attempt: impl FnOnce() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if event_loop::budget_is_spent(cx) {
            return Poll::Pending;
        }
        // A socket that was just emptied is registered without another try: epoll reports data that came meanwhile.
        if interest == IoInterest::Write || self.registration.get().is_some() || !self.drained.get()
        {
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    event_loop::count_transfer(*result.as_ref().unwrap_or(&0));
                    return Poll::Ready(result);
                }
            }
        }
        match self.registration(interest) {
            // (`peek` does not clear: it has the edge from the read that comes after it.)
            Ok(registration) => registration.clear_ready(interest),
            Err(error) => return Poll::Ready(Err(error)),
        }
        match self.poll_ready(interest, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    pub(super) fn poll_ready(
        &self,
        interest: IoInterest,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let registration = match self.registration(interest) {
            Ok(registration) => registration,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if registration.is_ready(interest) {
            return Poll::Ready(Ok(()));
        }
        if interest == IoInterest::Write
            && let Err(error) = registration.watch_writes(self.fd.as_fd())
        {
            return Poll::Ready(Err(error));
        }
        registration.arm(interest, cx);
        Poll::Pending
    }

    fn registration(&self, interest: IoInterest) -> io::Result<&Registration> {
        if let Some(registration) = self.registration.get() {
            return Ok(registration);
        }
        // A new registration starts without readiness for this side; epoll reports the present state in the next
        // turn.
        let registration = Registration::register_edge(self.fd.as_fd(), interest)?;
        Ok(self.registration.get_or_init(|| registration))
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(Into::into),
        }
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for StreamSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSocket")
            .field("fd", &self.fd)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
