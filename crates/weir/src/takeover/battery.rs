//! Requests that a configuration suggests by itself: its names, locations, patterns, and the files below its roots. Only with
//! methods that change nothing (RFC 9110, section 9.2.1), and as many as the user allows.
//!
//! The order is by server, round by round: each server's `/` first, then files, then locations from the outer to the inner ones.
//! What a location does is not looked at. A redirect, a refusal and a page are compared in the same way, and a location that
//! passes requests to an application is one that the application gets twice. That is why methods are safe ones, why the rate has
//! a limit, and why nothing is sent to `stream` and `mail`: whatever speaks there may take any byte for an order.

use std::path::{Path, PathBuf};

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::client::ComparedRequest;
use super::private_copy::{ListenPlace, listen_places, named};

/// How many files of a directory are asked for.
const FILES_OF_A_FOLDER: usize = 4;
/// How many names of a directory are looked at for them.
const NAMES_READ: usize = 200;
/// Files above this size are not asked for: the battery is not a load.
const MAX_FILE: u64 = 1 << 20;

/// Paths that each server is asked for.
const COMMON: &[&str] = &[
    "/",
    "/weir-takeover-missing",
    "/.git/config",
    "/a/../index.html",
];

/// What the first paths of each server are asked for with, besides without.
const LINES: &[(&str, &str)] = &[
    ("HEAD", ""),
    ("GET", "Accept-Encoding: gzip"),
    ("GET", "Range: bytes=0-4"),
    ("GET", "If-Modified-Since: Sat, 01 Aug 2015 10:00:00 GMT"),
    ("OPTIONS", ""),
];

/// All requests for a configuration, `most` at most, in turn from each server.
pub(super) fn requests(
    nodes: &[DirectiveNode],
    prefix: &Path,
    most: usize,
) -> Vec<ComparedRequest> {
    let mut by_server = Vec::new();
    for http in named(nodes, "http") {
        for server in named(http.block.nodes(), "server") {
            by_server.push(of_server(http, server, prefix));
        }
    }
    // Round by round, so that a small number still meets every server.
    let longest = by_server.iter().map(Vec::len).max().unwrap_or(0);
    let rounds =
        (0..longest).flat_map(|round| by_server.iter().filter_map(move |one| one.get(round)));
    let mut chosen: Vec<ComparedRequest> = Vec::new();
    for request in rounds {
        if chosen.len() >= most {
            break;
        }
        chosen.push(request.clone());
    }
    chosen
}

/// How many listening addresses have no request: those of `stream` and `mail`, and datagrams.
pub(super) fn uncompared_listeners(nodes: &[DirectiveNode]) -> usize {
    let engines = nodes
        .iter()
        .filter(|node| node.name.is("stream") || node.name.is("mail"));
    let servers = engines.flat_map(|engine| named(engine.block.nodes(), "server"));
    servers
        .map(|server| named(server.block.nodes(), "listen").count())
        .sum()
}

/// The requests for one server.
fn of_server(http: &DirectiveNode, server: &DirectiveNode, prefix: &Path) -> Vec<ComparedRequest> {
    let inside = server.block.nodes();
    let names = named(inside, "server_name").flat_map(|node| node.args.iter());
    let host = names
        .filter_map(|word| host_of(&word.text.to_str_lossy()))
        .next();
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    let places = listen_places(inside);
    let Some((first, others)) = places.split_first() else {
        return Vec::new();
    };
    let request = |place: &ListenPlace, method: &str, path: &str, line: &str| ComparedRequest {
        listen: place.key.clone(),
        is_tls: place.is_tls,
        is_proxied: place.is_proxied,
        host: host.clone(),
        method: method.to_owned(),
        target: escaped(path),
        line: line.to_owned(),
    };
    // `root` is inherited like any other directive, so what a server does not say is in `http`.
    let root = root_of(inside).or_else(|| root_of(http.block.nodes()));
    let mut paths: Vec<String> = Vec::new();
    let mut add = |path: String| {
        if !paths.contains(&path) {
            paths.push(path);
        }
    };
    add("/".to_owned());
    add_files(root.as_deref(), "", prefix, &mut add);
    add_locations(inside, root.as_deref(), prefix, &mut add);
    COMMON.iter().for_each(|path| add((*path).to_owned()));
    let mut all: Vec<ComparedRequest> = Vec::new();
    // The plain request of each path comes first: with few requests, many paths matter more than many methods.
    for (index, path) in paths.iter().enumerate() {
        all.push(request(first, "GET", path, ""));
        // A few of each kind show what every kind does.
        if index < 3 {
            all.extend(
                LINES
                    .iter()
                    .map(|(method, line)| request(first, method, path, line)),
            );
        }
    }
    all.extend(others.iter().map(|place| request(place, "GET", "/", "")));
    all
}

/// A host that a name of `server_name` stands for.
fn host_of(name: &str) -> Option<String> {
    if let Some(pattern) = name.strip_prefix('~') {
        return sample(pattern).filter(|host| host.contains('.'));
    }
    let name = name.replace("*.", "www.").replace(".*", ".test");
    let name = match name.strip_prefix('.') {
        Some(rest) => rest.to_owned(),
        None => name,
    };
    let is_host = !name.is_empty() && name != "_" && !name.contains('$');
    is_host.then_some(name)
}

/// The paths of locations, and of the files that they serve.
fn add_locations(
    nodes: &[DirectiveNode],
    root: Option<&str>,
    prefix: &Path,
    add: &mut impl FnMut(String),
) {
    for location in named(nodes, "location") {
        let own_root = root_of(location.block.nodes());
        let root = own_root.as_deref().or(root);
        let words: Vec<String> = location
            .args
            .iter()
            .map(|word| word.text.to_str_lossy().into_owned())
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let path = match words.as_slice() {
            ["=" | "^~", path] => Some((*path).to_owned()),
            ["~" | "~*", pattern] => sample(pattern),
            // Only the server itself goes to a named one.
            [path] if path.starts_with('@') => None,
            [path] => match path.strip_prefix("~*").or_else(|| path.strip_prefix('~')) {
                Some(pattern) => sample(pattern),
                None => Some(path.trim_start_matches(['=', '^', '~']).to_owned()),
            },
            _ => None,
        };
        if let Some(path) = path.filter(|path| !path.contains('$')) {
            let path = match path.starts_with('/') {
                true => path,
                false => format!("/weir{path}"),
            };
            add(path.clone());
            if path.ends_with('/') {
                add(format!("{path}weir-takeover-missing?a=1"));
            }
            let alias = named(location.block.nodes(), "alias").next();
            let alias = alias.and_then(|node| node.args.first());
            match alias {
                Some(alias) => {
                    let folder = alias.text.to_str_lossy().into_owned();
                    list_files(&prefix.join(folder), FILES_OF_A_FOLDER)
                        .iter()
                        .for_each(|name| add(format!("{path}{name}")));
                }
                None if path.ends_with('/') || own_root.is_some() => {
                    add_files(root, &path, prefix, add);
                }
                None => {}
            }
        }
        add_locations(location.block.nodes(), root, prefix, add);
    }
}

/// The value of `root` in a block.
fn root_of(nodes: &[DirectiveNode]) -> Option<String> {
    let word = named(nodes, "root").next()?.args.first()?;
    Some(word.text.to_str_lossy().into_owned())
}

/// Files below a root, at a path that begins and ends with a slash or is empty.
fn add_files(root: Option<&str>, path: &str, prefix: &Path, add: &mut impl FnMut(String)) {
    let root = root.unwrap_or("html");
    if root.contains('$') {
        return;
    }
    let below = path.trim_matches('/');
    let folder = prefix.join(root).join(below);
    let start = match below {
        "" => "/".to_owned(),
        below => format!("/{below}/"),
    };
    for name in list_files(&folder, FILES_OF_A_FOLDER) {
        add(format!("{start}{name}"));
    }
}

/// Some files of a directory, with different extensions before more of the same.
fn list_files(folder: &Path, most: usize) -> Vec<String> {
    let mut names: Vec<PathBuf> = Vec::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.take(NAMES_READ) {
        let small = entry
            .metadata()
            .is_ok_and(|file| file.is_file() && file.len() <= MAX_FILE);
        let name = PathBuf::from(entry.file_name());
        // What is hidden is asked for by the common paths, where both servers ought to refuse it.
        if small && name.to_str().is_some_and(|name| !name.starts_with('.')) {
            names.push(name);
        }
    }
    // By name before anything else: the order of a directory is the file system's, and two runs must ask for the same.
    names.sort();
    let mut seen = Vec::new();
    names.sort_by_cached_key(|name| {
        let extension = name.extension().map(ToOwned::to_owned);
        let again = seen.contains(&extension);
        seen.push(extension);
        again
    });
    let names = names.into_iter().take(most);
    names
        .filter_map(|name| Some(name.to_str()?.to_owned()))
        .collect()
}

/// A text that a regular expression matches, for the simple ones that locations have: the first of each alternative, and what is
/// optional left out. One that does not match is one more request.
fn sample(pattern: &str) -> Option<String> {
    let mut chars = pattern.trim_start_matches('^').chars().peekable();
    let text = sample_group(&mut chars, 0);
    (!text.is_empty()).then_some(text)
}

/// How deep groups are followed.
const MAX_GROUPS: usize = 20;

/// The same inside of parentheses, up to the closing one: an alternative, in which optional parts are left out. Patterns are those of
/// PCRE, which no parser of Rust's regular expressions knows in full, and most locations have one word and an end.
fn sample_group(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, depth: usize) -> String {
    let mut text = String::new();
    let mut is_first = true;
    while let Some(char) = chars.next() {
        let part = match char {
            ')' => break,
            '|' => {
                is_first = false;
                continue;
            }
            '(' if depth < MAX_GROUPS => {
                // `?:`, `?<name>` and the like are no text.
                if chars.peek() == Some(&'?') {
                    let is_end = |char: &char| ":>=!".contains(*char);
                    let _ = chars.by_ref().find(is_end);
                }
                sample_group(chars, depth + 1)
            }
            '[' => {
                let mut class = chars.by_ref().take_while(|char| *char != ']');
                let first = class.next().unwrap_or('a');
                class.for_each(drop);
                if first == '^' || first == '\\' {
                    "1".to_owned()
                } else {
                    first.to_string()
                }
            }
            '\\' => match chars.next() {
                Some('d' | 'w') => "1".to_owned(),
                Some('s' | 'S' | 'b' | 'B') | None => String::new(),
                Some(other) => other.to_string(),
            },
            '.' => "a".to_owned(),
            '$' | '^' | '+' => continue,
            '{' => {
                chars
                    .by_ref()
                    .take_while(|char| *char != '}')
                    .for_each(drop);
                continue;
            }
            other => other.to_string(),
        };
        let is_optional = matches!(chars.peek(), Some('?' | '*'));
        if is_optional {
            chars.next();
        }
        if is_first && !is_optional {
            text.push_str(&part);
        }
    }
    text
}

/// What may stand in a request line.
fn escaped(path: &str) -> String {
    let part = |byte: u8| match byte.is_ascii_graphic() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_samples() {
        let is = |pattern: &str, text: &str| assert_eq!(sample(pattern).as_deref(), Some(text));
        is(r"\.php$", ".php");
        is(r"^/api/v[0-9]+/(?<id>x+|y)$", "/api/v0/x");
        is(r"\.(?:jpg|png)$", ".jpg");
        is(r"^/a(/.*)?$", "/a");
        is(r"^/\d{4}/", "/1/");
        assert_eq!(sample("^$"), None);
        assert!(sample(&"(".repeat(100_000)).is_some());
    }

    #[test]
    fn names_are_hosts() {
        assert_eq!(host_of("*.example.com").as_deref(), Some("www.example.com"));
        assert_eq!(host_of(".example.com").as_deref(), Some("example.com"));
        assert_eq!(host_of("_"), None);
        assert_eq!(
            host_of("www.example.*").as_deref(),
            Some("www.example.test")
        );
    }
}
