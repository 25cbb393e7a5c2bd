//! Clients that share one thread. A thread for each of 50 clients keeps the machine's two cores so crowded that the
//! kernel's own threads, which finish what the disk has read, wait tens of milliseconds for their turn: the disk then
//! looks idle whatever the server does.

use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clients::Visit;

/// No client waits longer than this after the time is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is read at a time.
const BUFFER: usize = 64 << 10;

/// A client with a request under way.
struct Client {
    stream: TcpStream,
    asked: Instant,
    head: Vec<u8>,
    /// Bytes of the body that are to come, once the head is there.
    left: Option<u64>,
}

impl Client {
    fn connect(port: u16, request: &[u8]) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut client = Self {
            stream,
            asked: Instant::now(),
            head: Vec::new(),
            left: None,
        };
        client.ask(request)?;
        Ok(client)
    }

    /// A request is small: the socket takes it whole.
    fn ask(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.asked = Instant::now();
        self.head.clear();
        self.left = None;
        (&self.stream).write_all(request)
    }

    /// Reads once; gives whether the answer is whole.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<bool> {
        let count = match (&self.stream).read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let left = match self.left {
            Some(left) => left.saturating_sub(count as u64),
            None => {
                self.head.extend_from_slice(&buffer[..count]);
                let Some((head, length)) = head(&self.head)? else {
                    return Ok(false);
                };
                length.saturating_sub((self.head.len() - head) as u64)
            }
        };
        self.left = Some(left);
        Ok(left == 0)
    }
}

/// The lengths of head and body, once the head is whole.
fn head(bytes: &[u8]) -> std::io::Result<Option<(usize, u64)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|value| value.trim().parse().ok());
    match length {
        Some(length) if text.starts_with("http/1.1 200") => Ok(Some((end + 4, length))),
        _ => Err(Error::other(text)),
    }
}

/// Each client asks again and again on a connection of its own until the time is over, for something whose length the
/// answer says; its last request ends after that.
pub(crate) fn visits(port: u16, path: &str, clients: u32, time: Duration) -> Vec<Visit> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let connect = || Client::connect(port, request.as_bytes()).ok();
    let mut crowd: Vec<Client> = (0..clients).filter_map(|_| connect()).collect();
    let (mut visits, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    let began = Instant::now();
    let step = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    while !crowd.is_empty() && began.elapsed() < time + PATIENCE {
        let mut places: Vec<_> = crowd
            .iter()
            .map(|client| PollFd::new(&client.stream, PollFlags::IN))
            .collect();
        // An interrupted wait is one without events.
        let _ = poll(&mut places, Some(&step));
        let ready: Vec<bool> = places.iter().map(|at| !at.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        crowd.retain_mut(|client| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            let outcome = client.read(&mut buffer);
            if matches!(outcome, Ok(false)) {
                return true;
            }
            visits.push(Visit {
                at: began.elapsed(),
                took: client.asked.elapsed(),
                is_whole: outcome.is_ok(),
            });
            if began.elapsed() >= time {
                return false;
            }
            if outcome.is_ok() && client.ask(request.as_bytes()).is_ok() {
                return true;
            }
            connect().map(|new| *client = new).is_some()
        });
    }
    visits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_how_long_the_body_is() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nab";
        assert_eq!(head(text).ok(), Some(Some((text.len() - 2, 12))));
        assert_eq!(head(&text[..20]).ok(), Some(None));
        assert!(head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n").is_err());
    }
}
