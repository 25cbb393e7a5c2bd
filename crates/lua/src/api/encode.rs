//! Texts: escaping, arguments, base64, checksums, JSON's friends.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{
    GeneralPurpose, GeneralPurposeConfig, STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD,
};
use md5::{Digest, Md5};
use sha1::Sha1;

use super::arguments::{bytes, optional_number, table};
use super::{Called, Functions};
use crate::luajit::stack::Kind;
use crate::luajit::{Stack, fail};

pub(super) const FUNCTIONS: Functions = &[
    ("escape_uri", escape_uri),
    ("unescape_uri", unescape_uri),
    ("encode_args", encode_args),
    ("decode_args", decode_args),
    ("encode_base64", encode_base64),
    ("decode_base64", decode_base64),
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

/// A value as text: nil and booleans too.
fn anything(stack: &Stack, at: i32) -> Result<Vec<u8>, crate::luajit::Failure> {
    match stack.kind(at) {
        Kind::Nil | Kind::None => Ok(Vec::new()),
        Kind::Boolean => Ok(stack.text(at).unwrap_or_default()),
        _ => bytes(stack, at).map(<[u8]>::to_vec),
    }
}

fn escape_uri(stack: &Stack) -> Called {
    let is_bad: fn(u8) -> bool = match optional_number(stack, 2)?.map(|n| n as i64) {
        None | Some(2) => is_no_component,
        Some(0) => |byte| byte <= b' ' || byte >= 0x7f || matches!(byte, b'#' | b'%' | b'?'),
        Some(n) => return fail(format!("\"type\" {n} out of range")),
    };
    let text = anything(stack, 1)?;
    let mut out = Vec::with_capacity(text.len() + 16);
    escape(&text, is_bad, &mut out);
    stack.push_bytes(&out);
    super::ONE
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
    let text = anything(stack, 1)?;
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
    table(stack, 1)?;
    let mut out = Vec::new();
    stack.push_nil();
    while stack.next(1) {
        // A number as a key must not be read as text in its place.
        stack.push_copy(-2);
        let key = bytes(stack, -1)?.to_vec();
        stack.pop(1);
        let value = stack.top();
        if stack.kind(value) == Kind::Table {
            for n in 1..=stack.length(value) {
                stack.element(value, n);
                pair(stack, &key, &mut out)?;
                stack.pop(1);
            }
        } else {
            pair(stack, &key, &mut out)?;
        }
        stack.pop(1);
    }
    stack.push_bytes(&out);
    super::ONE
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
    let text = bytes(stack, 1)?.to_vec();
    let max = match optional_number(stack, 2)? {
        None => 100,
        Some(0.0) => usize::MAX,
        Some(n) if n < 0.0 => return fail("bad max"),
        Some(n) => n as usize,
    };
    stack.push_table(0, 8);
    let result = stack.top();
    let mut count = 0;
    for part in text.split(|byte| *byte == b'&') {
        if part.is_empty() {
            continue;
        }
        if count == max {
            stack.push_bytes("truncated");
            return Ok(crate::luajit::Answer::Values(2));
        }
        let (key, value) = match part.iter().position(|byte| *byte == b'=') {
            Some(at) => (&part[..at], Some(&part[at + 1..])),
            None => (part, None),
        };
        let key = unescaped(key);
        if key.is_empty() {
            continue;
        }
        match value {
            Some(value) => stack.push_bytes(unescaped(value)),
            None => stack.push_boolean(true),
        }
        collect(stack, result, &key);
        count += 1;
    }
    super::ONE
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
    let text = anything(stack, 1)?;
    let plain = stack.boolean(2);
    stack.push_bytes(match plain {
        true => STANDARD_NO_PAD.encode(text),
        false => STANDARD.encode(text),
    });
    super::ONE
}

/// Takes text with and without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn decode_base64(stack: &Stack) -> Called {
    match LENIENT.decode(bytes(stack, 1)?) {
        Ok(text) => stack.push_bytes(text),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

fn encode_base64url(stack: &Stack) -> Called {
    let text = URL_SAFE_NO_PAD.encode(bytes(stack, 1)?);
    stack.push_bytes(text);
    super::ONE
}

fn decode_base64url(stack: &Stack) -> Called {
    match URL_SAFE_NO_PAD.decode(bytes(stack, 1)?) {
        Ok(text) => {
            stack.push_bytes(text);
            super::ONE
        }
        Err(_) => {
            stack.push_nil();
            stack.push_bytes("invalid input");
            Ok(crate::luajit::Answer::Values(2))
        }
    }
}

fn md5(stack: &Stack) -> Called {
    let digest = Md5::digest(anything(stack, 1)?);
    let mut out = Vec::with_capacity(32);
    base::text::write_hex(&digest, &mut out);
    stack.push_bytes(&out);
    super::ONE
}

fn md5_bin(stack: &Stack) -> Called {
    let digest = Md5::digest(anything(stack, 1)?);
    stack.push_bytes(digest);
    super::ONE
}

fn sha1_bin(stack: &Stack) -> Called {
    let digest = Sha1::digest(anything(stack, 1)?);
    stack.push_bytes(digest);
    super::ONE
}

/// RFC 2104 over SHA-1.
fn hmac_sha1(stack: &Stack) -> Called {
    const BLOCK: usize = 64;
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
    let sum = base::hash::crc32(bytes(stack, 1)?);
    stack.push_number(f64::from(sum));
    super::ONE
}

fn quote_sql(stack: &Stack) -> Called {
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
