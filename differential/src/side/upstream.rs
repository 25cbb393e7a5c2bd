//! A server behind: it answers as the case says, and notes what it received.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::case::fill::Places;
use crate::case::{Act, Protocol, Upstream};

use super::{dns, gateway, grpc};

/// A request as a server behind saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The head of HTTP, or parameters as lines `NAME=value`, or the line of memcached.
    pub head: Vec<u8>,
    /// The content, with its chunks joined.
    pub body: Vec<u8>,
    /// How the content was framed, in the protocol's words.
    pub framing: &'static str,
    /// True for the first request of its connection.
    pub fresh: bool,
    /// True when the connection ended within it.
    pub cut: bool,
}

/// A server behind that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Behind {
    shared: Arc<Shared>,
    port: u16,
    address: &'static str,
    thread: Option<JoinHandle<()>>,
    protocol: Protocol,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    came: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    received: Vec<Received>,
    open: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Shared {
    /// A thread that panicked has its case fail by what it did not send; the others go on.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Notes a request and says how many there were before.
    fn note(&self, received: Received) -> usize {
        let mut state = self.state();
        state.received.push(received);
        self.came.notify_all();
        state.received.len() - 1
    }
}

impl Behind {
    /// Listens at the place of the case's server behind of this number. One without answers does not listen.
    pub fn start(upstream: &Upstream, index: usize, places: &Places) -> Result<Behind, String> {
        let port = places.upstreams.get(index).copied().unwrap_or(0);
        let shared = Arc::new(Shared::default());
        let mut behind = Behind {
            shared: Arc::clone(&shared),
            port,
            address: places.address,
            thread: None,
            protocol: upstream.protocol,
        };
        if upstream.answers.is_empty() {
            return Ok(behind);
        }
        let failed = |error: std::io::Error| format!("{}:{port}: {error}", places.address);
        let script = Script {
            upstream: upstream.clone(),
            places: places.clone(),
            shared,
        };
        behind.thread = Some(if takes_datagrams(upstream.protocol) {
            let socket = UdpSocket::bind((places.address, port)).map_err(failed)?;
            std::thread::spawn(move || match script.upstream.protocol {
                Protocol::Dns => script.names(&socket),
                _ => script.datagrams(&socket),
            })
        } else {
            let listener = TcpListener::bind((places.address, port)).map_err(failed)?;
            std::thread::spawn(move || script.accept(&listener))
        });
        Ok(behind)
    }

    /// Waits until this many requests have come; false when they did not.
    pub fn await_requests(&self, count: usize, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.state();
        while state.received.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = match self.shared.came.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }

    /// Ends it and gives what it received.
    pub fn stop(mut self) -> Vec<Received> {
        self.end();
        std::mem::take(&mut self.shared.state().received)
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // It waits for a connection: this is one.
        if takes_datagrams(self.protocol) {
            let waker = UdpSocket::bind((self.address, 0));
            let _ = waker.and_then(|socket| socket.send_to(b"", (self.address, self.port)));
        } else {
            let _ = TcpStream::connect((self.address, self.port));
        }
        let _ = thread.join();
        let (open, threads) = {
            let mut state = self.shared.state();
            (
                std::mem::take(&mut state.open),
                std::mem::take(&mut state.threads),
            )
        };
        for stream in open {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.end();
    }
}

fn takes_datagrams(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Udp | Protocol::Dns)
}

#[derive(Clone)]
struct Script {
    upstream: Upstream,
    places: Places,
    shared: Arc<Shared>,
}

/// What happens to the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Stay,
    Leave,
}

impl Script {
    fn accept(self, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.shared.stop.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let _ = stream.set_nodelay(true);
            let Ok(copy) = stream.try_clone() else {
                continue;
            };
            let script = self.clone();
            let thread = std::thread::spawn(move || script.serve(stream));
            let mut state = self.shared.state();
            state.open.push(copy);
            state.threads.push(thread);
        }
    }

    fn serve(&self, stream: TcpStream) {
        let mut wire = Wire {
            stream,
            bytes: Vec::new(),
        };
        let protocol = self.upstream.protocol;
        let mut frames = (protocol == Protocol::Grpc).then(grpc::Connection::default);
        let mut fresh = true;
        loop {
            let read = match &mut frames {
                Some(frames) => frames.read(&mut wire),
                None => gateway::read(protocol, &mut wire),
            };
            let Some(mut received) = read else {
                return;
            };
            received.fresh = std::mem::take(&mut fresh);
            let cut = received.cut;
            // FastCGI says with each request whether the connection stays.
            let closes = received.framing == "close";
            let number = self.shared.note(received);
            if cut || self.answer(number, &mut wire, frames.as_mut()) == After::Leave || closes {
                let _ = wire.stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    fn acts(&self, number: usize) -> &[Act] {
        let answers = &self.upstream.answers;
        answers
            .get(number)
            .or(answers.last())
            .map_or(&[], Vec::as_slice)
    }

    fn answer(
        &self,
        number: usize,
        wire: &mut Wire,
        mut frames: Option<&mut grpc::Connection>,
    ) -> After {
        let protocol = self.upstream.protocol;
        for act in self.acts(number) {
            match act {
                Act::Send(content) => {
                    let bytes = self.places.fill(&content.bytes());
                    match &mut frames {
                        Some(frames) => frames.send(wire, &bytes),
                        None => wire.send(&gateway::wrap(protocol, &bytes)),
                    }
                }
                // Time is what this act is for.
                Act::Pause(time) => std::thread::sleep(Duration::from_millis((*time).min(5_000))),
                Act::Close => return After::Leave,
                Act::Reset => {
                    let _ = set_socket_linger(&wire.stream, Some(Duration::ZERO));
                    self.forget(&wire.stream);
                    return After::Leave;
                }
                Act::Silence => {
                    while wire.more() {}
                    return After::Leave;
                }
            }
        }
        wire.send(gateway::end(protocol));
        match gateway::stays(protocol) {
            true => After::Stay,
            false => After::Leave,
        }
    }

    /// Drops the copy of a connection, since only the last close of it is a reset.
    fn forget(&self, stream: &TcpStream) {
        let peer = stream.peer_addr().ok();
        let mut state = self.shared.state();
        state.open.retain(|open| open.peer_addr().ok() != peer);
    }

    fn datagrams(self, socket: &UdpSocket) {
        let mut buffer = [0; 65536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            if self.shared.stop.load(Ordering::SeqCst) {
                return;
            }
            let number = self.shared.note(Received {
                body: buffer[..count].to_vec(),
                ..Received::default()
            });
            for act in self.acts(number) {
                match act {
                    Act::Send(content) => {
                        let bytes = self.places.fill(&content.bytes());
                        let _ = socket.send_to(&bytes, from);
                    }
                    Act::Pause(time) => {
                        std::thread::sleep(Duration::from_millis((*time).min(5_000)));
                    }
                    Act::Close | Act::Reset | Act::Silence => break,
                }
            }
        }
    }

    /// Answers queries from the zone; without one it says nothing.
    fn names(self, socket: &UdpSocket) {
        let mut buffer = [0; 65536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            if self.shared.stop.load(Ordering::SeqCst) {
                return;
            }
            let Some(asked) = dns::question(&buffer[..count]) else {
                continue;
            };
            // Not noted: how often a name is asked for is no promise.
            if let Some(Act::Send(zone)) = self.acts(0).first() {
                let zone = self.places.text(&String::from_utf8_lossy(&zone.bytes()));
                let answer = asked.answer(&zone);
                let _ = socket.send_to(&answer.unwrap_or_default(), from);
            }
        }
    }
}

/// A connection with what was read of it and not used.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    /// What was received and not taken.
    pub bytes: Vec<u8>,
}

impl Wire {
    /// Reads more; false at the end.
    pub fn more(&mut self) -> bool {
        let mut buffer = [0; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.bytes.extend_from_slice(&buffer[..count]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Sends bytes; the server before may have left.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Takes this many bytes from the front; `None` when the connection ends before.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.bytes.len() < count {
            if !self.more() {
                return None;
            }
        }
        Some(self.bytes.drain(..count).collect())
    }

    /// Takes what stands before and in `end`; `None` when the connection ends before.
    pub fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = crate::case::fill::find(&self.bytes, end) {
                return Some(self.bytes.drain(..at + end.len()).collect());
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// Takes all that is there.
    pub fn all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
