//! A purge at the other members of a cluster: each gets the request that this server got, at its peer port.
//!
//! It reaches those that answer, and nobody keeps it for the others: which those are is said in the response. If the cluster
//! has a journal, members are only asked here whether they have applied what stands there.

use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use http::Request;
use net::cluster::{Cluster, ClusterMember, JournalPosition};
use proto::KnownField;

use crate::shared::member_request::{self, MemberRequest};

/// Questions to all other members, under way.
pub(super) struct MemberQuestions(Vec<(String, rt::JoinHandle<bool>)>);

impl MemberQuestions {
    /// Asks all at once: the slowest one decides, not the sum. `bytes` makes the request for a member, to which the answer
    /// has to have this status.
    fn ask(cluster: &Arc<Cluster>, status: u16, bytes: impl Fn(&ClusterMember) -> Vec<u8>) -> Self {
        let Some((settings, state)) = cluster.running() else {
            return MemberQuestions(Vec::new());
        };
        let view = state.view();
        // The member may use all of the budget for its answer.
        let limit = settings.budget * 2;
        let ask = |member: &Arc<ClusterMember>| {
            let (member, bytes) = (Arc::clone(member), bytes(member));
            let cluster = Arc::clone(cluster);
            let task = async move {
                let exchange = async {
                    let stream = member_request::connect(&cluster, &member, limit)
                        .await
                        .ok()?;
                    member_request::ask_on(&stream, &bytes).await
                };
                let answer = rt::timeout(limit, exchange).await.ok().flatten();
                answer.is_some_and(|answer| answer.status == status)
            };
            rt::spawn_handle("cluster purge", task).abort_on_drop()
        };
        let others = view.members.iter().filter(|member| !view.is_own(member));
        MemberQuestions(
            others
                .map(|member| (member.name.clone(), ask(member)))
                .collect(),
        )
    }

    /// The name of each member, and whether its answer was the expected one.
    pub(super) async fn results(self) -> Vec<(String, bool)> {
        let mut results = Vec::with_capacity(self.0.len());
        for (name, task) in self.0 {
            results.push((name, task.await.unwrap_or(false)));
        }
        results
    }
}

/// Has all other members purge what the request says; the name of each, and whether it has.
pub(super) async fn purge_at_members(
    request: &Request,
    cluster: &Arc<Cluster>,
    signed: [u8; 16],
) -> Vec<(String, bool)> {
    let head = &request.head;
    let host = head
        .known(KnownField::Host)
        .map_or(&b""[..], |host| host.as_bytes());
    let lines = tag_lines(request);
    let purge = MemberRequest {
        method: "POST",
        host,
        target: head.wire.target(),
        lines: &lines,
        hop: 1,
        signed,
    };
    let bytes = purge.to_bytes(cluster);
    MemberQuestions::ask(cluster, 200, |_| bytes.clone())
        .results()
        .await
}

/// Asks all other members whether they have applied an entry of the journal of a zone. Each waits for it.
pub(super) fn ask_for_applied(
    cluster: &Arc<Cluster>,
    zone: &BStr,
    id: JournalPosition,
) -> MemberQuestions {
    let mut target = format!("/.weir-cluster?applied={id}&zone=").into_bytes();
    for byte in zone.iter() {
        target.extend_from_slice(format!("%{byte:02x}").as_bytes());
    }
    MemberQuestions::ask(cluster, 204, |member| {
        let question = MemberRequest {
            method: "GET",
            host: member.name.as_bytes(),
            target: &target,
            lines: b"Connection: close\r\n",
            hop: 0,
            signed: [0; 16],
        };
        question.to_bytes(cluster)
    })
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
