//! `more_set_headers` and `more_clear_headers`.

use std::rc::Rc;
use std::task::{Context, Poll};

use http::response::Response;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::{FilterVerdict, Request};
use proto::KnownField;

use super::Conf;
use super::line::{HeaderChange, NamedField};

/// The header filter.
pub(super) fn change(request: &mut Request) -> FilterVerdict {
    // Borrowed from the site rather than the request, which is changed below.
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    for change in conf.response.all.iter() {
        if !applies_to(change, &request.out) {
            continue;
        }
        for field in &change.fields {
            let value = match &field.value {
                Some(value) => request.value(value),
                None => Default::default(),
            };
            if let Err(InvalidResponseValue) =
                set_field(&mut request.out, field, &value, change.append)
            {
                // A value that cannot be sent is a mistake of the configuration: to leave the field out silently
                // would hide it.
                return FilterVerdict::Status(500);
            }
        }
    }
    FilterVerdict::Pass
}

/// Whether a line applies to this response.
fn applies_to(change: &HeaderChange, out: &Response) -> bool {
    let types = &change.types;
    let media_type = match out.status {
        // A 304 is sent without a type, but lines refer to that of the resource.
        304 => &out.type_not_sent,
        _ => &out.content_type,
    };
    let statuses = &change.statuses;
    (types.is_empty() || types.iter().any(|text| **text == **media_type))
        && (statuses.is_empty() || statuses.contains(&u64::from(out.status)))
}

/// The value is not valid for this field.
struct InvalidResponseValue;

/// Sets a field of a response, or removes it if the value is empty. Some fields are attributes of
/// the response that the server writes itself; for these the attribute has to change.
fn set_field(
    out: &mut Response,
    field: &NamedField,
    value: &[u8],
    append: bool,
) -> Result<(), InvalidResponseValue> {
    if field.wildcard {
        return {
            set_matching(out, field, value);
            Ok(())
        };
    }
    match field.known {
        KnownField::Server => {
            // Without the field the server would write its own, so its absence has to be recorded.
            out.omitted.server = value.is_empty();
            set_plain(out, field, value, append);
        }
        KnownField::Date => {
            out.omitted.date = value.is_empty();
            set_plain(out, field, value, append);
        }
        KnownField::Expires => {
            // The `expires` filter runs later and must not bring back a field that was removed.
            out.omitted.expires = value.is_empty();
            set_plain(out, field, value, append);
        }
        KnownField::ContentType => {
            // What an upstream sent byte by byte no longer counts.
            out.content_type_as_sent = None;
            out.set_content_type(value);
            // The lines that follow refer to the new one, also of a 304.
            if out.status == 304 {
                out.type_not_sent = std::mem::take(&mut out.content_type);
            }
            out.fields.remove_known(KnownField::ContentType);
        }
        KnownField::ContentLength => return set_length(out, value),
        KnownField::Location => {
            out.fields.remove_known(KnownField::Location);
            out.location = Some(value.into()).filter(|_| !value.is_empty());
        }
        // The attribute would be written as a second field, and conditional requests compare with it.
        KnownField::LastModified => {
            out.last_modified = None;
            set_plain(out, field, value, append);
        }
        KnownField::AcceptRanges => {
            // Without the field, clients are not offered ranges, and get none.
            out.transforms.ranges &= !value.is_empty();
            set_plain(out, field, value, append);
        }
        KnownField::Etag if out.etag.is_some() && !append => {
            out.etag = Some(value.into()).filter(|_| !value.is_empty());
        }
        _ => set_plain(out, field, value, append),
    }
    Ok(())
}

/// Sets a field that nothing else depends on.
fn set_plain(out: &mut Response, field: &NamedField, value: &[u8], append: bool) {
    match (value.is_empty(), append) {
        // Appending nothing changes nothing.
        (true, true) => {}
        (true, false) => {
            out.fields.remove(&field.name);
        }
        (false, true) => out.fields.push(&field.name, value),
        (false, false) => out.fields.set(&field.name, value),
    }
}

/// Applies a name with a wildcard: the first matching field gets the value and the others are
/// removed.
fn set_matching(out: &mut Response, field: &NamedField, value: &[u8]) {
    if value.is_empty() {
        let had_server = out.fields.has(KnownField::Server) && field.matches(b"Server");
        let had_date = out.fields.has(KnownField::Date) && field.matches(b"Date");
        out.fields.retain(|_, name, _| !field.matches(name));
        // A field that came from an upstream must not be replaced by the server's own.
        out.omitted.server |= had_server;
        out.omitted.date |= had_date;
        if field.matches(b"ETag") {
            out.etag = None;
        }
        if field.matches(b"Location") {
            out.location = None;
        }
        // The time of a file is written after all fields, so it has to go here.
        if out.last_modified_was_said && field.matches(b"Last-Modified") {
            out.last_modified = None;
        }
        return;
    }
    let first = out.fields.iter().find(|(name, _)| field.matches(name));
    // No field matches: the name, star included, is added as it is.
    let Some(first) = first.map(|(name, _)| name.to_vec()) else {
        return out.fields.push(&field.name, value);
    };
    let other = |name: &[u8]| !field.matches(name) || name.eq_ignore_ascii_case(&first);
    out.fields.retain(|_, name, _| other(name));
    out.fields.set(&first, value);
}

/// Sets `Content-Length`. A shorter length truncates the content. A longer one is ignored: the
/// client would wait for the rest in vain, and take the next response for it.
fn set_length(out: &mut Response, value: &[u8]) -> Result<(), InvalidResponseValue> {
    // The content may be cut.
    out.identity = None;
    if value.is_empty() {
        out.content_length = None;
        // The connection would derive the length from the body again.
        if out.body.length().is_some() && !matches!(out.body, ResponseBody::Empty) {
            let body = std::mem::take(&mut out.body);
            out.body = ResponseBody::stream(UnmeasuredBody(body));
        }
        return Ok(());
    }
    let length = base::text::decimal(value).and_then(|n| u64::try_from(n).ok());
    let length = length.ok_or(InvalidResponseValue)?;
    let is_shorter = out.length().is_some_and(|known| length < known);
    if matches!(out.body, ResponseBody::Empty) || is_shorter && out.body.limit_to_range(0, length) {
        out.content_length = Some(length);
    }
    Ok(())
}

/// Content whose length is not announced.
struct UnmeasuredBody(ResponseBody);

impl BodySource for UnmeasuredBody {
    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.0.poll_ahead(request, context);
    }

    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        self.0.poll_next(request, context)
    }
}
