//! `sticky`: a client is bound to a server.
//!
//! There are three ways to the server's identifier: a cookie that contains it, a variable that contains it
//! (`route`), or a session whose server was remembered (`learn`).

use std::time::Duration;

use base::lru::Lru;
use bstr::{BStr, BString};
use conf::Expression;
use md5::{Digest, Md5};

/// The longest identifier of a server: an MD5 sum in hexadecimal. A configured route may not be longer.
pub const MAX_SERVER_ID: usize = 32;

/// The shared memory that nginx uses for one session: a `zone` of a given size holds as many sessions here as
/// there.
const SESSION_BYTES: u64 = 128;

/// The `sticky` directive.
#[derive(Clone, Debug)]
pub struct StickySettings {
    /// Where the identifier is looked for: the first of these that is not empty.
    pub lookup: Vec<Expression>,
    /// What is done with the response.
    pub method: StickyMethod,
}

/// How the client gets bound.
#[derive(Clone, Debug)]
pub enum StickyMethod {
    /// Each response sets a cookie with the server's identifier.
    Cookie(Box<CookieAttributes>),
    /// Not by us: the application sets the route.
    Route,
    /// The value is a session of the application; its server is remembered.
    Learn(StickyLearn),
}

/// The attributes of the cookie of `sticky cookie`.
#[derive(Clone, Debug, Default)]
pub struct CookieAttributes {
    /// Its name.
    pub name: BString,
    /// `domain=`.
    pub domain: Option<Expression>,
    /// `path=`.
    pub path: Option<BString>,
    /// `expires=`; `Duration::MAX` for `max`.
    pub expires: Option<Duration>,
    /// `httponly`.
    pub http_only: bool,
    /// `secure`.
    pub secure: bool,
    /// `samesite=`.
    pub same_site: Option<Expression>,
}

impl CookieAttributes {
    /// The value of `Set-Cookie`. `domain` and `same_site` are the evaluated expressions, `expires` is the date
    /// that is `self.expires` from now, formatted for cookies.
    pub fn text(&self, sid: &BStr, domain: &[u8], same_site: &[u8], expires: &[u8]) -> Vec<u8> {
        let mut out = [&self.name[..], b"=", sid].concat();
        match self.expires {
            Some(Duration::MAX) => {
                out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000");
            }
            Some(age) => {
                out.extend_from_slice(b"; expires=");
                out.extend_from_slice(expires);
                out.extend_from_slice(format!("; max-age={}", age.as_secs()).as_bytes());
            }
            None => {}
        }
        if !domain.is_empty() {
            out.extend_from_slice(b"; domain=");
            out.extend_from_slice(domain);
        }
        if self.http_only {
            out.extend_from_slice(b"; httponly");
        }
        if self.secure {
            out.extend_from_slice(b"; secure");
        }
        if !same_site.is_empty() {
            out.extend_from_slice(b"; samesite=");
            // Browsers ignore an unknown value and would fall back to `lax`: `strict` is the safe choice. Constants
            // were checked when the configuration was read.
            let known = self
                .same_site
                .as_ref()
                .is_some_and(|value| value.constant().is_some())
                || is_same_site(same_site);
            out.extend_from_slice(if known { same_site } else { b"strict" });
        }
        if let Some(path) = &self.path {
            out.extend_from_slice(b"; path=");
            out.extend_from_slice(path);
        }
        out
    }
}

/// Whether a text is a value of the cookie attribute `SameSite`.
pub fn is_same_site(text: &[u8]) -> bool {
    [&b"strict"[..], b"lax", b"none"]
        .iter()
        .any(|known| text.eq_ignore_ascii_case(known))
}

/// `sticky learn`.
#[derive(Clone, Debug)]
pub struct StickyLearn {
    /// Where a response's new session is looked for: the first of these that is not empty.
    pub create: Vec<Expression>,
    /// The name of the zone, unique among the groups.
    pub zone: BString,
    /// The size of the zone, which bounds the number of sessions.
    pub size: u64,
    /// How long an unused session is remembered.
    pub timeout: Duration,
    /// Whether to learn when the response header arrives (`header`) and not at the end of the response.
    pub after_head: bool,
}

/// The servers of remembered sessions.
///
/// The key is a digest of the session's name: clients choose the names, and long ones must not cost more memory.
#[derive(Debug)]
pub(crate) struct StickySessions {
    by_sum: Lru<[u8; 16], StickySession>,
    /// Milliseconds.
    timeout: i64,
}

#[derive(Debug)]
struct StickySession {
    sid: BString,
    used: i64,
}

impl StickySessions {
    pub(crate) fn new(size: u64, timeout: i64) -> StickySessions {
        let most = usize::try_from(size / SESSION_BYTES)
            .unwrap_or(usize::MAX)
            .max(1);
        StickySessions {
            by_sum: Lru::new(most),
            timeout,
        }
    }

    pub(crate) fn set_timeout(&mut self, timeout: i64) {
        self.timeout = timeout;
    }

    /// The server of a session.
    pub(crate) fn find(&mut self, session: &[u8], now: i64) -> Option<BString> {
        let known = self.by_sum.peek(&sum(session))?;
        (now - known.used < self.timeout).then(|| known.sid.clone())
    }

    /// Remembers the server of a session. An unknown session is added only if `create` says so: a client could
    /// otherwise fill the zone with made-up names.
    pub(crate) fn learn(&mut self, session: &[u8], create: CreateSession, sid: &BString, now: i64) {
        // Expired sessions are at the old end of the list. They go here, so that no timer is needed.
        while self
            .by_sum
            .oldest()
            .is_some_and(|(_, oldest)| now - oldest.used >= self.timeout)
        {
            self.by_sum.pop_oldest();
        }
        let sum = sum(session);
        if create == CreateSession::Yes || self.by_sum.peek(&sum).is_some() {
            self.by_sum.insert(
                sum,
                StickySession {
                    sid: sid.clone(),
                    used: now,
                },
            );
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_sum.len()
    }
}

/// Whether an unknown session is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateSession {
    Yes,
    No,
}

fn sum(text: &[u8]) -> [u8; 16] {
    Md5::digest(text).into()
}

/// The identifier of a server: its route, or the MD5 sum of its address in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerSid {
    Route(Box<[u8]>),
    Sum([u8; 16]),
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl ServerSid {
    pub(crate) fn new(route: &[u8], name: &[u8]) -> ServerSid {
        match route.is_empty() {
            true => ServerSid::Sum(sum(name)),
            false => ServerSid::Route(route.into()),
        }
    }

    pub(crate) fn to_text(&self) -> BString {
        match self {
            ServerSid::Route(route) => route.to_vec().into(),
            ServerSid::Sum(sum) => sum.iter().flat_map(digits).collect::<Vec<u8>>().into(),
        }
    }

    /// Whether it is written so.
    pub(crate) fn is_text(&self, text: &[u8]) -> bool {
        match self {
            ServerSid::Route(route) => **route == *text,
            ServerSid::Sum(sum) => {
                text.len() == 2 * sum.len() && sum.iter().flat_map(digits).eq(text.iter().copied())
            }
        }
    }
}

fn digits(byte: &u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_route_is_called_by_the_sum_of_its_address() {
        for (route, name, text) in [
            ("", "", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "127.0.0.1:8081", "a"),
        ] {
            let sid = ServerSid::new(route.as_bytes(), name.as_bytes());
            assert_eq!(sid.to_text(), text);
            assert!(sid.is_text(text.as_bytes()));
            assert!(
                !sid.is_text(&text.as_bytes()[1..])
                    && !sid.is_text(b"D41D8CD98F00B204E9800998ECF8427E")
            );
        }
        let sid = ServerSid::new(b"", b"127.0.0.1:8081").to_text();
        assert_eq!(sid.len(), MAX_SERVER_ID);
    }

    #[test]
    fn a_cookie_has_its_attributes_in_the_order_of_nginx() {
        let attributes = CookieAttributes {
            name: "c".into(),
            path: Some("/p".into()),
            expires: Some(Duration::MAX),
            http_only: true,
            secure: true,
            ..CookieAttributes::default()
        };
        assert_eq!(
            BStr::new(&attributes.text("id".into(), b"d", b"LAX", b"")),
            "c=id; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000; domain=d; httponly; secure; samesite=LAX; path=/p"
        );
        let plain = CookieAttributes {
            name: "c".into(),
            expires: Some(Duration::from_secs(5)),
            ..Default::default()
        };
        assert_eq!(
            BStr::new(&plain.text("id".into(), b"", b"bad", b"DATE")),
            "c=id; expires=DATE; max-age=5; samesite=strict"
        );
    }

    #[test]
    fn sessions_end_after_their_time_and_are_bounded() {
        let mut sessions = StickySessions::new(2 * SESSION_BYTES, 100);
        sessions.learn(b"a", CreateSession::No, &"x".into(), 0);
        assert_eq!(sessions.find(b"a", 0), None);
        sessions.learn(b"a", CreateSession::Yes, &"x".into(), 0);
        sessions.learn(b"a", CreateSession::No, &"y".into(), 50);
        assert_eq!(sessions.find(b"a", 149), Some("y".into()));
        assert_eq!(sessions.find(b"a", 150), None);
        for name in [b"b", b"c", b"d"] {
            sessions.learn(name, CreateSession::Yes, &"x".into(), 60);
        }
        assert_eq!(sessions.len(), 2);
    }
}
