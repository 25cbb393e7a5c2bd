//! What the operator is told where clients could come over QUIC and none does. Nothing else shows that a firewall drops UDP:
//! browsers stay with TCP and say nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use host::error_log::LogLevel;

use crate::http_loop::HttpLoop;
use crate::http_site::HttpSite;
use crate::listen::ListenEndpoint;

/// How many clients return over TCP before it is told. They have had responses before, so that a browser among them would
/// have come over QUIC.
const RETURNS: u32 = 256;

/// A client has come over QUIC.
static HAS_ARRIVED: AtomicBool = AtomicBool::new(false);

/// How many clients have returned over TCP so far.
static RETURNED: AtomicU32 = AtomicU32::new(0);

/// Notes a client over QUIC.
pub(super) fn note_arrival() {
    HAS_ARRIVED.store(true, Relaxed);
}

/// Notes a client that has resumed a session over TCP.
pub(crate) fn note_return(http: &HttpLoop, site: &HttpSite, endpoint: &ListenEndpoint) {
    if HAS_ARRIVED.load(Relaxed) {
        return;
    }
    let Some(port) = endpoint.socket.port() else {
        return;
    };
    let mut endpoints = site.endpoints.iter();
    let is_offered = endpoints.any(|other| other.quic && other.socket.port() == Some(port));
    // Equal once: the line is written once.
    if !is_offered || RETURNED.fetch_add(1, Relaxed) + 1 != RETURNS {
        return;
    }
    http.log().log_plain(
        LogLevel::Notice,
        format_args!(
            "{RETURNS} clients have come back over TCP to port {port} and none over QUIC: let UDP port {port} through \
             firewalls, and announce HTTP/3 to browsers with \"add_header Alt-Svc 'h3=\\\":{port}\\\"; ma=86400' always;\""
        ),
    );
}
