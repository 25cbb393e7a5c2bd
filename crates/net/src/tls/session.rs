//! TLS on a connection that stands: plaintext here, records on the socket.
//!
//! The protocol is rustls's, which does no I/O of its own: what the socket gives is handed to it, what it wants to send
//! is written to the socket. Two buffers exist besides: plaintext that a caller had no room for, at most what one read
//! of the socket held, and records that the socket had no room for, at most [`PENDING`] of plaintext and its overhead.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::task::{Context, Poll, ready};

use rt::net::Stream;
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use super::certificate::Certificate;
use super::names;
use super::verify::{Assessment, Trust};

/// How much is read from the socket at once, in bytes: a record with its overhead.
pub(super) const READ_SIZE: usize = 16 * 1024 + 512;

/// How much plaintext a connection takes before the socket has taken the records of it, in bytes.
const PENDING: usize = 64 * 1024;

rt::local! {
    /// What connections of this loop read into, one at a time.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The state of TLS on a connection.
pub struct Session {
    state: RefCell<State>,
    facts: Facts,
}

/// What was agreed on, and what the peer offered.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) server_name: Option<Box<str>>,
    /// Numbers of cipher suites, of groups and of signature schemes that a client offered, in its order.
    pub(super) offered_ciphers: Vec<u16>,
    pub(super) offered_groups: Vec<u16>,
    pub(super) offered_schemes: Vec<u16>,
    /// The scheme of the server's signature, when it signed.
    pub(super) scheme: Cell<Option<u16>>,
    /// The peer's certificate, judged; `None` when nobody asked for one.
    pub(super) assessment: Option<Assessment>,
    /// The name of the session: the same for all connections that resume it.
    pub(super) id: Vec<u8>,
}

pub(super) struct State {
    pub(super) tls: Connection,
    /// Plaintext for which rustls had no room, before what it holds.
    spilled: Vec<u8>,
    /// How much of it has been taken.
    taken: usize,
    /// The peer sends no more.
    ended: bool,
    broken: Option<Broken>,
    /// The socket has refused records.
    stuck: bool,
    /// The client sends early data that is not taken.
    skips: bool,
}

/// Why the connection is of no use any more.
#[derive(Clone)]
enum Broken {
    Tls(rustls::Error),
    Io(io::ErrorKind, Option<i32>),
}

impl Broken {
    fn of(error: &io::Error) -> Broken {
        Broken::Io(error.kind(), error.raw_os_error())
    }

    fn to_error(&self) -> io::Error {
        match self {
            Broken::Tls(error) => io::Error::new(io::ErrorKind::InvalidData, error.clone()),
            Broken::Io(_, Some(number)) => io::Error::from_raw_os_error(*number),
            Broken::Io(kind, None) => (*kind).into(),
        }
    }
}

impl State {
    pub(super) fn new(tls: impl Into<Connection>) -> State {
        let mut tls = tls.into();
        tls.set_buffer_limit(Some(PENDING));
        State {
            tls,
            spilled: Vec::new(),
            taken: 0,
            ended: false,
            broken: None,
            stuck: false,
            skips: false,
        }
    }

    /// The same, of a client whose early data is not taken.
    pub(super) fn skipping(self, skips: bool) -> State {
        State { skips, ..self }
    }

    /// Hands over what the socket gave.
    pub(super) fn feed(&mut self, mut records: &[u8]) -> Result<(), rustls::Error> {
        let mut unseen = false;
        while !records.is_empty() {
            match self.tls.read_tls(&mut records) {
                // Early data that it skips rustls keeps until the client's next message, and tries and counts all of
                // it again whenever it looks: so it looks once at all that came.
                Ok(1..) if self.skips && self.tls.is_handshaking() && !records.is_empty() => {
                    unseen = true;
                }
                Ok(1..) => {
                    unseen = false;
                    self.process()?;
                }
                Ok(0) | Err(_) if std::mem::take(&mut unseen) => self.process()?,
                // There is plaintext enough in there. (A slice does not fail.)
                Ok(0) | Err(_) if self.spill() => {}
                // Behind the peer's word that it has ended nothing counts.
                Ok(0) => break,
                // A message without an end.
                Err(_) => return Err(rustls::Error::PeerSentOversizedRecord),
            }
        }
        Ok(())
    }

    /// Decrypts what was handed over.
    pub(super) fn process(&mut self) -> Result<(), rustls::Error> {
        let state = self.tls.process_new_packets()?;
        if state.peer_has_closed() {
            self.ended = true;
        }
        if let Connection::Server(server) = &mut self.tls
            && let Some(mut early) = server.early_data()
        {
            // It is bounded by what the settings allow; nothing else comes before it.
            early.read_to_end(&mut self.spilled).ok();
        }
        Ok(())
    }

    /// Whether a client's early data is there. Asked of a handshake: what is spilled before its end is nothing else.
    pub(super) fn has_early_data(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Gives a server's session a number, unless it is one that has it already.
    pub(super) fn name_session(&mut self) -> Vec<u8> {
        let id = match self.resumed_name() {
            Some(id) => id,
            None => {
                let mut id = vec![0; 32];
                // Without random bytes there is no handshake anyway.
                let _ = super::provider::fill_random(&mut id);
                id
            }
        };
        if let Connection::Server(server) = &mut self.tls {
            server.set_resumption_data(&id);
        }
        id
    }

    /// The number of the session that is resumed.
    pub(super) fn resumed_name(&self) -> Option<Vec<u8>> {
        let Connection::Server(server) = &self.tls else {
            return None;
        };
        let id = server.received_resumption_data()?;
        (!id.is_empty()).then(|| id.to_vec())
    }

    /// Takes plaintext out of rustls; whether there was any.
    fn spill(&mut self) -> bool {
        let before = self.spilled.len();
        let mut spilled = std::mem::take(&mut self.spilled);
        // From behind what was spilled before: that is still the first.
        drain(&mut self.tls, &mut spilled, usize::MAX);
        self.spilled = spilled;
        self.spilled.len() > before
    }

    /// Appends at most `max` bytes of plaintext that is there.
    fn take(&mut self, buf: &mut Vec<u8>, max: usize) -> usize {
        let mut left = max;
        if self.taken < self.spilled.len() {
            let n = (self.spilled.len() - self.taken).min(left);
            buf.extend_from_slice(&self.spilled[self.taken..self.taken + n]);
            self.taken += n;
            left -= n;
            if self.taken == self.spilled.len() {
                self.spilled = Vec::new();
                self.taken = 0;
            }
        }
        left -= drain(&mut self.tls, buf, left);
        max - left
    }

    /// Sends records while the socket takes them; `WouldBlock` when it does not.
    pub(super) fn send(&mut self, socket: &Stream) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Output(socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stuck = true;
                    return Err(error);
                }
                Err(error) => {
                    self.broken = Some(Broken::of(&error));
                    return Err(error);
                }
            }
        }
        self.stuck = false;
        Ok(())
    }

    /// Takes in what the socket gave. 0: it has ended.
    fn received(&mut self, socket: &Stream, records: &[u8]) {
        if records.is_empty() {
            // Perhaps without its own word for it: what the connection carries says where it ends.
            self.ended = true;
        } else if let Err(error) = self.feed(records) {
            self.broken = Some(Broken::Tls(error));
            // The alert that says what was wrong; whether it arrives does not matter.
            let _ = self.send(socket);
        }
    }

    /// Sends what the socket has refused before: while that does not succeed nothing more is encrypted.
    fn send_if_stuck(&mut self, socket: &Stream) -> io::Result<()> {
        if self.stuck {
            self.send(socket)?;
        }
        Ok(())
    }

    /// Encrypts what there is room for.
    fn encrypt(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(broken) = &self.broken {
            return Err(broken.to_error());
        }
        self.tls.writer().write_vectored(bufs)
    }
}

/// Appends at most `max` bytes of what rustls has decrypted.
fn drain(tls: &mut Connection, out: &mut Vec<u8>, max: usize) -> usize {
    let mut left = max;
    while left > 0 {
        let mut reader = tls.reader();
        // `WouldBlock`: no more of it is there.
        let Ok(piece) = reader.fill_buf() else { break };
        let n = piece.len().min(left);
        if n == 0 {
            break;
        }
        out.extend_from_slice(&piece[..n]);
        reader.consume(n);
        left -= n;
    }
    max - left
}

/// The socket as rustls writes to it.
struct Output<'a>(&'a Stream);

impl Write for Output<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_writev(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    pub(super) fn new(state: State, facts: Facts) -> Session {
        Session {
            state: RefCell::new(state),
            facts,
        }
    }

    /// Appends plaintext, at most `max` bytes, out of the records that `receive` brings.
    fn read_with(
        &self,
        socket: &Stream,
        buf: &mut Vec<u8>,
        max: usize,
        mut receive: impl FnMut(&mut Vec<u8>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.borrow_mut();
        loop {
            let n = state.take(buf, max);
            if n > 0 || state.ended || max == 0 {
                return Poll::Ready(Ok(n));
            }
            if let Some(broken) = &state.broken {
                return Poll::Ready(Err(broken.to_error()));
            }
            let received = SCRATCH.with_borrow_mut(|scratch| {
                scratch.clear();
                let received = receive(scratch);
                if let Poll::Ready(Ok(_)) = received {
                    state.received(socket, scratch);
                }
                received
            });
            ready!(received)?;
        }
    }

    pub(crate) fn try_read_into(
        &self,
        socket: &Stream,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> io::Result<usize> {
        let result = self.read_with(socket, buf, max, |scratch| {
            Poll::Ready(socket.try_read_into(scratch, READ_SIZE))
        });
        match result {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(crate) fn poll_read_into(
        &self,
        socket: &Stream,
        context: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let result = self.read_with(socket, buf, max, |scratch| {
            socket.poll_read_into(context, scratch, READ_SIZE)
        });
        if result.is_pending() && self.has_pending() {
            // Nothing comes before the peer has got what it waits for. (An error shows with the next call.)
            let _ = self.poll_flush(socket, context);
        }
        result
    }

    pub(crate) fn try_writev(&self, socket: &Stream, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
        if state.tls.wants_write() {
            // Records that the socket has refused go first; those of this turn go along with what comes now.
            state.send_if_stuck(socket)?;
        }
        let n = state.encrypt(bufs)?;
        match state.send(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && n == 0 => Err(error),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(n),
        }
    }

    pub(crate) fn poll_writev(
        &self,
        socket: &Stream,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.try_writev(socket, bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            ready!(socket.poll_writable(context))?;
        }
    }

    /// Whether records wait for room in the socket.
    pub(crate) fn has_pending(&self) -> bool {
        self.state.borrow().tls.wants_write()
    }

    pub(crate) fn poll_flush(
        &self,
        socket: &Stream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.state.borrow_mut().send(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            ready!(socket.poll_writable(context))?;
        }
    }

    /// Tells the peer that no more comes, as far as the socket takes it now.
    pub(crate) fn say_goodbye(&self, socket: &Stream) {
        let mut state = self.state.borrow_mut();
        if state.broken.is_none() {
            // rustls says it once only.
            state.tls.send_close_notify();
            // A socket that takes nothing has a peer that does not listen.
            let _ = state.send(socket);
        }
    }

    /// Whether there is plaintext, or an end or error to tell of.
    pub(crate) fn is_readable(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.ended
            || state.broken.is_some()
            || state.taken < state.spilled.len()
            || matches!(state.tls.reader().fill_buf(), Ok([_, ..]))
    }

    /// Whether the peer has neither sent anything nor closed. Its messages that concern TLS alone do not count: a
    /// server sends tickets whenever it likes.
    pub(crate) fn is_quiet(&self, socket: &Stream) -> bool {
        if self.is_readable() {
            return false;
        }
        if socket.is_quiet() {
            return true;
        }
        let mut nothing = Vec::new();
        match self.try_read_into(socket, &mut nothing, 1) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(_) => false,
        }
    }

    // -- what was agreed on --

    /// The version of the protocol, as OpenSSL calls it: `TLSv1.3`.
    pub fn protocol(&self) -> &'static str {
        match self.state.borrow().tls.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
            _ => "TLSv1.2",
        }
    }

    /// The cipher suite, as OpenSSL calls it.
    pub fn cipher(&self) -> &'static str {
        let state = self.state.borrow();
        let suite = state.tls.negotiated_cipher_suite();
        suite.map_or("", |suite| {
            names::cipher_name(suite.suite().into()).unwrap_or("")
        })
    }

    /// The group that the keys were exchanged in, as OpenSSL calls it; `None` in a TLS 1.2 session that was resumed.
    pub fn curve(&self) -> Option<String> {
        let state = self.state.borrow();
        let group = state.tls.negotiated_key_exchange_group()?;
        Some(names::group_name(group.name().into()))
    }

    /// The protocol that was agreed on by ALPN.
    pub fn alpn(&self) -> Option<Vec<u8>> {
        self.state.borrow().tls.alpn_protocol().map(<[u8]>::to_vec)
    }

    /// Whether HTTP/2 was agreed on.
    pub fn is_http2(&self) -> bool {
        self.state.borrow().tls.alpn_protocol() == Some(b"h2")
    }

    /// Whether an earlier session was resumed.
    pub fn is_resumed(&self) -> bool {
        self.state.borrow().tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// The server name that a client asked for (SNI), in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.facts.server_name.as_deref()
    }

    /// The number of the session, which those that resume it share. Empty at an upstream.
    pub fn id(&self) -> &[u8] {
        &self.facts.id
    }

    /// Whether what is read now came before the handshake was complete: somebody else may have sent it again.
    pub fn is_early(&self) -> bool {
        self.state.borrow().tls.is_handshaking()
    }

    /// The cipher suites that a client offered, as OpenSSL calls them, with colons between.
    pub fn offered_ciphers(&self) -> String {
        names::list(&self.facts.offered_ciphers, |number| {
            names::cipher_name(number).map(str::to_owned)
        })
    }

    /// The groups that a client offered.
    pub fn offered_curves(&self) -> String {
        names::list(&self.facts.offered_groups, |number| {
            Some(names::group_name(number))
        })
    }

    /// The signature schemes that a client offered.
    pub fn offered_schemes(&self) -> String {
        names::list(&self.facts.offered_schemes, |number| {
            Some(names::scheme_name(number))
        })
    }

    /// The signature scheme that the server has signed with; `None` in a session that was resumed.
    pub fn scheme(&self) -> Option<String> {
        self.facts.scheme.get().map(names::scheme_name)
    }

    /// The peer's certificate, as it was sent.
    pub fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        let state = self.state.borrow();
        let first = state.tls.peer_certificates()?.first()?;
        Some(first.clone().into_owned())
    }

    /// What came of the examination of the peer's certificate; `None` when none was wanted.
    pub fn assessment(&self) -> Option<&Assessment> {
        self.facts.assessment.as_ref()
    }

    /// Judges it anew: more is known.
    pub(super) fn assess(&mut self, assessment: Assessment) {
        self.facts.assessment = Some(assessment);
    }

    /// The path from the peer's certificate to what is trusted.
    pub(super) fn path(&self, trust: &Trust) -> Vec<Certificate> {
        let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
        let state = self.state.borrow();
        let chain = state.tls.peer_certificates();
        chain.map_or_else(Vec::new, |chain| trust.path(chain, now))
    }
}
