//! Which bytes a value can contain: a variable by its nature, a capture by its regular expression.
//!
//! The parser knows as much of PCRE as configurations use. For anything else it gives no answer: a
//! checker with false alarms is switched off. Where it is not exact, it errs towards more: a set of
//! bytes is what could be there, never less.

/// A set of bytes, as a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u128; 2]);

impl ByteSet {
    pub(super) const NONE: ByteSet = ByteSet([0; 2]);
    pub(super) const ALL: ByteSet = ByteSet([u128::MAX; 2]);

    /// The bytes that occur in a text.
    pub(super) fn of(text: &[u8]) -> ByteSet {
        let mut set = ByteSet::NONE;
        text.iter().for_each(|byte| set.add(*byte));
        set
    }

    /// All bytes from `first` to `last`.
    pub(super) fn range(first: u8, last: u8) -> ByteSet {
        let mut set = ByteSet::NONE;
        (first..=last).for_each(|byte| set.add(byte));
        set
    }

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte >> 7)] |= 1 << (byte & 127);
    }

    pub(super) fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 7)] & (1 << (byte & 127)) != 0
    }

    pub(super) fn or(self, other: ByteSet) -> ByteSet {
        ByteSet([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    pub(super) fn and(self, other: ByteSet) -> ByteSet {
        ByteSet([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    pub(super) fn not(self) -> ByteSet {
        ByteSet([!self.0[0], !self.0[1]])
    }

    pub(super) fn is_empty(self) -> bool {
        self == ByteSet::NONE
    }

    /// Whether every byte of this set is in the text.
    pub(super) fn is_within(self, text: &[u8]) -> bool {
        self.and(ByteSet::of(text).not()).is_empty()
    }

    /// Whether a byte of the text is in this set.
    pub(super) fn intersects(self, text: &[u8]) -> bool {
        text.iter().any(|byte| self.has(*byte))
    }
}

/// What clients can put into a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueReach {
    /// The bytes that can occur in it.
    pub(super) bytes: ByteSet,
    /// The bytes that it can begin with: a slash there ends a host.
    pub(super) first: ByteSet,
    /// Whether it can be empty.
    pub(super) empty: bool,
    /// Whether it is the host name that the client has requested, or a part of it. Sending the
    /// client there again is harmless.
    pub(super) is_host: bool,
}

impl ValueReach {
    /// The empty text.
    const NOTHING: ValueReach = ValueReach {
        bytes: ByteSet::NONE,
        first: ByteSet::NONE,
        empty: true,
        is_host: false,
    };

    fn one(set: ByteSet) -> ValueReach {
        ValueReach {
            bytes: set,
            first: set,
            empty: false,
            is_host: false,
        }
    }

    /// The concatenation: this value, then that one.
    fn then(self, next: ValueReach) -> ValueReach {
        ValueReach {
            bytes: self.bytes.or(next.bytes),
            first: match self.empty {
                true => self.first.or(next.first),
                false => self.first,
            },
            empty: self.empty && next.empty,
            is_host: self.is_host && next.is_host,
        }
    }

    /// The alternation: this value or that one.
    pub(super) fn either(self, other: ValueReach) -> ValueReach {
        ValueReach {
            bytes: self.bytes.or(other.bytes),
            first: self.first.or(other.first),
            empty: self.empty || other.empty,
            is_host: self.is_host && other.is_host,
        }
    }

    /// Limited to the bytes that the expression's subject can have.
    pub(super) fn within(self, subject: ByteSet) -> ValueReach {
        ValueReach {
            bytes: self.bytes.and(subject),
            first: self.first.and(subject),
            ..self
        }
    }
}

/// A capture, by its number or its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureGroup<'a> {
    Number(usize),
    Name(&'a [u8]),
}

/// What a group of an expression can match; `None` if that is not known.
pub(super) fn group(pattern: &[u8], wanted: CaptureGroup) -> Option<ValueReach> {
    let mut reader = PatternReader {
        rest: pattern,
        groups: 0,
        wanted,
        found: None,
        dot_all: pattern.windows(3).any(|window| window == b"(?s"),
        depth: 0,
    };
    reader.branches()?;
    match reader.rest.is_empty() {
        true => reader.found,
        false => None,
    }
}

/// The depth of nested groups; a pattern with more is not read. The parser is recursive.
const MAX_DEPTH: usize = 32;

/// The state of parsing a pattern.
struct PatternReader<'p> {
    /// What has not been parsed yet.
    rest: &'p [u8],
    /// The number of groups so far: they are numbered by their opening parentheses.
    groups: usize,
    /// The group that is asked for.
    wanted: CaptureGroup<'p>,
    /// What it can match, once it was met.
    found: Option<ValueReach>,
    /// Whether `.` matches line feeds, too.
    dot_all: bool,
    /// The depth of the current group.
    depth: usize,
}

const DIGITS: (u8, u8) = (b'0', b'9');

/// The characters of `\w`.
fn word() -> ByteSet {
    ByteSet::range(b'a', b'z')
        .or(ByteSet::range(b'A', b'Z'))
        .or(ByteSet::range(DIGITS.0, DIGITS.1))
        .or(ByteSet::of(b"_"))
}

impl PatternReader<'_> {
    fn take(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn skip(&mut self, text: &[u8]) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Alternatives: `a|b|c`, up to the end or a `)`, which is not taken.
    fn branches(&mut self) -> Option<ValueReach> {
        let mut all = self.sequence()?;
        while self.skip(b"|") {
            all = all.either(self.sequence()?);
        }
        Some(all)
    }

    /// Items that follow each other.
    fn sequence(&mut self) -> Option<ValueReach> {
        let mut all = ValueReach::NOTHING;
        while let Some(byte) = self.rest.first() {
            if matches!(byte, b'|' | b')') {
                break;
            }
            let item = self.atom()?;
            all = all.then(self.repeated(item)?);
        }
        Some(all)
    }

    /// An item with its quantifier. Repeating changes neither the bytes nor the first one: only
    /// whether it can be empty.
    fn repeated(&mut self, mut item: ValueReach) -> Option<ValueReach> {
        match self.rest.first() {
            Some(b'*' | b'?') => {
                item.empty = true;
                self.take();
            }
            Some(b'+') => {
                self.take();
            }
            Some(b'{') => {
                let end = self.rest.iter().position(|byte| *byte == b'}')?;
                item.empty |= matches!(&self.rest[1..end], [b'0', ..] | [b',', ..]);
                self.rest = &self.rest[end + 1..];
            }
            Some(_) | None => return Some(item),
        }
        // Lazy and possessive quantifiers match no other bytes.
        let _ = self.skip(b"?") || self.skip(b"+");
        Some(item)
    }

    /// One item without its quantifier.
    fn atom(&mut self) -> Option<ValueReach> {
        match self.take()? {
            b'.' if self.dot_all => Some(ValueReach::one(ByteSet::ALL)),
            b'.' => Some(ValueReach::one(ByteSet::of(b"\n").not())),
            b'^' | b'$' => Some(ValueReach::NOTHING),
            b'[' => self.class().map(ValueReach::one),
            b'\\' => self.escape(),
            b'(' => self.parentheses(),
            // A quantifier without an item: an expression that was misunderstood.
            b'*' | b'+' | b'?' => None,
            byte => Some(ValueReach::one(ByteSet::of(&[byte]))),
        }
    }

    /// An escape outside a class. Assertions of a position match nothing.
    fn escape(&mut self) -> Option<ValueReach> {
        if matches!(self.rest.first(), Some(b'b' | b'B' | b'A' | b'z' | b'Z')) {
            self.take();
            return Some(ValueReach::NOTHING);
        }
        self.escaped().map(ValueReach::one)
    }

    /// What follows a backslash, in a class, too.
    fn escaped(&mut self) -> Option<ByteSet> {
        let digits = ByteSet::range(DIGITS.0, DIGITS.1);
        let spaces = ByteSet::of(b" \t\n\r\x0b\x0c");
        Some(match self.take()? {
            b'd' => digits,
            b'D' => digits.not(),
            b'w' => word(),
            b'W' => word().not(),
            b's' => spaces,
            b'S' => spaces.not(),
            b'h' => ByteSet::of(b" \t"),
            b'N' => ByteSet::of(b"\n").not(),
            b'n' | b'R' | b'v' => ByteSet::of(b"\n\r"),
            b'r' => ByteSet::of(b"\r"),
            b't' => ByteSet::of(b"\t"),
            // References to groups, bytes by number, properties, and all other letters with a
            // meaning.
            byte if byte.is_ascii_alphanumeric() => return None,
            byte => ByteSet::of(&[byte]),
        })
    }

    /// A class, `[…]`, after its bracket.
    fn class(&mut self) -> Option<ByteSet> {
        let negated = self.skip(b"^");
        let mut set = ByteSet::NONE;
        let mut last = None;
        let mut is_first = true;
        loop {
            let byte = self.take()?;
            match byte {
                b']' if !is_first => break,
                // A POSIX class, such as `[:alpha:]`.
                b'[' if self.rest.first() == Some(&b':') => return None,
                b'\\' => {
                    last = self
                        .rest
                        .first()
                        .copied()
                        .filter(|byte| !byte.is_ascii_alphanumeric());
                    set = set.or(self.escaped()?);
                }
                b'-' if last.is_some() && self.rest.first() != Some(&b']') => {
                    let mut end = self.take()?;
                    if end == b'\\' {
                        end = self.take().filter(|byte| !byte.is_ascii_alphanumeric())?;
                    }
                    set = set.or(ByteSet::range(last.take()?, end));
                }
                byte => {
                    last = Some(byte);
                    set = set.or(ByteSet::of(&[byte]));
                }
            }
            is_first = false;
        }
        Some(if negated { set.not() } else { set })
    }

    /// A group, a lookaround or options, after the parenthesis.
    fn parentheses(&mut self) -> Option<ValueReach> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut looks = false;
        let mut number = None;
        let mut name = None;
        if self.skip(b"?:") || self.skip(b"?>") || self.skip(b"?i:") {
            // A group without a number.
        } else if self.skip(b"?=") || self.skip(b"?!") || self.skip(b"?<=") || self.skip(b"?<!") {
            looks = true;
        } else if self.skip(b"?<") || self.skip(b"?P<") || self.skip(b"?'") {
            let length = self
                .rest
                .iter()
                .position(|byte| matches!(byte, b'>' | b'\''))?;
            name = Some(&self.rest[..length]);
            self.rest = &self.rest[length + 1..];
            self.groups += 1;
            number = Some(self.groups);
        } else if self.skip(b"?i)") || self.skip(b"?s)") {
            // Options for the rest of the pattern. Case is of no matter here, and `s` was looked
            // for at the beginning.
            self.depth -= 1;
            return Some(ValueReach::NOTHING);
        } else if self.rest.first() == Some(&b'?') {
            return None;
        } else {
            self.groups += 1;
            number = Some(self.groups);
        }
        let inside = self.branches()?;
        if !self.skip(b")") {
            return None;
        }
        self.depth -= 1;
        let is_wanted = match self.wanted {
            CaptureGroup::Number(wanted) => number == Some(wanted),
            CaptureGroup::Name(wanted) => name == Some(wanted),
        };
        if is_wanted {
            self.found = Some(inside);
        }
        Some(if looks { ValueReach::NOTHING } else { inside })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_group(pattern: &str) -> ValueReach {
        group(pattern.as_bytes(), CaptureGroup::Number(1)).expect(pattern)
    }

    #[test]
    fn a_group_has_what_its_expression_allows() {
        for (pattern, line_end, slash, empty) in [
            ("^/a/(.*)$", false, true, true),
            ("^/a/([^/]+)$", true, false, false),
            (r"^/a/([^/\s]+)/", false, false, false),
            (r"(?<x>\w+)\.php", false, false, false),
            (r"^(/old|/new)(.*)", false, true, false),
            ("(?s)^(.*)$", true, true, true),
            (r"(?:a|b)([a-z0-9\-_]{2,5}?)", false, false, false),
            (r"(?=x)(a|b|)", false, false, true),
        ] {
            let reach = first_group(pattern);
            let found = (reach.bytes.has(b'\n'), reach.bytes.has(b'/'), reach.empty);
            assert_eq!(found, (line_end, slash, empty), "{pattern}");
        }
    }

    #[test]
    fn what_a_group_begins_with() {
        assert!(first_group("^/old(/.*)$").first.is_within(b"/"));
        assert!(first_group("^/old(.*)$").first.has(b'.'));
        assert!(first_group("^/old(/?x.*)$").first.is_within(b"/x"));
        let named = group(b"^/(?<a>x)(?<b>[0-9]+)", CaptureGroup::Name(b"b")).expect("known");
        assert!(named.bytes.is_within(b"0123456789"));
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        for pattern in [
            "([[:alpha:]]+)",
            r"(\x0a)",
            "(?#c)(a)",
            "(a",
            "a)",
            "(*)",
            r"(\",
        ] {
            assert_eq!(
                group(pattern.as_bytes(), CaptureGroup::Number(1)),
                None,
                "{pattern}"
            );
        }
        let deep = [vec![b'('; 99], vec![b')'; 99]].concat();
        assert_eq!(group(&deep, CaptureGroup::Number(1)), None);
    }
}
