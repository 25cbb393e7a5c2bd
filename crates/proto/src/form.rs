//! Query arguments and form fields, `a=1&b=2`, for `$arg_NAME`.

/// The value of the first argument with this name, still escaped. As in nginx the case of the name
/// does not matter.
pub fn find<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    pairs(args).find_map(|(key, value)| {
        if key.eq_ignore_ascii_case(name) {
            value
        } else {
            None
        }
    })
}

/// All arguments in order, still escaped. Those without `=` have no value.
pub fn pairs(args: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    args.split(|&b| b == b'&')
        .map(|pair| match memchr::memchr(b'=', pair) {
            Some(at) => (&pair[..at], Some(&pair[at + 1..])),
            None => (pair, None),
        })
}

/// Appends `text` decoded: `%xx`, and `+` as a space.
pub fn decode(text: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    // `+` first: a decoded `%2B` must remain a plus.
    let spaced: Vec<u8> = text
        .iter()
        .map(|&b| if b == b'+' { b' ' } else { b })
        .collect();
    crate::uri::unescape(&spaced, out);
    debug_assert!(out.len() - start <= text.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_by_their_whole_name() {
        let args = b"aa=0&a&a=1&b=&=x&A=2&c=d=e&a=3";
        assert_eq!(find(args, b"a"), Some(&b"1"[..]));
        assert_eq!(find(args, b"B"), Some(&b""[..]));
        assert_eq!(find(args, b"c"), Some(&b"d=e"[..]));
        assert_eq!(find(args, b"d"), None);
        assert_eq!(find(b"", b"a"), None);
        assert_eq!(
            pairs(b"a&b=1").collect::<Vec<_>>(),
            [(&b"a"[..], None), (&b"b"[..], Some(&b"1"[..]))]
        );
    }

    #[test]
    fn forms_are_decoded() {
        let mut out = Vec::new();
        decode(b"a+b%2Bc%20d", &mut out);
        assert_eq!(out, b"a b+c d");
    }
}
