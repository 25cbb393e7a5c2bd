//! `scgi_pass`: passes requests to applications over SCGI.
//!
//! ```nginx
//! location / {
//!     scgi_pass localhost:9000;
//!     include   scgi_params;
//! }
//! ```

use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{Arity, Directive, DirectiveTable, RepeatRule, Setter};
use http::http_site::ConfRef;
use http::module::{ContentHandler, HandlerOutcome, HandlerStep};
use http::upstream::{ExchangePlan, NoResponse, RequestLength, RequestTraits, UpstreamSettings};
use http::{HttpModule, Request, cache};
use proto::scgi;

use crate::shared::gateway::{CgiHead, CgiParams, GatewayPass, ValueEnding, response};
use crate::shared::upstream_rows::{PrefixedRows, ProtocolSettings};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "scgi",
    doc: "Passes requests to SCGI servers.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["scgi_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: pass,
        adds_slash: true,
        declines: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let settings = ProtocolSettings::<ScgiProtocol>::of(request);
        http::explain::describe_cached(request, &settings, &SOURCE, notes)
    }),
    ..HttpModule::EMPTY
};

/// The directives common to all upstream protocols.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "scgi_upstream",
    doc: "The directives that SCGI has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Distinguishes the settings of SCGI from those of other protocols.
enum ScgiProtocol {}

static UPSTREAM_ROWS: PrefixedRows<ScgiProtocol> = PrefixedRows::new(
    "scgi_",
    &[
        "Status",
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
)
.without(&["send_lowat"])
.without_reasons(&["http_502", "http_504"])
.cached()
.without(&["cache_convert_head"]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "scgi_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The SCGI server: `host:port`, `unix:/path` or the name of an `upstream`.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, |c, line| {
            c.pass = Some(GatewayPass::from_line(line, b"")?);
            Ok(())
        }),
    },
    Directive {
        name: "scgi_param",
        syntax: "name value [if_not_empty]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A parameter passed to the server. With `if_not_empty` it is passed only if its value is not empty. A \
              block with such lines of its own inherits none.",
        set: Setter::Custom(Arity::between(2, 3), RepeatRule::Fresh(|c| c.params.clear()), |c, line| c.params.add(line)),
    },
])
.finish_changed(|conf, _, level| conf.params.complete(level));

/// The SCGI settings of a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<GatewayPass>,
    params: CgiParams,
}

static SOURCE: cache::CachedProtocol = cache::CachedProtocol {
    plan,
    // Parameters do not tell which one identifies the resource, so there is no default key:
    // `scgi_cache_key` has to be set.
    key: |_, _| Ok(()),
};

/// The content handler: from the cache or from the server.
fn pass(request: &mut Request) -> HandlerStep<'_> {
    let settings = ProtocolSettings::<ScgiProtocol>::of(request);
    cache::serve_cached(request, settings, &SOURCE)
}

/// Chooses the server and the protocol of an exchange.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    let conf = request.conf::<Conf>();
    let settings = ProtocolSettings::<ScgiProtocol>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(HandlerOutcome::Declined);
    };
    let target = match pass.target(request, b"") {
        Ok(target) => target,
        Err(status) => return Err(HandlerOutcome::Status(status)),
    };
    let head = ScgiHead {
        conf: request.conf::<Conf>(),
    };
    Ok(response::plan(request, settings, target, head))
}

/// Writes the request head, which is all that differs from other gateway protocols.
struct ScgiHead {
    conf: ConfRef<Conf>,
}

impl CgiHead for ScgiHead {
    fn read_params(head: &[u8]) -> Vec<(&[u8], &[u8])> {
        proto::scgi::read_params(head)
    }

    fn scheme(&self) -> &'static str {
        "scgi://"
    }

    fn write(
        &mut self,
        request: &mut Request,
        settings: &UpstreamSettings,
        content: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<RequestTraits, NoResponse> {
        let mut params = Vec::new();
        let fields = settings.pass_request_headers;
        let ending = ValueEnding::Zero("scgi_param");
        let traits = self
            .conf
            .params
            .write(request, fields, ending, |name, value| {
                scgi::push_param(name, value, &mut params)
            })?;
        let length = match content {
            RequestLength::Length(length) => length,
            RequestLength::None | RequestLength::Unknown => 0,
        };
        scgi::write_head(length, &params, out);
        Ok(traits)
    }
}
