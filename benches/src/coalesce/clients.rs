//! Clients that ask for one path at once. They share one thread: a thread for each of a thousand clients would take more
//! of the two cores while the answer goes out than the server does.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use super::origin::{bytes_at, shift};

/// What one client got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// From the connection's start to the first byte.
    pub(crate) first_byte: Duration,
    /// And to the last.
    pub(crate) total: Duration,
    pub(crate) ended: Instant,
    /// The longest time without a byte, from the first byte on.
    pub(crate) stall: Duration,
    /// All of it came, and every byte was right.
    pub(crate) is_whole: bool,
}

/// How the clients come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    pub(crate) size: usize,
    /// How far the first is ahead; 0: all at once.
    pub(crate) ahead_ms: u64,
    /// The first leaves after so long.
    pub(crate) first_leaves_ms: Option<u64>,
}

/// How long a client waits at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// Clients that connect between two looks at what has come for the others.
const CONNECTS: usize = 16;
/// What is read at a time.
const BUFFER: usize = 64 << 10;

/// Lets them come; the answers of all but the first one, where that is ahead.
pub(crate) fn come(crowd: Crowd, port: u16, path: &str) -> Vec<Answer> {
    come_to(crowd, &[port], path)
}

/// Lets them come to several servers, in turn.
pub(crate) fn come_to(crowd: Crowd, ports: &[u16], path: &str) -> Vec<Answer> {
    let mut clients = match Clients::new(ports, path) {
        Ok(clients) => clients,
        Err(error) => {
            eprintln!("no clients: {error}");
            return Vec::new();
        }
    };
    for index in 0..crowd.size {
        let is_first = index == 0 && crowd.ahead_ms > 0;
        let patience = match crowd.first_leaves_ms {
            Some(ms) if is_first => Duration::from_millis(ms),
            _ => PATIENCE,
        };
        clients.come(patience);
        if is_first {
            let others_come = Instant::now() + Duration::from_millis(crowd.ahead_ms);
            clients.read_until(others_come);
            std::thread::sleep(others_come.saturating_duration_since(Instant::now()));
        } else if index % CONNECTS == 0 {
            clients.read_until(Instant::now());
        }
    }
    while clients.waiting.iter().any(Option::is_some) {
        clients.read_until(Instant::now() + PATIENCE);
    }
    // Who is ahead is not one of those who are measured.
    let measured = usize::from(crowd.ahead_ms > 0)..;
    clients.answers.get(measured).unwrap_or_default().to_vec()
}

struct Clients {
    epoll: OwnedFd,
    ports: Vec<u16>,
    path: String,
    /// Those who wait, by their number.
    waiting: Vec<Option<Client>>,
    /// By the same number.
    answers: Vec<Answer>,
    buffer: Vec<u8>,
}

/// A client that waits for its answer, or for more of it.
struct Client {
    stream: TcpStream,
    began: Instant,
    until: Instant,
    first_byte: Option<Instant>,
    last_byte: Option<Instant>,
    stall: Duration,
    head: Vec<u8>,
    body: Option<Body>,
}

impl Clients {
    fn new(ports: &[u16], path: &str) -> std::io::Result<Clients> {
        Ok(Clients {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            ports: ports.to_vec(),
            path: path.to_owned(),
            waiting: Vec::new(),
            answers: Vec::new(),
            buffer: vec![0; BUFFER],
        })
    }

    /// One more connects and asks.
    fn come(&mut self, patience: Duration) {
        let began = Instant::now();
        let client = self.connect(began, began + patience);
        if let Err(error) = &client {
            eprintln!("a client can not connect: {error}");
        }
        self.waiting.push(client.ok());
        self.answers.push(Answer {
            first_byte: Duration::ZERO,
            total: Duration::ZERO,
            ended: began,
            stall: Duration::ZERO,
            is_whole: false,
        });
    }

    fn connect(&self, began: Instant, until: Instant) -> std::io::Result<Client> {
        let port = self.ports[self.waiting.len() % self.ports.len()];
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        let path = &self.path;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        stream.set_nonblocking(true)?;
        let number = epoll::EventData::new_u64(self.waiting.len() as u64);
        epoll::add(&self.epoll, &stream, number, epoll::EventFlags::IN)?;
        Ok(Client {
            stream,
            began,
            until,
            first_byte: None,
            last_byte: None,
            stall: Duration::ZERO,
            head: Vec::new(),
            body: None,
        })
    }

    /// Reads what comes until this time, at least once, or until nobody's time is left.
    fn read_until(&mut self, until: Instant) {
        let mut events = Vec::with_capacity(256);
        loop {
            let patience = self.waiting.iter().flatten().map(|client| client.until);
            let soonest = patience.min().unwrap_or(until).min(until);
            let left = soonest.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            // An interrupted wait is one without events.
            let room = rustix::buffer::spare_capacity(&mut events);
            let _ = epoll::wait(&self.epoll, room, Some(&left));
            for event in events.drain(..) {
                self.read(event.data.u64() as usize);
            }
            let now = Instant::now();
            for number in 0..self.waiting.len() {
                let waits = self.waiting[number].as_ref();
                if waits.is_some_and(|client| client.until <= now) {
                    self.end(number, false);
                }
            }
            if now >= until || self.waiting.iter().all(Option::is_none) {
                return;
            }
        }
    }

    /// Reads once for this client.
    fn read(&mut self, number: usize) {
        let Some(client) = self.waiting.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        match client.read(&self.path, &mut self.buffer) {
            Ok(None) => {}
            Ok(Some(is_whole)) => self.end(number, is_whole),
            Err(_) => self.end(number, false),
        }
    }

    fn end(&mut self, number: usize, is_whole: bool) {
        let Some(client) = self.waiting[number].take() else {
            return;
        };
        let now = Instant::now();
        self.answers[number] = Answer {
            first_byte: client.first_byte.unwrap_or(now) - client.began,
            total: now - client.began,
            ended: now,
            stall: client.stall,
            is_whole,
        };
    }
}

impl Client {
    /// Reads once; at the end, whether all of it came and was right.
    fn read(&mut self, path: &str, buffer: &mut [u8]) -> std::io::Result<Option<bool>> {
        let count = match self.stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            count => count?,
        };
        let now = Instant::now();
        self.first_byte.get_or_insert(now);
        if let Some(last) = self.last_byte.replace(now) {
            self.stall = self.stall.max(now - last);
        }
        match &mut self.body {
            Some(body) => body.take(&buffer[..count]),
            None => {
                self.head.extend_from_slice(&buffer[..count]);
                let end = self.head.windows(4).position(|four| four == b"\r\n\r\n");
                let Some(end) = end else {
                    return match count {
                        0 => Err(Error::from(ErrorKind::UnexpectedEof)),
                        _ => Ok(None),
                    };
                };
                let mut body = Body::of(path, &self.head[..end]);
                body.take(&self.head[end + 4..]);
                self.body = Some(body);
            }
        }
        let over = self
            .body
            .as_ref()
            .filter(|body| count == 0 || body.is_over());
        Ok(over.map(Body::is_whole))
    }
}

/// The body of a response of known length.
struct Body {
    is_ok: bool,
    length: usize,
    position: usize,
    shift: usize,
}

impl Body {
    fn of(path: &str, head: &[u8]) -> Body {
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        Body {
            is_ok: head.starts_with("http/1.1 200"),
            length: length
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(usize::MAX),
            position: 0,
            shift: shift(path),
        }
    }

    fn take(&mut self, data: &[u8]) {
        let right = bytes_at(self.position + self.shift)
            .get(..data.len())
            .is_some_and(|expected| expected == data);
        self.is_ok &= right;
        self.position += data.len();
    }

    fn is_over(&self) -> bool {
        self.position >= self.length
    }

    fn is_whole(&self) -> bool {
        self.is_ok && self.position == self.length
    }
}
