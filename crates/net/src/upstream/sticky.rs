//! `sticky`: a client is bound to a server.
//!
//! There are three ways to the server's identifier: a cookie that contains it, a variable that contains it
//! (`route`), or a session whose server was remembered (`learn`).

use std::collections::HashMap;
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
    /// The name of the cluster whose members share the sessions.
    pub shared: Option<BString>,
}

/// The digest of the name of a session: that of clients, who choose the names, must not cost more memory if they are long.
pub type SessionSum = [u8; 16];

/// The most sessions that wait to be told to the other members. Further ones are told when they are used again.
const NEWS_MAX: usize = 65_536;

/// How often a session that is used is told within its time.
const TELLINGS: i64 = 4;

/// The servers of remembered sessions.
#[derive(Debug)]
pub(crate) struct StickySessions {
    by_sum: Lru<SessionSum, StickySession>,
    /// Milliseconds.
    timeout: i64,
    /// What the other members of a cluster are to be told; `None`: there are none.
    news: Option<HashMap<SessionSum, BString>>,
}

#[derive(Debug)]
struct StickySession {
    sid: BString,
    used: i64,
    /// When the other members were told of it.
    told: i64,
}

impl StickySessions {
    pub(crate) fn new(size: u64, timeout: i64) -> StickySessions {
        let most = usize::try_from(size / SESSION_BYTES)
            .unwrap_or(usize::MAX)
            .max(1);
        StickySessions {
            by_sum: Lru::new(most),
            timeout,
            news: None,
        }
    }

    /// Applies a configuration.
    pub(crate) fn configure(&mut self, timeout: i64, is_shared: bool) {
        self.timeout = timeout;
        match is_shared {
            true => _ = self.news.get_or_insert_default(),
            false => self.news = None,
        }
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
        let known = self.by_sum.peek(&sum);
        if known.is_none() && create == CreateSession::No {
            return;
        }
        // One that is used is told again before the others forget it.
        let is_told =
            |known: &StickySession| known.sid == *sid && now - known.told < self.timeout / TELLINGS;
        let mut told = known.filter(|known| is_told(known)).map(|known| known.told);
        if let (Some(news), None) = (&mut self.news, told)
            && news.len() < NEWS_MAX
        {
            news.insert(sum, sid.clone());
            told = Some(now);
        }
        let session = StickySession {
            sid: sid.clone(),
            used: now,
            told: told.unwrap_or(i64::MIN / 2),
        };
        self.by_sum.insert(sum, session);
    }

    /// Takes out some of what the other members are to be told.
    pub(crate) fn take_news(&mut self, most: usize) -> Vec<(SessionSum, BString)> {
        let Some(news) = &mut self.news else {
            return Vec::new();
        };
        let some: Vec<SessionSum> = news.keys().take(most).copied().collect();
        some.iter()
            .filter_map(|sum| news.remove_entry(sum))
            .collect()
    }

    /// They could not be told.
    pub(crate) fn put_news_back(&mut self, untold: Vec<(SessionSum, BString)>) {
        let Some(news) = &mut self.news else {
            return;
        };
        for (sum, sid) in untold {
            // A later one of the same session is the news.
            if news.len() < NEWS_MAX {
                news.entry(sum).or_insert(sid);
            }
        }
    }

    /// Another member, or this one, has told of a session that is valid for this number of milliseconds.
    pub(crate) fn learn_shared(&mut self, sum: SessionSum, sid: BString, left: i64, now: i64) {
        let session = StickySession {
            sid,
            used: now - self.timeout + left.clamp(0, self.timeout),
            told: now,
        };
        self.by_sum.insert(sum, session);
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

fn sum(text: &[u8]) -> SessionSum {
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

    #[test]
    fn members_are_told_of_a_session_until_they_know_it() {
        let mut sessions = StickySessions::new(64 * SESSION_BYTES, 100);
        sessions.learn(b"a", CreateSession::Yes, &"x".into(), 0);
        assert!(sessions.take_news(9).is_empty(), "there are no others");
        sessions.configure(100, true);
        sessions.learn(b"a", CreateSession::No, &"x".into(), 1);
        sessions.learn(b"a", CreateSession::No, &"x".into(), 2);
        let news = sessions.take_news(9);
        assert_eq!(news, [(sum(b"a"), "x".into())]);
        sessions.put_news_back(news);
        sessions.learn(b"a", CreateSession::Yes, &"y".into(), 3);
        assert_eq!(
            sessions.take_news(9),
            [(sum(b"a"), "y".into())],
            "it has moved"
        );
        sessions.learn(b"a", CreateSession::No, &"y".into(), 20);
        assert!(sessions.take_news(9).is_empty(), "they know it");
        sessions.learn(b"a", CreateSession::No, &"y".into(), 30);
        assert_eq!(sessions.take_news(9).len(), 1, "they would forget it");
        // Another member has a newer one.
        sessions.learn_shared(sum(b"a"), "z".into(), 60, 40);
        assert_eq!(sessions.find(b"a", 99), Some("z".into()));
        assert_eq!(sessions.find(b"a", 100), None);
        sessions.learn(b"b", CreateSession::No, &"x".into(), 50);
        assert!(
            sessions.take_news(9).is_empty(),
            "a name that a client has made up"
        );
    }
}
