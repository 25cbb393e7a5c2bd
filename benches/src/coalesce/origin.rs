//! The origin: a thread for each connection, one behaviour for each kind of path, and a count of what it was asked.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How a kind of path is answered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reply {
    /// How long the head takes.
    pub(crate) head_ms: u64,
    /// How long the body.
    pub(crate) length: usize,
    /// For how long it trickles.
    pub(crate) body_ms: u64,
    /// Kilobytes of the body in a second, of parts too, in pieces of a hundredth of that; 0: `body_ms` says it.
    pub(crate) rate: u64,
    /// The body is the origin's version, in twenty digits, and `length` does not count.
    pub(crate) is_version: bool,
    /// `Cache-Control: private`
    pub(crate) is_private: bool,
    /// The connection of the first request breaks at half of the body.
    pub(crate) breaks: bool,
}

/// What the origin saw of a path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u32,
    /// Of those, the ones for a part.
    pub(crate) partial: u32,
    /// Bytes of bodies that were written.
    pub(crate) sent: usize,
    /// When the last body had been written.
    pub(crate) ended: Option<Instant>,
}

type Log = Arc<Mutex<HashMap<String, Seen>>>;

#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) port: u16,
    log: Log,
    /// What bodies with a version say.
    pub(crate) version: Arc<AtomicU64>,
}

/// The bytes of every body from a position on, at most [`LONGEST`] of them. The pattern's length is a prime, so that a
/// part at a wrong place shows.
pub(crate) fn bytes_at(position: usize) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| (0..LONGEST + 251).map(|at| (at % 251) as u8).collect());
    &pattern[position % 251..][..LONGEST]
}

/// Where in the pattern the body of a path begins, so that one object in the place of another shows.
pub(crate) fn shift(path: &str) -> usize {
    path.bytes()
        .fold(0, |sum, byte| (sum * 31 + usize::from(byte)) % 251)
}

/// As long as the longest body.
pub(crate) const LONGEST: usize = 10 << 20;

impl Origin {
    /// Answers `/KIND/…` as `reply_of(KIND)` says, until the process ends.
    pub(crate) fn start(reply_of: fn(&str) -> Option<Reply>) -> Result<Origin, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let log = Log::default();
        let version = Arc::new(AtomicU64::new(0));
        let shared = OriginState {
            reply_of,
            log: Arc::clone(&log),
            version: Arc::clone(&version),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                let serve = move || {
                    // A connection that breaks is the client's affair.
                    let _ = serve(stream, &state);
                };
                if std::thread::Builder::new()
                    .stack_size(256 << 10)
                    .spawn(serve)
                    .is_err()
                {
                    eprintln!("the origin can make no more threads");
                }
            }
        });
        Ok(Origin {
            port: address.port(),
            log,
            version,
        })
    }

    /// How often each path was asked for.
    pub(crate) fn requests(&self) -> HashMap<String, u32> {
        let log = self.log.lock();
        log.map(|log| {
            let counts = log.iter().map(|(path, seen)| (path.clone(), seen.requests));
            counts.collect()
        })
        .unwrap_or_default()
    }

    pub(crate) fn seen(&self, path: &str) -> Seen {
        self.log
            .lock()
            .ok()
            .and_then(|log| log.get(path).cloned())
            .unwrap_or_default()
    }
}

/// What the threads of an origin share.
#[derive(Clone)]
struct OriginState {
    reply_of: fn(&str) -> Option<Reply>,
    log: Log,
    version: Arc<AtomicU64>,
}

fn serve(stream: TcpStream, state: &OriginState) -> std::io::Result<()> {
    let log = &state.log;
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some((path, range)) = read_head(&mut lines)? {
        let kind = path.split('/').nth(1).unwrap_or_default();
        let Some(reply) = (state.reply_of)(kind) else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let requests = note(log, &path, |seen| {
            seen.requests += 1;
            seen.partial += u32::from(range.is_some());
            seen.requests
        });
        let breaks = reply.breaks && requests == 1;
        if reply.is_version {
            answer_version(&mut stream, state.version.load(SeqCst))?;
            continue;
        }
        let asked = AskedBody {
            path: &path,
            range,
            breaks,
        };
        if !answer(&mut stream, &asked, reply, log)? {
            return Ok(());
        }
        note(log, &path, |seen| seen.ended = Some(Instant::now()));
    }
    Ok(())
}

fn note<T: Default>(log: &Log, path: &str, change: impl FnOnce(&mut Seen) -> T) -> T {
    log.lock()
        .map(|mut log| change(log.entry(path.to_owned()).or_default()))
        .unwrap_or_default()
}

/// First and last byte; the last may be far behind the end.
type Range = (usize, usize);

/// The path of a request, and the range that it asks for; `None` when the connection was closed.
fn read_head(lines: &mut impl BufRead) -> std::io::Result<Option<(String, Option<Range>)>> {
    let mut request = String::new();
    if lines.read_line(&mut request)? == 0 {
        return Ok(None);
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            return Ok(Some((path, range)));
        }
        let line = line.to_ascii_lowercase();
        if let Some(from) = line.strip_prefix("range: bytes=") {
            let (from, to) = from.trim().split_once('-').unwrap_or((from, ""));
            let to = to.parse().unwrap_or(usize::MAX);
            range = from.parse().ok().map(|from| (from, to));
        }
    }
}

/// What of a path is asked for.
struct AskedBody<'a> {
    path: &'a str,
    range: Option<Range>,
    breaks: bool,
}

fn answer_version(stream: &mut TcpStream, version: u64) -> std::io::Result<()> {
    let text = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 20\r\nCache-Control: max-age=3600\r\nETag: \"{version}\"\r\n\r\n{version:020}"
    );
    stream.write_all(text.as_bytes())
}

/// Writes a response; `false` if it broke off.
fn answer(
    stream: &mut TcpStream,
    asked: &AskedBody<'_>,
    reply: Reply,
    log: &Log,
) -> std::io::Result<bool> {
    let (path, range) = (asked.path, asked.range);
    if range.is_none() {
        std::thread::sleep(Duration::from_millis(reply.head_ms));
    }
    let total = reply.length;
    let control = match reply.is_private {
        true => "private",
        false => "max-age=3600",
    };
    let (from, to) = range.unwrap_or((0, usize::MAX));
    let (from, end) = (from.min(total), to.saturating_add(1).min(total));
    let status = match range {
        Some(_) => format!(
            "206 Partial Content\r\nContent-Range: bytes {from}-{}/{total}",
            end - 1
        ),
        None => "200 OK".to_owned(),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nCache-Control: {control}\r\nETag: \"one\"\r\nAccept-Ranges: bytes\r\n\r\n",
        end - from
    );
    stream.write_all(head.as_bytes())?;
    let body = &bytes_at(from + shift(path))[..end - from];
    let end = if asked.breaks {
        body.len() / 2
    } else {
        body.len()
    };
    let (piece, step) = match (reply.rate, reply.body_ms) {
        (0, 0) => (body.len().max(1), Duration::ZERO),
        (0, body_ms) => (
            (body.len() / 50).max(1),
            Duration::from_millis(body_ms / 50),
        ),
        (rate, _) => (
            (rate as usize * 1024 / 100).max(1),
            Duration::from_millis(10),
        ),
    };
    let mut due = Instant::now();
    for piece in body[..end].chunks(piece) {
        stream.write_all(piece)?;
        note(log, path, |seen| seen.sent += piece.len());
        // By the clock, so that what a sleep takes too long is made up for.
        due += step;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(!asked.breaks)
}
