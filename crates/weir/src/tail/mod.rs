//! `weir tail` and `weir top`: the requests of a running server, as they end.
//!
//! - [`record`]: one request; [`filter`]: which ones to show
//! - [`source`]: finds the server and its ring, and finds them again after an upgrade or a restart
//! - [`lines`]: how a request is shown
//! - [`top`]: sums over the last seconds; [`screen`]: the sums in a terminal
//!
//! The server writes into a ring and waits for nobody ([`host::request_ring`]); everything else happens here.

mod filter;
mod lines;
mod record;
mod screen;
mod source;
mod top;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use base::ErrnoText;
use host::error_log::Logger;
use host::request_ring::RingRefusal;
use lexopt::prelude::*;

use crate::arguments::NginxOptions;
use crate::command_hints::unexpected;
use crate::commands::{self, CommandRow};
use crate::identity::ProgramIdentity;
use crate::startup_log::StartupLog;
use crate::terminal;
use filter::RequestFilter;
use lines::{LineStyle, ShownRequest};
use record::TailRecord;
use source::RequestSource;

/// How often the ring is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The arguments of both commands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TailArguments {
    /// `-c`, `-p`: the server's configuration.
    options: NginxOptions,
    /// `--pid`: its pid file, or its number.
    pid: Option<OsString>,
    /// Which requests are wanted.
    filter: Option<String>,
    /// `--json`
    json: bool,
    /// Of `tail`: the whole ledger.
    ledger: bool,
    /// Of `tail`: `-g upstream`.
    by_upstream: bool,
    /// Of `tail`: end after this many requests.
    count: Option<u64>,
    /// Of `top`: print once.
    once: bool,
    /// Of `top`: over how many seconds.
    seconds: Option<u64>,
    /// Of `top`: `--by time`.
    by_time: bool,
}

/// Parses the arguments of `weir tail`.
pub(crate) fn parse_tail(parser: lexopt::Parser) -> Result<TailArguments, String> {
    parse(&commands::TAIL, parser)
}

/// Parses the arguments of `weir top`.
pub(crate) fn parse_top(parser: lexopt::Parser) -> Result<TailArguments, String> {
    parse(&commands::TOP, parser)
}

/// The options of both, each where it belongs.
fn parse(row: &CommandRow, mut parser: lexopt::Parser) -> Result<TailArguments, String> {
    let is_tail = row.name == "tail";
    let mut found = TailArguments::default();
    let mut words: Vec<String> = Vec::new();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('c') => found.options.configuration = Some(value_of(&mut parser)?.into()),
            Short('p') => found.options.prefix = Some(value_of(&mut parser)?.into()),
            Long("pid") => found.pid = Some(value_of(&mut parser)?),
            Long("json") => found.json = true,
            Short('l') | Long("ledger") if is_tail => found.ledger = true,
            Short('n') | Long("count") if is_tail => found.count = Some(number(&mut parser, 1)?),
            Short('g') | Long("group") if is_tail => {
                found.by_upstream = one_of(&mut parser, "-g", ["request", "upstream"])? == 1;
            }
            Long("once") if !is_tail => found.once = true,
            Long("seconds") if !is_tail => found.seconds = Some(number(&mut parser, 1)?),
            Long("by") if !is_tail => {
                found.by_time = one_of(&mut parser, "--by", ["rate", "time"])? == 1;
            }
            Value(word) => words.push(word.to_string_lossy().into_owned()),
            other => return Err(unexpected(row, other)),
        }
    }
    // Several words are one filter: a shell may have taken it apart.
    found.filter = (!words.is_empty()).then(|| words.join(" "));
    Ok(found)
}

/// The value of an option.
fn value_of(parser: &mut lexopt::Parser) -> Result<OsString, String> {
    parser.value().map_err(|error| error.to_string())
}

/// The value of an option that is a number.
fn number(parser: &mut lexopt::Parser, least: u64) -> Result<u64, String> {
    let text = value_of(parser)?;
    let text = text.to_string_lossy();
    let number = text.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("\"{text}\" is not a number from {least} on"))
}

/// The index of the word that is the value.
fn one_of<const N: usize>(
    parser: &mut lexopt::Parser,
    option: &str,
    words: [&str; N],
) -> Result<usize, String> {
    let text = value_of(parser)?;
    let text = text.to_string_lossy();
    let found = words.iter().position(|word| *word == text);
    found.ok_or_else(|| format!("{option} takes {}, not \"{text}\"", words.join(" or ")))
}

/// `weir tail`. Returns the exit code.
pub(crate) fn run_tail(arguments: &TailArguments, command_line: &[OsString]) -> i32 {
    let started = start("tail", arguments, command_line);
    let (mut source, filter) = match started {
        Ok(started) => started,
        Err(code) => return code,
    };
    let style = LineStyle {
        json: arguments.json,
        ledger: arguments.ledger,
        by_upstream: arguments.by_upstream,
        colour: !arguments.json && terminal::has_colours(),
    };
    let mut left = arguments.count.unwrap_or(u64::MAX);
    let mut batch = String::new();
    loop {
        source.read_all(&mut |record: &TailRecord| {
            let wanted = filter.as_ref().is_none_or(|filter| filter.is_match(record));
            if wanted && left > 0 {
                left -= 1;
                ShownRequest { record, style }.write(&mut batch);
            }
        });
        if !batch.is_empty() {
            terminal::print_text(format_args!("{batch}"));
            batch.clear();
        }
        report_news(&mut source);
        // After the last line has been printed.
        if left == 0 {
            return 0;
        }
        source::pause(POLL);
    }
}

/// `weir top`. Returns the exit code.
pub(crate) fn run_top(arguments: &TailArguments, command_line: &[OsString]) -> i32 {
    let started = start("top", arguments, command_line);
    let (mut source, filter) = match started {
        Ok(started) => started,
        Err(code) => return code,
    };
    let can_draw = host::terminal::is_interactive() && terminal::can_draw();
    // A pipe gets one picture: it could not erase the one before.
    let is_once = arguments.once || arguments.json || !can_draw;
    match is_once {
        true => top::print_once(&mut source, filter.as_ref(), arguments),
        false => screen::run(&mut source, filter.as_ref(), arguments),
    }
}

/// What both commands do first: parse the filter, find the server.
fn start(
    command: &str,
    arguments: &TailArguments,
    command_line: &[OsString],
) -> Result<(RequestSource, Option<RequestFilter>), i32> {
    let fail = |text: String| {
        terminal::report_line(format_args!("weir: {command}: {text}"));
        1
    };
    let text = arguments.filter.as_deref();
    let filter = text.map(|text| RequestFilter::parse(text).map_err(|error| error.show(text)));
    let filter = filter.transpose().map_err(fail)?;
    let place = server_place(arguments, command_line).ok_or(1)?;
    let source = RequestSource::connect(place)
        .map_err(|(number, refusal)| fail(refusal_text(command, number, refusal)))?;
    Ok((source, filter))
}

/// What names the server: a file with its number, or the number.
#[derive(Clone, Debug)]
pub(crate) enum ServerPlace {
    /// It is read again and again: after an upgrade it has another number.
    PidFile(PathBuf),
    /// This process and no other one.
    Number(u32),
}

/// Where the server's number is; a failure has been reported.
fn server_place(arguments: &TailArguments, command_line: &[OsString]) -> Option<ServerPlace> {
    if let Some(pid) = &arguments.pid {
        let number = pid.to_str().and_then(|text| text.parse().ok());
        return Some(match number {
            Some(number) => ServerPlace::Number(number),
            None => ServerPlace::PidFile(pid.into()),
        });
    }
    let program = ProgramIdentity::Weir;
    let startup = match crate::run::startup(program, &arguments.options, command_line) {
        Ok(startup) => startup,
        Err(error) => {
            terminal::report_line(format_args!("weir: [emerg] {error}"));
            return None;
        }
    };
    let log = Logger::default();
    let loaded = match crate::load_configuration::load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => {
            crate::run::report_failure(&startup, &arguments.options, &failure, &log);
            return None;
        }
    };
    // Says why, if there is no server.
    crate::running_master::master_of(&loaded, StartupLog::with_stderr(&log, program.program()))?;
    Some(ServerPlace::PidFile(loaded.core.pid.clone()))
}

/// Why the requests of a server cannot be shown, and what helps.
fn refusal_text(command: &str, number: Option<u32>, refusal: RingRefusal) -> String {
    let Some(number) = number else {
        return "no server is running: its pid file is missing or names no process".to_owned();
    };
    match refusal {
        RingRefusal::NoServer => format!(
            "process {number} does not answer\n  It is no Weir of this version, or it is in another network namespace (a \
             container): run the command there."
        ),
        RingRefusal::OtherUser(user) => format!(
            "process {number} belongs to {}: nobody else may see its requests\n  try \"sudo weir {command}\"",
            match user {
                0 => "root".to_owned(),
                user => format!("user {user} (and root)"),
            }
        ),
        RingRefusal::OtherVersion => format!(
            "process {number} is another version of Weir\n  use the binary that it was started from: /proc/{number}/exe"
        ),
        RingRefusal::Failed(error) => {
            format!("process {number} cannot be asked{}", ErrnoText(&error))
        }
    }
}

/// Says on standard error what happened to the connection: records that were lost, a server that has gone or come back.
fn report_news(source: &mut RequestSource) {
    for news in source.take_news() {
        terminal::report_line(format_args!("weir: {news}"));
    }
}
