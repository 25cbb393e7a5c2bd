//! What two responses differ in, and many differences as few groups.
//!
//! What no two responses have in common is not compared: dates, the server's name, framing, identifiers. Where a response of
//! nginx differs from its own previous one in the same way, the difference belongs to the site.
//!
//! ```text
//! status differs      nothing else is looked at: the rest follows from it
//! header              by name; all values of a name together, in their order
//! body                as text, without what changes by itself; compressed ones only by whether there is something
//! ```
//!
//! A rule that hides a difference has to be about something that no client can rely on. When in doubt it is shown: a group with a
//! harmless reason costs its reader a minute, and a hidden one may cost a site.

use super::client::{ComparedRequest, ServerResponse};

/// How many requests of a group are shown.
const EXAMPLES: usize = 3;
/// How many groups are kept. More would be the same mistake in other words.
const MAX_GROUPS: usize = 200;

/// Fields that are not compared: the time, the server, the connection, and framing. A response that is complete before it is
/// sent has a length in Weir, and may have chunks in nginx.
const NOT_COMPARED: &[&str] = &[
    "date",
    "server",
    "age",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
];

/// Words by which caches tell what they did. The copy's cache is empty at first.
const CACHE_WORDS: &[&str] = &["HIT", "MISS", "EXPIRED", "STALE", "UPDATING", "REVALIDATED"];

/// One way in which two responses differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResponseDifference {
    /// `status`, `header` or `body`.
    pub(super) aspect: &'static str,
    /// The same for the same kind of difference: `status 200, not 404`.
    pub(super) what: String,
}

/// A kind of difference, with the requests that have it.
#[derive(Clone, Debug)]
pub(super) struct DifferenceGroup {
    pub(super) difference: ResponseDifference,
    pub(super) count: u64,
    pub(super) examples: Vec<String>,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub(super) struct DifferenceGroups {
    /// The largest first, once sorted.
    pub(super) list: Vec<DifferenceGroup>,
}

impl DifferenceGroups {
    /// Adds the differences of one request.
    pub(super) fn add(&mut self, differences: Vec<ResponseDifference>, shown: &str) {
        for difference in differences {
            let known = self
                .list
                .iter()
                .position(|group| group.difference == difference);
            match known {
                Some(index) => {
                    let group = &mut self.list[index];
                    group.count += 1;
                    if group.examples.len() < EXAMPLES {
                        group.examples.push(shown.to_owned());
                    }
                }
                None if self.list.len() < MAX_GROUPS => self.list.push(DifferenceGroup {
                    difference,
                    count: 1,
                    examples: vec![shown.to_owned()],
                }),
                None => {}
            }
        }
    }

    /// Puts the largest groups first.
    pub(super) fn sort(&mut self) {
        self.list.sort_by(|a, b| {
            let order = b.count.cmp(&a.count);
            order.then_with(|| a.difference.cmp(&b.difference))
        });
    }
}

/// Whether the values of fields may be shown. In a report about requests of clients they are not: they could be secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShownValues {
    All,
    None,
}

/// What the responses differ in. `ports` are texts of the copy's answers that stand for others of nginx: its private ports.
pub(super) fn differences(
    nginx: &ServerResponse,
    weir: &ServerResponse,
    ports: &[(String, String)],
    values: ShownValues,
) -> Vec<ResponseDifference> {
    let difference = |aspect, what| ResponseDifference { aspect, what };
    if nginx.status != weir.status {
        let (ours, theirs) = (status(weir), status(nginx));
        return vec![difference("status", format!("{ours}, nginx has {theirs}"))];
    }
    // Neither has answered. That both fail alike is no difference, whatever the reason.
    if nginx.status == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    // Only what the copy says has private ports: nginx's ports are the ones to compare with.
    let (left, right) = (fields(nginx, &[]), fields(weir, ports));
    for (name, value) in &left {
        match right.iter().find(|(other, _)| other == name) {
            None => found.push(difference("header", format!("{name} is missing"))),
            Some((_, other)) if other != value => {
                let what = match values {
                    ShownValues::All => format!("{name} is {other:?}, nginx has {value:?}"),
                    ShownValues::None => format!("{name} has another value"),
                };
                found.push(difference("header", what));
            }
            Some(_) => {}
        }
    }
    for (name, _) in &right {
        if !left.iter().any(|(other, _)| other == name) {
            found.push(difference("header", format!("{name} is there as well")));
        }
    }
    if nginx.body != weir.body && body(nginx, &[]) != body(weir, ports) {
        found.push(difference(
            "body",
            format!("of a {} response", nginx.status),
        ));
    }
    found
}

/// Removes the differences that nginx's responses to the same request have among themselves.
pub(super) fn without_own_changes(
    found: Vec<ResponseDifference>,
    first: &ServerResponse,
    second: &ServerResponse,
) -> Vec<ResponseDifference> {
    // Values do not matter here: a field that changes at all is not compared.
    let own = differences(first, second, &[], ShownValues::None);
    let name = |difference: &ResponseDifference| {
        let word = difference.what.split(' ').next().unwrap_or_default();
        match difference.aspect {
            "header" => format!("header {word}"),
            aspect => aspect.to_owned(),
        }
    };
    let own: Vec<String> = own.iter().map(name).collect();
    // A page that comes and goes makes the rest incomparable, too.
    if own.iter().any(|name| name == "status") {
        return Vec::new();
    }
    let mut found = found;
    found.retain(|difference| !own.contains(&name(difference)));
    found
}

/// A status for a message; for 0 with the reason, which tells a refused connection from one that was cut.
fn status(response: &ServerResponse) -> String {
    match response.status {
        0 => format!("nothing ({})", String::from_utf8_lossy(&response.body)),
        status => status.to_string(),
    }
}

/// Names with all their values, in the order of names.
fn fields(response: &ServerResponse, ports: &[(String, String)]) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for (name, value) in &response.fields {
        if NOT_COMPARED.contains(&name.as_str()) {
            continue;
        }
        let value = match name.as_str() {
            // Names only: the values are made for each client.
            "set-cookie" => value.split('=').next().unwrap_or_default().to_owned(),
            "content-type" if value.starts_with("multipart/byteranges") => {
                "multipart/byteranges".to_owned()
            }
            "expires" | "last-modified" if name == "expires" && value.ends_with("GMT") => {
                // Relative to now, except for times long past, which say "never".
                let is_past = value.contains("1970");
                let shown = if is_past { value.as_str() } else { "<time>" };
                shown.to_owned()
            }
            _ if CACHE_WORDS.contains(&value.as_str()) => "<cache status>".to_owned(),
            _ => settled(value, ports),
        };
        match fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => {
                values.push_str(", ");
                values.push_str(&value);
            }
            None => fields.push((name.clone(), value)),
        }
    }
    fields.sort();
    fields
}

/// A body without what is different every time.
fn body(response: &ServerResponse, ports: &[(String, String)]) -> String {
    let value = |name: &str| {
        let found = response.fields.iter().find(|(field, _)| field == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    if !value("content-encoding").is_empty() {
        // Whether there is a body at all is still compared: an empty one would be a mistake.
        // Two compressors, one content: their bytes may differ.
        return format!("compressed, {}", !response.body.is_empty());
    }
    let text = settled(&String::from_utf8_lossy(&response.body), ports);
    if value("content-type").starts_with("multipart/byteranges") {
        // The boundary is a number of the server's own.
        return text
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect();
    }
    text
}

/// A text without ports of the copy, times with milliseconds, identifiers, and names of the servers.
fn settled(text: &str, ports: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (private, public) in ports {
        text = text.replace(private, public);
    }
    for default in [":80/", ":443/"] {
        text = text.replace(default, "/");
    }
    let text = without_numbers(&text);
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_inclusive(['<', '>', ' ', '\n']) {
        let name = word.trim_end_matches(['<', '>', ' ', '\n']);
        let is_name = name == "nginx" || name.starts_with("nginx/") || name.starts_with("weir/");
        match is_name || name == "weir" {
            true => words.push("<server>"),
            false => words.push(word),
        }
    }
    words.concat()
}

/// Replaces long hexadecimal numbers, which are identifiers, and times with milliseconds.
fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|char: char| char.is_ascii_hexdigit()) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let run = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let is_identifier = run >= 32;
        let fraction = rest[run..].strip_prefix('.').map_or(0, |rest| {
            rest.bytes().take_while(u8::is_ascii_digit).count()
        });
        let is_time = fraction == 3 && rest[..run].bytes().all(|byte| byte.is_ascii_digit());
        match (is_identifier, is_time) {
            (true, _) => out.push_str("<identifier>"),
            (false, true) => out.push_str("<time>"),
            (false, false) => out.push_str(&rest[..run]),
        }
        rest = &rest[run + if is_time { 4 } else { 0 }..];
    }
    out.push_str(rest);
    out
}

/// The texts of the copy's answers that stand for others: `:41234` for `:8080`.
pub(super) fn port_texts(copy: &super::private_copy::PrivateCopy) -> Vec<(String, String)> {
    let ports = copy.addresses.iter().filter_map(|(key, private)| {
        let (_, public) = key.address.rsplit_once(':')?;
        public.parse::<u16>().ok()?;
        Some((format!(":{}", private.port()), format!(":{public}")))
    });
    ports.collect()
}

/// The line for a request in a report about traffic: without the query, in which there may be secrets.
pub(super) fn shown_without_query(request: &ComparedRequest) -> String {
    let mut request = request.clone();
    if let Some((path, _)) = request.target.split_once('?') {
        request.target = format!("{path}?…");
    }
    request.shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, fields: &[(&str, &str)], body: &str) -> ServerResponse {
        let fields = fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ServerResponse {
            status,
            fields: fields.collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    fn compare(nginx: &ServerResponse, weir: &ServerResponse) -> Vec<String> {
        let ports = [(":40001".to_owned(), ":8080".to_owned())];
        let found = differences(nginx, weir, &ports, ShownValues::All);
        found
            .into_iter()
            .map(|difference| difference.what)
            .collect()
    }

    #[test]
    fn what_must_differ_is_no_difference() {
        let nginx = response(
            301,
            &[
                ("server", "nginx/1.22.1"),
                ("location", "http://a:8080/x/"),
                ("x-cache", "HIT"),
                ("set-cookie", "uid=1"),
            ],
            "<center>nginx/1.22.1</center> 0123456789abcdef0123456789abcdef 1700000000.123",
        );
        let weir = response(
            301,
            &[
                ("date", "today"),
                ("location", "http://a:40001/x/"),
                ("set-cookie", "uid=2"),
                ("x-cache", "MISS"),
            ],
            "<center>nginx</center> fedcba9876543210fedcba9876543210 1700000001.456",
        );
        assert!(
            compare(&nginx, &weir).is_empty(),
            "{:?}",
            compare(&nginx, &weir)
        );
    }

    #[test]
    fn what_differs_is_said() {
        let nginx = response(200, &[("etag", "\"1\""), ("x", "y")], "a");
        let weir = response(200, &[("etag", "\"2\""), ("z", "y")], "b");
        let found = compare(&nginx, &weir);
        assert_eq!(
            found,
            [
                "etag is \"\\\"2\\\"\", nginx has \"\\\"1\\\"\"",
                "x is missing",
                "z is there as well",
                "of a 200 response"
            ]
        );
        let gone = response(404, &[], "");
        assert_eq!(compare(&nginx, &gone), ["404, nginx has 200"]);
        let silent = response(0, &[], "closed without a response");
        assert_eq!(
            compare(&nginx, &silent),
            ["nothing (closed without a response), nginx has 200"]
        );
    }

    #[test]
    fn a_page_that_changes_by_itself_is_no_difference() {
        let page = |text| response(200, &[], text);
        let found = differences(&page("1"), &page("2"), &[], ShownValues::All);
        assert_eq!(found.len(), 1);
        assert!(without_own_changes(found.clone(), &page("1"), &page("3")).is_empty());
        assert_eq!(without_own_changes(found, &page("1"), &page("1")).len(), 1);
    }
}
