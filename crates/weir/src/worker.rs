//! The worker: event loops on threads, and a control thread that applies configurations to them.
//!
//! [`WorkerLoops`] is independent of the process around it: a worker process drives it by the master's
//! messages ([`crate::worker_process`]), and a server without a master by signals. All its methods
//! run on the control thread; loops are only reached by posting to them, so building a
//! configuration never delays a loop.
//!
//! A replaced configuration lives as long as a connection uses it. Then its end is logged in the
//! words in which nginx logs the exit of an old worker, because scripts wait for them.
//!
//! The shutdown has these states, each of which ends early when no loop is left:
//!
//! ```text
//! No ──stop()──▶ Graceful ──worker_shutdown_timeout──▶ Cut ──CUT_GRACE──▶ Aborted ──ABORT_GRACE──▶ exit
//! ```

use std::collections::HashSet;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use host::channel::Channel;
use host::engine::{
    CUT_GRACE, EngineConfiguration, LoopContext, LoopListener, MainSettings, MoveScope,
    ZoneRegistry,
};
use host::error_log::{LogFiles, LogLevel, LogWriteMode, Logger};
use host::loop_slots::{ArrivingConnection, LoopArrival, LoopSlot, LoopSlots};
use host::worker_group::{GroupMember, WorkerGroup};
use net::tls::TicketSecret;

use crate::core_conf::CoreConf;
use crate::handover::{self, ConnectionSender};
use crate::load_configuration::{KeptReading, LoadedConfiguration, StartupSettings, load};
use crate::message::{GenerationMessage, IdleConnections, OpenLogs};
use crate::watchdog::{LoopActions, LoopWatchdog};
use crate::worker_loop::{
    LoopEndGuard, abort_loop, configure_loop, count_work, cut_loop, drain_loop_to,
    move_connections, move_to_group, move_work, place_connection, rescue, run_loop, shed_idle,
    stop_loop, take_arrivals,
};

/// How often the control thread checks whether an old configuration is still used.
const OLD_INTERVAL: Duration = Duration::from_millis(20);
/// At how many checks after the end of a configuration its log files are looked for: one second.
const PRUNES: u32 = 50;
/// How long a loop may take to begin with a configuration before it is assumed to have it.
const LOOP_TIMEOUT: Duration = Duration::from_millis(500);
/// How long another worker may take for the rest of a message.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long loops may take to end once everything is closed.
const ABORT_GRACE: Duration = Duration::from_millis(500);
/// How long the process may take to save what the next start can use. The master kills it after a
/// second.
const CLOSE_WAIT: Duration = Duration::from_millis(800);

/// The event loops of a process, and their configuration.
pub(crate) struct WorkerLoops {
    /// What the command line has decided.
    startup: Arc<StartupSettings>,
    /// All log files, across configurations: lines in their queues outlive a reload.
    files: LogFiles,
    /// What engines keep across reloads, by name and kind.
    zones: ZoneRegistry,
    /// The error log of the configuration in use.
    log: Logger,
    /// The serving loops, by index.
    loops: Vec<Arc<LoopSlot>>,
    /// Loops that a reload has removed and that finish their requests, by the number of their slot.
    retiring: HashSet<u64>,
    /// What the next configuration can take over of this one.
    kept: Option<KeptReading>,
    /// The configuration in use.
    current: Vec<Arc<dyn EngineConfiguration>>,
    /// Configurations that connections may still use, oldest first. Held here, so that none is freed on a loop: that can
    /// take longer than a request may wait.
    old: Vec<Vec<Arc<dyn EngineConfiguration>>>,
    /// At how many of the next checks log files without a user are closed.
    prunes_left: u32,
    /// A configuration of which little was taken over has yet to be freed.
    holds_replaced: bool,
    /// `worker_shutdown_timeout`; zero means no limit.
    shutdown_timeout: Duration,
    /// Each loop writes its slot's number here when it ends.
    loop_ended: (PipeReader, PipeWriter),
    /// How many loops have ended, besides those that were leaving.
    ended_count: usize,
    /// How far the shutdown has got.
    stopping: StopStage,
    /// Workers with which idle connections are exchanged.
    peers: Vec<Channel>,
    /// Helps late loops.
    watchdog: Option<LoopWatchdog>,
    /// Sends connections to another process.
    connection_sender: Option<ConnectionSender>,
}

/// The state of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStage {
    No,
    /// Connections may end on their own until this time.
    Graceful(Option<Instant>),
    /// Connections were cut; requests may end and be logged until this time.
    Cut(Instant),
    /// Everything was closed; loops may take until this time to notice.
    Aborted(Instant),
}

impl WorkerLoops {
    /// A worker without loops; the first configuration starts them. `log` is used until then.
    pub(crate) fn new(
        startup: Arc<StartupSettings>,
        log: Logger,
        member: GroupMember,
    ) -> io::Result<WorkerLoops> {
        host::error_log::queue_syslog();
        let zones = ZoneRegistry::of_group(Arc::new(member));
        net::counters::answer_groups(&zones);
        Ok(WorkerLoops {
            startup,
            files: LogFiles::default(),
            zones,
            log,
            loops: Vec::new(),
            retiring: HashSet::new(),
            kept: None,
            current: Vec::new(),
            old: Vec::new(),
            prunes_left: 0,
            holds_replaced: false,
            shutdown_timeout: Duration::ZERO,
            loop_ended: io::pipe()?,
            ended_count: 0,
            stopping: StopStage::No,
            peers: Vec::new(),
            watchdog: None,
            connection_sender: None,
        })
    }

    /// The error log of the configuration in use.
    pub(crate) fn log(&self) -> &Logger {
        &self.log
    }

    /// Which of the worker processes this is.
    pub(crate) fn group(&self) -> WorkerGroup {
        self.zones.group().place()
    }

    /// Whether a configuration is in use.
    pub(crate) fn has_configuration(&self) -> bool {
        !self.loops.is_empty()
    }

    /// Whether it has been told to exit.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping != StopStage::No
    }

    /// Applies a configuration: the first one starts the loops, later ones replace the previous
    /// one. If it fails, the error is logged and returned, and the previous one stays in use.
    pub(crate) fn apply(&mut self, generation: &GenerationMessage) -> Result<(), String> {
        // Before the configuration is built: its messages may already go to the new logs.
        self.attach(&generation.logs);
        let files = Box::new(generation.snapshot.clone());
        let mut loaded = match load(&self.startup, files, self.files.clone(), self.kept.take()) {
            Ok(loaded) => loaded,
            Err(failure) => {
                failure.log(&self.log);
                return Err(failure.0.text(self.startup.identity.program()));
            }
        };
        // A valid configuration has been shown and logged by the master; the texts are large.
        loaded.messages.forget_sources();
        if !self.has_configuration() {
            // Returning memory locks the allocator, and so far no loop could be waiting for it.
            host::process::give_memory_back();
        }
        let (kept, taken_over) = (loaded.kept.take(), loaded.taken_over);
        self.holds_replaced |= self.has_configuration() && loaded.replaces_much();
        self.apply_loaded(loaded, generation)?;
        self.kept = kept;
        if let Some((count, all)) = taken_over {
            let text = format_args!("{count} of {all} servers were taken over");
            self.log.log_plain(LogLevel::Info, text);
        }
        Ok(())
    }

    /// Puts a valid configuration into use: what can fail comes first and changes nothing for the loops; then the
    /// shared state is taken over, and each loop gets the configuration.
    fn apply_loaded(
        &mut self,
        loaded: LoadedConfiguration,
        generation: &GenerationMessage,
    ) -> Result<(), String> {
        for engine in &loaded.engines {
            if let Err(error) = engine.accept(&self.zones) {
                return Err(self.log_emergency(format_args!("{error}")));
            }
        }
        let first = self.loops.is_empty();
        let removed = match self.start_missing_loops(&loaded) {
            Ok(removed) => removed,
            Err(error) => {
                let error = base::ErrnoText(&error);
                return Err(
                    self.log_emergency(format_args!("could not start the event loops{error}"))
                );
            }
        };
        // Nothing fails from here on. Engines share zones between loops, so all commit before any loop gets its
        // configuration. Until it does, a loop serves the previous one with what the new one says of shared state.
        self.zones.set_loops(loaded.main.worker_processes);
        for engine in &loaded.engines {
            engine.commit(&self.zones);
        }
        self.log = loaded.log.clone();
        host::error_log::set_json(loaded.core.log_is_json);
        self.shutdown_timeout = loaded.main.shutdown_timeout;
        crate::runtime_reports::install_reporter(&self.log);
        if first {
            register_pools(&loaded.main);
        }
        // The keys of this configuration exist by now.
        TicketSecret::forget_past_here();
        let loop_slots = LoopSlots {
            list: self.loops.iter().cloned().collect(),
        };
        // Room for all answers, so that no loop waits for this thread.
        let (done, answers) = mpsc::sync_channel(self.loops.len());
        for index in 0..self.loops.len() {
            self.post_configuration(index, &loop_slots, &loaded, generation, done.clone());
        }
        drop(done);
        await_loops(&answers);
        crate::group_arrivals::take_arrivals(
            &loaded,
            &loop_slots,
            generation.number,
            self.zones.group(),
        );
        // Only after the others have been given the configuration: they are where the connections go.
        self.retire_loops(removed, &loop_slots);
        self.configure_watchdog(&loop_slots, &loaded.core);
        let old = std::mem::replace(&mut self.current, loaded.engines);
        if !first {
            self.old.push(old);
        }
        // Only now, because until here a message was more likely about the previous configuration.
        crate::prepare::redirect_stderr(&self.log, &generation.logs);
        // Files that only the old configuration names are closed with its last user: see `forget_old`.
        self.files.prune_unused();
        Ok(())
    }

    /// Logs why a configuration is refused. Returns it in the form in which the command line shows it.
    fn log_emergency(&self, text: std::fmt::Arguments<'_>) -> String {
        self.log.log_plain(LogLevel::Emerg, text);
        let program = self.startup.identity.program();
        format!("{program}: [emerg] {text}\n")
    }

    /// Starts the missing loops. Returns the surplus ones. If one cannot be started, those started before it end again:
    /// without a configuration they would take no connections, and a loop that exists counts as configured.
    fn start_missing_loops(
        &mut self,
        loaded: &LoadedConfiguration,
    ) -> io::Result<Vec<Arc<LoopSlot>>> {
        let wanted = self.group().loops(loaded.main.worker_processes).len();
        let before = self.loops.len();
        while self.loops.len() < wanted {
            match self.start_loop(self.loops.len(), loaded) {
                Ok(loop_slot) => self.loops.push(loop_slot),
                Err(error) => {
                    for loop_slot in self.loops.split_off(before) {
                        self.retiring.insert(loop_slot.id);
                        // A loop that cannot be reached has ended already.
                        let _ = loop_slot.handle().post(abort_loop);
                    }
                    return Err(error);
                }
            }
        }
        // Those that were there already; the new ones began with it.
        for loop_slot in &self.loops {
            loop_slot.handle().set_slow_turn(loaded.core.slow_turn());
        }
        Ok(self.loops.split_off(wanted))
    }

    /// Starts the watchdog, or tells it the current loops. The server works without it, so a
    /// failure is only logged.
    fn configure_watchdog(&mut self, loop_slots: &LoopSlots, loaded: &CoreConf) {
        if self.watchdog.is_none() {
            let help = LoopActions {
                rescue,
                move_connections,
                count_work,
                move_work,
                shed_idle,
                move_to_group,
            };
            self.watchdog = LoopWatchdog::start(help)
                .map_err(|error| {
                    let error = base::ErrnoText(&error);
                    let text = format_args!(
                        "pthread_create() failed{error}, stalled event loops will not be rescued"
                    );
                    self.log.log_plain(LogLevel::Alert, text);
                })
                .ok();
        }
        if let Some(watchdog) = &self.watchdog {
            watchdog.set(loop_slots, loaded.slow_turn(), &loaded.memory, &self.log);
        }
    }

    /// Starts the thread of a loop.
    fn start_loop(&self, index: usize, loaded: &LoadedConfiguration) -> io::Result<Arc<LoopSlot>> {
        // Among the loops of all groups: for the log, and for the processors.
        let number = self.group().loops(loaded.main.worker_processes).start + index;
        let name = format!("loop {number}");
        let event_loop = rt::EventLoop::new(rt::LoopOptions {
            name: name.clone(),
            slow_turn: loaded.core.slow_turn(),
            ..Default::default()
        })?;
        let group = Some(self.zones.group().clone());
        let loop_slot = LoopSlot::in_group(index, event_loop.handle(), take_arrivals, group);
        let (ended, id) = (self.loop_ended.1.try_clone()?, loop_slot.id);
        let affinity = loaded.core.affinity.clone();
        // For what the thread itself has to say; engines get theirs with each configuration.
        let log = loaded.log.clone();
        let own = loop_slot.clone();
        std::thread::Builder::new().name(name).spawn(move || {
            // Made here: a thread that could not be started must not report the end of its loop.
            let ended = LoopEndGuard(ended, id);
            run_loop(event_loop, own, affinity.of_loop(number), &log, ended);
        })?;
        Ok(loop_slot)
    }

    /// Ends loops that the configuration no longer has. Their idle connections move to the other
    /// loops, and the busy ones as soon as they are idle.
    fn retire_loops(&mut self, removed: Vec<Arc<LoopSlot>>, loop_slots: &LoopSlots) {
        for loop_slot in removed {
            self.retiring.insert(loop_slot.id);
            // Closed first, so that no other loop leaves a connection there that nothing would take.
            for arrival in loop_slot.close_slot() {
                place_connection(arrival, loop_slots);
            }
            let loop_slots = loop_slots.clone();
            let leave = move || {
                drain_loop_to(MoveScope::Process, move |kind, moving| {
                    let connection = ArrivingConnection::Idle(moving);
                    place_connection(LoopArrival { kind, connection }, &loop_slots);
                })
            };
            // A loop that cannot be reached has ended already.
            let _ = loop_slot.handle().post(leave);
        }
    }

    /// Sends a configuration to a loop. Engines that a reload has removed are stopped there.
    fn post_configuration(
        &self,
        index: usize,
        loop_slots: &LoopSlots,
        loaded: &LoadedConfiguration,
        generation: &GenerationMessage,
        done: mpsc::SyncSender<()>,
    ) {
        let loops = self.loops.len();
        // Sockets are divided among the loops of all groups.
        let all_loops = loaded.main.worker_processes;
        let number = self.group().loops(all_loops).start + index;
        let context = LoopContext {
            index,
            loops,
            loop_slots: loop_slots.clone(),
            loop_slot: self.loops[index].clone(),
            main: loaded.main.clone(),
            log: self.log.clone(),
            zones: self.zones.clone(),
            listeners: Vec::new(),
        };
        let engines: Vec<(Arc<dyn EngineConfiguration>, Vec<LoopListener>)> = loaded
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
                        .flat_map(|socket| socket.for_loop(number, all_loops))
                        .collect(),
                )
            })
            .collect();
        // A loop that has ended takes no configuration, and needs none.
        let _ = self.loops[index].handle().post(move || {
            configure_loop(context, engines);
            // If the loop was late, this is no longer waited for.
            let _ = done.send(());
        });
    }

    /// Adds another worker: it may send its idle connections, and gets those of this one if
    /// [`WorkerLoops::stop`] says so.
    pub(crate) fn add_peer(&mut self, peer: Channel) {
        // Best effort: without the limit a peer that stops in the middle of a message would hold up
        // the control thread, and so the next reload, but no client.
        let _ = peer.limit_wait(PEER_TIMEOUT);
        self.peers.push(peer);
    }

    /// The channels to other workers.
    pub(crate) fn peers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.peers.iter().map(|peer| peer.as_fd())
    }

    /// Receives a connection from peer `index`, whose channel is readable; `false` if the peer is
    /// gone.
    pub(crate) fn receive_from_peer(&mut self, index: usize) -> bool {
        // Once the shutdown has begun, the last peer's channel is used for sending.
        let Some(peer) = self.peers.get(index) else {
            return false;
        };
        let message = match peer.try_receive() {
            Ok(Some(message)) => message,
            // Another worker reads from the same end, and was quicker.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Ok(None) | Err(_) => {
                self.peers.remove(index);
                return false;
            }
        };
        let kinds: Vec<&'static str> = self.current.iter().map(|engine| engine.kind()).collect();
        if let Some((kind, moving)) = handover::decode(message, &kinds) {
            let connection = ArrivingConnection::Idle(moving);
            let loop_slots = LoopSlots {
                list: self.loops.iter().cloned().collect(),
            };
            // The master may have named this worker while its loops are still taking their
            // configuration.
            let deadline = rt::clock::read_clock() + PEER_TIMEOUT;
            while loop_slots.least_loaded().is_none() && rt::clock::read_clock() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            place_connection(LoopArrival { kind, connection }, &loop_slots);
        }
        true
    }

    /// Receives what peers have already sent: it would be lost with their channels.
    fn drain_peers(&mut self) {
        for index in (0..self.peers.len()).rev() {
            let speaks = |worker: &WorkerLoops| {
                let peer = worker.peers[index].as_fd();
                let ready = host::process::wait_readable(&[peer], Some(Duration::ZERO));
                ready.is_ok_and(|ready| ready[0])
            };
            while speaks(self) && self.receive_from_peer(index) {}
        }
    }

    /// Writes the logs to other descriptors from now on.
    pub(crate) fn reopen(&self, logs: &OpenLogs) {
        self.log
            .log_plain(LogLevel::Notice, format_args!("reopening logs"));
        self.attach(logs);
        crate::prepare::redirect_stderr(&self.log, logs);
    }

    /// Lets the logs write to these descriptors, from a queue: a loop must not wait for a disk.
    fn attach(&self, logs: &OpenLogs) {
        for (path, descriptor) in logs {
            match descriptor.try_clone() {
                Ok(descriptor) => self.files.attach(path, descriptor, LogWriteMode::Queued),
                Err(error) => {
                    let error = base::ErrnoText(&error);
                    self.log.log_plain(
                        LogLevel::Alert,
                        format_args!("dup() \"{}\" failed{error}", path.display()),
                    );
                }
            }
        }
    }

    /// Whether a loop has ended on its own. Its clients are lost, and only a new process can
    /// replace it cleanly.
    pub(crate) fn has_crashed(&self) -> bool {
        self.stopping == StopStage::No && self.ended_count > 0
    }

    /// Begins a graceful shutdown.
    pub(crate) fn stop(&mut self, idle: IdleConnections) {
        if self.stopping != StopStage::No {
            return;
        }
        self.log
            .log_plain(LogLevel::Notice, format_args!("gracefully shutting down"));
        if self.startup.text.is_none() {
            let program = self.startup.identity.program();
            host::process::set_title(&format!("{program}: worker process is shutting down"));
        }
        // Other groups keep what they accept from now on.
        self.zones.group().publish(0, 0);
        // Before the last peer's channel changes its direction.
        self.drain_peers();
        let timeout = self.shutdown_timeout;
        let deadline = (!timeout.is_zero()).then(|| rt::clock::read_clock() + timeout);
        self.stopping = StopStage::Graceful(deadline);
        // The latest peer is the newest worker, which will serve longest.
        let linger = idle.linger_time();
        let peer = self
            .peers
            .pop()
            .filter(|_| idle == IdleConnections::HandOver);
        self.connection_sender = peer.and_then(|peer| match ConnectionSender::start(peer) {
            Ok(sender) => Some(sender),
            Err(error) => {
                let error = base::ErrnoText(&error);
                self.log.log_plain(
                    LogLevel::Alert,
                    format_args!("pthread_create() failed{error}, idle connections will be closed"),
                );
                None
            }
        });
        for loop_slot in &self.loops {
            let to = self
                .connection_sender
                .as_ref()
                .map(ConnectionSender::sender);
            let stop = move || match to {
                // If the sender has given up, the connection is dropped with its descriptor.
                Some(to) => drain_loop_to(MoveScope::Beyond, move |kind, moving| {
                    drop(to.send((kind, moving)));
                }),
                None => stop_loop(linger),
            };
            // A loop that cannot be reached has ended already.
            let _ = loop_slot.handle().post(stop);
        }
    }

    /// Cuts the remaining connections, so that their requests end and are logged.
    fn cut(&mut self) {
        self.stopping = StopStage::Cut(rt::clock::read_clock() + CUT_GRACE);
        for loop_slot in &self.loops {
            // As in `stop`.
            let _ = loop_slot.handle().post(cut_loop);
        }
    }

    /// Closes everything and ends the loops.
    fn abort(&mut self) {
        self.stopping = StopStage::Aborted(rt::clock::read_clock() + ABORT_GRACE);
        for loop_slot in &self.loops {
            // As in `stop`.
            let _ = loop_slot.handle().post(abort_loop);
        }
    }

    /// How long the control thread may sleep before it must call [`WorkerLoops::check`].
    pub(crate) fn next_check(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(rt::clock::read_clock());
        let deadline = match self.stopping {
            StopStage::No | StopStage::Graceful(None) => None,
            StopStage::Graceful(Some(deadline))
            | StopStage::Cut(deadline)
            | StopStage::Aborted(deadline) => Some(left(deadline)),
        };
        // Nothing announces the last use of an old configuration, so it is polled, but only while there is one.
        let is_polling = !self.old.is_empty() || self.prunes_left > 0;
        let old = is_polling.then_some(OLD_INTERVAL);
        deadline.into_iter().chain(old).min()
    }

    /// How long the longest of the loops' current iterations has taken so far; those of loops that wait have ended.
    pub(crate) fn longest_iteration(&self) -> Duration {
        let loops = self.loops.iter();
        let durations = loops.map(|loop_slot| loop_slot.handle().turn_duration());
        durations.max().unwrap_or_default()
    }

    /// A descriptor that becomes readable when a loop ends.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.loop_ended.0.as_fd()
    }

    /// Handles timeouts, old configurations and loops that have ended. Returns true when no loop is
    /// left.
    pub(crate) fn check(&mut self, loop_ended: bool) -> bool {
        if loop_ended {
            // Pipes write such short messages atomically, so only whole numbers are read. An error
            // would repeat; then the deadline ends the wait.
            let mut bytes = [0; 8 * 64];
            let length = self.loop_ended.0.read(&mut bytes).unwrap_or(0);
            for number in bytes[..length].chunks_exact(8) {
                let number = number.try_into().map_or(0, u64::from_le_bytes);
                if !self.retiring.remove(&number) {
                    self.ended_count += 1;
                }
            }
        }
        self.forget_old();
        match self.stopping {
            StopStage::Graceful(Some(deadline)) if rt::clock::read_clock() >= deadline => {
                self.log.log_plain(
                    LogLevel::Notice,
                    format_args!("worker_shutdown_timeout has passed, closing connections"),
                );
                self.cut();
            }
            StopStage::Cut(deadline) if rt::clock::read_clock() >= deadline => self.abort(),
            StopStage::Aborted(deadline) if rt::clock::read_clock() >= deadline => return true,
            StopStage::No | StopStage::Graceful(_) | StopStage::Cut(_) | StopStage::Aborted(_) => {}
        }
        self.stopping != StopStage::No && self.ended_count >= self.loops.len()
    }

    /// Reports configurations that are no longer used, as nginx reports the exit of the worker that
    /// ran one: scripts that wait for the end of a reload wait for this line.
    fn forget_old(&mut self) {
        let process = std::process::id();
        let log = &self.log;
        let before = self.old.len();
        self.old.retain(|engines| {
            let used = engines.iter().any(|engine| engine.is_in_use());
            if !used {
                let text = format_args!("worker process {process} exited with code 0");
                log.log_plain(LogLevel::Notice, text);
            }
            used
        });
        // Log files that only this configuration has named. It counts as ended before it has let go of them, and freeing a
        // large one takes a while, so they are looked for several times.
        if self.old.len() < before {
            self.prunes_left = PRUNES;
        }
        if self.prunes_left > 0 {
            self.prunes_left -= 1;
            self.files.prune_unused();
            if self.prunes_left == 0 && self.old.is_empty() && self.holds_replaced {
                self.holds_replaced = false;
                // What it had is free, between what is used: the allocator would keep it until the next reload. Loops have
                // memory of their own, so they wait for this at most if they free something of a configuration.
                host::process::give_memory_back();
            }
        }
    }

    /// Saves what the next start can use.
    pub(crate) fn close(&self) {
        let deadline = rt::clock::read_clock() + CLOSE_WAIT;
        self.current
            .iter()
            .for_each(|engine| engine.before_exit(deadline));
    }

    /// Waits until all log lines are written. The last call before the process exits.
    pub(crate) fn flush(&mut self) {
        if let Some(sender) = self.connection_sender.take() {
            // Before the logs are flushed: the thread may still have something to report.
            sender.finish();
        }
        self.files.flush();
    }
}

/// Waits until the loops have taken a configuration, so that a client that is told of it does not
/// meet the previous one. Not longer than [`LOOP_TIMEOUT`]: a loop that is stuck takes it later.
fn await_loops(answers: &mpsc::Receiver<()>) {
    let deadline = rt::clock::read_clock() + LOOP_TIMEOUT;
    // The channel is closed when all have answered.
    while answers
        .recv_timeout(deadline.saturating_duration_since(rt::clock::read_clock()))
        .is_ok()
    {}
}

/// Creates the thread pools of the first configuration. They live as long as the process: their
/// threads may have work at any time, so a reload with other pools starts a new worker
/// ([`CoreConf::same_process`](crate::core_conf::CoreConf::same_process)), and without a master it
/// leaves them as they are.
fn register_pools(main: &MainSettings) {
    for pool in &main.thread_pools {
        rt::pool::register(&pool.name, pool.threads, pool.max_queue);
    }
}
