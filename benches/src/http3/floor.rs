//! The floor: `quinn-proto` alone, with a prepared response for every stream. One socket, one thread, GSO and GRO, TLS; no
//! HTTP, no files, no timeouts. What a server that is made with this library can cost at least.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, EndpointConfig,
    Event, ServerConfig, StreamEvent, StreamId, WriteError,
};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use xtask::Outcome;
use xtask::flags::Flags;

use super::response::response;
use crate::Bench;

/// As many datagrams in one send as Weir makes.
const SEGMENTS: usize = 20;
const BUFFER_SIZE: usize = 65_536;
const BUFFERS: usize = 8;

/// How much is handed to the library at a time, in bytes.
const PIECE: usize = 64 * 1024;

struct FloorConnection {
    connection: Connection,
    timer: Option<Instant>,
    /// What is left to be written on a stream.
    left: HashMap<StreamId, usize>,
    is_dirty: bool,
}

/// `weir-bench http3-floor --port N --folder DIR --length BYTES`
pub(crate) fn run(_: &Bench, flags: &mut Flags) -> Outcome {
    let port: u16 = flags.value("--port", 0)?;
    let folder: String = flags.value("--folder", ".".to_owned())?;
    let length: usize = flags.value("--length", 1024)?;
    flags.finish()?;
    // The parent process waits until TCP connects.
    let _listener = TcpListener::bind(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    let server = server_config(Path::new(&folder))?;
    serve(port, server, length).map_err(|error| error.to_string())
}

fn server_config(folder: &Path) -> Result<Arc<ServerConfig>, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let chain = CertificateDer::from_pem_file(folder.join("cert.pem")).map_err(|e| told(&e))?;
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).map_err(|e| told(&e))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| told(&e))?
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .map_err(|e| told(&e))?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = QuicServerConfig::try_from(tls).map_err(|e| told(&e))?;
    Ok(Arc::new(ServerConfig::with_crypto(Arc::new(tls))))
}

fn serve(port: u16, server: Arc<ServerConfig>, length: usize) -> io::Result<()> {
    let socket = UdpSocket::bind(("127.0.0.1", port))?;
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    let mut endpoint = Endpoint::new(
        Arc::new(EndpointConfig::default()),
        Some(server),
        true,
        None,
    );
    let mut connections: HashMap<ConnectionHandle, FloorConnection> = HashMap::new();
    let mut memory = vec![0; BUFFERS * BUFFER_SIZE];
    let head = response(length);
    let content = Bytes::from(vec![b'x'; PIECE.min(length)]);
    let mut answer = Vec::with_capacity(64 * 1024);
    loop {
        await_datagram(&socket, &connections)?;
        let mut chunks = memory.chunks_exact_mut(BUFFER_SIZE);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let mut metas = [RecvMeta::default(); BUFFERS];
        let filled = state.recv(UdpSockRef::from(&socket), &mut slices, &mut metas);
        let now = Instant::now();
        let filled = filled.unwrap_or(0);
        for (meta, memory) in metas[..filled].iter().zip(memory.chunks_exact(BUFFER_SIZE)) {
            for datagram in memory[..meta.len].chunks(meta.stride.max(1)) {
                let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
                answer.clear();
                let datagram = BytesMut::from(datagram);
                match endpoint.handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut answer) {
                    Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                        if let Some(one) = connections.get_mut(&handle) {
                            one.connection.handle_event(event);
                            one.is_dirty = true;
                        }
                    }
                    Some(DatagramEvent::NewConnection(incoming)) => {
                        if let Ok((handle, connection)) =
                            endpoint.accept(incoming, now, &mut answer, None)
                        {
                            let fresh = FloorConnection {
                                connection,
                                timer: None,
                                left: HashMap::new(),
                                is_dirty: true,
                            };
                            connections.insert(handle, fresh);
                        }
                    }
                    _ => {}
                }
            }
        }
        for (handle, one) in &mut connections {
            if one.timer.is_some_and(|at| at <= now) {
                one.connection.handle_timeout(now);
                one.is_dirty = true;
            }
            if std::mem::take(&mut one.is_dirty) {
                one.answer(&head, &content, length);
                one.send(*handle, &mut endpoint, &state, &socket, &mut answer, now);
            }
        }
        connections.retain(|_, one| !one.connection.is_drained());
    }
}

/// Waits for a datagram or the first timer.
fn await_datagram(
    socket: &UdpSocket,
    connections: &HashMap<ConnectionHandle, FloorConnection>,
) -> io::Result<()> {
    let now = Instant::now();
    let next = connections.values().filter_map(|one| one.timer).min();
    let wait = next.map_or(Duration::from_secs(1), |at| {
        at.saturating_duration_since(now)
    });
    let wait = rustix::time::Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    let mut poll = [rustix::event::PollFd::new(
        socket,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut poll, Some(&wait))?;
    Ok(())
}

impl FloorConnection {
    /// Answers all streams that have ended, and goes on with those that have room.
    fn answer(&mut self, head: &[u8], content: &Bytes, length: usize) {
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                    while let Some(id) = self.connection.streams().accept(Dir::Bi) {
                        self.read(id, head, content, length);
                    }
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while self.connection.streams().accept(Dir::Uni).is_some() {}
                }
                Event::Stream(StreamEvent::Readable { id }) => {
                    self.read(id, head, content, length);
                }
                Event::Stream(StreamEvent::Writable { id }) => self.write(id, content),
                _ => {}
            }
        }
    }

    fn read(&mut self, id: StreamId, head: &[u8], content: &Bytes, length: usize) {
        let mut stream = self.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else {
            return;
        };
        let mut is_over = false;
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    is_over = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let _ = chunks.finalize();
        if is_over && !self.left.contains_key(&id) && id.dir() == Dir::Bi {
            let _ = self.connection.send_stream(id).write(head);
            self.left.insert(id, length);
            self.write(id, content);
        }
    }

    fn write(&mut self, id: StreamId, content: &Bytes) {
        let Some(left) = self.left.get_mut(&id) else {
            return;
        };
        let mut stream = self.connection.send_stream(id);
        while *left > 0 {
            let mut piece = [content.slice(..content.len().min(*left))];
            match stream.write_chunks(&mut piece) {
                Ok(written) => *left -= written.bytes,
                Err(WriteError::Blocked) => return,
                Err(_) => *left = 0,
            }
        }
        let _ = stream.finish();
        self.left.remove(&id);
    }

    fn send(
        &mut self,
        handle: ConnectionHandle,
        endpoint: &mut Endpoint,
        state: &UdpSocketState,
        socket: &UdpSocket,
        buffer: &mut Vec<u8>,
        now: Instant,
    ) {
        for _ in 0..16 {
            buffer.clear();
            let Some(transmit) = self.connection.poll_transmit(now, SEGMENTS, buffer) else {
                break;
            };
            let out = quinn_udp::Transmit {
                destination: transmit.destination,
                ecn: transmit
                    .ecn
                    .and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: &buffer[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            };
            let _ = state.try_send(UdpSockRef::from(socket), &out);
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = endpoint.handle_event(handle, event) {
                self.connection.handle_event(answer);
            }
        }
        self.timer = self.connection.poll_timeout();
    }
}
