//! Balances the work between loops, of which the number of connections says little: twenty clients
//! of a popular file may be on one loop, and twenty that wait for a disk on another.
//!
//! The measure is the time in which a loop does not wait for events. If one was clearly busier than
//! the least busy one, it begins to count the work of each connection. If it still is at the next
//! check, connections with about half of the difference move to the other loop, each at the end of
//! a request.

use std::time::Duration;

use host::loop_slots::LoopSlots;

use super::LoopActions;

/// A loop that is busy for less than this part of the time serves everyone soon enough.
const BUSY: f64 = 0.5;
/// The difference that is tolerated, as a part of the time.
const GAP: f64 = 0.25;
/// The number of checks that are skipped after connections have moved: their requests have to end
/// before the effect shows.
const PAUSE_AFTER_MOVE: u32 = 3;

/// The state between two checks.
#[derive(Default)]
pub(super) struct WorkBalance {
    /// The time each loop had been busy, by the number of its slot.
    before: Vec<(u64, Duration)>,
    /// The loop that was too busy at the last check, and has been counting since.
    counting: Option<u64>,
    /// How many checks are still skipped.
    pause_left: u32,
}

/// The next step, with the numbers of slots.
#[derive(Debug, PartialEq)]
enum BalanceStep {
    /// Have the busy loop count what its connections cause.
    Count { busy: u64 },
    /// Have it move connections that cause this part of its work.
    Move { part: f64, busy: u64, calm: u64 },
}

impl WorkBalance {
    /// Checks the work of the loops during `passed`, the time since the last check.
    pub(super) fn balance(&mut self, loop_slots: &LoopSlots, passed: Duration, help: LoopActions) {
        let shares = self.shares(loop_slots, passed);
        let of = |id| loop_slots.list.iter().find(|loop_slot| loop_slot.id == id);
        // A loop that has ended takes no message, and has nothing to move.
        match self.next_step(&shares) {
            Some(BalanceStep::Count { busy }) => {
                let _ = of(busy).map(|busy| busy.handle().post(help.count_work));
            }
            Some(BalanceStep::Move { part, busy, calm }) => {
                let loop_slots = loop_slots.clone();
                let shed = move || (help.move_work)(part, calm, loop_slots);
                let _ = of(busy).map(|busy| busy.handle().post(shed));
            }
            None => {}
        }
    }

    /// The part of the time in which each loop was busy, of those that were there at the last
    /// check.
    fn shares(&mut self, loop_slots: &LoopSlots, passed: Duration) -> Vec<(u64, f64)> {
        let (mut now, mut shares) = (Vec::new(), Vec::new());
        for loop_slot in loop_slots.list.iter() {
            let busy = loop_slot.handle().busy_time();
            if let Some((_, before)) = self.before.iter().find(|(id, _)| *id == loop_slot.id) {
                // The sum has completed iterations only; the current one is added.
                let time = busy.saturating_sub(*before) + loop_slot.handle().turn_duration();
                shares.push((loop_slot.id, time.as_secs_f64() / passed.as_secs_f64()));
            }
            now.push((loop_slot.id, busy));
        }
        self.before = now;
        shares
    }

    /// Decides by the shares of busy time. It takes two checks in a row to move anything: one busy
    /// moment is no imbalance, and the work per connection must have been counted.
    fn next_step(&mut self, shares: &[(u64, f64)]) -> Option<BalanceStep> {
        let counting = self.counting.take();
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return None;
        }
        // An iteration that began before the last check would count more than the whole time.
        let shares = || shares.iter().map(|(id, share)| (*id, share.min(1.0)));
        let (busy, most) = shares().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let (calm, least) = shares().min_by(|a, b| a.1.total_cmp(&b.1))?;
        if most < BUSY || most - least < GAP {
            return None;
        }
        if counting != Some(busy) {
            self.counting = Some(busy);
            return Some(BalanceStep::Count { busy });
        }
        self.pause_left = PAUSE_AFTER_MOVE;
        // Half of the difference, as a part of the busy loop's work: then both are equally busy.
        let part = (most - least) / 2.0 / most;
        Some(BalanceStep::Move { part, busy, calm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stays_the_busiest_moves_half_of_what_it_does_more() {
        let mut work = WorkBalance::default();
        assert_eq!(work.next_step(&[]), None);
        assert_eq!(work.next_step(&[(1, 0.9), (2, 0.7)]), None);
        assert_eq!(work.next_step(&[(1, 0.45), (2, 0.0)]), None);
        let uneven = [(1, 0.1), (2, 1.7), (3, 0.2)];
        assert_eq!(
            work.next_step(&uneven),
            Some(BalanceStep::Count { busy: 2 })
        );
        let moved = BalanceStep::Move {
            part: 0.45,
            busy: 2,
            calm: 1,
        };
        assert_eq!(work.next_step(&uneven), Some(moved));
        for _ in 0..PAUSE_AFTER_MOVE {
            assert_eq!(work.next_step(&uneven), None);
        }
        assert_eq!(
            work.next_step(&uneven),
            Some(BalanceStep::Count { busy: 2 })
        );
    }

    #[test]
    fn a_moment_of_work_moves_nothing() {
        let mut work = WorkBalance::default();
        for _ in 0..3 {
            let busy = [(1, 0.9), (2, 0.1)];
            assert_eq!(work.next_step(&busy), Some(BalanceStep::Count { busy: 1 }));
            assert_eq!(work.next_step(&[(1, 0.2), (2, 0.1)]), None);
        }
        let other = [(1, 0.1), (2, 0.9)];
        assert!(matches!(
            work.next_step(&other),
            Some(BalanceStep::Count { busy: 2 })
        ));
    }
}
