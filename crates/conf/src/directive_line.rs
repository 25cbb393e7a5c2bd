//! A directive as its setter sees it: its words, parsers for them with nginx's error messages, and
//! access to everything else.

use std::any::Any;
use std::path::PathBuf;
use std::time::Duration;

use base::units::{self, Rate};
use base::{BStr, ByteSlice, Span};

use crate::address::{self, Cidr, HostPort};
use crate::block_context::BlockContext;
use crate::diagnostic::{Diagnostic, DiagnosticPlace};
use crate::directive_contexts::HTTP;
use crate::expression::Expression;
use crate::file_source::FileSource;
use crate::long_block::BlockLines;
use crate::parse;
use crate::regex::{CompiledPatterns, Regex};
use crate::system_needs::PathUse;
use crate::table::BufferSizes;
use crate::tree::{BlockContent, DirectiveNode, DirectiveWord, SourceMap};

/// One directive in one block. Words are counted from 0, without the name.
pub struct DirectiveLine<'a, 'b> {
    /// The directive.
    pub node: &'a DirectiveNode,
    /// The enclosing block.
    pub level: &'a mut BlockContext<'b>,
    /// Its position among the nodes of its block: an order for what is applied out of order.
    pub index: usize,
    /// Whether the same row was used in this block before.
    pub(crate) repeated: Option<Span>,
}

impl<'a> DirectiveLine<'a, '_> {
    /// Word `i`. Panics if there is none: the row's arity guarantees the words up to its minimum.
    pub fn arg(&self, i: usize) -> &'a DirectiveWord {
        &self.node.args[i]
    }

    /// Word `i`, if it is there.
    pub fn get(&self, i: usize) -> Option<&'a DirectiveWord> {
        self.node.args.get(i)
    }

    /// All words.
    pub fn args(&self) -> &'a [DirectiveWord] {
        &self.node.args
    }

    /// The text of word `i`, with the panic of [`DirectiveLine::arg`].
    pub fn text(&self, i: usize) -> &'a BStr {
        self.arg(i).as_bstr()
    }

    /// The directive's name.
    pub fn name(&self) -> &'a BStr {
        self.node.name.as_bstr()
    }

    /// Whether the same directive stood in this block before.
    pub fn is_repeated(&self) -> bool {
        self.repeated.is_some()
    }

    /// Whether this is the default of a row rather than a line of a file.
    pub fn is_default(&self) -> bool {
        self.node.head.is_none()
    }

    /// The rows of data between the braces, as in `types` and `map`. Those with braces of their own
    /// are reported and skipped.
    pub fn entries(&mut self) -> BlockLines<'a> {
        let block = &self.node.block;
        // A long block has no braces, and would become nodes.
        if let BlockContent::Nodes(nodes) = block {
            for node in nodes.iter().filter(|node| node.has_braces()) {
                let brace = node.head.last_byte();
                self.level
                    .report(Diagnostic::error("unexpected \"{\"", brace));
            }
        }
        block.lines().without_braces()
    }

    // Readers of words.

    /// `on` or `off`.
    pub fn flag(&self, i: usize) -> Result<bool, Diagnostic> {
        let word = self.arg(i);
        parse::flag(&word.text).ok_or_else(|| {
            let (value, name) = (&word.text, self.name());
            let text = format!(
                "invalid value \"{value}\" in \"{name}\" directive, it must be \"on\" or \"off\""
            );
            self.error_at(i, text)
        })
    }

    /// A number from `min` to `max`.
    pub fn number(&self, i: usize, min: i64, max: i64) -> Result<i64, Diagnostic> {
        let number = parse::number(self.text(i))
            .ok_or_else(|| self.directive_error_at(i, "invalid number"))?;
        if (min..=max).contains(&number) {
            return Ok(number);
        }
        let message = match max {
            i64::MAX => format!("value must be equal to or greater than {min}"),
            max => format!("value must be between {min} and {max}"),
        };
        Err(self.error_at(i, message))
    }

    /// A size in bytes.
    pub fn size(&self, i: usize) -> Result<u64, Diagnostic> {
        self.value(i, units::parse_size)
            .map_err(|error| error.note(SIZE_NOTE))
    }

    /// A length or position in a file.
    pub fn offset(&self, i: usize) -> Result<i64, Diagnostic> {
        self.value(i, units::parse_offset)
            .map_err(|error| error.note(OFFSET_NOTE))
    }

    /// A number and a size in words 0 and 1.
    pub fn buffers(&self) -> Result<BufferSizes, Diagnostic> {
        let count = self.value(0, |text| {
            parse::number(text)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|&n| n > 0)
        })?;
        let size = self.value(1, |text| units::parse_size(text).filter(|&size| size > 0))?;
        Ok(BufferSizes { count, size })
    }

    /// A time with millisecond precision.
    pub fn millis(&self, i: usize) -> Result<Duration, Diagnostic> {
        self.value(i, units::parse_millis)
            .map_err(|error| error.note(MILLIS_NOTE))
    }

    /// A time in whole seconds.
    pub fn seconds(&self, i: usize) -> Result<Duration, Diagnostic> {
        self.value(i, units::parse_seconds)
            .map_err(|error| error.note(SECONDS_NOTE))
    }

    /// A rate: `10r/s`.
    pub fn rate(&self, i: usize) -> Result<Rate, Diagnostic> {
        units::parse_rate(self.text(i))
            .ok_or_else(|| self.error_at(i, format!("invalid rate \"{}\"", self.text(i))))
    }

    /// One of these words: its position.
    pub fn word(&self, i: usize, words: &[&str]) -> Result<usize, Diagnostic> {
        parse::word(self.text(i), words)
            .ok_or_else(|| self.invalid_value(i).note(choice_note(words)))
    }

    /// All words as bits: word `n` of the choice is bit `n`. One that is already in `bits` is a
    /// warning.
    pub fn bits(&mut self, words: &[&str], mut bits: u32) -> Result<u32, Diagnostic> {
        for i in 0..self.args().len() {
            let bit = 1 << self.word(i, words)?;
            if bits & bit != 0 {
                let duplicate = format!("duplicate value \"{}\"", self.text(i));
                self.warn_at(i, duplicate);
            }
            bits |= bit;
        }
        Ok(bits)
    }

    /// A text with variables.
    pub fn expression(&mut self, i: usize) -> Result<Expression, Diagnostic> {
        let word = self.arg(i);
        self.expression_of(word, &word.text)
    }

    /// The same, for a directive that nginx evaluates only in servers: a variable in `http {}` need
    /// not exist unless a server inherits the line ([`BlockContext::require_defined`]).
    pub fn expression_if_inherited(&mut self, i: usize) -> Result<Expression, Diagnostic> {
        self.level.names.set_tentative(self.level.context == HTTP);
        let expression = self.expression(i);
        self.level.names.set_tentative(false);
        expression
    }

    /// A text with variables that is a part of a word, such as the value after `=`.
    pub fn expression_of(
        &mut self,
        word: &DirectiveWord,
        text: &[u8],
    ) -> Result<Expression, Diagnostic> {
        let span = parse::span_within(word, text);
        let expression = Expression::parse(text, span, &mut *self.level.names);
        expression.map_err(|error| self.placed(error))
    }

    /// The value of the variable that the whole word names ([`Expression::variable`]).
    pub fn variable_of(&mut self, word: &DirectiveWord) -> Expression {
        let span = parse::span_within(word, &word.text);
        Expression::variable(&word.text, span, &mut *self.level.names)
    }

    /// The name of a variable, without its `$`.
    pub fn variable_name(&self, i: usize) -> Result<&'a str, Diagnostic> {
        let word = self.arg(i);
        let name = word.text.strip_prefix(b"$").filter(|name| !name.is_empty());
        let name = name.and_then(|name| name.to_str().ok());
        name.ok_or_else(|| self.error_at(i, format!("invalid variable name \"{}\"", word.text)))
    }

    /// A regular expression. Equal ones are the same.
    pub fn regex(&mut self, i: usize, pattern: &[u8], caseless: bool) -> Result<Regex, Diagnostic> {
        self.level.build.needs().executable_memory = true;
        let patterns = self.lasting::<CompiledPatterns>();
        let compiled = patterns.compile(pattern, caseless);
        compiled.map_err(|(message, offset)| {
            let mut error = self.error_at(i, message);
            let whole = parse::span_within(self.arg(i), pattern);
            // Escapes, or bytes that are not UTF-8, move offsets: then the whole word is shown.
            let exact = whole.len() == pattern.len() && pattern.is_ascii();
            if let (Some(offset), true) = (offset, exact) {
                let at = (whole.start + offset as u32).min(whole.end);
                let end = (at + 1).min(whole.end).max(at);
                error.span = Some(Span {
                    start: at,
                    end,
                    ..whole
                });
            }
            error
        })
    }

    /// An address to listen on.
    pub fn listen_address(&self, i: usize) -> Result<HostPort, Diagnostic> {
        HostPort::parse_listen(self.text(i)).map_err(|why| self.address_error(i, why))
    }

    /// The address of a peer; without a port it gets the default one when it is used.
    pub fn peer_address(&self, i: usize) -> Result<HostPort, Diagnostic> {
        HostPort::parse_peer(self.text(i)).map_err(|why| self.address_error(i, why))
    }

    fn address_error(&self, i: usize, why: &str) -> Diagnostic {
        self.error_at(
            i,
            format!(
                "{why} in \"{}\" of the \"{}\" directive",
                self.text(i),
                self.name()
            ),
        )
    }

    /// A network: `10.0.0.0/8`. Warns if bits after the prefix are set.
    pub fn cidr(&mut self, i: usize) -> Result<Cidr, Diagnostic> {
        match address::Cidr::parse(self.text(i)) {
            Some((cidr, exact)) => {
                if !exact {
                    let text = format!("low address bits of {} are meaningless", self.text(i));
                    self.warn_at(i, text);
                }
                Ok(cidr)
            }
            None => Err(self.invalid_parameter(i)),
        }
    }

    fn value<T>(&self, i: usize, read: impl Fn(&[u8]) -> Option<T>) -> Result<T, Diagnostic> {
        read(self.text(i)).ok_or_else(|| self.directive_error_at(i, "invalid value"))
    }

    // Messages.

    /// An error about the whole directive.
    pub fn error(&self, message: impl Into<String>) -> Diagnostic {
        self.placed(self.node.error(message))
    }

    /// An error about word `i`.
    pub fn error_at(&self, i: usize, message: impl Into<String>) -> Diagnostic {
        let span = self.get(i).map_or(self.node.name.span, |word| word.span);
        self.placed(Diagnostic::error(message, span))
    }

    /// An error that shows only after the whole block; nginx names the line of the closing brace.
    pub fn error_after_block(&self, message: impl Into<String>) -> Diagnostic {
        self.error(message)
            .place(DiagnosticPlace::At(self.node.span.last_byte()))
    }

    /// `"NAME" directive WHAT`: the form of many of nginx's errors.
    pub fn directive_error(&self, what: &str) -> Diagnostic {
        self.error(format!("\"{}\" directive {what}", self.name()))
    }

    /// As [`DirectiveLine::directive_error`], with the caret at word `i`.
    pub fn directive_error_at(&self, i: usize, what: &str) -> Diagnostic {
        self.error_at(i, format!("\"{}\" directive {what}", self.name()))
    }

    /// `invalid value "X"` about word `i`.
    pub fn invalid_value(&self, i: usize) -> Diagnostic {
        self.error_at(i, format!("invalid value \"{}\"", self.text(i)))
    }

    /// `invalid parameter "X"` about word `i`.
    pub fn invalid_parameter(&self, i: usize) -> Diagnostic {
        self.error_at(i, format!("invalid parameter \"{}\"", self.text(i)))
    }

    /// Reports all errors but the last one, which the line's setter is to give back.
    pub fn report_but_last(&mut self, mut errors: Vec<Diagnostic>) -> Diagnostic {
        // All unknown variables are reported, so that a file can be mended in one go.
        let last = errors.pop();
        for error in errors {
            self.level.report(error);
        }
        last.unwrap_or_else(|| self.error("unknown variable"))
    }

    /// `invalid number of arguments in "NAME" directive`.
    pub fn invalid_arity(&self) -> Diagnostic {
        self.error(format!(
            "invalid number of arguments in \"{}\" directive",
            self.name()
        ))
    }

    /// Warns about the whole directive.
    pub fn warn(&mut self, message: impl Into<String>) {
        let warning = Diagnostic {
            severity: crate::Severity::Warn,
            ..self.error(message)
        };
        self.level.report(warning);
    }

    /// Warns about word `i`.
    pub fn warn_at(&mut self, i: usize, message: impl Into<String>) {
        let warning = Diagnostic {
            severity: crate::Severity::Warn,
            ..self.error_at(i, message)
        };
        self.level.report(warning);
    }

    /// The message with the line that nginx names: where it stopped reading, which is that of the
    /// directive's last sign.
    fn placed(&self, diagnostic: Diagnostic) -> Diagnostic {
        match diagnostic.place {
            DiagnosticPlace::Span => {
                diagnostic.place(DiagnosticPlace::At(self.node.head.last_byte()))
            }
            DiagnosticPlace::At(_) | DiagnosticPlace::Unsaid => diagnostic,
        }
    }

    pub(crate) fn refuse_repetition(&self) -> Result<(), Diagnostic> {
        let Some(first) = self.repeated else {
            return Ok(());
        };
        Err(self.error_after(first, format!("\"{}\" directive is duplicate", self.name())))
    }

    /// An error about something that is allowed once, and occurred at `first`.
    pub fn error_after(&self, first: Span, message: impl Into<String>) -> Diagnostic {
        let error = self.error(message);
        match self.sources().place(first) {
            Some(place) => error.note(format!("first in {place}")),
            None => error,
        }
    }

    // The way to everything else.

    /// The registry that modules share under type `T`, made by `Default` at first use.
    pub fn shared<T: Default + Any>(&mut self) -> &mut T {
        self.level.shared()
    }

    /// The same, kept by reloads: [`BlockContext::lasting`].
    pub fn lasting<T: Default + Any>(&mut self) -> &mut T {
        self.level.lasting()
    }

    /// The same, empty at each reload: [`BlockContext::momentary`].
    pub fn momentary<T: Default + Any>(&mut self) -> &mut T {
        self.level.momentary()
    }

    /// Every reload has to apply this line again, and so all others.
    pub fn must_read_all(&mut self) {
        self.level.build.must_always_read_all = true;
    }

    /// The path of a word, and what it is for; a relative one counts from the directory of the
    /// configuration file.
    pub fn path(&self, path_use: PathUse, word: &DirectiveWord) -> PathBuf {
        let path = parse::path(&word.text);
        self.level.build.in_conf_prefix(path_use, path)
    }

    /// The path of a word, and what it is for; a relative one counts from the prefix.
    pub fn prefix_path(&self, path_use: PathUse, word: &DirectiveWord) -> PathBuf {
        let path = parse::path(&word.text);
        self.level.build.in_prefix(path_use, path)
    }

    /// The path of a folder for temporary files: as [`DirectiveLine::prefix_path`], but for a row's default,
    /// which is where the system keeps such things.
    pub fn temporary_path(&self, word: &DirectiveWord) -> PathBuf {
        match self.is_default() {
            true => self.level.build.in_temporary(parse::path(&word.text)),
            false => self.prefix_path(PathUse::Write, word),
        }
    }

    /// Where files of the configuration are read from.
    pub fn files(&mut self) -> &mut dyn FileSource {
        &mut *self.level.build.files
    }

    /// The texts of the configuration.
    pub fn sources(&self) -> &SourceMap {
        &self.level.build.sources
    }
}

impl DirectiveNode {
    /// Whether it has braces.
    pub fn has_braces(&self) -> bool {
        !matches!(self.block, BlockContent::None)
    }

    /// An error about this directive: for rows of data in a block.
    pub fn error(&self, message: impl Into<String>) -> Diagnostic {
        let last = self.args.last().map_or(self.name.span, |word| word.span);
        Diagnostic::error(message, self.name.span.to(last))
            .place(DiagnosticPlace::At(self.head.last_byte()))
    }

    /// An error about one word of it.
    pub fn error_at(&self, word: &DirectiveWord, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(message, word.span).place(DiagnosticPlace::At(self.head.last_byte()))
    }
}

const SIZE_NOTE: &str = "a size is a number of bytes, kilobytes or megabytes: 4096, 8k, 1m";
const OFFSET_NOTE: &str =
    "a length is a number of bytes, kilobytes, megabytes or gigabytes: 4096, 8k, 1m, 2g";
const MILLIS_NOTE: &str =
    "a time is a number of seconds, or has units in descending order: 60, 500ms, 1h30m";
const SECONDS_NOTE: &str =
    "a time is a number of seconds, or has units in descending order: 60, 30d, 1h30m";

fn choice_note(words: &[&str]) -> String {
    format!("it must be one of: {}", words.join(", "))
}
