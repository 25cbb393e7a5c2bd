//! The client's side of a request: what is known of its connection, whatever transport and protocol it uses.

use std::cell::{Cell, OnceCell, RefCell};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use host::engine::MoveScope;
use host::listen::ListenAddress;
use net::client::RemoteClient;
use net::tls::TlsSession;
use rt::net::SocketAddress;

use crate::block_ids::ServerId;
use crate::byte_stream::ByteStream;
use crate::client_stream::{ClientConnection, ClientStream};
use crate::listen::ListenEndpoint;

/// The number of the next connection, counted over all loops of the process.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The number of the next connection.
pub(crate) fn next_connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

/// One client connection, shared by everything that serves its requests.
pub struct HttpClient {
    /// The number of the connection, as `$connection` and the error log show it. Unique in this process.
    pub number: u64,
    /// The connection that carries its requests.
    pub connection: Rc<dyn ClientConnection>,
    /// The address of the other end. `realip` replaces it in a request, never here.
    pub remote: Rc<RemoteClient>,
    /// `debug_connection` names this client: everything about it is logged.
    pub debug: bool,
    /// It connected to an address with TLS, whether it speaks TLS or not.
    pub tls_port: bool,
    /// The server name of its TLS hello, once that has been read. In a box, as is what else few clients have: there may be
    /// thousands of them that are idle.
    pub asked_name: RefCell<Option<Box<AskedName>>>,
    /// The PROXY protocol header that preceded it.
    pub proxy: OnceCell<Box<proto::proxy_protocol::DecodedProxyHeader>>,
    /// When it was accepted.
    pub accepted: Instant,
    /// How long its TLS handshake took.
    pub handshake_time: Cell<Duration>,
    /// Requests begun on it, including the current one.
    pub requests: Cell<u64>,
    /// How long it may wait for its next request.
    pub keepalive_timeout: Cell<Duration>,
    /// How long it may still wait when the server stops (`keepalive_min_timeout`).
    pub keepalive_min_timeout: Cell<Duration>,
    /// The generation of the configuration that `endpoint` belongs to.
    pub generation: Cell<u64>,
    /// The listening socket that accepted it.
    pub socket: ListenAddress,
    /// The address of the `stream` server that passed it on, if one did; it then counts as accepted there.
    pub passed_at: Option<Box<SocketAddress>>,
    /// How the loop reaches the connection while it waits for a request.
    pub control: Rc<ConnectionControl>,
    /// The listening address and the servers behind it, in the configuration of the current request.
    pub endpoint: RefCell<Arc<ListenEndpoint>>,
}

impl HttpClient {
    /// How much is left of a timeout that began when the connection was accepted. As in nginx everything before the end
    /// of the first head shares one `client_header_timeout`: PROXY protocol, TLS, detecting the protocol, and the head
    /// itself.
    pub fn rest_of(&self, timeout: Duration) -> Duration {
        timeout.saturating_sub(rt::now().saturating_duration_since(self.accepted))
    }

    /// Whether its connection is no older than this, by the loop's clock.
    pub(crate) fn is_younger_than(&self, age: Duration) -> bool {
        // An age beyond what the clock can hold is never reached.
        let end = self.accepted.checked_add(age);
        end.is_none_or(|end| rt::now() <= end)
    }

    /// The server at which its requests begin: that of the name in the TLS hello, otherwise the default one of the
    /// address.
    pub fn first_server(&self) -> ServerId {
        let asked = self.asked_name.borrow();
        let server = asked.as_ref().and_then(|asked| asked.server);
        server.unwrap_or_else(|| self.endpoint.borrow().default_server)
    }

    /// The address that the client connected to. A socket that cannot tell it any more counts as a UNIX domain socket.
    pub fn local(&self) -> SocketAddress {
        self.known_local()
            .unwrap_or_else(|| SocketAddress::Unix(rt::net::UnixPath::new(Path::new(""))))
    }

    /// The address that the client connected to, if it is known.
    pub(crate) fn known_local(&self) -> Option<SocketAddress> {
        let passed_at = self.passed_at.as_deref().cloned();
        passed_at.or_else(|| self.connection.local_address())
    }

    /// What TLS agreed on; `None` without it.
    pub fn tls(&self) -> Option<&TlsSession> {
        self.connection.tls()
    }

    /// Its byte stream, unless its transport has none (HTTP/3).
    pub fn bytes(&self) -> Option<&ByteStream> {
        self.connection.bytes()
    }

    /// A stream for a request that has none of its own: it can only tell whether the client left.
    pub fn stream(&self) -> Rc<dyn ClientStream> {
        Rc::clone(&self.connection).stream()
    }

    /// Looks the name of the TLS hello up in the configuration that the client points at now.
    pub(crate) fn refresh_asked_name(&self) {
        let endpoint = self.endpoint.borrow();
        if let Some(asked) = &mut *self.asked_name.borrow_mut() {
            asked.server = server_of_name(&endpoint, &asked.name);
        }
    }
}

/// How a connection came to its loop.
pub(crate) struct ConnectionOrigin {
    /// The other end.
    pub(crate) peer: SocketAddress,
    /// The listening socket that it came by.
    pub(crate) socket: ListenAddress,
    /// The address that it counts as accepted at, where another one of the server's passed it on.
    pub(crate) passed_at: Option<Box<SocketAddress>>,
    /// Where the loop reaches it between requests.
    pub(crate) control: Rc<ConnectionControl>,
    /// Its number.
    pub(crate) number: u64,
    /// When it was accepted.
    pub(crate) accepted: Instant,
}

/// The server name of a TLS hello.
pub struct AskedName {
    /// The name, in lower case.
    pub name: Box<str>,
    /// The server with this name; `None` if no server has it, or if there is nothing to choose.
    pub server: Option<ServerId>,
}

/// The server with this name among those of an address.
pub(crate) fn server_of_name(endpoint: &ListenEndpoint, name: &str) -> Option<ServerId> {
    endpoint.names.find(name.into()).map(|(server, _)| server)
}

/// How the loop reaches a connection: to close it or move it once it waits for a request, and to measure its work.
#[derive(Default)]
pub struct ConnectionControl {
    since: Cell<Option<Instant>>,
    /// How often it has begun to wait, which is one more than the requests it has completed.
    waits: Cell<u64>,
    /// Bytes sent on it when it last began to wait.
    sent: Cell<u64>,
    /// [`ConnectionControl::work`] at the last sample: the difference tells which connections keep the loop busy.
    noted: Cell<Option<u64>>,
    order: Cell<ConnectionOrder>,
    mobility: Cell<ConnectionMobility>,
    /// How far an order to move leads: to another loop, or to another process.
    scope: Cell<Option<MoveScope>>,
    waker: RefCell<Option<Waker>>,
    /// Its client, once requests are served. Weak, because the client owns this.
    client: RefCell<Weak<HttpClient>>,
}

/// How many sent bytes cost a loop as much as one request: 10 µs, at 0.1 ns a byte.
const BYTES_OF_A_REQUEST: u64 = 100_000;

/// What a connection has been ordered to do once it waits for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionOrder {
    /// Nothing.
    #[default]
    None,
    /// To close.
    Close,
    /// To move to another loop or process.
    Transfer,
}

/// Where a connection may move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionMobility {
    /// To another process.
    #[default]
    Anywhere,
    /// To another loop of this process only: it has state that cannot be serialized.
    ThisProcess,
    /// Nowhere.
    Nowhere,
}

impl ConnectionControl {
    /// Marks the connection as waiting from `now` on, unless it waits already, and returns since when it does. `sent`:
    /// bytes sent on it so far.
    pub fn begin_waiting(&self, now: Instant, sent: u64) -> Instant {
        self.sent.set(sent);
        if let Some(since) = self.since.get() {
            return since;
        }
        self.since.set(Some(now));
        self.waits.set(self.waits.get() + 1);
        now
    }

    /// Ends the wait for the first byte of a connection that has no client yet: as if it had just come.
    pub(crate) fn end_first_wait(&self) {
        self.since.set(None);
        self.waits.set(0);
        self.mobility.set(ConnectionMobility::default());
    }

    /// The work that the loop has done for it, up to the end of its last request. A rough measure, good enough to
    /// compare the connections of a loop.
    fn work(&self) -> u64 {
        (self.waits.get() * BYTES_OF_A_REQUEST).saturating_add(self.sent.get())
    }

    /// Takes a sample of its work.
    pub fn note_work(&self) {
        self.noted.set(Some(self.work()));
    }

    /// Its work since the sample of [`ConnectionControl::note_work`]; 0 if there is none. The sample is forgotten.
    pub fn work_since_noted(&self) -> u64 {
        let noted = self.noted.take();
        noted.map_or(0, |noted| self.work().saturating_sub(noted))
    }

    /// The number of the request that is being served; `None` while it waits for one.
    pub fn present_request(&self) -> Option<u64> {
        self.since.get().is_none().then(|| self.waits.get())
    }

    /// Whether it has not begun its first request.
    pub fn is_new(&self) -> bool {
        self.waits.get() <= 1 && (self.waits.get() == 0 || self.since.get().is_some())
    }

    /// Notes that it has served requests on another loop: it is not new.
    pub fn has_served(&self) {
        self.waits.set(1);
    }

    /// Marks it as serving a request.
    pub fn begin_request(&self) {
        self.since.set(None);
    }

    /// Since when it has been waiting; `None` while it serves a request.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.since.get()
    }

    /// Notes the client whose requests are served from now on.
    pub(crate) fn set_client(&self, client: &Rc<HttpClient>) {
        *self.client.borrow_mut() = Rc::downgrade(client);
    }

    /// The client, once its requests are served.
    pub(crate) fn client(&self) -> Option<Rc<HttpClient>> {
        self.client.borrow().upgrade()
    }

    /// Ends the connection now. A request in progress notices it as if its client had left, and is logged.
    pub fn force_close(&self) {
        // In case the request does not notice: then the connection at least ends after it.
        self.request_close();
        if let Some(client) = self.client() {
            client.connection.force_close();
        }
    }

    /// Orders it to close: at once if it waits, otherwise after its request.
    pub fn request_close(&self) {
        self.give_order(ConnectionOrder::Close);
    }

    /// Orders it to move: at once if it waits, otherwise after its request. It closes instead if it cannot move that
    /// far.
    pub fn request_transfer(&self, scope: MoveScope) {
        // An order to close is final: its reason (a stop, a full table) still holds.
        if self.order.get() != ConnectionOrder::Close {
            self.scope.set(Some(scope));
            self.give_order(ConnectionOrder::Transfer);
        }
    }

    /// Takes back an order to move. The connection counts as waiting from now on: those that have waited longest are
    /// asked first, and the next order is for another one.
    pub fn cancel_transfer(&self) {
        if self.is_leaving() {
            self.order.set(ConnectionOrder::None);
            self.since.set(Some(rt::now()));
        }
    }

    /// Sets where the connection may move from now on.
    pub fn set_mobility(&self, mobility: ConnectionMobility) {
        self.mobility.set(mobility);
    }

    /// Whether the connection may move that far.
    pub fn may_move(&self, scope: MoveScope) -> bool {
        match self.mobility.get() {
            ConnectionMobility::Anywhere => true,
            ConnectionMobility::ThisProcess => scope == MoveScope::Process,
            ConnectionMobility::Nowhere => false,
        }
    }

    /// Whether it has been ordered to move, even if it will have to close instead.
    pub fn is_leaving(&self) -> bool {
        self.order.get() == ConnectionOrder::Transfer
    }

    fn give_order(&self, order: ConnectionOrder) {
        self.order.set(order);
        self.wake();
    }

    /// Whether it has to close.
    pub fn is_closing(&self) -> bool {
        self.pending_order() == ConnectionOrder::Close
    }

    /// Its order, as far as it can follow it: a move that is not possible is a close.
    pub fn pending_order(&self) -> ConnectionOrder {
        let may_move = || self.scope.get().is_some_and(|scope| self.may_move(scope));
        match self.order.get() {
            ConnectionOrder::Transfer if !may_move() => ConnectionOrder::Close,
            order => order,
        }
    }

    /// Ready once there is an order.
    pub fn poll_order(&self, context: &mut std::task::Context<'_>) -> Poll<ConnectionOrder> {
        let mut waker = self.waker.borrow_mut();
        if !waker
            .as_ref()
            .is_some_and(|known| known.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
        // The waker stays in any case: an order that cannot be followed may be replaced by one that can.
        match self.order.get() {
            ConnectionOrder::None => Poll::Pending,
            _ => Poll::Ready(self.pending_order()),
        }
    }

    /// Has the connection look around, without an order: the configuration has changed.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_done_since_the_note_counts_and_only_once() {
        let (control, now) = (ConnectionControl::default(), Instant::now());
        control.begin_waiting(now, 5_000);
        assert_eq!(control.work_since_noted(), 0, "it was not there then");
        control.note_work();
        assert_eq!(control.work_since_noted(), 0);
        control.note_work();
        control.begin_request();
        control.begin_waiting(now, 5_700);
        assert_eq!(control.work_since_noted(), BYTES_OF_A_REQUEST + 700);
        assert_eq!(control.work_since_noted(), 0);
    }
}
