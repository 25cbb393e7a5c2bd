//! The head of a response as HTTP/2 and HTTP/3 write it: a section of fields.
//!
//! The fields come in the order of HTTP/1; what describes a connection is left out (RFC 9113, section 8.2.2; RFC 9114,
//! section 4.2).

use bstr::ByteSlice;
use proto::KnownField;
use proto::field_section::{FieldSecrecy, rules};
use proto::fields::Fields;

use crate::absolute_redirect::absolute_location;
use crate::request::Request;
use crate::response_body::ResponseBody;

/// How much content a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseLength {
    /// There is none, whatever the head says: HEAD, 204, 304.
    None,
    /// This many bytes.
    Length(u64),
    /// Only its end will tell.
    Unknown,
}

/// How much content the response has. Its fields are changed accordingly.
pub(crate) fn response_length(request: &mut Request) -> ResponseLength {
    let out = &mut request.out;
    // A tunnel: its bytes travel as DATA frames until either side ends (RFC 8441, section 5).
    if request.delivery.is_upgraded() {
        return ResponseLength::Unknown;
    }
    out.drop_unfit_date();
    if matches!(out.status, 204 | 304) || (100..200).contains(&out.status) {
        out.drop_content_fields();
        // Also where an upstream server named one: what has no content has no type, as in nginx's HTTP/2.
        if out.status == 204 {
            out.content_type.clear();
        }
        return ResponseLength::None;
    }
    match out.length() {
        Some(length) => {
            // Noted now, because the body is gone when a log variable asks for its length.
            out.content_length = Some(length);
            match request.delivery.header_only {
                true => ResponseLength::None,
                false => ResponseLength::Length(length),
            }
        }
        None if request.delivery.header_only => ResponseLength::None,
        None => ResponseLength::Unknown,
    }
}

/// Whether trailers may follow that are not known yet.
pub(crate) fn may_have_trailers(request: &Request) -> bool {
    matches!(&request.out.body, ResponseBody::Stream(source) if source.may_have_trailers())
}

/// Completes the head before it is written, and returns the status that the client gets. `version` is for the debug log.
pub(crate) fn prepare_head(request: &mut Request, version: &str) -> u16 {
    if request.out.location.is_some() {
        request.out.location = Some(absolute_location(request).into());
    }
    // For the client an accepted tunnel is a 200: there is no 101 (RFC 8441, section 5; RFC 9113, section 8.6; RFC 9114,
    // section 4.5).
    let status = match request.delivery.is_upgraded() {
        true => 200,
        false => request.out.status,
    };
    // A pass of its own, so that the debug log costs nothing where it is off.
    if host::error_log::debug_is_on() {
        request.debug(format_args!(
            "{version} output header: \":status: {status:03}\""
        ));
        each_field(request, |_, name, value, _| {
            let (name, value) = (name.to_ascii_lowercase(), value.as_bstr());
            let name = name.as_bstr();
            request.debug(format_args!("{version} output header: \"{name}: {value}\""));
        });
    }
    status
}

/// Whether a field may appear in a message on a stream: nothing that concerns one connection (RFC 9113, section 8.2.2), and
/// no name that is not a token (section 8.2.1).
pub(crate) fn may_be_sent(known: KnownField, name: &[u8]) -> bool {
    match known {
        KnownField::Connection
        | KnownField::ProxyConnection
        | KnownField::KeepAlive
        | KnownField::TransferEncoding
        | KnownField::Upgrade => false,
        KnownField::Other => {
            !name.is_empty() && name.iter().all(|&b| b > b' ' && b < 0x7f && b != b':')
        }
        _ => true,
    }
}

/// Passes on those of `fields` that may be sent: trailers, or the fields of an interim response.
pub(crate) fn each_of(
    fields: &Fields,
    mut take: impl FnMut(KnownField, &[u8], &[u8], FieldSecrecy),
) {
    for (known, name, value) in fields.iter_known() {
        if may_be_sent(known, name) {
            pass_on(known, name, value, &mut take);
        }
    }
}

/// Passes a field on in a form that can be sent.
#[inline]
fn pass_on(
    known: KnownField,
    name: &[u8],
    value: &[u8],
    take: &mut impl FnMut(KnownField, &[u8], &[u8], FieldSecrecy),
) {
    // Kept out of the compression table: an attacker who can make the server send guesses could otherwise recognize a
    // match by its length (RFC 7541, section 7.1).
    let secrecy = match known {
        KnownField::SetCookie => FieldSecrecy::Private,
        _ => FieldSecrecy::Open,
    };
    if rules::is_value(value) {
        take(known, name, value, secrecy);
    } else {
        // CR, LF or NUL would make the message malformed (RFC 9113, section 8.2.1), which clients answer with a reset:
        // spaces take their place.
        let value = value.replace(b"\r", b" ").replace(b"\n", b" ");
        take(known, name, &value.replace(b"\0", b" "), secrecy);
    }
}

/// Passes on a field whose value is made here, and needs no check.
#[inline]
fn own(
    known: KnownField,
    value: &[u8],
    take: &mut impl FnMut(KnownField, &[u8], &[u8], FieldSecrecy),
) {
    take(known, known.name().as_bytes(), value, FieldSecrecy::Open);
}

/// Passes on a field of this name whose value comes from elsewhere.
#[inline]
fn named(
    known: KnownField,
    value: &[u8],
    take: &mut impl FnMut(KnownField, &[u8], &[u8], FieldSecrecy),
) {
    pass_on(known, known.name().as_bytes(), value, take);
}

/// Calls `take` for each field of the response's head: its number, its name in any case, its value.
pub(crate) fn each_field(
    request: &Request,
    mut take: impl FnMut(KnownField, &[u8], &[u8], FieldSecrecy),
) {
    let response = &request.out;
    let core = &request.site.location(request.location).core;
    // A date, or a type with its charset: mostly one allocation for all.
    let mut text = Vec::with_capacity(64);
    if !response.fields.has(KnownField::Server) && !response.omitted.server {
        let server = core.server_tokens.shown_name(&request.site.identity);
        named(KnownField::Server, server.as_bytes(), &mut take);
    }
    if !response.fields.has(KnownField::Date) && !response.omitted.date {
        crate::clock::write_http_date(&mut text);
        own(KnownField::Date, &text, &mut take);
    }
    if !response.content_type.is_empty() {
        text.clear();
        response.write_content_type(&mut text);
        named(KnownField::ContentType, &text, &mut take);
    }
    if let Some(length) = response
        .content_length
        .filter(|_| !request.delivery.is_upgraded())
    {
        text.clear();
        base::text::write_number(length, &mut text);
        own(KnownField::ContentLength, &text, &mut take);
    }
    if let Some(time) = response.last_modified {
        text.clear();
        proto::date::write_http(time, &mut text);
        own(KnownField::LastModified, &text, &mut take);
    }
    if let Some(location) = &response.location {
        named(KnownField::Location, location, &mut take);
    }
    if request.delivery.varies_by_encoding {
        own(KnownField::Vary, b"Accept-Encoding", &mut take);
    }
    if let Some(etag) = &response.etag {
        named(KnownField::Etag, etag, &mut take);
    }
    each_of(&response.fields, take);
}
