//! The boxes (atoms) of an MP4 file: ISO/IEC 14496-12, section 4.2.
//!
//! ```text
//! size: 4 bytes   name: 4 bytes   [size: 8 bytes, when the first one is 1]   content
//! ```
//!
//! Sizes include the header. Numbers are big-endian. No size is trusted: a box that does not fit
//! into the one around it is an error.

/// The maximum length of a header, in bytes.
pub(super) const MAX_HEADER: u64 = 16;

/// The header of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoxHeader {
    pub(super) name: [u8; 4],
    /// The size of the whole box, in bytes.
    pub(super) size: u64,
    /// The size of the header, in bytes.
    pub(super) header: u64,
}

/// What is wrong with a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadBox {
    /// Its header is incomplete.
    Truncated,
    /// Its size is smaller than its header.
    TooSmall(u64),
    /// It is larger than the box around it.
    TooLarge(u64),
}

/// Parses the header at the start of `text`; `room` is what is left of the enclosing box. `None`
/// for a size of 0, which here ends the list.
pub(super) fn header(text: &[u8], room: u64) -> Result<Option<BoxHeader>, BadBox> {
    let short = number(text, 0).ok_or(BadBox::Truncated)?;
    if short == 0 {
        return Ok(None);
    }
    let name = *text
        .get(4..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(BadBox::Truncated)?;
    let (size, header) = match short {
        1 => (long_number(text, 8).ok_or(BadBox::Truncated)?, 16),
        size => (u64::from(size), 8),
    };
    if size < header {
        return Err(BadBox::TooSmall(size));
    }
    if size > room {
        return Err(BadBox::TooLarge(size));
    }
    Ok(Some(BoxHeader { name, size, header }))
}

/// The name and the content of a box.
pub(super) type ChildBox<'a> = ([u8; 4], &'a [u8]);

/// The boxes in `text`.
pub(super) fn children(text: &[u8]) -> Result<Vec<ChildBox<'_>>, BadBox> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let rest = &text[at..];
        let Some(header) = header(rest, rest.len() as u64)? else {
            break;
        };
        found.push((
            header.name,
            &rest[header.header as usize..header.size as usize],
        ));
        at += header.size as usize;
    }
    Ok(found)
}

/// The 4-byte number at a position.
pub(super) fn number(text: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*text.get(at..)?.first_chunk()?))
}

/// The 8-byte number at a position.
pub(super) fn long_number(text: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*text.get(at..)?.first_chunk()?))
}

/// Appends a box; `write` appends its content. The size is filled in afterwards, so boxes can be
/// nested.
pub(super) fn write_box<T>(
    name: &[u8; 4],
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> T,
) -> T {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    let result = write(out);
    // The content comes from an index that fits into memory (`mp4_max_buffer_size`), so 32 bits
    // suffice.
    let size = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_not_trusted() {
        assert_eq!(
            header(b"\0\0\0\x08free", 8),
            Ok(Some(BoxHeader {
                name: *b"free",
                size: 8,
                header: 8
            }))
        );
        assert_eq!(header(b"\0\0\0\0free", 8), Ok(None));
        assert_eq!(header(b"\0\0\0\x07free", 8), Err(BadBox::TooSmall(7)));
        assert_eq!(header(b"\0\0\0\x09free", 8), Err(BadBox::TooLarge(9)));
        assert_eq!(
            header(b"\0\0\0\x01free\0\0\0\0\0\0\0\x0f", 99),
            Err(BadBox::TooSmall(15))
        );
        assert_eq!(header(b"\0\0\0\x01fr", 99), Err(BadBox::Truncated));
        let long = header(b"\0\0\0\x01mdat\0\0\0\x01\0\0\0\0", 1 << 33)
            .map(|found| found.map(|found| found.size));
        assert_eq!(long, Ok(Some(1 << 32)));
    }

    #[test]
    fn boxes_stand_in_boxes() {
        let mut out = Vec::new();
        write_box(b"moov", &mut out, |out| {
            write_box(b"trak", out, |out| out.push(7));
            write_box(b"free", out, |_| {});
        });
        let outer = children(&out).expect("it was just written");
        assert_eq!(outer.len(), 1);
        assert_eq!(
            children(outer[0].1),
            Ok(vec![(*b"trak", &[7][..]), (*b"free", &[][..])])
        );
    }
}
