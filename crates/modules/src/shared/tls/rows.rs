//! The rows, for http and for stream.

use std::sync::Arc;
use std::time::Duration;

use bstr::ByteSlice;
use conf::{Arity, Contexts, Diagnostic, Directive, Expression, Line, Repeat, Setter};
use net::tls::ocsp::Checks;
use net::tls::{Asks, Protocols};

use super::{CertificateCache, File, SessionCaching, Source, TlsConf, Word};
use crate::shared::tls_rows;
use crate::shared::zones::{self, NameAndSize};

/// Whose rows they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Http,
    Stream,
}

/// How many rows there are.
pub(crate) const COUNT: usize = 31;

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<TlsConf>,
) -> Directive<TlsConf> {
    Directive {
        name,
        syntax,
        default,
        contexts: Contexts::NONE,
        since: "0.1",
        doc,
        set,
    }
}

/// All rows, for blocks of these kinds.
pub(crate) const fn all(engine: Engine, contexts: Contexts) -> [Directive<TlsConf>; COUNT] {
    let own = match engine {
        Engine::Http => [BUFFER_SIZE, EARLY_DATA],
        Engine::Stream => [ALPN, HANDSHAKE_TIMEOUT],
    };
    let [first, second] = own;
    let mut rows = [
        CERTIFICATE,
        CERTIFICATE_KEY,
        CERTIFICATE_CACHE,
        CERTIFICATE_COMPRESSION,
        CIPHERS,
        CLIENT_CERTIFICATE,
        CONF_COMMAND,
        CRL,
        DHPARAM,
        ECDH_CURVE,
        ECH_FILE,
        OCSP,
        OCSP_CACHE,
        OCSP_RESPONDER,
        PASSWORD_FILE,
        PREFER_SERVER_CIPHERS,
        PROTOCOLS,
        REJECT_HANDSHAKE,
        SESSION_CACHE,
        SESSION_TICKET_KEY,
        SESSION_TICKETS,
        SESSION_TIMEOUT,
        STAPLING,
        STAPLING_FILE,
        STAPLING_RESPONDER,
        STAPLING_VERIFY,
        TRUSTED_CERTIFICATE,
        VERIFY_CLIENT,
        VERIFY_DEPTH,
        first,
        second,
    ];
    let mut at = 0;
    while at < rows.len() {
        rows[at].contexts = contexts;
        at += 1;
    }
    rows
}

const CERTIFICATE: Directive<TlsConf> = row(
    "ssl_certificate",
    "file",
    None,
    "A file with the server's certificate and the intermediate ones behind it, in PEM. Several lines give certificates of \
     several kinds, RSA and ECDSA, each with its `ssl_certificate_key`. `data:…` is the text itself. With variables the \
     file is read when a client comes, with the rights of the worker.",
    Setter::Custom(
        Arity::ONE,
        Repeat::Fresh(|c| c.certificates.clear()),
        |c, line| {
            c.certificates.push(source(line)?);
            Ok(())
        },
    ),
);

const CERTIFICATE_KEY: Directive<TlsConf> = row(
    "ssl_certificate_key",
    "file",
    None,
    "The private key of a certificate, in PEM. Only the master process reads it. It may be encrypted: see \
     `ssl_password_file`.",
    Setter::Custom(Arity::ONE, Repeat::Fresh(|c| c.keys.clear()), |c, line| {
        c.keys.push(source(line)?);
        Ok(())
    }),
);

const CERTIFICATE_CACHE: Directive<TlsConf> = row(
    "ssl_certificate_cache",
    "off | max=N [inactive=time] [valid=time]",
    Some("off"),
    "Keeps certificates whose names have variables: so many, each until it was not used for `inactive` (10 seconds), and \
     looked at again after `valid` (60 seconds).",
    Setter::Custom(Arity::between(1, 3), Repeat::Once, |c, line| {
        c.certificate_cache = certificate_cache(line)?;
        Ok(())
    }),
);

const CERTIFICATE_COMPRESSION: Directive<TlsConf> = row(
    "ssl_certificate_compression",
    "on | off",
    Some("off"),
    "Whether certificates are sent compressed (zlib) to clients that can read that (RFC 8879).",
    Setter::Flag(|c| &mut c.compress),
);

const CIPHERS: Directive<TlsConf> = row(
    "ssl_ciphers",
    "ciphers",
    Some("HIGH:!aNULL:!MD5"),
    "The cipher suites of TLS 1.2, in OpenSSL's notation. What is spoken are the six suites with ECDHE and AES-GCM or \
     ChaCha20-Poly1305; others that a list names are left out.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.ciphers = word(line);
        Ok(())
    }),
);

const CLIENT_CERTIFICATE: Directive<TlsConf> = row(
    "ssl_client_certificate",
    "file",
    None,
    "The certificates of the authorities that clients' certificates are trusted by, in PEM. Clients are told their names.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.client_certificate = file(line);
        Ok(())
    }),
);

const CONF_COMMAND: Directive<TlsConf> = row(
    "ssl_conf_command",
    "name value",
    None,
    "An OpenSSL configuration command. Understood are `Certificate`, `PrivateKey`, `Ciphersuites`, `CipherString`, \
     `Groups`, `Curves`, `MinProtocol`, `MaxProtocol`, `Protocol` and the `Options` that mean something here.",
    Setter::Custom(
        Arity::exactly(2),
        Repeat::Fresh(|c| c.commands.clear()),
        |c, line| {
            let command = (
                line.text(0).to_owned(),
                line.text(1).to_owned(),
                line.node.span,
            );
            c.commands.push(command);
            Ok(())
        },
    ),
);

const CRL: Directive<TlsConf> = row(
    "ssl_crl",
    "file",
    None,
    "Revocation lists in PEM: a client's certificate, and each that signed it, must have one and not be on it.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.crl = file(line);
        Ok(())
    }),
);

const DHPARAM: Directive<TlsConf> = row(
    "ssl_dhparam",
    "file",
    None,
    "Accepted without effect: keys are exchanged over elliptic curves only.",
    Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
        if !line.is_default() && !line.text(0).is_empty() {
            let span = line.node.span;
            super::build::advise("\"ssl_dhparam\" has no effect", span, line.level);
        }
        Ok(())
    }),
);

const ECDH_CURVE: Directive<TlsConf> = row(
    "ssl_ecdh_curve",
    "curve",
    Some("auto"),
    "The groups that keys are exchanged in, the best first, with colons between: `X25519MLKEM768`, `X25519`, `prime256v1`, \
     `secp384r1`, which is also the order of `auto`.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.curves = word(line);
        Ok(())
    }),
);

const ECH_FILE: Directive<TlsConf> = row(
    "ssl_ech_file",
    "file",
    None,
    "Encrypted Client Hello is not supported: the line is accepted with a warning, and clients go on without.",
    Setter::Custom(Arity::ONE, Repeat::Many, |c, line| {
        c.ech = !line.text(0).is_empty();
        Ok(())
    }),
);

const OCSP: Directive<TlsConf> = row(
    "ssl_ocsp",
    "on | off | leaf",
    Some("off"),
    "Whether the authorities of clients' certificates are asked if they were revoked (OCSP): about all of a path but its \
     root, or about the client's own alone. A client about whom nothing can be learnt is not let in. With `ssl_verify_client` \
     `on` or `optional`; names of responders need a `resolver`.",
    Setter::Word(&["off", "on", "leaf"], |c, index| {
        c.ocsp = [None, Some(Checks::All), Some(Checks::Leaf)][index];
    }),
);

const OCSP_CACHE: Directive<TlsConf> = row(
    "ssl_ocsp_cache",
    "off | shared:name:size",
    Some("off"),
    "Keeps what responders say about clients' certificates for as long as they say it holds. The cache has a name and a size \
     in bytes, and outlives reloads.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.ocsp_cache = ocsp_cache(line)?;
        Ok(())
    }),
);

const OCSP_RESPONDER: Directive<TlsConf> = row(
    "ssl_ocsp_responder",
    "url",
    None,
    "The responder that is asked about clients' certificates (`http://…`), in place of the one that each names.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.ocsp_responder = Some(word(line)).filter(|word| !word.text.is_empty());
        Ok(())
    }),
);

const PASSWORD_FILE: Directive<TlsConf> = row(
    "ssl_password_file",
    "file",
    None,
    "A file of passwords, a line each, that are tried on encrypted keys.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.passwords = Arc::new(tls_rows::passwords(line)?);
        Ok(())
    }),
);

const PREFER_SERVER_CIPHERS: Directive<TlsConf> = row(
    "ssl_prefer_server_ciphers",
    "on | off",
    Some("off"),
    "Whether the server's order of cipher suites counts, not the client's.",
    Setter::Flag(|c| &mut c.prefer_server_ciphers),
);

const PROTOCOLS: Directive<TlsConf> = row(
    "ssl_protocols",
    "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]",
    Some("TLSv1.2 TLSv1.3"),
    "The versions of TLS. Those before 1.2 are not spoken any more (RFC 8996); a line that names them is a warning.",
    Setter::Bits(Protocols::WORDS, |c| &mut c.protocols),
);

const REJECT_HANDSHAKE: Directive<TlsConf> = row(
    "ssl_reject_handshake",
    "on | off",
    Some("off"),
    "Refuses clients that ask for this server, before a certificate is shown to them. In a default server: clients that \
     ask for a name nobody has.",
    Setter::Flag(|c| &mut c.rejects),
);

const SESSION_CACHE: Directive<TlsConf> = row(
    "ssl_session_cache",
    "off | none | [builtin[:size]] [shared:name:size]",
    Some("none"),
    "Where sessions are remembered for clients that can not keep a ticket, and where tickets are off. A shared cache has a \
     name, a size in bytes, and outlives reloads.",
    // As in nginx the last line of a block counts.
    Setter::Custom(Arity::between(1, 2), Repeat::Many, |c, line| {
        c.session_cache = session_cache(line)?;
        Ok(())
    }),
);

const SESSION_TICKET_KEY: Directive<TlsConf> = row(
    "ssl_session_ticket_key",
    "file",
    None,
    "A key for tickets, 48 or 80 random bytes, so that several machines can share sessions. The first line's key encrypts, \
     all decrypt. Without one a random key is made each hour and kept for a day.",
    Setter::Custom(
        Arity::ONE,
        Repeat::Fresh(|c| c.ticket_keys.clear()),
        |c, line| {
            c.ticket_keys.push(File {
                path: line.path(conf::Access::Opened, line.arg(0)),
                span: line.arg(0).span,
            });
            Ok(())
        },
    ),
);

const SESSION_TICKETS: Directive<TlsConf> = row(
    "ssl_session_tickets",
    "on | off",
    Some("on"),
    "Whether clients get tickets, by which they resume a session.",
    Setter::Flag(|c| &mut c.tickets),
);

const SESSION_TIMEOUT: Directive<TlsConf> = row(
    "ssl_session_timeout",
    "time",
    Some("5m"),
    "How long a session can be resumed.",
    Setter::Seconds(|c| &mut c.session_timeout),
);

const STAPLING: Directive<TlsConf> = row(
    "ssl_stapling",
    "on | off",
    Some("off"),
    "Sends the authority's statement about the server's certificate along with it (OCSP): from `ssl_stapling_file`, or as \
     the authority's responder says. It is asked when a client comes, who does not wait for it, and again every hour; its \
     name needs a `resolver`. The issuer's certificate must be in the chain or in `ssl_trusted_certificate`.",
    Setter::Flag(|c| &mut c.stapling),
);

const STAPLING_FILE: Directive<TlsConf> = row(
    "ssl_stapling_file",
    "file",
    None,
    "An OCSP response in DER that is sent with the certificate; nobody is asked then.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.stapling_file = file(line);
        Ok(())
    }),
);

const STAPLING_RESPONDER: Directive<TlsConf> = row(
    "ssl_stapling_responder",
    "url",
    None,
    "The responder that is asked (`http://…`), in place of the one that the certificate names.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.stapling_responder = Some(word(line)).filter(|word| !word.text.is_empty());
        Ok(())
    }),
);

const STAPLING_VERIFY: Directive<TlsConf> = row(
    "ssl_stapling_verify",
    "on | off",
    Some("off"),
    "Whether an answer is only sent along if whoever signed it is entitled to: the issuer, or whom it has named for that. \
     Clients examine that themselves.",
    Setter::Flag(|c| &mut c.stapling_verify),
);

const TRUSTED_CERTIFICATE: Directive<TlsConf> = row(
    "ssl_trusted_certificate",
    "file",
    None,
    "Certificates that clients' certificates are trusted by, in PEM, besides those of `ssl_client_certificate`. Clients are \
     not told their names.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.trusted_certificate = file(line);
        Ok(())
    }),
);

const VERIFY_CLIENT: Directive<TlsConf> = row(
    "ssl_verify_client",
    "on | off | optional | optional_no_ca",
    Some("off"),
    "Whether clients need a certificate. With `optional` one that is there must be good; with `optional_no_ca` it need not \
     be signed by a trusted one. `$ssl_client_verify` tells.",
    Setter::Word(&["off", "on", "optional", "optional_no_ca"], |c, index| {
        c.asks = [
            Asks::No,
            Asks::Required,
            Asks::Optional,
            Asks::OptionalUnsigned,
        ][index];
    }),
);

const VERIFY_DEPTH: Directive<TlsConf> = row(
    "ssl_verify_depth",
    "number",
    Some("1"),
    "How many certificates may stand between a client's and a trusted one.",
    Setter::Number(|c| &mut c.depth, 0, 100),
);

const BUFFER_SIZE: Directive<TlsConf> = row(
    "ssl_buffer_size",
    "size",
    Some("16k"),
    "The most that is sent in one record. Small records let a client begin sooner with what it has.",
    Setter::Size(|c| &mut c.buffer_size),
);

const EARLY_DATA: Directive<TlsConf> = row(
    "ssl_early_data",
    "on | off",
    Some("off"),
    "Whether clients that come back may send a request along with their first message (TLS 1.3), which is answered before \
     the handshake ends. Sessions are then remembered here and used once, so that nobody can send the same request again.",
    Setter::Flag(|c| &mut c.early_data),
);

const ALPN: Directive<TlsConf> = row(
    "ssl_alpn",
    "protocol ...",
    None,
    "The protocols that the server offers by ALPN; a client that offers others only is refused.",
    Setter::Custom(Arity::at_least(1), Repeat::Once, |c, line| {
        let names = line.args().iter().map(|word| word.text.clone());
        // An empty one is no client's.
        c.alpn = names.filter(|name| !name.is_empty()).collect();
        match c.alpn.iter().any(|name| name.len() > 255) {
            true => Err(line.error("\"ssl_alpn\" directive protocol too long")),
            false => Ok(()),
        }
    }),
);

const HANDSHAKE_TIMEOUT: Directive<TlsConf> = row(
    "ssl_handshake_timeout",
    "time",
    Some("60s"),
    "How long a client may take for the handshake.",
    Setter::Millis(|c| &mut c.handshake_timeout),
);

fn word(line: &Line) -> Word {
    Word {
        text: line.text(0).to_owned(),
        span: Some(line.arg(0).span),
    }
}

/// A file's path; `None` for the empty word.
fn file(line: &Line) -> Option<File> {
    (!line.text(0).is_empty()).then(|| File {
        path: line.path(conf::Access::Opened, line.arg(0)),
        span: line.arg(0).span,
    })
}

fn source(line: &mut Line) -> Result<Source, Diagnostic> {
    let span = line.arg(0).span;
    if Expression::has_variables(line.text(0)) {
        return Ok(Source::Dynamic(line.expression(0)?, span));
    }
    Ok(Source::Fixed(line.text(0).to_owned(), span))
}

fn certificate_cache(line: &mut Line) -> Result<Option<CertificateCache>, Diagnostic> {
    let mut cache = CertificateCache {
        max: 0,
        inactive: Duration::from_secs(10),
        valid: Duration::from_secs(60),
    };
    if line.args().len() == 1 && line.text(0) == "off" {
        return Ok(None);
    }
    for index in 0..line.args().len() {
        let text = line.text(index);
        let time = |value: &[u8]| base::units::parse_seconds(value);
        let good = if let Some(value) = text.strip_prefix(b"max=") {
            let number = value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<usize>().ok());
            cache.max = number.unwrap_or(0);
            cache.max > 0
        } else if let Some(value) = text.strip_prefix(b"inactive=") {
            time(value).map(|time| cache.inactive = time).is_some()
        } else if let Some(value) = text.strip_prefix(b"valid=") {
            time(value).map(|time| cache.valid = time).is_some()
        } else {
            false
        };
        if !good {
            return Err(line.invalid_parameter(index));
        }
    }
    if cache.max == 0 {
        let name = line.name();
        return Err(line.error(format!("\"{name}\" must have the \"max\" parameter")));
    }
    Ok(Some(cache))
}

/// The smallest shared cache: eight pages, as in nginx.
const SMALLEST_CACHE: u64 = 8 * 4096;

fn ocsp_cache(line: &mut Line) -> Result<Option<(String, usize)>, Diagnostic> {
    let text = line.text(0);
    if text == "off" {
        return Ok(None);
    }
    let invalid = || line.error(format!("invalid OCSP cache \"{text}\""));
    let rest = text.strip_prefix(b"shared:").ok_or_else(invalid)?;
    let (name, size) = rest.split_once_str(":").ok_or_else(invalid)?;
    let size = base::units::parse_size(size).ok_or_else(invalid)?;
    if name.is_empty() {
        return Err(invalid());
    }
    if size < SMALLEST_CACHE {
        return Err(line.error(format!("OCSP cache \"{text}\" is too small")));
    }
    let zone = NameAndSize {
        name: name.into(),
        size,
    };
    zones::share(line, &zone, "ssl_ocsp_cache")?;
    let name = name.to_str_lossy().into_owned();
    Ok(Some((name, usize::try_from(size).unwrap_or(usize::MAX))))
}

fn session_cache(line: &mut Line) -> Result<SessionCaching, Diagnostic> {
    /// OpenSSL's own number.
    const BUILTIN: usize = 20 * 1024;
    let mut caching = SessionCaching::None;
    for index in 0..line.args().len() {
        let text = line.text(index);
        let invalid = || line.error_at(index, format!("invalid session cache \"{text}\""));
        match &**text {
            b"off" | b"none" => {}
            b"builtin" => caching = SessionCaching::Builtin(BUILTIN),
            text if text.starts_with(b"builtin:") => {
                let number = text[8..].to_str().ok().and_then(|text| text.parse().ok());
                caching = SessionCaching::Builtin(number.ok_or_else(invalid)?);
            }
            text if text.starts_with(b"shared:") => {
                let (name, size) = text[7..].split_once_str(":").ok_or_else(invalid)?;
                let size = base::units::parse_size(size).ok_or_else(invalid)?;
                if name.is_empty() {
                    return Err(invalid());
                }
                if size < SMALLEST_CACHE {
                    let text = line.text(index);
                    return Err(line.error(format!("session cache \"{text}\" is too small")));
                }
                let zone = NameAndSize {
                    name: name.into(),
                    size,
                };
                zones::share(line, &zone, "ssl_session_cache")?;
                let name = name.to_str_lossy().into_owned();
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                // The shared one is asked in any case, so that the other is of no use beside it.
                return Ok(SessionCaching::Shared(name, size));
            }
            _ => return Err(invalid()),
        }
    }
    Ok(caching)
}
