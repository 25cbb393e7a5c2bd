//! `uwsgi_pass`: passes requests to applications over the uwsgi protocol, for example to WSGI
//! applications in Python.
//!
//! ```nginx
//! location / {
//!     uwsgi_pass unix:/run/app.sock;
//!     include    uwsgi_params;
//! }
//! ```

use bstr::{BStr, BString};
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{Arity, Directive, DirectiveTable, RepeatRule, Setter};
use host::error_log::LogLevel;
use http::http_site::ConfRef;
use http::module::{ContentHandler, HandlerOutcome, HandlerStep};
use http::upstream::{ExchangePlan, NoResponse, RequestLength, RequestTraits, UpstreamSettings};
use http::{HttpModule, Request, cache};
use proto::uwsgi::UwsgiVars;

use crate::shared::gateway::{
    CgiHead, CgiParams, GatewayPass, GatewaySchemes, ValueEnding, response,
};
use crate::shared::upstream_rows::{PrefixedRows, ProtocolSettings};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "uwsgi",
    doc: "Passes requests to uwsgi servers.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["uwsgi_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: pass,
        adds_slash: true,
        declines: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let settings = ProtocolSettings::<UwsgiProtocol>::of(request);
        http::explain::describe_cached(request, &settings, &SOURCE, notes)
    }),
    ..HttpModule::EMPTY
};

/// The directives common to all upstream protocols.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "uwsgi_upstream",
    doc: "The directives that uwsgi has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Distinguishes the settings of uwsgi from those of other protocols.
enum UwsgiProtocol {}

static UPSTREAM_ROWS: PrefixedRows<UwsgiProtocol> = PrefixedRows::new(
    "uwsgi_",
    &[
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
)
.without(&["send_lowat", "cache_convert_head"])
.without_reasons(&["http_502", "http_504"])
.cached()
.secure();

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "uwsgi_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The uwsgi server: `host:port`, `unix:/path` or the name of an `upstream`, optionally after `uwsgi://`, \
              or after `suwsgi://` for TLS.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, |c, line| {
            // First: what is left of the address depends on the scheme in front of it.
            c.uses_tls = SCHEMES.note_tls(line);
            c.pass = Some(GatewayPass::from_line(line, SCHEMES.for_tls(c.uses_tls).as_bytes())?);
            Ok(())
        }),
    },
    Directive {
        name: "uwsgi_param",
        syntax: "name value [if_not_empty]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A parameter passed to the server. With `if_not_empty` it is passed only if its value is not empty. A \
              block with such lines of its own inherits none.",
        set: Setter::Custom(Arity::between(2, 3), RepeatRule::Fresh(|c| c.params.clear()), |c, line| c.params.add(line)),
    },
    Directive {
        name: "uwsgi_string",
        syntax: "string",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Bytes to send after the parameters.",
        set: Setter::Text(|c| &mut c.string),
    },
    Directive {
        name: "uwsgi_modifier1",
        syntax: "number",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The first modifier of uwsgi requests: the plugin of the server to use.",
        set: Setter::Number(|c| &mut c.modifier1, 0, 255),
    },
    Directive {
        name: "uwsgi_modifier2",
        syntax: "number",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The second modifier of uwsgi requests.",
        set: Setter::Number(|c| &mut c.modifier2, 0, 255),
    },
])
.finish_changed(|conf, _, level| conf.params.complete(level));

/// The uwsgi settings of a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<GatewayPass>,
    /// Whether `uwsgi_pass` has the scheme `suwsgi`: TLS to the server.
    uses_tls: bool,
    params: CgiParams,
    string: BString,
    modifier1: i64,
    modifier2: i64,
}

static SCHEMES: GatewaySchemes = GatewaySchemes {
    plain: "uwsgi://",
    secure: "suwsgi://",
    prefix: "uwsgi_",
};

static SOURCE: cache::CachedProtocol = cache::CachedProtocol {
    plan,
    // Parameters do not tell which one identifies the resource, so there is no default key:
    // `uwsgi_cache_key` has to be set.
    key: |_, _| Ok(()),
};

/// The content handler: from the cache or from the server.
fn pass(request: &mut Request) -> HandlerStep<'_> {
    let settings = ProtocolSettings::<UwsgiProtocol>::of(request);
    cache::serve_cached(request, settings, &SOURCE)
}

/// Chooses the server and the protocol of an exchange.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    let conf = request.conf::<Conf>();
    let settings = ProtocolSettings::<UwsgiProtocol>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(HandlerOutcome::Declined);
    };
    // Per request, since an address with variables has its scheme in the value.
    let secure = pass.secure_host(request, &SCHEMES, conf.uses_tls);
    let scheme = SCHEMES.for_tls(secure.is_some());
    let target = match pass.target(request, scheme.as_bytes()) {
        Ok(target) => target,
        Err(status) => return Err(HandlerOutcome::Status(status)),
    };
    let head = UwsgiHead {
        conf: request.conf::<Conf>(),
        tls_host: secure,
    };
    Ok(response::plan(request, settings, target, head))
}

/// Writes the request head, which is all that differs from other gateway protocols.
struct UwsgiHead {
    conf: ConfRef<Conf>,
    /// The host to verify, if TLS is used.
    tls_host: Option<BString>,
}

impl CgiHead for UwsgiHead {
    fn read_params(head: &[u8]) -> Vec<(&[u8], &[u8])> {
        proto::uwsgi::read_params(head)
    }

    fn scheme(&self) -> &'static str {
        SCHEMES.for_tls(self.tls_host.is_some())
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.tls_host.as_deref().map(BStr::new)
    }

    fn write(
        &mut self,
        request: &mut Request,
        settings: &UpstreamSettings,
        _: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<RequestTraits, NoResponse> {
        let mut vars = UwsgiVars::new();
        let fields = settings.pass_request_headers;
        let traits =
            self.conf
                .params
                .write(request, fields, ValueEnding::Counted, |name, value| {
                    vars.push(name, value)
                })?;
        // As it is, without a length in front.
        vars.push_raw(&self.conf.string);
        // The directives only accept values that fit.
        let (modifier1, modifier2) = (self.conf.modifier1 as u8, self.conf.modifier2 as u8);
        // The size field has 16 bits, so a large head cannot be sent.
        vars.write_head(modifier1, modifier2, out).map_err(|size| {
            request.log(
                LogLevel::Alert,
                format_args!("uwsgi request is too big: {size}"),
            );
            NoResponse::new(500)
        })?;
        Ok(traits)
    }
}
