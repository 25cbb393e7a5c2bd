//! What happens when memory is short: less is held for slow clients; then idle connections end, those first that have waited
//! longest; then new ones are refused, until there is room again.
//!
//! A new connection is closed as soon as it is accepted, not answered with a 503: to read a request, and for TLS a
//! handshake, takes the memory that is missing, and a balancer in front tries another server at once. Connections that
//! are being served go on.

use std::time::{Duration, Instant};

use host::error_log::{LogLevel, Logger};
use host::loop_slots::LoopSlots;

use super::LoopActions;
use super::memory_gauge::{MemoryBound, MemoryGauge, MemoryReading};

/// Shares of the bound, in percent: from here on what slow clients do not take goes to files at once, ...
const TIGHT: u64 = 50;
/// ... from here on idle connections end, ...
const SHORT: u64 = 85;
/// ... from here on new ones are refused, ...
const CRITICAL: u64 = 92;
/// ... and below this they are accepted again.
const RELIEVED: u64 = 88;

/// How often memory is looked at while less than half of it is used, and the time between two steps of relief.
const SELDOM: Duration = Duration::from_millis(250);

/// The same where the bound is so low that a few hundred clients may come up to it meanwhile.
const SELDOM_IF_LITTLE: Duration = Duration::from_millis(25);

/// Up to which bound that is, in bytes.
const LITTLE: u64 = 512 << 20;

/// What part of its idle connections a loop ends at a time, and how many at least.
pub(crate) const SHED_PART: usize = 8;
pub(crate) const SHED_LEAST: usize = 64;

/// Watches one bound.
pub(super) struct MemoryWatch {
    bound: MemoryBound,
    gauge: MemoryGauge,
    looked: Option<Instant>,
    /// Half of the bound was in use then.
    is_near: bool,
    /// The bound was a low one.
    is_little: bool,
    shed: Option<Instant>,
    is_refusing: bool,
}

impl MemoryWatch {
    pub(super) fn new() -> MemoryWatch {
        MemoryWatch {
            bound: MemoryBound::Off,
            gauge: MemoryGauge::Nothing,
            looked: None,
            is_near: false,
            is_little: false,
            shed: None,
            is_refusing: false,
        }
    }

    /// Whether it has to be looked at again without an occasion.
    pub(super) fn is_short(&self) -> bool {
        self.is_refusing || self.shed.is_some()
    }

    /// Looks at memory if it is time to, and does something about it.
    pub(super) fn look_at_memory(
        &mut self,
        bound: &MemoryBound,
        loop_slots: &LoopSlots,
        log: &Logger,
        help: LoopActions,
    ) {
        if *bound != self.bound {
            self.bound = bound.clone();
            self.gauge = MemoryGauge::open(bound);
            self.looked = None;
        }
        let now = rt::clock::read_clock();
        let since = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        let seldom = match self.is_little {
            true => SELDOM_IF_LITTLE,
            false => SELDOM,
        };
        if !self.is_near && since(self.looked).is_some_and(|passed| passed < seldom) {
            return;
        }
        self.looked = Some(now);
        let reading = self.gauge.read_gauge();
        let share = reading.map_or(0, |reading| reading.used * 100 / reading.limit.max(1));
        self.is_little = reading.is_some_and(|reading| reading.limit <= LITTLE);
        self.is_near = share >= TIGHT;
        host::tight_memory::set_tight(self.is_near);
        self.refuse_or_accept(share, reading, loop_slots, log);
        if share < SHORT {
            self.shed = None;
        } else if since(self.shed).is_none_or(|passed| passed >= SELDOM) {
            // One line for each shortage, not for each step.
            if self.shed.is_none() {
                let shown = Shown(reading);
                log.log_plain(
                    LogLevel::Warn,
                    format_args!("memory is short, {shown}: closing idle connections"),
                );
            }
            self.shed = Some(now);
            for loop_slot in loop_slots.list.iter() {
                // A loop that cannot be told is ending, with its connections.
                let _ = loop_slot.handle().post(help.shed_idle);
            }
            // Here and not on a loop: what the last step has freed is still the allocator's.
            host::process::give_memory_back();
        }
    }

    fn refuse_or_accept(
        &mut self,
        share: u64,
        reading: Option<MemoryReading>,
        loop_slots: &LoopSlots,
        log: &Logger,
    ) {
        let refuses = match self.is_refusing {
            true => share >= RELIEVED,
            false => share >= CRITICAL,
        };
        let is_change = std::mem::replace(&mut self.is_refusing, refuses) != refuses;
        let shown = Shown(reading);
        match refuses {
            true if is_change => log.log_plain(
                LogLevel::Alert,
                format_args!("memory is short, {shown}: refusing new connections"),
            ),
            false if is_change => log.log_plain(
                LogLevel::Notice,
                format_args!("{shown}: accepting new connections again"),
            ),
            _ => {}
        }
        // Not only when it begins: a loop may have been added meanwhile.
        if refuses || is_change {
            for loop_slot in loop_slots.list.iter() {
                loop_slot.refuse_connections(refuses);
            }
        }
    }
}

/// A reading in a log line.
struct Shown(Option<MemoryReading>);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MemoryReading { used, limit } = self.0.unwrap_or(MemoryReading { used: 0, limit: 0 });
        write!(f, "{} of {} MB are in use", used >> 20, limit >> 20)
    }
}
