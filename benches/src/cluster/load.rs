//! Clients that ask again and again, by a script, and keep their connections. They share one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client does next.
pub(crate) enum ClientStep {
    /// It asks.
    Ask(AskedPath),
    /// It does nothing until then.
    Pause(Instant),
    /// It leaves.
    Leave,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct AskedPath {
    pub(crate) method: &'static str,
    pub(crate) port: u16,
    pub(crate) path: String,
    /// What the script has to remember of it.
    pub(crate) note: u64,
}

impl AskedPath {
    pub(crate) fn get(port: u16, path: String) -> AskedPath {
        AskedPath {
            method: "GET",
            port,
            path,
            note: 0,
        }
    }
}

/// What came of it.
pub(crate) struct CameBack<'a> {
    pub(crate) asked: &'a AskedPath,
    /// 0: there was no whole answer.
    pub(crate) status: u16,
    pub(crate) head: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) took: Duration,
}

/// What the clients do, and what becomes of it.
pub(crate) trait LoadScript {
    fn next(&mut self, client: usize, now: Instant) -> ClientStep;
    fn note(&mut self, client: usize, came: &CameBack<'_>);
}

/// A client.
struct LoadClient {
    stream: Option<(u16, TcpStream)>,
    state: ClientState,
    input: Vec<u8>,
}

enum ClientState {
    Pausing(Instant),
    Waiting(AskedPath, Instant),
    Gone,
}

/// Runs the script until all clients have left.
pub(crate) fn run_script(clients: usize, script: &mut impl LoadScript) -> Result<(), String> {
    let text = |error: rustix::io::Errno| error.to_string();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(text)?;
    let now = Instant::now();
    let client = |_| LoadClient {
        stream: None,
        state: ClientState::Pausing(now),
        input: Vec::new(),
    };
    let mut all: Vec<LoadClient> = (0..clients).map(client).collect();
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let now = Instant::now();
        let mut soonest: Option<Instant> = None;
        for (number, client) in all.iter_mut().enumerate() {
            let due = client.go_on(number, now, &epoll, script);
            soonest = soonest.into_iter().chain(due).min();
        }
        let Some(soonest) = soonest else {
            return Ok(());
        };
        let left = soonest.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let room = rustix::buffer::spare_capacity(&mut events);
        // An interrupted wait is one without events.
        let _ = epoll::wait(&epoll, room, Some(&left));
        for event in events.drain(..) {
            let number = event.data.u64() as usize;
            all[number].read(number, &mut buffer, script);
        }
    }
}

impl LoadClient {
    /// Does what is due; when the next thing is. `None`: it has left.
    fn go_on(
        &mut self,
        number: usize,
        now: Instant,
        epoll: &OwnedFd,
        script: &mut impl LoadScript,
    ) -> Option<Instant> {
        loop {
            match &self.state {
                ClientState::Gone => return None,
                ClientState::Pausing(until) if *until > now => return Some(*until),
                ClientState::Waiting(_, began) if *began + PATIENCE > now => {
                    return Some(*began + PATIENCE);
                }
                ClientState::Waiting(..) => self.end(number, 0, 0, script),
                ClientState::Pausing(_) => match script.next(number, now) {
                    ClientStep::Leave => {
                        self.stream = None;
                        self.state = ClientState::Gone;
                    }
                    ClientStep::Pause(until) => {
                        self.state =
                            ClientState::Pausing(until.max(now + Duration::from_micros(1)));
                    }
                    ClientStep::Ask(asked) => {
                        let sent = self.send(number, &asked, epoll);
                        self.state = ClientState::Waiting(asked, Instant::now());
                        if sent.is_err() {
                            self.end(number, 0, 0, script);
                            // A server that is away is not asked in a tight loop.
                            self.state = ClientState::Pausing(now + Duration::from_millis(5));
                        }
                    }
                },
            }
        }
    }

    fn send(&mut self, number: usize, asked: &AskedPath, epoll: &OwnedFd) -> std::io::Result<()> {
        self.input.clear();
        if self
            .stream
            .as_ref()
            .is_none_or(|(port, _)| *port != asked.port)
        {
            let stream = TcpStream::connect(("127.0.0.1", asked.port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(epoll, &stream, data, epoll::EventFlags::IN)?;
            self.stream = Some((asked.port, stream));
        }
        let (method, path) = (asked.method, &asked.path);
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        match &mut self.stream {
            Some((_, stream)) => stream.write_all(text.as_bytes()),
            None => Ok(()),
        }
    }

    fn read(&mut self, number: usize, buffer: &mut [u8], script: &mut impl LoadScript) {
        let Some((_, stream)) = &mut self.stream else {
            return;
        };
        let count = match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            count => count.unwrap_or(0),
        };
        self.input.extend_from_slice(&buffer[..count]);
        if !matches!(self.state, ClientState::Waiting(..)) {
            // The server has closed a connection that was idle.
            self.stream = None;
            return;
        }
        if count == 0 {
            return self.end(number, 0, 0, script);
        }
        let Some(end) = self.input.windows(4).position(|four| four == b"\r\n\r\n") else {
            return;
        };
        let head = String::from_utf8_lossy(&self.input[..end]).to_ascii_lowercase();
        let length = field(&head, "content-length").and_then(|text| text.parse::<usize>().ok());
        if self.input.len() < end + 4 + length.unwrap_or(0) {
            return;
        }
        let status = head.get(9..12).and_then(|text| text.parse().ok());
        self.end(number, status.unwrap_or(0), end + 4, script);
    }

    /// Notes an answer, or that there is none, and is ready for the next step.
    fn end(&mut self, number: usize, status: u16, body: usize, script: &mut impl LoadScript) {
        let now = Instant::now();
        let ended = std::mem::replace(&mut self.state, ClientState::Pausing(now));
        let ClientState::Waiting(asked, began) = ended else {
            return;
        };
        let head = String::from_utf8_lossy(&self.input[..body]).to_ascii_lowercase();
        if status == 0 || field(&head, "connection").is_some_and(|value| value == "close") {
            self.stream = None;
        }
        let came = CameBack {
            asked: &asked,
            status,
            head: &head,
            body: &self.input[body..],
            took: now - began,
        };
        script.note(number, &came);
    }
}

/// A field of a head in small letters.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field == name).then(|| value.trim())
    })
}
