//! The request's body: what is read of it before the exchange, and what the head announces.

use std::rc::Rc;

use super::no_response::NoResponse;
use super::protocol::RequestLength;
use super::transmit::ContentSource;
use crate::body_reader;
use crate::request::Request;

/// How a request's body is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestContent {
    /// It is read completely, then sent.
    Buffered,
    /// It is sent while it is being read (`…_request_buffering off`).
    Streamed,
    /// It is read, but not sent (`…_pass_request_body off`).
    Dropped,
}

/// Reads the request's body, unless it is to be sent while it is being read.
pub(super) async fn read_request_content(
    request: &mut Request,
    content: RequestContent,
) -> Result<(), NoResponse> {
    let read = if content != RequestContent::Streamed {
        body_reader::read_body(request).await
    } else if has_arrived(request) {
        body_reader::read_arrived(request).await
    } else {
        Ok(())
    };
    read.map_err(NoResponse::new)
}

/// Whether the whole body has already arrived and fits into its buffer, or some of it was read before. Then streaming it
/// has no advantage, whereas a body in memory can be sent to another server if the first one fails.
fn has_arrived(request: &Request) -> bool {
    let body = &request.body;
    // Content that was begun and not finished, by a script that ended meanwhile, can only be completed.
    if body.is_complete() || (body.length() > 0 && body.holds_what_was_read()) {
        return true;
    }
    let core = &request.site.location(request.location).core;
    let announced = request.body.announced_length();
    request
        .stream
        .has_all(announced, core.client_body_buffer_size)
}

/// What the head announces, and where the body comes from.
pub(super) fn describe_content(
    request: &Request,
    content: RequestContent,
) -> (RequestLength, ContentSource) {
    if content == RequestContent::Dropped {
        return (RequestLength::None, ContentSource::None);
    }
    let body = &request.body;
    if !body.is_complete() {
        let announced = body
            .announced_length()
            .map_or(RequestLength::Unknown, RequestLength::Length);
        return (announced, ContentSource::Client);
    }
    if body.length() == 0 {
        // The client sent an empty body explicitly: `Content-Length: 0`, or chunks or frames without data. That is
        // passed on, because for some methods it differs from no body (RFC 9110, section 8.6).
        let fields = &request.head.wire.fields;
        let says_so = body.has_come()
            || fields.has(proto::KnownField::ContentLength)
            || fields.has(proto::KnownField::TransferEncoding);
        let announced = if says_so && !request.is_subrequest() {
            RequestLength::Length(0)
        } else {
            RequestLength::None
        };
        return (announced, ContentSource::None);
    }
    let source = match body.file() {
        Some(file) => ContentSource::File(Rc::clone(file), body.length()),
        None => ContentSource::Memory,
    };
    (RequestLength::Length(body.length()), source)
}
