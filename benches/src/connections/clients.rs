//! Clients that notice everything: which requests failed, and how.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client that gets no answer in this time counts a failure.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(1);

/// What all clients of a run have seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Requests that were answered.
    pub(crate) answered: AtomicU64,
    /// Requests on kept connections that failed though the connection had looked open.
    pub(crate) failed: AtomicU64,
    /// The same on new connections: refused, reset, cut.
    pub(crate) new_failed: AtomicU64,
    /// Kept connections that the server closed between two requests.
    pub(crate) closed: AtomicU64,
    /// Kept connections that lasted to the end.
    pub(crate) same_socket: AtomicU64,
}

/// Threads that load a server until they are told to stop.
pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    pub(crate) seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
    /// Counts the answers of each [`STEP`].
    counter: JoinHandle<Vec<f64>>,
}

/// A step of the progress that is counted.
pub(crate) const STEP: Duration = Duration::from_millis(100);

impl Crowd {
    /// Half of the `kept` clients GET, half POST, each on a connection of its own; the `new` ones
    /// connect for each request.
    pub(crate) fn start(port: u16, kept: usize, new: usize) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Seen::default());
        let mut threads = Vec::new();
        for number in 0..kept + new {
            let (stop, seen) = (stop.clone(), seen.clone());
            let client = move || match number < kept {
                true => keep_alive(port, number % 2 == 1, &stop, &seen),
                false => connect_each(port, &stop, &seen),
            };
            threads.push(std::thread::spawn(client));
        }
        let counter = {
            let (stop, seen) = (stop.clone(), seen.clone());
            std::thread::spawn(move || count(&stop, &seen))
        };
        Crowd {
            stop,
            seen,
            threads,
            counter,
        }
    }

    /// Ends all clients; what they have seen, and the answers a second in each step.
    pub(crate) fn end(self) -> (Arc<Seen>, Vec<f64>) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            // A client that panicked has seen nothing more.
            let _ = thread.join();
        }
        (self.seen, self.counter.join().unwrap_or_default())
    }
}

fn count(stop: &AtomicBool, seen: &Seen) -> Vec<f64> {
    let mut steps = Vec::new();
    let mut before = 0;
    while !stop.load(Relaxed) {
        let began = Instant::now();
        std::thread::sleep(STEP);
        let answered = seen.answered.load(Relaxed);
        steps.push((answered - before) as f64 / began.elapsed().as_secs_f64());
        before = answered;
    }
    steps
}

fn keep_alive(port: u16, post: bool, stop: &AtomicBool, seen: &Seen) {
    let mut connection: Option<TcpStream> = None;
    let mut first = true;
    while !stop.load(Relaxed) {
        if connection.as_ref().is_some_and(is_closed) {
            seen.closed.fetch_add(1, Relaxed);
            first = false;
            connection = None;
        }
        let Some(stream) = connection.take().or_else(|| open(port)) else {
            seen.new_failed.fetch_add(1, Relaxed);
            continue;
        };
        match request(&stream, post, true) {
            Ok(()) => {
                seen.answered.fetch_add(1, Relaxed);
                connection = Some(stream);
            }
            Err(_) => {
                first = false;
                seen.failed.fetch_add(1, Relaxed);
            }
        }
        std::thread::sleep(PAUSE);
    }
    if first && connection.as_ref().is_some_and(|stream| !is_closed(stream)) {
        seen.same_socket.fetch_add(1, Relaxed);
    }
}

fn connect_each(port: u16, stop: &AtomicBool, seen: &Seen) {
    while !stop.load(Relaxed) {
        let answered = open(port).is_some_and(|stream| request(&stream, false, false).is_ok());
        let counter = if answered {
            &seen.answered
        } else {
            &seen.new_failed
        };
        counter.fetch_add(1, Relaxed);
        std::thread::sleep(PAUSE);
    }
}

/// A connection, or none when it is refused.
pub(crate) fn open(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// Has the server closed it? A careful client looks before it uses a connection again.
pub(crate) fn is_closed(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let peeked = loop {
        match stream.peek(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            peeked => break peeked,
        }
    };
    let open = matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_err() || !open
}

/// One request and its whole answer, whose status must be 200.
pub(crate) fn request(stream: &TcpStream, post: bool, keep: bool) -> std::io::Result<()> {
    let path = "/";
    let connection = if keep { "keep-alive" } else { "close" };
    let text = match post {
        true => format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: 5\r\n\r\nhello"
        ),
        false => format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n\r\n"),
    };
    exchange(stream, &text).map(drop)
}

/// Sends a text and reads an answer with `Content-Length`; its body.
pub(crate) fn exchange(mut stream: &TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes())?;
    let mut received = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        let complete = complete(&received);
        if let Some(body) = complete {
            return Ok(body);
        }
        let length = match stream.read(&mut buffer) {
            // A signal to this process says nothing of the server.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&buffer[..length]);
    }
}

fn complete(received: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(received);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    let whole = head.starts_with("HTTP/1.1 2") && body.len() >= length.unwrap_or(0);
    whole.then(|| body.to_owned())
}

/// Connects at regular times, each time in a thread of its own; how long each answer took.
pub(crate) fn arrivals(port: u16, count: u32, over: Duration) -> Vec<Duration> {
    let client = move || {
        let began = Instant::now();
        let answered = open(port).is_some_and(|stream| request(&stream, false, false).is_ok());
        if answered { began.elapsed() } else { PATIENCE }
    };
    let threads: Vec<JoinHandle<Duration>> = (0..count)
        .map(|_| {
            std::thread::sleep(over / count);
            std::thread::spawn(client)
        })
        .collect();
    let ended = threads.into_iter().map(|thread| thread.join());
    ended.map(|time| time.unwrap_or(PATIENCE)).collect()
}
