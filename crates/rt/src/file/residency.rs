//! How much of a file is in the page cache: what must be known before `sendfile`.
//!
//! Ways considered, for a block of 128 KB that is resident (6.18 kernel, see
//! docs/design/2026-11-21-event-loop.md): `mincore` over a fresh mapping 2.4 µs, but for a file that the
//! process does not own and may not write it answers "all there" (since Linux 5.0), which is the
//! usual case of a server. `cachestat` 0.15 µs, but refused for such files, and it counts pages whose
//! reading has not finished. A nowait read of the block into a scratch buffer 5.7 µs. What is done:
//! nowait reads of two bytes that straddle a page boundary, each of which proves two pages: 4.1 µs,
//! exact, on every kernel that has the flag.
//!
//! A block that was proven again, some time after it was first proven, is believed for [`BELIEVED_TICKS`]: it is in
//! use, and among the last that the kernel would drop. So a hot file costs next to nothing. What was just read for one
//! client is among the first: it is proven each time. Several clients that take a block soon one after the other show
//! sooner that it is in use than the time alone: the kernel, too, counts a page as in use from its second reader on.
//!
//! While files are being loaded nothing is believed, and a block is proven just before it is sent: memory is being
//! turned over, and the kernel drops what is in use as well. In a disk's load one believed page in a second was gone,
//! and each made a loop wait behind everything that the disk had to do, 300 ms. Blocks that are in use then are locked
//! into memory ([`super::locked_blocks`]), and these are believed as before.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::Advice;
use rustix::io::Errno;

use super::{File, locked_blocks};
use crate::clock;

const PAGE: u64 = 4096;
/// The unit in which residency is probed and remembered.
pub(super) const BLOCK: u64 = 128 * 1024;
/// How many ticks a probe of a block in use stays valid. If the page cache is replaced faster than this, a loop may
/// block.
const BELIEVED_TICKS: u64 = 100;
/// How many blocks each thread remembers: 2^11 × 128 KB = 256 MB of hot data, in 80 KB of memory.
const REMEMBERED: usize = 2048;

/// A block is in use if it was probed again this many ticks after its first probe: a single client that takes it is
/// mostly done by then.
const IN_USE_TICKS: u64 = 1_000;
/// The shorter time that is enough once [`IN_USE_TAKERS`] clients took the block: a file that suddenly becomes
/// popular is probed for this long only.
const IN_USE_SOON_TICKS: u64 = 50;
/// How many clients show that a block is in use after [`IN_USE_SOON_TICKS`].
const IN_USE_TAKERS: u32 = 8;
/// Probes further apart than this are not connected: the block may have been dropped and read again in between.
const APART_TICKS: u64 = 500;

/// For which client the page cache is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeClient {
    /// A client that takes these bytes and for which they were not asked about before.
    New,
    /// A client for which they were asked about before, or one that is not known.
    Same,
}

/// A block, or a part of one, that was probed on this thread: which part, and when.
#[derive(Clone, Copy, Default)]
struct ResidencyProof {
    file: u64,
    block: u64,
    /// The probed pages, as positions in the file. What is sent often neither begins nor ends at a block boundary:
    /// the end of a file, or the extents of an object in a segment of the cache.
    begin: u64,
    end: u64,
    /// When the present sequence of probes began, and when the last one was made.
    first: u64,
    last: u64,
    /// How many clients took the block from its beginning during the present sequence.
    takers: u32,
}

impl ResidencyProof {
    fn is_of(&self, file: u64, block: u64) -> bool {
        (self.file, self.block) == (file, block)
    }

    /// Adds a probe of further pages of the block.
    fn add(&mut self, begin: u64, end: u64, now: u64, client: ProbeClient) {
        let is_recent = now.saturating_sub(self.last) <= BELIEVED_TICKS;
        let touches = begin <= self.end && end >= self.begin;
        if begin <= self.begin {
            // From the beginning again: another client takes it too.
            let joined = if is_recent && touches { self.end } else { end };
            (self.begin, self.end, self.last) = (begin, end.max(joined), now);
            if client == ProbeClient::New {
                self.takers = self.takers.saturating_add(1);
            }
        } else if is_recent && touches {
            // The continuation, for the same client.
            self.end = self.end.max(end);
        }
    }

    fn holds(&self, now: u64) -> bool {
        let lasted = self.last - self.first;
        let in_use =
            lasted >= IN_USE_TICKS || lasted >= IN_USE_SOON_TICKS && self.takers >= IN_USE_TAKERS;
        in_use && now.saturating_sub(self.last) <= BELIEVED_TICKS
    }
}

/// For this many ticks after a load, pages may be dropped to make room.
const TURNED_OVER_TICKS: u64 = 1_000;
/// When the last load was.
static LOADED_AT: AtomicU64 = AtomicU64::new(0);

/// Whether memory is being replaced: files were loaded a moment ago.
fn is_turned_over(now: u64) -> bool {
    let at = LOADED_AT.load(Relaxed);
    at != 0 && now.saturating_sub(at) < TURNED_OVER_TICKS
}

/// For this many ticks after a loaded range was found to be dropped, nothing is read ahead: it would be dropped
/// too.
const LOST_TICKS: u64 = 1_000;
/// When a loaded range was last found to be dropped.
static LOST_AT: AtomicU64 = AtomicU64::new(0);

/// Records that a range loaded a moment ago is no longer in memory.
pub(super) fn note_evicted() {
    LOST_AT.store(clock::real_tick(), Relaxed);
}

thread_local! {
    static PROOFS: RefCell<Vec<ResidencyProof>> = const { RefCell::new(Vec::new()) };
}

/// How many of `max` bytes from `offset` on to ask about before some of them are sent. While memory is being
/// replaced, no more than one block beyond the locked ones: the next block may be gone when its turn comes.
pub(super) fn asked_at_once(file: &File, offset: u64, max: u64) -> u64 {
    let now = clock::tick();
    if !is_turned_over(now) {
        return max;
    }
    let file = file.identity();
    let mut block = offset / BLOCK;
    let last = offset.saturating_add(max) / BLOCK;
    while block < last && locked_blocks::is_locked(file, block, now) {
        block += 1;
    }
    max.min((block + 1) * BLOCK - offset)
}

/// Bytes from `offset` on, at most `max`, that are in memory.
pub(super) fn resident_prefix(file: &File, offset: u64, max: u64, client: ProbeClient) -> u64 {
    let now = clock::tick();
    let turned_over = is_turned_over(now);
    let end = offset.saturating_add(max);
    let mut position = offset;
    while position < end {
        let block_end = (position / BLOCK + 1) * BLOCK;
        let stop = block_end.min(end);
        // The probe is about whole pages.
        let pages = (position / PAGE * PAGE, stop.next_multiple_of(PAGE));
        let block = position / BLOCK;
        let may_be_gone = turned_over && !locked_blocks::is_locked(file.identity(), block, now);
        if may_be_gone || !believed(file, block, pages) {
            let reached = prove(file, position, stop);
            if reached < stop {
                return reached - offset;
            }
            let in_use = note(file, block, pages, client);
            if in_use && may_be_gone {
                locked_blocks::request_lock(file, block);
            }
        }
        position = stop;
    }
    max
}

/// Records that pages of a block were probed; returns whether the block is in use.
fn note(file: &File, block: u64, (begin, end): (u64, u64), client: ProbeClient) -> bool {
    let (file, now) = (file.identity(), clock::tick());
    PROOFS.with(|proofs| {
        let mut proofs = proofs.borrow_mut();
        if proofs.is_empty() {
            proofs.resize(REMEMBERED, ResidencyProof::default());
        }
        let old = &mut proofs[place(file, block)];
        if old.is_of(file, block) && now.saturating_sub(old.last) <= APART_TICKS {
            old.add(begin, end, now, client);
            return old.holds(now);
        }
        if !old.holds(now) {
            // A stream of cold blocks must not evict blocks that are in use.
            *old = ResidencyProof {
                file,
                block,
                begin,
                end,
                first: now,
                last: now,
                takers: 1,
            };
        }
        false
    })
}

fn believed(file: &File, block: u64, (begin, end): (u64, u64)) -> bool {
    let (file, now) = (file.identity(), clock::tick());
    PROOFS.with(|proofs| {
        let proofs = proofs.borrow();
        let proof = proofs.get(place(file, block));
        proof.is_some_and(|proof| {
            proof.is_of(file, block) && proof.begin <= begin && proof.end >= end && proof.holds(now)
        })
    })
}

fn place(file: u64, block: u64) -> usize {
    let mixed = (file ^ block.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (64 - REMEMBERED.trailing_zeros())) as usize
}

/// Probes page by page; returns how far the pages are in memory. Beyond the end of the file nothing can block.
fn prove(file: &File, start: u64, end: u64) -> u64 {
    let mut page = start / PAGE;
    let last = (end - 1) / PAGE;
    while page <= last {
        // Two bytes across the page boundary probe both pages with one call.
        if page < last && matches!(nowait(file, (page + 1) * PAGE - 1, 2), ProbeResult::Read(2)) {
            page += 2;
            continue;
        }
        match nowait(file, page * PAGE, 1) {
            ProbeResult::Read(0) | ProbeResult::NeverWaits => return end,
            ProbeResult::Read(_) => page += 1,
            ProbeResult::WouldWait => return (page * PAGE).max(start),
        }
    }
    end
}

enum ProbeResult {
    Read(usize),
    WouldWait,
    /// The file system keeps its files in memory.
    NeverWaits,
}

fn nowait(file: &File, offset: u64, len: usize) -> ProbeResult {
    let mut scratch = [0; 2];
    match file.try_read_at(&mut scratch[..len], offset) {
        Ok(n) => ProbeResult::Read(n),
        Err(_) if file.never_waits() => ProbeResult::NeverWaits,
        // An error of the device is reported when the data itself is read.
        Err(_) => ProbeResult::WouldWait,
    }
}

/// Brings a range into the page cache: asks for all of it and for `ahead` bytes behind it, then waits for each page of
/// it. For a thread of a pool.
pub(super) fn load_pages(file: &File, offset: u64, len: u64, ahead: u64) -> io::Result<()> {
    let end = offset.saturating_add(len);
    let mut asked = len;
    LOADED_AT.store(clock::real_tick(), Relaxed);
    if clock::real_tick().saturating_sub(LOST_AT.load(Relaxed)) >= LOST_TICKS {
        asked = asked.saturating_add(ahead);
    }
    // Advice only: the reads below fetch what it does not.
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(asked), Advice::WillNeed);
    let mut page = offset / PAGE;
    while page * PAGE < end {
        // Two bytes across a page boundary, as in `prove`: a copy of the range would cost more. But for the last page:
        // what is behind it would be read for nothing, with all that the kernel reads ahead of it.
        let mut scratch = [0; 2];
        let want = match (page + 1) * PAGE < end {
            true => 2,
            false => 1,
        };
        match rustix::io::pread(file, &mut scratch[..want], (page + 1) * PAGE - 1) {
            Ok(2) => page += 2,
            Ok(1) => page += 1,
            Ok(_) => {
                // The file ends within this page, or before it.
                rustix::io::pread(file, &mut scratch[..1], page * PAGE)?;
                return Ok(());
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PAGE;

    fn proof(begin: u64, end: u64, at: u64) -> ResidencyProof {
        ResidencyProof {
            begin,
            end,
            first: at,
            last: at,
            ..ResidencyProof::default()
        }
    }

    #[test]
    fn two_extents_in_a_block_are_proven_together() {
        let mut block = proof(0, 8 * P, 1000);
        block.add(7 * P, 32 * P, 1001, ProbeClient::Same);
        assert_eq!((block.begin, block.end, block.last), (0, 32 * P, 1000));
        // The next client, a moment later: the first extent again, then the second.
        block.add(0, 8 * P, 1400, ProbeClient::Same);
        assert_eq!((block.end, block.last), (8 * P, 1400));
        block.add(7 * P, 32 * P, 1401, ProbeClient::Same);
        block.add(0, 8 * P, 1450, ProbeClient::Same);
        assert_eq!((block.end, block.last), (32 * P, 1450));
        block.add(0, 8 * P, 2000, ProbeClient::Same);
        assert!(block.holds(2050) && !block.holds(2101));
    }

    #[test]
    fn one_client_in_the_middle_of_a_block_proves_no_use() {
        let mut block = proof(0, 32 * P, 1000);
        for step in 1..30 {
            block.add(step * P, 32 * P, 1000 + step * 50, ProbeClient::New);
        }
        assert!(!block.holds(2400));
    }

    #[test]
    fn many_clients_show_that_a_block_is_in_use_sooner_than_the_time_alone() {
        let mut asked_again = proof(0, 32 * P, 1000);
        let mut taken = proof(0, 32 * P, 1000);
        for step in 1..20 {
            asked_again.add(0, 32 * P, 1000 + step * 5, ProbeClient::Same);
            taken.add(0, 32 * P, 1000 + step * 5, ProbeClient::New);
            assert_eq!(taken.holds(1000 + step * 5), step * 5 >= IN_USE_SOON_TICKS);
        }
        assert!(!asked_again.holds(1100));
        assert!(taken.holds(1195) && !taken.holds(1196));
    }
}
