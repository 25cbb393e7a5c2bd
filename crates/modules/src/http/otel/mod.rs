//! OpenTelemetry: a span for each request, sent to a collector (OTLP by gRPC or HTTP).
//!
//! ```nginx
//! http {
//!     otel_exporter { endpoint localhost:4317; }
//!     otel_service_name shop;
//!     split_clients $otel_trace_id $sampled { 10% on; * off; }
//!     server {
//!         location / { otel_trace $sampled; otel_trace_context propagate; proxy_pass http://shop; }
//!     }
//! }
//! ```
//!
//! The directives and variables are those of nginx's own module, and those of OpenTelemetry's contrib module
//! ([`contrib`]), which ingress-nginx uses. A request is judged in the first location that it comes to ([`begin`]). Its span
//! is written at its end ([`span`], [`wire`]) and handed to a thread of its own ([`exporter`], [`delivery`]), so that no
//! loop waits for a collector. Subrequests and fetches can have spans of their own (`otel_child_spans`).

mod context;
mod contrib;
mod delivery;
mod exporter;
mod rows;
mod settings;
mod span;
mod wire;

use std::rc::Rc;
use std::sync::Arc;

use base::sync::Mutex;
use conf::Variable;
use host::engine::ZoneRegistry;
use host::error_log::LogLevel;
use http::core::{LocationConf, ResolverConf};
use http::http_site::FrozenHttp;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use net::metrics::{MetricFamily, MetricSink};

use crate::shared::span_counters::SpanCounters;
use context::{HeaderFormat, IncomingContext, SpanId, TraceContext, TraceSlot, random_id};
use exporter::{ExporterNetwork, SpanExporter};
use rows::{Conf, FILL_SPANS, MainConf, SUBREQUEST_SPANS, TraceRule, UPSTREAM_SPANS};
use span::PartKind;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "otel",
    doc: "Sends traces to an OpenTelemetry collector.",
    main: &rows::MAIN,
    location: &rows::DIRECTIVES,
    phases: &[
        (HttpPhase::Rewrite, begin),
        (HttpPhase::Log, end),
        (HttpPhase::PartEnd, end_part),
    ],
    enabled: |location| location.confs.get::<Conf>().is_used(),
    variables: &VARIABLES,
    commit,
    metrics,
    end: |site, deadline| {
        if let Some(exporter) = site.main_confs.get::<MainConf>().exporter.get() {
            exporter.finish(deadline);
        }
    },
    explain: http::module::ModuleExplain::Aside(&["otel_trace"]),
    ..HttpModule::EMPTY
};

static VARIABLES: [Variable<Request>; 9] = [
    Variable::new(
        "otel_trace_id",
        |request: &mut Request, out| {
            of_context(request, |context, _| write_id(&context.trace_id, out))
        },
        "The identifier of the trace.",
    ),
    Variable::new(
        "otel_span_id",
        |request: &mut Request, out| {
            of_context(request, |context, _| write_id(&context.span_id, out))
        },
        "The identifier of the request's span.",
    ),
    Variable::new(
        "otel_parent_id",
        |request: &mut Request, out| {
            of_context(request, |context, _| match &context.parent {
                Some(parent) => write_id(&parent.span_id, out),
                None => false,
            })
        },
        "The identifier of the span that the request came with.",
    ),
    Variable::new(
        "otel_parent_sampled",
        |request: &mut Request, out| {
            of_context(request, |context, _| {
                let parent = context.parent.as_ref();
                write_flag(parent.is_some_and(|parent| parent.sampled), out)
            })
        },
        "`1` if the request came with a span that is recorded, otherwise `0`.",
    ),
    Variable::new(
        "opentelemetry_trace_id",
        |request: &mut Request, out| {
            of_context(request, |context, _| write_id(&context.trace_id, out))
        },
        "The contrib module's `$otel_trace_id`.",
    ),
    Variable::new(
        "opentelemetry_span_id",
        |request: &mut Request, out| {
            of_context(request, |context, _| write_id(&context.span_id, out))
        },
        "The contrib module's `$otel_span_id`.",
    ),
    Variable::new(
        "opentelemetry_sampled",
        |request: &mut Request, out| of_context(request, |_, sampled| write_flag(sampled, out)),
        "`1` if the request is recorded, otherwise `0`.",
    )
    .volatile(),
    Variable::new(
        "opentelemetry_context_traceparent",
        |request: &mut Request, out| {
            of_context(request, |context, sampled| {
                out.extend_from_slice(&context.traceparent(&context.span_id, sampled));
                true
            })
        },
        "The request's span in the form of the header `traceparent`.",
    )
    .volatile(),
    Variable::new(
        "opentelemetry_context_b3",
        |request: &mut Request, out| {
            of_context(request, |context, sampled| {
                out.extend_from_slice(&context.b3(&context.span_id, sampled));
                true
            })
        },
        "The request's span in the form of the header `b3`.",
    )
    .volatile(),
];

fn write_id(id: &[u8], out: &mut Vec<u8>) -> bool {
    base::text::write_hex(id, out);
    true
}

fn write_flag(flag: bool, out: &mut Vec<u8>) -> bool {
    out.push(if flag { b'1' } else { b'0' });
    true
}

/// Shows the request's context, and whether it is recorded, to `show`.
fn of_context(request: &mut Request, show: impl FnOnce(&TraceContext, bool) -> bool) -> bool {
    let conf = request.conf::<Conf>();
    let slot = ensured_slot(request, &conf);
    show(slot.context(), slot.sampled.get())
}

/// The request's slot, with a context in it.
fn ensured_slot(request: &Request, conf: &Conf) -> Rc<TraceSlot> {
    let slot = request.shared::<TraceSlot>();
    slot.ensure(|| incoming(request, conf));
    slot
}

/// The context that the request came with, if the location trusts it.
fn incoming(request: &Request, conf: &Conf) -> Option<IncomingContext> {
    match conf.trusts_context() {
        true => conf.format().extract(&request.head.wire.fields),
        false => None,
    }
}

/// A subrequest that is recorded. It is a state, which a fetch does not inherit: so the two are told apart. The slot is here
/// too, because the client's request may end first.
struct SubrequestTrace {
    slot: Rc<TraceSlot>,
    /// Its own span, if it has one.
    span_id: Option<SpanId>,
}

/// What a fetch into the cache inherits of its request, and so does a copy that `mirror` makes: both may outlive it.
struct FetchTrace(Rc<TraceSlot>);

/// The handler of the rewrite phase: before `rewrite` and scripts, as in nginx.
fn begin(request: &mut Request) -> HandlerStep<'_> {
    // Borrowed from the site rather than the request, which is changed below.
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    if request.is_subrequest() {
        begin_part(request, conf);
    } else if request.flow.internal || request.flow.rewritten {
        // The decision stays; what the redirect has cleared is set again.
        if let Some(slot) = request.shared_if_made::<TraceSlot>() {
            tell_fetches(request, conf, &slot);
        }
    } else {
        begin_request(request, conf);
    }
    HandlerOutcome::Declined.into()
}

fn begin_request(request: &mut Request, conf: &Conf) {
    let sampled = match &conf.rule {
        TraceRule::Never => false,
        TraceRule::Always => true,
        TraceRule::Value(value) => {
            let value = request.value(value);
            value == "on" || value == "1"
        }
        TraceRule::Sampler => samples(request, conf),
    };
    let passes_on = conf.extracts || conf.tells_context();
    if !sampled && !passes_on {
        return;
    }
    let slot = match passes_on {
        true => ensured_slot(request, conf),
        // Nobody may ever ask for its identifiers before the end.
        false => request.shared::<TraceSlot>(),
    };
    slot.sampled.set(sampled);
    if conf.tells_context() {
        let format = conf.format();
        let context = slot.context();
        format.inject(request, context, &context.span_id, sampled);
    }
    tell_fetches(request, conf, &slot);
}

/// What the contrib module's sampler says.
fn samples(request: &mut Request, conf: &Conf) -> bool {
    let target = request.head.wire.target();
    let ignored = conf.contrib.ignored_paths.as_ref();
    if ignored.is_some_and(|ignored| ignored.is_match(target)) {
        return false;
    }
    let slot = ensured_slot(request, conf);
    let sampler = request.site.main_confs.get::<MainConf>().sampler;
    let context = slot.context();
    let parent = context.parent.as_ref().map(|parent| parent.sampled);
    sampler.samples(&context.trace_id, parent)
}

/// Leaves the context for what outlives the request, if it has spans.
fn tell_fetches(request: &mut Request, conf: &Conf, slot: &Rc<TraceSlot>) {
    if conf.children != 0 && slot.sampled.get() {
        request.set_fact(FetchTrace(Rc::clone(slot)));
    }
}

/// Begins a subrequest. Upstream servers learn the span of the subrequest if it has one, and that of the request otherwise.
fn begin_part(request: &mut Request, conf: &Conf) {
    let Some(slot) = slot_of_part(request) else {
        return;
    };
    let sampled = slot.sampled.get();
    let own = (sampled && conf.children & SUBREQUEST_SPANS != 0).then(random_id::<8>);
    if conf.tells_context() {
        let format: HeaderFormat = conf.format();
        let context = slot.context();
        let span = own.as_ref().unwrap_or(&context.span_id);
        format.inject(request, context, span, sampled);
    }
    tell_fetches(request, conf, &slot);
    if sampled {
        request.set_state(SubrequestTrace { slot, span_id: own });
    }
}

/// The slot of a subrequest's trace. A copy that outlives its request shares it again, to have it after a redirect, too.
fn slot_of_part(request: &Request) -> Option<Rc<TraceSlot>> {
    if let Some(slot) = request.shared_if_made::<TraceSlot>() {
        return Some(slot);
    }
    let slot = Rc::clone(&request.fact::<FetchTrace>()?.0);
    request.share(Rc::clone(&slot));
    Some(slot)
}

/// The handler of the log phase.
fn end(request: &mut Request) -> HandlerStep<'_> {
    if let Some(slot) = request.shared_if_made::<TraceSlot>()
        && slot.sampled.get()
        // With `log_subrequest` they come here, too.
        && !request.is_subrequest()
    {
        let site = Rc::clone(&request.site);
        let conf = site.location(request.location).confs.get::<Conf>();
        if let Some(exporter) = site.main_confs.get::<MainConf>().exporter.get() {
            let context = slot.context();
            span::export_request(request, conf, context, exporter);
            if conf.children & UPSTREAM_SPANS != 0 {
                span::export_tries(request, conf, context, &context.span_id, exporter);
            }
        }
    }
    HandlerOutcome::Declined.into()
}

/// The handler for the end of subrequests and fetches.
fn end_part(request: &mut Request) -> HandlerStep<'_> {
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    let exporter = site.main_confs.get::<MainConf>().exporter.get();
    if let (Some(exporter), Some((slot, span_id, kind))) = (exporter, part_of(request, conf)) {
        let context = slot.context();
        if let Some(kind) = kind {
            span::export_part(request, conf, context, (&span_id, kind), exporter);
        }
        if conf.children & UPSTREAM_SPANS != 0 {
            span::export_tries(request, conf, context, &span_id, exporter);
        }
    }
    HandlerOutcome::Declined.into()
}

/// The trace of a part that is recorded: its slot, its span or the one that its tries belong to, and what it is if it has a
/// span of its own.
fn part_of(
    request: &mut Request,
    conf: &Conf,
) -> Option<(Rc<TraceSlot>, SpanId, Option<PartKind>)> {
    let (slot, own) = match request.state::<SubrequestTrace>() {
        Some(part) => (Rc::clone(&part.slot), part.span_id),
        None => match request.fact::<FetchTrace>() {
            Some(fetch) if conf.children & FILL_SPANS != 0 => {
                return Some((Rc::clone(&fetch.0), random_id(), Some(PartKind::Fill)));
            }
            // One that was not through the rewrite phase, such as a slice; or a fetch without a span.
            _ if !request.is_subrequest() => return None,
            _ => {
                let slot = request.shared_if_made::<TraceSlot>()?;
                let has_own = conf.children & SUBREQUEST_SPANS != 0;
                (slot, has_own.then(random_id))
            }
        },
    };
    if !slot.sampled.get() {
        return None;
    }
    let root = slot.context().span_id;
    let kind = own.map(|_| PartKind::Subrequest);
    Some((slot, own.unwrap_or(root), kind))
}

/// The exporter of the process, which a reload without changes keeps.
#[derive(Default)]
struct CurrentExporter(Mutex<std::sync::Weak<SpanExporter>>);

/// Finds or starts the exporter.
fn commit(site: &FrozenHttp, zones: &ZoneRegistry) {
    let conf = site.main_confs.get::<MainConf>();
    let Some(settings) = &conf.settings else {
        return;
    };
    let current = zones.get_or_create("otel", CurrentExporter::default);
    let mut current = current.0.lock();
    let known = current.upgrade();
    let exporter = match known.filter(|known| known.settings().is_same(settings)) {
        Some(known) => known,
        None => {
            let resolver = site.outer_confs.get::<ResolverConf>();
            let network = ExporterNetwork {
                resolver: Arc::clone(&resolver.resolver),
                resolver_timeout: resolver.timeout,
            };
            let log = site.outer_confs.get::<LocationConf>().log.clone();
            let counters = SpanCounters::of(zones);
            let started = SpanExporter::start(Arc::clone(settings), network, counters, log.clone());
            match started {
                Ok(started) => Arc::new(started),
                Err(error) => {
                    let error = base::ErrnoText(&error);
                    log.log_plain(
                        LogLevel::Alert,
                        format_args!(
                            "otel: no thread for the exporter, no spans are exported{error}"
                        ),
                    );
                    return;
                }
            }
        }
    };
    *current = Arc::downgrade(&exporter);
    // A configuration is committed only once, so the cell is empty.
    let _ = conf.exporter.set(exporter);
}

static SPANS: MetricFamily = MetricFamily::counter(
    "weir_otel_spans",
    "Spans that the collector has taken, that there was no room for, and that it rejected.",
);

fn metrics(site: &FrozenHttp, sink: &mut dyn MetricSink) {
    if let Some(exporter) = site.main_confs.get::<MainConf>().exporter.get() {
        sink.family(&SPANS);
        for (result, count) in exporter.counters().totals() {
            sink.count(&[("result", result.as_bytes())], count);
        }
    }
}
