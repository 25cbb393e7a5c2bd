//! Which blocks of which spans are free: numbers only, no memory.
//!
//! ```text
//!   span (256 KB): blocks of one size, a bit for each      ┌────┬────┬────┬────┬─…─┬────┐
//!                                                          │used│free│used│free│   │free│
//!                                                          └────┴────┴────┴────┴─…─┴────┘
//!   shard: for each size the list of its spans with a free block      unused spans: fresh, and a list
//! ```
//!
//! The bits are beside the spans and not in them: pages of free blocks can go back to the system, and a list through the blocks
//! themselves would go with them. A thread allocates from the shard that it drew; a block goes back to the shard of its span,
//! whichever thread frees it.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use base::sync::Mutex;

/// The size of a span, in bytes. Larger ones would leave more of a size in memory that is seldom used.
pub(super) const SPAN: usize = 256 * 1024;

/// Larger blocks than this are kept here, in bytes: among others the futures of most exchanges and responses, each of which would
/// leave a hole between the small things of its connection.
pub(super) const MORE_THAN: usize = 512;

/// Larger blocks are left to the system's allocator, which maps them one by one.
pub(super) const LARGEST: usize = 128 * 1024;

/// What one bit of [`BlockSpan::touched`] stands for, in bytes.
pub(super) const GRANULE: usize = 4096;

/// Sizes of blocks between a power of two and the next: an eighth of a block is unused at most.
const STEPS: usize = 8;

/// The number of sizes.
const CLASSES: usize = STEPS * (LARGEST.ilog2() - MORE_THAN.ilog2()) as usize;

/// Words of bits for the blocks of a span: 455 of the smallest size.
const WORDS: usize = 8;

/// The size of a block, as a number from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSize(u8);

impl BlockSize {
    /// The size for this number of bytes; `None` if such blocks are not kept here.
    #[inline]
    pub(super) fn of(bytes: usize) -> Option<BlockSize> {
        if bytes <= MORE_THAN || bytes > LARGEST {
            return None;
        }
        let last = bytes - 1;
        let log = last.ilog2();
        let step = (last >> (log - STEPS.ilog2())) - STEPS;
        let power = (log - MORE_THAN.ilog2()) as usize;
        Some(BlockSize((power * STEPS + step) as u8))
    }

    /// In bytes: a multiple of 64, and of the page from 16 of them on.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        let (power, step) = (self.0 as usize / STEPS, self.0 as usize % STEPS);
        (STEPS + step + 1) << (power as u32 + MORE_THAN.ilog2() - STEPS.ilog2())
    }

    /// From 0 on, in the order of sizes.
    #[inline]
    pub(super) fn number(self) -> usize {
        usize::from(self.0)
    }

    fn blocks(self) -> usize {
        SPAN / self.bytes()
    }
}

/// A span. All zeros before its first use. Atomic, so that it can be shared; only who has the lock of its shard writes to it,
/// and [`BlockSpan::shard`] and [`BlockSpan::size`] do not change while one of its blocks is used.
#[derive(Default)]
pub(super) struct BlockSpan {
    /// A bit for each block that is free.
    free: [AtomicU64; WORDS],
    /// A bit for each granule that may have memory.
    touched: AtomicU64,
    /// The neighbours in the list of its shard, or the next unused one; each one more than the index, 0: none.
    next: AtomicU32,
    previous: AtomicU32,
    used: AtomicU16,
    size: AtomicU8,
    /// One more than the shard's number; 0 in an unused span.
    shard: AtomicU8,
}

impl BlockSpan {
    fn begin(&self, shard: usize, size: BlockSize) {
        let blocks = size.blocks();
        for (number, word) in self.free.iter().enumerate() {
            let bits = blocks.saturating_sub(number * 64).min(64) as u32;
            word.store(u64::MAX.checked_shr(64 - bits).unwrap_or(0), Relaxed);
        }
        self.used.store(0, Relaxed);
        self.size.store(size.0, Relaxed);
        self.shard.store(shard as u8 + 1, Relaxed);
        self.next.store(0, Relaxed);
        self.previous.store(0, Relaxed);
    }

    fn size(&self) -> BlockSize {
        BlockSize(self.size.load(Relaxed))
    }

    /// Takes the first free block: what lives stays together at the beginning.
    fn take_block(&self, bytes: usize) -> Option<usize> {
        let word = self.free.iter().position(|word| word.load(Relaxed) != 0)?;
        let bits = self.free[word].load(Relaxed);
        self.free[word].store(bits & (bits - 1), Relaxed);
        self.used.store(self.used.load(Relaxed) + 1, Relaxed);
        let block = word * 64 + bits.trailing_zeros() as usize;
        let touched = self.touched.load(Relaxed) | granules(block, bytes);
        self.touched.store(touched, Relaxed);
        Some(block)
    }

    fn give_block(&self, block: usize) {
        let word = &self.free[block / 64];
        word.store(word.load(Relaxed) | 1 << (block % 64), Relaxed);
        self.used.store(self.used.load(Relaxed) - 1, Relaxed);
    }

    fn is_full(&self) -> bool {
        self.used.load(Relaxed) as usize == self.size().blocks()
    }

    /// The granules that have memory and no block in use.
    fn spare_granules(&self) -> u64 {
        let size = self.size();
        let is_used = |block: &usize| self.free[block / 64].load(Relaxed) >> (block % 64) & 1 == 0;
        let used = (0..size.blocks()).filter(is_used);
        let living = used.fold(0, |all, block| all | granules(block, size.bytes()));
        self.touched.load(Relaxed) & !living
    }
}

/// A bit for each granule in which the block lies.
fn granules(block: usize, bytes: usize) -> u64 {
    let first = block * bytes / GRANULE;
    let last = (block * bytes + bytes - 1) / GRANULE;
    (u64::MAX >> (63 - (last - first))) << first
}

/// What one thread, or several, allocate from: the first span with a free block of each size, as in [`BlockSpan::next`].
pub(super) struct BlockShard([u32; CLASSES]);

impl BlockShard {
    pub(super) const EMPTY: BlockShard = BlockShard([0; CLASSES]);
}

/// How many unused spans keep their memory, for the next size that needs one: 4 MB.
const MOST_WARM: usize = 16;

/// Spans that belong to no shard.
pub(super) struct UnusedSpans {
    /// The first of those that may have memory, at most [`MOST_WARM`], and how many they are.
    warm: u32,
    warm_count: usize,
    /// The first of those whose memory has gone back.
    cold: u32,
    /// How many have been used at all.
    fresh: usize,
}

impl UnusedSpans {
    pub(super) const NONE: UnusedSpans = UnusedSpans {
        warm: 0,
        warm_count: 0,
        cold: 0,
        fresh: 0,
    };
}

/// What the memory of spans has to do.
pub(super) trait SpanMemory {
    /// Makes a fresh span accessible; `false` if there is no memory for it.
    fn open(&self, span: usize) -> bool;

    /// Gives memory back to the system: these bytes, counted from the first span's first. Returns those that have gone, which
    /// may be less.
    fn drop_pages(&self, bytes: Range<usize>) -> Range<usize>;
}

/// All spans.
pub(super) struct SpanTable<'a, M> {
    pub(super) spans: &'a [BlockSpan],
    pub(super) shards: &'a [Mutex<BlockShard>],
    pub(super) unused: &'a Mutex<UnusedSpans>,
    pub(super) memory: M,
}

impl<M: SpanMemory> SpanTable<'_, M> {
    /// A block: where it begins. `None` if there are no more spans.
    pub(super) fn allocate(&self, shard: usize, size: BlockSize) -> Option<usize> {
        let mut own = self.shards[shard].lock();
        let first = &mut own.0[size.0 as usize];
        if *first == 0 {
            *first = self.new_span(shard, size)? as u32 + 1;
        }
        let at = *first as usize - 1;
        let span = &self.spans[at];
        let block = span.take_block(size.bytes())?;
        if span.is_full() {
            let next = span.next.load(Relaxed);
            *first = next;
            if let Some(next) = self.numbered(next) {
                next.previous.store(0, Relaxed);
            }
        }
        Some(at * SPAN + block * size.bytes())
    }

    /// The size of the block that begins there.
    pub(super) fn size_of(&self, offset: usize) -> BlockSize {
        self.spans[offset / SPAN].size()
    }

    /// Frees the block that begins there.
    pub(super) fn free(&self, offset: usize) {
        let at = offset / SPAN;
        let span = &self.spans[at];
        let size = span.size();
        let mut shard = self.shards[span.shard.load(Relaxed) as usize - 1].lock();
        let first = &mut shard.0[size.0 as usize];
        let was_full = span.is_full();
        span.give_block(offset % SPAN / size.bytes());
        if was_full {
            span.previous.store(0, Relaxed);
            span.next.store(*first, Relaxed);
            if let Some(next) = self.numbered(*first) {
                next.previous.store(at as u32 + 1, Relaxed);
            }
            *first = at as u32 + 1;
        }
        let (next, previous) = (span.next.load(Relaxed), span.previous.load(Relaxed));
        // The last one of its size stays: a caller that frees and allocates in turn would have a new one each time.
        if span.used.load(Relaxed) > 0 || (next == 0 && previous == 0) {
            return;
        }
        match self.numbered(previous) {
            Some(span) => span.next.store(next, Relaxed),
            None => *first = next,
        }
        if let Some(span) = self.numbered(next) {
            span.previous.store(previous, Relaxed);
        }
        span.shard.store(0, Relaxed);
        drop(shard);
        self.keep_unused(at);
    }

    /// Takes in a span that is in no list, so that no other thread can reach it.
    fn keep_unused(&self, at: usize) {
        let span = &self.spans[at];
        let mut unused = self.unused.lock();
        if unused.warm_count < MOST_WARM {
            unused.warm_count += 1;
            span.next.store(unused.warm, Relaxed);
            unused.warm = at as u32 + 1;
            return;
        }
        drop(unused);
        self.drop_spare(at);
        let mut unused = self.unused.lock();
        span.next.store(unused.cold, Relaxed);
        unused.cold = at as u32 + 1;
    }

    /// Gives the pages of free blocks back to the system.
    pub(super) fn give_back(&self) {
        let fresh = {
            let mut unused = self.unused.lock();
            while let Some(span) = self.numbered(unused.warm) {
                let at = unused.warm as usize - 1;
                self.drop_spare(at);
                unused.warm = span.next.load(Relaxed);
                span.next.store(unused.cold, Relaxed);
                unused.cold = at as u32 + 1;
            }
            unused.warm_count = 0;
            unused.fresh
        };
        for (at, span) in self.spans[..fresh].iter().enumerate() {
            let owner = span.shard.load(Relaxed);
            if owner == 0 {
                continue;
            }
            // A lock for each span, so that a loop waits for the pages of one at most.
            let _shard = self.shards[owner as usize - 1].lock();
            if span.shard.load(Relaxed) == owner {
                self.drop_spare(at);
            }
        }
    }

    fn drop_spare(&self, at: usize) {
        let span = &self.spans[at];
        let mut spare = span.spare_granules();
        while spare != 0 {
            let first = spare.trailing_zeros() as usize;
            let count = (spare >> first).trailing_ones() as usize;
            let run = granules(0, count * GRANULE) << first;
            spare &= !run;
            let begin = at * SPAN + first * GRANULE;
            let gone = self.memory.drop_pages(begin..begin + count * GRANULE);
            if gone.is_empty() {
                continue;
            }
            let gone = granules(0, gone.len()) << ((gone.start - at * SPAN) / GRANULE);
            span.touched
                .store(span.touched.load(Relaxed) & !gone, Relaxed);
        }
    }

    fn new_span(&self, shard: usize, size: BlockSize) -> Option<usize> {
        let mut unused = self.unused.lock();
        let at = if let Some(span) = self.numbered(unused.warm) {
            let at = unused.warm as usize - 1;
            unused.warm = span.next.load(Relaxed);
            unused.warm_count -= 1;
            at
        } else if let Some(span) = self.numbered(unused.cold) {
            let at = unused.cold as usize - 1;
            unused.cold = span.next.load(Relaxed);
            at
        } else {
            let at = unused.fresh;
            if at >= self.spans.len() || !self.memory.open(at) {
                return None;
            }
            unused.fresh += 1;
            at
        };
        self.spans[at].begin(shard, size);
        Some(at)
    }

    /// The span that a list names; `None` at its end.
    fn numbered(&self, number: u32) -> Option<&BlockSpan> {
        self.spans.get((number as usize).checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// Remembers which granules have memory.
    #[derive(Default)]
    struct CountedMemory {
        opened: RefCell<usize>,
        dropped: RefCell<usize>,
    }

    impl SpanMemory for &CountedMemory {
        fn open(&self, span: usize) -> bool {
            assert_eq!(span, *self.opened.borrow(), "in order");
            *self.opened.borrow_mut() += 1;
            true
        }

        fn drop_pages(&self, bytes: Range<usize>) -> Range<usize> {
            *self.dropped.borrow_mut() += bytes.len();
            bytes
        }
    }

    fn with_table(spans: usize, test: impl FnOnce(&SpanTable<'_, &CountedMemory>)) {
        let spans: Vec<BlockSpan> = (0..spans).map(|_| BlockSpan::default()).collect();
        let shards = [const { Mutex::new(BlockShard::EMPTY) }; 2];
        let memory = CountedMemory::default();
        test(&SpanTable {
            spans: &spans,
            shards: &shards,
            unused: &Mutex::new(UnusedSpans::NONE),
            memory: &memory,
        });
    }

    #[test]
    fn each_size_has_the_least_block_that_holds_it() {
        assert_eq!(BlockSize::of(MORE_THAN), None);
        assert_eq!(BlockSize::of(LARGEST + 1), None);
        let mut before = 0;
        for bytes in MORE_THAN + 1..=LARGEST {
            let size = BlockSize::of(bytes).expect("within the bounds");
            assert!((size.0 as usize) < CLASSES);
            assert!(size.bytes() >= bytes && size.bytes() * 8 < bytes * 9 + 8 * 128);
            assert_eq!(size.bytes() % 64, 0);
            assert!(size.blocks() <= WORDS * 64);
            assert!(size.0 as usize >= before, "they grow");
            before = size.0 as usize;
        }
        assert_eq!(before, CLASSES - 1);
        assert_eq!(
            BlockSize::of(16 * 1024).map(BlockSize::bytes),
            Some(16 * 1024)
        );
    }

    #[test]
    fn no_byte_is_in_two_blocks() {
        with_table(24, |table| {
            // Deterministic numbers (Knuth's MMIX generator).
            let mut seed = 1_u64;
            let mut next = |bound: usize| {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as usize % bound
            };
            let mut blocks: BTreeMap<usize, usize> = BTreeMap::new();
            let mut refused = 0;
            for step in 0..60_000 {
                // More and less in turn, so that spans fill and empty.
                let is_growing = step / 4_000 % 2 == 0;
                if next(8) < if is_growing { 6 } else { 2 } || blocks.is_empty() {
                    let kinds = [1_100, 3_088, 5_000, 16_384, 131_072];
                    let bytes = kinds[next(kinds.len())];
                    let size = BlockSize::of(bytes).expect("within the bounds");
                    let Some(at) = table.allocate(next(2), size) else {
                        refused += 1;
                        continue;
                    };
                    let before = blocks.range(..=at).next_back();
                    assert!(before.is_none_or(|(begin, length)| begin + length <= at));
                    let after = blocks.range(at..).next();
                    assert!(after.is_none_or(|(begin, _)| at + bytes <= *begin));
                    assert!(
                        at / SPAN == (at + size.bytes() - 1) / SPAN,
                        "within one span"
                    );
                    assert_eq!(table.size_of(at), size);
                    blocks.insert(at, bytes);
                } else {
                    let number = next(blocks.len());
                    let at = *blocks.keys().nth(number).expect("there are as many");
                    blocks.remove(&at);
                    table.free(at);
                }
                if step % 5_000 == 0 {
                    table.give_back();
                }
            }
            assert!(refused > 0, "the end of the table was reached");
            for at in blocks.into_keys() {
                table.free(at);
            }
            table.give_back();
            let touched = table.spans.iter().map(|span| span.touched.load(Relaxed));
            assert!(touched.into_iter().all(|bits| bits == 0));
        });
    }

    #[test]
    fn pages_go_back_when_no_block_on_them_is_used() {
        with_table(4, |table| {
            let size = BlockSize::of(3_000).expect("within the bounds");
            let blocks: Vec<usize> = (0..8).filter_map(|_| table.allocate(0, size)).collect();
            // The second one keeps two granules: 3,072 bytes from 3,072 on.
            blocks
                .iter()
                .filter(|at| **at != 3_072)
                .for_each(|at| table.free(*at));
            table.give_back();
            assert_eq!(*table.memory.dropped.borrow(), 4 * GRANULE);
            table.give_back();
            assert_eq!(*table.memory.dropped.borrow(), 4 * GRANULE, "once");
        });
    }

    #[test]
    fn a_span_without_blocks_serves_any_size_again() {
        with_table(2, |table| {
            let size = |bytes| BlockSize::of(bytes).expect("within the bounds");
            let large: Vec<usize> = (0..4)
                .filter_map(|_| table.allocate(0, size(LARGEST)))
                .collect();
            assert_eq!(large.len(), 4, "two in each span");
            assert_eq!(table.allocate(1, size(2_000)), None);
            large.iter().for_each(|at| table.free(*at));
            assert!(table.allocate(1, size(2_000)).is_some());
            assert_eq!(*table.memory.opened.borrow(), 2);
        });
    }
}
