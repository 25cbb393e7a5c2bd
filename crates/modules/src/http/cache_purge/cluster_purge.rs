//! A purge at the other members of a cluster: each gets the request that this server got, at its peer port.
//!
//! It reaches those that answer, and nobody keeps it for the others: which those are is said in the response.

use std::sync::Arc;

use bstr::ByteSlice;
use http::Request;
use net::cluster::{Cluster, ClusterMember};
use proto::KnownField;

use crate::shared::member_request::{self, MemberRequest};

/// Has all other members purge what the request says; the name of each, and whether it has.
pub(super) async fn purge_at_members(
    request: &Request,
    cluster: &Arc<Cluster>,
    signed: [u8; 16],
) -> Vec<(String, bool)> {
    let Some((settings, state)) = cluster.running() else {
        return Vec::new();
    };
    let view = state.view();
    let head = &request.head;
    let host = head
        .known(KnownField::Host)
        .map_or(&b""[..], |host| host.as_bytes());
    let bytes = MemberRequest {
        method: "POST",
        host,
        target: head.wire.target(),
        lines: &tag_lines(request),
        hop: 1,
        signed,
    }
    .to_bytes(cluster);
    let limit = settings.budget;
    let ask = |member: &Arc<ClusterMember>| {
        let (member, bytes) = (Arc::clone(member), bytes.clone());
        let task = async move {
            let exchange = async {
                let stream = member_request::connect(&member, limit).await.ok()?;
                member_request::ask_on(&stream, &bytes).await
            };
            rt::timeout(limit, exchange).await.ok().flatten() == Some(200)
        };
        rt::spawn_handle("cluster purge", task).abort_on_drop()
    };
    let others = view.members.iter().filter(|member| !view.is_own(member));
    // All at once: the slowest one decides, not the sum.
    let tasks: Vec<_> = others
        .map(|member| (member.name.clone(), ask(member)))
        .collect();
    let mut results = Vec::with_capacity(tasks.len());
    for (name, task) in tasks {
        results.push((name, task.await.unwrap_or(false)));
    }
    results
}

/// The fields with tags, and the end of the connection: purges are rare.
fn tag_lines(request: &Request) -> Vec<u8> {
    let mut lines = b"Content-Length: 0\r\nConnection: close\r\n".to_vec();
    for name in [&b"Surrogate-Key"[..], b"Cache-Tag"] {
        for value in request.head.wire.fields.all(name) {
            for part in [name, b": ", value, b"\r\n"] {
                lines.extend_from_slice(part);
            }
        }
    }
    lines
}
