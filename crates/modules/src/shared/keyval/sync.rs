//! `keyval_zone … sync=redis`: the entries are in Redis, and every member of the cluster has a copy. How is
//! [`crate::shared::shared_map`].

use std::sync::Arc;

use host::error_log::Logger;
use net::redis::RedisClient;

use super::KeyvalZone;
use super::table::KeyvalTable;
use crate::shared::shared_map::{MapCopy, MapEntry, MapProgress, SharedMap, follow_map};

impl MapCopy for KeyvalTable {
    fn progress(&self) -> &MapProgress {
        &self.progress
    }

    fn replace_all(&self, list: &[MapEntry]) -> usize {
        self.replace(list, rt::wall_millis())
    }

    fn put_entry(&self, key: &str, entry: Option<(&str, Option<u64>)>) -> bool {
        self.take(key, entry, rt::wall_millis()).is_ok()
    }

    fn remove_all(&self) {
        self.clear();
    }
}

/// The map of a zone. Names of zones are unique in the configuration, over http and stream.
pub(crate) fn map_of<'a>(
    client: &'a RedisClient,
    zone: &KeyvalZone,
    table: &'a KeyvalTable,
) -> SharedMap<'a> {
    SharedMap {
        client,
        name: format!("keyval:{}", zone.name),
        copy: table,
    }
}

/// Starts to follow the zones that Redis keeps. To be called on one loop.
pub(crate) fn follow_zones(zones: &[Arc<KeyvalZone>], log: &Logger) -> Vec<rt::JoinHandle<()>> {
    let shared = zones
        .iter()
        .filter(|zone| zone.declared().is_some_and(|zone| zone.sync.is_some()));
    let follow = |zone: &Arc<KeyvalZone>| {
        let (zone, log) = (Arc::clone(zone), log.clone());
        let task = async move {
            let map = || {
                let sync = zone.declared().and_then(|declared| declared.sync.as_ref());
                let client = sync.and_then(|sync| sync.cluster().redis())?;
                Some(map_of(client, &zone, zone.state()?))
            };
            let description = format!("keyval_zone \"{}\"", zone.name);
            follow_map(map, description, log).await;
        };
        rt::spawn_handle("keyval zone", task).abort_on_drop()
    };
    shared.map(follow).collect()
}
