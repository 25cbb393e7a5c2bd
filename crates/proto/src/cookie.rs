//! Cookies of a request, for `$cookie_NAME`.

use crate::fields::Fields;
use crate::known_fields::KnownField;
use crate::list;

/// The value of the first cookie with this name, in any Cookie field. As in nginx the case of the
/// name does not matter.
pub fn find<'a>(fields: &'a Fields, name: &[u8]) -> Option<&'a [u8]> {
    fields
        .all_known(KnownField::Cookie)
        .find_map(|value| list::value_of(value, b';', name))
}

/// The value that a Set-Cookie field sets, if the cookie has this name.
pub fn set_cookie_value<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let pair = value.split(|&b| b == b';').next()?;
    list::value_of(pair, b';', name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cookie_of_that_name_wins() {
        let mut fields = Fields::new();
        fields.push(b"Cookie", b"ab=1; a=2;c=x=y");
        fields.push(b"cookie", b"a=3; d=4");
        assert_eq!(find(&fields, b"a"), Some(&b"2"[..]));
        assert_eq!(find(&fields, b"C"), Some(&b"x=y"[..]));
        assert_eq!(find(&fields, b"d"), Some(&b"4"[..]));
        assert_eq!(find(&fields, b"b"), None);
        assert_eq!(
            set_cookie_value(b"sid = 1; Path=/", b"sid"),
            Some(&b"1"[..])
        );
        assert_eq!(set_cookie_value(b"sid=1; Path=/", b"path"), None);
    }
}
