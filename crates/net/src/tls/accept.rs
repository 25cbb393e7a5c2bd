//! TLS from clients: the ClientHello is read first, and then the handshake runs with the settings that are chosen
//! by it.

use std::io::{self, Write};
use std::sync::Arc;

use rt::net::StreamSocket;
use rustls::server::{Accepted, Acceptor};
use rustls::{Error, PeerIncompatible, SignatureScheme};

use super::external_sessions::SessionKeeper;
use super::handshake::{self, HandshakeError};
use super::identity::TlsIdentity;
use super::raw_hello::RawHello;
use super::server::ServerSettings;
use super::session::{HandshakeFacts, READ_SIZE, TlsSession, TlsState};
use super::verify::{CertificatePurpose, VerifyResult};

/// A ClientHello that was read and not yet answered.
pub struct ReceivedHello {
    accepted: Accepted,
    /// Bytes that followed it.
    rest: Vec<u8>,
    raw: RawHello,
    facts: HandshakeFacts,
}

/// How a connection begins.
pub enum TlsOrPlain {
    /// With a ClientHello.
    Hello(Box<ReceivedHello>),
    /// With something else: these bytes.
    Plain(Vec<u8>),
}

/// Reads the ClientHello. `input` is what was already read of the connection.
pub async fn read_hello(
    socket: &StreamSocket,
    mut input: Vec<u8>,
) -> Result<TlsOrPlain, HandshakeError> {
    while input.is_empty() {
        receive(socket, &mut input).await?;
    }
    // A TLS handshake record, or the first byte of an SSL 2 hello, which OpenSSL takes for TLS too. Anything else
    // may be plain HTTP on a TLS port, which gets an error page.
    if input[0] != 0x16 && input[0] & 0x80 == 0 {
        return Ok(TlsOrPlain::Plain(input));
    }
    let mut acceptor = Acceptor::default();
    // The part that was read before, if the hello comes in pieces. The acceptor limits its size.
    let mut before = Vec::new();
    loop {
        let mut records = &input[..];
        while !records.is_empty() {
            // The acceptor refuses an endless message: a hello has at most 64 KB.
            if !matches!(acceptor.read_tls(&mut records), Ok(1..)) {
                return Err(HandshakeError::NotTls);
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let read = input.len() - records.len();
                    let begin = [before.as_slice(), &input[..read]].into_iter();
                    if names_ssl(begin.flatten().copied()) {
                        // A fatal alert: protocol_version. The connection is closed in any case, so it does not
                        // matter whether the alert arrives.
                        let _ = socket.try_write(&[0x15, 3, 3, 0, 2, 2, 70]);
                        let why = PeerIncompatible::SupportedVersionsExtensionRequired;
                        return Err(HandshakeError::Tls(Error::PeerIncompatible(why)));
                    }
                    let raw = match before.is_empty() {
                        true => RawHello::new(&input[..read]),
                        false => RawHello::new(&[&before[..], &input[..read]].concat()),
                    };
                    let hello = ReceivedHello::new(accepted, records, raw);
                    return Ok(TlsOrPlain::Hello(Box::new(hello)));
                }
                Err((error, mut alert)) => {
                    // The alert tells the client why. It does not matter whether it arrives.
                    let _ = alert.write(&mut AlertOutput(socket));
                    return Err(HandshakeError::Tls(error));
                }
            }
        }
        before.append(&mut input);
        receive(socket, &mut input).await?;
    }
}

/// Whether a hello has SSL 3.0 or less as its version, whatever its extensions say: it must be refused (RFC 8446,
/// appendix D.5). If its first record ends before the version, the question is left to the handshake.
fn names_ssl(mut hello: impl Iterator<Item = u8>) -> bool {
    // The headers of the record (5 bytes) and of the message (4 bytes).
    let mut head = [0; 9];
    head.fill_with(|| hello.next().unwrap_or(0));
    let length = usize::from(head[3]) << 8 | usize::from(head[4]);
    let version = (hello.next(), hello.next());
    length >= 6 && matches!(version, (Some(0..=2), Some(_)) | (Some(3), Some(0)))
}

async fn receive(socket: &StreamSocket, input: &mut Vec<u8>) -> Result<(), HandshakeError> {
    match socket.read_into(input, READ_SIZE).await {
        Ok(0) => Err(HandshakeError::Closed),
        Ok(_) => Ok(()),
        Err(error) => Err(HandshakeError::Io(error)),
    }
}

struct AlertOutput<'a>(&'a StreamSocket);

impl Write for AlertOutput<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ReceivedHello {
    fn new(accepted: Accepted, rest: &[u8], raw: RawHello) -> ReceivedHello {
        let hello = accepted.client_hello();
        let numbers =
            |groups: &[rustls::NamedGroup]| groups.iter().map(|group| u16::from(*group)).collect();
        let facts = HandshakeFacts {
            server_name: hello.server_name().map(Into::into),
            offered_ciphers: hello
                .cipher_suites()
                .iter()
                .map(|suite| u16::from(*suite))
                .collect(),
            offered_groups: hello.named_groups().map(numbers).unwrap_or_default(),
            offered_schemes: hello
                .signature_schemes()
                .iter()
                .map(|scheme| u16::from(*scheme))
                .collect(),
            ..HandshakeFacts::default()
        };
        ReceivedHello {
            accepted,
            rest: rest.to_vec(),
            raw,
            facts,
        }
    }

    /// The hello of these records, which were all read.
    pub(super) fn of_records(accepted: Accepted, records: &[u8]) -> ReceivedHello {
        ReceivedHello::new(accepted, &[], RawHello::new(records))
    }

    /// What the client offered.
    pub(super) fn into_facts(self) -> HandshakeFacts {
        self.facts
    }

    /// The server name that the client asks for (SNI), in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.facts.server_name.as_deref()
    }

    /// The protocols that the client offers by ALPN.
    pub fn alpn(&self) -> Vec<Vec<u8>> {
        let hello = self.accepted.client_hello();
        hello
            .alpn()
            .map(|names| names.map(<[u8]>::to_vec).collect())
            .unwrap_or_default()
    }

    /// The message itself, for what the library does not show of it.
    pub(super) fn raw(&self) -> &RawHello {
        &self.raw
    }

    /// Whether the client offers TLS 1.3. Its cipher suites do not tell: some clients list suites of versions that
    /// they do not speak.
    pub(super) fn offers_1_3(&self) -> bool {
        self.raw.offers_version(0x304)
    }

    /// The numbers of the cipher suites that the client offers, in its order.
    pub(super) fn offered_ciphers(&self) -> &[u16] {
        &self.facts.offered_ciphers
    }

    /// Refuses the client: no server has this name, or the server rejects all (`ssl_reject_handshake`).
    pub fn refuse_unknown_name(self, socket: &StreamSocket) -> HandshakeError {
        // A fatal alert: unrecognized_name (RFC 6066, section 3). It does not matter whether it arrives.
        let _ = socket.try_write(&[0x15, 3, 3, 0, 2, 2, 112]);
        HandshakeError::Refused
    }

    /// Ends the handshake because a script objects.
    pub fn abort_with_internal_error(self, socket: &StreamSocket) -> HandshakeError {
        // A fatal alert: internal_error (RFC 8446, section 6.2), which is what OpenSSL sends. It does not matter
        // whether it arrives.
        let _ = socket.try_write(&[0x15, 3, 3, 0, 2, 2, 80]);
        HandshakeError::Objection
    }

    /// Runs the handshake. `identities` replace those of the settings when the certificate depends on the client;
    /// `keeping` is an external store of sessions.
    pub async fn accept(
        self,
        socket: &StreamSocket,
        settings: &ServerSettings,
        identities: Option<Vec<Arc<TlsIdentity>>>,
        keeping: Option<&SessionKeeper>,
    ) -> Result<TlsSession, HandshakeError> {
        let ReceivedHello {
            accepted,
            rest,
            raw,
            mut facts,
        } = self;
        let (config, known) = match &identities {
            None => (Arc::clone(settings.config()), &settings.identities),
            Some(identities) => (settings.config_with(identities), identities),
        };
        if known.is_empty() {
            // A fatal alert: handshake_failure, which is what OpenSSL sends. It does not matter whether it arrives.
            let _ = socket.try_write(&[0x15, 3, 3, 0, 2, 2, 40]);
            return Err(HandshakeError::NoCertificate);
        }
        let ours = &config.alpn_protocols;
        let is_ours = |name: &[u8]| ours.iter().any(|own| own == name);
        if let Some(mut offered) = accepted.client_hello().alpn()
            && !ours.is_empty()
            && !offered.any(is_ours)
        {
            // Checked before the ServerHello: a TLS 1.3 client could not decrypt an alert after it. A fatal alert,
            // no_application_protocol (RFC 7301, section 3.2). It does not matter whether it arrives.
            let _ = socket.try_write(&[0x15, 3, 3, 0, 2, 2, 120]);
            return Err(HandshakeError::Tls(Error::NoApplicationProtocol));
        }
        let config = match keeping {
            Some(keeping) => keeping.config_with_store(&config),
            None => config,
        };
        // After the external store was added: a session found there decides whether early data is taken.
        let skipping = raw
            .early_offer()
            .and_then(|session| settings.config_skipping(&config, &session));
        let skips = skipping.is_some();
        let config = skipping.unwrap_or(config);
        // A large RSA key signs for milliseconds, in which no other connection of this loop would be served: such
        // handshakes run on a thread pool.
        let slow = known.iter().any(|identity| identity.is_slow());
        let begin = move || {
            accepted.into_connection(config).map(|connection| {
                // The hello is processed before the bytes that followed it: those may already be early data.
                let mut state = TlsState::new(connection).skipping_early_data(skips);
                let fed = state
                    .decrypt_records()
                    .and_then(|()| state.feed_records(&rest));
                (state, fed)
            })
        };
        let begun = if slow {
            handshake::handshake_pool().run(begin).await
        } else {
            begin()
        };
        let (mut state, fed) = begun.map_err(|(error, mut alert)| {
            let _ = alert.write(&mut AlertOutput(socket));
            HandshakeError::Tls(error)
        })?;
        if let Err(error) = fed {
            // Sends the alert.
            let _ = state.send(socket);
            return Err(HandshakeError::Tls(error));
        }
        // Before the handshake goes on: the number becomes part of the session that the client will get.
        facts.id = state.name_session();
        let mut state = handshake::drive_handshake(socket, state, slow).await?;
        finish(&mut state, settings, known, &mut facts);
        Ok(TlsSession::new(state, facts))
    }
}

/// Records what is known at the end of the handshake.
fn finish(
    state: &mut TlsState,
    settings: &ServerSettings,
    known: &[Arc<TlsIdentity>],
    facts: &mut HandshakeFacts,
) {
    if let Some(id) = state.resumed_name() {
        facts.id = id;
    }
    // A resumed session has no signature.
    if state.tls.handshake_kind() != Some(rustls::HandshakeKind::Resumed) {
        let new = state.tls.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
        facts.scheme.set(scheme_of(new, known, facts));
    }
    if let Some(trust) = settings.trust() {
        facts.verify_result = Some(match state.tls.peer_certificates() {
            None => VerifyResult::Absent,
            Some(chain) => {
                let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
                trust.verify_chain(chain, CertificatePurpose::Client, now)
            }
        });
    }
}

/// The scheme of our signature. The library does not tell, so the same choice is made again. `new`: TLS 1.3.
pub(super) fn scheme_of(
    new: bool,
    known: &[Arc<TlsIdentity>],
    facts: &HandshakeFacts,
) -> Option<u16> {
    let offered: Vec<SignatureScheme> = facts
        .offered_schemes
        .iter()
        .map(|number| SignatureScheme::from(*number))
        // TLS 1.3 does not allow PKCS #1 v1.5 padding in the handshake (RFC 8446, section 4.2.3).
        .filter(|scheme| !(new && super::server::is_pkcs1(*scheme)))
        .collect();
    let scheme = known
        .iter()
        .find_map(|identity| identity.scheme(&offered))?;
    Some(scheme.into())
}
