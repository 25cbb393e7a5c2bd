//! The requested span, and the headers of a movie and of its tracks, whose durations are cut to it.

use super::boxes::{BadBox, long_number, number, write_box};

/// The requested span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CropTimes {
    pub(super) start_ms: u64,
    /// `None`: to the end.
    pub(super) length_ms: Option<u64>,
    /// Whether the part must begin with a sample that can be decoded on its own.
    pub(super) key_frame: bool,
}

/// Why a file cannot be cropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CropError(pub(super) String);

impl From<BadBox> for CropError {
    fn from(bad: BadBox) -> CropError {
        CropError(match bad {
            BadBox::Truncated => "the file is truncated".to_owned(),
            BadBox::TooSmall(size) => format!("atom is too small: {size}"),
            BadBox::TooLarge(size) => format!("atom is too large: {size}"),
        })
    }
}

/// Fails with this reason.
pub(super) fn crop_error<T>(why: &str) -> Result<T, CropError> {
    Err(CropError(why.to_owned()))
}

/// A time in units of a timescale.
pub(super) fn scaled(ms: u64, timescale: u32) -> u64 {
    ms.saturating_mul(u64::from(timescale)) / 1000
}

/// The remaining duration, in units of `timescale`.
pub(super) fn remaining_duration(duration: u64, timescale: u32, wanted: CropTimes) -> u64 {
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
pub(super) struct MediaHeader<'a> {
    pub(super) text: &'a [u8],
    pub(super) timescale: u32,
    pub(super) duration: u64,
}

impl<'a> MediaHeader<'a> {
    /// Parses the header; every other field is copied unchanged later.
    pub(super) fn read(text: &'a [u8], name: &str) -> Result<Self, CropError> {
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
            _ => Err(CropError(format!("{name} atom is too small"))),
        }
    }

    /// Its duration after cropping.
    pub(super) fn remaining(&self, wanted: CropTimes) -> u64 {
        remaining_duration(self.duration, self.timescale, wanted)
    }

    /// Appends the box with another duration.
    pub(super) fn write(&self, name: &[u8; 4], duration: u64, out: &mut Vec<u8>) {
        let at = if self.text[0] == 0 { 16 } else { 24 };
        write_with_duration(name, self.text, at, duration, out);
    }
}

/// Copies a box with another duration: 4 bytes in version 0, otherwise 8.
pub(super) fn write_with_duration(
    name: &[u8; 4],
    text: &[u8],
    at: usize,
    duration: u64,
    out: &mut Vec<u8>,
) {
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
pub(super) struct TrackHeader<'a> {
    pub(super) text: &'a [u8],
    pub(super) duration: u64,
}

impl<'a> TrackHeader<'a> {
    pub(super) fn read(text: &'a [u8]) -> Result<Self, CropError> {
        let duration = match text.first() {
            Some(0) => number(text, 20).map(u64::from),
            _ => long_number(text, 28),
        };
        match duration {
            Some(duration) => Ok(TrackHeader { text, duration }),
            None => crop_error("tkhd atom is too small"),
        }
    }

    pub(super) fn write(&self, duration: u64, out: &mut Vec<u8>) {
        let at = if self.text[0] == 0 { 20 } else { 28 };
        write_with_duration(b"tkhd", self.text, at, duration, out);
    }
}

/// A word of an entry whose size has been checked.
pub(super) fn number_at(entry: &[u8], at: usize) -> u32 {
    number(entry, at).unwrap_or(0)
}
