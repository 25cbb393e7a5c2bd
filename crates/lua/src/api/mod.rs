//! The `ngx` API, by subject.
//!
//! Functions of ours have plain names and are found in tables; what is best said in Lua is in `prelude.lua`, which runs
//! once for each machine and gets the functions that only it uses in a table of its own.

mod arguments;
mod balancer;
mod capture;
mod crypto;
mod downstream;
mod encode;
mod jit;
mod json;
mod library;
mod misc;
mod output;
mod pipe;
mod regex;
mod request;
mod response;
mod shared;
mod ssl;
mod tcp;
mod template;
mod thread;
mod timer;
mod udp;
mod variables;
mod wire;
mod worker_thread;

use std::rc::Rc;

use bstr::ByteSlice;
use rt::error_log::Level;

pub(crate) use downstream::{give_back, give_back_to_session};
pub(crate) use misc::forget_context;
pub(crate) use regex::Pattern;
pub(crate) use response::usual_type;
pub(crate) use ssl::Half;
pub(crate) use tcp::{Connected, Pools, Tcp};

use crate::luajit::native::{GIVES_WAY, WAITS};
use crate::luajit::stack::{GLOBALS, Kind};
use crate::luajit::{Answer, Failure, Native, Stack};
use crate::operation::Operation;
use crate::scope;
use crate::vm::Vm;

/// The outcome of a function of ours.
pub(crate) type Called = Result<Answer, Failure>;

/// One value.
pub(crate) const ONE: Called = Ok(Answer::Values(1));
/// No value.
pub(crate) const NONE: Called = Ok(Answer::Values(0));

/// Functions by name.
pub(crate) type Functions = &'static [(&'static str, Native)];

static PRELUDE: &[u8] = include_bytes!("prelude.lua");
static SOCKETS: &[u8] = include_bytes!("sockets.lua");
static PIPE: &[u8] = include_bytes!("pipe.lua");

/// What lua-resty-core says in Lua.
static SURFACE: &[u8] = include_bytes!("surface.lua");

/// Puts the API into a new machine.
pub(crate) fn install(vm: &Rc<Vm>) {
    let stack = vm.state.stack();
    set_paths(&stack, vm);
    push_ngx(&stack, vm);
    stack.set(GLOBALS, "ngx");
    push_core(&stack);
    for (name, code) in [
        ("weir", PRELUDE),
        ("weir.core", SURFACE),
        ("weir sockets", SOCKETS),
        ("weir pipe", PIPE),
        ("weir crypto", crypto::MODULES),
    ] {
        if let Err(message) = run(&stack, name, code) {
            vm.log
                .plain(Level::Emerg, format_args!("lua: {}", message.as_bstr()));
        }
    }
    stack.pop(1);
    jit::install(&stack);
}

/// Runs code of ours, which gets the functions that only it uses from the table on top.
fn run(stack: &Stack, name: &str, code: &[u8]) -> Result<(), Vec<u8>> {
    stack.load(code, name)?;
    stack.push_copy(-2);
    stack.call(1, 0)
}

fn push_ngx(stack: &Stack, vm: &Vm) {
    stack.push_table(0, 160);
    for functions in [
        output::FUNCTIONS,
        response::FUNCTIONS,
        encode::FUNCTIONS,
        misc::FUNCTIONS,
        worker_thread::FUNCTIONS,
    ] {
        add(stack, functions);
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
        add(stack, functions);
        stack.set(-2, name);
    }
    stack.push_table(0, 4);
    add(stack, tcp::FUNCTIONS);
    add(stack, udp::FUNCTIONS);
    stack.set(-2, "socket");
    variables::install(stack);
    response::install(stack);
    shared::push(stack, &vm.dictionaries);
    stack.set(-2, "shared");
    stack.field(-1, "config");
    stack.push_bytes(vm.home.engine().name());
    stack.set(-2, "subsystem");
    // As of an nginx that was built with `--with-debug`, as Debian's is: the error log has lines of level `debug`.
    stack.push_boolean(true);
    stack.set(-2, "debug");
    stack.push_number(1_031_005.0);
    stack.set(-2, "nginx_version");
    stack.pop(1);
}

fn push_core(stack: &Stack) {
    stack.push_table(0, 64);
    for functions in [
        capture::CORE,
        crypto::CORE,
        pipe::CORE,
        encode::CORE,
        json::CORE,
        library::CORE,
        misc::CORE,
        regex::CORE,
        request::CORE,
        response::CORE,
        tcp::CORE,
        thread::CORE,
        timer::CORE,
    ] {
        add(stack, functions);
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
    add(stack, balancer::FUNCTIONS);
    stack.set(-2, "balancer");
    stack.push_table(0, 24);
    add(stack, ssl::FUNCTIONS);
    stack.set(-2, "ssl");
}

/// Adds functions to the table on top.
fn add(stack: &Stack, functions: Functions) {
    for (name, function) in functions {
        stack.push_native(*function);
        stack.set(-2, name);
    }
}

/// `lua_package_path` and `lua_package_cpath`: `;;` in them stands for what is there already.
fn set_paths(stack: &Stack, vm: &Vm) {
    let settings = &vm.settings;
    if stack.field(GLOBALS, "package") == Kind::Table {
        let prefix = settings.prefix.as_os_str().as_encoded_bytes();
        // It ends with a slash, whether or not a path has another.
        let prefix = [prefix.strip_suffix(b"/").unwrap_or(prefix), b"/"].concat();
        for (name, path) in [
            ("path", &settings.package_path),
            ("cpath", &settings.package_cpath),
        ] {
            stack.field(-1, name);
            let mut usual = stack.bytes(-1).unwrap_or_default().to_vec();
            stack.pop(1);
            if name == "path" {
                // Where Debian and others put what is written for Lua 5.1.
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

const DEBIAN_PATH: &[u8] = b";/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua";

/// The coroutine waits for an operation.
fn wait(operation: Operation) -> Called {
    scope::with(|scope| {
        if !scope.kind.waits() {
            return crate::luajit::fail(scope.kind.refusal());
        }
        *scope.waits.borrow_mut() = Some(operation);
        Ok(Answer::Wait)
    })?
}
