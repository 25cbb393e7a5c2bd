//! Output buffers that one response passes on to the next on the same loop.
//!
//! Allocating some KB for each response costs more than most of what is done with them. A buffer for each connection
//! would have left the processor's cache by the time the connection is served again; so the buffer that was used last
//! is taken first.

use std::cell::RefCell;

use crate::memory_peak;

/// Buffers that a loop keeps; more than this are freed.
const MOST: usize = 64;

/// How many it keeps after a peak.
const KEPT: usize = 8;

/// A buffer that grew larger than this is not kept, in bytes.
const LARGEST: usize = 128 * 1024;

rt::local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with the capacity that an earlier response gave it.
pub(crate) fn take_buffer() -> Vec<u8> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Frees what only a peak of responses needed.
pub(crate) fn shrink() {
    BUFFERS.with_borrow_mut(|all| all.truncate(KEPT));
}

/// Keeps a buffer for the next response, unless it has grown too large or enough are kept.
pub(crate) fn give_buffer(mut buffer: Vec<u8>) {
    // One large response must not leave its memory with the loop for good.
    if buffer.capacity() == 0 || buffer.capacity() > LARGEST {
        return;
    }
    buffer.clear();
    // While the thread ends its locals may be gone already; then the buffer is simply freed.
    let _ended = BUFFERS.try_with(|all| {
        let Ok(mut all) = all.try_borrow_mut() else {
            return;
        };
        match all.len() < MOST {
            true => all.push(buffer),
            // Many clients had one at the same time, and now wait without.
            false => memory_peak::note_dropped(buffer.capacity()),
        }
    });
}
