//! `weir fmt`: configurations in one layout.
//!
//! ```text
//! weir fmt FILE…          writes the files that change, each at once by a rename
//! weir fmt --check FILE…  names them, and exits with 1
//! weir fmt --diff FILE…   shows what would change
//! weir fmt -              from standard input to standard output
//! ```
//!
//! What changes, and what does not:
//!
//! ```text
//! server{listen 80;# here          server {
//!   root   '/a b';}                    listen 80; # here
//!                                      root '/a b';
//!                                  }
//! ```
//!
//! The layout itself is `conf::layout`, which knows neither files nor options.
//!
//! Files that are included are left alone unless `--includes` asks for them: they may be someone else's. A file that does not
//! parse is left alone, too, with the parser's error.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};

use base::ByteSlice as _;
use conf::DiskFiles;
use conf::layout::format_text;
use lexopt::prelude::*;

use crate::command_hints::unexpected;
use crate::commands;
use crate::terminal;

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FormatArguments {
    /// The files in the order in which they were given; `-` is standard input.
    files: Vec<PathBuf>,
    /// Writing, unless an option says otherwise.
    task: FormatTask,
    /// `--includes`
    includes: bool,
}

/// What is done with files that are not in the layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FormatTask {
    /// They are written.
    #[default]
    Write,
    /// They are named.
    Check,
    /// The difference is shown.
    Diff,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FormatOutcome {
    /// It is in the layout.
    Unchanged,
    /// It is not, or was not.
    Changed,
    /// It could not be read, parsed or written. The others are done nevertheless: one broken file of a hundred must not
    /// leave the rest as it was.
    Failed,
}

/// Reads the arguments after `fmt`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<FormatArguments, String> {
    let mut arguments = FormatArguments::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("check") => arguments.task = FormatTask::Check,
            Long("diff") => arguments.task = FormatTask::Diff,
            Long("includes") => arguments.includes = true,
            Value(file) => arguments.files.push(file.into()),
            other => return Err(unexpected(&commands::FMT, other)),
        }
    }
    match arguments.files.is_empty() {
        true => Err("missing argument FILE".to_owned()),
        false => Ok(arguments),
    }
}

/// Formats. Returns the exit code: 1 if `--check` or `--diff` found something, 2 if a file could not be read, parsed or
/// written.
pub(crate) fn run(arguments: &FormatArguments) -> i32 {
    let mut files: Vec<PathBuf> = Vec::new();
    for file in &arguments.files {
        files.push(file.clone());
        if arguments.includes && file.as_os_str() != "-" {
            files.extend(included_files(file));
        }
    }
    let mut seen = BTreeSet::new();
    files.retain(|file| seen.insert(file.clone()));
    let outcomes = files.iter().map(|file| match file.as_os_str() == "-" {
        true => format_input(arguments.task),
        false => format_file(file, arguments.task),
    });
    let worst = outcomes.max().unwrap_or(FormatOutcome::Unchanged);
    match (worst, arguments.task) {
        (FormatOutcome::Failed, _) => 2,
        (FormatOutcome::Changed, FormatTask::Check | FormatTask::Diff) => 1,
        (FormatOutcome::Changed | FormatOutcome::Unchanged, _) => 0,
    }
}

/// The files that a configuration includes, at any depth, as far as they can be read.
fn included_files(file: &Path) -> Vec<PathBuf> {
    let Ok(path) = std::path::absolute(file) else {
        return Vec::new();
    };
    let (tree, _) = conf::parse_tolerant(&path, &mut DiskFiles, None);
    let sources = tree.sources.unique_files();
    let included = sources.iter().map(|source| source.path.clone());
    included.filter(|included| *included != path).collect()
}

/// From standard input to standard output.
fn format_input(task: FormatTask) -> FormatOutcome {
    let mut text = Vec::new();
    if let Err(error) = io::stdin().lock().read_to_end(&mut text) {
        return failed(Path::new("standard input"), &error);
    }
    let name = Path::new("/standard input");
    let Some(formatted) = formatted(name, &text) else {
        return FormatOutcome::Failed;
    };
    if task == FormatTask::Write {
        let written = io::stdout().lock().write_all(&formatted);
        return match written {
            Ok(()) => FormatOutcome::Unchanged,
            Err(error) => failed(Path::new("standard output"), &error),
        };
    }
    report(Path::new("-"), &text, &formatted, task)
}

/// One file. What is written is complete before it takes the place of the old one.
fn format_file(file: &Path, task: FormatTask) -> FormatOutcome {
    // Through links: what they point to is changed, not what they are.
    let path = match file.canonicalize() {
        Ok(path) => path,
        Err(error) => return failed(file, &error),
    };
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) => return failed(file, &error),
    };
    let Some(formatted) = formatted(&path, &text) else {
        return FormatOutcome::Failed;
    };
    if task != FormatTask::Write {
        return report(file, &text, &formatted, task);
    }
    if formatted == text {
        return FormatOutcome::Unchanged;
    }
    match replace(&path, &formatted) {
        Ok(()) => FormatOutcome::Changed,
        Err(error) => failed(file, &error),
    }
}

/// The text in the layout; `None` if it does not parse, which has been reported as `-t` reports it.
fn formatted(path: &Path, text: &[u8]) -> Option<Vec<u8>> {
    match format_text(path, text) {
        Ok(formatted) => Some(formatted),
        Err((errors, sources)) => {
            let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            for error in errors {
                let error = conf::render_diagnostic(&error, &sources, "weir", colour);
                terminal::report_text(format_args!("{error}"));
            }
            None
        }
    }
}

/// Names a file, or shows the difference, if there is one.
fn report(file: &Path, text: &[u8], formatted: &[u8], task: FormatTask) -> FormatOutcome {
    if text == formatted {
        return FormatOutcome::Unchanged;
    }
    let name = file.display();
    if task == FormatTask::Check {
        terminal::print_line(format_args!("{name}"));
        return FormatOutcome::Changed;
    }
    let (before, after) = (text.to_str_lossy(), formatted.to_str_lossy());
    let difference = similar::TextDiff::from_lines(&*before, &*after);
    let shown = difference
        .unified_diff()
        .header(&name.to_string(), &name.to_string())
        .to_string();
    terminal::print_text(format_args!("{shown}"));
    FormatOutcome::Changed
}

/// Replaces a file at once, with its rights: a server that starts in between reads the one or the other.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let facts = std::fs::metadata(path)?;
    let written = write_beside(&beside, text, &facts).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // It may not have been created.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// A new file with the owner and the rights of the one that it will replace. The server may run as another user, and has
/// to read it at its next reload.
fn write_beside(path: &Path, text: &[u8], facts: &std::fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)?;
    file.write_all(text)?;
    // The owner first: changing it may take rights away. Only root can keep another's file another's.
    if facts.uid() != host::process::user_id() || facts.gid() != file.metadata()?.gid() {
        std::os::unix::fs::chown(path, Some(facts.uid()), Some(facts.gid()))?;
    }
    file.set_permissions(facts.permissions())?;
    file.sync_all()
}

/// Reports why a file could not be read or written, in the words of `-t`.
fn failed(file: &Path, error: &io::Error) -> FormatOutcome {
    let error = base::ErrnoText(error);
    terminal::report_line(format_args!("weir: {}{error}", file.display()));
    FormatOutcome::Failed
}
