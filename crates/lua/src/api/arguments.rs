//! Reading the arguments of functions, with errors in Lua's words.

use bstr::ByteSlice;

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

/// A value of another kind than the function takes.
fn expected<T>(stack: &Stack, at: i32, what: &str) -> Result<T, Failure> {
    bad(
        stack,
        at,
        &format!("{what} expected, got {}", stack.kind(at).name()),
    )
}

/// An argument that cannot be, in the words of Lua's own library: they name the function as the script calls it.
pub(super) fn bad<T>(stack: &Stack, at: i32, why: &str) -> Result<T, Failure> {
    let (name, is_method) = stack.called_as().unwrap_or_else(|| (b"?".to_vec(), false));
    let name = name.as_bstr();
    match at - i32::from(is_method) {
        0 => fail(format!("calling '{name}' on bad self ({why})")),
        at => fail(format!("bad argument #{at} to '{name}' ({why})")),
    }
}

/// How many arguments there are is wrong; `wanted` says how many there may be.
pub(super) fn count(
    stack: &Stack,
    right: std::ops::RangeInclusive<i32>,
    wanted: &str,
) -> Result<(), Failure> {
    let given = stack.top();
    match right.contains(&given) {
        true => Ok(()),
        false => fail(format!("expecting {wanted} but seen {given}")),
    }
}

/// A text, and no number.
pub(super) fn only_text<'a>(stack: &'a Stack, at: i32, why: &str) -> Result<&'a [u8], Failure> {
    match stack.kind(at) {
        Kind::String => bytes(stack, at),
        _ => fail(why),
    }
}

/// Any value as text, as Lua's `tostring` has it; nothing for what is not true.
pub(super) fn anything(stack: &Stack, at: i32) -> Vec<u8> {
    match stack.kind(at) {
        Kind::Nil | Kind::None => Vec::new(),
        Kind::Boolean if !stack.boolean(at) => Vec::new(),
        _ => stack.shown(at),
    }
}

/// A number as C has it that wants an `int`.
pub(super) fn as_int(number: f64) -> i32 {
    match number.abs() < 9.2e18 {
        true => number as i64 as i32,
        false => 0,
    }
}
