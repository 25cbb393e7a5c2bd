//! Stream as the binary sees it: one configuration, and the sessions that are served by it on one loop.
//!
//! What sessions may know of their loop is in [`crate::stream_loop`], below the phases; this is above them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::ErrnoText;
use conf::{Diagnostic, DirectiveLine, DirectiveRows};
use host::engine::{
    ConfigurationTest, EngineConfiguration, ListenerSpec, LoopContext, LoopEngine, LoopListener,
    MainSettings, ZoneRegistry,
};
use host::error_log::LogLevel;
use host::loop_slots::ArrivingConnection;
use net::acceptor::{self, AcceptingEngine, LoopSockets};
use net::counters::{self, AllCounters};
use net::passing::PassedConnection;
use rt::net::{StreamSocket, UdpSocket};

use crate::client::SessionTransport;
use crate::configure;
use crate::datagrams::{DatagramSocket, MAX_DATAGRAM};
use crate::module::StreamModule;
use crate::serve_session::AcceptedSession;
use crate::stream_loop::StreamLoop;
use crate::stream_site::{FrozenStream, StreamSite};

/// The engine with the modules of a program.
pub struct StreamEngine {
    modules: &'static [&'static StreamModule],
}

/// One generation of `stream {}`.
pub struct StreamConfiguration {
    frozen: Arc<FrozenStream>,
    modules: &'static [&'static StreamModule],
    /// How long sessions of this generation may go on after a reload (`worker_shutdown_timeout`); zero: until they end.
    shutdown_timeout: Duration,
}

impl StreamEngine {
    /// An engine that runs these modules, in this order.
    pub const fn new(modules: &'static [&'static StreamModule]) -> StreamEngine {
        StreamEngine { modules }
    }

    /// The engine's own tables, for the reference and for help.
    pub fn own_tables() -> [&'static dyn DirectiveRows; 4] {
        [
            &configure::HASH_SIZES,
            &configure::MAIN,
            &crate::core::SERVER,
            &crate::core::RESOLVER,
        ]
    }

    /// The modules, in running order.
    pub fn modules(&self) -> &'static [&'static StreamModule] {
        self.modules
    }

    /// Reads a `stream {}` block.
    pub fn configure(
        &self,
        line: &mut DirectiveLine,
    ) -> Result<Arc<dyn EngineConfiguration>, Diagnostic> {
        let main = line.shared::<MainSettings>().clone();
        let version = main
            .version
            .split_once('/')
            .map_or("", |(_, version)| version)
            .to_owned();
        let frozen = Arc::new(configure::read_stream_block(self.modules, version, line)?);
        Ok(Arc::new(StreamConfiguration {
            frozen,
            modules: self.modules,
            shutdown_timeout: main.shutdown_timeout,
        }))
    }
}

impl EngineConfiguration for StreamConfiguration {
    fn kind(&self) -> &'static str {
        LoopSessions::KIND
    }

    fn listeners(&self) -> Vec<ListenerSpec> {
        net::endpoint::listener_specs(&self.frozen.endpoints)
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

    fn configuration_tests(&self) -> Vec<ConfigurationTest> {
        self.modules
            .iter()
            .filter_map(|module| (module.trial)(&self.frozen))
            .collect()
    }

    fn server_count(&self) -> usize {
        self.frozen.servers.len()
    }

    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.frozen) > 1
    }

    fn start_loop(self: Arc<Self>, context: LoopContext) -> Box<dyn LoopEngine> {
        let all = context
            .zones
            .get_or_create(counters::ZONE, AllCounters::default);
        let sessions = Rc::new(LoopSessions {
            modules: self.modules,
            shutdown_timeout: Cell::new(self.shutdown_timeout),
            sockets: LoopSockets::new(&context),
            underway: RefCell::default(),
            next_key: Cell::new(0),
            limit: Cell::new(context.main.worker_connections),
            stream: Rc::new(StreamLoop {
                index: context.index,
                site: RefCell::new(StreamSite::new(Arc::clone(&self.frozen))),
                log: RefCell::new(context.log.clone()),
                zones: context.zones.clone(),
                main: RefCell::new(context.main.clone()),
                counters: all.for_loop(context.index),
            }),
        });
        sessions.start_modules();
        sessions.listen(context);
        Box::new(StreamLoopEngine(sessions))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The sessions of one loop, and where they come from.
struct LoopSessions {
    /// What they know of the loop.
    stream: Rc<StreamLoop>,
    modules: &'static [&'static StreamModule],
    shutdown_timeout: Cell<Duration>,
    sockets: LoopSockets,
    /// The sessions that run, by a key that is unique on this loop. At most `limit`.
    underway: RefCell<HashMap<u64, ServedSession>>,
    next_key: Cell<u64>,
    /// `worker_connections`.
    limit: Cell<usize>,
}

/// A session that runs.
struct ServedSession {
    generation: u64,
    task: rt::JoinHandle<()>,
}

/// The handle of the host on a loop of stream.
struct StreamLoopEngine(Rc<LoopSessions>);

impl LoopEngine for StreamLoopEngine {
    fn reload(&self, configuration: Arc<dyn EngineConfiguration>, context: LoopContext) {
        // The host matches configurations by their kind, so that another type never comes here.
        let Ok(configuration) = configuration.as_any().downcast::<StreamConfiguration>() else {
            return;
        };
        let old = self
            .0
            .stream
            .site
            .replace(StreamSite::new(Arc::clone(&configuration.frozen)));
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
        self.0.stream.log.replace(context.log.clone());
        self.0.stream.main.replace(context.main.clone());
        self.0.limit.set(context.main.worker_connections);
        // Before listening: the first session must find what the modules prepare.
        self.0.start_modules();
        self.0.listen(context);
    }

    fn adopt_connection(&self, arriving: ArrivingConnection) {
        // Only connections that were just accepted come from other loops. A session cannot move: unlike HTTP, it has no
        // pause between two requests at which nothing of it is under way.
        if let ArrivingConnection::New { spec, stream } = arriving {
            self.0.open_connection(stream.attach(), &spec);
        }
    }

    fn accept_for_late_loop(&self, index: usize, still: Rc<dyn Fn() -> bool>) {
        acceptor::accept_for(&self.0, index, &still);
    }

    fn stop(&self) {
        // First, so that no connection is passed on to a loop that is about to stop.
        net::passing::unregister_listeners(LoopSessions::KIND);
        for module in self.0.modules {
            (module.stop)(&self.0.stream);
        }
        acceptor::stop_listening(&self.0);
    }

    fn abort(&self) {
        self.stop();
        self.0.abort_sessions(|_| true);
    }

    fn active(&self) -> usize {
        self.0.underway.borrow().len()
    }
}

/// Ends the sessions of a replaced generation, and of those before it, when `worker_shutdown_timeout` has passed.
async fn end_generation(sessions: Rc<LoopSessions>, generation: u64, patience: Duration) {
    rt::sleep(patience).await;
    sessions.abort_sessions(|session| session.generation <= generation);
}

impl AcceptingEngine for LoopSessions {
    const KIND: &'static str = "stream";
    const TASK: &'static str = "stream accept";

    fn sockets(&self) -> &LoopSockets {
        &self.sockets
    }

    fn open_connection(self: &Rc<Self>, stream: StreamSocket, spec: &Arc<ListenerSpec>) {
        self.stream.counters.accepted.add(1);
        if self.sockets.loop_slot().is_refusing() {
            // If the option fails the client sees an ordinary end.
            let _ = stream.set_reset_on_close();
            return;
        }
        let transport = SessionTransport::Stream(Rc::new(net::Transport::plain(stream)));
        self.take_in(AcceptedSession::new(transport, spec));
    }

    fn receive_datagrams(
        self: &Rc<Self>,
        socket: OwnedFd,
        listener: &LoopListener,
    ) -> io::Result<rt::JoinHandle<()>> {
        let socket = DatagramSocket::new(UdpSocket::from_fd(socket)?);
        let task = receive(Rc::clone(self), socket, Arc::clone(&listener.spec));
        Ok(rt::spawn_handle("stream datagrams", task))
    }
}

impl LoopSessions {
    /// Drops the tasks of sessions. Their clients see the connection close.
    fn abort_sessions(&self, which: impl Fn(&ServedSession) -> bool) {
        // Taken out of the map before any task is dropped: a dropped task removes its own entry, for which the map must
        // not be borrowed.
        let ended: Vec<ServedSession> = self
            .underway
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
        let sessions = Rc::clone(self);
        let take = move |passed, socket: &Arc<ListenerSpec>| sessions.take_passed(passed, socket);
        let sockets = context.listeners.iter();
        let sockets = sockets.map(|listener| Arc::clone(&listener.spec)).collect();
        net::passing::register_listeners(LoopSessions::KIND, sockets, Rc::new(take));
        acceptor::start_listening(self, context);
    }

    fn start_modules(&self) {
        for module in self.modules {
            (module.start)(&self.stream);
        }
    }

    /// Takes in a connection that another address of the server passes on.
    fn take_passed(self: &Rc<Self>, passed: PassedConnection, socket: &Arc<ListenerSpec>) {
        self.take_in(AcceptedSession {
            transport: SessionTransport::Stream(Rc::new(passed.transport)),
            socket: Arc::clone(socket),
            passed_at: Some(passed.local),
            passes: passed.passes,
            input: passed.input,
        });
    }

    /// Begins a session, unless the loop has as many as `worker_connections` allows.
    fn take_in(self: &Rc<Self>, accepted: AcceptedSession) {
        // A connection that another address passed on was counted when it was accepted.
        let is_new = accepted.passed_at.is_none();
        let limit = self.limit.get();
        if self.underway.borrow().len() >= limit {
            self.stream.log().log_plain(
                LogLevel::Alert,
                format_args!("{limit} worker_connections are not enough"),
            );
            // A connection is closed by being dropped. A client of datagrams has to be forgotten, so that its next one
            // may begin a session when there is room.
            if let SessionTransport::Datagrams(flow) = accepted.transport {
                flow.refuse_session();
            }
            return;
        }
        self.stream.counters.handled.add(u64::from(is_new));
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let slot = SessionSlot {
            sessions: Rc::clone(self),
            key,
        };
        let stream = Rc::clone(&self.stream);
        let task = rt::spawn_handle("stream session", async move {
            let _given_back_last = slot;
            crate::serve_session::serve_session(stream, accepted).await;
        });
        // The task is polled later, so its entry is there before it can end.
        let generation = self.stream.site.borrow().generation;
        self.underway
            .borrow_mut()
            .insert(key, ServedSession { generation, task });
        self.stream.counters.active.add(1);
        self.sockets.loop_slot().count_opened();
    }
}

/// A session's place among those of the loop, given back however its task ends.
struct SessionSlot {
    sessions: Rc<LoopSessions>,
    key: u64,
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let sessions = &self.sessions;
        sessions.stream.counters.active.sub(1);
        sessions.sockets.loop_slot().count_closed();
        sessions.underway.borrow_mut().remove(&self.key);
    }
}

/// Reads a socket of datagrams for as long as it works, and begins a session for each new client.
async fn receive(sessions: Rc<LoopSessions>, socket: Rc<DatagramSocket>, spec: Arc<ListenerSpec>) {
    let mut scratch = vec![0; MAX_DATAGRAM];
    loop {
        match socket.accept_session(&mut scratch).await {
            Ok(flow) => {
                sessions.stream.counters.accepted.add(1);
                sessions.take_in(AcceptedSession::new(
                    SessionTransport::Datagrams(flow),
                    &spec,
                ));
            }
            Err(error) => {
                sessions.stream.log().log_plain(
                    LogLevel::Alert,
                    format_args!("recvmsg() failed{}", ErrnoText(&error)),
                );
                return;
            }
        }
    }
}
