//! The beginning of every client connection: who is there, and which protocol is spoken.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bstr::BString;
use net::Transport;
use net::client::Remote;
use proto::proxy_protocol::{Header, Status};
use rt::error_log::Level;
use rt::listen::ListenAddress;
use rt::net::Address;

use crate::client::{Client, Idle, Moves};
use crate::engine::HttpLoop;
use crate::h1;
use crate::h2::{self, Spoken};
use crate::listen::Endpoint;
use crate::moving::Facts;
use crate::site::Site;
use crate::tls::{self, AskedName, Secured};

/// A connection that a loop has taken in, and what it needs to be served.
pub struct Newcomer {
    /// The connection.
    pub stream: Transport,
    /// The listening socket that it came by.
    pub socket: ListenAddress,
    /// The address that it counts as accepted at, where another one of the server's passed it on.
    pub passed_at: Option<Address>,
    /// What was read of it before it was passed on.
    pub input: Vec<u8>,
    /// Where the loop reaches it between requests.
    pub idle: Rc<Idle>,
    /// Its place among those of the loop.
    pub key: u64,
}

impl Newcomer {
    /// A connection of which nothing was read.
    pub(crate) fn new(
        stream: Transport,
        socket: ListenAddress,
        passed_at: Option<Address>,
    ) -> Newcomer {
        Newcomer {
            stream,
            socket,
            passed_at,
            input: Vec::new(),
            idle: Rc::default(),
            key: 0,
        }
    }
}

/// Serves one connection from its first byte to its last.
pub async fn serve(engine: Rc<HttpLoop>, newcomer: Newcomer) {
    let _place = Place {
        engine: Rc::clone(&engine),
        key: newcomer.key,
    };
    let site = engine.site();
    let Some(endpoint) = endpoint_of(&site, &newcomer) else {
        return;
    };
    let mut client = client(&engine, &site, endpoint, newcomer);
    if endpoint.proxy_protocol {
        let timeout = site
            .server(endpoint.default_server)
            .core
            .client_header_timeout;
        match read_proxy_header(&engine, &client, timeout).await {
            Some(ProxyHeader::Named(header)) => client.proxy = Some(header),
            Some(ProxyHeader::Unnamed) => {}
            None => return,
        }
    }
    let mut client = Rc::new(client);
    if endpoint.tls
        && !client.stream.is_tls()
        && tls::secure(&engine, &site, endpoint, &mut client).await == Secured::Over
    {
        return;
    }
    drop(site);
    speak(engine, client).await;
}

/// Serves it in the protocol that its client speaks.
async fn speak(engine: Rc<HttpLoop>, client: Rc<Client>) {
    note_moves(&client);
    client.idle.serves(&client);
    let may_be_http2 = {
        let site = engine.site();
        if !h1::refresh_endpoint(&client, &site) {
            // A reload came while the client showed who it is.
            return;
        }
        let endpoint = client.endpoint.borrow();
        endpoint.http2 || site.server(endpoint.default_server).core.http2.on
    };
    if let Some(session) = client.stream.tls() {
        return match session.is_http2() {
            true => h2::serve_connection(engine, client).await,
            false => h1::serve_connection(engine, client).await,
        };
    }
    // Whoever speaks plainly to a port with TLS gets an answer that says so, and that is HTTP/1's.
    if !may_be_http2 || client.tls_port {
        return h1::serve_connection(engine, client).await;
    }
    match h2::spoken(&engine, &client).await {
        Spoken::Http1 => h1::serve_connection(engine, client).await,
        Spoken::Http2 => h2::serve_connection(engine, client).await,
        Spoken::Unknown | Spoken::Nothing => {}
    }
}

/// Goes on with a connection that another loop or process has served so far.
pub async fn resume(engine: Rc<HttpLoop>, newcomer: Newcomer, facts: Facts) {
    let _place = Place {
        engine: Rc::clone(&engine),
        key: newcomer.key,
    };
    let site = engine.site();
    // An address that this configuration does not have any more: the connection ends, as an idle one may.
    let Some(endpoint) = endpoint_of(&site, &newcomer) else {
        return;
    };
    let mut client = client(&engine, &site, endpoint, newcomer);
    client.proxy = facts.proxy;
    client.number = facts.number.unwrap_or(client.number);
    client.accepted = rt::now().checked_sub(facts.age).unwrap_or(client.accepted);
    client.requests.set(facts.requests);
    if facts.requests > 0 {
        client.idle.has_served();
    }
    client.sent.set(facts.sent);
    client.keepalive_timeout.set(facts.keepalive_timeout);
    client
        .keepalive_min_timeout
        .set(facts.keepalive_min_timeout);
    client.input = RefCell::new(facts.input);
    if let Some(name) = facts.asked_name {
        let asked = AskedName { name, server: None };
        client.asked_name = RefCell::new(Some(asked));
        tls::refresh(&client);
    }
    note_moves(&client);
    drop(site);
    match client.requests.get() {
        0 => speak(engine, Rc::new(client)).await,
        _ => {
            let client = Rc::new(client);
            client.idle.serves(&client);
            h1::serve_connection(engine, client).await
        }
    }
}

/// Says where the connection may go: what TLS has agreed on, and where it was passed on, only this process knows.
fn note_moves(client: &Client) {
    if client.stream.is_tls() || client.passed_at.is_some() {
        client.idle.moves(Moves::Within);
    }
}

fn endpoint_of<'a>(site: &'a Site, newcomer: &Newcomer) -> Option<&'a Arc<Endpoint>> {
    let local = || {
        let own = newcomer.stream.socket().local_addr().ok();
        newcomer.passed_at.as_ref().or(own)?.ip()
    };
    net::endpoint::endpoint_of(&site.endpoints, &newcomer.socket, local)
}

fn client(engine: &HttpLoop, site: &Site, endpoint: &Arc<Endpoint>, newcomer: Newcomer) -> Client {
    let peer = newcomer.stream.socket().peer_addr().clone();
    let debug = engine.main.is_debugged(peer.ip());
    if debug {
        rt::error_log::turn_on_debug();
    }
    Client {
        debug,
        number: crate::engine::next_connection(),
        remote: Rc::new(Remote::at(peer)),
        proxy: None,
        tls_port: endpoint.tls,
        asked_name: RefCell::default(),
        accepted: rt::now(),
        requests: Cell::new(0),
        sent: Cell::new(0),
        without_delay: Cell::new(false),
        input: RefCell::new(newcomer.input),
        idle: newcomer.idle,
        keepalive_timeout: Cell::new(Duration::ZERO),
        keepalive_min_timeout: Cell::new(Duration::ZERO),
        generation: Cell::new(site.generation),
        socket: newcomer.socket,
        passed_at: newcomer.passed_at,
        endpoint: RefCell::new(Arc::clone(endpoint)),
        stream: newcomer.stream,
    }
}

/// The connection's place among those of the loop, given back however its task ends.
struct Place {
    engine: Rc<HttpLoop>,
    key: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.engine.closed(self.key);
    }
}

/// How much is read at once while the header is incomplete, in bytes. The parser bounds the header itself.
const READ_SIZE: usize = 4096;

enum ProxyHeader {
    /// The connection's own addresses are meant.
    Unnamed,
    Named(Box<Header>),
}

/// Reads the PROXY protocol header that begins the connection; `None` when there is none, which is logged.
async fn read_proxy_header(
    engine: &HttpLoop,
    client: &Client,
    timeout: Duration,
) -> Option<ProxyHeader> {
    let timer = rt::Timer::after(timeout);
    loop {
        let parsed = proto::proxy_protocol::parse(&client.input.borrow());
        match parsed {
            Ok(Status::Complete(used, header)) => {
                client.input.borrow_mut().drain(..used);
                return Some(header.map_or(ProxyHeader::Unnamed, |header| {
                    ProxyHeader::Named(Box::new(header))
                }));
            }
            Ok(Status::Partial) => {}
            Err(broken) => {
                let line = BString::from(broken.log_line());
                engine.log_client(
                    Level::Error,
                    client,
                    format_args!("{line} while reading PROXY protocol"),
                );
                return None;
            }
        }
        let more = std::future::poll_fn(|context| {
            let mut input = client.input.borrow_mut();
            if let Poll::Ready(result) =
                client.stream.poll_read_into(context, &mut input, READ_SIZE)
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
