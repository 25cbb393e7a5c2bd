//! `weir takeover`, `weir shadow` and `weir canary`: taking the place of a running nginx, live, after comparing with it, and giving it back.
//!
//! ```text
//! running        the server that is there: its command line, its compiled-in paths
//! private_copy   its configuration on private ports, writing nothing outside of a temporary directory
//! copy_process   a process that serves it
//! battery        requests that the configuration suggests; client sends them
//! comparison     to both servers; compare says what two responses differ in, in groups
//! replace        USR2, WINCH, probes, QUIT: one server in the place of the other, or back
//! shadow         requests of clients, from the access log, in place of the battery
//! canary         a share of the clients' connections, which the copy serves; access_log and its counts judge it
//! command        arguments and reports
//! ```
//!
//! Until the answer to the last question nothing is changed: the running server gets requests like any other client's, and its
//! files are only read.

mod access_log;
mod battery;
pub(crate) mod canary;
mod client;
mod command;
mod compare;
mod comparison;
mod copy_process;
mod private_copy;
mod replace;
mod running;
pub(crate) mod shadow;

use std::io::{BufRead as _, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use conf::DirectiveNode;
use host::error_log::Logger;
use host::process;
use host::signal::{Signal, SignalReader};
use rt::clock::read_clock;

use crate::check;
use crate::identity::ProgramIdentity;
use crate::load_configuration::{LoadedConfiguration, StartupSettings, load_from_disk};
use crate::replaced_build;
use crate::run;
use crate::startup_log::StartupLog;
use crate::terminal;

use command::TakeoverReport;
pub(crate) use command::{
    CanaryArguments, ShadowArguments, TakeoverArguments, parse, parse_canary, parse_shadow,
};
use compare::ShownValues;
use comparison::{Comparison, Probes, compare_all};
use copy_process::RunningCopy;
pub(crate) use private_copy::PrivateCopy;
use replace::{Replaced, Replacement};
use running::{RunningServer, ServerKind};

/// How many lines of messages about a configuration fit on a screen with the rest.
const SHOWN_LINES: usize = 18;

/// The exit code of a comparison that has found differences.
const DIFFERENT: i32 = 2;

/// Does what the arguments say. Returns the exit code.
pub(crate) fn run(arguments: &TakeoverArguments) -> i32 {
    let mut report = TakeoverReport::default();
    let result = match arguments.undo {
        true => undo(arguments, &mut report),
        false => take_over(arguments, &mut report),
    };
    // An error is part of the report, too: a program that reads JSON must not have to read standard error.
    let code = result.unwrap_or_else(|error| {
        if !arguments.json {
            terminal::report_line(format_args!("weir: {error}"));
            if report.replaced.is_none() {
                terminal::report_line(format_args!("nothing was changed"));
            }
        }
        report.error = Some(error);
        1
    });
    if arguments.json {
        terminal::print_line(format_args!("{}", report.json()));
    }
    code
}

/// The way from nginx to Weir.
fn take_over(arguments: &TakeoverArguments, report: &mut TakeoverReport) -> Result<i32, String> {
    let say = Progress {
        is_quiet: arguments.json,
    };
    let started = read_clock();
    let server = running::find(arguments.process)?;
    report.server = Some((server.master, server.version.clone()));
    if server.kind == ServerKind::Weir {
        return Err(format!(
            "process {} is Weir already; \"weir takeover --undo\" returns to {}",
            server.master, server.version
        ));
    }
    replace::repair(&server.program)?;
    say.line(&format!(
        "{} is running: process {}, {}",
        server.version,
        server.master,
        server.program.display()
    ));
    let prepared = PreparedTakeover::new(&server)?;
    report.findings = prepared.findings;
    let findings = match prepared.findings {
        0 => String::new(),
        count => format!("; \"weir check\" has {count} findings"),
    };
    let file = prepared.startup.paths.configuration.display();
    say.line(&format!("the configuration {file} is valid{findings}"));
    // From here on Ctrl-C must not leave anything behind.
    let signals = block_signals()?;
    let probes = Probes::new(&prepared)?;
    if arguments.requests > 0 {
        compare_with_copy(arguments, &server, &prepared, &signals, report)?;
        say.text(&report.comparison_text());
    }
    if arguments.dry_run {
        let is_same = report.groups.list.is_empty();
        return Ok(if is_same { 0 } else { DIFFERENT });
    }
    let question = format!("Replace {} by Weir now?", server.version);
    confirm(arguments, &question, &signals)?;
    // Without a comparison and a question, everything counts: from the command to serving.
    // Otherwise the report or the question took most of it, which says nothing about the replacement.
    let is_direct = arguments.requests == 0 && arguments.yes;
    let from = if is_direct { started } else { read_clock() };
    let replaced = replace_nginx(&server, &prepared, &probes)?;
    let milliseconds = time_since(from).as_millis();
    report.replaced = Some((replaced.master, milliseconds));
    say.line(&format!(
        "Weir serves: process {}, after {milliseconds} ms",
        replaced.master
    ));
    say.end_of_old(&server, replaced);
    say.line("to go back, live:  weir takeover --undo");
    if !running::is_weir(&server.program) {
        say.line(&format!(
            "{} is still {}: the next restart starts that; to stay, install the package weir-nginx",
            server.program.display(),
            server.version
        ));
    }
    Ok(0)
}

/// Sends the battery to the running server and to a copy beside it.
fn compare_with_copy(
    arguments: &TakeoverArguments,
    server: &RunningServer,
    prepared: &PreparedTakeover,
    signals: &SignalReader,
    report: &mut TakeoverReport,
) -> Result<(), String> {
    let nodes = prepared.nodes();
    let prefix = &prepared.startup.paths.prefix;
    let requests = battery::requests(nodes, prefix, arguments.requests);
    report.uncompared = battery::uncompared_listeners(nodes);
    // It ends with this function: the server that takes over must not meet it.
    let copy = RunningCopy::start(prepared.copy_settings(server)?, nodes, None)?;
    let mut comparison = Comparison::new(&copy, ShownValues::All);
    compare_all(&mut comparison, &requests, arguments.rate, signals)?;
    report.requests = comparison.count;
    report.groups = comparison.finish();
    Ok(())
}

/// Puts Weir in the place of nginx.
fn replace_nginx(
    server: &RunningServer,
    prepared: &PreparedTakeover,
    probes: &Probes,
) -> Result<Replaced, String> {
    // Where a package has put Weir under nginx's name, nothing has to stand in.
    let by = match running::is_weir(&server.program) {
        true => server.program.clone(),
        false => std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?,
    };
    // Before the new server starts, which reads it.
    replaced_build::record_takeover(&server.program, &server.build_text).map_err(|error| {
        format!(
            "the paths of {} cannot be recorded: {error}",
            server.version
        )
    })?;
    let replacement = Replacement {
        master: server.master,
        program: &server.program,
        by: &by,
        pid_path: &prepared.loaded.core.pid,
    };
    let replaced = replacement.run(|| probes.check());
    replaced.inspect_err(|_| replaced_build::forget_takeover(&server.program))
}

/// The way from Weir to nginx.
fn undo(arguments: &TakeoverArguments, report: &mut TakeoverReport) -> Result<i32, String> {
    let say = Progress {
        is_quiet: arguments.json,
    };
    let started = read_clock();
    let server = running::find(arguments.process)?;
    report.server = Some((server.master, server.version.clone()));
    if server.kind == ServerKind::Nginx {
        return Err(format!(
            "process {} is {} already",
            server.master, server.version
        ));
    }
    replace::repair(&server.program)?;
    let nginx = server.nginx_binary()?;
    say.line(&format!(
        "Weir is running in the place of {}: process {}",
        server.version, server.master
    ));
    // In the order of their cost: nginx's own test ends most failures before anything is asked of the server.
    test_with(&nginx, &server)?;
    let prepared = PreparedTakeover::new(&server)?;
    let probes = Probes::new(&prepared)?;
    if arguments.dry_run {
        say.line(&format!("{} accepts the configuration", server.version));
        return Ok(0);
    }
    let signals = block_signals()?;
    let question = format!("Return to {} now?", server.version);
    confirm(arguments, &question, &signals)?;
    let waited = if arguments.yes { started } else { read_clock() };
    let replacement = Replacement {
        master: server.master,
        program: &server.program,
        by: &nginx,
        pid_path: &prepared.loaded.core.pid,
    };
    let replaced = replacement.run(|| probes.check())?;
    let milliseconds = time_since(waited).as_millis();
    report.replaced = Some((replaced.master, milliseconds));
    replaced_build::forget_takeover(&server.program);
    say.line(&format!(
        "{} serves: process {}, after {milliseconds} ms",
        server.version, replaced.master
    ));
    say.end_of_old(&server, replaced);
    Ok(0)
}

/// Whether nginx itself accepts its configuration, which may have changed meanwhile.
fn test_with(nginx: &std::path::Path, server: &RunningServer) -> Result<(), String> {
    let output = std::process::Command::new(nginx)
        .args(["-t", "-q"])
        .args(server.arguments.iter().skip(1))
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", nginx.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{} does not accept the configuration:\n{}",
            server.version,
            one_screen(&String::from_utf8_lossy(&output.stderr))
        )),
    }
}

/// Makes the signals that end a command readable instead.
fn block_signals() -> Result<SignalReader, String> {
    SignalReader::block(&[Signal::Int, Signal::Term])
        .map_err(|error| format!("signalfd() failed: {error}"))
}

/// Lines for people, unless the report is for programs.
struct Progress {
    /// Standard output belongs to the JSON object.
    is_quiet: bool,
}

impl Progress {
    /// A line for people; JSON is printed at the end, as a whole.
    fn line(&self, text: &str) {
        self.text(&format!("{text}\n"));
    }

    /// What becomes of the old server.
    fn end_of_old(&self, server: &RunningServer, replaced: Replaced) {
        if !replaced.is_old_gone {
            let master = server.master;
            self.line(&format!("process {master} finishes its requests and exits"));
        }
    }

    /// Text that has its line ends, for people as well.
    fn text(&self, text: &str) {
        if !self.is_quiet {
            terminal::print_text(format_args!("{text}"));
        }
    }
}

/// Asks on a terminal. Without one, `--yes` is the answer.
fn confirm(
    arguments: &TakeoverArguments,
    question: &str,
    signals: &SignalReader,
) -> Result<(), String> {
    if arguments.yes {
        return Ok(());
    }
    let input = std::io::stdin();
    if !input.is_terminal() || arguments.json {
        return Err("without a terminal nothing is replaced unless --yes is given".to_owned());
    }
    terminal::report_text(format_args!("{question} [y/N] "));
    // The signals that end the command are blocked by now.
    let ready = process::wait_readable(&[input.as_fd(), signals.as_fd()], None);
    if ready.map_or(true, |ready| ready[1]) {
        return Err("interrupted".to_owned());
    }
    let mut line = String::new();
    let read = input.lock().read_line(&mut line);
    match read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err("not confirmed".to_owned()),
    }
}

/// A configuration that Weir can run in the place of the server.
struct PreparedTakeover {
    /// How nginx was started, as Weir reads it.
    startup: StartupSettings,
    /// What `-t` has built of it. Its tree is what the battery and the copy are made of.
    loaded: LoadedConfiguration,
    /// How many findings `weir check` has. They are not Weir's business here: nginx has the same weaknesses.
    findings: usize,
}

impl PreparedTakeover {
    /// Reads and checks the configuration of the running server, as `-t` would.
    fn new(server: &RunningServer) -> Result<PreparedTakeover, String> {
        let startup = settings(server, true)?;
        let loaded = match load_from_disk(&startup, None) {
            Ok(loaded) => loaded,
            Err(failure) => {
                let text = one_screen(&failure.0.text("nginx"));
                return Err(format!("Weir cannot run this configuration:\n{text}"));
            }
        };
        if !loaded.core.daemon || !loaded.core.master_process {
            return Err(format!(
                "process {} runs in the foreground (daemon or master_process is off): whatever has started it would take the \
                 exit of nginx for the end of the server, and nginx ignores USR2 then. Start Weir in its place instead",
                server.master
            ));
        }
        let log = Logger::default();
        // A takeover starts what it has tested, so that code in the configuration is tried, too.
        let tried = run::try_resources(&loaded, StartupLog::log_only(&log))
            .and_then(|()| crate::trial::run(&loaded));
        tried.map_err(|error| format!("Weir cannot run this configuration:\n{error}"))?;
        let messages = &loaded.messages;
        let prefix = &startup.paths.prefix;
        let findings = check::findings(&messages.nodes, &messages.sources, prefix).len();
        Ok(PreparedTakeover {
            startup,
            loaded,
            findings,
        })
    }

    /// The settings for a copy.
    fn copy_settings(&self, server: &RunningServer) -> Result<StartupSettings, String> {
        settings(server, false)
    }

    /// The directives of the configuration, with all includes in their places.
    fn nodes(&self) -> &[DirectiveNode] {
        &self.loaded.messages.nodes
    }
}

/// The settings with which the server was started, as Weir reads them under nginx's name.
fn settings(server: &RunningServer, is_test: bool) -> Result<StartupSettings, String> {
    let mut options = server.options.clone();
    options.test = is_test;
    let build = Some(server.build.clone());
    run::startup_in_place_of(ProgramIdentity::Nginx, &options, &server.arguments, build)
}

/// The first lines of messages.
fn one_screen(text: &str) -> String {
    let count = text.lines().count();
    let shown: Vec<&str> = text.lines().take(SHOWN_LINES).collect();
    let more = match count.checked_sub(SHOWN_LINES) {
        Some(more @ 1..) => format!("\n… and {more} more lines: \"weir -t\" shows them"),
        Some(0) | None => String::new(),
    };
    format!("{}{more}", shown.join("\n"))
}

/// How much time has passed.
fn time_since(start: Instant) -> Duration {
    read_clock().saturating_duration_since(start)
}
