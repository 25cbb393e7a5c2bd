//! The upstream exchange: one request to another server, and its response.
//!
//! This is everything that HTTP, FastCGI, SCGI, uwsgi and memcached upstreams have in common: choosing a server,
//! connecting or taking an idle connection, sending, waiting, trying the next server, reading the head, streaming the
//! body, and keeping the connection. A protocol module contributes a codec, an [`UpstreamProtocol`], and its
//! directives.
//!
//! ```text
//! handler (modules/http/proxy) → ExchangePlan { settings, target, protocol }
//!   exchange          tries: server → (queue) → connection → request → head → (another try …)
//!     exchange_target the group of the plan, and the input of its balancer
//!     connect         an idle connection, or a new one, with TLS or over QUIC (http3_connection)
//!     transmit        the request: head, and body from memory, a file or the client (request_content)
//!     response_head   the response's head; interim responses are passed on (interim_response)
//!     retry           pure: whether a failed try is repeated on another server
//!     no_response     why there is no response, and the status for the client
//!   respond           the head → request.out
//!     response_reader the body → a BodySource, with read-ahead and a temporary file (spool, store_response,
//!                     detached_reader)
//!     tunnel          after 101 or CONNECT: both directions until both have ended
//!   value_terminator  keeps a client from ending a line of a head
//!   upstream_record   what `$upstream_…` shows (variables)
//!   explained         what would be sent, for `weir explain`
//!   exchange_log      the error log lines, in nginx's wording
//! ```
//!
//! An exchange belongs to a [`Request`](crate::Request), but not to that request's client. The client is watched only
//! if [`ExchangePlan::watch_client`] says so, so that a cache can run an exchange on a request of its own.

mod client_watch;
mod connect;
mod detached_reader;
pub mod exchange;
mod exchange_log;
mod exchange_target;
mod explained;
mod http3_connection;
pub(crate) mod interim_response;
mod no_response;
pub mod protocol;
mod request_content;
pub(crate) mod respond;
mod response_head;
mod response_reader;
mod retry;
mod spool;
mod sticky;
mod store_response;
mod transmit;
mod tunnel;
pub mod upstream_record;
pub mod upstream_settings;
mod value_terminator;
pub mod variables;

pub(crate) use client_watch::while_client_stays;
pub use exchange::{Exchange, ExchangePlan, ExchangeTarget};
pub(crate) use explained::{explained_head, explained_selection};
pub use no_response::{NoResponse, RetryReasons};
pub use protocol::{
    CarriedState, ChunkPiece, ContentLength, HeadProgress, ProtocolFault, RequestLength,
    RequestTraits, ShownFields, UpstreamProtocol,
};
pub use request_content::RequestContent;
pub use respond::{exchange_and_respond, exchange_step};
pub use upstream_record::{RecordSlot, UpstreamRecord};
pub use upstream_settings::{SettingsRef, UpstreamSettings, parse_local_address};
pub use value_terminator::{ValueOrigin, ValueTerminator};
