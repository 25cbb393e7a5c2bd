//! A choice of servers that is not a group's own balancer.
//!
//! A directive of some module in an `upstream` block leaves a [`Chooser`] with the group; whoever passes a session to the
//! group asks it before each try.

use std::sync::Arc;

use net::upstream::Group;

use crate::session::Session;

/// Chooses servers for sessions.
pub trait Chooser: Send + Sync {
    /// The server of the next try, after so many that failed. The error is the status that the session ends with, and has
    /// been logged.
    fn choose(&self, session: &mut Session, failures: u32) -> Result<Choice, u16>;
}

/// A chosen server.
pub struct Choice {
    /// A group of this one server.
    pub group: Arc<Group>,
    /// How many tries may follow when this one fails; `None`: as was said before.
    pub more_tries: Option<u32>,
}

/// A chooser as a group keeps it: see [`net::upstream::Settings::chooser`].
pub struct Kept(pub Arc<dyn Chooser>);

/// The chooser of the `upstream` block that is being read. Its directive leaves it here, and who reads the block takes it.
#[derive(Default)]
pub struct Pending(pub Option<Arc<dyn Chooser>>);

/// The chooser of a group.
pub fn of(group: &Group) -> Option<Arc<dyn Chooser>> {
    let kept = group.settings.chooser.as_ref()?.downcast_ref::<Kept>()?;
    Some(Arc::clone(&kept.0))
}
