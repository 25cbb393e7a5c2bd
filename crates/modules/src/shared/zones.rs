//! Shared zones by name: state that all loops share and that survives reloads, such as the counters
//! of `limit_req`.
//!
//! ```nginx
//! limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s;   # declares
//! limit_req zone=one;                                          # refers, may stand before the declaration
//! ```
//!
//! The configuration only knows which zones there should be; the worker finds or creates their
//! state when it commits to the configuration, so that testing a configuration or refusing a reload
//! changes nothing. What a zone contains is of no concern here.

use std::any::Any;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use base::sync::{Mutex, MutexGuard};
use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, DiagnosticPlace, DirectiveLine, parse};
use net::cluster::Cluster;

/// The minimum size of a zone, in bytes: eight pages of 4 KB, as in nginx.
const MIN_SIZE: u64 = 8 * 4096;

/// A zone. `D` is what its declaration says besides name and size, `S` is the state.
pub(crate) struct SharedZone<D, S> {
    /// Its name in the configuration.
    pub(crate) name: BString,
    /// Size and declaration. Set once; a reference can create the zone before its declaration is
    /// read.
    declared: OnceLock<(u64, D)>,
    /// Set when the worker commits to the configuration.
    state: OnceLock<Arc<S>>,
}

/// The zones of one kind by name, while a configuration is read.
pub(crate) struct SharedZones<D, S>(BTreeMap<BString, Arc<SharedZone<D, S>>>);

impl<D, S> Default for SharedZones<D, S> {
    fn default() -> Self {
        SharedZones(BTreeMap::new())
    }
}

/// The kind of each zone: nginx has one namespace for all shared memory, so two kinds must not
/// share a name.
#[derive(Default)]
struct ZoneOwners(BTreeMap<BString, &'static str>);

/// The value of a `zone=NAME:SIZE` parameter that declares a zone.
pub(crate) struct NameAndSize {
    pub(crate) name: BString,
    pub(crate) size: u64,
}

/// What is required of a zone's state.
pub(crate) trait ZoneState: Any + Send + Sync {
    /// The size it was created with, in bytes. A configuration with another size gets a new state.
    fn size(&self) -> u64;
}

/// A zone's state, sharded by key, each shard with its own lock, so that loops rarely contend.
pub(crate) struct ZoneShards<T> {
    parts: Box<[Mutex<T>]>,
    /// Of [`ZoneShards::shard_of`], random and the second one odd.
    secrets: [u64; 2],
    /// Each shard's part of the zone, in bytes.
    pub(crate) part_size: u64,
}

/// The maximum number of shards.
const MAX_PARTS: u64 = 16;

/// The minimum size of a shard, in bytes, so that no single key can fill one.
const MIN_PART: u64 = 256 * 1024;

impl<T> ZoneShards<T> {
    /// The shards of a zone of `size` bytes, each created by `create`.
    pub(crate) fn new(size: u64, create: impl Fn() -> T) -> ZoneShards<T> {
        let count = (size / MIN_PART).clamp(1, MAX_PARTS);
        let parts = (0..count).map(|_| Mutex::new(create())).collect();
        ZoneShards {
            parts,
            secrets: {
                let random = rt::random::RandomState::new();
                [random.hash_one(0_u64), random.hash_one(1_u64) | 1]
            },
            part_size: size / count,
        }
    }

    /// Locks the shard of a key. To be held for a lookup, never across anything that can block.
    pub(crate) fn lock(&self, key: &[u8]) -> MutexGuard<'_, T> {
        // No change spans the release of the lock, so a panic elsewhere leaves nothing half done.
        self.parts[self.shard_of(key)].lock()
    }

    /// The shard of a key. Clients choose their keys, and must not be able to choose their shard, hence the secrets. They
    /// see nothing of the result, so that a few multiplications are enough; the map within a shard hashes for itself.
    fn shard_of(&self, key: &[u8]) -> usize {
        let [first, second] = self.secrets;
        let mut sum = first ^ key.len() as u64;
        for piece in key.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            let product = u128::from(sum ^ u64::from_le_bytes(word)) * u128::from(second);
            sum = product as u64 ^ (product >> 64) as u64;
        }
        (sum % self.parts.len() as u64) as usize
    }
}

impl<T> ZoneShards<T> {
    /// All shards.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Mutex<T>> {
        self.parts.iter()
    }

    /// The sum of a number of all shards.
    pub(crate) fn sum(&self, number: impl Fn(&T) -> u64) -> u64 {
        self.parts.iter().map(|part| number(&part.lock())).sum()
    }
}

impl<D, S> SharedZone<D, S> {
    /// The declaration; `None` until its line has been read. [`report_undeclared`] guarantees one afterwards.
    pub(crate) fn declared(&self) -> Option<&D> {
        self.declared.get().map(|(_, declared)| declared)
    }

    /// The state; `None` while a configuration is only tested.
    pub(crate) fn state(&self) -> Option<&Arc<S>> {
        self.state.get()
    }
}

impl<D, S: ZoneState> SharedZone<D, S> {
    /// Finds the state that an earlier configuration left, or creates one. Others find it only after
    /// [`SharedZone::commit_state`]: this configuration may still be refused, and must leave nothing behind then.
    pub(crate) fn adopt_state(
        &self,
        zones: &host::engine::ZoneRegistry,
        kind: &str,
        create: impl Fn(u64, &D) -> S,
    ) -> Arc<S> {
        let Some((size, declared)) = self.declared.get() else {
            unreachable!("a configuration with a zone that nobody declares is refused");
        };
        let known = zones.get::<S>(&self.key(kind));
        // As in nginx, a zone with a new size starts empty.
        let known = known.filter(|state| state.size() == *size);
        let state = || known.unwrap_or_else(|| Arc::new(create(*size, declared)));
        Arc::clone(self.state.get_or_init(state))
    }

    /// Makes the adopted state the one that later configurations find.
    pub(crate) fn commit_state(&self, zones: &host::engine::ZoneRegistry, kind: &str) {
        if let Some(state) = self.state.get() {
            zones.replace(&self.key(kind), Arc::clone(state));
        }
    }

    fn key(&self, kind: &str) -> String {
        format!("{kind} {}", self.name)
    }
}

/// Parses the value of `zone=NAME:SIZE` in word `i`.
pub(crate) fn name_and_size(
    line: &DirectiveLine,
    i: usize,
    value: &[u8],
) -> Result<NameAndSize, Diagnostic> {
    let invalid = || line.error_at(i, format!("invalid zone size \"{}\"", line.text(i)));
    let (name, size) = value.split_once_str(":").ok_or_else(invalid)?;
    let size = parse::size(size).ok_or_else(invalid)?;
    if size < MIN_SIZE {
        return Err(line.error_at(i, format!("zone \"{}\" is too small", line.text(i))));
    }
    Ok(NameAndSize {
        name: name.into(),
        size,
    })
}

/// The sizes of zones that several lines can declare.
#[derive(Default)]
struct ZoneSizes(BTreeMap<BString, u64>);

/// Declares a zone whose state lives elsewhere. Several lines may declare it, if they agree on the
/// size.
pub(crate) fn declare_shared(
    line: &mut DirectiveLine,
    zone: &NameAndSize,
    kind: &'static str,
) -> Result<(), Diagnostic> {
    let NameAndSize { name, size } = zone;
    claim(line, name.as_bstr(), kind)?;
    let sizes = &mut line.lasting::<ZoneSizes>().0;
    let first = *sizes.entry(name.clone()).or_insert(*size);
    if first != *size {
        return Err(line.error(format!(
            "the size {size} of shared memory zone \"{name}\" conflicts with already declared size {first}"
        )));
    }
    Ok(())
}

/// Claims a name for zones of this kind.
fn claim(line: &mut DirectiveLine, name: &BStr, kind: &'static str) -> Result<(), Diagnostic> {
    let owner = *line
        .lasting::<ZoneOwners>()
        .0
        .entry(name.to_owned())
        .or_insert(kind);
    if owner != kind {
        let message =
            format!("the shared memory zone \"{name}\" is already declared for a different use");
        return Err(line.error(message).note(format!("used by {owner}")));
    }
    Ok(())
}

/// The zone of this name, for a line that refers to it. Creates it if its declaration comes later.
pub(crate) fn refer_to<D: 'static, S: 'static>(
    line: &mut DirectiveLine,
    name: &BStr,
    kind: &'static str,
) -> Result<Arc<SharedZone<D, S>>, Diagnostic> {
    claim(line, name, kind)?;
    let zones = line.lasting::<SharedZones<D, S>>();
    let make = || {
        Arc::new(SharedZone {
            name: name.to_owned(),
            declared: OnceLock::new(),
            state: OnceLock::new(),
        })
    };
    Ok(Arc::clone(
        zones.0.entry(name.to_owned()).or_insert_with(make),
    ))
}

/// Declares a zone. On a second declaration `twice` words the error; it receives the first one.
pub(crate) fn declare<D: 'static, S: 'static>(
    line: &mut DirectiveLine,
    zone: NameAndSize,
    kind: &'static str,
    declared: D,
    twice: impl FnOnce(&D) -> String,
) -> Result<Arc<SharedZone<D, S>>, Diagnostic> {
    let known = refer_to::<D, S>(line, zone.name.as_bstr(), kind)?;
    match known.declared.get() {
        Some((_, first)) => Err(line.error(twice(first))),
        None => {
            known.declared.get_or_init(|| (zone.size, declared));
            Ok(known)
        }
    }
}

/// Reports zones that are referred to but not declared. To be called when all lines have been read.
pub(crate) fn report_undeclared<D: 'static, S: 'static>(line: &mut DirectiveLine, directive: &str) {
    let zones = line.lasting::<SharedZones<D, S>>().0.values();
    let undeclared = zones.filter(|zone| zone.declared.get().is_none());
    for zone in undeclared.cloned().collect::<Vec<_>>() {
        let error = line
            .error(format!("zero size shared memory zone \"{}\"", zone.name))
            .place(DiagnosticPlace::Unsaid);
        line.level
            .report(error.note(format!("no \"{directive}\" directive defines it")));
    }
}

/// Refuses zones of a cluster that no block declares.
pub(crate) fn check_clusters<'a>(
    directive: &str,
    mut zones: impl Iterator<Item = (&'a BString, &'a Arc<Cluster>)>,
) -> Result<(), String> {
    let unknown = zones.find(|(_, cluster)| cluster.settings().is_none());
    unknown.map_or(Ok(()), |(name, cluster)| {
        let cluster = cluster.name();
        Err(format!(
            "{directive} \"{name}\": unknown cluster \"{cluster}\""
        ))
    })
}
