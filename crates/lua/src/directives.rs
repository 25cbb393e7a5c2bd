//! The rows of the Lua module, and the settings that they make.

use std::sync::Arc;

use conf::{
    Arity, Contexts, Diagnostic, Directive, HTTP, HTTP_SERVER, HTTP_SERVER_LOCATION_IF, Line,
    Repeat, STREAM_UPSTREAM, Setter, Table, UPSTREAM,
};

use crate::balancer::{self, Balancer};
use crate::chunk::{Chunk, Kind};

/// Which scripts run at the beginning of their phase.
#[derive(Clone, Copy, Default)]
pub(crate) struct Early {
    pub(crate) rewrite: bool,
    pub(crate) access: bool,
    pub(crate) precontent: bool,
}

/// What belongs to a location.
#[derive(Clone, Default)]
pub(crate) struct Code {
    /// Of a server; its locations' own copies mean nothing.
    pub(crate) server_rewrite: Option<Arc<Chunk>>,
    pub(crate) rewrite: Option<Arc<Chunk>>,
    pub(crate) access: Option<Arc<Chunk>>,
    pub(crate) precontent: Option<Arc<Chunk>>,
    pub(crate) early: Early,
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
    pub(crate) client_hello: Option<Arc<Chunk>>,
    pub(crate) certificate: Option<Arc<Chunk>>,
    pub(crate) session_fetch: Option<Arc<Chunk>>,
    pub(crate) session_store: Option<Arc<Chunk>>,
}

impl Code {
    /// What nested locations do not inherit.
    pub(crate) fn nested(&mut self) {
        self.content = None;
    }
}

/// The three spellings of a directive: code in braces, code in a word, the name of a file.
pub(crate) const fn block<C>(
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

pub(crate) const fn word<C>(
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
        doc: "Like the directive with `_block`, but with the code in a string or, for `_file`, in a file.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, set),
    }
}

pub(crate) const fn ignored<C>(
    name: &'static str,
    contexts: Contexts,
    why: &'static str,
) -> Directive<C> {
    Directive {
        name,
        syntax: "value ...",
        default: None,
        contexts,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ANY, why),
    }
}

/// What a directive is for, by its name.
pub(crate) fn kind_of(line: &Line) -> Kind {
    let name = line.name().to_string();
    let stem = name
        .strip_suffix("_block")
        .or_else(|| name.strip_suffix("_file"))
        .unwrap_or(&name);
    [
        Kind::Init,
        Kind::InitWorker,
        Kind::ExitWorker,
        Kind::ServerRewrite,
        Kind::Rewrite,
        Kind::Access,
        Kind::Precontent,
        Kind::Content,
        Kind::HeaderFilter,
        Kind::BodyFilter,
        Kind::Balancer,
        Kind::ClientHello,
        Kind::Certificate,
        Kind::SessionFetch,
        Kind::SessionStore,
        Kind::Preread,
        Kind::Log,
    ]
    .into_iter()
    .find(|kind| kind.name() == stem)
    .unwrap_or(Kind::Content)
}

fn code(conf: &mut Code, line: &mut Line) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = Chunk::read(line, kind, 0)?;
    let place = match kind {
        Kind::ServerRewrite => &mut conf.server_rewrite,
        Kind::Rewrite => &mut conf.rewrite,
        Kind::Access => &mut conf.access,
        Kind::Precontent => &mut conf.precontent,
        Kind::HeaderFilter => &mut conf.header_filter,
        Kind::BodyFilter => &mut conf.body_filter,
        Kind::Log => &mut conf.log,
        Kind::ClientHello => &mut conf.client_hello,
        Kind::Certificate => &mut conf.certificate,
        Kind::SessionFetch => &mut conf.session_fetch,
        Kind::SessionStore => &mut conf.session_store,
        _ => &mut conf.content,
    };
    // What stands here already was inherited: the same name twice is found by its row, and the spellings of one
    // directive are few enough to be told apart by eye.
    *place = Some(chunk);
    Ok(())
}

const BALANCER: &str = "Code that chooses the upstream server of each attempt with `require \"ngx.balancer\"`. It \
                        cannot yield. The servers of the block are ignored.";

pub(crate) static UPSTREAM_ROWS: Table<Balancer> = Table::<Balancer>::new(&[
    block("balancer_by_lua_block", UPSTREAM, BALANCER, balancer::read),
    word("balancer_by_lua", "lua-code", UPSTREAM, balancer::read),
    word("balancer_by_lua_file", "path", UPSTREAM, balancer::read),
]);

pub(crate) static STREAM_UPSTREAM_ROWS: Table<Balancer> = Table::<Balancer>::new(&[
    block(
        "balancer_by_lua_block",
        STREAM_UPSTREAM,
        BALANCER,
        balancer::read_stream,
    ),
    word(
        "balancer_by_lua_file",
        "path",
        STREAM_UPSTREAM,
        balancer::read_stream,
    ),
]);

const CONTENT_PLACES: Contexts = conf::LOCATION_OR_IF;

const SERVER_REWRITE: &str = "Code that runs before the rewrite directives of the server and before a location is \
                              chosen, including for subrequests and internal redirects.";
const REWRITE: &str = "Code that runs at the end of the rewrite phase.";
const ACCESS: &str =
    "Code that runs at the end of the access phase; `ngx.exit` with a status rejects the request.";
const PRECONTENT: &str = "Code that runs at the end of the precontent phase: after `try_files`, before the content handler.";
const CONTENT: &str = "Code that generates the response of a location.";
const HEADER_FILTER: &str = "Code that can change the response header. It cannot yield.";
const BODY_FILTER: &str = "Code that sees each chunk of the response body: `ngx.arg[1]` is the chunk, which can be \
                           changed; `ngx.arg[2]` tells whether it is the last. It cannot yield.";
pub(crate) const CLIENT_HELLO: &str = "Code that runs when the TLS ClientHello has been read, before a server is \
                          chosen by SNI; it is taken from the default server of the address. `ngx.exit(ngx.ERROR)` \
                          aborts the handshake.";
pub(crate) const CERTIFICATE: &str = "Code that chooses the certificate of a TLS connection with `require \
                         \"ngx.ssl\"`. It runs for each handshake, including resumed ones, and may yield. \
                         `ngx.exit(ngx.ERROR)` aborts the handshake.";
const SESSION_FETCH: &str = "Code that supplies the session that a TLS 1.2 client without a ticket asks to resume, with \
                             `require \"ngx.ssl.session\"`. It runs instead of a look-up in `ssl_session_cache`, and \
                             may yield.";
const SESSION_STORE: &str = "Code that stores the session of a TLS 1.2 client without a ticket, with `require \
                             \"ngx.ssl.session\"`, instead of `ssl_session_cache`. It cannot yield.";
pub(crate) const LOG: &str = "Code that runs in the log phase, after the response has been sent.";

pub(crate) static CODE: Table<Code> = Table::<Code>::new(&[
    Directive {
        name: "set_by_lua_block",
        syntax: "$variable { lua-code }",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets a variable to the return value of the code, which runs in order with `set`, `rewrite` and `if`. It \
              cannot yield.",
        set: Setter::Block(Arity::ONE, Repeat::Many, crate::set::read),
    },
    Directive {
        name: "set_by_lua",
        syntax: "$variable lua-code [argument ...]",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Like `set_by_lua_block`, but with the code in a string. The arguments are `ngx.arg[1]`, `ngx.arg[2]` and so on.",
        set: Setter::Custom(Arity::at_least(2), Repeat::Many, crate::set::read),
    },
    Directive {
        name: "set_by_lua_file",
        syntax: "$variable path [argument ...]",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Like `set_by_lua`, but with the code in a file.",
        set: Setter::Custom(Arity::at_least(2), Repeat::Many, crate::set::read),
    },
    block(
        "server_rewrite_by_lua_block",
        HTTP_SERVER,
        SERVER_REWRITE,
        code,
    ),
    word("server_rewrite_by_lua_file", "path", HTTP_SERVER, code),
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
    block(
        "precontent_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        PRECONTENT,
        code,
    ),
    word(
        "precontent_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        code,
    ),
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
    block(
        "ssl_client_hello_by_lua_block",
        HTTP_SERVER,
        CLIENT_HELLO,
        code,
    ),
    word("ssl_client_hello_by_lua_file", "path", HTTP_SERVER, code),
    block(
        "ssl_certificate_by_lua_block",
        HTTP_SERVER,
        CERTIFICATE,
        code,
    ),
    word("ssl_certificate_by_lua_file", "path", HTTP_SERVER, code),
    block("ssl_session_fetch_by_lua_block", HTTP, SESSION_FETCH, code),
    word("ssl_session_fetch_by_lua_file", "path", HTTP, code),
    block("ssl_session_store_by_lua_block", HTTP, SESSION_STORE, code),
    word("ssl_session_store_by_lua_file", "path", HTTP, code),
    block("log_by_lua_block", HTTP_SERVER_LOCATION_IF, LOG, code),
    word("log_by_lua", "lua-code", HTTP_SERVER_LOCATION_IF, code),
    word("log_by_lua_file", "path", HTTP_SERVER_LOCATION_IF, code),
    flag(
        "lua_code_cache",
        "on",
        "`off` gives each request a Lua VM of its own and reads files anew: for development.",
        |c| &mut c.code_cache,
    ),
    flag(
        "lua_need_request_body",
        "off",
        "Whether to read the request body before the rewrite and access scripts run.",
        |c| &mut c.need_body,
    ),
    flag(
        "lua_use_default_type",
        "on",
        "Whether a response without a type gets that of `default_type`.",
        |c| &mut c.default_type,
    ),
    flag(
        "lua_http10_buffering",
        "on",
        "Whether to buffer a response to an HTTP/1.0 client until the script has ended, so that it gets a \
         `Content-Length`; `ngx.flush` then has no effect. A response of more than 16 MB is sent immediately.",
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
        "Whether to watch for client disconnects, which end the script or run the callback of `ngx.on_abort`.",
        |c| &mut c.check_client_abort,
    ),
    early(
        "rewrite_by_lua_no_postpone",
        "Whether rewrite scripts run at the beginning of the rewrite phase, before `set`, `if` and `rewrite`, rather \
         than at its end.",
        |c| &mut c.early.rewrite,
    ),
    early(
        "access_by_lua_no_postpone",
        "Whether access scripts run at the beginning of the access phase, before `allow`, `auth_basic` and \
         `auth_request`, rather than at its end.",
        |c| &mut c.early.access,
    ),
    early(
        "precontent_by_lua_no_postpone",
        "Whether precontent scripts run at the beginning of the precontent phase, before `try_files` and `mirror`, \
         rather than at its end.",
        |c| &mut c.early.precontent,
    ),
]);

const fn early(
    name: &'static str,
    doc: &'static str,
    place: fn(&mut Code) -> &mut bool,
) -> Directive<Code> {
    Directive {
        contexts: HTTP,
        ..flag(name, "off", doc, place)
    }
}

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
