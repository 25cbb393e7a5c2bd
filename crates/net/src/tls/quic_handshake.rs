//! TLS inside QUIC (RFC 9001): the ClientHello comes in CRYPTO frames, and there are no records.
//!
//! What is chosen by the hello is chosen as for TLS over TCP. Sessions are kept apart from those: the context of a server's
//! tickets is another one here.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::quic::ServerConnection;
use rustls::server::Acceptor;
use rustls::{Error, HandshakeKind, PeerIncompatible, ServerConfig};

use super::accept::{ReceivedHello, scheme_of};
use super::handshake::HandshakeError;
use super::identity::TlsIdentity;
use super::server::ServerSettings;
use super::session::{AgreedParameters, HandshakeFacts, TlsSession};
use super::verify::{CertificatePurpose, TrustStore, VerifyResult};

/// The largest fragment of a record, in bytes.
const FRAGMENT: usize = 16 * 1024;

/// How many bytes of early data a server of QUIC says it takes: the limits are those of streams (RFC 9001, section 4.6.1).
const ANY_EARLY_DATA: u32 = u32::MAX;

/// The settings of one QUIC handshake, chosen by its hello.
pub struct QuicHandshake {
    pub(crate) config: Arc<ServerConfig>,
    facts: HandshakeFacts,
    known: Vec<Arc<TlsIdentity>>,
    trust: Option<Arc<TrustStore>>,
}

/// Why a hello cannot be answered, as QUIC tells it to the client: a TLS alert (RFC 9001, section 4.8).
pub fn alert_of(error: &HandshakeError) -> u8 {
    match error {
        HandshakeError::Refused => 112,
        HandshakeError::NoCertificate => 40,
        HandshakeError::Tls(Error::NoApplicationProtocol) => 120,
        HandshakeError::Tls(Error::PeerIncompatible(_)) => 70,
        HandshakeError::Tls(Error::InvalidMessage(_)) => 50,
        HandshakeError::Closed
        | HandshakeError::Io(_)
        | HandshakeError::Tls(_)
        | HandshakeError::Objection
        | HandshakeError::NotTls => 80,
    }
}

impl ReceivedHello {
    /// Reads a ClientHello: the handshake message, as CRYPTO frames carry it.
    pub fn of_message(message: &[u8]) -> Result<Box<ReceivedHello>, HandshakeError> {
        // The library reads hellos from records only.
        let mut records = Vec::with_capacity(message.len() + 16);
        for fragment in message.chunks(FRAGMENT) {
            let length = u16::try_from(fragment.len()).unwrap_or(u16::MAX);
            records.extend_from_slice(&[22, 3, 1]);
            records.extend_from_slice(&length.to_be_bytes());
            records.extend_from_slice(fragment);
        }
        let mut acceptor = Acceptor::default();
        let mut left = &records[..];
        while !left.is_empty() {
            if !matches!(acceptor.read_tls(&mut left), Ok(1..)) {
                return Err(HandshakeError::NotTls);
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Ok(Box::new(ReceivedHello::of_records(accepted, &records)));
                }
                Err((error, _)) => return Err(HandshakeError::Tls(error)),
            }
        }
        Err(HandshakeError::NotTls)
    }

    /// The settings of its handshake. `identities` replace those of the settings when the certificate depends on the client.
    pub fn prepare_quic(
        self,
        settings: &ServerSettings,
        identities: Option<Vec<Arc<TlsIdentity>>>,
    ) -> Result<QuicHandshake, HandshakeError> {
        let (config, known) = match identities {
            None => (
                Arc::clone(settings.config()),
                settings.identities().to_vec(),
            ),
            Some(identities) => (settings.config_with(&identities), identities),
        };
        if known.is_empty() {
            return Err(HandshakeError::NoCertificate);
        }
        if !self.offers_1_3() {
            let why = PeerIncompatible::SupportedVersionsExtensionRequired;
            return Err(HandshakeError::Tls(Error::PeerIncompatible(why)));
        }
        // RFC 9001, section 8.1: without an application protocol in common the connection must be closed.
        let offered = self.alpn();
        let is_ours = |name: &Vec<u8>| config.alpn_protocols.contains(name);
        if !offered.iter().any(is_ours) {
            return Err(HandshakeError::Tls(Error::NoApplicationProtocol));
        }
        let mut facts = self.into_facts();
        // The library keeps no data of ours with a session of QUIC, so one that is resumed gets another number.
        facts.id = vec![0; 32];
        // Without randomness the handshake fails anyway.
        let _ = super::provider::fill_random(&mut facts.id);
        Ok(QuicHandshake {
            config,
            facts,
            known,
            trust: settings.trust_store(),
        })
    }
}

impl QuicHandshake {
    /// What was agreed on, once the handshake is complete, or early data was accepted.
    pub(crate) fn into_session(self, agreed: AgreedParameters) -> TlsSession {
        let QuicHandshake {
            mut facts,
            known,
            trust,
            ..
        } = self;
        // A resumed session has no signature.
        if !agreed.is_resumed {
            facts.scheme.set(scheme_of(true, &known, &facts));
        }
        if let Some(trust) = trust {
            let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
            facts.verify_result = Some(match agreed.chain.is_empty() {
                true => VerifyResult::Absent,
                false => trust.verify_chain(&agreed.chain, CertificatePurpose::Client, now),
            });
        }
        TlsSession::of_quic(agreed, facts)
    }
}

/// What a QUIC handshake has agreed on so far.
pub(crate) fn agreed_parameters(tls: &ServerConnection) -> AgreedParameters {
    AgreedParameters {
        cipher: tls
            .negotiated_cipher_suite()
            .map(|suite| suite.suite().into()),
        group: tls
            .negotiated_key_exchange_group()
            .map(|group| group.name().into()),
        alpn: tls.alpn_protocol().map(<[u8]>::to_vec),
        chain: tls
            .peer_certificates()
            .map(|chain| chain.iter().map(|one| one.clone().into_owned()).collect())
            .unwrap_or_default(),
        is_resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
    }
}

impl ServerSettings {
    /// The settings for QUIC, with these ALPN protocols.
    pub fn with_quic(&self, alpn: Vec<Vec<u8>>) -> ServerSettings {
        let mut context = Context::new(&SHA256);
        context.update(b"QUIC");
        context.update(&self.context);
        let mut settings = self.with_protocol(alpn, |early_data| match early_data {
            0 => 0,
            _ => ANY_EARLY_DATA,
        });
        settings.context.copy_from_slice(context.finish().as_ref());
        settings
    }
}
