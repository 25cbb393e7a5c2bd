//! `sticky learn … sync=redis`: the members of a cluster know each other's sessions.
//!
//! ```text
//! request ──▶ sessions of this server, at once ──▶ news ── ten times a second ──▶ Redis ──▶ sessions of all members
//! ```
//!
//! No request waits for Redis. A session that is used is told again before the others forget it, so that what Redis has lost
//! comes back with use. Two members that learn the same session at the same moment agree on the one that Redis has last.

use std::sync::Arc;
use std::time::Duration;

use base::text::write_hex;
use bstr::{BStr, BString, ByteSlice};
use http::http_loop::HttpLoop;
use net::cluster::{Cluster, Clusters};
use net::upstream::{GroupState, SessionSum, StickyLearn, StickyMethod, UpstreamGroups};

use crate::shared::shared_map::{
    MapCopy, MapEntry, MapProgress, SharedChange, SharedEntry, SharedMap, follow_map,
};

/// The interval of news.
const ROUND: Duration = Duration::from_millis(100);

/// Sessions in one message.
const NEWS_MAX: usize = 512;

/// The sessions of a group, as a copy of what Redis has.
struct SessionCopy {
    state: Arc<GroupState>,
    progress: MapProgress,
}

impl MapCopy for SessionCopy {
    fn progress(&self) -> &MapProgress {
        &self.progress
    }

    /// What is there stays: it may not have been told yet, and ends by itself.
    fn replace_all(&self, list: &[MapEntry]) -> usize {
        for (key, sid, until) in list {
            self.put_entry(key, Some((sid, *until)));
        }
        0
    }

    fn put_entry(&self, key: &str, entry: Option<(&str, Option<u64>)>) -> bool {
        // None is ever removed, and all of them end.
        if let (Some(sum), Some((sid, Some(until)))) = (sum_of(key), entry) {
            let left = Duration::from_millis(until.saturating_sub(rt::wall_millis()));
            self.state.learn_shared_session(sum, sid.into(), left);
        }
        true
    }

    fn remove_all(&self) {}
}

/// The key of a session in Redis: its digest, since who reads the name of a session can take part in it.
fn key_of(sum: &SessionSum) -> String {
    let mut text = Vec::with_capacity(2 * sum.len());
    write_hex(sum, &mut text);
    text.to_str_lossy().into_owned()
}

fn sum_of(key: &str) -> Option<SessionSum> {
    let digits = key.as_bytes();
    let mut sum = SessionSum::default();
    if digits.len() != 2 * sum.len() {
        return None;
    }
    for (byte, pair) in sum.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(pair.to_str().ok()?, 16).ok()?;
    }
    Some(sum)
}

/// Starts to share the sessions of all groups that say so. On one loop.
pub(super) fn start(engine: &HttpLoop) -> Vec<rt::JoinHandle<()>> {
    let site = engine.site();
    let clusters = site.main_confs.get::<Clusters>();
    let mut tasks = Vec::new();
    for group in site.main_confs.get::<UpstreamGroups>().all_groups() {
        let method = group.settings.sticky.as_ref().map(|sticky| &sticky.method);
        let Some(StickyMethod::Learn(learn)) = method else {
            continue;
        };
        let named = learn.shared.as_ref();
        let Some(cluster) = named.and_then(|name| clusters.find_cluster(name)) else {
            continue;
        };
        let copy = Arc::new(SessionCopy {
            state: Arc::clone(group.state()),
            progress: MapProgress::default(),
        });
        let telling = tell_news(Arc::clone(&cluster), Arc::clone(&copy), learn.clone());
        tasks.push(rt::spawn_handle("sticky sessions", telling).abort_on_drop());
        let (zone, log) = (learn.zone.clone(), engine.log());
        let following = async move {
            let map = || map_of(&cluster, zone.as_bstr(), &copy);
            follow_map(map, format!("sticky zone \"{zone}\""), log).await;
        };
        tasks.push(rt::spawn_handle("sticky sessions", following).abort_on_drop());
    }
    tasks
}

fn map_of<'a>(cluster: &'a Cluster, zone: &BStr, copy: &'a SessionCopy) -> Option<SharedMap<'a>> {
    Some(SharedMap {
        client: cluster.redis()?,
        name: format!("sticky:{zone}"),
        copy,
    })
}

/// Tells the other members what this one has learned, for as long as the result is polled.
async fn tell_news(cluster: Arc<Cluster>, copy: Arc<SessionCopy>, learn: StickyLearn) {
    let valid_ms = u64::try_from(learn.timeout.as_millis()).unwrap_or(u64::MAX);
    loop {
        rt::sleep(ROUND).await;
        let Some(map) = map_of(&cluster, learn.zone.as_bstr(), &copy) else {
            continue;
        };
        // While Redis is away they wait, the last of each session.
        if !map.client.is_there() {
            continue;
        }
        loop {
            let news = copy.state.take_session_news(NEWS_MAX);
            let is_last = news.len() < NEWS_MAX;
            if !news.is_empty() && !tell(&map, &news, valid_ms).await {
                copy.state.put_session_news_back(news);
                break;
            }
            if is_last {
                break;
            }
        }
    }
}

async fn tell(map: &SharedMap<'_>, news: &[(SessionSum, BString)], valid_ms: u64) -> bool {
    let keys: Vec<String> = news.iter().map(|(sum, _)| key_of(sum)).collect();
    let told = keys.iter().zip(news).filter_map(|(key, (_, sid))| {
        // A route that is no UTF-8 is known to this server only.
        let entry: SharedEntry<'_> = (key, sid.to_str().ok()?, Some(valid_ms));
        Some(entry)
    });
    let told: Vec<SharedEntry<'_>> = told.collect();
    // Why it fails is in the log already.
    told.is_empty() || map.send(SharedChange::Put, &told).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_digest_of_a_session() {
        let sum: SessionSum = std::array::from_fn(|at| (at * 17) as u8);
        assert_eq!(key_of(&sum), "00112233445566778899aabbccddeeff");
        assert_eq!(sum_of(&key_of(&sum)), Some(sum));
        for other in [
            "",
            "00",
            "00112233445566778899aabbccddeefg",
            "é0112233445566778899aabbccddeef",
        ] {
            assert_eq!(sum_of(other), None, "{other}");
        }
    }
}
