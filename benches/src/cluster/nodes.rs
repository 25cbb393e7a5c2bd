//! The members of a cluster: Weirs with one configuration, at loopback addresses of their own.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use net::cluster::{ClusterState, hash_of_key};
use xtask::shell;

use crate::Bench;
use crate::server::{Contender, Folder, Placement, Server, free_port};

const CONFIGURATION: &str = "
worker_processes 1;
master_process off;
worker_rlimit_nofile 65536;
events { worker_connections 8192; }
http {
    access_log off;
    keepalive_requests 1000000000;
    proxy_cache_path cache keys_zone=one:10m max_size=4g inactive=1h use_temp_path=off;
    cluster edge {
        %%MEMBERS%%
        secret \"for the measurements only\";
        %%CLUSTER%%
    }
    %%HTTP%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        listen %%PEER%% cluster=edge;
        location = /metrics { prometheus; }
        location = /purge { cache_purge one cluster=edge; }
        location /limited { %%LIMIT%% }
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache one cluster=edge;
            proxy_cache_key $uri;
            add_header X-Upstream $upstream_addr;
        }
    }
}
";

/// What the configurations say besides.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeLines {
    pub(crate) origin: u16,
    /// In the `cluster` block.
    pub(crate) cluster: String,
    /// In `http`.
    pub(crate) http: String,
    /// In `location /limited`.
    pub(crate) limit: String,
}

/// A member.
pub(crate) struct ClusterNode {
    pub(crate) server: Option<Server>,
    pub(crate) peer: SocketAddr,
    folder: Folder,
}

/// The members.
pub(crate) struct ClusterNodes {
    pub(crate) nodes: Vec<ClusterNode>,
    contender: Contender,
    lines: NodeLines,
}

impl ClusterNodes {
    /// Starts the first `started` of `count` members, and waits until they answer each other.
    pub(crate) fn start(
        bench: &Bench,
        count: usize,
        started: usize,
        lines: NodeLines,
    ) -> Result<ClusterNodes, String> {
        let mut nodes = Vec::new();
        for number in 0..count {
            let last = u8::try_from(11 + number).map_err(|error| error.to_string())?;
            let ip = IpAddr::from([127, 0, 0, last]);
            nodes.push(ClusterNode {
                server: None,
                peer: SocketAddr::new(ip, free_port()?),
                folder: Folder::new(&format!("bench-cluster-{number}"))?,
            });
            // A cache of an earlier row would have an earlier row's objects.
            let _none_yet = fs::remove_dir_all(nodes[number].folder.path.join("cache"));
        }
        let mut all = ClusterNodes {
            nodes,
            contender: Contender::new("weir", &bench.weir, ""),
            lines,
        };
        for number in 0..started {
            all.start_one(number)?;
        }
        all.until_live(started)?;
        Ok(all)
    }

    /// The configuration of a member.
    fn configuration(&self, number: usize) -> String {
        let members = self
            .nodes
            .iter()
            .map(|node| format!("member {};", node.peer));
        let members: Vec<String> = members.collect();
        CONFIGURATION
            .replace("%%MEMBERS%%", &members.join(" "))
            .replace("%%CLUSTER%%", &self.lines.cluster)
            .replace("%%HTTP%%", &self.lines.http)
            .replace("%%LIMIT%%", &self.lines.limit)
            .replace("%%PEER%%", &self.nodes[number].peer.to_string())
            .replace("%%ORIGIN%%", &self.lines.origin.to_string())
    }

    /// Starts a member, or starts it again with what it has stored.
    pub(crate) fn start_one(&mut self, number: usize) -> Result<(), String> {
        let text = self.configuration(number);
        let folder = &self.nodes[number].folder.path;
        fs::write(folder.join("html/limited"), "passed").map_err(|error| error.to_string())?;
        let started = Server::start(&self.contender, folder, &text, &Placement::default())?;
        self.nodes[number].server = Some(started);
        Ok(())
    }

    /// Where the instructions of a member are written. In a folder that outlives it.
    pub(crate) fn profile(&self, number: usize) -> PathBuf {
        let name = format!("bench-cluster-{}-{number}.callgrind", std::process::id());
        crate::scratch().join(name)
    }

    /// Starts a member under callgrind, with these parts of its configuration replaced.
    pub(crate) fn start_counted(
        &mut self,
        number: usize,
        profile: &Path,
        replaced: &[(&str, &str)],
    ) -> Result<(), String> {
        let port = free_port()?;
        let mut text = self
            .configuration(number)
            .replace("%%PORT%%", &port.to_string());
        for (from, to) in replaced {
            text = text.replace(from, to);
        }
        let folder = &self.nodes[number].folder.path;
        let user = if shell::is_root() { "user root;" } else { "" };
        let text = format!("daemon off; pid server.pid; error_log error.log warn; {user}{text}");
        fs::write(folder.join("nginx.conf"), text).map_err(|error| error.to_string())?;
        fs::write(folder.join("html/limited"), "passed").map_err(|error| error.to_string())?;
        let out = format!("--callgrind-out-file={}", profile.display());
        let prefix = format!("{}/", folder.display());
        let words: [&OsStr; 7] = [
            OsStr::new("--tool=callgrind"),
            OsStr::new(&out),
            self.contender.binary.as_os_str(),
            OsStr::new("-p"),
            OsStr::new(&prefix),
            OsStr::new("-c"),
            OsStr::new("nginx.conf"),
        ];
        let started = Server::peer(Path::new("valgrind"), &words, None, port)?;
        self.nodes[number].server = Some(started);
        Ok(())
    }

    /// The ports for clients of those that run.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let running = self.nodes.iter().filter_map(|node| node.server.as_ref());
        running.map(|server| server.port).collect()
    }

    /// Kills a member: what it has stored is left.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(server) = self.nodes[number].server.take() {
            server.kill();
        }
    }

    /// Sends a member a signal.
    pub(crate) fn signal(&self, number: usize, signal: &str) {
        if let Some(server) = &self.nodes[number].server {
            server.signal(signal);
        }
    }

    /// Waits until every running member sees this number of members.
    pub(crate) fn until_live(&self, count: usize) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(30);
        let wanted = format!("weir_cluster_members_live{{cluster=\"edge\"}} {count}\n");
        for port in self.ports() {
            while !get(port, "/metrics").is_ok_and(|text| text.contains(&wanted)) {
                if Instant::now() > end {
                    return Err(format!("a member never sees {count} members"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// The sum of a number over all running members' metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let texts = self
            .ports()
            .into_iter()
            .filter_map(|port| get(port, "/metrics").ok());
        let of = |text: String| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        texts.map(of).sum()
    }

    /// A path of this kind whose key a member owns, by the code of the server itself.
    pub(crate) fn path_owned_by(&self, owner: usize, kind: &str) -> String {
        let state = ClusterState::default();
        let addresses: Vec<SocketAddr> = self.nodes.iter().map(|node| node.peer).collect();
        state.set_members(&addresses, None, Instant::now());
        let view = state.view();
        let is_owned = |path: &String| {
            let route = view.route_of(&hash_of_key(path.as_bytes()), Instant::now());
            route
                .owner
                .is_some_and(|member| member.address == addresses[owner])
        };
        let mut paths = (0..).map(|number| format!("/{kind}/{number}"));
        paths.find(is_owned).unwrap_or_default()
    }
}

/// The content of a whole answer.
pub(crate) fn get(port: u16, path: &str) -> Result<String, String> {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let text = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(text.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    asked().map_err(|error| format!("{path}: {error}"))
}
