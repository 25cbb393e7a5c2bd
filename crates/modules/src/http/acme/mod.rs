//! `acme_issuer` and `acme_certificate`: certificates obtained and renewed automatically (RFC
//! 8555).
//!
//! ```nginx
//! resolver 127.0.0.53;
//! acme_issuer letsencrypt {
//!     uri         https://acme-v02.api.letsencrypt.org/directory;
//!     contact     admin@example.com;
//!     accept_terms_of_service;
//! }
//! server {
//!     listen 80;                 # where HTTP-01 is asked for
//!     listen 443 ssl;
//!     server_name example.com www.example.com;
//!     acme_certificate    letsencrypt;
//!     ssl_certificate     $acme_certificate;
//!     ssl_certificate_key $acme_certificate_key;
//! }
//! ```
//!
//! The directives are those of nginx's own acme module. One loop manages the certificates:
//! [`order`] obtains them through [`client`], [`state`] holds them for all loops together with the
//! answers to challenges, and files in the issuer's directory preserve them across restarts.

mod answer_http_challenge;
mod client;
mod credential;
mod issuer;
mod order;
mod renewal_info;
mod state;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bstr::{BString, ByteSlice};
use bytes::Bytes;
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, RepeatRule, SERVER, Setter,
    Variable,
};
use http::http_loop::HttpLoop;
use http::http_site::{FrozenHttp, HttpServer};
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use net::server_name::ServerName;
use net::tls::TlsIdentity;

use host::error_log::LogLevel;
use issuer::{AcmeIssuer, KeyKind};
use order::CertificateRenewer;
use state::AcmeState;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "acme",
    doc: "Obtains and renews certificates automatically (ACME).",
    main: &DIRECTIVES,
    server: &SERVER_DIRECTIVES,
    phases: &[(HttpPhase::PostRead, answer)],
    variables: &[
        Variable::new(
            "acme_certificate",
            |r: &mut Request, out| write_credential(r, out, |issued| &issued.certificate),
            "The certificate of the server's `acme_certificate`, for `ssl_certificate`.",
        ),
        Variable::new(
            "acme_certificate_key",
            |r: &mut Request, out| write_credential(r, out, |issued| &issued.key),
            "The private key of the server's `acme_certificate`, for `ssl_certificate_key`.",
        ),
    ],
    tls_challenge: tls_challenge_certificate,
    commit: |site, zones| {
        let conf = site.main_confs.get::<Conf>();
        if !conf.issuers.is_empty() {
            let state = zones.get_or_create("acme", AcmeState::default);
            // A configuration is committed only once, so the cell is empty.
            let _ = conf.state.set(state);
        }
    },
    start,
    stop: |_| drop(KEEPERS.take()),
    explain: http::module::ModuleExplain::Runs(&[]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "acme_issuer",
        syntax: "name { ... }",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "Defines an ACME certificate authority: `uri` of its directory, `contact`, `accept_terms_of_service`, \
              `challenge http-01 | tls-alpn-01`, `state_path`, `account_key`, `external_account_key id file`, `profile \
              name [require]`, `common_name_in_csr on | off`, `ssl_trusted_certificate`, `ssl_verify on | off`. The \
              address of the authority is resolved by the `resolver` next to it.",
        set: Setter::Block(Arity::ONE, RepeatRule::Many, |conf, line| {
            let issuer = AcmeIssuer::read(line)?;
            if conf.issuers.iter().any(|known| known.name == issuer.name) {
                return Err(line.error_at(0, format!("duplicate issuer \"{}\"", issuer.name)));
            }
            conf.issuers.push(Arc::new(issuer));
            // `server` blocks are read later and find the issuers there.
            line.shared::<Conf>().issuers.clone_from(&conf.issuers);
            Ok(())
        }),
    },
    Directive {
        name: "acme_shared_zone",
        syntax: "zone=name:size",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "Accepted; Weir's event loops share memory anyway.",
        set: Setter::Ignored(Arity::ONE, "the event loops share memory anyway"),
    },
]);

static SERVER_DIRECTIVES: DirectiveTable<AcmeServerConf> = DirectiveTable::new(&[Directive {
    name: "acme_certificate",
    syntax: "issuer [identifier …] [key=ecdsa:256 | ecdsa:384 | ecdsa:521 | rsa:2048 | rsa:3072 | rsa:4096]",
    default: None,
    contexts: SERVER,
    since: "0.2",
    doc: "Obtains a certificate from an issuer for these names or, if none are given, for the complete names of \
          `server_name`; `.example.com` counts as `example.com` and `www.example.com`. Use it through \
          `$acme_certificate` and `$acme_certificate_key`.",
    set: Setter::Custom(Arity::at_least(1), RepeatRule::Once, certificate),
}]);

/// The issuers of the configuration, and the state once it is committed.
#[derive(Clone, Default)]
struct Conf {
    issuers: Vec<Arc<AcmeIssuer>>,
    state: Arc<OnceLock<Arc<AcmeState>>>,
}

/// What a server requests.
#[derive(Clone, Default)]
struct AcmeServerConf {
    wanted: Option<CertificateRequest>,
}

/// The `acme_certificate` line of a server.
#[derive(Clone)]
struct CertificateRequest {
    issuer: Arc<AcmeIssuer>,
    /// The names in the line; empty: those of `server_name`.
    names: Vec<String>,
    key: KeyKind,
}

/// Reads `acme_certificate`.
fn certificate(conf: &mut AcmeServerConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let issuers = line.shared::<Conf>().issuers.clone();
    // Issuers are defined in `http`, whose own directives are read before its servers.
    let name = line.text(0);
    let Some(issuer) = issuers.into_iter().find(|issuer| issuer.name == name) else {
        return Err(line.error_at(0, format!("unknown issuer \"{}\"", name.as_bstr())));
    };
    let mut wanted = CertificateRequest {
        issuer,
        names: Vec::new(),
        key: KeyKind::default(),
    };
    for index in 1..line.args().len() {
        let text = line.text(index);
        if let Some(kind) = text.strip_prefix(b"key=") {
            wanted.key = KeyKind::parse(kind).ok_or_else(|| line.invalid_parameter(index))?;
        } else if is_name(text) {
            wanted.names.push(text.to_str_lossy().to_ascii_lowercase());
        } else {
            let message = format!("invalid identifier \"{}\"", text.as_bstr());
            return Err(line
                .error_at(index, message)
                .note("wildcards require the DNS challenge, which is not supported"));
        }
    }
    conf.wanted = Some(wanted);
    Ok(())
}

/// Whether a certificate for this name can be obtained by HTTP-01 or TLS-ALPN-01. Both prove a
/// host, so wildcards are out; colons are for IPv6 addresses.
fn is_name(text: &[u8]) -> bool {
    !text.is_empty()
        && text.is_ascii()
        && text
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':'))
}

impl CertificateRequest {
    /// The names for a server.
    fn names_for(&self, server: &HttpServer) -> Vec<String> {
        if !self.names.is_empty() {
            return self.names.clone();
        }
        let mut names = Vec::new();
        for name in &server.core.names {
            match name {
                ServerName::Exact(name) if is_name(name) => names.push(name.to_string()),
                // `.example.com` matches any name below it. The two that clients really use are
                // requested, as in nginx's module.
                ServerName::Below(name) if is_name(&name[1..]) => {
                    names.extend([name[1..].to_str_lossy().into_owned(), format!("www{name}")]);
                }
                _ => {}
            }
        }
        // The order in the file does not matter, so that rearranging `server_name` does not order a
        // new certificate.
        names.sort();
        names.dedup();
        names
    }

    /// Identifies a certificate, also as a file name. Another authority, such as one for tests, or
    /// another type of key makes it a different certificate.
    fn certificate_id(&self, server: &HttpServer) -> String {
        let names = self.names_for(server).join(",");
        let facts = format!("{names} {:?} {}", self.key, self.issuer.uri);
        let sum = base::hash::murmur2(facts.as_bytes());
        // The name in front is for people who look into the directory; file names are limited to
        // 255 bytes.
        let first: String = names.chars().take_while(|c| *c != ',').take(100).collect();
        format!("{}-{first}-{sum:08x}", self.issuer.name)
    }
}

/// A part of the issued certificate as `data:…`, which `ssl_certificate` accepts in place of a
/// file. Without one yet the value is missing and the handshake fails, while the other servers
/// work.
fn write_credential(
    request: &mut Request,
    out: &mut Vec<u8>,
    part: fn(&state::IssuedCertificate) -> &String,
) -> bool {
    let conf = request.server_conf::<AcmeServerConf>();
    let site = std::rc::Rc::clone(&request.site);
    let (Some(wanted), Some(state)) = (&conf.wanted, site.main_confs.get::<Conf>().state.get())
    else {
        return false;
    };
    let Some(issued) = state.issued(&wanted.certificate_id(site.server(request.server))) else {
        return false;
    };
    out.extend_from_slice(b"data:");
    out.extend_from_slice(part(&issued).as_bytes());
    true
}

/// The path that HTTP-01 requests (RFC 8555, section 8.3).
const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";

/// Answers HTTP-01 on every server: the authority connects by name to port 80, where the server
/// that needs the certificate may not be listening. It runs before anything could redirect or
/// refuse the request.
fn answer(request: &mut Request) -> HandlerStep<'_> {
    let Some(token) = request.uri.path.strip_prefix(WELL_KNOWN) else {
        return HandlerOutcome::Declined.into();
    };
    let site = std::rc::Rc::clone(&request.site);
    let Some(state) = site.main_confs.get::<Conf>().state.get() else {
        return HandlerOutcome::Declined.into();
    };
    // Not a token of ours: the location may have another ACME client's file.
    let Some(answer) = token
        .to_str()
        .ok()
        .and_then(|token| state.http_challenge_response(token))
    else {
        return HandlerOutcome::Declined.into();
    };
    request.out.status = 200;
    // RFC 8555, section 8.3.
    request.out.content_type = "application/octet-stream".into();
    request.out.content_length = Some(answer.len() as u64);
    request.out.body = ResponseBody::Bytes(Bytes::from(answer));
    HandlerOutcome::Respond.into()
}

/// The certificate that answers TLS-ALPN-01 for a name (RFC 8737).
fn tls_challenge_certificate(site: &FrozenHttp, name: &str) -> Option<Arc<TlsIdentity>> {
    site.main_confs
        .get::<Conf>()
        .state
        .get()?
        .tls_challenges(name)
}

rt::local! {
    /// The tasks of the current configuration, on the loop that runs them.
    static KEEPERS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts one task per issuer, with the certificates that the servers want from it.
fn start(engine: &HttpLoop) {
    // One loop does it for all; the state is shared.
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let conf = site.main_confs.get::<Conf>();
    // No issuer is configured.
    let Some(state) = conf.state.get() else {
        return drop(KEEPERS.take());
    };
    let mut orders: Vec<Vec<order::CertificateOrder>> =
        conf.issuers.iter().map(|_| Vec::new()).collect();
    for server in &site.servers {
        let Some(wanted) = &server.confs.get::<AcmeServerConf>().wanted else {
            continue;
        };
        let (what, names) = (wanted.certificate_id(server), wanted.names_for(server));
        // Logged rather than refused, so that the other servers start.
        if names.is_empty() {
            // Errors about a single answer were passed over already: the socket itself is broken, and to ask again
            // at once would spin.
            engine.log().log_plain(
                LogLevel::Error,
                format_args!(
                    "acme: a server with \"acme_certificate\" has no complete name; wildcards require the DNS challenge, \
                     which is not supported"
                ),
            );
            continue;
        }
        let by_issuer = conf.issuers.iter().zip(&mut orders);
        for (_, orders) in by_issuer.filter(|(issuer, _)| issuer.name == wanted.issuer.name) {
            // Servers with the same names share a certificate.
            if orders.iter().all(|known| known.id != what) {
                orders.push(order::CertificateOrder {
                    id: what.clone(),
                    names: names.clone(),
                    key: wanted.key,
                });
            }
        }
    }
    let known: Vec<&str> = orders.iter().flatten().map(|one| one.id.as_str()).collect();
    let accounts: Vec<String> = conf.issuers.iter().map(|one| one.account_name()).collect();
    // What the configuration no longer names is forgotten, so that reloads do not accumulate state.
    state.retain(&known, &accounts);
    let mut tasks = Vec::new();
    for (issuer, orders) in conf.issuers.iter().zip(orders) {
        let resolver = site.outer_confs.get::<http::core::ResolverConf>();
        let keeper = CertificateRenewer {
            issuer: Arc::clone(issuer),
            state: Arc::clone(state),
            resolver: Arc::clone(&resolver.resolver),
            resolver_timeout: resolver.timeout,
            log: engine.log(),
            orders,
        };
        tasks.push(rt::spawn_handle("acme", keeper.run()).abort_on_drop());
    }
    // The tasks of the previous configuration end here, possibly in the middle of an order. The new
    // ones continue from the files and the shared state.
    drop(KEEPERS.replace(tasks));
}

/// The name of an issuer: bytes, like every word of the configuration.
type IssuerName = BString;
