//! Locks blocks of files that are in use into memory while other files are read from disks.
//!
//! When memory is short, the kernel drops even pages that many clients are being sent, and they come back only
//! after everything else that the disk has to do. So a limited number of blocks in use are mapped and locked
//! (`mlock`), until no request has wanted them for [`IDLE_TICKS`]. The mapping is never read, so it does no harm if
//! the file is truncated. Pages that a truncation or a hole takes out of a locked block are detected by the probes,
//! which go on ([`super::residency`]).
//!
//! Locking may block on a disk, so a thread of its own does it, which starts with the first block. Loops only look
//! blocks up in a table of atomics. The amount is limited by [`MOST`] and by `RLIMIT_MEMLOCK`, which is 8 MB by
//! default.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use base::sync::{Condvar, Mutex, MutexGuard};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;

use super::File;
use super::residency::BLOCK;
use crate::clock;

/// How many blocks may be locked: 16 MB.
const MOST: usize = 128;
/// How much of `RLIMIT_MEMLOCK` is left to others, in blocks.
const SPARED: u64 = 4;
/// A block is unlocked when it was not asked for during this many ticks.
const IDLE_TICKS: u64 = 10_000;
/// How often idle blocks are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How many blocks may wait to be locked.
const WANTED: usize = 64;
/// The size of the table, with eight places for each hash: four times as many as blocks, so that only one block in
/// thousands finds no place.
const PLACES: usize = 4 * MOST;
const WAYS: usize = 8;

/// A locked block, or a free place (`key` is 0).
struct LockedBlock {
    key: AtomicU64,
    /// When it was last asked for.
    used: AtomicU64,
}

static PLACED: [LockedBlock; PLACES] = [const {
    LockedBlock {
        key: AtomicU64::new(0),
        used: AtomicU64::new(0),
    }
}; PLACES];
/// There is room for more blocks, and none was refused within the last [`LOOK`].
static HAS_ROOM: AtomicBool = AtomicBool::new(true);
/// How many blocks are locked: with none, nothing is looked up.
static LOCKED: AtomicUsize = AtomicUsize::new(0);

struct WantedBlock {
    key: u64,
    file: File,
    offset: u64,
}

struct LockQueue {
    wanted: Vec<WantedBlock>,
    has_thread: bool,
}

static QUEUE: Mutex<LockQueue> = Mutex::new(LockQueue {
    wanted: Vec::new(),
    has_thread: false,
});
static COMES: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, LockQueue> {
    // Nothing that can panic halfway is done under this lock.
    QUEUE.lock()
}

fn key(file: u64, block: u64) -> u64 {
    ((file ^ block.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
}

fn places(key: u64) -> &'static [LockedBlock] {
    let set = (key >> 32) as usize % (PLACES / WAYS);
    &PLACED[set * WAYS..(set + 1) * WAYS]
}

/// Whether a block is locked; it then counts as used. (Two blocks in 2^64 may be confused; a loop may then block
/// once.)
pub(super) fn is_locked(file: u64, block: u64, now: u64) -> bool {
    if LOCKED.load(Relaxed) == 0 {
        return false;
    }
    let key = key(file, block);
    let place = places(key)
        .iter()
        .find(|place| place.key.load(Relaxed) == key);
    if let Some(place) = place
        // Written rarely: the cache line is shared by all loops.
        && now.saturating_sub(place.used.load(Relaxed)) > IDLE_TICKS / 100
    {
        place.used.store(now, Relaxed);
    }
    place.is_some()
}

/// Asks for a block that is in use and in memory to be locked.
pub(super) fn request_lock(file: &File, block: u64) {
    if !HAS_ROOM.load(Relaxed) {
        return;
    }
    let key = key(file.identity(), block);
    let mut queue = queue();
    if queue.wanted.len() == WANTED || queue.wanted.iter().any(|wanted| wanted.key == key) {
        return;
    }
    queue.wanted.push(WantedBlock {
        key,
        file: file.clone(),
        offset: block * BLOCK,
    });
    if !queue.has_thread {
        let thread = std::thread::Builder::new().name("locks".to_owned());
        // If no thread can be started, nothing is locked, which is only slower.
        queue.has_thread = thread.spawn(run).is_ok();
        HAS_ROOM.store(queue.has_thread, Relaxed);
    }
    drop(queue);
    COMES.notify_one();
}

/// [`request_lock`] for all blocks that a range touches.
pub(super) fn want_range(file: &File, offset: u64, len: u64) {
    let end = offset.saturating_add(len);
    for block in offset / BLOCK..end.div_ceil(BLOCK) {
        request_lock(file, block);
    }
}

/// The locking thread, which runs for the life of the process.
fn run() {
    let mut held: Vec<BlockLock> = Vec::new();
    let room = room();
    let mut refused = false;
    loop {
        let wanted = next(held.is_empty() && !refused);
        refused = false;
        for wanted in wanted {
            if held.len() == room || held.iter().any(|lock| lock.key() == wanted.key) {
                continue;
            }
            match BlockLock::new(&wanted) {
                Some(lock) => held.push(lock),
                None => refused = true,
            }
        }
        let now = clock::real_tick();
        held.retain(|lock| now.saturating_sub(lock.place.used.load(Relaxed)) < IDLE_TICKS);
        HAS_ROOM.store(held.len() < room && !refused, Relaxed);
    }
}

/// The blocks that are wanted. Waits for some, but not longer than [`LOOK`] while blocks are locked.
fn next(is_idle: bool) -> Vec<WantedBlock> {
    let mut queue = queue();
    if queue.wanted.is_empty() {
        queue = match is_idle {
            true => COMES.wait(queue),
            false => COMES.wait_timeout(queue, LOOK).0,
        };
    }
    std::mem::take(&mut queue.wanted)
}

/// How many blocks may be locked.
fn room() -> usize {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let blocks = limit.map_or(u64::MAX, |bytes| (bytes / BLOCK).saturating_sub(SPARED));
    usize::try_from(blocks).unwrap_or(MOST).min(MOST)
}

/// A mapped and locked block; dropped, it is neither.
struct BlockLock {
    address: *mut c_void,
    len: usize,
    place: &'static LockedBlock,
}

impl BlockLock {
    fn key(&self) -> u64 {
        self.place.key.load(Relaxed)
    }

    /// `None`: there is no place in the table, the file has no such block, or the system refuses.
    fn new(wanted: &WantedBlock) -> Option<Self> {
        let place = places(wanted.key)
            .iter()
            .find(|place| place.key.load(Relaxed) == 0)?;
        let size = wanted.file.metadata().ok()?.len;
        let len = size.saturating_sub(wanted.offset).min(BLOCK) as usize;
        if len == 0 {
            return None;
        }
        let address = map(&wanted.file, wanted.offset, len).ok()?;
        place.used.store(clock::real_tick(), Relaxed);
        place.key.store(wanted.key, Relaxed);
        LOCKED.fetch_add(1, Relaxed);
        Some(Self {
            address,
            len,
            place,
        })
    }
}

impl Drop for BlockLock {
    fn drop(&mut self) {
        LOCKED.fetch_sub(1, Relaxed);
        self.place.key.store(0, Relaxed);
        unmap(self.address, self.len);
    }
}

fn map(file: &File, offset: u64, len: usize) -> io::Result<*mut c_void> {
    // SAFETY: a new mapping, where the kernel chooses; no reference to its memory is ever made, and it is neither read nor
    // written, so that it does not matter who changes or cuts the file. `mlock` gets what was mapped.
    // JUSTIFICATION: the kernel has no other way for a process without rights to keep pages of a file in memory.
    unsafe {
        let address = rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            offset,
        )?;
        match rustix::mm::mlock(address, len) {
            Ok(()) => Ok(address),
            Err(error) => {
                unmap(address, len);
                Err(error.into())
            }
        }
    }
}

fn unmap(address: *mut c_void, len: usize) {
    // SAFETY: address and length are those of a mapping that `map` made; nothing refers to it.
    // JUSTIFICATION: as in `map`.
    let unmapped = unsafe { rustix::mm::munmap(address, len) };
    debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_locked_until_it_is_let_go_whatever_becomes_of_its_file() {
        if room() == 0 {
            return;
        }
        let path = std::env::temp_dir().join(format!("weir-locked-{}", std::process::id()));
        std::fs::write(&path, vec![b'x'; BLOCK as usize + 10]).expect("a file");
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path);
        let file = File::from_fd(file.expect("it is there").into());
        let wanted = |block| WantedBlock {
            key: key(file.identity(), block),
            file: file.clone(),
            offset: block * BLOCK,
        };
        let now = clock::real_tick();
        let held = |block| is_locked(file.identity(), block, now);
        assert!(
            BlockLock::new(&wanted(2)).is_none(),
            "there is no such block"
        );
        let locks = [0, 1].map(|block| BlockLock::new(&wanted(block)).expect("room for two"));
        assert!(held(0) && held(1) && !held(2));
        assert_eq!(locks[1].len, 10);
        rustix::fs::ftruncate(&file, 5).expect("it is cut");
        assert!(BlockLock::new(&wanted(1)).is_none(), "not any more");
        drop(locks);
        assert!(!held(0) && !held(1));
        std::fs::remove_file(&path).expect("it was there");
    }
}
