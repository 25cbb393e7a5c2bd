//! The decision for a cached location: given what the store holds, what happens to this request? A pure function,
//! without I/O, clock or store, so that every case of RFC 9111 and of nginx's `…_cache_…` directives is one row of the
//! test below.
//!
//! The executor (`execute`) looks up the key, calls the function and carries out the action. The store may refuse an
//! action because it changed in the meantime: another request has started the same fill, or the key was marked
//! hit-for-miss. The executor then puts that into the input and asks again.
//!
//! What happens to a response once the origin has sent its head is decided by the other tables: `fetch_verdict`.

use std::time::Duration;

use proto::caching::{self, Freshness, RequestControl, ReuseDecision, StaleRules};

use super::cache_settings::CacheSettings;
use super::cache_status::UpstreamCacheStatus;
use crate::upstream::RetryReasons;

/// What the lookup found under the key of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum FoundEntry<'a> {
    /// There was no lookup: `…_cache_bypass`.
    Bypassed,
    /// No object, or one whose stored head this version cannot read.
    Nothing,
    /// An object with its whole body.
    Complete {
        freshness: &'a Freshness,
        /// A soft purge: the object counts as stale whatever its freshness says.
        is_purged: bool,
    },
    /// An object with a part of its body: the fetch broke off, or only a range was fetched.
    Partial {
        freshness: &'a Freshness,
        is_purged: bool,
        missing: MissingContent,
    },
    /// A fill that had received its last byte when the key was looked up, but was not in the index yet. It is newer than
    /// anything in the index. A fill that receives its last byte after the lookup is [`FillFacts::current`] instead.
    Committing {
        /// `None`: the stored head cannot be read.
        freshness: Option<&'a Freshness>,
        /// The request has already waited for the commit, and the wait timed out.
        has_waited: bool,
    },
    /// The store changed under every lookup until the limit of lookups was reached.
    Unsettled,
}

/// What is missing of the part of the body that this request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingContent {
    /// Nothing: the request is a HEAD, or its range lies within what is stored.
    Nothing,
    /// A part that can be fetched with a range request.
    Fetchable,
    /// A part that cannot be fetched on its own: there is no strong validator to prove that it belongs to the same
    /// version, or the body has too many holes.
    Unfetchable,
}

/// What the store knows about fills of the key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FillFacts {
    /// Earlier responses of this key could not be shared (`private`, `Set-Cookie`, …). Waiting for another request's
    /// fill would be in vain, and would serialize the clients.
    pub(super) is_hit_for_miss: bool,
    /// The fill of the whole response that requests may join: in progress, or ended and not committed.
    pub(super) current: Option<CurrentFill>,
}

impl FillFacts {
    /// The same without a fill that this request must not join.
    fn without_lapsed(
        self,
        now_ms: u64,
        terms: &RequestTerms,
        settings: &CacheSettings,
    ) -> FillFacts {
        let joins = |current: &CurrentFill| {
            let freshness = current.freshness.as_ref();
            freshness.is_none_or(|freshness| may_join(now_ms, freshness, terms, settings))
        };
        FillFacts {
            current: self.current.filter(joins),
            ..self
        }
    }
}

/// A fill of the whole response that another request started.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentFill {
    pub(super) began_ms: u64,
    /// Of its response. `None`: the head is on its way.
    pub(super) freshness: Option<Freshness>,
    /// The last byte has arrived since the lookup: the content is newer than what the lookup found.
    pub(super) is_complete: bool,
}

/// What counts about the request. It is derived from fields and directives once, so that [`decide`] needs no request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestTerms {
    /// The client's `Cache-Control`; `None` where `…_cache_request_control` is off, since nginx ignores that header.
    pub(super) control: Option<RequestControl>,
    pub(super) range: WantedRange,
    /// The key has been requested fewer times than `…_cache_min_uses` demands.
    pub(super) is_below_min_uses: bool,
    /// A background subrequest. No client waits for it, so serving it a stale response would renew nothing.
    pub(super) is_background: bool,
    /// It already followed a fill whose response turned out not to be shareable. Following another one could repeat
    /// that without end.
    pub(super) was_refused: bool,
}

impl RequestTerms {
    fn wants_only_stored(&self) -> bool {
        // `only-if-cached` (RFC 9111, section 5.2.1.7).
        self.control.is_some_and(|control| control.only_if_cached())
    }

    /// Whether the response must not be stored: the client says so (`no-store`, RFC 9111, section 5.2.1.5), or the
    /// operator does, for ranges that begin this far into the body (`…_cache_max_range_offset`).
    fn forbids_storing(&self) -> bool {
        self.range == WantedRange::Beyond || self.control.is_some_and(|control| control.no_store())
    }
}

/// How a fetch treats the request's `Range`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WantedRange {
    /// The whole response is fetched, and the range is cut out of it, as nginx does.
    #[default]
    Whole,
    /// Only the range is fetched, and kept as a part of the object: `…_cache_partial`.
    Part,
    /// The range begins at or after `…_cache_max_range_offset`: it is passed to the origin, and nothing is stored.
    Beyond,
}

/// The action for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheAction {
    /// Answer 504: the client accepts only a stored response (`only-if-cached`, RFC 9111, section 5.2.1.7).
    GatewayTimeout,
    /// Serve the stored response as HIT, STALE or UPDATING.
    Serve(UpstreamCacheStatus),
    /// Serve a fill that has received its last byte, as HIT.
    ServeCompleted,
    /// Serve the stored response as STALE, and revalidate it in the background.
    ServeAndRevalidate(FetchSharing),
    /// Wait for the commit of the completed fill, then look up again.
    AwaitCommit,
    /// Follow the fill in progress (`collapsed` in RFC 9211).
    Collapse(UpstreamCacheStatus, LockWait),
    /// Start a fill of the whole response, and follow it.
    Fetch(UpstreamCacheStatus, FetchSharing),
    /// Start a fill of the range that the client asked for, and follow it.
    FetchRange,
    /// Start a fill of what is missing of a partial object, and follow it.
    FetchMissing,
    /// Ask the origin for this client alone. If the response turns out to be storable, it is stored nevertheless.
    FetchUnshared(UpstreamCacheStatus),
    /// Pass the request to the origin unchanged; store nothing.
    Pass(UpstreamCacheStatus),
}

/// Whether simultaneous requests for a key share one fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchSharing {
    /// They share it, as with `…_cache_lock on`. If another request started the fill after the lookup, the store joins
    /// it.
    Collapsed,
    /// This request fetches separately, whatever is in progress.
    Apart,
}

/// How long a request waits for the head of another request's fill, and what it does when that time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockWait {
    /// There is no limit.
    Unlimited,
    /// Until the fill is older than `…_cache_lock_age`; then the request starts a fetch of its own.
    ThenFetch(Duration),
    /// For `…_cache_lock_timeout`; then the request is passed to the origin, and nothing is stored.
    ThenPass(Duration),
}

/// Decides what happens to a request. Whether a stale object may replace an error is not decided here, but when the
/// origin fails (`fetch_verdict`): only then is the kind of error known.
pub(super) fn decide(
    now_ms: u64,
    found: FoundEntry<'_>,
    fill: FillFacts,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> CacheAction {
    let fill = fill.without_lapsed(now_ms, terms, settings);
    match found {
        // `…_cache_bypass` skips the lookup only. As in nginx, the response is stored; `…_no_cache` is what prevents
        // that.
        FoundEntry::Bypassed => on_unusable(UpstreamCacheStatus::Bypass, terms),
        // A store that keeps changing must not keep the client waiting.
        FoundEntry::Unsettled => on_unusable(UpstreamCacheStatus::Miss, terms),
        FoundEntry::Nothing => on_miss(now_ms, fill, terms, settings),
        FoundEntry::Complete {
            freshness,
            is_purged,
        } => match reuse_of_stored(now_ms, freshness, is_purged, terms, settings) {
            ReuseDecision::Fresh => CacheAction::Serve(UpstreamCacheStatus::Hit),
            ReuseDecision::WhileRevalidate => on_stale(now_ms, true, fill, terms, settings),
            ReuseDecision::Validate { while_updating, .. } => {
                on_stale(now_ms, while_updating, fill, terms, settings)
            }
        },
        FoundEntry::Partial {
            freshness,
            is_purged,
            missing,
        } => match reuse_of_stored(now_ms, freshness, is_purged, terms, settings) {
            ReuseDecision::Fresh => on_partial(now_ms, missing, fill, terms, settings),
            // A stale part is not revalidated: a 304 would confirm it and still leave the hole, which takes a second
            // request. Fetching the whole takes one.
            ReuseDecision::WhileRevalidate | ReuseDecision::Validate { .. } => {
                on_miss(now_ms, fill, terms, settings)
            }
        },
        // Newer than the index and still fresh: it is served from the fill, without waiting for the disk.
        FoundEntry::Committing {
            freshness: Some(freshness),
            ..
        } if is_fresh(now_ms, freshness, terms, settings) => CacheAction::ServeCompleted,
        // Only a committed object can be revalidated, so a stale one is waited for, but only once.
        FoundEntry::Committing {
            has_waited: false, ..
        } => CacheAction::AwaitCommit,
        // The commit takes longer than the client should wait. The origin is asked without conditions instead.
        FoundEntry::Committing { .. } => on_unusable(UpstreamCacheStatus::Expired, terms),
    }
}

/// Whether a whole body may be served as a hit: one that the lookup in memory found, before `decide` is asked at all, or
/// that of a fill which is being committed. A soft purge is not asked about: the store calls a purged object stale, and
/// gives no follower of a purged fill, so neither comes here.
pub(super) fn is_fresh(
    now_ms: u64,
    freshness: &Freshness,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> bool {
    reuse_of_stored(now_ms, freshness, false, terms, settings) == ReuseDecision::Fresh
}

/// Whether a request may join a fill whose head is there, by the freshness of its response. Requests that come while the
/// head is on its way share it whatever it says (RFC 9111, section 4: collapsed requests); one that comes later gets a
/// response that was received before, like a stored one: if that may not be used any more, or not for this request, it
/// starts another fill, which those behind it join.
pub(super) fn may_join(
    now_ms: u64,
    freshness: &Freshness,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> bool {
    match reuse_of_stored(now_ms, freshness, false, terms, settings) {
        ReuseDecision::Fresh | ReuseDecision::WhileRevalidate => true,
        ReuseDecision::Validate { while_updating, .. } => while_updating,
    }
}

/// Whether the stored response may be served, and if not, what else it may be used for.
pub(super) fn reuse_of_stored(
    now_ms: u64,
    freshness: &Freshness,
    is_purged: bool,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> ReuseDecision {
    let updating = settings.use_stale.permits_any(RetryReasons::UPDATING);
    if is_purged {
        // The operator has declared the object outdated, so the origin's `stale-while-revalidate` and `stale-if-error`
        // no longer apply. `…_cache_use_stale` still does, since the operator wrote that as well.
        return ReuseDecision::Validate {
            on_any_error: false,
            on_listed_error: true,
            while_updating: updating,
        };
    }
    // Which errors are listed in `…_cache_use_stale` does not matter yet: that is checked when one occurs.
    let rules = StaleRules {
        error: true,
        updating,
    };
    caching::decide_reuse(freshness, now_ms, rules, terms.control.as_ref())
}

/// The store may hold something, but not for this request. Neither the object nor a fill is looked at, so only the
/// request's own limits are left to observe.
fn on_unusable(status: UpstreamCacheStatus, terms: &RequestTerms) -> CacheAction {
    if terms.wants_only_stored() {
        return CacheAction::GatewayTimeout;
    }
    match terms.forbids_storing() {
        true => CacheAction::Pass(status),
        false => CacheAction::FetchUnshared(status),
    }
}

/// The store has nothing to serve.
fn on_miss(
    now_ms: u64,
    fill: FillFacts,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> CacheAction {
    let status = UpstreamCacheStatus::Miss;
    if terms.wants_only_stored() {
        return CacheAction::GatewayTimeout;
    }
    // As in nginx, a response is not stored before the key has been requested `min_uses` times.
    if terms.is_below_min_uses || terms.forbids_storing() {
        return CacheAction::Pass(status);
    }
    let is_unshared = fill.is_hit_for_miss || terms.was_refused;
    match (terms.range, fill.current) {
        // A range response does not tell whether the whole would be storable, so unlike below, there is no attempt to
        // store it.
        (WantedRange::Part, _) if is_unshared => CacheAction::Pass(status),
        // The whole is on its way, and the range is in it. `…_cache_lock` is not asked: nginx's default of one fetch per
        // request is about whole responses, and `…_cache_partial`, which nginx lacks, always shares its fetches.
        (WantedRange::Part, Some(current)) => {
            CacheAction::Collapse(status, lock_wait(now_ms, current, settings))
        }
        (WantedRange::Part, None) => CacheAction::FetchRange,
        // `Beyond` forbids storing and has returned above; it is listed to keep the match exhaustive.
        (WantedRange::Whole | WantedRange::Beyond, _) if is_unshared => {
            CacheAction::FetchUnshared(status)
        }
        (WantedRange::Whole | WantedRange::Beyond, current) => {
            fetch_or_collapse(now_ms, status, current, settings)
        }
    }
}

/// The stored response is stale. `is_served_meanwhile`: it may be served while the origin is being asked.
fn on_stale(
    now_ms: u64,
    is_served_meanwhile: bool,
    fill: FillFacts,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> CacheAction {
    let status = UpstreamCacheStatus::Expired;
    if terms.wants_only_stored() {
        return CacheAction::GatewayTimeout;
    }
    // With `no-store` even a fresh object comes here, since `reuse_of_stored` counts the field as a wish for a newer
    // response. Hence EXPIRED, as for every object that may not be served as it is.
    if terms.forbids_storing() {
        return CacheAction::Pass(status);
    }
    // For a background subrequest there is no client to spare the wait, and it may be the one that has to renew the
    // object.
    if is_served_meanwhile && !terms.is_background {
        match fill.current {
            // Hit-for-miss responses cannot be shared, so a fill in progress for another client does not renew the
            // object.
            _ if settings.background_update && fill.is_hit_for_miss => {
                return CacheAction::ServeAndRevalidate(FetchSharing::Apart);
            }
            // Complete but not committed: the new response is available, so there is no reason to serve the stale one.
            Some(current) if current.is_complete => return CacheAction::ServeCompleted,
            Some(_) => return CacheAction::Serve(UpstreamCacheStatus::Updating),
            None if settings.background_update => {
                return CacheAction::ServeAndRevalidate(FetchSharing::Collapsed);
            }
            // Without `background_update` one request has to renew the object. As in nginx, that is the first one, and
            // it waits.
            None => {}
        }
    }
    match terms.was_refused || fill.is_hit_for_miss {
        // `FetchUnshared` would not do: this fetch must be able to revalidate the stale object, and to fall back on it
        // when the origin fails.
        true => CacheAction::Fetch(status, FetchSharing::Apart),
        false => fetch_or_collapse(now_ms, status, fill.current, settings),
    }
}

/// The stored response is fresh, but a part of its body is missing.
fn on_partial(
    now_ms: u64,
    missing: MissingContent,
    fill: FillFacts,
    terms: &RequestTerms,
    settings: &CacheSettings,
) -> CacheAction {
    match (missing, fill.current) {
        (MissingContent::Nothing, _) => CacheAction::Serve(UpstreamCacheStatus::Hit),
        // The missing part cannot be verified, so the whole is fetched as if nothing were stored.
        (MissingContent::Unfetchable, _) => on_miss(now_ms, fill, terms, settings),
        // What is missing may be neither fetched (504) nor stored (pass): the row for misses decides which.
        (MissingContent::Fetchable, _) if terms.wants_only_stored() || terms.forbids_storing() => {
            on_miss(now_ms, fill, terms, settings)
        }
        // The response may be for one client alone. Then it must not be joined with the stored part, and following
        // another request's fetch would end in a release again, even that of the whole.
        (MissingContent::Fetchable, _) if fill.is_hit_for_miss || terms.was_refused => {
            on_miss(now_ms, fill, terms, settings)
        }
        // The fill of the whole brings the missing part with it. As with every part, `…_cache_lock` is not asked.
        (MissingContent::Fetchable, Some(current)) => CacheAction::Collapse(
            UpstreamCacheStatus::Miss,
            lock_wait(now_ms, current, settings),
        ),
        (MissingContent::Fetchable, None) => CacheAction::FetchMissing,
    }
}

/// Starts a fill, or follows the one in progress. The client sees `status` in either case.
fn fetch_or_collapse(
    now_ms: u64,
    status: UpstreamCacheStatus,
    current: Option<CurrentFill>,
    settings: &CacheSettings,
) -> CacheAction {
    match current {
        // nginx's default: without `…_cache_lock`, each request that misses goes to the origin.
        _ if !settings.lock => CacheAction::Fetch(status, FetchSharing::Apart),
        // A complete fill needs no row of its own: its head is there, so the wait ends at once, and the follower answers
        // HIT. Only where the alternative is a stale object does it make a difference (`on_stale`).
        Some(current) => CacheAction::Collapse(status, lock_wait(now_ms, current, settings)),
        None => CacheAction::Fetch(status, FetchSharing::Collapsed),
    }
}

/// How long a request may wait for a fill, by `…_cache_lock_age` and `…_cache_lock_timeout`.
fn lock_wait(now_ms: u64, fill: CurrentFill, settings: &CacheSettings) -> LockWait {
    // The age counts from the start of the fill, the timeout from the arrival of this request. The earlier one wins.
    let age = Duration::from_millis(now_ms.saturating_sub(fill.began_ms));
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
    use proto::caching::LifetimeSource;

    use super::*;

    /// Each row: the section or directive | what was found | fills | the request | directives | what is done.
    ///
    /// Whatever was found stale has been so for 10 seconds, and a fill that runs began 3 seconds ago. Its head is on its way
    /// where nothing is said of its response.
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
        RFC 9111, 4              | nothing             | running fresh | -                | lock                          | Collapse(Miss, Unlimited)
        RFC 9111, 4              | nothing             | running stale | -                | lock                          | Fetch(Miss, Collapsed)
        RFC 9111, 4              | nothing             | running stale | -                | lock timeout=5                | Fetch(Miss, Collapsed)
        RFC 9111, 4              | nothing             | running stale | range part       | lock                          | FetchRange
        RFC 9111, 4              | nothing             | running stale | only-if-cached   | lock                          | GatewayTimeout
        RFC 9111, 4              | nothing             | running stale | below min_uses   | lock                          | Pass(Miss)
        RFC 9111, 4              | nothing             | running stale | -                | -                             | Fetch(Miss, Apart)
        RFC 9111, 5.2.1.2        | nothing             | running stale | max-stale        | lock                          | Collapse(Miss, Unlimited)
        RFC 9111, 5.2.1.4        | nothing             | running fresh | no-cache         | lock                          | Fetch(Miss, Collapsed)
        RFC 9111, 5.2.1.1        | nothing             | running fresh | max-age=4        | lock                          | Fetch(Miss, Collapsed)
        RFC 9111, 5.2.2.2        | nothing             | running must-revalidate | -      | lock updating                 | Fetch(Miss, Collapsed)
        RFC 9111, 5.2.2.4        | nothing             | running no-cache | -             | lock                          | Fetch(Miss, Collapsed)
        use_stale updating       | nothing             | running stale | -                | lock updating                 | Collapse(Miss, Unlimited)
        RFC 5861, 3              | nothing             | running while-revalidate | -     | lock                          | Collapse(Miss, Unlimited)
        RFC 9111, 4              | stale               | running stale | -                | lock                          | Fetch(Expired, Collapsed)
        use_stale updating       | stale               | running stale | -                | lock updating                 | Serve(Updating)
        background_update        | stale               | running no-cache | -             | lock updating background_update | ServeAndRevalidate(Collapsed)
        RFC 9111, 4              | partial missing     | running stale | -                | lock                          | FetchMissing
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
        RFC 9111, 3.4            | partial missing     | both          | -                | lock                          | FetchUnshared(Miss)
        RFC 9111, 3.4            | partial missing     | running       | refused          | lock                          | FetchUnshared(Miss)
        RFC 9111, 3.4            | partial missing     | -             | refused          | lock                          | FetchUnshared(Miss)
        RFC 9111, 3.4            | partial missing     | running       | range part refused | lock                        | Pass(Miss)
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
        bypass                   | bypassed            | running       | only-if-cached   | lock updating                 | GatewayTimeout
        bypass                   | bypassed            | -             | no-store         | lock                          | Pass(Bypass)
        commit                   | committing waited   | -             | only-if-cached   | lock                          | GatewayTimeout
        commit                   | committing waited   | -             | no-store         | lock                          | Pass(Expired)
        too many lookups         | unsettled           | running       | -                | lock                          | FetchUnshared(Miss)
        too many lookups         | unsettled           | -             | only-if-cached   | lock                          | GatewayTimeout
        too many lookups         | unsettled           | -             | range beyond     | lock                          | Pass(Miss)
    ";

    const NOW_MS: u64 = 100_000;

    /// Fresh for 20 seconds more, and 5 seconds old.
    const FRESH: Freshness = Freshness {
        received_ms: NOW_MS - 5_000,
        initial_age_s: 0,
        fresh_until_ms: NOW_MS + 20_000,
        source: LifetimeSource::CacheControl,
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

    fn found(text: &str) -> FoundEntry<'static> {
        let complete = |freshness| FoundEntry::Complete {
            freshness,
            is_purged: false,
        };
        let partial = |freshness, missing| FoundEntry::Partial {
            freshness,
            is_purged: false,
            missing,
        };
        let committing = |freshness, has_waited| FoundEntry::Committing {
            freshness,
            has_waited,
        };
        match text {
            "nothing" => FoundEntry::Nothing,
            "bypassed" => FoundEntry::Bypassed,
            "unsettled" => FoundEntry::Unsettled,
            "fresh" => complete(&FRESH),
            "stale" => complete(&STALE),
            "while-revalidate" => complete(&WHILE_REVALIDATE),
            "must-revalidate" => complete(&MUST_REVALIDATE),
            "no-cache" => complete(&NO_CACHE),
            "purged" => FoundEntry::Complete {
                freshness: &FRESH,
                is_purged: true,
            },
            "partial there" => partial(&FRESH, MissingContent::Nothing),
            "partial missing" => partial(&FRESH, MissingContent::Fetchable),
            "partial unfetchable" => partial(&FRESH, MissingContent::Unfetchable),
            "partial stale" => partial(&STALE, MissingContent::Nothing),
            "partial purged" => FoundEntry::Partial {
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

    fn fill(text: &str) -> FillFacts {
        let with_head = |freshness, is_complete| {
            Some(CurrentFill {
                began_ms: NOW_MS - 3_000,
                freshness,
                is_complete,
            })
        };
        let running = |is_complete| with_head(None, is_complete);
        let (is_hit_for_miss, current) = match text {
            "-" => (false, None),
            "running" => (false, running(false)),
            "running fresh" => (false, with_head(Some(FRESH), false)),
            "running stale" => (false, with_head(Some(STALE), false)),
            "running must-revalidate" => (false, with_head(Some(MUST_REVALIDATE), false)),
            "running no-cache" => (false, with_head(Some(NO_CACHE), false)),
            "running while-revalidate" => (false, with_head(Some(WHILE_REVALIDATE), false)),
            "complete" => (false, running(true)),
            "hit-for-miss" => (true, None),
            "both" => (true, running(false)),
            _ => panic!("not a fill: {text}"),
        };
        FillFacts {
            is_hit_for_miss,
            current,
        }
    }

    fn terms(text: &str) -> RequestTerms {
        let mut terms = RequestTerms::default();
        for word in text.split(' ') {
            match word {
                "-" | "range" | "below" => {}
                "part" => terms.range = WantedRange::Part,
                "beyond" => terms.range = WantedRange::Beyond,
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

    fn settings(text: &str) -> CacheSettings {
        let mut settings = CacheSettings::default();
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

    /// Asks `decide` for each row, and lists the rows with another answer. `cargo test -p weir-http decide -- --nocapture` prints it.
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
                let FoundEntry::Complete { freshness, .. } = found(what) else {
                    panic!("an object: {what}");
                };
                let (terms, settings) = (terms(request), settings("lock"));
                let action = decide(NOW_MS, found(what), FillFacts::default(), &terms, &settings);
                assert_eq!(
                    is_fresh(NOW_MS, freshness, &terms, &settings),
                    action == CacheAction::Serve(UpstreamCacheStatus::Hit),
                    "{what} | {request}"
                );
            }
        }
    }

    #[test]
    fn errors_of_the_origin_are_bridged_as_the_origin_or_the_operator_says() {
        let reuse_of = |freshness: &Freshness, is_purged| {
            let settings = CacheSettings::default();
            reuse_of_stored(NOW_MS, freshness, is_purged, &terms("-"), &settings)
        };
        let validate = |on_any_error, on_listed_error| ReuseDecision::Validate {
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
