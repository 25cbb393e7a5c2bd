//! `ngx.socket.tcp`: sockets for scripts, with pools of idle connections.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bstr::ByteSlice;
use http::core::ResolverConf;
use net::Transport;
use net::resolver::Resolver;
use net::tls::{self, ClientName, ClientOptions};
use rt::net::{Address, Stream, UnixPath};

use super::arguments::{bytes, number, optional_number, optional_text, text};
use super::output::{answer, append};
use super::wire::Wire;
use super::{Called, Functions, wait};
use crate::chunk::Kind as Script;
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Stack, Value, fail};
use crate::operation::{Operation, Reply};
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
    ("connect", connect),
    ("sslhandshake", handshake),
    ("send", send),
    ("receive", receive),
    ("receiveany", receive_any),
    ("receiveuntil", receive_until),
    ("peek", peek),
    ("close", close),
    ("settimeout", set_timeout),
    ("settimeouts", set_timeouts),
    ("setoption", set_option),
    ("setkeepalive", set_keepalive),
    ("getreusedtimes", reused_times),
    ("setclientcert", set_client_certificate),
    ("bind", bind),
    ("shutdown", shutdown),
];

/// A socket of a script.
pub(crate) struct Tcp {
    wire: RefCell<Option<Wire>>,
    /// What came and nobody has taken.
    input: RefCell<Vec<u8>>,
    connect_timeout: Cell<Duration>,
    send_timeout: Cell<Duration>,
    read_timeout: Cell<Duration>,
    reused: Cell<u32>,
    pool: RefCell<Option<String>>,
    pool_size: Cell<usize>,
    reading: Cell<bool>,
    writing: Cell<bool>,
    from: RefCell<Option<Address>>,
    /// Bytes that came.
    received: Cell<u64>,
    defaults: Defaults,
}

#[derive(Clone, Copy)]
struct Defaults {
    keepalive: Duration,
    pool_size: usize,
}

/// What a socket holds unread, in bytes.
const MAX_INPUT: usize = 64 << 20;

/// What one read takes at most, in bytes.
const READ_SIZE: usize = 64 * 1024;

fn tcp(stack: &Stack) -> Called {
    let socket = Tcp::new(&settings()?);
    object::push(stack, &SOCKET, Rc::new(socket));
    super::ONE
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
            connect_timeout: Cell::new(settings.connect_timeout),
            send_timeout: Cell::new(settings.send_timeout),
            read_timeout: Cell::new(settings.read_timeout),
            reused: Cell::new(0),
            pool: RefCell::default(),
            pool_size: Cell::new(0),
            reading: Cell::new(false),
            writing: Cell::new(false),
            from: RefCell::default(),
            received: Cell::new(0),
            defaults: Defaults {
                keepalive: settings.keepalive_timeout,
                pool_size: usize::try_from(settings.pool_size).unwrap_or(0),
            },
        }
    }

    /// The client's side of what the script works for.
    pub(super) fn of_client(settings: &Sockets, wire: Wire, input: Vec<u8>) -> Tcp {
        let socket = Tcp::new(settings);
        *socket.wire.borrow_mut() = Some(wire);
        *socket.input.borrow_mut() = input;
        socket
    }

    /// Lets go of the client's connection: what was read of it and nobody has taken, and how much was read in all.
    pub(crate) fn detach(&self) -> (Option<Wire>, Vec<u8>, u64) {
        let wire = self.wire.take();
        (wire, self.input.take(), self.received.take())
    }

    fn open(&self) -> Result<Wire, &'static str> {
        self.wire.borrow().clone().ok_or("closed")
    }

    /// The connection, where the script has made it: the client's is not to be closed, kept or secured by a script.
    fn own(&self) -> Result<Rc<Transport>, &'static str> {
        match self.open()? {
            Wire::Own(transport) => Ok(transport),
            _ => Err("not supported on the client's connection"),
        }
    }

    fn drop_connection(&self) {
        *self.wire.borrow_mut() = None;
        self.input.borrow_mut().clear();
    }
}

/// An error in the words of scripts.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
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

// -- connecting --

fn connect(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let host = text(stack, 2)?;
    let unix = host.strip_prefix(b"unix:");
    let (port, options) = match unix {
        Some(_) => (0, 3),
        None => (number(stack, 3)?, 4).into_port()?,
    };
    if host.is_empty() {
        return answer(stack, Value::failure("empty host"));
    }
    let mut key = match unix {
        Some(_) => host.to_str_lossy().into_owned(),
        None => format!("{}:{port}", host.as_bstr()),
    };
    if socket.open().is_ok_and(|wire| !wire.is_own()) {
        return answer(
            stack,
            Value::failure("not supported on the client's connection"),
        );
    }
    socket.pool_size.set(0);
    if stack.kind(options) == Kind::Table {
        if stack.field(options, "pool") == Kind::String {
            key = stack
                .bytes(-1)
                .unwrap_or_default()
                .to_str_lossy()
                .into_owned();
        }
        stack.pop(1);
        stack.field(options, "pool_size");
        socket
            .pool_size
            .set(stack.number(-1).unwrap_or(0.0) as usize);
        stack.pop(1);
    }
    socket.drop_connection();
    remember(&socket)?;
    *socket.pool.borrow_mut() = Some(key.clone());
    let pools = scope::with(|scope| Rc::clone(&scope.vm.pools))?;
    if let Some((transport, reused)) = pools.take(&key) {
        socket.reused.set(reused);
        *socket.wire.borrow_mut() = Some(Wire::Own(transport));
        stack.push_number(1.0);
        return super::ONE;
    }
    socket.reused.set(0);
    let destination = match destination(&host, port)? {
        Ok(destination) => destination,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    wait(Operation::task(async move {
        match open(&socket, destination).await {
            Ok(()) => vec![Value::Number(1.0)],
            Err(message) => Value::failure(message),
        }
    }))
}

trait IntoPort {
    fn into_port(self) -> Result<(u16, i32), Failure>;
}

impl IntoPort for (f64, i32) {
    fn into_port(self) -> Result<(u16, i32), Failure> {
        match self.0 {
            port if (0.0..=65535.0).contains(&port) => Ok((port as u16, self.1)),
            port => fail(format!("bad port number: {port}")),
        }
    }
}

/// Where a connection goes.
pub(super) enum Destination {
    Address(Address),
    Name {
        name: Vec<u8>,
        port: u16,
        resolver: Arc<Resolver>,
        timeout: Duration,
    },
}

/// Where a host and port are; a message when nobody can tell.
pub(super) fn destination(host: &[u8], port: u16) -> Result<Result<Destination, String>, Failure> {
    if let Some(path) = host.strip_prefix(b"unix:") {
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        return Ok(Ok(Destination::Address(Address::Unix(UnixPath::new(path)))));
    }
    let text = host.to_str_lossy();
    let literal = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = literal.parse::<IpAddr>() {
        return Ok(Ok(Destination::Address(Address::from(SocketAddr::new(
            ip, port,
        )))));
    }
    Ok(match resolver()? {
        Some((resolver, timeout)) if !resolver.is_empty() => Ok(Destination::Name {
            name: host.to_vec(),
            port,
            resolver,
            timeout,
        }),
        _ => Err(format!("no resolver defined to resolve \"{text}\"")),
    })
}

/// Who resolves names for the script that runs, and how long that may take.
fn resolver() -> Result<Option<(Arc<Resolver>, Duration)>, Failure> {
    let of_request = scope::with_request(|request| {
        let conf = request.conf::<ResolverConf>();
        (Arc::clone(&conf.resolver), conf.timeout)
    });
    if let Ok(known) = of_request {
        return Ok(Some(known));
    }
    let of_session = scope::with_session(|session| {
        let core = &session.server().core;
        (Arc::clone(&core.resolver), core.resolver_timeout)
    });
    if let Ok(known) = of_session {
        return Ok(Some(known));
    }
    scope::with(|scope| scope.vm.home.resolver())
}

impl Destination {
    pub(super) async fn resolve(self) -> Result<Address, String> {
        match self {
            Destination::Address(address) => Ok(address),
            Destination::Name {
                name,
                port,
                resolver,
                timeout,
            } => {
                let found = resolver
                    .lookup_host(&name, timeout)
                    .await
                    .map_err(|error| format!("{} could not be resolved {error}", name.as_bstr()))?;
                let ip = found
                    .first()
                    .ok_or_else(|| format!("{} could not be resolved", name.as_bstr()))?;
                Ok(Address::from(SocketAddr::new(*ip, port)))
            }
        }
    }
}

async fn open(socket: &Tcp, destination: Destination) -> Result<(), String> {
    let address = destination.resolve().await?;
    let options = net::ConnectOptions {
        from: socket.from.borrow().clone(),
        timeout: socket.connect_timeout.get(),
        ..net::ConnectOptions::default()
    };
    let stream: Stream = net::connect(&address, &options)
        .await
        .map_err(|error| words(&error))?;
    *socket.wire.borrow_mut() = Some(Wire::Own(Rc::new(Transport::plain(stream))));
    Ok(())
}

fn bind(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let address = text(stack, 2)?;
    let Ok(ip) = address.to_str_lossy().parse::<IpAddr>() else {
        return answer(stack, Value::failure("bad address"));
    };
    *socket.from.borrow_mut() = Some(Address::from(SocketAddr::new(ip, 0)));
    stack.push_number(1.0);
    super::ONE
}

// -- TLS --

fn handshake(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let name = optional_text(stack, 3)?;
    let verify = stack.boolean(4);
    let wants_session = stack.kind(2) != Kind::Boolean || stack.boolean(2);
    let transport = match socket.own() {
        Ok(transport) => transport,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    if transport.is_tls() {
        stack.push_boolean(true);
        return super::ONE;
    }
    let trust = scope::with(|scope| scope.vm.settings.trust.clone())?;
    let settings = ClientOptions {
        server_name: name.is_some(),
        trust: if verify { trust.clone() } else { None },
        ..ClientOptions::default()
    };
    let settings = match settings.build() {
        Ok(settings) => settings,
        Err(problem) => return answer(stack, Value::failure(problem.to_string())),
    };
    if verify && trust.is_none() {
        return answer(
            stack,
            Value::failure("no lua_ssl_trusted_certificate defined to verify the peer with"),
        );
    }
    let name = name.map(|name| name.to_str_lossy().into_owned());
    drop(transport);
    wait(Operation::task(async move {
        match secure(&socket, &settings, name.as_deref(), verify).await {
            Ok(()) if wants_session => vec![Value::Boolean(true)],
            Ok(()) => vec![Value::Boolean(true)],
            Err(message) => {
                socket.drop_connection();
                Value::failure(message)
            }
        }
    }))
}

async fn secure(
    socket: &Tcp,
    settings: &tls::ClientSettings,
    name: Option<&str>,
    verify: bool,
) -> Result<(), String> {
    let Some(Wire::Own(transport)) = socket.wire.take() else {
        return Err("closed".to_owned());
    };
    let mut transport = Rc::try_unwrap(transport).map_err(|_| "socket busy".to_owned())?;
    let client = ClientName {
        name: name.unwrap_or_default(),
        identity: None,
    };
    let session = rt::timeout(
        socket.connect_timeout.get(),
        tls::connect(transport.socket(), settings, client),
    )
    .await
    .map_err(|_| "timeout".to_owned())?
    .map_err(|error| format!("handshake failed: {error}"))?;
    if verify {
        if let Some(error) = session.verify_error() {
            return Err(error);
        }
        if name.is_some_and(|name| !session.is_for(name)) {
            return Err("certificate host mismatch".to_owned());
        }
    }
    transport.secure(session);
    *socket.wire.borrow_mut() = Some(Wire::Own(Rc::new(transport)));
    Ok(())
}

fn set_client_certificate(stack: &Stack) -> Called {
    if stack.is_nil(2) {
        stack.push_boolean(true);
        return super::ONE;
    }
    answer(
        stack,
        Value::failure("certificates for single sockets are not supported"),
    )
}

// -- sending --

fn send(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let mut data = Vec::new();
    append(stack, 2, &mut data, 0)?;
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    if wire.transport().is_none() {
        return answer(stack, Value::failure("content can not be sent to"));
    }
    if socket.writing.get() {
        return answer(stack, Value::failure("socket busy writing"));
    }
    let length = data.len();
    if let Wire::Session(_) = wire {
        // What was said before goes first.
        let mut said = scope::with(|scope| scope.output.take())?;
        said.append(&mut data);
        data = said;
    }
    // Mostly the kernel takes it at once.
    let sent = wire.try_send(&data);
    if sent == data.len() {
        stack.push_number(length as f64);
        return super::ONE;
    }
    data.drain(..sent);
    let busy = Busy::new(&socket, |socket| &socket.writing);
    wait(Operation::task(async move {
        let sent = rt::timeout(socket.send_timeout.get(), wire.send(&data)).await;
        busy.over();
        match sent {
            Ok(Ok(())) => vec![Value::Number(length as f64)],
            Ok(Err(error)) => {
                socket.drop_connection();
                Value::failure(words(&error))
            }
            Err(_) => Value::failure("timeout"),
        }
    }))
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
        if !self.over && self.socket.own().is_ok() {
            self.socket.drop_connection();
        }
    }
}

/// The sockets that a request, or a script without one, has connected. They are closed with it, whatever still holds
/// them: garbage is collected when there is much of it, and a descriptor is little.
#[derive(Default)]
pub(crate) struct Connected(Vec<Weak<Tcp>>);

impl Connected {
    fn add(&mut self, socket: &Rc<Tcp>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|socket| socket.strong_count() > 0);
        }
        if !self
            .0
            .iter()
            .any(|known| known.as_ptr() == Rc::as_ptr(socket))
        {
            self.0.push(Rc::downgrade(socket));
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        for socket in self.0.iter().filter_map(Weak::upgrade) {
            if socket.own().is_ok() {
                socket.drop_connection();
            }
        }
    }
}

/// Has the socket closed with the request, the session or the script that connects it.
fn remember(socket: &Rc<Tcp>) -> Result<(), Failure> {
    let of_request = scope::with_request(|request| {
        request.state_or_default::<Connected>().add(socket);
    });
    if of_request.is_ok() {
        return Ok(());
    }
    scope::with(|scope| scope.connected.borrow_mut().add(socket))
}

// -- receiving --

/// What is waited for.
#[derive(Clone)]
enum Wanted {
    Line,
    All,
    Exactly(usize),
    Any(usize),
    /// So many bytes, which stay.
    Peek(usize),
    Until {
        mark: Vec<u8>,
        inclusive: bool,
        /// At most so much at a time, before the mark.
        most: Option<usize>,
        state: Rc<UntilState>,
    },
}

#[derive(Default)]
struct UntilState {
    /// The mark was reached: the next call says so.
    reached: Cell<bool>,
}

impl Wanted {
    /// Takes what is wanted out of the input, if it is there.
    fn take(&self, input: &mut Vec<u8>) -> Option<Reply> {
        match self {
            Wanted::Line => {
                let end = input.find_byte(b'\n')?;
                let mut line: Vec<u8> = input.drain(..=end).collect();
                line.pop();
                // As the library does: every carriage return goes.
                line.retain(|byte| *byte != b'\r');
                Some(vec![Value::Bytes(line)])
            }
            Wanted::All => None,
            Wanted::Exactly(n) => {
                (input.len() >= *n).then(|| vec![Value::Bytes(input.drain(..*n).collect())])
            }
            Wanted::Peek(n) => (input.len() >= *n).then(|| vec![Value::text(&input[..*n])]),
            Wanted::Any(most) => {
                let n = input.len().min(*most);
                (n > 0).then(|| vec![Value::Bytes(input.drain(..n).collect())])
            }
            Wanted::Until {
                mark,
                inclusive,
                most,
                state,
            } => until(input, mark, *inclusive, *most, state),
        }
    }

    /// What the end of the connection means.
    fn at_end(&self, input: &mut Vec<u8>) -> Reply {
        if let Wanted::Peek(_) = self {
            return Value::failure("closed");
        }
        let rest = std::mem::take(input);
        match self {
            Wanted::All => vec![Value::Bytes(rest)],
            _ => vec![Value::Nil, Value::text("closed"), Value::Bytes(rest)],
        }
    }
}

fn until(
    input: &mut Vec<u8>,
    mark: &[u8],
    inclusive: bool,
    most: Option<usize>,
    state: &UntilState,
) -> Option<Reply> {
    if state.reached.take() {
        return Some(vec![Value::Nil, Value::Nil, Value::Nil]);
    }
    if let Some(at) = input.find(mark)
        && most.is_none_or(|most| at <= most)
    {
        let mut data: Vec<u8> = input.drain(..at + mark.len()).collect();
        if !inclusive {
            data.truncate(at);
        }
        state.reached.set(most.is_some());
        return Some(vec![Value::Bytes(data)]);
    }
    // Without the mark, what can not be a part of it may go.
    let most = most?;
    let sure = input.len().saturating_sub(mark.len() - 1);
    (sure >= most).then(|| vec![Value::Bytes(input.drain(..most).collect())])
}

fn receive(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let wanted = match stack.kind(2) {
        Kind::Nil | Kind::None => Wanted::Line,
        Kind::Number => {
            let n = number(stack, 2)?;
            if n < 0.0 {
                return fail("bad number argument");
            }
            Wanted::Exactly(n as usize)
        }
        _ => match bytes(stack, 2)? {
            b"*l" => Wanted::Line,
            b"*a" => Wanted::All,
            other => match other.to_str().ok().and_then(|text| text.parse().ok()) {
                Some(n) => Wanted::Exactly(n),
                None => return fail(format!("bad pattern argument: {}", other.as_bstr())),
            },
        },
    };
    if matches!(wanted, Wanted::Exactly(0)) {
        stack.push_bytes("");
        return super::ONE;
    }
    take(stack, socket, wanted)
}

fn receive_any(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let most = number(stack, 2)?;
    if most < 1.0 {
        return fail("bad max argument");
    }
    take(stack, socket, Wanted::Any(most as usize))
}

/// Looks at the first bytes of a client of stream, and leaves them for whoever reads next.
fn peek(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let n = number(stack, 2)?;
    if n < 1.0 {
        return fail("bad number argument");
    }
    if scope::with(|scope| scope.kind != Script::Preread)? {
        return fail("API disabled in the current context: only preread_by_lua* may peek");
    }
    take(stack, socket, Wanted::Peek(n as usize))
}

fn take(stack: &Stack, socket: Rc<Tcp>, wanted: Wanted) -> Called {
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    if socket.reading.get() {
        return answer(stack, Value::failure("socket busy reading"));
    }
    if let Some(reply) = wanted.take(&mut socket.input.borrow_mut()) {
        return answer(stack, reply);
    }
    let busy = Busy::new(&socket, |socket| &socket.reading);
    wait(Operation::task(async move {
        let filled = rt::timeout(socket.read_timeout.get(), fill(&socket, &wire, &wanted)).await;
        busy.over();
        match filled {
            Ok(reply) => reply,
            Err(_) if matches!(wanted, Wanted::Peek(_)) => Value::failure("timeout"),
            Err(_) => {
                let partial = std::mem::take(&mut *socket.input.borrow_mut());
                vec![Value::Nil, Value::text("timeout"), Value::Bytes(partial)]
            }
        }
    }))
}

/// Reads until what is wanted is there.
async fn fill(socket: &Tcp, wire: &Wire, wanted: &Wanted) -> Reply {
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let read = wire.read(&mut buffer, READ_SIZE).await;
        let mut input = socket.input.borrow_mut();
        match read {
            Ok(0) => {
                let reply = wanted.at_end(&mut input);
                drop(input);
                // What was read to its end may still be written to; the client's connection is let go of in the end.
                if !matches!(wanted, Wanted::All) && wire.is_own() {
                    *socket.wire.borrow_mut() = None;
                }
                return reply;
            }
            Ok(n) => {
                socket.received.set(socket.received.get() + n as u64);
                input.extend_from_slice(&buffer);
                if let Some(reply) = wanted.take(&mut input) {
                    return reply;
                }
                if input.len() > MAX_INPUT {
                    let partial = std::mem::take(&mut *input);
                    return vec![
                        Value::Nil,
                        Value::text("too much data"),
                        Value::Bytes(partial),
                    ];
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let partial = std::mem::take(&mut *input);
                drop(input);
                if wire.is_own() {
                    *socket.wire.borrow_mut() = None;
                }
                return vec![
                    Value::Nil,
                    Value::text(words(&error)),
                    Value::Bytes(partial),
                ];
            }
        }
    }
}

/// A mark to read up to.
struct Until {
    socket: Rc<Tcp>,
    mark: Vec<u8>,
    inclusive: bool,
    state: Rc<UntilState>,
}

static UNTIL: Class = Class {
    name: "weir.socket.until",
    shape: Shape::Userdata,
    methods: &[("read", read_until)],
};

fn receive_until(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let mark = text(stack, 2)?;
    if mark.is_empty() {
        return answer(stack, Value::failure("pattern is empty"));
    }
    let mut inclusive = false;
    if stack.kind(3) == Kind::Table {
        stack.field(3, "inclusive");
        inclusive = stack.boolean(-1);
        stack.pop(1);
    }
    let until = Until {
        socket,
        mark,
        inclusive,
        state: Rc::default(),
    };
    object::push(stack, &UNTIL, Rc::new(until));
    super::ONE
}

fn read_until(stack: &Stack) -> Called {
    let until: Rc<Until> = object::get(stack, 1, "reader")?;
    let most = optional_number(stack, 2)?.map(|n| n as usize);
    let wanted = Wanted::Until {
        mark: until.mark.clone(),
        inclusive: until.inclusive,
        most,
        state: Rc::clone(&until.state),
    };
    take(stack, Rc::clone(&until.socket), wanted)
}

// -- the end of a connection --

fn close(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let transport = match socket.own() {
        Ok(transport) => transport,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    if socket.reading.get() || socket.writing.get() {
        return answer(stack, Value::failure("socket busy"));
    }
    transport.say_goodbye();
    socket.drop_connection();
    stack.push_number(1.0);
    super::ONE
}

fn shutdown(stack: &Stack) -> Called {
    let socket = this(stack)?;
    match socket.open() {
        Ok(wire) => match wire.transport().map(Transport::shutdown_write) {
            Some(Ok(())) => stack.push_number(1.0),
            Some(Err(error)) => return answer(stack, Value::failure(words(&error))),
            None => return answer(stack, Value::failure("closed")),
        },
        Err(message) => return answer(stack, Value::failure(message)),
    }
    super::ONE
}

fn set_keepalive(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let timeout = optional_number(stack, 2)?;
    let size = optional_number(stack, 3)?.map(|n| n as usize);
    if let Err(message) = socket.own() {
        return answer(stack, Value::failure(message));
    }
    if socket.reading.get() || socket.writing.get() {
        return answer(stack, Value::failure("socket busy"));
    }
    if !socket.input.borrow().is_empty() {
        return answer(stack, Value::failure("unread data in buffer"));
    }
    let key = socket.pool.borrow().clone().unwrap_or_default();
    let Some(Wire::Own(transport)) = socket.wire.take() else {
        return answer(stack, Value::failure("closed"));
    };
    if !transport.is_quiet() {
        return answer(stack, Value::failure("connection in dubious state"));
    }
    let timeout = match timeout {
        None => socket.defaults.keepalive,
        Some(0.0) => Duration::MAX,
        Some(millis) => Duration::from_secs_f64((millis / 1000.0).max(0.0)),
    };
    let size = size
        .or((socket.pool_size.get() > 0).then(|| socket.pool_size.get()))
        .unwrap_or(socket.defaults.pool_size);
    let pools = scope::with(|scope| Rc::clone(&scope.vm.pools))?;
    pools.keep(key, transport, socket.reused.get() + 1, timeout, size);
    stack.push_number(1.0);
    super::ONE
}

fn reused_times(stack: &Stack) -> Called {
    let socket = this(stack)?;
    match socket.open() {
        Ok(_) => stack.push_number(f64::from(socket.reused.get())),
        Err(message) => return answer(stack, Value::failure(message)),
    }
    super::ONE
}

// -- settings --

/// A time that a script gives in milliseconds.
fn millis(time: f64) -> Duration {
    Duration::try_from_secs_f64(time / 1000.0)
        .ok()
        .filter(|time| !time.is_zero())
        .unwrap_or(Duration::from_secs(60))
}

fn set_timeout(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let Some(time) = optional_number(stack, 2)? else {
        return super::NONE;
    };
    let time = millis(time);
    socket.connect_timeout.set(time);
    socket.send_timeout.set(time);
    socket.read_timeout.set(time);
    super::NONE
}

fn set_timeouts(stack: &Stack) -> Called {
    let socket = this(stack)?;
    for (at, place) in [
        (2, &socket.connect_timeout),
        (3, &socket.send_timeout),
        (4, &socket.read_timeout),
    ] {
        if let Some(time) = optional_number(stack, at)? {
            place.set(millis(time));
        }
    }
    super::NONE
}

fn set_option(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let on = stack.kind(3) == Kind::None || stack.number(3).map_or(stack.boolean(3), |n| n != 0.0);
    let wire = match socket.open() {
        Ok(wire) => wire,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let Some(transport) = wire.transport() else {
        return answer(stack, Value::failure("closed"));
    };
    let set = match bytes(stack, 2)? {
        b"keepalive" => transport.socket().set_keepalive(on),
        b"tcp-nodelay" => transport.socket().set_nodelay(on),
        b"reuseaddr" | b"sndbuf" | b"rcvbuf" => Ok(()),
        other => {
            return answer(
                stack,
                Value::failure(format!("unsupported option: {}", other.as_bstr())),
            );
        }
    };
    match set {
        Ok(()) => stack.push_boolean(true),
        Err(error) => return answer(stack, Value::failure(words(&error))),
    }
    super::ONE
}

/// What a function that can fail at once says.
pub(super) fn failed(stack: &Stack, message: impl Into<Vec<u8>>) -> Called {
    answer(stack, Value::failure(message))
}

/// A number of results.
pub(super) const fn results(n: i32) -> Called {
    Ok(Answer::Values(n))
}
