//! A chunk of Lua code in the configuration: where it came from, and what it is for.
//!
//! A chunk is compiled per VM, not here: this only keeps the text, and a number by which each VM
//! finds its compiled function. The text of a `_file` is read with the configuration, so that the
//! worker needs no access to the file, unless the name has variables.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use bstr::ByteSlice;
use conf::{BlockContent, Diagnostic, DirectiveLine, DirectiveWord, Expression};

use crate::luajit::state::syntax_error;

/// What a chunk is for: the directive that it belongs to, or the API that started it. Everything
/// that depends on the phase is asked here, so that no API function lists phases by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptKind {
    /// When a VM is created: modules and globals that all scripts of the VM share. Cannot wait.
    Init,
    /// When a loop begins with a configuration: the place to start timers. Cannot wait.
    InitWorker,
    /// When a loop ends. Cannot wait, and nothing that it starts would run.
    ExitWorker,
    /// Computes a variable among the rewrite directives. Cannot wait, as documented.
    Set,
    /// Before a location is selected.
    ServerRewrite,
    /// At the end of the rewrite phase, or at its beginning (`rewrite_by_lua_no_postpone`).
    Rewrite,
    /// At the end of the access phase, or at its beginning.
    Access,
    /// After `try_files`, before the content handler.
    Precontent,
    /// A content handler.
    Content,
    /// Before the response header is sent. Cannot wait: the response is on its way.
    HeaderFilter,
    /// For each chunk of the body. Cannot wait.
    BodyFilter,
    /// After the response. Cannot wait, but may be preempted.
    Log,
    /// For each attempt to reach an upstream server. Cannot wait.
    Balancer,
    /// During a TLS handshake, before a server is selected. May wait.
    ClientHello,
    /// During a TLS handshake, to select the certificate. May wait.
    Certificate,
    /// During a TLS handshake, to find the session that is resumed. May wait.
    SessionFetch,
    /// After a TLS handshake, to keep its session. Cannot wait.
    SessionStore,
    /// In stream, at the end of the preread phase.
    Preread,
    /// A function started by `ngx.timer`; there is no directive of its own.
    Timer,
    /// A function started by `ngx.run_worker_thread`.
    WorkerThread,
}

impl ScriptKind {
    /// The directive's name without `_block` or `_file`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ScriptKind::Init => "init_by_lua",
            ScriptKind::InitWorker => "init_worker_by_lua",
            ScriptKind::ExitWorker => "exit_worker_by_lua",
            ScriptKind::Set => "set_by_lua",
            ScriptKind::ServerRewrite => "server_rewrite_by_lua",
            ScriptKind::Rewrite => "rewrite_by_lua",
            ScriptKind::Access => "access_by_lua",
            ScriptKind::Precontent => "precontent_by_lua",
            ScriptKind::Content => "content_by_lua",
            ScriptKind::HeaderFilter => "header_filter_by_lua",
            ScriptKind::BodyFilter => "body_filter_by_lua",
            ScriptKind::Log => "log_by_lua",
            ScriptKind::Balancer => "balancer_by_lua",
            ScriptKind::ClientHello => "ssl_client_hello_by_lua",
            ScriptKind::Certificate => "ssl_certificate_by_lua",
            ScriptKind::SessionFetch => "ssl_session_fetch_by_lua",
            ScriptKind::SessionStore => "ssl_session_store_by_lua",
            ScriptKind::Preread => "preread_by_lua",
            ScriptKind::Timer => "ngx.timer",
            ScriptKind::WorkerThread => "ngx.run_worker_thread",
        }
    }

    /// The error of API functions that are not available here, in lua-nginx-module's words.
    pub(crate) fn refusal(self) -> String {
        // The star stands for the endings of a directive's name; a timer is not a directive.
        let star = if self == ScriptKind::Timer { "" } else { "*" };
        format!("API disabled in the context of {}{star}", self.name())
    }

    /// The result of `ngx.get_phase`. The names are lua-nginx-module's; `ssl_cert` is short there,
    /// too.
    pub(crate) fn phase(self) -> &'static str {
        match self {
            ScriptKind::Init => "init",
            ScriptKind::InitWorker => "init_worker",
            ScriptKind::ExitWorker => "exit_worker",
            ScriptKind::Set => "set",
            ScriptKind::ServerRewrite => "server_rewrite",
            ScriptKind::Rewrite => "rewrite",
            ScriptKind::Access => "access",
            ScriptKind::Precontent => "precontent",
            ScriptKind::Content => "content",
            ScriptKind::HeaderFilter => "header_filter",
            ScriptKind::BodyFilter => "body_filter",
            ScriptKind::Log => "log",
            ScriptKind::Balancer => "balancer",
            ScriptKind::ClientHello => "ssl_client_hello",
            ScriptKind::Certificate => "ssl_cert",
            ScriptKind::SessionFetch => "ssl_session_fetch",
            ScriptKind::SessionStore => "ssl_session_store",
            ScriptKind::Preread => "preread",
            ScriptKind::Timer => "timer",
            ScriptKind::WorkerThread => "worker_thread",
        }
    }

    /// Whether its scripts may yield: sleep, use cosockets, wait for threads.
    pub(crate) fn may_yield(self) -> bool {
        matches!(
            self,
            ScriptKind::ServerRewrite
                | ScriptKind::Rewrite
                | ScriptKind::Access
                | ScriptKind::Precontent
                | ScriptKind::Content
                | ScriptKind::ClientHello
                | ScriptKind::Certificate
                | ScriptKind::SessionFetch
                | ScriptKind::Preread
                | ScriptKind::Timer
        )
    }

    /// Whether the watchdog may suspend its scripts when their time slice is over. The others are
    /// filters and the like, whose callers need the result at once.
    pub(crate) fn is_preemptible(self) -> bool {
        self.may_yield()
            || matches!(
                self,
                ScriptKind::Set | ScriptKind::Log | ScriptKind::SessionStore
            )
    }

    /// Whether its scripts are part of a TLS handshake.
    pub(crate) fn is_handshake(self) -> bool {
        matches!(
            self,
            ScriptKind::ClientHello
                | ScriptKind::Certificate
                | ScriptKind::SessionFetch
                | ScriptKind::SessionStore
        )
    }

    /// Whether its scripts may send output to the client.
    pub(crate) fn may_send_output(self) -> bool {
        matches!(
            self,
            ScriptKind::ServerRewrite
                | ScriptKind::Rewrite
                | ScriptKind::Access
                | ScriptKind::Precontent
                | ScriptKind::Content
                | ScriptKind::Preread
        )
    }

    /// Whether its scripts run for requests, so that a missing file fails only those.
    fn may_load_late(self) -> bool {
        self.controls_request()
            || matches!(
                self,
                ScriptKind::Set
                    | ScriptKind::HeaderFilter
                    | ScriptKind::BodyFilter
                    | ScriptKind::Log
            )
    }

    /// Whether its scripts control a request: may redirect it or make subrequests.
    pub(crate) fn controls_request(self) -> bool {
        self.may_send_output() && self != ScriptKind::Preread
    }
}

/// A chunk of Lua code.
#[derive(Debug)]
pub(crate) struct LuaChunk {
    /// Its number in the configuration, by which a VM finds the compiled function.
    pub(crate) number: u32,
    pub(crate) kind: ScriptKind,
    /// The name in error messages and tracebacks.
    pub(crate) name: Arc<str>,
    pub(crate) source: ChunkSource,
}

/// Where the code comes from.
#[derive(Debug)]
pub(crate) enum ChunkSource {
    /// It is in the configuration. Lua counts its lines from where it begins there.
    Inline(Vec<u8>),
    /// It is in a file that was read with the configuration, so that a reload picks up a consistent
    /// set, and a sandboxed worker need not open it.
    File(PathBuf, Vec<u8>),
    /// It is in a file whose name contains variables, or that does not exist yet: read at run time.
    ByVariables(Expression),
}

/// Counts the chunks of a configuration.
#[derive(Default)]
struct ChunkCount(u32);

/// Where LuaJIT looks for libraries without being told: a sandboxed worker must be able to read
/// them.
const LIBRARIES: [&str; 4] = [
    "/usr/local/share/lua",
    "/usr/local/lib/lua",
    "/usr/share/lua",
    "/usr/share/luajit-2.1",
];

impl LuaChunk {
    fn new(
        line: &mut DirectiveLine,
        kind: ScriptKind,
        name: String,
        source: ChunkSource,
    ) -> Arc<LuaChunk> {
        let mut needs = line.level.build.needs();
        // What a sandbox must leave to the worker: LuaJIT writes machine code and executes it, and
        // scripts may connect to any unix socket.
        needs.executable_memory = true;
        needs.unix_sockets = true;
        drop(needs);
        for folder in LIBRARIES {
            line.level.build.in_prefix(conf::PathUse::Read, folder);
        }
        // A reload reads code again and runs it anew.
        line.must_read_all();
        let numbers = line.shared::<ChunkCount>();
        numbers.0 += 1;
        Arc::new(LuaChunk {
            number: numbers.0,
            kind,
            name: name.into(),
            source,
        })
    }

    /// The code of a directive: its block, word `i` itself, or the file that word `i` names,
    /// depending on the ending of the directive's name.
    pub(crate) fn read(
        line: &mut DirectiveLine,
        kind: ScriptKind,
        i: usize,
    ) -> Result<Arc<LuaChunk>, Diagnostic> {
        let name = line.name().to_string();
        if name.ends_with("_file") {
            return LuaChunk::read_file(line, kind, i);
        }
        let (word, block) = match &line.node.block {
            BlockContent::Raw(word) => (DirectiveWord::clone(word), true),
            _ => (
                line.get(i).cloned().ok_or_else(|| line.invalid_arity())?,
                false,
            ),
        };
        if word.text.is_empty() && !block {
            // An empty block is fine and does nothing; an empty string is an error, as in
            // lua-nginx-module.
            return Err(line.directive_error("invalid location config: no runnable Lua code"));
        }
        let code = word.text.to_vec();
        let shown = chunk_name(line, kind, &word, block);
        check_syntax(line, kind, &code, (&shown, word.span))?;
        Ok(LuaChunk::new(line, kind, shown, ChunkSource::Inline(code)))
    }

    /// Reads a `_file` directive. A name with variables is only known per request.
    fn read_file(
        line: &mut DirectiveLine,
        kind: ScriptKind,
        i: usize,
    ) -> Result<Arc<LuaChunk>, Diagnostic> {
        let expression = line.expression(i)?;
        // Only the request will tell the name. The sandbox has to permit the directory that its
        // constant beginning names.
        if expression.constant().is_none() {
            line.level
                .build
                .prefix_for(conf::PathUse::Read, line.text(i));
            return Ok(LuaChunk::new(
                line,
                kind,
                String::new(),
                ChunkSource::ByVariables(expression),
            ));
        }
        let word = line.arg(i).clone();
        let path = line.prefix_path(conf::PathUse::Read, &word);
        let read = line.files().read(&path);
        let code = match read {
            Ok(code) => code,
            // The file may be deployed later. nginx opens it at the first request, so a
            // configuration that names a missing file must be accepted; it is treated like a name
            // with variables.
            Err(error) if kind.may_load_late() && error.kind() == ErrorKind::NotFound => {
                let path = path.display();
                line.warn_at(i, format!("open() \"{path}\" failed: {error}"));
                line.level
                    .build
                    .prefix_for(conf::PathUse::Read, line.text(i));
                let source = ChunkSource::ByVariables(expression);
                return Ok(LuaChunk::new(line, kind, String::new(), source));
            }
            Err(error) => {
                let path = path.display();
                return Err(line.error_at(i, format!("open() \"{path}\" failed: {error}")));
            }
        };
        let shown = path.display().to_string();
        check_syntax(line, kind, &code, (&shown, word.span))?;
        Ok(LuaChunk::new(
            line,
            kind,
            shown,
            ChunkSource::File(path, code),
        ))
    }
}

/// How many bytes of a chunk's name Lua shows.
const MAX_SHOWN_NAME: usize = 56;

/// The name of a chunk that is in the configuration, in lua-nginx-module's form: the directive, and
/// the file and line where the code begins (for a string: ends). The path is relative to the folder
/// of the configuration, and loses its beginning if the whole would be too long for Lua to show.
fn chunk_name(line: &DirectiveLine, kind: ScriptKind, word: &DirectiveWord, block: bool) -> String {
    let sources = line.sources();
    let mut span = match block {
        true => line.node.name.span,
        false => word.span,
    };
    if !block {
        span.start = span.end;
    }
    let row = sources.line_column(span).map_or(1, |(row, _)| row);
    let place = sources.place(span).unwrap_or_default();
    let file = place.rsplit_once(':').map_or(&*place, |(file, _)| file);
    let files = sources.unique_files();
    let folder = files.first().and_then(|first| first.path.parent());
    let inside = folder.and_then(|folder| {
        let folder = folder.to_str()?;
        file.strip_prefix(folder)?.strip_prefix('/')
    });
    let file = match file.ends_with("/nginx.conf") {
        true => "nginx.conf",
        false => inside.unwrap_or(file),
    };
    let taken = kind.name().len() + row.to_string().len();
    if file.len() + taken <= MAX_SHOWN_NAME {
        return format!("{}({file}:{row})", kind.name());
    }
    let mut from = (file.len() + taken + 3).saturating_sub(MAX_SHOWN_NAME);
    while !file.is_char_boundary(from) {
        from += 1;
    }
    format!(
        "{}(...{}:{row})",
        kind.name(),
        file.get(from..).unwrap_or_default()
    )
}

/// Checks the syntax. lua-nginx-module compiles code when it first runs, so an invalid script does
/// not stop nginx from starting, except `init_by_lua`, which runs at the start. The same
/// configurations must start here, so the error is a warning, shown before a client finds it.
fn check_syntax(
    line: &mut DirectiveLine,
    kind: ScriptKind,
    code: &[u8],
    (name, span): (&str, conf::Span),
) -> Result<(), Diagnostic> {
    let code = without_shebang(code);
    let Some(message) = syntax_error(code, name) else {
        return Ok(());
    };
    let text = format!(
        "failed to load the Lua code of \"{}\": {}",
        line.name(),
        message.as_bstr()
    );
    let mut diagnostic = Diagnostic::error(text, Some(span));
    if kind == ScriptKind::Init {
        return Err(diagnostic);
    }
    diagnostic.severity = conf::Severity::Warn;
    line.level.report(diagnostic);
    Ok(())
}

/// The code without a `#!` line. The line's end stays, so that line numbers are right.
pub(crate) fn without_shebang(code: &[u8]) -> &[u8] {
    match code.strip_prefix(b"#") {
        Some(_) => code.find_byte(b'\n').map_or(b"", |end| &code[end..]),
        None => code,
    }
}
