//! Reading the arguments of functions, with errors in Lua's words.

use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Stack, fail};

/// The text of a string or number.
pub(super) fn text(stack: &Stack, at: i32) -> Result<Vec<u8>, Failure> {
    bytes(stack, at).map(<[u8]>::to_vec)
}

/// The text of a string or number, where it stands.
pub(super) fn bytes(stack: &Stack, at: i32) -> Result<&[u8], Failure> {
    match stack.bytes(at) {
        Some(bytes) => Ok(bytes),
        None => expected(stack, at, "string"),
    }
}

/// A text, or nothing.
pub(super) fn optional_text(stack: &Stack, at: i32) -> Result<Option<Vec<u8>>, Failure> {
    match stack.is_nil(at) {
        true => Ok(None),
        false => text(stack, at).map(Some),
    }
}

/// A number.
pub(super) fn number(stack: &Stack, at: i32) -> Result<f64, Failure> {
    match stack.number(at) {
        Some(number) => Ok(number),
        None => expected(stack, at, "number"),
    }
}

/// A number, or nothing.
pub(super) fn optional_number(stack: &Stack, at: i32) -> Result<Option<f64>, Failure> {
    match stack.is_nil(at) {
        true => Ok(None),
        false => number(stack, at).map(Some),
    }
}

/// A table.
pub(super) fn table(stack: &Stack, at: i32) -> Result<(), Failure> {
    match stack.kind(at) {
        Kind::Table => Ok(()),
        _ => expected(stack, at, "table"),
    }
}

fn expected<T>(stack: &Stack, at: i32, what: &str) -> Result<T, Failure> {
    fail(format!(
        "bad argument #{at} ({what} expected, got {})",
        stack.kind(at).name()
    ))
}
