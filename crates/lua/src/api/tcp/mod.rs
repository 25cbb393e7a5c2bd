//! `ngx.socket.tcp`: TCP cosockets, with pools of idle connections.
//!
//! A cosocket looks blocking to the script and never blocks the loop: each operation that cannot
//! complete at once is a future that the run waits for. Three rules keep one script's mistakes from
//! becoming another client's data:
//!
//! - one operation at a time in each direction ("socket busy");
//! - a connection belongs to the request that opened it ("bad request"), and is closed with it;
//! - an operation that is aborted half-way closes the connection, since its state is unknown.

pub(super) mod connect;
mod options;
mod pools;
mod receive;
mod secure;
mod send;
mod socket;

use std::cell::RefCell;
use std::io;
use std::rc::{Rc, Weak};

use http::Request;
use net::Transport;

pub(crate) use pools::CosocketPools;
pub(super) use receive::ReadPattern;
pub(crate) use socket::{ConnectedSockets, TcpCosocket};

use super::called::answer;
use super::cosocket_transport::CosocketTransport;
use super::{CallResult, NativeTable};
use crate::cosocket_settings::CosocketSettings;
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, NativeReturn, fail};
use crate::scope;

pub(super) const FUNCTIONS: NativeTable = &[("tcp", tcp)];

pub(super) const CORE: NativeTable = &[("tcp_methods", methods)];

/// The table of methods, for `prelude.lua` to add to.
fn methods(stack: &LuaStack) -> CallResult {
    object::push_methods(stack, &SOCKET);
    super::ONE
}

pub(super) static SOCKET: ObjectClass = ObjectClass {
    name: "weir.socket.tcp",
    shape: ObjectShape::Table,
    methods: METHODS,
};

const METHODS: NativeTable = &[
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
    ("getoption", options::get_option),
    ("getfd", options::descriptor),
    ("setkeepalive", send::set_keepalive),
    ("getreusedtimes", send::reused_times),
    ("setclientcert", secure::set_client_certificate),
    ("getsslsession", secure::session),
    ("bind", connect::bind),
    ("shutdown", send::shutdown),
];

/// `ngx.socket.tcp()`.
fn tcp(stack: &LuaStack) -> CallResult {
    need_yield()?;
    let socket = TcpCosocket::new(&settings()?);
    object::push(stack, &SOCKET, Rc::new(socket));
    super::ONE
}

/// Fails in phases that cannot wait: a cosocket would be of no use there.
pub(super) fn need_yield() -> Result<(), LuaError> {
    scope::with(|scope| match scope.kind.may_yield() {
        true => Ok(()),
        false => fail(format!(
            "API disabled in the context of {}*",
            scope.kind.name()
        )),
    })?
}

/// The cosocket settings of the location or server that the script runs for.
pub(super) fn settings() -> Result<CosocketSettings, LuaError> {
    if let Ok(known) = scope::with_request(|request| request.conf::<CosocketSettings>().clone()) {
        return Ok(known);
    }
    if let Ok(known) = scope::with_session(|session| session.conf::<CosocketSettings>().clone()) {
        return Ok(known);
    }
    scope::with(|scope| scope.vm.configuration.socket_settings())
}

/// The socket in the first argument.
fn this_socket(stack: &LuaStack) -> Result<Rc<TcpCosocket>, LuaError> {
    if stack.type_at(1) == LuaType::Table {
        let empty = stack.element(1, 1) == LuaType::Nil;
        stack.pop(1);
        if empty {
            // Libraries build a table of their own with a socket's methods behind it. It becomes a
            // socket when it is first used as one.
            let socket = Rc::new(TcpCosocket::new(&settings()?));
            object::push_userdata(stack, &SOCKET, socket.clone());
            stack.set_element(1, 1);
            return Ok(socket);
        }
    }
    object::get(stack, 1, "tcp socket")
}

/// An I/O error in the words that scripts know: lower case, as nginx prints `strerror`.
pub(super) fn error_text(error: &io::Error) -> String {
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

impl TcpCosocket {
    /// Fails if the connection was opened by another request.
    pub(super) fn check_owner(&self) -> Result<(), LuaError> {
        let Some(owner) = self.owner.borrow().as_ref().and_then(Weak::upgrade) else {
            return Ok(());
        };
        let same = with_connected(|connected| Rc::ptr_eq(&connected.owner, &owner))?;
        if same { Ok(()) } else { fail("bad request") }
    }

    /// A subrequest's sockets are closed when it ends, although its parent goes on and scripts may
    /// still hold them. Another request must not even learn that: it gets the error of a foreign
    /// socket, as with nginx, where such a socket lives until the client's request ends.
    pub(super) fn check_closed_with_owner(&self) -> Result<(), LuaError> {
        match self.closed_with_owner.get() {
            true => self.check_owner(),
            false => Ok(()),
        }
    }
}

/// What identifies the running request, session or script.
pub(super) fn owner() -> Result<Rc<()>, LuaError> {
    let owner = with_connected(|connected| Rc::clone(&connected.owner))?;
    remember_owner(&owner);
    Ok(owner)
}

/// The subrequests that have opened sockets, kept until the client's request ends: while they are
/// known, their sockets cannot be mistaken for ownerless ones.
type SocketOwners = RefCell<Vec<Rc<()>>>;

/// Request state of a subrequest: the list of the client's request.
struct LentOwners(Rc<SocketOwners>);

/// How many of them are kept for one request.
const MAX_OWNERS: usize = 1000;

/// The list of the client's request.
fn owners(request: &mut Request) -> Rc<SocketOwners> {
    match request.state::<LentOwners>() {
        Some(LentOwners(owners)) => Rc::clone(owners),
        None => request.shared(),
    }
}

/// Shares the list with a subrequest that a script creates.
pub(super) fn lend_owners(parent: &mut Request, request: &mut Request) {
    request.set_state(LentOwners(owners(parent)));
}

/// Notes that a subrequest has a socket.
fn remember_owner(owner: &Rc<()>) {
    // Without a request there are no subrequests.
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

/// Calls `code` with the sockets of the running request, session or script.
fn with_connected<T>(code: impl FnOnce(&mut ConnectedSockets) -> T) -> Result<T, LuaError> {
    let mut code = Some(code);
    let of_request = scope::with_request(|request| {
        let code = code.take()?;
        Some(code(request.state_or_default::<ConnectedSockets>()))
    });
    if let Ok(Some(value)) = of_request {
        return Ok(value);
    }
    scope::with(|scope| {
        code.take()
            .map(|code| code(&mut scope.connected_sockets.borrow_mut()))
    })?
    .ok_or_else(|| LuaError::from("no request found"))
}

/// Returns nil and the reason.
fn refuse(stack: &LuaStack, why: &str) -> CallResult {
    answer(stack, LuaValue::failure(why))
}

/// Returns nil and a message.
pub(super) fn failed(stack: &LuaStack, message: impl Into<Vec<u8>>) -> CallResult {
    answer(stack, LuaValue::failure(message))
}

/// This many results.
pub(super) const fn results(n: i32) -> CallResult {
    Ok(NativeReturn::Values(n))
}

/// The connection, if the script has opened it.
fn own_transport(wire: &CosocketTransport) -> Option<&Rc<Transport>> {
    match wire {
        CosocketTransport::Own(transport) => Some(transport),
        _ => None,
    }
}
