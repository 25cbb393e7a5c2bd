//! Short histories of a store: what is done to it, and what each step promises.

use crate::chance::SeededChance;
use cache::PurgeMode;

/// How many keys a history uses.
pub(crate) const KEYS: usize = 4;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreStep {
    /// A body of this length is stored under the key, in place of what is there.
    Put(usize, usize),
    /// The key is looked up this many times, so that it counts as used.
    Use(usize, usize),
    /// The origin validated what is stored under the key.
    Refresh(usize),
    /// A purge of one key.
    PurgeKey(usize, PurgeMode),
    /// A purge of the keys with an even number, which have a tag.
    PurgeTag(PurgeMode),
    /// A purge of everything by its common prefix.
    PurgePrefix(PurgeMode),
    /// A purge of everything.
    PurgeAll(PurgeMode),
    /// What was done so far survives the process.
    Flush,
    /// What was done so far survives a loss of power.
    Checkpoint,
    /// Upkeep, in a quarter of a minute.
    Upkeep,
    /// So much time passes that all that was not used is inactive, with upkeep of all shards.
    Expire,
    /// The store is closed and opened again.
    Reopen,
}

/// Lengths of bodies: none, in the object's record, as long as a segment, and with a record of its own.
const LENGTHS: [usize; 7] = [0, 40, 500, 3_000, 40_000, 66_000, 70_000];

/// A history by seed.
pub(crate) fn random_history(chance: &mut SeededChance) -> Vec<StoreStep> {
    let count = 4 + chance.below(12);
    (0..count).map(|_| random_step(chance)).collect()
}

fn random_step(chance: &mut SeededChance) -> StoreStep {
    let key = chance.below(KEYS);
    let mode = match chance.once_in(2) {
        true => PurgeMode::Hard,
        false => PurgeMode::Soft,
    };
    match chance.below(24) {
        0..9 => StoreStep::Put(key, *chance.choose(&LENGTHS)),
        9 | 10 => StoreStep::Use(key, 1 + chance.below(3)),
        11 => StoreStep::Refresh(key),
        12 | 13 => StoreStep::PurgeKey(key, mode),
        14 => StoreStep::PurgeTag(mode),
        15 => StoreStep::PurgePrefix(mode),
        16 => StoreStep::PurgeAll(mode),
        17 | 18 => StoreStep::Flush,
        19 => StoreStep::Checkpoint,
        20 | 21 => StoreStep::Upkeep,
        22 => StoreStep::Expire,
        _ => StoreStep::Reopen,
    }
}

/// Histories that are tried first: each is about one mechanism.
pub(crate) fn written_histories() -> Vec<(&'static str, Vec<StoreStep>)> {
    use PurgeMode::{Hard, Soft};
    use StoreStep::*;
    let fill = |key: usize| [Put(key, 40_000), Flush];
    vec![
        ("one object after the other", vec![Put(0, 500), Flush, Put(0, 600), Flush, Put(1, 0)]),
        ("a body with a record of its own", vec![Put(0, 70_000), Put(1, 66_000), Flush]),
        ("a purge", vec![Put(0, 500), Put(1, 500), Flush, PurgeKey(0, Hard), Flush, Reopen]),
        ("a soft purge", vec![Put(0, 500), Flush, PurgeKey(0, Soft), Flush, Refresh(0), Flush]),
        ("purges of many", vec![Put(0, 500), Put(1, 500), PurgeTag(Hard), PurgeAll(Soft), Flush, Checkpoint]),
        (
            "reclaiming copies what is used",
            [
                vec![Put(0, 3_000), Flush, Use(0, 3)],
                fill(1).to_vec(), fill(2).to_vec(), fill(3).to_vec(), fill(1).to_vec(), fill(2).to_vec(), fill(3).to_vec(),
            ]
            .concat(),
        ),
        (
            "a soft purge of what is moved on",
            [
                vec![Put(0, 3_000), Flush, Use(0, 3), PurgeKey(0, Soft), Flush],
                fill(1).to_vec(), fill(2).to_vec(), fill(3).to_vec(), fill(1).to_vec(), fill(2).to_vec(), fill(3).to_vec(),
            ]
            .concat(),
        ),
        (
            "a purge whose segment is reclaimed",
            [
                vec![Put(0, 3_000), Flush, Checkpoint, PurgeKey(0, Hard), Checkpoint],
                fill(1).to_vec(), fill(2).to_vec(), fill(3).to_vec(), fill(1).to_vec(), fill(2).to_vec(),
            ]
            .concat(),
        ),
        (
            "what was evicted comes back on the main side",
            [
                vec![Put(0, 70_000), Flush],
                fill(1).to_vec(), fill(2).to_vec(), fill(3).to_vec(),
                vec![Put(0, 70_000), Flush, Put(1, 66_000), Flush],
            ]
            .concat(),
        ),
        ("checkpoints between", vec![Put(0, 500), Checkpoint, Put(0, 600), Put(1, 9_000), Checkpoint, Put(1, 40), Flush]),
        ("inactive objects", vec![Put(0, 500), Flush, Expire, Put(0, 400), Flush, Expire, Flush]),
    ]
}
