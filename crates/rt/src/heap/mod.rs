//! The process's allocator: blocks of more than half a kilobyte live apart from smaller ones.
//!
//! A connection that is served has some large blocks for a short time (the future of its task, its request, a buffer), and small
//! ones for as long as it lives. In one heap they lie in turn, and when the large ones have gone the small ones hold their pages:
//! four times as much as lives, for thousands of clients that wait. So the large ones have spans of blocks of one size here, whose
//! pages go back whole ([`spans`]), and everything else is the system's allocator's, as before. What this buys is in
//! docs/design/2026-11-27-at-scale.md.
//!
//! Its locks need no care at a fork: a process forks only while it has one thread (`system::fork`).
//!
//! What C libraries allocate does not come here. Where the address space is limited, everything is left to the system's allocator.

mod spans;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use base::sync::Mutex;

use spans::{
    BlockShard, BlockSize, BlockSpan, MORE_THAN, SPAN, SpanMemory, SpanTable, UnusedSpans,
};

/// The most spans: 4 GB of addresses. Beyond that, and where fewer are to be had, the system's allocator has the rest.
const SPANS: usize = 16 * 1024;

/// How many threads can allocate without waiting for each other.
const SHARDS: usize = 64;

/// The largest alignment of a block; larger ones are rare.
const ALIGNMENT: usize = 64;

/// Sizes of which each shard remembers the block that was freed last: those up to four kilobytes.
const RECENT_SIZES: usize = 24;

/// What a block that was freed last is counted in, so that its number has 32 bits.
const UNIT: usize = 64;

/// For each shard and size one more than where the block begins that was freed last, in [`UNIT`]s; 0: none. What frees and
/// allocates in turn, as most requests do, needs no lock and no list. Such a block counts as used, so its page stays.
static RECENT: [[AtomicU32; RECENT_SIZES]; SHARDS] =
    [const { [const { AtomicU32::new(0) }; RECENT_SIZES] }; SHARDS];

static SHARD_STATES: [Mutex<BlockShard>; SHARDS] =
    [const { Mutex::new(BlockShard::EMPTY) }; SHARDS];
static UNUSED: Mutex<UnusedSpans> = Mutex::new(UnusedSpans::NONE);
static REGION: OnceLock<Option<SpanRegion>> = OnceLock::new();
static NEXT_SHARD: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// One more than the shard of this thread; 0 before it has drawn one. It has no destructor, so it can be used at any time.
    static OWN_SHARD: Cell<u8> = const { Cell::new(0) };
}

/// The allocator, for `#[global_allocator]`.
pub struct SplitHeap;

// SAFETY: a block of the table is inside the region, which is never unmapped, at least as large as asked (`BlockSize`) and aligned
// to 64 bytes, as blocks begin at multiples of their size, which is one of 64, in spans that begin at multiples of 256 KB; no
// other block has a byte of it, and its pages go back only while it is free (tested in `spans`). All else is what `System`
// returns for the same layout. `dealloc` and `realloc` tell the two apart by the address. Nothing here unwinds: indices come from
// blocks that were given out.
// JUSTIFICATION: an idle connection among 1,000 was 7,049 bytes without it, and is 2,269.
unsafe impl GlobalAlloc for SplitHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match is_plain(layout.size(), layout.align()) {
                true => System.alloc(layout),
                false => alloc_other(layout),
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match is_plain(layout.size(), layout.align()) {
                true => System.alloc_zeroed(layout),
                false => alloc_other_zeroed(layout),
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same; a block of this size is none of the table's.
        unsafe {
            match layout.size() <= MORE_THAN {
                true => System.dealloc(block, layout),
                false => dealloc_other(block, layout),
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise is the same; a block of this size is none of the table's.
        unsafe {
            match layout.size() <= MORE_THAN && is_plain(bytes, layout.align()) {
                true => System.realloc(block, layout, bytes),
                false => realloc_other(block, layout, bytes),
            }
        }
    }
}

/// Whether the system's allocator has blocks of this size, at any address that it likes. Most are; what they take here is less
/// than ten instructions, so everything else is behind calls.
#[inline]
fn is_plain(bytes: usize, align: usize) -> bool {
    bytes <= MORE_THAN && align <= 16 && align <= bytes
}

/// [`GlobalAlloc::alloc`] for what is not plain.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn alloc_other(layout: Layout) -> *mut u8 {
    match allocate(layout) {
        Some(block) => block.as_ptr(),
        // SAFETY: the caller's promise is the same.
        None => unsafe { System.alloc(layout) },
    }
}

/// [`GlobalAlloc::alloc_zeroed`] for what is not plain.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn alloc_other_zeroed(layout: Layout) -> *mut u8 {
    match allocate(layout) {
        Some(block) => {
            // SAFETY: the block has this many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
            block.as_ptr()
        }
        // SAFETY: the caller's promise is the same.
        None => unsafe { System.alloc_zeroed(layout) },
    }
}

/// [`GlobalAlloc::dealloc`] for what is larger than [`MORE_THAN`].
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn dealloc_other(block: *mut u8, layout: Layout) {
    match known_block(block) {
        Some((region, offset)) => free(region, offset),
        // SAFETY: it is none of the table's, so it came from `System` with this layout.
        None => unsafe { System.dealloc(block, layout) },
    }
}

/// [`GlobalAlloc::realloc`] unless both blocks are plain.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn realloc_other(block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
    let is_small = layout.size() <= MORE_THAN && bytes <= MORE_THAN;
    let known = if is_small { None } else { known_block(block) };
    let wanted = if is_small { None } else { BlockSize::of(bytes) };
    match (&known, wanted) {
        (Some((region, offset)), Some(size)) if region.table().size_of(*offset) == size => {
            return block;
        }
        // SAFETY: it is none of the table's, so it came from `System` with this layout.
        (None, None) => return unsafe { System.realloc(block, layout, bytes) },
        _ => {}
    }
    // SAFETY: the caller promises that `bytes`, rounded up to the alignment, is a valid size, and it is not 0. Both blocks have
    // this many bytes, and they are different ones; the old one has the given layout.
    unsafe {
        let moved = SplitHeap.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
        if !moved.is_null() {
            ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes));
            SplitHeap.dealloc(block, layout);
        }
        moved
    }
}

/// Gives the pages of free blocks back to the system. Blocks that live are not moved.
pub(crate) fn give_back() {
    let Some(Some(region)) = REGION.get() else {
        return;
    };
    for recent in RECENT.as_flattened() {
        if let Some(offset) = take_recent(recent) {
            region.table().free(offset);
        }
    }
    region.table().give_back();
}

/// A block of the table; `None` if it has none of such a layout.
fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    let size = BlockSize::of(layout.size()).filter(|_| layout.align() <= ALIGNMENT)?;
    let region = REGION.get_or_init(SpanRegion::reserve).as_ref()?;
    let shard = own_shard();
    let recent = RECENT[shard].get(size.number()).and_then(take_recent);
    let offset = recent.or_else(|| region.table().allocate(shard, size))?;
    // SAFETY: the offset is inside the region.
    // JUSTIFICATION: pointers are what an allocator returns.
    Some(unsafe { region.base.add(offset) })
}

fn take_recent(recent: &AtomicU32) -> Option<usize> {
    let known = recent.swap(0, Acquire) as usize;
    Some((known.checked_sub(1)?) * UNIT)
}

/// Frees the block that begins there.
fn free(region: &'static SpanRegion, offset: usize) {
    let size = region.table().size_of(offset);
    let is_kept = RECENT[own_shard()]
        .get(size.number())
        .is_some_and(|recent| {
            let number = (offset / UNIT + 1) as u32;
            recent.compare_exchange(0, number, Release, Relaxed).is_ok()
        });
    if !is_kept {
        region.table().free(offset);
    }
}

/// Where in the region a block begins; `None` if it is not in it.
fn known_block(block: *mut u8) -> Option<(&'static SpanRegion, usize)> {
    let region = REGION.get()?.as_ref()?;
    let offset = block.addr().wrapping_sub(region.base.addr().get());
    (offset < SPANS * SPAN).then_some((region, offset))
}

fn own_shard() -> usize {
    OWN_SHARD.with(|own| {
        if own.get() == 0 {
            own.set(NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS as u8 + 1);
        }
        usize::from(own.get() - 1)
    })
}

/// The addresses of all spans, and what is known of each.
struct SpanRegion {
    base: NonNull<u8>,
    spans: &'static [BlockSpan],
}

// SAFETY: the pointer is an address; what is there belongs to those who have allocated it.
// JUSTIFICATION: all threads allocate from one region.
unsafe impl Send for SpanRegion {}
// SAFETY: as above.
unsafe impl Sync for SpanRegion {}

impl SpanRegion {
    /// Reserves addresses. They are not memory, nor counted as such, before a span is opened.
    fn reserve() -> Option<SpanRegion> {
        let table = map(
            size_of::<BlockSpan>() * SPANS,
            libc::PROT_READ | libc::PROT_WRITE,
        )?;
        let region = map((SPANS + 1) * SPAN, libc::PROT_NONE)?;
        let to_border = region.align_offset(SPAN);
        // SAFETY: one span more than is used was mapped, so the border is in it, and as much behind it. A huge page would
        // be memory for what is not used; a kernel without them refuses.
        // JUSTIFICATION: the kernel has no safe form of it.
        unsafe {
            let base = region.add(to_border);
            libc::madvise(base.cast(), SPANS * SPAN, libc::MADV_NOHUGEPAGE);
            Some(SpanRegion {
                base: NonNull::new(base)?,
                // SAFETY: fresh memory is zeros, which are valid spans; it is aligned to a page and never unmapped.
                spans: std::slice::from_raw_parts(table.cast(), SPANS),
            })
        }
    }

    fn table(&self) -> SpanTable<'_, &SpanRegion> {
        SpanTable {
            spans: self.spans,
            shards: &SHARD_STATES,
            unused: &UNUSED,
            memory: self,
        }
    }
}

impl SpanMemory for &SpanRegion {
    fn open(&self, span: usize) -> bool {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the span is inside the region, and nothing of it has been given out.
        // JUSTIFICATION: reserved as memory from the start, it would count as used where the system does not overcommit.
        unsafe {
            let begin = self.base.as_ptr().add(span * SPAN);
            libc::mprotect(begin.cast(), SPAN, access) == 0
        }
    }

    fn drop_pages(&self, bytes: Range<usize>) -> Range<usize> {
        let page = page_size();
        let (start, end) = (bytes.start.next_multiple_of(page), bytes.end / page * page);
        if start >= end {
            return start..start;
        }
        // SAFETY: no block in these pages is used, and the lock of their shard keeps it so.
        // JUSTIFICATION: the only way to give pages back.
        let failed = unsafe {
            let begin = self.base.as_ptr().add(start);
            libc::madvise(begin.cast(), end - start, libc::MADV_DONTNEED) != 0
        };
        if failed { start..start } else { start..end }
    }
}

/// The size of a page of the system, in bytes.
fn page_size() -> usize {
    // SAFETY: it reads a number that the process was given at its start.
    // JUSTIFICATION: rustix looks for the number in memory that Valgrind does not show.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(64 * 1024)
}

/// Fresh memory, or addresses only.
fn map(bytes: usize, access: libc::c_int) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel finds room changes nothing that exists.
    // JUSTIFICATION: memory for an allocator cannot come from one.
    let begin = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    (begin != libc::MAP_FAILED).then_some(begin.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the block with its own number.
    fn filled(layout: Layout, byte: u8) -> *mut u8 {
        // SAFETY: the sizes of the test are not 0, and the block has this many bytes.
        unsafe {
            let block = SplitHeap.alloc(layout);
            assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
            block.write_bytes(byte, layout.size());
            block
        }
    }

    #[test]
    fn blocks_keep_their_bytes_while_they_grow_and_shrink() {
        for align in [1, 16, 128, 4096] {
            let sizes = [
                1,
                1000,
                1025,
                1100,
                1152,
                1153,
                5000,
                16_384,
                131_072,
                131_073,
                1 << 20,
            ];
            for (from, to) in sizes.iter().flat_map(|from| sizes.map(|to| (*from, to))) {
                let layout = Layout::from_size_align(from, align).expect("valid");
                let block = filled(layout, 7);
                give_back();
                // SAFETY: the block has that layout, and the new one is as large as asked.
                unsafe {
                    let moved = SplitHeap.realloc(block, layout, to);
                    assert!(!moved.is_null() && moved.addr() % align == 0);
                    let kept = std::slice::from_raw_parts(moved, from.min(to));
                    assert!(kept.iter().all(|byte| *byte == 7));
                    let layout = Layout::from_size_align(to, align).expect("valid");
                    SplitHeap.dealloc(moved, layout);
                    let zeros = SplitHeap.alloc_zeroed(layout);
                    assert!(
                        std::slice::from_raw_parts(zeros, to)
                            .iter()
                            .all(|byte| *byte == 0)
                    );
                    SplitHeap.dealloc(zeros, layout);
                }
            }
        }
    }

    #[test]
    fn threads_free_what_others_have_allocated() {
        let (send, receive) = std::sync::mpsc::sync_channel::<(usize, Layout, u8)>(64);
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                let send = send.clone();
                scope.spawn(move || {
                    for round in 0..500_usize {
                        let layout = Layout::from_size_align(1025 + round * 7, 8).expect("valid");
                        let block = filled(layout, number);
                        if send
                            .send((block.expose_provenance(), layout, number))
                            .is_err()
                        {
                            return;
                        }
                    }
                });
            }
            drop(send);
            while let Ok((block, layout, number)) = receive.recv() {
                let block = ptr::with_exposed_provenance_mut::<u8>(block);
                // SAFETY: the other thread has given this block with this layout away.
                unsafe {
                    let bytes = std::slice::from_raw_parts(block, layout.size());
                    assert!(bytes.iter().all(|byte| *byte == number));
                    SplitHeap.dealloc(block, layout);
                }
            }
        });
    }
}
