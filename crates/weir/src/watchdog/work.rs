//! Loops even out what their connections make them do, which the number of connections does not tell: twenty clients of one
//! hot file may have come to one loop, and twenty that wait for a disk to the other.
//!
//! The measure is the time that a loop does not wait for events. When one was clearly busier than the least busy one, it
//! counts for a while what each connection makes it do; when it still is, connections with about half of the difference
//! leave for the other, each at the end of a request.

use std::time::Duration;

use rt::seats::Seats;

use super::Help;

/// A loop that is busy for less than this part of the time serves everybody soon enough.
const BUSY: f64 = 0.5;
/// Loops may differ by this part of the time.
const GAP: f64 = 0.25;
/// After some have left, so many looks are left out: requests have to end before what was done shows.
const REST: u32 = 3;

/// What was seen at the last look.
#[derive(Default)]
pub(super) struct Work {
    /// How long each loop had been busy, by the id of its seat.
    before: Vec<(u64, Duration)>,
    /// The loop that was too busy then, and counts since.
    counting: Option<u64>,
    rest: u32,
}

/// What is to be done, by the ids of seats.
#[derive(Debug, PartialEq)]
enum Step {
    Count { busy: u64 },
    Move { part: f64, busy: u64, calm: u64 },
}

impl Work {
    /// Looks at what loops did for `passed`, the time since the last look.
    pub(super) fn balance(&mut self, seats: &Seats, passed: Duration, help: Help) {
        let shares = self.shares(seats, passed);
        let of = |id| seats.list.iter().find(|seat| seat.id == id);
        // A loop that has ended takes no message, and has nothing to give.
        match self.step(&shares) {
            Some(Step::Count { busy }) => {
                let _ = of(busy).map(|busy| busy.handle().post(help.note_work));
            }
            Some(Step::Move { part, busy, calm }) => {
                let seats = seats.clone();
                let shed = move || (help.shed_work)(part, calm, seats);
                let _ = of(busy).map(|busy| busy.handle().post(shed));
            }
            None => {}
        }
    }

    /// For which part of the time each loop was busy, of those that were there before.
    fn shares(&mut self, seats: &Seats, passed: Duration) -> Vec<(u64, f64)> {
        let (mut now, mut shares) = (Vec::new(), Vec::new());
        for seat in seats.list.iter() {
            let busy = seat.handle().busy();
            if let Some((_, before)) = self.before.iter().find(|(id, _)| *id == seat.id) {
                // The present turn is not among those that have ended.
                let time = busy.saturating_sub(*before) + seat.handle().late();
                shares.push((seat.id, time.as_secs_f64() / passed.as_secs_f64()));
            }
            now.push((seat.id, busy));
        }
        self.before = now;
        shares
    }

    fn step(&mut self, shares: &[(u64, f64)]) -> Option<Step> {
        let counting = self.counting.take();
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        // What a long turn did before the last look counts now.
        let shares = || shares.iter().map(|(id, share)| (*id, share.min(1.0)));
        let (busy, most) = shares().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let (calm, least) = shares().min_by(|a, b| a.1.total_cmp(&b.1))?;
        if most < BUSY || most - least < GAP {
            return None;
        }
        if counting != Some(busy) {
            self.counting = Some(busy);
            return Some(Step::Count { busy });
        }
        self.rest = REST;
        let part = (most - least) / 2.0 / most;
        Some(Step::Move { part, busy, calm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stays_the_busiest_moves_half_of_what_it_does_more() {
        let mut work = Work::default();
        assert_eq!(work.step(&[]), None);
        assert_eq!(work.step(&[(1, 0.9), (2, 0.7)]), None);
        assert_eq!(work.step(&[(1, 0.45), (2, 0.0)]), None);
        let uneven = [(1, 0.1), (2, 1.7), (3, 0.2)];
        assert_eq!(work.step(&uneven), Some(Step::Count { busy: 2 }));
        let moved = Step::Move {
            part: 0.45,
            busy: 2,
            calm: 1,
        };
        assert_eq!(work.step(&uneven), Some(moved));
        for _ in 0..REST {
            assert_eq!(work.step(&uneven), None);
        }
        assert_eq!(work.step(&uneven), Some(Step::Count { busy: 2 }));
    }

    #[test]
    fn a_moment_of_work_moves_nothing() {
        let mut work = Work::default();
        for _ in 0..3 {
            let busy = [(1, 0.9), (2, 0.1)];
            assert_eq!(work.step(&busy), Some(Step::Count { busy: 1 }));
            assert_eq!(work.step(&[(1, 0.2), (2, 0.1)]), None);
        }
        let other = [(1, 0.1), (2, 0.9)];
        assert!(matches!(work.step(&other), Some(Step::Count { busy: 2 })));
    }
}
