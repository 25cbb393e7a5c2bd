//! A choice of servers that is not a balancing method but a script's (`balancer_by_lua`).
//!
//! The directive in an `upstream` block leaves a [`ServerChooser`] with the group, and
//! [`PeerSelection::ask_chooser`](super::PeerSelection::ask_chooser) asks it before each try. `R` is what the engine
//! serves: an http request or a stream session.

use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use rt::net::SocketAddress;

use super::group::UpstreamGroup;
use super::settings::AnyChooser;

/// Chooses servers for requests.
pub trait ServerChooser<R>: Send + Sync {
    /// The server of the next try.
    fn choose(&self, request: &mut R, history: &TryHistory) -> Result<ServerChoice, NoChoice>;
}

/// No server for the next try: the request ends. The reason has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoChoice {
    /// The status of the response to the client.
    pub status: u16,
}

/// How the tries so far have ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct TryHistory {
    /// How many there were. All have failed, or there would be no further try.
    pub failures: u32,
    /// The status that the last one ended with; 0 before the first try, and always in stream.
    pub status: u16,
    /// How many are left.
    pub left: u32,
    /// The limit for all of them; 0: none.
    pub limit: u32,
}

/// A chosen server.
#[derive(Default)]
pub struct ServerChoice {
    /// The server, as a group of one; `None`: the group's own balancing method chooses.
    pub group: Option<Arc<UpstreamGroup>>,
    /// How many extra tries are allowed if this one fails.
    pub more_tries: Option<u32>,
    /// Timeouts for this server and those after it.
    pub timeouts: TimeoutOverrides,
    /// The script has changed the request: it must be built again before it is sent.
    pub rewrites_request: bool,
    /// The address to connect from.
    pub from: Option<SocketAddress>,
    /// Connect without TLS, whatever is configured.
    pub without_tls: bool,
    /// The name that takes the place of `proxy_ssl_name`.
    pub tls_name: Option<BString>,
}

/// Timeouts that replace the configured ones, where set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeoutOverrides {
    /// Until the connection is established.
    pub connect: Option<Duration>,
    /// Between two writes.
    pub send: Option<Duration>,
    /// Between two reads.
    pub read: Option<Duration>,
}

impl AnyChooser {
    /// Stores a chooser without the engine's type, which this crate does not know.
    pub fn new<R: 'static>(chooser: Arc<dyn ServerChooser<R>>) -> AnyChooser {
        AnyChooser(Arc::new(chooser))
    }

    /// The chooser, if it is of the engine that asks.
    pub(super) fn of<R: 'static>(&self) -> Option<&Arc<dyn ServerChooser<R>>> {
        self.0.downcast_ref()
    }
}

/// The chooser of the `upstream` block that is being read: its directive stores it here, and the end of the block
/// takes it.
pub struct PendingChooser<R>(pub Option<Arc<dyn ServerChooser<R>>>);

impl<R> Default for PendingChooser<R> {
    fn default() -> Self {
        PendingChooser(None)
    }
}
