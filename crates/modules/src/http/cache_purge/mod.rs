//! `cache_purge`: a location for purging and inspecting a cache.
//!
//! ```nginx
//! location = /cache       { cache_purge pages; allow 10.0.0.0/8; deny all; }
//! location ~ ^/purge(/.*) { cache_purge pages http://backend$1$is_args$args; allow 10.0.0.0/8; deny all; }
//! ```
//!
//! `PURGE` (or `POST`, `DELETE`) purges; `GET` shows the stored header of a key. The arguments
//! select the objects: `?key=…`, `?prefix=…`, `?tag=…` or `?all`, each with `&soft` to make objects
//! stale instead of removing them. Tags can also come in the request's `Surrogate-Key` and
//! `Cache-Tag` fields. The second parameter sets the key; with a trailing `*` it is a prefix.
//! Responses are JSON.
//!
//! A purge is recorded under its name, whatever it applies to, so its time does not depend on the
//! number of objects. The location's access rules are the only protection: without any, everyone
//! can purge.

mod cluster_purge;
mod journaled_purge;

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::{Arity, Directive, DirectiveTable, Expression, RepeatRule, SERVER_LOCATION, Setter};
use http::cache::{
    CacheKey, CacheStore, CacheZone, CacheZones, InspectedEntry, PurgeMode, PurgeRequest,
    inspect_stored,
};
use http::cluster::claim_of;
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use journaled_purge::PurgeKeeper;
use net::cluster::{Cluster, Clusters, hash_of_key};
use proto::message::Method;
use proto::{KnownField, caching, date, form};
use serde_json::{Value, json};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "cache_purge",
    doc: "Purges caches and shows their contents.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["cache_purge"],
        when: |location| location.confs.get::<Conf>().cache.is_some(),
        handler: answer,
        adds_slash: false,
        declines: false,
    }),
    nested: |confs| {
        confs.change_if::<Conf>(|conf| conf.cache.is_some(), |conf| *conf = Conf::default())
    },
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["cache_purge"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "cache_purge",
    syntax: "zone [key] [cluster=name]",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.1",
    doc: "Turns the location into the purge endpoint of a cache. PURGE, POST and DELETE purge what the argument `key`, \
          `prefix`, `tag` or `all` selects (with `soft`, objects become stale instead); GET shows the stored response \
          header of a key. With the second parameter, that is the key, or a prefix if it ends with `*`. With `cluster`, \
          members of the `cluster` purge too, and the response names those that have; its status is 202 if some have \
          not. If the cluster has a journal, those that are away purge when they are back. Protect it with access rules: there are none by default.",
    set: Setter::Custom(Arity::between(1, 3), RepeatRule::Once, |conf, line| {
        let name = line.text(0).to_owned();
        let zone = CacheZones::refer_to_zone(line, name.as_bstr());
        conf.cache = Some(Arc::clone(&zone));
        conf.key = None;
        for index in 1..line.args().len() {
            match line.text(index).strip_prefix(b"cluster=") {
                Some(name) if !name.is_empty() => {
                    let name = name.as_bstr().to_owned();
                    let cluster = Clusters::refer_to_cluster(line, name.as_bstr());
                    CacheZones::join_cluster(line, &zone, &cluster)?;
                    conf.cluster = Some(cluster);
                }
                None if conf.key.is_none() => conf.key = Some(line.expression(index)?),
                _ => return Err(line.invalid_parameter(index)),
            }
        }
        Ok(())
    }),
}]);

#[derive(Clone, Default)]
struct Conf {
    cache: Option<Arc<CacheZone>>,
    key: Option<Expression>,
    /// The members of this purge too.
    cluster: Option<Arc<Cluster>>,
}

/// What a request selects.
enum PurgeTarget {
    Key(BString),
    Prefix(BString),
    Tags(Vec<Vec<u8>>),
    All,
}

/// The content handler.
fn answer(request: &mut Request) -> HandlerStep<'_> {
    HandlerStep::later(async move {
        let conf = request.conf::<Conf>();
        let Some(store) = conf.cache.as_ref().and_then(|cache| cache.store()) else {
            let trouble = conf.cache.as_ref().and_then(|cache| cache.last_error());
            return respond(request, 503, &json!({ "error": trouble }));
        };
        let target = match &conf.key {
            Some(key) => Some(target_of_key(request.value(key))),
            None => target_of_arguments(request),
        };
        let Some(target) = target else {
            let error = "specify one of key, prefix, tag or all";
            return respond(request, 400, &json!({ "error": error }));
        };
        // `PURGE` is not a registered method; caches made it common.
        let method = request.method;
        let is_purge = matches!(method, Method::Post | Method::Delete)
            || request.head.wire.method_text() == b"PURGE";
        match (target, is_purge) {
            (target, true) => {
                let zone = conf.cache.as_ref();
                let cluster = conf.cluster.as_ref();
                match zone
                    .zip(cluster)
                    .and_then(|(zone, cluster)| PurgeKeeper::of(zone, cluster))
                {
                    Some(keeper) => keeper.purge(request, &store, &target).await,
                    None => purge_all(request, &store, &target, cluster).await,
                }
            }
            (PurgeTarget::Key(key), false) if matches!(method, Method::Get | Method::Head) => {
                inspect_key(request, &store, &key, conf.cluster.as_deref()).await
            }
            (_, false) => {
                request
                    .out
                    .fields
                    .push_known(KnownField::Allow, b"PURGE, POST, DELETE");
                respond(
                    request,
                    405,
                    &json!({ "error": "only a key can be looked up" }),
                )
            }
        }
    })
}

/// The target for a configured key.
fn target_of_key(text: BString) -> PurgeTarget {
    match text.strip_suffix(b"*") {
        Some(prefix) => PurgeTarget::Prefix(prefix.into()),
        None => PurgeTarget::Key(text),
    }
}

/// The target that the arguments select; `None` if they select nothing, since a purge of everything
/// must be explicit.
fn target_of_arguments(request: &Request) -> Option<PurgeTarget> {
    let args = &request.uri.args;
    let argument = |name: &[u8]| {
        let mut text = Vec::new();
        form::decode(form::find(args, name)?, &mut text);
        Some(BString::from(text))
    };
    if let Some(key) = argument(b"key") {
        return Some(PurgeTarget::Key(key));
    }
    if let Some(prefix) = argument(b"prefix") {
        return Some(PurgeTarget::Prefix(prefix));
    }
    let mut tags = caching::response_tags(&request.head.wire.fields);
    tags.extend(argument(b"tag").map(Vec::from));
    if !tags.is_empty() {
        return Some(PurgeTarget::Tags(tags));
    }
    has_argument(args, b"all").then_some(PurgeTarget::All)
}

/// Whether an argument is present, with or without a value.
fn has_argument(args: &[u8], name: &[u8]) -> bool {
    args.split(|&b| b == b'&')
        .any(|argument| argument.split(|&b| b == b'=').next() == Some(name))
}

/// Purges the target here, and in the cluster if it is to be.
async fn purge_all(
    request: &mut Request,
    store: &CacheStore,
    target: &PurgeTarget,
    cluster: Option<&Arc<Cluster>>,
) -> HandlerOutcome {
    let tags = hash_of_key(&tags_text(request));
    if let Some(claim) = claim_of(request) {
        // Tags come in header fields, which a signature does not include by itself.
        if claim.key != tags {
            return respond(
                request,
                403,
                &json!({ "error": "the tags are not the signed ones" }),
            );
        }
        let answer = purge(request, store, target);
        return respond(request, 200, &answer);
    }
    let mut answer = purge(request, store, target);
    let Some(cluster) = cluster else {
        return respond(request, 200, &answer);
    };
    // Twice: in the first round, a member that has purged can get the old response again from one that has not.
    let first = cluster_purge::purge_at_members(request, cluster, tags).await;
    let second = cluster_purge::purge_at_members(request, cluster, tags).await;
    purge(request, store, target);
    let (mut applied, mut missing) = (Vec::new(), Vec::new());
    for (member, has_purged) in second {
        let both = has_purged && first.iter().any(|(one, has)| *one == member && *has);
        if both { &mut applied } else { &mut missing }.push(member);
    }
    answer["cluster"] = json!({
        "name": text(cluster.name()),
        "applied": applied,
        "missing": missing,
    });
    // It cannot be written at the moment, and is written later.
    let is_kept = cluster.redis().is_some();
    if is_kept {
        answer["cluster"]["journal"] = json!("kept");
    }
    let status = if missing.is_empty() && !is_kept {
        200
    } else {
        202
    };
    respond(request, status, &answer)
}

/// The tags in the fields of a request, as one text.
fn tags_text(request: &Request) -> Vec<u8> {
    caching::response_tags(&request.head.wire.fields).join(&b"\n"[..])
}

/// Purges the target here.
fn purge(request: &Request, store: &CacheStore, target: &PurgeTarget) -> Value {
    let mode = mode_of(request);
    target.for_each(|purge| store.purge_everywhere(purge, mode));
    description_of(target, mode)
}

/// Whether objects become stale or go.
fn mode_of(request: &Request) -> PurgeMode {
    match has_argument(&request.uri.args, b"soft") {
        true => PurgeMode::Soft,
        false => PurgeMode::Hard,
    }
}

impl PurgeTarget {
    /// The purges that it takes.
    fn for_each(&self, mut action: impl FnMut(PurgeRequest<'_>)) {
        match self {
            PurgeTarget::Key(key) => {
                action(PurgeRequest::Key(&CacheKey::new(key)));
                // Responses to HEAD are stored separately if `cache_convert_head` is off.
                let head = [key, &b"\0HEAD"[..]].concat();
                action(PurgeRequest::Key(&CacheKey::new(&head)));
            }
            PurgeTarget::Prefix(prefix) => action(PurgeRequest::Prefix(prefix)),
            PurgeTarget::Tags(tags) => tags.iter().for_each(|tag| action(PurgeRequest::Tag(tag))),
            PurgeTarget::All => action(PurgeRequest::All),
        }
    }
}

/// What has been purged, as JSON.
fn description_of(target: &PurgeTarget, mode: PurgeMode) -> Value {
    let what = match target {
        PurgeTarget::Key(key) => json!({ "key": text(key) }),
        PurgeTarget::Prefix(prefix) => json!({ "prefix": text(prefix) }),
        PurgeTarget::Tags(tags) => {
            json!({ "tags": tags.iter().map(|tag| text(tag)).collect::<Vec<_>>() })
        }
        PurgeTarget::All => json!({ "all": true }),
    };
    let word = match mode {
        PurgeMode::Hard => "hard",
        PurgeMode::Soft => "soft",
    };
    json!({ "purged": what, "mode": word })
}

/// Shows what is stored for a key. The request's own fields select the variant, as they would for a
/// real request.
async fn inspect_key(
    request: &mut Request,
    store: &CacheStore,
    key: &[u8],
    cluster: Option<&Cluster>,
) -> HandlerOutcome {
    let now_ms = rt::wall_millis();
    let found = inspect_stored(store, key, &request.head.wire.fields, now_ms).await;
    let (status, mut answer) = match found {
        Some(found) => (200, description(key, &found, now_ms)),
        None => (404, json!({ "key": text(key), "stored": false })),
    };
    if let Some(owner) = cluster.and_then(|cluster| describe_owner(cluster, key)) {
        answer["cluster"] = owner;
    }
    respond(request, status, &answer)
}

/// The member that owns a key as this server sees it, and why it is this one; `None`: the members are not known yet.
fn describe_owner(cluster: &Cluster, key: &[u8]) -> Option<Value> {
    let (_, state) = cluster.running()?;
    let view = state.view();
    let route = view.route_of(&hash_of_key(key), rt::now());
    let owner = match (&route.owner, &view.own) {
        (Some(owner), _) => owner.name.clone(),
        (None, Some(own)) => format!("{} (this server)", own.name),
        (None, None) => "this server".to_owned(),
    };
    let asked = route.steps.iter().map(|step| match step.only_stored {
        true => format!("{} for what it has stored", step.member.name),
        false => step.member.name.clone(),
    });
    let asked: Vec<String> = asked.chain(["the origin".to_owned()]).collect();
    Some(json!({
        "name": text(cluster.name()),
        "owner": owner,
        "reason": format!(
            "first for this key among the {} of {} members that answer",
            view.live_count(),
            view.members.len(),
        ),
        "asked": asked.join(", then "),
    }))
}

/// A stored object as JSON.
fn description(key: &[u8], found: &InspectedEntry, now_ms: u64) -> Value {
    let head = found.object.head();
    let mut value = json!({
        "key": text(key),
        "stored": true,
        "stale": found.is_stale,
        "complete": found.object.is_complete(),
        "length": head.length,
        "held": found.object.stored_ranges().iter().map(|range| [range.start, range.end]).collect::<Vec<_>>(),
        "stored_at": time(head.meta.stored_ms),
        "validated_at": time(head.meta.validated_ms),
        "tags": head.tags.iter().map(|tag| text(tag)).collect::<Vec<_>>(),
        "varies_by": found.varies_by.iter().map(|name| text(name)).collect::<Vec<_>>(),
    });
    if let Some(stored) = &found.stored {
        let fields = stored.head.fields.iter();
        value["status"] = json!(stored.head.status);
        value["age"] = json!(stored.freshness.age_s(now_ms));
        value["ttl"] = json!(stored.freshness.ttl_s(now_ms));
        value["fresh_by"] = json!(format!("{:?}", stored.freshness.source));
        value["fields"] = fields
            .map(|(name, value)| json!([text(name), text(value)]))
            .collect();
    }
    value
}

/// A time in the format of HTTP dates.
fn time(ms: u64) -> String {
    let mut out = Vec::new();
    date::write_http(i64::try_from(ms / 1000).unwrap_or(i64::MAX), &mut out);
    text(&out)
}

/// Bytes as text, since JSON knows no others.
fn text(bytes: &[u8]) -> String {
    bytes.to_str_lossy().into_owned()
}

/// A JSON response, which no other cache may keep.
fn respond(request: &mut Request, status: u16, value: &Value) -> HandlerOutcome {
    let out = &mut request.out;
    out.status = status;
    out.content_type = "application/json".into();
    out.fields.push_known(KnownField::CacheControl, b"no-store");
    out.body = ResponseBody::bytes(format!("{value:#}\n"));
    HandlerOutcome::Respond
}
