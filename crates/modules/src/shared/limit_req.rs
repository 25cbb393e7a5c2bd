//! The leaky buckets of `limit_req`: how many requests each key may make.
//!
//! A bucket leaks at the zone's rate, and each request adds one request to it. The level is then
//! called the *excess*: above `burst` the request is rejected, and above `delay` it waits until the
//! difference would have leaked. Units are thousandths of a request and milliseconds, as in nginx,
//! so that both come to the same decisions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use base::lru::Lru;
use conf::Expression;
use net::cluster::{RateReport, RateShare, WHOLE, equal_weight, scaled, unscaled};

use super::limit_req_sync::ZoneSync;
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

/// What a part of a rate that Redis keeps costs besides its bucket, in bytes. No more are kept than would fit into a zone of
/// the same size again; keys beyond that have an equal part.
const SHARE_COST: u64 = 128;

/// The shares that the smallest zone can have, in each shard.
const SHARES_MIN: u64 = 64;

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
    /// Leases that Redis has given.
    pub(crate) leases: AtomicU64,
    /// Rounds without Redis.
    pub(crate) rounds_without: AtomicU64,
}

/// One shard of a zone, ordered by last use.
struct BucketTable {
    buckets: Lru<Arc<[u8]>, LeakyBucket>,
    /// The sum of the costs of all buckets; at most the size of the shard.
    used: u64,
    /// The keys whose buckets have a share; a key whose bucket was removed meanwhile may be among them.
    shared: Vec<Arc<[u8]>>,
}

/// The bucket of one key.
#[derive(Debug)]
struct LeakyBucket {
    /// In thousandths of requests, at the time `last`.
    excess: u64,
    /// When the excess was computed, in milliseconds since the zone was created. Far in the past
    /// for a bucket that nothing has been added to.
    updated_ms: i64,
    /// This server's part of a rate that Redis keeps. Here, and not in a table of its own: a request then locks and looks
    /// once. In a box, because most zones have none.
    share: Option<Box<RateShare>>,
}

/// The part of a rate and of its burst that is this server's.
pub(crate) enum RatePart<'a> {
    /// All of it.
    Whole,
    /// This part, for all keys.
    Fixed(u32),
    /// One for each key, which Redis gives. It begins with that of one of this number of members.
    Leased(&'a dyn Fn() -> usize),
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
            shared: Vec::new(),
        });
        RequestBuckets {
            size,
            key: key.into(),
            created: now,
            outcomes: Default::default(),
            tables,
            leases: AtomicU64::new(0),
            rounds_without: AtomicU64::new(0),
        }
    }

    /// How many bytes are used.
    pub(crate) fn used(&self) -> u64 {
        self.tables.sum(|table| table.used)
    }

    /// Tests whether one more request of `key` fits, and counts it if it does and `count` says so. The rate is in thousandths of
    /// requests per second. With a part of it, the excess is that of the whole, so that delays are computed from it as
    /// always.
    pub(crate) fn pour(
        &self,
        key: &[u8],
        (rate, burst): (u64, u64),
        part: RatePart<'_>,
        count: CountMode,
        now: Instant,
    ) -> PourResult {
        let now = self.millis(now);
        let mut table = self.tables.lock(key);
        let table = &mut *table;
        let bucket = match table.buckets.get(key) {
            Some(bucket) => bucket,
            None => {
                if !table.make_room(key_cost(key), self.tables.part_size, rate, now) {
                    return PourResult::NoRoom;
                }
                table.used += key_cost(key);
                table.buckets.insert(key.into(), LeakyBucket::UNUSED);
                match table.buckets.get(key) {
                    Some(bucket) => bucket,
                    None => return PourResult::NoRoom,
                }
            }
        };
        // The leak, and the weight of the burst.
        let (leak, weight) = match part {
            RatePart::Whole => (rate, WHOLE),
            RatePart::Fixed(weight) => (scaled(rate, weight), weight),
            RatePart::Leased(members) => {
                if let Some(share) = &mut bucket.share {
                    let weight = match count {
                        CountMode::Now => share.note_asked(),
                        // It is only looked at, and counted later.
                        CountMode::Later => share.weight(),
                    };
                    (scaled(rate, weight), weight)
                } else {
                    // A new key begins with an equal part: nothing is known yet of what the other members are asked for.
                    // While nobody asked for it here, the bucket has leaked as a whole one does: of a client that comes once
                    // in a while, each request would be the first one of a part.
                    let members = members();
                    let has_room = shares_max(self.tables.part_size) > table.shared.len();
                    if has_room && count == CountMode::Now {
                        let mut share = RateShare::new(members);
                        share.note_asked();
                        bucket.share = Some(Box::new(share));
                        table.shared.push(key.into());
                    }
                    (rate, equal_weight(members))
                }
            }
        };
        // A rate of 0 would never empty the bucket: a member with the smallest share passes a request now and then.
        bucket.pour((leak.max(1), scaled(burst, weight)), weight, count, now)
    }

    /// The reports of a round, in groups of at most `most`.
    pub(crate) fn reports(
        &self,
        round: u32,
        elapsed_ms: u64,
        most: usize,
    ) -> Vec<Vec<(Arc<[u8]>, RateReport)>> {
        let mut groups: Vec<Vec<_>> = Vec::new();
        for table in self.tables.all() {
            let mut table = table.lock();
            let BucketTable {
                buckets, shared, ..
            } = &mut *table;
            shared.retain(|key| {
                let Some(bucket) = buckets.peek_mut(&**key) else {
                    return false;
                };
                let Some(share) = bucket.share.as_mut() else {
                    return false;
                };
                // The bucket was removed and made again: its key is here twice.
                if !share.begins_round(round) {
                    return false;
                }
                let Some(report) = share.report(elapsed_ms) else {
                    // Neither asked for nor owed anything: the next request begins anew.
                    bucket.share = None;
                    return false;
                };
                match groups.last_mut().filter(|group| group.len() < most) {
                    Some(group) => group.push((Arc::clone(key), report)),
                    None => groups.push(vec![(Arc::clone(key), report)]),
                }
                true
            });
        }
        groups
    }

    /// Takes the lease of a key: the common level of its bucket, and this server's weight. Under one lock: a request that passed
    /// in between would not be in the level.
    pub(crate) fn take_lease(
        &self,
        key: &[u8],
        (level, weight): (u64, u64),
        rate: u64,
        now: Instant,
    ) {
        let now = self.millis(now);
        let mut table = self.tables.lock(key);
        let bucket = table.buckets.peek_mut(key);
        if let Some(bucket) = bucket
            && let Some(share) = &mut bucket.share
        {
            let level = share.take(level, weight);
            let rate = scaled(rate, share.weight()).max(1);
            bucket.set_level(level, rate, now);
        }
    }

    /// Goes on without Redis: an equal part of each key.
    pub(crate) fn fall_back(&self, keys: &[(Arc<[u8]>, RateReport)], members: usize) {
        for (key, _) in keys {
            let mut table = self.tables.lock(key);
            let bucket = table.buckets.peek_mut(&**key);
            if let Some(share) = bucket.and_then(|bucket| bucket.share.as_mut()) {
                share.fall_back(members);
            }
        }
    }

    /// Milliseconds since the table was created.
    fn millis(&self, now: Instant) -> i64 {
        // The limit is 146 million years away and leaves room for times long before the origin.
        i64::try_from(now.saturating_duration_since(self.created).as_millis())
            .unwrap_or(i64::MAX / 2)
    }
}

/// How many buckets of a shard of this size can have a share.
fn shares_max(part_size: u64) -> usize {
    usize::try_from((part_size / SHARE_COST).max(SHARES_MIN)).unwrap_or(usize::MAX)
}

impl LeakyBucket {
    /// One that nothing has been added to. The first request of a key leaves it empty: the burst counts what is in excess of
    /// the rate, and the first request is not. A long time ago means fully leaked.
    const UNUSED: LeakyBucket = LeakyBucket {
        excess: 0,
        updated_ms: i64::MIN / 2,
        share: None,
    };

    /// As [`RequestBuckets::pour`], with this part of the rate and of the burst.
    fn pour(
        &mut self,
        (rate, burst): (u64, u64),
        weight: u32,
        count: CountMode,
        now: i64,
    ) -> PourResult {
        let excess = self.excess_after(rate, now);
        if excess > burst {
            return PourResult::OverBurst(unscaled(excess, weight));
        }
        if count == CountMode::Now {
            self.set(excess, now);
            // Only what has passed is told. What was refused is demand, which was noted before.
            if let Some(share) = &mut self.share {
                share.note_passed();
            }
        }
        PourResult::Excess(unscaled(excess, weight))
    }

    /// Sets how full the bucket is: 0 takes a request at once, and one request is its rate's worth.
    fn set_level(&mut self, level: u64, rate: u64, now: i64) {
        self.excess = level.saturating_sub(REQUEST);
        // A bucket with room for a part of a request is one whose last request was a while ago.
        let room = REQUEST.saturating_sub(level).saturating_mul(1000) / rate.max(1);
        self.updated_ms = now - i64::try_from(room).unwrap_or(IDLE_MS).min(IDLE_MS);
    }

    /// The excess with one more request.
    fn excess_after(&self, rate: u64, now: i64) -> u64 {
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

    fn pour(
        buckets: &RequestBuckets,
        key: &[u8],
        burst: u64,
        count: CountMode,
        now: Instant,
    ) -> PourResult {
        buckets.pour(key, (RATE, burst), RatePart::Whole, count, now)
    }

    #[test]
    fn a_bucket_leaks_at_its_rate() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 20, b"k", born);
        let at = |millis| born + Duration::from_millis(millis);
        let at_a = |millis, burst| pour(&buckets, b"a", burst, CountMode::Now, at(millis));
        assert_eq!(at_a(0, 0), PourResult::Excess(0));
        assert_eq!(at_a(0, 0), PourResult::OverBurst(1000));
        assert_eq!(at_a(250, 1000), PourResult::Excess(500));
        assert_eq!(at_a(250, 1000), PourResult::OverBurst(1500));
        assert_eq!(at_a(1000, 1000), PourResult::Excess(0));
        assert_eq!(
            at_a(990, 1000),
            PourResult::Excess(1000),
            "a clock that is behind counts as no time"
        );
        assert_eq!(
            pour(&buckets, b"b", 0, CountMode::Now, at(0)),
            PourResult::Excess(0)
        );
    }

    #[test]
    fn what_is_looked_at_is_not_counted() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 20, b"k", born);
        for _ in 0..3 {
            assert_eq!(
                pour(&buckets, b"a", 0, CountMode::Later, born),
                PourResult::Excess(0)
            );
        }
        assert_eq!(
            pour(
                &buckets,
                b"a",
                0,
                CountMode::Now,
                born + Duration::from_secs(9)
            ),
            PourResult::Excess(0)
        );
        assert_eq!(
            pour(
                &buckets,
                b"a",
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
                pour(&buckets, key.as_bytes(), 0, CountMode::Now, born),
                PourResult::Excess(0),
                "{i}"
            );
        }
        assert_eq!(
            pour(&buckets, b"0000", 0, CountMode::Now, born),
            PourResult::Excess(0),
            "it had left"
        );
        assert_eq!(
            pour(&buckets, b"0002", 0, CountMode::Now, born),
            PourResult::OverBurst(1000),
            "it is still there"
        );
        assert!(buckets.tables.lock(b"").used <= size);
        assert_eq!(
            pour(&buckets, &[b'x'; 40_000], 0, CountMode::Now, born),
            PourResult::NoRoom
        );
    }

    #[test]
    fn idle_buckets_leave_for_new_ones() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 17, b"k", born);
        for key in [b"a", b"b", b"c"] {
            pour(&buckets, key, 0, CountMode::Now, born);
        }
        pour(
            &buckets,
            b"d",
            0,
            CountMode::Now,
            born + Duration::from_secs(120),
        );
        assert_eq!(buckets.tables.lock(b"").buckets.len(), 2);
    }

    /// A key whose bucket was removed and made again between two rounds is told once, and one without requests is forgotten.
    #[test]
    fn each_share_is_told_once_in_a_round() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 17, b"k", born);
        let members = || 2;
        let ask = |key: &[u8]| {
            let part = RatePart::Leased(&members);
            buckets.pour(key, (RATE, REQUEST), part, CountMode::Now, born)
        };
        // The first is of half of the rate, and the burst has room for no other one.
        assert_eq!(ask(b"a"), PourResult::Excess(0));
        assert_eq!(ask(b"a"), PourResult::OverBurst(2 * REQUEST));
        let mut table = buckets.tables.lock(b"a");
        table.drop_oldest();
        drop(table);
        ask(b"a");
        ask(b"b");
        let told = |round| -> Vec<Vec<u8>> {
            let groups = buckets.reports(round, 100, 1);
            assert!(
                groups.iter().all(|group| group.len() == 1),
                "a group has one"
            );
            groups
                .concat()
                .into_iter()
                .map(|(key, _)| key.to_vec())
                .collect()
        };
        assert_eq!(told(1), [b"a", b"b"]);
        buckets.take_lease(b"a", (0, u64::from(WHOLE)), RATE, born);
        assert_eq!(
            ask(b"a"),
            PourResult::Excess(0),
            "it has all of the burst, and an empty bucket"
        );
        assert_eq!(ask(b"a"), PourResult::Excess(REQUEST));
        let ends = (2..100).find(|round| told(*round).is_empty());
        assert!(ends.is_some_and(|round| round > 2), "{ends:?}");
        let table = buckets.tables.lock(b"a");
        assert!(table.shared.is_empty() && table.buckets.len() == 2);
    }
    /// A client with fewer requests than the rate, each of which comes when the one before is forgotten.
    #[test]
    fn who_comes_once_in_a_while_has_the_whole_rate() {
        let born = Instant::now();
        let buckets = RequestBuckets::new(1 << 17, b"k", born);
        let members = || 3;
        for number in 0..10_u32 {
            let now = born + number * Duration::from_millis(500);
            for count in [CountMode::Later, CountMode::Now] {
                let part = RatePart::Leased(&members);
                let found = buckets.pour(b"a", (RATE, 0), part, count, now);
                assert_eq!(found, PourResult::Excess(0), "{number}");
            }
            let round = (1..).find(|round| {
                let is_told = !buckets.reports(10 * number + round, 100, 9).is_empty();
                if is_told {
                    buckets.take_lease(b"a", (REQUEST, u64::from(WHOLE)), RATE, now);
                }
                !is_told
            });
            assert_eq!(round, Some(4), "it is forgotten");
        }
    }
}
