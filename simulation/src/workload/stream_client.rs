//! Clients of `stream`: what they send comes back, changed in a way that only the servers behind know.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rt::net::{SocketAddress, StreamSocket, UdpSocket};
use rt::simulation::{clock, count_fault};

use super::client::SimulatedClient;
use super::echo::{MASK, echoed};

/// The ports of `stream`: TCP, TCP through TLS, and two for datagrams.
pub(crate) const STREAM_PORTS: [u16; 2] = [8081, 8085];
pub(crate) const DATAGRAM_PORTS: [u16; 2] = [8082, 8086];
/// How much is read at a time.
const READ: usize = 16 * 1024;
const LENGTHS: [usize; 6] = [0, 1, 700, 5_000, 40_000, 200_000];
/// After the last byte, the end comes sooner, in nanoseconds: the session would time out after 10 s.
const END_WAIT: u64 = 8_000_000_000;
/// How long a client waits for answers to its datagrams, in calm weather and otherwise.
const ANSWER_WAIT: Duration = Duration::from_secs(8);

impl SimulatedClient {
    /// A connection whose bytes come back.
    pub(super) async fn pass_through_stream(&mut self) -> io::Result<()> {
        let port = *self.chance.choose(&STREAM_PORTS);
        let address = SocketAddr::new(self.plan.server.ip(), port);
        let socket = Rc::new(StreamSocket::connect(&SocketAddress::Inet(address)).await?);
        let mut bytes = vec![0; *self.chance.choose(&LENGTHS)];
        for eight in bytes.chunks_mut(8) {
            let number = self.chance.number().to_le_bytes();
            eight.copy_from_slice(&number[..eight.len()]);
        }
        let bytes = Rc::new(bytes);
        let piece = 1 + self.chance.below(20_000);
        let (own, content) = (Rc::clone(&socket), Rc::clone(&bytes));
        let writer = async move {
            for piece in content.chunks(piece) {
                own.write_all(piece).await?;
            }
            count_fault("half-close");
            own.shutdown_write()
        };
        let _writer = rt::spawn_handle("stream client", async move {
            // What could not be sent does not come back.
            let _ = writer.await;
        })
        .abort_on_drop();
        let leaves_at = (!self.plan.is_calm && self.chance.once_in(8) && !self.cuts.has("leaves"))
            .then(|| self.chance.below(1 + bytes.len()));
        let mut back = Vec::new();
        let mut heard_at = clock::nanos();
        loop {
            let n = socket.read_into(&mut back, READ).await?;
            if leaves_at.is_some_and(|at| back.len() > at) {
                count_fault("client leaves");
                return Ok(());
            }
            if n == 0 {
                break;
            }
            heard_at = clock::nanos();
        }
        self.ledger.count("stream sessions");
        let is_right = bytes
            .iter()
            .zip(&back)
            .all(|(sent, got)| *sent ^ MASK == *got);
        if !is_right || back.len() > bytes.len() {
            self.ledger
                .violate(format!("W16: wrong bytes came back by port {port}"));
        }
        if self.plan.is_calm && clock::nanos() > heard_at + END_WAIT {
            self.ledger
                .violate(format!("W16: the end did not come back by port {port}"));
        }
        if self.plan.is_calm && back.len() < bytes.len() {
            let (got, all) = (back.len(), bytes.len());
            self.ledger.violate(format!(
                "W16: {got} of {all} bytes came back by port {port}"
            ));
        }
        Ok(())
    }

    /// A few datagrams, and their answers.
    pub(super) async fn exchange_datagrams(&mut self) -> io::Result<()> {
        let port = *self.chance.choose(&DATAGRAM_PORTS);
        let address = SocketAddr::new(self.plan.server.ip(), port);
        let socket = UdpSocket::connect(&SocketAddress::Inet(address))?;
        // By the answers that they must have.
        let mut open = BTreeMap::new();
        for _ in 0..1 + self.chance.below(6) {
            let mut datagram = self.chance.number().to_le_bytes().to_vec();
            datagram.resize(8 + self.chance.below(1_300), 7);
            open.insert(echoed(&datagram), false);
            socket.send(&datagram).await?;
            self.ledger.count("datagrams sent");
            if self.chance.once_in(2) {
                rt::sleep(Duration::from_millis(self.chance.below(200) as u64)).await;
            }
        }
        let mut buffer = vec![0; 2_000];
        while open.values().any(|is_answered| !is_answered) {
            let received = rt::timeout(ANSWER_WAIT, socket.recv(&mut buffer)).await;
            let n = match received {
                Ok(Ok(n)) => n,
                // Nobody listens there: the server is being started again.
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Ok(Err(error)) => return Err(error),
                Err(rt::Elapsed) => break,
            };
            match open.get_mut(&buffer[..n]) {
                Some(is_answered) => {
                    if !*is_answered {
                        self.ledger.count("datagrams answered");
                    }
                    *is_answered = true;
                }
                None => self.ledger.violate(format!(
                    "W16: a datagram of {n} bytes came back by port {port} that answers none"
                )),
            }
        }
        let missing = open.values().filter(|is_answered| !**is_answered).count();
        if self.plan.is_calm && missing > 0 {
            self.ledger.violate(format!(
                "W16: {missing} datagrams to port {port} were not answered"
            ));
        }
        Ok(())
    }
}
