//! What a store does every few seconds, on the device's pool: lets inactive objects go, keeps to its bounds, writes
//! checkpoints.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::index::Index;
use crate::log::Log;
use crate::reclaim::bury;
use crate::store_core::StoreCore;

/// A checkpoint is written at most this often.
const CHECKPOINT_MS: u64 = 60_000;
/// As many shards of the index are searched for inactive objects in one round of upkeep.
const SHARDS_A_ROUND: usize = 16;

/// One round.
pub(crate) fn round(core: &Arc<StoreCore>, log: &mut Log, now_ms: u64) {
    core.fills.lock().expire(now_ms);
    crate::load::check_directory(core);
    look_for_damage(core);
    crate::room::look(core, log);
    expire_inactive(core, log, now_ms);
    // Failures have been reported.
    let _ = crate::reclaim::make_room(core, log);
    if thin_out(core, log).is_err() {
        return;
    }
    if checkpoint_is_due(core, now_ms) {
        let _ = log
            .flush(core)
            .and_then(|()| crate::load::write_checkpoint(core, log));
    }
}

/// Looks whether another process has written to a segment, and reads one record of one segment in each round: damage that
/// leaves no trace in the file's times is found in the end, and then nothing of that segment is sent unseen.
fn look_for_damage(core: &Arc<StoreCore>) {
    let segments: Vec<_> = {
        let segments = core.segments.read();
        segments.values().cloned().collect()
    };
    for segment in segments.iter().filter(|segment| segment.was_changed()) {
        core.suspect(segment);
    }
    let number = {
        let mut upkeep = core.upkeep.lock();
        upkeep.sample += 1;
        upkeep.sample
    };
    // Neighbours in time are far apart in the table.
    let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let chosen = segments.get(number as usize % segments.len().max(1));
    if let Some(segment) = chosen.filter(|segment| !segment.sample(place)) {
        segment.distrust();
        core.report(&format!(
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

/// Takes out what was asked for longest ago while there are more objects than there may be. What is in open segments
/// cannot be reclaimed by [`crate::reclaim`].
fn thin_out(core: &Arc<StoreCore>, log: &mut Log) -> io::Result<()> {
    let most = usize::try_from(core.limits().max_objects).unwrap_or(usize::MAX);
    let present = core.index.len();
    if most == 0 || present <= most {
        return Ok(());
    }
    // An eighth more than must be, so that this is seldom.
    let excess = present - most + most / 8;
    for shard in 0..Index::shards() {
        let mut entries = core.index.entries(shard);
        let share = (entries.len() * excess)
            .div_ceil(present)
            .min(entries.len());
        entries.sort_unstable_by_key(|entry| (entry.frequency() > 0, entry.accessed));
        for entry in &entries[..share] {
            let gone = core.index.remove_at(entry.hash, entry.location());
            core.evicted.fetch_add(1, Relaxed);
            if gone.is_some_and(|entry| entry.supersedes()) {
                bury(core, log, entry.hash)?;
            }
        }
    }
    Ok(())
}

/// Takes out of some shards what was not asked for in time.
fn expire_inactive(core: &Arc<StoreCore>, log: &mut Log, now_ms: u64) {
    let inactive_ms = core.limits().inactive_ms;
    if inactive_ms == 0 {
        return;
    }
    let oldest = (now_ms.saturating_sub(inactive_ms) / 1000) as u32;
    let first = {
        let mut upkeep = core.upkeep.lock();
        let first = upkeep.next_shard;
        upkeep.next_shard = (first + SHARDS_A_ROUND) % Index::shards();
        first
    };
    for shard in first..first + SHARDS_A_ROUND {
        for entry in core
            .index
            .entries(shard)
            .iter()
            .filter(|entry| entry.accessed < oldest)
        {
            let gone = core.index.remove_at(entry.hash, entry.location());
            if gone.is_some_and(|entry| entry.supersedes()) && bury(core, log, entry.hash).is_err()
            {
                return;
            }
        }
    }
}
