//! A hierarchical timer wheel: seven levels of 64 slots, a tick of one millisecond.
//!
//! ```text
//! level 0: 64 slots of 1 ms   level 1: 64 of 64 ms   level 2: of 4 s   … level 6: of 2 years
//! ```
//!
//! An entry lies on the level of the highest 6-bit digit in which its time differs from the wheel's,
//! so that on every level the occupied slots are ahead of the hand, and the first occupied slot of the
//! lowest occupied level is the next one due. When the hand comes to a slot of a higher level its
//! entries move down, at most six times in their life. Entries are linked by index, so that removing
//! one is a few stores.

use std::task::Waker;

use crate::tables::used_places;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 7;
/// The furthest an entry is laid ahead, 139 years. The hand itself never comes there.
const HORIZON: u64 = (1 << (BITS * LEVELS as u32)) - 1;
/// No entry.
const NONE: u32 = u32::MAX;

/// An entry's place. Only its owner has it, so that no generation is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerKey(u32);

struct TimerEntry {
    /// When the wheel comes to it; 0 when it lies in no slot.
    due: u64,
    waker: Option<Waker>,
    previous: u32,
    next: u32,
    /// `level * SLOTS + slot` while it lies in one.
    slot: u16,
}

pub(crate) struct TimerWheel {
    /// Every entry in a slot is due after this tick.
    hand: u64,
    /// Bit `s` of `occupied[l]`: slot `s` of level `l` has entries.
    occupied: [u64; LEVELS],
    heads: [u32; LEVELS * SLOTS],
    entries: Vec<TimerEntry>,
    free: Vec<u32>,
}

impl TimerWheel {
    pub(crate) fn new(tick: u64) -> Self {
        Self {
            hand: tick,
            occupied: [0; LEVELS],
            heads: [NONE; LEVELS * SLOTS],
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Makes an entry that lies nowhere.
    pub(crate) fn create_entry(&mut self) -> TimerKey {
        let entry = TimerEntry {
            due: 0,
            waker: None,
            previous: NONE,
            next: NONE,
            slot: 0,
        };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            return TimerKey(index);
        }
        let index =
            u32::try_from(self.entries.len()).expect("fewer than 2^32 timers fit in memory");
        self.entries.push(entry);
        TimerKey(index)
    }

    /// Whom to wake when the entry comes up.
    pub(crate) fn set_waker(&mut self, key: TimerKey, waker: &Waker) {
        let entry = &mut self.entries[key.0 as usize];
        match &entry.waker {
            Some(old) if old.will_wake(waker) => {}
            _ => entry.waker = Some(waker.clone()),
        }
    }

    /// Lays the entry to come up at `tick`, or at the horizon if that is beyond; gives when.
    pub(crate) fn schedule_entry(&mut self, key: TimerKey, tick: u64) -> u64 {
        self.unlink(key.0);
        let entry = &mut self.entries[key.0 as usize];
        // Never at the hand or behind it: such a slot would come up after the wheel has gone all the way round.
        entry.due = tick.clamp(self.hand + 1, self.hand | HORIZON);
        let due = entry.due;
        self.link(key.0);
        due
    }

    /// Removes an entry for good.
    pub(crate) fn remove(&mut self, key: TimerKey) {
        self.unlink(key.0);
        self.entries[key.0 as usize].waker = None;
        self.free.push(key.0);
    }

    /// Frees the places behind the last entry.
    pub(crate) fn shrink(&mut self) {
        let used = used_places(self.entries.len(), &self.free);
        self.entries.truncate(used);
        self.entries.shrink_to_fit();
        self.free.retain(|index| (*index as usize) < used);
        self.free.shrink_to_fit();
    }

    /// The tick at which the wheel wants to be advanced next; entries then come up or move down.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.next_slot().map(|(_, due)| due)
    }

    /// Whether [`TimerWheel::advance`] has anything to do.
    pub(crate) fn is_due(&self, tick: u64) -> bool {
        self.next_due().is_some_and(|due| due <= tick)
    }

    /// Moves the hand to `tick` and gives the wakers of what came up, in order of time.
    pub(crate) fn advance(&mut self, tick: u64) -> Vec<Waker> {
        let mut fired = Vec::new();
        while let Some((slot, due)) = self.next_slot().filter(|(_, due)| *due <= tick) {
            // To the slot, not to `tick` at once: entries that move down are laid by their distance from the hand.
            self.hand = due;
            self.empty_slot(slot, &mut fired);
        }
        self.hand = self.hand.max(tick);
        fired
    }

    fn empty_slot(&mut self, slot: usize, fired: &mut Vec<Waker>) {
        let mut index = std::mem::replace(&mut self.heads[slot], NONE);
        self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        while index != NONE {
            let entry = &mut self.entries[index as usize];
            let next = entry.next;
            if entry.due <= self.hand {
                entry.due = 0;
                // Cloned, not taken: a timer that is waited for again keeps its waker.
                fired.extend(entry.waker.clone());
            } else {
                self.link(index);
            }
            index = next;
        }
    }

    /// The first occupied slot ahead of the hand and the tick at which it begins.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = BITS * level as u32;
        let above = self.hand >> (shift + BITS) << (shift + BITS);
        Some((
            level * SLOTS + slot as usize,
            above | u64::from(slot) << shift,
        ))
    }

    fn link(&mut self, index: u32) {
        let hand = self.hand;
        let entry = &mut self.entries[index as usize];
        let due = entry.due;
        let level = level_of(hand, due);
        let slot = level * SLOTS + (due >> (BITS * level as u32)) as usize % SLOTS;
        let head = self.heads[slot];
        entry.slot = slot as u16;
        entry.previous = NONE;
        entry.next = head;
        if head != NONE {
            self.entries[head as usize].previous = index;
        }
        self.heads[slot] = index;
        self.occupied[level] |= 1 << (slot % SLOTS);
    }

    fn unlink(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if std::mem::take(&mut entry.due) == 0 {
            return;
        }
        let (previous, next, slot) = (entry.previous, entry.next, usize::from(entry.slot));
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous != NONE {
            self.entries[previous as usize].next = next;
        } else {
            self.heads[slot] = next;
            if next == NONE {
                self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
            }
        }
    }
}

/// The level of an entry: that of the highest digit in which its time differs from the hand's.
fn level_of(hand: u64, due: u64) -> usize {
    let differ = (hand ^ due) | (SLOTS as u64 - 1);
    let level = (63 - differ.leading_zeros()) / BITS;
    (level as usize).min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    struct Note(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("no panic in here").push(self.0);
        }
    }

    /// Numbers that look random and are the same each time.
    fn next(seed: &AtomicU64) -> u64 {
        let mut x = seed.load(Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        seed.store(x, Relaxed);
        x
    }

    /// Thousands of entries laid, moved and removed at random against a sorted map: each comes up at the
    /// first advance to its tick or beyond, never before, and never twice.
    #[test]
    fn entries_come_up_when_they_are_due() {
        let seed = AtomicU64::new(0x1234_5678_9abc_def1);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut tick = 1_000_003;
        let mut wheel = TimerWheel::new(tick);
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        for _ in 0..30_000 {
            match next(&seed) % 4 {
                0 | 1 => {
                    let key = wheel.create_entry();
                    let waker = Waker::from(Arc::new(Note(key.0, Arc::clone(&woken))));
                    wheel.set_waker(key, &waker);
                    let ahead = next(&seed) % (1 << (next(&seed) % 30));
                    model.insert(key.0, wheel.schedule_entry(key, tick + ahead));
                }
                2 => {
                    let Some((&index, _)) = model.iter().nth(next(&seed) as usize % 50) else {
                        continue;
                    };
                    if next(&seed).is_multiple_of(2) {
                        wheel.remove(TimerKey(index));
                        model.remove(&index);
                    } else {
                        let ahead = next(&seed) % (1 << (next(&seed) % 20));
                        model.insert(index, wheel.schedule_entry(TimerKey(index), tick + ahead));
                    }
                }
                _ => {
                    tick += next(&seed) % (1 << (next(&seed) % 16));
                    for waker in wheel.advance(tick) {
                        waker.wake();
                    }
                    let mut came: Vec<u32> = std::mem::take(&mut *woken.lock().expect("no panic"));
                    let mut due: Vec<u32> = model
                        .iter()
                        .filter(|(_, due)| **due <= tick)
                        .map(|(index, _)| *index)
                        .collect();
                    came.sort_unstable();
                    due.sort_unstable();
                    assert_eq!(came, due);
                    for index in due {
                        model.remove(&index);
                        wheel.remove(TimerKey(index));
                    }
                }
            }
            if next(&seed).is_multiple_of(100) {
                wheel.shrink();
            }
            let soonest = model.values().min();
            assert_eq!(wheel.next_due().is_some(), soonest.is_some());
            if let (Some(due), Some(soonest)) = (wheel.next_due(), soonest) {
                assert!(tick < due && due <= *soonest, "{tick} {due} {soonest}");
            }
        }
    }

    #[test]
    fn the_far_end_of_time_is_laid_at_the_horizon() {
        let mut wheel = TimerWheel::new(5);
        let key = wheel.create_entry();
        assert_eq!(wheel.schedule_entry(key, u64::MAX), HORIZON);
        assert!(wheel.advance(1_000_000).is_empty());
    }
}
