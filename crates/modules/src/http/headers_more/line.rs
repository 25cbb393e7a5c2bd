//! What one line says.

use bstr::ByteSlice;
use conf::{Diagnostic, Expression, Line};
use proto::Known;

/// Whose fields a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Response,
}

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) fields: Vec<Field>,
    /// The statuses that are meant; none: all.
    pub(super) statuses: Vec<u64>,
    /// The media types that are meant; none: all.
    pub(super) types: Vec<Box<[u8]>>,
    /// `-a`: beside the fields of that name.
    pub(super) append: bool,
    /// `-r`: in place of a field of that name, or not at all.
    pub(super) only_replace: bool,
}

/// A field that a line names.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// As it is written, with the `*` at its end if there is one.
    pub(super) name: Box<[u8]>,
    pub(super) known: Known,
    /// It stands for all names that begin so.
    pub(super) wildcard: bool,
    /// `None`: the field is taken away.
    pub(super) value: Option<Expression>,
}

/// Fields of responses that the server makes itself, so that there is no second one to add.
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

impl Change {
    pub(super) fn read(
        line: &mut Line,
        direction: Direction,
        sets: bool,
    ) -> Result<Change, Diagnostic> {
        let mut change = Change {
            fields: Vec::new(),
            statuses: Vec::new(),
            types: Vec::new(),
            append: false,
            only_replace: false,
        };
        let response = direction == Direction::Response;
        let mut at = 0;
        while let Some(word) = line.get(at) {
            match word.text.as_slice() {
                b"" => {}
                b"-t" => {
                    at += 1;
                    change.take_types(option(line, at)?);
                }
                b"-s" if response => {
                    at += 1;
                    option(line, at)?;
                    change.take_statuses(line, at)?;
                }
                b"-a" if response && sets => change.append = true,
                b"-r" if !response => change.only_replace = true,
                [b'-', ..] => return Err(invalid_option(line, at)),
                _ => change.fields.push(Field::read(line, at, sets)?),
            }
            at += 1;
        }
        let built_in = |field: &&Field| {
            BUILT_IN
                .iter()
                .any(|name| field.name.eq_ignore_ascii_case(name.as_bytes()))
        };
        match change.fields.iter().find(built_in) {
            Some(field) if change.append => Err(line.error(format!(
                "{}: can not append builtin headers \"{}\"",
                line.name(),
                field.name.as_bstr()
            ))),
            _ => Ok(change),
        }
    }

    fn take_types(&mut self, text: &[u8]) {
        let types = text.split(|byte| byte.is_ascii_whitespace() || *byte == b';');
        let types = types.filter(|text| !text.is_empty());
        self.types.extend(types.map(Box::from));
    }

    fn take_statuses(&mut self, line: &Line, at: usize) -> Result<(), Diagnostic> {
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
            // A number that does not fit is nobody's status.
            let status = base::text::decimal(word).and_then(|n| u64::try_from(n).ok());
            self.statuses.push(status.unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

fn option<'a>(line: &Line<'a, '_>, at: usize) -> Result<&'a [u8], Diagnostic> {
    match line.get(at) {
        Some(word) => Ok(&word.text),
        None => {
            let name = line.text(at - 1);
            Err(line.error(format!("{}: option {name} takes an argument.", line.name())))
        }
    }
}

fn invalid_option(line: &Line, at: usize) -> Diagnostic {
    let message = format!(
        "{}: invalid option name: \"{}\"",
        line.name(),
        line.text(at)
    );
    line.error_at(at, message)
}

impl Field {
    fn read(line: &mut Line, at: usize, sets: bool) -> Result<Field, Diagnostic> {
        let word = line.arg(at);
        let is_separator = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
        let text = word.text.trim_ascii_start();
        // The first byte belongs to the name whatever it is.
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
        if wildcard && name.len() < 2 {
            return Err(line.error_at(
                at,
                format!("{}: wildcard key too short: {}", line.name(), word.text),
            ));
        }
        let value = rest.iter().position(|byte| !is_separator(byte));
        let value = value.map(|start| &rest[start..]).filter(|_| sets);
        let value = match value {
            Some(value) => Some(line.expression_of(word, value)?),
            None => None,
        };
        Ok(Field {
            known: Known::from_name(name),
            name: name.into(),
            wildcard,
            value,
        })
    }

    /// Whether it stands for a field of this name.
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
