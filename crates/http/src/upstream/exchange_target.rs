//! The group that an exchange goes to, and the input of its balancer.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bstr::ByteSlice;
use net::upstream::{PeerSelection, SelectionRequest, UpstreamGroup, UpstreamGroups};
use rt::net::{SocketAddress, UnixPath};

use super::exchange::ExchangeTarget;
use super::no_response::NoResponse;
use crate::core::ResolverConf;
use crate::request::Request;

/// The group for a destination. A host from a URL with variables may be the name of an `upstream` block, an address, or
/// a name to be resolved, in that order.
pub(super) async fn target_group(
    request: &mut Request,
    target: ExchangeTarget,
) -> Result<Arc<UpstreamGroup>, NoResponse> {
    let (host, port, explicit_port) = match target {
        ExchangeTarget::Group(group) => return Ok(group),
        ExchangeTarget::Host {
            host,
            port,
            explicit_port,
        } => (host, port, explicit_port),
    };
    let groups = request.site.main_confs.get::<UpstreamGroups>();
    // As in nginx, a group that is configured under this name comes before DNS.
    if let Some(group) = groups.find_url(&host, port, explicit_port) {
        return Ok(group);
    }
    if let Some(path) = host.strip_prefix(b"unix:") {
        let address = SocketAddress::Unix(UnixPath::new(Path::new(OsStr::from_bytes(path))));
        return Ok(Arc::new(UpstreamGroup::of_addresses(host, vec![address])));
    }
    let port = port.unwrap_or(80);
    let bare = host
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"))
        .unwrap_or(&host);
    if let Ok(ip) = bare.to_str_lossy().parse::<std::net::IpAddr>() {
        return Ok(Arc::new(UpstreamGroup::of_addresses(
            host,
            vec![SocketAddr::new(ip, port).into()],
        )));
    }
    resolve(request, host, port).await
}

/// Resolves the host by the `resolver` of the location, and makes a group of its addresses.
async fn resolve(
    request: &mut Request,
    host: bstr::BString,
    port: u16,
) -> Result<Arc<UpstreamGroup>, NoResponse> {
    let conf = request.conf::<ResolverConf>();
    match conf.resolver.lookup_host(&host, conf.timeout).await {
        Ok(found) => {
            let addresses = found
                .into_iter()
                .map(|ip| SocketAddr::new(ip, port).into())
                .collect();
            Ok(Arc::new(UpstreamGroup::of_addresses(host, addresses)))
        }
        // As in nginx, both failures are answered with 502.
        Err(error) => {
            match error.is_no_resolver() {
                true => request.error(format_args!("no resolver defined to resolve {host}")),
                false => request.error(format_args!("{host} could not be resolved {error}")),
            }
            Err(NoResponse::new(502))
        }
    }
}

/// Starts the choice of a server. Also returns what `sticky` looked up.
pub(super) fn begin_selection(
    request: &mut Request,
    group: Arc<UpstreamGroup>,
) -> (PeerSelection, bstr::BString) {
    let key = match group.settings.method().key() {
        Some(key) => request.value(key),
        None => Default::default(),
    };
    let mut sticky = bstr::BString::default();
    if let Some(configured) = &group.settings.sticky {
        // The first lookup with a value counts, as the order of the directive's parameters says.
        for lookup in &configured.lookup {
            sticky = request.value(lookup);
            if !sticky.is_empty() {
                break;
            }
        }
    }
    let client = request.remote.address.ip();
    let selection = PeerSelection::new(
        group,
        &SelectionRequest {
            key: &key,
            client,
            sticky: &sticky,
        },
    );
    (selection, sticky)
}
