//! What an upstream protocol is: how a request is written, and how a response is read.
//!
//! A protocol moves bytes between buffers. It never sees a socket, a clock or a peer; the exchange owns those. One value
//! serves one exchange: the request is written once and sent again for each try, so that variables have one value for
//! all tries, and [`Protocol::begin_response`] starts the reading anew.

use std::any::Any;

use bstr::BStr;
use proto::fields::Fields;
use proto::message::ResponseHead;

pub use proto::h1::Piece;

use super::no_response::NoResponse;
use crate::request::Request;

/// What a protocol knows of a connection and wants to know again when the connection carries its next request.
pub type Carried = Box<dyn Any + Send>;

/// A codec between the exchange and the wire.
pub trait Protocol {
    /// What stands before the peer's name in logs: `http://`, `fastcgi://`.
    fn scheme(&self) -> &'static str;

    /// Appends the head of the request. Called once per exchange. `content` says what follows. What stands after the peer's
    /// name in logs, the path that is asked for, goes to `target` of the request's record, which is empty.
    fn write_head(
        &mut self,
        request: &mut Request,
        content: Content,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse>;

    /// What the connections of this protocol are called, where its idle ones are of no use to others of the scheme, and
    /// what TLS shall agree on (ALPN): `h2`.
    fn dialect(&self) -> &'static str {
        ""
    }

    /// The host that TLS is spoken to, which is the name of its certificate unless the settings name another; `None`: TLS is
    /// not spoken.
    fn secure_host(&self) -> Option<&BStr> {
        None
    }

    /// Whether a request is written differently on each connection, as in HTTP/2. Then [`Protocol::write_head`] appends
    /// nothing, and [`Protocol::begin_request`] writes the head for each try.
    fn is_framed(&self) -> bool {
        false
    }

    /// Appends the head for a connection: `carried` is what [`Protocol::carry`] gave when it was used last, `None` if
    /// it is new.
    fn begin_request(&mut self, _carried: Option<Carried>, _out: &mut Vec<u8>) {}

    /// What to keep with the connection for its next request. Called when the exchange is over and
    /// [`Protocol::keeps_alive`].
    fn carry(&mut self) -> Option<Carried> {
        None
    }

    /// How much content the peer lets us send now, in bytes.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Whether [`Protocol::take_control`] has something to send.
    fn has_control(&self) -> bool {
        false
    }

    /// Appends what has to be sent besides the request, such as acknowledgements. It is sent between two pieces.
    fn take_control(&mut self, _out: &mut Vec<u8>) {}

    /// The least room for input while the head is read, in bytes, whatever the buffer's size is set to: a frame.
    fn least_buffer(&self) -> usize {
        0
    }

    /// Appends a piece of the request's content in the protocol's framing. Must not depend on the pieces before: the
    /// next try begins again with the first.
    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(piece);
    }

    /// Appends the last piece, which may be empty, and what ends the content.
    fn write_last_content(&mut self, piece: &[u8], trailers: &Fields, out: &mut Vec<u8>) {
        if !piece.is_empty() {
            self.write_content(piece, out);
        }
        self.write_content_end(trailers, out);
    }

    /// Appends what ends the content of a request, also of one without content.
    fn write_content_end(&mut self, _trailers: &Fields, _out: &mut Vec<u8>) {}

    /// Whether content goes out as it is, so that a file may be sent by `sendfile`.
    fn content_is_plain(&self) -> bool {
        false
    }

    /// The next bytes come from another connection. Forget everything about the response so far.
    fn begin_response(&mut self);

    /// Reads the head of the response. `input` is all that was received since [`HeadProgress::Interim`] or the
    /// beginning; it only grows from call to call.
    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault>;

    /// Whether the response has content, and how long it is if that is known. Called once the head is complete.
    /// `head` has the fields as received.
    fn content_length(&self) -> ContentLength;

    /// The content is this many bytes as they stand on the wire, and the response ends with them.
    fn plain_content(&self) -> Option<u64> {
        None
    }

    /// Reads content. `input` begins where the piece before ended. Not called after [`Piece::End`].
    fn read_content(&mut self, request: &Request, input: &[u8]) -> Result<Piece, Fault>;

    /// The connection was closed by the peer before [`Piece::End`]: whether that is the end of the content. The fault
    /// is what the log shall say.
    fn end_of_input(&mut self) -> Result<(), Fault>;

    /// Fields that followed the content.
    fn trailers(&self) -> Option<&Fields> {
        None
    }

    /// Whether those fields go on to the client.
    fn passes_trailers(&self) -> bool {
        false
    }

    /// Whether the connection can carry another request after [`Piece::End`].
    fn keeps_alive(&self) -> bool;

    /// Rewrites a field of the response: `Location`, `Refresh`, `Set-Cookie`. `false` leaves it as it is.
    fn map_field(
        &mut self,
        _request: &mut Request,
        _field: proto::Known,
        _value: &[u8],
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }

    /// What the head asks for that some responses are only right as an answer to. Called when it was written.
    fn asks(&self) -> Asks {
        Asks::default()
    }

    /// Whether the connection is a tunnel as soon as it is made: nothing is written to it and no head is read, the
    /// client gets a 200. Such a connection is always a new one.
    fn is_tunnel(&self) -> bool {
        false
    }
}

/// What a request, as it went out, asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// Another protocol (`Upgrade`): without it no 101 (RFC 9110, section 15.2.2).
    pub upgrade: bool,
    /// A part of the content (`Range`): without it no 206 (section 15.3.7).
    pub part: bool,
}

/// What follows the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The client sent no content, and announced none.
    None,
    /// This many bytes.
    Length(u64),
    /// Content of a length that nobody knows yet.
    Unknown,
}

/// How far [`Protocol::read_head`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadProgress {
    /// More input is needed.
    Partial,
    /// The head is complete; this much of the input belonged to it.
    Complete(usize),
    /// This much of the input was an interim response (1xx), which now stands in the head; the real one follows. The
    /// exchange clears the head.
    Interim(usize),
}

/// How much content a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLength {
    /// None at all, whatever the fields say: a response to HEAD, 204, 304.
    None,
    /// This many bytes.
    Known(u64),
    /// It ends where the protocol says so.
    Unknown,
}

/// What is wrong with what the peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line for the error log.
    pub message: Vec<u8>,
    /// The peer says that it did not look at the request: another connection may carry it.
    pub is_unseen: bool,
    /// There is less content than there should be; what came before is right.
    pub is_short: bool,
}

impl Fault {
    /// A fault with this line for the log.
    pub fn new(message: impl Into<Vec<u8>>) -> Fault {
        Fault {
            message: message.into(),
            is_unseen: false,
            is_short: false,
        }
    }

    /// A fault that says that the content ended too early.
    pub fn short(message: impl Into<Vec<u8>>) -> Fault {
        Fault {
            is_short: true,
            ..Fault::new(message)
        }
    }

    /// A fault that says that the peer did not look at the request.
    pub fn unseen(message: impl Into<Vec<u8>>) -> Fault {
        Fault {
            is_unseen: true,
            ..Fault::new(message)
        }
    }
}
