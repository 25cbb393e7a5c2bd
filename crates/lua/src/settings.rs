//! What the Lua module has to say once for all of `http` or `stream`: the code that runs at the start, where libraries
//! are, and the bounds of its machines.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::{Arity, Contexts, Diagnostic, Directive, HTTP, Line, Repeat, STREAM, Setter, Table};

use crate::chunk::{Chunk, Kind};
use crate::directives::{block, ignored, kind_of, word};
use crate::luajit::watchdog::Limits;

/// What stands in `http {}` or `stream {}` itself only.
#[derive(Clone)]
pub(crate) struct Main {
    pub(crate) init: Option<Arc<Chunk>>,
    pub(crate) init_worker: Option<Arc<Chunk>>,
    pub(crate) exit_worker: Option<Arc<Chunk>>,
    pub(crate) package_path: Option<Vec<u8>>,
    pub(crate) package_cpath: Option<Vec<u8>>,
    pub(crate) limits: Limits,
    /// What the machine of each loop may take, in bytes.
    pub(crate) memory_limit: usize,
    pub(crate) max_pending_timers: i64,
    pub(crate) max_running_timers: i64,
    pub(crate) regex_cache_entries: i64,
    pub(crate) regex_match_limit: i64,
    /// How many jobs of `ngx.run_worker_thread` there may be.
    pub(crate) worker_machines: Option<usize>,
    /// Zones of `lua_shared_dict`.
    pub(crate) dictionaries: Vec<(String, u64)>,
    /// Where relative names count from.
    pub(crate) prefix: PathBuf,
    memory: u64,
}

impl Default for Main {
    fn default() -> Main {
        Main {
            init: None,
            init_worker: None,
            exit_worker: None,
            package_path: None,
            package_cpath: None,
            limits: Limits::default(),
            memory_limit: 0,
            max_pending_timers: 1024,
            max_running_timers: 256,
            regex_cache_entries: 1024,
            regex_match_limit: 0,
            worker_machines: None,
            dictionaries: Vec::new(),
            prefix: PathBuf::new(),
            memory: 0,
        }
    }
}

const INIT: &str = "Code that runs when the Lua VM of an event loop is created: at start-up and at each reload. Its \
                    globals and the modules it loads are available to all other scripts on that loop.";
const INIT_WORKER: &str = "Code that runs once on each event loop when it starts to serve a configuration: the place \
                           to start timers.";
const EXIT_WORKER: &str = "Code that runs on each event loop when it exits.";

const fn rows(place: Contexts) -> [Directive<Main>; 25] {
    [
        block("init_by_lua_block", place, INIT, main_code),
        word("init_by_lua", "lua-code", place, main_code),
        word("init_by_lua_file", "path", place, main_code),
        block("init_worker_by_lua_block", place, INIT_WORKER, main_code),
        word("init_worker_by_lua", "lua-code", place, main_code),
        word("init_worker_by_lua_file", "path", place, main_code),
        block("exit_worker_by_lua_block", place, EXIT_WORKER, main_code),
        word("exit_worker_by_lua_file", "path", place, main_code),
        Directive {
            name: "lua_package_path",
            syntax: "path",
            default: None,
            contexts: place,
            since: "0.1",
            doc: "Where `require` looks for Lua modules: patterns with `?`, separated by `;`. `;;` stands for the \
              default path, `$prefix` for the server prefix.",
            set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.package_path = Some(need_libraries(line));
                Ok(())
            }),
        },
        Directive {
            name: "lua_package_cpath",
            syntax: "path",
            default: None,
            contexts: place,
            since: "0.1",
            doc: "Where `require` looks for C modules (shared objects).",
            set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.package_cpath = Some(need_libraries(line));
                Ok(())
            }),
        },
        Directive {
            name: "lua_shared_dict",
            syntax: "name size",
            default: None,
            contexts: place,
            since: "0.1",
            doc: "Defines a dictionary `ngx.shared.name`, shared by all event loops and kept across reloads. When it \
              is full, the least recently used entries are evicted.",
            set: Setter::Custom(Arity::exactly(2), Repeat::Many, shared_dict),
        },
        Directive {
            name: "lua_max_pending_timers",
            syntax: "count",
            default: Some("1024"),
            contexts: place,
            since: "0.1",
            doc: "The maximum number of pending timers per event loop.",
            set: Setter::Number(|c| &mut c.max_pending_timers, 0, i64::MAX),
        },
        Directive {
            name: "lua_max_running_timers",
            syntax: "count",
            default: Some("256"),
            contexts: place,
            since: "0.1",
            doc: "The maximum number of running timers per event loop.",
            set: Setter::Number(|c| &mut c.max_running_timers, 0, i64::MAX),
        },
        Directive {
            name: "lua_regex_cache_max_entries",
            syntax: "count",
            default: Some("1024"),
            contexts: place,
            since: "0.1",
            doc: "The maximum number of patterns compiled with the `o` option that each event loop caches.",
            set: Setter::Number(|c| &mut c.regex_cache_entries, 0, i64::MAX),
        },
        Directive {
            name: "lua_regex_match_limit",
            syntax: "count",
            default: Some("0"),
            contexts: place,
            since: "0.1",
            doc: "Accepted; PCRE2's own limit applies.",
            set: Setter::Number(|c| &mut c.regex_match_limit, 0, i64::MAX),
        },
        Directive {
            name: "lua_memory_limit",
            syntax: "size",
            default: Some("256m"),
            contexts: place,
            since: "0.1",
            doc: "The memory limit of the Lua VM of each event loop. A script that exceeds it gets the error `not \
              enough memory`. Weir extension.",
            set: Setter::Size(|c| &mut c.memory),
        },
        Directive {
            name: "lua_time_slice",
            syntax: "time",
            default: Some("5ms"),
            contexts: place,
            since: "0.1",
            doc: "How long a script may run before it yields to everything else on its event loop. Weir extension.",
            set: Setter::Millis(|c| &mut c.limits.slice),
        },
        Directive {
            name: "lua_run_limit",
            syntax: "time",
            default: Some("10s"),
            contexts: place,
            since: "0.1",
            doc: "How long a script may run in total, not counting the time it waits; then it is aborted with an \
                  error. Weir extension.",
            set: Setter::Millis(|c| &mut c.limits.run),
        },
        Directive {
            name: "lua_hold_limit",
            syntax: "time",
            default: Some("500ms"),
            contexts: place,
            since: "0.1",
            doc: "How long a script may run where it cannot yield, in a filter or in a function called from C; then it \
              is aborted with an error. Weir extension.",
            set: Setter::Millis(|c| &mut c.limits.hold),
        },
        ignored(
            "lua_capture_error_log",
            place,
            "Capturing the error log is not supported.",
        ),
        ignored(
            "lua_sa_restart",
            place,
            "Signals never interrupt system calls here.",
        ),
        ignored(
            "lua_thread_cache_max_entries",
            place,
            "Coroutines are always recycled.",
        ),
        Directive {
            name: "lua_worker_thread_vm_pool_size",
            syntax: "number",
            default: None,
            contexts: place,
            since: "0.1",
            doc: "The maximum number of `ngx.run_worker_thread` calls running at the same time, in all pools; further \
                  calls get `no available Lua vm`. If not set, only the pools and their queues limit it; each of their \
                  threads has a Lua VM.",
            set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
                c.worker_machines =
                    Some(usize::try_from(line.number(0, 1, 1_000_000)?).unwrap_or(1));
                Ok(())
            }),
        },
        ignored(
            "lua_load_resty_core",
            place,
            "The API of lua-resty-core is built in.",
        ),
        ignored("lua_malloc_trim", place, "There is nothing to trim."),
    ]
}

static HTTP_ROWS: [Directive<Main>; 25] = rows(HTTP);
static STREAM_ROWS: [Directive<Main>; 25] = rows(STREAM);

/// The rows in `http`.
pub(crate) static MAIN: Table<Main> = Table::<Main>::new(&HTTP_ROWS).finish(finish);

/// The same rows in `stream`.
pub(crate) static STREAM_MAIN: Table<Main> = Table::<Main>::new(&STREAM_ROWS).finish(finish);

fn finish(main: &mut Main, _: Option<&Main>, level: &mut conf::Level) -> Result<(), Diagnostic> {
    main.memory_limit = usize::try_from(main.memory).unwrap_or(usize::MAX);
    main.prefix = level.build.in_prefix(conf::Access::Opened, "");
    if main.limits.slice.is_zero() {
        main.limits.slice = Duration::from_millis(1);
    }
    Ok(())
}
/// The patterns by which `require` looks for libraries. Needed is what stands in front of the first `?` of each.
fn need_libraries(line: &mut Line) -> Vec<u8> {
    use bstr::ByteSlice as _;
    for pattern in line.text(0).split(|byte| *byte == b';') {
        let pattern = pattern.replace("$prefix/", "");
        let Some(end) = pattern.find_byte(b'?') else {
            continue;
        };
        let folder = match pattern[..end].rfind_byte(b'/') {
            Some(slash) => &pattern[..slash + 1],
            None => b".",
        };
        line.level.build.prefix_for(conf::Access::Read, folder);
    }
    line.text(0).to_vec()
}

/// The least size of a dictionary, in bytes; nginx's.
const MIN_DICTIONARY: u64 = 8191;

fn shared_dict(main: &mut Main, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.text(0).to_string();
    let size = line.size(1)?;
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

fn main_code(main: &mut Main, line: &mut Line) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = Chunk::read(line, kind, 0)?;
    let place = match kind {
        Kind::Init => &mut main.init,
        Kind::ExitWorker => &mut main.exit_worker,
        _ => &mut main.init_worker,
    };
    put(place, chunk, line)
}

fn put(place: &mut Option<Arc<Chunk>>, chunk: Arc<Chunk>, line: &Line) -> Result<(), Diagnostic> {
    if place.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *place = Some(chunk);
    Ok(())
}
