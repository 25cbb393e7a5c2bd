//! TLS on an established connection: plaintext on this side, records on the socket.
//!
//! rustls implements the protocol without I/O: it is given what the socket received, and what it wants to send is
//! written to the socket. Two more buffers exist: plaintext that the caller had no room for, at most what one read
//! of the socket contained; and records that the socket had no room for, at most [`PENDING`] bytes of plaintext and
//! their overhead.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::task::{Context, Poll, ready};

use rt::net::StreamSocket;
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use super::certificate::Certificate;
use super::names;
use super::verify::{TrustStore, VerifyResult};

/// How much is read from the socket at once, in bytes: the largest record with its overhead.
pub(super) const READ_SIZE: usize = 16 * 1024 + 512;

/// How many bytes of plaintext are accepted before the socket has taken their records.
const PENDING: usize = 64 * 1024;

rt::local! {
    /// The receive buffer of all connections of this loop, which use it one at a time: an idle connection needs
    /// none.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The TLS of a connection.
pub struct TlsSession {
    state: TlsCarrier,
    facts: HandshakeFacts,
}

/// What runs under a session.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all sessions have records, and a box would be one more step for each of their reads"
)]
enum TlsCarrier {
    /// Records, on a socket.
    Records(RefCell<TlsState>),
    /// QUIC, which has the keys.
    Quic {
        agreed: AgreedParameters,
        /// The handshake is not complete: what is read is early data.
        is_early: Cell<bool>,
    },
}

/// What a QUIC handshake has agreed on, by the numbers on the wire.
#[derive(Clone, Default)]
pub(crate) struct AgreedParameters {
    pub(crate) cipher: Option<u16>,
    pub(crate) group: Option<u16>,
    pub(crate) alpn: Option<Vec<u8>>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) is_resumed: bool,
}

/// What was negotiated and what the peer offered, for variables and logs.
#[derive(Default)]
pub(super) struct HandshakeFacts {
    pub(super) server_name: Option<Box<str>>,
    /// The numbers of the cipher suites, groups and signature schemes that a client offered, in its order.
    pub(super) offered_ciphers: Vec<u16>,
    pub(super) offered_groups: Vec<u16>,
    pub(super) offered_schemes: Vec<u16>,
    /// The scheme of the server's signature, if it signed.
    pub(super) scheme: Cell<Option<u16>>,
    /// The result of verifying the peer's certificate; `None` if none was asked for.
    pub(super) verify_result: Option<VerifyResult>,
    /// The session's number: the same for all connections that resume it.
    pub(super) id: Vec<u8>,
}

pub(super) struct TlsState {
    pub(super) tls: Connection,
    /// Plaintext that was taken out because rustls had no more room. It comes before what rustls still holds.
    spilled: Vec<u8>,
    /// How much of it the caller has read.
    taken: usize,
    /// The peer has finished sending.
    ended: bool,
    broken: Option<TlsFailure>,
    /// The socket had no room for some records.
    stuck: bool,
    /// The client sends early data that is not accepted and has to be skipped.
    skips: bool,
}

/// The error that has ended the connection. Kept, because every later call must report it too.
#[derive(Clone)]
enum TlsFailure {
    Tls(rustls::Error),
    Io(io::ErrorKind, Option<i32>),
}

impl TlsFailure {
    fn of(error: &io::Error) -> TlsFailure {
        TlsFailure::Io(error.kind(), error.raw_os_error())
    }

    fn to_error(&self) -> io::Error {
        match self {
            TlsFailure::Tls(error) => io::Error::new(io::ErrorKind::InvalidData, error.clone()),
            TlsFailure::Io(_, Some(number)) => io::Error::from_raw_os_error(*number),
            TlsFailure::Io(kind, None) => (*kind).into(),
        }
    }
}

impl TlsState {
    pub(super) fn new(tls: impl Into<Connection>) -> TlsState {
        let mut tls = tls.into();
        tls.set_buffer_limit(Some(PENDING));
        TlsState {
            tls,
            spilled: Vec::new(),
            taken: 0,
            ended: false,
            broken: None,
            stuck: false,
            skips: false,
        }
    }

    /// Notes whether the client's early data has to be skipped.
    pub(super) fn skipping_early_data(self, skips: bool) -> TlsState {
        TlsState { skips, ..self }
    }

    /// Passes received bytes to rustls.
    pub(super) fn feed_records(&mut self, mut records: &[u8]) -> Result<(), rustls::Error> {
        let mut unseen = false;
        while !records.is_empty() {
            match self.tls.read_tls(&mut records) {
                // rustls keeps skipped early data until the client's next message, and tries and counts all of it
                // again whenever it processes. So it processes once, with all that was received.
                Ok(1..) if self.skips && self.tls.is_handshaking() && !records.is_empty() => {
                    unseen = true;
                }
                Ok(1..) => {
                    unseen = false;
                    self.decrypt_records()?;
                }
                Ok(0) | Err(_) if std::mem::take(&mut unseen) => self.decrypt_records()?,
                // rustls is full of plaintext: it is taken out, and feeding goes on. (Reading from a slice cannot
                // fail.)
                Ok(0) | Err(_) if self.spill() => {}
                // Anything after the peer's close_notify is ignored (RFC 8446, section 6.1).
                Ok(0) => break,
                // A message that exceeds every limit.
                Err(_) => return Err(rustls::Error::PeerSentOversizedRecord),
            }
        }
        Ok(())
    }

    /// Decrypts what was fed.
    pub(super) fn decrypt_records(&mut self) -> Result<(), rustls::Error> {
        let state = self.tls.process_new_packets()?;
        if state.peer_has_closed() {
            self.ended = true;
        }
        if let Connection::Server(server) = &mut self.tls
            && let Some(mut early) = server.early_data()
        {
            // Limited by the settings' `max_early_data_size`. It precedes all other plaintext.
            early.read_to_end(&mut self.spilled).ok();
        }
        Ok(())
    }

    /// Whether early data of the client has arrived. Only valid during a handshake, when no other plaintext can be
    /// in the buffer.
    pub(super) fn has_early_data(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Gives a server's session a number, or keeps the number of a resumed one.
    pub(super) fn name_session(&mut self) -> Vec<u8> {
        let id = match self.resumed_name() {
            Some(id) => id,
            None => {
                let mut id = vec![0; 32];
                // Without randomness the handshake fails anyway.
                let _ = super::provider::fill_random(&mut id);
                id
            }
        };
        if let Connection::Server(server) = &mut self.tls {
            server.set_resumption_data(&id);
        }
        id
    }

    /// The number of the resumed session.
    pub(super) fn resumed_name(&self) -> Option<Vec<u8>> {
        let Connection::Server(server) = &self.tls else {
            return None;
        };
        let id = server.received_resumption_data()?;
        (!id.is_empty()).then(|| id.to_vec())
    }

    /// Takes plaintext out of rustls; returns whether there was any.
    fn spill(&mut self) -> bool {
        let before = self.spilled.len();
        let mut spilled = std::mem::take(&mut self.spilled);
        // Appended: what was taken out before comes first.
        drain(&mut self.tls, &mut spilled, usize::MAX);
        self.spilled = spilled;
        self.spilled.len() > before
    }

    /// Appends at most `max` bytes of available plaintext.
    fn take(&mut self, buf: &mut Vec<u8>, max: usize) -> usize {
        let mut left = max;
        if self.taken < self.spilled.len() {
            let n = (self.spilled.len() - self.taken).min(left);
            buf.extend_from_slice(&self.spilled[self.taken..self.taken + n]);
            self.taken += n;
            left -= n;
            if self.taken == self.spilled.len() {
                // Frees the memory: this buffer is rare, and an idle connection should hold none.
                self.spilled = Vec::new();
                self.taken = 0;
            }
        }
        left -= drain(&mut self.tls, buf, left);
        max - left
    }

    /// Sends records until the socket is full (`WouldBlock`) or none is left.
    pub(super) fn send(&mut self, socket: &StreamSocket) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut RecordOutput(socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stuck = true;
                    return Err(error);
                }
                Err(error) => {
                    self.broken = Some(TlsFailure::of(&error));
                    return Err(error);
                }
            }
        }
        self.stuck = false;
        Ok(())
    }

    /// Handles received bytes; none means the end of the stream.
    fn received(&mut self, socket: &StreamSocket, records: &[u8]) {
        if records.is_empty() {
            // Possibly without a close_notify. Many peers omit it, and the protocol above knows whether its message
            // is complete.
            self.ended = true;
        } else if let Err(error) = self.feed_records(records) {
            self.broken = Some(TlsFailure::Tls(error));
            // Sends the alert. It does not matter whether it arrives.
            let _ = self.send(socket);
        }
    }

    /// Sends what the socket had no room for. Until that succeeds nothing more is encrypted, which is what limits
    /// the buffer.
    fn send_if_stuck(&mut self, socket: &StreamSocket) -> io::Result<()> {
        if self.stuck {
            self.send(socket)?;
        }
        Ok(())
    }

    /// Encrypts as much as there is room for.
    fn encrypt(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(broken) = &self.broken {
            return Err(broken.to_error());
        }
        self.tls.writer().write_vectored(bufs)
    }
}

/// Appends at most `max` bytes of plaintext from rustls.
fn drain(tls: &mut Connection, out: &mut Vec<u8>, max: usize) -> usize {
    let mut left = max;
    while left > 0 {
        let mut reader = tls.reader();
        // `WouldBlock`: there is no more.
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
struct RecordOutput<'a>(&'a StreamSocket);

impl Write for RecordOutput<'_> {
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

impl TlsSession {
    pub(super) fn new(state: TlsState, facts: HandshakeFacts) -> TlsSession {
        TlsSession {
            state: TlsCarrier::Records(RefCell::new(state)),
            facts,
        }
    }

    /// The session of a QUIC connection, which reads and writes nothing.
    pub(super) fn of_quic(agreed: AgreedParameters, facts: HandshakeFacts) -> TlsSession {
        TlsSession {
            state: TlsCarrier::Quic {
                agreed,
                is_early: Cell::new(false),
            },
            facts,
        }
    }

    /// Says whether the handshake of a QUIC connection is still to be completed.
    pub(crate) fn set_early(&self, early: bool) {
        if let TlsCarrier::Quic { is_early, .. } = &self.state {
            is_early.set(early);
        }
    }

    /// The records; an error for a session that has none.
    #[inline]
    fn records(&self) -> io::Result<&RefCell<TlsState>> {
        match &self.state {
            TlsCarrier::Records(state) => Ok(state),
            TlsCarrier::Quic { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Appends at most `max` bytes of plaintext, from the records that `receive` reads.
    fn read_with(
        &self,
        socket: &StreamSocket,
        buf: &mut Vec<u8>,
        max: usize,
        mut receive: impl FnMut(&mut Vec<u8>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.records()?.borrow_mut();
        loop {
            let n = state.take(buf, max);
            // Plaintext first, then the end, then the error: data that was received before a failure is still
            // delivered.
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
        socket: &StreamSocket,
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
        socket: &StreamSocket,
        context: &mut Context<'_>,
        buf: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let result = self.read_with(socket, buf, max, |scratch| {
            socket.poll_read_into(context, scratch, READ_SIZE)
        });
        if result.is_pending() && self.has_pending() {
            // The caller waits for the peer, which may itself wait for records that are still here. (An error is
            // reported by the next call.)
            let _ = self.poll_flush(socket, context);
        }
        result
    }

    pub(crate) fn try_writev(
        &self,
        socket: &StreamSocket,
        bufs: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let mut state = self.records()?.borrow_mut();
        if state.tls.wants_write() {
            // Records that the socket had no room for go first. Others that are pending, such as tickets, leave
            // together with the new ones.
            state.send_if_stuck(socket)?;
        }
        let n = state.encrypt(bufs)?;
        match state.send(socket) {
            // Once plaintext was accepted, "would block" must not be reported: the caller would send it twice.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && n == 0 => Err(error),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(n),
        }
    }

    pub(crate) fn poll_writev(
        &self,
        socket: &StreamSocket,
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
        self.records()
            .is_ok_and(|state| state.borrow().tls.wants_write())
    }

    pub(crate) fn poll_flush(
        &self,
        socket: &StreamSocket,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let state = self.records()?;
        loop {
            match state.borrow_mut().send(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            ready!(socket.poll_writable(context))?;
        }
    }

    /// Sends a close_notify, as far as the socket takes it now.
    pub(crate) fn say_goodbye(&self, socket: &StreamSocket) {
        let Ok(state) = self.records() else { return };
        let mut state = state.borrow_mut();
        if state.broken.is_none() {
            // rustls sends it only once.
            state.tls.send_close_notify();
            // If the socket is full, the peer is not reading, and would not see the alert either.
            let _ = state.send(socket);
        }
    }

    /// Whether there is plaintext, an end or an error to report.
    pub(crate) fn is_readable(&self) -> bool {
        let Ok(state) = self.records() else {
            return false;
        };
        let mut state = state.borrow_mut();
        state.ended
            || state.broken.is_some()
            || state.taken < state.spilled.len()
            || matches!(state.tls.reader().fill_buf(), Ok([_, ..]))
    }

    /// Whether the peer has neither sent data nor closed. TLS's own messages do not count: a server may send
    /// tickets at any time.
    pub(crate) fn is_quiet(&self, socket: &StreamSocket) -> bool {
        if self.is_readable() {
            return false;
        }
        if socket.is_quiet() {
            return true;
        }
        // The socket has something. Only decrypting it tells whether it is data.
        let mut nothing = Vec::new();
        match self.try_read_into(socket, &mut nothing, 1) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(_) => false,
        }
    }

    // -- what was agreed on --

    /// The protocol version in OpenSSL's form: `TLSv1.3`.
    pub fn protocol(&self) -> &'static str {
        match &self.state {
            TlsCarrier::Records(state) => match state.borrow().tls.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
                _ => "TLSv1.2",
            },
            TlsCarrier::Quic { .. } => "TLSv1.3",
        }
    }

    /// The cipher suite by OpenSSL's name.
    pub fn cipher(&self) -> &'static str {
        let suite = match &self.state {
            TlsCarrier::Records(state) => {
                let suite = state.borrow().tls.negotiated_cipher_suite();
                suite.map(|suite| suite.suite().into())
            }
            TlsCarrier::Quic { agreed, .. } => agreed.cipher,
        };
        suite.and_then(names::cipher_name).unwrap_or("")
    }

    /// The key exchange group by OpenSSL's name; `None` in a resumed TLS 1.2 session, which has no key exchange.
    pub fn curve(&self) -> Option<String> {
        let group = match &self.state {
            TlsCarrier::Records(state) => {
                let group = state.borrow().tls.negotiated_key_exchange_group()?;
                group.name().into()
            }
            TlsCarrier::Quic { agreed, .. } => agreed.group?,
        };
        Some(names::group_name(group))
    }

    /// The protocol negotiated by ALPN.
    pub fn alpn(&self) -> Option<Vec<u8>> {
        match &self.state {
            TlsCarrier::Records(state) => state.borrow().tls.alpn_protocol().map(<[u8]>::to_vec),
            TlsCarrier::Quic { agreed, .. } => agreed.alpn.clone(),
        }
    }

    /// Whether HTTP/2 was negotiated.
    pub fn is_http2(&self) -> bool {
        let TlsCarrier::Records(state) = &self.state else {
            return false;
        };
        state.borrow().tls.alpn_protocol() == Some(b"h2")
    }

    /// Whether an earlier session was resumed.
    pub fn is_resumed(&self) -> bool {
        match &self.state {
            TlsCarrier::Records(state) => {
                state.borrow().tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
            }
            TlsCarrier::Quic { agreed, .. } => agreed.is_resumed,
        }
    }

    /// The server name that a client asked for (SNI), in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.facts.server_name.as_deref()
    }

    /// The session's number, which connections that resume it share. Empty at an upstream.
    pub fn id(&self) -> &[u8] {
        &self.facts.id
    }

    /// Whether data read now arrived before the handshake was complete: an attacker may have replayed it (RFC
    /// 8470).
    pub fn is_early(&self) -> bool {
        match &self.state {
            TlsCarrier::Records(state) => state.borrow().tls.is_handshaking(),
            TlsCarrier::Quic { is_early, .. } => is_early.get(),
        }
    }

    /// The cipher suites that a client offered, by OpenSSL's names, separated by colons.
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

    /// The scheme of the server's signature; `None` in a resumed session.
    pub fn scheme(&self) -> Option<String> {
        self.facts.scheme.get().map(names::scheme_name)
    }

    /// The peer's certificate, as it was sent.
    pub fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        self.with_chain(|chain| Some(chain.first()?.clone().into_owned()))?
    }

    /// Lends the peer's certificates; `None` if it has sent none.
    fn with_chain<R>(&self, f: impl FnOnce(&[CertificateDer<'_>]) -> R) -> Option<R> {
        match &self.state {
            TlsCarrier::Records(state) => state.borrow().tls.peer_certificates().map(f),
            TlsCarrier::Quic { agreed, .. } => (!agreed.chain.is_empty()).then(|| f(&agreed.chain)),
        }
    }

    /// The result of verifying the peer's certificate; `None` if none was wanted.
    pub fn verify_result(&self) -> Option<&VerifyResult> {
        self.facts.verify_result.as_ref()
    }

    /// Replaces the result: a later check (OCSP) has found more.
    pub(super) fn set_verify_result(&mut self, verify_result: VerifyResult) {
        self.facts.verify_result = Some(verify_result);
    }

    /// The path from the peer's certificate to a trusted one.
    pub(super) fn certificate_path(&self, trust: &TrustStore) -> Vec<Certificate> {
        let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
        self.with_chain(|chain| trust.build_path(chain, now))
            .unwrap_or_default()
    }
}
