//! The answer to a member of the cluster: what is stored, as it is stored, or why it has to ask elsewhere.
//!
//! A member is answered from what is complete, from a fill that the origin feeds, or from a fetch that is started for it.
//! Everything else is a 421 (RFC 9110, section 15.5.20) that says where to ask; the member that gets it asks the origin in
//! the end.

use cache::{FillFeed, FillFollower};
use net::cluster::hash_of_key;
use std::sync::atomic::Ordering::Relaxed;

use super::cache_response::CacheResponse;
use super::decide::CacheAction;
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
    pub(super) fn refuse_other_key(&self, request: &mut Request) -> Option<HandlerOutcome> {
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

    /// What a member is answered instead of what a client would get by this action; `None`: the same.
    pub(super) fn refuse_member(
        &self,
        request: &mut Request,
        action: CacheAction,
        running: Option<&FillFollower>,
    ) -> Option<HandlerOutcome> {
        if !is_of_member(request) {
            return None;
        }
        let claim = claim_of(request)?;
        let part = self.cluster.as_ref()?;
        let other = part
            .route
            .owner
            .as_ref()
            .filter(|owner| claim.hop == 1 && Some(owner.address) != claim.from);
        let elsewhere = match other {
            Some(owner) => ObjectField::AskOther(owner.address),
            None => ObjectField::Nothing,
        };
        let field = match action {
            CacheAction::Collapse(..) => {
                let feed = running.map_or(FillFeed::Origin, FillFollower::feed);
                (feed == FillFeed::OtherCache).then_some(elsewhere)?
            }
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
