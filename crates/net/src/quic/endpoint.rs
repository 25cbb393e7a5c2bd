//! The QUIC of one UDP socket on one loop: which datagram belongs to which connection, and what leaves when.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::NumberMap;
use bytes::BytesMut;
use host::engine::ListenerSpec;
use host::error_log::Logger;
use quinn_proto::{
    ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointConfig,
    EndpointEvent, Incoming, ServerConfig, Transmit, VarInt,
};
use rt::net::{
    BatchedUdpSocket, DatagramBuffers, IncomingDatagram, OutgoingDatagrams, SocketAddress,
};

use super::arrival_state::ArrivalState;
use super::closed::QuicClosed;
use super::connection_ids::{
    IdCipher, IdIssuer, IdOwner, QuicSecret, destination_id, this_process,
};
use super::endpoint_reader::{is_of_datagram, read};
use super::handshake_crypto::{HandshakeCrypto, VERSION};
use super::initial_hello::HelloCollector;
use super::link::ConnectionLink;
use super::loops;
use super::patient::{PatientLinks, take_patient};
use super::socket_advice;
use super::used_tokens::UsedTokens;

/// How many clients may be in their handshakes, or before them, until new ones have to prove their address (Retry, RFC
/// 9000, section 8.1.2): an attacker with forged addresses costs no handshakes then.
const HALF_OPEN_LIMIT: usize = 256;

/// How many clients may be in front of their handshakes. Beyond that new ones are not answered.
const ARRIVAL_LIMIT: usize = 1024;

/// How much may arrive of one client while its settings are chosen, and of all, in bytes.
const EARLY_BYTES: u64 = 64 * 1024;
const EARLY_BYTES_OF_ALL: u64 = 4 << 20;

/// How many sends of more than one datagram's worth a turn has, of all connections: a hundred downloads must not make others
/// wait until each has sent its part. Who comes later is first in the next turn.
const SENDS_IN_A_TURN: usize = 64;

/// How often it is looked whether a stuck loop has recovered.
const RESCUE_CHECK: Duration = Duration::from_millis(20);

rt::local! {
    /// The memory that all endpoints of this loop receive into.
    static BUFFERS: RefCell<Option<DatagramBuffers>> = const { RefCell::new(None) };
}

/// The settings of an endpoint: those of the default server at its address.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicEndpointSettings {
    /// Every client has to prove its address first (`quic_retry`).
    pub retry: bool,
    /// Whether the system divides large sends into datagrams (`quic_gso`).
    pub segments: bool,
    /// Whether the kernel chooses the loop's socket by connection id (`quic_bpf`).
    pub steers: bool,
    /// What ids and tokens are made with.
    pub secret: QuicSecret,
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// It has left, or is lost.
    Done,
    /// The socket has no room.
    Full,
}

/// The function that takes a new client.
type ArrivalTaker = Rc<dyn Fn(Rc<QuicEndpoint>, Rc<ArrivalState>)>;

/// A socket that QUIC is to be served at.
pub struct QuicListener {
    /// The socket.
    pub socket: OwnedFd,
    /// What it was opened for.
    pub spec: Arc<ListenerSpec>,
    /// Its number among the sockets of its address.
    pub member: usize,
    /// For lines about the socket.
    pub log: Logger,
}

/// QUIC at one socket of a loop.
pub(super) struct QuicEndpoint {
    pub(super) spec: Arc<ListenerSpec>,
    pub(super) socket: BatchedUdpSocket,
    /// `None` for a socket of a client.
    pub(super) log: Option<Logger>,
    core: RefCell<Endpoint>,
    ids: IdCipher,
    pub(super) owner: IdOwner,
    pub(super) secret: QuicSecret,
    /// The address tokens that have been used.
    used_tokens: Arc<UsedTokens>,
    pub(super) connections: RefCell<NumberMap<Rc<ConnectionLink>>>,
    /// Clients whose hello is not complete, by the id that they have chosen.
    arrivals: RefCell<HashMap<Vec<u8>, Rc<ArrivalState>>>,
    /// Clients that have no connection yet, or one that is not complete.
    pub(super) half_open: Cell<usize>,
    /// Connections with something to send.
    pub(super) dirty: RefCell<Vec<Rc<ConnectionLink>>>,
    /// Connections for whose datagrams the socket had no room, or which have had their share of a turn.
    pub(super) later: RefCell<VecDeque<Rc<ConnectionLink>>>,
    is_blocked: Cell<bool>,
    /// Connections whose datagrams wait for those of others.
    pub(super) patient: PatientLinks,
    /// How many datagrams have been read since the task that reads has set it to 0.
    pub(super) work: Cell<usize>,
    /// The task that reads.
    pub(super) reader: RefCell<Option<Waker>>,
    retries: Cell<bool>,
    /// New clients are taken.
    pub(super) is_accepting: Cell<bool>,
    /// The socket is read; another process reads it otherwise.
    pub(super) is_reading: Cell<bool>,
    /// It has one connection, to a server.
    pub(super) is_client: bool,
    take: ArrivalTaker,
    send_buffer: RefCell<Vec<u8>>,
}

impl QuicEndpoint {
    /// See [`super::serve_listener`].
    pub(super) fn open(
        listener: QuicListener,
        settings: &QuicEndpointSettings,
        take: ArrivalTaker,
    ) -> io::Result<rt::JoinHandle<()>> {
        let QuicListener {
            socket,
            spec,
            member,
            log,
        } = listener;
        let socket = BatchedUdpSocket::from_fd(socket, settings.segments)?;
        let owner = loops::next_owner();
        let ids = settings.secret.id_cipher();
        socket_advice::prepare_socket(&socket, &spec, &log);
        if settings.steers && spec.options.reuse_port {
            socket_advice::steer(&socket, &ids, &spec, &log);
        }
        let used_tokens = Arc::<UsedTokens>::default();
        let server = server_config(
            HandshakeCrypto::Refuse(0),
            &settings.secret,
            &used_tokens,
            &quinn_proto::TransportConfig::default,
        );
        let endpoint = QuicEndpoint {
            used_tokens,
            retries: Cell::new(settings.retry),
            ..QuicEndpoint::new(
                (socket, spec, owner),
                &settings.secret,
                u8::try_from(member).unwrap_or(u8::MAX),
                Some(server),
                take,
            )
        };
        let endpoint = Rc::new(QuicEndpoint {
            log: Some(log),
            ..endpoint
        });
        loops::register(&endpoint);
        rt::spawn_named("quic", read(Rc::clone(&endpoint)));
        let patient = take_patient(Rc::clone(&endpoint));
        // Dropping the handle lets it run: it ends with the task that reads.
        drop(rt::spawn_ranked(
            "quic of new clients",
            rt::TaskRank::Patient,
            patient,
        ));
        let guard = AcceptingGuard(Rc::downgrade(&endpoint));
        Ok(rt::spawn_handle("quic listener", async move {
            let _until_aborted = guard;
            std::future::pending::<()>().await;
        }))
    }

    /// Serves the one connection of a client, over this connected socket.
    pub(super) fn open_client(socket: OwnedFd) -> io::Result<Rc<QuicEndpoint>> {
        let socket = BatchedUdpSocket::from_fd(socket, true)?;
        let address = match socket.local_addr()? {
            SocketAddress::Inet(address) => address,
            SocketAddress::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let spec = Arc::new(ListenerSpec {
            address: host::listen::ListenAddress::Udp(address),
            options: host::listen::ListenOptions::default(),
        });
        let place = (socket, spec, loops::next_owner());
        let take = Rc::new(|_: Rc<QuicEndpoint>, _: Rc<ArrivalState>| {});
        let endpoint = QuicEndpoint::new(place, &QuicSecret::common(), 0, None, take);
        let endpoint = Rc::new(endpoint);
        rt::spawn_named("quic to upstream", read(Rc::clone(&endpoint)));
        Ok(endpoint)
    }

    /// Without `server` it takes no clients.
    fn new(
        (socket, spec, owner): (BatchedUdpSocket, Arc<ListenerSpec>, IdOwner),
        secret: &QuicSecret,
        member: u8,
        server: Option<Arc<ServerConfig>>,
        take: ArrivalTaker,
    ) -> QuicEndpoint {
        let ids = secret.id_cipher();
        let issuer = IdIssuer {
            cipher: ids.clone(),
            owner,
            member,
        };
        let mut config = EndpointConfig::new(Arc::new(secret.reset_key()));
        config
            .cid_generator(move || Box::new(issuer.clone()))
            .supported_versions(vec![VERSION])
            .grease_quic_bit(true);
        let measures_mtu = !socket.may_fragment();
        let is_client = server.is_none();
        let core = Endpoint::new(Arc::new(config), server, measures_mtu, None);
        QuicEndpoint {
            spec,
            socket,
            log: None,
            core: RefCell::new(core),
            ids,
            owner,
            secret: secret.clone(),
            used_tokens: Arc::default(),
            connections: RefCell::default(),
            arrivals: RefCell::default(),
            half_open: Cell::new(0),
            dirty: RefCell::default(),
            later: RefCell::default(),
            is_blocked: Cell::new(false),
            patient: PatientLinks::default(),
            work: Cell::new(0),
            reader: RefCell::default(),
            retries: Cell::new(false),
            is_accepting: Cell::new(!is_client),
            is_reading: Cell::new(true),
            is_client,
            take,
            send_buffer: RefCell::default(),
        }
    }

    /// Begins a connection to a server.
    pub(super) fn connect(
        self: &Rc<Self>,
        config: quinn_proto::ClientConfig,
        to: SocketAddr,
        name: &str,
    ) -> Result<Rc<ConnectionLink>, quinn_proto::ConnectError> {
        let begun = self.core.borrow_mut().connect(rt::now(), config, to, name);
        let (handle, connection) = begun?;
        self.half_open.set(self.half_open.get() + 1);
        let link = ConnectionLink::new(self, handle, connection, Arc::default());
        self.connections
            .borrow_mut()
            .insert(key_of(handle), Rc::clone(&link));
        link.mark_dirty();
        Ok(link)
    }

    /// The listening socket.
    pub(super) fn spec(&self) -> &Arc<ListenerSpec> {
        &self.spec
    }

    /// Whether every client has to prove its address first, from now on.
    pub(super) fn set_retry(&self, retry: bool) {
        self.retries.set(retry);
    }

    pub(super) fn local_address(&self) -> SocketAddress {
        match (self.socket.local_addr(), &self.spec.address) {
            (Ok(address), _) => address,
            (Err(_), host::listen::ListenAddress::Udp(address)) => SocketAddress::Inet(*address),
            (Err(_), _) => SocketAddress::Inet(SocketAddr::from(([0, 0, 0, 0], 0))),
        }
    }

    /// Reads the socket of another loop, which is stuck, while `still` returns true: new clients are taken here, and the
    /// other's datagrams wait in its inbox.
    pub(super) fn read_for(
        self: &Rc<Self>,
        socket: OwnedFd,
        still: Rc<dyn Fn() -> bool>,
    ) -> io::Result<()> {
        let socket = BatchedUdpSocket::from_fd(socket, false)?;
        let endpoint = Rc::clone(self);
        rt::spawn_named("quic in another loop's place", async move {
            while still() && endpoint.is_accepting.get() {
                let received = std::future::poll_fn(|context| endpoint.receive(&socket, context));
                // The timeout is what ends this task when nothing arrives any more.
                if let Ok(Err(error)) = rt::timeout(RESCUE_CHECK, received).await
                    && !is_of_datagram(&error)
                {
                    return;
                }
            }
        });
        Ok(())
    }

    /// The socket is another process's from now on: what is for connections here comes from there.
    pub(super) fn stop_reading(&self) {
        self.is_reading.set(false);
        self.is_accepting.set(false);
        loops::stop_accepting(self.owner);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.connections.borrow().is_empty() && self.half_open.get() == 0
    }

    // -- datagrams --

    /// Takes what has arrived on the socket, up to some hundred datagrams.
    pub(super) fn receive(
        self: &Rc<Self>,
        socket: &BatchedUdpSocket,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        BUFFERS.with_borrow_mut(|buffers| {
            let buffers = buffers.get_or_insert_default();
            std::task::ready!(socket.poll_receive(context, buffers))?;
            for datagram in buffers.datagrams() {
                self.route(&datagram);
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Takes a datagram, or passes it on to the loop or the process that has its connection.
    pub(super) fn route(self: &Rc<Self>, datagram: &IncomingDatagram<'_>) {
        self.work.set(self.work.get() + 1);
        let Some(id) = destination_id(datagram.content) else {
            return;
        };
        // A client's socket has one connection.
        if self.is_client {
            return self.take_datagram(datagram);
        }
        match self.ids.owner_of(id) {
            Some(owner) if owner != self.owner => {
                if !loops::forward(self, owner, datagram) {
                    // Nobody has it any more: the client learns of it.
                    self.take_datagram(datagram);
                }
            }
            Some(_) => self.take_datagram(datagram),
            None if self.is_accepting.get() || self.knows(id) => self.patient.add_arrival(datagram),
            // A new client, and a socket that is only read for old ones.
            None if loops::forward_new(self, datagram) => {}
            // Nobody does: the client is told.
            None => self.take_datagram(datagram),
        }
    }

    /// Whether a client in front of its handshake has chosen this id.
    fn knows(&self, id: &[u8]) -> bool {
        self.arrivals.borrow().contains_key(id)
    }

    /// Takes a datagram of a connection that is here, or of a new client.
    pub(super) fn take_datagram(self: &Rc<Self>, datagram: &IncomingDatagram<'_>) {
        let mut answer = self.send_buffer.take();
        answer.clear();
        let event = self.core.borrow_mut().handle(
            rt::now(),
            datagram.from,
            datagram.to,
            EcnCodepoint::from_bits(datagram.ecn),
            BytesMut::from(datagram.content),
            &mut answer,
        );
        match event {
            None => self.feed_hello(datagram.content),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                self.give(handle, event, datagram.from);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.take_client(incoming, datagram.content, &mut answer);
            }
            Some(DatagramEvent::Response(transmit)) => {
                // A socket without room: the client asks again.
                self.send(&transmit, &answer);
            }
        }
        self.send_buffer.replace(answer);
    }

    fn give(&self, handle: ConnectionHandle, event: ConnectionEvent, from: SocketAddr) {
        let link = self.connections.borrow().get(&key_of(handle)).cloned();
        if let Some(link) = link {
            link.take_datagram(event, from);
        }
    }

    /// Whether a client that has not proved its address has to do so before anything else.
    fn wants_proof(&self, incoming: &Incoming) -> bool {
        let is_needed = self.retries.get() || self.half_open.get() >= HALF_OPEN_LIMIT;
        is_needed && !incoming.remote_address_validated() && incoming.may_retry()
    }

    fn take_client(self: &Rc<Self>, incoming: Incoming, datagram: &[u8], answer: &mut Vec<u8>) {
        if !self.is_accepting.get() {
            let transmit = self.core.borrow_mut().refuse(incoming, answer);
            self.send(&transmit, answer);
            return;
        }
        if self.wants_proof(&incoming) {
            let retry = self.core.borrow_mut().retry(incoming, answer);
            match retry {
                Ok(transmit) => drop(self.send(&transmit, answer)),
                Err(error) => self.core.borrow_mut().ignore(error.into_incoming()),
            }
            return;
        }
        let Some(id) = destination_id(datagram).map(<[u8]>::to_vec) else {
            return self.core.borrow_mut().ignore(incoming);
        };
        let full = self.arrivals.borrow().len() >= ARRIVAL_LIMIT;
        let collector = HelloCollector::new(&quinn_proto::ConnectionId::new(&id));
        let Some(mut collector) = collector.filter(|_| !full) else {
            return self.core.borrow_mut().ignore(incoming);
        };
        let progress = collector.take_datagram(datagram);
        // Noise must not take the place of clients.
        if !collector.is_authentic() {
            return self.core.borrow_mut().ignore(incoming);
        }
        let state = ArrivalState::new(id.clone(), incoming, collector, progress);
        let state = Rc::new(state);
        self.arrivals.borrow_mut().insert(id, Rc::clone(&state));
        self.half_open.set(self.half_open.get() + 1);
        (self.take)(Rc::clone(self), state);
    }

    /// A datagram that the library keeps for a client whose handshake has not begun.
    fn feed_hello(&self, datagram: &[u8]) {
        let Some(id) = destination_id(datagram) else {
            return;
        };
        let state = self.arrivals.borrow().get(id).cloned();
        if let Some(state) = state {
            state.take_datagram(datagram);
        }
    }

    // -- for arrivals --

    pub(super) fn forget_arrival(&self, state: &ArrivalState) {
        self.arrivals.borrow_mut().remove(state.id());
        if let Some(incoming) = state.take_incoming() {
            self.core.borrow_mut().ignore(incoming);
            self.half_open.set(self.half_open.get() - 1);
        }
    }

    /// Begins the handshake of a client, or refuses it. It remains half-open.
    pub(super) fn begin(
        self: &Rc<Self>,
        incoming: Incoming,
        crypto: HandshakeCrypto,
        transport: &dyn Fn() -> quinn_proto::TransportConfig,
    ) -> Result<Rc<ConnectionLink>, quinn_proto::ConnectionError> {
        let proof = match &crypto {
            HandshakeCrypto::Accept { proof, .. } => Arc::clone(proof),
            HandshakeCrypto::Refuse(_) => Arc::default(),
        };
        let config = server_config(crypto, &self.secret, &self.used_tokens, transport);
        let mut answer = Vec::new();
        let accepted =
            self.core
                .borrow_mut()
                .accept(incoming, rt::now(), &mut answer, Some(config));
        match accepted {
            Ok((handle, connection)) => {
                let link = ConnectionLink::new(self, handle, connection, proof);
                link.set_rank(rt::TaskRank::Patient);
                self.connections
                    .borrow_mut()
                    .insert(key_of(handle), Rc::clone(&link));
                link.take_events();
                link.mark_dirty();
                Ok(link)
            }
            Err(error) => {
                self.half_open.set(self.half_open.get() - 1);
                if let Some(transmit) = error.response {
                    self.send(&transmit, &answer);
                }
                Err(error.cause)
            }
        }
    }

    // -- for connections --

    pub(super) fn handle_event(
        &self,
        handle: ConnectionHandle,
        event: EndpointEvent,
    ) -> Option<ConnectionEvent> {
        self.core.borrow_mut().handle_event(handle, event)
    }

    pub(super) fn forget(&self, handle: ConnectionHandle) {
        self.connections.borrow_mut().remove(&key_of(handle));
        if !self.is_accepting.get() {
            self.wake_reader();
        }
    }

    pub(super) fn most_segments(&self) -> usize {
        self.socket.most_segments()
    }

    /// Sends datagrams. An error of the system other than a full socket is a loss, which the protocol repairs.
    pub(super) fn send(&self, transmit: &Transmit, content: &[u8]) -> SendOutcome {
        let sent = self.socket.try_send(&OutgoingDatagrams {
            to: transmit.destination,
            from: transmit.src_ip,
            ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
            content: &content[..transmit.size],
            size: transmit.segment_size,
        });
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => SendOutcome::Full,
            Ok(()) | Err(_) => SendOutcome::Done,
        }
    }

    pub(super) fn note_dirty(self: &Rc<Self>, link: Rc<ConnectionLink>) {
        let mut dirty = self.dirty.borrow_mut();
        dirty.push(link);
        if dirty.len() == 1 {
            let endpoint = Rc::clone(self);
            rt::at_turn_end(move || endpoint.flush());
        }
    }

    pub(super) fn note_blocked(&self, link: Rc<ConnectionLink>) {
        self.is_blocked.set(true);
        self.resume_next_turn(link);
    }

    pub(super) fn resume_next_turn(&self, link: Rc<ConnectionLink>) {
        self.later.borrow_mut().push_back(link);
        self.wake_reader();
    }

    /// Gives up the clients whose handshakes are not complete.
    pub(super) fn give_up_handshakes(&self) {
        let links: Vec<Rc<ConnectionLink>> = self.connections.borrow().values().cloned().collect();
        for link in links.iter().filter(|link| !link.is_connected()) {
            link.close(VarInt::from_u32(0), b"");
        }
    }

    /// Nobody listens at the server's port. Once a connection is established this proves nothing: anybody can send such a report.
    pub(super) fn refuse_handshake(&self) {
        let links: Vec<Rc<ConnectionLink>> = self.connections.borrow().values().cloned().collect();
        for link in links.iter().filter(|link| !link.is_connected()) {
            link.give_up(QuicClosed::Unreachable);
        }
    }

    fn wake_reader(&self) {
        let waker = self.reader.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sends what connections have to send. At the end of a turn: what several streams have written in it, and the
    /// acknowledgements of what was received in it, share datagrams and system calls.
    fn flush(&self) {
        let now = rt::now();
        let mut buffer = self.send_buffer.take();
        let dirty = std::mem::take(&mut *self.dirty.borrow_mut());
        let mut left = SENDS_IN_A_TURN;
        for link in dirty {
            link.is_dirty.set(false);
            match left {
                0 => self.resume_next_turn(link),
                _ => left = left.saturating_sub(link.transmit(now, &mut buffer)),
            }
        }
        self.send_buffer.replace(buffer);
    }

    /// Has those continue that had to wait.
    pub(super) fn resume(&self, context: &mut Context<'_>) {
        if self.is_blocked.get() {
            // An error shows with the next send.
            if self.socket.poll_writable(context).is_pending() {
                return;
            }
            self.is_blocked.set(false);
        }
        let later = std::mem::take(&mut *self.later.borrow_mut());
        for link in later {
            link.mark_dirty();
        }
    }
}

/// A number for a handle: the library reuses them.
fn key_of(handle: ConnectionHandle) -> u64 {
    handle.0 as u64
}

/// The library's settings for a client.
fn server_config(
    crypto: HandshakeCrypto,
    secret: &QuicSecret,
    used_tokens: &Arc<UsedTokens>,
    transport: &dyn Fn() -> quinn_proto::TransportConfig,
) -> Arc<ServerConfig> {
    let mut config = ServerConfig::new(Arc::new(crypto), Arc::new(secret.token_key()));
    config
        .validation_token_config(used_tokens.config())
        .transport_config(Arc::new(transport()))
        .max_incoming(ARRIVAL_LIMIT)
        .incoming_buffer_size(EARLY_BYTES)
        .incoming_buffer_size_total(EARLY_BYTES_OF_ALL);
    Arc::new(config)
}

/// Ends the taking of new clients when the listener's task is aborted.
struct AcceptingGuard(Weak<QuicEndpoint>);

impl Drop for AcceptingGuard {
    fn drop(&mut self) {
        if let Some(endpoint) = self.0.upgrade() {
            endpoint.is_accepting.set(false);
            loops::stop_accepting(endpoint.owner);
            // Those who have not said yet what they want would be waited for.
            for state in endpoint.arrivals.borrow().values() {
                state.give_up();
            }
            endpoint.wake_reader();
        }
    }
}

/// Which process is meant.
pub(super) fn is_here(owner: IdOwner) -> bool {
    owner.process == this_process()
}

/// Our address that a datagram was sent to.
pub(super) type LocalIp = Option<IpAddr>;
