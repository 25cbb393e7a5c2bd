//! A text with variables: `$scheme://$host${uri}`.
//!
//! It is parsed once, when the configuration is built, and evaluated for each request by appending
//! to the caller's buffer. Evaluation itself allocates nothing, and most expressions are constant.

use std::ops::Range;
use std::sync::Arc;

use base::{BStr, BString, ByteSlice, Span};

use crate::diagnostic::Diagnostic;
use crate::variable::{VarId, VariableNames, VariableScope};

/// A text with variables. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Expression {
    shared: Arc<CompiledExpression>,
}

#[derive(Debug, Default)]
struct CompiledExpression {
    source: BString,
    /// In order; adjacent texts are merged. A constant has one text or none.
    parts: Box<[CompiledPart]>,
}

#[derive(Clone, Debug)]
enum CompiledPart {
    /// A range of the source.
    Text(Range<usize>),
    Variable(VarId),
    Capture(u8),
}

/// A part of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpressionPart<'a> {
    /// Text as it is.
    Text(&'a BStr),
    /// The value of a variable.
    Variable(VarId),
    /// Group 1 to 9 of the last regular expression.
    Capture(usize),
}

impl Expression {
    /// Parses a text: `$name`, `${name}` and `$1` to `$9` are replaced. As in nginx there is no way
    /// to write a literal `$`. `span` is the place of the text.
    pub fn parse(
        text: &[u8],
        span: Span,
        names: &mut dyn VariableNames,
    ) -> Result<Expression, Diagnostic> {
        if !Expression::has_variables(text) {
            return Ok(Expression::literal(text));
        }
        let mut parts = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if text[at] == b'$' {
                let (part, end) = reference(text, at, span, names)?;
                parts.push(part);
                at = end;
            } else {
                let end = text[at..]
                    .find_byte(b'$')
                    .map_or(text.len(), |found| at + found);
                parts.push(CompiledPart::Text(at..end));
                at = end;
            }
        }
        Ok(Expression {
            shared: Arc::new(CompiledExpression {
                source: text.into(),
                parts: parts.into_boxed_slice(),
            }),
        })
    }

    /// A variable whose name is the whole rest of the word behind its `$`, whatever bytes are in it: `$arg_go-get`.
    pub fn variable(word: &[u8], span: Span, names: &mut dyn VariableNames) -> Expression {
        let id = names.id(word.strip_prefix(b"$").unwrap_or(word), Some(span));
        Expression {
            shared: Arc::new(CompiledExpression {
                source: word.into(),
                parts: Box::new([CompiledPart::Variable(id)]),
            }),
        }
    }

    /// A text in which `$` is literal.
    pub fn literal(text: &[u8]) -> Expression {
        let parts: Box<[CompiledPart]> = if text.is_empty() {
            Box::default()
        } else {
            Box::new([CompiledPart::Text(0..text.len())])
        };
        Expression {
            shared: Arc::new(CompiledExpression {
                source: text.into(),
                parts,
            }),
        }
    }

    /// Whether a text contains anything to replace.
    pub fn has_variables(text: &[u8]) -> bool {
        text.contains(&b'$')
    }

    /// Appends the value. A variable without a value adds nothing.
    pub fn eval<S: VariableScope + ?Sized>(&self, scope: &mut S, out: &mut Vec<u8>) {
        for part in &self.shared.parts {
            match part {
                CompiledPart::Text(range) => {
                    out.extend_from_slice(&self.shared.source[range.clone()])
                }
                CompiledPart::Variable(id) => {
                    scope.variable(*id, out);
                }
                CompiledPart::Capture(n) => {
                    scope.capture(usize::from(*n), out);
                }
            }
        }
    }

    /// The value in a buffer of its own.
    pub fn to_bytes<S: VariableScope + ?Sized>(&self, scope: &mut S) -> Vec<u8> {
        let mut out = Vec::new();
        self.eval(scope, &mut out);
        out
    }

    /// The value, if it needs no request.
    pub fn constant(&self) -> Option<&BStr> {
        match &self.shared.parts[..] {
            [] | [CompiledPart::Text(_)] => Some(self.shared.source.as_bstr()),
            _ => None,
        }
    }

    /// Whether the value is always empty.
    pub fn is_empty(&self) -> bool {
        self.shared.parts.is_empty()
    }

    /// The text that was read.
    pub fn source(&self) -> &BStr {
        self.shared.source.as_bstr()
    }

    /// The parts in order.
    pub fn parts(&self) -> impl Iterator<Item = ExpressionPart<'_>> {
        self.shared.parts.iter().map(|part| match part {
            CompiledPart::Text(range) => {
                ExpressionPart::Text(self.shared.source[range.clone()].as_bstr())
            }
            CompiledPart::Variable(id) => ExpressionPart::Variable(*id),
            CompiledPart::Capture(n) => ExpressionPart::Capture(usize::from(*n)),
        })
    }

    /// The variable, if it consists of nothing else.
    pub fn single_variable(&self) -> Option<VarId> {
        match self.shared.parts[..] {
            [CompiledPart::Variable(id)] => Some(id),
            _ => None,
        }
    }

    /// Whether it uses a group of a regular expression.
    pub fn has_captures(&self) -> bool {
        self.shared
            .parts
            .iter()
            .any(|part| matches!(part, CompiledPart::Capture(_)))
    }
}

/// Parses the reference that starts with the `$` at `start`; returns the part and the position
/// after it.
fn reference(
    text: &[u8],
    start: usize,
    span: Span,
    names: &mut dyn VariableNames,
) -> Result<(CompiledPart, usize), Diagnostic> {
    let after_dollar = start + 1;
    if let Some(digit @ b'1'..=b'9') = text.get(after_dollar) {
        return Ok((CompiledPart::Capture(digit - b'0'), after_dollar + 1));
    }
    let braced = text.get(after_dollar) == Some(&b'{');
    let name_start = after_dollar + usize::from(braced);
    let rest = text.get(name_start..).unwrap_or_default();
    let length = rest
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
        .count();
    let (name, name_end) = (&rest[..length], name_start + length);
    let closed = braced && text.get(name_end) == Some(&b'}');
    let place = |end: usize| part_span(text, span, start, end);
    if braced && !closed && !rest.is_empty() {
        let message = format!(
            "the closing bracket in \"{}\" variable is missing",
            name.as_bstr()
        );
        return Err(Diagnostic::error(message, place(name_end)));
    }
    let end = name_end + usize::from(closed);
    if name.is_empty() {
        return Err(Diagnostic::error("invalid variable name", place(end)));
    }
    Ok((
        CompiledPart::Variable(names.id(name, Some(place(end)))),
        end,
    ))
}

/// The place of `start..end` in a text at `span`. If the source has escapes, offsets differ; then
/// it is the place of the whole text.
fn part_span(text: &[u8], span: Span, start: usize, end: usize) -> Span {
    if span.len() != text.len() {
        return span;
    }
    Span::new(
        span.file,
        span.start + start as u32,
        span.start + end as u32,
    )
}

#[cfg(test)]
mod tests {
    use base::FileId;

    use super::*;
    use crate::variable::{Variable, VariableRegistry};

    struct Values;

    impl VariableScope for Values {
        fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool {
            out.extend_from_slice(format!("<{}>", id.0).as_bytes());
            true
        }

        fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
            out.extend_from_slice(format!("({n})").as_bytes());
            n < 3
        }
    }

    fn parse(text: &str) -> Result<Expression, Diagnostic> {
        let span = Span::new(FileId(0), 100, 100 + text.len() as u32);
        Expression::parse(text.as_bytes(), span, &mut VariableRegistry::<()>::new())
    }

    #[test]
    fn values_take_the_place_of_names() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$a", "<0>"),
            ("$a$b$A", "<0><1><0>"),
            ("${a}b", "<0>b"),
            ("$a-b", "<0>-b"),
            ("x$1y$9", "x(1)y(9)"),
            ("$12", "(1)2"),
            ("a.b$a/", "a.b<0>/"),
            ("$0", "<0>"),
            ("${1}", "<0>"),
            ("}{", "}{"),
        ] {
            let value = parse(text).unwrap().to_bytes(&mut Values);
            assert_eq!(value.as_bstr(), expected.as_bytes().as_bstr(), "{text}");
        }
    }

    #[test]
    fn mistakes_are_shown_where_they_are() {
        for (text, message, start, end) in [
            ("$", "invalid variable name", 0, 1),
            ("ab$", "invalid variable name", 2, 3),
            ("a$-", "invalid variable name", 1, 2),
            ("a${", "invalid variable name", 1, 3),
            ("a${}", "invalid variable name", 1, 4),
            (
                "a${b",
                "the closing bracket in \"b\" variable is missing",
                1,
                4,
            ),
            (
                "a${b-}",
                "the closing bracket in \"b\" variable is missing",
                1,
                4,
            ),
        ] {
            let error = parse(text).unwrap_err();
            let span = Span::new(FileId(0), 100 + start, 100 + end);
            assert_eq!(
                (&*error.message, error.span),
                (message, Some(span)),
                "{text}"
            );
        }
    }

    #[test]
    fn constants_are_known() {
        assert_eq!(parse("a b").unwrap().constant(), Some(BStr::new("a b")));
        assert_eq!(Expression::default().constant(), Some(BStr::new("")));
        assert_eq!(Expression::literal(b"$a").constant(), Some(BStr::new("$a")));
        assert!(Expression::literal(b"").is_empty());
        assert_eq!(parse("a$b").unwrap().constant(), None);
        assert_eq!(parse("$b").unwrap().single_variable(), Some(VarId(0)));
        assert!(parse("a$1").unwrap().has_captures());
    }

    /// Every text of up to five signs that mean something: no panic, and what is accepted keeps its
    /// source.
    #[test]
    fn every_short_text() {
        let signs = b"$a1{}-";
        for length in 0..=5u32 {
            for number in 0..6usize.pow(length) {
                let text: Vec<u8> = (0..length)
                    .map(|i| signs[number / 6usize.pow(i) % 6])
                    .collect();
                let span = Span::new(FileId(0), 0, length);
                let parsed = Expression::parse(&text, span, &mut VariableRegistry::<()>::new());
                if let Ok(expression) = parsed {
                    assert_eq!(expression.source(), text.as_bstr());
                    assert_eq!(expression.constant().is_some(), !text.contains(&b'$'));
                }
            }
        }
    }

    #[test]
    fn a_literal_is_not_read() {
        static ROWS: &[Variable<()>] = &[];
        let mut names = VariableRegistry::<()>::new();
        names.add(ROWS);
        assert_eq!(Expression::literal(b"$x").to_bytes(&mut Values), b"$x");
        assert!(names.finish().unwrap().is_empty());
    }
}
