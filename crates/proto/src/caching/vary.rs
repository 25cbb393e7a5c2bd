//! Vary: which stored variant answers a request (RFC 9111, section 4.1).

use crate::fields::Fields;
use crate::known_fields::KnownField;

/// The request fields that a response depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vary {
    /// None: the response answers every request.
    Nothing,
    /// Unknown: the response answers no other request. `*`, or too many names.
    Any,
    /// The names in lower case, sorted, without duplicates.
    Names(Vec<Box<[u8]>>),
}

/// The limits of what Vary may add to a stored header: the number of names, and their bytes.
const MOST_NAMES: usize = 32;
const MOST_BYTES: usize = 1024;

/// The dependence that all Vary fields of a response declare together.
pub fn of(response: &Fields) -> Vary {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    for value in response.all_known(KnownField::Vary) {
        for name in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            if name == b"*" {
                return Vary::Any;
            }
            if name.is_empty() {
                continue;
            }
            names.push(name.to_ascii_lowercase().into());
            if names.len() > MOST_NAMES {
                return Vary::Any;
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    match names.iter().map(|name| name.len()).sum::<usize>() {
        0 => Vary::Nothing,
        bytes if bytes > MOST_BYTES => Vary::Any,
        _ => Vary::Names(names),
    }
}

/// Stands for a field that a request does not have; no field has this value.
const ABSENT: &[u8] = b"\0";

/// The values of a request that select among variants, one per name, in a form that is equal for
/// equivalent values. Several lines are one list; whitespace around commas and empty items do not
/// matter, and for codings, languages, character sets and media types neither do order and case.
pub fn variant_key_values(names: &[Box<[u8]>], request: &Fields) -> Vec<Vec<u8>> {
    names.iter().map(|name| value_of(name, request)).collect()
}

fn value_of(name: &[u8], request: &Fields) -> Vec<u8> {
    if !request.all(name).any(|_| true) {
        return ABSENT.to_vec();
    }
    let lines = request.all(name);
    let items = lines.flat_map(items).filter(|item| !item.is_empty());
    if matches!(
        name,
        b"accept" | b"accept-charset" | b"accept-encoding" | b"accept-language"
    ) {
        return preferences(items);
    }
    items.collect::<Vec<_>>().join(&b","[..])
}

/// The items of a list. A comma within quotes does not separate.
fn items(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        let (item, after) = match end_of_item(text) {
            Some(comma) => (&text[..comma], Some(&text[comma + 1..])),
            None => (text, None),
        };
        rest = after;
        Some(item.trim_ascii())
    })
}

fn end_of_item(text: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    text.iter().position(|&byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' => return !is_quoted,
            _ => {}
        }
        false
    })
}

/// Normalises a list of preferences: lower case, without whitespace, sorted by weight and name. The
/// order of equal weights means nothing (RFC 9110, section 12.5).
fn preferences<'a>(items: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut items: Vec<(u16, Vec<u8>)> = items.map(preference).collect();
    items.sort_unstable_by(|(a_weight, a), (b_weight, b)| b_weight.cmp(a_weight).then(a.cmp(b)));
    items.dedup();
    let mut text = Vec::new();
    for (weight, name) in items {
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend_from_slice(&name);
        if weight != 1000 {
            text.extend_from_slice(format!(";q={weight}").as_bytes());
        }
    }
    text
}

/// The maximum number of languages with the highest weight: each means another lookup.
const MOST_LANGUAGES: usize = 4;

/// The languages that a request prefers to all others, in lower case; none if there are too many.
pub fn preferred_languages(request: &Fields) -> Vec<Vec<u8>> {
    let lines = request.all(b"accept-language");
    let items = lines.flat_map(items).filter(|item| !item.is_empty());
    let mut items: Vec<(u16, Vec<u8>)> = items.map(preference).collect();
    let best = items.iter().map(|(weight, _)| *weight).max().unwrap_or(0);
    items.retain(|(weight, name)| *weight == best && best > 0 && name != b"*");
    items.sort_unstable();
    items.dedup();
    if items.len() > MOST_LANGUAGES {
        return Vec::new();
    }
    items.into_iter().map(|(_, name)| name).collect()
}

/// The response's language in lower case, if it has one only and the request prefers it to all
/// others. Then it may be served to every request with that preference (RFC 9110, section 12.5.4).
pub fn variant_language(request: &Fields, response: &Fields) -> Option<Vec<u8>> {
    let mut values = response.all(b"content-language");
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let value = value.trim_ascii().to_ascii_lowercase();
    preferred_languages(request)
        .contains(&value)
        .then_some(value)
}

/// The selecting values for all requests that prefer this language.
pub fn select_by_language(names: &[Box<[u8]>], request: &Fields, language: &[u8]) -> Vec<Vec<u8>> {
    let names = names.iter().map(|name| &**name);
    let values = names.map(|name| match name {
        // No field contains a zero, so this cannot be mistaken for a client's value.
        b"accept-language" => [b"\0", language].concat(),
        name => value_of(name, request),
    });
    values.collect()
}

/// An item's weight in thousandths, and the rest of it. An invalid weight remains part of the name.
fn preference(item: &[u8]) -> (u16, Vec<u8>) {
    let mut weight = 1000;
    let mut name = Vec::new();
    for (index, part) in item.split(|&b| b == b';').enumerate() {
        let part: Vec<u8> = part
            .iter()
            .filter(|b| !b.is_ascii_whitespace())
            .map(u8::to_ascii_lowercase)
            .collect();
        if let Some(thousandths) = part.strip_prefix(b"q=").and_then(parse_weight) {
            weight = thousandths;
            continue;
        }
        if index > 0 {
            name.push(b';');
        }
        name.extend_from_slice(&part);
    }
    (weight, name)
}

/// Parses `0.5` as thousandths.
fn parse_weight(text: &[u8]) -> Option<u16> {
    let (whole, fraction) = match text.split_first()? {
        (whole @ (b'0' | b'1'), rest) => (u16::from(whole - b'0'), rest),
        _ => return None,
    };
    let digits = match fraction {
        [] => fraction,
        [b'.', digits @ ..] if digits.len() <= 3 => digits,
        _ => return None,
    };
    let mut thousandths = whole * 1000;
    for (digit, unit) in digits.iter().zip([100, 10, 1]) {
        thousandths += u16::from(digit.checked_sub(b'0').filter(|&digit| digit < 10)?) * unit;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in text {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    fn varies(values: &[&str]) -> Vary {
        let fields: Vec<_> = values.iter().map(|value| ("Vary", *value)).collect();
        of(&super::tests::fields(&fields))
    }

    fn names(list: &[&str]) -> Vary {
        Vary::Names(list.iter().map(|name| name.as_bytes().into()).collect())
    }

    #[test]
    fn names_are_read() {
        assert_eq!(varies(&[]), Vary::Nothing);
        assert_eq!(varies(&["", " , ,"]), Vary::Nothing);
        assert_eq!(varies(&[",, Foo , Bar", "foo"]), names(&["bar", "foo"]));
        for star in ["*", "*, *", ", *", "*, Foo", "Foo,*"] {
            assert_eq!(varies(&[star]), Vary::Any, "{star}");
        }
        assert_eq!(varies(&["", "*"]), Vary::Any);
        assert_eq!(varies(&["a,".repeat(32).as_str()]), names(&["a"]));
        assert_eq!(varies(&["a,".repeat(33).as_str()]), Vary::Any);
        assert_eq!(varies(&["a".repeat(1025).as_str()]), Vary::Any);
    }

    fn selected(name: &str, request: &[(&str, &str)]) -> String {
        let values = variant_key_values(&[name.as_bytes().into()], &fields(request));
        values.iter().map(|v| String::from_utf8_lossy(v)).collect()
    }

    #[test]
    fn values_of_one_meaning_are_one() {
        let foo = |values: &[&'static str]| {
            let request: Vec<_> = values.iter().map(|value| ("Foo", *value)).collect();
            selected("foo", &request)
        };
        assert_eq!(foo(&["1, 2"]), foo(&["1", "2"]));
        assert_eq!(foo(&["1,2"]), foo(&[" 1,, 2 ,"]));
        assert_ne!(foo(&["1,2"]), foo(&["2,1"]));
        assert_ne!(foo(&["1,2"]), foo(&["12"]));
        assert_ne!(foo(&[]), foo(&[""]));
        assert_ne!(foo(&["a b"]), foo(&["ab"]));
        assert_eq!(foo(&["\"a, b\" , c"]), "\"a, b\",c");
        assert_eq!(foo(&["\"a\\\", b\" , c"]), "\"a\\\", b\",c");
    }

    #[test]
    fn a_language_that_is_preferred_to_all_others_is_found() {
        let chosen = |accepted: &str, content: &str| {
            let request = fields(&[("Accept-Language", accepted)]);
            variant_language(&request, &fields(&[("Content-Language", content)]))
        };
        assert_eq!(chosen("en, de", "DE"), Some(b"de".to_vec()));
        assert_eq!(chosen("fr;q=0.5, de;q=1.0", "de"), Some(b"de".to_vec()));
        for (accepted, content) in [
            ("fr, de;q=0.5", "de"),
            ("de", "de, en"),
            ("*", "*"),
            ("de;q=0", "de"),
            ("", ""),
            ("a, b, c, d, e", "a"),
        ] {
            assert_eq!(chosen(accepted, content), None, "{accepted} {content}");
        }
        let names: [Box<[u8]>; 2] = [b"accept-language"[..].into(), b"foo"[..].into()];
        let request = fields(&[("Foo", "1, 2"), ("Accept-Language", "de")]);
        let by_language = select_by_language(&names, &request, b"de");
        assert_eq!(by_language, [b"\0de".to_vec(), b"1,2".to_vec()]);
        assert_ne!(by_language, variant_key_values(&names, &request));
    }

    #[test]
    fn preferences_are_ordered() {
        let language =
            |value: &'static str| selected("accept-language", &[("Accept-Language", value)]);
        assert_eq!(language("en, de"), language("De,eN"));
        assert_eq!(language(" en ,   de"), "de,en");
        assert_eq!(language("fr;q=0.5, de; q=1.0"), "de,fr;q=500");
        assert_ne!(language("fr;q=0.5, de"), language("de;q=0.5, fr"));
        assert_eq!(language("fr;q=2"), "fr;q=2");
        assert_eq!(language("fr;q=1.5"), "fr;q=1.5");
        assert_eq!(language("fr;q=0.x"), "fr;q=0.x");
        let coding =
            |value: &'static str| selected("accept-encoding", &[("Accept-Encoding", value)]);
        assert_eq!(coding("gzip, br"), coding("BR,gzip,gzip"));
        assert_eq!(coding("foo,,  ,bar , "), coding("foo, bar"));
        assert_ne!(coding("foobar"), coding("foo, bar"));
    }
}
