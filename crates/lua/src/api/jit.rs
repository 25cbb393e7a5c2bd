//! LuaJIT's own libraries that are Lua: `jit.v`, `jit.dump` and the like. Compiled when a script asks for one.

use super::Called;
use crate::luajit::stack::{GLOBALS, Kind};
use crate::luajit::{Answer, Stack, fail};

/// By the part of the name after `jit.`.
static LIBRARIES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/jit_libraries.rs"));

/// Puts them where `require` looks first.
pub(super) fn install(stack: &Stack) {
    if stack.field(GLOBALS, "package") == Kind::Table {
        if stack.field(-1, "preload") == Kind::Table {
            for (name, _) in LIBRARIES {
                stack.push_native(load);
                stack.set(-2, format!("jit.{name}"));
            }
        }
        stack.pop(1);
    }
    stack.pop(1);
}

/// Called by `require` with the name. A library is a chunk that gives back its table.
fn load(stack: &Stack) -> Called {
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
        Ok(()) => Ok(Answer::Values(1)),
        Err(message) => fail(message),
    }
}
