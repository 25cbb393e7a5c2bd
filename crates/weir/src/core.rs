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
        "Whether the server goes to the background.",
        Setter::Flag(|core| &mut core.daemon),
    ),
    row(
        "master_process",
        "on | off",
        Some("on"),
        "Whether a privileged master watches over a worker process. `off` runs everything in one process, \
         without a change of user: for debugging.",
        Setter::Flag(|core| &mut core.master_process),
    ),
    row(
        "pid",
        "file",
        None,
        "The file that holds the number of the master process. `-s` finds the server by it.",
        Setter::Path(conf::Access::Opened, |core| &mut core.pid),
    ),
    row(
        "lock_file",
        "file",
        None,
        "Accepted for the sake of existing files.",
        Setter::Ignored(Arity::ONE, "loops of one process need no lock file"),
    ),
    row(
        "user",
        "user [group]",
        None,
        "The user and group that the worker runs as. Without a group, the one of the user's name. \
         Only a master that runs as root can change the user.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, set_user),
    ),
    row(
        "worker_processes",
        "number | auto",
        Some("1"),
        "How many event loops serve requests, each a thread of the worker process. `auto` is one for each \
         processor.",
        Setter::Custom(Arity::ONE, Repeat::Once, set_worker_processes),
    ),
    row(
        "worker_cpu_affinity",
        "mask ... | auto [mask]",
        None,
        "The processors that each loop may run on. `auto` gives each loop a processor of its own.",
        Setter::Custom(Arity::at_least(1), Repeat::Once, set_affinity),
    ),
    row(
        "worker_priority",
        "number",
        Some("0"),
        "The worker's scheduling priority, from -20 (served first) to 20.",
        Setter::Custom(Arity::ONE, Repeat::Once, set_priority),
    ),
    row(
        "worker_rlimit_nofile",
        "number",
        None,
        "The limit of open descriptors of the worker process. Without it, the highest that the system grants.",
        Setter::Custom(Arity::ONE, Repeat::Once, |core, line| {
            core.descriptors = Some(line.number(0, 0, i64::MAX)?.unsigned_abs());
            Ok(())
        }),
    ),
    row(
        "worker_rlimit_core",
        "size",
        None,
        "The largest core dump of the worker process. Without it a worker that has changed its user leaves none, and other \
         programs of that user can not read its memory, with the keys in it.",
        Setter::Custom(Arity::ONE, Repeat::Once, |core, line| {
            core.core_size = Some(line.offset(0)?.unsigned_abs());
            Ok(())
        }),
    ),
    row(
        "worker_shutdown_timeout",
        "time",
        None,
        "How long a graceful stop may take. After that time connections that are still open are closed.",
        Setter::Millis(|core| &mut core.shutdown_timeout),
    ),
    row(
        "working_directory",
        "directory",
        None,
        "The worker's current folder: where core dumps go. The worker must be allowed to write there.",
        Setter::Custom(Arity::ONE, Repeat::Once, |core, line| {
            core.working_directory = Some(line.prefix_path(conf::Access::Opened, line.arg(0)));
            Ok(())
        }),
    ),
    row(
        "worker_sandbox",
        "on | off",
        Some("off"),
        "Whether the worker gives up what it does not need: capabilities, system calls, and files that the configuration does \
         not name. What is denied later is in the error log. A reload that needs more replaces the worker, and idle \
         connections go to the new one.",
        Setter::Flag(|core| &mut core.sandbox),
    ),
    row(
        "worker_sandbox_path",
        "read | write | execute path ...",
        None,
        "Files and folders that the worker may use in its sandbox though no other directive names them: for Lua code that opens \
         files, or runs programs.",
        Setter::Custom(sandbox::ARITY, Repeat::Many, |core, line| {
            core.sandbox_paths.extend(sandbox::read_path(line)?);
            Ok(())
        }),
    ),
    row(
        "env",
        "variable[=value]",
        Some("TZ"),
        "A variable of the environment that the worker keeps, or gets. All others are removed.",
        Setter::Custom(Arity::ONE, Repeat::Many, set_environment),
    ),
    row(
        "error_log",
        "file | stderr | syslog:server=address[,parameter=value] | memory:size [level]",
        None,
        "Where errors are logged, and from which level on: `debug`, `info`, `notice`, `warn`, `error`, `crit`, \
         `alert` or `emerg`; `error` if none is given. Several lines are several logs.",
        Setter::Custom(Arity::at_least(1), Repeat::Many, set_error_log),
    ),
    row(
        "thread_pool",
        "name threads=number [max_queue=number]",
        Some("default threads=32 max_queue=65536"),
        "A pool of threads for file operations that may wait for a device. When `max_queue` operations wait, \
         further requests wait their turn.",
        Setter::Custom(Arity::between(1, 3), Repeat::Many, set_thread_pool),
    ),
    row(
        "load_module",
        "file",
        None,
        "Accepted for modules that are built in, and with a warning for those of nginx and Debian that do nothing where none \
         of their directives stands. Weir loads no shared objects: any other module is an error, or what \
         `load_module_unknown` says.",
        Setter::Custom(Arity::ONE, Repeat::Many, set_load_module),
    ),
    row(
        "load_module_unknown",
        "error | warn",
        Some("error"),
        "What `load_module` of a module is that is not known: an error, since some modules inspect every request without a \
         directive, and a server without them would let through what they refuse; or a warning.",
        Setter::Word(&["error", "warn"], |core, i| core.unknown_modules_pass = i == 1),
    ),
    row(
        "timer_resolution",
        "interval",
        None,
        "Accepted for the sake of existing files.",
        Setter::Ignored(Arity::ONE, "the loop reads the clock once a turn"),
    ),
    row(
        "pcre_jit",
        "on | off",
        None,
        "Accepted for the sake of existing files.",
        Setter::Ignored(Arity::ONE, "regular expressions are always compiled where the machine allows it"),
    ),
    row(
        "debug_points",
        "abort | stop",
        None,
        "Accepted for the sake of existing files.",
        Setter::Ignored(Arity::ONE, "there are no debug points"),
    ),
    row(
        "ssl_object_cache_inheritable",
        "on | off",
        None,
        "Accepted for the sake of existing files.",
        Setter::Ignored(Arity::ONE, "certificates and keys are read anew by every reload"),
    ),
    row(
        "ssl_engine",
        "device",
        None,
        "Refused: there are no engines to choose from.",
        Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
            let message = format!("ENGINE_by_id(\"{}\") failed", line.text(0));
            Err(line.error_at(0, message).note("Weir's TLS has no engines; remove the line"))
        }),
    ),
    row(
        "events",
        "{ ... }",
        None,
        "Settings of connection handling. A configuration must have this block, be it empty.",
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
            let message = format!("module \"{name}\" is not available, its directives are errors");
            let mut warning = line.error_at(0, message);
            warning.severity = Severity::Warn;
            line.level.report(warning);
        }
        Loadable::Unknown => {
            let error = line.error_at(0, format!("module \"{name}\" is not available"));
            core.unknown_modules.push(error.note(
                "Weir loads no shared objects; remove the line if none of the module's directives is used and it does \
                 nothing of its own, or say \"load_module_unknown warn;\"",
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
