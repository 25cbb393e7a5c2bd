//! `ngx.socket.udp`: cosockets for datagrams, connected ones only. Unlike TCP's they have no pool:
//! without a handshake there is nothing to save.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ::stream::client::SessionTransport;

use bstr::ByteSlice;
use rt::net::{SocketAddress, UdpSocket};

use super::arguments::{number, optional_number, text};
use super::output::append;
use super::tcp::connect::destination;
use super::tcp::failed;
use super::{CallResult, NativeTable, wait};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::{LuaError, LuaStack, LuaValue, fail};
use crate::operation::YieldOperation;

pub(super) const FUNCTIONS: NativeTable = &[("udp", udp)];

static SOCKET: ObjectClass = ObjectClass {
    name: "weir.socket.udp",
    shape: ObjectShape::Table,
    methods: &[
        ("bind", bind),
        ("setpeername", connect),
        ("send", send),
        ("receive", receive),
        ("close", close),
        ("settimeout", set_timeout),
    ],
};

/// Where a socket's datagrams go.
#[derive(Clone)]
enum UdpEndpoint {
    /// A socket that the script has connected.
    Own(Rc<UdpSocket>),
    /// The client of a session of stream.
    Client(Rc<::stream::client::StreamClient>),
}

/// A UDP cosocket.
struct UdpCosocket {
    /// `None` while it is not connected.
    endpoint: RefCell<Option<UdpEndpoint>>,
    /// The local address of `bind`.
    local_address: RefCell<Option<SocketAddress>>,
    /// `settimeout`.
    timeout: Cell<Duration>,
    /// The configuration's timeout, which 0 stands for.
    usual_timeout: Duration,
    /// The request that connected it.
    owner: RefCell<Option<Weak<()>>>,
    /// A coroutine is in `receive`.
    reading: Cell<bool>,
}

impl UdpCosocket {
    fn new(port: Option<UdpEndpoint>) -> Result<UdpCosocket, LuaError> {
        let usual_timeout = super::tcp::settings()?.read_timeout;
        Ok(UdpCosocket {
            endpoint: RefCell::new(port),
            local_address: RefCell::default(),
            timeout: Cell::new(usual_timeout),
            usual_timeout,
            owner: RefCell::default(),
            reading: Cell::new(false),
        })
    }

    /// A socket that one request has connected cannot be used by another: with a module-level
    /// variable a script could mix up two clients' data.
    fn check_owner(&self) -> Result<(), LuaError> {
        let Some(owner) = self.owner.borrow().as_ref().and_then(Weak::upgrade) else {
            return Ok(());
        };
        match Rc::ptr_eq(&super::tcp::owner()?, &owner) {
            true => Ok(()),
            false => fail("bad request"),
        }
    }
}

/// The largest datagram that is received, in bytes.
const MAX_DATAGRAM: usize = 65_535;

impl UdpEndpoint {
    /// Receives a datagram, cut to `most` bytes.
    async fn receive(&self, most: usize) -> std::io::Result<Vec<u8>> {
        match self {
            UdpEndpoint::Own(connected) => {
                let mut buffer = vec![0; most];
                let n = connected.recv(&mut buffer).await?;
                buffer.truncate(n);
                Ok(buffer)
            }
            UdpEndpoint::Client(client) => match &client.transport {
                SessionTransport::Datagrams(flow) => {
                    let mut datagram = poll_fn(|context| flow.poll_receive(context)).await;
                    datagram.truncate(most);
                    Ok(datagram)
                }
                SessionTransport::Stream(_) => Err(std::io::ErrorKind::Unsupported.into()),
            },
        }
    }
}

/// Pushes a socket for the datagrams of a client.
pub(super) fn push_client(
    stack: &LuaStack,
    client: Rc<::stream::client::StreamClient>,
) -> Result<(), LuaError> {
    let socket = UdpCosocket::new(Some(UdpEndpoint::Client(client)))?;
    object::push(stack, &SOCKET, Rc::new(socket));
    Ok(())
}

/// `ngx.socket.udp()`.
fn udp(stack: &LuaStack) -> CallResult {
    super::tcp::need_yield()?;
    let socket = UdpCosocket::new(None)?;
    object::push(stack, &SOCKET, Rc::new(socket));
    super::ONE
}

/// The socket in the first argument.
fn this_socket(stack: &LuaStack) -> Result<Rc<UdpCosocket>, LuaError> {
    object::get(stack, 1, "udp socket")
}

/// `sock:bind(address)`: the address to send from.
fn bind(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    let address = text(stack, 2)?;
    let Ok(ip) = address.to_str_lossy().parse() else {
        return failed(stack, "bad address");
    };
    // Only the address: the kernel chooses the port.
    *socket.local_address.borrow_mut() = Some(SocketAddress::from(SocketAddr::new(ip, 0)));
    stack.push_number(1.0);
    super::ONE
}

/// `sock:setpeername(host, port)`.
fn connect(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    let host = text(stack, 2)?;
    let port = match host.starts_with(b"unix:") {
        true => 0.0,
        false => number(stack, 3)?,
    };
    if !(0.0..=65535.0).contains(&port) {
        return failed(stack, format!("bad port number: {port}"));
    }
    socket.check_owner()?;
    // Before the name is resolved: another request must not take the socket meanwhile.
    *socket.owner.borrow_mut() = Some(Rc::downgrade(&super::tcp::owner()?));
    let destination = match destination(&host, port as u16)? {
        Ok(destination) => destination,
        Err(message) => return failed(stack, message),
    };
    wait(YieldOperation::task(async move {
        let address = match destination.resolve().await {
            Ok(address) => address,
            Err(message) => return LuaValue::failure(message),
        };
        let from = socket.local_address.borrow().clone();
        let connected = match from {
            Some(from) => UdpSocket::connect_from(&address, &from),
            None => UdpSocket::connect(&address),
        };
        match connected {
            Ok(connected) => {
                *socket.endpoint.borrow_mut() = Some(UdpEndpoint::Own(Rc::new(connected)));
                vec![LuaValue::Number(1.0)]
            }
            Err(error) => LuaValue::failure(super::tcp::error_text(&error)),
        }
    }))
}

/// `sock:send(data)`.
fn send(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    let mut data = Vec::new();
    append(stack, 2, &mut data)?;
    socket.check_owner()?;
    match socket.endpoint.borrow().clone() {
        None => failed(stack, "closed"),
        // A datagram is sent or dropped by the kernel, never queued here.
        Some(UdpEndpoint::Own(connected)) => match connected.try_send(&data) {
            Ok(_) => {
                stack.push_number(1.0);
                super::ONE
            }
            Err(error) => failed(stack, super::tcp::error_text(&error)),
        },
        Some(UdpEndpoint::Client(client)) => wait(YieldOperation::task(async move {
            match client.send(&data).await {
                Ok(()) => vec![LuaValue::Number(1.0)],
                Err(error) => LuaValue::failure(super::tcp::error_text(&error)),
            }
        })),
    }
}

/// `sock:receive(size)`.
fn receive(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    // The buffer is allocated before the datagram arrives, so a script cannot ask for more than one
    // can have.
    let most = optional_number(stack, 2)?
        .map_or(MAX_DATAGRAM, |n| n as usize)
        .min(MAX_DATAGRAM);
    let Some(port) = socket.endpoint.borrow().clone() else {
        return failed(stack, "closed");
    };
    socket.check_owner()?;
    if socket.reading.get() {
        return failed(stack, "socket busy");
    }
    let time = socket.timeout.get();
    let reading = UdpReadGuard::new(socket);
    wait(YieldOperation::task(async move {
        let received = rt::timeout(time, port.receive(most)).await;
        // Before the coroutine continues, which may receive again at once.
        drop(reading);
        match received {
            Ok(Ok(datagram)) => vec![LuaValue::Bytes(datagram)],
            Ok(Err(error)) => LuaValue::failure(super::tcp::error_text(&error)),
            Err(_) => LuaValue::failure("timeout"),
        }
    }))
}

/// Marks the socket as busy reading until it is dropped, even if the coroutine is killed.
struct UdpReadGuard(Rc<UdpCosocket>);

impl UdpReadGuard {
    fn new(socket: Rc<UdpCosocket>) -> UdpReadGuard {
        socket.reading.set(true);
        UdpReadGuard(socket)
    }
}

impl Drop for UdpReadGuard {
    fn drop(&mut self) {
        self.0.reading.set(false);
    }
}

/// `sock:close()`.
fn close(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    if socket.endpoint.borrow().is_some() {
        socket.check_owner()?;
    }
    if socket.endpoint.take().is_none() {
        return failed(stack, "closed");
    }
    stack.push_number(1.0);
    super::ONE
}

/// `sock:settimeout(milliseconds)`; 0 restores the configured one.
fn set_timeout(stack: &LuaStack) -> CallResult {
    let socket = this_socket(stack)?;
    let millis = stack.number(2).unwrap_or(0.0);
    if !(0.0..=f64::from(i32::MAX)).contains(&millis.trunc()) {
        return fail("bad timeout value");
    }
    socket.timeout.set(match millis as u64 {
        0 => socket.usual_timeout,
        millis => Duration::from_millis(millis),
    });
    super::NONE
}
