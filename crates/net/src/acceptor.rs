//! The listening sockets of an engine on one loop: which of them this loop accepts from, which loop a new
//! connection goes to, and how no client is lost when sockets are added or removed.
//!
//! A loop that has more connections than its share passes a new one on to a loop with fewer (`host::loop_slots`). While
//! another loop is stuck, this one can accept in its place.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::ErrnoText;
use host::engine::{ListenerId, ListenerSpec, LoopContext, LoopListener};
use host::error_log::{LogLevel, Logger};
use host::loop_slots::{ArrivingConnection, LoopArrival, LoopSlot, LoopSlots};
use host::worker_group::WorkerGroup;
use rt::net::{SocketListener, StreamSocket};

/// How often a loop that accepts for a stuck one checks whether that one has recovered.
const RESCUE_CHECK: Duration = Duration::from_millis(20);

/// An engine, http or stream, on one loop: what the code here needs of it to accept connections.
pub trait AcceptingEngine: 'static {
    /// The kind of the engine: a connection that is passed to another loop goes to the engine of the same kind
    /// there.
    const KIND: &'static str;
    /// The name of the accepting tasks in reports about slow or failed tasks.
    const TASK: &'static str;

    /// Its listening sockets on this loop.
    fn sockets(&self) -> &LoopSockets;

    /// Starts to serve a connection that was accepted, here or by another loop.
    fn open_connection(self: &Rc<Self>, stream: StreamSocket, spec: &Arc<ListenerSpec>);

    /// Reads the UDP socket of another loop, which is stuck, in its place while `still` returns true. By default nobody does.
    fn receive_for(
        self: &Rc<Self>,
        _socket: OwnedFd,
        _spec: &ListenerSpec,
        _still: &Rc<dyn Fn() -> bool>,
    ) -> io::Result<()> {
        Ok(())
    }

    /// Starts to read the datagrams of a UDP socket, which is a duplicate of the listener's. An error for an engine that
    /// serves no datagrams.
    fn receive_datagrams(
        self: &Rc<Self>,
        _socket: OwnedFd,
        _listener: &LoopListener,
    ) -> io::Result<rt::JoinHandle<()>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The listening sockets of one engine on one loop.
pub struct LoopSockets {
    /// This process among all of the server: the loops of all of them share the sockets.
    group: WorkerGroup,
    /// The loop's number in its process, from 0.
    index: usize,
    /// How many loops there are in all processes; a reload can change it.
    loops: Cell<usize>,
    loop_slot: Arc<LoopSlot>,
    loop_slots: RefCell<LoopSlots>,
    /// By listener, and by the socket's number among those of one address: with `reuseport` each loop has its own.
    open: RefCell<HashMap<(ListenerId, usize), OpenListener>>,
    /// Accepting has ended for good: a loop that accepts for this one must stop too.
    is_closed: Cell<bool>,
    /// The error log of the configuration in use.
    log: RefCell<Logger>,
}

/// A listening socket and the task that accepts from it.
struct OpenListener {
    /// `None` for a UDP socket, which has no connections to accept.
    socket: Option<Rc<SocketListener>>,
    spec: Arc<ListenerSpec>,
    /// All sockets of this address, those of other loops included: needed to accept in another loop's place.
    members: Arc<[Arc<OwnedFd>]>,
    task: rt::JoinHandle<()>,
}

impl LoopSockets {
    /// No sockets yet: [`start_listening`] opens them.
    pub fn new(context: &LoopContext) -> Self {
        LoopSockets {
            group: context.zones.group().place(),
            index: context.index,
            loops: Cell::new(context.main.worker_processes),
            loop_slot: Arc::clone(&context.loop_slot),
            loop_slots: RefCell::new(context.loop_slots.clone()),
            open: RefCell::default(),
            is_closed: Cell::new(false),
            log: RefCell::new(context.log.clone()),
        }
    }

    /// This loop, as the others see it: how many connections it has, and what was passed on to it.
    pub fn loop_slot(&self) -> &LoopSlot {
        &self.loop_slot
    }

    /// Whether this loop serves the socket. Connections can be accepted by any loop. The datagrams of one client
    /// must all reach the loop that holds its session, so a shared UDP socket is read by one loop only; with
    /// `reuseport` the kernel does that choice by the client's address.
    fn is_mine(&self, listener: &LoopListener) -> bool {
        let ListenerSpec { address, options } = &*listener.spec;
        address.is_stream()
            || options.reuse_port
            || listener.id.0 % self.all_loops() as u64 == self.number_of(self.index) as u64
    }

    /// How many loops the server has.
    fn all_loops(&self) -> usize {
        self.loops.get().max(self.group.count)
    }

    /// The number among all loops of the server of a loop of this process.
    fn number_of(&self, index: usize) -> usize {
        self.group.loops(self.loops.get()).start + index
    }
}

/// Replaces the sockets that this loop accepts from by those of `context`. A socket that is in both stays open, so
/// a reload loses no client.
pub fn start_listening<E: AcceptingEngine>(engine: &Rc<E>, context: LoopContext) {
    let sockets = engine.sockets();
    sockets.loops.set(context.main.worker_processes);
    *sockets.loop_slots.borrow_mut() = context.loop_slots;
    *sockets.log.borrow_mut() = context.log;
    let listeners = context.listeners;
    // A UDP socket can become another loop's when the number of loops changes: it is not kept here, although it is
    // still listed.
    let kept: Vec<(ListenerId, usize)> = listeners
        .iter()
        .filter(|listener| sockets.is_mine(listener))
        .map(|listener| (listener.id, listener.member))
        .collect();
    let gone: Vec<OpenListener> = sockets
        .open
        .borrow_mut()
        .extract_if(|key, _| !kept.contains(key))
        .map(|(_, listener)| listener)
        .collect();
    // Taken out of the map before any of them is closed: closing takes in clients, and that code may borrow the
    // map.
    for listener in gone {
        close(engine, &listener);
    }
    for listener in listeners {
        let key = (listener.id, listener.member);
        // Only the list of sockets changes: a reload may have opened or closed some for other loops.
        if let Some(known) = sockets.open.borrow_mut().get_mut(&key) {
            known.members = listener.members;
            continue;
        }
        if sockets.is_mine(&listener) {
            start(engine, listener);
        }
    }
}

/// Closes all sockets of this loop: no connection is accepted from now on.
pub fn stop_listening<E: AcceptingEngine>(engine: &Rc<E>) {
    let sockets = engine.sockets();
    sockets.is_closed.set(true);
    let all = std::mem::take(&mut *sockets.open.borrow_mut());
    for listener in all.into_values() {
        close(engine, &listener);
    }
}

/// Opens a listener on this loop. A failure is logged and costs this loop one socket: the others go on serving.
fn start<E: AcceptingEngine>(engine: &Rc<E>, listener: LoopListener) {
    let spec = Arc::clone(&listener.spec);
    // A duplicate of its own: this loop closes it without closing the socket for the other loops.
    let started = listener.descriptor.try_clone().and_then(|descriptor| {
        if !spec.address.is_stream() {
            let task = engine.receive_datagrams(descriptor, &listener)?;
            return Ok((None, task));
        }
        let socket = Rc::new(SocketListener::from_fd(descriptor)?);
        let task = accept(Rc::clone(engine), Rc::clone(&socket), Arc::clone(&spec));
        Ok((Some(socket), rt::spawn_handle(E::TASK, task)))
    });
    let sockets = engine.sockets();
    match started {
        Ok((socket, task)) => {
            let accepting = OpenListener {
                socket,
                spec,
                members: listener.members,
                task,
            };
            let key = (listener.id, listener.member);
            sockets.open.borrow_mut().insert(key, accepting);
        }
        Err(error) => {
            let address = &spec.address;
            sockets.log.borrow().log_plain(
                LogLevel::Emerg,
                format_args!("cannot accept from {address}: {error}"),
            );
        }
    }
}

/// Stops accepting from a socket. The order matters: first the socket leaves this loop's epoll set, so that the
/// kernel wakes another loop for clients that connect from now on; then what is already in the queue is accepted,
/// because the kernel may have woken only this loop for it.
fn close<E: AcceptingEngine>(engine: &Rc<E>, listener: &OpenListener) {
    listener.task.abort();
    if let Some(socket) = &listener.socket {
        socket.stop();
        drain(socket, &listener.spec, |stream| {
            engine.open_connection(stream, &listener.spec);
        });
    }
}

/// Accepts the connections that are complete in the kernel's queue of a socket that is about to be closed: without
/// this they would be reset.
fn drain(socket: &SocketListener, spec: &ListenerSpec, take: impl Fn(StreamSocket)) {
    // The kernel's queue holds no more than the backlog. Without this bound, a flood of new clients would keep the
    // loop here.
    for _ in 0..spec.options.backlog.max(0) {
        match socket.try_accept() {
            Ok(stream) => take(stream),
            Err(_) => return,
        }
    }
}

/// Accepts until the socket fails or the task is aborted.
async fn accept<E: AcceptingEngine>(
    engine: Rc<E>,
    socket: Rc<SocketListener>,
    spec: Arc<ListenerSpec>,
) {
    loop {
        match socket.accept().await {
            Ok(stream) => accepted(&engine, stream, &spec),
            // `SocketListener::accept` waits while descriptors or memory are lacking. An error that it returns does not pass,
            // and another attempt would be a busy loop.
            Err(error) => {
                engine.sockets().log.borrow().log_plain(
                    LogLevel::Alert,
                    format_args!("accept() failed{}", ErrnoText(&error)),
                );
                return;
            }
        }
    }
}

/// Serves a connection that was just accepted, or passes it on to a loop that has fewer.
fn accepted<E: AcceptingEngine>(engine: &Rc<E>, stream: StreamSocket, spec: &Arc<ListenerSpec>) {
    let sockets = engine.sockets();
    let loop_slots = sockets.loop_slots.borrow();
    let Some(lighter) = loop_slots.less_loaded_than(&sockets.loop_slot) else {
        // Released before the engine runs: what it opens may need the list of loops.
        drop(loop_slots);
        if let Some(stream) = keep_from_group::<E>(stream, sockets, spec) {
            engine.open_connection(stream, spec);
        }
        return;
    };
    // Out of this loop's epoll set, so that the other loop can register it in its own.
    let connection = ArrivingConnection::New {
        spec: Arc::clone(spec),
        stream: stream.detach(),
    };
    let kind = E::KIND;
    let given = lighter.give_connection(LoopArrival { kind, connection });
    drop(loop_slots);
    // The other loop is ending or its queue is full. The client has been accepted and must not pay for that: it is
    // served here. What comes back is what was given, so the pattern always fits.
    if let Err(LoopArrival {
        connection: ArrivingConnection::New { stream, .. },
        ..
    }) = given
    {
        engine.open_connection(stream.attach(), spec);
    }
}

/// Passes a connection on to another worker process that has fewer. Returns one that stays.
fn keep_from_group<E: AcceptingEngine>(
    stream: StreamSocket,
    sockets: &LoopSockets,
    spec: &ListenerSpec,
) -> Option<StreamSocket> {
    let Some(group) = sockets.loop_slot.group() else {
        return Some(stream);
    };
    let Some(lighter) = group.less_loaded_than(sockets.loop_slot.connection_count()) else {
        return Some(stream);
    };
    let stream = stream.detach();
    let address = spec.address.to_string();
    match group.give(lighter, E::KIND, &address, stream.as_fd()) {
        // The other process has a descriptor of its own.
        true => None,
        false => Some(stream.attach()),
    }
}

/// Accepts in the place of loop `index`, which is stuck, while `still` returns true.
pub fn accept_for<E: AcceptingEngine>(engine: &Rc<E>, index: usize, still: &Rc<dyn Fn() -> bool>) {
    let sockets = engine.sockets();
    let (loops, number) = (sockets.all_loops(), sockets.number_of(index));
    let mut seen = Vec::new();
    for ((id, _), listener) in &*sockets.open.borrow() {
        if seen.contains(id) {
            continue;
        }
        // A listener with one socket for each loop stands in the map once for each: its list of sockets is gone
        // through once.
        seen.push(*id);
        // One socket shared by all: epoll may have woken the stuck loop alone for a connection, and does not wake
        // another for it. With a socket for each loop, only that loop's is taken over.
        let shared = listener.members.len() == 1;
        for (member, descriptor) in listener.members.iter().enumerate() {
            if !shared && member % loops != number {
                continue;
            }
            // A failure costs nothing that is not lost already: the stuck loop still has the socket and accepts
            // when it recovers.
            if !listener.spec.address.is_stream() {
                // A shared one has one reader, whose clients it is bound to.
                if !shared {
                    let _ = descriptor
                        .try_clone()
                        .and_then(|socket| engine.receive_for(socket, &listener.spec, still));
                }
                continue;
            }
            if let Ok(socket) = descriptor.try_clone().and_then(SocketListener::from_fd) {
                let spec = Arc::clone(&listener.spec);
                let task = accept_while(Rc::clone(engine), socket, spec, Rc::clone(still));
                rt::spawn_named(E::TASK, task);
            }
        }
    }
}

/// Accepts from a stuck loop's socket until that loop recovers or this one stops.
async fn accept_while<E: AcceptingEngine>(
    engine: Rc<E>,
    socket: SocketListener,
    spec: Arc<ListenerSpec>,
    still: Rc<dyn Fn() -> bool>,
) {
    while still() && !engine.sockets().is_closed.get() {
        // The timeout is what ends this task when no client comes any more.
        match rt::timeout(RESCUE_CHECK, socket.accept()).await {
            Ok(Ok(stream)) => accepted(&engine, stream, &spec),
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
    // In the order of `close`, and for the same reason: a wake-up that only this registration got must not be lost.
    socket.stop();
    drain(&socket, &spec, |stream| accepted(&engine, stream, &spec));
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::engine::{MainSettings, ZoneRegistry};
    use host::listen::{ListenAddress, ListenOptions};
    use rt::{EventLoop, LoopOptions};

    struct Engine {
        sockets: LoopSockets,
        taken: RefCell<Vec<StreamSocket>>,
    }

    impl AcceptingEngine for Engine {
        const KIND: &'static str = "test";
        const TASK: &'static str = "test accept";

        fn sockets(&self) -> &LoopSockets {
            &self.sockets
        }

        fn open_connection(self: &Rc<Self>, stream: StreamSocket, _: &Arc<ListenerSpec>) {
            self.sockets.loop_slot().count_opened();
            self.taken.borrow_mut().push(stream);
        }
    }

    #[test]
    fn a_loop_that_has_more_than_its_share_leaves_connections_to_the_other() {
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"));
        let options = ListenOptions::default();
        let socket = host::listen::open(&address, &options).expect("a free port");
        let port = std::net::TcpListener::from(socket.try_clone().expect("a descriptor"))
            .local_addr()
            .expect("bound");
        // The other loop never runs: what is left for it stays in its queue.
        let other = EventLoop::new(LoopOptions::default()).expect("an eventfd");
        let other = LoopSlot::new(1, other.handle(), || {});
        other.open_slot();
        let queue = Arc::clone(&other);
        let taken = rt::run(LoopOptions::default(), move || async move {
            let own = LoopSlot::new(0, rt::handle(), || {});
            own.open_slot();
            let descriptor = Arc::new(socket);
            let context = LoopContext {
                index: 0,
                loops: 2,
                loop_slots: LoopSlots {
                    list: [Arc::clone(&own), other].into(),
                },
                loop_slot: own,
                main: MainSettings::default(),
                log: Logger::default(),
                zones: ZoneRegistry::default(),
                listeners: vec![LoopListener {
                    id: ListenerId(1),
                    spec: Arc::new(ListenerSpec { address, options }),
                    member: 0,
                    descriptor: Arc::clone(&descriptor),
                    members: [descriptor].into(),
                }],
            };
            let engine = Rc::new(Engine {
                sockets: LoopSockets::new(&context),
                taken: RefCell::default(),
            });
            start_listening(&engine, context);
            let clients: Vec<_> = (0..20)
                .map(|_| std::net::TcpStream::connect(port).expect("it listens"))
                .collect();
            while engine
                .sockets
                .loop_slots
                .borrow()
                .list
                .iter()
                .map(|loop_slot| loop_slot.connection_count())
                .sum::<usize>()
                < clients.len()
            {
                rt::sleep(Duration::from_millis(1)).await;
            }
            stop_listening(&engine);
            engine.taken.take().len()
        });
        let taken = taken.expect("a loop");
        assert_eq!(queue.take_arrivals().len() + taken, 20);
        assert!((10..=11).contains(&taken), "{taken} of 20");
    }
}
