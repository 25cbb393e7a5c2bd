//! The 64-bit checksum of everything on disk and the hash of keys: XXH64, whose values are part of the format.
//!
//! A torn write must be noticed at the speed of a memory copy, because every body that is read is checked. It does not
//! protect against those who can write to the disk, nor need it: they can write whole valid records.

use twox_hash::XxHash64;

/// The checksum of `data` under `seed`.
pub(crate) fn xxh64(data: &[u8], seed: u64) -> u64 {
    XxHash64::oneshot(seed, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other values would make every store on a disk unreadable.
    #[test]
    fn published_values() {
        assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
    }

    /// Made by the function that was written by hand here, before a library took its place.
    #[test]
    fn values_of_earlier_stores() {
        for (len, sum) in [
            (7usize, 0xc4ab_87ab_6a49_8222),
            (31, 0xfb00_cab7_426b_0929),
            (32, 0xe860_6f28_c881_311a),
            (100, 0xa2ab_dc09_666c_4d54),
            (5000, 0x8326_4255_de6c_9d59),
        ] {
            let data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            assert_eq!(xxh64(&data, 0x5eed), sum, "{len} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_changes_it() {
        for len in 0..100usize {
            let mut data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let sum = xxh64(&data, 1);
            for bit in 0..len * 8 {
                data[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(xxh64(&data, 1), sum);
                data[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
