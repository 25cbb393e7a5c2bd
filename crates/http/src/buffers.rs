//! Memory that one response leaves to the next on the same loop.
//!
//! Allocating some KB anew for each costs more than most of what is done with them, and a buffer for each connection would be
//! out of the processor's cache whenever its turn comes: the one that was used last is taken first.

use std::cell::RefCell;

/// Buffers that a loop keeps; more than this are given back to the system.
const MOST: usize = 64;

/// A buffer that grew larger than this is not kept, in bytes.
const LARGEST: usize = 128 * 1024;

rt::local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer.
pub(crate) fn take() -> Vec<u8> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Leaves a buffer to the next.
pub(crate) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > LARGEST {
        return;
    }
    buffer.clear();
    // A thread that ends has no use for it any more.
    let _ended = BUFFERS.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut()
            && all.len() < MOST
        {
            all.push(buffer);
        }
    });
}
