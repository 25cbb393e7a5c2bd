//! What the modules of lua-resty-string need: `resty.md5`, `resty.sha1` and the like, `resty.aes`,
//! `resty.random`.
//!
//! The original calls OpenSSL through LuaJIT's `ffi`, and OpenSSL is not in this program. So these
//! modules are built in, as `crypto.lua` on top of the functions here. Exporting AWS-LC's functions
//! under OpenSSL's names was the alternative: then a script's own idea of a C structure would
//! decide where the server writes.

mod aes;

use std::cell::RefCell;
use std::rc::Rc;

use aws_lc_rs::digest::{
    Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA224, SHA256, SHA384, SHA512,
};
use md5::{Digest as _, Md5};

use super::arguments::{bytes, number, optional_number};
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::{LuaStack, fail};

/// The part that is written in Lua.
pub(super) static MODULES: &[u8] = include_bytes!("crypto.lua");

pub(super) const CORE: NativeTable = &[
    ("digest", digest),
    ("random_bytes", random_bytes),
    ("bytes_to_key", bytes_to_key),
    ("aes", aes::new),
];

/// A digest under way.
#[derive(Clone)]
enum HashState {
    Md5(Md5),
    Sha(Context),
}

impl HashState {
    fn of(name: &[u8]) -> Option<HashState> {
        let sha = |algorithm: &'static Algorithm| HashState::Sha(Context::new(algorithm));
        Some(match name {
            b"md5" => HashState::Md5(Md5::new()),
            b"sha1" => sha(&SHA1_FOR_LEGACY_USE_ONLY),
            b"sha224" => sha(&SHA224),
            b"sha256" => sha(&SHA256),
            b"sha384" => sha(&SHA384),
            b"sha512" => sha(&SHA512),
            _ => return None,
        })
    }

    fn update(&mut self, data: &[u8]) {
        match self {
            HashState::Md5(sum) => sum.update(data),
            HashState::Sha(sum) => sum.update(data),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            HashState::Md5(sum) => sum.finalize().to_vec(),
            HashState::Sha(sum) => sum.finish().as_ref().to_vec(),
        }
    }
}

/// The object that scripts hold.
struct DigestObject {
    /// The initial state, for `reset`.
    fresh: HashState,
    sum: RefCell<HashState>,
}

static DIGEST: ObjectClass = ObjectClass {
    name: "weir.digest",
    shape: ObjectShape::Table,
    methods: &[("update", update), ("final", finish), ("reset", reset)],
};

/// The hash function that argument `at` names.
fn sum_of(stack: &LuaStack, at: i32) -> Result<HashState, crate::luajit::LuaError> {
    match HashState::of(bytes(stack, at)?) {
        Some(sum) => Ok(sum),
        None => fail("unknown hash function"),
    }
}

/// Creates a digest.
fn digest(stack: &LuaStack) -> CallResult {
    let fresh = sum_of(stack, 1)?;
    let digest = DigestObject {
        sum: RefCell::new(fresh.clone()),
        fresh,
    };
    object::push(stack, &DIGEST, Rc::new(digest));
    super::ONE
}

fn this_digest(stack: &LuaStack) -> Result<Rc<DigestObject>, crate::luajit::LuaError> {
    object::get(stack, 1, "digest")
}

/// `digest:update(data, length)`.
fn update(stack: &LuaStack) -> CallResult {
    let digest = this_digest(stack)?;
    let data = bytes(stack, 2)?;
    let length = optional_number(stack, 3)?.map_or(data.len(), |n| n as usize);
    // The original passes the length to C and reads beyond the string.
    let Some(data) = data.get(..length) else {
        return fail("bad argument #3 (the string is shorter)");
    };
    digest.sum.borrow_mut().update(data);
    stack.push_boolean(true);
    super::ONE
}

/// `digest:final()`. The object can be used again afterwards.
fn finish(stack: &LuaStack) -> CallResult {
    let digest = this_digest(stack)?;
    let sum = digest.sum.replace(digest.fresh.clone());
    stack.push_bytes(sum.finish());
    super::ONE
}

/// `digest:reset()`.
fn reset(stack: &LuaStack) -> CallResult {
    let digest = this_digest(stack)?;
    digest.sum.replace(digest.fresh.clone());
    stack.push_boolean(true);
    super::ONE
}

/// How many random bytes a script can get at a time.
const MAX_RANDOM: f64 = (1 << 20) as f64;

/// `resty.random.bytes(count)`. All are cryptographically strong.
fn random_bytes(stack: &LuaStack) -> CallResult {
    let n = number(stack, 1)?;
    if !(0.0..=MAX_RANDOM).contains(&n) {
        return fail("bad argument #1 to 'bytes' (from 0 to 1048576 bytes at a time)");
    }
    let mut out = vec![0; n as usize];
    match net::tls::fill_random(&mut out) {
        Ok(()) => stack.push_bytes(&out),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

/// The largest number of rounds: they run on the loop's thread.
const MAX_ROUNDS: f64 = 1_000_000.0;

/// The longest key and initialization vector, in bytes.
const MAX_DERIVED: usize = 64;

/// OpenSSL's `EVP_BytesToKey`: derives a key and an initialization vector from a password.
/// Arguments: hash function, salt or nil, password, rounds, length of the key, length of the
/// vector.
fn bytes_to_key(stack: &LuaStack) -> CallResult {
    let fresh = sum_of(stack, 1)?;
    let salt = match stack.is_nil(2) {
        true => &b""[..],
        false => bytes(stack, 2)?,
    };
    let (password, rounds) = (bytes(stack, 3)?, number(stack, 4)?);
    let (key, vector) = (number(stack, 5)? as usize, number(stack, 6)? as usize);
    if key > MAX_DERIVED || vector > MAX_DERIVED || rounds > MAX_ROUNDS {
        return fail("bad length of a key or number of rounds");
    }
    let (mut derived, mut last) = (Vec::new(), Vec::new());
    while derived.len() < key + vector {
        let mut sum = fresh.clone();
        // The order is part of the result: keys must be those that OpenSSL derives.
        sum.update(&last);
        sum.update(password);
        sum.update(salt);
        last = sum.finish();
        for _ in 1..rounds as u32 {
            let mut sum = fresh.clone();
            sum.update(&last);
            last = sum.finish();
        }
        derived.extend_from_slice(&last);
    }
    stack.push_bytes(&derived[..key]);
    stack.push_bytes(&derived[key..key + vector]);
    Ok(crate::luajit::NativeReturn::Values(2))
}
