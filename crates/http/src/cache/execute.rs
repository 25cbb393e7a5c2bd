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

use bstr::BString;
use cache::{
    Coverage, FillStart, FillState, Follower, Instead, Key, Lookup, Object, Seen, Why, Writer,
};
use proto::Known;
use proto::caching::Freshness;

use super::ask::{Ask, AskedRange};
use super::decide::{self, Action, Fill, Found, LockWait, RunningFill, Sharing, decide};
use super::fetch::{Fetch, FetchResult, StaleObject};
use super::follow::{FollowedFill, Step, client_left};
use super::head::StoredHead;
use super::lookup::{COMMIT_WAIT, CacheEntry, CacheRequest, EntryContent, StorageKey, decode};
use super::parts::{FetchedPart, PartRefusal, PartialContent};
use super::ranges::{first_byte, is_begun_by, range_wanted, wanted_part};
use super::status::Status;
use super::storing;
use crate::module::Outcome;
use crate::request::Request;
use crate::upstream;

/// How many lookups a request makes while the store changes under it, or while fills that it follows end without a
/// response. Then it asks the origin for itself, so that no sequence of purges and failures holds a client for ever.
const LOOKUPS_MAX: u32 = 5;

/// What the lookup found, in the form that the actions need.
enum Candidate {
    Nothing,
    /// An object with its whole body. The flag: it was purged softly.
    Complete(Object, Arc<StoredHead>, bool),
    /// An object with a part of its body, and the same flag.
    Partial(Box<PartialContent>, bool),
    /// A fill that has received its last byte, and the freshness of its response if the stored head can be read.
    Committing(Follower, Option<Freshness>),
}

impl Candidate {
    fn of(asker: &CacheRequest, content: EntryContent, at: &StorageKey) -> Candidate {
        let (object, is_purged) = match content {
            EntryContent::Stored(Lookup::Hit(object)) => (object, false),
            EntryContent::Stored(Lookup::Stale(object, why)) => (object, why == Why::Purged),
            EntryContent::Stored(Lookup::Miss(..)) => return Candidate::Nothing,
            EntryContent::Committing(follower) => {
                // The commit of this fill is pending; it is newer than the index.
                let head = follower.known_head();
                let stored = head.and_then(|head| StoredHead::decode(&head.head));
                return Candidate::Committing(follower, stored.map(|stored| stored.freshness));
            }
        };
        match decode(&object) {
            Some(stored) if object.is_complete() => Candidate::Complete(object, stored, is_purged),
            Some(stored) => {
                let parts = PartialContent::of_object(asker, object, stored, at.clone());
                Candidate::Partial(Box::new(parts), is_purged)
            }
            // Another version of Weir wrote the head. It is fetched anew, which replaces it.
            None => Candidate::Nothing,
        }
    }

    /// The candidate as the decision's input.
    fn found(&self, request: &Request) -> Found<'_> {
        match self {
            Candidate::Nothing => Found::Nothing,
            Candidate::Complete(_, stored, is_purged) => Found::Complete {
                freshness: &stored.freshness,
                is_purged: *is_purged,
            },
            Candidate::Partial(parts, is_purged) => Found::Partial {
                freshness: &parts.stored.freshness,
                is_purged: *is_purged,
                missing: parts.missing(request),
            },
            Candidate::Committing(_, freshness) => Found::Committing {
                freshness: freshness.as_ref(),
                has_waited: false,
            },
        }
    }

    /// The object, for a fetch that revalidates it or falls back on it. A partial object is neither: see `decide`.
    fn into_stale(self, asker: &CacheRequest, now_ms: u64) -> Option<StaleObject> {
        let Candidate::Complete(object, stored, is_purged) = self else {
            return None;
        };
        let (terms, settings) = (&asker.terms, &asker.settings.cache);
        let reuse = decide::reuse(now_ms, &stored.freshness, is_purged, terms, settings);
        Some(StaleObject {
            object,
            stored,
            reuse,
        })
    }
}

/// The complete state that a decision is made on.
struct Situation {
    candidate: Candidate,
    /// Where the candidate is stored, or would be.
    at: StorageKey,
    /// The version of the index at the lookup. The store refuses to start a fill if it has changed since: what was not
    /// there may be there by now.
    seen: Seen,
    fill: FillState,
    now_ms: u64,
}

impl Situation {
    /// Asks the table.
    fn action(&self, asker: &CacheRequest, request: &Request) -> Action {
        let fill = Fill {
            is_hit_for_miss: self.fill.is_hit_for_miss,
            running: self.fill.running.as_ref().map(|running| RunningFill {
                began_ms: running.began_ms(),
                is_complete: running.is_complete(),
            }),
        };
        let found = self.candidate.found(request);
        decide(
            self.now_ms,
            found,
            fill,
            &asker.terms,
            &asker.settings.cache,
        )
    }
}

/// What an action has started, and what the request waits for.
enum Started {
    /// There is a response already.
    Answered(Outcome),
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
    /// An exchange for this client, whose response is stored if it turns out to be storable.
    Unshared(Status),
    /// An exchange for this client, of which nothing is stored.
    Passed(Status),
}

/// What became of the attempt to start a fill.
enum Begun {
    Fill(Writer, Follower),
    Part(FetchedPart),
    /// It was not started: the store knows of a fill, or of a hit-for-miss, that the decision did not take into
    /// account.
    DecideAgain,
    /// It was not started: the index has changed since the lookup.
    LookAgain,
}

impl CacheRequest {
    /// Answers the request from the store or through it. `now_ms` is the time at which it reached the cache.
    pub(super) async fn run(mut self: Box<Self>, request: &mut Request, now_ms: u64) -> Outcome {
        let mut now_ms = now_ms;
        request.upstream.get_or_make();
        // As in nginx, the request's body is read even where a hit needs none: the connection cannot be reused with it unread.
        if request.body.exists() {
            if let Err(status) = crate::body_reader::read(request).await {
                return Outcome::Status(status);
            }
            now_ms = rt::wall_millis();
        }
        if self.is_bypassed {
            return self.go_past(request, Found::Bypassed, now_ms).await;
        }
        // A stored response to GET answers HEAD as well (RFC 9111, section 4).
        // Its own key is looked up only if there is none.
        if let Some(key) = self.key_of_get.take()
            && let Some((object, stored)) = self.find_for_head(request, key, now_ms).await
        {
            return self.serve_object(request, &object, &stored, Status::Hit, now_ms);
        }
        for _ in 0..LOOKUPS_MAX {
            let entry = self.find(request, now_ms).await;
            match self.act(request, entry, now_ms).await {
                Step::Done(outcome) => return outcome,
                // After a wait the time has moved on; without one, this costs a clock read and nothing else.
                Step::LookAgain => now_ms = rt::wall_millis(),
            }
        }
        self.go_past(request, Found::Unsettled, now_ms).await
    }

    /// Answers from the origin in the cases where the store is of no help.
    async fn go_past(&mut self, request: &mut Request, found: Found<'_>, now_ms: u64) -> Outcome {
        let fill = Fill::default();
        match decide(now_ms, found, fill, &self.terms, &self.settings.cache) {
            Action::FetchUnshared(status) => self.fetch_unshared(request, status).await,
            // `found` is one of the rows that the table answers in this way.
            _ => self.pass(request, Status::Miss).await,
        }
    }

    /// Decides on what was found, carries out the action, and waits for it.
    async fn act(&mut self, request: &mut Request, entry: CacheEntry, now_ms: u64) -> Step {
        match self.start(request, entry, now_ms) {
            Started::Answered(outcome) => outcome.into(),
            Started::LookAgain => Step::LookAgain,
            Started::Following(fill) => self.follow(request, fill).await,
            Started::Collapsed(fill, wait, at) => self.collapse(request, fill, wait, at).await,
            Started::Missing(parts, fetched) => self.follow_missing(request, *parts, fetched).await,
            // The wait is bounded: a slow disk must not hold the client. On timeout the origin is asked.
            Started::Commit => match rt::timeout(COMMIT_WAIT, self.store.flush()).await {
                Ok(()) => Step::LookAgain,
                Err(_) => {
                    let found = Found::Committing {
                        freshness: None,
                        has_waited: true,
                    };
                    self.go_past(request, found, now_ms).await.into()
                }
            },
            Started::Unshared(status) => self.fetch_unshared(request, status).await.into(),
            Started::Passed(status) => self.pass(request, status).await.into(),
        }
    }

    /// Asks the table until something has started. There is no `await` in it, so everything is decided on one state of
    /// this loop; other loops can still change the store, which is what the loop below deals with.
    fn start(&mut self, request: &mut Request, entry: CacheEntry, now_ms: u64) -> Started {
        let CacheEntry { content, at } = entry;
        let seen = match &content {
            EntryContent::Stored(lookup) => lookup.seen(),
            EntryContent::Committing(_) => Seen::NOTHING,
        };
        let mut now = Situation {
            candidate: Candidate::of(self, content, &at),
            at,
            seen,
            fill: FillState::default(),
            now_ms,
        };
        let mut action = now.action(self, request);
        // A hit depends on nothing else. So the fill table, which is behind a lock, and the client's `Range` are not
        // looked at for the most common case.
        if action != Action::Serve(Status::Hit) {
            self.terms.range = range_wanted(request, &self.settings.cache);
            now.fill = self.store.fill_state(&now.at.key, now_ms);
            action = now.action(self, request);
        }
        // Two iterations at most. A fill that could not be started is either in progress or hit-for-miss, and with that
        // as its input the table has no row that starts a fill which the store would refuse.
        loop {
            // The cursor is taken out of the state. If it stayed there while something else is done, the writer of that
            // fill would wait for a follower that never reads.
            let running = now.fill.running.take();
            match (action, running) {
                (Action::GatewayTimeout, _) => return Started::Answered(Outcome::Status(504)),
                (Action::Serve(status), _) => return self.serve(request, now, status),
                (Action::ServeCompleted, running) => return completed(now.candidate, running),
                (Action::AwaitCommit, _) => return Started::Commit,
                (Action::Collapse(status, wait), Some(follower)) => {
                    let fill = FollowedFill {
                        follower,
                        first_client: None,
                        status,
                        stale: now.candidate.into_stale(self, now_ms),
                    };
                    return Started::Collapsed(fill, wait, now.at);
                }
                // The table saw a fill; without its cursor the state is outdated.
                (Action::Collapse(..), None) => return Started::LookAgain,
                (Action::FetchUnshared(status), _) => return Started::Unshared(status),
                (Action::Pass(status), _) => return Started::Passed(status),
                (
                    Action::Fetch(..)
                    | Action::FetchRange
                    | Action::FetchMissing
                    | Action::ServeAndRevalidate(_),
                    _,
                ) => match self.begin(request, &mut now, action) {
                    Begun::Fill(writer, follower) => {
                        return self.fetch(request, now, action, (writer, follower));
                    }
                    Begun::Part(fetched) => return missing(now.candidate, fetched),
                    Begun::DecideAgain => action = now.action(self, request),
                    Begun::LookAgain => return Started::LookAgain,
                },
            }
        }
    }

    /// Starts the fill of an action, unless the store has learned something that the decision did not know.
    fn begin(&self, request: &Request, now: &mut Situation, action: Action) -> Begun {
        let (coverage, sharing) = match action {
            Action::FetchMissing => return self.begin_missing(request, now),
            Action::FetchRange => {
                let range = asked_range(request);
                // A fetch for a range is identified by the words of the request, since the bytes that they select are
                // unknown until the head arrives. `If-Range` belongs to them: with another validator the origin may
                // send another version.
                let condition = range.condition.as_deref().map_or(&[][..], |text| text);
                let words = [&range.value, &b"\n"[..], condition].concat();
                (self.store.asked_in(&words), Sharing::Collapsed)
            }
            Action::Fetch(_, sharing) | Action::ServeAndRevalidate(sharing) => {
                (Coverage::Whole, sharing)
            }
            // No other action starts a fill.
            _ => return Begun::LookAgain,
        };
        // A separate fetch does not ask what is in progress, and cannot be refused.
        if sharing == Sharing::Apart {
            let (writer, follower) = self.store.start_fill(&now.at.key, now.now_ms);
            return Begun::Fill(writer, follower);
        }
        let key = &now.at.key;
        match self
            .store
            .join_or_start_fill(key, coverage, now.seen, now.now_ms)
        {
            FillStart::Started(writer, follower) => {
                // As soon as the head of such a fetch arrives, its fill moves to the byte range that the head names,
                // and cannot be found by the words any more. If that happened since the lookup, there is a part to
                // follow.
                let part = match action {
                    Action::FetchRange => self.part_under_way(request, key),
                    _ => None,
                };
                if part.is_some() {
                    // Only this request follows the new fill so far. It ends before it asks the origin.
                    writer.instead(Instead::new(FetchResult::LookAgain));
                    now.fill.running = part;
                    return Begun::DecideAgain;
                }
                Begun::Fill(writer, follower)
            }
            FillStart::Joined(follower) => {
                now.fill.running = Some(follower);
                Begun::DecideAgain
            }
            FillStart::HitForMiss { .. } => {
                now.fill.is_hit_for_miss = true;
                Begun::DecideAgain
            }
            FillStart::Changed => Begun::LookAgain,
        }
    }

    /// Starts the fill of what is missing of a partial object, or joins the one that brings it.
    fn begin_missing(&self, request: &Request, now: &mut Situation) -> Begun {
        let Candidate::Partial(parts, _) = &now.candidate else {
            return Begun::LookAgain;
        };
        match parts.fetch_missing(request, now.now_ms) {
            Ok(fetched) => Begun::Part(fetched),
            Err(PartRefusal::Changed) => Begun::LookAgain,
            Err(PartRefusal::HitForMiss) => {
                now.fill.is_hit_for_miss = true;
                Begun::DecideAgain
            }
        }
    }

    /// The fill in progress of the byte range that the client wants, if it begins at the client's first byte.
    fn part_under_way(&self, request: &Request, key: &Key) -> Option<Follower> {
        let begin = first_byte(request.head.known(Known::Range)?)?;
        let follower = self.store.running_fill(key, Coverage::Part(begin))?;
        let head = follower.known_head()?;
        let stored = StoredHead::decode(&head.head)?;
        let wanted = wanted_part(request, &stored, head.length?);
        // Without a version nothing can be appended to a part, so it must then contain all that is wanted.
        is_begun_by(&wanted, &follower.part()?, head.meta.version != 0).then_some(follower)
    }

    /// Starts the task that fetches into a fill.
    fn fetch(
        &self,
        request: &mut Request,
        now: Situation,
        action: Action,
        (writer, follower): (Writer, Follower),
    ) -> Started {
        let Situation {
            candidate,
            at,
            now_ms,
            ..
        } = now;
        let stale = candidate.into_stale(self, now_ms);
        let (fetch, status) = match action {
            Action::FetchRange => {
                // The client's `Range` goes to the origin in its own words; only a whole response is asked for with
                // validators.
                let ask = Ask {
                    range: Some(asked_range(request)),
                    ..Ask::default()
                };
                (Fetch::new(self, request, at, None, ask), Status::Miss)
            }
            Action::Fetch(status, _) => (Fetch::of_whole(self, request, at, stale.clone()), status),
            _ => (
                Fetch::of_whole(self, request, at, stale.clone()),
                Status::Stale,
            ),
        };
        let first_client = storing::start(fetch, writer);
        match (action, stale) {
            (Action::ServeAndRevalidate(_), Some(stale)) => {
                // This client has its answer already. The fetch continues without it, for the requests to come.
                drop(follower);
                let (object, stored) = (&stale.object, &stale.stored);
                Started::Answered(self.serve_object(request, object, stored, status, now_ms))
            }
            (_, stale) => Started::Following(FollowedFill {
                follower,
                first_client: Some(first_client),
                status,
                stale,
            }),
        }
    }

    /// Serves the stored response.
    fn serve(&self, request: &mut Request, now: Situation, status: Status) -> Started {
        let now_ms = now.now_ms;
        Started::Answered(match now.candidate {
            Candidate::Complete(object, stored, _) => {
                self.serve_object(request, &object, &stored, status, now_ms)
            }
            Candidate::Partial(parts, _) => parts.answer(request, now_ms, status, None),
            Candidate::Nothing | Candidate::Committing(..) => return Started::LookAgain,
        })
    }

    /// Follows another request's fill for as long as `wait` allows.
    async fn collapse(
        &mut self,
        request: &mut Request,
        fill: FollowedFill,
        wait: LockWait,
        at: StorageKey,
    ) -> Step {
        let mut fill = fill;
        let limit = match wait {
            LockWait::Unlimited => return self.follow(request, fill).await,
            LockWait::ThenFetch(limit) | LockWait::ThenPass(limit) => limit,
        };
        // The limit is for the head only. Once the body has begun, `…_cache_lock_timeout` no longer applies.
        let client = Rc::clone(&request.stream);
        let watch = self.watches_client(request);
        let waiting = rt::timeout(limit, fill.follower.head());
        match upstream::while_client_stays(&client, watch, waiting).await {
            Err(_) => return client_left(request).into(),
            Ok(Ok(_)) => return self.follow(request, fill).await,
            // The time is over, and the other request's fill is left to itself.
            Ok(Err(_)) => {}
        }
        match wait {
            LockWait::ThenFetch(_) => {
                // `…_cache_lock_age`: the fill is regarded as stuck. Requests that arrive from now on join this newer
                // one.
                let FollowedFill { status, stale, .. } = fill;
                let (writer, follower) = self.store.start_fill(&at.key, rt::wall_millis());
                let fetch = Fetch::of_whole(self, request, at, stale.clone());
                let own = FollowedFill {
                    follower,
                    first_client: Some(storing::start(fetch, writer)),
                    status,
                    stale,
                };
                self.follow(request, own).await
            }
            LockWait::ThenPass(_) | LockWait::Unlimited => {
                // `…_cache_lock_timeout`: as in nginx, the response of a request that ran out of patience is not
                // stored.
                let status = fill.status;
                // The follower goes first: the writer would otherwise wait for it while the origin is asked again.
                drop(fill);
                self.pass(request, status).await.into()
            }
        }
    }
}

/// Follows content that is complete: the candidate itself, or the fill that is newer than the stored candidate.
fn completed(candidate: Candidate, running: Option<Follower>) -> Started {
    let follower = match candidate {
        Candidate::Committing(follower, _) => Some(follower),
        Candidate::Nothing | Candidate::Complete(..) | Candidate::Partial(..) => running,
    };
    follower.map_or(Started::LookAgain, |follower| {
        Started::Following(FollowedFill {
            follower,
            first_client: None,
            status: Status::Hit,
            stale: None,
        })
    })
}

/// Serves what is stored of a partial object, and what is being fetched.
fn missing(candidate: Candidate, fetched: FetchedPart) -> Started {
    match candidate {
        Candidate::Partial(parts, _) => Started::Missing(parts, fetched),
        Candidate::Nothing | Candidate::Complete(..) | Candidate::Committing(..) => {
            Started::LookAgain
        }
    }
}

/// The range that the client asks for, as it wrote it.
fn asked_range(request: &Request) -> AskedRange {
    let field = |known| request.head.known(known).map(BString::from);
    AskedRange {
        value: field(Known::Range).unwrap_or_default(),
        condition: field(Known::IfRange),
    }
}
