//! Which of several sockets of one address gets a datagram: a classic BPF program that the kernel runs, as in
//! [`super::reuse_port`]. It needs no privilege.

use std::io;
use std::os::fd::AsFd;

use libc::{
    BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_MISC,
    BPF_MUL, BPF_RET, BPF_TAX, BPF_X, BPF_XOR, sock_filter,
};

use super::reuse_port::{RETURN_ACCUMULATOR, attach_program, statement};

/// Larger than the number of any socket: the kernel chooses by its hash.
const BY_HASH: u32 = u32::MAX;

/// How the number of a socket is hidden in an id: `id[0] ^ (id[1] * factor + summand)`, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct DatagramSteering {
    /// The length of ids, in bytes.
    pub id_length: u8,
    /// See above.
    pub factor: u8,
    /// See above.
    pub summand: u8,
}

/// Has the kernel choose among the sockets of this one's address by the connection id of a QUIC datagram (RFC 8999): the
/// number is in ids that were issued here. Others, those of a client's first packets, are left to its hash.
pub fn steer_datagrams(socket: impl AsFd, steering: DatagramSteering) -> io::Result<()> {
    attach_program(socket, &mut program(steering))
}

/// ```text
///      A = byte 0;  long header?  ──▶ A = byte 5, the id's length;  ours? ──▶ id at 6     else by hash
///                   short header  ──▶ id at 1
/// ```
fn program(steering: DatagramSteering) -> Vec<sock_filter> {
    let plain = |code: u32, k: u32| statement(code, k, (0, 0));
    let byte = |at: u32| plain(BPF_LD | BPF_B | BPF_ABS, at);
    let socket_of_id = |at: u32| {
        [
            byte(at + 1),
            plain(BPF_ALU | BPF_MUL | BPF_K, steering.factor.into()),
            plain(BPF_ALU | BPF_ADD | BPF_K, steering.summand.into()),
            plain(BPF_ALU | BPF_AND | BPF_K, 0xff),
            plain(BPF_MISC | BPF_TAX, 0),
            byte(at),
            plain(BPF_ALU | BPF_XOR | BPF_X, 0),
            plain(BPF_RET | RETURN_ACCUMULATOR, 0),
        ]
    };
    let mut program = vec![byte(0), statement(BPF_JMP | BPF_JSET | BPF_K, 0x80, (8, 0))];
    program.extend(socket_of_id(1));
    program.push(byte(5));
    let is_ours = BPF_JMP | BPF_JEQ | BPF_K;
    program.push(statement(is_ours, steering.id_length.into(), (1, 0)));
    program.push(plain(BPF_RET | BPF_K, BY_HASH));
    program.extend(socket_of_id(6));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    const STEERING: DatagramSteering = DatagramSteering {
        id_length: 17,
        factor: 77,
        summand: 200,
    };

    fn group(count: usize) -> Vec<UdpSocket> {
        use rustix::net::{AddressFamily, SocketType, sockopt};
        let mut sockets: Vec<UdpSocket> = Vec::new();
        for _ in 0..count {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
                .expect("a descriptor");
            sockopt::set_socket_reuseport(&socket, true).expect("supported");
            let first = sockets
                .first()
                .map(|first| first.local_addr().expect("bound"));
            let address = first.unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
            rustix::net::bind(&socket, &address).expect("a free port");
            let socket = UdpSocket::from(socket);
            let short = Duration::from_millis(200);
            socket.set_read_timeout(Some(short)).expect("not zero");
            sockets.push(socket);
        }
        sockets
    }

    #[test]
    fn the_kernel_finds_the_socket_in_both_forms_of_header() {
        let sockets = group(3);
        steer_datagrams(&sockets[0], STEERING).expect("an unprivileged program");
        let to = sockets[0].local_addr().expect("bound");
        let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        for (member, behind) in [(0_u8, 0_u8), (1, 1), (2, 3), (1, 255), (2, 128)] {
            let keyed = behind
                .wrapping_mul(STEERING.factor)
                .wrapping_add(STEERING.summand);
            let mut id = vec![member ^ keyed, behind];
            id.extend([9; 15]);
            let short = [&[0x40][..], &id, &[1; 20]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, 17][..], &id, &[1; 20]].concat();
            for datagram in [short, long] {
                client.send_to(&datagram, to).expect("loopback takes it");
                let mut buffer = [0; 100];
                let n = sockets[usize::from(member)]
                    .recv(&mut buffer)
                    .expect("it comes to this socket");
                assert_eq!(&buffer[..n], &datagram);
            }
        }
        // A number that no socket has, and an id that is not ours, are nobody's loss.
        for first in [[0x40; 40], [0xc0; 40]] {
            client.send_to(&first, to).expect("loopback takes it");
            let mut buffer = [0; 100];
            let got = sockets.iter().any(|one| one.recv(&mut buffer).is_ok());
            assert!(got);
        }
    }
}
