//! Changes of the entries of a `keyval` zone.

use std::rc::Rc;

use http::http_loop::HttpLoop;
use proto::message::Method;
use serde_json::{Map, Value, json};

use super::failure::ApiFailure;
use super::{groups, resources};
use crate::shared::keyval::table::KeyvalRefusal;
use crate::shared::keyval::{self, KeyvalZone};
use crate::shared::limit_req_sync::ZoneSync;
use crate::shared::shared_map::{SharedAnswer, SharedChange, SharedEntry};
use crate::shared::status::StatusView;
use crate::shared::status::upstreams::GroupKind;

/// The topic of messages between worker groups.
pub(super) const TOPIC: &str = "api keyvals";

/// What is to become of a zone.
pub(super) enum KeyvalChange {
    /// New entries.
    Add(Vec<NewEntry>),
    /// Another value for an entry.
    Set(NewEntry),
    /// An entry goes.
    Remove(String),
    /// All go.
    Clear,
}

/// An entry as it is asked for.
pub(super) struct NewEntry {
    key: String,
    value: String,
    /// In milliseconds from now; `None`: as the zone has it.
    expire: Option<u64>,
}

fn format_error(text: impl Into<String>) -> ApiFailure {
    ApiFailure::new(400, "KeyvalFormatError", text)
}

impl NewEntry {
    /// Reads `"value"`, or `{"value": "…", "expire": 30000}`.
    fn read(key: &str, value: &Value) -> Result<NewEntry, ApiFailure> {
        let (value, expire) = match value {
            Value::Object(object) => {
                let expire = match object.get("expire") {
                    None => None,
                    Some(expire) => Some(
                        expire
                            .as_u64()
                            .ok_or_else(|| format_error("invalid \"expire\""))?,
                    ),
                };
                let unknown = object
                    .keys()
                    .find(|name| *name != "value" && *name != "expire");
                if let Some(name) = unknown {
                    return Err(format_error(format!("unknown parameter \"{name}\"")));
                }
                let value = object.get("value");
                (value.ok_or_else(|| format_error("value required"))?, expire)
            }
            value => (value, None),
        };
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                return Err(format_error(format!("invalid value of key \"{key}\"")));
            }
        };
        Ok(NewEntry {
            key: key.to_owned(),
            value,
            expire,
        })
    }
}

impl KeyvalChange {
    /// Reads a request.
    pub(super) fn of_request(
        method: Method,
        body: Option<Map<String, Value>>,
    ) -> Result<KeyvalChange, ApiFailure> {
        let Some(body) = body else {
            return Ok(KeyvalChange::Clear);
        };
        if body.is_empty() || body.keys().any(String::is_empty) {
            return Err(format_error("key required"));
        }
        let entries = body.iter();
        if method == Method::Post {
            let read = entries.map(|(key, value)| NewEntry::read(key, value));
            return Ok(KeyvalChange::Add(read.collect::<Result<_, _>>()?));
        }
        let mut entries = entries;
        let (Some((key, value)), None) = (entries.next(), entries.next()) else {
            return Err(format_error("only one key can be updated"));
        };
        Ok(match value {
            Value::Null => KeyvalChange::Remove(key.clone()),
            value => KeyvalChange::Set(NewEntry::read(key, value)?),
        })
    }
}

/// Makes a change, in all worker groups.
pub(super) async fn make(
    engine: &Rc<HttpLoop>,
    view: StatusView,
    (kind, name): (GroupKind, &str),
    change: KeyvalChange,
) -> Result<(), ApiFailure> {
    if let Some(zone) = resources::keyval_zones(&view, kind).and_then(|zones| zones.find(name))
        && let Some(sync) = zone.declared().and_then(|declared| declared.sync.as_ref())
    {
        return make_shared(zone, sync, &change).await;
    }
    let name = name.to_owned();
    let pool = rt::pool::default_pool();
    let made = pool.run(move || {
        let zone = resources::keyval_zones(&view, kind).and_then(|zones| zones.find(&name));
        let missing = ApiFailure::fixed(404, "KeyvalNotFound", "keyval not found");
        let zone = zone.ok_or(missing)?;
        let now = rt::wall_millis();
        let list = apply(zone, &change, now)?;
        save(zone, now)?;
        Ok(json!({ "stream": kind == GroupKind::Stream, "zone": name, "changes": list }))
    });
    let message = made.await?;
    groups::tell(engine, TOPIC, &message).await;
    Ok(())
}

/// Makes a change in the Redis of the cluster. All members, this one too, take it from there, so that all have the same
/// order of changes. Worker groups need not be told: each reads by itself.
async fn make_shared(
    zone: &KeyvalZone,
    sync: &ZoneSync,
    change: &KeyvalChange,
) -> Result<(), ApiFailure> {
    let away = |why: String| {
        let text = format!("the change is not made: {why}");
        ApiFailure::new(503, "KeyvalSyncError", text)
    };
    let (Some(client), Some(table)) = (sync.cluster().redis(), zone.state()) else {
        return Err(away("the cluster is not ready".to_owned()));
    };
    let (what, entries): (SharedChange, Vec<&NewEntry>) = match change {
        KeyvalChange::Add(entries) if entries.len() > 1 => {
            (SharedChange::List, entries.iter().collect())
        }
        KeyvalChange::Add(entries) => (SharedChange::Add, entries.iter().collect()),
        KeyvalChange::Set(entry) => (SharedChange::Set, vec![entry]),
        KeyvalChange::Remove(_) => (SharedChange::Remove, Vec::new()),
        KeyvalChange::Clear => (SharedChange::Clear, Vec::new()),
    };
    let mut shared: Vec<SharedEntry<'_>> = Vec::new();
    for entry in entries {
        let checked = table.check(&entry.key, &entry.value);
        checked.map_err(|refusal| refused(&entry.key, refusal))?;
        shared.push((&entry.key, &entry.value, validity(zone, entry)?));
    }
    if let KeyvalChange::Remove(key) = change {
        shared.push((key, "", None));
    }
    let key_at = |index: usize| shared.get(index).map_or("", |(key, ..)| key);
    match keyval::sync::map_of(client, zone, table)
        .change(what, &shared)
        .await
    {
        Ok(SharedAnswer::Done) => Ok(()),
        Ok(SharedAnswer::Filled) => Err(format_error("only one key can be added")),
        Ok(SharedAnswer::Exists(index)) => Err(refused(key_at(index), KeyvalRefusal::Exists)),
        Ok(SharedAnswer::Missing(index)) => Err(refused(key_at(index), KeyvalRefusal::Missing)),
        Err(fault) => Err(away(fault.to_string())),
    }
}

/// For how many milliseconds an entry is valid; `None`: for ever.
fn validity(zone: &KeyvalZone, entry: &NewEntry) -> Result<Option<u64>, ApiFailure> {
    let timeout = zone.declared().and_then(|declared| declared.timeout);
    let default = timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    // An entry with a time can only be forgotten by a zone that forgets.
    match (entry.expire, timeout) {
        (Some(_), None) => Err(format_error(
            "key expire is not allowed without \"timeout\"",
        )),
        _ => Ok(entry.expire.or(default)),
    }
}

/// Why a change of a key is not made.
fn refused(key: &str, refusal: KeyvalRefusal) -> ApiFailure {
    let text = format!(
        "key \"{key}\" {}",
        match refusal {
            KeyvalRefusal::Exists => "already exists",
            KeyvalRefusal::Missing => "not found",
            KeyvalRefusal::NoRoom => "does not fit into the zone",
            KeyvalRefusal::NoAddress => "is neither an address nor a network",
        }
    );
    match refusal {
        KeyvalRefusal::Exists => ApiFailure::new(409, "KeyvalKeyExists", text),
        KeyvalRefusal::Missing => ApiFailure::new(404, "KeyvalKeyNotFound", text),
        KeyvalRefusal::NoRoom => ApiFailure::new(413, "KeyvalOutOfMemory", text),
        KeyvalRefusal::NoAddress => ApiFailure::new(400, "KeyvalFormatError", text),
    }
}

/// Writes the file of a zone that has one. The change stays if that fails: requests see it already.
fn save(zone: &KeyvalZone, now: u64) -> Result<(), ApiFailure> {
    let path = zone
        .declared()
        .and_then(|declared| declared.state_file.as_ref());
    let (Some(path), Some(table)) = (path, zone.state()) else {
        return Ok(());
    };
    table.save(path, now).map_err(|error| {
        let text = format!("the change is made, and could not be written to its file: {error}");
        ApiFailure::new(500, "StateWriteError", text)
    })
}

/// Makes the changes in this process. Returns them as they are told to other groups: key, value or null, and the end.
fn apply(zone: &KeyvalZone, change: &KeyvalChange, now: u64) -> Result<Value, ApiFailure> {
    let Some(table) = zone.state() else {
        return Err(ApiFailure::fixed(404, "KeyvalNotFound", "keyval not found"));
    };
    let until = |entry: &NewEntry| {
        let valid = validity(zone, entry)?;
        Ok::<_, ApiFailure>(valid.map(|valid| now.saturating_add(valid)))
    };
    match change {
        KeyvalChange::Add(entries) => {
            // As in the commercial nginx: a whole list is loaded into an empty zone, or one key is added.
            if entries.len() > 1 && !table.is_empty(now) {
                return Err(format_error("only one key can be added"));
            }
            let mut list = Vec::new();
            for entry in entries {
                let until = until(entry)?;
                if let Err(refusal) = table.insert(&entry.key, &entry.value, until, now) {
                    // All or nothing.
                    for done in &entries[..list.len()] {
                        let _was_added = table.remove(&done.key, now);
                    }
                    return Err(refused(&entry.key, refusal));
                }
                list.push(json!([entry.key, entry.value, until]));
            }
            Ok(json!(list))
        }
        KeyvalChange::Set(entry) => {
            let until = until(entry)?;
            let changed = table.change(&entry.key, &entry.value, until, now);
            changed.map_err(|refusal| refused(&entry.key, refusal))?;
            Ok(json!([[entry.key, entry.value, until]]))
        }
        KeyvalChange::Remove(key) => {
            let removed = table.remove(key, now);
            removed.map_err(|refusal| refused(key, refusal))?;
            Ok(json!([[key, null, null]]))
        }
        KeyvalChange::Clear => {
            table.clear();
            Ok(Value::Null)
        }
    }
}

/// Makes a change that another worker group has made, which has written the file.
pub(super) fn make_as_told(view: &StatusView, change: &[u8]) -> Option<Vec<u8>> {
    let change: Value = serde_json::from_slice(change).ok()?;
    let kind = match change["stream"].as_bool()? {
        true => GroupKind::Stream,
        false => GroupKind::Http,
    };
    let zones = resources::keyval_zones(view, kind)?;
    let table = zones.find(change["zone"].as_str()?)?.state()?;
    let now = rt::wall_millis();
    let Some(list) = change["changes"].as_array() else {
        table.clear();
        return Some(groups::done());
    };
    for entry in list {
        let key = entry[0].as_str()?;
        // Either way the entry is then what the other group has.
        let _was_there = table.remove(key, now);
        if let Some(value) = entry[1].as_str() {
            let _fits_there = table.insert(key, value, entry[2].as_u64(), now);
        }
    }
    Some(groups::done())
}
