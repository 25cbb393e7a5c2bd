//! The upstream exchange: one request to another server, and its response.
//!
//! Everything that HTTP, FastCGI, SCGI, uwsgi and memcached upstreams have in common stands here: choosing a peer,
//! connecting or taking an idle connection, sending, waiting, trying the next peer, reading the head, streaming the
//! content, handing the connection back. A protocol module brings a codec, a [`Protocol`], and its directives.
//!
//! ```text
//! handler (modules/http/proxy) → Plan { settings, target, protocol }
//!   exchange   peer → (queue) → connect or reuse → send → head → (next peer …)
//!     transmit   the request: head, and content from memory, a file or the client
//!     head       the response's head → request.out
//!     content    the response's content → a body::Source, with read-ahead and a temporary file
//!     tunnel     after 101: both directions until both ended
//!   lines      what a client may not put into a head
//!   record     what `$upstream_…` shows
//! ```
//!
//! An exchange belongs to a [`Request`](crate::Request), but not to the client of it: what watches the client is
//! [`Plan::watch_client`], so that a cache can run an exchange on a request of its own.

pub mod chooser;
mod choosing;
mod content;
pub mod exchange;
pub(crate) mod interim;
mod kept;
mod lines;
pub mod protocol;
pub mod record;
pub(crate) mod respond;
pub mod settings;
mod spool;
mod sticky;
mod store;
mod target;
mod transmit;
mod tunnel;
pub mod variables;

pub use exchange::{Exchange, Plan, RequestContent, Stop, Target};
pub use lines::{Ends, Place};
pub use protocol::{Asks, Carried, Content, ContentLength, Fault, HeadProgress, Piece, Protocol};
pub use record::{Record, Slot};
pub use respond::pass;
pub use settings::{Settings, SettingsRef, parse_local_address};
