//! The metrics of upstream groups: their servers, queues and idle connections.

use super::groups::UpstreamGroups;
use super::peer::{PeerHealth, PeerStatus};
use super::server::ServerState;
use crate::metrics::{LatencySums, MetricFamily, MetricSink};

type Family = MetricFamily;

static REQUESTS: Family = Family::counter(
    "weir_upstream_requests",
    "Requests that a server of a group was given.",
);
static FAILURES: Family = Family::counter(
    "weir_upstream_failures",
    "Requests that a server of a group failed.",
);
static DISABLED: Family = Family::counter(
    "weir_upstream_disabled",
    "How often failures made a server unavailable.",
);
static ACTIVE: Family = Family::gauge(
    "weir_upstream_active",
    "Requests that a server of a group is working on.",
);
static STATE: Family = Family::gauge(
    "weir_upstream_state",
    "The state of a server of a group: 1 for the one that it is in.",
);
static HEALTHY: Family = Family::gauge(
    "weir_upstream_healthy",
    "Whether active checks find a server of a group healthy; 1 also if there are none.",
);
static CONNECT: Family = Family::histogram(
    "weir_upstream_connect_seconds",
    "From the choice of a server until there was a connection to it.",
);
static HEADER: Family = Family::histogram(
    "weir_upstream_header_seconds",
    "From the choice of a server until the head of its response.",
);
static RESPONSE: Family = Family::histogram(
    "weir_upstream_response_seconds",
    "From the choice of a server until the end of its response.",
);
static QUEUED: Family = Family::gauge(
    "weir_upstream_queued",
    "Requests that wait for a server of a group.",
);
static IDLE: Family = Family::gauge(
    "weir_upstream_idle",
    "Idle connections to servers of a group.",
);

/// A family, and the number that a peer has for it.
type PeerNumber = (&'static Family, fn(&PeerStatus) -> u64);

/// A family, and the histogram that a peer has for it.
type PeerHistogram = (&'static Family, fn(&PeerStatus) -> &LatencySums);

/// The words for states.
const STATES: [&str; 4] = ["up", "down", "draining", "unavailable"];

/// A group, and a copy of what its peers have counted.
struct GroupStatus {
    name: String,
    peers: Vec<(String, PeerStatus)>,
    waiting: u64,
    idle: u64,
}

impl UpstreamGroups {
    /// Tells the metrics of all groups.
    pub fn tell_metrics(&self, sink: &mut dyn MetricSink) {
        let groups: Vec<GroupStatus> = self
            .all_groups()
            .iter()
            .map(|group| {
                let state = group.state();
                let peers = state.status().into_iter();
                GroupStatus {
                    name: group.name().to_string(),
                    peers: peers.map(|peer| (peer.name.to_string(), peer)).collect(),
                    waiting: state.waiting() as u64,
                    idle: state.idle_connections() as u64,
                }
            })
            .collect();
        tell_peers(&groups, sink);
        sink.family(&QUEUED);
        for group in &groups {
            sink.count(&[("upstream", group.name.as_bytes())], group.waiting);
        }
        sink.family(&IDLE);
        for group in &groups {
            sink.count(&[("upstream", group.name.as_bytes())], group.idle);
        }
    }
}

fn tell_peers(groups: &[GroupStatus], sink: &mut dyn MetricSink) {
    let numbers: [PeerNumber; 5] = [
        (&REQUESTS, |peer| peer.requests),
        (&FAILURES, |peer| peer.failures),
        (&DISABLED, |peer| peer.disabled),
        (&ACTIVE, |peer| peer.connections),
        (&HEALTHY, |peer| {
            u64::from(matches!(
                peer.health,
                PeerHealth::Unchecked | PeerHealth::Healthy
            ))
        }),
    ];
    for (family, value) in numbers {
        sink.family(family);
        for_each_peer(groups, &mut |labels, peer| sink.count(labels, value(peer)));
    }
    sink.family(&STATE);
    for_each_peer(groups, &mut |labels, peer| {
        let state = match peer.state {
            ServerState::Down => 1,
            ServerState::Drain => 2,
            ServerState::Up if !peer.available => 3,
            ServerState::Up => 0,
        };
        for (index, word) in STATES.iter().enumerate() {
            let [upstream, server] = *labels;
            let labels = [upstream, server, ("state", word.as_bytes())];
            sink.count(&labels, u64::from(index == state));
        }
    });
    let histograms: [PeerHistogram; 3] = [
        (&CONNECT, |peer| &peer.latencies[0]),
        (&HEADER, |peer| &peer.latencies[1]),
        (&RESPONSE, |peer| &peer.latencies[2]),
    ];
    for (family, value) in histograms {
        sink.family(family);
        for_each_peer(groups, &mut |labels, peer| {
            sink.histogram(labels, &value(peer).totals());
        });
    }
}

/// The upstream group and the server.
type PeerLabels<'a> = [(&'static str, &'a [u8]); 2];

/// Calls `f` with each peer and its labels.
fn for_each_peer(groups: &[GroupStatus], f: &mut dyn FnMut(&PeerLabels<'_>, &PeerStatus)) {
    for group in groups {
        for (name, peer) in &group.peers {
            let labels = [
                ("upstream", group.name.as_bytes()),
                ("server", name.as_bytes()),
            ];
            f(&labels, peer);
        }
    }
}
