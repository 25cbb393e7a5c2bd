//! Text to words and their ends, by nginx's rules.
//!
//! A word is bare or quoted. In both, a backslash keeps the next character from ending the word;
//! only `\"`, `\'`, `\\`, `\t`, `\r` and `\n` are replaced, any other backslash remains. A brace
//! directly after `$` belongs to a bare word, so that `${name}` needs no quotes. A comment starts
//! where a word could start. A closing quote must be followed by a space, `;`, `{` or `)`, and that
//! `)` starts a word of its own: `if ($a = "b")`.

use base::{BString, FileId, Span};

use crate::diagnostic::{Diagnostic, DiagnosticPlace};
use crate::missing_signs::after;
use crate::tree::{DirectiveWord, MAX_ERRORS};

/// The maximum length of a word in a file. It is nginx's limit, and useful: it turns a forgotten
/// quote into an error at the quote instead of one at the end of the file.
pub(crate) const MAX_WORD: usize = 4096;

/// A word by its place. Its text is made by [`Lexer::resolve`] for those who need it.
#[derive(Clone, Copy)]
pub(crate) struct PlacedWord {
    pub(crate) span: Span,
    pub(crate) quoted: bool,
}

/// What follows the words of a statement.
pub(crate) struct Statement {
    pub(crate) end: StatementEnd,
    /// From the first word to the sign, which is its last byte.
    pub(crate) span: Span,
}

/// What ended a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementEnd {
    Semicolon,
    Open,
    Close,
    File,
}

#[derive(Clone)]
pub(crate) struct Lexer<'t> {
    text: &'t [u8],
    at: usize,
    file: FileId,
    /// The text of `-g`, which has other messages at its end and no limit on words.
    globals: bool,
    /// An error after which the rest of the text cannot be understood.
    gave_up: bool,
    /// Offsets, in order, before which a missing `}` is assumed.
    closings: std::vec::IntoIter<usize>,
}

impl<'t> Lexer<'t> {
    pub(crate) fn new(text: &'t [u8], file: FileId, globals: bool) -> Lexer<'t> {
        Lexer {
            text,
            at: 0,
            file,
            globals,
            gave_up: false,
            closings: Vec::new().into_iter(),
        }
    }

    /// Assumes a `}` before each of these offsets, which must be in order.
    pub(crate) fn with_closings(mut self, closings: Vec<usize>) -> Lexer<'t> {
        self.closings = closings.into_iter();
        self
    }

    /// Starts at this offset instead of at the beginning.
    pub(crate) fn starting_at(mut self, at: u32) -> Lexer<'t> {
        self.at = at as usize;
        self
    }

    /// The file that the text is from.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// A word with its text.
    pub(crate) fn resolve(&self, word: PlacedWord) -> DirectiveWord {
        let raw = &self.text[word.span.start as usize..word.span.end as usize];
        DirectiveWord {
            text: unescape(raw),
            span: word.span,
            quoted: word.quoted,
        }
    }

    /// The text not yet read.
    pub(crate) fn rest(&self) -> &'t [u8] {
        &self.text[self.at..]
    }

    pub(crate) fn position(&self) -> u32 {
        self.at as u32
    }

    /// The place of the first byte of the next statement.
    pub(crate) fn next_place(&mut self) -> Span {
        self.skip_space();
        self.span(self.at, self.at)
    }

    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.text.len());
    }

    /// Stops parsing; the reason has been reported.
    pub(crate) fn give_up(&mut self) {
        self.at = self.text.len();
        self.gave_up = true;
    }

    /// Whether parsing was stopped by an error, which has been reported.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// The next statement, whose words replace those in `words`. Errors are recorded and skipped, since the rest
    /// is still worth parsing.
    pub(crate) fn statement(
        &mut self,
        words: &mut Vec<PlacedWord>,
        errors: &mut Vec<Diagnostic>,
    ) -> Statement {
        words.clear();
        loop {
            if errors.len() >= MAX_ERRORS {
                self.give_up();
            }
            self.skip_space();
            let start = self.at;
            if words.is_empty() && self.closes_before(start) {
                return Statement {
                    end: StatementEnd::Close,
                    span: self.span(start, start),
                };
            }
            let sign = self.span(start, start + 1);
            let Some(&byte) = self.text.get(start) else {
                return self.end_of_text(words, errors);
            };
            let end = match byte {
                b';' => StatementEnd::Semicolon,
                b'{' => StatementEnd::Open,
                b'}' => StatementEnd::Close,
                _ => {
                    if let Some(word) = self.word(byte, errors) {
                        words.push(word);
                    }
                    continue;
                }
            };
            if let Some((end, span)) = self.end_statement(end, sign, words, errors) {
                return Statement { end, span };
            }
        }
    }

    /// How a sign ends a statement of these words, and its span; `None` if the sign ends nothing.
    fn end_statement(
        &mut self,
        end: StatementEnd,
        sign: Span,
        words: &[PlacedWord],
        errors: &mut Vec<Diagnostic>,
    ) -> Option<(StatementEnd, Span)> {
        let head = words
            .first()
            .map_or(sign, |first| self.head(first).to(sign));
        match (end, words.last()) {
            // A missing `;` before `}`: the directive is taken, and the brace parsed again as the
            // end of the block.
            (StatementEnd::Close, Some(last)) => {
                let missing = after(last.span, last.quoted);
                let error = Diagnostic::error("unexpected \"}\"", missing);
                errors.push(
                    error
                        .place(DiagnosticPlace::At(sign))
                        .note("a \";\" is missing here"),
                );
                return Some((StatementEnd::Semicolon, head));
            }
            (StatementEnd::Semicolon, None) => {
                errors.push(unexpected(';', sign));
                self.at += 1;
                return None;
            }
            (StatementEnd::Open, None) => errors.push(unexpected('{', sign)),
            _ => {}
        }
        self.at += 1;
        Some((end, head))
    }

    /// Whether an assumed brace belongs before this offset; it is used up then.
    fn closes_before(&mut self, at: usize) -> bool {
        let due = self
            .closings
            .as_slice()
            .first()
            .is_some_and(|&before| before <= at);
        due && self.closings.next().is_some()
    }

    /// A word's place including an opening quote, which is where its directive starts.
    fn head(&self, first: &PlacedWord) -> Span {
        Span {
            start: first.span.start - u32::from(first.quoted),
            ..first.span
        }
    }

    fn end_of_text(
        &mut self,
        words: &mut Vec<PlacedWord>,
        errors: &mut Vec<Diagnostic>,
    ) -> Statement {
        let at = self.span(self.text.len(), self.text.len());
        if let (Some(last), false) = (words.last(), self.gave_up) {
            let error = self.unexpected_end(after(last.span, last.quoted));
            errors.push(error.note("a \";\" is missing here"));
            self.give_up();
        }
        words.clear();
        Statement {
            end: StatementEnd::File,
            span: at,
        }
    }

    fn unexpected_end(&self, unfinished: Span) -> Diagnostic {
        let message = if self.globals {
            "unexpected end of parameter, expecting \";\""
        } else {
            "unexpected end of file, expecting \";\" or \"}\""
        };
        let at = self.span(self.text.len(), self.text.len());
        Diagnostic::error(message, unfinished).place(DiagnosticPlace::At(at))
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.file, start as u32, end as u32)
    }

    fn skip_space(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => {
                    let rest = self.rest();
                    self.at += rest
                        .iter()
                        .position(|&byte| byte == b'\n')
                        .unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn word(&mut self, first: u8, errors: &mut Vec<Diagnostic>) -> Option<PlacedWord> {
        let quoted = matches!(first, b'"' | b'\'');
        let start = if quoted { self.at + 1 } else { self.at };
        let end = if quoted {
            self.end_of_quoted(start, first)
        } else {
            self.end_of_bare(start)
        };
        // nginx gives up when a word fills its buffer, whatever follows.
        let too_long = !self.globals && end.unwrap_or(self.text.len()) - start >= MAX_WORD;
        if too_long && start + MAX_WORD < self.text.len() {
            errors.push(self.too_long(start, quoted.then_some(first)));
            self.give_up();
            return None;
        }
        let Some(end) = end else {
            let error = self.unexpected_end(self.span(self.at, (self.at + 1).max(start)));
            errors.push(match quoted {
                true => error.note("this quote is never closed"),
                false => error,
            });
            self.give_up();
            return None;
        };
        self.at = if quoted { end + 1 } else { end };
        if quoted {
            self.check_after_quote(start, errors);
        }
        Some(PlacedWord {
            span: self.span(start, end),
            quoted,
        })
    }

    /// The place of the closing quote.
    fn end_of_quoted(&self, start: usize, quote: u8) -> Option<usize> {
        let mut at = start;
        loop {
            match *self.text.get(at)? {
                b'\\' => at += 2,
                byte if byte == quote => return Some(at),
                _ => at += 1,
            }
        }
    }

    /// The place of the byte that ends a bare word.
    fn end_of_bare(&self, start: usize) -> Option<usize> {
        let mut at = start;
        let mut after_dollar = false;
        loop {
            match *self.text.get(at)? {
                b'{' if after_dollar => at += 1,
                b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' => return Some(at),
                b'\\' => {
                    after_dollar = false;
                    at += 2;
                }
                byte => {
                    after_dollar = byte == b'$';
                    at += 1;
                }
            }
        }
    }

    /// Reports what must not follow a closing quote. If the quoted text contains line feeds, the
    /// closing quote of another text is probably missing; then everything from here on is inside
    /// out, and parsing stops.
    fn check_after_quote(&mut self, start: usize, errors: &mut Vec<Diagnostic>) {
        let byte = match self.text.get(self.at) {
            None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b')') => return,
            // Unexpected, too, but reported by `statement`.
            Some(b'}') => return,
            Some(&byte) => byte,
        };
        let error = unexpected(char::from(byte), self.span(self.at, self.at + 1));
        let feeds = |text: &[u8]| text.iter().filter(|&&byte| byte == b'\n').count();
        if feeds(&self.text[start..self.at]) == 0 {
            let expected = "after a closing quote there must be a space, \";\" or \"{\"";
            return errors.push(error.note(expected));
        }
        errors.push(error.note(format!(
            "this closes the quote opened in line {}: is the closing quote missing there?",
            feeds(&self.text[..start]) + 1
        )));
        self.give_up();
    }

    fn too_long(&self, start: usize, quote: Option<u8>) -> Diagnostic {
        match quote {
            Some(quote) => Diagnostic::error(
                format!(
                    "too long parameter, probably missing terminating \"{}\" character",
                    char::from(quote)
                ),
                self.span(start - 1, start),
            ),
            None => {
                let shown = String::from_utf8_lossy(&self.text[start..start + 10]);
                Diagnostic::error(
                    format!("too long parameter \"{shown}...\" started"),
                    self.span(start, start + 10),
                )
            }
        }
    }
}

fn unexpected(sign: char, span: Span) -> Diagnostic {
    let error = Diagnostic::error(format!("unexpected \"{sign}\""), span);
    match sign {
        ';' => error.note("there is no directive before it: remove this \";\""),
        _ => error,
    }
}

/// Replaces the six escapes; any other backslash remains.
fn unescape(raw: &[u8]) -> BString {
    // Nearly every word.
    if !raw.contains(&b'\\') {
        return BString::from(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let replaced = match (byte, bytes.peek()) {
            (b'\\', Some(&next @ (b'"' | b'\'' | b'\\'))) => Some(next),
            (b'\\', Some(b't')) => Some(b'\t'),
            (b'\\', Some(b'r')) => Some(b'\r'),
            (b'\\', Some(b'n')) => Some(b'\n'),
            _ => None,
        };
        if replaced.is_some() {
            bytes.next();
        }
        out.push(replaced.unwrap_or(byte));
    }
    BString::from(out)
}
