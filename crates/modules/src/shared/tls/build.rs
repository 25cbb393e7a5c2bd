//! From the `ssl_*` lines of a server to what the engines use.
//!
//! Everything that can be wrong with certificates and keys shows here, while the configuration is
//! read: a reload with a broken certificate is refused and the old configuration keeps running.
//! Only files whose names have variables are left for the handshake.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::Span;
use bstr::{BStr, BString, ByteSlice};
use conf::{BlockContext, Diagnostic, Expression};
use net::tls::{
    CipherChoice, ClientCertificates, IdentityCache, ServerOptions, ServerTls, SessionCache,
    TicketKey, TicketKeys, TlsConfigError, TlsIdentity, TlsProtocols, TrustStore, VerifyClient,
};

use super::commands::CommandSettings;
use super::{CertificateSource, SessionCaching, SpannedFile, SpannedWord, TlsConf};

/// What the engine, http or stream, contributes.
pub(crate) struct TlsEngineOptions {
    /// Separates its sessions from those of the other engine: a session must not be resumed for a
    /// server with other rules.
    pub(crate) context: &'static str,
    /// The protocols offered by ALPN.
    pub(crate) alpn: Vec<Vec<u8>>,
    /// Those offered on addresses with HTTP/2; empty: never.
    pub(crate) alpn_http2: Vec<Vec<u8>>,
}

/// The certificates loaded for this configuration, by certificate and key: servers often share
/// theirs, which are then read and kept once.
#[derive(Default)]
struct LoadedIdentities(HashMap<(BString, BString), LoadedIdentity>);

/// A certificate with the files that it was loaded from.
type LoadedIdentity = (Arc<TlsIdentity>, Vec<PathBuf>);

/// Warnings already given. Hundreds of servers can have the same line through an include.
#[derive(Default)]
struct WarningsGiven(Vec<String>);

/// Builds the TLS service of a server; `None` if it has no certificate and does not reject
/// handshakes.
pub(crate) fn service(
    conf: &TlsConf,
    wanted: TlsEngineOptions,
    level: &mut BlockContext,
) -> Result<Option<Arc<ServerTls>>, Diagnostic> {
    // First, so that a forgotten key is reported as such and not as a failure to load.
    check_pairs(conf)?;
    if conf.certificates.is_empty() && !conf.reject_handshake {
        // Without certificates it takes no part in handshakes. But a client can reach it through
        // the certificate of the default server, and then its rules for client certificates apply.
        if conf.verify_client == VerifyClient::No {
            return Ok(None);
        }
        return Ok(Some(Arc::new(without_certificates(conf)?)));
    }
    let passwords = Arc::clone(&conf.passwords);
    // A warning and not an error: the server works, without hiding the name.
    if conf.has_ech_file {
        let message = "\"ssl_ech_file\" is not supported on this platform, ignored";
        warn_once(message.to_owned(), None, level);
    }
    let commanded = apply_commands(conf, level)?;
    let (identities, dynamic) = identities(conf, &commanded, &passwords, level)?;
    let has_certificates = !identities.is_empty() || !dynamic.is_empty();
    // `ssl_reject_handshake` alone needs no TLS settings: nothing is ever negotiated.
    let settings = match has_certificates {
        false => None,
        true => Some(options(conf, commanded, identities, &wanted, level)?),
    };
    let settings = settings
        .map(ServerOptions::build)
        .transpose()
        .map_err(|problem| problem_at(problem, conf.ciphers.span))?;
    // Only for names with variables; the others are loaded with the configuration.
    let cache = conf.certificate_cache;
    Ok(Some(Arc::new(ServerTls {
        // ALPN is all that differs, and only some addresses of a server may have HTTP/2.
        http2: match (&settings, wanted.alpn_http2.is_empty()) {
            (Some(settings), false) => Some(settings.with_alpn(wanted.alpn_http2)),
            _ => None,
        },
        settings,
        quic: OnceLock::new(),
        rejects: conf.reject_handshake,
        verify_client: conf.verify_client,
        status: super::ocsp::status_check(conf)?,
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

/// A service that only holds the rules for client certificates.
fn without_certificates(conf: &TlsConf) -> Result<ServerTls, Diagnostic> {
    Ok(ServerTls {
        settings: None,
        http2: None,
        quic: OnceLock::new(),
        rejects: false,
        verify_client: conf.verify_client,
        status: super::ocsp::status_check(conf)?,
        dynamic: Vec::new(),
        cache: IdentityCache::new(0, Duration::ZERO, Duration::ZERO),
        passwords: Arc::default(),
        handshake_timeout: conf.handshake_timeout,
    })
}

/// A TLS problem as an error at a place in the configuration.
fn problem_at(error: TlsConfigError, span: impl Into<Option<Span>>) -> Diagnostic {
    Diagnostic::error(error.message, span)
}

/// A file's content; a failure is an error at its word.
pub(super) fn read(file: &SpannedFile, level: &mut BlockContext) -> Result<Vec<u8>, Diagnostic> {
    level.build.files.read(&file.path).map_err(|error| {
        let path = file.path.display();
        Diagnostic::error(
            format!("open() \"{path}\" failed{}", base::ErrnoText(&error)),
            file.span,
        )
    })
}

/// Certificates and keys are matched by position, so each certificate needs a key. Spare keys are
/// tolerated, as in nginx.
fn check_pairs(conf: &TlsConf) -> Result<(), Diagnostic> {
    if conf.keys.len() >= conf.certificates.len() {
        return Ok(());
    }
    match conf.certificates.last() {
        Some(
            source @ (CertificateSource::Fixed(_, span) | CertificateSource::Dynamic(_, span)),
        ) => Err(Diagnostic::error(
            format!(
                "no \"ssl_certificate_key\" is defined for certificate \"{}\"",
                source.name()
            ),
            *span,
        )),
        None => Ok(()),
    }
}

/// The cipher settings of the directives, then changed by the `ssl_conf_command` lines, which come
/// last in OpenSSL too.
fn apply_commands(conf: &TlsConf, level: &mut BlockContext) -> Result<CommandSettings, Diagnostic> {
    let mut commanded = CommandSettings {
        protocols: conf.protocols,
        choice: CipherChoice::default(),
        certificate: None,
        key: None,
        prefer_server_ciphers: conf.prefer_server_ciphers,
        tickets: conf.tickets,
        ignored: Vec::new(),
    };
    let text = |word: &SpannedWord| word.text.to_str_lossy().into_owned();
    let choice = &mut commanded.choice;
    choice
        .set_ciphers(&text(&conf.ciphers))
        .map_err(|problem| problem_at(problem, conf.ciphers.span))?;
    // Finite-field Diffie-Hellman suites next to ECDHE ones are not worth a warning.
    choice.forget_needless();
    if !choice.has_tls12() {
        // That TLS 1.2 has no cipher left is reported once, below, instead of suite by suite.
        choice.missing.clear();
    }
    warn_missing("ssl_ciphers", &mut choice.missing, conf.ciphers.span, level);
    choice
        .set_curves(&text(&conf.curves))
        .map_err(|problem| problem_at(problem, conf.curves.span))?;
    warn_missing(
        "ssl_ecdh_curve",
        &mut choice.missing,
        conf.curves.span,
        level,
    );
    for (name, value, span) in &conf.commands {
        commanded
            .apply(name.as_ref(), value.as_ref())
            .map_err(|problem| problem_at(problem, *span))?;
        warn_missing(
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
    // Last, since `ssl_conf_command` can change the versions too.
    let old = TlsProtocols::unsupported_versions(commanded.protocols);
    if !old.is_empty() {
        let old = old.join(", ");
        let text = format!("{old}: not supported, Weir requires TLS 1.2 or later");
        warn_see_help(&text, None, level);
    }
    Ok(commanded)
}

/// How many names of a list a warning shows.
const MAX_NAMES_SHOWN: usize = 3;

/// Warns about what is not available, once per list.
fn warn_missing(
    directive: &str,
    missing: &mut Vec<String>,
    span: impl Into<Option<Span>>,
    level: &mut BlockContext,
) {
    let missing = std::mem::take(missing);
    if !missing.is_empty() {
        warn_see_help(&not_available(directive, &missing), span, level);
    }
}

/// The warning about a list, of bounded length: configurations name dozens of suites.
pub(crate) fn not_available(directive: &str, missing: &[String]) -> String {
    let mut names = missing[..missing.len().min(MAX_NAMES_SHOWN)].join(", ");
    if missing.len() > MAX_NAMES_SHOWN {
        names.push_str(&format!(" and {} more", missing.len() - MAX_NAMES_SHOWN));
    }
    format!("\"{directive}\": {names} not available, the others are used")
}

/// A one-line warning, given once, that refers to the help page for the rest.
pub(crate) fn warn_see_help(
    message: &str,
    span: impl Into<Option<Span>>,
    level: &mut BlockContext,
) {
    let message = format!("{message}; see \"weir help tls\"");
    let said = &mut level.momentary::<WarningsGiven>().0;
    if said.contains(&message) {
        return;
    }
    said.push(message.clone());
    let warning = Diagnostic::warning(message, None);
    level.report(match span.into() {
        Some(span) => warning.place(conf::DiagnosticPlace::At(span)),
        None => warning,
    });
}

/// A warning, given once.
pub(super) fn warn_once(message: String, span: impl Into<Option<Span>>, level: &mut BlockContext) {
    let said = &mut level.momentary::<WarningsGiven>().0;
    if !said.contains(&message) {
        said.push(message.clone());
        level.report(Diagnostic::warning(message, span));
    }
}

/// The loaded certificates, and the pairs of names to load during handshakes.
type ServerIdentities = (Vec<Arc<TlsIdentity>>, Vec<(Expression, Expression)>);

/// The certificates of a server. If one name has variables, all are loaded during the handshake:
/// which ones a client is offered depends on all of them together.
fn identities(
    conf: &TlsConf,
    commanded: &CommandSettings,
    passwords: &[Vec<u8>],
    level: &mut BlockContext,
) -> Result<ServerIdentities, Diagnostic> {
    let mut identities = Vec::new();
    let mut dynamic = Vec::new();
    // `ssl_conf_command Certificate` replaces the directives.
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
    // By position; `check_pairs` has ensured that there are enough keys.
    let pairs = || conf.certificates.iter().zip(&conf.keys);
    let depends = pairs().any(|pair| {
        !matches!(
            pair,
            (CertificateSource::Fixed(..), CertificateSource::Fixed(..))
        )
    });
    for (certificate, key) in pairs() {
        match (certificate, key) {
            (CertificateSource::Fixed(certificate, span), CertificateSource::Fixed(key, _))
                if !depends =>
            {
                identities.push(load(
                    certificate.as_ref(),
                    key.as_ref(),
                    passwords,
                    Some(*span),
                    level,
                )?);
            }
            (certificate, key) => {
                let expression = |source: &CertificateSource| match source {
                    CertificateSource::Fixed(name, _) => Expression::literal(name),
                    CertificateSource::Dynamic(expression, _) => expression.clone(),
                };
                let pair = (expression(certificate), expression(key));
                for name in [&pair.0, &pair.1] {
                    let source = name.source();
                    // `data:` is the text itself, and `$acme_certificate` yields `data:`. Neither
                    // needs access to a file; anything else the worker has to read, which the
                    // sandbox must know.
                    if !source.starts_with(b"data:") && !source.starts_with(b"$acme_certificate") {
                        level.build.conf_prefix_for(conf::PathUse::Read, source);
                    }
                }
                dynamic.push(pair);
            }
        }
    }
    // Only certificates known now can be stapled.
    super::ocsp::staple(conf, &mut identities, level)?;
    Ok((TlsIdentity::last_of_each_kind(identities), dynamic))
}

/// Loads a certificate with its key, or returns the copy loaded before.
fn load(
    certificate: &BStr,
    key: &BStr,
    passwords: &[Vec<u8>],
    span: Option<Span>,
    level: &mut BlockContext,
) -> Result<Arc<TlsIdentity>, Diagnostic> {
    let prefix = level.build.in_conf_prefix(conf::PathUse::Opened, "");
    // Full paths, so that two spellings of a file share one copy.
    let full = |word| net::tls::full_path(&prefix, word);
    let names = (full(certificate), full(key));
    if let Some((known, paths)) = level.momentary::<LoadedIdentities>().0.get(&names) {
        let (known, paths) = (Arc::clone(known), paths.clone());
        for path in paths {
            // Noted as a file of this server, too. It was read before, so it can be read again.
            let _ = level.build.files.read_shared(&path);
        }
        return Ok(known);
    }
    let mut paths = Vec::new();
    let mut read = |path: &Path| {
        paths.push(path.to_owned());
        level.build.files.read(path)
    };
    let (certificate, key) = &names;
    let identity =
        TlsIdentity::load_shared(certificate.as_ref(), key.as_ref(), passwords, &mut read)
            .map_err(|problem| problem_at(problem, span))?;
    let loaded = &mut level.momentary::<LoadedIdentities>().0;
    loaded.insert(names, (Arc::clone(&identity), paths));
    Ok(identity)
}

/// The settings of the TLS library.
fn options(
    conf: &TlsConf,
    commanded: CommandSettings,
    identities: Vec<Arc<TlsIdentity>>,
    wanted: &TlsEngineOptions,
    level: &mut BlockContext,
) -> Result<ServerOptions, Diagnostic> {
    let protocols = TlsProtocols::from_bits(commanded.protocols);
    if protocols.tls12 && !commanded.choice.has_tls12() {
        let text =
            "\"ssl_ciphers\" names no supported cipher suite of TLS 1.2: TLS 1.2 is disabled";
        warn_see_help(text, conf.ciphers.span, level);
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
                // `builtin` has no name: a cache of this configuration only, as OpenSSL's own cache is.
                Some(SessionCache::new(sessions.saturating_mul(SESSION_SIZE)))
            }
            SessionCaching::Shared(name, size) => Some(SessionCache::shared(name, *size)),
        },
        tickets: match commanded.tickets {
            false => None,
            true => Some(tickets(conf, level)?),
        },
        session_timeout: seconds(conf.session_timeout),
        record_size: usize::try_from(conf.buffer_size).unwrap_or(0),
        early_data: if conf.early_data { MAX_EARLY_DATA } else { 0 },
        compress_certificates: conf.compress,
        context: context(conf, wanted),
    })
}

/// What separates the sessions of this server from those of others, besides its certificates, which
/// the library takes into account. Names with variables stand in for certificates that are not
/// loaded yet.
fn context(conf: &TlsConf, wanted: &TlsEngineOptions) -> Vec<u8> {
    let mut context = wanted.context.as_bytes().to_vec();
    for source in &conf.certificates {
        if let CertificateSource::Dynamic(expression, _) = source {
            context.push(0);
            context.extend_from_slice(expression.source());
        }
    }
    context
}

/// The approximate size of a session, in bytes, to turn `builtin`'s number of sessions into a size.
const SESSION_SIZE: usize = 256;
/// The maximum amount of early data, in bytes; nginx's.
const MAX_EARLY_DATA: u32 = 16 * 1024;

/// Whole seconds, as the library wants them.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// The ticket keys: those of the files, or a random one that is replaced regularly.
fn tickets(conf: &TlsConf, level: &mut BlockContext) -> Result<Arc<TicketKeys>, Diagnostic> {
    if conf.ticket_keys.is_empty() {
        // By timeout, not by server: servers with the same timeout share the keys, and so do the configurations
        // before and after a reload.
        return Ok(TicketKeys::random(seconds(conf.session_timeout)));
    }
    let files = conf.ticket_keys.iter();
    let contents: Result<Vec<_>, _> = files.map(|file| read(file, level)).collect();
    let contents = contents?;
    if let Some(keys) = level.momentary::<SharedTicketKeys>().0.get(&contents) {
        return Ok(Arc::clone(keys));
    }
    let mut keys = Vec::new();
    for (file, content) in conf.ticket_keys.iter().zip(&contents) {
        let name = file.path.display().to_string();
        keys.push(
            TicketKey::from_file(content, &name)
                .map_err(|problem| problem_at(problem, file.span))?,
        );
    }
    let keys = TicketKeys::fixed(keys);
    let shared = level.momentary::<SharedTicketKeys>();
    shared.0.insert(contents, Arc::clone(&keys));
    Ok(keys)
}

/// The keys of files by their contents: thousands of servers may name the same ones.
#[derive(Default)]
struct SharedTicketKeys(HashMap<Vec<Vec<u8>>, Arc<TicketKeys>>);

/// Reads the CAs for client certificates, if these are requested. `ssl_trusted_certificate` and
/// `ssl_crl` must be valid in any case, as in nginx.
fn client_certificates(
    conf: &TlsConf,
    level: &mut BlockContext,
) -> Result<Option<ClientCertificates>, Diagnostic> {
    if conf.verify_client == VerifyClient::No {
        // Only to find mistakes; no client is asked for a certificate.
        trust(conf, TrustStore::without_anchors(0), level)?;
        return Ok(None);
    }
    let files = (&conf.client_certificate, &conf.trusted_certificate);
    // Without a CA no client could ever be accepted, so this is a mistake. `optional_no_ca` leaves the judgement to
    // the application.
    if conf.verify_client != VerifyClient::OptionalUnsigned && matches!(files, (None, None)) {
        return Err(Diagnostic::error(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
            None,
        ));
    }
    let depth = usize::try_from(conf.depth).unwrap_or(0);
    let (mut believed, mut named) = (
        TrustStore::without_anchors(depth),
        TrustStore::without_anchors(0),
    );
    if let Some(file) = &conf.client_certificate {
        add_certificates(&mut believed, file, level)?;
        // Only the CAs of `ssl_client_certificate` are named to clients.
        add_certificates(&mut named, file, level)?;
    }
    // The other CAs are trusted too, but not named.
    let all = trust(conf, believed, level)?;
    Ok(Some(ClientCertificates::new(all, &named)))
}

/// Adds `ssl_trusted_certificate` and `ssl_crl`.
fn trust(
    conf: &TlsConf,
    mut trust: TrustStore,
    level: &mut BlockContext,
) -> Result<TrustStore, Diagnostic> {
    if let Some(file) = &conf.trusted_certificate {
        add_certificates(&mut trust, file, level)?;
    }
    if let Some(file) = &conf.crl {
        let text = load_text("CRL", file, level)?;
        let name = file.path.display().to_string();
        trust
            .add_revocations(&text, &name)
            .map_err(|problem| problem_at(problem, file.span))?;
    }
    Ok(trust)
}

/// A PEM file's content; `what` names it in the error.
fn load_text(
    what: &str,
    file: &SpannedFile,
    level: &mut BlockContext,
) -> Result<Vec<u8>, Diagnostic> {
    let mut read = |path: &Path| level.build.files.read(path);
    net::tls::load_file(what, &file.path, &mut read)
        .map_err(|problem| problem_at(problem, file.span))
}

/// Adds the CAs in a file.
pub(super) fn add_certificates(
    trust: &mut TrustStore,
    file: &SpannedFile,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    let text = load_text("certificate", file, level)?;
    let name = file.path.display().to_string();
    trust
        .add_certificates(&text, &name)
        .map_err(|problem| problem_at(problem, file.span))
}
