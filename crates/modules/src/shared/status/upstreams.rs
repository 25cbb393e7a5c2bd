//! Groups of upstream servers.

use std::time::Duration;

use net::metrics::LATENCY_BOUNDS_US;
use net::upstream::{
    GroupOrigin, PeerStatus, ServerState, UpstreamGroup, UpstreamGroups, UpstreamServer,
};
use serde_json::{Value, json};

use super::requests::responses;
use super::{StatusView, iso_time, object, text};
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
    value_of(group, &group.state().status(), kind)
}

fn value_of(group: &UpstreamGroup, status: &[PeerStatus], kind: GroupKind) -> Value {
    let state = group.state();
    let ids = state.server_ids();
    let mut seen = vec![0_u64; ids.len()];
    let peers: Vec<Value> = status
        .iter()
        .map(|peer| {
            let mut value = peer_value(peer, kind);
            let mut id = ids.get(peer.line).copied().map_or(0, u64::from);
            if let Some(seen) = seen.get_mut(peer.line) {
                id += *seen * NEXT_ADDRESS;
                *seen += 1;
            }
            value["id"] = json!(id);
            value
        })
        .collect();
    let mut value = json!({ "peers": peers, "zombies": state.zombies() });
    if kind == GroupKind::Http {
        value["keepalive"] = json!(state.idle_connections());
    }
    if !group.settings.zone.is_empty() {
        value["zone"] = json!(text(group.settings.zone.as_ref()));
    }
    if let Some([size, max_size, overflows]) = state.queue() {
        value["queue"] = json!({ "size": size, "max_size": max_size, "overflows": overflows });
    }
    value
}

/// What was that long ago.
fn ago(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    iso_time(rt::wall_millis().saturating_sub(ms))
}

fn peer_value(peer: &PeerStatus, kind: GroupKind) -> Value {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut value = json!({
        "server": text(peer.server.as_ref()),
        "name": text(peer.name.as_ref()),
        "backup": peer.backup,
        "weight": peer.weight,
        "state": peer.state_word(),
        "active": peer.connections,
        "sent": peer.sent,
        "received": peer.received,
        "fails": peer.failures,
        "unavail": peer.disabled,
        "health_checks": {
            "checks": peer.checks.checks,
            "fails": peer.checks.fails,
            "unhealthy": peer.checks.unhealthy,
        },
        "downtime": ms(peer.downtime),
        "response_time": ms(peer.response_time),
    });
    if peer.checks.checks > 0 {
        value["health_checks"]["last_passed"] = json!(peer.checks.last_passed);
    }
    if peer.max_conns > 0 {
        value["max_conns"] = json!(peer.max_conns);
    }
    if let Some(down) = peer.down {
        value["downstart"] = json!(ago(down));
    }
    if let Some(selected) = peer.selected {
        value["selected"] = json!(ago(selected));
    }
    match kind {
        GroupKind::Http => {
            value["requests"] = json!(peer.requests);
            value["header_time"] = json!(ms(peer.header_time));
            value["responses"] = responses(&peer.classes, &peer.statuses);
        }
        GroupKind::Stream => {
            value["connections"] = json!(peer.requests);
            value["connect_time"] = json!(ms(peer.connect_time));
            value["first_byte_time"] = json!(ms(peer.header_time));
        }
    }
    value
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

/// All groups for the page: those of URLs too, with histograms of the times until the response head.
pub(crate) fn page_groups(view: &StatusView) -> Value {
    let mut all = Vec::new();
    for (kind, word) in [(GroupKind::Http, "http"), (GroupKind::Stream, "stream")] {
        let groups = kind.groups(view).map(|groups| groups.all_groups());
        for group in groups.into_iter().flatten() {
            let status = group.state().status();
            let mut value = value_of(&group, &status, kind);
            value["name"] = json!(text(group.name()));
            value["engine"] = json!(word);
            value["place"] = json!(group.settings.place);
            if let Some(peers) = value["peers"].as_array_mut() {
                for (peer, status) in peers.iter_mut().zip(&status) {
                    peer["times"] = json!(status.latencies[1].counts());
                }
            }
            all.push(value);
        }
    }
    Value::Array(all)
}

/// The bounds of all histograms, in microseconds.
pub(crate) fn bounds() -> Value {
    json!(LATENCY_BOUNDS_US)
}
