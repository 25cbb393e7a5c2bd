//! A thread that looks after the loops: one that is late gets help, and connections that have come to
//! be unevenly spread are moved.
//!
//! A loop is late when its present turn has lasted longer than `slow_turn`. Its clients have to wait,
//! but nobody else should: another loop takes what was left for it and accepts from its sockets until
//! it is well again, and the log is told what it is stuck in.
//!
//! The thread looks twice in the time that makes a loop late, and sleeps while all loops do.

mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rt::report::Event;
use rt::seats::{Seat, Seats};
use work::Work;

/// A machine that is short of processors makes loops late all the time; their stacks say little then.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Looks without any loop at work before the thread goes to sleep.
const QUIET_LOOKS: u32 = 20;
/// How often the spread of connections is looked at.
const BALANCE_EVERY: Duration = Duration::from_millis(250);
/// Loops may differ by a share of this size (a tenth) and [`BALANCE_SLACK`] connections.
const BALANCE_SHARE: usize = 20;
const BALANCE_SLACK: usize = 2;
/// Connections that are moved from one loop at once.
const BALANCE_BATCH: usize = 256;

/// What the thread works on.
#[derive(Default)]
struct State {
    seats: Seats,
    /// Zero: loops are never late.
    limit: Duration,
}

/// The thread, for as long as this value lives.
pub(crate) struct Watchdog(Arc<Mutex<State>>);

/// What a loop does when it is asked.
#[derive(Clone, Copy)]
pub(crate) struct Help {
    /// Serve for this loop while it is late by so much.
    pub(crate) rescue: fn(Arc<Seat>, Duration),
    /// Move so many connections to other loops.
    pub(crate) shed: fn(usize, Seats),
    /// Count what each connection makes the loop do.
    pub(crate) note_work: fn(),
    /// Move connections that do this part of it to the loop with this seat.
    pub(crate) shed_work: fn(f64, u64, Seats),
}

impl Watchdog {
    /// Starts the thread. Errors: no more threads.
    pub(crate) fn start(help: Help) -> std::io::Result<Watchdog> {
        let state = Arc::new(Mutex::new(State::default()));
        let watched = Arc::downgrade(&state);
        std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || watch(&watched, help))?;
        Ok(Watchdog(state))
    }

    /// Other loops, or another limit.
    pub(crate) fn set(&self, seats: &Seats, limit: Duration) {
        let mut state = lock(&self.0);
        state.seats = seats.clone();
        state.limit = limit;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn that lasts too long, and who helps.
struct Stall {
    seat: u64,
    turn: u64,
    buddy: u64,
}

fn watch(state: &Weak<Mutex<State>>, help: Help) {
    let mut stalls: Vec<Stall> = Vec::new();
    let mut told = None;
    let mut quiet = 0;
    let mut balanced = Instant::now();
    let mut work = Work::default();
    while let Some(shared) = state.upgrade() {
        let (seats, limit) = {
            let state = lock(&shared);
            (state.seats.clone(), state.limit)
        };
        // Not held while the thread sleeps, or it would never end.
        drop(shared);
        if !limit.is_zero() {
            help_late_ones(&seats, limit, &mut stalls, &mut told, help);
        }
        let passed = balanced.elapsed();
        if passed >= BALANCE_EVERY {
            balanced = Instant::now();
            balance(&seats, help);
            work.balance(&seats, passed, help);
        }
        let all_parked = seats.list.iter().all(|seat| seat.handle().is_parked());
        quiet = if all_parked { quiet + 1 } else { 0 };
        if quiet > QUIET_LOOKS {
            // Once more after this time, for a balance that was not looked at in between.
            rt::stall::doze();
        } else {
            std::thread::sleep(pause(limit));
        }
    }
}

fn pause(limit: Duration) -> Duration {
    match limit.is_zero() {
        true => BALANCE_EVERY,
        false => (limit / 2).clamp(Duration::from_millis(1), BALANCE_EVERY),
    }
}

fn help_late_ones(
    seats: &Seats,
    limit: Duration,
    stalls: &mut Vec<Stall>,
    told: &mut Option<Instant>,
    help: Help,
) {
    for seat in seats.list.iter() {
        let turn = seat.handle().turn();
        let late = seat.handle().late();
        let known = stalls.iter().position(|stall| stall.seat == seat.id);
        if late < limit {
            if let Some(known) = known {
                stalls.swap_remove(known);
            }
            continue;
        }
        let same = known.filter(|known| stalls[*known].turn == turn);
        if same.is_none() {
            tell(seat, turn, late, told);
        }
        // A buddy may become late too: then the next one helps.
        let helped = same.is_some_and(|known| {
            let buddy = seats
                .list
                .iter()
                .find(|seat| seat.id == stalls[known].buddy);
            buddy.is_some_and(|buddy| buddy.handle().late() < limit)
        });
        if helped {
            continue;
        }
        let well = seats.list.iter().filter(|other| other.id != seat.id);
        let well = well.filter(|other| other.handle().late() < limit);
        let buddy = well.min_by_key(|other| other.load());
        if let Some(buddy) = buddy {
            let stuck = seat.clone();
            // One that has ended is replaced at the next look.
            let _ = buddy.handle().post(move || (help.rescue)(stuck, limit));
        }
        let stall = Stall {
            seat: seat.id,
            turn,
            buddy: buddy.map_or(0, |buddy| buddy.id),
        };
        match known {
            Some(known) => stalls[known] = stall,
            None => stalls.push(stall),
        }
    }
}

/// Says in the log what a loop is stuck in, now and then. To find the names takes a while, and the next
/// late loop must not wait for it.
fn tell(seat: &Arc<Seat>, turn: u64, late: Duration, told: &mut Option<Instant>) {
    if told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
        return;
    }
    *told = Some(Instant::now());
    let seat = seat.clone();
    let report = move || {
        if let Some(frames) = rt::stall::sample(seat.handle(), turn) {
            rt::report::report(&Event::Stalled {
                name: seat.handle().name(),
                late,
                frames: &frames,
            });
        }
    };
    // Without a thread for it the end of the turn is reported all the same.
    let _ = std::thread::Builder::new()
        .name("stack sample".to_owned())
        .spawn(report);
}

/// Lets the loop with the most connections move some, if it has many more than the one with the fewest.
fn balance(seats: &Seats, help: Help) {
    let loads = || seats.list.iter().map(|seat| (seat.load(), seat));
    let most = loads().max_by_key(|(load, _)| *load);
    let fewest = loads().min_by_key(|(load, _)| *load);
    let (Some((most, heavy)), Some((fewest, _))) = (most, fewest) else {
        return;
    };
    let sum: usize = loads().map(|(load, _)| load).sum();
    let mean = sum / seats.list.len().max(1);
    let slack = mean / BALANCE_SHARE + BALANCE_SLACK;
    if most <= mean + slack || most <= fewest + slack {
        return;
    }
    let count = (most - mean).min(BALANCE_BATCH);
    let seats = seats.clone();
    // As in `help_late_ones`.
    let _ = heavy.handle().post(move || (help.shed)(count, seats));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static SHED: AtomicUsize = AtomicUsize::new(0);
    const HELP: Help = Help {
        rescue: |_, _| {},
        shed: |count, _| {
            SHED.fetch_add(count, Ordering::SeqCst);
        },
        note_work: || {},
        shed_work: |_, _, _| {},
    };

    #[test]
    fn only_a_loop_that_has_many_more_moves_some() {
        let make = |index| {
            let event_loop = rt::Loop::new(rt::LoopOptions::default()).expect("an eventfd");
            let seat = Seat::new(index, event_loop.handle(), || {});
            (event_loop, seat)
        };
        let mut loops: Vec<_> = (0..4).map(make).collect();
        let seats = Seats {
            list: loops.iter().map(|(_, seat)| seat.clone()).collect(),
        };
        let fill = |counts: [usize; 4]| {
            for ((_, seat), count) in loops.iter().zip(counts) {
                while seat.load() < count {
                    seat.opened();
                }
            }
            balance(&seats, HELP);
        };
        fill([2, 0, 0, 0]);
        fill([50, 50, 49, 46]);
        fill([50, 50, 50, 90]);
        let (last, _) = loops.pop().expect("four");
        let done = last.run(|| async { rt::yield_now().await });
        done.expect("it ran");
        assert_eq!(SHED.load(Ordering::SeqCst), 30);
    }
}
