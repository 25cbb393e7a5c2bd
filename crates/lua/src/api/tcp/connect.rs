//! Connecting: where to, through which pool, and from which address.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::ByteSlice as _;
use http::core::ResolverConf;
use net::Transport;
use net::resolver::Resolver;
use rt::net::{Address, Stream, UnixPath};

use super::super::arguments::text;
use super::super::wire::Wire;
use super::super::{ONE, wait};
use super::pools::{Kept, Place, Slot};
use super::{Busy, Called, Tcp, failed, of_guest, refuse, this, words};
use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Stack, Value, fail};
use crate::operation::Operation;
use crate::scope;

/// What the table of options says.
#[derive(Default)]
struct Options {
    pool: Option<Vec<u8>>,
    size: Option<usize>,
    backlog: Option<usize>,
}

/// Reads the options in the table at `at`.
fn options(stack: &Stack, at: i32, usual_size: i64) -> Result<Options, Failure> {
    let mut options = Options::default();
    match stack.field(at, "pool_size") {
        Kind::Nil => {}
        kind => match stack.number(-1) {
            Some(size) if size.trunc() > 0.0 => options.size = Some(size as usize),
            Some(size) => {
                let message = format!("bad \"pool_size\" option value: {}", size.trunc());
                return Err(stack.bad_argument(at, &message));
            }
            None => {
                let message = format!("bad \"pool_size\" option type: {}", kind.name());
                return Err(stack.bad_argument(at, &message));
            }
        },
    }
    stack.pop(1);
    stack.field(at, "backlog");
    if let Some(backlog) = stack.number(-1) {
        if backlog.trunc() < 0.0 {
            let message = format!("bad \"backlog\" option value: {}", backlog.trunc());
            return Err(stack.bad_argument(at, &message));
        }
        options.backlog = Some(backlog as usize);
        options.size = options.size.or(usize::try_from(usual_size).ok());
    }
    stack.pop(1);
    match stack.field(at, "pool") {
        Kind::Nil => {}
        Kind::String | Kind::Number => options.pool = stack.bytes(-1).map(<[u8]>::to_vec),
        kind => {
            let message = format!("bad \"pool\" option type: {}", kind.name());
            return Err(stack.bad_argument(at, &message));
        }
    }
    stack.pop(1);
    Ok(options)
}

/// The port of a call, `None` for a unix socket; or what is answered instead.
fn port(stack: &Stack, last: i32, host: &[u8]) -> Result<Option<u16>, String> {
    if last >= 3
        && let Some(port) = stack.number(3)
    {
        return match port.trunc() {
            port if (0.0..=65535.0).contains(&port) => Ok(Some(port as u16)),
            port => Err(format!("bad port number: {port}")),
        };
    }
    match host.get(..5) {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"unix:") => Ok(None),
        _ => Err("missing the port number".to_owned()),
    }
}

pub(super) fn connect(stack: &Stack) -> Called {
    let top = stack.top();
    if !(2..=4).contains(&top) {
        return fail(format!(
            "ngx.socket connect: expecting 2, 3, or 4 arguments (including the object), but seen {top}"
        ));
    }
    let socket = this(stack)?;
    let host = text(stack, 2)?;
    let (wanted, last) = match stack.kind(top) {
        Kind::Table if top > 2 => (options(stack, top, socket.settings.pool_size)?, top - 1),
        _ => (Options::default(), top),
    };
    let port = match port(stack, last, &host) {
        Ok(port) => port,
        Err(message) => return failed(stack, message),
    };
    let key = wanted.pool.unwrap_or_else(|| match port {
        Some(port) => format!("{}:{port}", host.as_bstr()).into_bytes(),
        None => host.clone(),
    });
    socket.check_owner()?;
    if let Ok(wire) = socket.open() {
        if let Err(message) = socket.busy(true, true) {
            return refuse(stack, message);
        }
        if !wire.is_own() {
            return fail("attempt to re-connect a request socket");
        }
    } else if let Err(message) = socket.busy(true, true) {
        return refuse(stack, message);
    }
    socket.drop_connection();
    socket.was_used.set(true);
    of_guest(|connected| connected.add(&socket))?;
    super::owner()?;
    *socket.pool.borrow_mut() = Some(key.clone());
    let pools = scope::with(|scope| Rc::clone(&scope.vm.pools))?;
    let place = match pools.enter(&key, wanted.size, wanted.backlog) {
        Place::Kept(kept) => {
            socket.use_again(kept);
            stack.push_number(1.0);
            return ONE;
        }
        Place::Full => return refuse(stack, "too many waiting connect operations"),
        other => other,
    };
    let destination = match destination(&host, port.unwrap_or(0))? {
        Ok(destination) => destination,
        Err(message) => return failed(stack, message),
    };
    let busy = Busy::new(&socket, |socket| &socket.connecting);
    wait(Operation::task(async move {
        let opened = in_turn(&socket, place, destination).await;
        busy.over();
        match opened {
            Ok(()) => vec![Value::Number(1.0)],
            Err(message) => Value::failure(message),
        }
    }))
}

/// Connects when it is its turn.
async fn in_turn(socket: &Tcp, place: Place, destination: Destination) -> Result<(), String> {
    let place = match place {
        Place::Queue(queue) => queue
            .turn(socket.connect_timeout.get())
            .await
            .ok_or("timeout")?,
        other => other,
    };
    match place {
        Place::Kept(kept) => {
            socket.use_again(kept);
            Ok(())
        }
        Place::Free(slot) => open(socket, slot, destination).await,
        Place::Queue(_) | Place::Full => Err("too many waiting connect operations".to_owned()),
    }
}

impl Tcp {
    /// Takes over a connection that was used before.
    fn use_again(&self, kept: Kept) {
        self.reused.set(kept.reused);
        *self.slot.borrow_mut() = Some(kept.slot);
        *self.wire.borrow_mut() = Some(Wire::Own(kept.transport));
    }
}

async fn open(socket: &Tcp, slot: Option<Slot>, destination: Destination) -> Result<(), String> {
    socket.reused.set(0);
    let address = destination.resolve().await?;
    let options = net::ConnectOptions {
        from: socket.from.borrow().clone(),
        timeout: socket.connect_timeout.get(),
        ..net::ConnectOptions::default()
    };
    let stream: Stream = net::connect(&address, &options)
        .await
        .map_err(|error| words(&error))?;
    *socket.slot.borrow_mut() = slot;
    *socket.wire.borrow_mut() = Some(Wire::Own(Rc::new(Transport::plain(stream))));
    Ok(())
}

/// Where a connection goes.
pub(in crate::api) enum Destination {
    Address(Address),
    Name {
        name: Vec<u8>,
        port: u16,
        resolver: Arc<Resolver>,
        timeout: Duration,
    },
}

/// Where a host and port are; a message when nobody can tell.
pub(in crate::api) fn destination(
    host: &[u8],
    port: u16,
) -> Result<Result<Destination, String>, Failure> {
    if let Some(path) = host.strip_prefix(b"unix:") {
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        return Ok(Ok(Destination::Address(Address::Unix(UnixPath::new(path)))));
    }
    let text = host.to_str_lossy();
    if host.is_empty() {
        return Ok(Err("failed to parse host name \"\": no host".to_owned()));
    }
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
    pub(in crate::api) async fn resolve(self) -> Result<Address, String> {
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

/// The next connection is made from this address.
pub(super) fn bind(stack: &Stack) -> Called {
    if !(2..=3).contains(&stack.top()) {
        return fail(format!(
            "expecting 2 or 3 arguments, but got {}",
            stack.top()
        ));
    }
    let socket = this(stack)?;
    let mut port = 0.0;
    if stack.top() == 3 {
        let Some(number) = stack.number(3) else {
            let kind = stack.kind(3).name();
            let message = format!("expecting port to be anumber but got type: {kind}");
            return failed(stack, message);
        };
        port = number.trunc();
        if !(0.0..=65535.0).contains(&port) {
            return failed(stack, format!("bad port number: {port}"));
        }
    }
    let address = text(stack, 2)?;
    let Ok(ip) = address.to_str_lossy().parse::<IpAddr>() else {
        return refuse(stack, "bad address");
    };
    *socket.from.borrow_mut() = Some(Address::from(SocketAddr::new(ip, port as u16)));
    stack.push_boolean(true);
    ONE
}
