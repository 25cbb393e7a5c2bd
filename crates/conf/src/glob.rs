//! Shell patterns in `include`: `*`, `?`, `[a-z]`, `[!a-z]`, and a backslash before a character
//! that means itself.
//!
//! As in glob(3) without flags, a wildcard matches neither `/` nor a dot at the start of a name.
//! Braces and `~` are literal.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Whether the text is a pattern.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// The existing paths that match, sorted by bytes. A directory that cannot be read matches nothing,
/// as in glob(3) without GLOB_ERR.
pub fn expand(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let bytes = pattern.as_os_str().as_bytes();
    let root = if bytes.starts_with(b"/") { "/" } else { "" };
    let mut paths = vec![PathBuf::from(root)];
    for component in bytes
        .split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty())
    {
        paths = paths
            .into_iter()
            .flat_map(|path| step(path, component))
            .collect();
    }
    paths.retain(|path| path.symlink_metadata().is_ok());
    paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(paths)
}

/// The continuations of `path` by one component of the pattern.
fn step(path: PathBuf, component: &[u8]) -> Vec<PathBuf> {
    if !is_pattern(component) {
        return vec![path.join(OsStr::from_bytes(&unescaped(component)))];
    }
    let directory = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        &path
    };
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
    names
        .filter(|name| matches_name(component, name.as_bytes()))
        .map(|name| path.join(name))
        .collect()
}

fn unescaped(component: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(component.len());
    let mut bytes = component.iter();
    while let Some(&byte) = bytes.next() {
        out.push(if byte == b'\\' {
            *bytes.next().unwrap_or(&byte)
        } else {
            byte
        });
    }
    out
}

/// Whether a whole path matches a whole pattern, component by component.
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let mut pattern = pattern.split(|&byte| byte == b'/');
    let mut path = path.split(|&byte| byte == b'/');
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if matches_name(pattern, name) => {}
            _ => return false,
        }
    }
}

/// Whether one name matches one component. On a mismatch the last `*` takes one byte more and the
/// rest is tried again; earlier stars need not be reconsidered, so the cost is at most pattern ×
/// name.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if let Some(width) = match_one(&pattern[p..], name[n]) {
            p += width;
            n += 1;
        } else if let Some((after, taken)) = star {
            star = Some((after, taken + 1));
            (p, n) = (after, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// How many pattern bytes match this one byte, if any do.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => match bracket(pattern, byte) {
            Some((width, true)) => Some(width),
            Some((_, false)) => None,
            // Without a closing bracket it is literal.
            None => (byte == b'[').then_some(1),
        },
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// Parses a bracket expression: its length, and whether it contains the byte. A `]` that comes
/// first is literal.
fn bracket(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let mut at = first;
    let mut found = false;
    loop {
        let low = *pattern.get(at)?;
        if low == b']' && at > first {
            return Some((at + 1, found != negated));
        }
        match (pattern.get(at + 1), pattern.get(at + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                found |= (low..=high).contains(&byte);
                at += 3;
            }
            _ => {
                found |= low == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", ".conf", false),
            ("*.conf", ".a.conf", false),
            (".*", ".a", true),
            ("*", "", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXcXb", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**", "abc", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
        assert!(!matches(b"/a/*", b"/a/b/c"));
        assert!(matches(b"/a/*/c", b"/a/b/c"));
    }

    #[test]
    fn expands_in_order_of_bytes() {
        let root = std::env::temp_dir().join(format!("weir-glob-{}", std::process::id()));
        for directory in ["b", "a"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
            std::fs::write(root.join(directory).join("x.conf"), "").unwrap();
        }
        let found = expand(&root.join("*/*.conf")).unwrap();
        assert_eq!(found, [root.join("a/x.conf"), root.join("b/x.conf")]);
        assert_eq!(
            expand(&root.join("*/none*")).unwrap(),
            Vec::<PathBuf>::new()
        );
        std::fs::remove_dir_all(root).unwrap();
    }
}
