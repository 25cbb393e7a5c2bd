//! A connection to a peer, and who may use it again.

use std::any::Any;
use std::fmt;
use std::time::Instant;

use crate::transport::{Parts, Transport};

/// Who may use a connection when it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// With `keepalive … local`: only who has the same number.
    pub tag: u64,
    /// Only who speaks the same dialect of the protocol.
    pub dialect: &'static str,
    /// Only who asks for the same TLS ([`Asked::key`](crate::upstream::Asked::key)); 0 is without TLS.
    pub secure: u64,
}

impl Reuse {
    /// Of a plain connection in the usual dialect.
    pub fn of(tag: u64) -> Reuse {
        Reuse {
            tag,
            ..Reuse::default()
        }
    }

    /// Whether a connection that was left with `self` is for who wants `other`.
    pub(super) fn suits(&self, other: &Reuse, local: bool) -> bool {
        (!local || self.tag == other.tag)
            && self.dialect == other.dialect
            && self.secure == other.secure
    }
}

/// A connection to a peer.
pub struct Connection {
    /// The connection itself.
    pub stream: Transport,
    /// What the protocol wants to know again when the connection carries its next request.
    pub carried: Option<Box<dyn Any + Send>>,
    pub(super) reuse: Reuse,
    pub(super) since: Instant,
    pub(super) requests: u64,
}

impl Connection {
    /// A connection that was just opened, for its first request. `reuse` says who can use it later.
    pub fn new(stream: Transport, reuse: Reuse) -> Connection {
        Connection {
            stream,
            carried: None,
            reuse,
            since: rt::now(),
            requests: 1,
        }
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

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

/// What one loop sends another.
pub(super) struct HandedOver {
    parts: Parts,
    carried: Option<Box<dyn Any + Send>>,
    reuse: Reuse,
    since: Instant,
    requests: u64,
}

impl HandedOver {
    pub(super) fn from(connection: Connection) -> HandedOver {
        HandedOver {
            parts: connection.stream.into_parts(),
            carried: connection.carried,
            reuse: connection.reuse,
            since: connection.since,
            requests: connection.requests,
        }
    }

    /// The connection, of the loop that calls this. `None`: the loop cannot have it.
    pub(super) fn into_connection(self) -> Option<Connection> {
        Some(Connection {
            stream: Transport::from_parts(self.parts).ok()?,
            carried: self.carried,
            reuse: self.reuse,
            since: self.since,
            requests: self.requests,
        })
    }
}
