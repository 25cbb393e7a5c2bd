//! The state of the server as JSON, for `api` and `weir_status`: one home for what both show.
//!
//! - [`server`]: the process, connections, loops, certificates.
//! - [`requests`]: servers, zones, caches, limits, resolvers.
//! - [`upstreams`]: groups of servers and their peers.
//! - [`guard`]: who may ask, and who may change something.
//!
//! The names are those of the commercial nginx's API where it has the thing. All of it runs on a thread of a pool.

pub(crate) mod guard;
pub(crate) mod requests;
pub(crate) mod server;
pub(crate) mod upstreams;

use std::sync::Arc;

use ::stream::stream_site::FrozenStream;
use bstr::{BStr, ByteSlice};
use host::engine::ZoneRegistry;
use http::http_site::FrozenHttp;
use serde::Serialize;
use serde_json::{Map, Value};

use super::observation::Observation;

/// What is looked at: the configuration that is served, and what goes on under it.
#[derive(Clone)]
pub(crate) struct StatusView {
    /// That of http.
    pub(crate) site: Arc<FrozenHttp>,
    /// That of stream, if there is one.
    pub(crate) stream: Option<Arc<FrozenStream>>,
    /// What outlives it.
    pub(crate) zones: ZoneRegistry,
    /// What was counted.
    pub(crate) observed: Arc<Observation>,
}

impl StatusView {
    /// The view of a process.
    pub(crate) fn new(site: Arc<FrozenHttp>, zones: &ZoneRegistry) -> StatusView {
        let observed = Observation::of(zones);
        StatusView {
            site,
            stream: observed.stream(),
            zones: zones.clone(),
            observed,
        }
    }
}

/// A name from the configuration.
pub(crate) fn text(name: &BStr) -> String {
    name.to_str_lossy().into_owned()
}

/// A time in ISO 8601 with milliseconds.
pub(crate) fn iso_time(ms: u64) -> String {
    let stamp = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .unwrap_or_default();
    stamp.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// A value as a tree, which can be changed and added up. Lists of thousands are written without one.
pub(crate) fn tree(value: &impl Serialize) -> Value {
    // Not reached: all keys are texts or numbers.
    serde_json::to_value(value).unwrap_or_default()
}

/// Appends a value to a list in JSON.
pub(crate) fn append_json(list: &mut String, value: &impl Serialize) {
    if !list.is_empty() {
        list.push(',');
    }
    // As above.
    list.push_str(&serde_json::to_string(value).unwrap_or_default());
}

/// An object of names and values.
pub(crate) fn object<K: Into<String>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
    let entries = entries.into_iter();
    Value::Object(
        entries
            .map(|(name, value)| (name.into(), value))
            .collect::<Map<_, _>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(iso_time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso_time(1_764_150_000_007), "2025-11-26T09:40:00.007Z");
        assert_eq!(iso_time(u64::MAX), "1970-01-01T00:00:00.000Z");
    }
}
