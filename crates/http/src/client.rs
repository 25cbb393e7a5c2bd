//! The client's side of a request: what is known of its connection, whatever the protocol on it.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use net::Transport;
use net::client::Remote;
use rt::engine::Reach;
use rt::listen::ListenAddress;
use rt::net::Address;

use crate::listen::Endpoint;
use crate::site::ServerId;
use crate::tls::AskedName;

/// One client connection, shared by everything that serves its requests.
pub struct Client {
    /// The number of the connection, as `$connection` and the error log show it. Unique in this process.
    pub number: u64,
    /// The connection itself.
    pub stream: Transport,
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
    /// Bytes written to the socket since the connection began.
    pub sent: Cell<u64>,
    /// `tcp_nodelay` has been switched on for it.
    pub(crate) without_delay: Cell<bool>,
    /// Bytes that were read and not yet consumed.
    pub input: RefCell<Vec<u8>>,
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
    pub idle: Rc<Idle>,
    /// The listening address and the servers behind it, in the configuration of the present request.
    pub endpoint: RefCell<Arc<Endpoint>>,
}

impl Client {
    /// What is left of a time that began when the connection was accepted. All that comes before its first request has one
    /// `client_header_timeout` together, as with nginx: PROXY protocol, TLS, telling the protocol, and the head itself.
    pub fn rest_of(&self, timeout: Duration) -> Duration {
        timeout.saturating_sub(rt::now().saturating_duration_since(self.accepted))
    }

    /// What is written is sent at once from now on (`tcp_nodelay`): no small packet waits for the acknowledgement of the
    /// one before, which some clients put off for 40 ms.
    pub(crate) fn send_without_delay(&self) {
        if !self.without_delay.replace(true) {
            // A socket that refuses is slower, not wrong.
            let _ = self.stream.socket().set_nodelay(true);
        }
    }

    /// The server that its requests begin at: the one that it asked for by TLS, else the default one of the address.
    pub fn first_server(&self) -> ServerId {
        let asked = self.asked_name.borrow();
        let server = asked.as_ref().and_then(|asked| asked.server);
        server.unwrap_or_else(|| self.endpoint.borrow().default_server)
    }

    /// The address that the client connected to. A socket that can not tell it any more counts as a unix socket.
    pub fn local(&self) -> Address {
        if let Some(address) = &self.passed_at {
            return address.clone();
        }
        self.stream
            .socket()
            .local_addr()
            .cloned()
            .unwrap_or_else(|_| Address::Unix(rt::net::UnixPath::new(Path::new(""))))
    }
}

/// How the loop reaches a connection that waits for a request: to close it when the server stops, or when its place
/// is needed for a new client.
#[derive(Default)]
pub struct Idle {
    since: Cell<Option<Instant>>,
    /// How often it waited so far.
    waits: Cell<u64>,
    /// Bytes that were sent on it when it last began to wait.
    sent: Cell<u64>,
    /// [`Idle::work`] at a time when the loop wanted to know who makes it work.
    noted: Cell<Option<u64>>,
    asked: Cell<Asked>,
    moves: Cell<Moves>,
    /// How far [`Asked::Leave`] is to lead.
    reach: Cell<Option<Reach>>,
    waker: RefCell<Option<Waker>>,
    /// Whose it is, once requests are served.
    client: RefCell<Weak<Client>>,
}

/// A request costs a loop as much as to send so many bytes: 10 µs, at 0.1 ns a byte.
const BYTES_OF_A_REQUEST: u64 = 100_000;

/// What a connection was asked to do once it waits for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    #[default]
    Nothing,
    /// To close.
    Close,
    /// To go to another loop or process.
    Leave,
}

/// Where a connection may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moves {
    /// To another process.
    #[default]
    Anywhere,
    /// To another loop: it has state that bytes do not tell.
    Within,
    /// It stays.
    Nowhere,
}

impl Idle {
    /// Marks the connection as waiting from `now` on. `sent`: bytes that were sent on it so far.
    pub fn begin(&self, now: Instant, sent: u64) {
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

    /// What it made the loop do since [`Idle::note_work`], in requests that have ended; 0 if it was not there then. That is
    /// forgotten with it.
    pub fn take_work(&self) -> u64 {
        let noted = self.noted.take();
        noted.map_or(0, |noted| self.work().saturating_sub(noted))
    }

    /// The number of the request that it is busy with; `None` while it waits for one.
    pub fn busy(&self) -> Option<u64> {
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
    pub fn end(&self) {
        self.since.set(None);
    }

    /// Since when it waits.
    pub fn since(&self) -> Option<Instant> {
        self.since.get()
    }

    /// Requests of this client are served from now on.
    pub(crate) fn serves(&self, client: &Rc<Client>) {
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
            // One that is not connected any more ends by itself.
            let _ = client.stream.socket().shutdown();
        }
    }

    /// Asks it to close. One that serves a request closes afterwards.
    pub fn close(&self) {
        self.ask(Asked::Close);
    }

    /// Asks it to go elsewhere. One that serves a request goes afterwards; one that can not go so far closes instead.
    pub fn leave(&self, reach: Reach) {
        if self.asked.get() != Asked::Close {
            self.reach.set(Some(reach));
            self.ask(Asked::Leave);
        }
    }

    /// Takes back that it was asked to go elsewhere.
    pub fn stay(&self) {
        if self.is_leaving() {
            self.asked.set(Asked::Nothing);
        }
    }

    /// Says where the connection may go from now on.
    pub fn moves(&self, moves: Moves) {
        self.moves.set(moves);
    }

    /// Whether the connection may go so far.
    pub fn may_go(&self, reach: Reach) -> bool {
        match self.moves.get() {
            Moves::Anywhere => true,
            Moves::Within => reach == Reach::Process,
            Moves::Nowhere => false,
        }
    }

    /// Whether it was asked to go elsewhere, though it may have to close instead.
    pub fn is_leaving(&self) -> bool {
        self.asked.get() == Asked::Leave
    }

    fn ask(&self, asked: Asked) {
        self.asked.set(asked);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Whether it was asked to close.
    pub fn is_closing(&self) -> bool {
        self.asked() == Asked::Close
    }

    /// What it was asked to do, as far as it can.
    pub fn asked(&self) -> Asked {
        let may_go = || self.reach.get().is_some_and(|reach| self.may_go(reach));
        match self.asked.get() {
            Asked::Leave if !may_go() => Asked::Close,
            asked => asked,
        }
    }

    /// Ready when it was asked to do something.
    pub fn poll_asked(&self, context: &mut std::task::Context<'_>) -> Poll<Asked> {
        if self.asked.get() != Asked::Nothing {
            return Poll::Ready(self.asked());
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
        let (idle, now) = (Idle::default(), Instant::now());
        idle.begin(now, 5_000);
        assert_eq!(idle.take_work(), 0, "it was not there then");
        idle.note_work();
        assert_eq!(idle.take_work(), 0);
        idle.note_work();
        idle.begin(now, 5_700);
        assert_eq!(idle.take_work(), BYTES_OF_A_REQUEST + 700);
        assert_eq!(idle.take_work(), 0);
    }
}
