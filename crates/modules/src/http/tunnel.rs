//! `tunnel_pass`: CONNECT, which a client sends to a forward proxy to get a connection (RFC 9110,
//! section 9.3.6).
//!
//! ```nginx
//! server {
//!     listen               3128;
//!     resolver             127.0.0.1;
//!     auth_basic           "proxy";
//!     auth_basic_user_file htpasswd;
//!     tunnel_pass;
//! }
//! ```
//!
//! A server with this directive accepts CONNECT; others refuse it, and it is refused in HTTP/1.0.
//! Once the connection is established the client gets a 200, and then bytes are passed in both
//! directions until both sides have closed. Peers are selected and retried as with every other
//! protocol. `if`, `map` and access rules must restrict the destinations: without them the server
//! is an open proxy.
//!
//! When one side closes, the other can go on sending; nginx closes both. A tunnel never uses an
//! idle connection of its group, since it would end as one that cannot be kept.

use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION_IF, SERVER_LOCATION};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule, Setter,
};
use http::module::{ContentHandler, HandlerOutcome, HandlerStep};
use http::upstream::RetryReasons;
use http::upstream::{
    ChunkPiece, ContentLength, ExchangePlan, HeadProgress, NoResponse, ProtocolFault,
    RequestContent, RequestLength, UpstreamProtocol, UpstreamSettings,
};
use http::{HttpModule, Request};
use proto::message::{Method, ResponseHead};

use crate::shared::gateway::{GatewayPass, connection_tag};
use crate::shared::upstream_rows::{
    PrefixedRows, ProtocolSettings, UnbufferedRows, next_upstream_words,
};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "tunnel",
    doc: "Handles CONNECT requests.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["tunnel_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: tunnel,
        adds_slash: false,
        declines: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let plan = plan(request)?;
        http::explain::describe_direct(request, plan, notes)
    }),
    ..HttpModule::EMPTY
};

/// The directives common to all upstream protocols, as far as they make sense here.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "tunnel_upstream",
    doc: "The directives that tunnels have in common with upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Distinguishes the settings of tunnels from those of other protocols.
enum TunnelProtocol {}

static UPSTREAM_ROWS: UnbufferedRows<TunnelProtocol> = UnbufferedRows::new(
    PrefixedRows::new("tunnel_", &[]).without(&[
        "buffering",
        "buffers",
        "busy_buffers_size",
        "force_ranges",
        "hide_header",
        "ignore_client_abort",
        "ignore_headers",
        "intercept_errors",
        "limit_rate",
        "max_temp_file_size",
        "next_upstream",
        "pass_header",
        "pass_request_body",
        "pass_request_headers",
        "request_buffering",
        "store",
        "store_access",
        "temp_file_write_size",
        "temp_path",
    ]),
    &NEXT_UPSTREAM,
);

/// `tunnel_next_upstream` has fewer words than others: before the tunnel is established, a peer
/// sends nothing that could be judged.
static NEXT_UPSTREAM: DirectiveTable<UpstreamSettings> = DirectiveTable::new(&[Directive {
    name: "tunnel_next_upstream",
    syntax: "error | timeout | off …",
    default: Some("error timeout"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "When to try the next server.",
    set: Setter::Custom(Arity::at_least(1), RepeatRule::Once, next_upstream),
}]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "tunnel_pass",
    syntax: "[address]",
    default: None,
    contexts: SERVER_LOCATION.or(LOCATION_IF),
    since: "0.1",
    doc: "Responds to CONNECT by opening a tunnel to this address, which may contain variables; without one, to the \
          host and port that the client requests, `$host:$request_port`.",
    set: Setter::Custom(Arity::between(0, 1), RepeatRule::Once, tunnel_pass),
}]);

/// The address if the directive has none: what the client asks for.
const CLIENT_TARGET: &[u8] = b"$host:$request_port";

/// The tunnel settings of a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<GatewayPass>,
}

/// Reads `tunnel_pass`.
fn tunnel_pass(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.pass = Some(match line.args().is_empty() {
        true => GatewayPass::Variable(Expression::parse(
            CLIENT_TARGET,
            line.node.span,
            line.level.names,
        )?),
        false => GatewayPass::from_line(line, b"")?,
    });
    // Lets the parser of this server accept the method, which it refuses otherwise.
    http::configure::take_connect(line);
    Ok(())
}

/// Reads `tunnel_next_upstream`.
fn next_upstream(
    settings: &mut UpstreamSettings,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    settings.next_upstream = next_upstream_words(
        line,
        &[
            ("error", RetryReasons::ERROR),
            ("timeout", RetryReasons::TIMEOUT),
            ("off", RetryReasons::OFF),
        ],
    )?;
    Ok(())
}

/// The content handler.
fn tunnel(request: &mut Request) -> HandlerStep<'_> {
    match plan(request) {
        Ok(plan) => http::upstream::exchange_step(request, plan),
        Err(outcome) => outcome.into(),
    }
}

/// How to perform the exchange.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    if request.method != Method::Connect {
        return Err(HandlerOutcome::Status(405));
    }
    let conf = request.conf::<Conf>();
    let Some(pass) = &conf.pass else {
        return Err(HandlerOutcome::Declined);
    };
    let target = pass.target(request, b"").map_err(HandlerOutcome::Status)?;
    Ok(ExchangePlan {
        settings: ProtocolSettings::<TunnelProtocol>::of(request),
        target,
        protocol: Box::new(TunnelCodec),
        // What follows the head belongs to the tunnel; CONNECT has no content.
        content: RequestContent::Dropped,
        watch_client: true,
        tag: connection_tag(request),
    })
}

/// The protocol of a tunnel: it sends no head, and every byte of the peer is content.
struct TunnelCodec;

impl UpstreamProtocol for TunnelCodec {
    fn scheme(&self) -> &'static str {
        ""
    }

    fn write_head(
        &mut self,
        _: &mut Request,
        _: RequestLength,
        _: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        Ok(())
    }

    fn begin_response(&mut self) {}

    fn read_head(
        &mut self,
        _: &Request,
        _: &[u8],
        _: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        // The response is complete before its first byte: the connection alone makes it a 200.
        Ok(HeadProgress::Complete(0))
    }

    fn content_length(&self) -> ContentLength {
        ContentLength::Unknown
    }

    fn read_content(&mut self, _: &Request, input: &[u8]) -> Result<ChunkPiece, ProtocolFault> {
        Ok(if input.is_empty() {
            ChunkPiece::More
        } else {
            ChunkPiece::Data(0..input.len())
        })
    }

    // One side may close while the other still sends; nginx would close both.
    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        Ok(())
    }

    // What state the peer is in after a tunnel is unknown.
    fn keeps_alive(&self) -> bool {
        false
    }

    fn is_tunnel(&self) -> bool {
        true
    }
}
