//! Replacing the binary of a running server: nginx's procedure, but with the idle connections.
//!
//! ```text
//! USR2 to the old master    it renames its pid file to .oldbin and runs the program again; both serve
//! WINCH, QUIT to the old    its worker hands its idle connections over and ends; so does the master
//! HUP to the old, QUIT to   the way back: the old one starts a worker again, and the connections
//!   the new                 return to it
//! ```
//!
//! The numbers of the listening sockets are passed in the variable `NGINX`, as by nginx, so that
//! Weir can replace nginx in this way, and nginx Weir. Two masters of Weir have two socket pairs
//! besides, named in `WEIR_UPGRADE`. On the *link* each tells whether it has a serving worker
//! ([`UpgradeMessage`]), so that connections are handed over only if there is a recipient; on the *connections*
//! pair the workers send them ([`crate::handover`]).
//!
//! A successor that is not Weir has inherited the pairs without knowing of them, and says nothing. It is recognised by that: Weir speaks
//! before it writes the pid file, so a successor that is named there and has not spoken is another program. It gets the sockets,
//! and no connections.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use host::channel::Channel;
use host::process;
use net::quic::QuicSecret;

use crate::sockets::ListeningSockets;

/// nginx's variable.
const SOCKETS: &str = "NGINX";
/// Weir's variable: the old master's process number and the numbers of its two socket pairs.
const PAIRS: &str = "WEIR_UPGRADE";

/// How this program was started.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandLine {
    /// The program's absolute path, found as a shell would. An upgrade runs the file that is there
    /// by then.
    program: PathBuf,
    /// Including argument zero.
    arguments: Vec<OsString>,
}

impl CommandLine {
    /// Resolves the path at once: the working directory may change.
    pub(crate) fn new(arguments: &[OsString]) -> CommandLine {
        let named = arguments.first().map(OsString::as_os_str);
        CommandLine {
            program: named.and_then(find_program).unwrap_or_default(),
            arguments: arguments.to_vec(),
        }
    }

    /// The program's absolute path.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
}

/// Finds a program as a shell does: a name with a slash is a path, any other is looked up in
/// `PATH`.
fn find_program(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return std::path::absolute(path).ok();
    }
    // nginx starts a new binary without this variable, and finds it as the kernel does: in the working directory.
    let Some(folders) = std::env::var_os("PATH") else {
        return std::path::absolute(path).ok();
    };
    // The first match that is a file; if there is none, whatever this process runs at the moment.
    std::env::split_paths(&folders)
        .map(|folder| folder.join(path))
        .find(|file| file.is_file())
        .or_else(|| std::env::current_exe().ok())
}

/// A message between the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpgradeMessage {
    /// The sender has a worker that serves.
    Serving = 1,
    /// The sender's worker quits.
    Leaving = 2,
    /// The sender has been started by the other one. It is sent before anything else, so that a successor that says nothing
    /// is known to be another program, such as nginx.
    Started = 3,
    /// The secret of QUIC connection ids, which the new workers need for datagrams of the old ones' connections. It is sent
    /// before the new binary runs.
    QuicSecret = 4,
}

/// Which of the two masters this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterRole {
    /// The new binary, started by this process, by process number.
    New(u32),
    /// The old binary, which has started this process.
    Old,
}

/// The other master, while there are two.
pub(crate) struct OtherMaster {
    /// Which of the two it is.
    pub(crate) role: MasterRole,
    /// Whether it has a worker that accepts connections.
    pub(crate) serves: bool,
    /// Whether it has ever said anything: then it is Weir, and takes connections.
    pub(crate) speaks: bool,
    /// `None` if it is another program, which knows nothing about pairs, or if it is gone.
    pairs: Option<UpgradePairs>,
}

/// This side's ends of the two socket pairs.
struct UpgradePairs {
    /// For [`UpgradeMessage`]s.
    link: Channel,
    /// For connections; handed to the worker that sends or receives them.
    connections: OwnedFd,
}

impl OtherMaster {
    /// The descriptor on which its messages arrive.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.pairs.as_ref().map(|pairs| pairs.link.as_fd())
    }

    /// This side of the pair on which connections are sent.
    pub(crate) fn connections(&self) -> Option<BorrowedFd<'_>> {
        self.pairs.as_ref().map(|pairs| pairs.connections.as_fd())
    }

    /// Sends a message.
    pub(crate) fn send(&self, word: UpgradeMessage) {
        if let Some(pairs) = &self.pairs {
            // If it is gone, the link will be readable and say so.
            let _ = pairs.link.send(word as u8, b"", &[]);
        }
    }

    /// Takes the secret that the old master has left on the link. Without one, from an older version, the connections of
    /// the old worker are reset when their datagrams arrive here.
    fn take_quic_secret(&self) {
        let Some(pairs) = &self.pairs else { return };
        if let Ok(Some(message)) = pairs.link.try_receive()
            && message.kind == UpgradeMessage::QuicSecret as u8
            && let Ok(secret) = message.body.try_into()
        {
            QuicSecret::use_here(secret);
        }
    }

    /// Receives a message. `false` if the other master is gone.
    pub(crate) fn receive(&mut self) -> bool {
        let Some(pairs) = &self.pairs else {
            return false;
        };
        match pairs.link.receive() {
            Ok(Some(message)) => {
                self.speaks = true;
                if message.kind == UpgradeMessage::QuicSecret as u8 {
                    return true;
                }
                self.serves = message.kind == UpgradeMessage::Serving as u8;
                true
            }
            // The link is the only sign of life: without it the other master counts as gone, and connections stay
            // here.
            Ok(None) | Err(_) => {
                self.pairs = None;
                self.serves = false;
                false
            }
        }
    }
}

/// What the old binary has left for its successor.
pub(crate) struct InheritedSockets {
    /// The numbers of the listening sockets.
    pub(crate) sockets: String,
    /// The old master; `None` if it is another program, such as nginx.
    pub(crate) other: Option<OtherMaster>,
}

/// Takes over what the environment names; `None` if the process was started in the usual way.
pub(crate) fn inherited() -> Option<InheritedSockets> {
    let sockets = std::env::var(SOCKETS).ok()?;
    let pairs = std::env::var(PAIRS).ok();
    let pairs = pairs.and_then(|text| {
        let (master, rest) = text.split_once(':')?;
        // The variables may be left over from an earlier upgrade, if nginx ran in between and
        // passed them on.
        if master.parse() != Ok(process::parent_id()) {
            return None;
        }
        let (link, connections) = rest.split_once(',')?;
        let link = process::inherit(link.parse().ok()?).ok()?;
        let connections = process::inherit(connections.parse().ok()?).ok()?;
        Some(UpgradePairs {
            link: Channel::from_fd(link),
            connections,
        })
    });
    let other = pairs.map(|pairs| OtherMaster {
        role: MasterRole::Old,
        // A server that starts its successor is serving.
        serves: true,
        speaks: true,
        pairs: Some(pairs),
    });
    if let Some(other) = &other {
        other.take_quic_secret();
        other.send(UpgradeMessage::Started);
    }
    Some(InheritedSockets { sockets, other })
}

/// Starts the new binary with the listening sockets, beside this process.
pub(crate) fn start(command: &CommandLine, sockets: &ListeningSockets) -> io::Result<OtherMaster> {
    use std::os::fd::AsRawFd as _;
    let (link, their_link) = Channel::pair()?;
    let (connections, their_connections) = Channel::pair()?;
    link.send(
        UpgradeMessage::QuicSecret as u8,
        &QuicSecret::common().bytes(),
        &[],
    )?;
    // All other descriptors are closed on exec.
    let mut keep: Vec<BorrowedFd<'_>> = sockets.descriptors().collect();
    let numbers: String = keep
        .iter()
        .map(|socket| format!("{};", socket.as_raw_fd()))
        .collect();
    let pairs = [their_link.as_fd(), their_connections.as_fd()];
    let [link_number, connections_number] = pairs.map(|end| end.as_raw_fd());
    keep.extend(pairs);
    let variables = [
        (SOCKETS, numbers),
        (
            PAIRS,
            format!("{}:{link_number},{connections_number}", std::process::id()),
        ),
    ];
    let number = process::execute(&command.program, &command.arguments, &variables, &keep)?;
    Ok(OtherMaster {
        role: MasterRole::New(number),
        serves: false,
        speaks: false,
        pairs: Some(UpgradePairs {
            link,
            connections: connections.into(),
        }),
    })
}

/// The old master's pid file while its successor has the usual one. The name is nginx's.
pub(crate) fn old_path(pid: &Path) -> PathBuf {
    let mut path = pid.as_os_str().to_owned();
    path.push(".oldbin");
    path.into()
}
