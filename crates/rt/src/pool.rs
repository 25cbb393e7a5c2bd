//! Thread pools for work that may block on a device, with bounded queues that push back.
//!
//! A job goes into its device's queue within the pool. Threads take jobs from the devices in turn. A device leaves
//! to each other active device as many threads as that one may need, up to an equal share. So a slow disk cannot
//! take the threads that a healthy one needs, and a device with an occasional job does not halve what a busy one
//! has. When `max_queue` jobs are queued, further callers wait in the order of their arrival: a full queue delays,
//! and never fails. It is reported at most once a second.
//!
//! Threads start when there is work for them and none is idle, up to the pool's number.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock;
use crate::panics;
use crate::probes;
use crate::report::{self, ReportLimit, RuntimeEvent};
use crate::sync::{ChannelClosed, remote_oneshot};
use base::sync::{Condvar, Mutex, MutexGuard};

/// The number of threads of the default pool; nginx's value.
pub const DEFAULT_THREADS: usize = 32;
/// The queue length of the default pool; nginx's value.
pub const DEFAULT_MAX_QUEUE: usize = 65_536;

/// A device that had work within this many ticks keeps its share of the threads free.
const AT_WORK_TICKS: u64 = 1_000;
/// An active device is left twice as many threads as it had jobs at a time, in case it becomes busier, and at least
/// the pool's threads divided by this.
const LEAST_SHARE: usize = 4;
/// How many devices are remembered before those without work are forgotten.
const DEVICES_KEPT: usize = 64;
/// How often a thread looks again if all queued devices have used up their shares.
const SHARE_RECHECK: Duration = Duration::from_millis(50);

/// A device number (`st_dev`), for the sub-queue of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceNumber(pub u64);

impl DeviceNumber {
    /// For work whose device is not known.
    pub const UNKNOWN: Self = Self(0);
}

/// A handle of a thread pool.
#[derive(Clone)]
pub struct PoolHandle(Arc<PoolOwner>);

/// Shared by the handles but not by the threads: when the last handle is dropped, the threads end.
struct PoolOwner(Arc<PoolShared>);

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.work.notify_all();
    }
}

static REGISTRY: Mutex<Option<HashMap<String, PoolHandle>>> = Mutex::new(None);

/// Creates the pool `name`, or returns the existing one if its size is the same. One of another size is replaced:
/// its threads end when its last handle is dropped.
pub fn register(name: &str, threads: usize, max_queue: usize) -> PoolHandle {
    let mut registry = REGISTRY.lock();
    let pools = registry.get_or_insert_default();
    if let Some(pool) = pools.get(name)
        && (pool.shared().threads, pool.shared().max_queue) == (threads.max(1), max_queue)
    {
        return pool.clone();
    }
    let pool = PoolHandle::new(name, threads, max_queue);
    pools.insert(name.to_owned(), pool.clone());
    pool
}

/// The pool registered as `name`.
pub fn get(name: &str) -> Option<PoolHandle> {
    let registry = REGISTRY.lock();
    registry.as_ref()?.get(name).cloned()
}

/// All registered pools, by name.
pub fn all() -> Vec<PoolHandle> {
    let registry = REGISTRY.lock();
    let mut pools: Vec<PoolHandle> = registry
        .iter()
        .flat_map(|pools| pools.values().cloned())
        .collect();
    pools.sort_by(|one, other| one.name().cmp(other.name()));
    pools
}

/// The pool named `default`; created with nginx's numbers if it was not registered.
pub fn default_pool() -> PoolHandle {
    get("default").unwrap_or_else(|| register("default", DEFAULT_THREADS, DEFAULT_MAX_QUEUE))
}

struct PoolShared {
    name: String,
    threads: usize,
    max_queue: usize,
    state: Mutex<PoolState>,
    work: Condvar,
    waited_nanos: AtomicU64,
    overflow: ReportLimit,
}

#[derive(Default)]
struct PoolState {
    devices: Vec<DeviceQueue>,
    /// Where the search for the next job begins, so that devices take turns.
    turn: usize,
    queued: usize,
    /// Jobs of callers that found the queue full, in order.
    waiting: VecDeque<(DeviceNumber, JobTicket, PoolJob)>,
    /// The ticket of the last job.
    last_ticket: u64,
    started: usize,
    idle: usize,
    running: usize,
    done: u64,
    /// The last handle is gone.
    closed: bool,
}

struct DeviceQueue {
    device: DeviceNumber,
    jobs: VecDeque<(JobTicket, PoolJob)>,
    /// Jobs that were moved forward, and how many of them ran since one of the others did.
    forward: VecDeque<PoolJob>,
    in_a_row: usize,
    running: usize,
    last_work: u64,
    /// The most jobs, queued and running, during the present period and the previous one.
    most: [usize; 2],
    /// When the present period began.
    since: u64,
}

impl DeviceQueue {
    fn is_at_work(&self, tick: u64) -> bool {
        self.running > 0 || tick.saturating_sub(self.last_work) < AT_WORK_TICKS
    }

    /// Counts a new job.
    fn count_in(&mut self, tick: u64) {
        if tick.saturating_sub(self.since) >= AT_WORK_TICKS {
            self.most = [0, self.most[0]];
            self.since = tick;
        }
        self.most[0] = self.most[0].max(self.running + self.queued());
        self.last_work = tick;
    }

    fn queued(&self) -> usize {
        self.jobs.len() + self.forward.len()
    }

    fn call_forward(&mut self, ticket: JobTicket) {
        let place = self.jobs.iter().position(|(queued, _)| *queued == ticket);
        if let Some((_, job)) = place.and_then(|place| self.jobs.remove(place)) {
            self.forward.push_back(job);
        }
    }

    fn pop(&mut self) -> Option<PoolJob> {
        let turn_of_others = self.in_a_row >= FORWARD_IN_A_ROW && !self.jobs.is_empty();
        if !turn_of_others && let Some(job) = self.forward.pop_front() {
            self.in_a_row += 1;
            return Some(job);
        }
        self.in_a_row = 0;
        self.jobs.pop_front().map(|(_, job)| job)
    }

    /// How many threads the device may need, if an equal share is `fair`.
    fn reserve(&self, threads: usize, fair: usize) -> usize {
        let jobs = self.most[0].max(self.most[1]);
        fair.min((2 * jobs).max(threads / LEAST_SHARE))
    }
}

type PoolJob = Box<dyn FnOnce() + Send>;

/// Names a job of a pool while it is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobTicket(u64);

/// Jobs that were moved forward run before others, but no more than this many in a row.
const FORWARD_IN_A_ROW: usize = 2;

/// The state of a pool at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Threads started.
    pub threads: usize,
    /// Jobs that run.
    pub running: usize,
    /// Jobs queued.
    pub queued: usize,
    /// Jobs that wait for a place in the queue.
    pub waiting: usize,
    /// Jobs done so far.
    pub done: u64,
    /// How long those whose caller waited have waited for a thread, together.
    pub waited: Duration,
}

impl PoolHandle {
    /// A pool that is not registered. `max_queue` may be 0: then a job waits until a thread is free,
    /// which is the same to its caller.
    pub fn new(name: &str, threads: usize, max_queue: usize) -> Self {
        panics::install_hook();
        Self(Arc::new(PoolOwner(Arc::new(PoolShared {
            name: name.to_owned(),
            threads: threads.max(1),
            max_queue,
            state: Mutex::default(),
            work: Condvar::new(),
            waited_nanos: AtomicU64::new(0),
            overflow: ReportLimit::new(),
        }))))
    }

    fn shared(&self) -> &Arc<PoolShared> {
        &self.0.0
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Its state now.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared().state();
        PoolStats {
            threads: state.started,
            running: state.running,
            queued: state.queued,
            waiting: state.waiting.len(),
            done: state.done,
            waited: Duration::from_nanos(self.shared().waited_nanos.load(Relaxed)),
        }
    }

    /// Runs `f` on a thread of the pool and returns its result. A panic of `f` is passed on to the caller's task.
    /// If the caller is dropped before `f` has started, `f` does not run.
    pub async fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        self.run_on(DeviceNumber::UNKNOWN, f).await
    }

    /// [`PoolHandle::run`], in the sub-queue of a device.
    pub async fn run_on<T: Send + 'static>(
        &self,
        device: DeviceNumber,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = remote_oneshot::channel();
        let name = self.shared().name.clone();
        let (shared, queued) = (Arc::clone(self.shared()), clock::read_clock());
        let job = move || {
            let waited = u64::try_from(clock::elapsed(queued).as_nanos()).unwrap_or(0);
            shared.waited_nanos.fetch_add(waited, Relaxed);
            drop(shared);
            // The caller has gone, as with a client that left: the device has better things to do.
            if sender.is_closed() {
                return;
            }
            let outcome = panics::catch(f).map_err(|payload| PoolPanic::of(&name, payload));
            // An error means that the caller has gone.
            drop(sender.send(outcome));
        };
        self.submit(device, Box::new(job));
        match receiver.await {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(Box::new(panic)),
            Err(ChannelClosed) => unreachable!("a job sends its outcome, and queued jobs are run"),
        }
    }

    /// Runs `f` on a thread of the pool, for its effect only, without a waiting caller.
    pub fn submit(&self, device: DeviceNumber, f: Box<dyn FnOnce() + Send>) {
        let _not_called_forward = self.enqueue_job(device, f);
    }

    /// [`PoolHandle::submit`], for a job that may be called forward.
    pub(crate) fn enqueue_job(
        &self,
        device: DeviceNumber,
        f: Box<dyn FnOnce() + Send>,
    ) -> JobTicket {
        #[cfg(feature = "simulation")]
        let f = match crate::simulation::enqueue_job(f) {
            Ok(()) => return JobTicket(0),
            Err(f) => f,
        };
        let mut state = self.shared().state();
        probes::pool_queue(device.0, state.queued);
        state.last_ticket += 1;
        let ticket = JobTicket(state.last_ticket);
        // Jobs for which a thread is free are hardly queued at all, so they are accepted whatever `max_queue` says.
        // But if others wait already, a new job waits behind them: first come, first served.
        let free_threads = self.shared().threads - state.running.min(self.shared().threads);
        if state.queued >= self.shared().max_queue.max(free_threads) || !state.waiting.is_empty() {
            state.waiting.push_back((device, ticket, f));
            let waiting = state.waiting.len();
            drop(state);
            if self.shared().overflow.allows_report() {
                report::report_event(&RuntimeEvent::PoolOverflow {
                    pool: &self.shared().name,
                    waiting,
                });
            }
            return ticket;
        }
        state.push(device, ticket, f);
        self.shared().wake_thread(state);
        ticket
    }

    /// Moves a job in front of others of its device, if it is still queued.
    pub(crate) fn call_forward(&self, device: DeviceNumber, ticket: JobTicket) {
        let mut state = self.shared().state();
        let mut queues = state.devices.iter_mut();
        if let Some(queue) = queues.find(|queue| queue.device == device) {
            queue.call_forward(ticket);
        }
    }
}

impl fmt::Debug for PoolHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolHandle").field(&self.name()).finish()
    }
}

/// The payload of a panic that happened on a pool's thread and was reported there.
pub(crate) struct PoolPanic(String);

impl PoolPanic {
    fn of(pool: &str, payload: Box<dyn Any + Send>) -> Self {
        panics::report(pool, payload.as_ref());
        Self(panics::message(payload.as_ref()).to_owned())
    }

    pub(crate) fn message(&self) -> &str {
        &self.0
    }
}

impl PoolShared {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        // Jobs run without the lock, so that none can leave the state half changed.
        self.state.lock()
    }

    /// Makes sure that a thread comes for a job that was just queued.
    fn wake_thread(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState>) {
        if state.idle > 0 || state.started >= self.threads {
            drop(state);
            self.work.notify_one();
            return;
        }
        // Threads start with the work, so a pool that is only named in the configuration has none.
        state.started += 1;
        let only = state.started == 1;
        drop(state);
        let shared = Arc::clone(self);
        let builder = std::thread::Builder::new().name(format!("pool {}", self.name));
        if builder.spawn(move || shared.work()).is_err() {
            self.state().started -= 1;
            if only {
                // No thread can be started at all: slow is better than never.
                self.run_queued();
            }
        }
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state();
        loop {
            if let Some((device, job)) = state.pop(self.threads) {
                if state.queued > 0 {
                    // Each thread wakes the next one: a thread that was woken but is not running yet still counts
                    // as idle, so two jobs may have woken the same one.
                    self.wake_thread(state);
                } else {
                    drop(state);
                }
                self.do_job(device, job);
                state = self.state();
                state.finished(device);
                state.admit(self.max_queue);
                continue;
            }
            if state.closed && state.queued == 0 {
                return;
            }
            state.idle += 1;
            // There are jobs, but their devices have used up their shares. The shares grow when another device
            // becomes idle, which is not announced, so this looks again from time to time.
            state = if state.queued > 0 {
                let waited = self.work.wait_timeout(state, SHARE_RECHECK);
                waited.0
            } else {
                self.work.wait(state)
            };
            state.idle -= 1;
        }
    }

    /// A job whose caller waits catches its own panics, to pass them on.
    fn do_job(&self, device: DeviceNumber, job: PoolJob) {
        probes::pool_start(device.0);
        if let Err(payload) = panics::catch(job) {
            panics::report(&self.name, payload.as_ref());
        }
        probes::pool_end(device.0);
    }

    fn run_queued(&self) {
        loop {
            let mut state = self.state();
            let Some((device, job)) = state.pop(self.threads) else {
                return;
            };
            drop(state);
            self.do_job(device, job);
            let mut state = self.state();
            state.finished(device);
            state.admit(self.max_queue);
        }
    }
}

impl PoolState {
    fn push(&mut self, device: DeviceNumber, ticket: JobTicket, job: PoolJob) {
        let tick = clock::real_tick();
        self.queued += 1;
        if let Some(queue) = self.devices.iter_mut().find(|queue| queue.device == device) {
            queue.jobs.push_back((ticket, job));
            queue.count_in(tick);
            return;
        }
        if self.devices.len() >= DEVICES_KEPT {
            self.devices
                .retain(|queue| queue.running > 0 || queue.queued() > 0);
        }
        self.devices.push(DeviceQueue {
            device,
            jobs: VecDeque::from([(ticket, job)]),
            forward: VecDeque::new(),
            in_a_row: 0,
            running: 0,
            last_work: tick,
            most: [1, 0],
            since: tick,
        });
    }

    /// The next job: of the next device in turn that has not used up its share of the threads.
    fn pop(&mut self, threads: usize) -> Option<(DeviceNumber, PoolJob)> {
        if self.queued == 0 {
            return None;
        }
        let tick = clock::real_tick();
        let at_work = || self.devices.iter().filter(|queue| queue.is_at_work(tick));
        let fair = threads.div_ceil(at_work().count().max(1));
        let reserved: usize = at_work().map(|queue| queue.reserve(threads, fair)).sum();
        let count = self.devices.len();
        for step in 0..count {
            let place = (self.turn + step) % count;
            let queue = &mut self.devices[place];
            let others = match queue.is_at_work(tick) {
                true => reserved - queue.reserve(threads, fair),
                false => reserved,
            };
            if queue.running >= threads.saturating_sub(others).max(fair) {
                continue;
            }
            let Some(job) = queue.pop() else {
                continue;
            };
            queue.running += 1;
            queue.last_work = tick;
            self.turn = place + 1;
            self.queued -= 1;
            self.running += 1;
            return Some((queue.device, job));
        }
        None
    }

    fn finished(&mut self, device: DeviceNumber) {
        self.running -= 1;
        self.done += 1;
        if let Some(queue) = self.devices.iter_mut().find(|queue| queue.device == device) {
            queue.running -= 1;
            queue.last_work = clock::real_tick();
        }
    }

    /// Moves the callers that have waited longest into the queue while there is room (for one at least: the thread
    /// that asks is free).
    fn admit(&mut self, max_queue: usize) {
        while self.queued < max_queue.max(1) {
            let Some((device, ticket, job)) = self.waiting.pop_front() else {
                return;
            };
            self.push(device, ticket, job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DeviceNumber = DeviceNumber(1);
    const OTHER: DeviceNumber = DeviceNumber(2);

    fn push(state: &mut PoolState, device: DeviceNumber, number: u64) {
        state.push(device, JobTicket(number), Box::new(|| ()));
    }

    #[test]
    fn what_is_called_forward_comes_first_and_does_not_starve_the_others() {
        let mut queue = DeviceQueue {
            device: DISK,
            jobs: VecDeque::new(),
            forward: VecDeque::new(),
            in_a_row: 0,
            running: 0,
            last_work: 0,
            most: [0, 0],
            since: 0,
        };
        for number in 0..6 {
            queue.jobs.push_back((JobTicket(number), Box::new(|| ())));
        }
        for number in [5, 4, 3, 3, 9] {
            queue.call_forward(JobTicket(number));
        }
        let mut taken = Vec::new();
        while queue.queued() > 0 {
            let before = queue.forward.len();
            assert!(queue.pop().is_some());
            taken.push(queue.forward.len() < before);
        }
        assert_eq!(taken, [true, true, false, true, false, false]);
    }

    #[test]
    fn a_device_with_few_jobs_leaves_most_threads_to_the_busy_one() {
        let mut state = PoolState::default();
        push(&mut state, OTHER, 0);
        assert!(state.pop(32).is_some());
        state.finished(OTHER);
        (1..100).for_each(|number| push(&mut state, DISK, number));
        let taken = std::iter::from_fn(|| state.pop(32)).count();
        assert_eq!(taken, 24, "a quarter is kept for the other");
    }

    #[test]
    fn busy_devices_have_equal_shares() {
        let mut state = PoolState::default();
        (1..100).for_each(|number| {
            push(&mut state, DISK, number);
            push(&mut state, OTHER, number);
        });
        let taken = std::iter::from_fn(|| state.pop(32));
        let (disk, other): (Vec<_>, Vec<_>) = taken.partition(|(device, _)| *device == DISK);
        assert_eq!((disk.len(), other.len()), (16, 16));
    }
}
