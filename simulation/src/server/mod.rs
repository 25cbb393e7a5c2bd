//! The server: its engines on loops of the simulation, from the text of a configuration.
//!
//! What the binary does around the engine (master, signals, sockets of the kernel, Lua) is not here. What is done in its
//! place follows `weir/worker.rs`: accept, commit, one configuration for each loop, reload, stop, and a successor that gets the
//! idle connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use conf::{
    Arity, BlockConfs, BlockContext, ConfigurationBuild, Diagnostic, Directive, DirectiveLine,
    DirectiveTable, FileSnapshot, MAIN, NoVariables, PathUse, Setter,
};
use host::engine::{
    ConnectionSink, EngineConfiguration, ListenerId, LoopContext, LoopEngine, LoopListener,
    MainSettings, MoveScope, ZoneRegistry,
};
use host::error_log::{ErrorLogTarget, LogFiles, LogLevel, LogWriteMode, Logger, MainLog};
use host::listen::ListenAddress;
use host::loop_slots::{ArrivingConnection, LoopArrival, LoopSlot, LoopSlots};
use rt::simulation::{Simulation, datagrams, network};

/// The HTTP engine with the modules of the server, but for Lua.
static HTTP: LazyLock<http::HttpEngine> =
    LazyLock::new(|| http::HttpEngine::new(modules::http::MODULES));

/// The stream engine, likewise.
static STREAM: LazyLock<stream::StreamEngine> =
    LazyLock::new(|| stream::StreamEngine::new(modules::stream::MODULES));

/// The name of the configuration in messages.
const FILE: &str = "/simulation/nginx.conf";
/// The error log.
const LOG: &str = "/simulation/error.log";

/// How long the loops of a successor may take to serve.
const BEGINNING: Duration = Duration::from_secs(10);
const BEGINNING_STEPS: u64 = 100_000;

/// The main context, as far as it matters here.
#[derive(Clone, Default)]
struct MainConf {
    engines: Vec<Arc<dyn EngineConfiguration>>,
}

static DIRECTIVES: DirectiveTable<MainConf> = DirectiveTable::<MainConf>::new(&[
    Directive {
        name: "events",
        syntax: "{ ... }",
        default: None,
        contexts: MAIN,
        since: "0.1",
        doc: "Empty.",
        set: Setter::Block(Arity::NONE, conf::RepeatRule::Once, |_, _| Ok(())),
    },
    Directive {
        name: "http",
        syntax: "{ ... }",
        default: None,
        contexts: MAIN,
        since: "0.1",
        doc: "The HTTP server.",
        set: Setter::Deferred(Arity::NONE, |line, confs| {
            prepare(line);
            let engine = HTTP.configure(line)?;
            add_engine(confs, engine)
        }),
    },
    Directive {
        name: "stream",
        syntax: "{ ... }",
        default: None,
        contexts: MAIN,
        since: "0.1",
        doc: "The server of TCP and UDP.",
        set: Setter::Deferred(Arity::NONE, |line, confs| {
            prepare(line);
            let engine = STREAM.configure(line)?;
            add_engine(confs, engine)
        }),
    },
]);

fn add_engine(
    confs: &mut BlockConfs,
    engine: Arc<dyn EngineConfiguration>,
) -> Result<(), Diagnostic> {
    if let Some(main) = confs.get_mut::<MainConf>() {
        main.engines.push(engine);
    }
    Ok(())
}

/// What engines find of the main context.
fn prepare(line: &mut DirectiveLine) {
    let prefix = line.level.build.in_prefix(PathUse::Opened, "");
    let settings = line.shared::<ServerSettings>().clone();
    *line.shared::<MainSettings>() = MainSettings {
        prefix,
        worker_processes: settings.loops,
        ..MainSettings::default()
    };
    line.shared::<MainLog>().0 = settings.log;
}

/// What configurations need besides their text.
#[derive(Clone, Default)]
struct ServerSettings {
    loops: usize,
    log: Logger,
}

/// Engines by kind.
type LoopEngines = BTreeMap<&'static str, Rc<dyn LoopEngine>>;

/// The engines at work on one loop.
#[derive(Default)]
struct LoopState {
    engines: LoopEngines,
    slot: Option<Arc<LoopSlot>>,
    done: Option<Rc<rt::sync::Notify>>,
}

rt::local! {
    static LOOP: RefCell<LoopState> = RefCell::default();
}

/// A server of the simulation.
pub(crate) struct SimulatedServer {
    prefix: PathBuf,
    settings: ServerSettings,
    log_file: File,
    files: LogFiles,
    zones: ZoneRegistry,
    slots: LoopSlots,
    /// How many configurations its loops have begun with.
    begun: Arc<AtomicUsize>,
    /// The numbers of its loops in the simulation.
    loops: Range<usize>,
    sockets: BTreeMap<String, (ListenerId, Arc<OwnedFd>)>,
    /// All configurations so far: none is freed on a loop.
    configurations: Vec<Vec<Arc<dyn EngineConfiguration>>>,
}

impl SimulatedServer {
    /// Starts loops, and serves this configuration on them.
    pub(crate) fn start(
        simulation: &mut Simulation,
        loops: usize,
        prefix: &Path,
        text: &str,
    ) -> Result<SimulatedServer, String> {
        SimulatedServer::start_with(simulation, loops, prefix, BTreeMap::new(), text)
    }

    fn start_with(
        simulation: &mut Simulation,
        loops: usize,
        prefix: &Path,
        sockets: BTreeMap<String, (ListenerId, Arc<OwnedFd>)>,
        text: &str,
    ) -> Result<SimulatedServer, String> {
        let (log_file, files, log) = memory_log().map_err(|error| format!("log: {error}"))?;
        let mut list = Vec::new();
        let first = simulation.loop_count();
        for index in 0..loops {
            let handle = start_loop(simulation, &format!("server {index}"), || {
                let done = Rc::new(rt::sync::Notify::new());
                LOOP.with_borrow_mut(|state| state.done = Some(Rc::clone(&done)));
                async move { done.notified().await }
            });
            let handle = handle.map_err(|error| format!("loop: {error}"))?;
            list.push(LoopSlot::new(index, handle, take_arrivals));
        }
        let zones = ZoneRegistry::default();
        zones.set_loops(loops);
        let mut server = SimulatedServer {
            prefix: prefix.to_owned(),
            settings: ServerSettings { loops, log },
            log_file,
            files,
            zones,
            slots: LoopSlots {
                list: list.into_iter().collect(),
            },
            begun: Arc::default(),
            loops: first..simulation.loop_count(),
            sockets,
            configurations: Vec::new(),
        };
        server.apply(text)?;
        Ok(server)
    }

    /// Dies, as by `kill -9`, and starts again with the sockets that the master has. `recover` puts the disk in order in
    /// between. Gives the panics and the error log of the process that died.
    pub(crate) fn crash(
        self,
        simulation: &mut Simulation,
        recover: impl FnOnce() -> Result<(), String>,
        text: &str,
    ) -> Result<(SimulatedServer, u64, String), String> {
        let mut dead = std::mem::ManuallyDrop::new(self);
        for number in dead.loops.clone() {
            simulation.kill_loop(number);
        }
        simulation.forget_jobs();
        network::cut_all();
        recover()?;
        let (loops, prefix) = (dead.settings.loops, dead.prefix.clone());
        let sockets = std::mem::take(&mut dead.sockets);
        let next = SimulatedServer::start_with(simulation, loops, &prefix, sockets, text)?;
        Ok((next, dead.panics(), dead.log_text()))
    }

    /// Starts a successor with its sockets, which serves this configuration, and ends gracefully: what waits for a request moves
    /// over. Gives the successor first.
    pub(crate) fn upgrade(
        self,
        simulation: &mut Simulation,
        text: &str,
    ) -> Result<(SimulatedServer, SimulatedServer), String> {
        let (loops, prefix) = (self.settings.loops, self.prefix.clone());
        let sockets = self.sockets.clone();
        let next = SimulatedServer::start_with(simulation, loops, &prefix, sockets, text)?;
        // The master tells the predecessor to end when the successor serves.
        let begun = Arc::clone(&next.begun);
        simulation.run_until(BEGINNING, BEGINNING_STEPS, || begun.load(Relaxed) >= loops);
        for slot in self.slots.list.iter() {
            let slots = next.slots.clone();
            let posted = slot.handle().post(move || leave_loop(&slots));
            posted.map_err(|error| error.to_string())?;
        }
        Ok((next, self))
    }

    /// Serves this configuration from now on, as after a reload.
    pub(crate) fn apply(&mut self, text: &str) -> Result<(), String> {
        let engines = self.read(text)?;
        for directory in engines.iter().flat_map(|engine| engine.directories()) {
            std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        }
        for engine in &engines {
            engine.accept(&self.zones)?;
        }
        // Waits for stores to be opened by a pool.
        rt::simulation::with_real_pools(|| {
            engines.iter().for_each(|engine| engine.commit(&self.zones));
        });
        let mut parts = Vec::new();
        for engine in &engines {
            parts.push((Arc::clone(engine), self.listeners(&**engine)?));
        }
        for slot in self.slots.list.iter() {
            let context = LoopContext {
                index: slot.index,
                loops: self.settings.loops,
                loop_slots: self.slots.clone(),
                loop_slot: Arc::clone(slot),
                main: self.main_settings(),
                log: self.settings.log.clone(),
                zones: self.zones.clone(),
                listeners: Vec::new(),
            };
            let parts = parts.clone();
            let begun = Arc::clone(&self.begun);
            let posted = slot.handle().post(move || {
                configure_loop(parts, &context);
                begun.fetch_add(1, Relaxed);
            });
            posted.map_err(|error| error.to_string())?;
        }
        self.configurations.push(engines);
        Ok(())
    }

    /// Where its files are.
    pub(crate) fn prefix(&self) -> &Path {
        &self.prefix
    }

    fn main_settings(&self) -> MainSettings {
        MainSettings {
            prefix: self.prefix.clone(),
            worker_processes: self.settings.loops,
            ..MainSettings::default()
        }
    }

    fn read(&self, text: &str) -> Result<Vec<Arc<dyn EngineConfiguration>>, String> {
        let mut files = FileSnapshot::default();
        files.insert(Path::new(FILE), text);
        // What the master reads besides: see `workload/certificate.rs`.
        for name in ["certificate.pem", "key.pem"] {
            let path = self.prefix.join(name);
            if let Ok(content) = std::fs::read(&path) {
                files.insert(path, content);
            }
        }
        let (tree, errors) = conf::parse_tolerant(Path::new(FILE), &mut files, None);
        let mut build = ConfigurationBuild::new(
            self.prefix.clone(),
            self.prefix.clone(),
            Box::new(files),
            tree.sources,
        );
        build.diagnostics = errors;
        build.blocks = tree.blocks;
        build.shared.insert(self.files.clone());
        build.shared.insert(self.settings.clone());
        let mut confs = BlockConfs::new(vec![vec![&DIRECTIVES]]);
        let mut names = NoVariables::default();
        conf::dispatch(
            &tree.nodes,
            &mut confs,
            None,
            &mut BlockContext::new(&mut build, &mut names, &mut (), MAIN),
        );
        let errors: Vec<String> = build
            .diagnostics
            .iter()
            .filter(|error| error.severity.is_fatal())
            .map(|error| conf::diagnostic::first_line(error, &build.sources))
            .collect();
        let main = confs.get_mut::<MainConf>();
        let engines = main.map_or_else(Vec::new, |main| std::mem::take(&mut main.engines));
        match errors.is_empty() && !engines.is_empty() {
            true => Ok(engines),
            false => Err(format!(
                "the configuration is refused: {}",
                errors.join("; ")
            )),
        }
    }

    fn listeners(
        &mut self,
        configuration: &dyn EngineConfiguration,
    ) -> Result<Vec<LoopListener>, String> {
        let mut listeners = Vec::new();
        for spec in configuration.listeners() {
            let name = format!("{:?}", spec.address);
            if !self.sockets.contains_key(&name) {
                let socket = match spec.address {
                    ListenAddress::Tcp(address) => network::listen_at(address),
                    ListenAddress::Udp(address) => datagrams::bind_datagrams(address),
                    ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => {
                        return Err(format!("{} is not simulated", spec.address));
                    }
                };
                let socket = socket.map_err(|error| format!("{name}: {error}"))?;
                let id = ListenerId(self.sockets.len() as u64 + 1);
                self.sockets.insert(name.clone(), (id, Arc::new(socket)));
            }
            let (id, descriptor) = self.sockets[&name].clone();
            listeners.push(LoopListener {
                id,
                spec: Arc::new(spec),
                member: 0,
                members: [Arc::clone(&descriptor)].into(),
                descriptor,
            });
        }
        Ok(listeners)
    }

    /// Lets the loops end when their last connection has.
    pub(crate) fn stop(&self) {
        for slot in self.slots.list.iter() {
            // A loop that has ended cannot be stopped.
            let _ = slot.handle().post(stop_loop);
        }
    }

    /// Panics that were caught on its loops.
    pub(crate) fn panics(&self) -> u64 {
        self.slots
            .list
            .iter()
            .map(|slot| slot.handle().stats().panics)
            .sum()
    }

    /// The most tasks that one of its loops has now.
    pub(crate) fn tasks(&self) -> u64 {
        let loops = self.slots.list.iter();
        let tasks = loops.map(|slot| slot.handle().stats().tasks);
        tasks.max().unwrap_or(0)
    }

    /// How many loops it has.
    pub(crate) fn loop_count(&self) -> usize {
        self.settings.loops
    }

    /// The counters of all loops.
    pub(crate) fn counters(&self) -> net::counters::CounterTotals {
        let all = self
            .zones
            .get_or_create(net::counters::ZONE, net::counters::AllCounters::default);
        all.totals()
    }

    /// What the error log says.
    pub(crate) fn log_text(&mut self) -> String {
        use std::io::Seek as _;
        let mut text = String::new();
        // In memory: neither fails.
        let _ = self.log_file.rewind();
        let _ = self.log_file.read_to_string(&mut text);
        text
    }
}

/// Starts a loop of the simulation.
pub(crate) fn start_loop<F: Future<Output = ()> + 'static>(
    simulation: &mut Simulation,
    name: &str,
    main: impl FnOnce() -> F + Send + 'static,
) -> std::io::Result<rt::LoopHandle> {
    let event_loop = rt::EventLoop::new(rt::LoopOptions {
        name: name.to_owned(),
        // Time passes by chance here: no turn is slow.
        slow_turn: Duration::ZERO,
        ..rt::LoopOptions::default()
    })?;
    let handle = event_loop.handle();
    simulation.start_loop(name, move || {
        if let Err(error) = event_loop.run(main) {
            rt::simulation::note(|| format!("a loop failed: {error}"));
        }
    })?;
    Ok(handle)
}

/// An error log in memory.
fn memory_log() -> std::io::Result<(File, LogFiles, Logger)> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("error.log", flags)?);
    let writer = File::options().append(true).open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&file)
    ))?;
    let files = LogFiles::default();
    files.attach(Path::new(LOG), writer.into(), LogWriteMode::Direct);
    let target = ErrorLogTarget::file(Path::new(LOG), LogLevel::Info);
    let log = Logger::default().with_target(target, &files);
    Ok((file, files, log))
}

/// A configuration with the sockets of its engine.
type EnginePart = (Arc<dyn EngineConfiguration>, Vec<LoopListener>);

fn configure_loop(parts: Vec<EnginePart>, context: &LoopContext) {
    for (configuration, listeners) in parts {
        let kind = configuration.kind();
        let context = LoopContext {
            listeners,
            ..context.clone()
        };
        let known = LOOP.with_borrow(|state| state.engines.get(kind).cloned());
        match known {
            Some(engine) => engine.reload(configuration, context),
            None => {
                let engine: Rc<dyn LoopEngine> = Rc::from(configuration.start_loop(context));
                LOOP.with_borrow_mut(|state| state.engines.insert(kind, engine));
            }
        }
    }
    let slot = Arc::clone(&context.loop_slot);
    slot.open_slot();
    LOOP.with_borrow_mut(|state| state.slot = Some(slot));
}

fn engines_and_slot() -> (LoopEngines, Option<Arc<LoopSlot>>) {
    LOOP.with_borrow(|state| (state.engines.clone(), state.slot.clone()))
}

fn take_arrivals() {
    let (engines, slot) = engines_and_slot();
    let arrivals = slot.map(|slot| slot.take_arrivals()).unwrap_or_default();
    adopt(arrivals, &engines);
}

fn adopt(arrivals: impl IntoIterator<Item = LoopArrival>, engines: &LoopEngines) {
    for arrival in arrivals {
        if let Some(engine) = engines.get(arrival.kind) {
            engine.adopt_connection(arrival.connection);
        }
    }
}

/// What others have left for this loop is the last that it gets.
fn close_slot() {
    let (engines, slot) = engines_and_slot();
    let arrivals = slot.map(|slot| slot.close_slot()).unwrap_or_default();
    adopt(arrivals, &engines);
}

fn stop_loop() {
    close_slot();
    let (engines, _) = engines_and_slot();
    engines.values().for_each(|engine| engine.stop());
    end_when_idle();
}

/// As another process takes over: its loops get what waits for a request.
fn leave_loop(successor: &LoopSlots) {
    close_slot();
    let (engines, _) = engines_and_slot();
    for (kind, engine) in engines {
        let slots = successor.clone();
        let take = Rc::new(move |moving| {
            let connection = ArrivingConnection::Idle(moving);
            if let Some(slot) = slots.least_loaded() {
                // One that is refused is closed, as an idle connection may be.
                let _ = slot.give_connection(LoopArrival { kind, connection });
            }
        });
        let scope = MoveScope::Beyond;
        engine.hand_over(ConnectionSink { scope, take });
    }
    end_when_idle();
}

fn end_when_idle() {
    let (engines, _) = engines_and_slot();
    let Some(done) = LOOP.with_borrow(|state| state.done.clone()) else {
        return;
    };
    rt::spawn_named("stop", async move {
        while engines.values().any(|engine| engine.active() > 0) {
            rt::sleep(Duration::from_millis(10)).await;
        }
        done.notify_one();
    });
}
