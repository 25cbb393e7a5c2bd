//! The upstream servers of stream: their groups, and what is known of those that a session was passed to, for variables
//! and for the error log.

use std::ops::Deref;
use std::time::Duration;

use bstr::BString;
use host::error_log::ContextWriter;

pub(crate) mod variables;

/// The groups of servers of `stream`. Those of `http` are kept apart, even if they have the same name.
#[derive(Clone)]
pub struct StreamGroups(net::upstream::UpstreamGroups);

impl Default for StreamGroups {
    fn default() -> Self {
        StreamGroups(net::upstream::UpstreamGroups::of("stream "))
    }
}

impl Deref for StreamGroups {
    type Target = net::upstream::UpstreamGroups;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The upstream servers that a session has tried.
#[derive(Default)]
pub struct SessionUpstreams {
    /// In the order in which they were tried.
    pub tries: Vec<SessionTry>,
}

/// One server that was tried.
#[derive(Clone, Debug, Default)]
pub struct SessionTry {
    /// Its address as text; the name of the group if it had no server to try, as in nginx.
    pub address: BString,
    /// The time until the connection was established.
    pub connect: Option<Duration>,
    /// The time until the first byte arrived.
    pub first_byte: Option<Duration>,
    /// The time until the session with it ended.
    pub session: Option<Duration>,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
}

impl SessionUpstreams {
    /// Appends what the error log says of the tries, in the words of nginx.
    pub(crate) fn describe(&self, received: u64, sent: u64, out: &mut ContextWriter<'_>) {
        let last = self.tries.last().cloned().unwrap_or_default();
        if !last.address.is_empty() {
            out.quoted("upstream", &last.address);
        }
        let (up, down) = (last.sent, last.received);
        out.byte_counts("bytes from/to client", received, sent);
        out.byte_counts("bytes from/to upstream", down, up);
    }
}
