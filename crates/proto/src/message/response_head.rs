//! The head of an upstream's response, whichever protocol brought it.

use super::version::MessageVersion;
use crate::fields::{ArenaSpan, Fields};
use crate::known_fields::KnownField;

/// An upstream's response head.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// The status, 100 to 999.
    pub status: u16,
    /// The protocol version.
    pub version: MessageVersion,
    /// The fields; of those that must stand once, the first.
    pub fields: Fields,
    pub(crate) status_text: ArenaSpan,
    pub(crate) repeated: Vec<ArenaSpan>,
}

impl Default for ResponseHead {
    fn default() -> ResponseHead {
        ResponseHead {
            status: 0,
            version: MessageVersion::HTTP_09,
            fields: Fields::new(),
            status_text: ArenaSpan::default(),
            repeated: Vec::new(),
        }
    }
}

impl ResponseHead {
    /// Repeated lines that are remembered for the log.
    pub const MAX_REPEATED: usize = 16;

    /// Makes it empty again and keeps the memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.version = MessageVersion::HTTP_09;
        self.fields.clear();
        self.status_text = ArenaSpan::default();
        self.repeated.clear();
    }

    /// The status and the reason phrase as sent: `404 Not Found`.
    pub fn status_text(&self) -> &[u8] {
        self.text(self.status_text)
    }

    /// Makes the value of a field the status and reason phrase, if it has both.
    pub(crate) fn take_status_text(&mut self, field: KnownField) {
        let found = self.fields.iter_spans().find(|(known, _)| *known == field);
        self.status_text = match found {
            // Without a space behind its digits it has no reason that could be passed on.
            Some((_, value)) if value.of(self.fields.arena()).get(3) == Some(&b' ') => value,
            _ => ArenaSpan::default(),
        };
    }

    /// The header lines that were dropped because an earlier one has the same name.
    pub fn repeated(&self) -> impl Iterator<Item = &[u8]> + '_ {
        self.repeated.iter().map(|&line| self.text(line))
    }

    /// Remembers a field of a header block that is dropped because an earlier one has the same name.
    pub fn note_repeated(&mut self, name: &[u8], value: &[u8]) {
        if self.repeated.len() < Self::MAX_REPEATED {
            let line = self.fields.append_text(&[name, b": ", value].concat());
            self.repeated.push(line);
        }
    }

    /// Whether the upstream keeps the connection open after this response.
    pub fn keeps_alive(&self) -> bool {
        let says = |token| {
            self.fields
                .all_known(KnownField::Connection)
                .any(|value| has_token(value, token))
        };
        let is_new = self.version >= MessageVersion::HTTP_11;
        // An old server that speaks of chunks may mean another end than we do (RFC 9112, section
        // 6.1).
        let is_faulty = !is_new && self.fields.has(KnownField::TransferEncoding);
        !says(b"close") && !is_faulty && (is_new || says(b"keep-alive"))
    }

    fn text(&self, span: ArenaSpan) -> &[u8] {
        span.of(self.fields.arena())
    }
}

/// Whether a comma-separated list has this token, in any case.
pub fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|&b| b == b',')
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}
