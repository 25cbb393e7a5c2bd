//! Lists of media types: `gzip_types`, `sub_filter_types` and their like.

use std::collections::HashSet;

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine};

/// A list of media types. Where no directive sets one, it holds the directive's default.
#[derive(Clone, Debug, Default)]
pub(crate) struct MediaTypes {
    /// `*`: every type matches.
    all: bool,
    /// In lower case, since media types are case-insensitive (RFC 9110, section 8.3.1).
    types: HashSet<BString>,
}

impl MediaTypes {
    /// Empties the list, before the first directive of a block. Types that are always in it
    /// (`text/html`) return with [`MediaTypes::read`].
    pub(crate) fn clear(&mut self) {
        *self = MediaTypes::default();
    }

    /// Adds the words of a directive. `always` are types that need not be named; naming one is a
    /// warning.
    pub(crate) fn read(
        &mut self,
        line: &mut DirectiveLine,
        always: &[&str],
    ) -> Result<(), Diagnostic> {
        for name in always {
            self.types.insert((*name).into());
        }
        for index in 0..line.args().len() {
            let text = line.text(index);
            if text == "*" {
                self.all = true;
                continue;
            }
            let is_new = self.types.insert(text.to_ascii_lowercase().into());
            if !is_new && !line.is_default() {
                line.warn_at(index, format!("duplicate MIME type \"{text}\""));
            }
        }
        Ok(())
    }

    /// Whether a `Content-Type` is in the list, ignoring its parameters and its case.
    pub(crate) fn has(&self, content_type: &[u8]) -> bool {
        // `*` includes responses without a type.
        if self.all {
            return true;
        }
        let essence = proto::mime::essence(content_type);
        if essence.is_empty() {
            return false;
        }
        if self.types.contains(essence.as_bstr()) {
            return true;
        }
        // Nearly all types are lower case already and are found without an allocation.
        essence.iter().any(u8::is_ascii_uppercase)
            && self.types.contains(essence.to_ascii_lowercase().as_bstr())
    }
}
