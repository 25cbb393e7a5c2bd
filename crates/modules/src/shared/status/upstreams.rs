//! Groups of upstream servers.

use std::borrow::Cow;
use std::time::Duration;

use bstr::ByteSlice;
use net::metrics::LATENCY_BOUNDS_US;
use net::upstream::{
    GroupOrigin, PeerStatus, ServerState, UpstreamGroup, UpstreamGroups, UpstreamServer,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::requests::ResponseCounts;
use super::{StatusView, iso_time, object, text, tree};
use ::stream::upstream::StreamGroups;

/// Which engine's groups are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupKind {
    /// Those of `http`.
    Http,
    /// Those of `stream`.
    Stream,
}

impl GroupKind {
    /// The groups of this kind.
    pub(crate) fn groups(self, view: &StatusView) -> Option<UpstreamGroups> {
        match self {
            GroupKind::Http => Some(view.site.main_confs.get::<UpstreamGroups>().clone()),
            GroupKind::Stream => {
                let stream = view.stream.as_ref()?;
                Some((**stream.main_confs.get::<StreamGroups>()).clone())
            }
        }
    }

    /// The `upstream` block of this name.
    pub(crate) fn find(
        self,
        view: &StatusView,
        name: &str,
    ) -> Option<std::sync::Arc<UpstreamGroup>> {
        let groups = self.groups(view)?.all_groups();
        groups
            .into_iter()
            .find(|group| is_block(group) && *group.name() == name)
    }
}

fn is_block(group: &UpstreamGroup) -> bool {
    group.settings.origin == GroupOrigin::Block
}

/// All `upstream` blocks, as the API has them.
pub(crate) fn groups_value(view: &StatusView, kind: GroupKind) -> Value {
    let groups = kind.groups(view).map(|groups| groups.all_groups());
    let blocks = groups.into_iter().flatten().filter(|group| is_block(group));
    object(blocks.map(|group| (text(group.name()), group_value(&group, kind))))
}

/// A further peer of one server, for each address but the first, has the number of the server plus so much.
const NEXT_ADDRESS: u64 = 1 << 16;

/// A group, as the API has it.
pub(crate) fn group_value(group: &UpstreamGroup, kind: GroupKind) -> Value {
    tree(&GroupCounts::of(group, &group.state().status(), kind))
}

/// A group, in the words of the API. What it does not have is left out.
#[derive(Serialize)]
pub(crate) struct GroupCounts<'a> {
    pub(crate) peers: Vec<PeerCounts<'a>>,
    zombies: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    keepalive: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueCounts>,
}

#[derive(Serialize)]
struct QueueCounts {
    size: u64,
    max_size: u64,
    overflows: u64,
}

/// One of its peers. What only one engine has is `None` in the other.
#[derive(Serialize)]
pub(crate) struct PeerCounts<'a> {
    id: u64,
    server: Cow<'a, str>,
    pub(crate) name: Cow<'a, str>,
    backup: bool,
    weight: u32,
    pub(crate) state: &'static str,
    pub(crate) active: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_conns: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    responses: Option<ResponseCounts<'a>>,
    sent: u64,
    received: u64,
    pub(crate) fails: u64,
    pub(crate) unavail: u64,
    health_checks: CheckCounts,
    downtime: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    downstart: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selected: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    header_time: Option<u64>,
    response_time: u64,
    /// For the page: a histogram of the times until the response head.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<&'a [u64]>,
}

#[derive(Serialize)]
struct CheckCounts {
    checks: u64,
    fails: u64,
    unhealthy: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_passed: Option<bool>,
}

impl<'a> GroupCounts<'a> {
    fn of(group: &UpstreamGroup, status: &'a [PeerStatus], kind: GroupKind) -> GroupCounts<'a> {
        let state = group.state();
        let ids = state.server_ids();
        let mut seen = vec![0_u64; ids.len()];
        let peers = status.iter().map(|peer| {
            let mut id = ids.get(peer.line).copied().map_or(0, u64::from);
            if let Some(seen) = seen.get_mut(peer.line) {
                id += *seen * NEXT_ADDRESS;
                *seen += 1;
            }
            PeerCounts::of(peer, id, kind)
        });
        let zone = &group.settings.zone;
        let queue = state.queue();
        GroupCounts {
            peers: peers.collect(),
            zombies: state.zombies(),
            keepalive: (kind == GroupKind::Http).then(|| state.idle_connections()),
            zone: (!zone.is_empty()).then(|| text(zone.as_ref())),
            queue: queue.map(|[size, max_size, overflows]| QueueCounts {
                size,
                max_size,
                overflows,
            }),
        }
    }
}

/// What was that long ago.
fn ago(time: Duration) -> String {
    iso_time(rt::wall_millis().saturating_sub(ms(time)))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl<'a> PeerCounts<'a> {
    fn of(peer: &'a PeerStatus, id: u64, kind: GroupKind) -> PeerCounts<'a> {
        let in_http = kind == GroupKind::Http;
        let responses = ResponseCounts::of(&peer.classes, &peer.statuses);
        PeerCounts {
            id,
            server: peer.server.to_str_lossy(),
            name: peer.name.to_str_lossy(),
            backup: peer.backup,
            weight: peer.weight,
            state: peer.state_word(),
            active: peer.connections,
            max_conns: Some(peer.max_conns).filter(|most| *most > 0),
            requests: in_http.then_some(peer.requests),
            connections: (!in_http).then_some(peer.requests),
            responses: in_http.then_some(responses),
            sent: peer.sent,
            received: peer.received,
            fails: peer.failures,
            unavail: peer.disabled,
            health_checks: CheckCounts {
                checks: peer.checks.checks,
                fails: peer.checks.fails,
                unhealthy: peer.checks.unhealthy,
                last_passed: (peer.checks.checks > 0).then_some(peer.checks.last_passed),
            },
            downtime: ms(peer.downtime),
            downstart: peer.down.map(ago),
            selected: peer.selected.map(ago),
            connect_time: (!in_http).then(|| ms(peer.connect_time)),
            first_byte_time: (!in_http).then(|| ms(peer.header_time)),
            header_time: in_http.then(|| ms(peer.header_time)),
            response_time: ms(peer.response_time),
            times: None,
        }
    }

    /// Requests, or sessions of stream.
    pub(crate) fn given(&self) -> u64 {
        self.requests.or(self.connections).unwrap_or_default()
    }
}

/// The servers of a group, as the API has their configuration.
pub(crate) fn servers_value(group: &UpstreamGroup) -> Value {
    let servers = group.state().servers();
    Value::Array(
        servers
            .iter()
            .map(|(id, server)| server_value(*id, server))
            .collect(),
    )
}

/// The configuration of one server.
pub(crate) fn server_value(id: u32, server: &UpstreamServer) -> Value {
    let time = |time: Duration| match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    };
    let mut value = json!({
        "id": id,
        "server": text(server.name.as_ref()),
        "weight": server.weight,
        "max_conns": server.max_conns,
        "max_fails": server.max_fails,
        "fail_timeout": time(server.fail_timeout),
        "slow_start": time(server.slow_start),
        "route": text(server.route.as_ref()),
        "backup": server.backup,
        "down": server.state == ServerState::Down,
    });
    if server.state == ServerState::Drain {
        value["drain"] = json!(true);
    }
    if let Some(resolve) = server.resolve.as_ref().filter(|at| !at.service.is_empty()) {
        value["service"] = json!(text(resolve.service.as_ref()));
    }
    value
}

/// A group, as the page has it: that of a URL, too.
#[derive(Serialize)]
pub(crate) struct GroupRow<'a> {
    pub(crate) engine: &'static str,
    pub(crate) name: String,
    place: &'a str,
    #[serde(flatten)]
    pub(crate) counts: GroupCounts<'a>,
}

/// Shows all groups to `show`.
pub(crate) fn each_group(view: &StatusView, mut show: impl FnMut(&GroupRow<'_>)) {
    for (kind, engine) in [(GroupKind::Http, "http"), (GroupKind::Stream, "stream")] {
        let groups = kind.groups(view).map(|groups| groups.all_groups());
        for group in groups.into_iter().flatten() {
            let status = group.state().status();
            let mut counts = GroupCounts::of(&group, &status, kind);
            for (peer, status) in counts.peers.iter_mut().zip(&status) {
                peer.times = Some(status.latencies[1].counts());
            }
            show(&GroupRow {
                engine,
                name: text(group.name()),
                place: &group.settings.place,
                counts,
            });
        }
    }
}

/// The bounds of all histograms, in microseconds.
pub(crate) fn bounds() -> Value {
    json!(LATENCY_BOUNDS_US)
}
