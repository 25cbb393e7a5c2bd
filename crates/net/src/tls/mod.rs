//! TLS, by rustls: accepting it from clients and speaking it to upstream servers.
//!
//! - [`TlsSession`] is the TLS of an established connection; a [`crate::Transport`] carries it.
//! - `accept` reads a client's hello first, so that the configuration can be chosen by the name in it;
//!   [`connect`] is the client's side.
//! - [`TlsIdentity`] is a certificate chain with its key; [`TrustStore`] says which certificates to believe. A
//!   [`HandshakeOffer`] lets a script choose the chain while the client waits.
//! - [`ServerSettings`] and [`ClientSettings`] are built when the configuration is read and do not change.
//! - [`ocsp`] asks authorities whether certificates are revoked.
//! - Ticket keys and remembered sessions outlive configurations: [`TicketKeys`], [`SessionCache`].
//!
//! OpenSSL's names are used for everything that users see: configurations, variables and logs.

mod accept;
mod certificate;
mod checked_pairs;
mod ciphers;
mod client;
mod config_error;
mod content_digest;
mod distinguished_names;
mod encrypted_key;
mod external_sessions;
mod handshake;
mod identity;
mod identity_cache;
mod names;
pub mod ocsp;
mod offer;
mod pem;
mod provider;
mod quic_handshake;
mod raw_hello;
mod server;
mod server_tls;
mod session;
mod session_cache;
mod shared_by_name;
mod system_trust;
mod tickets;
mod verify;

pub use accept::{ReceivedHello, TlsOrPlain, read_hello};
pub use certificate::CertificateView;
pub use ciphers::{CipherChoice, TlsProtocols};
pub use client::{
    ClientName, ClientOptions, ClientSessions, ClientSettings, begin_session, connect,
};
pub use config_error::{TlsConfigError, certificate_missing};
pub use external_sessions::{KeptSession, SessionKeeper};
pub use handshake::HandshakeError;
pub(crate) use handshake::openssl_reason;
pub use identity::{TlsIdentity, load_file, read_passwords};
pub use identity_cache::IdentityCache;
pub use offer::{
    CertificateChain, CertificateKey, HandshakeChoice, HandshakeHandler, HandshakeOffer,
    HandshakePhase, HandshakeRefused,
};
pub use provider::{fill_random, warm_up};
pub(crate) use quic_handshake::agreed_parameters;
pub use quic_handshake::{QuicHandshake, alert_of};
pub use server::{ClientCertificates, ServerOptions, ServerSettings};
pub use server_tls::{CertificateRefusal, ServerTls, VerifyClient, full_path};
pub(crate) use session::AgreedParameters;
pub use session::TlsSession;
pub use session_cache::SessionCache;
pub use system_trust::system_trust;
pub use tickets::{TicketKey, TicketKeys, TicketSecret};
pub use verify::{CertificatePurpose, TrustStore, VerifyError, VerifyResult};
