//! `absolute_redirect`, `server_name_in_redirect`, `port_in_redirect`: the `Location` field of our own redirects.

use crate::request::Request;

/// The redirect target as the client shall see it: a path gets scheme, host and port in front, unless
/// `absolute_redirect` is off.
pub(crate) fn absolute_location(request: &Request) -> Vec<u8> {
    let target = request.out.location.clone().unwrap_or_default();
    let core = &request.site.location(request.location).core;
    if !target.starts_with(b"/") || !core.absolute_redirect {
        return target.into();
    }
    let mut out = Vec::with_capacity(target.len() + 64);
    out.extend_from_slice(request.scheme().as_bytes());
    out.extend_from_slice(b"://");
    if core.server_name_in_redirect {
        out.extend_from_slice(&request.site.server(request.server).name);
    } else if !request.head.host.is_empty() {
        out.extend_from_slice(&request.head.host);
    } else {
        request.write_server_address(&mut out);
    }
    if core.port_in_redirect {
        let port = request.local_port();
        let usual = if request.is_tls() { 443 } else { 80 };
        if port != 0 && port != usual {
            out.push(b':');
            base::text::write_number(u64::from(port), &mut out);
        }
    }
    out.extend_from_slice(&target);
    out
}
