//! A choice of servers that is not a group's own balancer.
//!
//! A directive of some module in an `upstream` block leaves a [`Chooser`] with the group; the exchange asks it before each
//! try.

use std::sync::Arc;
use std::time::Duration;

use net::upstream::Group;

use crate::request::Request;

/// Chooses servers for requests.
pub trait Chooser: Send + Sync {
    /// The server of the next try. `failures` are the tries so far, all of which failed, and `status` is what the last one
    /// came to; 0 at first. The error is the status to answer with, and has been logged.
    fn choose(&self, request: &mut Request, failures: u32, status: u16) -> Result<Choice, u16>;
}

/// A chosen server.
pub struct Choice {
    /// A group of this one server.
    pub group: Arc<Group>,
    /// How many tries may follow when this one fails; `None`: as was said before.
    pub more_tries: Option<u32>,
    /// How long this server and those after it are waited for.
    pub timeouts: Timeouts,
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
