//! One track of an MP4 file: its sample tables, cut to a span of time and written again.

use std::ops::Range;

use super::boxes::{self, long_number, number, write_box};
use super::headers::{
    CropError, CropTimes, MediaHeader, TrackHeader, crop_error, number_at, remaining_duration,
    scaled,
};

/// A cropped track.
pub(super) struct CroppedTrack<'a> {
    header: Option<TrackHeader<'a>>,
    /// Duration in the movie's units.
    duration: u64,
    media: Option<MediaHeader<'a>>,
    /// Duration in the track's units, including `prefix`.
    media_duration: u64,
    /// How much precedes the requested time because the key frame is earlier, in the track's units.
    lead_in: u64,
    handler: Option<&'a [u8]>,
    /// The boxes of `minf` other than the sample tables.
    information: Vec<boxes::ChildBox<'a>>,
    descriptions: Option<&'a [u8]>,
    /// `stts`: runs of samples with the same duration, as count and duration.
    time_to_sample: Vec<(u32, u32)>,
    key_frames: Option<Vec<u32>>,
    /// `ctts` with its version and flags; in version 1 the values are signed.
    composition_offsets: Option<(u32, Vec<(u32, u32)>)>,
    /// The size of every sample; 0 if each has its own.
    same_size: u32,
    /// The sizes of all samples of the original, if they differ.
    sizes: Vec<u32>,
    /// The remaining samples, by their numbers in the original, from 0.
    samples: Range<u32>,
    pub(super) chunks: Vec<SampleChunk>,
    /// Whether offsets have 8 bytes.
    long_offsets: bool,
}

/// A chunk with the remaining samples in it.
pub(super) struct SampleChunk {
    pub(super) samples: u32,
    pub(super) description: u32,
    /// Where these are in the file.
    pub(super) data: Range<u64>,
}

/// The sample tables of a track as they are in the file.
#[derive(Default)]
struct SampleTables<'a> {
    descriptions: Option<&'a [u8]>,
    times: Option<&'a [u8]>,
    key_frames: Option<&'a [u8]>,
    shifts: Option<&'a [u8]>,
    chunks: Option<&'a [u8]>,
    sizes: Option<&'a [u8]>,
    offsets: Option<&'a [u8]>,
    long_offsets: Option<&'a [u8]>,
}

impl<'a> SampleTables<'a> {
    fn read(text: &'a [u8]) -> Result<Self, CropError> {
        let mut tables = SampleTables::default();
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
                // Other tables refer to sample numbers too, which have changed.
                _ => continue,
            };
            *table = Some(text);
        }
        Ok(tables)
    }
}

/// The entries of a table, `width` bytes each, after `head` bytes of which the last 4 are the
/// number of entries. That number is checked against the size of the table before anything is
/// allocated for it.
fn entries<'a>(
    text: Option<&'a [u8]>,
    name: &str,
    head: usize,
    width: usize,
) -> Result<std::slice::ChunksExact<'a, u8>, CropError> {
    let Some(text) = text else {
        return Err(CropError(format!("no {name} atoms were found")));
    };
    // Checked arithmetic: the count comes from the file, and on a 32-bit system the product could overflow into a
    // small number that passes the check.
    let count = number(text, head - 4).map(|count| count as usize);
    let bytes =
        count.and_then(|count| text.get(head..head.checked_add(count.checked_mul(width)?)?));
    match bytes {
        Some(bytes) => Ok(bytes.chunks_exact(width)),
        None => Err(CropError(format!("{name} atom is too small"))),
    }
}

/// Parses entries of two words, of which the first is a count.
fn pairs(text: Option<&[u8]>, name: &str) -> Result<Vec<(u32, u32)>, CropError> {
    Ok(entries(text, name, 8, 8)?
        .map(|entry| (number_at(entry, 0), number_at(entry, 4)))
        .collect())
}

impl<'a> CroppedTrack<'a> {
    /// Parses and crops a track; `None` if it ends before the span begins.
    pub(super) fn read(
        text: &'a [u8],
        movie_timescale: u32,
        wanted: CropTimes,
    ) -> Result<Option<Self>, CropError> {
        let (mut header, mut media_box) = (None, None);
        for (name, text) in boxes::children(text)? {
            match &name {
                b"tkhd" => header = Some(TrackHeader::read(text)?),
                b"mdia" => media_box = Some(text),
                _ => {}
            }
        }
        // Without media there is no timescale and there are no samples: nothing of such a track could be cut.
        let Some(media_box) = media_box else {
            return crop_error("no mdia atoms were found");
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
        // A track that has ended, such as a short soundtrack, is left out; the others still make a
        // video.
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
        // The sample tables are rewritten; the other boxes, such as the data references, are copied as they are.
        let mut information = boxes::children(information_box.unwrap_or_default())?;
        let Some(at) = information.iter().position(|(name, _)| name == b"stbl") else {
            return crop_error("no stbl atoms were found");
        };
        let tables = SampleTables::read(information.remove(at).1)?;
        let timescale = media.as_ref().map_or(0, |media| media.timescale);
        let mut track = CroppedTrack {
            duration: header.as_ref().map_or(0, |header| {
                remaining_duration(header.duration, movie_timescale, wanted)
            }),
            media_duration: media.as_ref().map_or(0, |media| media.remaining(wanted)),
            header,
            media,
            lead_in: 0,
            handler,
            information,
            descriptions: tables.descriptions,
            time_to_sample: pairs(tables.times, "stts")?,
            key_frames: None,
            composition_offsets: None,
            same_size: 0,
            sizes: Vec::new(),
            samples: 0..0,
            chunks: Vec::new(),
            long_offsets: tables.long_offsets.is_some(),
        };
        track.cut(&tables, timescale, wanted)?;
        Ok(Some(track))
    }

    /// Finds the remaining samples and cuts all tables to them.
    fn cut(
        &mut self,
        tables: &SampleTables,
        timescale: u32,
        wanted: CropTimes,
    ) -> Result<(), CropError> {
        let keys: Option<Vec<u32>> = match tables.key_frames {
            Some(text) => Some(
                entries(Some(text), "stss", 8, 4)?
                    .map(|entry| number_at(entry, 0))
                    .collect(),
            ),
            None => None,
        };
        // First, because chunk boundaries can only be computed from the sizes of samples.
        self.read_sizes(tables)?;
        // A key frame is looked for only if `mp4_start_key_frame` asks for it, and only in tracks that have a list
        // of them: in others, such as sound, every sample is one.
        let first = self.cut_times(
            scaled(wanted.start_ms, timescale),
            keys.as_deref().filter(|_| wanted.key_frame),
        )?;
        let total = tables.sizes.and_then(|text| number(text, 8)).unwrap_or(0);
        // The tables contradict each other. nginx gives up here too: a file that is sent in part must be
        // consistent.
        if first >= total {
            return crop_error("start time is out of the stsz samples");
        }
        let end = match wanted.length_ms {
            // Counted from the requested time, so a lead-in before it makes the part longer.
            Some(length) => first.saturating_add(
                self.end_times(scaled(length, timescale).saturating_add(self.lead_in)),
            ),
            None => total,
        };
        // The lead-in is sent as well, although the edit list makes players skip it.
        self.media_duration = self.media_duration.saturating_add(self.lead_in);
        self.samples = first..end.min(total);
        let samples = self.samples.clone();
        // `stss` numbers samples from 1.
        self.key_frames = keys.map(|keys| {
            keys.into_iter()
                .filter(|key| *key > samples.start && *key <= samples.end)
                .map(|key| key - samples.start)
                .collect()
        });
        if let Some(text) = tables.shifts {
            self.composition_offsets = Some((
                number_at(text, 0),
                cut_counts(&pairs(Some(text), "ctts")?, &samples),
            ));
        }
        self.cut_chunks(tables)
    }

    /// `stsz`: version and flags 4, size 4, number 4, and when the size is 0 one for each sample.
    fn read_sizes(&mut self, tables: &SampleTables) -> Result<(), CropError> {
        let Some(text) = tables.sizes else {
            return crop_error("no stsz atoms were found");
        };
        let Some(same) = number(text, 4) else {
            return crop_error("stsz atom is too small");
        };
        self.same_size = same;
        if same == 0 {
            self.sizes = entries(Some(text), "stsz", 12, 4)?
                .map(|entry| number_at(entry, 0))
                .collect();
        }
        Ok(())
    }

    /// Removes the time before `start`. Returns the sample shown at that time, or the key frame
    /// before it.
    fn cut_times(&mut self, start: u64, keys: Option<&[u32]>) -> Result<u32, CropError> {
        let mut sample = sample_at(&self.time_to_sample, start)
            .ok_or_else(|| CropError("start time is out of the stts samples".to_owned()))?;
        if let Some(keys) = keys {
            // Sample numbers start at 1: a zero would make the subtraction below wrap around.
            if keys.contains(&0) {
                return crop_error("zero sync sample");
            }
            if let Some(key) = keys
                .iter()
                .rev()
                .find(|key| **key <= sample.saturating_add(1))
            {
                // The time from the key frame to the requested sample, which the edit list has to hide.
                let before = cut_counts(&self.time_to_sample, &(key - 1..sample));
                self.lead_in = before.iter().fold(0_u64, |sum, &(count, duration)| {
                    sum.saturating_add(u64::from(count) * u64::from(duration))
                });
                sample = key - 1;
            }
        }
        self.time_to_sample = cut_counts(&self.time_to_sample, &(sample..u32::MAX));
        Ok(sample)
    }

    /// Removes the time from `length` on. Returns how many samples remain.
    fn end_times(&mut self, length: u64) -> u32 {
        match sample_at(&self.time_to_sample, length) {
            Some(samples) => {
                self.time_to_sample = cut_counts(&self.time_to_sample, &(0..samples));
                samples
            }
            None => self
                .time_to_sample
                .iter()
                .fold(0, |sum, (count, _)| sum.saturating_add(*count)),
        }
    }

    /// The total size of samples, by their numbers in the original.
    fn size_of(&self, samples: Range<u32>) -> Result<u64, CropError> {
        // No table in this case: the product cannot overflow, because both factors have 32 bits.
        if self.same_size > 0 {
            return Ok(u64::from(samples.end - samples.start) * u64::from(self.same_size));
        }
        match self.sizes.get(samples.start as usize..samples.end as usize) {
            Some(sizes) => Ok(sizes.iter().map(|size| u64::from(*size)).sum()),
            None => crop_error("stsz atom has too few samples"),
        }
    }

    /// Finds the chunks with samples of the part, and where their data is.
    ///
    /// `stsc` consists of runs of chunks: first chunk 4 (numbered from 1), samples in each 4,
    /// description 4.
    fn cut_chunks(&mut self, tables: &SampleTables) -> Result<(), CropError> {
        let offsets: Vec<u64> = match tables.long_offsets {
            // `co64` is preferred: a file with both would have it because the short offsets do not suffice.
            Some(text) => {
                let read = |entry: &[u8]| long_number(entry, 0).unwrap_or(0);
                entries(Some(text), "co64", 8, 8)?.map(read).collect()
            }
            None => entries(tables.offsets, "stco", 8, 4)?
                .map(|entry| u64::from(number_at(entry, 0)))
                .collect(),
        };
        let runs: Vec<[u32; 3]> = entries(tables.chunks, "stsc", 8, 12)?
            .map(|entry| {
                [
                    number_at(entry, 0),
                    number_at(entry, 4),
                    number_at(entry, 8),
                ]
            })
            .collect();
        let mut sample = 0_u32;
        for (n, [first, samples, description]) in runs.iter().copied().enumerate() {
            // A run lasts until the chunk before the next run's first one, and the last run until the end of the
            // offsets.
            let next = runs
                .get(n + 1)
                .map_or(offsets.len(), |next| next[0].saturating_sub(1) as usize);
            let first = first
                .checked_sub(1)
                .ok_or_else(|| CropError("zero chunk in the stsc atom".to_owned()))?
                as usize;
            if runs
                .get(n + 1)
                .is_some_and(|next| next[0] as usize <= first + 1)
            {
                // Their order bounds the work: each chunk is visited once, however many runs there
                // are.
                return crop_error("the chunks of the stsc atom are not in order");
            }
            for offset in offsets
                .get(first..next.min(offsets.len()))
                .unwrap_or_default()
            {
                let end = sample.saturating_add(samples);
                // The intersection of the chunk's samples with those that are sent.
                let left = sample.max(self.samples.start)..end.min(self.samples.end);
                if left.start < left.end {
                    // The first chunk can begin before the part, and only the last one can end
                    // after it.
                    let skipped = self.size_of(sample..left.start)?;
                    let size = self.size_of(left.clone())?;
                    let start = offset.checked_add(skipped);
                    let data = start.and_then(|start| Some(start..start.checked_add(size)?));
                    let data =
                        data.ok_or_else(|| CropError("a chunk offset is too large".to_owned()))?;
                    self.chunks.push(SampleChunk {
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

    /// Appends the track. The chunk offsets are left open; returns where that table is.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Range<usize> {
        write_box(b"trak", out, |out| {
            if let Some(header) = &self.header {
                header.write(self.duration, out);
            }
            // Only with a lead-in: a file without an edit list is played from its first sample anyway.
            if self.lead_in > 0 {
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

    /// Appends an edit list (`elst`) with one entry that makes players start after the lead-in.
    /// Version 1: count 4, duration 8, start 8, rate 4.
    fn write_edit(&self, out: &mut Vec<u8>) {
        write_box(b"edts", out, |out| {
            write_box(b"elst", out, |out| {
                out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1]);
                out.extend_from_slice(&self.duration.to_be_bytes());
                out.extend_from_slice(&self.lead_in.to_be_bytes());
                out.extend_from_slice(&[0, 1, 0, 0]);
            });
        });
    }

    /// Appends the sample tables. Returns where the chunk offsets are.
    fn write_tables(&self, out: &mut Vec<u8>) -> Range<usize> {
        if let Some(text) = self.descriptions {
            write_box(b"stsd", out, |out| out.extend_from_slice(text));
        }
        write_table(
            b"stts",
            0,
            self.time_to_sample
                .iter()
                .map(|&(count, value)| [count, value]),
            out,
        );
        if let Some(keys) = &self.key_frames {
            write_table(b"stss", 0, keys.iter().map(|&key| [key]), out);
        }
        if let Some((version, shifts)) = &self.composition_offsets {
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
            // Zeros for now: the offsets depend on the length of this very header, which is known only when all of
            // it is written.
            out.extend_from_slice(&(self.chunks.len() as u32).to_be_bytes());
            let start = out.len();
            out.resize(start + self.chunks.len() * width, 0);
            start..out.len()
        })
    }

    /// The chunks in the form of `stsc`: an entry wherever something changes.
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

    /// Appends `stsz`.
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

    /// Fills in the chunk offsets.
    pub(super) fn write_offsets(
        &self,
        table: &mut [u8],
        moved: impl Fn(u64) -> u64,
    ) -> Result<(), CropError> {
        for (n, chunk) in self.chunks.iter().enumerate() {
            let offset = moved(chunk.data.start);
            if self.long_offsets {
                table[n * 8..n * 8 + 8].copy_from_slice(&offset.to_be_bytes());
            } else {
                let Ok(offset) = u32::try_from(offset) else {
                    return crop_error("a chunk offset is too large");
                };
                table[n * 4..n * 4 + 4].copy_from_slice(&offset.to_be_bytes());
            }
        }
        Ok(())
    }
}

/// The sample shown at a time; `None` after the last one.
fn sample_at(times: &[(u32, u32)], mut time: u64) -> Option<u32> {
    let mut sample = 0_u32;
    for &(count, duration) in times {
        let all = u64::from(count) * u64::from(duration);
        if time < all {
            // The quotient is less than `count`, so it fits into 32 bits. A duration of 0 makes
            // `all` 0 and never gets here.
            return sample.checked_add((time / u64::from(duration)) as u32);
        }
        time -= all;
        sample = sample.checked_add(count)?;
    }
    None
}

/// Cuts run-length entries to a range of samples.
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

/// Appends a table of words: version and flags 4, count 4, entries.
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
}
