//! Angie's tree of the same state: its names for what the other form has under others.

use serde_json::{Map, Value, json};

use super::failure::ApiFailure;
use crate::shared::status::upstreams::{self, GroupKind};
use crate::shared::status::{StatusView, requests, server};

/// Everything, in the names of the commercial nginx. On a thread of a pool; worker groups are added up in this form.
pub(super) fn parts(view: &StatusView) -> Value {
    json!({
        "nginx": server::nginx(view),
        "connections": server::connections(view),
        "slabs": requests::slabs(view),
        "resolvers": requests::resolvers(view),
        "http": {
            "server_zones": requests::server_zones(view),
            "location_zones": requests::location_zones(view),
            "caches": requests::caches(view),
            "limit_conns": requests::limit_conns(view),
            "limit_reqs": requests::limit_reqs(view),
            "upstreams": upstreams::groups_value(view, GroupKind::Http),
        },
        "stream": {
            "server_zones": requests::stream_zones(view),
            "limit_conns": requests::stream_limit_conns(view),
            "upstreams": upstreams::groups_value(view, GroupKind::Stream),
        },
    })
}

/// What Angie has under a path: `status`, and names below it.
pub(super) fn find(mut parts: Value, names: &[String], address: &str) -> Result<Value, ApiFailure> {
    let nginx = parts["nginx"].take();
    let mut tree = json!({ "status": {
        "angie": {
            "version": nginx["version"],
            "build": nginx["build"],
            "address": address,
            "generation": nginx["generation"],
            "load_time": nginx["load_timestamp"],
        },
        "connections": parts["connections"],
        "slabs": parts["slabs"],
        "resolvers": each(&parts["resolvers"], resolver),
        "http": {
            "server_zones": each(&parts["http"]["server_zones"], http_zone),
            "location_zones": each(&parts["http"]["location_zones"], http_zone),
            "caches": parts["http"]["caches"],
            "limit_conns": each(&parts["http"]["limit_conns"], limit),
            "limit_reqs": each(&parts["http"]["limit_reqs"], limit),
            "upstreams": each(&parts["http"]["upstreams"], group),
        },
        "stream": {
            "server_zones": each(&parts["stream"]["server_zones"], stream_zone),
            "limit_conns": each(&parts["stream"]["limit_conns"], limit),
            "upstreams": each(&parts["stream"]["upstreams"], group),
        },
    }});
    let mut found = &mut tree;
    for name in names {
        found = found.get_mut(name).ok_or(ApiFailure::PATH_NOT_FOUND)?;
    }
    Ok(found.take())
}

/// The objects of a collection, each as Angie has it.
fn each(collection: &Value, convert: fn(&Value) -> Value) -> Value {
    let objects = collection.as_object().into_iter().flatten();
    objects
        .map(|(name, value)| (name.clone(), convert(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn tls(value: &Value) -> Value {
    json!({
        "handshaked": value["handshakes"],
        "reuses": value["session_reuses"],
        "failed": value["handshakes_failed"],
    })
}

fn data(value: &Value) -> Value {
    json!({ "received": value["received"], "sent": value["sent"] })
}

fn http_zone(zone: &Value) -> Value {
    let mut requests = json!({ "total": zone["requests"], "discarded": zone["discarded"] });
    let mut value = json!({ "responses": zone["responses"]["codes"], "data": data(zone) });
    if zone["processing"].is_u64() {
        requests["processing"] = zone["processing"].clone();
        value["ssl"] = tls(&zone["ssl"]);
    }
    value["requests"] = requests;
    value
}

fn stream_zone(zone: &Value) -> Value {
    json!({
        "connections": {
            "total": zone["connections"],
            "processing": zone["processing"],
            "discarded": zone["discarded"],
        },
        "sessions": { "success": zone["sessions"]["2xx"] },
        "data": data(zone),
    })
}

fn limit(zone: &Value) -> Value {
    let mut value = json!({ "passed": zone["passed"], "rejected": zone["rejected"] });
    if zone["delayed"].is_u64() {
        value["delayed"] = zone["delayed"].clone();
    }
    value
}

fn resolver(zone: &Value) -> Value {
    let responses = &zone["responses"];
    json!({
        "queries": { "name": zone["requests"]["name"], "srv": zone["requests"]["srv"] },
        "responses": {
            "success": responses["noerror"],
            "timedout": responses["timedout"],
            "format_error": responses["formerr"],
            "server_failure": responses["servfail"],
            "not_found": responses["nxdomain"],
            "unimplemented": responses["notimp"],
            "refused": responses["refused"],
            "other": responses["unknown"],
        },
    })
}

fn group(group: &Value) -> Value {
    let peers = group["peers"].as_array().into_iter().flatten();
    let peers = peers.map(|peer| {
        let name = peer["name"].as_str().unwrap_or_default().to_owned();
        (name, self::peer(peer))
    });
    let mut value = json!({ "peers": peers.collect::<Map<_, _>>() });
    for name in ["keepalive", "zone"] {
        if let Some(known) = group.get(name) {
            value[name] = known.clone();
        }
    }
    value
}

fn peer(peer: &Value) -> Value {
    let total = peer.get("requests").or(peer.get("connections"));
    let mut value = json!({
        "server": peer["server"],
        "backup": peer["backup"],
        "weight": peer["weight"],
        "state": match peer["state"].as_str() {
            Some("unavail") => "unavailable",
            Some(state) => state,
            None => "up",
        },
        "selected": { "current": peer["active"], "total": total },
        "data": data(peer),
        "health": {
            "fails": peer["fails"],
            "unavailable": peer["unavail"],
            "downtime": peer["downtime"],
        },
    });
    if let Some(last) = peer.get("selected") {
        value["selected"]["last"] = last.clone();
    }
    if let Some(responses) = peer.get("responses") {
        value["responses"] = responses["codes"].clone();
    }
    if let Some(most) = peer.get("max_conns") {
        value["max_conns"] = most.clone();
    }
    value
}
