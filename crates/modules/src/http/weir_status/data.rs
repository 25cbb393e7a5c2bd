//! What the page shows besides loops, pools and caches, as JSON.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};

use crate::shared::observation::slowest::SlowRequest;
use crate::shared::status::{StatusView, append_json, requests, server, upstreams};

/// The servers and zones of this process, a list that may have thousands.
pub(super) fn servers(view: &StatusView) -> String {
    let mut list = String::new();
    requests::each_server(view, |row| append_json(&mut list, row));
    list
}

/// The same of upstream groups.
pub(super) fn groups(view: &StatusView) -> String {
    let mut list = String::new();
    upstreams::each_group(view, |row| append_json(&mut list, row));
    list
}

/// The rest of the state of this process.
pub(super) fn more(view: &StatusView) -> Value {
    let observed = &view.observed;
    json!({
        "server": {
            "version": view.site.identity.token,
            "pid": std::process::id(),
            "generation": observed.loads.load(Relaxed),
            "loaded": observed.loaded_ms.load(Relaxed),
            "now": rt::wall_millis(),
        },
        "connections": server::connections(view),
        "requests": server::requests(view),
        "ssl": server::ssl(view),
        "bounds_us": upstreams::bounds(),
        "stream_zones": requests::stream_zones(view),
        "cache_requests": requests::page_caches(view),
        "cache_limits": requests::caches(view),
        "limits": {
            "req": requests::limit_reqs(view),
            "conn": requests::limit_conns(view),
            "stream_conn": requests::stream_limit_conns(view),
        },
        "resolvers": requests::resolvers(view),
        "certificates": server::certificates(view),
        "errors": errors(),
        "slowest": observed.slowest.list().iter().map(slow_request).collect::<Vec<_>>(),
        "stalls": stalls(),
    })
}

fn slow_request(request: &SlowRequest) -> Value {
    let ms = |time: std::time::Duration| time.as_micros() as f64 / 1000.0;
    let ledger = &request.ledger;
    let columns = ledger.columns.iter();
    json!({
        "server": request.server,
        "method": request.method,
        "path": request.path,
        "status": request.status,
        "total_ms": ms(ledger.total),
        "columns": columns.map(|column| json!([column.name, ms(column.time)])).collect::<Vec<_>>(),
        "termination": String::from_utf8_lossy(&ledger.termination),
        "words": ledger.words.iter().flatten().collect::<Vec<_>>(),
    })
}

fn errors() -> Vec<Value> {
    let groups = host::error_log::recent_errors();
    let value = |group: &host::error_log::ErrorGroup| {
        json!({
            "level": group.level.word(),
            "message": group.message,
            "count": group.count,
            "first_ms": group.first_ms,
            "last_ms": group.last_ms,
        })
    };
    groups.iter().map(value).collect()
}

fn stalls() -> Vec<Value> {
    let stalls = rt::report::recent_stalls();
    let value = |stall: &rt::report::RecordedStall| {
        json!({
            "loop_name": stall.loop_name,
            "at_ms": stall.wall_ms,
            "late_ms": stall.late.as_millis() as u64,
            "frames": stall.frames,
            "tasks": stall.tasks,
        })
    };
    stalls.iter().map(value).collect()
}

/// The states of several groups: lists one behind the other, numbers of counts added. What each row is of, the page finds
/// out by itself.
pub(super) fn join(mut parts: impl Iterator<Item = Value>) -> Value {
    let Some(Value::Object(mut joined)) = parts.next() else {
        return json!({});
    };
    for part in parts {
        let Value::Object(mut part) = part else {
            continue;
        };
        for (name, value) in &mut joined {
            if name == "server" || name == "bounds_us" || name == "cache_limits" {
                continue;
            }
            if let Some(other) = part.remove(name) {
                add(value, other);
            }
        }
    }
    Value::Object(joined)
}

fn add(own: &mut Value, other: Value) {
    match (own, other) {
        (Value::Array(own), Value::Array(mut other)) => own.append(&mut other),
        (Value::Object(own), Value::Object(other)) => add_object(own, other),
        (Value::Number(own), Value::Number(other)) => {
            if let (Some(one), Some(two)) = (own.as_u64(), other.as_u64()) {
                *own = (one + two).into();
            }
        }
        _ => {}
    }
}

fn add_object(own: &mut Map<String, Value>, other: Map<String, Value>) {
    for (name, value) in other {
        match own.get_mut(&name) {
            Some(known) => add(known, value),
            None => drop(own.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_joined() {
        let part = |pid: u64, requests: u64| {
            json!({ "server": { "pid": pid }, "errors": [{ "count": requests }],
                    "connections": { "active": requests }, "limits": { "req": { "a": { "passed": 1 } } } })
        };
        let joined = join([part(1, 2), part(3, 4)].into_iter());
        let expected = json!({ "server": { "pid": 1 }, "errors": [{ "count": 2 }, { "count": 4 }],
                               "connections": { "active": 6 }, "limits": { "req": { "a": { "passed": 2 } } } });
        assert_eq!(joined, expected);
        assert_eq!(join(std::iter::empty()), json!({}));
    }
}
