//! `memcached_pass`: serves responses that an application has stored in memcached.
//!
//! ```nginx
//! location / {
//!     set            $memcached_key "$uri?$args";
//!     memcached_pass 127.0.0.1:11211;
//!     error_page     404 502 504 = @fallback;
//! }
//! ```
//!
//! A value has no header fields, so its type follows from the request's path, and a missing key is
//! a 404 that `error_page` can send to the application.

use bstr::{BString, ByteSlice};
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule, Setter,
};
use host::error_log::LogLevel as Severity;
use http::http_site::ConfRef;
use http::module::{ContentHandler, HandlerOutcome, HandlerStep};
use http::upstream::RetryReasons;
use http::upstream::{
    ChunkPiece, ContentLength, ExchangePlan, HeadProgress, NoResponse, ProtocolFault,
    RequestContent, RequestLength, UpstreamProtocol, UpstreamSettings,
};
use http::{HttpModule, Request};
use proto::fields::Fields;
use proto::memcached::{self, MemcachedHead, TRAILER};
use proto::message::{Method, ResponseHead};

use crate::shared::gateway::{GatewayPass, connection_tag};
use crate::shared::upstream_rows::{
    PrefixedRows, ProtocolSettings, UnbufferedRows, next_upstream_words,
};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "memcached",
    doc: "Serves responses from memcached.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["memcached_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: pass,
        adds_slash: true,
        declines: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let plan = plan(request)?;
        http::explain::describe_direct(request, plan, notes)
    }),
    ..HttpModule::EMPTY
};

/// The rows common to all upstream protocols, as far as they make sense here: a value has no header
/// fields, and requests have no bodies.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "memcached_upstream",
    doc: "The directives that memcached has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Names memcached's settings for the shared rows.
enum MemcachedProtocol {}

static UPSTREAM_ROWS: UnbufferedRows<MemcachedProtocol> = UnbufferedRows::new(
    PrefixedRows::new("memcached_", &[]).without(&[
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
        "send_lowat",
        "socket_rcvbuf",
        "socket_sndbuf",
        "store",
        "store_access",
        "temp_file_write_size",
        "temp_path",
    ]),
    &NEXT_UPSTREAM,
);

/// `memcached_next_upstream` has its own words.
static NEXT_UPSTREAM: DirectiveTable<UpstreamSettings> = DirectiveTable::new(&[Directive {
    name: "memcached_next_upstream",
    syntax: "error | timeout | invalid_response | not_found | off …",
    default: Some("error timeout"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "When to try the next server.",
    set: Setter::Custom(Arity::at_least(1), RepeatRule::Once, next_upstream),
}]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "memcached_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The memcached server in which to look up the key `$memcached_key`, which must be `set`.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, memcached_pass),
    },
    Directive {
        // Which flag means compressed is a convention of the client library that stored the value.
        name: "memcached_gzip_flag",
        syntax: "flag",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The bit in the flags of a value that marks it as compressed with gzip.",
        set: Setter::Number(|c| &mut c.gzip_flag, 0, u32::MAX as i64),
    },
]);

/// The settings of a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<GatewayPass>,
    key: Expression,
    gzip_flag: i64,
}

/// Reads `memcached_pass`.
fn memcached_pass(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let pass = GatewayPass::from_line(line, b"")?;
    // As in nginx.
    if let GatewayPass::Variable(_) = pass {
        return Err(line.error_at(
            0,
            "invalid host in upstream: variables are not supported here",
        ));
    }
    conf.pass = Some(pass);
    // No module defines this variable; configurations do, with `set`.
    conf.key = Expression::parse(b"$memcached_key", line.node.span, line.level.names)?;
    Ok(())
}

/// Reads `memcached_next_upstream`.
fn next_upstream(
    settings: &mut UpstreamSettings,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    settings.next_upstream = next_upstream_words(
        line,
        &[
            ("error", RetryReasons::ERROR),
            ("timeout", RetryReasons::TIMEOUT),
            ("invalid_response", RetryReasons::INVALID_HEADER),
            ("not_found", RetryReasons::HTTP_404),
            ("off", RetryReasons::OFF),
        ],
    )?;
    Ok(())
}

/// The content handler.
fn pass(request: &mut Request) -> HandlerStep<'_> {
    let plan = match plan(request) {
        Ok(plan) => plan,
        Err(outcome) => return outcome.into(),
    };
    HandlerStep::later(async move {
        match http::upstream::exchange_and_respond(request, plan).await {
            // A miss has no content, so it is treated like a missing file: `error_page` can send
            // the request to the application.
            HandlerOutcome::Respond if request.out.status == 404 => HandlerOutcome::Status(404),
            HandlerOutcome::Respond => {
                request.out.content_type = http::content_type::content_type(request);
                // The stored value is the content itself, so a range of it makes sense.
                request.out.transforms.ranges = true;
                request.out.transforms.single_range = true;
                HandlerOutcome::Respond
            }
            other => other,
        }
    })
}

/// How to perform the exchange.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    // Weir only reads from memcached.
    if !matches!(request.method, Method::Get | Method::Head) {
        return Err(HandlerOutcome::Status(405));
    }
    let conf = request.conf::<Conf>();
    let settings = ProtocolSettings::<MemcachedProtocol>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(HandlerOutcome::Declined);
    };
    let target = pass.target(request, b"").map_err(HandlerOutcome::Status)?;
    Ok(ExchangePlan {
        settings,
        target,
        protocol: Box::new(MemcachedCodec::new(request.conf::<Conf>())),
        // A `get` has no body.
        content: RequestContent::Dropped,
        watch_client: true,
        tag: connection_tag(request),
    })
}

/// One request and its response.
struct MemcachedCodec {
    conf: ConfRef<Conf>,
    /// The key as sent, escaped.
    key: Vec<u8>,
    /// The length that the header announced.
    content: ContentLength,
    /// Bytes of the value still expected.
    value_left: u64,
    /// Bytes of [`TRAILER`] still expected.
    trailer_left: usize,
}

impl MemcachedCodec {
    fn new(conf: ConfRef<Conf>) -> MemcachedCodec {
        MemcachedCodec {
            conf,
            key: Vec::new(),
            content: ContentLength::Unknown,
            value_left: 0,
            trailer_left: 0,
        }
    }

    /// Reads what follows the value. An invalid trailer costs the connection but not the response,
    /// of which the client has everything.
    fn read_trailer(&mut self, request: &Request, input: &[u8]) -> ChunkPiece {
        let wanted = &TRAILER[TRAILER.len() - self.trailer_left..];
        let length = wanted.len().min(input.len());
        if input[..length] != wanted[..length] {
            request.error(format_args!(
                "memcached sent invalid trailer while reading upstream"
            ));
            return ChunkPiece::End(0);
        }
        self.trailer_left -= length;
        if self.trailer_left == 0 {
            ChunkPiece::End(length)
        } else {
            ChunkPiece::More
        }
    }
}

impl UpstreamProtocol for MemcachedCodec {
    fn scheme(&self) -> &'static str {
        "memcached://"
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        _: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        let conf = request.conf::<Conf>();
        let key: BString = request.value(&conf.key);
        // An empty key would be answered with an error line of memcached, which says nothing about the cause.
        if key.is_empty() {
            request.error(format_args!("the \"$memcached_key\" variable is not set"));
            return Err(NoResponse::new(500));
        }
        // A space or a line end in the key would end the command: a client could smuggle in another one by the URL.
        self.key = memcached::escape_key(&key);
        memcached::write_get(&self.key, out);
        Ok(())
    }

    fn write_content_end(&mut self, _: &Fields, _: &mut Vec<u8>) {}

    fn begin_response(&mut self) {
        self.value_left = 0;
        self.trailer_left = 0;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        match memcached::read_head(input, &self.key).map_err(ProtocolFault::new)? {
            MemcachedHead::Partial => Ok(HeadProgress::Partial),
            // The miss is final for this server; `memcached_next_upstream not_found` may try
            // another.
            MemcachedHead::Missing(used) => {
                let key = self.key.as_bstr();
                request.log(
                    Severity::Info,
                    format_args!("key: \"{key}\" was not found by memcached"),
                );
                head.status = 404;
                self.content = ContentLength::Known(0);
                Ok(HeadProgress::Complete(used))
            }
            MemcachedHead::Value {
                used,
                flags,
                length,
            } => {
                // Clients store compressed values with a flag of their choice.
                if self.conf.gzip_flag != 0 {
                    // Without flags it is unknown whether the value is compressed: to guess would garble it for the
                    // client.
                    let Some(flags) = flags else {
                        let line = input[..used].trim_end();
                        return Err(ProtocolFault::new(memcached::invalid(
                            "flags",
                            line,
                            Some(&self.key),
                        )));
                    };
                    if i64::from(flags) & self.conf.gzip_flag != 0 {
                        head.fields.push(b"Content-Encoding", b"gzip");
                    }
                }
                head.status = 200;
                self.content = ContentLength::Known(length);
                self.value_left = length;
                self.trailer_left = TRAILER.len();
                Ok(HeadProgress::Complete(used))
            }
        }
    }

    fn content_length(&self) -> ContentLength {
        self.content
    }

    fn read_content(
        &mut self,
        request: &Request,
        input: &[u8],
    ) -> Result<ChunkPiece, ProtocolFault> {
        if self.value_left == 0 {
            return Ok(if self.trailer_left == 0 {
                ChunkPiece::End(0)
            } else {
                self.read_trailer(request, input)
            });
        }
        // More has to arrive; the end of the connection is reported separately.
        if input.is_empty() {
            return Ok(ChunkPiece::More);
        }
        // The trailer can be in the same input; it is left for the next call.
        let length = usize::try_from(self.value_left)
            .unwrap_or(usize::MAX)
            .min(input.len());
        self.value_left -= length as u64;
        Ok(ChunkPiece::Data(0..length))
    }

    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        match self.value_left {
            // The client has all of the value; that the trailer is missing only costs the
            // connection.
            0 => Ok(()),
            _ => Err(ProtocolFault::new("upstream prematurely closed connection")),
        }
    }

    fn keeps_alive(&self) -> bool {
        self.value_left == 0 && self.trailer_left == 0
    }
}
