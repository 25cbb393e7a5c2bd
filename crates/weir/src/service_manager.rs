//! What the master tells systemd, and what it gets from it.
//!
//! `Type=notify`: the unit is started when a worker serves, a reload ends when the new configuration is in use, and an upgrade
//! moves the unit to the new process. With `WatchdogSec=` the server is restarted if an event loop is stuck for long. With
//! `FileDescriptorStoreMax=` the listening sockets stay open while the unit is restarted: clients wait in their queues. Sockets
//! of a socket unit are used for the `listen` directives with their addresses.
//!
//! Without systemd there is no `NOTIFY_SOCKET`, and nothing is sent. See sd_notify(3), sd_listen_fds(3).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use host::listen::ListenAddress;
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

/// How long a loop may be stuck before systemd is to restart the server (`WatchdogSec=`). A master that replaces another one is
/// not the process that the environment names, and systemd waits for its messages all the same.
pub(crate) fn watchdog_time(is_upgrade: bool) -> Option<Duration> {
    match is_upgrade {
        false => sd_notify::watchdog_enabled(),
        true => {
            let text = std::env::var("WATCHDOG_USEC").ok()?;
            text.parse().ok().map(Duration::from_micros)
        }
    }
}

/// The master's side of the conversation.
#[derive(Default)]
pub(crate) struct ServiceManager {
    /// The names of the sockets in the store.
    stored: BTreeSet<String>,
}

impl ServiceManager {
    /// A worker serves, or goes on to serve. `status` is shown by `systemctl status`.
    pub(crate) fn ready(&mut self, sockets: &ListeningSockets, status: &str) {
        self.store(sockets);
        send(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// A reload begins; `ready` ends it, whether it succeeded or not.
    pub(crate) fn reloading(&self) {
        // Newer versions want to know when, to tell this reload from an earlier one.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            send(&[NotifyState::Reloading, now]);
        }
    }

    /// The server exits. With a successor that serves the unit is moved to it instead.
    pub(crate) fn stopping(&self, successor: Option<u32>) {
        match successor {
            Some(process) => send(&[NotifyState::MainPid(process)]),
            None => send(&[NotifyState::Stopping]),
        }
    }

    /// Every loop of the worker in charge makes progress.
    pub(crate) fn beat(&self) {
        send(&[NotifyState::Watchdog]);
    }

    /// Puts new sockets into the store, and takes out those that are closed.
    fn store(&mut self, sockets: &ListeningSockets) {
        let wanted: BTreeMap<String, &ListeningSocket> = sockets
            .list
            .iter()
            .filter_map(|socket| Some((stored_name(&socket.spec.address)?, socket)))
            .collect();
        self.stored.retain(|name| {
            let is_open = wanted.contains_key(name);
            if !is_open {
                send(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
            }
            is_open
        });
        for (name, socket) in wanted {
            if self.stored.contains(&name) {
                continue;
            }
            for member in &socket.members {
                let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
                // What cannot be sent is not in the store, which is no worse than not having one.
                let _ = sd_notify::notify_with_fds(&state, &[member.as_fd()]);
            }
            self.stored.insert(name);
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

/// Sends a message. systemd that does not listen is no reason not to serve.
fn send(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}
