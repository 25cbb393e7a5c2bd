//! What the sandbox of the workers asks of the master: to log the calls that were denied, and to start a worker with
//! other rules when the paths of the configuration change.

use std::time::Duration;

use host::error_log::LogLevel;
use rt::sandbox::{SandboxRules, SeccompListener};

use crate::children::WorkerSandbox;
use crate::load_configuration::LoadedConfiguration;
use crate::prepare;
use crate::startup_log::StartupLog;

use super::MasterProcess;

/// The number of denied calls that are answered before the master attends to its other duties.
const MAX_DENIED_AT_ONCE: usize = 64;

/// The minimum time between two replacements of a worker because of changed paths: each is the
/// price of a start.
const SANDBOX_PAUSE: Duration = Duration::from_secs(1);

impl MasterProcess {
    /// Denies a worker's system calls, with one line in the log for each kind.
    pub(super) fn report_denied_calls(&mut self, index: usize) {
        let log = self.log().clone();
        let worker = &mut self.workers[index];
        let Some(sandbox) = &mut worker.sandbox else {
            return;
        };
        for _ in 0..MAX_DENIED_AT_ONCE {
            let attempt = match sandbox.listener.as_ref().map(SeccompListener::deny) {
                Some(Ok(Some(attempt))) => attempt,
                Some(Ok(None)) | None => return,
                // No process is left behind the listener. It stays readable for ever, so it must leave the poll
                // set.
                Some(Err(_)) => {
                    sandbox.listener = None;
                    return;
                }
            };
            if sandbox.reported_calls.insert(attempt.number) {
                let name = rt::sandbox::call_name(attempt.number).unwrap_or("without a name");
                let (number, process) = (attempt.number, worker.process);
                let [first, third] = attempt.arguments;
                let text = format_args!(
                    "system call {name} ({number}) is denied by worker_sandbox, worker process {process}, arguments: \
                     {first:#x} _ {third:#x}"
                );
                log.log_plain(LogLevel::Error, text);
            }
        }
    }

    /// A worker was denied a file. If files that it may access were replaced, such as renewed
    /// certificates, a new worker is started, which may access the new ones: a sandbox cannot be
    /// extended.
    pub(super) fn renew_sandbox(&mut self, index: usize) {
        let worker = &self.workers[index];
        let paused = self
            .renewed_at
            .is_some_and(|at| rt::clock::elapsed(at) < SANDBOX_PAUSE);
        let outdated = worker
            .sandbox
            .as_ref()
            .is_some_and(WorkerSandbox::is_outdated);
        if !self.is_in_charge(worker) || paused || !outdated {
            return;
        }
        // Recorded before the attempt, so that a failing replacement is subject to the pause, too.
        self.renewed_at = Some(rt::clock::read_clock());
        self.notice(format_args!("the files of worker_sandbox have changed"));
        // The worker would have recreated a directory that is gone, had it no sandbox.
        if let Err(error) =
            prepare::make_directories(&self.loaded, StartupLog::log_only(self.log()))
        {
            self.log()
                .log_plain(LogLevel::Emerg, format_args!("{error}"));
        }
        self.replace_workers();
    }

    /// Logs what a sandbox permits; the paths at debug level.
    pub(super) fn log_rules(&self, rules: &SandboxRules) {
        if rules.read.iter().any(|path| path.as_os_str() == "/") {
            let text = "worker_sandbox: all files are readable, because a path in the configuration starts with a \
                        variable or is \"/\"";
            self.log().log_plain(LogLevel::Warn, format_args!("{text}"));
        }
        for (what, paths) in [
            ("read", &rules.read),
            ("change", &rules.write),
            ("execute", &rules.execute),
        ] {
            for path in paths {
                let text = format_args!("worker_sandbox: may {what} \"{}\"", path.display());
                self.log().log_plain(LogLevel::Debug, text);
            }
        }
    }

    /// Whether the current workers can run a configuration in their sandboxes: rules can be dropped,
    /// never added.
    pub(super) fn is_sandbox_of(&self, loaded: &LoadedConfiguration) -> bool {
        let rules = crate::sandbox::rules(loaded);
        let current = self.workers.iter().filter(|one| self.is_in_charge(one));
        current
            .into_iter()
            .all(|worker| match (&worker.sandbox, &rules) {
                (None, None) => true,
                (Some(sandbox), Some(rules)) => {
                    rules.are_within(&sandbox.rules) && !sandbox.is_outdated()
                }
                // A sandbox can neither be left nor entered once threads run.
                (None, Some(_)) | (Some(_), None) => false,
            })
    }
}
