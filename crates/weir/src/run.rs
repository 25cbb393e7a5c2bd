//! nginx's command line carried out: start, test, signal.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rt::error_log::{Attach, Errno, Level, LogFiles, Logger, Target};
use rt::file::modes;
use rt::process;
use rt::signal::{Signal, Signals};

use crate::check::{self, Check};
use crate::cli::{Options, Send};
use crate::identity::{Identity, build_text};
use crate::load::{Failure, Loaded, Startup, load_from_disk};
use crate::master::Master;
use crate::orphan::Orphan;
use crate::paths::{Ground, Paths};
use crate::prepare::{self, Opened, PidFile};
use crate::sockets::{self, Sockets};
use crate::upgrade::Other;
use crate::voice::Voice;
use crate::watchers::{Watch, Watchers};

/// Carries out nginx's options. The answer is the exit code.
pub(crate) fn run(identity: Identity, options: &Options, arguments: &[OsString]) -> i32 {
    if options.version {
        show_version(identity, options);
        if !options.test {
            return 0;
        }
    }
    let startup = match startup(identity, options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            eprintln!("{}: [emerg] {error}", identity.program());
            return 1;
        }
    };
    modes::narrow_umask();
    let log = early_log(&startup);
    let voice = Voice::starting(&log, identity.program());
    let mut loaded = match load_from_disk(&startup) {
        Ok(loaded) => loaded,
        Err(failure) => return refuse(&startup, options, &failure, &log),
    };
    if options.test && !options.quiet {
        let messages = &loaded.messages;
        let prefix = &startup.paths.prefix;
        let warnings = check::warnings(&messages.nodes, &messages.sources, prefix);
        loaded.messages.extend(warnings);
    }
    loaded.messages.print(identity.program());
    loaded.messages.log(&log);
    if options.test {
        return test(&startup, options, &loaded, voice);
    }
    if let Some(signal) = options.signal {
        return send(signal, &loaded, voice);
    }
    start(Arc::new(startup), loaded, log)
}

fn show_version(identity: Identity, options: &Options) {
    eprintln!("{}", identity.version_line());
    if options.help {
        eprint!("{}", crate::help::options_text(identity));
    }
    if options.configure {
        eprint!("{}", build_text(identity, crate::engines::knows));
    }
}

fn startup(
    identity: Identity,
    options: &Options,
    arguments: &[OsString],
) -> Result<Startup, String> {
    let ground = Ground {
        exists: &|path| path.exists(),
        writable: &|path| modes::could_make(path).is_ok(),
        variable: &|name| std::env::var_os(name),
        user: process::user_id(),
    };
    let mut paths = Paths::find(identity, options, &ground);
    paths
        .absolute()
        .map_err(|error| format!("getcwd() failed{}", Errno(&error)))?;
    Ok(Startup {
        identity,
        paths,
        globals: options.globals.clone(),
        testing: options.test,
        text: None,
        arguments: crate::load::joined(arguments.iter().map(OsString::as_os_str)),
        command: crate::upgrade::CommandLine::new(arguments),
        daemonized: false.into(),
    })
}

/// The log until the configuration names one. When it can not be opened, standard error has to do.
fn early_log(startup: &Startup) -> Logger {
    let Some(path) = &startup.paths.error_log else {
        return Logger::default();
    };
    let program = startup.identity.program();
    // It is made when it turns out that the configuration names no other, and never by a test.
    let waits = startup
        .paths
        .own
        .iter()
        .any(|own| path.parent() == Some(&own.path));
    if !path.exists() && (waits || startup.testing && modes::could_create(path).is_ok()) {
        return Logger::default();
    }
    match modes::append(path) {
        Ok((file, wrong)) => {
            if let Some(wrong) = wrong {
                eprintln!("{program}: [warn] log file \"{}\" {wrong}", path.display());
            }
            let files = LogFiles::default();
            files.attach(path, file.into(), Attach::Direct);
            Logger::default().with(Target::file(path, Level::Notice), &files)
        }
        Err(error) => {
            let error = Errno(&error);
            eprintln!(
                "{program}: [alert] could not open error log file: open() \"{}\" failed{error}",
                path.display()
            );
            Logger::default()
        }
    }
}

/// Says why a configuration is refused.
fn refuse(startup: &Startup, options: &Options, failure: &Failure, log: &Logger) -> i32 {
    let program = startup.identity.program();
    failure.0.print(program);
    failure.log(log);
    if options.test {
        eprintln!(
            "{program}: configuration file {} test failed",
            startup.paths.configuration.display()
        );
    }
    1
}

/// `-t` and `-T`: opens what would be opened, and closes it again.
fn test(startup: &Startup, options: &Options, loaded: &Loaded, voice: Voice<'_>) -> i32 {
    let program = startup.identity.program();
    let file = startup.paths.configuration.display();
    if !options.quiet {
        eprintln!("{program}: the configuration file {file} syntax is ok");
    }
    if let Err(error) = try_everything(loaded, voice) {
        voice.say(Level::Emerg, format_args!("{error}"));
        eprintln!("{program}: configuration file {file} test failed");
        return 1;
    }
    if !options.quiet {
        eprintln!("{program}: configuration file {file} test is successful");
    }
    if options.dump {
        dump(loaded);
    }
    0
}

fn try_everything(loaded: &Loaded, voice: Voice<'_>) -> Result<(), String> {
    prepare::test(loaded, voice)?;
    sockets::test(&prepare::listeners(loaded))?;
    crate::trial::run(loaded)
}

/// `weir check`. The answer is the exit code.
pub(crate) fn check(identity: Identity, check: &Check, arguments: &[OsString]) -> i32 {
    if let Some(code) = check::explain(check) {
        return code;
    }
    let startup = match startup(identity, &check.options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            eprintln!("{}: [emerg] {error}", identity.program());
            return 2;
        }
    };
    let messages = match load_from_disk(&startup) {
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

/// Prints every file that was read, each once.
fn dump(loaded: &Loaded) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    for source in loaded.messages.sources.unique_files() {
        let head = format!("# configuration file {}:\n", source.path.display());
        // A reader that goes away, such as `head`, ends the dump.
        let written = out
            .write_all(head.as_bytes())
            .and_then(|()| out.write_all(&source.text));
        if written.and_then(|()| out.write_all(b"\n")).is_err() {
            return;
        }
    }
}

/// The number in the pid file. That there is none was said.
fn master_of(loaded: &Loaded, voice: Voice<'_>) -> Option<u32> {
    let path = &loaded.core.pid;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let error = Errno(&error);
            voice.say(
                Level::Error,
                format_args!("open() \"{}\" failed{error}", path.display()),
            );
            voice.note(match error.0.kind() {
                ErrorKind::NotFound => "no server is running with this configuration",
                _ => "the file names the server's process; it cannot be read",
            });
            return None;
        }
    };
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    if number.is_none() {
        let text = text.trim();
        voice.say(
            Level::Error,
            format_args!("invalid PID number \"{text}\" in \"{}\"", path.display()),
        );
        voice.note("no server has written this file; it can be removed if none is running");
    }
    number
}

fn kill(master: u32, signal: Signal, voice: Voice<'_>) -> bool {
    let sent = process::kill(master, signal);
    if let Err(error) = &sent {
        let number = signal.number();
        voice.say(
            Level::Alert,
            format_args!("kill({master}, {number}) failed{}", Errno(error)),
        );
        voice.note(match error.kind() {
            ErrorKind::PermissionDenied => "the server belongs to another user",
            _ => "no server is running: the last one left its pid file",
        });
    }
    sent.is_ok()
}

/// `weir upgrade`: nginx's procedure in one step. The old binary is told to end only when the new one
/// serves; until then any failure leaves the server as it was. The answer is the exit code.
pub(crate) fn upgrade(identity: Identity, options: &Options, arguments: &[OsString]) -> i32 {
    let startup = match startup(identity, options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            eprintln!("{}: [emerg] {error}", identity.program());
            return 1;
        }
    };
    let log = Logger::default();
    let voice = Voice::starting(&log, identity.program());
    // Whatever is wrong with it, the new binary would refuse it too.
    let loaded = match load_from_disk(&startup) {
        Ok(loaded) => loaded,
        Err(failure) => return refuse(&startup, options, &failure, &log),
    };
    let Some(old) = master_of(&loaded, voice) else {
        return 1;
    };
    let Some(watch) = Watch::new(old) else {
        let text =
            "it is not a Weir process of this user; try the manual procedure (USR2, WINCH, QUIT)";
        voice.say(
            Level::Error,
            format_args!("process {old} does not answer: {text}"),
        );
        return 1;
    };
    if !kill(old, Signal::Usr2, voice) || report(watch, voice) != 0 {
        return 1;
    }
    let Some(new) = master_of(&loaded, voice).filter(|new| *new != old) else {
        let text = "the pid file does not name the new master process; both are serving";
        voice.say(Level::Error, format_args!("{text}"));
        return 1;
    };
    if !kill(old, Signal::Quit, voice) {
        return 1;
    }
    eprintln!(
        "process {old} hands its idle connections over to {new} and exits after its last request"
    );
    0
}

/// `-s`: signals the master that the pid file names.
fn send(signal: Send, loaded: &Loaded, voice: Voice<'_>) -> i32 {
    let Some(master) = master_of(loaded, voice) else {
        return 1;
    };
    // Before the signal, or the answer would be given to nobody.
    let watch = match signal {
        Send::Reload => Watch::new(master),
        Send::Stop | Send::Quit | Send::Reopen => None,
    };
    let signal = match signal {
        Send::Stop => Signal::Term,
        Send::Quit => Signal::Quit,
        Send::Reopen => Signal::Usr1,
        Send::Reload => Signal::Hup,
    };
    match kill(master, signal, voice) {
        true => watch.map_or(0, |watch| report(watch, voice)),
        false => 1,
    }
}

/// How long `-s reload` waits for the server's answer.
const RELOAD_PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the outcome of a reload, and says why if it was refused. The answer is the exit code.
fn report(watch: Watch, voice: Voice<'_>) -> i32 {
    match watch.outcome(RELOAD_PATIENCE) {
        Ok(Some(outcome)) => {
            eprint!("{}", outcome.lines);
            i32::from(!outcome.done)
        }
        Ok(None) => {
            let text = "the server did not report the result; see the error log";
            voice.say(Level::Warn, format_args!("{text}"));
            0
        }
        Err(error) => {
            voice.say(Level::Warn, format_args!("recv() failed{}", Errno(&error)));
            0
        }
    }
}

/// Opens everything and serves until a signal ends it. The answer is the exit code.
///
/// The pid file is written when every socket takes connections, so that who waits for it may connect.
pub(crate) fn start(startup: Arc<Startup>, loaded: Loaded, early: Logger) -> i32 {
    modes::narrow_umask();
    let voice = Voice::starting(&early, startup.identity.program());
    let left = crate::upgrade::inherited();
    let is_upgrade = left.is_some();
    let numbers = left.as_ref().map(|left| left.sockets.clone());
    let inherited = numbers
        .as_deref()
        .map(|numbers| Sockets::inherited(numbers, voice));
    let mut inherited = inherited.unwrap_or_default();
    let orphans = match !is_upgrade && startup.text.is_none() && loaded.core.master_process {
        true => take_over(&startup, &mut inherited, voice),
        false => Vec::new(),
    };
    let has_orphans = !orphans.is_empty();
    let other = left.and_then(|left| left.other);
    let opened = match prepare::open(&loaded, &inherited, voice) {
        Ok(opened) => opened,
        Err(error) => {
            voice.say(Level::Emerg, format_args!("{error}"));
            return 1;
        }
    };
    if let Some(numbers) = numbers {
        let text = format_args!("using inherited sockets from \"{numbers}\"");
        loaded.log.plain(Level::Notice, text);
    }
    for orphan in &orphans {
        let master = orphan.master;
        let text = format_args!(
            "taking over from the worker process of master process {master}, which is gone"
        );
        loaded.log.plain(Level::Notice, text);
    }
    // Sockets that this configuration does not want close here.
    drop(inherited);
    match enter(&startup, &loaded, &opened, is_upgrade) {
        Ok((signals, public)) => {
            // The configuration's own log is open; nothing must keep this file from being rotated.
            drop(early);
            serve(startup, loaded, opened, signals, public, (other, orphans))
        }
        Err(error) => {
            voice.say(Level::Emerg, format_args!("{error}"));
            if !is_upgrade && !has_orphans {
                let log = &loaded.log;
                opened
                    .sockets
                    .remove_files_missing_in(&Sockets::default(), log);
            }
            1
        }
    }
}

/// Finds the workers that a master which was killed has left, and takes their sockets.
fn take_over(startup: &Startup, sockets: &mut Sockets, voice: Voice<'_>) -> Vec<Orphan> {
    let mut orphans = crate::orphan::find(&startup.paths);
    for socket in orphans
        .iter_mut()
        .flat_map(|orphan| orphan.sockets.drain(..))
    {
        if let Err(error) = sockets.take(socket) {
            let error = Errno(&error);
            let text = "a socket of a worker process without a master cannot be used";
            voice.say(Level::Alert, format_args!("{text}{error}, ignored"));
        }
    }
    orphans
}

/// Becomes the process that serves: signals, background, pid file, standard error.
fn enter(
    startup: &Startup,
    loaded: &Loaded,
    opened: &Opened,
    is_upgrade: bool,
) -> Result<(Signals, Option<Public>), String> {
    // While somebody looks on, and before anything that would have to be undone.
    crate::trial::run(loaded)?;
    let signals = Signals::block(&Signal::ALL)
        .map_err(|error| format!("signalfd() failed{}", Errno(&error)))?;
    // A binary that replaces another stays its child, so that the other learns of its end.
    if is_upgrade {
        startup.daemonized.store(true, Ordering::Relaxed);
    } else if loaded.core.daemon {
        process::daemonize().map_err(|error| format!("fork() failed{}", Errno(&error)))?;
        startup.daemonized.store(true, Ordering::Relaxed);
    }
    // `weir serve` has a terminal in place of a pid file.
    let public = match &startup.text {
        Some(_) => None,
        None => {
            let watchers = match loaded.core.master_process {
                true => Watchers::new(),
                false => Watchers::none(),
            };
            // Whoever reads the file may signal at once, and want to know what comes of it.
            Some((PidFile::write(&loaded.core.pid)?, watchers))
        }
    };
    prepare::redirect_stderr(&loaded.log, &opened.logs);
    Ok((signals, public))
}

/// What other processes know the server by: the file with its number, and where it tells what came of signals.
type Public = (PidFile, Watchers);

fn serve(
    startup: Arc<Startup>,
    loaded: Loaded,
    opened: Opened,
    signals: Signals,
    public: Option<Public>,
    (other, orphans): (Option<Other>, Vec<Orphan>),
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
                .plain(Level::Notice, format_args!("start worker processes"));
            Master::new(startup, loaded, opened, public, signals, (other, orphans)).run()
        }
        public => {
            let pid_file = public.map(|(pid_file, _)| pid_file);
            crate::single::run(startup, &loaded, opened, pid_file, &signals)
        }
    }
}

/// The lines that open every log.
fn announce(startup: &Startup, log: &Logger) {
    log.plain(
        Level::Notice,
        format_args!("using the \"epoll\" event method"),
    );
    log.plain(Level::Notice, format_args!("{}", startup.identity.token()));
    log.plain(Level::Notice, format_args!("OS: {}", process::kernel()));
    let (soft, hard) = process::descriptor_limit();
    let number = |limit: Option<u64>| {
        limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
    };
    log.plain(
        Level::Notice,
        format_args!(
            "getrlimit(RLIMIT_NOFILE): {}:{}",
            number(soft),
            number(hard)
        ),
    );
}
