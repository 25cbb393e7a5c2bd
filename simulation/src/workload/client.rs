//! Clients: most of them ask and compare each byte, some are slow, rude or hostile.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rt::net::{SocketAddress, StreamSocket};
use rt::simulation::{clock, count_fault};

use super::invariants::{AskedKind, AskedRequest, PATIENCE_SECONDS, check_response, upload};
use super::ledger::{FILES, RESOURCES, WorkloadLedger};
use super::message::MessageStream;
use crate::chance::SeededChance;

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
}

impl SimulatedClient {
    /// Asks until it has asked enough.
    pub(crate) async fn run(mut self) {
        let mut left = self.plan.requests;
        while left > 0 {
            rt::sleep(Duration::from_millis(self.chance.below(3_000) as u64)).await;
            let most = 1 + self.chance.below(left);
            let patience = Duration::from_secs(PATIENCE_SECONDS * most as u64);
            match rt::timeout(patience, self.connection(most)).await {
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

    /// A connection with this number of requests.
    async fn connection(&mut self, requests: usize) -> io::Result<()> {
        let address = SocketAddress::Inet(self.plan.server);
        let socket = StreamSocket::connect(&address).await?;
        let mut stream = MessageStream::new(socket);
        for _ in 0..requests {
            if self.plan.are_hostile && self.chance.once_in(8) {
                return self.misbehave(&stream).await;
            }
            let leaves = !self.plan.is_calm && self.chance.once_in(12);
            if !self.ask(&mut stream, leaves).await? {
                return Ok(());
            }
            rt::sleep(Duration::from_millis(
                *self.chance.choose(&[0, 0, 1, 50, 2_000]),
            ))
            .await;
        }
        Ok(())
    }

    async fn misbehave(&mut self, stream: &MessageStream) -> io::Result<()> {
        count_fault("hostile client");
        let bytes = *self.chance.choose(&HOSTILE);
        let end = match self.chance.once_in(2) {
            true => self.chance.below(bytes.len()),
            false => bytes.len(),
        };
        stream.socket.write_all(&bytes[..end]).await?;
        match self.chance.below(3) {
            0 => rt::sleep(Duration::from_secs(self.chance.below(20) as u64)).await,
            1 => {
                count_fault("half-close");
                stream.socket.shutdown_write()?;
                rt::sleep(Duration::from_secs(1)).await;
            }
            _ => {}
        }
        Ok(())
    }

    fn draw_request(&mut self) -> AskedRequest {
        let kind = match self.chance.below(10) {
            0 => AskedKind::Return,
            1 | 2 => AskedKind::File(self.chance.below(FILES)),
            3 | 4 => AskedKind::Proxied(self.chance.below(RESOURCES)),
            _ => AskedKind::Cached(self.chance.below(RESOURCES)),
        };
        let uploads = matches!(kind, AskedKind::Proxied(_)) && self.chance.once_in(3);
        let is_head = !uploads && self.chance.once_in(10);
        // Ranges of what is cached may have fetches of their own: not where single fetches are counted.
        let may_range = matches!(kind, AskedKind::File(_))
            || (matches!(kind, AskedKind::Cached(_)) && !self.plan.is_calm);
        let range = (may_range && !is_head && self.chance.once_in(4)).then(|| {
            let from = self.chance.below(5_000) as u64;
            (from, from + self.chance.below(70_000) as u64)
        });
        AskedRequest {
            kind,
            is_head,
            range,
            upload: None,
            started: if uploads { 1 } else { 0 },
        }
    }

    /// One request and its response; false: the connection ends here.
    async fn ask(&mut self, stream: &mut MessageStream, leaves: bool) -> io::Result<bool> {
        let mut asked = self.draw_request();
        let uploads = asked.started == 1;
        let path = match asked.kind {
            AskedKind::Return => "/return".to_owned(),
            AskedKind::File(number) => format!("/file{number}"),
            AskedKind::Proxied(number) => format!("/p/{number}"),
            AskedKind::Cached(number) => format!("/c/{number}"),
        };
        let method = match (uploads, asked.is_head) {
            (true, _) => "POST",
            (_, true) => "HEAD",
            _ => "GET",
        };
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: simulated\r\n");
        if let Some((from, to)) = asked.range {
            text += &format!("Range: bytes={from}-{to}\r\n");
        }
        asked.started = clock::nanos();
        match uploads {
            true => self.upload(stream, text, &mut asked).await?,
            false => {
                stream
                    .socket
                    .write_all(format!("{text}\r\n").as_bytes())
                    .await?
            }
        }
        if leaves {
            count_fault("client leaves");
            rt::sleep(Duration::from_millis(self.chance.below(500) as u64)).await;
            return Ok(false);
        }
        let Some(head) = stream.head().await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let is_slow_reader = !self.plan.is_calm && self.chance.once_in(8);
        if is_slow_reader {
            count_fault("slow reader");
        }
        let no_framing = asked.is_head;
        let pause = async |have: usize| {
            if is_slow_reader && have < 20_000 {
                rt::sleep(Duration::from_millis(20)).await;
            }
        };
        let (body, end) = match no_framing {
            true => (Vec::new(), super::message::BodyEnd::Complete),
            false => stream.body(&head, !head.keeps_alive(), pause).await,
        };
        let calm = (self.plan.is_calm, self.plan.is_slow);
        if let Err(text) = check_response(&self.ledger, &asked, &head, (&body, end), calm) {
            self.ledger.violate(text);
        }
        self.ledger.count("responses");
        if let Some(state) = head.field("x-cache") {
            self.ledger.count(match state {
                "HIT" => "HIT",
                "MISS" => "MISS",
                "EXPIRED" => "EXPIRED",
                "REVALIDATED" => "REVALIDATED",
                "BYPASS" => "BYPASS",
                "-" => "not by a cache",
                _ => "other state of the cache",
            });
        }
        Ok(head.keeps_alive() && end == super::message::BodyEnd::Complete)
    }

    /// Sends a request with a body, in pieces.
    async fn upload(
        &mut self,
        stream: &MessageStream,
        mut text: String,
        asked: &mut AskedRequest,
    ) -> io::Result<()> {
        let len = *self.chance.choose(&[0, 10, 3_000, 40_000]);
        let (bytes, sum) = upload(self.chance.number() % 100, len);
        asked.upload = Some((len, sum));
        text += &format!("Content-Length: {len}\r\n\r\n");
        stream.socket.write_all(text.as_bytes()).await?;
        for piece in bytes.chunks(1 + self.chance.below(9_000)) {
            stream.socket.write_all(piece).await?;
            if self.chance.once_in(6) {
                rt::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}
