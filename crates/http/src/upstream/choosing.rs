//! The tries of an exchange whose servers are not chosen by the group.

use std::sync::Arc;

use net::upstream::{Group, Selection};

use super::chooser::{Choice, Chooser, Past};
use crate::request::Request;

/// Who chooses, and what became of it so far.
pub(super) struct Choosing {
    chooser: Arc<dyn Chooser>,
    /// The group itself, while it is another one's server that is tried.
    own: Option<(Arc<Group>, Selection)>,
    failures: u32,
    /// How many tries there may be from now on.
    left: u32,
    /// How many there may be at all; 0: any number.
    limit: u32,
}

impl Choosing {
    /// Begins, if a script chooses the group's servers.
    pub(super) fn of(group: &Group, selection: &Selection, limit: u32) -> Option<Choosing> {
        Some(Choosing {
            chooser: super::chooser::of(group)?,
            own: None,
            failures: 0,
            left: selection.tries(),
            limit,
        })
    }

    /// Has the server of the next try chosen. The error is the status to answer with.
    pub(super) fn choose(
        &mut self,
        request: &mut Request,
        status: u16,
        group: &mut Arc<Group>,
        selection: &mut Selection,
    ) -> Result<Choice, u16> {
        let past = Past {
            failures: self.failures,
            status: if self.failures == 0 { 0 } else { status },
            left: self.left,
            limit: self.limit,
        };
        let choice = self.chooser.choose(request, &past)?;
        self.failures += 1;
        match &choice.group {
            Some(chosen) => {
                self.left = self.left.saturating_add(choice.more_tries.unwrap_or(0));
                let (theirs, _) = super::target::select(request, chosen);
                let before = (
                    std::mem::replace(group, Arc::clone(chosen)),
                    std::mem::replace(selection, theirs),
                );
                self.own.get_or_insert(before);
            }
            // The group's own servers in their turns, as if nobody had been asked.
            None => {
                if let Some(own) = self.own.take() {
                    (*group, *selection) = own;
                }
                if group.settings.servers.is_empty() {
                    request.error(format_args!(
                        "no peer was set, and the upstream has no servers"
                    ));
                    return Err(500);
                }
            }
        }
        Ok(choice)
    }

    /// A try has failed. A chosen server is the only one of its group; who chose it may allow for more.
    pub(super) fn failed(&mut self, selection: &mut Selection) {
        self.left = self.left.saturating_sub(1);
        if self.own.is_some() && self.left > 0 {
            selection.grant_try();
        }
    }
}
