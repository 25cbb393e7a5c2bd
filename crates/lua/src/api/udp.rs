//! `ngx.socket.udp`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ::stream::client::Transport;

use bstr::ByteSlice;
use rt::net::{Address, UdpSocket};

use super::arguments::{number, optional_number, text};
use super::output::append;
use super::tcp::{destination, failed};
use super::{Called, Functions, wait};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::{Failure, Stack, Value, fail};
use crate::operation::Operation;

pub(super) const FUNCTIONS: Functions = &[("udp", udp)];

static SOCKET: Class = Class {
    name: "weir.socket.udp",
    shape: Shape::Table,
    methods: &[
        ("bind", bind),
        ("setpeername", connect),
        ("send", send),
        ("receive", receive),
        ("close", close),
        ("settimeout", set_timeout),
    ],
};

/// What a socket is connected to.
#[derive(Clone)]
enum Port {
    Own(Rc<UdpSocket>),
    /// The client of a session of stream.
    Client(Rc<::stream::client::Client>),
}

/// A socket of a script.
struct Udp {
    port: RefCell<Option<Port>>,
    from: RefCell<Option<Address>>,
    timeout: Cell<Duration>,
    usual_timeout: Duration,
    /// The request that uses it.
    owner: RefCell<Option<Weak<()>>>,
    reading: Cell<bool>,
}

impl Udp {
    fn new(port: Option<Port>) -> Result<Udp, Failure> {
        let usual_timeout = super::tcp::settings()?.read_timeout;
        Ok(Udp {
            port: RefCell::new(port),
            from: RefCell::default(),
            timeout: Cell::new(usual_timeout),
            usual_timeout,
            owner: RefCell::default(),
            reading: Cell::new(false),
        })
    }

    /// What one request uses is not another one's to use meanwhile.
    fn check_owner(&self) -> Result<(), Failure> {
        let Some(owner) = self.owner.borrow().as_ref().and_then(Weak::upgrade) else {
            return Ok(());
        };
        match Rc::ptr_eq(&super::tcp::owner()?, &owner) {
            true => Ok(()),
            false => fail("bad request"),
        }
    }
}

/// The largest datagram that is taken, in bytes.
const MAX_DATAGRAM: usize = 65_535;

impl Port {
    async fn receive(&self, most: usize) -> std::io::Result<Vec<u8>> {
        match self {
            Port::Own(connected) => {
                let mut buffer = vec![0; most];
                let n = connected.recv(&mut buffer).await?;
                buffer.truncate(n);
                Ok(buffer)
            }
            Port::Client(client) => match &client.transport {
                Transport::Datagrams(flow) => {
                    let mut datagram = poll_fn(|context| flow.poll_receive(context)).await;
                    datagram.truncate(most);
                    Ok(datagram)
                }
                Transport::Stream(_) => Err(std::io::ErrorKind::Unsupported.into()),
            },
        }
    }
}

/// Pushes a socket for the datagrams of a client.
pub(super) fn push_client(
    stack: &Stack,
    client: Rc<::stream::client::Client>,
) -> Result<(), Failure> {
    let socket = Udp::new(Some(Port::Client(client)))?;
    object::push(stack, &SOCKET, Rc::new(socket));
    Ok(())
}

fn udp(stack: &Stack) -> Called {
    super::tcp::waits()?;
    let socket = Udp::new(None)?;
    object::push(stack, &SOCKET, Rc::new(socket));
    super::ONE
}

fn this(stack: &Stack) -> Result<Rc<Udp>, Failure> {
    object::get(stack, 1, "udp socket")
}

fn bind(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let address = text(stack, 2)?;
    let Ok(ip) = address.to_str_lossy().parse() else {
        return failed(stack, "bad address");
    };
    *socket.from.borrow_mut() = Some(Address::from(SocketAddr::new(ip, 0)));
    stack.push_number(1.0);
    super::ONE
}

fn connect(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let host = text(stack, 2)?;
    let port = match host.starts_with(b"unix:") {
        true => 0.0,
        false => number(stack, 3)?,
    };
    if !(0.0..=65535.0).contains(&port) {
        return failed(stack, format!("bad port number: {port}"));
    }
    socket.check_owner()?;
    *socket.owner.borrow_mut() = Some(Rc::downgrade(&super::tcp::owner()?));
    let destination = match destination(&host, port as u16)? {
        Ok(destination) => destination,
        Err(message) => return failed(stack, message),
    };
    wait(Operation::task(async move {
        let address = match destination.resolve().await {
            Ok(address) => address,
            Err(message) => return Value::failure(message),
        };
        let from = socket.from.borrow().clone();
        let connected = match from {
            Some(from) => UdpSocket::connect_from(&address, &from),
            None => UdpSocket::connect(&address),
        };
        match connected {
            Ok(connected) => {
                *socket.port.borrow_mut() = Some(Port::Own(Rc::new(connected)));
                vec![Value::Number(1.0)]
            }
            Err(error) => Value::failure(super::tcp::words(&error)),
        }
    }))
}

fn send(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let mut data = Vec::new();
    append(stack, 2, &mut data)?;
    socket.check_owner()?;
    match socket.port.borrow().clone() {
        None => failed(stack, "closed"),
        Some(Port::Own(connected)) => match connected.try_send(&data) {
            Ok(_) => {
                stack.push_number(1.0);
                super::ONE
            }
            Err(error) => failed(stack, super::tcp::words(&error)),
        },
        Some(Port::Client(client)) => wait(Operation::task(async move {
            match client.send(&data).await {
                Ok(()) => vec![Value::Number(1.0)],
                Err(error) => Value::failure(super::tcp::words(&error)),
            }
        })),
    }
}

fn receive(stack: &Stack) -> Called {
    let socket = this(stack)?;
    let most = optional_number(stack, 2)?
        .map_or(MAX_DATAGRAM, |n| n as usize)
        .min(MAX_DATAGRAM);
    let Some(port) = socket.port.borrow().clone() else {
        return failed(stack, "closed");
    };
    socket.check_owner()?;
    if socket.reading.get() {
        return failed(stack, "socket busy");
    }
    let time = socket.timeout.get();
    let reading = Reading::new(socket);
    wait(Operation::task(async move {
        let received = rt::timeout(time, port.receive(most)).await;
        drop(reading);
        match received {
            Ok(Ok(datagram)) => vec![Value::Bytes(datagram)],
            Ok(Err(error)) => Value::failure(super::tcp::words(&error)),
            Err(_) => Value::failure("timeout"),
        }
    }))
}

/// A read is on its way.
struct Reading(Rc<Udp>);

impl Reading {
    fn new(socket: Rc<Udp>) -> Reading {
        socket.reading.set(true);
        Reading(socket)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.reading.set(false);
    }
}

fn close(stack: &Stack) -> Called {
    let socket = this(stack)?;
    if socket.port.borrow().is_some() {
        socket.check_owner()?;
    }
    if socket.port.take().is_none() {
        return failed(stack, "closed");
    }
    stack.push_number(1.0);
    super::ONE
}

fn set_timeout(stack: &Stack) -> Called {
    let socket = this(stack)?;
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
