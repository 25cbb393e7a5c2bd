//! Texts that a pattern cannot match without, read from its syntax.
//!
//! `\.(?:php|asp)$` needs `.php` or `.asp`. A subject that has neither need not be shown to PCRE2. The parser knows the part of
//! PCRE2's syntax that configurations use (<https://www.pcre.org/current/doc/html/pcre2pattern.html>) and gives up on
//! everything else: a pattern of which nothing is known is simply tried. It never says what a pattern does match.
//!
//! Letter case is ignored, with or without `~*`: it costs little precision, and options inside the pattern need no
//! attention. PCRE2 does not fold anything beyond ASCII here, since neither UTF mode nor another locale is used.

/// How many texts stand for one pattern. A longer list of words is not looked for.
const MAX_TEXTS: usize = 1024;

/// How many combinations a sequence of alternatives is expanded to.
const MAX_COMBINATIONS: usize = 64;

/// How long a text becomes, in bytes. More would add memory and hardly any precision.
const MAX_LENGTH: usize = 24;

/// Shorter texts are in nearly every subject.
const MIN_LENGTH: usize = 2;

/// How many members of a bracket expression are told apart.
const MAX_MEMBERS: usize = 4;

/// How deep groups are followed, since the parser recurses.
const MAX_DEPTH: usize = 40;

/// In lower case.
type Texts = Vec<Vec<u8>>;

/// Texts in lower case of which every subject that matches contains at least one, in any letter case. `None` if nothing of
/// use is known.
pub(crate) fn necessary_literals(pattern: &[u8]) -> Option<Texts> {
    let mut parser = PatternParser {
        rest: pattern,
        depth: 0,
    };
    let part = parser.alternatives()?;
    // Only an unbalanced parenthesis is left, which PCRE2 has refused.
    if !parser.rest.is_empty() {
        return None;
    }
    let mut texts = part.into_necessary()?;
    for text in &mut texts {
        text.truncate(MAX_LENGTH);
    }
    texts.sort_unstable();
    texts.dedup();
    let shortest = texts.iter().map(Vec::len).min()?;
    (shortest >= MIN_LENGTH && texts.len() <= MAX_TEXTS).then_some(texts)
}

/// What is known of the text that a part of a pattern matches.
struct Part {
    /// All texts that it can match, if these are few.
    exact: Option<Texts>,
    /// Texts one of which is in the subject, though not necessarily in what this part matches.
    necessary: Option<Texts>,
}

impl Part {
    /// It matches at a place, not a text.
    fn zero_width() -> Part {
        Part::exactly(vec![Vec::new()])
    }

    /// Nothing is known.
    fn anything() -> Part {
        Part {
            exact: None,
            necessary: None,
        }
    }

    fn exactly(texts: Texts) -> Part {
        Part {
            exact: Some(texts),
            necessary: None,
        }
    }

    fn byte(byte: u8) -> Part {
        Part::exactly(vec![vec![byte.to_ascii_lowercase()]])
    }

    /// The better one of both kinds of knowledge.
    fn into_necessary(self) -> Option<Texts> {
        let exact = self.exact.filter(is_telling);
        better(exact, self.necessary)
    }

    fn repeated(self, min: usize, max: Option<usize>) -> Part {
        match (min, max, self.exact) {
            (1, Some(1), exact) => Part {
                exact,
                necessary: self.necessary,
            },
            (0, Some(1), Some(mut texts)) => {
                texts.push(Vec::new());
                Part::exactly(texts)
            }
            (0, ..) => Part::anything(),
            (_, Some(max), Some(texts))
                if min == max && texts.len() == 1 && texts[0].len() * min <= MAX_LENGTH =>
            {
                Part {
                    exact: Some(vec![texts[0].repeat(min)]),
                    necessary: self.necessary,
                }
            }
            (.., exact) => Part {
                necessary: Part {
                    exact,
                    necessary: self.necessary,
                }
                .into_necessary(),
                exact: None,
            },
        }
    }
}

/// Whether knowing that one of these texts is there says anything.
fn is_telling(texts: &Texts) -> bool {
    texts.iter().all(|text| !text.is_empty())
}

/// The set whose texts are rarer: longer first, then fewer.
fn better(one: Option<Texts>, other: Option<Texts>) -> Option<Texts> {
    let rank = |texts: &Texts| {
        let shortest = texts.iter().map(Vec::len).min().unwrap_or(0);
        (shortest.min(MAX_LENGTH), std::cmp::Reverse(texts.len()))
    };
    match (one, other) {
        (Some(one), Some(other)) if rank(&other) > rank(&one) => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

/// Parts that follow each other.
struct PartSequence {
    /// All texts that the parts since the last unknown one can match: they are adjacent in the subject.
    run: Texts,
    /// There was no unknown part so far.
    is_exact: bool,
    necessary: Option<Texts>,
}

impl PartSequence {
    fn new() -> PartSequence {
        PartSequence {
            run: vec![Vec::new()],
            is_exact: true,
            necessary: None,
        }
    }

    fn push(&mut self, part: Part) {
        self.necessary = better(self.necessary.take(), part.necessary);
        let Some(texts) = part.exact else {
            return self.interrupt(vec![Vec::new()]);
        };
        if self.run.len() * texts.len() > MAX_COMBINATIONS.max(self.run.len()).max(texts.len()) {
            return self.interrupt(texts);
        }
        let longest = |texts: &Texts| texts.iter().map(Vec::len).max().unwrap_or(0);
        // A text that is long enough need not grow; a fresh one begins behind it.
        if longest(&self.run) + longest(&texts) > 4 * MAX_LENGTH {
            return self.interrupt(texts);
        }
        let combine = |head: &Vec<u8>| {
            texts
                .iter()
                .map(|tail| [&head[..], tail].concat())
                .collect()
        };
        self.run = self
            .run
            .iter()
            .flat_map(|head| -> Texts { combine(head) })
            .collect();
    }

    /// What follows is not adjacent to what came, as far as is known.
    fn interrupt(&mut self, next: Texts) {
        let run = std::mem::replace(&mut self.run, next);
        self.is_exact = false;
        if is_telling(&run) {
            self.necessary = better(self.necessary.take(), Some(run));
        }
    }

    fn finish(mut self) -> Part {
        if !self.is_exact {
            self.interrupt(Vec::new());
            return Part {
                exact: None,
                necessary: self.necessary,
            };
        }
        Part {
            exact: Some(self.run),
            necessary: self.necessary,
        }
    }
}

/// Reads a pattern that PCRE2 has accepted. `None` means that it gives up.
struct PatternParser<'p> {
    rest: &'p [u8],
    depth: usize,
}

impl PatternParser<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        if is_there {
            self.rest = &self.rest[1..];
        }
        is_there
    }

    /// Up to the end of the pattern, or of the group.
    fn alternatives(&mut self) -> Option<Part> {
        let first = self.sequence()?;
        if self.peek() != Some(b'|') {
            return Some(first);
        }
        let mut exact = first.exact.clone();
        let mut necessary = first.into_necessary();
        while self.skip(b'|') {
            let next = self.sequence()?;
            exact = join(exact, next.exact.clone());
            necessary = join(necessary, next.into_necessary());
        }
        Some(Part { exact, necessary })
    }

    fn sequence(&mut self) -> Option<Part> {
        let mut sequence = PartSequence::new();
        while let Some(byte) = self.peek()
            && byte != b'|'
            && byte != b')'
        {
            let mut part = self.atom()?;
            while let Some((min, max)) = self.quantifier()? {
                part = part.repeated(min, max);
            }
            sequence.push(part);
        }
        Some(sequence.finish())
    }

    /// `Some(None)` if there is none.
    fn quantifier(&mut self) -> Option<Option<(usize, Option<usize>)>> {
        let bounds = match self.peek() {
            Some(b'?') => (0, Some(1)),
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'{') => return self.braces().map(Some),
            _ => return Some(None),
        };
        self.rest = &self.rest[1..];
        self.skip_eagerness();
        Some(Some(bounds))
    }

    /// `{2}`, `{2,}` and `{2,5}`. Versions of PCRE2 differ in what else is a quantifier and what is text.
    fn braces(&mut self) -> Option<(usize, Option<usize>)> {
        let end = self.rest.iter().position(|byte| *byte == b'}')?;
        let inside = std::str::from_utf8(&self.rest[1..end]).ok()?;
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().ok(),
            false => None,
        };
        let bounds = match inside.split_once(',') {
            None => (number(inside)?, Some(number(inside)?)),
            Some((min, "")) => (number(min)?, None),
            Some((min, max)) => (number(min)?, Some(number(max)?)),
        };
        self.rest = &self.rest[end + 1..];
        self.skip_eagerness();
        Some(bounds)
    }

    /// `?` and `+` behind a quantifier change the order in which matches are tried, not what matches.
    fn skip_eagerness(&mut self) {
        let _ = self.skip(b'?') || self.skip(b'+');
    }

    fn atom(&mut self) -> Option<Part> {
        match self.next()? {
            b'(' => self.group(),
            b'[' => self.bracket(),
            b'\\' => self.escape(),
            b'.' => Some(Part::anything()),
            b'^' | b'$' => Some(Part::zero_width()),
            b'*' | b'+' | b'?' | b'{' => None,
            byte => Some(Part::byte(byte)),
        }
    }

    fn escape(&mut self) -> Option<Part> {
        match self.next()? {
            b'b' | b'B' | b'A' | b'z' | b'Z' | b'G' => Some(Part::zero_width()),
            b'd' | b'D' | b'w' | b'W' | b's' | b'S' | b'h' | b'H' | b'v' | b'V' | b'R' | b'X' => {
                Some(Part::anything())
            }
            // A reference to a group, or an octal number: either way the digits belong to it, or are missed.
            b'0'..=b'9' => {
                while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                    self.rest = &self.rest[1..];
                }
                Some(Part::anything())
            }
            byte => self.escaped_byte(byte).map(Part::byte),
        }
    }

    /// What stands for one byte behind a backslash, in a bracket expression or outside.
    fn escaped_byte(&mut self, byte: u8) -> Option<u8> {
        Some(match byte {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'f' => 0x0c,
            b'e' => 0x1b,
            b'a' => 0x07,
            b'x' => {
                let digits = self.rest.get(..2)?;
                let digits = std::str::from_utf8(digits).ok()?;
                // `+1` would be a number, too.
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                self.rest = &self.rest[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            // Bytes that are no ASCII are spelled in another way for PCRE2 (`regex::as_utf8`), and the backslash is then
            // one of the text.
            byte if byte.is_ascii_alphanumeric() || !byte.is_ascii() => return None,
            byte => byte,
        })
    }

    /// Behind the parenthesis.
    fn group(&mut self) -> Option<Part> {
        match self.peek()? {
            // Verbs, and assertions that are spelled out. `(*UTF)` would change what letter case means.
            b'*' => return None,
            b'?' => self.rest = &self.rest[1..],
            _ => return self.inside_group(),
        }
        match self.next()? {
            b':' | b'|' | b'>' => self.inside_group(),
            b'=' => {
                let part = self.inside_group()?;
                Some(Part {
                    necessary: part.into_necessary(),
                    ..Part::zero_width()
                })
            }
            b'!' => self.inside_group().map(|_| Part::zero_width()),
            b'<' if self.skip(b'=') || self.skip(b'!') => {
                self.inside_group().map(|_| Part::zero_width())
            }
            b'<' => self.named_group(b'>'),
            b'P' if self.skip(b'<') => self.named_group(b'>'),
            b'\'' => self.named_group(b'\''),
            option => self.options(option),
        }
    }

    fn named_group(&mut self, end: u8) -> Option<Part> {
        while self.next()? != end {}
        self.inside_group()
    }

    /// `(?i)` and `(?i:…)`. Of all options only `x` changes which bytes are text.
    fn options(&mut self, mut option: u8) -> Option<Part> {
        loop {
            match option {
                b'i' | b'm' | b's' | b'U' | b'J' | b'-' => option = self.next()?,
                b':' => return self.inside_group(),
                b')' => return Some(Part::zero_width()),
                _ => return None,
            }
        }
    }

    fn inside_group(&mut self) -> Option<Part> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let part = self.alternatives()?;
        self.depth -= 1;
        self.skip(b')').then_some(part)
    }

    /// A bracket expression, behind its `[`.
    fn bracket(&mut self) -> Option<Part> {
        // Members are of use as long as they are few and written one by one.
        let mut is_list = !self.skip(b'^');
        let mut members: Texts = Vec::new();
        let mut is_first = true;
        loop {
            let byte = match self.next()? {
                b']' if !is_first => break,
                b'-' => {
                    is_list = false;
                    b'-'
                }
                b'[' if matches!(self.peek(), Some(b':' | b'.' | b'=')) => {
                    self.posix_class()?;
                    is_list = false;
                    b'['
                }
                b'\\' => match self.next()? {
                    b'd' | b'D' | b'w' | b'W' | b's' | b'S' | b'h' | b'H' | b'v' | b'V' => {
                        is_list = false;
                        b'\\'
                    }
                    b'b' => 0x08,
                    byte => self.escaped_byte(byte)?,
                },
                byte => byte,
            };
            is_first = false;
            let text = vec![byte.to_ascii_lowercase()];
            if is_list && !members.contains(&text) {
                members.push(text);
                is_list = members.len() <= MAX_MEMBERS;
            }
        }
        Some(match is_list {
            true => Part::exactly(members),
            false => Part::anything(),
        })
    }

    /// `:alpha:]`, behind the inner `[`.
    fn posix_class(&mut self) -> Option<()> {
        let end = self.rest.iter().position(|byte| *byte == b']')?;
        let name = self.rest[..end].strip_prefix(b":")?.strip_suffix(b":")?;
        let name = name.strip_prefix(b"^").unwrap_or(name);
        let is_word = !name.is_empty() && name.iter().all(u8::is_ascii_lowercase);
        self.rest = &self.rest[end + 1..];
        is_word.then_some(())
    }
}

/// One of these or one of those.
fn join(one: Option<Texts>, other: Option<Texts>) -> Option<Texts> {
    let (mut one, other) = (one?, other?);
    one.extend(other);
    (one.len() <= MAX_TEXTS).then_some(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literals(pattern: &str) -> Option<Vec<String>> {
        let texts = necessary_literals(pattern.as_bytes())?;
        Some(
            texts
                .into_iter()
                .map(|text| String::from_utf8(text).unwrap())
                .collect(),
        )
    }

    fn check(pattern: &str, expected: &[&str]) {
        let found = literals(pattern).unwrap_or_default();
        assert_eq!(found, expected, "{pattern}");
    }

    #[test]
    fn what_configurations_ask_for() {
        check(r"\.php$", &[".php"]);
        check(r"\.(?:jpe?g|gif|PNG)$", &[".gif", ".jpeg", ".jpg", ".png"]);
        check(r"^/name7/(.*)\.(php|asp)$", &["/name7/"]);
        check(r"(?:\b)360Spider(?:\b|)", &["360spider"]);
        check(r"\b(?:ahrefs|semrush)bot\b", &["ahrefsbot", "semrushbot"]);
        check(r"^(?<user>[^/]+)/profile", &["/profile"]);
        check(r"[Bb]ad[-_]bot", &["bad"]);
        check(r"^/(?=.*secret)", &["secret"]);
        check(r"a{3}b", &["aaab"]);
        check(r"(foo)+\d+bar1", &["bar1"]);
        check(r"(?i)Foo(?-i:Bar)", &["foobar"]);
        check(r"x[]y]z1", &["x]z1", "xyz1"]);
        check(r"curl\x2f7|wget/", &["curl/7", "wget/"]);
    }

    #[test]
    fn what_says_nothing() {
        for pattern in [
            "",
            ".*",
            "^/",
            "a*b?",
            "a|",
            r"\d+",
            "foo|.*",
            "(?:foo)?",
            "f{0,2}",
            "(?!foo)",
            "[^a]",
            // Syntax that is left alone.
            "(*UTF)foo",
            "(?x)f o o",
            r"\Qfoo\E",
            r"foo(?1)",
            r"(?#foo)bar",
            "foo{,3}",
            r"\x{66}oo",
            "foo(?(1)a|b)",
            r"\kfoo",
            r"[[.foo.]]bar",
            r"\N{U+66}oo",
        ] {
            check(pattern, &[]);
        }
    }

    #[test]
    fn patterns_that_would_explode_stay_small() {
        assert!(necessary_literals(b"(a|b)*a(a|b){20}").is_none());
        let words: Vec<String> = (0..5000).map(|n| format!("word{n}")).collect();
        assert!(necessary_literals(words.join("|").as_bytes()).is_none());
        let deep = format!("{}x1{}", "(".repeat(200), ")".repeat(200));
        assert!(necessary_literals(deep.as_bytes()).is_none());
        let product = "(?:aa|bb|cc|dd)".repeat(12);
        assert!(necessary_literals(product.as_bytes()).is_some_and(|texts| texts.len() <= 64));
    }
}
