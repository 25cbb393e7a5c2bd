//! HTTP as the binary sees it: a configuration, and on each loop the connections that are served by it.
//!
//! What requests may know of their loop is in [`crate::http_loop`], below the protocols; this is above them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use conf::{Diagnostic, DirectiveLine, DirectiveRows};
use host::engine::{
    ConfigurationTest, ConnectionSink, EngineConfiguration, ListenerSpec, LoopContext, LoopEngine,
    MainSettings, MoveScope, ZoneRegistry,
};
use host::loop_slots::ArrivingConnection;
use net::acceptor::{self, AcceptingEngine, LoopSockets};

use crate::configure::{self, RequiredDirectories, WantedPools};
use crate::connection_tasks::ConnectionTasks;
use crate::core::ServerIdentity;
use crate::current_loop;
use crate::explain::{ExplainSubject, ExplainedTree};
use crate::h1::RecycledSlots;
use crate::http_loop::HttpLoop;
use crate::http_site::{FrozenHttp, HttpSite};
use crate::loop_connections::LoopConnections;
use crate::memory_peak::MemoryPeak;
use crate::module::HttpModule;
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

/// How many connections are sampled at a time for the work they cause; the following ones are next time. Sampling all
/// of 50,000 would delay requests.
const LOOKED_AT: usize = 4096;

impl HttpEngine {
    /// An engine that runs these modules, in this order.
    pub const fn new(modules: &'static [&'static HttpModule]) -> HttpEngine {
        HttpEngine { modules }
    }

    /// The engine's own directive tables, for the reference and for help.
    pub fn own_tables() -> [&'static dyn DirectiveRows; 8] {
        [
            &crate::core::main::HASH_SIZES,
            &crate::core::main::DIRECTIVES,
            &crate::core::server::DIRECTIVES,
            &crate::core::http2::DIRECTIVES,
            &crate::core::http3::DIRECTIVES,
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

impl HttpConfiguration {
    /// The configuration for `weir explain`, with the tree that it was built from.
    pub fn to_explain(&self, main: MainSettings, tree: ExplainedTree) -> ExplainSubject {
        ExplainSubject {
            frozen: Arc::clone(&self.frozen),
            modules: self.modules,
            main,
            tree: Rc::new(tree),
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

    fn server_count(&self) -> usize {
        self.frozen.servers.len()
    }

    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.frozen) > 1
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
            lingers_until: Cell::new(None),
            served: Cell::new(0),
            log: RefCell::new(context.log.clone()),
            main: RefCell::new(context.main.clone()),
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

struct HttpLoopEngine(Rc<LoopConnections>);

impl LoopEngine for HttpLoopEngine {
    fn reload(&self, configuration: Arc<dyn EngineConfiguration>, context: LoopContext) {
        let Ok(configuration) = configuration.as_any().downcast::<HttpConfiguration>() else {
            return;
        };
        // First: everything below reads the new configuration, and connections compare its generation before their next
        // request.
        *self.0.http.site.borrow_mut() = HttpSite::new(Arc::clone(&configuration.frozen));
        self.0.http.log.replace(context.log.clone());
        self.0.http.main.replace(context.main.clone());
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

    fn close_idle_connections(&self, part: usize, least: usize) {
        let connections = self.0.connections.borrow();
        let idle = connections
            .values()
            .map(|connection| &connection.control)
            .filter(|idle| !idle.is_closing());
        let mut idle: Vec<_> = idle
            .filter_map(|idle| Some((idle.waiting_since()?, idle)))
            .collect();
        let count = idle.len().div_ceil(part.max(1)).max(least);
        if count < idle.len() {
            // Which they are matters, not their order.
            idle.select_nth_unstable_by_key(count, |(since, _)| *since);
        }
        for (_, idle) in idle.into_iter().take(count) {
            idle.request_close();
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
        if scope != MoveScope::Process {
            net::quic::hand_over_datagrams();
        }
        *self.0.sink.borrow_mut() = Some(sink);
        for connection in self.0.connections.borrow().values() {
            connection.control.request_transfer(scope);
        }
    }

    fn linger(&self, time: Duration) {
        self.0.http.lingers_until.set(Some(rt::now() + time));
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
