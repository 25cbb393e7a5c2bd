//! The worker: event loops on threads, and a control thread that applies configurations to them.
//!
//! [`Worker`] is the machinery, without a process around it: the worker process drives it from the
//! master's messages ([`crate::worker_process`]), a server without a master from signals
//! ([`crate::single`]). All its methods run on the control thread; a loop is only reached by
//! posting to it, so building a configuration never holds a loop up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rt::engine::{Configuration, LoopContext, LoopEngine, LoopListener, Main, Zones};
use rt::error_log::{Attach, Level, LogFiles, Logger};

use crate::affinity::Affinity;
use crate::load::{Loaded, Startup};
use crate::message::{Generation, Logs};

/// How often a loop that stops looks whether its last connection has ended.
const DRAIN_CHECK: Duration = Duration::from_millis(10);
/// How often the control thread looks whether an old configuration is out of use.
const OLD_CHECK: Duration = Duration::from_millis(20);
/// How long loops may take to end after everything was closed.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// Loops, and what they run.
pub(crate) struct Worker {
    startup: Arc<Startup>,
    files: LogFiles,
    zones: Zones,
    log: Logger,
    loops: Vec<rt::Handle>,
    /// The configuration in use.
    current: Vec<Arc<dyn Configuration>>,
    /// Configurations that some connection may still use, oldest first.
    old: Vec<Vec<Weak<dyn Configuration>>>,
    shutdown_timeout: Duration,
    /// Each loop writes a byte here when it has ended.
    ended: (PipeReader, PipeWriter),
    /// How many have.
    ended_count: usize,
    stopping: Stopping,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    /// Connections may end by themselves until then.
    Graceful(Option<Instant>),
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
            current: Vec::new(),
            old: Vec::new(),
            shutdown_timeout: Duration::ZERO,
            ended: io::pipe()?,
            ended_count: 0,
            stopping: Stopping::No,
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

    /// Applies a configuration: the first starts the loops, later ones replace the one before on each.
    /// On an error, which is logged, the one before stays in use.
    pub(crate) fn apply(&mut self, generation: &Generation) -> Result<(), ()> {
        self.attach(&generation.logs);
        let files = Box::new(generation.snapshot.clone());
        let loaded = match crate::load::load(&self.startup, files, self.files.clone()) {
            Ok(loaded) => loaded,
            Err(failure) => {
                failure.log(&self.log);
                return Err(());
            }
        };
        self.use_loaded(loaded, generation)
    }

    fn use_loaded(&mut self, loaded: Loaded, generation: &Generation) -> Result<(), ()> {
        for engine in &loaded.engines {
            if let Err(error) = engine.commit(&self.zones) {
                self.log.plain(Level::Emerg, format_args!("{error}"));
                return Err(());
            }
        }
        self.log = loaded.log.clone();
        self.shutdown_timeout = loaded.main.shutdown_timeout;
        let first = self.loops.is_empty();
        if first {
            register_pools(&loaded.main);
            install_reporter(&self.log);
            self.start_loops(&loaded).map_err(|error| {
                let error = rt::error_log::Errno(&error);
                self.log.plain(
                    Level::Emerg,
                    format_args!("could not start the event loops{error}"),
                );
            })?;
        } else {
            install_reporter(&self.log);
        }
        for index in 0..self.loops.len() {
            self.post_configuration(index, &loaded, generation);
        }
        let old = std::mem::replace(&mut self.current, loaded.engines);
        if !first {
            self.old.push(old.iter().map(Arc::downgrade).collect());
        }
        crate::prepare::redirect_stderr(&self.log, &generation.logs);
        self.files.prune();
        Ok(())
    }

    fn start_loops(&mut self, loaded: &Loaded) -> io::Result<()> {
        for index in 0..loaded.main.worker_processes {
            let name = format!("loop {index}");
            let event_loop = rt::Loop::new(rt::LoopOptions {
                name: name.clone(),
                slow_turn: loaded.core.slow_turn(),
                ..Default::default()
            })?;
            let handle = event_loop.handle();
            let ended = self.ended.1.try_clone()?;
            let affinity = loaded.core.affinity.clone();
            let log = self.log.clone();
            std::thread::Builder::new()
                .name(name)
                .spawn(move || run_loop(event_loop, index, &affinity, &log, ended))?;
            self.loops.push(handle);
        }
        Ok(())
    }

    /// Sends a configuration to one loop. Engines that a reload has removed are stopped there.
    fn post_configuration(&self, index: usize, loaded: &Loaded, generation: &Generation) {
        let context = LoopContext {
            index,
            loops: self.loops.len(),
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
                    sockets.map(|socket| socket.for_loop(index)).collect(),
                )
            })
            .collect();
        // A loop that has ended takes no more configurations, and needs none.
        let _ = self.loops[index].post(move || configure_loop(context, engines));
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

    /// Begins to end gracefully.
    pub(crate) fn stop(&mut self) {
        if self.stopping != Stopping::No {
            return;
        }
        self.log
            .plain(Level::Notice, format_args!("gracefully shutting down"));
        if self.startup.text.is_none() {
            let program = self.startup.identity.program();
            rt::process::set_title(&format!("{program}: worker process is shutting down"));
        }
        let timeout = self.shutdown_timeout;
        let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
        self.stopping = Stopping::Graceful(deadline);
        for event_loop in &self.loops {
            // A loop that can not be reached has ended already.
            let _ = event_loop.post(stop_loop);
        }
    }

    /// Closes what is left and lets the loops end.
    fn abort(&mut self) {
        self.stopping = Stopping::Aborted(Instant::now() + ABORT_GRACE);
        for event_loop in &self.loops {
            // As in `stop`.
            let _ = event_loop.post(abort_loop);
        }
    }

    /// How long the control thread may sleep before it must call [`Worker::check`].
    pub(crate) fn next_check(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let deadline = match self.stopping {
            Stopping::No | Stopping::Graceful(None) => None,
            Stopping::Graceful(Some(deadline)) | Stopping::Aborted(deadline) => {
                Some(left(deadline))
            }
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
            let mut bytes = [0; 64];
            // An error would come again; the deadline of the stop ends the wait then.
            self.ended_count += self.ended.0.read(&mut bytes).unwrap_or(0);
        }
        self.forget_old();
        match self.stopping {
            Stopping::Graceful(Some(deadline)) if Instant::now() >= deadline => {
                self.log.plain(
                    Level::Notice,
                    format_args!("worker_shutdown_timeout has passed, closing connections"),
                );
                self.abort();
            }
            Stopping::Aborted(deadline) if Instant::now() >= deadline => return true,
            Stopping::No | Stopping::Graceful(_) | Stopping::Aborted(_) => {}
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

    /// Waits until every log line has been written. The last thing before the process ends.
    pub(crate) fn flush(&self) {
        self.files.flush();
    }
}

/// The body of a loop's thread.
fn run_loop(
    event_loop: rt::Loop,
    index: usize,
    affinity: &Affinity,
    log: &Logger,
    ended: PipeWriter,
) {
    let _ended = EndGuard(ended);
    if let Some(processors) = affinity.of_loop(index)
        && let Err(error) = rt::process::pin_thread(&processors)
    {
        let error = rt::error_log::Errno(&error);
        log.plain(
            Level::Alert,
            format_args!("sched_setaffinity() failed{error}"),
        );
    }
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
struct EndGuard(PipeWriter);

impl Drop for EndGuard {
    fn drop(&mut self) {
        // When the control thread is gone too, nobody needs to know.
        let _ = self.0.write_all(b".");
    }
}

/// What a loop runs.
#[derive(Default)]
struct LoopState {
    engines: BTreeMap<&'static str, Rc<dyn LoopEngine>>,
    /// Engines that a reload has removed and whose connections are still open.
    retired: Vec<Rc<dyn LoopEngine>>,
    done: Option<Rc<rt::sync::Notify>>,
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
                engine.reload(configuration, listeners);
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

/// Runs on a loop: ends it when its last connection has ended.
fn stop_loop() {
    let engines = all_engines();
    for engine in &engines {
        engine.stop();
    }
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
            Event::PoolOverflow { .. } => log.plain(Level::Error, format_args!("{event}")),
            Event::AcceptPaused { .. } | Event::LogLost { .. } => {
                log.plain(Level::Crit, format_args!("{event}"))
            }
            Event::Unsupported { .. } => log.plain(Level::Notice, format_args!("{event}")),
            _ => log.plain(Level::Notice, format_args!("{event}")),
        }
    });
}
