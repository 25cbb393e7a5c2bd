//! TLS as quinn-proto sees it: a handshake whose settings were chosen before it begins.
//!
//! The library's own session would do, but it does not tell which cipher suite was agreed on, and it cannot refuse a
//! client with an alert of our choice.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{KeyChange, Secrets, ServerConnection, Version};
use rustls::server::ResolvesServerCertUsingSni;

use super::path_proof::PathProof;
use crate::tls::agreed_parameters;

/// The only version that is spoken (RFC 9000).
pub(super) const VERSION: u32 = 1;

/// `internal_error` (RFC 8446, section 6.2).
const INTERNAL_ERROR: u8 = 80;

/// What protects Initial and Retry packets: the keys are public (RFC 9001, section 5.2), so no configuration changes them.
pub(super) static INITIAL: LazyLock<Option<Arc<QuicServerConfig>>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .ok()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    QuicServerConfig::try_from(config).ok().map(Arc::new)
});

/// How a client is answered.
pub(super) enum HandshakeCrypto {
    /// With a handshake.
    Accept {
        config: Arc<rustls::ServerConfig>,
        proof: Arc<PathProof>,
    },
    /// With an alert.
    Refuse(u8),
}

impl crypto::ServerConfig for HandshakeCrypto {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        let initial = INITIAL.as_ref().ok_or(UnsupportedVersion)?;
        initial.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, original: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        match &*INITIAL {
            Some(initial) => initial.retry_tag(version, original, packet),
            None => [0; 16],
        }
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let mut session = HandshakeSession {
            tls: None,
            alert: INTERNAL_ERROR,
            next: None,
            is_told: false,
            proof: Arc::default(),
        };
        match &*self {
            HandshakeCrypto::Refuse(alert) => session.alert = *alert,
            HandshakeCrypto::Accept { config, proof } => {
                let mut encoded = Vec::new();
                parameters.write(&mut encoded);
                // It fails for settings without TLS 1.3 only, which have been sorted out; then the alert says whose fault
                // it is.
                let tls = ServerConnection::new(Arc::clone(config), Version::V1, encoded);
                session.tls = tls.ok();
                session.proof = Arc::clone(proof);
            }
        }
        Box::new(session)
    }
}

struct HandshakeSession {
    /// `None`: the client is refused.
    tls: Option<ServerConnection>,
    alert: u8,
    next: Option<Secrets>,
    /// The library knows that there is something to ask for.
    is_told: bool,
    proof: Arc<PathProof>,
}

impl crypto::Session for HandshakeSession {
    fn initial_keys(&self, id: &ConnectionId, _side: Side) -> Keys {
        // The same call has succeeded when the packet was decoded.
        match INITIAL
            .as_ref()
            .map(|initial| crypto::ServerConfig::initial_keys(&**initial, VERSION, id))
        {
            Some(Ok(keys)) => keys,
            _ => unreachable!("a connection has begun, so there were keys for its first packet"),
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let tls = self.tls.as_ref()?;
        Some(Box::new(agreed_parameters(tls)))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.tls.as_ref()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_handshaking())
    }

    fn read_handshake(&mut self, message: &[u8]) -> Result<bool, TransportError> {
        let refuse = |alert: u8, reason: String| TransportError {
            code: TransportErrorCode::crypto(alert),
            frame: None,
            reason,
        };
        let Some(tls) = &mut self.tls else {
            return Err(refuse(self.alert, String::new()));
        };
        if let Err(error) = tls.read_hs(message) {
            let alert = tls.alert().map_or(INTERNAL_ERROR, Into::into);
            return Err(refuse(alert, error.to_string()));
        }
        Ok(!std::mem::replace(&mut self.is_told, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(mut encoded) = self
            .tls
            .as_ref()
            .and_then(|tls| tls.quic_transport_parameters())
        else {
            return Ok(None);
        };
        let parameters = TransportParameters::read(Side::Server, &mut encoded)?;
        Ok(Some(parameters))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let (keys, is_last) = match self.tls.as_mut()?.write_hs(out)? {
            KeyChange::Handshake { keys } => (keys, false),
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                (keys, true)
            }
        };
        let header = KeyPair::<Box<dyn HeaderKey>> {
            local: Box::new(keys.local.header),
            remote: Box::new(keys.remote.header),
        };
        let packet = match is_last {
            true => self.watched(keys.local.packet, keys.remote.packet),
            false => KeyPair {
                local: Box::new(keys.local.packet) as Box<dyn PacketKey>,
                remote: Box::new(keys.remote.packet),
            },
        };
        Some(Keys { header, packet })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(self.watched(keys.local, keys.remote))
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Servers do not receive Retry packets.
        false
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // Nothing here exports keys.
        Err(ExportKeyingMaterialError)
    }
}

type RustlsPacketKey = Box<dyn rustls::quic::PacketKey>;

impl HandshakeSession {
    fn watched(
        &self,
        local: RustlsPacketKey,
        remote: RustlsPacketKey,
    ) -> KeyPair<Box<dyn PacketKey>> {
        let watch = |key| -> Box<dyn PacketKey> {
            Box::new(WatchedKey {
                key,
                proof: Arc::clone(&self.proof),
            })
        };
        KeyPair {
            local: watch(local),
            remote: watch(remote),
        }
    }
}

/// A key of 1-RTT packets that, while a path is being validated, shows the challenges and responses in them.
struct WatchedKey {
    key: RustlsPacketKey,
    proof: Arc<PathProof>,
}

impl PacketKey for WatchedKey {
    fn encrypt(&self, packet: u64, buffer: &mut [u8], header_length: usize) {
        if self.proof.is_watching() {
            let end = buffer.len().saturating_sub(self.key.tag_len());
            self.proof
                .note_sent(buffer.get(header_length..end).unwrap_or_default());
        }
        PacketKey::encrypt(&self.key, packet, buffer, header_length);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        PacketKey::decrypt(&self.key, packet, header, payload)?;
        if self.proof.is_watching() {
            self.proof.note_received(payload);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}
