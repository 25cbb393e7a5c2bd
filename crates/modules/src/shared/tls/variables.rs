//! `$ssl_…`: the result of the handshake, and the client's identity by its certificate.

use std::marker::PhantomData;

use conf::Variable;
use net::tls::{CertificateView, TlsSession, VerifyResult};

/// A request or session whose client may use TLS.
pub(crate) trait HasTls: 'static {
    /// The client's TLS session; `None` without TLS, and before the handshake is complete.
    fn tls(&self) -> Option<&TlsSession>;

    /// The server name that the client requested (SNI), already during the handshake.
    fn server_name(&self) -> Option<String>;
}

/// The number of variables.
pub(crate) const COUNT: usize = 28;

/// All variables.
pub(crate) const fn all<R: HasTls>() -> [Variable<R>; COUNT] {
    let mut rows = TlsVariableRows::<R>::ALL;
    let mut at = 0;
    while at < rows.len() {
        // nginx lets `map` and `set` redefine them.
        rows[at].changeable = true;
        at += 1;
    }
    rows
}

/// A variable with a certificate in PEM. Its line ends are generated here and not by the client, so
/// they need not be refused.
const fn certificate_lines<R: HasTls>(
    name: &'static str,
    get: fn(&mut R, &mut Vec<u8>) -> bool,
    doc: &'static str,
) -> Variable<R> {
    Variable::new(name, get, doc).with_lines()
}

/// Where the rows are: a constant that depends on a type must belong to one.
struct TlsVariableRows<R>(PhantomData<R>);

impl<R: HasTls> TlsVariableRows<R> {
    const ALL: [Variable<R>; COUNT] = [
        Variable::new("ssl_protocol", protocol, "The TLS version: `TLSv1.3`."),
        Variable::new("ssl_cipher", cipher, "The cipher suite (OpenSSL name)."),
        Variable::new(
            "ssl_ciphers",
            ciphers,
            "The cipher suites offered by the client.",
        ),
        Variable::new("ssl_curve", curve, "The key exchange group."),
        Variable::new("ssl_curves", curves, "The groups offered by the client."),
        Variable::new(
            "ssl_sigalg",
            scheme,
            "The signature algorithm used by the server.",
        ),
        Variable::new(
            "ssl_sigalgs",
            schemes,
            "The signature algorithms offered by the client.",
        ),
        Variable::new(
            "ssl_session_id",
            session_id,
            "An identifier shared by the connections of a session.",
        ),
        Variable::new(
            "ssl_session_reused",
            reused,
            "`r` if the session was resumed, otherwise `.`.",
        ),
        Variable::new(
            "ssl_early_data",
            early_data,
            "`1` for a request received before the handshake was complete, otherwise empty.",
        )
        .volatile(),
        Variable::new(
            "ssl_server_name",
            server_name,
            "The server name requested by the client (SNI).",
        )
        .volatile(),
        Variable::new(
            "ssl_alpn_protocol",
            alpn,
            "The protocol negotiated by ALPN.",
        ),
        Variable::new(
            "ssl_ech_status",
            no_value,
            "Encrypted Client Hello is not supported: always empty.",
        ),
        Variable::new(
            "ssl_ech_outer_server_name",
            no_value,
            "Always empty: see `$ssl_ech_status`.",
        ),
        certificate_lines(
            "ssl_client_cert",
            client_cert,
            "The client certificate in PEM, with a tab before each line except the first.",
        ),
        certificate_lines(
            "ssl_client_raw_cert",
            client_raw_cert,
            "The client certificate in PEM.",
        ),
        Variable::new(
            "ssl_client_escaped_cert",
            client_escaped_cert,
            "The client certificate in PEM, URL-encoded.",
        ),
        Variable::new(
            "ssl_client_s_dn",
            subject,
            "The subject of the client certificate (RFC 2253).",
        ),
        Variable::new(
            "ssl_client_i_dn",
            issuer,
            "The issuer of the client certificate (RFC 2253).",
        ),
        Variable::new(
            "ssl_client_s_dn_legacy",
            subject_legacy,
            "The subject of the client certificate in the old form, with slashes.",
        ),
        Variable::new(
            "ssl_client_i_dn_legacy",
            issuer_legacy,
            "The issuer of the client certificate in the old form, with slashes.",
        ),
        Variable::new(
            "ssl_client_serial",
            serial,
            "The serial number of the client certificate.",
        ),
        Variable::new(
            "ssl_client_fingerprint",
            fingerprint,
            "The SHA-1 fingerprint of the client certificate.",
        ),
        Variable::new(
            "ssl_client_verify",
            verify,
            "`SUCCESS`, `FAILED:reason` or `NONE`.",
        ),
        Variable::new(
            "ssl_client_v_start",
            valid_from,
            "When the client certificate becomes valid.",
        ),
        Variable::new("ssl_client_v_end", valid_until, "When it expires."),
        Variable::new("ssl_client_v_remain", days_left, "Days until it expires."),
        Variable::new(
            "ssl_client_sigalg",
            client_scheme,
            "The signature algorithm used by the client: not available, always empty.",
        ),
    ];
}

/// Appends a value. An empty one counts as none, so that logs show `-`.
fn append_value(out: &mut Vec<u8>, value: Option<impl AsRef<[u8]>>) -> bool {
    match value {
        Some(value) if !value.as_ref().is_empty() => {
            out.extend_from_slice(value.as_ref());
            true
        }
        _ => false,
    }
}

/// `$ssl_protocol`.
fn protocol<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().map(TlsSession::protocol))
}

/// `$ssl_cipher`.
fn cipher<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().map(TlsSession::cipher))
}

/// `$ssl_ciphers`.
fn ciphers<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().map(TlsSession::offered_ciphers))
}

/// `$ssl_curve`.
fn curve<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().and_then(TlsSession::curve))
}

/// `$ssl_curves`.
fn curves<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().map(TlsSession::offered_curves))
}

/// `$ssl_sigalg`.
fn scheme<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().and_then(TlsSession::scheme))
}

/// `$ssl_sigalgs`.
fn schemes<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().map(TlsSession::offered_schemes))
}

/// `$ssl_session_id`, in hexadecimal as in nginx.
fn session_id<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    let digits = |tls: &TlsSession| -> String {
        tls.id().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    append_value(out, scope.tls().map(digits))
}

/// `$ssl_session_reused`.
fn reused<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(
        out,
        scope
            .tls()
            .map(|tls| if tls.is_resumed() { "r" } else { "." }),
    )
}

/// `$ssl_early_data`. Servers behind this one need it to refuse replayed requests (RFC 8470,
/// section 5.1).
fn early_data<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().filter(|tls| tls.is_early()).map(|_| "1"))
}

/// `$ssl_server_name`.
fn server_name<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.server_name())
}

/// `$ssl_alpn_protocol`.
fn alpn<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, scope.tls().and_then(TlsSession::alpn))
}

/// For variables of features that do not exist here.
fn no_value<R: HasTls>(_: &mut R, _: &mut Vec<u8>) -> bool {
    false
}

/// `$ssl_client_sigalg`: the TLS library does not tell.
fn client_scheme<R: HasTls>(_: &mut R, _: &mut Vec<u8>) -> bool {
    false
}

/// The client's certificate.
fn certificate<R: HasTls>(scope: &R) -> Option<CertificateView> {
    scope.tls()?.peer_certificate().map(CertificateView::of)
}

/// PEM without its final line end, as nginx shows it.
fn pem<R: HasTls>(scope: &R) -> Option<String> {
    let mut text = certificate(scope)?.pem();
    text.pop();
    Some(text)
}

/// The tabs make the lines a folded header field, as servers behind nginx expect it.
fn client_cert<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, pem(scope).map(|text| text.replace('\n', "\n\t")))
}

/// `$ssl_client_raw_cert`.
fn client_raw_cert<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, certificate(scope).map(|shown| shown.pem()))
}

/// `$ssl_client_escaped_cert`: the form for a header, since a raw certificate has line ends.
fn client_escaped_cert<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    let Some(shown) = certificate(scope) else {
        return false;
    };
    proto::uri::escape(
        proto::uri::EscapeClass::UriComponent,
        shown.pem().as_bytes(),
        out,
    );
    true
}

/// `$ssl_client_s_dn`.
fn subject<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, certificate(scope).and_then(|shown| shown.subject()))
}

/// `$ssl_client_i_dn`.
fn issuer<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, certificate(scope).and_then(|shown| shown.issuer()))
}

/// `$ssl_client_s_dn_legacy`.
fn subject_legacy<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(
        out,
        certificate(scope).and_then(|shown| shown.subject_legacy()),
    )
}

/// `$ssl_client_i_dn_legacy`.
fn issuer_legacy<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(
        out,
        certificate(scope).and_then(|shown| shown.issuer_legacy()),
    )
}

/// `$ssl_client_serial`.
fn serial<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, certificate(scope).and_then(|shown| shown.serial()))
}

/// `$ssl_client_fingerprint`. SHA-1, as in nginx.
fn fingerprint<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, certificate(scope).map(|shown| shown.fingerprint()))
}

/// `$ssl_client_verify`. Also meaningful where verification is optional and the request was let
/// through.
fn verify<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    let Some(tls) = scope.tls() else {
        return false;
    };
    match tls.verify_result() {
        None | Some(VerifyResult::Absent) => out.extend_from_slice(b"NONE"),
        Some(VerifyResult::Good) => out.extend_from_slice(b"SUCCESS"),
        Some(VerifyResult::Bad(fault)) => {
            out.extend_from_slice(b"FAILED:");
            out.extend_from_slice(fault.text.as_bytes());
        }
    }
    true
}

/// `$ssl_client_v_start`.
fn valid_from<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(out, certificate(scope).and_then(|shown| shown.valid_from()))
}

/// `$ssl_client_v_end`.
fn valid_until<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    append_value(
        out,
        certificate(scope).and_then(|shown| shown.valid_until()),
    )
}

/// `$ssl_client_v_remain`.
fn days_left<R: HasTls>(scope: &mut R, out: &mut Vec<u8>) -> bool {
    let days = certificate(scope).and_then(|shown| shown.days_left());
    append_value(out, days.map(|days| days.to_string()))
}
