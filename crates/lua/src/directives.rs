//! The rows of the Lua module, and the settings that they make.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::{
    Arity, Contexts, Diagnostic, Directive, HTTP, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF,
    Line, Repeat, Setter, Table, UPSTREAM,
};

use crate::balancer::Balancer;
use crate::chunk::{Chunk, Kind};
use crate::luajit::watchdog::Limits;

/// What stands in `http {}` only.
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
    /// Zones of `lua_shared_dict`.
    pub(crate) dictionaries: Vec<(String, u64)>,
    /// Whom sockets trust that verify their peer.
    pub(crate) trust: Option<Arc<net::tls::Trust>>,
    trusted: Option<(conf::Word, PathBuf)>,
    depth: i64,
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
            dictionaries: Vec::new(),
            trust: None,
            trusted: None,
            depth: 1,
            prefix: PathBuf::new(),
            memory: 0,
        }
    }
}

/// What belongs to a location.
#[derive(Clone, Default)]
pub(crate) struct Code {
    pub(crate) rewrite: Option<Arc<Chunk>>,
    pub(crate) access: Option<Arc<Chunk>>,
    pub(crate) content: Option<Arc<Chunk>>,
    pub(crate) header_filter: Option<Arc<Chunk>>,
    pub(crate) body_filter: Option<Arc<Chunk>>,
    pub(crate) log: Option<Arc<Chunk>>,
    pub(crate) code_cache: bool,
    pub(crate) need_body: bool,
    pub(crate) default_type: bool,
    pub(crate) http10_buffering: bool,
    pub(crate) dashes: bool,
    pub(crate) check_client_abort: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) pool_size: i64,
    pub(crate) log_errors: bool,
}

impl Code {
    /// What nested locations do not inherit.
    pub(crate) fn nested(&mut self) {
        self.content = None;
    }
}

/// The three spellings of a directive: code in braces, code in a word, the name of a file.
const fn block<C>(
    name: &'static str,
    contexts: Contexts,
    doc: &'static str,
    set: fn(&mut C, &mut Line) -> Result<(), Diagnostic>,
) -> Directive<C> {
    Directive {
        name,
        syntax: "{ lua-code }",
        default: None,
        contexts,
        since: "0.1",
        doc,
        set: Setter::Block(Arity::NONE, Repeat::Once, set),
    }
}

const fn word<C>(
    name: &'static str,
    syntax: &'static str,
    contexts: Contexts,
    set: fn(&mut C, &mut Line) -> Result<(), Diagnostic>,
) -> Directive<C> {
    Directive {
        name,
        syntax,
        default: None,
        contexts,
        since: "0.1",
        doc: "The same, with the code in a word or, for `_file`, in the file of that name.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, set),
    }
}

const INIT: &str = "Code that runs when the machine of a loop is made: at the start and at each reload. The names that \
                    it defines and the modules that it loads are there for every other script of that loop.";
const INIT_WORKER: &str = "Code that runs once on each loop when it begins to serve a configuration: the place to begin timers.";
const EXIT_WORKER: &str = "Code that runs on each loop when it ends.";

pub(crate) static MAIN: Table<Main> = Table::<Main>::new(&[
    block("init_by_lua_block", HTTP, INIT, main_code),
    word("init_by_lua", "lua-code", HTTP, main_code),
    word("init_by_lua_file", "path", HTTP, main_code),
    block("init_worker_by_lua_block", HTTP, INIT_WORKER, main_code),
    word("init_worker_by_lua", "lua-code", HTTP, main_code),
    word("init_worker_by_lua_file", "path", HTTP, main_code),
    block("exit_worker_by_lua_block", HTTP, EXIT_WORKER, main_code),
    word("exit_worker_by_lua_file", "path", HTTP, main_code),
    Directive {
        name: "lua_package_path",
        syntax: "path",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Where `require` looks for modules: patterns with `?`, separated by `;`. `;;` stands for the usual places, \
              `$prefix` for the server's prefix.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            c.package_path = Some(line.text(0).to_vec());
            Ok(())
        }),
    },
    Directive {
        name: "lua_package_cpath",
        syntax: "path",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Where `require` looks for modules that are shared objects.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            c.package_cpath = Some(line.text(0).to_vec());
            Ok(())
        }),
    },
    Directive {
        name: "lua_shared_dict",
        syntax: "name size",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "A dictionary `ngx.shared.name` that all loops share and that outlives a reload. When it is full, what was \
              used longest ago makes room.",
        set: Setter::Custom(Arity::exactly(2), Repeat::Many, shared_dict),
    },
    Directive {
        name: "lua_max_pending_timers",
        syntax: "count",
        default: Some("1024"),
        contexts: HTTP,
        since: "0.1",
        doc: "How many timers of each loop may wait.",
        set: Setter::Number(|c| &mut c.max_pending_timers, 0, i64::MAX),
    },
    Directive {
        name: "lua_max_running_timers",
        syntax: "count",
        default: Some("256"),
        contexts: HTTP,
        since: "0.1",
        doc: "How many timers of each loop may run at a time.",
        set: Setter::Number(|c| &mut c.max_running_timers, 0, i64::MAX),
    },
    Directive {
        name: "lua_regex_cache_max_entries",
        syntax: "count",
        default: Some("1024"),
        contexts: HTTP,
        since: "0.1",
        doc: "How many patterns compiled with the option `o` each loop keeps.",
        set: Setter::Number(|c| &mut c.regex_cache_entries, 0, i64::MAX),
    },
    Directive {
        name: "lua_regex_match_limit",
        syntax: "count",
        default: Some("0"),
        contexts: HTTP,
        since: "0.1",
        doc: "Accepted; PCRE2's own bound holds.",
        set: Setter::Number(|c| &mut c.regex_match_limit, 0, i64::MAX),
    },
    Directive {
        name: "lua_ssl_trusted_certificate",
        syntax: "file",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Certificates of those whom sockets trust that are asked to verify their peer.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            let word = line.arg(0).clone();
            let path = line.path(&word);
            c.trusted = Some((word, path));
            Ok(())
        }),
    },
    Directive {
        name: "lua_ssl_verify_depth",
        syntax: "number",
        default: Some("1"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a chain of certificates may be.",
        set: Setter::Number(|c| &mut c.depth, 0, 100),
    },
    Directive {
        name: "lua_memory_limit",
        syntax: "size",
        default: Some("256m"),
        contexts: HTTP,
        since: "0.1",
        doc: "What the Lua machine of each loop may take. A script that wants more gets the error `not enough memory`. \
              Weir's own.",
        set: Setter::Size(|c| &mut c.memory),
    },
    Directive {
        name: "lua_time_slice",
        syntax: "time",
        default: Some("5ms"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a script may run before it gives way to everything else on its loop. Weir's own.",
        set: Setter::Millis(|c| &mut c.limits.slice),
    },
    Directive {
        name: "lua_run_limit",
        syntax: "time",
        default: Some("10s"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a script may run in all, not counting what it waits for; then it ends with an error. Weir's own.",
        set: Setter::Millis(|c| &mut c.limits.run),
    },
    Directive {
        name: "lua_hold_limit",
        syntax: "time",
        default: Some("500ms"),
        contexts: HTTP,
        since: "0.1",
        doc: "How long a script may run at a time where it can not give way: in a filter, or in a function that a C \
              function calls; then it ends with an error. Weir's own.",
        set: Setter::Millis(|c| &mut c.limits.hold),
    },
    ignored("lua_capture_error_log", HTTP, "The error log is not captured."),
    ignored("lua_sa_restart", HTTP, "Signals never interrupt system calls here."),
    ignored("lua_thread_cache_max_entries", HTTP, "Coroutines are used again without a setting."),
    ignored("lua_worker_thread_vm_pool_size", HTTP, "Each thread of the pool has a machine."),
    ignored("lua_load_resty_core", HTTP, "The surface of lua-resty-core is built in."),
    ignored("lua_malloc_trim", HTTP, "Nothing to trim."),
])
.finish(|main, _, level| {
    main.memory_limit = usize::try_from(main.memory).unwrap_or(usize::MAX);
    main.prefix = level.build.prefix.clone();
    main.trust = match main.trusted.take() {
        Some((word, path)) => Some(trust(&word, &path, main.depth, level)?),
        None => None,
    };
    if main.limits.slice.is_zero() {
        main.limits.slice = Duration::from_millis(1);
    }
    Ok(())
});

const fn ignored<C>(name: &'static str, contexts: Contexts, why: &'static str) -> Directive<C> {
    Directive {
        name,
        syntax: "value ...",
        default: None,
        contexts,
        since: "0.1",
        doc: "Accepted without effect.",
        set: Setter::Ignored(Arity::ANY, why),
    }
}

/// Reads the certificates of a file.
fn trust(
    word: &conf::Word,
    path: &std::path::Path,
    depth: i64,
    level: &mut conf::Level,
) -> Result<Arc<net::tls::Trust>, Diagnostic> {
    let shown = path.display().to_string();
    let text = level.build.files.read(path).map_err(|error| {
        Diagnostic::error(
            format!("cannot load certificate \"{shown}\": {error}"),
            Some(word.span),
        )
    })?;
    let mut trust = net::tls::Trust::nobody(usize::try_from(depth).unwrap_or(1));
    trust
        .add_certificates(&text, &shown)
        .map_err(|problem| Diagnostic::error(problem.to_string(), Some(word.span)))?;
    Ok(Arc::new(trust))
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

/// What a directive is for, by its name.
fn kind_of(line: &Line) -> Kind {
    let name = line.name().to_string();
    let stem = name
        .strip_suffix("_block")
        .or_else(|| name.strip_suffix("_file"))
        .unwrap_or(&name);
    [
        Kind::Init,
        Kind::InitWorker,
        Kind::ExitWorker,
        Kind::Rewrite,
        Kind::Access,
        Kind::Content,
        Kind::HeaderFilter,
        Kind::BodyFilter,
        Kind::Balancer,
        Kind::Certificate,
        Kind::Log,
    ]
    .into_iter()
    .find(|kind| kind.name() == stem)
    .unwrap_or(Kind::Content)
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

fn code(conf: &mut Code, line: &mut Line) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = Chunk::read(line, kind, 0)?;
    let place = match kind {
        Kind::Rewrite => &mut conf.rewrite,
        Kind::Access => &mut conf.access,
        Kind::HeaderFilter => &mut conf.header_filter,
        Kind::BodyFilter => &mut conf.body_filter,
        Kind::Log => &mut conf.log,
        _ => &mut conf.content,
    };
    // What stands here already was inherited: the same name twice is found by its row, and the spellings of one
    // directive are few enough to be told apart by eye.
    *place = Some(chunk);
    Ok(())
}

fn put(place: &mut Option<Arc<Chunk>>, chunk: Arc<Chunk>, line: &Line) -> Result<(), Diagnostic> {
    if place.is_some() {
        return Err(line.directive_error("is duplicate"));
    }
    *place = Some(chunk);
    Ok(())
}

const BALANCER: &str = "Code that chooses the server of each try, by `require \"ngx.balancer\"`. It can not wait. The \
                        servers of the block are not looked at.";

pub(crate) static UPSTREAM_ROWS: Table<Balancer> = Table::<Balancer>::new(&[
    block(
        "balancer_by_lua_block",
        UPSTREAM,
        BALANCER,
        crate::balancer::read,
    ),
    word(
        "balancer_by_lua",
        "lua-code",
        UPSTREAM,
        crate::balancer::read,
    ),
    word(
        "balancer_by_lua_file",
        "path",
        UPSTREAM,
        crate::balancer::read,
    ),
]);

const CONTENT_PLACES: Contexts = conf::LOCATION_OR_IF;

const REWRITE: &str = "Code that runs at the end of the rewrite phase.";
const ACCESS: &str =
    "Code that runs at the end of the access phase: `ngx.exit` with a status refuses.";
const CONTENT: &str = "Code that makes the response of a location.";
const HEADER_FILTER: &str = "Code that may change the head of a response. It can not wait.";
const BODY_FILTER: &str = "Code that sees each piece of the content: `ngx.arg[1]` is the piece, which it may change, \
                           `ngx.arg[2]` whether it is the last. It can not wait.";
const LOG: &str = "Code that runs when the response was sent.";

pub(crate) static CODE: Table<Code> = Table::<Code>::new(&[
    Directive {
        name: "set_by_lua_block",
        syntax: "$variable { lua-code }",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets a variable to what the code returns. It runs where it stands among `set`, `rewrite` and `if`, and \
              can not wait.",
        set: Setter::Block(Arity::ONE, Repeat::Many, crate::set::read),
    },
    Directive {
        name: "set_by_lua",
        syntax: "$variable lua-code [argument ...]",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "The same, with the code in a word. The arguments are `ngx.arg[1]` and so on.",
        set: Setter::Custom(Arity::at_least(2), Repeat::Many, crate::set::read),
    },
    Directive {
        name: "set_by_lua_file",
        syntax: "$variable path [argument ...]",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "The same, with the code in a file.",
        set: Setter::Custom(Arity::at_least(2), Repeat::Many, crate::set::read),
    },
    block(
        "rewrite_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        REWRITE,
        code,
    ),
    word("rewrite_by_lua", "lua-code", HTTP_SERVER_LOCATION_IF, code),
    word("rewrite_by_lua_file", "path", HTTP_SERVER_LOCATION_IF, code),
    block("access_by_lua_block", HTTP_SERVER_LOCATION_IF, ACCESS, code),
    word("access_by_lua", "lua-code", HTTP_SERVER_LOCATION_IF, code),
    word("access_by_lua_file", "path", HTTP_SERVER_LOCATION_IF, code),
    block("content_by_lua_block", CONTENT_PLACES, CONTENT, code),
    word("content_by_lua", "lua-code", CONTENT_PLACES, code),
    word("content_by_lua_file", "path", CONTENT_PLACES, code),
    block(
        "header_filter_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        HEADER_FILTER,
        code,
    ),
    word(
        "header_filter_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        code,
    ),
    word(
        "header_filter_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        code,
    ),
    block(
        "body_filter_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        BODY_FILTER,
        code,
    ),
    word(
        "body_filter_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        code,
    ),
    word(
        "body_filter_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        code,
    ),
    block("log_by_lua_block", HTTP_SERVER_LOCATION_IF, LOG, code),
    word("log_by_lua", "lua-code", HTTP_SERVER_LOCATION_IF, code),
    word("log_by_lua_file", "path", HTTP_SERVER_LOCATION_IF, code),
    flag(
        "lua_code_cache",
        "on",
        "With `off` each request has a machine of its own, and files are read anew: for development.",
        |c| &mut c.code_cache,
    ),
    flag(
        "lua_need_request_body",
        "off",
        "Whether the request's content is read before the scripts of rewrite and access run.",
        |c| &mut c.need_body,
    ),
    flag(
        "lua_use_default_type",
        "on",
        "Whether a response that names no type has that of `default_type`.",
        |c| &mut c.default_type,
    ),
    flag(
        "lua_http10_buffering",
        "on",
        "Accepted: a response is gathered for every client until the script asks for it to be sent.",
        |c| &mut c.http10_buffering,
    ),
    flag(
        "lua_transform_underscores_in_response_headers",
        "on",
        "Whether `_` in the names of `ngx.header` means `-`.",
        |c| &mut c.dashes,
    ),
    flag(
        "lua_check_client_abort",
        "off",
        "Whether a script ends when its client leaves before anything was sent.",
        |c| &mut c.check_client_abort,
    ),
    flag(
        "lua_socket_log_errors",
        "on",
        "Whether failures of sockets are logged besides being told to the script.",
        |c| &mut c.log_errors,
    ),
    time("lua_socket_connect_timeout", "60s", |c| {
        &mut c.connect_timeout
    }),
    time("lua_socket_send_timeout", "60s", |c| &mut c.send_timeout),
    time("lua_socket_read_timeout", "60s", |c| &mut c.read_timeout),
    time("lua_socket_keepalive_timeout", "60s", |c| {
        &mut c.keepalive_timeout
    }),
    Directive {
        name: "lua_socket_pool_size",
        syntax: "count",
        default: Some("30"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How many idle connections a pool of sockets keeps.",
        set: Setter::Number(|c| &mut c.pool_size, 0, 65536),
    },
    ignored(
        "lua_socket_send_lowat",
        HTTP_SERVER_LOCATION,
        "What a script sends is sent at once.",
    ),
    ignored(
        "lua_socket_buffer_size",
        HTTP_SERVER_LOCATION,
        "Buffers grow as needed, within bounds.",
    ),
    ignored(
        "rewrite_by_lua_no_postpone",
        HTTP,
        "Scripts of the rewrite phase run at its end.",
    ),
    ignored(
        "access_by_lua_no_postpone",
        HTTP,
        "Scripts of the access phase run at its end.",
    ),
]);

const fn flag(
    name: &'static str,
    default: &'static str,
    doc: &'static str,
    place: fn(&mut Code) -> &mut bool,
) -> Directive<Code> {
    Directive {
        name,
        syntax: "on | off",
        default: Some(default),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc,
        set: Setter::Flag(place),
    }
}

const fn time(
    name: &'static str,
    default: &'static str,
    place: fn(&mut Code) -> &mut Duration,
) -> Directive<Code> {
    Directive {
        name,
        syntax: "time",
        default: Some(default),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How long a script waits for this of a socket, unless `settimeout` says otherwise.",
        set: Setter::Millis(place),
    }
}
