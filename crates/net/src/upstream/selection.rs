//! One request's way to a peer, over as many tries as it takes.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::balance::PickState;
use super::chooser::{NoChoice, ServerChoice, TryHistory};
use super::group::Group;
use super::lease::Lease;
use super::outcome::{NoPeer, Outcome, Released};
use super::state::GroupState;

/// What a balancer may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelectionRequest<'a> {
    /// The value of the balancer's key, if it has one ([`BalanceMethod::key`](super::BalanceMethod::key)).
    pub key: &'a [u8],
    /// The client's address; `None` on a unix socket.
    pub client: Option<IpAddr>,
    /// What `sticky` found: a server's identifier, or a session with `learn`. Empty: nothing.
    pub sticky: &'a [u8],
}

/// The tries of a request. It gets no peer of the group twice.
pub struct Selection {
    /// The group that the configuration names.
    own: Candidates,
    /// The server that the group's [`ServerChooser`](super::ServerChooser) chose for the present try, as a group of one;
    /// `None`: the group's own servers take their turns.
    chosen: Option<Candidates>,
    /// Tries that have failed.
    failures: u32,
    /// Tries that there may be from now on, whoever chooses their servers.
    tries_left: u32,
    /// Tries that there may be at all (`next_upstream_tries`); 0: any number.
    tries_limit: u32,
}

/// A group, and what a request remembers of its tries there.
struct Candidates {
    group: Arc<Group>,
    pick: PickState,
}

impl Selection {
    /// Begins the choice of a server for a request.
    pub fn new(group: Arc<Group>, request: &SelectionRequest<'_>) -> Selection {
        let state = group.state();
        let pick = PickState::new(request.key, request.client, state.server_of(request.sticky));
        let tries_left = state.tries();
        Selection {
            own: Candidates { group, pick },
            chosen: None,
            failures: 0,
            tries_left,
            tries_limit: 0,
        }
    }

    /// As [`Selection::new`], for a request that has nothing but a client.
    pub fn for_client(group: Arc<Group>, client: Option<IpAddr>) -> Selection {
        let request = SelectionRequest {
            client,
            ..SelectionRequest::default()
        };
        Selection::new(group, &request)
    }

    /// How many tries are left, the present one included while it lasts.
    pub fn tries_left(&self) -> u32 {
        self.tries_left
    }

    /// Allows no more than so many tries (`next_upstream_tries`); 0: as many as there are servers.
    pub fn limit_tries(&mut self, most: u32) {
        self.tries_limit = most;
        if most > 0 {
            self.tries_left = self.tries_left.min(most);
        }
    }

    /// One try more: the last one failed on a connection that had been idle, which says little about the server.
    pub fn grant_try(&mut self) {
        self.tries_left += 1;
    }

    /// The group whose server the present try goes to: the one that the configuration names, or that of a chosen server.
    pub fn group(&self) -> &Arc<Group> {
        &self.present().group
    }

    /// The state of [`Selection::group`].
    pub fn state(&self) -> &Arc<GroupState> {
        self.group().state()
    }

    /// Lets the group's chooser, if it has one, choose the server of the next try. `status` is what the try before came to.
    ///
    /// All that a chooser may say of the tries counts for those of the group's own servers too, as in nginx.
    pub fn ask_chooser<R: 'static>(
        &mut self,
        request: &mut R,
        status: u16,
    ) -> Result<Option<ServerChoice>, NoChoice> {
        let chooser = self.own.group.settings.chooser.as_ref();
        let Some(chooser) = chooser.and_then(|chooser| chooser.of::<R>()) else {
            return Ok(None);
        };
        let history = TryHistory {
            failures: self.failures,
            status: if self.failures == 0 { 0 } else { status },
            left: self.tries_left,
            limit: self.tries_limit,
        };
        let choice = chooser.choose(request, &history)?;
        self.chosen = choice.group.clone().map(|group| {
            let pick = PickState::new(b"", self.own.pick.client, None);
            Candidates { group, pick }
        });
        if self.chosen.is_some() {
            let more = choice.more_tries.unwrap_or(0);
            self.tries_left = self.tries_left.saturating_add(more);
        }
        Ok(Some(choice))
    }

    /// A peer, if there is one now.
    pub fn pick(&mut self) -> Result<Lease, NoPeer> {
        let Candidates { group, pick } = self.present_mut();
        group.state().pick(pick)
    }

    /// A peer, for which it may have to wait in the group's queue.
    ///
    /// The wait is first in, first out over all loops. Dropping the future leaves the queue.
    pub async fn acquire(&mut self) -> Result<Lease, NoPeer> {
        match self.pick() {
            Err(NoPeer::Occupied) => {
                let Candidates { group, pick } = self.present_mut();
                Arc::clone(group.state()).wait(pick).await
            }
            result => result,
        }
    }

    /// Ends the use of a peer, and counts the try.
    pub fn release(&mut self, lease: Lease, outcome: Outcome) -> Released {
        let released = lease.end(outcome);
        self.failures += 1;
        // After the only server of a group there is no other to try; after a chosen one, another may be chosen.
        self.tries_left = match self.chosen {
            None if released.is_only_peer => 0,
            _ => self.tries_left.saturating_sub(1),
        };
        released
    }

    fn present(&self) -> &Candidates {
        self.chosen.as_ref().unwrap_or(&self.own)
    }

    fn present_mut(&mut self) -> &mut Candidates {
        self.chosen.as_mut().unwrap_or(&mut self.own)
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selection")
            .field("pick", &self.present().pick)
            .field("tries_left", &self.tries_left)
            .finish_non_exhaustive()
    }
}
