//! What is done with a request, by what was found for it: one table, without I/O, clock or store.
//!
//! The executor (`execute`) looks a key up, asks the table, and does what it says. What the store answers in place of what
//! was to be done (a fill that another request began a moment ago, a key that is remembered as hit-for-miss) it puts into
//! the table's input, and asks again. The rows stand in the test below.
//!
//! What becomes of a response when its head has come from the origin is the other table: `verdict`.

use std::time::Duration;

use proto::caching::{self, Freshness, RequestControl, Reuse, StaleRules};

use super::settings::Settings;
use super::status::Status;
use crate::upstream::RetryReasons;

/// What was found under the key of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    /// Nothing was looked up: `…_cache_bypass`.
    Bypassed,
    /// Nothing, or nothing that can be read.
    Nothing,
    /// An object with all of its content.
    Complete {
        freshness: &'a Freshness,
        /// It was purged softly: it counts as stale whatever its freshness says.
        is_purged: bool,
    },
    /// An object of whose content something is missing.
    Partial {
        freshness: &'a Freshness,
        is_purged: bool,
        missing: MissingContent,
    },
    /// A response that has come to its end and is not committed yet.
    Committing {
        /// `None`: its head cannot be read.
        freshness: Option<&'a Freshness>,
        /// The request has waited for the commit, in vain.
        has_waited: bool,
    },
    /// Something else each time it was looked up.
    Unsettled,
}

/// What is missing of the part of an object that a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingContent {
    /// Nothing: HEAD wants no content, and a range may lie in what is there.
    Nothing,
    /// Something that can be fetched alone.
    Fetchable,
    /// Something, and it cannot be fetched alone: nothing tells one version from the next, or the pieces are too many.
    Unfetchable,
}

/// What is known of fills of the key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fill {
    /// Its responses are remembered to be for one client each: to wait for the fill of another request is useless.
    pub(super) is_hit_for_miss: bool,
    /// The fill of the whole that is under way.
    pub(super) running: Option<RunningFill>,
}

/// A fill of the whole that another request began.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningFill {
    pub(super) began_ms: u64,
    /// It has come to its end: what it brought is newer than what is stored.
    pub(super) is_complete: bool,
}

/// What counts of a request: its fields and directives, worked out once, so that the table has plain values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestTerms {
    /// The client's `Cache-Control`, where `…_cache_request_control` lets it count.
    pub(super) control: Option<RequestControl>,
    pub(super) range: RangeWanted,
    /// The key was asked for less often than `…_cache_min_uses` says.
    pub(super) is_below_min_uses: bool,
    /// A background subrequest: no client waits for it, so nothing stale helps it.
    pub(super) is_background: bool,
    /// It followed a fill whose response turned out to be for another client alone.
    pub(super) was_refused: bool,
}

impl RequestTerms {
    fn wants_only_stored(&self) -> bool {
        self.control.is_some_and(|control| control.only_if_cached())
    }

    /// Whether the response may not be stored because of the request.
    fn forbids_storing(&self) -> bool {
        self.range == RangeWanted::Beyond || self.control.is_some_and(|control| control.no_store())
    }
}

/// What the `Range` of a request means for a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RangeWanted {
    /// The whole is fetched, and the range taken out of it.
    #[default]
    Whole,
    /// The range is fetched, and kept as a part of the object: `…_cache_partial`.
    Part,
    /// It begins at `…_cache_max_range_offset` or behind it: passed on, and nothing is stored.
    Beyond,
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// 504: the client wants what is stored or nothing (RFC 9111, section 5.2.1.7).
    GatewayTimeout,
    /// What is stored is served: HIT, STALE or UPDATING.
    Serve(Status),
    /// The content of a fill that has come to its end is served: HIT.
    ServeCompleted,
    /// What is stored is served as STALE, and revalidated in the background.
    ServeAndRevalidate(Sharing),
    /// The request waits until what is committing is an object, and looks again.
    AwaitCommit,
    /// The request follows the fill that is under way (RFC 9211's `collapsed`).
    Collapse(Status, LockWait),
    /// A fill begins, which the request follows.
    Fetch(Status, Sharing),
    /// The same for the range that the client asked for.
    FetchRange,
    /// The same for what is missing of a partial object.
    FetchMissing,
    /// The origin is asked for this client alone. A response that may be stored is stored all the same.
    FetchUnshared(Status),
    /// The request is passed on as it is; nothing is stored.
    Pass(Status),
}

/// Whether requests for the same share a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// One fetch at a time, as with `…_cache_lock on`: the store joins what another request began meanwhile.
    Collapsed,
    /// A fetch of its own, whatever is under way.
    Apart,
}

/// How long a request waits for the head of a fill that another one began, and what it does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockWait {
    /// As long as that takes.
    Unlimited,
    /// Until `…_cache_lock_age` is over, counted from the beginning of the fill: then it fetches itself.
    ThenFetch(Duration),
    /// For `…_cache_lock_timeout`: then it is passed on, and nothing is stored.
    ThenPass(Duration),
}

/// What is done with a request: the table. Rows that differ only in what they say of the origin's failure are one here; that
/// is decided when it fails (`verdict`).
pub(super) fn decide(
    now_ms: u64,
    found: Found<'_>,
    fill: Fill,
    terms: &RequestTerms,
    settings: &Settings,
) -> Action {
    match found {
        // As in nginx, the response is stored even so: `…_no_cache` is a directive of its own.
        Found::Bypassed => Action::FetchUnshared(Status::Bypass),
        Found::Unsettled => Action::FetchUnshared(Status::Miss),
        Found::Nothing => on_miss(now_ms, fill, terms, settings),
        Found::Complete {
            freshness,
            is_purged,
        } => match reuse(now_ms, freshness, is_purged, terms, settings) {
            Reuse::Fresh => Action::Serve(Status::Hit),
            Reuse::WhileRevalidate => on_stale(now_ms, true, fill, terms, settings),
            Reuse::Validate { while_updating, .. } => {
                on_stale(now_ms, while_updating, fill, terms, settings)
            }
        },
        Found::Partial {
            freshness,
            is_purged,
            missing,
        } => match reuse(now_ms, freshness, is_purged, terms, settings) {
            Reuse::Fresh => on_partial(now_ms, missing, fill, terms, settings),
            // To validate parts is not worth it: the whole is fetched.
            Reuse::WhileRevalidate | Reuse::Validate { .. } => {
                on_miss(now_ms, fill, terms, settings)
            }
        },
        Found::Committing {
            freshness: Some(freshness),
            ..
        } if is_fresh(now_ms, freshness, terms, settings) => Action::ServeCompleted,
        // What must be validated has to be an object first.
        Found::Committing {
            has_waited: false, ..
        } => Action::AwaitCommit,
        Found::Committing { .. } => Action::FetchUnshared(Status::Expired),
    }
}

/// The first row alone, a fresh object with all of its content: most requests end there, without the rest of the input.
pub(super) fn is_fresh(
    now_ms: u64,
    freshness: &Freshness,
    terms: &RequestTerms,
    settings: &Settings,
) -> bool {
    reuse(now_ms, freshness, false, terms, settings) == Reuse::Fresh
}

/// Whether what is stored may be served, and what else it is good for.
pub(super) fn reuse(
    now_ms: u64,
    freshness: &Freshness,
    is_purged: bool,
    terms: &RequestTerms,
    settings: &Settings,
) -> Reuse {
    let updating = settings.use_stale.permits_any(RetryReasons::UPDATING);
    if is_purged {
        // The operator said that it is not good any more; what the origin allowed about its age is beside the point.
        return Reuse::Validate {
            on_any_error: false,
            on_listed_error: true,
            while_updating: updating,
        };
    }
    let rules = StaleRules {
        error: true,
        updating,
    };
    caching::reuse(freshness, now_ms, rules, terms.control.as_ref())
}

/// Nothing that could be served is stored.
fn on_miss(now_ms: u64, fill: Fill, terms: &RequestTerms, settings: &Settings) -> Action {
    let status = Status::Miss;
    if terms.wants_only_stored() {
        return Action::GatewayTimeout;
    }
    if terms.is_below_min_uses || terms.forbids_storing() {
        return Action::Pass(status);
    }
    let is_unshared = fill.is_hit_for_miss || terms.was_refused;
    match (terms.range, fill.running) {
        // The answer to a range is not what stands under the key, so it is not tried whether it may be stored.
        (RangeWanted::Part, _) if is_unshared => Action::Pass(status),
        (RangeWanted::Part, Some(running)) => {
            Action::Collapse(status, lock_wait(now_ms, running, settings))
        }
        (RangeWanted::Part, None) => Action::FetchRange,
        (RangeWanted::Whole | RangeWanted::Beyond, _) if is_unshared => {
            Action::FetchUnshared(status)
        }
        (RangeWanted::Whole | RangeWanted::Beyond, running) => {
            fetch_or_collapse(now_ms, status, running, settings)
        }
    }
}

/// What is stored must not be served before the origin has been asked, or only beside that: `is_served_meanwhile`.
fn on_stale(
    now_ms: u64,
    is_served_meanwhile: bool,
    fill: Fill,
    terms: &RequestTerms,
    settings: &Settings,
) -> Action {
    let status = Status::Expired;
    if terms.wants_only_stored() {
        return Action::GatewayTimeout;
    }
    if terms.forbids_storing() {
        return Action::Pass(status);
    }
    if is_served_meanwhile && !terms.is_background {
        match fill.running {
            _ if settings.background_update && fill.is_hit_for_miss => {
                return Action::ServeAndRevalidate(Sharing::Apart);
            }
            Some(running) if running.is_complete => return Action::ServeCompleted,
            Some(_) => return Action::Serve(Status::Updating),
            None if settings.background_update => {
                return Action::ServeAndRevalidate(Sharing::Collapsed);
            }
            // One request has to ask: as in nginx, the first one waits for the origin.
            None => {}
        }
    }
    match terms.was_refused || fill.is_hit_for_miss {
        // Not `FetchUnshared`: what is stale is there to be validated, and to be served in place of an error.
        true => Action::Fetch(status, Sharing::Apart),
        false => fetch_or_collapse(now_ms, status, fill.running, settings),
    }
}

/// What is stored is fresh, and something of it is missing.
fn on_partial(
    now_ms: u64,
    missing: MissingContent,
    fill: Fill,
    terms: &RequestTerms,
    settings: &Settings,
) -> Action {
    match (missing, fill.running) {
        (MissingContent::Nothing, _) => Action::Serve(Status::Hit),
        (MissingContent::Unfetchable, _) => on_miss(now_ms, fill, terms, settings),
        (MissingContent::Fetchable, _) if terms.wants_only_stored() || terms.forbids_storing() => {
            on_miss(now_ms, fill, terms, settings)
        }
        // The whole comes already, and with it what is missing.
        (MissingContent::Fetchable, Some(running)) => {
            Action::Collapse(Status::Miss, lock_wait(now_ms, running, settings))
        }
        (MissingContent::Fetchable, None) if fill.is_hit_for_miss => {
            on_miss(now_ms, fill, terms, settings)
        }
        (MissingContent::Fetchable, None) => Action::FetchMissing,
    }
}

fn fetch_or_collapse(
    now_ms: u64,
    status: Status,
    running: Option<RunningFill>,
    settings: &Settings,
) -> Action {
    match running {
        _ if !settings.lock => Action::Fetch(status, Sharing::Apart),
        Some(running) => Action::Collapse(status, lock_wait(now_ms, running, settings)),
        None => Action::Fetch(status, Sharing::Collapsed),
    }
}

fn lock_wait(now_ms: u64, running: RunningFill, settings: &Settings) -> LockWait {
    let age = Duration::from_millis(now_ms.saturating_sub(running.began_ms));
    let left = settings.lock_age.map(|most| most.saturating_sub(age));
    match (left, settings.lock_timeout) {
        (None, None) => LockWait::Unlimited,
        (Some(left), None) => LockWait::ThenFetch(left),
        (Some(left), Some(timeout)) if left <= timeout => LockWait::ThenFetch(left),
        (_, Some(timeout)) => LockWait::ThenPass(timeout),
    }
}

#[cfg(test)]
mod tests {
    use proto::Fields;
    use proto::caching::Source;

    use super::*;

    /// Each row: the section or directive | what was found | fills | the request | directives | what is done.
    ///
    /// Whatever was found stale has been so for 10 seconds, and a fill that runs began 3 seconds ago.
    const TABLE: &str = "
        RFC 9111, 4              | fresh               | -             | -                | lock                          | Serve(Hit)
        RFC 9111, 4              | fresh               | running       | -                | lock                          | Serve(Hit)
        RFC 9111, 4              | fresh               | hit-for-miss  | -                | lock                          | Serve(Hit)
        RFC 9111, 4              | fresh               | -             | background       | lock                          | Serve(Hit)
        min_uses                 | fresh               | -             | below min_uses   | lock                          | Serve(Hit)
        max_range_offset         | fresh               | -             | range beyond     | lock                          | Serve(Hit)
        RFC 9111, 3              | nothing             | -             | -                | lock                          | Fetch(Miss, Collapsed)
        lock                     | nothing             | -             | -                | -                             | Fetch(Miss, Apart)
        lock                     | nothing             | running       | -                | -                             | Fetch(Miss, Apart)
        lock                     | nothing             | running       | -                | lock                          | Collapse(Miss, Unlimited)
        lock                     | nothing             | complete      | -                | lock                          | Collapse(Miss, Unlimited)
        lock_timeout             | nothing             | running       | -                | lock timeout=5                | Collapse(Miss, ThenPass(5s))
        lock_age                 | nothing             | running       | -                | lock age=5                    | Collapse(Miss, ThenFetch(2s))
        lock_age                 | nothing             | running       | -                | lock age=2                    | Collapse(Miss, ThenFetch(0ns))
        lock_age, lock_timeout   | nothing             | running       | -                | lock age=5 timeout=5          | Collapse(Miss, ThenFetch(2s))
        lock_age, lock_timeout   | nothing             | running       | -                | lock age=9 timeout=5          | Collapse(Miss, ThenPass(5s))
        lock_age, lock_timeout   | nothing             | running       | -                | lock age=8 timeout=5          | Collapse(Miss, ThenFetch(5s))
        hit-for-miss             | nothing             | hit-for-miss  | -                | lock                          | FetchUnshared(Miss)
        hit-for-miss             | nothing             | both          | -                | lock                          | FetchUnshared(Miss)
        hit-for-miss             | nothing             | hit-for-miss  | -                | -                             | FetchUnshared(Miss)
        hit-for-miss             | nothing             | running       | refused          | lock                          | FetchUnshared(Miss)
        min_uses                 | nothing             | -             | below min_uses   | lock                          | Pass(Miss)
        min_uses                 | nothing             | running       | below min_uses   | lock                          | Pass(Miss)
        max_range_offset         | nothing             | -             | range beyond     | lock                          | Pass(Miss)
        partial                  | nothing             | -             | range part       | lock                          | FetchRange
        partial                  | nothing             | -             | range part       | -                             | FetchRange
        partial                  | nothing             | running       | range part       | lock                          | Collapse(Miss, Unlimited)
        partial                  | nothing             | running       | range part       | -                             | Collapse(Miss, Unlimited)
        partial                  | nothing             | hit-for-miss  | range part       | lock                          | Pass(Miss)
        partial                  | nothing             | both          | range part       | lock                          | Pass(Miss)
        partial                  | nothing             | -             | range part refused | lock                        | Pass(Miss)
        RFC 9111, 5.2.1.7        | nothing             | -             | only-if-cached   | lock                          | GatewayTimeout
        RFC 9111, 5.2.1.7        | nothing             | running       | only-if-cached   | lock                          | GatewayTimeout
        RFC 9111, 5.2.1.7        | fresh               | -             | only-if-cached   | lock                          | Serve(Hit)
        RFC 9111, 5.2.1.7        | stale               | -             | only-if-cached   | lock updating                 | GatewayTimeout
        RFC 9111, 5.2.1.7        | partial missing     | -             | only-if-cached   | lock                          | GatewayTimeout
        RFC 9111, 5.2.1.5        | nothing             | -             | no-store         | lock                          | Pass(Miss)
        RFC 9111, 5.2.1.5        | fresh               | -             | no-store         | lock                          | Pass(Expired)
        RFC 9111, 5.2.1.5        | stale               | -             | no-store         | lock                          | Pass(Expired)
        RFC 9111, 5.2.1.4        | fresh               | -             | no-cache         | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.1.4        | fresh               | running       | no-cache         | lock updating                 | Collapse(Expired, Unlimited)
        RFC 9111, 5.2.1.4        | nothing             | -             | no-cache         | lock                          | Fetch(Miss, Collapsed)
        RFC 9111, 5.2.1.1        | fresh               | -             | max-age=60       | lock                          | Serve(Hit)
        RFC 9111, 5.2.1.1        | fresh               | -             | max-age=4        | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.1.1        | fresh               | -             | max-age=0        | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.1.3        | fresh               | -             | min-fresh=5      | lock                          | Serve(Hit)
        RFC 9111, 5.2.1.3        | fresh               | -             | min-fresh=50     | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.1.2        | stale               | -             | max-stale        | lock                          | Serve(Hit)
        RFC 9111, 5.2.1.2        | stale               | -             | max-stale=10     | lock                          | Serve(Hit)
        RFC 9111, 5.2.1.2        | stale               | -             | max-stale=9      | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.2.2        | must-revalidate     | -             | max-stale        | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.2.2        | must-revalidate     | running       | -                | lock updating                 | Collapse(Expired, Unlimited)
        RFC 9111, 5.2.2.2        | must-revalidate     | -             | -                | lock updating background_update | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.2.4        | no-cache            | -             | -                | lock                          | Fetch(Expired, Collapsed)
        RFC 9111, 5.2.2.4        | no-cache            | running       | -                | lock updating                 | Collapse(Expired, Unlimited)
        RFC 9111, 4.2.4          | stale               | -             | -                | lock                          | Fetch(Expired, Collapsed)
        lock                     | stale               | -             | -                | -                             | Fetch(Expired, Apart)
        lock                     | stale               | running       | -                | -                             | Fetch(Expired, Apart)
        lock                     | stale               | running       | -                | lock                          | Collapse(Expired, Unlimited)
        lock_age                 | stale               | running       | -                | lock age=5                    | Collapse(Expired, ThenFetch(2s))
        lock_timeout             | stale               | running       | -                | lock timeout=1                | Collapse(Expired, ThenPass(1s))
        hit-for-miss             | stale               | hit-for-miss  | -                | lock                          | Fetch(Expired, Apart)
        hit-for-miss             | stale               | both          | -                | lock                          | Fetch(Expired, Apart)
        hit-for-miss             | stale               | running       | refused          | lock                          | Fetch(Expired, Apart)
        max_range_offset         | stale               | -             | range beyond     | lock                          | Pass(Expired)
        partial                  | stale               | -             | range part       | lock                          | Fetch(Expired, Collapsed)
        min_uses                 | stale               | -             | below min_uses   | lock                          | Fetch(Expired, Collapsed)
        use_stale updating       | stale               | -             | -                | lock updating                 | Fetch(Expired, Collapsed)
        use_stale updating       | stale               | running       | -                | lock updating                 | Serve(Updating)
        use_stale updating       | stale               | running       | -                | updating                      | Serve(Updating)
        use_stale updating       | stale               | both          | -                | lock updating                 | Serve(Updating)
        use_stale updating       | stale               | complete      | -                | lock updating                 | ServeCompleted
        use_stale updating       | stale               | running       | background       | lock updating                 | Collapse(Expired, Unlimited)
        use_stale off            | stale               | running       | -                | lock updating off             | Collapse(Expired, Unlimited)
        background_update        | stale               | -             | -                | lock updating background_update | ServeAndRevalidate(Collapsed)
        background_update        | stale               | running       | -                | lock updating background_update | Serve(Updating)
        background_update        | stale               | complete      | -                | lock updating background_update | ServeCompleted
        background_update        | stale               | hit-for-miss  | -                | lock updating background_update | ServeAndRevalidate(Apart)
        background_update        | stale               | both          | -                | lock updating background_update | ServeAndRevalidate(Apart)
        background_update        | stale               | -             | background       | lock updating background_update | Fetch(Expired, Collapsed)
        background_update        | stale               | -             | -                | lock background_update        | Fetch(Expired, Collapsed)
        background_update        | stale               | -             | -                | updating background_update    | ServeAndRevalidate(Collapsed)
        RFC 5861, 3              | while-revalidate    | -             | -                | lock background_update        | ServeAndRevalidate(Collapsed)
        RFC 5861, 3              | while-revalidate    | -             | -                | lock                          | Fetch(Expired, Collapsed)
        RFC 5861, 3              | while-revalidate    | running       | -                | lock                          | Serve(Updating)
        RFC 5861, 3              | while-revalidate    | running       | no-cache         | lock                          | Collapse(Expired, Unlimited)
        RFC 5861, 3              | while-revalidate    | -             | only-if-cached   | lock                          | GatewayTimeout
        purge (soft)             | purged              | -             | -                | lock                          | Fetch(Expired, Collapsed)
        purge (soft)             | purged              | running       | -                | lock                          | Collapse(Expired, Unlimited)
        purge (soft)             | purged              | running       | -                | lock updating                 | Serve(Updating)
        purge (soft)             | purged              | -             | -                | lock updating background_update | ServeAndRevalidate(Collapsed)
        purge (soft)             | purged              | -             | max-stale        | lock                          | Fetch(Expired, Collapsed)
        RFC 9110, 14 (Range)     | partial there       | -             | -                | lock                          | Serve(Hit)
        RFC 9110, 9.3.2 (HEAD)   | partial there       | running       | only-if-cached   | lock                          | Serve(Hit)
        RFC 9111, 3.4            | partial missing     | -             | -                | lock                          | FetchMissing
        RFC 9111, 3.4            | partial missing     | -             | -                | -                             | FetchMissing
        RFC 9111, 3.4            | partial missing     | -             | range part       | lock                          | FetchMissing
        RFC 9111, 3.4            | partial missing     | running       | -                | lock                          | Collapse(Miss, Unlimited)
        RFC 9111, 3.4            | partial missing     | running       | -                | lock age=5                    | Collapse(Miss, ThenFetch(2s))
        RFC 9111, 3.4            | partial missing     | hit-for-miss  | -                | lock                          | FetchUnshared(Miss)
        RFC 9111, 3.4            | partial missing     | hit-for-miss  | range part       | lock                          | Pass(Miss)
        RFC 9111, 3.4            | partial missing     | -             | no-store         | lock                          | Pass(Miss)
        RFC 9111, 3.4            | partial missing     | -             | range beyond     | lock                          | Pass(Miss)
        RFC 9111, 3.3            | partial unfetchable | -             | -                | lock                          | Fetch(Miss, Collapsed)
        RFC 9111, 3.3            | partial unfetchable | -             | range part       | lock                          | FetchRange
        RFC 9111, 4.2.4          | partial stale       | -             | -                | lock updating background_update | Fetch(Miss, Collapsed)
        purge (soft)             | partial purged      | -             | -                | lock updating                 | Fetch(Miss, Collapsed)
        commit                   | committing fresh    | -             | -                | lock                          | ServeCompleted
        commit                   | committing fresh    | -             | no-cache         | lock                          | AwaitCommit
        commit                   | committing stale    | -             | -                | lock                          | AwaitCommit
        commit                   | committing unread   | -             | -                | lock                          | AwaitCommit
        commit                   | committing waited   | -             | -                | lock                          | FetchUnshared(Expired)
        bypass                   | bypassed            | -             | -                | lock                          | FetchUnshared(Bypass)
        bypass                   | bypassed            | running       | only-if-cached   | lock updating                 | FetchUnshared(Bypass)
        too many lookups         | unsettled           | running       | -                | lock                          | FetchUnshared(Miss)
    ";

    const NOW_MS: u64 = 100_000;

    /// Fresh for 20 seconds more, and 5 seconds old.
    const FRESH: Freshness = Freshness {
        received_ms: NOW_MS - 5_000,
        initial_age_s: 0,
        fresh_until_ms: NOW_MS + 20_000,
        source: Source::CacheControl,
        while_revalidate_s: 0,
        if_error_s: 0,
        must_revalidate: false,
        always_revalidate: false,
    };

    const STALE: Freshness = Freshness {
        received_ms: NOW_MS - 50_000,
        fresh_until_ms: NOW_MS - 10_000,
        ..FRESH
    };

    const WHILE_REVALIDATE: Freshness = Freshness {
        while_revalidate_s: 10,
        ..STALE
    };

    const MUST_REVALIDATE: Freshness = Freshness {
        must_revalidate: true,
        ..STALE
    };

    const NO_CACHE: Freshness = Freshness {
        must_revalidate: true,
        always_revalidate: true,
        ..FRESH
    };

    fn found(text: &str) -> Found<'static> {
        let complete = |freshness| Found::Complete {
            freshness,
            is_purged: false,
        };
        let partial = |freshness, missing| Found::Partial {
            freshness,
            is_purged: false,
            missing,
        };
        let committing = |freshness, has_waited| Found::Committing {
            freshness,
            has_waited,
        };
        match text {
            "nothing" => Found::Nothing,
            "bypassed" => Found::Bypassed,
            "unsettled" => Found::Unsettled,
            "fresh" => complete(&FRESH),
            "stale" => complete(&STALE),
            "while-revalidate" => complete(&WHILE_REVALIDATE),
            "must-revalidate" => complete(&MUST_REVALIDATE),
            "no-cache" => complete(&NO_CACHE),
            "purged" => Found::Complete {
                freshness: &FRESH,
                is_purged: true,
            },
            "partial there" => partial(&FRESH, MissingContent::Nothing),
            "partial missing" => partial(&FRESH, MissingContent::Fetchable),
            "partial unfetchable" => partial(&FRESH, MissingContent::Unfetchable),
            "partial stale" => partial(&STALE, MissingContent::Nothing),
            "partial purged" => Found::Partial {
                freshness: &FRESH,
                is_purged: true,
                missing: MissingContent::Nothing,
            },
            "committing fresh" => committing(Some(&FRESH), false),
            "committing stale" => committing(Some(&STALE), false),
            "committing unread" => committing(None, false),
            "committing waited" => committing(Some(&STALE), true),
            _ => panic!("not a thing to find: {text}"),
        }
    }

    fn fill(text: &str) -> Fill {
        let running = |is_complete| {
            Some(RunningFill {
                began_ms: NOW_MS - 3_000,
                is_complete,
            })
        };
        let (is_hit_for_miss, running) = match text {
            "-" => (false, None),
            "running" => (false, running(false)),
            "complete" => (false, running(true)),
            "hit-for-miss" => (true, None),
            "both" => (true, running(false)),
            _ => panic!("not a fill: {text}"),
        };
        Fill {
            is_hit_for_miss,
            running,
        }
    }

    fn terms(text: &str) -> RequestTerms {
        let mut terms = RequestTerms::default();
        for word in text.split(' ') {
            match word {
                "-" | "range" | "below" => {}
                "part" => terms.range = RangeWanted::Part,
                "beyond" => terms.range = RangeWanted::Beyond,
                "min_uses" => terms.is_below_min_uses = true,
                "background" => terms.is_background = true,
                "refused" => terms.was_refused = true,
                control => {
                    let mut fields = Fields::new();
                    fields.push(b"Cache-Control", control.as_bytes());
                    terms.control = Some(RequestControl::parse(&fields));
                }
            }
        }
        terms
    }

    fn settings(text: &str) -> Settings {
        let mut settings = Settings::default();
        for word in text.split(' ') {
            let (name, seconds) = word.split_once('=').unwrap_or((word, "0"));
            let seconds = Duration::from_secs(seconds.parse().expect("a number of seconds"));
            match name {
                "-" => {}
                "lock" => settings.lock = true,
                "updating" => settings.use_stale = settings.use_stale | RetryReasons::UPDATING,
                "off" => settings.use_stale = settings.use_stale | RetryReasons::OFF,
                "background_update" => settings.background_update = true,
                "timeout" => settings.lock_timeout = Some(seconds),
                "age" => settings.lock_age = Some(seconds),
                _ => panic!("not a directive: {name}"),
            }
        }
        settings
    }

    /// The table, and what is done by it. `cargo test -p weir-http decide -- --nocapture` prints it.
    #[test]
    fn the_table_holds_row_by_row() {
        let mut wrong = Vec::new();
        let mut rows = 0;
        for row in TABLE.lines().map(str::trim).filter(|row| !row.is_empty()) {
            let columns: Vec<&str> = row.split('|').map(str::trim).collect();
            let [_, what, fills, request, directives, expected] = columns[..] else {
                panic!("six columns: {row}");
            };
            let (terms, settings) = (terms(request), settings(directives));
            let action = decide(NOW_MS, found(what), fill(fills), &terms, &settings);
            let action = format!("{action:?}");
            println!("{row}");
            rows += 1;
            if action != expected {
                wrong.push(format!("{row}\n    but is {action}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(rows > 100, "rows are missing: {rows}");
    }

    #[test]
    fn the_shortcut_of_hits_agrees_with_the_table() {
        for what in ["fresh", "stale", "no-cache", "must-revalidate"] {
            for request in ["-", "no-cache", "max-stale", "max-age=4", "min-fresh=50"] {
                let Found::Complete { freshness, .. } = found(what) else {
                    panic!("an object: {what}");
                };
                let (terms, settings) = (terms(request), settings("lock"));
                let action = decide(NOW_MS, found(what), Fill::default(), &terms, &settings);
                assert_eq!(
                    is_fresh(NOW_MS, freshness, &terms, &settings),
                    action == Action::Serve(Status::Hit),
                    "{what} | {request}"
                );
            }
        }
    }

    #[test]
    fn errors_of_the_origin_are_bridged_as_the_origin_or_the_operator_says() {
        let reuse_of = |freshness: &Freshness, is_purged| {
            let settings = Settings::default();
            reuse(NOW_MS, freshness, is_purged, &terms("-"), &settings)
        };
        let validate = |on_any_error, on_listed_error| Reuse::Validate {
            on_any_error,
            on_listed_error,
            while_updating: false,
        };
        let if_error = Freshness {
            if_error_s: 10,
            ..STALE
        };
        assert_eq!(reuse_of(&STALE, false), validate(false, true));
        assert_eq!(reuse_of(&if_error, false), validate(true, true));
        assert_eq!(reuse_of(&MUST_REVALIDATE, false), validate(false, false));
        assert_eq!(reuse_of(&if_error, true), validate(false, true));
    }
}
