//! `absolute_redirect`, `server_name_in_redirect`, `port_in_redirect`: the `Location` field of our own redirects.

use crate::request::Request;

/// The redirect target as the client sees it: a path gets scheme, host and port in front, unless `absolute_redirect` is
/// off. A target that already names a scheme is sent as it is.
pub(crate) fn absolute_location(request: &Request) -> Vec<u8> {
    let target = request.out.location.clone().unwrap_or_default();
    let core = &request.site.location(request.location).core;
    if !target.starts_with(b"/") || !core.absolute_redirect {
        return target.into();
    }
    // RFC 9110, section 10.2.2, allows a relative reference; nginx sends an absolute one by default.
    let mut out = Vec::with_capacity(target.len() + 64);
    out.extend_from_slice(request.scheme().as_bytes());
    out.extend_from_slice(b"://");
    if core.server_name_in_redirect {
        out.extend_from_slice(&request.site.server(request.server).name);
    } else if !request.head.host.is_empty() {
        out.extend_from_slice(&request.head.host);
    } else {
        // HTTP/1.0 without `Host`: the address is the only name of this server that the client knows.
        request.write_server_address(&mut out);
    }
    if core.port_in_redirect {
        let port = request.local_port();
        let usual = if request.is_tls() { 443 } else { 80 };
        // The scheme's own port is left out, as in the URL that the client used. A UNIX domain socket has no port.
        if port != 0 && port != usual {
            out.push(b':');
            base::text::write_number(u64::from(port), &mut out);
        }
    }
    out.extend_from_slice(&target);
    out
}
