//! Access logs: formats, and the places that lines go to. One implementation for http and stream.
//!
//! ```text
//! Format        a log_format, compiled to operations that append to one buffer
//! Destination   where a line goes: ├ LogFile    a file, written by rt's writer thread
//!                                  ├ Buffered   the same, in batches, perhaps compressed
//!                                  ├ Named      a file whose name has variables
//!                                  └ Syslog
//! ```
//!
//! Which formats and logs there are, and which requests are logged, is for the modules to say. Nothing here waits for
//! a disk on the caller's thread.

mod batch;
mod buffered;
mod format;
mod named;
mod open_files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, Expression, Level, Line, Scope};
use rt::error_log::{LogFile, LogFiles, Logger, Syslog, program};
use rt::sync::remote_oneshot;

pub(crate) use buffered::Buffering;
pub(crate) use format::{Direct, Format, Formats};
pub(crate) use open_files::OpenFiles;

use buffered::Buffered;
use named::Named;

/// What is logged: a request, a session. Beyond its variables a log wants to know little of it.
pub(crate) trait Subject: Scope {
    /// The error log for failures of the access log.
    fn logger(&self) -> &Logger;

    /// The number of the connection, for the error log.
    fn connection(&self) -> u64;

    /// A folder that must exist for a log with variables in its name to be made.
    fn required_folder(&mut self) -> Option<PathBuf>;
}

/// Ends when a line is in its file, or lost.
pub(crate) type Written = remote_oneshot::Receiver<()>;

/// Whether somebody waits for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It may take its time, together with others.
    Usual,
    /// The end of a connection waits for it.
    Awaited,
}

/// Where the lines of one `access_log` go. Clones are the same place.
#[derive(Clone)]
pub(crate) enum Destination {
    /// A file.
    File(Arc<LogFile>),
    /// A file that is written in batches.
    Buffered(Arc<Buffered>),
    /// A file whose name has variables.
    Named(Arc<Named>),
    /// A syslog server.
    Syslog(Arc<Syslog>),
}

/// The files that are written in batches, by path: two `access_log` of one file share a buffer.
#[derive(Default)]
struct BufferedFiles(BTreeMap<PathBuf, Arc<Buffered>>);

impl Destination {
    /// A file of this path, or what is already known to go there.
    pub(crate) fn file(path: &Path, level: &mut Level) -> Destination {
        if let Some(buffered) = level.shared::<BufferedFiles>().0.get(path) {
            return Destination::Buffered(Arc::clone(buffered));
        }
        Destination::File(level.shared::<LogFiles>().want(path))
    }

    /// Reads word 0 of an `access_log`: a path, perhaps with variables, or `syslog:…`. `buffering` is what its other
    /// words say.
    pub(crate) fn read(
        line: &mut Line,
        buffering: Option<Buffering>,
    ) -> Result<Destination, Diagnostic> {
        let word = line.arg(0);
        if let Some(server) = word.text.strip_prefix(b"syslog:") {
            if buffering.is_some() {
                return Err(line.error_at(0, "logs to syslog cannot be buffered"));
            }
            let syslog =
                Syslog::parse(server, program()).map_err(|message| line.error_at(0, message))?;
            return Ok(Destination::Syslog(Arc::new(syslog)));
        }
        if Expression::has_variables(&word.text) {
            if buffering.is_some() {
                return Err(line.error_at(0, "buffered logs cannot have variables in name"));
            }
            return Destination::named(line);
        }
        let path = line.prefix_path(conf::Access::Opened, word);
        let Some(buffering) = buffering else {
            return Ok(Destination::file(&path, line.level));
        };
        if let Some(known) = line.shared::<BufferedFiles>().0.get(&path) {
            if known.buffering() != buffering {
                let message = format!(
                    "access_log \"{}\" already defined with conflicting parameters",
                    word.text
                );
                return Err(line.error_at(0, message));
            }
            return Ok(Destination::Buffered(Arc::clone(known)));
        }
        let file = line.shared::<LogFiles>().want(&path);
        let buffered = Buffered::new(file, buffering);
        line.shared::<BufferedFiles>()
            .0
            .insert(path, Arc::clone(&buffered));
        Ok(Destination::Buffered(buffered))
    }

    fn named(line: &mut Line) -> Result<Destination, Diagnostic> {
        let path = line.expression(0)?;
        let files = line.shared::<LogFiles>().clone();
        // As in nginx the text decides, not the value: `$name` never leaves the prefix by itself.
        let build = &line.level.build;
        let prefix = build.prefix_for(conf::Access::Write, line.text(0));
        let prefix = (!line.text(0).starts_with(b"/")).then_some(prefix);
        Ok(Destination::Named(Named::new(path, prefix, &files)))
    }

    /// Sends a line, which has no newline yet; the buffer may be used. `open_files` is for files with variables in
    /// their names. What is returned ends when the line is in its file; those of files with variables in their names
    /// are to be waited for in any case, others only when `urgency` says so.
    pub(crate) fn write(
        &self,
        line: &mut Vec<u8>,
        subject: &mut dyn Subject,
        open_files: Option<&Arc<OpenFiles>>,
        urgency: Urgency,
    ) -> Option<Written> {
        match self {
            Destination::Syslog(syslog) => syslog.send(None, line),
            Destination::File(file) => {
                line.push(b'\n');
                if urgency == Urgency::Awaited {
                    file.write_now(line);
                    return file.written();
                }
                file.write(line);
            }
            Destination::Buffered(buffered) => {
                line.push(b'\n');
                buffered.write(line);
            }
            Destination::Named(named) => {
                line.push(b'\n');
                return Some(named.write(line, subject, open_files));
            }
        }
        None
    }
}

/// Whether a value counts as true for `if=`: neither empty nor `0`.
pub(crate) fn is_true(value: &[u8]) -> bool {
    !matches!(value, b"" | b"0")
}

/// The words of an `access_log` from the third on: buffering and condition.
pub(crate) fn read_parameters(
    line: &mut Line,
) -> Result<(Option<Buffering>, Option<Expression>), Diagnostic> {
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
            gzip = Some(Buffering::FASTEST);
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
    if size.is_none() && gzip.is_some() {
        size = Some(Buffering::COMPRESSED_SIZE);
    }
    if size.is_none() && flush.is_some() {
        let message = format!("no buffer is defined for access_log \"{}\"", line.text(0));
        return Err(line.error(message));
    }
    let buffering = size.map(|size| Buffering {
        size: usize::try_from(size).unwrap_or(usize::MAX),
        flush,
        gzip,
    });
    Ok((buffering, condition))
}

fn invalid(line: &Line, index: usize, what: &str, value: &BStr) -> Diagnostic {
    line.error_at(index, format!("invalid {what} \"{value}\""))
}
