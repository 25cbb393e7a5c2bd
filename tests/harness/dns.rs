//! A DNS server that answers what a test says.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A name server on a free port of 127.0.0.1, UDP and TCP. It ends when this is dropped.
#[derive(Debug)]
pub struct Dns {
    port: u16,
    queries: Arc<AtomicUsize>,
    names: Arc<Mutex<Vec<String>>>,
    answer: Arc<Mutex<Answer>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What it says of every name.
#[derive(Debug, Clone)]
pub enum Answer {
    /// These are its addresses, for so many seconds.
    Addresses(Vec<IpAddr>, u32),
    /// These are the servers of a service (SRV): the first one is `0.servers.test`, and so on, valid for this number of seconds.
    Services(Vec<(IpAddr, u16)>, u32),
    /// This response code: 2 is a failure, 3 says that there is no such name.
    Code(u8),
    /// Nothing at all.
    Silence,
}

impl Dns {
    /// Starts with this answer.
    pub fn start(answer: Answer) -> Dns {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
        // Often enough to see the end.
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("the bound is not zero");
        let port = socket.local_addr().expect("it is bound").port();
        let answer = Arc::new(Mutex::new(answer));
        let (queries, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (said, count, end) = (Arc::clone(&answer), Arc::clone(&queries), Arc::clone(&stop));
        let names = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&names);
        let streams = TcpListener::bind(("127.0.0.1", port)).ok();
        if let Some(streams) = &streams {
            streams.set_nonblocking(true).expect("it can be polled");
        }
        let thread = std::thread::spawn(move || {
            let mut query = [0; 512];
            while !end.load(Ordering::SeqCst) {
                if let Some(Ok((stream, _))) = streams.as_ref().map(TcpListener::accept) {
                    let answer = said.lock().expect("nobody panics with it").clone();
                    count.fetch_add(1, Ordering::SeqCst);
                    // A client that says nothing gets nothing.
                    let _ = converse(stream, &answer);
                }
                let Ok((length, from)) = socket.recv_from(&mut query) else {
                    continue;
                };
                count.fetch_add(1, Ordering::SeqCst);
                let name = question_name(&query[..length]);
                heard.lock().expect("nobody panics with it").push(name);
                let answer = said.lock().expect("nobody panics with it").clone();
                if let Some(reply) = reply(&query[..length], &answer) {
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        Dns {
            port,
            queries,
            names,
            answer,
            stop,
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many queries there have been.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::SeqCst)
    }

    /// The names that datagrams have asked for, as they were written.
    pub fn names(&self) -> Vec<String> {
        self.names.lock().expect("nobody panics with it").clone()
    }

    /// Gives another answer from now on.
    pub fn say(&self, answer: Answer) {
        *self.answer.lock().expect("nobody panics with it") = answer;
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// One question and its answer over TCP, each behind its length.
fn converse(mut stream: TcpStream, answer: &Answer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut query)?;
    let reply = reply(&query, answer).unwrap_or_default();
    stream.write_all(&(reply.len() as u16).to_be_bytes())?;
    stream.write_all(&reply)
}

/// The query with the flags of a response, and the records of the kind that was asked for.
fn reply(query: &[u8], answer: &Answer) -> Option<Vec<u8>> {
    let end = question_end(query)?;
    let kind = query[end - 3];
    let name = question_name(query);
    let named: Vec<IpAddr>;
    let (code, addresses, ttl) = match answer {
        Answer::Silence => return None,
        Answer::Code(code) => (*code, &[][..], 0),
        Answer::Addresses(addresses, ttl) => (0, addresses.as_slice(), *ttl),
        Answer::Services(servers, ttl) => {
            let number = name
                .split('.')
                .next()
                .and_then(|label| label.parse::<usize>().ok());
            let server = number.and_then(|number| servers.get(number));
            named = server.map(|(address, _)| *address).into_iter().collect();
            (0, named.as_slice(), *ttl)
        }
    };
    let mut reply = query[..end].to_vec();
    reply[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    // One question, and nothing else that the query may have had (EDNS).
    reply[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    if let (Answer::Services(servers, ttl), 33) = (answer, kind) {
        for (index, (_, port)) in servers.iter().enumerate() {
            let label = index.to_string();
            let mut data = vec![0, 0, 0, 1];
            data.extend_from_slice(&port.to_be_bytes());
            for label in [label.as_str(), "servers", "test", ""] {
                data.push(label.len() as u8);
                data.extend_from_slice(label.as_bytes());
            }
            reply[7] += 1;
            reply.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1]);
            reply.extend_from_slice(&ttl.to_be_bytes());
            reply.extend_from_slice(&[0, data.len() as u8]);
            reply.extend_from_slice(&data);
        }
    }
    for address in addresses {
        let (number, data) = match address {
            IpAddr::V4(ip) => (1, ip.octets().to_vec()),
            IpAddr::V6(ip) => (28, ip.octets().to_vec()),
        };
        if number != kind {
            continue;
        }
        reply[7] += 1;
        // The name at byte 12, the type, class IN.
        reply.extend_from_slice(&[0xc0, 12, 0, number, 0, 1]);
        reply.extend_from_slice(&ttl.to_be_bytes());
        reply.extend_from_slice(&[0, data.len() as u8]);
        reply.extend_from_slice(&data);
    }
    Some(reply)
}

/// The name of the first question.
fn question_name(query: &[u8]) -> String {
    let mut labels = Vec::new();
    let mut at = 12;
    while let Some(length) = query
        .get(at)
        .copied()
        .map(usize::from)
        .filter(|length| *length > 0)
    {
        let label = query.get(at + 1..at + 1 + length).unwrap_or_default();
        labels.push(String::from_utf8_lossy(label).into_owned());
        at += 1 + length;
    }
    labels.join(".")
}

/// Where the first question ends: a name, then its type and class.
fn question_end(query: &[u8]) -> Option<usize> {
    let mut at = 12;
    loop {
        match *query.get(at)? {
            0 => break,
            length => at += 1 + usize::from(length),
        }
    }
    let end = at + 5;
    (end <= query.len()).then_some(end)
}
