//! TLS between the arrival of a connection and its first request.
//!
//! The client's hello is read first: the name in it chooses among the servers of the address, and that server's
//! settings run the handshake. Clients that speak plain HTTP to such an address are told so.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Diagnostic, Line, Span};
use host::error_log::{Level, NoContext};
use net::tls::ocsp::Network;
use net::tls::{
    Asks, Beginning, HandshakeError, Hello, Identity, Keeping, KeptSession, Moment, Offer, Refusal,
    ServerSettings, Service, Session, read_hello,
};

use crate::byte_stream::ByteStream;
use crate::client::{AskedName, Client, server_of_name};
use crate::core::ResolverConf;
use crate::http_loop::HttpLoop;
use crate::listen::Endpoint;
use crate::module::{Keeps, Objection, internal_status};
use crate::request::Request;
use crate::site::{Frozen, ServerId, Site};

/// What became of a connection at an address with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secured {
    /// It goes on, with TLS or as plain HTTP that will be refused.
    Open,
    /// It is over, and why was logged.
    Over,
}

/// Runs the handshake of a connection; what was read of it stands in its input.
pub(crate) async fn secure(
    http: &HttpLoop,
    site: &Rc<Site>,
    endpoint: &Endpoint,
    client: &Rc<Client>,
    bytes: &ByteStream,
) -> Secured {
    let timeout = site
        .server(endpoint.default_server)
        .core
        .client_header_timeout;
    let input = bytes.input.take();
    let untouched = input.is_empty();
    let timeout = client.rest_of(timeout);
    let outcome = rt::timeout(
        timeout,
        handshake(http, site, endpoint, client, bytes, input),
    )
    .await;
    rt::set_rank(rt::Rank::Ordinary);
    let error = match outcome {
        Ok(Ok(Some(session))) => {
            bytes.transport.secure(session);
            return Secured::Open;
        }
        Ok(Ok(None)) => return Secured::Open,
        Ok(Err(error)) => error,
        Err(_) => {
            let message =
                format_args!("client timed out (110: Connection timed out) while SSL handshaking");
            http.log_client(Level::Info, client, message);
            return Secured::Over;
        }
    };
    match error {
        Failure::Handshake(HandshakeError::Closed)
            if untouched && client.asked_name.borrow().is_none() =>
        {
            let message = format_args!("client closed connection while SSL handshaking");
            http.log_client(Level::Info, client, message);
        }
        Failure::Handshake(error) => {
            let level = if error.is_peers() {
                Level::Info
            } else {
                Level::Crit
            };
            http.log_client(level, client, format_args!("{error} while SSL handshaking"));
        }
        Failure::Proven => {
            http.debug_client(client, format_args!("an ACME challenge was answered"));
        }
        Failure::Certificate(message) => {
            http.log_client(
                Level::Error,
                client,
                format_args!("{message} while SSL handshaking"),
            );
        }
    }
    Secured::Over
}

/// Why there is no session.
enum Failure {
    Handshake(HandshakeError),
    /// A certificate that depends on the client can not be had.
    Certificate(String),
    /// It was a question for a proof, which was answered.
    Proven,
}

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Failure {
        Failure::Handshake(error)
    }
}

/// The server whose settings run a handshake.
struct TlsServer<'a> {
    id: ServerId,
    service: &'a Service,
    settings: &'a ServerSettings,
}

/// `None`: the client speaks plain HTTP; what it has sent is its input again.
async fn handshake(
    http: &HttpLoop,
    site: &Rc<Site>,
    endpoint: &Endpoint,
    client: &Rc<Client>,
    bytes: &ByteStream,
    input: Vec<u8>,
) -> Result<Option<Session>, Failure> {
    let socket = bytes.transport.socket();
    let hello = match read_hello(socket, input).await? {
        Beginning::Hello(hello) => hello,
        Beginning::Plain(input) => {
            bytes.input.replace(input);
            return Ok(None);
        }
    };
    // A signature takes as long as a hundred requests: those of others come first, and no two signatures in one turn.
    rt::continue_as(rt::Rank::Patient).await;
    if has_a_say(site, endpoint.default_server) {
        let offer = Offer::new(&hello, None, None);
        let server = endpoint.default_server;
        if let Err(Objection) = consult(site, client, server, Moment::Hello, offer).await {
            return Err(hello.object(socket).into());
        }
    }
    note_name(client, endpoint, &hello);
    if hello.alpn().iter().any(|name| name == CHALLENGE) {
        return prove(http, site, endpoint, bytes, hello).await;
    }
    let named = client.first_server();
    if service(site, named).is_some_and(|service| service.rejects) {
        return Err(hello.refuse(socket).into());
    }
    let found = [named, endpoint.default_server]
        .into_iter()
        .find_map(|server| tls_server(site, endpoint, server));
    let Some(server) = found else {
        return Err(HandshakeError::NoCertificate.into());
    };
    let (identities, keeping) = match choose_identities(site, client, &server, &hello).await {
        Ok(chosen) => chosen,
        Err(failure) => {
            // Whatever the failure was, the client gets the alert that says the fault is ours.
            hello.object(socket);
            return Err(failure);
        }
    };
    refresh_staples(site, &server);
    let mut session = hello
        .accept(socket, server.settings, identities, keeping.as_ref())
        .await?;
    if let Some(made) = keeping.and_then(|keeping| keeping.made(server.settings)) {
        let offer = Offer::about(session.server_name().map(Into::into), made);
        // It is kept or it is not: the handshake is complete.
        let _ = consult(site, client, server.id, Moment::SessionMade, offer).await;
    }
    check_status(http, site, client, &server, &mut session).await;
    Ok(Some(session))
}

/// The certificates that take the place of those of the settings, if any do, and who keeps the session.
async fn choose_identities(
    site: &Rc<Site>,
    client: &Rc<Client>,
    server: &TlsServer<'_>,
    hello: &Hello,
) -> Result<(Option<Vec<Arc<Identity>>>, Option<Keeping>), Failure> {
    let mut identities = None;
    if !server.service.dynamic.is_empty() {
        identities = Some(load(site, client, server).await?);
    }
    if !has_a_say(site, server.id) {
        return Ok((identities, None));
    }
    let offer = Offer::new(hello, Some(server.settings), identities.as_deref());
    let keeping = fetch(site, client, server, hello, &offer).await;
    let chosen = consult(site, client, server.id, Moment::Certificate, offer)
        .await
        .map_err(|Objection| HandshakeError::Objection)?;
    Ok((chosen.or(identities), keeping))
}

/// Has OCSP responses that will soon be too old asked for again; the handshake does not wait for them.
fn refresh_staples(site: &Rc<Site>, server: &TlsServer<'_>) {
    let id = server.id;
    let network = || network(site, id);
    server.settings.refresh_staples(network, {
        let site = Rc::clone(site);
        move |line| log_asking(&site, id, &line)
    });
}

/// Asks for the status of the client's certificate, where `ssl_ocsp` wants it. What it says is noted in the session, and
/// [`check`] judges it with each request.
async fn check_status(
    http: &HttpLoop,
    site: &Site,
    client: &Client,
    server: &TlsServer<'_>,
    session: &mut Session,
) {
    if let (Some(check), Some(trust)) = (&server.service.status, server.settings.trust())
        && let Some(line) = check.check(session, trust, &network(site, server.id)).await
    {
        let action = "requesting certificate status";
        http.log_client(Level::Error, client, format_args!("{line} while {action}"));
    }
}

/// How a server's OCSP responders are found.
fn network(site: &Site, server: ServerId) -> Network {
    let location = site.location(site.server(server).root);
    let resolving = location.confs.get::<ResolverConf>();
    Network {
        resolver: Arc::clone(&resolving.resolver),
        timeout: resolving.timeout,
    }
}

/// Logs what went wrong when nobody's connection is concerned.
fn log_asking(site: &Site, server: ServerId, line: &str) {
    let log = &site.location(site.server(server).root).core.log;
    let line = format_args!("{line} while requesting certificate status");
    log.log(Level::Error, &NoContext, line);
}

fn has_a_say(site: &Site, server: ServerId) -> bool {
    site.server(server).handshake.is_some()
}

/// Asks who has a say in the handshakes of a server; the certificates that were chosen, if any were.
async fn consult(
    site: &Rc<Site>,
    client: &Rc<Client>,
    server: ServerId,
    moment: Moment,
    offer: Offer,
) -> Result<Option<Vec<Arc<Identity>>>, Objection> {
    let offer = ask(site, client, server, moment, offer).await?;
    Ok(offer.borrow_mut().chosen.take())
}

async fn ask(
    site: &Rc<Site>,
    client: &Rc<Client>,
    server: ServerId,
    moment: Moment,
    offer: Offer,
) -> Result<Rc<RefCell<Offer>>, Objection> {
    let offer = Rc::new(RefCell::new(offer));
    if let Some((handler, _)) = site.server(server).handshake {
        let mut request = Request::new(Rc::clone(site), Rc::clone(client), Rc::default(), server);
        handler(&mut request, moment, Rc::clone(&offer)).await?;
    }
    Ok(offer)
}

/// Asks who keeps sessions for the one that the client would resume; `None`: nobody keeps any of this client's. Without an answer
/// the client gets a new session.
async fn fetch(
    site: &Rc<Site>,
    client: &Rc<Client>,
    server: &TlsServer<'_>,
    hello: &Hello,
    offer: &Offer,
) -> Option<Keeping> {
    let (_, keeps) = site.server(server.id).handshake?;
    if keeps == Keeps::default() || !hello.may_be_kept(server.settings) {
        return None;
    }
    let wanted = hello.wanted_session().filter(|_| keeps.fetches);
    let mut found = None;
    if let Some(id) = wanted {
        let wanted = KeptSession {
            id: id.clone(),
            ..KeptSession::default()
        };
        let offer = Offer::about(offer.server_name.clone(), wanted);
        let answer = ask(site, client, server.id, Moment::SessionWanted, offer).await;
        let answer = answer
            .ok()
            .and_then(|offer| offer.borrow_mut().session.take());
        found = Some(answer.unwrap_or(KeptSession {
            id,
            ..KeptSession::default()
        }));
    }
    Some(Keeping::new(server.settings, keeps.stores, found))
}

/// What a client asks for by ALPN that wants a proof of a name (RFC 8737).
const CHALLENGE: &[u8] = b"acme-tls/1";

/// Shows the proof of a name, and that is all that such a connection is for.
async fn prove(
    http: &HttpLoop,
    site: &Site,
    endpoint: &Endpoint,
    bytes: &ByteStream,
    hello: Box<Hello>,
) -> Result<Option<Session>, Failure> {
    let identity = hello
        .server_name()
        .and_then(|name| http.tls_challenge(&name.to_ascii_lowercase()));
    let found = tls_server(site, endpoint, endpoint.default_server);
    let (Some(identity), Some(server)) = (identity, found) else {
        return Err(HandshakeError::NoCertificate.into());
    };
    let settings = server.settings.with_alpn(vec![CHALLENGE.to_vec()]);
    let socket = bytes.transport.socket();
    hello
        .accept(socket, &settings, Some(vec![identity]), None)
        .await?;
    Err(Failure::Proven)
}

fn service(site: &Site, server: ServerId) -> Option<&Arc<Service>> {
    site.server(server).tls.as_ref()
}

/// `None`: the server has no certificate.
fn tls_server<'a>(site: &'a Site, endpoint: &Endpoint, server: ServerId) -> Option<TlsServer<'a>> {
    let service = service(site, server)?;
    let settings = service
        .http2
        .as_ref()
        .filter(|_| offers_http2(site, endpoint, server));
    Some(TlsServer {
        id: server,
        service,
        settings: settings.or(service.settings.as_ref())?,
    })
}

/// Whether HTTP/2 is among what the server offers by ALPN.
fn offers_http2(site: &Site, endpoint: &Endpoint, server: ServerId) -> bool {
    endpoint.http2 || site.server(server).core.http2.on
}

fn note_name(client: &Client, endpoint: &Endpoint, hello: &Hello) {
    if let Some(name) = hello.server_name() {
        client.asked_name.replace(Some(AskedName {
            server: server_of_name(endpoint, name),
            name: name.into(),
        }));
    }
}

/// Loads the certificates whose names depend on this client.
async fn load(
    site: &Rc<Site>,
    client: &Rc<Client>,
    server: &TlsServer<'_>,
) -> Result<Vec<Arc<Identity>>, Failure> {
    let service = server.service;
    let mut identities = Vec::new();
    for (certificate, key) in &service.dynamic {
        let (certificate, key) = {
            let mut request =
                Request::new(Rc::clone(site), Rc::clone(client), Rc::default(), server.id);
            (request.value(certificate), request.value(key))
        };
        let certificate = net::tls::full_path(&site.conf_prefix, &certificate);
        let key = net::tls::full_path(&site.conf_prefix, &key);
        let loaded = service
            .cache
            .get(certificate.as_ref(), key.as_ref(), &service.passwords)
            .await;
        identities.push(loaded.map_err(|problem| Failure::Certificate(problem.message))?);
    }
    Ok(identities)
}

/// Whether a request may be served, as far as TLS decides it; otherwise the status that answers it.
pub(crate) fn check(request: &Request) -> Result<(), u16> {
    let client = &request.client;
    if !client.tls_port {
        return Ok(());
    }
    let Some(session) = client.tls() else {
        tell(
            request,
            format_args!("client sent plain HTTP request to HTTPS port"),
        );
        return Err(internal_status::HTTP_TO_HTTPS);
    };
    let asks = service(&request.site, request.server).map_or(Asks::No, |service| service.asks);
    if asks == Asks::No {
        return Ok(());
    }
    if let Some(AskedName {
        name,
        server: Some(_),
    }) = &*client.asked_name.borrow()
        && request.head.host != name.as_bytes()
    {
        let message = "client attempted to request the server name different from the one that was negotiated";
        tell(request, format_args!("{message}"));
        return Err(421);
    }
    match asks.judge(session.assessment()) {
        Ok(()) => Ok(()),
        Err(Refusal::Bad(fault)) => {
            tell(
                request,
                format_args!("client SSL certificate verify error: {fault}"),
            );
            Err(internal_status::CERTIFICATE_ERROR)
        }
        Err(Refusal::Missing) => {
            tell(
                request,
                format_args!("client sent no required SSL certificate"),
            );
            Err(internal_status::NO_CERTIFICATE)
        }
    }
}

/// Says why a request is refused, with what nginx is doing then.
fn tell(request: &Request, message: std::fmt::Arguments<'_>) {
    request.log(
        Level::Info,
        format_args!("{message} while reading client request headers"),
    );
}

/// Reports addresses with TLS whose servers have no certificate. `places` are those of the servers' blocks.
pub(crate) fn check_configuration(frozen: &Frozen, places: &[Span], line: &mut Line) {
    // A certificate that cannot be loaded has been said; that none is there would only follow from it.
    let mut errors = line.level.build.diagnostics.iter();
    if errors.any(|error| error.message.starts_with("cannot load certificate")) {
        return;
    }
    for endpoint in frozen.endpoints.iter().filter(|endpoint| endpoint.tls) {
        let usable = |server: ServerId| {
            let service = frozen.server(server).tls.as_ref();
            service.is_some_and(|service| service.settings.is_some())
        };
        let default = endpoint.default_server;
        let rejects = frozen
            .server(default)
            .tls
            .as_ref()
            .is_some_and(|service| service.rejects);
        if usable(default) {
            continue;
        }
        // A default server that refuses needs none itself, as long as the others have theirs.
        let missing = match rejects {
            false => Some(default),
            true => endpoint.servers.iter().copied().find(|server| {
                let service = frozen.server(*server).tls.as_ref();
                !usable(*server) && !service.is_some_and(|service| service.rejects)
            }),
        };
        if let Some(server) = missing {
            let span = places.get(server.0 as usize).copied();
            let place = span
                .and_then(|span| line.sources().place(span))
                .unwrap_or_default();
            let message = format!(
                "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in {place}"
            );
            line.level.report(Diagnostic::error(message, None));
        }
    }
}
