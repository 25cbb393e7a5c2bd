//! A connection to a peer, and which requests may use it again.

use std::any::Any;
use std::fmt;
use std::time::Instant;

use super::peer_stream::PeerStream;
use crate::transport::{Transport, TransportParts};

/// Which requests may use an idle connection: those with an equal value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReuseTerms {
    /// With `keepalive … local`: the engine's number for the place that opened it, which must be the same.
    pub tag: u64,
    /// The version of the protocol that was spoken on it: an HTTP/2 connection is no use to an HTTP/1.1 request.
    pub dialect: &'static str,
    /// The TLS settings that it was opened with
    /// ([`HandshakeParameters::key`](crate::upstream::HandshakeParameters::key)); 0 without TLS. A connection that was
    /// verified for one name must not be used for another.
    pub secure: u64,
}

impl ReuseTerms {
    /// For a connection without TLS in the protocol's usual version.
    pub fn of(tag: u64) -> ReuseTerms {
        ReuseTerms {
            tag,
            ..ReuseTerms::default()
        }
    }

    /// Whether a connection that was kept with `self` can serve a request with `other`.
    pub(super) fn suits(&self, other: &ReuseTerms, local: bool) -> bool {
        (!local || self.tag == other.tag)
            && self.dialect == other.dialect
            && self.secure == other.secure
    }
}

/// A connection to a peer. It stays in its box for as long as it lives: each request moves it some ten times, between the
/// pool, the try and the exchange.
pub struct PeerConnection {
    /// The connection itself.
    pub stream: PeerStream,
    /// What the protocol keeps from one request of the connection to the next.
    pub carried: Option<Box<dyn Any + Send>>,
    pub(super) reuse: ReuseTerms,
    pub(super) since: Instant,
    pub(super) requests: u64,
}

impl PeerConnection {
    /// A connection that was just opened for its first request. `reuse` says which requests can use it later.
    pub fn new(stream: PeerStream, reuse: ReuseTerms) -> Box<PeerConnection> {
        Box::new(PeerConnection {
            stream,
            carried: None,
            reuse,
            since: rt::now(),
            requests: 1,
        })
    }

    /// How many requests it has carried, the present one included.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether it carried a request before this one.
    pub fn is_reused(&self) -> bool {
        self.requests > 1
    }
}

impl fmt::Debug for PeerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerConnection")
            .field("stream", &self.stream)
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

/// A connection on its way from one loop to another: not registered with either.
pub(super) struct HandedOverConnection {
    parts: TransportParts,
    carried: Option<Box<dyn Any + Send>>,
    reuse: ReuseTerms,
    since: Instant,
    requests: u64,
}

impl HandedOverConnection {
    /// `None` for a connection that belongs to its loop.
    pub(super) fn from(connection: PeerConnection) -> Option<HandedOverConnection> {
        Some(HandedOverConnection {
            parts: connection.stream.into_transport()?.into_parts(),
            carried: connection.carried,
            reuse: connection.reuse,
            since: connection.since,
            requests: connection.requests,
        })
    }

    /// Registers the connection with the calling loop. `None` if that fails.
    pub(super) fn into_connection(self) -> Option<Box<PeerConnection>> {
        Some(Box::new(PeerConnection {
            stream: PeerStream::Socket(Transport::from_parts(self.parts).ok()?),
            carried: self.carried,
            reuse: self.reuse,
            since: self.since,
            requests: self.requests,
        }))
    }
}
