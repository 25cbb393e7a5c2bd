//! HTTP as the binary sees it: a configuration, and on each loop the connections that are served by it.
//!
//! What requests may know of their loop is in [`crate::http_loop`], below the protocols; this is above them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::NumberMap;
use conf::{Diagnostic, DirectiveLine, DirectiveRows};
use host::engine::{
    CUT_GRACE, ConfigurationTest, ConnectionSink, EngineConfiguration, ListenerSpec, LoopContext,
    LoopEngine, MainSettings, MoveScope, ZoneRegistry,
};
use host::error_log::LogLevel;
use host::listen::ListenAddress;
use host::loop_slots::{ArrivingConnection, MovingConnection};
use net::Transport;
use net::acceptor::{self, AcceptingEngine, LoopSockets};
use net::passing::PassedConnection;
use rt::net::StreamSocket;

use crate::accepted_connection::{self, AcceptedConnection};
use crate::byte_stream::ByteStream;
use crate::client::{ConnectionControl, HttpClient};
use crate::configure::{self, RequiredDirectories, WantedPools};
use crate::connection_tasks::{ConnectionTask, ConnectionTasks, TaskAssignment};
use crate::connection_transfer::{self, ConnectionState};
use crate::core::ServerIdentity;
use crate::current_loop;
use crate::h1::RecycledSlots;
use crate::http_loop::{self, HttpLoop};
use crate::http_site::{FrozenHttp, HttpSite};
use crate::memory_peak::MemoryPeak;
use crate::module::HttpModule;
use crate::waiting_connection::{self, WaitingConnection};
use net::counters::{self, AllCounters};

/// The engine with the modules of a program.
pub struct HttpEngine {
    modules: &'static [&'static HttpModule],
}

/// One generation of `http {}`, as the master and the loops handle it.
pub struct HttpConfiguration {
    frozen: Arc<FrozenHttp>,
    modules: &'static [&'static HttpModule],
    directories: Vec<PathBuf>,
    shutdown_timeout: Duration,
}

/// About how much memory a connection has, and how much more while its requests are served, in bytes.
const CONNECTION_MEMORY: usize = 1024;
const SERVED_MEMORY: usize = 28 * 1024;

/// How many connections are sampled at a time for the work they cause; the following ones are next time. Sampling all
/// of 50,000 would delay requests.
const LOOKED_AT: usize = 4096;

impl HttpEngine {
    /// An engine that runs these modules, in this order.
    pub const fn new(modules: &'static [&'static HttpModule]) -> HttpEngine {
        HttpEngine { modules }
    }

    /// The engine's own directive tables, for the reference and for help.
    pub fn own_tables() -> [&'static dyn DirectiveRows; 7] {
        [
            &crate::core::main::HASH_SIZES,
            &crate::core::main::DIRECTIVES,
            &crate::core::server::DIRECTIVES,
            &crate::core::http2::DIRECTIVES,
            &crate::core::location::DIRECTIVES,
            &crate::core::delivery::DIRECTIVES,
            &crate::core::resolver::DIRECTIVES,
        ]
    }

    /// The modules, in running order.
    pub fn modules(&self) -> &'static [&'static HttpModule] {
        self.modules
    }

    /// Reads an `http {}` block.
    pub fn configure(
        &self,
        line: &mut DirectiveLine,
    ) -> Result<Arc<dyn EngineConfiguration>, Diagnostic> {
        let main = line.shared::<MainSettings>().clone();
        // `weir/0.1.0`: `server_tokens` decides which of the two parts clients see.
        let (name, version) = main.version.split_once('/').unwrap_or((main.program, ""));
        let identity = ServerIdentity::new(name, version);
        let frozen = configure::read_http_block(self.modules, identity, line)?;
        check_pools(&main, line);
        let directories = std::mem::take(&mut line.shared::<RequiredDirectories>().0)
            .into_iter()
            .collect();
        Ok(Arc::new(HttpConfiguration {
            frozen: Arc::new(frozen),
            modules: self.modules,
            directories,
            shutdown_timeout: main.shutdown_timeout,
        }))
    }
}

/// Reports `aio threads=…` with a pool that no `thread_pool` defines. Checked at the end, because the two may come in
/// either order.
fn check_pools(main: &MainSettings, line: &mut DirectiveLine) {
    let wanted = std::mem::take(&mut line.shared::<WantedPools>().0);
    for (name, span) in wanted {
        if name != "default"
            && !main
                .thread_pools
                .iter()
                .any(|pool| name == pool.name.as_str())
        {
            let declared: Vec<&str> = main
                .thread_pools
                .iter()
                .map(|pool| pool.name.as_str())
                .collect();
            let error = Diagnostic::error(format!("unknown thread pool \"{name}\""), span);
            line.level
                .report(error.note(format!("defined are: {}", declared.join(", "))));
        }
    }
}

impl EngineConfiguration for HttpConfiguration {
    fn kind(&self) -> &'static str {
        LoopConnections::KIND
    }

    fn listeners(&self) -> Vec<ListenerSpec> {
        net::endpoint::listener_specs(&self.frozen.endpoints)
    }

    fn directories(&self) -> Vec<PathBuf> {
        self.directories.clone()
    }

    fn configuration_tests(&self) -> Vec<ConfigurationTest> {
        self.modules
            .iter()
            .filter_map(|module| (module.trial)(&self.frozen))
            .collect()
    }

    fn accept(&self, zones: &ZoneRegistry) -> Result<(), String> {
        self.modules
            .iter()
            .try_for_each(|module| (module.accept)(&self.frozen, zones))
    }

    fn commit(&self, zones: &ZoneRegistry) {
        for module in self.modules.iter() {
            (module.commit)(&self.frozen, zones);
        }
    }

    fn before_exit(&self, deadline: std::time::Instant) {
        for module in self.modules.iter() {
            (module.end)(&self.frozen, deadline);
        }
    }

    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine> {
        let all = context
            .zones
            .get_or_create(counters::ZONE, AllCounters::default);
        // The counters are shared by all loops and outlive a reload: `stub_status` must not start again at zero.
        all.attach_loop(context.index, rt::handle());
        let counters = all.for_loop(context.index);
        let http = Rc::new(HttpLoop {
            index: context.index,
            modules: self.modules,
            site: RefCell::new(HttpSite::new(Arc::clone(&self.frozen))),
            scratch: RefCell::default(),
            stopping: Cell::new(false),
            served: Cell::new(0),
            log: context.log.clone(),
            main: context.main.clone(),
            zones: context.zones.clone(),
            counters,
        });
        // Before the modules start: their tasks may evaluate variables that ask for the loop.
        current_loop::set_current_loop(&http);
        http.start_modules();
        let engine = Rc::new(LoopConnections {
            http,
            sockets: LoopSockets::new(&context),
            connections: RefCell::default(),
            looked_at: Cell::new(0),
            next_key: Cell::new(0),
            limit: Cell::new(context.main.worker_connections),
            sink: RefCell::default(),
            leaving: Cell::default(),
            tasks: ConnectionTasks::default(),
            recycled: RecycledSlots::default(),
            memory: Cell::new(0),
            peak: MemoryPeak::default(),
            shutdown_timeout: Cell::new(self.shutdown_timeout),
        });
        engine.listen(context);
        Box::new(HttpLoopEngine(engine))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The HTTP connections of one loop: accepts, counts, moves and closes them.
pub(crate) struct LoopConnections {
    /// What their requests know of the loop.
    pub(crate) http: Rc<HttpLoop>,
    sockets: LoopSockets,
    connections: RefCell<NumberMap<ServedConnection>>,
    /// Where the last sample began, as an index in the map's order.
    looked_at: Cell<usize>,
    next_key: Cell<u64>,
    limit: Cell<usize>,
    /// Where connections go that are ordered to move.
    sink: RefCell<Option<ConnectionSink>>,
    /// Set once all connections of the loop have to move: how far.
    leaving: Cell<Option<MoveScope>>,
    /// The tasks that serve connections.
    pub(crate) tasks: ConnectionTasks,
    /// The memory that HTTP/1 connections leave to the next ones.
    pub(crate) recycled: RecycledSlots,
    /// `worker_shutdown_timeout` of the current configuration.
    shutdown_timeout: Cell<Duration>,
    /// About how much memory its connections take while they wait, in bytes.
    memory: Cell<usize>,
    /// When much memory of connections has become free, it goes back to the system.
    pub(crate) peak: MemoryPeak,
}

struct ServedConnection {
    control: Rc<ConnectionControl>,
    task: ServingTask,
}

/// What serves a connection at the moment.
pub(crate) enum ServingTask {
    /// Nothing yet.
    None,
    /// A task that serves one connection after another.
    Pooled(Rc<ConnectionTask>),
    /// A task that ends when it is done with the connection.
    Own(rt::AbortHandle),
}

impl ServingTask {
    fn abort(&self) {
        match self {
            ServingTask::None => {}
            ServingTask::Pooled(task) => task.abort(),
            ServingTask::Own(task) => task.abort(),
        }
    }
}

/// The connection's entry in the loop's table, removed when the last that serves it drops this.
pub(crate) struct TablePlace {
    pub(crate) engine: Rc<LoopConnections>,
    pub(crate) key: u64,
    /// About how much memory the connection takes for as long as it lives, in bytes.
    memory: Cell<usize>,
}

impl TablePlace {
    fn new(engine: &Rc<LoopConnections>, key: u64) -> TablePlace {
        let place = TablePlace {
            engine: Rc::clone(engine),
            key,
            memory: Cell::new(0),
        };
        place.count_memory(CONNECTION_MEMORY);
        place
    }

    /// Counts memory that the connection takes from now on, in bytes.
    pub(crate) fn count_memory(&self, bytes: usize) {
        self.memory.set(self.memory.get() + bytes);
        let all = &self.engine.memory;
        all.set(all.get() + bytes);
        self.engine.peak.note_memory(self.engine.memory_in_use());
    }
}

impl Drop for TablePlace {
    fn drop(&mut self) {
        let all = &self.engine.memory;
        all.set(all.get() - self.memory.get());
        self.engine.forget_connection(self.key);
    }
}

/// Whether a connection is one that the process did not have before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newness {
    /// It was accepted, or has come from another process, whose counters are not these.
    New,
    /// `stream` has passed it on, and counted it.
    PassedOn,
    /// Another loop had it: it was counted there, and being moved must not end it, even where this loop is full.
    OfThisProcess,
}

struct HttpLoopEngine(Rc<LoopConnections>);

impl LoopEngine for HttpLoopEngine {
    fn reload(&self, configuration: Arc<dyn EngineConfiguration>, context: LoopContext) {
        let Ok(configuration) = configuration.as_any().downcast::<HttpConfiguration>() else {
            return;
        };
        // First: everything below reads the new configuration, and connections compare its generation before their next
        // request.
        *self.0.http.site.borrow_mut() = HttpSite::new(Arc::clone(&configuration.frozen));
        self.0.limit.set(context.main.worker_connections);
        // Once per process: the counters of all loops are one structure.
        if self.0.http.index == 0 {
            let all = context
                .zones
                .get_or_create(counters::ZONE, AllCounters::default);
            all.remove_loops_from(context.loops);
        }
        // Their addresses are gone: they would otherwise wait out their keep-alive timeout for nothing.
        self.0.close_where_nobody_listens();
        self.0.http.start_modules();
        self.0.listen(context);
        let patience = self
            .0
            .shutdown_timeout
            .replace(configuration.shutdown_timeout);
        // The former timeout counts: it belongs to the configuration whose requests are meant.
        if !patience.is_zero() {
            self.0.end_present_requests(patience);
        }
    }

    fn adopt_connection(&self, arriving: ArrivingConnection) {
        match arriving {
            ArrivingConnection::New { spec, stream } => {
                self.0.open_connection(stream.attach(), &spec)
            }
            ArrivingConnection::Idle(moving) => self.0.resume(moving),
        }
    }

    fn accept_for_late_loop(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        acceptor::accept_for(&self.0, index, &still);
    }

    fn move_idle_connections(&self, count: usize, sink: ConnectionSink) {
        if self.0.leaving.get().is_some() {
            return;
        }
        let scope = sink.scope;
        *self.0.sink.borrow_mut() = Some(sink);
        let connections = self.0.connections.borrow();
        // Those that have waited longest. Which connections cause the work is another question: see
        // `move_busy_connections`.
        let mut movable: Vec<_> = connections
            .values()
            .map(|connection| &connection.control)
            // Only those that can really move: an order to the others would close them, and here nothing has to end.
            .filter(|idle| idle.may_move(scope))
            .filter_map(|idle| Some((idle.waiting_since()?, idle)))
            .collect();
        if count < movable.len() {
            // Only the boundary matters, not the order: a selection is linear where a sort of 50,000 is not.
            movable.select_nth_unstable_by_key(count, |(since, _)| *since);
        }
        for (_, idle) in movable.into_iter().take(count) {
            idle.request_transfer(scope);
        }
    }

    fn start_counting_work(&self) {
        let connections = self.0.connections.borrow();
        // The map's order may change between two samples; then some connections are missed, which only delays the
        // balance.
        let begin = self.0.looked_at.get() + LOOKED_AT;
        let begin = if begin < connections.len() { begin } else { 0 };
        self.0.looked_at.set(begin);
        for connection in connections.values().skip(begin).take(LOOKED_AT) {
            connection.control.note_work();
        }
    }

    fn move_busy_connections(&self, part: f64, sink: ConnectionSink) {
        if self.0.leaving.get().is_some() {
            return;
        }
        let scope = sink.scope;
        *self.0.sink.borrow_mut() = Some(sink);
        let connections = self.0.connections.borrow();
        let works: Vec<_> = connections
            .values()
            .skip(self.0.looked_at.get())
            .take(LOOKED_AT)
            .map(|connection| (connection.control.work_since_noted(), &connection.control))
            .collect();
        let seen: u64 = works.iter().map(|(work, _)| work).sum();
        // Extrapolated: the connections outside the sample are assumed to cause as much work on average.
        let all = seen as f64 * connections.len() as f64 / works.len().max(1) as f64;
        let mut wanted = (all * part) as u64;
        for (work, idle) in works {
            // A connection that causes more work than is to be moved would only make the other loop the busy one.
            if work > 0 && work <= wanted && idle.may_move(scope) {
                wanted -= work;
                idle.request_transfer(scope);
            }
        }
    }

    fn hand_over(&self, sink: ConnectionSink) {
        let scope = sink.scope;
        // First, so that a connection that is taken in from here on gets the order at once.
        self.0.leaving.set(Some(scope));
        self.0.stop_accepting();
        *self.0.sink.borrow_mut() = Some(sink);
        for connection in self.0.connections.borrow().values() {
            connection.control.request_transfer(scope);
        }
    }

    fn stop(&self) {
        self.0.stop_accepting();
        // A client that has just connected still gets one answer, as from nginx.
        let connections = self.0.connections.borrow();
        let known = connections
            .values()
            .filter(|connection| !connection.control.is_new());
        for connection in known {
            connection.control.request_close();
        }
    }

    fn shut_down_connections(&self) {
        for connection in self.0.connections.borrow().values() {
            connection.control.force_close();
        }
    }

    fn abort(&self) {
        self.stop();
        // Out of the map first: a task that is dropped removes its own entry there.
        let connections = std::mem::take(&mut *self.0.connections.borrow_mut());
        for connection in connections.into_values() {
            connection.task.abort();
        }
    }

    fn active(&self) -> usize {
        self.0.connections.borrow().len()
    }
}

impl AcceptingEngine for LoopConnections {
    const KIND: &'static str = "http";
    const TASK: &'static str = "http accept";

    fn sockets(&self) -> &LoopSockets {
        &self.sockets
    }

    fn open_connection(self: &Rc<Self>, stream: StreamSocket, spec: &Arc<ListenerSpec>) {
        let accepted =
            AcceptedConnection::new(Transport::plain(stream), spec.address.clone(), None);
        self.take_in(accepted, None);
    }
}

impl LoopConnections {
    fn stop_accepting(self: &Rc<Self>) {
        self.http.stopping.set(true);
        net::passing::unregister_listeners(LoopConnections::KIND);
        self.http.stop_modules();
        acceptor::stop_listening(self);
        self.tasks.close();
    }

    /// Accepts from exactly the sockets of `context` from now on, directly and from `stream` servers with `pass`.
    fn listen(self: &Rc<Self>, context: LoopContext) {
        let engine = Rc::clone(self);
        let take = move |passed, socket: &Arc<ListenerSpec>| {
            engine.take_passed(passed, &socket.address);
        };
        let sockets = context.listeners.iter();
        let sockets = sockets.map(|listener| Arc::clone(&listener.spec)).collect();
        net::passing::register_listeners(LoopConnections::KIND, sockets, Rc::new(take));
        acceptor::start_listening(self, context);
    }

    /// Continues a connection from another loop or process. One whose state cannot be read is closed.
    fn resume(self: &Rc<Self>, moving: MovingConnection) {
        if let Some((accepted, facts)) = connection_transfer::unpack_connection(moving) {
            self.take_in(accepted, Some(facts));
        }
    }

    /// Whether a connection that was ordered to move is better kept: it could only close, and this loop continues.
    pub(crate) fn must_stay(&self, client: &Rc<HttpClient>) -> bool {
        self.leaving.get().is_none() && !connection_transfer::is_movable(client)
    }

    /// Hands a connection that waits for a request over to another loop or process.
    pub(crate) fn send_away(&self, client: Rc<HttpClient>, bytes: Rc<ByteStream>) {
        let Some(sink) = self.sink.borrow().clone() else {
            return;
        };
        self.http
            .debug_client(&client, format_args!("http connection moves"));
        if let Some(moving) = connection_transfer::pack_connection(client, bytes, sink.scope) {
            (sink.take)(moving);
        }
    }

    /// Takes in a connection that a `stream` server passes on (`pass`).
    fn take_passed(self: &Rc<Self>, passed: PassedConnection, socket: &ListenAddress) {
        let mut accepted =
            AcceptedConnection::new(passed.transport, socket.clone(), Some(passed.local));
        accepted.input = passed.input;
        self.take_in(accepted, None);
    }

    /// Has a task serve a connection, unless there is no room for it.
    fn take_in(
        self: &Rc<Self>,
        mut accepted: Box<AcceptedConnection>,
        moved: Option<ConnectionState>,
    ) {
        let newness = match &moved {
            Some(state) if state.number.is_some() => Newness::OfThisProcess,
            _ if accepted.passed_at.is_some() => Newness::PassedOn,
            _ => Newness::New,
        };
        if !self.admit(newness) {
            return;
        }
        let control = Rc::clone(&accepted.control);
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        // It arrived while the loop hands everything over: it goes after the others.
        if let Some(scope) = self.leaving.get() {
            control.request_transfer(scope);
        }
        let task = ServingTask::None;
        self.connections
            .borrow_mut()
            .insert(key, ServedConnection { control, task });
        self.http.counters.active.add(1);
        self.sockets.loop_slot().count_opened();
        // From here on the entry is removed however the connection ends.
        let place = TablePlace::new(self, key);
        let (connection, is_silent) = match moved {
            None => {
                let is_silent = accepted.is_silent(&self.http);
                (WaitingConnection::New(accepted), is_silent)
            }
            Some(state) => {
                let has_input = !state.input.is_empty();
                let Some(served) = accepted_connection::resume_moved(&self.http, *accepted, state)
                else {
                    return;
                };
                (WaitingConnection::Served(served), !has_input)
            }
        };
        if is_silent {
            return waiting_connection::wait_for_bytes(connection, place);
        }
        let task = self
            .tasks
            .assign_connection(TaskAssignment { connection, place });
        self.set_task(key, ServingTask::Pooled(task));
    }

    /// Notes what serves a connection from now on.
    pub(crate) fn set_task(&self, key: u64, task: ServingTask) {
        if let Some(connection) = self.connections.borrow_mut().get_mut(&key) {
            connection.task = task;
        }
    }

    /// Counts a connection that wants to be served, and makes room for it. `false`: all of `worker_connections` are
    /// busy.
    fn admit(&self, newness: Newness) -> bool {
        let is_new = newness == Newness::New;
        self.http.counters.accepted.add(u64::from(is_new));
        let limit = self.limit.get();
        // As nginx does near `worker_connections`, an idle connection makes room for a new one.
        let is_full = self.connections.borrow().len() >= limit && !self.close_an_idle_one();
        if is_full && newness != Newness::OfThisProcess {
            self.http.log.log_plain(
                LogLevel::Alert,
                format_args!("{limit} worker_connections are not enough"),
            );
            return false;
        }
        // As in nginx `accepts` counts all and `handled` only those within the limit: the difference shows the refused
        // ones.
        self.http.counters.handled.add(u64::from(is_new));
        true
    }

    /// Removes a connection that has ended.
    fn forget_connection(self: &Rc<Self>, key: u64) {
        self.http.counters.active.sub(1);
        self.sockets.loop_slot().count_closed();
        self.connections.borrow_mut().remove(&key);
        self.look_at_memory();
    }

    /// About how much memory the connections have, in bytes.
    pub(crate) fn memory_in_use(&self) -> usize {
        self.memory.get() + self.http.served.get() * SERVED_MEMORY
    }

    /// Has memory given back to the system, some time after much of it has become free.
    pub(crate) fn look_at_memory(self: &Rc<Self>) {
        if self.http.is_stopping() || !self.peak.is_over(self.memory_in_use()) {
            return;
        }
        // Weak: a loop that ends in the meantime must not be kept alive by this timer.
        let engine = Rc::downgrade(self);
        rt::spawn(async move {
            MemoryPeak::wait().await;
            if let Some(engine) = engine.upgrade()
                && engine.peak.ends(engine.memory_in_use())
            {
                engine.tasks.shrink();
                engine.recycled.shrink();
                host::process::give_memory_back();
            }
        });
    }

    /// Closes connections to an address that the current configuration does not listen on, after their request if one
    /// is being served: none of its servers is meant for them.
    fn close_where_nobody_listens(&self) {
        let site = self.http.site();
        for connection in self.connections.borrow().values() {
            let gone = |client: &HttpClient| http_loop::present_endpoint(client, &site).is_none();
            match connection.control.client() {
                Some(client) if gone(&client) => connection.control.request_close(),
                Some(_) => {}
                // It waits for its first byte, or is in the middle of a handshake: it looks for itself.
                None => connection.control.wake(),
            }
        }
    }

    /// `worker_shutdown_timeout`: how long requests under the replaced configuration may still take. Then their
    /// connections end. Others, and requests that begin meanwhile, are not concerned.
    fn end_present_requests(self: &Rc<Self>, patience: Duration) {
        let connections = self.connections.borrow();
        let busy: Vec<(u64, u64)> = connections
            .iter()
            .filter_map(|(key, connection)| Some((*key, connection.control.present_request()?)))
            .collect();
        if busy.is_empty() {
            return;
        }
        // Weak: a loop that ends in the meantime must not be kept alive by this timer.
        let engine = Rc::downgrade(self);
        rt::spawn(async move {
            rt::sleep(patience).await;
            let Some(engine) = engine.upgrade() else {
                return;
            };
            for idle in busy.iter().filter_map(|&at| engine.still_busy(at)) {
                idle.force_close();
            }
            // They get a moment to end as if their clients had left, so that they are logged. Then their tasks are
            // dropped.
            rt::sleep(CUT_GRACE).await;
            for (key, request) in busy {
                let connection = {
                    let mut connections = engine.connections.borrow_mut();
                    let same = connections
                        .get(&key)
                        .is_some_and(|known| known.control.present_request() == Some(request));
                    // The same request as before, by its number: the key may serve another one by now.
                    if same { connections.remove(&key) } else { None }
                };
                if let Some(connection) = connection {
                    connection.task.abort();
                }
            }
        });
    }

    /// The connection with this key, if it still serves this request. The key alone is not enough: the connection may
    /// serve the next request by now.
    fn still_busy(&self, (key, request): (u64, u64)) -> Option<Rc<ConnectionControl>> {
        let connections = self.connections.borrow();
        let idle = &connections.get(&key)?.control;
        (idle.present_request() == Some(request)).then(|| Rc::clone(idle))
    }

    /// Makes room by closing the connection that has waited longest for a request.
    fn close_an_idle_one(&self) -> bool {
        let connections = self.connections.borrow();
        let idle = connections
            .values()
            .filter(|connection| !connection.control.is_closing());
        let oldest = idle
            .filter_map(|connection| Some((connection.control.waiting_since()?, connection)))
            .min_by_key(|(since, _)| *since);
        match oldest {
            Some((_, connection)) => {
                connection.control.request_close();
                true
            }
            None => false,
        }
    }
}
