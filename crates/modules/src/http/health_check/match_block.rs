//! `match` blocks: the conditions for a healthy response.

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine, DirectiveNode, Regex, parse};
use proto::message::ResponseHead;

/// The tests of a block, all of which must hold.
pub(super) struct MatchCondition(Vec<MatchTest>);

/// One line of the block.
enum MatchTest {
    Status {
        ranges: Vec<(u16, u16)>,
        negated: bool,
    },
    Field {
        name: BString,
        value: FieldTest,
        negated: bool,
    },
    Body {
        regex: Regex,
        negated: bool,
    },
}

/// What is required of a field's value.
enum FieldTest {
    /// The field is present.
    Any,
    Text(BString),
    Matches(Regex),
}

impl MatchCondition {
    /// Reads a `match` block.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<MatchCondition, Diagnostic> {
        let tests = line.entries().map(|row| {
            let words: Vec<&BStr> = row.args.iter().map(|word| word.as_bstr()).collect();
            match row.name.text.as_bytes() {
                b"status" => status(&row, &words),
                b"header" => field(&row, &words),
                b"body" => body(&row, &words),
                name => Err(row.error(format!("unknown test \"{}\"", name.as_bstr()))),
            }
        });
        tests.collect::<Result<_, _>>().map(MatchCondition)
    }

    /// Whether the body has to be read; otherwise a probe ends with the header.
    pub(super) fn needs_body(&self) -> bool {
        self.0
            .iter()
            .any(|test| matches!(test, MatchTest::Body { .. }))
    }

    /// Tests a response. The error says which test failed.
    pub(super) fn test(&self, head: &ResponseHead, content: &[u8]) -> Result<(), String> {
        for test in &self.0 {
            let (holds, negated) = match test {
                MatchTest::Status { ranges, negated } => (
                    ranges
                        .iter()
                        .any(|&(first, last)| (first..=last).contains(&head.status)),
                    *negated,
                ),
                MatchTest::Field {
                    name,
                    value,
                    negated,
                } => (value.is_in(head, name), *negated),
                MatchTest::Body { regex, negated } => (regex.is_match(content), *negated),
            };
            // The first failure is reported; one is enough.
            if holds == negated {
                return Err(match test {
                    MatchTest::Status { .. } => format!("status {}", head.status),
                    MatchTest::Field { name, .. } => format!("header \"{name}\" does not match"),
                    MatchTest::Body { .. } => "the body does not match".to_owned(),
                });
            }
        }
        Ok(())
    }
}

impl FieldTest {
    /// Whether any field of this name has such a value.
    fn is_in(&self, head: &ResponseHead, name: &[u8]) -> bool {
        head.fields.all(name).any(|value| match self {
            FieldTest::Any => true,
            FieldTest::Text(text) => value == text.as_bytes(),
            FieldTest::Matches(regex) => regex.is_match(value),
        })
    }
}

/// `status [!] 200 301-303 ...`
fn status(row: &DirectiveNode, words: &[&BStr]) -> Result<MatchTest, Diagnostic> {
    let negated = words.first().is_some_and(|word| *word == "!");
    // The `!` applies to the whole list.
    let codes = &words[usize::from(negated)..];
    let code = |text: &[u8]| {
        parse::number(text)
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (100..1000).contains(code))
    };
    let range = |word: &&BStr| {
        // A single code is a range of one.
        let (first, last) = word.split_once_str("-").unwrap_or((word, word));
        let range = code(first)
            .zip(code(last))
            .filter(|(first, last)| first <= last);
        range.ok_or_else(|| row.error(format!("invalid status \"{word}\"")))
    };
    if codes.is_empty() {
        return Err(row.error("invalid number of arguments in \"status\" test"));
    }
    Ok(MatchTest::Status {
        ranges: codes.iter().map(range).collect::<Result<_, _>>()?,
        negated,
    })
}

/// `header [!] name`, `header name = | != | ~ | !~ value`
fn field(row: &DirectiveNode, words: &[&BStr]) -> Result<MatchTest, Diagnostic> {
    let (name, value, negated) = match words {
        [name] => (*name, FieldTest::Any, false),
        // The field must not be present.
        [bang, name] if *bang == "!" => (*name, FieldTest::Any, true),
        [name, operator, value] => {
            let negated = operator.starts_with(b"!");
            let value = match operator.strip_prefix(b"!").unwrap_or(operator) {
                b"=" => FieldTest::Text(value.as_bytes().into()),
                b"~" => FieldTest::Matches(regex(row, value)?),
                _ => return Err(row.error(format!("invalid operator \"{operator}\""))),
            };
            (*name, value, negated)
        }
        _ => return Err(row.error("invalid number of arguments in \"header\" test")),
    };
    Ok(MatchTest::Field {
        name: name.to_owned(),
        value,
        negated,
    })
}

/// `body ~ | !~ "regex"`
fn body(row: &DirectiveNode, words: &[&BStr]) -> Result<MatchTest, Diagnostic> {
    match words {
        [operator, pattern] if *operator == "~" || *operator == "!~" => Ok(MatchTest::Body {
            regex: regex(row, pattern)?,
            negated: *operator == "!~",
        }),
        _ => Err(row.error("invalid \"body\" test")),
    }
}

/// Compiles a regular expression of a line.
fn regex(row: &DirectiveNode, pattern: &[u8]) -> Result<Regex, Diagnostic> {
    Regex::new(pattern, false).map_err(|message| row.error(message))
}
