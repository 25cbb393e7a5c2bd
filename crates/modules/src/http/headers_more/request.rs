//! `more_set_input_headers` and `more_clear_input_headers`.

use std::borrow::Cow;
use std::rc::Rc;

use http::request::HttpVersion;
use http::{HandlerOutcome, HandlerStep, Request};
use proto::KnownField;

use super::Conf;
use super::line::{HeaderChange, NamedField};

/// The handler of the rewrite phase.
pub(super) fn change(request: &mut Request) -> HandlerStep<'_> {
    // HTTP/0.9 has no header fields.
    if request.head.version() < HttpVersion::Http10 {
        return HandlerOutcome::Declined.into();
    }
    // Borrowed from the site rather than the request, which is changed below.
    let site = Rc::clone(&request.site);
    let conf = site.location(request.location).confs.get::<Conf>();
    for change in conf.request.all.iter() {
        if !applies_to(change, request) {
            continue;
        }
        for field in &change.fields {
            let value = match &field.value {
                Some(value) => request.value(value),
                None => Default::default(),
            };
            if let Err(InvalidRequestValue) = set_field(request, field, &value, change.only_replace)
            {
                return HandlerOutcome::Status(500).into();
            }
        }
    }
    HandlerOutcome::Declined.into()
}

/// Whether a line applies to this request. The media type is compared as a whole, parameters
/// included, as in the third-party module.
fn applies_to(change: &HeaderChange, request: &Request) -> bool {
    if change.types.is_empty() {
        return true;
    }
    let value = request.head.known(KnownField::ContentType);
    value.is_some_and(|value| change.types.iter().any(|text| **text == **value))
}

/// The value is not valid for this field.
struct InvalidRequestValue;

/// Sets a field, or removes it if the value is empty. Fields that the server acts upon are
/// validated, since the client's own were as well.
fn set_field(
    request: &mut Request,
    field: &NamedField,
    value: &[u8],
    only_replace: bool,
) -> Result<(), InvalidRequestValue> {
    if value.is_empty() {
        remove_field(request, field);
        return Ok(());
    }
    let value = escape_controls(value);
    match field.known {
        // The host selects files and cache keys: an invalid one must not get in through a variable.
        KnownField::Host if proto::host::parse(&value).is_err() => return Err(InvalidRequestValue),
        KnownField::ContentLength if base::text::decimal(&value).is_none() => {
            return Err(InvalidRequestValue);
        }
        KnownField::Connection => {
            let names = value.to_ascii_lowercase();
            if names.windows(5).any(|text| text == b"close") {
                request.delivery.close();
            }
        }
        _ => {}
    }
    // After the validation: an invalid value is an error even where it would not be used.
    if only_replace && request.head.field(&field.name).is_none() {
        return Ok(());
    }
    request.change_fields(&field.name, |fields| fields.set(&field.name, &value));
    Ok(())
}

/// Removes a field, or all with its prefix.
fn remove_field(request: &mut Request, field: &NamedField) {
    if !field.wildcard {
        return request.change_fields(&field.name, |fields| {
            fields.remove(&field.name);
        });
    }
    let names = request.head.wire.fields.iter().map(|(name, _)| name);
    let names = names.filter(|name| field.matches(name));
    // Collected first, since removing changes the list.
    let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    for name in names {
        request.change_fields(&name, |fields| {
            fields.remove(&name);
        });
    }
}

/// A value as it can appear in a header: control characters are percent-encoded, or a variable with
/// a client's input could add fields of its own.
fn escape_controls(value: &[u8]) -> Cow<'_, [u8]> {
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
