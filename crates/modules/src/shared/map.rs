//! `map`: a value that depends on another value.
//!
//! A text is looked up among exact texts, then, with `hostnames`, among names with a leading or
//! trailing `*` (the longest match wins), then among regular expressions in order. Case matters for
//! regular expressions only.

use std::collections::HashMap;

use base::TextTable;
use bstr::{BStr, ByteSlice};
use conf::{
    Arity, CapturingPattern, Contexts, Diagnostic, DiagnosticPlace, Directive, DirectiveLine,
    DirectiveNode, DirectiveWord, Expression, PatternFilter, Regex, RepeatRule, Setter,
    VariableDefinition, VariableScope,
};

use super::client_scope::{ClientScope, VariableOnly, define_variable, multi_line_texts};

/// One `map` block, ready for lookups.
struct MapBlock {
    subject: Expression,
    /// Whether texts are host names, possibly with wildcards.
    hostnames: bool,
    volatile: bool,
    default: Option<ValueId>,
    /// Texts and names without wildcards; tried first.
    exact: ValuesByText,
    /// Names with a leading `*.` or `.`, by the rest including its dot.
    leading_wildcards: ValuesByText,
    /// Names with a trailing `.*`, by the beginning including its dot.
    trailing_wildcards: ValuesByText,
    /// Regular expressions in file order; tried last.
    patterns: Vec<(CapturingPattern, ValueId)>,
    filter: PatternFilter,
    values: MapValues,
}

/// The number of a value in [`MapValues`].
type ValueId = u32;

/// Each distinct value once: a million lines often have a few hundred.
#[derive(Default)]
struct MapValues {
    texts: TextTable,
    /// Those with variables.
    expressions: HashMap<ValueId, Expression>,
}

/// Values by lower-case text.
#[derive(Default)]
struct ValuesByText {
    texts: TextTable,
    /// By the number of the text.
    values: Vec<ValueId>,
}

/// The rows of `map`, whose text for the reference is each engine's own.
pub(crate) const fn rows<S: ClientScope>(
    contexts: Contexts,
    doc: &'static str,
) -> [Directive<VariableOnly>; 3] {
    [
        Directive {
            name: "map",
            syntax: "text $variable { ... }",
            default: None,
            contexts,
            since: "0.1",
            doc,
            set: Setter::Block(Arity::exactly(2), RepeatRule::Many, |_, line| {
                read::<S>(line)
            }),
        },
        ignored("map_hash_max_size", contexts),
        ignored("map_hash_bucket_size", contexts),
    ]
}

/// A directive of nginx's that has no meaning here.
const fn ignored(name: &'static str, contexts: Contexts) -> Directive<VariableOnly> {
    Directive {
        name,
        syntax: "size",
        default: None,
        contexts,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ONE, "Weir's tables size themselves"),
    }
}

/// Reads `map TEXT $variable { … }`.
fn read<S: ClientScope>(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let mut map: MapBlock = MapBlock::new(line.expression(0)?);
    let entries = line.entries();
    // `hostnames` affects all lines, so it must be known before the first is read, wherever it is.
    map.hostnames = line.node.block.may_contain(b"hostnames")
        && entries
            .clone()
            .any(|entry| single_word(&entry) == Some(b"hostnames"));
    if !map.hostnames {
        map.exact.reserve(entries.count_all());
    }
    for entry in entries {
        match single_word(&entry) {
            Some(b"hostnames") => {}
            Some(b"volatile") => map.volatile = true,
            _ => map.add::<S>(&entry, line)?,
        }
    }
    map.finish();
    let volatile = map.volatile;
    let texts = multi_line_texts(map.texts());
    let definition = VariableDefinition::<S>::dynamic(move |session, out| map.value(session, out));
    define_variable(
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

/// The word of a line that consists of one: `hostnames`, `volatile`.
fn single_word(entry: &DirectiveNode) -> Option<&[u8]> {
    entry.args.is_empty().then_some(entry.name.text.as_slice())
}

impl MapBlock {
    fn new(subject: Expression) -> Self {
        MapBlock {
            subject,
            hostnames: false,
            volatile: false,
            default: None,
            exact: ValuesByText::default(),
            leading_wildcards: ValuesByText::default(),
            trailing_wildcards: ValuesByText::default(),
            patterns: Vec::new(),
            filter: PatternFilter::default(),
            values: MapValues::default(),
        }
    }

    /// All lines have been added.
    fn finish(&mut self) {
        self.filter = PatternFilter::new(self.patterns.iter().map(|(pattern, _)| &pattern.regex));
        self.patterns.shrink_to_fit();
        for table in [
            &mut self.exact,
            &mut self.leading_wildcards,
            &mut self.trailing_wildcards,
        ] {
            table.texts.shrink_to_fit();
            table.values.shrink_to_fit();
        }
        self.values.texts.shrink_to_fit();
    }

    /// Adds one line.
    fn add<S: ClientScope>(
        &mut self,
        entry: &DirectiveNode,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic> {
        let [word] = &entry.args[..] else {
            return Err(entry.error("invalid number of the map parameters"));
        };
        let value = self.values.add(entry, word, line)?;
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
            self.patterns.push((
                CapturingPattern::of(line.level, regex).map_err(failed)?,
                value,
            ));
            return Ok(());
        }
        // A leading backslash lets a text begin with a tilde or be called like one of the
        // parameters.
        self.add_text(key.strip_prefix(b"\\").unwrap_or(key), value)
            .map_err(failed)
    }

    /// Adds an exact text or a host name to the tables it belongs to. `.example.com` belongs to
    /// two: the name itself and the names below it.
    fn add_text(&mut self, key: &[u8], value: ValueId) -> Result<(), String> {
        let shown = key.as_bstr();
        let lower = key.to_ascii_lowercase();
        let stars = lower.iter().filter(|byte| **byte == b'*').count();
        let mut places: Vec<(&mut ValuesByText, &[u8])> = Vec::with_capacity(2);
        if !self.hostnames {
            places.push((&mut self.exact, &lower));
        } else if lower.contains_str("..") || lower.contains(&0) || stars > 1 {
            return Err(format!("invalid hostname or wildcard \"{shown}\""));
        } else if lower.starts_with(b"*.") && lower.len() > 2 {
            places.push((&mut self.leading_wildcards, &lower[1..]));
        } else if lower.starts_with(b".") && lower.len() > 1 && stars == 0 {
            places.push((&mut self.exact, &lower[1..]));
            places.push((&mut self.leading_wildcards, &lower));
        } else if lower.ends_with(b".*") && lower.len() > 2 {
            places.push((&mut self.trailing_wildcards, &lower[..lower.len() - 1]));
        } else if stars > 0 {
            return Err(format!("invalid hostname or wildcard \"{shown}\""));
        } else {
            places.push((&mut self.exact, &lower));
        }
        for (table, text) in places {
            match table.texts.insert(text) {
                Some((_, true)) => table.values.push(value),
                Some((_, false)) => {
                    let shown = lower.as_bstr();
                    return Err(format!("conflicting parameter \"{shown}\""));
                }
                None => return Err(TOO_MUCH_TEXT.to_owned()),
            }
        }
        Ok(())
    }

    /// Evaluates the variable.
    fn value<S: ClientScope>(&self, session: &mut S, out: &mut Vec<u8>) -> bool {
        let mut subject = self.subject.to_bytes(session);
        // `example.com.` is the same host as `example.com`.
        if self.hostnames && subject.last() == Some(&b'.') {
            subject.pop();
        }
        if let Some(value) = self.find(session, &subject) {
            self.values.eval(value, session, out);
        }
        // Without a default the value is empty, but it exists: logs show it as empty, not as `-`.
        true
    }

    /// The value for a subject, or the default.
    fn find<S: ClientScope>(&self, session: &mut S, subject: &[u8]) -> Option<ValueId> {
        if let Some(value) = self.find_text(subject) {
            return Some(value);
        }
        // As in nginx, patterns are not tried on an empty subject, not even one that would match
        // it.
        if subject.is_empty() {
            return self.default;
        }
        let candidates = self.filter.candidates(subject);
        let mut patterns = candidates.filter_map(|place| self.patterns.get(place));
        let found = patterns.find(|(pattern, _)| session.matches(pattern, subject));
        found.map(|(_, value)| *value).or(self.default)
    }

    /// The values without variables, for the registry's notes about texts of several lines.
    fn texts(&self) -> impl Iterator<Item = &BStr> {
        let all = self.values.texts.texts().zip(0..);
        let constant = all.filter(|(_, id)| !self.values.expressions.contains_key(id));
        constant.map(|(text, _)| BStr::new(text))
    }

    /// Looks the subject up in the tables. The first dot leaves the longest name, so for a leading
    /// star dots are tried from the front, for a trailing star from the back.
    fn find_text(&self, subject: &[u8]) -> Option<ValueId> {
        let lowered;
        let subject = if subject.iter().any(u8::is_ascii_uppercase) {
            lowered = subject.to_ascii_lowercase();
            &lowered[..]
        } else {
            subject
        };
        if let Some(value) = self.exact.get(subject) {
            return Some(value);
        }
        if self.leading_wildcards.is_empty() && self.trailing_wildcards.is_empty() {
            return None;
        }
        let dots: Vec<usize> = subject.find_iter(b".").collect();
        let front = dots
            .iter()
            .find_map(|&dot| self.leading_wildcards.get(&subject[dot..]));
        front.or_else(|| {
            dots.iter()
                .rev()
                .find_map(|&dot| self.trailing_wildcards.get(&subject[..=dot]))
        })
    }
}

/// The error if the texts have more bytes than their tables can count.
const TOO_MUCH_TEXT: &str = "the texts of a map have more than 4 GB";

impl MapValues {
    /// The number of a line's value.
    fn add(
        &mut self,
        entry: &DirectiveNode,
        word: &DirectiveWord,
        line: &mut DirectiveLine,
    ) -> Result<ValueId, Diagnostic> {
        let added = self.texts.insert(&word.text);
        let (id, is_new) = added.ok_or_else(|| entry.error_at(word, TOO_MUCH_TEXT))?;
        if is_new && Expression::has_variables(&word.text) {
            let value = Expression::parse(&word.text, word.span, &mut *line.level.names);
            let place = DiagnosticPlace::At(entry.head.last_byte());
            self.expressions
                .insert(id, value.map_err(|error| error.place(place))?);
        }
        Ok(id)
    }

    /// Appends the value with this number.
    fn eval<S: VariableScope>(&self, id: ValueId, session: &mut S, out: &mut Vec<u8>) {
        // Most maps have no variables in their values.
        if !self.expressions.is_empty()
            && let Some(value) = self.expressions.get(&id)
        {
            return value.eval(session, out);
        }
        out.extend_from_slice(self.texts.text(id).unwrap_or_default());
    }
}

impl ValuesByText {
    fn reserve(&mut self, lines: usize) {
        self.texts = TextTable::with_capacity(lines);
        self.values.reserve_exact(lines);
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn get(&self, text: &[u8]) -> Option<ValueId> {
        let number = self.texts.get(text)?;
        self.values.get(number as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(hostnames: bool, keys: &[&str]) -> Result<MapBlock, String> {
        let mut map = MapBlock {
            hostnames,
            ..MapBlock::new(Expression::literal(b""))
        };
        for key in keys {
            let (value, _) = map.values.texts.insert(key.as_bytes()).expect("few texts");
            map.add_text(key.as_bytes(), value)?;
        }
        Ok(map)
    }

    fn found(map: &MapBlock, subject: &str) -> Option<String> {
        let value = map.find_text(subject.as_bytes())?;
        let text = map.values.texts.text(value)?;
        Some(BStr::new(text).to_string())
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
