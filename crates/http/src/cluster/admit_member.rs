//! The peer port: who may ask there. A handler of the phase `post_read`, of servers that have a `listen … cluster=`.
//!
//! Everything else about the connection is as on any port, so that TLS, limits and logs are configured as everywhere. A
//! request without a valid signature gets a 403 and one line in the error log, and nothing of the server has run for it.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bstr::{BStr, ByteSlice};
use net::client::RemoteClient;
use net::cluster::{Cluster, ClusterState, JournalPosition, MemberTls, PeerClaim, PurgeJournal};
use proto::KnownField;
use rt::net::SocketAddress;

use super::object_field::{ObjectField, REQUEST_FIELD, RESPONSE_FIELD};
use crate::module::{HandlerOutcome, HandlerStep};
use crate::request::{ErrorPages, Request, RequestPurpose};

/// The claim of a request of a member. It is shared with the fetches that are made for it.
#[derive(Default)]
struct AdmittedClaim(OnceCell<PeerClaim>);

/// What a member claims about the request; `None` for a request of anyone else.
pub fn claim_of(request: &Request) -> Option<PeerClaim> {
    let admitted = request.shared_if_made::<AdmittedClaim>()?;
    admitted.0.get().cloned()
}

/// Whether the response goes to a member.
#[inline]
pub fn is_of_member(request: &Request) -> bool {
    request.flow.purpose == RequestPurpose::Member
}

/// The handler.
pub(crate) fn admit_member(request: &mut Request) -> HandlerStep<'_> {
    // A server has other ports as well.
    let cluster = request.client.endpoint.borrow().cluster.clone();
    match cluster {
        Some(cluster) => admit(request, &cluster),
        None => HandlerOutcome::Declined.into(),
    }
}

fn admit<'a>(request: &'a mut Request, cluster: &Cluster) -> HandlerStep<'a> {
    // Nobody reads an error page here.
    request.flow.error_pages = ErrorPages::Withheld;
    let Some((settings, state)) = cluster.running() else {
        return HandlerOutcome::Status(403).into();
    };
    let wire = &request.head.wire;
    let host = wire.fields.get_known(KnownField::Host).unwrap_or_default();
    let asked = [wire.method_text(), host, wire.target()];
    let line = wire.fields.get(REQUEST_FIELD);
    let claim = match settings
        .token
        .verify(cluster.name(), line, asked, rt::wall_millis())
    {
        Ok(claim) => claim,
        Err(fault) => return refuse(request, cluster, state, fault.reason()).into(),
    };
    let has_name = |tls: &Arc<MemberTls>| {
        let session = request.client.tls();
        session.is_some_and(|session| tls.accepts_name(session))
    };
    if settings.tls.as_ref().is_some_and(|tls| !has_name(tls)) {
        return refuse(request, cluster, state, "its certificate has another name").into();
    }
    if claim.hop == 0 {
        return match asked_journal(request.head.wire.target(), state) {
            Some((journal, id)) => {
                let limit = settings.budget;
                HandlerStep::later(async move {
                    let status = match journal.until_kept(id, limit).await {
                        true => 204,
                        false => 504,
                    };
                    answer_ping(request, status, 0)
                })
            }
            None => answer_ping(request, 204, state.age_ms(rt::monotonic_millis())).into(),
        };
    }
    state.served.fetch_add(1, Relaxed);
    // It has served its purpose, and the origin must not get it.
    Rc::make_mut(&mut request.head)
        .wire
        .fields
        .remove(REQUEST_FIELD);
    request.flow.purpose = RequestPurpose::Member;
    take_client(request, &claim);
    // Not set before: the request has just begun.
    let _ = request.shared::<AdmittedClaim>().0.set(claim);
    HandlerOutcome::Declined.into()
}

/// The answer to who is no member.
fn refuse(
    request: &mut Request,
    cluster: &Cluster,
    state: &ClusterState,
    reason: &'static str,
) -> HandlerOutcome {
    state.refused.fetch_add(1, Relaxed);
    // One without an address has come by a Unix socket; all of them are one.
    let from = request.remote.address.ip();
    let from = from.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let logged = state
        .refusals
        .lock()
        .note(from, reason, rt::monotonic_millis());
    let name = cluster.name();
    match logged {
        Some(0) => request.error(format_args!(
            "request is not of a member of cluster \"{name}\": {reason}"
        )),
        Some(more) => request.error(format_args!(
            "request is not of a member of cluster \"{name}\": {reason}; {more} more were refused since the last line"
        )),
        None => {}
    }
    HandlerOutcome::Status(403)
}

/// Variables about the client mean the client of the member that asks, so that keys made of them are the same.
fn take_client(request: &mut Request, claim: &PeerClaim) {
    let address = match claim.client {
        Some(ip) => SocketAddress::from(std::net::SocketAddr::new(ip, 0)),
        None => SocketAddress::Unix(rt::net::UnixPath::new(std::path::Path::new(""))),
    };
    request.remote = Rc::new(RemoteClient::from_address(address));
    if claim.is_secure == request.is_tls() {
        return;
    }
    let (scheme, https): (&[u8], &[u8]) = match claim.is_secure {
        true => (b"https", b"on"),
        false => (b"http", b""),
    };
    for (name, value) in [("scheme", scheme), ("https", https)] {
        if let Some(id) = request.site.variables.id(name) {
            request.variables.values.put(id, Some(value));
        }
    }
}

/// The entry of a journal that the question is about: `/.weir-cluster?applied=1764200000000-0&zone=pages`.
fn asked_journal(
    target: &[u8],
    state: &ClusterState,
) -> Option<(Arc<PurgeJournal>, JournalPosition)> {
    let (_, args) = target.split_once_str("?applied=")?;
    let (id, zone) = args.split_once_str("&zone=")?;
    let mut name = Vec::new();
    proto::form::decode(zone, &mut name);
    Some((
        state.journal_of(name.as_bstr()),
        JournalPosition::parse(id)?,
    ))
}

/// The answer to the question whether this member is there, or whether it has applied a purge.
fn answer_ping(request: &mut Request, status: u16, age_ms: u64) -> HandlerOutcome {
    request.out.status = status;
    let write = |out: &mut Vec<u8>| ObjectField::Here { age_ms }.write(out);
    request.out.fields.push_with(RESPONSE_FIELD, write);
    HandlerOutcome::Respond
}

/// The host that a request was for, as it is signed and sent to a member.
pub(super) fn host_of(request: &Request) -> Vec<u8> {
    match request.head.known(KnownField::Host) {
        Some(host) => host.to_vec(),
        None => {
            // An HTTP/2 request names it elsewhere.
            let host: &BStr = request.head.host.as_bstr();
            let mut text = host.to_vec();
            if let Some(port) = request.head.port {
                text.push(b':');
                base::text::write_number(u64::from(port), &mut text);
            }
            text
        }
    }
}
