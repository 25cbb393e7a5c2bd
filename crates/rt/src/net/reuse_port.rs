//! Which socket of an address gets a new connection: a program for the sockets that share it by `SO_REUSEPORT`.
//!
//! The kernel keeps the sockets of such a group in the order in which they began to listen, and runs the program of the group for
//! each SYN (`SO_ATTACH_REUSEPORT_CBPF`, socket(7)). What it returns is a place in that order; for a place that is not there the
//! kernel chooses by its hash, as without a program. So a program that has outlived a socket refuses nobody.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// What a share is counted in: hundredths of a percent.
pub const WHOLE_SHARE: u32 = 10_000;

// linux/filter.h: an absolute load from there on is of something besides the packet.
const ANCILLARY: u32 = 0xffff_f000;
const RANDOM: u32 = 56;
// linux/socket.h, which libc does not have for every target.
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// Gives `share` of new connections, by chance, to the socket that joined the address after `others` sockets, and the rest to
/// those, evenly. `socket` is any of the group.
///
/// # Errors
///
/// `EINVAL` if the socket does not share its address; `ENOPROTOOPT` before Linux 4.5.
pub fn split_connections(socket: impl AsFd, others: u16, share: u32) -> io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let modulo = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    let mut program = [
        statement(load, ANCILLARY + RANDOM, (0, 0)),
        statement(modulo, WHOLE_SHARE, (0, 0)),
        // Below the share: the next one. Otherwise the one after it.
        statement(
            libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
            share.min(WHOLE_SHARE),
            (1, 0),
        ),
        statement(libc::BPF_RET | libc::BPF_K, others.into(), (0, 0)),
        statement(load, ANCILLARY + RANDOM, (0, 0)),
        // A division by zero would be refused: a group has another socket.
        statement(modulo, others.max(1).into(), (0, 0)),
        statement(libc::BPF_RET | RETURN_ACCUMULATOR, 0, (0, 0)),
    ];
    attach_program(socket, &mut program)
}

/// Has the kernel run a program for the sockets that share the address of this one; `socket` is any of them.
pub(super) fn attach_program(
    socket: impl AsFd,
    instructions: &mut [libc::sock_filter],
) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: instructions.len() as libc::c_ushort,
        filter: instructions.as_mut_ptr(),
    };
    set_option(socket, SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Leaves the choice to the kernel's hash again.
///
/// # Errors
///
/// `ENOENT` without a program; `ENOPROTOOPT` before Linux 5.3, where a program stays until its group is gone.
pub fn remove_split(socket: impl AsFd) -> io::Result<()> {
    let unused: libc::c_int = 0;
    set_option(socket, SO_DETACH_REUSEPORT_BPF, &unused)
}

// linux/filter.h: BPF_A.
pub(super) const RETURN_ACCUMULATOR: u32 = 0x10;

/// An instruction, with what to skip if its comparison holds, and if it does not.
pub(super) fn statement(code: u32, k: u32, (yes, no): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    }
}

/// Sets an option of a socket to a plain struct of the kernel's.
fn set_option<V>(socket: impl AsFd, option: libc::c_int, value: &V) -> io::Result<()> {
    let size = size_of::<V>() as libc::socklen_t;
    let value = (&raw const *value).cast();
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed for the call; the pointer is to a value that lives through it, and `size` is its size. A
    // program's pointer is to instructions that its caller keeps, and the kernel copies them within the call.
    // JUSTIFICATION: rustix has no function for programs of sockets; nothing else can divide connections by a share.
    let code = unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, option, value, size) };
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    /// A second socket at the address, whose first one did not allow it when it was opened.
    fn join(first: &TcpListener) -> TcpListener {
        rustix::net::sockopt::set_socket_reuseport(first, true).expect("known to all kernels");
        let address = first.local_addr().expect("bound");
        let family = rustix::net::AddressFamily::INET;
        let socket: OwnedFd = rustix::net::socket(family, rustix::net::SocketType::STREAM, None)
            .expect("descriptors are free");
        rustix::net::sockopt::set_socket_reuseport(&socket, true).expect("known to all kernels");
        rustix::net::bind(&socket, &address).expect("the first socket allows it");
        rustix::net::listen(&socket, 512).expect("bound");
        socket.into()
    }

    fn accepted(socket: &TcpListener) -> usize {
        socket.set_nonblocking(true).expect("a socket");
        let mut count = 0;
        while socket.accept().is_ok() {
            count += 1;
        }
        count
    }

    #[test]
    fn connections_follow_the_share() {
        let first = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let second = join(&first);
        let address: SocketAddr = first.local_addr().expect("bound");
        let mut counts = Vec::new();
        for share in [0, 2_500, WHOLE_SHARE] {
            split_connections(&second, 1, share).expect("the kernel has it");
            let clients: Vec<_> = (0..100).map(|_| TcpStream::connect(address)).collect();
            assert!(clients.iter().all(Result::is_ok));
            counts.push((accepted(&first), accepted(&second)));
        }
        assert_eq!((counts[0], counts[2]), ((100, 0), (0, 100)));
        // Five standard deviations around 25. The accept queue of std's listeners holds 128.
        assert!((4..=46).contains(&counts[1].1), "{counts:?}");
        // The program names a socket that is gone, and then there is none.
        drop(second);
        let client = TcpStream::connect(address);
        assert!(client.is_ok() && accepted(&first) == 1);
        remove_split(&first).expect("it was there");
    }
}
