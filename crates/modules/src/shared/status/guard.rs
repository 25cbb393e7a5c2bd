//! Who may see the state of the server, and who may change something.
//!
//! Three attackers are meant. Somebody from elsewhere asks for the page: it is for this machine only, judged by the address
//! of the socket, which no header changes, unless the location has an access rule, which then decides. A proxy on this
//! machine passes requests of the world on: what has come through a proxy is not from this machine. A page of another site
//! in the operator's browser asks for `http://127.0.0.1/…`, after its own name was pointed there (DNS rebinding), or sends a
//! form there: so the name that was asked for must be one that nobody else can point here, and a change must not come from
//! another site's page.

use bstr::ByteSlice;
use http::module::HttpPhase;
use http::{HandlerOutcome, Request};
use proto::KnownField;

/// Why a request is refused: what the response says.
pub(crate) type GuardRefusal = &'static str;

/// Whether a page may be shown.
pub(crate) fn admit_page(request: &Request) -> Result<(), GuardRefusal> {
    match has_rules(request) {
        // `allow`, `auth_basic` and the like have let it in.
        true => Ok(()),
        false => admit_own_machine(request),
    }
}

/// Whether the API may be read. It is a directive of its own, which shows what it shows to all that can reach it, as in the
/// commercial nginx; only a rebound name is refused.
pub(crate) fn admit_reader(request: &Request) -> Result<(), GuardRefusal> {
    match has_rules(request) || !is_own_socket(request) || is_own_name(request) {
        true => Ok(()),
        false => Err(NAME),
    }
}

/// Whether something may be changed.
pub(crate) fn admit_writer(request: &Request) -> Result<(), GuardRefusal> {
    if is_from_another_site(request) {
        return Err(
            "a change that a page of another site asks for is refused (Sec-Fetch-Site, Origin)",
        );
    }
    admit_page(request)
}

const NAME: GuardRefusal = "the name in Host could be pointed here by anybody: use an address, localhost, or a server_name";

fn admit_own_machine(request: &Request) -> Result<(), GuardRefusal> {
    if !is_own_socket(request) {
        return Err(
            "only this machine may ask: give the location a rule of its own (allow, deny, auth_basic, ...)",
        );
    }
    let fields = &request.head.wire.fields;
    let forwards = ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"];
    if forwards
        .iter()
        .any(|name| fields.get(name.as_bytes()).is_some())
    {
        return Err("the request has come through a proxy: give the location a rule of its own");
    }
    match is_own_name(request) {
        true => Ok(()),
        false => Err(NAME),
    }
}

/// Whether the location has any handler that decides about access.
fn has_rules(request: &Request) -> bool {
    let location = request.site.location(request.location);
    !location.pipeline.phases[HttpPhase::Access].is_empty()
}

/// Whether the connection is from this machine. Not `request.remote`, which `realip` takes from what the client says.
fn is_own_socket(request: &Request) -> bool {
    let is_own = match request.client.remote.address.ip() {
        Some(ip) => ip.to_canonical().is_loopback(),
        // A UNIX domain socket.
        None => true,
    };
    is_own && request.client.proxy.get().is_none()
}

/// Whether the name that was asked for is one that a stranger cannot point to this machine: an address, `localhost` and
/// names below it (RFC 6761, section 6.3), or a name of the server.
fn is_own_name(request: &Request) -> bool {
    let host = request.head.host.as_bstr();
    let bare = host.strip_prefix(b"[").unwrap_or(host);
    let bare = bare.strip_suffix(b"]").unwrap_or(bare);
    // Without a host, as in HTTP/1.0: no browser does that.
    host.is_empty()
        || conf::address::ip(bare).is_some()
        || host == "localhost"
        || host.ends_with(b".localhost")
        || host == request.site.server(request.server).name
}

/// Whether a browser sends this for a page that is not this server's (Fetch Metadata; RFC 6454, section 7).
fn is_from_another_site(request: &Request) -> bool {
    let fields = &request.head.wire.fields;
    if let Some(site) = fields.get(b"Sec-Fetch-Site") {
        return !matches!(site, b"same-origin" | b"none");
    }
    let Some(origin) = fields.get(b"Origin") else {
        return false;
    };
    let host = fields.get_known(KnownField::Host).unwrap_or_default();
    let (_, authority) = origin.split_once_str("://").unwrap_or((b"", b""));
    !authority.eq_ignore_ascii_case(host)
}

/// The response to a refused request.
pub(crate) fn refuse(request: &mut Request, why: GuardRefusal) -> HandlerOutcome {
    request.error(format_args!("access forbidden: {why}"));
    let out = &mut request.out;
    out.status = 403;
    out.content_type = "text/plain".into();
    out.fields.set(b"Cache-Control", b"no-store");
    out.body = http::response_body::ResponseBody::bytes(format!("{why}\n"));
    HandlerOutcome::Respond
}
