//! `log_format`: a text with variables, compiled once into operations that append to a buffer.
//!
//! Unlike in an expression the values are escaped, so that a request is one line, whatever its
//! client sent. Otherwise a client could forge log entries.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::expression::ExpressionPart;
use conf::{BlockContext, Diagnostic, DirectiveLine, Expression, Span, VarId, VariableScope};

/// A shortcut for a variable that most lines have: its name and a function that appends its text
/// directly, without the variable table and without escaping. So the text must never need escaping.
pub(crate) type DirectVariable<R> = (&'static str, fn(&mut R, &mut Vec<u8>));

/// A compiled `log_format`.
pub(crate) struct LogFormat<R> {
    /// All literal texts, concatenated.
    texts: Vec<u8>,
    operations: Vec<FormatOperation<R>>,
    escape: LogEscape,
}

/// One step of writing a line.
enum FormatOperation<R> {
    /// Appends a range of the literal texts.
    Text(Range<usize>),
    Variable(VarId),
    Capture(usize),
    Direct(fn(&mut R, &mut Vec<u8>)),
}

/// How values are escaped: `escape=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogEscape {
    /// `\xHH` for quotes, backslashes, and all that is not printable ASCII; `-` for a missing
    /// value.
    Default,
    /// As in JSON strings (RFC 8259, section 7).
    Json,
    /// Not at all.
    None,
}

/// The formats of a configuration by name. http and stream have separate sets, told apart by `R`.
pub(crate) struct LogFormats<R> {
    named: Vec<(BString, Arc<LogFormat<R>>)>,
    /// Without owning an `R`.
    subject: PhantomData<fn(R)>,
}

impl<R> Default for LogFormats<R> {
    fn default() -> Self {
        LogFormats {
            named: Vec::new(),
            subject: PhantomData,
        }
    }
}

impl<R: VariableScope + 'static> LogFormats<R> {
    /// Reads a `log_format` line: a name, an optional `escape=`, and texts to concatenate.
    /// `reserved` is the name of a predefined format.
    pub(crate) fn define(
        line: &mut DirectiveLine,
        direct: &[DirectVariable<R>],
        reserved: &str,
    ) -> Result<(), Diagnostic> {
        let name = line.text(0);
        let known = &line.lasting::<LogFormats<R>>().named;
        if name == reserved || known.iter().any(|(other, _)| other == name) {
            return Err(line.error_at(0, format!("duplicate \"log_format\" name \"{name}\"")));
        }
        let (escape, first) = match conf::parse::parameter(line.text(1), "escape") {
            Some(word) => (LogEscape::parse(word, line)?, 2),
            None => (LogEscape::Default, 1),
        };
        let mut format = LogFormat::new(escape);
        for index in first..line.args().len() {
            let expression = line.expression(index)?;
            format.add(&expression, direct);
        }
        let name = name.to_owned();
        line.lasting::<LogFormats<R>>()
            .named
            .push((name, Arc::new(format)));
        Ok(())
    }

    /// The format with this name, ignoring case as nginx does.
    pub(crate) fn find(level: &mut BlockContext, name: &BStr) -> Option<Arc<LogFormat<R>>> {
        let named = &level.lasting::<LogFormats<R>>().named;
        named
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, format)| Arc::clone(format))
    }

    /// The predefined format `name`, compiled on first use.
    pub(crate) fn predefined(
        level: &mut BlockContext,
        name: &str,
        text: &str,
        direct: &[DirectVariable<R>],
    ) -> Result<Arc<LogFormat<R>>, Diagnostic> {
        if let Some(format) = LogFormats::find(level, name.into()) {
            return Ok(format);
        }
        let expression = Expression::parse(text.as_bytes(), Span::NONE, &mut *level.names)?;
        let mut format = LogFormat::new(LogEscape::Default);
        format.add(&expression, direct);
        let format = Arc::new(format);
        level
            .lasting::<LogFormats<R>>()
            .named
            .push((name.into(), Arc::clone(&format)));
        Ok(format)
    }
}

impl<R: VariableScope> LogFormat<R> {
    /// An empty format.
    fn new(escape: LogEscape) -> LogFormat<R> {
        LogFormat {
            texts: Vec::new(),
            operations: Vec::new(),
            escape,
        }
    }

    /// Appends the operations of a text.
    fn add(&mut self, expression: &Expression, direct: &[DirectVariable<R>]) {
        let text = expression.source();
        let mut at = 0;
        for part in expression.parts() {
            // An expression keeps variables as numbers only. The name, which the shortcuts are
            // found by, is recovered from the position in the source text.
            let end = part_end(text, at, &part);
            let operation = match part {
                ExpressionPart::Text(part) => {
                    let start = self.texts.len();
                    self.texts.extend_from_slice(part);
                    FormatOperation::Text(start..self.texts.len())
                }
                ExpressionPart::Capture(group) => FormatOperation::Capture(group),
                ExpressionPart::Variable(id) => {
                    let name = text[at..end].trim_with(|sign| matches!(sign, '$' | '{' | '}'));
                    match direct.iter().find(|(known, _)| known.as_bytes() == name) {
                        Some((_, write)) => FormatOperation::Direct(*write),
                        None => FormatOperation::Variable(id),
                    }
                }
            };
            self.operations.push(operation);
            at = end;
        }
    }

    /// Appends the line of a request or session, without a newline.
    pub(crate) fn write(&self, subject: &mut R, out: &mut Vec<u8>) {
        for operation in &self.operations {
            match operation {
                FormatOperation::Text(range) => out.extend_from_slice(&self.texts[range.clone()]),
                FormatOperation::Direct(write) => write(subject, out),
                FormatOperation::Variable(id) => {
                    let start = out.len();
                    let found = subject.variable(*id, out);
                    self.escape.escape_value(found, start, out);
                }
                FormatOperation::Capture(group) => {
                    let start = out.len();
                    let found = subject.capture(*group, out);
                    self.escape.escape_value(found, start, out);
                }
            }
        }
    }
}

/// The end of the part of the source text that begins at `at`.
fn part_end(text: &[u8], at: usize, part: &ExpressionPart) -> usize {
    match part {
        ExpressionPart::Text(part) => at + part.len(),
        ExpressionPart::Capture(_) => at + 2,
        ExpressionPart::Variable(_) => {
            let braced = text.get(at + 1) == Some(&b'{');
            let start = at + 1 + usize::from(braced);
            let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
            start + text[start..].iter().take_while(is_name).count() + usize::from(braced)
        }
    }
}

impl LogEscape {
    /// Parses the value of `escape=`.
    fn parse(word: &[u8], line: &DirectiveLine) -> Result<LogEscape, Diagnostic> {
        match word {
            b"default" => Ok(LogEscape::Default),
            b"json" => Ok(LogEscape::Json),
            b"none" => Ok(LogEscape::None),
            _ => Err(line.error_at(
                1,
                format!("unknown log format escaping \"{}\"", word.as_bstr()),
            )),
        }
    }

    /// Escapes the value at the end of `out`, which begins at `start`.
    fn escape_value(self, found: bool, start: usize, out: &mut Vec<u8>) {
        match self {
            LogEscape::Default if !found => {
                out.truncate(start);
                out.push(b'-');
            }
            // Only the default escaping marks a missing value by `-`; in JSON that would be a value
            // like any other.
            _ if !found => out.truncate(start),
            LogEscape::None => {}
            LogEscape::Default => escape_from(start, out, is_unsafe, |byte, out| {
                out.extend_from_slice(b"\\x");
                write_hex(byte, out);
            }),
            LogEscape::Json => escape_from(
                start,
                out,
                |byte| byte < b' ' || matches!(byte, b'"' | b'\\'),
                base::text::write_json_escape,
            ),
        }
    }
}

/// Whether a byte is escaped by default: everything but printable ASCII, and the quote and the
/// backslash, with which a value could end early.
fn is_unsafe(byte: u8) -> bool {
    !(b' '..=b'~').contains(&byte) || matches!(byte, b'"' | b'\\')
}

/// Escapes the end of `out` from `start`. Most values need no escaping and cost one scan.
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

/// Appends a byte as two upper-case hexadecimal digits, as nginx writes them and log shippers
/// expect them.
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

    fn escaped(escape: LogEscape, value: Option<&[u8]>) -> BString {
        let mut out = b"before ".to_vec();
        out.extend_from_slice(value.unwrap_or(b"half"));
        escape.escape_value(value.is_some(), 7, &mut out);
        assert!(out.starts_with(b"before "));
        out.split_off(7).into()
    }

    #[test]
    fn values_are_escaped_as_the_format_says() {
        let raw = b"\"a\\\n\x1b\x7f\xc3\xa9".as_bstr();
        let value = Some(raw.as_bytes());
        assert_eq!(
            escaped(LogEscape::Default, value),
            r"\x22a\x5C\x0A\x1B\x7F\xC3\xA9"
        );
        assert_eq!(
            escaped(LogEscape::Json, value),
            b"\\\"a\\\\\\n\\u001B\x7f\xc3\xa9".as_bstr()
        );
        assert_eq!(escaped(LogEscape::None, value), raw);
    }

    #[test]
    fn what_is_missing_is_a_dash_or_nothing() {
        assert_eq!(escaped(LogEscape::Default, None), "-");
        assert_eq!(escaped(LogEscape::Default, Some(b"")), "");
        assert_eq!(escaped(LogEscape::Json, None), "");
        assert_eq!(escaped(LogEscape::None, None), "");
    }

    #[test]
    fn no_byte_breaks_a_line() {
        for byte in 0..=255 {
            for escape in [LogEscape::Default, LogEscape::Json] {
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
        assert_eq!(part_end(text, 1, &ExpressionPart::Variable(VarId(0))), 10);
        assert_eq!(part_end(text, 11, &ExpressionPart::Variable(VarId(0))), 18);
        assert_eq!(part_end(text, 18, &ExpressionPart::Capture(1)), text.len());
    }
}
