//! A look at the directory of a store from outside: for tools, also while a server has the store open.
//!
//! It takes no lock and changes nothing. It reads the records of all segments, and finds what a start would find: the
//! newest object of each key, unless it was removed, purged or evicted since. It does not see what a running server has
//! only in memory, and it passes over a segment that the server removes meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::format::{
    self, DiskRecord, Extent, HEADER, ObjectRecord, RecordKind, STALE, SegmentHeader,
};
use crate::purge::{self, PurgeMode, PurgeTable};
use crate::{CacheKey, ObjectHead};

/// What a store has, as [`survey_store`] found it.
#[derive(Debug, Default)]
pub struct StoreSurvey {
    /// How many segments there are, and how many bytes they have.
    pub segments: usize,
    /// The bytes of all segments; what is not of live objects is yet to be reclaimed.
    pub bytes: u64,
    /// Live objects.
    pub objects: u64,
    /// The bytes of their bodies.
    pub body_bytes: u64,
    /// What is damaged, in words.
    pub damage: Vec<String>,
}

/// A live object, as a lookup would find it.
#[derive(Debug)]
pub struct SurveyedObject {
    /// The key under which it is found.
    pub key: CacheKey,
    /// What is stored of it beside the body.
    pub head: ObjectHead,
    /// How many bytes of the body there are.
    pub held: u64,
    /// It was purged softly.
    pub is_softened: bool,
}

/// Where the newest record of a key stands.
#[derive(Clone, Copy)]
struct NewestRecord {
    sequence: u64,
    segment: u32,
    position: u64,
    is_object: bool,
    softened: u64,
}

/// The most damage that is listed. A file full of it must not fill the memory as well.
const MOST_DAMAGE: usize = 1000;

/// Reads the store at `path` and gives each live object to `each`, in the order of their keys' hashes. With `verify`
/// all bytes of bodies are read and compared with their checksums. Blocks.
pub fn survey_store(
    path: &Path,
    verify: bool,
    mut each: impl FnMut(&SurveyedObject),
) -> io::Result<StoreSurvey> {
    let seed = seed_of(path)?;
    let mut survey = StoreSurvey::default();
    let mut purges = PurgeTable::default();
    let remembered = crate::open_store::read_checkpoint_summary(path, seed);
    purge::decode_purges(&remembered.purges, &mut purges);
    let segments = open_all(path, seed, &mut survey)?;
    let mut newest: HashMap<u64, NewestRecord> = HashMap::new();
    for (&number, file) in &segments {
        read_segment(
            number,
            file,
            verify,
            &mut survey,
            |record, meta, position| {
                note(&mut newest, &mut purges, record, meta, (number, position));
            },
        );
    }
    // An object that was evicted or was inactive keeps its record until its segment is reclaimed. The checkpoint says
    // that it is gone.
    let was_kept =
        |hash: &u64, sequence| sequence >= remembered.sequence || remembered.hashes.contains(hash);
    let live: BTreeMap<u64, NewestRecord> = newest
        .into_iter()
        .filter(|(hash, found)| found.is_object && was_kept(hash, found.sequence))
        .collect();
    for found in live.values() {
        let Some(file) = segments.get(&found.segment) else {
            continue;
        };
        let Some((record, bytes)) = read_meta(file, found.segment, found.position) else {
            continue;
        };
        let Some(description) = record.meta(&bytes).and_then(ObjectRecord::read) else {
            survey.tell(format!(
                "segment {:08x}: the object at {} is damaged",
                found.segment, found.position
            ));
            continue;
        };
        // Purges are applied last: the record of one may stand in a segment behind that of the object.
        let verdict =
            purges.purge_mode(record.born, description.key.text(), &description.head.tags);
        if verdict == Some(PurgeMode::Hard) {
            continue;
        }
        let Some(held) = held(&record, &description, &segments, verify, &mut survey) else {
            continue;
        };
        survey.objects += 1;
        survey.body_bytes += held;
        each(&SurveyedObject {
            key: description.key,
            head: description.head,
            held,
            is_softened: verdict.is_some() || found.softened > found.sequence,
        });
    }
    Ok(survey)
}

fn seed_of(path: &Path) -> io::Result<u64> {
    let bytes = match fs::read(path.join("store")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_dir() => {
            return Err(io::Error::other("not a Weir cache directory"));
        }
        read => read?,
    };
    let damaged = || io::Error::other("its file \"store\" is damaged or was not written by Weir");
    format::read_store(&bytes).ok_or_else(damaged)
}

impl StoreSurvey {
    fn tell(&mut self, what: String) {
        if self.damage.len() < MOST_DAMAGE {
            self.damage.push(what);
        }
    }
}

/// All segments of the store, opened at once, so that one that is removed meanwhile can still be read.
fn open_all(path: &Path, seed: u64, survey: &mut StoreSurvey) -> io::Result<BTreeMap<u32, File>> {
    let mut segments = BTreeMap::new();
    for item in fs::read_dir(path)? {
        let item = item?;
        let name = item.file_name();
        let number = name
            .to_str()
            .and_then(|name| u32::from_str_radix(name.strip_suffix(".segment")?, 16).ok());
        let (Some(number), Ok(file)) = (number, File::open(item.path())) else {
            continue;
        };
        let mut header = [0; HEADER];
        let is_ours = file.read_exact_at(&mut header, 0).is_ok()
            && SegmentHeader::read(&header)
                .is_some_and(|header| header.number == number && header.seed == seed);
        if is_ours {
            survey.segments += 1;
            survey.bytes += file.metadata()?.len();
            segments.insert(number, file);
        }
    }
    Ok(segments)
}

/// Reads record by record; a finished segment ends with its table, another one where a record is not whole.
fn read_segment(
    number: u32,
    file: &File,
    verify: bool,
    survey: &mut StoreSurvey,
    mut each: impl FnMut(&DiskRecord, &[u8], u64),
) {
    let mut position = HEADER as u64;
    while let Some((record, bytes)) = read_meta(file, number, position) {
        if record.kind == RecordKind::Table {
            return;
        }
        match record.meta(&bytes) {
            Some(meta) => each(&record, meta, position),
            None => {
                return survey.tell(format!(
                    "segment {number:08x}: the record at {position} is damaged"
                ));
            }
        }
        if verify && record.data_len > 0 && !is_sound(file, &record, position) {
            survey.tell(format!(
                "segment {number:08x}: the data of the record at {position} is damaged"
            ));
        }
        position += record.size();
    }
}

/// The header and the meta part of a record.
fn read_meta(file: &File, number: u32, position: u64) -> Option<(DiskRecord, Vec<u8>)> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, position).ok()?;
    let record = DiskRecord::read(&header).filter(|record| record.segment == number)?;
    // The header is not verified yet, but its reader has bounded the length.
    let mut bytes = vec![0; HEADER + record.meta_len as usize];
    file.read_exact_at(&mut bytes, position).ok()?;
    Some((record, bytes))
}

fn is_sound(file: &File, record: &DiskRecord, position: u64) -> bool {
    let mut data = vec![0; record.data_len as usize];
    let at = position + record.data_range().start as u64;
    file.read_exact_at(&mut data, at).is_ok() && crate::checksum::xxh64(&data, 0) == record.data_sum
}

fn note(
    newest: &mut HashMap<u64, NewestRecord>,
    purges: &mut PurgeTable,
    record: &DiskRecord,
    meta: &[u8],
    (segment, position): (u32, u64),
) {
    match record.kind {
        RecordKind::Purge => {
            if let Some((scope, mode, name)) = purge::decode_purge(meta) {
                purges.record(scope, name, mode, record.sequence);
            }
        }
        // Segments are read by their numbers, and both sides are written at the same time: a tombstone may come before
        // the object that it is about. The higher sequence number counts.
        RecordKind::Object | RecordKind::Tombstone | RecordKind::Soften => {
            let found = newest.entry(record.hash).or_insert(NewestRecord {
                sequence: 0,
                segment,
                position,
                is_object: false,
                softened: 0,
            });
            if record.kind == RecordKind::Soften {
                found.softened = found.softened.max(record.sequence);
            } else if record.sequence >= found.sequence {
                found.sequence = record.sequence;
                found.segment = segment;
                found.position = position;
                found.is_object = record.kind == RecordKind::Object;
                // Written after the purge that has hit it.
                if record.flags & STALE != 0 {
                    found.softened = found.softened.max(record.sequence + 1);
                }
            }
        }
        RecordKind::Body | RecordKind::Table => {}
    }
}

/// How many bytes of the body are there; those that are damaged are listed. `None`: a part of it was in a segment that
/// is gone, and the object with it.
fn held(
    record: &DiskRecord,
    description: &ObjectRecord,
    segments: &BTreeMap<u32, File>,
    verify: bool,
    survey: &mut StoreSurvey,
) -> Option<u64> {
    let mut held = u64::from(record.data_len);
    for extent in &description.extents {
        held += u64::from(extent.len);
        segments.get(&extent.segment)?;
    }
    for extent in description.extents.iter().filter(|_| verify) {
        let is_sound = segments
            .get(&extent.segment)
            .is_some_and(|file| is_extent_sound(file, extent));
        if !is_sound {
            let key = String::from_utf8_lossy(description.key.text()).into_owned();
            survey.tell(format!(
                "\"{key}\": the body is damaged from byte {}",
                extent.offset
            ));
        }
    }
    Some(held)
}

fn is_extent_sound(file: &File, extent: &Extent) -> bool {
    let mut data = vec![0; extent.len as usize];
    file.read_exact_at(&mut data, extent.position).is_ok()
        && crate::checksum::xxh64(&data, 0) == extent.sum
}
