//! Requests to other members of a cluster that are no fetches: whether they are there, and purges.
//!
//! One connection is used for one request at a time; who asks often keeps it.

use std::io;
use std::time::Duration;

use net::cluster::{Cluster, ClusterMember, PeerClaim};
use net::{ConnectSettings, Transport};
use proto::message::{Method, ResponseHead};

use super::http1_client::read_response;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 64 * 1024;

/// What a member is asked.
pub(crate) struct MemberRequest<'a> {
    /// The method.
    pub(crate) method: &'a str,
    /// The host.
    pub(crate) host: &'a [u8],
    /// The path and the arguments.
    pub(crate) target: &'a [u8],
    /// Further lines of the head, each with its end.
    pub(crate) lines: &'a [u8],
    /// The hop: 0 asks whether it is there.
    pub(crate) hop: u8,
    /// What is signed besides the above: the hash of what the lines say.
    pub(crate) signed: [u8; 16],
}

impl MemberRequest<'_> {
    /// The request as bytes, signed as of now.
    pub(crate) fn to_bytes(&self, cluster: &Cluster) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        for part in [
            self.method.as_bytes(),
            b" ",
            self.target,
            b" HTTP/1.1\r\nHost: ",
            self.host,
        ] {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(b"\r\nWeir-Cluster: ");
        if let Some((settings, state)) = cluster.running() {
            let view = state.view();
            let claim = PeerClaim {
                hop: self.hop,
                epoch: view.epoch,
                from: view.own.as_ref().map(|own| own.address),
                key: self.signed,
                client: None,
                is_secure: false,
                only_stored: false,
                journal: None,
            };
            let asked = [self.method.as_bytes(), self.host, self.target];
            let now_ms = rt::wall_millis();
            settings
                .token
                .sign(cluster.name(), &claim, asked, now_ms, &mut out);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.lines);
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Opens a connection to a member of a cluster.
pub(crate) async fn connect(
    cluster: &Cluster,
    member: &ClusterMember,
    limit: Duration,
) -> io::Result<Transport> {
    let options = ConnectSettings {
        timeout: limit,
        ..ConnectSettings::default()
    };
    let stream = net::connect(&member.address.into(), &options).await?;
    let mut transport = Transport::plain(stream);
    let settings = cluster.settings();
    if let Some(tls) = settings.and_then(|settings| settings.tls.as_ref()) {
        let secured = tls.secure(&mut transport, &member.name, limit).await;
        secured.map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(transport)
}

/// Sends a request on a connection; the head of the answer, if there is one.
pub(crate) async fn ask_on(stream: &Transport, request: &[u8]) -> Option<ResponseHead> {
    stream.write_all(request).await.ok()?;
    // No request here has an answer whose framing depends on the method.
    let answer = read_response(stream, Method::Get, ANSWER_MAX).await;
    answer.ok().map(|(head, _)| head)
}
