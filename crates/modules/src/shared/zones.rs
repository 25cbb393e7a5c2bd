//! Zones by name: state that all loops share and that outlives a reload, such as the counters of `limit_req`.
//!
//! ```nginx
//! limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s;   # declares
//! limit_req zone=one;                                          # refers, may stand before the declaration
//! ```
//!
//! A configuration only knows what its zones are to be; the worker finds or makes their state when it commits to the
//! configuration. This file knows nothing of what is in a zone.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, Line, Place, parse};

/// The least size of a zone, in bytes: eight pages of 4 KB, as in nginx.
const MIN_SIZE: u64 = 8 * 4096;

/// A zone of one kind. `D` is what its declaration says beside name and size, `S` the state.
pub(crate) struct Zone<D, S> {
    /// Its name.
    pub(crate) name: BString,
    declared: OnceLock<(u64, D)>,
    /// Set when the worker commits to the configuration.
    state: OnceLock<Arc<S>>,
}

/// The zones of one kind while a configuration is read, by name.
pub(crate) struct Zones<D, S>(BTreeMap<BString, Arc<Zone<D, S>>>);

impl<D, S> Default for Zones<D, S> {
    fn default() -> Self {
        Zones(BTreeMap::new())
    }
}

/// Which directive declares or names each zone: two kinds must not share a name.
#[derive(Default)]
struct Owners(BTreeMap<BString, &'static str>);

/// The value of a `zone=NAME:SIZE` parameter in a line that declares.
pub(crate) struct NameAndSize {
    pub(crate) name: BString,
    pub(crate) size: u64,
}

/// What a zone's state must be able to do.
pub(crate) trait State: Any + Send + Sync {
    /// The size that it was made with, in bytes. A configuration with another size gets a new state.
    fn size(&self) -> u64;
}

/// A zone's state in parts by key, each behind a lock of its own, so that loops seldom meet.
pub(crate) struct Parts<T> {
    parts: Box<[Mutex<T>]>,
    hasher: RandomState,
    /// What each part may take of the zone, in bytes.
    pub(crate) part_size: u64,
}

/// A zone has no more parts than this, however large it is.
const MAX_PARTS: u64 = 16;

/// A part is no smaller, so that no key fills one alone, in bytes.
const MIN_PART: u64 = 256 * 1024;

impl<T> Parts<T> {
    /// The parts of a zone of `size` bytes, each made by `create`.
    pub(crate) fn new(size: u64, create: impl Fn() -> T) -> Parts<T> {
        let count = (size / MIN_PART).clamp(1, MAX_PARTS);
        let parts = (0..count).map(|_| Mutex::new(create())).collect();
        Parts {
            parts,
            hasher: RandomState::new(),
            part_size: size / count,
        }
    }

    /// The part that a key belongs to. The lock is to be held for a look-up, never over anything that can wait.
    pub(crate) fn lock(&self, key: &[u8]) -> MutexGuard<'_, T> {
        let at = self.hasher.hash_one(key) % self.parts.len() as u64;
        // Changes are complete before a lock is given back, so a panic elsewhere leaves nothing half done.
        self.parts[at as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D, S> Zone<D, S> {
    /// What was declared. `None` before the line was read; [`check`] makes sure that there is one afterwards.
    pub(crate) fn declared(&self) -> Option<&D> {
        self.declared.get().map(|(_, declared)| declared)
    }

    /// The state; `None` while a configuration is only tested.
    pub(crate) fn state(&self) -> Option<&Arc<S>> {
        self.state.get()
    }
}

impl<D, S: State> Zone<D, S> {
    /// Finds the state that an earlier configuration left, or makes it.
    pub(crate) fn commit(
        &self,
        zones: &rt::engine::Zones,
        kind: &str,
        create: impl Fn(u64, &D) -> S,
    ) -> Arc<S> {
        let Some((size, declared)) = self.declared.get() else {
            unreachable!("a configuration with a zone that nobody declares is refused");
        };
        let key = format!("{kind} {}", self.name);
        let mut state = zones.get_or_create(&key, || create(*size, declared));
        if state.size() != *size {
            state = Arc::new(create(*size, declared));
            zones.replace(&key, Arc::clone(&state));
        }
        Arc::clone(self.state.get_or_init(|| state))
    }
}

/// Reads `zone=NAME:SIZE` in word `i`.
pub(crate) fn name_and_size(
    line: &Line,
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

/// The sizes of zones that several lines declare.
#[derive(Default)]
struct Sizes(BTreeMap<BString, u64>);

/// Declares a zone whose state is found elsewhere. Several lines may, if they say the same size.
pub(crate) fn share(
    line: &mut Line,
    zone: &NameAndSize,
    kind: &'static str,
) -> Result<(), Diagnostic> {
    let NameAndSize { name, size } = zone;
    own(line, name.as_bstr(), kind)?;
    let sizes = &mut line.shared::<Sizes>().0;
    let first = *sizes.entry(name.clone()).or_insert(*size);
    if first != *size {
        return Err(line.error(format!(
            "the size {size} of shared memory zone \"{name}\" conflicts with already declared size {first}"
        )));
    }
    Ok(())
}

/// Says that a zone is of this kind.
fn own(line: &mut Line, name: &BStr, kind: &'static str) -> Result<(), Diagnostic> {
    let owner = *line
        .shared::<Owners>()
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

/// The zone of this name, for a line that refers to it.
pub(crate) fn refer<D: 'static, S: 'static>(
    line: &mut Line,
    name: &BStr,
    kind: &'static str,
) -> Result<Arc<Zone<D, S>>, Diagnostic> {
    own(line, name, kind)?;
    let zones = line.shared::<Zones<D, S>>();
    let make = || {
        Arc::new(Zone {
            name: name.to_owned(),
            declared: OnceLock::new(),
            state: OnceLock::new(),
        })
    };
    Ok(Arc::clone(
        zones.0.entry(name.to_owned()).or_insert_with(make),
    ))
}

/// Declares a zone. The error of a second declaration is for the caller to word: it is handed the first one.
pub(crate) fn declare<D: 'static, S: 'static>(
    line: &mut Line,
    zone: NameAndSize,
    kind: &'static str,
    declared: D,
    twice: impl FnOnce(&D) -> String,
) -> Result<Arc<Zone<D, S>>, Diagnostic> {
    let known = refer::<D, S>(line, zone.name.as_bstr(), kind)?;
    match known.declared.get() {
        Some((_, first)) => Err(line.error(twice(first))),
        None => {
            known.declared.get_or_init(|| (zone.size, declared));
            Ok(known)
        }
    }
}

/// Reports zones that lines refer to and none declares. For when all lines were read.
pub(crate) fn check<D: 'static, S: 'static>(line: &mut Line, directive: &str) {
    let zones = std::mem::take(line.shared::<Zones<D, S>>());
    for zone in zones
        .0
        .into_values()
        .filter(|zone| zone.declared.get().is_none())
    {
        let error = line
            .error(format!("zero size shared memory zone \"{}\"", zone.name))
            .place(Place::Unsaid);
        line.level
            .report(error.note(format!("no \"{directive}\" directive defines it")));
    }
}
