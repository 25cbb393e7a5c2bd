//! Which servers repeat a name in the very letters in which it was asked for.
//!
//! Nearly all do; a few write it in small letters, and a few compare names byte for byte, against RFC 4343, and know
//! nothing by a name with capitals. Each is found out at the first question, and asked in small letters from then on:
//! as nginx asks, with no less safety than that.
//!
//! ```text
//! Unknown ── an answer with the letters as they were asked, and something in it ──▶ Kept
//!    │  the same, but there is no such name: asked again in small letters; if there is one then ──▶ NotKept
//!    │  other letters, and the same by TCP, which nobody can forge from afar ──▶ NotKept
//!    ╰─ other letters MAX_OTHER_CASE times, from a server without TCP ──▶ NotKept
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

use super::message::Answer;

/// So often must a server that does not speak TCP answer in other letters. Each time is a question with a port, a number
/// and letters of its own, of which a forger would have to guess the first two.
const MAX_OTHER_CASE: u8 = 3;

const UNKNOWN: u8 = 0;
/// From 1 to this: so many answers in other letters, and nothing else yet.
const COUNTED: u8 = MAX_OTHER_CASE - 1;
const KEPT: u8 = 100;
const NOT_KEPT: u8 = 101;

/// What is known of each server of a resolver, by its number there.
pub(super) struct Cases(Vec<AtomicU8>);

/// How a question was asked whose answer is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// In letters chosen by lot, which the answer repeats.
    Randomly,
    /// In small letters, after there was nothing by a name with capitals.
    Again,
    /// In small letters for another reason: the server was silent, or the letters were others.
    Plainly,
}

/// What to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Take it.
    Good,
    /// It may be nothing but the capitals that the server does not know.
    AskInLowerCase,
}

impl Cases {
    /// Nothing is known of so many servers.
    pub(super) fn new(servers: usize) -> Cases {
        Cases((0..servers).map(|_| AtomicU8::new(UNKNOWN)).collect())
    }

    fn state(&self, server: usize) -> u8 {
        self.0[server].load(Ordering::Relaxed)
    }

    /// Is it known to repeat names as they are?
    pub(super) fn is_kept(&self, server: usize) -> bool {
        self.state(server) == KEPT
    }

    /// Is it known not to?
    pub(super) fn is_not_kept(&self, server: usize) -> bool {
        self.state(server) == NOT_KEPT
    }

    /// Shall the letters of a question be chosen by lot? After `silence` only where they are known not to be its reason.
    pub(super) fn asks_randomly(&self, server: usize, silence: bool) -> bool {
        match self.state(server) {
            KEPT => true,
            NOT_KEPT => false,
            _ => !silence,
        }
    }

    /// Proven to write names in other letters.
    pub(super) fn note_not_kept(&self, server: usize) {
        self.0[server].store(NOT_KEPT, Ordering::Relaxed);
    }

    /// Something came in other letters that may be from the server.
    pub(super) fn note_other_case(&self, server: usize) {
        let next = |state| match state {
            KEPT | NOT_KEPT => None,
            COUNTED.. => Some(NOT_KEPT),
            count => Some(count + 1),
        };
        // An error says that there was nothing to change.
        let _ = self.0[server].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Takes note of an answer.
    pub(super) fn judge(&self, server: usize, asked: Asked, answer: &Answer) -> Verdict {
        let state = self.state(server);
        if state == KEPT || state == NOT_KEPT {
            return Verdict::Good;
        }
        match (asked, answer.has_records()) {
            (Asked::Randomly, true) => self.0[server].store(KEPT, Ordering::Relaxed),
            // No such name, no such record, or none of the server's names.
            (Asked::Randomly, false) if matches!(answer.code, 0 | 3 | 5) => {
                return Verdict::AskInLowerCase;
            }
            (Asked::Again, true) => self.note_not_kept(server),
            // It was silent before: by chance, or each time.
            (Asked::Plainly, true) => self.note_other_case(server),
            (_, false) => {}
        }
        Verdict::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u8, records: bool) -> Answer {
        let addresses = records.then(|| std::net::IpAddr::from([127, 0, 0, 1]));
        Answer {
            code,
            addresses: addresses.into_iter().collect(),
            ..Answer::default()
        }
    }

    #[test]
    fn a_server_without_tcp_is_believed_after_a_few_answers() {
        let cases = Cases::new(1);
        for _ in 1..MAX_OTHER_CASE {
            cases.note_other_case(0);
            assert!(cases.asks_randomly(0, false));
        }
        cases.note_other_case(0);
        assert!(!cases.asks_randomly(0, false));
    }

    #[test]
    fn one_that_keeps_the_case_stays_so() {
        let cases = Cases::new(2);
        assert_eq!(
            cases.judge(1, Asked::Randomly, &answer(0, true)),
            Verdict::Good
        );
        assert!(cases.is_kept(1) && !cases.is_kept(0));
        (0..9).for_each(|_| cases.note_other_case(1));
        assert!(cases.asks_randomly(1, true) && !cases.asks_randomly(0, true));
        assert_eq!(
            cases.judge(1, Asked::Randomly, &answer(3, false)),
            Verdict::Good
        );
    }

    #[test]
    fn a_name_that_is_there_in_small_letters_only_is_found() {
        let cases = Cases::new(1);
        assert_eq!(
            cases.judge(0, Asked::Randomly, &answer(3, false)),
            Verdict::AskInLowerCase
        );
        assert_eq!(
            cases.judge(0, Asked::Again, &answer(3, false)),
            Verdict::Good
        );
        assert!(cases.asks_randomly(0, false), "nothing is known yet");
        assert_eq!(
            cases.judge(0, Asked::Randomly, &answer(2, false)),
            Verdict::Good,
            "a failure is one"
        );
        assert_eq!(
            cases.judge(0, Asked::Again, &answer(0, true)),
            Verdict::Good
        );
        assert!(!cases.asks_randomly(0, false));
    }
}
