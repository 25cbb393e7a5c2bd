//! Request methods: the ones nginx knows by name, and all others.

/// A request method (RFC 9110 section 9). The text of [`Method::Other`] is in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `MKCOL` (RFC 4918)
    Mkcol,
    /// `COPY` (RFC 4918)
    Copy,
    /// `MOVE` (RFC 4918)
    Move,
    /// `OPTIONS`
    Options,
    /// `PROPFIND` (RFC 4918)
    Propfind,
    /// `PROPPATCH` (RFC 4918)
    Proppatch,
    /// `LOCK` (RFC 4918)
    Lock,
    /// `UNLOCK` (RFC 4918)
    Unlock,
    /// `PATCH` (RFC 5789)
    Patch,
    /// `TRACE`
    Trace,
    /// `CONNECT`
    Connect,
    /// Any other token.
    Other,
}

/// Every method with a name of its own, in the order of the variants.
const NAMED: [(Method, &str); 16] = [
    (Method::Get, "GET"),
    (Method::Head, "HEAD"),
    (Method::Post, "POST"),
    (Method::Put, "PUT"),
    (Method::Delete, "DELETE"),
    (Method::Mkcol, "MKCOL"),
    (Method::Copy, "COPY"),
    (Method::Move, "MOVE"),
    (Method::Options, "OPTIONS"),
    (Method::Propfind, "PROPFIND"),
    (Method::Proppatch, "PROPPATCH"),
    (Method::Lock, "LOCK"),
    (Method::Unlock, "UNLOCK"),
    (Method::Patch, "PATCH"),
    (Method::Trace, "TRACE"),
    (Method::Connect, "CONNECT"),
];

impl Method {
    /// The method that `text` spells. Methods are case-sensitive.
    #[inline]
    pub fn from_bytes(text: &[u8]) -> Method {
        if text == b"GET" {
            return Method::Get;
        }
        NAMED
            .iter()
            .find(|(_, name)| name.as_bytes() == text)
            .map_or(Method::Other, |(method, _)| *method)
    }

    /// The name; empty for [`Method::Other`].
    pub fn name(self) -> &'static str {
        NAMED.get(self as usize).map_or("", |(_, name)| name)
    }

    /// A bit of its own for each method, for sets such as `limit_except`'s.
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Whether a response to this method has a body at all (RFC 9110 section 6.4.1).
    pub fn is_head(self) -> bool {
        self == Method::Head
    }

    /// Whether the method only reads (RFC 9110 section 9.2.1).
    pub fn is_safe(self) -> bool {
        matches!(
            self,
            Method::Get | Method::Head | Method::Options | Method::Trace | Method::Propfind
        )
    }

    /// Whether sending the request twice is harmless, so that a failed one may go to another
    /// server. nginx's list for `proxy_next_upstream`: all but POST, LOCK and PATCH.
    pub fn is_idempotent(self) -> bool {
        !matches!(self, Method::Post | Method::Lock | Method::Patch)
    }
}

/// The letters nginx accepts in a method: upper case, `_` and `-`. RFC 9110 allows any token;
/// narrower is safer here and what users of nginx have.
pub(crate) fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_variants_agree() {
        for (i, (method, name)) in NAMED.into_iter().enumerate() {
            assert_eq!(method as usize, i);
            assert_eq!(Method::from_bytes(name.as_bytes()), method);
            assert_eq!(
                Method::from_bytes(name.to_ascii_lowercase().as_bytes()),
                Method::Other
            );
            assert_eq!(method.name(), name);
        }
        assert_eq!(Method::from_bytes(b""), Method::Other);
        assert_eq!(Method::Other.name(), "");
        assert!(Method::Put.is_idempotent() && !Method::Patch.is_idempotent());
    }
}
