//! Making room: the oldest segment of a side goes, and what of it is worth keeping is copied.
//!
//! This is S3-FIFO with the log as its queues. New objects stand on the small side, a tenth of the store. What was used
//! twice or more when its segment is reclaimed moves to the main side; the rest is evicted and remembered as a ghost.
//! On the main side each use counted (up to three) is worth a new turn. So one pass evicts and cleans, and only objects
//! that are used are copied. Bounded: after [`ROUNDS`] segments in one go nothing is kept.
//!
//! What must not come back after a crash: an evicted object that had replaced an older one leaves a tombstone. A
//! tombstone or purge is copied as long as any other segment has records older than it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use rt::file::changes;

use crate::format::{
    DiskRecord, EXTENT_MAX, Extent, INLINE_MAX, ObjectRecord, RUN_MAX, RecordKind, STALE,
    SUPERSEDES, TableEntry,
};
use crate::index::{IndexEntry, RecordLocation};
use crate::object::ParsedObject;
use crate::purge::{self, PurgeMode};
use crate::segment::Segment;
use crate::store_core::StoreCore;
use crate::store_log::{StoreLog, data_position};

/// After this many segments in one go all that is left is evicted: if most of the store is in use, copying alone frees
/// nothing.
const ROUNDS: usize = 8;

/// Reclaims segments until a new one fits below `max_size` and leaves `min_free`.
pub(crate) fn make_room(core: &Arc<StoreCore>, log: &mut StoreLog) -> io::Result<()> {
    // What is pending must be in the index before anything is judged by it.
    log.flush(core)?;
    // Copying may need a new segment, which must not begin to reclaim in its turn.
    log.reclaiming = true;
    let result = reclaim_until_it_fits(core, log);
    log.reclaiming = false;
    result
}

fn reclaim_until_it_fits(core: &Arc<StoreCore>, log: &mut StoreLog) -> io::Result<()> {
    let mut round = 0;
    while !fits(core) {
        // Only segments that are being written are left. The store may then exceed its bound by them.
        let Some(victim) = choose_victim(core, log) else {
            return Ok(());
        };
        reclaim_segment(core, log, &victim, round < ROUNDS)?;
        round += 1;
    }
    Ok(())
}

/// Whether three more segments fit: the new one, the rest of the other side's, and one for what is moved on.
fn fits(core: &StoreCore) -> bool {
    let wanted = 3 * core.options.segment_size();
    let limits = core.limits();
    if core.size() + wanted > limits.max_size {
        return false;
    }
    limits.min_free == 0
        // If it cannot be asked for, the writes tell whether there is room.
        || rustix::fs::statvfs(&core.options.path)
            .ok()
            .is_none_or(|system| system.f_bavail * system.f_frsize >= limits.min_free + wanted)
}

/// The oldest full segment of the side that has more than its share.
pub(crate) fn choose_victim(core: &StoreCore, log: &StoreLog) -> Option<Arc<Segment>> {
    let open: Vec<u32> = log.open_segments().collect();
    let segments = core.segments.read();
    let full = || {
        segments
            .values()
            .filter(|segment| !open.contains(&segment.number))
    };
    let small: u64 = full()
        .filter(|segment| !segment.main)
        .map(|segment| segment.len.load(Relaxed))
        .sum();
    // The small side has a tenth of the store, as the small queue of S3-FIFO. Within a side numbers ascend with age.
    let from_small = small * 10 >= core.limits().max_size;
    let oldest = full().find(|segment| segment.main != from_small);
    // If that side has no full segment the other one gives: room is needed in any case.
    oldest.or_else(|| full().next()).cloned()
}

/// Takes one segment out of the store.
pub(crate) fn reclaim_segment(
    core: &Arc<StoreCore>,
    log: &mut StoreLog,
    victim: &Arc<Segment>,
    keep: bool,
) -> io::Result<()> {
    // The table may be missing or damaged, after a crash for instance. Then the records themselves are gone through.
    let table = victim
        .read_table()
        .ok()
        .flatten()
        .unwrap_or_else(|| victim.scan().0);
    // An object may have many records in one segment. It is decided about once.
    let mut seen = HashSet::new();
    let mut copied = false;
    for entry in &table {
        match entry.kind {
            RecordKind::Body | RecordKind::Object => {
                if seen.insert(entry.hash) {
                    ObjectMove {
                        core,
                        log,
                        victim,
                        keep,
                    }
                    .object(entry.hash)?;
                }
            }
            RecordKind::Tombstone | RecordKind::Soften | RecordKind::Purge => {
                copied |= copy_deletion(core, log, victim, entry)?;
            }
            RecordKind::Table => {}
        }
    }
    // The copies must be in their file before the original goes. After a crash in between both are there, and the
    // higher sequence number counts.
    log.flush(core)?;
    if copied {
        // What the copies hit may be on the disk for long. After a loss of power the checkpoint knows of them; one that is
        // damaged does not.
        log.sync_side(true)?;
    }
    core.segments.write().remove(&victim.number);
    core.reclaimed.fetch_add(1, Relaxed);
    // The last reader may be a loop, and to close a file without a name frees its blocks: a thread of the pool does it.
    victim.file.close_on(&core.options.pool);
    match changes::remove(&victim.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies a tombstone or a purge, under its sequence number, while there may be something for it to hit. Whether it did.
fn copy_deletion(
    core: &Arc<StoreCore>,
    log: &mut StoreLog,
    victim: &Segment,
    entry: &TableEntry,
) -> io::Result<bool> {
    let location = RecordLocation {
        segment: victim.number,
        at: entry.at,
        units: entry.units,
    };
    let Ok(bytes) = victim.read_record(location) else {
        return Ok(false);
    };
    let Some(record) = DiskRecord::read(&bytes) else {
        return Ok(false);
    };
    let Some(meta) = record.meta(&bytes) else {
        return Ok(false);
    };
    // What it hits is older than it, and can only be in a segment that begins before it.
    let needed = {
        let segments = core.segments.read();
        segments
            .values()
            .any(|other| other.number != victim.number && other.first_sequence <= record.sequence)
    };
    if needed {
        log.append(core, true, record, (meta, &[]), |_| None)?;
    } else if let Some((scope, _, name)) =
        purge::decode_purge(meta).filter(|_| record.kind == RecordKind::Purge)
    {
        // No object is as old as this purge: its name makes room in the table for another.
        core.purges().expire(scope, name, record.sequence);
    }
    Ok(needed)
}

struct ObjectMove<'a> {
    core: &'a Arc<StoreCore>,
    log: &'a mut StoreLog,
    victim: &'a Arc<Segment>,
    keep: bool,
}

impl ObjectMove<'_> {
    /// Decides about the live object of a hash, if part of it is in the victim.
    fn object(&mut self, hash: u64) -> io::Result<()> {
        let Some(entry) = self.core.index.get(hash, None) else {
            return Ok(());
        };
        let location = entry.location();
        let stored = self.core.segment(location.segment).and_then(|segment| {
            ParsedObject::parse(segment.read_record(location).ok()?, location, hash)
        });
        // A record that cannot be read is of no use to a lookup either.
        let Some(stored) = stored else {
            return self.evict(&entry);
        };
        // The object of this hash may be a newer one, whose records are all elsewhere.
        let concerned = location.segment == self.victim.number
            || stored
                .extents
                .iter()
                .any(|extent| extent.segment == self.victim.number);
        if !concerned {
            return Ok(());
        }
        // A single use is what a scan makes of an object, so the small side asks for two. The main side gives a turn
        // for each use.
        let turns = if self.victim.main {
            entry.frequency() > 0
        } else {
            entry.frequency() > 1
        };
        let description = &stored.description;
        let purged = self.core.purges().purge_mode(
            stored.record.born,
            description.key.text(),
            &description.head.tags,
        );
        // To copy what a purge has hit would only cost writes: no lookup returns it.
        if !self.keep || !turns || purged == Some(PurgeMode::Hard) {
            return self.evict(&entry);
        }
        match self.move_on(&entry, stored) {
            // Damage costs this object only. A failed write ends all reclaiming, because the next copy would fail as
            // well.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => self.evict(&entry),
            moved => moved,
        }
    }

    fn evict(&mut self, entry: &IndexEntry) -> io::Result<()> {
        if self
            .core
            .index
            .remove_at(entry.hash, entry.location())
            .is_none()
        {
            return Ok(());
        }
        // Only what leaves the small side becomes a ghost: if it is asked for again soon, it enters the main side at
        // once.
        self.core.evicted.fetch_add(1, Relaxed);
        if !self.victim.main {
            self.log.ghosts.remember(entry.hash);
        }
        // Its older version may still be in the log, and would be found at the next start.
        if entry.supersedes() {
            append_tombstone(self.core, self.log, entry.hash)?;
        }
        Ok(())
    }

    /// Copies the parts of the object that are in the victim to the main side, then its record.
    fn move_on(&mut self, entry: &IndexEntry, stored: ParsedObject) -> io::Result<()> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let mut description = stored.description;
        let mut inline = Bytes::new();
        let mut extents = Vec::with_capacity(stored.extents.len());
        let most = self.core.options.run_size();
        let mut rest = &stored.extents[..];
        while let Some(first) = rest.first() {
            let count = run_of(rest, self.victim.number, most);
            let Some((run, others)) = rest.split_at_checked(count).filter(|_| count > 0) else {
                // In another segment: it stays there.
                extents.push(*first);
                rest = &rest[1..];
                continue;
            };
            rest = others;
            let mut data = Vec::new();
            for extent in run {
                data.extend(self.victim.read_extent(extent).map_err(|_| damaged())?);
            }
            // Back into the object record, so that a hit on a small object remains one read.
            if stored.extents.len() == 1 && first.offset == 0 && data.len() <= INLINE_MAX {
                inline = data.into();
            } else {
                let (core, hash) = (self.core, entry.hash);
                extents.extend(append_run(core, self.log, true, hash, first.offset, &data)?);
            }
        }
        description.extents = extents;
        // A turn on the main side costs one use, of which there is at least one (`object`). What is promoted begins with
        // none, and has to be used there.
        let frequency = if self.victim.main {
            entry.frequency() - 1
        } else {
            0
        };
        let (hash, old) = (entry.hash, entry.location());
        let record = DiskRecord {
            // A new number: after a crash the copy and the original may both be found.
            sequence: self.core.next_sequence(),
            flags: stored.record.flags & SUPERSEDES | stale_flag(entry.is_stale()),
            ..stored.record
        };
        self.log.append(
            self.core,
            true,
            record,
            (&description.write(), &inline),
            |location| {
                Some(Box::new(move |core: &StoreCore, written| {
                    let moved = |entry: IndexEntry| {
                        IndexEntry::new(hash, location, entry.accessed)
                            .with_frequency(frequency)
                            .with_supersedes(entry.supersedes())
                            .with_stale(entry.is_stale())
                    };
                    if written {
                        // Only if the index still has the original: it may have been replaced or purged while the copy
                        // waited to be written.
                        core.index.update(hash, old, moved);
                    }
                }))
            },
        )?;
        Ok(())
    }
}

/// How many of these extents, from the first on, are in this segment and follow each other in the body, of at most `most`
/// bytes together. The first one counts however long it is, since it must be copied in any case.
fn run_of(extents: &[Extent], segment: u32, most: usize) -> usize {
    let mut end = None;
    let mut bytes = 0;
    let fits = |extent: &&Extent| {
        let follows = end.is_none_or(|end| end == extent.offset);
        bytes += extent.len as usize;
        let fits = end.is_none() || bytes <= most;
        end = Some(extent.end());
        extent.segment == segment && follows && fits
    };
    extents.iter().take_while(fits).count()
}

/// Appends a part of a body as one record. `data` has at most [`RUN_MAX`] bytes.
pub(crate) fn append_run(
    core: &Arc<StoreCore>,
    log: &mut StoreLog,
    main: bool,
    hash: u64,
    offset: u64,
    data: &[u8],
) -> io::Result<Vec<Extent>> {
    debug_assert!(data.len() <= RUN_MAX);
    let record = new_record(core, RecordKind::Body, hash, 0);
    let location = log.append(core, main, record, (&[], data), |_| None)?;
    let begin = data_position(location, 0);
    // A checksum for each extent: to verify any byte, 256 KB are read and not the whole run.
    let extents = data.chunks(EXTENT_MAX).enumerate().map(|(number, piece)| {
        let skip = (number * EXTENT_MAX) as u64;
        Extent {
            offset: offset + skip,
            len: piece.len() as u32,
            segment: location.segment,
            position: begin + skip,
            sum: crate::checksum::xxh64(piece, 0),
        }
    });
    Ok(extents.collect())
}

/// Writes that a key is gone.
pub(crate) fn append_tombstone(
    core: &Arc<StoreCore>,
    log: &mut StoreLog,
    hash: u64,
) -> io::Result<()> {
    let record = new_record(core, RecordKind::Tombstone, hash, 0);
    log.append(core, true, record, (&[], &[]), |_| None)
        .map(drop)
}

/// A record with the next sequence; lengths and checksums follow when it is written.
pub(crate) fn new_record(core: &StoreCore, kind: RecordKind, hash: u64, born: u64) -> DiskRecord {
    DiskRecord {
        kind,
        flags: 0,
        sequence: core.next_sequence(),
        hash,
        meta_len: 0,
        data_len: 0,
        born,
        segment: 0,
        data_sum: 0,
    }
}

fn stale_flag(is_stale: bool) -> u8 {
    if is_stale { STALE } else { 0 }
}

/// Commits an object: its record, and the index once that is in the file. `committed` is called with whether it was
/// written.
pub(crate) fn commit_object(
    core: &Arc<StoreCore>,
    log: &mut StoreLog,
    entry: ObjectCommit,
    committed: impl FnOnce(&StoreCore, bool) + Send + 'static,
) -> io::Result<()> {
    let ObjectCommit {
        hash,
        born,
        description,
        inline,
        accessed,
        main,
        frequency,
        is_stale,
        replaces,
    } = entry;
    let supersedes = core.index.get(hash, None).is_some() || log.unmarked.contains(hash);
    let mut record = new_record(core, RecordKind::Object, hash, born);
    record.flags = if supersedes { SUPERSEDES } else { 0 } | stale_flag(is_stale);
    log.append(
        core,
        main,
        record,
        (&description.write(), &inline),
        |location| {
            Some(Box::new(move |core: &StoreCore, written| {
                if written {
                    // Asked again: the object that it replaces may have been pending when the record was made.
                    let supersedes = supersedes || core.index.get(hash, None).is_some();
                    let entry = IndexEntry::new(hash, location, accessed)
                        .with_supersedes(supersedes)
                        .with_frequency(frequency);
                    match replaces {
                        Some(old) => drop(core.index.update(hash, old, |_| entry)),
                        None => drop(core.index.insert(entry)),
                    }
                    core.stored.fetch_add(1, Relaxed);
                }
                committed(core, written);
            }))
        },
    )
    .map(drop)
}

/// An object that is about to be visible: what [`commit_object`] writes, and what the index gets with it.
pub(crate) struct ObjectCommit {
    pub(crate) hash: u64,
    pub(crate) born: u64,
    pub(crate) description: ObjectRecord,
    pub(crate) inline: Bytes,
    /// Seconds since the epoch.
    pub(crate) accessed: u32,
    pub(crate) main: bool,
    pub(crate) frequency: u8,
    /// A soft purge has hit it already.
    pub(crate) is_stale: bool,
    /// It takes the place of the entry that leads here, and of no other: what has been purged or replaced while this waited to be
    /// written stays so.
    pub(crate) replaces: Option<RecordLocation>,
}
