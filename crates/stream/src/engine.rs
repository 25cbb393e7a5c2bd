//! The stream engine as the binary sees it: one configuration, and the part of it that runs on one loop.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Errno;
use conf::{Diagnostic, Line, Rows};
use host::engine::{Configuration, ListenerSpec, LoopContext, LoopEngine, Main, Trial, Zones};
use host::error_log::{Level, Logger};
use host::seats::Arriving;
use net::accepting::{self, Accepts, Sockets};
use net::counters::{self, AllCounters, Counters};
use net::passing::Passed;
use rt::net::{Stream, UdpSocket};

use crate::client::Transport;
use crate::configure;
use crate::datagrams::{Datagrams, MAX_DATAGRAM};
use crate::module::Module;
use crate::serve::Newcomer;
use crate::site::{Frozen, Site};

/// The engine with the modules of a program.
pub struct Engine {
    modules: &'static [&'static Module],
}

/// One generation of `stream {}`.
pub struct StreamConfiguration {
    frozen: Arc<Frozen>,
    modules: &'static [&'static Module],
    /// How long sessions of this generation may go on after a reload (`worker_shutdown_timeout`); zero: until they end.
    shutdown_timeout: Duration,
}

/// Numbers generations, so that the sessions of one and of all before it can be found when their time is over.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// Numbers sessions, over all loops: `$connection` must not repeat.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The number of the next session.
pub(crate) fn next_connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

impl Engine {
    /// An engine that runs these modules, in this order.
    pub const fn new(modules: &'static [&'static Module]) -> Engine {
        Engine { modules }
    }

    /// The engine's own tables, for the reference and for help.
    pub fn own_tables() -> [&'static dyn Rows; 2] {
        [&crate::core::MAIN, &crate::core::SERVER]
    }

    /// The modules, in running order.
    pub fn modules(&self) -> &'static [&'static Module] {
        self.modules
    }

    /// Reads a `stream {}` block.
    pub fn configure(&self, line: &mut Line) -> Result<Arc<dyn Configuration>, Diagnostic> {
        let main = line.shared::<Main>().clone();
        let version = main
            .version
            .split_once('/')
            .map_or("", |(_, version)| version)
            .to_owned();
        let frozen = Arc::new(configure::stream(self.modules, version, line)?);
        Ok(Arc::new(StreamConfiguration {
            frozen,
            modules: self.modules,
            shutdown_timeout: main.shutdown_timeout,
        }))
    }
}

impl Configuration for StreamConfiguration {
    fn kind(&self) -> &'static str {
        StreamLoop::KIND
    }

    fn listeners(&self) -> Vec<ListenerSpec> {
        net::endpoint::listeners(&self.frozen.endpoints)
    }

    fn trials(&self) -> Vec<Trial> {
        self.modules
            .iter()
            .filter_map(|module| (module.trial)(&self.frozen))
            .collect()
    }

    fn commit(&self, zones: &Zones) -> Result<(), String> {
        self.modules
            .iter()
            .try_for_each(|module| (module.commit)(&self.frozen, zones))
    }

    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine> {
        let all = context
            .zones
            .get_or_create(counters::ZONE, AllCounters::default);
        let engine = Rc::new(StreamLoop {
            index: context.index,
            modules: self.modules,
            site: RefCell::new(Site::new(Arc::clone(&self.frozen))),
            shutdown_timeout: Cell::new(self.shutdown_timeout),
            sockets: Sockets::new(&context),
            sessions: RefCell::default(),
            next_key: Cell::new(0),
            limit: Cell::new(context.main.worker_connections),
            log: context.log.clone(),
            zones: context.zones.clone(),
            main: context.main.clone(),
            counters: all.for_loop(context.index),
        });
        engine.start_modules();
        engine.listen(context);
        Box::new(Running(engine))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// Stream on one loop.
pub struct StreamLoop {
    /// The number of the loop, from 0. What must run once in the process runs on loop 0.
    pub index: usize,
    modules: &'static [&'static Module],
    site: RefCell<Rc<Site>>,
    shutdown_timeout: Cell<Duration>,
    sockets: Sockets,
    /// The sessions that run, by a key that is unique on this loop. At most `limit`.
    sessions: RefCell<HashMap<u64, Underway>>,
    next_key: Cell<u64>,
    /// `worker_connections`.
    limit: Cell<usize>,
    /// The error log of main, for what belongs to no server.
    pub log: Logger,
    /// What lives longer than a configuration.
    pub zones: Zones,
    /// The settings of the main context.
    pub main: Main,
    /// This loop's counters.
    counters: Arc<Counters>,
}

/// A session that runs.
struct Underway {
    generation: u64,
    task: rt::JoinHandle<()>,
}

/// The handle of the host on a loop of stream.
struct Running(Rc<StreamLoop>);

impl LoopEngine for Running {
    fn reload(&self, configuration: Arc<dyn Configuration>, context: LoopContext) {
        // The host matches configurations by their kind, so that another type never comes here.
        let Ok(configuration) = configuration.as_any().downcast::<StreamConfiguration>() else {
            return;
        };
        let old = self
            .0
            .site
            .replace(Site::new(Arc::clone(&configuration.frozen)));
        // The timeout that replaced sessions get is the one of their own configuration, as an old worker of nginx keeps
        // its own.
        let patience = self
            .0
            .shutdown_timeout
            .replace(configuration.shutdown_timeout);
        if !patience.is_zero() {
            rt::spawn_named(
                "stream shutdown",
                end_generation(Rc::clone(&self.0), old.generation, patience),
            );
        }
        self.0.limit.set(context.main.worker_connections);
        // Before listening: the first session must find what the modules prepare.
        self.0.start_modules();
        self.0.listen(context);
    }

    fn adopt(&self, arriving: Arriving) {
        // Only connections that were just accepted come from other loops. A session cannot move: unlike HTTP, it has no
        // pause between two requests at which nothing of it is under way.
        if let Arriving::New { spec, stream } = arriving {
            self.0.open(stream.attach(), &spec);
        }
    }

    fn rescue(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        accepting::accept_for(&self.0, index, &still);
    }

    fn stop(&self) {
        // First, so that no connection is passed on to a loop that is about to stop.
        net::passing::withdraw(StreamLoop::KIND);
        for module in self.0.modules {
            (module.stop)(&self.0);
        }
        accepting::stop(&self.0);
    }

    fn abort(&self) {
        self.stop();
        self.0.abort_sessions(|_| true);
    }

    fn active(&self) -> usize {
        self.0.sessions.borrow().len()
    }
}

/// Ends the sessions of a replaced generation, and of those before it, when `worker_shutdown_timeout` has passed.
async fn end_generation(engine: Rc<StreamLoop>, generation: u64, patience: Duration) {
    rt::sleep(patience).await;
    engine.abort_sessions(|session| session.generation <= generation);
}

impl Accepts for StreamLoop {
    const KIND: &'static str = "stream";
    const TASK: &'static str = "stream accept";

    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    fn open(self: &Rc<Self>, stream: Stream, spec: &Arc<ListenerSpec>) {
        self.counters.accepted.add(1);
        let transport = Transport::Stream(Rc::new(net::Transport::plain(stream)));
        self.take_in(Newcomer::new(transport, spec));
    }

    fn receive(
        self: &Rc<Self>,
        socket: OwnedFd,
        spec: Arc<ListenerSpec>,
    ) -> io::Result<rt::JoinHandle<()>> {
        let socket = Datagrams::new(UdpSocket::from_fd(socket)?);
        let task = receive(Rc::clone(self), socket, spec);
        Ok(rt::spawn_handle("stream datagrams", task))
    }
}

impl StreamLoop {
    /// The present configuration.
    pub fn site(&self) -> Rc<Site> {
        Rc::clone(&self.site.borrow())
    }

    /// Drops the tasks of sessions. Their clients see the connection close.
    fn abort_sessions(&self, which: impl Fn(&Underway) -> bool) {
        // Taken out of the map before any task is dropped: a dropped task removes its own entry, for which the map must
        // not be borrowed.
        let ended: Vec<Underway> = self
            .sessions
            .borrow_mut()
            .extract_if(|_, session| which(session))
            .map(|(_, session)| session)
            .collect();
        for session in ended {
            session.task.abort();
        }
    }

    /// Accepts from exactly the sockets of `context` from now on.
    fn listen(self: &Rc<Self>, context: LoopContext) {
        // Known to `pass` before anything is accepted: the first session may already want to pass on.
        let engine = Rc::clone(self);
        let take = move |passed, socket: &Arc<ListenerSpec>| engine.take_passed(passed, socket);
        let sockets = context.listeners.iter();
        let sockets = sockets.map(|listener| Arc::clone(&listener.spec)).collect();
        net::passing::serve(StreamLoop::KIND, sockets, Rc::new(take));
        accepting::listen(self, context);
    }

    fn start_modules(&self) {
        for module in self.modules {
            (module.start)(self);
        }
    }

    /// Takes in a connection that another address of the server passes on.
    fn take_passed(self: &Rc<Self>, passed: Passed, socket: &Arc<ListenerSpec>) {
        self.take_in(Newcomer {
            transport: Transport::Stream(Rc::new(passed.transport)),
            socket: Arc::clone(socket),
            passed_at: Some(passed.local),
            passes: passed.passes,
            input: passed.input,
        });
    }

    /// Begins a session, unless the loop has as many as `worker_connections` allows.
    fn take_in(self: &Rc<Self>, newcomer: Newcomer) {
        // A connection that another address passed on was counted when it was accepted.
        let is_new = newcomer.passed_at.is_none();
        let limit = self.limit.get();
        if self.sessions.borrow().len() >= limit {
            self.log.plain(
                Level::Alert,
                format_args!("{limit} worker_connections are not enough"),
            );
            // A connection is closed by being dropped. A client of datagrams has to be forgotten, so that its next one
            // may begin a session when there is room.
            if let Transport::Datagrams(flow) = newcomer.transport {
                flow.refuse();
            }
            return;
        }
        self.counters.handled.add(u64::from(is_new));
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let serve = crate::serve::serve(Rc::clone(self), newcomer, key);
        let task = rt::spawn_handle("stream session", serve);
        // The task is polled later, so its entry is there before it can end.
        let generation = self.site.borrow().generation;
        self.sessions
            .borrow_mut()
            .insert(key, Underway { generation, task });
        self.counters.active.add(1);
        self.sockets.seat().opened();
    }

    /// Forgets a session that has ended.
    pub(crate) fn closed(&self, key: u64) {
        self.counters.active.sub(1);
        self.sockets.seat().closed();
        self.sessions.borrow_mut().remove(&key);
    }
}

/// Reads a socket of datagrams for as long as it works, and begins a session for each new client.
async fn receive(engine: Rc<StreamLoop>, socket: Rc<Datagrams>, spec: Arc<ListenerSpec>) {
    let mut scratch = vec![0; MAX_DATAGRAM];
    loop {
        match socket.accept(&mut scratch).await {
            Ok(flow) => {
                engine.counters.accepted.add(1);
                engine.take_in(Newcomer::new(Transport::Datagrams(flow), &spec));
            }
            Err(error) => {
                // Errors about a single answer were passed over already: the socket itself is broken, and to ask again
                // at once would spin.
                engine.log.plain(
                    Level::Alert,
                    format_args!("recvmsg() failed{}", Errno(&error)),
                );
                return;
            }
        }
    }
}
