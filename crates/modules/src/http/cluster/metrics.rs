//! What the metrics tell of clusters: members, requests among them, Redis, journals.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bstr::ByteSlice;
use net::cluster::{Cluster, ClusterState, Clusters, PurgeJournal};
use net::metrics::{MetricFamily, MetricSink};
use net::redis::RedisClient;

static MEMBERS: MetricFamily = MetricFamily::gauge(
    "weir_cluster_members",
    "Members of a cluster, this server included.",
);
static LIVE: MetricFamily = MetricFamily::gauge(
    "weir_cluster_members_live",
    "Members of a cluster that answer.",
);
static AVOIDED: MetricFamily = MetricFamily::counter(
    "weir_cluster_fetches_avoided",
    "Responses that a member sent, so that the origin was not asked.",
);
static SERVED: MetricFamily =
    MetricFamily::counter("weir_cluster_served", "Requests of other members.");
static SERVED_STORED: MetricFamily = MetricFamily::counter(
    "weir_cluster_served_stored",
    "Requests of other members that were answered from what was stored.",
);
static SERVED_JOINED: MetricFamily = MetricFamily::counter(
    "weir_cluster_served_joined",
    "Requests of other members that followed a fetch under way.",
);
static SERVED_FETCHED: MetricFamily = MetricFamily::counter(
    "weir_cluster_served_fetched",
    "Requests of other members for which the origin was asked.",
);
static SECOND_HOPS: MetricFamily = MetricFamily::counter(
    "weir_cluster_second_hops",
    "Questions to a member that another one had named, because the views of the members differ. There is no third hop.",
);
static REDIRECTED: MetricFamily = MetricFamily::counter(
    "weir_cluster_redirected",
    "Requests of other members that were sent on, because the views of the members differ.",
);
static REFUSED: MetricFamily = MetricFamily::counter(
    "weir_cluster_refused",
    "Requests to the peer port that were not a member's.",
);
static ASKED: MetricFamily = MetricFamily::counter("weir_cluster_asked", "Requests to a member.");
static FAILED: MetricFamily = MetricFamily::counter(
    "weir_cluster_failed",
    "Requests to a member that had to go on elsewhere.",
);
static LOSSES: MetricFamily = MetricFamily::counter(
    "weir_cluster_losses",
    "How often a member stopped answering.",
);

static REDIS_UP: MetricFamily = MetricFamily::gauge(
    "weir_cluster_redis_up",
    "Whether the Redis of a cluster can be used.",
);
static REDIS_LATENCY: MetricFamily = MetricFamily::gauge(
    "weir_cluster_redis_latency_microseconds",
    "How long the last commands took until Redis had answered them.",
);
static REDIS_COMMANDS: MetricFamily = MetricFamily::counter(
    "weir_cluster_redis_commands",
    "Commands that Redis has answered.",
);
static REDIS_FAILURES: MetricFamily = MetricFamily::counter(
    "weir_cluster_redis_failures",
    "Commands that Redis has refused, or that it could not be sent.",
);
static REDIS_LOSSES: MetricFamily = MetricFamily::counter(
    "weir_cluster_redis_losses",
    "How often the connection to Redis was lost.",
);
static JOURNAL_APPLIED: MetricFamily = MetricFamily::counter(
    "weir_cluster_journal_applied",
    "Purges that came by the journal.",
);
static JOURNAL_GAPS: MetricFamily = MetricFamily::counter(
    "weir_cluster_journal_gaps",
    "How often a cache was dropped or became stale, because purges may have been missed.",
);
static JOURNAL_LAG: MetricFamily = MetricFamily::gauge(
    "weir_cluster_journal_lag_milliseconds",
    "How old the last purge was when it was applied, by the clocks of Redis and of this server.",
);
static JOURNAL_UNSENT: MetricFamily = MetricFamily::gauge(
    "weir_cluster_journal_unsent",
    "Purges that wait to be written.",
);

/// A family of a whole cluster, and its value.
type ClusterNumber = (&'static MetricFamily, fn(&ClusterState) -> u64);

pub(super) fn tell_metrics(clusters: &Clusters, sink: &mut dyn MetricSink) {
    let clusters = clusters.all_clusters();
    let states = || {
        clusters
            .iter()
            .filter_map(|cluster| Some((cluster.name(), cluster.state()?)))
    };
    if states().next().is_none() {
        return;
    }
    let numbers: [ClusterNumber; 10] = [
        (&MEMBERS, |state| state.view().members.len() as u64),
        (&LIVE, |state| state.view().live_count() as u64),
        (&AVOIDED, |state| state.avoided.load(Relaxed)),
        (&SERVED, |state| state.served.load(Relaxed)),
        (&SERVED_STORED, |state| state.served_stored.load(Relaxed)),
        (&SERVED_JOINED, |state| state.served_joined.load(Relaxed)),
        (&SERVED_FETCHED, |state| state.served_fetched.load(Relaxed)),
        (&SECOND_HOPS, |state| state.second_hops.load(Relaxed)),
        (&REDIRECTED, |state| state.redirected.load(Relaxed)),
        (&REFUSED, |state| state.refused.load(Relaxed)),
    ];
    for (family, value) in numbers {
        sink.family(family);
        for (name, state) in states() {
            sink.count(&[("cluster", name.as_bytes())], value(state));
        }
    }
    for (family, index) in [(&ASKED, 0), (&FAILED, 1), (&LOSSES, 2)] {
        sink.family(family);
        for (name, state) in states() {
            for member in &state.view().members {
                let counters = [&member.asked, &member.failed, &member.losses];
                let labels = [
                    ("cluster", name.as_bytes()),
                    ("member", member.name.as_bytes()),
                ];
                sink.count(&labels, counters[index].load(Relaxed));
            }
        }
    }
    tell_redis(&clusters, sink);
}

/// A family of what needs Redis, and its value.
type SharedNumber<T> = (&'static MetricFamily, fn(&T) -> u64);

/// Tells of Redis and of the journals, where there are some.
fn tell_redis(clusters: &[Arc<Cluster>], sink: &mut dyn MetricSink) {
    let with_redis = || {
        let all = clusters.iter();
        all.filter_map(|cluster| Some((cluster, cluster.redis()?, cluster.state()?)))
    };
    if with_redis().next().is_none() {
        return;
    }
    let numbers: [SharedNumber<RedisClient>; 5] = [
        (&REDIS_UP, |redis| u64::from(redis.is_there())),
        (&REDIS_LATENCY, |redis| redis.latency_us.load(Relaxed)),
        (&REDIS_COMMANDS, |redis| redis.commands.load(Relaxed)),
        (&REDIS_FAILURES, |redis| redis.failures.load(Relaxed)),
        (&REDIS_LOSSES, |redis| redis.losses.load(Relaxed)),
    ];
    for (family, value) in numbers {
        sink.family(family);
        for (cluster, redis, _) in with_redis() {
            sink.count(&[("cluster", cluster.name().as_bytes())], value(redis));
        }
    }
    let numbers: [SharedNumber<PurgeJournal>; 4] = [
        (&JOURNAL_APPLIED, |journal| journal.applied.load(Relaxed)),
        (&JOURNAL_GAPS, |journal| journal.gaps.load(Relaxed)),
        (&JOURNAL_LAG, |journal| journal.lag_ms.load(Relaxed)),
        (&JOURNAL_UNSENT, |journal| journal.unsent_count() as u64),
    ];
    for (family, value) in numbers {
        sink.family(family);
        for (cluster, _, state) in with_redis() {
            for (zone, journal) in state.journals() {
                let labels = [("cluster", cluster.name().as_bytes()), ("cache", &zone[..])];
                sink.count(&labels, value(&journal));
            }
        }
    }
}
