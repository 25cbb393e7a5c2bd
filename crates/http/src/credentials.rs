//! What must not be shown to those who watch requests: credentials in fields and in the arguments of URLs.
//!
//! A name decides, because a value cannot: a signature looks like a file's hash. The list is generous. What is blanked
//! without need costs a look into the access log; what is shown without need cannot be taken back.

use base::ByteSlice as _;

/// What stands in the place of a credential.
const BLANK: &[u8] = b"***";

/// Parts of names. Lower case.
const SECRET_PARTS: [&[u8]; 14] = [
    b"token",
    b"secret",
    b"passw",
    b"passphrase",
    b"credential",
    b"signature",
    b"apikey",
    b"api-key",
    b"api_key",
    b"session",
    b"cookie",
    b"authoriz",
    b"hmac",
    b"jwt",
];

/// Whole names of arguments, which are shorter than those of fields. Lower case.
const SECRET_ARGUMENTS: [&[u8]; 18] = [
    b"sig",
    b"sign",
    b"key",
    b"auth",
    b"pwd",
    b"pass",
    b"code",
    b"md5",
    b"hash",
    b"sid",
    b"st",
    b"policy",
    b"otp",
    b"pin",
    b"nonce",
    b"ticket",
    b"assertion",
    b"hdnea",
];

/// Whether a field of this name has a credential as its value.
pub(crate) fn is_secret_field(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    has_secret_part(&name) || matches!(name.as_slice(), b"x-auth" | b"x-auth-key")
}

fn has_secret_part(name: &[u8]) -> bool {
    SECRET_PARTS.iter().any(|part| name.contains_str(part))
}

fn is_secret_argument(name: &[u8]) -> bool {
    // `to%6ben` is the same name to the application.
    let name = decode(name).to_ascii_lowercase();
    has_secret_part(&name) || SECRET_ARGUMENTS.contains(&name.as_slice())
}

fn decode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits = (*byte == b'%').then(|| after.first_chunk::<2>()).flatten();
        let digit = |at: usize| digits.and_then(|two| char::from(two[at]).to_digit(16));
        match (digit(0), digit(1)) {
            (Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => out.push(*byte),
        }
    }
    out
}

/// Appends arguments (`a=1&b=2`) without the values of those that are credentials.
pub(crate) fn write_arguments(arguments: &[u8], out: &mut Vec<u8>) {
    for (index, argument) in arguments.split(|byte| *byte == b'&').enumerate() {
        if index > 0 {
            out.push(b'&');
        }
        match argument.split_once_str("=") {
            Some((name, value)) if !value.is_empty() && is_secret_argument(name) => {
                out.extend_from_slice(name);
                out.push(b'=');
                out.extend_from_slice(BLANK);
            }
            _ => out.extend_from_slice(argument),
        }
    }
}

/// Appends a text that is a URL, or has one in it, such as a request line: without a password before its host, and
/// without arguments that are credentials.
pub(crate) fn write_url(text: &[u8], out: &mut Vec<u8>) {
    let (text, arguments) = match text.split_once_str("?") {
        Some((text, arguments)) => (text, Some(arguments)),
        None => (text, None),
    };
    write_without_user(text, out);
    let Some(arguments) = arguments else { return };
    out.push(b'?');
    // In a request line the protocol follows.
    let end = arguments.find_byte(b' ').unwrap_or(arguments.len());
    let (arguments, rest) = arguments.split_at(end);
    write_arguments(arguments, out);
    out.extend_from_slice(rest);
}

fn write_without_user(text: &[u8], out: &mut Vec<u8>) {
    let Some(begin) = text.find("://").map(|at| at + 3) else {
        return out.extend_from_slice(text);
    };
    let authority = &text[begin..];
    let end = authority.find_byte(b'/').unwrap_or(authority.len());
    match authority[..end].rfind_byte(b'@') {
        Some(at) => {
            out.extend_from_slice(&text[..begin]);
            out.extend_from_slice(BLANK);
            out.extend_from_slice(&authority[at..]);
        }
        None => out.extend_from_slice(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_decide_what_is_a_credential() {
        for name in [
            "Authorization",
            "Proxy-Authorization",
            "cookie",
            "Set-Cookie",
            "X-Api-Key",
            "X-Auth-Token",
            "X-Amz-Security-Token",
        ] {
            assert!(is_secret_field(name.as_bytes()), "{name}");
        }
        for name in [
            "Host",
            "Accept",
            "User-Agent",
            "WWW-Authenticate",
            "X-Forwarded-For",
        ] {
            assert!(!is_secret_field(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn urls_lose_what_would_let_others_in() {
        for (url, shown) in [
            ("/a?b=1&c", "/a?b=1&c"),
            (
                "/?X-Amz-Signature=ab&X-Amz-Date=1",
                "/?X-Amz-Signature=***&X-Amz-Date=1",
            ),
            ("/?to%6Ben=ab&%", "/?to%6Ben=***&%"),
            ("/?sig=a%3d&key=&st=x", "/?sig=***&key=&st=***"),
            ("GET /?token=a?b HTTP/1.1", "GET /?token=*** HTTP/1.1"),
            ("http://u:p@h/x?a=1", "http://***@h/x?a=1"),
            ("https://h/@x", "https://h/@x"),
            ("/?access_token", "/?access_token"),
        ] {
            let mut out = Vec::new();
            write_url(url.as_bytes(), &mut out);
            assert_eq!(out.as_bstr(), shown);
        }
    }
}
