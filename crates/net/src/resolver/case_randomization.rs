//! Which DNS servers repeat a name in the exact letters of the query.
//!
//! Nearly all do. A few answer in lower case. A few compare names byte by byte, against RFC 4343, and find nothing
//! under a name in mixed case. Each kind is detected at the first question and then asked in lower case, which is
//! how nginx always asks, so it is no less safe than nginx.
//!
//! ```text
//! Unknown ── an answer with the letters as they were asked, and something in it ──▶ Kept
//!    │  the same, but there is no such name: asked again in small letters; if there is one then ──▶ NotKept
//!    │  other letters, and the same over TCP, which is hard to forge ──▶ NotKept
//!    ╰─ other letters MAX_OTHER_CASE times, from a server without TCP ──▶ NotKept
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

use super::message::DnsAnswer;

/// How many answers in other letters show that a server without TCP does not keep the case. Each of them matched a
/// query with its own random port and number, which a forger would have had to guess every time.
const MAX_OTHER_CASE: u8 = 3;

const UNKNOWN: u8 = 0;
/// States from 1 to this count answers in other letters, when nothing else is known yet.
const COUNTED: u8 = MAX_OTHER_CASE - 1;
const KEPT: u8 = 100;
const NOT_KEPT: u8 = 101;

/// The state of each server of a resolver, by its number there. Atomics, because all loops share a resolver; a lost
/// update costs one more question.
pub(super) struct ServerCaseSupport(Vec<AtomicU8>);

/// In which letters the question was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryCase {
    /// In random letters, which the answer repeats.
    Randomly,
    /// In lower case, because there was nothing under the name in mixed case.
    Again,
    /// In lower case for another reason: the server was silent, or it is known not to keep the case.
    Plainly,
}

/// What to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaseVerdict {
    /// Use it.
    Good,
    /// "No such name" may only mean that the server does not match upper case: ask again in lower case.
    AskInLowerCase,
}

impl ServerCaseSupport {
    /// Nothing is known yet about this number of servers.
    pub(super) fn new(servers: usize) -> ServerCaseSupport {
        ServerCaseSupport((0..servers).map(|_| AtomicU8::new(UNKNOWN)).collect())
    }

    fn state(&self, server: usize) -> u8 {
        self.0[server].load(Ordering::Relaxed)
    }

    /// Whether the server is known to repeat names exactly.
    pub(super) fn is_kept(&self, server: usize) -> bool {
        self.state(server) == KEPT
    }

    /// Whether the server is known not to.
    pub(super) fn is_not_kept(&self, server: usize) -> bool {
        self.state(server) == NOT_KEPT
    }

    /// Whether to ask in random letters. After `silence` only if the server is known to handle them: an unknown one
    /// may drop such queries.
    pub(super) fn asks_randomly(&self, server: usize, silence: bool) -> bool {
        match self.state(server) {
            KEPT => true,
            NOT_KEPT => false,
            _ => !silence,
        }
    }

    /// The server was proven, over TCP, to answer in other letters.
    pub(super) fn note_not_kept(&self, server: usize) {
        self.0[server].store(NOT_KEPT, Ordering::Relaxed);
    }

    /// An answer in other letters came, which may or may not be the server's.
    pub(super) fn note_other_case(&self, server: usize) {
        let next = |state| match state {
            KEPT | NOT_KEPT => None,
            COUNTED.. => Some(NOT_KEPT),
            count => Some(count + 1),
        };
        // An error means that the state is final and stays.
        let _ = self.0[server].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Learns from an answer, and decides whether it can be used.
    pub(super) fn judge_answer(
        &self,
        server: usize,
        case: QueryCase,
        answer: &DnsAnswer,
    ) -> CaseVerdict {
        let state = self.state(server);
        if state == KEPT || state == NOT_KEPT {
            return CaseVerdict::Good;
        }
        match (case, answer.has_records()) {
            (QueryCase::Randomly, true) => self.0[server].store(KEPT, Ordering::Relaxed),
            // Response codes 0 (no such record), 3 (no such name) and 5 (refused: not one of its zones): what a
            // server says that does not recognize the name in mixed case.
            (QueryCase::Randomly, false) if matches!(answer.code, 0 | 3 | 5) => {
                return CaseVerdict::AskInLowerCase;
            }
            (QueryCase::Again, true) => self.note_not_kept(server),
            // The earlier silence was chance or is its answer to mixed case: only repetition tells.
            (QueryCase::Plainly, true) => self.note_other_case(server),
            (_, false) => {}
        }
        CaseVerdict::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u8, records: bool) -> DnsAnswer {
        let addresses = records.then(|| std::net::IpAddr::from([127, 0, 0, 1]));
        DnsAnswer {
            code,
            addresses: addresses.into_iter().collect(),
            ..DnsAnswer::default()
        }
    }

    #[test]
    fn a_server_without_tcp_is_believed_after_a_few_answers() {
        let cases = ServerCaseSupport::new(1);
        for _ in 1..MAX_OTHER_CASE {
            cases.note_other_case(0);
            assert!(cases.asks_randomly(0, false));
        }
        cases.note_other_case(0);
        assert!(!cases.asks_randomly(0, false));
    }

    #[test]
    fn one_that_keeps_the_case_stays_so() {
        let cases = ServerCaseSupport::new(2);
        assert_eq!(
            cases.judge_answer(1, QueryCase::Randomly, &answer(0, true)),
            CaseVerdict::Good
        );
        assert!(cases.is_kept(1) && !cases.is_kept(0));
        (0..9).for_each(|_| cases.note_other_case(1));
        assert!(cases.asks_randomly(1, true) && !cases.asks_randomly(0, true));
        assert_eq!(
            cases.judge_answer(1, QueryCase::Randomly, &answer(3, false)),
            CaseVerdict::Good
        );
    }

    #[test]
    fn a_name_that_is_there_in_small_letters_only_is_found() {
        let cases = ServerCaseSupport::new(1);
        assert_eq!(
            cases.judge_answer(0, QueryCase::Randomly, &answer(3, false)),
            CaseVerdict::AskInLowerCase
        );
        assert_eq!(
            cases.judge_answer(0, QueryCase::Again, &answer(3, false)),
            CaseVerdict::Good
        );
        assert!(cases.asks_randomly(0, false), "nothing is known yet");
        assert_eq!(
            cases.judge_answer(0, QueryCase::Randomly, &answer(2, false)),
            CaseVerdict::Good,
            "a failure is one"
        );
        assert_eq!(
            cases.judge_answer(0, QueryCase::Again, &answer(0, true)),
            CaseVerdict::Good
        );
        assert!(!cases.asks_randomly(0, false));
    }
}
