//! The beginning of every client connection over TCP: who is there, and which protocol is spoken.
//!
//! HTTP/3 begins elsewhere: its connections have no descriptor, and are told apart by the ids in datagrams of a shared
//! socket. Its [`HttpClient`] comes from the same [`HttpLoop::new_client`].

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bstr::BString;
use host::error_log::LogLevel;
use proto::proxy_protocol::{DecodedProxyHeader, ProxyHeaderStatus};

use crate::accepted_connection::AcceptedConnection;
use crate::byte_stream::ByteStream;
use crate::client::{AskedName, ConnectionMobility, ConnectionOrigin, HttpClient};
use crate::client_stream::ClientConnection;
use crate::connection_transfer::ConnectionState;
use crate::h1::{self, ProtocolEnd};
use crate::h2::{self, SpokenProtocol};
use crate::http_loop::{self, HttpLoop};
use crate::http_site::HttpSite;
use crate::listen::ListenEndpoint;
use crate::loop_connections::{ServingTask, TablePlace};
use crate::tls::{self, TlsAdmission};
use crate::waiting_connection::{self, WaitingConnection};

/// A connection whose protocol has begun.
pub(crate) struct ServedClient {
    /// Who is there.
    pub client: Rc<HttpClient>,
    /// Its byte stream.
    pub bytes: Rc<ByteStream>,
}

/// Serves a connection that has waited, or that has not had to.
///
/// The steps come one after the other here. If each called the next one, its future would keep a place for what it has handed on,
/// and there is such a future for every client that is served.
pub(crate) async fn serve_waiting(connection: WaitingConnection, place: TablePlace) {
    let begun = match connection {
        WaitingConnection::New(accepted) => begin_accepted(accepted, &place).await,
        WaitingConnection::Served(served) => Some(served),
    };
    let Some(served) = begun else { return };
    // Before its first request a client that came from elsewhere may still turn out to speak HTTP/2.
    let protocol = match served.client.requests.get() {
        0 => spoken_protocol(&served, &place).await,
        _ => SpokenProtocol::Http1,
    };
    match protocol {
        SpokenProtocol::Http1 => speak_http1(served, place).await,
        SpokenProtocol::Http2 => speak_http2(served, place),
        SpokenProtocol::Unknown | SpokenProtocol::Nothing => {}
    }
}

/// Begins a connection with its first byte. `None` if it is over.
async fn begin_accepted(
    accepted: Box<AcceptedConnection>,
    place: &TablePlace,
) -> Option<ServedClient> {
    let http = &place.engine.http;
    let site = http.site();
    // A reload may have removed the address between accepting and now: no server is left to answer.
    let endpoint = endpoint_of(&site, &accepted)?;
    let (client, bytes) = client_of(http, &site, endpoint, *accepted);
    // The PROXY header is the first thing on the connection, in front of TLS.
    if endpoint.proxy_protocol {
        let core = &site.server(endpoint.default_server).core;
        let timeout = client.rest_of(core.client_header_timeout);
        match read_proxy_header(http, &client, &bytes, timeout).await {
            // Only read here, and once.
            Some(ProxyHeader::Named(header)) => drop(client.proxy.set(header)),
            Some(ProxyHeader::Unnamed) => {}
            None => return None,
        }
    }
    // A connection that `stream` passed on may have its TLS already.
    if endpoint.tls && !bytes.transport.is_tls() {
        let began = rt::now();
        if tls::accept_tls(http, &site, endpoint, &client, &bytes).await == TlsAdmission::Over {
            return None;
        }
        let took = rt::now().saturating_duration_since(began);
        client.handshake_time.set(took);
    }
    Some(ServedClient { client, bytes })
}

/// Which protocol the client speaks.
async fn spoken_protocol(served: &ServedClient, place: &TablePlace) -> SpokenProtocol {
    let ServedClient { client, bytes } = served;
    let http = &place.engine.http;
    note_mobility(client);
    client.control.set_client(client);
    let may_be_http2 = {
        let site = http.site();
        if !http_loop::refresh_endpoint(client, &site) {
            // There was a reload during the handshake, and the address is gone.
            return SpokenProtocol::Nothing;
        }
        let endpoint = client.endpoint.borrow();
        endpoint.http2 || site.server(endpoint.default_server).core.http2.on
    };
    if let Some(session) = bytes.transport.tls() {
        place.count_memory(TLS_MEMORY);
        // ALPN has decided (RFC 9113, section 3.2).
        return match session.is_http2() {
            true => SpokenProtocol::Http2,
            false => SpokenProtocol::Http1,
        };
    }
    // A client that speaks plain HTTP to a TLS port gets an answer that says so, and that answer is HTTP/1's.
    if !may_be_http2 || client.tls_port {
        return SpokenProtocol::Http1;
    }
    h2::detect_protocol(http, client, bytes).await
}

/// Serves the connection in HTTP/1. Between two requests it may move, and wait elsewhere.
async fn speak_http1(served: ServedClient, place: TablePlace) {
    let engine = &place.engine;
    let ServedClient { client, bytes } = &served;
    loop {
        match h1::serve_connection(&engine.http, client, bytes, &engine.recycled).await {
            ProtocolEnd::Closed => return,
            ProtocolEnd::Waiting => break,
            // The order to move is taken back, and the protocol continues: everything it knew is in the client and the
            // byte stream.
            ProtocolEnd::Transferred if engine.must_stay(client) => {
                client.control.cancel_transfer();
            }
            ProtocolEnd::Transferred => {
                let ServedClient { client, bytes } = served;
                return engine.send_away(client, bytes);
            }
        }
    }
    waiting_connection::wait_for_bytes(WaitingConnection::Served(served), place);
}

/// Has a task of its own serve the connection in HTTP/2: streams have tasks of their own, too, so that this one is a
/// tenth of a task that serves HTTP/1.
fn speak_http2(served: ServedClient, place: TablePlace) {
    let (engine, key) = (Rc::clone(&place.engine), place.key);
    let task = rt::spawn_abortable("http connection", async move {
        let ServedClient { client, bytes } = &served;
        h2::serve_connection(&place.engine.http, client, bytes).await;
    });
    engine.set_task(key, ServingTask::Own(task));
}

/// Continues a connection that another loop or process has served so far. `None`: this configuration does not have the
/// address any more, and the connection is closed, as an idle one may be.
pub(crate) fn resume_moved(
    http: &HttpLoop,
    mut accepted: AcceptedConnection,
    state: ConnectionState,
) -> Option<ServedClient> {
    let site = http.site();
    accepted.number = state.number.unwrap_or(accepted.number);
    // Moments of another process mean nothing here, so the age moves. `keepalive_time` counts on.
    accepted.accepted = rt::now()
        .checked_sub(state.age)
        .unwrap_or(accepted.accepted);
    let endpoint = endpoint_of(&site, &accepted)?;
    let (client, bytes) = client_of(http, &site, endpoint, accepted);
    if let Some(header) = state.proxy {
        // The client is new, so it has none.
        drop(client.proxy.set(header));
    }
    client.requests.set(state.requests);
    if state.requests > 0 {
        client.control.has_served();
    }
    bytes.sent.set(state.sent);
    client.keepalive_timeout.set(state.keepalive_timeout);
    client
        .keepalive_min_timeout
        .set(state.keepalive_min_timeout);
    bytes.input.replace(state.input);
    // The server of the name is looked up again: this loop may have a newer configuration.
    if let Some(name) = state.asked_name {
        let asked = AskedName { name, server: None };
        client.asked_name.replace(Some(Box::new(asked)));
        client.refresh_asked_name();
    }
    note_mobility(&client);
    client.control.set_client(&client);
    Some(ServedClient { client, bytes })
}

/// Restricts where the connection may move: the state of TLS, and the address that it was passed on from, are known to
/// this process only.
fn note_mobility(client: &HttpClient) {
    if client.tls().is_some() || client.passed_at.is_some() {
        client.control.set_mobility(ConnectionMobility::ThisProcess);
    }
}

pub(crate) fn endpoint_of<'a>(
    site: &'a HttpSite,
    accepted: &AcceptedConnection,
) -> Option<&'a Arc<ListenEndpoint>> {
    // Only called where several addresses share a listening socket: it costs a system call.
    let local = || {
        let own = accepted.transport.socket().local_addr().ok();
        accepted.passed_at.as_deref().or(own)?.ip()
    };
    net::endpoint::endpoint_of(&site.endpoints, &accepted.socket, local)
}

/// The client at the other end of a byte stream.
fn client_of(
    http: &HttpLoop,
    site: &HttpSite,
    endpoint: &Arc<ListenEndpoint>,
    accepted: AcceptedConnection,
) -> (Rc<HttpClient>, Rc<ByteStream>) {
    let origin = ConnectionOrigin {
        peer: accepted.transport.socket().peer_addr().clone(),
        socket: accepted.socket,
        passed_at: accepted.passed_at,
        control: accepted.control,
        number: accepted.number,
        accepted: accepted.accepted,
    };
    let bytes = ByteStream::new(accepted.transport, accepted.input);
    let connection = Rc::clone(&bytes) as Rc<dyn ClientConnection>;
    let client = http.new_client(site, endpoint, connection, origin);
    (client, bytes)
}

/// About how much memory the state of TLS takes, in bytes: most of it is rustls's receive buffer.
const TLS_MEMORY: usize = 10 * 1024;

/// How much one read takes while the PROXY header is incomplete, in bytes. The parser bounds the header itself.
const READ_SIZE: usize = 4096;

enum ProxyHeader {
    /// The connection's own addresses count (`LOCAL` or `UNKNOWN`: the proxy's health check, say).
    Unnamed,
    Named(Box<DecodedProxyHeader>),
}

/// Reads the PROXY protocol header at the beginning of the connection; `None` if there is none, which is logged. Its
/// absence is an error: a client that could omit it could also choose its own address.
async fn read_proxy_header(
    http: &HttpLoop,
    client: &HttpClient,
    bytes: &ByteStream,
    timeout: Duration,
) -> Option<ProxyHeader> {
    let timer = rt::Timer::after(timeout);
    loop {
        let parsed = proto::proxy_protocol::parse(&bytes.input.borrow());
        match parsed {
            Ok(ProxyHeaderStatus::Complete(used, header)) => {
                // What follows the header belongs to TLS or HTTP.
                bytes.input.borrow_mut().drain(..used);
                return Some(header.map_or(ProxyHeader::Unnamed, |header| {
                    ProxyHeader::Named(Box::new(header))
                }));
            }
            Ok(ProxyHeaderStatus::Partial) => {}
            Err(broken) => {
                let line = BString::from(broken.log_line());
                http.log_client(
                    LogLevel::Error,
                    client,
                    format_args!("{line} while reading PROXY protocol"),
                );
                return None;
            }
        }
        let more = std::future::poll_fn(|context| {
            let mut input = bytes.input.borrow_mut();
            if let Poll::Ready(result) = bytes
                .transport
                .poll_read_into(context, &mut input, READ_SIZE)
            {
                return Poll::Ready(matches!(result, Ok(n) if n > 0));
            }
            timer.poll_expired(context).map(|()| false)
        });
        if !more.await {
            return None;
        }
    }
}
