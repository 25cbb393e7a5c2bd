//! TLS of a session: between the decision that the client may come in and the look at its first bytes.
//!
//! The client's hello is read first: the name in it chooses among the servers of the address, and that server's
//! settings run the handshake.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Diagnostic, Line, Span};
use host::error_log::{Level, NoContext};
use net::resolver::ResolverConf;
use net::tls::ocsp::Network;
use net::tls::{
    Asks, Beginning, HandshakeError, Hello, Identity, Moment, Offer, Refusal, ServerSettings,
    Service, read_hello,
};

use crate::client::Transport;
use crate::module::{Objection, status};
use crate::session::Session;
use crate::site::{Frozen, ServerId, Site};

/// Runs the handshake, if the session's address is one with TLS. The error is the status that the session ends with.
pub(crate) async fn secure(session: &mut Session) -> Result<(), u16> {
    let Some(stream) = session.client.stream().cloned() else {
        return Ok(());
    };
    if !session.endpoint.tls || stream.is_tls() {
        return Ok(());
    }
    session.action = "SSL handshaking";
    if session.server().core.tcp_nodelay && !session.remote.address.is_unix() {
        // It fails on a connection that is gone, which its first use tells better.
        let _ = stream.socket().set_nodelay(true);
    }
    let service = session.server().tls.clone();
    let timeout = service.map_or(DEFAULT_TIMEOUT, |service| service.handshake_timeout);
    let outcome = rt::timeout(timeout, handshake(session, &stream)).await;
    rt::set_rank(rt::Rank::Ordinary);
    drop(stream);
    let error = match outcome {
        Ok(Ok(tls)) => {
            keep(session, tls);
            return judge(session);
        }
        Ok(Err(error)) => error,
        Err(_) => {
            let message = format_args!("client timed out (110: Connection timed out)");
            session.log(Level::Info, message);
            return Err(status::OK);
        }
    };
    match error {
        Failure::Handshake(error) => {
            let level = match error.is_peers() {
                true => Level::Info,
                false => Level::Crit,
            };
            session.log(level, format_args!("{error}"));
        }
        Failure::Certificate(message) => session.error(format_args!("{message}")),
    }
    Err(status::INTERNAL_SERVER_ERROR)
}

/// For servers that say nothing of it.
const DEFAULT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Puts TLS on the session's connection. Nobody else has it yet.
fn keep(session: &mut Session, tls: net::tls::Session) {
    if let Some(client) = Rc::get_mut(&mut session.client)
        && let Transport::Stream(stream) = &mut client.transport
        && let Some(stream) = Rc::get_mut(stream)
    {
        stream.secure(tls);
    }
}

enum Failure {
    Handshake(HandshakeError),
    /// A certificate that depends on the client can not be had.
    Certificate(String),
}

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Failure {
        Failure::Handshake(error)
    }
}

async fn handshake(
    session: &mut Session,
    stream: &net::Transport,
) -> Result<net::tls::Session, Failure> {
    let input = session.client.input.take();
    let hello: Box<Hello> = match read_hello(stream.socket(), input).await? {
        Beginning::Hello(hello) => hello,
        Beginning::Plain(_) => return Err(HandshakeError::NotTls.into()),
    };
    // Others have their turn before a signature is made, as in http.
    rt::continue_as(rt::Rank::Patient).await;
    if session.server().handshake.is_some() {
        let offer = Offer::new(&hello, None, None);
        if let Err(Objection) = consult(session, Moment::Hello, offer).await {
            return Err(hello.object(stream.socket()).into());
        }
    }
    if let Some(name) = hello.server_name() {
        session.client.asked_name.replace(Some(name.into()));
        session.choose_server(name.as_bytes());
    }
    let site = Rc::clone(&session.site);
    let service = |server: ServerId| site.server(server).tls.as_ref();
    if service(session.server).is_some_and(|service| service.rejects) {
        return Err(hello.refuse(stream.socket()).into());
    }
    let found = [session.server, session.endpoint.default_server]
        .into_iter()
        .find_map(|server| settings(service(server)?));
    let Some((service, settings)) = found else {
        return Err(HandshakeError::NoCertificate.into());
    };
    let identities = match choose_identities(session, (service, settings), &hello).await {
        Ok(chosen) => chosen,
        Err(failure) => {
            hello.object(stream.socket());
            return Err(failure);
        }
    };
    refresh_staples(&site, session.server, settings);
    let mut tls = hello
        .accept(stream.socket(), settings, identities, None)
        .await?;
    if let (Some(check), Some(trust)) = (&service.status, settings.trust())
        && let Some(line) = check
            .check(&mut tls, trust, &network(&site, session.server))
            .await
    {
        session.error(format_args!("{line} while requesting certificate status"));
    }
    Ok(tls)
}

/// The certificates that take the place of those of the settings, if any do.
async fn choose_identities(
    session: &mut Session,
    (service, settings): (&Service, &ServerSettings),
    hello: &Hello,
) -> Result<Option<Vec<Arc<Identity>>>, Failure> {
    let mut identities = None;
    if !service.dynamic.is_empty() {
        let site = Rc::clone(&session.site);
        identities = Some(load(session, &site, service).await?);
    }
    if session.server().handshake.is_none() {
        return Ok(identities);
    }
    let offer = Offer::new(hello, Some(settings), identities.as_deref());
    match consult(session, Moment::Certificate, offer).await {
        Ok(chosen) => Ok(chosen.or(identities)),
        Err(Objection) => Err(HandshakeError::Objection.into()),
    }
}

/// How a server's OCSP responders are found.
fn network(site: &Site, server: ServerId) -> Network {
    let resolving = site.server(server).confs.get::<ResolverConf>();
    Network {
        resolver: Arc::clone(&resolving.resolver),
        timeout: resolving.timeout,
    }
}

/// Has OCSP responses that will soon be too old asked for again; the handshake does not wait for them.
fn refresh_staples(site: &Rc<Site>, server: ServerId, settings: &ServerSettings) {
    settings.refresh_staples(|| network(site, server), {
        let site = Rc::clone(site);
        move |line| {
            let line = format_args!("{line} while requesting certificate status");
            let log = &site.server(server).core.log;
            log.log(Level::Error, &NoContext, line);
        }
    });
}

/// Asks who has a say in the handshakes of the session's server; the certificates that were chosen, if any were.
async fn consult(
    session: &mut Session,
    moment: Moment,
    offer: Offer,
) -> Result<Option<Vec<Arc<Identity>>>, Objection> {
    let Some(handler) = session.server().handshake else {
        return Ok(None);
    };
    let offer = Rc::new(RefCell::new(offer));
    handler(session, moment, Rc::clone(&offer)).await?;
    Ok(offer.borrow_mut().chosen.take())
}

fn settings(service: &Arc<Service>) -> Option<(&Service, &ServerSettings)> {
    Some((service, service.settings.as_ref()?))
}

/// Loads the certificates whose names depend on this client.
async fn load(
    session: &mut Session,
    site: &Site,
    service: &Service,
) -> Result<Vec<Arc<Identity>>, Failure> {
    let mut identities = Vec::new();
    for (certificate, key) in &service.dynamic {
        let (certificate, key) = (session.value(certificate), session.value(key));
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

/// Whether a client with such a certificate may come in.
fn judge(session: &mut Session) -> Result<(), u16> {
    let asks = match &session.server().tls {
        Some(service) => service.asks,
        None => Asks::No,
    };
    let client = Rc::clone(&session.client);
    let tls = client.stream().and_then(|stream| stream.tls());
    match asks.judge(tls.and_then(net::tls::Session::assessment)) {
        Ok(()) => Ok(()),
        Err(Refusal::Bad(fault)) => {
            let message = format_args!("client SSL certificate verify error: {fault}");
            session.log(Level::Info, message);
            Err(status::INTERNAL_SERVER_ERROR)
        }
        Err(Refusal::Missing) => {
            let message = format_args!("client sent no required SSL certificate");
            session.log(Level::Info, message);
            Err(status::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Reports addresses with TLS whose servers have no certificate. `places` are those of the servers' blocks.
pub(crate) fn check_configuration(frozen: &Frozen, places: &[Span], line: &mut Line) {
    let endpoints = frozen.endpoints.iter().filter(|endpoint| endpoint.tls);
    for endpoint in endpoints {
        let service = frozen.server(endpoint.default_server).tls.as_ref();
        if service.is_some_and(|service| service.settings.is_some() || service.rejects) {
            continue;
        }
        let span = places.get(endpoint.default_server.0 as usize).copied();
        let place = span
            .and_then(|span| line.sources().place(span))
            .unwrap_or_default();
        let message = format!(
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in {place}"
        );
        let error = Diagnostic::error(message, None);
        line.level.report(error);
    }
}
