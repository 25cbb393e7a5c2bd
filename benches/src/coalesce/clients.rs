//! Clients that ask for one path at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::origin::{bytes_at, shift};

/// What one client got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// From the connection's start to the first byte.
    pub(crate) first_byte: Duration,
    /// And to the last.
    pub(crate) total: Duration,
    pub(crate) ended: Instant,
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

/// Lets them come; the answers of all but the first one, where that is ahead.
pub(crate) fn come(crowd: Crowd, port: u16, path: &str) -> Vec<Answer> {
    let (send, answers) = mpsc::channel();
    for index in 0..crowd.size {
        let is_first = index == 0 && crowd.ahead_ms > 0;
        let patience = match crowd.first_leaves_ms {
            Some(ms) if is_first => Duration::from_millis(ms),
            _ => PATIENCE,
        };
        let (send, path) = (send.clone(), path.to_owned());
        let client = move || {
            let answer = ask(port, &path, patience);
            // Who does not wait for the first one's answer has gone.
            let _ = send.send((is_first, answer));
        };
        if std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(client)
            .is_err()
        {
            eprintln!("no more threads for clients");
        }
        if is_first {
            std::thread::sleep(Duration::from_millis(crowd.ahead_ms));
        }
    }
    drop(send);
    answers
        .into_iter()
        .filter(|(is_first, _)| !is_first)
        .map(|(_, answer)| answer)
        .collect()
}

fn ask(port: u16, path: &str, patience: Duration) -> Answer {
    let began = Instant::now();
    let mut first_byte = None;
    let is_whole = read(port, path, began + patience, &mut first_byte).unwrap_or(false);
    Answer {
        first_byte: first_byte.unwrap_or_else(Instant::now) - began,
        total: began.elapsed(),
        ended: Instant::now(),
        is_whole,
    }
}

fn read(
    port: u16,
    path: &str,
    until: Instant,
    first_byte: &mut Option<Instant>,
) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut body = None;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut buffer)?;
        first_byte.get_or_insert_with(Instant::now);
        let mut data = &buffer[..count];
        if body.is_none() {
            head.extend_from_slice(data);
            let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else {
                if count == 0 {
                    return Ok(false);
                }
                continue;
            };
            body = Some(Body::of(path, &head[..end]));
            let rest = head.split_off(end + 4);
            if let Some(body) = &mut body {
                body.take(&rest);
            }
            data = &[];
        }
        let Some(body) = &mut body else { continue };
        body.take(data);
        if count == 0 || body.is_over() {
            return Ok(body.is_whole());
        }
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
