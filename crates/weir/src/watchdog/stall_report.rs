//! What the error log says of loops that were late.
//!
//! A loop that is late once is late again, a hundred times a second if the machine is busy, and the lines that matter
//! drown. So the first one is reported at once, and then for [`INTERVAL`] only one that is [`WORSE`] times as long as
//! the longest so far; at the end of the interval follows the worst of the rest, with their number. A loop that is
//! still stuck after [`STUCK`] is reported before it recovers, because it may never do so.
//!
//! While a loop is late its stack is sampled, again each time that it has been stuck for [`WORSE`] times as long, and
//! the sample goes with the report of its turn. The request, the script and the pattern come from the loop itself, when
//! it is done (`rt::suspect`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use base::sync::Mutex;
use host::error_log::{ContextWriter, LogContext, LogLevel, Logger};
use host::loop_slots::{LoopSlot, LoopSlots};
use rt::report::RecordedStall;
use rt::slow_turn::{SlowTurn, SlowTurns};

/// The time after a report in which only worse stalls are reported at once.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many times as long as the longest so far a stall must be for that, and for another sample.
const WORSE: u32 = 4;
/// A loop that is late for this long is reported while it is.
const STUCK: Duration = Duration::from_secs(1);
/// A stall of this length is an error: clients notice it. Shorter ones are warnings.
const SERIOUS: Duration = Duration::from_millis(100);
/// How many late turns are remembered: more are late at once only on a machine without processor time.
const MAX_LATE: usize = 64;
/// How long a report waits for the sample of its turn, whose names are being looked up.
const SAMPLE_TIME: Duration = Duration::from_secs(2);

/// The stalls of the present interval.
#[derive(Default)]
pub(super) struct StallReports {
    /// When the interval began: with a report.
    began: Option<Instant>,
    /// The longest stall that was reported in it.
    reported: Duration,
    /// Those that were not reported: how many, and the longest with its loop.
    kept_back: u64,
    worst: Option<EndedStall>,
    /// Turns that are late, or were a moment ago; the latest last.
    late: VecDeque<LateTurn>,
    /// The lateness at the last sample of the interval.
    sampled_at: Duration,
    /// A loop was found late at this look.
    is_late: bool,
    /// The sample of the longest one.
    sample: Arc<Mutex<Option<StackSample>>>,
    /// Samples whose names are being looked up.
    under_way: Arc<AtomicUsize>,
}

/// A turn that was found late.
struct LateTurn {
    /// The loop, by the number of its slot.
    slot: u64,
    /// The number of its turn.
    turn: u64,
    /// How long its thread had waited for a processor before.
    waited: Option<Duration>,
    /// It was reported as stuck, ...
    is_told: bool,
    /// ... with its stack.
    has_stack: bool,
}

/// A stall that is over.
struct EndedStall {
    /// The loop.
    loop_slot: Arc<LoopSlot>,
    turn: SlowTurn,
    /// How long of it the thread waited for a processor.
    waited: Duration,
    /// It was found late before it ended.
    was_seen: bool,
    /// When it was heard of.
    heard: Instant,
}

/// What a loop was doing.
struct StackSample {
    /// The loop, and its turn: a sample of another one would accuse the wrong request.
    slot: u64,
    turn: u64,
    /// How late it was then.
    late: Duration,
    /// When it was taken: an old one makes room for any other.
    taken: Instant,
    /// The calls, innermost first.
    frames: Vec<String>,
}

impl StallReports {
    /// A loop is late by `late`, in the turn of this number.
    pub(super) fn watch_late(&mut self, loop_slot: &Arc<LoopSlot>, turn: u64, late: Duration) {
        self.is_late = true;
        if self.find_late(loop_slot, turn).is_none() {
            self.late.push_back(LateTurn {
                slot: loop_slot.id,
                turn,
                waited: rt::stall::processor_wait(loop_slot.handle()),
                is_told: false,
                has_stack: false,
            });
            if self.late.len() > MAX_LATE {
                self.late.pop_front();
            }
        }
        if late < self.sampled_at * WORSE {
            return;
        }
        self.sampled_at = late;
        self.take_sample(loop_slot.clone(), turn, late);
    }

    /// What is known of a turn that was found late.
    fn find_late(&mut self, loop_slot: &LoopSlot, turn: u64) -> Option<&mut LateTurn> {
        let mut all = self.late.iter_mut();
        all.find(|late| (late.slot, late.turn) == (loop_slot.id, turn))
    }

    /// Takes a sample. Looking the names up takes a while, and the next late loop must not wait for it, hence the thread.
    fn take_sample(&self, loop_slot: Arc<LoopSlot>, turn: u64, late: Duration) {
        let (sample, under_way) = (Arc::clone(&self.sample), Arc::clone(&self.under_way));
        under_way.fetch_add(1, SeqCst);
        let look = move || {
            if let Some(frames) = rt::stall::sample(loop_slot.handle(), turn) {
                let slot = loop_slot.id;
                let new = StackSample {
                    slot,
                    turn,
                    late,
                    taken: rt::clock::read_clock(),
                    frames,
                };
                let mut place = sample.lock();
                let is_older = |old: &StackSample| rt::clock::elapsed(old.taken) >= INTERVAL;
                if place
                    .as_ref()
                    .is_none_or(|old| old.late <= late || is_older(old))
                {
                    *place = Some(new);
                }
            }
            under_way.fetch_sub(1, SeqCst);
        };
        let thread = std::thread::Builder::new().name("stack sample".to_owned());
        // Without a thread the stall is reported without a stack.
        if thread.spawn(look).is_err() {
            self.under_way.fetch_sub(1, SeqCst);
        }
    }

    /// Collects the turns that have ended, and writes what is due.
    pub(super) fn report_due(&mut self, loop_slots: &LoopSlots, limit: Duration, log: &Logger) {
        for loop_slot in loop_slots.list.iter() {
            if let Some(turns) = loop_slot.handle().take_slow_turns() {
                self.collect(loop_slot, turns);
            }
            self.report_stuck(loop_slot, log);
        }
        let is_late = std::mem::take(&mut self.is_late);
        let ended = self
            .began
            .is_none_or(|began| rt::clock::elapsed(began) >= INTERVAL);
        let worst = self.worst.as_ref().map(|worst| worst.turn.took);
        let is_worse = worst.is_some_and(|worst| worst >= self.reported * WORSE);
        if worst.is_some() && (ended || is_worse) && !self.awaits_sample() {
            self.report_worst(limit, log);
        } else if worst.is_none() && ended && !is_late {
            // Not while a turn is late that has not been reported yet: each look would take a sample of it.
            (self.began, self.reported) = (None, Duration::ZERO);
            self.forget_samples();
        }
    }

    /// Takes in what a loop has remembered since the last look.
    fn collect(&mut self, loop_slot: &Arc<LoopSlot>, turns: SlowTurns) {
        self.kept_back += turns.count;
        let turn = turns.worst;
        let known = self.worst.as_ref();
        if known.is_some_and(|worst| worst.turn.took >= turn.took) {
            return;
        }
        let seen = self.find_late(loop_slot, turn.turn);
        // What was counted since the turn ended is a part of it at most, and bounded by it below.
        let before = seen.as_ref().and_then(|late| late.waited);
        let was_seen = seen.is_some();
        let waited = before
            .and_then(|before| rt::stall::processor_wait(loop_slot.handle())?.checked_sub(before));
        self.worst = Some(EndedStall {
            loop_slot: loop_slot.clone(),
            waited: waited.unwrap_or_default().min(turn.took),
            was_seen,
            turn,
            heard: rt::clock::read_clock(),
        });
    }

    /// Whether a sample is being looked up that may be of the turn to report.
    fn awaits_sample(&self) -> bool {
        let heard = self.worst.as_ref().map(|worst| worst.heard);
        let waits = heard.is_some_and(|heard| rt::clock::elapsed(heard) < SAMPLE_TIME);
        waits && self.under_way.load(SeqCst) > 0
    }

    /// Reports the worst stall since the last report, and begins another interval.
    fn report_worst(&mut self, limit: Duration, log: &Logger) {
        let Some(worst) = self.worst.take() else {
            return;
        };
        let level = worst.level();
        let more = self.kept_back.saturating_sub(1);
        let shown = ShownStall {
            worst: &worst,
            more,
            limit,
        };
        log.log(level, &shown, format_args!("{shown}"));
        let (slot, turn) = (worst.loop_slot.id, worst.turn.turn);
        let has_stack = self
            .find_late(&worst.loop_slot, turn)
            .is_some_and(|late| late.has_stack);
        // One of another turn stays: that may not have ended yet.
        let is_of_turn = |sample: &mut StackSample| (sample.slot, sample.turn) == (slot, turn);
        let sample = self.sample.lock().take_if(is_of_turn);
        let frames = sample.map_or(Vec::new(), |sample| sample.frames);
        if !has_stack {
            log_stack(&frames, level, log);
        }
        worst.keep(frames);
        let same_interval = self
            .began
            .is_some_and(|began| rt::clock::elapsed(began) < INTERVAL);
        self.reported = match same_interval {
            true => self.reported.max(worst.turn.took),
            false => worst.turn.took,
        };
        if !same_interval {
            self.forget_samples();
            self.began = Some(rt::clock::read_clock());
        }
        self.kept_back = 0;
    }

    /// The next stall is sampled again, however short it is.
    fn forget_samples(&mut self) {
        self.sampled_at = Duration::ZERO;
    }

    /// Reports a loop that has been stuck for long, once for each turn. If the names of its stack are still being looked
    /// up, they come with the report of its end.
    fn report_stuck(&mut self, loop_slot: &Arc<LoopSlot>, log: &Logger) {
        let handle = loop_slot.handle();
        let (turn, late) = (handle.turn_number(), handle.turn_duration());
        if late < STUCK {
            return;
        }
        let sample = Arc::clone(&self.sample);
        let Some(known) = self.find_late(loop_slot, turn).filter(|late| !late.is_told) else {
            return;
        };
        let sample = sample.lock();
        let sample = sample
            .as_ref()
            .filter(|sample| (sample.slot, sample.turn) == (loop_slot.id, turn));
        let frames = sample
            .map(|sample| sample.frames.as_slice())
            .unwrap_or_default();
        (known.is_told, known.has_stack) = (true, !frames.is_empty());
        let (name, millis) = (handle.name(), late.as_millis());
        match frames.first() {
            Some(innermost) => log.log_plain(
                LogLevel::Error,
                format_args!("{name} has been stuck for {millis} ms in {innermost}"),
            ),
            None => log.log_plain(
                LogLevel::Error,
                format_args!("{name} has been stuck for {millis} ms"),
            ),
        }
        log_stack(frames, LogLevel::Error, log);
        rt::report::keep_stall(RecordedStall {
            wall_ms: rt::wall_millis(),
            loop_name: name.to_owned(),
            turn,
            late,
            frames: frames.to_vec(),
            tasks: Vec::new(),
        });
    }
}

impl EndedStall {
    /// Keeps it for the page that shows stalls.
    fn keep(&self, frames: Vec<String>) {
        rt::report::keep_stall(RecordedStall {
            wall_ms: rt::wall_millis(),
            loop_name: self.loop_slot.handle().name().to_owned(),
            turn: self.turn.turn,
            late: self.turn.took,
            frames,
            tasks: self.turn.tasks.clone(),
        });
    }

    /// A machine without processor time makes every loop late, which says nothing about the loop. A stall that the
    /// watchdog did not see either, because it had no processor, is one of those.
    fn level(&self) -> LogLevel {
        let is_own = self.was_seen && self.waited < self.turn.took / 2;
        match self.turn.took >= SERIOUS && is_own {
            true => LogLevel::Error,
            false => LogLevel::Warn,
        }
    }
}

/// One line for each call: the log cuts long lines.
fn log_stack(frames: &[String], level: LogLevel, log: &Logger) {
    for frame in frames {
        log.log_plain(level, format_args!("stack: {frame}"));
    }
}

/// A stall as a line.
struct ShownStall<'a> {
    worst: &'a EndedStall,
    /// How many others were not reported.
    more: u64,
    limit: Duration,
}

/// What held the loop follows the message, as with any line about a request: what only keeps messages, such as a page of
/// errors, must not have what a client has sent.
impl LogContext for ShownStall<'_> {
    fn connection(&self) -> Option<u64> {
        None
    }

    fn describe(&self, out: &mut ContextWriter<'_>) {
        out.suspects(&self.worst.turn.suspects);
    }
}

impl fmt::Display for ShownStall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlowTurn {
            took,
            stretch,
            tasks,
            ..
        } = &self.worst.turn;
        let name = self.worst.loop_slot.handle().name();
        let waited = self.worst.waited;
        write!(f, "{}: an iteration took {} ms", name, took.as_millis())?;
        if !tasks.is_empty() {
            write!(
                f,
                ", {} ms of it in {}",
                stretch.as_millis(),
                tasks.join(", ")
            )?;
        }
        if waited >= Duration::from_millis(1) {
            write!(
                f,
                ", {} ms of it waiting for a processor",
                waited.as_millis()
            )?;
        }
        if self.more > 0 {
            let limit = self.limit.as_millis();
            write!(f, ", {} more took {limit} ms or longer", self.more)?;
        }
        Ok(())
    }
}
