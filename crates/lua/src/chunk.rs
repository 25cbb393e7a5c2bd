//! A piece of Lua code in the configuration: where it came from, and what it is for.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use bstr::ByteSlice;
use conf::{Block, Diagnostic, Expression, Line};

use crate::luajit::state::syntax_error;

/// What a chunk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Init,
    InitWorker,
    ExitWorker,
    Set,
    ServerRewrite,
    Rewrite,
    Access,
    Precontent,
    Content,
    HeaderFilter,
    BodyFilter,
    Log,
    Balancer,
    ClientHello,
    Certificate,
    SessionFetch,
    SessionStore,
    Preread,
    Timer,
    WorkerThread,
}

impl Kind {
    /// The directive's name without what says where the code stands.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Init => "init_by_lua",
            Kind::InitWorker => "init_worker_by_lua",
            Kind::ExitWorker => "exit_worker_by_lua",
            Kind::Set => "set_by_lua",
            Kind::ServerRewrite => "server_rewrite_by_lua",
            Kind::Rewrite => "rewrite_by_lua",
            Kind::Access => "access_by_lua",
            Kind::Precontent => "precontent_by_lua",
            Kind::Content => "content_by_lua",
            Kind::HeaderFilter => "header_filter_by_lua",
            Kind::BodyFilter => "body_filter_by_lua",
            Kind::Log => "log_by_lua",
            Kind::Balancer => "balancer_by_lua",
            Kind::ClientHello => "ssl_client_hello_by_lua",
            Kind::Certificate => "ssl_certificate_by_lua",
            Kind::SessionFetch => "ssl_session_fetch_by_lua",
            Kind::SessionStore => "ssl_session_store_by_lua",
            Kind::Preread => "preread_by_lua",
            Kind::Timer => "ngx.timer",
            Kind::WorkerThread => "ngx.run_worker_thread",
        }
    }

    /// What functions say that cannot be called in such a script.
    pub(crate) fn refusal(self) -> String {
        // A timer is no directive.
        let star = if self == Kind::Timer { "" } else { "*" };
        format!("API disabled in the context of {}{star}", self.name())
    }

    /// What `ngx.get_phase` says.
    pub(crate) fn phase(self) -> &'static str {
        match self {
            Kind::Init => "init",
            Kind::InitWorker => "init_worker",
            Kind::ExitWorker => "exit_worker",
            Kind::Set => "set",
            Kind::ServerRewrite => "server_rewrite",
            Kind::Rewrite => "rewrite",
            Kind::Access => "access",
            Kind::Precontent => "precontent",
            Kind::Content => "content",
            Kind::HeaderFilter => "header_filter",
            Kind::BodyFilter => "body_filter",
            Kind::Log => "log",
            Kind::Balancer => "balancer",
            Kind::ClientHello => "ssl_client_hello",
            Kind::Certificate => "ssl_cert",
            Kind::SessionFetch => "ssl_session_fetch",
            Kind::SessionStore => "ssl_session_store",
            Kind::Preread => "preread",
            Kind::Timer => "timer",
            Kind::WorkerThread => "worker_thread",
        }
    }

    /// Whether its scripts may wait for something.
    pub(crate) fn waits(self) -> bool {
        matches!(
            self,
            Kind::ServerRewrite
                | Kind::Rewrite
                | Kind::Access
                | Kind::Precontent
                | Kind::Content
                | Kind::ClientHello
                | Kind::Certificate
                | Kind::SessionFetch
                | Kind::Preread
                | Kind::Timer
        )
    }

    /// Whether its scripts may be suspended when their time is up. The others are filters, which have to come to an
    /// end.
    pub(crate) fn gives_way(self) -> bool {
        self.waits() || matches!(self, Kind::Set | Kind::Log | Kind::SessionStore)
    }

    /// Whether its scripts are part of a client's handshake.
    pub(crate) fn is_of_handshake(self) -> bool {
        matches!(
            self,
            Kind::ClientHello | Kind::Certificate | Kind::SessionFetch | Kind::SessionStore
        )
    }

    /// Whether its scripts may say something to the client.
    pub(crate) fn speaks(self) -> bool {
        matches!(
            self,
            Kind::ServerRewrite
                | Kind::Rewrite
                | Kind::Access
                | Kind::Precontent
                | Kind::Content
                | Kind::Preread
        )
    }

    /// Whether its scripts are for requests, so that a file which is not there fails no more than those.
    fn may_come_late(self) -> bool {
        self.directs()
            || matches!(
                self,
                Kind::Set | Kind::HeaderFilter | Kind::BodyFilter | Kind::Log
            )
    }

    /// Whether its scripts have a request whose way they decide, and may redirect it, or ask for others.
    pub(crate) fn directs(self) -> bool {
        self.speaks() && self != Kind::Preread
    }
}

/// A piece of code.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Its number in the configuration, to find the compiled function by.
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    /// What messages call it.
    pub(crate) name: String,
    pub(crate) source: Source,
}

/// Where the code is.
#[derive(Debug)]
pub(crate) enum Source {
    /// In the configuration. Lua counts its lines from where it begins.
    Text(Vec<u8>),
    /// In a file that was read with the configuration.
    File(PathBuf, Vec<u8>),
    /// In a file whose name is made of variables.
    Named(Expression),
}

/// How many chunks a configuration has so far.
#[derive(Default)]
struct Numbers(u32);

/// Where LuaJIT looks for libraries by itself.
const LIBRARIES: [&str; 4] = [
    "/usr/local/share/lua",
    "/usr/local/lib/lua",
    "/usr/share/lua",
    "/usr/share/luajit-2.1",
];

impl Chunk {
    fn new(line: &mut Line, kind: Kind, name: String, source: Source) -> Arc<Chunk> {
        let mut needs = line.level.build.needs();
        // LuaJIT makes machine code, and scripts name sockets.
        needs.executable_memory = true;
        needs.unix_sockets = true;
        drop(needs);
        for folder in LIBRARIES {
            line.level.build.in_prefix(conf::Access::Read, folder);
        }
        let numbers = line.shared::<Numbers>();
        numbers.0 += 1;
        Arc::new(Chunk {
            number: numbers.0,
            kind,
            name,
            source,
        })
    }

    /// The code of a line: of its block, of the file that word `i` names, or word `i` itself, as the directive's name
    /// says.
    pub(crate) fn read(line: &mut Line, kind: Kind, i: usize) -> Result<Arc<Chunk>, Diagnostic> {
        let name = line.name().to_string();
        if name.ends_with("_file") {
            return Chunk::read_file(line, kind, i);
        }
        let (word, block) = match &line.node.block {
            Block::Raw(word) => (word.clone(), true),
            _ => (
                line.get(i).cloned().ok_or_else(|| line.invalid_arity())?,
                false,
            ),
        };
        if word.text.is_empty() && !block {
            return Err(line.directive_error("invalid location config: no runnable Lua code"));
        }
        let code = word.text.to_vec();
        let shown = shown(line, kind, &word, block);
        check(line, kind, &code, (&shown, word.span))?;
        Ok(Chunk::new(line, kind, shown, Source::Text(code)))
    }

    fn read_file(line: &mut Line, kind: Kind, i: usize) -> Result<Arc<Chunk>, Diagnostic> {
        let expression = line.expression(i)?;
        if expression.constant().is_none() {
            line.level
                .build
                .prefix_for(conf::Access::Read, line.text(i));
            return Ok(Chunk::new(
                line,
                kind,
                String::new(),
                Source::Named(expression),
            ));
        }
        let word = line.arg(i).clone();
        let path = line.prefix_path(conf::Access::Read, &word);
        let read = line.files().read(&path);
        let code = match read {
            Ok(code) => code,
            // It may come until it is wanted.
            Err(error) if kind.may_come_late() && error.kind() == ErrorKind::NotFound => {
                let path = path.display();
                line.warn_at(i, format!("open() \"{path}\" failed: {error}"));
                line.level
                    .build
                    .prefix_for(conf::Access::Read, line.text(i));
                let source = Source::Named(expression);
                return Ok(Chunk::new(line, kind, String::new(), source));
            }
            Err(error) => {
                let path = path.display();
                return Err(line.error_at(i, format!("open() \"{path}\" failed: {error}")));
            }
        };
        let shown = path.display().to_string();
        check(line, kind, &code, (&shown, word.span))?;
        Ok(Chunk::new(line, kind, shown, Source::File(path, code)))
    }
}

/// How many bytes of a name Lua shows.
const SHOWN: usize = 56;

/// What messages call code that stands in the configuration, as nginx does: the directive, and the file and line where it
/// begins (of a word: ends). The file's name counts from the folder of the configuration, and loses its beginning where
/// the whole is too long for Lua to show.
fn shown(line: &Line, kind: Kind, word: &conf::Word, block: bool) -> String {
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
    if file.len() + taken <= SHOWN {
        return format!("{}({file}:{row})", kind.name());
    }
    let mut from = (file.len() + taken + 3).saturating_sub(SHOWN);
    while !file.is_char_boundary(from) {
        from += 1;
    }
    format!(
        "{}(...{}:{row})",
        kind.name(),
        file.get(from..).unwrap_or_default()
    )
}

/// Code that is not Lua fails what it is for: the start, or the request that runs it, as nginx's module compiles code when it is wanted. A
/// configuration that nginx takes is not refused for it, and the warning tells before anybody comes.
fn check(
    line: &mut Line,
    kind: Kind,
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
    if kind == Kind::Init {
        return Err(diagnostic);
    }
    diagnostic.severity = conf::Severity::Warn;
    line.level.report(diagnostic);
    Ok(())
}

/// Code without a first line that begins with `#`, whose place is kept.
pub(crate) fn without_shebang(code: &[u8]) -> &[u8] {
    match code.strip_prefix(b"#") {
        Some(_) => code.find_byte(b'\n').map_or(b"", |end| &code[end..]),
        None => code,
    }
}
