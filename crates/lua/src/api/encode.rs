//! Text functions: URI escaping, query strings, base64, digests, SQL quoting.
//!
//! Details follow lua-nginx-module to the byte, since signatures are computed over the results.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{
    GeneralPurpose, GeneralPurposeConfig, STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD,
};
use bstr::ByteSlice;
use md5::{Digest, Md5};
use sha1::Sha1;

use super::arguments::{anything, as_int, bytes, number, only_text, table};
use super::{CallResult, NativeTable};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaStack, LuaValue, fail};

pub(super) const FUNCTIONS: NativeTable = &[
    ("escape_uri", escape_uri),
    ("unescape_uri", unescape_uri),
    ("encode_args", encode_args),
    ("decode_args", decode_args),
    ("encode_base64", encode_base64),
    ("decode_base64", decode_base64),
    ("decode_base64mime", decode_base64mime),
    ("md5", md5),
    ("md5_bin", md5_bin),
    ("sha1_bin", sha1_bin),
    ("hmac_sha1", hmac_sha1),
    ("crc32_short", crc32),
    ("crc32_long", crc32),
    ("quote_sql_str", quote_sql),
];

pub(super) const CORE: NativeTable = &[
    ("encode_base64url", encode_base64url),
    ("decode_base64url", decode_base64url),
];

/// `ngx.escape_uri(text, type)`. The types are those of nginx's `ngx_escape_uri`: 0 path, 1 args, 2
/// component (the default), 3 HTML, 4 refresh, 5 and 6 memcached and mail.
fn escape_uri(stack: &LuaStack) -> CallResult {
    let kind = match stack.type_at(2) {
        LuaType::Nil | LuaType::None => 2.0,
        LuaType::Number => stack.number(2).unwrap_or(2.0),
        _ => return fail("\"type\" is not a number"),
    };
    if !(0.0..=6.0).contains(&kind) {
        stack.push_number(kind);
        let shown = stack.tostring(-1);
        return fail(format!("\"type\" {} out of range", shown.as_bstr()));
    }
    let is_bad: fn(u8) -> bool = match kind as u8 {
        0 => |byte| is_no_text(byte) || matches!(byte, b'#' | b'%' | b'?'),
        1 => |byte| is_no_text(byte) || matches!(byte, b'#' | b'%' | b'+' | b'?'),
        2 => is_no_component,
        3 => |byte| is_no_text(byte) || matches!(byte, b'"' | b'#' | b'%' | b'\''),
        4 => |byte| is_no_text(byte) || matches!(byte, b'"' | b'%' | b'\''),
        _ => |byte| byte <= b' ' || byte == b'%',
    };
    let text = anything(stack, 1);
    let mut out = Vec::with_capacity(text.len() + 16);
    escape(&text, is_bad, &mut out);
    stack.push_bytes(&out);
    super::ONE
}

/// Bytes that no part of a URI may contain.
fn is_no_text(byte: u8) -> bool {
    byte <= b' ' || byte >= 0x7f
}

/// Bytes that a component of a URI must not contain. As in lua-nginx-module the marks of RFC 2396
/// (`!'()*`) stay, which RFC 3986 has reserved since.
fn is_no_component(byte: u8) -> bool {
    !(byte.is_ascii_alphanumeric() || b"-._~!'()*".contains(&byte))
}

/// Appends the text with the bytes for which `is_bad` holds replaced by `%XX`.
fn escape(text: &[u8], is_bad: fn(u8) -> bool, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        match is_bad(byte) {
            true => out.extend_from_slice(&[
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]),
            false => out.push(byte),
        }
    }
}

/// `ngx.unescape_uri(text)`.
fn unescape_uri(stack: &LuaStack) -> CallResult {
    let text = anything(stack, 1);
    stack.push_bytes(unescaped(&text));
    super::ONE
}

/// Decodes `%XX` and `+`. A `%` that does not begin an escape stays, as browsers have it.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digit = |n: usize| {
            text.get(at + n)
                .and_then(|byte| (*byte as char).to_digit(16))
        };
        match text[at] {
            // Forms encode a space like this, and query strings are read as forms.
            b'+' => out.push(b' '),
            b'%' => match (digit(1), digit(2)) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    at += 2;
                }
                _ => out.push(b'%'),
            },
            byte => out.push(byte),
        }
        at += 1;
    }
    out
}

/// `ngx.encode_args(table)`.
fn encode_args(stack: &LuaStack) -> CallResult {
    if stack.top() != 1 {
        return fail(format!("expecting 1 argument but seen {}", stack.top()));
    }
    table(stack, 1)?;
    let out = args_of(stack, 1)?;
    stack.push_bytes(&out);
    super::ONE
}

/// Builds a query string from the table at `at`.
pub(super) fn args_of(stack: &LuaStack, at: i32) -> Result<Vec<u8>, crate::luajit::LuaError> {
    let mut out = Vec::new();
    stack.push_nil();
    while stack.next(at) {
        // In the order of the table, which is not defined: signatures need a script that sorts.
        if stack.type_at(-2) != LuaType::String {
            return fail("attempt to use a non-string key in the \"args\" option table");
        }
        let key = bytes(stack, -2)?.to_vec();
        let value = stack.top();
        if stack.type_at(value) == LuaType::Table {
            stack.push_nil();
            while stack.next(value) {
                pair(stack, &key, &mut out)?;
                stack.pop(1);
            }
        } else {
            pair(stack, &key, &mut out)?;
        }
        stack.pop(1);
    }
    Ok(out)
}

/// Appends `key=value` for the value on top: just `key` for `true`, nothing for `false`.
fn pair(stack: &LuaStack, key: &[u8], out: &mut Vec<u8>) -> Result<(), crate::luajit::LuaError> {
    let kind = stack.type_at(-1);
    if kind == LuaType::Boolean && !stack.boolean(-1) {
        return Ok(());
    }
    if !out.is_empty() {
        out.push(b'&');
    }
    escape(key, is_no_component, out);
    match kind {
        LuaType::Boolean => {}
        LuaType::String | LuaType::Number => {
            out.push(b'=');
            escape(bytes(stack, -1)?, is_no_component, out);
        }
        other => {
            return fail(format!(
                "attempt to use {} as query arg value",
                other.name()
            ));
        }
    }
    Ok(())
}

/// `ngx.decode_args(text, max)`.
fn decode_args(stack: &LuaStack) -> CallResult {
    let given = stack.top();
    if given != 1 && given != 2 {
        return fail(format!("expecting 1 or 2 arguments but seen {given}"));
    }
    let text = bytes(stack, 1)?.to_vec();
    let max = match given {
        2 => most(as_int(number(stack, 2)?)),
        _ => MAX_ARGS,
    };
    stack.push_table(0, 8);
    fill_args(stack, &text, max)
}

/// How many arguments or headers are returned by default, as in lua-nginx-module: a client must not
/// be able to make a script build a table of any size.
pub(super) const MAX_ARGS: usize = 100;

/// The limit that a script gives: 0 and less mean none.
pub(super) fn most(n: i32) -> usize {
    match usize::try_from(n) {
        Ok(n) if n > 0 => n,
        _ => usize::MAX,
    }
}

/// Fills the table on top with arguments, and returns it. Empty arguments count towards `max`.
pub(super) fn fill_args(stack: &LuaStack, text: &[u8], max: usize) -> CallResult {
    let result = stack.top();
    let mut parts = text.split(|byte| *byte == b'&').peekable();
    let mut count = 0;
    while let Some(part) = parts.next() {
        add_arg(stack, result, part);
        count += 1;
        if count == max && parts.peek().is_some() {
            stack.push_bytes("truncated");
            return Ok(crate::luajit::NativeReturn::Values(2));
        }
    }
    super::ONE
}

/// The variant for a request's own query string: empty arguments do not count towards `max`, but do
/// for whether something was left out. lua-nginx-module differs in the same way.
pub(super) fn fill_query(stack: &LuaStack, text: &[u8], max: usize) -> CallResult {
    let result = stack.top();
    let parts = text.split(|byte| *byte == b'&');
    let all = parts.clone().count();
    let mut count = 0;
    for part in parts {
        count += usize::from(add_arg(stack, result, part));
        if count == max {
            break;
        }
    }
    if all <= max {
        return super::ONE;
    }
    stack.push_bytes("truncated");
    Ok(crate::luajit::NativeReturn::Values(2))
}

/// Adds an argument to the table at `result`; `false` for one without a name, which is ignored.
fn add_arg(stack: &LuaStack, result: i32, part: &[u8]) -> bool {
    let (key, value) = match part.iter().position(|byte| *byte == b'=') {
        Some(at) => (&part[..at], Some(&part[at + 1..])),
        None => (part, None),
    };
    let key = unescaped(key);
    if key.is_empty() {
        return false;
    }
    match value {
        Some(value) => stack.push_bytes(unescaped(value)),
        None => stack.push_boolean(true),
    }
    collect(stack, result, &key);
    true
}

/// Adds the value on top under `key`: the second one makes a list.
pub(super) fn collect(stack: &LuaStack, table: i32, key: &[u8]) {
    match stack.field(table, key) {
        LuaType::Nil => {
            stack.pop(1);
            stack.set(table, key);
        }
        LuaType::Table => {
            stack.insert(-2);
            let n = stack.length(-2) + 1;
            stack.set_element(-2, n);
            stack.pop(1);
        }
        _ => {
            // The second value of a name: the first one becomes the head of a list.
            stack.push_table(2, 0);
            stack.insert(-2);
            stack.set_element(-2, 1);
            stack.insert(-2);
            stack.set_element(-2, 2);
            stack.set(table, key);
        }
    }
}

/// `ngx.encode_base64(text, no_padding)`.
fn encode_base64(stack: &LuaStack) -> CallResult {
    let text = anything(stack, 1);
    let plain = match stack.type_at(2) {
        LuaType::Nil | LuaType::None => false,
        LuaType::Boolean => stack.boolean(2),
        kind => {
            return fail(format!(
                "bad no_padding: boolean expected, got {}",
                kind.name()
            ));
        }
    };
    stack.push_bytes(match plain {
        true => STANDARD_NO_PAD.encode(text),
        false => STANDARD.encode(text),
    });
    super::ONE
}

/// Decodes text with and without padding, and ignores stray bits at the end.
const ANY_BITS: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const LENIENT: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, ANY_BITS);
const LENIENT_URL: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, ANY_BITS);

/// Cuts the text at the first `=`, as nginx's decoder does.
fn unpadded(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'=');
    &text[..end.unwrap_or(text.len())]
}

/// `ngx.decode_base64(text)`; nil if it is not base64.
fn decode_base64(stack: &LuaStack) -> CallResult {
    match LENIENT.decode(unpadded(only_text(stack, 1, "string argument only")?)) {
        Ok(text) => stack.push_bytes(text),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

/// `ngx.decode_base64mime(text)`: characters outside of the alphabet are skipped (RFC 2045).
fn decode_base64mime(stack: &LuaStack) -> CallResult {
    let mut text = unpadded(only_text(stack, 1, "string argument only")?).to_vec();
    text.retain(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    match LENIENT.decode(&text) {
        Ok(text) => stack.push_bytes(text),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

/// `ngx.base64.encode_base64url(text)`.
fn encode_base64url(stack: &LuaStack) -> CallResult {
    if stack.type_at(1) != LuaType::String {
        return super::called::answer(stack, LuaValue::failure("must provide a string"));
    }
    let text = URL_SAFE_NO_PAD.encode(bytes(stack, 1)?);
    stack.push_bytes(text);
    super::ONE
}

/// `ngx.base64.decode_base64url(text)`.
fn decode_base64url(stack: &LuaStack) -> CallResult {
    if stack.type_at(1) != LuaType::String {
        return super::called::answer(stack, LuaValue::failure("must provide a string"));
    }
    match LENIENT_URL.decode(unpadded(bytes(stack, 1)?)) {
        Ok(text) => {
            stack.push_bytes(text);
            super::ONE
        }
        Err(_) => super::called::answer(stack, LuaValue::failure("invalid input")),
    }
}

/// `ngx.md5(text)`, in hexadecimal.
fn md5(stack: &LuaStack) -> CallResult {
    let digest = Md5::digest(anything(stack, 1));
    let mut out = Vec::with_capacity(32);
    base::text::write_hex(&digest, &mut out);
    stack.push_bytes(&out);
    super::ONE
}

/// `ngx.md5_bin(text)`, 16 bytes.
fn md5_bin(stack: &LuaStack) -> CallResult {
    let digest = Md5::digest(anything(stack, 1));
    stack.push_bytes(digest);
    super::ONE
}

/// `ngx.sha1_bin(text)`, 20 bytes.
fn sha1_bin(stack: &LuaStack) -> CallResult {
    let digest = Sha1::digest(anything(stack, 1));
    stack.push_bytes(digest);
    super::ONE
}

/// `ngx.hmac_sha1(key, text)` (RFC 2104).
fn hmac_sha1(stack: &LuaStack) -> CallResult {
    const BLOCK: usize = 64;
    if stack.top() != 2 {
        return fail(format!("expecting 2 arguments, but got {}", stack.top()));
    }
    let (key, text) = (bytes(stack, 1)?, bytes(stack, 2)?);
    let mut block = [0_u8; BLOCK];
    // RFC 2104, section 2: the digest takes the place of a key that is longer than a block.
    if key.len() > BLOCK {
        let digest = Sha1::digest(key);
        block[..digest.len()].copy_from_slice(&digest);
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha1::new()
        .chain_update(block.map(|byte| byte ^ 0x36))
        .chain_update(text)
        .finalize();
    let outer = Sha1::new()
        .chain_update(block.map(|byte| byte ^ 0x5c))
        .chain_update(inner)
        .finalize();
    stack.push_bytes(outer);
    super::ONE
}

/// `ngx.crc32_short` and `ngx.crc32_long`: one result; the names choose between two speeds in
/// nginx.
fn crc32(stack: &LuaStack) -> CallResult {
    let sum = base::hash::crc32(&anything(stack, 1));
    stack.push_number(f64::from(sum));
    super::ONE
}

/// `ngx.quote_sql_str(text)`: a literal for MySQL.
fn quote_sql(stack: &LuaStack) -> CallResult {
    if stack.top() != 1 {
        return fail("expecting one argument");
    }
    let mut out = vec![b'\''];
    for &byte in bytes(stack, 1)? {
        match byte {
            0 => out.extend_from_slice(b"\\0"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0x1a => out.extend_from_slice(b"\\Z"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\\' | b'\'' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            other => out.push(other),
        }
    }
    out.push(b'\'');
    stack.push_bytes(&out);
    super::ONE
}
