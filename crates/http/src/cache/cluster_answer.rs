//! The answer to a member of the cluster: what is stored, as it is stored, or why it has to ask elsewhere.
//!
//! A member is answered from what is complete, from a fill that the origin feeds, or from a fetch that is started for it.
//! Everything else is a 421 (RFC 9110, section 15.5.20) that says where to ask; the member that gets it asks the origin in
//! the end.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cache::{FillFeed, FillFollower};
use net::cluster::{
    AskedWork, FillSource, JournalPosition, MemberQuestion, MemberVerdict, PeerClaim, PurgeJournal,
    hash_of_key, judge_member, may_wait_for,
};

use super::cache_response::CacheResponse;
use super::cache_settings::CacheChoice;
use super::cluster_fetch::ClusterPart;
use super::decide::CacheAction;
use super::execute::StartedAction;
use super::lookup::CacheRequest;
use crate::cluster::{ObjectField, RESPONSE_FIELD, claim_of, is_of_member};
use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::response_body::ResponseBody;
use crate::upstream::{UpstreamSettings, respond};

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

/// A member that asks has read more of the journal of purges than this server: what is stored here may be what was purged.
pub(super) struct JournalBehind {
    journal: Arc<PurgeJournal>,
    id: JournalPosition,
    limit: Duration,
}

impl JournalBehind {
    /// `None`: this server has read as much.
    pub(super) fn of(request: &Request, settings: &UpstreamSettings) -> Option<JournalBehind> {
        let id = claim_of(request)?.journal?;
        let CacheChoice::Cache(zone) = &settings.cache.cache else {
            return None;
        };
        let journal = zone.journal().filter(|journal| !journal.has_applied(id))?;
        let cluster = settings.cache.cluster.as_ref()?;
        Some(JournalBehind {
            journal: Arc::clone(journal),
            id,
            limit: cluster.settings()?.budget / 2,
        })
    }

    /// Waits until this server has read as much: usually that takes a moment. Whether it has.
    pub(super) async fn catch_up(self) -> bool {
        self.journal.until_applied(self.id, self.limit).await
    }
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
        let mut claim = claim_of(request)?;
        let part = Rc::clone(self.cluster.as_ref()?);
        // Who has asked while this process was stopped has asked elsewhere since: nothing is fetched for it.
        claim.only_stored |= part.is_just_back;
        if matches!(action, CacheAction::Collapse(..)) {
            let waits =
                |follower: &FillFollower| !may_be_waited_for(follower.feed(), claim.only_stored);
            let has_head = |follower: &FillFollower| follower.known_head().is_some();
            let is_waiting = running.as_ref().is_some_and(waits);
            if !is_waiting || self.has_awaited_feed && running.as_ref().is_some_and(has_head) {
                let followed = u64::from(running.is_some());
                part.state.served_joined.fetch_add(followed, Relaxed);
                return None;
            }
            // Both see the same members, and the one that asks could not reach the owner. In a moment this server will
            // not either, and ask the origin for both; or the owner answers. The wait is bounded, so that it is no part
            // of a circle for longer than that.
            if self.may_await_feed(&claim, &part) {
                self.has_awaited_feed = true;
                return Some(StartedAction::Feed(running.take()?, part.budget()));
            }
        }
        let refused = refuse_member(request, work_of(action), &claim, &part)?;
        Some(StartedAction::Answered(refused))
    }

    /// Whether a member that asks waits once for the head of a fill that waits for another member. Not for what is stored: the
    /// owner itself asks for that, while the fill here waits for the owner. With two views it waits if this server is the
    /// owner by its own, since the fill that began by an earlier one will turn to the origin; and if it is the question of a
    /// second hop, after which only the origin is left.
    fn may_await_feed(&self, claim: &PeerClaim, part: &ClusterPart) -> bool {
        let is_last =
            claim.epoch == part.route.epoch || part.route.owner.is_none() || claim.hop > 1;
        is_last && !claim.only_stored && !self.has_awaited_feed
    }

    /// Whether a member that asks may not be made to wait for a fill. One whose head it has awaited is an exception: see
    /// [`CacheRequest::for_member`].
    pub(super) fn refuses_member(&self, request: &Request, follower: &FillFollower) -> bool {
        let claim = match is_of_member(request) {
            true => claim_of(request),
            false => None,
        };
        let has_waited = self.has_awaited_feed && follower.known_head().is_some();
        claim.is_some_and(|claim| !may_be_waited_for(follower.feed(), claim.only_stored))
            && !has_waited
    }

    /// What happens to a member whose answer would come by a fill that waits for another one: it waits for the head once, or
    /// asks elsewhere.
    pub(super) fn put_member_off(
        &mut self,
        request: &mut Request,
        follower: FillFollower,
    ) -> StartedAction {
        let asked = claim_of(request).zip(self.cluster.clone());
        let Some((claim, part)) = asked else {
            return StartedAction::LookAgain;
        };
        if self.may_await_feed(&claim, &part) {
            self.has_awaited_feed = true;
            return StartedAction::Feed(follower, part.budget());
        }
        let refused = refuse_member(request, AskedWork::Join, &claim, &part);
        StartedAction::Answered(refused.unwrap_or_else(|| answer_nothing(request)))
    }
}

/// What an action takes.
fn work_of(action: CacheAction) -> AskedWork {
    match action {
        CacheAction::Collapse(..) => AskedWork::Join,
        CacheAction::Fetch(..) | CacheAction::FetchRange | CacheAction::FetchMissing => {
            AskedWork::Fetch
        }
        CacheAction::FetchUnshared(_) | CacheAction::Pass(_) => AskedWork::Unshared,
        CacheAction::GatewayTimeout
        | CacheAction::Serve(_)
        | CacheAction::ServeCompleted
        | CacheAction::ServeAndRevalidate(_)
        | CacheAction::AwaitCommit => AskedWork::Serve,
    }
}

/// Whether a member may be made to wait for a fill with this feed.
fn may_be_waited_for(feed: FillFeed, only_stored: bool) -> bool {
    may_wait_for(
        match feed {
            FillFeed::Origin => FillSource::Origin,
            FillFeed::StoredElsewhere => FillSource::StoredElsewhere,
            FillFeed::OtherCache => FillSource::OtherMember,
        },
        only_stored,
    )
}

/// Why a member is refused what it asks for, as the answer to it; `None`: it is not.
fn refuse_member(
    request: &mut Request,
    work: AskedWork,
    claim: &PeerClaim,
    part: &ClusterPart,
) -> Option<HandlerOutcome> {
    let owner = part.route.owner.as_ref();
    let question = MemberQuestion {
        hop: claim.hop,
        only_stored: claim.only_stored,
        is_same_view: claim.epoch == part.route.epoch,
        is_of_another: owner.is_some_and(|owner| Some(owner.address) != claim.from),
    };
    let field = match (judge_member(question, work), owner) {
        (MemberVerdict::Answer, _) => {
            let counted = match work {
                AskedWork::Serve => &part.state.served_stored,
                // Counted where it is followed.
                AskedWork::Join => return None,
                AskedWork::Fetch | AskedWork::Unshared => &part.state.served_fetched,
            };
            counted.fetch_add(1, Relaxed);
            return None;
        }
        (MemberVerdict::AskOwner, Some(owner)) => ObjectField::AskOther(owner.address),
        (MemberVerdict::AskOwner, None) | (MemberVerdict::Nothing, _) => ObjectField::Nothing,
        (MemberVerdict::Private, _) => ObjectField::Private,
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
