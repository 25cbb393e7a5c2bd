//! What happens to a fetch, depending on what the origin answers: tables without I/O, clock or store.
//!
//! ```text
//! no response ── on_failure
//! head ── on_head ─┬─ done: the stale object is renewed or served, a missing part is stored in its place
//!                  └─ judge ── on_judgement ─┬─ stored
//!                                            └─ released: for one client alone
//! ```

use proto::caching::ReuseDecision;

use super::cache_settings::CacheSettings;
use crate::upstream::RetryReasons;

/// What is known about a response from its head, except whether it may be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseFacts {
    pub(super) status: u16,
    pub(super) not_modified: NotModified,
    /// The stale object may be served instead of a response with this status.
    pub(super) may_use_stale: bool,
    pub(super) missing: MissingAnswer,
}

/// Whether a response answers the validators that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotModified {
    /// It is not a 304, or the request was not conditional.
    No,
    /// A 304 that confirms the stored object.
    OfStored,
    /// A 304 whose validators are not those of the stored object (RFC 9111, section 4.3.4).
    OfAnother,
}

/// How a response relates to the missing part that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingAnswer {
    /// No missing part was asked for.
    NotAsked,
    /// It is exactly that part, of the stored version.
    Fits,
    /// It is anything else.
    Another,
}

/// What is done with a response, given its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadAction {
    /// Renew the stale object; followers serve it.
    Revalidate,
    /// Ask the origin again, without conditions.
    AskWithoutConditions,
    /// Let followers serve the stale object.
    UseStale,
    /// Store the part in the place where it was missing.
    StoreMissing,
    /// Remove the stored object, since the origin has another version; followers look up again.
    Discard,
    /// Judge whether the response may be stored.
    Judge,
}

/// Decides on the head of a response. A 304 comes first: it is a success, whatever `…_cache_use_stale` lists.
pub(super) fn on_head(facts: ResponseFacts) -> HeadAction {
    match facts.not_modified {
        NotModified::OfStored => return HeadAction::Revalidate,
        NotModified::OfAnother => return HeadAction::AskWithoutConditions,
        NotModified::No => {}
    }
    if facts.may_use_stale {
        return HeadAction::UseStale;
    }
    match (facts.missing, facts.status) {
        (MissingAnswer::Fits, _) => HeadAction::StoreMissing,
        // With a validator that it gave itself, the origin sent other bytes or none. What is stored must be of an older
        // version.
        (MissingAnswer::Another, 206 | 416) => HeadAction::Discard,
        (MissingAnswer::Another | MissingAnswer::NotAsked, _) => HeadAction::Judge,
    }
}

/// Whether a stale object may be served for one of these reasons. `is_silent`: there is no response at all.
pub(super) fn may_use_stale(
    reuse: ReuseDecision,
    reasons: RetryReasons,
    is_silent: bool,
    use_stale: RetryReasons,
) -> bool {
    let (by_origin, by_operator) = match reuse {
        ReuseDecision::Validate {
            on_any_error,
            on_listed_error,
            ..
        } => (on_any_error, on_listed_error),
        ReuseDecision::WhileRevalidate | ReuseDecision::Fresh => (true, true),
    };
    // As in nginx, the origin's `stale-if-error` counts if the origin cannot be reached. If it answers with an error,
    // only `…_cache_use_stale` counts.
    by_origin && is_silent && !reasons.is_empty() || by_operator && use_stale.permits_any(reasons)
}

/// What is done if there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// Let followers serve the stale object.
    UseStale,
    /// Store the failure as a response, because `…_cache_valid` names its status. This spares a dead origin further
    /// requests.
    StoreError {
        /// For how long the origin is not asked.
        seconds: u32,
    },
    /// Let followers answer with the status.
    Fail,
}

/// Decides on an exchange without a response.
pub(super) fn on_failure(
    status: u16,
    may_use_stale: bool,
    settings: &CacheSettings,
) -> FailureAction {
    match settings.valid_s(status) {
        _ if may_use_stale => FailureAction::UseStale,
        // 502 and 504 are about the origin. Any other status without a response has its cause here, and must not be
        // remembered.
        Some(seconds) if seconds > 0 && matches!(status, 502 | 504) => {
            FailureAction::StoreError { seconds }
        }
        _ => FailureAction::Fail,
    }
}

/// Whether a response may be stored, and what it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseJudgement {
    /// It is for its own client alone. `is_typical`: so will probably be the next responses of the key.
    Unstorable { is_typical: bool },
    /// It may be stored.
    Storable(ReceivedContent),
}

/// What a response contains of what belongs under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedContent {
    /// All of it, whatever the status.
    Whole,
    /// A part of the body.
    Part,
    /// A part that cannot be used: it was not asked for, is another one, or does not say where it belongs.
    Nothing,
}

/// What the fetch asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchedCoverage {
    /// The whole response.
    Whole,
    /// The range that a client wants.
    Range,
    /// A part that a stored object lacks.
    Missing,
}

/// What is done with a response after it has been judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreAction {
    /// Hand the exchange to the client that started the fetch; the others ask the origin themselves. `remember`: mark
    /// the key as hit-for-miss, so that for a while its requests do not wait for each other. Not marked: what says nothing
    /// about the next response (an error of the origin, `…_no_cache`, a range that cannot be placed).
    Release { remember: bool },
    /// Store it.
    Store,
    /// Store it as a part.
    StorePart,
    /// Store it as the whole, though a range was asked for: the origin ignores ranges. Followers continue with it.
    StoreWhole,
    /// Remove what is stored, since this is another version, and store it; followers look up again.
    Replace,
}

/// Decides on a response that has been judged.
pub(super) fn on_judgement(
    judgement: ResponseJudgement,
    asked: FetchedCoverage,
    status: u16,
) -> StoreAction {
    let released = StoreAction::Release { remember: false };
    match (judgement, asked) {
        (ResponseJudgement::Unstorable { is_typical }, _) => StoreAction::Release {
            // A failing or overloaded origin says nothing about its normal responses, so the key is not marked.
            remember: is_typical && status < 500 && status != 429,
        },
        (ResponseJudgement::Storable(ReceivedContent::Nothing), _) => released,
        (ResponseJudgement::Storable(ReceivedContent::Part), _) => StoreAction::StorePart,
        // 416 is about the range. It is not what belongs under the key.
        (ResponseJudgement::Storable(ReceivedContent::Whole), FetchedCoverage::Range)
            if status == 416 =>
        {
            released
        }
        (ResponseJudgement::Storable(ReceivedContent::Whole), FetchedCoverage::Range) => {
            StoreAction::StoreWhole
        }
        (ResponseJudgement::Storable(ReceivedContent::Whole), FetchedCoverage::Missing) => {
            StoreAction::Replace
        }
        (ResponseJudgement::Storable(ReceivedContent::Whole), FetchedCoverage::Whole) => {
            StoreAction::Store
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, not_modified: NotModified, may_use_stale: bool) -> ResponseFacts {
        ResponseFacts {
            status,
            not_modified,
            may_use_stale,
            missing: MissingAnswer::NotAsked,
        }
    }

    #[test]
    fn heads_are_decided_row_by_row() {
        let plain = |status| head(status, NotModified::No, false);
        let missing = |status, missing| ResponseFacts {
            missing,
            ..plain(status)
        };
        let rows = [
            ("a response", plain(200), HeadAction::Judge),
            ("an error", plain(503), HeadAction::Judge),
            (
                "use_stale http_503",
                head(503, NotModified::No, true),
                HeadAction::UseStale,
            ),
            (
                "revalidate",
                head(304, NotModified::OfStored, false),
                HeadAction::Revalidate,
            ),
            (
                "RFC 9111, 4.3.4",
                head(304, NotModified::OfAnother, false),
                HeadAction::AskWithoutConditions,
            ),
            (
                "a 304 that was not asked for",
                plain(304),
                HeadAction::Judge,
            ),
            (
                "RFC 9111, 3.4: the part",
                missing(206, MissingAnswer::Fits),
                HeadAction::StoreMissing,
            ),
            (
                "another part",
                missing(206, MissingAnswer::Another),
                HeadAction::Discard,
            ),
            (
                "RFC 9110, 15.5.17: it is shorter now",
                missing(416, MissingAnswer::Another),
                HeadAction::Discard,
            ),
            (
                "RFC 9110, 13.1.5: another version, as a whole",
                missing(200, MissingAnswer::Another),
                HeadAction::Judge,
            ),
        ];
        for (rule, facts, action) in rows {
            assert_eq!(on_head(facts), action, "{rule}");
        }
    }

    #[test]
    fn judgements_are_carried_out_row_by_row() {
        use FetchedCoverage::{Missing, Range, Whole};
        let storable = ResponseJudgement::Storable;
        let unstorable = |is_typical| ResponseJudgement::Unstorable { is_typical };
        let release = |remember| StoreAction::Release { remember };
        let rows = [
            (
                storable(ReceivedContent::Whole),
                Whole,
                200,
                StoreAction::Store,
            ),
            (
                storable(ReceivedContent::Whole),
                Whole,
                404,
                StoreAction::Store,
            ),
            (
                storable(ReceivedContent::Whole),
                Whole,
                416,
                StoreAction::Store,
            ),
            (
                storable(ReceivedContent::Part),
                Range,
                206,
                StoreAction::StorePart,
            ),
            // The origin makes no ranges.
            (
                storable(ReceivedContent::Whole),
                Range,
                200,
                StoreAction::StoreWhole,
            ),
            (storable(ReceivedContent::Whole), Range, 416, release(false)),
            (
                storable(ReceivedContent::Nothing),
                Range,
                206,
                release(false),
            ),
            (
                storable(ReceivedContent::Nothing),
                Whole,
                206,
                release(false),
            ),
            (
                storable(ReceivedContent::Whole),
                Missing,
                200,
                StoreAction::Replace,
            ),
            // Cache-Control: private, Set-Cookie, …
            (unstorable(true), Whole, 200, release(true)),
            (unstorable(true), Range, 206, release(true)),
            (unstorable(true), Missing, 200, release(true)),
            // no_cache
            (unstorable(false), Whole, 200, release(false)),
            // It may be well again at the next request.
            (unstorable(true), Whole, 500, release(false)),
            (unstorable(true), Whole, 429, release(false)),
        ];
        for (judgement, asked, status, action) in rows {
            let row = format!("{judgement:?} {asked:?} {status}");
            assert_eq!(on_judgement(judgement, asked, status), action, "{row}");
        }
    }

    #[test]
    fn failures_are_bridged_or_stored_where_that_is_configured() {
        let settings = CacheSettings {
            valid: vec![(Some(502), 10), (Some(504), 0)],
            ..CacheSettings::default()
        };
        let any = CacheSettings {
            valid: vec![(None, 7)],
            ..CacheSettings::default()
        };
        let store = |seconds| FailureAction::StoreError { seconds };
        let rows = [
            (502, true, &settings, FailureAction::UseStale),
            (502, false, &settings, store(10)),
            (504, false, &settings, FailureAction::Fail),
            (504, false, &any, store(7)),
            // Not the origin's failure.
            (500, false, &any, FailureAction::Fail),
            (503, false, &any, FailureAction::Fail),
        ];
        for (status, may_use_stale, settings, action) in rows {
            let row = format!("{status} {may_use_stale}");
            assert_eq!(on_failure(status, may_use_stale, settings), action, "{row}");
        }
    }

    #[test]
    fn the_origins_word_bridges_silence_and_the_operators_bridges_all() {
        const LISTED: RetryReasons = RetryReasons::ERROR;
        const OTHER: RetryReasons = RetryReasons::TIMEOUT;
        let validate = |on_any_error, on_listed_error| ReuseDecision::Validate {
            on_any_error,
            on_listed_error,
            while_updating: false,
        };
        let rows = [
            // use_stale: the reasons that are listed, unless the origin forbids it.
            (validate(false, true), LISTED, true, true),
            (validate(false, true), LISTED, false, true),
            (validate(false, true), OTHER, true, false),
            (validate(false, false), LISTED, true, false),
            // RFC 5861, 4 (stale-if-error): no response at all, whatever the reason.
            (validate(true, false), OTHER, true, true),
            (validate(true, false), OTHER, false, false),
            (validate(true, false), RetryReasons::NONE, true, false),
            (ReuseDecision::WhileRevalidate, OTHER, true, true),
        ];
        for (reuse, reasons, is_silent, expected) in rows {
            let row = format!("{reuse:?} {reasons:?} {is_silent}");
            let may = may_use_stale(reuse, reasons, is_silent, LISTED);
            assert_eq!(may, expected, "{row}");
        }
    }
}
