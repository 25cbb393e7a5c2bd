//! What FastCGI, SCGI, uwsgi, memcached and gRPC share beyond the exchange: where requests go, the
//! params that describe a request, and responses in CGI form.

mod params;
mod pass;
pub(crate) mod response;

pub(crate) use params::{CgiParams, ValueEnding};
pub(crate) use pass::{GatewayPass, GatewaySchemes};
pub(crate) use response::CgiHead;

use http::Request;
use http::upstream::{RequestContent, UpstreamSettings};

/// What to do with the request body. `needs_length`: the protocol announces its length first (SCGI, uwsgi), so that a
/// body of unknown length is buffered, whatever `…_request_buffering` says. FastCGI marks the end, and can stream it.
pub(crate) fn request_content(
    request: &Request,
    settings: &UpstreamSettings,
    needs_length: bool,
) -> RequestContent {
    let is_unknown = needs_length && request.body.announced_length().is_none();
    match (
        settings.pass_request_body,
        settings.request_buffering || is_unknown,
    ) {
        (false, _) => RequestContent::Dropped,
        (true, true) => RequestContent::Buffered,
        (true, false) => RequestContent::Streamed,
    }
}

/// Identifies who may reuse an idle connection: the same location of the same configuration
/// generation. With `keepalive … local` a connection must not serve a location with other settings,
/// TLS for example.
pub(crate) fn connection_tag(request: &Request) -> u64 {
    request.location.tag(request.site.generation)
}

/// Whether a response has no content, whatever its header says (RFC 9110, section 6.4.1).
pub(crate) fn is_bodyless(request: &Request, status: u16) -> bool {
    request.method.is_head() || matches!(status, 204 | 304)
}
