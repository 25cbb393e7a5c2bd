//! `types`: the media types of files by their extensions.

use std::collections::HashMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine};

/// Media types by extension, which is compared without regard to case.
#[derive(Clone, Debug)]
pub struct MimeTypes {
    by_ending: HashMap<Box<[u8]>, BString>,
    /// The longest extension, so that a longer one is not even looked up.
    longest: usize,
}

/// The types where `types` is not configured, as in nginx.
const BUILT_IN: [(&str, &str); 3] = [
    ("html", "text/html"),
    ("gif", "image/gif"),
    ("jpg", "image/jpeg"),
];

impl MimeTypes {
    /// No types.
    pub fn empty() -> Arc<MimeTypes> {
        Arc::new(MimeTypes {
            by_ending: HashMap::new(),
            longest: 0,
        })
    }

    /// Adds the rows of a `types {}` block to `old`: each is a media type and its extensions. An extension that already
    /// had a type gets a warning.
    pub fn read_types(old: &MimeTypes, line: &mut DirectiveLine) -> Result<MimeTypes, Diagnostic> {
        let mut types = old.clone();
        for row in line.entries() {
            for word in &row.args {
                let Some(previous) = types.set(&word.text, row.name.as_bstr()) else {
                    continue;
                };
                let message = format!(
                    "duplicate extension \"{}\", content type: \"{}\", previous content type: \"{previous}\"",
                    word.text, row.name.text
                );
                let warning = Diagnostic {
                    severity: conf::Severity::Warn,
                    ..row.error_at(word, message)
                };
                line.level.report(warning);
            }
        }
        Ok(types)
    }

    /// Sets the type of an extension; returns the previous one.
    fn set(&mut self, ending: &[u8], media_type: &BStr) -> Option<BString> {
        self.longest = self.longest.max(ending.len());
        self.by_ending
            .insert(ending.to_ascii_lowercase().into(), media_type.to_owned())
    }

    /// The media type of a path's extension: what follows the last dot of its last segment, unless that segment begins
    /// with it.
    pub fn of_path(&self, path: &[u8]) -> Option<&BString> {
        let ending = proto::uri::path_extension(path)?;
        if ending.len() > self.longest {
            return None;
        }
        // Only such a name needs a copy in lower case; most have none.
        if ending.iter().any(u8::is_ascii_uppercase) {
            return self.by_ending.get(ending.to_ascii_lowercase().as_slice());
        }
        self.by_ending.get(ending)
    }
}

impl Default for MimeTypes {
    fn default() -> MimeTypes {
        let mut types = MimeTypes {
            by_ending: HashMap::new(),
            longest: 0,
        };
        for (ending, media_type) in BUILT_IN {
            types.set(ending.as_bytes(), media_type.as_bytes().as_bstr());
        }
        types
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_dot_of_the_last_part_decides() {
        let types = MimeTypes::default();
        let of = |path: &str| types.of_path(path.as_bytes()).map(ToString::to_string);
        assert_eq!(of("/a/b.html").as_deref(), Some("text/html"));
        assert_eq!(of("/a/b.HTML").as_deref(), Some("text/html"));
        assert_eq!(of("/a.gif/b"), None);
        assert_eq!(of("/a.gif.jpg").as_deref(), Some("image/jpeg"));
        assert_eq!(of("/.html"), None);
        assert_eq!(of("/a."), None);
        assert_eq!(of("/a.unknown-and-long"), None);
    }
}
