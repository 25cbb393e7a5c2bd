//! The HTTP connections of one loop: accepted, counted, moved, closed.
//!
//! The loop's table of connections is here, and what an orderly end of the loop means for them. How the loop itself is
//! configured and ended is in [`crate::engine`], above this.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::NumberMap;
use host::engine::{CUT_GRACE, ConnectionSink, ListenerSpec, LoopContext, LoopListener, MoveScope};
use host::error_log::LogLevel;
use host::listen::ListenAddress;
use host::loop_slots::MovingConnection;
use net::Transport;
use net::acceptor::{self, AcceptingEngine, LoopSockets};
use net::passing::PassedConnection;
use rt::net::StreamSocket;

use crate::accepted_connection::AcceptedConnection;
use crate::buffers;
use crate::byte_stream::ByteStream;
use crate::client::{ConnectionControl, HttpClient};
use crate::connection_start;
use crate::connection_tasks::{ConnectionTask, ConnectionTasks, TaskAssignment};
use crate::connection_transfer::{self, ConnectionState};
use crate::h1::RecycledSlots;
use crate::http_loop::{self, HttpLoop};
use crate::memory_peak::MemoryPeak;
use crate::waiting_connection::{self, WaitingConnection};

/// About how much memory a connection has, and how much more while its requests are served, in bytes.
const CONNECTION_MEMORY: usize = 1024;
const SERVED_MEMORY: usize = 8 * 1024;

/// The HTTP connections of one loop: accepts, counts, moves and closes them.
pub(crate) struct LoopConnections {
    /// What their requests know of the loop.
    pub(crate) http: Rc<HttpLoop>,
    pub(crate) sockets: LoopSockets,
    pub(crate) connections: RefCell<NumberMap<ServedConnection>>,
    /// Where the last sample began, as an index in the map's order.
    pub(crate) looked_at: Cell<usize>,
    pub(crate) next_key: Cell<u64>,
    pub(crate) limit: Cell<usize>,
    /// Where connections go that are ordered to move.
    pub(crate) sink: RefCell<Option<ConnectionSink>>,
    /// Set once all connections of the loop have to move: how far.
    pub(crate) leaving: Cell<Option<MoveScope>>,
    /// Serves QUIC at a socket: what does is above this file.
    pub(crate) receive_datagrams: DatagramReader,
    /// The tasks that serve connections.
    pub(crate) tasks: ConnectionTasks,
    /// The memory that HTTP/1 connections leave to the next ones.
    pub(crate) recycled: RecycledSlots,
    /// `worker_shutdown_timeout` of the current configuration.
    pub(crate) shutdown_timeout: Cell<Duration>,
    /// About how much memory its connections take while they wait, in bytes.
    pub(crate) memory: Cell<usize>,
    /// When much memory of connections has become free, it goes back to the system.
    pub(crate) peak: MemoryPeak,
}

/// Starts to read the datagrams of a socket.
pub(crate) type DatagramReader =
    fn(&Rc<LoopConnections>, OwnedFd, &LoopListener) -> io::Result<rt::JoinHandle<()>>;

pub(crate) struct ServedConnection {
    pub(crate) control: Rc<ConnectionControl>,
    pub(crate) task: ServingTask,
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
    pub(crate) fn abort(&self) {
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
    pub(crate) fn new(engine: &Rc<LoopConnections>, key: u64) -> TablePlace {
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
pub(crate) enum Newness {
    /// It was accepted, or has come from another process, whose counters are not these.
    New,
    /// `stream` has passed it on, and counted it.
    PassedOn,
    /// Another loop had it: it was counted there, and being moved must not end it, even where this loop is full.
    OfThisProcess,
}

impl AcceptingEngine for LoopConnections {
    const KIND: &'static str = "http";
    const TASK: &'static str = "http accept";

    fn sockets(&self) -> &LoopSockets {
        &self.sockets
    }

    fn open_connection(self: &Rc<Self>, stream: StreamSocket, spec: &Arc<ListenerSpec>) {
        if self.sockets.loop_slot().is_refusing() {
            self.http.counters.accepted.add(1);
            // If the option fails the client sees an ordinary end.
            let _ = stream.set_reset_on_close();
            return;
        }
        let accepted =
            AcceptedConnection::new(Transport::plain(stream), spec.address.clone(), None);
        self.take_in(accepted, None);
    }

    fn receive_datagrams(
        self: &Rc<Self>,
        socket: OwnedFd,
        listener: &LoopListener,
    ) -> io::Result<rt::JoinHandle<()>> {
        (self.receive_datagrams)(self, socket, listener)
    }

    fn receive_for(
        self: &Rc<Self>,
        socket: OwnedFd,
        spec: &ListenerSpec,
        still: &Rc<dyn Fn() -> bool>,
    ) -> io::Result<()> {
        net::quic::receive_for_stuck_loop(socket, &spec.address, still)
    }
}

impl LoopConnections {
    pub(crate) fn stop_accepting(self: &Rc<Self>) {
        self.http.stopping.set(true);
        net::passing::unregister_listeners(LoopConnections::KIND);
        self.http.stop_modules();
        acceptor::stop_listening(self);
        self.tasks.close();
    }

    /// Accepts from exactly the sockets of `context` from now on, directly and from `stream` servers with `pass`.
    pub(crate) fn listen(self: &Rc<Self>, context: LoopContext) {
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
    pub(crate) fn resume(self: &Rc<Self>, moving: MovingConnection) {
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
    pub(crate) fn take_passed(self: &Rc<Self>, passed: PassedConnection, socket: &ListenAddress) {
        let mut accepted = AcceptedConnection::new(
            passed.transport,
            socket.clone(),
            Some(Box::new(passed.local)),
        );
        accepted.input = passed.input;
        self.take_in(accepted, None);
    }

    /// Has a task serve a connection, unless there is no room for it.
    pub(crate) fn take_in(
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
        let place = self.place_connection(&accepted.control);
        let key = place.key;
        let (connection, is_silent) = match moved {
            None => {
                let is_silent = accepted.is_silent(&self.http);
                (WaitingConnection::New(accepted), is_silent)
            }
            Some(state) => {
                let has_input = !state.input.is_empty();
                let Some(served) = connection_start::resume_moved(&self.http, *accepted, state)
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

    /// Enters an admitted connection into the table.
    pub(crate) fn place_connection(self: &Rc<Self>, control: &Rc<ConnectionControl>) -> TablePlace {
        let control = Rc::clone(control);
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
        TablePlace::new(self, key)
    }

    /// Notes what serves a connection from now on.
    pub(crate) fn set_task(&self, key: u64, task: ServingTask) {
        if let Some(connection) = self.connections.borrow_mut().get_mut(&key) {
            connection.task = task;
        }
    }

    /// Counts a connection that wants to be served, and makes room for it. `false`: all of `worker_connections` are
    /// busy.
    pub(crate) fn admit(&self, newness: Newness) -> bool {
        let is_new = newness == Newness::New;
        self.http.counters.accepted.add(u64::from(is_new));
        let limit = self.limit.get();
        // As nginx does near `worker_connections`, an idle connection makes room for a new one.
        let is_full = self.connections.borrow().len() >= limit && !self.close_an_idle_one();
        if is_full && newness != Newness::OfThisProcess {
            self.http.log().log_plain(
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
    pub(crate) fn forget_connection(self: &Rc<Self>, key: u64) {
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
                engine.connections.borrow_mut().shrink_to_fit();
                rt::shrink_tables();
                buffers::shrink();
                // Not on the loop: with 19,000 connections it took 14 ms of CPU time.
                let pool = rt::pool::default_pool();
                pool.run(host::process::give_memory_back).await;
            }
        });
    }

    /// Closes connections to an address that the current configuration does not listen on, after their request if one
    /// is being served: none of its servers is meant for them.
    pub(crate) fn close_where_nobody_listens(&self) {
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
    pub(crate) fn end_present_requests(self: &Rc<Self>, patience: Duration) {
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
    pub(crate) fn still_busy(&self, (key, request): (u64, u64)) -> Option<Rc<ConnectionControl>> {
        let connections = self.connections.borrow();
        let idle = &connections.get(&key)?.control;
        (idle.present_request() == Some(request)).then(|| Rc::clone(idle))
    }

    /// Makes room by closing the connection that has waited longest for a request.
    pub(crate) fn close_an_idle_one(&self) -> bool {
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
