//! `require "cjson"`: JSON, as lua-cjson writes it; `json_decode` reads it.
//!
//! Built in because nearly every script that talks to a service needs it, and lua-cjson is a shared
//! object that would have to be installed for the right version of Lua.

use super::{CallResult, NativeTable};
use crate::luajit::stack::{LuaType, REGISTRY};
use crate::luajit::{LuaError, LuaStack, fail};

pub(super) const CORE: NativeTable = &[("json_encode", encode), ("json_empty_table", empty_table)];

/// How deep tables may be nested; lua-cjson's default.
const MAX_DEPTH: u32 = 1000;

/// The registry's key of the metatable that marks a table as an array (`cjson.array_mt`).
const LIST: &str = "weir.json.list";

/// The registry's key of the setting that an empty table is an array.
const EMPTY_IS_LIST: &str = "weir.json.empty";

/// Adds `array_mt` and `empty_array` to the table on top.
pub(super) fn install(stack: &LuaStack) {
    stack.push_table(0, 0);
    stack.push_copy(-1);
    stack.set(REGISTRY, LIST);
    stack.set(-2, "array_mt");
    stack.push_table(0, 0);
    stack.field(REGISTRY, LIST);
    stack.set_metatable(-2);
    stack.set(-2, "empty_array");
}

/// `cjson.encode_empty_table_as_object(flag)`.
fn empty_table(stack: &LuaStack) -> CallResult {
    let as_object = stack.type_at(1) != LuaType::Boolean || stack.boolean(1);
    stack.push_boolean(!as_object);
    stack.set(REGISTRY, EMPTY_IS_LIST);
    stack.push_boolean(as_object);
    super::ONE
}

/// `cjson.encode(value)`.
fn encode(stack: &LuaStack) -> CallResult {
    let mut out = Vec::new();
    write(stack, 1, 1, &mut out)?;
    stack.push_bytes(&out);
    super::ONE
}

/// Writes the value at `at`.
pub(super) fn write(
    stack: &LuaStack,
    at: i32,
    depth: u32,
    out: &mut Vec<u8>,
) -> Result<(), LuaError> {
    let kind = stack.type_at(at);
    match kind {
        LuaType::Nil => out.extend_from_slice(b"null"),
        // `ngx.null`, `cjson.null`.
        LuaType::LightUserdata if stack.light(at).is_null() => out.extend_from_slice(b"null"),
        LuaType::Boolean => {
            let text: &[u8] = if stack.boolean(at) { b"true" } else { b"false" };
            out.extend_from_slice(text);
        }
        LuaType::Number => number(stack.number(at).unwrap_or(0.0), out)?,
        LuaType::String => string(stack.bytes(at).unwrap_or_default(), out),
        LuaType::Table if depth > MAX_DEPTH => {
            return fail("Cannot serialise, excessive depth");
        }
        LuaType::Table => {
            // LuaJIT does not check its own stack for native code: room is asked for at each level.
            if !stack.reserve(8) {
                return fail("Cannot serialise, excessive depth");
            }
            let at = stack.absolute(at);
            match list_length(stack, at)? {
                Some(length) => list(stack, at, length, depth, out)?,
                None => object(stack, at, depth, out)?,
            }
        }
        other => {
            return fail(format!(
                "Cannot serialise {}: type not supported",
                other.name()
            ));
        }
    }
    Ok(())
}

/// Writes a number with up to 14 significant digits, as lua-cjson does by default, and no more than
/// needed.
fn number(value: f64, out: &mut Vec<u8>) -> Result<(), LuaError> {
    if !value.is_finite() {
        return fail("Cannot serialise number: must not be NaN or Infinity");
    }
    if value == 0.0 && value.is_sign_negative() {
        out.extend_from_slice(b"-0");
        return Ok(());
    }
    // Whole numbers are the common case, and up to here they have at most 14 digits.
    if value == value.trunc() && value.abs() < 1e14 {
        out.extend_from_slice(format!("{}", value as i64).as_bytes());
        return Ok(());
    }
    // One digit before the point and 13 behind it; the exponent is known only after rounding.
    let text = format!("{value:.13e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // The bounds of C's `%.14g`.
    if (-4..14).contains(&exponent) {
        let places = usize::try_from(13 - exponent).unwrap_or(0);
        let plain = format!("{value:.places$}");
        let plain = match plain.contains('.') {
            true => plain.trim_end_matches('0').trim_end_matches('.'),
            false => &plain,
        };
        out.extend_from_slice(plain.as_bytes());
    } else {
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend_from_slice(format!("{digits}e{sign}{:02}", exponent.abs()).as_bytes());
    }
    Ok(())
}

/// Writes a string. `/` is escaped as well, as in lua-cjson.
fn string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            // RFC 8259, section 7, requires the first range; lua-cjson escapes DEL as well.
            0..=0x1f | 0x7f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            other => out.push(other),
        }
    }
    out.push(b'"');
}

/// The length of a table that is an array: its keys are positive integers, and not too sparse.
fn list_length(stack: &LuaStack, at: i32) -> Result<Option<usize>, LuaError> {
    if stack.push_metatable(at) {
        stack.field(REGISTRY, LIST);
        let is_list = stack.is_same(-1, -2);
        stack.pop(2);
        // Marked by the script: its length counts, even where `nil` makes holes.
        if is_list {
            return Ok(Some(stack.length(at)));
        }
    }
    let (mut max, mut count) = (0.0_f64, 0_usize);
    stack.push_nil();
    while stack.next(at) {
        stack.pop(1);
        match (stack.type_at(-1), stack.number(-1)) {
            (LuaType::Number, Some(key)) if key >= 1.0 && key == key.trunc() => {
                max = max.max(key);
                count += 1;
            }
            _ => {
                stack.pop(1);
                return Ok(None);
            }
        }
    }
    // An empty table could be either; lua-cjson writes `{}` unless told otherwise.
    if count == 0 {
        let is_list = stack.field(REGISTRY, EMPTY_IS_LIST) == LuaType::Boolean && stack.boolean(-1);
        stack.pop(1);
        return Ok(is_list.then_some(0));
    }
    // lua-cjson's limit: `{[1000000]=1}` must not become a million nulls.
    if max > 10.0 && max > 2.0 * count as f64 {
        return fail("Cannot serialise table: excessively sparse array");
    }
    Ok(Some(max as usize))
}

/// Writes an array.
fn list(
    stack: &LuaStack,
    at: i32,
    length: usize,
    depth: u32,
    out: &mut Vec<u8>,
) -> Result<(), LuaError> {
    out.push(b'[');
    for n in 1..=length {
        if n > 1 {
            out.push(b',');
        }
        stack.element(at, n);
        write(stack, stack.top(), depth + 1, out)?;
        stack.pop(1);
    }
    out.push(b']');
    Ok(())
}

/// Writes an object. The order is that of the table, which is not defined.
fn object(stack: &LuaStack, at: i32, depth: u32, out: &mut Vec<u8>) -> Result<(), LuaError> {
    out.push(b'{');
    let mut first = true;
    stack.push_nil();
    while stack.next(at) {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        match stack.type_at(-2) {
            LuaType::String => string(stack.bytes(-2).unwrap_or_default(), out),
            // JSON has text as names only (RFC 8259, section 4); lua-cjson writes numbers as text,
            // too.
            LuaType::Number => {
                out.push(b'"');
                number(stack.number(-2).unwrap_or(0.0), out)?;
                out.push(b'"');
            }
            _ => return fail("Cannot serialise table: table key must be a number or string"),
        }
        out.push(b':');
        write(stack, stack.top(), depth + 1, out)?;
        stack.pop(1);
    }
    out.push(b'}');
    Ok(())
}
