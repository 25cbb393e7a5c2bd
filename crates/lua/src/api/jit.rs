//! LuaJIT's own libraries that are written in Lua: `jit.v`, `jit.dump` and the like. They fit one
//! version of LuaJIT only, so they are built in rather than looked for on disk, and compiled when a
//! script requires one.

use super::CallResult;
use crate::luajit::stack::{GLOBALS, LuaType};
use crate::luajit::{LuaStack, NativeReturn, fail};

/// Their code, by the part of the name after `jit.`.
static LIBRARIES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/jit_libraries.rs"));

/// Registers a loader for each in `package.preload`, where `require` looks first.
pub(super) fn install(stack: &LuaStack) {
    if stack.field(GLOBALS, "package") == LuaType::Table {
        if stack.field(-1, "preload") == LuaType::Table {
            for (name, _) in LIBRARIES {
                stack.push_native(load);
                stack.set(-2, format!("jit.{name}"));
            }
        }
        stack.pop(1);
    }
    stack.pop(1);
}

/// The loader: `require` calls it with the name. A library is a chunk that returns its table.
fn load(stack: &LuaStack) -> CallResult {
    let name = super::arguments::text(stack, 1)?;
    let known = name.strip_prefix(b"jit.").and_then(|name| {
        let mut all = LIBRARIES.iter();
        all.find(|(known, _)| known.as_bytes() == name)
    });
    let Some((file, code)) = known else {
        return fail("no such library");
    };
    if let Err(message) = stack.load(code, &format!("jit/{file}.lua")) {
        return fail(message);
    }
    stack.push_bytes(&name);
    match stack.call(1, 1) {
        Ok(()) => Ok(NativeReturn::Values(1)),
        Err(message) => fail(message),
    }
}
