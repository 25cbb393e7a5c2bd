//! Room on the disk. The store leaves a reserve free, as if `min_free` asked for it, so that uploads and logs on the
//! same disk go on when the cache has filled it. When a write fails for want of room, records that no object needs are
//! given back.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::format::{HEADER, RecordKind, TableEntry, UNIT};
use crate::object::ParsedObject;
use crate::reclaim::{choose_victim, reclaim_segment};
use crate::segment::Segment;
use crate::store_core::StoreCore;
use crate::store_log::StoreLog;

/// The most that is left free, in bytes: a twentieth of a large disk would be wasted.
const RESERVE_MAX: u64 = 64 << 20;
/// The reserve is this part of the file system.
const RESERVE_PART: u64 = 20;
/// With more room than this, in bytes, the fills under way are not added up: that takes a lock, and hardly ever changes
/// the answer.
const NEAR: u64 = 256 << 20;
/// The most segments that are reclaimed in one go. The next round of upkeep goes on.
const SEGMENTS_A_GO: usize = 4;

/// How many bytes may be written without touching the reserve: what was last measured, less what was written since.
/// `u64::MAX`: not measured yet.
pub(crate) struct DiskSpace(AtomicU64);

impl Default for DiskSpace {
    fn default() -> DiskSpace {
        DiskSpace(AtomicU64::new(u64::MAX))
    }
}

/// Whether a body of this length would not be stored for want of room, with all that fills under way are still to
/// write.
pub(crate) fn is_lacking(core: &StoreCore, length: u64) -> bool {
    let left = core.disk_space.0.load(Relaxed);
    // The larger of the two, not the sum: a fill whose head has come is among those that are pending.
    left < NEAR && core.fills.pending_bytes().max(length).saturating_add(UNIT) > left
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// What may be written, and what is missing of the reserve. Blocks.
fn measure(core: &StoreCore) -> (u64, u64) {
    let Ok(system) = rustix::fs::statvfs(&core.options.path) else {
        // Unknown, as at the start: then the writes tell whether there is room. What was known before may be wrong by
        // now, and would keep bodies out for as long as it cannot be replaced.
        core.disk_space.0.store(u64::MAX, Relaxed);
        return (u64::MAX, 0);
    };
    let total = system.f_blocks.saturating_mul(system.f_frsize);
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let reserve = (total / RESERVE_PART).min(RESERVE_MAX);
    let left = free.saturating_sub(reserve);
    core.disk_space.0.store(left, Relaxed);
    (left, reserve.saturating_sub(free))
}

/// Takes this many bytes of the room; an error if the reserve would be touched. Only the writer calls it, so that
/// reading the counter and changing it need not be one step.
pub(crate) fn take_space(core: &StoreCore, bytes: u64) -> io::Result<()> {
    let known = core.disk_space.0.load(Relaxed);
    let left = match known {
        u64::MAX => measure(core).0,
        // Measured again before anything is refused: other programs may have removed files.
        left if left < bytes => measure(core).0,
        left => left,
    };
    if left < bytes {
        return Err(io::ErrorKind::StorageFull.into());
    }
    if left != u64::MAX {
        core.disk_space.0.store(left - bytes, Relaxed);
    }
    Ok(())
}

/// Cuts segments that are no longer written behind the last record that an object or a purge needs, and removes those
/// that have none.
pub(crate) fn truncate_segments<'a>(
    core: &StoreCore,
    segments: impl Iterator<Item = (&'a Arc<Segment>, &'a [TableEntry])>,
) {
    for (segment, table) in segments {
        let end = needed(core, segment, table);
        // Nothing depends on it: what cannot be given back only takes space until its segment is reclaimed.
        let _ = match end {
            0 => {
                core.segments.write().remove(&segment.number);
                segment.file.close_on(&core.options.pool);
                rt::file::changes::remove(&segment.path)
            }
            end => segment.truncate(end),
        };
    }
    measure(core);
}

/// Where the last record ends that is needed; 0: there is none.
fn needed(core: &StoreCore, segment: &Segment, table: &[TableEntry]) -> u64 {
    let mut needed = core.fills.last_byte_in(segment.number);
    let mut of_objects: HashMap<u64, u64> = HashMap::new();
    for entry in table {
        let end = (u64::from(entry.at) + u64::from(entry.units)) * UNIT;
        // It was never written as a whole.
        if end > segment.len.load(Relaxed) {
            continue;
        }
        let is_needed = match entry.kind {
            // Whether something is left for it to hit is decided when the segment is reclaimed.
            RecordKind::Tombstone | RecordKind::Soften | RecordKind::Purge => true,
            RecordKind::Table => false,
            RecordKind::Body | RecordKind::Object => {
                let last = of_objects
                    .entry(entry.hash)
                    .or_insert_with(|| end_in(core, segment, entry.hash));
                end <= *last
            }
        };
        if is_needed {
            needed = needed.max(end);
        }
    }
    // An extent ends anywhere, a record at a unit: the cut must leave the last record whole.
    match needed {
        0 => 0,
        end => end.next_multiple_of(UNIT).max(HEADER as u64),
    }
}

/// The end of the last byte in a segment that the object of a hash needs.
fn end_in(core: &StoreCore, segment: &Segment, hash: u64) -> u64 {
    let Some(location) = core.index.get(hash, None).map(|entry| entry.location()) else {
        return 0;
    };
    let own = match location.segment == segment.number {
        true => (u64::from(location.at) + u64::from(location.units)) * UNIT,
        false => 0,
    };
    let record = core.segment(location.segment).and_then(|segment| {
        ParsedObject::parse(segment.read_record(location).ok()?, location, hash)
    });
    let extents = record.map_or(Vec::new(), |stored| stored.extents);
    let ends = extents
        .iter()
        .filter(|extent| extent.segment == segment.number)
        .map(|extent| extent.position + u64::from(extent.len));
    ends.max().unwrap_or(0).next_multiple_of(UNIT).max(own)
}

/// Measures the room, and reclaims the oldest segments while the reserve is not free.
pub(crate) fn check_space(core: &Arc<StoreCore>, log: &mut StoreLog) {
    // A write that fails while a segment is reclaimed leads here again, and must not begin another.
    if std::mem::replace(&mut log.reclaiming, true) {
        return;
    }
    free(core, log);
    log.reclaiming = false;
}

fn free(core: &Arc<StoreCore>, log: &mut StoreLog) {
    for _ in 0..SEGMENTS_A_GO {
        let several = {
            let segments = core.segments.read();
            segments.len() > 1
        };
        let (_, missing) = measure(core);
        if !several || missing == 0 {
            return;
        }
        let Some(victim) = choose_victim(core, log) else {
            return;
        };
        // Nothing is kept of it: copies would need the room that is missing. A failure has been reported.
        if reclaim_segment(core, log, &victim, false).is_err() {
            return;
        }
    }
}
