//! S3-FIFO in memory: three queues and a counter, resistant to scans, nothing to move at a hit.
//!
//! New values enter a small queue (a tenth of the capacity). A value that is used again before it reaches the end goes
//! to the main queue, the others leave and are remembered as ghosts; a ghost that comes back enters the main queue at
//! once. The main queue gives each value a new turn for each use, up to three. (Yang and others, "FIFO queues are all
//! you need for cache eviction", SOSP 2023.)
//!
//! The memory tier uses it as it stands here; on disk the two queues are the two sides of the log
//! (`reclaim.rs`), with the same rules.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::index::FREQUENCY_MAX;

/// A bounded map that forgets what is used least.
#[derive(Debug)]
pub struct S3Fifo<K, V> {
    capacity: usize,
    used: usize,
    small_used: usize,
    map: HashMap<K, FifoSlot<V>>,
    small: VecDeque<(K, u64)>,
    main: VecDeque<(K, u64)>,
    ghosts: GhostQueue<K>,
    /// The number of the next insertion: it tells a queued key from the same key queued before.
    next: u64,
}

#[derive(Debug)]
struct FifoSlot<V> {
    value: V,
    weight: usize,
    frequency: u8,
    number: u64,
    main: bool,
}

/// Keys that left the small queue unused, as many as there are values.
#[derive(Debug)]
struct GhostQueue<K> {
    numbers: HashMap<K, u64>,
    queue: VecDeque<(K, u64)>,
}

impl<K: Hash + Eq + Clone, V> S3Fifo<K, V> {
    /// Holds values of `capacity` weight together.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            used: 0,
            small_used: 0,
            map: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: GhostQueue {
                numbers: HashMap::new(),
                queue: VecDeque::new(),
            },
            next: 0,
        }
    }

    /// The value, counted as used.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let slot = self.map.get_mut(key)?;
        // The only thing that a hit changes: no queue is touched.
        slot.frequency = (slot.frequency + 1).min(FREQUENCY_MAX);
        Some(&slot.value)
    }

    /// Takes a value in and lets others go until there is room. What is heavier than all is not taken.
    pub fn insert(&mut self, key: K, value: V, weight: usize) {
        // An older value of the key must not be counted twice. Its place in a queue is skipped, because the number
        // differs.
        self.remove(&key);
        if weight > self.capacity {
            return;
        }
        while self.used + weight > self.capacity {
            if !self.evict() {
                return;
            }
        }
        let number = self.next;
        self.next += 1;
        // A ghost has shown that it is asked for again: the small queue has nothing left to find out.
        let main = self.ghosts.numbers.remove(&key).is_some();
        let queue = if main {
            &mut self.main
        } else {
            &mut self.small
        };
        queue.push_back((key.clone(), number));
        self.used += weight;
        self.small_used += if main { 0 } else { weight };
        self.map.insert(
            key,
            FifoSlot {
                value,
                weight,
                frequency: 0,
                number,
                main,
            },
        );
    }

    /// Takes a value out. Its key stays queued and is skipped in its turn.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.map.remove(key)?;
        self.used -= slot.weight;
        self.small_used -= if slot.main { 0 } else { slot.weight };
        Some(slot.value)
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The weight of all values.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Lets one value go; false when there is none.
    pub fn evict(&mut self) -> bool {
        loop {
            // The small queue gives as long as it has more than its tenth.
            let from_small = self.small_used * 10 >= self.capacity || self.main.is_empty();
            let queue = if from_small {
                &mut self.small
            } else {
                &mut self.main
            };
            let Some((key, number)) = queue.pop_front() else {
                if self.main.is_empty() {
                    return false;
                }
                continue;
            };
            // Removed, or inserted again since it was queued.
            let Some(slot) = self.map.get_mut(&key).filter(|slot| slot.number == number) else {
                continue;
            };
            // More than one use: a scan uses each value once.
            if from_small && slot.frequency > 1 {
                slot.main = true;
                slot.frequency = 0;
                self.small_used -= slot.weight;
                self.main.push_back((key, number));
            } else if !from_small && slot.frequency > 0 {
                slot.frequency -= 1;
                self.main.push_back((key, number));
            } else {
                self.remove(&key);
                if from_small {
                    // Bounded by the number of values, so that ghosts never need more room than what they stand beside.
                    self.ghosts.remember(key, number, self.map.len());
                }
                return true;
            }
        }
    }
}

impl<K: Hash + Eq + Clone> GhostQueue<K> {
    fn remember(&mut self, key: K, number: u64, most: usize) {
        self.queue.push_back((key.clone(), number));
        self.numbers.insert(key, number);
        while self.queue.len() > most.max(1) {
            // A key that became a ghost again has a newer number, and stays.
            if let Some((key, number)) = self.queue.pop_front()
                && self.numbers.get(&key) == Some(&number)
            {
                self.numbers.remove(&key);
            }
        }
    }
}

/// The ghosts of the disk: a fingerprint for each hash, in a table of fixed size that overwrites itself.
pub(crate) struct GhostTable(Vec<u32>);

impl GhostTable {
    /// 4 bytes each; a quarter of a million covers the main part of a million objects well enough.
    const SIZE: usize = 256 * 1024;

    pub(crate) fn new() -> Self {
        Self(vec![0; Self::SIZE])
    }

    pub(crate) fn remember(&mut self, hash: u64) {
        // The lowest bit is always set, because 0 is an empty slot.
        self.0[hash as usize % Self::SIZE] = (hash >> 32) as u32 | 1;
    }

    /// Whether the hash left not long ago; it is forgotten with the question.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let slot = &mut self.0[hash as usize % Self::SIZE];
        let known = *slot == (hash >> 32) as u32 | 1;
        if known {
            *slot = 0;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
        let mut cache = S3Fifo::new(100);
        for round in 0..3 {
            for key in 0..50u32 {
                if cache.get(&key).is_none() {
                    cache.insert(key, round, 1);
                }
            }
        }
        for key in 1000..5000u32 {
            cache.insert(key, 0, 1);
        }
        let kept = (0..50u32).filter(|key| cache.get(key).is_some()).count();
        assert_eq!(kept, 50);
        assert_eq!(cache.used(), 100);
    }

    #[test]
    fn weight_is_never_above_the_capacity() {
        let mut cache = S3Fifo::new(64);
        let mut dice = 7u32;
        for _ in 0..20_000 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = (dice >> 20) % 100;
            match dice % 5 {
                0 => drop(cache.remove(&key)),
                1 | 2 => drop(cache.get(&key).copied()),
                _ => cache.insert(key, (), (dice >> 8) as usize % 70),
            }
            assert!(cache.used() <= 64);
            let real: usize = cache.map.values().map(|slot| slot.weight).sum();
            assert_eq!(real, cache.used());
        }
    }
}
