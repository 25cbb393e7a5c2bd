//! What the table says is done here: the one place where a request at the cache serves, waits, fetches or passes.
//!
//! ```text
//! look up ─▶ decide ─▶ serve | wait | follow | begin a fetch | pass
//!    ▲         ▲                                │
//!    │         └── another fill, hit-for-miss ──┤
//!    └──────────── the index has changed ───────┘
//! ```
//!
//! The clock is read when a request begins and after each wait; what is decided without a wait is decided by one time.

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

/// How often a request looks again because the store changed under it, or a fill that it followed came to nothing. Then it
/// asks the origin for itself.
const LOOKUPS_MAX: u32 = 5;

/// What may answer a request: what was found, as the actions need it.
enum Candidate {
    Nothing,
    /// An object with all of its content; whether it was purged softly.
    Complete(Object, Arc<StoredHead>, bool),
    /// One of which something is missing; the same.
    Partial(Box<PartialContent>, bool),
    /// The content of a fill that has come to its end, and how long that is fresh, if its head can be read.
    Committing(Follower, Option<Freshness>),
}

impl Candidate {
    fn of(asker: &CacheRequest, content: EntryContent, at: &StorageKey) -> Candidate {
        let (object, is_purged) = match content {
            EntryContent::Stored(Lookup::Hit(object)) => (object, false),
            EntryContent::Stored(Lookup::Stale(object, why)) => (object, why == Why::Purged),
            EntryContent::Stored(Lookup::Miss(..)) => return Candidate::Nothing,
            EntryContent::Committing(follower) => {
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
            // Another version of Weir wrote it.
            None => Candidate::Nothing,
        }
    }

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

    /// The object, for a fetch that validates it.
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

/// All that an action works with.
struct Situation {
    candidate: Candidate,
    /// Where the candidate stands, or would.
    at: StorageKey,
    /// What the index said at the lookup.
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

/// What an action started, and the request waits for.
enum Started {
    /// Nothing: there is a response.
    Answered(Outcome),
    /// Nothing: the index has changed since the lookup.
    LookAgain,
    /// A fill, or one that has come to its end.
    Following(FollowedFill),
    /// The same for a fill that another request began.
    Collapsed(FollowedFill, LockWait, StorageKey),
    /// What is missing of an object.
    Missing(Box<PartialContent>, FetchedPart),
    /// The commit of a fill, after which the request looks again.
    Commit,
    /// An exchange for this client, which may turn out to be for all.
    Unshared(Status),
    /// An exchange for this client alone.
    Passed(Status),
}

/// How a fill begins.
enum Begun {
    Fill(Writer, Follower),
    Part(FetchedPart),
    /// It does not: what is known of fills now is something else than what was decided by.
    DecideAgain,
    /// It does not: the index has changed since the lookup.
    LookAgain,
}

impl CacheRequest {
    /// Answers the request, out of the store or through it. `now_ms` is the time at which it came here.
    pub(super) async fn run(mut self: Box<Self>, request: &mut Request, now_ms: u64) -> Outcome {
        let mut now_ms = now_ms;
        request.upstream.get_or_make();
        if request.body.exists() {
            if let Err(status) = crate::body_reader::read(request).await {
                return Outcome::Status(status);
            }
            now_ms = rt::wall_millis();
        }
        if self.is_bypassed {
            return self.go_past(request, Found::Bypassed, now_ms).await;
        }
        if let Some(key) = self.key_of_get.take()
            && let Some((object, stored)) = self.find_for_head(request, key, now_ms).await
        {
            return self.serve_object(request, &object, &stored, Status::Hit, now_ms);
        }
        for _ in 0..LOOKUPS_MAX {
            let entry = self.find(request, now_ms).await;
            match self.act(request, entry, now_ms).await {
                Step::Done(outcome) => return outcome,
                Step::LookAgain => now_ms = rt::wall_millis(),
            }
        }
        self.go_past(request, Found::Unsettled, now_ms).await
    }

    /// Answers from the origin where there is nothing in the store to work with.
    async fn go_past(&mut self, request: &mut Request, found: Found<'_>, now_ms: u64) -> Outcome {
        let fill = Fill::default();
        match decide(now_ms, found, fill, &self.terms, &self.settings.cache) {
            Action::FetchUnshared(status) => self.fetch_unshared(request, status).await,
            // The table has no other row for it.
            _ => self.pass(request, Status::Miss).await,
        }
    }

    /// Decides what is done with what was found, and does it.
    async fn act(&mut self, request: &mut Request, entry: CacheEntry, now_ms: u64) -> Step {
        match self.start(request, entry, now_ms) {
            Started::Answered(outcome) => outcome.into(),
            Started::LookAgain => Step::LookAgain,
            Started::Following(fill) => self.follow(request, fill).await,
            Started::Collapsed(fill, wait, at) => self.collapse(request, fill, wait, at).await,
            Started::Missing(parts, fetched) => self.follow_missing(request, *parts, fetched).await,
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

    /// Asks the table until something has started. It does not wait, so that all is decided by one state of the store.
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
        // A hit depends on nothing else: neither the lock of the fills nor the client's `Range` is looked at for it.
        if action != Action::Serve(Status::Hit) {
            self.terms.range = range_wanted(request, &self.settings.cache);
            now.fill = self.store.fill_state(&now.at.key, now_ms);
            action = now.action(self, request);
        }
        // Twice around at most: a fill that does not begin is there, or the key is hit-for-miss, and no row begins one then that
        // the store could refuse.
        loop {
            // No cursor stays at a fill that is not followed: its writer might wait for it.
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

    /// Begins the fill of an action, unless the store knows better by now.
    fn begin(&self, request: &Request, now: &mut Situation, action: Action) -> Begun {
        let (coverage, sharing) = match action {
            Action::FetchMissing => return self.begin_missing(request, now),
            Action::FetchRange => {
                let range = asked_range(request);
                let condition = range.condition.as_deref().map_or(&[][..], |text| text);
                let words = [&range.value, &b"\n"[..], condition].concat();
                (self.store.asked_in(&words), Sharing::Collapsed)
            }
            Action::Fetch(_, sharing) | Action::ServeAndRevalidate(sharing) => {
                (Coverage::Whole, sharing)
            }
            _ => return Begun::LookAgain,
        };
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
                // The head of a fetch for the same range may have come a moment ago: then it is no longer known by the
                // words that it was asked for with.
                let part = match action {
                    Action::FetchRange => self.part_under_way(request, key),
                    _ => None,
                };
                if part.is_some() {
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

    /// Begins the fill of what is missing of a partial object, or joins the one that brings it.
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

    /// The fill of the part that the client wants, if one is under way that begins there.
    fn part_under_way(&self, request: &Request, key: &Key) -> Option<Follower> {
        let begin = first_byte(request.head.known(Known::Range)?)?;
        let follower = self.store.running_fill(key, Coverage::Part(begin))?;
        let head = follower.known_head()?;
        let stored = StoredHead::decode(&head.head)?;
        let wanted = wanted_part(request, &stored, head.length?);
        is_begun_by(&wanted, &follower.part()?, head.meta.version != 0).then_some(follower)
    }

    /// Starts the fetch that writes into a fill.
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
                // This request does not follow: the fetch goes on for those that come next.
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

    /// Serves what is stored.
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

    /// Follows the fill of another request, unless that takes too long.
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
        let client = Rc::clone(&request.stream);
        let watch = self.watches_client(request);
        let waiting = rt::timeout(limit, fill.follower.head());
        match upstream::while_client_stays(&client, watch, waiting).await {
            Err(_) => return client_left(request).into(),
            Ok(Ok(_)) => return self.follow(request, fill).await,
            Ok(Err(_)) => {}
        }
        match wait {
            LockWait::ThenFetch(_) => {
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
                let status = fill.status;
                drop(fill);
                self.pass(request, status).await.into()
            }
        }
    }
}

/// Follows what has come to its end: the candidate, or the fill that is newer than it.
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

fn missing(candidate: Candidate, fetched: FetchedPart) -> Started {
    match candidate {
        Candidate::Partial(parts, _) => Started::Missing(parts, fetched),
        Candidate::Nothing | Candidate::Complete(..) | Candidate::Committing(..) => {
            Started::LookAgain
        }
    }
}

/// The range that the client asks for, in its words.
fn asked_range(request: &Request) -> AskedRange {
    let field = |known| request.head.known(known).map(BString::from);
    AskedRange {
        value: field(Known::Range).unwrap_or_default(),
        condition: field(Known::IfRange),
    }
}
