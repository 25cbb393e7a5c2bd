//! The 64-bit checksum of everything on disk and the hash of keys: the XXH64 function.
//!
//! A torn write must be noticed at the speed of a memory copy, because every body that is read is checked.
//! CRC-32 by tables makes 0.4 GB/s, this makes more than ten times that without `unsafe`. It does not
//! resist somebody who can write to the disk, nor need it: such a person can write whole valid records.

const P1: u64 = 0x9e37_79b1_85eb_ca87;
const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const P3: u64 = 0x1656_67b1_9e37_79f9;
const P4: u64 = 0x85eb_ca77_c2b2_ae63;
const P5: u64 = 0x27d4_eb2f_1656_67c5;

/// The checksum of `data` under `seed`.
pub(crate) fn xxh64(data: &[u8], seed: u64) -> u64 {
    let mut stripes = data.chunks_exact(32);
    let mut hash = if data.len() >= 32 {
        let mut lanes = [
            seed.wrapping_add(P1).wrapping_add(P2),
            seed.wrapping_add(P2),
            seed,
            seed.wrapping_sub(P1),
        ];
        for stripe in &mut stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
                *lane = round(*lane, read_u64(word));
            }
        }
        let [a, b, c, d] = lanes;
        let sum = a
            .rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18));
        lanes.iter().fold(sum, |hash, &lane| {
            (hash ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4)
        })
    } else {
        seed.wrapping_add(P5)
    };
    hash = hash.wrapping_add(data.len() as u64);
    finish(hash, stripes.remainder())
}

/// Takes the last bytes, fewer than 32, and mixes.
fn finish(mut hash: u64, rest: &[u8]) -> u64 {
    let mut words = rest.chunks_exact(8);
    for word in &mut words {
        hash = (hash ^ round(0, read_u64(word))).rotate_left(27);
        hash = hash.wrapping_mul(P1).wrapping_add(P4);
    }
    let mut rest = words.remainder();
    if let Some((word, after)) = rest.split_first_chunk::<4>() {
        hash ^= u64::from(u32::from_le_bytes(*word)).wrapping_mul(P1);
        hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        rest = after;
    }
    for &byte in rest {
        hash ^= u64::from(byte).wrapping_mul(P5);
        hash = hash.rotate_left(11).wrapping_mul(P1);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(P2);
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(P3);
    hash ^ (hash >> 32)
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2))
        .rotate_left(31)
        .wrapping_mul(P1)
}

fn read_u64(word: &[u8]) -> u64 {
    word.first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
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
