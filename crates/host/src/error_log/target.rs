//! One `error_log` line of the configuration: a place and a level.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::STDERR;
use super::{LogFile, LogFiles, LogLevel, MAX_LINE, Syslog, program};
use base::sync::Mutex;

/// The words that name a part of nginx's debug output; Weir has one debug level.
const DEBUG_PARTS: [&str; 7] = [
    "debug_core",
    "debug_alloc",
    "debug_mutex",
    "debug_event",
    "debug_http",
    "debug_mail",
    "debug_stream",
];

/// What an `error_log` line asks for.
pub struct ErrorLogTarget {
    /// The least serious level it takes.
    pub level: LogLevel,
    place: ErrorLogOutput,
}

enum ErrorLogOutput {
    File(PathBuf),
    Syslog(Syslog),
    Memory(usize),
}

impl ErrorLogTarget {
    /// A file at a level; for the default log.
    pub fn file(path: &Path, level: LogLevel) -> ErrorLogTarget {
        ErrorLogTarget {
            level,
            place: ErrorLogOutput::File(path.to_path_buf()),
        }
    }

    /// Reads the arguments of `error_log`: a place, then levels. A relative path is under `prefix`.
    /// Errors are nginx's texts.
    pub fn parse(words: &[&[u8]], prefix: &Path) -> Result<ErrorLogTarget, String> {
        let (place, levels) = words
            .split_first()
            .ok_or("invalid number of arguments in \"error_log\" directive")?;
        Ok(ErrorLogTarget {
            place: parse_place(place, prefix)?,
            level: parse_levels(levels)?,
        })
    }

    pub(super) fn into_destination(self, files: &LogFiles) -> ErrorLogDestination {
        match self.place {
            ErrorLogOutput::File(path) => ErrorLogDestination::File(files.file_for_path(&path)),
            ErrorLogOutput::Syslog(syslog) => {
                ErrorLogDestination::Syslog(files.keep_syslog(syslog))
            }
            ErrorLogOutput::Memory(size) => {
                ErrorLogDestination::Memory(Arc::new(Mutex::new(LogRing::new(size))))
            }
        }
    }
}

fn parse_place(word: &[u8], prefix: &Path) -> Result<ErrorLogOutput, String> {
    if word == b"stderr" {
        return Ok(ErrorLogOutput::File(STDERR.into()));
    }
    if let Some(rest) = word.strip_prefix(b"syslog:") {
        return Syslog::parse(rest, program()).map(ErrorLogOutput::Syslog);
    }
    if let Some(size) = word.strip_prefix(b"memory:") {
        // The ring must hold at least one whole line.
        return match base::units::parse_size(size) {
            Some(bytes) if bytes >= MAX_LINE as u64 => Ok(ErrorLogOutput::Memory(
                usize::try_from(bytes).unwrap_or(MAX_LINE),
            )),
            _ => Err(format!(
                "invalid buffer size \"{}\"",
                String::from_utf8_lossy(size)
            )),
        };
    }
    use std::os::unix::ffi::OsStrExt as _;
    Ok(ErrorLogOutput::File(
        prefix.join(std::ffi::OsStr::from_bytes(word)),
    ))
}

fn parse_levels(words: &[&[u8]]) -> Result<LogLevel, String> {
    let mut chosen = None;
    for word in words {
        let text = String::from_utf8_lossy(word);
        match LogLevel::from_word(word) {
            Some(_) if chosen.is_some() => return Err(format!("duplicate log level \"{text}\"")),
            Some(level) => chosen = Some(level),
            None if DEBUG_PARTS.contains(&&*text)
                && matches!(chosen, None | Some(LogLevel::Debug)) =>
            {
                chosen = Some(LogLevel::Debug);
            }
            None => return Err(format!("invalid log level \"{text}\"")),
        }
    }
    Ok(chosen.unwrap_or(LogLevel::Error))
}

/// A place that takes lines.
#[derive(Clone)]
pub enum ErrorLogDestination {
    /// A file, or the standard error stream.
    File(Arc<LogFile>),
    /// A syslog server.
    Syslog(Arc<Syslog>),
    /// The last lines, kept in memory for a debugger or a core dump.
    Memory(Arc<Mutex<LogRing>>),
}

impl ErrorLogDestination {
    pub(super) fn write(&self, level: LogLevel, line: &[u8]) {
        match self {
            ErrorLogDestination::File(file) => file.write_now(line),
            ErrorLogDestination::Syslog(syslog) => {
                syslog.send(Some(level), line.strip_suffix(b"\n").unwrap_or(line))
            }
            ErrorLogDestination::Memory(ring) => ring.lock().write(line),
        }
    }
}

/// A ring of bytes that always holds the newest ones.
pub struct LogRing {
    bytes: Vec<u8>,
    /// Where the next byte goes; always below the length.
    next: usize,
}

impl LogRing {
    fn new(size: usize) -> LogRing {
        // Blanks, so that a dump of a ring that is not full reads as text.
        LogRing {
            bytes: vec![b' '; size],
            next: 0,
        }
    }

    fn write(&mut self, line: &[u8]) {
        // A line is shorter than the ring, so it has two parts at most.
        let first = line.len().min(self.bytes.len() - self.next);
        let (first, second) = line.split_at(first);
        self.bytes[self.next..][..first.len()].copy_from_slice(first);
        self.bytes[..second.len()].copy_from_slice(second);
        self.next = (self.next + line.len()) % self.bytes.len();
    }

    /// The contents, oldest byte first.
    pub fn contents(&self) -> Vec<u8> {
        let (newer, older) = self.bytes.split_at(self.next);
        [older, newer].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(words: &[&[u8]]) -> String {
        ErrorLogTarget::parse(words, Path::new("/prefix"))
            .err()
            .expect("refused")
    }

    #[test]
    fn levels_are_read_as_nginx_reads_them() {
        let level = |words: &[&[u8]]| {
            ErrorLogTarget::parse(words, Path::new("/")).map(|target| target.level)
        };
        assert_eq!(level(&[b"x"]), Ok(LogLevel::Error));
        assert_eq!(
            level(&[b"x", b"debug_http", b"debug_event"]),
            Ok(LogLevel::Debug)
        );
        assert_eq!(
            error(&[b"x", b"warn", b"info"]),
            "duplicate log level \"info\""
        );
        assert_eq!(error(&[b"x", b"loud"]), "invalid log level \"loud\"");
        assert_eq!(
            error(&[b"x", b"warn", b"debug_http"]),
            "invalid log level \"debug_http\""
        );
    }

    #[test]
    fn a_relative_path_is_under_the_prefix() {
        let files = LogFiles::default();
        let target = ErrorLogTarget::parse(&[b"logs/e.log"], Path::new("/prefix")).expect("valid");
        let _ = target.into_destination(&files);
        assert_eq!(files.all_paths(), [PathBuf::from("/prefix/logs/e.log")]);
    }

    #[test]
    fn the_ring_keeps_the_newest_bytes() {
        let mut ring = LogRing::new(8);
        ring.write(b"12345");
        ring.write(b"6789");
        assert_eq!(ring.contents(), b"23456789");
        assert_eq!(error(&[b"memory:1k"]), "invalid buffer size \"1k\"");
    }
}
