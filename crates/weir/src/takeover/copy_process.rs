//! The private copy as a process: started, stopped, and what it says if it cannot run.
//!
//! It is a child by `fork`, without `exec`: it has the configuration's paths and the mapping of addresses already, and there is no
//! hidden option for which anyone could find another use. The command has one thread, as that requires. The copy's worker runs as
//! the `user` of the configuration, so what nginx may not read, the copy may not read either.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::ErrnoText;
use conf::DirectiveNode;
use host::error_log::Logger;
use host::process::{self, ForkSide};
use host::signal::Signal;
use rt::clock::read_clock;

use super::private_copy::{CanaryPlace, PrivateCopy};
use super::time_since;
use crate::load_configuration::{StartupSettings, load_from_disk};
use crate::prepare::read_pid;
use crate::serve::TemporaryFolder;

/// How long the copy may take to listen, and to end.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the copy may take to end before it is killed. Nobody is connected to it but this command.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks at the pid file, and at the end of a process.
const PAUSE: Duration = Duration::from_millis(2);
/// How many lines of its log explain why it did not start.
const SHOWN_LINES: usize = 10;

/// A copy that serves. Dropped, it ends and leaves nothing.
pub(super) struct RunningCopy {
    pub(super) copy: PrivateCopy,
    /// Its master, a child of this process.
    process: u32,
    /// Everything that it writes. Removed after the process has ended, since fields are dropped after `drop`.
    _folder: TemporaryFolder,
}

impl RunningCopy {
    /// Starts a copy of the server with this configuration, or a canary.
    pub(super) fn start(
        mut startup: StartupSettings,
        nodes: &[DirectiveNode],
        canary: Option<CanaryPlace>,
    ) -> Result<RunningCopy, String> {
        let folder = TemporaryFolder(make_folder()?);
        let (copy, held) = PrivateCopy::new(&folder.0, nodes, canary)?;
        // Where the configuration itself names a place, the copy of the tree has another one; these are the defaults.
        startup.private = Some(copy.clone());
        startup.testing = false;
        startup.paths.pid = copy.pid_path();
        if !copy.is_canary() {
            startup.paths.error_log = Some(copy.log_path());
            startup.paths.access_log = folder.0.join("access.log");
        }
        startup.paths.temporary.clone_from(&folder.0);
        startup.paths.own_folders = Vec::new();
        let output = folder.0.join("output");
        let own_number = std::process::id();
        let side =
            process::fork().map_err(|error| format!("fork() failed{}", ErrnoText(&error)))?;
        // The copy opens the ports itself; until now no other program could be given one of them.
        drop(held);
        let process = match side {
            ForkSide::Child => run_copy(startup, own_number, &output),
            ForkSide::Parent(process) => process,
        };
        let mut running = RunningCopy {
            copy,
            process,
            _folder: folder,
        };
        match running.wait_until_it_listens() {
            Ok(()) => Ok(running),
            Err(()) => Err(running.explain(&output)),
        }
    }

    /// Waits for the pid file, which a master writes when its sockets are open. An error: it has ended, or takes too long.
    fn wait_until_it_listens(&mut self) -> Result<(), ()> {
        let started = read_clock();
        let pid_path = self.copy.pid_path();
        while read_pid(&pid_path).is_none() {
            if process::reap_child().is_some() || time_since(started) > START_TIMEOUT {
                return Err(());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        process::reap_child().is_some_and(|(ended, _)| ended == self.process)
    }

    /// Sends its master a signal. An error would say that it has ended, which is found out otherwise.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = process::kill(self.process, signal);
    }

    /// Why it has ended: its last messages.
    fn explain(&self, output: &Path) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let text = read(output) + &read(&self.copy.log_path());
        let mut lines: Vec<&str> = Vec::new();
        for line in text.lines() {
            let matters = ["[emerg]", "[alert]", "[crit]"]
                .iter()
                .any(|level| line.contains(level));
            if matters && !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.truncate(SHOWN_LINES);
        format!(
            "a copy of the server could not be started:\n{}",
            lines.join("\n")
        )
    }
}

/// Ends the copy, and waits for it: its directory must not be removed while it writes there.
impl Drop for RunningCopy {
    // The copy must not outlive the command, however that ends.
    fn drop(&mut self) {
        // Without a process there is nothing to end.
        let _ = process::kill(self.process, Signal::Term);
        let started = read_clock();
        while process::reap_child().is_none_or(|(ended, _)| ended != self.process) {
            let is_there = Path::new(&format!("/proc/{}", self.process)).exists();
            if !is_there {
                return;
            }
            if time_since(started) > END_TIMEOUT {
                let _ = process::kill(self.process, Signal::Kill);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A directory that this process has made. The worker goes through it to directories of its own; no other user can list it.
fn make_folder() -> Result<PathBuf, String> {
    let path = crate::serve::temporary_folder();
    // It must not be there already: in `/tmp` another user could have made it.
    std::fs::DirBuilder::new()
        .mode(0o711)
        .create(&path)
        .map_err(|error| format!("cannot make {}{}", path.display(), ErrnoText(&error)))?;
    Ok(path)
}

/// The child: the copy's master.
fn run_copy(startup: StartupSettings, parent: u32, output: &Path) -> ! {
    // Its messages are for the report. If the file cannot be made, they are shown as they come.
    if let Ok(file) = std::fs::File::create(output) {
        let _ = process::redirect_stderr(std::os::fd::AsFd::as_fd(&file));
    }
    // A command that is killed takes the copy with it.
    if !process::follow_parent(parent, Signal::Term).unwrap_or(true) {
        std::process::exit(1);
    }
    let code = match load_from_disk(&startup, None) {
        Ok(loaded) => crate::run::start(Arc::new(startup), loaded, Logger::default()),
        Err(failure) => {
            failure.0.print(startup.identity.program());
            1
        }
    };
    std::process::exit(code)
}
