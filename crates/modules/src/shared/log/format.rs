//! `log_format`: a text with variables, compiled once to operations that append to one buffer.
//!
//! It differs from an expression in what becomes of the values: they are escaped, so that one request is one line
//! whatever its client sent.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::expression::Part;
use conf::{Diagnostic, Expression, Level, Line, Scope, Span, VarId};

/// A variable that is written without a detour over the variables, because most lines have it: its name and how its
/// text is appended. The text must need no escaping.
pub(crate) type Direct<R> = (&'static str, fn(&mut R, &mut Vec<u8>));

/// A compiled format.
pub(crate) struct Format<R> {
    /// All texts one after the other.
    texts: Vec<u8>,
    operations: Vec<Operation<R>>,
    escape: Escape,
}

enum Operation<R> {
    /// A range of the texts.
    Text(Range<usize>),
    Variable(VarId),
    Capture(usize),
    Direct(fn(&mut R, &mut Vec<u8>)),
}

/// How values are made harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    /// `\xHH` for quotes, backslashes, and all that is not printable ASCII; `-` for what has no value.
    Default,
    /// As in strings of JSON.
    Json,
    /// Not at all.
    None,
}

/// The formats of a configuration by name. Those of http and stream are two sets, as their `R` is another.
pub(crate) struct Formats<R> {
    named: Vec<(BString, Arc<Format<R>>)>,
    subject: PhantomData<fn(R)>,
}

impl<R> Default for Formats<R> {
    fn default() -> Self {
        Formats {
            named: Vec::new(),
            subject: PhantomData,
        }
    }
}

impl<R: Scope + 'static> Formats<R> {
    /// Reads a `log_format` line: its name, perhaps `escape=`, and texts that are joined. `reserved` is a name that
    /// exists without a line.
    pub(crate) fn define(
        line: &mut Line,
        direct: &[Direct<R>],
        reserved: &str,
    ) -> Result<(), Diagnostic> {
        let name = line.text(0);
        let known = &line.shared::<Formats<R>>().named;
        if name == reserved || known.iter().any(|(other, _)| other == name) {
            return Err(line.error_at(0, format!("duplicate \"log_format\" name \"{name}\"")));
        }
        let (escape, first) = match conf::parse::parameter(line.text(1), "escape") {
            Some(word) => (Escape::parse(word, line)?, 2),
            None => (Escape::Default, 1),
        };
        let mut format = Format::new(escape);
        for index in first..line.args().len() {
            let expression = line.expression(index)?;
            format.add(&expression, direct);
        }
        let name = name.to_owned();
        line.shared::<Formats<R>>()
            .named
            .push((name, Arc::new(format)));
        Ok(())
    }

    /// The format of a name, letter case not counted (nginx does not).
    pub(crate) fn find(level: &mut Level, name: &BStr) -> Option<Arc<Format<R>>> {
        let named = &level.shared::<Formats<R>>().named;
        named
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, format)| Arc::clone(format))
    }

    /// The format that exists under `name` without a line; compiled when it is used first.
    pub(crate) fn predefined(
        level: &mut Level,
        name: &str,
        text: &str,
        direct: &[Direct<R>],
    ) -> Result<Arc<Format<R>>, Diagnostic> {
        if let Some(format) = Formats::find(level, name.into()) {
            return Ok(format);
        }
        let expression = Expression::parse(text.as_bytes(), Span::NONE, &mut *level.names)?;
        let mut format = Format::new(Escape::Default);
        format.add(&expression, direct);
        let format = Arc::new(format);
        level
            .shared::<Formats<R>>()
            .named
            .push((name.into(), Arc::clone(&format)));
        Ok(format)
    }
}

impl<R: Scope> Format<R> {
    fn new(escape: Escape) -> Format<R> {
        Format {
            texts: Vec::new(),
            operations: Vec::new(),
            escape,
        }
    }

    /// Adds the operations of a text.
    fn add(&mut self, expression: &Expression, direct: &[Direct<R>]) {
        let text = expression.source();
        let mut at = 0;
        for part in expression.parts() {
            // Where the part stands in the text tells the name of a direct variable: the expression keeps numbers only.
            let end = part_end(text, at, &part);
            let operation = match part {
                Part::Text(part) => {
                    let start = self.texts.len();
                    self.texts.extend_from_slice(part);
                    Operation::Text(start..self.texts.len())
                }
                Part::Capture(group) => Operation::Capture(group),
                Part::Variable(id) => {
                    let name = text[at..end].trim_with(|sign| matches!(sign, '$' | '{' | '}'));
                    match direct.iter().find(|(known, _)| known.as_bytes() == name) {
                        Some((_, write)) => Operation::Direct(*write),
                        None => Operation::Variable(id),
                    }
                }
            };
            self.operations.push(operation);
            at = end;
        }
    }

    /// Appends the line for a request, without a newline.
    pub(crate) fn write(&self, subject: &mut R, out: &mut Vec<u8>) {
        for operation in &self.operations {
            match operation {
                Operation::Text(range) => out.extend_from_slice(&self.texts[range.clone()]),
                Operation::Direct(write) => write(subject, out),
                Operation::Variable(id) => {
                    let start = out.len();
                    let found = subject.variable(*id, out);
                    self.escape.finish(found, start, out);
                }
                Operation::Capture(group) => {
                    let start = out.len();
                    let found = subject.capture(*group, out);
                    self.escape.finish(found, start, out);
                }
            }
        }
    }
}

/// Where a part of an expression ends that begins at `at`.
fn part_end(text: &[u8], at: usize, part: &Part) -> usize {
    match part {
        Part::Text(part) => at + part.len(),
        Part::Capture(_) => at + 2,
        Part::Variable(_) => {
            let braced = text.get(at + 1) == Some(&b'{');
            let start = at + 1 + usize::from(braced);
            let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
            start + text[start..].iter().take_while(is_name).count() + usize::from(braced)
        }
    }
}

impl Escape {
    fn parse(word: &[u8], line: &Line) -> Result<Escape, Diagnostic> {
        match word {
            b"default" => Ok(Escape::Default),
            b"json" => Ok(Escape::Json),
            b"none" => Ok(Escape::None),
            _ => Err(line.error_at(
                1,
                format!("unknown log format escaping \"{}\"", word.as_bstr()),
            )),
        }
    }

    /// Escapes the value that stands at the end of `out`, from `start` on.
    fn finish(self, found: bool, start: usize, out: &mut Vec<u8>) {
        match self {
            Escape::Default if !found => {
                out.truncate(start);
                out.push(b'-');
            }
            _ if !found => out.truncate(start),
            Escape::None => {}
            Escape::Default => escape_from(start, out, is_unsafe, |byte, out| {
                out.extend_from_slice(b"\\x");
                write_hex(byte, out);
            }),
            Escape::Json => escape_from(
                start,
                out,
                |byte| byte < b' ' || matches!(byte, b'"' | b'\\'),
                json,
            ),
        }
    }
}

fn is_unsafe(byte: u8) -> bool {
    !(b' '..=b'~').contains(&byte) || matches!(byte, b'"' | b'\\')
}

/// Rewrites what stands at the end of `out`. Most values need nothing; they are looked at and stay.
fn escape_from(
    start: usize,
    out: &mut Vec<u8>,
    needs: fn(u8) -> bool,
    write: fn(u8, &mut Vec<u8>),
) {
    let Some(first) = out[start..].iter().position(|byte| needs(*byte)) else {
        return;
    };
    let rest = out.split_off(start + first);
    for byte in rest {
        if needs(byte) {
            write(byte, out);
        } else {
            out.push(byte);
        }
    }
}

fn json(byte: u8, out: &mut Vec<u8>) {
    out.push(b'\\');
    match byte {
        b'\n' => out.push(b'n'),
        b'\r' => out.push(b'r'),
        b'\t' => out.push(b't'),
        0x08 => out.push(b'b'),
        0x0c => out.push(b'f'),
        b'"' | b'\\' => out.push(byte),
        _ => {
            out.extend_from_slice(b"u00");
            write_hex(byte, out);
        }
    }
}

/// Appends a byte as two hexadecimal digits, large letters: nginx's, which log shippers compare with.
fn write_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(escape: Escape, value: Option<&[u8]>) -> BString {
        let mut out = b"before ".to_vec();
        out.extend_from_slice(value.unwrap_or(b"half"));
        escape.finish(value.is_some(), 7, &mut out);
        assert!(out.starts_with(b"before "));
        out.split_off(7).into()
    }

    #[test]
    fn values_are_escaped_as_the_format_says() {
        let raw = b"\"a\\\n\x1b\x7f\xc3\xa9".as_bstr();
        let value = Some(raw.as_bytes());
        assert_eq!(
            escaped(Escape::Default, value),
            r"\x22a\x5C\x0A\x1B\x7F\xC3\xA9"
        );
        assert_eq!(
            escaped(Escape::Json, value),
            b"\\\"a\\\\\\n\\u001B\x7f\xc3\xa9".as_bstr()
        );
        assert_eq!(escaped(Escape::None, value), raw);
    }

    #[test]
    fn what_is_missing_is_a_dash_or_nothing() {
        assert_eq!(escaped(Escape::Default, None), "-");
        assert_eq!(escaped(Escape::Default, Some(b"")), "");
        assert_eq!(escaped(Escape::Json, None), "");
        assert_eq!(escaped(Escape::None, None), "");
    }

    #[test]
    fn no_byte_breaks_a_line() {
        for byte in 0..=255 {
            for escape in [Escape::Default, Escape::Json] {
                let text = escaped(escape, Some(&[byte]));
                assert!(
                    !text.contains(&b'\n')
                        && text.iter().filter(|b| **b == b'"').count()
                            == text.find("\\\"").iter().count()
                );
            }
        }
    }

    #[test]
    fn the_ends_of_parts_are_found() {
        let text = b"a${status}b$status$1";
        assert_eq!(part_end(text, 1, &Part::Variable(VarId(0))), 10);
        assert_eq!(part_end(text, 11, &Part::Variable(VarId(0))), 18);
        assert_eq!(part_end(text, 18, &Part::Capture(1)), text.len());
    }
}
