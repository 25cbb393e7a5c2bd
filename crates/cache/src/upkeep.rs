//! What a store does every few seconds on the device's pool: removes inactive objects, keeps to its bounds, writes
//! checkpoints.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::index::{IndexEntry, StoreIndex};
use crate::reclaim::append_tombstone;
use crate::store_core::StoreCore;
use crate::store_log::StoreLog;

/// A checkpoint is written at most this often, because it copies the whole index.
const CHECKPOINT_MS: u64 = 60_000;
/// Shards of the index that are searched for inactive objects in one round: the work of a round stays small, and an
/// object may stay up to sixteen rounds too long.
const SHARDS_A_ROUND: usize = 16;

/// One round.
pub(crate) fn run_upkeep_round(core: &Arc<StoreCore>, log: &mut StoreLog, now_ms: u64) {
    core.fills.lock().expire_hit_for_miss(now_ms);
    crate::open_store::check_directory(core);
    look_for_damage(core);
    crate::disk_space::check_space(core, log);
    // Before room is made, so that inactive objects are not copied as used ones.
    expire_inactive(core, log, now_ms);
    // Failures have been reported.
    let _ = crate::reclaim::make_room(core, log);
    // The log takes no records: a checkpoint would fail as well.
    if thin_out(core, log).is_err() {
        return;
    }
    if checkpoint_is_due(core, now_ms) {
        let _ = log
            .flush(core)
            .and_then(|()| crate::open_store::write_checkpoint(core, log));
    }
}

/// Checks whether another process has written to a segment, and verifies one record of one segment in each round. So
/// damage that leaves no trace in the times of the file is found in the end, and nothing of that segment is sent unread
/// any more.
fn look_for_damage(core: &Arc<StoreCore>) {
    // Copied, because the sample reads from the disk and lookups need the lock.
    let segments: Vec<_> = {
        let segments = core.segments.read();
        segments.values().cloned().collect()
    };
    for segment in segments.iter().filter(|segment| segment.was_changed()) {
        core.report_foreign_change(segment);
    }
    let number = {
        let mut upkeep = core.upkeep.lock();
        upkeep.sample += 1;
        upkeep.sample
    };
    // Spread by the golden ratio, so that consecutive samples are far apart in the table.
    let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let chosen = segments.get(number as usize % segments.len().max(1));
    if let Some(segment) = chosen.filter(|segment| !segment.verify_sample(place)) {
        segment.distrust();
        core.report_error(&format!(
            "\"{}\" is damaged: its contents are verified before use, and damaged objects are fetched again",
            segment.path.display()
        ));
    }
}

fn checkpoint_is_due(core: &StoreCore, now_ms: u64) -> bool {
    let mut upkeep = core.upkeep.lock();
    let stored = core.stored.load(Relaxed);
    let due =
        stored != upkeep.stored && now_ms >= upkeep.checkpoint_ms.saturating_add(CHECKPOINT_MS);
    if due {
        upkeep.stored = stored;
        upkeep.checkpoint_ms = now_ms;
    }
    due
}

/// Removes what was used longest ago while there are more than `max_objects`. To reclaim segments would not do, since
/// the surplus may be in those that are being written.
fn thin_out(core: &Arc<StoreCore>, log: &mut StoreLog) -> io::Result<()> {
    let most = usize::try_from(core.limits().max_objects).unwrap_or(usize::MAX);
    let present = core.index.len();
    if most == 0 || present <= most {
        return Ok(());
    }
    // An eighth more than necessary, so that not every round has to.
    let excess = present - most + most / 8;
    for shard in 0..StoreIndex::shard_count() {
        let mut entries = core.index.entries(shard);
        // Hashes are spread evenly, so each shard gives its share, and the whole index is never sorted.
        let share = (entries.len() * excess)
            .div_ceil(present)
            .min(entries.len());
        entries.sort_unstable_by_key(|entry| (entry.frequency() > 0, entry.accessed));
        for entry in &entries[..share] {
            // The entries are copies: one that was used or replaced meanwhile stays.
            let Some(gone) = core.index.remove_unchanged(entry) else {
                continue;
            };
            core.evicted.fetch_add(1, Relaxed);
            note_removal(core, log, &gone)?;
        }
    }
    Ok(())
}

/// Writes a tombstone for an object that has left the index, if an older one would be back without it. One for each would be
/// too many: most objects of a cache become inactive.
fn note_removal(core: &Arc<StoreCore>, log: &mut StoreLog, gone: &IndexEntry) -> io::Result<()> {
    if gone.supersedes() {
        return append_tombstone(core, log, gone.hash);
    }
    log.unmarked.remember(gone.hash);
    Ok(())
}

/// Removes inactive objects from the next few shards.
fn expire_inactive(core: &Arc<StoreCore>, log: &mut StoreLog, now_ms: u64) {
    let inactive_ms = core.limits().inactive_ms;
    if inactive_ms == 0 {
        return;
    }
    let oldest = (now_ms.saturating_sub(inactive_ms) / 1000) as u32;
    let first = {
        let mut upkeep = core.upkeep.lock();
        let first = upkeep.next_shard;
        upkeep.next_shard = (first + SHARDS_A_ROUND) % StoreIndex::shard_count();
        first
    };
    for shard in first..first + SHARDS_A_ROUND {
        for entry in core
            .index
            .entries(shard)
            .iter()
            .filter(|entry| entry.accessed < oldest)
        {
            // The entries are copies: one that was used or replaced meanwhile stays.
            let gone = core.index.remove_unchanged(entry);
            if gone.is_some_and(|gone| note_removal(core, log, &gone).is_err()) {
                return;
            }
        }
    }
}
