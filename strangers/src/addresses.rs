//! Where a stranger's addresses are on this machine: listening ones are free ports of loopback, and every server
//! behind is the one that answers all protocols, at an address of loopback that its name gives.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

/// A socket that the servers under test listen on.
#[derive(Debug, Clone)]
pub(crate) struct Listen {
    /// What the prepared text has.
    pub(crate) address: String,
    pub(crate) is_tls: bool,
    pub(crate) is_proxied: bool,
    pub(crate) is_udp: bool,
}

/// The addresses of one configuration.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Where the sites' folder is; sockets are made in it.
    pub(crate) folder: PathBuf,
    /// The port of the server behind, on every address of loopback.
    pub(crate) behind: u16,
    /// The port of the name server.
    pub(crate) names: u16,
    next: u16,
    listening: BTreeMap<String, String>,
    /// Unix sockets that the server behind is to listen on.
    pub(crate) sockets: Vec<PathBuf>,
}

impl Addresses {
    /// Ports are taken from `first` on.
    pub(crate) fn new(folder: PathBuf, first: u16, behind: u16, names: u16) -> Addresses {
        Addresses {
            folder,
            behind,
            names,
            next: first,
            listening: BTreeMap::new(),
            sockets: Vec::new(),
        }
    }

    /// What `listen TEXT` becomes; one address stays one.
    pub(crate) fn listening(&mut self, text: &str, is_udp: bool) -> String {
        let (host, port) = split(text);
        let key = format!("{host} {port} {is_udp}");
        if let Some(known) = self.listening.get(&key) {
            return known.clone();
        }
        let given = if let Some(path) = text.strip_prefix("unix:") {
            format!("unix:{}/{:x}.listen", self.folder.display(), hash(path))
        } else {
            let host = match host.as_str() {
                "" | "*" | "0.0.0.0" | "localhost" => Ipv4Addr::LOCALHOST.to_string(),
                host if host.starts_with('[') => "[::1]".to_owned(),
                host => loopback(host).to_string(),
            };
            format!("{host}:{}", self.free_port())
        };
        self.listening.insert(key, given.clone());
        given
    }

    fn free_port(&mut self) -> u16 {
        loop {
            self.next += 1;
            if TcpListener::bind(("0.0.0.0", self.next)).is_ok() {
                return self.next;
            }
        }
    }

    /// What a server behind becomes: `HOST`, `HOST:PORT` or `unix:PATH`.
    pub(crate) fn behind(&mut self, text: &str) -> String {
        if let Some(path) = text.strip_prefix("unix:") {
            let socket = self.folder.join(format!("{:x}.sock", hash(path)));
            if !self.sockets.contains(&socket) {
                self.sockets.push(socket.clone());
            }
            return format!("unix:{}", socket.display());
        }
        format!("{}:{}", loopback(&text.to_ascii_lowercase()), self.behind)
    }
}

/// Host and port of `HOST`, `HOST:PORT`, `PORT` and `[V6]:PORT`.
fn split(text: &str) -> (String, String) {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return (String::new(), text.to_owned());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host.to_owned(), port.to_owned()),
        _ => (text.to_owned(), "80".to_owned()),
    }
}

/// The address of loopback that stands for a name.
pub(crate) fn loopback(name: &str) -> Ipv4Addr {
    let [_, _, _, _, _, a, b, c] = hash(name).to_be_bytes();
    Ipv4Addr::new(127, 10 + a % 200, b, 1 + c % 250)
}

/// FNV-1a: the same on every machine, so that a report can be made again.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
