//! The directives: nginx-otel's, those of OpenTelemetry's contrib module, and ours.

use std::sync::{Arc, OnceLock};

use bstr::{BString, ByteSlice};
use conf::{
    Arity, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, HTTP,
    HTTP_SERVER_LOCATION, Regex, RepeatRule, Setter,
};

use super::context::HeaderFormat;
use super::contrib::{self, SamplerChoice, TraceSampler};
use super::exporter::SpanExporter;
use super::settings::{ExporterDraft, ExporterSettings, OtlpProtocol};
use super::wire::BatchHead;

/// Which spans a request has besides its own: bits of `otel_child_spans`.
pub(super) const UPSTREAM_SPANS: u32 = 1 << 0;
pub(super) const FILL_SPANS: u32 = 1 << 1;
pub(super) const SUBREQUEST_SPANS: u32 = 1 << 2;

/// The words of `otel_trace_context`.
const CONTEXTS: [&str; 4] = ["ignore", "extract", "inject", "propagate"];

/// What is the same for all locations.
#[derive(Clone, Default)]
pub(super) struct MainConf {
    draft: Option<ExporterDraft>,
    service: Option<String>,
    /// `otel_resource_attr`, in the order of the names.
    attributes: std::collections::BTreeMap<String, String>,
    pub(super) sampler: TraceSampler,
    sampler_ratio: Option<f64>,
    /// Names a queue, a delay and a batch size that the contrib module's lines have set.
    queue: [Option<i64>; 3],
    pub(super) settings: Option<Arc<ExporterSettings>>,
    /// Set once the configuration is committed.
    pub(super) exporter: Arc<OnceLock<Arc<SpanExporter>>>,
}

/// Which lines the configuration has, for locations that are read later.
#[derive(Clone, Copy, Debug, Default)]
struct ExporterLines {
    /// There is an exporter.
    exports: bool,
    /// It is the contrib module's, which is on by default.
    is_contrib: bool,
}

/// The settings of a location.
#[derive(Clone, Default)]
pub(super) struct Conf {
    trace: Option<Expression>,
    /// When a request is recorded; from the lines, at the end of the block.
    pub(super) rule: TraceRule,
    pub(super) extracts: bool,
    pub(super) injects: bool,
    pub(super) span_name: Option<Expression>,
    pub(super) attributes: Vec<SpanAttribute>,
    pub(super) children: u32,
    pub(super) contrib: ContribConf,
    /// There is an exporter.
    pub(super) exports: bool,
    is_contrib_exporter: bool,
}

/// The contrib module's settings of a location.
#[derive(Clone)]
pub(super) struct ContribConf {
    enabled: Option<bool>,
    pub(super) propagates: Option<HeaderFormat>,
    pub(super) trusts: bool,
    pub(super) captures: bool,
    pub(super) secret_names: Option<Regex>,
    pub(super) secret_values: Option<Regex>,
    pub(super) ignored_paths: Option<Regex>,
}

impl Default for ContribConf {
    fn default() -> ContribConf {
        ContribConf {
            enabled: None,
            propagates: None,
            trusts: true,
            captures: false,
            secret_names: None,
            secret_values: None,
            ignored_paths: None,
        }
    }
}

/// When a request is recorded.
#[derive(Clone, Debug, Default)]
pub(super) enum TraceRule {
    #[default]
    Never,
    Always,
    /// If the value is `on` or `1`.
    Value(Expression),
    /// As the contrib module's sampler says.
    Sampler,
}

/// An attribute of a span.
#[derive(Clone, Debug)]
pub(super) struct SpanAttribute {
    pub(super) name: Arc<str>,
    pub(super) value: Expression,
    /// `http.request.header.…` and `http.response.header.…` are lists.
    pub(super) is_list: bool,
}

impl Conf {
    /// The format in which contexts travel.
    pub(super) fn format(&self) -> HeaderFormat {
        self.contrib.propagates.unwrap_or(HeaderFormat::W3c)
    }

    /// Whether a request's own context counts.
    pub(super) fn trusts_context(&self) -> bool {
        self.extracts || (self.contrib.propagates.is_some() && self.contrib.trusts)
    }

    /// Whether upstream servers are told the context.
    pub(super) fn tells_context(&self) -> bool {
        self.injects || self.contrib.propagates.is_some()
    }

    /// Whether the module has anything to do in a location.
    pub(super) fn is_used(&self) -> bool {
        // With an exporter, a request that is recorded may come here by a redirect from another location.
        self.exports || self.extracts || self.tells_context()
    }
}

pub(super) static MAIN: DirectiveTable<MainConf> = DirectiveTable::<MainConf>::new(&[
    Directive {
        name: "otel_exporter",
        syntax: "{ ... }",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "Where spans are sent. In the block: `endpoint [http://|https://]host[:port][/path]`, which is required; \
              `protocol grpc | http/protobuf`, by default HTTP if the endpoint has a path; `interval` (`5s`), the longest \
              time that spans wait; `batch_size` (512), the spans of one request to the collector; `batch_count` (4), \
              the number of such batches that may wait per event loop; `header name value`; `trusted_certificate file`, by default \
              the system's certificates.",
        set: Setter::Block(Arity::NONE, RepeatRule::Once, |conf, line| {
            conf.begin_exporter(line, false)?;
            conf.draft = Some(ExporterDraft::read(line)?);
            Ok(())
        }),
    },
    Directive {
        name: "otel_service_name",
        syntax: "name",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The attribute `service.name` of the resource; `unknown_service:weir` without this line.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, set_service),
    },
    Directive {
        name: "otel_resource_attr",
        syntax: "name value",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "An attribute of the resource, such as `deployment.environment`.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Many, |conf, line| {
            let text = |index: usize| line.text(index).to_str_lossy().into_owned();
            conf.attributes.insert(text(0), text(1));
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_config",
        syntax: "file",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The TOML file of OpenTelemetry's contrib module, as ingress-nginx writes it: exporter `otlp` by gRPC, batch \
              sizes, service name, sampler. Environment variables are not read.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.begin_exporter(line, true)?;
            let config = contrib::read_config(line)?;
            conf.draft = Some(config.exporter);
            conf.sampler = config.sampler.unwrap_or(conf.sampler);
            conf.service = config.service.or(conf.service.take());
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_otlp_traces_endpoint",
        syntax: "url",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "Where spans are sent, by OTLP/HTTP. Of OpenTelemetry's contrib module; `otel_exporter` says more.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.begin_exporter(line, true)?;
            conf.draft = Some(ExporterDraft {
                endpoint: line.text(0).to_owned(),
                protocol: Some(OtlpProtocol::Http),
                ..ExporterDraft::default()
            });
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_service_name",
        syntax: "name",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The contrib module's `otel_service_name`.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, set_service),
    },
    Directive {
        name: "opentelemetry_span_processor",
        syntax: "simple | batch",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "Accepted: spans always travel in batches.",
        set: Setter::Ignored(Arity::ONE, "spans always travel in batches"),
    },
    Directive {
        name: "opentelemetry_traces_sampler",
        syntax: "always_on | always_off | traceidratio | parentbased_always_on | parentbased_always_off | \
                 parentbased_traceidratio",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "Which requests are recorded where `opentelemetry` is on; `parentbased_always_on` without this line. Those whose \
              context came from the client and is trusted are recorded if the client says so, with `parentbased_`.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            let known = conf.sampler.set_name(line.text(0), 1.0);
            known.ok_or_else(|| line.invalid_value(0))
        }),
    },
    Directive {
        name: "opentelemetry_traces_sampler_ratio",
        syntax: "number",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The share of traces that are recorded with a sampler of a ratio, from 0 to 1.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            let text = line.text(0).to_str().ok();
            let ratio = text.and_then(|text| text.parse::<f64>().ok());
            let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
            conf.sampler_ratio = Some(ratio.ok_or_else(|| line.invalid_value(0))?);
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_bsp_max_queue_size",
        syntax: "number",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The maximum number of spans that wait per event loop, in whole batches.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.queue[0] = Some(line.number(0, 1, 1 << 24)?);
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_bsp_schedule_delay_millis",
        syntax: "number",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The longest time that spans wait, in milliseconds.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.queue[1] = Some(line.number(0, 1, 1 << 32)?);
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_bsp_max_export_batch_size",
        syntax: "number",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "The maximum number of spans in one request to the collector.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.queue[2] = Some(line.number(0, 1, 1 << 16)?);
            Ok(())
        }),
    },
])
.finish(finish_main);

impl MainConf {
    /// Notes that the configuration has an exporter. It can have one.
    fn begin_exporter(
        &mut self,
        line: &mut DirectiveLine,
        contrib: bool,
    ) -> Result<(), Diagnostic> {
        if self.draft.is_some() {
            return Err(line.error("there is an exporter already: spans go to one collector"));
        }
        let lines = line.shared::<ExporterLines>();
        lines.exports = true;
        lines.is_contrib = contrib;
        Ok(())
    }
}

fn set_service(conf: &mut MainConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.service = Some(line.text(0).to_str_lossy().into_owned());
    Ok(())
}

/// Makes the exporter's settings of its lines.
fn finish_main(
    conf: &mut MainConf,
    _: Option<&MainConf>,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    if let (Some(ratio), SamplerChoice::Ratio(chosen)) =
        (conf.sampler_ratio, &mut conf.sampler.choice)
    {
        *chosen = ratio;
    }
    let Some(draft) = &mut conf.draft else {
        return Ok(());
    };
    let [spans, delay, batch] = conf.queue;
    draft.set_queue(spans, delay, batch);
    let service = conf.service.as_deref().unwrap_or("unknown_service:weir");
    let mut attributes = conf.attributes.clone();
    if conf.service.is_some() || !attributes.contains_key("service.name") {
        attributes.insert("service.name".to_owned(), service.to_owned());
    }
    let head = BatchHead::new(
        attributes
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str())),
    );
    let names = [
        "otel_exporter",
        "opentelemetry_config",
        "opentelemetry_otlp_traces_endpoint",
    ];
    let place = names.iter().find_map(|name| level.seen_directive(name));
    let built = draft.build(head, &mut *level.build.files);
    let (settings, warning) = built.map_err(|why| Diagnostic::error(why, place))?;
    if let Some(warning) = warning {
        level.report(Diagnostic::warning(warning, place));
    }
    conf.settings = Some(Arc::new(settings));
    Ok(())
}

pub(super) static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "otel_trace",
        syntax: "on | off | $variable",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Whether requests are recorded: always, never, or if the value is `on` or `1`. The first location that a \
              request comes to decides.",
        set: Setter::OptionalValue(|conf| &mut conf.trace),
    },
    Directive {
        name: "otel_trace_context",
        syntax: "extract | inject | propagate | ignore",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "How to treat the headers `traceparent` and `tracestate` (W3C Trace Context). `extract`: the request's span is \
              a child of the one they name. `inject`: they name the request's own span to upstream servers. `propagate`: \
              both. `ignore`, the default: they are forwarded unchanged.",
        set: Setter::Word(&CONTEXTS, |conf, word| {
            conf.extracts = word & 1 != 0;
            conf.injects = word & 2 != 0;
        }),
    },
    Directive {
        name: "otel_span_name",
        syntax: "name",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The name of spans, which may have variables; the location's name without this line.",
        set: Setter::OptionalValue(|conf| &mut conf.span_name),
    },
    Directive {
        name: "otel_span_attr",
        syntax: "name value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "An attribute of spans, whose value may have variables. The lines of the outer block apply if there are none.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Fresh(|conf| conf.attributes.clear()), add_attribute),
    },
    Directive {
        name: "otel_child_spans",
        syntax: "off | [upstream] [fill] [subrequest]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Which spans a recorded request has besides its own: one for each try of an upstream server, for a fetch into \
              the cache, for each subrequest. Without this line it has none, as with nginx.",
        set: Setter::Custom(Arity::between(1, 3), RepeatRule::Once, |conf, line| {
            conf.children = 0;
            for index in 0..line.args().len() {
                let words = ["upstream", "fill", "subrequest", "off"];
                conf.children |= match line.word(index, &words)? {
                    3 if line.args().len() == 1 => 0,
                    3 => return Err(line.invalid_value(index)),
                    bit => 1 << bit,
                };
            }
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry",
        syntax: "on | off",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Whether requests are recorded, as the contrib module's sampler says. By default `on` if the exporter is one of \
              the contrib module's directives; `otel_trace` overrides it.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.contrib.enabled = Some(line.flag(0)?);
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_operation_name",
        syntax: "name",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The contrib module's `otel_span_name`.",
        set: Setter::OptionalValue(|conf| &mut conf.span_name),
    },
    Directive {
        name: "opentelemetry_attribute",
        syntax: "name value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "The contrib module's `otel_span_attr`; lines add to those of outer blocks.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Many, add_attribute),
    },
    Directive {
        name: "opentelemetry_propagate",
        syntax: "[b3 | b3multi]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Passes the request's span to upstream servers, in the headers of W3C Trace Context or B3, and takes the client's \
              from there, unless `opentelemetry_trust_incoming_spans` is off.",
        set: Setter::Custom(Arity::between(0, 1), RepeatRule::Once, |conf, line| {
            let formats = [HeaderFormat::B3, HeaderFormat::B3Multi, HeaderFormat::W3c];
            conf.contrib.propagates = Some(match line.get(0) {
                None => HeaderFormat::W3c,
                Some(_) => formats[line.word(0, &["b3", "b3multi", "w3c"])?],
            });
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_trust_incoming_spans",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Whether a request's span is a child of the one that its headers name, where `opentelemetry_propagate` is used.",
        set: Setter::Flag(|conf| &mut conf.contrib.trusts),
    },
    Directive {
        name: "opentelemetry_capture_headers",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Adds the headers of request and response as attributes. `Authorization`, `Proxy-Authorization`, `Cookie` and \
              `Set-Cookie` are never shown.",
        set: Setter::Flag(|conf| &mut conf.contrib.captures),
    },
    Directive {
        name: "opentelemetry_sensitive_header_names",
        syntax: "regex",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Of captured headers whose names match, the value is `[REDACTED]`.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.contrib.secret_names = Some(line.regex(0, line.text(0), true)?);
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_sensitive_header_values",
        syntax: "regex",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Values of captured headers that match are shown as `[REDACTED]`.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.contrib.secret_values = Some(line.regex(0, line.text(0), true)?);
            Ok(())
        }),
    },
    Directive {
        name: "opentelemetry_ignore_paths",
        syntax: "regex",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Requests whose original target matches are not recorded by `opentelemetry`.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.contrib.ignored_paths = Some(line.regex(0, line.text(0), true)?);
            Ok(())
        }),
    },
])
.finish_changed(finish);

/// Reads `otel_span_attr`.
fn add_attribute(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.text(0).to_str_lossy();
    let is_list =
        name.starts_with("http.request.header.") || name.starts_with("http.response.header.");
    conf.attributes.push(SpanAttribute {
        name: name.into(),
        value: line.expression(1)?,
        is_list,
    });
    Ok(())
}

/// Derives the rule of a block.
fn finish(
    conf: &mut Conf,
    outer: Option<&Conf>,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    if outer.is_none() {
        let lines = *level.shared::<ExporterLines>();
        conf.exports = lines.exports;
        conf.is_contrib_exporter = lines.is_contrib;
    }
    conf.rule = match &conf.trace {
        Some(value) => match value.constant().map(|text| text.as_bytes()) {
            Some(b"on" | b"1") => TraceRule::Always,
            Some(_) => TraceRule::Never,
            None => TraceRule::Value(value.clone()),
        },
        None if conf.contrib.enabled.unwrap_or(conf.is_contrib_exporter) => TraceRule::Sampler,
        None => TraceRule::Never,
    };
    let wants = |name: &str, level: &BlockContext| level.seen_directive(name);
    match conf.rule {
        TraceRule::Never => Ok(()),
        _ if conf.exports => Ok(()),
        TraceRule::Sampler => {
            let why = "there is no exporter: \"opentelemetry_config\" or \"opentelemetry_otlp_traces_endpoint\" is missing";
            let error = Diagnostic::error(why, wants("opentelemetry", level));
            Err(error.note("the contrib module's default is opentelemetry_otlp_traces_endpoint http://localhost:4318/v1/traces"))
        }
        TraceRule::Always | TraceRule::Value(_) => {
            let place = wants("otel_trace", level);
            let error = Diagnostic::error("\"otel_exporter\" block is missing", place);
            Err(error.note("it says where spans go: otel_exporter { endpoint localhost:4317; }"))
        }
    }
}

/// What a redacted value shows.
pub(super) const REDACTED: &[u8] = b"[REDACTED]";

/// The text of a name that spans show.
pub(super) type SpanName = BString;
