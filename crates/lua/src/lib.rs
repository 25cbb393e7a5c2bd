//! The Lua host: LuaJIT on every loop, with the directives and the `ngx` API of lua-nginx-module.
//!
//! It stands beside `modules`: it contributes modules of its own to the http and stream engines and
//! depends on none of the others. A script is a coroutine. Whatever it waits for (a socket, a
//! timer, a subrequest) is a future that the event loop polls, so a waiting script costs the loop
//! nothing; a script that computes without ever waiting is interrupted by the watchdog
//! (`luajit::watchdog`).
//!
//! Where to begin reading:
//!
//! ```text
//! directives, settings     the `*_by_lua` rows; scripts: what they make of a configuration
//! vm, loop_vms             one LuaJIT machine per event loop and configuration
//! phases, stream           which phase runs which script, and what its end means for the request
//! run                      one script at work: coroutines, light threads, waiting
//! scope                    how an API function finds the request it was called for
//! api                      the `ngx` table, one file per subject
//! luajit                   the safe interface to LuaJIT's C API
//! ```
//!
//! `unsafe` is allowed in `luajit`, `pcre` and `scope` only; each says why it is sound.
#![deny(unsafe_code)]

mod api;
mod balancer;
mod begin_run;
mod body_wait;
mod buffering;
mod chunk;
mod cosocket_settings;
mod cosocket_tls;
mod dict_changes;
mod directives;
mod filters;
mod handshake;
mod loop_vms;
#[allow(unsafe_code, reason = "calls LuaJIT, whose interface is C")]
mod luajit;
mod operation;
#[allow(unsafe_code, reason = "calls PCRE2, whose interface is C")]
mod pcre;
mod phases;
mod rows;
mod run;
mod run_owner;
#[allow(
    unsafe_code,
    reason = "lends the request to a coroutine, longer than the compiler can see"
)]
mod scope;
mod scripts;
mod set_by_lua;
mod settings;
mod shared_dict;
mod slab;
mod stream;
mod turns;
mod vm;
mod vm_configuration;
mod worker;

use http::http_site::Location;
use http::module::ModuleExplain;
use http::{HttpModule, HttpPhase};

use scripts::HttpScripts;

/// The modules of http, each with the name of the module after which it runs.
///
/// Position decides order: scripts of `rewrite_by_lua` and `access_by_lua` run at the end of their
/// phases, after nginx's own handlers, as lua-nginx-module documents. One module has one position,
/// so every further position (`*_no_postpone`, precontent, filters) is a module of its own.
pub static HTTP_MODULES: &[(&str, &HttpModule)] = &[
    ("health_check", &EARLY),
    ("auth_request", &MODULE),
    ("try_files", &PRECONTENT),
    ("lua", &SOCKETS),
    ("lua_sockets", &TLS),
    ("not_modified", &FILTERS),
];

pub use stream::STREAM_MODULES;

/// The directives with scripts by phase, for `weir explain`, which runs none of them.
const LINES: &[(HttpPhase, &[&str])] = &[
    (
        HttpPhase::Rewrite,
        &[
            "rewrite_by_lua_block",
            "rewrite_by_lua_file",
            "rewrite_by_lua",
        ],
    ),
    (
        HttpPhase::Access,
        &["access_by_lua_block", "access_by_lua_file", "access_by_lua"],
    ),
    (
        HttpPhase::Precontent,
        &["precontent_by_lua_block", "precontent_by_lua_file"],
    ),
    (
        HttpPhase::Content,
        &[
            "content_by_lua_block",
            "content_by_lua_file",
            "content_by_lua",
        ],
    ),
];

/// Those that may run at the beginning of their phase.
const EARLY_LINES: &[(HttpPhase, &[&str])] = &[
    (
        HttpPhase::ServerRewrite,
        &["server_rewrite_by_lua_block", "server_rewrite_by_lua_file"],
    ),
    LINES[0],
    LINES[1],
    LINES[2],
];

/// Those that filter a response.
const FILTER_LINES: &[(HttpPhase, &[&str])] = &[(
    HttpPhase::Content,
    &[
        "header_filter_by_lua_block",
        "header_filter_by_lua_file",
        "header_filter_by_lua",
        "body_filter_by_lua_block",
        "body_filter_by_lua_file",
        "body_filter_by_lua",
    ],
)];

/// Scripts that run before every other handler of their phase: `server_rewrite_by_lua`, and those
/// that `rewrite_by_lua_no_postpone` and its relatives move to the front.
static EARLY: HttpModule = HttpModule {
    name: "lua_early",
    doc: "Lua code at the beginning of a phase.",
    phases: &[
        (HttpPhase::ServerRewrite, phases::server_rewrite),
        (HttpPhase::Rewrite, phases::early_rewrite),
        (HttpPhase::Access, phases::early_access),
        (HttpPhase::Precontent, phases::early_precontent),
    ],
    enabled: |location| {
        let code = location.confs.get::<HttpScripts>();
        code.server_rewrite.is_some()
            || (code.no_postpone.rewrite && code.rewrite.is_some())
            || (code.no_postpone.access && code.access.is_some())
            || (code.no_postpone.precontent && code.precontent.is_some())
    },
    explain: ModuleExplain::Depends(EARLY_LINES),
    ..HttpModule::EMPTY
};

/// `precontent_by_lua`, after `try_files` and `mirror`.
static PRECONTENT: HttpModule = HttpModule {
    name: "lua_precontent",
    doc: "Lua code before the content handler.",
    phases: &[(HttpPhase::Precontent, phases::precontent)],
    enabled: |location| location.confs.get::<HttpScripts>().precontent.is_some(),
    explain: ModuleExplain::Depends(LINES),
    ..HttpModule::EMPTY
};

/// The `lua_socket_*` rows. It has settings only and never runs, but settings of their own keep
/// [`HttpScripts`], which is cloned for every location, small.
static SOCKETS: HttpModule = HttpModule {
    name: "lua_sockets",
    doc: "Settings of Lua cosockets.",
    location: &cosocket_settings::HTTP,
    enabled: |_| false,
    ..HttpModule::EMPTY
};

/// The `lua_ssl_*` rows, separate for the same reason.
static TLS: HttpModule = HttpModule {
    name: "lua_tls",
    doc: "TLS settings of Lua cosockets.",
    location: &cosocket_tls::HTTP,
    enabled: |_| false,
    ..HttpModule::EMPTY
};

/// `header_filter_by_lua` and `body_filter_by_lua`. They run before the other filters, so that a
/// script sees the response as its handler made it: not compressed, not split into ranges.
static FILTERS: HttpModule = HttpModule {
    name: "lua_filters",
    doc: "Lua code that filters responses.",
    filter: Some(filters::filter),
    enabled: |location| {
        let code = location.confs.get::<HttpScripts>();
        code.header_filter.is_some() || code.body_filter.is_some()
    },
    explain: ModuleExplain::Depends(FILTER_LINES),
    ..HttpModule::EMPTY
};

/// The scripts of the ordinary phases, the `init` scripts and `balancer_by_lua`.
static MODULE: HttpModule = HttpModule {
    name: "lua",
    doc: "Lua code in the phases of a request.",
    main: &settings::MAIN,
    upstream: &directives::UPSTREAM_ROWS,
    blocks: &[&directives::UPSTREAM_ROWS],
    location: &directives::CODE,
    phases: &[
        (HttpPhase::Rewrite, phases::rewrite),
        (HttpPhase::Access, phases::access),
        (HttpPhase::Log, phases::log),
    ],
    enabled: is_used,
    nested: |confs| {
        confs.change_if::<HttpScripts>(|code| code.content.is_some(), HttpScripts::drop_content)
    },
    trial: |site| loop_vms::init_trial(site.main_confs.get(), vm_configuration::LuaSubsystem::Http),
    accept: |site, zones| {
        vm::LuaVm::try_init(
            site.main_confs.get(),
            vm_configuration::LuaSubsystem::Http,
            zones,
        )
    },
    start: worker::start_http,
    stop: worker::stop_http,
    handshake: Some(http::module::HttpHandshake {
        when: |server| {
            let code = server.confs.get::<HttpScripts>();
            let keeps = code.session_fetch.is_some() || code.session_store.is_some();
            code.client_hello.is_some() || code.certificate.is_some() || keeps
        },
        session_storage: |server| {
            let code = server.confs.get::<HttpScripts>();
            http::module::SessionStorage {
                fetches: code.session_fetch.is_some(),
                stores: code.session_store.is_some(),
            }
        },
        handler: handshake::on_http_handshake,
    }),
    content_handler: Some(http::module::ContentHandler {
        directives: &[
            "content_by_lua_block",
            "content_by_lua",
            "content_by_lua_file",
        ],
        when: |location| location.confs.get::<HttpScripts>().content.is_some(),
        handler: phases::content,
        adds_slash: false,
        declines: false,
    }),
    explain: ModuleExplain::Depends(LINES),
    ..HttpModule::EMPTY
};

/// Whether a location has scripts in the phases of this module; for others the phases have no
/// handler.
fn is_used(location: &Location) -> bool {
    let code = location.confs.get::<HttpScripts>();
    code.rewrite.is_some() || code.access.is_some() || code.log.is_some() || code.content.is_some()
}
