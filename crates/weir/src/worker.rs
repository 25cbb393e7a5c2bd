//! The worker: event loops on threads, and a control thread that applies configurations to them.
//!
//! [`Worker`] is the machinery, without a process around it: the worker process drives it from the
//! master's messages ([`crate::worker_process`]), a server without a master from signals
//! ([`crate::single`]). All its methods run on the control thread; a loop is only reached by
//! posting to it, so building a configuration never holds a loop up.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use rt::channel::Channel;
use rt::engine::{
    CUT_GRACE, Configuration, LoopContext, LoopEngine, LoopListener, Main, ParcelSink, Reach, Zones,
};
use rt::error_log::{Attach, Level, LogFiles, Logger};
use rt::seats::{Arrival, Arriving, Parcel, Seat, Seats};

use crate::affinity::Affinity;
use crate::handover::{self, Courier};
use crate::load::{Loaded, Startup};
use crate::message::{Generation, Logs};
use crate::watchdog::{Help, Watchdog};

/// How often a loop that stops looks whether its last connection has ended.
const DRAIN_CHECK: Duration = Duration::from_millis(10);
/// How often the control thread looks whether an old configuration is out of use.
const OLD_CHECK: Duration = Duration::from_millis(20);
/// How long a loop may take to begin with a configuration before it counts as taken.
const LOOP_PATIENCE: Duration = Duration::from_millis(500);
/// How long a peer may take for the rest of a message.
const PEER_PATIENCE: Duration = Duration::from_secs(1);
/// How long loops may take to end after everything was closed.
const ABORT_GRACE: Duration = Duration::from_millis(500);
/// How long the end of the process waits for what the next start would be glad of. The master kills after a second.
const CLOSE_WAIT: Duration = Duration::from_millis(800);

/// Loops, and what they run.
pub(crate) struct Worker {
    startup: Arc<Startup>,
    files: LogFiles,
    zones: Zones,
    log: Logger,
    /// The loops that serve, by index.
    loops: Vec<Arc<Seat>>,
    /// Loops that a reload has removed and that finish what they have, by the number of their seat.
    leaving: HashSet<u64>,
    /// The configuration in use.
    current: Vec<Arc<dyn Configuration>>,
    /// Configurations that some connection may still use, oldest first.
    old: Vec<Vec<Weak<dyn Configuration>>>,
    shutdown_timeout: Duration,
    /// Each loop writes the number of its seat here when it has ended.
    ended: (PipeReader, PipeWriter),
    /// How many have, besides those that were leaving.
    ended_count: usize,
    stopping: Stopping,
    /// Other worker processes that may send their idle connections, or be sent those of this one.
    peers: Vec<Channel>,
    /// Looks after loops that are late.
    watchdog: Option<Watchdog>,
    /// Sends connections to another process.
    courier: Option<Courier>,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    /// Connections may end by themselves until then.
    Graceful(Option<Instant>),
    /// Connections were cut; requests may end and be logged until then.
    Cut(Instant),
    /// Everything was closed; loops have until then to notice.
    Aborted(Instant),
}

impl Worker {
    /// A worker without loops; the first configuration starts them. `log` is used until then.
    pub(crate) fn new(startup: Arc<Startup>, log: Logger) -> io::Result<Worker> {
        Ok(Worker {
            startup,
            files: LogFiles::default(),
            zones: Zones::default(),
            log,
            loops: Vec::new(),
            leaving: HashSet::new(),
            current: Vec::new(),
            old: Vec::new(),
            shutdown_timeout: Duration::ZERO,
            ended: io::pipe()?,
            ended_count: 0,
            stopping: Stopping::No,
            peers: Vec::new(),
            watchdog: None,
            courier: None,
        })
    }

    /// The error log of the configuration in use.
    pub(crate) fn log(&self) -> &Logger {
        &self.log
    }

    /// Is there a configuration in use?
    pub(crate) fn runs(&self) -> bool {
        !self.loops.is_empty()
    }

    /// Has it been told to end?
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping != Stopping::No
    }

    /// Applies a configuration: the first starts the loops, later ones replace the one before on each.
    /// On an error, which is logged and returned, the one before stays in use.
    pub(crate) fn apply(&mut self, generation: &Generation) -> Result<(), String> {
        self.attach(&generation.logs);
        let files = Box::new(generation.snapshot.clone());
        let mut loaded = match crate::load::load(&self.startup, files, self.files.clone()) {
            Ok(loaded) => loaded,
            Err(failure) => {
                failure.log(&self.log);
                return Err(failure.0.text(self.startup.identity.program()));
            }
        };
        loaded.messages.forget_sources();
        if !self.runs() {
            // No loop waits for the allocator yet.
            rt::process::give_memory_back();
        }
        self.use_loaded(loaded, generation)
    }

    fn use_loaded(&mut self, loaded: Loaded, generation: &Generation) -> Result<(), String> {
        self.zones.set_loops(loaded.main.worker_processes);
        for engine in &loaded.engines {
            if let Err(error) = engine.commit(&self.zones) {
                self.log.plain(Level::Emerg, format_args!("{error}"));
                let program = self.startup.identity.program();
                return Err(format!("{program}: [emerg] {error}\n"));
            }
        }
        self.log = loaded.log.clone();
        self.shutdown_timeout = loaded.main.shutdown_timeout;
        let first = self.loops.is_empty();
        install_reporter(&self.log);
        if first {
            register_pools(&loaded.main);
        }
        let removed = self.fit_loops(&loaded).map_err(|error| {
            let error = rt::error_log::Errno(&error);
            let text = format!("could not start the event loops{error}");
            self.log.plain(Level::Emerg, format_args!("{text}"));
            text
        })?;
        let seats = Seats {
            list: self.loops.iter().cloned().collect(),
        };
        let (done, dones) = mpsc::channel();
        for index in 0..self.loops.len() {
            self.post_configuration(index, &seats, &loaded, generation, done.clone());
        }
        drop(done);
        await_loops(&dones);
        self.dismiss(removed, &seats);
        self.watch(&seats, loaded.core.slow_turn());
        let old = std::mem::replace(&mut self.current, loaded.engines);
        if !first {
            self.old.push(old.iter().map(Arc::downgrade).collect());
        }
        crate::prepare::redirect_stderr(&self.log, &generation.logs);
        self.files.prune();
        Ok(())
    }

    /// Starts loops until there are as many as the configuration wants. The answer is those that are
    /// too many.
    fn fit_loops(&mut self, loaded: &Loaded) -> io::Result<Vec<Arc<Seat>>> {
        let wanted = loaded.main.worker_processes.max(1);
        for seat in &self.loops {
            seat.handle().set_slow_turn(loaded.core.slow_turn());
        }
        while self.loops.len() < wanted {
            let seat = self.start_loop(self.loops.len(), loaded)?;
            self.loops.push(seat);
        }
        Ok(self.loops.split_off(wanted))
    }

    fn watch(&mut self, seats: &Seats, limit: Duration) {
        if self.watchdog.is_none() {
            let help = Help {
                rescue,
                shed,
                note_work,
                shed_work,
            };
            self.watchdog = Watchdog::start(help)
                .map_err(|error| {
                    let error = rt::error_log::Errno(&error);
                    let text = format_args!(
                        "pthread_create() failed{error}, no help for stalled event loops"
                    );
                    self.log.plain(Level::Alert, text);
                })
                .ok();
        }
        if let Some(watchdog) = &self.watchdog {
            watchdog.set(seats, limit);
        }
    }

    fn start_loop(&self, index: usize, loaded: &Loaded) -> io::Result<Arc<Seat>> {
        let name = format!("loop {index}");
        let event_loop = rt::Loop::new(rt::LoopOptions {
            name: name.clone(),
            slow_turn: loaded.core.slow_turn(),
            ..Default::default()
        })?;
        let seat = Seat::new(index, event_loop.handle(), take_arrivals);
        let ended = EndGuard(self.ended.1.try_clone()?, seat.id);
        let affinity = loaded.core.affinity.clone();
        let log = self.log.clone();
        let own = seat.clone();
        std::thread::Builder::new()
            .name(name)
            .spawn(move || run_loop(event_loop, own, &affinity, &log, ended))?;
        Ok(seat)
    }

    /// Ends loops that the configuration does not want any more. Their idle connections go to the
    /// others, and so do the busy ones as soon as they are idle.
    fn dismiss(&mut self, removed: Vec<Arc<Seat>>, seats: &Seats) {
        for seat in removed {
            self.leaving.insert(seat.id);
            for arrival in seat.close() {
                settle(arrival, seats);
            }
            let seats = seats.clone();
            let leave = move || {
                hand_over_loop(Reach::Process, move |kind, parcel| {
                    let what = Arriving::Idle(parcel);
                    settle(Arrival { kind, what }, &seats);
                })
            };
            // A loop that can not be reached has ended already.
            let _ = seat.handle().post(leave);
        }
    }

    /// Sends a configuration to one loop. Engines that a reload has removed are stopped there.
    fn post_configuration(
        &self,
        index: usize,
        seats: &Seats,
        loaded: &Loaded,
        generation: &Generation,
        done: mpsc::Sender<()>,
    ) {
        let loops = self.loops.len();
        let context = LoopContext {
            index,
            loops,
            seats: seats.clone(),
            seat: self.loops[index].clone(),
            main: loaded.main.clone(),
            log: self.log.clone(),
            zones: self.zones.clone(),
            listeners: Vec::new(),
        };
        let engines: Vec<(Arc<dyn Configuration>, Vec<LoopListener>)> = loaded
            .engines
            .iter()
            .map(|engine| {
                let sockets = engine
                    .listeners()
                    .into_iter()
                    .filter_map(|spec| generation.socket(spec));
                (
                    engine.clone(),
                    sockets
                        .flat_map(|socket| socket.for_loop(index, loops))
                        .collect(),
                )
            })
            .collect();
        // A loop that has ended takes no more configurations, and needs none.
        let _ = self.loops[index].handle().post(move || {
            configure_loop(context, engines);
            // Nobody waits any more for a loop that was late.
            let _ = done.send(());
        });
    }

    /// Another worker process: it may send its idle connections, and gets those of this one if
    /// [`Worker::stop`] says so.
    pub(crate) fn add_peer(&mut self, peer: Channel) {
        // Without the limit a peer that crashes may cost a reload, not more.
        let _ = peer.limit_wait(PEER_PATIENCE);
        self.peers.push(peer);
    }

    /// Where other worker processes are heard.
    pub(crate) fn peers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.peers.iter().map(|peer| peer.as_fd())
    }

    /// Takes a connection from peer `index`, whose channel is readable; `false` when that is gone.
    pub(crate) fn hear_peer(&mut self, index: usize) -> bool {
        // When the end has begun the last one is spoken to, and not heard any more.
        let Some(peer) = self.peers.get(index) else {
            return false;
        };
        let message = match peer.receive() {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => {
                self.peers.remove(index);
                return false;
            }
        };
        let kinds: Vec<&'static str> = self.current.iter().map(|engine| engine.kind()).collect();
        if let Some((kind, parcel)) = handover::decode(message, &kinds) {
            let what = Arriving::Idle(parcel);
            let seats = Seats {
                list: self.loops.iter().cloned().collect(),
            };
            // The master may tell of this worker when its loops are just about to take their configuration.
            let deadline = Instant::now() + PEER_PATIENCE;
            while seats.lightest().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            settle(Arrival { kind, what }, &seats);
        }
        true
    }

    /// Takes what peers have sent already: it would be lost with their channels.
    fn hear_peers_out(&mut self) {
        for index in (0..self.peers.len()).rev() {
            let speaks = |worker: &Worker| {
                let peer = worker.peers[index].as_fd();
                let ready = rt::process::wait_readable(&[peer], Some(Duration::ZERO));
                ready.is_ok_and(|ready| ready[0])
            };
            while speaks(self) && self.hear_peer(index) {}
        }
    }

    /// Writes the logs to other descriptors from now on.
    pub(crate) fn reopen(&self, logs: &Logs) {
        self.log
            .plain(Level::Notice, format_args!("reopening logs"));
        self.attach(logs);
        crate::prepare::redirect_stderr(&self.log, logs);
    }

    fn attach(&self, logs: &Logs) {
        for (path, descriptor) in logs {
            match descriptor.try_clone() {
                Ok(descriptor) => self.files.attach(path, descriptor, Attach::Queued),
                Err(error) => {
                    let error = rt::error_log::Errno(&error);
                    self.log.plain(
                        Level::Alert,
                        format_args!("dup() \"{}\" failed{error}", path.display()),
                    );
                }
            }
        }
    }

    /// Has a loop ended though nobody asked it to? Its clients are lost; a new process is the remedy.
    pub(crate) fn has_crashed(&self) -> bool {
        self.stopping == Stopping::No && self.ended_count > 0
    }

    /// Begins to end gracefully. With `hand_over` idle connections go to the peer that came last.
    pub(crate) fn stop(&mut self, hand_over: bool) {
        if self.stopping != Stopping::No {
            return;
        }
        self.log
            .plain(Level::Notice, format_args!("gracefully shutting down"));
        if self.startup.text.is_none() {
            let program = self.startup.identity.program();
            rt::process::set_title(&format!("{program}: worker process is shutting down"));
        }
        self.hear_peers_out();
        let timeout = self.shutdown_timeout;
        let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
        self.stopping = Stopping::Graceful(deadline);
        let peer = self.peers.pop().filter(|_| hand_over);
        self.courier = peer.and_then(|peer| match Courier::start(peer) {
            Ok(courier) => Some(courier),
            Err(error) => {
                let error = rt::error_log::Errno(&error);
                self.log.plain(
                    Level::Alert,
                    format_args!("pthread_create() failed{error}, idle connections will be closed"),
                );
                None
            }
        });
        for seat in &self.loops {
            let to = self.courier.as_ref().map(Courier::sender);
            let stop = move || match to {
                // When the courier has given up, the connection is dropped with the parcel.
                Some(to) => hand_over_loop(Reach::Beyond, move |kind, parcel| {
                    drop(to.send((kind, parcel)));
                }),
                None => stop_loop(),
            };
            // A loop that can not be reached has ended already.
            let _ = seat.handle().post(stop);
        }
    }

    /// Cuts what is left, so that it ends by itself.
    fn cut(&mut self) {
        self.stopping = Stopping::Cut(Instant::now() + CUT_GRACE);
        for seat in &self.loops {
            // As in `stop`.
            let _ = seat
                .handle()
                .post(|| all_engines().iter().for_each(|engine| engine.cut()));
        }
    }

    /// Closes what is left and lets the loops end.
    fn abort(&mut self) {
        self.stopping = Stopping::Aborted(Instant::now() + ABORT_GRACE);
        for seat in &self.loops {
            // As in `stop`.
            let _ = seat.handle().post(abort_loop);
        }
    }

    /// How long the control thread may sleep before it must call [`Worker::check`].
    pub(crate) fn next_check(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let deadline = match self.stopping {
            Stopping::No | Stopping::Graceful(None) => None,
            Stopping::Graceful(Some(deadline))
            | Stopping::Cut(deadline)
            | Stopping::Aborted(deadline) => Some(left(deadline)),
        };
        let old = (!self.old.is_empty()).then_some(OLD_CHECK);
        deadline.into_iter().chain(old).min()
    }

    /// What becomes readable when a loop ends.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.ended.0.as_fd()
    }

    /// Looks after timeouts, old configurations and loops that have ended. True when no loop is left.
    pub(crate) fn check(&mut self, loop_ended: bool) -> bool {
        if loop_ended {
            // Whole numbers are written and read: a pipe keeps such small writes together. An error
            // would come again; the deadline of the stop ends the wait then.
            let mut bytes = [0; 8 * 64];
            let length = self.ended.0.read(&mut bytes).unwrap_or(0);
            for number in bytes[..length].chunks_exact(8) {
                let number = number.try_into().map_or(0, u64::from_le_bytes);
                if !self.leaving.remove(&number) {
                    self.ended_count += 1;
                }
            }
        }
        self.forget_old();
        match self.stopping {
            Stopping::Graceful(Some(deadline)) if Instant::now() >= deadline => {
                self.log.plain(
                    Level::Notice,
                    format_args!("worker_shutdown_timeout has passed, closing connections"),
                );
                self.cut();
            }
            Stopping::Cut(deadline) if Instant::now() >= deadline => self.abort(),
            Stopping::Aborted(deadline) if Instant::now() >= deadline => return true,
            Stopping::No | Stopping::Graceful(_) | Stopping::Cut(_) | Stopping::Aborted(_) => {}
        }
        self.stopping != Stopping::No && self.ended_count >= self.loops.len()
    }

    /// Reports configurations that nothing uses any more, as nginx reports the worker that ran one:
    /// whoever waits for a reload to be complete waits for this line.
    fn forget_old(&mut self) {
        let process = std::process::id();
        let log = &self.log;
        self.old.retain(|engines| {
            let used = engines.iter().any(|engine| engine.strong_count() > 0);
            if !used {
                log.plain(
                    Level::Notice,
                    format_args!("worker process {process} exited with code 0"),
                );
            }
            used
        });
    }

    /// Lets the configuration write down what the next start would be glad of.
    pub(crate) fn close(&self) {
        let deadline = Instant::now() + CLOSE_WAIT;
        self.current.iter().for_each(|engine| engine.end(deadline));
    }

    /// Waits until every log line has been written. The last thing before the process ends.
    pub(crate) fn flush(&mut self) {
        if let Some(courier) = self.courier.take() {
            courier.finish();
        }
        self.files.flush();
    }
}

/// Waits until the loops have taken a configuration: whoever is told that it is in use shall not meet the one before. A
/// loop that is stuck takes it later.
fn await_loops(dones: &mpsc::Receiver<()>) {
    let deadline = Instant::now() + LOOP_PATIENCE;
    // Their ends are gone when all have answered.
    while dones
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .is_ok()
    {}
}

/// The body of a loop's thread.
fn run_loop(
    event_loop: rt::Loop,
    seat: Arc<Seat>,
    affinity: &Affinity,
    log: &Logger,
    ended: EndGuard,
) {
    let _ended = ended;
    let index = seat.index;
    if let Some(processors) = affinity.of_loop(index)
        && let Err(error) = rt::process::pin_thread(&processors)
    {
        let error = rt::error_log::Errno(&error);
        log.plain(
            Level::Alert,
            format_args!("sched_setaffinity() failed{error}"),
        );
    }
    // Before the first message, which is a configuration.
    LOOP.with_borrow_mut(|state| state.seat = Some(seat));
    let main = || async {
        let done = Rc::new(rt::sync::Notify::new());
        LOOP.with_borrow_mut(|state| state.done = Some(done.clone()));
        done.notified().await;
    };
    if let Err(error) = event_loop.run(main) {
        let error = rt::error_log::Errno(&error);
        log.plain(
            Level::Emerg,
            format_args!("event loop {index} ended{error}"),
        );
    }
    // The engines belong to this loop; their destructors must find it gone, not half alive.
    LOOP.with_borrow_mut(|state| *state = LoopState::default());
}

/// Tells the control thread that a loop has ended, in whatever way.
struct EndGuard(PipeWriter, u64);

impl Drop for EndGuard {
    fn drop(&mut self) {
        // When the control thread is gone too, nobody needs to know.
        let _ = self.0.write_all(&self.1.to_le_bytes());
    }
}

/// What a loop runs.
#[derive(Default)]
struct LoopState {
    engines: BTreeMap<&'static str, Rc<dyn LoopEngine>>,
    /// Engines that a reload has removed and whose connections are still open.
    retired: Vec<Rc<dyn LoopEngine>>,
    done: Option<Rc<rt::sync::Notify>>,
    seat: Option<Arc<Seat>>,
}

thread_local! {
    /// Set on loop threads only. Never borrowed while an engine runs, which may come back here.
    static LOOP: RefCell<LoopState> = RefCell::default();
}

/// Runs on a loop: starts engines that are new there and reloads the others.
fn configure_loop(context: LoopContext, engines: Vec<(Arc<dyn Configuration>, Vec<LoopListener>)>) {
    let mut before = LOOP.with_borrow_mut(|state| std::mem::take(&mut state.engines));
    let mut now = BTreeMap::new();
    for (configuration, listeners) in engines {
        let kind = configuration.kind();
        let engine = match before.remove(kind) {
            Some(engine) => {
                let context = context.clone();
                engine.reload(
                    configuration,
                    LoopContext {
                        listeners,
                        ..context
                    },
                );
                engine
            }
            None => Rc::from(configuration.start_loop(LoopContext {
                listeners,
                ..context.clone()
            })),
        };
        now.insert(kind, engine);
    }
    for engine in before.values() {
        engine.stop();
    }
    LOOP.with_borrow_mut(|state| {
        state.engines = now;
        if let Some(seat) = &state.seat {
            seat.open();
        }
        state.retired.retain(|engine| engine.active() > 0);
        state.retired.extend(before.into_values());
    });
}

fn all_engines() -> Vec<Rc<dyn LoopEngine>> {
    LOOP.with_borrow(|state| {
        state
            .engines
            .values()
            .chain(&state.retired)
            .cloned()
            .collect()
    })
}

fn finish_loop() {
    let done = LOOP.with_borrow(|state| state.done.clone());
    if let Some(done) = done {
        done.notify_one();
    }
}

/// Leaves a connection for the loop that has the fewest.
fn settle(mut arrival: Arrival, seats: &Seats) {
    // A loop may have closed its seat a moment ago; it is not found again then. What nobody takes is closed, as an idle
    // connection may be.
    for _ in seats.list.iter() {
        let Some(seat) = seats.lightest() else { return };
        match seat.give(arrival) {
            Ok(()) => return,
            Err(refused) => arrival = refused,
        }
    }
}

/// Runs on a loop: takes in the connections that others have left for it.
fn take_arrivals() {
    let (seat, engines) = LOOP.with_borrow(|state| (state.seat.clone(), state.engines.clone()));
    let Some(seat) = seat else { return };
    for arrival in seat.take() {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt(arrival.what);
        }
    }
}

/// Runs on a loop: serves for another one that is late by `limit`, until it is not.
fn rescue(late: Arc<Seat>, limit: Duration) {
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for arrival in late.take() {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt(arrival.what);
        }
    }
    let index = late.index;
    let still: Rc<dyn Fn() -> bool> = Rc::new(move || late.handle().late() >= limit);
    for engine in engines.values() {
        engine.rescue(index, still.clone());
    }
}

/// Runs on a loop: moves so many of its connections to other loops.
fn shed(count: usize, seats: Seats) {
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let seats = seats.clone();
        let sink = move |parcel| {
            let what = Arriving::Idle(parcel);
            settle(Arrival { kind, what }, &seats);
        };
        let sink = ParcelSink {
            reach: Reach::Process,
            take: Rc::new(sink),
        };
        engine.shed(count, sink);
    }
}

/// Runs on a loop: counts from now on what its connections make it do.
fn note_work() {
    for engine in all_engines() {
        engine.note_work();
    }
}

/// Runs on a loop: moves connections that do this part of its work to the loop with the seat `to`.
fn shed_work(part: f64, to: u64, seats: Seats) {
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let seats = seats.clone();
        let sink = move |parcel| {
            let what = Arriving::Idle(parcel);
            let arrival = Arrival { kind, what };
            let refused = match seats.list.iter().find(|seat| seat.id == to) {
                Some(calm) => calm.give(arrival),
                None => Err(arrival),
            };
            if let Err(arrival) = refused {
                settle(arrival, &seats);
            }
        };
        let sink = ParcelSink {
            reach: Reach::Process,
            take: Rc::new(sink),
        };
        engine.shed_work(part, sink);
    }
}

/// Nothing more is left for this loop by others; what was is taken in.
fn close_seat() {
    let (seat, engines) = LOOP.with_borrow(|state| (state.seat.clone(), state.engines.clone()));
    let arrivals = seat.map(|seat| seat.close()).unwrap_or_default();
    for arrival in arrivals {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt(arrival.what);
        }
    }
}

/// Runs on a loop: ends it when its last connection has ended. Those that wait for a request go to
/// `sink`.
fn hand_over_loop(reach: Reach, sink: impl Fn(&'static str, Parcel) + Clone + 'static) {
    close_seat();
    let engines = LOOP.with_borrow(|state| state.engines.clone());
    for (kind, engine) in engines {
        let sink = sink.clone();
        let take = Rc::new(move |parcel| sink(kind, parcel));
        engine.hand_over(ParcelSink { reach, take });
    }
    end_when_idle();
}

/// Runs on a loop: ends it when its last connection has ended.
fn stop_loop() {
    close_seat();
    for engine in all_engines() {
        engine.stop();
    }
    end_when_idle();
}

fn end_when_idle() {
    let engines = all_engines();
    rt::spawn_named("stop", async move {
        while engines.iter().any(|engine| engine.active() > 0) {
            rt::sleep(DRAIN_CHECK).await;
        }
        finish_loop();
    });
}

/// Runs on a loop: ends it now.
fn abort_loop() {
    for engine in all_engines() {
        engine.abort();
    }
    finish_loop();
}

/// Makes the pools of the configuration. They live as long as the process: a pool that is removed by
/// a reload may still have work.
fn register_pools(main: &Main) {
    for pool in &main.thread_pools {
        rt::pool::register(&pool.name, pool.threads, pool.max_queue);
    }
}

/// Sends what the runtime reports to the error log, at nginx's levels.
fn install_reporter(log: &Logger) {
    let log = log.clone();
    rt::report::set_reporter(move |event| {
        use rt::report::Event;
        match event {
            Event::Panic {
                task,
                message,
                location,
                backtrace,
            } => {
                log.plain(
                    Level::Alert,
                    format_args!("task \"{task}\" panicked at {location}: {message}"),
                );
                // One line each, so that a long trace is not cut.
                for frame in backtrace.to_string().lines() {
                    log.plain(Level::Error, format_args!("backtrace: {frame}"));
                }
            }
            Event::SlowTurn { .. } => log.plain(Level::Warn, format_args!("{event}")),
            Event::Stalled { frames, .. } => {
                log.plain(Level::Warn, format_args!("{event}"));
                for frame in *frames {
                    log.plain(Level::Warn, format_args!("stack: {frame}"));
                }
            }
            Event::PoolOverflow { .. } => log.plain(Level::Error, format_args!("{event}")),
            Event::AcceptPaused { .. } | Event::LogLost { .. } => {
                log.plain(Level::Crit, format_args!("{event}"))
            }
            Event::Unsupported { .. } => log.plain(Level::Notice, format_args!("{event}")),
            _ => log.plain(Level::Notice, format_args!("{event}")),
        }
    });
}
