//! The listening sockets of an engine on one loop: who accepts from them, which loop gets a new connection, and how nobody
//! is lost when sockets come and go.
//!
//! The loop that accepts leaves a connection to a lighter one (`host::seats`). While another loop is stuck it accepts in that
//! one's place.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::Errno;
use host::engine::{ListenerId, ListenerSpec, LoopContext, LoopListener};
use host::error_log::{Level, Logger};
use host::seats::{Arrival, Arriving, Seat, Seats};
use rt::net::{Listener, Stream};

/// How often a buddy looks whether the loop that it accepts for is well again.
const RESCUE_CHECK: Duration = Duration::from_millis(20);

/// An engine's part on one loop, as what takes connections.
pub trait Accepts: 'static {
    /// The kind of the engine.
    const KIND: &'static str;
    /// What reports call the tasks that accept.
    const TASK: &'static str;

    /// Its sockets.
    fn sockets(&self) -> &Sockets;

    /// Takes in a new connection.
    fn open(self: &Rc<Self>, stream: Stream, spec: &Arc<ListenerSpec>);

    /// Begins to read the datagrams of a socket. An error where the engine knows no datagrams.
    fn receive(
        self: &Rc<Self>,
        _socket: OwnedFd,
        _spec: Arc<ListenerSpec>,
    ) -> io::Result<rt::JoinHandle<()>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// See the module.
pub struct Sockets {
    /// The loop's number, from 0.
    index: usize,
    loops: Cell<usize>,
    seat: Arc<Seat>,
    seats: RefCell<Seats>,
    /// By socket, and its number among those of one address.
    open: RefCell<HashMap<(ListenerId, usize), Accepting>>,
    is_closed: Cell<bool>,
    log: Logger,
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

impl Sockets {
    /// None yet.
    pub fn new(context: &LoopContext) -> Self {
        Sockets {
            index: context.index,
            loops: Cell::new(context.loops),
            seat: Arc::clone(&context.seat),
            seats: RefCell::new(context.seats.clone()),
            open: RefCell::default(),
            is_closed: Cell::new(false),
            log: context.log.clone(),
        }
    }

    /// The loop's place among the loops.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Datagrams of a socket that the loops share are read by one of them.
    fn is_mine(&self, listener: &LoopListener) -> bool {
        let ListenerSpec { address, options } = &*listener.spec;
        address.is_stream()
            || options.reuse_port
            || listener.id.0 % self.loops.get().max(1) as u64 == self.index as u64
    }
}

/// Accepts from exactly the sockets of `context` from now on.
pub fn listen<E: Accepts>(engine: &Rc<E>, context: LoopContext) {
    let sockets = engine.sockets();
    sockets.loops.set(context.loops);
    *sockets.seats.borrow_mut() = context.seats;
    let listeners = context.listeners;
    let kept: Vec<(ListenerId, usize)> = listeners
        .iter()
        .filter(|listener| sockets.is_mine(listener))
        .map(|listener| (listener.id, listener.member))
        .collect();
    let gone: Vec<Accepting> = sockets
        .open
        .borrow_mut()
        .extract_if(|key, _| !kept.contains(key))
        .map(|(_, listener)| listener)
        .collect();
    for listener in gone {
        close(engine, &listener);
    }
    for listener in listeners {
        let key = (listener.id, listener.member);
        if let Some(known) = sockets.open.borrow_mut().get_mut(&key) {
            known.members = listener.members;
            continue;
        }
        if sockets.is_mine(&listener) {
            start(engine, listener);
        }
    }
}

/// Accepts from no socket any more.
pub fn stop<E: Accepts>(engine: &Rc<E>) {
    let sockets = engine.sockets();
    sockets.is_closed.set(true);
    let all = std::mem::take(&mut *sockets.open.borrow_mut());
    for listener in all.into_values() {
        close(engine, &listener);
    }
}

fn start<E: Accepts>(engine: &Rc<E>, listener: LoopListener) {
    let spec = Arc::clone(&listener.spec);
    let started = listener.descriptor.try_clone().and_then(|descriptor| {
        if !spec.address.is_stream() {
            let task = engine.receive(descriptor, Arc::clone(&spec))?;
            return Ok((None, task));
        }
        let socket = Rc::new(Listener::from_fd(descriptor)?);
        let task = accept(Rc::clone(engine), Rc::clone(&socket), Arc::clone(&spec));
        Ok((Some(socket), rt::spawn_handle(E::TASK, task)))
    });
    let sockets = engine.sockets();
    match started {
        Ok((socket, task)) => {
            let accepting = Accepting {
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
            sockets.log.plain(
                Level::Emerg,
                format_args!("cannot accept from {address}: {error}"),
            );
        }
    }
}

/// Stops accepting from a socket. In this order: a client that comes later is told to another loop that shares the socket,
/// and one that came before, whom the kernel may have told to this loop only, is taken in.
fn close<E: Accepts>(engine: &Rc<E>, listener: &Accepting) {
    listener.task.abort();
    if let Some(socket) = &listener.socket {
        socket.stop();
        drain(socket, &listener.spec, |stream| {
            engine.open(stream, &listener.spec);
        });
    }
}

/// Takes in the clients that the kernel has already accepted for a socket that is about to be closed.
fn drain(socket: &Listener, spec: &ListenerSpec, take: impl Fn(Stream)) {
    for _ in 0..spec.options.backlog.max(0) {
        match socket.try_accept() {
            Ok(stream) => take(stream),
            Err(_) => return,
        }
    }
}

async fn accept<E: Accepts>(engine: Rc<E>, socket: Rc<Listener>, spec: Arc<ListenerSpec>) {
    loop {
        match socket.accept().await {
            Ok(stream) => accepted(&engine, stream, &spec),
            // What passes by itself was waited for already; what is left is a socket that is no good.
            Err(error) => {
                engine.sockets().log.plain(
                    Level::Alert,
                    format_args!("accept() failed{}", Errno(&error)),
                );
                return;
            }
        }
    }
}

/// Takes in a connection that was just accepted here, or leaves it to a loop that has fewer.
fn accepted<E: Accepts>(engine: &Rc<E>, stream: Stream, spec: &Arc<ListenerSpec>) {
    let sockets = engine.sockets();
    let seats = sockets.seats.borrow();
    let Some(lighter) = seats.lighter(&sockets.seat) else {
        drop(seats);
        return engine.open(stream, spec);
    };
    let what = Arriving::New {
        spec: Arc::clone(spec),
        stream: stream.detach(),
    };
    let kind = E::KIND;
    let given = lighter.give(Arrival { kind, what });
    drop(seats);
    if let Err(Arrival {
        what: Arriving::New { stream, .. },
        ..
    }) = given
    {
        engine.open(stream.attach(), spec);
    }
}

/// Accepts in the place of the loop of number `index` while `still` says so.
pub fn accept_for<E: Accepts>(engine: &Rc<E>, index: usize, still: &Rc<dyn Fn() -> bool>) {
    let sockets = engine.sockets();
    let loops = sockets.loops.get().max(1);
    let mut seen = Vec::new();
    for ((id, _), listener) in &*sockets.open.borrow() {
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
                let task = accept_while(Rc::clone(engine), socket, spec, Rc::clone(still));
                rt::spawn_named(E::TASK, task);
            }
        }
    }
}

async fn accept_while<E: Accepts>(
    engine: Rc<E>,
    socket: Listener,
    spec: Arc<ListenerSpec>,
    still: Rc<dyn Fn() -> bool>,
) {
    while still() && !engine.sockets().is_closed.get() {
        match rt::timeout(RESCUE_CHECK, socket.accept()).await {
            Ok(Ok(stream)) => accepted(&engine, stream, &spec),
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
    // As in `close`.
    socket.stop();
    drain(&socket, &spec, |stream| accepted(&engine, stream, &spec));
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::engine::{Main, Zones};
    use host::listen::{ListenAddress, ListenOptions};
    use rt::{Loop, LoopOptions};

    struct Engine {
        sockets: Sockets,
        taken: RefCell<Vec<Stream>>,
    }

    impl Accepts for Engine {
        const KIND: &'static str = "test";
        const TASK: &'static str = "test accept";

        fn sockets(&self) -> &Sockets {
            &self.sockets
        }

        fn open(self: &Rc<Self>, stream: Stream, _: &Arc<ListenerSpec>) {
            self.sockets.seat().opened();
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
        let other = Loop::new(LoopOptions::default()).expect("an eventfd");
        let other = Seat::new(1, other.handle(), || {});
        other.open();
        let queue = Arc::clone(&other);
        let taken = rt::run(LoopOptions::default(), move || async move {
            let own = Seat::new(0, rt::handle(), || {});
            own.open();
            let descriptor = Arc::new(socket);
            let context = LoopContext {
                index: 0,
                loops: 2,
                seats: Seats {
                    list: [Arc::clone(&own), other].into(),
                },
                seat: own,
                main: Main::default(),
                log: Logger::default(),
                zones: Zones::default(),
                listeners: vec![LoopListener {
                    id: ListenerId(1),
                    spec: Arc::new(ListenerSpec { address, options }),
                    member: 0,
                    descriptor: Arc::clone(&descriptor),
                    members: [descriptor].into(),
                }],
            };
            let engine = Rc::new(Engine {
                sockets: Sockets::new(&context),
                taken: RefCell::default(),
            });
            listen(&engine, context);
            let clients: Vec<_> = (0..20)
                .map(|_| std::net::TcpStream::connect(port).expect("it listens"))
                .collect();
            while engine
                .sockets
                .seats
                .borrow()
                .list
                .iter()
                .map(|seat| seat.load())
                .sum::<usize>()
                < clients.len()
            {
                rt::sleep(Duration::from_millis(1)).await;
            }
            stop(&engine);
            engine.taken.take().len()
        });
        let taken = taken.expect("a loop");
        assert_eq!(queue.take().len() + taken, 20);
        assert!((10..=11).contains(&taken), "{taken} of 20");
    }
}
