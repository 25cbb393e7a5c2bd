//! How many requests a key has made: a leaky bucket for each key, in memory that all loops share.
//!
//! Everything is counted in thousandths of a request, as nginx does, so that rates below one per second need no
//! fractions. Keys that were used longest ago are forgotten when the zone is full; that is in their favour.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::lru::Lru;

/// One request.
pub(super) const REQUEST: u64 = 1000;

/// What a key takes of the zone's size, in bytes: nginx's figure for 64-bit machines.
const BUCKET_SIZE: u64 = 128;

/// Parts of a zone, each behind a lock of its own, so that loops seldom meet.
const PARTS: usize = 16;

/// The buckets of one `limit_req_zone`.
pub(super) struct Zone {
    parts: [Mutex<Lru<Box<[u8]>, Bucket>>; PARTS],
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// What is in it.
    excess: u64,
    /// When that was true, in milliseconds.
    at_ms: u64,
}

/// What a bucket says to one more request: how full it would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There is room.
    Fits(u64),
    /// There is none; the request leaves no trace.
    Overflows(u64),
}

/// How fast a bucket leaks, and how much it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leak {
    /// In thousandths per second.
    pub(super) rate: u64,
    /// In thousandths.
    pub(super) burst: u64,
}

impl Zone {
    /// A zone for as many keys as nginx would keep in so many bytes.
    pub(super) fn new(size: u64) -> Zone {
        let keys = usize::try_from(size / BUCKET_SIZE).unwrap_or(usize::MAX);
        let parts = std::array::from_fn(|_| Mutex::new(Lru::new((keys / PARTS).max(1))));
        Zone {
            parts,
            hasher: RandomState::new(),
        }
    }

    /// Asks whether one more request fits, and leaves the bucket as it is.
    pub(super) fn ask(&self, key: &[u8], leak: Leak, now_ms: u64) -> Verdict {
        match self.part(key).peek(key) {
            Some(bucket) => bucket.verdict(leak, now_ms),
            None => Verdict::Fits(0),
        }
    }

    /// Adds a request, if it fits.
    pub(super) fn add(&self, key: &[u8], leak: Leak, now_ms: u64) -> Verdict {
        let mut part = self.part(key);
        let Some(bucket) = part.get(key) else {
            // The first request of a key is free: the bucket counts those after it.
            part.insert(
                key.into(),
                Bucket {
                    excess: 0,
                    at_ms: now_ms,
                },
            );
            return Verdict::Fits(0);
        };
        let verdict = bucket.verdict(leak, now_ms);
        if let Verdict::Fits(excess) = verdict {
            // The clocks of two loops may be a turn apart: time does not go back.
            *bucket = Bucket {
                excess,
                at_ms: bucket.at_ms.max(now_ms),
            };
        }
        verdict
    }

    fn part(&self, key: &[u8]) -> MutexGuard<'_, Lru<Box<[u8]>, Bucket>> {
        let index = self.hasher.hash_one(key) as usize % PARTS;
        self.parts[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    fn verdict(self, leak: Leak, now_ms: u64) -> Verdict {
        let leaked = leak.rate.saturating_mul(now_ms.saturating_sub(self.at_ms)) / 1000;
        let excess = (self.excess + REQUEST).saturating_sub(leaked);
        if excess > leak.burst {
            Verdict::Overflows(excess)
        } else {
            Verdict::Fits(excess)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_and_leaks() {
        let zone = Zone::new(1 << 20);
        // Two requests a second, and two more may wait.
        let leak = Leak {
            rate: 2 * REQUEST,
            burst: 2 * REQUEST,
        };
        assert_eq!(zone.add(b"a", leak, 1000), Verdict::Fits(0));
        assert_eq!(zone.add(b"a", leak, 1000), Verdict::Fits(1000));
        assert_eq!(zone.add(b"a", leak, 1000), Verdict::Fits(2000));
        assert_eq!(zone.add(b"a", leak, 1000), Verdict::Overflows(3000));
        assert_eq!(zone.add(b"b", leak, 1000), Verdict::Fits(0), "another key");
        assert_eq!(zone.ask(b"a", leak, 1499), Verdict::Overflows(2002));
        assert_eq!(zone.add(b"a", leak, 1500), Verdict::Fits(2000));
        assert_eq!(
            zone.add(b"a", leak, 9000),
            Verdict::Fits(0),
            "it never holds less than nothing"
        );
    }

    #[test]
    fn asking_leaves_no_trace_and_time_does_not_go_back() {
        let zone = Zone::new(1 << 20);
        let leak = Leak {
            rate: REQUEST,
            burst: 5 * REQUEST,
        };
        for _ in 0..10 {
            assert_eq!(zone.ask(b"a", leak, 1), Verdict::Fits(0));
        }
        assert_eq!(zone.add(b"a", leak, 2000), Verdict::Fits(0));
        assert_eq!(zone.add(b"a", leak, 1990), Verdict::Fits(1000));
        assert_eq!(zone.ask(b"a", leak, 3000), Verdict::Fits(1000));
    }

    #[test]
    fn a_full_zone_forgets() {
        let zone = Zone::new(PARTS as u64 * BUCKET_SIZE);
        let leak = Leak { rate: 1, burst: 0 };
        for key in 0..1000_u32 {
            assert_eq!(zone.add(&key.to_ne_bytes(), leak, 1), Verdict::Fits(0));
        }
        let known: usize = zone
            .parts
            .iter()
            .map(|part| part.lock().unwrap().len())
            .sum();
        assert_eq!(known, PARTS);
    }
}
