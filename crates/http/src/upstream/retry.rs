//! Whether a request that failed on one server is sent to another: `…_next_upstream`, `…_next_upstream_tries` and
//! `…_next_upstream_timeout`.
//!
//! Pure functions: they judge a failed try by what is known of it, and the exchange acts on the result.

use std::time::Duration;

use net::upstream::{NoPeer, PeerOutcome, UpstreamTimes};
use proto::message::Method;

use super::exchange_log::ExchangeStage;
use super::no_response::{NoResponse, RetryReasons};
use crate::ledger::EndedBy;
use crate::module::internal_status;

/// How a try failed. Everything except [`TryFailure::TimedOut`] and [`TryFailure::Status`] has already been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TryFailure {
    /// No server can be used.
    NoPeer(NoPeer),
    /// The connection could not be made, or broke.
    Broken,
    /// The server says that it has not processed the request (HTTP/2: REFUSED_STREAM or GOAWAY).
    Unprocessed,
    /// The server took too long.
    TimedOut(ExchangeStage),
    /// The head of the response is invalid.
    InvalidHeader,
    /// The status of the response permits trying another server.
    Status(u16),
    /// The cause is not with the server, so another one would not help.
    Final(NoResponse),
}

/// How much of a request has been sent, which decides whether it can be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestSent {
    /// No byte.
    Nothing,
    /// Some of it; all of it can be sent again.
    Repeatable,
    /// Some of its body was passed from the client to the server, and has not been kept.
    Streamed,
}

/// What the directives permit.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryRules {
    /// `…_next_upstream`
    pub(super) reasons: RetryReasons,
    /// `…_next_upstream_timeout`; zero: no limit.
    pub(super) timeout: Duration,
}

/// What the decision needs to know about a failed try.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedTry {
    pub(super) failure: TryFailure,
    pub(super) method: Method,
    pub(super) sent: RequestSent,
    /// The number of tries that `…_next_upstream_tries` and the number of servers leave.
    pub(super) tries_left: u32,
    /// The time since the first try started.
    pub(super) elapsed: Duration,
}

/// The decision after a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// Try another server.
    Retry,
    /// Answer the client, for this reason.
    Stop(StopReason),
}

/// Why no other server is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// It would fail in the same way.
    SameEverywhere,
    /// There is none left, or `…_next_upstream_tries` is reached.
    NoTriesLeft,
    /// `…_next_upstream` does not list the failure.
    NotPermitted,
    /// The request may have been processed and must not be processed twice, and `…_next_upstream` does not list
    /// `non_idempotent`.
    NotIdempotent,
    /// The client's body has been passed on and is gone.
    ContentGone,
    /// `…_next_upstream_timeout` has elapsed.
    OutOfTime,
}

/// Decides whether there is another try.
pub(super) fn decide_retry(rules: RetryRules, failed: &FailedTry) -> RetryDecision {
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
    let reason = failure.retry_reason();
    if !rules.reasons.permits_all(reason) {
        return RetryDecision::Stop(StopReason::NotPermitted);
    }
    // A method that is not idempotent must not be repeated automatically (RFC 9110, section 9.2.2), unless no byte was
    // sent, or the server states that it has not processed the request (RFC 9113, section 8.7). As in nginx,
    // `non_idempotent` overrides this.
    let maybe_processed = sent != RequestSent::Nothing && failure != TryFailure::Unprocessed;
    let twice = reason | RetryReasons::NON_IDEMPOTENT;
    if maybe_processed && !method.is_idempotent() && !rules.reasons.permits_all(twice) {
        return RetryDecision::Stop(StopReason::NotIdempotent);
    }
    if sent == RequestSent::Streamed {
        return RetryDecision::Stop(StopReason::ContentGone);
    }
    // A running try is not cut off by this limit; as in nginx it only prevents the next one.
    if !rules.timeout.is_zero() && elapsed >= rules.timeout {
        return RetryDecision::Stop(StopReason::OutOfTime);
    }
    RetryDecision::Retry
}

impl TryFailure {
    /// Who is to blame, for the ledger.
    pub(super) fn ended_by(&self) -> EndedBy {
        match self {
            TryFailure::NoPeer(_) => EndedBy::Resource,
            TryFailure::TimedOut(_) => EndedBy::UpstreamTimeout,
            TryFailure::Final(none) if none.status == internal_status::CLIENT_CLOSED => {
                EndedBy::Client
            }
            TryFailure::Final(_) => EndedBy::Server,
            TryFailure::Broken
            | TryFailure::Unprocessed
            | TryFailure::InvalidHeader
            | TryFailure::Status(_) => EndedBy::Upstream,
        }
    }

    /// The parameter of `…_next_upstream` that covers this failure.
    pub(super) fn retry_reason(&self) -> RetryReasons {
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

    /// The status for this failure: in `$upstream_status`, and for the client if there is no other try.
    pub(super) fn status(&self) -> u16 {
        // A full queue is a temporary overload of this server (RFC 9110, section 15.6.4); the others are failures
        // behind a gateway (sections 15.6.3 and 15.6.5).
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

    /// What the failure says about the server; `None` if the server is not to blame.
    pub(super) fn peer_outcome(&self, times: UpstreamTimes) -> Option<PeerOutcome> {
        match self {
            // As in nginx, a server that answers 403 or 404 is alive. Another one is tried, but `max_fails` does not
            // count it.
            TryFailure::Status(403 | 404) => Some(PeerOutcome::Next(times)),
            TryFailure::Final(_) | TryFailure::NoPeer(_) => None,
            TryFailure::Broken
            | TryFailure::Unprocessed
            | TryFailure::TimedOut(_)
            | TryFailure::InvalidHeader
            | TryFailure::Status(_) => Some(PeerOutcome::Failed(times)),
        }
    }

    /// Whether the cause may be an idle connection that the server has closed.
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
        let timeout = TryFailure::TimedOut(ExchangeStage::ReadingHeader);
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
            let decision = decide_retry(default_rules(), &failed(failure, method, sent));
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
            assert_eq!(decide_retry(rules, &failed(failure)), Retry);
            let broken = decide_retry(rules, &failed(TryFailure::Broken));
            assert_eq!(broken, Stop(NotPermitted));
            let off = RetryRules {
                reasons: reasons | RetryReasons::OFF,
                ..rules
            };
            assert_eq!(decide_retry(off, &failed(failure)), Stop(NotPermitted));
        }
    }

    #[test]
    fn non_idempotent_permits_what_was_sent_but_not_what_is_gone() {
        let rules = RetryRules {
            reasons: RetryReasons::ERROR | RetryReasons::NON_IDEMPOTENT,
            ..default_rules()
        };
        let post = |sent| decide_retry(rules, &failed(TryFailure::Broken, Method::Post, sent));
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
        assert_eq!(decide_retry(default_rules(), &last), Stop(NoTriesLeft));
        for (timeout_s, expected) in [(0, Retry), (5, Stop(OutOfTime)), (6, Retry)] {
            let rules = RetryRules {
                timeout: Duration::from_secs(timeout_s),
                ..default_rules()
            };
            assert_eq!(decide_retry(rules, &broken), expected, "{timeout_s}");
        }
    }

    #[test]
    fn a_failure_has_a_status_and_says_something_of_the_peer() {
        let times = UpstreamTimes::default();
        let rows = [
            (TryFailure::NoPeer(NoPeer::NoneAlive), 502, None),
            (TryFailure::NoPeer(NoPeer::QueueFull), 503, None),
            (TryFailure::NoPeer(NoPeer::QueueTimeout), 502, None),
            (TryFailure::Broken, 502, Some(PeerOutcome::Failed(times))),
            (
                TryFailure::Unprocessed,
                502,
                Some(PeerOutcome::Failed(times)),
            ),
            (
                TryFailure::InvalidHeader,
                502,
                Some(PeerOutcome::Failed(times)),
            ),
            (
                TryFailure::Status(500),
                500,
                Some(PeerOutcome::Failed(times)),
            ),
            (TryFailure::Status(404), 404, Some(PeerOutcome::Next(times))),
            (TryFailure::Final(NoResponse::new(499)), 499, None),
        ];
        for (failure, status, outcome) in rows {
            assert_eq!(failure.status(), status, "{failure:?}");
            assert_eq!(failure.peer_outcome(times), outcome, "{failure:?}");
        }
        let timed_out = TryFailure::TimedOut(ExchangeStage::Connecting);
        assert_eq!(timed_out.status(), 504);
    }
}
