//! The content of the request: what is read of it before the exchange, and what the head announces.

use std::rc::Rc;

use super::no_response::NoResponse;
use super::protocol::Content;
use super::transmit::ContentSource;
use crate::body_reader;
use crate::request::Request;

/// What becomes of a request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestContent {
    /// It is read first, and sent then.
    Buffered,
    /// It is sent while it is read.
    Streamed,
    /// It is read, but not sent.
    Dropped,
}

/// Reads the content of a request, unless it is to be sent while it is read.
pub(super) async fn read(request: &mut Request, content: RequestContent) -> Result<(), NoResponse> {
    let read = if content != RequestContent::Streamed {
        body_reader::read(request).await
    } else if has_arrived(request) {
        body_reader::read_arrived(request).await
    } else {
        Ok(())
    };
    read.map_err(NoResponse::new)
}

/// Whether all of a request's content is here already, and fits into its buffer: then nothing is gained by streaming it,
/// and it can be sent to another peer if the first one fails.
fn has_arrived(request: &Request) -> bool {
    if request.body.is_complete() {
        return true;
    }
    let core = &request.site.location(request.location).core;
    let announced = request.body.announced_length();
    request
        .stream
        .has_all(announced, core.client_body_buffer_size)
}

/// What the head shall announce, and where content comes from.
pub(super) fn describe(request: &Request, content: RequestContent) -> (Content, ContentSource) {
    if content == RequestContent::Dropped {
        return (Content::None, ContentSource::None);
    }
    let body = &request.body;
    if !body.is_complete() {
        let announced = body
            .announced_length()
            .map_or(Content::Unknown, Content::Length);
        return (announced, ContentSource::Client);
    }
    if body.length() == 0 {
        // A client that says so sends no content: `Content-Length: 0`, or chunks or frames without any.
        let fields = &request.head.wire.fields;
        let says_so = body.has_come()
            || fields.has(proto::Known::ContentLength)
            || fields.has(proto::Known::TransferEncoding);
        let announced = if says_so && !request.is_subrequest() {
            Content::Length(0)
        } else {
            Content::None
        };
        return (announced, ContentSource::None);
    }
    let source = match body.file() {
        Some(file) => ContentSource::File(Rc::clone(file), body.length()),
        None => ContentSource::Memory,
    };
    (Content::Length(body.length()), source)
}
