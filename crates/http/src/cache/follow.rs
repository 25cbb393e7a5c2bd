//! A client that follows a fill: it waits for the head, and answers with the fill's content, or with what the fetch
//! tells its followers to do instead.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use cache::{CachedObject, FillFollower, FillMessage, FollowError};
use host::error_log::LogLevel;
use proto::caching::status::ForwardReason;
use proto::message::Method;

use super::cache_response::{
    CacheResponse, FillBody, ForwardStatus, body_of, identity_of, identity_of_fill,
    respond_unshared, why_forwarded,
};
use super::cache_status::UpstreamCacheStatus;
use super::fetch::{FetchResult, StaleObject};
use super::first_client::FirstClientSlot;
use super::lookup::{CacheRequest, StorageKey, VaryMarker};
use super::partial_content::{FetchedPart, PartialContent};
use super::ranges::{is_begun_by, wanted_part};
use super::stored_head::{StoredHead, variant_values};
use crate::ledger::{CacheTier, EndedBy, FillRole, LedgerPhase};
use crate::module::{HandlerOutcome, internal_status};
use crate::request::{Request, RequestPurpose};
use crate::upstream;

/// The result of an action that the request had to wait for.
pub(super) enum FollowStep {
    /// The request has its response.
    Done(HandlerOutcome),
    /// The stored response has changed, or is not the one that was followed: the request looks up again.
    LookAgain,
}

impl From<HandlerOutcome> for FollowStep {
    fn from(outcome: HandlerOutcome) -> FollowStep {
        FollowStep::Done(outcome)
    }
}

/// A fill that a request follows, and how the request came to follow it.
pub(super) struct FollowedFill {
    pub(super) follower: FillFollower,
    /// For the request that started the fill; `None` if it joined.
    pub(super) first_client: Option<Rc<FirstClientSlot>>,
    pub(super) status: UpstreamCacheStatus,
    /// The stale object that may be served instead.
    pub(super) stale: Option<StaleObject>,
}

impl FollowedFill {
    /// Whether another request started the fill.
    fn is_joined(&self) -> bool {
        self.first_client.is_none()
    }
}

impl CacheRequest {
    /// Waits for the head of a fill, and answers with what follows it.
    pub(super) async fn follow_fill(
        &mut self,
        request: &mut Request,
        fill: FollowedFill,
    ) -> FollowStep {
        let mut fill = fill;
        // Asked before the wait: a fill that was complete by then is a hit, not a collapsed request.
        let was_there = fill.is_joined() && fill.follower.is_complete();
        let head = match self.head_of(request, &mut fill).await {
            Ok(head) => head,
            Err(step) => return step,
        };
        // The wait may have been long, so `Age` is computed from now.
        let now_ms = rt::wall_millis();
        let Some(stored) = StoredHead::decode(&head.opaque).map(Arc::new) else {
            return FollowStep::LookAgain;
        };
        if let Some(variant) = &stored.variant
            && fill.is_joined()
            && variant.values != variant_values(&variant.names, &request.head.wire.fields)
            // One that was found by its language would be found again.
            && !self.language_values(request, &variant.names).contains(&variant.values)
        {
            // Both requests had the same primary key, and only the head told that their responses vary (RFC 9111,
            // section 4.1). The marker is remembered because it may not be in the index yet when this request looks up
            // again.
            self.known_marker = Some(VaryMarker {
                born: variant.born,
                names: variant.names.clone(),
            });
            return FollowStep::LookAgain;
        }
        // A part is not the whole response, and needs checking against what this client asked for.
        if fill.follower.partial_range().is_some() {
            return self.answer_with_part(request, fill, &head, stored, now_ms);
        }
        let is_collapsed = fill.is_joined();
        request.ledger.tier = Some(CacheTier::Fill);
        let FollowedFill {
            follower,
            first_client,
            status,
            ..
        } = fill;
        let identity = identity_of_fill(request, &self.store, &follower);
        let body = FillBody::new(follower, first_client, head.length).into_body(request);
        CacheResponse {
            now_ms,
            settings: &self.settings,
            store: &self.store,
            source: self.source,
            stored: &stored,
            status: match is_collapsed {
                true => joined_status(&stored, now_ms),
                false => status,
            },
            forwarded: (!was_there).then_some(ForwardStatus {
                why: why_forwarded(status),
                is_collapsed,
            }),
            body,
            length: head.length,
            identity,
        }
        .set_response(request)
        .into()
    }

    /// Waits for the head of a fill. `Err` is what the request does without one.
    async fn head_of(
        &mut self,
        request: &mut Request,
        fill: &mut FollowedFill,
    ) -> Result<Arc<cache::ObjectHead>, FollowStep> {
        // The client's disconnection is watched for during the wait, since nothing is being read from it or written to
        // it.
        let client = Rc::clone(&request.stream);
        let watch = self.watches_client(request);
        let FollowedFill {
            follower,
            first_client,
            ..
        } = &mut *fill;
        request.ledger.role = Some(match first_client {
            Some(_) => FillRole::Leader,
            None => FillRole::Follower,
        });
        let former = request.ledger.enter(LedgerPhase::Fill);
        let head = std::future::poll_fn(|context| {
            // Interim responses (RFC 9110, section 15.2) go to the client that started the fetch, and arrive before the
            // head.
            if let Some(first_client) = &first_client {
                let interim = first_client.poll_interim(context);
                if !interim.is_empty() {
                    upstream::interim_response::send_interim_bytes(request, &interim);
                }
            }
            loop {
                // The fetch asked for a range and got a response to the whole, or the other way round: the head is that
                // of the other fill.
                match ready!(follower.poll_head(context)) {
                    Err(FollowError::Message(instead)) if turns_to(follower, &instead) => {}
                    head => return Poll::Ready(head),
                }
            }
        });
        let head = upstream::while_client_stays(&client, watch, std::pin::pin!(head)).await;
        let Ok(head) = head else {
            return Err(client_left(request).into());
        };
        request.ledger.enter(former);
        if let Some(first_client) = first_client {
            first_client.update_record(request);
        }
        match head {
            Ok(head) => Ok(head),
            Err(FollowError::Message(instead)) => Err(match instead.get::<FetchResult>() {
                Some(result) => self.apply(request, result, fill),
                None => FollowStep::LookAgain,
            }),
            // The fill ended without a head. Looking up again either joins the next one or starts it.
            Err(FollowError::Released | FollowError::Failed(_)) => Err(FollowStep::LookAgain),
        }
    }

    /// Does what a fetch tells its followers to do in place of reading content.
    fn apply(
        &mut self,
        request: &mut Request,
        result: &FetchResult,
        fill: &FollowedFill,
    ) -> FollowStep {
        let now_ms = rt::wall_millis();
        match (result, &fill.stale) {
            (FetchResult::Released, _) => {
                // The exchange exists once. The client that started the fetch takes it; all others ask the origin
                // themselves.
                let slot = fill.first_client.as_ref();
                match slot.and_then(|slot| slot.take_exchange(request)) {
                    Some(exchange) => {
                        let outcome =
                            respond_unshared(request, &self.settings, exchange, fill.status);
                        // The fetch had a request of its own, without the client's conditions.
                        request.out.transforms.unconditional = false;
                        outcome.into()
                    }
                    None => {
                        // Remembered, so that the next lookup does not follow a fill that ends in the same way.
                        self.terms.was_refused = true;
                        FollowStep::LookAgain
                    }
                }
            }
            (FetchResult::UseStale, Some(stale)) => {
                let (object, stored) = (&stale.object, &stale.stored);
                self.serve_object(request, object, stored, UpstreamCacheStatus::Stale, now_ms)
                    .into()
            }
            (FetchResult::Revalidated(stored), Some(stale)) => self
                .serve_object(
                    request,
                    &stale.object,
                    stored,
                    UpstreamCacheStatus::Revalidated,
                    now_ms,
                )
                .into(),
            // A request that joined a fill may have found nothing at its lookup. The renewed object is in the index by
            // now.
            (FetchResult::UseStale | FetchResult::Revalidated(_), None)
            | (FetchResult::LookAgain | FetchResult::FollowOther(_), _) => FollowStep::LookAgain,
            (FetchResult::Failed(code), _) => respond_failed(request, *code, fill.status).into(),
        }
    }

    /// Answers with a byte range that is being fetched, of a response of which nothing usable was stored before.
    fn answer_with_part(
        &self,
        request: &mut Request,
        fill: FollowedFill,
        head: &cache::ObjectHead,
        stored: Arc<StoredHead>,
        now_ms: u64,
    ) -> FollowStep {
        let is_collapsed = fill.is_joined();
        let FollowedFill {
            follower,
            first_client,
            status,
            ..
        } = fill;
        let (Some(part), Some(length)) = (follower.partial_range(), head.length) else {
            return FollowStep::LookAgain;
        };
        // `Content-Range` has only now told which bytes these are. They are of use if this client's range begins in
        // them and the remainder can be had from the same version.
        let wanted = wanted_part(request, &stored, length);
        let version = head.meta.version;
        if request.method != Method::Head && !is_begun_by(&wanted, &part, version != 0) {
            return FollowStep::LookAgain;
        }
        // A fill that was complete before this request came is a hit in every respect.
        let forwarded = match is_collapsed && follower.is_complete() {
            true => None,
            false => Some(ForwardStatus {
                why: ForwardReason::UriMiss,
                is_collapsed,
            }),
        };
        let marker = stored.variant.as_ref().map(|variant| VaryMarker {
            born: variant.born,
            names: variant.names.clone(),
        });
        let at = StorageKey {
            key: follower.key(),
            marker,
        };
        let fetched = FetchedPart {
            begin: part.start,
            follower,
            first_client,
        };
        let parts = PartialContent::of_fetch(self, fetched, stored, at, (length, version));
        let status = match is_collapsed {
            true => joined_status(&parts.stored, now_ms),
            false => status,
        };
        parts
            .respond_partial(request, now_ms, status, forwarded)
            .into()
    }

    /// Waits for the head of the missing part of an object, then answers with the stored and the fetched content
    /// together.
    pub(super) async fn follow_missing(
        &mut self,
        request: &mut Request,
        parts: PartialContent,
        fetched: FetchedPart,
    ) -> FollowStep {
        let mut parts = parts;
        let mut fill = FollowedFill {
            follower: fetched.follower,
            first_client: fetched.first_client,
            status: UpstreamCacheStatus::Miss,
            stale: None,
        };
        let is_collapsed = fill.is_joined();
        let was_there = is_collapsed && fill.follower.is_complete();
        let head = match self.head_of(request, &mut fill).await {
            Ok(head) => head,
            Err(step) => return step,
        };
        // The origin has another version by now. Nothing has been sent to the client yet, so it can still get the new
        // one.
        if head.meta.version != parts.version {
            return FollowStep::LookAgain;
        }
        // The head of the part is newer than the stored one (RFC 9111, section 3.4).
        if let Some(stored) = StoredHead::decode(&head.opaque) {
            parts.stored = Arc::new(stored);
        }
        parts.fetched = Some(FetchedPart {
            follower: fill.follower,
            first_client: fill.first_client,
            begin: fetched.begin,
        });
        let (status, forwarded) = match was_there {
            true => (UpstreamCacheStatus::Hit, None),
            false => (
                UpstreamCacheStatus::Miss,
                Some(ForwardStatus {
                    why: ForwardReason::Partial,
                    is_collapsed,
                }),
            ),
        };
        parts
            .respond_partial(request, rt::wall_millis(), status, forwarded)
            .into()
    }

    /// Whether the client's disconnection ends the wait: `…_ignore_client_abort` is off, and there is a client to
    /// watch.
    pub(super) fn watches_client(&self, request: &Request) -> bool {
        !self.settings.ignore_client_abort && request.flow.purpose == RequestPurpose::Response
    }

    /// Serves an object with its whole body.
    pub(super) fn serve_object(
        &self,
        request: &mut Request,
        object: &CachedObject,
        stored: &Arc<StoredHead>,
        status: UpstreamCacheStatus,
        now_ms: u64,
    ) -> HandlerOutcome {
        // STALE and UPDATING are hits for `Cache-Status`: this request was not forwarded (RFC 9211, section 2.2).
        let forwarded = (status == UpstreamCacheStatus::Revalidated).then_some(ForwardStatus {
            why: ForwardReason::Stale,
            is_collapsed: false,
        });
        CacheResponse {
            now_ms,
            settings: &self.settings,
            store: &self.store,
            source: self.source,
            stored,
            status,
            forwarded,
            body: body_of(object),
            length: Some(object.length()),
            identity: identity_of(request, &self.store, object),
        }
        .set_response(request)
    }
}

/// What a client is told that has joined a fill: that the response is stale, if it was when the client came. A response
/// that the origin calls stale at once is as new as it can be for those that waited for it.
fn joined_status(stored: &StoredHead, now_ms: u64) -> UpstreamCacheStatus {
    let freshness = &stored.freshness;
    match freshness.has_aged(now_ms) && freshness.stale_ms(now_ms) > 0 {
        true => UpstreamCacheStatus::Updating,
        false => UpstreamCacheStatus::Hit,
    }
}

/// Switches to another fill, if that is what the fetch says.
fn turns_to(follower: &mut FillFollower, message: &FillMessage) -> bool {
    let Some(FetchResult::FollowOther(other)) = message.get::<FetchResult>() else {
        return false;
    };
    // Cloned under the lock: several followers, on different loops, switch to the same fill.
    *follower = other.lock().clone();
    true
}

/// The client disconnected during the wait: nginx's 499 and its log line.
pub(super) fn client_left(request: &mut Request) -> HandlerOutcome {
    request.ledger.end_in(EndedBy::Client, LedgerPhase::Fill);
    request.log_while(
        LogLevel::Info,
        "waiting for the cache",
        format_args!("client prematurely closed connection"),
    );
    HandlerOutcome::Status(internal_status::CLIENT_CLOSED)
}

/// Answers with a status, because there is no response to serve.
pub(super) fn respond_failed(
    request: &mut Request,
    code: u16,
    status: UpstreamCacheStatus,
) -> HandlerOutcome {
    request.upstream.get_or_make().cache = Some(status);
    HandlerOutcome::Status(code)
}
