//! Chance by the simulation's seed, for everything that asks `rt::random`, and for the maps of the standard library.

use std::hash::{BuildHasher, DefaultHasher, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::clock;

static STATE: AtomicU64 = AtomicU64::new(0);

pub(super) fn start(seed: u64) {
    STATE.store(seed ^ 0x5eed, Relaxed);
}

fn mix(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The next number.
pub(crate) fn number() -> u64 {
    mix(STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
}

/// Fills `bytes`, if chance is simulated.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    let runs = clock::is_running();
    if runs {
        for chunk in bytes.chunks_mut(8) {
            let number = number().to_ne_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
    runs
}

/// In place of the standard library's type of this name: keys by the seed.
#[derive(Clone, Debug)]
pub struct RandomState(u64);

impl RandomState {
    /// New keys.
    pub fn new() -> RandomState {
        RandomState(number())
    }
}

impl Default for RandomState {
    fn default() -> RandomState {
        RandomState::new()
    }
}

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// The C library's function, as the standard library calls it for the keys of its maps, and libraries for their own dice. A
/// thread of the simulation gets what follows from the seed; others, several of which may run at a time, the same bytes in each
/// run, so that the order of a map is the same.
///
/// # Safety
/// As `getrandom(2)`: `buffer` has room for `length` bytes.
// SAFETY: the name is that of the C library, with its signature and its meaning, so that each caller gets what it expects.
// JUSTIFICATION: the keys of `HashMap` cannot be set otherwise, and 83 places have one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if !clock::is_running() {
        // SAFETY: the arguments are the caller's, passed on as they are.
        // JUSTIFICATION: as above.
        return unsafe {
            libc::syscall(libc::SYS_getrandom, buffer, length, flags) as libc::ssize_t
        };
    }
    // SAFETY: the caller promises room for `length` bytes; they are written only.
    // JUSTIFICATION: as above.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    if !super::schedule::has_turn() || !fill(bytes) {
        bytes.fill(0x42);
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
