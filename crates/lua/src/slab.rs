//! How much of a dictionary's size is taken, as nginx's shared memory counts it: what is kept stands elsewhere, but what
//! fits, what has to make room and what `free_space` says are the same.
//!
//! Memory is pages of 4 KB. What is larger than half a page takes whole pages, next to each other; what is smaller takes a
//! piece of a page, whose pieces all have one size, a power of two.

/// The size of a page, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// The smallest piece is 2 to this power, the largest 2 to the other.
const MIN_SHIFT: u32 = 3;
const MAX_SHIFT: u32 = 11;
const SIZES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;

/// What stands at the beginning of the memory: the pool itself and what it knows of each size.
const HEAD: u64 = 704;

/// What is kept of each page beside it, in bytes.
const PAGE_FACTS: u64 = 24;

/// Where something stands: the page that it begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block(u32);

/// Not in any chain.
const NONE: u32 = u32::MAX;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The first of this many free ones, in the chain of those.
    Free(u32),
    /// Inside of a row of free ones, or the last of them.
    FreeInside,
    /// The first of this many that are taken together, or inside of those.
    Taken(u32),
    /// In pieces of a size, of which this many are taken.
    Pieces { shift: u32, taken: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Page {
    holds: Use,
    next: u32,
    previous: u32,
    /// Of the last page of a row of free ones: the first.
    first: u32,
}

/// The count.
pub(crate) struct Slab {
    pages: Vec<Page>,
    /// The heads of the chains: of free rows, and for each size of the pages that have free pieces.
    heads: [u32; SIZES + 1],
    free: u32,
}

/// The chain of free rows.
const ROWS: usize = SIZES;

/// How many pieces a page has.
fn pieces(shift: u32) -> u32 {
    let all = (PAGE >> shift) as u32;
    // Smaller ones than 64 bytes have the map of what is taken in the page itself.
    match shift {
        0..6 => all - (all / ((1 << shift) * 8)).max(1),
        _ => all,
    }
}

impl Slab {
    /// Memory of this size; `names` are what is taken from it at first.
    pub(crate) fn new(size: u64, names: &[u64]) -> Slab {
        let fits = size.saturating_sub(HEAD) / (PAGE + PAGE_FACTS);
        let start = (HEAD + fits * PAGE_FACTS).next_multiple_of(PAGE);
        let count = fits.min(size.saturating_sub(start) / PAGE);
        // What nginx would refuse to start with has room for what it takes at first, and for one page.
        let count = u32::try_from(count)
            .unwrap_or(NONE - 1)
            .max(names.len() as u32 + 1);
        let blank = Page {
            holds: Use::FreeInside,
            next: NONE,
            previous: NONE,
            first: NONE,
        };
        let mut slab = Slab {
            pages: vec![blank; count as usize],
            heads: [NONE; SIZES + 1],
            free: 0,
        };
        slab.put_row(0, count);
        slab.free = count;
        for name in names {
            slab.take(*name);
        }
        slab
    }

    /// Bytes of pages that nothing has been taken of.
    pub(crate) fn free(&self) -> u64 {
        u64::from(self.free) * PAGE
    }

    /// Takes this many bytes; `None` when nothing is left for them.
    pub(crate) fn take(&mut self, size: u64) -> Option<Block> {
        if size > 1 << MAX_SHIFT {
            return self
                .take_pages(u32::try_from(size.div_ceil(PAGE)).ok()?)
                .map(Block);
        }
        let shift = size.next_power_of_two().trailing_zeros().max(MIN_SHIFT);
        let chain = (shift - MIN_SHIFT) as usize;
        let page = match self.heads[chain] {
            NONE => {
                let page = self.take_pages(1)?;
                self.pages[page as usize].holds = Use::Pieces { shift, taken: 0 };
                self.link(chain, page);
                page
            }
            page => page,
        };
        if let Use::Pieces { taken, .. } = &mut self.pages[page as usize].holds {
            *taken += 1;
            if *taken == pieces(shift) {
                self.unlink(chain, page);
            }
        }
        Some(Block(page))
    }

    /// Gives back what `take` gave.
    pub(crate) fn give_back(&mut self, block: Block) {
        let page = block.0;
        match self.pages[page as usize].holds {
            Use::Pieces { shift, taken } => {
                let chain = (shift - MIN_SHIFT) as usize;
                if taken == pieces(shift) {
                    self.link(chain, page);
                }
                let left = taken.saturating_sub(1);
                self.pages[page as usize].holds = Use::Pieces { shift, taken: left };
                if left == 0 {
                    self.unlink(chain, page);
                    self.free_pages(page, 1);
                }
            }
            Use::Taken(count) => self.free_pages(page, count),
            // Given back twice.
            Use::Free(_) | Use::FreeInside => {}
        }
    }

    fn take_pages(&mut self, wanted: u32) -> Option<u32> {
        let mut row = self.heads[ROWS];
        loop {
            if row == NONE {
                return None;
            }
            if let Use::Free(count) = self.pages[row as usize].holds
                && count >= wanted
            {
                self.shorten(row, count, wanted);
                self.free -= wanted;
                self.pages[row as usize].holds = Use::Taken(wanted);
                for inside in row + 1..row + wanted {
                    self.pages[inside as usize].holds = Use::Taken(0);
                }
                return Some(row);
            }
            row = self.pages[row as usize].next;
        }
    }

    /// Takes the first pages out of a free row; the rest stands in its place in the chain.
    fn shorten(&mut self, row: u32, count: u32, wanted: u32) {
        if count == wanted {
            return self.unlink(ROWS, row);
        }
        let rest = row + wanted;
        let Page { next, previous, .. } = self.pages[row as usize];
        let page = &mut self.pages[rest as usize];
        (page.holds, page.next, page.previous) = (Use::Free(count - wanted), next, previous);
        match previous {
            NONE => self.heads[ROWS] = rest,
            previous => self.pages[previous as usize].next = rest,
        }
        if next != NONE {
            self.pages[next as usize].previous = rest;
        }
        self.pages[(row + count - 1) as usize].first = rest;
    }

    /// Frees pages that are next to each other, and joins them with the free ones before and behind.
    fn free_pages(&mut self, page: u32, count: u32) {
        self.free += count;
        let (mut row, mut length) = (page, count);
        let behind = page + count;
        if let Some(Page {
            holds: Use::Free(more),
            ..
        }) = self.pages.get(behind as usize).copied()
        {
            self.unlink(ROWS, behind);
            length += more;
        }
        if let Some(before) = page.checked_sub(1) {
            let first = match self.pages[before as usize].holds {
                Use::Free(_) => before,
                Use::FreeInside => self.pages[before as usize].first,
                _ => NONE,
            };
            if first != NONE
                && let Use::Free(more) = self.pages[first as usize].holds
            {
                self.unlink(ROWS, first);
                row = first;
                length += more;
            }
        }
        self.put_row(row, length);
    }

    /// Makes a free row, the first of its chain.
    fn put_row(&mut self, row: u32, length: u32) {
        for inside in row..row + length {
            self.pages[inside as usize].holds = Use::FreeInside;
        }
        self.pages[(row + length - 1) as usize].first = row;
        self.pages[row as usize].holds = Use::Free(length);
        self.link(ROWS, row);
    }

    fn link(&mut self, chain: usize, page: u32) {
        let next = std::mem::replace(&mut self.heads[chain], page);
        let this = &mut self.pages[page as usize];
        (this.next, this.previous) = (next, NONE);
        if next != NONE {
            self.pages[next as usize].previous = page;
        }
    }

    fn unlink(&mut self, chain: usize, page: u32) {
        let Page { next, previous, .. } = self.pages[page as usize];
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
        assert_eq!(Slab::new(20 << 10, &[]).free(), 4 * PAGE);
        assert_eq!(Slab::new(100 << 10, &[80, 30]).free(), 22 * PAGE);
    }

    #[test]
    fn free_rows_are_joined() {
        let mut slab = Slab::new(100 << 10, &[]);
        let all = slab.free();
        let rows: Vec<Block> = (0..24).filter_map(|_| slab.take(PAGE)).collect();
        assert_eq!((rows.len(), slab.take(PAGE)), (24, None));
        for row in rows.iter().step_by(2).chain(rows.iter().skip(1).step_by(2)) {
            slab.give_back(*row);
        }
        assert_eq!(slab.free(), all);
        assert!(slab.take(24 * PAGE).is_some());
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
            let mut slab = Slab::new(100 << 10, &[]);
            let all = slab.free();
            let taken: Vec<Block> = (0..count).filter_map(|_| slab.take(size)).collect();
            assert_eq!(slab.free(), all - PAGE, "{size}");
            let more = slab.take(size);
            assert_eq!(slab.free(), all - 2 * PAGE, "{size}");
            taken
                .into_iter()
                .chain(more)
                .for_each(|block| slab.give_back(block));
            assert_eq!(slab.free(), all, "{size}");
        }
    }
}
