//! QUIC clients: from a datagram that begins a connection to the protocol that serves its streams.
//!
//! [`net::quic`] has the transport. Here a new client is counted and admitted like one over TCP, the server is chosen by
//! the name in its ClientHello, and what it speaks is HTTP/3 (`crate::h3`).

mod client_connection;
mod handshake;
pub(crate) mod reach_advice;

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use host::engine::{ListenerSpec, LoopListener};
use host::error_log::LogLevel;
use host::listen::ListenAddress;
use net::quic::{QuicArrival, QuicConnection, QuicListener};
use net::tls::{HandshakeError, ReceivedHello};

use crate::client::{ConnectionControl, ConnectionMobility, ConnectionOrigin, HttpClient};
use crate::client_stream::ClientConnection;
use crate::h3;
use crate::http_site::HttpSite;
use crate::listen::ListenEndpoint;
use crate::loop_connections::{LoopConnections, Newness, ServingTask, TablePlace};
use crate::tls::TlsAcceptFailure;

use client_connection::QuicClientConnection;

/// About how much memory a connection takes beyond what one over TCP does, in bytes: keys, loss detection, streams.
const QUIC_MEMORY: usize = 24 * 1024;

/// After how long without a packet a connection ends at the earliest: a client that waits for a slow response sends none.
const LEAST_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves QUIC at this socket until the task is aborted.
pub(crate) fn receive_datagrams(
    engine: &Rc<LoopConnections>,
    socket: OwnedFd,
    listener: &LoopListener,
) -> io::Result<rt::JoinHandle<()>> {
    let site = engine.http.site();
    let address = &listener.spec.address;
    let server = default_server(&site, address)
        .ok_or_else(|| io::Error::other(format!("no server listens on {address}")))?;
    let steers = engine.http.main.borrow().steers_datagrams;
    let settings = site.server(server).core.http3.endpoint_settings(steers);
    let (weak, spec) = (Rc::downgrade(engine), Arc::clone(&listener.spec));
    let take = move |arrival| {
        if let Some(engine) = weak.upgrade() {
            take_client(&engine, arrival, &spec);
        }
    };
    let listener = QuicListener {
        socket,
        spec: Arc::clone(&listener.spec),
        member: listener.member,
        log: engine.http.log(),
    };
    net::quic::serve_listener(listener, &settings, Rc::new(take))
}

/// Follows a reload, and takes what other processes have received for connections of this loop.
pub(crate) fn prepare(engine: &LoopConnections) {
    let site = engine.http.site();
    let steers = engine.http.main.borrow().steers_datagrams;
    let settings = |server| site.server(server).core.http3.endpoint_settings(steers);
    net::quic::update_endpoints(|address| default_server(&site, address).map(settings));
    for endpoint in site.endpoints.iter().filter(|endpoint| endpoint.quic) {
        let secret = settings(endpoint.default_server).secret;
        // Then connections of other processes are reset when their datagrams arrive here, and begin again.
        if let Err(error) = net::quic::serve_other_processes(&secret) {
            let reason = base::ErrnoText(&error);
            let message = format_args!(
                "no socket for QUIC datagrams from other processes{reason}: connections will not outlive an upgrade"
            );
            engine.http.log().log_plain(LogLevel::Warn, message);
        }
    }
}

fn default_server(site: &HttpSite, address: &ListenAddress) -> Option<crate::block_ids::ServerId> {
    let mut endpoints = site.endpoints.iter();
    let endpoint = endpoints.find(|endpoint| endpoint.quic && endpoint.socket == *address)?;
    Some(endpoint.default_server)
}

/// Has a task serve a new client, unless there is no room for it; then it gets no answer.
fn take_client(engine: &Rc<LoopConnections>, arrival: QuicArrival, spec: &Arc<ListenerSpec>) {
    reach_advice::note_arrival();
    if engine.sockets.loop_slot().is_refusing() {
        engine.http.counters.accepted.add(1);
        return arrival.refuse(&HandshakeError::Objection);
    }
    if !engine.admit(Newness::New) {
        return;
    }
    let control: Rc<ConnectionControl> = Rc::default();
    // It has keys, loss detection and compression, none of which can move.
    control.set_mobility(ConnectionMobility::Nowhere);
    let place = engine.place_connection(&control);
    place.count_memory(QUIC_MEMORY);
    let key = place.key;
    let spec = Arc::clone(spec);
    let task = rt::spawn_abortable("http connection", async move {
        serve_client(arrival, control, &spec, place).await;
    });
    engine.set_task(key, ServingTask::Own(task));
}

async fn serve_client(
    arrival: QuicArrival,
    control: Rc<ConnectionControl>,
    spec: &ListenerSpec,
    place: TablePlace,
) {
    let http = &place.engine.http;
    let site = http.site();
    let local = || arrival.local().ip();
    let endpoint = net::endpoint::endpoint_of(&site.endpoints, &spec.address, local);
    // A reload may have removed the address: no server is left to answer.
    let Some(endpoint) = endpoint else {
        return arrival.refuse(&HandshakeError::Refused);
    };
    let connection = QuicClientConnection::new(arrival.local().clone());
    let origin = ConnectionOrigin {
        peer: arrival.peer().clone(),
        socket: spec.address.clone(),
        passed_at: None,
        control: Rc::clone(&control),
        number: crate::client::next_connection(),
        accepted: rt::now(),
    };
    let carried = Rc::clone(&connection) as Rc<dyn ClientConnection>;
    let client = http.new_client(&site, endpoint, carried, origin);
    let core = &site.server(endpoint.default_server).core;
    let timeout = core.client_header_timeout;
    let connecting = Box::pin(connect(&site, endpoint, &client, arrival, &place));
    let connected = rt::timeout(client.rest_of(timeout), connecting).await;
    // Whatever became of the handshake: requests run in ordinary rank.
    rt::set_rank(rt::TaskRank::Ordinary);
    let quic = match connected {
        Ok(Ok(quic)) => quic,
        Ok(Err(failure)) => return report(&place, &client, &failure),
        Err(_) => return report_timeout(&place, &client),
    };
    let session = quic.tls();
    http.counters
        .count_handshake(session.protocol(), session.is_resumed());
    let took = rt::now().saturating_duration_since(client.accepted);
    client.handshake_time.set(took);
    connection.set_connection(&quic);
    // A connection may live for long: it must not keep this configuration alive.
    drop(site);
    control.set_client(&client);
    h3::serve_connection(http, &client, &quic).await;
}

/// Runs the handshake with the settings that the client's hello selects.
async fn connect(
    site: &Rc<HttpSite>,
    endpoint: &ListenEndpoint,
    client: &Rc<HttpClient>,
    arrival: QuicArrival,
    place: &TablePlace,
) -> Result<Rc<QuicConnection>, TlsAcceptFailure> {
    let hello: Box<ReceivedHello> = match arrival.read_hello().await {
        Ok(hello) => hello,
        Err(error) => {
            arrival.refuse(&error);
            return Err(error.into());
        }
    };
    // A signature takes as long as a hundred requests: requests of other clients go first, and no two signatures run in
    // one iteration of the loop.
    rt::continue_as(rt::TaskRank::Patient).await;
    let chosen = handshake::choose(site, endpoint, client, *hello).await;
    let (server, handshake) = match chosen {
        Ok(chosen) => chosen,
        Err(failure) => {
            // Whatever else it was, the client gets the alert that says the fault is ours.
            match &failure {
                TlsAcceptFailure::Handshake(error) => arrival.refuse(error),
                TlsAcceptFailure::Certificate(_) | TlsAcceptFailure::Proven => {
                    arrival.refuse(&HandshakeError::Objection);
                }
            }
            return Err(failure);
        }
    };
    let root = site.location(site.server(server).root);
    let idle = root.core.keepalive_timeout.max(LEAST_IDLE_TIMEOUT);
    let transport = site.server(server).core.http3.transport(idle);
    let accepted = arrival.accept(handshake, &transport).await;
    accepted.map_err(|closed| {
        let message = format_args!("{closed} while SSL handshaking");
        place
            .engine
            .http
            .log_client(LogLevel::Info, client, message);
        TlsAcceptFailure::Proven
    })
}

fn report(place: &TablePlace, client: &HttpClient, failure: &TlsAcceptFailure) {
    let http = &place.engine.http;
    http.counters.tls_failed.add(1);
    match failure {
        TlsAcceptFailure::Handshake(error) => {
            // A client's faults are routine; our own (a broken certificate) need attention.
            let level = match error.is_peers() {
                true => LogLevel::Info,
                false => LogLevel::Crit,
            };
            http.log_client(level, client, format_args!("{error} while SSL handshaking"));
        }
        TlsAcceptFailure::Certificate(message) => {
            let message = format_args!("{message} while SSL handshaking");
            http.log_client(LogLevel::Error, client, message);
        }
        // It was reported where it failed.
        TlsAcceptFailure::Proven => {}
    }
}

fn report_timeout(place: &TablePlace, client: &HttpClient) {
    let http = &place.engine.http;
    http.counters.tls_failed.add(1);
    let message =
        format_args!("client timed out (110: Connection timed out) while SSL handshaking");
    http.log_client(LogLevel::Info, client, message);
}
