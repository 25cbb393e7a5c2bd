//! An origin that takes whatever it is sent, and answers each GET with a megabyte, as fast as that is read.

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

use rustix::event::epoll::{self, EventData, EventFlags};

/// The length of its responses.
pub(super) const BODY: usize = 1 << 20;

/// How many events are taken at a time.
const EVENTS: usize = 256;

struct Client {
    stream: TcpStream,
    head: Vec<u8>,
    /// What has been sent of the response; `None` before there is a request.
    sent: Option<usize>,
}

/// Starts it on a thread that ends with the process; the port.
pub(super) fn start() -> Result<u16, String> {
    let told = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").map_err(told)?;
    let port = listener.local_addr().map_err(told)?.port();
    listener.set_nonblocking(true).map_err(told)?;
    std::thread::spawn(move || {
        if let Err(error) = serve(&listener) {
            eprintln!("the origin has ended: {error}");
        }
    });
    Ok(port)
}

fn serve(listener: &TcpListener) -> std::io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, listener, EventData::new_u64(0), EventFlags::IN)?;
    let mut response =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\nCache-Control: max-age=600\r\n\r\n")
            .into_bytes();
    response.resize(response.len() + BODY, b'x');
    let mut clients: HashMap<u64, Client> = HashMap::new();
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            ended => ended?,
        };
        for event in &events {
            let key = event.data.u64();
            let Some(client) = clients.get_mut(&key) else {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    let key = stream.as_raw_fd() as u64;
                    let interest = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
                    epoll::add(&set, &stream, EventData::new_u64(key), interest)?;
                    let client = Client {
                        stream,
                        head: Vec::new(),
                        sent: None,
                    };
                    clients.insert(key, client);
                }
                continue;
            };
            // Dropping it takes it out of the set.
            if client.step(&response).is_err() {
                clients.remove(&key);
            }
        }
    }
}

impl Client {
    fn step(&mut self, response: &[u8]) -> std::io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                // The content of an upload is of no interest.
                Ok(n) if self.sent.is_none() && self.head.len() < 4096 => {
                    self.head.extend_from_slice(&buffer[..n]);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.head.starts_with(b"GET ") && self.head.ends_with(b"\r\n\r\n") {
            self.head.clear();
            self.sent = Some(0);
        }
        while let Some(sent) = self.sent {
            match self.stream.write(&response[sent..]) {
                Ok(n) if sent + n == response.len() => self.sent = None,
                Ok(n) => self.sent = Some(sent + n),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
