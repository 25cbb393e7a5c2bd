//! What two answers differ in, beside what must differ and what is known to.

use crate::client::Answer;

/// An answer with what the server behind saw of its request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) answer: Answer,
    pub(crate) seen: Vec<String>,
}

/// Makes equal what no two runs have in common: request identifiers, times with milliseconds, the servers' names.
pub(crate) fn settle(text: &str) -> String {
    let mut settled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let run = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if run == 32 {
            settled.push_str("<identifier>");
            rest = &rest[run..];
            continue;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let fraction = rest.get(digits..).and_then(|rest| rest.strip_prefix('.'));
        let fraction = fraction.map_or(0, |rest| {
            rest.bytes().take_while(u8::is_ascii_digit).count()
        });
        if digits == 10 && fraction == 3 {
            settled.push_str("<time>");
            rest = &rest[digits + 4..];
            continue;
        }
        let taken = run.max(char.len_utf8());
        settled.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    product(&settled)
}

/// The servers' own names and versions.
fn product(text: &str) -> String {
    let mut settled = text.to_owned();
    for name in ["nginx/1.", "weir/0.", "nginx/0."] {
        while let Some(at) = settled.find(name) {
            let after = &settled[at + name.len()..];
            let length = after
                .bytes()
                .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
                .count();
            settled.replace_range(at..at + name.len() + length, "<server>");
        }
    }
    for name in ["<center>nginx</center>", "<center>weir</center>"] {
        settled = settled.replace(name, "<center><server></center>");
    }
    settled
}

/// What differs, in words that are the same for the same kind of difference.
pub(crate) fn differences(oracle: &Observation, ours: &Observation) -> Vec<String> {
    let (a, b) = (&oracle.answer, &ours.answer);
    if a.status != b.status {
        return vec![format!("status {} but {}{}", a.status, b.status, why(a, b))];
    }
    let mut found = Vec::new();
    let (left, right) = (fields(a), fields(b));
    for (name, value) in &left {
        match right.iter().find(|(other, _)| other == name) {
            None => found.push(format!("field {name} is missing")),
            Some((_, other)) if other != value => {
                found.push(format!("field {name} differs: {value:?} but {other:?}"));
            }
            Some(_) => {}
        }
    }
    for (name, value) in &right {
        if !left.iter().any(|(other, _)| other == name) {
            found.push(format!("field {name} is there as well: {value:?}"));
        }
    }
    if a.body != b.body && body(a) != body(b) {
        found.push("body".to_owned());
    }
    if oracle.seen != ours.seen && seen(oracle) != seen(ours) {
        found.push("what the server behind saw".to_owned());
    }
    found
}

/// Whether a value is what `$request_time` gives: seconds with three decimals. `$upstream_response_time` has several, and
/// `-` where a time is not known, which is no chance.
fn is_duration(value: &str) -> bool {
    let mut parts = value.splitn(2, '.');
    let is_number = |text: Option<&str>, least: usize, most: usize| {
        text.is_some_and(|text| {
            (least..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    is_number(parts.next(), 1, 4) && is_number(parts.next(), 3, 3)
}

fn why(a: &Answer, b: &Answer) -> String {
    let text = |answer: &Answer| match answer.status {
        0 => format!(" ({})", String::from_utf8_lossy(&answer.body)),
        _ => String::new(),
    };
    format!("{}{}", text(a), text(b))
}

/// Names with all their values, in the order of names. Framing is left out where it is a known difference: a response
/// of which all has come has a length in Weir, and may have chunks in nginx (docs/compat.md, Responses and logs).
fn fields(answer: &Answer) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for (name, value) in &answer.fields {
        if matches!(name.as_str(), "date" | "transfer-encoding" | "age") {
            continue;
        }
        if name == "content-length" && answer.status != 206 {
            continue;
        }
        let value = match name.as_str() {
            "server" if value == "nginx" || value == "weir" => "<server>".to_owned(),
            // A boundary is a number of the server's own.
            "content-type" if value.starts_with("multipart/byteranges") => {
                "multipart/byteranges".to_owned()
            }
            "expires" if value.ends_with("GMT") && !value.contains("1970") => {
                value.split(' ').next().unwrap_or_default().to_owned()
            }
            _ if is_duration(value) => "<duration>".to_owned(),
            _ => settle(value),
        };
        match fields.iter_mut().find(|(known, _)| known == name) {
            // Weir has the fields of add_header once (docs/compat.md, Responses and logs).
            Some((_, values))
                if answer.status == 416 && values.split('\n').any(|known| known == value) => {}
            Some((_, values)) => {
                values.push('\n');
                values.push_str(&value);
            }
            None => fields.push((name.clone(), value)),
        }
    }
    fields.sort();
    fields
}

fn body(answer: &Answer) -> String {
    let is_parts = answer
        .fields
        .iter()
        .any(|(name, value)| name == "content-type" && value.starts_with("multipart/byteranges"));
    let is_packed = answer
        .fields
        .iter()
        .any(|(name, _)| name == "content-encoding");
    if is_packed {
        // Two compressors, one content: the sizes may differ, whether there is something may not.
        return format!("packed {}", !answer.body.is_empty());
    }
    let text = settle(&String::from_utf8_lossy(&answer.body));
    // A listing of the folder that the server itself writes to.
    if text.contains(">nginx.conf</a>") {
        return text.lines().filter(|line| !line.contains("</a>")).collect();
    }
    if is_parts {
        return text
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect();
    }
    text
}

fn seen(observation: &Observation) -> Vec<String> {
    let mut seen = observation.seen.clone();
    seen.sort();
    seen
}
