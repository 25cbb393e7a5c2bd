//! The hashes whose results a user can see, so that they must be the ones nginx uses.
//!
//! A site that moves from nginx keeps its split of clients (`split_clients`) and its choice of upstream
//! servers (`hash`), because the same text gives the same number here. For maps inside the server use the
//! standard hasher: none of these resists a chosen input.

/// MurmurHash2, 32 bits, seed 0: what `split_clients` divides clients by.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    // The algorithm is defined on a 32-bit length; longer input wraps, as it does in nginx.
    let mut hash = data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        for (i, &byte) in rest.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// CRC-32 (IEEE 802.3, reflected) of `data`: `hash` of an upstream group, file names in a cache, `$request_id` seeds.
///
/// nginx has a "short" and a "long" form, which trade table size for speed and give the same number.
pub fn crc32(data: &[u8]) -> u32 {
    let mut crc = Crc32::new();
    crc.update(data);
    crc.finish()
}

/// A CRC-32 over pieces: `update` for each piece, then `finish`.
#[derive(Clone, Copy, Debug)]
pub struct Crc32(u32);

impl Crc32 {
    /// The state before the first byte.
    pub const fn new() -> Crc32 {
        Crc32(u32::MAX)
    }

    /// Takes the next piece.
    pub fn update(&mut self, data: &[u8]) {
        self.0 = data.iter().fold(self.0, |crc, &byte| {
            CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8)
        });
    }

    /// The checksum of all pieces so far; more may follow.
    pub fn finish(self) -> u32 {
        self.0 ^ u32::MAX
    }
}

impl Default for Crc32 {
    fn default() -> Self {
        Crc32::new()
    }
}

/// One row per byte value, computed at compile time from the reflected polynomial.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_has_the_check_value_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn crc32_of_pieces_is_the_crc32_of_the_whole() {
        let mut crc = Crc32::new();
        crc.update(b"1234");
        crc.update(b"");
        crc.update(b"56789");
        assert_eq!(crc.finish(), crc32(b"123456789"));
    }

    #[test]
    fn murmur2_matches_published_vectors() {
        // Vectors of MurmurHash2 with seed 0, one per length of the tail.
        assert_eq!(murmur2(b""), 0);
        assert_eq!(murmur2(b"a"), 0x9268_5f5e);
        assert_eq!(murmur2(b"abcd"), 0x2687_3021);
    }
}
