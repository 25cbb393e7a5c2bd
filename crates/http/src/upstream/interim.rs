//! Interim responses: they go on to a client for which the configuration says so, 103 by `early_hints` and others by
//! `interim_responses`. 100 ends here, because it is we who asked for it (RFC 9110, section 15.2).

use std::rc::Rc;

use conf::Expression;
use proto::h1::response::{Parser, Status, write_end, write_field};
use proto::message::ResponseHead;

use super::log;
use super::settings::Settings;
use crate::core::location::LocationConf;
use crate::request::{Request, RequestPurpose, Version};

/// How many interim responses a server may send before its response.
pub(super) const MOST: u32 = 100;

/// Takes interim responses in place of the client, for a request that has none of its own: a fetch of the cache.
pub(crate) struct Relay(pub(crate) Rc<Take>);

/// What takes the bytes of an interim response.
pub(crate) type Take = dyn Fn(&[u8]);

/// Passes an interim response on, if it is to be. `length` is how many bytes of them came with this one: more than one
/// buffer of them is too much, as in nginx.
pub(super) fn pass_on(
    request: &mut Request,
    settings: &Settings,
    head: &ResponseHead,
    length: u64,
) {
    let strings: fn(&LocationConf) -> &[Expression] = match head.status {
        100 | 101 => return,
        103 => |core| &core.early_hints,
        _ => |core| &core.interim_responses,
    };
    let has_client = match request.flow.purpose {
        RequestPurpose::Response => true,
        RequestPurpose::PostAction => false,
        RequestPurpose::Background => request.state::<Relay>().is_some(),
    };
    let wanted =
        has_client && !request.is_subrequest() && request.head.version() >= Version::Http11;
    if !wanted || !is_asked_for(request, strings) {
        return;
    }
    if length > settings.buffer_size {
        return log::too_big_early_hints(request);
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
    // Hints without a field hint at nothing; any other says that the server is at work.
    if out.len() == bare && status == 103 {
        return;
    }
    write_end(&mut out);
    match request.state::<Relay>() {
        Some(relay) => (relay.0)(&out),
        None => send(request, &out),
    }
}

/// Whether one of the strings says so.
fn is_asked_for(request: &mut Request, strings: fn(&LocationConf) -> &[Expression]) -> bool {
    let site = Rc::clone(&request.site);
    let mut strings = strings(&site.location(request.location).core).iter();
    strings.any(|string| {
        let value = request.value(string);
        !value.is_empty() && value != "0"
    })
}

/// Sends interim responses, which the client's protocol has a form of its own for.
pub(crate) fn send(request: &Request, mut out: &[u8]) {
    let mut head = ResponseHead::default();
    while let Ok(Status::Complete(used)) = Parser::new().parse(out, out.len(), &mut head) {
        request.stream.send_interim(head.status, &head.fields);
        out = &out[used..];
        head.clear();
    }
}
