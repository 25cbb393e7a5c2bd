//! The upstream servers of stream: their groups, and what is known of those that a session was passed to, for variables
//! and for the error log.

use std::io::Write;
use std::ops::Deref;
use std::time::Duration;

use bstr::BString;

pub(crate) mod variables;

/// The groups of servers of `stream`, apart from those of `http`, also where they have the same name.
#[derive(Clone)]
pub struct StreamGroups(net::upstream::Groups);

impl Default for StreamGroups {
    fn default() -> Self {
        StreamGroups(net::upstream::Groups::of("stream "))
    }
}

impl Deref for StreamGroups {
    type Target = net::upstream::Groups;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The tries of a session.
#[derive(Default)]
pub struct Record {
    /// One after the other.
    pub tries: Vec<Try>,
}

/// One server that was tried.
#[derive(Clone, Debug, Default)]
pub struct Try {
    /// Its address as text; the name of the group when it had none to try.
    pub address: BString,
    /// How long it took until the connection stood.
    pub connect: Option<Duration>,
    /// Until the first byte came.
    pub first_byte: Option<Duration>,
    /// Until it was over.
    pub session: Option<Duration>,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
}

impl Record {
    /// Appends what the error log says of it.
    pub(crate) fn describe(&self, received: u64, sent: u64, out: &mut Vec<u8>) {
        let last = self.tries.last().cloned().unwrap_or_default();
        if !last.address.is_empty() {
            out.extend_from_slice(b", upstream: \"");
            out.extend_from_slice(&last.address);
            out.push(b'"');
        }
        let (up, down) = (last.sent, last.received);
        // Writing to memory does not fail.
        let _ = write!(
            out,
            ", bytes from/to client:{received}/{sent}, bytes from/to upstream:{down}/{up}"
        );
    }
}
