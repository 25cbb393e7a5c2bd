//! The stream that a request came on, whichever version of HTTP its client speaks.
//!
//! Everything above the protocols asks here whether the client is still there, hands interim responses to it and goes
//! on in another protocol with it; nothing there knows whether the request has a connection of its own. There are two
//! contracts: [`ClientStream`] is what a request sees of its protocol, [`ClientConnection`] what is known of the
//! connection as a whole. How a protocol takes part in a request's life is the third:
//! `crate::lifecycle::RequestCarrier`.
//!
//! | | HTTP/1 | HTTP/2 | HTTP/3 will |
//! |---|---|---|---|
//! | connection | [`ByteStream`]: TCP, with TLS or without | the same | have no descriptor of its own: datagrams of a shared socket find it by connection id |
//! | stream | the connection itself, for one request after the other | one of many | one of many |
//! | the client left | the socket says so | RST_STREAM, or the connection ended | STOP_SENDING and RESET_STREAM, or the connection ended |
//! | an unfinished response | ends with the connection | is reset | is reset |
//! | interim responses | bytes before the response | a header block | a header block |
//! | trailers | after the last chunk | a header block | a header block |
//!
//! What a new protocol must hold to:
//!
//! - A stream belongs to one loop, like its request. Its methods never block, and wake the task that asked last.
//! - Content from the client is bounded by what the protocol lets it send before it is asked for
//!   ([`BodyInput`](crate::body_reader::BodyInput)), content to it by what it takes: a producer is polled for more only
//!   then.
//! - Trailers of the request are the input's, those of the response are
//!   [`Response::trailers`](crate::response::Response); a protocol sends them or drops them.
//! - A request that arrives before the handshake is complete (early data) is not started before that, unless repeating
//!   it is harmless; a server behind this one learns of it by `Early-Data` (RFC 8470).

use std::rc::Rc;
use std::task::{Context, Poll};

use net::tls::TlsSession;
use proto::fields::Fields;
use rt::net::{SocketAddress, TcpInfo};

use crate::byte_stream::ByteStream;

/// The stream of one request, as handlers see it.
pub trait ClientStream {
    /// Ready once the client has cancelled the request, or its connection is over. What it has sent stays unread.
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()>;

    /// Whether all of the request's content has arrived and is at most `most` bytes. `announced` is its
    /// `Content-Length`, if there is one. It may be wrong about chunked content: use it to choose between correct ways
    /// only.
    fn has_all(&self, announced: Option<u64>, most: u64) -> bool;

    /// Sends an interim response (RFC 9110, section 15.2): a status below 200 and its fields. It is a hint. If the
    /// client accepts nothing it may be dropped, or sent directly before the response, but never later.
    fn send_interim(&self, status: u16, fields: &Fields);

    /// Reads what the client sends once the stream carries another protocol: appends to `out`, at most `max` bytes
    /// unless more are here already. `false` once the client has ended its side.
    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool>;

    /// Ends our side of a tunnel, while the client may continue with its own.
    fn end_output(&self);

    /// Whether the client can tell a tunnel that broke off from one that ended.
    fn can_be_reset(&self) -> bool;

    /// The byte stream of the connection, if the request has it to itself.
    fn exclusive_bytes(&self) -> Option<&ByteStream>;
}

/// A client's connection as a whole.
pub trait ClientConnection {
    /// The connection as a stream, for a request that has none: made by the server itself on behalf of a client, or not
    /// yet begun. It can only tell whether the client left.
    fn stream(self: Rc<Self>) -> Rc<dyn ClientStream>;

    /// What TLS agreed on; `None` without it.
    fn tls(&self) -> Option<&TlsSession>;

    /// Whether it is one with TLS.
    fn is_secure(&self) -> bool {
        self.tls().is_some()
    }

    /// The address that the client connected to, as far as the system still knows it.
    fn local_address(&self) -> Option<SocketAddress>;

    /// What the kernel knows of a TCP connection.
    fn tcp_info(&self) -> Option<TcpInfo>;

    /// Switches `tcp_nodelay` on.
    fn send_without_delay(&self);

    /// Ends the connection now. Requests in progress notice it as if their client had left.
    fn force_close(&self);

    /// The byte stream of the connection, unless its transport has none (HTTP/3).
    fn bytes(&self) -> Option<&ByteStream>;
}

impl dyn ClientStream {
    /// Waits until the client has left.
    pub async fn wait_until_left(&self) {
        std::future::poll_fn(|context| self.poll_left(context)).await;
    }
}
