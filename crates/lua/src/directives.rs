//! The directives of the Lua module in http, and the settings that they fill in.
//!
//! Most directives have three spellings: with the code in braces, in a string (`*_by_lua`), and in
//! a file (`*_by_lua_file`). They are separate rows with the same setter, because they differ in
//! what follows the name.

use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, HTTP_SERVER,
    HTTP_SERVER_LOCATION_IF, RepeatRule, STREAM_UPSTREAM, Setter, UPSTREAM,
};

use crate::balancer::{self, BalancerConf};
use crate::chunk::{LuaChunk, ScriptKind};
use crate::rows::{CERTIFICATE, CLIENT_HELLO, LOG, block_row, kind_of, word_row};
use crate::scripts::HttpScripts;

/// The setter of all script rows.
fn set_script(conf: &mut HttpScripts, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = LuaChunk::read(line, kind, 0)?;
    let place = match kind {
        // All kinds with a place in a location; the others have setters of their own.
        ScriptKind::ServerRewrite => &mut conf.server_rewrite,
        ScriptKind::Rewrite => &mut conf.rewrite,
        ScriptKind::Access => &mut conf.access,
        ScriptKind::Precontent => &mut conf.precontent,
        ScriptKind::HeaderFilter => &mut conf.header_filter,
        ScriptKind::BodyFilter => &mut conf.body_filter,
        ScriptKind::Log => &mut conf.log,
        ScriptKind::ClientHello => &mut conf.client_hello,
        ScriptKind::Certificate => &mut conf.certificate,
        ScriptKind::SessionFetch => &mut conf.session_fetch,
        ScriptKind::SessionStore => &mut conf.session_store,
        _ => &mut conf.content,
    };
    // A value that is there was inherited. The same directive twice is rejected by its row; two
    // spellings of it in one block are not, and the later one wins.
    *place = Some(chunk);
    Ok(())
}

const BALANCER: &str = "Code that chooses the upstream server of each attempt with `require \"ngx.balancer\"`. It \
                        cannot yield. The servers of the block are ignored.";

pub(crate) static UPSTREAM_ROWS: DirectiveTable<BalancerConf> =
    DirectiveTable::<BalancerConf>::new(&[
        block_row(
            "balancer_by_lua_block",
            UPSTREAM,
            BALANCER,
            balancer::set_script,
        ),
        word_row(
            "balancer_by_lua",
            "lua-code",
            UPSTREAM,
            balancer::set_script,
        ),
        word_row(
            "balancer_by_lua_file",
            "path",
            UPSTREAM,
            balancer::set_script,
        ),
    ]);

pub(crate) static STREAM_UPSTREAM_ROWS: DirectiveTable<BalancerConf> =
    DirectiveTable::<BalancerConf>::new(&[
        block_row(
            "balancer_by_lua_block",
            STREAM_UPSTREAM,
            BALANCER,
            balancer::set_stream_script,
        ),
        word_row(
            "balancer_by_lua_file",
            "path",
            STREAM_UPSTREAM,
            balancer::set_stream_script,
        ),
    ]);

const CONTENT_PLACES: Contexts = conf::LOCATION_OR_IF;

/// The descriptions of the script rows, which `_block`, string and `_file` share.
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
const SESSION_FETCH: &str = "Code that supplies the session that a TLS 1.2 client without a ticket asks to resume, with \
                             `require \"ngx.ssl.session\"`. It runs instead of a look-up in `ssl_session_cache`, and \
                             may yield.";
const SESSION_STORE: &str = "Code that stores the session of a TLS 1.2 client without a ticket, with `require \
                             \"ngx.ssl.session\"`, instead of `ssl_session_cache`. It cannot yield.";
pub(crate) static CODE: DirectiveTable<HttpScripts> = DirectiveTable::<HttpScripts>::new(&[
    Directive {
        name: "set_by_lua_block",
        syntax: "$variable { lua-code }",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets a variable to the return value of the code, which runs in order with `set`, `rewrite` and `if`. It \
              cannot yield.",
        set: Setter::Block(Arity::ONE, RepeatRule::Many, crate::set_by_lua::read),
    },
    Directive {
        name: "set_by_lua",
        syntax: "$variable lua-code [argument ...]",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Like `set_by_lua_block`, but with the code in a string. The arguments are `ngx.arg[1]`, `ngx.arg[2]` and so on.",
        set: Setter::Custom(
            Arity::at_least(2),
            RepeatRule::Many,
            crate::set_by_lua::read,
        ),
    },
    Directive {
        name: "set_by_lua_file",
        syntax: "$variable path [argument ...]",
        default: None,
        contexts: conf::SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Like `set_by_lua`, but with the code in a file.",
        set: Setter::Custom(
            Arity::at_least(2),
            RepeatRule::Many,
            crate::set_by_lua::read,
        ),
    },
    block_row(
        "server_rewrite_by_lua_block",
        HTTP_SERVER,
        SERVER_REWRITE,
        set_script,
    ),
    word_row(
        "server_rewrite_by_lua_file",
        "path",
        HTTP_SERVER,
        set_script,
    ),
    block_row(
        "rewrite_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        REWRITE,
        set_script,
    ),
    word_row(
        "rewrite_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    word_row(
        "rewrite_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    block_row(
        "access_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        ACCESS,
        set_script,
    ),
    word_row(
        "access_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    word_row(
        "access_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    block_row(
        "precontent_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        PRECONTENT,
        set_script,
    ),
    word_row(
        "precontent_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    block_row("content_by_lua_block", CONTENT_PLACES, CONTENT, set_script),
    word_row("content_by_lua", "lua-code", CONTENT_PLACES, set_script),
    word_row("content_by_lua_file", "path", CONTENT_PLACES, set_script),
    block_row(
        "header_filter_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        HEADER_FILTER,
        set_script,
    ),
    word_row(
        "header_filter_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    word_row(
        "header_filter_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    block_row(
        "body_filter_by_lua_block",
        HTTP_SERVER_LOCATION_IF,
        BODY_FILTER,
        set_script,
    ),
    word_row(
        "body_filter_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    word_row(
        "body_filter_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    block_row(
        "ssl_client_hello_by_lua_block",
        HTTP_SERVER,
        CLIENT_HELLO,
        set_script,
    ),
    word_row(
        "ssl_client_hello_by_lua_file",
        "path",
        HTTP_SERVER,
        set_script,
    ),
    block_row(
        "ssl_certificate_by_lua_block",
        HTTP_SERVER,
        CERTIFICATE,
        set_script,
    ),
    word_row(
        "ssl_certificate_by_lua_file",
        "path",
        HTTP_SERVER,
        set_script,
    ),
    block_row(
        "ssl_session_fetch_by_lua_block",
        HTTP,
        SESSION_FETCH,
        set_script,
    ),
    word_row("ssl_session_fetch_by_lua_file", "path", HTTP, set_script),
    block_row(
        "ssl_session_store_by_lua_block",
        HTTP,
        SESSION_STORE,
        set_script,
    ),
    word_row("ssl_session_store_by_lua_file", "path", HTTP, set_script),
    block_row("log_by_lua_block", HTTP_SERVER_LOCATION_IF, LOG, set_script),
    word_row(
        "log_by_lua",
        "lua-code",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    word_row(
        "log_by_lua_file",
        "path",
        HTTP_SERVER_LOCATION_IF,
        set_script,
    ),
    flag_row(
        "lua_code_cache",
        "on",
        "`off` gives each request a Lua VM of its own and reads files anew: for development.",
        |c| &mut c.code_cache,
    ),
    flag_row(
        "lua_need_request_body",
        "off",
        "Whether to read the request body before the rewrite and access scripts run.",
        |c| &mut c.need_request_body,
    ),
    flag_row(
        "lua_use_default_type",
        "on",
        "Whether a response without a type gets that of `default_type`.",
        |c| &mut c.use_default_type,
    ),
    flag_row(
        "lua_http10_buffering",
        "on",
        "Whether to buffer a response to an HTTP/1.0 client until the script has ended, so that it gets a \
         `Content-Length`; `ngx.flush` then has no effect. A response of more than 16 MB is sent immediately.",
        |c| &mut c.http10_buffering,
    ),
    flag_row(
        "lua_transform_underscores_in_response_headers",
        "on",
        "Whether `_` in the names of `ngx.header` means `-`.",
        |c| &mut c.transform_underscores,
    ),
    flag_row(
        "lua_check_client_abort",
        "off",
        "Whether to watch for client disconnects, which end the script or run the callback of `ngx.on_abort`.",
        |c| &mut c.check_client_abort,
    ),
    no_postpone_row(
        "rewrite_by_lua_no_postpone",
        "Whether rewrite scripts run at the beginning of the rewrite phase, before `set`, `if` and `rewrite`, rather \
         than at its end.",
        |c| &mut c.no_postpone.rewrite,
    ),
    no_postpone_row(
        "access_by_lua_no_postpone",
        "Whether access scripts run at the beginning of the access phase, before `allow`, `auth_basic` and \
         `auth_request`, rather than at its end.",
        |c| &mut c.no_postpone.access,
    ),
    no_postpone_row(
        "precontent_by_lua_no_postpone",
        "Whether precontent scripts run at the beginning of the precontent phase, before `try_files` and `mirror`, \
         rather than at its end.",
        |c| &mut c.no_postpone.precontent,
    ),
]);

/// A `no_postpone` flag, which is allowed in `http` only: it moves the handler of every location.
const fn no_postpone_row(
    name: &'static str,
    doc: &'static str,
    place: fn(&mut HttpScripts) -> &mut bool,
) -> Directive<HttpScripts> {
    Directive {
        contexts: HTTP,
        ..flag_row(name, "off", doc, place)
    }
}

/// An on/off row.
const fn flag_row(
    name: &'static str,
    default: &'static str,
    doc: &'static str,
    place: fn(&mut HttpScripts) -> &mut bool,
) -> Directive<HttpScripts> {
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
