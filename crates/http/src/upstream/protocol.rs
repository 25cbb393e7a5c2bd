//! The interface of an upstream protocol: how a request is written, and how a response is read.
//!
//! A protocol moves bytes between buffers. It never sees a socket, a clock or a server; these belong to the exchange.
//! One value serves one exchange. The request is written once and sent again for each try, so that variables have the
//! same value in each; [`UpstreamProtocol::begin_response`] resets the reading side.

use std::any::Any;

use bstr::{BStr, BString, ByteSlice};
use proto::fields::Fields;
use proto::message::ResponseHead;

pub use proto::h1::ChunkPiece;

use super::no_response::NoResponse;
use crate::request::Request;

/// What a protocol keeps with an idle connection for the next request on it.
pub type CarriedState = Box<dyn Any + Send>;

/// A codec between the exchange and the wire.
pub trait UpstreamProtocol {
    /// The prefix of the server's name in logs: `http://`, `fastcgi://`.
    fn scheme(&self) -> &'static str;

    /// Appends the head of the request. Called once per exchange. `content` says what follows the head. The path that
    /// logs show after the server's name is written to `target` of the request's record, which is empty at the time.
    fn write_head(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse>;

    /// The kind of connection, which separates idle connections of the same scheme that cannot be exchanged for one
    /// another, and which TLS negotiates (ALPN): `h2`.
    fn dialect(&self) -> &'static str {
        ""
    }

    /// Whether the connection is one of QUIC, with a stream for each exchange, whose end is that of the request or the response.
    fn uses_quic(&self) -> bool {
        false
    }

    /// The host for TLS, whose name the certificate must have unless the settings name another; `None`: no TLS.
    fn secure_host(&self) -> Option<&BStr> {
        None
    }

    /// The request line and the fields of a head that [`UpstreamProtocol::write_head`] has written, for `weir explain`.
    fn shown_fields(&self, head: &[u8]) -> ShownFields {
        fields_of_lines(head)
    }

    /// Whether a request is written differently on each connection, as in HTTP/2 with its header compression and stream
    /// numbers. Then [`UpstreamProtocol::write_head`] appends nothing, and [`UpstreamProtocol::begin_request`] writes
    /// the head for each try.
    fn is_framed(&self) -> bool {
        false
    }

    /// Appends the head for a connection. `carried` is what [`UpstreamProtocol::take_carried_state`]
    /// returned after the previous request on it; `None` on a new connection.
    fn begin_request(&mut self, _carried: Option<CarriedState>, _out: &mut Vec<u8>) {}

    /// What to keep with the connection for its next request. Called after the exchange if
    /// [`UpstreamProtocol::keeps_alive`].
    fn take_carried_state(&mut self) -> Option<CarriedState> {
        None
    }

    /// The number of body bytes that the upstream permits to send now (flow control).
    fn send_window(&self) -> usize {
        usize::MAX
    }

    /// Whether [`UpstreamProtocol::take_control`] has something to send.
    fn has_control(&self) -> bool {
        false
    }

    /// Appends what has to be sent besides the request, such as acknowledgements. It is sent between two pieces of the
    /// body.
    fn take_control(&mut self, _out: &mut Vec<u8>) {}

    /// The minimum space for input while the head is read, in bytes, even if `…_buffer_size` is smaller: one frame.
    fn least_buffer(&self) -> usize {
        0
    }

    /// Appends a framed piece of the request's body. It must not depend on earlier pieces, because the next try starts
    /// again with the first one.
    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(piece);
    }

    /// Appends the last piece, which may be empty, and the end of the body.
    fn write_last_content(&mut self, piece: &[u8], trailers: &Fields, out: &mut Vec<u8>) {
        if !piece.is_empty() {
            self.write_content(piece, out);
        }
        self.write_content_end(trailers, out);
    }

    /// Appends the end of a request's body, which some protocols need even if there is no body.
    fn write_content_end(&mut self, _trailers: &Fields, _out: &mut Vec<u8>) {}

    /// Whether the body is sent without framing, so that `sendfile` can send a file.
    fn content_is_plain(&self) -> bool {
        false
    }

    /// Resets the reading side: the next bytes come from another connection.
    fn begin_response(&mut self);

    /// Reads the head of the response. `input` is everything received since the beginning, or since the last
    /// [`HeadProgress::Interim`], and only grows between calls.
    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault>;

    /// The length of the response's body. Called once the head is complete.
    fn content_length(&self) -> ContentLength;

    /// The length of a body that is on the wire without framing, and with which the response ends.
    fn plain_content(&self) -> Option<u64> {
        None
    }

    /// Reads a piece of the body. `input` begins where the previous piece ended. Not called after [`ChunkPiece::End`].
    fn read_content(
        &mut self,
        request: &Request,
        input: &[u8],
    ) -> Result<ChunkPiece, ProtocolFault>;

    /// The upstream closed the connection before [`ChunkPiece::End`]. `Ok` if that is a valid end of the body;
    /// otherwise the line for the log.
    fn end_of_input(&mut self) -> Result<(), ProtocolFault>;

    /// The fields after the body.
    fn trailers(&self) -> Option<&Fields> {
        None
    }

    /// Whether the trailers are passed to the client.
    fn passes_trailers(&self) -> bool {
        false
    }

    /// Whether the connection can carry another request after [`ChunkPiece::End`].
    fn keeps_alive(&self) -> bool;

    /// Rewrites a field of the response: `Location`, `Refresh`, `Set-Cookie`. `false` leaves it unchanged.
    fn map_field(
        &mut self,
        _request: &mut Request,
        _field: proto::KnownField,
        _value: &[u8],
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }

    /// What the written head asks for, without which some responses are invalid.
    fn request_traits(&self) -> RequestTraits {
        RequestTraits::default()
    }

    /// Whether the connection is a tunnel as soon as it is established (CONNECT). Then nothing is written, no head is
    /// read, and the client gets a 200. Such a connection is never an idle one.
    fn is_tunnel(&self) -> bool {
        false
    }
}

/// Names and values that an upstream gets; one without a name is a line of its own.
pub type ShownFields = Vec<(BString, BString)>;

/// The lines of a head of HTTP/1, or of another protocol of lines.
fn fields_of_lines(head: &[u8]) -> ShownFields {
    let mut lines = head.split_str("\r\n");
    let first = lines.next().map(|line| (BString::default(), line.into()));
    let fields =
        lines
            .take_while(|line| !line.is_empty())
            .map(|line| match line.split_once_str(": ") {
                Some((name, value)) => (name.into(), value.into()),
                None => (BString::default(), line.into()),
            });
    first.into_iter().chain(fields).collect()
}

/// What a request asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTraits {
    /// Another protocol (`Upgrade`). Without it, a 101 is invalid (RFC 9110, section 15.2.2).
    pub upgrade: bool,
    /// A part of the body (`Range`). Without it, a 206 is invalid (section 15.3.7).
    pub part: bool,
}

/// What follows the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestLength {
    /// The client sent no body and announced none.
    None,
    /// This many bytes.
    Length(u64),
    /// A body whose length is not known yet.
    Unknown,
}

/// The result of [`UpstreamProtocol::read_head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadProgress {
    /// More input is needed.
    Partial,
    /// The head is complete, and took this many bytes of the input.
    Complete(usize),
    /// An interim response (1xx) took this many bytes and is now in the head; the final one follows. The exchange
    /// clears the head.
    Interim(usize),
}

/// The length of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLength {
    /// There is none, whatever the fields say: a response to HEAD, a 204, a 304 (RFC 9112, section 6.3).
    None,
    /// This many bytes.
    Known(u64),
    /// The framing tells where it ends.
    Unknown,
}

/// An error in what the upstream sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolFault {
    /// The line for the error log.
    pub message: Vec<u8>,
    /// The upstream states that it has not processed the request, so another connection may carry it.
    pub is_unseen: bool,
    /// The body ended too early; what arrived of it is valid.
    pub is_short: bool,
}

impl ProtocolFault {
    /// A fault with this line for the log.
    pub fn new(message: impl Into<Vec<u8>>) -> ProtocolFault {
        ProtocolFault {
            message: message.into(),
            is_unseen: false,
            is_short: false,
        }
    }

    /// The fault of a body that ended too early.
    pub fn content_too_short(message: impl Into<Vec<u8>>) -> ProtocolFault {
        ProtocolFault {
            is_short: true,
            ..ProtocolFault::new(message)
        }
    }

    /// The fault of a request that the upstream has not processed.
    pub fn request_unseen(message: impl Into<Vec<u8>>) -> ProtocolFault {
        ProtocolFault {
            is_unseen: true,
            ..ProtocolFault::new(message)
        }
    }
}
