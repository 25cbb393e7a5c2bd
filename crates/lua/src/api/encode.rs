//! Texts: escaping, arguments, base64, checksums, JSON's friends.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{
    GeneralPurpose, GeneralPurposeConfig, STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD,
};
use bstr::ByteSlice;
use md5::{Digest, Md5};
use sha1::Sha1;

use super::arguments::{anything, as_int, bytes, number, only_text, table};
use super::{Called, Functions};
use crate::luajit::stack::Kind;
use crate::luajit::{Stack, Value, fail};

pub(super) const FUNCTIONS: Functions = &[
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

pub(super) const CORE: Functions = &[
    ("encode_base64url", encode_base64url),
    ("decode_base64url", decode_base64url),
];

fn escape_uri(stack: &Stack) -> Called {
    let kind = match stack.kind(2) {
        Kind::Nil | Kind::None => 2.0,
        Kind::Number => stack.number(2).unwrap_or(2.0),
        _ => return fail("\"type\" is not a number"),
    };
    if !(0.0..=6.0).contains(&kind) {
        stack.push_number(kind);
        let shown = stack.shown(-1);
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

/// What no part of a URI has as it is.
fn is_no_text(byte: u8) -> bool {
    byte <= b' ' || byte >= 0x7f
}

/// What a component of a URI can not have as it is. Wider than RFC 3986's unreserved characters: the marks of RFC 2396
/// stay, as in lua-nginx-module.
fn is_no_component(byte: u8) -> bool {
    !(byte.is_ascii_alphanumeric() || b"-._~!'()*".contains(&byte))
}

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

fn unescape_uri(stack: &Stack) -> Called {
    let text = anything(stack, 1);
    stack.push_bytes(unescaped(&text));
    super::ONE
}

/// As forms have it: `+` is a space, and a `%` that begins no escape stays.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digit = |n: usize| {
            text.get(at + n)
                .and_then(|byte| (*byte as char).to_digit(16))
        };
        match text[at] {
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

fn encode_args(stack: &Stack) -> Called {
    if stack.top() != 1 {
        return fail(format!("expecting 1 argument but seen {}", stack.top()));
    }
    table(stack, 1)?;
    let out = args_of(stack, 1)?;
    stack.push_bytes(&out);
    super::ONE
}

/// The arguments that the table at `at` stands for.
pub(super) fn args_of(stack: &Stack, at: i32) -> Result<Vec<u8>, crate::luajit::Failure> {
    let mut out = Vec::new();
    stack.push_nil();
    while stack.next(at) {
        if stack.kind(-2) != Kind::String {
            return fail("attempt to use a non-string key in the \"args\" option table");
        }
        let key = bytes(stack, -2)?.to_vec();
        let value = stack.top();
        if stack.kind(value) == Kind::Table {
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

/// Appends `key=value` of the value on top: `key` for `true`, nothing for `false`.
fn pair(stack: &Stack, key: &[u8], out: &mut Vec<u8>) -> Result<(), crate::luajit::Failure> {
    let kind = stack.kind(-1);
    if kind == Kind::Boolean && !stack.boolean(-1) {
        return Ok(());
    }
    if !out.is_empty() {
        out.push(b'&');
    }
    escape(key, is_no_component, out);
    match kind {
        Kind::Boolean => {}
        Kind::String | Kind::Number => {
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

fn decode_args(stack: &Stack) -> Called {
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

/// How many arguments, or fields, are read at most where a script does not say.
pub(super) const MAX_ARGS: usize = 100;

/// How many a script means that gives a number; nothing below 1 is a limit.
pub(super) fn most(n: i32) -> usize {
    match usize::try_from(n) {
        Ok(n) if n > 0 => n,
        _ => usize::MAX,
    }
}

/// Fills the table on top with arguments, which is then the result. What is cut off by a `&` counts, also when it is nothing.
pub(super) fn fill_args(stack: &Stack, text: &[u8], max: usize) -> Called {
    let result = stack.top();
    let mut parts = text.split(|byte| *byte == b'&').peekable();
    let mut count = 0;
    while let Some(part) = parts.next() {
        add_arg(stack, result, part);
        count += 1;
        if count == max && parts.peek().is_some() {
            stack.push_bytes("truncated");
            return Ok(crate::luajit::Answer::Values(2));
        }
    }
    super::ONE
}

/// As [`fill_args`] does it for the arguments of a request: only what has a name counts, but all that is there decides
/// whether something was left out.
pub(super) fn fill_query(stack: &Stack, text: &[u8], max: usize) -> Called {
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
    Ok(crate::luajit::Answer::Values(2))
}

/// Adds an argument to the table at `result`; `false` for one without a name.
fn add_arg(stack: &Stack, result: i32, part: &[u8]) -> bool {
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

/// Adds the value on top to what the table has under `key`: the second makes a list.
pub(super) fn collect(stack: &Stack, table: i32, key: &[u8]) {
    match stack.field(table, key) {
        Kind::Nil => {
            stack.pop(1);
            stack.set(table, key);
        }
        Kind::Table => {
            stack.insert(-2);
            let n = stack.length(-2) + 1;
            stack.set_element(-2, n);
            stack.pop(1);
        }
        _ => {
            stack.push_table(2, 0);
            stack.insert(-2);
            stack.set_element(-2, 1);
            stack.insert(-2);
            stack.set_element(-2, 2);
            stack.set(table, key);
        }
    }
}

fn encode_base64(stack: &Stack) -> Called {
    let text = anything(stack, 1);
    let plain = match stack.kind(2) {
        Kind::Nil | Kind::None => false,
        Kind::Boolean => stack.boolean(2),
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

/// Takes text without padding, and whatever its last bits are.
const ANY_BITS: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const LENIENT: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, ANY_BITS);
const LENIENT_URL: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, ANY_BITS);

/// The text ends where padding begins, whatever follows.
fn unpadded(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'=');
    &text[..end.unwrap_or(text.len())]
}

fn decode_base64(stack: &Stack) -> Called {
    match LENIENT.decode(unpadded(only_text(stack, 1, "string argument only")?)) {
        Ok(text) => stack.push_bytes(text),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

/// As mail has it: what is not of the alphabet does not count.
fn decode_base64mime(stack: &Stack) -> Called {
    let mut text = unpadded(only_text(stack, 1, "string argument only")?).to_vec();
    text.retain(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    match LENIENT.decode(&text) {
        Ok(text) => stack.push_bytes(text),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

fn encode_base64url(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::String {
        return super::output::answer(stack, Value::failure("must provide a string"));
    }
    let text = URL_SAFE_NO_PAD.encode(bytes(stack, 1)?);
    stack.push_bytes(text);
    super::ONE
}

fn decode_base64url(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::String {
        return super::output::answer(stack, Value::failure("must provide a string"));
    }
    match LENIENT_URL.decode(unpadded(bytes(stack, 1)?)) {
        Ok(text) => {
            stack.push_bytes(text);
            super::ONE
        }
        Err(_) => super::output::answer(stack, Value::failure("invalid input")),
    }
}

fn md5(stack: &Stack) -> Called {
    let digest = Md5::digest(anything(stack, 1));
    let mut out = Vec::with_capacity(32);
    base::text::write_hex(&digest, &mut out);
    stack.push_bytes(&out);
    super::ONE
}

fn md5_bin(stack: &Stack) -> Called {
    let digest = Md5::digest(anything(stack, 1));
    stack.push_bytes(digest);
    super::ONE
}

fn sha1_bin(stack: &Stack) -> Called {
    let digest = Sha1::digest(anything(stack, 1));
    stack.push_bytes(digest);
    super::ONE
}

/// RFC 2104 over SHA-1.
fn hmac_sha1(stack: &Stack) -> Called {
    const BLOCK: usize = 64;
    if stack.top() != 2 {
        return fail(format!("expecting 2 arguments, but got {}", stack.top()));
    }
    let (key, text) = (bytes(stack, 1)?, bytes(stack, 2)?);
    let mut block = [0_u8; BLOCK];
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

fn crc32(stack: &Stack) -> Called {
    let sum = base::hash::crc32(&anything(stack, 1));
    stack.push_number(f64::from(sum));
    super::ONE
}

fn quote_sql(stack: &Stack) -> Called {
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
