//! Room on the disk. The store leaves a reserve free, as if `min_free` said so, so that uploads and logs on the same disk go on
//! when it is full; what was begun then and has no object goes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::format::{HEADER, RecordKind, TableEntry, UNIT};
use crate::log::Log;
use crate::object::Stored;
use crate::reclaim::{choose, reclaim};
use crate::segment::Segment;
use crate::store_core::StoreCore;

/// The most that is left free, in bytes. Of a small disk it is a part.
const RESERVE_MAX: u64 = 64 << 20;
/// That part: the twentieth.
const RESERVE_PART: u64 = 20;
/// With more room than this, in bytes, it is not counted what is yet to be written.
const NEAR: u64 = 256 << 20;
/// The most segments that go at a time.
const SEGMENTS_A_GO: usize = 4;

/// What is known of the room on the disk: bytes that may be written beside the reserve, by the last look and what was
/// written since. `u64::MAX`: it was not measured yet.
pub(crate) struct Room(AtomicU64);

impl Default for Room {
    fn default() -> Room {
        Room(AtomicU64::new(u64::MAX))
    }
}

/// Whether a body of this length would not be stored, beside all that fills under way are yet to write, as far as is known.
pub(crate) fn is_lacking(core: &StoreCore, length: u64) -> bool {
    let left = core.room.0.load(Relaxed);
    left < NEAR && core.fills.pending().max(length).saturating_add(UNIT) > left
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
        // The writes will tell.
        return (u64::MAX, 0);
    };
    let total = system.f_blocks.saturating_mul(system.f_frsize);
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let reserve = (total / RESERVE_PART).min(RESERVE_MAX);
    let left = free.saturating_sub(reserve);
    core.room.0.store(left, Relaxed);
    (left, reserve.saturating_sub(free))
}

/// Takes this many bytes of the room; an error if the reserve would be touched. Only the store's writer does.
pub(crate) fn take(core: &StoreCore, bytes: u64) -> io::Result<()> {
    let known = core.room.0.load(Relaxed);
    let left = match known {
        u64::MAX => measure(core).0,
        left if left < bytes => measure(core).0,
        left => left,
    };
    if left < bytes {
        return Err(io::ErrorKind::StorageFull.into());
    }
    core.room.0.store(left - bytes, Relaxed);
    Ok(())
}

/// Cuts segments that are not written any more behind the last record that an object or a purge needs; those in which there
/// is none go.
pub(crate) fn give_back<'a>(
    core: &StoreCore,
    segments: impl Iterator<Item = (&'a Arc<Segment>, &'a [TableEntry])>,
) {
    for (segment, table) in segments {
        let end = needed(core, segment, table);
        // What cannot be given back stays as it is, and is harmless.
        let _ = match end {
            0 => {
                core.segments.write().remove(&segment.number);
                segment.file.close_on(&core.options.pool);
                std::fs::remove_file(&segment.path)
            }
            end => segment.cut(end),
        };
    }
    measure(core);
}

/// Where the last record ends that is needed; 0: there is none.
fn needed(core: &StoreCore, segment: &Segment, table: &[TableEntry]) -> u64 {
    let mut needed = core.fills.needs(segment.number);
    let mut of_objects: HashMap<u64, u64> = HashMap::new();
    for entry in table {
        let end = (u64::from(entry.at) + u64::from(entry.units)) * UNIT;
        if end > segment.len.load(Relaxed) {
            continue;
        }
        let is_needed = match entry.kind {
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
    // Not within a record.
    match needed {
        0 => 0,
        end => end.next_multiple_of(UNIT).max(HEADER as u64),
    }
}

/// Where in a segment the last byte stands that the object of a hash needs.
fn end_in(core: &StoreCore, segment: &Segment, hash: u64) -> u64 {
    let Some(location) = core.index.get(hash, None).map(|entry| entry.location()) else {
        return 0;
    };
    let own = match location.segment == segment.number {
        true => (u64::from(location.at) + u64::from(location.units)) * UNIT,
        false => 0,
    };
    let record = core
        .segment(location.segment)
        .and_then(|segment| Stored::parse(segment.read_record(location).ok()?, location, hash));
    let extents = record.map_or(Vec::new(), |stored| stored.extents);
    let ends = extents
        .iter()
        .filter(|extent| extent.segment == segment.number)
        .map(|extent| extent.position + u64::from(extent.len));
    ends.max().unwrap_or(0).next_multiple_of(UNIT).max(own)
}

/// Looks how much room there is, and lets the oldest of several segments go while the reserve is not free.
pub(crate) fn look(core: &Arc<StoreCore>, log: &mut Log) {
    if std::mem::replace(&mut log.reclaiming, true) {
        return;
    }
    free(core, log);
    log.reclaiming = false;
}

fn free(core: &Arc<StoreCore>, log: &mut Log) {
    for _ in 0..SEGMENTS_A_GO {
        let several = {
            let segments = core.segments.read();
            segments.len() > 1
        };
        let (_, missing) = measure(core);
        if !several || missing == 0 {
            return;
        }
        let Some(victim) = choose(core, log) else {
            return;
        };
        // A failure has been reported.
        if reclaim(core, log, &victim, false).is_err() {
            return;
        }
    }
}
