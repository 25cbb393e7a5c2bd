//! One segment file: blocking reads and writes for the writer, and what readers keep open.
//!
//! A segment is never written twice at the same place, and its number is never used again, not even after a loss of power. When it is reclaimed its
//! name goes; its bytes stay for as long as an object that is being read has it open. So no reader ever sees other
//! bytes than those that it was promised.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use base::sync::{Mutex, MutexGuard};
use rt::file::modes::PRIVATE_FILE;
use rt::file::{File, changes};

use crate::format::{self, DiskRecord, Extent, HEADER, SegmentHeader, TableEntry, UNIT};
use crate::index::RecordLocation;

/// A segment: a file of the log, written once from its beginning to its end, then only read until it is removed.
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) main: bool,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Bytes that were written completely. Nothing behind them is read.
    pub(crate) len: AtomicU64,
    /// Which extents may be sent without being read first.
    trust: Mutex<ExtentTrust>,
    /// Length and times of the file when this process last touched it.
    stamp: Mutex<FileStamp>,
    /// This process is writing, so that a change of length and times proves nothing.
    writing: AtomicBool,
    /// The sequence number when it was begun: its records have higher ones, except for tombstones and purges that were
    /// copied here.
    pub(crate) first_sequence: u64,
}

/// Which extents of a segment need no look before they are sent.
enum ExtentTrust {
    /// All: this process wrote them, or read the whole segment.
    All,
    /// Those that begin here: they were compared with their checksums.
    These(HashSet<u64>),
}

/// What tells that another process has changed a file: its length and its times, to the nanosecond.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct FileStamp([i64; 5]);

impl FileStamp {
    /// `fstat` of an open file does not wait for the device. If it fails, the default differs from any real stamp, and
    /// the file counts as changed.
    fn of(file: &File) -> FileStamp {
        rustix::fs::fstat(file).map_or(FileStamp::default(), |stat| {
            FileStamp([
                stat.st_size,
                stat.st_mtime,
                stat.st_mtime_nsec as i64,
                stat.st_ctime,
                stat.st_ctime_nsec as i64,
            ])
        })
    }
}

impl Segment {
    pub(crate) fn name(number: u32) -> String {
        format!("{number:08x}.segment")
    }

    /// A new file with its header.
    pub(crate) fn create(
        directory: &Path,
        header: SegmentHeader,
        first_sequence: u64,
    ) -> io::Result<Arc<Self>> {
        let path = directory.join(Self::name(header.number));
        // A number is never used twice: a file of that name would be the work of another writer.
        let file = changes::create_new(&path, PRIVATE_FILE)?;
        let segment = Self {
            number: header.number,
            main: header.main,
            file: File::from_fd(OwnedFd::from(file)),
            path,
            len: AtomicU64::new(0),
            trust: Mutex::new(ExtentTrust::All),
            stamp: Mutex::default(),
            writing: AtomicBool::new(false),
            first_sequence,
        };
        *segment.stamp() = FileStamp::of(&segment.file);
        // On the disk, with its name, before anything refers to it. A loss of power could else take it away and leave an
        // object whose body is in it; the number would be given again, and the object would have the bytes of another.
        let begun = segment
            .write(&header.write(), 0)
            .and_then(|()| changes::sync(&segment.file))
            .and_then(|()| changes::sync_directory(directory));
        if let Err(error) = begun {
            // Removed again: on a disk that stays full each attempt would leave one more of them.
            let _ = changes::remove(&segment.path);
            return Err(error);
        }
        segment.file.read_randomly();
        Ok(Arc::new(segment))
    }

    /// Opens a file of an earlier process. `None`: it is not a segment of the store with this seed.
    pub(crate) fn open(
        path: &Path,
        number: u32,
        seed: u64,
    ) -> io::Result<Option<(Self, SegmentHeader)>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = file.metadata()?.len();
        let segment = Self {
            number,
            main: false,
            file: File::from_fd(OwnedFd::from(file)),
            path: path.to_owned(),
            len: AtomicU64::new(len),
            // Nothing is trusted: what an earlier process wrote may have been damaged since.
            trust: Mutex::new(ExtentTrust::These(HashSet::new())),
            stamp: Mutex::default(),
            writing: AtomicBool::new(false),
            first_sequence: 0,
        };
        *segment.stamp() = FileStamp::of(&segment.file);
        let mut bytes = [0; HEADER];
        if segment.read(&mut bytes, 0).is_err() {
            return Ok(None);
        }
        let header = SegmentHeader::read(&bytes);
        let ours = header.filter(|header| header.number == number && header.seed == seed);
        Ok(ours.map(|header| {
            (
                Self {
                    main: header.main,
                    ..segment
                },
                header,
            )
        }))
    }

    fn stamp(&self) -> MutexGuard<'_, FileStamp> {
        self.stamp.lock()
    }

    fn trust(&self) -> MutexGuard<'_, ExtentTrust> {
        self.trust.lock()
    }

    /// Whether another process has written to the file since the last look. If so, nothing of it is sent unread from
    /// now on. One `fstat`, which does not wait for the device: lookups call this on a loop.
    pub(crate) fn was_changed(&self) -> bool {
        let mut known = loop {
            match self.stamp.try_lock() {
                Some(known) => break known,
                // The writer keeps the stamp for as long as the device takes. It compares before it writes, so that no
                // change is missed by leaving here.
                None if self.writing.load(SeqCst) => return false,
                // Another thread looks, which takes one `fstat`.
                None => std::hint::spin_loop(),
            }
        };
        self.compare(&mut known)
    }

    fn compare(&self, known: &mut FileStamp) -> bool {
        let now = FileStamp::of(&self.file);
        let changed = *known != now;
        if changed {
            *known = now;
            self.distrust();
        }
        changed
    }

    /// From now on each extent is verified before it is sent.
    pub(crate) fn distrust(&self) {
        *self.trust() = ExtentTrust::These(HashSet::new());
    }

    /// All of it was read and is as it was written.
    pub(crate) fn trust_all(&self) {
        *self.trust() = ExtentTrust::All;
    }

    /// Runs a change of our own, so that it is not taken for that of another process.
    fn changing<T>(&self, change: impl FnOnce() -> T) -> T {
        // Before the stamp is locked: a loop that finds it locked must not spin for the length of a write.
        self.writing.store(true, SeqCst);
        let mut known = self.stamp();
        // What has changed so far was not us; below the stamp is overwritten, and the trace would be lost.
        self.compare(&mut known);
        let result = change();
        *known = FileStamp::of(&self.file);
        drop(known);
        self.writing.store(false, SeqCst);
        result
    }

    /// Writes all and makes it readable.
    pub(crate) fn write(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.changing(|| self.write_all(bytes, position))
    }

    /// Cuts the file at `end`, which gives the blocks behind it back to the disk.
    pub(crate) fn truncate(&self, end: u64) -> io::Result<()> {
        // The length first: no reader may go beyond the new end while the file becomes shorter.
        self.len.store(end, Relaxed);
        self.changing(|| changes::set_len(&self.file, end))
    }

    fn write_all(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        changes::write_at(&self.file, bytes, position)?;
        // Only after the last byte: what a failed write has left in the file is never read.
        self.len.store(position + bytes.len() as u64, Relaxed);
        Ok(())
    }

    /// Fills `bytes`; an error when the segment ends before.
    pub(crate) fn read(&self, bytes: &mut [u8], position: u64) -> io::Result<()> {
        // By the count of complete bytes, not by the size of the file, which may include half a write.
        let end = position.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.len.load(Relaxed)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.file, &mut bytes[done..], position + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// One whole record.
    pub(crate) fn read_record(&self, location: RecordLocation) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; location.units as usize * UNIT as usize];
        self.read(&mut bytes, u64::from(location.at) * UNIT)?;
        Ok(bytes)
    }

    /// The data of an extent, verified; an error of kind `InvalidData` when it is not what was written.
    pub(crate) fn read_extent(&self, extent: &Extent) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; extent.len as usize];
        self.read(&mut bytes, extent.position)?;
        if crate::checksum::xxh64(&bytes, 0) != extent.sum {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes)
    }

    /// Whether the extent may be sent without being read first.
    pub(crate) fn is_proven(&self, extent: &Extent) -> bool {
        match &*self.trust() {
            ExtentTrust::All => true,
            ExtentTrust::These(proven) => proven.contains(&extent.position),
        }
    }

    /// Verifies an extent, so that it may be sent without being read from then on. Blocks.
    pub(crate) fn verify_and_trust(&self, extent: &Extent) -> io::Result<()> {
        let before = *self.stamp();
        self.verify(extent)?;
        // If the file was changed meanwhile, the change may have come after the read: then nothing is proven.
        if before == *self.stamp()
            && let ExtentTrust::These(proven) = &mut *self.trust()
        {
            // Bounded by the number of extents in the segment.
            proven.insert(extent.position);
        }
        Ok(())
    }

    /// Verifies an extent; an error of kind `InvalidData` when it is not what was written. Blocks.
    pub(crate) fn verify(&self, extent: &Extent) -> io::Result<()> {
        rt::local! {
            /// Kept: memory of that size would come fresh from the kernel for each extent.
            static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        SCRATCH.with_borrow_mut(|bytes| {
            let len = extent.len as usize;
            if bytes.len() < len {
                bytes.resize(len, 0);
            }
            self.read(&mut bytes[..len], extent.position)?;
            match crate::checksum::xxh64(&bytes[..len], 0) == extent.sum {
                true => Ok(()),
                false => Err(io::ErrorKind::InvalidData.into()),
            }
        })
    }

    /// The table, when the trailer says that the segment was finished.
    pub(crate) fn read_table(&self) -> io::Result<Option<Vec<TableEntry>>> {
        let len = self.len.load(Relaxed);
        let mut trailer = [0; HEADER];
        // Too short for a header and a trailer, or cut within a unit: it was not finished.
        if len < 2 * HEADER as u64 || !len.is_multiple_of(UNIT) {
            return Ok(None);
        }
        self.read(&mut trailer, len - HEADER as u64)?;
        let Some(at) = format::read_trailer(&trailer, self.number) else {
            return Ok(None);
        };
        // `at` comes from the disk: bounded before memory is allocated for it.
        let Some(size) = (len - HEADER as u64)
            .checked_sub(at)
            .filter(|&size| size <= format::META_MAX as u64 + 2 * UNIT)
        else {
            return Ok(None);
        };
        let mut bytes = vec![0; size as usize];
        self.read(&mut bytes, at)?;
        let record = DiskRecord::read(&bytes).filter(|record| record.segment == self.number);
        Ok(record.and_then(|record| format::read_table(record.meta(&bytes)?)))
    }

    /// Verifies one record of the segment, chosen by `number`. False: it is not what was written.
    pub(crate) fn verify_sample(&self, number: u64) -> bool {
        let Ok(Some(table)) = self.read_table() else {
            // A segment that is still written has no table; its turn comes when it is finished.
            return true;
        };
        let Some(entry) = table.get(number as usize % table.len().max(1)) else {
            return true;
        };
        self.scan_one(u64::from(entry.at) * UNIT).is_some()
    }

    /// Whether the segment was finished; its table is not read.
    pub(crate) fn is_finished(&self) -> bool {
        let len = self.len.load(Relaxed);
        let mut trailer = [0; HEADER];
        len >= 2 * HEADER as u64
            && self.read(&mut trailer, len - HEADER as u64).is_ok()
            && format::read_trailer(&trailer, self.number).is_some()
    }

    /// Reads record by record, data included, up to the first that is not whole. Gives the table and where it ends.
    pub(crate) fn scan(&self) -> (Vec<TableEntry>, u64) {
        let mut entries = Vec::new();
        let mut at = HEADER as u64;
        while let Some((record, size)) = self.scan_one(at) {
            // A crash may have left a table without its trailer: it is no part of the contents.
            if record.kind != crate::format::RecordKind::Table {
                entries.push(table_entry(&record, at));
            }
            at += size;
        }
        (entries, at)
    }

    fn scan_one(&self, at: u64) -> Option<(DiskRecord, u64)> {
        let mut header = [0; HEADER];
        self.read(&mut header, at).ok()?;
        let record = DiskRecord::read(&header).filter(|record| record.segment == self.number)?;
        let mut bytes = vec![0; record.size() as usize];
        self.read(&mut bytes, at).ok()?;
        // The data too: without a trailer nothing vouches for its having reached the disk.
        record.meta(&bytes)?;
        record.data(&bytes)?;
        Some((record, record.size()))
    }

    /// Finishes a segment: what is before `end` reaches the disk, then the table and the trailer vouch for it.
    pub(crate) fn finish(&self, entries: &[TableEntry], end: u64) -> io::Result<()> {
        // Before the trailer is written: wherever a crash happens, a valid trailer must prove that the records are
        // there.
        changes::sync(&self.file)?;
        let mut bytes = Vec::new();
        let record = DiskRecord {
            kind: format::RecordKind::Table,
            flags: 0,
            sequence: 0,
            hash: 0,
            meta_len: 0,
            data_len: 0,
            born: 0,
            segment: self.number,
            data_sum: 0,
        };
        record.write(&format::write_table(entries), &[], &mut bytes);
        bytes.extend_from_slice(&format::write_trailer(end, self.number));
        self.changing(|| {
            // What a failed write has left behind the last record goes, because the trailer is looked for in the last
            // bytes of the file.
            changes::set_len(&self.file, end)?;
            self.write_all(&bytes, end)
        })?;
        changes::sync(&self.file)
    }
}

pub(crate) fn table_entry(record: &DiskRecord, position: u64) -> TableEntry {
    TableEntry {
        sequence: record.sequence,
        hash: record.hash,
        at: (position / UNIT) as u32,
        units: (record.size() / UNIT) as u32,
        kind: record.kind,
        flags: record.flags,
    }
}
