//! Purges by prefix, by tag or of everything: a table of sequence numbers, not a walk over objects.
//!
//! A purge takes the next sequence number and is remembered under its name. An object whose fill began before it is
//! gone (or stale) when it is looked up. Both tables are bounded. What does not fit makes its sequence number the floor
//! for everything: then too much is purged, never too little.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::CacheKey;
use crate::format::{u32_at, u64_at};

/// The most tags and the most prefixes remembered.
const NAMES_MAX: usize = 65_536;

/// What to purge.
#[derive(Clone, Copy, Debug)]
pub enum PurgeRequest<'a> {
    /// One key; with an [`ObjectKind::Variants`](crate::ObjectKind::Variants) marker, all its variants.
    Key(&'a CacheKey),
    /// All keys that begin with these bytes.
    Prefix(&'a [u8]),
    /// All objects with this tag.
    Tag(&'a [u8]),
    /// Everything.
    All,
}

/// What a purged object is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeMode {
    /// Gone.
    Hard,
    /// Stale: it may be validated, or served while the origin is down.
    Soft,
}

/// Passes a purge on to other processes. Called on loops, so it must not wait.
pub(crate) type PurgeListener = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

/// The names of purges that are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeScope {
    Tag,
    Prefix,
    All,
}

/// The newest purge of each mode, as sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PurgeSequences {
    hard: u64,
    soft: u64,
}

impl PurgeSequences {
    fn raise(&mut self, mode: PurgeMode, sequence: u64) {
        let slot = match mode {
            PurgeMode::Hard => &mut self.hard,
            PurgeMode::Soft => &mut self.soft,
        };
        *slot = (*slot).max(sequence);
    }

    fn verdict(self, born: u64) -> Option<PurgeMode> {
        match born {
            _ if born <= self.hard => Some(PurgeMode::Hard),
            _ if born <= self.soft => Some(PurgeMode::Soft),
            _ => None,
        }
    }
}

/// The purges that may still hit an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct PurgeTable {
    /// The highest number of all: what was born later needs no look at the tables.
    newest: u64,
    /// Purges of everything, and those for which a table had no room.
    floor: PurgeSequences,
    tags: HashMap<Bytes, PurgeSequences>,
    /// By length, so that a key is compared with one prefix of each length.
    prefixes: BTreeMap<usize, HashMap<Bytes, PurgeSequences>>,
}

impl PurgeTable {
    pub(crate) fn record(
        &mut self,
        scope: PurgeScope,
        name: &[u8],
        mode: PurgeMode,
        sequence: u64,
    ) {
        self.newest = self.newest.max(sequence);
        let prefixes: usize = self.prefixes.values().map(HashMap::len).sum();
        let slot = match scope {
            PurgeScope::Tag if self.tags.contains_key(name) || self.tags.len() < NAMES_MAX => {
                self.tags.entry(Bytes::copy_from_slice(name)).or_default()
            }
            PurgeScope::Prefix if prefixes < NAMES_MAX => {
                let same_length = self.prefixes.entry(name.len()).or_default();
                same_length.entry(Bytes::copy_from_slice(name)).or_default()
            }
            // A table is full: rather everything than not what was asked for.
            PurgeScope::All | PurgeScope::Tag | PurgeScope::Prefix => &mut self.floor,
        };
        slot.raise(mode, sequence);
    }

    /// What the purges say about an object; hard wins over soft.
    pub(crate) fn purge_mode(&self, born: u64, key: &[u8], tags: &[Bytes]) -> Option<PurgeMode> {
        // Nearly every lookup ends here: nothing was purged since the object was born.
        if born > self.newest {
            return None;
        }
        let by_prefix = self
            .prefixes
            .iter()
            .filter_map(|(&len, names)| names.get(key.get(..len)?));
        let by_tag = tags.iter().filter_map(|tag| self.tags.get(tag));
        let hits = by_prefix.chain(by_tag).chain([&self.floor]);
        let mut verdict = None;
        for hit in hits {
            match hit.verdict(born) {
                // A soft purge by one name must not save what a hard one by another has hit.
                Some(PurgeMode::Hard) => return Some(PurgeMode::Hard),
                Some(PurgeMode::Soft) => verdict = Some(PurgeMode::Soft),
                None => {}
            }
        }
        verdict
    }

    /// All purges as bytes, for the checkpoint.
    pub(crate) fn encode_all(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |scope, name: &[u8], newest: &PurgeSequences| {
            for (mode, sequence) in [
                (PurgeMode::Hard, newest.hard),
                (PurgeMode::Soft, newest.soft),
            ] {
                if sequence > 0 {
                    let meta = encode_purge(scope, mode, name);
                    out.extend_from_slice(&(meta.len() as u32).to_le_bytes());
                    out.extend_from_slice(&sequence.to_le_bytes());
                    out.extend_from_slice(&meta);
                }
            }
        };
        put(PurgeScope::All, &[], &self.floor);
        self.tags
            .iter()
            .for_each(|(name, newest)| put(PurgeScope::Tag, name, newest));
        let prefixes = self.prefixes.values().flatten();
        prefixes.for_each(|(name, newest)| put(PurgeScope::Prefix, name, newest));
        out
    }

    /// Forgets a purge that can hit nothing any more, unless there was a newer one of the name.
    pub(crate) fn expire(&mut self, scope: PurgeScope, name: &[u8], sequence: u64) {
        // The name may have been purged again since, by a record that still counts.
        let old = |newest: &PurgeSequences| newest.hard.max(newest.soft) <= sequence;
        match scope {
            PurgeScope::Tag if self.tags.get(name).is_some_and(old) => {
                self.tags.remove(name);
            }
            PurgeScope::Prefix => {
                if let Some(names) = self.prefixes.get_mut(&name.len()) {
                    if names.get(name).is_some_and(old) {
                        names.remove(name);
                    }
                    if names.is_empty() {
                        self.prefixes.remove(&name.len());
                    }
                }
            }
            // The floor is one number and stays.
            PurgeScope::Tag | PurgeScope::All => {}
        }
    }
}

/// The meta of a purge record: `u8 scope, u8 mode, name`.
pub(crate) fn encode_purge(scope: PurgeScope, mode: PurgeMode, name: &[u8]) -> Vec<u8> {
    let mut out = vec![scope as u8, u8::from(mode == PurgeMode::Soft)];
    out.extend_from_slice(name);
    out
}

/// Records what [`PurgeTable::encode_all`] gave; the highest sequence is the result.
pub(crate) fn decode_purges(mut bytes: &[u8], purges: &mut PurgeTable) -> u64 {
    let mut highest = 0;
    while let Some(head) = bytes.split_off(..12) {
        let (len, sequence) = (u32_at(head, 0), u64_at(head, 4));
        let Some((scope, mode, name)) = bytes.split_off(..len as usize).and_then(decode_purge)
        else {
            break;
        };
        purges.record(scope, name, mode, sequence);
        highest = highest.max(sequence);
    }
    highest
}

pub(crate) fn decode_purge(meta: &[u8]) -> Option<(PurgeScope, PurgeMode, &[u8])> {
    let (&[scope, mode], name) = meta.split_first_chunk::<2>()?;
    let scope = match scope {
        0 => PurgeScope::Tag,
        1 => PurgeScope::Prefix,
        2 => PurgeScope::All,
        _ => return None,
    };
    let mode = if mode == 0 {
        PurgeMode::Hard
    } else {
        PurgeMode::Soft
    };
    Some((scope, mode, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_born_before_is_hit() {
        let mut purges = PurgeTable::default();
        purges.record(PurgeScope::Prefix, b"/a/", PurgeMode::Soft, 10);
        purges.record(PurgeScope::Tag, b"t", PurgeMode::Hard, 20);
        let tag = [Bytes::from_static(b"t")];
        assert_eq!(purges.purge_mode(10, b"/a/b", &[]), Some(PurgeMode::Soft));
        assert_eq!(purges.purge_mode(11, b"/a/b", &[]), None);
        assert_eq!(purges.purge_mode(5, b"/a", &[]), None);
        assert_eq!(purges.purge_mode(5, b"/a/x", &tag), Some(PurgeMode::Hard));
        assert_eq!(purges.purge_mode(21, b"/a/x", &tag), None);
        purges.record(PurgeScope::All, b"", PurgeMode::Hard, 30);
        assert_eq!(purges.purge_mode(30, b"", &[]), Some(PurgeMode::Hard));
        purges.expire(PurgeScope::Tag, b"t", 20);
        assert_eq!(purges.purge_mode(31, b"/a/x", &tag), None);
    }

    #[test]
    fn at_the_bound_too_much_is_purged_not_too_little() {
        let mut purges = PurgeTable::default();
        for i in 0..=NAMES_MAX as u64 {
            purges.record(PurgeScope::Tag, &i.to_le_bytes(), PurgeMode::Hard, i + 1);
        }
        assert_eq!(purges.purge_mode(5, b"other", &[]), Some(PurgeMode::Hard));
        assert_eq!(purges.purge_mode(NAMES_MAX as u64 + 2, b"other", &[]), None);
    }
}
