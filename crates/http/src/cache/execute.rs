//! Carries out what `decide` says. This is the only place where a request at the cache serves, waits, fetches or
//! passes.
//!
//! ```text
//! look up ─▶ decide ─▶ serve | wait | follow | start a fetch | pass
//!    ▲         ▲                               │
//!    │         └── another fill, hit-for-miss ─┤
//!    └──────────── the index has changed ──────┘
//! ```
//!
//! The clock is read when a request begins and after each wait. Everything decided between two waits uses one point in
//! time, so that an object cannot be fresh in one decision and stale in the next.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use cache::{
    CacheKey, CachedObject, FillCoverage, FillFollower, FillMessage, FillStart, FillState,
    FillWriter, LookupResult, SeenLocation, StaleReason, WantedFill,
};
use proto::KnownField;
use proto::caching::Freshness;

use super::cache_status::UpstreamCacheStatus;
use super::decide::{
    self, CacheAction, CurrentFill, FetchSharing, FillFacts, FoundEntry, LockWait, WantedRange,
    decide,
};
use super::fetch::{CacheFetch, FetchResult, StaleObject};
use super::fetch_fields::{FetchFields, RequestedRange};
use super::follow::{FollowStep, FollowedFill, client_left};
use super::lookup::{COMMIT_WAIT, CacheEntry, CacheRequest, EntryContent, StorageKey, decode_head};
use super::partial_content::{FetchedPart, PartRefusal, PartialContent};
use super::ranges::{first_byte, is_begun_by, range_wanted, wanted_part};
use super::stored_head::StoredHead;
use super::storing;
use crate::ledger::{CacheTier, FillRole, LedgerPhase};
use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::upstream;

/// How many lookups a request makes while the store changes under it, or while fills that it follows end without a
/// response. Then it asks the origin for itself, so that no sequence of purges and failures holds a client for ever.
const LOOKUPS_MAX: u32 = 5;

/// What the lookup found, in the form that the actions need.
enum CacheCandidate {
    Nothing,
    /// An object with its whole body. The flag: it was purged softly.
    Complete(CachedObject, Arc<StoredHead>, bool),
    /// An object with a part of its body, and the same flag.
    Partial(Box<PartialContent>, bool),
    /// A fill that has received its last byte, and the freshness of its response if the stored head can be read.
    Committing(FillFollower, Option<Freshness>),
}

impl CacheCandidate {
    fn of(cache_request: &CacheRequest, content: EntryContent, at: &StorageKey) -> CacheCandidate {
        let (object, is_purged) = match content {
            EntryContent::Stored(LookupResult::Hit(object)) => (object, false),
            EntryContent::Stored(LookupResult::Stale(object, why)) => {
                (object, why == StaleReason::Purged)
            }
            EntryContent::Stored(LookupResult::Miss(..)) => return CacheCandidate::Nothing,
            EntryContent::Committing(follower) => {
                // The commit of this fill is pending; it is newer than the index.
                let head = follower.known_head();
                let stored = head.and_then(|head| StoredHead::decode(&head.opaque));
                return CacheCandidate::Committing(follower, stored.map(|stored| stored.freshness));
            }
        };
        match decode_head(&object) {
            Some(stored) if object.is_complete() => {
                CacheCandidate::Complete(object, stored, is_purged)
            }
            Some(stored) => {
                let parts = PartialContent::of_object(cache_request, object, stored, at.clone());
                CacheCandidate::Partial(Box::new(parts), is_purged)
            }
            // Another version of Weir wrote the head. It is fetched anew, which replaces it.
            None => CacheCandidate::Nothing,
        }
    }

    /// The candidate as the decision's input.
    fn found(&self, request: &Request) -> FoundEntry<'_> {
        match self {
            CacheCandidate::Nothing => FoundEntry::Nothing,
            CacheCandidate::Complete(_, stored, is_purged) => FoundEntry::Complete {
                freshness: &stored.freshness,
                is_purged: *is_purged,
            },
            CacheCandidate::Partial(parts, is_purged) => FoundEntry::Partial {
                freshness: &parts.stored.freshness,
                is_purged: *is_purged,
                missing: parts.missing_content(request),
            },
            CacheCandidate::Committing(_, freshness) => FoundEntry::Committing {
                freshness: freshness.as_ref(),
                has_waited: false,
            },
        }
    }

    /// The object, for a fetch that revalidates it or falls back on it. A partial object is neither: see `decide`.
    fn into_stale(self, cache_request: &CacheRequest, now_ms: u64) -> Option<StaleObject> {
        let CacheCandidate::Complete(object, stored, is_purged) = self else {
            return None;
        };
        let (terms, settings) = (&cache_request.terms, &cache_request.settings.cache);
        let reuse = decide::reuse_of_stored(now_ms, &stored.freshness, is_purged, terms, settings);
        Some(StaleObject {
            object,
            stored,
            reuse,
        })
    }
}

/// What the store knows at the time of a decision. With the request's terms and the settings it is all that the decision
/// depends on.
struct DecisionInput {
    candidate: CacheCandidate,
    /// Where the candidate is stored, or would be.
    at: StorageKey,
    /// The version of the index at the lookup. The store refuses to start a fill if it has changed since: what was not
    /// there may be there by now.
    seen: SeenLocation,
    fill: FillState,
    now_ms: u64,
}

impl DecisionInput {
    fn of_entry(cache_request: &CacheRequest, entry: CacheEntry, now_ms: u64) -> DecisionInput {
        let CacheEntry { content, at } = entry;
        let seen = match &content {
            EntryContent::Stored(lookup) => lookup.seen_location(),
            // Not used: the table starts no fill beside one that is being committed.
            EntryContent::Committing(_) => SeenLocation::NOTHING,
        };
        DecisionInput {
            candidate: CacheCandidate::of(cache_request, content, &at),
            at,
            seen,
            fill: FillState::default(),
            now_ms,
        }
    }

    /// Asks the table.
    fn action(&self, cache_request: &CacheRequest, request: &Request) -> CacheAction {
        let fill = FillFacts {
            is_hit_for_miss: self.fill.is_hit_for_miss,
            current: self.fill.running.as_ref().map(|running| CurrentFill {
                began_ms: running.began_ms(),
                freshness: running
                    .known_head()
                    .and_then(|head| StoredHead::freshness_in(&head.opaque)),
                is_complete: running.is_complete(),
            }),
        };
        let found = self.candidate.found(request);
        decide(
            self.now_ms,
            found,
            fill,
            &cache_request.terms,
            &cache_request.settings.cache,
        )
    }
}

/// What an action has started, and what the request waits for.
pub(super) enum StartedAction {
    /// There is a response already.
    Answered(HandlerOutcome),
    /// Nothing: the index has changed since the lookup.
    LookAgain,
    /// A fill of its own, or one that has received its last byte.
    Following(FollowedFill),
    /// A fill that another request started, with a limit on the wait.
    Collapsed(FollowedFill, LockWait, StorageKey),
    /// A fill of what is missing of an object.
    Missing(Box<PartialContent>, FetchedPart),
    /// The commit of a fill; then the request looks up again.
    Commit,
    /// The head of a fill that waits for another member of the cluster, for so long; then the request looks up again.
    Feed(FillFollower, Duration),
    /// An exchange for this client, whose response is stored if it turns out to be storable.
    Unshared(UpstreamCacheStatus),
    /// An exchange for this client, of which nothing is stored.
    Passed(UpstreamCacheStatus),
}

/// What became of the attempt to start a fill.
enum BegunFill {
    Fill(FillWriter, FillFollower),
    Part(FetchedPart),
    /// A member asks, and the part comes by this fill, which waits for another member.
    FedElsewhere(FillFollower),
    /// It was not started: the store knows of a fill, or of a hit-for-miss, that the decision did not take into
    /// account.
    DecideAgain,
    /// It was not started: the index has changed since the lookup.
    LookAgain,
}

impl CacheRequest {
    /// Answers the request from the store or through it. `now_ms` is the time at which it reached the cache.
    pub(super) async fn answer_request(
        mut self: Box<Self>,
        request: &mut Request,
        now_ms: u64,
    ) -> HandlerOutcome {
        let mut now_ms = now_ms;
        request.upstream.get_or_make();
        // As in nginx, the request's body is read even where a hit needs none: the connection cannot be reused with it
        // unread.
        if request.body.exists() {
            if let Err(status) = crate::body_reader::read_body(request).await {
                return HandlerOutcome::Status(status);
            }
            now_ms = rt::wall_millis();
        }
        self.join_cluster(request);
        if self.is_bypassed {
            return self.go_past(request, FoundEntry::Bypassed, now_ms).await;
        }
        // A stored response to GET answers HEAD as well (RFC 9111, section 4).
        // Its own key is looked up only if there is none.
        if let Some(key) = self.key_of_get.take()
            && let Some((object, stored)) = self.find_for_head(request, key, &mut now_ms).await
        {
            return self.serve_object(request, &object, &stored, UpstreamCacheStatus::Hit, now_ms);
        }
        for _ in 0..LOOKUPS_MAX {
            let former = request.ledger.enter(LedgerPhase::Lookup);
            let entry = self.find_entry(request, now_ms).await;
            request.ledger.enter(former);
            match self.act(request, entry, now_ms).await {
                FollowStep::Done(outcome) => return outcome,
                // After a wait the time has moved on; without one, this costs a clock read and nothing else.
                FollowStep::LookAgain => now_ms = rt::wall_millis(),
            }
        }
        self.go_past(request, FoundEntry::Unsettled, now_ms).await
    }

    /// Answers from the origin in the cases where the store is of no help.
    async fn go_past(
        &mut self,
        request: &mut Request,
        found: FoundEntry<'_>,
        now_ms: u64,
    ) -> HandlerOutcome {
        let fill = FillFacts::default();
        match decide(now_ms, found, fill, &self.terms, &self.settings.cache) {
            CacheAction::FetchUnshared(status) => self.fetch_unshared(request, status).await,
            CacheAction::Pass(status) => self.pass_request(request, status).await,
            CacheAction::GatewayTimeout => HandlerOutcome::Status(504),
            // The table has no other action for what callers give as `found`. Passing needs nothing from the store, so it
            // would be safe even then.
            _ => self.pass_request(request, UpstreamCacheStatus::Miss).await,
        }
    }

    /// Decides on what was found, carries out the action, and waits for it.
    async fn act(&mut self, request: &mut Request, entry: CacheEntry, now_ms: u64) -> FollowStep {
        match self.start_action(request, entry, now_ms) {
            StartedAction::Answered(outcome) => outcome.into(),
            StartedAction::LookAgain => FollowStep::LookAgain,
            StartedAction::Following(fill) => self.follow_fill(request, fill).await,
            StartedAction::Collapsed(fill, wait, at) => {
                self.collapse(request, fill, wait, at).await
            }
            StartedAction::Missing(parts, fetched) => {
                self.follow_missing(request, *parts, fetched).await
            }
            // The wait is bounded: a slow disk must not hold the client. On timeout the origin is asked.
            StartedAction::Commit => {
                let former = request.ledger.enter(LedgerPhase::Disk);
                let flushed = rt::timeout(COMMIT_WAIT, self.store.flush()).await;
                request.ledger.enter(former);
                match flushed {
                    Ok(()) => FollowStep::LookAgain,
                    Err(_) => {
                        let found = FoundEntry::Committing {
                            freshness: None,
                            has_waited: true,
                        };
                        self.go_past(request, found, now_ms).await.into()
                    }
                }
            }
            StartedAction::Feed(mut follower, limit) => {
                // What comes of it is found by the next lookup.
                let _ = rt::timeout(limit, follower.wait_for_head()).await;
                FollowStep::LookAgain
            }
            StartedAction::Unshared(status) => self.fetch_unshared(request, status).await.into(),
            StartedAction::Passed(status) => self.pass_request(request, status).await.into(),
        }
    }

    /// Asks the table until something has started. There is no `await` in it, so no other task of this thread comes in
    /// between. Other threads can still change the store; then a fill is refused, and the table is asked again.
    fn start_action(
        &mut self,
        request: &mut Request,
        entry: CacheEntry,
        now_ms: u64,
    ) -> StartedAction {
        let mut input = DecisionInput::of_entry(self, entry, now_ms);
        let mut action = input.action(self, request);
        // A hit depends on nothing else. So the fill table, which is behind a lock, and the client's `Range` are not
        // looked at for the most common case.
        if action != CacheAction::Serve(UpstreamCacheStatus::Hit) {
            self.terms.range = range_wanted(request, &self.settings.cache);
            input.fill = self.store.fill_state(&input.at.key, now_ms);
            action = input.action(self, request);
        }
        // Two iterations, mostly. A refusal puts its reason into the input. With a fill to join, the rows that had started
        // one collapse or serve (UPDATING, or the completed fill), unless its response may not be used any more: then the
        // fill that is started takes its place, and only a still newer one can refuse that. With hit-for-miss they pass, fetch
        // for this client alone, or start a fill with `FetchSharing::Apart`, which the store never refuses.
        loop {
            // Taken out, because following a fill takes the follower itself. If nothing does, it is dropped before
            // this function returns: the fill's writer waits for a follower that does not read.
            let mut running = input.fill.running.take();
            let instead_of = running.as_ref().map(FillFollower::born);
            if let Some(instead) = self.for_member(request, action, &mut running) {
                return instead;
            }
            match (action, running) {
                (CacheAction::GatewayTimeout, _) => {
                    return StartedAction::Answered(HandlerOutcome::Status(504));
                }
                (CacheAction::Serve(status), _) => return self.serve(request, input, status),
                (CacheAction::ServeCompleted, running) => {
                    return follow_completed(input.candidate, running);
                }
                (CacheAction::AwaitCommit, _) => return StartedAction::Commit,
                (CacheAction::Collapse(status, wait), Some(follower)) => {
                    let fill = FollowedFill {
                        follower,
                        first_client: None,
                        status,
                        stale: input.candidate.into_stale(self, now_ms),
                    };
                    return StartedAction::Collapsed(fill, wait, input.at);
                }
                // The table answers so only if there is a fill, so this does not occur. Another lookup would be right.
                (CacheAction::Collapse(..), None) => return StartedAction::LookAgain,
                (CacheAction::FetchUnshared(_) | CacheAction::Pass(_), _) => {
                    return self.start_apart(request, &input, action);
                }
                (
                    CacheAction::Fetch(..)
                    | CacheAction::FetchRange
                    | CacheAction::FetchMissing
                    | CacheAction::ServeAndRevalidate(_),
                    _,
                ) => match self.begin_fill(request, &mut input, action, instead_of) {
                    BegunFill::Fill(writer, follower) => {
                        return self.fetch_into(request, input, action, (writer, follower));
                    }
                    BegunFill::Part(part) => return follow_missing_part(input.candidate, part),
                    BegunFill::FedElsewhere(fill) => return self.put_member_off(request, fill),
                    BegunFill::DecideAgain => action = input.action(self, request),
                    BegunFill::LookAgain => return StartedAction::LookAgain,
                },
            }
        }
    }

    /// Starts an exchange for this client alone, and notes why it is that, as far as that is known before the response
    /// comes.
    fn start_apart(
        &self,
        request: &mut Request,
        input: &DecisionInput,
        action: CacheAction,
    ) -> StartedAction {
        let terms = &self.terms;
        let why = match terms.range {
            _ if input.fill.is_hit_for_miss || terms.was_refused => Some("uncacheable remembered"),
            _ if terms.is_below_min_uses => Some("min_uses"),
            WantedRange::Beyond => Some("max_range_offset"),
            _ if terms.control.is_some_and(|control| control.no_store()) => {
                Some("request no-store")
            }
            WantedRange::Whole | WantedRange::Part => None,
        };
        if let Some(why) = why {
            let record = request.upstream.get_or_make();
            record.add_cache_reason(why, None);
        }
        match action {
            CacheAction::FetchUnshared(status) => StartedAction::Unshared(status),
            CacheAction::Pass(status) => StartedAction::Passed(status),
            // Not reached, since the caller asks for these two only.
            _ => StartedAction::LookAgain,
        }
    }

    /// Starts the fill of an action in the store, unless the store has learned something that the decision did not know.
    /// `instead_of`: the fill that the decision knew of, and did not join.
    fn begin_fill(
        &self,
        request: &Request,
        input: &mut DecisionInput,
        action: CacheAction,
        instead_of: Option<u64>,
    ) -> BegunFill {
        let (coverage, sharing) = match action {
            CacheAction::FetchMissing => return self.begin_missing_fill(request, input),
            CacheAction::FetchRange => {
                let range = asked_range(request);
                // A fetch for a range is identified by the words of the request, since the bytes that they select are
                // unknown until the head arrives. `If-Range` belongs to them: with another validator the origin may
                // send another version.
                let condition = range.condition.as_deref().map_or(&[][..], |text| text);
                let words = [&range.value, &b"\n"[..], condition].concat();
                (self.store.asked_in(&words), FetchSharing::Collapsed)
            }
            CacheAction::Fetch(_, sharing) | CacheAction::ServeAndRevalidate(sharing) => {
                (FillCoverage::Whole, sharing)
            }
            // No other action starts a fill.
            _ => return BegunFill::LookAgain,
        };
        // A separate fetch does not ask what is in progress, and cannot be refused.
        if sharing == FetchSharing::Apart {
            let (key, now_ms) = (&input.at.key, input.now_ms);
            let (writer, follower) = self.store.start_fed(self.feed(), key, now_ms);
            return BegunFill::Fill(writer, follower);
        }
        let key = &input.at.key;
        let wanted = WantedFill {
            key,
            coverage,
            seen: input.seen,
            feed: self.feed(),
            instead_of,
        };
        match self.store.join_or_start(wanted, input.now_ms) {
            FillStart::Started(writer, follower) => {
                // As soon as the head of such a fetch arrives, its fill moves to the byte range that the head names,
                // and cannot be found by the words any more. If that happened since the lookup, there is a part to
                // follow.
                let part = match action {
                    CacheAction::FetchRange => self.part_under_way(request, key, input.now_ms),
                    _ => None,
                };
                if part.is_some() {
                    // Only this request follows the new fill so far. It ends before it asks the origin.
                    writer.end_with_message(FillMessage::new(FetchResult::LookAgain));
                    input.fill.running = part;
                    return BegunFill::DecideAgain;
                }
                BegunFill::Fill(writer, follower)
            }
            FillStart::Joined(follower) => {
                input.fill.running = Some(follower);
                BegunFill::DecideAgain
            }
            FillStart::HitForMiss { .. } => {
                input.fill.is_hit_for_miss = true;
                BegunFill::DecideAgain
            }
            FillStart::Changed => BegunFill::LookAgain,
        }
    }

    /// Starts the fill of what is missing of a partial object, or joins the one that brings it.
    fn begin_missing_fill(&self, request: &Request, input: &mut DecisionInput) -> BegunFill {
        let CacheCandidate::Partial(parts, _) = &input.candidate else {
            return BegunFill::LookAgain;
        };
        match parts.fetch_missing(request, input.now_ms) {
            Ok(fetched) => BegunFill::Part(fetched),
            Err(PartRefusal::Changed) => BegunFill::LookAgain,
            Err(PartRefusal::HitForMiss) => {
                input.fill.is_hit_for_miss = true;
                BegunFill::DecideAgain
            }
            Err(PartRefusal::FedElsewhere(follower)) => BegunFill::FedElsewhere(follower),
        }
    }

    /// The fill in progress of the byte range that the client wants, if it begins at the client's first byte.
    fn part_under_way(
        &self,
        request: &Request,
        key: &CacheKey,
        now_ms: u64,
    ) -> Option<FillFollower> {
        let begin = first_byte(request.head.known(KnownField::Range)?)?;
        let follower = self.store.running_fill(key, FillCoverage::Part(begin))?;
        let head = follower.known_head()?;
        let stored = StoredHead::decode(&head.opaque)?;
        let (terms, settings) = (&self.terms, &self.settings.cache);
        decide::may_join(now_ms, &stored.freshness, terms, settings).then_some(())?;
        let wanted = wanted_part(request, &stored, head.length?);
        // Without a version nothing can be appended to a part, so it must then contain all that is wanted.
        is_begun_by(&wanted, &follower.partial_range()?, head.meta.version != 0).then_some(follower)
    }

    /// Starts the task that fetches into a fill.
    fn fetch_into(
        &self,
        request: &mut Request,
        input: DecisionInput,
        action: CacheAction,
        (writer, follower): (FillWriter, FillFollower),
    ) -> StartedAction {
        let DecisionInput {
            candidate,
            at,
            now_ms,
            ..
        } = input;
        let stale = candidate.into_stale(self, now_ms);
        let (fetch, status) = match action {
            CacheAction::FetchRange => {
                // The client's `Range` goes to the origin in its own words; only a whole response is asked for with
                // validators.
                let ask = FetchFields {
                    range: Some(asked_range(request)),
                    ..FetchFields::default()
                };
                (
                    CacheFetch::new(self, request, at, None, ask),
                    UpstreamCacheStatus::Miss,
                )
            }
            CacheAction::Fetch(status, _) => (
                CacheFetch::of_whole(self, request, at, stale.clone()),
                status,
            ),
            _ => (
                CacheFetch::of_whole(self, request, at, stale.clone()),
                UpstreamCacheStatus::Stale,
            ),
        };
        let first_client = storing::spawn_fetch(fetch, writer);
        match (action, stale) {
            (CacheAction::ServeAndRevalidate(_), Some(stale)) => {
                // This client has its answer already. The fetch continues without it, for the requests to come.
                drop(follower);
                let (object, stored) = (&stale.object, &stale.stored);
                StartedAction::Answered(self.serve_object(request, object, stored, status, now_ms))
            }
            (_, stale) => StartedAction::Following(FollowedFill {
                follower,
                first_client: Some(first_client),
                status,
                stale,
            }),
        }
    }

    /// Serves the stored response.
    fn serve(
        &self,
        request: &mut Request,
        input: DecisionInput,
        status: UpstreamCacheStatus,
    ) -> StartedAction {
        let now_ms = input.now_ms;
        StartedAction::Answered(match input.candidate {
            CacheCandidate::Complete(object, stored, _) => {
                request.ledger.tier = Some(match object.body_in_memory() {
                    Some(_) => CacheTier::Memory,
                    None => CacheTier::Disk,
                });
                self.serve_object(request, &object, &stored, status, now_ms)
            }
            CacheCandidate::Partial(parts, _) => {
                parts.respond_partial(request, now_ms, status, None)
            }
            CacheCandidate::Nothing | CacheCandidate::Committing(..) => {
                return StartedAction::LookAgain;
            }
        })
    }

    /// Follows another request's fill for as long as `wait` allows.
    async fn collapse(
        &mut self,
        request: &mut Request,
        fill: FollowedFill,
        wait: LockWait,
        at: StorageKey,
    ) -> FollowStep {
        let mut fill = fill;
        let limit = match wait {
            LockWait::Unlimited => return self.follow_fill(request, fill).await,
            LockWait::ThenFetch(limit) | LockWait::ThenPass(limit) => limit,
        };
        // The limit is for the head only. Once the body has begun, `…_cache_lock_timeout` no longer applies.
        let client = Rc::clone(&request.stream);
        let watch = self.watches_client(request);
        request.ledger.role = Some(FillRole::Follower);
        let former = request.ledger.enter(LedgerPhase::Fill);
        let waited = {
            let waiting = std::pin::pin!(rt::timeout(limit, fill.follower.wait_for_head()));
            upstream::while_client_stays(&client, watch, waiting).await
        };
        request.ledger.enter(former);
        match waited {
            Err(_) => return client_left(request).into(),
            Ok(Ok(_)) => return self.follow_fill(request, fill).await,
            // The time is over, and the other request's fill is left to itself.
            Ok(Err(_)) => {}
        }
        match wait {
            LockWait::ThenFetch(_) => {
                // `…_cache_lock_age`: the fill is regarded as stuck. Requests that arrive from now on join this newer
                // one.
                let FollowedFill { status, stale, .. } = fill;
                let now_ms = rt::wall_millis();
                let (writer, follower) = self.store.start_fed(self.feed(), &at.key, now_ms);
                let fetch = CacheFetch::of_whole(self, request, at, stale.clone());
                let own = FollowedFill {
                    follower,
                    first_client: Some(storing::spawn_fetch(fetch, writer)),
                    status,
                    stale,
                };
                self.follow_fill(request, own).await
            }
            LockWait::ThenPass(_) | LockWait::Unlimited => {
                // `…_cache_lock_timeout`: as in nginx, the response of a request that ran out of patience is not
                // stored.
                let status = fill.status;
                let record = request.upstream.get_or_make();
                record.add_cache_reason("lock_timeout", None);
                // The follower goes first: the writer would otherwise wait for it while the origin is asked again.
                drop(fill);
                self.pass_request(request, status).await.into()
            }
        }
    }
}

/// Follows content that is complete: the candidate itself, or the fill that is newer than the stored candidate.
fn follow_completed(candidate: CacheCandidate, running: Option<FillFollower>) -> StartedAction {
    let follower = match candidate {
        CacheCandidate::Committing(follower, _) => Some(follower),
        CacheCandidate::Nothing | CacheCandidate::Complete(..) | CacheCandidate::Partial(..) => {
            running
        }
    };
    follower.map_or(StartedAction::LookAgain, |follower| {
        StartedAction::Following(FollowedFill {
            follower,
            first_client: None,
            status: UpstreamCacheStatus::Hit,
            stale: None,
        })
    })
}

/// Serves what is stored of a partial object, and what is being fetched.
fn follow_missing_part(candidate: CacheCandidate, fetched: FetchedPart) -> StartedAction {
    match candidate {
        CacheCandidate::Partial(parts, _) => StartedAction::Missing(parts, fetched),
        CacheCandidate::Nothing | CacheCandidate::Complete(..) | CacheCandidate::Committing(..) => {
            StartedAction::LookAgain
        }
    }
}

/// The range that the client asks for, as it wrote it.
fn asked_range(request: &Request) -> RequestedRange {
    let field = |known| request.head.known(known).map(BString::from);
    RequestedRange {
        value: field(KnownField::Range).unwrap_or_default(),
        condition: field(KnownField::IfRange),
    }
}
