//! What the server counts all the time: connections and requests.
//!
//! Every loop has counters of its own and is the only one that writes them, so counting is a load and a store and no
//! two processors fight over a cache line. Whoever wants to know (`stub_status`, a status page) adds the loops up. The
//! sums are exact for a loop that stands still and a moment old for one that runs.
//!
//! The numbers outlive a reload: they belong to the loops, not to a configuration.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The counters of one loop.
#[derive(Debug, Default)]
// Two lines of 64 bytes: processors fetch lines in pairs.
#[repr(align(128))]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that were served; fewer than accepted when `worker_connections` was reached.
    pub handled: Counter,
    /// Requests begun.
    pub requests: Counter,
    /// Connections open now.
    pub active: Counter,
    /// Of those, the ones whose request head is incomplete.
    pub reading: Counter,
    /// Of those, the ones that are being answered.
    pub writing: Counter,
    /// Of those, the ones that wait for a request.
    pub waiting: Counter,
}

/// A number that one thread changes and every thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the loop that owns the counter may call this: two writers would lose counts.
    #[inline]
    pub fn add(&self, number: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(number), Relaxed);
    }

    /// Takes away, with the rule of [`Counter::add`].
    #[inline]
    pub fn sub(&self, number: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(number), Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of all loops added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// See [`Counters::accepted`].
    pub accepted: u64,
    /// See [`Counters::handled`].
    pub handled: u64,
    /// See [`Counters::requests`].
    pub requests: u64,
    /// See [`Counters::active`].
    pub active: u64,
    /// See [`Counters::reading`].
    pub reading: u64,
    /// See [`Counters::writing`].
    pub writing: u64,
    /// See [`Counters::waiting`].
    pub waiting: u64,
}

/// The counters of all loops: a zone, so that they outlive the configuration.
#[derive(Debug, Default)]
pub struct AllCounters {
    /// By the loop's index.
    loops: Mutex<Vec<Arc<Counters>>>,
}

impl AllCounters {
    /// The counters of loop `index`, made at the first call.
    pub fn for_loop(&self, index: usize) -> Arc<Counters> {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        while loops.len() <= index {
            loops.push(Arc::default());
        }
        Arc::clone(&loops[index])
    }

    /// The counters of each loop.
    pub fn loops(&self) -> Vec<Arc<Counters>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The sums over all loops.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for counters in self.loops() {
            counters.add_to(&mut totals);
        }
        totals
    }
}

impl Counters {
    fn add_to(&self, totals: &mut Totals) {
        totals.accepted += self.accepted.get();
        totals.handled += self.handled.get();
        totals.requests += self.requests.get();
        totals.active += self.active.get();
        totals.reading += self.reading.get();
        totals.writing += self.writing.get();
        totals.waiting += self.waiting.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_add_up() {
        let all = AllCounters::default();
        let (two, one) = (all.for_loop(1), all.for_loop(0));
        one.requests.add(2);
        two.requests.add(3);
        two.waiting.add(1);
        two.waiting.sub(1);
        assert!(Arc::ptr_eq(&two, &all.for_loop(1)));
        assert_eq!(all.totals(), Totals { requests: 5, ..Totals::default() });
        assert_eq!(all.loops().len(), 2);
    }
}
