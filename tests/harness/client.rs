//! A client that sends the bytes it is given and shows the bytes it gets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::reply::{Reply, parse};
use crate::wait::PATIENCE;

/// A connection to the server. Every read and write is bounded by [`PATIENCE`].
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// What was received and not yet taken as a reply.
    received: Vec<u8>,
    closed: bool,
}

impl Connection {
    /// A conversation on this connection.
    pub fn new(stream: TcpStream) -> Self {
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("the bound is not zero");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("the bound is not zero");
        stream
            .set_nodelay(true)
            .expect("a TCP socket has this option");
        Self {
            stream,
            received: Vec::new(),
            closed: false,
        }
    }

    /// Sends bytes as they are. A server that closed already is no error here: its answer,
    /// if there is one, is still to be read.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        match self.stream.write_all(bytes.as_ref()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("the server reads nothing")
            }
            _ => {}
        }
    }

    /// Sends bytes one by one, each in a segment of its own.
    pub fn send_slowly(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.send([*byte]);
        }
    }

    /// Sends a request head with `Host: localhost` and these lines.
    pub fn request(&mut self, method: &str, target: &str, lines: &[&str]) {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
        for line in lines {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        self.send(head);
    }

    /// Sends a `GET` and reads the answer; the connection stays open.
    pub fn get(&mut self, target: &str) -> Reply {
        self.request("GET", target, &[]);
        self.reply()
    }

    /// Reads one answer to a `GET` or `POST`.
    pub fn reply(&mut self) -> Reply {
        self.reply_to("GET")
    }

    /// Reads one answer to this method: an answer to `HEAD` has no body.
    pub fn reply_to(&mut self, method: &str) -> Reply {
        match self.next_reply(method) {
            Some(reply) => reply,
            None => panic!(
                "closed without an answer, after {:?}",
                String::from_utf8_lossy(&self.received)
            ),
        }
    }

    /// Reads one answer, or sees the server close without one.
    pub fn reply_or_closed(&mut self) -> Option<Reply> {
        let reply = self.next_reply("GET");
        assert!(
            reply.is_some() || self.received.is_empty(),
            "cut: {:?}",
            String::from_utf8_lossy(&self.received)
        );
        reply
    }

    fn next_reply(&mut self, method: &str) -> Option<Reply> {
        loop {
            if let Some((reply, used)) = parse(&self.received, method, self.closed) {
                self.received.drain(..used);
                return Some(reply);
            }
            if self.closed {
                return None;
            }
            self.receive();
        }
    }

    /// Reads everything until the server closes.
    pub fn rest(&mut self) -> Vec<u8> {
        while !self.closed {
            self.receive();
        }
        std::mem::take(&mut self.received)
    }

    /// Reads until at least this many bytes are there, and returns what is there.
    pub fn at_least(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count && !self.closed {
            self.receive();
        }
        std::mem::take(&mut self.received)
    }

    /// Waits for the server to close, and fails when it sends something before.
    pub fn assert_closed(&mut self) {
        let rest = self.rest();
        assert!(
            rest.is_empty(),
            "expected a close, got {:?}",
            String::from_utf8_lossy(&rest)
        );
    }

    /// True when the server neither closed nor sent anything within this time.
    pub fn is_quiet_for(&mut self, time: Duration) -> bool {
        self.stream
            .set_read_timeout(Some(time))
            .expect("the time is not zero");
        let mut byte = [0];
        let quiet = matches!(self.stream.peek(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.stream
            .set_read_timeout(Some(PATIENCE))
            .expect("the bound is not zero");
        quiet
    }

    /// Says that we send no more; reading goes on.
    pub fn half_close(&mut self) {
        // The server may have closed first.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Our own address, as the server sees it.
    pub fn local_port(&self) -> u16 {
        self.stream
            .local_addr()
            .expect("a connected socket has an address")
            .port()
    }

    /// A reset counts as a close: a server that refuses what we still send may answer with one.
    fn receive(&mut self) {
        let mut buffer = [0; 65536];
        let read = match self.stream.read(&mut buffer) {
            // Once more: when the machine stood still, the server had no time either.
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.stream.read(&mut buffer),
            read => read,
        };
        match read {
            Ok(0) => self.closed = true,
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.closed = true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!(
                "{error}, after {:?}",
                String::from_utf8_lossy(&self.received)
            ),
        }
    }
}
