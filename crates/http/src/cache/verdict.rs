//! What becomes of a fetch, by what the origin answered: two tables, without I/O, clock or store.
//!
//! ```text
//! no response ── on_failure
//! head ── on_head ─┬─ done: the stale object is renewed or served, a missing part goes into its place
//!                  └─ judge ── on_judgement ─┬─ stored
//!                                            └─ released: for one client alone
//! ```

use proto::caching::Reuse;

use super::settings::Settings;
use crate::upstream::RetryReasons;

/// What the head of a response says, beside what it is judged by for storing.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadFacts {
    pub(super) status: u16,
    pub(super) not_modified: NotModified,
    /// The stale object may be served in place of a response with this status.
    pub(super) may_use_stale: bool,
    pub(super) missing: MissingAnswer,
}

/// Whether a response answers the validators that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotModified {
    /// It is no 304, or nothing was sent that it could be about.
    No,
    /// 304, about the object that is stored.
    OfStored,
    /// 304, about something else: its validators are not those of the object (RFC 9111, section 4.3.4).
    OfAnother,
}

/// What a response is to the missing part that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingAnswer {
    /// No missing part was asked for.
    NotAsked,
    /// It is that part, of the version that is stored.
    Fits,
    /// It is something else.
    Another,
}

/// What is done at the head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadAction {
    /// The stale object is fresh again; followers serve it.
    Revalidate,
    /// The origin is asked again, without conditions.
    AskWithoutConditions,
    /// Followers serve the stale object.
    UseStale,
    /// The part goes to where it was missing.
    StoreMissing,
    /// What is stored is not what the origin has: it goes, and followers look again.
    Discard,
    /// Whether it is stored depends on what it says of that.
    Judge,
}

/// The table for the head of a response.
pub(super) fn on_head(facts: HeadFacts) -> HeadAction {
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
        // Another part, or none: the origin takes its own validator for another version.
        (MissingAnswer::Another, 206 | 416) => HeadAction::Discard,
        (MissingAnswer::Another | MissingAnswer::NotAsked, _) => HeadAction::Judge,
    }
}

/// Whether a stale object may be served for these reasons. `is_silent`: there is no response at all.
pub(super) fn may_use_stale(
    reuse: Reuse,
    reasons: RetryReasons,
    is_silent: bool,
    use_stale: RetryReasons,
) -> bool {
    let (by_origin, by_operator) = match reuse {
        Reuse::Validate {
            on_any_error,
            on_listed_error,
            ..
        } => (on_any_error, on_listed_error),
        Reuse::WhileRevalidate | Reuse::Fresh => (true, true),
    };
    // As in nginx, what the origin allows counts when it is not there, not when it says that it has failed.
    by_origin && is_silent && !reasons.is_empty() || by_operator && use_stale.permits_any(reasons)
}

/// What is done when there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// Followers serve the stale object.
    UseStale,
    /// The failure is stored as a response, because `…_cache_valid` names its status.
    StoreError {
        /// How long no request asks the origin.
        seconds: u32,
    },
    /// Followers answer with the status.
    Fail,
}

/// The table for an exchange without a response.
pub(super) fn on_failure(status: u16, may_use_stale: bool, settings: &Settings) -> FailureAction {
    match settings.valid_s(status) {
        _ if may_use_stale => FailureAction::UseStale,
        // Other statuses are of this server: it did not come to ask.
        Some(seconds) if seconds > 0 && matches!(status, 502 | 504) => {
            FailureAction::StoreError { seconds }
        }
        _ => FailureAction::Fail,
    }
}

/// Whether a response may be stored, and what it brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is for its own client alone. `is_typical`: so will be the others of the key, as far as it tells.
    Unstorable { is_typical: bool },
    /// It may be stored.
    Storable(Brought),
}

/// What a response brings of what stands under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// It is what stands there, whatever its status.
    Whole,
    /// A part of the content.
    Part,
    /// A part that was not asked for, or is not the one that was, or that does not say where it belongs.
    Nothing,
}

/// What the fetch asked the origin for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedFor {
    /// The whole response.
    Whole,
    /// The range that a client wants.
    Range,
    /// A part that is missing of a stored object.
    Missing,
}

/// What is done with a response that was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreAction {
    /// The exchange goes to the client that began, the others ask for themselves. `remember`: for a while the requests of
    /// the key do not wait for each other (hit-for-miss).
    Release { remember: bool },
    /// It is stored.
    Store,
    /// It is stored as a part of what stands under the key.
    StorePart,
    /// It is stored as the whole, though a range was asked for: the origin makes none. Followers go on with that.
    StoreWhole,
    /// It is another version: what was stored goes, it is stored, and followers look again.
    Replace,
}

/// The table for a response that was judged.
pub(super) fn on_judgement(judgement: Judgement, asked: AskedFor, status: u16) -> StoreAction {
    let released = StoreAction::Release { remember: false };
    match (judgement, asked) {
        (Judgement::Unstorable { is_typical }, _) => StoreAction::Release {
            // An origin that fails says nothing of what it will say when it is well.
            remember: is_typical && status < 500 && status != 429,
        },
        (Judgement::Storable(Brought::Nothing), _) => released,
        (Judgement::Storable(Brought::Part), _) => StoreAction::StorePart,
        // It says that the range does not exist, not what stands under the key.
        (Judgement::Storable(Brought::Whole), AskedFor::Range) if status == 416 => released,
        (Judgement::Storable(Brought::Whole), AskedFor::Range) => StoreAction::StoreWhole,
        (Judgement::Storable(Brought::Whole), AskedFor::Missing) => StoreAction::Replace,
        (Judgement::Storable(Brought::Whole), AskedFor::Whole) => StoreAction::Store,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, not_modified: NotModified, may_use_stale: bool) -> HeadFacts {
        HeadFacts {
            status,
            not_modified,
            may_use_stale,
            missing: MissingAnswer::NotAsked,
        }
    }

    #[test]
    fn heads_are_decided_row_by_row() {
        let plain = |status| head(status, NotModified::No, false);
        let missing = |status, missing| HeadFacts {
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
        use AskedFor::{Missing, Range, Whole};
        let storable = Judgement::Storable;
        let unstorable = |is_typical| Judgement::Unstorable { is_typical };
        let release = |remember| StoreAction::Release { remember };
        let rows = [
            (storable(Brought::Whole), Whole, 200, StoreAction::Store),
            (storable(Brought::Whole), Whole, 404, StoreAction::Store),
            (storable(Brought::Whole), Whole, 416, StoreAction::Store),
            (storable(Brought::Part), Range, 206, StoreAction::StorePart),
            // The origin makes no ranges.
            (
                storable(Brought::Whole),
                Range,
                200,
                StoreAction::StoreWhole,
            ),
            (storable(Brought::Whole), Range, 416, release(false)),
            (storable(Brought::Nothing), Range, 206, release(false)),
            (storable(Brought::Nothing), Whole, 206, release(false)),
            (storable(Brought::Whole), Missing, 200, StoreAction::Replace),
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
        let settings = Settings {
            valid: vec![(Some(502), 10), (Some(504), 0)],
            ..Settings::default()
        };
        let any = Settings {
            valid: vec![(None, 7)],
            ..Settings::default()
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
        let validate = |on_any_error, on_listed_error| Reuse::Validate {
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
            (Reuse::WhileRevalidate, OTHER, true, true),
        ];
        for (reuse, reasons, is_silent, expected) in rows {
            let row = format!("{reuse:?} {reasons:?} {is_silent}");
            let may = may_use_stale(reuse, reasons, is_silent, LISTED);
            assert_eq!(may, expected, "{row}");
        }
    }
}
