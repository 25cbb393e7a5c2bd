//! The master of a running server, as commands find it: by the pid file of its configuration.
//!
//! Commands that signal it (`-s`, `weir upgrade`) or ask it (`weir tail`) begin here, so that all of them explain in the same
//! words why there is none.

use std::io::ErrorKind;

use base::ErrnoText;
use host::error_log::LogLevel;
use host::process;
use host::signal::Signal;

use crate::load_configuration::LoadedConfiguration;
use crate::startup_log::StartupLog;

/// The number in the pid file. If there is none, this has reported it.
pub(crate) fn master_of(loaded: &LoadedConfiguration, startup_log: StartupLog<'_>) -> Option<u32> {
    let path = &loaded.core.pid;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let error = ErrnoText(&error);
            startup_log.log(
                LogLevel::Error,
                format_args!("open() \"{}\" failed{error}", path.display()),
            );
            startup_log.hint(match error.0.kind() {
                ErrorKind::NotFound => "no server is running with this configuration",
                _ => "the file names the server's process; it cannot be read",
            });
            return None;
        }
    };
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    if number.is_none() {
        let text = text.trim();
        startup_log.log(
            LogLevel::Error,
            format_args!("invalid PID number \"{text}\" in \"{}\"", path.display()),
        );
        startup_log.hint("no server has written this file; it can be removed if none is running");
    }
    number
}

/// Sends a signal to the master, and explains a failure.
pub(crate) fn send_to_master(master: u32, signal: Signal, startup_log: StartupLog<'_>) -> bool {
    let sent = process::kill(master, signal);
    if let Err(error) = &sent {
        let number = signal.number();
        startup_log.log(
            LogLevel::Alert,
            format_args!("kill({master}, {number}) failed{}", ErrnoText(error)),
        );
        startup_log.hint(match error.kind() {
            ErrorKind::PermissionDenied => "the server belongs to another user",
            _ => "no server is running: the last one left its pid file",
        });
    }
    sent.is_ok()
}
