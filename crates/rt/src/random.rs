//! Randomness from the kernel, taken here and nowhere else.
//!
//! Everything above this crate that needs a random choice or a secret asks here (`cargo xtask tidy` checks it), so
//! that a simulation with a seed replaces this file (docs/design/2026-11-23-time-and-chance.md). The randomness of
//! a TLS handshake comes from rustls's provider, which can be replaced in the same way.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The keys of a hash by which a client cannot choose the place of an entry: each has its own.
#[cfg(not(feature = "simulation"))]
pub use std::hash::RandomState;

#[cfg(feature = "simulation")]
pub use crate::simulation::chance::RandomState;

/// Fills `bytes` with random ones, good enough for keys. Errors: the kernel has no such call, or refuses it here.
pub fn fill(mut bytes: &mut [u8]) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    if crate::simulation::chance::fill(bytes) {
        return Ok(());
    }
    while !bytes.is_empty() {
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            // A long request may be cut short by a signal.
            Ok(filled) => bytes = &mut bytes[filled..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A random number, all with the same chance.
pub fn number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_filled() {
        // The kernel gives at most 32 MB less one byte at once.
        let mut bytes = vec![0; (32 << 20) + 64];
        fill(&mut bytes).expect("every kernel has it");
        let is_random = |part: &[u8]| part.iter().any(|byte| *byte != 0);
        assert!(is_random(&bytes[..64]));
        assert!(is_random(&bytes[(32 << 20)..]));
    }

    #[test]
    fn numbers_differ() {
        assert_ne!(number().expect("it works"), number().expect("it works"));
    }
}
