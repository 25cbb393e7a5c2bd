//! A limit of what is in progress that members keep together: each member's part of it, for one key. Pure: reports and replies
//! are data.
//!
//! Members tell Redis how many they have in progress, and are told how many the others have. Nothing is lent that would have to
//! be given back by a member that holds it for hours: what a member has told expires when it does not tell it again. Of what is
//! free, each member that has the key may take an equal part until the next reply; a member to which the key is new begins with
//! an equal part of the whole. So what is taken beyond the limit is what members take of such parts before they have heard of
//! each other.

/// The script that knows what members have in progress. The keys are those of the counted keys; the arguments are who reports,
/// for how long a report counts in milliseconds, and for each key what the reporter has in progress. The reply has what the
/// others have, and how many members have the key, the reporter included.
pub const SLOT_SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local node, ttl = ARGV[1], tonumber(ARGV[2])
local out = {}
for i, key in ipairs(KEYS) do
  local taken = tonumber(ARGV[i + 2])
  local all = redis.call('HGETALL', key)
  local others, sharers = 0, 1
  for j = 1, #all, 2 do
    local name, value = all[j], all[j + 1]
    if name ~= node then
      local other, at = string.match(value, '^(%d+) (%d+)$')
      if not at or now - tonumber(at) > ttl then redis.call('HDEL', key, name)
      else others = others + tonumber(other) sharers = sharers + 1 end
    end
  end
  if taken == 0 then redis.call('HDEL', key, node)
  else
    redis.call('HSET', key, node, taken .. ' ' .. now)
    redis.call('PEXPIRE', key, ttl * 2)
  end
  out[i] = {others, sharers}
end
return out";

/// What a member knows of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShare {
    /// What it had in progress when it told of it.
    told: u32,
    /// What the others had.
    others: u32,
    /// The members that had the key.
    sharers: u32,
}

impl SlotShare {
    /// From the reply to a report.
    pub fn new(told: u32, others: u64, sharers: u64) -> SlotShare {
        SlotShare {
            told,
            others: u32::try_from(others).unwrap_or(u32::MAX),
            sharers: u32::try_from(sharers).unwrap_or(u32::MAX).max(1),
        }
    }

    /// How many this member may have in progress.
    pub fn most(&self, limit: u32) -> u32 {
        let left = limit.saturating_sub(self.others);
        match left.checked_sub(self.told) {
            Some(free) => self.told + free.div_ceil(self.sharers),
            // There are more than the limit: this member lets its own end.
            None => left,
        }
    }

    /// The same for a key that the member did not have before, of one of this number of members.
    pub fn most_at_first(limit: u32, members: usize) -> u32 {
        limit.div_ceil(u32::try_from(members).unwrap_or(u32::MAX).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_for_those_who_have_the_key() {
        assert_eq!(SlotShare::most_at_first(10, 3), 4);
        assert_eq!(SlotShare::most_at_first(1, 3), 1);
        assert_eq!(SlotShare::most_at_first(5, 0), 5);
        assert_eq!(SlotShare::new(2, 0, 1).most(10), 10, "it is alone");
        assert_eq!(SlotShare::new(2, 4, 2).most(10), 4);
        assert_eq!(SlotShare::new(6, 4, 2).most(10), 6);
        assert_eq!(SlotShare::new(8, 4, 2).most(10), 6, "there are too many");
        assert_eq!(SlotShare::new(1, 20, 2).most(10), 0);
        assert_eq!(SlotShare::new(0, u64::MAX, u64::MAX).most(10), 0);
    }

    /// Three members that take places and tell of them in turn, of which each takes at most `greed` at a time.
    fn sums(limit: u32, greed: u32) -> (u32, u32) {
        let mut taken = [0_u32; 3];
        let mut shares: [Option<SlotShare>; 3] = [None; 3];
        let mut highest = 0;
        for round in 0..300 {
            let member = round % 3;
            let first = SlotShare::most_at_first(limit, 3);
            let most = shares[member].map_or(first, |share| share.most(limit));
            taken[member] = taken[member].max(most.min(taken[member].saturating_add(greed)));
            let others = taken.iter().sum::<u32>() - taken[member];
            let sharers = taken.iter().filter(|taken| **taken > 0).count();
            shares[member] = Some(SlotShare::new(taken[member], others.into(), sharers as u64));
            highest = highest.max(taken.iter().sum());
        }
        (highest, taken.iter().sum())
    }

    #[test]
    fn the_sum_stays_near_the_limit() {
        for limit in 1..40_u32 {
            let (highest, last) = sums(limit, 1);
            assert!((limit..=limit + 2).contains(&highest), "{limit}: {highest}");
            assert!(last >= limit, "all of it is used");
            let (highest, _) = sums(limit, u32::MAX);
            assert!(highest <= 2 * limit + 2, "{limit}: {highest}");
        }
    }
}
