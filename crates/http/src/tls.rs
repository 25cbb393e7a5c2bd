//! TLS between accepting a connection and its first request.
//!
//! The client's hello is read first: the name in it selects among the servers of the address, and that server's
//! settings run the handshake. Clients that speak plain HTTP to such an address get an answer that says so.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Diagnostic, DirectiveLine, Span};
use host::error_log::{LogLevel, NoContext};
use net::tls::ocsp::OcspResolver;
use net::tls::{
    CertificateRefusal, HandshakeChoice, HandshakeError, HandshakeOffer, HandshakePhase,
    KeptSession, ReceivedHello, ServerSettings, ServerTls, SessionKeeper, TlsIdentity, TlsOrPlain,
    TlsProtocols, TlsSession, VerifyClient, read_hello,
};

use crate::byte_stream::ByteStream;
use crate::client::{AskedName, HttpClient, server_of_name};
use crate::core::ResolverConf;
use crate::http_loop::HttpLoop;
use crate::http_site::{FrozenHttp, HandshakeAbility, HttpSite, ServerId};
use crate::listen::ListenEndpoint;
use crate::log_phase::{self, ObservedHandshake};
use crate::module::{HandshakeRefused, SessionStorage, internal_status};
use crate::quic::reach_advice;
use crate::request::Request;

/// The result of the handshake on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsAdmission {
    /// It continues, with TLS or as plain HTTP, which will be refused.
    Open,
    /// It is over, and the reason has been logged.
    Over,
}

/// Runs the handshake of a connection. Its input holds what has been read of it.
pub(crate) async fn accept_tls(
    http: &HttpLoop,
    site: &Rc<HttpSite>,
    endpoint: &ListenEndpoint,
    client: &Rc<HttpClient>,
    bytes: &ByteStream,
) -> TlsAdmission {
    let timeout = site
        .server(endpoint.default_server)
        .core
        .client_header_timeout;
    let input = bytes.input.take();
    // Before any byte arrives a close is no handshake failure.
    let untouched = input.is_empty();
    let timeout = client.rest_of(timeout);
    // In a box: with room for a handshake the future of every connection would be ten times as large.
    let handshake = Box::pin(handshake(http, site, endpoint, client, bytes, input));
    let outcome = rt::timeout(timeout, handshake).await;
    // Whatever became of the handshake, which set its own rank: requests run in ordinary rank.
    rt::set_rank(rt::TaskRank::Ordinary);
    let error = match outcome {
        Ok(Ok(Some(session))) => {
            note_session(http, site, endpoint, client, &session);
            bytes.transport.set_tls(session);
            return TlsAdmission::Open;
        }
        Ok(Ok(None)) => return TlsAdmission::Open,
        Ok(Err(error)) => error,
        Err(_) => {
            http.counters.tls_failed.add(1);
            log_phase::observe_handshake(site, client.first_server(), ObservedHandshake::Failed);
            let message =
                format_args!("client timed out (110: Connection timed out) while SSL handshaking");
            http.log_client(LogLevel::Info, client, message);
            return TlsAdmission::Over;
        }
    };
    match error {
        // A client that closes before its hello is a port scan or a health check: nginx has another line for it.
        TlsAcceptFailure::Handshake(HandshakeError::Closed)
            if untouched && client.asked_name.borrow().is_none() =>
        {
            let message = format_args!("client closed connection while SSL handshaking");
            http.log_client(LogLevel::Info, client, message);
        }
        TlsAcceptFailure::Handshake(error) => {
            http.counters.tls_failed.add(1);
            log_phase::observe_handshake(site, client.first_server(), ObservedHandshake::Failed);
            // A client's faults are routine; our own (a broken certificate) need attention.
            let level = if error.is_peers() {
                LogLevel::Info
            } else {
                LogLevel::Crit
            };
            http.log_client(level, client, format_args!("{error} while SSL handshaking"));
        }
        TlsAcceptFailure::Proven => {
            http.debug_client(client, format_args!("an ACME challenge was answered"));
        }
        TlsAcceptFailure::Certificate(message) => {
            http.log_client(
                LogLevel::Error,
                client,
                format_args!("{message} while SSL handshaking"),
            );
        }
    }
    TlsAdmission::Over
}

/// Counts a handshake that has succeeded.
fn note_session(
    http: &HttpLoop,
    site: &HttpSite,
    endpoint: &ListenEndpoint,
    client: &HttpClient,
    session: &TlsSession,
) {
    let is_resumed = session.is_resumed();
    http.counters
        .count_handshake(session.protocol(), is_resumed);
    let end = match is_resumed {
        true => ObservedHandshake::Resumed,
        false => ObservedHandshake::Full,
    };
    if is_resumed {
        reach_advice::note_return(http, site, endpoint);
    }
    log_phase::observe_handshake(site, client.first_server(), end);
}

/// Why the handshake brought no session.
pub(crate) enum TlsAcceptFailure {
    Handshake(HandshakeError),
    /// A certificate whose name depends on the client could not be loaded.
    Certificate(String),
    /// An ACME server wanted a proof of a name, and got it.
    Proven,
}

impl From<HandshakeError> for TlsAcceptFailure {
    fn from(error: HandshakeError) -> TlsAcceptFailure {
        TlsAcceptFailure::Handshake(error)
    }
}

/// The server whose settings run a handshake.
pub(crate) struct TlsServer<'a> {
    pub(crate) id: ServerId,
    pub(crate) service: &'a ServerTls,
    pub(crate) settings: &'a ServerSettings,
}

/// Runs the handshake. `None`: the client speaks plain HTTP, and what it has sent is its input again.
async fn handshake(
    http: &HttpLoop,
    site: &Rc<HttpSite>,
    endpoint: &ListenEndpoint,
    client: &Rc<HttpClient>,
    bytes: &ByteStream,
    input: Vec<u8>,
) -> Result<Option<TlsSession>, TlsAcceptFailure> {
    let socket = bytes.transport.socket();
    let hello = match read_hello(socket, input).await? {
        TlsOrPlain::Hello(hello) => hello,
        TlsOrPlain::Plain(input) => {
            bytes.input.replace(input);
            return Ok(None);
        }
    };
    // A signature takes as long as a hundred requests: requests of other clients go first, and no two signatures run in
    // one iteration of the loop.
    rt::continue_as(rt::TaskRank::Patient).await;
    let consulted = consult_hello(site, client, endpoint.default_server, &hello).await;
    let Ok(protocols) = consulted else {
        return Err(hello.abort_with_internal_error(socket).into());
    };
    // Before the checks below: their log lines, and the choice of settings, go by the name.
    note_name(client, endpoint, &hello);
    // Before the servers' own settings: the challenge has its own certificate, and may come for a name whose server has
    // none yet (RFC 8737, section 3).
    if hello.alpn().iter().any(|name| name == CHALLENGE) {
        return prove(http, site, endpoint, bytes, hello).await;
    }
    let named = client.first_server();
    // `ssl_reject_handshake`: refused before a certificate could reveal another server's name.
    if endpoint.member_tls().is_none()
        && service(site, named).is_some_and(|service| service.rejects)
    {
        return Err(hello.refuse_unknown_name(socket).into());
    }
    // A server without a certificate of its own shows the default server's, as in nginx.
    let found = [named, endpoint.default_server]
        .into_iter()
        .find_map(|server| tls_server(site, endpoint, server));
    let Some(server) = found else {
        return Err(HandshakeError::NoCertificate.into());
    };
    let (mut choice, keeping) = match choose_identities(site, client, &server, &hello).await {
        Ok(chosen) => chosen,
        Err(failure) => {
            // Whatever the failure was, the client gets the alert that says the fault is ours.
            hello.abort_with_internal_error(socket);
            return Err(failure);
        }
    };
    refresh_staples(site, &server);
    choice.protocols = protocols;
    let Ok(own) = choice.settings(server.settings) else {
        return Err(hello.abort_with_internal_error(socket).into());
    };
    let settings = own.as_ref().unwrap_or(server.settings);
    let mut session = hello
        .accept(socket, settings, choice.identities, keeping.as_ref())
        .await?;
    if let Some(made) = keeping.and_then(|keeping| keeping.made_session(settings)) {
        let offer = HandshakeOffer::for_session(session.server_name().map(Into::into), made);
        // Whether it is stored or not, the handshake is complete.
        let _ = consult(site, client, server.id, HandshakePhase::SessionMade, offer).await;
    }
    check_status(http, site, client, &server, &mut session).await;
    Ok(Some(session))
}

/// Runs the hook for the hello. It comes before the name in it selects a server, so it is the default server's. Returns the
/// versions that it has chosen.
pub(crate) async fn consult_hello(
    site: &Rc<HttpSite>,
    client: &Rc<HttpClient>,
    default_server: ServerId,
    hello: &ReceivedHello,
) -> Result<Option<TlsProtocols>, HandshakeRefused> {
    if !has_a_say(site, default_server) {
        return Ok(None);
    }
    let offer = HandshakeOffer::new(hello, None, None);
    let phase = HandshakePhase::Hello;
    let choice = consult(site, client, default_server, phase, offer).await?;
    Ok(choice.protocols)
}

/// What differs from the settings in this handshake, and who keeps the session.
pub(crate) async fn choose_identities(
    site: &Rc<HttpSite>,
    client: &Rc<HttpClient>,
    server: &TlsServer<'_>,
    hello: &ReceivedHello,
) -> Result<(HandshakeChoice, Option<SessionKeeper>), TlsAcceptFailure> {
    let mut identities = None;
    if !server.service.dynamic.is_empty() {
        identities = Some(load(site, client, server).await?);
    }
    if !has_a_say(site, server.id) {
        let choice = HandshakeChoice {
            identities,
            ..HandshakeChoice::default()
        };
        return Ok((choice, None));
    }
    let offer = HandshakeOffer::new(hello, Some(server.settings), identities.as_deref());
    let keeping = fetch(site, client, server, hello, &offer).await;
    let mut choice = consult(site, client, server.id, HandshakePhase::Certificate, offer)
        .await
        .map_err(|HandshakeRefused| HandshakeError::Objection)?;
    choice.identities = choice.identities.or(identities);
    Ok((choice, keeping))
}

/// Has OCSP responses that will soon be too old asked for again; the handshake does not wait for them.
pub(crate) fn refresh_staples(site: &Rc<HttpSite>, server: &TlsServer<'_>) {
    let id = server.id;
    let network = || network(site, id);
    server.
    // In the background: the handshake uses the staple that is there, because an OCSP responder may take seconds.
    settings.refresh_staples(network, {
        let site = Rc::clone(site);
        move |line| log_asking(&site, id, &line)
    });
}

/// Asks for the status of the client's certificate, where `ssl_ocsp` wants it. What it says is noted in the session,
/// and [`check_tls`] judges it with each request.
async fn check_status(
    http: &HttpLoop,
    site: &HttpSite,
    client: &HttpClient,
    server: &TlsServer<'_>,
    session: &mut TlsSession,
) {
    // `ssl_ocsp`: only now is the client's certificate known. A failure is noted in the session and judged with the
    // request, so that the client gets an HTTP error.
    if let (Some(check), Some(trust)) = (&server.service.status, server.settings.trust())
        && let Some(line) = check.check(session, trust, &network(site, server.id)).await
    {
        let action = "requesting certificate status";
        http.log_client(
            LogLevel::Error,
            client,
            format_args!("{line} while {action}"),
        );
    }
}

/// How a server's OCSP responders are reached: with the resolver of its own level.
fn network(site: &HttpSite, server: ServerId) -> OcspResolver {
    let location = site.location(site.server(server).root);
    let resolving = location.confs.get::<ResolverConf>();
    OcspResolver {
        resolver: Arc::clone(&resolving.resolver),
        timeout: resolving.timeout,
    }
}

/// Logs a failure that concerns no connection.
fn log_asking(site: &HttpSite, server: ServerId, line: &str) {
    let log = &site.location(site.server(server).root).core.log;
    let line = format_args!("{line} while requesting certificate status");
    log.log(LogLevel::Error, &NoContext, line);
}

/// Whether a module has a hook in the handshakes of this server.
fn has_a_say(site: &HttpSite, server: ServerId) -> bool {
    site.server(server).handshake.is_some()
}

/// Runs the hook of a server's handshakes; returns what it decided.
async fn consult(
    site: &Rc<HttpSite>,
    client: &Rc<HttpClient>,
    server: ServerId,
    phase: HandshakePhase,
    offer: HandshakeOffer,
) -> Result<HandshakeChoice, HandshakeRefused> {
    let offer = ask(site, client, server, phase, offer).await?;
    Ok(offer.borrow_mut().take_choice())
}

/// Runs the hook, with a request that has no head, and returns the offer as the hook left it.
async fn ask(
    site: &Rc<HttpSite>,
    client: &Rc<HttpClient>,
    server: ServerId,
    phase: HandshakePhase,
    offer: HandshakeOffer,
) -> Result<Rc<RefCell<HandshakeOffer>>, HandshakeRefused> {
    let offer = Rc::new(RefCell::new(offer));
    if let Some((handler, _)) = site.server(server).handshake {
        let mut request = Request::new(Rc::clone(site), Rc::clone(client), Rc::default(), server);
        handler(&mut request, phase, Rc::clone(&offer)).await?;
    }
    Ok(offer)
}

/// Asks the external session store (TLS 1.2) for the session that the client wants to resume; `None` if no such store
/// concerns this client. Without an answer the client gets a new session.
async fn fetch(
    site: &Rc<HttpSite>,
    client: &Rc<HttpClient>,
    server: &TlsServer<'_>,
    hello: &ReceivedHello,
    offer: &HandshakeOffer,
) -> Option<SessionKeeper> {
    let (_, keeps) = site.server(server.id).handshake?;
    if keeps == SessionStorage::default() || !hello.may_be_kept(server.settings) {
        return None;
    }
    let wanted = hello.wanted_session().filter(|_| keeps.fetches);
    let mut found = None;
    if let Some(id) = wanted {
        let wanted = KeptSession {
            id: id.clone(),
            ..KeptSession::default()
        };
        let offer = HandshakeOffer::for_session(offer.server_name.clone(), wanted);
        let answer = ask(
            site,
            client,
            server.id,
            HandshakePhase::SessionWanted,
            offer,
        )
        .await;
        let answer = answer
            .ok()
            .and_then(|offer| offer.borrow_mut().session.take());
        found = Some(answer.unwrap_or(KeptSession {
            id,
            ..KeptSession::default()
        }));
    }
    Some(SessionKeeper::new(server.settings, keeps.stores, found))
}

/// The ALPN protocol of the TLS-ALPN-01 challenge (RFC 8737).
const CHALLENGE: &[u8] = b"acme-tls/1";

/// Presents the certificate that proves a name. The connection then has no further use.
async fn prove(
    http: &HttpLoop,
    site: &HttpSite,
    endpoint: &ListenEndpoint,
    bytes: &ByteStream,
    hello: Box<ReceivedHello>,
) -> Result<Option<TlsSession>, TlsAcceptFailure> {
    let identity = hello
        .server_name()
        .and_then(|name| http.tls_challenge(&name.to_ascii_lowercase()));
    let found = tls_server(site, endpoint, endpoint.default_server);
    let (Some(identity), Some(server)) = (identity, found) else {
        return Err(HandshakeError::NoCertificate.into());
    };
    // RFC 8737, section 3: the challenge must be negotiated as the only protocol.
    let settings = server.settings.with_alpn(vec![CHALLENGE.to_vec()]);
    let socket = bytes.transport.socket();
    hello
        .accept(socket, &settings, Some(vec![identity]), None)
        .await?;
    Err(TlsAcceptFailure::Proven)
}

/// The TLS settings of a server, if it has any.
pub(crate) fn service(site: &HttpSite, server: ServerId) -> Option<&Arc<ServerTls>> {
    site.server(server).tls.as_ref()
}

/// `None`: the server has no certificate.
fn tls_server<'a>(
    site: &'a HttpSite,
    endpoint: &'a ListenEndpoint,
    server: ServerId,
) -> Option<TlsServer<'a>> {
    if let Some(members) = endpoint.member_tls() {
        let service = members.server();
        return Some(TlsServer {
            id: server,
            service,
            settings: service.settings.as_ref()?,
        });
    }
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

/// Whether the server offers HTTP/2 in ALPN: by `http2 on`, or by the parameter of `listen`.
fn offers_http2(site: &HttpSite, endpoint: &ListenEndpoint, server: ServerId) -> bool {
    endpoint.http2 || site.server(server).core.http2.on
}

/// Notes the name in the hello, and the server that has it, on the client.
pub(crate) fn note_name(client: &HttpClient, endpoint: &ListenEndpoint, hello: &ReceivedHello) {
    if let Some(name) = hello.server_name() {
        client.asked_name.replace(Some(Box::new(AskedName {
            server: server_of_name(endpoint, name),
            name: name.into(),
        })));
    }
}

/// Loads the certificates whose names contain variables.
async fn load(
    site: &Rc<HttpSite>,
    client: &Rc<HttpClient>,
    server: &TlsServer<'_>,
) -> Result<Vec<Arc<TlsIdentity>>, TlsAcceptFailure> {
    let service = server.service;
    let mut identities = Vec::new();
    for (certificate, key) in &service.dynamic {
        // The variables need a request. It is gone before the wait, because nothing of it is used after.
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
        identities.push(loaded.map_err(|problem| TlsAcceptFailure::Certificate(problem.message))?);
    }
    Ok(identities)
}

/// Gives a request that is refused for its `Host` back to the server that TLS named, with its error pages and logs. What comes
/// behind `Host` does not count: nginx judges it when it reads the field.
fn return_to_asked_server(request: &mut Request, name: &str) {
    let server = server_of_name(&request.client.endpoint.borrow(), name);
    if let Some(head) = Rc::get_mut(&mut request.head) {
        head.host.clear();
        head.port = None;
        head.wire.count_to_host();
    }
    if let Some(server) = server {
        request.server = server;
        request.enter_server();
    }
}

/// Whether a request may be served as far as TLS is concerned; otherwise the status to answer with. As in nginx this is
/// judged when the request arrives and not in the handshake, so that the client gets an HTTP error.
pub(crate) fn check_tls(request: &mut Request) -> Result<(), u16> {
    let client = Rc::clone(&request.client);
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
    let asks = match client.endpoint.borrow().member_tls() {
        Some(members) => members.server().verify_client,
        None => service(&request.site, request.server)
            .map_or(VerifyClient::No, |service| service.verify_client),
    };
    if asks == VerifyClient::No {
        return Ok(());
    }
    // Client certificates are verified with the settings of the server that TLS named. `Host` must not lead from there
    // to a server that trusts others: 421 (RFC 9110, section 15.5.20).
    if let Some(AskedName {
        name,
        server: Some(_),
    }) = client.asked_name.borrow().as_deref()
        && request.head.host != name.as_bytes()
    {
        let message = "client attempted to request the server name different from the one that was negotiated";
        tell(request, format_args!("{message}"));
        return_to_asked_server(request, name);
        return Err(421);
    }
    match asks.check_verify_result(session.verify_result()) {
        Ok(()) => Ok(()),
        Err(CertificateRefusal::Bad(fault)) => {
            tell(
                request,
                format_args!("client SSL certificate verify error: {fault}"),
            );
            Err(internal_status::CERTIFICATE_ERROR)
        }
        Err(CertificateRefusal::Missing) => {
            tell(
                request,
                format_args!("client sent no required SSL certificate"),
            );
            Err(internal_status::NO_CERTIFICATE)
        }
    }
}

/// Logs why a request is refused, with nginx's words for what it was doing.
fn tell(request: &Request, message: std::fmt::Arguments<'_>) {
    request.log(
        LogLevel::Info,
        format_args!("{message} while reading client request headers"),
    );
}

/// Reports addresses with TLS whose servers have no certificate. `places` are where the servers' blocks are.
pub(crate) fn check_configuration(frozen: &FrozenHttp, places: &[Span], line: &mut DirectiveLine) {
    // A certificate that could not be loaded has been reported. That the server has none would only be a consequence.
    let mut errors = line.level.build.diagnostics.iter();
    if errors.any(|error| error.message.starts_with("cannot load certificate")) {
        return;
    }
    let needs_certificate =
        |endpoint: &&Arc<ListenEndpoint>| endpoint.tls && endpoint.member_tls().is_none();
    for endpoint in frozen.endpoints.iter().filter(needs_certificate) {
        let ability = |server: ServerId| frozen.server(server).handshakes;
        let default = endpoint.default_server;
        if ability(default) == HandshakeAbility::Accepts {
            check_versions(frozen, endpoint, places, line);
            continue;
        }
        // A default server with `ssl_reject_handshake` needs none itself, as long as the others have theirs.
        let is_unable = |server: &ServerId| ability(*server) == HandshakeAbility::None;
        let missing = match ability(default) {
            HandshakeAbility::Accepts | HandshakeAbility::None => Some(default),
            HandshakeAbility::Rejects => endpoint.servers.iter().copied().find(is_unable),
        };
        if let Some(server) = missing {
            let span = places.get(server.0 as usize).copied();
            let parameter = if endpoint.quic { "quic" } else { "ssl" };
            line.level
                .report(net::tls::certificate_missing(parameter, span));
        }
    }
}

/// Reports a default server of QUIC whose `ssl_protocols` do without TLS 1.3, which QUIC consists of.
fn check_versions(
    frozen: &FrozenHttp,
    endpoint: &ListenEndpoint,
    places: &[Span],
    line: &mut DirectiveLine,
) {
    let server = endpoint.default_server;
    let settings = frozen.server(server).tls.as_ref();
    let settings = settings.and_then(|service| service.settings.as_ref());
    if endpoint.quic && settings.is_some_and(|settings| !settings.speaks_1_3()) {
        let message = "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive";
        let span = places.get(server.0 as usize).copied();
        line.level.report(Diagnostic::error(message, span));
    }
}
