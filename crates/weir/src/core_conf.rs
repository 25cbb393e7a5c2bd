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
//! The directives of `events` are in [`crate::events`]; each engine reads its own block. Engines
//! see a part of these settings as `MainSettings`, so their blocks are read last, wherever they are in the
//! file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::{
    Arity, BlockConfs, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveTable, MAIN,
    RepeatRule, Setter, Severity,
};
use host::engine::{EngineConfiguration, MainSettings, ThreadPool};
use host::error_log::{ErrorLogTarget, LogFiles, Logger, MainLog};
use host::process::{self, SystemUser};
use host::worker_group::MAX_GROUPS;

use crate::affinity::CpuAffinity;
use crate::default_user;
use crate::error_log_conf;
use crate::events::EventsConf;
use crate::modules::{self, ModuleSupport};
use crate::sandbox_paths::{self, PathAccess};
use crate::watchdog::MemoryBound;
use crate::worker_groups;

const IDLE_SANDBOX: &str = "\"worker_sandbox\" has no effect without \"master_process\"";
const NO_EVENTS: &str = "no \"events\" section in configuration";
/// Higher numbers are typing errors.
const MAX_WORKER_PROCESSES: i64 = 4096;
const MAX_POOL_THREADS: i64 = 4096;

/// The settings of the main context.
#[derive(Clone, Default)]
pub(crate) struct CoreConf {
    /// Run in the background.
    pub(crate) daemon: bool,
    /// Run a master and a worker, rather than one process for both.
    pub(crate) master_process: bool,
    /// The pid file.
    pub(crate) pid: PathBuf,
    /// The worker's user; `None` to keep the current one.
    pub(crate) user: Option<SystemUser>,
    /// The number of event loops, as the file says; [`CoreConf::loops`] is how many there are.
    pub(crate) worker_processes: usize,
    /// The number of worker processes whose threads they are.
    pub(crate) worker_groups: usize,
    /// The processors they run on.
    pub(crate) affinity: CpuAffinity,
    /// The limit on open files.
    pub(crate) descriptors: Option<u64>,
    /// The maximum size of a core dump, in bytes.
    pub(crate) core_size: Option<u64>,
    /// The worker's priority.
    pub(crate) priority: i32,
    /// The longest graceful shutdown; zero means no limit.
    pub(crate) shutdown_timeout: Duration,
    /// The kernel chooses among the UDP sockets of an address by QUIC's connection ids.
    pub(crate) quic_bpf: bool,
    /// The environment variables that the worker keeps, or their new values.
    environment: Vec<(OsString, Option<OsString>)>,
    /// What its memory is bounded by.
    pub(crate) memory: MemoryBound,
    /// Whether the worker drops all privileges it does not need.
    pub(crate) sandbox: bool,
    /// The paths that it may access besides.
    pub(crate) sandbox_paths: Vec<(PathAccess, PathBuf)>,
    /// The worker's working directory.
    pub(crate) working_directory: Option<PathBuf>,
    /// The error log.
    pub(crate) log: Logger,
    /// Whether all error logs are JSON.
    pub(crate) log_is_json: bool,
    /// In the order of the file; `default` is here only if the file has it, because only then are
    /// its parameters given.
    thread_pools: Vec<ThreadPool>,
    /// `None` if the block is missing, which is an error as with nginx.
    events: Option<EventsConf>,
    /// An error for each `load_module` of an unknown module. They wait until the whole block has
    /// been read, since `load_module_unknown` may follow.
    unknown_modules: Vec<Diagnostic>,
    /// Whether they are warnings.
    unknown_modules_pass: bool,
    /// The engines' configurations.
    pub(crate) engines: Vec<Arc<dyn EngineConfiguration>>,
}

/// What the main context's directives need to know that is not in the configuration.
#[derive(Clone, Default)]
pub(crate) struct RowContext {
    /// See [`crate::identity::ProgramIdentity::program`].
    pub(crate) program: &'static str,
    /// See [`crate::identity::ProgramIdentity::token`].
    pub(crate) version: &'static str,
    /// See [`crate::load_configuration::StartupSettings::testing`].
    pub(crate) testing: bool,
    /// See [`crate::paths::ServerPaths::pid`].
    pub(crate) pid: PathBuf,
    /// See [`crate::paths::ServerPaths::error_log`].
    pub(crate) error_log: Option<PathBuf>,
}

impl CoreConf {
    /// The environment of a worker: where Lua's libraries are, `TZ`, and the variables of `env` lines, as with nginx.
    pub(crate) fn worker_environment(&self) -> Vec<(OsString, OsString)> {
        let lua = ["LUA_PATH", "LUA_CPATH"].map(|name| (name.into(), None));
        let wanted = lua.into_iter().chain(self.environment.iter().cloned());
        wanted
            // A variable without a value is passed on as this process has it; if it has none, it is left out.
            .filter_map(|(name, value)| Some((name.clone(), value.or(std::env::var_os(name))?)))
            .collect()
    }

    /// Whether a worker of `other` can take this configuration. What a process sets once at its
    /// start, or has given up for good, needs a new process.
    pub(crate) fn same_process(&self, other: &CoreConf) -> bool {
        self.user == other.user
            && self.affinity == other.affinity
            && self.descriptors == other.descriptors
            && self.core_size == other.core_size
            && self.priority == other.priority
            && self.environment == other.environment
            && self.working_directory == other.working_directory
            && self.thread_pools == other.thread_pools
            && self.groups() == other.groups()
    }

    /// The duration from which on an iteration of a loop is logged as slow.
    pub(crate) fn slow_turn(&self) -> Duration {
        self.events
            .as_ref()
            .map_or(Duration::ZERO, |events| events.slow_turn)
    }

    /// The settings that the engines can see.
    pub(crate) fn main(&self, context: &RowContext, prefix: PathBuf) -> MainSettings {
        let events = self.events.clone().unwrap_or_default();
        let mut thread_pools = self.thread_pools.clone();
        // Always there: file operations that no `aio threads=` assigns need a pool, too.
        if !thread_pools.iter().any(|pool| pool.name == "default") {
            thread_pools.push(ThreadPool::default());
        }
        MainSettings {
            program: context.program,
            version: context.version,
            prefix,
            worker_processes: self.loops(),
            worker_groups: self.groups(),
            worker_connections: usize::try_from(events.connections).unwrap_or(usize::MAX),
            multi_accept: events.multi_accept,
            user: self.user.clone(),
            thread_pools,
            debug_connections: events.debug_connections,
            debug_unix_connections: events.debug_unix_connections,
            shutdown_timeout: self.shutdown_timeout,
            steers_datagrams: self.quic_bpf,
            testing: context.testing,
        }
    }
}

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<CoreConf>,
) -> Directive<CoreConf> {
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

/// The directives of the main context.
pub(crate) static DIRECTIVES: DirectiveTable<CoreConf> = DirectiveTable::<CoreConf>::new(&[
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
        Setter::Path(conf::PathUse::Opened, |core| &mut core.pid),
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
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, set_user),
    ),
    row(
        "worker_processes",
        "number | auto",
        Some("1"),
        "The number of event loops, each a thread of a worker process. `auto` is one per processor.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, set_worker_processes),
    ),
    row(
        "worker_groups",
        "number",
        Some("1"),
        "The number of worker processes among which the event loops are divided. A crash, such as of a C library, then \
         ends the connections of one of them. Limits, caches, dictionaries and the states of upstream servers are kept \
         by each for itself.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |core, line| {
            core.worker_groups = usize::try_from(line.number(0, 1, MAX_GROUPS as i64)?).unwrap_or(1);
            Ok(())
        }),
    ),
    row(
        "quic_bpf",
        "on | off",
        Some("on"),
        "Has the kernel choose the event loop of a QUIC datagram by its connection id (`listen … quic reuseport`). It \
         needs no privilege. Without it, the loop that gets the datagram of a client that has moved passes it on.",
        Setter::Flag(|core| &mut core.quic_bpf),
    ),
    row(
        "worker_cpu_affinity",
        "mask ... | auto [mask]",
        None,
        "Binds each event loop to a set of processors. `auto` binds each to a processor of its own.",
        Setter::Custom(Arity::at_least(1), RepeatRule::Once, set_affinity),
    ),
    row(
        "worker_priority",
        "number",
        Some("0"),
        "The scheduling priority of the worker process, from -20 (highest) to 20.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, set_priority),
    ),
    row(
        "worker_rlimit_nofile",
        "number",
        None,
        "The limit on open files (`RLIMIT_NOFILE`) of the worker process. By default, the highest that the system \
         grants.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |core, line| {
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
        Setter::Custom(Arity::ONE, RepeatRule::Once, |core, line| {
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
        "worker_memory",
        "auto | off | size | group=directory",
        Some("auto"),
        "How much memory there is. When half of it is in use, what slow clients do not take is held in files at once. From 85 % \
         on, connections that wait for a request are closed, the oldest first; from 92 % on, new connections are refused. \
         `auto` is the limit of the control group, or the memory of the machine, or the limit of the control group whose \
         directory is named; pages of files do not count as used. A size bounds the memory of the worker process itself.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |core, line| {
            core.memory = match line.arg(0).text.as_slice() {
                b"auto" => MemoryBound::Auto,
                b"off" => MemoryBound::Off,
                text if text.starts_with(b"group=") => {
                    let folder = String::from_utf8_lossy(&text[b"group=".len()..]);
                    MemoryBound::Group(PathBuf::from(folder.into_owned()))
                }
                _ => MemoryBound::Bytes(line.size(0)?),
            };
            Ok(())
        }),
    ),
    row(
        "working_directory",
        "directory",
        None,
        "The working directory of the worker process, where core dumps are written. It must be writable for the worker.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |core, line| {
            core.working_directory = Some(line.prefix_path(conf::PathUse::Opened, line.arg(0)));
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
        Setter::Custom(sandbox_paths::ARITY, RepeatRule::Many, |core, line| {
            core.sandbox_paths.extend(sandbox_paths::read_path(line)?);
            Ok(())
        }),
    ),
    crate::refused_conf::ROW,
    row(
        "env",
        "variable[=value]",
        Some("TZ"),
        "An environment variable that the worker keeps or, with a value, gets. All others are removed.",
        Setter::Custom(Arity::ONE, RepeatRule::Many, set_environment),
    ),
    row(
        "error_log",
        "file | stderr | syslog:server=address[,parameter=value] | memory:size [level]",
        None,
        "Where to log errors, and the minimum level: `debug`, `info`, `notice`, `warn`, `error` (the default), `crit`, \
         `alert` or `emerg`. Several lines write several logs.",
        Setter::Custom(Arity::at_least(1), RepeatRule::Many, error_log_conf::set_log),
    ),
    row(
        "error_log_format",
        "text | json",
        Some("text"),
        "The format of all error logs: nginx's lines, or JSON objects with `time`, `level`, `pid`, `tid`, `message` and, \
         where known, `connection`, `while`, `client`, `server`, `request`, `upstream`, `host`, `referrer`. Weir extension.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, error_log_conf::set_format),
    ),
    row(
        "thread_pool",
        "name threads=number [max_queue=number]",
        Some("default threads=32 max_queue=65536"),
        "Defines a thread pool for file operations that may block. When `max_queue` operations are queued, further \
         requests wait for a free place.",
        Setter::Custom(Arity::between(1, 3), RepeatRule::Many, set_thread_pool),
    ),
    row(
        "load_module",
        "file",
        None,
        "Accepted for modules that are built in and, with a warning, for modules of nginx and Debian that have no \
         effect unless their directives are used. Weir cannot load dynamic modules: any other module is an error, or \
         what `load_module_unknown` says.",
        Setter::Custom(Arity::ONE, RepeatRule::Many, set_load_module),
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
        Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            let message = format!("ENGINE_by_id(\"{}\") failed", line.text(0));
            Err(line.error_at(0, message).note("Weir does not use OpenSSL, so there are no engines; remove this line"))
        }),
    ),
    row(
        "events",
        "{ ... }",
        None,
        "Settings for handling connections. Required in every configuration, even if empty.",
        Setter::Block(Arity::NONE, RepeatRule::Once, |core, line| {
            core.events = Some(EventsConf::read(line)?);
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

/// `user`. As with nginx the line is ignored, with a warning, if the process could not change its
/// user.
fn set_user(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
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
        // nginx's message names the function; the note tells which of the two names is unknown.
        let is_user = error.starts_with("getpwnam");
        let what = if is_user { "user" } else { "group" };
        let name = if is_user { &name } else { &group };
        line.error(error)
            .note(format!("this system has no {what} \"{name}\""))
    })?);
    Ok(())
}

/// `worker_processes`.
fn set_worker_processes(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
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

pub(crate) fn words<'a>(line: &DirectiveLine<'a, '_>) -> Vec<&'a [u8]> {
    line.args()
        .iter()
        .map(|word| word.text.as_slice())
        .collect()
}

/// `worker_cpu_affinity`, with nginx's messages.
fn set_affinity(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    core.affinity = CpuAffinity::parse(&words(line), process::processors())
        .map_err(|error| line.error(error))?;
    Ok(())
}

/// `worker_priority`, which nginx does not check either; the kernel limits it.
fn set_priority(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let text = std::str::from_utf8(line.text(0)).ok();
    let number = text.and_then(|text| text.parse().ok());
    core.priority = number.ok_or_else(|| line.directive_error_at(0, "invalid number"))?;
    Ok(())
}

/// `env NAME` or `env NAME=value`.
fn set_environment(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
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

/// `thread_pool`, with nginx's messages.
fn set_thread_pool(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.text(0).to_string();
    if line.is_default() {
        // Added to what the engines see if no line of the file names it.
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

/// Parses a number that is at least `least`. What no machine has room for becomes the largest
/// number that is taken, and fails when it is used.
fn bounded(text: &[u8], least: i64) -> Option<usize> {
    let number = conf::parse::number(text).filter(|number| *number >= least)?;
    usize::try_from(number.min(MAX_POOL_THREADS.max(i64::from(i32::MAX)))).ok()
}

/// `load_module`. A built-in module is silently accepted, an idle one with a warning.
fn set_load_module(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let path = PathBuf::from(line.text(0).to_string());
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    match modules::support_of(&name, &line.level.build.tables) {
        ModuleSupport::BuiltIn => {}
        ModuleSupport::Idle => {
            let message = format!("module \"{name}\" is not available; its directives are errors");
            // An error's text and place, but only a warning: the configurations of distributions
            // have such lines.
            let mut warning = line.error_at(0, message);
            warning.severity = Severity::Warn;
            line.level.report(warning);
        }
        ModuleSupport::Unknown => {
            let error = line.error_at(0, format!("module \"{name}\" is not available"));
            core.unknown_modules.push(error.note(
                "Weir cannot load dynamic modules; remove this line if you use none of its directives and it does \
                 nothing without them, or add \"load_module_unknown warn;\"",
            ));
        }
    }
    Ok(())
}

/// Builds an engine's configuration. Deferred until the rest of the main context is known, since
/// engines depend on it.
fn set_engine(
    line: &mut DirectiveLine,
    confs: &mut BlockConfs,
    configure: fn(&mut DirectiveLine) -> Result<Arc<dyn EngineConfiguration>, Diagnostic>,
) -> Result<(), Diagnostic> {
    if line.is_repeated() {
        return Err(line.directive_error("is duplicate"));
    }
    let Some(core) = confs.get_mut::<CoreConf>() else {
        return Ok(());
    };
    let prefix = line.level.build.in_prefix(conf::PathUse::Opened, "");
    let context = line.shared::<RowContext>().clone();
    *line.shared::<MainSettings>() = core.main(&context, prefix);
    line.shared::<MainLog>().0 = core.log.clone();
    core.engines.push(configure(line)?);
    Ok(())
}

/// Fills in the defaults from the command line and from the system, and checks what concerns
/// several directives.
fn finish(
    core: &mut CoreConf,
    _: Option<&CoreConf>,
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    let context = level.shared::<RowContext>().clone();
    // An empty path stands for a missing line: the default depends on the command line.
    if core.pid.as_os_str().is_empty() {
        core.pid = context.pid;
    }
    // A log that is no file, such as syslog, does not replace the default one, as with nginx.
    if !core.log.has_file() {
        let path = context.error_log.unwrap_or_else(|| "/dev/stderr".into());
        let target = ErrorLogTarget::file(&path, host::error_log::LogLevel::Error);
        core.log = core.log.with_target(target, level.shared::<LogFiles>());
    }
    for mut unknown in std::mem::take(&mut core.unknown_modules) {
        if core.unknown_modules_pass {
            unknown.severity = Severity::Warn;
        }
        level.report(unknown);
    }
    let warnings = [
        core.affinity.warning(core.loops()),
        worker_groups::warning(core),
    ];
    for text in warnings.into_iter().flatten() {
        level.report(Diagnostic::warning(text, None));
    }
    // Only a worker process enters a sandbox.
    if core.sandbox && !core.master_process {
        level.report(Diagnostic::warning(IDLE_SANDBOX, None));
    }
    // After an error of syntax nobody knows what the blocks were meant to be.
    let is_readable = !level.build.diagnostics.iter().any(Diagnostic::is_of_syntax);
    if core.events.is_none() && is_readable {
        level.report(Diagnostic::error(NO_EVENTS, None).note("add \"events {}\""));
    }
    // Workers never run as root by omission.
    if core.user.is_none() && process::is_root() {
        core.user = Some(default_user::find().map_err(|error| Diagnostic::error(error, None))?);
    }
    Ok(())
}
