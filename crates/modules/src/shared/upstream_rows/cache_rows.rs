//! The rows about caching, without prefix: `proxy_cache`, `fastcgi_cache`, `proxy_cache_valid`, …

use std::sync::Arc;

use bstr::ByteSlice;
use conf::directive_contexts::HTTP_SERVER_LOCATION;
use conf::{
    Arity, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    RepeatRule, Setter, Span, parse,
};
use http::cache::{CacheChoice, CacheCondition, CacheZones, StatusHeader};
use http::upstream::RetryReasons;
use http::upstream::UpstreamSettings;
use http::upstream::upstream_settings::UpstreamStore;
use net::cluster::Clusters;
use proto::KnownField;
use proto::caching::{HeuristicLifetime, StoringRules};
use proto::message::Method;

/// A row of this table.
const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<UpstreamSettings>,
) -> Directive<UpstreamSettings> {
    Directive {
        name,
        syntax,
        default,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc,
        set,
    }
}

/// The methods whose responses can be cached.
const METHODS: [(&str, Method); 3] = [
    ("GET", Method::Get),
    ("HEAD", Method::Head),
    ("POST", Method::Post),
];

pub(super) static ROWS: DirectiveTable<UpstreamSettings> = DirectiveTable::new(&[
    row(
        // A `*_cache_path` defines a cache for all protocols, not only for the one of its prefix.
        "cache",
        "zone [cluster=name] | off",
        Some("off"),
        "The cache to use, by the name of its `keys_zone`. May contain variables; `off` and an empty value disable \
         caching. With `cluster`, what is not in the cache is asked of the member of the `cluster` that owns its key, so \
         that the origin is asked once for all members.",
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, cache),
    ),
    row(
        // Only `proxy_cache` has a default, the URL that is requested.
        "cache_key",
        "string",
        None,
        "The key that a response is stored under.",
        Setter::OptionalValue(|c| &mut c.cache.key),
    ),
    row(
        "cache_valid",
        "[code …] time",
        None,
        "How long responses without freshness information of their own are fresh, by status. `any` means every status; \
         without a status, 200, 301 and 302.",
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.cache.valid.clear()),
            valid,
        ),
    ),
    row(
        "cache_methods",
        "GET | HEAD | POST …",
        Some("GET HEAD"),
        "The methods whose responses are cached. GET and HEAD always are.",
        Setter::Custom(Arity::at_least(1), RepeatRule::Once, methods),
    ),
    row(
        "cache_min_uses",
        "number",
        Some("1"),
        "The number of requests for a key after which its response is stored.",
        Setter::Number(|c| &mut c.cache.min_uses, 0, i64::MAX),
    ),
    row(
        "cache_bypass",
        "string …",
        None,
        "Bypasses the cache if one of these values is neither empty nor `0`. The response may still be stored.",
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.cache.bypass.clear()),
            |c, line| add_conditions(&mut c.cache.bypass, line),
        ),
    ),
    row(
        "no_cache",
        "string …",
        None,
        "Does not store the response if one of these values is neither empty nor `0`.",
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.cache.no_cache.clear()),
            |c, line| add_conditions(&mut c.cache.no_cache, line),
        ),
    ),
    row(
        "cache_purge",
        "string …",
        None,
        "If one of these values is neither empty nor `0`, the request purges its key: 204, or 412 if nothing was \
         stored. A key that ends with `*` purges all keys with that prefix.",
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.cache.purge.clear()),
            |c, line| add(&mut c.cache.purge, line),
        ),
    ),
    row(
        "cache_use_stale",
        "error | timeout | invalid_header | updating | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | off …",
        Some("off"),
        "When to serve a stale object: after which errors and, with `updating`, while it is being updated.",
        Setter::Bits(RetryReasons::WORDS, |c| c.cache.use_stale.bits_mut()),
    ),
    row(
        // Without it too, a stale object is refreshed by a single request.
        "cache_background_update",
        "on | off",
        Some("off"),
        "Whether to update a stale object in the background while serving it to the request that found it stale.",
        Setter::Flag(|c| &mut c.cache.background_update),
    ),
    row(
        "cache_revalidate",
        "on | off",
        Some("off"),
        "Whether to revalidate stale objects with `If-Modified-Since` and `If-None-Match`.",
        Setter::Flag(|c| &mut c.cache.revalidate),
    ),
    row(
        // nginx's default is off: then every request for an object that has just expired goes to
        // the server.
        "cache_lock",
        "on | off",
        Some("on"),
        "Whether concurrent requests for a key share a single fetch (request collapsing). `off` fetches for each \
         request.",
        Setter::Flag(|c| &mut c.cache.lock),
    ),
    row(
        // nginx's default is 5 s. With a slow server that would send all waiting requests to it at
        // once.
        "cache_lock_timeout",
        "time",
        None,
        "How long a request waits for the response header of a fetch started by another one. After that it fetches the \
         response itself, without storing it. By default it waits as long as the fetch takes.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.cache.lock_timeout = Some(line.millis(0)?);
            Ok(())
        }),
    ),
    row(
        // nginx's default is 5 s; a slow response is not a dead one.
        "cache_lock_age",
        "time",
        None,
        "The age at which a fetch without a response header is considered dead, so that the next request starts \
         another one. By default only the timeouts of the upstream request apply.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.cache.lock_age = Some(line.millis(0)?);
            Ok(())
        }),
    ),
    row(
        // With `off` they must not share a key: a GET could get a length without content, as
        // happens with nginx.
        "cache_convert_head",
        "on | off",
        Some("on"),
        "Whether to fetch with GET for a HEAD request. If not, responses to HEAD are stored separately.",
        Setter::Flag(|c| &mut c.cache.convert_head),
    ),
    row(
        "cache_max_range_offset",
        "number",
        None,
        "Ranges that start at or after this offset are requested from the server as ranges and not stored. No limit by \
         default.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            let offset = line.offset(0)?;
            c.cache.max_range_offset = Some(u64::try_from(offset).unwrap_or(0));
            Ok(())
        }),
    ),
    row(
        // The rows from here on are Weir's own.
        "cache_partial",
        "on | off",
        Some("off"),
        "Whether to fetch only the requested range of a response that is not stored, and to store it as a part. With \
         `max_range_offset`, only for ranges that start at or after that offset.",
        Setter::Flag(|c| &mut c.cache.partial),
    ),
    row(
        "cache_language",
        "on | off",
        Some("off"),
        "Whether a variant by `Accept-Language` with a single language in its `Content-Language` also serves all other \
         requests that prefer this language.",
        Setter::Flag(|c| &mut c.cache.language),
    ),
    row(
        "cache_post",
        "on | off",
        Some("off"),
        "Whether to store a 200 response to POST for GET requests, if its `Content-Location` is the URL of the request \
         and it has explicit freshness (RFC 9110, section 9.3.3).",
        Setter::Flag(|c| &mut c.cache.post),
    ),
    row(
        // nginx aborts the client's connection instead.
        "cache_repeat_max",
        "size",
        Some("16m"),
        "The maximum amount received of an interrupted response without `ETag` and `Last-Modified` for which it is \
         fetched again from the start; the new bytes are compared with those received before. `0`: only if nothing had \
         been received.",
        Setter::Size(|c| &mut c.cache.repeat_max),
    ),
    row(
        // Otherwise requests for a response that is never stored would queue up behind each other.
        "cache_uncacheable_time",
        "time",
        Some("120s"),
        "How long to remember that a response was not cacheable (hit-for-miss): requests for its key do not wait for \
         each other during that time.",
        Setter::Millis(|c| &mut c.cache.uncacheable_time),
    ),
    row(
        // Off as in nginx, which ignores these headers: otherwise any client could force fetches.
        "cache_request_control",
        "on | off",
        Some("off"),
        "Whether to honour `Cache-Control` and `Pragma` of requests.",
        Setter::Flag(|c| &mut c.cache.request_control),
    ),
    row(
        // RFC 9111, section 4.4, requires it.
        "cache_invalidate",
        "on | off",
        Some("on"),
        "Whether a successful request with an unsafe method (POST, PUT, DELETE, …) purges its key.",
        Setter::Flag(|c| &mut c.cache.invalidate),
    ),
    row(
        // RFC 9111, section 5.2.2.2, requires it; nginx does not look at these directives.
        "cache_must_revalidate",
        "on | off",
        Some("on"),
        "Whether `must-revalidate`, `proxy-revalidate` and `s-maxage` forbid serving stale objects.",
        Setter::Flag(|c| &mut c.cache.rules.obey_must_revalidate),
    ),
    row(
        // Off: RFC 9111, section 3.5, forbids it. nginx stores them.
        "cache_authorization",
        "on | off",
        Some("off"),
        "Whether to store responses to requests with `Authorization` that do not explicitly permit it.",
        Setter::Flag(|c| &mut c.cache.rules.share_authorized),
    ),
    row(
        // Off as in nginx, which does not guess.
        "cache_heuristic",
        "off | percent% [max]",
        Some("off"),
        "Heuristic freshness, for a response without freshness information and without `valid` for its status: this \
         percentage of the time since `Last-Modified`, at most `max` (1 day).",
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, heuristic),
    ),
    row(
        // RFC 9213 lets a cache choose the names it honours; this is the one that it defines.
        "cache_targeted",
        "name … | off",
        Some("CDN-Cache-Control"),
        "The targeted cache-control headers to honour, in order of preference: the first that a response has replaces \
         `Cache-Control` and `Expires` (RFC 9213).",
        Setter::Custom(Arity::at_least(1), RepeatRule::Once, targeted),
    ),
    row(
        "cache_status_header",
        "off | on | name",
        Some("off"),
        "Whether to report cache handling in `Cache-Status` (RFC 9211), and under which name; `on` uses that of the \
         server.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, status_header),
    ),
]);

/// Derives what follows from several rows together.
pub(super) fn finish(conf: &mut UpstreamSettings, prefix: &str, level: &mut BlockContext) {
    let ignored = conf.ignore_headers;
    let bits = [
        (KnownField::CacheControl, StoringRules::CACHE_CONTROL),
        (KnownField::Expires, StoringRules::EXPIRES),
        (KnownField::XAccelExpires, StoringRules::X_ACCEL_EXPIRES),
        (KnownField::SetCookie, StoringRules::SET_COOKIE),
        (KnownField::Vary, StoringRules::VARY),
    ];
    let bits = bits.iter().filter(|(field, _)| ignored.has(*field));
    conf.cache.rules.ignore = bits.fold(0, |all, (_, bit)| all | bit);
    conf.cache.rules.revalidate = conf.cache.revalidate;
    // Only `proxy_` has a default key, its URL. Others would store every response under the empty
    // key, so say it where the cache is turned on.
    let is_here = level.seen_directive("cache").is_some()
        || level.seen_directive(&format!("{prefix}cache")).is_some();
    if is_here && conf.cache.is_on() && conf.cache.key.is_none() && prefix != "proxy_" {
        let text = format!("no \"{prefix}cache_key\" for \"{prefix}cache\"");
        let span = level.seen_directive(&format!("{prefix}cache"));
        level.report(Diagnostic::warning(text, span.unwrap_or(Span::NONE)));
    }
}

/// Reads `…_cache`.
fn cache(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.cache.cluster = None;
    if line.args().len() == 2 {
        let name = line.text(1).strip_prefix(b"cluster=").unwrap_or_default();
        if name.is_empty() || line.text(0) == "off" {
            return Err(line.invalid_parameter(1));
        }
        let name = name.as_bstr().to_owned();
        conf.cache.cluster = Some(Clusters::refer_to_cluster(line, name.as_bstr()));
    }
    if line.text(0) == "off" {
        conf.cache.cache = CacheChoice::Off;
        return Ok(());
    }
    // Both would keep the response, in different forms. nginx refuses it too.
    if !matches!(conf.store, UpstreamStore::Off) {
        let prefix = line.name().strip_suffix(b"cache").unwrap_or_default();
        let what = format!("is incompatible with \"{}store\"", prefix.as_bstr());
        return Err(line.directive_error(&what));
    }
    conf.cache.cache = if Expression::has_variables(line.text(0)) {
        CacheChoice::Value(line.expression(0)?)
    } else {
        let zone = CacheZones::refer_to_zone(line, line.text(0));
        if let Some(cluster) = &conf.cache.cluster {
            CacheZones::join_cluster(line, &zone, cluster)?;
        }
        CacheChoice::Cache(zone)
    };
    Ok(())
}

/// Reads `…_cache_valid`.
fn valid(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    let time = parse::seconds(line.text(last)).ok_or_else(|| {
        line.error_at(last, format!("invalid time value \"{}\"", line.text(last)))
    })?;
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let list = &mut conf.cache.valid;
    // A time alone: nginx's three statuses.
    if last == 0 {
        list.extend([200, 301, 302].map(|status| (Some(status), seconds)));
        return Ok(());
    }
    for i in 0..last {
        let status =
            match &**line.text(i) {
                b"any" => None,
                text => Some(status(text).ok_or_else(|| {
                    line.error_at(i, format!("invalid status \"{}\"", line.text(i)))
                })?),
            };
        list.push((status, seconds));
    }
    Ok(())
}

/// A status code of a response.
fn status(text: &[u8]) -> Option<u16> {
    let status = text.to_str().ok()?.parse().ok()?;
    (100..600).contains(&status).then_some(status)
}

/// Reads `…_cache_methods`.
fn methods(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let words = METHODS.map(|(word, _)| word);
    let chosen = line.bits(&words, 0)?;
    let bits = METHODS
        .iter()
        .enumerate()
        .filter(|(i, _)| chosen & 1 << i != 0);
    conf.cache.methods = bits.fold(0, |all, (_, (_, method))| all | method.bit());
    Ok(())
}

/// Appends all words as conditions.
fn add_conditions(
    list: &mut Vec<CacheCondition>,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let place = line
        .sources()
        .place(line.node.name.span)
        .unwrap_or_default();
    // The name of the file is enough for the administrator, and reveals nothing about the machine to clients.
    let place: Arc<str> = place.rsplit('/').next().unwrap_or_default().into();
    for i in 0..line.args().len() {
        list.push(CacheCondition {
            value: line.expression(i)?,
            place: Arc::clone(&place),
        });
    }
    Ok(())
}

/// Appends all words as values.
fn add(list: &mut Vec<Expression>, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    for i in 0..line.args().len() {
        list.push(line.expression(i)?);
    }
    Ok(())
}

/// Reads `…_cache_heuristic` (RFC 9111, section 4.2.2).
fn heuristic(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.text(0) == "off" {
        conf.cache.rules.heuristic = None;
        return match line.get(1) {
            None => Ok(()),
            Some(_) => Err(line.invalid_parameter(1)),
        };
    }
    let percent = line
        .text(0)
        .strip_suffix(b"%")
        .and_then(|text| text.to_str().ok()?.parse().ok())
        .filter(|percent| (1..=100).contains(percent))
        .ok_or_else(|| line.invalid_value(0))?;
    let max = match line.get(1) {
        Some(_) => line.seconds(1)?.as_secs(),
        None => 86_400,
    };
    conf.cache.rules.heuristic = Some(HeuristicLifetime {
        percent,
        max_s: u32::try_from(max).unwrap_or(u32::MAX),
    });
    Ok(())
}

/// Reads `…_cache_targeted`. Field names are compared in lower case.
fn targeted(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let names = line.args().iter().filter(|word| !word.is("off"));
    conf.cache.rules.targeted = names
        .map(|word| word.text.to_ascii_lowercase().into_boxed_slice())
        .collect();
    Ok(())
}

/// Reads `…_cache_status_header`.
fn status_header(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.cache.status_header = match &**line.text(0) {
        b"off" => StatusHeader::Off,
        // A name identifies a cache within a chain of several.
        b"on" => StatusHeader::Named(b"weir".into()),
        name => StatusHeader::Named(name.into()),
    };
    Ok(())
}
