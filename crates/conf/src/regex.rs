//! Regular expressions by PCRE2, like nginx's: over bytes, and JIT-compiled where possible.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use base::sync::Mutex;
use base::{BStr, ByteSlice};
use pcre2::bytes::{CaptureLocations, RegexBuilder};

/// A compiled pattern. Cheap to clone; clones share the program.
#[derive(Clone)]
pub struct Regex {
    shared: Arc<RegexProgram>,
}

struct RegexProgram {
    program: pcre2::bytes::Regex,
    pattern: Vec<u8>,
    /// Group number and name.
    names: Vec<(usize, String)>,
    /// Reusable memory for matching. When several loops match the same pattern at once, one is
    /// added for each, so there are at most as many as threads.
    spare: Mutex<Vec<CaptureLocations>>,
}

/// The stack of compiled patterns. PCRE2's own 32 KB is too small for long subjects with nested
/// groups: a match would fail with an error where it should succeed.
const JIT_STACK: usize = 1 << 20;

impl Regex {
    /// Compiles a pattern. The error is a message in nginx's words.
    pub fn new(pattern: &[u8], caseless: bool) -> Result<Regex, String> {
        Regex::compile(pattern, caseless).map_err(|(message, _)| message)
    }

    /// Like [`Regex::new`]; the error also has the offset at which PCRE2 noticed it, if it tells
    /// one.
    pub(crate) fn compile(
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex, (String, Option<usize>)> {
        let mut builder = RegexBuilder::new();
        builder
            .caseless(caseless)
            .jit_if_available(true)
            .max_jit_stack_size(Some(JIT_STACK));
        let program = builder
            .build(&as_utf8(pattern))
            .map_err(|error| (compile_message(&error, pattern), error.offset()))?;
        let names = program.capture_names().iter().enumerate();
        let names = names
            .filter_map(|(group, name)| Some((group, name.clone()?)))
            .collect();
        let spare = Mutex::new(Vec::new());
        Ok(Regex {
            shared: Arc::new(RegexProgram {
                program,
                pattern: pattern.to_vec(),
                names,
                spare,
            }),
        })
    }

    /// Whether the subject matches; then `captures` has the groups. A match that PCRE2 gives up on,
    /// after too much backtracking, counts as none; [`Regex::try_captures`] reports it.
    pub fn captures(&self, subject: &[u8], captures: &mut Captures) -> bool {
        self.try_captures(subject, captures).unwrap_or(false)
    }

    /// As [`Regex::captures`], with the failure as a message.
    pub fn try_captures(&self, subject: &[u8], captures: &mut Captures) -> Result<bool, String> {
        captures.clear();
        let watch = MatchWatch::begin();
        let mut locations = self.take_spare();
        let found = self.shared.program.captures_read(&mut locations, subject);
        let result = match found {
            Ok(Some(_)) => {
                captures.fill(&locations);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(match_message(&error, subject, self.pattern())),
        };
        self.put_spare(locations);
        watch.end(self);
        result
    }

    /// Whether the subject matches.
    pub fn is_match(&self, subject: &[u8]) -> bool {
        let watch = MatchWatch::begin();
        let found = self.shared.program.is_match(subject).unwrap_or(false);
        watch.end(self);
        found
    }

    /// The pattern.
    pub fn pattern(&self) -> &BStr {
        self.shared.pattern.as_bstr()
    }

    /// The named groups: number and name.
    pub fn names(&self) -> &[(usize, String)] {
        &self.shared.names
    }

    /// The number of groups, not counting the whole match.
    pub fn group_count(&self) -> usize {
        self.shared.program.captures_len() - 1
    }

    fn take_spare(&self) -> CaptureLocations {
        let spare = self
            .shared
            .spare
            .try_lock()
            .and_then(|mut spare| spare.pop());
        spare.unwrap_or_else(|| self.shared.program.capture_locations())
    }

    fn put_spare(&self, locations: CaptureLocations) {
        if let Some(mut spare) = self.shared.spare.try_lock() {
            spare.push(locations);
        }
    }
}

/// Something takes too long, as the process has found out: see [`set_match_watch`].
static IS_LATE: AtomicBool = AtomicBool::new(false);
/// Who is told of the pattern.
static TOLD: OnceLock<fn(&BStr)> = OnceLock::new();

/// Has `told` called with the pattern of each match during which [`say_late`] was called. Only the first call counts.
pub fn set_match_watch(told: fn(&BStr)) {
    // A second call loses on purpose: there is one process.
    let _ = TOLD.set(told);
}

/// Says whether something takes too long now. What ends after this, and began before, may have been it.
pub fn say_late(late: bool) {
    IS_LATE.store(late, Relaxed);
}

/// Looks before and after a match: two loads.
struct MatchWatch(bool);

impl MatchWatch {
    #[inline]
    fn begin() -> MatchWatch {
        MatchWatch(IS_LATE.load(Relaxed))
    }

    #[inline]
    fn end(self, regex: &Regex) {
        if IS_LATE.load(Relaxed) && !self.0 {
            tell(regex);
        }
    }
}

#[cold]
fn tell(regex: &Regex) {
    if let Some(told) = TOLD.get() {
        told(regex.pattern());
    }
}

/// The patterns of a configuration, each compiled once: many servers have the same locations.
#[derive(Default)]
pub struct CompiledPatterns {
    exact: PatternTable,
    caseless: PatternTable,
}

/// Patterns by text.
#[derive(Default)]
struct PatternTable {
    by_text: HashMap<Vec<u8>, Regex>,
    /// How many there may be before those that nothing uses any more are removed.
    limit: usize,
}

impl CompiledPatterns {
    /// As [`Regex::compile`].
    pub(crate) fn compile(
        &mut self,
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex, (String, Option<usize>)> {
        let table = match caseless {
            true => &mut self.caseless,
            false => &mut self.exact,
        };
        if let Some(regex) = table.by_text.get(pattern) {
            return Ok(regex.clone());
        }
        if table.by_text.len() >= table.limit {
            let is_used = |regex: &Regex| Arc::strong_count(&regex.shared) > 1;
            table.by_text.retain(|_, regex| is_used(regex));
            table.limit = (table.by_text.len() * 2).max(MIN_LIMIT);
        }
        let regex = Regex::compile(pattern, caseless)?;
        table.by_text.insert(pattern.to_vec(), regex.clone());
        Ok(regex)
    }
}

/// The smallest number of patterns after which unused ones are looked for.
const MIN_LIMIT: usize = 64;

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regex({:?})", self.pattern())
    }
}

/// What the groups of a pattern matched: places in the subject, group 0 being the whole match.
///
/// Ten groups fit without an allocation: `$1` to `$9` are all that an expression can name by
/// number.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    len: usize,
    first: [(u32, u32); INLINE],
    more: Vec<(u32, u32)>,
}

const INLINE: usize = 10;
/// The place of a group that did not participate in the match.
const UNSET: (u32, u32) = (u32::MAX, u32::MAX);

impl Captures {
    /// No groups.
    pub const fn new() -> Captures {
        Captures {
            len: 0,
            first: [UNSET; INLINE],
            more: Vec::new(),
        }
    }

    /// The place of group `n`, if it took part in the match.
    pub fn get(&self, n: usize) -> Option<(usize, usize)> {
        if n >= self.len {
            return None;
        }
        let range = if n < INLINE {
            self.first[n]
        } else {
            self.more[n - INLINE]
        };
        (range != UNSET).then_some((range.0 as usize, range.1 as usize))
    }

    /// The text of group `n` in the subject that was matched.
    pub fn text<'s>(&self, n: usize, subject: &'s [u8]) -> Option<&'s [u8]> {
        let (start, end) = self.get(n)?;
        subject.get(start..end)
    }

    /// How many groups the pattern has, the whole match counted; 0 when nothing matched.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing matched.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all groups.
    pub fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    fn fill(&mut self, locations: &CaptureLocations) {
        self.len = locations.len();
        for n in 0..self.len {
            let range = locations.get(n).and_then(|(start, end)| {
                Some((u32::try_from(start).ok()?, u32::try_from(end).ok()?))
            });
            let range = range.unwrap_or(UNSET);
            if n < INLINE {
                self.first[n] = range;
            } else {
                self.more.push(range);
            }
        }
    }
}

/// The pattern as the library's interface wants it. Bytes that are not UTF-8 become `\xHH`, which
/// means the same to PCRE2; it is not in UTF mode and sees bytes.
pub fn as_utf8(pattern: &[u8]) -> String {
    let mut out = String::with_capacity(pattern.len());
    for chunk in pattern.utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

fn compile_message(error: &pcre2::Error, pattern: &[u8]) -> String {
    let shown = pattern.as_bstr();
    let reason = reason(error);
    match error.offset().and_then(|offset| pattern.get(offset..)) {
        Some(rest) if !rest.is_empty() => {
            format!(
                "pcre2_compile() failed: {reason} in \"{shown}\" at \"{}\"",
                rest.as_bstr()
            )
        }
        _ => format!("pcre2_compile() failed: {reason} in \"{shown}\""),
    }
}

/// PCRE2's own message, to which the library adds words of its own.
fn reason(error: &pcre2::Error) -> String {
    let text = error.to_string();
    text.splitn(3, ": ").nth(2).unwrap_or(&text).to_owned()
}

fn match_message(error: &pcre2::Error, subject: &[u8], pattern: &BStr) -> String {
    format!(
        "pcre2_match() failed: {} on \"{}\" using \"{pattern}\"",
        error.code(),
        subject.as_bstr()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_patterns_are_compiled_once_and_unused_ones_are_forgotten() {
        let mut patterns = CompiledPatterns::default();
        let mut compile =
            |text: &str, caseless| patterns.compile(text.as_bytes(), caseless).unwrap();
        let one = compile("a(b)", false);
        assert!(Arc::ptr_eq(&one.shared, &compile("a(b)", false).shared));
        assert!(!Arc::ptr_eq(&one.shared, &compile("a(b)", true).shared));
        let used: Vec<Regex> = (0..40).map(|n| compile(&format!("u{n}"), false)).collect();
        for n in 0..400 {
            compile(&format!("x{n}"), false);
        }
        assert!(Arc::ptr_eq(&used[0].shared, &compile("u0", false).shared));
        assert!(patterns.exact.by_text.len() <= 2 * MIN_LIMIT);
    }

    #[test]
    fn groups_and_their_names() {
        let regex = Regex::new(br"^/(?<user>\w+)(/x)?/(.*)$", false).unwrap();
        assert_eq!(regex.names(), [(1, "user".to_owned())]);
        assert_eq!(regex.group_count(), 3);
        let mut captures = Captures::new();
        let subject = b"/igor/a/b";
        assert!(regex.captures(subject, &mut captures));
        assert_eq!(captures.text(0, subject), Some(&subject[..]));
        assert_eq!(captures.text(1, subject), Some(&b"igor"[..]));
        assert_eq!(captures.text(2, subject), None, "took no part");
        assert_eq!(captures.text(3, subject), Some(&b"a/b"[..]));
        assert_eq!(captures.text(4, subject), None);
        assert!(!regex.captures(b"igor", &mut captures));
        assert!(captures.is_empty());
    }

    #[test]
    fn more_groups_than_nine() {
        let regex = Regex::new(br"(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)(?<last>.)", false).unwrap();
        let mut captures = Captures::new();
        assert!(regex.captures(b"abcdefghijkl", &mut captures));
        assert_eq!(captures.len(), 12);
        assert_eq!(captures.text(11, b"abcdefghijkl"), Some(&b"k"[..]));
    }

    #[test]
    fn letter_case() {
        assert!(Regex::new(b"^/IMG", true).unwrap().is_match(b"/img/1"));
        assert!(!Regex::new(b"^/IMG", false).unwrap().is_match(b"/img/1"));
    }

    #[test]
    fn subjects_and_patterns_are_bytes() {
        let any = Regex::new(b"^a.b$", false).unwrap();
        assert!(any.is_match(b"a\xffb"));
        assert!(!any.is_match("aéb".as_bytes()), "two bytes");
        let latin1 = Regex::new(b"^[\xe8\xe9]$", false).unwrap();
        assert!(latin1.is_match(b"\xe9"));
    }

    #[test]
    fn errors_are_in_the_words_of_nginx() {
        let message = |pattern: &str| Regex::new(pattern.as_bytes(), false).unwrap_err();
        assert_eq!(
            message("(a"),
            "pcre2_compile() failed: missing closing parenthesis in \"(a\""
        );
        let unmatched =
            "pcre2_compile() failed: unmatched closing parenthesis in \"a)b\" at \")b\"";
        assert_eq!(message("a)b"), unmatched);
    }

    #[test]
    fn endless_backtracking_is_an_error_that_can_be_told() {
        let regex = Regex::new(b"^(a+)+$", false).unwrap();
        let subject = [&[b'a'; 64][..], b"!"].concat();
        let mut captures = Captures::new();
        let result = regex.try_captures(&subject, &mut captures);
        assert!(result == Ok(false) || result.unwrap_err().starts_with("pcre2_match() failed: "));
        assert!(!regex.captures(&subject, &mut captures));
    }

    #[test]
    fn one_pattern_serves_many_threads() {
        let regex = Regex::new(b"^(\\d+)-(\\d+)$", false).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let regex = &regex;
                scope.spawn(move || {
                    let mut captures = Captures::new();
                    for i in 0..2000 {
                        let subject = format!("{thread}-{i}");
                        assert!(regex.captures(subject.as_bytes(), &mut captures));
                        assert_eq!(
                            captures.text(2, subject.as_bytes()),
                            Some(i.to_string().as_bytes())
                        );
                    }
                });
            }
        });
    }
}
