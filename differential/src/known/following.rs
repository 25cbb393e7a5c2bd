//! What follows from a choice: a request more or less to a server behind changes what it answers to all that come later, since
//! its answers are a script.
//!
//! A rule here knows the exchange with which it begins: the first one for which only one side asked (or, where both asked for
//! each, for which they got different answers). In a cache, it must have the path of an exchange before it, or its own, of
//! which the rule tells. What differs before that exchange is another difference.

use super::Seen;
use super::evidence::{is_of_traffic, stores};
use super::exchange::{asked_at, value};
use crate::case::{Request, Step};
use crate::observe::{CONNECTION, LogLine};

/// A request of the conversation, and what each side logged of it.
pub(super) struct Exchange<'a> {
    /// What the client sent.
    pub(super) request: &'a Request,
    /// The lines of both logs.
    pub(super) lines: [&'a LogLine; 2],
}

impl Exchange<'_> {
    /// The value of a variable in nginx's line.
    pub(super) fn logged(&self, name: &str) -> &str {
        value(self.lines[0], name)
    }

    fn path(&self) -> &str {
        let target = &self.request.target;
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// True where only one side asked a server behind, or got another status from it.
    fn parts(&self, how: fn(&LogLine) -> &str) -> bool {
        let [oracle, weir] = self.lines;
        how(oracle) != how(weir)
    }
}

/// True when a difference follows from an exchange of this kind in a cache.
pub(super) fn follows(seen: &Seen<'_>, is_cause: impl Fn(&Exchange<'_>) -> bool) -> bool {
    let is_of_path =
        |exchange: &Exchange<'_>, first: &Exchange<'_>| exchange.path() == first.path();
    let is_one = |exchange: &Exchange<'_>, first: &Exchange<'_>| {
        is_of_path(exchange, first) && is_cause(exchange)
    };
    stores(seen) && is_begun(seen, is_one)
}

/// The same without a cache, where it is the servers behind that are in another state.
pub(super) fn follows_in_order(seen: &Seen<'_>, is_cause: impl Fn(&Exchange<'_>) -> bool) -> bool {
    is_begun(seen, |exchange, _| is_cause(exchange))
}

/// True when what a difference follows from begins behind such an exchange, which is given together with the first that differs.
fn is_begun(seen: &Seen<'_>, is_cause: impl Fn(&Exchange<'_>, &Exchange<'_>) -> bool) -> bool {
    let all = exchanges(seen);
    let is_asked = |line: &LogLine| match value(line, "upstream_status") {
        "" => "",
        _ => "asked",
    };
    let first = |how: fn(&LogLine) -> &str| {
        let mut all = all.iter();
        all.find(|(_, exchange)| exchange.parts(how))
    };
    let begun = first(is_asked)
        .or_else(|| first(|line| value(line, "upstream_status")))
        .or_else(|| first(|line| value(line, "upstream_addr")));
    let Some((begin, first)) = begun else {
        return false;
    };
    is_of_traffic(seen)
        && asked_at(seen).is_none_or(|at| at >= *begin)
        && all
            .iter()
            .take_while(|(at, _)| at <= begin)
            .any(|(_, exchange)| is_cause(exchange, first))
}

/// True when what is said of a stored response follows from one of this kind, which only one side has stored.
pub(super) fn tells_of_stored(seen: &Seen<'_>, is_cause: impl Fn(&Exchange<'_>) -> bool) -> bool {
    let is_word = seen.is("log: $upstream_cache_status") || seen.is("field X-Cache");
    let all = exchanges(seen);
    let own = asked_at(seen).and_then(|at| all.iter().find(|(of, _)| *of == at));
    stores(seen)
        && is_word
        && ["EXPIRED", "STALE", "UPDATING"].contains(&seen.difference.oracle.as_str())
        && seen.difference.weir == "MISS"
        && own.is_some_and(|(at, own)| {
            let mut before = all.iter().take_while(|(of, _)| of < at);
            before.any(|(_, exchange)| exchange.path() == own.path() && is_cause(exchange))
        })
}

/// True when a difference is one of an exchange of this kind itself.
pub(super) fn is_own(seen: &Seen<'_>, is_so: impl Fn(&Exchange<'_>) -> bool) -> bool {
    let at = asked_at(seen);
    let mut all = exchanges(seen).into_iter();
    all.any(|(own, exchange)| Some(own) == at && is_so(&exchange))
}

/// True when an exchange of the case is so, whichever the difference belongs to: what tells of a connection at its end belongs to none.
pub(super) fn any_exchange(seen: &Seen<'_>, is_so: impl Fn(&Exchange<'_>) -> bool) -> bool {
    exchanges(seen).iter().any(|(_, exchange)| is_so(exchange))
}

/// True when a difference belongs to an exchange of this kind, or to one behind it; or to none.
pub(super) fn is_behind(seen: &Seen<'_>, is_cause: impl Fn(&Exchange<'_>) -> bool) -> bool {
    let at = asked_at(seen).unwrap_or(usize::MAX);
    let mut all = exchanges(seen).into_iter();
    all.any(|(own, exchange)| own <= at && is_cause(&exchange))
}

/// The requests of which both sides logged a line, in the order of the conversation.
fn exchanges<'a>(seen: &Seen<'a>) -> Vec<(usize, Exchange<'a>)> {
    let Some([oracle, weir]) = seen.sides else {
        return Vec::new();
    };
    let requests = seen.case.talk.iter().filter_map(|step| match step {
        Step::Request {
            connection,
            request,
        } => Some((*connection, request)),
        _ => None,
    });
    let requests: Vec<(usize, &Request)> = requests.collect();
    let numbered = requests
        .iter()
        .enumerate()
        .map(|(at, (connection, request))| {
            let before = requests[..at].iter().filter(|(of, _)| of == connection);
            (at, *connection, before.count() + 1, *request)
        });
    let found = numbered.filter_map(|(at, connection, number, request)| {
        let (connection, number) = (connection.to_string(), number.to_string());
        let of = |log: &'a [LogLine]| {
            log.iter().find(|line| {
                value(line, CONNECTION) == connection
                    && value(line, "connection_requests") == number
            })
        };
        let lines = [of(&oracle.log)?, of(&weir.log)?];
        Some((at, Exchange { request, lines }))
    });
    found.collect()
}
