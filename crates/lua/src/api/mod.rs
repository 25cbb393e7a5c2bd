//! The `ngx` API, by subject.
//!
//! Each file has the functions of one subject as a table of names and Rust functions. What is said
//! better in Lua is in `prelude.lua` and the files beside it. They run once for each VM, and
//! receive the functions that only they use (`CORE`) as a table, so that scripts cannot call those
//! directly.
//!
//! The surface is that of lua-nginx-module with lua-resty-core, which every OpenResty release
//! contains; error messages included, since libraries match on them.

mod arguments;
mod balancer;
mod called;
mod capture;
mod cosocket_transport;
mod crypto;
mod downstream;
mod encode;
mod hash_ring;
mod jit;
mod json;
mod json_decode;
mod library;
mod misc;
mod ocsp;
mod output;
mod pipe;
mod regex;
mod request;
mod request_file;
mod response;
mod shared;
mod ssl;
mod tcp;
mod template;
mod thread;
mod timer;
mod udp;
mod variables;
mod worker_thread;

use std::rc::Rc;

use bstr::ByteSlice;
use host::error_log::LogLevel;

pub(crate) use called::{CallResult, NONE, NativeTable, ONE, wait};
pub(crate) use downstream::{give_back, give_back_to_session};
pub(crate) use misc::clear_request_ctx;
pub(crate) use response::default_content_type;
pub(crate) use tcp::{ConnectedSockets, CosocketPools, TcpCosocket};

use crate::luajit::LuaStack;
use crate::luajit::native::{GIVES_WAY, WAITS};
use crate::luajit::stack::{GLOBALS, LuaType};
use crate::vm::LuaVm;

static PRELUDE: &[u8] = include_bytes!("prelude.lua");
static SOCKETS: &[u8] = include_bytes!("sockets.lua");
static PIPE: &[u8] = include_bytes!("pipe.lua");
static BALANCERS: &[u8] = include_bytes!("balancers.lua");

/// The modules of lua-resty-core that are written in Lua.
static RESTY_CORE: &[u8] = include_bytes!("surface.lua");

/// Installs the API in a new VM.
pub(crate) fn install(vm: &Rc<LuaVm>) {
    let stack = vm.state.stack();
    set_paths(&stack, vm);
    push_ngx(&stack, vm);
    stack.set(GLOBALS, "ngx");
    push_core(&stack);
    for (name, code) in [
        ("weir", PRELUDE),
        ("weir.core", RESTY_CORE),
        ("weir sockets", SOCKETS),
        ("weir pipe", PIPE),
        ("weir crypto", crypto::MODULES),
        ("weir balancers", BALANCERS),
    ] {
        // Only a bug of ours can cause this, since the code is built in.
        if let Err(message) = run_prelude(&stack, name, code) {
            vm.log
                .log_plain(LogLevel::Emerg, format_args!("lua: {}", message.as_bstr()));
        }
    }
    stack.pop(1);
    jit::install(&stack);
}

/// Runs built-in code, with the table on top as its argument.
fn run_prelude(stack: &LuaStack, name: &str, code: &[u8]) -> Result<(), Vec<u8>> {
    stack.load(code, name)?;
    stack.push_copy(-2);
    stack.call(1, 0)
}

/// Pushes the `ngx` table.
fn push_ngx(stack: &LuaStack, vm: &LuaVm) {
    stack.push_table(0, 160);
    for functions in [
        output::FUNCTIONS,
        response::FUNCTIONS,
        encode::FUNCTIONS,
        misc::FUNCTIONS,
        worker_thread::FUNCTIONS,
    ] {
        add_functions(stack, functions);
    }
    for (name, functions) in [
        ("req", request::FUNCTIONS),
        ("re", regex::FUNCTIONS),
        ("thread", thread::FUNCTIONS),
        ("timer", timer::FUNCTIONS),
        ("worker", misc::WORKER),
        ("config", misc::CONFIG),
        ("resp", &[]),
    ] {
        stack.push_table(0, 16);
        add_functions(stack, functions);
        stack.set(-2, name);
    }
    stack.push_table(0, 4);
    add_functions(stack, tcp::FUNCTIONS);
    add_functions(stack, udp::FUNCTIONS);
    stack.set(-2, "socket");
    variables::install(stack);
    response::install(stack);
    shared::push(stack, &vm.dictionaries);
    stack.set(-2, "shared");
    stack.field(-1, "config");
    stack.push_bytes(vm.configuration.subsystem().name());
    stack.set(-2, "subsystem");
    // nginx's own answer where it was built with `--with-debug`, as Debian's is: lines of level
    // `debug` can be logged.
    stack.push_boolean(true);
    stack.set(-2, "debug");
    // `ngx.config.nginx_version`: libraries choose features by it.
    stack.push_number(1_031_005.0);
    stack.set(-2, "nginx_version");
    stack.pop(1);
}

/// Pushes the table of functions that only the built-in Lua code uses.
fn push_core(stack: &LuaStack) {
    stack.push_table(0, 64);
    for functions in [
        capture::CORE,
        crypto::CORE,
        pipe::CORE,
        encode::CORE,
        hash_ring::CORE,
        json::CORE,
        json_decode::CORE,
        library::CORE,
        misc::CORE,
        ocsp::CORE,
        regex::CORE,
        request::CORE,
        response::CORE,
        tcp::CORE,
        thread::CORE,
        timer::CORE,
    ] {
        add_functions(stack, functions);
    }
    for (name, mark) in [("waits", &WAITS), ("gives_way", &GIVES_WAY)] {
        stack.push_light(std::ptr::from_ref(mark).cast_mut().cast());
        stack.set(-2, name);
    }
    stack.push_light(std::ptr::null_mut());
    stack.set(-2, "null");
    json::install(stack);
    thread::install(stack);
    stack.push_table(0, 8);
    add_functions(stack, balancer::FUNCTIONS);
    stack.set(-2, "balancer");
    stack.push_table(0, 24);
    add_functions(stack, ssl::FUNCTIONS);
    stack.set(-2, "ssl");
}

/// Adds functions to the table on top.
fn add_functions(stack: &LuaStack, functions: NativeTable) {
    for (name, function) in functions {
        stack.push_native(*function);
        stack.set(-2, name);
    }
}

/// Sets `package.path` and `package.cpath` from `lua_package_path` and `lua_package_cpath`; `;;` in
/// them stands for the default.
fn set_paths(stack: &LuaStack, vm: &LuaVm) {
    let settings = &vm.settings;
    if stack.field(GLOBALS, "package") == LuaType::Table {
        let prefix = settings.prefix.as_os_str().as_encoded_bytes();
        // `$prefix` has a slash at its end, whether or not the pattern has another.
        let prefix = [prefix.strip_suffix(b"/").unwrap_or(prefix), b"/"].concat();
        for (name, path) in [
            ("path", &settings.package_path),
            ("cpath", &settings.package_cpath),
        ] {
            stack.field(-1, name);
            let mut usual = stack.bytes(-1).unwrap_or_default().to_vec();
            stack.pop(1);
            if name == "path" {
                // Where distributions install modules for Lua 5.1, which LuaJIT's default does not
                // contain.
                usual.extend_from_slice(DEBIAN_PATH);
            }
            let path = match path {
                Some(path) => {
                    let path = path
                        .replace("${prefix}", &prefix)
                        .replace("$prefix", &prefix);
                    let all = [b";", usual.as_slice(), b";"].concat();
                    let whole = path.replace(";;", &all);
                    whole.trim_with(|c| c == ';').to_vec()
                }
                None => usual,
            };
            stack.push_bytes(path);
            stack.set(-2, name);
        }
    }
    stack.pop(1);
}

/// Where Debian's packages install Lua modules.
const DEBIAN_PATH: &[u8] = b";/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua";
