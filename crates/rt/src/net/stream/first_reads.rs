//! Learns whether reading from a new connection at once is worthwhile.

use std::cell::Cell;

/// Whether new connections on this thread have their first bytes by the time they are accepted. If clients are as
/// fast as the server, they do not, and reading at once is a useless call. If the server is behind, or with
/// `deferred`, they do, and asking epoll first would be an extra call.
#[derive(Clone, Copy)]
pub(super) struct FirstReads {
    /// Useless first reads, minus successful ones; limited to [`FirstReads::SURE`].
    vain: i8,
    /// How many new connections went to epoll unread since the last try.
    untried: u8,
}

impl FirstReads {
    /// How many useless first reads stop further tries.
    const SURE: i8 = 8;
    /// After how many connections one is tried again.
    const TRY_AGAIN: u8 = 16;

    /// Whether to try the first read of one more connection.
    pub(super) fn is_worth_it(&mut self) -> bool {
        if self.vain < Self::SURE || self.untried >= Self::TRY_AGAIN {
            self.untried = 0;
            return true;
        }
        self.untried += 1;
        false
    }

    /// Records the result of a first read.
    pub(super) fn note_first_read(&mut self, in_vain: bool) {
        // A success counts more: few reads are tried when most seem useless.
        let step = if in_vain { 1 } else { -4 };
        self.vain = (self.vain + step).clamp(-Self::SURE, Self::SURE);
    }
}

thread_local! {
    static FIRST_READS: Cell<FirstReads> = const { Cell::new(FirstReads { vain: 0, untried: 0 }) };
}

/// Calls `f` with this thread's experience.
pub(super) fn with_first_reads<T>(f: impl FnOnce(&mut FirstReads) -> T) -> T {
    FIRST_READS.with(|cell| {
        let mut first = cell.get();
        let result = f(&mut first);
        cell.set(first);
        result
    })
}
