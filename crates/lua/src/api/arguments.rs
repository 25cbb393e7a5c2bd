//! Reading the arguments of API functions, with the errors of Lua's own library: scripts and test
//! suites match on their text.

use bstr::ByteSlice;

use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, fail};

/// A string or number as text, copied.
pub(super) fn text(stack: &LuaStack, at: i32) -> Result<Vec<u8>, LuaError> {
    bytes(stack, at).map(<[u8]>::to_vec)
}

/// A string or number as text, borrowed from the stack.
pub(super) fn bytes(stack: &LuaStack, at: i32) -> Result<&[u8], LuaError> {
    match stack.bytes(at) {
        Some(bytes) => Ok(bytes),
        None => expected(stack, at, "string"),
    }
}

/// Text, or nil.
pub(super) fn optional_text(stack: &LuaStack, at: i32) -> Result<Option<Vec<u8>>, LuaError> {
    match stack.is_nil(at) {
        true => Ok(None),
        false => text(stack, at).map(Some),
    }
}

/// A number.
pub(super) fn number(stack: &LuaStack, at: i32) -> Result<f64, LuaError> {
    match stack.number(at) {
        Some(number) => Ok(number),
        None => expected(stack, at, "number"),
    }
}

/// A number, or nil.
pub(super) fn optional_number(stack: &LuaStack, at: i32) -> Result<Option<f64>, LuaError> {
    match stack.is_nil(at) {
        true => Ok(None),
        false => number(stack, at).map(Some),
    }
}

/// Checks for a table.
pub(super) fn table(stack: &LuaStack, at: i32) -> Result<(), LuaError> {
    match stack.type_at(at) {
        LuaType::Table => Ok(()),
        _ => expected(stack, at, "table"),
    }
}

/// The error for an argument of another type.
fn expected<T>(stack: &LuaStack, at: i32, what: &str) -> Result<T, LuaError> {
    bad(
        stack,
        at,
        &format!("{what} expected, got {}", stack.type_at(at).name()),
    )
}

/// The error for a bad argument. It names the function as the script calls it; for a method the
/// object is not counted.
pub(super) fn bad<T>(stack: &LuaStack, at: i32, why: &str) -> Result<T, LuaError> {
    let (name, is_method) = stack.called_as().unwrap_or_else(|| (b"?".to_vec(), false));
    let name = name.as_bstr();
    match at - i32::from(is_method) {
        0 => fail(format!("calling '{name}' on bad self ({why})")),
        at => fail(format!("bad argument #{at} to '{name}' ({why})")),
    }
}

/// Checks the number of arguments; `wanted` names in the error how many there may be.
pub(super) fn count(
    stack: &LuaStack,
    right: std::ops::RangeInclusive<i32>,
    wanted: &str,
) -> Result<(), LuaError> {
    let given = stack.top();
    match right.contains(&given) {
        true => Ok(()),
        false => fail(format!("expecting {wanted} but seen {given}")),
    }
}

/// A string, where a number is not accepted in its place; `why` is the error.
pub(super) fn only_text<'a>(stack: &'a LuaStack, at: i32, why: &str) -> Result<&'a [u8], LuaError> {
    match stack.type_at(at) {
        LuaType::String => bytes(stack, at),
        _ => fail(why),
    }
}

/// Any value as text, as Lua's `tostring` shows it; empty for nil and false.
pub(super) fn anything(stack: &LuaStack, at: i32) -> Vec<u8> {
    match stack.type_at(at) {
        LuaType::Nil | LuaType::None => Vec::new(),
        LuaType::Boolean if !stack.boolean(at) => Vec::new(),
        _ => stack.tostring(at),
    }
}

/// A number converted to C's `int`, as `luaL_checkint` does it: out of range wraps around.
pub(super) fn as_int(number: f64) -> i32 {
    match number.abs() < 9.2e18 {
        true => number as i64 as i32,
        false => 0,
    }
}
