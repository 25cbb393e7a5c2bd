//! A server without a master: `master_process off`, and `weir serve`.
//!
//! One process reads the configuration, holds the sockets and runs the loops. There is no change of
//! user, and nobody restarts it; everything else is as with a master.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use rt::error_log::{Errno, Level};
use rt::process;
use rt::signal::{Received, Signal, Signals};

use crate::load::{Loaded, Startup};
use crate::message::Generation;
use crate::prepare::{self, Opened, PidFile};
use crate::sockets::Sockets;
use crate::voice::Voice;
use crate::worker::Worker;
use crate::worker_process::log_signal;

/// The process's state.
struct Single {
    startup: Arc<Startup>,
    worker: Worker,
    opened: Opened,
    pid_file: Option<PidFile>,
    number: u64,
    /// A first Ctrl-C in a terminal ends gracefully, a second one at once.
    interrupted: bool,
}

/// Runs until a signal ends it. The answer is the exit code.
pub(crate) fn run(
    startup: Arc<Startup>,
    loaded: &Loaded,
    opened: Opened,
    pid_file: Option<PidFile>,
    signals: &Signals,
) -> i32 {
    let log = &loaded.log;
    if let Err(error) = process::set_environment(&loaded.core.worker_environment()) {
        log.plain(
            Level::Alert,
            format_args!("setting the environment failed{}", Errno(&error)),
        );
    }
    if loaded.core.descriptors.is_none()
        && let Err(error) = process::raise_descriptor_limit()
    {
        log.plain(
            Level::Alert,
            format_args!("setrlimit(RLIMIT_NOFILE) failed{}", Errno(&error)),
        );
    }
    let worker = match Worker::new(startup.clone(), log.clone()) {
        Ok(worker) => worker,
        Err(error) => {
            log.plain(Level::Emerg, format_args!("pipe() failed{}", Errno(&error)));
            return 1;
        }
    };
    let mut single = Single {
        startup,
        worker,
        opened,
        pid_file,
        number: 0,
        interrupted: false,
    };
    if single.apply(loaded).is_err() {
        return 1;
    }
    while !single.turn(signals) {}
    single.end();
    0
}

impl Single {
    fn apply(&mut self, loaded: &Loaded) -> Result<(), String> {
        self.number += 1;
        let snapshot = loaded.snapshot.clone();
        let generation = Generation::new(
            self.number,
            snapshot,
            &self.opened.sockets,
            self.opened.logs.clone(),
        );
        self.worker.apply(&generation)
    }

    /// Waits for something and deals with it. True at the end.
    fn turn(&mut self, signals: &Signals) -> bool {
        let ready = process::wait_readable(
            &[signals.as_fd(), self.worker.ended()],
            self.worker.next_check(),
        );
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                self.worker
                    .log()
                    .plain(Level::Alert, format_args!("poll() failed{}", Errno(&error)));
                return true;
            }
        };
        while let Ok(Some(received)) = signals.next() {
            if self.take_signal(received) {
                return true;
            }
        }
        self.worker.check(ready[1]) || self.worker.has_crashed()
    }

    fn take_signal(&mut self, received: Received) -> bool {
        let graceful =
            received.signal == Signal::Int && self.startup.text.is_some() && !self.interrupted;
        let action = match received.signal {
            Signal::Hup => ", reconfiguring",
            Signal::Usr1 => ", reopening logs",
            Signal::Quit => ", shutting down",
            Signal::Int if graceful => ", shutting down",
            Signal::Term | Signal::Int => ", exiting",
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

    fn stop(&mut self) {
        self.opened
            .sockets
            .remove_files_missing_in(&Sockets::default(), self.worker.log());
        self.opened.sockets = Sockets::default();
        self.worker.stop(false);
    }

    fn reload(&mut self) {
        let log = self.worker.log().clone();
        log.plain(Level::Notice, format_args!("reconfiguring"));
        let loaded = match crate::load::load_from_disk(&self.startup) {
            Ok(loaded) => loaded,
            Err(failure) => return failure.log(&log),
        };
        let opened = match prepare::open(&loaded, &self.opened.sockets, Voice::quiet(&log)) {
            Ok(opened) => opened,
            Err(error) => return log.plain(Level::Emerg, format_args!("{error}")),
        };
        loaded.log_warnings();
        let before = std::mem::replace(&mut self.opened, opened);
        if self.apply(&loaded).is_ok() {
            before
                .sockets
                .remove_files_missing_in(&self.opened.sockets, &log);
        } else {
            self.opened = before;
        }
    }

    fn reopen(&mut self) {
        let paths: Vec<_> = self
            .opened
            .logs
            .iter()
            .map(|(path, _)| path.clone())
            .collect();
        match prepare::open_logs(&paths, Voice::quiet(self.worker.log())) {
            Ok(logs) => {
                self.worker.reopen(&logs);
                self.opened.logs = logs;
            }
            Err(error) => self
                .worker
                .log()
                .plain(Level::Emerg, format_args!("{error}")),
        }
    }

    fn end(&mut self) {
        let log = &self.worker.log().clone();
        if let Some(pid_file) = &self.pid_file {
            pid_file.remove(log);
        }
        self.worker.close();
        log.plain(Level::Notice, format_args!("exit"));
        self.opened
            .sockets
            .remove_files_missing_in(&Sockets::default(), log);
        self.worker.flush();
    }
}
