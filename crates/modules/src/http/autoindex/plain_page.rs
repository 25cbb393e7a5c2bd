//! nginx's page: columns of names, times and sizes in a `pre` element. Scripts parse it, so it is
//! the same to the byte.

use bstr::ByteSlice;
use proto::date::TimeZone;
use rt::file::InodeKind;

use super::{Conf, ListingEntry, escape};

/// The width of the name column: in characters if the page is announced as UTF-8, otherwise in
/// bytes.
const NAME_WIDTH: usize = 50;

/// Appends the page. `utf8`: the response is announced as UTF-8.
pub(super) fn write(
    path: &[u8],
    entries: &[ListingEntry],
    conf: &Conf,
    utf8: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"<html>\r\n<head><title>Index of ");
    escape::html(path, out);
    out.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    escape::html(path, out);
    out.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        write_entry(entry, conf, utf8, out);
    }
    out.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
}

/// Appends the line of an entry.
fn write_entry(entry: &ListingEntry, conf: &Conf, utf8: bool, out: &mut Vec<u8>) {
    let is_directory = entry.kind == InodeKind::Directory;
    out.extend_from_slice(b"<a href=\"");
    escape::link(&entry.name, out);
    out.extend_from_slice(if is_directory { b"/\">" } else { b"\">" });
    let width = write_name(&entry.name, is_directory, utf8, out);
    out.resize(out.len() + NAME_WIDTH - width, b' ');
    out.push(b' ');
    proto::date::write_listing(super::shown_time(entry, conf), &TimeZone::UTC, out);
    out.push(b' ');
    let size = match (is_directory, conf.exact_size) {
        (true, true) => format!("{:>19}", "-"),
        (true, false) => format!("{:>7}", "-"),
        (false, true) => format!("{:>19}", entry.size),
        (false, false) => rounded(entry.size),
    };
    out.extend_from_slice(size.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a name, truncated to the column, and the end of its link. Returns its width. Names that
/// are not UTF-8 count by bytes.
fn write_name(name: &[u8], is_directory: bool, utf8: bool, out: &mut Vec<u8>) -> usize {
    let is_text = utf8 && name.to_str().is_ok();
    let mut width = if is_text {
        name.chars().count()
    } else {
        name.len()
    };
    if width > NAME_WIDTH {
        // Room for `..>`; the link still has the whole name.
        let shown = NAME_WIDTH - 3;
        let end = if is_text {
            name.char_indices()
                .nth(shown)
                .map_or(name.len(), |(start, ..)| start)
        } else {
            shown
        };
        escape::html(&name[..end], out);
        out.extend_from_slice(b"..&gt;</a>");
        return NAME_WIDTH;
    }
    escape::html(name, out);
    // A name that fills the column exactly gets no slash.
    if is_directory && width < NAME_WIDTH {
        out.push(b'/');
        width += 1;
    }
    out.extend_from_slice(b"</a>");
    width
}

/// A size in 7 columns: bytes up to 9999, then rounded to K, M or G.
fn rounded(size: u64) -> String {
    const UNITS: [(u64, u64, char); 3] = [
        (1 << 30, 1 << 30, 'G'),
        (1 << 20, 1 << 20, 'M'),
        (10_000, 1 << 10, 'K'),
    ];
    match UNITS.iter().find(|(from, ..)| size >= *from) {
        Some((_, unit, letter)) => format!(
            "{:>6}{letter}",
            size / unit + u64::from(size % unit >= unit / 2)
        ),
        None => format!("{size:>7}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> String {
        let mut out = Vec::new();
        let width = write_name(name.as_bytes(), false, true, &mut out);
        out.resize(out.len() + NAME_WIDTH - width, b'.');
        String::from_utf8(out).expect("text stays text")
    }

    #[test]
    fn names_fill_their_column() {
        assert_eq!(name("a"), format!("a</a>{}", ".".repeat(49)));
        assert_eq!(name(&"ф".repeat(50)), format!("{}</a>", "ф".repeat(50)));
        assert_eq!(
            name(&"ф".repeat(51)),
            format!("{}..&gt;</a>", "ф".repeat(47))
        );
        assert_eq!(
            name(&">".repeat(51)),
            format!("{}..&gt;</a>", "&gt;".repeat(47))
        );
    }

    #[test]
    fn sizes_are_rounded_as_in_nginx() {
        let sizes = [
            0,
            9999,
            10_000,
            10_752,
            1 << 20,
            3 << 19,
            (1 << 30) - 1,
            1 << 30,
        ];
        let shown = ["0", "9999", "10K", "11K", "1M", "2M", "1024M", "1G"];
        for (size, shown) in sizes.into_iter().zip(shown) {
            assert_eq!(rounded(size), format!("{shown:>7}"));
        }
    }
}
