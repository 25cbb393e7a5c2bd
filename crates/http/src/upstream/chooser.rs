//! A choice of servers that is not a group's own balancer.
//!
//! A directive of some module in an `upstream` block leaves a [`Chooser`] with the group; the exchange asks it before each
//! try.

use std::sync::Arc;
use std::time::Duration;

use net::upstream::Group;
use rt::net::Address;

use crate::request::Request;

/// Chooses servers for requests.
pub trait Chooser: Send + Sync {
    /// The server of the next try. The error is the status to answer with, and has been logged.
    fn choose(&self, request: &mut Request, past: &Past) -> Result<Choice, u16>;
}

/// What became of the tries so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// How many there were. All of them failed.
    pub failures: u32,
    /// What the last one came to; 0 at first.
    pub status: u16,
    /// How many there may be from now on.
    pub left: u32,
    /// How many there may be at all; 0: any number.
    pub limit: u32,
}

/// A chosen server.
#[derive(Default)]
pub struct Choice {
    /// A group of this one server; `None`: it is the turn of the group's own.
    pub group: Option<Arc<Group>>,
    /// How many tries more than before there may be when this one fails.
    pub more_tries: Option<u32>,
    /// How long this server and those after it are waited for.
    pub timeouts: Timeouts,
    /// The request is to be written anew.
    pub anew: bool,
    /// The address to connect from.
    pub from: Option<Address>,
    /// The server is spoken to without TLS, whatever is configured.
    pub plain: bool,
}

/// Times that take the place of those of the location, where there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// For the connection to stand.
    pub connect: Option<Duration>,
    /// Between two writes.
    pub send: Option<Duration>,
    /// Between two reads.
    pub read: Option<Duration>,
}

/// A chooser as a group keeps it: see [`net::upstream::Settings::chooser`].
pub struct Kept(pub Arc<dyn Chooser>);

/// The chooser of the `upstream` block that is being read. Its directive leaves it here, and who reads the block takes it.
#[derive(Default)]
pub struct Pending(pub Option<Arc<dyn Chooser>>);

/// The chooser of a group.
pub(super) fn of(group: &Group) -> Option<Arc<dyn Chooser>> {
    let kept = group.settings.chooser.as_ref()?.downcast_ref::<Kept>()?;
    Some(Arc::clone(&kept.0))
}
