//! `secure_link`: signed links, which may expire.
//!
//! ```nginx
//! location /files/ {
//!     secure_link     $arg_md5,$arg_expires;
//!     secure_link_md5 "$secure_link_expires$uri$remote_addr secret";
//!     if ($secure_link = "")  { return 403; }
//!     if ($secure_link = "0") { return 410; }
//! }
//! ```
//!
//! `$secure_link` is `1` for a link whose hash is right, `0` if it has expired, and empty
//! otherwise. In the older form, `secure_link_secret word`, the hash is in the path,
//! `/prefix/hash/link`, and `$secure_link` is the link.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bstr::{BString, ByteSlice};
use conf::{
    BlockContext, Diagnostic, Directive, DirectiveTable, Expression, HTTP_SERVER_LOCATION, Setter,
    Variable,
};
use http::{HttpModule, Request};
use md5::{Digest, Md5};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "secure_link",
    doc: "Checks signed links.",
    location: &DIRECTIVES,
    variables: &[
        Variable::new(
            "secure_link",
            check_link,
            "The result of the check: `1` if the link is valid, `0` if it has expired, otherwise empty. With \
             `secure_link_secret`: the link itself if it is valid, otherwise empty.",
        ),
        Variable::new(
            "secure_link_expires",
            expires,
            "The expiry time of the link, as it appears in the link.",
        )
        .volatile(),
    ],
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "secure_link",
        syntax: "expression",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The hash in the link, in base64url, optionally followed by a comma and the expiry time in seconds since \
              the epoch.",
        set: Setter::OptionalValue(|c| &mut c.link),
    },
    Directive {
        name: "secure_link_md5",
        syntax: "expression",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The text whose MD5 hash the link must contain.",
        set: Setter::OptionalValue(|c| &mut c.text),
    },
    Directive {
        name: "secure_link_secret",
        syntax: "word",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The secret for the older form of links, `/prefix/hash/link`.",
        set: Setter::Text(|c| &mut c.secret),
    },
])
.finish_changed(drop_other_form);

#[derive(Clone, Debug, Default)]
struct Conf {
    link: Option<Expression>,
    text: Option<Expression>,
    /// Empty for none.
    secret: BString,
}

/// A block that uses one form does not inherit the other; using both in one block is an error.
fn drop_other_form(
    conf: &mut Conf,
    _: Option<&Conf>,
    block: &mut BlockContext,
) -> Result<(), Diagnostic> {
    let newer = block
        .seen_directive("secure_link")
        .or(block.seen_directive("secure_link_md5"));
    match (block.seen_directive("secure_link_secret"), newer) {
        (Some(_), Some(span)) => {
            let message = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
            return Err(Diagnostic::error(message, Some(span)));
        }
        (Some(_), None) => (conf.link, conf.text) = (None, None),
        (None, _) if conf.link.is_some() || conf.text.is_some() => conf.secret.clear(),
        (None, _) => {}
    }
    Ok(())
}

/// The expiry time of this request's link, as it was sent: for `$secure_link_expires`.
struct LinkExpiry(BString);

/// The length of 16 bytes, an MD5 digest, in padded base64.
const MAX_HASH: usize = 24;

/// Links are made by many programs: with or without padding, and with stray bits in the last
/// character. nginx accepts all of them.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// `$secure_link`.
fn check_link(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    if !conf.secret.is_empty() {
        return check_path_link(request, &conf.secret, out);
    }
    let (Some(link), Some(text)) = (&conf.link, &conf.text) else {
        return false;
    };
    let value = request.value(link);
    let (hash, time) = match value.split_once_str(",") {
        Some((hash, time)) => (hash, Some(time)),
        None => (value.as_slice(), None),
    };
    let expires = match time.map(base::text::decimal) {
        None => None,
        Some(Some(expires)) if expires > 0 => Some(expires),
        Some(_) => return false,
    };
    // Before the hash is checked: the text to hash usually contains `$secure_link_expires`.
    if let Some(time) = time {
        request.set_state(LinkExpiry(time.into()));
    }
    let Some(hash) = decode(hash) else {
        return false;
    };
    let text = request.value(text);
    if !constant_time_eq(&hash, &Md5::digest(text.as_slice())) {
        return false;
    }
    let is_over = expires.is_some_and(|expires| expires < now());
    out.push(if is_over { b'0' } else { b'1' });
    true
}

/// Seconds since 1970.
fn now() -> i64 {
    i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX)
}

/// Decodes a hash in base64url.
fn decode(hash: &[u8]) -> Option<Vec<u8>> {
    if hash.len() > MAX_HASH {
        return None;
    }
    // What follows the padding is ignored.
    let end = hash.find_byte(b'=').unwrap_or(hash.len());
    BASE64URL.decode(&hash[..end]).ok()
}

/// `$secure_link` for `secure_link_secret`: checks `/prefix/hash/link`. The target is taken as it
/// was sent, since the hash was computed over the link in the form that was handed out.
fn check_path_link(request: &mut Request, secret: &[u8], out: &mut Vec<u8>) -> bool {
    let target = request.head.wire.target();
    let mut parts = target.splitn(4, |&byte| byte == b'/');
    let (Some(_), Some(_), Some(hash), Some(link)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    if link.is_empty() || hash.len() != 32 {
        return false;
    }
    let digest = Md5::new()
        .chain_update(link)
        .chain_update(secret)
        .finalize();
    let mut wanted = Vec::with_capacity(32);
    base::text::write_hex(&digest, &mut wanted);
    if !constant_time_eq(&hash.to_ascii_lowercase(), &wanted) {
        return false;
    }
    out.extend_from_slice(link);
    true
}

/// Compares in constant time, so that a hash cannot be found out byte by byte.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .fold(0, |differs, (a, b)| differs | (a ^ b))
            == 0
}

/// `$secure_link_expires`.
fn expires(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(LinkExpiry(time)) = request.state() else {
        return false;
    };
    out.extend_from_slice(time);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_with_and_without_padding() {
        let plain = decode(b"Xr4ilOzQ4PCOq3aQ0qbuaQ==").expect("it is base64");
        assert_eq!(plain.len(), 16);
        assert_eq!(decode(b"Xr4ilOzQ4PCOq3aQ0qbuaQ"), Some(plain));
        assert!(decode(b"q-5vpkjBkRXXtkUMXiJVHA").is_some());
        assert_eq!(decode(b"q+5vpkjBkRXXtkUMXiJVHA"), None);
        assert_eq!(decode(b"q-5vpkjBkRXXtkUMXiJVHA-TOOLONG"), None);
        assert_eq!(decode(b"!"), None);
    }
}
