//! A `Set-Cookie` field with other attributes than the server gave it (RFC 6265, section 4.1).

use bstr::ByteSlice;
use http::Request;

use super::{Conf, rules};

/// An attribute, or the cookie itself: a name, and what stands after `=`.
struct Attribute {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// Appends the field as the directives want it. `false`: it stays as it is.
pub(super) fn map(request: &mut Request, conf: &Conf, field: &[u8], out: &mut Vec<u8>) -> bool {
    if conf.cookie_domains.is_empty()
        && conf.cookie_paths.is_empty()
        && conf.cookie_flags.is_empty()
    {
        return false;
    }
    let mut attributes: Vec<Attribute> = field.split_str(b";").map(parse).collect();
    if attributes
        .first()
        .is_none_or(|cookie| cookie.value.is_none())
    {
        return false;
    }
    let mut changed = false;
    for attribute in &mut attributes[1..] {
        let Some(value) = &attribute.value else {
            continue;
        };
        let new = if attribute.name.eq_ignore_ascii_case(b"domain") {
            rules::map_domain(request, &conf.cookie_domains, value)
        } else if attribute.name.eq_ignore_ascii_case(b"path") {
            rules::map_path(request, &conf.cookie_paths, value)
        } else {
            None
        };
        if let Some(new) = new {
            attribute.value = Some(new.into());
            changed = true;
        }
    }
    let name = attributes[0].name.clone();
    for flag in rules::flags_of(request, &conf.cookie_flags, &name) {
        changed |= apply(&flag.to_ascii_lowercase(), &mut attributes);
    }
    if changed {
        write(&attributes, out);
    }
    changed
}

fn parse(text: &[u8]) -> Attribute {
    let blank = |c: char| c == ' ';
    match text.split_once_str(b"=") {
        Some((name, value)) => Attribute {
            name: name.trim_with(blank).into(),
            value: Some(value.trim_with(blank).into()),
        },
        None => Attribute {
            name: text.trim_with(blank).into(),
            value: None,
        },
    }
}

/// Applies one flag. `false`: there is no such flag.
fn apply(flag: &[u8], attributes: &mut Vec<Attribute>) -> bool {
    let (name, value): (&[u8], Option<&[u8]>) = match flag {
        b"secure" => (b"Secure", None),
        b"httponly" => (b"HttpOnly", None),
        b"samesite=strict" => (b"SameSite", Some(b"Strict")),
        b"samesite=lax" => (b"SameSite", Some(b"Lax")),
        b"samesite=none" => (b"SameSite", Some(b"None")),
        b"nosecure" => return remove(attributes, b"secure"),
        b"nohttponly" => return remove(attributes, b"httponly"),
        b"nosamesite" => return remove(attributes, b"samesite"),
        _ => return false,
    };
    match attributes[1..]
        .iter_mut()
        .find(|known| known.name.eq_ignore_ascii_case(name))
    {
        None => attributes.push(Attribute {
            name: name.into(),
            value: value.map(<[u8]>::to_vec),
        }),
        Some(known) => {
            let same = known
                .value
                .as_deref()
                .unwrap_or_default()
                .eq_ignore_ascii_case(value.unwrap_or_default());
            if value.is_some() && !same {
                known.name = name.into();
                known.value = value.map(<[u8]>::to_vec);
            }
        }
    }
    true
}

fn remove(attributes: &mut Vec<Attribute>, name: &[u8]) -> bool {
    let mut first = true;
    attributes.retain(|known| std::mem::take(&mut first) || !known.name.eq_ignore_ascii_case(name));
    true
}

fn write(attributes: &[Attribute], out: &mut Vec<u8>) {
    for (index, attribute) in attributes.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(&attribute.name);
        if let Some(value) = &attribute.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}
