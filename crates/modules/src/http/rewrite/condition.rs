//! The condition of an `if`.

use ::http::Request;
use ::http::files::Found;
use bstr::{BString, ByteSlice};
use conf::{Diagnostic, Expression, Line, Pattern, Word};
use rt::error_log::Level;
use rt::file::errno;

use super::script::{Quoting, quoted};

/// A condition.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// The variable is neither empty nor `0`.
    True(Expression),
    /// The variable is this text.
    Equal(Expression, Expression),
    /// It is another one.
    NotEqual(Expression, Expression),
    /// The variable matches.
    Matches(Expression, Pattern),
    /// It does not.
    MatchesNot(Expression, Pattern),
    /// The test is about a file of this name.
    File(FileTest, Expression),
}

/// A test about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileTest {
    kind: FileKind,
    /// The answer when it is of that kind.
    wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    /// `-f`: a regular file.
    Plain,
    /// `-d`: a directory.
    Directory,
    /// `-e`: a file, a directory or a link.
    Exists,
    /// `-x`: its owner may execute it.
    Executable,
}

/// What is known of a condition.
pub(super) enum Test {
    Known(bool),
    /// It depends on the file of this path.
    File(FileTest, BString),
}

impl Condition {
    pub(super) fn read(line: &mut Line) -> Result<Condition, Diagnostic> {
        let words = words(line)?;
        let invalid =
            |line: &Line, word: &Word| line.error(format!("invalid condition \"{}\"", word.text));
        let first = &words[0];
        if first.text.len() > 1 && first.text.starts_with(b"$") {
            let variable = variable(line, first)?;
            return match &words[..] {
                [_] => Ok(Condition::True(variable)),
                [_, operator, operand] => compare(line, variable, operator, operand),
                _ => Err(invalid(line, first)),
            };
        }
        let (test, wanted) = match first.text.strip_prefix(b"!") {
            Some(test) => (test, false),
            None => (first.text.as_slice(), true),
        };
        let kind = match test {
            b"-f" => FileKind::Plain,
            b"-d" => FileKind::Directory,
            b"-e" => FileKind::Exists,
            b"-x" => FileKind::Executable,
            _ => return Err(invalid(line, first)),
        };
        match &words[..] {
            [_, path] => Ok(Condition::File(
                FileTest { kind, wanted },
                line.expression_of(path, &path.text)?,
            )),
            _ => Err(invalid(line, first)),
        }
    }

    /// Tests it, as far as that is possible without looking at files.
    pub(super) fn test(&self, request: &mut Request, quoting: Quoting, log: bool) -> Test {
        let known = match self {
            Condition::True(variable) => request.is_true(variable),
            Condition::Equal(variable, text) => is_equal(request, variable, text, quoting),
            Condition::NotEqual(variable, text) => !is_equal(request, variable, text, quoting),
            Condition::Matches(variable, pattern) => matches(request, variable, pattern, log),
            Condition::MatchesNot(variable, pattern) => !matches(request, variable, pattern, log),
            Condition::File(test, path) => {
                return Test::File(*test, quoted(request, path, quoting));
            }
        };
        Test::Known(known)
    }
}

/// The words without the parentheses around them.
fn words(line: &Line) -> Result<Vec<Word>, Diagnostic> {
    let mut words = line.args().to_vec();
    let invalid = |word: &Word| line.error(format!("invalid condition \"{}\"", word.text));
    let first = &mut words[0];
    if !first.text.starts_with(b"(") {
        return Err(invalid(first));
    }
    trim(first, |text| {
        text.remove(0);
    });
    if words[0].text.is_empty() {
        words.remove(0);
    }
    let Some(last) = words.last_mut() else {
        return Err(line.error("invalid condition \"(\""));
    };
    if !last.text.ends_with(b")") {
        return Err(invalid(last));
    }
    trim(last, |text| {
        text.pop();
    });
    if last.text.is_empty() {
        words.pop();
    }
    if words.is_empty() {
        return Err(line.error("invalid condition \")\""));
    }
    Ok(words)
}

/// Changes a word's text. It keeps its place, so that messages point to the whole of it.
fn trim(word: &mut Word, change: impl FnOnce(&mut Vec<u8>)) {
    change(&mut word.text);
}

/// The first operand: a variable and nothing else.
fn variable(line: &mut Line, word: &Word) -> Result<Expression, Diagnostic> {
    let expression = line.expression_of(word, &word.text)?;
    match expression.single_variable() {
        Some(_) => Ok(expression),
        // `$1` is a variable of that name to nginx, which does not exist.
        None => Err(line.error(format!("invalid condition \"{}\"", word.text))),
    }
}

fn compare(
    line: &mut Line,
    variable: Expression,
    operator: &Word,
    operand: &Word,
) -> Result<Condition, Diagnostic> {
    let index = line.args().len() - 1;
    match operator.text.as_slice() {
        b"=" => Ok(Condition::Equal(
            variable,
            line.expression_of(operand, &operand.text)?,
        )),
        b"!=" => Ok(Condition::NotEqual(
            variable,
            line.expression_of(operand, &operand.text)?,
        )),
        b"~" => Ok(Condition::Matches(
            variable,
            Pattern::compile::<Request>(line, index, &operand.text, false)?,
        )),
        b"~*" => Ok(Condition::Matches(
            variable,
            Pattern::compile::<Request>(line, index, &operand.text, true)?,
        )),
        b"!~" => Ok(Condition::MatchesNot(
            variable,
            Pattern::compile::<Request>(line, index, &operand.text, false)?,
        )),
        b"!~*" => Ok(Condition::MatchesNot(
            variable,
            Pattern::compile::<Request>(line, index, &operand.text, true)?,
        )),
        other => Err(line.error(format!("unexpected \"{}\" in condition", other.as_bstr()))),
    }
}

fn is_equal(
    request: &mut Request,
    variable: &Expression,
    text: &Expression,
    quoting: Quoting,
) -> bool {
    let value = request.value(variable);
    value == quoted(request, text, quoting)
}

fn matches(request: &mut Request, variable: &Expression, pattern: &Pattern, log: bool) -> bool {
    let value = request.value(variable);
    let matches = request.matches(pattern, &value);
    if !matches {
        request.captured.clear();
    }
    if log {
        let verb = if matches { "matches" } else { "does not match" };
        request.log(
            Level::Notice,
            format_args!("\"{}\" {verb} \"{value}\"", pattern.regex.pattern()),
        );
    }
    matches
}

impl FileTest {
    /// The result, given what was found.
    pub(super) fn holds(self, request: &Request, path: &BString, found: Found) -> bool {
        let is = match found {
            Ok(file) => match self.kind {
                FileKind::Plain => file.is_file(),
                FileKind::Directory => file.is_directory(),
                FileKind::Exists => file.is_file() || file.is_directory(),
                FileKind::Executable => file.metadata.mode & OWNER_EXECUTES != 0,
            },
            Err(error) => {
                if !matches!(
                    error.errno,
                    errno::NOENT | errno::NOTDIR | errno::NAMETOOLONG
                ) {
                    request.log(
                        Level::Crit,
                        format_args!("{} \"{path}\" failed{error}", error.call),
                    );
                }
                false
            }
        };
        is == self.wanted
    }
}

/// The bit of a file's mode that lets its owner execute it.
const OWNER_EXECUTES: u32 = 0o100;
