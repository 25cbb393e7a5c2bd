//! Writes the head of a response on an HTTP/2 stream.
//!
//! The fields come in the order of HTTP/1; what describes a connection is left out (RFC 9113, section 8.2.2).

use std::rc::Rc;

use bstr::ByteSlice;
use proto::Known;
use proto::fields::Fields;
use proto::h2::hpack::{Encoder, Secrecy};
use proto::h2::rules;

use super::stream::Stream;
use crate::absolute_redirect::absolute_location;
use crate::request::Request;

/// How much content a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// There is none, whatever the head says: HEAD, 204, 304.
    None,
    /// This many bytes.
    Length(u64),
    /// Only its end will tell.
    Unknown,
}

/// How much content the response has. Its fields are changed accordingly.
pub(super) fn content(request: &mut Request) -> Content {
    let out = &mut request.out;
    // A tunnel: its bytes travel as DATA frames until either side ends (RFC 8441, section 5).
    if request.delivery.is_upgraded() {
        return Content::Unknown;
    }
    out.drop_unfit_date();
    if matches!(out.status, 204 | 304) || (100..200).contains(&out.status) {
        // RFC 9110, section 8.6: no `Content-Length` here, as on HTTP/1.
        out.content_type.clear();
        out.content_length = None;
        return Content::None;
    }
    match out.length() {
        Some(length) => {
            // Noted now, because the body is gone when a log variable asks for its length.
            out.content_length = Some(length);
            match request.delivery.header_only {
                true => Content::None,
                false => Content::Length(length),
            }
        }
        None if request.delivery.header_only => Content::None,
        None => Content::Unknown,
    }
}

/// Appends the head of the response. `ends`: nothing follows. Returns its size on the wire.
pub(super) fn write(request: &mut Request, stream: &Rc<Stream>, ends: bool) -> usize {
    if request.out.location.is_some() {
        request.out.location = Some(absolute_location(request).into());
    }
    // For the client an accepted tunnel is a 200: HTTP/2 has no 101 (RFC 8441, section 5; RFC 9113, section 8.6).
    let status = match request.delivery.is_upgraded() {
        true => 200,
        false => request.out.status,
    };
    // A pass of its own, so that the debug log costs nothing where it is off.
    if host::error_log::debug_is_on() {
        request.debug(format_args!(
            "http2 output header: \":status: {status:03}\""
        ));
        each_field(request, |_, name, value| {
            let (name, value) = (name.to_ascii_lowercase(), value.as_bstr());
            let name = name.as_bstr();
            request.debug(format_args!("http2 output header: \"{name}: {value}\""));
        });
    }
    stream.write_headers(ends, |encoder, out| {
        encoder.status(status, out);
        each_field(request, |known, name, value| {
            write_field(encoder, known, name, value, out)
        });
    })
}

/// Encodes trailers: a header block of these fields alone.
pub(super) fn write_fields(fields: &Fields, encoder: &mut Encoder, out: &mut Vec<u8>) {
    for (known, name, value) in fields.iter_known() {
        if may_be_sent(known, name) {
            write_field(encoder, known, name, value, out);
        }
    }
}

fn write_field(encoder: &mut Encoder, known: Known, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    // Kept out of the compression table: an attacker who can make the server send guesses could otherwise recognize a
    // match by its length (RFC 7541, section 7.1).
    let secrecy = match known {
        Known::SetCookie => Secrecy::Private,
        _ => Secrecy::Open,
    };
    if rules::is_value(value) {
        encoder.field(known, name, value, secrecy, out);
    } else {
        // CR, LF or NUL would make the message malformed (RFC 9113, section 8.2.1), which clients answer with a reset:
        // spaces take their place.
        let value = value.replace(b"\r", b" ").replace(b"\n", b" ");
        encoder.field(known, name, &value.replace(b"\0", b" "), secrecy, out);
    }
}

/// Whether a field may appear in an HTTP/2 message: nothing that concerns one connection (RFC 9113, section 8.2.2), and
/// no name that is not a token (section 8.2.1).
pub(super) fn may_be_sent(known: Known, name: &[u8]) -> bool {
    match known {
        Known::Connection
        | Known::ProxyConnection
        | Known::KeepAlive
        | Known::TransferEncoding
        | Known::Upgrade => false,
        Known::Other => !name.is_empty() && name.iter().all(|&b| b > b' ' && b < 0x7f && b != b':'),
        _ => true,
    }
}

/// Calls `take` for each field of the response's head: its number, its name in any case, its value.
fn each_field(request: &Request, mut take: impl FnMut(Known, &[u8], &[u8])) {
    let mut add = |known: Known, value: &[u8]| take(known, known.name().as_bytes(), value);
    let response = &request.out;
    let core = &request.site.location(request.location).core;
    let mut text = Vec::new();
    if !response.fields.has(Known::Server) && !response.unsaid.server {
        let server = core.server_tokens.text(&request.site.identity);
        add(Known::Server, server.as_bytes());
    }
    if !response.fields.has(Known::Date) && !response.unsaid.date {
        crate::clock::write_http_date(&mut text);
        add(Known::Date, &text);
    }
    if !response.content_type.is_empty() {
        let has_charset =
            response.charset.is_empty() || response.content_type.contains_str("charset=");
        if has_charset {
            add(Known::ContentType, &response.content_type);
        } else {
            let parts = [&response.content_type[..], b"; charset=", &response.charset];
            add(Known::ContentType, &parts.concat());
        }
    }
    if let Some(length) = response
        .content_length
        .filter(|_| !request.delivery.is_upgraded())
    {
        text.clear();
        base::text::write_number(length, &mut text);
        add(Known::ContentLength, &text);
    }
    if let Some(time) = response.last_modified {
        text.clear();
        proto::date::write_http(time, &mut text);
        add(Known::LastModified, &text);
    }
    if let Some(location) = &response.location {
        add(Known::Location, location);
    }
    if request.delivery.varies_by_encoding {
        add(Known::Vary, b"Accept-Encoding");
    }
    if let Some(etag) = &response.etag {
        add(Known::Etag, etag);
    }
    for (known, name, value) in response.fields.iter_known() {
        if may_be_sent(known, name) {
            take(known, name, value);
        }
    }
}
