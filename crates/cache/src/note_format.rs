//! The format of the note that is kept beside a store: see [`crate::store_note`].
//!
//! ```text
//! 0 u64 magic "WeirNot1"   8 u64 seed   16 the note   u64 checksum of all before
//! ```

use std::fs;
use std::path::Path;

use crate::checksum::xxh64;
use crate::format::u64_at;

const NOTE_MAGIC: u64 = u64::from_le_bytes(*b"WeirNot1");
const NOTE_HEADER: usize = 16;

/// The longest note, in bytes.
pub(crate) const NOTE_MAX: usize = 4096;

/// The note, and what has to be on the disk before the next one is.
#[derive(Debug, Default)]
pub(crate) struct StoreNote {
    pub(crate) text: Option<Vec<u8>>,
    /// The segments that were being written when the last note was: they may have been finished since.
    pub(crate) unsynced: Vec<u32>,
}

impl StoreNote {
    /// Reads the note of the store at `path`; one that is damaged or of another store is none. Blocks.
    pub(crate) fn read(path: &Path, seed: u64) -> StoreNote {
        let text = fs::read(path.join("note"))
            .ok()
            .and_then(|bytes| decode(&bytes, seed));
        StoreNote {
            text,
            unsynced: Vec::new(),
        }
    }
}

fn decode(bytes: &[u8], seed: u64) -> Option<Vec<u8>> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    let is_whole = content.len() >= NOTE_HEADER
        && content.len() <= NOTE_HEADER + NOTE_MAX
        && xxh64(content, seed) == u64::from_le_bytes(*sum);
    let is_ours = is_whole && u64_at(content, 0) == NOTE_MAGIC && u64_at(content, 8) == seed;
    is_ours.then(|| content[NOTE_HEADER..].to_vec())
}

pub(crate) fn encode(text: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = NOTE_MAGIC.to_le_bytes().to_vec();
    bytes.extend_from_slice(&seed.to_le_bytes());
    bytes.extend_from_slice(text);
    let sum = xxh64(&bytes, seed);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_by_its_own_store_only() {
        let bytes = encode(b"v1 1-0", 7);
        assert_eq!(decode(&bytes, 7).as_deref(), Some(&b"v1 1-0"[..]));
        assert_eq!(decode(&bytes, 8), None);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(decode(&other, 7), None);
            assert_eq!(decode(&bytes[..at], 7), None);
        }
        assert_eq!(decode(&encode(b"", 7), 7).as_deref(), Some(&b""[..]));
    }
}
