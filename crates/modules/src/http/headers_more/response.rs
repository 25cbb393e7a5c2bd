//! Fields of responses.

use std::rc::Rc;
use std::task::{Context, Poll};

use http::body::{Body, BodyError, Chunk, Source};
use http::response::Response;
use http::{Request, Verdict};
use proto::Known;

use super::Conf;
use super::line::{Change, Field};

pub(super) fn change(request: &mut Request) -> Verdict {
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    for change in conf.response.all.iter() {
        if !is_meant(change, &request.out) {
            continue;
        }
        for field in &change.fields {
            let value = match &field.value {
                Some(value) => request.value(value),
                None => Default::default(),
            };
            if let Err(Unfit) = put(&mut request.out, field, &value, change.append) {
                return Verdict::Status(500);
            }
        }
    }
    Verdict::Pass
}

fn is_meant(change: &Change, out: &Response) -> bool {
    let types = &change.types;
    let media_type = match out.status {
        304 => &out.type_not_sent,
        _ => &out.content_type,
    };
    let statuses = &change.statuses;
    (types.is_empty() || types.iter().any(|text| **text == **media_type))
        && (statuses.is_empty() || statuses.contains(&u64::from(out.status)))
}

/// A value that the field cannot have.
struct Unfit;

/// Gives a response a field, or takes it away if the value is empty.
fn put(out: &mut Response, field: &Field, value: &[u8], append: bool) -> Result<(), Unfit> {
    if field.wildcard {
        return {
            put_all(out, field, value);
            Ok(())
        };
    }
    match field.known {
        Known::Server => {
            out.unsaid.server = value.is_empty();
            put_plain(out, field, value, append);
        }
        Known::Date => {
            out.unsaid.date = value.is_empty();
            put_plain(out, field, value, append);
        }
        Known::Expires => {
            // `expires` stands behind this and gives no time to a field that was taken away.
            out.unsaid.expires = value.is_empty();
            put_plain(out, field, value, append);
        }
        Known::ContentType => {
            out.content_type_as_sent = None;
            out.set_content_type(value);
            out.fields.remove_known(Known::ContentType);
        }
        Known::ContentLength => return put_length(out, value),
        Known::Location => {
            out.fields.remove_known(Known::Location);
            out.location = Some(value.into()).filter(|_| !value.is_empty());
        }
        Known::LastModified => {
            out.last_modified = None;
            put_plain(out, field, value, append);
        }
        Known::AcceptRanges => {
            out.transforms.ranges &= !value.is_empty();
            put_plain(out, field, value, append);
        }
        Known::Etag if out.etag.is_some() && !append => {
            out.etag = Some(value.into()).filter(|_| !value.is_empty());
        }
        _ => put_plain(out, field, value, append),
    }
    Ok(())
}

fn put_plain(out: &mut Response, field: &Field, value: &[u8], append: bool) {
    match (value.is_empty(), append) {
        (true, true) => {}
        (true, false) => {
            out.fields.remove(&field.name);
        }
        (false, true) => out.fields.push(&field.name, value),
        (false, false) => out.fields.set(&field.name, value),
    }
}

/// The first field that is meant gets the value, and the others go.
fn put_all(out: &mut Response, field: &Field, value: &[u8]) {
    if value.is_empty() {
        let had_server = out.fields.has(Known::Server) && field.matches(b"Server");
        let had_date = out.fields.has(Known::Date) && field.matches(b"Date");
        out.fields.retain(|_, name, _| !field.matches(name));
        // What was an upstream's is not said by the server in its place.
        out.unsaid.server |= had_server;
        out.unsaid.date |= had_date;
        if field.matches(b"ETag") {
            out.etag = None;
        }
        if field.matches(b"Location") {
            out.location = None;
        }
        // What a file says is added at the wire, behind all fields.
        if out.last_modified_was_said && field.matches(b"Last-Modified") {
            out.last_modified = None;
        }
        return;
    }
    let first = out.fields.iter().find(|(name, _)| field.matches(name));
    let Some(first) = first.map(|(name, _)| name.to_vec()) else {
        return out.fields.push(&field.name, value);
    };
    let other = |name: &[u8]| !field.matches(name) || name.eq_ignore_ascii_case(&first);
    out.fields.retain(|_, name, _| other(name));
    out.fields.set(&first, value);
}

/// What a response says of its length. The content is cut off there; more than there is would be waited for in vain, and
/// the next response taken for it.
fn put_length(out: &mut Response, value: &[u8]) -> Result<(), Unfit> {
    if value.is_empty() {
        out.content_length = None;
        if out.body.length().is_some() && !matches!(out.body, Body::Empty) {
            let body = std::mem::take(&mut out.body);
            out.body = Body::stream(Unmeasured(body));
        }
        return Ok(());
    }
    let length = base::text::decimal(value).and_then(|n| u64::try_from(n).ok());
    let length = length.ok_or(Unfit)?;
    let is_shorter = out.length().is_some_and(|known| length < known);
    if matches!(out.body, Body::Empty) || is_shorter && out.body.narrow(0, length) {
        out.content_length = Some(length);
    }
    Ok(())
}

/// Content whose length is not told.
struct Unmeasured(Body);

impl Source for Unmeasured {
    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.0.poll_ahead(request, context);
    }

    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        self.0.poll_next(request, context)
    }
}
