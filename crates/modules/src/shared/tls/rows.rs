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
    "A PEM file with the certificate of the server, followed by intermediate certificates. Several lines give \
     certificates of different types, RSA and ECDSA, each with its `ssl_certificate_key`. `data:…` is the PEM text \
     itself. With variables, the file is loaded during the handshake, with the rights of the worker.",
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
    "Caches certificates whose names contain variables: up to `max`, each until it has been unused for `inactive` (10 \
     seconds), and revalidated after `valid` (60 seconds).",
    Setter::Custom(Arity::between(1, 3), Repeat::Once, |c, line| {
        c.certificate_cache = certificate_cache(line)?;
        Ok(())
    }),
);

const CERTIFICATE_COMPRESSION: Directive<TlsConf> = row(
    "ssl_certificate_compression",
    "on | off",
    Some("off"),
    "Whether to send certificates compressed (zlib) to clients that support it (RFC 8879).",
    Setter::Flag(|c| &mut c.compress),
);

const CIPHERS: Directive<TlsConf> = row(
    "ssl_ciphers",
    "ciphers",
    Some("HIGH:!aNULL:!MD5"),
    "The TLS 1.2 cipher suites, in OpenSSL notation. Supported are the six suites with ECDHE and AES-GCM or \
     ChaCha20-Poly1305; others in the list are left out.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.ciphers = word(line);
        Ok(())
    }),
);

const CLIENT_CERTIFICATE: Directive<TlsConf> = row(
    "ssl_client_certificate",
    "file",
    None,
    "The trusted CA certificates for verifying client certificates, in PEM. Their names are sent to clients.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.client_certificate = file(line);
        Ok(())
    }),
);

const CONF_COMMAND: Directive<TlsConf> = row(
    "ssl_conf_command",
    "name value",
    None,
    "An OpenSSL configuration command. Supported are `Certificate`, `PrivateKey`, `Ciphersuites`, `CipherString`, \
     `Groups`, `Curves`, `MinProtocol`, `MaxProtocol`, `Protocol` and those `Options` that apply to Weir.",
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
    "Certificate revocation lists in PEM: there must be one from each issuer in the chain of a client certificate, and \
     no certificate of the chain may be on it.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.crl = file(line);
        Ok(())
    }),
);

const DHPARAM: Directive<TlsConf> = row(
    "ssl_dhparam",
    "file",
    None,
    "Accepted; has no effect: keys are exchanged over elliptic curves only.",
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
    "The key exchange groups in order of preference, separated by colons: `X25519MLKEM768`, `X25519`, `prime256v1`, \
     `secp384r1`; this is also the order of `auto`.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.curves = word(line);
        Ok(())
    }),
);

const ECH_FILE: Directive<TlsConf> = row(
    "ssl_ech_file",
    "file",
    None,
    "Encrypted Client Hello is not supported: accepted with a warning; clients connect without it.",
    Setter::Custom(Arity::ONE, Repeat::Many, |c, line| {
        c.ech = !line.text(0).is_empty();
        Ok(())
    }),
);

const OCSP: Directive<TlsConf> = row(
    "ssl_ocsp",
    "on | off | leaf",
    Some("off"),
    "Whether to check the revocation of client certificates by OCSP: of the whole chain except the root (`on`), or of \
     the client certificate only (`leaf`). A client whose status cannot be determined is rejected. Requires \
     `ssl_verify_client` `on` or `optional`; resolving names of responders requires a `resolver`.",
    Setter::Word(&["off", "on", "leaf"], |c, index| {
        c.ocsp = [None, Some(Checks::All), Some(Checks::Leaf)][index];
    }),
);

const OCSP_CACHE: Directive<TlsConf> = row(
    "ssl_ocsp_cache",
    "off | shared:name:size",
    Some("off"),
    "Caches OCSP responses for client certificates for as long as they are valid. The cache has a name and a size in \
     bytes, and is kept across reloads.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.ocsp_cache = ocsp_cache(line)?;
        Ok(())
    }),
);

const OCSP_RESPONDER: Directive<TlsConf> = row(
    "ssl_ocsp_responder",
    "url",
    None,
    "The URL (`http://…`) of the OCSP responder for client certificates, instead of those named in the certificates.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.ocsp_responder = Some(word(line)).filter(|word| !word.text.is_empty());
        Ok(())
    }),
);

const PASSWORD_FILE: Directive<TlsConf> = row(
    "ssl_password_file",
    "file",
    None,
    "A file of passphrases for encrypted keys, one per line.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.passwords = Arc::new(tls_rows::passwords(line)?);
        Ok(())
    }),
);

const PREFER_SERVER_CIPHERS: Directive<TlsConf> = row(
    "ssl_prefer_server_ciphers",
    "on | off",
    Some("off"),
    "Whether to prefer the server's order of cipher suites over the client's.",
    Setter::Flag(|c| &mut c.prefer_server_ciphers),
);

const PROTOCOLS: Directive<TlsConf> = row(
    "ssl_protocols",
    "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]",
    Some("TLSv1.2 TLSv1.3"),
    "The TLS versions to enable. Versions before 1.2 are not supported (RFC 8996); naming them causes a warning.",
    Setter::Bits(Protocols::WORDS, |c| &mut c.protocols),
);

const REJECT_HANDSHAKE: Directive<TlsConf> = row(
    "ssl_reject_handshake",
    "on | off",
    Some("off"),
    "Rejects handshakes with this server before a certificate is sent. In a default server: handshakes for names that \
     no server has.",
    Setter::Flag(|c| &mut c.rejects),
);

const SESSION_CACHE: Directive<TlsConf> = row(
    "ssl_session_cache",
    "off | none | [builtin[:size]] [shared:name:size]",
    Some("none"),
    "Where to store sessions, for clients that do not support tickets, and where tickets are disabled. A shared cache \
     has a name and a size in bytes, and is kept across reloads.",
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
    "A file with a session ticket key of 48 or 80 random bytes, so that several machines can share sessions. The key \
     of the first line encrypts, all decrypt. Without such a file, a random key is generated every hour and kept for a \
     day.",
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
    "Whether to issue session tickets, with which clients can resume sessions.",
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
    "Enables OCSP stapling: sends the status of the server certificate along with it, from `ssl_stapling_file` or from \
     the OCSP responder of the CA. The responder is queried when a client connects, without delaying it, and then \
     every hour; resolving its name requires a `resolver`. The certificate of the issuer must be in the chain or in \
     `ssl_trusted_certificate`.",
    Setter::Flag(|c| &mut c.stapling),
);

const STAPLING_FILE: Directive<TlsConf> = row(
    "ssl_stapling_file",
    "file",
    None,
    "A file with the OCSP response (DER) to staple, instead of querying a responder.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.stapling_file = file(line);
        Ok(())
    }),
);

const STAPLING_RESPONDER: Directive<TlsConf> = row(
    "ssl_stapling_responder",
    "url",
    None,
    "The URL (`http://…`) of the OCSP responder for stapling, instead of the one named in the certificate.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.stapling_responder = Some(word(line)).filter(|word| !word.text.is_empty());
        Ok(())
    }),
);

const STAPLING_VERIFY: Directive<TlsConf> = row(
    "ssl_stapling_verify",
    "on | off",
    Some("off"),
    "Whether to staple only responses signed by an authorised party: the issuer, or a responder it has delegated to. \
     Clients verify this themselves.",
    Setter::Flag(|c| &mut c.stapling_verify),
);

const TRUSTED_CERTIFICATE: Directive<TlsConf> = row(
    "ssl_trusted_certificate",
    "file",
    None,
    "Trusted CA certificates for verifying client certificates, in PEM, in addition to those of \
     `ssl_client_certificate`. Their names are not sent to clients.",
    Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
        c.trusted_certificate = file(line);
        Ok(())
    }),
);

const VERIFY_CLIENT: Directive<TlsConf> = row(
    "ssl_verify_client",
    "on | off | optional | optional_no_ca",
    Some("off"),
    "Whether to require a client certificate. `optional` requests one and rejects invalid ones; `optional_no_ca` does \
     not require it to be signed by a trusted CA. The result is in `$ssl_client_verify`.",
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
    "The maximum number of intermediate certificates between the certificate of a client and a trusted one.",
    Setter::Number(|c| &mut c.depth, 0, 100),
);

const BUFFER_SIZE: Directive<TlsConf> = row(
    "ssl_buffer_size",
    "size",
    Some("16k"),
    "The maximum size of a TLS record. Smaller records reduce the time to first byte.",
    Setter::Size(|c| &mut c.buffer_size),
);

const EARLY_DATA: Directive<TlsConf> = row(
    "ssl_early_data",
    "on | off",
    Some("off"),
    "Whether to accept early data (0-RTT, TLS 1.3): requests that resuming clients send before the handshake is \
     complete. Sessions are then stored on the server and used only once, which prevents replays.",
    Setter::Flag(|c| &mut c.early_data),
);

const ALPN: Directive<TlsConf> = row(
    "ssl_alpn",
    "protocol ...",
    None,
    "The protocols that the server supports by ALPN, in order of preference; clients that offer only others are \
     rejected.",
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
    "The timeout of the TLS handshake.",
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
