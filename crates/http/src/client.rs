//! The client's side of a request: what is known of its connection, whatever carries it and whichever protocol is spoken.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use host::engine::Reach;
use host::listen::ListenAddress;
use net::client::Remote;
use net::tls::Session;
use rt::net::Address;

use crate::block_ids::ServerId;
use crate::byte_stream::ByteStream;
use crate::client_stream::{ClientConnection, ClientStream};
use crate::listen::Endpoint;

/// Numbers connections, over all loops.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The number of the next connection.
pub(crate) fn next_connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

/// One client connection, shared by everything that serves its requests.
pub struct Client {
    /// The number of the connection, as `$connection` and the error log show it. Unique in this process.
    pub number: u64,
    /// What carries its requests.
    pub connection: Rc<dyn ClientConnection>,
    /// Who is at the other end. `realip` may replace it for a request, never here.
    pub remote: Rc<Remote>,
    /// `debug_connection` names this client: everything about it is logged.
    pub debug: bool,
    /// Its address is one with TLS, whether it speaks that or not.
    pub tls_port: bool,
    /// The server name that it asked for by TLS, once its hello was read.
    pub asked_name: RefCell<Option<AskedName>>,
    /// What a PROXY protocol header said of the client.
    pub proxy: Option<Box<proto::proxy_protocol::Header>>,
    /// When it was accepted.
    pub accepted: Instant,
    /// Requests begun on it, the present one too.
    pub requests: Cell<u64>,
    /// How long it may wait for its next request.
    pub keepalive_timeout: Cell<Duration>,
    /// How long it may wait at least, even when the server stops.
    pub keepalive_min_timeout: Cell<Duration>,
    /// The generation of the configuration that `endpoint` belongs to.
    pub generation: Cell<u64>,
    /// The listening socket that it came by.
    pub socket: ListenAddress,
    /// The address that it counts as accepted at, where another one of the server's passed it on.
    pub passed_at: Option<Address>,
    /// Where the loop can reach a connection that waits for its next request.
    pub control: Rc<ConnectionControl>,
    /// The listening address and the servers behind it, in the configuration of the present request.
    pub endpoint: RefCell<Arc<Endpoint>>,
}

impl Client {
    /// What is left of a time that began when the connection was accepted. All that comes before its first request has one
    /// `client_header_timeout` together, as with nginx: PROXY protocol, TLS, telling the protocol, and the head itself.
    pub fn rest_of(&self, timeout: Duration) -> Duration {
        timeout.saturating_sub(rt::now().saturating_duration_since(self.accepted))
    }

    /// The server that its requests begin at: the one that it asked for by TLS, else the default one of the address.
    pub fn first_server(&self) -> ServerId {
        let asked = self.asked_name.borrow();
        let server = asked.as_ref().and_then(|asked| asked.server);
        server.unwrap_or_else(|| self.endpoint.borrow().default_server)
    }

    /// The address that the client connected to. A socket that cannot tell it any more counts as a unix socket.
    pub fn local(&self) -> Address {
        self.known_local()
            .unwrap_or_else(|| Address::Unix(rt::net::UnixPath::new(Path::new(""))))
    }

    /// The same, if it is known.
    pub(crate) fn known_local(&self) -> Option<Address> {
        let passed_at = self.passed_at.clone();
        passed_at.or_else(|| self.connection.local_address())
    }

    /// What TLS agreed on; `None` without it.
    pub fn tls(&self) -> Option<&Session> {
        self.connection.tls()
    }

    /// Its bytes, unless they come in datagrams.
    pub fn bytes(&self) -> Option<&ByteStream> {
        self.connection.bytes()
    }

    /// The stream of a request that has none of its own: whether its client left is a question to the connection.
    pub fn stream(&self) -> Rc<dyn ClientStream> {
        Rc::clone(&self.connection).stream()
    }

    /// Finds the server of the name that was asked for by TLS, in the configuration that the client points at now.
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
    pub(crate) peer: Address,
    /// The listening socket that it came by.
    pub(crate) socket: ListenAddress,
    /// The address that it counts as accepted at, where another one of the server's passed it on.
    pub(crate) passed_at: Option<Address>,
    /// Where the loop reaches it between requests.
    pub(crate) control: Rc<ConnectionControl>,
}

/// The server name that a client asked for by TLS.
pub struct AskedName {
    /// The name, in lower case.
    pub name: Box<str>,
    /// The server that has it; none when no server has it, or when there is nothing to choose.
    pub server: Option<ServerId>,
}

/// The server of an address that has this name.
pub(crate) fn server_of_name(endpoint: &Endpoint, name: &str) -> Option<ServerId> {
    endpoint.names.find(name.into()).map(|(server, _)| server)
}

/// How the loop reaches a connection that waits for a request: to close it when the server stops, or when its place
/// is needed for a new client.
#[derive(Default)]
pub struct ConnectionControl {
    since: Cell<Option<Instant>>,
    /// How often it waited so far.
    waits: Cell<u64>,
    /// Bytes that were sent on it when it last began to wait.
    sent: Cell<u64>,
    /// [`ConnectionControl::work`] at a time when the loop wanted to know who makes it work.
    noted: Cell<Option<u64>>,
    order: Cell<ConnectionOrder>,
    mobility: Cell<ConnectionMobility>,
    /// How far [`ConnectionOrder::Leave`] is to lead.
    reach: Cell<Option<Reach>>,
    waker: RefCell<Option<Waker>>,
    /// Whose it is, once requests are served.
    client: RefCell<Weak<Client>>,
}

/// A request costs a loop as much as to send so many bytes: 10 µs, at 0.1 ns a byte.
const BYTES_OF_A_REQUEST: u64 = 100_000;

/// What a connection was asked to do once it waits for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionOrder {
    /// None.
    #[default]
    None,
    /// To close.
    Close,
    /// To go to another loop or process.
    Leave,
}

/// Where a connection may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionMobility {
    /// To another process.
    #[default]
    Anywhere,
    /// To another loop: it has state that bytes do not tell.
    Within,
    /// It stays.
    Nowhere,
}

impl ConnectionControl {
    /// Marks the connection as waiting from `now` on. `sent`: bytes that were sent on it so far.
    pub fn begin_waiting(&self, now: Instant, sent: u64) {
        self.since.set(Some(now));
        self.waits.set(self.waits.get() + 1);
        self.sent.set(sent);
    }

    /// What the loop did for it, up to the end of its last request. A rough measure, good for comparing the connections of a
    /// loop.
    fn work(&self) -> u64 {
        (self.waits.get() * BYTES_OF_A_REQUEST).saturating_add(self.sent.get())
    }

    /// Begins to measure what it makes the loop do.
    pub fn note_work(&self) {
        self.noted.set(Some(self.work()));
    }

    /// What it made the loop do since [`ConnectionControl::note_work`], in requests that have ended; 0 if it was not there
    /// then. The note is forgotten.
    pub fn work_since_noted(&self) -> u64 {
        let noted = self.noted.take();
        noted.map_or(0, |noted| self.work().saturating_sub(noted))
    }

    /// The number of the request that it is busy with; `None` while it waits for one.
    pub fn present_request(&self) -> Option<u64> {
        self.since.get().is_none().then(|| self.waits.get())
    }

    /// Whether it has not begun its first request yet.
    pub fn is_new(&self) -> bool {
        self.waits.get() <= 1 && (self.waits.get() == 0 || self.since.get().is_some())
    }

    /// It has served requests elsewhere: it is not new.
    pub fn has_served(&self) {
        self.waits.set(1);
    }

    /// Marks it as busy.
    pub fn begin_request(&self) {
        self.since.set(None);
    }

    /// Since when it waits.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.since.get()
    }

    /// Requests of this client are served from now on.
    pub(crate) fn set_client(&self, client: &Rc<Client>) {
        *self.client.borrow_mut() = Rc::downgrade(client);
    }

    /// The client, once its requests are served.
    pub(crate) fn client(&self) -> Option<Rc<Client>> {
        self.client.borrow().upgrade()
    }

    /// Ends the connection now, in a way that a request in progress notices, as when its client had gone.
    pub fn cut(&self) {
        self.close();
        if let Some(client) = self.client() {
            client.connection.cut();
        }
    }

    /// Asks it to close. One that serves a request closes afterwards.
    pub fn close(&self) {
        self.give_order(ConnectionOrder::Close);
    }

    /// Asks it to go elsewhere. One that serves a request goes afterwards; one that can not go so far closes instead.
    pub fn leave(&self, reach: Reach) {
        if self.order.get() != ConnectionOrder::Close {
            self.reach.set(Some(reach));
            self.give_order(ConnectionOrder::Leave);
        }
    }

    /// Takes back that it was asked to go elsewhere.
    pub fn stay(&self) {
        if self.is_leaving() {
            self.order.set(ConnectionOrder::None);
        }
    }

    /// Says where the connection may go from now on.
    pub fn set_mobility(&self, mobility: ConnectionMobility) {
        self.mobility.set(mobility);
    }

    /// Whether the connection may go so far.
    pub fn may_move(&self, reach: Reach) -> bool {
        match self.mobility.get() {
            ConnectionMobility::Anywhere => true,
            ConnectionMobility::Within => reach == Reach::Process,
            ConnectionMobility::Nowhere => false,
        }
    }

    /// Whether it was asked to go elsewhere, though it may have to close instead.
    pub fn is_leaving(&self) -> bool {
        self.order.get() == ConnectionOrder::Leave
    }

    fn give_order(&self, order: ConnectionOrder) {
        self.order.set(order);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Whether it was asked to close.
    pub fn is_closing(&self) -> bool {
        self.order() == ConnectionOrder::Close
    }

    /// What it was asked to do, as far as it can.
    pub fn order(&self) -> ConnectionOrder {
        let may_move = || self.reach.get().is_some_and(|reach| self.may_move(reach));
        match self.order.get() {
            ConnectionOrder::Leave if !may_move() => ConnectionOrder::Close,
            order => order,
        }
    }

    /// Ready when it was asked to do something.
    pub fn poll_order(&self, context: &mut std::task::Context<'_>) -> Poll<ConnectionOrder> {
        if self.order.get() != ConnectionOrder::None {
            return Poll::Ready(self.order());
        }
        let mut waker = self.waker.borrow_mut();
        if !waker
            .as_ref()
            .is_some_and(|known| known.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
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
        control.begin_waiting(now, 5_700);
        assert_eq!(control.work_since_noted(), BYTES_OF_A_REQUEST + 700);
        assert_eq!(control.work_since_noted(), 0);
    }
}
