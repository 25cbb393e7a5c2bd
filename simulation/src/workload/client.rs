//! Clients: most of them ask and compare each byte, some are slow, rude or hostile.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cache::PurgeMode;
use rt::net::{SocketAddress, StreamSocket};
use rt::simulation::{clock, count_fault};

use super::h2_stream::H2Stream;
use super::invariants::{
    AskedKind, AskedRequest, JudgedWeather, PATIENCE_SECONDS, ProxiedWay, check_response, upload,
};
use super::ledger::{CacheFlavour, FILES, PurgeTimes, RESOURCES, VARIANTS, WorkloadLedger};
use super::message::{BodyEnd, MessageHead, MessageStream};
use crate::chance::SeededChance;
use crate::cuts::RunCuts;

/// What clients of a run are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPlan {
    pub(crate) server: SocketAddr,
    /// How many requests each makes.
    pub(crate) requests: usize,
    /// Nothing goes wrong: every request must be answered.
    pub(crate) is_calm: bool,
    pub(crate) is_slow: bool,
    /// Some do what no client should.
    pub(crate) are_hostile: bool,
    /// They do not wait long between requests.
    pub(crate) are_crowd: bool,
    /// Nothing is evicted from the cache.
    pub(crate) has_room: bool,
    /// Another process takes over at some time.
    pub(crate) has_successor: bool,
}

/// What clients do besides asking.
const HOSTILE: [&[u8]; 7] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /p/1 HTTP/1.1\r\nHost: a\r\nX: ",
    b"POST /p/1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /c/1 HTTP/1.1\r\nHost: a\r\nRange: bytes=-1,5-2,0-0\r\n\r\n",
    b"\r\n\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

/// One client.
pub(crate) struct SimulatedClient {
    pub(crate) ledger: Arc<WorkloadLedger>,
    pub(crate) plan: ClientPlan,
    pub(crate) chance: SeededChance,
    pub(crate) cuts: Arc<RunCuts>,
}

impl SimulatedClient {
    /// Asks until it has asked enough.
    pub(crate) async fn run(mut self) {
        let mut left = self.plan.requests;
        while left > 0 {
            let longest = if self.plan.are_crowd { 200 } else { 3_000 };
            rt::sleep(Duration::from_millis(self.chance.below(longest) as u64)).await;
            let most = 1 + self.chance.below(left);
            let patience = Duration::from_secs(PATIENCE_SECONDS * most as u64);
            match rt::timeout(patience, self.visit(most)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    self.ledger.count("connection failed");
                    if self.plan.is_calm {
                        self.ledger
                            .violate(format!("W11: a connection failed: {error}"));
                    }
                }
                Err(rt::Elapsed) => {
                    self.ledger.count("client lost patience");
                    if self.plan.is_calm {
                        self.ledger
                            .violate(format!("W6: no end after {} s", patience.as_secs()));
                    }
                }
            }
            left -= most;
        }
        self.ledger.state().clients_left -= 1;
    }

    /// A connection of one kind or another.
    async fn visit(&mut self, requests: usize) -> io::Result<()> {
        match self.chance.below(12) {
            0 if !self.cuts.has("stream") => self.pass_through_stream().await,
            1 if !self.cuts.has("datagrams") => self.exchange_datagrams().await,
            _ => self.connection(requests).await,
        }
    }

    /// A connection with this number of requests.
    async fn connection(&mut self, requests: usize) -> io::Result<()> {
        let address = SocketAddress::Inet(self.plan.server);
        let socket = StreamSocket::connect(&address).await?;
        let mut stream = match self.chance.once_in(3) && !self.cuts.has("h2") {
            true => {
                self.ledger.count("HTTP/2 connections");
                ClientStream::H2(Box::new(H2Stream::new(socket)))
            }
            false => ClientStream::H1(MessageStream::new(socket)),
        };
        for request in 0..requests {
            if self.plan.are_hostile && self.chance.once_in(8) && !self.cuts.has("hostile") {
                return self.misbehave(stream.socket()).await;
            }
            let leaves = !self.plan.is_calm && self.chance.once_in(12) && !self.cuts.has("leaves");
            let goes_on = match self.ask(&mut stream, leaves).await {
                // A connection of HTTP/2 does not move over: it ends with a GOAWAY, which may cross a request (RFC 9113,
                // section 6.8).
                Err(_) if request > 0 && self.plan.has_successor && stream.is_h2() => {
                    self.ledger.count("HTTP/2 ends for a successor");
                    return Ok(());
                }
                asked => asked?,
            };
            if !goes_on {
                return Ok(());
            }
            let longest = if self.plan.are_crowd { 100 } else { 2_000 };
            let pause = *self.chance.choose(&[0, 0, 1, 50, longest]);
            rt::sleep(Duration::from_millis(pause)).await;
        }
        Ok(())
    }

    async fn misbehave(&mut self, socket: &StreamSocket) -> io::Result<()> {
        count_fault("hostile client");
        let bytes = *self.chance.choose(&HOSTILE);
        let end = match self.chance.once_in(2) {
            true => self.chance.below(bytes.len()),
            false => bytes.len(),
        };
        socket.write_all(&bytes[..end]).await?;
        match self.chance.below(3) {
            0 => rt::sleep(Duration::from_secs(self.chance.below(20) as u64)).await,
            1 => {
                count_fault("half-close");
                socket.shutdown_write()?;
                rt::sleep(Duration::from_secs(1)).await;
            }
            _ => {}
        }
        Ok(())
    }

    fn draw_kind(&mut self) -> AskedKind {
        let resource = match self.chance.once_in(2) {
            true => self.ledger.hot,
            false => self.chance.below(RESOURCES),
        };
        let flavour = *self.chance.choose(&CacheFlavour::ALL);
        let way = *self.chance.choose(&ProxiedWay::ALL);
        let crowd = self.ledger.crowd.filter(|_| !self.chance.once_in(5));
        let kind = match (crowd, self.chance.below(20)) {
            (Some(flavour), _) => AskedKind::Cached(flavour, self.ledger.hot),
            (None, 0 | 1) => AskedKind::Return(self.chance.once_in(2)),
            (None, 2 | 3) => AskedKind::File(self.chance.below(FILES)),
            (None, 4) => AskedKind::Proxied(resource, ProxiedWay::Plain),
            (None, 5 | 6) => AskedKind::Proxied(resource, way),
            (None, 7) => AskedKind::Limited(resource, self.chance.once_in(2)),
            (None, 8..=10) => AskedKind::Cached(CacheFlavour::Plain, resource),
            (None, 11..=13) => AskedKind::Cached(CacheFlavour::Stale, resource),
            (None, _) => AskedKind::Cached(flavour, resource),
        };
        let name = match kind {
            AskedKind::Return(_) => "return",
            AskedKind::File(_) => "file",
            AskedKind::Proxied(_, way) => way.name(),
            AskedKind::Limited(..) => "limited",
            AskedKind::Cached(flavour, _) => flavour.name(),
        };
        let is_of_origin = !matches!(kind, AskedKind::Return(_) | AskedKind::File(_));
        let is_cut = self.cuts.has(name) || is_of_origin && self.cuts.has_one("resource", resource);
        if is_cut {
            AskedKind::Return(false)
        } else {
            kind
        }
    }

    /// What is asked for next; whether it has a body.
    fn draw_request(&mut self) -> (AskedRequest, bool) {
        let kind = self.draw_kind();
        let uploads = self.chance.once_in(3) && !self.cuts.has("uploads");
        let uploads = uploads && matches!(kind, AskedKind::Proxied(..));
        let purges_in = if self.plan.are_crowd { 6 } else { 16 };
        let purges = self.chance.once_in(purges_in) && !self.cuts.has("purges");
        // Slices have keys that a client does not know.
        let has_key =
            matches!(kind, AskedKind::Cached(flavour, _) if flavour != CacheFlavour::Slice);
        let mode = *self
            .chance
            .choose(&[PurgeMode::Hard, PurgeMode::Soft, PurgeMode::Soft]);
        let purge = (purges && has_key).then_some(mode);
        let is_head =
            self.chance.once_in(10) && !self.cuts.has("heads") && !uploads && purge.is_none();
        let may_range = match kind {
            AskedKind::File(_) => true,
            AskedKind::Cached(CacheFlavour::Parts | CacheFlavour::Slice, _) => true,
            // They may have fetches of their own: not where single fetches are counted.
            AskedKind::Cached(..) => !self.plan.is_calm,
            AskedKind::Return(_) | AskedKind::Proxied(..) | AskedKind::Limited(..) => false,
        };
        let ranges = self.chance.once_in(3) && !self.cuts.has("ranges");
        let (from, to) = self.draw_range();
        let asked = AskedRequest {
            kind,
            is_head,
            purge,
            variant: self.chance.below(VARIANTS),
            range: (may_range && ranges && !is_head && purge.is_none()).then_some((from, to)),
            upload: None,
            started: 0,
            purged: PurgeTimes::default(),
            latest_hit: 0,
        };
        (asked, uploads)
    }

    /// The first and the last byte of a range. In a crowd they are few, so that one client's range is what another one lacks.
    fn draw_range(&mut self) -> (u64, u64) {
        let length = match self.plan.are_crowd {
            true => 10_000,
            false => 0,
        };
        let (from, to) = match length {
            0 => (self.chance.below(5_000), self.chance.below(70_000)),
            _ => (
                length * self.chance.below(4),
                length * (1 + self.chance.below(3)) - 1,
            ),
        };
        (from as u64, (from + to) as u64)
    }

    /// The head of a request, without the empty line.
    fn head_of(asked: &AskedRequest, uploads: bool) -> String {
        let path = match asked.kind {
            AskedKind::Return(_) => "/return".to_owned(),
            AskedKind::File(number) => format!("/file{number}"),
            AskedKind::Proxied(number, way) => format!("/{}/{number}", way.letter()),
            AskedKind::Limited(number, is_paced) => {
                format!("/{}/{number}", if is_paced { 'q' } else { 'n' })
            }
            AskedKind::Cached(flavour, number) if asked.purge == Some(PurgeMode::Soft) => {
                format!(
                    "/purge?key=http://origin/{}/{number}&soft",
                    flavour.letter()
                )
            }
            AskedKind::Cached(flavour, number) => format!("/{}/{number}", flavour.letter()),
        };
        let method = match (uploads, asked.is_head, asked.purge.is_some()) {
            (true, ..) => "POST",
            (_, true, _) => "HEAD",
            (.., true) => "PURGE",
            _ => "GET",
        };
        let host = match asked.kind {
            AskedKind::Return(true) => "second.simulated",
            _ => "simulated",
        };
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        if matches!(asked.kind, AskedKind::Cached(..)) {
            text += &format!("X-Asked: {}\r\n", asked.started);
        }
        if matches!(asked.kind, AskedKind::Cached(CacheFlavour::Vary, _)) {
            text += &format!("X-Variant: {}\r\n", asked.variant);
        }
        if let Some((from, to)) = asked.range {
            text += &format!("Range: bytes={from}-{to}\r\n");
        }
        text
    }

    /// One request and its response; false: the connection ends here.
    async fn ask(&mut self, stream: &mut ClientStream, leaves: bool) -> io::Result<bool> {
        let (mut asked, uploads) = self.draw_request();
        asked.started = clock::nanos();
        if let AskedKind::Cached(flavour, resource) = asked.kind {
            let known = self.ledger.state();
            let thing = (flavour, resource);
            let purged = known.purged.get(&thing).copied();
            let latest_hit = known.latest_hit.get(&thing).copied();
            drop(known);
            asked.purged = purged.unwrap_or_default();
            asked.latest_hit = latest_hit.unwrap_or_default();
            if asked.purge.is_some() {
                self.ledger.note_purging(flavour, resource);
            }
        }
        self.ledger.state().asked += match asked.kind {
            AskedKind::Proxied(_, way) => way.requests(),
            _ => 1,
        };
        rt::simulation::note(|| format!("asks {asked:?}"));
        self.send(stream, &mut asked, uploads).await?;
        if leaves {
            count_fault("client leaves");
            rt::sleep(Duration::from_millis(self.chance.below(500) as u64)).await;
            return Ok(false);
        }
        let Some(head) = stream.head().await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let is_slow_reader =
            !self.plan.is_calm && self.chance.once_in(8) && !self.cuts.has("slow readers");
        if is_slow_reader {
            count_fault("slow reader");
        }
        let pause = async |have: usize| {
            if is_slow_reader && have < 20_000 {
                rt::sleep(Duration::from_millis(20)).await;
            }
        };
        let (body, end) = stream.body(&head, asked.is_head, pause).await;
        self.judge(&asked, &head, (&body, end));
        Ok(stream.keeps_alive(&head) && end == BodyEnd::Complete)
    }

    fn judge(&self, asked: &AskedRequest, head: &MessageHead, body: (&[u8], BodyEnd)) {
        if let (Some(mode), AskedKind::Cached(flavour, resource), Some(200 | 204 | 412)) =
            (asked.purge, asked.kind, head.status())
        {
            self.ledger
                .note_purged(flavour, resource, mode, asked.started);
        }
        let weather = JudgedWeather {
            is_calm: self.plan.is_calm,
            is_slow: self.plan.is_slow,
            has_room: self.plan.has_room,
        };
        rt::simulation::note(|| {
            let (first, number) = (&head.first, head.number("x-number"));
            let state = head.field("x-cache");
            format!("{first} with {number:?}, {state:?}, for {asked:?}")
        });
        if let Err(text) = check_response(&self.ledger, asked, head, body, weather) {
            self.ledger.violate(text);
        }
        self.ledger.count("responses");
        if let (AskedKind::Proxied(_, way), Some(200)) = (asked.kind, head.status()) {
            self.ledger.count(way.name());
        }
        if let Some(state) = head.field("x-cache") {
            self.ledger.count(match state {
                "HIT" => "HIT",
                "MISS" => "MISS",
                "EXPIRED" => "EXPIRED",
                "REVALIDATED" => "REVALIDATED",
                "STALE" => "STALE",
                "UPDATING" => "UPDATING",
                "-" => "not by a cache",
                _ => "other state of the cache",
            });
        }
    }

    /// Sends a request, with HTTP/1 a body in pieces.
    async fn send(
        &mut self,
        stream: &mut ClientStream,
        asked: &mut AskedRequest,
        uploads: bool,
    ) -> io::Result<()> {
        let mut text = SimulatedClient::head_of(asked, uploads);
        let mut bytes = Vec::new();
        if uploads {
            let len = *self.chance.choose(&[0, 10, 3_000, 40_000]);
            let (content, sum) = upload(self.chance.number() % 100, len);
            asked.upload = Some((len, sum));
            text += &format!("Content-Length: {len}\r\n");
            bytes = content;
        }
        let socket = match stream {
            ClientStream::H2(stream) => return stream.send(&text, &bytes).await,
            ClientStream::H1(stream) => &stream.socket,
        };
        socket.write_all(format!("{text}\r\n").as_bytes()).await?;
        for piece in bytes.chunks(1 + self.chance.below(9_000)) {
            socket.write_all(piece).await?;
            if self.chance.once_in(6) {
                rt::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

/// A connection of a client.
enum ClientStream {
    H1(MessageStream),
    H2(Box<H2Stream>),
}

impl ClientStream {
    fn is_h2(&self) -> bool {
        matches!(self, ClientStream::H2(_))
    }

    fn socket(&self) -> &StreamSocket {
        match self {
            ClientStream::H1(stream) => &stream.socket,
            ClientStream::H2(stream) => &stream.socket,
        }
    }

    async fn head(&mut self) -> io::Result<Option<MessageHead>> {
        match self {
            ClientStream::H1(stream) => stream.head().await,
            ClientStream::H2(stream) => stream.head().await,
        }
    }

    async fn body(
        &mut self,
        head: &MessageHead,
        is_head: bool,
        pause: impl AsyncFn(usize),
    ) -> (Vec<u8>, BodyEnd) {
        match self {
            ClientStream::H1(_) if is_head => (Vec::new(), BodyEnd::Complete),
            ClientStream::H1(stream) => stream.body(head, !head.keeps_alive(), pause).await,
            ClientStream::H2(stream) => stream.body(pause).await,
        }
    }

    /// Whether another request may follow this response.
    fn keeps_alive(&self, head: &MessageHead) -> bool {
        match self {
            ClientStream::H1(_) => head.keeps_alive(),
            ClientStream::H2(stream) => stream.is_free(),
        }
    }
}
