//! `map`: a value that depends on another one.
//!
//! A text is looked up among exact texts, with `hostnames` then among names with a star in front and at the end (the
//! longest wins), then among regular expressions in their order. Letter case counts for regular expressions only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bstr::{BStr, BString, ByteSlice};
use conf::{Definition, Diagnostic, Expression, Line, Node, Pattern, Place, Regex, Word};

use super::session::{Session, define, of_several_lines};

struct Map {
    subject: Expression,
    hostnames: bool,
    volatile: bool,
    default: Option<Expression>,
    exact: Table,
    /// Names that began with `*.` or `.`, by what follows the star, with its dot.
    front: Table,
    /// Names that ended in `.*`, by what stands before the star, with its dot.
    end: Table,
    patterns: Vec<(Pattern, Expression)>,
}

/// Values by texts in lower case.
type Table = HashMap<BString, Expression>;

/// Reads `map TEXT $variable { … }`.
pub(crate) fn read<S: Session>(line: &mut Line) -> Result<(), Diagnostic> {
    let mut map: Map = Map::new(line.expression(0)?);
    let entries = line.entries();
    // It says how the other lines are read, wherever it stands.
    map.hostnames = entries
        .iter()
        .any(|entry| parameter(entry) == Some(b"hostnames"));
    for entry in entries {
        match parameter(entry) {
            Some(b"hostnames") => {}
            Some(b"volatile") => map.volatile = true,
            _ => map.add::<S>(entry, line)?,
        }
    }
    let volatile = map.volatile;
    let texts = of_several_lines(map.texts());
    let definition = Definition::<S>::dynamic(move |session, out| map.value(session, out));
    define(
        line,
        1,
        if volatile {
            definition.volatile()
        } else {
            definition
        },
        &texts,
    )
}

/// A line of one word.
fn parameter(entry: &Node) -> Option<&[u8]> {
    entry.args.is_empty().then_some(entry.name.text.as_slice())
}

impl Map {
    fn new(subject: Expression) -> Self {
        Map {
            subject,
            hostnames: false,
            volatile: false,
            default: None,
            exact: HashMap::new(),
            front: HashMap::new(),
            end: HashMap::new(),
            patterns: Vec::new(),
        }
    }

    fn add<S: Session>(&mut self, entry: &Node, line: &mut Line) -> Result<(), Diagnostic> {
        let [word] = &entry.args[..] else {
            return Err(entry.error("invalid number of the map parameters"));
        };
        let value = expression(entry, word, line)?;
        let key = entry.name.text.as_bstr();
        let failed = |message: String| entry.error_at(&entry.name, message);
        if key == "default" {
            return match self.default.replace(value) {
                None => Ok(()),
                Some(_) => Err(failed("duplicate default map parameter".to_owned())),
            };
        }
        if let Some(pattern) = key.strip_prefix(b"~") {
            let (pattern, caseless) = match pattern.strip_prefix(b"*") {
                Some(pattern) => (pattern, true),
                None => (pattern, false),
            };
            let regex = Regex::new(pattern, caseless).map_err(failed)?;
            self.patterns
                .push((Pattern::of::<S>(line.level, regex).map_err(failed)?, value));
            return Ok(());
        }
        // A backslash in front gives the words above, and a tilde, their own meaning.
        self.add_text(key.strip_prefix(b"\\").unwrap_or(key), value)
            .map_err(failed)
    }

    fn add_text(&mut self, key: &[u8], value: Expression) -> Result<(), String> {
        let shown = key.as_bstr();
        let lower = key.to_ascii_lowercase();
        let stars = lower.iter().filter(|byte| **byte == b'*').count();
        let mut places: Vec<(&mut Table, &[u8])> = Vec::with_capacity(2);
        if !self.hostnames {
            places.push((&mut self.exact, &lower));
        } else if lower.contains_str("..") || lower.contains(&0) || stars > 1 {
            return Err(format!("invalid hostname or wildcard \"{shown}\""));
        } else if lower.starts_with(b"*.") && lower.len() > 2 {
            places.push((&mut self.front, &lower[1..]));
        } else if lower.starts_with(b".") && lower.len() > 1 && stars == 0 {
            places.push((&mut self.exact, &lower[1..]));
            places.push((&mut self.front, &lower));
        } else if lower.ends_with(b".*") && lower.len() > 2 {
            places.push((&mut self.end, &lower[..lower.len() - 1]));
        } else if stars > 0 {
            return Err(format!("invalid hostname or wildcard \"{shown}\""));
        } else {
            places.push((&mut self.exact, &lower));
        }
        for (table, text) in places {
            match table.entry(text.into()) {
                Entry::Vacant(slot) => slot.insert(value.clone()),
                Entry::Occupied(_) => return Err(format!("conflicting parameter \"{shown}\"")),
            };
        }
        Ok(())
    }

    fn value<S: Session>(&self, session: &mut S, out: &mut Vec<u8>) -> bool {
        let mut subject = self.subject.to_bytes(session);
        if self.hostnames && subject.last() == Some(&b'.') {
            subject.pop();
        }
        if let Some(value) = self.find(session, &subject) {
            value.eval(session, out);
        }
        // Without a default the value is empty, but it is one.
        true
    }

    fn find<S: Session>(&self, session: &mut S, subject: &[u8]) -> Option<&Expression> {
        if let Some(value) = self.find_text(subject) {
            return Some(value);
        }
        // An empty text is not matched, not even by a pattern that would: nginx's rule.
        let mut patterns = self.patterns.iter().filter(|_| !subject.is_empty());
        let found = patterns.find(|(pattern, _)| session.matches(pattern, subject));
        found.map(|(_, value)| value).or(self.default.as_ref())
    }

    /// The values without variables.
    fn texts(&self) -> impl Iterator<Item = &BStr> {
        let tables = [&self.exact, &self.front, &self.end];
        let listed = tables.into_iter().flat_map(Table::values);
        let matched = self.patterns.iter().map(|(_, value)| value);
        let all = listed.chain(matched).chain(&self.default);
        all.filter_map(Expression::constant)
    }

    fn find_text(&self, subject: &[u8]) -> Option<&Expression> {
        let lowered;
        let subject = if subject.iter().any(u8::is_ascii_uppercase) {
            lowered = subject.to_ascii_lowercase();
            &lowered[..]
        } else {
            subject
        };
        if let Some(value) = self.exact.get(subject.as_bstr()) {
            return Some(value);
        }
        if self.front.is_empty() && self.end.is_empty() {
            return None;
        }
        let dots: Vec<usize> = subject.find_iter(b".").collect();
        let front = dots
            .iter()
            .find_map(|&dot| self.front.get(subject[dot..].as_bstr()));
        front.or_else(|| {
            dots.iter()
                .rev()
                .find_map(|&dot| self.end.get(subject[..=dot].as_bstr()))
        })
    }
}

/// The value of a line, an expression.
fn expression(entry: &Node, word: &Word, line: &mut Line) -> Result<Expression, Diagnostic> {
    let value = Expression::parse(&word.text, word.span, &mut *line.level.names);
    value.map_err(|error| error.place(Place::At(entry.head.last_byte())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(hostnames: bool, keys: &[&str]) -> Result<Map, String> {
        let mut map = Map {
            hostnames,
            ..Map::new(Expression::literal(b""))
        };
        for key in keys {
            map.add_text(key.as_bytes(), Expression::literal(key.as_bytes()))?;
        }
        Ok(map)
    }

    fn found(map: &Map, subject: &str) -> Option<String> {
        map.find_text(subject.as_bytes())
            .and_then(Expression::constant)
            .map(ToString::to_string)
    }

    #[test]
    fn texts_without_hostnames() {
        let map = map(false, &["", "one", "Two", "*.x"]).unwrap();
        assert_eq!(found(&map, "").as_deref(), Some(""));
        assert_eq!(found(&map, "ONE").as_deref(), Some("one"));
        assert_eq!(found(&map, "two").as_deref(), Some("Two"));
        assert_eq!(found(&map, "a.x"), None);
        assert_eq!(found(&map, "*.x").as_deref(), Some("*.x"));
    }

    #[test]
    fn the_longest_name_wins_and_the_front_before_the_end() {
        let keys = [
            "example.com",
            "*.example.com",
            "*.a.example.com",
            "www.*",
            "www.example.*",
            ".both.net",
        ];
        let map = map(true, &keys).unwrap();
        for (subject, key) in [
            ("example.com", "example.com"),
            ("x.example.com", "*.example.com"),
            ("x.a.example.com", "*.a.example.com"),
            ("y.x.a.example.com", "*.a.example.com"),
            ("www.example.org", "www.example.*"),
            ("www.other.org", "www.*"),
            ("www.example.com", "*.example.com"),
            ("both.net", ".both.net"),
            ("x.both.net", ".both.net"),
        ] {
            assert_eq!(found(&map, subject).as_deref(), Some(key), "{subject}");
        }
        assert_eq!(found(&map, "com"), None);
        assert_eq!(found(&map, "example.net"), None);
    }

    #[test]
    fn what_can_not_be_a_name() {
        for key in ["a..b", "*.a.*", "a*b", "*", "a.*.b"] {
            assert!(
                map(true, &[key]).is_err_and(|message| message.starts_with("invalid hostname")),
                "{key}"
            );
        }
        assert!(
            map(true, &["a", ".a"]).is_err_and(|message| message == "conflicting parameter \".a\"")
        );
        assert!(map(false, &["A", "a"]).is_err());
    }
}
