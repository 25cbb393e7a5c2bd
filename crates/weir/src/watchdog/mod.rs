//! A thread that watches the event loops: late ones get help, and connections that are unevenly
//! distributed are moved.
//!
//! A loop is late when its current iteration has lasted longer than `slow_turn`. Its own clients
//! have to wait, but other clients must not: another loop takes over the connections queued for it
//! and accepts from its sockets until it has recovered, and what it is stuck in is logged.
//!
//! The thread checks twice in the time that makes a loop late, and sleeps while all loops do.

mod memory_gauge;
mod memory_watch;
mod stall_report;
mod work_balance;

use std::sync::{Arc, Weak};
use std::time::Duration;

use base::sync::Mutex;
use host::error_log::Logger;
use host::loop_slots::{LoopSlot, LoopSlots};
use memory_watch::MemoryWatch;
use rt::slow_turn::SuspectKind;
use stall_report::StallReports;
use work_balance::WorkBalance;

pub(crate) use memory_gauge::MemoryBound;
pub(crate) use memory_watch::{SHED_LEAST, SHED_PART};

/// The number of checks without any active loop before the thread sleeps.
const QUIET_CHECKS: u32 = 20;
/// How often the distribution of connections is checked.
const BALANCE_EVERY: Duration = Duration::from_millis(250);
/// Loops may exceed the mean by a twentieth and [`BALANCE_SLACK`] connections: moving connections
/// for less is not worth it.
const BALANCE_SHARE: usize = 20;
const BALANCE_SLACK: usize = 2;
/// The maximum number of connections that leave a loop at once.
const BALANCE_BATCH: usize = 256;

/// The loops to watch.
#[derive(Default)]
struct WatchedLoops {
    /// The loops.
    loop_slots: LoopSlots,
    /// Zero means that loops are never late.
    limit: Duration,
    memory: MemoryBound,
    log: Logger,
}

/// The thread; it ends when this value is dropped.
pub(crate) struct LoopWatchdog(Arc<Mutex<WatchedLoops>>);

/// What a loop can be asked to do.
#[derive(Clone, Copy)]
pub(crate) struct LoopActions {
    /// Serve in place of this loop as long as it is late by this time.
    pub(crate) rescue: fn(Arc<LoopSlot>, Duration),
    /// Move this number of connections to other loops.
    pub(crate) move_connections: fn(usize, LoopSlots),
    /// Move this number of idle connections to another worker group.
    pub(crate) move_to_group: fn(usize, usize, LoopSlots),
    /// Begin to count the work that each connection causes.
    pub(crate) count_work: fn(),
    /// Move connections that cause this part of the work to the loop with this slot.
    pub(crate) move_work: fn(f64, u64, LoopSlots),
    /// Close the connections that have been idle for longest.
    pub(crate) shed_idle: fn(),
}

impl LoopWatchdog {
    /// Starts the thread; fails only if the system has no thread left.
    pub(crate) fn start(help: LoopActions) -> std::io::Result<LoopWatchdog> {
        let state = Arc::new(Mutex::new(WatchedLoops::default()));
        let watched = Arc::downgrade(&state);
        std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || watch(&watched, help))?;
        Ok(LoopWatchdog(state))
    }

    /// Sets the loops to watch, from when on one is late, and the bound of memory.
    pub(crate) fn set(
        &self,
        loop_slots: &LoopSlots,
        limit: Duration,
        memory: &MemoryBound,
        log: &Logger,
    ) {
        let mut state = self.0.lock();
        state.loop_slots = loop_slots.clone();
        state.limit = limit;
        state.memory = memory.clone();
        state.log = log.clone();
    }
}

/// An iteration that takes too long, and the loop that helps.
struct LoopStall {
    /// The late loop, by the number of its slot.
    loop_slot: u64,
    /// The number of the iteration: the next one is another stall.
    turn: u64,
    /// The helper; 0 if none was free.
    rescuer: u64,
}

/// The body of the thread.
fn watch(state: &Weak<Mutex<WatchedLoops>>, help: LoopActions) {
    let mut stalls: Vec<LoopStall> = Vec::new();
    let mut reports = StallReports::default();
    conf::regex::set_match_watch(|pattern| {
        rt::suspect(SuspectKind::Part, || format!("pattern \"{pattern}\""));
    });
    let mut quiet = 0;
    let mut balanced = rt::clock::read_clock();
    let mut work = WorkBalance::default();
    let mut memory = MemoryWatch::new();
    while let Some(shared) = state.upgrade() {
        let (loop_slots, limit, bound, log) = {
            let state = shared.lock();
            let (memory, log) = (state.memory.clone(), state.log.clone());
            (state.loop_slots.clone(), state.limit, memory, log)
        };
        // Not held during the sleep, or the thread would never end.
        drop(shared);
        if !limit.is_zero() {
            rescue_late_loops(&loop_slots, limit, &mut stalls, &mut reports, help);
            reports.report_due(&loop_slots, limit, &log);
        }
        memory.look_at_memory(&bound, &loop_slots, &log, help);
        let passed = rt::clock::elapsed(balanced);
        if passed >= BALANCE_EVERY {
            balanced = rt::clock::read_clock();
            balance(&loop_slots, help);
            balance_groups(&loop_slots, help);
            work.balance(&loop_slots, passed, help);
        }
        let all_parked = loop_slots
            .list
            .iter()
            .all(|loop_slot| loop_slot.handle().is_parked());
        // While memory is short it is looked at, even if nobody else has anything to do.
        quiet = if all_parked && !memory.is_short() {
            quiet + 1
        } else {
            0
        };
        if quiet > QUIET_CHECKS {
            // One more round follows each doze, for a balance that has not been checked meanwhile.
            rt::stall::sleep_until_turn();
        } else {
            std::thread::sleep(pause(limit));
        }
    }
}

/// The time until the next check.
fn pause(limit: Duration) -> Duration {
    match limit.is_zero() {
        true => BALANCE_EVERY,
        false => (limit / 2).clamp(Duration::from_millis(1), BALANCE_EVERY),
    }
}

/// Finds a helper for each late loop that has none. The least loaded loop is chosen among those
/// that are not late themselves.
fn rescue_late_loops(
    loop_slots: &LoopSlots,
    limit: Duration,
    stalls: &mut Vec<LoopStall>,
    reports: &mut StallReports,
    help: LoopActions,
) {
    let is_late = |slot: &Arc<LoopSlot>| slot.handle().turn_duration() >= limit;
    let some_late = loop_slots.list.iter().any(is_late);
    // Whatever holds a loop says so when it is done, but only while this is set.
    rt::slow_turn::say_late(some_late);
    conf::regex::say_late(some_late);
    for loop_slot in loop_slots.list.iter() {
        let turn = loop_slot.handle().turn_number();
        let late = loop_slot.handle().turn_duration();
        let known = stalls
            .iter()
            .position(|stall| stall.loop_slot == loop_slot.id);
        // It has recovered: the next delay is another stall, with its own report.
        if late < limit {
            if let Some(known) = known {
                stalls.swap_remove(known);
            }
            continue;
        }
        let same = known.filter(|known| stalls[*known].turn == turn);
        reports.watch_late(loop_slot, turn, late);
        // The helper may become late, too; then the next one helps.
        let helped = same.is_some_and(|known| {
            let buddy = loop_slots
                .list
                .iter()
                .find(|loop_slot| loop_slot.id == stalls[known].rescuer);
            buddy.is_some_and(|buddy| buddy.handle().turn_duration() < limit)
        });
        if helped {
            continue;
        }
        let well = loop_slots
            .list
            .iter()
            .filter(|other| other.id != loop_slot.id);
        let well = well.filter(|other| other.handle().turn_duration() < limit);
        // If every loop is late, none helps: the next check tries again.
        let buddy = well.min_by_key(|other| other.connection_count());
        if let Some(buddy) = buddy {
            let stuck = loop_slot.clone();
            // A helper that has ended is replaced at the next check.
            let _ = buddy.handle().post(move || (help.rescue)(stuck, limit));
        }
        let stall = LoopStall {
            loop_slot: loop_slot.id,
            turn,
            rescuer: buddy.map_or(0, |buddy| buddy.id),
        };
        match known {
            Some(known) => stalls[known] = stall,
            None => stalls.push(stall),
        }
    }
}

/// Has the loop with the most connections move some, if it has many more than the mean and the loop
/// with the fewest.
fn balance(loop_slots: &LoopSlots, help: LoopActions) {
    let loads = || {
        loop_slots
            .list
            .iter()
            .map(|loop_slot| (loop_slot.connection_count(), loop_slot))
    };
    let most = loads().max_by_key(|(load, _)| *load);
    let fewest = loads().min_by_key(|(load, _)| *load);
    let (Some((most, heavy)), Some((fewest, _))) = (most, fewest) else {
        return;
    };
    let sum: usize = loads().map(|(load, _)| load).sum();
    let mean = sum / loop_slots.list.len().max(1);
    let slack = mean / BALANCE_SHARE + BALANCE_SLACK;
    if most <= mean + slack || most <= fewest + slack {
        return;
    }
    // Down to the mean, not to the lightest loop: several loops may take a part, and it must not become the
    // lightest itself.
    let count = (most - mean).min(BALANCE_BATCH);
    let loop_slots = loop_slots.clone();
    // A loop that has ended has nothing to move.
    let _ = heavy
        .handle()
        .post(move || (help.move_connections)(count, loop_slots));
}

/// Has the loop with the most connections move some to another worker group, if this one has more than its share.
fn balance_groups(loop_slots: &LoopSlots, help: LoopActions) {
    let Some(first) = loop_slots.list.first() else {
        return;
    };
    let surplus = first.group().and_then(|group| group.surplus());
    let heavy = loop_slots
        .list
        .iter()
        .max_by_key(|loop_slot| loop_slot.connection_count());
    if let (Some((count, group)), Some(heavy)) = (surplus, heavy) {
        let (count, loop_slots) = (count.min(BALANCE_BATCH), loop_slots.clone());
        // As above.
        let _ = heavy
            .handle()
            .post(move || (help.move_to_group)(count, group, loop_slots));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static SHED: AtomicUsize = AtomicUsize::new(0);
    const HELP: LoopActions = LoopActions {
        rescue: |_, _| {},
        move_connections: |count, _| {
            SHED.fetch_add(count, Ordering::SeqCst);
        },
        move_to_group: |_, _, _| {},
        count_work: || {},
        move_work: |_, _, _| {},
        shed_idle: || {},
    };

    #[test]
    fn only_a_loop_that_has_many_more_moves_some() {
        let make = |index| {
            let event_loop = rt::EventLoop::new(rt::LoopOptions::default()).expect("an eventfd");
            let loop_slot = LoopSlot::new(index, event_loop.handle(), || {});
            (event_loop, loop_slot)
        };
        let mut loops: Vec<_> = (0..4).map(make).collect();
        let loop_slots = LoopSlots {
            list: loops
                .iter()
                .map(|(_, loop_slot)| loop_slot.clone())
                .collect(),
        };
        let fill = |counts: [usize; 4]| {
            for ((_, loop_slot), count) in loops.iter().zip(counts) {
                while loop_slot.connection_count() < count {
                    loop_slot.count_opened();
                }
            }
            balance(&loop_slots, HELP);
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
