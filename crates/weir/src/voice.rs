//! Where the process says things: its error log, and while somebody looks on, standard error too.

use rt::error_log::{Level, Logger};

/// An error log, and perhaps standard error.
#[derive(Clone, Copy)]
pub(crate) struct Voice<'a> {
    log: &'a Logger,
    /// The name in front of lines on standard error; `None` once nobody looks on.
    program: Option<&'static str>,
}

impl<'a> Voice<'a> {
    /// For a running server.
    pub(crate) fn quiet(log: &'a Logger) -> Voice<'a> {
        Voice { log, program: None }
    }

    /// For the start, before the server has left the terminal.
    pub(crate) fn starting(log: &'a Logger, program: &'static str) -> Voice<'a> {
        Voice {
            log,
            program: Some(program),
        }
    }

    /// Adds, for who looks on, what to make of the line before.
    pub(crate) fn note(&self, text: &str) {
        if self.program.is_some() {
            eprintln!("  = {text}");
        }
    }

    /// Says `message`. As in nginx, standard error gets warnings and worse, each only once.
    pub(crate) fn say(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.log.plain(level, message);
        let shown = level <= Level::Warn && !(self.log.has_stderr() && self.log.enabled(level));
        if let Some(program) = self.program.filter(|_| shown) {
            let message = message.to_string();
            let message = base::text::visible_text(&message);
            eprintln!("{program}: [{}] {message}", level.word());
        }
    }
}
