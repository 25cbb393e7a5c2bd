//! The contexts in which a directive is allowed.

/// A set of places. `SERVER` and `LOCATION` are http's; those of stream and mail have names of
/// their own, because a row may be allowed in one and not in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contexts(u32);

/// Each place with its bit and the name that messages and the reference use, in the order of
/// nesting.
const PLACES: [(Contexts, &str); 15] = [
    (MAIN, "main"),
    (EVENTS, "events"),
    (HTTP, "http"),
    (UPSTREAM, "upstream"),
    (CLUSTER, "cluster"),
    (SERVER, "server"),
    (SERVER_IF, "if in server"),
    (LOCATION, "location"),
    (LOCATION_IF, "if in location"),
    (LIMIT_EXCEPT, "limit_except"),
    (STREAM, "stream"),
    (STREAM_UPSTREAM, "stream upstream"),
    (STREAM_SERVER, "stream server"),
    (MAIL, "mail"),
    (MAIL_SERVER, "mail server"),
];

/// Outside every block.
pub const MAIN: Contexts = Contexts(1);
/// `events {}`.
pub const EVENTS: Contexts = Contexts(1 << 1);
/// `http {}`.
pub const HTTP: Contexts = Contexts(1 << 2);
/// `upstream NAME {}` in http.
pub const UPSTREAM: Contexts = Contexts(1 << 3);
/// `server {}` in http.
pub const SERVER: Contexts = Contexts(1 << 4);
/// `if (…) {}` in an http server.
pub const SERVER_IF: Contexts = Contexts(1 << 5);
/// `location … {}`.
pub const LOCATION: Contexts = Contexts(1 << 6);
/// `if (…) {}` in a location.
pub const LOCATION_IF: Contexts = Contexts(1 << 7);
/// `limit_except … {}`.
pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 8);
/// `stream {}`.
pub const STREAM: Contexts = Contexts(1 << 9);
/// `upstream NAME {}` in stream.
pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 10);
/// `server {}` in stream.
pub const STREAM_SERVER: Contexts = Contexts(1 << 11);
/// `mail {}`.
pub const MAIL: Contexts = Contexts(1 << 12);
/// `server {}` in mail.
pub const MAIL_SERVER: Contexts = Contexts(1 << 13);
/// `cluster NAME {}`.
pub const CLUSTER: Contexts = Contexts(1 << 14);

/// `http`, `server`: settings of a virtual server.
pub const HTTP_SERVER: Contexts = HTTP.or(SERVER);
/// `server`, `location`.
pub const SERVER_LOCATION: Contexts = SERVER.or(LOCATION);
/// `http`, `server`, `location`: settings that are inherited all the way down.
pub const HTTP_SERVER_LOCATION: Contexts = HTTP.or(SERVER).or(LOCATION);
/// `http`, `server`, `location`, `if in location`.
pub const HTTP_SERVER_LOCATION_IF: Contexts = HTTP_SERVER_LOCATION.or(LOCATION_IF);
/// `http`, `server`, `location`, `limit_except`: access control.
pub const HTTP_SERVER_LOCATION_EXCEPT: Contexts = HTTP_SERVER_LOCATION.or(LIMIT_EXCEPT);
/// `server`, `location` and `if` in both: rewriting.
pub const SERVER_LOCATION_IF: Contexts = SERVER.or(SERVER_IF).or(LOCATION).or(LOCATION_IF);
/// `location`, `if in location`.
pub const LOCATION_OR_IF: Contexts = LOCATION.or(LOCATION_IF);
/// `location`, `if in location`, `limit_except`: content handlers.
pub const LOCATION_IF_EXCEPT: Contexts = LOCATION.or(LOCATION_IF).or(LIMIT_EXCEPT);
/// `stream`, `server` in stream.
pub const STREAM_AND_SERVER: Contexts = STREAM.or(STREAM_SERVER);

impl Contexts {
    /// No place.
    pub const NONE: Contexts = Contexts(0);
    /// Every place.
    pub const ANY: Contexts = Contexts(u32::MAX);

    /// The places of both.
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// The places of this set that are not in `other`.
    pub const fn without(self, other: Contexts) -> Contexts {
        Contexts(self.0 & !other.0)
    }

    /// Whether every place of `other` is in this set.
    pub const fn contains(self, other: Contexts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a place is in both sets.
    pub const fn meets(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// The names of the places, from outside to inside.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        PLACES
            .iter()
            .filter(move |place| self.contains(place.0))
            .map(|place| place.1)
    }

    /// The names joined for a message: `http, server, location`.
    pub fn text(self) -> String {
        if self == Contexts::ANY {
            return "any block".to_owned();
        }
        self.names().collect::<Vec<_>>().join(", ")
    }

    /// The place of this name.
    pub fn named(name: &str) -> Option<Contexts> {
        PLACES
            .iter()
            .find(|place| place.1 == name)
            .map(|place| place.0)
    }
}
