//! `limit_req_zone … sync=share|redis`: a rate that the members of a cluster keep together. What a member may use of it is
//! [`net::cluster::RateShare`], which is kept with the bucket; here are the words of the line, and the task that reports.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use base::text::write_hex;
use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, DirectiveLine, Span};
use net::cluster::{Cluster, Clusters, RATE_SCRIPT, RateReport, equal_weight, hash_of_key};
use net::redis::{RedisClient, RedisCommand, RedisFault, RedisReply, elements_of, number_of};

use super::limit_req::{CountMode, PourResult, RatePart, ReqZone, RequestBuckets};

/// The interval of reports.
const ROUND: Duration = Duration::from_millis(100);

/// Keys in one report.
const KEYS_MAX: usize = 512;

/// For how long a report counts, in milliseconds.
const REPORT_MS: u64 = 3_000;

/// A reply that has not come after this time counts as none: what it says was true a while ago, and a member that has few
/// requests at that time would refuse those that come now.
const REPLY_LIMIT: Duration = Duration::from_millis(300);

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
        match cluster.settings() {
            Some(settings) if settings.redis.is_some() => {}
            Some(_) => {
                let text = format!("cluster \"{}\" has no \"redis\"", cluster.name());
                let note = "sync=redis keeps there what members share: add a \"redis\" line to the cluster";
                line.level.report(Diagnostic::error(text, span).note(note));
            }
            // Its block is read later, or is reported as missing.
            None => line.lasting::<NeededRedis>().0.push((cluster, span)),
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

    /// As [`RequestBuckets::pour`], by this member's part of rate and burst.
    pub(crate) fn pour(
        &self,
        buckets: &RequestBuckets,
        key: &[u8],
        limits: (u64, u64),
        count: CountMode,
        now: Instant,
    ) -> PourResult {
        let members = || self.members();
        let part = match self.agreement {
            RateAgreement::Share => RatePart::Fixed(equal_weight(members())),
            RateAgreement::Redis => RatePart::Leased(&members),
        };
        buckets.pour(key, limits, part, count, now)
    }
}

/// Reports the shares of a zone to Redis for as long as the result is polled, and takes the leases that it gives.
pub(crate) async fn report_shares(zone: Arc<ReqZone>) {
    let mut last = rt::now();
    let mut round = 0_u32;
    loop {
        rt::sleep(ROUND).await;
        round = round.wrapping_add(1).max(1);
        let (Some(buckets), Some(declared)) = (zone.state(), zone.declared()) else {
            continue;
        };
        let Some(sync) = declared.sync.as_ref() else {
            return;
        };
        let Some(client) = sync.cluster().redis() else {
            return;
        };
        let elapsed = rt::now().saturating_duration_since(last);
        last = rt::now();
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        for group in buckets.reports(round, elapsed_ms, KEYS_MAX) {
            let report = report(client, sync, zone.name.as_bstr(), declared.rate, &group);
            match rt::timeout(REPLY_LIMIT, report).await {
                Ok(Ok(replies)) => {
                    buckets.leases.fetch_add(replies.len() as u64, Relaxed);
                    for ((key, _), lease) in group.iter().zip(replies) {
                        buckets.take_lease(key, lease, declared.rate, rt::now());
                    }
                }
                // The client logs why, once. Requests go on with the part of one member among those that are known.
                Ok(Err(_)) | Err(_) => {
                    buckets.rounds_without.fetch_add(1, Relaxed);
                    buckets.fall_back(&group, sync.members());
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
    let mut command = RedisCommand::new("EVAL")
        .arg(RATE_SCRIPT)
        .number(group.len() as u64);
    for (key, _) in group {
        command = command.arg(key_of(client, "rate", zone, key));
    }
    command = command
        .number(rate.max(1))
        .arg(reporter_name(sync))
        .number(REPORT_MS);
    for (_, report) in group {
        command = command.number(report.taken).number(report.demand);
    }
    let reply = client.ask(command).await?;
    let replies = pairs_of(&reply);
    match replies.len() == group.len() {
        true => Ok(replies),
        false => Err(RedisFault::Refused(
            "the script gave something else".to_owned(),
        )),
    }
}

/// The name by which this process reports: worker groups of one server have counters of their own, and a server that is no
/// member has no other name.
pub(crate) fn reporter_name(sync: &ZoneSync) -> String {
    let process = std::process::id();
    let own = sync.cluster().state().and_then(|state| {
        let view = state.view();
        view.own.as_ref().map(|own| own.name.clone())
    });
    match own {
        Some(name) => format!("{name} {process}"),
        None => format!("process {process}"),
    }
}

/// The pairs of numbers in a reply. One that is not as the script gives it comes from another script, or from something that
/// is no Redis: then there are fewer.
pub(crate) fn pairs_of(reply: &RedisReply) -> Vec<(u64, u64)> {
    let pairs = elements_of(reply).iter();
    let read = pairs.filter_map(|one| match elements_of(one) {
        [first, second] => Some((as_count(first)?, as_count(second)?)),
        _ => None,
    });
    read.collect()
}

fn as_count(reply: &RedisReply) -> Option<u64> {
    u64::try_from(number_of(reply)?).ok()
}

/// Where Redis has what members count of a key. The key itself may be an address, which is nobody's business there.
pub(crate) fn key_of(client: &RedisClient, what: &str, zone: &BStr, key: &[u8]) -> String {
    let mut digits = Vec::with_capacity(32);
    write_hex(&hash_of_key(key), &mut digits);
    client
        .settings()
        .key(&format!("{what}:{zone}:{}", digits.as_bstr()))
}
