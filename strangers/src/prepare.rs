//! From a stranger's text to one that both servers can run here.
//!
//! Only words that name this machine's things are changed: addresses, files, names of servers behind. All else reaches
//! the servers as it was written. A text that is a part of a configuration gets the surroundings that it is meant for.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use crate::addresses::{Addresses, Listen};
use crate::facts::{Facts, File, Server, push, rooted};
use crate::includes;
use crate::repositories::{Address, Clone};
use crate::syntax::{self, Node, Word};
use weir_differential::samples::samples;
use weir_differential::template;

/// Why a text cannot be run; counted in the report.
pub(crate) type Skipped = String;

/// A configuration that can be run.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) text: String,
    pub(crate) facts: Facts,
    pub(crate) addresses: Addresses,
    /// Third-party directives that were taken out, as neither server has them.
    pub(crate) removed: Vec<String>,
}

/// Where a directive stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Main,
    Http,
    Stream,
    Server,
    Location,
    Upstream,
    /// Rows of data: `map`, `types`, `geo` …
    Rows,
    Other,
}

/// What is known of the directives' names.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Names that neither server knows.
    pub(crate) to_none: HashSet<String>,
}

/// Prepares one text.
pub(crate) fn prepare(
    clone: &Clone,
    address: &Address,
    known: &Known,
    addresses: Addresses,
) -> Result<Prepared, Skipped> {
    let text = clone
        .text(&address.path)
        .ok_or("the file is not in the clone, or no text")?;
    let text = clean(&text);
    let nodes = syntax::parse(&text).ok_or("the text does not parse, not even as a template")?;
    let place = place_of(&nodes).ok_or("no directive says where the text belongs")?;
    let mut walk = Walk {
        clone,
        known,
        addresses,
        facts: Facts::default(),
        removed: Vec::new(),
        upstreams: HashSet::new(),
        passes: String::new(),
        server: None,
    };
    walk.survey(&nodes, &address.path, 0);
    let body = walk.text(&text, &nodes, place, &address.path, 0);
    let text = walk.surround(place, &body);
    // For servers with TLS whose certificate is in another file.
    walk.facts
        .files
        .push(("site/own".to_owned(), File::Certificate));
    walk.facts
        .files
        .push(("site/own.key".to_owned(), File::Key));
    if walk.facts.servers.is_empty() {
        return Err("it has no server block".to_owned());
    }
    Ok(Prepared {
        text,
        facts: walk.facts,
        addresses: walk.addresses,
        removed: walk.removed,
    })
}

impl Prepared {
    /// The text with these lines at the head of `http`.
    pub(crate) fn with(&self, more: &str) -> String {
        self.text.replacen(MORE, more, 1)
    }

    /// The line that is missing when nginx says this: what a part of a configuration uses is defined elsewhere.
    pub(crate) fn missing(&self, message: &str) -> Option<String> {
        let quoted = message.split('"').nth(1).unwrap_or_default();
        let folder = self.addresses.folder.display();
        if message.contains("unknown log format") {
            return Some(format!(
                "log_format {quoted} '$remote_addr \"$request\" $status';\n"
            ));
        }
        // A directive of a third party that was taken out has defined it.
        if quoted.starts_with("acme_") {
            return None;
        }
        if message.contains("unknown \"") && message.contains("variable") {
            let line = match quoted {
                "connection_upgrade" => {
                    "map $http_upgrade $connection_upgrade { default upgrade; '' close; }\n"
                        .to_owned()
                }
                _ => format!("map $request_method ${quoted} {{ POST post; default ''; }}\n"),
            };
            return Some(line);
        }
        if message.contains("zone")
            && (message.contains("unknown") || message.contains("zero size"))
        {
            let name = message.split("zone \"").nth(1)?.split('"').next()?;
            let of_kind = |kind: &str| {
                self.text
                    .lines()
                    .any(|line| line.contains(kind) && line.contains(name))
            };
            let line = if of_kind("limit_req ") {
                format!("limit_req_zone $binary_remote_addr zone={name}:1m rate=100000r/s;\n")
            } else if of_kind("limit_conn ") {
                format!("limit_conn_zone $binary_remote_addr zone={name}:1m;\n")
            } else if of_kind("fastcgi_cache ") {
                format!(
                    "fastcgi_cache_path {folder}/cache_{name} keys_zone={name}:1m;\nfastcgi_cache_key $request_uri;\n"
                )
            } else {
                format!("proxy_cache_path {folder}/cache_{name} keys_zone={name}:1m;\n")
            };
            return Some(line);
        }
        let wants_certificate = message.contains("no \"ssl_certificate");
        wants_certificate.then(|| {
            format!(
                "ssl_certificate {folder}/site/own;\nssl_certificate_key {folder}/site/own.key;\n"
            )
        })
    }
}

/// The names of all directives of a text, for the count of those that nobody knows.
pub(crate) fn names(clone: &Clone, address: &Address) -> Vec<String> {
    fn collect(nodes: &[Node], names: &mut Vec<String>) {
        for node in nodes {
            names.push(node.name().to_owned());
            if !has_rows(node.name()) {
                collect(node.block.as_deref().unwrap_or_default(), names);
            }
        }
    }
    let mut names = Vec::new();
    let text = clone.text(&address.path).map(|text| clean(&text));
    collect(
        &text.as_deref().and_then(syntax::parse).unwrap_or_default(),
        &mut names,
    );
    names
}

/// As plain text, when it is a template.
pub(crate) fn clean(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    template::fill(text).unwrap_or_else(|| text.to_owned())
}

fn has_rows(name: &str) -> bool {
    matches!(
        name,
        "map" | "geo" | "types" | "split_clients" | "charset_map" | "match" | "geoip2" | "map_hash"
    )
}

fn place_of(nodes: &[Node]) -> Option<Place> {
    let has = |names: &[&str]| nodes.iter().any(|node| names.contains(&node.name()));
    let streams = nodes
        .iter()
        .any(|node| node.name() == "server" && is_stream_server(node));
    if has(&["http", "events", "stream"]) {
        Some(Place::Main)
    } else if streams {
        Some(Place::Stream)
    } else if has(&[
        "server",
        "upstream",
        "map",
        "limit_req_zone",
        "proxy_cache_path",
        "geo",
    ]) {
        Some(Place::Http)
    } else if nodes.is_empty() {
        None
    } else {
        Some(Place::Server)
    }
}

fn is_stream_server(node: &Node) -> bool {
    let block = node.block.as_deref().unwrap_or_default();
    let passes = block.iter().any(|inner| inner.name() == "proxy_pass");
    passes && !block.iter().any(|inner| inner.name() == "location")
}

/// Files that Debian's package of nginx has, and configurations include.
const PACKAGED: &[&str] = &[
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "uwsgi_params",
    "scgi_params",
    "proxy_params",
    "koi-utf",
    "koi-win",
    "win-utf",
];

const MAX_INCLUDES: usize = 6;

/// Stands where what is used and not defined is to be defined.
const MORE: &str = "%%MORE%%";

/// Stands where folders for temporary files are to be named.
const TEMPORARY: &str = "\n%%TEMPORARY%%\n";

pub(crate) struct Walk<'a> {
    clone: &'a Clone,
    known: &'a Known,
    pub(crate) addresses: Addresses,
    pub(crate) facts: Facts,
    removed: Vec<String>,
    upstreams: HashSet<String>,
    /// All words of `proxy_pass` and its like: which variables are addresses.
    passes: String,
    server: Option<Server>,
}

/// Words of a text that are replaced.
type Edits = BTreeMap<usize, (Range<usize>, String)>;

impl Walk<'_> {
    /// Names that must be known before the first word is changed.
    fn survey(&mut self, nodes: &[Node], path: &str, depth: usize) {
        for node in nodes {
            match node.name() {
                "upstream" => {
                    self.upstreams.insert(node.word(1).to_owned());
                }
                "include" if depth < MAX_INCLUDES => {
                    for inner in includes::find(&self.clone.paths, path, node.word(1)) {
                        let text = self.clone.text(&inner).map(|text| clean(&text));
                        let nodes = text.as_deref().and_then(syntax::parse).unwrap_or_default();
                        self.survey(&nodes, &inner, depth + 1);
                    }
                }
                name if name.ends_with("_pass") => {
                    self.passes.push_str(node.word(1));
                    self.passes.push('\n');
                }
                _ => {}
            }
            self.survey(node.block.as_deref().unwrap_or_default(), path, depth);
        }
    }

    /// The text of these nodes with its edits.
    fn text(
        &mut self,
        text: &str,
        nodes: &[Node],
        place: Place,
        path: &str,
        depth: usize,
    ) -> String {
        let mut edits = Edits::new();
        for node in nodes {
            self.node(node, place, path, depth, &mut edits);
        }
        let mut prepared = String::with_capacity(text.len());
        let mut at = 0;
        for (range, new) in edits.into_values() {
            if range.start >= at {
                prepared.push_str(&text[at..range.start]);
                prepared.push_str(&new);
                at = range.end;
            }
        }
        prepared.push_str(&text[at..]);
        prepared
    }

    fn node(&mut self, node: &Node, place: Place, path: &str, depth: usize, edits: &mut Edits) {
        let name = node.name();
        if place == Place::Rows {
            return self.row(node, edits);
        }
        push(&mut self.facts.directives, name.to_owned());
        if name == "rewrite" {
            self.facts.directives.push(name.to_owned());
        }
        if self.known.to_none.contains(name) {
            push(&mut self.removed, name.to_owned());
            return remove(node, edits);
        }
        match name {
            "user"
            | "daemon"
            | "pid"
            | "worker_processes"
            | "load_module"
            | "worker_cpu_affinity"
            | "worker_priority"
            | "working_directory"
            | "lock_file"
            | "master_process"
            | "mail"
            | "worker_rlimit_nofile"
            | "worker_rlimit_core"
            | "thread_pool"
            | "use"
            | "debug_points" => return remove(node, edits),
            "include" => return self.include(node, place, path, depth, edits),
            _ => self.words(node, place, edits),
        }
        let Some(block) = &node.block else { return };
        let inner = inside(name, place, node);
        let opens = inner == Place::Server && name == "server";
        if opens {
            self.server = Some(Server {
                is_stream: place == Place::Stream,
                ..Server::default()
            });
        }
        if inner == Place::Http {
            edits.insert(
                node.inside,
                (node.inside..node.inside, TEMPORARY.to_owned()),
            );
        }
        for child in block {
            self.node(child, inner, path, depth, edits);
        }
        if opens {
            self.close_server(Some((node.inside, edits)));
        }
    }

    /// The end of a server: one that listens nowhere gets a place to.
    fn close_server(&mut self, at: Option<(usize, &mut Edits)>) -> Option<String> {
        let mut server = self.server.take()?;
        let mut line = None;
        if server.listens.is_empty() && !server.is_stream {
            let address = self.addresses.listening("80", false);
            line = Some(format!(" listen {address}; "));
            server.listens.push(Listen {
                address,
                is_tls: false,
                is_proxied: false,
                is_udp: false,
            });
        }
        self.facts.servers.push(server);
        if let (Some((inside, edits)), Some(line)) = (at, &line) {
            edits
                .entry(inside)
                .or_insert((inside..inside, line.clone()));
        }
        line
    }

    fn include(&mut self, node: &Node, place: Place, path: &str, depth: usize, edits: &mut Edits) {
        let wanted = node.word(1);
        let base = wanted.rsplit('/').next().unwrap_or_default();
        let found = if depth < MAX_INCLUDES {
            includes::find(&self.clone.paths, path, wanted)
        } else {
            Vec::new()
        };
        let mut whole = String::new();
        for inner in &found {
            let Some(text) = self.clone.text(inner).map(|text| clean(&text)) else {
                continue;
            };
            if let Some(nodes) = syntax::parse(&text) {
                whole.push_str(&self.text(&text, &nodes, place, inner, depth + 1));
                whole.push('\n');
            }
        }
        if found.is_empty() && PACKAGED.contains(&base) {
            whole = format!("include /etc/nginx/{base};");
        }
        edits.insert(node.span.start, (node.span.clone(), whole));
    }

    fn row(&mut self, node: &Node, edits: &mut Edits) {
        if node.name() == "include" {
            return remove(node, edits);
        }
        for word in node.arguments() {
            let text = word.text.clone();
            if let Some(new) = self.value_behind(&text) {
                replace(word, &new, edits);
            }
        }
    }

    /// One directive's words.
    fn words(&mut self, node: &Node, place: Place, edits: &mut Edits) {
        let name = node.name();
        match name {
            "listen" => self.listen(node, place, edits),
            "server_name" => {
                let names = node.arguments().iter().map(|word| word.text.clone());
                if let Some(server) = &mut self.server {
                    server.names.extend(names);
                }
            }
            "server" if place == Place::Upstream => self.behind(&node.words, 1, edits),
            "proxy_pass" | "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" | "grpc_pass"
            | "memcached_pass" => {
                self.pass(node, edits);
            }
            "resolver" => {
                let own = format!("127.0.0.1:{}", self.addresses.names);
                let is_option = |word: &&Word| word.text.contains('=');
                let words = node.arguments();
                let mut kept: Vec<&str> = words
                    .iter()
                    .filter(is_option)
                    .map(|word| word.text.as_str())
                    .collect();
                kept.insert(0, &own);
                let text = format!("resolver {};", kept.join(" "));
                edits.insert(node.span.start, (node.span.clone(), text));
            }
            "set" => {
                let value = node.word(2).to_owned();
                if let (Some(new), Some(word)) =
                    (self.variable(node.word(1), &value), node.words.get(2))
                {
                    replace(word, &new, edits);
                }
            }
            "limit_req_zone" => {
                for word in node
                    .arguments()
                    .iter()
                    .filter(|word| word.text.starts_with("rate="))
                {
                    replace(word, "rate=100000r/s", edits);
                }
            }
            // How many requests a millisecond has is no property of a configuration.
            "limit_req" => {
                let zone = node
                    .arguments()
                    .iter()
                    .find(|word| word.text.starts_with("zone="));
                if let Some(zone) = zone {
                    let text = format!("limit_req {} burst=100000 nodelay;", zone.text);
                    edits.insert(node.span.start, (node.span.clone(), text));
                }
            }
            "map" => self.map(node),
            "if" => self.condition(node),
            "location" | "rewrite" | "try_files" | "error_page" => self.paths(node),
            _ => {}
        }
        self.files(node, edits);
    }

    fn listen(&mut self, node: &Node, place: Place, edits: &mut Edits) {
        let Some(word) = node.words.get(1) else {
            return;
        };
        let options: Vec<&str> = node.arguments()[1..]
            .iter()
            .map(|word| word.text.as_str())
            .collect();
        let is_udp = options.contains(&"udp");
        let address = self.addresses.listening(&word.text, is_udp);
        replace(word, &address, edits);
        // Sockets that share a port need rights and kernels that do not matter here.
        for word in &node.arguments()[1..] {
            if word.text.starts_with("fastopen") || word.text.starts_with("setfib") {
                replace(word, "", edits);
            }
        }
        let listen = Listen {
            address,
            is_tls: options.contains(&"ssl"),
            is_proxied: options.contains(&"proxy_protocol"),
            is_udp,
        };
        if place == Place::Server
            && let Some(server) = &mut self.server
        {
            server.listens.push(listen);
        }
    }

    /// The word at `index` is the address of a server behind.
    fn behind(&mut self, words: &[Word], index: usize, edits: &mut Edits) {
        if let Some(word) = words.get(index)
            && !word.text.contains('$')
        {
            let new = self.addresses.behind(&word.text);
            replace(word, &new, edits);
        }
    }

    fn pass(&mut self, node: &Node, edits: &mut Edits) {
        let Some(word) = node.words.get(1) else {
            return;
        };
        let text = word.text.clone();
        let is_stream = self.server.as_ref().is_some_and(|server| server.is_stream);
        let wants_scheme = node.name() == "proxy_pass" && !is_stream && !text.contains("://");
        let text = if wants_scheme && !text.contains('$') {
            format!("http://{text}")
        } else {
            text
        };
        let new = self.url(&text);
        if new != word.text {
            replace(word, &new, edits);
        }
    }

    /// An address with a scheme and a path, or without both.
    fn url(&mut self, text: &str) -> String {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (format!("{scheme}://"), rest),
            None => (String::new(), text),
        };
        if let Some(path) = rest.strip_prefix("unix:") {
            let (path, uri) = path
                .split_once(':')
                .map_or((path, ""), |(path, uri)| (path, uri));
            let socket = self.addresses.behind(&format!("unix:{path}"));
            let uri = if scheme.is_empty() {
                String::new()
            } else {
                format!(":{uri}")
            };
            return format!("{scheme}{socket}{uri}");
        }
        let end = rest.find('/').unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        if self.upstreams.contains(host) || host.is_empty() {
            return text.to_owned();
        }
        if let Some(at) = host.find('$') {
            // A literal port behind a variable.
            return match host.rsplit_once(':') {
                Some((name, port)) if name.len() > at && port.parse::<u16>().is_ok() => {
                    format!("{scheme}{name}:{}{path}", self.addresses.behind)
                }
                _ => text.to_owned(),
            };
        }
        format!("{scheme}{}{path}", self.addresses.behind(host))
    }

    /// What the value of a variable becomes that an address is made of.
    fn variable(&mut self, name: &str, value: &str) -> Option<String> {
        let bare = name.trim_start_matches('$');
        let braced = format!("${{{bare}}}");
        let used = [format!("${bare}"), braced];
        let at = used
            .iter()
            .find_map(|used| self.passes.find(used.as_str()).map(|at| at + used.len()))?;
        if value.parse::<u16>().is_ok() {
            return Some(self.addresses.behind.to_string());
        }
        if let Some(new) = self.value_behind(value) {
            return Some(new);
        }
        let is_name = !value.is_empty()
            && !value.contains(['$', '/', ':'])
            && !matches!(value, "http" | "https" | "grpc" | "on" | "off")
            && !self.upstreams.contains(value);
        let has_port = self.passes[at..].starts_with(':');
        (is_name && !has_port).then(|| self.addresses.behind(value))
    }

    /// A value that is an address whatever it is used for.
    fn value_behind(&mut self, value: &str) -> Option<String> {
        if value.contains('$') && !value.contains("://") {
            return None;
        }
        let is_url = ["http://", "https://", "grpc://", "unix:"]
            .iter()
            .any(|start| value.starts_with(start));
        let is_pair = value.rsplit_once(':').is_some_and(|(host, port)| {
            let letters =
                |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
            port.len() > 1
                && port.parse::<u16>().is_ok()
                && !host.is_empty()
                && host.chars().all(letters)
        });
        let is_used = is_pair || is_url && self.passes.contains('$');
        if !is_used {
            return None;
        }
        let new = self.url(value);
        (new != value).then_some(new)
    }

    fn map(&mut self, node: &Node) {
        let source = node.word(1);
        for row in node.block.as_deref().unwrap_or_default().iter().take(12) {
            let key = row.name();
            if matches!(key, "default" | "hostnames" | "volatile" | "include") {
                continue;
            }
            match key.strip_prefix('~') {
                Some(pattern) => self
                    .facts
                    .hint(source, pattern.trim_start_matches('*'), true),
                None => self.facts.hint(source, key, false),
            }
        }
    }

    fn condition(&mut self, node: &Node) {
        let words: Vec<&str> = node
            .arguments()
            .iter()
            .map(|word| word.text.as_str())
            .collect();
        let text = words.join(" ");
        let text = text.trim_matches(['(', ')', ' ']);
        let mut parts = text.splitn(3, ' ');
        let (Some(variable), operator, value) = (parts.next(), parts.next(), parts.next()) else {
            return;
        };
        let value = value
            .unwrap_or_default()
            .trim_matches(['"', '\'', ')', ' ']);
        match operator {
            Some("=" | "!=") => self.facts.hint(variable, value, false),
            Some("~" | "~*" | "!~" | "!~*") => self.facts.hint(variable, value, true),
            None => self.facts.hint(variable, "1", false),
            _ => {}
        }
    }

    fn paths(&mut self, node: &Node) {
        let mut paths = Vec::new();
        let words = node.arguments();
        let text = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
        match node.name() {
            "location" => match text(0) {
                "~" | "~*" => paths.extend(samples(text(1))),
                "=" | "^~" => paths.push(text(1).to_owned()),
                modified if modified.starts_with('~') => {
                    paths.extend(samples(modified.trim_start_matches(['~', '*'])))
                }
                modified => paths.push(modified.trim_start_matches(['=', '^', '~']).to_owned()),
            },
            "rewrite" => paths.extend(samples(text(0))),
            _ => paths.extend(words.iter().map(|word| word.text.clone())),
        }
        let paths = paths.into_iter().filter(|path| {
            node.name() == "location" && !path.starts_with('@')
                || path.starts_with('/') && !path.contains('$')
        });
        let paths: Vec<String> = paths.map(|path| rooted(&path)).collect();
        for path in paths {
            match &mut self.server {
                Some(server) => push(&mut server.paths, path),
                None => push(&mut self.facts.paths, path),
            }
        }
    }

    /// Words that name files.
    fn files(&mut self, node: &Node, edits: &mut Edits) {
        let (index, kind) = match node.name() {
            "root" | "alias" => (1, File::Folder),
            "ssl_certificate"
            | "ssl_client_certificate"
            | "ssl_trusted_certificate"
            | "proxy_ssl_certificate"
            | "proxy_ssl_trusted_certificate"
            | "grpc_ssl_certificate"
            | "grpc_ssl_trusted_certificate" => (1, File::Certificate),
            "ssl_certificate_key" | "proxy_ssl_certificate_key" | "grpc_ssl_certificate_key" => {
                (1, File::Key)
            }
            "ssl_dhparam" => (1, File::Parameters),
            "auth_basic_user_file" => (1, File::Passwords),
            "ssl_session_ticket_key" => (1, File::Ticket),
            "ssl_stapling_file" | "ssl_crl" | "proxy_ssl_crl" | "ssl_password_file" => {
                return remove(node, edits);
            }
            "access_log" | "error_log" => (1, File::Empty),
            "proxy_cache_path"
            | "fastcgi_cache_path"
            | "uwsgi_cache_path"
            | "scgi_cache_path"
            | "client_body_temp_path"
            | "proxy_temp_path"
            | "fastcgi_temp_path"
            | "uwsgi_temp_path"
            | "scgi_temp_path" => (1, File::Empty),
            _ => return,
        };
        let Some(word) = node.words.get(index) else {
            return;
        };
        let path = word.text.as_str();
        let is_special = path.is_empty()
            || matches!(
                path,
                "off" | "on" | "stderr" | "/dev/stdout" | "/dev/stderr" | "/dev/null"
            )
            || path.starts_with("syslog:")
            || path.starts_with('$')
            || path.starts_with("data:");
        if is_special {
            if path.starts_with("/dev/") || path.starts_with("syslog:") || path == "stderr" {
                let own = format!("{}/special.log", self.addresses.folder.display());
                replace(word, &own, edits);
            }
            return;
        }
        let inner = format!("site{}", rooted(path));
        let own = self.addresses.folder.join(&inner);
        replace(word, &own.display().to_string(), edits);
        if kind == File::Folder {
            push(&mut self.facts.roots, inner);
        } else {
            push(&mut self.facts.files, (inner, kind));
        }
    }

    /// The text in the surroundings that it needs.
    fn surround(&mut self, place: Place, body: &str) -> String {
        let folder = self.addresses.folder.display().to_string();
        let main = format!(
            "daemon off;\npid {folder}/nginx.pid;\nworker_processes 1;\nerror_log {folder}/error.log info;\nuser root;\n"
        );
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .filter(|kind| !self.facts.directives.contains(&format!("{kind}_temp_path")))
            .map(|kind| format!("{kind}_temp_path {folder}/temp_{kind};\n"))
            .collect();
        let events = if self.facts.directives.iter().any(|name| name == "events") {
            ""
        } else {
            "events {}\n"
        };
        match place {
            Place::Main => {
                let body = body.replacen(TEMPORARY, &format!("\n{temporary}{MORE}\n"), 1);
                format!("{main}{events}{body}\n")
            }
            Place::Stream => format!("{main}events {{}}\nstream {{\n{body}\n}}\n"),
            Place::Http => format!("{main}events {{}}\nhttp {{\n{temporary}{MORE}\n{body}\n}}\n"),
            _ => {
                let root = format!("{folder}/site/html");
                push(&mut self.facts.roots, "site/html".to_owned());
                let line = self.listening_for_all();
                format!(
                    "{main}events {{}}\nhttp {{\n{temporary}{MORE}\nserver {{\n{line} root {root};\n{body}\n}}\n}}\n"
                )
            }
        }
    }

    /// The server around a text that has none.
    fn listening_for_all(&mut self) -> String {
        let mut server = Server {
            paths: std::mem::take(&mut self.facts.paths),
            ..Server::default()
        };
        server.names.push("www.example.com".to_owned());
        self.server = Some(server);
        self.close_server(None).unwrap_or_default()
    }
}

fn inside(name: &str, place: Place, node: &Node) -> Place {
    match name {
        "http" => Place::Http,
        "stream" => Place::Stream,
        "server" if matches!(place, Place::Http | Place::Stream | Place::Main) => {
            debug_assert!(node.block.is_some());
            Place::Server
        }
        "upstream" => Place::Upstream,
        "location" | "if" | "limit_except" => Place::Location,
        name if has_rows(name) => Place::Rows,
        _ => Place::Other,
    }
}

fn replace(word: &Word, new: &str, edits: &mut Edits) {
    edits.insert(word.span.start, (word.span.clone(), new.to_owned()));
}

fn remove(node: &Node, edits: &mut Edits) {
    edits.insert(node.span.start, (node.span.clone(), String::new()));
}

/// How often each name occurs.
pub(crate) fn count(names: impl Iterator<Item = String>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for name in names {
        *counts.entry(name).or_insert(0) += 1;
    }
    counts
}

/// Where files of a site are.
pub(crate) fn below(folder: &std::path::Path, inner: &str) -> PathBuf {
    folder.join(inner.split('$').next().unwrap_or_default())
}
