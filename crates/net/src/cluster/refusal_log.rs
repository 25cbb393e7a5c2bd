//! When the refusal of a request on the peer port is worth a line: a member with a wrong secret asks eight times in a second, and
//! would fill the log. There is a line when it begins, when its reason changes, and then one in a minute that counts the rest.
//! Pure: the time is an argument.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The interval of further lines about the same address, in milliseconds.
const REPEAT_MS: u64 = 60_000;

/// Addresses that are told apart; anyone can connect from many. All others count as one.
const ADDRESSES_MAX: usize = 64;

/// What was logged of each address; `None` stands for those for which there was no room.
#[derive(Debug, Default)]
pub struct RefusalLog(BTreeMap<Option<IpAddr>, LoggedRefusal>);

#[derive(Debug)]
struct LoggedRefusal {
    reason: &'static str,
    at_ms: u64,
    since: u64,
}

impl RefusalLog {
    /// Notes a refusal. `Some`: it is to be logged, with the number of those since the last line that were not.
    pub fn note(&mut self, from: IpAddr, reason: &'static str, now_ms: u64) -> Option<u64> {
        let is_over =
            |refusal: &LoggedRefusal| now_ms.saturating_sub(refusal.at_ms) >= 2 * REPEAT_MS;
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&Some(from)) {
            self.0.retain(|_, refusal| !is_over(refusal));
        }
        let has_room = self.0.len() < ADDRESSES_MAX || self.0.contains_key(&Some(from));
        let key = has_room.then_some(from);
        let Some(known) = self.0.get_mut(&key) else {
            let first = LoggedRefusal {
                reason,
                at_ms: now_ms,
                since: 0,
            };
            self.0.insert(key, first);
            return Some(0);
        };
        let is_due = now_ms.saturating_sub(known.at_ms) >= REPEAT_MS;
        // Those without a place of their own have many reasons.
        if !is_due && (known.reason == reason || key.is_none()) {
            known.since += 1;
            return None;
        }
        (known.reason, known.at_ms) = (reason, now_ms);
        Some(std::mem::take(&mut known.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_member_costs_a_line_in_a_minute() {
        let mut log = RefusalLog::default();
        let from = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(log.note(from, "secret", 0), Some(0));
        for at_ms in 1..480 {
            assert_eq!(log.note(from, "secret", at_ms), None);
        }
        assert_eq!(
            log.note(from, "clock", 500),
            Some(479),
            "it is another reason"
        );
        assert_eq!(log.note(from, "clock", 600), None);
        assert_eq!(log.note(from, "clock", 500 + REPEAT_MS), Some(1));
    }

    #[test]
    fn addresses_without_room_count_as_one() {
        let mut log = RefusalLog::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let lines = (0..1000).filter(|number| log.note(address(*number), "x", 1).is_some());
        assert_eq!(lines.count(), ADDRESSES_MAX + 1);
        assert!(log.0.len() <= ADDRESSES_MAX + 1);
        assert_eq!(log.note(address(5), "x", 2), None, "it has its place");
        let later = 2 * REPEAT_MS + 2;
        assert_eq!(
            log.note(address(2000), "x", later),
            Some(0),
            "the others are over"
        );
    }
}
