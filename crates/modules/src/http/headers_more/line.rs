//! The syntax of one `more_…` line.

use bstr::ByteSlice;
use conf::{Diagnostic, DirectiveLine, Expression};
use proto::KnownField;

/// Whether a line is about requests or responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageSide {
    Request,
    Response,
}

/// One line, as data.
#[derive(Clone, Debug)]
pub(super) struct HeaderChange {
    pub(super) fields: Vec<NamedField>,
    /// `-s`: the statuses it applies to; empty: all.
    pub(super) statuses: Vec<u64>,
    /// `-t`: the media types it applies to; empty: all.
    pub(super) types: Vec<Box<[u8]>>,
    /// `-a`: adds to the fields of that name instead of replacing them.
    pub(super) append: bool,
    /// `-r`: replaces a field of that name, and does nothing without one.
    pub(super) only_replace: bool,
}

/// A field named in a line.
#[derive(Clone, Debug)]
pub(super) struct NamedField {
    /// As written, including a trailing `*`.
    pub(super) name: Box<[u8]>,
    pub(super) known: KnownField,
    /// Whether it stands for all names with this prefix.
    pub(super) wildcard: bool,
    /// `None`: the field is removed.
    pub(super) value: Option<Expression>,
}

/// Response fields that the server generates itself, so there cannot be a second one. The list,
/// with its `E-Tag`, is the third-party module's.
const BUILT_IN: [&str; 14] = [
    "Server",
    "Date",
    "Content-Encoding",
    "Location",
    "Refresh",
    "Last-Modified",
    "Content-Range",
    "Accept-Ranges",
    "WWW-Authenticate",
    "Expires",
    "E-Tag",
    "Content-Length",
    "Content-Type",
    "Cache-Control",
];

impl HeaderChange {
    /// Reads a line; `sets` is false for the directives that only remove.
    pub(super) fn read(
        line: &mut DirectiveLine,
        direction: MessageSide,
        sets: bool,
    ) -> Result<HeaderChange, Diagnostic> {
        let mut change = HeaderChange {
            fields: Vec::new(),
            statuses: Vec::new(),
            types: Vec::new(),
            append: false,
            only_replace: false,
        };
        let response = direction == MessageSide::Response;
        let mut at = 0;
        while let Some(word) = line.get(at) {
            match word.text.as_slice() {
                b"" => {}
                b"-t" => {
                    at += 1;
                    change.read_types(option_argument(line, at)?);
                }
                b"-s" if response => {
                    at += 1;
                    option_argument(line, at)?;
                    change.read_statuses(line, at)?;
                }
                b"-a" if response && sets => change.append = true,
                b"-r" if !response => change.only_replace = true,
                [b'-', ..] => return Err(invalid_option(line, at)),
                _ => change.fields.push(NamedField::read(line, at, sets)?),
            }
            at += 1;
        }
        let built_in = |field: &&NamedField| {
            BUILT_IN
                .iter()
                .any(|name| field.name.eq_ignore_ascii_case(name.as_bytes()))
        };
        // The third-party module refuses this in the same words.
        match change.fields.iter().find(built_in) {
            Some(field) if change.append => Err(line.error(format!(
                "{}: can not append builtin headers \"{}\"",
                line.name(),
                field.name.as_bstr()
            ))),
            _ => Ok(change),
        }
    }

    /// Reads the argument of `-t`.
    fn read_types(&mut self, text: &[u8]) {
        let types = text.split(|byte| byte.is_ascii_whitespace() || *byte == b';');
        let types = types.filter(|text| !text.is_empty());
        self.types.extend(types.map(Box::from));
    }

    /// Reads the argument of `-s`.
    fn read_statuses(&mut self, line: &DirectiveLine, at: usize) -> Result<(), Diagnostic> {
        let text = line.text(at);
        for word in text
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
        {
            let bad = word.iter().find(|byte| !byte.is_ascii_digit());
            if let Some(bad) = bad {
                return Err(line.error_at(
                    at,
                    format!(
                        "{}: invalid digit \"{}\" found in the status code list \"{text}\"",
                        line.name(),
                        char::from(*bad)
                    ),
                ));
            }
            // A number that does not fit matches no status.
            let status = base::text::decimal(word).and_then(|n| u64::try_from(n).ok());
            self.statuses.push(status.unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

/// The argument of the option before `at`.
fn option_argument<'a>(line: &DirectiveLine<'a, '_>, at: usize) -> Result<&'a [u8], Diagnostic> {
    match line.get(at) {
        Some(word) => Ok(&word.text),
        None => {
            let name = line.text(at - 1);
            Err(line.error(format!("{}: option {name} takes an argument.", line.name())))
        }
    }
}

/// The error for an unknown option.
fn invalid_option(line: &DirectiveLine, at: usize) -> Diagnostic {
    let message = format!(
        "{}: invalid option name: \"{}\"",
        line.name(),
        line.text(at)
    );
    line.error_at(at, message)
}

impl NamedField {
    /// Reads `Name: value`, the colon being optional.
    fn read(line: &mut DirectiveLine, at: usize, sets: bool) -> Result<NamedField, Diagnostic> {
        let word = line.arg(at);
        let is_separator = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
        // Blanks around names and values are not part of them.
        let text = word.text.trim_ascii_start();
        // The first byte belongs to the name, whatever it is.
        let end = text.iter().skip(1).position(is_separator);
        let (name, rest) = text.split_at(end.map_or(text.len(), |end| end + 1));
        let Some(last) = name.last() else {
            return Err(line.error_at(
                at,
                format!(
                    "{}: no key found in the header argument: {}",
                    line.name(),
                    word.text
                ),
            ));
        };
        let wildcard = *last == b'*';
        // A lone `*` would clear the whole header.
        if wildcard && name.len() < 2 {
            return Err(line.error_at(
                at,
                format!("{}: wildcard key too short: {}", line.name(), word.text),
            ));
        }
        let value = rest.iter().position(|byte| !is_separator(byte));
        // The directives that only remove ignore a value, as in the third-party module.
        let value = value.map(|start| &rest[start..]).filter(|_| sets);
        let value = match value {
            Some(value) => Some(line.expression_of(word, value)?),
            None => None,
        };
        Ok(NamedField {
            known: KnownField::from_name(name),
            name: name.into(),
            wildcard,
            value,
        })
    }

    /// Whether it stands for a field with this name.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        match self.wildcard {
            true => {
                let start = &self.name[..self.name.len() - 1];
                name.len() >= start.len() && name[..start.len()].eq_ignore_ascii_case(start)
            }
            false => self.name.eq_ignore_ascii_case(name),
        }
    }
}
