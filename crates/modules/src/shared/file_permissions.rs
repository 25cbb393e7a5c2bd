//! The permission syntax of `dav_access` and `proxy_store_access`: `user:rw group:r all:r`.

use conf::{Diagnostic, DirectiveLine};

/// Reads all words of a line as file mode bits. The owner can always read and write: the worker
/// must be able to replace what it has created.
pub(crate) fn parse_permissions(line: &DirectiveLine) -> Result<u32, Diagnostic> {
    let mut access = 0o600;
    for i in 0..line.args().len() {
        let text = line.text(i);
        let classes = [("user:", 6), ("group:", 3), ("all:", 0)];
        let found = classes
            .iter()
            .find_map(|(class, shift)| Some((text.strip_prefix(class.as_bytes())?, shift)));
        let (bits, shift) = match found {
            Some((b"rw", shift)) => (6, shift),
            Some((b"r", shift)) => (4, shift),
            _ => return Err(line.invalid_value(i)),
        };
        access |= bits << shift;
    }
    Ok(access)
}
