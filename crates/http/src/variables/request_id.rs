//! An identifier for each request.

use std::cell::Cell;
use std::hash::BuildHasher;

use conf::Variable;

use crate::request::Request;

pub(super) static VARIABLES: &[Variable<Request>] = &[Variable::new(
    "request_id",
    request_id,
    "A unique identifier of the request: 32 random hexadecimal digits.",
)];

rt::local! {
    static KEY: rt::random::RandomState = rt::random::RandomState::new();
    static COUNTER: Cell<u64> = const { Cell::new(0) };
}

/// A keyed hash of a counter. It is unique on this loop as far as the hash does not collide, and seeing some of them
/// does not allow guessing the next.
fn request_id(_: &mut Request, out: &mut Vec<u8>) -> bool {
    // A hash has 64 bits, and nginx's identifier has 128.
    for _ in 0..2 {
        let count = COUNTER.get();
        COUNTER.set(count.wrapping_add(1));
        let half = KEY.with(|key| key.hash_one(count));
        base::text::write_hex(&half.to_be_bytes(), out);
    }
    true
}
