//! Opening listening sockets, with every option of `listen`.
//!
//! The master calls this with its own rights and hands the descriptors to the worker. Accepting is
//! [`rt::net`]'s business, and so is anything about the connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use base::ErrnoText;
use rt::socket_option;

/// The length of the accept queue when `backlog` is not given; nginx's figure for Linux.
pub const DEFAULT_BACKLOG: i32 = 511;

/// Where a socket listens. Two specifications with the same address are the same socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP.
    Udp(SocketAddr),
    /// A stream socket in the file system.
    Unix(PathBuf),
    /// A datagram socket in the file system.
    UnixDatagram(PathBuf),
}

impl ListenAddress {
    /// The path of a socket in the file system.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ListenAddress::Unix(path) | ListenAddress::UnixDatagram(path) => Some(path),
            ListenAddress::Tcp(_) | ListenAddress::Udp(_) => None,
        }
    }

    /// Does it take connections (as opposed to datagrams)?
    pub fn is_stream(&self) -> bool {
        matches!(self, ListenAddress::Tcp(_) | ListenAddress::Unix(_))
    }

    /// The port, for addresses that have one.
    pub fn port(&self) -> Option<u16> {
        match self {
            ListenAddress::Tcp(address) | ListenAddress::Udp(address) => Some(address.port()),
            ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => None,
        }
    }

    fn family(&self) -> AddressFamily {
        match self {
            ListenAddress::Tcp(SocketAddr::V4(_)) | ListenAddress::Udp(SocketAddr::V4(_)) => {
                AddressFamily::INET
            }
            ListenAddress::Tcp(SocketAddr::V6(_)) | ListenAddress::Udp(SocketAddr::V6(_)) => {
                AddressFamily::INET6
            }
            ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => AddressFamily::UNIX,
        }
    }
}

impl fmt::Display for ListenAddress {
    /// As nginx names it in log lines: `127.0.0.1:80`, `[::]:80`, `unix:/path`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) | ListenAddress::Udp(address) => address.fmt(f),
            ListenAddress::Unix(path) | ListenAddress::UnixDatagram(path) => {
                write!(f, "unix:{}", path.display())
            }
        }
    }
}

/// TCP keep-alive probes of accepted connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// As the system does by default.
    #[default]
    System,
    /// No probes.
    Off,
    /// Probes, with what is given here in place of the system's figures.
    On {
        /// Silence before the first probe.
        idle: Option<Duration>,
        /// Time between probes.
        interval: Option<Duration>,
        /// Probes without an answer until the connection counts as dead.
        count: Option<u32>,
    },
}

/// The parameters of `listen` that belong to the socket. `None` leaves the system's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The accept queue's length.
    pub backlog: i32,
    /// `SO_RCVBUF` in bytes.
    pub receive_buffer: Option<usize>,
    /// `SO_SNDBUF` in bytes.
    pub send_buffer: Option<usize>,
    /// `so_keepalive`.
    pub keepalive: KeepAlive,
    /// `fastopen`: the queue of TCP Fast Open connections.
    pub fast_open: Option<i32>,
    /// `deferred`: accept only when data has come; the kernel gives up waiting after this time.
    pub deferred: Option<Duration>,
    /// For IPv6 addresses: do not take IPv4 connections.
    pub ipv6_only: bool,
    /// One socket for each loop; the kernel spreads connections over them.
    pub reuse_port: bool,
    /// `multipath`: MPTCP (RFC 8684) in place of TCP.
    pub multipath: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            backlog: DEFAULT_BACKLOG,
            receive_buffer: None,
            send_buffer: None,
            keepalive: KeepAlive::System,
            fast_open: None,
            deferred: None,
            ipv6_only: true,
            reuse_port: false,
            multipath: false,
        }
    }
}

/// Which step failed, and why; prints as nginx's log line does.
#[derive(Debug)]
pub struct ListenError {
    /// Such as `bind() to 0.0.0.0:80 failed`.
    pub step: String,
    /// The system's error.
    pub error: io::Error,
}

impl ListenError {
    /// Another process has the address; a later try may succeed.
    pub fn in_use(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrInUse
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.step, ErrnoText(&self.error))
    }
}

impl std::error::Error for ListenError {}

/// Opens, binds and, for streams, listens. The socket does not block and is closed at exec.
pub fn open(address: &ListenAddress, options: &ListenOptions) -> Result<OwnedFd, ListenError> {
    let named = |step: &str| {
        let step = format!("{step} {address} failed");
        move |error: rustix::io::Errno| ListenError {
            step,
            error: error.into(),
        }
    };
    let kind = if address.is_stream() {
        SocketType::STREAM
    } else {
        SocketType::DGRAM
    };
    let protocol = (options.multipath && matches!(address, ListenAddress::Tcp(_)))
        .then_some(rustix::net::ipproto::MPTCP);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(address.family(), kind, flags, protocol)
        .map_err(named("socket()"))?;
    // Connections of an earlier process at this address may still be in TIME_WAIT, and would make bind() fail.
    sockopt::set_socket_reuseaddr(&socket, true).map_err(named("setsockopt(SO_REUSEADDR)"))?;
    if options.reuse_port && address.path().is_none() {
        sockopt::set_socket_reuseport(&socket, true).map_err(named("setsockopt(SO_REUSEPORT)"))?;
    }
    // Always set: the default depends on the administrator's net.ipv6.bindv6only.
    if address.family() == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, options.ipv6_only)
            .map_err(named("setsockopt(IPV6_V6ONLY)"))?;
    }
    bind(&socket, address).map_err(named("bind() to"))?;
    if let Some(path) = address.path() {
        // Any local user may connect, as with a TCP port and as in nginx; the mode of the directory can restrict
        // it.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(
            |error| ListenError {
                step: format!("chmod() \"{}\" failed", path.display()),
                error,
            },
        )?;
    }
    // Before listen(): the window scale of a connection is fixed in its handshake.
    set_buffers(&socket, options);
    if address.is_stream() {
        rustix::net::listen(&socket, options.backlog).map_err(|error| ListenError {
            step: format!("listen() to {address}, backlog {} failed", options.backlog),
            error: error.into(),
        })?;
    }
    Ok(socket)
}

/// Whether this address could be listened on. The socket is bound for a moment but does not listen: a client that
/// connects meanwhile is refused, and not accepted by a socket that is about to be closed.
pub fn try_bind(address: SocketAddr) -> io::Result<()> {
    let address = ListenAddress::Tcp(address);
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(address.family(), SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(bind(&socket, &address)?)
}

/// Whether this address could be read for datagrams: see [`try_bind`].
pub fn try_bind_datagrams(address: SocketAddr) -> io::Result<()> {
    let address = ListenAddress::Udp(address);
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(address.family(), SocketType::DGRAM, flags, None)?;
    Ok(bind(&socket, &address)?)
}

/// What a socket that another program has opened listens on, with the options that tell sockets apart.
/// An error when it is no listening socket.
pub fn inherited(socket: &OwnedFd) -> io::Result<(ListenAddress, ListenOptions)> {
    let stream = sockopt::socket_type(socket)? == SocketType::STREAM;
    if stream && !sockopt::socket_acceptconn(socket)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let name = rustix::net::getsockname(socket)?;
    let inet = SocketAddr::try_from(name.clone()).ok();
    let unix = || {
        let path = SocketAddrUnix::try_from(name).ok()?;
        let path = path.path_bytes()?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
    };
    let address = match (inet, stream) {
        (Some(address), true) => ListenAddress::Tcp(address),
        (Some(address), false) => ListenAddress::Udp(address),
        (None, stream) => {
            let path = unix().ok_or(io::ErrorKind::InvalidInput)?;
            match stream {
                true => ListenAddress::Unix(path),
                false => ListenAddress::UnixDatagram(path),
            }
        }
    };
    let options = ListenOptions {
        reuse_port: address.path().is_none() && sockopt::socket_reuseport(socket)?,
        multipath: sockopt::socket_protocol(socket)? == Some(rustix::net::ipproto::MPTCP),
        ..ListenOptions::default()
    };
    Ok((address, options))
}

/// How many connections wait to be accepted.
pub fn waiting_connections(socket: &OwnedFd) -> u32 {
    rt::net::accept_queue(socket.as_fd()).unwrap_or(0)
}

/// Changes the length of the accept queue of a socket that listens already.
pub fn set_backlog(socket: &OwnedFd, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Lets other sockets join this one at its address (`reuseport` that came with a reload).
pub fn allow_reuse_port(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_reuseport(socket, true)?)
}

/// What was allowed by [`allow_reuse_port`] is over; sockets that have joined stay.
pub fn forbid_reuse_port(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_reuseport(socket, false)?)
}

/// Whether a listening IPv6 socket takes no IPv4 connections.
pub fn is_ipv6_only(socket: &OwnedFd) -> bool {
    sockopt::ipv6_v6only(socket).unwrap_or(true)
}

fn bind(socket: &OwnedFd, address: &ListenAddress) -> rustix::io::Result<()> {
    match address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => {
            rustix::net::bind(socket, address)
        }
        ListenAddress::Unix(path) | ListenAddress::UnixDatagram(path) => {
            rustix::net::bind(socket, &SocketAddrUnix::new(path.as_path())?)
        }
    }
}

/// The kernel limits buffer sizes anyway, so a refusal is not an error.
fn set_buffers(socket: &OwnedFd, options: &ListenOptions) {
    if let Some(size) = options.receive_buffer {
        let _ = sockopt::set_socket_recv_buffer_size(socket, size);
    }
    if let Some(size) = options.send_buffer {
        let _ = sockopt::set_socket_send_buffer_size(socket, size);
    }
}

/// Applies what may change on an open socket: at the start, and when a reload changes `listen`.
/// Returns what the system refused, as log lines; the socket works all the same.
pub fn configure(
    socket: &OwnedFd,
    address: &ListenAddress,
    options: &ListenOptions,
) -> Vec<String> {
    let mut refused = Vec::new();
    let mut check = |option: &str, result: io::Result<()>| {
        if let Err(error) = result {
            refused.push(format!(
                "setsockopt({option}) {address} failed{}, ignored",
                ErrnoText(&error)
            ));
        }
    };
    set_buffers(socket, options);
    if matches!(address, ListenAddress::Tcp(_)) {
        configure_tcp(socket, options, &mut check);
    }
    refused
}

fn configure_tcp(
    socket: &OwnedFd,
    options: &ListenOptions,
    check: &mut dyn FnMut(&str, io::Result<()>),
) {
    match &options.keepalive {
        KeepAlive::System => {}
        KeepAlive::Off => check(
            "SO_KEEPALIVE",
            sockopt::set_socket_keepalive(socket, false).map_err(Into::into),
        ),
        KeepAlive::On {
            idle,
            interval,
            count,
        } => {
            check(
                "SO_KEEPALIVE",
                sockopt::set_socket_keepalive(socket, true).map_err(Into::into),
            );
            if let Some(idle) = idle {
                check(
                    "TCP_KEEPIDLE",
                    sockopt::set_tcp_keepidle(socket, *idle).map_err(Into::into),
                );
            }
            if let Some(interval) = interval {
                check(
                    "TCP_KEEPINTVL",
                    sockopt::set_tcp_keepintvl(socket, *interval).map_err(Into::into),
                );
            }
            if let Some(count) = count {
                check(
                    "TCP_KEEPCNT",
                    sockopt::set_tcp_keepcnt(socket, *count).map_err(Into::into),
                );
            }
        }
    }
    if let Some(queue) = options.fast_open {
        check(
            "TCP_FASTOPEN",
            set_tcp_option(socket, libc::TCP_FASTOPEN, queue),
        );
    }
    if let Some(time) = options.deferred {
        let seconds = i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
        check(
            "TCP_DEFER_ACCEPT",
            set_tcp_option(socket, libc::TCP_DEFER_ACCEPT, seconds),
        );
    }
}

fn set_tcp_option(socket: impl AsFd, option: i32, value: i32) -> io::Result<()> {
    socket_option::set_int(socket, libc::IPPROTO_TCP, option, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> ListenAddress {
        ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"))
    }

    #[test]
    fn every_option_of_a_tcp_socket_is_accepted() {
        let options = ListenOptions {
            receive_buffer: Some(65536),
            send_buffer: Some(65536),
            keepalive: KeepAlive::On {
                idle: Some(Duration::from_secs(60)),
                interval: Some(Duration::from_secs(5)),
                count: Some(3),
            },
            deferred: Some(Duration::from_secs(10)),
            fast_open: Some(16),
            reuse_port: true,
            ..ListenOptions::default()
        };
        let socket = open(&any(), &options).expect("a free port");
        assert_eq!(configure(&socket, &any(), &options), Vec::<String>::new());
        assert_eq!(sockopt::tcp_keepcnt(&socket), Ok(3));
    }

    #[test]
    fn a_busy_port_says_so_in_nginx_s_words() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = ListenAddress::Tcp(taken.local_addr().expect("bound"));
        let error = open(&address, &ListenOptions::default()).expect_err("taken");
        assert!(error.in_use());
        assert_eq!(
            error.to_string(),
            format!("bind() to {address} failed (98: Address already in use)")
        );
    }
}
