//! A listening socket on a loop.
//!
//! Several loops may share one socket, each with its own [`SocketListener`] over a duplicate or the same inherited
//! descriptor; epoll then wakes one of them. Or each loop has its own socket (`reuseport`).
//!
//! The number of connections accepted per event adapts. It starts with one. If events come turn after turn, the
//! queue is probably longer than what was taken, and the number doubles, up to [`BATCH_LIMIT`]. If the queue proves
//! to be shorter (`EAGAIN`), it halves and stays there for [`CALM_EVENTS`]. So a quiet loop rarely makes a useless
//! `accept4` call, a flooded one does not go back to epoll for each connection, and existing clients never wait for
//! more than one batch of new ones.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::{SocketAddress, StreamSocket};
use crate::event_loop;
use crate::reactor::{IoInterest, Registration};
use crate::report::{self, ReportLimit, RuntimeEvent};
use crate::time::Timer;

/// The most connections accepted before the loop turns to its other tasks.
const BATCH_LIMIT: u32 = 16;
/// How many events must pass after a useless `accept4` before a larger batch is tried.
const CALM_EVENTS: u32 = 16;
/// How long accepting pauses when descriptors or memory have run out.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket on a loop, with its adaptive batch.
pub struct SocketListener {
    registration: Cell<Option<Registration>>,
    /// How many connections may still be accepted before the next event.
    allowed: Cell<u32>,
    /// How many connections are accepted per event at present.
    batch: Cell<u32>,
    /// How many events until the batch may grow.
    calm: Cell<u32>,
    /// The turn of the last event.
    last_turn: Cell<u64>,
    pause: Timer,
    fd: Rc<OwnedFd>,
}

impl SocketListener {
    /// Takes over a listening socket and makes it non-blocking.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self {
            registration: Cell::new(None),
            allowed: Cell::new(0),
            batch: Cell::new(1),
            calm: Cell::new(0),
            last_turn: Cell::new(0),
            pause: Timer::new(),
            fd: Rc::new(fd),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddress> {
        Ok(SocketAddress::from_any(Some(rustix::net::getsockname(
            &self.fd,
        )?)))
    }

    /// Accepts a connection if there is one (`WouldBlock` if not).
    pub fn try_accept(&self) -> io::Result<StreamSocket> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((fd, peer)) => {
                    let peer = SocketAddress::from_any(peer);
                    #[cfg(feature = "simulation")]
                    if let SocketAddress::Inet(peer) = &peer {
                        crate::simulation::network::note_accepted(&fd, *peer);
                    }
                    return Ok(StreamSocket::new_client(fd, peer));
                }
                // The client had reset the connection before it was accepted: not an error of the socket.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for a connection. When descriptors or memory run out, it reports that, pauses and goes on. The errors
    /// it returns are those that a retry would not cure.
    pub async fn accept(&self) -> io::Result<StreamSocket> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// See [`SocketListener::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<StreamSocket>> {
        if self.pause.is_set() {
            if self.pause.poll_expired(cx).is_pending() {
                return Poll::Pending;
            }
            self.pause.clear();
        }
        if !self.may_accept() {
            return self.wait(cx);
        }
        match self.try_accept() {
            Ok(stream) => {
                self.allowed.set(self.allowed.get() - 1);
                Poll::Ready(Ok(stream))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.batch.set((self.batch.get() / 2).max(1));
                self.calm.set(CALM_EVENTS);
                self.allowed.set(0);
                self.wait(cx)
            }
            Err(error) if is_exhausted(&error) => self.pause(&error, cx),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Whether the last event and its batch allow another `accept4`.
    fn may_accept(&self) -> bool {
        let Some(registration) = self.registration.take() else {
            return false;
        };
        if registration.is_ready(IoInterest::Read) {
            registration.clear_ready(IoInterest::Read);
            self.adapt();
            self.allowed.set(self.batch.get());
        }
        self.registration.set(Some(registration));
        self.allowed.get() > 0
    }

    fn adapt(&self) {
        let turn = event_loop::turn_number();
        if self.last_turn.replace(turn) + 1 != turn {
            self.batch.set(1);
        } else if self.calm.get() > 0 {
            self.calm.set(self.calm.get() - 1);
        } else {
            self.batch.set((self.batch.get() * 2).min(BATCH_LIMIT));
        }
    }

    fn wait(&self, cx: &mut Context<'_>) -> Poll<io::Result<StreamSocket>> {
        let registration = match self.registration.take().filter(|old| !old.is_detached()) {
            Some(registration) => registration,
            None => match Registration::register_exclusive(&self.fd) {
                Ok(registration) => registration,
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        registration.arm(IoInterest::Read, cx);
        self.registration.set(Some(registration));
        Poll::Pending
    }

    fn pause(&self, error: &io::Error, cx: &mut Context<'_>) -> Poll<io::Result<StreamSocket>> {
        static REPORTED: ReportLimit = ReportLimit::new();
        if REPORTED.allows_report() {
            report::report_event(&RuntimeEvent::AcceptPaused {
                error,
                pause: EXHAUSTED_PAUSE,
            });
        }
        // Out of the epoll set during the pause: a level-triggered socket with a queue would end every wait at
        // once.
        self.stop();
        self.pause.set(EXHAUSTED_PAUSE);
        self.pause
            .poll_expired(cx)
            .map(|()| Err(io::ErrorKind::Interrupted.into()))
    }

    /// Takes the socket out of the epoll set until the next accept.
    pub fn stop(&self) {
        self.allowed.set(0);
        self.registration.set(None);
    }

    /// Gives the socket back.
    pub fn into_fd(self) -> OwnedFd {
        self.stop();
        Rc::into_inner(self.fd).expect("only a registration shares the descriptor, and it is gone")
    }
}

impl AsFd for SocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether `accept` failed because of a shortage that will pass.
fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .iter()
        .any(|exhausted| errno == Some(exhausted.raw_os_error()))
}
