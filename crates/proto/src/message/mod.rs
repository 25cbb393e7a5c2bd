//! The messages of HTTP (RFC 9110), in whichever version of the protocol they come: heads of
//! requests and of upstreams' responses, their methods and versions, where their bodies end, and
//! why a request is refused.
//!
//! The codecs ([`h1`](crate::h1), [`h2`](crate::h2)) make these of bytes; everything above reads
//! only these. Nothing here knows how a message is written on a connection.

mod field_rules;
mod framing;
pub(crate) mod method;
mod rejected_head;
mod request_head;
mod response_head;
mod version;

pub(crate) use field_rules::UNIQUE;
pub use field_rules::{InvalidHeaders, UnderscorePolicy};
pub use framing::{BadFraming, RequestFraming, ResponseFraming, parse_length};
pub use method::Method;
pub use rejected_head::{RejectKind, RejectedHead};
pub use request_head::{RequestHead, TargetForm};
pub use response_head::{ResponseHead, has_token};
pub use version::MessageVersion;
