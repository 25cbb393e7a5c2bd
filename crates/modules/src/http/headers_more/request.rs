//! Fields of requests.

use std::borrow::Cow;
use std::rc::Rc;

use http::request::Version;
use http::{Outcome, Request, Step};
use proto::Known;

use super::Conf;
use super::line::{Change, Field};

pub(super) fn change(request: &mut Request) -> Step<'_> {
    if request.head.version() < Version::Http10 {
        return Outcome::Declined.into();
    }
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    for change in conf.request.all.iter() {
        if !is_meant(change, request) {
            continue;
        }
        for field in &change.fields {
            let value = match &field.value {
                Some(value) => request.value(value),
                None => Default::default(),
            };
            if let Err(Unfit) = put(request, field, &value, change.only_replace) {
                return Outcome::Status(500).into();
            }
        }
    }
    Outcome::Declined.into()
}

fn is_meant(change: &Change, request: &Request) -> bool {
    if change.types.is_empty() {
        return true;
    }
    let value = request.head.known(Known::ContentType);
    value.is_some_and(|value| change.types.iter().any(|text| **text == **value))
}

/// A value that the field cannot have.
struct Unfit;

fn put(
    request: &mut Request,
    field: &Field,
    value: &[u8],
    only_replace: bool,
) -> Result<(), Unfit> {
    if value.is_empty() {
        clear(request, field);
        return Ok(());
    }
    let value = fit(value);
    match field.known {
        Known::Host if proto::host::parse(&value).is_err() => return Err(Unfit),
        Known::ContentLength if base::text::decimal(&value).is_none() => return Err(Unfit),
        Known::Connection => {
            let names = value.to_ascii_lowercase();
            request.flow.close |= names.windows(5).any(|text| text == b"close");
        }
        _ => {}
    }
    if only_replace && request.head.field(&field.name).is_none() {
        return Ok(());
    }
    request.change_fields(&field.name, |fields| fields.set(&field.name, &value));
    Ok(())
}

fn clear(request: &mut Request, field: &Field) {
    if !field.wildcard {
        return request.change_fields(&field.name, |fields| {
            fields.remove(&field.name);
        });
    }
    let names = request.head.wire.fields.iter().map(|(name, _)| name);
    let names = names.filter(|name| field.matches(name));
    let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    for name in names {
        request.change_fields(&name, |fields| {
            fields.remove(&name);
        });
    }
}

/// A value as it may stand in a head: bytes that would end it are escaped.
fn fit(value: &[u8]) -> Cow<'_, [u8]> {
    let is_bad = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
    if !value.iter().any(is_bad) {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len() + 8);
    for byte in value {
        match is_bad(byte) {
            true => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            false => out.push(*byte),
        }
    }
    Cow::Owned(out)
}
