//! The format of the note that is kept beside a store: see [`crate::store_note`].
//!
//! ```text
//! two slots of SLOT bytes, of which the valid one with the higher number counts
//!  0 u64 magic "WeirNot2"   8 u64 seed   16 u64 number   24 u32 length of the note   28 u32 length of the claim
//! 32 the note, the claim    u64 checksum of all before
//! ```
//!
//! A slot is overwritten in its place, the older one each time: so a write that is torn leaves the other one, and the file
//! system has nothing of its own to write. A file of the former version has the note alone, `WeirNot1`, seed, note, checksum.

use std::fs;
use std::path::Path;

use crate::checksum::xxh64;
use crate::format::{u32_at, u64_at};

const NOTE_MAGIC: u64 = u64::from_le_bytes(*b"WeirNot2");
const NOTE_HEADER: usize = 32;
const FORMER_MAGIC: u64 = u64::from_le_bytes(*b"WeirNot1");
const FORMER_HEADER: usize = 16;

/// The longest note and the longest claim, in bytes.
pub(crate) const NOTE_MAX: usize = 4096;

/// The length of a slot: for both of them, in whole blocks of a disk.
pub(crate) const SLOT: usize = 3 * 4096;

/// A note and what was claimed since: both are on the disk together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotePair {
    /// How many were written before.
    pub(crate) number: u64,
    /// Everything before it is on the disk.
    pub(crate) kept: Option<Vec<u8>>,
    /// Others have been told this one.
    pub(crate) claimed: Option<Vec<u8>>,
}

impl NotePair {
    /// Reads those of the store at `path`; what is damaged or of another store is none. Blocks.
    pub(crate) fn read(path: &Path, seed: u64) -> NotePair {
        let bytes = fs::read(path.join("note")).unwrap_or_default();
        NotePair::decode(&bytes, seed)
    }

    fn decode(bytes: &[u8], seed: u64) -> NotePair {
        if let Some(kept) = decode_former(bytes, seed) {
            return NotePair {
                kept: Some(kept),
                ..NotePair::default()
            };
        }
        let slots = bytes.chunks(SLOT).take(2);
        let valid = slots.filter_map(|slot| decode_slot(slot, seed));
        valid.max_by_key(|pair| pair.number).unwrap_or_default()
    }

    /// The slot's bytes, and where they stand in the file.
    pub(crate) fn encode(&self, seed: u64) -> (Vec<u8>, u64) {
        let kept = self.kept.as_deref().unwrap_or_default();
        let claimed = self.claimed.as_deref().unwrap_or_default();
        let mut bytes = NOTE_MAGIC.to_le_bytes().to_vec();
        bytes.extend_from_slice(&seed.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&(kept.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(claimed.len() as u32).to_le_bytes());
        bytes.extend_from_slice(kept);
        bytes.extend_from_slice(claimed);
        let sum = xxh64(&bytes, seed);
        bytes.extend_from_slice(&sum.to_le_bytes());
        (bytes, self.number % 2 * SLOT as u64)
    }
}

fn decode_slot(slot: &[u8], seed: u64) -> Option<NotePair> {
    let head = slot.get(..NOTE_HEADER)?;
    if u64_at(head, 0) != NOTE_MAGIC || u64_at(head, 8) != seed {
        return None;
    }
    let (kept, claimed) = (u32_at(head, 24) as usize, u32_at(head, 28) as usize);
    if kept > NOTE_MAX || claimed > NOTE_MAX {
        return None;
    }
    let (content, rest) = slot.split_at_checked(NOTE_HEADER + kept + claimed)?;
    let sum = rest.first_chunk::<8>()?;
    if xxh64(content, seed) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (kept, claimed) = content[NOTE_HEADER..].split_at(kept);
    let text = |text: &[u8]| (!text.is_empty()).then(|| text.to_vec());
    Some(NotePair {
        number: u64_at(head, 16),
        kept: text(kept),
        claimed: text(claimed),
    })
}

fn decode_former(bytes: &[u8], seed: u64) -> Option<Vec<u8>> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    let is_whole = content.len() >= FORMER_HEADER
        && content.len() <= FORMER_HEADER + NOTE_MAX
        && xxh64(content, seed) == u64::from_le_bytes(*sum);
    let is_ours = is_whole && u64_at(content, 0) == FORMER_MAGIC && u64_at(content, 8) == seed;
    is_ours.then(|| content[FORMER_HEADER..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u64, kept: &[u8], claimed: &[u8]) -> NotePair {
        NotePair {
            number,
            kept: Some(kept.to_vec()),
            claimed: Some(claimed.to_vec()),
        }
    }

    fn written(file: &mut [u8], pair: &NotePair, seed: u64) {
        let (bytes, at) = pair.encode(seed);
        let at = usize::try_from(at).expect("it is a small number");
        file[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    #[test]
    fn the_newer_valid_slot_counts() {
        let mut file = vec![0; 2 * SLOT];
        assert_eq!(NotePair::decode(&file, 7), NotePair::default());
        written(&mut file, &pair(1, b"v1 1-0", b"v1 2-0"), 7);
        written(&mut file, &pair(2, b"v1 1-0", b"v1 3-0"), 7);
        assert_eq!(NotePair::decode(&file, 7), pair(2, b"v1 1-0", b"v1 3-0"));
        assert_eq!(
            NotePair::decode(&file, 8),
            NotePair::default(),
            "another store's"
        );
        let (bytes, at) = pair(2, b"v1 1-0", b"v1 3-0").encode(7);
        assert_eq!(at, 0);
        for torn in 0..bytes.len() {
            let mut other = file.clone();
            other[torn] ^= 1;
            assert_eq!(
                NotePair::decode(&other, 7),
                pair(1, b"v1 1-0", b"v1 2-0"),
                "{torn}"
            );
        }
        let long = pair(3, &[b'x'; NOTE_MAX], &[b'y'; NOTE_MAX]);
        written(&mut file, &long, 7);
        assert_eq!(NotePair::decode(&file, 7), long);
        // A file that was cut: the first slot has the second note.
        for (length, number) in [(0, 0), (NOTE_HEADER, 0), (SLOT - 1, 2), (SLOT + 1, 2)] {
            let left = NotePair::decode(&file[..length], 7);
            assert_eq!(left.number, number, "{length}");
        }
    }

    #[test]
    fn a_note_of_the_former_version_is_read() {
        let mut bytes = FORMER_MAGIC.to_le_bytes().to_vec();
        bytes.extend_from_slice(&7_u64.to_le_bytes());
        bytes.extend_from_slice(b"v1 1-0");
        let sum = xxh64(&bytes, 7);
        bytes.extend_from_slice(&sum.to_le_bytes());
        assert_eq!(
            NotePair::decode(&bytes, 7).kept.as_deref(),
            Some(&b"v1 1-0"[..])
        );
        assert_eq!(NotePair::decode(&bytes, 8), NotePair::default());
    }
}
