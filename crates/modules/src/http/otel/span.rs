//! What spans say: of a request, its subrequests, the tries of its upstream servers, and fetches into the cache.
//!
//! The attributes are those of nginx-otel (the HTTP conventions of OpenTelemetry 1.16), so that dashboards continue to
//! work, and what the ledger knows: `weir.time.…` in seconds, `weir.termination` and the like.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bstr::ByteSlice;
use http::Request;
use http::http_site::ServerId;
use http::request::HttpVersion;
use http::upstream::upstream_record::{PeerName, UpstreamTry};
use proto::KnownField;
use proto::message::Method;

use super::context::{SpanId, TraceContext, random_id};
use super::exporter::SpanExporter;
use super::rows::{Conf, FILL_SPANS, REDACTED, SpanName};
use super::wire::{SpanHead, SpanKind, SpanWriter};

/// The most captured headers of a span, of request and response each.
const MAX_CAPTURED: usize = 128;

/// A wall clock that goes with the loop's own: the same offset for all spans of a second, so that a child does not begin
/// before its parent.
#[derive(Clone, Copy)]
struct SpanClock {
    instant: Instant,
    nanos: u64,
}

rt::local! {
    static CLOCK: Cell<Option<SpanClock>> = const { Cell::new(None) };
    /// Where a span is written, before it goes to the exporter.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A scratch buffer that has grown beyond this is given back.
const MAX_KEPT: usize = 64 * 1024;

/// The clock is compared with the wall's this often.
const CLOCK_LIFE: Duration = Duration::from_secs(1);

fn clock() -> SpanClock {
    let now = rt::now();
    if let Some(clock) = CLOCK.get()
        && now.saturating_duration_since(clock.instant) < CLOCK_LIFE
    {
        return clock;
    }
    let since = rt::clock::read_wall()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let clock = SpanClock {
        instant: rt::clock::read_clock(),
        nanos: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
    };
    CLOCK.set(Some(clock));
    clock
}

impl SpanClock {
    /// Nanoseconds since 1970.
    fn at(self, instant: Instant) -> u64 {
        let nanos =
            |time: Duration| time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos());
        match instant.checked_duration_since(self.instant) {
            Some(after) => self.nanos.saturating_add(nanos(after)),
            None => self.nanos.saturating_sub(nanos(self.instant - instant)),
        }
    }
}

/// Writes a span into the scratch buffer, and passes it to the exporter.
fn with_scratch(exporter: &SpanExporter, write: impl FnOnce(&mut Vec<u8>)) {
    // Taken out: a variable may log, or come here again.
    let mut span = SCRATCH.with(RefCell::take);
    span.clear();
    write(&mut span);
    exporter.add(&span);
    if span.capacity() <= MAX_KEPT {
        SCRATCH.with(|scratch| scratch.replace(span));
    }
}

/// The span of a client's request.
pub(super) fn export_request(
    request: &mut Request,
    conf: &Conf,
    context: &TraceContext,
    exporter: &SpanExporter,
) {
    let name = span_name(request, conf);
    let clock = clock();
    let began = request.ledger.began();
    let end = began + request.ledger.total();
    with_scratch(exporter, |out| {
        let parent = context.parent.as_ref();
        let head = SpanHead {
            trace_id: &context.trace_id,
            span_id: &context.span_id,
            parent: parent.map(|parent| &parent.span_id),
            is_parent_remote: parent.is_some(),
            state: context.state(),
            name: name
                .as_ref()
                .unwrap_or(&request.site.location(request.location).name),
            kind: SpanKind::Server,
            start: clock.at(began),
            end: clock.at(end),
        };
        let mut span = SpanWriter::begin(&head, out);
        write_semantic(request, &mut span);
        write_ledger(request, &mut span);
        if conf.contrib.captures {
            write_captured(request, conf, &mut span);
        }
        write_configured(request, conf, &mut span);
        span.end(request.out.status >= 500);
    });
}

/// The name that the configuration gives; `None`: the location's.
fn span_name(request: &mut Request, conf: &Conf) -> Option<SpanName> {
    conf.span_name.as_ref().map(|name| request.value(name))
}

/// What the spans of a location have in common for requests of one kind, encoded.
struct CommonAttributes {
    kind: RequestKind,
    bytes: Vec<u8>,
}

/// What [`CommonAttributes`] depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestKind {
    /// The number of the location in its generation.
    location: u64,
    server: ServerId,
    method: Method,
    version: HttpVersion,
    is_tls: bool,
    status: u16,
    port: u16,
    received: u64,
}

impl RequestKind {
    fn of(request: &Request) -> RequestKind {
        let received = request.head.known(KnownField::ContentLength);
        let received = received.and_then(|text| base::text::decimal(text));
        RequestKind {
            location: request.location.tag(request.site.generation),
            server: request.server,
            method: request.head.wire.method,
            version: request.head.version(),
            is_tls: request.is_tls(),
            status: request.out.status,
            port: request.local_port(),
            received: received
                .and_then(|length| u64::try_from(length).ok())
                .unwrap_or(0),
        }
    }

    /// Where it is kept.
    fn place(&self) -> usize {
        (self.location as usize ^ usize::from(self.status)) % KINDS
    }
}

/// How many kinds of requests are kept for each loop.
const KINDS: usize = 16;

rt::local! {
    /// The attributes of the kinds of requests that came last: they are copied instead of encoded.
    static COMMON: RefCell<[Option<CommonAttributes>; KINDS]> = const { RefCell::new([const { None }; KINDS]) };
}

/// The attributes that nginx-otel has.
fn write_semantic(request: &Request, span: &mut SpanWriter<'_>) {
    let kind = RequestKind::of(request);
    let server = &request.site.server(request.server).name;
    if kind.method == Method::Other {
        // Its text is the client's.
        span.text("http.method", request.head.wire.method_text());
    }
    COMMON.with_borrow_mut(|known| {
        let place = &mut known[kind.place()];
        match place {
            Some(common) if common.kind == kind => span.encoded(&common.bytes),
            _ => {
                let mut bytes = Vec::new();
                write_common(request, &kind, &mut SpanWriter::attributes(&mut bytes));
                span.encoded(&bytes);
                *place = Some(CommonAttributes { kind, bytes });
            }
        }
    });
    span.text("http.target", request.head.wire.target());
    if let Some(agent) = request.head.known(KnownField::UserAgent) {
        span.text("http.user_agent", agent);
    }
    span.number(
        "http.response_content_length",
        request.times.body_bytes_sent,
    );
    if server.is_empty() {
        span.text("net.host.name", &request.head.host);
    }
    span.text("net.sock.peer.addr", &request.remote.text);
    span.number("net.sock.peer.port", request.remote.address.port().into());
}

/// Those of them that are the same for all requests of a kind.
fn write_common(request: &Request, kind: &RequestKind, span: &mut SpanWriter<'_>) {
    if kind.method != Method::Other {
        span.text("http.method", request.head.wire.method_text());
    }
    let location = request.site.location(request.location);
    if !location.name.is_empty() {
        span.text("http.route", &location.name);
    }
    let scheme: &[u8] = if kind.is_tls { b"https" } else { b"http" };
    span.text("http.scheme", scheme);
    if kind.version > HttpVersion::Http09 {
        let text = kind.version.text().as_bytes();
        span.text("http.flavor", &text["HTTP/".len()..]);
    }
    span.number("http.request_content_length", kind.received);
    if kind.status != 0 {
        span.number("http.status_code", kind.status.into());
    }
    let server = &request.site.server(request.server).name;
    if !server.is_empty() {
        span.text("net.host.name", server);
    }
    if kind.port != if kind.is_tls { 443 } else { 80 } {
        span.number("net.host.port", kind.port.into());
    }
}

/// What the ledger knows.
fn write_ledger(request: &Request, span: &mut SpanWriter<'_>) {
    let ledger = &request.ledger;
    ledger.each_column(|name, time| span.seconds(column_key(name), time));
    let termination = ledger.termination();
    if termination != *b"--" {
        span.text("weir.termination", &termination);
    }
    if let Some(role) = ledger.role {
        span.text("weir.fill_role", role.word().as_bytes());
    }
    if let Some(tier) = ledger.tier {
        span.text("weir.cache_tier", tier.word().as_bytes());
    }
    if let Some(cache) = &ledger.cache {
        span.text("weir.cache_zone", cache.name().as_bytes());
    }
    if let Some(connection) = ledger.connection {
        span.text("weir.upstream_connection", connection.word().as_bytes());
    }
}

/// The attribute of a column of the ledger.
fn column_key(name: &str) -> &'static str {
    const KEYS: [&str; 18] = [
        "weir.time.work",
        "weir.time.loop",
        "weir.time.head",
        "weir.time.upload",
        "weir.time.limit",
        "weir.time.auth",
        "weir.time.lookup",
        "weir.time.fill",
        "weir.time.disk",
        "weir.time.resolve",
        "weir.time.queue",
        "weir.time.connect",
        "weir.time.upstream_tls",
        "weir.time.first_byte",
        "weir.time.member",
        "weir.time.body",
        "weir.time.script",
        "weir.time.client",
    ];
    let found = KEYS.iter().find(|key| &key["weir.time.".len()..] == name);
    found.copied().unwrap_or("weir.time.other")
}

/// The attributes of `otel_span_attr`.
fn write_configured(request: &mut Request, conf: &Conf, span: &mut SpanWriter<'_>) {
    for attribute in &conf.attributes {
        let value = request.value(&attribute.value);
        match attribute.is_list {
            true => span.texts(&attribute.name, &[&value]),
            false => span.text(&attribute.name, &value),
        }
    }
}

/// The headers of request and response.
fn write_captured(request: &Request, conf: &Conf, span: &mut SpanWriter<'_>) {
    let is_shown = |name: &[u8]| {
        // They have attributes of their own.
        !name.eq_ignore_ascii_case(b"host") && !name.eq_ignore_ascii_case(b"user-agent")
    };
    let fields = &request.head.wire.fields;
    let received = fields.iter().filter(|(name, _)| is_shown(name));
    for (name, value) in received.take(MAX_CAPTURED) {
        write_field("http.request.header.", name, value, conf, span);
    }
    if !request.out.content_type.is_empty() {
        let mut value = Vec::new();
        request.out.write_content_type(&mut value);
        write_field("http.response.header.", b"content-type", &value, conf, span);
    }
    for (name, value) in request.out.fields.iter().take(MAX_CAPTURED) {
        write_field("http.response.header.", name, value, conf, span);
    }
}

/// One header. Credentials are never shown.
fn write_field(prefix: &str, name: &[u8], value: &[u8], conf: &Conf, span: &mut SpanWriter<'_>) {
    const SECRET: [&[u8]; 4] = [
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"set-cookie",
    ];
    let key = name.to_str_lossy().to_ascii_lowercase().replace('-', "_");
    let contrib = &conf.contrib;
    let matches = |pattern: &Option<conf::Regex>, text: &[u8]| {
        pattern
            .as_ref()
            .is_some_and(|pattern| pattern.is_match(text))
    };
    let is_secret = SECRET
        .iter()
        .any(|secret| name.eq_ignore_ascii_case(secret))
        || matches(&contrib.secret_names, name)
        || matches(&contrib.secret_values, value);
    let value = if is_secret { REDACTED } else { value };
    span.texts(&format!("{prefix}{key}"), &[value]);
}

/// The span of a subrequest, or of a fetch into the cache.
pub(super) fn export_part(
    request: &mut Request,
    conf: &Conf,
    context: &TraceContext,
    (span_id, kind): (&SpanId, PartKind),
    exporter: &SpanExporter,
) {
    let name = match kind {
        PartKind::Subrequest => span_name(request, conf),
        PartKind::Fill => Some("fill".into()),
    };
    let clock = clock();
    let began = request.ledger.began();
    let end = began + request.ledger.total();
    with_scratch(exporter, |out| {
        let location = request.site.location(request.location);
        let head = SpanHead {
            trace_id: &context.trace_id,
            span_id,
            parent: Some(&context.span_id),
            is_parent_remote: false,
            state: context.state(),
            name: name.as_ref().unwrap_or(&location.name),
            kind: SpanKind::Internal,
            start: clock.at(began),
            end: clock.at(end),
        };
        let mut span = SpanWriter::begin(&head, out);
        span.text("http.method", request.method.name().as_bytes());
        let mut target = request.uri.path.to_vec();
        if !request.uri.args.is_empty() {
            target.push(b'?');
            target.extend_from_slice(&request.uri.args);
        }
        span.text("http.target", &target);
        if !location.name.is_empty() {
            span.text("http.route", &location.name);
        }
        let status = match kind {
            PartKind::Subrequest => request.out.status,
            PartKind::Fill => request
                .upstream
                .get()
                .map_or(0, |record| record.head.status),
        };
        if status != 0 {
            span.number("http.status_code", status.into());
        }
        write_ledger(request, &mut span);
        if kind == PartKind::Subrequest {
            write_configured(request, conf, &mut span);
        }
        span.end(status >= 500);
    });
}

/// What a part of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    Subrequest,
    Fill,
}

/// The spans of the tries of upstream servers, as children of `parent`.
pub(super) fn export_tries(
    request: &Request,
    conf: &Conf,
    context: &TraceContext,
    parent: &SpanId,
    exporter: &SpanExporter,
) {
    let Some(record) = request.upstream.get() else {
        return;
    };
    // Those of a fetch are children of its span, if it has one.
    let has_fills = conf.children & FILL_SPANS != 0;
    let tries = record.tries.iter();
    let made = tries.filter(|one| !(has_fills && one.is_of_fetch));
    for (resent, one) in made.enumerate() {
        if let Some(began) = one.began {
            export_try(request, one, (began, resent), (context, parent), exporter);
        }
    }
}

fn export_try(
    request: &Request,
    one: &UpstreamTry,
    (began, resent): (Instant, usize),
    (context, parent): (&TraceContext, &SpanId),
    exporter: &SpanExporter,
) {
    let clock = clock();
    let end = one.response_time.map_or_else(rt::now, |took| began + took);
    let span_id: SpanId = random_id();
    with_scratch(exporter, |out| {
        let head = SpanHead {
            trace_id: &context.trace_id,
            span_id: &span_id,
            parent: Some(parent),
            is_parent_remote: false,
            state: context.state(),
            name: b"upstream",
            kind: SpanKind::Client,
            start: clock.at(began),
            end: clock.at(end),
        };
        let mut span = SpanWriter::begin(&head, out);
        span.text("http.method", request.method.name().as_bytes());
        if one.status != 0 {
            span.number("http.status_code", one.status.into());
        }
        match &one.peer {
            Some(PeerName::Peer(peer)) => span.text("weir.upstream.server", peer.name()),
            Some(PeerName::Group(group)) => span.text("weir.upstream.group", group),
            None => {}
        }
        if resent > 0 {
            span.number("http.resend_count", resent as u64);
        }
        if let Some(time) = one.connect_time {
            span.seconds("weir.upstream.connect_time", time);
        }
        if let Some(time) = one.header_time {
            span.seconds("weir.upstream.header_time", time);
        }
        span.number("weir.upstream.bytes_sent", one.bytes_sent);
        span.number("weir.upstream.bytes_received", one.bytes_received);
        span.end(one.status >= 500 || one.header_time.is_none());
    });
}
