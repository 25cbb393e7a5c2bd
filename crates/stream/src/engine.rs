//! Stream at work: one configuration as the binary sees it, and the part of it that runs on one loop.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conf::{Diagnostic, Line, Rows};
use net::passing::Passed;
use rt::engine::{
    Configuration, ListenerId, ListenerSpec, LoopContext, LoopEngine, LoopListener, Main, Zones,
};
use rt::error_log::{Errno, Level, Logger};
use rt::net::{Listener, Stream, UdpSocket};
use rt::seats::{Arrival, Arriving, Seat, Seats};

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
    /// How long sessions of this generation may go on after a reload; zero: until they end.
    shutdown_timeout: Duration,
}

static GENERATIONS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// Numbers sessions, over all loops.
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
        "stream"
    }

    fn listeners(&self) -> Vec<ListenerSpec> {
        net::endpoint::listeners(&self.frozen.endpoints)
    }

    fn commit(&self, zones: &Zones) -> Result<(), String> {
        self.modules
            .iter()
            .try_for_each(|module| (module.commit)(&self.frozen, zones))
    }

    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine> {
        let engine = Rc::new(StreamLoop {
            index: context.index,
            loops: Cell::new(context.loops),
            seat: context.seat,
            seats: RefCell::new(context.seats),
            modules: self.modules,
            site: RefCell::new(Site::new(Arc::clone(&self.frozen))),
            shutdown_timeout: Cell::new(self.shutdown_timeout),
            listeners: RefCell::default(),
            sessions: RefCell::default(),
            next_key: Cell::new(0),
            limit: Cell::new(context.main.worker_connections),
            log: context.log.clone(),
            zones: context.zones.clone(),
            main: context.main.clone(),
        });
        engine.start_modules();
        engine.listen(context.listeners);
        Box::new(Running(engine))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// Stream on one loop.
pub struct StreamLoop {
    /// The loop's number, from 0: what is to run once in the process runs on loop 0.
    pub index: usize,
    loops: Cell<usize>,
    seat: Arc<Seat>,
    seats: RefCell<Seats>,
    modules: &'static [&'static Module],
    site: RefCell<Rc<Site>>,
    shutdown_timeout: Cell<Duration>,
    /// By socket, and its number among those of one address.
    listeners: RefCell<HashMap<(ListenerId, usize), Accepting>>,
    sessions: RefCell<HashMap<u64, Underway>>,
    next_key: Cell<u64>,
    limit: Cell<usize>,
    /// Main's error log, for what belongs to no server.
    pub log: Logger,
    /// What lives longer than a configuration.
    pub zones: Zones,
    /// The settings of the main context.
    pub main: Main,
}

/// A listening socket and the task that accepts from it.
struct Accepting {
    /// The socket, if it takes connections.
    socket: Option<Rc<Listener>>,
    spec: Arc<ListenerSpec>,
    /// Every socket of its address.
    members: Arc<[Arc<OwnedFd>]>,
    task: rt::JoinHandle<()>,
}

/// A session that runs.
struct Underway {
    generation: u64,
    task: rt::JoinHandle<()>,
}

struct Running(Rc<StreamLoop>);

impl LoopEngine for Running {
    fn reload(&self, configuration: Arc<dyn Configuration>, context: LoopContext) {
        let Ok(configuration) = configuration.as_any().downcast::<StreamConfiguration>() else {
            return;
        };
        let old = self
            .0
            .site
            .replace(Site::new(Arc::clone(&configuration.frozen)));
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
        self.0.loops.set(context.loops);
        self.0.limit.set(context.main.worker_connections);
        *self.0.seats.borrow_mut() = context.seats;
        self.0.start_modules();
        self.0.listen(context.listeners);
    }

    fn adopt(&self, arriving: Arriving) {
        // A session has no moment at which it could move.
        if let Arriving::New { spec, stream } = arriving {
            self.0.open(connection(stream.attach()), &spec);
        }
    }

    fn rescue(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        self.0.accept_for(index, &still);
    }

    fn stop(&self) {
        net::passing::withdraw("stream");
        for module in self.0.modules {
            (module.stop)(&self.0);
        }
        let listeners = std::mem::take(&mut *self.0.listeners.borrow_mut());
        for listener in listeners.into_values() {
            self.0.close_listener(&listener);
        }
    }

    fn abort(&self) {
        self.stop();
        self.0.abort_sessions(|_| true);
    }

    fn active(&self) -> usize {
        self.0.sessions.borrow().len()
    }
}

/// Ends the sessions of a generation that was replaced, when `worker_shutdown_timeout` has passed.
async fn end_generation(engine: Rc<StreamLoop>, generation: u64, patience: Duration) {
    rt::sleep(patience).await;
    engine.abort_sessions(|session| session.generation <= generation);
}

impl StreamLoop {
    /// The present configuration.
    pub fn site(&self) -> Rc<Site> {
        Rc::clone(&self.site.borrow())
    }

    fn abort_sessions(&self, which: impl Fn(&Underway) -> bool) {
        // Out of the map first: a task that is dropped looks itself up there.
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

    /// Accepts from exactly these sockets from now on.
    fn listen(self: &Rc<Self>, listeners: Vec<LoopListener>) {
        let engine = Rc::clone(self);
        let take = move |passed, socket: &Arc<ListenerSpec>| engine.take_passed(passed, socket);
        let sockets = listeners.iter().map(|listener| Arc::clone(&listener.spec));
        net::passing::serve("stream", sockets.collect(), Rc::new(take));
        let kept: Vec<(ListenerId, usize)> = listeners
            .iter()
            .filter(|listener| self.is_mine(listener))
            .map(|listener| (listener.id, listener.member))
            .collect();
        let gone: Vec<Accepting> = self
            .listeners
            .borrow_mut()
            .extract_if(|key, _| !kept.contains(key))
            .map(|(_, listener)| listener)
            .collect();
        for listener in gone {
            self.close_listener(&listener);
        }
        for listener in listeners {
            let key = (listener.id, listener.member);
            if let Some(known) = self.listeners.borrow_mut().get_mut(&key) {
                known.members = listener.members;
                continue;
            }
            if self.is_mine(&listener) {
                self.start_accepting(&listener);
            }
        }
    }

    /// Datagrams of a socket that the loops share are read by one of them.
    fn is_mine(&self, listener: &LoopListener) -> bool {
        let ListenerSpec { address, options } = &*listener.spec;
        address.is_stream()
            || options.reuse_port
            || listener.id.0 % self.loops.get().max(1) as u64 == self.index as u64
    }

    fn start_accepting(self: &Rc<Self>, listener: &LoopListener) {
        let spec = Arc::clone(&listener.spec);
        let started = listener.descriptor.try_clone().and_then(|descriptor| {
            if spec.address.is_stream() {
                let socket = Rc::new(Listener::from_fd(descriptor)?);
                let task = accept(Rc::clone(self), Rc::clone(&socket), Arc::clone(&spec));
                return Ok((Some(socket), rt::spawn_handle("stream accept", task)));
            }
            let socket = Datagrams::new(UdpSocket::from_fd(descriptor)?);
            let task = receive(Rc::clone(self), socket, Arc::clone(&spec));
            Ok((None, rt::spawn_handle("stream datagrams", task)))
        });
        match started {
            Ok((socket, task)) => {
                let accepting = Accepting {
                    socket,
                    spec,
                    members: Arc::clone(&listener.members),
                    task,
                };
                self.listeners
                    .borrow_mut()
                    .insert((listener.id, listener.member), accepting);
            }
            Err(error) => {
                let address = &spec.address;
                self.log.plain(
                    Level::Emerg,
                    format_args!("cannot accept from {address}: {error}"),
                );
            }
        }
    }

    /// Stops accepting from a socket. In this order: a client that comes later is told to another loop that shares
    /// the socket, and one that came before, whom the kernel may have told to this loop only, is taken in.
    fn close_listener(self: &Rc<Self>, listener: &Accepting) {
        listener.task.abort();
        if let Some(socket) = &listener.socket {
            socket.stop();
        }
        self.drain(listener);
    }

    /// Takes in the clients that the kernel has already accepted for a socket that is about to be closed.
    fn drain(self: &Rc<Self>, listener: &Accepting) {
        let Some(socket) = &listener.socket else {
            return;
        };
        for _ in 0..listener.spec.options.backlog.max(0) {
            match socket.try_accept() {
                Ok(stream) => self.open(connection(stream), &listener.spec),
                Err(_) => return,
            }
        }
    }

    /// Accepts in the place of the loop of number `index` while `still` says so.
    fn accept_for(self: &Rc<Self>, index: usize, still: &Rc<dyn Fn() -> bool>) {
        let loops = self.loops.get().max(1);
        let mut seen = Vec::new();
        for ((id, _), listener) in &*self.listeners.borrow() {
            if seen.contains(id) || !listener.spec.address.is_stream() {
                continue;
            }
            seen.push(*id);
            // One socket that all share: the loop may have been woken for a connection that it can not take.
            let shared = listener.members.len() == 1;
            for (member, descriptor) in listener.members.iter().enumerate() {
                if !shared && member % loops != index {
                    continue;
                }
                if let Ok(socket) = descriptor.try_clone().and_then(Listener::from_fd) {
                    let spec = Arc::clone(&listener.spec);
                    let task = accept_while(Rc::clone(self), socket, spec, Rc::clone(still));
                    rt::spawn_named("stream rescue", task);
                }
            }
        }
    }

    /// Takes in a connection that was just accepted here, or leaves it to a loop that has fewer.
    fn accepted(self: &Rc<Self>, stream: Stream, spec: &Arc<ListenerSpec>) {
        let seats = self.seats.borrow();
        let Some(lighter) = seats.lighter(&self.seat) else {
            drop(seats);
            return self.open(connection(stream), spec);
        };
        let what = Arriving::New {
            spec: Arc::clone(spec),
            stream: stream.detach(),
        };
        let kind = "stream";
        let given = lighter.give(Arrival { kind, what });
        drop(seats);
        if let Err(Arrival {
            what: Arriving::New { stream, .. },
            ..
        }) = given
        {
            self.open(connection(stream.attach()), spec);
        }
    }

    fn start_modules(&self) {
        for module in self.modules {
            (module.start)(self);
        }
    }

    /// Takes in a new session.
    fn open(self: &Rc<Self>, transport: Transport, socket: &Arc<ListenerSpec>) {
        self.take_in(Newcomer::new(transport, socket));
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

    fn take_in(self: &Rc<Self>, newcomer: Newcomer) {
        let limit = self.limit.get();
        if self.sessions.borrow().len() >= limit {
            self.log.plain(
                Level::Alert,
                format_args!("{limit} worker_connections are not enough"),
            );
            if let Transport::Datagrams(flow) = newcomer.transport {
                flow.refuse();
            }
            return;
        }
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let serve = crate::serve::serve(Rc::clone(self), newcomer, key);
        let task = rt::spawn_handle("stream session", serve);
        let generation = self.site.borrow().generation;
        self.sessions
            .borrow_mut()
            .insert(key, Underway { generation, task });
        self.seat.opened();
    }

    /// Forgets a session that has ended.
    pub(crate) fn closed(&self, key: u64) {
        self.seat.closed();
        self.sessions.borrow_mut().remove(&key);
    }
}

/// How often a buddy looks whether the loop that it accepts for is well again.
const RESCUE_CHECK: Duration = Duration::from_millis(20);

async fn accept_while(
    engine: Rc<StreamLoop>,
    socket: Listener,
    spec: Arc<ListenerSpec>,
    still: Rc<dyn Fn() -> bool>,
) {
    while still() {
        match rt::timeout(RESCUE_CHECK, socket.accept()).await {
            Ok(Ok(stream)) => engine.accepted(stream, &spec),
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
    // As in `close_listener`.
    socket.stop();
    for _ in 0..spec.options.backlog.max(0) {
        match socket.try_accept() {
            Ok(stream) => engine.accepted(stream, &spec),
            Err(_) => return,
        }
    }
}

/// A connection before anything is known of it.
fn connection(socket: rt::net::Stream) -> Transport {
    Transport::Stream(Rc::new(net::Transport::plain(socket)))
}

async fn accept(engine: Rc<StreamLoop>, socket: Rc<Listener>, spec: Arc<ListenerSpec>) {
    loop {
        match socket.accept().await {
            Ok(stream) => engine.open(connection(stream), &spec),
            // What passes by itself was waited for already; what is left is a socket that is no good.
            Err(error) => {
                engine.log.plain(
                    Level::Alert,
                    format_args!("accept() failed{}", Errno(&error)),
                );
                return;
            }
        }
    }
}

async fn receive(engine: Rc<StreamLoop>, socket: Rc<Datagrams>, spec: Arc<ListenerSpec>) {
    let mut scratch = vec![0; MAX_DATAGRAM];
    loop {
        match socket.accept(&mut scratch).await {
            Ok(flow) => engine.open(Transport::Datagrams(flow), &spec),
            Err(error) => {
                engine.log.plain(
                    Level::Alert,
                    format_args!("recvmsg() failed{}", Errno(&error)),
                );
                return;
            }
        }
    }
}
