//! The TLS of cosockets: the `lua_ssl_*` rows, in http and in stream.
//!
//! A TLS client with its certificates is built when the configuration is read, not at the first
//! handshake: an error in a file is an error of the configuration. Locations without settings of
//! their own share one client.

use std::cell::RefCell;

use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{
    Arity, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP_SERVER_LOCATION, RepeatRule, Setter,
};
use net::tls::{ClientOptions, ClientSettings, TlsConfigError, TlsProtocols};
use net::upstream::UpstreamTls;

use crate::rows::ignored_row;

/// The TLS settings of cosockets: those of any client connection (`net`'s), under other names.
#[derive(Clone, Default)]
pub(crate) struct CosocketTls {
    secure: UpstreamTls,
}

static HTTP_ROWS: [Directive<CosocketTls>; 9] = ROWS;
static STREAM_ROWS: [Directive<CosocketTls>; 9] = Directive::in_contexts(ROWS, STREAM_AND_SERVER);

/// The rows in `http` and the blocks within. `finish` runs for each block with such a row, since
/// reading certificates for thousands of locations without one would be a waste.
pub(crate) static HTTP: DirectiveTable<CosocketTls> =
    DirectiveTable::<CosocketTls>::new(&HTTP_ROWS).finish_changed(finish);

/// The same rows in `stream`.
pub(crate) static STREAM: DirectiveTable<CosocketTls> =
    DirectiveTable::<CosocketTls>::new(&STREAM_ROWS).finish_changed(finish);

/// A row that is the same in both subsystems but for its contexts.
const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<CosocketTls>,
) -> Directive<CosocketTls> {
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

/// The rows, as `http` has them.
const ROWS: [Directive<CosocketTls>; 9] = [
    row(
        "lua_ssl_protocols",
        "[TLSv1.2] [TLSv1.3]",
        Some("TLSv1.2 TLSv1.3"),
        "The TLS versions of cosockets. Older ones are not available.",
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.secure.protocols = 0),
            protocols,
        ),
    ),
    row(
        "lua_ssl_ciphers",
        "ciphers",
        Some("DEFAULT"),
        "The TLS 1.2 cipher suites of cosockets, in OpenSSL notation.",
        Setter::Text(|c| &mut c.secure.ciphers),
    ),
    row(
        "lua_ssl_verify_depth",
        "number",
        Some("1"),
        "The maximum number of intermediate certificates between the certificate of a server and a trusted one.",
        Setter::Number(|c| &mut c.secure.verify_depth, 0, i32::MAX as i64),
    ),
    row(
        "lua_ssl_trusted_certificate",
        "file",
        None,
        "The trusted CA certificates (PEM) for cosockets that verify their peer.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.secure.trusted_certificate = line.path(conf::PathUse::Opened, line.arg(0));
            Ok(())
        }),
    ),
    row(
        "lua_ssl_crl",
        "file",
        None,
        "The certificate revocation lists (PEM) for verifying server certificates.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.secure.crl = line.path(conf::PathUse::Opened, line.arg(0));
            Ok(())
        }),
    ),
    row(
        "lua_ssl_certificate",
        "file",
        None,
        "The client certificate (PEM) for servers that request one.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.secure.certificate = Some(Expression::literal(line.text(0)));
            Ok(())
        }),
    ),
    row(
        "lua_ssl_certificate_key",
        "file",
        None,
        "The private key (PEM) of the client certificate.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.secure.certificate_key = Some(Expression::literal(line.text(0)));
            Ok(())
        }),
    ),
    row(
        "lua_ssl_conf_command",
        "name value",
        None,
        "An OpenSSL configuration command, for settings without a directive: the same as for \
             `proxy_ssl_conf_command`.",
        Setter::Custom(
            Arity::exactly(2),
            RepeatRule::Fresh(|c| c.secure.conf_commands.clear()),
            |c, line| {
                let (name, value) = (line.text(0).to_owned(), line.text(1).to_owned());
                c.secure.conf_commands.push((name, value));
                Ok(())
            },
        ),
    ),
    ignored_row(
        "lua_ssl_key_log",
        HTTP_SERVER_LOCATION,
        "Session keys are never written anywhere.",
    ),
];

/// `lua_ssl_protocols`. TLS 1.0 and 1.1 are accepted by the parser and then missing here: nginx
/// configurations name them beside newer ones.
fn protocols(conf: &mut CosocketTls, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.secure.protocols = line.bits(TlsProtocols::WORDS, conf.secure.protocols)?;
    if TlsProtocols::from_bits(conf.secure.protocols).is_none() {
        return Err(line.error(format!("no supported TLS version in \"{}\"", line.name())));
    }
    Ok(())
}

/// What precedes the names of these directives in messages.
const PREFIX: &str = "lua_";

/// Builds the TLS client of a location's cosockets, if it has settings of its own.
fn finish(
    conf: &mut CosocketTls,
    _: Option<&CosocketTls>,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    let changed = HTTP_ROWS
        .iter()
        .any(|row| level.seen_directive(row.name).is_some());
    let secure = &mut conf.secure;
    // Most configurations have none of these directives: their cosockets share one client, see
    // below.
    secure.is_used |= changed;
    // The name that the script passes to `sslhandshake` is always sent.
    secure.server_name = true;
    // Whether a handshake verifies is the script's choice; what it verifies against is decided
    // here.
    secure.verify = !secure.trusted_certificate.as_os_str().is_empty();
    let build = &mut *level.build;
    let conf_prefix = build.in_conf_prefix(conf::PathUse::Opened, "");
    let files = &mut build.files;
    let missing = secure
        .build_client(changed, PREFIX, &conf_prefix, &mut |path| files.read(path))
        .map_err(|problem| without_place(problem.message))?;
    for what in missing {
        let mut note = without_place(format!("\"lua_ssl_ciphers\": {what} is not supported"));
        note.severity = conf::Severity::Warn;
        level.report(note);
    }
    Ok(())
}

/// A message that nginx shows without file and line.
fn without_place(message: String) -> Diagnostic {
    Diagnostic::error(message, base::Span::NONE).place(conf::DiagnosticPlace::Unsaid)
}

rt::local! {
    /// The settings of cosockets for which nothing is configured, built once for each loop.
    static USUAL: RefCell<Option<ClientSettings>> = const { RefCell::new(None) };
}

impl CosocketTls {
    /// The settings for a handshake.
    pub(crate) fn client_settings(&self) -> Result<ClientSettings, TlsConfigError> {
        if let Some(known) = self.secure.client_settings() {
            return Ok(known.clone());
        }
        USUAL.with_borrow_mut(|usual| {
            if let Some(known) = usual {
                return Ok(known.clone());
            }
            let options = ClientOptions {
                server_name: true,
                ..ClientOptions::default()
            };
            Ok(usual.insert(options.build()?).clone())
        })
    }
}
