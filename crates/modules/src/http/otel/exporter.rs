//! Where spans wait for the collector, and the thread that sends them.
//!
//! ```text
//! loop ──▶ its shard ──full──▶ queue ──▶ thread `otel`, with an event loop of its own ──▶ collector
//!             └────every interval─────────┘
//! ```
//!
//! A loop appends bytes to its shard and never waits: a thread of its own connects, encrypts and retries. A collector that
//! is away costs what `batch_size` and `batch_count` say and no more; further spans are dropped and counted. The log has
//! one line when the collector goes and one when it is back.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use base::sync::{Condvar, Mutex};
use host::error_log::{LogLevel, Logger};
use net::resolver::Resolver;
use rt::sync::Notify;

use super::delivery::{CollectorClient, DeliveryFailure};
use super::settings::ExporterSettings;
use super::wire;
use crate::shared::span_counters::SpanCounters;

/// The number of shards. With more loops, some share one.
const SHARDS: usize = 32;

/// A batch ends at this many bytes, however few spans it has: the libraries of gRPC take messages of 4 MB by default.
const MAX_BATCH: usize = 1 << 20;

/// A span that is longer is dropped.
const MAX_SPAN: usize = 256 * 1024;

/// How many batches' memory is kept.
const SPARE: usize = 2;

/// The first wait before a batch is sent again, and the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Spans that travel together.
#[derive(Debug, Default)]
struct SpanBatch {
    bytes: Vec<u8>,
    count: usize,
}

/// Exports the spans of a process to one collector. When the last configuration that uses it is gone, its thread sends what
/// is left, and ends.
pub(super) struct SpanExporter {
    core: Arc<ExporterCore>,
}

/// What the loops and the thread share.
struct ExporterCore {
    settings: Arc<ExporterSettings>,
    shards: [Mutex<SpanBatch>; SHARDS],
    queue: Mutex<VecDeque<SpanBatch>>,
    /// Memory of batches that were sent, for the next ones: some hundred kilobytes each, which the allocator would take
    /// from the system and give back every time.
    spare: Mutex<Vec<Vec<u8>>>,
    /// How many batches wait at most.
    capacity: AtomicUsize,
    counters: Arc<SpanCounters>,
    log: Logger,
    wake: rt::LoopHandle,
    /// No more spans come: the thread sends what there is and ends.
    closing: AtomicBool,
    ended: Mutex<bool>,
    has_ended: Condvar,
}

/// What the thread needs besides.
pub(super) struct ExporterNetwork {
    pub(super) resolver: Arc<Resolver>,
    pub(super) resolver_timeout: Duration,
}

rt::local! {
    /// The shard of this thread.
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    /// Wakes the task of the exporter that runs on this thread.
    static WAKE: Rc<Notify> = Rc::default();
}

impl SpanExporter {
    /// Starts the thread.
    pub(super) fn start(
        settings: Arc<ExporterSettings>,
        network: ExporterNetwork,
        counters: Arc<SpanCounters>,
        log: Logger,
    ) -> std::io::Result<SpanExporter> {
        let event_loop = rt::EventLoop::new(rt::LoopOptions {
            name: "otel".to_owned(),
            slow_turn: Duration::ZERO,
            ..rt::LoopOptions::default()
        })?;
        let core = Arc::new(ExporterCore {
            capacity: AtomicUsize::new(0),
            settings,
            shards: std::array::from_fn(|_| Mutex::default()),
            queue: Mutex::default(),
            spare: Mutex::default(),
            counters,
            log,
            wake: event_loop.handle(),
            closing: AtomicBool::new(false),
            ended: Mutex::new(false),
            has_ended: Condvar::default(),
        });
        let own = Arc::clone(&core);
        let thread = std::thread::Builder::new().name("otel".to_owned());
        thread.spawn(move || {
            let _end = ThreadEnd(Arc::clone(&own));
            let log = own.log.clone();
            if let Err(error) = event_loop.run(move || deliver_all(own, network)) {
                let error = base::ErrnoText(&error);
                log.log_plain(
                    LogLevel::Alert,
                    format_args!("otel: the exporter ended{error}"),
                );
            }
        })?;
        Ok(SpanExporter { core })
    }

    /// The settings it was started with.
    pub(super) fn settings(&self) -> &ExporterSettings {
        &self.core.settings
    }

    /// What became of the process's spans.
    pub(super) fn counters(&self) -> &SpanCounters {
        &self.core.counters
    }

    /// Takes a span. Called on loops.
    #[inline]
    pub(super) fn add(&self, span: &[u8]) {
        let core = &*self.core;
        let mut shard = core.shards[shard_of_thread(core)].lock();
        let is_full =
            shard.count >= core.settings.batch_size || shard.bytes.len() + span.len() > MAX_BATCH;
        if span.len() > MAX_SPAN || (is_full && !core.send(&mut shard)) {
            drop(shard);
            core.counters.dropped.fetch_add(1, Relaxed);
            return;
        }
        wire::append_span(span, &mut shard.bytes);
        shard.count += 1;
    }

    /// Sends what there is, as far as it can be done until the deadline. Called at the end of the process.
    pub(super) fn finish(&self, deadline: Instant) {
        self.core.close();
        let mut ended = self.core.ended.lock();
        while !*ended {
            let left = deadline.saturating_duration_since(rt::clock::read_clock());
            if left.is_zero() {
                return;
            }
            ended = self.core.has_ended.wait_timeout(ended, left).0;
        }
    }
}

impl Drop for SpanExporter {
    fn drop(&mut self) {
        self.core.close();
    }
}

/// Tells that the thread has ended, even by a panic.
struct ThreadEnd(Arc<ExporterCore>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.has_ended.notify_all();
    }
}

/// The shard of this thread. A new one raises the number of batches that may wait: `batch_count` is for each loop, as it is
/// for each worker of nginx.
fn shard_of_thread(core: &ExporterCore) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let known = SHARD.get();
    let shard = known.unwrap_or_else(|| NEXT.fetch_add(1, Relaxed) % SHARDS);
    if known.is_none() {
        SHARD.set(Some(shard));
    }
    let least = core.settings.batch_count * (shard + 1);
    if core.capacity.load(Relaxed) < least {
        core.capacity.fetch_max(least, Relaxed);
    }
    shard
}

impl ExporterCore {
    /// Puts a batch into the queue and an empty one in its place. `false` if there is no room.
    #[cold]
    fn send(&self, batch: &mut SpanBatch) -> bool {
        let mut queue = self.queue.lock();
        // The batch that is being filled counts as one.
        if queue.len() + 1 >= self.capacity.load(Relaxed).max(2) {
            return false;
        }
        let next = SpanBatch {
            // As much as this one had: most are alike.
            bytes: (self.spare.lock().pop())
                .unwrap_or_else(|| Vec::with_capacity(batch.bytes.len())),
            count: 0,
        };
        queue.push_back(std::mem::replace(batch, next));
        drop(queue);
        self.wake();
        true
    }

    fn wake(&self) {
        // A loop that has ended needs none.
        let _ = self.wake.post(|| WAKE.with(|wake| wake.notify_one()));
    }

    fn close(&self) {
        self.closing.store(true, Relaxed);
        self.wake();
    }

    /// Moves what is in the shards to the queue, joined as far as a batch may be long.
    fn collect(&self) {
        let mut joined = SpanBatch::default();
        let mut batches = Vec::new();
        for shard in &self.shards {
            let part = std::mem::take(&mut *shard.lock());
            let count = joined.count + part.count;
            if count > self.settings.batch_size || joined.bytes.len() + part.bytes.len() > MAX_BATCH
            {
                batches.push(std::mem::take(&mut joined));
            }
            joined.count += part.count;
            match joined.bytes.is_empty() {
                true => joined.bytes = part.bytes,
                false => joined.bytes.extend_from_slice(&part.bytes),
            }
        }
        batches.push(joined);
        // Beyond the limit by what the shards had: they are empty now.
        let batches = batches.into_iter().filter(|batch| batch.count > 0);
        self.queue.lock().extend(batches);
    }

    /// Keeps the memory of a batch that is done.
    fn keep(&self, mut bytes: Vec<u8>) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE {
            bytes.clear();
            spare.push(bytes);
        }
    }

    /// How many batches wait.
    fn waiting(&self) -> usize {
        self.queue.lock().len()
    }
}

/// The main task of the thread.
async fn deliver_all(core: Arc<ExporterCore>, network: ExporterNetwork) {
    let mut client = CollectorClient::new(Arc::clone(&core.settings), network);
    let mut state = CollectorState::default();
    let wake = WAKE.with(Rc::clone);
    let mut next_collection = rt::now() + core.settings.interval;
    let mut message = Vec::new();
    loop {
        let closing = core.closing.load(Relaxed);
        // While batches wait for a collector that is away, the shards keep what they have: they fill, and no more is taken.
        if closing || (rt::now() >= next_collection && core.waiting() == 0) {
            core.collect();
            next_collection = rt::now() + core.settings.interval;
        }
        let batch = core.queue.lock().pop_front();
        let Some(batch) = batch else {
            if closing {
                return;
            }
            let left = next_collection.saturating_duration_since(rt::now());
            // Woken for a full batch, or for the end.
            let _elapsed = rt::timeout(left.max(Duration::from_millis(1)), wake.notified()).await;
            continue;
        };
        core.settings.head.write_message(&batch.bytes, &mut message);
        match client.deliver(&message).await {
            Ok(rejection) => {
                state.is_back(&core);
                note_delivery(&core, batch.count, rejection);
                core.keep(batch.bytes);
            }
            Err(DeliveryFailure::Refused(why)) => {
                state.is_back(&core);
                note_delivery(&core, batch.count, (batch.count as u64, why));
            }
            Err(DeliveryFailure::Away(why)) => {
                state.is_away(&core, &why);
                if closing {
                    let lost = batch.count + drain(&core);
                    core.counters.dropped.fetch_add(lost as u64, Relaxed);
                    return;
                }
                core.queue.lock().push_front(batch);
                wait_to_retry(&core, &wake, state.next_wait()).await;
            }
        }
    }
}

/// Waits before the next try; the end of the process ends the wait.
async fn wait_to_retry(core: &ExporterCore, wake: &Notify, wait: Duration) {
    let end = rt::now() + wait;
    while !core.closing.load(Relaxed) && rt::now() < end {
        let left = end.saturating_duration_since(rt::now());
        let _elapsed = rt::timeout(left.max(Duration::from_millis(1)), wake.notified()).await;
    }
}

/// Empties the queue; gives the number of spans.
fn drain(core: &ExporterCore) -> usize {
    let batches = std::mem::take(&mut *core.queue.lock());
    batches.iter().map(|batch| batch.count).sum()
}

fn note_delivery(core: &ExporterCore, count: usize, (rejected, why): (u64, String)) {
    let rejected = rejected.min(count as u64);
    let counters = &core.counters;
    counters
        .exported
        .fetch_add(count as u64 - rejected, Relaxed);
    let before = counters.rejected.fetch_add(rejected, Relaxed);
    // The first time only: whatever is wrong with one span is wrong with the next ones.
    if rejected > 0 && before == 0 {
        let why = base::text::visible_text(&why);
        core.log.log_plain(
            LogLevel::Error,
            format_args!("otel: the collector rejected {rejected} of {count} spans: {why}"),
        );
    }
}

/// What is known of the collector.
#[derive(Default)]
struct CollectorState {
    /// Since when it is away, how many spans had been dropped by then, and how long the last wait was.
    away: Option<(Instant, u64, Duration)>,
}

impl CollectorState {
    /// Logs that it is away, the first time.
    fn is_away(&mut self, core: &ExporterCore, why: &str) {
        if self.away.is_none() {
            let dropped = core.counters.dropped.load(Relaxed);
            self.away = Some((rt::now(), dropped, Duration::ZERO));
            let endpoint = &core.settings.endpoint;
            let why = base::text::visible_text(why);
            core.log.log_plain(
                LogLevel::Error,
                format_args!("otel: spans cannot be exported to {endpoint}: {why}; trying again, spans beyond the buffers are dropped"),
            );
        }
    }

    /// Logs that it is back, if it was away.
    fn is_back(&mut self, core: &ExporterCore) {
        if let Some((since, dropped, _)) = self.away.take() {
            let seconds = rt::now().saturating_duration_since(since).as_secs();
            let dropped = core.counters.dropped.load(Relaxed).wrapping_sub(dropped);
            let endpoint = &core.settings.endpoint;
            core.log.log_plain(
                LogLevel::Notice,
                format_args!("otel: spans are exported to {endpoint} again after {seconds} s, {dropped} were dropped"),
            );
        }
    }

    /// How long to wait this time: twice as long as the last time.
    fn next_wait(&mut self) -> Duration {
        let Some((_, _, wait)) = &mut self.away else {
            return FIRST_RETRY;
        };
        *wait = (*wait * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
        *wait
    }
}
