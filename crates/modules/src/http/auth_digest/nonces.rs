//! Nonces, and clients that guess.
//!
//! A nonce carries the time when it was issued and a code that only this process can compute, so that a challenge costs
//! no memory: a flood of requests without credentials fills nothing. What is remembered is which nonces were used, and
//! for which counts, so that a request cannot be replayed. The memory has a bound: when it is full, the nonce that was
//! issued first is forgotten, and with it every one as old, so that what was forgotten is refused and not accepted again.
//!
//! Time is an argument.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::{constant_time, hmac};
use base::lru::Lru;
use base::sync::Mutex;
use bstr::BString;

/// How many addresses with failed attempts are remembered.
const ADDRESSES_KEPT: usize = 10_000;

/// What a used nonce costs besides its counts, in bytes.
const NONCE_COST: u64 = 96;

/// The bytes of the code in a nonce.
const CODE_LENGTH: usize = 16;

/// The settings of a location, times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct NonceLimits {
    /// How long after its challenge a nonce may be used first.
    pub(super) timeout: u64,
    /// How long after its first use it may be used again.
    pub(super) expires: u64,
    /// How often it may be used.
    pub(super) replays: u32,
    /// The memory for used nonces, in bytes.
    pub(super) memory: u64,
}

/// When a nonce was issued, and a number that no other one of that moment has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NonceId {
    issued: u64,
    number: u64,
}

/// A nonce that was used.
struct UsedNonce {
    /// When it expires.
    until: u64,
    /// A bit for each count that was used.
    counts: Vec<u64>,
}

#[derive(Default)]
struct NonceUses {
    by_id: BTreeMap<NonceId, UsedNonce>,
    /// Nonces up to this one were forgotten: those that are not in the map are stale.
    forgotten: Option<NonceId>,
}

#[derive(Clone, Copy)]
struct FailedAttempts {
    count: i64,
    /// When they are forgotten.
    until: u64,
}

/// What the process knows of nonces and of failed attempts, for all loops together.
pub(super) struct NonceTable {
    key: hmac::Key,
    next_number: AtomicU64,
    uses: Mutex<NonceUses>,
    failures: Mutex<Lru<Vec<u8>, FailedAttempts>>,
}

static TABLE: OnceLock<NonceTable> = OnceLock::new();

/// The table of the process. It outlives reloads, so that clients need not authenticate again.
pub(super) fn table() -> &'static NonceTable {
    TABLE.get_or_init(|| {
        let mut secret = [0; 32];
        rt::random::fill(&mut secret).expect("the kernel gives random bytes once it has booted");
        NonceTable::new(&secret)
    })
}

impl NonceTable {
    fn new(secret: &[u8]) -> NonceTable {
        NonceTable {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            next_number: AtomicU64::new(0),
            uses: Mutex::default(),
            failures: Mutex::new(Lru::new(ADDRESSES_KEPT)),
        }
    }

    /// A new nonce for a realm.
    pub(super) fn issue(&self, realm: &[u8], now: u64) -> BString {
        let id = NonceId {
            issued: now,
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
        };
        let mut text = Vec::with_capacity(64);
        base::text::write_hex(&id.issued.to_be_bytes(), &mut text);
        base::text::write_hex(&id.number.to_be_bytes(), &mut text);
        base::text::write_hex(&self.code_of(id, realm), &mut text);
        text.into()
    }

    fn code_of(&self, id: NonceId, realm: &[u8]) -> [u8; CODE_LENGTH] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&id.issued.to_be_bytes());
        context.update(&id.number.to_be_bytes());
        context.update(realm);
        let mut code = [0; CODE_LENGTH];
        code.copy_from_slice(&context.sign().as_ref()[..CODE_LENGTH]);
        code
    }

    /// The nonce behind a text, if it is one of ours.
    fn read(&self, text: &[u8], realm: &[u8]) -> Option<NonceId> {
        let text = std::str::from_utf8(text)
            .ok()
            .filter(|text| text.len() == 64)?;
        let number = |from: usize| u64::from_str_radix(text.get(from..from + 16)?, 16).ok();
        let id = NonceId {
            issued: number(0)?,
            number: number(16)?,
        };
        let mut code = Vec::with_capacity(2 * CODE_LENGTH);
        base::text::write_hex(&self.code_of(id, realm), &mut code);
        let equal = constant_time::verify_slices_are_equal(&code, &text.as_bytes()[32..]);
        equal.is_ok().then_some(id)
    }

    /// Uses a nonce for the request with this count. `false`: it is stale, or was used for this count before.
    pub(super) fn take(
        &self,
        text: &[u8],
        realm: &[u8],
        count: u32,
        limits: &NonceLimits,
        now: u64,
    ) -> bool {
        let Some(id) = self.read(text, realm) else {
            return false;
        };
        if count == 0 || count > limits.replays {
            return false;
        }
        self.uses.lock().take(id, count, limits, now)
    }

    /// Whether attempts from this address are refused unseen.
    pub(super) fn is_evaded(&self, address: &[u8], most: i64, now: u64) -> bool {
        let failures = self.failures.lock();
        let known = failures.peek(address);
        known.is_some_and(|known| known.until > now && known.count >= most)
    }

    /// Counts a failed attempt.
    pub(super) fn note_failure(&self, address: &[u8], pause: u64, now: u64) {
        let mut failures = self.failures.lock();
        let known = failures.get(address).filter(|known| known.until > now);
        let count = known.map_or(0, |known| known.count) + 1;
        let until = now.saturating_add(pause);
        failures.insert(address.to_vec(), FailedAttempts { count, until });
    }

    /// Forgets the failed attempts of an address, which has succeeded.
    pub(super) fn forgive(&self, address: &[u8]) {
        self.failures.lock().remove(address);
    }
}

impl NonceUses {
    fn take(&mut self, id: NonceId, count: u32, limits: &NonceLimits, now: u64) -> bool {
        let (word, bit) = (count as usize / 64, 1 << (count % 64));
        if let Some(used) = self.by_id.get_mut(&id) {
            if used.until <= now {
                return false;
            }
            if used.counts.len() <= word {
                used.counts.resize(word + 1, 0);
            }
            let is_new = used.counts[word] & bit == 0;
            used.counts[word] |= bit;
            return is_new;
        }
        let is_forgotten = self.forgotten.is_some_and(|forgotten| id <= forgotten);
        if is_forgotten || id.issued.saturating_add(limits.timeout) <= now {
            return false;
        }
        self.make_room(limits, now);
        let mut counts = vec![0; word + 1];
        counts[word] |= bit;
        let until = now.saturating_add(limits.expires);
        self.by_id.insert(id, UsedNonce { until, counts });
        true
    }

    /// Makes room for one more. Those that have expired, and could not be used first any more, leave when there is
    /// none; if there are no such, the oldest.
    fn make_room(&mut self, limits: &NonceLimits, now: u64) {
        let cost = NONCE_COST + u64::from(limits.replays) / 8;
        let most = usize::try_from(limits.memory / cost)
            .unwrap_or(usize::MAX)
            .max(1);
        if self.by_id.len() < most {
            return;
        }
        let timeout = limits.timeout;
        self.by_id
            .retain(|id, used| used.until > now || id.issued.saturating_add(timeout) > now);
        while self.by_id.len() >= most
            && let Some((oldest, _)) = self.by_id.pop_first()
        {
            self.forgotten = Some(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: NonceLimits = NonceLimits {
        timeout: 60_000,
        expires: 10_000,
        replays: 20,
        memory: 1 << 20,
    };

    #[test]
    fn a_count_is_used_once_and_a_nonce_for_a_while() {
        let table = NonceTable::new(b"secret");
        let nonce = table.issue(b"realm", 1000);
        let take = |count, now| table.take(&nonce, b"realm", count, &LIMITS, now);
        assert!(take(1, 60_999) && take(3, 60_999) && take(2, 60_999));
        assert!(!take(2, 60_999) && !take(0, 60_999) && !take(21, 60_999));
        assert!(take(20, 70_998) && !take(4, 70_999));
        let late = table.issue(b"realm", 1000);
        assert!(!table.take(&late, b"realm", 1, &LIMITS, 61_000));
    }

    #[test]
    fn only_a_nonce_of_ours_counts_and_only_in_its_realm() {
        let table = NonceTable::new(b"secret");
        let nonce = table.issue(b"realm", 1000);
        assert!(!table.take(&nonce, b"other", 1, &LIMITS, 1000));
        assert!(!NonceTable::new(b"other").take(&nonce, b"realm", 1, &LIMITS, 1000));
        for at in 0..nonce.len() {
            let mut changed = nonce.clone();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            assert!(!table.take(&changed, b"realm", 1, &LIMITS, 1000), "{at}");
        }
        assert!(!table.take(&nonce[1..], b"realm", 1, &LIMITS, 1000));
        assert!(table.take(&nonce, b"realm", 1, &LIMITS, 1000));
    }

    #[test]
    fn what_a_full_memory_forgot_is_not_accepted_again() {
        let table = NonceTable::new(b"secret");
        let small = NonceLimits {
            memory: 3 * (NONCE_COST + 2),
            ..LIMITS
        };
        let nonces: Vec<_> = (0..5).map(|_| table.issue(b"realm", 1000)).collect();
        for nonce in &nonces {
            assert!(table.take(nonce, b"realm", 1, &small, 2000));
        }
        assert_eq!(table.uses.lock().by_id.len(), 3);
        for nonce in &nonces {
            assert!(!table.take(nonce, b"realm", 1, &small, 2000));
        }
        // Room that time makes forgets nothing.
        let later = table.issue(b"realm", 80_000);
        assert!(table.take(&later, b"realm", 1, &small, 80_000));
        assert_eq!(table.uses.lock().by_id.len(), 1);
    }

    #[test]
    fn an_address_that_guesses_is_refused_for_a_while() {
        let table = NonceTable::new(b"secret");
        for count in 0..5 {
            assert!(!table.is_evaded(b"a", 5, 1000), "{count}");
            table.note_failure(b"a", 300, 1000);
        }
        assert!(table.is_evaded(b"a", 5, 1299) && !table.is_evaded(b"a", 5, 1300));
        assert!(!table.is_evaded(b"b", 5, 1000));
        table.forgive(b"a");
        assert!(!table.is_evaded(b"a", 5, 1000));
    }
}
