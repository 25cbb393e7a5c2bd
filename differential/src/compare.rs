//! What differs between two observations, as short lines that name a class and show both values.

use std::collections::BTreeMap;
use std::io::Read as _;

use crate::case::content::shown;
use crate::observe::{LogLine, Observation};
use crate::side::client::Event;
use crate::side::reply::{Framing, Response};
use crate::side::upstream::Received;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What kind it is, without values that vary from case to case: `status 200 404`, `field Vary`. A reduction keeps it.
    pub class: String,
    /// What nginx showed.
    pub oracle: String,
    /// What Weir showed.
    pub weir: String,
    /// Where it is.
    pub place: DifferencePlace,
}

/// Where a difference is: a rule explains one exchange, and not all that differs in its case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferencePlace {
    /// In the case as a whole: its configuration, its files, or how many there are of something.
    Case,
    /// The event of the client with this index.
    Event(usize),
    /// These lines of the access logs, of nginx's and of Weir's.
    Lines(usize, usize),
    /// The requests of this number that the server behind of this number received.
    Behind(usize, usize),
}

/// Values are shown up to this length.
const SHOWN: usize = 400;

struct Found {
    list: Vec<Difference>,
}

impl Found {
    fn add(
        &mut self,
        class: impl Into<String>,
        oracle: String,
        weir: String,
        place: DifferencePlace,
    ) {
        let cut = |text: String| text.chars().take(SHOWN).collect();
        self.list.push(Difference {
            class: class.into(),
            oracle: cut(oracle),
            weir: cut(weir),
            place,
        });
    }
}

/// All that differs.
pub fn compare(oracle: &Observation, weir: &Observation) -> Vec<Difference> {
    let mut found = Found { list: Vec::new() };
    for (i, (a, b)) in oracle.events.iter().zip(&weir.events).enumerate() {
        event(&a.1, &b.1, i, &mut found);
    }
    for (number, (a, b)) in oracle.received.iter().zip(&weir.received).enumerate() {
        behind(a, b, number, &mut found);
    }
    log(oracle, weir, &mut found);
    errors(oracle, weir, &mut found);
    files(oracle, weir, &mut found);
    found.list
}

/// The kind of an event, for the class.
fn name(event: &Event) -> String {
    match event {
        Event::Response(response) => response.status.to_string(),
        Event::Bytes(bytes) if bytes.is_empty() => "nothing".to_owned(),
        Event::Bytes(_) => "bytes".to_owned(),
        Event::Broken(..) => "broken".to_owned(),
        Event::Closed => "closed".to_owned(),
        Event::Kept => "kept".to_owned(),
        Event::Silent(_) => "silent".to_owned(),
        Event::Refused => "refused".to_owned(),
        Event::NotAsked => "not asked".to_owned(),
        Event::Reset(code) => format!("reset {code}"),
        Event::GoAway(_, code) => format!("goaway {code}"),
        Event::Nothing => "missing".to_owned(),
    }
}

fn event(oracle: &Event, weir: &Event, at: usize, found: &mut Found) {
    match (oracle, weir) {
        (Event::Response(a), Event::Response(b)) => response(a, b, at, found),
        (Event::Bytes(a), Event::Bytes(b)) => {
            if without_dates(a) != without_dates(b) {
                found.add("bytes", shown(a), shown(b), DifferencePlace::Event(at));
            }
        }
        (Event::GoAway(a, _), Event::GoAway(b, _)) if a != b => {
            found.add(
                "last stream",
                a.to_string(),
                b.to_string(),
                DifferencePlace::Event(at),
            );
        }
        (a, b) if name(a) == name(b) => {}
        (a, b) => {
            let class = format!("event {} {}", name(a), name(b));
            found.add(class, detail(a), detail(b), DifferencePlace::Event(at));
        }
    }
}

fn detail(event: &Event) -> String {
    match event {
        Event::Response(response) => format!("{} {:?}", response.line, response.fields),
        Event::Bytes(bytes) | Event::Silent(bytes) => format!("{} {}", name(event), shown(bytes)),
        Event::Broken(why, bytes) => format!("{why}: {}", shown(bytes)),
        other => name(other),
    }
}

/// Bytes that were read as they are, without the lines that hold a time.
fn without_dates(bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.starts_with(b"Date: ") && !line.starts_with(b"Server: "))
        .flatten()
        .copied()
        .collect()
}

fn response(a: &Response, b: &Response, at: usize, found: &mut Found) {
    if a.status != b.status {
        let class = format!("status {} {}", a.status, b.status);
        found.add(
            class,
            detail_of(a),
            detail_of(b),
            DifferencePlace::Event(at),
        );
        return;
    }
    if a.line != b.line {
        found.add(
            "status line",
            a.line.clone(),
            b.line.clone(),
            DifferencePlace::Event(at),
        );
    }
    let place = DifferencePlace::Event(at);
    fields("field", &a.fields, &b.fields, place, found);
    fields("trailer", &a.trailers, &b.trailers, place, found);
    if a.framing != b.framing {
        let class = format!("framing {:?} {:?}", a.framing, b.framing);
        found.add(
            class,
            detail_of(a),
            detail_of(b),
            DifferencePlace::Event(at),
        );
    }
    if a.body != b.body && is_told_by_scripts(a, b) {
        calls(&a.body, &b.body, b'\n', place, found);
    } else if a.body != b.body && !both_cut(a, b) && !unpacks_to_the_same(a, b) {
        let [left, right] = from_difference(&a.body, &b.body);
        found.add("body", left, right, DifferencePlace::Event(at));
    }
    if a.cut != b.cut {
        let class = format!("cut {} {}", a.cut, b.cut);
        found.add(
            class,
            detail_of(a),
            detail_of(b),
            DifferencePlace::Event(at),
        );
    }
}

/// True when two bodies are what scripts showed of the same calls, a line for each: `ngx.md5('x') = "…"`.
pub fn is_told_by_scripts(a: &Response, b: &Response) -> bool {
    let lines = |body: &[u8]| {
        let lines = body.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        let all: Vec<bool> = lines.map(|line| call_of(line).is_some()).collect();
        (!all.is_empty() && all.iter().all(|is_call| *is_call)).then_some(all.len())
    };
    lines(&a.body).is_some() && lines(&a.body) == lines(&b.body)
}

/// What a line of a script's shows: the call, and what it returned.
fn call_of(line: &[u8]) -> Option<(String, String)> {
    let text = String::from_utf8_lossy(line);
    let (call, value) = text.split_once(" => ")?;
    Some((call.to_owned(), value.to_owned()))
}

/// Compares what scripts showed, call by call: one that differs says nothing of the others.
fn calls(a: &[u8], b: &[u8], end: u8, place: DifferencePlace, found: &mut Found) {
    let lines = a
        .split(|byte| *byte == end)
        .zip(b.split(|byte| *byte == end));
    for (left, right) in lines.filter(|(left, right)| left != right) {
        let (Some((call, left)), Some((_, right))) = (call_of(left), call_of(right)) else {
            continue;
        };
        let function = call.split('(').next().unwrap_or_default();
        found.add(
            format!("script: {function}"),
            format!("{call} => {left}"),
            format!("{call} => {right}"),
            place,
        );
    }
}

/// Two contents; long ones from a little before where they part, behind a count of what is left out.
fn from_difference(a: &[u8], b: &[u8]) -> [String; 2] {
    const BEFORE: usize = 40;
    let at = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let start = if at > SHOWN / 2 { at - BEFORE } else { 0 };
    [a, b].map(|all| match start {
        0 => shown(all),
        _ => format!("({start} of {}) {}", all.len(), shown(&all[start..])),
    })
}

/// How much of a response that is cut arrives is chance.
fn both_cut(a: &Response, b: &Response) -> bool {
    a.cut && b.cut && (a.body.starts_with(&b.body) || b.body.starts_with(&a.body))
}

/// How well something is packed is no promise.
fn unpacks_to_the_same(a: &Response, b: &Response) -> bool {
    let unpacked = |response: &Response| {
        let is_packed = response.body.starts_with(&[0x1f, 0x8b]);
        let mut bytes = Vec::new();
        let mut reader = flate2::read::MultiGzDecoder::new(response.body.as_slice());
        let is_whole = is_packed && reader.read_to_end(&mut bytes).is_ok();
        is_whole.then(|| without_version(&bytes))
    };
    unpacked(a).is_some_and(|bytes| Some(bytes) == unpacked(b))
}

/// A page without the version that `server_tokens` shows: in what was packed the sides were not made equal.
fn without_version(page: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"nginx/";
    let Some(at) = page.windows(NAME.len()).position(|part| part == NAME) else {
        return page.to_vec();
    };
    let (before, rest) = page.split_at(at);
    let version = rest[NAME.len()..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    [before, NAME, &rest[NAME.len() + version.count()..]].concat()
}

fn detail_of(response: &Response) -> String {
    format!(
        "{} {:?} {}",
        response.line,
        response.fields,
        shown(&response.body[..response.body.len().min(150)])
    )
}

/// Compares fields by name; the order counts among those of one name only.
fn fields(
    kind: &str,
    a: &[(String, String)],
    b: &[(String, String)],
    place: DifferencePlace,
    found: &mut Found,
) {
    let (a, b) = (grouped(a), grouped(b));
    // One side may have answered seconds before the other.
    let date = |fields: &BTreeMap<String, Vec<String>>| {
        let date = fields.get("Date").and_then(|values| values.first());
        date.and_then(|date| seconds_of_date(date)).unwrap_or(0)
    };
    let apart = date(&a).abs_diff(date(&b));
    let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let (left, right) = (a.get(name), b.get(name));
        let equal = match (left, right) {
            (Some(left), Some(right)) => {
                left.len() == right.len()
                    && left.iter().zip(right).all(|(a, b)| same(name, a, b, apart))
            }
            _ => false,
        };
        let logs = match (left, right) {
            (Some(left), Some(right)) if name == "X-Log" => left.first().zip(right.first()),
            _ => None,
        };
        if let Some((left, right)) = logs.filter(|_| !equal) {
            let [left, right] = [left, right].map(|text| unescaped(text));
            calls(&left, &right, b'|', place, found);
        } else if !equal {
            let how = match (left, right) {
                (Some(_), None) => " missing",
                (None, Some(_)) => " added",
                _ => "",
            };
            let text =
                |values: Option<&Vec<String>>| values.map_or(String::new(), |v| v.join(" | "));
            found.add(
                format!("{kind} {name}{how}"),
                text(left),
                text(right),
                place,
            );
        }
    }
}

/// A value without its `%41`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut parts = text.split('%');
    out.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let byte = part
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.extend(byte);
        out.extend(part.get(2..).unwrap_or_default().bytes());
    }
    out
}

fn grouped(fields: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in fields {
        groups.entry(name.clone()).or_default().push(value.clone());
    }
    groups
}

fn same(name: &str, a: &str, b: &str, apart: u64) -> bool {
    if a == b || ["Date", "Server"].contains(&name) {
        return true;
    }
    // What is reckoned from now may be a second or two further apart than the responses, and a boundary is random.
    match (seconds_of_date(a), seconds_of_date(b)) {
        (Some(a), Some(b)) => a.abs_diff(b) <= apart + 3,
        _ => a.starts_with("multipart/byteranges") && b.starts_with("multipart/byteranges"),
    }
}

/// The second of the year of an HTTP date, which is enough to say that two are near.
fn seconds_of_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, rest) = text.strip_suffix(" GMT")?.split_once([' '])?;
    let mut words = rest.split([' ', '-']);
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64;
    let year: u64 = words.next()?.parse().ok()?;
    let mut clock = words
        .next()?
        .split(':')
        .map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let days = (year * 12 + month) * 31 + day;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn behind(a: &[Received], b: &[Received], number: usize, found: &mut Found) {
    let head = |received: &Received| shown(&received.head);
    if a.len() != b.len() {
        let all = |list: &[Received]| list.iter().map(head).collect::<Vec<_>>().join(" / ");
        let class = format!("behind {number}: requests {} {}", a.len(), b.len());
        found.add(class, all(a), all(b), DifferencePlace::Case);
        return;
    }
    for (request, (a, b)) in a.iter().zip(b).enumerate() {
        let place = DifferencePlace::Behind(number, request);
        let lines = |received: &Received| {
            let text = String::from_utf8_lossy(&received.head).into_owned();
            let mut lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
            let first = lines.remove(0);
            let pairs: Vec<(String, String)> = lines
                .iter()
                .filter(|line| !line.is_empty())
                .map(|line| {
                    let (name, value) = line.split_once(':').unwrap_or((line, ""));
                    (name.to_owned(), value.trim().to_owned())
                })
                .collect();
            (first, pairs)
        };
        let ((first_a, fields_a), (first_b, fields_b)) = (lines(a), lines(b));
        if first_a != first_b {
            found.add("behind: first line", head(a), head(b), place);
        }
        fields("behind: field", &fields_a, &fields_b, place, found);
        if a.framing != b.framing {
            let class = format!("behind: framing {} {}", a.framing, b.framing);
            found.add(class, head(a), head(b), place);
        }
        if a.body != b.body && !(a.cut && b.cut) {
            let [left, right] = from_difference(&a.body, &b.body);
            found.add("behind: body", left, right, place);
        }
        if a.fresh != b.fresh {
            let class = format!("behind: fresh {} {}", a.fresh, b.fresh);
            found.add(class, head(a), head(b), place);
        }
        if a.cut != b.cut {
            let class = format!("behind: cut {} {}", a.cut, b.cut);
            found.add(class, head(a), head(b), place);
        }
    }
}

/// What a line of the log tells of what the client sent.
fn sent_by(line: &LogLine) -> Vec<(String, String)> {
    let is_sent = |name: &str| {
        let own = [
            "connection",
            "connection_requests",
            "request",
            "remote_user",
        ];
        own.contains(&name) || name.starts_with("http_")
    };
    let sent = line.iter().filter(|(name, _)| is_sent(name));
    sent.cloned().collect()
}

fn log<'a>(oracle: &'a Observation, weir: &'a Observation, found: &mut Found) {
    if oracle.log.len() != weir.log.len() {
        let lines = |seen: &Observation| {
            let value = |line: &LogLine| {
                let wanted = ["request", "status"];
                let pairs = line
                    .iter()
                    .filter(|(name, _)| wanted.contains(&name.as_str()));
                pairs
                    .map(|(_, value)| value.clone())
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            seen.log.iter().map(value).collect::<Vec<_>>().join(" / ")
        };
        let class = format!("log: lines {} {}", oracle.log.len(), weir.log.len());
        found.add(class, lines(oracle), lines(weir), DifferencePlace::Case);
        return;
    }
    // A request is logged when it has ended, and which of two ends first is chance. Lines are told apart by what the client
    // sent, and those that tell the same stay in their order: by what was answered, one difference would mix up all of a
    // target's lines. What both logged alike is no matter of order.
    let in_order = |seen: &'a Observation| {
        let mut lines: Vec<(usize, &LogLine)> = seen.log.iter().enumerate().collect();
        lines.sort_by_cached_key(|(_, line)| sent_by(line));
        lines
    };
    let (mut left, mut right) = (in_order(oracle), in_order(weir));
    left.retain(|(_, line)| {
        let same = right.iter().position(|(_, other)| other == line);
        same.map(|at| right.remove(at)).is_none()
    });
    for (oracle, a) in left {
        // Of lines that the client's words do not tell apart, the one that differs least.
        let alike = right
            .iter()
            .take_while(|(_, b)| sent_by(b) == sent_by(a))
            .count();
        let of_it = right.iter().take(alike.max(1)).enumerate();
        let nearest =
            of_it.min_by_key(|(_, (_, b))| a.iter().filter(|pair| !b.contains(pair)).count());
        let Some(nearest) = nearest.map(|(at, _)| at) else {
            return;
        };
        let (weir, b) = right.remove(nearest);
        let place = DifferencePlace::Lines(oracle, weir);
        for name in crate::observe::VARIABLES {
            let value = |line: &[(String, String)]| {
                let pair = line.iter().find(|(known, _)| known == name);
                pair.map_or("", |(_, value)| value).to_owned()
            };
            let (left, right) = (value(a), value(b));
            if left != right {
                found.add(format!("log: ${name}"), left, right, place);
            }
        }
    }
}

/// Compares error logs line by line, in the order of their words: which of two connections fails first is chance.
fn errors(oracle: &Observation, weir: &Observation, found: &mut Found) {
    let sorted = |seen: &Observation| {
        let mut lines = seen.errors.clone();
        lines.sort();
        lines
    };
    let (mut left, mut right) = (sorted(oracle), sorted(weir));
    left.retain(|line| {
        let same = right.iter().position(|other| other == line);
        same.map(|at| right.remove(at)).is_none()
    });
    // Lines with the same message differ in what follows it.
    for line in left {
        let message = message_of(&line);
        let alike = |other: &str| {
            let pairs = line.bytes().zip(other.bytes());
            pairs.take_while(|(a, b)| a == b).count()
        };
        let same = right.iter().enumerate();
        let same = same.filter(|(_, other)| message_of(other) == message);
        let other = same.max_by_key(|(_, other)| alike(other)).map(|(at, _)| at);
        let (class, other) = match other {
            Some(at) => (format!("error log: parts of {message}"), right.remove(at)),
            None => (format!("error log: missing {message}"), String::new()),
        };
        found.add(class, line, other, DifferencePlace::Case);
    }
    for line in right {
        let class = format!("error log: added {}", message_of(&line));
        found.add(class, String::new(), line, DifferencePlace::Case);
    }
}

/// The message of a line, without what varies from case to case: names in quotes, numbers, paths.
fn message_of(line: &str) -> String {
    let message = line.split(", client: ").next().unwrap_or(line);
    let message = message.split(" while ").next().unwrap_or(message);
    let mut kind = String::new();
    for (number, part) in message.split('"').enumerate() {
        kind.push_str(if number % 2 == 0 { part } else { "…" });
    }
    let words = kind.split(' ').map(|word| match word.starts_with('/') {
        true => "/…".to_owned(),
        false => crate::judge::kind(word),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn files(oracle: &Observation, weir: &Observation, found: &mut Found) {
    let names = |seen: &Observation| {
        let names: Vec<&str> = seen.files.iter().map(|(name, _)| name.as_str()).collect();
        names.join(" ")
    };
    if names(oracle) != names(weir) {
        found.add("files", names(oracle), names(weir), DifferencePlace::Case);
        return;
    }
    for ((name, a), (_, b)) in oracle.files.iter().zip(&weir.files) {
        if a != b {
            found.add(
                format!("file {name}"),
                shown(a),
                shown(b),
                DifferencePlace::Case,
            );
        }
    }
}

/// True when a framing tells the length of the content by a field or by its chunks.
pub fn is_framed(framing: Framing) -> bool {
    matches!(framing, Framing::Length | Framing::Chunked)
}
