//! A copy of the server beside the one that is there: the same configuration on private ports, which writes nothing outside of a
//! temporary directory.
//!
//! The configuration is changed as a tree, after the files have been read, in the master and in the worker alike. What remains
//! is what decides about responses: names, locations, roots, upstream servers, users.
//!
//! ```text
//! listen 80 default_server reuseport     listen 127.0.0.1:41234 default_server
//! listen 10.0.0.1:80 ssl                 listen 127.0.0.1:41235 ssl
//! listen 443 quic                        (left out)
//! proxy_cache_path /var/cache/a …        proxy_cache_path /tmp/…/cache_var_cache_a …
//! ```
//!
//! Unix sockets get TCP ports, too: `allow` and `deny` see 127.0.0.1 then, as nginx sees the client of the battery elsewhere.
//!
//! A canary has clients. It keeps the addresses that it shares, and gets the private ones besides; it writes the logs of the
//! configuration, and does what a request asks for. Only what the other server alone may write remains private: caches, temporary
//! files, the pid file.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use base::{BString, ByteSlice as _, Span};
use conf::{BlockContent, DirectiveNode, DirectiveWord};

/// Directives that the copy does without: places where it would write, what would do something besides a response, and what
/// belongs to the machine rather than to the site.
const LEFT_OUT: &[&str] = &[
    "access_log",
    "error_log",
    "pid",
    "lock_file",
    "daemon",
    "master_process",
    "worker_processes",
    "worker_cpu_affinity",
    "worker_priority",
    "worker_rlimit_core",
    "client_body_temp_path",
    "proxy_temp_path",
    "fastcgi_temp_path",
    "uwsgi_temp_path",
    "scgi_temp_path",
    "proxy_store",
    "fastcgi_store",
    "uwsgi_store",
    "scgi_store",
    "dav_methods",
    "create_full_put_path",
    "mirror",
    "post_action",
];

/// Of these, those that a canary has.
const KEPT_BY_CANARIES: &[&str] = &[
    "access_log",
    "error_log",
    "worker_processes",
    "proxy_store",
    "fastcgi_store",
    "uwsgi_store",
    "scgi_store",
    "dav_methods",
    "create_full_put_path",
    "mirror",
    "post_action",
];

/// The name and the text of the format in which a canary logs for this command, beside the logs of the configuration.
const OUTCOMES: (&str, &str) = ("weir_canary", "$status $request_time");

/// Directives that name a directory for a cache.
const CACHES: &[&str] = &[
    "proxy_cache_path",
    "fastcgi_cache_path",
    "uwsgi_cache_path",
    "scgi_cache_path",
];

/// Blocks that have directives; others have data.
const BLOCKS: &[&str] = &[
    "http",
    "stream",
    "mail",
    "server",
    "location",
    "if",
    "limit_except",
];

/// What remains of the parameters of `listen`: the others are about the socket.
const KEPT_PARAMETERS: &[&str] = &[
    "ssl",
    "http2",
    "proxy_protocol",
    "default_server",
    "default",
];

/// Where the copy listens instead, and where it may write.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrivateCopy {
    /// A directory that is removed with the copy.
    folder: PathBuf,
    /// The private address of each address of the configuration.
    pub(super) addresses: BTreeMap<ListenKey, SocketAddr>,
    canary: Option<CanaryPlace>,
}

/// What a canary shares with the running server.
#[derive(Clone, Debug)]
pub(super) struct CanaryPlace {
    /// The addresses at which both have sockets.
    pub(super) shared: Vec<SocketAddr>,
    /// Its sockets there, until its master has taken them.
    pub(super) sockets: SharedSockets,
    /// Where requests are logged for which the configuration names no log.
    pub(super) access_log: PathBuf,
}

/// Descriptors that one process of several takes.
pub(super) type SharedSockets = std::sync::Arc<std::sync::Mutex<Vec<OwnedFd>>>;

/// An address as `listen` has it: the engine, and the text with its defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListenKey {
    pub(super) engine: String,
    pub(super) address: String,
}

impl ListenKey {
    /// The key for the first word of `listen`.
    pub(super) fn new(engine: &str, word: &[u8]) -> ListenKey {
        let word = word.to_str_lossy();
        let is_port =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let address = match word.strip_prefix("*:") {
            Some(port) => format!("0.0.0.0:{port}"),
            None if is_port(&word) => format!("0.0.0.0:{word}"),
            None if word.starts_with("unix:") => word.into_owned(),
            None => match word.rsplit_once(':') {
                Some((_, port)) if is_port(port) && !word.ends_with(']') => word.into_owned(),
                _ => format!("{word}:80"),
            },
        };
        ListenKey {
            engine: engine.to_owned(),
            address,
        }
    }

    /// The address of a server of `http` that names none.
    pub(super) fn default_of_http() -> ListenKey {
        let port = if host::process::is_root() {
            "80"
        } else {
            "8000"
        };
        ListenKey::new("http", port.as_bytes())
    }
}

/// Ports that nothing else takes until the copy listens there.
pub(super) struct HeldPorts(Vec<TcpListener>);

impl PrivateCopy {
    /// Chooses an address for each one of the configuration.
    pub(super) fn new(
        folder: &Path,
        nodes: &[DirectiveNode],
        canary: Option<CanaryPlace>,
    ) -> Result<(PrivateCopy, HeldPorts), String> {
        let mut copy = PrivateCopy {
            folder: folder.to_owned(),
            addresses: BTreeMap::new(),
            canary,
        };
        if orders_certificates(nodes) {
            return Err(
                "a configuration with \"acme_issuer\" has no copy, which would ask for certificates of its own; \
                 \"--requests 0\" takes over without a comparison"
                    .to_owned(),
            );
        }
        let mut held = HeldPorts(Vec::new());
        for key in listen_keys(nodes) {
            if copy.addresses.contains_key(&key) {
                continue;
            }
            let socket = TcpListener::bind("127.0.0.1:0");
            let socket = socket.and_then(|socket| Ok((socket.local_addr()?, socket)));
            let (address, socket) =
                socket.map_err(|error| format!("no private port is free: {error}"))?;
            copy.addresses.insert(key, address);
            held.0.push(socket);
        }
        Ok((copy, held))
    }

    /// Where the copy's master writes its number when it listens.
    pub(super) fn pid_path(&self) -> PathBuf {
        self.folder.join("pid")
    }

    /// Its error log.
    pub(super) fn log_path(&self) -> PathBuf {
        self.folder.join("error.log")
    }

    /// Whether it has clients, and writes what the configuration says.
    pub(super) fn is_canary(&self) -> bool {
        self.canary.is_some()
    }

    /// Where a canary logs how its requests ended, and the format.
    pub(super) fn outcomes(&self) -> (PathBuf, &'static str) {
        (self.folder.join("outcomes.log"), OUTCOMES.1)
    }

    /// The sockets at the shared addresses; once.
    pub(crate) fn take_sockets(&self) -> Vec<OwnedFd> {
        let sockets = self.canary.as_ref().map(|canary| canary.sockets.lock());
        // A poisoned lock would be of a thread that panicked; here is only one.
        sockets
            .and_then(Result::ok)
            .map_or_else(Vec::new, |mut sockets| std::mem::take(&mut *sockets))
    }

    /// Changes a configuration into that of the copy.
    pub(crate) fn rewrite(&self, nodes: &mut Vec<DirectiveNode>) {
        for node in nodes.iter_mut() {
            let engine = node.name.text.to_str_lossy().into_owned();
            self.rewrite_node(node, &engine);
        }
        let place = nodes.first().map_or(Span::NONE, |node| node.head);
        nodes.retain(|node| self.keeps(node));
        nodes.push(directive(place, "pid", &[&path_text(&self.pid_path())]));
        nodes.push(directive(place, "daemon", &["off"]));
        if !self.is_canary() {
            let log = path_text(&self.log_path());
            nodes.push(directive(place, "error_log", &[&log, "notice"]));
            nodes.push(directive(place, "worker_processes", &["1"]));
        }
    }

    /// Changes a directive, and those in its block. `engine` is the block of the main context around it: `http`, `stream` or `mail`.
    fn rewrite_node(&self, node: &mut DirectiveNode, engine: &str) {
        let name = node.name.text.to_str_lossy().into_owned();
        if CACHES.contains(&name.as_str()) {
            self.move_cache(node);
        }
        if !BLOCKS.contains(&name.as_str()) {
            return;
        }
        // A block of very many lines is kept in another form until its lines are needed; here it becomes ordinary.
        let mut inside = node.block.nodes().to_vec();
        if name == "server" {
            self.move_listeners(&mut inside, engine, node.head);
        }
        inside.retain(|node| self.keeps(node));
        for node in &mut inside {
            self.rewrite_node(node, engine);
        }
        match &self.canary {
            Some(canary) if engine == "http" => self.log_outcomes(&mut inside, node, canary),
            Some(_) => {}
            // Blocks inside have lost their own logs, so this is true for all of them.
            None if name == "http" => {
                inside.push(directive(node.head, "access_log", &["off"]));
            }
            None => {}
        }
        node.block = BlockContent::Nodes(inside);
    }

    /// Whether a directive is part of the copy.
    fn keeps(&self, node: &DirectiveNode) -> bool {
        let is_in = |list: &[&str]| list.iter().any(|name| node.name.is(name));
        !is_in(LEFT_OUT) || self.is_canary() && is_in(KEPT_BY_CANARIES)
    }

    /// Adds a log of outcomes wherever a block decides about its logs, which hide those of the block around it.
    fn log_outcomes(
        &self,
        inside: &mut Vec<DirectiveNode>,
        block: &DirectiveNode,
        canary: &CanaryPlace,
    ) {
        let has_logs = named(inside, "access_log").next().is_some();
        let is_http = block.name.is("http");
        let log = |path: &Path, format: &str| {
            directive(block.head, "access_log", &[&path_text(path), format])
        };
        if is_http {
            // A format has to be there before it is used.
            let format = directive(block.head, "log_format", &[OUTCOMES.0, OUTCOMES.1]);
            inside.insert(0, format);
            if !has_logs {
                inside.push(log(&canary.access_log, "combined"));
            }
        }
        let is_off = |node: &DirectiveNode| node.args.first().is_some_and(|word| word.is("off"));
        inside.retain(|node| !node.name.is("access_log") || !is_off(node));
        if has_logs || is_http {
            inside.push(log(&self.outcomes().0, OUTCOMES.0));
        }
    }

    /// Whether both servers have sockets at an address.
    fn shares(&self, key: &ListenKey) -> bool {
        let Some(canary) = &self.canary else {
            return false;
        };
        let addresses = key.address.to_socket_addrs();
        addresses.is_ok_and(|mut list| {
            list.len() > 0 && list.all(|address| canary.shared.contains(&address))
        })
    }

    /// A cache of its own, empty at first, in place of one that the running server writes.
    fn move_cache(&self, node: &mut DirectiveNode) {
        let Some(path) = node.args.first_mut() else {
            return;
        };
        let name: String = path
            .text
            .to_str_lossy()
            .chars()
            .map(|char| {
                if char.is_ascii_alphanumeric() {
                    char
                } else {
                    '_'
                }
            })
            .collect();
        path.text = BString::from(format!("{}/cache{name}", self.folder.display()));
    }

    /// Gives the `listen` lines of a server their private addresses. Servers that share an address keep sharing one, so names and
    /// `default_server` decide between them as before.
    fn move_listeners(&self, inside: &mut Vec<DirectiveNode>, engine: &str, place: Span) {
        let mut has_any = false;
        let mut public = Vec::new();
        for node in inside.iter_mut().filter(|node| node.name.is("listen")) {
            has_any = true;
            let Some((word, parameters)) = node.args.split_first() else {
                continue;
            };
            let key = ListenKey::new(engine, &word.text);
            let private = self.addresses.get(&key).filter(|_| !is_datagram(node));
            if private.is_some() && self.shares(&key) {
                let mut listen = node.clone();
                // There is one socket, which came with the start: the kernel counts on its place among those of the address.
                let kept = listen.args.iter().filter(|word| !word.is("reuseport"));
                listen.args = kept.cloned().collect();
                public.push(listen);
            }
            node.args = match private {
                Some(address) => {
                    let address = new_word(&address.to_string());
                    let kept = parameters.iter().filter(|word| {
                        KEPT_PARAMETERS.contains(&word.text.to_str_lossy().as_ref())
                    });
                    [address].into_iter().chain(kept.cloned()).collect()
                }
                // Left out below: nothing is sent to it.
                None => Box::new([]),
            };
        }
        inside.retain(|node| !node.name.is("listen") || !node.args.is_empty());
        inside.append(&mut public);
        let default = ListenKey::default_of_http();
        if !has_any
            && engine == "http"
            && let Some(address) = self.addresses.get(&default)
        {
            inside.push(directive(place, "listen", &[&address.to_string()]));
            if self.shares(&default) {
                inside.push(directive(place, "listen", &[&default.address]));
            }
        }
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Whether a `listen` is for datagrams. HTTP/3 is not compared.
fn is_datagram(listen: &DirectiveNode) -> bool {
    listen
        .args
        .iter()
        .any(|word| word.is("udp") || word.is("quic"))
}

/// The addresses of all servers.
fn listen_keys(nodes: &[DirectiveNode]) -> Vec<ListenKey> {
    let mut keys = Vec::new();
    for engine in nodes {
        let name = engine.name.text.to_str_lossy();
        for server in named(engine.block.nodes(), "server") {
            let listens: Vec<&DirectiveNode> = named(server.block.nodes(), "listen").collect();
            if listens.is_empty() && name == "http" {
                keys.push(ListenKey::default_of_http());
            }
            let streams = listens.into_iter().filter(|listen| !is_datagram(listen));
            keys.extend(
                streams
                    .filter_map(|listen| Some(ListenKey::new(&name, &listen.args.first()?.text))),
            );
        }
    }
    keys
}

/// Whether a server with this configuration orders certificates: its copy would do that under an account of its own.
fn orders_certificates(nodes: &[DirectiveNode]) -> bool {
    let mut inside = named(nodes, "http").flat_map(|http| http.block.nodes());
    inside.any(|node| node.name.is("acme_issuer"))
}

/// Where a server of `http` listens.
#[derive(Clone, Debug)]
pub(super) struct ListenPlace {
    pub(super) key: ListenKey,
    pub(super) is_tls: bool,
    /// Whether a PROXY protocol header is expected.
    pub(super) is_proxied: bool,
}

/// The addresses of a server of `http`, given what is in its block. Those of HTTP/3 are left out.
pub(super) fn listen_places(inside: &[DirectiveNode]) -> Vec<ListenPlace> {
    let is_on = |node: &DirectiveNode| node.args.first().is_some_and(|word| word.is("on"));
    let says_ssl = named(inside, "ssl").any(is_on);
    let mut places: Vec<ListenPlace> = Vec::new();
    for listen in named(inside, "listen") {
        let has = |name: &str| listen.args.iter().any(|word| word.is(name));
        if let Some(word) = listen.args.first().filter(|_| !has("quic")) {
            places.push(ListenPlace {
                key: ListenKey::new("http", &word.text),
                is_tls: has("ssl") || says_ssl,
                is_proxied: has("proxy_protocol"),
            });
        }
    }
    if named(inside, "listen").next().is_none() {
        places.push(ListenPlace {
            key: ListenKey::default_of_http(),
            is_tls: says_ssl,
            is_proxied: false,
        });
    }
    places
}

/// The nodes with a name.
pub(super) fn named<'n>(
    nodes: &'n [DirectiveNode],
    name: &'n str,
) -> impl Iterator<Item = &'n DirectiveNode> {
    nodes.iter().filter(move |node| node.name.is(name))
}

/// A word that is in no file.
fn new_word(text: &str) -> DirectiveWord {
    DirectiveWord {
        text: BString::from(text),
        span: Span::NONE,
        quoted: false,
    }
}

/// A directive that is in no file. It needs a place all the same, because one without is a default: that of the block around it.
/// Errors would show that, so the directive must be valid.
fn directive(place: Span, name: &str, args: &[&str]) -> DirectiveNode {
    DirectiveNode {
        name: new_word(name),
        args: args.iter().map(|text| new_word(text)).collect(),
        block: BlockContent::None,
        head: place,
        span: Span::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str, inside: Vec<DirectiveNode>) -> DirectiveNode {
        DirectiveNode {
            block: BlockContent::Nodes(inside),
            ..directive(Span::NONE, name, &[])
        }
    }

    #[test]
    fn certificates_are_ordered_by_one_server_only() {
        let copied =
            |inside| PrivateCopy::new(Path::new("/nowhere"), &[block("http", inside)], None);
        assert!(copied(vec![directive(Span::NONE, "gzip", &["on"])]).is_ok());
        let issuer = block("acme_issuer", Vec::new());
        assert!(copied(vec![issuer]).is_err_and(|why| why.contains("--requests 0")));
    }

    #[test]
    fn places_of_a_server_have_what_a_client_needs() {
        let places = |inside: &[DirectiveNode]| -> Vec<(String, bool, bool)> {
            let places = listen_places(inside).into_iter();
            places
                .map(|place| (place.key.address, place.is_tls, place.is_proxied))
                .collect()
        };
        let lines = [
            directive(Span::NONE, "listen", &["443", "ssl"]),
            directive(Span::NONE, "listen", &["443", "quic"]),
            directive(Span::NONE, "listen", &["8080", "proxy_protocol"]),
        ];
        let expected = [
            ("0.0.0.0:443".to_owned(), true, false),
            ("0.0.0.0:8080".to_owned(), false, true),
        ];
        assert_eq!(places(&lines), expected);
        // As nginx before 1.25 has it.
        let former = [
            directive(Span::NONE, "ssl", &["on"]),
            directive(Span::NONE, "listen", &["443"]),
        ];
        assert!(places(&former)[0].1 && places(&former[..1])[0].1);
    }

    #[test]
    fn addresses_have_one_spelling() {
        let key = |text: &str| ListenKey::new("http", text.as_bytes()).address;
        assert_eq!(key("80"), "0.0.0.0:80");
        assert_eq!(key("*:80"), "0.0.0.0:80");
        assert_eq!(key("10.0.0.1"), "10.0.0.1:80");
        assert_eq!(key("[::]:443"), "[::]:443");
        assert_eq!(key("[::1]"), "[::1]:80");
        assert_eq!(key("unix:/run/x.sock"), "unix:/run/x.sock");
    }
}
