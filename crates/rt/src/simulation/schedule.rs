//! The schedule: which loop, which job of a pool and which wire goes on next, and when time passes.
//!
//! Each loop has a thread of its own, as always, and one of them runs at a time: where a loop would wait for events it
//! gives the token back, and gets it again when the schedule chooses it. What can go on now is chosen from by the seed;
//! when nothing can, the clock moves to the next moment at which something can. A job of a pool has a thread of its own and is
//! one step, or several: before it changes the disk it may have to wait ([`pause_job`]), so that loops run in between, and a
//! process may die there.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::sync::{Condvar, Mutex};

use super::network::{Network, NetworkStep};
use super::{chance, clock, note};

type PoolJob = Box<dyn FnOnce() + Send>;

/// The longest step that the clock makes while something can go on, in nanoseconds.
const STEP: u64 = 20_000;
/// How long a job of a pool waits for its thread and its disk, mostly, and at times.
const DISK_NANOS: u64 = 200_000;
const SLOW_DISK_NANOS: u64 = 300_000_000;
/// A job waits at one in this number of its changes of the disk.
const PAUSES: u64 = 3;
/// One wait for the disk in this number is long.
static SLOW_DISK: AtomicU64 = AtomicU64::new(64);

/// What a loop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopTurn {
    /// Its thread has been started, and has not come here yet.
    Starting,
    /// It waits for events, at most until this time.
    Waiting(u64),
    /// It may run, and will come back.
    Running,
    Ended,
}

struct SimulatedLoop {
    name: String,
    turn: LoopTurn,
    /// Its epoll set, once it has come here.
    epoll: Option<OwnedFd>,
}

struct DueJob {
    due: u64,
    number: u64,
    /// `None`: it has begun, and its thread waits.
    job: Option<PoolJob>,
}

/// What a job that has begun does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobTurn {
    Running,
    /// It waits for the disk until this time.
    Paused(u64),
    Ended,
}

#[derive(Default)]
struct ScheduleState {
    loops: Vec<SimulatedLoop>,
    jobs: VecDeque<DueJob>,
    next_job: u64,
    /// Those that have begun.
    job_turns: BTreeMap<u64, JobTurn>,
    /// Jobs get threads of their own, which something waits for.
    real_pools: Option<Vec<std::thread::JoinHandle<()>>>,
}

static STATE: Mutex<Option<ScheduleState>> = Mutex::new(None);
/// Notified at each change of a loop's or a job's turn.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The number of the simulated loop that runs on this thread.
    static LOOP: Cell<Option<usize>> = const { Cell::new(None) };
    /// The number of the job that runs on this thread.
    static JOB: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether this is the thread whose turn it is: that of a loop, or of a job.
pub(super) fn has_turn() -> bool {
    LOOP.get().is_some() || JOB.get().is_some()
}

/// How a simulation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulationEnd {
    /// The condition was met.
    Done,
    /// Nothing can happen any more.
    Stuck,
    /// The time or the number of steps is over.
    TooLong,
}

/// One step that can be done now.
#[derive(Clone, Copy, Debug)]
enum NextStep {
    Loop(usize),
    Job(usize),
    Network(NetworkStep),
}

/// The running simulation: the thread that has it is the schedule.
pub struct Simulation {
    /// By the number of the loop; `None`: it was killed.
    threads: Vec<Option<std::thread::JoinHandle<()>>>,
    steps: u64,
}

impl Simulation {
    /// Begins. Everything that this process does from now on is on the simulation's clock.
    pub fn start(seed: u64, keeps_events: bool) -> Simulation {
        super::start_record(keeps_events);
        clock::start();
        chance::start(seed);
        *STATE.lock() = Some(ScheduleState::default());
        Network::start();
        Simulation {
            threads: Vec::new(),
            steps: 0,
        }
    }

    /// Starts the thread of a loop: `run` runs the loop to its end.
    pub fn start_loop(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let number = with(|state| {
            state.loops.push(SimulatedLoop {
                name: name.to_owned(),
                turn: LoopTurn::Starting,
                epoll: None,
            });
            state.loops.len() - 1
        });
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || {
            LOOP.set(Some(number));
            clock::note_loop();
            let _ended = LoopEnd(number);
            run();
        })?;
        self.threads.push(Some(thread));
        // Until it waits for the first time.
        wait_while(number, |turn| {
            matches!(turn, LoopTurn::Starting | LoopTurn::Running)
        });
        Ok(())
    }

    /// How many steps were done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How many loops were started.
    pub fn loop_count(&self) -> usize {
        self.threads.len()
    }

    /// Ends the loop with this number as the death of its process does: it never runs again, and nothing of it is dropped. Its
    /// thread waits until this process ends.
    pub fn kill_loop(&mut self, number: usize) {
        note(|| format!("loop {number} is killed"));
        with(|state| state.loops[number].turn = LoopTurn::Ended);
        if let Some(thread) = self.threads.get_mut(number) {
            *thread = None;
        }
    }

    /// Forgets what waits for pools and for the disk, as the death of the process does: what has begun never goes on.
    pub fn forget_jobs(&mut self) {
        let jobs = with(|state| std::mem::take(&mut state.jobs));
        // To drop them would tell those that wait for them.
        std::mem::forget(jobs);
    }

    /// Goes on until `done` says so, asked after each step.
    pub fn run_until(
        &mut self,
        limit: Duration,
        most_steps: u64,
        mut done: impl FnMut() -> bool,
    ) -> SimulationEnd {
        let end = clock::nanos() + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2);
        let last_step = self.steps + most_steps;
        while !done() {
            if clock::nanos() >= end || self.steps >= last_step {
                return SimulationEnd::TooLong;
            }
            let (ready, next) = possible_steps();
            if ready.is_empty() {
                match next {
                    Some(next) => clock::set_nanos(next.max(clock::nanos() + 1)),
                    None => return SimulationEnd::Stuck,
                }
                continue;
            }
            let step = ready[(chance::number() % ready.len() as u64) as usize];
            self.steps += 1;
            clock::set_nanos(clock::nanos() + 1 + chance::number() % STEP);
            do_step(step);
        }
        SimulationEnd::Done
    }

    /// Waits for the threads of loops that have ended.
    pub fn join(self) {
        for thread in self.threads.into_iter().flatten() {
            let _panicked = thread.join();
        }
    }
}

/// Tells the schedule that a loop has ended, even by a panic.
struct LoopEnd(usize);

impl Drop for LoopEnd {
    fn drop(&mut self) {
        with(|state| state.loops[self.0].turn = LoopTurn::Ended);
        CHANGED.notify_all();
    }
}

fn with<R>(f: impl FnOnce(&mut ScheduleState) -> R) -> R {
    f(STATE.lock().as_mut().expect("a simulation runs"))
}

/// Waits while the turn of a loop is like this.
fn wait_while(number: usize, like: impl Fn(LoopTurn) -> bool) {
    let mut guard = STATE.lock();
    while guard
        .as_ref()
        .is_some_and(|state| like(state.loops[number].turn))
    {
        guard = CHANGED.wait(guard);
    }
}

/// Where a loop would wait for events, at most for this long. Returns when it is its turn, and its epoll set can be asked
/// without waiting. False: this thread is no loop of a simulation.
pub(crate) fn park(epoll: BorrowedFd<'_>, timeout: Option<Duration>) -> bool {
    let Some(number) = LOOP.get() else {
        return false;
    };
    let until = match timeout {
        Some(timeout) => clock::nanos() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 2),
        None => u64::MAX,
    };
    note(|| match until {
        u64::MAX => format!("loop {number} waits"),
        _ => format!("loop {number} waits until {until}"),
    });
    with(|state| {
        let own = &mut state.loops[number];
        if own.epoll.is_none() {
            own.epoll = epoll.try_clone_to_owned().ok();
        }
        own.turn = LoopTurn::Waiting(until);
    });
    CHANGED.notify_all();
    wait_while(number, |turn| turn != LoopTurn::Running);
    true
}

/// Pools without a simulation of loops: a job is done where it is submitted, so that what it does has one order.
static JOBS_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// From now on jobs of pools are done at once, by the thread that submits them.
pub fn do_jobs_at_once() {
    JOBS_AT_ONCE.store(true, Relaxed);
}

/// Takes a job of a pool, if there is a simulation; gives it back if there is none.
pub(crate) fn enqueue_job(job: PoolJob) -> Result<(), PoolJob> {
    if JOBS_AT_ONCE.load(Relaxed) {
        job();
        return Ok(());
    }
    if !clock::is_running() {
        return Err(job);
    }
    if let Some(threads) = STATE
        .lock()
        .as_mut()
        .and_then(|state| state.real_pools.as_mut())
    {
        threads.push(std::thread::spawn(job));
        return Ok(());
    }
    let due = clock::nanos() + draw_disk_wait();
    with(|state| {
        state.next_job += 1;
        let job = DueJob {
            due,
            number: state.next_job,
            job: Some(job),
        };
        state.jobs.push_back(job);
    });
    Ok(())
}

/// From now on, one wait for the disk in this number is long.
pub fn set_slow_disk(one_in: u64) {
    SLOW_DISK.store(one_in.max(1), Relaxed);
}

fn draw_disk_wait() -> u64 {
    match chance::number().is_multiple_of(SLOW_DISK.load(Relaxed)) {
        true => {
            super::count_fault("slow disk");
            chance::number() % SLOW_DISK_NANOS
        }
        false => chance::number() % DISK_NANOS,
    }
}

/// Before a change of the disk: if this is a job's thread, others may run first. Locks that a loop may want must not be held
/// here, as they must not while a real disk writes.
pub(crate) fn pause_job() {
    let Some(number) = JOB.get() else {
        return;
    };
    if !chance::number().is_multiple_of(PAUSES) {
        return;
    }
    let due = clock::nanos() + draw_disk_wait();
    note(|| format!("job {number} waits until {due}"));
    set_job_turn(number, JobTurn::Paused(due));
    let mut guard = STATE.lock();
    while guard
        .as_ref()
        .is_some_and(|state| state.job_turns.get(&number) != Some(&JobTurn::Running))
    {
        guard = CHANGED.wait(guard);
    }
}

fn set_job_turn(number: u64, turn: JobTurn) {
    with(|state| state.job_turns.insert(number, turn));
    CHANGED.notify_all();
}

/// Tells the schedule that a job has ended, even by a panic.
struct JobEnd(u64);

impl Drop for JobEnd {
    fn drop(&mut self) {
        set_job_turn(self.0, JobTurn::Ended);
    }
}

/// Runs a job to its end, or until it waits.
fn run_job(due: DueJob) {
    let number = due.number;
    note(|| format!("job {number} runs"));
    set_job_turn(number, JobTurn::Running);
    if let Some(job) = due.job {
        let run = move || {
            JOB.set(Some(number));
            let _ended = JobEnd(number);
            let job = std::panic::AssertUnwindSafe(job);
            let _its_caller_is_told = std::panic::catch_unwind(job);
        };
        std::thread::spawn(run);
    }
    let mut guard = STATE.lock();
    loop {
        let state = guard.as_mut().expect("a simulation runs");
        match state.job_turns.get(&number).copied() {
            Some(JobTurn::Running) => guard = CHANGED.wait(guard),
            Some(JobTurn::Paused(due)) => {
                let waiting = DueJob {
                    due,
                    number,
                    job: None,
                };
                state.jobs.push_back(waiting);
                return;
            }
            Some(JobTurn::Ended) | None => {
                state.job_turns.remove(&number);
                return;
            }
        }
    }
}

/// Does what waits for pools, outside of the schedule: their jobs have threads of their own meanwhile, and have ended
/// afterwards.
pub fn with_real_pools<R>(f: impl FnOnce() -> R) -> R {
    with(|state| state.real_pools = Some(Vec::new()));
    let result = f();
    let threads = with(|state| state.real_pools.take());
    for thread in threads.into_iter().flatten() {
        let _panicked = thread.join();
    }
    result
}

/// What can be done now, and when something else can be if nothing is.
fn possible_steps() -> (Vec<NextStep>, Option<u64>) {
    let now = clock::nanos();
    let mut ready = Vec::new();
    let mut next: Option<u64> = None;
    let mut later = |due: u64| next = Some(next.map_or(due, |next| next.min(due)));
    with(|state| {
        let mut polled = Vec::new();
        for (number, one) in state.loops.iter().enumerate() {
            let LoopTurn::Waiting(until) = one.turn else {
                continue;
            };
            match until <= now {
                true => ready.push(NextStep::Loop(number)),
                false => {
                    polled.extend(one.epoll.as_ref().map(|epoll| (number, epoll)));
                    if until != u64::MAX {
                        later(until);
                    }
                }
            }
        }
        let epolls = polled.iter().map(|(_, epoll)| *epoll);
        for ((number, _), is_ready) in polled.iter().zip(super::wire::poll_readable(epolls)) {
            if is_ready {
                ready.push(NextStep::Loop(*number));
            }
        }
        for (at, job) in state.jobs.iter().enumerate() {
            match job.due <= now {
                true => ready.push(NextStep::Job(at)),
                false => later(job.due),
            }
        }
    });
    Network::with(|network| {
        let due = network.possible_steps(now, |step| ready.push(NextStep::Network(step)));
        if let Some(due) = due {
            later(due);
        }
    });
    (ready, next)
}

fn do_step(step: NextStep) {
    match step {
        NextStep::Loop(number) => {
            let name = with(|state| state.loops[number].name.clone());
            // Before it may run: it has notes of its own.
            note(|| format!("{name} runs"));
            with(|state| state.loops[number].turn = LoopTurn::Running);
            CHANGED.notify_all();
            wait_while(number, |turn| turn == LoopTurn::Running);
        }
        NextStep::Job(at) => {
            if let Some(job) = with(|state| state.jobs.remove(at)) {
                run_job(job);
            }
        }
        NextStep::Network(step) => Network::with(|network| network.do_step(step)),
    }
}

/// The names of loops that have not ended.
pub fn living_loops() -> Vec<String> {
    let living = |one: &&SimulatedLoop| one.turn != LoopTurn::Ended;
    let names = |state: &mut ScheduleState| {
        state
            .loops
            .iter()
            .filter(living)
            .map(|one| one.name.clone())
            .collect()
    };
    with(names)
}
