//! The origin: it knows what it has said.
//!
//! `/p/N` and `/c/N` are resource N, the second asked for by a cache. An upload is answered with its digest. If the origin
//! is moody, some of its responses come late, in drops, not at all, or break off.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rt::net::{SocketListener, StreamSocket};
use rt::simulation::{clock, count_fault, network};

use super::ledger::{BodyFraming, CachePolicy, SaidResponse, WorkloadLedger, content, digest};
use super::message::{MessageHead, MessageStream};
use crate::chance::SeededChance;

/// What is odd about one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OriginMood {
    Good,
    /// The body comes in pieces of a few bytes, with pauses.
    Drops,
    /// Nothing comes.
    Silent,
    /// The connection is closed instead.
    Closes,
    /// The connection is closed within the body.
    BreaksOff,
    /// What comes is no response.
    Garbage,
}

/// Serves these addresses until the ledger says that it is over.
pub(crate) async fn run_origin(ledger: Arc<WorkloadLedger>, addresses: Vec<SocketAddr>, seed: u64) {
    let mut seeds = SeededChance::new(seed);
    for address in addresses {
        let socket = network::listen_at(address).and_then(SocketListener::from_fd);
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => return ledger.violate(format!("the origin cannot listen: {error}")),
        };
        let (ledger, mut seeds) = (Arc::clone(&ledger), SeededChance::new(seeds.number()));
        rt::spawn(async move {
            while let Ok(stream) = socket.accept().await {
                let chance = SeededChance::new(seeds.number());
                let ledger = Arc::clone(&ledger);
                // A client that leaves is no matter of the origin's.
                rt::spawn(async move {
                    let _ended = serve(ledger, stream, chance).await;
                });
            }
        });
    }
    while !ledger.state().stops_origin {
        rt::sleep(Duration::from_millis(50)).await;
    }
}

async fn serve(
    ledger: Arc<WorkloadLedger>,
    stream: StreamSocket,
    chance: SeededChance,
) -> io::Result<()> {
    let mut connection = OriginConnection {
        ledger,
        stream: MessageStream::new(stream),
        chance,
    };
    while let Some(head) = connection.stream.head().await? {
        if !connection.answer(&head).await? {
            break;
        }
        // At times it closes a connection that could be kept, as origins do.
        if connection.chance.once_in(20) {
            count_fault("origin closes an idle connection");
            break;
        }
    }
    Ok(())
}

struct OriginConnection {
    ledger: Arc<WorkloadLedger>,
    stream: MessageStream,
    chance: SeededChance,
}

/// A fetch of the cache, while it lasts.
struct FetchGuard(Arc<WorkloadLedger>, usize);

impl FetchGuard {
    fn new(ledger: &Arc<WorkloadLedger>, resource: usize) -> FetchGuard {
        let policy = ledger.resources[resource].policy;
        let is_shared = !matches!(policy, CachePolicy::NoStore | CachePolicy::Private);
        let mut state = ledger.state();
        let running = state.fetches.entry(resource).or_default();
        *running += 1;
        if *running > 1 && is_shared {
            let text = format!(
                "resource {resource} is fetched {running} times at once at {}",
                clock::nanos()
            );
            state.doubled.push(text);
        }
        drop(state);
        FetchGuard(Arc::clone(ledger), resource)
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        if let Some(running) = self.0.state().fetches.get_mut(&self.1) {
            *running -= 1;
        }
    }
}

impl OriginConnection {
    fn mood(&mut self) -> OriginMood {
        if !self.ledger.origin_is_moody || !self.chance.once_in(6) {
            return OriginMood::Good;
        }
        let moods = [
            (OriginMood::Drops, "origin sends drops"),
            (OriginMood::Silent, "origin is silent"),
            (OriginMood::Closes, "origin closes instead of an answer"),
            (OriginMood::BreaksOff, "origin breaks off"),
            (OriginMood::Garbage, "origin sends garbage"),
        ];
        let (mood, name) = *self.chance.choose(&moods);
        count_fault(name);
        mood
    }

    /// Answers one request; false: the connection is over.
    async fn answer(&mut self, head: &MessageHead) -> io::Result<bool> {
        let mut words = head.first.split(' ');
        let (method, path) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let (method, path) = (method.to_owned(), path.to_owned());
        let (upload, _) = self.stream.body(head, false, async |_| ()).await;
        let number = path
            .get(3..)
            .and_then(|number| number.parse::<usize>().ok());
        let Some(resource) = number.filter(|number| *number < self.ledger.resources.len()) else {
            self.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                .await?;
            return Ok(true);
        };
        let ledger = Arc::clone(&self.ledger);
        let _fetch = path
            .starts_with("/c/")
            .then(|| FetchGuard::new(&ledger, resource));
        let mood = self.mood();
        let is = ledger.resources[resource];
        if is.delay_ms > 0 {
            rt::sleep(Duration::from_millis(is.delay_ms)).await;
        }
        match mood {
            OriginMood::Silent => {
                // Until the other side has had enough.
                self.stream.socket.closed().await;
                return Ok(false);
            }
            OriginMood::Closes => return Ok(false),
            OriginMood::Garbage => {
                self.write(b"nothing that is a response\r\n\r\n").await?;
                return Ok(false);
            }
            OriginMood::Good | OriginMood::Drops | OriginMood::BreaksOff => {}
        }
        if method == "POST" {
            let text = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCache-Control: no-store\r\nX-Upload: {} {}\r\n\r\n",
                upload.len(),
                digest(&upload)
            );
            self.write(text.as_bytes()).await?;
            return Ok(true);
        }
        self.give(head, &method, resource, mood).await
    }

    /// Sends a resource, or that it has not changed.
    async fn give(
        &mut self,
        head: &MessageHead,
        method: &str,
        resource: usize,
        mood: OriginMood,
    ) -> io::Result<bool> {
        let is = self.ledger.resources[resource];
        let changes = self.chance.once_in(is.changes);
        let (number, version) = self.note_said(resource, changes);
        let etag = format!("\"{resource}-{version}\"");
        let is_known = is.has_etag && head.field("if-none-match") == Some(&etag);
        let mut text = match is_known {
            true => "HTTP/1.1 304 Not Modified\r\n".to_owned(),
            false => "HTTP/1.1 200 OK\r\n".to_owned(),
        };
        text += &format!(
            "X-Number: {number}\r\nX-Version: {version}\r\nX-Length: {}\r\n",
            is.len
        );
        if is.has_etag {
            text += &format!("ETag: {etag}\r\n");
        }
        text += &match is.policy {
            CachePolicy::MaxAge(seconds) => format!("Cache-Control: max-age={seconds}\r\n"),
            CachePolicy::Unsaid => String::new(),
            CachePolicy::NoStore => "Cache-Control: no-store\r\n".to_owned(),
            CachePolicy::Private => "Cache-Control: private\r\n".to_owned(),
        };
        if is_known {
            self.write(format!("{text}\r\n").as_bytes()).await?;
            return Ok(true);
        }
        // A body without framing that breaks off looks whole to everyone.
        let framing = match mood {
            OriginMood::BreaksOff if is.framing == BodyFraming::Close => BodyFraming::Length,
            _ => is.framing,
        };
        text += &match framing {
            BodyFraming::Length => format!("Content-Length: {}\r\n\r\n", is.len),
            BodyFraming::Chunked => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
            BodyFraming::Close => "Connection: close\r\n\r\n".to_owned(),
        };
        self.write(text.as_bytes()).await?;
        if method == "HEAD" {
            return Ok(framing != BodyFraming::Close);
        }
        let body = content(resource as u64, version, is.len);
        let whole = match mood {
            OriginMood::BreaksOff => self.chance.below(body.len().max(1)),
            _ => body.len(),
        };
        self.send(&body[..whole], framing, mood).await?;
        if mood == OriginMood::BreaksOff {
            return Ok(false);
        }
        if framing == BodyFraming::Chunked {
            self.write(b"0\r\n\r\n").await?;
        }
        Ok(framing != BodyFraming::Close)
    }

    fn note_said(&self, resource: usize, changes: bool) -> (usize, u64) {
        let mut state = self.ledger.state();
        if changes {
            state.versions[resource] += 1;
        }
        let said = SaidResponse {
            resource,
            version: state.versions[resource],
            sent: clock::nanos(),
            policy: self.ledger.resources[resource].policy,
            heard: 0,
        };
        state.said.push(said);
        (state.said.len() - 1, said.version)
    }

    async fn send(
        &mut self,
        body: &[u8],
        framing: BodyFraming,
        mood: OriginMood,
    ) -> io::Result<()> {
        let mut rest = body;
        let mut drops = 0;
        while !rest.is_empty() {
            let most = match mood {
                // Few of them: a response has to end within the clients' patience.
                OriginMood::Drops if drops < 20 => 1 + self.chance.below(40),
                _ => 1 + self.chance.below(30_000),
            };
            let piece = &rest[..most.min(rest.len())];
            rest = &rest[piece.len()..];
            match framing {
                BodyFraming::Chunked => {
                    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
                    chunk.extend_from_slice(piece);
                    chunk.extend_from_slice(b"\r\n");
                    self.write(&chunk).await?;
                }
                BodyFraming::Length | BodyFraming::Close => self.write(piece).await?,
            }
            if mood == OriginMood::Drops {
                drops += 1;
                rt::sleep(Duration::from_millis(self.chance.below(300) as u64)).await;
            }
        }
        Ok(())
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.stream.socket.write_all(bytes).await
    }
}
