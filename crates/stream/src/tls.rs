//! TLS of a session. It comes between access and preread.
//!
//! The ClientHello is read first: the name in it chooses among the servers of the address, and the settings of that
//! server run the handshake.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use conf::{DirectiveLine, Span};
use host::error_log::{LogLevel, NoContext};
use net::resolver::ResolverConf;
use net::tls::ocsp::OcspResolver;
use net::tls::{
    CertificateRefusal, HandshakeChoice, HandshakeError, HandshakeOffer, HandshakePhase,
    ReceivedHello, ServerSettings, ServerTls, TlsIdentity, TlsOrPlain, VerifyClient, read_hello,
};

use crate::client::SessionTransport;
use crate::module::{HandshakeRefused, status};
use crate::session::StreamSession;
use crate::stream_site::{FrozenStream, ServerId, StreamSite};

/// Runs the handshake, if the address has TLS. The error is the status with which the session ends.
pub(crate) async fn accept_tls(session: &mut StreamSession) -> Result<(), u16> {
    let Some(stream) = session.client.stream().cloned() else {
        return Ok(());
    };
    // A connection that another address passed on may have had its handshake there.
    if !session.endpoint.tls || stream.is_tls() {
        return Ok(());
    }
    session.action = "SSL handshaking";
    if session.server().core.tcp_nodelay && !session.remote.address.is_unix() {
        // It fails on a connection that is gone, and then the first use tells why.
        let _ = stream.socket().set_nodelay(true);
    }
    // The timeout is that of the default server: the name that chooses another one is part of the handshake.
    let service = session.server().tls.clone();
    let timeout = service.map_or(DEFAULT_TIMEOUT, |service| service.handshake_timeout);
    let outcome = rt::timeout(timeout, handshake(session, &stream)).await;
    // However it ended: the handshake lowered the rank of the task, and the session must not keep that.
    rt::set_rank(rt::TaskRank::Ordinary);
    // The connection must have a single owner when TLS is put on it below.
    drop(stream);
    let error = match outcome {
        Ok(Ok(tls)) => {
            keep(session, tls);
            return judge(session);
        }
        Ok(Err(error)) => error,
        Err(_) => {
            let message = format_args!("client timed out (110: Connection timed out)");
            session.log(LogLevel::Info, message);
            return Err(status::OK);
        }
    };
    match error {
        SessionTlsFailure::Handshake(error) => {
            // What any client can cause is `info`, so that clients cannot fill the log at its usual levels.
            let level = match error.is_peers() {
                true => LogLevel::Info,
                false => LogLevel::Crit,
            };
            session.log(level, format_args!("{error}"));
        }
        SessionTlsFailure::Certificate(message) => session.error(format_args!("{message}")),
    }
    Err(status::INTERNAL_SERVER_ERROR)
}

/// The default of `ssl_handshake_timeout`, for servers without TLS settings.
const DEFAULT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Puts TLS on the connection. At this point the session is its only owner, so that both borrows succeed.
fn keep(session: &mut StreamSession, tls: net::tls::TlsSession) {
    if let Some(client) = Rc::get_mut(&mut session.client)
        && let SessionTransport::Stream(stream) = &mut client.transport
        && let Some(stream) = Rc::get_mut(stream)
    {
        stream.set_tls(tls);
    }
}

enum SessionTlsFailure {
    Handshake(HandshakeError),
    /// A certificate whose name contains variables could not be loaded.
    Certificate(String),
}

impl From<HandshakeError> for SessionTlsFailure {
    fn from(error: HandshakeError) -> SessionTlsFailure {
        SessionTlsFailure::Handshake(error)
    }
}

/// Reads the ClientHello, chooses server and certificate by it, and runs the handshake to its end.
async fn handshake(
    session: &mut StreamSession,
    stream: &net::Transport,
) -> Result<net::tls::TlsSession, SessionTlsFailure> {
    let input = session.client.input.take();
    let hello: Box<ReceivedHello> = match read_hello(stream.socket(), input).await? {
        TlsOrPlain::Hello(hello) => hello,
        TlsOrPlain::Plain(_) => return Err(HandshakeError::NotTls.into()),
    };
    // A signature takes long, and this client has not shown yet that it is worth it: other tasks come first, as in
    // http.
    rt::continue_as(rt::TaskRank::Patient).await;
    let mut protocols = None;
    if session.server().handshake.is_some() {
        // Before a server is chosen: such a handler sees the ClientHello as it came.
        let offer = HandshakeOffer::new(&hello, None, None);
        match consult(session, HandshakePhase::Hello, offer).await {
            Ok(choice) => protocols = choice.protocols,
            Err(HandshakeRefused) => {
                return Err(hello.abort_with_internal_error(stream.socket()).into());
            }
        }
    }
    if let Some(name) = hello.server_name() {
        session.client.asked_name.replace(Some(name.into()));
        session.choose_server(name.as_bytes());
    }
    let site = Rc::clone(&session.site);
    let service = |server: ServerId| site.server(server).tls.as_ref();
    // `ssl_reject_handshake`: no certificate is shown to a client that asks for a name that is not served.
    if service(session.server).is_some_and(|service| service.rejects) {
        return Err(hello.refuse_unknown_name(stream.socket()).into());
    }
    // As in nginx, a server without a certificate of its own shows that of the default server.
    let found = [session.server, session.endpoint.default_server]
        .into_iter()
        .find_map(|server| settings(service(server)?));
    let Some((service, settings)) = found else {
        return Err(HandshakeError::NoCertificate.into());
    };
    // Only now is the server known whose variables name the certificate.
    let mut choice = match choose_identities(session, (service, settings), &hello).await {
        Ok(chosen) => chosen,
        // The client gets an alert, so that it does not wait for the timeout.
        Err(failure) => {
            hello.abort_with_internal_error(stream.socket());
            return Err(failure);
        }
    };
    refresh_staples(&site, session.server, settings);
    choice.protocols = protocols;
    let Ok(own) = choice.settings(settings) else {
        return Err(hello.abort_with_internal_error(stream.socket()).into());
    };
    let settings = own.as_ref().unwrap_or(settings);
    let mut tls = hello
        .accept(stream.socket(), settings, choice.identities, None)
        .await?;
    // After the handshake, because only then is the certificate of the client known. The connection is judged by the
    // result below.
    if let (Some(check), Some(trust)) = (&service.status, settings.trust())
        && let Some(line) = check
            .check(&mut tls, trust, &network(&site, session.server))
            .await
    {
        session.error(format_args!("{line} while requesting certificate status"));
    }
    Ok(tls)
}

/// What differs from the settings in this handshake.
async fn choose_identities(
    session: &mut StreamSession,
    (service, settings): (&ServerTls, &ServerSettings),
    hello: &ReceivedHello,
) -> Result<HandshakeChoice, SessionTlsFailure> {
    let mut identities = None;
    // Certificates with variables in their names are loaded for each handshake, from a cache or by a pool.
    if !service.dynamic.is_empty() {
        let site = Rc::clone(&session.site);
        identities = Some(load(session, &site, service).await?);
    }
    if session.server().handshake.is_none() {
        return Ok(HandshakeChoice {
            identities,
            ..HandshakeChoice::default()
        });
    }
    let offer = HandshakeOffer::new(hello, Some(settings), identities.as_deref());
    match consult(session, HandshakePhase::Certificate, offer).await {
        Ok(mut choice) => {
            choice.identities = choice.identities.or(identities);
            Ok(choice)
        }
        Err(HandshakeRefused) => Err(HandshakeError::Objection.into()),
    }
}

/// How a server's OCSP responders are found.
fn network(site: &StreamSite, server: ServerId) -> OcspResolver {
    let resolving = site.server(server).confs.get::<ResolverConf>();
    OcspResolver {
        resolver: Arc::clone(&resolving.resolver),
        timeout: resolving.timeout,
    }
}

/// Has OCSP responses that will soon be too old asked for again; the handshake does not wait for them.
fn refresh_staples(site: &Rc<StreamSite>, server: ServerId, settings: &ServerSettings) {
    settings.refresh_staples(|| network(site, server), {
        let site = Rc::clone(site);
        move |line| {
            let line = format_args!("{line} while requesting certificate status");
            let log = &site.server(server).core.log;
            log.log(LogLevel::Error, &NoContext, line);
        }
    });
}

/// Asks the handler that takes part in the handshakes of the server; returns what it decided.
async fn consult(
    session: &mut StreamSession,
    phase: HandshakePhase,
    offer: HandshakeOffer,
) -> Result<HandshakeChoice, HandshakeRefused> {
    let Some(handler) = session.server().handshake else {
        return Ok(HandshakeChoice::default());
    };
    let offer = Rc::new(RefCell::new(offer));
    handler(session, phase, Rc::clone(&offer)).await?;
    Ok(offer.borrow_mut().take_choice())
}

/// The settings for handshakes, if the service has a certificate.
fn settings(tls: &Arc<ServerTls>) -> Option<(&ServerTls, &ServerSettings)> {
    Some((tls, tls.settings.as_ref()?))
}

/// Loads the certificates whose names contain variables.
async fn load(
    session: &mut StreamSession,
    site: &StreamSite,
    service: &ServerTls,
) -> Result<Vec<Arc<TlsIdentity>>, SessionTlsFailure> {
    let mut identities = Vec::new();
    for (certificate, key) in &service.dynamic {
        let (certificate, key) = (session.value(certificate), session.value(key));
        let certificate = net::tls::full_path(&site.conf_prefix, &certificate);
        let key = net::tls::full_path(&site.conf_prefix, &key);
        let loaded = service
            .cache
            .get(certificate.as_ref(), key.as_ref(), &service.passwords)
            .await;
        identities.push(loaded.map_err(|problem| SessionTlsFailure::Certificate(problem.message))?);
    }
    Ok(identities)
}

/// Whether `ssl_verify_client` lets in a client with this certificate, or with none.
fn judge(session: &mut StreamSession) -> Result<(), u16> {
    let asks = match &session.server().tls {
        Some(service) => service.verify_client,
        None => VerifyClient::No,
    };
    let client = Rc::clone(&session.client);
    let tls = client.stream().and_then(|stream| stream.tls());
    match asks.check_verify_result(tls.and_then(net::tls::TlsSession::verify_result)) {
        Ok(()) => Ok(()),
        Err(CertificateRefusal::Bad(fault)) => {
            let message = format_args!("client SSL certificate verify error: {fault}");
            session.log(LogLevel::Info, message);
            Err(status::INTERNAL_SERVER_ERROR)
        }
        Err(CertificateRefusal::Missing) => {
            let message = format_args!("client sent no required SSL certificate");
            session.log(LogLevel::Info, message);
            Err(status::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Reports addresses with TLS whose default server has no certificate. Other servers fall back to that of the default
/// server. `places` are those of the blocks of the servers.
pub(crate) fn check_configuration(
    frozen: &FrozenStream,
    places: &[Span],
    line: &mut DirectiveLine,
) {
    let endpoints = frozen.endpoints.iter().filter(|endpoint| endpoint.tls);
    for endpoint in endpoints {
        let service = frozen.server(endpoint.default_server).tls.as_ref();
        // A server that rejects every handshake needs no certificate.
        if service.is_some_and(|service| service.settings.is_some() || service.rejects) {
            continue;
        }
        let span = places.get(endpoint.default_server.0 as usize).copied();
        line.level
            .report(net::tls::certificate_missing("ssl", span));
    }
}
