//! A worker whose master is gone, and the next master.
//!
//! A master that is killed leaves a worker that goes on serving with the sockets it has; but
//! nothing reads a configuration, reopens logs or restarts it. When the server is started again,
//! the new master finds the worker and takes over its listening sockets, so that no client is
//! refused. As soon as its own worker serves, the orphan hands over its idle connections and quits.
//!
//! ```text
//! master   listens under a name in Linux's abstract namespace: the configuration's path, its process number
//! worker   has that socket too, and accepts no connection while its master lives
//! orphan   the channel to the master has ended: takes in who connects, if it is root or the master's user
//! new      looks for such names, connects, is sent the listening sockets    (MessageKind::Sockets)
//! master   its worker serves: sends the orphan its end of a socket pair, and QUIT (MessageKind::Peer, Quit)
//! ```
//!
//! Any process can take such a name. Proof are the credentials that the kernel records at `listen`:
//! those of the dead master, even in the hands of a worker that has changed its user.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use host::channel::Channel;
use host::{abstract_socket, process};

use crate::message::{IdleConnections, MessageKind};
use crate::paths::ServerPaths;

/// The time that a worker has to answer once its master is gone.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(2);
/// The same if a process with its master's number exists: mostly it is the master itself, and its
/// worker does not answer.
const LIVING_MASTER_TIMEOUT: Duration = Duration::from_millis(200);
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of orphans that are taken over.
const MAX_ORPHANS: usize = 16;

/// The socket on which a worker can be found when its master is gone.
#[derive(Clone)]
pub(crate) struct OrphanListener(Arc<OwnedFd>);

impl OrphanListener {
    /// Listens under this process's number. `None` where abstract names do not exist; then orphans
    /// cannot be found.
    pub(crate) fn new(paths: &ServerPaths) -> Option<OrphanListener> {
        let name = format!("{}{}", prefix(paths), std::process::id());
        Some(OrphanListener(Arc::new(
            abstract_socket::listen(&name).ok()?,
        )))
    }

    /// Accepts the next connection of a process that may have the sockets: one of root or of
    /// `owner`.
    pub(crate) fn accept_master(&self, owner: u32) -> Option<Channel> {
        loop {
            match abstract_socket::accept(&self.0) {
                Ok((socket, user)) if user == 0 || user == owner => {
                    return Channel::from_accepted(socket).ok();
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    // The process may be out of descriptors; the socket stays readable, and must
                    // not be polled without a pause.
                    std::thread::sleep(PAUSE);
                    return None;
                }
            }
        }
    }
}

impl AsFd for OrphanListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A worker without a master, as the next master sees it.
pub(crate) struct OrphanWorker {
    /// The process number of its master.
    pub(crate) master: u32,
    /// Its listening sockets, until they are taken.
    pub(crate) sockets: Vec<OwnedFd>,
    /// The channel of the connection to it.
    channel: Channel,
    /// Whether it was told to quit.
    pub(crate) is_dismissed: bool,
}

impl OrphanWorker {
    /// Tells it to quit, and to hand over its idle connections through its end of a socket pair, if
    /// there is one.
    pub(crate) fn dismiss(&mut self, peer: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.is_dismissed = true;
        if let Some(peer) = peer {
            self.channel.send(MessageKind::Peer as u8, b"", &[peer])?;
        }
        let how = peer
            .map_or(IdleConnections::Close, |_| IdleConnections::HandOver)
            .body();
        self.channel.send(MessageKind::Quit as u8, how, &[])
    }

    /// Tells it to exit at once.
    pub(crate) fn terminate(&self) {
        // If it has exited already, all is well.
        let _ = self.channel.send(MessageKind::Terminate as u8, b"", &[]);
    }

    /// Gives it reopened log files.
    pub(crate) fn reopen(&self, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        // Likewise.
        let _ = self
            .channel
            .send(MessageKind::Reopen as u8, body, descriptors);
    }
}

/// Finds the workers that masters of the same configuration have left behind.
pub(crate) fn find(paths: &ServerPaths) -> Vec<OrphanWorker> {
    let prefix = prefix(paths);
    let names = abstract_socket::socket_names(&prefix);
    let masters = names
        .iter()
        .filter_map(|name| name.strip_prefix(&prefix)?.parse().ok())
        // This process listens under such a name already, for its own future worker.
        .filter(|master| *master != std::process::id());
    masters
        .flat_map(|master| ask_orphans(&prefix, master))
        .take(MAX_ORPHANS)
        .collect()
}

/// Asks all workers of a master, one for each of its groups. They listen on the same socket, and each takes one
/// connection.
fn ask_orphans(prefix: &str, master: u32) -> Vec<OrphanWorker> {
    let Some((first, groups)) = ask_orphan(prefix, master) else {
        return Vec::new();
    };
    let mut orphans = vec![first];
    // One that has crashed since, without a master to replace it, does not answer: nor would those after it.
    while orphans.len() < groups
        && let Some((mut orphan, _)) = ask_orphan(prefix, master)
    {
        // The same sockets as the first one's.
        orphan.sockets.clear();
        orphans.push(orphan);
    }
    orphans
}

/// Asks a worker of a master for its sockets and for the number of groups; `None` if that master lives, or is another user's.
fn ask_orphan(prefix: &str, master: u32) -> Option<(OrphanWorker, usize)> {
    let (channel, process, user) =
        abstract_socket::connect_channel(&format!("{prefix}{master}")).ok()?;
    // The kernel's record of who called `listen`: the name alone proves nothing.
    if process != master || user != process::user_id() {
        return None;
    }
    let patience = match Path::new(&format!("/proc/{master}")).exists() {
        true => LIVING_MASTER_TIMEOUT,
        false => ORPHAN_TIMEOUT,
    };
    // Silence is the answer of a worker whose master lives: another server with the same configuration.
    if process::wait_readable(&[channel.as_fd()], Some(patience)).ok()? != [true] {
        return None;
    }
    // A worker that stops in the middle of its message must not keep this process from starting.
    channel.limit_wait(ORPHAN_TIMEOUT).ok()?;
    let message = channel.receive().ok()??;
    if MessageKind::of(message.kind) != Some(MessageKind::Sockets) {
        return None;
    }
    let groups = message
        .body
        .first_chunk()
        .map_or(1, |count| usize::from_le_bytes(*count));
    let orphan = OrphanWorker {
        master,
        sockets: message.descriptors,
        channel,
        is_dismissed: false,
    };
    Some((orphan, groups))
}

/// The beginning of the names, which masters of the same configuration have in common.
fn prefix(paths: &ServerPaths) -> String {
    // Paths may be longer than a socket's name can be. A collision of hashes would matter only
    // between servers of one user.
    let text =
        [&paths.prefix, &paths.configuration].map(|path| path.as_os_str().as_encoded_bytes());
    format!("weir worker {:016x} ", hash(&text.join(&b'\0')))
}

/// FNV-1a. Another release must compute the same hash, which the standard library's hasher does not
/// promise.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
