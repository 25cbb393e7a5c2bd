//! Replacing the binary while it serves: nginx's procedure, and idle connections too.
//!
//! ```text
//! USR2 to the old master    it renames its pid file to .oldbin and runs the program again; both serve
//! WINCH, QUIT to the old    its worker hands its idle connections over and ends; so does the master
//! HUP to the old, QUIT to   the way back: the old one starts a worker again, and the connections
//!   the new                 return to it
//! ```
//!
//! The listening sockets go by number in the variable `NGINX`, as nginx passes them, so that nginx can be
//! replaced by Weir in this way, and Weir by nginx. Weir's own masters have two socket pairs besides,
//! named in `WEIR_UPGRADE`: on the *link* each says whether it has a worker that serves
//! ([`Word`]), so that connections are handed over only to somebody; through the *parcels* pair
//! the workers send them ([`crate::handover`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rt::channel::Channel;
use rt::process;

use crate::sockets::Sockets;

/// nginx's name.
const SOCKETS: &str = "NGINX";
const PAIRS: &str = "WEIR_UPGRADE";

/// How this program was called.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandLine {
    /// The file, found as a shell would have, with its absolute path; what is there at the time of an
    /// upgrade is run.
    program: PathBuf,
    /// With argument zero.
    arguments: Vec<OsString>,
}

impl CommandLine {
    /// Remembers the arguments that the process was started with.
    pub(crate) fn new(arguments: &[OsString]) -> CommandLine {
        let named = arguments.first().map(OsString::as_os_str);
        CommandLine {
            program: named.and_then(find_program).unwrap_or_default(),
            arguments: arguments.to_vec(),
        }
    }
}

fn find_program(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return std::path::absolute(path).ok();
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(path))
        .find(|file| file.is_file())
        .or_else(|| std::env::current_exe().ok())
}

/// What a master tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It has a worker that serves.
    Serving = 1,
    /// Its worker ends.
    Leaving = 2,
}

/// Which of the two masters the other one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The binary that this process has started, by process number.
    New(u32),
    /// The one that has started this process.
    Old,
}

/// The other master, while there are two.
pub(crate) struct Other {
    /// Which one.
    pub(crate) role: Role,
    /// It has a worker that takes connections.
    pub(crate) serves: bool,
    /// `None` when it is another program, which knows nothing of pairs, or is gone.
    pairs: Option<Pairs>,
}

struct Pairs {
    link: Channel,
    parcels: OwnedFd,
}

impl Other {
    /// Where it is heard.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.pairs.as_ref().map(|pairs| pairs.link.as_fd())
    }

    /// This side's end of the pair that connections go by.
    pub(crate) fn parcels(&self) -> Option<BorrowedFd<'_>> {
        self.pairs.as_ref().map(|pairs| pairs.parcels.as_fd())
    }

    /// Tells it something.
    pub(crate) fn tell(&self, word: Word) {
        if let Some(pairs) = &self.pairs {
            // When it is gone, its end of the link says so.
            let _ = pairs.link.send(word as u8, b"", &[]);
        }
    }

    /// Takes what it says. `false` when it is gone.
    pub(crate) fn hear(&mut self) -> bool {
        let Some(pairs) = &self.pairs else {
            return false;
        };
        match pairs.link.receive() {
            Ok(Some(message)) => {
                self.serves = message.kind == Word::Serving as u8;
                true
            }
            Ok(None) | Err(_) => {
                self.pairs = None;
                self.serves = false;
                false
            }
        }
    }
}

/// What a program that replaces another has been left.
pub(crate) struct Inherited {
    /// The numbers of the listening sockets.
    pub(crate) sockets: String,
    /// The master that they come from; `None` if it is another program, such as nginx.
    pub(crate) other: Option<Other>,
}

/// Takes what a running server has left for this process; `None` when it was started by hand.
pub(crate) fn inherited() -> Option<Inherited> {
    let sockets = std::env::var(SOCKETS).ok()?;
    let pairs = std::env::var(PAIRS).ok();
    let pairs = pairs.and_then(|text| {
        let (master, rest) = text.split_once(':')?;
        // The variables may be left over from an earlier upgrade, by way of nginx.
        if master.parse() != Ok(process::parent_id()) {
            return None;
        }
        let (link, parcels) = rest.split_once(',')?;
        let link = process::inherit(link.parse().ok()?).ok()?;
        let parcels = process::inherit(parcels.parse().ok()?).ok()?;
        Some(Pairs {
            link: Channel::from_fd(link),
            parcels,
        })
    });
    let other = pairs.map(|pairs| Other {
        role: Role::Old,
        serves: true,
        pairs: Some(pairs),
    });
    Some(Inherited { sockets, other })
}

/// Runs the program again beside this process, with its listening sockets.
pub(crate) fn start(command: &CommandLine, sockets: &Sockets) -> io::Result<Other> {
    use std::os::fd::AsRawFd as _;
    let (link, their_link) = Channel::pair()?;
    let (parcels, their_parcels) = Channel::pair()?;
    let mut keep: Vec<BorrowedFd<'_>> = sockets.descriptors().collect();
    let numbers: String = keep
        .iter()
        .map(|socket| format!("{};", socket.as_raw_fd()))
        .collect();
    let pairs = [their_link.as_fd(), their_parcels.as_fd()];
    let [link_number, parcels_number] = pairs.map(|end| end.as_raw_fd());
    keep.extend(pairs);
    let variables = [
        (SOCKETS, numbers),
        (
            PAIRS,
            format!("{}:{link_number},{parcels_number}", std::process::id()),
        ),
    ];
    let number = process::execute(&command.program, &command.arguments, &variables, &keep)?;
    Ok(Other {
        role: Role::New(number),
        serves: false,
        pairs: Some(Pairs {
            link,
            parcels: parcels.into(),
        }),
    })
}

/// Where the pid file of a master is while its successor has the usual place.
pub(crate) fn old_path(pid: &Path) -> PathBuf {
    let mut path = pid.as_os_str().to_owned();
    path.push(".oldbin");
    path.into()
}
