//! A compressed copy of a stored response, beside it in the store: its key and the format of its head.
//!
//! ```text
//!  0  u8   0xC0, which begins no head of a response
//!  1  u64  the length of the body that it is a copy of, little-endian
//! ```
//!
//! The key contains the birth of the object, so that the copies of one that was replaced or purged are never found; they
//! leave with the segments that they are in. Tags are those of the object.

use bytes::Bytes;
use cache::{CacheKey, CachedObject};

const COPY: u8 = 0xC0;

/// The head of a compressed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyHead {
    /// The length of the body that it is a copy of, in bytes.
    pub original: u64,
}

impl CopyHead {
    /// The key of a copy of `object`; `made` says how the copy was made.
    pub fn key_of(object: &CachedObject, made: &[u8]) -> CacheKey {
        // Values of variants begin otherwise, and the birth is no marker's.
        let values = [b"\0compressed\0", made].concat();
        object.key().variant_of(object.born(), &values)
    }

    /// As the store keeps it.
    pub fn encode(self) -> Bytes {
        let mut out = vec![COPY];
        out.extend_from_slice(&self.original.to_le_bytes());
        out.into()
    }

    /// Of the bytes that the store kept; `None` if they are those of something else.
    pub fn decode(bytes: &[u8]) -> Option<CopyHead> {
        let original = bytes.strip_prefix(&[COPY])?.try_into().ok()?;
        Some(CopyHead {
            original: u64::from_le_bytes(original),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_back_and_nothing_else_is() {
        let head = CopyHead { original: 150_000 };
        assert_eq!(CopyHead::decode(&head.encode()), Some(head));
        let bytes = head.encode();
        for length in 0..bytes.len() {
            assert_eq!(CopyHead::decode(&bytes[..length]), None);
        }
        assert_eq!(CopyHead::decode(&[1; 9]), None);
        assert_eq!(CopyHead::decode(&[0xC0; 10]), None);
    }
}
