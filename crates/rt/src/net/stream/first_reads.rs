//! What a thread has learned of the first reads of its new connections.

use std::cell::Cell;

/// Whether new connections on this thread have brought their first bytes by the time they are accepted. Where clients and
/// server are equally fast they have not, and to read at once is a call in vain; where the server is behind, or with
/// `deferred`, they have, and to ask epoll first would be two.
#[derive(Clone, Copy)]
pub(super) struct FirstReads {
    /// First reads in vain, less those that gave something; within [`FirstReads::SURE`].
    vain: i8,
    /// New connections that went to epoll unread since one was tried.
    untried: u8,
}

impl FirstReads {
    /// How many first reads in vain stop further tries.
    const SURE: i8 = 8;
    /// How many connections then go untried before one is tried again.
    const TRY_AGAIN: u8 = 16;

    /// Whether the first read of one more connection is worth a try.
    pub(super) fn is_worth_it(&mut self) -> bool {
        if self.vain < Self::SURE || self.untried >= Self::TRY_AGAIN {
            self.untried = 0;
            return true;
        }
        self.untried += 1;
        false
    }

    /// Takes note of a first read.
    pub(super) fn learn(&mut self, in_vain: bool) {
        // One that gave something counts more: few are tried when most seem in vain.
        let step = if in_vain { 1 } else { -4 };
        self.vain = (self.vain + step).clamp(-Self::SURE, Self::SURE);
    }
}

thread_local! {
    static FIRST_READS: Cell<FirstReads> = const { Cell::new(FirstReads { vain: 0, untried: 0 }) };
}

/// Uses the thread's experience with first reads.
pub(super) fn with_first_reads<T>(f: impl FnOnce(&mut FirstReads) -> T) -> T {
    FIRST_READS.with(|cell| {
        let mut first = cell.get();
        let result = f(&mut first);
        cell.set(first);
        result
    })
}
