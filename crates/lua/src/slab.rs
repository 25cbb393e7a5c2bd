//! How much of a dictionary's size is in use, counted as nginx's slab allocator would count it.
//!
//! The values themselves are on Rust's heap: shared memory buys nothing within one process. But
//! what fits into a dictionary, what is evicted to make room, and what `free_space` returns are
//! behaviour that scripts and their operators tune by, so this keeps the same accounts as
//! `ngx_slab_alloc` without the memory.
//!
//! ```text
//! pages of 4 KB       an allocation above half a page takes whole pages, side by side
//! pieces of a page    a smaller one takes a piece; all pieces of a page have one size, a power of two
//! free row            free pages side by side, in one chain; the first that fits is taken
//! ```

/// The size of a page, in bytes.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// The smallest piece has 2^3 bytes, the largest 2^11: half a page.
const MIN_SHIFT: u32 = 3;
const MAX_SHIFT: u32 = 11;
const PIECE_SIZES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;

/// What nginx keeps at the beginning of the memory: the pool's header and its statistics, in bytes.
const POOL_HEADER: u64 = 704;

/// What nginx keeps about each page, outside of it, in bytes (`ngx_slab_page_t`).
const PAGE_HEADER: u64 = 24;

/// An allocation, as the page that it begins in. Which piece of the page does not matter: all
/// pieces of a page are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabBlock(u32);

/// The end of a chain, or not in one.
const NONE: u32 = u32::MAX;

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageUse {
    /// The first of a row of this many free pages. Only the first is in the chain.
    Free(u32),
    /// In a row of free pages, but not its first.
    FreeInside,
    /// The first of this many pages that were allocated together; 0 for the others.
    Taken(u32),
    /// Divided into pieces of 2^`shift` bytes, `taken` of which are in use.
    Pieces { shift: u32, taken: u32 },
}

/// The account of one page.
#[derive(Clone, Copy, Debug)]
struct SlabPage {
    /// What the page is used for.
    use_now: PageUse,
    /// The neighbours in its chain.
    next: u32,
    previous: u32,
    /// In the last page of a free row: the row's first. A page that is freed behind it finds the
    /// row by this.
    first: u32,
}

/// The accounts of one dictionary's memory.
pub(crate) struct SlabPool {
    /// All pages of the zone.
    pages: Vec<SlabPage>,
    /// The heads of the chains. One for each piece size, of pages with free pieces; the last, of
    /// free rows.
    heads: [u32; PIECE_SIZES + 1],
    /// Free pages.
    free_bytes: u32,
}

/// The index of the chain of free rows.
const FREE_ROWS: usize = PIECE_SIZES;

/// How many pieces of a size a page is divided into.
fn pieces_per_page(shift: u32) -> u32 {
    let all = (PAGE_SIZE >> shift) as u32;
    // nginx keeps a bitmap of the pieces in use. It fits beside the page for pieces of 64 bytes or
    // more; for smaller ones it takes the page's first pieces.
    match shift {
        0..6 => all - (all / ((1 << shift) * 8)).max(1),
        _ => all,
    }
}

impl SlabPool {
    /// Memory of this size, from which allocations of the sizes `names` are made at once: nginx's
    /// own.
    pub(crate) fn new(size: u64, names: &[u64]) -> SlabPool {
        let fits = size.saturating_sub(POOL_HEADER) / (PAGE_SIZE + PAGE_HEADER);
        let start = (POOL_HEADER + fits * PAGE_HEADER).next_multiple_of(PAGE_SIZE);
        let count = fits.min(size.saturating_sub(start) / PAGE_SIZE);
        // nginx refuses to start with so little memory. Its own allocations and one page fit all
        // the same.
        let count = u32::try_from(count)
            .unwrap_or(NONE - 1)
            .max(names.len() as u32 + 1);
        let blank = SlabPage {
            use_now: PageUse::FreeInside,
            next: NONE,
            previous: NONE,
            first: NONE,
        };
        let mut slab = SlabPool {
            pages: vec![blank; count as usize],
            heads: [NONE; PIECE_SIZES + 1],
            free_bytes: 0,
        };
        slab.add_free_row(0, count);
        slab.free_bytes = count;
        for name in names {
            slab.alloc(*name);
        }
        slab
    }

    /// Bytes in free pages: `free_space`. Free pieces of partly used pages do not count, as in
    /// nginx.
    pub(crate) fn free(&self) -> u64 {
        u64::from(self.free_bytes) * PAGE_SIZE
    }

    /// Allocates this many bytes; `None` if they do not fit.
    pub(crate) fn alloc(&mut self, size: u64) -> Option<SlabBlock> {
        if size > 1 << MAX_SHIFT {
            return self
                .alloc_pages(u32::try_from(size.div_ceil(PAGE_SIZE)).ok()?)
                .map(SlabBlock);
        }
        let shift = size.next_power_of_two().trailing_zeros().max(MIN_SHIFT);
        let chain = (shift - MIN_SHIFT) as usize;
        let page = match self.heads[chain] {
            NONE => {
                let page = self.alloc_pages(1)?;
                self.pages[page as usize].use_now = PageUse::Pieces { shift, taken: 0 };
                self.link(chain, page);
                page
            }
            page => page,
        };
        if let PageUse::Pieces { taken, .. } = &mut self.pages[page as usize].use_now {
            *taken += 1;
            if *taken == pieces_per_page(shift) {
                self.unlink(chain, page);
            }
        }
        Some(SlabBlock(page))
    }

    /// Frees an allocation.
    pub(crate) fn release(&mut self, block: SlabBlock) {
        let page = block.0;
        match self.pages[page as usize].use_now {
            PageUse::Pieces { shift, taken } => {
                let chain = (shift - MIN_SHIFT) as usize;
                if taken == pieces_per_page(shift) {
                    self.link(chain, page);
                }
                let left = taken.saturating_sub(1);
                self.pages[page as usize].use_now = PageUse::Pieces { shift, taken: left };
                // The last piece: the whole page is free again and may become part of a larger
                // allocation.
                if left == 0 {
                    self.unlink(chain, page);
                    self.free_pages(page, 1);
                }
            }
            PageUse::Taken(count) => self.free_pages(page, count),
            // Freed twice. A double free would be a bug, but only of the count: nothing is
            // corrupted.
            PageUse::Free(_) | PageUse::FreeInside => {}
        }
    }

    /// The first row that is long enough, as in nginx: not the best fit.
    fn alloc_pages(&mut self, wanted: u32) -> Option<u32> {
        let mut row = self.heads[FREE_ROWS];
        loop {
            if row == NONE {
                return None;
            }
            if let PageUse::Free(count) = self.pages[row as usize].use_now
                && count >= wanted
            {
                self.split_free_row(row, count, wanted);
                self.free_bytes -= wanted;
                self.pages[row as usize].use_now = PageUse::Taken(wanted);
                for inside in row + 1..row + wanted {
                    self.pages[inside as usize].use_now = PageUse::Taken(0);
                }
                return Some(row);
            }
            row = self.pages[row as usize].next;
        }
    }

    /// Takes the first pages out of a free row. The rest takes its place in the chain.
    fn split_free_row(&mut self, row: u32, count: u32, wanted: u32) {
        if count == wanted {
            return self.unlink(FREE_ROWS, row);
        }
        let rest = row + wanted;
        let SlabPage { next, previous, .. } = self.pages[row as usize];
        let page = &mut self.pages[rest as usize];
        (page.use_now, page.next, page.previous) = (PageUse::Free(count - wanted), next, previous);
        match previous {
            NONE => self.heads[FREE_ROWS] = rest,
            previous => self.pages[previous as usize].next = rest,
        }
        if next != NONE {
            self.pages[next as usize].previous = rest;
        }
        self.pages[(row + count - 1) as usize].first = rest;
    }

    /// Frees pages side by side, and joins them with the free rows before and behind them.
    fn free_pages(&mut self, page: u32, count: u32) {
        self.free_bytes += count;
        let (mut row, mut length) = (page, count);
        let behind = page + count;
        if let Some(SlabPage {
            use_now: PageUse::Free(more),
            ..
        }) = self.pages.get(behind as usize).copied()
        {
            self.unlink(FREE_ROWS, behind);
            length += more;
        }
        if let Some(before) = page.checked_sub(1) {
            let first = match self.pages[before as usize].use_now {
                PageUse::Free(_) => before,
                PageUse::FreeInside => self.pages[before as usize].first,
                _ => NONE,
            };
            if first != NONE
                && let PageUse::Free(more) = self.pages[first as usize].use_now
            {
                self.unlink(FREE_ROWS, first);
                row = first;
                length += more;
            }
        }
        self.add_free_row(row, length);
    }

    /// Makes these pages a free row, and puts it at the head of the chain.
    fn add_free_row(&mut self, row: u32, length: u32) {
        for inside in row..row + length {
            self.pages[inside as usize].use_now = PageUse::FreeInside;
        }
        self.pages[(row + length - 1) as usize].first = row;
        self.pages[row as usize].use_now = PageUse::Free(length);
        self.link(FREE_ROWS, row);
    }

    /// Puts a page at the head of a chain.
    fn link(&mut self, chain: usize, page: u32) {
        let next = std::mem::replace(&mut self.heads[chain], page);
        let this = &mut self.pages[page as usize];
        (this.next, this.previous) = (next, NONE);
        if next != NONE {
            self.pages[next as usize].previous = page;
        }
    }

    /// Takes a page out of its chain.
    fn unlink(&mut self, chain: usize, page: u32) {
        let SlabPage { next, previous, .. } = self.pages[page as usize];
        match previous {
            NONE => self.heads[chain] = next,
            previous => self.pages[previous as usize].next = next,
        }
        if next != NONE {
            self.pages[next as usize].previous = previous;
        }
        let this = &mut self.pages[page as usize];
        (this.next, this.previous) = (NONE, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_as_in_nginx() {
        assert_eq!(SlabPool::new(20 << 10, &[]).free(), 4 * PAGE_SIZE);
        assert_eq!(SlabPool::new(100 << 10, &[80, 30]).free(), 22 * PAGE_SIZE);
    }

    #[test]
    fn free_rows_are_joined() {
        let mut slab = SlabPool::new(100 << 10, &[]);
        let all = slab.free();
        let rows: Vec<SlabBlock> = (0..24).filter_map(|_| slab.alloc(PAGE_SIZE)).collect();
        assert_eq!((rows.len(), slab.alloc(PAGE_SIZE)), (24, None));
        for row in rows.iter().step_by(2).chain(rows.iter().skip(1).step_by(2)) {
            slab.release(*row);
        }
        assert_eq!(slab.free(), all);
        assert!(slab.alloc(24 * PAGE_SIZE).is_some());
    }

    #[test]
    fn pieces_share_a_page() {
        for (size, count) in [
            (8, 504),
            (32, 127),
            (33, 64),
            (128, 32),
            (1025, 2),
            (2048, 2),
        ] {
            let mut slab = SlabPool::new(100 << 10, &[]);
            let all = slab.free();
            let taken: Vec<SlabBlock> = (0..count).filter_map(|_| slab.alloc(size)).collect();
            assert_eq!(slab.free(), all - PAGE_SIZE, "{size}");
            let more = slab.alloc(size);
            assert_eq!(slab.free(), all - 2 * PAGE_SIZE, "{size}");
            taken
                .into_iter()
                .chain(more)
                .for_each(|block| slab.release(block));
            assert_eq!(slab.free(), all, "{size}");
        }
    }
}
