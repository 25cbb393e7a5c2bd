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

/// A history with a name.
pub(crate) type NamedHistory = (&'static str, Vec<StoreStep>);

/// Histories that are tried first: each is about one mechanism.
pub(crate) fn written_histories() -> Vec<NamedHistory> {
    [short_histories(), reclaiming_histories()].concat()
}

fn short_histories() -> Vec<NamedHistory> {
    use PurgeMode::{Hard, Soft};
    use StoreStep::*;
    let inactive = [
        Put(0, 500),
        Flush,
        Expire,
        Put(0, 400),
        Flush,
        Expire,
        Flush,
    ];
    let replaced = [Put(0, 500), Flush, Put(0, 600), Flush, Put(1, 0)];
    let purged = [
        Put(0, 500),
        Put(1, 500),
        Flush,
        PurgeKey(0, Hard),
        Flush,
        Reopen,
    ];
    let softened = [
        Put(0, 500),
        Flush,
        PurgeKey(0, Soft),
        Flush,
        Refresh(0),
        Flush,
    ];
    let many = [
        Put(0, 500),
        Put(1, 500),
        PurgeTag(Hard),
        PurgeAll(Soft),
        Flush,
        Checkpoint,
    ];
    let between = [
        Put(0, 500),
        Checkpoint,
        Put(0, 600),
        Put(1, 9_000),
        Checkpoint,
        Put(1, 40),
    ];
    let mortal = [
        Put(1, 500),
        Flush,
        Upkeep,
        Refresh(1),
        Upkeep,
        Flush,
        Upkeep,
    ];
    vec![
        ("a lifetime", mortal.to_vec()),
        ("inactive objects", inactive.to_vec()),
        ("one object after the other", replaced.to_vec()),
        (
            "bodies with records of their own",
            vec![Put(0, 70_000), Put(1, 66_000), Flush],
        ),
        ("a purge", purged.to_vec()),
        ("a soft purge", softened.to_vec()),
        ("purges of many", many.to_vec()),
        ("checkpoints between", between.to_vec()),
    ]
}

/// Bodies of other keys, so that segments are reclaimed.
fn filling(rounds: usize) -> Vec<StoreStep> {
    let keys = (0..rounds).map(|round| 1 + round % (KEYS - 1));
    keys.flat_map(|key| [StoreStep::Put(key, 40_000), StoreStep::Flush])
        .collect()
}

fn reclaiming_histories() -> Vec<NamedHistory> {
    use PurgeMode::{Hard, Soft};
    use StoreStep::*;
    let used = vec![Put(0, 3_000), Flush, Use(0, 3)];
    let softened = vec![Put(0, 3_000), Flush, Use(0, 3), PurgeKey(0, Soft), Flush];
    let purged = vec![
        Put(0, 3_000),
        Flush,
        Checkpoint,
        PurgeKey(0, Hard),
        Checkpoint,
    ];
    // The older one is on the main side and stays, while the newer one goes with its segment.
    let replaced = [
        vec![Put(0, 3_000), Flush, Use(0, 3)],
        filling(6),
        vec![Put(0, 600), Flush],
        filling(6),
    ];
    // The same, but the older one was inactive when the newer one came: it had left the index, not the log.
    let inactive = [
        vec![Put(0, 3_000), Flush, Use(0, 3)],
        filling(6),
        vec![Expire, Put(0, 600), Flush],
        filling(6),
    ];
    // What was evicted comes back on the main side, with its body on the small one.
    let returning = [
        vec![PurgeKey(1, Hard), Put(0, 70_000), Flush],
        filling(4),
        vec![Put(0, 70_000), Flush, Put(1, 66_000), Flush],
    ];
    vec![
        ("what comes back", returning.concat()),
        (
            "reclaiming copies what is used",
            [used, filling(6)].concat(),
        ),
        (
            "a soft purge of what is moved on",
            [softened, filling(6)].concat(),
        ),
        (
            "a purge whose segment is reclaimed",
            [purged, filling(7)].concat(),
        ),
        ("an eviction of what replaced another", replaced.concat()),
        (
            "an eviction of what replaced an inactive one",
            inactive.concat(),
        ),
    ]
}
