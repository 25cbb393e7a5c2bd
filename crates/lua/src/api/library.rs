//! `require`: looks for a library's file and reads it, on a thread of the pool. `prelude.lua` does the rest.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use bstr::ByteSlice;

use super::arguments::text;
use super::{Called, Functions, wait};
use crate::luajit::watchdog;
use crate::luajit::{Stack, Value};
use crate::operation::Operation;
use crate::scope;

pub(super) const CORE: Functions = &[
    ("may_wait", may_wait),
    ("note_refusal", note_refusal),
    ("read_library", read_library),
];

/// The longest file of code that is read, in bytes.
const MAX_CODE: u64 = 64 << 20;

/// Whether the coroutine that runs may wait here: not in every phase, and not below a function of C.
fn may_wait(stack: &Stack) -> Called {
    // A thread of a pool loads its module before anything has begun that could wait.
    let waits = scope::with(|scope| scope.kind.waits()).unwrap_or(false);
    stack.push_boolean(waits && watchdog::may_yield(stack));
    super::ONE
}

/// A script could not open a file of this name, for want of permission.
fn note_refusal(stack: &Stack) -> Called {
    let path = PathBuf::from(OsStr::from_bytes(&text(stack, 1)?));
    rt::sandbox::note_refusal(&path, &std::io::Error::from_raw_os_error(13));
    super::NONE
}

/// The code of a library and where it was found; nothing when it is nowhere on the path.
fn read_library(stack: &Stack) -> Called {
    let (name, path) = (text(stack, 1)?, text(stack, 2)?);
    wait(Operation::task(async move {
        let found = rt::pool::default_pool()
            .run(move || find(&name, &path))
            .await;
        match found {
            Some((code, place)) => vec![Value::Bytes(code), Value::Bytes(place)],
            None => vec![Value::Nil],
        }
    }))
}

/// As LuaJIT looks for it: `.` in the name is a folder, and takes the place of each `?`.
fn find(name: &[u8], path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let name = name.replace(".", "/");
    path.split(|byte| *byte == b';').find_map(|pattern| {
        let place = pattern.replace("?", &name);
        Some((read(&place)?, place))
    })
}

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
