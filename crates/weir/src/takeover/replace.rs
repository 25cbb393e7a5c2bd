//! One server in the place of the other, by nginx's own procedure for a new binary, with a way back until its last step.
//!
//! ```text
//! the other program stands at the path that the master executes     StandIn, for a moment
//! USR2 to the old master    it renames its pid file and executes that path: the new master has its sockets, user, limits,
//!                           namespaces and control group, and writes the pid file, by which systemd finds it
//! WINCH to the old master   its workers accept nothing more and finish their requests
//! probes                    answered by the new server only; if they fail: HUP to the old master, QUIT to the new one
//! QUIT to the old master    it exits when its workers have
//! ```
//!
//! What can go wrong, and what serves then:
//!
//! ```text
//! the path cannot be changed                 the old server; no signal was sent
//! the program cannot be executed, or ends    the old server, which gives the pid file its name back
//! no worker of the new server starts         the old server: HUP, QUIT as below
//! a page fails that did not fail before      the old server: HUP to its master, QUIT to the new one
//! the old master does not come back          the new server, which is left alone, and an error
//! this command is killed                     both, until someone sends QUIT to one of them; the path is repaired by the next one
//! ```
//!
//! Both programs do this for each other, because the procedure and the variable `NGINX` are nginx's, and Weir has them, too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::ErrnoText;
use host::process;
use host::signal::Signal;
use rt::clock::read_clock;

use super::running::{stat, workers_of};
use super::time_since;
use crate::prepare::read_pid;
use crate::upgrade::old_path;

/// How long the new server may take until its worker runs.
// All of these are limits for something that is wrong. What goes right takes a small part of them.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the old master may take to act on a signal.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the command waits for the old server's end before it leaves it to finish alone.
const END_TIMEOUT: Duration = Duration::from_millis(300);
/// Between two looks at something that no descriptor tells.
const PAUSE: Duration = Duration::from_millis(2);

/// What to replace, and by what.
pub(super) struct Replacement<'r> {
    /// The old master.
    pub(super) master: u32,
    /// The file that it executes.
    pub(super) program: &'r Path,
    /// The file that is to be executed instead; the same if it is there already.
    pub(super) by: &'r Path,
    /// Where a master writes its number.
    pub(super) pid_path: &'r Path,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    /// The new master.
    pub(super) master: u32,
    /// Whether the old one has ended already.
    pub(super) is_old_gone: bool,
}

impl Replacement<'_> {
    /// Replaces the server. `probe` is asked when only the new one accepts connections. On an error the old one serves.
    pub(super) fn run(&self, probe: impl Fn() -> Result<(), String>) -> Result<Replaced, String> {
        let shown = self.pid_path.display();
        if read_pid(self.pid_path) != Some(self.master) {
            return Err(format!("{shown} does not name the process {}", self.master));
        }
        if old_path(self.pid_path).exists() && !self.is_former_finishing() {
            return Err(format!(
                "{shown}.oldbin is there: another upgrade has not ended"
            ));
        }
        // Where the other program is what the path leads to already, as after the package was installed.
        let stand_in = match self.program == self.by {
            true => None,
            false => Some(StandIn::place(self.program, self.by)?),
        };
        signal(self.master, Signal::Usr2)?;
        let new = self.wait_for_new();
        // Before anything else: from here on the path is what it was.
        let removed = stand_in.map_or(Ok(()), StandIn::remove);
        let new = new?;
        removed?;
        // A pid file alone is no proof: nginx and Weir write it before their workers start.
        let is_ready = wait(START_TIMEOUT, || {
            let runs = has_worker(new);
            (runs || !is_alive(new)).then_some(runs)
        });
        if is_ready != Some(true) {
            return Err(self.give_up(new, "its worker process did not start"));
        }
        signal(self.master, Signal::Winch)?;
        // Workers that are busy stay, and accept nothing. If they are slow to say so, the probes may still meet them.
        wait(SIGNAL_TIMEOUT, || (!has_worker(self.master)).then_some(()));
        if let Err(error) = probe() {
            return Err(self.give_up(new, &error));
        }
        signal(self.master, Signal::Quit)?;
        let gone = wait(END_TIMEOUT, || (!is_alive(self.master)).then_some(()));
        Ok(Replaced {
            master: new,
            is_old_gone: gone.is_some(),
        })
    }

    /// Whether the server of an earlier upgrade has nothing left but the requests that it had then. The return must not wait for
    /// them, and it does not need to: the file with its number is only written over.
    fn is_former_finishing(&self) -> bool {
        let former = read_pid(&old_path(self.pid_path));
        former.is_some_and(|former| former != self.master && !has_worker(former))
    }

    /// Waits until the pid file names another living process.
    fn wait_for_new(&self) -> Result<u32, String> {
        let started = read_clock();
        let mut was_renamed = false;
        let found = wait(START_TIMEOUT, || {
            let number = read_pid(self.pid_path);
            if let Some(new) = number.filter(|new| *new != self.master && is_alive(*new)) {
                return Some(Ok(new));
            }
            let is_renamed = old_path(self.pid_path).exists();
            let is_back = number == Some(self.master) && !is_renamed;
            was_renamed |= is_renamed;
            let has_failed = is_back && (was_renamed || time_since(started) > SIGNAL_TIMEOUT);
            has_failed.then_some(Err(()))
        });
        match found {
            Some(Ok(new)) => Ok(new),
            Some(Err(())) if was_renamed => {
                Err("the new server has ended at once; its error log says why".to_owned())
            }
            Some(Err(())) => Err(format!(
                "process {} did not react to USR2; its error log may say why",
                self.master
            )),
            None => Err("the new server did not start in time".to_owned()),
        }
    }

    /// nginx's rollback: the old master starts workers again, and the new one ends. The reason, with what was done.
    fn give_up(&self, new: u32, reason: &str) -> String {
        let back = signal(self.master, Signal::Hup).and_then(|()| {
            wait(START_TIMEOUT, || has_worker(self.master).then_some(()))
                .ok_or_else(|| format!("process {} has no worker process", self.master))
        });
        match back {
            Ok(()) => {
                // It may have ended by itself, which may be the reason.
                let _ = signal(new, Signal::Quit);
                wait(SIGNAL_TIMEOUT, || {
                    (read_pid(self.pid_path) == Some(self.master)).then_some(())
                });
                format!("{reason}; process {} serves again", self.master)
            }
            // The new one stays: it is the only one that may serve.
            Err(error) => format!("{reason}, and the way back failed: {error}"),
        }
    }
}

/// Another program at a path, for the time of one `execve`.
///
/// nginx knows its binary by the path of its argument zero only. Its listening sockets could be taken from outside, but a process
/// started by hand would have neither the namespaces and limits of its unit nor its control group, and nginx would remove the
/// pid file when it ends.
struct StandIn {
    /// What the old master executes.
    path: PathBuf,
    /// Where the file of that path is meanwhile; `None` if there was none.
    aside: Option<PathBuf>,
}

impl StandIn {
    /// Puts a link to `target` in the place of `path`. Nothing has changed if it fails.
    fn place(path: &Path, target: &Path) -> Result<StandIn, String> {
        let failed = |error: std::io::Error| {
            format!(
                "{} cannot be replaced for a moment{}: it takes write permission to its directory",
                path.display(),
                ErrnoText(&error)
            )
        };
        let link = |at: &Path| std::os::unix::fs::symlink(target, at).map_err(failed);
        if path.symlink_metadata().is_err() {
            // Started by a name without a slash: the shell found it in its PATH, and nginx looks for it where it runs.
            link(path)?;
            let path = path.to_owned();
            return Ok(StandIn { path, aside: None });
        }
        let aside = aside_path(path);
        restore_left_over(path, &aside)?;
        link(&aside)?;
        if let Err(error) = process::exchange_names(path, &aside) {
            // Only this function has made it.
            let _ = std::fs::remove_file(&aside);
            return Err(failed(error));
        }
        Ok(StandIn {
            path: path.to_owned(),
            aside: Some(aside),
        })
    }

    /// Gives the path back.
    fn remove(self) -> Result<(), String> {
        let link = match &self.aside {
            Some(aside) => {
                process::exchange_names(&self.path, aside).map_err(|error| {
                    format!(
                        "{} cannot be put back{}; it is {}",
                        self.path.display(),
                        ErrnoText(&error),
                        aside.display()
                    )
                })?;
                aside
            }
            None => &self.path,
        };
        std::fs::remove_file(link)
            .map_err(|error| format!("{} cannot be removed{}", link.display(), ErrnoText(&error)))
    }
}

/// The name under which the file of a path waits. It is fixed, so that a later command finds what a killed one has left.
fn aside_path(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".weir-takeover");
    aside.into()
}

/// Gives back what a command that was killed has left aside.
fn restore_left_over(path: &Path, aside: &Path) -> Result<(), String> {
    let Ok(left) = aside.symlink_metadata() else {
        return Ok(());
    };
    let done = match (left.is_symlink(), path.is_symlink()) {
        (false, true) => std::fs::rename(aside, path),
        (true, _) => std::fs::remove_file(aside),
        // A package has put a newer file there meanwhile.
        (false, false) => std::fs::remove_file(aside),
    };
    done.map_err(|error| {
        format!(
            "{} is left over, and cannot be put back{}",
            aside.display(),
            ErrnoText(&error)
        )
    })
}

/// Gives a path back that a killed command has left to another program.
pub(super) fn repair(program: &Path) -> Result<(), String> {
    restore_left_over(program, &aside_path(program))
}

/// Sends a signal. An error names it as `kill` does in a shell, so that it can be tried by hand.
fn signal(master: u32, signal: Signal) -> Result<(), String> {
    process::kill(master, signal).map_err(|error| {
        format!(
            "kill({master}, {}) failed{}",
            signal.number(),
            ErrnoText(&error)
        )
    })
}

/// Asks until there is an answer, for a limited time.
fn wait<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let started = read_clock();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if time_since(started) > limit {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process runs: one that has ended, and that nobody has reaped, does not.
fn is_alive(number: u32) -> bool {
    stat(number).is_some_and(|(state, _)| !matches!(state, b'Z' | b'X'))
}

/// Whether a master has a worker process that accepts connections, rather than only finishing its requests.
fn has_worker(master: u32) -> bool {
    !workers_of(master).is_empty()
}
