//! `weir_status`: the state of the server, as a page for people, as JSON for programs and as text for terminals.
//!
//! ```nginx
//! location = /weir/status { weir_status; }
//! ```
//!
//! What a request gets depends on its `Accept`: a browser the page, which reads the JSON every two seconds; `curl` the text.
//! The page is one file in the program; it loads nothing from elsewhere, and what it shows is set as text, never as HTML.
//!
//! It is for this machine only, unless the location has an access rule ([`guard`]). With `worker_groups` it has the state of
//! all groups, and says which does not answer. nginx has no equivalent; the names are Weir's own and may change before 1.0.

mod data;
mod lists;
mod text;

use std::fmt::Write;
use std::sync::Arc;

use self::lists::{cache_json, copies_json, loop_json, pool_json, spans_json};
use crate::shared::compressed_copies::CompressedCopies;
use crate::shared::observation::{self, Observation};
use crate::shared::span_counters::SpanCounters;
use crate::shared::status::{StatusView, guard};
use bstr::ByteSlice;
use conf::{Arity, Directive, DirectiveTable, RepeatRule, SERVER_LOCATION, Setter};
use host::engine::ZoneRegistry;
use host::worker_group::WorkerGroup;
use http::cache::{CacheZone, CacheZones};
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use net::counters::{self, AllCounters, CountedLoop};
use proto::KnownField;
use proto::message::Method;
use rt::pool::PoolHandle;
use rt::stats::LoopStats;
use serde_json::Value;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "weir_status",
    doc: "Shows the state of the server: servers, upstream servers, caches, limits, loops, errors.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["weir_status"],
        when: |location| location.confs.get::<Conf>().format.is_some(),
        handler: page,
        adds_slash: false,
        declines: false,
    }),
    nested: |confs| {
        confs.change_if::<Conf>(|conf| conf.format.is_some(), |conf| conf.format = None)
    },
    commit: |site, zones| {
        let mut locations = site.all_locations();
        let has_page = locations.any(|location| location.confs.get::<Conf>().format.is_some());
        observation::commit(site, zones, has_page);
        answer_groups(zones);
    },
    start: observation::start,
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["weir_status"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "weir_status",
    syntax: "[html | json | text]",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.1",
    doc: "Responds with the state of the server: a page for browsers, JSON or text, as `Accept` says, or always the \
          named one. Only this machine may ask, by an address, `localhost` or a name of the server, unless the location \
          has an access rule (`allow`, `auth_basic`, ...), which then decides.",
    set: Setter::Custom(Arity::between(0, 1), RepeatRule::Many, |conf, line| {
        let formats = [StatusFormat::Html, StatusFormat::Json, StatusFormat::Text];
        conf.format = Some(match line.get(0) {
            None => ConfiguredFormat::Accepted,
            Some(_) => ConfiguredFormat::Always(formats[line.word(0, &["html", "json", "text"])?]),
        });
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    format: Option<ConfiguredFormat>,
}

/// Which format a location has.
#[derive(Clone, Copy, Debug)]
enum ConfiguredFormat {
    /// What the client accepts.
    Accepted,
    /// This one. The page still gets its JSON, which it asks for at its own address.
    Always(StatusFormat),
}

/// The format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusFormat {
    Html,
    Json,
    Text,
}

impl ConfiguredFormat {
    /// The format for a client that accepts this.
    fn chosen(self, accept: &[u8]) -> StatusFormat {
        let wants_json = accept == b"application/json";
        match self {
            ConfiguredFormat::Always(StatusFormat::Html) if wants_json => StatusFormat::Json,
            ConfiguredFormat::Always(format) => format,
            // Only browsers name HTML; `curl` accepts anything.
            ConfiguredFormat::Accepted if accept.contains_str("text/html") => StatusFormat::Html,
            ConfiguredFormat::Accepted if accept.contains_str("application/json") => {
                StatusFormat::Json
            }
            ConfiguredFormat::Accepted => StatusFormat::Text,
        }
    }
}

/// The page, with a place for the number that its scripts and styles must have.
const PAGE: &str = include_str!("page.html");

/// The topic of questions between worker groups; the body is `json` or `text`.
const TOPIC: &str = "status";

/// Lets other worker groups ask for this one's part of the page.
fn answer_groups(zones: &ZoneRegistry) {
    let group = zones.group();
    if group.has_siblings() {
        let zones = zones.clone();
        group.on_message(TOPIC, move |format| {
            let format = match format {
                b"json" => StatusFormat::Json,
                _ => StatusFormat::Text,
            };
            let site = Observation::of(&zones).site()?;
            Some(group_part(format, &StatusView::new(site, &zones)).into_bytes())
        });
    }
}

/// The state of this group: a text, or the lists of the JSON object, one in each line, and then the rest of it.
fn group_part(format: StatusFormat, view: &StatusView) -> String {
    let zones = &view.zones;
    // Everything is read before anything is formatted, so that the numbers are as close in time as they can be.
    let (loops, pools) = (loops(zones), rt::pool::all());
    let caches = view.site.main_confs.get::<CacheZones>().all_zones();
    match format {
        StatusFormat::Text => {
            text(&loops, &pools)
                + &cache_text(&caches)
                + &copies_text(zones)
                + &spans_text(zones)
                + &text::more(view)
        }
        StatusFormat::Json | StatusFormat::Html => {
            let [loops, pools, caches, copies, spans] =
                json_lists(zones.group().place(), &loops, &pools, &caches, zones);
            let (servers, groups) = (data::servers(view), data::groups(view));
            let rest = data::more(view).to_string();
            [loops, pools, caches, copies, spans, servers, groups, rest].join("\n")
        }
    }
}

/// The text or the JSON of all groups.
async fn whole_state(format: StatusFormat, view: StatusView) -> String {
    let zones = view.zones.clone();
    let group = zones.group();
    let word: &[u8] = match format {
        StatusFormat::Text => b"text",
        StatusFormat::Json | StatusFormat::Html => b"json",
    };
    let answers = group.ask(TOPIC, word);
    let pool = rt::pool::default_pool();
    let own = pool.run(move || group_part(format, &view)).await;
    let mut parts = vec![(group.place().index, Some(own))];
    for answer in answers {
        let index = answer.group;
        let part = answer.wait().await.filter(|part| !part.is_empty());
        parts.push((index, part.and_then(|part| String::from_utf8(part).ok())));
    }
    parts.sort_unstable_by_key(|(index, _)| *index);
    pool.run(move || match format {
        StatusFormat::Text if parts.len() == 1 => {
            parts.pop().and_then(|(_, part)| part).unwrap_or_default()
        }
        StatusFormat::Text => groups_text(&parts),
        StatusFormat::Json | StatusFormat::Html => groups_json(&parts),
    })
    .await
}

/// The parts of the groups, each under a heading.
fn groups_text(parts: &[(usize, Option<String>)]) -> String {
    let mut out = String::new();
    for (index, part) in parts {
        let count = parts.len();
        let _ = match part {
            Some(part) => writeln!(out, "worker group {index} of {count}\n\n{part}"),
            None => writeln!(out, "worker group {index} of {count} does not answer\n"),
        };
    }
    out
}

/// The lists of the groups, joined, and the rest, added up. A group that does not answer is in none of them.
fn groups_json(parts: &[(usize, Option<String>)]) -> String {
    let joined = std::array::from_fn(|list| {
        let lists = parts.iter().filter_map(|(_, part)| {
            let list = part.as_ref()?.split('\n').nth(list)?;
            Some(list).filter(|list| !list.is_empty())
        });
        lists.collect::<Vec<_>>().join(",")
    });
    if let [(_, Some(part))] = parts {
        // The usual case: there is nothing to join.
        let rest = part.split('\n').nth(LISTS.len());
        return json_object(&joined, rest.unwrap_or_default());
    }
    let rest = parts.iter().filter_map(|(_, part)| {
        let rest = part.as_ref()?.split('\n').nth(LISTS.len())?;
        serde_json::from_str::<Value>(rest).ok()
    });
    let mut rest = data::join(rest);
    let answered = parts.iter().filter(|(_, part)| part.is_some()).count();
    rest["groups"] = parts.len().into();
    rest["groups_answered"] = answered.into();
    json_object(&joined, &rest.to_string())
}

/// The names of the lists of the JSON object, in the order of [`group_part`].
const LISTS: [&str; 7] = [
    "loops",
    "pools",
    "caches",
    "compressed_copies",
    "spans",
    "servers",
    "upstreams",
];

/// The JSON object: the lists, and the rest.
fn json_object(lists: &[String; LISTS.len()], rest: &str) -> String {
    // Without its braces.
    let rest = rest
        .get(1..rest.len().saturating_sub(1))
        .unwrap_or_default();
    let comma = if rest.is_empty() { "" } else { "," };
    let named = LISTS.iter().zip(lists);
    let lists: Vec<String> = named
        .map(|(name, list)| format!("\"{name}\":[{list}]"))
        .collect();
    format!("{{{}{comma}{rest}}}\n", lists.join(","))
}

/// The elements of the short lists. With several groups each says which it belongs to.
fn json_lists(
    group: WorkerGroup,
    loops: &[LoopStatus],
    pools: &[PoolHandle],
    caches: &[Arc<CacheZone>],
    zones: &ZoneRegistry,
) -> [String; 5] {
    let lists: [Vec<String>; 5] = [
        loops.iter().map(loop_json).collect(),
        pools.iter().map(pool_json).collect(),
        caches.iter().map(|cache| cache_json(cache)).collect(),
        CompressedCopies::of(zones)
            .iter()
            .map(|all| copies_json(all))
            .collect(),
        spans_json(zones).into_iter().collect(),
    ];
    lists.map(|list| match group.count {
        1 => list.join(","),
        _ => {
            let index = group.index;
            let with_group =
                |object: String| object.replacen('{', &format!("{{\"group\":{index},"), 1);
            let list: Vec<String> = list.into_iter().map(with_group).collect();
            list.join(",")
        }
    })
}

/// A snapshot of an event loop.
struct LoopStatus {
    /// Its number among the loops of all groups.
    index: usize,
    counted: CountedLoop,
    /// How long its current iteration has lasted, in milliseconds.
    late_ms: u128,
    stats: Option<LoopStats>,
}

/// The content handler.
fn page(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Status(405).into();
    }
    // Not reached: without a format this handler is not the location's.
    let Some(format) = request.conf::<Conf>().format else {
        return HandlerOutcome::Declined.into();
    };
    if let Err(why) = guard::admit_page(request) {
        return guard::refuse(request, why).into();
    }
    let accept = request.head.known(KnownField::Accept).unwrap_or_default();
    let format = format.chosen(accept);
    let Some(engine) = http::current_loop::http_loop() else {
        return HandlerOutcome::Declined.into();
    };
    if format == StatusFormat::Html {
        return match nonce() {
            Some(nonce) => respond_page(request, &nonce).into(),
            None => HandlerOutcome::Status(500).into(),
        };
    }
    let view = StatusView::new(request.site.shared(), &engine.zones);
    HandlerStep::later(async move {
        let state = whole_state(format, view).await;
        respond(request, format, state)
    })
}

/// A number that nobody can guess, for the page's own script and style.
fn nonce() -> Option<String> {
    let mut bytes = [0; 16];
    rt::random::fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Responds with the page. Its script and style are the only ones that may run in it, and it can ask nobody but this server.
fn respond_page(request: &mut Request, nonce: &str) -> HandlerOutcome {
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let fields = &mut request.out.fields;
    fields.set(b"Content-Security-Policy", policy.as_bytes());
    fields.set(b"Referrer-Policy", b"no-referrer");
    respond(
        request,
        StatusFormat::Html,
        PAGE.replace("%%NONCE%%", nonce),
    )
}

/// Responds with a state or with the page.
fn respond(request: &mut Request, format: StatusFormat, page: String) -> HandlerOutcome {
    let content_type = match format {
        StatusFormat::Html => "text/html; charset=utf-8",
        StatusFormat::Text => "text/plain",
        StatusFormat::Json => "application/json",
    };
    let out = &mut request.out;
    out.status = 200;
    out.content_type = content_type.into();
    // A cached status misleads.
    out.fields.set(b"Cache-Control", b"no-store");
    out.fields.set(b"Vary", b"Accept");
    out.fields.set(b"X-Content-Type-Options", b"nosniff");
    out.body = ResponseBody::bytes(page);
    HandlerOutcome::Respond
}

/// Takes a snapshot of all event loops of this process. The counters are read one after the other while the loops
/// run, so sums may be off by what happens meanwhile.
fn loops(zones: &ZoneRegistry) -> Vec<LoopStatus> {
    let all = zones
        .get_or_create(counters::ZONE, AllCounters::default)
        .loops();
    let first = zones.first_loop();
    let state = |(index, counted): (usize, CountedLoop)| {
        // A loop that is stuck cannot report that itself, so it is asked from outside.
        let late = counted
            .handle
            .as_ref()
            .map(rt::LoopHandle::turn_duration)
            .unwrap_or_default();
        let stats = counted.handle.as_ref().map(rt::LoopHandle::stats);
        LoopStatus {
            index: first + index,
            counted,
            late_ms: late.as_millis(),
            stats,
        }
    };
    all.into_iter().enumerate().map(state).collect()
}

/// The loops and pools as tables. Writing to a `String` cannot fail, so the results of `write!` are
/// ignored here and below.
fn text(loops: &[LoopStatus], pools: &[PoolHandle]) -> String {
    let mut out = String::new();
    write_loops(loops, &mut out);
    write_turn_times(loops, &mut out);
    write_pools(pools, &mut out);
    out
}

/// The counters of each event loop.
fn write_loops(loops: &[LoopStatus], out: &mut String) {
    let _ = writeln!(
        out,
        "{:>4} {:>11} {:>7} {:>7} {:>7} {:>10} {:>5} {:>10} {:>9} {:>10} {:>6}",
        "loop",
        "connections",
        "reading",
        "writing",
        "waiting",
        "requests",
        "tasks",
        "turns",
        "busy, ms",
        "in turn, ms",
        "panics"
    );
    for LoopStatus {
        index,
        counted,
        late_ms,
        stats,
    } in loops
    {
        let counters = &counted.counters;
        // Read one after the other, so they need not add up.
        let connections = [
            &counters.active,
            &counters.reading,
            &counters.writing,
            &counters.waiting,
        ]
        .map(|counter| counter.get());
        let [active, reading, writing, waiting] = connections;
        let requests = counters.requests.get();
        let _ = write!(
            out,
            "{index:>4} {active:>11} {reading:>7} {writing:>7} {waiting:>7} {requests:>10}"
        );
        // Only a loop that is running has them.
        if let Some(stats) = stats {
            let busy = stats.busy.as_millis();
            let _ = write!(
                out,
                " {:>5} {:>10} {busy:>9} {late_ms:>11} {:>6}",
                stats.tasks, stats.turns, stats.panics
            );
        }
        out.push('\n');
    }
}

/// How many turns of each loop took how long.
fn write_turn_times(loops: &[LoopStatus], out: &mut String) {
    out.push_str("\niterations by duration, each column below this many microseconds\nloop");
    let columns = loops
        .iter()
        .filter_map(|state| state.stats.as_ref())
        .map(|stats| used_buckets(&stats.turn_times))
        .max();
    // Only as many columns as the slowest iteration needs.
    let columns = columns.unwrap_or(0);
    for bucket in 0..columns {
        let _ = write!(out, " {:>9}", 1_u64 << bucket);
    }
    out.push('\n');
    for LoopStatus { index, stats, .. } in loops {
        let _ = write!(out, "{index:>4}");
        // Every row has all columns, so that they line up.
        for count in stats.iter().flat_map(|stats| &stats.turn_times[..columns]) {
            let _ = write!(out, " {count:>9}");
        }
        out.push('\n');
    }
}

/// The queues of the thread pools: a long one means that disks, or slow work, hold up requests.
fn write_pools(pools: &[PoolHandle], out: &mut String) {
    let _ = writeln!(
        out,
        "\n{:<20} {:>7} {:>7} {:>7} {:>7} {:>10}",
        "pool", "threads", "running", "queued", "waiting", "done"
    );
    for pool in pools {
        let stats = pool.stats();
        let _ = writeln!(
            out,
            "{:<20} {:>7} {:>7} {:>7} {:>7} {:>10}",
            pool.name(),
            stats.threads,
            stats.running,
            stats.queued,
            stats.waiting,
            stats.done
        );
    }
}

/// The caches as a table; empty if there is none.
fn cache_text(caches: &[Arc<CacheZone>]) -> String {
    let mut out = String::new();
    if !caches.is_empty() {
        let _ = writeln!(
            out,
            "\n{:<20} {:>10} {:>15} {:>8} {:>10} {:>10} {:>10} {:>10} {:>6} {:>11}  path",
            "cache",
            "objects",
            "bytes",
            "segments",
            "index",
            "memory",
            "stored",
            "evicted",
            "fills",
            "opened, ms",
        );
    }
    for cache in caches {
        let (name, path) = (cache.name(), cache.path().display());
        let _ = match (cache.stats(), cache.found_at_open()) {
            (Some(stats), Some(found)) => writeln!(
                out,
                "{name:<20} {:>10} {:>15} {:>8} {:>10} {:>10} {:>10} {:>10} {:>6} {:>11}  {path}",
                stats.objects,
                stats.size,
                stats.segments,
                stats.index_memory,
                stats.memory,
                stats.stored,
                stats.evicted,
                stats.fills,
                found.took.as_millis(),
            ),
            // A cache that could not be opened does not keep the server from starting, so this page has to tell.
            _ => writeln!(out, "{name:<20} not open  {path}"),
        };
        // Also for a cache that is not open: it says why.
        if let Some(trouble) = cache.last_error() {
            let _ = writeln!(out, "{:<20} {trouble}", "");
        }
    }
    out
}

/// The number of buckets up to the last one that is not empty, so that columns of zeros are left
/// out.
fn used_buckets(buckets: &[u64]) -> usize {
    buckets
        .iter()
        .rposition(|count| *count > 0)
        .map_or(0, |last| last + 1)
}

/// The compressed copies as a line of numbers; empty without memory for them.
fn copies_text(zones: &ZoneRegistry) -> String {
    let Some(copies) = CompressedCopies::of(zones) else {
        return String::new();
    };
    let totals = copies.totals();
    let mut out = format!(
        "\ncompressed copies: {} with {} of {} bytes, {} being made\n ",
        totals.copies, totals.held, totals.limit, totals.fills
    );
    for (name, value) in copies.counters.all() {
        let _ = write!(out, " {name} {value}");
    }
    out.push('\n');
    out
}

/// What became of spans; empty if none were ever exported.
fn spans_text(zones: &ZoneRegistry) -> String {
    let mut out = String::new();
    if let Some(counters) = SpanCounters::existing(zones) {
        out.push_str("\nspans\n");
        for (name, count) in counters.totals() {
            let _ = writeln!(out, "{name:<20} {count:>10}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::lists::json_string;
    use super::*;

    #[test]
    fn pages_of_nothing_are_well_formed() {
        let zones = ZoneRegistry::default();
        let mut lists: [String; LISTS.len()] = Default::default();
        lists[..5].clone_from_slice(&json_lists(WorkerGroup::ALONE, &[], &[], &[], &zones));
        let empty = LISTS.map(|name| format!("\"{name}\":[]")).join(",");
        assert_eq!(json_object(&lists, "{}"), format!("{{{empty}}}\n"));
        let rest = serde_json::json!({ "a": { "b": [{}] } });
        assert_eq!(
            json_object(&lists, &rest.to_string()),
            format!("{{{empty},\"a\":{{\"b\":[{{}}]}}}}\n")
        );
        assert_eq!(cache_text(&[]), "");
        assert!(text(&[], &[]).starts_with("loop "));
        assert_eq!(used_buckets(&[0, 3, 0, 1, 0]), 4);
        assert_eq!(used_buckets(&[0, 0]), 0);
    }

    #[test]
    fn a_client_gets_what_it_accepts() {
        let browser = b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        let formats = |configured: ConfiguredFormat| {
            [&browser[..], b"application/json", b"*/*", b""].map(|accept| configured.chosen(accept))
        };
        use StatusFormat::{Html, Json, Text};
        assert_eq!(
            formats(ConfiguredFormat::Accepted),
            [Html, Json, Text, Text]
        );
        assert_eq!(
            formats(ConfiguredFormat::Always(Html)),
            [Html, Json, Html, Html]
        );
        assert_eq!(formats(ConfiguredFormat::Always(Text)), [Text; 4]);
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for word in [
            "http://",
            "https://",
            "src=",
            "@import",
            "url(",
            "innerHTML",
            "eval(",
        ] {
            let uses = PAGE.matches(word).count();
            // The name of SVG's elements, which is no address.
            assert_eq!(uses, usize::from(word == "http://"), "{word}");
        }
        assert_eq!(PAGE.matches("%%NONCE%%").count(), 2);
    }

    #[test]
    fn a_pool_s_name_is_a_string_of_json() {
        assert_eq!(
            json_string("a \"b\" \\ \u{1}é"),
            "\"a \\\"b\\\" \\\\ \\u0001é\""
        );
        let pool = PoolHandle::new("x", 1, 1);
        assert_eq!(
            pool_json(&pool),
            "{\"pool\":\"x\",\"threads\":0,\"running\":0,\"queued\":0,\"waiting\":0,\"done\":0}"
        );
    }
}
