//! The leaky buckets of `limit_req`: how many requests each key may make.
//!
//! A bucket leaks at the zone's rate, and each request adds one request to it. The level is then
//! called the *excess*: above `burst` the request is rejected, and above `delay` it waits until the
//! difference would have leaked. Units are thousandths of a request and milliseconds, as in nginx,
//! so that both come to the same decisions.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::lru::Lru;
use conf::Expression;

use super::limit_req_sync::{KeyShares, ZoneSync};
use super::zones::{SharedZone, ZoneShards, ZoneState};

/// What becomes of a request, in metrics.
pub(crate) const OUTCOMES: [&str; 5] = [
    "passed",
    "delayed",
    "refused",
    "delayed_dry_run",
    "refused_dry_run",
];

/// The zones declared in `http`.
#[derive(Clone, Default)]
pub(crate) struct ReqZones(pub(crate) Vec<Arc<ReqZone>>);

/// A zone as `limit_req_zone` declares it.
pub(crate) type ReqZone = SharedZone<ReqZoneDeclaration, RequestBuckets>;

/// What a zone counts by, and its rate.
pub(crate) struct ReqZoneDeclaration {
    pub(crate) key: Expression,
    /// Thousandths of requests per second.
    pub(crate) rate: u64,
    /// With whom the rate is shared.
    pub(crate) sync: Option<ZoneSync>,
}

/// One request, in a bucket's unit.
pub(crate) const REQUEST: u64 = 1000;

/// A bucket unused for this long, in milliseconds, is removed when another needs room, provided it
/// has leaked empty.
const IDLE_MS: i64 = 60_000;

/// How many idle buckets one new bucket can evict. It bounds the cost of a request; nginx's number.
const IDLE_PER_NEW: usize = 2;

/// What a bucket costs its zone besides the key, in bytes: close to the real cost here and the same
/// as in nginx, so that zone sizes carry over.
const FIXED_COST: usize = 80;

/// The buckets of a zone, shared by all loops.
pub(crate) struct RequestBuckets {
    size: u64,
    /// The key's source text. A reload that changes it is refused, because the old buckets would
    /// belong to other keys.
    pub(crate) key: Box<[u8]>,
    /// The origin of the times in the buckets.
    created: Instant,
    /// What became of requests: see [`OUTCOMES`].
    pub(crate) outcomes: [AtomicU64; OUTCOMES.len()],
    /// In parts, so that loops rarely wait for each other's lock.
    tables: ZoneShards<BucketTable>,
    /// This server's parts of rates that Redis keeps.
    shares: OnceLock<KeyShares>,
}

/// One shard of a zone, ordered by last use.
struct BucketTable {
    buckets: Lru<Arc<[u8]>, LeakyBucket>,
    /// The sum of the costs of all buckets; at most the size of the shard.
    used: u64,
}

/// The bucket of one key.
#[derive(Clone, Copy, Debug)]
struct LeakyBucket {
    /// In thousandths of requests, at the time `last`.
    excess: u64,
    /// When the excess was computed, in milliseconds since the zone was created. Far in the past
    /// for a bucket that nothing has been added to.
    updated_ms: i64,
}

/// How a bucket takes one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PourResult {
    /// It fits; this is the excess with it.
    Excess(u64),
    /// It does not fit: this would be the excess.
    OverBurst(u64),
    /// The zone has no room for the key.
    NoRoom,
}

/// Whether to count the request or only to test it. With several limits none may count it unless
/// all accept it, so all but the last are tested first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountMode {
    /// Count it if it fits.
    Now,
    /// Only test; the caller counts it later.
    Later,
}

impl ZoneState for RequestBuckets {
    fn size(&self) -> u64 {
        self.size
    }
}

impl RequestBuckets {
    /// An empty zone of `size` bytes.
    pub(crate) fn new(size: u64, key: &[u8], now: Instant) -> RequestBuckets {
        let tables = ZoneShards::new(size, || BucketTable {
            buckets: Lru::new(usize::MAX),
            used: 0,
        });
        RequestBuckets {
            size,
            key: key.into(),
            created: now,
            outcomes: Default::default(),
            tables,
            shares: OnceLock::new(),
        }
    }

    /// This server's parts of rates, by key.
    pub(crate) fn shares(&self) -> &KeyShares {
        self.shares.get_or_init(|| KeyShares::new(self.size))
    }

    /// Sets how full the bucket of a key is, if there is one: 0 takes a request at once, and one request is its rate's
    /// worth. `rate` is the bucket's, in thousandths of requests per second.
    pub(crate) fn set_level(&self, key: &[u8], level: u64, rate: u64, now: Instant) {
        let now = self.millis(now);
        let mut table = self.tables.lock(key);
        let Some(bucket) = table.buckets.get(key) else {
            return;
        };
        bucket.excess = level.saturating_sub(REQUEST);
        // A bucket with room for a part of a request is one whose last request was a while ago.
        let room = REQUEST.saturating_sub(level).saturating_mul(1000) / rate.max(1);
        bucket.updated_ms = now - i64::try_from(room).unwrap_or(IDLE_MS).min(IDLE_MS);
    }

    /// How many bytes are used.
    pub(crate) fn used(&self) -> u64 {
        self.tables.sum(|table| table.used)
    }

    /// Tests whether one more request of `key` fits, and counts it if it does and `count` says so.
    /// `rate` is in thousandths of requests per second.
    pub(crate) fn pour(
        &self,
        key: &[u8],
        rate: u64,
        burst: u64,
        count: CountMode,
        now: Instant,
    ) -> PourResult {
        let now = self.millis(now);
        let mut table = self.tables.lock(key);
        let (bucket, excess) = match table.buckets.get(key) {
            Some(bucket) => {
                let excess = bucket.excess_after(rate, now);
                (bucket, excess)
            }
            None => {
                if !table.make_room(key_cost(key), self.tables.part_size, rate, now) {
                    return PourResult::NoRoom;
                }
                table.used += key_cost(key);
                table.buckets.insert(
                    key.into(),
                    LeakyBucket {
                        excess: 0,
                        updated_ms: now,
                    },
                );
                // The first request of a key leaves its bucket empty; the burst counts what is in
                // excess of the rate, and the first request is not. If it is not counted yet, the
                // bucket must look as if it had never been used: a long time ago means fully
                // leaked.
                let Some(bucket) = table.buckets.get(key) else {
                    return PourResult::NoRoom;
                };
                if count == CountMode::Later {
                    bucket.updated_ms = i64::MIN / 2;
                }
                (bucket, 0)
            }
        };
        if excess > burst {
            return PourResult::OverBurst(excess);
        }
        if count == CountMode::Now {
            bucket.set(excess, now);
        }
        PourResult::Excess(excess)
    }

    /// Milliseconds since the table was created.
    fn millis(&self, now: Instant) -> i64 {
        // The limit is 146 million years away and leaves room for times long before the origin.
        i64::try_from(now.saturating_duration_since(self.created).as_millis())
            .unwrap_or(i64::MAX / 2)
    }
}

impl LeakyBucket {
    /// The excess with one more request.
    fn excess_after(self, rate: u64, now: i64) -> u64 {
        let passed = u64::try_from(now - self.updated_ms).unwrap_or(0);
        let leaked = rate.saturating_mul(passed) / 1000;
        (self.excess + REQUEST).saturating_sub(leaked)
    }

    /// Stores the excess at a time.
    fn set(&mut self, excess: u64, now: i64) {
        self.excess = excess;
        // Each loop reads the clock once per turn, so two loops can disagree. Time must not go back
        // here, or the leak would be counted twice.
        self.updated_ms = self.updated_ms.max(now);
    }
}

impl BucketTable {
    /// Makes room for `cost` more bytes: first by removing idle buckets, then the least recently
    /// used ones. Removing a bucket forgets its excess, which favours the client; refusing new keys
    /// would let one client with many keys lock out all others.
    fn make_room(&mut self, cost: u64, size: u64, rate: u64, now: i64) -> bool {
        for _ in 0..IDLE_PER_NEW {
            let Some((_, oldest)) = self.buckets.oldest() else {
                break;
            };
            let idle = now - oldest.updated_ms >= IDLE_MS;
            if !idle || oldest.excess_after(rate, now) > 0 {
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

    /// Removes the least recently used bucket.
    fn drop_oldest(&mut self) {
        if let Some((key, _)) = self.buckets.pop_oldest() {
            self.used -= self::key_cost(&key);
        }
    }
}

/// What a key costs its zone. nginx's slab allocator hands out powers of two, so with the same
/// rounding a megabyte holds as many keys here as there.
fn key_cost(key: &[u8]) -> u64 {
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
        let buckets = RequestBuckets::new(1 << 20, b"k", born);
        let at = |millis| born + Duration::from_millis(millis);
        let pour = |millis, burst| buckets.pour(b"a", RATE, burst, CountMode::Now, at(millis));
        assert_eq!(pour(0, 0), PourResult::Excess(0));
        assert_eq!(pour(0, 0), PourResult::OverBurst(1000));
        assert_eq!(pour(250, 1000), PourResult::Excess(500));
        assert_eq!(pour(250, 1000), PourResult::OverBurst(1500));
        assert_eq!(pour(1000, 1000), PourResult::Excess(0));
        assert_eq!(
            pour(990, 1000),
            PourResult::Excess(1000),
            "a clock that is behind counts as no time"
        );
        assert_eq!(
            buckets.pour(b"b", RATE, 0, CountMode::Now, at(0)),
            PourResult::Excess(0)
        );
    }

    #[test]
    fn what_is_looked_at_is_not_counted() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 20, b"k", born);
        for _ in 0..3 {
            assert_eq!(
                buckets.pour(b"a", RATE, 0, CountMode::Later, born),
                PourResult::Excess(0)
            );
        }
        assert_eq!(
            buckets.pour(b"a", RATE, 0, CountMode::Now, born + Duration::from_secs(9)),
            PourResult::Excess(0)
        );
        assert_eq!(
            buckets.pour(
                b"a",
                RATE,
                0,
                CountMode::Later,
                born + Duration::from_secs(9)
            ),
            PourResult::OverBurst(1000)
        );
    }

    #[test]
    fn a_full_zone_forgets_who_came_longest_ago() {
        let born = Instant::now();
        let size = 32 * 1024;
        let buckets = RequestBuckets::new(size, b"k", born);
        let room = size / key_cost(b"0000");
        for i in 0..=room {
            let key = format!("{i:04}");
            assert_eq!(
                buckets.pour(key.as_bytes(), RATE, 0, CountMode::Now, born),
                PourResult::Excess(0),
                "{i}"
            );
        }
        assert_eq!(
            buckets.pour(b"0000", RATE, 0, CountMode::Now, born),
            PourResult::Excess(0),
            "it had left"
        );
        assert_eq!(
            buckets.pour(b"0002", RATE, 0, CountMode::Now, born),
            PourResult::OverBurst(1000),
            "it is still there"
        );
        assert!(buckets.tables.lock(b"").used <= size);
        assert_eq!(
            buckets.pour(&[b'x'; 40_000], RATE, 0, CountMode::Now, born),
            PourResult::NoRoom
        );
    }

    #[test]
    fn idle_buckets_leave_for_new_ones() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 17, b"k", born);
        for key in [b"a", b"b", b"c"] {
            buckets.pour(key, RATE, 0, CountMode::Now, born);
        }
        buckets.pour(
            b"d",
            RATE,
            0,
            CountMode::Now,
            born + Duration::from_secs(120),
        );
        assert_eq!(buckets.tables.lock(b"").buckets.len(), 2);
    }
}
