//! Numbers in memory that a process shares with those that it forks.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

/// Counters that begin at zero and are the same memory in this process and in all that it forks afterwards.
pub struct SharedCounters {
    start: NonNull<AtomicU64>,
    length: usize,
}

// SAFETY: what is behind the pointer are atomics, which any thread may use through a shared reference; the mapping
// itself is changed by `drop` only, which nothing else can run beside.
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// A mapping with this number of counters.
    pub fn new(length: usize) -> io::Result<SharedCounters> {
        let bytes = size_of::<AtomicU64>() * length.max(1);
        // SAFETY: an anonymous mapping at an address that the kernel chooses touches no memory that is in use. It is
        // aligned to a page and filled with zeros, which are valid atomics.
        // JUSTIFICATION: processes that must agree on a number without a message have no other place for it, and the
        // standard library has no shared memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedCounters { start, length })
    }

    /// All counters.
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has room for `length` atomics, is aligned and initialised, and lives as long as `self`.
        // JUSTIFICATION: see `new`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        let bytes = size_of::<AtomicU64>() * self.length.max(1);
        // SAFETY: the range is the mapping that `new` made, and no reference into it outlives `self`.
        // JUSTIFICATION: a master makes one for each batch of workers, and must not keep them all.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
        // It can fail only for an address that is none.
        let _ = unmapped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn counters_begin_at_zero_and_keep_what_is_stored() {
        let counters = SharedCounters::new(600).expect("memory");
        assert!(counters.all().iter().all(|one| one.load(Relaxed) == 0));
        counters.all()[599].store(7, Relaxed);
        assert_eq!(counters.all()[599].load(Relaxed), 7);
        assert_eq!(counters.all().len(), 600);
    }
}
