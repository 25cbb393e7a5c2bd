//! Where a run's time goes, by phase: a machine that waits compares little.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time of each phase, over all lanes; phases of two lanes at once count twice.
#[derive(Debug, Default)]
pub struct Spent {
    phases: Mutex<BTreeMap<&'static str, (u64, Duration)>>,
}

impl Spent {
    /// Does some work and counts its time.
    pub fn on<T>(&self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        self.add(phase, started.elapsed());
        result
    }

    /// Counts some time.
    pub fn add(&self, phase: &'static str, time: Duration) {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = phases.entry(phase).or_default();
        entry.0 += 1;
        entry.1 += time;
    }

    /// A line for the report: the phases, longest first.
    pub fn line(&self) -> String {
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = phases.iter().collect();
        list.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        let texts = list.iter().map(|(phase, (times, time))| {
            format!("{phase} {:.1} s ({times} times)", time.as_secs_f64())
        });
        texts.collect::<Vec<_>>().join(", ")
    }
}
