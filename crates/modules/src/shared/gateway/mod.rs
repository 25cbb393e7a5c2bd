//! What FastCGI, SCGI, uwsgi and memcached have in common beyond the exchange: where requests go, the params that stand
//! for the request, and responses as CGI makes them.

mod params;
mod pass;
pub(crate) mod response;

pub(crate) use params::{Ending, Params};
pub(crate) use pass::{Pass, Schemes};
pub(crate) use response::CgiHead;

use http::Request;
use http::upstream::{RequestContent, Settings};

/// What becomes of the content of a request. `streams` says that the protocol can send content before all of it is here.
pub(crate) fn request_content(settings: &Settings, streams: bool) -> RequestContent {
    match (
        settings.pass_request_body,
        settings.request_buffering || !streams,
    ) {
        (false, _) => RequestContent::Dropped,
        (true, true) => RequestContent::Buffered,
        (true, false) => RequestContent::Streamed,
    }
}

/// Tells the users of idle connections apart: those of one location of one generation are one.
pub(crate) fn connection_tag(request: &Request) -> u64 {
    request.site.generation << 32 | u64::from(request.location.0)
}

/// Whether a response has no content whatever its fields say.
pub(crate) fn is_bodyless(request: &Request, status: u16) -> bool {
    request.method.is_head() || matches!(status, 204 | 304)
}
