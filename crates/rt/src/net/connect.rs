//! Opening connections.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, sockopt};

use super::{SocketAddress, StreamSocket};
use crate::reactor::IoInterest;
use crate::socket_option;

/// How a socket is set up before it connects.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The local address; port 0 leaves the port to the kernel.
    pub from: Option<SocketAddress>,
    /// `from` need not be an address of this machine: IP_TRANSPARENT, for which a process needs CAP_NET_ADMIN or
    /// CAP_NET_RAW.
    pub transparent: bool,
    /// TCP keep-alive probes with the system's times.
    pub keepalive: bool,
    /// SO_RCVBUF; 0: the system's.
    pub receive_buffer: usize,
    /// SO_SNDBUF; 0: the system's.
    pub send_buffer: usize,
}

impl StreamSocket {
    /// Connects to `address`.
    pub async fn connect(address: &SocketAddress) -> io::Result<Self> {
        Self::connect_with(address, &ConnectOptions::default()).await
    }

    /// Connects to `address` with options. The only time limit is the kernel's.
    pub async fn connect_with(
        address: &SocketAddress,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let SocketAddress::Inet(inet) = address
            && crate::simulation::is_running()
        {
            return Self::connect_simulated(*inet, options).await;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(address.family(), SocketType::STREAM, flags, None)?;
        prepare(&fd, address, options)?;
        let connected = rustix::net::connect(&fd, &address.to_any()?);
        let stream = Self::accepted(fd, address.clone());
        match connected {
            Ok(()) => return Ok(stream),
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            // (Includes EAGAIN of a unix socket with a full backlog: epoll would not report when there is room.)
            Err(error) => return Err(error.into()),
        }
        std::future::poll_fn(|cx| stream.poll_ready(IoInterest::Write, cx)).await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }
}

#[cfg(feature = "simulation")]
impl StreamSocket {
    async fn connect_simulated(
        address: std::net::SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        use crate::simulation::network::{ConnectFate, connect_to, draw_connection};
        match draw_connection() {
            ConnectFate::Refused => return Err(Errno::CONNREFUSED.into()),
            ConnectFate::NeverArrives => std::future::pending().await,
            ConnectFate::Arrives(nanos) => {
                crate::time::sleep(std::time::Duration::from_nanos(nanos)).await;
            }
        }
        let from = options.from.as_ref().and_then(SocketAddress::ip);
        let (fd, local) = connect_to(address, from)?;
        let stream = Self::accepted(fd, address.into());
        stream.assume_local(local.into());
        Ok(stream)
    }
}

fn prepare(fd: &OwnedFd, address: &SocketAddress, options: &ConnectOptions) -> io::Result<()> {
    if options.keepalive && !address.is_unix() {
        sockopt::set_socket_keepalive(fd, true)?;
    }
    if options.receive_buffer > 0 {
        sockopt::set_socket_recv_buffer_size(fd, options.receive_buffer)?;
    }
    if options.send_buffer > 0 {
        sockopt::set_socket_send_buffer_size(fd, options.send_buffer)?;
    }
    let Some(from) = &options.from else {
        return Ok(());
    };
    if options.transparent {
        set_transparent(fd, address)?;
    }
    if from.port() == 0 && !from.is_unix() {
        // The port is chosen at connect, so that it may serve several destinations.
        // If the option is missing, that only costs ephemeral ports.
        let _best_effort =
            socket_option::set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    }
    Ok(rustix::net::bind(fd, &from.to_any()?)?)
}

fn set_transparent(fd: &OwnedFd, address: &SocketAddress) -> io::Result<()> {
    match address {
        SocketAddress::Inet(inet) if inet.is_ipv6() => {
            socket_option::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)
        }
        SocketAddress::Inet(_) => {
            socket_option::set_int(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1)
        }
        SocketAddress::Unix(_) => Ok(()),
    }
}
