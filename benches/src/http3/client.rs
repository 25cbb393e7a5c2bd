//! Clients of HTTP/3 on one thread: `quinn-proto` without a runtime, a socket for each client, and the little of HTTP/3
//! that requests without content need. Every response is checked: its status and its length.
//!
//! What this is not: a measure of clients. It acknowledges as `quinn` does, and its own time is not counted.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint,
    EndpointConfig, Event, IdleTimeout, ReadError, StreamEvent, StreamId, TransportConfig,
};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::event::epoll;

use super::response::{ResponseReader, request};
use crate::scale::client_socket::trusting;

/// How many datagrams one send has at most.
const SEGMENTS: usize = 10;

/// The most that the kernel puts into one buffer, in bytes, and how many there are.
const BUFFER_SIZE: usize = 65_536;
const BUFFERS: usize = 8;

/// What each client does.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// What is asked for.
    pub(crate) path: String,
    /// The length of its content.
    pub(crate) length: u64,
    /// How many requests are open at a time; 0: none.
    pub(crate) streams: usize,
}

/// A socket, and which of the clients have their connections over it: one, unless it is shared.
struct ClientSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    clients: HashMap<ConnectionHandle, usize>,
}

/// One client, its connection and its requests.
struct QuicClient {
    /// Its socket's place among all.
    socket: usize,
    handle: ConnectionHandle,
    connection: Connection,
    timer: Option<Instant>,
    open: HashMap<StreamId, ResponseReader>,
    is_connected: bool,
    /// How it ended, if it was not we who ended it.
    lost: Option<String>,
    /// It makes no requests any more.
    is_retired: bool,
    /// Every other datagram is lost, if this is some; whether it is the next one.
    drops_next: Option<bool>,
}

/// What all clients have had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) responses: u64,
    /// Requests that were not answered as they should have been.
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
}

/// The clients of one load.
pub(crate) struct QuicClients {
    clients: Vec<QuicClient>,
    sockets: Vec<ClientSocket>,
    /// How many connections a socket has.
    per_socket: usize,
    epoll: rustix::fd::OwnedFd,
    memory: Vec<u8>,
    work: Work,
    request: Bytes,
    config: ClientConfig,
    server: SocketAddr,
    pub(crate) totals: Totals,
    /// How long requests took, if that is wanted.
    pub(crate) times: Option<Vec<Duration>>,
    /// New requests are made.
    is_asking: bool,
}

impl QuicClients {
    /// Clients that connect to the server, once they are run.
    pub(crate) fn new(server: SocketAddr, work: Work) -> Result<QuicClients, String> {
        let tls = Arc::unwrap_or_clone(trusting(&["h3"])?);
        let tls = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
        let mut config = ClientConfig::new(Arc::new(tls));
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(IdleTimeout::try_from(Duration::from_secs(300)).ok());
        // A path of 50 Mbit/s and 100 ms has room for less.
        transport.stream_receive_window(quinn_proto::VarInt::from_u32(4 << 20));
        config.transport_config(Arc::new(transport));
        let request = request(&work.path);
        Ok(QuicClients {
            clients: Vec::new(),
            sockets: Vec::new(),
            per_socket: 1,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?,
            memory: vec![0; BUFFERS * BUFFER_SIZE],
            work,
            request,
            config,
            server,
            totals: Totals::default(),
            times: None,
            is_asking: true,
        })
    }

    /// From now on this number of clients share a socket: there are fewer descriptors than connections.
    pub(crate) fn share_sockets(&mut self, per_socket: usize) {
        self.per_socket = per_socket;
    }

    /// As many more clients, which connect from this address when they are run.
    pub(crate) fn add(&mut self, count: usize, from: [u8; 4]) -> Result<(), String> {
        for _ in 0..count {
            let has_room = |socket: &ClientSocket| socket.clients.len() < self.per_socket;
            let socket = match self.sockets.last().is_some_and(has_room) {
                true => self.sockets.len() - 1,
                false => self.open(from).map_err(|error| error.to_string())?,
            };
            let index = self.clients.len();
            let client = self.connect(socket, index)?;
            self.clients.push(client);
            self.send(index).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Opens a socket: its place.
    fn open(&mut self, from: [u8; 4]) -> io::Result<usize> {
        self.sockets.push(ClientSocket::bind(from)?);
        self.watch(self.sockets.len() - 1)?;
        Ok(self.sockets.len() - 1)
    }

    fn connect(&mut self, socket: usize, index: usize) -> Result<QuicClient, String> {
        let place = &mut self.sockets[socket];
        let (now, config) = (Instant::now(), self.config.clone());
        let begun = place
            .endpoint
            .connect(now, config, self.server, "localhost");
        let (handle, connection) = begun.map_err(|error| error.to_string())?;
        place.clients.insert(handle, index);
        Ok(QuicClient {
            socket,
            handle,
            connection,
            timer: None,
            open: HashMap::new(),
            is_connected: false,
            lost: None,
            is_retired: false,
            drops_next: None,
        })
    }

    fn watch(&self, socket: usize) -> io::Result<()> {
        let data = epoll::EventData::new_u64(socket as u64);
        epoll::add(
            &self.epoll,
            self.sockets[socket].socket.as_fd(),
            data,
            epoll::EventFlags::IN,
        )?;
        Ok(())
    }

    /// Another port for a client from now on, as behind a NAT that has forgotten the old one.
    pub(crate) fn rebind(&mut self, index: usize) -> Result<(), String> {
        let at = self.clients[index].socket;
        let place = &mut self.sockets[at];
        let local = place.socket.local_addr();
        let moved = local.and_then(|local| UdpSocket::bind((local.ip(), 0)));
        let socket = moved.map_err(|error| error.to_string())?;
        place.state =
            UdpSocketState::new(UdpSockRef::from(&socket)).map_err(|error| error.to_string())?;
        // The old one leaves the set as it closes.
        place.socket = socket;
        self.watch(at).map_err(|error| error.to_string())
    }

    /// Runs until it is done, at most for this long: whether it was.
    pub(crate) fn run_until(
        &mut self,
        most: Duration,
        mut is_done: impl FnMut(&QuicClients) -> bool,
    ) -> Result<bool, String> {
        let end = Instant::now() + most;
        loop {
            if is_done(self) {
                return Ok(true);
            }
            let now = Instant::now();
            if now >= end {
                return Ok(false);
            }
            // What is waited for need not come from a socket.
            let most = (end - now).min(Duration::from_millis(20));
            self.turn(most).map_err(|error| error.to_string())?;
        }
    }

    /// Runs for this long.
    pub(crate) fn run(&mut self, time: Duration) -> Result<(), String> {
        self.run_until(time, |_| false).map(drop)
    }

    /// Whether every client is connected, and has had a response if it wants one.
    pub(crate) fn all_connected(&self) -> bool {
        self.clients.iter().all(|client| client.is_connected)
    }

    /// Whether no request is open.
    pub(crate) fn is_quiet(&self) -> bool {
        self.clients.iter().all(|client| client.open.is_empty())
    }

    /// Connections that are over although more was to be asked for, and why the first one is.
    pub(crate) fn lost(&self) -> (usize, String) {
        let mut lost = self
            .clients
            .iter()
            .filter(|client| !client.is_retired)
            .filter_map(|client| client.lost.as_ref());
        let first = lost.next().cloned();
        (
            lost.count() + usize::from(first.is_some()),
            first.unwrap_or_default(),
        )
    }

    /// How many clients there are.
    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// How many requests are open.
    pub(crate) fn open_requests(&self) -> u64 {
        self.clients
            .iter()
            .map(|client| client.open.len() as u64)
            .sum()
    }

    /// Clients from this one on make no second request.
    pub(crate) fn retire_from(&mut self, first: usize) {
        for client in &mut self.clients[first..] {
            client.is_retired |= !client.open.is_empty();
        }
    }

    /// Lets open requests end, and begins no more.
    pub(crate) fn stop_asking(&mut self) {
        self.is_asking = false;
    }

    /// Waits for what comes first, a datagram or a timer, and deals with it.
    fn turn(&mut self, most: Duration) -> io::Result<()> {
        let now = Instant::now();
        let next = self.clients.iter().filter_map(|client| client.timer).min();
        let wait = next.map_or(most, |at| at.saturating_duration_since(now).min(most));
        // Rounded up: a timer that is a little late is better than a turn for nothing.
        let wait = rustix::time::Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let ready = match epoll::wait(&self.epoll, &mut events[..], Some(&wait)) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..ready] {
            for index in self.receive(event.data.u64() as usize) {
                self.advance(index)?;
            }
        }
        let now = Instant::now();
        if next.is_some_and(|at| at <= now) {
            for index in 0..self.clients.len() {
                let client = &mut self.clients[index];
                if client.timer.is_some_and(|at| at <= now) {
                    client.timer = None;
                    client.connection.handle_timeout(now);
                    self.advance(index)?;
                }
            }
        }
        Ok(())
    }

    /// Takes what has come on a socket: the clients that it is for.
    fn receive(&mut self, socket: usize) -> Vec<usize> {
        let place = &mut self.sockets[socket];
        let mut chunks = self.memory.chunks_exact_mut(BUFFER_SIZE);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let mut metas = [RecvMeta::default(); BUFFERS];
        let of = UdpSockRef::from(&place.socket);
        let mut touched = Vec::new();
        let filled = match place.state.recv(of, &mut slices, &mut metas) {
            Ok(filled) => filled,
            // Nothing there, or a report that a datagram was refused.
            Err(_) => return touched,
        };
        let now = Instant::now();
        let memory = self.memory.chunks_exact(BUFFER_SIZE);
        for (meta, memory) in metas[..filled].iter().zip(memory) {
            for datagram in memory[..meta.len].chunks(meta.stride.max(1)) {
                let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
                let (datagram, mut answer) = (BytesMut::from(datagram), Vec::new());
                let event = place
                    .endpoint
                    .handle(now, meta.addr, None, ecn, datagram, &mut answer);
                if let Some(DatagramEvent::ConnectionEvent(handle, event)) = event
                    && let Some(&index) = place.clients.get(&handle)
                {
                    self.clients[index].connection.handle_event(event);
                    if !touched.contains(&index) {
                        touched.push(index);
                    }
                }
            }
        }
        touched
    }

    /// Deals with what has happened to a connection, and sends what it has to send.
    fn advance(&mut self, index: usize) -> io::Result<()> {
        while let Some(event) = self.clients[index].connection.poll() {
            match event {
                Event::Connected => {
                    self.clients[index].begin_control();
                    self.clients[index].is_connected = true;
                }
                Event::ConnectionLost { reason } => {
                    let client = &mut self.clients[index];
                    client.lost = Some(reason.to_string());
                    self.totals.failed += client.open.len() as u64;
                    client.open.clear();
                }
                Event::Stream(StreamEvent::Readable { id }) => self.read(index, id),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    // The control stream of the server, and its QPACK streams: what they say does not matter here.
                    while self.clients[index]
                        .connection
                        .streams()
                        .accept(Dir::Uni)
                        .is_some()
                    {}
                }
                _ => {}
            }
        }
        self.ask(index);
        self.send(index)
    }

    /// Reads what has come on a stream.
    fn read(&mut self, index: usize, id: StreamId) {
        let client = &mut self.clients[index];
        let Some(reader) = client.open.get_mut(&id) else {
            return;
        };
        let mut stream = client.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else {
            return;
        };
        let mut is_over = None;
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => reader.feed(&chunk.bytes),
                Ok(None) => {
                    is_over = Some(true);
                    break;
                }
                Err(ReadError::Blocked) => break,
                Err(ReadError::Reset(_)) => {
                    is_over = Some(false);
                    break;
                }
            }
        }
        let _ = chunks.finalize();
        self.totals.bytes += std::mem::take(&mut reader.fresh);
        let Some(is_whole) = is_over else { return };
        let is_good = is_whole && reader.is_good(self.work.length);
        if let Some(times) = &mut self.times {
            times.push(reader.began.elapsed());
        }
        client.open.remove(&id);
        match is_good {
            true => self.totals.responses += 1,
            false => self.totals.failed += 1,
        }
    }

    /// Makes as many requests as there are to be.
    fn ask(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let is_asking = self.is_asking && !client.is_retired;
        if !client.is_connected || client.lost.is_some() || !is_asking {
            return;
        }
        while client.open.len() < self.work.streams {
            let Some(id) = client.connection.streams().open(Dir::Bi) else {
                return;
            };
            let mut stream = client.connection.send_stream(id);
            // An error shows as the end of the connection.
            let _ = stream.write_chunks(&mut [self.request.clone()]);
            let _ = stream.finish();
            client.open.insert(id, ResponseReader::new());
        }
    }

    /// Has a client ask for something else, once.
    pub(crate) fn ask_once(&mut self, index: usize) -> Result<(), String> {
        let client = &mut self.clients[index];
        let id = client
            .connection
            .streams()
            .open(Dir::Bi)
            .ok_or("no stream is free")?;
        let mut stream = client.connection.send_stream(id);
        let _ = stream.write_chunks(&mut [self.request.clone()]);
        let _ = stream.finish();
        client.open.insert(id, ResponseReader::new());
        self.send(index).map_err(|error| error.to_string())
    }

    // -- for attacks --

    /// Drops all clients without a word.
    pub(crate) fn forget_all(&mut self) {
        self.clients.clear();
        self.sockets.clear();
    }

    /// A new client in the place of one that is lost: whether it was.
    pub(crate) fn replace_lost(&mut self, index: usize) -> Result<bool, String> {
        if self.clients[index].lost.is_none() {
            return Ok(false);
        }
        let socket = self.clients[index].socket;
        let told = |error: io::Error| error.to_string();
        self.sockets[socket] = ClientSocket::bind([127, 0, 0, 1]).map_err(told)?;
        self.watch(socket).map_err(told)?;
        self.clients[index] = self.connect(socket, index)?;
        self.send(index).map_err(|error| error.to_string())?;
        Ok(true)
    }

    /// From now on every other datagram of a client is lost once it is connected.
    pub(crate) fn drop_every_other(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.is_connected {
            client.drops_next.get_or_insert(false);
        }
    }

    /// Makes requests and gives them up at once; how many.
    pub(crate) fn reset_requests(&mut self, index: usize, most: u64) -> Result<u64, String> {
        let request = self.request.clone();
        self.with_streams(index, most, |connection, id| {
            let _ = connection
                .send_stream(id)
                .write_chunks(&mut [request.clone()]);
            let code = quinn_proto::VarInt::from_u32(0x10c);
            let _ = connection.send_stream(id).reset(code);
            let _ = connection.recv_stream(id).stop(code);
        })
    }

    /// Sends bytes on new streams, and no end; on how many.
    pub(crate) fn send_bytes(
        &mut self,
        index: usize,
        most: u64,
        bytes: &Bytes,
    ) -> Result<u64, String> {
        self.with_streams(index, most, |connection, id| {
            let _ = connection
                .send_stream(id)
                .write_chunks(&mut [bytes.clone()]);
        })
    }

    fn with_streams(
        &mut self,
        index: usize,
        most: u64,
        mut act: impl FnMut(&mut Connection, StreamId),
    ) -> Result<u64, String> {
        let client = &mut self.clients[index];
        let mut count = 0;
        while count < most && client.is_connected && client.lost.is_none() {
            let Some(id) = client.connection.streams().open(Dir::Bi) else {
                break;
            };
            act(&mut client.connection, id);
            count += 1;
        }
        self.send(index).map_err(|error| error.to_string())?;
        Ok(count)
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let client = &mut self.clients[index];
        let place = &mut self.sockets[client.socket];
        client.pass_events(&mut place.endpoint);
        let now = Instant::now();
        let most = match client.drops_next {
            Some(_) => 1,
            None => place.state.max_gso_segments().clamp(1, SEGMENTS),
        };
        let mut buffer = Vec::with_capacity(16 * 1024);
        while let Some(transmit) = client.connection.poll_transmit(now, most, &mut buffer) {
            let out = quinn_udp::Transmit {
                destination: transmit.destination,
                ecn: transmit
                    .ecn
                    .and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: &buffer[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: None,
            };
            if let Some(drops_next) = &mut client.drops_next {
                *drops_next = !*drops_next;
                if *drops_next {
                    buffer.clear();
                    continue;
                }
            }
            // A full socket: lost, as on the way.
            let _ = place.state.try_send(UdpSockRef::from(&place.socket), &out);
            buffer.clear();
        }
        client.pass_events(&mut place.endpoint);
        client.timer = client.connection.poll_timeout();
        Ok(())
    }
}

impl ClientSocket {
    fn bind(from: [u8; 4]) -> io::Result<ClientSocket> {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::from(from), 0))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(ClientSocket {
            socket,
            state,
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None),
            clients: HashMap::new(),
        })
    }
}

impl QuicClient {
    /// Opens the control stream, with empty SETTINGS.
    fn begin_control(&mut self) {
        if let Some(id) = self.connection.streams().open(Dir::Uni) {
            let frames = Bytes::from_static(&[0x00, 0x04, 0x00]);
            let _ = self.connection.send_stream(id).write_chunks(&mut [frames]);
        }
    }

    fn pass_events(&mut self, endpoint: &mut Endpoint) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(answer);
            }
        }
    }
}

/// They say that they leave.
impl Drop for QuicClients {
    fn drop(&mut self) {
        for index in 0..self.clients.len() {
            self.clients[index].connection.close(
                Instant::now(),
                quinn_proto::VarInt::from_u32(0x100),
                Bytes::new(),
            );
            let _ = self.send(index);
        }
    }
}
