//! The listening sockets of the master, and their reconciliation at a reload.
//!
//! A socket is found again by its address. What both configurations want stays open, with its queue
//! of connections; what is new is opened; what is gone is closed only when the worker has the new
//! configuration. So no client ever meets a closed port that both configurations name.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rt::engine::{ListenerId, ListenerSpec, LoopListener};
use rt::error_log::{Level, Logger};
use rt::listen::{self, ListenAddress, ListenError};

use crate::voice::Voice;

/// nginx's own figures: an address that another process is giving up comes free in this time.
const BIND_ATTEMPTS: u32 = 5;
const BIND_PAUSE: Duration = Duration::from_millis(500);

/// One address that is listened on.
#[derive(Clone)]
pub(crate) struct Socket {
    /// Keeps its number as long as it is open.
    pub(crate) id: ListenerId,
    /// What the configuration says of it.
    pub(crate) spec: Arc<ListenerSpec>,
    /// One descriptor, or with `reuseport` one for each loop.
    pub(crate) members: Vec<Arc<OwnedFd>>,
}

impl Socket {
    /// What loop `index` of so many accepts from: a single socket is shared. Of several each loop has
    /// its own, and those that were opened when there were more loops are taken over, since the kernel
    /// goes on to give them connections.
    pub(crate) fn for_loop(&self, index: usize, loops: usize) -> Vec<LoopListener> {
        let members: Arc<[Arc<OwnedFd>]> = self.members.iter().cloned().collect();
        let shared = members.len() == 1;
        (0..members.len())
            .filter(|member| shared || member % loops.max(1) == index)
            .map(|member| LoopListener {
                id: self.id,
                spec: self.spec.clone(),
                member,
                descriptor: members[member].clone(),
                members: members.clone(),
            })
            .collect()
    }
}

/// All addresses of one configuration.
#[derive(Clone, Default)]
pub(crate) struct Sockets {
    /// In the order of the configuration.
    pub(crate) list: Vec<Socket>,
    next_id: u64,
}

impl Sockets {
    /// The sockets that the program before this one has left open, by their numbers: `6;7;`, as nginx
    /// writes them. What is no listening socket is left out, with a word about it.
    pub(crate) fn inherited(numbers: &str, voice: Voice<'_>) -> Sockets {
        let mut sockets = Sockets::default();
        for number in numbers.split([';', ':']).filter(|word| !word.is_empty()) {
            let socket = number
                .parse()
                .map_err(|_| std::io::ErrorKind::InvalidInput.into())
                .and_then(rt::process::inherit);
            match socket.and_then(|socket| sockets.take(socket)) {
                Ok(()) => {}
                Err(error) => voice.say(
                    Level::Emerg,
                    format_args!(
                        "inherited socket #{number} cannot be used{}, ignored",
                        rt::error_log::Errno(&error)
                    ),
                ),
            }
        }
        sockets
    }

    /// Adds an open socket, with the address that it has.
    pub(crate) fn take(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        let (address, options) = listen::inherited(&socket)?;
        self.add(ListenerSpec { address, options }, socket);
        Ok(())
    }

    fn add(&mut self, spec: ListenerSpec, socket: OwnedFd) {
        let socket = Arc::new(socket);
        let same = |known: &&mut Socket| *known.spec == spec && spec.options.reuse_port;
        if let Some(known) = self.list.iter_mut().find(same) {
            known.members.push(socket);
            return;
        }
        self.next_id += 1;
        self.list.push(Socket {
            id: ListenerId(self.next_id),
            spec: Arc::new(spec),
            members: vec![socket],
        });
    }

    /// Every descriptor.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let members = self.list.iter().flat_map(|socket| &socket.members);
        members.map(|member| member.as_fd())
    }

    /// Opens what `wanted` names and this set lacks. On an error nothing has changed but the log.
    pub(crate) fn reconcile(
        &self,
        wanted: Vec<ListenerSpec>,
        loops: usize,
        voice: Voice<'_>,
    ) -> Result<Sockets, String> {
        let mut next = Sockets {
            list: Vec::new(),
            next_id: self.next_id,
        };
        for spec in wanted {
            let socket = match self.find(&spec) {
                Some(old) => old.keep(spec, loops, voice)?,
                None => {
                    next.next_id += 1;
                    Socket::open(ListenerId(next.next_id), spec, loops, voice)?
                }
            };
            next.list.push(socket);
        }
        Ok(next)
    }

    /// A socket with the same address.
    fn find(&self, spec: &ListenerSpec) -> Option<&Socket> {
        self.list.iter().find(|socket| {
            socket.spec.address == spec.address
                && socket.spec.options.multipath == spec.options.multipath
        })
    }

    /// Removes the files of unix sockets that `next` no longer has. The descriptors close by themselves.
    pub(crate) fn remove_files_missing_in(&self, next: &Sockets, log: &Logger) {
        let kept: HashSet<&Path> = next
            .list
            .iter()
            .filter_map(|socket| socket.spec.address.path())
            .collect();
        for path in self
            .list
            .iter()
            .filter_map(|socket| socket.spec.address.path())
        {
            if kept.contains(path) {
                continue;
            }
            log.plain(
                Level::Notice,
                format_args!("deleting socket {}", path.display()),
            );
            if let Err(error) = std::fs::remove_file(path) {
                let error = rt::error_log::Errno(&error);
                log.plain(
                    Level::Emerg,
                    format_args!("unlink() {} failed{error}", path.display()),
                );
            }
        }
    }
}

impl Socket {
    fn open(
        id: ListenerId,
        spec: ListenerSpec,
        loops: usize,
        voice: Voice<'_>,
    ) -> Result<Socket, String> {
        let members = if spec.options.reuse_port && spec.address.path().is_none() {
            loops.max(1)
        } else {
            1
        };
        let members = (0..members)
            .map(|_| open_patiently(&spec, voice))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Socket {
            id,
            spec: Arc::new(spec),
            members,
        })
    }

    /// The same socket under what is perhaps another `listen` line.
    fn keep(&self, spec: ListenerSpec, loops: usize, voice: Voice<'_>) -> Result<Socket, String> {
        let mut members = self.members.clone();
        if spec.options.reuse_port && spec.address.path().is_none() {
            if !self.spec.options.reuse_port {
                // Others may join it only if it allows that too.
                listen::allow_reuse_port(&members[0]).map_err(|error| {
                    let error = rt::error_log::Errno(&error);
                    format!("setsockopt(SO_REUSEPORT) {} failed{error}", spec.address)
                })?;
            }
            // More loops than before get sockets of their own. Those of fewer stay: clients may be in
            // their queues.
            while members.len() < loops {
                members.push(open_patiently(&spec, voice)?);
            }
        }
        if self.spec.options != spec.options {
            for member in &members {
                apply_changes(member, &self.spec, &spec, voice);
            }
        }
        Ok(Socket {
            id: self.id,
            spec: Arc::new(spec),
            members,
        })
    }
}

/// Opens a socket; when the address is in use, tries again for two seconds.
fn open_patiently(spec: &ListenerSpec, voice: Voice<'_>) -> Result<Arc<OwnedFd>, String> {
    for attempt in 1.. {
        let error = match open_once(spec) {
            Ok(socket) => {
                apply_options(&socket, spec, voice);
                return Ok(Arc::new(socket));
            }
            Err(error) => error,
        };
        if !error.in_use() {
            return Err(explained(&spec.address, &error));
        }
        voice.say(Level::Emerg, format_args!("{error}"));
        if attempt == BIND_ATTEMPTS {
            break;
        }
        voice.say(
            Level::Notice,
            format_args!("try again to bind() after {}ms", BIND_PAUSE.as_millis()),
        );
        std::thread::sleep(BIND_PAUSE);
    }
    Err(format!("still could not bind() to {}", spec.address))
}

/// The error of a bind, with what it wants where that is not the address's fault.
fn explained(address: &ListenAddress, error: &ListenError) -> String {
    let port = match address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => address.port(),
        ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => return error.to_string(),
    };
    if port < 1024 && error.error.kind() == std::io::ErrorKind::PermissionDenied {
        return format!(
            "{error}: a port below 1024 needs root, CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start"
        );
    }
    error.to_string()
}

/// Opens a socket. The file that a killed server left at a unix socket's path is replaced.
fn open_once(spec: &ListenerSpec) -> Result<OwnedFd, ListenError> {
    match listen::open(&spec.address, &spec.options) {
        Err(error) if error.in_use() && nobody_answers(&spec.address) => {
            if let Some(path) = spec.address.path() {
                // If it can not be removed, the second attempt tells why.
                let _ = std::fs::remove_file(path);
            }
            listen::open(&spec.address, &spec.options)
        }
        other => other,
    }
}

/// Is the address a unix socket that no process listens on?
fn nobody_answers(address: &ListenAddress) -> bool {
    let ListenAddress::Unix(path) = address else {
        return false;
    };
    let refused = UnixStream::connect(path).map(drop);
    refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn apply_options(socket: &OwnedFd, spec: &ListenerSpec, voice: Voice<'_>) {
    for refused in listen::configure(socket, &spec.address, &spec.options) {
        voice.say(Level::Alert, format_args!("{refused}"));
    }
}

/// Gives an open socket the options of another `listen` line.
fn apply_changes(socket: &OwnedFd, before: &ListenerSpec, spec: &ListenerSpec, voice: Voice<'_>) {
    let mut changed = spec.clone();
    if before.options.deferred.is_some() && spec.options.deferred.is_none() {
        changed.options.deferred = Some(Duration::ZERO);
    }
    if before.options.fast_open.is_some() && spec.options.fast_open.is_none() {
        changed.options.fast_open = Some(0);
    }
    apply_options(socket, &changed, voice);
    let backlog = spec.options.backlog;
    if spec.address.is_stream()
        && before.options.backlog != backlog
        && let Err(error) = listen::set_backlog(socket, backlog)
    {
        let error = rt::error_log::Errno(&error);
        voice.say(
            Level::Alert,
            format_args!(
                "listen() to {}, backlog {backlog} failed{error}, ignored",
                spec.address
            ),
        );
    }
}

/// Tries every address for `-t`: one that is in use is fine, one that is not allowed is not.
pub(crate) fn test(wanted: &[ListenerSpec]) -> Result<(), String> {
    for spec in wanted {
        match listen::open(&spec.address, &spec.options) {
            Ok(_) => {
                if let Some(path) = spec.address.path() {
                    // Made by this test a moment ago.
                    let _ = std::fs::remove_file(path);
                }
            }
            Err(error) if error.in_use() => {}
            Err(error) => return Err(explained(&spec.address, &error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    fn spec(address: &str, reuse_port: bool) -> ListenerSpec {
        let options = rt::listen::ListenOptions {
            reuse_port,
            ..Default::default()
        };
        ListenerSpec {
            address: ListenAddress::Tcp(address.parse().expect("an address")),
            options,
        }
    }

    /// An address with a port that was free a moment ago.
    fn free() -> String {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        socket.local_addr().expect("bound").to_string()
    }

    #[test]
    fn what_both_configurations_want_stays_open() {
        let (a, b, c) = (free(), free(), free());
        let log = Logger::default();
        let first = Sockets::default()
            .reconcile(
                vec![spec(&a, false), spec(&b, false)],
                2,
                Voice::quiet(&log),
            )
            .expect("opened");
        let second = first
            .reconcile(
                vec![spec(&c, false), spec(&b, false)],
                2,
                Voice::quiet(&log),
            )
            .expect("opened");
        assert_eq!(second.list[1].id, first.list[1].id);
        assert_eq!(
            second.list[1].members[0].as_raw_fd(),
            first.list[1].members[0].as_raw_fd()
        );
        assert!(second.list[0].id != first.list[0].id && second.list[0].id != first.list[1].id);
    }

    #[test]
    fn reuseport_has_a_socket_for_each_loop() {
        let address = free();
        let log = Logger::default();
        let sockets = Sockets::default()
            .reconcile(vec![spec(&address, true)], 3, Voice::quiet(&log))
            .expect("opened");
        assert_eq!(sockets.list[0].members.len(), 3);
        let more = sockets
            .reconcile(vec![spec(&address, true)], 4, Voice::quiet(&log))
            .expect("opened");
        assert_eq!(more.list[0].members.len(), 4);
        assert_eq!(
            more.list[0].for_loop(0, 4)[0].descriptor.as_raw_fd(),
            sockets.list[0].members[0].as_raw_fd()
        );
    }

    #[test]
    fn a_left_over_unix_socket_is_replaced() {
        let path = std::env::temp_dir().join(format!("weir-socket-test-{}", std::process::id()));
        let address = ListenAddress::Unix(path.clone());
        let spec = ListenerSpec {
            address,
            options: Default::default(),
        };
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let log = Logger::default();
        let sockets = Sockets::default()
            .reconcile(vec![spec], 1, Voice::quiet(&log))
            .expect("opened");
        sockets.remove_files_missing_in(&Sockets::default(), &log);
        assert!(!path.exists());
    }
}
