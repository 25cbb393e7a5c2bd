//! The Lua host: LuaJIT on every loop, with the directives and the `ngx` API of lua-nginx-module.
//!
//! It stands beside `modules`: it gives the http engine modules of its own and knows none of the others. A request's
//! script is a coroutine; what it waits for is awaited on the loop, so that nothing it does holds the loop, and the
//! watchdog sees to scripts that never wait. Begin to read at [`run`].
//!
//! `unsafe` is allowed in [`luajit`], [`pcre`] and [`scope`] only; each says why it is sound.
#![deny(unsafe_code)]

mod api;
mod balancer;
mod chunk;
mod dictionary;
mod directives;
mod fairness;
mod filters;
mod handshake;
mod home;
#[allow(unsafe_code)]
mod luajit;
mod operation;
#[allow(unsafe_code)]
mod pcre;
mod phases;
mod run;
#[allow(unsafe_code)]
mod scope;
mod set;
mod settings;
mod slab;
mod sockets;
mod stream;
mod tls;
mod vm;
mod worker;

use http::site::Location;
use http::{Module, Phase};

use directives::Code;

/// The modules of http, each with the name of the module after which it runs.
pub static HTTP_MODULES: &[(&str, &Module)] = &[
    ("health_check", &EARLY),
    ("auth_request", &MODULE),
    ("try_files", &PRECONTENT),
    ("lua", &SOCKETS),
    ("lua_sockets", &TLS),
    ("not_modified", &FILTERS),
];

pub use stream::STREAM_MODULES;

/// Scripts at the beginning of their phases: before every module that has something to say there.
static EARLY: Module = Module {
    name: "lua_early",
    doc: "Lua code at the beginning of a phase.",
    phases: &[
        (Phase::ServerRewrite, phases::server_rewrite),
        (Phase::Rewrite, phases::early_rewrite),
        (Phase::Access, phases::early_access),
        (Phase::Precontent, phases::early_precontent),
    ],
    enabled: |location| {
        let code = location.confs.get::<Code>();
        code.server_rewrite.is_some()
            || (code.early.rewrite && code.rewrite.is_some())
            || (code.early.access && code.access.is_some())
            || (code.early.precontent && code.precontent.is_some())
    },
    ..Module::EMPTY
};

/// Scripts at the end of the precontent phase.
static PRECONTENT: Module = Module {
    name: "lua_precontent",
    doc: "Lua code before the content handler.",
    phases: &[(Phase::Precontent, phases::precontent)],
    enabled: |location| location.confs.get::<Code>().precontent.is_some(),
    ..Module::EMPTY
};

/// The settings of sockets.
static SOCKETS: Module = Module {
    name: "lua_sockets",
    doc: "Settings of Lua cosockets.",
    location: &sockets::HTTP,
    enabled: |_| false,
    ..Module::EMPTY
};

/// The TLS of sockets.
static TLS: Module = Module {
    name: "lua_tls",
    doc: "TLS settings of Lua cosockets.",
    location: &tls::HTTP,
    enabled: |_| false,
    ..Module::EMPTY
};

/// The filters.
static FILTERS: Module = Module {
    name: "lua_filters",
    doc: "Lua code that filters responses.",
    filter: Some(filters::filter),
    enabled: |location| {
        let code = location.confs.get::<Code>();
        code.header_filter.is_some() || code.body_filter.is_some()
    },
    ..Module::EMPTY
};

/// The directives and the phases.
static MODULE: Module = Module {
    name: "lua",
    doc: "Lua code in the phases of a request.",
    main: &settings::MAIN,
    upstream: &directives::UPSTREAM_ROWS,
    blocks: &[&directives::UPSTREAM_ROWS],
    location: &directives::CODE,
    phases: &[
        (Phase::Rewrite, phases::rewrite),
        (Phase::Access, phases::access),
        (Phase::Log, phases::log),
    ],
    enabled: is_used,
    nested: |confs| confs.change_if::<Code>(|code| code.content.is_some(), Code::nested),
    trial: |site| vm::trial(site.main_confs.get(), home::Engine::Http),
    commit: |site, zones| vm::Vm::trial(site.main_confs.get(), home::Engine::Http, zones),
    start: worker::start,
    stop: worker::stop,
    handshake: Some(http::module::Handshake {
        when: |server| {
            let code = server.confs.get::<Code>();
            let keeps = code.session_fetch.is_some() || code.session_store.is_some();
            code.client_hello.is_some() || code.certificate.is_some() || keeps
        },
        keeps: |server| {
            let code = server.confs.get::<Code>();
            http::module::Keeps {
                fetches: code.session_fetch.is_some(),
                stores: code.session_store.is_some(),
            }
        },
        handler: handshake::of_http,
    }),
    answer: Some(http::module::Answer {
        directives: &[
            "content_by_lua_block",
            "content_by_lua",
            "content_by_lua_file",
        ],
        when: |location| location.confs.get::<Code>().content.is_some(),
        handler: phases::content,
        adds_slash: false,
    }),
    ..Module::EMPTY
};

fn is_used(location: &Location) -> bool {
    let code = location.confs.get::<Code>();
    code.rewrite.is_some() || code.access.is_some() || code.log.is_some() || code.content.is_some()
}
