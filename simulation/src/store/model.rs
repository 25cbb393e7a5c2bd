//! What may be found in the store, and the invariants in one place.
//!
//! Everything that is stored has a number, which its head carries. The model knows of each key which numbers a lookup may
//! find; it knows nothing of segments. That it finds nothing is always allowed: a cache may lose. Wrong is:
//!
//! - **S1, no wrong byte**: a body that is not the one that was stored with the head (RFC 9111, section 2: a stored
//!   response is the response that was received).
//! - **S2, nothing comes back**: an object that was replaced, or purged, is not found after the promise that it is gone.
//! - **S3, a soft purge holds**: what it has hit is stale (RFC 9111, section 4.4: invalidation) until it is validated.
//! - **S4, a process that dies loses nothing** that [`cache::CacheStore::flush`] has promised.
//! - **S5, a store opens** whatever a crash has left, and stores again.
//! - **S6, what is called fresh is fresh**: its lifetime exceeds its age (RFC 9111, section 4.2).
//!
//! A promise holds after the death of the process once `flush` has returned, and after a loss of power once `checkpoint` or
//! `close` has.

use super::history::KEYS;

/// What is stored under a key: a number of its own, and the number that its body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredNumber {
    pub(crate) number: u64,
    pub(crate) body: u64,
    pub(crate) len: usize,
    /// Until when it is fresh, in milliseconds since the epoch.
    pub(crate) fresh_until_ms: u64,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Fresh(StoredNumber),
    Stale(StoredNumber),
}

/// What must hold of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyFacts {
    /// Lower numbers are gone.
    pub(crate) floor: u64,
    /// Numbers up to this are stale.
    pub(crate) soft: u64,
}

/// What must hold of all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreFacts(pub(crate) [KeyFacts; KEYS]);

impl StoreFacts {
    /// Whether the lookup of a key may have found this.
    pub(crate) fn check(&self, key: usize, found: Found) -> Result<(), String> {
        let facts = self.0[key];
        let (stored, is_fresh) = match found {
            Found::Nothing => return Ok(()),
            Found::Fresh(stored) => (stored, true),
            Found::Stale(stored) => (stored, false),
        };
        if stored.number < facts.floor {
            return Err(format!(
                "S2: key {key} has number {}, and everything below {} was gone",
                stored.number, facts.floor
            ));
        }
        if is_fresh && stored.number <= facts.soft {
            return Err(format!(
                "S3: key {key} has number {} as fresh, and a soft purge hit everything up to {}",
                stored.number, facts.soft
            ));
        }
        Ok(())
    }
}

/// The body with a number: different at each place, and from other bodies.
pub(crate) fn body(number: u64, len: usize) -> Vec<u8> {
    let mut dice = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&(dice >> 16).to_le_bytes()[..6]);
    }
    bytes.truncate(len);
    bytes
}
