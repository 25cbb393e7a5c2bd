//! The Lua settings of a whole `http` or `stream` block: the `init` scripts, where libraries are,
//! and the limits of the VMs.
//!
//! nginx has no limits on scripts: one that computes forever stops its worker, and one that
//! allocates forever ends it. Since a loop's clients depend on each script, there are three limits
//! on time and one on memory, whose defaults no ordinary script reaches.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, RepeatRule, STREAM, Setter,
};

use crate::chunk::{LuaChunk, ScriptKind};
use crate::luajit::watchdog::ScriptLimits;
use crate::rows::{block_row, ignored_row, kind_of, word_row};

/// Settings that are allowed in `http` and `stream` themselves only.
#[derive(Clone, Default)]
pub(crate) struct LuaMainConf {
    /// `init_by_lua`.
    pub(crate) init: Option<Arc<LuaChunk>>,
    /// `init_worker_by_lua`.
    pub(crate) init_worker: Option<Arc<LuaChunk>>,
    /// `exit_worker_by_lua`.
    pub(crate) exit_worker: Option<Arc<LuaChunk>>,
    /// `lua_package_path` as written; `;;` and `$prefix` are replaced when a VM is created.
    pub(crate) package_path: Option<Vec<u8>>,
    /// `lua_package_cpath`, likewise.
    pub(crate) package_cpath: Option<Vec<u8>>,
    /// How long scripts may run.
    pub(crate) limits: ScriptLimits,
    /// The memory limit of each loop's VM, in bytes.
    pub(crate) memory_limit: usize,
    /// `lua_max_pending_timers`, per loop as nginx has it per worker.
    pub(crate) max_pending_timers: i64,
    /// `lua_max_running_timers`.
    pub(crate) max_running_timers: i64,
    /// `lua_regex_cache_max_entries`.
    pub(crate) regex_cache_entries: i64,
    /// `lua_regex_match_limit`; 0 is PCRE2's own limit.
    pub(crate) regex_match_limit: i64,
    /// How many calls of `ngx.run_worker_thread` may run at the same time; `None`: as many as the
    /// pools.
    pub(crate) worker_thread_vms: Option<usize>,
    /// Names and sizes of `lua_shared_dict`, in order.
    pub(crate) dictionaries: Vec<(String, u64)>,
    /// `lua_wake_timers`: those whose changes wake repeated timers.
    pub(crate) waking: Vec<String>,
    /// The server prefix: `ngx.config.prefix`, and where relative paths begin.
    pub(crate) prefix: PathBuf,
    /// `lua_memory_limit` as the row's setter needs it; see `memory_limit`.
    memory: u64,
}

const INIT: &str = "Code that runs when the Lua VM of an event loop is created: at start-up and at each reload. Its \
                    globals and the modules it loads are available to all other scripts on that loop.";
const INIT_WORKER: &str = "Code that runs once on each event loop when it starts to serve a configuration: the place \
                           to start timers.";
const EXIT_WORKER: &str = "Code that runs on each event loop when it exits.";

/// The rows, as `http` has them; those of `stream` differ in their context only.
const ROWS: [Directive<LuaMainConf>; 26] = [
    // The scripts of a configuration's life. Each is allowed once, in any of its spellings.
    block_row("init_by_lua_block", HTTP, INIT, set_main_script),
    word_row("init_by_lua", "lua-code", HTTP, set_main_script),
    word_row("init_by_lua_file", "path", HTTP, set_main_script),
    block_row(
        "init_worker_by_lua_block",
        HTTP,
        INIT_WORKER,
        set_main_script,
    ),
    word_row("init_worker_by_lua", "lua-code", HTTP, set_main_script),
    word_row("init_worker_by_lua_file", "path", HTTP, set_main_script),
    block_row(
        "exit_worker_by_lua_block",
        HTTP,
        EXIT_WORKER,
        set_main_script,
    ),
    word_row("exit_worker_by_lua_file", "path", HTTP, set_main_script),
    Directive {
        name: "lua_package_path",
        syntax: "path",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Where `require` looks for Lua modules: patterns with `?`, separated by `;`. `;;` stands for the \
              default path, `$prefix` for the server prefix.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.package_path = Some(need_libraries(line));
            Ok(())
        }),
    },
    Directive {
        name: "lua_package_cpath",
        syntax: "path",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Where `require` looks for C modules (shared objects).",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.package_cpath = Some(need_libraries(line));
            Ok(())
        }),
    },
    Directive {
        name: "lua_shared_dict",
        syntax: "name size",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Defines a dictionary `ngx.shared.name`, shared by all event loops and kept across reloads. When it \
              is full, the least recently used entries are evicted.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Many, shared_dict),
    },
    Directive {
        name: "lua_wake_timers",
        syntax: "name ...",
        default: None,
        contexts: HTTP,
        since: "0.3",
        doc: "Dictionaries whose changes (`set`, `add`, `replace`, `delete`) make the functions of `ngx.timer.every` run at \
              once, on every loop, instead of at the end of their interval; at most a hundred times per second. For \
              scripts that look once a second whether a dictionary has changed, such as those of ingress-nginx. Weir \
              extension.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            let names = (0..line.args().len()).map(|at| line.text(at).to_string());
            c.waking.extend(names);
            Ok(())
        }),
    },
    Directive {
        name: "lua_max_pending_timers",
        syntax: "count",
        default: Some("1024"),
        contexts: HTTP,
        since: "0.1",
        doc: "The maximum number of pending timers per event loop.",
        set: Setter::Number(|c| &mut c.max_pending_timers, 0, i64::MAX),
    },
    Directive {
        name: "lua_max_running_timers",
        syntax: "count",
        default: Some("256"),
        contexts: HTTP,
        since: "0.1",
        doc: "The maximum number of running timers per event loop.",
        set: Setter::Number(|c| &mut c.max_running_timers, 0, i64::MAX),
    },
    Directive {
        name: "lua_regex_cache_max_entries",
        syntax: "count",
        default: Some("1024"),
        contexts: HTTP,
        since: "0.1",
        doc: "The maximum number of patterns compiled with the `o` option that each event loop caches.",
        set: Setter::Number(|c| &mut c.regex_cache_entries, 0, i64::MAX),
    },
    Directive {
        name: "lua_regex_match_limit",
        syntax: "count",
        default: Some("0"),
        contexts: HTTP,
        since: "0.1",
        doc: "Accepted; PCRE2's own limit applies.",
        set: Setter::Number(|c| &mut c.regex_match_limit, 0, i64::MAX),
    },
    Directive {
        name: "lua_memory_limit",
        syntax: "size",
        default: Some("256m"),
        contexts: HTTP,
        since: "0.1",
        doc: "The memory limit of the Lua VM of each event loop. A script that exceeds it gets the error `not \
              enough memory`. Weir extension.",
        set: Setter::Size(|c| &mut c.memory),
    },
    Directive {
        name: "lua_time_slice",
        syntax: "time",
        default: Some("5ms"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a script may run before it yields to everything else on its event loop. Weir extension.",
        set: Setter::Millis(|c| &mut c.limits.slice),
    },
    Directive {
        name: "lua_run_limit",
        syntax: "time",
        default: Some("10s"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a script may run in total, not counting the time it waits; then it is aborted with an \
                  error. Weir extension.",
        set: Setter::Millis(|c| &mut c.limits.run),
    },
    Directive {
        name: "lua_hold_limit",
        syntax: "time",
        default: Some("500ms"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a script may run where it cannot yield, in a filter or in a function called from C; then it \
              is aborted with an error. Weir extension.",
        set: Setter::Millis(|c| &mut c.limits.hold),
    },
    Directive {
        name: "lua_capture_error_log",
        syntax: "size",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Accepted and ignored. Capturing the error log is not supported.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            match line.size(0)? < MIN_CAPTURE {
                true => Err(line.error_at(
                    0,
                    format!(
                        "invalid capture error log size \"{}\", minimum size is {MIN_CAPTURE}",
                        line.text(0)
                    ),
                )),
                false => Ok(()),
            }
        }),
    },
    ignored_row(
        "lua_sa_restart",
        HTTP,
        "Signals never interrupt system calls here.",
    ),
    ignored_row(
        "lua_thread_cache_max_entries",
        HTTP,
        "Coroutines are always recycled.",
    ),
    Directive {
        name: "lua_worker_thread_vm_pool_size",
        syntax: "number",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "The maximum number of `ngx.run_worker_thread` calls running at the same time, in all pools; further \
                  calls get `no available Lua vm`. If not set, only the pools and their queues limit it; each of their \
                  threads has a Lua VM.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.worker_thread_vms = Some(usize::try_from(line.number(0, 1, 1_000_000)?).unwrap_or(1));
            Ok(())
        }),
    },
    ignored_row(
        "lua_load_resty_core",
        HTTP,
        "The API of lua-resty-core is built in.",
    ),
    ignored_row("lua_malloc_trim", HTTP, "There is nothing to trim."),
];

static HTTP_ROWS: [Directive<LuaMainConf>; 26] = ROWS;
static STREAM_ROWS: [Directive<LuaMainConf>; 26] = Directive::in_contexts(ROWS, STREAM);

/// The rows in `http`.
pub(crate) static MAIN: DirectiveTable<LuaMainConf> =
    DirectiveTable::<LuaMainConf>::new(&HTTP_ROWS).finish(finish);

/// The same rows in `stream`.
pub(crate) static STREAM_MAIN: DirectiveTable<LuaMainConf> =
    DirectiveTable::<LuaMainConf>::new(&STREAM_ROWS).finish(finish);

/// Derives what the VMs need from the rows.
fn finish(
    main: &mut LuaMainConf,
    _: Option<&LuaMainConf>,
    level: &mut conf::BlockContext,
) -> Result<(), Diagnostic> {
    main.memory_limit = usize::try_from(main.memory).unwrap_or(usize::MAX);
    main.prefix = level.build.in_prefix(conf::PathUse::Opened, "");
    let is_defined = |name: &String| main.dictionaries.iter().any(|(known, _)| known == name);
    if let Some(name) = main.waking.iter().find(|name| !is_defined(name)) {
        return Err(Diagnostic::error(
            format!("\"lua_wake_timers\" names \"{name}\", which no \"lua_shared_dict\" defines"),
            None,
        ));
    }
    // A slice of no time would preempt a script at its first instruction, for ever.
    if main.limits.slice.is_zero() {
        main.limits.slice = Duration::from_millis(1);
    }
    Ok(())
}
/// A value of `lua_package_path`. What precedes the first `?` of each pattern is noted as a folder
/// that a sandboxed worker must be able to read.
fn need_libraries(line: &mut DirectiveLine) -> Vec<u8> {
    use bstr::ByteSlice as _;
    for pattern in line.text(0).split(|byte| *byte == b';') {
        let pattern = pattern.replace("$prefix/", "");
        // A pattern without `?`, such as the empty one of `;;`, names no directory of its own.
        let Some(end) = pattern.find_byte(b'?') else {
            continue;
        };
        let folder = match pattern[..end].rfind_byte(b'/') {
            Some(slash) => &pattern[..slash + 1],
            None => b".",
        };
        line.level.build.prefix_for(conf::PathUse::Read, folder);
    }
    line.text(0).to_vec()
}

/// The smallest size that lua-nginx-module accepts for captured logs, in bytes.
const MIN_CAPTURE: u64 = 4096;

/// The largest size that lua-nginx-module rejects for a dictionary, in bytes.
const MIN_DICTIONARY: u64 = 8191;

/// `lua_shared_dict`, with lua-nginx-module's messages.
fn shared_dict(main: &mut LuaMainConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.text(0).to_string();
    let size = line.size(1)?;
    // lua-nginx-module blames the size for either.
    if name.is_empty() || size <= MIN_DICTIONARY {
        return Err(line.error_at(
            1,
            format!("invalid lua shared dict size \"{}\"", line.text(1)),
        ));
    }
    if main.dictionaries.iter().any(|(known, _)| *known == name) {
        return Err(line.error(format!(
            "lua_shared_dict \"{name}\" is already defined as \"{name}\""
        )));
    }
    main.dictionaries.push((name, size));
    Ok(())
}

/// The setter of the scripts of a configuration's life.
fn set_main_script(main: &mut LuaMainConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = LuaChunk::read(line, kind, 0)?;
    let place = match kind {
        ScriptKind::Init => &mut main.init,
        ScriptKind::ExitWorker => &mut main.exit_worker,
        _ => &mut main.init_worker,
    };
    put_once(place, chunk, line)
}

/// Sets a script; a second one is an error whichever spelling it has.
fn put_once(
    place: &mut Option<Arc<LuaChunk>>,
    chunk: Arc<LuaChunk>,
    line: &DirectiveLine,
) -> Result<(), Diagnostic> {
    if place.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *place = Some(chunk);
    Ok(())
}
