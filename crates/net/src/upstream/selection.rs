//! The tries of one request: each gets another peer.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::balance::PickState;
use super::chooser::{NoChoice, ServerChoice, TryHistory};
use super::group::UpstreamGroup;
use super::group_state::GroupState;
use super::lease::PeerLease;
use super::outcome::{NoPeer, PeerOutcome, ReleasedPeer};

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
pub struct PeerSelection {
    /// The group that the configuration names.
    own: GroupCandidates,
    /// The server that the group's [`ServerChooser`](super::ServerChooser) chose for this try, as a group of one;
    /// `None`: the group's own balancing method chooses. Boxed because it is rare: a selection is moved about.
    chosen: Option<Box<GroupCandidates>>,
    /// Tries that have failed.
    failures: u32,
    /// Tries that are left, for the balancing method and a chooser together.
    tries_left: u32,
    /// The limit for all tries (`next_upstream_tries`); 0: none.
    tries_limit: u32,
}

/// A group, and what the request remembers of its tries there.
struct GroupCandidates {
    group: Arc<UpstreamGroup>,
    pick: PickState,
}

impl PeerSelection {
    /// Starts the choice of a server for a request.
    pub fn new(group: Arc<UpstreamGroup>, request: &SelectionRequest<'_>) -> PeerSelection {
        let state = group.state();
        let pick = PickState::new(request.key, request.client, state.server_of(request.sticky));
        let tries_left = state.tries();
        PeerSelection {
            own: GroupCandidates { group, pick },
            chosen: None,
            failures: 0,
            tries_left,
            tries_limit: 0,
        }
    }

    /// As [`PeerSelection::new`], for a request with only a client address.
    pub fn for_client(group: Arc<UpstreamGroup>, client: Option<IpAddr>) -> PeerSelection {
        let request = SelectionRequest {
            client,
            ..SelectionRequest::default()
        };
        PeerSelection::new(group, &request)
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

    /// Forgets a try, whose lease was dropped: it failed on an idle connection, which the server may just have closed.
    /// That says nothing about the server, and it may be the only one that is left, so it can be chosen again.
    pub fn forget_try(&mut self) {
        self.present_mut().pick.forget_last_try();
    }

    /// The group of the present try: the configured one, or that of a chosen server.
    pub fn group(&self) -> &Arc<UpstreamGroup> {
        &self.present().group
    }

    /// The state of [`PeerSelection::group`].
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
            Box::new(GroupCandidates { group, pick })
        });
        if self.chosen.is_some() {
            let more = choice.more_tries.unwrap_or(0);
            self.tries_left = self.tries_left.saturating_add(more);
        }
        Ok(Some(choice))
    }

    /// A peer, if one is free now.
    pub fn try_pick(&mut self) -> Result<PeerLease, NoPeer> {
        let GroupCandidates { group, pick } = self.present_mut();
        group.state().pick(pick)
    }

    /// A peer, after a wait in the group's queue if necessary.
    ///
    /// The queue is first in, first out over all loops. Dropping the future leaves the queue.
    pub async fn acquire(&mut self) -> Result<PeerLease, NoPeer> {
        match self.try_pick() {
            Err(NoPeer::Occupied) => self.wait_in_queue().await,
            result => result,
        }
    }

    /// The second half of [`PeerSelection::acquire`], after [`PeerSelection::try_pick`] has said
    /// [`NoPeer::Occupied`].
    pub async fn wait_in_queue(&mut self) -> Result<PeerLease, NoPeer> {
        let GroupCandidates { group, pick } = self.present_mut();
        Arc::clone(group.state()).wait(pick).await
    }

    /// Ends the use of a peer, and counts the try.
    pub fn release_peer(&mut self, lease: PeerLease, outcome: PeerOutcome) -> ReleasedPeer {
        let released = lease.end_exchange(outcome);
        self.failures += 1;
        // A group with one server has no other to try. After a chosen server, another can be chosen.
        self.tries_left = match self.chosen {
            None if released.is_only_peer => 0,
            _ => self.tries_left.saturating_sub(1),
        };
        released
    }

    fn present(&self) -> &GroupCandidates {
        self.chosen.as_deref().unwrap_or(&self.own)
    }

    fn present_mut(&mut self) -> &mut GroupCandidates {
        self.chosen.as_deref_mut().unwrap_or(&mut self.own)
    }
}

impl fmt::Debug for PeerSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerSelection")
            .field("pick", &self.present().pick)
            .field("tries_left", &self.tries_left)
            .finish_non_exhaustive()
    }
}
