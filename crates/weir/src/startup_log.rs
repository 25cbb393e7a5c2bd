//! Messages of the start: to the error log, and while a user waits at the terminal, to standard
//! error.

use host::error_log::{LogLevel, Logger};

use crate::terminal;

/// An error log, and during the start standard error.
#[derive(Clone, Copy)]
pub(crate) struct StartupLog<'a> {
    /// The log that gets every message.
    log: &'a Logger,
    /// The name in front of lines on standard error; `None` once the server has left the terminal.
    program: Option<&'static str>,
}

impl<'a> StartupLog<'a> {
    /// For a running server: the log only.
    pub(crate) fn log_only(log: &'a Logger) -> StartupLog<'a> {
        StartupLog { log, program: None }
    }

    /// For the start, before the server has left the terminal.
    pub(crate) fn with_stderr(log: &'a Logger, program: &'static str) -> StartupLog<'a> {
        StartupLog {
            log,
            program: Some(program),
        }
    }

    /// Adds an explanation of the previous message, for the terminal only: logs have one line per
    /// event.
    pub(crate) fn hint(&self, text: &str) {
        if self.program.is_some() {
            terminal::report_line(format_args!("  = {text}"));
        }
    }

    /// Writes a message. As in nginx, standard error gets warnings and worse, unless the log itself
    /// goes there.
    pub(crate) fn log(&self, level: LogLevel, message: std::fmt::Arguments<'_>) {
        self.log.log_plain(level, message);
        let shown = level <= LogLevel::Warn && !(self.log.has_stderr() && self.log.enabled(level));
        if let Some(program) = self.program.filter(|_| shown) {
            let message = message.to_string();
            let message = base::text::visible_text(&message);
            terminal::report_line(format_args!("{program}: [{}] {message}", level.word()));
        }
    }
}
