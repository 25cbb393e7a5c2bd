//! Which bytes a value can have: of a variable by its nature, of a group by its regular expression.
//!
//! The reader of expressions knows as much of PCRE as configurations use. Of what it does not know it says nothing,
//! because a checker that cries for nothing is switched off.

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes([u128; 2]);

impl Bytes {
    pub(super) const NONE: Bytes = Bytes([0; 2]);
    pub(super) const ALL: Bytes = Bytes([u128::MAX; 2]);

    /// The bytes of a text.
    pub(super) fn of(text: &[u8]) -> Bytes {
        let mut set = Bytes::NONE;
        text.iter().for_each(|byte| set.add(*byte));
        set
    }

    /// All from `first` to `last`.
    pub(super) fn range(first: u8, last: u8) -> Bytes {
        let mut set = Bytes::NONE;
        (first..=last).for_each(|byte| set.add(byte));
        set
    }

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte >> 7)] |= 1 << (byte & 127);
    }

    pub(super) fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 7)] & (1 << (byte & 127)) != 0
    }

    pub(super) fn or(self, other: Bytes) -> Bytes {
        Bytes([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    pub(super) fn and(self, other: Bytes) -> Bytes {
        Bytes([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    pub(super) fn not(self) -> Bytes {
        Bytes([!self.0[0], !self.0[1]])
    }

    pub(super) fn is_empty(self) -> bool {
        self == Bytes::NONE
    }

    /// Whether every byte of this set is in the text.
    pub(super) fn only(self, text: &[u8]) -> bool {
        self.and(Bytes::of(text).not()).is_empty()
    }

    /// Whether a byte of the text is in this set.
    pub(super) fn any(self, text: &[u8]) -> bool {
        text.iter().any(|byte| self.has(*byte))
    }
}

/// What clients can make of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// What can be in it.
    pub(super) bytes: Bytes,
    /// What it can begin with.
    pub(super) first: Bytes,
    /// Whether it can be empty.
    pub(super) empty: bool,
    /// Whether it is the name that the client has come to, or a part of it.
    pub(super) is_host: bool,
}

impl Reach {
    /// The empty text.
    const NOTHING: Reach = Reach {
        bytes: Bytes::NONE,
        first: Bytes::NONE,
        empty: true,
        is_host: false,
    };

    fn one(set: Bytes) -> Reach {
        Reach {
            bytes: set,
            first: set,
            empty: false,
            is_host: false,
        }
    }

    /// This, then that.
    fn then(self, next: Reach) -> Reach {
        Reach {
            bytes: self.bytes.or(next.bytes),
            first: match self.empty {
                true => self.first.or(next.first),
                false => self.first,
            },
            empty: self.empty && next.empty,
            is_host: self.is_host && next.is_host,
        }
    }

    /// This or that.
    pub(super) fn either(self, other: Reach) -> Reach {
        Reach {
            bytes: self.bytes.or(other.bytes),
            first: self.first.or(other.first),
            empty: self.empty || other.empty,
            is_host: self.is_host && other.is_host,
        }
    }

    /// With what the subject cannot have taken away.
    pub(super) fn within(self, subject: Bytes) -> Reach {
        Reach {
            bytes: self.bytes.and(subject),
            first: self.first.and(subject),
            ..self
        }
    }
}

/// A group, by its number or its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group<'a> {
    Number(usize),
    Name(&'a [u8]),
}

/// What a group of an expression can match; `None` where that is not known.
pub(super) fn group(pattern: &[u8], wanted: Group) -> Option<Reach> {
    let mut reader = Reader {
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

/// Groups within groups; a pattern with more is not read.
const MAX_DEPTH: usize = 32;

struct Reader<'p> {
    rest: &'p [u8],
    groups: usize,
    wanted: Group<'p>,
    found: Option<Reach>,
    dot_all: bool,
    depth: usize,
}

const DIGITS: (u8, u8) = (b'0', b'9');

fn word() -> Bytes {
    Bytes::range(b'a', b'z')
        .or(Bytes::range(b'A', b'Z'))
        .or(Bytes::range(DIGITS.0, DIGITS.1))
        .or(Bytes::of(b"_"))
}

impl Reader<'_> {
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

    /// `a|b|c`, up to the end or a `)`, which stays.
    fn branches(&mut self) -> Option<Reach> {
        let mut all = self.sequence()?;
        while self.skip(b"|") {
            all = all.either(self.sequence()?);
        }
        Some(all)
    }

    fn sequence(&mut self) -> Option<Reach> {
        let mut all = Reach::NOTHING;
        while let Some(byte) = self.rest.first() {
            if matches!(byte, b'|' | b')') {
                break;
            }
            let item = self.atom()?;
            all = all.then(self.repeated(item)?);
        }
        Some(all)
    }

    fn repeated(&mut self, mut item: Reach) -> Option<Reach> {
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
        let _ = self.skip(b"?") || self.skip(b"+");
        Some(item)
    }

    fn atom(&mut self) -> Option<Reach> {
        match self.take()? {
            b'.' if self.dot_all => Some(Reach::one(Bytes::ALL)),
            b'.' => Some(Reach::one(Bytes::of(b"\n").not())),
            b'^' | b'$' => Some(Reach::NOTHING),
            b'[' => self.class().map(Reach::one),
            b'\\' => self.escape(),
            b'(' => self.parentheses(),
            // A quantifier of nothing: not an expression that was understood.
            b'*' | b'+' | b'?' => None,
            byte => Some(Reach::one(Bytes::of(&[byte]))),
        }
    }

    fn escape(&mut self) -> Option<Reach> {
        if matches!(self.rest.first(), Some(b'b' | b'B' | b'A' | b'z' | b'Z')) {
            self.take();
            return Some(Reach::NOTHING);
        }
        self.escaped().map(Reach::one)
    }

    /// What stands after a backslash, in a class too.
    fn escaped(&mut self) -> Option<Bytes> {
        let digits = Bytes::range(DIGITS.0, DIGITS.1);
        let spaces = Bytes::of(b" \t\n\r\x0b\x0c");
        Some(match self.take()? {
            b'd' => digits,
            b'D' => digits.not(),
            b'w' => word(),
            b'W' => word().not(),
            b's' => spaces,
            b'S' => spaces.not(),
            b'h' => Bytes::of(b" \t"),
            b'N' => Bytes::of(b"\n").not(),
            b'n' | b'R' | b'v' => Bytes::of(b"\n\r"),
            b'r' => Bytes::of(b"\r"),
            b't' => Bytes::of(b"\t"),
            // Numbers of groups and of bytes, properties, and whatever else has a meaning.
            byte if byte.is_ascii_alphanumeric() => return None,
            byte => Bytes::of(&[byte]),
        })
    }

    /// `[…]`, after the bracket.
    fn class(&mut self) -> Option<Bytes> {
        let negated = self.skip(b"^");
        let mut set = Bytes::NONE;
        let mut last = None;
        let mut is_first = true;
        loop {
            let byte = self.take()?;
            match byte {
                b']' if !is_first => break,
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
                    set = set.or(Bytes::range(last.take()?, end));
                }
                byte => {
                    last = Some(byte);
                    set = set.or(Bytes::of(&[byte]));
                }
            }
            is_first = false;
        }
        Some(if negated { set.not() } else { set })
    }

    fn parentheses(&mut self) -> Option<Reach> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut looks = false;
        let mut number = None;
        let mut name = None;
        if self.skip(b"?:") || self.skip(b"?>") || self.skip(b"?i:") {
            // Only groups things.
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
            // Options for what follows change nothing that counts here, but for "s", which was seen.
            self.depth -= 1;
            return Some(Reach::NOTHING);
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
            Group::Number(wanted) => number == Some(wanted),
            Group::Name(wanted) => name == Some(wanted),
        };
        if is_wanted {
            self.found = Some(inside);
        }
        Some(if looks { Reach::NOTHING } else { inside })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_group(pattern: &str) -> Reach {
        group(pattern.as_bytes(), Group::Number(1)).expect(pattern)
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
        assert!(first_group("^/old(/.*)$").first.only(b"/"));
        assert!(first_group("^/old(.*)$").first.has(b'.'));
        assert!(first_group("^/old(/?x.*)$").first.only(b"/x"));
        let named = group(b"^/(?<a>x)(?<b>[0-9]+)", Group::Name(b"b")).expect("known");
        assert!(named.bytes.only(b"0123456789"));
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
                group(pattern.as_bytes(), Group::Number(1)),
                None,
                "{pattern}"
            );
        }
        let deep = [vec![b'('; 99], vec![b')'; 99]].concat();
        assert_eq!(group(&deep, Group::Number(1)), None);
    }
}
