//! Lists of media types, as `gzip_types`, `sub_filter_types` and their like have them.

use std::collections::HashSet;

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, Line};

/// A list of media types. A list that nobody set holds what the module's directive defaults to.
#[derive(Clone, Debug, Default)]
pub(crate) struct MediaTypes {
    /// `*`: every type is in it.
    all: bool,
    /// In lower case.
    types: HashSet<BString>,
}

impl MediaTypes {
    /// Empties the list, for the first directive of a block. What is always in it (`text/html`) comes back in
    /// [`MediaTypes::read`].
    pub(crate) fn clear(&mut self) {
        *self = MediaTypes::default();
    }

    /// Adds the words of a directive. `always` is in the list without being named; naming it is a warning.
    pub(crate) fn read(&mut self, line: &mut Line, always: &[&str]) -> Result<(), Diagnostic> {
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

    /// Whether a `Content-Type` is in the list; its parameters do not matter, and neither does letter case.
    pub(crate) fn has(&self, content_type: &[u8]) -> bool {
        // `*` is responses without a type as well.
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
        essence.iter().any(u8::is_ascii_uppercase)
            && self.types.contains(essence.to_ascii_lowercase().as_bstr())
    }
}
