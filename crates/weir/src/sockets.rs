//! The master's listening sockets, and their reconciliation at a reload.
//!
//! A socket is identified by its address. If both configurations have it, it stays open with its
//! queue of connections; new ones are opened; and those that are gone are closed only when the
//! worker has the new configuration. So a port that both configurations name is never closed to
//! clients, not even for a moment.
//!
//! Sockets may also be open before the first configuration: those of the binary that this one
//! replaces, or of a worker whose master was killed. They are recognised by the addresses that the
//! kernel knows for them.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use host::engine::{ListenerId, ListenerSpec, LoopListener};
use host::error_log::{LogLevel, Logger};
use host::listen::{self, ListenAddress, ListenError};

use crate::startup_log::StartupLog;

/// nginx's own numbers: an address that another process is releasing becomes free within this time.
const BIND_ATTEMPTS: u32 = 5;
const BIND_PAUSE: Duration = Duration::from_millis(500);

/// A listening address with its sockets.
#[derive(Clone)]
pub(crate) struct ListeningSocket {
    /// Remains the same as long as the socket is open.
    pub(crate) id: ListenerId,
    /// Its options in the configuration.
    pub(crate) spec: Arc<ListenerSpec>,
    /// One descriptor, or one per loop with `reuseport`.
    pub(crate) members: Vec<Arc<OwnedFd>>,
}

impl ListeningSocket {
    /// The descriptors from which loop `index` accepts. A single socket is shared by all loops; of
    /// several each loop has its own. If there were more loops before, theirs are distributed,
    /// because the kernel still assigns connections to them.
    pub(crate) fn for_loop(&self, index: usize, loops: usize) -> Vec<LoopListener> {
        let members: Arc<[Arc<OwnedFd>]> = self.members.iter().cloned().collect();
        let shared = members.len() == 1;
        (0..members.len())
            // The modulus distributes surplus sockets of a larger configuration over the loops that are left.
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

/// All listening addresses of a configuration.
#[derive(Clone, Default)]
pub(crate) struct ListeningSockets {
    /// In the order of the configuration.
    pub(crate) list: Vec<ListeningSocket>,
    /// The last number that was given.
    next_id: u64,
}

impl ListeningSockets {
    /// The sockets that the previous binary has left open, by their numbers: `6;7;`, as nginx
    /// writes them. What is no listening socket is reported and skipped.
    pub(crate) fn inherited(numbers: &str, startup_log: StartupLog<'_>) -> ListeningSockets {
        let mut sockets = ListeningSockets::default();
        for number in numbers.split([';', ':']).filter(|word| !word.is_empty()) {
            let socket = number
                .parse()
                .map_err(|_| std::io::ErrorKind::InvalidInput.into())
                .and_then(host::process::inherit);
            match socket.and_then(|socket| sockets.add_inherited(socket)) {
                Ok(()) => {}
                Err(error) => startup_log.log(
                    LogLevel::Emerg,
                    format_args!(
                        "inherited socket #{number} cannot be used{}, ignored",
                        base::ErrnoText(&error)
                    ),
                ),
            }
        }
        sockets
    }

    /// Adds an open socket; the kernel knows its address.
    pub(crate) fn add_inherited(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        let (address, options) = listen::inherited(&socket)?;
        self.add(ListenerSpec { address, options }, socket);
        Ok(())
    }

    /// Adds a socket to its address, or as a new address.
    fn add(&mut self, spec: ListenerSpec, socket: OwnedFd) {
        let socket = Arc::new(socket);
        // With `reuseport` an address has several sockets.
        let same = |known: &&mut ListeningSocket| *known.spec == spec && spec.options.reuse_port;
        if let Some(known) = self.list.iter_mut().find(same) {
            known.members.push(socket);
            return;
        }
        self.next_id += 1;
        self.list.push(ListeningSocket {
            id: ListenerId(self.next_id),
            spec: Arc::new(spec),
            members: vec![socket],
        });
    }

    /// All descriptors.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let members = self.list.iter().flat_map(|socket| &socket.members);
        members.map(|member| member.as_fd())
    }

    /// The sockets for `wanted`: those of this set, and new ones. If it fails, nothing has changed
    /// but the log.
    pub(crate) fn opened_for(
        &self,
        wanted: Vec<ListenerSpec>,
        loops: usize,
        startup_log: StartupLog<'_>,
    ) -> Result<ListeningSockets, String> {
        let mut next = ListeningSockets {
            list: Vec::new(),
            // Numbers are not reused, so that loops can tell new sockets from kept ones.
            next_id: self.next_id,
        };
        for spec in wanted {
            let socket = match self.find(&spec) {
                // Kept rather than reopened: closing would reset the connections in its queue.
                Some(old) => old.kept_for(spec, loops, startup_log)?,
                None => {
                    next.next_id += 1;
                    ListeningSocket::open(ListenerId(next.next_id), spec, loops, startup_log)?
                }
            };
            next.list.push(socket);
        }
        Ok(next)
    }

    /// The socket with this address. Multipath TCP cannot be changed on an open socket, so it
    /// counts as part of the address.
    fn find(&self, spec: &ListenerSpec) -> Option<&ListeningSocket> {
        self.list.iter().find(|socket| {
            socket.spec.address == spec.address
                && socket.spec.options.multipath == spec.options.multipath
        })
    }

    /// Removes the files of unix sockets that `next` does not have. Descriptors are closed by
    /// dropping them.
    pub(crate) fn remove_files_missing_in(&self, next: &ListeningSockets, log: &Logger) {
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
            log.log_plain(
                LogLevel::Notice,
                format_args!("deleting socket {}", path.display()),
            );
            if let Err(error) = std::fs::remove_file(path) {
                let error = base::ErrnoText(&error);
                log.log_plain(
                    LogLevel::Emerg,
                    format_args!("unlink() {} failed{error}", path.display()),
                );
            }
        }
    }
}

impl ListeningSocket {
    /// Opens the sockets of a new address.
    fn open(
        id: ListenerId,
        spec: ListenerSpec,
        loops: usize,
        startup_log: StartupLog<'_>,
    ) -> Result<ListeningSocket, String> {
        // Unix sockets cannot be shared by `SO_REUSEPORT`.
        let members = if spec.options.reuse_port && spec.address.path().is_none() {
            loops.max(1)
        } else {
            1
        };
        // If one of them fails, those opened before are closed by being dropped.
        let members = (0..members)
            .map(|_| open_with_retries(&spec, startup_log))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(ListeningSocket {
            id,
            spec: Arc::new(spec),
            members,
        })
    }

    /// The same socket, perhaps with other options of `listen`.
    fn kept_for(
        &self,
        spec: ListenerSpec,
        loops: usize,
        startup_log: StartupLog<'_>,
    ) -> Result<ListeningSocket, String> {
        let mut members = self.members.clone();
        if spec.options.reuse_port && spec.address.path().is_none() {
            if !self.spec.options.reuse_port {
                // The kernel lets others join an address only if the first socket permits it, too.
                listen::allow_reuse_port(&members[0]).map_err(|error| {
                    let error = base::ErrnoText(&error);
                    format!("setsockopt(SO_REUSEPORT) {} failed{error}", spec.address)
                })?;
            }
            // Additional loops get sockets of their own. With fewer loops the surplus sockets stay:
            // clients may wait in their queues.
            while members.len() < loops {
                members.push(open_with_retries(&spec, startup_log)?);
            }
        }
        // Options that cannot be changed on an open socket, such as `ipv6only`, remain what they
        // were, as with nginx.
        if self.spec.options != spec.options {
            for member in &members {
                apply_changes(member, &self.spec, &spec, startup_log);
            }
        }
        Ok(ListeningSocket {
            id: self.id,
            spec: Arc::new(spec),
            members,
        })
    }
}

/// Opens a socket. If the address is in use, tries again for two seconds.
fn open_with_retries(
    spec: &ListenerSpec,
    startup_log: StartupLog<'_>,
) -> Result<Arc<OwnedFd>, String> {
    for attempt in 1.. {
        let error = match open_once(spec) {
            Ok(socket) => {
                // A refused option is only logged: a socket without it still serves.
                apply_options(&socket, spec, startup_log);
                return Ok(Arc::new(socket));
            }
            Err(error) => error,
        };
        // Only an address in use can become free by waiting.
        if !error.in_use() {
            return Err(bind_error(&spec.address, &error));
        }
        startup_log.log(LogLevel::Emerg, format_args!("{error}"));
        if attempt == BIND_ATTEMPTS {
            break;
        }
        startup_log.log(
            LogLevel::Notice,
            format_args!("try again to bind() after {}ms", BIND_PAUSE.as_millis()),
        );
        std::thread::sleep(BIND_PAUSE);
    }
    Err(format!("still could not bind() to {}", spec.address))
}

/// The error of a bind, with the remedy if permission is missing.
fn bind_error(address: &ListenAddress, error: &ListenError) -> String {
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

/// Opens a socket. A file that a killed server has left at a unix socket's path is replaced.
fn open_once(spec: &ListenerSpec) -> Result<OwnedFd, ListenError> {
    match listen::open(&spec.address, &spec.options) {
        // Only after a failed bind: the check connects, and a living server would have to accept that.
        Err(error) if error.in_use() && is_abandoned(&spec.address) => {
            if let Some(path) = spec.address.path() {
                // If it cannot be removed, the second attempt reports the reason.
                let _ = std::fs::remove_file(path);
            }
            listen::open(&spec.address, &spec.options)
        }
        other => other,
    }
}

/// Whether this is a unix socket on which no process listens: then connecting is refused although
/// the file exists.
fn is_abandoned(address: &ListenAddress) -> bool {
    let ListenAddress::Unix(path) = address else {
        return false;
    };
    let refused = UnixStream::connect(path).map(drop);
    refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn apply_options(socket: &OwnedFd, spec: &ListenerSpec, startup_log: StartupLog<'_>) {
    for refused in listen::configure(socket, &spec.address, &spec.options) {
        startup_log.log(LogLevel::Alert, format_args!("{refused}"));
    }
}

/// Applies the changed options of `listen` to an open socket. An option that is gone must be
/// switched off explicitly.
fn apply_changes(
    socket: &OwnedFd,
    before: &ListenerSpec,
    spec: &ListenerSpec,
    startup_log: StartupLog<'_>,
) {
    let mut changed = spec.clone();
    if before.options.deferred.is_some() && spec.options.deferred.is_none() {
        changed.options.deferred = Some(Duration::ZERO);
    }
    if before.options.fast_open.is_some() && spec.options.fast_open.is_none() {
        changed.options.fast_open = Some(0);
    }
    apply_options(socket, &changed, startup_log);
    let backlog = spec.options.backlog;
    if spec.address.is_stream()
        && before.options.backlog != backlog
        && let Err(error) = listen::set_backlog(socket, backlog)
    {
        let error = base::ErrnoText(&error);
        startup_log.log(
            LogLevel::Alert,
            format_args!(
                "listen() to {}, backlog {backlog} failed{error}, ignored",
                spec.address
            ),
        );
    }
}

/// Tries every address, for `-t`. In use is fine, forbidden is not.
pub(crate) fn test_addresses(wanted: &[ListenerSpec]) -> Result<(), String> {
    for spec in wanted {
        match listen::open(&spec.address, &spec.options) {
            Ok(_) => {
                if let Some(path) = spec.address.path() {
                    // This test has just created it.
                    let _ = std::fs::remove_file(path);
                }
            }
            // Most often by the running server, which this configuration is meant for.
            Err(error) if error.in_use() => {}
            Err(error) => return Err(bind_error(&spec.address, &error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    fn spec(address: &str, reuse_port: bool) -> ListenerSpec {
        let options = host::listen::ListenOptions {
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
        let first = ListeningSockets::default()
            .opened_for(
                vec![spec(&a, false), spec(&b, false)],
                2,
                StartupLog::log_only(&log),
            )
            .expect("opened");
        let second = first
            .opened_for(
                vec![spec(&c, false), spec(&b, false)],
                2,
                StartupLog::log_only(&log),
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
        let sockets = ListeningSockets::default()
            .opened_for(vec![spec(&address, true)], 3, StartupLog::log_only(&log))
            .expect("opened");
        assert_eq!(sockets.list[0].members.len(), 3);
        let more = sockets
            .opened_for(vec![spec(&address, true)], 4, StartupLog::log_only(&log))
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
        let sockets = ListeningSockets::default()
            .opened_for(vec![spec], 1, StartupLog::log_only(&log))
            .expect("opened");
        sockets.remove_files_missing_in(&ListeningSockets::default(), &log);
        assert!(!path.exists());
    }
}
