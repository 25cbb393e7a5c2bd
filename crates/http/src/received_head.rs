//! The head of a request as it was received, which a request and its subrequests share.

use std::cell::Cell;

use bstr::{BStr, BString, ByteSlice};
use proto::KnownField;

/// The request line and the header fields.
#[derive(Clone, Default)]
pub struct ReceivedHead {
    /// What was on the wire: method, target, version, header fields.
    pub wire: proto::message::RequestHead,
    /// The host of the request, in lower case and without port; empty if the client sent none.
    pub host: BString,
    /// The port of the `Host` field or of the absolute target, as it was sent.
    pub port: Option<u16>,
    /// The head could not be read to its end. Then its version does not count: the answer is one for HTTP/1.0.
    pub rejected: bool,
    /// Which request of its connection it is: `$connection_requests`. With HTTP/2 others may have begun since.
    pub number: u64,
    /// What is being done for the request, as the error log says it: `connecting to upstream`. Empty for nothing special. Here,
    /// because what a subrequest does is what is being done for its parent.
    pub doing: Cell<&'static str>,
}

/// The protocol version of a request; later versions compare greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpVersion {
    /// A request line without a version.
    Http09,
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

impl HttpVersion {
    /// The text that `$server_protocol` shows.
    pub fn text(self) -> &'static str {
        match self {
            HttpVersion::Http09 => "HTTP/0.9",
            HttpVersion::Http10 => "HTTP/1.0",
            HttpVersion::Http11 => "HTTP/1.1",
            HttpVersion::Http2 => "HTTP/2.0",
            HttpVersion::Http3 => "HTTP/3.0",
        }
    }
}

impl ReceivedHead {
    /// Empties it for the next request and keeps its memory.
    pub fn clear(&mut self) {
        self.wire.clear();
        self.host.clear();
        self.port = None;
        self.rejected = false;
        self.number = 0;
        self.doing.set("");
    }

    /// The value of a header field; the first one if there are several.
    pub fn field(&self, name: &[u8]) -> Option<&BStr> {
        self.wire.fields.get(name).map(|value| value.as_bstr())
    }

    /// The value of a header field that has a number, which is found without comparing names.
    pub fn known(&self, name: KnownField) -> Option<&BStr> {
        self.wire
            .fields
            .get_known(name)
            .map(|value| value.as_bstr())
    }

    /// The protocol version.
    pub fn version(&self) -> HttpVersion {
        use proto::message::MessageVersion as Wire;
        match self.wire.version {
            // A rejected head may have stopped before its version, or lied about it: the answer must suit any client.
            _ if self.rejected => HttpVersion::Http10,
            version if version >= Wire::HTTP_3 => HttpVersion::Http3,
            version if version >= Wire::HTTP_2 => HttpVersion::Http2,
            version if version >= Wire::HTTP_11 => HttpVersion::Http11,
            version if version >= Wire::HTTP_10 => HttpVersion::Http10,
            _ => HttpVersion::Http09,
        }
    }
}
