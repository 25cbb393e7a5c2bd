//! Items of a separated list in a field value. They are found as nginx finds cookies and the
//! directives of Cache-Control: by name, in any case, and without regard to quotes.

/// The value of the first item `name = value` in a list. Spaces around `=` are skipped; the value
/// extends to the separator and keeps trailing spaces.
pub fn value_of<'a>(list: &'a [u8], separator: u8, name: &[u8]) -> Option<&'a [u8]> {
    items(list, separator).find_map(|item| {
        let rest = trim_start(strip_name(item, name)?);
        rest.strip_prefix(b"=").map(trim_start)
    })
}

/// Whether a list contains the item `name`, without a value.
pub fn has(list: &[u8], separator: u8, name: &[u8]) -> bool {
    items(list, separator)
        .any(|item| strip_name(item, name).is_some_and(|rest| trim_start(rest).is_empty()))
}

fn items(list: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    list.split(move |&b| b == separator).map(trim_start)
}

fn trim_start(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|&&b| b == b' ').count()..]
}

fn strip_name<'a>(item: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = item.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_their_whole_name() {
        let list = b"a=1; bb = 2 ;b=3;c; B=4;d";
        let look = |name: &str| value_of(list, b';', name.as_bytes()).map(String::from_utf8_lossy);
        assert_eq!(look("a").as_deref(), Some("1"));
        assert_eq!(look("BB").as_deref(), Some("2 "));
        assert_eq!(look("b").as_deref(), Some("3"));
        assert_eq!(look("c"), None);
        assert_eq!(look("e"), None);
        assert!(has(list, b';', b"C") && has(list, b';', b"d") && !has(list, b';', b"a"));
        assert!(
            !has(b"no-cache=x, private2", b',', b"private")
                && has(b"x,  Private ", b',', b"private")
        );
        assert_eq!(value_of(b"", b';', b"a"), None);
        assert_eq!(value_of(b"a=", b';', b"a"), Some(&b""[..]));
    }
}
