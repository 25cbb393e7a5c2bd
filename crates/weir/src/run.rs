//! nginx's command line: start, test, signal.
//!
//! ```text
//! start     load ─▶ open directories, logs, sockets ─▶ trial, background, pid file ─▶ master or single process
//! -t        load ─▶ whether all that could be opened
//! -s        load, which tells the pid file ─▶ kill(); with `reload` the outcome is awaited
//! upgrade   load ─▶ USR2 ─▶ the new binary serves ─▶ QUIT
//! ```
//!
//! Everything begins with loading the configuration, because it has the pid file's path. As with
//! nginx a configuration that is invalid stops even `-s stop`.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::ErrnoText;
use host::error_log::{ErrorLogTarget, LogFiles, LogLevel, LogWriteMode, Logger};
use host::process;
use host::signal::{Signal, SignalReader};
use rt::file::modes;

use crate::arguments::{NginxOptions, SignalOption};
use crate::check::{self, CheckArguments};
use crate::identity::{ProgramIdentity, build_text};
use crate::load_configuration::{
    LoadFailure, LoadedConfiguration, StartupSettings, load_from_disk,
};
use crate::master::MasterProcess;
use crate::modules;
use crate::orphan::OrphanWorker;
use crate::paths::{ServerPaths, SystemProbe};
use crate::prepare::{self, OpenedResources, PidFile};
use crate::reference;
use crate::replaced_build::ReplacedBuild;
use crate::running_master::{master_of, send_to_master};
use crate::service_manager::{self, ServiceStart};
use crate::sockets::{self, ListeningSockets};
use crate::startup_log::StartupLog;
use crate::terminal;
use crate::upgrade::{CommandLine, OtherMaster};
use crate::watchers::{MasterWatch, SignalWatchers};

/// Does what nginx's options say. Returns the exit code.
pub(crate) fn run(
    identity: ProgramIdentity,
    options: &NginxOptions,
    arguments: &[OsString],
) -> i32 {
    if options.version {
        show_version(identity, options, arguments);
        // As in nginx, `-v -t` prints the version and then tests.
        if !options.test {
            return 0;
        }
    }
    let startup = match startup(identity, options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            terminal::report_line(format_args!("{}: [emerg] {error}", identity.program()));
            return 1;
        }
    };
    // Before the first file is created: logs and sockets are not for everyone to write, whatever
    // the umask was.
    modes::narrow_umask();
    let log = early_log(&startup);
    let startup_log = StartupLog::with_stderr(&log, identity.program());
    let mut loaded = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => return report_failure(&startup, options, &failure, &log),
    };
    // A test looks for vulnerabilities, too. Its findings are warnings, so its exit code remains
    // nginx's.
    if options.test && !options.quiet {
        let messages = &loaded.messages;
        let prefix = &startup.paths.prefix;
        let warnings = check::warnings(&messages.nodes, &messages.sources, prefix);
        loaded.messages.extend(warnings);
    }
    loaded.messages.print(identity.program());
    loaded.messages.log(&log);
    if options.test {
        let code = test_configuration(&startup, options, &loaded, startup_log);
        // The process ends, and freeing a million small pieces first would be a fifth of its time.
        std::mem::forget(loaded);
        return code;
    }
    if let Some(signal) = options.signal {
        return send_signal(signal, &loaded, startup_log);
    }
    start(Arc::new(startup), loaded, log)
}

/// `-v`, `-V` and `-h`, on standard error as with nginx.
fn show_version(identity: ProgramIdentity, options: &NginxOptions, arguments: &[OsString]) {
    terminal::report_line(format_args!("{}", identity.version_line()));
    if options.help {
        terminal::report_text(format_args!("{}", crate::help::options_text(identity)));
    }
    if options.configure {
        let tables = reference::tables();
        let replaced = replaced_build(identity, arguments);
        terminal::report_text(format_args!(
            "{}",
            build_text(identity, replaced.as_ref(), |name| {
                modules::has_directive(&tables, name)
            })
        ));
    }
}

/// The nginx binary in whose place this program was put; `None` under its own name.
fn replaced_build(identity: ProgramIdentity, arguments: &[OsString]) -> Option<ReplacedBuild> {
    let is_nginx = identity == ProgramIdentity::Nginx;
    is_nginx.then(|| ReplacedBuild::read(CommandLine::new(arguments).program()))?
}

/// What the command line says, with all paths.
pub(crate) fn startup(
    identity: ProgramIdentity,
    options: &NginxOptions,
    arguments: &[OsString],
) -> Result<StartupSettings, String> {
    let replaced = replaced_build(identity, arguments);
    startup_in_place_of(identity, options, arguments, replaced)
}

/// Resolves the paths, in the place of an nginx binary if there is one. All become absolute, because a worker may have another
/// working directory.
pub(crate) fn startup_in_place_of(
    identity: ProgramIdentity,
    options: &NginxOptions,
    arguments: &[OsString],
    replaced: Option<ReplacedBuild>,
) -> Result<StartupSettings, String> {
    let ground = SystemProbe {
        exists: &|path| path.exists(),
        writable: &|path| modes::could_make(path).is_ok(),
        variable: &|name| std::env::var_os(name),
        user: process::user_id(),
        replaced,
    };
    let mut paths = ServerPaths::find(identity, options, &ground);
    paths
        .absolute()
        .map_err(|error| format!("getcwd() failed{}", ErrnoText(&error)))?;
    Ok(StartupSettings {
        identity,
        paths,
        globals: options.globals.clone(),
        testing: options.test,
        text: None,
        arguments: crate::load_configuration::joined(arguments.iter().map(OsString::as_os_str)),
        command: CommandLine::new(arguments),
        private: None,
        block_heads: Default::default(),
        daemonized: false.into(),
        service: Default::default(),
    })
}

/// The log until the configuration names one. If it cannot be opened, standard error is used.
fn early_log(startup: &StartupSettings) -> Logger {
    let Some(path) = &startup.paths.error_log else {
        return Logger::default();
    };
    let program = startup.identity.program();
    // It is created once the configuration turns out to name no other, and never by a test.
    let waits = startup
        .paths
        .own_folders
        .iter()
        .any(|own| path.parent() == Some(&own.path));
    if !path.exists() && (waits || startup.testing && modes::could_create(path).is_ok()) {
        return Logger::default();
    }
    match modes::open_to_append(path) {
        Ok((file, wrong)) => {
            if let Some(wrong) = wrong {
                terminal::report_line(format_args!(
                    "{program}: [warn] log file \"{}\" {wrong}",
                    path.display()
                ));
            }
            let files = LogFiles::default();
            files.attach(path, file.into(), LogWriteMode::Direct);
            Logger::default().with_target(ErrorLogTarget::file(path, LogLevel::Notice), &files)
        }
        Err(error) => {
            let error = ErrnoText(&error);
            terminal::report_line(format_args!(
                "{program}: [alert] could not open error log file: open() \"{}\" failed{error}",
                path.display()
            ));
            Logger::default()
        }
    }
}

/// Reports why a configuration is rejected.
pub(crate) fn report_failure(
    startup: &StartupSettings,
    options: &NginxOptions,
    failure: &LoadFailure,
    log: &Logger,
) -> i32 {
    let program = startup.identity.program();
    failure.0.print(program);
    failure.log(log);
    if options.test {
        terminal::report_line(format_args!(
            "{program}: configuration file {} test failed",
            startup.paths.configuration.display()
        ));
    }
    1
}

/// `-t` and `-T`: opens what a start would open, and closes it again.
fn test_configuration(
    startup: &StartupSettings,
    options: &NginxOptions,
    loaded: &LoadedConfiguration,
    startup_log: StartupLog<'_>,
) -> i32 {
    let program = startup.identity.program();
    let file = startup.paths.configuration.display();
    if !options.quiet {
        terminal::report_line(format_args!(
            "{program}: the configuration file {file} syntax is ok"
        ));
    }
    if let Err(error) = try_resources(loaded, startup_log) {
        startup_log.log(LogLevel::Emerg, format_args!("{error}"));
        terminal::report_line(format_args!(
            "{program}: configuration file {file} test failed"
        ));
        return 1;
    }
    if !options.quiet {
        terminal::report_line(format_args!(
            "{program}: configuration file {file} test is successful"
        ));
    }
    if options.dump {
        dump(loaded);
    }
    0
}

/// The tests of `-t` that need the system: files and sockets.
///
/// Code of the configuration does not run, as lua-nginx-module leaves `init_by_lua` out: who tests a
/// configuration need not trust it. Ingress controllers have tested what users of a cluster had
/// written (CVE-2025-1974). A start and a reload run it before they count ([`crate::trial`]).
pub(crate) fn try_resources(
    loaded: &LoadedConfiguration,
    startup_log: StartupLog<'_>,
) -> Result<(), String> {
    // In the order of a start, so that the first error is the one that a start would have.
    prepare::test_open(loaded, startup_log)?;
    sockets::test_addresses(&prepare::listeners(loaded))
}

/// `weir check`. Returns the exit code.
pub(crate) fn check(
    identity: ProgramIdentity,
    check: &CheckArguments,
    arguments: &[OsString],
) -> i32 {
    if let Some(code) = check::explain(check) {
        return code;
    }
    let startup = match startup(identity, &check.options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            terminal::report_line(format_args!("{}: [emerg] {error}", identity.program()));
            return 2;
        }
    };
    let messages = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded.messages,
        Err(failure) => failure.0,
    };
    let prefix = &startup.paths.prefix;
    let findings = check::findings(&messages.nodes, &messages.sources, prefix);
    let program = identity.program();
    check::run(
        check,
        &messages.errors(),
        &findings,
        &messages.sources,
        program,
    )
}

/// Prints every file that was read, once each.
fn dump(loaded: &LoadedConfiguration) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    for source in loaded.messages.sources.unique_files() {
        let head = format!("# configuration file {}:\n", source.path.display());
        // A reader that closes the pipe, such as `head`, ends the dump.
        let written = out
            .write_all(head.as_bytes())
            .and_then(|()| out.write_all(&source.text));
        if written.and_then(|()| out.write_all(b"\n")).is_err() {
            return;
        }
    }
}

/// `weir upgrade`: nginx's procedure (USR2, then QUIT) in one step. The old binary is told to quit
/// only when the new one serves; until then a failure leaves the server as it was. Returns the exit
/// code.
pub(crate) fn upgrade(
    identity: ProgramIdentity,
    options: &NginxOptions,
    arguments: &[OsString],
) -> i32 {
    let startup = match startup(identity, options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            terminal::report_line(format_args!("{}: [emerg] {error}", identity.program()));
            return 1;
        }
    };
    let log = Logger::default();
    let startup_log = StartupLog::with_stderr(&log, identity.program());
    // The new binary would reject it, too.
    let loaded = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => return report_failure(&startup, options, &failure, &log),
    };
    let Some(old) = master_of(&loaded, startup_log) else {
        return 1;
    };
    // Before USR2: without a way to hear the outcome, the old server would have to be trusted blindly with the next
    // step.
    let Some(watch) = MasterWatch::new(old) else {
        let text =
            "it is not a Weir process of this user; try the manual procedure (USR2, WINCH, QUIT)";
        startup_log.log(
            LogLevel::Error,
            format_args!("process {old} does not answer: {text}"),
        );
        return 1;
    };
    if !send_to_master(old, Signal::Usr2, startup_log) || report_outcome(watch, startup_log) != 0 {
        return 1;
    }
    let Some(new) = master_of(&loaded, startup_log).filter(|new| *new != old) else {
        let text = "the pid file does not name the new master process; both are serving";
        startup_log.log(LogLevel::Error, format_args!("{text}"));
        return 1;
    };
    if !send_to_master(old, Signal::Quit, startup_log) {
        return 1;
    }
    terminal::report_line(format_args!(
        "process {old} hands its idle connections over to {new} and exits after its last request"
    ));
    0
}

/// `-s`: sends a signal to the master that the pid file names.
fn send_signal(
    signal: SignalOption,
    loaded: &LoadedConfiguration,
    startup_log: StartupLog<'_>,
) -> i32 {
    let Some(master) = master_of(loaded, startup_log) else {
        return 1;
    };
    // Before the signal: the answer must not get lost.
    let watch = match signal {
        SignalOption::Reload => MasterWatch::new(master),
        SignalOption::Stop | SignalOption::Quit | SignalOption::Reopen => None,
    };
    // nginx's mapping, on which service files and scripts rely.
    let signal = match signal {
        SignalOption::Stop => Signal::Term,
        SignalOption::Quit => Signal::Quit,
        SignalOption::Reopen => Signal::Usr1,
        SignalOption::Reload => Signal::Hup,
    };
    match send_to_master(master, signal, startup_log) {
        true => watch.map_or(0, |watch| report_outcome(watch, startup_log)),
        false => 1,
    }
}

/// How long `-s reload` waits for the server's answer.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for the outcome of a reload, and prints why it was rejected. Returns the exit code.
fn report_outcome(watch: MasterWatch, startup_log: StartupLog<'_>) -> i32 {
    match watch.outcome(RELOAD_TIMEOUT) {
        Ok(Some(outcome)) => {
            terminal::report_text(format_args!("{}", outcome.lines));
            i32::from(!outcome.done)
        }
        // Not an error: the signal was delivered, and a slow reload may still succeed.
        Ok(None) => {
            let text = "the server did not report the result; see the error log";
            startup_log.log(LogLevel::Warn, format_args!("{text}"));
            0
        }
        Err(error) => {
            startup_log.log(
                LogLevel::Warn,
                format_args!("recv() failed{}", ErrnoText(&error)),
            );
            0
        }
    }
}

/// Opens everything and serves until a signal ends it. Returns the exit code.
///
/// The pid file is written once every socket accepts connections, so that a script which waits for
/// it can connect.
pub(crate) fn start(
    startup: Arc<StartupSettings>,
    loaded: LoadedConfiguration,
    early: Logger,
) -> i32 {
    modes::narrow_umask();
    let startup_log = StartupLog::with_stderr(&early, startup.identity.program());
    let left = crate::upgrade::inherited();
    let is_upgrade = left.is_some();
    let numbers = left.as_ref().map(|left| left.sockets.clone());
    let inherited = numbers
        .as_deref()
        .map(|numbers| ListeningSockets::inherited(numbers, startup_log));
    let mut inherited = inherited.unwrap_or_default();
    let mut passed = service_manager::passed_sockets();
    if let Some(private) = &startup.private {
        passed.append(&mut private.take_sockets());
    }
    inherit_from_manager(passed, &mut inherited, startup_log);
    // The first and only time that it is set.
    let _ = startup
        .service
        .set(ServiceStart::new(is_upgrade, &inherited));
    // An upgrade has its predecessor's sockets already, and `weir serve` has no predecessor.
    let is_public = startup.text.is_none() && startup.private.is_none();
    let orphans = match !is_upgrade && is_public && loaded.core.master_process {
        true => take_over(&startup, &mut inherited, startup_log),
        false => Vec::new(),
    };
    let has_orphans = !orphans.is_empty();
    let other = left.and_then(|left| left.other);
    // Before anything listens: a client that sees the server listen may send it a signal at once, and
    // that must be a clean end.
    let signals = SignalReader::block(&Signal::ALL)
        .map_err(|error| format!("signalfd() failed{}", ErrnoText(&error)));
    let opened = signals.and_then(|signals| {
        prepare::open(&loaded, &inherited, startup_log).map(|opened| (signals, opened))
    });
    let (signals, opened) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            startup_log.log(LogLevel::Emerg, format_args!("{error}"));
            return 1;
        }
    };
    if let Some(numbers) = numbers {
        let text = format_args!("using inherited sockets from \"{numbers}\"");
        loaded.log.log_plain(LogLevel::Notice, text);
    }
    for orphan in &orphans {
        let master = orphan.master;
        let text = format_args!(
            "taking over from the worker process of master process {master}, which is gone"
        );
        loaded.log.log_plain(LogLevel::Notice, text);
    }
    // Sockets that this configuration does not use are closed here.
    drop(inherited);
    match become_server(&startup, &loaded, &opened, is_upgrade) {
        Ok(public) => {
            // The configuration's log is open; this file must not be kept from being rotated.
            drop(early);
            serve(startup, loaded, opened, signals, public, (other, orphans))
        }
        Err(error) => {
            startup_log.log(LogLevel::Emerg, format_args!("{error}"));
            // The files of unix sockets that this process has created. With another master or an
            // orphan they are in use.
            if !is_upgrade && !has_orphans {
                let log = &loaded.log;
                opened
                    .sockets
                    .remove_files_missing_in(&ListeningSockets::default(), log);
            }
            1
        }
    }
}

/// Adds the sockets of socket units, and those that were stored while the unit was restarted.
fn inherit_from_manager(
    passed: Vec<OwnedFd>,
    sockets: &mut ListeningSockets,
    startup_log: StartupLog<'_>,
) {
    for socket in passed {
        if let Err(error) = sockets.add_inherited(socket) {
            let error = ErrnoText(&error);
            let text = "a socket of the service manager cannot be used";
            startup_log.log(LogLevel::Warn, format_args!("{text}{error}, ignored"));
        }
    }
}

/// Finds the workers of a master that was killed, and takes over their sockets.
fn take_over(
    startup: &StartupSettings,
    sockets: &mut ListeningSockets,
    startup_log: StartupLog<'_>,
) -> Vec<OrphanWorker> {
    let mut orphans = crate::orphan::find(&startup.paths);
    for socket in orphans
        .iter_mut()
        .flat_map(|orphan| orphan.sockets.drain(..))
    {
        if let Err(error) = sockets.add_inherited(socket) {
            let error = ErrnoText(&error);
            let text = "a socket of a worker process without a master cannot be used";
            startup_log.log(LogLevel::Alert, format_args!("{text}{error}, ignored"));
        }
    }
    orphans
}

/// Becomes the serving process: background, pid file, standard error.
fn become_server(
    startup: &StartupSettings,
    loaded: &LoadedConfiguration,
    opened: &OpenedResources,
    is_upgrade: bool,
) -> Result<Option<PidAndWatchers>, String> {
    // While a user can still see the message, and before anything that would have to be undone.
    crate::trial::run(loaded)?;
    // A binary that replaces another one stays its child, so that the old one learns of its exit.
    if is_upgrade {
        startup.daemonized.store(true, Ordering::Relaxed);
    } else if loaded.core.daemon {
        process::daemonize().map_err(|error| format!("fork() failed{}", ErrnoText(&error)))?;
        startup.daemonized.store(true, Ordering::Relaxed);
    }
    // `weir serve` has a terminal and needs no pid file.
    let public = match &startup.text {
        Some(_) => None,
        None => {
            let watchers = match loaded.core.master_process {
                true => SignalWatchers::new(),
                false => SignalWatchers::none(),
            };
            // A process that reads the file may send a signal at once and wait for its outcome, so
            // the watchers' socket comes first.
            Some((PidFile::write(&loaded.core.pid)?, watchers))
        }
    };
    prepare::redirect_stderr(&loaded.log, &opened.logs);
    // From here on messages are for the logs, not for a user at a terminal.
    host::error_log::set_json(loaded.core.log_is_json);
    Ok(public)
}

/// How other processes find the server: the pid file, and the socket on which outcomes are
/// reported.
type PidAndWatchers = (PidFile, SignalWatchers);

/// Runs as master, or as a single process.
fn serve(
    startup: Arc<StartupSettings>,
    loaded: LoadedConfiguration,
    opened: OpenedResources,
    signals: SignalReader,
    public: Option<PidAndWatchers>,
    (other, orphans): (Option<OtherMaster>, Vec<OrphanWorker>),
) -> i32 {
    announce(&startup, &loaded.log);
    match public {
        Some(public) if loaded.core.master_process => {
            process::set_title(&format!(
                "{}: master process {}",
                startup.identity.program(),
                startup.arguments
            ));
            loaded
                .log
                .log_plain(LogLevel::Notice, format_args!("start worker processes"));
            MasterProcess::new(startup, loaded, opened, public, signals, (other, orphans)).run()
        }
        public => {
            let pid_file = public.map(|(pid_file, _)| pid_file);
            crate::single_process::run(startup, &loaded, opened, pid_file, &signals)
        }
    }
}

/// The first lines of every error log, as nginx writes them.
fn announce(startup: &StartupSettings, log: &Logger) {
    log.log_plain(
        LogLevel::Notice,
        format_args!("using the \"epoll\" event method"),
    );
    log.log_plain(
        LogLevel::Notice,
        format_args!("{}", startup.identity.token()),
    );
    log.log_plain(LogLevel::Notice, format_args!("OS: {}", process::kernel()));
    let (soft, hard) = process::descriptor_limit();
    let number = |limit: Option<u64>| {
        limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
    };
    log.log_plain(
        LogLevel::Notice,
        format_args!(
            "getrlimit(RLIMIT_NOFILE): {}:{}",
            number(soft),
            number(hard)
        ),
    );
}
