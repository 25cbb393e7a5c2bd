//! Rewrites the attributes of a `Set-Cookie` field (RFC 6265, section 4.1).

use bstr::ByteSlice;
use http::Request;

use super::{Conf, rules};

/// An attribute, or the cookie itself: a name and what follows the `=`.
struct CookieAttribute {
    name: Vec<u8>,
    /// `None` for attributes such as `Secure`.
    value: Option<Vec<u8>>,
}

/// Appends the rewritten field. `false`: it stays unchanged.
pub(super) fn map_cookie(
    request: &mut Request,
    conf: &Conf,
    field: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    // The usual case costs no parsing.
    if conf.cookie_domains.is_empty()
        && conf.cookie_paths.is_empty()
        && conf.cookie_flags.is_empty()
    {
        return false;
    }
    let mut attributes: Vec<CookieAttribute> = field.split_str(b";").map(parse).collect();
    if attributes
        .first()
        // Without a value it is not a cookie; leave it alone.
        .is_none_or(|cookie| cookie.value.is_none())
    {
        return false;
    }
    let mut changed = false;
    // The first is the cookie itself, which may be called `path`.
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
    // Flags are chosen by the name of the cookie.
    let name = attributes[0].name.clone();
    for flag in rules::flags_for_cookie(request, &conf.cookie_flags, &name) {
        changed |= apply_flag(&flag.to_ascii_lowercase(), &mut attributes);
    }
    if changed {
        // Written anew only if something has changed; otherwise the server's own spelling goes to
        // the client.
        write(&attributes, out);
    }
    changed
}

/// Parses an attribute. Only spaces are trimmed.
fn parse(text: &[u8]) -> CookieAttribute {
    // Other white space is part of the value.
    let blank = |c: char| c == ' ';
    match text.split_once_str(b"=") {
        Some((name, value)) => CookieAttribute {
            name: name.trim_with(blank).into(),
            value: Some(value.trim_with(blank).into()),
        },
        None => CookieAttribute {
            name: text.trim_with(blank).into(),
            value: None,
        },
    }
}

/// Applies one flag. `false`: an unknown flag, which variables can produce.
fn apply_flag(flag: &[u8], attributes: &mut Vec<CookieAttribute>) -> bool {
    // nginx's words, in lower case.
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
        None => attributes.push(CookieAttribute {
            name: name.into(),
            value: value.map(<[u8]>::to_vec),
        }),
        // The server has set it already; only a different value is replaced.
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

/// Removes attributes by name. The first element is the cookie itself, which can have any name.
fn remove(attributes: &mut Vec<CookieAttribute>, name: &[u8]) -> bool {
    let mut first = true;
    attributes.retain(|known| std::mem::take(&mut first) || !known.name.eq_ignore_ascii_case(name));
    true
}

/// Appends all attributes.
fn write(attributes: &[CookieAttribute], out: &mut Vec<u8>) {
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
