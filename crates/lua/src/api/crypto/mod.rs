//! What the modules of lua-resty-string do: `resty.md5`, `resty.sha1` and the like, `resty.aes`, `resty.random`.
//!
//! The library itself calls functions of OpenSSL by LuaJIT's `ffi`, and they are not in this program. So these modules are
//! built in, as `crypto.lua` on top of what is here. To export the functions of AWS-LC by OpenSSL's names was the other
//! way: then a script's own idea of a C structure would decide where the server writes.

mod aes;

use std::cell::RefCell;
use std::rc::Rc;

use aws_lc_rs::digest::{
    Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA224, SHA256, SHA384, SHA512,
};
use md5::{Digest as _, Md5};

use super::arguments::{bytes, number, optional_number};
use super::{Called, Functions};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::{Stack, fail};

/// The part that is Lua.
pub(super) static MODULES: &[u8] = include_bytes!("crypto.lua");

pub(super) const CORE: Functions = &[
    ("digest", digest),
    ("random_bytes", random_bytes),
    ("bytes_to_key", bytes_to_key),
    ("aes", aes::new),
];

/// A digest that is being computed.
#[derive(Clone)]
enum Sum {
    Md5(Md5),
    Sha(Context),
}

impl Sum {
    fn of(name: &[u8]) -> Option<Sum> {
        let sha = |algorithm: &'static Algorithm| Sum::Sha(Context::new(algorithm));
        Some(match name {
            b"md5" => Sum::Md5(Md5::new()),
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
            Sum::Md5(sum) => sum.update(data),
            Sum::Sha(sum) => sum.update(data),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Sum::Md5(sum) => sum.finalize().to_vec(),
            Sum::Sha(sum) => sum.finish().as_ref().to_vec(),
        }
    }
}

/// A digest as scripts hold it.
struct Digest {
    /// How it begins.
    fresh: Sum,
    sum: RefCell<Sum>,
}

static DIGEST: Class = Class {
    name: "weir.digest",
    shape: Shape::Table,
    methods: &[("update", update), ("final", finish), ("reset", reset)],
};

fn sum_of(stack: &Stack, at: i32) -> Result<Sum, crate::luajit::Failure> {
    match Sum::of(bytes(stack, at)?) {
        Some(sum) => Ok(sum),
        None => fail("unknown hash function"),
    }
}

fn digest(stack: &Stack) -> Called {
    let fresh = sum_of(stack, 1)?;
    let digest = Digest {
        sum: RefCell::new(fresh.clone()),
        fresh,
    };
    object::push(stack, &DIGEST, Rc::new(digest));
    super::ONE
}

fn this(stack: &Stack) -> Result<Rc<Digest>, crate::luajit::Failure> {
    object::get(stack, 1, "digest")
}

fn update(stack: &Stack) -> Called {
    let digest = this(stack)?;
    let data = bytes(stack, 2)?;
    let length = optional_number(stack, 3)?.map_or(data.len(), |n| n as usize);
    let Some(data) = data.get(..length) else {
        return fail("bad argument #3 (the string is shorter)");
    };
    digest.sum.borrow_mut().update(data);
    stack.push_boolean(true);
    super::ONE
}

fn finish(stack: &Stack) -> Called {
    let digest = this(stack)?;
    let sum = digest.sum.replace(digest.fresh.clone());
    stack.push_bytes(sum.finish());
    super::ONE
}

fn reset(stack: &Stack) -> Called {
    let digest = this(stack)?;
    digest.sum.replace(digest.fresh.clone());
    stack.push_boolean(true);
    super::ONE
}

/// How many random bytes a script gets at a time.
const MAX_RANDOM: f64 = (1 << 20) as f64;

fn random_bytes(stack: &Stack) -> Called {
    let n = number(stack, 1)?;
    if !(0.0..=MAX_RANDOM).contains(&n) {
        return fail("bad argument #1 to 'bytes' (from 0 to 1048576 bytes at a time)");
    }
    let mut out = vec![0; n as usize];
    match aws_lc_rs::rand::fill(&mut out) {
        Ok(()) => stack.push_bytes(&out),
        Err(_) => stack.push_nil(),
    }
    super::ONE
}

/// How often a key may be hashed.
const MAX_ROUNDS: f64 = 1_000_000.0;

/// The longest key and initialisation vector, in bytes.
const MAX_DERIVED: usize = 64;

/// A key and an initialisation vector from a password, as OpenSSL's `EVP_BytesToKey` has them: the name of the hash
/// function, the salt or nil, the password, how often to hash, the length of the key, that of the vector.
fn bytes_to_key(stack: &Stack) -> Called {
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
    Ok(crate::luajit::Answer::Values(2))
}
