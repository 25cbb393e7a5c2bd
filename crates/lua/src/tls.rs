//! The TLS of scripts' sockets: the rows `lua_ssl_…`, in http and in stream.

use std::cell::RefCell;

use conf::contexts::STREAM_AND_SERVER;
use conf::{
    Arity, Contexts, Diagnostic, Directive, Expression, HTTP_SERVER_LOCATION, Level, Line, Repeat,
    Setter, Table,
};
use net::tls::{ClientOptions, ClientSettings, Problem, Protocols};
use net::upstream::Secure;

use crate::directives::ignored;

/// What sockets of scripts speak TLS with.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    secure: Secure,
}

const ROWS: usize = 9;

static HTTP_ROWS: [Directive<Tls>; ROWS] = rows(HTTP_SERVER_LOCATION);
static STREAM_ROWS: [Directive<Tls>; ROWS] = rows(STREAM_AND_SERVER);

/// The rows in `http` and what it holds.
pub(crate) static HTTP: Table<Tls> = Table::<Tls>::new(&HTTP_ROWS).finish_changed(finish);

/// The same rows in `stream`.
pub(crate) static STREAM: Table<Tls> = Table::<Tls>::new(&STREAM_ROWS).finish_changed(finish);

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    contexts: Contexts,
    doc: &'static str,
    set: Setter<Tls>,
) -> Directive<Tls> {
    Directive {
        name,
        syntax,
        default,
        contexts,
        since: "0.1",
        doc,
        set,
    }
}

const fn rows(places: Contexts) -> [Directive<Tls>; ROWS] {
    [
        row(
            "lua_ssl_protocols",
            "[TLSv1.2] [TLSv1.3]",
            Some("TLSv1.2 TLSv1.3"),
            places,
            "The TLS versions of cosockets. Older ones are not available.",
            Setter::Custom(
                Arity::at_least(1),
                Repeat::Fresh(|c| c.secure.protocols = 0),
                protocols,
            ),
        ),
        row(
            "lua_ssl_ciphers",
            "ciphers",
            Some("DEFAULT"),
            places,
            "The TLS 1.2 cipher suites of cosockets, in OpenSSL notation.",
            Setter::Text(|c| &mut c.secure.ciphers),
        ),
        row(
            "lua_ssl_verify_depth",
            "number",
            Some("1"),
            places,
            "The maximum number of intermediate certificates between the certificate of a server and a trusted one.",
            Setter::Number(|c| &mut c.secure.verify_depth, 0, i32::MAX as i64),
        ),
        row(
            "lua_ssl_trusted_certificate",
            "file",
            None,
            places,
            "The trusted CA certificates (PEM) for cosockets that verify their peer.",
            Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.secure.trusted_certificate = line.path(conf::Access::Opened, line.arg(0));
                Ok(())
            }),
        ),
        row(
            "lua_ssl_crl",
            "file",
            None,
            places,
            "The certificate revocation lists (PEM) for verifying server certificates.",
            Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.secure.crl = line.path(conf::Access::Opened, line.arg(0));
                Ok(())
            }),
        ),
        row(
            "lua_ssl_certificate",
            "file",
            None,
            places,
            "The client certificate (PEM) for servers that request one.",
            Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.secure.certificate = Some(Expression::literal(line.text(0)));
                Ok(())
            }),
        ),
        row(
            "lua_ssl_certificate_key",
            "file",
            None,
            places,
            "The private key (PEM) of the client certificate.",
            Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.secure.certificate_key = Some(Expression::literal(line.text(0)));
                Ok(())
            }),
        ),
        row(
            "lua_ssl_conf_command",
            "name value",
            None,
            places,
            "An OpenSSL configuration command, for settings without a directive: the same as for \
             `proxy_ssl_conf_command`.",
            Setter::Custom(
                Arity::exactly(2),
                Repeat::Fresh(|c| c.secure.conf_commands.clear()),
                |c, line| {
                    let (name, value) = (line.text(0).to_owned(), line.text(1).to_owned());
                    c.secure.conf_commands.push((name, value));
                    Ok(())
                },
            ),
        ),
        ignored(
            "lua_ssl_key_log",
            places,
            "Session keys are never written anywhere.",
        ),
    ]
}

fn protocols(conf: &mut Tls, line: &mut Line) -> Result<(), Diagnostic> {
    conf.secure.protocols = line.bits(Protocols::WORDS, conf.secure.protocols)?;
    if Protocols::from_bits(conf.secure.protocols).is_none() {
        return Err(line.error(format!("no supported TLS version in \"{}\"", line.name())));
    }
    Ok(())
}

const PREFIX: &str = "lua_";

fn finish(conf: &mut Tls, _: Option<&Tls>, level: &mut Level) -> Result<(), Diagnostic> {
    let changed = HTTP_ROWS.iter().any(|row| level.seen(row.name).is_some());
    let secure = &mut conf.secure;
    // Most configurations say nothing of it: their sockets share what is made for all.
    secure.is_used |= changed;
    secure.server_name = true;
    secure.verify = !secure.trusted_certificate.as_os_str().is_empty();
    let build = &mut *level.build;
    let conf_prefix = build.in_conf_prefix(conf::Access::Opened, "");
    let files = &mut build.files;
    let missing = secure
        .settle(changed, PREFIX, &conf_prefix, &mut |path| files.read(path))
        .map_err(|problem| plain(problem.message))?;
    for what in missing {
        let mut note = plain(format!("\"lua_ssl_ciphers\": {what} is not supported"));
        note.severity = conf::Severity::Warn;
        level.report(note);
    }
    Ok(())
}

/// A message that nginx has without a place.
fn plain(message: String) -> Diagnostic {
    Diagnostic::error(message, base::Span::NONE).place(conf::Place::Unsaid)
}

thread_local! {
    /// What sockets use for which nothing is configured.
    static USUAL: RefCell<Option<ClientSettings>> = const { RefCell::new(None) };
}

impl Tls {
    /// The settings of a handshake.
    pub(crate) fn client(&self) -> Result<ClientSettings, Problem> {
        if let Some(known) = self.secure.client() {
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
