//! The loop: waits for events, fires timers, polls ready tasks, measures each turn.
//!
//! ```text
//!            ┌──────────────────────────────── one turn ───────────────────────────────┐
//! epoll_wait │ read the clock · timers, inbox and events make tasks ready · poll them   │ epoll_wait
//!            └─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A turn polls at most [`POLLS_PER_TURN`] tasks, and one more for each event, before it looks at the sockets again, so
//! that tasks that wake each other cannot keep events out. Then patient tasks ([`TaskRank::Patient`]) have a share of
//! time. Accounting costs two clock reads a turn (20 ns each), and one more for each [`CLOCK_EVERY`] polls; after a slow
//! turn every poll is timed for [`PROBATION_TURNS`] turns, so that a task which is slow again is named exactly. See
//! docs/design/2026-11-21-event-loop.md.

use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::panic;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::clock::{self, ClockTick};
use crate::handle::{LoopHandle, LoopShared, TaskId, current_id, set_current_id};
use crate::local_time::local_time;
use crate::panics;
use crate::probes;
use crate::reactor::Reactor;
use crate::slow_turn::{self, SlowTurn, SuspectKind};
use crate::stall;
use crate::stats;
use crate::task::{TakenTask, TaskRank, TaskSlab};
use crate::time::wheel::TimerWheel;

/// How many tasks a turn polls, besides one for each event, before the loop asks for events again.
const POLLS_PER_TURN: usize = 256;

/// How long a turn polls patient tasks if the ordinary ones took less time ([`TaskRank::Patient`]): long compared with
/// the cost of asking for events, short compared with a good response time.
const PATIENT_TIME: Duration = Duration::from_micros(25);

/// The clock is read once for this many polls within a turn: about 3 ns a poll.
const CLOCK_EVERY: usize = 8;
/// For how many turns after a slow one every poll is timed by itself.
const PROBATION_TURNS: u32 = 10_000;

/// A wait for events that took less found some that had come before it began; in nanoseconds.
const BRIEF_WAIT: u64 = 50_000;

/// How much one poll of a task may read or write before the others have their turn, in units: each call is one, and
/// so is every [`BYTES_PER_UNIT`] bytes. That is some 2 MB or 128 small reads: about 300 µs.
const BUDGET_UNITS: u32 = 128;
/// How many bytes count as one unit of a task's budget.
const BYTES_PER_UNIT: usize = 16 * 1024;
/// The name of a loop's first task.
const MAIN: &str = "main";

/// The settings of a loop.
#[derive(Debug, Clone)]
pub struct LoopOptions {
    /// Its name in reports, e.g. `worker 0`.
    pub name: String,
    /// A turn longer than this is counted and remembered ([`LoopHandle::take_slow_turns`]). Zero: never.
    pub slow_turn: Duration,
    /// After the main future has ended, run until no task is left.
    pub drain: bool,
    /// The most events that one `epoll_wait` returns.
    pub events: usize,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            name: "loop".to_owned(),
            slow_turn: Duration::from_millis(50),
            drain: false,
            events: 512,
        }
    }
}

/// A loop that is not running yet. It may be created on one thread and run on another; its handle works from the
/// start.
pub struct EventLoop {
    shared: Arc<LoopShared>,
    options: LoopOptions,
}

impl EventLoop {
    /// Creates a loop. Fails if there are no descriptors left.
    pub fn new(options: LoopOptions) -> io::Result<Self> {
        // The first call reads the time zone's file: better now than when a loop writes its first log line.
        local_time(0);
        let shared = Arc::new(LoopShared::new(options.name.clone())?);
        let this = Self { shared, options };
        this.handle().set_slow_turn(this.options.slow_turn);
        // A loop that is not running is not late.
        this.shared.counters.parked.store(true, Relaxed);
        Ok(this)
    }

    /// A handle for other threads.
    pub fn handle(&self) -> LoopHandle {
        LoopHandle(Arc::clone(&self.shared))
    }

    /// Runs the loop on this thread until the future that `main` makes has ended, then drops all tasks
    /// (or waits for them: [`LoopOptions::drain`]). A panic of the main future is passed on.
    pub fn run<F: Future + 'static>(self, main: impl FnOnce() -> F) -> io::Result<F::Output>
    where
        F::Output: 'static,
    {
        let core = Rc::new(LoopCore::new(self.shared, self.options)?);
        let _entered = EnteredLoop::new(&core);
        panics::install_hook();
        let output = Rc::new(Cell::new(None));
        let place = Rc::clone(&output);
        let future = main();
        let main_task = core.spawn(
            MAIN,
            TaskRank::Ordinary,
            Box::pin(async move { place.set(Some(future.await)) }),
        );
        core.turn_until(|core| !core.tasks.borrow().contains(main_task))?;
        if core.options.drain {
            core.turn_until(|core| core.tasks.borrow().living == 0)?;
        }
        match output.take() {
            Some(output) => Ok(output),
            None => panic::resume_unwind(
                core.main_panic
                    .take()
                    .unwrap_or_else(|| Box::new("the main task was aborted")),
            ),
        }
    }
}

/// Makes a loop and runs it on this thread: see [`EventLoop::run`].
pub fn run<F: Future + 'static>(
    options: LoopOptions,
    main: impl FnOnce() -> F,
) -> io::Result<F::Output>
where
    F::Output: 'static,
{
    EventLoop::new(options)?.run(main)
}

/// The handle of this thread's loop.
///
/// # Panics
/// When no loop runs on this thread.
pub fn handle() -> LoopHandle {
    with_loop(|core| LoopHandle(Arc::clone(&core.shared)))
}

/// Reads the clock again for the rest of this turn, for a task that has computed for a long time.
pub fn refresh_now() {
    clock::set_now(clock::read_clock());
}

/// What takes longer moves the clock of the loop in the middle of a turn, so that tasks that are polled afterwards see
/// that they have waited.
const LONG_STRETCH: Duration = Duration::from_millis(1);

/// How long a task that is polled now may have waited for the loop: how far this turn has come, and the turn before it
/// if the loop found events waiting when that ended. It is an upper bound: the event may have come at any moment of it.
/// Zero on a thread without a loop.
pub fn turn_lag() -> Duration {
    let Some((began, before)) = TURN.get() else {
        return Duration::ZERO;
    };
    Duration::from_nanos(before + clock::exact_tick().since(began))
}

/// Work of a task that may hold the loop for long, such as a script. If it did, the loop's clock moves on.
pub struct LongWork {
    began: Instant,
}

impl LongWork {
    /// Begins. What other tasks have taken of this turn before is not counted as part of the work.
    pub fn begin() -> LongWork {
        let began = clock::read_clock();
        if began.saturating_duration_since(clock::now()) >= LONG_STRETCH {
            clock::set_now(began);
        }
        LongWork { began }
    }

    /// Ends.
    pub fn end(self) {
        let ended = clock::read_clock();
        if ended.saturating_duration_since(self.began) >= LONG_STRETCH && current_id() != 0 {
            clock::set_now(ended);
        }
    }
}

/// Lets other tasks, timers and sockets have their turn first.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    std::future::poll_fn(move |cx: &mut Context<'_>| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        wake_after_events(cx.waker());
        Poll::Pending
    })
}

/// Calls `f` when this turn of this thread's loop ends, before the loop waits; at once on a thread without a loop.
pub fn at_turn_end(f: impl FnOnce() + 'static) {
    if current_id() == 0 {
        f();
    } else {
        with_loop(|core| core.at_turn_end(Box::new(f)));
    }
}

/// Wakes a task after the loop has asked for events again.
pub(crate) fn wake_after_events(waker: &Waker) {
    let waker = waker.clone();
    if try_with(|core| core.deferred.borrow_mut().push(waker.clone())).is_none() {
        waker.wake();
    }
}

/// Makes the task wait for the next turn if it has used up its budget in this poll.
pub(crate) fn budget_is_spent(cx: &Context<'_>) -> bool {
    let spent = BUDGET.get() == 0;
    if spent {
        wake_after_events(cx.waker());
    }
    spent
}

/// Charges one call that moved this many bytes to the task's budget.
pub(crate) fn count_transfer(bytes: usize) {
    let cost = u32::try_from(1 + bytes / BYTES_PER_UNIT).unwrap_or(u32::MAX);
    BUDGET.set(BUDGET.get().saturating_sub(cost));
}

/// The state of the loop that runs on a thread.
pub(crate) struct LoopCore {
    pub(crate) shared: Arc<LoopShared>,
    pub(crate) tasks: RefCell<TaskSlab>,
    /// Tasks to poll: those of ordinary rank.
    ready: RefCell<VecDeque<TaskId>>,
    /// Patient tasks to poll.
    patient: RefCell<VecDeque<TaskId>>,
    /// The task that is being polled.
    pub(crate) polled: Cell<Option<TaskId>>,
    pub(crate) reactor: Reactor,
    pub(crate) wheel: RefCell<TimerWheel>,
    /// Tasks to wake after the loop has asked for events again.
    deferred: RefCell<Vec<Waker>>,
    /// Work for the end of the turn, e.g. to wake a log's writer once for all lines of the turn.
    at_turn_end: RefCell<Vec<Box<dyn FnOnce()>>>,
    options: LoopOptions,
    main_panic: Cell<Option<Box<dyn Any + Send>>>,
    probation: Cell<u32>,
    /// When the last turn ended, and so the wait began.
    turn_ended: Cell<ClockTick>,
    /// How long that turn took, in nanoseconds.
    turn_took: Cell<u64>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<LoopCore>>> = const { RefCell::new(None) };
    /// When the turn began, and the nanoseconds that [`turn_lag`] adds of the turn before. `None`: no loop runs here.
    static TURN: Cell<Option<(ClockTick, u64)>> = const { Cell::new(None) };
    /// What is left of the budget of the task that is being polled.
    static BUDGET: Cell<u32> = const { Cell::new(BUDGET_UNITS) };
}

/// Says what this thread's loop has been doing, if it is the one that is late.
#[cold]
pub fn suspect(kind: SuspectKind, text: impl FnOnce() -> String) {
    if is_slow_turn() {
        slow_turn::note_suspect(turn_number(), kind, text);
    }
}

/// Whether the present turn of this thread's loop has already taken as long as a slow one.
fn is_slow_turn() -> bool {
    let Some((began, _)) = TURN.get() else {
        return false;
    };
    let took = clock::tick_of(clock::read_clock()).since(began);
    try_with(|core| Duration::from_nanos(took) >= core.slow_turn()).unwrap_or(false)
}

/// The number of this thread's present turn.
pub(crate) fn turn_number() -> u64 {
    with_loop(|core| core.shared.counters.turns.load(Relaxed))
}

/// Calls `f` with this thread's loop.
///
/// # Panics
/// When no loop runs on this thread.
pub(crate) fn with_loop<R>(f: impl FnOnce(&LoopCore) -> R) -> R {
    try_with(f).expect("this must be called on the thread of a running rt loop")
}

/// Calls `f` with this thread's loop, if one runs.
pub(crate) fn try_with<R>(f: impl FnOnce(&LoopCore) -> R) -> Option<R> {
    CURRENT
        .try_with(|current| current.borrow().as_deref().map(f))
        .ok()
        .flatten()
}

/// Makes a loop the current one of this thread while it lives, and takes it apart at the end.
struct EnteredLoop<'a>(&'a Rc<LoopCore>);

impl<'a> EnteredLoop<'a> {
    fn new(core: &'a Rc<LoopCore>) -> Self {
        CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            assert!(current.is_none(), "a loop runs on this thread already");
            *current = Some(Rc::clone(core));
        });
        set_current_id(core.shared.id);
        core.shared.thread.store(stall::note_stack(), Relaxed);
        clock::set_now(clock::read_clock());
        Self(core)
    }
}

impl Drop for EnteredLoop<'_> {
    fn drop(&mut self) {
        let core = self.0;
        // Tasks may spawn or wake others while they are dropped. All must be gone before the loop is.
        loop {
            let future = core.tasks.borrow_mut().pop();
            let Some(future) = future else { break };
            core.guarded("task", || drop(future));
        }
        // The contents of the inbox belong to this thread and are dropped here, while the loop can still be found.
        drop(core.shared.close());
        core.end_turn();
        core.shared.counters.parked.store(true, Relaxed);
        core.shared.thread.store(0, Relaxed);
        set_current_id(0);
        TURN.set(None);
        clock::clear_now();
        CURRENT.with(|current| current.borrow_mut().take());
    }
}

impl LoopCore {
    fn new(shared: Arc<LoopShared>, options: LoopOptions) -> io::Result<Self> {
        let reactor = Reactor::new(options.events, &shared)?;
        Ok(Self {
            shared,
            tasks: RefCell::new(TaskSlab::new()),
            ready: RefCell::default(),
            patient: RefCell::default(),
            polled: Cell::new(None),
            reactor,
            wheel: RefCell::new(TimerWheel::new(clock::real_tick())),
            deferred: RefCell::default(),
            at_turn_end: RefCell::default(),
            options,
            main_panic: Cell::new(None),
            probation: Cell::new(0),
            turn_ended: Cell::new(clock::tick_of(clock::read_clock())),
            turn_took: Cell::new(0),
        })
    }

    /// Calls `f` when this turn ends, before the loop waits.
    fn at_turn_end(&self, f: Box<dyn FnOnce()>) {
        self.at_turn_end.borrow_mut().push(f);
    }

    fn slow_turn(&self) -> Duration {
        Duration::from_micros(self.shared.counters.slow_turn.load(Relaxed))
    }

    fn turn_until(&self, done: impl Fn(&Self) -> bool) -> io::Result<()> {
        while !done(self) {
            self.wait()?;
            let began = clock::now();
            let every = if self.probation.get() > 0 {
                1
            } else {
                CLOCK_EVERY
            };
            let mut turn = TurnBudget {
                began: clock::exact_tick(),
                budget: POLLS_PER_TURN + self.reactor.event_count(),
                polls: 0,
                stretches: TurnStretches::new(began, every, self.slow_turn()),
            };
            self.wake_due();
            // All events before any task: polling each task right after its event was 1 % slower, since
            // a tight loop lets the cache misses of many events overlap.
            self.reactor.dispatch();
            self.poll_ready(&mut turn);
            self.poll_patient(&mut turn, began);
            self.end_turn();
            self.account(&mut turn);
        }
        Ok(())
    }

    /// Waits for events; not at all if there is work.
    fn wait(&self) -> io::Result<()> {
        let counters = &self.shared.counters;
        let busy = !self.ready.borrow().is_empty()
            || !self.patient.borrow().is_empty()
            || !self.deferred.borrow().is_empty();
        // "Parked" is stored before the inbox is checked for the last time. A message that is posted later finds
        // the loop parked and writes the eventfd; one that was posted earlier makes `park` refuse.
        let timeout = if busy || !self.shared.park() {
            Some(Duration::ZERO)
        } else {
            // A loop that waits is not late, however long ago its turn began.
            counters.parked.store(true, Relaxed);
            self.until_next_timer()
        };
        self.reactor.wait(timeout)?;
        clock::set_now(clock::read_clock());
        let began = clock::exact_tick();
        // A loop that slept found its events when they came.
        let slept = began.since(self.turn_ended.get()) >= BRIEF_WAIT;
        TURN.set(Some((began, if slept { 0 } else { self.turn_took.get() })));
        // In this order: a reader between the two stores would otherwise measure from the start of the previous
        // turn.
        counters.turn_began.store(clock::tick(), Relaxed);
        counters.parked.store(false, Relaxed);
        stall::turn_begins();
        Ok(())
    }

    fn until_next_timer(&self) -> Option<Duration> {
        let due = self.wheel.borrow().next_due()?;
        let since = self.turn_ended.get().tick;
        Some(Duration::from_millis(due.saturating_sub(since)))
    }

    /// Wakes what is not woken by an event: tasks that yielded, timers, and messages in the inbox.
    fn wake_due(&self) {
        // Taken out as a whole: tasks that yield from now on wait for the next turn.
        for waker in self.deferred.take() {
            waker.wake();
        }
        let tick = clock::tick();
        if self.wheel.borrow().is_due(tick) {
            let fired = self.wheel.borrow_mut().advance(tick);
            for waker in fired {
                waker.wake();
            }
        }
        if let Some(inbox) = self.shared.unpark() {
            self.take_inbox(inbox);
        }
    }

    fn take_inbox(&self, inbox: crate::handle::LoopInbox) {
        {
            let mut tasks = self.tasks.borrow_mut();
            for id in inbox.wakes {
                if let Some(rank) = tasks.wake_posted(id) {
                    self.queue(rank).push_back(id);
                }
            }
        }
        for post in inbox.posts {
            self.guarded("message", post);
        }
    }

    /// Polls ready tasks within the turn's budget, and records which of them hold the loop longest.
    fn poll_ready(&self, turn: &mut TurnBudget) {
        while turn.polls < turn.budget {
            let Some(id) = self.ready.borrow_mut().pop_front() else {
                return;
            };
            self.poll_one(id, turn);
        }
    }

    /// Polls patient tasks: at least one, and then more for as long as the turn has taken so far (events and ordinary
    /// tasks), but no less than [`PATIENT_TIME`]. Under load that gives them half of the loop.
    fn poll_patient(&self, turn: &mut TurnBudget, turn_began: Instant) {
        if self.patient.borrow().is_empty() {
            return;
        }
        let patient_began = clock::read_clock();
        let allowed = patient_began.duration_since(turn_began).max(PATIENT_TIME);
        // The time is the only bound: patient tasks that wake each other share it, and the rest waits for the next turn.
        loop {
            let Some(id) = self.patient.borrow_mut().pop_front() else {
                return;
            };
            self.poll_one(id, turn);
            if clock::elapsed(patient_began) >= allowed {
                return;
            }
        }
    }

    fn poll_one(&self, id: TaskId, turn: &mut TurnBudget) {
        let Some(taken) = self.tasks.borrow_mut().take(id) else {
            return;
        };
        turn.polls += 1;
        turn.stretches.polling(taken.name);
        self.poll(taken);
    }

    /// The queue of the tasks of a rank.
    pub(crate) fn queue(&self, rank: TaskRank) -> RefMut<'_, VecDeque<TaskId>> {
        match rank {
            TaskRank::Ordinary => self.ready.borrow_mut(),
            TaskRank::Patient => self.patient.borrow_mut(),
        }
    }

    fn poll(&self, mut taken: TakenTask) {
        let mut cx = Context::from_waker(&taken.waker);
        BUDGET.set(BUDGET_UNITS);
        self.polled.set(Some(taken.id));
        let polled = panics::catch(|| taken.future.as_mut().poll(&mut cx));
        match polled {
            Ok(Poll::Pending) => {
                let aborted = self.tasks.borrow_mut().put_back(taken);
                if let Some(future) = aborted {
                    self.guarded("task", || drop(future));
                }
            }
            Ok(Poll::Ready(())) => {
                let TakenTask {
                    id, future, waker, ..
                } = taken;
                // Dropped before its slot is freed: wakers that this uses must not reach the slot's next task.
                self.guarded("task", || drop(future));
                self.tasks.borrow_mut().free_slot(id, waker);
            }
            Err(payload) => self.bury(taken, payload),
        }
    }

    /// Ends a task that has panicked: it is counted, reported and dropped, and the loop goes on.
    fn bury(&self, taken: TakenTask, payload: Box<dyn Any + Send>) {
        let TakenTask {
            id,
            name,
            future,
            waker,
        } = taken;
        stats::add(&self.shared.counters.panics, 1);
        if name == MAIN {
            // A panic of the main task may end the process, so it is reported before that.
            panics::report(name, payload.as_ref());
        } else {
            panics::report_elsewhere(name, payload.as_ref());
        }
        panics::drop_panicked(name, future);
        self.tasks.borrow_mut().free_slot(id, waker);
        if name == MAIN {
            self.main_panic.set(Some(payload));
        }
    }

    /// Runs code whose panic must not end the loop.
    fn guarded(&self, name: &'static str, f: impl FnOnce()) {
        if let Err(payload) = panics::catch(f) {
            stats::add(&self.shared.counters.panics, 1);
            panics::report_elsewhere(name, payload.as_ref());
        }
    }

    fn end_turn(&self) {
        loop {
            // Its own statement, so that the list is not borrowed while `f` runs: it may add to it.
            let next = self.at_turn_end.borrow_mut().pop();
            let Some(f) = next else { return };
            f();
        }
    }

    fn account(&self, turn: &mut TurnBudget) {
        let counters = &self.shared.counters;
        stats::add(&counters.polls, turn.polls as u64);
        let end = clock::read_clock();
        let ended = clock::tick_of(end);
        self.turn_ended.set(ended);
        let took = ended.since(turn.began);
        self.turn_took.set(took);
        let number = counters.turns.load(Relaxed);
        counters.turn(took);
        probes::turn_end(self.shared.id, took, turn.polls);
        counters
            .tasks
            .store(self.tasks.borrow().living as u64, Relaxed);
        self.probation.set(self.probation.get().saturating_sub(1));
        let limit = self.slow_turn();
        let took = Duration::from_nanos(took);
        if took < limit || limit.is_zero() {
            return;
        }
        turn.stretches.look(end);
        stats::add(&counters.slow_turns, 1);
        self.probation.set(PROBATION_TURNS);
        // Told to the watchdog. A loop that reported each by itself would, on a busy machine, write more
        // lines than it serves requests.
        self.shared.slow_turns().add(SlowTurn {
            turn: number,
            took,
            stretch: turn.stretches.longest,
            tasks: std::mem::take(&mut turn.stretches.suspects),
            suspects: slow_turn::take_suspects(number),
        });
    }
}

/// The state of a running turn.
struct TurnBudget {
    /// When it began. The loop's clock may be set again in the middle of it.
    began: ClockTick,
    /// How many polls of ordinary tasks the turn may have; the rest waits for the next one.
    budget: usize,
    /// How many it has had, those of patient tasks included.
    polls: usize,
    stretches: TurnStretches,
}

/// Finds the tasks that held a turn: the time between two readings of the clock, and the tasks polled in it.
struct TurnStretches {
    last_look: Instant,
    /// Shorter stretches are not recorded.
    floor: Duration,
    /// Tasks polled since the last reading.
    names: [&'static str; CLOCK_EVERY],
    polled: usize,
    /// After how many polls the clock is read.
    every: usize,
    longest: Duration,
    suspects: Vec<&'static str>,
}

impl TurnStretches {
    fn new(began: Instant, every: usize, slow_turn: Duration) -> Self {
        Self {
            last_look: began,
            floor: slow_turn / 16,
            names: [""; CLOCK_EVERY],
            polled: 0,
            every,
            longest: Duration::ZERO,
            suspects: Vec::new(),
        }
    }

    /// A task is about to be polled.
    fn polling(&mut self, name: &'static str) {
        if self.polled == self.every {
            self.look(clock::read_clock());
        }
        self.names[self.polled] = name;
        self.polled += 1;
    }

    fn look(&mut self, now: Instant) {
        let stretch = now.duration_since(self.last_look);
        if stretch >= LONG_STRETCH {
            clock::set_now(now);
        }
        if stretch > self.longest && stretch >= self.floor {
            self.longest = stretch;
            self.suspects.clear();
            for name in &self.names[..self.polled] {
                if !self.suspects.contains(name) {
                    self.suspects.push(name);
                }
            }
        }
        self.last_look = now;
        self.polled = 0;
    }
}
