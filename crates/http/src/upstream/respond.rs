//! Turns the head of an upstream's response into the head that the client gets.

use std::sync::Arc;

use bstr::ByteSlice;
use proto::KnownField;
use proto::message::{MessageVersion, ResponseHead};

use super::exchange::{Exchange, ExchangePlan};
use super::exchange_log::SENDING;
use super::no_response::NoResponse;
use super::protocol::{ContentLength, RequestTraits};
use super::response_reader::ResponseReader;

use super::tunnel::UpstreamTunnel;
use super::upstream_settings::{UpstreamSettings, UpstreamStore};
use crate::cluster::RESPONSE_FIELD;
use crate::module::{HandlerOutcome, HandlerStep};
use crate::request::{HttpVersion, Request};
use crate::response::OmittedFields;
use crate::response_body::ResponseBody;

/// Runs an exchange, and makes its response the response to the request.
pub async fn exchange_and_respond(request: &mut Request, plan: ExchangePlan) -> HandlerOutcome {
    respond_with(Exchange::run_exchange(request, plan).await, request)
}

/// The same as a step. While the request's body is read, which may take long, there is only what reads it: the future of an
/// exchange is ten times as large.
pub fn exchange_step(request: &mut Request, plan: ExchangePlan) -> HandlerStep<'_> {
    match request.body.is_complete() {
        true => HandlerStep::later(run_and_respond(request, plan)),
        false => HandlerStep::later(read_and_respond(request, plan)),
    }
}

async fn read_and_respond(request: &mut Request, plan: ExchangePlan) -> HandlerOutcome {
    match Exchange::read_content(request, plan.content).await {
        Ok(()) => Box::pin(run_and_respond(request, plan)).await,
        Err(none) => respond_with(Err(none), request),
    }
}

async fn run_and_respond(request: &mut Request, plan: ExchangePlan) -> HandlerOutcome {
    respond_with(Exchange::run_with_content(request, plan).await, request)
}

fn respond_with(
    result: Result<Box<Exchange>, NoResponse>,
    request: &mut Request,
) -> HandlerOutcome {
    match result {
        Ok(exchange) => exchange.respond(request),
        Err(none) => {
            request.head.doing.set(SENDING);
            HandlerOutcome::Status(none.status)
        }
    }
}

/// The fields of a response with `X-Accel-Redirect` that the redirected response keeps. The list is nginx's.
const KEPT_BY_REDIRECT: [KnownField; 5] = [
    KnownField::SetCookie,
    KnownField::ContentDisposition,
    KnownField::CacheControl,
    KnownField::Expires,
    KnownField::AcceptRanges,
];

/// Makes a head as it is the head for a member of a cluster, which has the same directives to apply to it.
pub(crate) fn copy_whole_head(request: &mut Request, head: &ResponseHead) {
    let out = &mut request.out;
    out.status = head.status;
    out.is_upstream_status = true;
    let usual = proto::status::reason(head.status).as_bytes();
    out.reason = match head.status_text().get(4..) {
        Some(reason) if reason != usual => Some(reason.into()),
        _ => None,
    };
    for (known, name, value) in head.fields.iter_known() {
        match known {
            KnownField::ContentLength
            | KnownField::TransferEncoding
            | KnownField::Connection
            | KnownField::KeepAlive => {}
            KnownField::ContentType => request.out.set_content_type(value),
            KnownField::LastModified => copy_last_modified(request, name, value),
            KnownField::Etag => request.out.new_etag().extend_from_slice(value),
            // What it says is this server's to say, whatever an origin sends.
            _ if name.eq_ignore_ascii_case(RESPONSE_FIELD) => {}
            _ => request.out.fields.push_spelled(known, name, value),
        }
    }
    // What the origin did not say is not said in its name.
    request.out.omitted = OmittedFields {
        server: !head.fields.has(KnownField::Server),
        date: !head.fields.has(KnownField::Date),
        expires: true,
    };
    // The pace is the client's, who is at the other member.
    request.delivery.limit_rate = Some(0);
}

impl Exchange {
    /// Makes the upstream's response the answer to a member of a cluster, with a field for it.
    pub(crate) fn respond_to_member(
        self: Box<Self>,
        request: &mut Request,
        (name, value): (&[u8], &[u8]),
    ) -> HandlerOutcome {
        let head = Arc::clone(&request.upstream.get_or_make().head);
        copy_whole_head(request, &head);
        request.out.fields.push(name, value);
        request.out.content_length = match self.protocol.content_length() {
            ContentLength::Known(length) => Some(length),
            ContentLength::None => announced_length(&head),
            ContentLength::Unknown => None,
        };
        request.out.transforms.unconditional = true;
        request.out.body = self.into_content(request);
        HandlerOutcome::Respond
    }

    /// Makes the upstream's response `request.out`.
    pub fn respond(mut self: Box<Self>, request: &mut Request) -> HandlerOutcome {
        let head = Arc::clone(&request.upstream.get_or_make().head);
        let settings = self.settings.clone();
        // Found once: `SettingsRef` searches at each access.
        let settings: &UpstreamSettings = &settings;
        let protocol = &mut self.protocol;
        let mut map = |request: &mut Request, field, value: &[u8], out: &mut Vec<u8>| {
            protocol.map_field(request, field, value, out)
        };
        if let Some(outcome) = respond_instead(request, settings, &head, &mut map) {
            self.finish_without_content(request);
            return outcome;
        }
        let buffering = copy_head(request, settings, &head, &mut map);
        if head.version == MessageVersion::HTTP_09 {
            // Only a status line has a version. As in nginx, a header without one (HTTP/2, HTTP/3, FastCGI and its like) that
            // lacks these fields gets this server's, whatever is passed on.
            (request.out.omitted.server, request.out.omitted.date) = (false, false);
        }
        self.buffering = buffering.unwrap_or(self.buffering);
        let out = &mut request.out;
        out.content_length = match self.protocol.content_length() {
            ContentLength::Known(length) => Some(length),
            ContentLength::None => announced_length(&head),
            ContentLength::Unknown => None,
        };
        out.transforms.unannounced_length = out.content_length.is_none();
        // The client's conditions have been sent to the server, which has judged them (RFC 9110, section 13.2.2).
        out.transforms.unconditional = true;
        request.out.body = self.into_body(request, &head);
        HandlerOutcome::Respond
    }

    /// Ends the exchange without reading the body.
    pub(crate) fn finish_without_content(&mut self, request: &mut Request) {
        let none = matches!(
            self.protocol.content_length(),
            ContentLength::None | ContentLength::Known(0)
        );
        // A body that was not read would be taken for the next response, so the connection is kept only if there is
        // none.
        let reusable = none && self.rest.is_empty();
        self.finish(request, reusable);
    }

    /// What was asked for.
    pub(crate) fn request_traits(&self) -> RequestTraits {
        self.protocol.request_traits()
    }

    /// The length of the body, as far as the head tells.
    pub(crate) fn content_length(&self) -> ContentLength {
        self.protocol.content_length()
    }

    /// The body alone, for callers that make the head themselves.
    pub(crate) fn into_content(mut self: Box<Self>, request: &mut Request) -> ResponseBody {
        if request.delivery.header_only {
            self.finish_without_content(request);
            // An empty body would send `Content-Length: 0`, which would be wrong about the response to GET (RFC 9110,
            // section 8.6).
            return ResponseBody::unsent();
        }
        if self.protocol.content_length() == ContentLength::None {
            request.upstream.get_or_make().current_try().response_length = self.rest.len() as u64;
            self.finish_without_content(request);
            return ResponseBody::Empty;
        }
        match self.whole_body(request) {
            Some(body) => body,
            None => ResponseReader::new(self, request).into_body(request),
        }
    }

    fn into_body(self: Box<Self>, request: &mut Request, head: &ResponseHead) -> ResponseBody {
        // For variables, it is not over before the client has it. A subrequest has no client: its parent asks next.
        if !request.is_subrequest() {
            request.upstream.get_or_make().current_try().is_in_progress = true;
        }
        // A 101 that was not asked for has been refused while the head was read.
        let upgrades = self.protocol.is_tunnel() || head.status == 101;
        if upgrades && !request.is_subrequest() {
            request.delivery.upgrade();
            return ResponseBody::stream(UpstreamTunnel::new(self));
        }
        self.into_content(request)
    }

    /// The body, if all of it arrived with the head. This is the most common case, and needs no reader.
    fn whole_body(&mut self, request: &mut Request) -> Option<ResponseBody> {
        let length = self.protocol.plain_content()?;
        if self.rest.len() as u64 != length || !matches!(self.settings.store, UpstreamStore::Off) {
            return None;
        }
        // As in nginx, `limit_rate` does not apply to an unbuffered response.
        if !self.buffering {
            request.delivery.limit_rate = Some(0);
        }
        request.upstream.get_or_make().current_try().response_length = length;
        let content = std::mem::take(&mut self.rest);
        self.finish(request, true);
        Some(ResponseBody::bytes(content))
    }
}

/// Rewrites a field of the response for the protocol; `false` leaves it unchanged.
pub(crate) type MapField<'a> =
    dyn FnMut(&mut Request, KnownField, &[u8], &mut Vec<u8>) -> bool + 'a;

/// What is sent instead of the upstream's response: an error page, or the target of an internal redirect.
pub(crate) fn respond_instead(
    request: &mut Request,
    settings: &UpstreamSettings,
    head: &ResponseHead,
    map: &mut MapField,
) -> Option<HandlerOutcome> {
    if settings.intercept_errors && head.status >= 300 && has_error_page(request, head.status) {
        // The page replaces the response, but a 401 without `WWW-Authenticate` would be invalid (RFC 9110, section
        // 15.5.2).
        if head.status == 401 {
            for value in head.fields.all_known(KnownField::WwwAuthenticate) {
                request
                    .out
                    .fields
                    .push_known(KnownField::WwwAuthenticate, value);
            }
        }
        return Some(HandlerOutcome::Status(head.status));
    }
    if settings.ignore_headers.has(KnownField::XAccelRedirect) {
        return None;
    }
    // `X-Accel-Redirect` comes after `…_intercept_errors`, and its headers take effect even though the body is dropped.
    let target = head
        .fields
        .get_known(KnownField::XAccelRedirect)?
        .to_owned();
    apply_controls(request, settings, head);
    for (known, name, value) in head.fields.iter_known() {
        if KEPT_BY_REDIRECT.contains(&known) {
            copy_field(request, settings, (known, name, value), map);
        }
    }
    if let Some(value) = head.fields.get_known(KnownField::ContentType) {
        request.out.set_content_type(value);
    }
    Some(redirect(request, &target))
}

/// Copies the head, except for the body's length. Returns whether the body is to be buffered, if the head says so.
pub(crate) fn copy_head(
    request: &mut Request,
    settings: &UpstreamSettings,
    head: &ResponseHead,
    map: &mut MapField,
) -> Option<bool> {
    let buffering = apply_controls(request, settings, head);
    let out = &mut request.out;
    out.status = head.status;
    out.is_upstream_status = true;
    // The upstream's own reason phrase is passed on; the usual one need not be stored.
    let usual = proto::status::reason(head.status).as_bytes();
    out.reason = match head.status_text().get(4..) {
        Some(reason) if reason != usual => Some(reason.into()),
        _ => None,
    };
    for (known, name, value) in head.fields.iter_known() {
        if !settings.hide.contains(known, name) {
            copy_field(request, settings, (known, name, value), map);
        }
    }
    let left = &settings.left_to_upstream;
    request.out.omitted = OmittedFields {
        server: left.server && !head.fields.has(KnownField::Server),
        date: left.date && !head.fields.has(KnownField::Date),
        expires: false,
    };
    // `…_force_ranges`: ranges are cut out of the response regardless of what the upstream supports, one range at most.
    if settings.force_ranges {
        request.out.transforms.ranges = true;
        request.out.transforms.single_range = true;
    }
    buffering
}

/// The `Content-Length` of a response without a body, such as one to HEAD.
pub(crate) fn announced_length(head: &ResponseHead) -> Option<u64> {
    let value = head.fields.get_known(KnownField::ContentLength)?;
    proto::message::parse_length(value)
}

fn copy_field(
    request: &mut Request,
    settings: &UpstreamSettings,
    (known, name, value): (KnownField, &[u8], &[u8]),
    map: &mut MapField,
) {
    // These describe the connection to the upstream; the connection to the client gets its own.
    match known {
        KnownField::ContentLength
        | KnownField::TransferEncoding
        | KnownField::Connection
        | KnownField::KeepAlive => {}
        KnownField::ContentType => request.out.set_content_type(value),
        KnownField::LastModified => copy_last_modified(request, name, value),
        KnownField::Etag => request.out.new_etag().extend_from_slice(value),
        KnownField::Location => {
            let mut mapped = Vec::new();
            if map(request, known, value, &mut mapped) {
                request.out.location = Some(mapped.into());
            } else {
                request.out.fields.push(name, value);
            }
        }
        KnownField::Refresh | KnownField::SetCookie => {
            let mut mapped = Vec::new();
            if map(request, known, value, &mut mapped) {
                request.out.fields.push(name, &mapped);
            } else {
                request.out.fields.push(name, value);
            }
        }
        // HTTP/2 has no `Upgrade` (RFC 9113, section 8.2.2).
        KnownField::Upgrade if request.head.version() >= HttpVersion::Http2 => {}
        KnownField::AcceptRanges if settings.force_ranges => {}
        _ => request.out.fields.push_spelled(known, name, value),
    }
}

/// Applies the `X-Accel-…` fields that control this server. Returns whether the body is to be buffered, if they say so.
fn apply_controls(
    request: &mut Request,
    settings: &UpstreamSettings,
    head: &ResponseHead,
) -> Option<bool> {
    let ignored = settings.ignore_headers;
    let wanted = |known| head.fields.get_known(known).filter(|_| !ignored.has(known));
    if let Some(value) = wanted(KnownField::XAccelLimitRate)
        && let Some(rate) = value.to_str().ok().and_then(|text| text.parse().ok())
    {
        request.delivery.limit_rate = Some(rate);
    }
    let charset = head.fields.all_known(KnownField::XAccelCharset).last();
    if let Some(value) = charset.filter(|_| !ignored.has(KnownField::XAccelCharset)) {
        request.delivery.charset = Some(value.into());
    }
    said_of_buffering(settings, head)
}

/// Whether the body is to be buffered, if the head says so.
fn said_of_buffering(settings: &UpstreamSettings, head: &ResponseHead) -> Option<bool> {
    if settings.ignore_headers.has(KnownField::XAccelBuffering) {
        return None;
    }
    // As in nginx, the last one counts, and any other value is ignored.
    let said = head.fields.all_known(KnownField::XAccelBuffering);
    let said = said.filter_map(|value| match value.to_ascii_lowercase().as_slice() {
        b"no" => Some(false),
        b"yes" => Some(true),
        _ => None,
    });
    said.last()
}

/// Whether the body is read ahead of the client.
pub(crate) fn is_buffered(settings: &UpstreamSettings, head: &ResponseHead) -> bool {
    said_of_buffering(settings, head).unwrap_or(settings.buffering)
}

/// Whether the response is a stream of events. Its head must reach the client before the first event occurs.
pub(crate) fn is_event_stream(request: &Request) -> bool {
    request.out.content_type.starts_with(b"text/event-stream")
}

/// Whether `error_page` covers the status.
fn has_error_page(request: &Request, status: u16) -> bool {
    let core = &request.site.location(request.location).core;
    core.error_pages.iter().any(|page| page.status == status)
}

/// Follows `X-Accel-Redirect`.
fn redirect(request: &mut Request, target: &[u8]) -> HandlerOutcome {
    if target.starts_with(b"@") {
        return request.redirect_named(target.as_bstr());
    }
    let mut path = Vec::new();
    let Ok(args) = proto::uri::parse_internal(target, &mut path) else {
        request.error(format_args!(
            "unsafe URI \"{}\" was detected",
            target.as_bstr()
        ));
        return HandlerOutcome::Status(404);
    };
    // As in nginx, the redirected request is a GET unless it is a HEAD.
    if request.method != proto::message::Method::Head {
        request.method = proto::message::Method::Get;
    }
    request.redirect(path, &target[args])
}

/// Takes over a date in the usual format, so that filters need not parse it again. Any other is passed on unchanged.
fn copy_last_modified(request: &mut Request, name: &[u8], value: &[u8]) {
    match crate::clock::canonical_date(value) {
        Some(time) => {
            request.out.last_modified = Some(time);
            request.out.last_modified_was_said = true;
        }
        None => request.out.fields.push(name, value),
    }
}
