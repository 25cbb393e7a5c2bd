//! The parts of a case under way: what each wants of others, and what in it names another machine's things.

use std::collections::{BTreeMap, BTreeSet};

use crate::samples;

use crate::case::tree::{Block, Node, parse, print};
use crate::case::{Act, Case, Content, Protocol, Upstream};
use crate::generate::pieces::upstream;
use crate::generate::{REPEATED, gateways, grpc};
use crate::random::Dice;

use super::{Recombined, is_kept};

/// Variables of which no two runs have the same.
const CHANGING: &[&str] = &[
    "request_id",
    "msec",
    "time_local",
    "time_iso8601",
    "request_time",
    "connection",
    "connection_time",
    "remote_port",
    "pid",
    "upstream_response_time",
    "upstream_connect_time",
    "upstream_header_time",
    "date_gmt",
    "date_local",
    "proxy_protocol_port",
    "realip_remote_port",
    "hostname",
    "nginx_version",
    "tcpinfo_rtt",
    "binary_remote_addr",
    "ssl_session_id",
];
/// A case under way: what its parts want of others.
pub(super) struct Parts<'a> {
    from: &'a Recombined,
    pub(super) case: Case,
    groups: BTreeSet<String>,
    maps: BTreeSet<String>,
    zones: BTreeSet<String>,
    /// The servers behind by what they speak, and which of them it is.
    behind: BTreeMap<&'static str, usize>,
    pub(super) paths: Vec<String>,
    pub(super) hosts: Vec<String>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(from: &'a Recombined) -> Self {
        Self {
            from,
            case: Case::default(),
            groups: BTreeSet::new(),
            maps: BTreeSet::new(),
            zones: BTreeSet::new(),
            behind: BTreeMap::new(),
            paths: Vec::new(),
            hosts: vec!["localhost".to_owned()],
        }
    }

    pub(super) fn server(&mut self, dice: &mut Dice) -> Node {
        let from = self.from;
        let server = dice.pick(&from.servers);
        let mut nodes = Vec::new();
        for _ in 0..dice.below(3) {
            if !from.usual.is_empty() {
                nodes.push(dice.pick(&from.usual).clone());
            }
        }
        nodes.extend(
            server
                .directives
                .iter()
                .filter(|_| dice.chance(5, 6))
                .cloned(),
        );
        let own = server.locations.iter().filter(|_| dice.chance(3, 4));
        let mut locations: Vec<Node> = own.cloned().collect();
        locations.truncate(8);
        for _ in 0..dice.below(4) {
            if !from.locations.is_empty() {
                locations.push(dice.pick(&from.locations).clone());
            }
        }
        let mut seen = BTreeSet::new();
        locations.retain(|node| seen.insert(node.words.join(" ")));
        nodes.extend(locations);
        let mut children = self.nodes(nodes, dice);
        let mut once = BTreeSet::new();
        children.retain(|node| {
            REPEATED.contains(&node.name())
                || node.block.is_some()
                || once.insert(node.name().to_owned())
        });
        let has = |name: &str| children.iter().any(|node| node.name() == name);
        let mut first = vec![node(&["listen", "%%PORT0%%"])];
        if !has("root") {
            first.push(node(&["root", "%%DIR%%/html"]));
        }
        for variable in self.unknown(&children) {
            first.push(node(&["set", &format!("${variable}"), "value"]));
        }
        first.extend(children);
        Node {
            words: vec!["server".to_owned()],
            block: Some(Block::Directives(first)),
        }
    }

    /// Variables that something outside defined.
    fn unknown(&self, nodes: &[Node]) -> BTreeSet<String> {
        let mut text = String::new();
        print(nodes, 0, &mut text);
        let known = |name: &str| {
            let prefixes = [
                "http_",
                "arg_",
                "cookie_",
                "sent_",
                "upstream_",
                "ssl_",
                "proxy_",
                "realip_",
                "date_",
                "time_",
                "server_",
                "request",
            ];
            let own = [
                "uri",
                "args",
                "query_string",
                "is_args",
                "host",
                "scheme",
                "https",
                "remote_addr",
                "remote_user",
                "document_root",
                "document_uri",
                "realpath_root",
                "content_length",
                "content_type",
                "status",
                "body_bytes_sent",
                "bytes_sent",
                "pipe",
                "binary_remote_addr",
                "limit_rate",
                "fastcgi_script_name",
                "fastcgi_path_info",
                "invalid_referer",
                "slice_range",
                "secure_link",
                "secure_link_expires",
                "gzip_ratio",
                "uid_got",
                "memcached_key",
                "http2",
                "hostname",
            ];
            prefixes.iter().any(|prefix| name.starts_with(prefix))
                || own.contains(&name)
                || name.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_set = |name: &str| {
            text.contains(&format!("set ${name} "))
                || text.contains(&format!("<{name}>"))
                || text.contains(&format!("auth_request_set ${name} "))
        };
        variables(&text)
            .into_iter()
            .filter(|name| !known(name) && !is_set(name) && !self.maps.contains(name))
            .collect()
    }

    fn nodes(&mut self, nodes: Vec<Node>, dice: &mut Dice) -> Vec<Node> {
        let mut out = Vec::new();
        for node in nodes {
            let is_block = matches!(node.name(), "location" | "if" | "limit_except");
            if (is_kept(&node) || is_block)
                && let Some(node) = self.node(node, dice)
            {
                out.push(node);
            }
        }
        out
    }

    /// A directive as it can stand here; `None` where it cannot.
    fn node(&mut self, mut node: Node, dice: &mut Dice) -> Option<Node> {
        let name = node.name().to_owned();
        for word in &mut node.words[1..] {
            *word = self.word(word, dice);
        }
        let second = node.words.get(1).cloned().unwrap_or_default();
        // What a template lost its words from is no directive any more.
        let alone = ["internal", "break", "flv", "mp4", "empty_gif"];
        if second.is_empty() && !alone.contains(&name.as_str()) {
            return None;
        }
        match name.as_str() {
            "location" => self.path(&node.words),
            "server_name" => {
                let plain = node.words[1..].iter().filter(|word| {
                    word.bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
                        && !word.starts_with('.')
                });
                self.hosts.extend(plain.cloned());
            }
            "root" | "alias" => node.words[1] = folder(&second, name == "alias"),
            "auth_basic_user_file" => node.words[1] = "%%DIR%%/htpasswd".to_owned(),
            "limit_req" => {
                let zone = self.zone("req", &node.words)?;
                node.words = vec![name, zone, "burst=1000".to_owned(), "nodelay".to_owned()];
            }
            "limit_conn" => {
                self.zones.insert(format!("conn {second}"));
                let line = format!("limit_conn_zone $server_addr zone={second}c%%N%%:64k;");
                self.define(&line);
                node.words = vec![name, format!("{second}c%%N%%"), "1000".to_owned()];
            }
            "proxy_cache" | "fastcgi_cache" | "uwsgi_cache" | "scgi_cache" if second != "off" => {
                let zone = format!("{name}%%N%%");
                if self.zones.insert(zone.clone()) {
                    self.define(&format!(
                        "{name}_path %%OWN%%/cache_{name} keys_zone={zone}:64k inactive=1h;"
                    ));
                }
                node.words[1] = zone;
            }
            "proxy_pass" | "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" | "grpc_pass"
            | "memcached_pass" => {
                node.words[1] = self.pass(&name, &second, dice)?;
            }
            "valid_referers" | "set_real_ip_from" | "allow" | "deny" => {}
            _ => {}
        }
        if let Some(children) = node.children_mut() {
            let inside = std::mem::take(children);
            *children = self.nodes(inside, dice);
            let mut once = BTreeSet::new();
            children.retain(|node| {
                REPEATED.contains(&node.name())
                    || node.block.is_some()
                    || once.insert(node.name().to_owned())
            });
        }
        Some(node)
    }

    /// A word with its variables renamed where a map of the case defines them.
    fn word(&mut self, word: &str, dice: &mut Dice) -> String {
        let mut out = String::new();
        let mut rest = word;
        while let Some((before, name, after)) = variable(rest) {
            out.push_str(before);
            if CHANGING.contains(&name) {
                out.push_str(&written("arg_a", after));
            } else if self.from.maps.contains_key(name) {
                self.map(name, dice);
                out.push_str(&written(&format!("{name}_%%N%%"), after));
            } else {
                out.push_str(&rest[before.len()..rest.len() - after.len()]);
            }
            rest = after;
        }
        out + rest
    }

    fn define(&mut self, line: &str) {
        let nodes = parse(line).unwrap_or_default();
        let new: Vec<Node> = nodes
            .into_iter()
            .filter(|node| !self.case.http.contains(node))
            .collect();
        self.case.http.extend(new);
    }

    fn map(&mut self, name: &str, dice: &mut Dice) {
        if !self.maps.insert(format!("{name}_%%N%%")) || self.maps.len() > 12 {
            return;
        }
        let mut node = dice.pick(&self.from.maps[name]).clone();
        let words = node.words.len();
        for word in &mut node.words[1..words - 1] {
            *word = self.word(word, dice);
        }
        node.words[words - 1] = format!("${name}_%%N%%");
        let mut rows = node.children().to_vec();
        rows.retain(|row| row.name() != "include");
        for row in &mut rows {
            for word in row.words.iter_mut().skip(1) {
                *word = self.word(word, dice);
            }
        }
        node.block = Some(Block::Directives(rows));
        self.case.http.push(node);
    }

    fn zone(&mut self, kind: &str, words: &[String]) -> Option<String> {
        let zone = words.iter().find_map(|word| word.strip_prefix("zone="))?;
        let name = format!("{zone}{kind}%%N%%");
        if self.zones.insert(name.clone()) {
            self.define(&format!(
                "limit_req_zone $server_addr zone={name}:64k rate=1000r/s;"
            ));
        }
        Some(format!("zone={name}"))
    }

    /// What a location's pattern matches.
    fn path(&mut self, words: &[String]) {
        let bare = |word: &String| word.trim_matches(['"', '\'']).to_owned();
        let last = words.last().map(bare).unwrap_or_default();
        match words.get(1).map(String::as_str) {
            Some("~" | "~*") => self
                .paths
                .extend(samples::samples(&last).iter().map(|path| rooted(path))),
            Some(word) if word.starts_with('@') => {}
            _ => self.paths.push(rooted(&last)),
        }
    }

    /// The place of the server behind that speaks this, which is there from then on.
    fn place(&mut self, protocol: &'static str) -> String {
        let next = self.behind.len();
        let index = *self.behind.entry(protocol).or_insert(next);
        format!("%%UP{index}%%")
    }

    fn pass(&mut self, name: &str, word: &str, dice: &mut Dice) -> Option<String> {
        let protocol = match name {
            "proxy_pass" => "http",
            "fastcgi_pass" => "fastcgi",
            "uwsgi_pass" => "uwsgi",
            "scgi_pass" => "scgi",
            "grpc_pass" => "grpc",
            _ => "memcached",
        };
        let bare = word.trim_matches(['"', '\'']);
        let (scheme, rest) = bare.split_once("://").unwrap_or(("", bare));
        let scheme = match name {
            "proxy_pass" => "http://",
            "grpc_pass" if !scheme.is_empty() => "grpc://",
            _ => "",
        };
        let end = rest
            .find('/')
            .filter(|_| !rest.starts_with("unix:"))
            .unwrap_or(rest.len());
        let (host, uri) = rest.split_at(end);
        let uri = match rest
            .strip_prefix("unix:")
            .and_then(|rest| rest.split_once(':'))
        {
            Some((_, uri)) if name == "proxy_pass" => uri,
            _ => uri,
        };
        if let Some(groups) = self.from.groups.get(host)
            && !host.contains('$')
        {
            let named = format!("{host}_{protocol}_%%N%%");
            if self.groups.insert(named.clone()) {
                let group = dice.pick(groups).clone();
                let group = self.group(group, &named, protocol);
                self.case.http.push(group);
            }
            return Some(format!("{scheme}{named}{uri}"));
        }
        // An address of variables names another machine in its own way: what is around it is compared.
        Some(format!("{scheme}{}{uri}", self.place(protocol)))
    }

    fn group(&mut self, mut group: Node, name: &str, protocol: &'static str) -> Node {
        let places = [
            self.place(protocol),
            match protocol {
                "http" => self.place("http again"),
                _ => self.place(protocol),
            },
        ];
        let mut number = 0;
        group.words[1] = name.to_owned();
        if let Some(children) = group.children_mut() {
            children.retain(|node| {
                matches!(
                    node.name(),
                    "server" | "keepalive" | "ip_hash" | "least_conn" | "hash"
                )
            });
            children.retain(|node| {
                node.words
                    .iter()
                    .all(|word| !word.contains('$') || node.name() == "hash")
            });
            for node in children.iter_mut().filter(|node| node.name() == "server") {
                if let Some(address) = node.words.get_mut(1) {
                    address.clone_from(&places[number % 2]);
                    number += 1;
                }
                node.words
                    .retain(|word| word != "resolve" && !word.starts_with("slow_start"));
            }
            if number == 0 {
                children.push(Node {
                    words: vec!["server".to_owned(), places[0].clone()],
                    block: None,
                });
            }
        }
        group
    }

    pub(super) fn upstreams(&self, dice: &mut Dice) -> Vec<Upstream> {
        let mut list: Vec<(&usize, &&str)> = self
            .behind
            .iter()
            .map(|(name, index)| (index, name))
            .collect();
        list.sort();
        let of = |protocol: Protocol, dice: &mut Dice| Upstream {
            protocol,
            answers: (0..dice.between(1, 3))
                .map(|_| gateways::answer(dice))
                .collect(),
        };
        let behind = list.into_iter().map(|(_, name)| match *name {
            "fastcgi" => of(Protocol::FastCgi, dice),
            "uwsgi" => of(Protocol::Uwsgi, dice),
            "scgi" => of(Protocol::Scgi, dice),
            "grpc" => grpc::upstream(dice, false),
            "memcached" => Upstream {
                protocol: Protocol::Memcached,
                answers: vec![vec![Act::Send(Content::new("END\r\n"))]],
            },
            _ => upstream(dice, false),
        });
        behind.collect()
    }
}

fn node(words: &[&str]) -> Node {
    Node {
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        block: None,
    }
}

fn rooted(path: &str) -> String {
    let path = path.replace([' ', '\r', '\n', '#', '%', '?'], "");
    match path.starts_with('/') {
        true => path,
        false => format!("/{path}"),
    }
}

/// A folder of the case in place of another machine's; what variables name in it stays.
fn folder(word: &str, is_alias: bool) -> String {
    let bare = word.trim_matches(['"', '\'']);
    let end = match bare.find('$') {
        Some(at) => &bare[bare[..at].rfind('/').unwrap_or(at)..],
        None if is_alias && bare.ends_with('/') => "/",
        None if is_alias && bare.contains('.') => "/index.html",
        None => "",
    };
    format!("%%DIR%%/html{end}")
}

/// A variable before this text, in braces only where it needs them: `if` takes none.
fn written(name: &str, after: &str) -> String {
    match after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        true => format!("${{{name}}}"),
        false => format!("${name}"),
    }
}

/// The names of the variables in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = text;
    while let Some((_, name, after)) = variable(rest) {
        // The mark is a part of the name.
        let mark = if after.starts_with("%%N%%") {
            "%%N%%"
        } else {
            ""
        };
        found.insert(format!("{name}{mark}"));
        rest = after;
    }
    found
}

/// The first variable of a text: what is before it, its name, what is behind it.
fn variable(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find('$')?;
        let rest = &text[at + 1..];
        let (rest, is_braced) = match rest.strip_prefix('{') {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if !name.is_empty() {
            let after = if is_braced {
                after.strip_prefix('}').unwrap_or(after)
            } else {
                after
            };
            return Some((&text[..at], name, after));
        }
        from = at + 1;
    }
}
