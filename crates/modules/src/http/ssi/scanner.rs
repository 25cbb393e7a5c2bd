//! Finds commands in content that comes in pieces.
//!
//! ```text
//! text <!--#name key="value" key='value' --> text
//! ```
//!
//! The grammar is nginx's: the name follows the `#`, possibly after white space, values stand in single or double
//! quotes in which a backslash takes the next sign along, and `-->` ends a command. A command that breaks the grammar
//! reaches to the next `-->`. Nothing here grows with the content: name, keys, values and their number are bounded.

use std::ops::Range;
use std::sync::LazyLock;

use bstr::{BStr, BString, ByteSlice};
use memchr::memmem::Finder;

/// What a command begins with.
pub(super) const MARK: &[u8] = b"<!--#";

/// The longest name of a command, in bytes.
const MAX_NAME: usize = 32;

/// The longest name of a parameter, in bytes.
const MAX_KEY: usize = 32;

/// How many parameters a command may have.
pub(super) const MAX_PARAMETERS: usize = 16;

/// A command with its parameters, as they stand in the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) name: BString,
    pub(super) parameters: Vec<(BString, BString)>,
}

/// What comes next in the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Text, by its place in the present piece.
    Text(Range<usize>),
    /// So many bytes of [`MARK`], which ended a piece before, were text.
    Held(usize),
    Command(Command),
    /// A command that breaks the grammar, and how, for the log.
    Broken(String),
}

/// Where in the content it is.
pub(super) struct Scanner {
    state: State,
    command: Command,
    max_value: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// In text; so many bytes of the mark ended the piece before.
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
    /// So many dashes of `-->`.
    End {
        dashes: u8,
    },
    /// After an error, with so many dashes of `-->`.
    Broken {
        why: String,
        dashes: u8,
    },
}

impl Scanner {
    /// A scanner at the beginning of content, with a bound for the length of values.
    pub(super) fn new(max_value: usize) -> Scanner {
        Scanner {
            state: State::Text { held: 0 },
            command: Command::default(),
            max_value,
        }
    }

    /// The next event in `piece` from `at` on, which moves behind it. `None`: the piece has no more.
    pub(super) fn next(&mut self, piece: &[u8], at: &mut usize) -> Option<Event> {
        while *at < piece.len() {
            let event = match self.state {
                State::Text { .. } => self.text(piece, at),
                _ => {
                    let byte = piece[*at];
                    *at += 1;
                    self.byte(byte)
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// What was held back at the end of all content.
    pub(super) fn end(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.state, State::Text { held: 0 }) {
            State::Text { held } if held > 0 => Some(Event::Held(held)),
            _ => None,
        }
    }

    fn text(&mut self, piece: &[u8], at: &mut usize) -> Option<Event> {
        static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
        if let State::Text { held } = self.state
            && held > 0
        {
            return self.go_on_with_mark(held, piece, at);
        }
        let rest = &piece[*at..];
        let start = *at;
        if let Some(found) = FINDER.find(rest) {
            *at += found + MARK.len();
            self.begin();
            return (found > 0).then(|| Event::Text(start..start + found));
        }
        // The mark has no other beginning in itself than its first byte, so that there is one place it may begin at.
        let held = (1..MARK.len())
            .rev()
            .find(|&n| rest.ends_with(&MARK[..n]))
            .unwrap_or(0);
        self.state = State::Text { held };
        *at = piece.len();
        let end = piece.len() - held;
        (end > start).then_some(Event::Text(start..end))
    }

    fn go_on_with_mark(&mut self, held: usize, piece: &[u8], at: &mut usize) -> Option<Event> {
        if piece[*at] != MARK[held] {
            self.state = State::Text { held: 0 };
            return Some(Event::Held(held));
        }
        *at += 1;
        match held + 1 == MARK.len() {
            true => self.begin(),
            false => self.state = State::Text { held: held + 1 },
        }
        None
    }

    fn begin(&mut self) {
        self.command = Command::default();
        self.state = State::BeforeName;
    }

    fn byte(&mut self, byte: u8) -> Option<Event> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match &mut self.state {
            State::BeforeName if is_space => {}
            State::BeforeName => {
                self.command.name.push(byte);
                self.state = State::Name;
            }
            State::Name | State::BeforeKey | State::AfterValue if byte == b'-' => {
                self.state = State::End { dashes: 1 };
            }
            State::Name | State::AfterValue if is_space => self.state = State::BeforeKey,
            State::Name => self.name(byte),
            State::BeforeKey if is_space => {}
            State::BeforeKey => self.begin_key(byte),
            State::Key if is_space => self.state = State::AfterKey,
            State::Key | State::AfterKey if byte == b'=' => self.state = State::BeforeValue,
            State::Key if byte != b'-' => self.key(byte),
            State::AfterKey if is_space => {}
            State::Key | State::AfterKey => self.unexpected(byte, "after"),
            State::BeforeValue if is_space => {}
            State::BeforeValue if matches!(byte, b'"' | b'\'') => {
                self.state = State::Value {
                    quote: byte,
                    is_escaped: false,
                };
            }
            State::BeforeValue => self.unexpected(byte, "before value of"),
            State::Value { quote, is_escaped } => {
                if !*is_escaped && byte == *quote {
                    self.state = State::AfterValue;
                    return None;
                }
                *is_escaped = !*is_escaped && byte == b'\\';
                self.value(byte);
            }
            State::AfterValue => self.unexpected(byte, "after the value of"),
            State::End { dashes: 1 } if byte == b'-' => self.state = State::End { dashes: 2 },
            State::End { dashes: 2 } if byte == b'>' => {
                self.state = State::Text { held: 0 };
                return Some(Event::Command(std::mem::take(&mut self.command)));
            }
            State::End { .. } => {
                let (sign, name) = (char::from(byte), &self.command.name);
                let why = format!("unexpected \"{sign}\" symbol in \"{name}\" SSI command");
                self.broken(why, byte);
            }
            State::Broken { why, dashes } => match (*dashes, byte) {
                (2, b'>') => {
                    let why = std::mem::take(why);
                    self.state = State::Text { held: 0 };
                    return Some(Event::Broken(why));
                }
                (0 | 1, b'-') => *dashes += 1,
                (_, b'-') => {}
                _ => *dashes = 0,
            },
            State::Text { .. } => {}
        }
        None
    }

    fn name(&mut self, byte: u8) {
        if self.command.name.len() < MAX_NAME {
            return self.command.name.push(byte);
        }
        let name = &self.command.name;
        let why = format!(
            "the \"{name}{}...\" SSI command is too long",
            char::from(byte)
        );
        self.broken(why, byte);
    }

    fn begin_key(&mut self, byte: u8) {
        if self.command.parameters.len() == MAX_PARAMETERS {
            let why = format!("too many SSI command parameters: \"{}\"", self.command.name);
            return self.broken(why, byte);
        }
        let key = BString::from(vec![byte]);
        self.command.parameters.push((key, BString::default()));
        self.state = State::Key;
    }

    fn key(&mut self, byte: u8) {
        let Some((key, _)) = self.command.parameters.last_mut() else {
            return;
        };
        if key.len() < MAX_KEY {
            return key.push(byte);
        }
        let (sign, name) = (char::from(byte), &self.command.name);
        let why = format!("too long \"{key}{sign}...\" parameter in \"{name}\" SSI command");
        self.broken(why, byte);
    }

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
        self.broken(why, byte);
    }

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
        self.broken(why, byte);
    }

    fn broken(&mut self, why: String, byte: u8) {
        let dashes = u8::from(byte == b'-');
        self.state = State::Broken { why, dashes };
    }
}

impl Command {
    /// Appends the command as it stands in content, for content that is looked at again later.
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
    fn scan(content: &[u8], cut: usize) -> Vec<Event> {
        let mut scanner = Scanner::new(20);
        let mut events = Vec::new();
        let mut text = Vec::new();
        let mut take = |event: Option<Event>, piece: &[u8]| match event {
            None => false,
            Some(Event::Text(range)) => {
                text.extend_from_slice(&piece[range]);
                true
            }
            Some(Event::Held(held)) => {
                text.extend_from_slice(&MARK[..held]);
                true
            }
            Some(other) => {
                events.push(Event::Broken(
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
        events.push(Event::Broken(String::from_utf8_lossy(&text).into_owned()));
        events
    }

    #[test]
    fn cut_anywhere_the_events_are_the_same() {
        let content =
            b"a<b<<!--<!-- x --><!--#echo var=\"x\\\"y\" default='<!--#' -->tail<!--#  if-->-<!--";
        let whole = scan(content, 0);
        assert_eq!(whole.len(), 5, "{whole:?}");
        assert_eq!(whole[0], Event::Broken("a<b<<!--<!-- x -->".to_owned()));
        let echo = Command {
            name: "echo".into(),
            parameters: vec![
                ("var".into(), "x\\\"y".into()),
                ("default".into(), "<!--#".into()),
            ],
        };
        assert_eq!(whole[1], Event::Command(echo));
        assert_eq!(whole[4], Event::Broken("-<!--".to_owned()));
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
                matches!(&events[1], Event::Broken(text) if text.contains(why)),
                "{events:?}"
            );
        }
    }
}
