//! Variables of header fields of the request and of the response, as families with the field's name in theirs.
//!
//! A name is in lower case with `_` for `-`. Several fields with one name are joined by `, `, cookies by `; ` (RFC
//! 9110, section 5.3; RFC 6265, section 4.2.1).

use bstr::ByteSlice;
use conf::Variable;
use proto::Fields;
use proto::message::ResponseFraming;

use super::{number, optional, text};
use crate::request::Request;

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::prefix("http_", request_field, "A request header, by name."),
    Variable::prefix("cookie_", cookie, "A request cookie, by name."),
    Variable::prefix("sent_http_", response_field, "A response header, by name.").volatile(),
    Variable::prefix("sent_trailer_", trailer, "A response trailer, by name.").volatile(),
    // The rows below take precedence over the family: these fields are not in the list of fields before the head is
    // written.
    Variable::new(
        "sent_http_content_type",
        sent_content_type,
        "The `Content-Type` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_content_length",
        sent_content_length,
        "The `Content-Length` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_location",
        sent_location,
        "The `Location` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_last_modified",
        sent_last_modified,
        "The `Last-Modified` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_etag",
        sent_etag,
        "The `ETag` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_connection",
        sent_connection,
        "The `Connection` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_keep_alive",
        sent_keep_alive,
        "The `Keep-Alive` header of the response.",
    )
    .volatile(),
    Variable::new(
        "sent_http_transfer_encoding",
        sent_transfer_encoding,
        "The `Transfer-Encoding` header of the response.",
    )
    .volatile(),
];

fn request_field(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    let between = if name == "cookie" { b"; " } else { b", " };
    write_joined(&request.head.wire.fields, name, between, out)
}

fn response_field(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    write_joined(&request.out.fields, name, b", ", out)
}

fn trailer(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    write_joined(&request.out.trailers, name, b", ", out)
}

/// Appends the values of all fields with this name, which is written as in a variable.
pub(crate) fn write_joined(fields: &Fields, name: &str, between: &[u8], out: &mut Vec<u8>) -> bool {
    let mut found = false;
    for (field, value) in fields.iter() {
        if is_named(field, name.as_bytes()) {
            if found {
                out.extend_from_slice(between);
            }
            out.extend_from_slice(value);
            found = true;
        }
    }
    found
}

/// Whether a field has the name that the variable spells: `x_real_ip` for `X-Real-IP`.
fn is_named(field: &[u8], variable: &[u8]) -> bool {
    field.len() == variable.len()
        && field
            .iter()
            .zip(variable)
            // An underscore in the field's own name matches an underscore too.
            .all(|(&field, &variable)| match field {
                b'-' => variable == b'_',
                other => variable == other.to_ascii_lowercase(),
            })
}

fn cookie(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    optional(
        proto::cookie::find(&request.head.wire.fields, name.as_bytes())
            .filter(|_| !name.is_empty()),
        out,
    )
}

/// The type, with the charset that is appended when the head is written.
fn sent_content_type(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let response = &request.out;
    if response.content_type.is_empty() {
        return false;
    }
    out.extend_from_slice(&response.content_type);
    if !response.charset.is_empty() && !response.content_type.contains_str("charset=") {
        out.extend_from_slice(b"; charset=");
        out.extend_from_slice(&response.charset);
    }
    true
}

/// The length. After the head has been written it is what was sent: the body itself has been consumed by then.
fn sent_content_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let response = &request.out;
    let length = if request.times.responded.is_some() {
        response.content_length
    } else {
        // What has come of a response of unknown length is not its length.
        let come = Some(&response.body).filter(|_| !response.transforms.unannounced_length);
        response
            .content_length
            .or(come.and_then(|body| body.length()))
    };
    length
        .filter(|_| has_content(request) && !request.delivery.is_silent())
        .is_some_and(|length| number(length, out))
}

/// Whether a response with this status has content (RFC 9110, section 6.4.1). Before there is a status, it has none.
fn has_content(request: &Request) -> bool {
    !matches!(request.out.status, 0..=199 | 204 | 304)
}

/// The target of a redirect, made absolute as `absolute_redirect` and the like say.
fn sent_location(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.out.location.is_some() {
        return text(crate::absolute_redirect::absolute_location(request), out);
    }
    response_field(request, "location", out)
}

/// The date of the content. As in nginx, after the head has been written it has a value only for statuses with content
/// that has a date, although the field was sent. A field that is not a valid date remains.
fn sent_last_modified(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let is_dated = matches!(request.out.status, 200 | 206 | 304);
    let is_gone = request.times.responded.is_some() && !is_dated;
    if let Some(time) = request.out.last_modified {
        if !is_gone {
            proto::date::write_http(time, out);
        }
        return !is_gone;
    }
    let start = out.len();
    let is_there = response_field(request, "last_modified", out);
    if is_there && is_gone && proto::date::parse(&out[start..]).is_some() {
        out.truncate(start);
        return false;
    }
    is_there
}

/// The ETag, whether it was generated here or comes from an upstream.
fn sent_etag(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match &request.out.etag {
        Some(etag) => text(etag, out),
        None => response_field(request, "etag", out),
    }
}

/// The connection option that is sent.
fn sent_connection(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let connection = match request.out.status {
        101 => "upgrade",
        // No response has been sent (444, 499): what its head would have said.
        _ if is_cut_off_kept(request) => "keep-alive",
        // In the access log, as in nginx's, it is `close` whatever was sent.
        _ if request.delivery.must_close() || request.times.responded.is_some() => "close",
        _ => "keep-alive",
    };
    text(connection, out)
}

/// Whether the request ended without a response, and nothing but that ends its connection.
fn is_cut_off_kept(request: &Request) -> bool {
    let is_kept = !request.core().keepalive_timeout.is_zero();
    request.delivery.is_silent() && is_kept && request.head.wire.wants_keep_alive()
}

/// The parameter of `keepalive_timeout`, unless the connection is being closed.
fn sent_keep_alive(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let seconds = request
        .site
        .location(request.location)
        .core
        .keepalive_header;
    let stays = is_cut_off_kept(request)
        || (!request.delivery.must_close() && request.times.responded.is_none());
    let Some(seconds) = seconds.filter(|_| stays) else {
        return false;
    };
    out.extend_from_slice(b"timeout=");
    number(seconds, out)
}

fn sent_transfer_encoding(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.delivery.framing == Some(ResponseFraming::Chunked) && text("chunked", out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_and_variables() {
        assert!(is_named(b"X-Real-IP", b"x_real_ip"));
        assert!(is_named(b"x_real_ip", b"x_real_ip"));
        assert!(!is_named(b"X-Real-IP", b"x_real_ipp"));
        assert!(!is_named(b"X.Real.IP", b"x_real_ip"));
    }

    #[test]
    fn values_are_joined() {
        let mut fields = Fields::new();
        fields.push(b"X-A", b"1");
        fields.push(b"x-b", b"2");
        fields.push(b"x-a", b"");
        let value = |name: &str, between: &[u8]| {
            let mut out = Vec::new();
            write_joined(&fields, name, between, &mut out).then(|| String::from_utf8(out).unwrap())
        };
        assert_eq!(value("x_a", b", ").as_deref(), Some("1, "));
        assert_eq!(value("x_b", b"; ").as_deref(), Some("2"));
        assert_eq!(value("x_c", b"; "), None);
    }
}
