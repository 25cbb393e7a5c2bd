//! The condition of an `if`.

use ::http::Request;
use ::http::files::OpenFileResult;
use bstr::{BString, ByteSlice};
use conf::{CapturingPattern, Diagnostic, DirectiveLine, DirectiveWord, Expression};
use host::error_log::LogLevel;
use rt::file::errno;

use super::script::{CaptureEscaping, escaped_value};

/// A parsed condition.
#[derive(Clone, Debug)]
pub(super) enum IfCondition {
    /// `$variable`: neither empty nor `0`.
    True(Expression),
    /// `$variable = text`.
    Equal(Expression, Expression),
    /// `$variable != text`.
    NotEqual(Expression, Expression),
    /// `$variable ~ regex` or `~* regex`.
    Matches(Expression, CapturingPattern),
    /// `$variable !~ regex` or `!~* regex`.
    MatchesNot(Expression, CapturingPattern),
    /// `-f path` and its kin, and their negations.
    File(FileTest, Expression),
}

/// A file test, possibly negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileTest {
    kind: FileKind,
    /// The result if the file is of that kind: `false` with a `!`.
    expected: bool,
}

/// What a file test asks for.
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

/// The result of a condition, as far as it is known without waiting.
pub(super) enum ConditionOutcome {
    Known(bool),
    /// It depends on the file at this path, which may have to be read from a disk.
    File(FileTest, BString),
}

impl IfCondition {
    /// Parses the arguments of an `if`.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<IfCondition, Diagnostic> {
        let words = condition_words(line)?;
        let invalid = |line: &DirectiveLine, word: &DirectiveWord| {
            line.error(format!("invalid condition \"{}\"", word.text))
        };
        let first = &words[0];
        // A lone `$` is no variable: it falls through to the file tests, which refuse it.
        if first.text.len() > 1 && first.text.starts_with(b"$") {
            // The whole word is the name, also of what would be a capture elsewhere: no variable is called `1`.
            let variable = line.variable_of(first);
            return match &words[..] {
                [_] => Ok(IfCondition::True(variable)),
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
            [_, path] => Ok(IfCondition::File(
                FileTest {
                    kind,
                    expected: wanted,
                },
                line.expression_of(path, &path.text)?,
            )),
            _ => Err(invalid(line, first)),
        }
    }

    /// Evaluates the condition, as far as possible without touching files.
    pub(super) fn test(
        &self,
        request: &mut Request,
        quoting: CaptureEscaping,
        log: bool,
    ) -> ConditionOutcome {
        let known = match self {
            IfCondition::True(variable) => request.is_true(variable),
            IfCondition::Equal(variable, text) => is_equal(request, variable, text, quoting),
            IfCondition::NotEqual(variable, text) => !is_equal(request, variable, text, quoting),
            IfCondition::Matches(variable, pattern) => matches(request, variable, pattern, log),
            IfCondition::MatchesNot(variable, pattern) => !matches(request, variable, pattern, log),
            IfCondition::File(test, path) => {
                return ConditionOutcome::File(*test, escaped_value(request, path, quoting));
            }
        };
        ConditionOutcome::Known(known)
    }
}

/// The arguments without the parentheses, which may be attached to the outer words or be words of
/// their own.
fn condition_words(line: &DirectiveLine) -> Result<Vec<DirectiveWord>, Diagnostic> {
    let mut words = line.args().to_vec();
    let invalid = |word: &DirectiveWord| line.error(format!("invalid condition \"{}\"", word.text));
    let first = &mut words[0];
    if !first.text.starts_with(b"(") {
        return Err(invalid(first));
    }
    change_text(first, |text| {
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
    change_text(last, |text| {
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

/// Changes the text of a word. Its span stays, so messages point to the whole of it, parenthesis
/// included.
fn change_text(word: &mut DirectiveWord, change: impl FnOnce(&mut Vec<u8>)) {
    change(&mut word.text);
}

/// Parses the operator and the right operand.
fn compare(
    line: &mut DirectiveLine,
    variable: Expression,
    operator: &DirectiveWord,
    operand: &DirectiveWord,
) -> Result<IfCondition, Diagnostic> {
    // The argument that messages about the pattern point to.
    let index = line.args().len() - 1;
    match operator.text.as_slice() {
        b"=" => Ok(IfCondition::Equal(
            variable,
            line.expression_of(operand, &operand.text)?,
        )),
        b"!=" => Ok(IfCondition::NotEqual(
            variable,
            line.expression_of(operand, &operand.text)?,
        )),
        b"~" => Ok(IfCondition::Matches(
            variable,
            CapturingPattern::compile(line, index, &operand.text, false)?,
        )),
        b"~*" => Ok(IfCondition::Matches(
            variable,
            CapturingPattern::compile(line, index, &operand.text, true)?,
        )),
        b"!~" => Ok(IfCondition::MatchesNot(
            variable,
            CapturingPattern::compile(line, index, &operand.text, false)?,
        )),
        b"!~*" => Ok(IfCondition::MatchesNot(
            variable,
            CapturingPattern::compile(line, index, &operand.text, true)?,
        )),
        other => Err(line.error(format!("unexpected \"{}\" in condition", other.as_bstr()))),
    }
}

/// Compares a variable with a text.
fn is_equal(
    request: &mut Request,
    variable: &Expression,
    text: &Expression,
    quoting: CaptureEscaping,
) -> bool {
    let value = request.value(variable);
    value == escaped_value(request, text, quoting)
}

/// Matches a variable; the captures are then available as `$1` and so on.
fn matches(
    request: &mut Request,
    variable: &Expression,
    pattern: &CapturingPattern,
    log: bool,
) -> bool {
    let value = request.value(variable);
    let matches = request.matches(pattern, &value);
    if !matches {
        // As in nginx, a failed match also discards earlier captures.
        request.captured.clear();
    }
    if log {
        let verb = if matches { "matches" } else { "does not match" };
        request.log(
            LogLevel::Notice,
            format_args!("\"{}\" {verb} \"{value}\"", pattern.regex.pattern()),
        );
    }
    matches
}

impl FileTest {
    /// The result of the test, given the file or the error.
    pub(super) fn holds(self, request: &Request, path: &BString, found: OpenFileResult) -> bool {
        let is = match found {
            Ok(file) => match self.kind {
                FileKind::Plain => file.is_file(),
                FileKind::Directory => file.is_directory(),
                FileKind::Exists => file.is_file() || file.is_directory(),
                FileKind::Executable => file.metadata.mode & OWNER_EXECUTES != 0,
            },
            Err(error) => {
                // A missing file is an answer; anything else, such as missing permission, is worth
                // logging. The test fails either way.
                if !matches!(
                    error.errno,
                    errno::NOENT | errno::NOTDIR | errno::NAMETOOLONG
                ) {
                    request.log(
                        LogLevel::Crit,
                        format_args!("{} \"{path}\" failed{error}", error.call),
                    );
                }
                false
            }
        };
        is == self.expected
    }
}

/// The mode bit that lets the owner execute a file; nginx tests this one for `-x`.
const OWNER_EXECUTES: u32 = 0o100;
