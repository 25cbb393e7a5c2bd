//! Memory that connections have given back goes back to the system.
//!
//! The allocator keeps what was freed for the next allocation, and after a peak of connections that is most of what the
//! process has. It can be made to give all of it back, at the cost of some milliseconds, in which a loop
//! that needs more than its thread has at hand has to wait; so this is done on a thread of the pool, only after much was
//! freed, and a while later.

use std::cell::Cell;
use std::time::Duration;

use crate::buffers;

/// How much less than at the last peak has to be in use, in bytes.
const WORTH_IT: usize = 1 << 20;

/// How long after the peak the memory is given back: the next peak may begin at once.
const AFTER: Duration = Duration::from_secs(5);

/// The most memory that connections of a loop have used since memory was last given back. An estimate.
#[derive(Default)]
pub(crate) struct MemoryPeak {
    most: Cell<usize>,
    /// A task waits to give memory back.
    is_waiting: Cell<bool>,
}

impl MemoryPeak {
    /// Notes how much is in use.
    #[inline]
    pub(crate) fn note_memory(&self, bytes: usize) {
        if bytes > self.most.get() {
            self.most.set(bytes);
        }
    }

    /// Whether so much less is in use than before that it has to be given back: then the caller waits for
    /// [`MemoryPeak::wait`], and asks again ([`MemoryPeak::ends`]).
    #[inline]
    pub(crate) fn is_over(&self, bytes: usize) -> bool {
        self.is_far_below(bytes) && !self.is_waiting.replace(true)
    }

    /// Half of the peak, too: what comes and goes all the time is not given back.
    fn is_far_below(&self, bytes: usize) -> bool {
        let most = self.most.get();
        bytes + WORTH_IT <= most && bytes <= most / 2
    }

    /// Waits for the time after a peak.
    pub(crate) async fn wait() {
        rt::sleep(AFTER).await;
    }

    /// Whether there is still much less in use than before. Then the caller frees what it keeps for a peak, and calls
    /// [`host::process::give_memory_back`]; the next peak begins.
    pub(crate) fn ends(&self, bytes: usize) -> bool {
        self.is_waiting.set(false);
        let ends = self.is_far_below(bytes);
        if ends {
            self.most.set(bytes);
        }
        ends
    }
}

/// What has been freed for slow clients since memory was last given back, and whether a task waits to do that.
#[derive(Clone, Copy, Default)]
struct DroppedMemory {
    bytes: usize,
    is_waiting: bool,
}

rt::local! {
    static DROPPED: Cell<DroppedMemory> = const {
        Cell::new(DroppedMemory { bytes: 0, is_waiting: false })
    };
}

/// Notes that this number of bytes was freed because a client is slow. Its connection may live for long, and so may what
/// others have allocated around the free memory: no peak ends, yet most of the heap may be free.
pub(crate) fn note_dropped(bytes: usize) {
    let mut dropped = DROPPED.get();
    dropped.bytes += bytes;
    if dropped.bytes >= WORTH_IT && !dropped.is_waiting {
        dropped.is_waiting = true;
        rt::spawn_named("memory of slow clients", async {
            MemoryPeak::wait().await;
            DROPPED.set(DroppedMemory::default());
            buffers::shrink();
            let pool = rt::pool::default_pool();
            pool.run(host::process::give_memory_back).await;
        });
    }
    DROPPED.set(dropped);
}
