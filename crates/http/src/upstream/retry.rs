//! Whether a request that failed on one server goes to another one: `proxy_next_upstream`, its `_tries` and its `_timeout`.
//!
//! Nothing here does anything: a try that failed is judged by what is known of it, and the exchange obeys.

use std::time::Duration;

use net::upstream::{NoPeer, Outcome, Times};
use proto::message::Method;

use super::log::Doing;
use super::no_response::{NoResponse, RetryReasons};

/// How a try failed. All but [`TryFailure::TimedOut`] and [`TryFailure::Status`] have been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TryFailure {
    /// No peer can be used.
    NoPeer(NoPeer),
    /// The connection could not be made or broke.
    Broken,
    /// The peer says that it did nothing with the request.
    Unprocessed,
    /// The peer took too long.
    TimedOut(Doing),
    /// The head of the response is invalid.
    InvalidHeader,
    /// The response has a status for which another peer may be tried.
    Status(u16),
    /// Something that no other peer can change.
    Final(NoResponse),
}

/// What a request can still be after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestSent {
    /// No byte of it has left.
    Nothing,
    /// Some of it has left, and all of it can be sent again.
    Repeatable,
    /// Some of its content came from the client and went to the peer, and is not kept.
    Streamed,
}

/// What the directives permit.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryRules {
    /// `next_upstream`.
    pub(super) reasons: RetryReasons,
    /// `next_upstream_timeout`; zero is without limit.
    pub(super) timeout: Duration,
}

/// A try that failed, as far as it matters to another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedTry {
    pub(super) failure: TryFailure,
    pub(super) method: Method,
    pub(super) sent: RequestSent,
    /// How many more `next_upstream_tries` and the number of servers leave.
    pub(super) tries_left: u32,
    /// The time since the first try began.
    pub(super) elapsed: Duration,
}

/// What follows a try that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// Another try.
    Retry,
    /// The client is told, because of this.
    Stop(StopReason),
}

/// Why there is no other try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Another server would not change it.
    SameEverywhere,
    /// There is no other server, or `next_upstream_tries` is reached.
    NoTriesLeft,
    /// `next_upstream` does not name the reason.
    NotPermitted,
    /// The request may have been processed, must not be twice, and `next_upstream` does not say `non_idempotent`.
    NotIdempotent,
    /// The client's content is gone.
    ContentGone,
    /// `next_upstream_timeout` is over.
    OutOfTime,
}

/// Decides whether there is another try.
pub(super) fn decide(rules: RetryRules, failed: &FailedTry) -> RetryDecision {
    let FailedTry {
        failure,
        method,
        sent,
        tries_left,
        elapsed,
    } = *failed;
    if matches!(failure, TryFailure::NoPeer(_) | TryFailure::Final(_)) {
        return RetryDecision::Stop(StopReason::SameEverywhere);
    }
    if tries_left == 0 {
        return RetryDecision::Stop(StopReason::NoTriesLeft);
    }
    let reason = failure.reason();
    if !rules.reasons.permits_all(reason) {
        return RetryDecision::Stop(StopReason::NotPermitted);
    }
    // Twice is once too much where the method is not idempotent (RFC 9110, section 9.2.2), unless no byte has left, or the
    // peer itself says that it has not looked at the request (RFC 9113, section 8.7).
    let maybe_processed = sent != RequestSent::Nothing && failure != TryFailure::Unprocessed;
    let twice = reason | RetryReasons::NON_IDEMPOTENT;
    if maybe_processed && !method.is_idempotent() && !rules.reasons.permits_all(twice) {
        return RetryDecision::Stop(StopReason::NotIdempotent);
    }
    if sent == RequestSent::Streamed {
        return RetryDecision::Stop(StopReason::ContentGone);
    }
    if !rules.timeout.is_zero() && elapsed >= rules.timeout {
        return RetryDecision::Stop(StopReason::OutOfTime);
    }
    RetryDecision::Retry
}

impl TryFailure {
    /// The word of `next_upstream` for it.
    pub(super) fn reason(&self) -> RetryReasons {
        match self {
            TryFailure::NoPeer(_) | TryFailure::Broken | TryFailure::Unprocessed => {
                RetryReasons::ERROR
            }
            TryFailure::TimedOut(_) => RetryReasons::TIMEOUT,
            TryFailure::InvalidHeader => RetryReasons::INVALID_HEADER,
            TryFailure::Status(status) => {
                RetryReasons::of_status(*status).unwrap_or(RetryReasons::ERROR)
            }
            TryFailure::Final(none) => none.reasons,
        }
    }

    /// The status that stands for it: in `$upstream_status`, and for the client if no other try follows.
    pub(super) fn status(&self) -> u16 {
        match self {
            TryFailure::NoPeer(NoPeer::QueueFull) => 503,
            TryFailure::NoPeer(_)
            | TryFailure::Broken
            | TryFailure::Unprocessed
            | TryFailure::InvalidHeader => 502,
            TryFailure::TimedOut(_) => 504,
            TryFailure::Status(status) => *status,
            TryFailure::Final(none) => none.status,
        }
    }

    /// What it says of the peer that was tried; `None`: nothing, the peer is not to blame.
    pub(super) fn outcome(&self, times: Times) -> Option<Outcome> {
        match self {
            // A server that has answered so has done what it should.
            TryFailure::Status(403 | 404) => Some(Outcome::Next(times)),
            TryFailure::Final(_) | TryFailure::NoPeer(_) => None,
            TryFailure::Broken
            | TryFailure::Unprocessed
            | TryFailure::TimedOut(_)
            | TryFailure::InvalidHeader
            | TryFailure::Status(_) => Some(Outcome::Failed(times)),
        }
    }

    /// Whether a connection that had been idle may be to blame, which the server has closed meanwhile.
    pub(super) fn may_be_stale_connection(&self) -> bool {
        matches!(self, TryFailure::Broken | TryFailure::Unprocessed)
    }
}

#[cfg(test)]
mod tests {
    use super::RequestSent::{Nothing, Repeatable, Streamed};
    use super::RetryDecision::{Retry, Stop};
    use super::StopReason::*;
    use super::*;

    /// `proxy_next_upstream error timeout`, the default.
    fn default_rules() -> RetryRules {
        RetryRules {
            reasons: RetryReasons::ERROR | RetryReasons::TIMEOUT,
            timeout: Duration::ZERO,
        }
    }

    fn failed(failure: TryFailure, method: Method, sent: RequestSent) -> FailedTry {
        FailedTry {
            failure,
            method,
            sent,
            tries_left: 1,
            elapsed: Duration::from_secs(5),
        }
    }

    #[test]
    fn the_default_rules_by_failure_and_request() {
        use Method::{Delete, Get, Lock, Patch, Post, Put};
        let timeout = TryFailure::TimedOut(Doing::ReadingHeader);
        let refused = TryFailure::Final(NoResponse::new(413));
        let none_alive = TryFailure::NoPeer(NoPeer::NoneAlive);
        let rows = [
            (TryFailure::Broken, Get, Repeatable, Retry),
            (TryFailure::Broken, Put, Repeatable, Retry),
            (TryFailure::Broken, Delete, Repeatable, Retry),
            (TryFailure::Broken, Post, Nothing, Retry),
            (TryFailure::Broken, Post, Repeatable, Stop(NotIdempotent)),
            (TryFailure::Broken, Lock, Repeatable, Stop(NotIdempotent)),
            (TryFailure::Broken, Patch, Repeatable, Stop(NotIdempotent)),
            (TryFailure::Broken, Put, Streamed, Stop(ContentGone)),
            (TryFailure::Broken, Post, Streamed, Stop(NotIdempotent)),
            (TryFailure::Unprocessed, Post, Repeatable, Retry),
            (TryFailure::Unprocessed, Post, Streamed, Stop(ContentGone)),
            (timeout, Get, Repeatable, Retry),
            (timeout, Post, Repeatable, Stop(NotIdempotent)),
            (
                TryFailure::InvalidHeader,
                Get,
                Repeatable,
                Stop(NotPermitted),
            ),
            (TryFailure::Status(500), Get, Repeatable, Stop(NotPermitted)),
            (none_alive, Get, Nothing, Stop(SameEverywhere)),
            (refused, Get, Repeatable, Stop(SameEverywhere)),
        ];
        for (failure, method, sent, expected) in rows {
            let decision = decide(default_rules(), &failed(failure, method, sent));
            assert_eq!(decision, expected, "{failure:?} {method:?} {sent:?}");
        }
    }

    #[test]
    fn a_reason_must_be_named() {
        let words = [
            (TryFailure::InvalidHeader, RetryReasons::INVALID_HEADER),
            (TryFailure::Status(404), RetryReasons::HTTP_404),
        ];
        for (failure, reasons) in words {
            let rules = RetryRules {
                reasons,
                ..default_rules()
            };
            let failed = |failure| failed(failure, Method::Get, Repeatable);
            assert_eq!(decide(rules, &failed(failure)), Retry);
            let broken = decide(rules, &failed(TryFailure::Broken));
            assert_eq!(broken, Stop(NotPermitted));
            let off = RetryRules {
                reasons: reasons | RetryReasons::OFF,
                ..rules
            };
            assert_eq!(decide(off, &failed(failure)), Stop(NotPermitted));
        }
    }

    #[test]
    fn non_idempotent_permits_what_was_sent_but_not_what_is_gone() {
        let rules = RetryRules {
            reasons: RetryReasons::ERROR | RetryReasons::NON_IDEMPOTENT,
            ..default_rules()
        };
        let post = |sent| decide(rules, &failed(TryFailure::Broken, Method::Post, sent));
        assert_eq!(post(Repeatable), Retry);
        assert_eq!(post(Streamed), Stop(ContentGone));
    }

    #[test]
    fn tries_and_time_end() {
        let broken = failed(TryFailure::Broken, Method::Get, Repeatable);
        let last = FailedTry {
            tries_left: 0,
            ..broken
        };
        assert_eq!(decide(default_rules(), &last), Stop(NoTriesLeft));
        for (timeout_s, expected) in [(0, Retry), (5, Stop(OutOfTime)), (6, Retry)] {
            let rules = RetryRules {
                timeout: Duration::from_secs(timeout_s),
                ..default_rules()
            };
            assert_eq!(decide(rules, &broken), expected, "{timeout_s}");
        }
    }

    #[test]
    fn a_failure_has_a_status_and_says_something_of_the_peer() {
        let times = Times::default();
        let rows = [
            (TryFailure::NoPeer(NoPeer::NoneAlive), 502, None),
            (TryFailure::NoPeer(NoPeer::QueueFull), 503, None),
            (TryFailure::NoPeer(NoPeer::QueueTimeout), 502, None),
            (TryFailure::Broken, 502, Some(Outcome::Failed(times))),
            (TryFailure::Unprocessed, 502, Some(Outcome::Failed(times))),
            (TryFailure::InvalidHeader, 502, Some(Outcome::Failed(times))),
            (TryFailure::Status(500), 500, Some(Outcome::Failed(times))),
            (TryFailure::Status(404), 404, Some(Outcome::Next(times))),
            (TryFailure::Final(NoResponse::new(499)), 499, None),
        ];
        for (failure, status, outcome) in rows {
            assert_eq!(failure.status(), status, "{failure:?}");
            assert_eq!(failure.outcome(times), outcome, "{failure:?}");
        }
        let timed_out = TryFailure::TimedOut(Doing::Connecting);
        assert_eq!(timed_out.status(), 504);
    }
}
