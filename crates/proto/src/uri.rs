//! The request target's path and args: normalised as nginx does, and escaped again.

use std::ops::Range;

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The args: this part of the target, after `?`, before `#`; empty if there are none.
    pub args: Range<usize>,
    /// The path had a `%xx`: a proxied path must be escaped again.
    pub quoted: bool,
    /// The path as sent was not its own normal form: it had `//`, `/.`, `%xx` or `#`.
    pub complex: bool,
    /// The path has a `+`.
    pub plus: bool,
    /// The target can be sent on as it is: it begins with a path.
    pub valid_unparsed: bool,
}

/// Whether `//` in a path is the same as `/`: `merge_slashes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slashes {
    /// `on`, the default.
    Merge,
    /// `off`
    Keep,
}

/// The target can not be normalised: answer 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUri;

/// Appends the normalised path of `target`, which is [`Head::target`](crate::h1::Head::target) or
/// the like, to `path`: escapes decoded, `.` and `..` resolved, slashes merged. Refused are bad
/// escapes, `%00` and `..` above the root; `path` is then unchanged.
pub fn normalize(
    target: &[u8],
    slashes: Slashes,
    path: &mut Vec<u8>,
) -> Result<Target, InvalidUri> {
    let _ = (target, slashes, path);
    Err(InvalidUri)
}

/// The file name extension of a path, without the dot, as the `types` table looks it up.
pub fn extension(path: &[u8]) -> Option<&[u8]> {
    let _ = path;
    None
}

/// Which bytes [`escape`] replaces by `%XX`; nginx's classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A path.
    Uri,
    /// An argument within args.
    Args,
    /// A component that stands for itself: all but unreserved characters.
    UriComponent,
    /// A path within an HTML attribute.
    Html,
    /// A whole URI within a Refresh field.
    Refresh,
    /// A memcached key.
    Memcached,
}

/// Appends `text` with the bytes of the class replaced by `%XX`.
pub fn escape(class: Escape, text: &[u8], out: &mut Vec<u8>) {
    let _ = (class, text, out);
}

/// Whether [`escape`] would change `text`.
pub fn needs_escape(class: Escape, text: &[u8]) -> bool {
    let _ = (class, text);
    false
}

/// Appends `text` with every `%xx` decoded; a bad escape loses its `%`, as in nginx.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let _ = (text, out);
}

/// As [`unescape`], for the target of a redirect: only visible characters above `%` are decoded,
/// and nothing after a `?`.
pub fn unescape_redirect(text: &[u8], out: &mut Vec<u8>) {
    let _ = (text, out);
}

/// Splits a URI from configuration or a rewrite at the first `?`.
pub fn split_args(uri: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'?', uri) {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (uri, None),
    }
}
