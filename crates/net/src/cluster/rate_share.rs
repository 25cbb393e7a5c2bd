//! A rate that members keep together: each member's part of it, for one key. Pure: reports and replies are data.
//!
//! ```text
//! requests ──▶ bucket of this member: the common one, scaled by its weight ──▶ pass or refuse, at once
//!                 ▲                                    │
//!                 │ level, weight                      │ every 100 ms: how many passed, how many there were
//!                 └──────────── Redis: one bucket for all ◀──────────────┘
//! ```
//!
//! A member's *lease* is its weight: the part of the rate and of the burst that it may use until the next reply. Weights go
//! by how many requests each member has, refused ones included, and their sum is one; so between two reports no more
//! passes than one bucket would let through, but for one request for each member, and for a key that a member did not have
//! before: it begins with an equal part. No request waits for Redis. While it is away every member has an equal part of
//! those that answer, as with `sync=share`.

/// A weight of one.
pub const WHOLE: u32 = 1 << 16;

/// One request, in a bucket's unit.
const REQUEST: u64 = 1000;

/// Rounds without a request after which a key is not reported any more, and begins anew with an equal part. Few: what is left
/// of a weight after some idle rounds would refuse the first requests of a client that comes to this member again, though the
/// common bucket has room.
const IDLE_ROUNDS: u8 = 2;

/// The script that keeps the common buckets. The keys are those of the counted keys; the arguments are the rate, who
/// reports, for how long a report counts in milliseconds, and for each key what has passed and the demand, both in
/// thousandths. The reply has the level and the weight of each. A member's demand is `n:NAME`, with the time of the report.
pub const RATE_SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local rate, node, ttl = tonumber(ARGV[1]), 'n:' .. ARGV[2], tonumber(ARGV[3])
local out = {}
for i, key in ipairs(KEYS) do
  local taken, demand = tonumber(ARGV[2 * i + 2]), tonumber(ARGV[2 * i + 3])
  local all = redis.call('HGETALL', key)
  local level, seen, sum = 0, now, demand
  for j = 1, #all, 2 do
    local name, value = all[j], all[j + 1]
    if name == 'e' then level = tonumber(value)
    elseif name == 't' then seen = tonumber(value)
    elseif name ~= node then
      local other, at = string.match(value, '^(%d+) (%d+)$')
      if not at or now - tonumber(at) > ttl then redis.call('HDEL', key, name)
      else sum = sum + tonumber(other) end
    end
  end
  level = math.max(0, level - math.floor(rate * math.max(0, now - seen) / 1000)) + taken
  redis.call('HSET', key, 'e', level, 't', now, node, demand .. ' ' .. now)
  redis.call('PEXPIRE', key, math.ceil(ttl * 2 + level * 1000 / rate))
  out[i] = {level, math.floor(demand * 65536 / math.max(1, sum))}
end
return out";

/// This member's part of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateShare {
    /// The lease, of [`WHOLE`].
    weight: u32,
    /// Requests since the last report, and those that passed.
    asked: u32,
    passed: u32,
    /// Requests in a second, in thousandths, as of the last reports.
    demand: u64,
    /// Reports in a row without a request.
    idle: u8,
    /// The round of the last report.
    round: u32,
}

/// What is told of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateReport {
    /// What has passed since the last report, in thousandths of requests.
    pub taken: u64,
    /// Requests in a second, in thousandths.
    pub demand: u64,
}

/// The part of each of this number of members if nothing is known of the others.
pub fn equal_weight(members: usize) -> u32 {
    let members = u32::try_from(members.max(1)).unwrap_or(u32::MAX);
    // Rounded up: a burst of 30 for three members is 10 for each, and not a little less.
    WHOLE.div_ceil(members)
}

/// A rate or a burst, scaled by a weight.
pub fn scaled(number: u64, weight: u32) -> u64 {
    if weight >= WHOLE || number == u64::MAX {
        return number;
    }
    let product = u128::from(number) * u128::from(weight) / u128::from(WHOLE);
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// The reverse.
pub fn unscaled(number: u64, weight: u32) -> u64 {
    if weight >= WHOLE {
        return number;
    }
    let product = u128::from(number) * u128::from(WHOLE) / u128::from(weight.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

impl RateShare {
    /// The share in a key that this member did not have before.
    pub fn new(members: usize) -> RateShare {
        RateShare {
            weight: equal_weight(members),
            asked: 0,
            passed: 0,
            demand: 0,
            idle: 0,
            round: 0,
        }
    }

    /// Whether this round has not come to it before. Rounds begin with 1.
    pub fn begins_round(&mut self, round: u32) -> bool {
        std::mem::replace(&mut self.round, round) != round
    }

    /// Counts a request; the weight by which it is judged.
    pub fn note_asked(&mut self) -> u32 {
        self.asked = self.asked.saturating_add(1);
        self.weight
    }

    /// Counts one that has passed.
    pub fn note_passed(&mut self) {
        self.passed = self.passed.saturating_add(1);
    }

    /// What is to be told after `elapsed_ms`; `None`: the key has no requests any more, and is forgotten.
    pub fn report(&mut self, elapsed_ms: u64) -> Option<RateReport> {
        self.idle = match self.asked {
            0 => self.idle.saturating_add(1),
            _ => 0,
        };
        if self.idle > IDLE_ROUNDS {
            return None;
        }
        let now = u64::from(self.asked) * REQUEST * 1000 / elapsed_ms.max(1);
        // The half-life is one round: a member that becomes busy has its part soon, and one pause does not take it away.
        self.demand = (self.demand + now).div_ceil(2);
        let report = RateReport {
            taken: u64::from(self.passed) * REQUEST,
            demand: self.demand,
        };
        (self.asked, self.passed) = (0, 0);
        Some(report)
    }

    /// Takes the reply to a report: the common level and the new weight. The level of this member's bucket, with what has
    /// passed since the report.
    pub fn take(&mut self, level: u64, weight: u64) -> u64 {
        self.weight = u32::try_from(weight).unwrap_or(WHOLE).clamp(1, WHOLE);
        scaled(level, self.weight) + u64::from(self.passed) * REQUEST
    }

    /// Redis is away: an equal part, and what was told may not have been heard. It is not told again: within an equal part
    /// it has taken nothing from the others.
    pub fn fall_back(&mut self, members: usize) {
        self.weight = equal_weight(members);
        self.passed = 0;
    }

    /// The lease.
    pub fn weight(&self) -> u32 {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_until_more_is_known() {
        let mut share = RateShare::new(3);
        assert_eq!(share.note_asked(), equal_weight(3));
        assert_eq!(scaled(30_000, equal_weight(3)), 10_000);
        assert_eq!(scaled(u64::MAX, 1), u64::MAX, "no bound stays none");
        assert_eq!(unscaled(scaled(6_000, WHOLE / 2), WHOLE / 2), 6_000);
        share.note_passed();
        let report = share.report(100).expect("there was a request");
        assert_eq!((report.taken, report.demand), (1_000, 5_000));
        share.note_passed();
        assert_eq!(
            share.take(4_000, u64::from(WHOLE / 2)),
            3_000,
            "what passed since counts"
        );
        share.fall_back(4);
        assert_eq!(share.weight(), WHOLE / 4);
    }

    #[test]
    fn a_key_without_requests_is_forgotten() {
        let mut share = RateShare::new(1);
        share.note_asked();
        let rounds = (0..).take_while(|_| share.report(100).is_some()).count();
        assert_eq!(rounds, usize::from(IDLE_ROUNDS) + 1);
    }

    /// A bucket, as `limit_req` has them and as the script has the common one: it leaks, and takes a request if what is in it
    /// is within the burst.
    #[derive(Clone, Copy, Default)]
    struct LevelBucket {
        level: u64,
        at_ms: u64,
    }

    impl LevelBucket {
        fn leak(&mut self, rate: u64, now_ms: u64) {
            let leaked = rate * (now_ms - self.at_ms) / 1000;
            self.level = self.level.saturating_sub(leaked);
            self.at_ms = now_ms;
        }

        fn takes(&mut self, rate: u64, burst: u64, now_ms: u64) -> bool {
            let before = *self;
            self.leak(rate, now_ms);
            if self.level > burst {
                *self = before;
                return false;
            }
            self.level += REQUEST;
            true
        }
    }

    /// What the script does, in Rust.
    #[derive(Default)]
    struct CommonBucket {
        bucket: LevelBucket,
        /// The demand of each member, and when it was told.
        demands: Vec<(u64, u64)>,
    }

    impl CommonBucket {
        fn report(
            &mut self,
            member: usize,
            report: RateReport,
            rate: u64,
            now_ms: u64,
        ) -> (u64, u64) {
            self.bucket.leak(rate, now_ms);
            self.bucket.level += report.taken;
            self.demands[member] = (report.demand, now_ms);
            let fresh = self
                .demands
                .iter()
                .filter(|(_, at_ms)| now_ms - at_ms <= 3_000);
            let sum: u64 = fresh.map(|(demand, _)| demand).sum();
            let weight = report.demand * u64::from(WHOLE) / sum.max(1);
            (self.bucket.level, weight)
        }
    }

    struct RateRun {
        passed: u64,
        asked: u64,
    }

    /// Ten seconds of requests at three members, this number in a second at each; `is_away` says when Redis is.
    fn run(
        mut chance: u64,
        demands: [u64; 3],
        latency_ms: u64,
        is_away: impl Fn(u64) -> bool,
    ) -> RateRun {
        const RATE: u64 = 100 * REQUEST;
        const BURST: u64 = 20 * REQUEST;
        let mut common = CommonBucket {
            bucket: LevelBucket::default(),
            demands: vec![(0, 0); 3],
        };
        let mut shares = [RateShare::new(3); 3];
        let mut buckets = [LevelBucket::default(); 3];
        let mut replies: Vec<(u64, usize, u64, u64)> = Vec::new();
        let mut counted = RateRun {
            passed: 0,
            asked: 0,
        };
        for now_ms in 0..10_000 {
            replies.retain(|(at_ms, member, level, weight)| {
                if *at_ms > now_ms {
                    return true;
                }
                let level = shares[*member].take(*level, *weight);
                buckets[*member] = LevelBucket {
                    level,
                    at_ms: now_ms,
                };
                false
            });
            for member in 0..3 {
                chance = chance
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                if (chance >> 33) % 1000 < demands[member] {
                    counted.asked += 1;
                    let weight = shares[member].note_asked();
                    let (rate, burst) = (scaled(RATE, weight).max(1), scaled(BURST, weight));
                    if buckets[member].takes(rate, burst, now_ms) {
                        counted.passed += 1;
                        shares[member].note_passed();
                    }
                }
                let is_waiting = replies.iter().any(|(_, of, ..)| *of == member);
                if now_ms % 100 != 31 * member as u64 || is_waiting {
                    continue;
                }
                match shares[member].report(100) {
                    Some(_) if is_away(now_ms) => shares[member].fall_back(3),
                    Some(report) => {
                        let (level, weight) = common.report(member, report, RATE, now_ms);
                        replies.push((now_ms + latency_ms, member, level, weight));
                    }
                    None => shares[member] = RateShare::new(3),
                }
            }
        }
        counted
    }

    /// The issue's row: an uneven load, an error of 5 % at most over 10 s.
    #[test]
    fn an_uneven_load_gets_what_the_rate_gives() {
        for seed in 0..200 {
            let demands =
                [[240, 30, 30], [100, 100, 100], [300, 0, 0], [90, 80, 5]][(seed % 4) as usize];
            let found = run(seed, demands, 2 + seed % 30, |_| false);
            let due = 1_000 + 20;
            assert!(
                found.asked > due,
                "{demands:?}: there is more than the rate"
            );
            assert!(
                found.passed <= due * 105 / 100,
                "seed {seed}, {demands:?}: {}",
                found.passed
            );
            assert!(
                found.passed >= 1_000 * 95 / 100,
                "seed {seed}, {demands:?}: {}",
                found.passed
            );
        }
    }

    /// A Redis that is slow, or away for some time, lets more through for a moment, by a bound.
    #[test]
    fn a_redis_that_is_slow_or_away_costs_a_bounded_part() {
        let mut most = 0;
        for seed in 0..200 {
            let away = 1_000 + seed * 37 % 5_000;
            let slow = run(seed, [240, 30, 30], 1_000, |_| false);
            let gone = run(seed, [240, 30, 30], 10, |now| {
                (away..away + 2_000).contains(&now)
            });
            most = most.max(slow.passed).max(gone.passed);
        }
        assert!(most <= 1_300, "{most}");
    }
}
