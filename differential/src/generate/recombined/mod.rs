//! Cases from real configurations: their `server`, `location`, `upstream` and `map` blocks are taken apart and put together anew.
//!
//! Only what names another machine's things is changed: addresses, folders, names that all cases of a start share. What is
//! about certificates, logs and other programs' modules is left out. The texts themselves stay where `--from` says.

mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::template;

use crate::case::tree::{Node, names, parse};
use crate::case::{Case, File};
use crate::random::Dice;

use super::Generator;
use super::pieces::{file, request};
use parts::Parts;

/// The parts of all configurations of a folder.
#[derive(Debug, Default)]
pub struct Recombined {
    /// What stands in each `server`, its locations apart.
    servers: Vec<Server>,
    locations: Vec<Node>,
    /// Simple directives of `http`, which a `server` may have too.
    usual: Vec<Node>,
    groups: BTreeMap<String, Vec<Node>>,
    /// `map`, `geo` and `split_clients` by the name of their variable.
    maps: BTreeMap<String, Vec<Node>>,
}

#[derive(Debug, Default)]
struct Server {
    directives: Vec<Node>,
    locations: Vec<Node>,
}

/// Directives that are left out: about other machines, or compared nowhere.
const LEFT_OUT: &[&str] = &[
    "listen",
    "include",
    "access_log",
    "error_log",
    "log_format",
    "resolver",
    "resolver_timeout",
    "load_module",
    "http2",
    "http3",
    "proxy_bind",
    "stub_status",
    "random_index",
    "perl",
    "perl_set",
    "client_body_temp_path",
    "proxy_temp_path",
    "fastcgi_temp_path",
    "uwsgi_temp_path",
    "scgi_temp_path",
    "open_log_file_cache",
    "log_subrequest",
    "limit_rate",
    "keepalive_disable",
    "server",
    "proxy_cache_path",
    "fastcgi_cache_path",
    "uwsgi_cache_path",
    "scgi_cache_path",
    "limit_req_zone",
    "limit_conn_zone",
    "location",
    "upstream",
    "map",
    "geo",
    "split_clients",
    "types",
    "log_not_found",
    "spdy_headers_comp",
    "aio",
    "thread_pool",
    "userid",
];

/// Beginnings and ends of such names.
const LEFT_OUT_PARTS: &[&str] = &[
    "ssl",
    "_by_lua",
    "lua_",
    "more_",
    "brotli",
    "pagespeed",
    "modsecurity",
    "geoip",
    "xslt",
    "image_filter",
    "quic",
    "vhost_traffic",
    "auth_jwt",
    "js_",
    "opentracing",
    "passenger",
    "echo",
    "zstd",
    "http2_",
    "spdy",
];

impl Recombined {
    /// Reads all configurations below a folder; those that are none are passed over.
    pub fn load(folder: &Path) -> Result<Recombined, String> {
        let mut found = Recombined::default();
        let mut folders = vec![folder.to_owned()];
        let mut texts = Vec::new();
        while let Some(next) = folders.pop() {
            let entries =
                fs::read_dir(&next).map_err(|error| format!("{}: {error}", next.display()))?;
            for path in entries.flatten().map(|entry| entry.path()) {
                match path.is_dir() {
                    true => folders.push(path),
                    false => texts.push(path),
                }
            }
        }
        // The order of a folder is chance, and a seed has to be enough.
        texts.sort();
        for path in texts {
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let filled = template::fill(&text).unwrap_or(text);
            if let Ok(nodes) = parse(&filled) {
                found.gather(&nodes, false);
            }
        }
        match found.servers.is_empty() {
            true => Err(format!("{}: no server block in it", folder.display())),
            false => Ok(found),
        }
    }

    /// The names of all directives, which the caller may ask the servers about.
    pub fn directives(&self) -> Vec<String> {
        let servers = self.servers.iter();
        let mut all: Vec<String> = servers
            .flat_map(|server| names(&server.directives))
            .chain(names(&self.locations))
            .chain(names(&self.usual))
            .collect();
        all.sort();
        all.dedup();
        all
    }

    /// Leaves out directives that a server does not know: a case with one would be refused, and compare nothing.
    pub fn leave_out(&mut self, unknown: &BTreeSet<String>) {
        fn clean(nodes: &mut Vec<Node>, unknown: &BTreeSet<String>) {
            nodes.retain(|node| !unknown.contains(node.name()));
            for children in nodes.iter_mut().filter_map(Node::children_mut) {
                clean(children, unknown);
            }
        }
        for server in &mut self.servers {
            clean(&mut server.directives, unknown);
            clean(&mut server.locations, unknown);
        }
        clean(&mut self.locations, unknown);
        clean(&mut self.usual, unknown);
    }

    fn gather(&mut self, nodes: &[Node], in_http: bool) {
        for node in nodes {
            match node.name() {
                "stream" | "mail" | "events" | "types" => {}
                "http" => self.gather(node.children(), true),
                "server" if node.block.is_some() => self.server(node.children()),
                "location" => self.location(node),
                "upstream" => {
                    let Some(name) = node.words.get(1).cloned() else {
                        continue;
                    };
                    self.groups.entry(name).or_default().push(node.clone());
                }
                "map" | "geo" | "split_clients" if node.words.len() > 1 => {
                    let name = node.words.last().cloned().unwrap_or_default();
                    let name = name.trim_start_matches('$').to_owned();
                    self.maps.entry(name).or_default().push(node.clone());
                }
                _ if in_http && node.block.is_none() && is_kept(node) => {
                    self.usual.push(node.clone());
                }
                _ => {}
            }
        }
    }

    fn server(&mut self, nodes: &[Node]) {
        let is_stream = nodes.iter().any(|node| node.name() == "proxy_pass");
        if is_stream {
            return;
        }
        let of = |wanted: bool| {
            let nodes = nodes.iter();
            nodes.filter(move |node| (node.name() == "location") == wanted)
        };
        of(true).for_each(|node| self.location(node));
        self.servers.push(Server {
            directives: of(false).filter(|node| is_kept(node)).cloned().collect(),
            locations: of(true).cloned().collect(),
        });
    }

    fn location(&mut self, node: &Node) {
        if !node.children().is_empty() {
            self.locations.push(node.clone());
        }
    }
}

fn is_kept(node: &Node) -> bool {
    let name = node.name();
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    is_name && !LEFT_OUT.contains(&name) && !LEFT_OUT_PARTS.iter().any(|part| name.contains(part))
}

impl Generator for Recombined {
    fn area(&self) -> &'static str {
        "recombined"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut parts = Parts::new(self);
        let servers: Vec<Node> = (0..dice.between(1, 2))
            .map(|_| parts.server(dice))
            .collect();
        let mut case = std::mem::take(&mut parts.case);
        case.http.extend(servers);
        case.files = files(&parts.paths, dice);
        case.upstreams = parts.upstreams(dice);
        for _ in 0..dice.between(3, 8) {
            let target = target(&parts.paths, dice);
            let mut request = request(dice, &target, 2);
            request.fields[0].1.clone_from(dice.pick(&parts.hosts));
            case.ask(request);
        }
        case
    }
}

/// Files that sites have, and some that the case's locations name.
fn files(paths: &[String], dice: &mut Dice) -> Vec<File> {
    const USUAL: &[&str] = &[
        "index.html",
        "index.php",
        "50x.html",
        "404.html",
        "robots.txt",
        "favicon.ico",
        "a/index.html",
        "static/a.css",
        "x.js",
    ];
    let usual = USUAL.iter();
    let mut files: Vec<File> = usual
        .map(|path| file(&format!("html/{path}"), format!("{path}\n")))
        .collect();
    files.push(file("htpasswd", "a:{PLAIN}b\n"));
    for path in paths {
        let is_plain = path
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
        let name = format!("html{path}");
        let is_file = !path.ends_with('/')
            && ["..", "//", "/./"].iter().all(|part| !path.contains(part))
            && !path.ends_with("/.");
        // A file cannot be a folder too.
        let is_taken = files.iter().any(|file| {
            file.path == name
                || file.path.starts_with(&format!("{name}/"))
                || name.starts_with(&format!("{}/", file.path))
        });
        if is_plain && is_file && !is_taken && dice.chance(1, 2) {
            files.push(file(&name, format!("{path}\n")));
        }
    }
    files
}

fn target(paths: &[String], dice: &mut Dice) -> String {
    const OTHER: &[&str] = &[
        "/",
        "/index.html",
        "/index.php",
        "/none",
        "/a",
        "/.git/config",
        "/a//b/../c",
    ];
    let mut target = match paths.is_empty() || dice.chance(1, 8) {
        true => dice.word(OTHER).to_owned(),
        false => dice.pick(paths).clone(),
    };
    let ends = ["", "", "", "", "a", "/", "/x.php", "x.css", ".html", "%20b"];
    target.push_str(dice.word(&ends));
    target.push_str(dice.word(&["", "", "", "?a=1", "?", "?a=b&c=/d"]));
    target
}
