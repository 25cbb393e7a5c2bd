//! What rules ask of a case and of what both sides showed.

use std::collections::BTreeMap;

use super::{Seen, exchange};
use crate::case::tree::Node;
use crate::case::{Act, Body, Protocol, Step};
use crate::compare::DifferencePlace;
use crate::observe::LogLine;
use crate::side::client::Event;
use crate::side::reply::Response;

/// True when a pair of responses that the difference may belong to is so.
pub(super) fn any_pair(seen: &Seen<'_>, is_so: impl Fn(&Response, &Response) -> bool) -> bool {
    any_events(seen, |a, b| match (a, b) {
        (Event::Response(a), Event::Response(b)) => is_so(a, b),
        _ => false,
    })
}

/// True when a pair of events that the difference may belong to is so.
pub(super) fn any_events(seen: &Seen<'_>, is_so: impl Fn(&Event, &Event) -> bool) -> bool {
    exchange::pairs(seen).any(|(_, a, b)| is_so(a, b))
}

/// True when a pair of responses of the whole case is so, wherever the difference is.
pub(super) fn any_of_case(seen: &Seen<'_>, is_so: impl Fn(&Response, &Response) -> bool) -> bool {
    let Some([a, b]) = seen.sides else {
        return false;
    };
    let mut pairs = a.events.iter().zip(&b.events);
    pairs.any(|(a, b)| match (&a.1, &b.1) {
        (Event::Response(a), Event::Response(b)) => is_so(a, b),
        _ => false,
    })
}

/// True when a pair of what was read as it is begins so.
pub(super) fn any_bytes(seen: &Seen<'_>, is_so: impl Fn(&str, &str) -> bool) -> bool {
    any_events(seen, |a, b| match (a, b) {
        (Event::Bytes(a), Event::Bytes(b)) => {
            is_so(&String::from_utf8_lossy(a), &String::from_utf8_lossy(b))
        }
        _ => false,
    })
}

/// What each connection of the case sends as it is, in lower case: a head may come in pieces.
pub(super) fn sent(seen: &Seen<'_>) -> impl Iterator<Item = String> + use<> {
    let mut texts: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for step in &seen.case.talk {
        if let Step::Send { connection, bytes } = step {
            texts.entry(*connection).or_default().extend(bytes.bytes());
        }
    }
    let texts = texts.into_values();
    texts.map(|text| String::from_utf8_lossy(&text).to_ascii_lowercase())
}

/// True when a request of the case has its content in chunks.
pub(super) fn sends_chunks(seen: &Seen<'_>) -> bool {
    let has_one = seen.case.talk.iter().any(|step| {
        matches!(step, Step::Request { request, .. } if matches!(request.body, Body::Chunked(..)))
    });
    has_one || sent(seen).any(|text| text.contains("\r\ntransfer-encoding: chunked\r\n"))
}

/// True when a request of the case has one of these fields.
pub(super) fn has_field(seen: &Seen<'_>, names: &[&str]) -> bool {
    seen.case.talk.iter().any(|step| match step {
        Step::Request { request, .. } => request
            .fields
            .iter()
            .any(|(name, _)| names.contains(&name.as_str())),
        _ => false,
    })
}

/// True when a line of nginx's log has such a variable: that of the difference, where it is one of a line.
pub(super) fn logged(seen: &Seen<'_>, is_so: impl Fn(&str, &str) -> bool) -> bool {
    let Some([a, _]) = seen.sides else {
        return false;
    };
    let mut lines = a.log.iter().enumerate().filter(|(number, _)| {
        !matches!(seen.difference.place, DifferencePlace::Lines(own, _) if own != *number)
    });
    lines.any(|(_, line)| line.iter().any(|(name, value)| is_so(name, value)))
}

/// True when the difference is one of a line of the access log.
pub(super) fn is_of_line(seen: &Seen<'_>) -> bool {
    matches!(seen.difference.place, DifferencePlace::Lines(..))
}

/// True when a line of nginx's log has this value of a variable, and is so: it gets the values of the line by name.
pub(super) fn logged_with(
    seen: &Seen<'_>,
    variable: &str,
    value: &str,
    is_so: impl Fn(&dyn Fn(&str) -> String) -> bool,
) -> bool {
    let DifferencePlace::Lines(own, _) = seen.difference.place else {
        let all = seen.sides.map_or(&[][..], |[a, _]| a.log.as_slice());
        return all
            .iter()
            .any(|line| is_line_so(line, variable, value, &is_so));
    };
    exchange::line(seen, 0, own).is_some_and(|line| is_line_so(line, variable, value, &is_so))
}

fn is_line_so(
    line: &LogLine,
    variable: &str,
    value: &str,
    is_so: &impl Fn(&dyn Fn(&str) -> String) -> bool,
) -> bool {
    let of = |wanted: &str| exchange::value(line, wanted).to_owned();
    of(variable) == value && is_so(&of)
}

/// True when the difference is one of what was sent and logged, and not of a configuration or of files.
pub(super) fn is_of_traffic(seen: &Seen<'_>) -> bool {
    let classes = [
        "behind",
        "status ",
        "field ",
        "trailer ",
        "framing ",
        "body",
        "cut ",
        "event ",
        "log: ",
        "error log: ",
    ];
    classes.iter().any(|class| seen.is(class))
}

/// True when the servers behind were asked more often by one side.
pub(super) fn counts_differ(seen: &Seen<'_>) -> bool {
    seen.sides.is_some_and(|[a, b]| {
        let mut pairs = a.received.iter().zip(&b.received);
        pairs.any(|(a, b)| a.len() != b.len())
    })
}

/// True when one of the requests that nginx sent is so.
pub(super) fn asked(seen: &Seen<'_>, is_so: impl Fn(&str) -> bool) -> bool {
    seen.sides.is_some_and(|sides| {
        let all = sides[0].received.iter().flatten();
        let mut heads = all.map(|received| String::from_utf8_lossy(&received.head).into_owned());
        heads.any(|head| is_so(&head))
    })
}

/// True when nginx was given an answer of such a status to such a request.
pub(super) fn given(seen: &Seen<'_>, is_so: impl Fn(u16, &str) -> bool) -> bool {
    let Some([a, _]) = seen.sides else {
        return false;
    };
    let mut behind = a.received.iter().zip(&seen.case.upstreams);
    behind.any(|(received, upstream)| {
        let mut requests = received.iter().enumerate();
        requests.any(|(number, received)| {
            let answers = &upstream.answers;
            let answer = answers.get(number).or(answers.last());
            let status = answer.and_then(|acts| status_of(acts)).unwrap_or(200);
            is_so(status, &String::from_utf8_lossy(&received.head))
        })
    })
}

/// The status that an answer begins with.
fn status_of(acts: &[Act]) -> Option<u16> {
    let text = beginning(acts)?;
    let rest = text
        .strip_prefix("HTTP/1.1 ")
        .or(text.strip_prefix("HTTP/1.0 "))
        .or(text.strip_prefix("Status: "))?;
    rest.get(..3)?.parse().ok()
}

/// What an answer begins with.
fn beginning(acts: &[Act]) -> Option<String> {
    match acts.first()? {
        Act::Send(content) => Some(String::from_utf8_lossy(&content.bytes()).into_owned()),
        _ => None,
    }
}

/// True when an answer of a server that speaks HTTP, or plain bytes, begins so.
pub(super) fn answers(seen: &Seen<'_>, is_so: impl Fn(&str) -> bool) -> bool {
    let http = seen.case.upstreams.iter();
    let http = http.filter(|upstream| [Protocol::Http, Protocol::Tcp].contains(&upstream.protocol));
    let mut all = http.flat_map(|upstream| &upstream.answers);
    all.any(|acts| beginning(acts).is_some_and(|text| is_so(&text)))
}

/// True when an answer of a server behind, of any protocol, has such a beginning.
pub(super) fn said(seen: &Seen<'_>, is_so: impl Fn(&str) -> bool) -> bool {
    let mut all = seen.facts.said().iter();
    all.any(|texts| texts.iter().take(3).any(|text| is_so(text)))
}

/// True when the case has an error page for a 412 or a 416.
pub(super) fn replaces_conditions(seen: &Seen<'_>) -> bool {
    ["412", "416"]
        .iter()
        .any(|status| has_page_for(&seen.case.http, status))
}

/// True when a tree has an `error_page` for a status.
pub(super) fn has_page_for(nodes: &[Node], status: &str) -> bool {
    nodes.iter().any(|node| {
        let is_one = node.name() == "error_page" && node.words.iter().any(|word| word == status);
        is_one || has_page_for(node.children(), status)
    })
}

/// True when a head that a server behind received has a condition.
pub(super) fn is_conditional(head: &str) -> bool {
    let head = head.to_ascii_lowercase().replace('_', "-");
    head.contains("if-none-match: ") || head.contains("if-modified-since: ")
}

/// True where responses of servers behind are stored. `open_file_cache` is another thing.
pub(super) fn stores(seen: &Seen<'_>) -> bool {
    let names = ["proxy_cache", "fastcgi_cache", "uwsgi_cache", "scgi_cache"];
    names.iter().any(|name| seen.has(name))
}
