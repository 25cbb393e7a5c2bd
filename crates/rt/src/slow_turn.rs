//! What held a loop, as the loop itself tells it.
//!
//! A stack names functions; it does not name the request. What may compute for long (a pattern, a script, a handler)
//! looks at one word when it is done: [`loop_is_late`], which the watchdog sets while some loop is late. Only then it
//! says what it was ([`crate::suspect`]), and on a loop that is not late that is ignored. What is said until a request has been named
//! belongs to that request; the rest of the turn serves others, who are not to blame.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The watchdog has found a loop late, and it has not recovered.
static LATE: AtomicBool = AtomicBool::new(false);

/// How many suspects a turn can have. More would not be read.
const MAX_SUSPECTS: usize = 4;

/// A turn that took longer than the loop's limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowTurn {
    /// Its number.
    pub turn: u64,
    /// How long it took.
    pub took: Duration,
    /// The longest measured stretch of it, ...
    pub stretch: Duration,
    /// ... and the names of the tasks that were polled in that stretch: one, usually.
    pub tasks: Vec<&'static str>,
    /// What the loop was doing, in words: a pattern, a script, a request. Empty if nobody said.
    pub suspects: Vec<String>,
}

/// The slow turns of a loop since the last question.
#[derive(Clone, Debug, Default)]
pub struct SlowTurns {
    /// How many there were.
    pub count: u64,
    /// The longest one.
    pub worst: SlowTurn,
}

impl SlowTurns {
    /// Adds one.
    pub(crate) fn add(&mut self, slow: SlowTurn) {
        self.count += 1;
        if slow.took > self.worst.took {
            self.worst = slow;
        }
    }
}

/// What is named as the cause of a late turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspectKind {
    /// Something within a request, such as a pattern or a script.
    Part,
    /// The request, or whatever else is served.
    Whole,
}

/// What has been said in a turn.
#[derive(Default)]
struct TurnSuspects {
    turn: u64,
    texts: Vec<String>,
    /// The one to blame has been named.
    is_complete: bool,
}

thread_local! {
    static SUSPECTS: RefCell<TurnSuspects> = const {
        RefCell::new(TurnSuspects { turn: 0, texts: Vec::new(), is_complete: false })
    };
}

/// Whether some loop is late. Asked after what may have held a loop; then [`crate::suspect`].
#[inline(always)]
pub fn loop_is_late() -> bool {
    LATE.load(Relaxed)
}

/// Says whether some loop is late: for the watching thread.
pub fn say_late(late: bool) {
    if LATE.load(Relaxed) != late {
        LATE.store(late, Relaxed);
    }
}

/// Notes what this thread's loop has been doing in the turn of this number, which is late.
pub(crate) fn note_suspect(turn: u64, kind: SuspectKind, text: impl FnOnce() -> String) {
    SUSPECTS.with_borrow_mut(|said| {
        if said.turn != turn {
            *said = TurnSuspects {
                turn,
                ..TurnSuspects::default()
            };
        }
        if said.is_complete || said.texts.len() >= MAX_SUSPECTS {
            return;
        }
        said.texts.push(text());
        said.is_complete = kind == SuspectKind::Whole;
    });
}

/// What was said in the turn of this number, on this thread.
pub(crate) fn take_suspects(turn: u64) -> Vec<String> {
    SUSPECTS.with_borrow_mut(|said| match said.turn == turn {
        true => std::mem::take(&mut said.texts),
        false => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_turn_is_remembered_and_all_are_counted() {
        let mut turns = SlowTurns::default();
        for (turn, millis) in [(1, 10), (2, 3000), (3, 40)] {
            turns.add(SlowTurn {
                turn,
                took: Duration::from_millis(millis),
                ..SlowTurn::default()
            });
        }
        assert_eq!((turns.count, turns.worst.turn), (3, 2));
    }
}
