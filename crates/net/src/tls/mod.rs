//! TLS, by rustls: accepting it from clients and speaking it to upstream servers.
//!
//! - [`Session`] is the TLS of an established connection; a [`crate::Transport`] carries it.
//! - [`accept`] reads a client's hello first, so that the configuration can be chosen by the name in it;
//!   [`connect`] is the client's side.
//! - [`Identity`] is a certificate chain with its key; [`Trust`] says which certificates to believe. An [`Offer`]
//!   lets a script choose the chain while the client waits.
//! - [`ServerSettings`] and [`ClientSettings`] are built when the configuration is read and do not change.
//! - [`ocsp`] asks authorities whether certificates are revoked.
//! - Ticket keys and remembered sessions outlive configurations: [`Tickets`], [`SessionCache`].
//!
//! OpenSSL's names are used for everything that users see: configurations, variables and logs.

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
mod problem;
mod provider;
mod raw_hello;
mod server;
mod service;
mod session;
mod sessions;
mod shared;
mod system_trust;
mod tickets;
mod verify;

pub use accept::{Beginning, Hello, read_hello};
pub use cache::IdentityCache;
pub use certificate::Shown;
pub use ciphers::{Choice, Protocols};
pub use client::{ClientName, ClientOptions, ClientSettings, Sessions, connect};
pub use handshake::HandshakeError;
pub(crate) use handshake::words;
pub use identity::{Identity, load_file, read_passwords};
pub use kept::{Keeping, KeptSession};
pub use offer::{Chain, HandshakeHandler, Key, Moment, Objection, Offer};
pub use problem::Problem;
pub use provider::{fill_random, warm_up};
pub use server::{ClientCertificates, ServerOptions, ServerSettings};
pub use service::{Asks, Refusal, Service, full_path};
pub use session::Session;
pub use sessions::SessionCache;
pub use system_trust::system_trust;
pub use tickets::{TicketKey, Tickets};
pub use verify::{Assessment, Fault, Purpose, Trust};
