//! The tries of a session whose servers are not chosen by the group.

use std::sync::Arc;

use ::stream::Session;
use ::stream::chooser::{self, Chooser, Past};
use net::ConnectOptions;
use net::upstream::{Group, Selection};

/// Who chooses, if anybody does, and what became of it so far.
pub(super) struct Choosing {
    chooser: Option<Arc<dyn Chooser>>,
    /// The group itself, while it is another one's server that is tried.
    own: Option<(Arc<Group>, Selection)>,
    past: Past,
}

impl Choosing {
    pub(super) fn of(group: &Group, selection: &Selection, limit: u32) -> Choosing {
        Choosing {
            chooser: chooser::of(group),
            own: None,
            past: Past {
                failures: 0,
                left: selection.tries(),
                limit,
            },
        }
    }

    /// Has the server of the next try chosen. The error is the status that the session ends with.
    pub(super) fn choose(
        &mut self,
        session: &mut Session,
        group: &mut Arc<Group>,
        selection: &mut Selection,
        options: &mut ConnectOptions,
    ) -> Result<(), u16> {
        let Some(chooser) = &self.chooser else {
            return Ok(());
        };
        let choice = chooser.choose(session, &self.past)?;
        options.from = choice.from.or(options.from.take());
        if let Some(chosen) = choice.group {
            let more = choice.more_tries.unwrap_or(0);
            self.past.left = self.past.left.saturating_add(more);
            let theirs = super::select(session, &chosen);
            let before = (
                std::mem::replace(group, chosen),
                std::mem::replace(selection, theirs),
            );
            self.own.get_or_insert(before);
        } else if let Some(own) = self.own.take() {
            // The group's own servers in their turns, as if nobody had been asked.
            (*group, *selection) = own;
        }
        Ok(())
    }

    /// A try has failed; whether it was the last. The group of a chosen server has no other; who chose it may allow for
    /// more.
    pub(super) fn failed(&mut self, selection: &Selection) -> bool {
        let past = &mut self.past;
        past.failures += 1;
        past.left = past.left.saturating_sub(1);
        match self.own {
            Some(_) => past.left == 0 || past.failures == past.limit,
            None => selection.tries() == 0,
        }
    }
}
