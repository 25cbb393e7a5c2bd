//! The error log: levels, the line format, and where lines go.
//!
//! A [`Logger`] is a short list of targets, most of the time one file, that a part of the
//! configuration has chosen. It is cheap to clone (an `Arc`), may be used from any thread, and a
//! line that is not wanted costs one comparison. The format is nginx's, since log shippers parse it:
//!
//! ```text
//! 2026/11/21 07:30:00 [error] 4711#4713: *42 open() "/x" failed (2: No such file), client: 127.0.0.1
//! ```
//!
//! Files are written through [`LogFile`], which never blocks an event loop. This module does not open
//! files (the master does, see [`LogFiles`]) and does not rotate them.

mod clock;
mod files;
mod line;
mod recent;
mod syslog;
mod target;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use base::sync::Mutex;

pub use clock::{after_fork, log_time, syslog_time};
pub use files::{LineBuffer, LogFile, LogFiles, LogWriteMode};
use line::format_line;
pub use line::{ContextWriter, set_json};
pub use recent::{ErrorGroup, keep_recent_errors, recent_errors};
pub use syslog::{Syslog, queue_syslog};
pub use target::{ErrorLogDestination, ErrorLogTarget};

/// The longest line, newline included. nginx's bound; log shippers rely on it.
pub const MAX_LINE: usize = 2048;

/// The lines of a process that shows them instead of writing them.
static DIVERTED: OnceLock<Mutex<Vec<(LogLevel, String)>>> = OnceLock::new();

/// From now on keeps the lines of all logs that would take them, and writes none. For a process that serves nothing.
pub fn divert_lines() {
    DIVERTED.get_or_init(Mutex::default);
}

/// The lines that have been kept.
pub fn take_diverted() -> Vec<(LogLevel, String)> {
    let diverted = DIVERTED.get();
    diverted
        .map(|lines| std::mem::take(&mut *lines.lock()))
        .unwrap_or_default()
}

/// How serious a line is. A target takes its own level and everything more serious.
///
/// Smaller is more serious, so `level <= wanted` reads "is wanted".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LogLevel {
    /// The server cannot start, or cannot go on.
    Emerg = 1,
    /// Something that must never happen did happen; look at once.
    Alert,
    /// A failure of the machine below us: disk, memory, descriptors.
    Crit,
    /// A request failed.
    #[default]
    Error,
    /// It works, but not as the operator thinks.
    Warn,
    /// A normal event worth a line: start, reload, stop.
    Notice,
    /// A client's own mistake, a closed connection.
    Info,
    /// For finding defects in Weir.
    Debug,
}

impl LogLevel {
    /// All levels, most serious first.
    pub const ALL: [LogLevel; 8] = [
        LogLevel::Emerg,
        LogLevel::Alert,
        LogLevel::Crit,
        LogLevel::Error,
        LogLevel::Warn,
        LogLevel::Notice,
        LogLevel::Info,
        LogLevel::Debug,
    ];

    /// The word in the configuration and in the line.
    pub const fn word(self) -> &'static str {
        match self {
            LogLevel::Emerg => "emerg",
            LogLevel::Alert => "alert",
            LogLevel::Crit => "crit",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Notice => "notice",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }

    /// The level that `word` names.
    pub fn from_word(word: &[u8]) -> Option<LogLevel> {
        LogLevel::ALL
            .into_iter()
            .find(|level| level.word().as_bytes() == word)
    }

    /// The severity number of RFC 3164 section 4.1.1.
    pub const fn severity(self) -> u8 {
        self as u8 - 1
    }
}

/// What a line says beyond its message: whose connection, and what it was doing.
pub trait LogContext {
    /// The connection's number, printed as `*42`.
    fn connection(&self) -> Option<u64>;
    /// Writes what follows the message, such as ` while reading client request line, client: …`. Control bytes are
    /// escaped afterwards. Not called for debug lines.
    fn describe(&self, out: &mut ContextWriter<'_>);
}

/// A line about no connection.
pub struct NoContext;

impl LogContext for NoContext {
    fn connection(&self) -> Option<u64> {
        None
    }
    fn describe(&self, _out: &mut ContextWriter<'_>) {}
}

/// Where the lines of one part of the configuration go. The default logger drops everything.
#[derive(Clone, Default)]
pub struct Logger {
    /// The number of the most talkative target's level; 0 takes nothing. Kept beside the `Arc` so
    /// that an unwanted line does not follow a pointer.
    most: u8,
    targets: Option<Arc<[LeveledDestination]>>,
}

#[derive(Clone)]
struct LeveledDestination {
    level: LogLevel,
    destination: ErrorLogDestination,
}

impl Logger {
    /// This logger with one more target.
    #[must_use]
    pub fn with_target(&self, target: ErrorLogTarget, files: &LogFiles) -> Logger {
        let level = target.level;
        if level == LogLevel::Debug {
            turn_on_debug();
        }
        let destination = target.into_destination(files);
        let mut entries: Vec<LeveledDestination> = self
            .targets
            .iter()
            .flat_map(|list| list.iter().cloned())
            .collect();
        entries.push(LeveledDestination { level, destination });
        Logger {
            most: self.most.max(level as u8),
            targets: Some(entries.into()),
        }
    }

    /// The logger of lines about a client. One that `debug_connection` names has all of them written.
    pub fn of_client(&self, is_debugged: bool) -> Cow<'_, Logger> {
        match is_debugged {
            true => Cow::Owned(self.debug_connection()),
            false => Cow::Borrowed(self),
        }
    }

    /// The same targets, each taking every line: for `debug_connection`.
    fn debug_connection(&self) -> Logger {
        let Some(entries) = &self.targets else {
            return Logger::default();
        };
        let entries: Vec<LeveledDestination> = entries
            .iter()
            .map(|entry| LeveledDestination {
                level: LogLevel::Debug,
                ..entry.clone()
            })
            .collect();
        Logger {
            most: LogLevel::Debug as u8,
            targets: Some(entries.into()),
        }
    }

    /// For each file whose lines are still on their way: ends when they are in it.
    pub fn flushed_receivers(&self) -> Vec<rt::sync::remote_oneshot::RemoteReceiver<()>> {
        let entries = self.targets.iter().flat_map(|targets| targets.iter());
        entries
            .filter_map(|entry| match &entry.destination {
                ErrorLogDestination::File(file) => file.flushed_receiver(),
                ErrorLogDestination::Syslog(_) | ErrorLogDestination::Memory(_) => None,
            })
            .collect()
    }

    /// Does any target take lines of `level`?
    #[inline]
    pub fn enabled(&self, level: LogLevel) -> bool {
        level as u8 <= self.most
    }

    /// Is there no target at all?
    pub fn is_empty(&self) -> bool {
        self.targets.is_none()
    }

    /// Does any target write to a file or to stderr? nginx adds its default log when none does.
    pub fn has_file(&self) -> bool {
        self.entries()
            .iter()
            .any(|entry| matches!(entry.destination, ErrorLogDestination::File(_)))
    }

    /// Does any target write to the standard error stream?
    pub fn has_stderr(&self) -> bool {
        self.entries()
            .iter()
            .any(|entry| matches!(&entry.destination, ErrorLogDestination::File(file) if file.is_stderr()))
    }

    /// The first file target, for standard error after the start and for messages about the log itself.
    pub fn first_file(&self) -> Option<&Arc<LogFile>> {
        self.entries()
            .iter()
            .find_map(|entry| match &entry.destination {
                ErrorLogDestination::File(file) => Some(file),
                ErrorLogDestination::Syslog(_) | ErrorLogDestination::Memory(_) => None,
            })
    }

    fn entries(&self) -> &[LeveledDestination] {
        self.targets.as_deref().unwrap_or(&[])
    }

    /// Writes a line about no connection.
    pub fn log_plain(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        self.log(level, &NoContext, message);
    }

    /// Writes a line. `context` numbers the connection and ends the line.
    pub fn log(&self, level: LogLevel, context: &dyn LogContext, message: fmt::Arguments<'_>) {
        if !self.enabled(level) {
            return;
        }
        LINE.with(|line| match line.try_borrow_mut() {
            Ok(mut line) => self.write(&mut line, level, context, message),
            // A `Display` in the message logs a line itself: rare, so a buffer of its own is fine.
            Err(_) => self.write(&mut Vec::new(), level, context, message),
        });
    }

    fn write(
        &self,
        line: &mut Vec<u8>,
        level: LogLevel,
        context: &dyn LogContext,
        message: fmt::Arguments<'_>,
    ) {
        if let Some(diverted) = DIVERTED.get() {
            return diverted.lock().push((level, message.to_string()));
        }
        format_line(line, level, context, message);
        for entry in self.entries() {
            if level <= entry.level {
                entry.destination.write(level, line);
            }
        }
    }
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logger")
            .field("most", &self.most)
            .field("targets", &self.entries().len())
            .finish()
    }
}

rt::local! {
    /// The line being built, kept so that a log line allocates nothing.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Main's logger, handed to the engines through the configuration's shared values.
#[derive(Clone, Default)]
pub struct MainLog(pub Logger);

/// Whether any connection of this process is logged at debug level.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// Turns debug lines on, for a connection that `debug_connection` names. Loggers with that level do so themselves.
pub fn turn_on_debug() {
    DEBUG.store(true, Relaxed);
}

/// Whether debug lines are wanted anywhere. If not, code that would write one costs a load and nothing more.
#[inline(always)]
pub fn debug_is_on() -> bool {
    DEBUG.load(Relaxed)
}

static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// Sets the name under which the process presents itself. Only the first call counts.
pub fn set_program(name: &'static str) {
    // A second call loses on purpose: the name is a property of the process.
    let _ = PROGRAM.set(name);
}

/// The name the process presents itself under: `weir`, or `nginx` when started as such.
pub fn program() -> &'static str {
    PROGRAM.get().copied().unwrap_or("weir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_choose_lines() {
        let files = LogFiles::default();
        let memory =
            ErrorLogTarget::parse(&[b"memory:64k", b"warn"], "/".as_ref()).expect("a valid target");
        let log = Logger::default().with_target(memory, &files);
        assert!(
            log.enabled(LogLevel::Warn)
                && log.enabled(LogLevel::Emerg)
                && !log.enabled(LogLevel::Notice)
        );
        assert!(log.debug_connection().enabled(LogLevel::Debug));
        assert!(!Logger::default().enabled(LogLevel::Emerg));
    }
}
