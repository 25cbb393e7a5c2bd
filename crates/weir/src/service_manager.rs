//! What the master tells systemd, and what it gets from it.
//!
//! `Type=notify`: the unit is started when a worker serves, a reload ends when the new configuration is in use, and an upgrade
//! moves the unit to the new process. With `WatchdogSec=` the server is restarted if an event loop is stuck for long. With
//! `FileDescriptorStoreMax=` the listening sockets stay open while the unit is restarted: clients wait in their queues. Sockets
//! of a socket unit are used for the `listen` directives with their addresses.
//!
//! Messages do not wait for systemd ([`host::notify_outbox`]).
//!
//! Without systemd there is no `NOTIFY_SOCKET`, and nothing is sent. See sd_notify(3), sd_listen_fds(3).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use host::listen::ListenAddress;
use host::notify_outbox::NotifyOutbox;
use host::process;
use sd_notify::NotifyState;

use crate::sockets::{ListeningSocket, ListeningSockets};

/// What the names of stored sockets begin with, to be told from those of socket units.
const STORED: &str = "weir ";

/// The sockets that systemd has passed to this process. Only to be called once, before anything else opens descriptors.
pub(crate) fn passed_sockets() -> Vec<OwnedFd> {
    // Without the variables, or with those of another process, there are none.
    let passed = sd_notify::listen_fds().into_iter().flatten();
    passed
        .filter_map(|number| process::inherit(number).ok())
        .collect()
}

/// What a start finds of the manager.
pub(crate) struct ServiceStart {
    /// How long a loop may be stuck before systemd is to restart the server (`WatchdogSec=`).
    pub(crate) watchdog: Option<Duration>,
    /// The names that inherited sockets have if they are in the store. Those that the configuration no longer has must leave
    /// it: they would stay open, and their clients wait for ever.
    inherited: BTreeSet<String>,
}

impl ServiceStart {
    /// For a start with these sockets. A master that replaces another one (`is_upgrade`) is not the process that the
    /// environment names, and systemd waits for its messages all the same.
    pub(crate) fn new(is_upgrade: bool, inherited: &ListeningSockets) -> ServiceStart {
        let watchdog = match is_upgrade {
            false => sd_notify::watchdog_enabled(),
            true => {
                let text = std::env::var("WATCHDOG_USEC").ok();
                let limit = text.and_then(|text| text.parse().ok());
                limit.map(Duration::from_micros)
            }
        };
        let names = inherited.list.iter();
        let names = names.filter_map(|socket| stored_name(&socket.spec.address));
        ServiceStart {
            watchdog,
            inherited: names.collect(),
        }
    }
}

/// How long an exit waits until systemd has read that the unit has another main process. Without that it would end the unit.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The master's side of the conversation.
#[derive(Default)]
pub(crate) struct ServiceManager {
    /// The way to systemd; `None` without it.
    outbox: Option<NotifyOutbox>,
    /// The names of the sockets in the store.
    stored: BTreeSet<String>,
    /// The names of those that may be there from an earlier start; empty once that has been settled.
    inherited: BTreeSet<String>,
    /// `WatchdogSec=`, until it has been confirmed: the predecessor may have switched it off.
    watchdog: Option<Duration>,
    has_successor: bool,
}

impl ServiceManager {
    /// With what the environment says, besides what the start has found.
    pub(crate) fn of_environment(start: Option<&ServiceStart>) -> ServiceManager {
        let address = std::env::var_os("NOTIFY_SOCKET");
        // An address that is none is no reason not to serve.
        let open = |address: std::ffi::OsString| NotifyOutbox::open(address.as_bytes()).ok();
        ServiceManager {
            outbox: address.and_then(open),
            inherited: start.map_or_else(BTreeSet::new, |start| start.inherited.clone()),
            watchdog: start.and_then(|start| start.watchdog),
            ..ServiceManager::default()
        }
    }

    /// A worker serves, or goes on to serve. `status` is shown by `systemctl status`.
    pub(crate) fn ready(&mut self, sockets: &ListeningSockets, status: &str) {
        self.store(sockets);
        self.send(&[NotifyState::Ready, NotifyState::Status(status)]);
        let limit = self.watchdog.take().map(|time| time.as_micros());
        if let Some(limit) = limit.and_then(|limit| u32::try_from(limit).ok()) {
            self.send(&[NotifyState::WatchdogUsec(limit)]);
        }
    }

    /// A reload begins; `ready` ends it, whether it succeeded or not.
    pub(crate) fn reloading(&mut self) {
        // Newer versions want to know when, to tell this reload from an earlier one.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.send(&[NotifyState::Reloading, now]);
        }
    }

    /// The server exits, and no other takes its place.
    pub(crate) fn stopping(&mut self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// The server exits and leaves the unit to its successor. One that does not talk to systemd (`talks` is `false`), such as
    /// nginx, cannot feed the watchdog, and could not bind its addresses at the next start if systemd kept them open.
    pub(crate) fn leave_to(&mut self, successor: u32, talks: bool) {
        if !talks {
            for name in std::mem::take(&mut self.stored) {
                self.send(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]);
            }
            self.send(&[NotifyState::WatchdogUsec(0)]);
        }
        self.send(&[NotifyState::MainPid(successor)]);
        self.has_successor = true;
    }

    /// The last thing before the process exits. systemd must not learn of the exit before it learns of the successor.
    pub(crate) fn exit(&mut self) {
        if let Some(outbox) = self.outbox.as_mut().filter(|_| self.has_successor) {
            outbox.flush_for(LAST_WORDS);
        }
    }

    /// Every loop of the worker in charge makes progress.
    pub(crate) fn beat(&mut self) {
        // If systemd has not read the previous messages, it learns from them that the server lives.
        if self.outbox.as_ref().is_some_and(|it| !it.is_waiting()) {
            self.send(&[NotifyState::Watchdog]);
        }
    }

    /// Sends what there was no room for. To be called after the time of [`ServiceManager::retry_after`].
    pub(crate) fn flush(&mut self) {
        if let Some(outbox) = &mut self.outbox {
            outbox.flush();
        }
    }

    /// How long to wait with messages that had no room; `None` if there are none.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.outbox.as_ref().and_then(NotifyOutbox::retry_after)
    }

    /// Puts new sockets into the store, and takes out those that are closed.
    fn store(&mut self, sockets: &ListeningSockets) {
        let wanted: BTreeMap<String, &ListeningSocket> = sockets
            .list
            .iter()
            .filter_map(|socket| Some((stored_name(&socket.spec.address)?, socket)))
            .collect();
        let is_closed = |name: &String| !wanted.contains_key(name);
        let known = std::mem::take(&mut self.stored);
        let (mut closed, open): (BTreeSet<String>, _) = known.into_iter().partition(is_closed);
        self.stored = open;
        let inherited = std::mem::take(&mut self.inherited);
        closed.extend(inherited.into_iter().filter(is_closed));
        for name in closed {
            self.send(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]);
        }
        for (name, socket) in wanted {
            if self.stored.contains(&name) {
                continue;
            }
            for member in &socket.members {
                let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
                self.send_with(&state, Some(member.as_fd()));
            }
            self.stored.insert(name);
        }
    }

    fn send(&mut self, states: &[NotifyState<'_>]) {
        self.send_with(states, None);
    }

    fn send_with(&mut self, states: &[NotifyState<'_>], descriptor: Option<BorrowedFd<'_>>) {
        if let Some(outbox) = &mut self.outbox {
            let lines: String = states.iter().map(|state| format!("{state}\n")).collect();
            outbox.send(lines, descriptor);
        }
    }
}

/// A name for the store, which may not contain colons. `None` for unix sockets: their files are removed at the end, and
/// without them the sockets are of no use.
fn stored_name(address: &ListenAddress) -> Option<String> {
    let (kind, address) = match address {
        ListenAddress::Tcp(address) => ("tcp", address),
        ListenAddress::Udp(address) => ("udp", address),
        ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => return None,
    };
    Some(format!("{STORED}{kind} {address}").replace(':', "+"))
}
