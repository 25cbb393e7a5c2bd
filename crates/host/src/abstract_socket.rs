//! Sockets in Linux's abstract namespace, through which a command talks to a running server.
//!
//! Messages are whole (`SOCK_SEQPACKET`) and nothing blocks. Each side learns the other's identity from the kernel
//! (SO_PEERCRED), because any process may take a name.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use crate::channel::Channel;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Listens under a name.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

/// The next connection and the user that made it. `WouldBlock` if there is none.
pub fn accept(socket: &OwnedFd) -> io::Result<(OwnedFd, u32)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let peer = rustix::net::accept_with(socket, flags)?;
    let user = sockopt::socket_peercred(&peer)?.uid.as_raw();
    Ok((peer, user))
}

/// Connects to a name; the number of the process that listens there.
pub fn connect(name: &str) -> io::Result<(OwnedFd, u32)> {
    let socket = socket()?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    let process = sockopt::socket_peercred(&socket)?.pid;
    let process = process.as_raw_nonzero().get().unsigned_abs();
    Ok((socket, process))
}

/// Connects to a name for messages with descriptors; the number of the process that listens there, and of its user when
/// it began to.
pub fn connect_channel(name: &str) -> io::Result<(Channel, u32, u32)> {
    let (socket, process) = connect(name)?;
    let user = sockopt::socket_peercred(&socket)?.uid.as_raw();
    Ok((Channel::from_accepted(socket)?, process, user))
}

/// The names with this prefix on which a process listens or has a connection.
pub fn socket_names(prefix: &str) -> Vec<String> {
    // If this cannot be read, nothing is found.
    let list = std::fs::read("/proc/net/unix").unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let mut names: Vec<String> = list
        .lines()
        .filter_map(|line| Some(line.split_once(" @")?.1.to_owned()))
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Sends a message if there is room for it.
pub fn send(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, message, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The message that has come; empty when the other side is gone.
pub fn receive<'a>(
    socket: &OwnedFd,
    buffer: &'a mut [MaybeUninit<u8>],
) -> io::Result<&'a mut [u8]> {
    let ((message, _), _) = rustix::net::recv(socket, buffer, RecvFlags::empty())?;
    Ok(message)
}
