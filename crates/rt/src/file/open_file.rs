//! An open file: reading, writing, and finding out which parts are in the page cache.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::{FileMetadata, ProbeClient, range_loads, residency};
use crate::pool::{DeviceNumber, PoolHandle};
use crate::report::{self, RuntimeEvent};

/// An open file (or directory). Clones share the descriptor; the last one closes it.
#[derive(Clone)]
pub struct File(Arc<FileDescription>, Option<Arc<dyn ReadCheck>>);

/// Verifies data that was just read from the device: see [`File::checked_by`].
pub trait ReadCheck: Send + Sync {
    /// Whether these bytes of the file are what was written; otherwise the error that the reader gets. Called on a
    /// thread of a pool, so it may block.
    fn check(&self, offset: u64, len: u64) -> io::Result<()>;
}

struct FileDescription {
    fd: OwnedFd,
    /// One of the `NOWAIT_` values.
    nowait: AtomicU8,
    /// Device and identity (a hash of device and inode); 0 until they are asked for.
    device: AtomicU64,
    identity: AtomicU64,
    /// It is read with `O_DIRECT`.
    direct: AtomicBool,
    /// The pool that does the last close; `None`: the thread that drops the last handle.
    closes_on: OnceLock<PoolHandle>,
}

impl Drop for FileDescription {
    fn drop(&mut self) {
        if let Some(pool) = self.closes_on.take()
            // The second descriptor keeps the file until the pool closes it. If there is none, the file is closed
            // here.
            && let Ok(second) = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
        {
            let device = DeviceNumber(*self.device.get_mut());
            pool.submit(device, Box::new(move || drop(second)));
        }
    }
}

/// The alignment of `O_DIRECT` reads in position, length and memory, which suits every common device.
const DIRECT_ALIGNMENT: usize = 4096;

/// `RWF_NOWAIT` works, as far as is known.
const NOWAIT_WORKS: u8 = 0;
/// The file system refuses it: reads go to a pool.
const NOWAIT_REFUSED: u8 = 1;
/// The file system refuses it, but its files are in memory anyway.
const NOWAIT_NEEDLESS: u8 = 2;

/// The kernel refuses `preadv2(RWF_NOWAIT)` altogether.
static REFUSED: AtomicBool = AtomicBool::new(false);

impl File {
    /// Takes an open descriptor.
    pub fn from_fd(fd: OwnedFd) -> Self {
        let inner = FileDescription {
            fd,
            nowait: AtomicU8::new(NOWAIT_WORKS),
            device: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            direct: AtomicBool::new(false),
            closes_on: OnceLock::new(),
        };
        Self(Arc::new(inner), None)
    }

    /// The same file with verification: data that is read or loaded through this clone and comes from the device is
    /// passed to `check`. Data that is in memory already is not.
    pub fn checked_by(&self, check: Arc<dyn ReadCheck>) -> Self {
        Self(Arc::clone(&self.0), Some(check))
    }

    pub(super) fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match &self.1 {
            Some(check) => check.check(offset, len),
            None => Ok(()),
        }
    }

    /// From now on the file is read with `O_DIRECT`, past the page cache, and always on a pool. Fails where the
    /// file system does not support that; the file then stays as it was.
    pub fn set_direct(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self)?;
        rustix::fs::fcntl_setfl(self, flags | OFlags::DIRECT)?;
        self.0.direct.store(true, Relaxed);
        Ok(())
    }

    /// Tells the kernel that the file will be read from start to end, so that it reads further ahead. Does not
    /// block.
    pub fn read_sequentially(&self) {
        // Advice: a failure changes nothing.
        let _ = rustix::fs::fadvise(self, 0, None, Advice::Sequential);
    }

    /// Tells the kernel that the file will be read in no particular order, so that it reads nothing but what is
    /// asked for. Does not block.
    pub fn read_randomly(&self) {
        // Advice: a failure changes nothing.
        let _ = rustix::fs::fadvise(self, 0, None, Advice::Random);
    }

    /// Whether it is read with `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.0.direct.load(Relaxed)
    }

    /// `fstat`: of an open file it is in memory (but for network file systems, where it may ask the
    /// server).
    pub fn metadata(&self) -> io::Result<FileMetadata> {
        let metadata = FileMetadata::of(&rustix::fs::fstat(self)?);
        let identity = metadata.ino ^ metadata.dev.rotate_left(40);
        self.0.device.store(metadata.dev, Relaxed);
        self.0.identity.store(identity.max(1), Relaxed);
        Ok(metadata)
    }

    /// Its device, which selects the queue within a pool.
    pub fn device(&self) -> DeviceNumber {
        self.learn(&self.0.device);
        DeviceNumber(self.0.device.load(Relaxed))
    }

    pub(super) fn identity(&self) -> u64 {
        self.learn(&self.0.identity);
        self.0.identity.load(Relaxed)
    }

    fn learn(&self, known: &AtomicU64) {
        if known.load(Relaxed) == 0 {
            // A failure leaves the device unknown, and the file gets the queue for unknown devices.
            let _asked_again_next_time = self.metadata();
        }
    }

    /// Copies from the page cache, from `offset` on, as much as is there. `WouldBlock` if nothing is there or it
    /// cannot be determined. A short count means only that what follows is not in memory or that the file ends; 0
    /// is the end of the file.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(flags) = self.nowait_flags() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        match rustix::io::preadv2(self, &mut [IoSliceMut::new(buf)], offset, flags) {
            Ok(n) => Ok(n),
            Err(error) => self.read_failed(error, |file| file.try_read_at(buf, offset)),
        }
    }

    /// As [`File::try_read_at`], appending at most `max` bytes to `out`.
    pub fn try_read_into(&self, out: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        let Some(flags) = self.nowait_flags() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let Ok(position) = i64::try_from(offset) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        out.reserve(max);
        let vector = libc::iovec {
            iov_base: out.spare_capacity_mut().as_mut_ptr().cast(),
            iov_len: max,
        };
        // SAFETY: the descriptor is open while `self` lives, and `vector` names `max` bytes of memory that `out`
        // owns and no other code uses: `reserve` made sure of that many bytes beyond its length.
        // JUSTIFICATION: rustix has `preadv2` for initialised memory only. Zeroing 10 KB for each response of that
        // size costs 150 ns, a tenth of what the call itself does.
        let read = unsafe {
            let fd = self.as_fd().as_raw_fd();
            libc::preadv2(fd, &vector, 1, position, flags.bits() as i32)
        };
        match usize::try_from(read) {
            Ok(n) => {
                // SAFETY: the call has written the first `n <= max` bytes of the spare capacity.
                // JUSTIFICATION: as above.
                unsafe { out.set_len(out.len() + n) };
                Ok(n)
            }
            Err(_) => {
                let error = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
                self.read_failed(error, |file| file.try_read_into(out, max, offset))
            }
        }
    }

    /// The flags for a read that does not block; `None` if there is no such read.
    fn nowait_flags(&self) -> Option<ReadWriteFlags> {
        match self.0.nowait.load(Relaxed) {
            _ if self.is_direct() => None,
            NOWAIT_NEEDLESS => Some(ReadWriteFlags::empty()),
            NOWAIT_WORKS if !REFUSED.load(Relaxed) => Some(ReadWriteFlags::NOWAIT),
            _ => None,
        }
    }

    /// Interprets a failed nowait read; `again` gives the flags for another try, if there is one.
    #[cold]
    fn read_failed(
        &self,
        error: Errno,
        again: impl FnOnce(&Self) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match error {
            Errno::AGAIN | Errno::INTR => Err(io::ErrorKind::WouldBlock.into()),
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL => {
                self.nowait_failed(error);
                match self.never_waits() {
                    true => again(self),
                    false => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
            error => Err(error.into()),
        }
    }

    fn nowait_failed(&self, error: Errno) {
        if matches!(error, Errno::NOSYS | Errno::PERM) {
            self.0.nowait.store(NOWAIT_REFUSED, Relaxed);
            if !REFUSED.swap(true, Relaxed) {
                report::report_event(&RuntimeEvent::Unsupported {
                    call: "preadv2(RWF_NOWAIT)",
                    error: &error.into(),
                    instead: "every read goes to a thread pool",
                });
            }
            return;
        }
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        let in_memory = rustix::fs::fstatfs(self)
            .is_ok_and(|system| matches!(system.f_type as u64, TMPFS | RAMFS));
        self.0.nowait.store(
            if in_memory {
                NOWAIT_NEEDLESS
            } else {
                NOWAIT_REFUSED
            },
            Relaxed,
        );
    }

    /// The file system keeps its files in memory but has no nowait read: files are read at once, on the loop.
    pub(super) fn never_waits(&self) -> bool {
        self.0.nowait.load(Relaxed) == NOWAIT_NEEDLESS
    }

    /// Reads `len` bytes from `offset` on, fewer only at the end of the file, and appends them to `buf`, which is
    /// returned. What is in memory is read at once, the rest on the pool.
    pub async fn read_at(
        &self,
        mut buf: Vec<u8>,
        offset: u64,
        len: usize,
        pool: &PoolHandle,
    ) -> io::Result<Vec<u8>> {
        let begin = buf.len();
        buf.resize(begin + len, 0);
        let mut done = 0;
        if self.is_direct() {
            let file = self.clone();
            buf.truncate(begin);
            return pool
                .run_on(self.device(), move || read_direct(&file, buf, offset, len))
                .await;
        }
        while done < len {
            match self.try_read_at(&mut buf[begin + done..], offset + done as u64) {
                Ok(0) => {
                    buf.truncate(begin + done);
                    return Ok(buf);
                }
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if done == len {
            return Ok(buf);
        }
        let file = self.clone();
        pool.run_on(self.device(), move || {
            let n = read_full(&file, &mut buf[begin + done..], offset + done as u64)?;
            file.check(offset + done as u64, n as u64)?;
            buf.truncate(begin + done + n);
            Ok(buf)
        })
        .await
    }

    /// How many bytes from `offset` on, at most `max`, are in memory, so that `sendfile` of them does not
    /// wait for the disk. A range past the end of the file counts as there.
    pub fn resident_prefix(&self, offset: u64, max: u64) -> u64 {
        match self.never_waits() {
            true => max,
            false => residency::resident_prefix(self, offset, max, ProbeClient::Same),
        }
    }

    /// As [`File::resident_prefix`], and says whether it is asked for another client: a range that many clients
    /// take is in use and need not be probed each time. While files are being loaded, the answer ends at the first
    /// block of 128 KB that is not locked into memory; the caller sends that much before it asks about the next.
    pub fn resident_prefix_for(&self, client: ProbeClient, offset: u64, max: u64) -> u64 {
        if self.never_waits() {
            return max;
        }
        residency::resident_prefix(
            self,
            offset,
            residency::asked_at_once(self, offset, max),
            client,
        )
    }

    /// Whether [`File::resident_prefix`] works for this file, as far as is known. Some file systems, such as
    /// overlayfs, cannot tell: nothing of their files counts as in memory.
    pub fn tells_residency(&self) -> bool {
        self.0.nowait.load(Relaxed) != NOWAIT_REFUSED && !REFUSED.load(Relaxed)
    }

    /// Loads a range into the page cache, on the pool. The device also starts to read some of the `rest` bytes
    /// after it, which will be wanted next and which nothing waits for. Requests for a range that is being loaded
    /// join the same job, which then runs before jobs that only one client waits for. The kernel guarantees
    /// nothing: ask [`File::resident_prefix`] again before `sendfile`, and have another way if the range is gone
    /// (and report that with [`File::note_evicted`]).
    pub async fn load_range(
        &self,
        offset: u64,
        len: u64,
        rest: u64,
        pool: &PoolHandle,
    ) -> io::Result<()> {
        range_loads::load_shared(self, offset, len, rest, pool).await
    }

    /// Reports that a range that was just loaded is no longer in memory: memory is so short that nothing is read
    /// ahead for a second.
    pub fn note_evicted(&self) {
        residency::note_evicted();
    }

    /// Tells the kernel that a range will be needed soon, so that it reads it when it can. The call may block for a
    /// place in the device's queue, so it runs on the pool.
    pub fn will_need(&self, offset: u64, len: u64, pool: &PoolHandle) {
        let file = self.clone();
        pool.submit(
            self.device(),
            Box::new(move || {
                // Advice: a failure changes nothing.
                let _ = rustix::fs::fadvise(&file, offset, NonZeroU64::new(len), Advice::WillNeed);
            }),
        );
    }

    /// Writes all of `buf` at `offset`, on the pool; gives the buffer back.
    pub async fn write_all_at(
        &self,
        buf: Vec<u8>,
        offset: u64,
        pool: &PoolHandle,
    ) -> io::Result<Vec<u8>> {
        let file = self.clone();
        pool.run_on(self.device(), move || {
            write_full(&file, &buf, offset)?;
            Ok(buf)
        })
        .await
    }

    /// Cuts or extends the file, on the pool.
    pub async fn set_len(&self, len: u64, pool: &PoolHandle) -> io::Result<()> {
        let file = self.clone();
        pool.run_on(self.device(), move || {
            Ok(rustix::fs::ftruncate(&file, len)?)
        })
        .await
    }

    /// Waits until contents (and `metadata` too, if told) are on the disk, on the pool.
    pub async fn sync(&self, metadata: bool, pool: &PoolHandle) -> io::Result<()> {
        let file = self.clone();
        pool.run_on(self.device(), move || {
            let synced = if metadata {
                rustix::fs::fsync(&file)
            } else {
                rustix::fs::fdatasync(&file)
            };
            Ok(synced?)
        })
        .await
    }

    /// Lets the pool close the file, whichever thread drops the last clone: the last close of an unlinked file
    /// frees its blocks, which takes long for a large one.
    pub fn close_on(&self, pool: &PoolHandle) {
        // A later call does not change the pool.
        let _ = self.0.closes_on.set(pool.clone());
    }
}

/// Reads until `buf` is full or the file ends. Blocks.
fn read_full(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(file, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// Appends `len` bytes, fewer at the end of the file, from aligned blocks around the wanted range. Blocks.
fn read_direct(file: &File, mut buf: Vec<u8>, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let skip = (offset % DIRECT_ALIGNMENT as u64) as usize;
    let blocks = (skip + len).next_multiple_of(DIRECT_ALIGNMENT);
    // A vector cannot be allocated with an alignment, so it is larger and the read starts at an aligned place
    // within it.
    let mut scratch = vec![0; blocks + DIRECT_ALIGNMENT];
    let shift = scratch.as_ptr().align_offset(DIRECT_ALIGNMENT);
    let aligned = &mut scratch[shift..shift + blocks];
    let start = offset - skip as u64;
    let mut done = 0;
    while done < blocks {
        match rustix::io::pread(file, &mut aligned[done..], start + done as u64) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                // A read that does not end at a block boundary has reached the end of the file. Another read would
                // not be aligned.
                if !n.is_multiple_of(DIRECT_ALIGNMENT) {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    buf.extend_from_slice(&aligned[skip.min(done)..done.min(skip + len)]);
    Ok(buf)
}

/// Writes all of `buf`. Blocks.
fn write_full(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pwrite(file, &buf[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("File").field(&self.0.fd).finish()
    }
}
