//! The other master during an upgrade: begun, heard, left to serve, or taken back from.

use std::time::{Duration, Instant};

use base::ErrnoText;
use host::error_log::LogLevel;
use host::process;

use crate::load_configuration::LoadedConfiguration;
use crate::message::MessageKind;
use crate::prepare::PidFile;
use crate::upgrade::{self, MasterRole, OtherMaster};

use super::{AwaitedAction, MasterEnd, MasterProcess};

/// How long workers go on after they were told to quit while a new binary is about to serve, so
/// that their idle connections can be handed over.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is looked whether a successor that says nothing listens.
const SUCCESSOR_INTERVAL: Duration = Duration::from_millis(10);

impl MasterProcess {
    /// Handles a message of the other master, or its end.
    pub(super) fn receive_from_other(&mut self) {
        let Some(other) = &mut self.other else { return };
        let lives = other.receive();
        let (role, serves) = (other.role, other.serves);
        match role {
            // Its exit is noticed by `reap`.
            MasterRole::New(process) if serves => {
                self.notice(format_args!("new binary process {process} is ready"));
                let text = format!("new binary process {process} is ready\n");
                self.report_outcome(AwaitedAction::Upgrade, true, &text);
                // The quit was only put off until there is a process that can take the idle connections.
                if self.quit_at.take().is_some() {
                    self.quit_workers();
                }
            }
            MasterRole::Old if !lives => {
                self.notice(format_args!("the old binary's master process has ended"));
                self.other = None;
                self.adopt_orphans();
                self.tell_ready("serving");
            }
            MasterRole::New(_) | MasterRole::Old => {}
        }
    }

    /// Whether the new binary is another program, which says nothing: then its pid file tells that it listens, as with nginx.
    fn recognise_another_program(&mut self) {
        let pid = crate::prepare::read_pid(&self.loaded.core.pid);
        let Some(other) = self
            .other
            .as_mut()
            .filter(|other| !other.speaks && !other.serves)
        else {
            return;
        };
        // Weir speaks before it writes the file: a message may be waiting.
        let link = other.link();
        let has_message = link.is_some_and(|link| {
            process::wait_readable(&[link], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
        });
        let MasterRole::New(process) = other.role else {
            return;
        };
        if pid == Some(process) && !has_message {
            other.serves = true;
            self.notice(format_args!(
                "new binary process {process} is another program"
            ));
            if self.quit_at.take().is_some() {
                self.quit_workers();
            }
        }
    }

    /// When to look at the pid file of a new binary that has not said anything, while workers wait for it to quit.
    pub(super) fn look_at_other(&self) -> Option<Instant> {
        let other = self
            .other
            .as_ref()
            .filter(|other| !other.speaks && !other.serves);
        let waits = self.quit_at.is_some() && other.is_some();
        waits.then(|| rt::clock::read_clock() + SUCCESSOR_INTERVAL)
    }

    /// Tells the workers to quit if the new binary has not begun to serve in time.
    pub(super) fn quit_if_due(&mut self) {
        if self.quit_at.is_some() {
            self.recognise_another_program();
        }
        if self.quit_at.is_some_and(|at| rt::clock::read_clock() >= at) {
            self.quit_at = None;
            self.quit_workers();
        }
    }

    /// Starts the new binary beside this one. As with nginx the old pid file gets the suffix
    /// `.oldbin`, since the new master writes its own.
    pub(super) fn change_binary(&mut self) {
        if self.other.is_some() {
            let text = "an upgrade is already in progress: stop the old or the new master first";
            return self.report_refusal(text);
        }
        self.notice(format_args!("changing binary"));
        let pid = self.loaded.core.pid.clone();
        // Renamed before the new binary starts, because it writes its own number to the usual path.
        if let Err(error) = self.pid_file.rename(&upgrade::old_path(&pid)) {
            let text = format!("{error} before executing new binary process");
            self.log()
                .log_plain(LogLevel::Alert, format_args!("{text}"));
            return self.report_refusal(&text);
        }
        let other = match upgrade::start(&self.startup.command, &self.opened.sockets) {
            Ok(other) => other,
            Err(error) => {
                let text = format!("could not start the new binary{}", ErrnoText(&error));
                self.log()
                    .log_plain(LogLevel::Alert, format_args!("{text}"));
                self.restore_pid_file();
                return self.report_refusal(&text);
            }
        };
        if let MasterRole::New(process) = other.role {
            self.notice(format_args!("start new binary process {process}"));
        }
        if let Some(connections) = other.connections() {
            // The workers get their end of the pair now: once they are told to quit, they must already know where to
            // send.
            for index in self.in_charge() {
                self.send(index, MessageKind::Peer, b"", &[connections]);
            }
        }
        self.other = Some(other);
        self.awaited = AwaitedAction::Upgrade;
    }

    /// Gives the pid file its name back after a failed upgrade.
    fn restore_pid_file(&mut self) {
        let pid = self.loaded.core.pid.clone();
        if let Err(error) = self.pid_file.rename(&pid) {
            let text = format_args!("{error} after the new binary process has ended");
            self.log().log_plain(LogLevel::Alert, text);
        }
    }

    /// The new binary has exited: this one is alone again.
    pub(super) fn new_binary_ended(&mut self) {
        self.other = None;
        self.restore_pid_file();
        self.adopt_orphans();
        let text = "the new binary process has ended; see the error log\n";
        self.report_outcome(AwaitedAction::Upgrade, false, text);
        if self.quit_at.take().is_some() && self.end != MasterEnd::No {
            return self.quit_workers();
        }
        // WINCH may have ended the workers for the sake of the new binary, which is gone now: without this, nothing
        // would serve.
        if self.end == MasterEnd::No && self.workers.iter().all(|worker| worker.is_exiting) {
            self.notice(format_args!("start worker processes"));
            self.start_workers();
        }
    }

    /// Writes the new pid file before the old one is removed, if the configuration has moved it.
    pub(super) fn move_pid_file(&mut self, loaded: &LoadedConfiguration) -> Result<(), String> {
        if self.pid_file.path() != loaded.core.pid {
            let moved = PidFile::write(&loaded.core.pid)?;
            self.pid_file.remove(self.log());
            self.pid_file = moved;
        }
        Ok(())
    }

    /// Tells the workers to quit, or waits for a new binary that is about to serve.
    pub(super) fn quit_when_replaced(&mut self) {
        self.recognise_another_program();
        let about_to =
            |other: &OtherMaster| matches!(other.role, MasterRole::New(_)) && !other.serves;
        if self.other.as_ref().is_some_and(about_to) {
            self.quit_at = Some(rt::clock::read_clock() + SUCCESSOR_TIMEOUT);
            return;
        }
        self.quit_workers();
    }
}
