//! The addresses, errors and options of a stream socket.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::net::sockopt;

use super::StreamSocket;
use crate::net::{SocketAddress, TcpInfo, tcp_info};
use crate::socket_option;

impl StreamSocket {
    /// The peer's address.
    pub fn peer_addr(&self) -> &SocketAddress {
        &self.peer
    }

    /// Our own address: asked for once.
    pub fn local_addr(&self) -> io::Result<&SocketAddress> {
        if let Some(address) = self.local.get() {
            return Ok(address);
        }
        let address = SocketAddress::from_any(Some(rustix::net::getsockname(&self.fd)?));
        Ok(self.local.get_or_init(|| Box::new(address)))
    }

    /// The pending error of the socket, cleared by asking.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(sockopt::socket_error(&self.fd)?.err().map(Into::into))
    }

    /// Makes close reset the connection (SO_LINGER with 0): unsent data is dropped and the peer gets a RST.
    pub fn set_reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?)
    }

    /// TCP_NODELAY; nothing to do for a unix socket.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        if self.peer.is_unix() || cfg!(feature = "simulation") {
            return Ok(());
        }
        Ok(sockopt::set_tcp_nodelay(&self.fd, on)?)
    }

    /// TCP_CORK: partial segments wait until it is off again.
    pub fn set_cork(&self, on: bool) -> io::Result<()> {
        if self.peer.is_unix() || cfg!(feature = "simulation") {
            return Ok(());
        }
        Ok(sockopt::set_tcp_cork(&self.fd, on)?)
    }

    /// What the kernel knows of the connection; `None` for a unix socket.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        tcp_info::read(self.fd.as_fd())
    }

    /// TCP keep-alive probes, with the system's times.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_keepalive(&self.fd, on)?)
    }

    /// The value of a socket option.
    pub fn option(&self, option: SocketOption) -> io::Result<i32> {
        let (level, name) = option.names();
        socket_option::get_int(&self.fd, level, name)
    }

    /// Sets a socket option.
    pub fn set_option(&self, option: SocketOption, value: i32) -> io::Result<()> {
        let (level, name) = option.names();
        socket_option::set_int(&self.fd, level, name, value)
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
    /// TCP_NOTSENT_LOWAT.
    NotSentLow,
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
            SocketOption::NotSentLow => (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
        }
    }
}
