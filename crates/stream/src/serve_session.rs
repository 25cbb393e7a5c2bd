//! The course of a session, from the arrival of the client to its line in the log.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bstr::BString;
use host::engine::ListenerSpec;
use host::error_log::LogLevel;
use net::client::RemoteClient;
use net::passing::PassedConnection;
use proto::proxy_protocol::{DecodedProxyHeader, MAX_HEADER, ProxyHeaderStatus};
use rt::net::SocketAddress;

use crate::client::{SessionTransport, StreamClient};
use crate::phase::{SessionOutcome, StreamPhase, status};
use crate::session::{SessionEnding, StreamSession};
use crate::stream_loop::StreamLoop;

/// The phases up to the content, and what the error log says is being done in them, in the words of nginx.
const PHASES: [(StreamPhase, &str); 5] = [
    (StreamPhase::PostAccept, "initializing session"),
    (StreamPhase::Preaccess, "initializing session"),
    (StreamPhase::Access, "initializing session"),
    (StreamPhase::Preread, "prereading client data"),
    (StreamPhase::Content, ""),
];

/// A connection or a first datagram, before it is a session.
pub(crate) struct AcceptedSession {
    /// The connection or datagrams.
    pub(crate) transport: SessionTransport,
    /// The listening socket.
    pub(crate) socket: Arc<ListenerSpec>,
    /// The address at which it counts as accepted, if another address of the server has passed it on.
    pub(crate) passed_at: Option<SocketAddress>,
    /// How often it was passed on.
    pub(crate) passes: u8,
    /// What was read of it and not used before it was passed on.
    pub(crate) input: Vec<u8>,
}

impl AcceptedSession {
    /// One that was just accepted.
    pub(crate) fn new(transport: SessionTransport, socket: &Arc<ListenerSpec>) -> AcceptedSession {
        AcceptedSession {
            transport,
            socket: Arc::clone(socket),
            passed_at: None,
            passes: 0,
            input: Vec::new(),
        }
    }
}

/// Serves one session.
pub(crate) async fn serve_session(engine: Rc<StreamLoop>, accepted: AcceptedSession) {
    // Made first: it takes the session off the counters however this ends, also when the task is dropped.
    let datagrams = DatagramSlot(flow(&accepted.transport));
    let Some(mut session) = begin(engine, accepted) else {
        return;
    };
    session.status = match read_proxy_header(&mut session).await {
        Ok(()) => run(&mut session).await,
        Err(status) => status,
    };
    // No log phase and no TLS end: for the client nothing is over.
    if let Some(address) = session.pass_to.take() {
        return pass(session, address);
    }
    session.debug(format_args!("finalize stream session: {}", session.status));
    if let Some(stream) = session
        .client
        .stream()
        .filter(|_| session.pass_to.is_none())
    {
        // With TLS the client can tell an end from a cut (RFC 8446, section 6.1).
        stream.say_goodbye();
    }
    let site = Rc::clone(&session.site);
    for handler in &site.server(session.server).phases[StreamPhase::Log] {
        // Nothing can be decided any more, so what a handler says does not count.
        let _ = handler(&mut session).outcome().await;
    }
    // Before logs are waited for: the client may know already that the session is over, and `limit_conn` must not
    // refuse its next one because of this one.
    let endings = session.release_states();
    if let Some(flow) = &datagrams.0 {
        flow.end_session();
    }
    // A client that sees its connection closed finds the line in the log. The wait is bounded, so that a slow disk does
    // not keep connections open.
    let lines = session.logger().flushed_receivers();
    if !lines.is_empty() || !endings.is_empty() {
        let _ = rt::timeout(PATIENCE, all(lines, endings)).await;
    }
}

/// Hands the connection of a session to another address. The session writes no line in the access log, as in nginx: the
/// address that gets the connection writes one.
fn pass(session: StreamSession, address: SocketAddress) {
    let passes = session.client.passes + 1;
    // The handlers have ended, so the session is the last owner. Were it not, the connection would close.
    let client = Rc::try_unwrap(session.client).ok();
    let Some(StreamClient {
        transport: SessionTransport::Stream(stream),
        input,
        ..
    }) = client
    else {
        return;
    };
    if let Ok(transport) = Rc::try_unwrap(stream) {
        net::passing::pass_connection(PassedConnection {
            transport,
            input: input.into_inner(),
            local: address,
            passes,
        });
    }
}

/// How long the end of a session waits for its lines in logs. They are written even when it is over.
const PATIENCE: Duration = Duration::from_millis(20);

/// Waits for everything that is to be done before the connection ends.
async fn all(
    lines: Vec<rt::sync::remote_oneshot::RemoteReceiver<()>>,
    endings: Vec<SessionEnding>,
) {
    for ending in endings {
        ending.await;
    }
    for line in lines {
        // Either way the line is done with.
        let _ = line.await;
    }
}

fn flow(transport: &SessionTransport) -> Option<Rc<crate::datagrams::DatagramSession>> {
    match transport {
        SessionTransport::Stream(_) => None,
        SessionTransport::Datagrams(flow) => Some(Rc::clone(flow)),
    }
}

/// The session's place among those of its socket, given back however its task ends.
struct DatagramSlot(Option<Rc<crate::datagrams::DatagramSession>>);

impl Drop for DatagramSlot {
    fn drop(&mut self) {
        if let Some(flow) = &self.0 {
            // Also when the task was aborted, by when nothing of the end of a session has run.
            flow.end_session();
        }
    }
}

/// Numbers sessions, over all loops: `$connection` must not repeat.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The number of the next session.
fn next_connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

/// Makes a session of what was accepted, at the default server of its address.
fn begin(engine: Rc<StreamLoop>, accepted: AcceptedSession) -> Option<StreamSession> {
    let site = engine.site();
    let socket = &accepted.socket;
    let address = match &accepted.transport {
        SessionTransport::Stream(stream) => stream.socket().peer_addr().clone(),
        SessionTransport::Datagrams(flow) => flow.client().clone(),
    };
    let debug = engine.main.borrow().is_debugged(address.ip());
    if debug {
        // Lines at level `debug` are not even formatted until a client or a log asks for them.
        host::error_log::turn_on_debug();
    }
    let client = StreamClient {
        number: next_connection(),
        transport: accepted.transport,
        remote: RemoteClient::from_address(address),
        debug,
        proxy: None,
        accepted: rt::now(),
        sent: Cell::new(0),
        input: RefCell::new(accepted.input),
        asked_name: RefCell::default(),
        socket: socket.address.clone(),
        passed_at: accepted.passed_at,
        passes: accepted.passes,
    };
    // None after a reload that took the address away while the connection was in a queue: it is closed.
    let endpoint =
        net::endpoint::endpoint_of(&site.endpoints, &socket.address, || client.local().ip())?;
    let endpoint = Arc::clone(endpoint);
    let udp = if client.is_udp() { "udp " } else { "" };
    let (number, remote) = (client.number, &client.remote.address);
    // By the log of the default server: no name has chosen another one yet.
    let log = &site.server(endpoint.default_server).core.log;
    log.log_plain(
        LogLevel::Info,
        format_args!(
            "*{number} {udp}client {remote} connected to {}",
            client.socket
        ),
    );
    // The datagram that begins a session counts as received, whether a handler reads it or not.
    let received = match &client.transport {
        SessionTransport::Datagrams(flow) => flow.opening_length().unwrap_or(0),
        SessionTransport::Stream(_) => 0,
    };
    let mut session = StreamSession::new(engine, site, Rc::new(client), endpoint);
    session.received = received as u64;
    Some(session)
}

/// Runs the phases up to the content. Gives the status with which the session ends.
async fn run(session: &mut StreamSession) -> u16 {
    let site = Rc::clone(&session.site);
    for (phase, action) in PHASES {
        // TLS has its place here, as in nginx: after access, so that a client that is refused costs no handshake, and
        // before preread, whose handlers look at decrypted bytes.
        if phase == StreamPhase::Preread
            && let Err(status) = crate::tls::accept_tls(session).await
        {
            return status;
        }
        session.action = action;
        // Looked up again in each phase: the first bytes of a client may choose another server.
        let server = site.server(session.server);
        if phase == StreamPhase::Content
            && let Some(stream) = session.client.stream().filter(|_| server.core.tcp_nodelay)
            && !session.remote.address.is_unix()
        {
            // It fails on a connection that is gone, and then the first use tells why.
            let _ = stream.socket().set_nodelay(true);
        }
        for handler in &server.phases[phase] {
            let outcome = handler(session).outcome().await;
            if rt::slow_turn::loop_is_late() {
                session.suspect();
            }
            match outcome {
                SessionOutcome::Declined => {}
                SessionOutcome::Ok => break,
                SessionOutcome::Status(status) => return status,
            }
        }
    }
    // No directive of the server says what to do with a session. The configuration is accepted, so it is found out
    // here.
    session.debug(format_args!("no handler for server"));
    status::INTERNAL_SERVER_ERROR
}

/// Reads the PROXY protocol header, if the address expects one. The error is the status of the session.
async fn read_proxy_header(session: &mut StreamSession) -> Result<(), u16> {
    let Some(stream) = session
        .client
        .stream()
        .filter(|_| session.endpoint.proxy_protocol)
        .cloned()
    else {
        return Ok(());
    };
    session.action = "reading PROXY protocol";
    // Of the default server: names are known later than this.
    let timeout = session.server().core.proxy_protocol_timeout;
    let mut input = session.client.input.take();
    match rt::timeout(timeout, receive_proxy_header(session, &stream, &mut input)).await {
        Err(_) => {
            session.log(
                LogLevel::Info,
                format_args!("client timed out (110: Connection timed out)"),
            );
            Err(status::OK)
        }
        Ok(Err(status)) => Err(status),
        Ok(Ok(header)) => {
            // Nothing else refers to the client yet, so that this cannot fail.
            if let Some(client) = Rc::get_mut(&mut session.client) {
                client.proxy = header.map(Box::new);
                client.input = RefCell::new(input);
            }
            Ok(())
        }
    }
}

/// Reads until the header is complete. What comes behind it is left in `input`.
async fn receive_proxy_header(
    session: &StreamSession,
    stream: &net::Transport,
    input: &mut Vec<u8>,
) -> Result<Option<DecodedProxyHeader>, u16> {
    loop {
        match proto::proxy_protocol::parse(input) {
            Ok(ProxyHeaderStatus::Complete(used, header)) => {
                input.drain(..used);
                return Ok(header);
            }
            Ok(ProxyHeaderStatus::Partial) => {}
            Err(broken) => {
                let line = BString::from(broken.log_line());
                session.error(format_args!("{line}"));
                return Err(status::BAD_REQUEST);
            }
        }
        match stream.read_into(input, MAX_HEADER).await {
            Ok(1..) => {}
            // The statuses of nginx: a client that closes has sent a bad header, a connection that breaks is no fault
            // of its own.
            Ok(0) => return Err(status::BAD_REQUEST),
            Err(_) => return Err(status::OK),
        }
    }
}

/// Sends all of `bytes`, and waits at most `patience` for the client to take them. Whether it has taken them.
pub async fn send_within(session: &StreamSession, bytes: &[u8], patience: Duration) -> bool {
    matches!(
        rt::timeout(patience, session.client.send(bytes)).await,
        Ok(Ok(()))
    )
}
