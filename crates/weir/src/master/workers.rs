//! The workers of a master: started, told, ended and reaped, and those that a killed master left behind.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use base::ErrnoText;
use host::channel::Channel;
use host::error_log::LogLevel;
use host::process::{self, ChildExit, ForkSide};
use host::signal::{Signal, SignalReader};
use rt::sandbox::{SandboxRules, SeccompListener};

use crate::children::{WorkerChild, WorkerSandbox};
use crate::message::{GenerationMessage, HAND_OVER, MessageKind};
use crate::orphan;
use crate::prepare::OpenedResources;
use crate::upgrade::{MasterRole, OtherMaster, UpgradeMessage};
use crate::watchers::SignalWatchers;
use crate::worker_process;

use super::{AwaitedAction, MasterEnd, MasterProcess};

/// A worker's exit code that says: another worker would fail, too. nginx's number.
const FATAL: i32 = 2;

/// The time from `TERM` to `KILL`.
const KILL_AFTER: Duration = Duration::from_secs(1);

impl MasterProcess {
    /// Handles a worker's message. A channel whose other end is closed stays readable until the
    /// worker is reaped, hence the pause.
    pub(super) fn receive_from_worker(&mut self, index: usize) {
        let message = match self.workers[index].channel.receive() {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return std::thread::sleep(Duration::from_millis(1)),
        };
        let (number, why) = match message.body.split_first_chunk() {
            Some((number, why)) => (u64::from_le_bytes(*number), why),
            // Messages that are not about a configuration have no number.
            None => (0, &message.body[..]),
        };
        match MessageKind::of(message.kind) {
            Some(MessageKind::Applied) => self.on_applied(index, number),
            Some(MessageKind::Refused) => {
                let process = self.workers[index].process;
                let text = format_args!(
                    "worker process {process} rejected the configuration and keeps the previous one"
                );
                self.log().log_plain(LogLevel::Error, text);
                self.return_to_previous(number);
                let why = String::from_utf8_lossy(why).into_owned();
                self.report_outcome(AwaitedAction::Configuration(number), false, &why);
            }
            Some(MessageKind::Sandboxed) => {
                if let Some(sandbox) = &mut self.workers[index].sandbox {
                    sandbox.listener = message
                        .descriptors
                        .into_iter()
                        .next()
                        .map(SeccompListener::of);
                }
            }
            Some(MessageKind::FileDenied) => self.renew_sandbox(index),
            Some(_) | None => {}
        }
    }

    /// A worker of this master serves: orphaned workers may quit and hand their connections over.
    pub(super) fn dismiss_orphans(&mut self, index: usize) {
        for number in 0..self.orphans.len() {
            if self.orphans[number].is_dismissed {
                continue;
            }
            // Without a pair the idle connections are closed.
            let pair = Channel::pair().ok();
            if let Some((ours, _)) = &pair {
                self.send(index, MessageKind::Peer, b"", &[ours.as_fd()]);
            }
            // This master's worker was told first: when the orphan begins to send, there is a receiver.
            let theirs = pair.as_ref().map(|(_, theirs)| theirs.as_fd());
            let orphan = &mut self.orphans[number];
            let master = orphan.master;
            if let Err(error) = orphan.dismiss(theirs) {
                let error = ErrnoText(&error);
                let text = format_args!(
                    "sendmsg() to the worker process of master process {master} failed{error}"
                );
                self.log().log_plain(LogLevel::Alert, text);
            }
        }
    }

    /// Another master with the same sockets is gone: its workers must not go on beside this one's
    /// forever.
    pub(super) fn adopt_orphans(&mut self) {
        let found = orphan::find(&self.startup.paths);
        // Their sockets are already open in this process.
        self.orphans.extend(found);
        let serving = |worker: &WorkerChild| worker.is_serving && !worker.is_exiting;
        if let Some(index) = self.workers.iter().rposition(serving) {
            self.dismiss_orphans(index);
        }
    }

    /// Starts a worker and sends it the configuration.
    pub(super) fn start_worker(&mut self) {
        self.crashes.respawn_at = None;
        if let Err(error) = self.fork_worker() {
            let text = format_args!(
                "fork() failed while spawning \"worker process\"{}",
                ErrnoText(&error)
            );
            self.log().log_plain(LogLevel::Alert, text);
            self.crashes.note(Duration::ZERO, rt::clock::read_clock());
            return;
        }
        if let Some(index) = self.workers.len().checked_sub(1) {
            self.notice(format_args!(
                "start worker process {}",
                self.workers[index].process
            ));
            self.send_configuration(index);
            if let Some(connections) = self.other.as_ref().and_then(OtherMaster::connections) {
                self.send(index, MessageKind::Peer, b"", &[connections]);
            }
        }
    }

    /// Forks a worker. The rules of its sandbox are decided before, so that it cannot influence
    /// them.
    fn fork_worker(&mut self) -> std::io::Result<()> {
        // Both ends exist before the fork: afterwards each side only closes the one that is not its own.
        let (ours, theirs) = Channel::pair()?;
        let rules = crate::sandbox::rules(&self.loaded);
        match process::fork()? {
            ForkSide::Parent(process) => {
                self.workers.push(WorkerChild {
                    process,
                    channel: ours,
                    started: rt::clock::read_clock(),
                    is_exiting: false,
                    is_serving: false,
                    sandbox: rules.map(WorkerSandbox::new),
                });
                if let Some(sandbox) = self
                    .workers
                    .last()
                    .and_then(|worker| worker.sandbox.as_ref())
                {
                    self.log_rules(&sandbox.rules);
                }
                Ok(())
            }
            ForkSide::Child => {
                drop(ours);
                self.become_worker(theirs, rules.as_ref())
            }
        }
    }

    /// In the child: drops everything that belongs to the master, so that a socket the master
    /// closes later is not kept open here.
    fn become_worker(&mut self, channel: Channel, rules: Option<&SandboxRules>) -> ! {
        self.loaded.abandon_kept();
        self.previous.clear();
        self.workers.clear();
        self.other = None;
        self.orphans.clear();
        let refuge = self.orphan_listener.take();
        self.watchers = SignalWatchers::none();
        self.opened = OpenedResources {
            sockets: Default::default(),
            logs: Vec::new(),
        };
        // The log files, too: a reload may stop naming them. That of `log` stays, for what the worker has to say before it
        // has a configuration.
        self.loaded.files.prune_unused();
        let core = self.loaded.core.clone();
        // The master's descriptor reads the master's signals; each process needs its own.
        let log = self.log().clone();
        match SignalReader::block(&Signal::ALL) {
            Ok(signals) => {
                let startup = self.startup.clone();
                worker_process::run(startup, (&core, rules), log, channel, signals, refuge)
            }
            Err(error) => {
                log.log_plain(
                    LogLevel::Emerg,
                    format_args!("signalfd() failed{}", ErrnoText(&error)),
                );
                std::process::exit(FATAL)
            }
        }
    }

    /// Sends a worker the current configuration with its descriptors.
    pub(super) fn send_configuration(&mut self, index: usize) {
        let generation = GenerationMessage::new(
            self.number,
            self.loaded.snapshot.clone(),
            &self.opened.sockets,
            self.opened.logs.clone(),
        );
        // The recorded files go along: the worker may have no right to read them, and they may have changed since.
        let (body, descriptors) = generation.encode();
        self.send(index, MessageKind::Configuration, &body, &descriptors);
    }

    /// Sends a message to a worker.
    pub(super) fn send(
        &self,
        index: usize,
        kind: MessageKind,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) {
        let worker = &self.workers[index];
        if let Err(error) = worker.channel.send(kind as u8, body, descriptors) {
            let text = format_args!(
                "sendmsg() to worker process {} failed{}",
                worker.process,
                ErrnoText(&error)
            );
            // A worker that has just exited; the reason is logged when it is reaped.
            let level = match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => LogLevel::Info,
                _ => LogLevel::Alert,
            };
            self.log().log_plain(level, text);
        }
    }

    /// Starts a worker in place of another, which quits as soon as the new one serves.
    pub(super) fn replace_worker(&mut self, old: usize) {
        self.notice(format_args!("start worker processes"));
        let before = self.workers.len();
        self.start_worker();
        match Channel::pair() {
            // Only if a new worker exists: `fork` may have failed, and then the old one goes on serving.
            Ok((one, two)) if self.workers.len() > before => {
                self.send(old, MessageKind::Peer, b"", &[one.as_fd()]);
                self.send(before, MessageKind::Peer, b"", &[two.as_fd()]);
            }
            // Without a pair the idle connections are closed, as with nginx.
            Ok(_) | Err(_) => {}
        }
    }

    /// `HUP` while a new binary runs is the way back to this one, as nginx documents it.
    pub(super) fn return_to_service(&mut self) {
        self.quit_at = None;
        // WINCH was not sent yet: nothing has to be started again.
        if self.workers.iter().any(|worker| !worker.is_exiting) {
            return self.notice(format_args!(
                "the worker process of this binary is still serving"
            ));
        }
        self.notice(format_args!("start worker processes"));
        self.start_worker();
    }

    /// Tells all workers to quit; they hand their connections to a new binary that serves.
    pub(super) fn quit_workers(&mut self) {
        self.crashes.respawn_at = None;
        let mut how: &[u8] = b"";
        if let Some(other) = &self.other {
            // Before the workers are told: from now on the other master must not hand connections to them.
            other.send(UpgradeMessage::Leaving);
            if other.serves {
                how = HAND_OVER;
            }
        }
        self.quit_first(self.workers.len(), how);
    }

    /// Tells the oldest `count` workers to quit.
    pub(super) fn quit_first(&mut self, count: usize, how: &[u8]) {
        for index in 0..count {
            if !std::mem::replace(&mut self.workers[index].is_exiting, true) {
                self.send(index, MessageKind::Quit, how, &[]);
            }
        }
    }

    /// `TERM`: exits at once, without waiting for requests.
    pub(super) fn terminate(&mut self) {
        if !matches!(self.end, MasterEnd::Terminate(_)) {
            self.end = MasterEnd::Terminate(rt::clock::read_clock() + KILL_AFTER);
        }
        self.crashes.respawn_at = None;
        self.quit_at = None;
        if let Some(other) = &self.other {
            other.send(UpgradeMessage::Leaving);
        }
        for index in 0..self.workers.len() {
            self.workers[index].is_exiting = true;
            self.send(index, MessageKind::Terminate, b"", &[]);
        }
        for orphan in &self.orphans {
            orphan.terminate();
        }
    }

    /// Kills the workers that have not obeyed `TERM` in time, every second until none is left.
    pub(super) fn kill_if_due(&mut self) {
        let MasterEnd::Terminate(at) = self.end else {
            return;
        };
        if rt::clock::read_clock() < at {
            return;
        }
        self.end = MasterEnd::Terminate(rt::clock::read_clock() + KILL_AFTER);
        for worker in &self.workers {
            // It may have exited a moment ago; then `reap` will find it.
            let _ = process::kill(worker.process, Signal::Kill);
        }
    }

    /// Reaps the children that have exited.
    pub(super) fn reap(&mut self) {
        while let Some((process, exit)) = process::reap_child() {
            let index = self
                .workers
                .iter()
                .position(|worker| worker.process == process);
            let is_new_binary = self
                .other
                .as_ref()
                .is_some_and(|other| other.role == MasterRole::New(process));
            let name = match index {
                Some(_) => "worker process",
                None if is_new_binary => "new binary process",
                None => "unknown process",
            };
            match exit {
                ChildExit::Code(code) => {
                    self.notice(format_args!("{name} {process} exited with code {code}"))
                }
                ChildExit::Signal(signal) => {
                    let text = format_args!("{name} {process} exited on signal {signal}");
                    self.log().log_plain(LogLevel::Alert, text);
                }
            }
            if is_new_binary {
                self.new_binary_ended();
            }
            let Some(index) = index else { continue };
            let worker = self.workers.remove(index);
            // It was told to: no crash, and nothing to replace.
            if worker.is_exiting || self.end != MasterEnd::No {
                continue;
            }
            // Starting the same worker again would only repeat the error.
            if exit == ChildExit::Code(FATAL) {
                let text = format_args!(
                    "{name} {process} exited with fatal code {FATAL} and cannot be respawned"
                );
                self.log().log_plain(LogLevel::Alert, text);
                let text = "the worker process could not be started; see the error log\n";
                if !worker.is_serving {
                    self.return_to_previous(self.number);
                }
                self.report_outcome(AwaitedAction::Configuration(self.number), false, text);
                if !self.has_served && self.workers.is_empty() {
                    // The sockets would accept connections that are never answered, and the service
                    // manager would believe that the server runs.
                    self.first_worker_failed = true;
                    self.end = MasterEnd::Quit;
                }
                continue;
            }
            // The worker that it was to replace still serves.
            if self.workers.iter().any(|worker| !worker.is_exiting) {
                continue;
            }
            self.crashes
                .note(rt::clock::elapsed(worker.started), rt::clock::read_clock());
        }
    }

    /// Starts the next worker when its time has come.
    pub(super) fn respawn(&mut self) {
        if self
            .crashes
            .respawn_at
            .is_some_and(|at| rt::clock::read_clock() >= at)
        {
            self.start_worker();
        }
    }
}
