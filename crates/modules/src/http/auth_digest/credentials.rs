//! What a client sends with digest authentication, and the digests that are computed from it (RFC 7616).
//!
//! No I/O and no clock.

use bstr::{BStr, BString, ByteSlice};
use md5::{Digest, Md5};

/// The digest of name, realm and password, as the password file has it: 32 hexadecimal digits in lower case.
pub(super) type SecretDigest = [u8; 32];

/// The parameters of a field `Authorization: Digest …`. All are required here: those without `qop`, which RFC 2069
/// allowed, could be replayed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DigestCredentials {
    pub(super) username: BString,
    pub(super) realm: BString,
    pub(super) nonce: BString,
    pub(super) uri: BString,
    pub(super) response: BString,
    pub(super) cnonce: BString,
    /// The number of the request with this nonce, as sent: eight hexadecimal digits.
    pub(super) nc: BString,
}

impl DigestCredentials {
    /// Parses a field; `None` if it is of another scheme, malformed or incomplete, or wants another digest than MD5
    /// or another protection than `auth`.
    pub(super) fn parse(field: &[u8]) -> Option<DigestCredentials> {
        let (scheme, mut rest) = field.split_once_str(b" ")?;
        if !scheme.eq_ignore_ascii_case(b"Digest") {
            return None;
        }
        let mut found = DigestCredentials::default();
        let mut protection = BString::default();
        let mut algorithm = BString::from("MD5");
        let mut ignored = BString::default();
        while let Some((name, value)) = next_parameter(&mut rest)? {
            let place = match name.to_ascii_lowercase().as_slice() {
                b"username" => &mut found.username,
                b"realm" => &mut found.realm,
                b"nonce" => &mut found.nonce,
                b"uri" => &mut found.uri,
                b"response" => &mut found.response,
                b"cnonce" => &mut found.cnonce,
                b"nc" => &mut found.nc,
                b"qop" => &mut protection,
                b"algorithm" => &mut algorithm,
                _ => &mut ignored,
            };
            *place = value;
        }
        let required = [
            &found.username,
            &found.realm,
            &found.nonce,
            &found.uri,
            &found.response,
            &found.cnonce,
        ];
        let complete = required.iter().all(|value| !value.is_empty())
            && found.nc.len() == 8
            && protection.eq_ignore_ascii_case(b"auth")
            && algorithm.eq_ignore_ascii_case(b"MD5");
        complete.then_some(found)
    }

    /// The number of the request with its nonce.
    pub(super) fn count(&self) -> Option<u32> {
        u32::from_str_radix(self.nc.to_str().ok()?, 16).ok()
    }

    /// Whether the digest was made for this target. Some clients (.NET's) leave the query out; nothing else may differ,
    /// so that a digest for one resource does not open another.
    pub(super) fn is_for(&self, target: &[u8]) -> bool {
        match target.strip_prefix(self.uri.as_slice()) {
            Some(rest) => rest.is_empty() || (rest.starts_with(b"?") && !self.uri.contains(&b'?')),
            None => false,
        }
    }

    /// The digest that a client who knows the password sends (RFC 7616, section 3.4.1).
    pub(super) fn expected(&self, secret: &SecretDigest, method: &[u8]) -> SecretDigest {
        self.combined(secret, &hex_digest(&[method, b":", &self.uri]))
    }

    /// The digest by which the client knows that the server knows the password, too: `rspauth`.
    pub(super) fn server_proof(&self, secret: &SecretDigest) -> SecretDigest {
        self.combined(secret, &hex_digest(&[b":", &self.uri]))
    }

    fn combined(&self, secret: &SecretDigest, subject: &SecretDigest) -> SecretDigest {
        let (nonce, nc, cnonce) = (&self.nonce, &self.nc, &self.cnonce);
        hex_digest(&[
            secret, b":", nonce, b":", nc, b":", cnonce, b":auth:", subject,
        ])
    }
}

/// The next `name=value` of a list; `Some(None)` at its end, `None` if it is malformed.
fn next_parameter<'a>(rest: &mut &'a [u8]) -> Option<Option<(&'a BStr, BString)>> {
    *rest = rest.trim_start_with(|sign| matches!(sign, ' ' | '\t' | ','));
    if rest.is_empty() {
        return Some(None);
    }
    let (name, after) = rest.split_once_str(b"=")?;
    let name = name.trim_end().as_bstr();
    let after = after.trim_start();
    let value = match after.strip_prefix(b"\"") {
        Some(quoted) => {
            let (value, after) = unquote(quoted)?;
            *rest = after;
            value
        }
        None => {
            let end = after.find_byteset(b", \t").unwrap_or(after.len());
            *rest = &after[end..];
            after[..end].into()
        }
    };
    Some(Some((name, value)))
}

/// The text up to the closing quotation mark, and what follows it.
fn unquote(text: &[u8]) -> Option<(BString, &[u8])> {
    let mut value = BString::default();
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some((value, &text[at + 1..])),
            b'\\' => {
                value.push(*text.get(at + 1)?);
                at += 2;
            }
            byte => {
                value.push(*byte);
                at += 1;
            }
        }
    }
}

/// The MD5 of these parts in hexadecimal digits.
fn hex_digest(parts: &[&[u8]]) -> SecretDigest {
    let mut digest = Md5::new();
    parts.iter().for_each(|part| digest.update(part));
    let mut text = Vec::with_capacity(32);
    base::text::write_hex(&digest.finalize(), &mut text);
    let mut out = [0; 32];
    out.copy_from_slice(&text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 2617, section 3.5, whose password is "Circle Of Life".
    const EXAMPLE: &[u8] = b"Digest username=\"Mufasa\", realm=\"testrealm@host.com\", \
        nonce=\"dcd98b7102dd2f0e8b11d0f600bfb0c093\", uri=\"/dir/index.html\", qop=auth, nc=00000001, \
        cnonce=\"0a4f113b\", response=\"6629fae49393a05397450978507c4ef1\", opaque=\"5ccc069c403ebaf9f0171e9517f40e41\"";

    #[test]
    fn the_example_of_the_rfc_is_computed() {
        let credentials = DigestCredentials::parse(EXAMPLE).expect("it is complete");
        let secret = hex_digest(&[b"Mufasa:testrealm@host.com:Circle Of Life"]);
        assert_eq!(
            credentials.expected(&secret, b"GET")[..],
            *credentials.response
        );
        assert_ne!(
            credentials.expected(&secret, b"PUT")[..],
            *credentials.response
        );
        assert_eq!(credentials.count(), Some(1));
        assert_ne!(credentials.server_proof(&secret)[..], *credentials.response);
    }

    #[test]
    fn every_cut_and_every_missing_parameter_is_refused() {
        for end in 0..EXAMPLE.len() - 40 {
            // What is cut behind the last required parameter is complete, which the example's order rules out here.
            if DigestCredentials::parse(&EXAMPLE[..end]).is_some() {
                assert!(
                    EXAMPLE[..end].ends_with(b"\"") || EXAMPLE[..end].contains_str("response=\"")
                );
            }
        }
        let text = EXAMPLE.to_str().expect("it is ASCII");
        for name in [
            "username", "realm", "nonce", "uri", "qop", "nc", "cnonce", "response",
        ] {
            let without = text.replace(&format!("{name}="), "x=");
            assert_eq!(DigestCredentials::parse(without.as_bytes()), None, "{name}");
        }
        for (from, to) in [
            ("qop=auth", "qop=auth-int"),
            ("nc=00000001", "nc=1"),
            ("Digest", "Basic"),
        ] {
            let other = text.replace(from, to);
            assert_eq!(DigestCredentials::parse(other.as_bytes()), None, "{to}");
        }
    }

    #[test]
    fn quoted_values_may_have_commas_and_escapes() {
        let mut rest: &[u8] = b" a=\"x, \\\"y\\\\\" ,b = c,,d=\"\"";
        let mut seen = Vec::new();
        while let Some((name, value)) = next_parameter(&mut rest).expect("it is well-formed") {
            seen.push(format!("{name}={value}"));
        }
        assert_eq!(seen, ["a=x, \"y\\", "b=c", "d="]);
        assert_eq!(next_parameter(&mut &b"a=\"x\\"[..]), None);
        assert_eq!(next_parameter(&mut &b"a"[..]), None);
    }

    #[test]
    fn a_digest_is_for_one_target() {
        let credentials = |uri: &str| DigestCredentials {
            uri: uri.into(),
            ..DigestCredentials::default()
        };
        assert!(credentials("/a?b").is_for(b"/a?b") && credentials("/a").is_for(b"/a?b"));
        for (uri, target) in [
            ("/a", "/ab"),
            ("/a?b", "/a?bc"),
            ("/a?b", "/a?b?c"),
            ("/ab", "/a"),
        ] {
            assert!(
                !credentials(uri).is_for(target.as_bytes()),
                "{uri} {target}"
            );
        }
    }
}
