//! `limit_req_zone … sync=share|redis`: a rate that the members of a cluster keep together. What a member may use of it is
//! [`net::cluster::RateShare`]; here are the shares by key, and the task that reports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use base::lru::Lru;
use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, DirectiveLine, Span};
use net::cluster::{
    Cluster, Clusters, RATE_SCRIPT, RateReport, RateShare, equal_weight, hash_of_key, scaled,
    unscaled,
};
use net::redis::{RedisClient, RedisCommand, RedisFault, RedisReply, elements_of, number_of};

use super::limit_req::{CountMode, PourResult, ReqZone, RequestBuckets};
use super::zones::ZoneShards;

/// The interval of reports.
const ROUND: Duration = Duration::from_millis(100);

/// Keys in one report.
const KEYS_MAX: usize = 512;

/// For how long a report counts, in milliseconds.
const REPORT_MS: u64 = 3_000;

/// What a share costs its zone, in bytes: as many are kept as the zone could have buckets.
const SHARE_COST: u64 = 128;

/// By what members agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateAgreement {
    /// Each has an equal part.
    Share,
    /// Redis has a common bucket.
    Redis,
}

/// The `sync=` and `cluster=` of a zone.
pub(crate) struct ZoneSync {
    agreement: RateAgreement,
    cluster: Arc<Cluster>,
}

/// The words of the two parameters while a line is read.
#[derive(Default)]
pub(crate) struct SyncWords {
    agreement: Option<RateAgreement>,
    cluster: Option<Arc<Cluster>>,
}

impl SyncWords {
    /// Takes a parameter; `false` if it is another one.
    pub(crate) fn take(
        &mut self,
        line: &mut DirectiveLine,
        index: usize,
    ) -> Result<bool, Diagnostic> {
        let word = line.text(index).to_owned();
        match word.split_once_str("=") {
            Some((b"sync", b"share")) => self.agreement = Some(RateAgreement::Share),
            Some((b"sync", b"redis")) => self.agreement = Some(RateAgreement::Redis),
            Some((b"sync", _)) => {
                let error = line.error_at(index, format!("invalid parameter \"{word}\""));
                return Err(
                    error.note("sync=share divides by the members, sync=redis counts in Redis")
                );
            }
            Some((b"cluster", name)) if !name.is_empty() => {
                self.cluster = Some(Clusters::refer_to_cluster(line, name.as_bstr()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What the words say together.
    pub(crate) fn finish(self, line: &DirectiveLine) -> Result<Option<ZoneSync>, Diagnostic> {
        match (self.agreement, self.cluster) {
            (None, None) => Ok(None),
            (Some(agreement), Some(cluster)) => Ok(Some(ZoneSync { agreement, cluster })),
            _ => Err(line.error("\"sync\" and \"cluster\" go together: sync=share cluster=name")),
        }
    }
}

/// The clusters whose Redis is needed, by the lines that say so.
#[derive(Default)]
struct NeededRedis(Vec<(Arc<Cluster>, Span)>);

/// Reports lines that need the Redis of a cluster that has none. Its block may stand further down.
pub(crate) fn report_missing_redis(line: &mut DirectiveLine) {
    for (cluster, span) in std::mem::take(&mut line.lasting::<NeededRedis>().0) {
        let settings = cluster.settings();
        if settings.is_some_and(|settings| settings.redis.is_none()) {
            let text = format!("cluster \"{}\" has no \"redis\"", cluster.name());
            let note =
                "sync=redis keeps there what members share: add a \"redis\" line to the cluster";
            line.level.report(Diagnostic::error(text, span).note(note));
        }
    }
}

impl ZoneSync {
    /// Has the line checked by [`report_missing_redis`].
    pub(crate) fn note_need(&self, line: &mut DirectiveLine) {
        if self.needs_redis() {
            let span = line.node.span;
            let needed = line.lasting::<NeededRedis>();
            needed.0.push((Arc::clone(&self.cluster), span));
        }
    }

    /// Whether Redis is needed.
    pub(crate) fn needs_redis(&self) -> bool {
        self.agreement == RateAgreement::Redis
    }

    /// The cluster.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The members that answer.
    pub(crate) fn members(&self) -> usize {
        self.cluster.state().map_or(1, |state| state.live_members())
    }

    /// As [`RequestBuckets::pour`], by this member's part of rate and burst. The excess is that of the whole, so that
    /// delays are computed from it as always.
    pub(crate) fn pour(
        &self,
        buckets: &RequestBuckets,
        key: &[u8],
        (rate, burst): (u64, u64),
        count: CountMode,
        now: Instant,
    ) -> PourResult {
        let shares = match self.agreement {
            RateAgreement::Share => None,
            RateAgreement::Redis => Some(buckets.shares()),
        };
        let weight = match shares {
            None => equal_weight(self.members()),
            Some(shares) => shares.note_asked(key, count, || self.members()),
        };
        // A rate of 0 would never empty the bucket: a member with the smallest share passes a request now and then.
        let (own_rate, own_burst) = (scaled(rate, weight).max(1), scaled(burst, weight));
        match buckets.pour(key, own_rate, own_burst, count, now) {
            PourResult::Excess(excess) => {
                // Only what has passed is reported to Redis. What was refused is demand, which was noted above.
                if let (Some(shares), CountMode::Now) = (shares, count) {
                    shares.note_passed(key);
                }
                PourResult::Excess(unscaled(excess, weight))
            }
            PourResult::OverBurst(excess) => PourResult::OverBurst(unscaled(excess, weight)),
            PourResult::NoRoom => PourResult::NoRoom,
        }
    }
}

/// The shares of a zone, by key.
pub(crate) struct KeyShares {
    tables: ZoneShards<Lru<Arc<[u8]>, RateShare>>,
    /// Leases that Redis has given.
    pub(crate) leases: AtomicU64,
    /// Rounds without Redis.
    pub(crate) rounds_without: AtomicU64,
}

impl KeyShares {
    /// The shares of a zone of this size.
    pub(crate) fn new(size: u64) -> KeyShares {
        KeyShares {
            tables: ZoneShards::new(size, || {
                let room = (size / SHARE_COST / 16).max(64);
                Lru::new(usize::try_from(room).unwrap_or(usize::MAX))
            }),
            leases: AtomicU64::new(0),
            rounds_without: AtomicU64::new(0),
        }
    }

    fn note_asked(&self, key: &[u8], count: CountMode, members: impl Fn() -> usize) -> u32 {
        let weight = |share: &mut RateShare| match count {
            CountMode::Now => share.note_asked(),
            // It is only looked at, and counted later.
            CountMode::Later => share.weight(),
        };
        let mut table = self.tables.lock(key);
        // One look in the table for a key that is known: this is on the path of each request.
        if let Some(share) = table.get(key) {
            return weight(share);
        }
        // A new key begins with an equal part: nothing is known yet of what the other members are asked for.
        table.insert(key.into(), RateShare::new(members()));
        match table.get(key) {
            Some(share) => weight(share),
            None => equal_weight(members()),
        }
    }

    fn note_passed(&self, key: &[u8]) {
        if let Some(share) = self.tables.lock(key).get(key) {
            share.note_passed();
        }
    }

    /// The reports of this round, in groups of [`KEYS_MAX`].
    fn reports(&self, elapsed_ms: u64) -> Vec<Vec<(Arc<[u8]>, RateReport)>> {
        let mut groups = vec![Vec::new()];
        for table in self.tables.all() {
            let mut table = table.lock();
            let mut ended = Vec::new();
            for (key, share) in table.iter_mut() {
                match share.report(elapsed_ms) {
                    Some(report) => {
                        if groups.last().is_none_or(|group| group.len() >= KEYS_MAX) {
                            groups.push(Vec::new());
                        }
                        if let Some(group) = groups.last_mut() {
                            group.push((Arc::clone(key), report));
                        }
                    }
                    // Neither asked for nor owed anything: the next request begins anew.
                    None => ended.push(Arc::clone(key)),
                }
            }
            // The table cannot change while it is walked.
            for key in ended {
                table.remove(&key);
            }
        }
        groups.retain(|group| !group.is_empty());
        groups
    }

    fn fall_back(&self, keys: &[(Arc<[u8]>, RateReport)], members: usize) {
        for (key, _) in keys {
            if let Some(share) = self.tables.lock(key).get(key) {
                share.fall_back(members);
            }
        }
    }
}

/// Reports the shares of a zone to Redis for as long as the result is polled, and takes the leases that it gives.
pub(crate) async fn report_shares(zone: Arc<ReqZone>) {
    let mut last = rt::now();
    loop {
        rt::sleep(ROUND).await;
        let (Some(buckets), Some(declared)) = (zone.state(), zone.declared()) else {
            continue;
        };
        let Some(sync) = declared.sync.as_ref() else {
            return;
        };
        let Some(client) = sync.cluster().redis() else {
            return;
        };
        let shares = buckets.shares();
        let elapsed = rt::now().saturating_duration_since(last);
        last = rt::now();
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        for group in shares.reports(elapsed_ms) {
            match report(client, sync, zone.name.as_bstr(), declared.rate, &group).await {
                Ok(replies) => {
                    shares.leases.fetch_add(replies.len() as u64, Relaxed);
                    take_replies(buckets, declared.rate, &group, &replies);
                }
                // The client logs why, once. Requests go on with the part of one member among those that are known.
                Err(_) => {
                    shares.rounds_without.fetch_add(1, Relaxed);
                    shares.fall_back(&group, sync.members());
                }
            }
        }
    }
}

async fn report(
    client: &RedisClient,
    sync: &ZoneSync,
    zone: &BStr,
    rate: u64,
    group: &[(Arc<[u8]>, RateReport)],
) -> Result<Vec<(u64, u64)>, RedisFault> {
    let own = sync.cluster().state().and_then(|state| {
        let view = state.view();
        view.own.as_ref().map(|own| own.name.clone())
    });
    // A server that is no member counts by its process.
    let node = own.unwrap_or_else(|| format!("process {}", std::process::id()));
    let mut command = RedisCommand::new("EVAL")
        .arg(RATE_SCRIPT)
        .number(group.len() as u64);
    for (key, _) in group {
        command = command.arg(key_of(client, zone, key));
    }
    command = command.number(rate.max(1)).arg(node).number(REPORT_MS);
    for (_, report) in group {
        command = command.number(report.taken).number(report.demand);
    }
    let reply = client.ask(command).await?;
    // A reply that is not as the script gives it comes from another script, or from something that is no Redis.
    let replies = elements_of(&reply)
        .iter()
        .filter_map(|one| match elements_of(one) {
            [level, weight] => Some((as_count(level)?, as_count(weight)?)),
            _ => None,
        });
    let replies: Vec<(u64, u64)> = replies.collect();
    match replies.len() == group.len() {
        true => Ok(replies),
        false => Err(RedisFault::Refused(
            "the script gave something else".to_owned(),
        )),
    }
}

fn as_count(reply: &RedisReply) -> Option<u64> {
    u64::try_from(number_of(reply)?).ok()
}

/// Where Redis has the common bucket of a key. The key itself may be an address, which is nobody's business there.
fn key_of(client: &RedisClient, zone: &BStr, key: &[u8]) -> String {
    let hash = hash_of_key(key);
    let digits = hash
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    client.settings().key(&format!("rate:{zone}:{digits}"))
}

fn take_replies(
    buckets: &RequestBuckets,
    rate: u64,
    group: &[(Arc<[u8]>, RateReport)],
    replies: &[(u64, u64)],
) {
    let shares = buckets.shares();
    for ((key, _), (level, weight)) in group.iter().zip(replies) {
        // Locked until the bucket has the new level: a request that passed in between would not be in it.
        let mut table = shares.tables.lock(key);
        if let Some(share) = table.get(&**key) {
            let level = share.take(*level, *weight);
            buckets.set_level(key, level, scaled(rate, share.weight()).max(1), rt::now());
        }
    }
}
