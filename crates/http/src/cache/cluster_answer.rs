//! The answer to a member of the cluster: what is stored, as it is stored, or why it has to ask elsewhere.
//!
//! A member is answered from what is complete, from a fill that the origin feeds, or from a fetch that is started for it.
//! Everything else is a 421 (RFC 9110, section 15.5.20) that says where to ask; the member that gets it asks the origin in
//! the end.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use cache::{FillFeed, FillFollower};
use net::cluster::{PeerClaim, hash_of_key};

use super::cache_response::CacheResponse;
use super::cluster_fetch::ClusterPart;
use super::decide::CacheAction;
use super::execute::StartedAction;
use super::lookup::CacheRequest;
use crate::cluster::{ObjectField, RESPONSE_FIELD, claim_of, is_of_member};
use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::response_body::ResponseBody;
use crate::upstream::respond;

/// What a member is answered that asks for something that this location does not have.
pub(super) fn answer_nothing(request: &mut Request) -> HandlerOutcome {
    answer_with(request, &ObjectField::Nothing)
}

fn answer_with(request: &mut Request, field: &ObjectField) -> HandlerOutcome {
    request.out.status = 421;
    request.out.content_length = Some(0);
    request.out.body = ResponseBody::Empty;
    request
        .out
        .fields
        .push_with(RESPONSE_FIELD, |out| field.write(out));
    HandlerOutcome::Respond
}

impl CacheRequest {
    /// Whether the key that a member asks for is the one that its request has here. If not, the configurations differ, or
    /// the key is made of something that only the member knows; what is stored here under its own key is another response.
    #[inline]
    pub(super) fn refuse_other_key(&self, request: &mut Request) -> Option<HandlerOutcome> {
        if !is_of_member(request) {
            return None;
        }
        let claim = claim_of(request)?;
        let cluster = self.settings.cache.cluster.as_ref();
        let is_same = cluster.is_some() && claim.key == hash_of_key(self.primary.text());
        if is_same {
            return None;
        }
        let why = match cluster {
            Some(_) => "its key differs from the one here: do the configurations differ?",
            None => "the location here has no \"cluster=\"",
        };
        request.error(format_args!(
            "a member of the cluster is not answered, {why}"
        ));
        Some(answer_nothing(request))
    }

    /// What happens to a member's request instead of what would happen to a client's by this action; `None`: the same.
    pub(super) fn for_member(
        &mut self,
        request: &mut Request,
        action: CacheAction,
        running: &mut Option<FillFollower>,
    ) -> Option<StartedAction> {
        if !is_of_member(request) {
            return None;
        }
        let claim = claim_of(request)?;
        let part = Rc::clone(self.cluster.as_ref()?);
        if matches!(action, CacheAction::Collapse(..)) {
            let waits = |follower: &FillFollower| follower.feed() == FillFeed::OtherCache;
            let has_head = |follower: &FillFollower| follower.known_head().is_some();
            let is_waiting = running.as_ref().is_some_and(waits);
            if !is_waiting || self.has_awaited_feed && running.as_ref().is_some_and(has_head) {
                return None;
            }
            // Both see the same members, and the one that asks could not reach the owner. In a moment this server will
            // not either, and ask the origin for both; or the owner answers. The wait is bounded, so that it is no part
            // of a circle for longer than that.
            if claim.epoch == part.route.epoch && !self.has_awaited_feed {
                self.has_awaited_feed = true;
                return Some(StartedAction::Feed(running.take()?, part.budget()));
            }
        }
        let refused = refuse_member(request, action, &claim, &part)?;
        Some(StartedAction::Answered(refused))
    }
}

/// Why a member is refused what it asks for, as the answer to it; `None`: it is not.
fn refuse_member(
    request: &mut Request,
    action: CacheAction,
    claim: &PeerClaim,
    part: &ClusterPart,
) -> Option<HandlerOutcome> {
    let owner = part.route.owner.as_ref();
    let other = owner.filter(|owner| claim.hop == 1 && Some(owner.address) != claim.from);
    let elsewhere = match other {
        Some(owner) => ObjectField::AskOther(owner.address),
        None => ObjectField::Nothing,
    };
    let field = match action {
        CacheAction::Collapse(..) => elsewhere,
        CacheAction::Fetch(..) | CacheAction::FetchRange | CacheAction::FetchMissing => {
            if claim.only_stored {
                ObjectField::Nothing
            } else if claim.epoch != part.route.epoch && other.is_some() {
                // By this server's view of the members another one fetches the key.
                elsewhere
            } else {
                // Asked although another member is the owner by the same view: that one could not be reached.
                return None;
            }
        }
        // The response would be for one client, and need not pass through here.
        CacheAction::FetchUnshared(_) | CacheAction::Pass(_) => ObjectField::Private,
        CacheAction::GatewayTimeout
        | CacheAction::Serve(_)
        | CacheAction::ServeCompleted
        | CacheAction::ServeAndRevalidate(_)
        | CacheAction::AwaitCommit => return None,
    };
    if matches!(field, ObjectField::AskOther(_)) {
        part.state.redirected.fetch_add(1, Relaxed);
    }
    Some(answer_with(request, &field))
}

impl CacheResponse<'_> {
    /// The head for a member: the stored one, and how long it is fresh. What the location makes of it for clients is made
    /// where the client is.
    pub(super) fn copy_head_for_member(&self, request: &mut Request) {
        let took_ms = request.elapsed_ms();
        let field = ObjectField::stored(&self.stored.freshness, self.now_ms, took_ms);
        respond::copy_whole_head(request, &self.stored.head);
        let out = &mut request.out;
        out.reason.clone_from(&self.stored.reason);
        out.fields.push_with(RESPONSE_FIELD, |out| field.write(out));
    }
}
