//! `proxy_pass`: passes requests to HTTP servers.
//!
//! ```text
//! location /api/ {
//!     proxy_pass http://backend/v1/;
//!     proxy_set_header Host $host;
//! }
//! ```
//!
//! Here are the codecs and what only HTTP upstreams have. Connecting, trying the next server,
//! buffering and the rest is done by the exchange ([`http::upstream`]), configured by the rows of
//! [`crate::shared::upstream_rows`].
//!
//! Stricter than nginx where a lax reading would let one response hide in another: what does not
//! begin as an HTTP/1 response is a 502, a 101 must have been asked for, interim responses are not
//! taken for final ones, and a connection with a rest after a response is not used again.

mod cookie;
mod http1;
mod rules;
mod streamed;
mod url;

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION_IF_EXCEPT};
use conf::{
    Arity, BlockConfs, BlockContext, Diagnostic, Directive, DirectiveTable, Expression, RepeatRule,
    Setter, Variable,
};
use http::module::{ContentHandler, HandlerOutcome, HandlerStep, HttpModule};
use http::upstream::{ExchangePlan, RequestContent, UpstreamProtocol};
use http::{Request, cache};

use crate::shared::http2::Http2Exchange;
use crate::shared::http3::Http3Exchange;
use crate::shared::request_fields::{FieldDirectives, FieldPlan};
use crate::shared::upstream_rows::{PrefixedRows, ProtocolSettings};
use rules::{CookieFlags, RedirectRules, ReplaceRules};
use url::{ProxyDestination, ProxyPass};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "proxy",
    doc: "Passes requests to HTTP servers.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["proxy_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler,
        adds_slash: true,
        declines: false,
    }),
    group: |location| match &location.confs.get::<Conf>().pass {
        // A group behind a variable is only known per request.
        Some(ProxyPass::Constant { group, .. }) => Some(group.clone()),
        _ => None,
    },
    secure: |location| match &location.confs.get::<Conf>().pass {
        Some(ProxyPass::Constant { address, .. }) => {
            let settings = &location
                .confs
                .get::<ProtocolSettings<ProxyProtocol>>()
                .settings;
            let host = address.tls_host.clone()?;
            Some((settings.secure.clone(), host))
        }
        _ => None,
    },
    variables: &[
        replaceable(
            Variable::new("proxy_host", host, "The host and port in `proxy_pass`.").volatile(),
        ),
        replaceable(
            Variable::new(
                "proxy_port",
                port,
                "The port in `proxy_pass`, or the default port of its scheme.",
            )
            .volatile(),
        ),
        Variable::new(
            "proxy_add_x_forwarded_for",
            add_x_forwarded_for,
            "The client's `X-Forwarded-For` header with the client address appended.",
        ),
    ],
    nested,
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let settings = ProtocolSettings::<ProxyProtocol>::of(request);
        http::explain::describe_cached(request, &settings, &SOURCE, notes)
    }),
    ..HttpModule::EMPTY
};

const DIRECTIVE_NAMES: FieldDirectives = FieldDirectives {
    set: "proxy_set_header",
    pass: "proxy_pass",
};

/// The rows common to all upstream protocols, with HTTP's prefix.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "proxy_upstream",
    doc: "The directives that `proxy_pass` has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Names HTTP's settings for the shared rows.
pub(crate) enum ProxyProtocol {}

/// Response fields that are not passed on by default; nginx's list. `Date` and `Server` are written
/// anew, the others are instructions for this server.
const HIDDEN: &[&str] = &[
    "Date",
    "Server",
    "X-Pad",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

static UPSTREAM_ROWS: PrefixedRows<ProxyProtocol> =
    PrefixedRows::new("proxy_", HIDDEN).cached().secure();

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "proxy_pass",
        syntax: "URL",
        default: None,
        contexts: LOCATION_IF_EXCEPT,
        since: "0.1",
        doc: "Passes requests to the server or `upstream` in a URL. If the URL has a path, it replaces the part of the \
              request path that the location matched; otherwise the original path is passed unchanged. If the URL \
              contains variables, its path is passed as it is.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, url::proxy_pass),
    },
    Directive {
        // 1.1, so that connections can be kept open.
        name: "proxy_http_version",
        syntax: "1.0 | 1.1 | 2 | 3",
        default: Some("1.1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The protocol version for requests to upstream servers. `2` is HTTP/2 with prior knowledge or, over TLS, \
              by ALPN; each connection carries one request at a time. `3` is HTTP/3, over QUIC, and needs an `https://` URL; \
              there is no fallback to TCP.",
        set: Setter::Word(&["1.0", "1.1", "2", "3"], |c, i| {
            c.http_1_0 = i == 0;
            c.http_2 = i == 2;
            c.http_3 = i == 3;
        }),
    },
    Directive {
        // Not part of the default cache key.
        name: "proxy_method",
        syntax: "method",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The method of the upstream request, instead of the client's.",
        set: Setter::OptionalValue(|c| &mut c.method),
    },
    Directive {
        name: "proxy_set_header",
        syntax: "field value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Sets a header of the request to the upstream server, replacing the client's. An empty value removes it. \
              A location with such lines of its own inherits none.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Fresh(|c| c.set_header.clear()), |c, line| {
            let value = line.expression_if_inherited(1)?;
            c.set_header.push((line.arg(0).text.clone(), value));
            Ok(())
        }),
    },
    Directive {
        // Sent with every try, so it does not keep a request from going to the next server.
        name: "proxy_set_body",
        syntax: "value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The body of the upstream request, instead of the client's.",
        set: Setter::OptionalValue(|c| &mut c.set_body),
    },
    Directive {
        name: "proxy_redirect",
        syntax: "default | off | redirect replacement",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Rewrites the beginning, or the match of a regular expression (`~`, `~*`), of `Location` and `Refresh` \
              headers. The default replaces the URL of `proxy_pass` with the path of the location.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Fresh(|c| c.redirects = RedirectRules::Default), rules::proxy_redirect),
    },
    Directive {
        name: "proxy_cookie_domain",
        syntax: "off | domain replacement",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Rewrites the domain of cookies set by upstream servers.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Fresh(|c| c.cookie_domains.clear()), rules::proxy_cookie_domain),
    },
    Directive {
        name: "proxy_cookie_path",
        syntax: "off | path replacement",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Rewrites the beginning of the path of cookies set by upstream servers.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Fresh(|c| c.cookie_paths.clear()), rules::proxy_cookie_path),
    },
    Directive {
        name: "proxy_cookie_flags",
        syntax: "off | cookie [flag …]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Sets or removes flags of cookies set by upstream servers: `secure`, `httponly`, `samesite=…` \
              (`nosecure`, …).",
        set: Setter::Custom(Arity::between(1, 4), RepeatRule::Fresh(|c| c.cookie_flags.clear()), rules::proxy_cookie_flags),
    },
    Directive {
        name: "proxy_headers_hash_max_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted for compatibility.",
        set: Setter::Ignored(Arity::ONE, "There is no such table in Weir."),
    },
    Directive {
        name: "proxy_headers_hash_bucket_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted for compatibility.",
        set: Setter::Ignored(Arity::ONE, "There is no such table in Weir."),
    },
    Directive {
        // Off as in nginx: most clients ignore trailers.
        name: "proxy_pass_trailers",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to pass on the trailers of upstream responses.",
        set: Setter::Flag(|c| &mut c.pass_trailers),
    },
])
.finish_changed(finish);

#[derive(Clone, Default)]
pub(crate) struct Conf {
    pass: Option<ProxyPass>,
    http_1_0: bool,
    http_2: bool,
    http_3: bool,
    method: Option<Expression>,
    set_header: Vec<(BString, Expression)>,
    set_body: Option<Expression>,
    redirects: RedirectRules,
    cookie_domains: ReplaceRules,
    cookie_paths: ReplaceRules,
    cookie_flags: Vec<CookieFlags>,
    pass_trailers: bool,
    /// The result of the `proxy_set_header` lines.
    fields: FieldPlan,
}

/// A nested location does not inherit `proxy_pass`.
fn nested(confs: &mut BlockConfs) {
    confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None);
}

/// Prepares the fields when the block is complete.
fn finish(
    conf: &mut Conf,
    _parent: Option<&Conf>,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    // Variables that only these values use have to exist in the server.
    level.require_defined(conf.set_header.iter().map(|(_, value)| value));
    conf.fields = FieldPlan::new(DIRECTIVE_NAMES, &conf.set_header);
    // A URL with variables is judged with each request.
    if conf.http_3
        && let Some(ProxyPass::Constant { address, url, .. }) = &conf.pass
        && address.tls_host.is_none()
    {
        return Err(Diagnostic::error(
            format!(
                "\"proxy_http_version 3\" needs an \"https://\" URL, and \"proxy_pass\" has \"{url}\""
            ),
            None,
        ));
    }
    Ok(())
}

static SOURCE: cache::CachedProtocol = cache::CachedProtocol { plan, key };

/// The content handler. With a cache, most requests never need a plan.
fn handler(request: &mut Request) -> HandlerStep<'_> {
    let settings = ProtocolSettings::<ProxyProtocol>::of(request);
    cache::serve_cached(request, settings, &SOURCE)
}

/// How to perform an exchange for this request.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    let conf = request.conf::<Conf>();
    // Found once: `ConfRef` searches at each access.
    let directives: &Conf = &conf;
    let settings = ProtocolSettings::<ProxyProtocol>::of(request);
    let Some(ProxyDestination { address, target }) = url::destination(request, directives) else {
        // The reason has been logged.
        return Err(HandlerOutcome::Status(500));
    };
    // The client's body is not sent, so it need not be read first.
    let content = if directives.set_body.is_some() || !settings.pass_request_body {
        RequestContent::Dropped
    // HTTP/1.0 has no chunks, so it must know the length in advance.
    } else if !settings.request_buffering
        && (request.body.announced_length().is_some() || !directives.http_1_0)
    {
        RequestContent::Streamed
    } else {
        RequestContent::Buffered
    };
    // Idle connections of another location can have other TLS settings.
    // The generation is included, because a reload may give the same number to another location.
    let tag = request.location.tag(request.site.generation);
    if address.is_variable {
        // For `$proxy_host` and `$proxy_port`.
        request.set_state(Arc::clone(&address));
    }
    let protocol: Box<dyn UpstreamProtocol> = match (directives.http_2, directives.http_3) {
        // 1.0 and 1.1 differ in the head only, which the codec writes.
        (false, false) => Box::new(http1::Http1Exchange::new(conf, settings.clone(), address)),
        (is_2, _) => {
            let profile = streamed::ProxyStreamProfile::new(conf, settings.clone(), address);
            match is_2 {
                true => Box::new(Http2Exchange::new(profile)),
                false => Box::new(Http3Exchange::new(profile)),
            }
        }
    };
    Ok(ExchangePlan {
        settings,
        target,
        protocol,
        content,
        // Where the response is for others too, or `proxy_ignore_client_abort` is on, the exchange decides otherwise.
        watch_client: true,
        tag,
    })
}

/// The default cache key: the URL that is requested from the server.
fn key(request: &mut Request, out: &mut Vec<u8>) -> Result<(), HandlerOutcome> {
    let conf = request.conf::<Conf>();
    let Some(ProxyDestination { address, .. }) = url::destination(request, &conf) else {
        return Err(HandlerOutcome::Status(500));
    };
    out.extend_from_slice(address.scheme_prefix().as_bytes());
    out.extend_from_slice(&address.host_header);
    // As it would be sent, so that two locations with the same server share what is stored.
    url::write_target(request, &conf, &address, out);
    Ok(())
}

/// The address: the evaluated one, or the one in the configuration.
fn address(request: &mut Request) -> Option<Arc<url::ProxyAddress>> {
    if let Some(address) = request.state::<Arc<url::ProxyAddress>>() {
        return Some(Arc::clone(address));
    }
    match &request.conf::<Conf>().pass {
        Some(ProxyPass::Constant { address, .. }) => Some(Arc::clone(address)),
        Some(ProxyPass::Variable(_)) | None => None,
    }
}

/// The address, unless the request was answered without the server, for example refused: then the
/// variables are empty, as in nginx.
fn address_in_use(request: &mut Request) -> Option<Arc<url::ProxyAddress>> {
    // A status without a try: the response was made here.
    let is_answered = request.out.status != 0 && request.upstream.get().is_none();
    match is_answered {
        true => None,
        false => address(request),
    }
}

/// `$proxy_host`.
fn host(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(address) = address_in_use(request) else {
        return false;
    };
    out.extend_from_slice(&address.host_header);
    true
}

/// `$proxy_port`.
fn port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(address) = address_in_use(request) else {
        return false;
    };
    out.extend_from_slice(&address.port);
    true
}

/// Makes a variable settable. nginx allows that for these, and the value set then applies in
/// `proxy_pass` too.
const fn replaceable(mut variable: Variable<Request>) -> Variable<Request> {
    variable.changeable = true;
    variable
}

/// `$proxy_add_x_forwarded_for`.
fn add_x_forwarded_for(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let head = std::rc::Rc::clone(&request.head);
    for value in head.wire.fields.all_known(proto::KnownField::XForwardedFor) {
        out.extend_from_slice(value);
        // RFC 9110, section 5.3: several fields of one name are one list.
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(request.remote.text.as_bytes());
    true
}
