//! The master: keeps the sockets and the worker alive, reads configurations, takes signals.
//!
//! It has one thread, so that it can fork at any time. It never serves a request and never waits for the
//! worker: what it has to say is a message, and what happens to the worker is a signal.
//!
//! ```text
//! HUP          read the configuration; the worker gets it as a message and goes on
//! USR1         open the logs again, pass the descriptors
//! QUIT         the worker ends gracefully, then the master
//! TERM, INT    the worker ends now; after a second it is killed
//! USR2         the program is run again beside this one: see upgrade
//! WINCH        the worker ends gracefully and is not started again (daemons only)
//! CHLD         a worker has ended: start another, unless it was told to end
//! ```

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rt::channel::Channel;
use rt::error_log::{Errno, Level, Logger};
use rt::process::{self, Exit, Fork};
use rt::sandbox::{Listener, Rules};
use rt::signal::{Received, Signal, Signals};

use crate::children::{Child, Crashes, RESPAWN_PAUSE, Sandbox};
use crate::load::{Loaded, Startup};
use crate::message::{Generation, HAND_OVER, Kind, encode_logs};
use crate::orphan::{self, Orphan, Refuge};
use crate::prepare::{self, Opened, PidFile};
use crate::sockets::Sockets;
use crate::upgrade::{self, Other, Role, Word};
use crate::voice::Voice;
use crate::watchers::{Outcome, Watchers};
use crate::worker_process::{self, log_signal};

/// How often it is seen whether the folders of the configuration are there and the worker's.
const MEND: Duration = Duration::from_secs(5);

/// From `TERM` to `KILL`.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// The exit code of a worker that another one would follow into the same trouble.
const FATAL: i32 = 2;
/// How long the worker goes on after it was told to end, when a new binary is about to serve: its
/// idle connections shall have somewhere to go.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(5);

/// Denied calls that are answered before the master looks after its other duties again.
const DENIED_AT_ONCE: usize = 64;

/// The least time between two workers because of changed paths.
const SANDBOX_PAUSE: Duration = Duration::from_secs(1);

/// The master's state.
pub(crate) struct Master {
    startup: Arc<Startup>,
    loaded: Loaded,
    opened: Opened,
    pid_file: PidFile,
    /// Counts configurations.
    number: u64,
    /// Workers that live, the one in charge last.
    workers: Vec<Child>,
    signals: Signals,
    end: End,
    crashes: Crashes,
    /// The other master, during an upgrade.
    other: Option<Other>,
    /// Workers of masters that were killed.
    orphans: Vec<Orphan>,
    /// Where this one's workers are found when it is killed.
    refuge: Option<Refuge>,
    /// The workers end then, or as soon as the new binary serves.
    leave_at: Option<Instant>,
    watchers: Watchers,
    /// What the watchers wait for.
    awaited: Awaited,
    /// When folders are looked after next.
    mend_at: Instant,
    /// A worker of this master has served.
    served: bool,
    /// The first worker could not start at all, so that there is nothing to be a master of.
    stillborn: bool,
    /// When a worker was last replaced because of changed paths.
    renewed_at: Option<Instant>,
}

/// The action under way that commands want to know the outcome of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Nothing,
    /// A worker runs the configuration of this number, or refuses it.
    Configuration(u64),
    /// The new binary serves.
    Upgrade,
}

/// Is the master itself about to end?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    /// When the workers have ended.
    Quit,
    /// The same, and they are killed at that moment.
    Terminate(Instant),
}

impl Master {
    /// A master that has everything open and no worker yet.
    pub(crate) fn new(
        startup: Arc<Startup>,
        mut loaded: Loaded,
        opened: Opened,
        (pid_file, watchers): (PidFile, Watchers),
        signals: Signals,
        (other, orphans): (Option<Other>, Vec<Orphan>),
    ) -> Master {
        loaded.forget_engines();
        Master {
            refuge: Refuge::new(&startup.paths),
            orphans,
            startup,
            loaded,
            opened,
            pid_file,
            number: 1,
            workers: Vec::new(),
            signals,
            end: End::No,
            crashes: Crashes::default(),
            other,
            leave_at: None,
            watchers,
            awaited: Awaited::Nothing,
            mend_at: Instant::now() + MEND,
            served: false,
            stillborn: false,
            renewed_at: None,
        }
    }

    fn log(&self) -> &Logger {
        &self.loaded.log
    }

    fn notice(&self, message: std::fmt::Arguments<'_>) {
        self.log().plain(Level::Notice, message);
    }

    /// Runs until a signal ends it, or nothing would ever serve. The answer is the exit code.
    pub(crate) fn run(mut self) -> i32 {
        self.start_worker();
        while !(self.end != End::No && self.workers.is_empty()) {
            self.wait();
            self.take_signals();
            self.reap();
            self.respawn();
            self.leave_late();
            self.kill_late();
            self.mend_directories();
        }
        self.pid_file.remove(self.log());
        self.notice(format_args!("exit"));
        self.give_up_sockets();
        i32::from(self.stillborn)
    }

    /// Closes the sockets. The files of unix sockets stay while another master listens there.
    fn give_up_sockets(&mut self) {
        let sockets = std::mem::take(&mut self.opened.sockets);
        if self.other.is_none() {
            sockets.remove_files_missing_in(&Sockets::default(), self.log());
        }
    }

    /// Looks after the folders of the configuration, seldom.
    fn mend_directories(&mut self) {
        let now = Instant::now();
        if now >= self.mend_at && self.end == End::No {
            prepare::mend_directories(&self.loaded);
        }
        if now >= self.mend_at {
            self.mend_at = now + MEND;
        }
    }

    /// Waits for a signal, somebody's word, or the time of something planned.
    fn wait(&mut self) {
        let planned = match self.end {
            End::Terminate(at) => Some(at),
            End::No | End::Quit => self.crashes.respawn_at,
        };
        let mending = self.loaded.core.user.as_ref().and(Some(self.mend_at));
        let planned = planned
            .into_iter()
            .chain(self.leave_at)
            .chain(mending)
            .min();
        let timeout = planned.map(|at| at.saturating_duration_since(Instant::now()));
        let link = self.other.as_ref().and_then(Other::link);
        let watchers = self.watchers.socket();
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        descriptors.extend(self.workers.iter().map(|worker| worker.channel.as_fd()));
        descriptors.extend(link);
        descriptors.extend(watchers);
        let (has_link, has_watchers) = (link.is_some(), watchers.is_some());
        let first_listener = descriptors.len();
        let listeners: Vec<usize> = (0..self.workers.len())
            .filter(|index| self.workers[*index].listener().is_some())
            .collect();
        descriptors.extend(self.workers.iter().filter_map(Child::listener));
        match process::wait_readable(&descriptors, timeout) {
            Ok(ready) => {
                let workers = self.workers.len();
                let talking: Vec<usize> = (0..workers).filter(|index| ready[index + 1]).collect();
                if has_link && ready[workers + 1] {
                    self.hear_other();
                }
                if has_watchers && ready[workers + 1 + usize::from(has_link)] {
                    self.watchers.admit();
                }
                for (position, index) in listeners.into_iter().enumerate() {
                    if ready[first_listener + position] {
                        self.hear_denied(index);
                    }
                }
                for index in talking {
                    self.hear(index);
                }
            }
            Err(error) => {
                self.log()
                    .plain(Level::Alert, format_args!("poll() failed{}", Errno(&error)));
                // Signals still come through the loop; do not spin on a broken call.
                std::thread::sleep(RESPAWN_PAUSE);
            }
        }
    }

    /// Takes a worker's answer. One that closed its end is about to be reaped; until then its channel
    /// would be readable all the time.
    fn hear(&mut self, index: usize) {
        let message = match self.workers[index].channel.receive() {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return std::thread::sleep(Duration::from_millis(1)),
        };
        let (number, why) = match message.body.split_first_chunk() {
            Some((number, why)) => (u64::from_le_bytes(*number), why),
            None => (0, &message.body[..]),
        };
        match Kind::of(message.kind) {
            Some(Kind::Applied) => self.applied(index, number),
            Some(Kind::Refused) => {
                let process = self.workers[index].process;
                let text = format_args!(
                    "worker process {process} rejected the configuration and keeps the previous one"
                );
                self.log().plain(Level::Error, text);
                let why = String::from_utf8_lossy(why).into_owned();
                self.outcome(Awaited::Configuration(number), false, &why);
            }
            Some(Kind::Sandboxed) => {
                if let Some(sandbox) = &mut self.workers[index].sandbox {
                    sandbox.listener = message.descriptors.into_iter().next().map(Listener::of);
                }
            }
            Some(Kind::FileDenied) => self.renew_sandbox(index),
            Some(_) | None => {}
        }
    }

    /// Denies calls of a worker, with a line for each kind.
    fn hear_denied(&mut self, index: usize) {
        let log = self.log().clone();
        let worker = &mut self.workers[index];
        let Some(sandbox) = &mut worker.sandbox else {
            return;
        };
        for _ in 0..DENIED_AT_ONCE {
            let attempt = match sandbox.listener.as_ref().map(Listener::deny) {
                Some(Ok(Some(attempt))) => attempt,
                Some(Ok(None)) | None => return,
                Some(Err(_)) => {
                    sandbox.listener = None;
                    return;
                }
            };
            if sandbox.told.insert(attempt.number) {
                let name = rt::sandbox::call_name(attempt.number).unwrap_or("without a name");
                let (number, process) = (attempt.number, worker.process);
                let [first, third] = attempt.arguments;
                let text = format_args!(
                    "system call {name} ({number}) is denied by worker_sandbox, worker process {process}, arguments: \
                     {first:#x} _ {third:#x}"
                );
                log.plain(Level::Error, text);
            }
        }
    }

    /// A worker was denied a file. If others have taken the place of files that it may use, a new worker may use those.
    fn renew_sandbox(&mut self, index: usize) {
        let worker = &self.workers[index];
        let paused = self
            .renewed_at
            .is_some_and(|at| at.elapsed() < SANDBOX_PAUSE);
        let outdated = worker.sandbox.as_ref().is_some_and(Sandbox::is_outdated);
        if worker.exiting || paused || !outdated {
            return;
        }
        self.renewed_at = Some(Instant::now());
        self.notice(format_args!("the files of worker_sandbox have changed"));
        // A folder that is gone would have been made by the worker, had it no sandbox.
        if let Err(error) = prepare::make_directories(&self.loaded, Voice::quiet(self.log())) {
            self.log().plain(Level::Emerg, format_args!("{error}"));
        }
        self.replace_worker(index);
    }

    /// A worker runs a configuration. Those before it may end now, and give it their connections.
    fn applied(&mut self, index: usize, number: u64) {
        self.workers[index].serves = true;
        self.served = true;
        if let Some(other) = &self.other
            && !self.workers[index].exiting
        {
            other.tell(Word::Serving);
        }
        if self.workers[..index].iter().any(|worker| !worker.exiting) {
            self.quit_first(index, HAND_OVER);
        }
        self.dismiss_orphans(index);
        self.outcome(Awaited::Configuration(number), true, "");
    }

    /// A worker of this master serves: those that have none may end, and give it their connections.
    fn dismiss_orphans(&mut self, index: usize) {
        for number in 0..self.orphans.len() {
            if self.orphans[number].is_dismissed {
                continue;
            }
            // Without a pair idle connections close.
            let pair = Channel::pair().ok();
            if let Some((ours, _)) = &pair {
                self.send(index, Kind::Peer, b"", &[ours.as_fd()]);
            }
            let theirs = pair.as_ref().map(|(_, theirs)| theirs.as_fd());
            let orphan = &mut self.orphans[number];
            let master = orphan.master;
            if let Err(error) = orphan.dismiss(theirs) {
                let error = Errno(&error);
                let text = format_args!(
                    "sendmsg() to the worker process of master process {master} failed{error}"
                );
                self.log().plain(Level::Alert, text);
            }
        }
    }

    /// Another master, with the same sockets, is gone: its workers must not go on for ever beside this one's.
    fn look_after_orphans(&mut self) {
        let found = orphan::find(&self.startup.paths);
        // Their sockets are open here as well.
        self.orphans.extend(found);
        let serving = |worker: &Child| worker.serves && !worker.exiting;
        if let Some(index) = self.workers.iter().rposition(serving) {
            self.dismiss_orphans(index);
        }
    }

    /// Tells who waits for it what came of an action.
    fn outcome(&mut self, action: Awaited, done: bool, lines: &str) {
        if self.awaited == action {
            self.awaited = Awaited::Nothing;
            let lines = lines.to_owned();
            self.watchers.tell(&Outcome { done, lines });
        }
    }

    /// An action failed before it began: nothing has changed.
    fn refused(&mut self, lines: &str) {
        let program = self.startup.identity.program();
        let mut lines = format!("{}\n", lines.trim_end());
        // Messages about a configuration begin with the name; the lines after the first belong to it.
        if !lines.starts_with(program) {
            lines.insert_str(0, &format!("{program}: [emerg] "));
        }
        self.watchers.tell(&Outcome { done: false, lines });
    }

    fn hear_other(&mut self) {
        let Some(other) = &mut self.other else { return };
        let lives = other.hear();
        let (role, serves) = (other.role, other.serves);
        match role {
            // Its end as a process is noticed by itself.
            Role::New(process) if serves => {
                self.notice(format_args!("new binary process {process} is ready"));
                let text = format!("new binary process {process} is ready\n");
                self.outcome(Awaited::Upgrade, true, &text);
                if self.leave_at.take().is_some() {
                    self.quit_workers();
                }
            }
            Role::Old if !lives => {
                self.notice(format_args!("the old binary's master process has ended"));
                self.other = None;
                self.look_after_orphans();
            }
            Role::New(_) | Role::Old => {}
        }
    }

    /// The time is over in which a new binary should have begun to serve.
    fn leave_late(&mut self) {
        if self.leave_at.is_some_and(|at| Instant::now() >= at) {
            self.leave_at = None;
            self.quit_workers();
        }
    }

    fn take_signals(&mut self) {
        while let Ok(Some(received)) = self.signals.next() {
            self.take_signal(received);
        }
    }

    fn take_signal(&mut self, received: Received) {
        let daemon = self.startup.daemonized();
        let action = match received.signal {
            Signal::Hup => ", reconfiguring",
            Signal::Usr1 => ", reopening logs",
            Signal::Usr2 if self.other.is_some() => ", ignoring",
            Signal::Usr2 => ", changing binary",
            Signal::Winch if daemon => ", stop accepting connections",
            Signal::Quit => ", shutting down",
            Signal::Term | Signal::Int => ", exiting",
            Signal::Winch | Signal::Child | Signal::Kill => "",
        };
        log_signal(self.log(), received, action);
        match received.signal {
            Signal::Hup => self.reload(),
            Signal::Usr1 => self.reopen(),
            Signal::Usr2 => self.change_binary(),
            Signal::Winch if daemon => self.leave(),
            Signal::Quit => self.quit(),
            Signal::Term | Signal::Int => self.terminate(),
            Signal::Winch | Signal::Child | Signal::Kill => {}
        }
    }

    /// Says what a sandbox lets through: the paths in detail.
    fn tell_rules(&self, rules: &Rules) {
        if rules.read.iter().any(|path| path.as_os_str() == "/") {
            let text = "worker_sandbox: all files are readable, because a path in the configuration starts with a \
                        variable or is \"/\"";
            self.log().plain(Level::Warn, format_args!("{text}"));
        }
        for (what, paths) in [
            ("read", &rules.read),
            ("change", &rules.write),
            ("execute", &rules.execute),
        ] {
            for path in paths {
                let text = format_args!("worker_sandbox: may {what} \"{}\"", path.display());
                self.log().plain(Level::Debug, text);
            }
        }
    }

    /// Starts a worker and sends it the configuration.
    fn start_worker(&mut self) {
        self.crashes.respawn_at = None;
        if let Err(error) = self.fork_worker() {
            let text = format_args!(
                "fork() failed while spawning \"worker process\"{}",
                Errno(&error)
            );
            self.log().plain(Level::Alert, text);
            self.crashes.note(Duration::ZERO, Instant::now());
            return;
        }
        if let Some(index) = self.workers.len().checked_sub(1) {
            self.notice(format_args!(
                "start worker process {}",
                self.workers[index].process
            ));
            self.send_configuration(index);
            if let Some(parcels) = self.other.as_ref().and_then(Other::parcels) {
                self.send(index, Kind::Peer, b"", &[parcels]);
            }
        }
    }

    fn fork_worker(&mut self) -> std::io::Result<()> {
        let (ours, theirs) = Channel::pair()?;
        let rules = crate::sandbox::rules(&self.loaded);
        match process::fork()? {
            Fork::Parent(process) => {
                self.workers.push(Child {
                    process,
                    channel: ours,
                    started: Instant::now(),
                    exiting: false,
                    serves: false,
                    sandbox: rules.map(Sandbox::new),
                });
                if let Some(sandbox) = self
                    .workers
                    .last()
                    .and_then(|worker| worker.sandbox.as_ref())
                {
                    self.tell_rules(&sandbox.rules);
                }
                Ok(())
            }
            Fork::Child => {
                drop(ours);
                self.become_worker(theirs, rules.as_ref())
            }
        }
    }

    /// In the child. Lets go of what belongs to the master, so that a socket that the master closes
    /// later is not kept open here.
    fn become_worker(&mut self, channel: Channel, rules: Option<&Rules>) -> ! {
        self.workers.clear();
        self.other = None;
        self.orphans.clear();
        let refuge = self.refuge.take();
        self.watchers = Watchers::none();
        self.opened = Opened {
            sockets: Default::default(),
            logs: Vec::new(),
        };
        let core = self.loaded.core.clone();
        // The master's descriptor reads the master's signals; a process needs its own.
        let log = self.log().clone();
        match Signals::block(&Signal::ALL) {
            Ok(signals) => {
                let startup = self.startup.clone();
                worker_process::run(startup, (&core, rules), log, channel, signals, refuge)
            }
            Err(error) => {
                log.plain(
                    Level::Emerg,
                    format_args!("signalfd() failed{}", Errno(&error)),
                );
                std::process::exit(FATAL)
            }
        }
    }

    fn send_configuration(&mut self, index: usize) {
        let generation = Generation::new(
            self.number,
            self.loaded.snapshot.clone(),
            &self.opened.sockets,
            self.opened.logs.clone(),
        );
        let (body, descriptors) = generation.encode();
        self.send(index, Kind::Configuration, &body, &descriptors);
    }

    fn send(&self, index: usize, kind: Kind, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let worker = &self.workers[index];
        if let Err(error) = worker.channel.send(kind as u8, body, descriptors) {
            let text = format_args!(
                "sendmsg() to worker process {} failed{}",
                worker.process,
                Errno(&error)
            );
            // One that has just ended reads nothing any more. How it ended is told when it is waited for.
            let level = match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Level::Info,
                _ => Level::Alert,
            };
            self.log().plain(level, text);
        }
    }

    /// Reads the configuration again. Any failure leaves everything as it was.
    fn reload(&mut self) {
        if self
            .other
            .as_ref()
            .is_some_and(|other| other.role != Role::Old)
        {
            return self.return_to_service();
        }
        self.notice(format_args!("reconfiguring"));
        let mut loaded = match crate::load::load_from_disk(&self.startup) {
            Ok(loaded) => loaded,
            Err(failure) => {
                failure.log(self.log());
                let text = failure.0.text(self.startup.identity.program());
                return self.refused(&text);
            }
        };
        if let Err(error) = crate::trial::run(&loaded) {
            self.log().plain(Level::Emerg, format_args!("{error}"));
            return self.refused(&error);
        }
        let opened = match prepare::open(&loaded, &self.opened.sockets, Voice::quiet(self.log())) {
            Ok(opened) => opened,
            Err(error) => {
                self.log().plain(Level::Emerg, format_args!("{error}"));
                return self.refused(&error);
            }
        };
        loaded.log_warnings();
        if let Err(error) = self.move_pid_file(&loaded) {
            self.log().plain(Level::Emerg, format_args!("{error}"));
            return self.refused(&error);
        }
        let same_process =
            loaded.core.same_process(&self.loaded.core) && self.is_sandbox_of(&loaded);
        if self.other.is_none() {
            self.opened
                .sockets
                .remove_files_missing_in(&opened.sockets, &loaded.log);
        }
        loaded.forget_engines();
        self.loaded = loaded;
        self.opened = opened;
        prepare::redirect_stderr(self.log(), &self.opened.logs);
        self.number += 1;
        self.awaited = Awaited::Configuration(self.number);
        match self.workers.iter().rposition(|worker| !worker.exiting) {
            Some(index) if same_process => self.send_configuration(index),
            // What a running process can not change (its user, its limits) needs a new one; the sockets
            // stay open all the time.
            Some(index) => self.replace_worker(index),
            None => self.start_worker(),
        }
    }

    /// Can the worker run a configuration in the sandbox that it has? Locks cannot be opened again.
    fn is_sandbox_of(&self, loaded: &Loaded) -> bool {
        let Some(worker) = self.workers.iter().rfind(|worker| !worker.exiting) else {
            return true;
        };
        match (&worker.sandbox, crate::sandbox::rules(loaded)) {
            (None, None) => true,
            (Some(sandbox), Some(rules)) => {
                rules.are_within(&sandbox.rules) && !sandbox.is_outdated()
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Starts a worker in the place of one, which ends as soon as the new one serves.
    fn replace_worker(&mut self, old: usize) {
        self.notice(format_args!("start worker processes"));
        let before = self.workers.len();
        self.start_worker();
        match Channel::pair() {
            Ok((one, two)) if self.workers.len() > before => {
                self.send(old, Kind::Peer, b"", &[one.as_fd()]);
                self.send(before, Kind::Peer, b"", &[two.as_fd()]);
            }
            // Without a pair idle connections close, as they do with nginx.
            Ok(_) | Err(_) => {}
        }
    }

    /// HUP while a new binary runs: the way back to this one.
    fn return_to_service(&mut self) {
        self.leave_at = None;
        if self.workers.iter().any(|worker| !worker.exiting) {
            return self.notice(format_args!(
                "the worker process of this binary is still serving"
            ));
        }
        self.notice(format_args!("start worker processes"));
        self.start_worker();
    }

    /// Starts the program again, beside this one.
    fn change_binary(&mut self) {
        if self.other.is_some() {
            let text = "an upgrade is already in progress: stop the old or the new master first";
            return self.refused(text);
        }
        self.notice(format_args!("changing binary"));
        let pid = self.loaded.core.pid.clone();
        if let Err(error) = self.pid_file.rename(&upgrade::old_path(&pid)) {
            let text = format!("{error} before executing new binary process");
            self.log().plain(Level::Alert, format_args!("{text}"));
            return self.refused(&text);
        }
        let other = match upgrade::start(&self.startup.command, &self.opened.sockets) {
            Ok(other) => other,
            Err(error) => {
                let text = format!("could not start the new binary{}", Errno(&error));
                self.log().plain(Level::Alert, format_args!("{text}"));
                self.restore_pid_file();
                return self.refused(&text);
            }
        };
        if let Role::New(process) = other.role {
            self.notice(format_args!("start new binary process {process}"));
        }
        if let Some(parcels) = other.parcels() {
            let serving = self.workers.iter().rposition(|worker| !worker.exiting);
            if let Some(index) = serving {
                self.send(index, Kind::Peer, b"", &[parcels]);
            }
        }
        self.other = Some(other);
        self.awaited = Awaited::Upgrade;
    }

    fn restore_pid_file(&mut self) {
        let pid = self.loaded.core.pid.clone();
        if let Err(error) = self.pid_file.rename(&pid) {
            let text = format_args!("{error} after the new binary process has ended");
            self.log().plain(Level::Alert, text);
        }
    }

    /// The new binary has ended: this one is alone again.
    fn new_binary_ended(&mut self) {
        self.other = None;
        self.restore_pid_file();
        self.look_after_orphans();
        let text = "the new binary process has ended; see the error log\n";
        self.outcome(Awaited::Upgrade, false, text);
        if self.leave_at.take().is_some() && self.end != End::No {
            return self.quit_workers();
        }
        if self.end == End::No && self.workers.iter().all(|worker| worker.exiting) {
            self.notice(format_args!("start worker processes"));
            self.start_worker();
        }
    }

    fn move_pid_file(&mut self, loaded: &Loaded) -> Result<(), String> {
        if self.pid_file.path() != loaded.core.pid {
            let moved = PidFile::write(&loaded.core.pid)?;
            self.pid_file.remove(self.log());
            self.pid_file = moved;
        }
        Ok(())
    }

    fn reopen(&mut self) {
        self.notice(format_args!("reopening logs"));
        let paths: Vec<_> = self
            .opened
            .logs
            .iter()
            .map(|(path, _)| path.clone())
            .collect();
        let logs = match prepare::open_logs(&paths, Voice::quiet(self.log())) {
            Ok(logs) => logs,
            Err(error) => return self.log().plain(Level::Emerg, format_args!("{error}")),
        };
        if let Err(error) = prepare::attach(&self.loaded.files, &logs) {
            self.log().plain(Level::Alert, format_args!("{error}"));
        }
        self.opened.logs = logs;
        prepare::redirect_stderr(self.log(), &self.opened.logs);
        let (body, descriptors) = encode_logs(&self.opened.logs);
        for index in 0..self.workers.len() {
            self.send(index, Kind::Reopen, &body, &descriptors);
        }
        for orphan in &self.orphans {
            orphan.reopen(&body, &descriptors);
        }
    }

    fn quit(&mut self) {
        if self.end == End::No {
            self.end = End::Quit;
        }
        // What was taken over goes along, though nothing has come in its place yet.
        for orphan in self.orphans.iter_mut().filter(|one| !one.is_dismissed) {
            // One that has ended already is what is wanted.
            let _ = orphan.dismiss(None);
        }
        self.leave();
        if self.leave_at.is_none() {
            // From here on new connections are refused as soon as the worker lets go, too.
            self.give_up_sockets();
        }
    }

    /// Lets the workers end gracefully; if a new binary is about to serve, when it does.
    fn leave(&mut self) {
        let about_to = |other: &Other| matches!(other.role, Role::New(_)) && !other.serves;
        if self.other.as_ref().is_some_and(about_to) {
            self.leave_at = Some(Instant::now() + SUCCESSOR_PATIENCE);
            return;
        }
        self.quit_workers();
    }

    fn quit_workers(&mut self) {
        self.crashes.respawn_at = None;
        let mut how: &[u8] = b"";
        if let Some(other) = &self.other {
            other.tell(Word::Leaving);
            if other.serves {
                how = HAND_OVER;
            }
        }
        self.quit_first(self.workers.len(), how);
    }

    /// Tells the oldest `count` workers to end gracefully.
    fn quit_first(&mut self, count: usize, how: &[u8]) {
        for index in 0..count {
            if !std::mem::replace(&mut self.workers[index].exiting, true) {
                self.send(index, Kind::Quit, how, &[]);
            }
        }
    }

    fn terminate(&mut self) {
        if !matches!(self.end, End::Terminate(_)) {
            self.end = End::Terminate(Instant::now() + KILL_AFTER);
        }
        self.crashes.respawn_at = None;
        self.leave_at = None;
        if let Some(other) = &self.other {
            other.tell(Word::Leaving);
        }
        for index in 0..self.workers.len() {
            self.workers[index].exiting = true;
            self.send(index, Kind::Terminate, b"", &[]);
        }
        for orphan in &self.orphans {
            orphan.terminate();
        }
    }

    fn kill_late(&mut self) {
        let End::Terminate(at) = self.end else { return };
        if Instant::now() < at {
            return;
        }
        self.end = End::Terminate(Instant::now() + KILL_AFTER);
        for worker in &self.workers {
            // It may have ended a moment ago; the next turn reaps it.
            let _ = process::kill(worker.process, Signal::Kill);
        }
    }

    /// Takes note of workers that have ended.
    fn reap(&mut self) {
        while let Some((process, exit)) = process::reap() {
            let index = self
                .workers
                .iter()
                .position(|worker| worker.process == process);
            let is_new_binary = self
                .other
                .as_ref()
                .is_some_and(|other| other.role == Role::New(process));
            let name = match index {
                Some(_) => "worker process",
                None if is_new_binary => "new binary process",
                None => "unknown process",
            };
            match exit {
                Exit::Code(code) => {
                    self.notice(format_args!("{name} {process} exited with code {code}"))
                }
                Exit::Signal(signal) => {
                    let text = format_args!("{name} {process} exited on signal {signal}");
                    self.log().plain(Level::Alert, text);
                }
            }
            if is_new_binary {
                self.new_binary_ended();
            }
            let Some(index) = index else { continue };
            let worker = self.workers.remove(index);
            if worker.exiting || self.end != End::No {
                continue;
            }
            if exit == Exit::Code(FATAL) {
                let text = format_args!(
                    "{name} {process} exited with fatal code {FATAL} and cannot be respawned"
                );
                self.log().plain(Level::Alert, text);
                let text = "the worker process could not be started; see the error log\n";
                self.outcome(Awaited::Configuration(self.number), false, text);
                if !self.served && self.workers.is_empty() {
                    // Who started it takes it to serve, and its sockets would take connections that nobody answers.
                    self.stillborn = true;
                    self.end = End::Quit;
                }
                continue;
            }
            // The one that it was to replace still serves.
            if self.workers.iter().any(|worker| !worker.exiting) {
                continue;
            }
            self.crashes.note(worker.started.elapsed(), Instant::now());
        }
    }

    fn respawn(&mut self) {
        if self
            .crashes
            .respawn_at
            .is_some_and(|at| Instant::now() >= at)
        {
            self.start_worker();
        }
    }
}
