//! Access logs: formats and destinations, one implementation for http and stream.
//!
//! ```text
//! LogFormat        a log_format, compiled to operations that append to one buffer
//! LogDestination   where a line goes: ├ LogFile      a file, written by a thread of its own
//!                                     ├ BufferedLog  the same, in batches, perhaps compressed
//!                                     ├ VariableLog  a file whose name has variables
//!                                     └ Syslog
//! ```
//!
//! Which formats and logs exist and what is logged is decided by the modules. Nothing here blocks
//! the calling thread on a disk.

mod buffered_log;
mod format;
mod open_files;
mod ordered_work;
mod variable_log;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use conf::{BlockContext, Diagnostic, DirectiveLine, Expression, VariableScope};
use host::error_log::{LogFile, LogFiles, Logger, Syslog, program};
use rt::sync::remote_oneshot;

pub(crate) use buffered_log::LogBuffering;
pub(crate) use format::{DirectVariable, LogFormat, LogFormats};
pub(crate) use open_files::OpenLogFiles;

use buffered_log::BufferedLog;
use variable_log::VariableLog;

/// What is logged: a request or a session. Apart from its variables, little of it is needed here.
pub(crate) trait LogSubject: VariableScope {
    /// The error log, for failures of the access log.
    fn logger(&self) -> &Logger;

    /// The connection number, for the error log.
    fn connection(&self) -> u64;

    /// A directory that must exist before a log with variables in its name may be created.
    fn required_folder(&mut self) -> Option<PathBuf>;
}

/// Completes when a line has been written or lost.
pub(crate) type LineWritten = remote_oneshot::RemoteReceiver<()>;

/// Whether the end of a connection waits for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogUrgency {
    /// No: it can be written together with others.
    Usual,
    /// Yes: once the connection has ended, the line is expected to be in the file.
    Awaited,
}

/// Where the lines of an `access_log` go. Clones share the destination.
#[derive(Clone)]
pub(crate) enum LogDestination {
    /// A file.
    File(Arc<LogFile>),
    /// A file that is written in batches.
    Buffered(Arc<BufferedLog>),
    /// A file whose name has variables.
    Variable(Arc<VariableLog>),
    /// A syslog server.
    Syslog(Arc<Syslog>),
}

/// The buffered files of the configuration by path: several `access_log` lines with the same path
/// share a buffer, or their lines would be written out of order.
#[derive(Default)]
struct BufferedFiles(BTreeMap<PathBuf, Arc<BufferedLog>>);

impl LogDestination {
    /// The file at this path, through its buffer if another line has given it one.
    pub(crate) fn file(path: &Path, level: &mut BlockContext) -> LogDestination {
        if let Some(buffered) = level.lasting::<BufferedFiles>().0.get(path) {
            let buffered = Arc::clone(buffered);
            // Perhaps another server has made it, and may be gone after a reload.
            level.build.must_read_all = true;
            return LogDestination::Buffered(buffered);
        }
        LogDestination::File(level.lasting::<LogFiles>().file_for_path(path))
    }

    /// Reads word 0 of an `access_log`: a path, possibly with variables, or `syslog:…`. `buffering`
    /// comes from the other words.
    pub(crate) fn read(
        line: &mut DirectiveLine,
        buffering: Option<LogBuffering>,
    ) -> Result<LogDestination, Diagnostic> {
        let word = line.arg(0);
        if let Some(server) = word.text.strip_prefix(b"syslog:") {
            if buffering.is_some() {
                return Err(line.error_at(0, "logs to syslog cannot be buffered"));
            }
            let syslog =
                Syslog::parse(server, program()).map_err(|message| line.error_at(0, message))?;
            let files = line.lasting::<LogFiles>().clone();
            return Ok(LogDestination::Syslog(files.keep_syslog(syslog)));
        }
        if Expression::has_variables(&word.text) {
            if buffering.is_some() {
                return Err(line.error_at(0, "buffered logs cannot have variables in name"));
            }
            return LogDestination::named(line);
        }
        let path = line.prefix_path(conf::PathUse::Opened, word);
        let Some(buffering) = buffering else {
            return Ok(LogDestination::file(&path, line.level));
        };
        if let Some(known) = line.shared::<BufferedFiles>().0.get(&path) {
            // One buffer cannot have two sizes. nginx refuses this with the same words.
            if known.buffering() != buffering {
                let message = format!(
                    "access_log \"{}\" already defined with conflicting parameters",
                    word.text
                );
                return Err(line.error_at(0, message));
            }
            return Ok(LogDestination::Buffered(Arc::clone(known)));
        }
        let file = line.lasting::<LogFiles>().file_for_path(&path);
        let buffered = BufferedLog::new(file, buffering);
        line.shared::<BufferedFiles>()
            .0
            .insert(path, Arc::clone(&buffered));
        Ok(LogDestination::Buffered(buffered))
    }

    /// A destination whose path has variables.
    fn named(line: &mut DirectiveLine) -> Result<LogDestination, Diagnostic> {
        let path = line.expression(0)?;
        let files = line.lasting::<LogFiles>().clone();
        // As in nginx, the text of the path decides whether it is absolute, not its value: a
        // variable alone never leads out of the prefix.
        let build = &line.level.build;
        let prefix = build.prefix_for(conf::PathUse::Write, line.text(0));
        let prefix = (!line.text(0).starts_with(b"/")).then_some(prefix);
        Ok(LogDestination::Variable(VariableLog::new(
            path, prefix, &files,
        )))
    }

    /// Writes a line, which has no newline yet; the buffer may be modified. `open_files` serves
    /// destinations with variables in their names. The result, if any, completes when the line has
    /// been written. A destination with variables always returns one, others only if `urgency` asks
    /// for it.
    pub(crate) fn write(
        &self,
        line: &mut Vec<u8>,
        subject: &mut dyn LogSubject,
        open_files: Option<&Arc<OpenLogFiles>>,
        urgency: LogUrgency,
    ) -> Option<LineWritten> {
        match self {
            LogDestination::Syslog(syslog) => syslog.send(None, line),
            LogDestination::File(file) => {
                line.push(b'\n');
                if urgency == LogUrgency::Awaited {
                    file.write_now(line);
                    return file.flushed_receiver();
                }
                file.write(line);
            }
            LogDestination::Buffered(buffered) => {
                line.push(b'\n');
                buffered.write(line);
            }
            LogDestination::Variable(named) => {
                line.push(b'\n');
                return Some(named.write(line, subject, open_files));
            }
        }
        None
    }
}

/// Whether a value counts as true for `if=`: it is neither empty nor `0`.
pub(crate) fn is_true(value: &[u8]) -> bool {
    !matches!(value, b"" | b"0")
}

/// Reads the words of an `access_log` from the third: buffering and condition.
pub(crate) fn read_parameters(
    line: &mut DirectiveLine,
) -> Result<(Option<LogBuffering>, Option<Expression>), Diagnostic> {
    let (mut size, mut flush, mut gzip, mut condition) = (None, None, None, None);
    for index in 2..line.args().len() {
        let word = line.arg(index);
        let parameter = |name| conf::parse::parameter(&word.text, name).map(ByteSlice::as_bstr);
        if let Some(value) = parameter("buffer") {
            let bytes = conf::parse::size(value).filter(|bytes| *bytes > 0);
            size = Some(bytes.ok_or_else(|| invalid(line, index, "buffer size", value))?);
        } else if let Some(value) = parameter("flush") {
            let time = conf::parse::millis(value).filter(|time| !time.is_zero());
            flush = Some(time.ok_or_else(|| invalid(line, index, "flush time", value))?);
        } else if word.text == "gzip" {
            gzip = Some(LogBuffering::FASTEST);
        } else if let Some(value) = parameter("gzip") {
            let level = conf::parse::number(value).filter(|level| (1..=9).contains(level));
            gzip =
                Some(level.ok_or_else(|| invalid(line, index, "compression level", value))? as u32);
        } else if let Some(value) = parameter("if") {
            condition = Some(line.expression_of(word, value)?);
        } else {
            return Err(line.invalid_parameter(index));
        }
    }
    // Compressing line by line would gain nothing, so `gzip` implies a buffer, as in nginx.
    if size.is_none() && gzip.is_some() {
        size = Some(LogBuffering::COMPRESSED_SIZE);
    }
    if size.is_none() && flush.is_some() {
        let message = format!("no buffer is defined for access_log \"{}\"", line.text(0));
        return Err(line.error(message));
    }
    let buffering = size.map(|size| LogBuffering {
        size: usize::try_from(size).unwrap_or(usize::MAX),
        flush,
        gzip,
    });
    Ok((buffering, condition))
}

/// The error for a parameter with an invalid value.
fn invalid(line: &DirectiveLine, index: usize, what: &str, value: &BStr) -> Diagnostic {
    line.error_at(index, format!("invalid {what} \"{value}\""))
}
