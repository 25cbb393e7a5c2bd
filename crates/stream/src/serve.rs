//! The way of a session, from the client's arrival to its line in the log.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bstr::BString;
use host::engine::ListenerSpec;
use host::error_log::Level;
use net::client::Remote;
use net::passing::Passed;
use proto::proxy_protocol::{Header, MAX_HEADER, Status};
use rt::net::Address;

use crate::client::{Client, Transport};
use crate::phase::{Outcome, Phase, status};
use crate::session::{Ending, Session};
use crate::stream_loop::StreamLoop;

/// The phases before the end, and what the error log says is being done in them.
const PHASES: [(Phase, &str); 5] = [
    (Phase::PostAccept, "initializing session"),
    (Phase::Preaccess, "initializing session"),
    (Phase::Access, "initializing session"),
    (Phase::Preread, "prereading client data"),
    (Phase::Content, ""),
];

/// What a session begins with.
pub(crate) struct Newcomer {
    /// The connection or datagrams.
    pub(crate) transport: Transport,
    /// The listening socket.
    pub(crate) socket: Arc<ListenerSpec>,
    /// The address that it counts as accepted at, where another one of the server's passed it on.
    pub(crate) passed_at: Option<Address>,
    /// How often it was passed on.
    pub(crate) passes: u8,
    /// What was read of it before.
    pub(crate) input: Vec<u8>,
}

impl Newcomer {
    /// One that has just come.
    pub(crate) fn new(transport: Transport, socket: &Arc<ListenerSpec>) -> Newcomer {
        Newcomer {
            transport,
            socket: Arc::clone(socket),
            passed_at: None,
            passes: 0,
            input: Vec::new(),
        }
    }
}

/// Serves one session.
pub(crate) async fn serve(engine: Rc<StreamLoop>, newcomer: Newcomer) {
    let datagrams = DatagramSlot(flow(&newcomer.transport));
    let Some(mut session) = begin(engine, newcomer) else {
        return;
    };
    session.status = match read_proxy_header(&mut session).await {
        Ok(()) => run(&mut session).await,
        Err(status) => status,
    };
    if let Some(address) = session.pass_to.take() {
        return pass(session, address);
    }
    session.debug(format_args!("finalize stream session: {}", session.status));
    if let Some(stream) = session
        .client
        .stream()
        .filter(|_| session.pass_to.is_none())
    {
        stream.say_goodbye();
    }
    let site = Rc::clone(&session.site);
    for handler in &site.server(session.server).phases[Phase::Log] {
        // Nothing can be decided any more, so what a handler says does not count.
        let _ = handler(&mut session).outcome().await;
    }
    // The client may know already that this is over: what its next session, or that of another client, asks for must not be
    // held by this one while it waits.
    let endings = session.release();
    if let Some(flow) = &datagrams.0 {
        flow.detach();
    }
    // The line is there once the connection has ended, and a slow disk holds up nobody for long.
    let lines = session.logger().written();
    if !lines.is_empty() || !endings.is_empty() {
        let _ = rt::timeout(PATIENCE, all(lines, endings)).await;
    }
}

/// Hands the connection of a session on. The session leaves no line in the access log, as in nginx: that is for who has
/// the connection now.
fn pass(session: Session, address: Address) {
    let passes = session.client.passes + 1;
    let client = Rc::try_unwrap(session.client).ok();
    let Some(Client {
        transport: Transport::Stream(stream),
        input,
        ..
    }) = client
    else {
        return;
    };
    if let Ok(transport) = Rc::try_unwrap(stream) {
        net::passing::pass(Passed {
            transport,
            input: input.into_inner(),
            local: address,
            passes,
        });
    }
}

/// How long the end of a session waits for its lines in logs. When it is over they are written all the same, so that a slow
/// disk holds up nobody.
const PATIENCE: Duration = Duration::from_millis(20);

async fn all(lines: Vec<rt::sync::remote_oneshot::Receiver<()>>, endings: Vec<Ending>) {
    for ending in endings {
        ending.await;
    }
    for line in lines {
        // Either way the line is done with.
        let _ = line.await;
    }
}

fn flow(transport: &Transport) -> Option<Rc<crate::datagrams::Flow>> {
    match transport {
        Transport::Stream(_) => None,
        Transport::Datagrams(flow) => Some(Rc::clone(flow)),
    }
}

/// The session's place among those of its socket, given back however its task ends.
struct DatagramSlot(Option<Rc<crate::datagrams::Flow>>);

impl Drop for DatagramSlot {
    fn drop(&mut self) {
        if let Some(flow) = &self.0 {
            flow.detach();
        }
    }
}

/// Numbers sessions, over all loops.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The number of the next session.
fn next_connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

fn begin(engine: Rc<StreamLoop>, newcomer: Newcomer) -> Option<Session> {
    let site = engine.site();
    let socket = &newcomer.socket;
    let address = match &newcomer.transport {
        Transport::Stream(stream) => stream.socket().peer_addr().clone(),
        Transport::Datagrams(flow) => flow.client().clone(),
    };
    let debug = engine.main.is_debugged(address.ip());
    if debug {
        host::error_log::turn_on_debug();
    }
    let client = Client {
        number: next_connection(),
        transport: newcomer.transport,
        remote: Remote::at(address),
        debug,
        proxy: None,
        accepted: rt::now(),
        sent: Cell::new(0),
        input: RefCell::new(newcomer.input),
        asked_name: RefCell::default(),
        socket: socket.address.clone(),
        passed_at: newcomer.passed_at,
        passes: newcomer.passes,
    };
    let endpoint =
        net::endpoint::endpoint_of(&site.endpoints, &socket.address, || client.local().ip())?;
    let endpoint = Arc::clone(endpoint);
    let udp = if client.is_udp() { "udp " } else { "" };
    let (number, remote) = (client.number, &client.remote.address);
    let log = &site.server(endpoint.default_server).core.log;
    log.plain(
        Level::Info,
        format_args!(
            "*{number} {udp}client {remote} connected to {}",
            client.socket
        ),
    );
    // The datagram that begins a session counts for it, whether anything reads it or not.
    let received = match &client.transport {
        Transport::Datagrams(flow) => flow.opening_length().unwrap_or(0),
        Transport::Stream(_) => 0,
    };
    let mut session = Session::new(engine, site, Rc::new(client), endpoint);
    session.received = received as u64;
    Some(session)
}

/// Runs the phases up to the content; gives the status that the session ends with.
async fn run(session: &mut Session) -> u16 {
    let site = Rc::clone(&session.site);
    for (phase, action) in PHASES {
        if phase == Phase::Preread
            && let Err(status) = crate::tls::secure(session).await
        {
            return status;
        }
        session.action = action;
        // Looked up again: what a client's first bytes say may choose another server.
        let server = site.server(session.server);
        if phase == Phase::Content
            && let Some(stream) = session.client.stream().filter(|_| server.core.tcp_nodelay)
            && !session.remote.address.is_unix()
        {
            // It fails on a connection that is gone, which its first use tells better.
            let _ = stream.socket().set_nodelay(true);
        }
        for handler in &server.phases[phase] {
            match handler(session).outcome().await {
                Outcome::Declined => {}
                Outcome::Ok => break,
                Outcome::Status(status) => return status,
            }
        }
    }
    session.debug(format_args!("no handler for server"));
    status::INTERNAL_SERVER_ERROR
}

/// Reads the PROXY protocol header that the connection begins with, if it is to begin with one. The error is the
/// session's status.
async fn read_proxy_header(session: &mut Session) -> Result<(), u16> {
    let Some(stream) = session
        .client
        .stream()
        .filter(|_| session.endpoint.proxy_protocol)
        .cloned()
    else {
        return Ok(());
    };
    session.action = "reading PROXY protocol";
    let timeout = session.server().core.proxy_protocol_timeout;
    let mut input = session.client.input.take();
    match rt::timeout(timeout, receive_proxy_header(session, &stream, &mut input)).await {
        Err(_) => {
            session.log(
                Level::Info,
                format_args!("client timed out (110: Connection timed out)"),
            );
            Err(status::OK)
        }
        Ok(Err(status)) => Err(status),
        Ok(Ok(header)) => {
            // Nobody else has it yet.
            if let Some(client) = Rc::get_mut(&mut session.client) {
                client.proxy = header.map(Box::new);
                client.input = RefCell::new(input);
            }
            Ok(())
        }
    }
}

/// What comes behind the header is left in `input`.
async fn receive_proxy_header(
    session: &Session,
    stream: &net::Transport,
    input: &mut Vec<u8>,
) -> Result<Option<Header>, u16> {
    loop {
        match proto::proxy_protocol::parse(input) {
            Ok(Status::Complete(used, header)) => {
                input.drain(..used);
                return Ok(header);
            }
            Ok(Status::Partial) => {}
            Err(broken) => {
                let line = BString::from(broken.log_line());
                session.error(format_args!("{line}"));
                return Err(status::BAD_REQUEST);
            }
        }
        match stream.read_into(input, MAX_HEADER).await {
            Ok(1..) => {}
            Ok(0) => return Err(status::BAD_REQUEST),
            Err(_) => return Err(status::OK),
        }
    }
}

/// Sends all of `bytes`, giving the client `patience` for it. The answer is whether it took them.
pub async fn send_within(session: &Session, bytes: &[u8], patience: Duration) -> bool {
    matches!(
        rt::timeout(patience, session.client.send(bytes)).await,
        Ok(Ok(()))
    )
}
