//! A connected stream socket, TCP or unix.
//!
//! All methods take `&self`, so that one task may read and write at once. Each call is tried first;
//! the socket is registered with epoll when a call says `EAGAIN` for the first time, and stays
//! registered, edge-triggered, for its life. A read that gave less than was asked for has emptied the
//! socket: the next one waits for an edge and costs no call.
//!
//! A task that always finds its sockets ready would hold the loop. So the waiting forms count what they
//! move, and make the task wait for its next turn when it has had its share; the `try_` forms do not.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use super::Address;
use crate::event_loop;
use crate::file::File;
use crate::pool::Pool;
use crate::reactor::{Registration, Side};
use crate::seats::Detached;
use crate::socket_option;

/// What is thrown away at once, in bytes.
const DISCARDED: usize = 64 * 1024;

/// See the module's page.
pub struct Stream {
    // Before the descriptor, so that it is dropped before that is closed.
    registration: OnceCell<Registration>,
    fd: OwnedFd,
    /// The last read emptied the socket, and nothing is known since. Only for a socket that is not
    /// registered: one that is has its readiness there.
    drained: Cell<bool>,
    /// Just accepted, and not read from: see [`FirstReads`].
    is_fresh: Cell<bool>,
    peer: Address,
    local: OnceCell<Address>,
}

/// Whether new connections on this thread have brought their first bytes by the time they are accepted. Where clients and
/// server are equally fast they have not, and to read at once is a call in vain; where the server is behind, or with
/// `deferred`, they have, and to ask epoll first would be two.
#[derive(Clone, Copy)]
struct FirstReads {
    /// First reads in vain, less those that gave something; within [`FirstReads::SURE`].
    vain: i8,
    /// New connections that went to epoll unread since one was tried.
    untried: u8,
}

impl FirstReads {
    /// How many first reads in vain stop further tries.
    const SURE: i8 = 8;
    /// How many connections then go untried before one is tried again.
    const TRY_AGAIN: u8 = 16;

    /// Whether the first read of one more connection is worth a try.
    fn is_worth_it(&mut self) -> bool {
        if self.vain < Self::SURE || self.untried >= Self::TRY_AGAIN {
            self.untried = 0;
            return true;
        }
        self.untried += 1;
        false
    }

    fn learn(&mut self, in_vain: bool) {
        // One that gave something counts more: few are tried when most seem in vain.
        let step = if in_vain { 1 } else { -4 };
        self.vain = (self.vain + step).clamp(-Self::SURE, Self::SURE);
    }
}

thread_local! {
    static FIRST_READS: Cell<FirstReads> = const { Cell::new(FirstReads { vain: 0, untried: 0 }) };
}

/// Uses the thread's experience with first reads.
fn with_first_reads<T>(f: impl FnOnce(&mut FirstReads) -> T) -> T {
    FIRST_READS.with(|cell| {
        let mut first = cell.get();
        let result = f(&mut first);
        cell.set(first);
        result
    })
}

impl Stream {
    pub(crate) fn accepted(fd: OwnedFd, peer: Address) -> Self {
        Self {
            registration: OnceCell::new(),
            fd,
            drained: Cell::new(false),
            is_fresh: Cell::new(false),
            peer,
            local: OnceCell::new(),
        }
    }

    /// A connection that has just come in.
    pub(super) fn new_client(fd: OwnedFd, peer: Address) -> Self {
        let stream = Self::accepted(fd, peer);
        let is_worth_it = with_first_reads(FirstReads::is_worth_it);
        stream.is_fresh.set(is_worth_it);
        stream.drained.set(!is_worth_it);
        stream
    }

    /// Takes a connected socket. It is made non-blocking.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let peer = Address::from_any(rustix::net::getpeername(&fd)?);
        Ok(Self::accepted(fd, peer))
    }

    /// Gives the descriptor back, out of the loop's care: it may move to another loop or process.
    pub fn into_fd(mut self) -> OwnedFd {
        if let Some(registration) = self.registration.take() {
            registration.remove(self.fd.as_fd());
        }
        self.fd
    }

    /// The connection out of the loop's care, for another loop.
    pub fn detach(self) -> Detached {
        let peer = self.peer.clone();
        Detached(self.into_fd(), peer)
    }

    /// Lets the connection move to another loop or process while others still hold this value: they
    /// must not use it any more. Errors: no descriptors.
    pub fn move_away(&self) -> io::Result<OwnedFd> {
        let moved = self.fd.try_clone()?;
        if let Some(registration) = self.registration.get() {
            // By this descriptor: the copy keeps the socket open, and with it the entry in the set.
            registration.withdraw(self.fd.as_fd());
        }
        Ok(moved)
    }

    /// A connected pair of unix sockets.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = rustix::net::AddressFamily::UNIX;
        let (a, b) = rustix::net::socketpair(family, SocketType::STREAM, flags, None)?;
        Ok((
            Self::accepted(a, Address::from_any(None)),
            Self::accepted(b, Address::from_any(None)),
        ))
    }

    // -- reading --

    /// Reads if there is something (`WouldBlock` if not; 0: the peer has finished).
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.attempt_read(buf.len(), || {
            Ok(rustix::net::recv(&self.fd, &mut *buf, RecvFlags::empty())?.0)
        })
    }

    /// Appends to `buf` at most `max` bytes, into its spare capacity (reserved here).
    pub fn try_read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        buf.reserve(max);
        self.attempt_read(max, || {
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
        self.poll_io(Side::Read, cx, || self.try_read(buf))
    }

    /// [`Self::try_read_into`], or waits for the next edge.
    pub fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(Side::Read, cx, || self.try_read_into(buf, max))
    }

    /// Throws away some of what has come, or waits for the next edge; 0 when the peer has finished. The
    /// kernel copies nothing for it (tcp(7): `MSG_TRUNC`).
    pub fn poll_discard(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        thread_local! {
            /// Never written to; a length is told by a slice.
            static NOWHERE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        self.poll_io(Side::Read, cx, || {
            NOWHERE.with_borrow_mut(|nowhere| {
                nowhere.resize(DISCARDED, 0);
                self.attempt_read(DISCARDED, || {
                    Ok(rustix::net::recv(&self.fd, &mut nowhere[..], RecvFlags::TRUNC)?.0)
                })
            })
        })
    }

    /// Reads at least a byte; 0 when the peer has finished.
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// Appends at least a byte and at most `max`; 0 when the peer has finished.
    pub async fn read_into(&self, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read_into(cx, buf, max)).await
    }

    /// Reads without consuming, if there is something.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        retry(|| Ok(rustix::net::recv(&self.fd, &mut *buf, RecvFlags::PEEK)?.0))
    }

    /// Waits until there is something and reads it without consuming it.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_io(Side::Read, cx, || self.try_peek(buf))).await
    }

    // -- writing --

    /// Writes what the socket takes now (`WouldBlock` if nothing).
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.attempt_write(|| rustix::net::send(&self.fd, buf, SendFlags::NOSIGNAL))
    }

    /// [`Self::try_write`], telling the kernel that more follows at once, so that it may wait for a full packet.
    pub fn try_write_more(&self, buf: &[u8]) -> io::Result<usize> {
        self.attempt_write(|| {
            rustix::net::send(&self.fd, buf, SendFlags::NOSIGNAL | SendFlags::MORE)
        })
    }

    /// [`Self::try_write`] from several buffers in one call.
    pub fn try_writev(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        // Not sendmsg: rustix has it only with a control buffer. SIGPIPE is ignored in a Rust program.
        self.attempt_write(|| rustix::io::writev(&self.fd, bufs))
    }

    /// Sends from a file what the socket takes now, at most `len` bytes from `offset`, which is moved on.
    /// 0 means the file ends there. It waits for the disk if the file is not in memory: ask
    /// [`File::resident_prefix`] first, or use [`Self::sendfile`].
    pub fn try_sendfile(&self, file: &File, offset: &mut u64, len: usize) -> io::Result<usize> {
        self.attempt_write(|| rustix::fs::sendfile(&self.fd, file, Some(offset), len))
    }

    /// [`Self::try_write`], or waits.
    pub fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(Side::Write, cx, || self.try_write(buf))
    }

    /// [`Self::try_writev`], or waits.
    pub fn poll_writev(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(Side::Write, cx, || self.try_writev(bufs))
    }

    /// [`Self::try_sendfile`], or waits for the socket.
    pub fn poll_sendfile(
        &self,
        cx: &mut Context<'_>,
        file: &File,
        offset: &mut u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(Side::Write, cx, || self.try_sendfile(file, offset, len))
    }

    /// Writes some of `buf`, at least a byte of it.
    pub async fn write(&self, buf: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_write(cx, buf)).await
    }

    /// Writes some of `bufs`.
    pub async fn writev(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_writev(cx, bufs)).await
    }

    /// Writes all of `buf`.
    pub async fn write_all(&self, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match self.write(buf).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => buf = &buf[n..],
            }
        }
        Ok(())
    }

    /// Writes all of `bufs`, in as few calls as the socket allows. Up to [`VECTORS`] of them go out in
    /// one call.
    pub async fn write_all_vectored(&self, bufs: &[&[u8]]) -> io::Result<()> {
        let mut bufs = bufs;
        // Bytes of the first buffer that are written.
        let mut done = 0;
        loop {
            while let Some((first, rest)) = bufs.split_first() {
                if done < first.len() {
                    break;
                }
                done -= first.len();
                bufs = rest;
            }
            if bufs.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); VECTORS];
            let count = bufs.len().min(VECTORS);
            for (slice, buf) in slices.iter_mut().zip(bufs) {
                *slice = IoSlice::new(buf);
            }
            slices[0] = IoSlice::new(&bufs[0][done..]);
            match self.writev(&slices[..count]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => done += n,
            }
        }
    }

    /// Sends `len` bytes of a file from `offset` on, which is moved on; gives how many (fewer only when the
    /// file ends early). What is not in memory is brought there on the pool first, piece by piece, so
    /// that neither the loop nor a thread of the pool ever waits for this client.
    pub async fn sendfile(
        &self,
        file: &File,
        offset: &mut u64,
        len: u64,
        pool: &Pool,
    ) -> io::Result<u64> {
        let end = offset.saturating_add(len);
        let begin = *offset;
        while *offset < end {
            let piece = (end - *offset).min(SENDFILE_PIECE);
            let mut ready = file.resident_prefix(*offset, piece);
            if ready == 0 && file.tells_residency() {
                let rest = end - *offset - piece;
                file.load(*offset, piece, rest, pool).await?;
                ready = file.resident_prefix(*offset, piece);
            }
            if ready == 0 {
                // Dropped by the kernel meanwhile, or nobody can tell: a copy never waits.
                let copy = file
                    .read_at(Vec::new(), *offset, COPIED_PIECE, pool)
                    .await?;
                let copy = &copy[..copy.len().min(usize::try_from(piece).unwrap_or(usize::MAX))];
                if copy.is_empty() {
                    return Ok(*offset - begin);
                }
                self.write_all(copy).await?;
                *offset += copy.len() as u64;
                continue;
            }
            let ready_end = *offset + ready;
            while *offset < ready_end {
                let rest = usize::try_from(ready_end - *offset).unwrap_or(usize::MAX);
                let sent =
                    std::future::poll_fn(|cx| self.poll_sendfile(cx, file, offset, rest)).await?;
                if sent == 0 {
                    return Ok(*offset - begin);
                }
            }
        }
        Ok(*offset - begin)
    }

    /// Says that nothing more will be written.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// Ends both directions at once, whatever is on its way: whoever reads from it or writes to it finds the end.
    pub fn shutdown(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Both)?)
    }

    // -- the connection --

    /// Ready when the peer has closed its side or the connection is broken; what it has sent is not
    /// touched.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.poll_ready(Side::Closed, cx) {
            Poll::Pending => Poll::Pending,
            // It cannot be watched: nothing can be said about the peer, and the next write will tell.
            Poll::Ready(Err(_)) => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(()),
        }
    }

    /// Whether the loop has heard of nothing on this socket since a read emptied it: neither input, nor an end, nor an
    /// error. Costs no call; what came since the loop last asked the system is not known yet.
    pub fn is_quiet(&self) -> bool {
        let quiet = |registration: &Registration| {
            !registration.is_ready(Side::Read) && !registration.is_ready(Side::Closed)
        };
        self.registration.get().is_some_and(quiet)
    }

    /// Lets the next read and the next write ask the system, whatever is known of the socket: before it is closed for its
    /// silence, and for last words.
    pub fn look_again(&self) {
        self.drained.set(false);
        if let Some(registration) = self.registration.get() {
            registration.suppose(Side::Read);
            registration.suppose(Side::Write);
        }
    }

    /// Waits for [`Self::poll_closed`].
    pub async fn closed(&self) {
        std::future::poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Ready when a read would probably give something.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(Side::Read, cx)
    }

    /// Ready when a write would probably take something.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(Side::Write, cx)
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> &Address {
        &self.peer
    }

    /// Our own address: asked for once.
    pub fn local_addr(&self) -> io::Result<&Address> {
        if let Some(address) = self.local.get() {
            return Ok(address);
        }
        let address = Address::from_any(Some(rustix::net::getsockname(&self.fd)?));
        Ok(self.local.get_or_init(|| address))
    }

    /// The pending error of the socket, cleared by asking.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(sockopt::socket_error(&self.fd)?.err().map(Into::into))
    }

    /// Makes closing reset the connection: what is not sent is dropped, the peer gets a RST.
    pub fn set_reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?)
    }

    /// TCP_NODELAY; nothing to do for a unix socket.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        if self.peer.is_unix() {
            return Ok(());
        }
        Ok(sockopt::set_tcp_nodelay(&self.fd, on)?)
    }

    /// TCP_CORK: partial segments wait until it is off again.
    pub fn set_cork(&self, on: bool) -> io::Result<()> {
        if self.peer.is_unix() {
            return Ok(());
        }
        Ok(sockopt::set_tcp_cork(&self.fd, on)?)
    }

    /// What the kernel knows of the connection; `None` for a unix socket.
    pub fn tcp_info(&self) -> Option<super::TcpInfo> {
        super::tcp_info::read(self.fd.as_fd())
    }

    /// TCP keep-alive probes, with the system's times.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_keepalive(&self.fd, on)?)
    }

    /// The kernel's number for an option.
    pub fn option(&self, option: SocketOption) -> io::Result<i32> {
        let (level, name) = option.names();
        socket_option::get_int(&self.fd, level, name)
    }

    /// Sets an option to a number of the kernel's.
    pub fn set_option(&self, option: SocketOption, value: i32) -> io::Result<()> {
        let (level, name) = option.names();
        socket_option::set_int(&self.fd, level, name, value)
    }

    // -- how all of these wait --

    fn attempt_read(
        &self,
        asked: usize,
        read: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let registration = self.registration.get();
        match registration {
            Some(registration) if !registration.is_ready(Side::Read) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            _ => {}
        }
        let result = retry(read);
        if self.is_fresh.take() {
            let in_vain =
                matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            with_first_reads(|first| first.learn(in_vain));
        }
        let drained = match &result {
            // Not for a unix socket: there a read also ends where passed descriptors begin.
            Ok(n) => *n > 0 && *n < asked && !self.peer.is_unix(),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        match registration {
            // After a hang-up no edge follows: the end of the stream must still be read.
            Some(registration) if drained && !registration.is_ready(Side::Closed) => {
                registration.clear(Side::Read);
            }
            Some(_) => {}
            None => self.drained.set(drained),
        }
        result
    }

    fn attempt_write(&self, write: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
        let registration = self.registration.get();
        if registration.is_some_and(|registration| !registration.is_ready(Side::Write)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let result = retry(write);
        if let (Err(error), Some(registration)) = (&result, registration)
            && error.kind() == io::ErrorKind::WouldBlock
        {
            registration.clear(Side::Write);
        }
        result
    }

    /// A call of another module's that reads from the socket.
    pub(super) fn poll_transfer_in(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // It may give less than was asked for and yet leave something: nothing is drained by it.
        self.poll_io(Side::Read, cx, || {
            self.attempt_read(0, || call(self.fd.as_fd()))
        })
    }

    /// A call of another module's that writes to the socket.
    pub(super) fn poll_transfer_out(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(Side::Write, cx, || {
            self.attempt_write(|| call(self.fd.as_fd()))
        })
    }

    fn poll_io(
        &self,
        side: Side,
        cx: &mut Context<'_>,
        attempt: impl FnOnce() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if event_loop::budget_is_spent(cx) {
            return Poll::Pending;
        }
        // A socket that was just emptied goes straight to epoll, which looks again by itself.
        if side == Side::Write || self.registration.get().is_some() || !self.drained.get() {
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    event_loop::spend(*result.as_ref().unwrap_or(&0));
                    return Poll::Ready(result);
                }
            }
        }
        match self.registration(side) {
            // (`peek` does not clear: it has the edge from the read that comes after it.)
            Ok(registration) => registration.clear(side),
            Err(error) => return Poll::Ready(Err(error)),
        }
        match self.poll_ready(side, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    pub(super) fn poll_ready(&self, side: Side, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let registration = match self.registration(side) {
            Ok(registration) => registration,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if registration.is_ready(side) {
            return Poll::Ready(Ok(()));
        }
        if side == Side::Write
            && let Err(error) = registration.watch_writes(self.fd.as_fd())
        {
            return Poll::Ready(Err(error));
        }
        registration.arm(side, cx);
        Poll::Pending
    }

    fn registration(&self, side: Side) -> io::Result<&Registration> {
        if let Some(registration) = self.registration.get() {
            return Ok(registration);
        }
        // A fresh registration has no readiness of this side: epoll reports what is there in the next turn.
        let registration = Registration::edge(self.fd.as_fd(), side)?;
        Ok(self.registration.get_or_init(|| registration))
    }
}

/// Buffers that go out in one call of [`Stream::write_all_vectored`].
pub const VECTORS: usize = 16;

/// What [`Stream::sendfile`] proves, or loads, and sends at a time.
const SENDFILE_PIECE: u64 = 256 * 1024;
/// What it copies at a time when it cannot send from the page cache.
const COPIED_PIECE: usize = 64 * 1024;

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(Into::into),
        }
    }
}

/// An option of a socket whose value is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// SO_KEEPALIVE.
    Keepalive,
    /// SO_REUSEADDR.
    ReuseAddress,
    /// TCP_NODELAY.
    NoDelay,
    /// SO_SNDBUF.
    SendBuffer,
    /// SO_RCVBUF.
    ReceiveBuffer,
    /// TCP_KEEPINTVL.
    KeepInterval,
    /// TCP_KEEPCNT.
    KeepCount,
}

impl SocketOption {
    fn names(self) -> (libc::c_int, libc::c_int) {
        match self {
            SocketOption::Keepalive => (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            SocketOption::ReuseAddress => (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            SocketOption::NoDelay => (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            SocketOption::SendBuffer => (libc::SOL_SOCKET, libc::SO_SNDBUF),
            SocketOption::ReceiveBuffer => (libc::SOL_SOCKET, libc::SO_RCVBUF),
            SocketOption::KeepInterval => (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
            SocketOption::KeepCount => (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("fd", &self.fd)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
