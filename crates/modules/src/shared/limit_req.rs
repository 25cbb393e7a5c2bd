//! The leaky buckets of `limit_req`: how many requests each key may make.
//!
//! A bucket leaks at the zone's rate and each request pours one request into it. What is in it then is the *excess*;
//! more than `burst` does not go in, and what is above `delay` has to wait until it would have leaked. Numbers are
//! thousandths of requests and milliseconds, as in nginx, so that both count alike.

use std::sync::Arc;
use std::time::Instant;

use base::lru::Lru;

use super::zones::{Parts, State};

/// One request in a bucket's unit.
pub(crate) const REQUEST: u64 = 1000;

/// A bucket that was not used for so long leaves when room is needed, if it is empty by now. In milliseconds.
const IDLE: i64 = 60_000;

/// Idle buckets that leave for each new one, so that the cost of a request stays bounded.
const IDLE_PER_NEW: usize = 2;

/// What a bucket takes of its zone beside the key, in bytes; near to what it is here and the same as in nginx.
const FIXED_COST: usize = 80;

/// The buckets of a zone, which all loops share.
pub(crate) struct Buckets {
    size: u64,
    /// The key's source text: a zone whose key changes its meaning can not be taken over.
    pub(crate) key: Box<[u8]>,
    born: Instant,
    tables: Parts<Table>,
}

struct Table {
    buckets: Lru<Arc<[u8]>, Bucket>,
    /// The sum of the costs of all buckets; at most the size of the part.
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    excess: u64,
    /// When that was, in milliseconds since the zone was made; before that for a bucket that nothing was poured into.
    last: i64,
}

/// How a key's bucket would take one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// This much is in it then.
    Excess(u64),
    /// This would be more than the burst.
    Over(u64),
    /// The zone has no room for the key.
    NoRoom,
}

/// Whether a look already counts as the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// It does.
    Now,
    /// Other limits come first.
    Later,
}

impl State for Buckets {
    fn size(&self) -> u64 {
        self.size
    }
}

impl Buckets {
    /// No buckets, in a zone of `size` bytes.
    pub(crate) fn new(size: u64, key: &[u8], now: Instant) -> Buckets {
        let tables = Parts::new(size, || Table {
            buckets: Lru::new(usize::MAX),
            used: 0,
        });
        Buckets {
            size,
            key: key.into(),
            born: now,
            tables,
        }
    }

    /// Looks how one more request of `key` fits, and counts it if it does and `count` says so. `rate` is in
    /// thousandths of requests per second.
    pub(crate) fn pour(
        &self,
        key: &[u8],
        rate: u64,
        burst: u64,
        count: Count,
        now: Instant,
    ) -> Fill {
        let now = self.millis(now);
        let mut table = self.tables.lock(key);
        let (bucket, excess) = match table.buckets.get(key) {
            Some(bucket) => {
                let excess = bucket.after(rate, now);
                (bucket, excess)
            }
            None => {
                if !table.make_room(cost(key), self.tables.part_size, rate, now) {
                    return Fill::NoRoom;
                }
                table.used += cost(key);
                table.buckets.insert(
                    key.into(),
                    Bucket {
                        excess: 0,
                        last: now,
                    },
                );
                // A first request leaves its bucket empty; one that is not counted yet leaves it as it would be.
                let Some(bucket) = table.buckets.get(key) else {
                    return Fill::NoRoom;
                };
                if count == Count::Later {
                    bucket.last = i64::MIN / 2;
                }
                (bucket, 0)
            }
        };
        if excess > burst {
            return Fill::Over(excess);
        }
        if count == Count::Now {
            bucket.set(excess, now);
        }
        Fill::Excess(excess)
    }

    fn millis(&self, now: Instant) -> i64 {
        // The bound is 146 million years away, and leaves room for a time that is long before.
        i64::try_from(now.saturating_duration_since(self.born).as_millis()).unwrap_or(i64::MAX / 2)
    }
}

impl Bucket {
    /// What would be in it with one more request.
    fn after(self, rate: u64, now: i64) -> u64 {
        let passed = u64::try_from(now - self.last).unwrap_or(0);
        let leaked = rate.saturating_mul(passed) / 1000;
        (self.excess + REQUEST).saturating_sub(leaked)
    }

    fn set(&mut self, excess: u64, now: i64) {
        self.excess = excess;
        // The clocks of two loops may differ by a turn; time does not go back.
        self.last = self.last.max(now);
    }
}

impl Table {
    /// Makes room for `cost` bytes more: idle buckets leave first, then the ones that were used longest ago.
    fn make_room(&mut self, cost: u64, size: u64, rate: u64, now: i64) -> bool {
        for _ in 0..IDLE_PER_NEW {
            let Some((_, oldest)) = self.buckets.oldest() else {
                break;
            };
            let idle = now - oldest.last >= IDLE;
            if !idle || oldest.after(rate, now) > 0 {
                break;
            }
            self.drop_oldest();
        }
        if cost > size {
            return false;
        }
        while self.used + cost > size {
            self.drop_oldest();
        }
        true
    }

    fn drop_oldest(&mut self) {
        if let Some((key, _)) = self.buckets.pop_oldest() {
            self.used -= self::cost(&key);
        }
    }
}

/// What a key takes of its zone. nginx hands out powers of two; so one megabyte keeps as many keys here as there.
fn cost(key: &[u8]) -> u64 {
    (FIXED_COST + key.len()).next_power_of_two() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Two requests a second.
    const RATE: u64 = 2 * REQUEST;

    #[test]
    fn a_bucket_leaks_at_its_rate() {
        let born = Instant::now();
        let buckets = Buckets::new(1 << 20, b"k", born);
        let at = |millis| born + Duration::from_millis(millis);
        let pour = |millis, burst| buckets.pour(b"a", RATE, burst, Count::Now, at(millis));
        assert_eq!(pour(0, 0), Fill::Excess(0));
        assert_eq!(pour(0, 0), Fill::Over(1000));
        assert_eq!(pour(250, 1000), Fill::Excess(500));
        assert_eq!(pour(250, 1000), Fill::Over(1500));
        assert_eq!(pour(1000, 1000), Fill::Excess(0));
        assert_eq!(
            pour(990, 1000),
            Fill::Excess(1000),
            "a clock that is behind counts as no time"
        );
        assert_eq!(
            buckets.pour(b"b", RATE, 0, Count::Now, at(0)),
            Fill::Excess(0)
        );
    }

    #[test]
    fn what_is_looked_at_is_not_counted() {
        let born = Instant::now();
        let buckets = Buckets::new(1 << 20, b"k", born);
        for _ in 0..3 {
            assert_eq!(
                buckets.pour(b"a", RATE, 0, Count::Later, born),
                Fill::Excess(0)
            );
        }
        assert_eq!(
            buckets.pour(b"a", RATE, 0, Count::Now, born + Duration::from_secs(9)),
            Fill::Excess(0)
        );
        assert_eq!(
            buckets.pour(b"a", RATE, 0, Count::Later, born + Duration::from_secs(9)),
            Fill::Over(1000)
        );
    }

    #[test]
    fn a_full_zone_forgets_who_came_longest_ago() {
        let born = Instant::now();
        let size = 32 * 1024;
        let buckets = Buckets::new(size, b"k", born);
        let room = size / cost(b"0000");
        for i in 0..=room {
            let key = format!("{i:04}");
            assert_eq!(
                buckets.pour(key.as_bytes(), RATE, 0, Count::Now, born),
                Fill::Excess(0),
                "{i}"
            );
        }
        assert_eq!(
            buckets.pour(b"0000", RATE, 0, Count::Now, born),
            Fill::Excess(0),
            "it had left"
        );
        assert_eq!(
            buckets.pour(b"0002", RATE, 0, Count::Now, born),
            Fill::Over(1000),
            "it is still there"
        );
        assert!(buckets.tables.lock(b"").used <= size);
        assert_eq!(
            buckets.pour(&[b'x'; 40_000], RATE, 0, Count::Now, born),
            Fill::NoRoom
        );
    }

    #[test]
    fn idle_buckets_leave_for_new_ones() {
        let born = Instant::now();
        let buckets = Buckets::new(1 << 17, b"k", born);
        for key in [b"a", b"b", b"c"] {
            buckets.pour(key, RATE, 0, Count::Now, born);
        }
        buckets.pour(b"d", RATE, 0, Count::Now, born + Duration::from_secs(120));
        assert_eq!(buckets.tables.lock(b"").buckets.len(), 2);
    }
}
