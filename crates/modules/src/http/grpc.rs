//! `grpc_pass`: passes requests to gRPC servers.
//!
//! ```nginx
//! location /helloworld.Greeter {
//!     grpc_pass grpc://127.0.0.1:50051;
//! }
//! ```
//!
//! gRPC is HTTP/2 with trailers, and both sides can send at any time. So content is passed on in
//! either direction as it arrives, unbuffered. The codec is [`crate::shared::http2`].

use bstr::{BStr, BString, ByteSlice};
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{Arity, BlockConfs, Directive, DirectiveTable, Expression, RepeatRule, Setter};
use http::http_site::ConfRef;
use http::module::{ContentHandler, HandlerOutcome, HandlerStep, HttpModule};
use http::upstream::{ExchangePlan, NoResponse, RequestContent, RequestLength};
use http::{Request, upstream};
use proto::KnownField;

use crate::shared::gateway::{GatewayPass, GatewaySchemes, connection_tag};
use crate::shared::http2::Http2Exchange;
use crate::shared::request_fields::{FieldDirectives, FieldPlan};
use crate::shared::streamed_request::{StreamProfile, StreamedRequest};
use crate::shared::upstream_rows::{PrefixedRows, ProtocolSettings};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "grpc",
    doc: "Passes requests to gRPC servers.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["grpc_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler,
        adds_slash: true,
        declines: false,
    }),
    group: |location| match &location.confs.get::<Conf>().pass {
        Some(GatewayPass::Group(group)) => Some(group.clone()),
        Some(GatewayPass::Variable(_)) | None => None,
    },
    nested,
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let plan = plan(request)?;
        http::explain::describe_direct(request, plan, notes)
    }),
    ..HttpModule::EMPTY
};

const DIRECTIVE_NAMES: FieldDirectives = FieldDirectives {
    set: "grpc_set_header",
    pass: "grpc_pass",
};

/// The rows common to all upstream protocols, except those about buffering, which gRPC cannot have.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "grpc_upstream",
    doc: "The directives that gRPC has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Names gRPC's settings for the shared rows.
enum GrpcProtocol {}

/// Response fields that are not passed on.
const HIDDEN: &[&str] = &[
    "Date",
    "Server",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

static UPSTREAM_ROWS: PrefixedRows<GrpcProtocol> = PrefixedRows::new("grpc_", HIDDEN)
    .without_reasons(&["updating"])
    .without(&[
        "buffering",
        "buffers",
        "busy_buffers_size",
        "force_ranges",
        "ignore_client_abort",
        "limit_rate",
        "max_temp_file_size",
        "pass_request_body",
        "pass_request_headers",
        "request_buffering",
        "send_lowat",
        "store",
        "store_access",
        "temp_file_write_size",
        "temp_path",
    ])
    .secure();

static SCHEMES: GatewaySchemes = GatewaySchemes {
    plain: "grpc://",
    secure: "grpcs://",
    prefix: "grpc_",
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "grpc_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.2",
        doc: "The gRPC server: `host:port`, `unix:/path` or the name of an `upstream`, optionally after `grpc://`, or \
              after `grpcs://` for TLS. May contain variables.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.uses_tls = SCHEMES.note_tls(line);
            let scheme = SCHEMES.for_tls(c.uses_tls).as_bytes();
            c.authority = authority(line.text(0), scheme);
            c.pass = Some(GatewayPass::from_line(line, scheme)?);
            Ok(())
        }),
    },
    Directive {
        name: "grpc_set_header",
        syntax: "field value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Sets a header of the request to the upstream server, replacing the client's. An empty value removes it. \
              A location with such lines of its own inherits none.",
        set: Setter::Custom(
            Arity::exactly(2),
            RepeatRule::Fresh(|c| c.set_header.clear()),
            |c, line| {
                let value = line.expression_if_inherited(1)?;
                c.set_header.push((line.arg(0).text.clone(), value));
                Ok(())
            },
        ),
    },
])
.finish_changed(|conf, _, level| {
    level.require_defined(conf.set_header.iter().map(|(_, value)| value));
    conf.fields = FieldPlan::new(DIRECTIVE_NAMES, &conf.set_header);
    Ok(())
});

#[derive(Clone, Default)]
struct Conf {
    pass: Option<GatewayPass>,
    /// Whether TLS is used; with variables in the address, decided per request.
    uses_tls: bool,
    /// The host in `grpc_pass`, with its port if it has one: the default `:authority`.
    authority: BString,
    set_header: Vec<(BString, Expression)>,
    /// The result of the `grpc_set_header` lines.
    fields: FieldPlan,
}

/// A nested location does not inherit `grpc_pass`.
fn nested(confs: &mut BlockConfs) {
    confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None);
}

/// The host and port of an address for `:authority`. A unix socket has neither; nginx says
/// `localhost`.
fn authority(address: &[u8], scheme: &[u8]) -> BString {
    let rest = match address.get(..scheme.len()) {
        Some(start) if start.eq_ignore_ascii_case(scheme) => &address[scheme.len()..],
        _ => address,
    };
    match rest.starts_with(b"unix:") {
        true => "localhost".into(),
        false => rest.into(),
    }
}

/// The content handler.
fn handler(request: &mut Request) -> HandlerStep<'_> {
    match plan(request) {
        Ok(plan) => upstream::exchange_step(request, plan),
        Err(outcome) => outcome.into(),
    }
}

/// How to perform the exchange.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    let conf = request.conf::<Conf>();
    let settings = ProtocolSettings::<GrpcProtocol>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(HandlerOutcome::Declined);
    };
    // Per request, since an address with variables has its scheme in the value.
    let secure = pass.secure_host(request, &SCHEMES, conf.uses_tls);
    let scheme = SCHEMES.for_tls(secure.is_some()).as_bytes();
    let target = pass
        .target(request, scheme)
        .map_err(HandlerOutcome::Status)?;
    // The default only; `grpc_set_header Host` replaces it.
    let authority = match pass {
        GatewayPass::Group(_) => conf.authority.clone(),
        GatewayPass::Variable(url) => authority(&request.value(url), scheme),
    };
    let asker = GrpcProfile {
        conf: request.conf::<Conf>(),
        authority,
        tls_host: secure,
    };
    let tag = connection_tag(request);
    Ok(ExchangePlan {
        settings,
        target,
        protocol: Box::new(Http2Exchange::new(asker)),
        // Client and server may take turns within one request, so nothing can wait for its end.
        content: RequestContent::Streamed,
        watch_client: true,
        tag,
    })
}

/// One request to a gRPC server.
struct GrpcProfile {
    conf: ConfRef<Conf>,
    authority: BString,
    /// The host to use TLS with.
    tls_host: Option<BString>,
}

impl StreamProfile for GrpcProfile {
    fn scheme(&self) -> &'static str {
        SCHEMES.for_tls(self.tls_host.is_some())
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.tls_host.as_deref().map(BStr::new)
    }

    fn fill_request(
        &mut self,
        request: &mut Request,
        _content: RequestLength,
        wanted: &mut StreamedRequest,
    ) -> Result<(), NoResponse> {
        // The scheme of the URI (RFC 9113, section 8.3.1), not that of the directive.
        wanted.scheme = match self.tls_host {
            Some(_) => "https",
            None => "http",
        };
        // The client's own spelling, unless the method was changed internally: gRPC allows only POST, but that is
        // for the server to say.
        wanted.method = match request.method == request.head.wire.method {
            true => request.head.wire.method_text().into(),
            false => request.method.name().into(),
        };
        write_target(request, &mut wanted.path);
        // Only what the client announced is announced to the server: a length makes no sense for a
        // stream of messages.
        let content = match request.body.announced_length() {
            Some(length) if request.head.known(KnownField::ContentLength).is_some() => {
                RequestLength::Length(length)
            }
            _ => RequestLength::None,
        };
        let mut lines = Vec::new();
        self.conf
            .fields
            .write(request, content, &self.authority, false, true, &mut lines)?;
        // The shared code writes HTTP/1 lines; HTTP/2 wants names and values apart.
        for line in lines.split_str(b"\r\n") {
            if let Some((name, value)) = line.split_once_str(b": ") {
                wanted.add(name, value);
            }
        }
        // `TE: trailers` is the one value that HTTP/2 allows (RFC 9113, section 8.2.2), and gRPC
        // servers insist on it.
        let te = request.head.known(KnownField::Te).unwrap_or_default();
        // The client's field is not passed on as it is: `TE` is about one connection only.
        let takes_trailers = te.to_ascii_lowercase().contains_str("trailers");
        if takes_trailers && !self.conf.fields.sets(KnownField::Te) {
            wanted.fields.push_known(KnownField::Te, b"trailers");
        }
        Ok(())
    }

    fn passes_trailers(&self) -> bool {
        true
    }
}

/// Appends the path and arguments: as they were sent, unless they have been rewritten.
fn write_target(request: &Request, out: &mut Vec<u8>) {
    if request.uri.original {
        return out.extend_from_slice(request.head.wire.target());
    }
    request.write_target(0, out);
}
