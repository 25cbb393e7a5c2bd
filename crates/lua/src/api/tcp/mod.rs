//! `ngx.socket.tcp`: sockets for scripts, with pools of idle connections.

mod connect;
mod options;
mod pools;
mod receive;
mod secure;
mod send;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use net::Transport;
use net::tls::{Identity, Sessions};
use rt::net::Address;

pub(super) use connect::destination;
pub(crate) use pools::Pools;
pub(super) use receive::Wanted;

use super::output::answer;
use super::wire::Wire;
use super::{Called, Functions};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Stack, Value, fail};
use crate::scope;
use crate::sockets::Sockets;

pub(super) const FUNCTIONS: Functions = &[("tcp", tcp)];

pub(super) const CORE: Functions = &[("tcp_methods", methods)];

/// The table of the methods, for `prelude.lua` to add to.
fn methods(stack: &Stack) -> Called {
    object::push_methods(stack, &SOCKET);
    super::ONE
}

pub(super) static SOCKET: Class = Class {
    name: "weir.socket.tcp",
    shape: Shape::Table,
    methods: METHODS,
};

const METHODS: Functions = &[
    ("connect", connect::connect),
    ("sslhandshake", secure::handshake),
    ("send", send::send),
    ("receive", receive::receive),
    ("receiveany", receive::receive_any),
    ("receiveuntil", receive::receive_until),
    ("peek", receive::peek),
    ("close", send::close),
    ("settimeout", options::set_timeout),
    ("settimeouts", options::set_timeouts),
    ("setoption", options::set_option),
    ("getoption", options::option),
    ("getfd", options::descriptor),
    ("setkeepalive", send::set_keepalive),
    ("getreusedtimes", send::reused_times),
    ("setclientcert", secure::set_client_certificate),
    ("getsslsession", secure::session),
    ("bind", connect::bind),
    ("shutdown", send::shutdown),
];

/// A socket of a script.
pub(crate) struct Tcp {
    wire: RefCell<Option<Wire>>,
    /// What came and nobody has taken.
    input: RefCell<Vec<u8>>,
    /// Nothing more is read, after an error or the end.
    read_closed: Cell<bool>,
    /// Nothing more is written, after an error.
    write_closed: Cell<bool>,
    connect_timeout: Cell<Duration>,
    send_timeout: Cell<Duration>,
    read_timeout: Cell<Duration>,
    reused: Cell<u32>,
    pool: RefCell<Option<Vec<u8>>>,
    /// Its place in that pool.
    slot: RefCell<Option<pools::Slot>>,
    /// A connection was asked for before.
    was_used: Cell<bool>,
    connecting: Cell<bool>,
    reading: Cell<bool>,
    writing: Cell<bool>,
    from: RefCell<Option<Address>>,
    /// Bytes that came.
    received: Cell<u64>,
    /// The certificate that is shown to servers.
    identity: RefCell<Option<Arc<Identity>>>,
    /// The sessions of TLS with its server.
    sessions: RefCell<Option<Sessions>>,
    settings: Sockets,
    /// The request that connected it.
    owner: RefCell<Option<Weak<()>>>,
    /// It was closed because that one has ended.
    left: Cell<bool>,
}

fn tcp(stack: &Stack) -> Called {
    waits()?;
    let socket = Tcp::new(&settings()?);
    object::push(stack, &SOCKET, Rc::new(socket));
    super::ONE
}

/// A socket is of no use to a script that cannot wait.
pub(super) fn waits() -> Result<(), Failure> {
    scope::with(|scope| match scope.kind.waits() {
        true => Ok(()),
        false => fail(format!(
            "API disabled in the context of {}*",
            scope.kind.name()
        )),
    })?
}

/// The settings of sockets that hold for the script that runs.
pub(super) fn settings() -> Result<Sockets, Failure> {
    if let Ok(known) = scope::with_request(|request| request.conf::<Sockets>().clone()) {
        return Ok(known);
    }
    if let Ok(known) = scope::with_session(|session| session.conf::<Sockets>().clone()) {
        return Ok(known);
    }
    scope::with(|scope| scope.vm.home.sockets())
}

fn this(stack: &Stack) -> Result<Rc<Tcp>, Failure> {
    if stack.kind(1) == Kind::Table {
        let empty = stack.element(1, 1) == Kind::Nil;
        stack.pop(1);
        if empty {
            // A library's own table with the methods of a socket behind it becomes one when it is used as one.
            let socket = Rc::new(Tcp::new(&settings()?));
            object::push_userdata(stack, &SOCKET, socket.clone());
            stack.set_element(1, 1);
            return Ok(socket);
        }
    }
    object::get(stack, 1, "tcp socket")
}

impl Tcp {
    fn new(settings: &Sockets) -> Tcp {
        Tcp {
            wire: RefCell::default(),
            input: RefCell::default(),
            read_closed: Cell::new(false),
            write_closed: Cell::new(false),
            connect_timeout: Cell::new(settings.connect_timeout),
            send_timeout: Cell::new(settings.send_timeout),
            read_timeout: Cell::new(settings.read_timeout),
            reused: Cell::new(0),
            pool: RefCell::default(),
            slot: RefCell::default(),
            was_used: Cell::new(false),
            connecting: Cell::new(false),
            reading: Cell::new(false),
            writing: Cell::new(false),
            from: RefCell::default(),
            received: Cell::new(0),
            identity: RefCell::default(),
            sessions: RefCell::default(),
            settings: settings.clone(),
            owner: RefCell::default(),
            left: Cell::new(false),
        }
    }

    /// The client's side of what the script works for.
    pub(super) fn of_client(settings: &Sockets, wire: Wire, input: Vec<u8>) -> Tcp {
        let socket = Tcp::new(settings);
        socket.was_used.set(true);
        *socket.wire.borrow_mut() = Some(wire);
        *socket.input.borrow_mut() = input;
        socket
    }

    /// Lets go of the client's connection: what was read of it and nobody has taken, and how much was read in all.
    pub(crate) fn detach(&self) -> (Option<Wire>, Vec<u8>, u64) {
        let wire = self.wire.take();
        (wire, self.input.take(), self.received.take())
    }

    /// The connection, while something can be done with it.
    fn open(&self) -> Result<Wire, &'static str> {
        if self.connecting.get() {
            return Err("socket busy connecting");
        }
        if self.read_closed.get() && self.write_closed.get() {
            return Err("closed");
        }
        self.wire.borrow().clone().ok_or("closed")
    }

    fn to_read(&self) -> Result<Wire, &'static str> {
        if self.connecting.get() {
            return Err("socket busy connecting");
        }
        if self.read_closed.get() {
            return Err("closed");
        }
        self.wire.borrow().clone().ok_or("closed")
    }

    fn to_write(&self) -> Result<Wire, &'static str> {
        if self.connecting.get() {
            return Err("socket busy connecting");
        }
        if self.write_closed.get() {
            return Err("closed");
        }
        self.wire.borrow().clone().ok_or("closed")
    }

    /// Why nothing can be begun now: something else is at work.
    fn busy(&self, read: bool, write: bool) -> Result<(), &'static str> {
        if self.connecting.get() {
            return Err("socket busy connecting");
        }
        if read && self.reading.get() {
            return Err("socket busy reading");
        }
        if write && self.writing.get() {
            return Err("socket busy writing");
        }
        Ok(())
    }

    /// A connection that was made for one request is not another one's to use.
    fn check_owner(&self) -> Result<(), Failure> {
        let Some(owner) = self.owner.borrow().as_ref().and_then(Weak::upgrade) else {
            return Ok(());
        };
        let same = of_guest(|connected| Rc::ptr_eq(&connected.owner, &owner))?;
        if same { Ok(()) } else { fail("bad request") }
    }

    /// The socket of a subrequest that has ended is closed to other requests too: not even to be told that it is closed, which with nginx it is
    /// at the end of the client's request.
    fn check_left(&self) -> Result<(), Failure> {
        match self.left.get() {
            true => self.check_owner(),
            false => Ok(()),
        }
    }

    fn drop_connection(&self) {
        let wire = self.wire.take();
        self.input.borrow_mut().clear();
        self.read_closed.set(false);
        self.write_closed.set(false);
        self.sessions.take();
        drop(wire);
        // Only now may another one take its place.
        drop(self.slot.take());
    }
}

/// An error in the words of scripts.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionAborted => "client aborted".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::BrokenPipe => "broken pipe".to_owned(),
        io::ErrorKind::TimedOut => "timeout".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => {
            let text = error.to_string();
            match text.split_once(" (os error") {
                Some((text, _)) => text.to_lowercase(),
                None => text.to_lowercase(),
            }
        }
    }
}

/// Marks a socket as busy until an operation is over. One that is ended, perhaps before it has begun, because its light
/// thread was, takes the connection along: nobody could tell how far it came.
struct Busy {
    socket: Rc<Tcp>,
    mark: fn(&Tcp) -> &Cell<bool>,
    over: bool,
}

impl Busy {
    fn new(socket: &Rc<Tcp>, mark: fn(&Tcp) -> &Cell<bool>) -> Busy {
        mark(socket).set(true);
        Busy {
            socket: Rc::clone(socket),
            mark,
            over: false,
        }
    }

    fn over(mut self) {
        self.over = true;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        (self.mark)(&self.socket).set(false);
        let is_client = |wire: &Wire| !wire.is_own();
        if !self.over && !self.socket.wire.borrow().as_ref().is_some_and(is_client) {
            self.socket.drop_connection();
        }
    }
}

/// The sockets that a request, or a script without one, has connected. They are closed with it, whatever still holds
/// them: garbage is collected when there is much of it, and a descriptor is little.
#[derive(Default)]
pub(crate) struct Connected {
    sockets: Vec<Weak<Tcp>>,
    /// Tells it from all others.
    owner: Rc<()>,
}

impl Connected {
    fn add(&mut self, socket: &Rc<Tcp>) {
        *socket.owner.borrow_mut() = Some(Rc::downgrade(&self.owner));
        socket.left.set(false);
        let sockets = &mut self.sockets;
        if sockets.len() == sockets.capacity() {
            sockets.retain(|socket| socket.strong_count() > 0);
        }
        if !sockets
            .iter()
            .any(|known| known.as_ptr() == Rc::as_ptr(socket))
        {
            sockets.push(Rc::downgrade(socket));
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        for socket in self.sockets.iter().filter_map(Weak::upgrade) {
            if socket.wire.borrow().as_ref().is_some_and(Wire::is_own) {
                socket.left.set(true);
                socket.drop_connection();
            }
        }
    }
}

/// What tells the request, the session or the script that runs from all others.
pub(super) fn owner() -> Result<Rc<()>, Failure> {
    let owner = of_guest(|connected| Rc::clone(&connected.owner))?;
    remember(&owner);
    Ok(owner)
}

/// Those whose sockets no other request may use while the client's request lasts, though they may have ended: its subrequests.
type Owners = RefCell<Vec<Rc<()>>>;

/// The list of the client's request, in a subrequest that shares nothing else with it.
struct Lent(Rc<Owners>);

/// How many of them are remembered for a request.
const MAX_OWNERS: usize = 1000;

fn owners(request: &mut Request) -> Rc<Owners> {
    match request.state::<Lent>() {
        Some(Lent(owners)) => Rc::clone(owners),
        None => request.shared(),
    }
}

/// Lets a subrequest that a script makes remember its sockets with the request that it is for.
pub(super) fn lend_owners(parent: &mut Request, request: &mut Request) {
    request.set_state(Lent(owners(parent)));
}

/// Remembers a subrequest that has a socket.
fn remember(owner: &Rc<()>) {
    // Without a request there is nobody to share it with.
    let _ = scope::with_request(|request| {
        if !request.is_subrequest() {
            return;
        }
        let owners = owners(request);
        let mut known = owners.borrow_mut();
        let is_new = !known.iter().any(|one| Rc::ptr_eq(one, owner));
        if is_new && known.len() < MAX_OWNERS {
            known.push(Rc::clone(owner));
        }
    });
}

/// Calls `code` with the sockets of the request, the session or the script that runs.
fn of_guest<T>(code: impl FnOnce(&mut Connected) -> T) -> Result<T, Failure> {
    let mut code = Some(code);
    let of_request = scope::with_request(|request| {
        let code = code.take()?;
        Some(code(request.state_or_default::<Connected>()))
    });
    if let Ok(Some(value)) = of_request {
        return Ok(value);
    }
    scope::with(|scope| {
        code.take()
            .map(|code| code(&mut scope.connected.borrow_mut()))
    })?
    .ok_or_else(|| Failure::from("no request found"))
}

/// Answers with why something cannot be done.
fn refuse(stack: &Stack, why: &str) -> Called {
    answer(stack, Value::failure(why))
}

/// What a function that can fail at once says.
pub(super) fn failed(stack: &Stack, message: impl Into<Vec<u8>>) -> Called {
    answer(stack, Value::failure(message))
}

/// A number of results.
pub(super) const fn results(n: i32) -> Called {
    Ok(Answer::Values(n))
}

/// The script's own connection.
fn own(wire: &Wire) -> Option<&Rc<Transport>> {
    match wire {
        Wire::Own(transport) => Some(transport),
        _ => None,
    }
}
