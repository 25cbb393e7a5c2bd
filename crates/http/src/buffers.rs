//! Output buffers that one response passes on to the next on the same loop.
//!
//! Allocating some KB for each response costs more than most of what is done with them. A buffer for each connection
//! would have left the processor's cache by the time the connection is served again; so the buffer that was used last
//! is taken first.

use std::cell::RefCell;

use bytes::Bytes;

use crate::memory_peak;

/// Buffers that a loop keeps; more than this are freed.
const MOST: usize = 64;

/// How many it keeps after a peak.
const KEPT: usize = 8;

/// A buffer that grew larger than this is not kept, in bytes.
const LARGEST: usize = 128 * 1024;

/// How much of a file is in memory at a time on its way to a client, in bytes.
pub(crate) const PIECE: usize = 64 * 1024;

/// Pieces that a loop keeps; more than this are freed.
const MOST_PIECES: usize = 16;

rt::local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static PIECES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Memory for a piece of a file: one that an earlier piece has left.
pub(crate) fn take_piece() -> Vec<u8> {
    let kept = PIECES.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| Vec::with_capacity(PIECE))
}

/// Content whose memory is another piece's once nobody refers to it. The allocator would go through all that is free at each
/// piece that is (`malloc_consolidate`), and give pages back that the next piece needs.
pub(crate) fn share_piece(piece: Vec<u8>) -> Bytes {
    match piece.capacity() {
        PIECE => Bytes::from_owner(SharedPiece(piece)),
        _ => piece.into(),
    }
}

struct SharedPiece(Vec<u8>);

impl AsRef<[u8]> for SharedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SharedPiece {
    fn drop(&mut self) {
        let mut piece = std::mem::take(&mut self.0);
        piece.clear();
        // While the thread ends its locals may be gone already; then the memory is simply freed.
        let _ended = PIECES.try_with(|all| {
            if let Ok(mut all) = all.try_borrow_mut()
                && all.len() < MOST_PIECES
            {
                all.push(piece);
            }
        });
    }
}

/// An empty buffer, with the capacity that an earlier response gave it.
pub(crate) fn take_buffer() -> Vec<u8> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Frees what only a peak of responses needed.
pub(crate) fn shrink() {
    BUFFERS.with_borrow_mut(|all| all.truncate(KEPT));
    PIECES.take();
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
