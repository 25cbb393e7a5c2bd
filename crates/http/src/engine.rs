//! HTTP as the binary sees it: one configuration, and the connections that are served by it on one loop.
//!
//! What requests may know of their loop is in [`crate::http_loop`], below the protocols; this is above them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::NumberMap;
use conf::{Diagnostic, Line, Rows};
use host::engine::{
    CUT_GRACE, Configuration, ListenerSpec, LoopContext, LoopEngine, Main, ParcelSink, Reach,
    Trial, Zones,
};
use host::error_log::Level;
use host::listen::ListenAddress;
use host::seats::{Arriving, Parcel};
use net::Transport;
use net::accepting::{self, Accepts, Sockets};
use net::passing::Passed;
use rt::net::Stream;

use crate::byte_stream::ByteStream;
use crate::client::{Client, ConnectionControl};
use crate::configure::{self, Directories, WantedPools};
use crate::connection::AcceptedConnection;
use crate::connection_tasks::{ConnectionTask, ConnectionTasks};
use crate::connection_transfer::{self, ConnectionState};
use crate::core::Identity;
use crate::current_loop;
use crate::h1::RecycledSlots;
use crate::http_loop::{self, HttpLoop};
use crate::module::Module;
use crate::site::{Frozen, Site};
use net::counters::{self, AllCounters};

/// The engine with the modules of a program.
pub struct Engine {
    modules: &'static [&'static Module],
}

/// One generation of `http {}`.
pub struct HttpConfiguration {
    frozen: Arc<Frozen>,
    modules: &'static [&'static Module],
    directories: Vec<PathBuf>,
    shutdown_timeout: Duration,
}

/// How many connections are examined at a time for the work they cause, the next ones the next time: examining all of
/// 50,000 would delay the others.
const LOOKED_AT: usize = 4096;

impl Engine {
    /// An engine that runs these modules, in this order.
    pub const fn new(modules: &'static [&'static Module]) -> Engine {
        Engine { modules }
    }

    /// The engine's own tables, for the reference and for help.
    pub fn own_tables() -> [&'static dyn Rows; 7] {
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
    pub fn modules(&self) -> &'static [&'static Module] {
        self.modules
    }

    /// Reads an `http {}` block.
    pub fn configure(&self, line: &mut Line) -> Result<Arc<dyn Configuration>, Diagnostic> {
        let main = line.shared::<Main>().clone();
        let (name, version) = main.version.split_once('/').unwrap_or((main.program, ""));
        let identity = Identity::new(name, version);
        let frozen = configure::http(self.modules, identity, line)?;
        check_pools(&main, line);
        let directories = std::mem::take(&mut line.shared::<Directories>().0)
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

fn check_pools(main: &Main, line: &mut Line) {
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

impl Configuration for HttpConfiguration {
    fn kind(&self) -> &'static str {
        LoopConnections::KIND
    }

    fn listeners(&self) -> Vec<ListenerSpec> {
        net::endpoint::listeners(&self.frozen.endpoints)
    }

    fn directories(&self) -> Vec<PathBuf> {
        self.directories.clone()
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

    fn end(&self, deadline: std::time::Instant) {
        for module in self.modules.iter() {
            (module.end)(&self.frozen, deadline);
        }
    }

    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine> {
        let all = context
            .zones
            .get_or_create(counters::ZONE, AllCounters::default);
        all.attach(context.index, rt::handle());
        let counters = all.for_loop(context.index);
        let http = Rc::new(HttpLoop {
            index: context.index,
            modules: self.modules,
            site: RefCell::new(Site::new(Arc::clone(&self.frozen))),
            scratch: RefCell::default(),
            stopping: Cell::new(false),
            log: context.log.clone(),
            main: context.main.clone(),
            zones: context.zones.clone(),
            counters,
        });
        current_loop::set(&http);
        http.start_modules();
        let engine = Rc::new(LoopConnections {
            http,
            sockets: Sockets::new(&context),
            connections: RefCell::default(),
            looked_at: Cell::new(0),
            next_key: Cell::new(0),
            limit: Cell::new(context.main.worker_connections),
            sink: RefCell::default(),
            leaving: Cell::default(),
            tasks: ConnectionTasks::default(),
            recycled: RecycledSlots::default(),
            shutdown_timeout: Cell::new(self.shutdown_timeout),
        });
        engine.listen(context);
        Box::new(Running(engine))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// HTTP's connections on one loop.
pub(crate) struct LoopConnections {
    /// What their requests know of the loop.
    pub(crate) http: Rc<HttpLoop>,
    sockets: Sockets,
    connections: RefCell<NumberMap<Connection>>,
    /// Of these, which ones were looked at last to see what work they make: so many come before them in the map's order.
    looked_at: Cell<usize>,
    next_key: Cell<u64>,
    limit: Cell<usize>,
    /// Where connections go that are asked to leave.
    sink: RefCell<Option<ParcelSink>>,
    /// All connections leave, so far.
    leaving: Cell<Option<Reach>>,
    /// Those that serve connections.
    pub(crate) tasks: ConnectionTasks,
    /// What HTTP/1 connections that have ended leave to the next ones.
    pub(crate) recycled: RecycledSlots,
    /// `worker_shutdown_timeout` of the present configuration.
    shutdown_timeout: Cell<Duration>,
}

struct Connection {
    control: Rc<ConnectionControl>,
    task: Rc<ConnectionTask>,
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

struct Running(Rc<LoopConnections>);

impl LoopEngine for Running {
    fn reload(&self, configuration: Arc<dyn Configuration>, context: LoopContext) {
        let Ok(configuration) = configuration.as_any().downcast::<HttpConfiguration>() else {
            return;
        };
        *self.0.http.site.borrow_mut() = Site::new(Arc::clone(&configuration.frozen));
        self.0.limit.set(context.main.worker_connections);
        if self.0.http.index == 0 {
            let all = context
                .zones
                .get_or_create(counters::ZONE, AllCounters::default);
            all.shrink(context.loops);
        }
        self.0.close_where_nobody_listens();
        self.0.http.start_modules();
        self.0.listen(context);
        let patience = self
            .0
            .shutdown_timeout
            .replace(configuration.shutdown_timeout);
        if !patience.is_zero() {
            self.0.end_present_requests(patience);
        }
    }

    fn adopt(&self, arriving: Arriving) {
        match arriving {
            Arriving::New { spec, stream } => self.0.open(stream.attach(), &spec),
            Arriving::Idle(parcel) => self.0.resume(parcel),
        }
    }

    fn rescue(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        accepting::accept_for(&self.0, index, &still);
    }

    fn shed(&self, count: usize, sink: ParcelSink) {
        if self.0.leaving.get().is_some() {
            return;
        }
        let reach = sink.reach;
        *self.0.sink.borrow_mut() = Some(sink);
        let connections = self.0.connections.borrow();
        // Those that have waited longest: who does the work is another question, see `shed_work`.
        let mut movable: Vec<_> = connections
            .values()
            .map(|connection| &connection.control)
            .filter(|idle| idle.may_move(reach))
            .filter_map(|idle| Some((idle.waiting_since()?, idle)))
            .collect();
        if count < movable.len() {
            movable.select_nth_unstable_by_key(count, |(since, _)| *since);
        }
        for (_, idle) in movable.into_iter().take(count) {
            idle.leave(reach);
        }
    }

    fn note_work(&self) {
        let connections = self.0.connections.borrow();
        let begin = self.0.looked_at.get() + LOOKED_AT;
        let begin = if begin < connections.len() { begin } else { 0 };
        self.0.looked_at.set(begin);
        for connection in connections.values().skip(begin).take(LOOKED_AT) {
            connection.control.note_work();
        }
    }

    fn shed_work(&self, part: f64, sink: ParcelSink) {
        if self.0.leaving.get().is_some() {
            return;
        }
        let reach = sink.reach;
        *self.0.sink.borrow_mut() = Some(sink);
        let connections = self.0.connections.borrow();
        let works: Vec<_> = connections
            .values()
            .skip(self.0.looked_at.get())
            .take(LOOKED_AT)
            .map(|connection| (connection.control.work_since_noted(), &connection.control))
            .collect();
        let seen: u64 = works.iter().map(|(work, _)| work).sum();
        // The others work as hard, one with another.
        let all = seen as f64 * connections.len() as f64 / works.len().max(1) as f64;
        let mut wanted = (all * part) as u64;
        for (work, idle) in works {
            // One that did more than is to go would only have the other loop be the busy one.
            if work > 0 && work <= wanted && idle.may_move(reach) {
                wanted -= work;
                idle.leave(reach);
            }
        }
    }

    fn hand_over(&self, sink: ParcelSink) {
        let reach = sink.reach;
        self.0.leaving.set(Some(reach));
        self.0.stop_accepting();
        *self.0.sink.borrow_mut() = Some(sink);
        for connection in self.0.connections.borrow().values() {
            connection.control.leave(reach);
        }
    }

    fn stop(&self) {
        self.0.stop_accepting();
        // A client that has just come will get an answer, as with nginx.
        let connections = self.0.connections.borrow();
        let known = connections
            .values()
            .filter(|connection| !connection.control.is_new());
        for connection in known {
            connection.control.close();
        }
    }

    fn cut(&self) {
        for connection in self.0.connections.borrow().values() {
            connection.control.cut();
        }
    }

    fn abort(&self) {
        self.stop();
        // Out of the map first: a task that is dropped looks itself up there.
        let connections = std::mem::take(&mut *self.0.connections.borrow_mut());
        for connection in connections.into_values() {
            connection.task.abort();
        }
    }

    fn active(&self) -> usize {
        self.0.connections.borrow().len()
    }
}

impl Accepts for LoopConnections {
    const KIND: &'static str = "http";
    const TASK: &'static str = "http accept";

    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    fn open(self: &Rc<Self>, stream: Stream, spec: &Arc<ListenerSpec>) {
        let accepted =
            AcceptedConnection::new(Transport::plain(stream), spec.address.clone(), None);
        self.take_in(accepted, None);
    }
}

impl LoopConnections {
    fn stop_accepting(self: &Rc<Self>) {
        self.http.stopping.set(true);
        net::passing::withdraw(LoopConnections::KIND);
        self.http.stop_modules();
        accepting::stop(self);
        self.tasks.close();
    }

    /// Accepts from exactly the sockets of `context` from now on.
    fn listen(self: &Rc<Self>, context: LoopContext) {
        let engine = Rc::clone(self);
        let take = move |passed, socket: &Arc<ListenerSpec>| {
            engine.take_passed(passed, &socket.address);
        };
        let sockets = context.listeners.iter();
        let sockets = sockets.map(|listener| Arc::clone(&listener.spec)).collect();
        net::passing::serve(LoopConnections::KIND, sockets, Rc::new(take));
        accepting::listen(self, context);
    }

    /// Goes on with a connection of another loop or process. One that can not be read is closed.
    fn resume(self: &Rc<Self>, parcel: Parcel) {
        if let Some((accepted, facts)) = connection_transfer::unpack(parcel) {
            self.take_in(accepted, Some(Box::new(facts)));
        }
    }

    /// Whether a connection that was asked to leave for another loop had better go on here: it would have to close, and
    /// this loop does not end.
    pub(crate) fn must_stay(&self, client: &Rc<Client>) -> bool {
        self.leaving.get().is_none() && !connection_transfer::is_movable(client)
    }

    /// Gives a connection that waits for a request to another loop or process.
    pub(crate) fn send_away(&self, client: Rc<Client>, bytes: Rc<ByteStream>) {
        let Some(sink) = self.sink.borrow().clone() else {
            return;
        };
        self.http
            .debug_client(&client, format_args!("http connection moves"));
        if let Some(parcel) = connection_transfer::pack(client, bytes, sink.reach) {
            (sink.take)(parcel);
        }
    }

    /// Takes in a connection that another address of the server passes on.
    fn take_passed(self: &Rc<Self>, passed: Passed, socket: &ListenAddress) {
        let mut accepted =
            AcceptedConnection::new(passed.transport, socket.clone(), Some(passed.local));
        accepted.input = passed.input;
        self.take_in(accepted, None);
    }

    /// Has a task serve a connection, unless there is no room for it.
    fn take_in(
        self: &Rc<Self>,
        mut accepted: AcceptedConnection,
        moved: Option<Box<ConnectionState>>,
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
        accepted.key = key;
        if let Some(reach) = self.leaving.get() {
            control.leave(reach);
        }
        let task = self.tasks.serve(self, (accepted, moved));
        self.connections
            .borrow_mut()
            .insert(key, Connection { control, task });
        self.http.counters.active.add(1);
        self.sockets.seat().opened();
    }

    /// Counts a connection that wants to be served, and makes room for it. `false`: all of `worker_connections` are busy.
    fn admit(&self, newness: Newness) -> bool {
        let is_new = newness == Newness::New;
        self.http.counters.accepted.add(u64::from(is_new));
        let limit = self.limit.get();
        let is_full = self.connections.borrow().len() >= limit && !self.close_an_idle_one();
        if is_full && newness != Newness::OfThisProcess {
            self.http.log.plain(
                Level::Alert,
                format_args!("{limit} worker_connections are not enough"),
            );
            return false;
        }
        self.http.counters.handled.add(u64::from(is_new));
        true
    }

    /// Forgets a connection that has ended.
    pub(crate) fn closed(&self, key: u64) {
        self.http.counters.active.sub(1);
        self.sockets.seat().closed();
        self.connections.borrow_mut().remove(&key);
    }

    /// Closes connections that came to an address which the present configuration does not listen on, those with a request
    /// after it: no server of it is meant for them.
    fn close_where_nobody_listens(&self) {
        let site = self.http.site();
        for connection in self.connections.borrow().values() {
            let gone = |client: Rc<Client>| http_loop::present_endpoint(&client, &site).is_none();
            if connection.control.client().is_some_and(gone) {
                connection.control.close();
            }
        }
    }

    /// `worker_shutdown_timeout`: requests of the configuration that a reload has replaced may take so long. Then their
    /// connections end; others, and what they begin meanwhile, are not concerned.
    fn end_present_requests(self: &Rc<Self>, patience: Duration) {
        let connections = self.connections.borrow();
        let busy: Vec<(u64, u64)> = connections
            .iter()
            .filter_map(|(key, connection)| Some((*key, connection.control.present_request()?)))
            .collect();
        if busy.is_empty() {
            return;
        }
        let engine = Rc::downgrade(self);
        rt::spawn(async move {
            rt::sleep(patience).await;
            let Some(engine) = engine.upgrade() else {
                return;
            };
            for idle in busy.iter().filter_map(|&at| engine.still_busy(at)) {
                idle.cut();
            }
            // They have a moment to end as if their clients had gone, and to be logged.
            rt::sleep(CUT_GRACE).await;
            for (key, request) in busy {
                let connection = {
                    let mut connections = engine.connections.borrow_mut();
                    let same = connections
                        .get(&key)
                        .is_some_and(|known| known.control.present_request() == Some(request));
                    if same { connections.remove(&key) } else { None }
                };
                if let Some(connection) = connection {
                    connection.task.abort();
                }
            }
        });
    }

    /// The connection with this key, if it is still busy with this request.
    fn still_busy(&self, (key, request): (u64, u64)) -> Option<Rc<ConnectionControl>> {
        let connections = self.connections.borrow();
        let idle = &connections.get(&key)?.control;
        (idle.present_request() == Some(request)).then(|| Rc::clone(idle))
    }

    /// Makes room by closing the connection that has waited for a request for longest.
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
                connection.control.close();
                true
            }
            None => false,
        }
    }
}
