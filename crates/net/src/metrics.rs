//! What metrics are made of: families of samples with labels, and histograms of times.
//!
//! Whoever counts something says so as a [`MetricFamily`] with samples, to a [`MetricSink`]. The sink decides what it
//! becomes: text for Prometheus, or a part of a page. Samples are told off the loops, from counters that each have one
//! writer, so that counting costs a load and a store.
//!
//! Labels have values from the configuration only (names of servers, zones, peers), never from clients: the number of
//! samples is bounded by the configuration.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};
use std::time::Duration;

use crate::counters::SingleWriterCounter;

/// Whether the configuration has a page of metrics.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Says whether what costs something on each request is to be counted.
pub fn set_wanted(wanted: bool) {
    WANTED.store(wanted, Relaxed);
}

/// What the last [`set_wanted`] said.
#[inline]
pub(crate) fn are_wanted() -> bool {
    WANTED.load(Relaxed)
}

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

/// Samples that measure the same thing.
#[derive(Debug)]
pub struct MetricFamily {
    /// The name without the suffix of its kind (`_total`), with the unit last.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// What it means, in a sentence.
    pub help: &'static str,
}

impl MetricFamily {
    /// A counter.
    pub const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily {
            name,
            kind: MetricKind::Counter,
            help,
        }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily {
            name,
            kind: MetricKind::Gauge,
            help,
        }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily {
            name,
            kind: MetricKind::Histogram,
            help,
        }
    }
}

/// A label: its name and its value.
pub type MetricLabel<'a> = (&'static str, &'a [u8]);

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// A number.
    Count(u64),
    /// A time, in seconds.
    Seconds(Duration),
}

/// Takes families and their samples.
pub trait MetricSink {
    /// Begins a family. All samples up to the next call belong to it, and a family is begun once.
    fn family(&mut self, family: &'static MetricFamily);

    /// A sample.
    fn sample(&mut self, labels: &[MetricLabel<'_>], value: MetricValue);

    /// A histogram.
    fn histogram(&mut self, labels: &[MetricLabel<'_>], histogram: &HistogramTotals<'_>);
}

impl dyn MetricSink + '_ {
    /// A sample that is a number.
    pub fn count(&mut self, labels: &[MetricLabel<'_>], value: u64) {
        self.sample(labels, MetricValue::Count(value));
    }

    /// A sample that is a time.
    pub fn seconds(&mut self, labels: &[MetricLabel<'_>], value: Duration) {
        self.sample(labels, MetricValue::Seconds(value));
    }
}

/// The numbers of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct HistogramTotals<'a> {
    /// The upper bounds, in seconds, as text.
    pub bounds: &'a [&'a str],
    /// How many were within each bound and above the one before; the last one counts what is above all of them.
    pub counts: &'a [u64],
    /// The sum of all.
    pub sum: Duration,
}

/// How many different statuses are counted apart. An application may make up any number; what is beyond is in the classes
/// alone.
const STATUSES: usize = 24;

/// Counts responses by their status. One thread at a time may write it.
#[derive(Debug, Default)]
pub struct StatusCounters([(AtomicU16, SingleWriterCounter); STATUSES]);

impl StatusCounters {
    /// Counts a response.
    #[inline]
    pub fn count(&self, status: u16) {
        // In the order of their first use, which is nearly that of their frequency: most searches end at once.
        for (known, counter) in &self.0 {
            match known.load(Relaxed) {
                0 => known.store(status, Relaxed),
                code if code != status => continue,
                _ => {}
            }
            return counter.add(1);
        }
    }

    /// Adds these numbers, by status.
    pub fn add_to(&self, sums: &mut BTreeMap<u16, u64>) {
        for (status, counter) in &self.0 {
            match status.load(Relaxed) {
                0 => return,
                status => *sums.entry(status).or_default() += counter.get(),
            }
        }
    }
}

/// The number of bounds of a [`LatencyHistogram`].
const BOUNDS: usize = 15;

/// The bounds, in microseconds.
const BOUNDS_US: [u64; BOUNDS] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// The bounds of every [`LatencyHistogram`], in microseconds.
pub const LATENCY_BOUNDS_US: &[u64] = &BOUNDS_US;

/// The same in seconds, in the form that OpenMetrics prescribes.
const BOUNDS_S: [&str; BOUNDS] = [
    "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0",
    "2.5", "5.0", "10.0", "30.0",
];

/// A histogram of times, with the same bounds everywhere. One thread at a time may write it.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    counts: [SingleWriterCounter; BOUNDS + 1],
    sum_us: SingleWriterCounter,
}

/// A time in microseconds. In 64 bits, which are enough for half a million years: with 128 it costs three times as much.
#[inline]
pub fn micros(time: Duration) -> u64 {
    time.as_secs()
        .wrapping_mul(1_000_000)
        .wrapping_add(u64::from(time.subsec_micros()))
}

impl LatencyHistogram {
    /// Counts a time.
    #[inline]
    pub fn observe(&self, time: Duration) {
        self.observe_us(micros(time));
    }

    /// Counts a time in microseconds.
    #[inline]
    pub fn observe_us(&self, us: u64) {
        // Most are short: the first bound is looked at before the others are searched.
        let at = match us <= BOUNDS_US[0] {
            true => 0,
            false => BOUNDS_US.partition_point(|bound| *bound < us),
        };
        self.counts[at].add(1);
        self.sum_us.add(us);
    }

    /// Adds this histogram's numbers.
    pub fn add_to(&self, sums: &mut LatencySums) {
        for (sum, count) in sums.counts.iter_mut().zip(&self.counts) {
            *sum += count.get();
        }
        sums.sum_us = sums.sum_us.wrapping_add(self.sum_us.get());
    }
}

/// Sums of [`LatencyHistogram`]s.
#[derive(Clone, Debug, Default)]
pub struct LatencySums {
    counts: [u64; BOUNDS + 1],
    sum_us: u64,
}

impl LatencySums {
    /// The sums of one histogram.
    pub fn of(histogram: &LatencyHistogram) -> LatencySums {
        let mut sums = LatencySums::default();
        histogram.add_to(&mut sums);
        sums
    }

    /// Adds other sums.
    pub fn add(&mut self, other: &LatencySums) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

    /// Adds this many that took no time.
    pub fn add_shortest(&mut self, count: u64) {
        self.counts[0] += count;
    }

    /// How many there were within each bound, and above all of them.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// As a sink takes it.
    pub fn totals(&self) -> HistogramTotals<'_> {
        HistogramTotals {
            bounds: &BOUNDS_S,
            counts: &self.counts,
            sum: Duration::from_micros(self.sum_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_what_is_below_it() {
        let histogram = LatencyHistogram::default();
        for us in [0, 500, 501, 1_000, 30_000_000, 30_000_001] {
            histogram.observe(Duration::from_micros(us));
        }
        let sums = LatencySums::of(&histogram);
        assert_eq!(sums.counts[..3], [2, 2, 0]);
        assert_eq!(sums.counts[BOUNDS - 1..], [1, 1]);
        assert_eq!(sums.totals().sum, Duration::from_micros(60_002_002));
    }

    #[test]
    fn statuses_are_bounded() {
        let counters = StatusCounters::default();
        for status in (200..600).chain([200]) {
            counters.count(status);
        }
        let mut sums = BTreeMap::new();
        counters.add_to(&mut sums);
        assert_eq!(sums.len(), STATUSES);
        assert_eq!((sums.get(&200), sums.get(&201)), (Some(&2), Some(&1)));
    }

    #[test]
    fn bounds_are_the_same_in_both_units() {
        for (us, s) in BOUNDS_US.iter().zip(BOUNDS_S) {
            let seconds: f64 = s.parse().expect("it is a number");
            assert_eq!((seconds * 1e6).round() as u64, *us);
        }
    }
}
