//! The index of an MP4 file (its `moov` box), cut to a part of the time.
//!
//! Each track has tables that say how long its samples are shown (`stts`), which of them stand alone (`stss`), how far
//! apart decoding and showing are (`ctts`), how large they are (`stsz`), which chunk each is in (`stsc`), and where in the
//! file the chunks begin (`stco`, `co64`): ISO/IEC 14496-12, section 8. A time leads to a sample by the first; the other
//! tables are then cut to the samples that are left. Tables of other kinds are left out, since they would be wrong.

use std::ops::Range;

use super::boxes::{self, BadBox, long_number, number, write_box};

/// The part that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) start_ms: u64,
    /// To the end when there is none.
    pub(super) length_ms: Option<u64>,
    /// The part must begin with a sample that stands alone.
    pub(super) key_frame: bool,
}

/// A file made of a part of another.
#[derive(Debug)]
pub(super) struct Cropped {
    /// Everything up to the media data.
    pub(super) head: Vec<u8>,
    /// The media data, as a range of the original file.
    pub(super) data: Range<u64>,
}

/// Why a file can not be cut.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

impl From<BadBox> for Broken {
    fn from(bad: BadBox) -> Broken {
        Broken(match bad {
            BadBox::Truncated => "the file is truncated".to_owned(),
            BadBox::TooSmall(size) => format!("atom is too small: {size}"),
            BadBox::TooLarge(size) => format!("atom is too large: {size}"),
        })
    }
}

fn broken<T>(why: &str) -> Result<T, Broken> {
    Err(Broken(why.to_owned()))
}

/// Cuts. `types` is the whole `ftyp` box, `index` the content of the `moov` box, `data_end` where the media data ends.
pub(super) fn crop(
    types: &[u8],
    index: &[u8],
    data_end: u64,
    wanted: Wanted,
) -> Result<Cropped, Broken> {
    let children = boxes::children(index)?;
    if children.iter().any(|(name, _)| name == b"cmov") {
        return broken("compressed moov atom (cmov) is not supported");
    }
    let movie = match children.iter().find(|(name, _)| name == b"mvhd") {
        Some((_, text)) => Some(MediaHeader::read(text, "mvhd")?),
        None => None,
    };
    let timescale = movie.as_ref().map_or(0, |movie| movie.timescale);
    if let Some(movie) = &movie
        && movie.duration < scaled(wanted.start_ms, movie.timescale)
    {
        return broken("start time exceeds file duration");
    }
    let mut tracks = Vec::new();
    for (_, text) in children.iter().filter(|(name, _)| name == b"trak") {
        tracks.extend(Track::read(text, timescale, wanted)?);
    }
    if tracks.is_empty() {
        return broken("no trak atoms were found");
    }
    let chunks = || tracks.iter().flat_map(|track| &track.chunks);
    let start = chunks().map(|chunk| chunk.data.start).min().unwrap_or(0);
    let end = chunks().map(|chunk| chunk.data.end).max().unwrap_or(0);
    if end <= start {
        return broken("no data between start time and end time");
    }
    if end > data_end {
        return broken("samples are out of the mdat atom");
    }
    let mut head = types.to_vec();
    let mut tables = Vec::new();
    write_box(b"moov", &mut head, |out| {
        if let Some(movie) = &movie {
            movie.write(b"mvhd", movie.rest_of(wanted), out);
        }
        for track in &tracks {
            tables.push(track.write(out));
        }
    });
    write_data_header(end - start, &mut head);
    let length = head.len() as u64;
    for (track, table) in tracks.iter().zip(tables) {
        track.write_offsets(&mut head[table], |offset| offset - start + length)?;
    }
    Ok(Cropped {
        head,
        data: start..end,
    })
}

fn write_data_header(length: u64, out: &mut Vec<u8>) {
    match u32::try_from(length + 8) {
        Ok(size) => {
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(b"mdat");
        }
        Err(_) => {
            out.extend_from_slice(b"\0\0\0\x01mdat");
            out.extend_from_slice(&(length + 16).to_be_bytes());
        }
    }
}

/// A time in a track's or the movie's own units.
fn scaled(ms: u64, timescale: u32) -> u64 {
    ms.saturating_mul(u64::from(timescale)) / 1000
}

/// How long what is left takes, in units of `timescale`.
fn rest(duration: u64, timescale: u32, wanted: Wanted) -> u64 {
    let rest = duration.saturating_sub(scaled(wanted.start_ms, timescale));
    wanted
        .length_ms
        .map_or(rest, |length| rest.min(scaled(length, timescale)))
}

/// `mvhd` and `mdhd`, which begin alike. Version 1 has times of 8 bytes.
///
/// ```text
/// version 1, flags 3, created 4|8, changed 4|8, timescale 4, duration 4|8, …
/// ```
struct MediaHeader<'a> {
    text: &'a [u8],
    timescale: u32,
    duration: u64,
}

impl<'a> MediaHeader<'a> {
    fn read(text: &'a [u8], name: &str) -> Result<Self, Broken> {
        let (timescale, duration) = match text.first() {
            Some(0) => (number(text, 12), number(text, 16).map(u64::from)),
            _ => (number(text, 20), long_number(text, 24)),
        };
        match (timescale, duration) {
            (Some(timescale), Some(duration)) => Ok(MediaHeader {
                text,
                timescale,
                duration,
            }),
            _ => Err(Broken(format!("{name} atom is too small"))),
        }
    }

    fn rest_of(&self, wanted: Wanted) -> u64 {
        rest(self.duration, self.timescale, wanted)
    }

    fn write(&self, name: &[u8; 4], duration: u64, out: &mut Vec<u8>) {
        let at = if self.text[0] == 0 { 16 } else { 24 };
        write_with_duration(name, self.text, at, duration, out);
    }
}

/// Writes a box again with another duration: 4 bytes in version 0, else 8.
fn write_with_duration(name: &[u8; 4], text: &[u8], at: usize, duration: u64, out: &mut Vec<u8>) {
    write_box(name, out, |out| {
        let start = out.len() + at;
        out.extend_from_slice(text);
        match text[0] {
            0 => {
                let duration = u32::try_from(duration).unwrap_or(u32::MAX);
                out[start..start + 4].copy_from_slice(&duration.to_be_bytes());
            }
            _ => out[start..start + 8].copy_from_slice(&duration.to_be_bytes()),
        }
    });
}

/// `tkhd`: version 1, flags 3, created 4|8, changed 4|8, number 4, reserved 4, duration 4|8, …
struct TrackHeader<'a> {
    text: &'a [u8],
    duration: u64,
}

impl<'a> TrackHeader<'a> {
    fn read(text: &'a [u8]) -> Result<Self, Broken> {
        let duration = match text.first() {
            Some(0) => number(text, 20).map(u64::from),
            _ => long_number(text, 28),
        };
        match duration {
            Some(duration) => Ok(TrackHeader { text, duration }),
            None => broken("tkhd atom is too small"),
        }
    }

    fn write(&self, duration: u64, out: &mut Vec<u8>) {
        let at = if self.text[0] == 0 { 20 } else { 28 };
        write_with_duration(b"tkhd", self.text, at, duration, out);
    }
}

/// A track, cut.
struct Track<'a> {
    header: Option<TrackHeader<'a>>,
    /// In the movie's units.
    duration: u64,
    media: Option<MediaHeader<'a>>,
    /// In the track's units, with `prefix`.
    media_duration: u64,
    /// What comes before the time that was asked for, since the key frame is earlier; in the track's units.
    prefix: u64,
    handler: Option<&'a [u8]>,
    /// The boxes of `minf` beside the tables.
    information: Vec<boxes::Child<'a>>,
    descriptions: Option<&'a [u8]>,
    /// How many samples are shown for how long, run by run.
    times: Vec<(u32, u32)>,
    key_frames: Option<Vec<u32>>,
    /// With the version and flags: in version 1 the values are signed.
    shifts: Option<(u32, Vec<(u32, u32)>)>,
    /// The size of all samples; 0 when each has its own.
    same_size: u32,
    /// The sizes of all samples of the original.
    sizes: Vec<u32>,
    /// The samples that are left, by their numbers in the original.
    samples: Range<u32>,
    chunks: Vec<Chunk>,
    /// The offsets are of 8 bytes.
    long_offsets: bool,
}

/// A chunk with the samples that are left in it.
struct Chunk {
    samples: u32,
    description: u32,
    /// Where they are in the file.
    data: Range<u64>,
}

/// The tables of a track as they stand in the file.
#[derive(Default)]
struct Tables<'a> {
    descriptions: Option<&'a [u8]>,
    times: Option<&'a [u8]>,
    key_frames: Option<&'a [u8]>,
    shifts: Option<&'a [u8]>,
    chunks: Option<&'a [u8]>,
    sizes: Option<&'a [u8]>,
    offsets: Option<&'a [u8]>,
    long_offsets: Option<&'a [u8]>,
}

impl<'a> Tables<'a> {
    fn read(text: &'a [u8]) -> Result<Self, Broken> {
        let mut tables = Tables::default();
        for (name, text) in boxes::children(text)? {
            let table = match &name {
                b"stsd" => &mut tables.descriptions,
                b"stts" => &mut tables.times,
                b"stss" => &mut tables.key_frames,
                b"ctts" => &mut tables.shifts,
                b"stsc" => &mut tables.chunks,
                b"stsz" => &mut tables.sizes,
                b"stco" => &mut tables.offsets,
                b"co64" => &mut tables.long_offsets,
                // Tables of other kinds go by samples too, and would be wrong.
                _ => continue,
            };
            *table = Some(text);
        }
        Ok(tables)
    }
}

/// The entries of a table, `width` bytes each, behind `head` bytes of which the last 4 are their number.
fn entries<'a>(
    text: Option<&'a [u8]>,
    name: &str,
    head: usize,
    width: usize,
) -> Result<std::slice::ChunksExact<'a, u8>, Broken> {
    let Some(text) = text else {
        return Err(Broken(format!("no {name} atoms were found")));
    };
    let count = number(text, head - 4).map(|count| count as usize);
    let bytes =
        count.and_then(|count| text.get(head..head.checked_add(count.checked_mul(width)?)?));
    match bytes {
        Some(bytes) => Ok(bytes.chunks_exact(width)),
        None => Err(Broken(format!("{name} atom is too small"))),
    }
}

fn word(entry: &[u8], at: usize) -> u32 {
    number(entry, at).unwrap_or(0)
}

/// Entries of two words, of which the first is a count.
fn pairs(text: Option<&[u8]>, name: &str) -> Result<Vec<(u32, u32)>, Broken> {
    Ok(entries(text, name, 8, 8)?
        .map(|entry| (word(entry, 0), word(entry, 4)))
        .collect())
}

impl<'a> Track<'a> {
    /// Reads and cuts a track; `None` when it ends before the part begins.
    fn read(text: &'a [u8], movie_timescale: u32, wanted: Wanted) -> Result<Option<Self>, Broken> {
        let (mut header, mut media_box) = (None, None);
        for (name, text) in boxes::children(text)? {
            match &name {
                b"tkhd" => header = Some(TrackHeader::read(text)?),
                b"mdia" => media_box = Some(text),
                _ => {}
            }
        }
        let Some(media_box) = media_box else {
            return broken("no mdia atoms were found");
        };
        let (mut media, mut handler, mut information_box) = (None, None, None);
        for (name, text) in boxes::children(media_box)? {
            match &name {
                b"mdhd" => media = Some(MediaHeader::read(text, "mdhd")?),
                b"hdlr" => handler = Some(text),
                b"minf" => information_box = Some(text),
                _ => {}
            }
        }
        let is_over = |duration: u64, timescale| duration <= scaled(wanted.start_ms, timescale);
        if header
            .as_ref()
            .is_some_and(|header| is_over(header.duration, movie_timescale))
            || media
                .as_ref()
                .is_some_and(|media| is_over(media.duration, media.timescale))
        {
            return Ok(None);
        }
        let mut information = boxes::children(information_box.unwrap_or_default())?;
        let Some(at) = information.iter().position(|(name, _)| name == b"stbl") else {
            return broken("no stbl atoms were found");
        };
        let tables = Tables::read(information.remove(at).1)?;
        let timescale = media.as_ref().map_or(0, |media| media.timescale);
        let mut track = Track {
            duration: header
                .as_ref()
                .map_or(0, |header| rest(header.duration, movie_timescale, wanted)),
            media_duration: media.as_ref().map_or(0, |media| media.rest_of(wanted)),
            header,
            media,
            prefix: 0,
            handler,
            information,
            descriptions: tables.descriptions,
            times: pairs(tables.times, "stts")?,
            key_frames: None,
            shifts: None,
            same_size: 0,
            sizes: Vec::new(),
            samples: 0..0,
            chunks: Vec::new(),
            long_offsets: tables.long_offsets.is_some(),
        };
        track.cut(&tables, timescale, wanted)?;
        Ok(Some(track))
    }

    fn cut(&mut self, tables: &Tables, timescale: u32, wanted: Wanted) -> Result<(), Broken> {
        let keys: Option<Vec<u32>> = match tables.key_frames {
            Some(text) => Some(
                entries(Some(text), "stss", 8, 4)?
                    .map(|entry| word(entry, 0))
                    .collect(),
            ),
            None => None,
        };
        self.read_sizes(tables)?;
        let first = self.cut_times(
            scaled(wanted.start_ms, timescale),
            keys.as_deref().filter(|_| wanted.key_frame),
        )?;
        let total = tables.sizes.and_then(|text| number(text, 8)).unwrap_or(0);
        if first >= total {
            return broken("start time is out of the stsz samples");
        }
        let end = match wanted.length_ms {
            Some(length) => first.saturating_add(
                self.end_times(scaled(length, timescale).saturating_add(self.prefix)),
            ),
            None => total,
        };
        self.media_duration = self.media_duration.saturating_add(self.prefix);
        self.samples = first..end.min(total);
        let samples = self.samples.clone();
        // Samples are numbered from 1 there.
        self.key_frames = keys.map(|keys| {
            keys.into_iter()
                .filter(|key| *key > samples.start && *key <= samples.end)
                .map(|key| key - samples.start)
                .collect()
        });
        if let Some(text) = tables.shifts {
            self.shifts = Some((
                word(text, 0),
                cut_counts(&pairs(Some(text), "ctts")?, &samples),
            ));
        }
        self.cut_chunks(tables)
    }

    /// `stsz`: version and flags 4, size 4, number 4, and when the size is 0 one for each sample.
    fn read_sizes(&mut self, tables: &Tables) -> Result<(), Broken> {
        let Some(text) = tables.sizes else {
            return broken("no stsz atoms were found");
        };
        let Some(same) = number(text, 4) else {
            return broken("stsz atom is too small");
        };
        self.same_size = same;
        if same == 0 {
            self.sizes = entries(Some(text), "stsz", 12, 4)?
                .map(|entry| word(entry, 0))
                .collect();
        }
        Ok(())
    }

    /// Takes away the time before `start`: the number of the sample that is shown then, or of the key frame before it.
    fn cut_times(&mut self, start: u64, keys: Option<&[u32]>) -> Result<u32, Broken> {
        let mut sample = sample_at(&self.times, start)
            .ok_or_else(|| Broken("start time is out of the stts samples".to_owned()))?;
        if let Some(keys) = keys {
            if keys.contains(&0) {
                return broken("zero sync sample");
            }
            if let Some(key) = keys
                .iter()
                .rev()
                .find(|key| **key <= sample.saturating_add(1))
            {
                let before = cut_counts(&self.times, &(key - 1..sample));
                self.prefix = before.iter().fold(0_u64, |sum, &(count, duration)| {
                    sum.saturating_add(u64::from(count) * u64::from(duration))
                });
                sample = key - 1;
            }
        }
        self.times = cut_counts(&self.times, &(sample..u32::MAX));
        Ok(sample)
    }

    /// Takes away the time from `length` on: how many samples are left.
    fn end_times(&mut self, length: u64) -> u32 {
        match sample_at(&self.times, length) {
            Some(samples) => {
                self.times = cut_counts(&self.times, &(0..samples));
                samples
            }
            None => self
                .times
                .iter()
                .fold(0, |sum, (count, _)| sum.saturating_add(*count)),
        }
    }

    /// The sum of the sizes of samples, by their numbers in the original.
    fn size_of(&self, samples: Range<u32>) -> Result<u64, Broken> {
        if self.same_size > 0 {
            return Ok(u64::from(samples.end - samples.start) * u64::from(self.same_size));
        }
        match self.sizes.get(samples.start as usize..samples.end as usize) {
            Some(sizes) => Ok(sizes.iter().map(|size| u64::from(*size)).sum()),
            None => broken("stsz atom has too few samples"),
        }
    }

    /// Finds the chunks that have samples of the part, and where their data is.
    ///
    /// `stsc` has runs of chunks: first chunk 4 (numbered from 1), samples in each 4, description 4.
    fn cut_chunks(&mut self, tables: &Tables) -> Result<(), Broken> {
        let offsets: Vec<u64> = match tables.long_offsets {
            Some(text) => {
                let read = |entry: &[u8]| long_number(entry, 0).unwrap_or(0);
                entries(Some(text), "co64", 8, 8)?.map(read).collect()
            }
            None => entries(tables.offsets, "stco", 8, 4)?
                .map(|entry| u64::from(word(entry, 0)))
                .collect(),
        };
        let runs: Vec<[u32; 3]> = entries(tables.chunks, "stsc", 8, 12)?
            .map(|entry| [word(entry, 0), word(entry, 4), word(entry, 8)])
            .collect();
        let mut sample = 0_u32;
        for (n, [first, samples, description]) in runs.iter().copied().enumerate() {
            let next = runs
                .get(n + 1)
                .map_or(offsets.len(), |next| next[0].saturating_sub(1) as usize);
            let first = first
                .checked_sub(1)
                .ok_or_else(|| Broken("zero chunk in the stsc atom".to_owned()))?
                as usize;
            if runs
                .get(n + 1)
                .is_some_and(|next| next[0] as usize <= first + 1)
            {
                // Only the order bounds the work: each chunk is looked at once.
                return broken("the chunks of the stsc atom are not in order");
            }
            for offset in offsets
                .get(first..next.min(offsets.len()))
                .unwrap_or_default()
            {
                let end = sample.saturating_add(samples);
                let left = sample.max(self.samples.start)..end.min(self.samples.end);
                if left.start < left.end {
                    let skipped = self.size_of(sample..left.start)?;
                    let size = self.size_of(left.clone())?;
                    let start = offset.checked_add(skipped);
                    let data = start.and_then(|start| Some(start..start.checked_add(size)?));
                    let data =
                        data.ok_or_else(|| Broken("a chunk offset is too large".to_owned()))?;
                    self.chunks.push(Chunk {
                        samples: left.end - left.start,
                        description,
                        data,
                    });
                }
                sample = end;
            }
        }
        Ok(())
    }

    /// Appends the track. Where its chunks begin is left open: the place of that table is given back.
    fn write(&self, out: &mut Vec<u8>) -> Range<usize> {
        write_box(b"trak", out, |out| {
            if let Some(header) = &self.header {
                header.write(self.duration, out);
            }
            if self.prefix > 0 {
                self.write_edit(out);
            }
            write_box(b"mdia", out, |out| {
                if let Some(media) = &self.media {
                    media.write(b"mdhd", self.media_duration, out);
                }
                if let Some(handler) = self.handler {
                    write_box(b"hdlr", out, |out| out.extend_from_slice(handler));
                }
                write_box(b"minf", out, |out| {
                    for (name, text) in &self.information {
                        write_box(name, out, |out| out.extend_from_slice(text));
                    }
                    write_box(b"stbl", out, |out| self.write_tables(out))
                })
            })
        })
    }

    /// An edit list (`elst`) of one entry: begin behind the prefix. Version 1: number 4, duration 8, begin 8, rate 4.
    fn write_edit(&self, out: &mut Vec<u8>) {
        write_box(b"edts", out, |out| {
            write_box(b"elst", out, |out| {
                out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1]);
                out.extend_from_slice(&self.duration.to_be_bytes());
                out.extend_from_slice(&self.prefix.to_be_bytes());
                out.extend_from_slice(&[0, 1, 0, 0]);
            });
        });
    }

    fn write_tables(&self, out: &mut Vec<u8>) -> Range<usize> {
        if let Some(text) = self.descriptions {
            write_box(b"stsd", out, |out| out.extend_from_slice(text));
        }
        write_table(
            b"stts",
            0,
            self.times.iter().map(|&(count, value)| [count, value]),
            out,
        );
        if let Some(keys) = &self.key_frames {
            write_table(b"stss", 0, keys.iter().map(|&key| [key]), out);
        }
        if let Some((version, shifts)) = &self.shifts {
            write_table(
                b"ctts",
                *version,
                shifts.iter().map(|&(count, value)| [count, value]),
                out,
            );
        }
        write_table(b"stsc", 0, self.runs().into_iter(), out);
        self.write_sizes(out);
        let (name, width) = if self.long_offsets {
            (b"co64", 8)
        } else {
            (b"stco", 4)
        };
        write_box(name, out, |out| {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&(self.chunks.len() as u32).to_be_bytes());
            let start = out.len();
            out.resize(start + self.chunks.len() * width, 0);
            start..out.len()
        })
    }

    /// The chunks as `stsc` has them: one entry where something changes.
    fn runs(&self) -> Vec<[u32; 3]> {
        let mut runs: Vec<[u32; 3]> = Vec::new();
        for (number, chunk) in (1_u32..).zip(&self.chunks) {
            if runs
                .last()
                .is_none_or(|last| last[1] != chunk.samples || last[2] != chunk.description)
            {
                runs.push([number, chunk.samples, chunk.description]);
            }
        }
        runs
    }

    fn write_sizes(&self, out: &mut Vec<u8>) {
        write_box(b"stsz", out, |out| {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&self.same_size.to_be_bytes());
            out.extend_from_slice(&(self.samples.end - self.samples.start).to_be_bytes());
            if self.same_size == 0 {
                let sizes = self
                    .sizes
                    .get(self.samples.start as usize..self.samples.end as usize);
                for size in sizes.unwrap_or_default() {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
        });
    }

    /// Fills in where the chunks begin.
    fn write_offsets(&self, table: &mut [u8], moved: impl Fn(u64) -> u64) -> Result<(), Broken> {
        for (n, chunk) in self.chunks.iter().enumerate() {
            let offset = moved(chunk.data.start);
            if self.long_offsets {
                table[n * 8..n * 8 + 8].copy_from_slice(&offset.to_be_bytes());
            } else {
                let Ok(offset) = u32::try_from(offset) else {
                    return broken("a chunk offset is too large");
                };
                table[n * 4..n * 4 + 4].copy_from_slice(&offset.to_be_bytes());
            }
        }
        Ok(())
    }
}

/// The sample that is shown at a time; `None` behind the last one.
fn sample_at(times: &[(u32, u32)], mut time: u64) -> Option<u32> {
    let mut sample = 0_u32;
    for &(count, duration) in times {
        let all = u64::from(count) * u64::from(duration);
        if time < all {
            // Less than `count`, which is a number of 32 bits.
            return sample.checked_add((time / u64::from(duration)) as u32);
        }
        time -= all;
        sample = sample.checked_add(count)?;
    }
    None
}

/// Cuts entries that each stand for a number of samples.
fn cut_counts(entries: &[(u32, u32)], samples: &Range<u32>) -> Vec<(u32, u32)> {
    let mut out = Vec::new();
    let mut at = 0_u32;
    for &(count, value) in entries {
        let end = at.saturating_add(count);
        let left = at.max(samples.start)..end.min(samples.end);
        if left.start < left.end {
            out.push((left.end - left.start, value));
        }
        at = end;
    }
    out
}

/// Appends a table of words: version and flags 4, number 4, entries.
fn write_table<const N: usize>(
    name: &[u8; 4],
    version: u32,
    entries: impl Iterator<Item = [u32; N]>,
    out: &mut Vec<u8>,
) {
    write_box(name, out, |out| {
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        let count_at = out.len() - 4;
        let mut count = 0_u32;
        for entry in entries {
            for word in entry {
                out.extend_from_slice(&word.to_be_bytes());
            }
            count += 1;
        }
        out[count_at..count_at + 4].copy_from_slice(&count.to_be_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_leads_to_a_sample() {
        let times = [(2, 10), (3, 100)];
        let at = [0, 9, 10, 19, 20, 119, 120, 319, 320].map(|time| sample_at(&times, time));
        assert_eq!(
            at,
            [
                Some(0),
                Some(0),
                Some(1),
                Some(1),
                Some(2),
                Some(2),
                Some(3),
                Some(4),
                None
            ]
        );
        assert_eq!(
            sample_at(&[(5, 0)], 0),
            None,
            "samples without duration are never shown"
        );
    }

    #[test]
    fn counts_are_cut_at_both_ends() {
        let entries = [(2, 7), (3, 8), (4, 9)];
        assert_eq!(cut_counts(&entries, &(1..6)), [(1, 7), (3, 8), (1, 9)]);
        assert_eq!(cut_counts(&entries, &(3..4)), [(1, 8)]);
        assert_eq!(cut_counts(&entries, &(9..12)), []);
    }

    /// A movie of one track: 6 samples of 10 bytes and a second each, two in a chunk, the chunks at 1000, 1020, 1040.
    fn movie() -> Vec<u8> {
        let words = |words: &[u32]| {
            words
                .iter()
                .flat_map(|word| word.to_be_bytes())
                .collect::<Vec<u8>>()
        };
        let mut out = Vec::new();
        let put = |name: &[u8; 4], numbers: &[u32], out: &mut Vec<u8>| {
            write_box(name, out, |out| out.extend(words(numbers)))
        };
        put(b"mvhd", &[0, 0, 0, 1000, 6000, 0], &mut out);
        write_box(b"trak", &mut out, |out| {
            put(b"tkhd", &[0, 0, 0, 1, 0, 6000, 0], out);
            write_box(b"mdia", out, |out| {
                put(b"mdhd", &[0, 0, 0, 1, 6, 0], out);
                write_box(b"minf", out, |out| {
                    write_box(b"stbl", out, |out| {
                        put(b"stts", &[0, 1, 6, 1], out);
                        put(b"stss", &[0, 2, 1, 4], out);
                        put(b"stsz", &[0, 10, 6], out);
                        put(b"stsc", &[0, 1, 1, 2, 1], out);
                        put(b"stco", &[0, 3, 1000, 1020, 1040], out);
                    });
                });
            });
        });
        out
    }

    fn offsets(head: &[u8]) -> Vec<u32> {
        let at = head
            .windows(4)
            .position(|name| name == b"stco")
            .expect("the table is there")
            + 12;
        let count = word(head, at - 4) as usize;
        (0..count).map(|n| word(head, at + 4 * n)).collect()
    }

    #[test]
    fn a_part_names_only_its_own_data() {
        let wanted = Wanted {
            start_ms: 1000,
            length_ms: Some(2500),
            key_frame: false,
        };
        let cropped = crop(b"TYPE", &movie(), 1060, wanted).expect("the movie is a good one");
        assert_eq!(cropped.data, 1010..1030);
        let head = cropped.head.len() as u32;
        assert_eq!(offsets(&cropped.head), [head, head + 10]);
        assert!(cropped.head.starts_with(b"TYPE") && cropped.head.ends_with(b"\0\0\0\x1cmdat"));
    }

    #[test]
    fn with_key_frames_the_part_begins_earlier() {
        let wanted = Wanted {
            start_ms: 4000,
            length_ms: None,
            key_frame: true,
        };
        let cropped = crop(b"", &movie(), 1060, wanted).expect("the movie is a good one");
        // The fourth sample is the key frame before the fifth.
        assert_eq!(cropped.data, 1030..1060);
        assert!(cropped.head.windows(4).any(|name| name == b"elst"));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let wanted = Wanted {
            start_ms: 1000,
            length_ms: None,
            key_frame: false,
        };
        assert!(
            crop(b"", &movie(), 1059, wanted).is_err(),
            "the data ends early"
        );
        let late = Wanted {
            start_ms: 7000,
            ..wanted
        };
        assert!(
            crop(b"", &movie(), 1060, late).is_err(),
            "nothing is there so late"
        );
        let whole = movie();
        for length in 0..whole.len() {
            // Any answer will do, but there must be one.
            let _ = crop(b"", &whole[..length], 1060, wanted);
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                for key_frame in [false, true] {
                    let wanted = Wanted {
                        length_ms: Some(2000),
                        key_frame,
                        ..wanted
                    };
                    let _ = crop(b"", &changed, u64::MAX, wanted);
                }
            }
        }
    }
}
