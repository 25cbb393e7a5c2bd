//! Datagrams that arrive at another process than their connection's: during an upgrade, or with several worker processes.
//!
//! Each loop has a datagram socket in the abstract namespace for them, whose name only those know who have the key of the ids.
//! The kernel queues ten messages at such a socket (`net.unix.max_dgram_qlen`), and a turn of the sending loop brings more
//! datagrams than that: those of a turn share messages. What the queue does not take is lost, which QUIC repairs.
//!
//! ```text
//! message      datagram …
//! datagram     length[2]  family[1]  from: ip[4|16] port[2]  has_to[1] to: ip[4|16]  ecn[1]  content
//! ```

use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use rt::net::{IncomingDatagram, SocketAddress, UdpSocket};

use super::connection_ids::{IdOwner, QuicSecret, destination_id, this_process};
use super::endpoint::{LocalIp, QuicEndpoint, is_here};
use super::frames::PacketCursor;
use super::loops::{ForwardedDatagram, endpoint_here, loop_number, received};

/// The largest message, in bytes. The system's default for what may be on the way of a socket is three times that.
const LARGEST_MESSAGE: usize = 64 * 1024;

/// The most that a datagram has in a message beside its content, in bytes.
const LARGEST_HEAD: usize = 2 + 1 + 16 + 2 + 1 + 16 + 1;

rt::local! {
    /// The secrets under whose names this loop takes datagrams of other processes.
    static SERVED: RefCell<Vec<QuicSecret>> = const { RefCell::new(Vec::new()) };
    /// The socket that datagrams for other processes are sent on.
    static OUTLET: OnceCell<Option<UdpSocket>> = const { OnceCell::new() };
    /// What leaves at the end of this turn: one message for each loop that gets something.
    static LEAVING: RefCell<Vec<LeavingMessage>> = const { RefCell::new(Vec::new()) };
}

/// Datagrams for a loop of another process.
struct LeavingMessage {
    process: u32,
    loop_number: u16,
    /// Where they have come to.
    from: Rc<QuicEndpoint>,
    bytes: Vec<u8>,
}

/// The name of a loop's socket, in the abstract namespace. Each loop has its own: loops of a process that is shutting down
/// end one by one, and none may take the others' datagrams along.
fn loop_address(secret: &QuicSecret, process: u32, loop_number: u16) -> SocketAddress {
    SocketAddress::abstract_name(&secret.socket_name(process, loop_number))
}

/// Has a datagram leave for its owner at the end of this turn. `false`: it is too large.
pub(super) fn send_to_process(
    from: &Rc<QuicEndpoint>,
    owner: IdOwner,
    datagram: &IncomingDatagram<'_>,
) -> bool {
    let needs = datagram.content.len() + LARGEST_HEAD;
    if needs > LARGEST_MESSAGE {
        return false;
    }
    LEAVING.with_borrow_mut(|leaving| {
        if leaving.is_empty() {
            rt::at_turn_end(send_leaving);
        }
        let has_room = |known: &&mut LeavingMessage| {
            (known.process, known.loop_number) == (owner.process, owner.loop_number)
                && Rc::ptr_eq(&known.from, from)
                && known.bytes.len() + needs <= LARGEST_MESSAGE
        };
        match leaving.iter_mut().find(has_room) {
            Some(message) => encode(datagram, &mut message.bytes),
            None => {
                let mut bytes = Vec::with_capacity(needs);
                encode(datagram, &mut bytes);
                leaving.push(LeavingMessage {
                    process: owner.process,
                    loop_number: owner.loop_number,
                    from: Rc::clone(from),
                    bytes,
                });
            }
        }
    });
    true
}

fn send_leaving() {
    for message in LEAVING.take() {
        if message.send() {
            continue;
        }
        // The process is gone: its clients learn of it.
        for datagram in decode_all(&message.bytes) {
            message.from.take_datagram(&received(&datagram));
        }
    }
}

impl LeavingMessage {
    /// `false`: nobody takes it.
    fn send(&self) -> bool {
        OUTLET.with(|outlet| {
            let Some(outlet) = outlet.get_or_init(|| UdpSocket::unix().ok()) else {
                return false;
            };
            let to = loop_address(&self.from.secret, self.process, self.loop_number);
            match outlet.try_send_to(&self.bytes, &to) {
                Ok(_) => true,
                // Its queue is full: lost, as on the way.
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            }
        })
    }
}

/// Takes datagrams that other processes of this server have received for connections of this loop, as long as it runs.
pub fn serve_other_processes(secret: &QuicSecret) -> io::Result<()> {
    if SERVED.with_borrow(|served| served.contains(secret)) {
        return Ok(());
    }
    let socket = UdpSocket::bind(&loop_address(secret, this_process(), loop_number()))?;
    SERVED.with_borrow_mut(|served| served.push(secret.clone()));
    let ids = secret.id_cipher();
    rt::spawn_named("quic from other processes", async move {
        let mut buffer = vec![0; LARGEST_MESSAGE];
        while let Ok((length, _)) = socket.recv_from(&mut buffer).await {
            for datagram in decode_all(&buffer[..length]) {
                let owner = destination_id(&datagram.content).and_then(|id| ids.owner_of(id));
                let Some(owner) = owner.filter(|owner| is_here(*owner)) else {
                    continue;
                };
                // None: its connections are gone, and the endpoint with the last of them.
                if let Some(own) = endpoint_here(owner) {
                    own.take_datagram(&received(&datagram));
                }
            }
        }
    });
    Ok(())
}

/// Appends a datagram to a message.
fn encode(datagram: &IncomingDatagram<'_>, message: &mut Vec<u8>) {
    let begun = message.len();
    message.extend_from_slice(&[0; 2]);
    let put_ip = |message: &mut Vec<u8>, ip: IpAddr| match ip {
        IpAddr::V4(ip) => {
            message.push(4);
            message.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            message.push(6);
            message.extend_from_slice(&ip.octets());
        }
    };
    put_ip(message, datagram.from.ip());
    message.extend_from_slice(&datagram.from.port().to_be_bytes());
    match datagram.to {
        Some(ip) => put_ip(message, ip),
        None => message.push(0),
    }
    message.push(datagram.ecn);
    message.extend_from_slice(datagram.content);
    // It fits: no message is longer.
    let length = (message.len() - begun - 2) as u16;
    message[begun..begun + 2].copy_from_slice(&length.to_be_bytes());
}

/// The datagrams of a message, up to the first that is none.
fn decode_all(message: &[u8]) -> impl Iterator<Item = ForwardedDatagram> + '_ {
    let mut rest = PacketCursor(message);
    std::iter::from_fn(move || {
        let length = u16::from_be_bytes(rest.bytes(2)?.try_into().ok()?);
        decode(rest.bytes(length.into())?)
    })
}

fn decode(datagram: &[u8]) -> Option<ForwardedDatagram> {
    let mut cursor = PacketCursor(datagram);
    let ip = |cursor: &mut PacketCursor<'_>| -> Option<LocalIp> {
        Some(match cursor.byte()? {
            0 => None,
            4 => Some(<[u8; 4]>::try_from(cursor.bytes(4)?).ok()?.into()),
            6 => Some(<[u8; 16]>::try_from(cursor.bytes(16)?).ok()?.into()),
            _ => return None,
        })
    };
    let from = ip(&mut cursor)??;
    let port = u16::from_be_bytes(cursor.bytes(2)?.try_into().ok()?);
    let to = ip(&mut cursor)?;
    Some(ForwardedDatagram {
        from: SocketAddr::new(from, port),
        to,
        ecn: cursor.byte()?,
        content: cursor.0.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_through_between_processes() {
        let mut message = Vec::new();
        let datagrams = [
            ("10.0.0.1:5", Some("10.0.0.2"), &b"content"[..]),
            ("[fe80::1]:700", Some("::2"), b""),
            ("[::1]:1", None, &[7; 1500]),
        ];
        let mut ends = Vec::new();
        for (from, to, content) in datagrams {
            let datagram = IncomingDatagram {
                from: from.parse().expect("an address"),
                to: to.map(|ip| ip.parse().expect("an address")),
                ecn: 3,
                content,
            };
            encode(&datagram, &mut message);
            ends.push(message.len());
        }
        let back: Vec<ForwardedDatagram> = decode_all(&message).collect();
        assert_eq!(back.len(), datagrams.len());
        for (back, (from, to, content)) in back.iter().zip(datagrams) {
            assert_eq!(back.from.to_string(), from);
            assert_eq!(back.to.map(|ip| ip.to_string()), to.map(str::to_owned));
            assert_eq!((back.ecn, &*back.content), (3, content));
        }
        for length in 0..message.len() {
            let whole = ends.iter().filter(|end| **end <= length).count();
            assert_eq!(decode_all(&message[..length]).count(), whole, "{length}");
        }
    }

    #[test]
    fn the_largest_datagram_has_room() {
        let mut message = Vec::new();
        let address = "[fe80::1]:700".parse().expect("an address");
        let content = vec![0; LARGEST_MESSAGE - LARGEST_HEAD];
        let datagram = IncomingDatagram {
            from: address,
            to: Some(address.ip()),
            ecn: 0,
            content: &content,
        };
        encode(&datagram, &mut message);
        assert_eq!(message.len(), LARGEST_MESSAGE);
        let back: Vec<usize> = decode_all(&message)
            .map(|back| back.content.len())
            .collect();
        assert_eq!(back, [content.len()]);
    }
}
