//! TLS, by rustls: accepting it from clients and speaking it to upstream servers.
//!
//! - [`Session`] is TLS on a connection that stands; a [`crate::Transport`] carries it.
//! - [`accept`] has a client's hello read first, so that the configuration can choose by the name that the client asks
//!   for; [`connect`] speaks to a server.
//! - [`Identity`] is a certificate chain with its key; [`Trust`] is whom to believe. An [`Offer`] is for who chooses the
//!   chain while the client waits.
//! - [`ServerSettings`] and [`ClientSettings`] are built when the configuration is read and do not change.
//! - [`ocsp`] asks authorities about certificates.
//! - Ticket keys and remembered sessions outlive configurations: [`Tickets`], [`SessionCache`].
//!
//! What OpenSSL calls things is kept: configurations, variables and logs use its names.

mod accept;
mod cache;
mod certificate;
mod ciphers;
mod client;
mod encrypted;
mod handshake;
mod identity;
mod kept;
mod names;
mod names_of;
pub mod ocsp;
mod offer;
mod pem;
mod raw_hello;
mod server;
mod service;
mod session;
mod sessions;
mod shared;
mod tickets;
mod verify;

use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};

pub use accept::{Beginning, Hello, read_hello};
pub use cache::IdentityCache;
pub use certificate::Shown;
pub use ciphers::{Choice, Protocols};
pub use client::{ClientName, ClientOptions, ClientSettings, Sessions, connect};
pub use handshake::HandshakeError;
pub(crate) use handshake::words;
pub use identity::{Identity, load_file, read_passwords};
pub use kept::{Keeping, KeptSession};
pub use offer::{Chain, Key, Moment, Offer};
pub use server::{ClientCertificates, ServerOptions, ServerSettings};
pub use service::{Asks, Refusal, Service, full_path};
pub use session::Session;
pub use sessions::SessionCache;
pub use tickets::{TicketKey, Tickets};
pub use verify::{Assessment, Fault, Purpose, Trust};

/// What is wrong with a setting, in nginx's words, or with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The message.
    pub message: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Where systems keep the certificates that they trust, in one file: Debian and Alpine, Fedora, SUSE, BSD.
const SYSTEM_TRUST: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file of the certificates that this system trusts; `None`: none is installed.
pub fn system_trust() -> Option<&'static Path> {
    let mut known = SYSTEM_TRUST.iter().map(Path::new);
    known.find(|path| path.is_file())
}

/// Has the cryptography collect its randomness. The first time in a process and on a thread it measures the jitter of the
/// clock for that, for many milliseconds: it is done before clients come, not while the first one waits.
pub fn warm_up() {
    thread_local! {
        static WARM: Cell<bool> = const { Cell::new(false) };
    }
    if !WARM.replace(true) {
        // Without randomness every handshake fails, which says why.
        let _ = aws_lc_rs::rand::fill(&mut [0; 32]);
    }
}

/// The cryptography: AWS-LC, which was measured against ring in `docs/design/2026-11-21-tls.md`.
fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// The signatures that can be checked.
fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}
