//! `connect` and `bind`: where to, through which pool, and from which address.
//!
//! ```text
//! connect ─▶ an idle connection of the pool is taken, if there is one
//!        ├─▶ the pool is full: wait in its queue, or fail if that is full, too
//!        └─▶ look up the name ─▶ connect ─▶ the coroutine continues
//! ```

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::ByteSlice as _;
use net::Transport;
use net::resolver::{Resolver, ResolverConf};
use rt::net::{SocketAddress, StreamSocket, UnixPath};

use super::super::arguments::text;
use super::super::cosocket_transport::CosocketTransport;
use super::super::{ONE, wait};
use super::pools::{PoolOffer, PoolSlot, PooledConnection};
use super::socket::SocketBusyGuard;
use super::{CallResult, TcpCosocket, error_text, failed, refuse, this_socket, with_connected};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, fail};
use crate::operation::YieldOperation;
use crate::scope;

/// The options table of `connect`.
#[derive(Default)]
struct PoolOptions {
    /// The pool's name; by default host and port.
    pool: Option<Vec<u8>>,
    /// `pool_size`: creates the pool now, instead of at `setkeepalive`.
    size: Option<usize>,
    /// `backlog`: how many connects may wait when the pool has `size` connections.
    backlog: Option<usize>,
}

/// Reads the options in the table at `at`.
fn read_pool_options(stack: &LuaStack, at: i32, usual_size: i64) -> Result<PoolOptions, LuaError> {
    let mut options = PoolOptions::default();
    match stack.field(at, "pool_size") {
        LuaType::Nil => {}
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
        // `backlog` limits the pool's connections, so the pool is created now; the size is by
        // default that of `lua_socket_pool_size`.
        options.size = options.size.or(usize::try_from(usual_size).ok());
    }
    stack.pop(1);
    match stack.field(at, "pool") {
        LuaType::Nil => {}
        LuaType::String | LuaType::Number => options.pool = stack.bytes(-1).map(<[u8]>::to_vec),
        kind => {
            let message = format!("bad \"pool\" option type: {}", kind.name());
            return Err(stack.bad_argument(at, &message));
        }
    }
    stack.pop(1);
    Ok(options)
}

/// The port argument; `None` for a unix socket. The error is returned to the script.
fn port(stack: &LuaStack, last: i32, host: &[u8]) -> Result<Option<u16>, String> {
    // For a unix socket the options may follow the host directly, so only a number is a port.
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

/// `sock:connect(host, port, options)`, or `sock:connect("unix:/path", options)`.
pub(super) fn connect(stack: &LuaStack) -> CallResult {
    let top = stack.top();
    if !(2..=4).contains(&top) {
        return fail(format!(
            "ngx.socket connect: expecting 2, 3, or 4 arguments (including the object), but seen {top}"
        ));
    }
    let socket = this_socket(stack)?;
    let host = text(stack, 2)?;
    let (wanted, last) = match stack.type_at(top) {
        LuaType::Table if top > 2 => (
            read_pool_options(stack, top, socket.settings.pool_size)?,
            top - 1,
        ),
        _ => (PoolOptions::default(), top),
    };
    let port = match port(stack, last, &host) {
        Ok(port) => port,
        Err(message) => return failed(stack, message),
    };
    // The default key names the host as given, not its address, so that a pool survives a change in
    // DNS.
    let key = wanted.pool.unwrap_or_else(|| match port {
        Some(port) => format!("{}:{port}", host.as_bstr()).into_bytes(),
        None => host.clone(),
    });
    socket.check_owner()?;
    // The connection of the client cannot be exchanged for another one.
    let is_request_socket = socket.open().is_ok_and(|wire| !wire.is_own());
    if let Err(message) = socket.check_not_busy(true, true) {
        return refuse(stack, message);
    }
    if is_request_socket {
        return fail("attempt to re-connect a request socket");
    }
    // Connecting a connected socket closes the old connection first.
    socket.drop_connection();
    socket.was_used.set(true);
    socket.resolving.set(false);
    with_connected(|connected| connected.add(&socket))?;
    super::owner()?;
    *socket.pool.borrow_mut() = Some(key.clone());
    let pools = scope::with(|scope| Rc::clone(&scope.vm.pools))?;
    // Before the name is resolved: a connection from the pool needs no address.
    let place = match pools.acquire(&key, wanted.size, wanted.backlog) {
        PoolOffer::Kept(kept) => {
            socket.reuse(kept);
            stack.push_number(1.0);
            return ONE;
        }
        PoolOffer::Full => return refuse(stack, "too many waiting connect operations"),
        other => other,
    };
    let destination = match destination(&host, port.unwrap_or(0))? {
        Ok(destination) => destination,
        Err(message) => return failed(stack, message),
    };
    let busy = SocketBusyGuard::new(&socket, |socket| &socket.connecting);
    wait(YieldOperation::task(async move {
        let opened = connect_in_turn(&socket, place, destination).await;
        busy.over();
        match opened {
            Ok(()) => vec![LuaValue::Number(1.0)],
            Err(message) => LuaValue::failure(message),
        }
    }))
}

/// Connects when the pool allows it.
async fn connect_in_turn(
    socket: &TcpCosocket,
    place: PoolOffer,
    destination: ConnectTarget,
) -> Result<(), String> {
    let place = match place {
        PoolOffer::Queue(queue) => queue
            .turn(socket.connect_timeout.get())
            .await
            .ok_or("timeout")?,
        other => other,
    };
    match place {
        PoolOffer::Kept(kept) => {
            socket.reuse(kept);
            Ok(())
        }
        PoolOffer::Free(slot) => open_connection(socket, slot, destination).await,
        PoolOffer::Queue(_) | PoolOffer::Full => {
            Err("too many waiting connect operations".to_owned())
        }
    }
}

impl TcpCosocket {
    /// Takes over a pooled connection.
    fn reuse(&self, kept: PooledConnection) {
        self.reused.set(kept.reused);
        *self.slot.borrow_mut() = Some(kept.slot);
        *self.transport.borrow_mut() = Some(CosocketTransport::Own(kept.transport));
    }
}

/// Opens a new connection.
async fn open_connection(
    socket: &TcpCosocket,
    slot: Option<PoolSlot>,
    destination: ConnectTarget,
) -> Result<(), String> {
    // If anything below fails the slot is dropped, and the next connect in the queue has its turn.
    socket.reused.set(0);
    let named = matches!(destination, ConnectTarget::Name { .. });
    socket.resolving.set(named);
    let address = destination.resolve().await;
    socket.resolving.set(false);
    let address = address?;
    let options = net::ConnectSettings {
        from: socket.local_address.borrow().clone(),
        timeout: socket.connect_timeout.get(),
        ..net::ConnectSettings::default()
    };
    let stream: StreamSocket = net::connect(&address, &options)
        .await
        .map_err(|error| error_text(&error))?;
    *socket.slot.borrow_mut() = slot;
    *socket.transport.borrow_mut() =
        Some(CosocketTransport::Own(Rc::new(Transport::plain(stream))));
    Ok(())
}

/// Where to connect.
pub(in crate::api) enum ConnectTarget {
    Address(SocketAddress),
    Name {
        name: Vec<u8>,
        port: u16,
        resolver: Arc<Resolver>,
        timeout: Duration,
    },
}

/// Parses a host: a unix socket, an address, or a name for the resolver. The inner error is
/// returned to the script.
pub(in crate::api) fn destination(
    host: &[u8],
    port: u16,
) -> Result<Result<ConnectTarget, String>, LuaError> {
    if let Some(path) = host.strip_prefix(b"unix:") {
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        return Ok(Ok(ConnectTarget::Address(SocketAddress::Unix(
            UnixPath::new(path),
        ))));
    }
    let text = host.to_str_lossy();
    if host.is_empty() {
        return Ok(Err("failed to parse host name \"\": no host".to_owned()));
    }
    // An IPv6 address may be in brackets, as in a URL.
    let literal = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = literal.parse::<IpAddr>() {
        return Ok(Ok(ConnectTarget::Address(SocketAddress::from(
            SocketAddr::new(ip, port),
        ))));
    }
    Ok(match resolver()? {
        Some((resolver, timeout)) if !resolver.is_empty() => Ok(ConnectTarget::Name {
            name: host.to_vec(),
            port,
            resolver,
            timeout,
        }),
        _ => Err(format!("no resolver defined to resolve \"{text}\"")),
    })
}

/// The resolver of the request, the session or the configuration, and its timeout.
fn resolver() -> Result<Option<(Arc<Resolver>, Duration)>, LuaError> {
    let of_request = scope::with_request(|request| {
        let conf = request.conf::<ResolverConf>();
        (Arc::clone(&conf.resolver), conf.timeout)
    });
    if let Ok(known) = of_request {
        return Ok(Some(known));
    }
    let of_session = scope::with_session(|session| {
        let conf = session.conf::<ResolverConf>();
        (Arc::clone(&conf.resolver), conf.timeout)
    });
    if let Ok(known) = of_session {
        return Ok(Some(known));
    }
    // A timer belongs to no request and no session.
    scope::with(|scope| scope.vm.configuration.resolver())
}

impl ConnectTarget {
    /// The address, looked up if it is a name. Of several addresses the first is used.
    pub(in crate::api) async fn resolve(self) -> Result<SocketAddress, String> {
        match self {
            ConnectTarget::Address(address) => Ok(address),
            ConnectTarget::Name {
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
                Ok(SocketAddress::from(SocketAddr::new(*ip, port)))
            }
        }
    }
}

/// `sock:bind(address, port)`: the address of the next connection's own side.
pub(super) fn bind(stack: &LuaStack) -> CallResult {
    if !(2..=3).contains(&stack.top()) {
        return fail(format!(
            "expecting 2 or 3 arguments, but got {}",
            stack.top()
        ));
    }
    let socket = this_socket(stack)?;
    let mut port = 0.0;
    if stack.top() == 3 {
        let Some(number) = stack.number(3) else {
            let kind = stack.type_at(3).name();
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
    *socket.local_address.borrow_mut() =
        Some(SocketAddress::from(SocketAddr::new(ip, port as u16)));
    stack.push_boolean(true);
    ONE
}
