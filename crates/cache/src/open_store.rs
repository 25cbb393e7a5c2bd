//! Opening a store: the lock, the segments, the checkpoint, the index.
//!
//! The index is the checkpoint plus every record that is newer, in the order of their sequence numbers; without a
//! whole checkpoint it is every record. What is newer stands in the tables of finished segments, and in the records
//! themselves of those that a crash left open (two at most, unless writes failed); those are finished here.
//!
//! ```text
//! checkpoint:  0 u64 magic "WeirChk1"   8 u64 seed   16 u64 sequence   24 u64 entries   32 u32 segments   36 u32 purges' bytes
//!             40 numbers of the segments that were finished, u32 each: their tables need not be read
//!                purges: u32 length, u64 sequence, u8 scope, u8 mode, name
//!                entries, 24 bytes each: u64 hash, u32 segment, u32 at, u32 units and flags, u32 accessed
//!                u64 checksum of all before
//! ```
//!
//! It is written under another name and renamed, so that what is found is the new one or the one before. The checksum
//! tells when not even that held.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rt::file::{changes, modes};

use crate::checksum::xxh64;
use crate::format::{self, DiskRecord, RecordKind, STALE, SUPERSEDES, TableEntry, u32_at, u64_at};
use crate::index::{IndexEntry, RecordLocation, StoreIndex};
use crate::note_format::NotePair;
use crate::options::{StoreOpenError, StoreOptions};
use crate::purge::{self, PurgeTable};
use crate::segment::Segment;
use crate::store_core::{LoadedStore, StoreCore};
use crate::store_log::StoreLog;

const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"WeirChk1");
const CHECKPOINT_HEADER: usize = 40;
const CHECKPOINT_ENTRY: usize = 24;

/// Reads a store. Blocks.
pub(crate) fn load_store(
    options: &StoreOptions,
    now_ms: u64,
) -> Result<LoadedStore, StoreOpenError> {
    let failed = |error| StoreOpenError::Io(options.path.clone(), error);
    modes::make_folders(&options.path, modes::PRIVATE_FOLDER)
        .inspect_err(|error| rt::sandbox::note_refusal(&options.path, error))
        .map_err(failed)?;
    // Locked before anything is read: another process may still be writing.
    let (lock, seed) = take_lock(&options.path)?;
    let device = lock.metadata().map_err(failed)?.dev();
    let found = open_segments(&options.path, seed).map_err(failed)?;
    let mended = make_private(&lock, &found);
    // Without a checkpoint all records count as newer than it: the start takes longer, and nothing is lost.
    let checkpoint = read_checkpoint(&options.path, seed).unwrap_or_default();
    let mut loading = StoreLoading {
        checkpoint,
        purges: PurgeTable::default(),
        sequence: 1,
        now: (now_ms / 1000) as u32,
        segments: BTreeMap::new(),
    };
    let mut newer = Vec::new();
    for segment in found {
        loading.segment(segment, &mut newer);
    }
    // The two sides of the log are written at the same time, so the order of segments says nothing about that of
    // events.
    newer.sort_unstable_by_key(|(entry, _)| entry.sequence);
    let index = loading.index(&newer);
    let next_segment = loading.segments.keys().last().map_or(1, |last| last + 1);
    Ok(LoadedStore {
        seed,
        lock,
        device,
        index,
        purges: loading.purges,
        note: NotePair::read(&options.path, seed),
        segments: loading.segments,
        next_segment,
        sequence: loading.sequence + 1,
        mended,
    })
}

/// Takes all permissions but those of the owner from the files. Gives the number of files that had others.
fn make_private(lock: &File, segments: &[Segment]) -> usize {
    // One that belongs to another user cannot be changed; it could not have been opened to write, either.
    let is_mended =
        |wrong: &io::Result<Option<modes::PermissiveMode>>| matches!(wrong, Ok(Some(_)));
    let segments = segments.iter();
    let segments = segments.map(|segment| modes::make_private(&segment.file));
    let all = std::iter::once(modes::make_private(lock)).chain(segments);
    all.filter(is_mended).count()
}

/// Locks the directory for this process, and gives the seed of the store. If there is none or it is damaged it is a new
/// one, and nothing that is there belongs to the store any more.
fn take_lock(path: &Path) -> Result<(File, u64), StoreOpenError> {
    let failed = |error| StoreOpenError::Io(path.to_owned(), error);
    let name = path.join("store");
    // Not emptied: until the lock is held the file may be in use by another process.
    let opened = changes::open_or_create(&name, modes::PRIVATE_FILE)
        .inspect_err(|error| rt::sandbox::note_refusal(&name, error));
    let mut file = opened.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StoreOpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let mut bytes = Vec::new();
    (&mut file)
        .take(format::HEADER as u64)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if let Some(seed) = format::read_store(&bytes) {
        return Ok((file, seed));
    }
    // Not damaged but newer, or from before an upgrade that the administrator may undo.
    if let Some(number) = format::foreign_format(&bytes) {
        return Err(StoreOpenError::Format(path.to_owned(), number));
    }
    // On the disk before any segment refers to it: without its seed a store is nothing.
    let seed = rt::random::RandomState::new().hash_one(path);
    changes::write_at(&file, &format::write_store(seed), 0).map_err(failed)?;
    changes::sync(&file).map_err(failed)?;
    Ok((file, seed))
}

/// All segments of this store, ascending. A file that has the name of a segment but belongs to another seed is removed.
fn open_segments(path: &Path, seed: u64) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for item in fs::read_dir(path)? {
        let item = item?;
        let name = item.file_name();
        let number = name
            .to_str()
            .and_then(|name| u32::from_str_radix(name.strip_suffix(".segment")?, 16).ok());
        // Exactly the names that this program gives: the conversion from text also takes shorter ones and capitals.
        let Some(number) = number.filter(|&number| Segment::name(number).as_str() == name) else {
            continue;
        };
        match Segment::open(&item.path(), number, seed)? {
            Some((segment, _)) => segments.push(segment),
            // Nothing refers to it, it takes space that is not counted, and its number may be given again.
            None => changes::remove(&item.path())?,
        }
    }
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}

#[derive(Default)]
struct IndexCheckpoint {
    sequence: u64,
    finished: HashSet<u32>,
    purges: Vec<u8>,
    entries: Vec<IndexEntry>,
}

struct StoreLoading {
    checkpoint: IndexCheckpoint,
    purges: PurgeTable,
    /// The highest number seen.
    sequence: u64,
    now: u32,
    segments: BTreeMap<u32, Arc<Segment>>,
}

impl StoreLoading {
    /// Takes a segment in, with those of its records that the checkpoint does not know.
    fn segment(&mut self, segment: Segment, newer: &mut Vec<(TableEntry, u32)>) {
        let file = segment.file.clone();
        self.take_in(segment, newer);
        // Reading ahead has helped the table and the scan. From here on reads are of single records, and what stands
        // behind one belongs to other objects.
        file.read_randomly();
    }

    fn take_in(&mut self, mut segment: Segment, newer: &mut Vec<(TableEntry, u32)>) {
        let number = segment.number;
        if self.checkpoint.finished.contains(&number) && segment.is_finished() {
            // The checkpoint has all of its records, so its table is not read. 0 keeps each tombstone and purge that
            // might concern one of them.
            segment.first_sequence = 0;
            self.segments.insert(number, Arc::new(segment));
            return;
        }
        let table = match segment.read_table() {
            Ok(Some(table)) => table,
            _ => {
                let (table, end) = segment.scan();
                segment.len.store(end, Relaxed);
                // The scan has verified every record.
                segment.trust_all();
                // Finished, so that the next start need not scan it again. On a full disk that fails, and the next
                // start scans.
                let _ = segment.finish(&table, end);
                table
            }
        };
        segment.first_sequence = table.iter().map(|entry| entry.sequence).min().unwrap_or(0);
        for entry in table {
            self.sequence = self.sequence.max(entry.sequence);
            // Purges are taken from every table, whether the checkpoint has them or not: to record one twice changes
            // nothing.
            if entry.kind == RecordKind::Purge {
                self.purge(&segment, &entry);
            } else if entry.kind != RecordKind::Body && entry.sequence >= self.checkpoint.sequence {
                newer.push((entry, number));
            }
        }
        self.segments.insert(number, Arc::new(segment));
    }

    fn purge(&mut self, segment: &Segment, entry: &TableEntry) {
        let location = RecordLocation {
            segment: segment.number,
            at: entry.at,
            units: entry.units,
        };
        let Ok(bytes) = segment.read_record(location) else {
            return;
        };
        let meta = DiskRecord::read(&bytes).and_then(|record| record.meta(&bytes));
        if let Some((scope, mode, name)) = meta.and_then(purge::decode_purge) {
            self.purges.record(scope, name, mode, entry.sequence);
        }
    }

    /// The checkpoint's entries, then what is newer, in order.
    fn index(&mut self, newer: &[(TableEntry, u32)]) -> StoreIndex {
        self.sequence = self.sequence.max(self.checkpoint.sequence);
        let highest = purge::decode_purges(&self.checkpoint.purges, &mut self.purges);
        self.sequence = self.sequence.max(highest);
        let mut entries = std::mem::take(&mut self.checkpoint.entries);
        // Segments that were reclaimed after the checkpoint was written have taken their objects along.
        entries.retain(|entry| self.segments.contains_key(&entry.location().segment));
        let index = StoreIndex::from_entries(&entries);
        for (entry, segment) in newer {
            let location = RecordLocation {
                segment: *segment,
                at: entry.at,
                units: entry.units,
            };
            match entry.kind {
                RecordKind::Object => {
                    // The object before it may still be in the log, and would be back once this one goes without a
                    // tombstone.
                    let supersedes =
                        entry.flags & SUPERSEDES != 0 || index.get(entry.hash, None).is_some();
                    index.insert(
                        IndexEntry::new(entry.hash, location, self.now)
                            .with_supersedes(supersedes)
                            .with_stale(entry.flags & STALE != 0),
                    );
                }
                RecordKind::Tombstone => {
                    index.remove(entry.hash);
                }
                RecordKind::Soften => {
                    if let Some(found) = index.get(entry.hash, None) {
                        index.update(entry.hash, found.location(), |found| found.with_stale(true));
                    }
                }
                RecordKind::Body | RecordKind::Purge | RecordKind::Table => {}
            }
        }
        index
    }
}

/// What a checkpoint tells a process that looks at a store without opening it.
#[derive(Default)]
pub(crate) struct CheckpointSummary {
    /// Objects with a lower sequence that are not in `hashes` have been let go.
    pub(crate) sequence: u64,
    pub(crate) hashes: HashSet<u64>,
    /// For [`purge::decode_purges`].
    pub(crate) purges: Vec<u8>,
}

/// The checkpoint of the store at `path`; of one that is missing or damaged, nothing is remembered.
pub(crate) fn read_checkpoint_summary(path: &Path, seed: u64) -> CheckpointSummary {
    let Some(checkpoint) = read_checkpoint(path, seed) else {
        return CheckpointSummary::default();
    };
    CheckpointSummary {
        sequence: checkpoint.sequence,
        hashes: checkpoint.entries.iter().map(|entry| entry.hash).collect(),
        purges: checkpoint.purges,
    }
}

fn read_checkpoint(path: &Path, seed: u64) -> Option<IndexCheckpoint> {
    let bytes = fs::read(path.join("checkpoint")).ok()?;
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    // Verified as a whole before any number in it is used. The seed is part of the checksum, so that the checkpoint of
    // another store does not pass.
    let whole =
        content.len() >= CHECKPOINT_HEADER && xxh64(content, seed) == u64::from_le_bytes(*sum);
    if !whole || u64_at(content, 0) != CHECKPOINT_MAGIC || u64_at(content, 8) != seed {
        return None;
    }
    let mut rest = &content[CHECKPOINT_HEADER..];
    let finished = rest.split_off(..(u32_at(content, 32) as usize).checked_mul(4)?)?;
    let purges = rest.split_off(..u32_at(content, 36) as usize)?;
    let entries = rest.chunks_exact(CHECKPOINT_ENTRY).map(|bytes| {
        IndexEntry::from_words(
            u64_at(bytes, 0),
            [8, 12, 16, 20].map(|at| u32_at(bytes, at)),
        )
    });
    Some(IndexCheckpoint {
        sequence: u64_at(content, 16),
        finished: finished
            .chunks_exact(4)
            .map(|bytes| u32_at(bytes, 0))
            .collect(),
        purges: purges.to_vec(),
        entries: entries.collect(),
    })
}

/// Writes the checkpoint. Everything appended must be in the index.
pub(crate) fn write_checkpoint(core: &Arc<StoreCore>, log: &mut StoreLog) -> io::Result<()> {
    // Taken before anything is copied: what happens meanwhile has a higher number, and the next start takes it from the
    // tables.
    let sequence = core.sequence();
    // A segment that is being written must be read at the next start, whatever the checkpoint has of it.
    let open: HashSet<u32> = log.open_segments().collect();
    let finished: Vec<u32> = {
        let segments = core.segments.read();
        segments
            .keys()
            .copied()
            .filter(|number| !open.contains(number))
            .collect()
    };
    // A copy: lookups ask the purges, and would wait while up to 131,072 names are written.
    let purges = core.purges().clone();
    let purges = purges.encode_all();
    let mut bytes =
        Vec::with_capacity(CHECKPOINT_HEADER + core.index.len() * CHECKPOINT_ENTRY + purges.len());
    bytes.extend_from_slice(&CHECKPOINT_MAGIC.to_le_bytes());
    bytes.extend_from_slice(&core.seed.to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&(core.index.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(finished.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(purges.len() as u32).to_le_bytes());
    finished
        .iter()
        .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes.extend_from_slice(&purges);
    for shard in 0..StoreIndex::shard_count() {
        for entry in core.index.entries(shard) {
            let (hash, words) = entry.to_words();
            bytes.extend_from_slice(&hash.to_le_bytes());
            words
                .iter()
                .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
    }
    let sum = xxh64(&bytes, core.seed);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let aside = core.options.path.join("checkpoint.new");
    let file = changes::create_empty(&aside, modes::PRIVATE_FILE)?;
    // The mode is for a new file only: one that an earlier process left keeps its own.
    modes::make_private(&file)?;
    changes::write_at(&file, &bytes, 0)?;
    // Before the rename: the name must never lead to bytes that are not on the disk.
    changes::sync(&file)?;
    changes::rename(&aside, &core.options.path.join("checkpoint"))?;
    // A name is on the disk when its directory is. Until then a loss of power brings the checkpoint before back, which does
    // not know the purges since.
    changes::sync_directory(&core.options.path)?;
    log.unmarked.clear();
    Ok(())
}

/// Notices that the directory was removed or replaced: files would go on growing where no path leads to them.
pub(crate) fn check_directory(core: &StoreCore) {
    // The descriptor knows the file that was locked, the path the one that is there now.
    let ours = core.lock.metadata().map(|found| found.ino());
    let there = fs::metadata(core.options.path.join("store")).map(|found| found.ino());
    match (ours, there) {
        (Ok(ours), Ok(there)) if ours == there => return,
        (_, Err(error)) => core.report_error(&format!(
            "cache directory \"{}\" has disappeared: {error}",
            core.options.path.display()
        )),
        _ => core.report_error(&format!(
            "cache \"{}\" was replaced by another directory",
            core.options.path.display()
        )),
    }
    core.vanished.store(true, Relaxed);
}
