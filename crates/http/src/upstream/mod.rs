//! The upstream exchange: one request to another server, and its response.
//!
//! This is everything that HTTP, FastCGI, SCGI, uwsgi and memcached upstreams have in common: choosing a server,
//! connecting or taking an idle connection, sending, waiting, trying the next server, reading the head, streaming the
//! body, and keeping the connection. A protocol module contributes a codec, a [`Protocol`], and its directives.
//!
//! ```text
//! handler (modules/http/proxy) → Plan { settings, target, protocol }
//!   exchange          tries: server → (queue) → connection → request → head → (another try …)
//!     target          the group of the plan, and the input of its balancer
//!     connect         an idle connection, or a new one, with TLS
//!     transmit        the request: head, and body from memory, a file or the client (request_content)
//!     response_head   the response's head; interim responses are passed on (interim)
//!     retry           pure: whether a failed try is repeated on another server
//!     no_response     why there is no response, and the status for the client
//!   respond           the head → request.out
//!     content         the body → a body::Source, with read-ahead and a temporary file (spool, store, kept)
//!     tunnel          after 101 or CONNECT: both directions until both have ended
//!   lines             keeps a client from ending a line of a head
//!   record            what `$upstream_…` shows (variables)
//!   log               the error log lines, in nginx's wording
//! ```
//!
//! An exchange belongs to a [`Request`](crate::Request), but not to that request's client. The client is watched only
//! if [`Plan::watch_client`] says so, so that a cache can run an exchange on a request of its own.

mod client_watch;
mod connect;
mod content;
pub mod exchange;
pub(crate) mod interim;
mod kept;
mod lines;
mod log;
mod no_response;
pub mod protocol;
pub mod record;
mod request_content;
pub(crate) mod respond;
mod response_head;
mod retry;
pub mod settings;
mod spool;
mod sticky;
mod store;
mod target;
mod transmit;
mod tunnel;
pub mod variables;

pub(crate) use client_watch::while_client_stays;
pub use exchange::{Exchange, Plan, Target};
pub use lines::{Ends, Place};
pub use no_response::{NoResponse, RetryReasons};
pub use protocol::{Asks, Carried, Content, ContentLength, Fault, HeadProgress, Piece, Protocol};
pub use record::{Record, Slot};
pub use request_content::RequestContent;
pub use respond::pass;
pub use settings::{Settings, SettingsRef, parse_local_address};
