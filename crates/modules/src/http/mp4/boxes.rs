//! The boxes (atoms) of an MP4 file: ISO/IEC 14496-12, section 4.2.
//!
//! ```text
//! size: 4 bytes   name: 4 bytes   [size: 8 bytes, when the first one is 1]   content
//! ```
//!
//! Sizes include the header. Numbers are big-endian. Nothing here trusts a size: a box that does not fit into what is
//! around it is an error.

/// The longest header, in bytes.
pub(super) const MAX_HEADER: u64 = 16;

/// The header of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: [u8; 4],
    /// Bytes of the whole box.
    pub(super) size: u64,
    /// Bytes of the header.
    pub(super) header: u64,
}

/// What is wrong with a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadBox {
    /// There is no room for its header.
    Truncated,
    /// Its size is less than that of its header.
    TooSmall(u64),
    /// It is larger than what it is in.
    TooLarge(u64),
}

/// Reads the header at the start of `text`; `room` is what is left of what the box is in. `None` for a size of 0, which
/// ends the list.
pub(super) fn header(text: &[u8], room: u64) -> Result<Option<Header>, BadBox> {
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
    Ok(Some(Header { name, size, header }))
}

/// A box by name, with its content.
pub(super) type Child<'a> = ([u8; 4], &'a [u8]);

/// The boxes in `text`.
pub(super) fn children(text: &[u8]) -> Result<Vec<Child<'_>>, BadBox> {
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

/// The number of 4 bytes at this place.
pub(super) fn number(text: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*text.get(at..)?.first_chunk()?))
}

/// The number of 8 bytes at this place.
pub(super) fn long_number(text: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*text.get(at..)?.first_chunk()?))
}

/// Appends a box whose content `write` appends.
pub(super) fn write_box<T>(
    name: &[u8; 4],
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> T,
) -> T {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    let result = write(out);
    // What is written here comes from a file whose index fits into 32 bits of memory.
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
            Ok(Some(Header {
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
