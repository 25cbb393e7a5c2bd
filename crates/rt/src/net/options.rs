//! Options of a listening socket, as the `listen` directive has them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{SocketFlags, SocketType, sockopt};

use super::Address;

/// TCP keep-alive probes: `so_keepalive=on|off|idle:interval:count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepAlive {
    /// Off when false; the rest is then without meaning.
    pub on: bool,
    /// Idle time before the first probe; the system's when `None`.
    pub idle: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
    /// Probes lost before the connection is.
    pub count: Option<u32>,
}

/// How to make a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that wait to be accepted.
    pub backlog: i32,
    /// A socket for each loop on the same address.
    pub reuseport: bool,
    /// Whether an IPv6 socket leaves IPv4 alone.
    pub ipv6only: bool,
    /// SO_RCVBUF, bytes.
    pub receive_buffer: Option<usize>,
    /// SO_SNDBUF, bytes.
    pub send_buffer: Option<usize>,
    /// TCP keep-alive of accepted connections; the system's when `None`.
    pub keepalive: Option<KeepAlive>,
    /// TCP fast open: length of the queue of connections without a finished handshake.
    pub fastopen: Option<i32>,
    /// Accept only when the client has sent something.
    pub deferred: bool,
    /// Bind to an address that the host does not have yet.
    pub freebind: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            backlog: 511,
            reuseport: false,
            ipv6only: true,
            receive_buffer: None,
            send_buffer: None,
            keepalive: None,
            fastopen: None,
            deferred: false,
            freebind: false,
        }
    }
}

impl ListenOptions {
    /// Makes the socket, bound and listening. A unix socket's path must not exist.
    pub fn listen(&self, address: &Address) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(address.family(), SocketType::STREAM, flags, None)?;
        if let Address::Inet(inet) = address {
            sockopt::set_socket_reuseaddr(&fd, true)?;
            if self.reuseport {
                sockopt::set_socket_reuseport(&fd, true)?;
            }
            if inet.is_ipv6() {
                sockopt::set_ipv6_v6only(&fd, self.ipv6only)?;
            }
            if self.freebind {
                sockopt::set_ip_freebind(&fd, true)?;
            }
        }
        rustix::net::bind(&fd, &address.to_any()?)?;
        self.apply(fd.as_fd(), address)?;
        rustix::net::listen(&fd, self.backlog)?;
        Ok(fd)
    }

    /// Sets on a socket that exists (inherited at an upgrade, kept at a reload) what may be set late:
    /// all but `reuseport`, `ipv6only` and `freebind`.
    pub fn apply(&self, fd: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
        if let Some(size) = self.receive_buffer {
            sockopt::set_socket_recv_buffer_size(fd, size)?;
        }
        if let Some(size) = self.send_buffer {
            sockopt::set_socket_send_buffer_size(fd, size)?;
        }
        if address.is_unix() {
            return Ok(());
        }
        if let Some(keepalive) = self.keepalive {
            keepalive.apply(fd)?;
        }
        set_tcp_option(fd, libc::TCP_DEFER_ACCEPT, i32::from(self.deferred))?;
        if let Some(queue) = self.fastopen {
            set_tcp_option(fd, libc::TCP_FASTOPEN, queue)?;
        }
        Ok(())
    }
}

impl KeepAlive {
    /// Sets the options on a TCP socket.
    pub fn apply(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        sockopt::set_socket_keepalive(fd, self.on)?;
        if let Some(idle) = self.idle.filter(|_| self.on) {
            sockopt::set_tcp_keepidle(fd, idle)?;
        }
        if let Some(interval) = self.interval.filter(|_| self.on) {
            sockopt::set_tcp_keepintvl(fd, interval)?;
        }
        if let Some(count) = self.count.filter(|_| self.on) {
            sockopt::set_tcp_keepcnt(fd, count)?;
        }
        Ok(())
    }
}

fn set_tcp_option(fd: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, option, value)
}

pub(super) fn set_ip_option(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_IP, option, value)
}

/// Sets an integer option that rustix has no function for.
fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call (borrowed); the pointer is to a c_int that lives
    // through it, and the length is that of a c_int, which is what the options of the two callers
    // above take.
    // JUSTIFICATION: TCP_DEFER_ACCEPT, TCP_FASTOPEN and IP_BIND_ADDRESS_NO_PORT are not in rustix;
    // `deferred` saves 11 % of the CPU of a short connection (SCORE P7).
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
