//! The rows of the TLS directives, for http and for stream.

use std::sync::Arc;
use std::time::Duration;

use bstr::ByteSlice;
use conf::{Arity, Contexts, Diagnostic, Directive, DirectiveLine, Expression, RepeatRule, Setter};
use net::tls::ocsp::OcspScope;
use net::tls::{TlsProtocols, VerifyClient};

use super::{
    CertificateCache, CertificateSource, SessionCaching, SpannedFile, SpannedWord, TlsConf,
};
use crate::shared::upstream_tls_rows;
use crate::shared::zones::{self, NameAndSize};

/// The engine that the rows are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKind {
    Http,
    Stream,
}

/// The number of rows in either engine.
pub(crate) const COUNT: usize = 31;

/// A directive; its contexts are added by [`all`].
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

/// All rows of an engine, valid in these contexts. A `const fn`, so that both engines have their
/// table at compile time.
pub(crate) const fn all(engine: EngineKind, contexts: Contexts) -> [Directive<TlsConf>; COUNT] {
    let own = match engine {
        EngineKind::Http => [BUFFER_SIZE, EARLY_DATA],
        EngineKind::Stream => [ALPN, HANDSHAKE_TIMEOUT],
    };
    let [first, second] = own;
    let rows = [
        // In the order of the reference: alphabetical, with the directives of one engine last.
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
    Directive::in_contexts(rows, contexts)
}

/// `ssl_certificate`. Several lines let a server offer ECDSA, which is cheaper, and still serve
/// clients that only know RSA.
const CERTIFICATE: Directive<TlsConf> = row(
    "ssl_certificate",
    "file",
    None,
    "A PEM file with the certificate of the server, followed by intermediate certificates. Several lines give \
     certificates of different types, RSA and ECDSA, each with its `ssl_certificate_key`. `data:…` is the PEM text \
     itself. With variables, the file is loaded during the handshake, with the rights of the worker.",
    Setter::Custom(
        Arity::ONE,
        RepeatRule::Fresh(|c| c.certificates.clear()),
        |c, line| {
            // Certificates and keys are paired by position when the block is complete.
            c.certificates.push(certificate_source(line)?);
            Ok(())
        },
    ),
);

/// `ssl_certificate_key`. Read before the worker gives up its rights, so the file can stay
/// unreadable for it.
const CERTIFICATE_KEY: Directive<TlsConf> = row(
    "ssl_certificate_key",
    "file",
    None,
    "The private key of a certificate, in PEM. Only the master process reads it. It may be encrypted: see \
     `ssl_password_file`.",
    Setter::Custom(
        Arity::ONE,
        RepeatRule::Fresh(|c| c.keys.clear()),
        |c, line| {
            c.keys.push(certificate_source(line)?);
            Ok(())
        },
    ),
);

/// `ssl_certificate_cache`. Without it, a name with variables means that every handshake reads and
/// parses files.
const CERTIFICATE_CACHE: Directive<TlsConf> = row(
    "ssl_certificate_cache",
    "off | max=N [inactive=time] [valid=time]",
    Some("off"),
    "Caches certificates whose names contain variables: up to `max`, each until it has been unused for `inactive` (10 \
     seconds), and revalidated after `valid` (60 seconds).",
    Setter::Custom(Arity::between(1, 3), RepeatRule::Once, |c, line| {
        c.certificate_cache = certificate_cache(line)?;
        Ok(())
    }),
);

/// `ssl_certificate_compression`. The chain is the largest part of a handshake.
const CERTIFICATE_COMPRESSION: Directive<TlsConf> = row(
    "ssl_certificate_compression",
    "on | off",
    Some("off"),
    "Whether to send certificates compressed (zlib) to clients that support it (RFC 8879).",
    Setter::Flag(|c| &mut c.compress),
);

/// `ssl_ciphers`, with nginx's default. As with OpenSSL it is about TLS 1.2; the suites of TLS 1.3
/// are set by `ssl_conf_command Ciphersuites`.
const CIPHERS: Directive<TlsConf> = row(
    "ssl_ciphers",
    "ciphers",
    Some("HIGH:!aNULL:!MD5"),
    "The TLS 1.2 cipher suites, in OpenSSL notation. Supported are the six suites with ECDHE and AES-GCM or \
     ChaCha20-Poly1305; others in the list are left out.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.ciphers = spanned_word(line);
        Ok(())
    }),
);

/// `ssl_client_certificate`. The names help clients to choose among their certificates (RFC 8446,
/// section 4.2.4).
const CLIENT_CERTIFICATE: Directive<TlsConf> = row(
    "ssl_client_certificate",
    "file",
    None,
    "The trusted CA certificates for verifying client certificates, in PEM. Their names are sent to clients.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.client_certificate = optional_file(line);
        Ok(())
    }),
);

/// `ssl_conf_command`, for settings that nginx leaves to OpenSSL.
const CONF_COMMAND: Directive<TlsConf> = row(
    "ssl_conf_command",
    "name value",
    None,
    "An OpenSSL configuration command. Supported are `Certificate`, `PrivateKey`, `Ciphersuites`, `CipherString`, \
     `Groups`, `Curves`, `MinProtocol`, `MaxProtocol`, `Protocol` and those `Options` that apply to Weir.",
    Setter::Custom(
        Arity::exactly(2),
        RepeatRule::Fresh(|c| c.commands.clear()),
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

/// `ssl_crl`. As in nginx, which has OpenSSL check the whole chain, so one missing list refuses all
/// clients.
const CRL: Directive<TlsConf> = row(
    "ssl_crl",
    "file",
    None,
    "Certificate revocation lists in PEM: there must be one from each issuer in the chain of a client certificate, and \
     no certificate of the chain may be on it.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.crl = optional_file(line);
        Ok(())
    }),
);

/// `ssl_dhparam`: in countless configurations, so it must not be an error.
const DHPARAM: Directive<TlsConf> = row(
    "ssl_dhparam",
    "file",
    None,
    "Accepted; has no effect: keys are exchanged over elliptic curves only.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
        if !line.is_default() && !line.text(0).is_empty() {
            let span = line.node.span;
            super::build::warn_see_help("\"ssl_dhparam\" has no effect", span, line.level);
        }
        Ok(())
    }),
);

/// `ssl_ecdh_curve`. The hybrid group comes first, since recorded traffic could be decrypted by a
/// future quantum computer.
const ECDH_CURVE: Directive<TlsConf> = row(
    "ssl_ecdh_curve",
    "curve",
    Some("auto"),
    "The key exchange groups in order of preference, separated by colons: `X25519MLKEM768`, `X25519`, `prime256v1`, \
     `secp384r1`; this is also the order of `auto`.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.curves = spanned_word(line);
        Ok(())
    }),
);

/// `ssl_ech_file`: a warning, since clients can connect all the same.
const ECH_FILE: Directive<TlsConf> = row(
    "ssl_ech_file",
    "file",
    None,
    "Encrypted Client Hello is not supported: accepted with a warning; clients connect without it.",
    Setter::Custom(Arity::ONE, RepeatRule::Many, |c, line| {
        c.has_ech_file = !line.text(0).is_empty();
        Ok(())
    }),
);

/// `ssl_ocsp`. An unknown status is a rejection: otherwise the owner of a revoked certificate would
/// only have to block the responder.
const OCSP: Directive<TlsConf> = row(
    "ssl_ocsp",
    "on | off | leaf",
    Some("off"),
    "Whether to check the revocation of client certificates by OCSP: of the whole chain except the root (`on`), or of \
     the client certificate only (`leaf`). A client whose status cannot be determined is rejected. Requires \
     `ssl_verify_client` `on` or `optional`; resolving names of responders requires a `resolver`.",
    Setter::Word(&["off", "on", "leaf"], |c, index| {
        c.ocsp = [None, Some(OcspScope::All), Some(OcspScope::Leaf)][index];
    }),
);

/// `ssl_ocsp_cache`. Without it every handshake waits for a responder.
const OCSP_CACHE: Directive<TlsConf> = row(
    "ssl_ocsp_cache",
    "off | shared:name:size",
    Some("off"),
    "Caches OCSP responses for client certificates for as long as they are valid. The cache has a name and a size in \
     bytes, and is kept across reloads.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.ocsp_cache = ocsp_cache(line)?;
        Ok(())
    }),
);

/// `ssl_ocsp_responder`. Plain HTTP suffices, since responses are signed (RFC 6960, section 4.2.1).
const OCSP_RESPONDER: Directive<TlsConf> = row(
    "ssl_ocsp_responder",
    "url",
    None,
    "The URL (`http://…`) of the OCSP responder for client certificates, instead of those named in the certificates.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.ocsp_responder = Some(spanned_word(line)).filter(|word| !word.text.is_empty());
        Ok(())
    }),
);

/// `ssl_password_file`. Several phrases, because the keys of a server can have different ones.
const PASSWORD_FILE: Directive<TlsConf> = row(
    "ssl_password_file",
    "file",
    None,
    "A file of passphrases for encrypted keys, one per line.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.passwords = Arc::new(upstream_tls_rows::passwords(line)?);
        Ok(())
    }),
);

/// `ssl_prefer_server_ciphers`, off as in nginx. A client knows best whether it has AES in
/// hardware.
const PREFER_SERVER_CIPHERS: Directive<TlsConf> = row(
    "ssl_prefer_server_ciphers",
    "on | off",
    Some("off"),
    "Whether to prefer the server's order of cipher suites over the client's.",
    Setter::Flag(|c| &mut c.prefer_server_ciphers),
);

/// `ssl_protocols`. Versions that are not supported can be named all the same, since many
/// configurations list them.
const PROTOCOLS: Directive<TlsConf> = row(
    "ssl_protocols",
    "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]",
    Some("TLSv1.2 TLSv1.3"),
    "The TLS versions to enable. Versions before 1.2 are not supported (RFC 8996); naming them causes a warning.",
    Setter::Bits(TlsProtocols::WORDS, |c| &mut c.protocols),
);

/// `ssl_reject_handshake`. The alternative would be a certificate for a name that the client has
/// not asked for.
const REJECT_HANDSHAKE: Directive<TlsConf> = row(
    "ssl_reject_handshake",
    "on | off",
    Some("off"),
    "Rejects handshakes with this server before a certificate is sent. In a default server: handshakes for names that \
     no server has.",
    Setter::Flag(|c| &mut c.reject_handshake),
);

/// `ssl_session_cache`. None by default, as in nginx: tickets, which are on, cost the server no
/// memory.
const SESSION_CACHE: Directive<TlsConf> = row(
    "ssl_session_cache",
    "off | none | [builtin[:size]] [shared:name:size]",
    Some("none"),
    "Where to store sessions, for clients that do not support tickets, and where tickets are disabled. A shared cache \
     has a name and a size in bytes, and is kept across reloads.",
    // As in nginx, the last line of a block counts.
    Setter::Custom(Arity::between(1, 2), RepeatRule::Many, |c, line| {
        c.session_cache = session_cache(line)?;
        Ok(())
    }),
);

/// `ssl_session_ticket_key`. Several files allow for rotation: old tickets remain valid while new
/// ones use the first key.
const SESSION_TICKET_KEY: Directive<TlsConf> = row(
    "ssl_session_ticket_key",
    "file",
    None,
    "A file with a session ticket key of 48 or 80 random bytes, so that several machines can share sessions. The key \
     of the first line encrypts, all decrypt. Without such a file, a random key is generated every hour and kept for a \
     day.",
    Setter::Custom(
        Arity::ONE,
        RepeatRule::Fresh(|c| c.ticket_keys.clear()),
        |c, line| {
            c.ticket_keys.push(SpannedFile {
                path: line.path(conf::PathUse::Opened, line.arg(0)),
                span: line.arg(0).span,
            });
            Ok(())
        },
    ),
);

/// `ssl_session_tickets`.
const SESSION_TICKETS: Directive<TlsConf> = row(
    "ssl_session_tickets",
    "on | off",
    Some("on"),
    "Whether to issue session tickets, with which clients can resume sessions.",
    Setter::Flag(|c| &mut c.tickets),
);

/// `ssl_session_timeout`, with nginx's default, far below the week that RFC 8446, section 4.6.1,
/// allows.
const SESSION_TIMEOUT: Directive<TlsConf> = row(
    "ssl_session_timeout",
    "time",
    Some("5m"),
    "How long a session can be resumed.",
    Setter::Seconds(|c| &mut c.session_timeout),
);

/// `ssl_stapling`. It spares clients a request to the CA, which would also learn of their visit.
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

/// `ssl_stapling_file`, for machines that cannot reach a responder.
const STAPLING_FILE: Directive<TlsConf> = row(
    "ssl_stapling_file",
    "file",
    None,
    "A file with the OCSP response (DER) to staple, instead of querying a responder.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.stapling_file = optional_file(line);
        Ok(())
    }),
);

/// `ssl_stapling_responder`.
const STAPLING_RESPONDER: Directive<TlsConf> = row(
    "ssl_stapling_responder",
    "url",
    None,
    "The URL (`http://…`) of the OCSP responder for stapling, instead of the one named in the certificate.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.stapling_responder = Some(spanned_word(line)).filter(|word| !word.text.is_empty());
        Ok(())
    }),
);

/// `ssl_stapling_verify`. Off as in nginx, since every client verifies the response itself.
const STAPLING_VERIFY: Directive<TlsConf> = row(
    "ssl_stapling_verify",
    "on | off",
    Some("off"),
    "Whether to staple only responses signed by an authorised party: the issuer, or a responder it has delegated to. \
     Clients verify this themselves.",
    Setter::Flag(|c| &mut c.stapling_verify),
);

/// `ssl_trusted_certificate`, for CAs that clients need not know of: naming many makes the
/// handshake long.
const TRUSTED_CERTIFICATE: Directive<TlsConf> = row(
    "ssl_trusted_certificate",
    "file",
    None,
    "Trusted CA certificates for verifying client certificates, in PEM, in addition to those of \
     `ssl_client_certificate`. Their names are not sent to clients.",
    Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
        c.trusted_certificate = optional_file(line);
        Ok(())
    }),
);

/// `ssl_verify_client`. The words are in the order of [`VerifyClient`] below.
const VERIFY_CLIENT: Directive<TlsConf> = row(
    "ssl_verify_client",
    "on | off | optional | optional_no_ca",
    Some("off"),
    "Whether to require a client certificate. `optional` requests one and rejects invalid ones; `optional_no_ca` does \
     not require it to be signed by a trusted CA. The result is in `$ssl_client_verify`.",
    Setter::Word(&["off", "on", "optional", "optional_no_ca"], |c, index| {
        c.verify_client = [
            VerifyClient::No,
            VerifyClient::Required,
            VerifyClient::Optional,
            VerifyClient::OptionalUnsigned,
        ][index];
    }),
);

/// `ssl_verify_depth`, with nginx's default.
const VERIFY_DEPTH: Directive<TlsConf> = row(
    "ssl_verify_depth",
    "number",
    Some("1"),
    "The maximum number of intermediate certificates between the certificate of a client and a trusted one.",
    Setter::Number(|c| &mut c.depth, 0, 100),
);

/// `ssl_buffer_size`, http only. A client can use a record only when all of it has arrived.
const BUFFER_SIZE: Directive<TlsConf> = row(
    "ssl_buffer_size",
    "size",
    Some("16k"),
    "The maximum size of a TLS record. Smaller records reduce the time to first byte.",
    Setter::Size(|c| &mut c.buffer_size),
);

/// `ssl_early_data`: http only, as in nginx.
const EARLY_DATA: Directive<TlsConf> = row(
    "ssl_early_data",
    "on | off",
    Some("off"),
    "Whether to accept early data (0-RTT, TLS 1.3): requests that resuming clients send before the handshake is \
     complete. Sessions are then stored on the server and used only once, which prevents replays.",
    Setter::Flag(|c| &mut c.early_data),
);

/// `ssl_alpn`: stream only, since http knows its own protocols.
const ALPN: Directive<TlsConf> = row(
    "ssl_alpn",
    "protocol ...",
    None,
    "The protocols that the server supports by ALPN, in order of preference; clients that offer only others are \
     rejected.",
    Setter::Custom(Arity::at_least(1), RepeatRule::Once, |c, line| {
        let names = line.args().iter().map(|word| word.text.clone());
        // No client can offer an empty protocol name (RFC 7301, section 3.1).
        c.alpn = names.filter(|name| !name.is_empty()).collect();
        match c.alpn.iter().any(|name| name.len() > 255) {
            true => Err(line.error("\"ssl_alpn\" directive protocol too long")),
            false => Ok(()),
        }
    }),
);

/// `ssl_handshake_timeout`, stream only: in http the time for the request header covers the
/// handshake.
const HANDSHAKE_TIMEOUT: Directive<TlsConf> = row(
    "ssl_handshake_timeout",
    "time",
    Some("60s"),
    "The timeout of the TLS handshake.",
    Setter::Millis(|c| &mut c.handshake_timeout),
);

/// The first word with its place.
fn spanned_word(line: &DirectiveLine) -> SpannedWord {
    SpannedWord {
        text: line.text(0).to_owned(),
        span: Some(line.arg(0).span),
    }
}

/// A file; `None` for an empty word, which cancels an inherited one.
fn optional_file(line: &DirectiveLine) -> Option<SpannedFile> {
    (!line.text(0).is_empty()).then(|| SpannedFile {
        path: line.path(conf::PathUse::Opened, line.arg(0)),
        span: line.arg(0).span,
    })
}

/// A certificate or key: fixed, or with variables.
fn certificate_source(line: &mut DirectiveLine) -> Result<CertificateSource, Diagnostic> {
    let span = line.arg(0).span;
    if Expression::has_variables(line.text(0)) {
        return Ok(CertificateSource::Dynamic(line.expression(0)?, span));
    }
    Ok(CertificateSource::Fixed(line.text(0).to_owned(), span))
}

/// Reads `ssl_certificate_cache`; `None`: off.
fn certificate_cache(line: &mut DirectiveLine) -> Result<Option<CertificateCache>, Diagnostic> {
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

/// Reads `ssl_ocsp_cache`; `None`: off.
fn ocsp_cache(line: &mut DirectiveLine) -> Result<Option<(String, usize)>, Diagnostic> {
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
    zones::declare_shared(line, &zone, "ssl_ocsp_cache")?;
    let name = name.to_str_lossy().into_owned();
    Ok(Some((name, usize::try_from(size).unwrap_or(usize::MAX))))
}

/// Reads `ssl_session_cache`.
fn session_cache(line: &mut DirectiveLine) -> Result<SessionCaching, Diagnostic> {
    /// OpenSSL's default.
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
                zones::declare_shared(line, &zone, "ssl_session_cache")?;
                let name = name.to_str_lossy().into_owned();
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                // A shared cache serves every lookup, so a builtin one beside it is pointless.
                return Ok(SessionCaching::Shared(name, size));
            }
            _ => return Err(invalid()),
        }
    }
    Ok(caching)
}
