//! The origin: it knows what it has said.
//!
//! `/p/N` and `/c/N` are resource N, the second asked for by a cache, as are the paths of other flavours. An upload is answered with its digest. If the origin
//! is moody, some of its responses come late, in drops, not at all, or break off.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rt::net::{SocketListener, StreamSocket};
use rt::simulation::{clock, count_fault, network};

use super::echo::start_echoes;
use super::invariants::lifetime;
use super::ledger::{
    BodyFraming, CacheFlavour, CachePolicy, FetchGuard, OriginResource, RESOURCES, SaidResponse,
    WorkloadLedger, content, digest, variant_of,
};
use super::message::{MessageHead, MessageStream};
use crate::chance::SeededChance;

/// How many pauses a body has that comes slowly.
const PAUSES: usize = 10;

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
    if let Err(error) = start_echoes(&ledger, seeds.number()) {
        return ledger.violate(format!("the echoes cannot listen: {error}"));
    }
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
        if connection.chance.once_in(20) && !connection.ledger.state().origin_rests {
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

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
struct AskedResource {
    resource: usize,
    /// The first letter of the path.
    letter: char,
    /// `X-Variant`, where responses vary by it.
    variant: usize,
    /// When the client has asked that the fetch was begun for.
    at: u64,
}

impl AskedResource {
    fn of(path: &str, head: &MessageHead, resources: usize) -> Option<AskedResource> {
        let letter = path.chars().nth(1)?;
        let resource = path
            .get(3..)?
            .parse()
            .ok()
            .filter(|number| *number < resources)?;
        let variant = head.number("x-variant").unwrap_or(0) as usize;
        Some(AskedResource {
            resource,
            letter,
            at: head.number("x-asked").unwrap_or(0),
            variant: if letter == CacheFlavour::Vary.letter() {
                variant
            } else {
                0
            },
        })
    }

    fn flavour(self) -> Option<CacheFlavour> {
        CacheFlavour::ALL
            .into_iter()
            .find(|flavour| flavour.letter() == self.letter)
    }
}

/// A request that `limit_conn` has let through, while it lasts.
struct LimitedGuard(Arc<WorkloadLedger>);

impl LimitedGuard {
    fn new(ledger: &Arc<WorkloadLedger>) -> LimitedGuard {
        let mut state = ledger.state();
        state.limited_now += 1;
        state.limited_most = state.limited_most.max(state.limited_now);
        drop(state);
        LimitedGuard(Arc::clone(ledger))
    }
}

impl Drop for LimitedGuard {
    fn drop(&mut self) {
        self.0.state().limited_now -= 1;
    }
}

fn policy_field(policy: CachePolicy) -> String {
    match policy {
        CachePolicy::MaxAge(seconds) => format!("Cache-Control: max-age={seconds}\r\n"),
        CachePolicy::Unsaid => String::new(),
        CachePolicy::NoStore => "Cache-Control: no-store\r\n".to_owned(),
        CachePolicy::Private => "Cache-Control: private\r\n".to_owned(),
    }
}

/// The part of a body that a response brings.
#[derive(Clone, Copy, Debug)]
enum GivenPart {
    Whole,
    /// From the first byte to before the second.
    Range(usize, usize),
    Unsatisfiable,
}

impl GivenPart {
    /// What `Range` and `If-Range` say of a body of this length (RFC 9110, section 14.2). One range is understood.
    fn of(head: &MessageHead, is: OriginResource, etag: &str) -> GivenPart {
        let len = is.len;
        let is_same = !is.has_if_range || head.field("if-range").is_none_or(|known| known == etag);
        let asked = head
            .field("range")
            .and_then(|range| range.strip_prefix("bytes="));
        let Some((from, to)) = asked
            .filter(|_| is_same)
            .and_then(|asked| asked.split_once('-'))
        else {
            return GivenPart::Whole;
        };
        let Ok(from) = from.parse::<usize>() else {
            return GivenPart::Whole;
        };
        let to = to.parse::<usize>().map_or(len, |to| (to + 1).min(len));
        match from < len {
            true => GivenPart::Range(from, to),
            false => GivenPart::Unsatisfiable,
        }
    }
}

impl OriginConnection {
    fn is_moody(&self) -> bool {
        self.ledger.origin_is_moody && !self.ledger.state().origin_rests
    }

    fn mood(&mut self) -> OriginMood {
        if !self.is_moody() || !self.chance.once_in(6) {
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
        let ledger = Arc::clone(&self.ledger);
        ledger.state().heard += 1;
        ledger.state().named += u64::from(path.starts_with("/d/"));
        let Some(asked) = AskedResource::of(&path, head, ledger.resources.len()) else {
            self.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                .await?;
            return Ok(true);
        };
        let thing = |flavour| (flavour, asked.resource, asked.variant);
        let fetch = asked
            .flavour()
            .map(|flavour| FetchGuard::new(&ledger, thing(flavour), asked.at));
        let _limited = (asked.letter == 'n').then(|| LimitedGuard::new(&ledger));
        if asked.letter == 'q' {
            ledger.state().paced.push(clock::nanos());
        }
        let mood = self.mood();
        let is = ledger.resources[asked.resource];
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
        self.give((head, &method), asked, mood, fetch.as_ref())
            .await
    }

    /// Sends a resource, a part of it, or that it has not changed.
    async fn give(
        &mut self,
        (head, method): (&MessageHead, &str),
        asked: AskedResource,
        mood: OriginMood,
        fetch: Option<&FetchGuard>,
    ) -> io::Result<bool> {
        let AskedResource {
            resource, variant, ..
        } = asked;
        let is = self.ledger.resources[resource];
        let is_sliced = asked.flavour() == Some(CacheFlavour::Slice);
        // Where it changes between two slices the response is cut: not in calm weather.
        let changes = self.chance.once_in(is.changes)
            && (!is_sliced || self.is_moody() && self.chance.once_in(8));
        let (number, version) = self.note_said(asked, changes);
        rt::simulation::note(|| format!("origin says {number}, version {version} of {asked:?}"));
        let etag = format!("\"{resource}-{variant}-{version}\"");
        // Slices are pieces of one version only where there is a validator (`slice` compares it).
        let has_etag = is.has_etag || is_sliced;
        let is_known = has_etag && head.field("if-none-match") == Some(&etag);
        let part = match has_etag && (is.has_ranges || is_sliced) && method == "GET" && !is_known {
            true if is.len > 0 => GivenPart::of(head, is, &etag),
            _ => GivenPart::Whole,
        };
        let status = match part {
            _ if is_known => "304 Not Modified",
            GivenPart::Whole => "200 OK",
            GivenPart::Range(..) => "206 Partial Content",
            GivenPart::Unsatisfiable => "416 Range Not Satisfiable",
        };
        let mut text = format!(
            "HTTP/1.1 {status}\r\nX-Number: {number}\r\nX-Version: {version}\r\nX-Length: {}\r\n",
            is.len
        );
        if has_etag {
            text += &format!("ETag: {etag}\r\n");
        }
        if has_etag && is.has_ranges {
            text += "Accept-Ranges: bytes\r\n";
        }
        if asked.flavour() == Some(CacheFlavour::Vary) {
            text += &format!("Vary: X-Variant\r\nX-Said-Variant: {variant}\r\n");
        }
        text += &policy_field(is.policy);
        if let Some(fetch) = fetch {
            fetch.note_head(lifetime(is.policy).unwrap_or(0));
        }
        if is_known {
            self.write(format!("{text}\r\n").as_bytes()).await?;
            return Ok(true);
        }
        let body = content(variant_of(resource, variant), version, is.len);
        let (from, to) = match part {
            GivenPart::Whole => (0, body.len()),
            GivenPart::Range(from, to) => {
                text += &format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, is.len);
                self.ledger.count("origin sends a part");
                (from, to)
            }
            GivenPart::Unsatisfiable => {
                text += &format!("Content-Range: bytes */{}\r\n", is.len);
                (0, 0)
            }
        };
        let body = (&body[from..to], method == "HEAD");
        self.give_body(text, body, is, mood).await
    }

    /// Sends a head, whose framing is still to be said, and its body.
    async fn give_body(
        &mut self,
        head: String,
        (body, is_head): (&[u8], bool),
        is: OriginResource,
        mood: OriginMood,
    ) -> io::Result<bool> {
        // A body without framing that breaks off looks whole to everyone.
        let framing = match mood {
            OriginMood::BreaksOff if is.framing == BodyFraming::Close => BodyFraming::Length,
            _ => is.framing,
        };
        let framed = match framing {
            BodyFraming::Length => format!("Content-Length: {}\r\n\r\n", body.len()),
            BodyFraming::Chunked => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
            BodyFraming::Close => "Connection: close\r\n\r\n".to_owned(),
        };
        self.write((head + &framed).as_bytes()).await?;
        if is_head {
            return Ok(framing != BodyFraming::Close);
        }
        let whole = match mood {
            OriginMood::BreaksOff => self.chance.below(body.len().max(1)),
            _ => body.len(),
        };
        self.send(&body[..whole], (framing, is.pause_ms), mood)
            .await?;
        if mood == OriginMood::BreaksOff {
            return Ok(false);
        }
        if framing == BodyFraming::Chunked {
            self.write(b"0\r\n\r\n").await?;
        }
        Ok(framing != BodyFraming::Close)
    }

    fn note_said(&self, asked: AskedResource, changes: bool) -> (usize, u64) {
        let resource = asked.resource;
        let place = match asked.flavour() {
            Some(CacheFlavour::Slice) => resource + RESOURCES,
            _ => resource,
        };
        let mut state = self.ledger.state();
        if changes {
            state.versions[place] += 1;
        }
        let said = SaidResponse {
            resource,
            variant: asked.variant,
            version: state.versions[place],
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
        (framing, pause_ms): (BodyFraming, u64),
        mood: OriginMood,
    ) -> io::Result<()> {
        let mut rest = body;
        let mut drops = 0;
        let mut pauses = PAUSES;
        while !rest.is_empty() {
            let most = match mood {
                // Few of them: a response has to end within the clients' patience.
                OriginMood::Drops if drops < 20 => 1 + self.chance.below(40),
                // A piece for each pause.
                _ if pause_ms > 0 && pauses > 0 => 1 + body.len() / PAUSES,
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
            if pause_ms > 0 && pauses > 0 && mood != OriginMood::Drops {
                pauses -= 1;
                let pause = self.chance.below(pause_ms as usize) as u64;
                rt::sleep(Duration::from_millis(pause)).await;
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
