//! What a crash may leave of a directory.
//!
//! What was synced is there. Of the rest, each change may have reached the disk or not, in any order: that is what POSIX
//! promises, and less than what journals of common file systems do. A write may be torn at a sector, or its length may be
//! there without its bytes. Names are changes of their own: a file that was synced can be missing from its directory.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;

use rt::simulation::disk::{DiskChange, DiskFile};

use crate::chance::SeededChance;

/// Of more than this many outstanding changes, only the last ones are tried in all combinations, if all is to be tried; and
/// if there is little time.
pub(crate) const EXHAUSTIVE: usize = 8;
pub(crate) const QUICK: usize = 4;
/// How many combinations of all outstanding changes are drawn where not all are tried.
const DRAWN: usize = 12;
/// What a disk writes without tearing it.
const SECTOR: usize = 512;

/// The files of a directory, by name.
pub(crate) type DiskImage = BTreeMap<String, Rc<Vec<u8>>>;

/// A state in which a crash may leave the directory.
pub(crate) struct CrashState {
    pub(crate) image: DiskImage,
    /// Nothing was lost: the process died, not the machine.
    pub(crate) is_complete: bool,
    /// A file that was created is missing: its number may be used again.
    pub(crate) lacks_file: bool,
    /// Which outstanding changes are there, and what was torn.
    pub(crate) description: String,
}

/// How a write is torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Tear {
    /// Only its first sector is there.
    FirstSector,
    /// Its first sector is missing.
    WithoutFirstSector,
    /// The file has its length, and zeros.
    Zeros,
    /// The file has its length, and what was in those blocks before.
    Garbage,
}

const TEARS: [Tear; 4] = [
    Tear::FirstSector,
    Tear::WithoutFirstSector,
    Tear::Zeros,
    Tear::Garbage,
];

/// The directory while changes are applied to it.
#[derive(Clone, Default)]
struct Directory {
    names: BTreeMap<String, DiskFile>,
    contents: BTreeMap<DiskFile, FileContent>,
}

/// The bytes of a file, and which changes have made them.
#[derive(Clone, Default)]
struct FileContent {
    bytes: Rc<Vec<u8>>,
    made_by: Vec<(usize, Option<Tear>)>,
}

impl Directory {
    /// Applies the change with this number in its history.
    fn apply(&mut self, number: usize, change: &DiskChange, tear: Option<Tear>) {
        match change {
            DiskChange::Created(file, name) => {
                self.names.insert(name.clone(), *file);
                self.contents.entry(*file).or_default();
            }
            DiskChange::Emptied(file)
            | DiskChange::Written(file, ..)
            | DiskChange::Resized(file, _) => {
                let content = self.contents.entry(*file).or_default();
                content.made_by.push((number, tear));
                let bytes = Rc::make_mut(&mut content.bytes);
                match change {
                    DiskChange::Written(_, position, written) => {
                        write(bytes, *position as usize, written, tear);
                    }
                    DiskChange::Resized(_, len) => bytes.resize(*len as usize, 0),
                    _ => bytes.clear(),
                }
            }
            DiskChange::Renamed(from, to) => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            DiskChange::Removed(name) => {
                self.names.remove(name);
            }
            DiskChange::Synced(_) | DiskChange::DirectorySynced => {}
        }
    }

    /// What is the same for the same files.
    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, file) in &self.names {
            let made_by = self.contents.get(file).map(|content| &content.made_by);
            (name, file, made_by).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn image(&self) -> DiskImage {
        let file = |(name, file): (&String, &DiskFile)| {
            let content = self.contents.get(file).cloned().unwrap_or_default();
            (name.clone(), content.bytes)
        };
        self.names.iter().map(file).collect()
    }
}

fn write(content: &mut Vec<u8>, position: usize, bytes: &[u8], tear: Option<Tear>) {
    let first = bytes.len().min(SECTOR);
    let (from, to) = match tear {
        Some(Tear::FirstSector) => (0, first),
        Some(Tear::WithoutFirstSector) => (first, bytes.len()),
        Some(Tear::Zeros | Tear::Garbage) | None => (0, bytes.len()),
    };
    if content.len() < position + to {
        content.resize(position + to, 0);
    }
    let place = &mut content[position + from..position + to];
    match tear {
        Some(Tear::Zeros) => place.fill(0),
        Some(Tear::Garbage) => place.fill(0xa5),
        _ => place.copy_from_slice(&bytes[from..to]),
    }
}

/// A crash after the first changes of a history.
pub(crate) struct CrashPoint<'a> {
    durable: Directory,
    outstanding: Vec<(usize, &'a DiskChange)>,
}

impl<'a> CrashPoint<'a> {
    pub(crate) fn after(changes: &'a [DiskChange]) -> CrashPoint<'a> {
        let mut durable = Directory::default();
        let mut outstanding = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            let later = &changes[at..];
            let is_durable = match change {
                DiskChange::Emptied(file)
                | DiskChange::Written(file, ..)
                | DiskChange::Resized(file, _) => later.contains(&DiskChange::Synced(*file)),
                DiskChange::Created(..) | DiskChange::Renamed(..) | DiskChange::Removed(_) => {
                    later.contains(&DiskChange::DirectorySynced)
                }
                DiskChange::Synced(_) | DiskChange::DirectorySynced => continue,
            };
            match is_durable {
                true => durable.apply(at, change, None),
                false => outstanding.push((at, change)),
            }
        }
        CrashPoint {
            durable,
            outstanding,
        }
    }

    /// One state by chance: all that was done, or with some of it missing and something torn.
    pub(crate) fn draw_state(&self, loses_power: bool, chance: &mut SeededChance) -> CrashState {
        let all = self.outstanding.len();
        let mut mask = vec![true; all];
        if !loses_power || all == 0 {
            return self.state(&self.directory(&mask, None), &mask, None);
        }
        for is_there in &mut mask {
            *is_there = !chance.once_in(3);
        }
        let torn = chance.below(all);
        let tear = (mask[torn] && self.is_write(torn)).then(|| (torn, *chance.choose(&TEARS)));
        self.state(&self.directory(&mask, tear), &mask, tear)
    }

    /// How many changes may be missing.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Calls `look` with each state that was not `seen` yet.
    pub(crate) fn each_state(
        &self,
        combined: usize,
        chance: &mut SeededChance,
        seen: &mut HashSet<u64>,
        mut look: impl FnMut(CrashState) -> Result<(), String>,
    ) -> Result<usize, String> {
        let mut count = 0;
        let mut consider = |mask: &[bool], tear: Option<(usize, Tear)>| {
            let directory = self.directory(mask, tear);
            let is_complete = tear.is_none() && mask.iter().all(|is_there| *is_there);
            // The same files after a process's death are a stricter case than after a loss of power.
            if !seen.insert(directory.identity() ^ u64::from(is_complete)) {
                return Ok(());
            }
            count += 1;
            look(self.state(&directory, mask, tear))
        };
        let all = self.outstanding.len();
        let free = all.min(combined);
        for bits in 0..1usize << free {
            let mask: Vec<bool> = (0..all)
                .map(|at| at < all - free || bits & (1 << (at + free - all)) != 0)
                .collect();
            consider(&mask, None)?;
            let missing = mask.iter().filter(|is_there| !**is_there).count();
            if missing <= 1 {
                for at in (0..all).filter(|&at| mask[at] && self.is_write(at)) {
                    for tear in TEARS {
                        consider(&mask, Some((at, tear)))?;
                    }
                }
            }
        }
        if all > free {
            for _ in 0..DRAWN {
                let mask: Vec<bool> = (0..all).map(|_| !chance.once_in(3)).collect();
                let torn = chance.below(all);
                let tear =
                    (mask[torn] && self.is_write(torn)).then(|| (torn, *chance.choose(&TEARS)));
                consider(&mask, tear)?;
            }
        }
        Ok(count)
    }

    fn is_write(&self, at: usize) -> bool {
        matches!(self.outstanding[at].1, DiskChange::Written(..))
    }

    fn directory(&self, mask: &[bool], tear: Option<(usize, Tear)>) -> Directory {
        let mut directory = self.durable.clone();
        for (at, (number, change)) in self.outstanding.iter().enumerate() {
            let torn = tear.filter(|(torn, _)| *torn == at).map(|(_, tear)| tear);
            if mask[at] {
                directory.apply(*number, change, torn);
            }
        }
        directory
    }

    fn state(
        &self,
        directory: &Directory,
        mask: &[bool],
        tear: Option<(usize, Tear)>,
    ) -> CrashState {
        let mut description = String::new();
        for (at, (_, change)) in self.outstanding.iter().enumerate() {
            let torn = tear.filter(|(torn, _)| *torn == at).map(|(_, tear)| tear);
            let fate = match (mask[at], torn) {
                (false, _) => "lost".to_owned(),
                (true, None) => "there".to_owned(),
                (true, Some(tear)) => format!("torn {tear:?}"),
            };
            description += &format!("    {}: {fate}\n", describe(change));
        }
        let mut fates = self.outstanding.iter().zip(mask);
        let is_lost = |((_, change), is_there): (&(usize, &DiskChange), &bool)| {
            !is_there && matches!(change, DiskChange::Created(..))
        };
        CrashState {
            lacks_file: fates.any(is_lost),
            image: directory.image(),
            is_complete: tear.is_none() && mask.iter().all(|is_there| *is_there),
            description,
        }
    }
}

/// One change in a line.
pub(crate) fn describe(change: &DiskChange) -> String {
    match change {
        DiskChange::Written(file, position, bytes) => {
            format!(
                "write of {} bytes at {position} of file {}",
                bytes.len(),
                file.0
            )
        }
        DiskChange::Created(file, name) => format!("create {name} as file {}", file.0),
        DiskChange::Emptied(file) => format!("empty file {}", file.0),
        DiskChange::Resized(file, len) => format!("length {len} of file {}", file.0),
        DiskChange::Synced(file) => format!("sync file {}", file.0),
        DiskChange::Renamed(from, to) => format!("rename {from} to {to}"),
        DiskChange::Removed(name) => format!("remove {name}"),
        DiskChange::DirectorySynced => "sync the directory".to_owned(),
    }
}
