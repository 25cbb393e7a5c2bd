//! A worker whose master is gone, and the master that comes after it.
//!
//! A master that is killed leaves a worker that serves as before, with the sockets that it has; nothing reads a
//! configuration, opens logs again or restarts it. When the server is started again, the new master finds that worker,
//! takes over its listening sockets, so that no client is refused, and lets it hand over its idle connections and end as
//! soon as its own worker serves.
//!
//! ```text
//! master   listens under a name in Linux's abstract namespace: the configuration's path, its process number
//! worker   has that socket too, and takes nobody in as long as its master lives
//! orphan   the channel to the master has ended: takes in who connects, if it is root or the master's user
//! new      looks for such names, connects, is sent the listening sockets          (Kind::Sockets)
//! master   its worker serves: sends the orphan its end of a socket pair, and QUIT (Kind::Peer, Kind::Quit)
//! ```
//!
//! A name can be taken by anybody. What proves whose it is are the credentials that the kernel keeps of who has called
//! `listen`: they are those of the dead master, also in the hands of a worker that has given up its user.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rt::channel::Channel;
use rt::{process, watch};

use crate::message::Kind;
use crate::paths::Paths;

/// How long a worker may take to answer, once its master is gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same when there is a process with its master's number: mostly the master itself, whose worker does not answer.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);
/// After a connection that could not be taken in.
const PAUSE: Duration = Duration::from_millis(10);
/// More such workers are left alone.
const MAX_ORPHANS: usize = 16;

/// Where a worker can be found when its master is gone.
#[derive(Clone)]
pub(crate) struct Refuge(Arc<OwnedFd>);

impl Refuge {
    /// Listens under this process's number. `None` where there is no such namespace: then nobody finds the worker.
    pub(crate) fn new(paths: &Paths) -> Option<Refuge> {
        let name = format!("{}{}", prefix(paths), std::process::id());
        Some(Refuge(Arc::new(watch::listen(&name).ok()?)))
    }

    /// Takes in the next who comes, if it may have the sockets: root, or `owner`.
    pub(crate) fn admit(&self, owner: u32) -> Option<Channel> {
        loop {
            match watch::accept(&self.0) {
                Ok((socket, user)) if user == 0 || user == owner => {
                    return Channel::from_accepted(socket).ok();
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    // Out of descriptors, say: it stays readable, and must not be asked all the time.
                    std::thread::sleep(PAUSE);
                    return None;
                }
            }
        }
    }
}

impl AsFd for Refuge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A worker without a master, as the one that comes after it sees it.
pub(crate) struct Orphan {
    /// The number of the master that it had.
    pub(crate) master: u32,
    /// What it listens on; empty when that was taken.
    pub(crate) sockets: Vec<OwnedFd>,
    channel: Channel,
    /// It was told to end.
    pub(crate) is_dismissed: bool,
}

impl Orphan {
    /// Lets it hand its idle connections over, by its end of a socket pair if there is one, and end.
    pub(crate) fn dismiss(&mut self, peer: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.is_dismissed = true;
        if let Some(peer) = peer {
            self.channel.send(Kind::Peer as u8, b"", &[peer])?;
        }
        let how = peer.map_or(&b""[..], |_| crate::message::HAND_OVER);
        self.channel.send(Kind::Quit as u8, how, &[])
    }

    /// Ends it now.
    pub(crate) fn terminate(&self) {
        // One that has ended already is what is wanted.
        let _ = self.channel.send(Kind::Terminate as u8, b"", &[]);
    }

    /// Gives it other files to write logs to.
    pub(crate) fn reopen(&self, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        // As above.
        let _ = self.channel.send(Kind::Reopen as u8, body, descriptors);
    }
}

/// Finds the workers that masters of the same configuration have left behind.
pub(crate) fn find(paths: &Paths) -> Vec<Orphan> {
    let prefix = prefix(paths);
    let names = watch::names(&prefix);
    let masters = names
        .iter()
        .filter_map(|name| name.strip_prefix(&prefix)?.parse().ok())
        .filter(|master| *master != std::process::id());
    masters
        .filter_map(|master| ask(&prefix, master))
        .take(MAX_ORPHANS)
        .collect()
}

fn ask(prefix: &str, master: u32) -> Option<Orphan> {
    let (channel, process, user) = watch::connect_channel(&format!("{prefix}{master}")).ok()?;
    if process != master || user != process::user_id() {
        return None;
    }
    let patience = match Path::new(&format!("/proc/{master}")).exists() {
        true => SHORT_PATIENCE,
        false => PATIENCE,
    };
    if process::wait_readable(&[channel.as_fd()], Some(patience)).ok()? != [true] {
        return None;
    }
    // The rest of its message must not keep this process from starting.
    channel.limit_wait(PATIENCE).ok()?;
    let message = channel.receive().ok()??;
    (Kind::of(message.kind) == Some(Kind::Sockets)).then_some(Orphan {
        master,
        sockets: message.descriptors,
        channel,
        is_dismissed: false,
    })
}

/// The beginning of names: masters of one configuration file have the same.
fn prefix(paths: &Paths) -> String {
    // Paths may be longer than names; two with the same hash would have to be those of one user, too.
    let text =
        [&paths.prefix, &paths.configuration].map(|path| path.as_os_str().as_encoded_bytes());
    format!("weir worker {:016x} ", hash(&text.join(&b'\0')))
}

/// FNV-1a. The next release must find the same, which the standard library does not promise of its own.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
