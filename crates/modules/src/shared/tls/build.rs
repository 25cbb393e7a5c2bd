//! From the lines of a server to what the engines use.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Span;
use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, Expression, Level};
use net::tls::{
    Asks, Choice, ClientCertificates, Identity, IdentityCache, Problem, Protocols, ServerOptions,
    Service, SessionCache, TicketKey, Tickets, Trust,
};

use super::commands::Commanded;
use super::{File, SessionCaching, Source, TlsConf, Word};

/// What an engine adds.
pub(crate) struct Wanted {
    /// Tells its sessions from those of others.
    pub(crate) context: &'static str,
    /// Offered by ALPN.
    pub(crate) alpn: Vec<Vec<u8>>,
    /// Offered where HTTP/2 is spoken; none: never.
    pub(crate) alpn_http2: Vec<Vec<u8>>,
}

/// Certificates of this configuration that were loaded: servers often share theirs.
#[derive(Default)]
struct Loaded(HashMap<(BString, BString), Arc<Identity>>);

/// What has been said once.
#[derive(Default)]
struct Said(Vec<String>);

/// Makes the service of a server; `None` when it has no certificate and refuses nobody.
pub(crate) fn service(
    conf: &TlsConf,
    wanted: Wanted,
    level: &mut Level,
) -> Result<Option<Arc<Service>>, Diagnostic> {
    check_pairs(conf)?;
    if conf.certificates.is_empty() && !conf.rejects {
        // Without certificates of its own it takes no part in handshakes, but what it asks of clients counts.
        if conf.asks == Asks::No {
            return Ok(None);
        }
        return Ok(Some(Arc::new(without_certificates(conf)?)));
    }
    let passwords = Arc::clone(&conf.passwords);
    if conf.ech {
        let message = "\"ssl_ech_file\" is not supported on this platform, ignored";
        warn_once(message.to_owned(), None, level);
    }
    let commanded = commands(conf, level)?;
    let (identities, dynamic) = identities(conf, &commanded, &passwords, level)?;
    let has_certificates = !identities.is_empty() || !dynamic.is_empty();
    let settings = match has_certificates {
        false => None,
        true => Some(options(conf, commanded, identities, &wanted, level)?),
    };
    let settings = settings
        .map(ServerOptions::build)
        .transpose()
        .map_err(|problem| at(problem, conf.ciphers.span))?;
    let cache = conf.certificate_cache;
    Ok(Some(Arc::new(Service {
        http2: match (&settings, wanted.alpn_http2.is_empty()) {
            (Some(settings), false) => Some(settings.with_alpn(wanted.alpn_http2)),
            _ => None,
        },
        settings,
        rejects: conf.rejects,
        asks: conf.asks,
        status: super::ocsp::status(conf)?,
        dynamic,
        cache: IdentityCache::new(
            cache.map_or(0, |cache| cache.max),
            cache.map_or(Duration::ZERO, |cache| cache.inactive),
            cache.map_or(Duration::ZERO, |cache| cache.valid),
        ),
        passwords,
        handshake_timeout: conf.handshake_timeout,
    })))
}

fn without_certificates(conf: &TlsConf) -> Result<Service, Diagnostic> {
    Ok(Service {
        settings: None,
        http2: None,
        rejects: false,
        asks: conf.asks,
        status: super::ocsp::status(conf)?,
        dynamic: Vec::new(),
        cache: IdentityCache::new(0, Duration::ZERO, Duration::ZERO),
        passwords: Arc::default(),
        handshake_timeout: conf.handshake_timeout,
    })
}

fn at(problem: Problem, span: impl Into<Option<Span>>) -> Diagnostic {
    Diagnostic::error(problem.message, span)
}

/// A file's content; what can not be read is an error at its word.
pub(super) fn read(file: &File, level: &mut Level) -> Result<Vec<u8>, Diagnostic> {
    level.build.files.read(&file.path).map_err(|error| {
        let path = file.path.display();
        Diagnostic::error(
            format!("open() \"{path}\" failed{}", rt::error_log::Errno(&error)),
            file.span,
        )
    })
}

fn check_pairs(conf: &TlsConf) -> Result<(), Diagnostic> {
    if conf.keys.len() >= conf.certificates.len() {
        return Ok(());
    }
    match conf.certificates.last() {
        Some(source @ (Source::Fixed(_, span) | Source::Dynamic(_, span))) => {
            Err(Diagnostic::error(
                format!(
                    "no \"ssl_certificate_key\" is defined for certificate \"{}\"",
                    source.name()
                ),
                *span,
            ))
        }
        None => Ok(()),
    }
}

fn commands(conf: &TlsConf, level: &mut Level) -> Result<Commanded, Diagnostic> {
    let mut commanded = Commanded {
        protocols: conf.protocols,
        choice: Choice::default(),
        certificate: None,
        key: None,
        prefer_server_ciphers: conf.prefer_server_ciphers,
        tickets: conf.tickets,
        ignored: Vec::new(),
    };
    let text = |word: &Word| word.text.to_str_lossy().into_owned();
    let choice = &mut commanded.choice;
    choice
        .set_ciphers(&text(&conf.ciphers))
        .map_err(|problem| at(problem, conf.ciphers.span))?;
    choice.forget_needless();
    if !choice.has_tls12() {
        // What follows from it is said below.
        choice.missing.clear();
    }
    tell_missing("ssl_ciphers", &mut choice.missing, conf.ciphers.span, level);
    choice
        .set_curves(&text(&conf.curves))
        .map_err(|problem| at(problem, conf.curves.span))?;
    tell_missing(
        "ssl_ecdh_curve",
        &mut choice.missing,
        conf.curves.span,
        level,
    );
    for (name, value, span) in &conf.commands {
        commanded
            .apply(name.as_ref(), value.as_ref())
            .map_err(|problem| at(problem, *span))?;
        tell_missing(
            "ssl_conf_command",
            &mut commanded.choice.missing,
            *span,
            level,
        );
        for what in commanded.ignored.drain(..) {
            warn_once(
                format!("ssl_conf_command {what} has no effect"),
                *span,
                level,
            );
        }
    }
    let old = Protocols::old(commanded.protocols);
    if !old.is_empty() {
        let old = old.join(", ");
        let text = format!("{old}: not supported, Weir requires TLS 1.2 or later");
        advise(&text, None, level);
    }
    Ok(commanded)
}

/// Names that are shown of a list.
const SHOWN: usize = 3;

/// Says what is not available, once for each list.
fn tell_missing(
    directive: &str,
    missing: &mut Vec<String>,
    span: impl Into<Option<Span>>,
    level: &mut Level,
) {
    let missing = std::mem::take(missing);
    if !missing.is_empty() {
        advise(&not_available(directive, &missing), span, level);
    }
}

/// A line that is not longer for a longer list.
pub(crate) fn not_available(directive: &str, missing: &[String]) -> String {
    let mut names = missing[..missing.len().min(SHOWN)].join(", ");
    if missing.len() > SHOWN {
        names.push_str(&format!(" and {} more", missing.len() - SHOWN));
    }
    format!("\"{directive}\": {names} not available, the others are used")
}

/// A warning of one line, once: what there is to know beyond it has a page of its own.
pub(crate) fn advise(message: &str, span: impl Into<Option<Span>>, level: &mut Level) {
    let message = format!("{message}; see \"weir help tls\"");
    let said = &mut level.shared::<Said>().0;
    if said.contains(&message) {
        return;
    }
    said.push(message.clone());
    let warning = Diagnostic::warning(message, None);
    level.report(match span.into() {
        Some(span) => warning.place(conf::Place::At(span)),
        None => warning,
    });
}

pub(super) fn warn_once(message: String, span: impl Into<Option<Span>>, level: &mut Level) {
    let said = &mut level.shared::<Said>().0;
    if !said.contains(&message) {
        said.push(message.clone());
        level.report(Diagnostic::warning(message, span));
    }
}

type Loading = (Vec<Arc<Identity>>, Vec<(Expression, Expression)>);

/// The certificates: all are loaded now, or, when one name has variables, all when a client comes.
fn identities(
    conf: &TlsConf,
    commanded: &Commanded,
    passwords: &[Vec<u8>],
    level: &mut Level,
) -> Result<Loading, Diagnostic> {
    let mut identities = Vec::new();
    let mut dynamic = Vec::new();
    if let (Some(certificate), Some(key)) = (&commanded.certificate, &commanded.key) {
        let span = conf.commands.first().map(|(_, _, span)| *span);
        identities.push(load(
            certificate.as_ref(),
            key.as_ref(),
            passwords,
            span,
            level,
        )?);
        return Ok((identities, dynamic));
    }
    let pairs = || conf.certificates.iter().zip(&conf.keys);
    let depends = pairs().any(|pair| !matches!(pair, (Source::Fixed(..), Source::Fixed(..))));
    for (certificate, key) in pairs() {
        match (certificate, key) {
            (Source::Fixed(certificate, span), Source::Fixed(key, _)) if !depends => {
                identities.push(load(
                    certificate.as_ref(),
                    key.as_ref(),
                    passwords,
                    Some(*span),
                    level,
                )?);
            }
            (certificate, key) => {
                let expression = |source: &Source| match source {
                    Source::Fixed(name, _) => Expression::literal(name),
                    Source::Dynamic(expression, _) => expression.clone(),
                };
                let pair = (expression(certificate), expression(key));
                for name in [&pair.0, &pair.1] {
                    let source = name.source();
                    // What does not come from a file: the second is the text of one that ACME has obtained.
                    if !source.starts_with(b"data:") && !source.starts_with(b"$acme_certificate") {
                        level.build.conf_prefix_for(conf::Access::Read, source);
                    }
                }
                dynamic.push(pair);
            }
        }
    }
    super::ocsp::staple(conf, &mut identities, level)?;
    Ok((Identity::last_of_each_kind(identities), dynamic))
}

fn load(
    certificate: &BStr,
    key: &BStr,
    passwords: &[Vec<u8>],
    span: Option<Span>,
    level: &mut Level,
) -> Result<Arc<Identity>, Diagnostic> {
    let prefix = level.build.in_conf_prefix(conf::Access::Opened, "");
    let full = |word| net::tls::full_path(&prefix, word);
    let names = (full(certificate), full(key));
    if let Some(known) = level.shared::<Loaded>().0.get(&names) {
        return Ok(Arc::clone(known));
    }
    let mut read = |path: &Path| level.build.files.read(path);
    let (certificate, key) = &names;
    let identity = Identity::load(certificate.as_ref(), key.as_ref(), passwords, &mut read)
        .map_err(|problem| at(problem, span))?;
    let loaded = &mut level.shared::<Loaded>().0;
    loaded.insert(names, Arc::clone(&identity));
    Ok(identity)
}

fn options(
    conf: &TlsConf,
    commanded: Commanded,
    identities: Vec<Arc<Identity>>,
    wanted: &Wanted,
    level: &mut Level,
) -> Result<ServerOptions, Diagnostic> {
    let protocols = Protocols::from_bits(commanded.protocols);
    if protocols.tls12 && !commanded.choice.has_tls12() {
        let text =
            "\"ssl_ciphers\" names no supported cipher suite of TLS 1.2: TLS 1.2 is disabled";
        advise(text, conf.ciphers.span, level);
    }
    Ok(ServerOptions {
        protocols,
        choice: commanded.choice,
        prefer_server_ciphers: commanded.prefer_server_ciphers,
        identities,
        client_certificates: client_certificates(conf, level)?,
        alpn: wanted.alpn.clone(),
        cache: match &conf.session_cache {
            SessionCaching::None => None,
            SessionCaching::Builtin(sessions) => {
                Some(SessionCache::new(sessions.saturating_mul(SESSION)))
            }
            SessionCaching::Shared(name, size) => Some(SessionCache::shared(name, *size)),
        },
        tickets: match commanded.tickets {
            false => None,
            true => Some(tickets(conf, level)?),
        },
        session_timeout: seconds(conf.session_timeout),
        record_size: usize::try_from(conf.buffer_size).unwrap_or(0),
        early_data: if conf.early_data { EARLY_DATA } else { 0 },
        compress_certificates: conf.compress,
        context: context(conf, wanted),
    })
}

/// What tells the sessions of this server from those of others, besides its certificates.
fn context(conf: &TlsConf, wanted: &Wanted) -> Vec<u8> {
    let mut context = wanted.context.as_bytes().to_vec();
    for source in &conf.certificates {
        if let Source::Dynamic(expression, _) = source {
            context.push(0);
            context.extend_from_slice(expression.source());
        }
    }
    context
}

/// What a session takes, roughly, in bytes.
const SESSION: usize = 256;
/// How much early data a client may send, in bytes: as in nginx.
const EARLY_DATA: u32 = 16 * 1024;

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

fn tickets(conf: &TlsConf, level: &mut Level) -> Result<Arc<Tickets>, Diagnostic> {
    if conf.ticket_keys.is_empty() {
        return Ok(Tickets::random(seconds(conf.session_timeout)));
    }
    let mut keys = Vec::new();
    for file in &conf.ticket_keys {
        let content = read(file, level)?;
        let name = file.path.display().to_string();
        keys.push(TicketKey::from_file(&content, &name).map_err(|problem| at(problem, file.span))?);
    }
    Ok(Tickets::fixed(keys))
}

/// Reads whom to believe about clients, if they are asked. What is believed besides, and revocations, have to be good
/// also if nobody is, as in nginx.
fn client_certificates(
    conf: &TlsConf,
    level: &mut Level,
) -> Result<Option<ClientCertificates>, Diagnostic> {
    if conf.asks == Asks::No {
        trust(conf, Trust::nobody(0), level)?;
        return Ok(None);
    }
    let files = (&conf.client_certificate, &conf.trusted_certificate);
    if conf.asks != Asks::OptionalUnsigned && matches!(files, (None, None)) {
        return Err(Diagnostic::error(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
            None,
        ));
    }
    let depth = usize::try_from(conf.depth).unwrap_or(0);
    let (mut believed, mut named) = (Trust::nobody(depth), Trust::nobody(0));
    if let Some(file) = &conf.client_certificate {
        add(&mut believed, file, level)?;
        add(&mut named, file, level)?;
    }
    let all = trust(conf, believed, level)?;
    Ok(Some(ClientCertificates::new(all, &named)))
}

/// With `ssl_trusted_certificate` and `ssl_crl`.
fn trust(conf: &TlsConf, mut trust: Trust, level: &mut Level) -> Result<Trust, Diagnostic> {
    if let Some(file) = &conf.trusted_certificate {
        add(&mut trust, file, level)?;
    }
    if let Some(file) = &conf.crl {
        let text = load_text("CRL", file, level)?;
        let name = file.path.display().to_string();
        trust
            .add_revocations(&text, &name)
            .map_err(|problem| at(problem, file.span))?;
    }
    Ok(trust)
}

fn load_text(what: &str, file: &File, level: &mut Level) -> Result<Vec<u8>, Diagnostic> {
    let mut read = |path: &Path| level.build.files.read(path);
    net::tls::load_file(what, &file.path, &mut read).map_err(|problem| at(problem, file.span))
}

pub(super) fn add(trust: &mut Trust, file: &File, level: &mut Level) -> Result<(), Diagnostic> {
    let text = load_text("certificate", file, level)?;
    let name = file.path.display().to_string();
    trust
        .add_certificates(&text, &name)
        .map_err(|problem| at(problem, file.span))
}
