//! Requests that a configuration's own words suggest: its paths, patterns, names and conditions, with the methods,
//! ranges, conditions and encodings that clients send, and with paths that nobody should.

use crate::addresses::Listen;
use crate::facts::{Facts, Server, push};

/// One request, as bytes.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) listen: Listen,
    /// The name of the server, for TLS.
    pub(crate) name: String,
    pub(crate) method: String,
    /// How a report shows it.
    pub(crate) shown: String,
    pub(crate) bytes: Vec<u8>,
    /// On a connection of its own.
    pub(crate) is_raw: bool,
}

/// Paths that every server is asked for.
const COMMON: &[&str] = &[
    "/",
    "/index.html",
    "/index.php",
    "/index.php/path/info?x=1&y=%20z",
    "/folder",
    "/folder/",
    "/folder/page.html",
    "/picture.png",
    "/style.css",
    "/script.js?ver=1.2",
    "/big.txt",
    "/nothing",
    "/.htaccess",
    "/.git/config",
    "/robots.txt",
    "/favicon.ico",
    "/wp-login.php",
    "/wp-content/uploads/evil.php",
    "/a/b/../../index.html",
    "/%69ndex.html",
    "//folder//page.html",
    "/index.html%00.php",
    "/../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/a%20b%2Fc?d=e/f",
    "/%zz",
    "/?a=1&a=2&b",
    "/index.html/",
    "/backup.sql~",
    "/caf%C3%A9",
];

/// Kinds of answers of the server behind.
const ANSWERS: &[&str] = &[
    "redirect",
    "404",
    "500",
    "503",
    "403",
    "accel",
    "cookie",
    "cached",
    "cached",
    "hidden",
    "chunked",
    "until-close",
];

/// Fields that clients send.
const FIELDS: &[&str] = &[
    "Range: bytes=0-4",
    "Range: bytes=-3",
    "Range: bytes=2-3,5-6",
    "Range: bytes=99999999-",
    "If-Modified-Since: Sat, 01 Aug 2020 10:00:00 GMT",
    "If-Modified-Since: Sat, 01 Aug 2015 10:00:00 GMT",
    "If-None-Match: *",
    "If-None-Match: \"none\"",
    "Accept-Encoding: gzip, deflate, br",
    "Cookie: session=1; wordpress_logged_in_x=2",
    "Referer: http://evil.example/page",
    "User-Agent: Googlebot/2.1 (+http://www.google.com/bot.html)",
    "User-Agent: sqlmap/1.0",
    "Origin: https://other.example",
    "Authorization: Basic dXNlcjpwYXNzd29yZA==",
    "Authorization: Basic d3Jvbmc6d3Jvbmc=",
    "X-Forwarded-For: 198.51.100.7",
    "X-Forwarded-Proto: https",
    "Upgrade: websocket\r\nConnection: upgrade",
    "Expect: 100-continue",
];

const MAX_SERVERS: usize = 24;
const MAX_PATHS: usize = 60;

/// All requests for a configuration, `most` at most, in the order in which both servers get them.
pub(crate) fn all(facts: &Facts, most: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    let servers = facts.servers.len().clamp(1, MAX_SERVERS);
    for server in facts.servers.iter().take(MAX_SERVERS) {
        let before = requests.len();
        if server.is_stream {
            requests.extend(server.listens.iter().map(bare));
            continue;
        }
        for (index, listen) in server.listens.iter().take(3).enumerate() {
            let maker = Maker {
                listen,
                host: host_of(server),
            };
            if index == 0 {
                maker.many(facts, server, &mut requests);
            } else {
                requests.extend(["/", "/index.html"].map(|path| maker.get(path, "")));
            }
        }
        thin(&mut requests, before, (most / servers).max(40));
    }
    // What succeeds with these methods purges what is stored, and what a client cannot have a part of is stored here and
    // not in nginx (docs/compat.md, Caching): after both the servers' caches differ.
    requests.sort_by_key(|request| match request.method.as_str() {
        "POST" | "PUT" | "DELETE" => 2,
        _ if request.shown.contains("bytes=99999999-") => 1,
        _ => 0,
    });
    requests
}

/// Leaves `most` of the requests from `start` on, evenly.
fn thin(requests: &mut Vec<Request>, start: usize, most: usize) {
    let count = requests.len() - start;
    if count > most {
        let rest = requests.split_off(start);
        let keeps = |index: usize| index * most / count != (index + 1) * most / count;
        requests.extend(
            rest.into_iter()
                .enumerate()
                .filter(|(index, _)| keeps(*index))
                .map(|(_, request)| request),
        );
    }
}

fn host_of(server: &Server) -> String {
    server
        .names
        .iter()
        .find_map(|name| host(name))
        .unwrap_or_else(|| "unknown.example".to_owned())
}

/// A host that a name of `server_name` fits.
fn host(name: &str) -> Option<String> {
    if let Some(pattern) = name.strip_prefix('~') {
        return weir_differential::samples::samples(pattern)
            .into_iter()
            .next_back();
    }
    let name = name.replace("*.", "sub.").replace(".*", ".test");
    let name = name
        .strip_prefix('.')
        .map_or(name.clone(), |rest| format!("sub.{rest}"));
    let is_host = !name.is_empty() && name != "_" && !name.contains('$');
    is_host.then_some(name)
}

/// To a server of `stream`: an HTTP/1.0 request, as most of what is behind would understand it.
fn bare(listen: &Listen) -> Request {
    Request {
        listen: listen.clone(),
        name: "www.example.com".to_owned(),
        method: "GET".to_owned(),
        shown: format!("stream {}", listen.address),
        bytes: b"GET / HTTP/1.0\r\nHost: www.example.com\r\n\r\n".to_vec(),
        is_raw: true,
    }
}

struct Maker<'s> {
    listen: &'s Listen,
    host: String,
}

impl Maker<'_> {
    fn many(&self, facts: &Facts, server: &Server, requests: &mut Vec<Request>) {
        let paths = paths(facts, server);
        for path in &paths {
            requests.push(self.get(path, ""));
        }
        // Where most of a server's ways are seen at little cost.
        let few: Vec<&String> = paths.iter().take(5).collect();
        for path in &few {
            for method in ["HEAD", "POST", "OPTIONS", "PUT", "DELETE"] {
                let body = if matches!(method, "POST" | "PUT") {
                    "a=1&b=2"
                } else {
                    ""
                };
                requests.push(self.request(method, path, "", body));
            }
            for field in FIELDS {
                requests.push(self.get(path, field));
            }
        }
        for path in few.iter().take(3) {
            for (name, value) in facts.fields.iter().take(24) {
                requests.push(self.get(path, &format!("{name}: {value}")));
            }
            for (name, value) in facts.arguments.iter().take(16) {
                requests.push(self.get(&format!("{path}?{name}={value}"), ""));
            }
            for method in &facts.methods {
                requests.push(self.request(method, path, "", ""));
            }
            for answer in ANSWERS {
                let mark = if path.contains('?') { '&' } else { '?' };
                requests.push(self.get(&format!("{path}{mark}weir={answer}"), ""));
            }
        }
        self.hosts(facts, server, requests);
        for raw in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET /folder HTTP/1.0\r\nHost: old.example\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET http://other.example/index.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: www.example.com\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "TRACE / HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n",
        ] {
            requests.push(Request {
                shown: format!("raw {raw:?}"),
                method: raw.split(' ').next().unwrap_or_default().to_owned(),
                bytes: raw.as_bytes().to_vec(),
                is_raw: true,
                ..self.get("/", "")
            });
        }
    }

    fn hosts(&self, facts: &Facts, server: &Server, requests: &mut Vec<Request>) {
        let mut hosts = vec![
            "unknown.example".to_owned(),
            "WWW.Example.COM:8080".to_owned(),
        ];
        for name in server.names.iter().take(8).filter_map(|name| host(name)) {
            push(&mut hosts, name.clone());
            push(&mut hosts, format!("www.{name}"));
        }
        for name in facts.hosts.iter().take(12) {
            push(&mut hosts, name.clone());
        }
        for host in hosts.into_iter().filter(|host| !host.contains([' ', '/'])) {
            let maker = Maker {
                listen: self.listen,
                host,
            };
            requests.extend(["/", "/index.html?a=b"].map(|path| maker.get(path, "")));
        }
    }

    fn get(&self, target: &str, line: &str) -> Request {
        self.request("GET", target, line, "")
    }

    fn request(&self, method: &str, target: &str, line: &str, body: &str) -> Request {
        let target = escape(target);
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.host);
        if !line.is_empty() {
            head.push_str(line);
            head.push_str("\r\n");
        }
        if !body.is_empty() {
            head.push_str(&format!(
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
                body.len()
            ));
        }
        let name = self.host.split(':').next().unwrap_or_default().to_owned();
        Request {
            listen: self.listen.clone(),
            name,
            method: method.to_owned(),
            shown: format!("{method} {}{target} {line}", self.host),
            bytes: format!("{head}\r\n{body}").into_bytes(),
            // A switch of protocols, and what may leave content unread, is for a connection of its own.
            is_raw: line.contains("Upgrade")
                || line.contains("Expect")
                || !matches!(method, "GET" | "HEAD"),
        }
    }
}

/// What may stand in a request line.
fn escape(target: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic();
    target
        .bytes()
        .map(|byte| {
            if is_plain(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

fn paths(facts: &Facts, server: &Server) -> Vec<String> {
    let mut paths: Vec<String> = vec!["/".to_owned()];
    let own = server.paths.iter().chain(&facts.paths);
    for path in own.take(MAX_PATHS) {
        push(&mut paths, path.clone());
        let bare = path.trim_end_matches('/');
        if !bare.is_empty() {
            push(&mut paths, bare.to_owned());
            push(&mut paths, format!("{bare}/"));
            push(&mut paths, format!("{bare}/page.html?q=1"));
        }
    }
    for path in COMMON {
        push(&mut paths, (*path).to_owned());
    }
    paths
}
