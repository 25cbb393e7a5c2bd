//! Numbers in memory that a process shares with those that it forks, or to which it passes a descriptor.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Nobody can change the size any more.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

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

    /// The same, with a descriptor by which other processes can have them. Only the owner of this process may open it by
    /// another name (such as in `/proc`), and nobody can change its size, on which all who have it mapped rely.
    pub fn with_file(name: &str, length: usize) -> io::Result<(SharedCounters, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&file, (size_of::<AtomicU64>() * length.max(1)) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SIZE_SEALS | SealFlags::SEAL)?;
        let counters = SharedCounters::of_file(file.as_fd(), length)?;
        Ok((counters, file))
    }

    /// Those behind a descriptor that [`SharedCounters::with_file`] has made, in this process or in another one.
    pub fn of_file(file: BorrowedFd<'_>, length: usize) -> io::Result<SharedCounters> {
        let bytes = size_of::<AtomicU64>() * length.max(1);
        let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        // Without the seals another process could shorten it, and the next access would end this one (SIGBUS).
        let is_sealed = rustix::fs::fcntl_get_seals(file)?.contains(SIZE_SEALS);
        if size != bytes as u64 || !is_sealed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a shared mapping at an address that the kernel chooses touches no memory that is in use. It is aligned
        // to a page, as long as the file, which cannot become shorter (checked above), and any bytes are valid atomics.
        // JUSTIFICATION: see `new`; a reader that is no child of the server has no other way.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
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

    #[test]
    fn a_descriptor_is_enough_to_have_them_and_no_file_of_another_kind_is_taken() {
        let (ours, file) = SharedCounters::with_file("test", 70).expect("memory");
        let theirs = SharedCounters::of_file(file.as_fd(), 70).expect("the same");
        ours.all()[69].store(5, Relaxed);
        assert_eq!(theirs.all()[69].load(Relaxed), 5);
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(SharedCounters::of_file(file.as_fd(), 71).is_err());
        let plain = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&plain, 560).expect("it grows");
        assert!(SharedCounters::of_file(plain.as_fd(), 70).is_err());
    }
}
