//! What the runtime tells of itself, in the error log: panics, full pools, lost lines. Late loops are the
//! watchdog's.

use host::error_log::{LogLevel, Logger};

/// Writes the runtime's reports to the error log, at nginx's levels.
pub(crate) fn install_reporter(log: &Logger) {
    let log = log.clone();
    rt::report::set_reporter(move |event| {
        use rt::report::RuntimeEvent;
        match event {
            RuntimeEvent::Panic {
                task,
                message,
                location,
                backtrace,
            } => {
                log.log_plain(
                    LogLevel::Alert,
                    format_args!("task \"{task}\" panicked at {location}: {message}"),
                );
                // One line per frame: the log cuts long lines.
                for frame in backtrace.to_string().lines() {
                    log.log_plain(LogLevel::Error, format_args!("backtrace: {frame}"));
                }
            }
            RuntimeEvent::PoolOverflow { .. } => {
                log.log_plain(LogLevel::Error, format_args!("{event}"))
            }
            RuntimeEvent::AcceptPaused { .. } | RuntimeEvent::LogLost { .. } => {
                log.log_plain(LogLevel::Crit, format_args!("{event}"))
            }
            RuntimeEvent::Unsupported { .. } => {
                log.log_plain(LogLevel::Notice, format_args!("{event}"))
            }
            _ => log.log_plain(LogLevel::Notice, format_args!("{event}")),
        }
    });
}
