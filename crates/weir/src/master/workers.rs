//! The workers of a master: started, told, ended and reaped, and those that a killed master left behind.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use base::ErrnoText;
use host::channel::Channel;
use host::error_log::LogLevel;
use host::process::{self, ChildExit, ForkSide};
use host::signal::{Signal, SignalReader};
use host::worker_group::{GroupMember, WorkerGroup};
use rt::sandbox::{SandboxRules, SeccompListener};

use crate::children::{WorkerBatch, WorkerChild, WorkerSandbox};
use crate::message::{GenerationMessage, IdleConnections, MessageKind};
use crate::orphan;
use crate::prepare::OpenedResources;
use crate::upgrade::{MasterRole, OtherMaster, UpgradeMessage};
use crate::watchers::SignalWatchers;
use crate::worker_process::{self, WorkerStart};

use super::{AwaitedAction, MasterEnd, MasterProcess};

/// A worker's exit code that says: another worker would fail, too. nginx's number.
const FATAL: i32 = 2;

/// The time from `TERM` to `KILL`.
const KILL_AFTER: Duration = Duration::from_secs(1);

/// From this size on, in bytes, the memory of a configuration that was sent goes back to the system at once.
const LARGE_CONFIGURATION: usize = 1 << 20;

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
            Some(MessageKind::Beat) => self.take_beat(index),
            Some(_) | None => {}
        }
    }

    /// No loop of a worker is stuck. systemd is told when that holds for all groups.
    fn take_beat(&mut self, index: usize) {
        self.workers[index].has_beaten = true;
        if self.all_groups(|worker| worker.has_beaten) {
            self.manager.beat();
            for worker in &mut self.workers {
                worker.has_beaten = false;
            }
        }
    }

    /// Whether a worker is one of those that serve, or are about to: of the current batch, and not told to exit.
    pub(super) fn is_in_charge(&self, worker: &WorkerChild) -> bool {
        worker.batch == self.batch.number && !worker.is_exiting
    }

    /// The workers in charge.
    pub(super) fn in_charge(&self) -> Vec<usize> {
        (0..self.workers.len())
            .filter(|index| self.is_in_charge(&self.workers[*index]))
            .collect()
    }

    /// Whether each group has a worker in charge for which this holds.
    pub(super) fn all_groups(&self, holds: impl Fn(&WorkerChild) -> bool) -> bool {
        let fine = |group| {
            let mut workers = self.workers.iter().filter(|one| self.is_in_charge(one));
            workers.any(|worker| worker.group.index == group && holds(worker))
        };
        (0..self.batch.groups()).all(fine)
    }

    /// The workers of this master serve: orphaned workers may quit and hand their connections over.
    pub(super) fn dismiss_orphans(&mut self) {
        for number in 0..self.orphans.len() {
            if self.orphans[number].is_dismissed {
                continue;
            }
            // Without a pair the idle connections are closed.
            let pair = Channel::pair().ok();
            if let Some((ours, _)) = &pair {
                // Several workers read from one end: each connection goes to the first that is free.
                for index in self.in_charge() {
                    self.send(index, MessageKind::Peer, b"", &[ours.as_fd()]);
                }
            }
            // This master's workers were told first: when the orphan begins to send, there is a receiver.
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
        if self.batch.groups() > 0 && self.all_groups(|worker| worker.applied > 0) {
            self.dismiss_orphans();
        }
    }

    /// Starts a batch: a worker for each group. The batch before it, if it still serves, ends when this one serves.
    pub(super) fn start_workers(&mut self) {
        let groups = self.loaded.core.groups();
        let (batch, connected) = WorkerBatch::new(self.batch.number + 1, groups);
        if let Err(error) = connected {
            let error = ErrnoText(&error);
            let text = format_args!(
                "the worker groups could not be connected{error}: each sees only its own connections"
            );
            self.log().log_plain(LogLevel::Alert, text);
        }
        let serves = !self.in_charge().is_empty();
        let mut before = std::mem::replace(&mut self.batch, batch);
        before.forget_respawns();
        self.batch.replaced = serves.then(|| Box::new(before));
        for group in 0..groups {
            self.start_worker(group);
        }
    }

    /// Starts the workers of groups that have none, and for which none is planned.
    pub(super) fn start_missing_groups(&mut self) {
        for group in 0..self.batch.groups() {
            let has_worker = self
                .in_charge()
                .into_iter()
                .any(|index| self.workers[index].group.index == group);
            if !has_worker && self.batch.crashes[group].respawn_at.is_none() {
                self.start_worker(group);
            }
        }
    }

    /// Starts the worker of a group and sends it the configuration.
    fn start_worker(&mut self, group: usize) {
        self.batch.crashes[group].respawn_at = None;
        if let Err(error) = self.fork_worker(group) {
            let text = format_args!(
                "fork() failed while spawning \"worker process\"{}",
                ErrnoText(&error)
            );
            self.log().log_plain(LogLevel::Alert, text);
            self.batch.crashes[group].note(Duration::ZERO, rt::clock::read_clock());
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
    fn fork_worker(&mut self, group: usize) -> std::io::Result<()> {
        // Both ends exist before the fork: afterwards each side only closes the one that is not its own.
        let (ours, theirs) = Channel::pair()?;
        let rules = crate::sandbox::rules(&self.loaded);
        if let Some(secret) = &mut self.tickets {
            secret.forget_past();
        }
        let group = WorkerGroup {
            index: group,
            count: self.batch.groups(),
        };
        match process::fork()? {
            ForkSide::Parent(process) => {
                self.workers.push(WorkerChild {
                    process,
                    group,
                    batch: self.batch.number,
                    channel: ours,
                    started: rt::clock::read_clock(),
                    is_exiting: false,
                    applied: 0,
                    has_beaten: false,
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
                self.become_worker(group, theirs, rules.as_ref())
            }
        }
    }

    /// In the child: drops everything that belongs to the master, so that a socket the master
    /// closes later is not kept open here.
    fn become_worker(
        &mut self,
        group: WorkerGroup,
        channel: Channel,
        rules: Option<&SandboxRules>,
    ) -> ! {
        self.loaded.abandon_kept();
        self.previous.clear();
        self.workers.clear();
        let links = self.batch.links.take();
        let member = links.map_or_else(GroupMember::alone, |links| links.join(group));
        self.batch = WorkerBatch::new(0, 0).0;
        if let Some(secret) = self.tickets.take() {
            secret.use_here();
        }
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
                let start = WorkerStart {
                    startup,
                    member,
                    log,
                    channel,
                    signals,
                    refuge,
                };
                worker_process::run(start, &core, rules)
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
        let size = body.len();
        drop(body);
        if size >= LARGE_CONFIGURATION {
            // The copy that was sent, and another one that it was made of, would stay free in the heap.
            process::give_memory_back();
        }
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

    /// Starts workers in place of those in charge, which quit as soon as all of the new ones serve.
    pub(super) fn replace_workers(&mut self) {
        self.notice(format_args!("start worker processes"));
        let old = self.in_charge();
        self.start_workers();
        let new = self.in_charge();
        match Channel::pair() {
            // Only if there are new workers: `fork` may have failed, and then the old ones go on serving.
            Ok((one, two)) if !new.is_empty() => {
                for index in old {
                    self.send(index, MessageKind::Peer, b"", &[one.as_fd()]);
                }
                for index in new {
                    self.send(index, MessageKind::Peer, b"", &[two.as_fd()]);
                }
            }
            // Without a pair the idle connections are closed, as with nginx.
            Ok(_) | Err(_) => {}
        }
    }

    /// A worker of a batch that was to replace another one has ended too early: the other one stays.
    fn keep_replaced(&mut self, replaced: WorkerBatch) {
        let failed = std::mem::replace(&mut self.batch, replaced).number;
        self.log().log_plain(
            LogLevel::Alert,
            format_args!("the new worker processes could not be started; the previous ones stay"),
        );
        self.quit_those(|worker| worker.batch == failed, IdleConnections::HandOver);
        self.start_missing_groups();
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
        self.start_workers();
    }

    /// Tells all workers to quit; they hand their connections to a new binary that serves.
    pub(super) fn quit_workers(&mut self) {
        if self.end != MasterEnd::No {
            self.tell_stopping();
        }
        self.batch.forget_respawns();
        let mut how = IdleConnections::Close;
        if let Some(other) = &self.other {
            // Before the workers are told: from now on the other master must not hand connections to them.
            other.send(UpgradeMessage::Leaving);
            how = match (other.serves, other.speaks) {
                (true, true) => IdleConnections::HandOver,
                // Another program takes no connections.
                (true, false) => IdleConnections::Linger,
                (false, _) => how,
            };
        }
        self.quit_those(|_| true, how);
    }

    /// Tells some workers to quit.
    pub(super) fn quit_those(
        &mut self,
        which: impl Fn(&WorkerChild) -> bool,
        idle: IdleConnections,
    ) {
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if which(worker) && !std::mem::replace(&mut worker.is_exiting, true) {
                self.send(index, MessageKind::Quit, idle.body(), &[]);
            }
        }
    }

    /// `TERM`: exits at once, without waiting for requests.
    pub(super) fn terminate(&mut self) {
        if !matches!(self.end, MasterEnd::Terminate(_)) {
            self.end = MasterEnd::Terminate(rt::clock::read_clock() + KILL_AFTER);
        }
        self.tell_stopping();
        self.batch.forget_respawns();
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
            // nginx's line, with the group if there are several: which connections were lost.
            let group = index.map(|index| self.workers[index].group);
            let group = match group.filter(|group| group.count > 1) {
                Some(WorkerGroup { index, count }) => format!(", worker group {index} of {count}"),
                None => String::new(),
            };
            match exit {
                ChildExit::Code(code) => self.notice(format_args!(
                    "{name} {process} exited with code {code}{group}"
                )),
                ChildExit::Signal(signal) => {
                    let text = format_args!("{name} {process} exited on signal {signal}{group}");
                    self.log().log_plain(LogLevel::Alert, text);
                }
                ChildExit::CoreDumped(signal) => {
                    let text = format_args!(
                        "{name} {process} exited on signal {signal} (core dumped){group}"
                    );
                    self.log().log_plain(LogLevel::Alert, text);
                }
            }
            if is_new_binary {
                self.new_binary_ended();
            }
            let Some(index) = index else { continue };
            let worker = self.workers.remove(index);
            if worker.batch == self.batch.number
                && let Some(links) = &self.batch.links
            {
                links.forget_process(worker.group.index);
            }
            // It was told to: no crash, and nothing to replace.
            if !worker.is_exiting && self.end == MasterEnd::No {
                self.on_unexpected_end(&worker, exit, name);
            }
        }
    }

    /// A worker has ended that was not told to.
    fn on_unexpected_end(&mut self, worker: &WorkerChild, exit: ChildExit, name: &str) {
        // Starting the same worker again would only repeat the error.
        if exit == ChildExit::Code(FATAL) {
            let process = worker.process;
            let text = format_args!(
                "{name} {process} exited with fatal code {FATAL} and cannot be respawned"
            );
            self.log().log_plain(LogLevel::Alert, text);
            let text = "the worker process could not be started; see the error log\n";
            if worker.applied == 0 {
                self.return_to_previous(self.number);
            }
            self.report_outcome(AwaitedAction::Configuration(self.number), false, text);
            if !self.has_served && self.workers.is_empty() {
                // The sockets would accept connections that are never answered, and the service
                // manager would believe that the server runs.
                self.first_worker_failed = true;
                self.end = MasterEnd::Quit;
            }
        }
        if worker.batch != self.batch.number {
            // Another batch is about to replace its own.
            return;
        }
        if let Some(replaced) = self.batch.replaced.take() {
            return self.keep_replaced(*replaced);
        }
        if exit != ChildExit::Code(FATAL) {
            let crashes = &mut self.batch.crashes[worker.group.index];
            crashes.note(rt::clock::elapsed(worker.started), rt::clock::read_clock());
        }
    }

    /// Starts the next workers when their time has come.
    pub(super) fn respawn(&mut self) {
        for group in 0..self.batch.groups() {
            let due = |at| rt::clock::read_clock() >= at;
            if self.batch.crashes[group].respawn_at.is_some_and(due) {
                self.start_worker(group);
            }
        }
    }
}
