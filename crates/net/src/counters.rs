//! What the server counts all the time: connections and requests.
//!
//! Every loop has its own counters and is the only one that writes them. So counting is a plain load and store, and
//! no two processors contend for a cache line. A reader (`stub_status`, a status page) adds the loops up. The sum
//! is exact for a loop that stands still and a moment old for one that runs.
//!
//! The numbers outlive a reload: they belong to the loops, not to a configuration. A stream session counts as a
//! connection too; requests, and the stages of a connection, exist in HTTP only.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::sync::Mutex;
use host::engine::ZoneRegistry;

/// The counters of one loop.
#[derive(Debug, Default)]
// 128 bytes are two cache lines: processors prefetch lines in pairs, so that with 64 two loops would still slow
// each other down.
#[repr(align(128))]
pub struct ConnectionCounters {
    /// Connections accepted.
    pub accepted: SingleWriterCounter,
    /// Connections that were served; fewer than accepted when `worker_connections` was reached.
    pub handled: SingleWriterCounter,
    /// Requests begun.
    pub requests: SingleWriterCounter,
    /// Connections open now.
    pub active: SingleWriterCounter,
    /// Of those, the ones whose request head is incomplete.
    pub reading: SingleWriterCounter,
    /// Of those, the ones that are being answered.
    pub writing: SingleWriterCounter,
    /// Of those, the ones that wait for a request.
    pub waiting: SingleWriterCounter,
    /// TLS handshakes, by [`TLS_KINDS`].
    pub tls: [SingleWriterCounter; TLS_KINDS.len()],
    /// TLS handshakes that failed.
    pub tls_failed: SingleWriterCounter,
}

/// The kinds of handshakes that are counted: the version, and whether a session was resumed.
pub const TLS_KINDS: [(&str, &str); 4] = [
    ("TLSv1.2", "no"),
    ("TLSv1.2", "yes"),
    ("TLSv1.3", "no"),
    ("TLSv1.3", "yes"),
];

/// A number that one thread changes and every thread may read. It wraps rather than panics: a counter must not end
/// a loop.
#[derive(Debug, Default)]
pub struct SingleWriterCounter(AtomicU64);

impl SingleWriterCounter {
    /// Adds. Only the loop that owns the counter may call this: it is a load and a store, so two writers would lose
    /// counts.
    #[inline]
    pub fn add(&self, number: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(number), Relaxed);
    }

    /// Subtracts, with the rule of [`SingleWriterCounter::add`].
    #[inline]
    pub fn sub(&self, number: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_sub(number), Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What an HTTP connection does at the moment: the `Reading`, `Writing` and `Waiting` of `stub_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionStage {
    /// It waits for the first byte of a request.
    Waiting,
    /// It reads the head of a request.
    Reading,
    /// It makes or sends a response.
    Writing,
}

/// Counts one connection in its stage, and removes it from the count when it is dropped: on every way out, a panic
/// included.
#[derive(Debug)]
pub struct CountedConnection {
    counters: Arc<ConnectionCounters>,
    stage: Cell<ConnectionStage>,
}

impl CountedConnection {
    /// A connection that waits for its first request.
    pub fn new(counters: &Arc<ConnectionCounters>) -> CountedConnection {
        counters.waiting.add(1);
        CountedConnection {
            counters: Arc::clone(counters),
            stage: Cell::new(ConnectionStage::Waiting),
        }
    }

    /// Moves the connection's count to another stage.
    pub fn enter_stage(&self, stage: ConnectionStage) {
        let former = self.stage.replace(stage);
        if former != stage {
            self.counter(former).sub(1);
            self.counter(stage).add(1);
        }
    }

    fn counter(&self, stage: ConnectionStage) -> &SingleWriterCounter {
        match stage {
            ConnectionStage::Waiting => &self.counters.waiting,
            ConnectionStage::Reading => &self.counters.reading,
            ConnectionStage::Writing => &self.counters.writing,
        }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.counter(self.stage.get()).sub(1);
    }
}

/// The counters of all loops added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterTotals {
    /// See [`ConnectionCounters::accepted`].
    pub accepted: u64,
    /// See [`ConnectionCounters::handled`].
    pub handled: u64,
    /// See [`ConnectionCounters::requests`].
    pub requests: u64,
    /// See [`ConnectionCounters::active`].
    pub active: u64,
    /// See [`ConnectionCounters::reading`].
    pub reading: u64,
    /// See [`ConnectionCounters::writing`].
    pub writing: u64,
    /// See [`ConnectionCounters::waiting`].
    pub waiting: u64,
    /// See [`ConnectionCounters::tls`].
    pub tls: [u64; TLS_KINDS.len()],
    /// See [`ConnectionCounters::tls_failed`].
    pub tls_failed: u64,
}

impl CounterTotals {
    fn numbers(&self) -> [u64; 12] {
        let [tls_a, tls_b, tls_c, tls_d] = self.tls;
        [
            self.accepted,
            self.handled,
            self.requests,
            self.active,
            self.reading,
            self.writing,
            self.waiting,
            tls_a,
            tls_b,
            tls_c,
            tls_d,
            self.tls_failed,
        ]
    }

    /// For another group; both are the same program.
    fn to_bytes(self) -> Vec<u8> {
        self.numbers().map(u64::to_le_bytes).concat()
    }

    /// What [`CounterTotals::to_bytes`] wrote; `None` if it is incomplete.
    fn of_bytes(bytes: &[u8]) -> Option<CounterTotals> {
        let mut numbers = bytes
            .as_chunks()
            .0
            .iter()
            .map(|one| u64::from_le_bytes(*one));
        let mut next = || numbers.next();
        Some(CounterTotals {
            accepted: next()?,
            handled: next()?,
            requests: next()?,
            active: next()?,
            reading: next()?,
            writing: next()?,
            waiting: next()?,
            tls: [next()?, next()?, next()?, next()?],
            tls_failed: next()?,
        })
    }

    fn add(&mut self, other: &CounterTotals) {
        self.accepted += other.accepted;
        self.handled += other.handled;
        self.requests += other.requests;
        self.active += other.active;
        self.reading += other.reading;
        self.writing += other.writing;
        self.waiting += other.waiting;
        for (sum, count) in self.tls.iter_mut().zip(other.tls) {
            *sum += count;
        }
        self.tls_failed += other.tls_failed;
    }
}

/// The topic of questions between worker groups.
const TOPIC: &str = "counters";

/// Lets other worker groups ask for this one's totals.
pub fn answer_groups(zones: &ZoneRegistry) {
    let all = zones.get_or_create(ZONE, AllCounters::default);
    let answer = move |_: &[u8]| Some(all.totals().to_bytes());
    zones.group().on_message(TOPIC, answer);
}

/// The sums over all worker groups. One that has just crashed counts nothing.
pub async fn server_totals(zones: &ZoneRegistry) -> CounterTotals {
    // Asked first, so that all are counted at about the same time.
    let answers = zones.group().ask(TOPIC, b"");
    let mut totals = zones.get_or_create(ZONE, AllCounters::default).totals();
    for answer in answers {
        if let Some(other) = answer
            .wait()
            .await
            .as_deref()
            .and_then(CounterTotals::of_bytes)
        {
            totals.add(&other);
        }
    }
    totals
}

/// The name under which [`AllCounters`] is kept over a reload.
pub const ZONE: &str = "counters";

/// All loops with their counters: shared as a zone, so that they outlive the configuration.
#[derive(Debug, Default)]
pub struct AllCounters {
    /// By the loop's index.
    loops: Mutex<Vec<CountedLoop>>,
    /// Counters of loops that a reload has removed, until their last connection has ended and lets go of them.
    removed: Mutex<Vec<Arc<ConnectionCounters>>>,
    /// The final numbers of loops whose last connection has ended: totals must not fall when loops are removed.
    past: Mutex<CounterTotals>,
}

/// A loop and its counters.
#[derive(Clone, Debug, Default)]
pub struct CountedLoop {
    /// Its counters.
    pub counters: Arc<ConnectionCounters>,
    /// The loop; `None` before it began to serve.
    pub handle: Option<rt::LoopHandle>,
}

impl AllCounters {
    /// The counters of loop `index`, created at the first call.
    pub fn for_loop(&self, index: usize) -> Arc<ConnectionCounters> {
        let mut loops = self.loops.lock();
        Arc::clone(&entry(&mut loops, index).counters)
    }

    /// Records which loop has this index. An earlier loop at this index has been removed by a reload.
    pub fn attach_loop(&self, index: usize, handle: rt::LoopHandle) {
        let mut loops = self.loops.lock();
        let entry = entry(&mut loops, index);
        if entry.handle.replace(handle).is_some() {
            // The earlier loop may still have connections that count with its own counters, and it is the only
            // writer of those: the new loop gets fresh ones.
            let former = std::mem::take(&mut entry.counters);
            self.remove(former);
        }
    }

    /// Drops the loops from index `count` on, which a reload has removed.
    pub fn remove_loops_from(&self, count: usize) {
        let mut loops = self.loops.lock();
        while loops.len() > count {
            if let Some(last) = loops.pop() {
                self.remove(last.counters);
            }
        }
    }

    /// Keeps the counters of a removed loop while connections use them, and adds to the past those that no
    /// connection uses any more.
    fn remove(&self, counters: Arc<ConnectionCounters>) {
        let mut removed = self.removed.lock();
        removed.push(counters);
        let mut past = self.past.lock();
        removed.retain(|counters| {
            // This list holds the only reference: no connection is left that could count.
            let ended = Arc::strong_count(counters) == 1;
            if ended {
                counters.add_to(&mut past);
            }
            !ended
        });
    }

    /// All loops by index.
    pub fn loops(&self) -> Vec<CountedLoop> {
        self.loops.lock().clone()
    }

    /// The sums over all loops.
    pub fn totals(&self) -> CounterTotals {
        // Both locks in the order of `remove`, and `removed` held over both reads: counters that move from one to
        // the other in between would be counted twice or not at all.
        let removed = self.removed.lock();
        let mut totals = *self.past.lock();
        for counters in removed.iter() {
            counters.add_to(&mut totals);
        }
        drop(removed);
        for counted in self.loops() {
            counted.counters.add_to(&mut totals);
        }
        totals
    }
}

fn entry(loops: &mut Vec<CountedLoop>, index: usize) -> &mut CountedLoop {
    if loops.len() <= index {
        loops.resize_with(index + 1, CountedLoop::default);
    }
    &mut loops[index]
}

impl ConnectionCounters {
    /// Counts a handshake that succeeded.
    pub fn count_handshake(&self, version: &str, is_resumed: bool) {
        let resumed = if is_resumed { "yes" } else { "no" };
        let kind = TLS_KINDS
            .iter()
            .position(|kind| *kind == (version, resumed));
        if let Some(kind) = kind {
            self.tls[kind].add(1);
        }
    }

    /// The numbers of this loop.
    pub fn totals(&self) -> CounterTotals {
        let mut totals = CounterTotals::default();
        self.add_to(&mut totals);
        totals
    }

    fn add_to(&self, totals: &mut CounterTotals) {
        totals.accepted += self.accepted.get();
        totals.handled += self.handled.get();
        totals.requests += self.requests.get();
        totals.active += self.active.get();
        totals.reading += self.reading.get();
        totals.writing += self.writing.get();
        totals.waiting += self.waiting.get();
        for (sum, count) in totals.tls.iter_mut().zip(&self.tls) {
            *sum += count.get();
        }
        totals.tls_failed += self.tls_failed.get();
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
        assert_eq!(
            all.totals(),
            CounterTotals {
                requests: 5,
                ..CounterTotals::default()
            }
        );
        assert_eq!(all.loops().len(), 2);
    }

    #[test]
    fn totals_travel_whole() {
        let totals = CounterTotals {
            accepted: 1,
            handled: 2,
            requests: 3,
            active: 4,
            reading: 5,
            writing: 6,
            waiting: u64::MAX,
            tls: [7, 8, 9, 10],
            tls_failed: 11,
        };
        let bytes = totals.to_bytes();
        assert_eq!(CounterTotals::of_bytes(&bytes), Some(totals));
        assert_eq!(CounterTotals::of_bytes(&bytes[..95]), None);
    }

    #[test]
    fn a_connection_is_counted_where_it_is() {
        let counters = Arc::default();
        let numbers = |counters: &ConnectionCounters| {
            [&counters.waiting, &counters.reading, &counters.writing].map(SingleWriterCounter::get)
        };
        let counted = CountedConnection::new(&counters);
        assert_eq!(numbers(&counters), [1, 0, 0]);
        counted.enter_stage(ConnectionStage::Reading);
        counted.enter_stage(ConnectionStage::Reading);
        assert_eq!(numbers(&counters), [0, 1, 0]);
        counted.enter_stage(ConnectionStage::Writing);
        drop(counted);
        assert_eq!(numbers(&counters), [0, 0, 0]);
    }
}
