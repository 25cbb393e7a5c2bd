//! The tree of what can be read, as the commercial nginx's API describes it, version 9.
//!
//! What it has and Weir does not is left out: `/stream/zone_sync`, `respawned` of processes, slots of zones.

use serde_json::{Map, Value, json};

use super::failure::ApiFailure;
use crate::shared::keyval::KeyvalZones;
use crate::shared::status::upstreams::{self, GroupKind};
use crate::shared::status::{StatusView, object, requests, server, text};

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct ApiQuery {
    /// The names behind the version.
    pub(super) names: Vec<String>,
    /// `fields=`: which fields of each object.
    pub(super) fields: Option<String>,
    /// `key=`: which entry of a `keyval` zone.
    pub(super) key: Option<String>,
}

impl ApiQuery {
    /// That of a path without arguments.
    pub(super) fn of(names: &[&str]) -> ApiQuery {
        ApiQuery {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..ApiQuery::default()
        }
    }

    /// Whether a field is wanted.
    pub(super) fn has_field(&self, field: &str) -> bool {
        let fields = self.fields.as_deref();
        fields.is_none_or(|fields| fields.split(',').any(|wanted| wanted == field))
    }
}

/// The endpoints of the first level.
const ENDPOINTS: [&str; 9] = [
    "nginx",
    "processes",
    "connections",
    "slabs",
    "http",
    "stream",
    "resolvers",
    "ssl",
    "workers",
];

const HTTP: [&str; 8] = [
    "requests",
    "server_zones",
    "location_zones",
    "caches",
    "limit_conns",
    "limit_reqs",
    "keyvals",
    "upstreams",
];

const STREAM: [&str; 4] = ["server_zones", "limit_conns", "keyvals", "upstreams"];

/// Objects by name: how they are read, and the error for a name that is none of theirs.
type Collection = (
    &'static [&'static str],
    fn(&StatusView) -> Value,
    &'static str,
    &'static str,
);

const COLLECTIONS: [Collection; 9] = [
    (
        &["slabs"],
        requests::slabs,
        "SlabNotFound",
        "slab not found",
    ),
    (
        &["http", "server_zones"],
        requests::server_zones,
        "ServerZoneNotFound",
        "server zone not found",
    ),
    (
        &["http", "location_zones"],
        requests::location_zones,
        "LocationZoneNotFound",
        "location zone not found",
    ),
    (
        &["http", "caches"],
        requests::caches,
        "CacheNotFound",
        "cache not found",
    ),
    (
        &["http", "limit_conns"],
        requests::limit_conns,
        "LimitConnNotFound",
        "limit conn not found",
    ),
    (
        &["http", "limit_reqs"],
        requests::limit_reqs,
        "LimitReqNotFound",
        "limit req not found",
    ),
    (
        &["stream", "server_zones"],
        requests::stream_zones,
        "ServerZoneNotFound",
        "server zone not found",
    ),
    (
        &["stream", "limit_conns"],
        requests::stream_limit_conns,
        "LimitConnNotFound",
        "limit conn not found",
    ),
    (
        &["resolvers"],
        requests::resolvers,
        "ResolverZoneNotFound",
        "resolver zone not found",
    ),
];

/// The engine that a name means.
pub(super) fn group_kind(name: &str) -> Result<GroupKind, ApiFailure> {
    match name {
        "http" => Ok(GroupKind::Http),
        "stream" => Ok(GroupKind::Stream),
        _ => Err(ApiFailure::PATH_NOT_FOUND),
    }
}

/// Reads what is asked for. On a thread of a pool.
pub(super) fn read(view: &StatusView, query: &ApiQuery) -> Result<Value, ApiFailure> {
    let names: Vec<&str> = query.names.iter().map(String::as_str).collect();
    for (path, list, code, text) in COLLECTIONS {
        if let Some(rest) = names.strip_prefix(path) {
            return one_of(list(view), rest, query, ApiFailure::fixed(404, code, text));
        }
    }
    let value = match &names[..] {
        [] => json!(ENDPOINTS),
        ["http"] => json!(HTTP),
        ["stream"] => json!(STREAM),
        ["nginx"] => server::nginx(view),
        // The master starts processes again, and does not say how often.
        ["processes"] => json!({}),
        ["connections"] => server::connections(view),
        ["ssl"] => server::ssl(view),
        ["http", "requests"] => server::requests(view),
        ["workers", rest @ ..] => return workers(server::workers(view), rest, query),
        [engine, "upstreams", rest @ ..] => {
            return read_upstreams(view, group_kind(engine)?, rest, query);
        }
        [engine, "keyvals", rest @ ..] => {
            return read_keyvals(view, group_kind(engine)?, rest, query);
        }
        _ => return Err(ApiFailure::PATH_NOT_FOUND),
    };
    Ok(with_fields(value, query))
}

/// A collection, or the object of it that the rest of the path names.
fn one_of(
    collection: Value,
    rest: &[&str],
    query: &ApiQuery,
    missing: ApiFailure,
) -> Result<Value, ApiFailure> {
    match rest {
        [] => Ok(each_with_fields(collection, query)),
        [name] => {
            let found = collection.get(name).cloned();
            Ok(with_fields(found.ok_or(missing)?, query))
        }
        _ => Err(ApiFailure::PATH_NOT_FOUND),
    }
}

/// An object with the wanted fields only.
fn with_fields(value: Value, query: &ApiQuery) -> Value {
    match (value, &query.fields) {
        (Value::Object(object), Some(_)) => {
            let wanted = object.into_iter();
            Value::Object(wanted.filter(|(name, _)| query.has_field(name)).collect())
        }
        (value, _) => value,
    }
}

/// The objects of a collection with the wanted fields only. None wanted: the names.
fn each_with_fields(value: Value, query: &ApiQuery) -> Value {
    let Value::Object(objects) = value else {
        return value;
    };
    if query.fields.as_deref() == Some("") {
        return objects
            .into_iter()
            .map(|(name, _)| Value::String(name))
            .collect();
    }
    let objects = objects.into_iter();
    objects
        .map(|(name, value)| (name, with_fields(value, query)))
        .collect::<Map<_, _>>()
        .into()
}

fn workers(all: Value, rest: &[&str], query: &ApiQuery) -> Result<Value, ApiFailure> {
    let Value::Array(all) = all else {
        return Ok(all);
    };
    match rest {
        [] => Ok(all
            .into_iter()
            .map(|worker| with_fields(worker, query))
            .collect()),
        [id] => {
            let mut all = all.into_iter();
            let wanted = id.parse::<u64>().ok();
            let found = all.find(|worker| wanted.is_some() && worker["id"].as_u64() == wanted);
            let missing = ApiFailure::fixed(404, "WorkerNotFound", "worker not found");
            Ok(with_fields(found.ok_or(missing)?, query))
        }
        _ => Err(ApiFailure::PATH_NOT_FOUND),
    }
}

/// The error for a group that there is not.
pub(super) const NO_GROUP: ApiFailure =
    ApiFailure::fixed(404, "UpstreamNotFound", "upstream not found");

/// The error for a server that a group has not.
pub(super) const NO_SERVER: ApiFailure =
    ApiFailure::fixed(404, "UpstreamServerNotFound", "server not found");

/// Reads the number of a server.
pub(super) fn server_id(text: &str) -> Result<u32, ApiFailure> {
    let wrong = ApiFailure::fixed(400, "UpstreamBadServerId", "invalid server id");
    text.parse().map_err(|_| wrong)
}

fn read_upstreams(
    view: &StatusView,
    kind: GroupKind,
    rest: &[&str],
    query: &ApiQuery,
) -> Result<Value, ApiFailure> {
    let [name, rest @ ..] = rest else {
        return Ok(each_with_fields(upstreams::groups_value(view, kind), query));
    };
    let group = kind.find(view, name).ok_or(NO_GROUP)?;
    match rest {
        [] => Ok(with_fields(upstreams::group_value(&group, kind), query)),
        ["servers"] => Ok(upstreams::servers_value(&group)),
        ["servers", id] => {
            let id = server_id(id)?;
            let servers = group.state().servers();
            let mut servers = servers.iter();
            let found = servers.find(|(known, _)| *known == id).ok_or(NO_SERVER)?;
            Ok(upstreams::server_value(found.0, &found.1))
        }
        _ => Err(ApiFailure::PATH_NOT_FOUND),
    }
}

/// The zones of an engine.
pub(super) fn keyval_zones(view: &StatusView, kind: GroupKind) -> Option<&KeyvalZones> {
    match kind {
        GroupKind::Http => Some(view.site.main_confs.get()),
        GroupKind::Stream => Some(view.stream.as_ref()?.main_confs.get()),
    }
}

fn read_keyvals(
    view: &StatusView,
    kind: GroupKind,
    rest: &[&str],
    query: &ApiQuery,
) -> Result<Value, ApiFailure> {
    let zones = keyval_zones(view, kind);
    let zones = zones.map(KeyvalZones::list).unwrap_or_default();
    let now = rt::wall_millis();
    let mut tables = zones
        .iter()
        .filter_map(|zone| Some((text(zone.name.as_ref()), zone.state()?)));
    match rest {
        [] => {
            let all = tables.map(|(name, table)| (name, Value::Object(table.list(None, now))));
            Ok(match query.fields.as_deref() {
                Some("") => all.map(|(name, _)| Value::String(name)).collect(),
                _ => object(all),
            })
        }
        [name] => {
            let found = tables.find(|(known, _)| known == name);
            let missing = ApiFailure::fixed(404, "KeyvalNotFound", "keyval not found");
            let (_, table) = found.ok_or(missing)?;
            let listed = table.list(query.key.as_deref(), now);
            match query.key.is_some() && listed.is_empty() {
                true => Err(ApiFailure::fixed(404, "KeyvalKeyNotFound", "key not found")),
                false => Ok(Value::Object(listed)),
            }
        }
        _ => Err(ApiFailure::PATH_NOT_FOUND),
    }
}
