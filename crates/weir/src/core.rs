//! The directives of the main context: the processes, the error log, and the blocks of the engines.
//!
//! ```nginx
//! user www-data;
//! worker_processes auto;
//! error_log /var/log/weir/error.log notice;
//! events { worker_connections 1024; }
//! http { … }
//! ```
//!
//! `events` has a table of its own ([`crate::events`]); what stands in `http` belongs to the engine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::{
    Arity, Confs, Diagnostic, Directive, Level, Line, MAIN, Repeat, Setter, Severity, Table,
};
use rt::engine::{Configuration, Main, ThreadPool};
use rt::error_log::{LogFiles, Logger, MainLog, Target};
use rt::process::{self, User};

use crate::affinity::Affinity;
use crate::events::Events;
use crate::load::Context;
use crate::modules::{self, Loadable};
use crate::sandbox::{self, Use};

/// The user that a worker becomes when the configuration names none and the master is root.
const DEFAULT_USER: &str = "nobody";
/// The group that goes with it: Debian's name, then everybody else's.
const DEFAULT_GROUPS: [&str; 2] = ["nogroup", "nobody"];
/// Loops beyond this are a typing error, not a machine.
const MAX_WORKER_PROCESSES: i64 = 4096;
const MAX_POOL_THREADS: i64 = 4096;

/// What the main context says.
#[derive(Clone, Default)]
pub(crate) struct Core {
    /// Go to the background.
    pub(crate) daemon: bool,
    /// Have a master and a worker, or one process for both.
    pub(crate) master_process: bool,
    /// The pid file.
    pub(crate) pid: PathBuf,
    /// The worker's user; `None` when nothing is to change.
    pub(crate) user: Option<User>,
    /// How many loops.
    pub(crate) worker_processes: usize,
    /// Where they run.
    pub(crate) affinity: Affinity,
    /// The limit of open descriptors.
    pub(crate) descriptors: Option<u64>,
    /// The limit of a core dump in bytes.
    pub(crate) core_size: Option<u64>,
    /// The worker's priority.
    pub(crate) priority: i32,
    /// The longest graceful stop; zero is without end.
    pub(crate) shutdown_timeout: Duration,
    /// Variables that the worker keeps, with new values for some.
    environment: Vec<(OsString, Option<OsString>)>,
    /// The worker gives up what it does not need.
    pub(crate) sandbox: bool,
    /// What it keeps besides.
    pub(crate) sandbox_paths: Vec<(Use, PathBuf)>,
    /// The worker's current folder.
    pub(crate) working_directory: Option<PathBuf>,
    /// The error log.
    pub(crate) log: Logger,
    /// In the order of the file; `default` is here only if the file has it.
    thread_pools: Vec<ThreadPool>,
    events: Option<Events>,
    /// A message for each `load_module` of a module that is not known.
    unknown_modules: Vec<Diagnostic>,
    /// They are warnings.
    unknown_modules_pass: bool,
    /// What the engines' blocks became.
    pub(crate) engines: Vec<Arc<dyn Configuration>>,
}

impl Core {
    /// The environment of a worker: `TZ` and what `env` lines name, nothing else.
    pub(crate) fn worker_environment(&self) -> Vec<(OsString, OsString)> {
        let wanted = self.environment.iter().cloned();
        wanted
            .filter_map(|(name, value)| {
                Some((name.clone(), value.or_else(|| std::env::var_os(name))?))
            })
            .collect()
    }

    /// Can a worker of `other` go on under this configuration? What a process has given up or has set
    /// for good needs a new one.
    pub(crate) fn same_process(&self, other: &Core) -> bool {
        self.user == other.user
            && self.affinity == other.affinity
            && self.descriptors == other.descriptors
            && self.core_size == other.core_size
            && self.priority == other.priority
            && self.environment == other.environment
            && self.working_directory == other.working_directory
            && self.thread_pools == other.thread_pools
    }

    /// From when on a turn of a loop is slow.
    pub(crate) fn slow_turn(&self) -> Duration {
        self.events
            .as_ref()
            .map_or(Duration::ZERO, |events| events.slow_turn)
    }

    /// The settings that engines see.
    pub(crate) fn main(&self, context: &Context, prefix: PathBuf) -> Main {
        let events = self.events.clone().unwrap_or_default();
        let mut thread_pools = self.thread_pools.clone();
        if !thread_pools.iter().any(|pool| pool.name == "default") {
            thread_pools.push(ThreadPool::default());
        }
        Main {
            program: context.program,
            version: context.version,
            prefix,
            worker_processes: self.worker_processes,
            worker_connections: usize::try_from(events.connections).unwrap_or(usize::MAX),
            multi_accept: events.multi_accept,
            user: self.user.clone(),
            thread_pools,
            debug_connections: events.debug_connections,
            debug_unix_connections: events.debug_unix_connections,
            shutdown_timeout: self.shutdown_timeout,
            testing: context.testing,
        }
    }
}

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<Core>,
) -> Directive<Core> {
    Directive {
        name,
        syntax,
        default,
        contexts: MAIN,
        since: "0.1",
        doc,
        set,
    }
}

/// The rows.
pub(crate) static DIRECTIVES: Table<Core> = Table::<Core>::new(&[
    row(
        "daemon",
        "on | off",
        Some("on"),
        "Whether to run in the background, as a daemon.",
        Setter::Flag(|core| &mut core.daemon),
    ),
    row(
        "master_process",
        "on | off",
        Some("on"),
        "Whether a privileged master process supervises a worker process. `off` runs everything in one process, \
         without changing the user: for debugging.",
        Setter::Flag(|core| &mut core.master_process),
    ),
    row(
        "pid",
        "file",
        None,
        "The file for the process ID of the master. `-s` uses it to find the server.",
        Setter::Path(conf::Access::Opened, |core| &mut core.pid),
    ),
    row(
        "lock_file",
        "file",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "the event loops of one process need no lock file"),
    ),
    row(
        "user",
        "user [group]",
        None,
        "The user and group of the worker process. The default group is that of the user's name. Only a master that \
         runs as root can change the user.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, set_user),
    ),
    row(
        "worker_processes",
        "number | auto",
        Some("1"),
        "The number of event loops, each a thread of the worker process. `auto` is one per processor.",
        Setter::Custom(Arity::ONE, Repeat::Once, set_worker_processes),
    ),
    row(
        "worker_cpu_affinity",
        "mask ... | auto [mask]",
        None,
        "Binds each event loop to a set of processors. `auto` binds each to a processor of its own.",
        Setter::Custom(Arity::at_least(1), Repeat::Once, set_affinity),
    ),
    row(
        "worker_priority",
        "number",
        Some("0"),
        "The scheduling priority of the worker process, from -20 (highest) to 20.",
        Setter::Custom(Arity::ONE, Repeat::Once, set_priority),
    ),
    row(
        "worker_rlimit_nofile",
        "number",
        None,
        "The limit on open files (`RLIMIT_NOFILE`) of the worker process. By default, the highest that the system \
         grants.",
        Setter::Custom(Arity::ONE, Repeat::Once, |core, line| {
            core.descriptors = Some(line.number(0, 0, i64::MAX)?.unsigned_abs());
            Ok(())
        }),
    ),
    row(
        "worker_rlimit_core",
        "size",
        None,
        "The maximum size of a core dump of the worker process. Without this directive, a worker that has changed its \
         user leaves no core dump, and other programs of that user cannot read its memory, including its keys.",
        Setter::Custom(Arity::ONE, Repeat::Once, |core, line| {
            core.core_size = Some(line.offset(0)?.unsigned_abs());
            Ok(())
        }),
    ),
    row(
        "worker_shutdown_timeout",
        "time",
        None,
        "The timeout of a graceful shutdown, after which remaining connections are closed.",
        Setter::Millis(|core| &mut core.shutdown_timeout),
    ),
    row(
        "working_directory",
        "directory",
        None,
        "The working directory of the worker process, where core dumps are written. The worker must have write access \
         to it.",
        Setter::Custom(Arity::ONE, Repeat::Once, |core, line| {
            core.working_directory = Some(line.prefix_path(conf::Access::Opened, line.arg(0)));
            Ok(())
        }),
    ),
    row(
        "worker_sandbox",
        "on | off",
        Some("off"),
        "Whether the worker process drops the capabilities, system calls and file access that the configuration does \
         not need. Denied operations are logged. A reload that needs more replaces the worker; idle connections are \
         handed to the new one.",
        Setter::Flag(|core| &mut core.sandbox),
    ),
    row(
        "worker_sandbox_path",
        "read | write | execute path ...",
        None,
        "Files and directories that the worker may access in its sandbox although no other directive names them, such \
         as for Lua code that opens files or runs programs.",
        Setter::Custom(sandbox::ARITY, Repeat::Many, |core, line| {
            core.sandbox_paths.extend(sandbox::read_path(line)?);
            Ok(())
        }),
    ),
    row(
        "env",
        "variable[=value]",
        Some("TZ"),
        "An environment variable that the worker keeps or, with a value, gets. All others are removed.",
        Setter::Custom(Arity::ONE, Repeat::Many, set_environment),
    ),
    row(
        "error_log",
        "file | stderr | syslog:server=address[,parameter=value] | memory:size [level]",
        None,
        "Where to log errors, and the minimum level: `debug`, `info`, `notice`, `warn`, `error` (the default), `crit`, \
         `alert` or `emerg`. Several lines write several logs.",
        Setter::Custom(Arity::at_least(1), Repeat::Many, set_error_log),
    ),
    row(
        "thread_pool",
        "name threads=number [max_queue=number]",
        Some("default threads=32 max_queue=65536"),
        "Defines a thread pool for file operations that may block. When `max_queue` operations are queued, further \
         requests wait for a free place.",
        Setter::Custom(Arity::between(1, 3), Repeat::Many, set_thread_pool),
    ),
    row(
        "load_module",
        "file",
        None,
        "Accepted for modules that are built in and, with a warning, for modules of nginx and Debian that have no \
         effect unless their directives are used. Weir cannot load dynamic modules: any other module is an error, or \
         what `load_module_unknown` says.",
        Setter::Custom(Arity::ONE, Repeat::Many, set_load_module),
    ),
    row(
        "load_module_unknown",
        "error | warn",
        Some("error"),
        "How to treat `load_module` of an unknown module: as an error, because some modules inspect every request \
         without any directive, and a server without them would admit what they reject; or as a warning.",
        Setter::Word(&["error", "warn"], |core, i| core.unknown_modules_pass = i == 1),
    ),
    row(
        "timer_resolution",
        "interval",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "the event loop reads the clock once per iteration"),
    ),
    row(
        "pcre_jit",
        "on | off",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "regular expressions are always JIT-compiled where the platform supports it"),
    ),
    row(
        "debug_points",
        "abort | stop",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "there are no debug points"),
    ),
    row(
        "ssl_object_cache_inheritable",
        "on | off",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "every reload reads certificates and keys anew"),
    ),
    row(
        "ssl_engine",
        "device",
        None,
        "Rejected: OpenSSL engines do not exist in Weir.",
        Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
            let message = format!("ENGINE_by_id(\"{}\") failed", line.text(0));
            Err(line.error_at(0, message).note("Weir does not use OpenSSL, so there are no engines; remove this line"))
        }),
    ),
    row(
        "events",
        "{ ... }",
        None,
        "Settings for handling connections. Required in every configuration, even if empty.",
        Setter::Block(Arity::NONE, Repeat::Once, |core, line| {
            core.events = Some(Events::read(line)?);
            Ok(())
        }),
    ),
    row(
        "http",
        "{ ... }",
        None,
        "Settings of the HTTP server.",
        Setter::Deferred(Arity::NONE, |line, confs| set_engine(line, confs, crate::engines::http)),
    ),
    row(
        "stream",
        "{ ... }",
        None,
        "Settings of the TCP and UDP server.",
        Setter::Deferred(Arity::NONE, |line, confs| set_engine(line, confs, crate::engines::stream)),
    ),
])
.finish(finish);

fn set_user(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    if !process::is_root() {
        line.warn(
            "the \"user\" directive makes sense only if the master process runs with super-user privileges, ignored",
        );
        return Ok(());
    }
    let name = line.text(0).to_string();
    let group = line
        .get(1)
        .map_or_else(|| name.clone(), |word| word.text.to_string());
    core.user = Some(process::lookup_user(&name, &group).map_err(|error| {
        let is_user = error.starts_with("getpwnam");
        let what = if is_user { "user" } else { "group" };
        let name = if is_user { &name } else { &group };
        line.error(error)
            .note(format!("this system has no {what} \"{name}\""))
    })?);
    Ok(())
}

fn set_worker_processes(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    if line.arg(0).is("auto") {
        core.worker_processes = process::processors();
        return Ok(());
    }
    let number = conf::parse::number(line.text(0))
        .filter(|number| (1..=MAX_WORKER_PROCESSES).contains(number));
    let number = number.and_then(|number| usize::try_from(number).ok());
    core.worker_processes = number.ok_or_else(|| line.directive_error_at(0, "invalid value"))?;
    Ok(())
}

fn words<'a>(line: &Line<'a, '_>) -> Vec<&'a [u8]> {
    line.args()
        .iter()
        .map(|word| word.text.as_slice())
        .collect()
}

fn set_affinity(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    core.affinity =
        Affinity::parse(&words(line), process::processors()).map_err(|error| line.error(error))?;
    Ok(())
}

fn set_priority(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    let text = std::str::from_utf8(line.text(0)).ok();
    let number = text.and_then(|text| text.parse().ok());
    core.priority = number.ok_or_else(|| line.directive_error_at(0, "invalid number"))?;
    Ok(())
}

fn set_environment(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    use std::os::unix::ffi::OsStringExt as _;
    let text = line.text(0);
    let (name, value) = match text.iter().position(|byte| *byte == b'=') {
        Some(sign) => (
            &text[..sign],
            Some(OsString::from_vec(text[sign + 1..].to_vec())),
        ),
        None => (text, None),
    };
    if name.is_empty() || text.contains(&0) {
        return Err(line.invalid_parameter(0));
    }
    core.environment
        .push((OsString::from_vec(name.to_vec()), value));
    Ok(())
}

fn set_error_log(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    let target = Target::parse(
        &words(line),
        &line.level.build.in_prefix(conf::Access::Opened, ""),
    )
    .map_err(|error| line.error(error))?;
    core.log = core.log.with(target, line.shared::<LogFiles>());
    Ok(())
}

fn set_thread_pool(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.text(0).to_string();
    if line.is_default() {
        // Core::main adds it when no line of the file names it.
        return Ok(());
    }
    if core.thread_pools.iter().any(|pool| pool.name == name) {
        return Err(line.error(format!("duplicate thread pool \"{name}\"")));
    }
    let mut pool = ThreadPool {
        name,
        threads: 0,
        ..ThreadPool::default()
    };
    for i in 1..line.args().len() {
        let text = line.text(i);
        if let Some(number) = conf::parse::parameter(text, "threads") {
            pool.threads = bounded(number, 1)
                .ok_or_else(|| line.error_at(i, format!("invalid threads value \"{text}\"")))?;
        } else if let Some(number) = conf::parse::parameter(text, "max_queue") {
            pool.max_queue = bounded(number, 0)
                .ok_or_else(|| line.error_at(i, format!("invalid max_queue value \"{text}\"")))?;
        } else {
            return Err(line.invalid_parameter(i));
        }
    }
    if pool.threads == 0 {
        let name = &pool.name;
        return Err(line.error(format!(
            "\"threads\" parameter is missing in thread pool \"{name}\""
        )));
    }
    core.thread_pools.push(pool);
    Ok(())
}

/// Reads a count; `least` is the smallest that makes sense.
fn bounded(text: &[u8], least: i64) -> Option<usize> {
    let number = conf::parse::number(text).filter(|number| *number >= least)?;
    usize::try_from(number.min(MAX_POOL_THREADS.max(i64::from(i32::MAX)))).ok()
}

fn set_load_module(core: &mut Core, line: &mut Line) -> Result<(), Diagnostic> {
    let path = PathBuf::from(line.text(0).to_string());
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    match modules::judge(&name) {
        Loadable::BuiltIn => {}
        Loadable::Idle => {
            let message = format!("module \"{name}\" is not available; its directives are errors");
            let mut warning = line.error_at(0, message);
            warning.severity = Severity::Warn;
            line.level.report(warning);
        }
        Loadable::Unknown => {
            let error = line.error_at(0, format!("module \"{name}\" is not available"));
            core.unknown_modules.push(error.note(
                "Weir cannot load dynamic modules; remove this line if you use none of its directives and it does \
                 nothing without them, or add \"load_module_unknown warn;\"",
            ));
        }
    }
    Ok(())
}

/// Builds an engine's block, when everything else of the main context is known.
fn set_engine(
    line: &mut Line,
    confs: &mut Confs,
    configure: fn(&mut Line) -> Result<Arc<dyn Configuration>, Diagnostic>,
) -> Result<(), Diagnostic> {
    if line.is_repeated() {
        return Err(line.directive_error("is duplicate"));
    }
    let Some(core) = confs.get_mut::<Core>() else {
        return Ok(());
    };
    let prefix = line.level.build.in_prefix(conf::Access::Opened, "");
    let context = line.shared::<Context>().clone();
    *line.shared::<Main>() = core.main(&context, prefix);
    line.shared::<MainLog>().0 = core.log.clone();
    core.engines.push(configure(line)?);
    Ok(())
}

/// Fills in what the configuration leaves to the command line and to the system.
fn finish(core: &mut Core, _: Option<&Core>, level: &mut Level) -> Result<(), Diagnostic> {
    let context = level.shared::<Context>().clone();
    if core.pid.as_os_str().is_empty() {
        core.pid = context.pid;
    }
    if !core.log.has_file() {
        let path = context.error_log.unwrap_or_else(|| "/dev/stderr".into());
        let target = Target::file(&path, rt::error_log::Level::Error);
        core.log = core.log.with(target, level.shared::<LogFiles>());
    }
    if let Some(masks) = core
        .affinity
        .masks()
        .filter(|masks| *masks != 1 && *masks != core.worker_processes)
    {
        let text = format!(
            "the number of \"worker_processes\" is not equal to the number of \"worker_cpu_affinity\" masks \
             ({masks}), using last mask for remaining worker processes"
        );
        level.report(Diagnostic::warning(text, None));
    }
    for mut unknown in std::mem::take(&mut core.unknown_modules) {
        if core.unknown_modules_pass {
            unknown.severity = Severity::Warn;
        }
        level.report(unknown);
    }
    if core.sandbox && !core.master_process {
        let text = "\"worker_sandbox\" has no effect without \"master_process\"";
        level.report(Diagnostic::warning(text, None));
    }
    if core.events.is_none() {
        let error = Diagnostic::error("no \"events\" section in configuration", None);
        level.report(error.note("add \"events {}\""));
    }
    if core.user.is_none() && process::is_root() {
        core.user = Some(default_user().map_err(|error| Diagnostic::error(error, None))?);
    }
    Ok(())
}

fn default_user() -> Result<User, String> {
    let found = DEFAULT_GROUPS.map(|group| process::lookup_user(DEFAULT_USER, group));
    let [first, second] = found;
    first.or(second)
}
