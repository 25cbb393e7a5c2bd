//! A datagram socket.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use super::SocketAddress;
use crate::event_loop;
use crate::reactor::{IoInterest, Registration};
#[cfg(feature = "simulation")]
use crate::simulation::datagrams::SimulatedDatagrams;

/// A datagram socket, UDP or unix, edge-triggered as [`super::StreamSocket`] is.
pub struct UdpSocket {
    registration: OnceCell<Registration>,
    fd: OwnedFd,
    #[cfg(feature = "simulation")]
    simulated: Option<SimulatedDatagrams>,
}

impl UdpSocket {
    /// Takes a datagram socket. It is made non-blocking.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self {
            registration: OnceCell::new(),
            #[cfg(feature = "simulation")]
            simulated: SimulatedDatagrams::of(&fd),
            fd,
        })
    }

    /// A socket bound to `address`.
    pub fn bind(address: &SocketAddress) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(socket) = Self::bind_simulated(address, None) {
            return socket;
        }
        let socket = Self::unbound(address)?;
        rustix::net::bind(&socket.fd, &address.to_any()?)?;
        Ok(socket)
    }

    /// A socket that sends to `address` and receives from there only.
    pub fn connect(address: &SocketAddress) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(socket) = Self::bind_simulated(&UNBOUND, Some(address)) {
            return socket;
        }
        let socket = Self::unbound(address)?;
        rustix::net::connect(&socket.fd, &address.to_any()?)?;
        Ok(socket)
    }

    /// As [`Self::connect`], from a local address.
    pub fn connect_from(address: &SocketAddress, from: &SocketAddress) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(socket) = Self::bind_simulated(from, Some(address)) {
            return socket;
        }
        let socket = Self::bind(from)?;
        rustix::net::connect(&socket.fd, &address.to_any()?)?;
        Ok(socket)
    }

    /// A unix socket without a name, to send from.
    pub fn unix() -> io::Result<Self> {
        Self::unbound(&SocketAddress::abstract_name(""))
    }

    /// The descriptor, for another form of the socket.
    pub fn into_fd(self) -> OwnedFd {
        if let Some(registration) = self.registration.into_inner() {
            registration.remove(self.fd.as_fd());
        }
        self.fd
    }

    fn unbound(address: &SocketAddress) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(address.family(), SocketType::DGRAM, flags, None)?;
        Ok(Self {
            registration: OnceCell::new(),
            fd,
            #[cfg(feature = "simulation")]
            simulated: None,
        })
    }

    /// Where it is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddress> {
        Ok(SocketAddress::from_any(Some(rustix::net::getsockname(
            &self.fd,
        )?)))
    }

    /// Receives a datagram if there is one; the part that does not fit in `buf` is lost.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddress)> {
        self.attempt(IoInterest::Read, || {
            #[cfg(feature = "simulation")]
            if let Some(simulated) = &self.simulated {
                let received = simulated.receive(&self.fd, buf);
                return received.map(|(n, from)| (n, from.into()));
            }
            let (_, n, from) = rustix::net::recvfrom(&self.fd, &mut *buf, RecvFlags::empty())?;
            Ok((n, SocketAddress::from_any(from)))
        })
    }

    /// Receives a datagram.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddress)> {
        std::future::poll_fn(|cx| self.poll_recv_from(cx, buf)).await
    }

    /// See [`Self::recv_from`].
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddress)>> {
        self.poll_io(IoInterest::Read, cx, || self.try_recv_from(buf))
    }

    /// Sends a datagram if the socket takes it now.
    pub fn try_send_to(&self, buf: &[u8], to: &SocketAddress) -> io::Result<usize> {
        #[cfg(feature = "simulation")]
        if let (Some(simulated), SocketAddress::Inet(to)) = (&self.simulated, to) {
            return Ok(simulated.send(buf, Some(*to))?);
        }
        let to = to.to_any()?;
        self.attempt(IoInterest::Write, || {
            rustix::net::sendto(&self.fd, buf, SendFlags::NOSIGNAL, &to)
        })
    }

    /// Sends a datagram.
    pub async fn send_to(&self, buf: &[u8], to: &SocketAddress) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_io(IoInterest::Write, cx, || self.try_send_to(buf, to)))
            .await
    }

    /// Sends a datagram to where it is connected, if the socket takes it now.
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "simulation")]
        if let Some(simulated) = &self.simulated {
            return Ok(simulated.send(buf, None)?);
        }
        self.attempt(IoInterest::Write, || {
            rustix::net::send(&self.fd, buf, SendFlags::NOSIGNAL)
        })
    }

    /// Sends a datagram to where it is connected.
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_io(IoInterest::Write, cx, || self.try_send(buf))).await
    }

    /// Receives a datagram from where it is connected.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buf).await?.0)
    }

    fn attempt<R>(
        &self,
        interest: IoInterest,
        mut call: impl FnMut() -> rustix::io::Result<R>,
    ) -> io::Result<R> {
        self.attempt_system_io(interest, || call().map_err(Into::into))
    }

    /// Makes a system call, unless the socket is known not to be ready for it.
    pub(super) fn attempt_system_io<R>(
        &self,
        interest: IoInterest,
        mut call: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let registration = self.registration.get();
        if registration.is_some_and(|registration| !registration.is_ready(interest)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(registration) = registration {
                        registration.clear_ready(interest);
                    }
                    return Err(error);
                }
                result => return result,
            }
        }
    }

    /// [`Self::attempt_system_io`], or registers the task to be woken.
    pub(super) fn poll_system_io<R>(
        &self,
        interest: IoInterest,
        cx: &mut Context<'_>,
        mut call: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        self.poll_io(interest, cx, || self.attempt_system_io(interest, &mut call))
    }

    /// Ready when the socket would probably take a datagram: to be asked when it has just not taken one.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut asked = false;
        self.poll_io(IoInterest::Write, cx, || {
            let is_ready = self
                .registration
                .get()
                .is_some_and(|registration| registration.is_ready(IoInterest::Write));
            match is_ready && !std::mem::replace(&mut asked, true) {
                true => Ok(()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        })
    }

    fn poll_io<R>(
        &self,
        interest: IoInterest,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        if event_loop::budget_is_spent(cx) {
            return Poll::Pending;
        }
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => {
                // A datagram is small: the call is what counts.
                event_loop::count_transfer(0);
                return Poll::Ready(result);
            }
        }
        let registration = match self.registration.get() {
            Some(registration) => registration,
            None => match Registration::register_edge(self.fd.as_fd(), interest) {
                Ok(registration) => self.registration.get_or_init(|| registration),
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        if interest == IoInterest::Write
            && let Err(error) = registration.watch_writes(self.fd.as_fd())
        {
            return Poll::Ready(Err(error));
        }
        registration.arm(interest, cx);
        Poll::Pending
    }
}

/// A socket for datagrams leaves its address to the system.
#[cfg(feature = "simulation")]
const UNBOUND: SocketAddress = SocketAddress::Inet(std::net::SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    0,
));

#[cfg(feature = "simulation")]
impl UdpSocket {
    /// `None`: it is not simulated.
    fn bind_simulated(
        own: &SocketAddress,
        peer: Option<&SocketAddress>,
    ) -> Option<io::Result<Self>> {
        let peer = match peer {
            Some(SocketAddress::Inet(peer)) => Some(*peer),
            Some(SocketAddress::Unix(_)) => return None,
            None => None,
        };
        let SocketAddress::Inet(own) = own else {
            return None;
        };
        let bound = SimulatedDatagrams::bind(*own, peer)?;
        Some(bound.map(|(fd, simulated)| Self {
            registration: OnceCell::new(),
            fd,
            simulated: Some(simulated),
        }))
    }

    /// What is simulated of it.
    pub(super) fn simulated(&self) -> Option<&SimulatedDatagrams> {
        self.simulated.as_ref()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
