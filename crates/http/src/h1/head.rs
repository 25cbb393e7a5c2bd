//! Writes the head of a response on an HTTP/1 connection.
//!
//! The fields come in nginx's order, which people compare by eye: status line, `Server`, `Date`, what describes the
//! content, what describes the connection, and then the fields of handlers and filters as they were added.

use std::cell::RefCell;
use std::rc::Rc;

use proto::KnownField;
use proto::h1::response::{write_end, write_field, write_fields, write_status_line};
use proto::message::ResponseFraming;

use crate::absolute_redirect::absolute_location;
use crate::request::{HttpVersion, Request};
use crate::response::{OmittedFields, Response};

/// Appends the head of the response and returns how its content is framed. `keepalive` is whether the connection may
/// persist; the framing may rule it out, and the outcome is left in the request.
pub(super) fn write_head(
    request: &mut Request,
    keepalive: bool,
    out: &mut Vec<u8>,
) -> ResponseFraming {
    // First, because the fields below depend on it.
    let (framing, keepalive) = frame(request, keepalive);
    request.delivery.framing = Some(framing);
    if !keepalive {
        request.delivery.close();
    }
    if request.head.version() == HttpVersion::Http09 {
        // A simple response has no head (RFC 1945, section 6).
        return framing;
    }
    let site = &request.site;
    let core = &site.location(request.location).core;
    let response = &request.out;
    let server = core.server_tokens.shown_name(&site.identity);
    // The opening is the same for all such responses of one second.
    let usual = response.status == 200
        && response.reason.is_none()
        && response.omitted == OmittedFields::default()
        && !response.fields.has(KnownField::Server)
        && !response.fields.has(KnownField::Date);
    match usual {
        true => write_usual_opening(server, out),
        false => write_opening(response, server, out),
    }
    write_content_fields(request, framing, out);
    if request.out.location.is_some() {
        let location = absolute_location(request);
        write_field(b"Location", &location, out);
    }
    write_connection_fields(request, framing, keepalive, out);
    if request.delivery.varies_by_encoding {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    if let Some(etag) = &request.out.etag {
        write_field(b"ETag", etag, out);
    }
    write_fields(&request.out.fields, out);
    write_end(out);
    framing
}

/// Writes the status line, `Server` and `Date`. A handler's own `Server` or `Date` replaces ours: an origin's `Date`
/// must be passed on unchanged (RFC 9110, section 6.6.1).
fn write_opening(response: &Response, server: &str, out: &mut Vec<u8>) {
    write_status_line(
        response.status,
        response.reason.as_ref().map(|reason| reason.as_slice()),
        out,
    );
    if !response.fields.has(KnownField::Server) && !response.omitted.server {
        out.extend_from_slice(b"Server: ");
        out.extend_from_slice(server.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if !response.fields.has(KnownField::Date) && !response.omitted.date {
        out.extend_from_slice(b"Date: ");
        crate::clock::write_http_date(out);
        out.extend_from_slice(b"\r\n");
    }
}

/// Writes the opening of an ordinary response: one copy of what was written for the previous one in the same second.
fn write_usual_opening(server: &str, out: &mut Vec<u8>) {
    struct CachedHeadFields {
        second: u64,
        server: String,
        text: Vec<u8>,
    }
    rt::local! {
        static LAST: RefCell<CachedHeadFields> =
            const { RefCell::new(CachedHeadFields { second: 0, server: String::new(), text: Vec::new() }) };
    }
    LAST.with_borrow_mut(|last| {
        let second = rt::wall_millis() / 1000;
        // Two servers with different `server_tokens` may take turns; then each writes its opening anew.
        if last.second != second || last.server != server {
            let usual = Response {
                status: 200,
                ..Response::default()
            };
            last.text.clear();
            write_opening(&usual, server, &mut last.text);
            last.server = server.to_owned();
            last.second = second;
        }
        out.extend_from_slice(&last.text);
    });
}

// Chooses the framing of the content, by the rules of RFC 9112, section 6.3, and whether the connection may persist.
fn frame(request: &mut Request, mut keepalive: bool) -> (ResponseFraming, bool) {
    let site = Rc::clone(&request.site);
    let core = &site.location(request.location).core;
    let version = request.head.version();
    if request.delivery.is_upgraded() {
        // What follows is another protocol and ends with the connection.
        return (ResponseFraming::UntilClose, false);
    }
    let out = &mut request.out;
    out.drop_unfit_date();
    if matches!(out.status, 204 | 304) || (100..200).contains(&out.status) {
        if out.status != 101 {
            out.drop_content_fields();
        }
        // A handler may answer with an interim status of its own. The client then waits for the final response, which
        // does not come, and must not take the next response for it (RFC 9110, section 15.2): so the connection closes.
        return (ResponseFraming::None, keepalive && out.status >= 200);
    }
    let empty = request.delivery.header_only;
    // HTTP/1.0 clients do not know the chunked coding (RFC 9112, section 6.1).
    let chunks = version >= HttpVersion::Http11 && core.chunked_transfer_encoding;
    let framing = match out.length() {
        // Only chunked framing can carry trailers (RFC 9112, section 7.1.2), even if the length is known.
        Some(_) if chunks && !empty && !out.trailers.is_empty() => {
            out.content_length = None;
            ResponseFraming::Chunked
        }
        Some(length) => {
            // Noted now, because the body is gone when a log variable asks for its length.
            out.content_length = Some(length);
            ResponseFraming::Length(length)
        }
        None if empty => ResponseFraming::None,
        None if chunks => ResponseFraming::Chunked,
        None => {
            // The end of the connection is the only way left to mark the end of the content.
            keepalive = false;
            ResponseFraming::UntilClose
        }
    };
    // No framing to carry them: RFC 9110, section 6.5.1, allows dropping them.
    if !request.out.trailers.is_empty() && framing == ResponseFraming::UntilClose {
        request.out.trailers.clear();
    }
    (framing, keepalive)
}

fn write_content_fields(request: &Request, framing: ResponseFraming, out: &mut Vec<u8>) {
    let response = &request.out;
    if !response.content_type.is_empty() {
        out.extend_from_slice(b"Content-Type: ");
        response.write_content_type(out);
        out.extend_from_slice(b"\r\n");
    }
    if let ResponseFraming::Length(length) = framing {
        out.extend_from_slice(b"Content-Length: ");
        base::text::write_number(length, out);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(time) = response.last_modified {
        out.extend_from_slice(b"Last-Modified: ");
        crate::clock::write_date_of(time, out);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_connection_fields(
    request: &Request,
    framing: ResponseFraming,
    keepalive: bool,
    out: &mut Vec<u8>,
) {
    let core = &request.site.location(request.location).core;
    if framing == ResponseFraming::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    // RFC 9110, section 7.8: `Upgrade` must be named in `Connection`. The response closes the HTTP part of the
    // connection, so neither of the other two values applies.
    if request.out.status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if keepalive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        if let Some(seconds) = core.keepalive_header {
            out.extend_from_slice(b"Keep-Alive: timeout=");
            base::text::write_number(seconds, out);
            out.extend_from_slice(b"\r\n");
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
}
