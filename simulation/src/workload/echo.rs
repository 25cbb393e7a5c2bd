//! What is behind `stream`: servers that give back what they get, and one that knows names.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rt::net::{SocketAddress, SocketListener, StreamSocket, UdpSocket};
use rt::simulation::{count_fault, network};

use super::ledger::WorkloadLedger;
use crate::chance::SeededChance;

/// What each byte is changed by, so that an echo is not what the proxy itself has sent.
pub(crate) const MASK: u8 = 0x55;
/// The ports of the servers.
pub(crate) const ECHO_PORTS: [u16; 2] = [9101, 9102];
pub(crate) const DATAGRAM_ECHO: u16 = 9103;
pub(crate) const NAME_SERVER: u16 = 9053;
const READ: usize = 16 * 1024;
/// The most bytes of a datagram here.
const DATAGRAM: usize = 4_096;

/// What comes back for this.
pub(crate) fn echoed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ MASK).collect()
}

/// Starts the servers on this loop.
pub(crate) fn start_echoes(ledger: &Arc<WorkloadLedger>, seed: u64) -> io::Result<()> {
    let mut seeds = SeededChance::new(seed);
    for port in ECHO_PORTS {
        let socket = SocketListener::from_fd(network::listen_at(local(port))?)?;
        rt::spawn(async move {
            while let Ok(stream) = socket.accept().await {
                rt::spawn(async move {
                    // A client that leaves is no matter of the server's.
                    let _ended = echo_stream(&stream).await;
                });
            }
        });
    }
    let server = PeerServer {
        ledger: Arc::clone(ledger),
        chance: SeededChance::new(seeds.number()),
    };
    let socket = UdpSocket::bind(&SocketAddress::Inet(local(DATAGRAM_ECHO)))?;
    rt::spawn(server.echo_datagrams(socket));
    let socket = UdpSocket::bind(&SocketAddress::Inet(local(NAME_SERVER)))?;
    let server = PeerServer {
        ledger: Arc::clone(ledger),
        chance: SeededChance::new(seeds.number()),
    };
    rt::spawn(server.answer_queries(socket));
    let listener = SocketListener::from_fd(network::listen_at(local(NAME_SERVER))?)?;
    rt::spawn(async move {
        while let Ok(stream) = listener.accept().await {
            rt::spawn(async move {
                let _ended = answer_over_stream(&stream).await;
            });
        }
    });
    Ok(())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn echo_stream(stream: &StreamSocket) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if stream.read_into(&mut bytes, READ).await? == 0 {
            return stream.shutdown_write();
        }
        stream.write_all(&echoed(&bytes)).await?;
    }
}

struct PeerServer {
    ledger: Arc<WorkloadLedger>,
    chance: SeededChance,
}

impl PeerServer {
    /// At times a server does not do what it should.
    fn is_moody(&mut self, times: usize) -> bool {
        let rests = self.ledger.state().origin_rests;
        self.ledger.origin_is_moody && !rests && self.chance.once_in(times)
    }

    async fn echo_datagrams(mut self, socket: UdpSocket) {
        let socket = Rc::new(socket);
        let mut buffer = vec![0; DATAGRAM];
        while let Ok((n, from)) = socket.recv_from(&mut buffer).await {
            if self.is_moody(10) {
                count_fault("origin is silent");
                continue;
            }
            let (own, answer) = (Rc::clone(&socket), echoed(&buffer[..n]));
            let pause = *self.chance.choose(&[0, 0, 3, 400]);
            rt::spawn(async move {
                rt::sleep(Duration::from_millis(pause)).await;
                // The proxy has ended the session.
                let _ = own.send_to(&answer, &from).await;
            });
        }
    }

    /// A server of names (RFC 1035): every name is the origin's address.
    async fn answer_queries(mut self, socket: UdpSocket) {
        let mut buffer = vec![0; DATAGRAM];
        while let Ok((n, from)) = socket.recv_from(&mut buffer).await {
            self.ledger.count("DNS queries");
            let is_truncated = self.chance.once_in(6);
            let mut answer = answer_to(&buffer[..n], is_truncated);
            if self.is_moody(8) {
                count_fault("DNS is silent");
                continue;
            }
            if self.is_moody(8) {
                count_fault("DNS fails");
                if let Some(code) = answer.get_mut(3) {
                    *code |= 2;
                }
            }
            // Such as anyone can send at any time: another address under another number.
            if self.chance.once_in(4) {
                count_fault("DNS answer is forged");
                let mut forged = answer_to(&buffer[..n], false);
                forged.iter_mut().take(2).for_each(|byte| *byte ^= 0xff);
                if let Some(last) = forged.last_mut() {
                    *last = 9;
                }
                let _ = socket.send_to(&forged, &from).await;
            }
            if self.is_moody(8) {
                count_fault("DNS answer is cut");
                answer.truncate(self.chance.below(answer.len().max(1)));
            }
            let _ = socket.send_to(&answer, &from).await;
        }
    }
}

/// Queries over TCP have their length in front.
async fn answer_over_stream(stream: &StreamSocket) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            let Some(query) = rest.get(..length) else {
                break;
            };
            let answer = answer_to(query, false);
            let framed = [&(answer.len() as u16).to_be_bytes(), &answer[..]].concat();
            bytes.drain(..2 + length);
            stream.write_all(&framed).await?;
        }
        if stream.read_into(&mut bytes, READ).await? == 0 {
            return Ok(());
        }
    }
}

/// The answer to a query: the question as it is, and an address. `is_truncated`: only that there is more.
fn answer_to(query: &[u8], is_truncated: bool) -> Vec<u8> {
    let (Some(id), Some(rest)) = (query.get(..2), query.get(12..)) else {
        return Vec::new();
    };
    // The name ends with an empty label; then type and class.
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .map_or(0, |at| at + 5);
    let question = rest.get(..end).unwrap_or_default();
    let is_ipv4 = question.len() >= 4 && question[question.len() - 4..] == [0, 1, 0, 1];
    let answers = u8::from(is_ipv4 && !is_truncated);
    let flags = if is_truncated { 0x83 } else { 0x81 };
    let mut answer = [id, &[flags, 0x80, 0, 1, 0, answers, 0, 0, 0, 0], question].concat();
    if answers > 0 {
        // The name again, A, IN, for two seconds, four bytes.
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 2, 0, 4, 127, 0, 0, 1]);
    }
    answer
}
