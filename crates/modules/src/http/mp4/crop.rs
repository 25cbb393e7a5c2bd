//! Crops the index of an MP4 file (its `moov` box) to a span of time.
//!
//! Each track has tables that say how long its samples are shown (`stts`), which of them can be
//! decoded on their own (`stss`), how far apart decoding and showing are (`ctts`), how large they
//! are (`stsz`), which chunk each is in (`stsc`), and where in the file the chunks begin (`stco`,
//! `co64`): ISO/IEC 14496-12, section 8. The first table maps the time to a sample; the others are
//! then cut to the remaining samples. Tables of other kinds are dropped, since they would be wrong.

use std::ops::Range;

use super::boxes::{self, write_box};
use super::headers::{CropError, CropTimes, MediaHeader, crop_error, scaled};
use super::track::CroppedTrack;

/// A file that consists of a part of another.
#[derive(Debug)]
pub(super) struct CroppedFile {
    /// Everything up to the media data.
    pub(super) head: Vec<u8>,
    /// The range of the original file with the media data.
    pub(super) data: Range<u64>,
}

/// Crops. `types` is the complete `ftyp` box, `index` the content of the `moov` box, and `data_end`
/// where the media data ends.
pub(super) fn crop(
    types: &[u8],
    index: &[u8],
    data_end: u64,
    wanted: CropTimes,
) -> Result<CroppedFile, CropError> {
    let children = boxes::children(index)?;
    // An obsolete form, which nginx refuses as well.
    if children.iter().any(|(name, _)| name == b"cmov") {
        return crop_error("compressed moov atom (cmov) is not supported");
    }
    let movie = match children.iter().find(|(name, _)| name == b"mvhd") {
        Some((_, text)) => Some(MediaHeader::read(text, "mvhd")?),
        None => None,
    };
    // Without `mvhd` all times are 0, so the tracks alone decide.
    let timescale = movie.as_ref().map_or(0, |movie| movie.timescale);
    if let Some(movie) = &movie
        && movie.duration < scaled(wanted.start_ms, movie.timescale)
    {
        return crop_error("start time exceeds file duration");
    }
    let mut tracks = Vec::new();
    for (_, text) in children.iter().filter(|(name, _)| name == b"trak") {
        tracks.extend(CroppedTrack::read(text, timescale, wanted)?);
    }
    if tracks.is_empty() {
        return crop_error("no trak atoms were found");
    }
    let chunks = || tracks.iter().flat_map(|track| &track.chunks);
    // The tracks are interleaved, so the part sent is the span that contains all of their chunks.
    let start = chunks().map(|chunk| chunk.data.start).min().unwrap_or(0);
    let end = chunks().map(|chunk| chunk.data.end).max().unwrap_or(0);
    if end <= start {
        return crop_error("no data between start time and end time");
    }
    // Offsets come from the file. They must not make us send what is outside of its media data.
    if end > data_end {
        return crop_error("samples are out of the mdat atom");
    }
    let mut head = types.to_vec();
    let mut tables = Vec::new();
    write_box(b"moov", &mut head, |out| {
        if let Some(movie) = &movie {
            movie.write(b"mvhd", movie.remaining(wanted), out);
        }
        for track in &tracks {
            tables.push(track.write(out));
        }
    });
    write_data_header(end - start, &mut head);
    // The offsets in the index depend on its own length, so they are filled in when it is complete.
    let length = head.len() as u64;
    for (track, table) in tracks.iter().zip(tables) {
        track.write_offsets(&mut head[table], |offset| offset - start + length)?;
    }
    Ok(CroppedFile {
        head,
        data: start..end,
    })
}

/// Appends the header of the `mdat` box, with a 64-bit size if necessary.
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

#[cfg(test)]
mod tests {
    use super::super::headers::number_at;
    use super::*;

    /// A movie with one track: 6 samples of 10 bytes and one second each, two per chunk; the chunks
    /// are at 1000, 1020 and 1040.
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
        let count = number_at(head, at - 4) as usize;
        (0..count).map(|n| number_at(head, at + 4 * n)).collect()
    }

    #[test]
    fn a_part_names_only_its_own_data() {
        let wanted = CropTimes {
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
        let wanted = CropTimes {
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
        let wanted = CropTimes {
            start_ms: 1000,
            length_ms: None,
            key_frame: false,
        };
        assert!(
            crop(b"", &movie(), 1059, wanted).is_err(),
            "the data ends early"
        );
        let late = CropTimes {
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
                    let wanted = CropTimes {
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
