//! A server in one process: `master_process off`, and `weir serve`.
//!
//! The process reads the configuration, holds the sockets and runs the loops. It does not change
//! its user and nothing restarts it; everything else is as with a master. The worker's part is the
//! same code: a configuration is applied as if it had come in a message.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use base::ErrnoText;
use host::error_log::LogLevel;
use host::process;
use host::signal::{DeliveredSignal, Signal, SignalReader};
use host::worker_group::GroupMember;

use crate::load_configuration::{LoadedConfiguration, StartupSettings};
use crate::message::GenerationMessage;
use crate::message::IdleConnections;
use crate::prepare::{self, OpenedResources, PidFile};
use crate::sockets::ListeningSockets;
use crate::startup_log::StartupLog;
use crate::worker::WorkerLoops;
use crate::worker_process::log_signal;

/// The process's state.
struct SingleProcess {
    /// What the command line has decided.
    startup: Arc<StartupSettings>,
    worker: WorkerLoops,
    /// The sockets and logs of the configuration in use.
    opened: OpenedResources,
    /// `None` for `weir serve`, which nothing needs to find.
    pid_file: Option<PidFile>,
    /// Where commands ask for the ring of requests.
    request_feed: Option<OwnedFd>,
    /// The number of the configuration in use.
    number: u64,
    /// Whether Ctrl-C was pressed: the first one ends `weir serve` gracefully, the second one at
    /// once.
    interrupted: bool,
}

/// Runs until a signal ends it. Returns the exit code.
pub(crate) fn run(
    startup: Arc<StartupSettings>,
    loaded: &LoadedConfiguration,
    opened: OpenedResources,
    pid_file: Option<PidFile>,
    signals: &SignalReader,
) -> i32 {
    let log = &loaded.log;
    // Before the loops start: the environment can only be changed while there is one thread.
    if let Err(error) = process::set_environment(&loaded.core.worker_environment()) {
        log.log_plain(
            LogLevel::Alert,
            format_args!("setting the environment failed{}", ErrnoText(&error)),
        );
    }
    // As in a worker: one process holds the connections of all loops.
    if loaded.core.descriptors.is_none()
        && let Err(error) = process::raise_descriptor_limit()
    {
        log.log_plain(
            LogLevel::Alert,
            format_args!("setrlimit(RLIMIT_NOFILE) failed{}", ErrnoText(&error)),
        );
    }
    let worker = match WorkerLoops::new(startup.clone(), log.clone(), GroupMember::alone()) {
        Ok(worker) => worker,
        Err(error) => {
            log.log_plain(
                LogLevel::Emerg,
                format_args!("pipe() failed{}", ErrnoText(&error)),
            );
            return 1;
        }
    };
    let mut single = SingleProcess {
        startup,
        worker,
        opened,
        pid_file,
        request_feed: prepare::offer_requests(log),
        number: 0,
        interrupted: false,
    };
    // The reason is in the log.
    if single.apply(loaded).is_err() {
        return 1;
    }
    while !single.poll_once(signals) {}
    single.end();
    0
}

impl SingleProcess {
    /// Applies a configuration just as a worker does that receives it in a message.
    fn apply(&mut self, loaded: &LoadedConfiguration) -> Result<(), String> {
        self.number += 1;
        let snapshot = loaded.snapshot.clone();
        let generation = GenerationMessage::new(
            self.number,
            snapshot,
            &self.opened.sockets,
            self.opened.logs.clone(),
        );
        self.worker.apply(&generation)
    }

    /// Waits for an event and handles it. Returns true at the end.
    fn poll_once(&mut self, signals: &SignalReader) -> bool {
        let mut descriptors = vec![signals.as_fd(), self.worker.ended()];
        descriptors.extend(self.request_feed.as_ref().map(|feed| feed.as_fd()));
        let ready = process::wait_readable(&descriptors, self.worker.next_check());
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                self.worker.log().log_plain(
                    LogLevel::Alert,
                    format_args!("poll() failed{}", ErrnoText(&error)),
                );
                return true;
            }
        };
        if let Some(feed) = &self.request_feed
            && ready.get(2) == Some(&true)
        {
            host::request_ring::answer_readers(feed);
        }
        while let Ok(Some(received)) = signals.read_signal() {
            if self.take_signal(received) {
                return true;
            }
        }
        self.worker.check(ready[1]) || self.worker.has_crashed()
    }

    /// Handles a signal. Returns true if the process must exit at once.
    fn take_signal(&mut self, received: DeliveredSignal) -> bool {
        // Ctrl-C in a terminal: the first one lets downloads finish, and an impatient second one does not have to
        // be a `kill`.
        let graceful =
            received.signal == Signal::Int && self.startup.text.is_some() && !self.interrupted;
        let action = match received.signal {
            Signal::Hup => ", reconfiguring",
            Signal::Usr1 => ", reopening logs",
            Signal::Quit => ", shutting down",
            Signal::Int if graceful => ", shutting down",
            Signal::Term | Signal::Int => ", exiting",
            // An upgrade needs a master, which this process does not have.
            Signal::Usr2 | Signal::Winch | Signal::Child | Signal::Kill => ", ignoring",
        };
        log_signal(self.worker.log(), received, action);
        match received.signal {
            Signal::Hup => self.reload(),
            Signal::Usr1 => self.reopen(),
            Signal::Quit => self.stop(),
            Signal::Int if graceful => {
                self.interrupted = true;
                self.stop();
            }
            Signal::Term | Signal::Int => return true,
            Signal::Usr2 | Signal::Winch | Signal::Child | Signal::Kill => {}
        }
        false
    }

    /// Begins a graceful shutdown. This process's own descriptors are closed here; once the loops
    /// have closed theirs, new connections are refused.
    fn stop(&mut self) {
        // First, while the list of sockets is still here.
        self.opened
            .sockets
            .remove_files_missing_in(&ListeningSockets::default(), self.worker.log());
        self.opened.sockets = ListeningSockets::default();
        self.worker.stop(IdleConnections::Close);
    }

    /// Reloads the configuration. The old sockets close only when the loops have the new ones.
    fn reload(&mut self) {
        let log = self.worker.log().clone();
        log.log_plain(LogLevel::Notice, format_args!("reconfiguring"));
        let loaded = match crate::load_configuration::load_from_disk(&self.startup, None) {
            Ok(loaded) => loaded,
            Err(failure) => return failure.log(&log),
        };
        let opened = match prepare::open(&loaded, &self.opened.sockets, StartupLog::log_only(&log))
        {
            Ok(opened) => opened,
            Err(error) => return log.log_plain(LogLevel::Emerg, format_args!("{error}")),
        };
        loaded.log_warnings();
        // Kept until the loops have the new configuration: if they reject it, it is still in use.
        let before = std::mem::replace(&mut self.opened, opened);
        if self.apply(&loaded).is_ok() {
            before
                .sockets
                .remove_files_missing_in(&self.opened.sockets, &log);
        } else {
            self.opened = before;
        }
    }

    /// `USR1`: opens the log files again.
    fn reopen(&mut self) {
        let paths: Vec<_> = self
            .opened
            .logs
            .iter()
            .map(|(path, _)| path.clone())
            .collect();
        match prepare::open_logs(&paths, StartupLog::log_only(self.worker.log())) {
            // All of them or none: a failure leaves the present descriptors in use.
            Ok(logs) => {
                self.worker.reopen(&logs);
                self.opened.logs = logs;
            }
            Err(error) => self
                .worker
                .log()
                .log_plain(LogLevel::Emerg, format_args!("{error}")),
        }
    }

    /// Removes the files that show that the server runs, and saves what the next start can use.
    fn end(&mut self) {
        let log = &self.worker.log().clone();
        if let Some(pid_file) = &self.pid_file {
            pid_file.remove(log);
        }
        self.worker.close();
        log.log_plain(LogLevel::Notice, format_args!("exit"));
        self.opened
            .sockets
            .remove_files_missing_in(&ListeningSockets::default(), log);
        self.worker.flush();
    }
}
