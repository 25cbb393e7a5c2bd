//! Interim responses (RFC 9110, section 15.2). They are passed to the client if the configuration says so: 103 by
//! `early_hints`, others by `interim_responses`. 100 is never passed on: the request for it was this server's, not the
//! client's.

use std::rc::Rc;

use conf::Expression;
use proto::h1::response::{ResponseParser, ResponseProgress, write_end, write_field};
use proto::message::ResponseHead;

use super::exchange_log;
use super::upstream_settings::UpstreamSettings;
use crate::core::location::LocationConf;
use crate::request::{HttpVersion, Request, RequestPurpose};

/// The number of interim responses that an upstream may send before the final one. Without a limit it could keep a
/// request open for ever.
pub(super) const MOST: u32 = 100;

/// Receives interim responses for a request without a client of its own: a fetch of the cache.
pub(crate) struct InterimRelay(pub(crate) Rc<InterimSink>);

/// Receives the bytes of an interim response.
pub(crate) type InterimSink = dyn Fn(&[u8]);

/// Passes an interim response on, if that is configured. `length` is the size of all interim responses so far; as in
/// nginx, more than one buffer of them is too much.
pub(super) fn pass_on(
    request: &mut Request,
    settings: &UpstreamSettings,
    head: &ResponseHead,
    length: u64,
) {
    let strings: fn(&LocationConf) -> &[Expression] = match head.status {
        // 101 ends the exchange of HTTP and is handled with the final responses.
        100 | 101 => return,
        103 => |core| &core.early_hints,
        _ => |core| &core.interim_responses,
    };
    // A client of HTTP/1.0 does not know them (RFC 9110, section 15.2). Subrequests have no response head of their own.
    let has_client = match request.flow.purpose {
        RequestPurpose::Response => true,
        // A member of the cluster relays no interim responses: its client may be one that joined later.
        RequestPurpose::PostAction | RequestPurpose::Member => false,
        RequestPurpose::Background => request.state::<InterimRelay>().is_some(),
    };
    let wanted =
        has_client && !request.is_subrequest() && request.head.version() >= HttpVersion::Http11;
    if !wanted || !is_asked_for(request, strings) {
        return;
    }
    if length > settings.buffer_size {
        return exchange_log::too_big_early_hints(request);
    }
    let status = head.status;
    let reason = proto::status::reason(status);
    let mut out = format!("HTTP/1.1 {status} {reason}\r\n").into_bytes();
    let bare = out.len();
    for (known, name, value) in head.fields.iter_known() {
        if !settings.hide.contains(known, name) {
            write_field(name, value, &mut out);
        }
    }
    // A 103 without fields says nothing. Any other interim response at least says that the server is working.
    if out.len() == bare && status == 103 {
        return;
    }
    write_end(&mut out);
    match request.state::<InterimRelay>() {
        Some(relay) => (relay.0)(&out),
        None => send_interim_bytes(request, &out),
    }
}

/// Whether one of the values of the directive is true: neither empty nor "0".
fn is_asked_for(request: &mut Request, strings: fn(&LocationConf) -> &[Expression]) -> bool {
    let site = Rc::clone(&request.site);
    let mut strings = strings(&site.location(request.location).core).iter();
    strings.any(|string| {
        let value = request.value(string);
        !value.is_empty() && value != "0"
    })
}

/// Sends interim responses to the client in its own protocol's form.
pub(crate) fn send_interim_bytes(request: &Request, mut out: &[u8]) {
    let mut head = ResponseHead::default();
    while let Ok(ResponseProgress::Complete(used)) =
        ResponseParser::new().parse(out, out.len(), &mut head)
    {
        request.stream.send_interim(head.status, &head.fields);
        out = &out[used..];
        head.clear();
    }
}
