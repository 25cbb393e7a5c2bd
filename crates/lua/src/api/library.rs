//! `require`: finds a library's file and reads it, on a thread of the pool. `prelude.lua` does the
//! rest.
//!
//! LuaJIT's own `require` opens files on the calling thread. In nginx that blocks a worker; modules
//! are often required in request handlers, and a disk may be slow or remote. Where a script cannot
//! wait, as in `init_by_lua` or in a filter, LuaJIT's function is used after all.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use bstr::ByteSlice;

use super::arguments::text;
use super::{CallResult, NativeTable, wait};
use crate::luajit::watchdog;
use crate::luajit::{LuaStack, LuaValue};
use crate::operation::YieldOperation;
use crate::scope;

pub(super) const CORE: NativeTable = &[
    ("may_wait", may_wait),
    ("note_refusal", note_refusal),
    ("read_library", read_library),
];

/// The largest file of code that is read, in bytes.
const MAX_CODE: u64 = 64 << 20;

/// Whether the running coroutine may wait here: not in every phase, and not within a C function.
/// Otherwise `prelude.lua` falls back to LuaJIT's loader.
fn may_wait(stack: &LuaStack) -> CallResult {
    // There is no scope while a pool's thread loads its module.
    let waits = scope::with(|scope| scope.kind.may_yield()).unwrap_or(false);
    stack.push_boolean(waits && watchdog::may_yield(stack));
    super::ONE
}

/// Reports a file that a script could not open for want of permission, in case the sandbox is why.
fn note_refusal(stack: &LuaStack) -> CallResult {
    let path = PathBuf::from(OsStr::from_bytes(&text(stack, 1)?));
    rt::sandbox::note_refusal(&path, &std::io::Error::from_raw_os_error(13));
    super::NONE
}

/// Returns the code of a library and its path; nil if it is nowhere on the path.
fn read_library(stack: &LuaStack) -> CallResult {
    let (name, path) = (text(stack, 1)?, text(stack, 2)?);
    wait(YieldOperation::task(async move {
        let found = rt::pool::default_pool()
            .run(move || find(&name, &path))
            .await;
        match found {
            Some((code, place)) => vec![LuaValue::Bytes(code), LuaValue::Bytes(place)],
            None => vec![LuaValue::Nil],
        }
    }))
}

/// Searches like LuaJIT: `.` in the name becomes `/`, and replaces each `?`.
fn find(name: &[u8], path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let name = name.replace(".", "/");
    path.split(|byte| *byte == b';').find_map(|pattern| {
        let place = pattern.replace("?", &name);
        Some((read(&place)?, place))
    })
}

/// Reads one candidate; `None` if it is not a readable file.
fn read(place: &[u8]) -> Option<Vec<u8>> {
    let path = PathBuf::from(OsStr::from_bytes(place));
    let opened = File::open(&path).inspect_err(|error| rt::sandbox::note_refusal(&path, error));
    let file = opened.ok()?;
    let facts = file.metadata().ok()?;
    if !facts.is_file() || facts.len() > MAX_CODE {
        return None;
    }
    let mut code = Vec::new();
    file.take(MAX_CODE).read_to_end(&mut code).ok()?;
    Some(code)
}
