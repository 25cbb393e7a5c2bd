//! The directives about TLS to upstream servers, written once for http and stream:
//! `proxy_ssl_verify`, `uwsgi_ssl_verify`, … Names are listed without the protocol's prefix.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use conf::directive_contexts::{HTTP_SERVER_LOCATION, STREAM_AND_SERVER};
use conf::{
    Arity, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveRows, DirectiveTable,
    RepeatRule, RowInfo, Setter, parse,
};
use net::tls::{IdentityCache, TlsProtocols, read_passwords};
use net::upstream::UpstreamTls;

use crate::shared::tls::build;

/// A row of this table. Stream's contexts are added by [`in_stream`].
const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<UpstreamTls>,
) -> Directive<UpstreamTls> {
    Directive {
        name,
        syntax,
        default,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc,
        set,
    }
}

pub(crate) static ROWS: DirectiveTable<UpstreamTls> = DirectiveTable::new(&[
    row(
        // On: a full handshake costs the server a signature.
        "ssl_session_reuse",
        "on | off",
        Some("on"),
        "Whether to resume TLS sessions with upstream servers, which makes handshakes much cheaper.",
        Setter::Flag(|c| &mut c.session_reuse),
    ),
    row(
        "ssl_protocols",
        "[TLSv1.2] [TLSv1.3]",
        Some("TLSv1.2 TLSv1.3"),
        "The TLS versions for upstream connections. Older ones are not available.",
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.protocols = 0),
            protocols,
        ),
    ),
    row(
        "ssl_ciphers",
        "ciphers",
        Some("DEFAULT"),
        "The TLS 1.2 cipher suites for upstream connections, in OpenSSL notation.",
        Setter::Text(|c| &mut c.ciphers),
    ),
    row(
        // For servers that are addressed by an address or by an internal name.
        "ssl_name",
        "name",
        None,
        "The name to verify in the certificate of the upstream server, and to send with `PREFIX_ssl_server_name`; by \
         default the host of `PREFIX_pass`. A port in it is ignored.",
        Setter::OptionalValue(|c| &mut c.name),
    ),
    row(
        // Off as in nginx.
        "ssl_server_name",
        "on | off",
        Some("off"),
        "Whether to send the server name by SNI.",
        Setter::Flag(|c| &mut c.server_name),
    ),
    row(
        // Off as in nginx.
        "ssl_verify",
        "on | off",
        Some("off"),
        "Whether to verify upstream certificates: against `PREFIX_ssl_trusted_certificate` and `PREFIX_ssl_crl`, and \
         for the name. Without verification, anyone on the way can impersonate the server.",
        Setter::Flag(|c| &mut c.verify),
    ),
    row(
        // nginx's default: one intermediate certificate, the usual chain.
        "ssl_verify_depth",
        "number",
        Some("1"),
        "The maximum number of intermediate certificates between the certificate of a server and a trusted one.",
        Setter::Number(|c| &mut c.verify_depth, 0, i32::MAX as i64),
    ),
    row(
        "ssl_trusted_certificate",
        "file",
        None,
        "The trusted CA certificates (PEM) for verifying upstream servers.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.trusted_certificate = line.path(conf::PathUse::Opened, line.arg(0));
            Ok(())
        }),
    ),
    row(
        // With a list, every certificate of the chain is looked up, so each issuer needs one.
        "ssl_crl",
        "file",
        None,
        "The certificate revocation lists (PEM) for verifying server certificates.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.crl = line.path(conf::PathUse::Opened, line.arg(0));
            Ok(())
        }),
    ),
    row(
        "ssl_certificate",
        "file",
        None,
        "The client certificate (PEM) for upstream servers that request one: a file, or `data:` and the certificate \
         itself. With variables, it is loaded on demand, with the rights of the worker; an empty value means none.",
        Setter::OptionalValue(|c| &mut c.certificate),
    ),
    row(
        "ssl_certificate_key",
        "file",
        None,
        "The private key (PEM) of the client certificate: a file, or `data:` and the key itself.",
        Setter::OptionalValue(|c| &mut c.certificate_key),
    ),
    row(
        // Only certificates with variables need it; others are loaded with the configuration.
        "ssl_certificate_cache",
        "off | max=N [inactive=time] [valid=time]",
        None,
        "Caches certificates whose paths contain variables: how many, for how long unused (10 seconds), and how long \
         before their files are checked again (60 seconds).",
        Setter::Custom(Arity::between(1, 3), RepeatRule::Once, certificate_cache),
    ),
    row(
        "ssl_password_file",
        "file",
        None,
        "A file of passphrases for encrypted keys, one per line; they are tried in order.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, password_file),
    ),
    row(
        "ssl_conf_command",
        "name value",
        None,
        "An OpenSSL configuration command, for settings without a directive: `Ciphersuites`, `Groups`, `MinProtocol`, \
         `MaxProtocol`, `CipherString`, `Certificate` and `PrivateKey` are supported.",
        Setter::Custom(
            Arity::exactly(2),
            RepeatRule::Fresh(|c| c.conf_commands.clear()),
            |c, line| {
                let (name, value) = (line.text(0).to_owned(), line.text(1).to_owned());
                c.conf_commands.push((name, value));
                Ok(())
            },
        ),
    ),
]);

/// Row `row` for stream, whose only protocol is `proxy`.
pub(crate) fn in_stream(row: usize) -> RowInfo {
    static INFOS: OnceLock<Vec<RowInfo>> = OnceLock::new();
    let infos = INFOS.get_or_init(|| {
        // Created once and never freed, like all other rows, which are constants.
        let info = |row| {
            let info = ROWS.info(row);
            RowInfo {
                name: format!("proxy_{}", info.name).leak(),
                doc: info.doc.replace("PREFIX_", "proxy_").leak(),
                contexts: STREAM_AND_SERVER,
                ..info
            }
        };
        (0..ROWS.len()).map(info).collect()
    });
    infos[row]
}

/// The prefixes of the protocols that a block uses TLS with. The `…_pass` line and these rows are
/// in different tables, so the one leaves a note for the other.
#[derive(Default)]
struct TlsPrefixes(BTreeSet<&'static str>);

/// Notes that the block passes requests on over TLS, so that its settings are needed. `prefix` is
/// `proxy_`, for example.
pub(crate) fn require_tls(line: &mut DirectiveLine, prefix: &'static str) {
    line.lasting::<TlsPrefixes>().0.insert(prefix);
}

/// Whether [`require_tls`] has been called in this block.
pub(crate) fn is_tls_required(prefix: &str, level: &mut BlockContext) -> bool {
    level.lasting::<TlsPrefixes>().0.contains(prefix)
}

/// Builds the TLS settings of a block, if they are used. Called when its rows have been applied.
/// `prefix` is `proxy_`, for example.
pub(crate) fn finish(
    tls: &mut UpstreamTls,
    prefix: &str,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    tls.is_used |= level.lasting::<TlsPrefixes>().0.remove(prefix);
    // A block without lines of its own shares what the outer block built.
    let seen = |row| {
        level
            .seen_directive(&format!("{prefix}{}", ROWS.info(row).name))
            .is_some()
    };
    let changed = (0..ROWS.len()).any(seen);
    let build = &mut *level.build;
    let named = tls.files_named_while_serving();
    // Files named by variables are opened by the worker, in a sandbox that has to know where.
    for text in named {
        build.conf_prefix_for(conf::PathUse::Read, &text);
    }
    let conf_prefix = build.in_conf_prefix(conf::PathUse::Opened, "");
    let files = &mut build.files;
    let missing = tls
        .build_client(changed, prefix, &conf_prefix, &mut |path| files.read(path))
        .map_err(|problem| unplaced_error(problem.message))?;
    if !missing.is_empty() {
        let directive = format!("{prefix}ssl_ciphers");
        let text = build::not_available(&directive, &missing);
        build::warn_see_help(&text, None, level);
    }
    Ok(())
}

/// An error that nginx reports without a place in the file.
fn unplaced_error(message: String) -> Diagnostic {
    Diagnostic::error(message, base::Span::NONE).place(conf::DiagnosticPlace::Unsaid)
}

/// Reads `…_ssl_protocols`. Old versions are a warning, unless nothing else is left.
fn protocols(conf: &mut UpstreamTls, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.protocols = line.bits(TlsProtocols::WORDS, conf.protocols)?;
    let old = TlsProtocols::unsupported_versions(conf.protocols);
    if !old.is_empty() {
        line.warn(format!(
            "{} in \"{}\" is not supported: Weir requires TLS 1.2 or later",
            old.join(", "),
            line.name()
        ));
    }
    if TlsProtocols::from_bits(conf.protocols).is_none() {
        return Err(line.error(format!("no supported TLS version in \"{}\"", line.name())));
    }
    Ok(())
}

/// The defaults: how long a certificate stays cached without use, and how long until its files are
/// checked again.
const DEFAULT_CACHE_TIMES: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(60));

/// Reads `…_ssl_certificate_cache`.
fn certificate_cache(conf: &mut UpstreamTls, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.certificate_cache = certificate_cache_of(line)?;
    Ok(())
}

/// Reads `…_ssl_certificate_cache`; `None`: off.
pub(crate) fn certificate_cache_of(
    line: &DirectiveLine,
) -> Result<Option<Arc<IdentityCache>>, Diagnostic> {
    let (mut inactive, mut valid) = DEFAULT_CACHE_TIMES;
    let mut max = None;
    for index in 0..line.args().len() {
        let text = line.text(index);
        let value = |name| parse::parameter(text, name);
        let invalid = || line.invalid_parameter(index);
        if text == "off" {
            return Ok(None);
        } else if let Some(number) = value("max") {
            let number = parse::number(number).and_then(|number| usize::try_from(number).ok());
            max = Some(number.filter(|max| *max > 0).ok_or_else(invalid)?);
        } else if let Some(time) = value("inactive") {
            inactive = parse::seconds(time).ok_or_else(invalid)?;
        } else if let Some(time) = value("valid") {
            valid = parse::seconds(time).ok_or_else(invalid)?;
        } else {
            return Err(invalid());
        }
    }
    match max {
        Some(max) => Ok(Some(Arc::new(IdentityCache::new(max, inactive, valid)))),
        None => Err(line.error(format!(
            "\"{}\" must have the \"max\" parameter",
            line.name()
        ))),
    }
}

/// Reads `…_ssl_password_file`.
fn password_file(conf: &mut UpstreamTls, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.passwords = Arc::new(passwords(line)?);
    Ok(())
}

/// Reads the passphrases in the file of a `…ssl_password_file` line.
pub(crate) fn passwords(line: &mut DirectiveLine) -> Result<Vec<Vec<u8>>, Diagnostic> {
    let path = line.path(conf::PathUse::Opened, line.arg(0));
    let name = path.to_string_lossy().into_owned();
    let text = line.files().read(&path).map_err(|error| {
        let call = match error.kind() {
            // A directory can be opened; it is reading it that fails.
            ErrorKind::IsADirectory => "read",
            _ => "open",
        };
        line.error(format!(
            "{call}() \"{name}\" failed{}",
            base::ErrnoText(&error)
        ))
    })?;
    read_passwords(&text, &name).map_err(|problem| line.error(problem.message))
}
