//! `match`: what an answer must be like.

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, Line, Node, Regex, parse};
use proto::h1::response::ResponseHead;

/// The tests of a block; all must hold.
pub(super) struct Condition(Vec<Test>);

enum Test {
    Status {
        ranges: Vec<(u16, u16)>,
        negated: bool,
    },
    Field {
        name: BString,
        value: Value,
        negated: bool,
    },
    Body {
        regex: Regex,
        negated: bool,
    },
}

enum Value {
    /// The field is there.
    Any,
    Text(BString),
    Matches(Regex),
}

impl Condition {
    pub(super) fn read(line: &mut Line) -> Result<Condition, Diagnostic> {
        let tests = line.entries().into_iter().map(|row| {
            let words: Vec<&BStr> = row.args.iter().map(|word| word.as_bstr()).collect();
            match row.name.text.as_bytes() {
                b"status" => status(row, &words),
                b"header" => field(row, &words),
                b"body" => body(row, &words),
                name => Err(row.error(format!("unknown test \"{}\"", name.as_bstr()))),
            }
        });
        tests.collect::<Result<_, _>>().map(Condition)
    }

    pub(super) fn needs_body(&self) -> bool {
        self.0.iter().any(|test| matches!(test, Test::Body { .. }))
    }

    /// Tests an answer. The error says which test failed.
    pub(super) fn test(&self, head: &ResponseHead, content: &[u8]) -> Result<(), String> {
        for test in &self.0 {
            let (holds, negated) = match test {
                Test::Status { ranges, negated } => (
                    ranges
                        .iter()
                        .any(|&(first, last)| (first..=last).contains(&head.status)),
                    *negated,
                ),
                Test::Field {
                    name,
                    value,
                    negated,
                } => (value.is_in(head, name), *negated),
                Test::Body { regex, negated } => (regex.is_match(content), *negated),
            };
            if holds == negated {
                return Err(match test {
                    Test::Status { .. } => format!("status {}", head.status),
                    Test::Field { name, .. } => format!("header \"{name}\" does not match"),
                    Test::Body { .. } => "the body does not match".to_owned(),
                });
            }
        }
        Ok(())
    }
}

impl Value {
    fn is_in(&self, head: &ResponseHead, name: &[u8]) -> bool {
        head.fields.all(name).any(|value| match self {
            Value::Any => true,
            Value::Text(text) => value == text.as_bytes(),
            Value::Matches(regex) => regex.is_match(value),
        })
    }
}

/// `status [!] 200 301-303 ...`
fn status(row: &Node, words: &[&BStr]) -> Result<Test, Diagnostic> {
    let negated = words.first().is_some_and(|word| *word == "!");
    let codes = &words[usize::from(negated)..];
    let code = |text: &[u8]| {
        parse::number(text)
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (100..1000).contains(code))
    };
    let range = |word: &&BStr| {
        let (first, last) = word.split_once_str("-").unwrap_or((word, word));
        let range = code(first)
            .zip(code(last))
            .filter(|(first, last)| first <= last);
        range.ok_or_else(|| row.error(format!("invalid status \"{word}\"")))
    };
    if codes.is_empty() {
        return Err(row.error("invalid number of arguments in \"status\" test"));
    }
    Ok(Test::Status {
        ranges: codes.iter().map(range).collect::<Result<_, _>>()?,
        negated,
    })
}

/// `header [!] name`, `header name = | != | ~ | !~ value`
fn field(row: &Node, words: &[&BStr]) -> Result<Test, Diagnostic> {
    let (name, value, negated) = match words {
        [name] => (*name, Value::Any, false),
        [bang, name] if *bang == "!" => (*name, Value::Any, true),
        [name, operator, value] => {
            let negated = operator.starts_with(b"!");
            let value = match operator.strip_prefix(b"!").unwrap_or(operator) {
                b"=" => Value::Text(value.as_bytes().into()),
                b"~" => Value::Matches(regex(row, value)?),
                _ => return Err(row.error(format!("invalid operator \"{operator}\""))),
            };
            (*name, value, negated)
        }
        _ => return Err(row.error("invalid number of arguments in \"header\" test")),
    };
    Ok(Test::Field {
        name: name.to_owned(),
        value,
        negated,
    })
}

/// `body ~ | !~ "regex"`
fn body(row: &Node, words: &[&BStr]) -> Result<Test, Diagnostic> {
    match words {
        [operator, pattern] if *operator == "~" || *operator == "!~" => Ok(Test::Body {
            regex: regex(row, pattern)?,
            negated: *operator == "!~",
        }),
        _ => Err(row.error("invalid \"body\" test")),
    }
}

fn regex(row: &Node, pattern: &[u8]) -> Result<Regex, Diagnostic> {
    Regex::new(pattern, false).map_err(|message| row.error(message))
}
