//! The master: keeps sockets and workers alive, reads configurations, handles signals.
//!
//! It has a single thread, so it can fork at any time: a child of a process with several threads
//! could find locks held by threads that it does not have. It never serves a request and never
//! waits for a worker: it sends messages, and answers arrive like signals.
//!
//! A reload is ordered so that everything that can fail comes first, and a failure leaves the
//! server as it was:
//!
//! ```text
//! load ─▶ trial ─▶ open directories, logs, new sockets ─▶ pid file
//!   ─▶ send the configuration to the worker, or start a new one that replaces it
//! ```
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

mod binary;
mod locked;
mod workers;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::ErrnoText;
use host::error_log::{LogLevel, Logger};
use host::process;
use host::signal::{DeliveredSignal, Signal, SignalReader};
use net::quic::QuicSecret;
use net::tls::TicketSecret;

use crate::children::{RESPAWN_PAUSE, WorkerBatch, WorkerChild};
use crate::load_configuration::{LoadedConfiguration, StartupSettings};
use crate::message::{IdleConnections, MessageKind, encode_logs};
use crate::orphan::{OrphanListener, OrphanWorker};
use crate::prepare::{self, OpenedResources, PidFile};
use crate::service_manager::ServiceManager;
use crate::sockets::ListeningSockets;
use crate::startup_log::StartupLog;
use crate::upgrade::{MasterRole, OtherMaster, UpgradeMessage};
use crate::watchers::{ActionOutcome, SignalWatchers};
use crate::worker_process::log_signal;

/// How often the directories of the configuration are checked.
const RESTORE_INTERVAL: Duration = Duration::from_secs(5);

/// The state of the master process.
pub(crate) struct MasterProcess {
    startup: Arc<StartupSettings>,
    /// The configuration in use, without the engines' part.
    loaded: LoadedConfiguration,
    /// Those before it, oldest first, until a worker runs it.
    previous: Vec<PreviousConfiguration>,
    /// The number of the last configuration that a worker refused; 0 if none has.
    refused: u64,
    /// Its sockets and logs. The sockets are open here as well as in the worker, so that they
    /// survive it.
    opened: OpenedResources,
    /// Named `.oldbin` during an upgrade.
    pid_file: PidFile,
    /// The number of the current configuration.
    number: u64,
    /// The living workers, oldest first.
    workers: Vec<WorkerChild>,
    /// Which of them are in charge, one for each group.
    batch: WorkerBatch,
    /// Signals as messages on a descriptor: nothing is ever interrupted.
    signals: SignalReader,
    /// Whether and how the master is exiting.
    end: MasterEnd,
    /// The other master, during an upgrade.
    other: Option<OtherMaster>,
    /// Workers of masters that were killed.
    orphans: Vec<OrphanWorker>,
    /// Where this master's workers can be found if it is killed.
    orphan_listener: Option<OrphanListener>,
    /// When the workers quit, unless the new binary serves earlier.
    quit_at: Option<Instant>,
    /// Commands that wait for an outcome.
    watchers: SignalWatchers,
    /// Where commands ask for the ring of requests.
    request_feed: Option<OwnedFd>,
    /// The action whose outcome the watchers wait for.
    awaited: AwaitedAction,
    /// When the directories are checked next.
    restore_at: Instant,
    /// Whether a worker of this master has ever served.
    has_served: bool,
    /// Whether the first worker could not start at all: then the master exits, too.
    first_worker_failed: bool,
    /// When a worker was last replaced because of changed paths.
    renewed_at: Option<Instant>,
    /// systemd, if it has started this server.
    manager: ServiceManager,
    /// What all workers derive the keys of TLS tickets from; `None` without random bytes.
    tickets: Option<TicketSecret>,
}

/// A configuration that has been replaced, but whose successor no worker runs yet.
struct PreviousConfiguration {
    number: u64,
    loaded: LoadedConfiguration,
    opened: OpenedResources,
}

/// The action in progress whose outcome commands wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedAction {
    Nothing,
    /// A worker runs the configuration with this number, or rejects it.
    Configuration(u64),
    /// The new binary serves.
    Upgrade,
}

/// Whether the master itself is exiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MasterEnd {
    No,
    /// It exits when the workers have.
    Quit,
    /// The same, but the workers are killed at this time.
    Terminate(Instant),
}

impl MasterProcess {
    /// A master with everything open, but without workers.
    pub(crate) fn new(
        startup: Arc<StartupSettings>,
        mut loaded: LoadedConfiguration,
        opened: OpenedResources,
        (pid_file, watchers): (PidFile, SignalWatchers),
        signals: SignalReader,
        (other, orphans): (Option<OtherMaster>, Vec<OrphanWorker>),
    ) -> MasterProcess {
        loaded.forget_engines();
        // Chosen before the first worker is forked: all have the same.
        let _ = QuicSecret::common();
        let request_feed = prepare::offer_requests(&loaded.log);
        let manager = ServiceManager::of_environment(startup.service.get());
        MasterProcess {
            orphan_listener: OrphanListener::new(&startup.paths),
            orphans,
            startup,
            loaded,
            previous: Vec::new(),
            refused: 0,
            opened,
            pid_file,
            number: 1,
            workers: Vec::new(),
            batch: WorkerBatch::new(0, 0).0,
            signals,
            end: MasterEnd::No,
            other,
            quit_at: None,
            watchers,
            request_feed,
            awaited: AwaitedAction::Nothing,
            restore_at: rt::clock::read_clock() + RESTORE_INTERVAL,
            has_served: false,
            first_worker_failed: false,
            renewed_at: None,
            manager,
            tickets: TicketSecret::random(),
        }
    }

    /// The error log of the current configuration.
    fn log(&self) -> &Logger {
        &self.loaded.log
    }

    fn notice(&self, message: std::fmt::Arguments<'_>) {
        self.log().log_plain(LogLevel::Notice, message);
    }

    /// Runs until a signal ends it, or until it is clear that nothing will ever serve. Returns the
    /// exit code.
    pub(crate) fn run(mut self) -> i32 {
        // The order below: signals say what is wanted, dead workers are collected before new ones are planned, and
        // deadlines come last.
        self.start_workers();
        while !(self.end != MasterEnd::No && self.workers.is_empty()) {
            self.wait();
            self.manager.flush();
            self.take_signals();
            self.reap();
            self.respawn();
            self.quit_if_due();
            self.kill_if_due();
            self.restore_directories();
        }
        self.pid_file.remove(self.log());
        self.notice(format_args!("exit"));
        self.give_up_sockets();
        self.manager.exit();
        i32::from(self.first_worker_failed)
    }

    /// Closes the sockets. The files of unix sockets stay if another master listens on them.
    fn give_up_sockets(&mut self) {
        let sockets = std::mem::take(&mut self.opened.sockets);
        if self.other.is_none() {
            sockets.remove_files_missing_in(&ListeningSockets::default(), self.log());
        }
    }

    /// Checks the directories of the configuration, now and then.
    fn restore_directories(&mut self) {
        let now = rt::clock::read_clock();
        if now >= self.restore_at && self.end == MasterEnd::No {
            prepare::restore_directories(&self.loaded);
        }
        if now >= self.restore_at {
            self.restore_at = now + RESTORE_INTERVAL;
        }
    }

    /// Waits for a signal, a message, or the time of a planned action.
    fn wait(&mut self) {
        let planned = match self.end {
            MasterEnd::Terminate(at) => Some(at),
            MasterEnd::No | MasterEnd::Quit => self.batch.respawn_at(),
        };
        // Without a `user` there is nothing to give away, so the master need not wake up for it.
        let mending = self.loaded.core.user.as_ref().and(Some(self.restore_at));
        let planned = planned.into_iter().chain(self.quit_at).chain(mending);
        let planned = planned.chain(self.look_at_other()).min();
        let timeout = planned.map(|at| at.saturating_duration_since(rt::clock::read_clock()));
        let timeout = timeout.into_iter().chain(self.manager.retry_after()).min();
        let link = self.other.as_ref().and_then(OtherMaster::link);
        let watchers = self.watchers.socket();
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        descriptors.extend(self.workers.iter().map(|worker| worker.channel.as_fd()));
        descriptors.extend(link);
        descriptors.extend(watchers);
        let (has_link, has_watchers) = (link.is_some(), watchers.is_some());
        let feed = self.request_feed.as_ref().map(|feed| feed.as_fd());
        let feed_at = feed.map(|_| descriptors.len());
        descriptors.extend(feed);
        // `ready` has the order of these descriptors: the signals, the workers, the other master,
        // the watchers, the ring of requests, the listeners.
        let first_listener = descriptors.len();
        let listeners: Vec<usize> = (0..self.workers.len())
            .filter(|index| self.workers[*index].listener().is_some())
            .collect();
        descriptors.extend(self.workers.iter().filter_map(WorkerChild::listener));
        match process::wait_readable(&descriptors, timeout) {
            Ok(ready) => {
                let workers = self.workers.len();
                let talking: Vec<usize> = (0..workers).filter(|index| ready[index + 1]).collect();
                if has_link && ready[workers + 1] {
                    self.receive_from_other();
                }
                if has_watchers && ready[workers + 1 + usize::from(has_link)] {
                    self.watchers.accept_waiting();
                }
                if let Some(feed) = self.request_feed.as_ref()
                    && feed_at.is_some_and(|at| ready[at])
                {
                    host::request_ring::answer_readers(feed);
                }
                for (position, index) in listeners.into_iter().enumerate() {
                    if ready[first_listener + position] {
                        self.report_denied_calls(index);
                    }
                }
                for index in talking {
                    self.receive_from_worker(index);
                }
            }
            Err(error) => {
                self.log().log_plain(
                    LogLevel::Alert,
                    format_args!("poll() failed{}", ErrnoText(&error)),
                );
                // Signals are still read by the main loop; the pause keeps a persistent error from
                // taking a whole processor.
                std::thread::sleep(RESPAWN_PAUSE);
            }
        }
    }

    /// A worker runs its configuration. When all groups do, workers that this batch replaces may quit, and hand their
    /// connections over to it.
    fn on_applied(&mut self, index: usize, number: u64) {
        self.workers[index].applied = number;
        self.has_served = true;
        if !self.is_in_charge(&self.workers[index]) {
            return;
        }
        if self.all_groups(|worker| worker.applied > 0) {
            if let Some(other) = &self.other {
                other.send(UpgradeMessage::Serving);
            }
            self.batch.replaced = None;
            let current = self.batch.number;
            self.quit_those(|worker| worker.batch != current, IdleConnections::HandOver);
            self.dismiss_orphans();
        }
        if self.all_groups(|worker| worker.applied >= number) {
            self.forget_previous(number);
            self.tell_ready("serving");
            self.report_outcome(AwaitedAction::Configuration(number), true, "");
        }
    }

    /// Tells systemd that the server serves, and in which state it is.
    fn tell_ready(&mut self, status: &str) {
        if self.has_served && self.owns_unit() && self.end == MasterEnd::No {
            self.manager.ready(&self.opened.sockets, status);
        }
    }

    /// Whether systemd listens to this master. During an upgrade the unit belongs to the old one, which moves it when it quits.
    fn owns_unit(&self) -> bool {
        self.other
            .as_ref()
            .is_none_or(|other| other.role != MasterRole::Old)
    }

    /// Tells systemd that this master exits, and who takes its place.
    fn tell_stopping(&mut self) {
        // A successor that has ended is no longer there. One that is no Weir never says that it serves.
        let successor = self.other.as_ref().and_then(|other| match other.role {
            MasterRole::New(process) => Some((process, other.serves)),
            MasterRole::Old => None,
        });
        match successor {
            Some((process, serves)) => self.manager.leave_to(process, serves),
            None => self.manager.stopping(),
        }
    }

    /// A worker runs configuration `number`: what was kept in case that it refuses it goes.
    fn forget_previous(&mut self, number: u64) {
        for previous in self
            .previous
            .extract_if(.., |previous| previous.number < number)
        {
            // The other master may still listen on sockets with these paths.
            if self.other.is_none() {
                let sockets = &previous.opened.sockets;
                sockets.remove_files_missing_in(&self.opened.sockets, &self.loaded.log);
            }
        }
    }

    /// The worker has refused configuration `number`: a worker that starts from now on would, too. So the latest one that
    /// was accepted is the current one again.
    fn return_to_previous(&mut self, number: u64) {
        if number != self.number {
            // A later configuration is on its way to the worker.
            return self.previous.retain(|previous| previous.number != number);
        }
        // Each group refuses it, and one return is enough.
        if std::mem::replace(&mut self.refused, number) == number {
            return;
        }
        let Some(previous) = self.previous.pop() else {
            return;
        };
        if let Err(error) = self.move_pid_file(&previous.loaded) {
            let text = format_args!("{error}");
            self.log().log_plain(LogLevel::Alert, text);
        }
        let refused = std::mem::replace(&mut self.opened, previous.opened);
        if self.other.is_none() {
            let sockets = &refused.sockets;
            sockets.remove_files_missing_in(&self.opened.sockets, &self.loaded.log);
        }
        self.loaded = previous.loaded;
        host::error_log::set_json(self.loaded.core.log_is_json);
        prepare::redirect_stderr(self.log(), &self.opened.logs);
    }

    /// Reports the outcome of an action to the watchers.
    fn report_outcome(&mut self, action: AwaitedAction, done: bool, lines: &str) {
        if self.awaited == action {
            self.awaited = AwaitedAction::Nothing;
            if !done {
                self.tell_ready("serving the previous configuration: the new one was rejected");
            }
            let lines = lines.to_owned();
            self.watchers.report(&ActionOutcome { done, lines });
        }
    }

    /// Reports an action that failed before it began.
    fn report_refusal(&mut self, lines: &str) {
        let program = self.startup.identity.program();
        let mut lines = format!("{}\n", lines.trim_end());
        // Messages about a configuration already begin with the name; the lines after the first
        // belong to it.
        if !lines.starts_with(program) {
            lines.insert_str(0, &format!("{program}: [emerg] "));
        }
        self.tell_ready("serving the previous configuration: the new one was rejected");
        self.watchers.report(&ActionOutcome { done: false, lines });
    }

    /// Handles the signals that have arrived.
    fn take_signals(&mut self) {
        while let Ok(Some(received)) = self.signals.read_signal() {
            self.take_signal(received);
        }
    }

    /// Logs a signal and obeys it. The words after it are nginx's where it has some.
    fn take_signal(&mut self, received: DeliveredSignal) {
        let daemon = self.startup.daemonized();
        let action = match received.signal {
            Signal::Hup => ", reconfiguring",
            Signal::Usr1 => ", reopening logs",
            // There can be only two masters: the pid files have two names.
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
            Signal::Winch if daemon => self.quit_when_replaced(),
            Signal::Quit => self.quit(),
            Signal::Term | Signal::Int => self.terminate(),
            Signal::Winch | Signal::Child | Signal::Kill => {}
        }
    }

    /// Reloads the configuration. A failure here leaves everything as it was. What only the worker can refuse comes later:
    /// then it keeps the previous configuration, and so does the master ([`MasterProcess::return_to_previous`]).
    fn reload(&mut self) {
        if self
            .other
            .as_ref()
            .is_some_and(|other| other.role != MasterRole::Old)
        {
            return self.return_to_service();
        }
        self.notice(format_args!("reconfiguring"));
        if self.owns_unit() {
            self.manager.reloading();
        }
        let mut loaded =
            match crate::load_configuration::load_from_disk(&self.startup, self.loaded.kept.take())
            {
                Ok(loaded) => loaded,
                Err(failure) => {
                    failure.log(self.log());
                    let text = failure.0.text(self.startup.identity.program());
                    return self.report_refusal(&text);
                }
            };
        // From here on everything is ordered so that what can fail comes before what cannot be
        // undone.
        if let Err(error) = crate::trial::run(&loaded) {
            self.log()
                .log_plain(LogLevel::Emerg, format_args!("{error}"));
            return self.report_refusal(&error);
        }
        let opened = match prepare::open(
            &loaded,
            &self.opened.sockets,
            StartupLog::log_only(self.log()),
        ) {
            Ok(opened) => opened,
            Err(error) => {
                self.log()
                    .log_plain(LogLevel::Emerg, format_args!("{error}"));
                return self.report_refusal(&error);
            }
        };
        loaded.log_warnings();
        if let Err(error) = self.move_pid_file(&loaded) {
            self.log()
                .log_plain(LogLevel::Emerg, format_args!("{error}"));
            return self.report_refusal(&error);
        }
        let same_process =
            loaded.core.same_process(&self.loaded.core) && self.is_sandbox_of(&loaded);
        loaded.forget_engines();
        self.previous.push(PreviousConfiguration {
            number: self.number,
            loaded: std::mem::replace(&mut self.loaded, loaded),
            opened: std::mem::replace(&mut self.opened, opened),
        });
        host::error_log::set_json(self.loaded.core.log_is_json);
        prepare::redirect_stderr(self.log(), &self.opened.logs);
        self.number += 1;
        self.awaited = AwaitedAction::Configuration(self.number);
        // Workers of an earlier batch are on their way out and keep what they have.
        match self.in_charge().is_empty() {
            false if same_process => {
                for index in self.in_charge() {
                    self.send_configuration(index);
                }
                self.start_missing_groups();
            }
            // What a process sets once, such as its user and limits, needs a new one. The sockets
            // stay open all the time.
            false => self.replace_workers(),
            true => self.start_workers(),
        }
    }

    /// `USR1`: opens the log files again, after they were renamed, and passes the new descriptors
    /// on.
    fn reopen(&mut self) {
        self.notice(format_args!("reopening logs"));
        let paths: Vec<_> = self
            .opened
            .logs
            .iter()
            .map(|(path, _)| path.clone())
            .collect();
        // All are opened before the first is attached: a failure leaves every log where it was.
        let logs = match prepare::open_logs(&paths, StartupLog::log_only(self.log())) {
            Ok(logs) => logs,
            Err(error) => {
                return self
                    .log()
                    .log_plain(LogLevel::Emerg, format_args!("{error}"));
            }
        };
        if let Err(error) = prepare::attach(&self.loaded.files, &logs) {
            self.log()
                .log_plain(LogLevel::Alert, format_args!("{error}"));
        }
        self.opened.logs = logs;
        prepare::redirect_stderr(self.log(), &self.opened.logs);
        // The worker may run as a user that cannot open the files, so it gets descriptors.
        let (body, descriptors) = encode_logs(&self.opened.logs);
        for index in 0..self.workers.len() {
            self.send(index, MessageKind::Reopen, &body, &descriptors);
        }
        for orphan in &self.orphans {
            orphan.reopen(&body, &descriptors);
        }
    }

    /// `QUIT`: exits when the workers have.
    fn quit(&mut self) {
        if self.end == MasterEnd::No {
            self.end = MasterEnd::Quit;
        }
        // Workers that were taken over quit, too, even if nothing has replaced them yet.
        for orphan in self.orphans.iter_mut().filter(|one| !one.is_dismissed) {
            // If it has exited already, all is well.
            let _ = orphan.dismiss(None);
        }
        self.quit_when_replaced();
        if self.quit_at.is_none() {
            // Closing the sockets lets the kernel refuse new connections as soon as the worker has
            // closed them, too.
            self.give_up_sockets();
        }
    }
}
