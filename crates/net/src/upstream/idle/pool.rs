//! The records of a group's idle connections: where each one is, which requests may use it, and which was unused
//! for longest.
//!
//! Every proxied request takes one record out and puts one in, so neither step may allocate or search. Records are
//! in a slab and in two linked lists, by age and by address, and a peer remembers the number of its address's list.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rt::net::SocketAddress;

use super::connection::ReuseTerms;
use crate::upstream::peer::ChainHint;
use crate::upstream::settings::KeepaliveSettings;

/// A loop whose iteration has lasted longer than this is asked for a connection only if such loops have many:
/// otherwise opening a new one is faster.
const TOO_LATE: Duration = Duration::from_millis(10);

/// A loop whose iteration has lasted longer than this is stuck, and is not asked at all.
const STUCK: Duration = Duration::from_millis(100);

/// How many records of an address are searched for one of this loop before one of another loop is taken: the pool's
/// lock is held meanwhile.
const LOOKED_AT: usize = 64;

/// Lists of addresses are kept when they are empty, because the next connection is mostly to the same address. From
/// this many lists on, an empty one is reused for a new address.
const MOST_EMPTY_CHAINS: usize = 1024;

/// Marks the end of a list: no record.
const NONE: u32 = u32::MAX;

/// Where a connection is parked among those of its loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ParkedIndex(pub(super) u32);

/// The contents of a pool, under its lock.
#[derive(Default)]
pub(super) struct IdlePoolState {
    pub(super) settings: Option<KeepaliveSettings>,
    /// The most records, over all loops.
    pub(super) most: usize,
    entries: Vec<IdleEntry>,
    free: Vec<u32>,
    /// All records, the one that was unused for longest first.
    ages: ChainEnds,
    /// For each address, the list of its records.
    chains: Vec<AddressChain>,
    by_address: HashMap<SocketAddress, u32>,
    next_number: u64,
    len: usize,
}

struct AddressChain {
    address: SocketAddress,
    ends: ChainEnds,
}

/// The first and the last record of a list.
#[derive(Clone, Copy)]
struct ChainEnds {
    first: u32,
    last: u32,
}

impl Default for ChainEnds {
    fn default() -> Self {
        ChainEnds {
            first: NONE,
            last: NONE,
        }
    }
}

/// The neighbours of a record in a list.
#[derive(Clone, Copy)]
struct ChainLinks {
    before: u32,
    after: u32,
}

/// A record of an idle connection, or a free slot of the slab.
struct IdleEntry {
    /// The number of the connection; 0 for a free slot.
    number: u64,
    chain: u32,
    age: ChainLinks,
    in_chain: ChainLinks,
    reuse: ReuseTerms,
    /// The loop that has the socket. It stays in a free slot: the next record is mostly of the same loop, and
    /// cloning a handle costs two atomic operations.
    home: rt::LoopHandle,
    place: ParkedIndex,
    expires: Instant,
}

/// A connection that is to be kept.
pub(super) struct NewIdleEntry {
    pub(super) number: u64,
    pub(super) reuse: ReuseTerms,
    pub(super) place: ParkedIndex,
    pub(super) expires: Instant,
}

/// Where the connection is whose record was taken out.
pub(super) struct RemovedEntry {
    pub(super) number: u64,
    pub(super) place: ParkedIndex,
    /// The loop that has the socket; `None`: this one.
    pub(super) home: Option<rt::LoopHandle>,
}

/// Names a record for a later removal. The number tells whether the slot still has the same connection.
#[derive(Clone, Copy)]
pub(super) struct EntryId {
    index: u32,
    number: u64,
}

/// The two lists that a record is in.
#[derive(Clone, Copy)]
enum IdleList {
    Age,
    Chain(u32),
}

impl IdlePoolState {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number for the next connection that is kept. Never 0.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The record that the next insertion will fill. The socket is parked under this name before the record exists.
    pub(super) fn vacancy(&mut self, number: u64) -> EntryId {
        let index = match self.free.last() {
            Some(index) => *index,
            None => u32::try_from(self.entries.len()).expect("descriptors are 31-bit"),
        };
        EntryId { index, number }
    }

    /// Adds a record for this loop in the slot that `vacancy` has named.
    pub(super) fn insert(&mut self, address: &SocketAddress, hint: &ChainHint, left: NewIdleEntry) {
        let chain = self.chain(address, hint);
        let nowhere = ChainLinks {
            before: NONE,
            after: NONE,
        };
        let index = match self.free.pop() {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                (entry.number, entry.chain) = (left.number, chain);
                (entry.reuse, entry.place) = (left.reuse, left.place);
                entry.expires = left.expires;
                if !entry.home.is_current() {
                    entry.home = rt::handle();
                }
                index
            }
            None => {
                let index = u32::try_from(self.entries.len()).expect("descriptors are 31-bit");
                self.entries.push(IdleEntry {
                    number: left.number,
                    chain,
                    age: nowhere,
                    in_chain: nowhere,
                    reuse: left.reuse,
                    home: rt::handle(),
                    place: left.place,
                    expires: left.expires,
                });
                index
            }
        };
        self.len += 1;
        self.append(IdleList::Age, index);
        self.append(IdleList::Chain(chain), index);
    }

    /// Takes out the youngest usable record of an address: one of this loop, or else one of a loop that is not
    /// late. On an overloaded machine every loop may be late for a moment. A new connection for each such moment
    /// would fill the pool, so a late loop is asked after all when such loops have at least a quarter as many idle
    /// connections as are in use.
    pub(super) fn find(
        &mut self,
        address: &SocketAddress,
        hint: &ChainHint,
        reuse: &ReuseTerms,
        in_use: usize,
    ) -> Option<RemovedEntry> {
        let local = self.settings.is_some_and(|settings| settings.local);
        let now = rt::now();
        let chain = self.known_chain(address, hint)?;
        let mut foreign = NONE;
        let mut found = NONE;
        let (mut late, mut late_ones) = (NONE, 0);
        let mut next = self.chains[chain as usize].ends.last;
        let mut looked_at = 0;
        while next != NONE && (looked_at < LOOKED_AT || foreign == NONE) {
            let (index, entry) = (next, &self.entries[next as usize]);
            next = entry.in_chain.before;
            looked_at += 1;
            // An expired connection is left to its loop's sweep: its socket can only be closed there.
            if !entry.reuse.suits(reuse, local) || entry.expires <= now {
                continue;
            }
            if entry.home.is_current() {
                found = index;
                break;
            }
            if foreign != NONE {
                continue;
            }
            match entry.home.turn_duration() {
                time if time < TOO_LATE => foreign = index,
                time if time < STUCK => {
                    late_ones += 1;
                    late = if late == NONE { index } else { late };
                }
                _ => {}
            }
        }
        // Few idle connections at late loops: a new connection is opened instead.
        if late_ones * 4 < in_use {
            late = NONE;
        }
        let best = [found, foreign, late];
        let best = best.into_iter().find(|index| *index != NONE)?;
        Some(self.take(best))
    }

    /// Takes out the record that was unused for longest.
    pub(super) fn remove_oldest(&mut self) -> Option<RemovedEntry> {
        match self.ages.first {
            NONE => None,
            index => Some(self.take(index)),
        }
    }

    /// Removes a record if it is still the same one.
    pub(super) fn remove(&mut self, id: EntryId) {
        let entry = self.entries.get(id.index as usize);
        if entry.is_some_and(|entry| entry.number == id.number) {
            self.unlink(id.index);
        }
    }

    fn take(&mut self, index: u32) -> RemovedEntry {
        let entry = &self.entries[index as usize];
        let found = RemovedEntry {
            number: entry.number,
            place: entry.place,
            home: (!entry.home.is_current()).then(|| entry.home.clone()),
        };
        self.unlink(index);
        found
    }

    fn unlink(&mut self, index: u32) {
        let chain = self.entries[index as usize].chain;
        self.detach(IdleList::Age, index);
        self.detach(IdleList::Chain(chain), index);
        self.entries[index as usize].number = 0;
        self.free.push(index);
        self.len -= 1;
    }

    // -- chains --

    /// The list of an address. The peer's hint is tried first; it may be stale after the list was reused, so the
    /// address is compared.
    fn known_chain(&self, address: &SocketAddress, hint: &ChainHint) -> Option<u32> {
        let hinted = hint.0.load(Ordering::Relaxed);
        if let Some(chain) = self.chains.get(hinted as usize)
            && chain.address == *address
        {
            return Some(hinted);
        }
        let chain = *self.by_address.get(address)?;
        hint.0.store(chain, Ordering::Relaxed);
        Some(chain)
    }

    fn chain(&mut self, address: &SocketAddress, hint: &ChainHint) -> u32 {
        if let Some(chain) = self.known_chain(address, hint) {
            return chain;
        }
        let new = AddressChain {
            address: address.clone(),
            ends: ChainEnds::default(),
        };
        // A search only beyond the limit, and then not per request: a new address is rare.
        let unused = match self.chains.len() >= MOST_EMPTY_CHAINS {
            true => self.chains.iter().position(|chain| chain.ends.last == NONE),
            false => None,
        };
        let place = match unused {
            Some(place) => {
                let old = std::mem::replace(&mut self.chains[place], new);
                self.by_address.remove(&old.address);
                place
            }
            None => {
                self.chains.push(new);
                self.chains.len() - 1
            }
        };
        let place = u32::try_from(place).expect("no more than entries and MOST_EMPTY_CHAINS");
        self.by_address.insert(address.clone(), place);
        hint.0.store(place, Ordering::Relaxed);
        place
    }

    // -- rows --

    fn ends(&mut self, list: IdleList) -> &mut ChainEnds {
        match list {
            IdleList::Age => &mut self.ages,
            IdleList::Chain(chain) => &mut self.chains[chain as usize].ends,
        }
    }

    fn links(&mut self, list: IdleList, index: u32) -> &mut ChainLinks {
        let entry = &mut self.entries[index as usize];
        match list {
            IdleList::Age => &mut entry.age,
            IdleList::Chain(_) => &mut entry.in_chain,
        }
    }

    fn append(&mut self, list: IdleList, index: u32) {
        let last = std::mem::replace(&mut self.ends(list).last, index);
        *self.links(list, index) = ChainLinks {
            before: last,
            after: NONE,
        };
        match last {
            NONE => self.ends(list).first = index,
            last => self.links(list, last).after = index,
        }
    }

    fn detach(&mut self, list: IdleList, index: u32) {
        let ChainLinks { before, after } = *self.links(list, index);
        match before {
            NONE => self.ends(list).first = after,
            before => self.links(list, before).after = after,
        }
        match after {
            NONE => self.ends(list).last = before,
            after => self.links(list, after).before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn address(port: u16) -> SocketAddress {
        SocketAddr::from(([127, 0, 0, 1], port)).into()
    }

    fn leave(pool: &mut IdlePoolState, address: &SocketAddress, hint: &ChainHint) -> EntryId {
        let number = pool.next_number();
        let id = pool.vacancy(number);
        let left = NewIdleEntry {
            number,
            reuse: ReuseTerms::default(),
            place: ParkedIndex::default(),
            expires: rt::now() + Duration::from_secs(60),
        };
        pool.insert(address, hint, left);
        id
    }

    /// What the pool says against a plain list of what was left and not taken.
    #[test]
    fn entries_come_back_in_their_order() {
        let options = rt::LoopOptions::default();
        let run = rt::run(options, || async {
            let mut pool = IdlePoolState::default();
            let addresses = [address(1), address(2), address(3)];
            let hints = [
                ChainHint::default(),
                ChainHint::default(),
                ChainHint::default(),
            ];
            let mut model: Vec<(usize, u64, EntryId)> = Vec::new();
            let mut dice = 1_u32;
            for _ in 0..5_000 {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let which = (dice >> 16) as usize % 3;
                match (dice >> 24) % 5 {
                    0 | 1 => {
                        let id = leave(&mut pool, &addresses[which], &hints[which]);
                        model.push((which, id.number, id));
                    }
                    2 => {
                        let found =
                            pool.find(&addresses[which], &hints[which], &ReuseTerms::default(), 1);
                        let expected = model.iter().rposition(|entry| entry.0 == which);
                        assert_eq!(
                            found.map(|found| found.number),
                            expected.map(|at| model.remove(at).1)
                        );
                    }
                    3 => {
                        let found = pool.remove_oldest().map(|found| found.number);
                        let first = (!model.is_empty()).then(|| model.remove(0).1);
                        assert_eq!(found, first);
                    }
                    _ if model.is_empty() => {}
                    _ => {
                        let at = (dice >> 8) as usize % model.len();
                        let (_, _, id) = model.remove(at);
                        pool.remove(id);
                        // It is gone: once more does nothing.
                        pool.remove(id);
                    }
                }
                assert_eq!(pool.len(), model.len());
            }
        });
        run.expect("a loop");
    }

    #[test]
    fn addresses_that_nothing_is_left_at_are_forgotten() {
        let run = rt::run(rt::LoopOptions::default(), || async {
            let mut pool = IdlePoolState::default();
            for port in 1..10_000 {
                let (address, hint) = (address(port), ChainHint::default());
                leave(&mut pool, &address, &hint);
                assert!(
                    pool.find(&address, &hint, &ReuseTerms::default(), 1)
                        .is_some()
                );
            }
            assert!(pool.chains.len() <= MOST_EMPTY_CHAINS);
            assert_eq!(pool.chains.len(), pool.by_address.len());
            // A peer that remembers a chain which is another address's by now.
            let stale = ChainHint::default();
            leave(&mut pool, &address(20_000), &stale);
            assert!(
                pool.find(&address(20_001), &stale, &ReuseTerms::default(), 1)
                    .is_none()
            );
            assert!(
                pool.find(&address(20_000), &stale, &ReuseTerms::default(), 1)
                    .is_some()
            );
        });
        run.expect("a loop");
    }
}
