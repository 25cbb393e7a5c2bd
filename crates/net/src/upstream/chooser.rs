//! A choice of servers that is not a group's own balancer: a script's (`balancer_by_lua`).
//!
//! The directive in an `upstream` block leaves a [`ServerChooser`] with the group, and
//! [`Selection::ask_chooser`](super::Selection::ask_chooser) asks it before each try. `R` is what the engine serves: a
//! request of http, a session of stream.

use std::sync::Arc;
use std::time::Duration;

use rt::net::Address;

use super::group::Group;
use super::settings::AnyChooser;

/// Chooses servers for requests.
pub trait ServerChooser<R>: Send + Sync {
    /// The server of the next try.
    fn choose(&self, request: &mut R, history: &TryHistory) -> Result<ServerChoice, NoChoice>;
}

/// There is no server for the next try, and no other try. Why has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoChoice {
    /// The status that the client gets.
    pub status: u16,
}

/// What became of the tries so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct TryHistory {
    /// How many there were. All of them failed.
    pub failures: u32,
    /// The status that the last one came to; 0 at first, and in stream.
    pub status: u16,
    /// How many there may be from now on.
    pub left: u32,
    /// How many there may be at all; 0: any number.
    pub limit: u32,
}

/// A chosen server.
#[derive(Default)]
pub struct ServerChoice {
    /// A group of this one server; `None`: the group's own servers take their turns.
    pub group: Option<Arc<Group>>,
    /// How many tries more than before there may be when this one fails.
    pub more_tries: Option<u32>,
    /// How long this server and those after it are waited for.
    pub timeouts: TimeoutOverrides,
    /// The request is to be written anew.
    pub rewrites_request: bool,
    /// The address to connect from.
    pub from: Option<Address>,
    /// The connection is made without TLS, whatever is configured.
    pub without_tls: bool,
}

/// Times that take the place of configured ones, where there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeoutOverrides {
    /// Until the connection stands.
    pub connect: Option<Duration>,
    /// Between two writes.
    pub send: Option<Duration>,
    /// Between two reads.
    pub read: Option<Duration>,
}

impl AnyChooser {
    /// Keeps a chooser of an engine.
    pub fn new<R: 'static>(chooser: Arc<dyn ServerChooser<R>>) -> AnyChooser {
        AnyChooser(Arc::new(chooser))
    }

    /// The chooser, for the engine that it is of.
    pub(super) fn of<R: 'static>(&self) -> Option<&Arc<dyn ServerChooser<R>>> {
        self.0.downcast_ref()
    }
}

/// The chooser of the `upstream` block that is being read: its directive leaves it here, and the end of the block takes it.
pub struct PendingChooser<R>(pub Option<Arc<dyn ServerChooser<R>>>);

impl<R> Default for PendingChooser<R> {
    fn default() -> Self {
        PendingChooser(None)
    }
}
