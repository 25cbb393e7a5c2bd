//! `prometheus`: the server's metrics, for Prometheus and whatever reads its format.
//!
//! ```nginx
//! server {
//!     status_zone shop;
//!     location = /metrics { prometheus; allow 127.0.0.1; deny all; }
//! }
//! ```
//!
//! Prometheus gets OpenMetrics 1.0 if it asks for it, and its older text format otherwise. Every module with something to
//! count has its families in [`HttpModule::metrics`]; those of requests are here, see [`collect`]. All of it is put
//! together on a thread of a pool: however many servers there are, no loop waits.
//!
//! Angie's form `prometheus NAME;` is accepted, and so are its templates. The metrics are always Weir's own.

mod collect;
mod exposition;

use bstr::ByteSlice;
use conf::{
    Arity, Directive, DirectiveTable, HTTP, LOCATION, RepeatRule, SERVER, SERVER_LOCATION, Setter,
};

use host::engine::ZoneRegistry;
use http::http_loop::HttpLoop;
use http::http_site::FrozenHttp;
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};

use proto::KnownField;
use proto::message::Method;

use crate::shared::observation::{self, Observation, StatusZone};
use exposition::{ExpositionFormat, MetricText};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "prometheus",
    doc: "Shows metrics, in the formats of Prometheus and OpenMetrics.",
    main: &TEMPLATES,
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["prometheus"],
        when: |location| location.confs.get::<Conf>().on,
        handler: page,
        adds_slash: false,
        declines: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.on, |conf| conf.on = false),
    commit: |site, zones| {
        let mut locations = site.all_locations();
        let has_page = locations.any(|location| location.confs.get::<Conf>().on);
        observation::commit(site, zones, has_page);
    },
    start: |http| {
        observation::start(http);
        answer_groups(http);
    },
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["prometheus"])]),
    ..HttpModule::EMPTY
};

/// `status_zone`.
pub(crate) static ZONES: HttpModule = HttpModule {
    name: "status_zone",
    doc: "Counts the requests of a server or location under a name.",
    location: &ZONE_DIRECTIVES,
    nested: |confs| {
        let is_servers = |zone: &StatusZone| matches!(zone, StatusZone::Server(_));
        confs.change_if::<StatusZone>(is_servers, |zone| *zone = StatusZone::None);
    },
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "prometheus",
    syntax: "[template]",
    default: None,
    contexts: LOCATION,
    since: "0.2",
    doc: "Responds with metrics: in OpenMetrics 1.0 if the client accepts that, otherwise in the text format of \
          Prometheus. The name of a template, as Angie has them, is accepted and has no effect.",
    set: Setter::Custom(Arity::between(0, 1), RepeatRule::Many, |conf, _| {
        conf.on = true;
        Ok(())
    }),
}]);

static TEMPLATES: DirectiveTable<TemplateConf> = DirectiveTable::new(&[Directive {
    name: "prometheus_template",
    syntax: "name { … }",
    default: None,
    contexts: HTTP,
    since: "0.2",
    doc: "A template of Angie's. It is accepted, so that its configurations can be read, and has no effect.",
    set: Setter::Block(Arity::ONE, RepeatRule::Many, |_, line| {
        line.warn("\"prometheus_template\" has no effect: \"prometheus\" shows Weir's own metrics");
        Ok(())
    }),
}]);

static ZONE_DIRECTIVES: DirectiveTable<StatusZone> = DirectiveTable::new(&[Directive {
    name: "status_zone",
    syntax: "name | off",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.2",
    doc: "Counts the requests of this server or location under a name, for `prometheus`, `api` and `weir_status`. Several \
          blocks may have the same name. Locations inside a location inherit its zone, unless they have `off` or one of \
          their own. A request counts in the zone of its server, and in that of the location where it ends.",
    set: Setter::Custom(Arity::ONE, RepeatRule::Once, |zone, line| {
        let name = line.text(0);
        if name.contains(&b'$') {
            return Err(line.error_at(0, "\"status_zone\" with variables is not supported"));
        }
        let name = name.to_str_lossy();
        *zone = match (&*name, line.level.context == SERVER) {
            ("off", _) => StatusZone::None,
            (name, true) => StatusZone::Server(name.into()),
            (name, false) => StatusZone::Location(name.into()),
        };
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// Templates are not kept.
#[derive(Clone, Debug, Default)]
struct TemplateConf;

/// The topic of questions between worker groups. The body is empty for text, and anything else for OpenMetrics.
const TOPIC: &str = "metrics";

/// Lets other worker groups ask for this one's metrics.
fn answer_groups(http: &HttpLoop) {
    let group = http.zones.group();
    if http.index == 0 && group.has_siblings() {
        let (zones, modules) = (http.zones.clone(), http.modules());
        group.on_message(TOPIC, move |format| {
            let format = match format.is_empty() {
                true => ExpositionFormat::Text,
                false => ExpositionFormat::OpenMetrics,
            };
            let site = Observation::of(&zones).site()?;
            Some(own_metrics(&site, &zones, modules, format))
        });
    }
}

/// The metrics of this process. With several worker groups each sample says which one it is from.
fn own_metrics(
    site: &FrozenHttp,
    zones: &ZoneRegistry,
    modules: &[&HttpModule],
    format: ExpositionFormat,
) -> Vec<u8> {
    let group = zones.group();
    let index = group.has_siblings().then(|| group.place().index);
    let mut text = MetricText::new(format, index);
    collect::collect_all(site, zones, modules, &mut text);
    text.finish()
}

/// The content handler.
fn page(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Status(405).into();
    }
    let accept = request.head.known(KnownField::Accept);
    let format = ExpositionFormat::accepted_by(accept.unwrap_or_default());
    let Some(engine) = http::current_loop::http_loop() else {
        return HandlerOutcome::Declined.into();
    };
    let site = request.site.shared();
    HandlerStep::later(async move {
        let (zones, modules) = (engine.zones.clone(), engine.modules());
        let question: &[u8] = match format {
            ExpositionFormat::Text => b"",
            ExpositionFormat::OpenMetrics => b"1",
        };
        let answers = zones.group().ask(TOPIC, question);
        let pool = rt::pool::default_pool();
        let own = pool.run(move || own_metrics(&site, &zones, modules, format));
        let mut parts = vec![own.await];
        for answer in answers {
            // One that has just crashed is missing.
            parts.extend(answer.wait().await);
        }
        let text = match parts.len() {
            1 => parts.swap_remove(0),
            _ => pool.run(move || exposition::join_families(&parts)).await,
        };
        request.out.status = 200;
        request.out.content_type = format.content_type().into();
        request.out.fields.set(b"Cache-Control", b"no-store");
        request.out.body = ResponseBody::bytes(text);
        HandlerOutcome::Respond
    })
}
