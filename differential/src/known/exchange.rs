//! What of a case belongs together: a request, the event that answers it, and the lines of the logs that tell of it.
//!
//! A rule explains one exchange. What else differs in the same case is another difference, which no rule may cover only
//! because it is near.

use super::Seen;
use crate::case::{Request, Step};
use crate::compare::DifferencePlace;
use crate::observe::{CONNECTION, LogLine};
use crate::side::client::Event;

/// The pairs of events that a difference may belong to. Of an event that tells of its connection (that it was closed, or
/// stays) it is also all that came before it there.
pub(super) fn pairs<'a>(seen: &Seen<'a>) -> impl Iterator<Item = (usize, &'a Event, &'a Event)> {
    let sides = seen.sides.map(|[a, b]| (a.events.iter(), b.events.iter()));
    let place = seen.difference.place;
    let seen = *seen;
    let all = sides.into_iter().flat_map(|(a, b)| a.zip(b)).enumerate();
    all.filter_map(move |(at, (a, b))| {
        let is_near = match place {
            DifferencePlace::Case | DifferencePlace::Behind(..) => true,
            DifferencePlace::Event(own) => {
                at == own
                    || is_same_response(&seen, at, own)
                    || (at < own && is_same_connection(&seen, at, own))
            }
            DifferencePlace::Lines(oracle, weir) => {
                is_told_by(&seen, at, &a.1, line(&seen, 0, oracle))
                    && is_told_by(&seen, at, &b.1, line(&seen, 1, weir))
            }
        };
        is_near.then_some((at, &a.1, &b.1))
    })
}

/// True when one step observed both: a response, and the reset of its stream.
fn is_same_response(seen: &Seen<'_>, at: usize, own: usize) -> bool {
    let tells_of_none = ["event ", "last stream"];
    tells_of_none.iter().any(|class| seen.is(class))
        && seen.sides.is_some_and(|[a, _]| {
            a.steps.get(at) == a.steps.get(own) && a.events[at].0 == a.events[own].0
        })
}

/// True when an event that tells of a connection is behind another one of it.
fn is_same_connection(seen: &Seen<'_>, at: usize, own: usize) -> bool {
    let tells_of_it = ["event ", "bytes", "last stream"];
    tells_of_it.iter().any(|class| seen.is(class))
        && seen
            .sides
            .is_some_and(|[a, _]| a.events[at].0 == a.events[own].0)
}

/// A line of the log of a side.
pub(super) fn line<'a>(seen: &Seen<'a>, side: usize, number: usize) -> Option<&'a LogLine> {
    seen.sides?[side].log.get(number)
}

/// The value of a variable in a line; nothing where it has none.
pub(super) fn value<'a>(line: &'a LogLine, name: &str) -> &'a str {
    let pair = line.iter().find(|(known, _)| known == name);
    pair.map_or("", |(_, value)| value)
}

/// True when a line of a side's log is that of a subrequest: the client's request has its line behind those.
pub(super) fn is_of_subrequest(seen: &Seen<'_>, side: usize, number: usize) -> bool {
    let Some(log) = seen.sides.map(|sides| &sides[side].log) else {
        return false;
    };
    let key = |line| (value(line, CONNECTION), value(line, "connection_requests"));
    let mut behind = log.iter().skip(number + 1);
    log.get(number)
        .is_some_and(|own| behind.any(|line| key(line) == key(own)))
}

/// True when a line may be that of an event: the connection and the number of the request on it are the same; or where one of
/// them is not known, the status and the request.
fn is_told_by(seen: &Seen<'_>, at: usize, event: &Event, line: Option<&LogLine>) -> bool {
    let Some(line) = line else { return false };
    let connection = value(line, CONNECTION).parse();
    if let (Ok(connection), Some([oracle, _])) = (connection, seen.sides) {
        if oracle.events.get(at).map(|event| event.0) != Some(connection) {
            return false;
        }
        // What is read as bytes has several responses, and what tells of the connection at its end belongs to all.
        let all = requests_of(seen, connection).map(Iterator::count);
        return match (all, number_of(seen, at)) {
            (Some(all), Some(number)) if number < all => {
                value(line, "connection_requests").parse() == Ok(number + 1)
            }
            _ => true,
        };
    }
    let has_status = match event {
        Event::Response(response) => response.status.to_string() == value(line, "status"),
        Event::Bytes(bytes) | Event::Silent(bytes) if bytes.starts_with(b"HTTP/") => {
            let text = String::from_utf8_lossy(bytes);
            text.contains(&format!(" {} ", value(line, "status")))
        }
        _ => true,
    };
    has_status
        && request_of(seen, at).is_none_or(|request| {
            let told = value(line, "request");
            let begin = format!("{} {}", request.method, request.target);
            told.is_empty() || request.target.contains("%%") || told.starts_with(&begin)
        })
}

/// The request that an event answers, where the case has it as such: the first one on its connection is answered first.
pub(super) fn request_of<'a>(seen: &Seen<'a>, at: usize) -> Option<&'a Request> {
    let connection = seen.sides?[0].events.get(at)?.0;
    requests_of(seen, connection)?.nth(number_of(seen, at)?)
}

/// The requests of a connection; nothing where some are sent as bytes, or where another connection had its number before.
fn requests_of<'a>(
    seen: &Seen<'a>,
    connection: usize,
) -> Option<impl Iterator<Item = &'a Request> + use<'a>> {
    let talk = &seen.case.talk;
    let is_raw = |step: &Step| {
        matches!(step, Step::Send { connection: of, .. } | Step::Frame { connection: of, .. } | Step::Look { connection: of, .. }
            if *of == connection)
    };
    let opens = |step: &&Step| match step {
        Step::Connect { connection: of, .. } | Step::Http2 { connection: of, .. } => {
            *of == connection
        }
        _ => false,
    };
    if talk.iter().any(is_raw) || talk.iter().filter(opens).count() > 1 {
        return None;
    }
    Some(talk.iter().filter_map(move |step| match step {
        Step::Request {
            connection: of,
            request,
        } if *of == connection => Some(request),
        _ => None,
    }))
}

/// How many responses were read on the connection of an event before it; nothing where it was read until the end.
fn number_of(seen: &Seen<'_>, at: usize) -> Option<usize> {
    let oracle = &seen.sides?[0];
    let connection = oracle.events.get(at)?.0;
    let step = *oracle.steps.get(at)?;
    let talk = &seen.case.talk;
    if matches!(talk.get(step), Some(Step::Rest { .. })) {
        return None;
    }
    let reads = |step: &&Step| matches!(step, Step::Read { connection: of } if *of == connection);
    Some(talk.iter().take(step).filter(reads).count())
}

/// The requests of the conversation.
pub(super) fn requests<'a>(seen: &Seen<'a>) -> impl Iterator<Item = &'a Request> + use<'a> {
    seen.case.talk.iter().filter_map(|step| match step {
        Step::Request { request, .. } => Some(request),
        _ => None,
    })
}

/// The request of the conversation, of all in its order, that a difference belongs to: that of its event, or that of which the
/// lines tell. Nothing where it belongs to none.
pub(super) fn asked_at(seen: &Seen<'_>) -> Option<usize> {
    let (connection, number) = match seen.difference.place {
        DifferencePlace::Event(at) => (seen.sides?[0].events.get(at)?.0, number_of(seen, at)?),
        DifferencePlace::Lines(own, _) => {
            let line = line(seen, 0, own)?;
            let number: usize = value(line, "connection_requests").parse().ok()?;
            (
                value(line, CONNECTION).parse().ok()?,
                number.checked_sub(1)?,
            )
        }
        DifferencePlace::Case | DifferencePlace::Behind(..) => return None,
    };
    let requests = seen.case.talk.iter().filter_map(|step| match step {
        Step::Request { connection: of, .. } => Some(*of),
        _ => None,
    });
    let mut own = requests.enumerate().filter(|(_, of)| *of == connection);
    own.nth(number).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::super::CaseFacts;
    use super::*;
    use crate::case::Case;
    use crate::compare::Difference;
    use crate::observe::Observation;
    use crate::side::reply::Response;
    use crate::version::Version;

    fn observed(statuses: [u16; 2]) -> Observation {
        let response = |status| {
            Event::Response(Response {
                status,
                ..Response::default()
            })
        };
        let line = |(number, status): (usize, u16)| {
            let pair = |name: &str, value: String| (name.to_owned(), value);
            vec![
                pair("status", status.to_string()),
                pair("request", format!("GET /{number} HTTP/1.1")),
            ]
        };
        Observation {
            events: vec![(0, response(statuses[0])), (0, response(statuses[1]))],
            steps: vec![2, 3],
            log: statuses.into_iter().enumerate().map(line).collect(),
            ..Observation::default()
        }
    }

    #[test]
    fn a_line_belongs_to_the_event_of_its_request() {
        let mut case = Case::default();
        for target in ["/0", "/1"] {
            case.talk.push(Step::Request {
                connection: 0,
                request: Request::new("GET", target),
            });
        }
        case.talk
            .extend([0, 0].map(|connection| Step::Read { connection }));
        let sides = [observed([200, 304]), observed([200, 200])];
        let facts = CaseFacts::new(&case);
        let near = |place| {
            let difference = Difference {
                class: "log: $uri".to_owned(),
                oracle: String::new(),
                weir: String::new(),
                place,
            };
            let seen = Seen {
                case: &case,
                facts: &facts,
                difference: &difference,
                sides: Some(&sides),
                oracle: Version(1, 31, 0),
            };
            pairs(&seen).map(|(at, ..)| at).collect::<Vec<_>>()
        };
        assert_eq!(near(DifferencePlace::Lines(0, 0)), [0]);
        assert_eq!(near(DifferencePlace::Lines(1, 1)), [1]);
        assert_eq!(near(DifferencePlace::Lines(0, 1)), [0; 0]);
        assert_eq!(near(DifferencePlace::Case), [0, 1]);
        assert_eq!(near(DifferencePlace::Event(1)), [1]);
    }
}
