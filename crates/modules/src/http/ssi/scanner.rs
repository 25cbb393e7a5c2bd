//! Finds commands in content that arrives in pieces.
//!
//! ```text
//! text <!--#name key="value" key='value' --> text
//! ```
//!
//! The grammar is nginx's: the name follows the `#`, possibly after white space; values are in
//! single or double quotes, in which a backslash escapes the next character; `-->` ends a command.
//! An invalid command extends to the next `-->`. Memory does not grow with the content: name, keys,
//! values and their number are bounded.

use std::ops::Range;
use std::sync::LazyLock;

use bstr::{BStr, BString, ByteSlice};
use memchr::memmem::Finder;

/// The beginning of a command.
pub(super) const MARK: &[u8] = b"<!--#";

/// The maximum length of a command's name, in bytes.
const MAX_NAME: usize = 32;

/// The maximum length of a parameter's name, in bytes.
const MAX_KEY: usize = 32;

/// The maximum number of parameters of a command.
pub(super) const MAX_PARAMETERS: usize = 16;

/// A command with its parameters, still escaped as in the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SsiCommand {
    pub(super) name: BString,
    pub(super) parameters: Vec<(BString, BString)>,
}

/// What the scanner found next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanEvent {
    /// Text: a range of the current piece.
    Text(Range<usize>),
    /// The first bytes of [`MARK`], this many, which ended an earlier piece and turned out to be
    /// text.
    HeldMark(usize),
    Command(SsiCommand),
    /// An invalid command; the reason is for the log.
    Invalid(String),
}

/// The scanner. Its state survives from piece to piece, so commands may be cut anywhere.
pub(super) struct SsiScanner {
    state: ScanState,
    command: SsiCommand,
    /// `ssi_value_length`.
    max_value: usize,
}

/// The position within the grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScanState {
    /// In text, after this many bytes of [`MARK`], which ended the piece before.
    Text {
        held: usize,
    },
    BeforeName,
    Name,
    BeforeKey,
    Key,
    AfterKey,
    BeforeValue,
    Value {
        quote: u8,
        is_escaped: bool,
    },
    AfterValue,
    /// After this many dashes of `-->`.
    End {
        dashes: u8,
    },
    /// In an invalid command, after this many dashes of the `-->` that will end it.
    Invalid {
        why: String,
        dashes: u8,
    },
}

impl SsiScanner {
    /// A scanner at the start of content; `max_value` is the maximum length of a value.
    pub(super) fn new(max_value: usize) -> SsiScanner {
        SsiScanner {
            state: ScanState::Text { held: 0 },
            command: SsiCommand::default(),
            max_value,
        }
    }

    /// The next event in `piece` from `at` on, which advances past it. `None`: the piece is used
    /// up.
    pub(super) fn next(&mut self, piece: &[u8], at: &mut usize) -> Option<ScanEvent> {
        while *at < piece.len() {
            let event = match self.state {
                ScanState::Text { .. } => self.scan_text(piece, at),
                _ => {
                    let byte = piece[*at];
                    *at += 1;
                    self.push_byte(byte)
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Ends the content: bytes that were held back as the start of a mark are text, which nginx
    /// loses. An unfinished command is dropped.
    pub(super) fn end(&mut self) -> Option<ScanEvent> {
        match std::mem::replace(&mut self.state, ScanState::Text { held: 0 }) {
            ScanState::Text { held } if held > 0 => Some(ScanEvent::HeldMark(held)),
            _ => None,
        }
    }

    /// Scans text for the next mark.
    fn scan_text(&mut self, piece: &[u8], at: &mut usize) -> Option<ScanEvent> {
        static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
        if let ScanState::Text { held } = self.state
            && held > 0
        {
            return self.continue_mark(held, piece, at);
        }
        let rest = &piece[*at..];
        let start = *at;
        if let Some(found) = FINDER.find(rest) {
            *at += found + MARK.len();
            self.begin();
            return (found > 0).then(|| ScanEvent::Text(start..start + found));
        }
        // Only the first byte of the mark is a `<`, so the piece can end with the start of at most
        // one mark.
        let held = (1..MARK.len())
            .rev()
            .find(|&n| rest.ends_with(&MARK[..n]))
            .unwrap_or(0);
        self.state = ScanState::Text { held };
        *at = piece.len();
        let end = piece.len() - held;
        (end > start).then_some(ScanEvent::Text(start..end))
    }

    /// Continues with a mark that the piece before ended in.
    fn continue_mark(&mut self, held: usize, piece: &[u8], at: &mut usize) -> Option<ScanEvent> {
        if piece[*at] != MARK[held] {
            self.state = ScanState::Text { held: 0 };
            // The byte is not consumed: it may begin another mark.
            return Some(ScanEvent::HeldMark(held));
        }
        *at += 1;
        match held + 1 == MARK.len() {
            true => self.begin(),
            false => self.state = ScanState::Text { held: held + 1 },
        }
        None
    }

    /// Begins a command, after its mark.
    fn begin(&mut self) {
        self.command = SsiCommand::default();
        self.state = ScanState::BeforeName;
    }

    /// Advances by one byte inside a command.
    fn push_byte(&mut self, byte: u8) -> Option<ScanEvent> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match &mut self.state {
            ScanState::BeforeName if is_space => {}
            ScanState::BeforeName => {
                self.command.name.push(byte);
                self.state = ScanState::Name;
            }
            ScanState::Name | ScanState::BeforeKey | ScanState::AfterValue if byte == b'-' => {
                self.state = ScanState::End { dashes: 1 };
            }
            ScanState::Name | ScanState::AfterValue if is_space => {
                self.state = ScanState::BeforeKey
            }
            ScanState::Name => self.name(byte),
            ScanState::BeforeKey if is_space => {}
            ScanState::BeforeKey => self.begin_key(byte),
            ScanState::Key if is_space => self.state = ScanState::AfterKey,
            ScanState::Key | ScanState::AfterKey if byte == b'=' => {
                self.state = ScanState::BeforeValue
            }
            ScanState::Key if byte != b'-' => self.key(byte),
            ScanState::AfterKey if is_space => {}
            ScanState::Key | ScanState::AfterKey => self.unexpected(byte, "after"),
            ScanState::BeforeValue if is_space => {}
            ScanState::BeforeValue if matches!(byte, b'"' | b'\'') => {
                self.state = ScanState::Value {
                    quote: byte,
                    is_escaped: false,
                };
            }
            ScanState::BeforeValue => self.unexpected(byte, "before value of"),
            ScanState::Value { quote, is_escaped } => {
                if !*is_escaped && byte == *quote {
                    self.state = ScanState::AfterValue;
                    return None;
                }
                // The backslash is kept: it is removed when the value is evaluated.
                *is_escaped = !*is_escaped && byte == b'\\';
                self.value(byte);
            }
            ScanState::AfterValue => self.unexpected(byte, "after the value of"),
            ScanState::End { dashes: 1 } if byte == b'-' => {
                self.state = ScanState::End { dashes: 2 }
            }
            ScanState::End { dashes: 2 } if byte == b'>' => {
                self.state = ScanState::Text { held: 0 };
                return Some(ScanEvent::Command(std::mem::take(&mut self.command)));
            }
            ScanState::End { .. } => {
                let (sign, name) = (char::from(byte), &self.command.name);
                let why = format!("unexpected \"{sign}\" symbol in \"{name}\" SSI command");
                self.reject(why, byte);
            }
            ScanState::Invalid { why, dashes } => match (*dashes, byte) {
                (2, b'>') => {
                    let why = std::mem::take(why);
                    self.state = ScanState::Text { held: 0 };
                    return Some(ScanEvent::Invalid(why));
                }
                (0 | 1, b'-') => *dashes += 1,
                (_, b'-') => {}
                _ => *dashes = 0,
            },
            ScanState::Text { .. } => {}
        }
        None
    }

    /// Adds a byte to the command's name.
    fn name(&mut self, byte: u8) {
        if self.command.name.len() < MAX_NAME {
            return self.command.name.push(byte);
        }
        let name = &self.command.name;
        let why = format!(
            "the \"{name}{}...\" SSI command is too long",
            char::from(byte)
        );
        self.reject(why, byte);
    }

    /// Begins the name of a parameter.
    fn begin_key(&mut self, byte: u8) {
        if self.command.parameters.len() == MAX_PARAMETERS {
            let why = format!("too many SSI command parameters: \"{}\"", self.command.name);
            return self.reject(why, byte);
        }
        let key = BString::from(vec![byte]);
        self.command.parameters.push((key, BString::default()));
        self.state = ScanState::Key;
    }

    /// Adds a byte to the parameter's name.
    fn key(&mut self, byte: u8) {
        let Some((key, _)) = self.command.parameters.last_mut() else {
            return;
        };
        if key.len() < MAX_KEY {
            return key.push(byte);
        }
        let (sign, name) = (char::from(byte), &self.command.name);
        let why = format!("too long \"{key}{sign}...\" parameter in \"{name}\" SSI command");
        self.reject(why, byte);
    }

    /// Adds a byte to the parameter's value.
    fn value(&mut self, byte: u8) {
        let Some((key, value)) = self.command.parameters.last_mut() else {
            return;
        };
        if value.len() < self.max_value {
            return value.push(byte);
        }
        let (sign, name) = (char::from(byte), &self.command.name);
        let why = format!(
            "too long \"{value}{sign}...\" value of \"{key}\" parameter in \"{name}\" SSI command"
        );
        self.reject(why, byte);
    }

    /// Gives up on the command because of this byte.
    fn unexpected(&mut self, byte: u8, place: &str) {
        let key = self.command.parameters.last().map(|(key, _)| key.as_bstr());
        let (sign, key, name) = (
            char::from(byte),
            key.unwrap_or(BStr::new("")),
            &self.command.name,
        );
        let why = format!(
            "unexpected \"{sign}\" symbol {place} \"{key}\" parameter in \"{name}\" SSI command"
        );
        self.reject(why, byte);
    }

    /// Skips to the next `-->`, of which the offending byte may be the first dash.
    fn reject(&mut self, why: String, byte: u8) {
        let dashes = u8::from(byte == b'-');
        self.state = ScanState::Invalid { why, dashes };
    }
}

impl SsiCommand {
    /// Appends the command in the form of the content: a block is scanned again when it is used.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MARK);
        out.extend_from_slice(&self.name);
        for (key, value) in &self.parameters {
            out.push(b' ');
            out.extend_from_slice(key);
            out.extend_from_slice(b"=\"");
            out.extend_from_slice(value);
            out.push(b'"');
        }
        out.extend_from_slice(b" -->");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of content that arrives cut at `cut`, with text put together again.
    fn scan(content: &[u8], cut: usize) -> Vec<ScanEvent> {
        let mut scanner = SsiScanner::new(20);
        let mut events = Vec::new();
        let mut text = Vec::new();
        let mut take = |event: Option<ScanEvent>, piece: &[u8]| match event {
            None => false,
            Some(ScanEvent::Text(range)) => {
                text.extend_from_slice(&piece[range]);
                true
            }
            Some(ScanEvent::HeldMark(held)) => {
                text.extend_from_slice(&MARK[..held]);
                true
            }
            Some(other) => {
                events.push(ScanEvent::Invalid(
                    String::from_utf8_lossy(&std::mem::take(&mut text)).into_owned(),
                ));
                events.push(other);
                true
            }
        };
        for piece in [&content[..cut], &content[cut..]] {
            let mut at = 0;
            while take(scanner.next(piece, &mut at), piece) {}
        }
        take(scanner.end(), b"");
        events.push(ScanEvent::Invalid(
            String::from_utf8_lossy(&text).into_owned(),
        ));
        events
    }

    #[test]
    fn cut_anywhere_the_events_are_the_same() {
        let content =
            b"a<b<<!--<!-- x --><!--#echo var=\"x\\\"y\" default='<!--#' -->tail<!--#  if-->-<!--";
        let whole = scan(content, 0);
        assert_eq!(whole.len(), 5, "{whole:?}");
        assert_eq!(
            whole[0],
            ScanEvent::Invalid("a<b<<!--<!-- x -->".to_owned())
        );
        let echo = SsiCommand {
            name: "echo".into(),
            parameters: vec![
                ("var".into(), "x\\\"y".into()),
                ("default".into(), "<!--#".into()),
            ],
        };
        assert_eq!(whole[1], ScanEvent::Command(echo));
        assert_eq!(whole[4], ScanEvent::Invalid("-<!--".to_owned()));
        for cut in 0..content.len() {
            assert_eq!(scan(content, cut), whole, "cut at {cut}");
        }
    }

    #[test]
    fn what_breaks_the_grammar_reaches_to_the_end_mark() {
        for (content, why) in [
            (
                &b"<!--#echo var -- -->"[..],
                "unexpected \"-\" symbol after",
            ),
            (b"<!--#echo var=x -->", "before value"),
            (b"<!--#echo var=\"x\"y-->", "after the value"),
            (b"<!--#echo -x -->", "unexpected \"x\""),
            (
                b"<!--#aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa -->",
                "too long",
            ),
            (b"<!--#echo var=\"123456789012345678901\" -->", "too long"),
        ] {
            let events = scan(content, 0);
            assert!(
                matches!(&events[1], ScanEvent::Invalid(text) if text.contains(why)),
                "{events:?}"
            );
        }
    }
}
