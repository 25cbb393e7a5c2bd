//! The tries of one request: each gets another peer.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::balance::PickState;
use super::chooser::{NoChoice, ServerChoice, TryHistory};
use super::group::Group;
use super::lease::Lease;
use super::outcome::{NoPeer, Outcome, Released};
use super::state::GroupState;

/// What a balancing method may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelectionRequest<'a> {
    /// The value of the balancer's key, if it has one ([`BalanceMethod::key`](super::BalanceMethod::key)).
    pub key: &'a [u8],
    /// The client's address; `None` on a unix socket.
    pub client: Option<IpAddr>,
    /// The result of the `sticky` lookup: a server's identifier, or with `learn` a session. Empty: none.
    pub sticky: &'a [u8],
}

/// The tries of a request. No peer of the group is used twice.
pub struct Selection {
    /// The group that the configuration names.
    own: Candidates,
    /// The server that the group's [`ServerChooser`](super::ServerChooser) chose for this try, as a group of one;
    /// `None`: the group's own balancing method chooses.
    chosen: Option<Candidates>,
    /// Tries that have failed.
    failures: u32,
    /// Tries that are left, for the balancing method and a chooser together.
    tries_left: u32,
    /// The limit for all tries (`next_upstream_tries`); 0: none.
    tries_limit: u32,
}

/// A group, and what the request remembers of its tries there.
struct Candidates {
    group: Arc<Group>,
    pick: PickState,
}

impl Selection {
    /// Starts the choice of a server for a request.
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

    /// As [`Selection::new`], for a request with only a client address.
    pub fn for_client(group: Arc<Group>, client: Option<IpAddr>) -> Selection {
        let request = SelectionRequest {
            client,
            ..SelectionRequest::default()
        };
        Selection::new(group, &request)
    }

    /// How many tries are left, including the present one while it lasts.
    pub fn tries_left(&self) -> u32 {
        self.tries_left
    }

    /// Limits the tries (`next_upstream_tries`); 0: as many as there are servers.
    pub fn limit_tries(&mut self, most: u32) {
        self.tries_limit = most;
        if most > 0 {
            self.tries_left = self.tries_left.min(most);
        }
    }

    /// Allows one more try: the last one failed on an idle connection, which the server may just have closed. That
    /// says little about the server.
    pub fn grant_try(&mut self) {
        self.tries_left += 1;
    }

    /// The group of the present try: the configured one, or that of a chosen server.
    pub fn group(&self) -> &Arc<Group> {
        &self.present().group
    }

    /// The state of [`Selection::group`].
    pub fn state(&self) -> &Arc<GroupState> {
        self.group().state()
    }

    /// Lets the group's chooser, if there is one, choose the server of the next try. `status` is the result of the
    /// previous try.
    ///
    /// What a chooser says holds for the group's own servers too, as in nginx.
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
            // A state of its own: a chosen server may be the same one again.
            let pick = PickState::new(b"", self.own.pick.client, None);
            Candidates { group, pick }
        });
        if self.chosen.is_some() {
            let more = choice.more_tries.unwrap_or(0);
            self.tries_left = self.tries_left.saturating_add(more);
        }
        Ok(Some(choice))
    }

    /// A peer, if one is free now.
    pub fn pick(&mut self) -> Result<Lease, NoPeer> {
        let Candidates { group, pick } = self.present_mut();
        group.state().pick(pick)
    }

    /// A peer, after a wait in the group's queue if necessary.
    ///
    /// The queue is first in, first out over all loops. Dropping the future leaves the queue.
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
        // A group with one server has no other to try. After a chosen server, another can be chosen.
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
