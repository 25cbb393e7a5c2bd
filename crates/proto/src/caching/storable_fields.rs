//! Which fields of a response are stored (RFC 9111, section 3.1).

use crate::cache_control::directives;
use crate::fields::Fields;
use crate::known_fields::KnownField;

/// The fields that are about one connection or about the next proxy only.
const OF_CONNECTION: &[KnownField] = &[
    KnownField::Connection,
    KnownField::KeepAlive,
    KnownField::ProxyConnection,
    KnownField::ProxyAuthenticate,
    KnownField::ProxyAuthorization,
    KnownField::Te,
    KnownField::Trailer,
    KnownField::TransferEncoding,
    KnownField::Upgrade,
];

fn is_of_connection(known: KnownField, name: &[u8]) -> bool {
    OF_CONNECTION.contains(&known) || name.eq_ignore_ascii_case(b"Proxy-Authentication-Info")
}

/// The fields of a response that are stored: without those of the connection, those that
/// `Connection` names, and those that `no-cache="…"` or `private="…"` name. The last must not be
/// sent to anyone before the origin has been asked, and a shared cache that leaves them out need
/// not ask at every hit.
pub fn storable_fields(response: &Fields) -> Fields {
    let mut kept = response.clone();
    kept.retain(|known, name, _| !is_of_connection(known, name) && !is_reserved(response, name));
    kept
}

/// Whether a list in `Connection`, `no-cache` or `private` names the field.
fn is_reserved(response: &Fields, name: &[u8]) -> bool {
    response
        .all_known(KnownField::Connection)
        .any(|value| names(value, name))
        || response
            .all_known(KnownField::CacheControl)
            .any(|value| is_listed(value, name))
}

fn is_listed(cache_control: &[u8], name: &[u8]) -> bool {
    directives(cache_control).any(|(directive, argument)| {
        let is_list = directive.eq_ignore_ascii_case(b"no-cache")
            || directive.eq_ignore_ascii_case(b"private");
        is_list && argument.is_some_and(|list| names(unquoted(list), name))
    })
}

fn unquoted(argument: &[u8]) -> &[u8] {
    let argument = argument.strip_prefix(b"\"").unwrap_or(argument);
    argument.strip_suffix(b"\"").unwrap_or(argument)
}

fn names(value: &[u8], name: &[u8]) -> bool {
    value
        .split(|&b| b == b',')
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(fields: &[(&str, &str)]) -> String {
        let mut response = Fields::new();
        for (name, value) in fields {
            response.push(name.as_bytes(), value.as_bytes());
        }
        let kept = storable_fields(&response);
        let names: Vec<String> = kept
            .iter()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
            .collect();
        names.join(" ")
    }

    #[test]
    fn what_belongs_to_a_connection_stays_out() {
        assert_eq!(
            kept(&[
                ("Connection", "a, B"),
                ("a", "1"),
                ("b", "2"),
                ("c", "3"),
                ("Proxy-Authentication-Info", "x"),
                ("Keep-Alive", "timeout=5"),
                ("Upgrade", "h2c"),
            ]),
            "c"
        );
    }

    #[test]
    fn what_is_private_stays_out() {
        let fields = [
            ("Cache-Control", "max-age=5, private=\"set-cookie, X-User\""),
            ("Cache-Control", "no-cache=Token"),
            ("Set-Cookie", "a"),
            ("x-user", "b"),
            ("token", "c"),
            ("Etag", "\"d\""),
        ];
        assert_eq!(kept(&fields), "Cache-Control Cache-Control Etag");
        assert_eq!(
            kept(&[("Cache-Control", "no-cache, private"), ("a", "1")]),
            "Cache-Control a"
        );
    }
}
