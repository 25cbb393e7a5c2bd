//! `--live`: what only the running server knows, asked through the locations that its configuration has for it.
//!
//! ```text
//! cache_purge ZONE    whether the key is stored, its age, and until when it is fresh; with cluster=, which member owns it
//! prometheus          the state of the group's servers
//! ```
//!
//! An answer of the first kind depends on the header fields of the question, by which the variants of a response are told
//! apart; they are sent along, except those that mean the exchange itself. Which server of a group is next is known to the
//! balancer alone, and asking would change it: the states say which could be, and a method that decides by the request alone
//! (`hash`, `ip_hash`) is answered from the configuration.
//!
//! These requests are the only ones that `weir explain` sends. Where the configuration has no such location the answer says
//! which directive would make one, instead of a guess. An answer is bounded in time and size: the server may be stuck, and
//! that may be the reason for the question.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use base::ByteSlice as _;
use conf::DirectiveNode;
use http::explain::{ExplainQuestion, ExplainedCacheUse, Explanation};

use super::shown;

/// How long each request may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The largest answer that is read, in bytes: metrics of a thousand servers are smaller.
const MAX_ANSWER: u64 = 8 << 20;

/// What the running server says.
pub(super) struct LiveAnswer {
    /// Each with its name.
    pub(super) facts: Vec<(&'static str, String)>,
}

/// A location that tells about the server.
pub(super) struct TellingLocation {
    /// `cache_purge` or `prometheus`.
    directive: &'static str,
    /// The first argument of the directive: the zone.
    argument: String,
    /// Where its server listens.
    address: SocketAddr,
    /// A name of the server, since several may share the address.
    host: String,
    /// The path of the location.
    path: String,
}

/// Finds such locations. Only those without a regular expression, and of servers without TLS: this is no browser.
pub(super) fn telling_locations(nodes: &[DirectiveNode]) -> Vec<TellingLocation> {
    let http = nodes.iter().filter(|node| node.name.is("http"));
    let servers = http
        .flat_map(|http| http.block.nodes())
        .filter(|node| node.name.is("server"));
    let mut found = Vec::new();
    for server in servers {
        let lines = server.block.nodes();
        let Some(address) = lines
            .iter()
            .filter(|line| line.name.is("listen"))
            .find_map(plain_address)
        else {
            continue;
        };
        let name = lines.iter().find(|line| line.name.is("server_name"));
        let host = name
            .and_then(|line| line.args.first())
            .map(|word| word.text.to_str_lossy());
        let host = host
            .filter(|host| !host.starts_with(['~', '*', '.']))
            .unwrap_or_default();
        for location in lines.iter().filter(|line| line.name.is("location")) {
            let Some(path) = plain_path(location) else {
                continue;
            };
            for directive in ["cache_purge", "prometheus"] {
                let mut own = location.block.nodes().iter();
                // With a second argument the key is the location's own, unless it names the cluster.
                let is_meant = |line: &&DirectiveNode| {
                    let mut others = line.args.iter().skip(1);
                    line.name.is(directive) && others.all(|word| word.text.starts_with(b"cluster="))
                };
                if let Some(line) = own.find(is_meant) {
                    let argument = line.args.first().map(|word| word.text.to_str_lossy());
                    found.push(TellingLocation {
                        directive,
                        argument: argument.unwrap_or_default().into_owned(),
                        address,
                        host: host.clone().into_owned(),
                        path: path.clone(),
                    });
                }
            }
        }
    }
    found
}

/// The address of a `listen` without TLS, as a client on this machine reaches it.
fn plain_address(listen: &DirectiveNode) -> Option<SocketAddr> {
    let has = |text: &str| listen.args.iter().any(|word| word.is(text));
    if has("ssl") || has("proxy_protocol") || has("quic") {
        return None;
    }
    let text = listen
        .args
        .first()?
        .text
        .to_str_lossy()
        .replace('*', "0.0.0.0");
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let address = text
        .parse::<SocketAddr>()
        .ok()
        .or_else(|| Some(SocketAddr::new(local, text.parse().ok()?)))
        .or_else(|| Some(SocketAddr::new(text.parse().ok()?, 80)))?;
    Some(match address.ip().is_unspecified() {
        true => SocketAddr::new(local, address.port()),
        false => address,
    })
}

/// The path of a location that is no regular expression and no named one.
fn plain_path(location: &DirectiveNode) -> Option<String> {
    let words: Vec<&[u8]> = location
        .args
        .iter()
        .map(|word| word.text.as_slice())
        .collect();
    let path = match words[..] {
        [b"=" | b"^~", path] | [path] => path,
        _ => return None,
    };
    path.starts_with(b"/")
        .then(|| path.to_str_lossy().into_owned())
}

/// Asks the running server.
pub(super) fn ask(
    question: &ExplainQuestion,
    explanation: &Explanation,
    locations: &[TellingLocation],
) -> LiveAnswer {
    // In the order of the request: the cache comes before the servers.
    let mut facts = Vec::new();
    if let Some(cache) = &explanation.cache
        && matches!(
            cache.used_for,
            ExplainedCacheUse::LookUp | ExplainedCacheUse::Bypass(_)
        )
    {
        let zone = shown(&cache.zone);
        let told = locations
            .iter()
            .find(|one| one.directive == "cache_purge" && one.argument == zone);
        match told {
            Some(location) => facts.extend(stored(location, &cache.key, question)),
            None => facts.push((
                "cache",
                format!("not known: no location has \"cache_purge {zone};\""),
            )),
        }
    }
    if let Some(upstream) = &explanation.upstream {
        let told = locations.iter().find(|one| one.directive == "prometheus");
        match told.map(|location| get(location, "", question)) {
            Some(Ok(metrics)) => {
                let peers = peers(&metrics, &shown(&upstream.name));
                let none = || vec!["not used since the server started".to_owned()];
                let peers = if peers.is_empty() { none() } else { peers };
                facts.extend(peers.into_iter().map(|peer| ("peer", peer)));
            }
            Some(Err(error)) => facts.push(("peer", format!("not known: {error}"))),
            None => facts.push((
                "peer",
                "not known: no location has \"prometheus;\"".to_owned(),
            )),
        }
    }
    if facts.is_empty() {
        facts.push((
            "nothing",
            "neither a cache nor an upstream server is asked".to_owned(),
        ));
    }
    LiveAnswer { facts }
}

/// What is stored under a key, as the purge endpoint shows it, and which member of the cluster owns it.
fn stored(
    location: &TellingLocation,
    key: &[u8],
    question: &ExplainQuestion,
) -> Vec<(&'static str, String)> {
    let key: String = key.iter().map(|byte| format!("%{byte:02x}")).collect();
    let told = match get(location, &format!("?key={key}"), question) {
        Ok(told) => told,
        Err(error) => return vec![("cache", format!("not known: {error}"))],
    };
    let mut facts = vec![("cache", state_of(&told))];
    // Only the endpoint of a cluster's cache says who owns a key, and an older server's does not.
    let word = |name| member_of(&told, name);
    if let (Some(owner), Some(reason), Some(asked)) = (word("owner"), word("reason"), word("asked"))
    {
        facts.push(("owner", format!("{owner}, {reason}; asked: {asked}")));
    }
    facts
}

/// A member of the JSON that the endpoint shows, one on each line.
fn member_of(told: &str, name: &str) -> Option<String> {
    let start = format!("\"{name}\": ");
    let mut lines = told.lines();
    let value = lines.find_map(|line| line.trim().strip_prefix(&start))?;
    Some(value.trim_end_matches(',').trim_matches('"').to_owned())
}

/// What is stored, in words.
fn state_of(told: &str) -> String {
    let member = |name: &str| member_of(told, name);
    if member("stored").as_deref() != Some("true") {
        return "not stored".to_owned();
    }
    let number = |name: &str| member(name).and_then(|text| text.parse::<i64>().ok());
    let age = number("age").map_or(String::new(), |age| format!(", {age} s old"));
    match (member("stale").as_deref(), number("ttl")) {
        (Some("true"), _) => format!("stored{age}, stale"),
        (_, Some(ttl)) if ttl > 0 => format!("stored{age}, fresh until {}", date_in(ttl)),
        _ => format!("stored{age}, stale"),
    }
}

/// The time in this many seconds, as HTTP writes it.
fn date_in(seconds: i64) -> String {
    let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
    let mut out = Vec::new();
    proto::date::write_http(now.saturating_add(seconds), &mut out);
    shown(&out)
}

/// The servers of a group with what the metrics say of them.
fn peers(metrics: &str, group: &str) -> Vec<String> {
    // By hand: the metrics are lines, and only four families matter here.
    let mut peers: Vec<(String, Vec<String>)> = Vec::new();
    for line in metrics.lines() {
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };
        let Some((labels, value)) = rest.rsplit_once("} ") else {
            continue;
        };
        let label = |name: &str| {
            let at = labels.find(&format!("{name}=\""))? + name.len() + 2;
            labels[at..].split('"').next().map(ToOwned::to_owned)
        };
        let (Some(peer), true) = (label("server"), label("upstream").as_deref() == Some(group))
        else {
            continue;
        };
        let fact = match name {
            "weir_upstream_state" if value == "1" => label("state").unwrap_or_default(),
            "weir_upstream_active" => format!("{value} active"),
            "weir_upstream_healthy" if value == "0" => "unhealthy".to_owned(),
            "weir_upstream_disabled_total" if value != "0" => format!("disabled {value} times"),
            _ => continue,
        };
        match peers.iter_mut().find(|(known, _)| *known == peer) {
            Some((_, facts)) => facts.push(fact),
            None => peers.push((peer, vec![fact])),
        }
    }
    peers
        .into_iter()
        .map(|(peer, facts)| format!("{peer}: {}", facts.join(", ")))
        .collect()
}

/// A GET with the fields of the question, by which variants are told apart. The error is a reason.
fn get(
    location: &TellingLocation,
    arguments: &str,
    question: &ExplainQuestion,
) -> Result<String, String> {
    let reply = exchange(location, arguments, question)
        .map_err(|error| format!("{}{}", location.address, base::ErrnoText(&error)))?;
    let text = reply.to_str_lossy().into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    match status {
        "200" | "404" => Ok(body.to_owned()),
        status => Err(format!(
            "{}{} answers {status}",
            location.address, location.path
        )),
    }
}

/// One request and its response, on a connection of its own. Everything has a limit: a server that is asked about may be
/// stuck.
fn exchange(
    location: &TellingLocation,
    arguments: &str,
    question: &ExplainQuestion,
) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&location.address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the response ends with the connection, and has no chunks.
    let mut head = format!("GET {}{arguments} HTTP/1.0\r\n", location.path).into_bytes();
    let host = match location.host.is_empty() {
        true => location.address.to_string(),
        false => location.host.clone(),
    };
    proto::h1::response::write_field(b"Host", host.as_bytes(), &mut head);
    // Fields that mean the exchange itself are not those of the question.
    const OWN: [&str; 6] = [
        "Host",
        "Connection",
        "Content-Length",
        "Transfer-Encoding",
        "Range",
        "Expect",
    ];
    let is_own = |name: &[u8]| {
        OWN.iter()
            .any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
    };
    for (name, value) in question.fields.iter().filter(|(name, _)| !is_own(name)) {
        proto::h1::response::write_field(name, value, &mut head);
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head)?;
    let mut reply = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut reply)?;
    Ok(reply)
}
