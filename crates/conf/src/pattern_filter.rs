//! Many patterns for the price of one: which patterns of a list can match a subject at all.
//!
//! Lists of patterns are tried in order: regex locations, the rows of a `map`, server names. Most of them need a literal
//! text in order to match. One automaton finds the literals of the whole list in a single pass over the subject, and PCRE2
//! is asked only about patterns whose literals are there, in the order of the list, as before. (RE2's filtered set works
//! this way: <https://github.com/google/re2/blob/main/re2/filtered_re2.h>.)

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::Regex;
use crate::necessary_literals::necessary_literals;

/// Shorter lists are tried one by one: a pass for the filter costs about as much as two patterns that fail.
const MIN_PATTERNS: usize = 3;

/// How many patterns share an automaton at most; a longer list has several.
const PART_PATTERNS: usize = WORDS * 64;

/// How many bytes of literals an automaton has, at about 20 bytes of memory for each of them.
const PART_BYTES: usize = 256 * 1024;

/// One bit for each pattern of a part.
type PatternBits = [u64; WORDS];
const WORDS: usize = 16;

/// Knows which patterns of a list can match a subject. It belongs to one list, whose order it keeps.
#[derive(Clone, Debug, Default)]
pub struct PatternFilter {
    len: usize,
    /// One after the other in the list. Patterns behind the last one are always tried.
    parts: Box<[FilterPart]>,
}

/// Patterns that share an automaton.
#[derive(Clone, Debug)]
struct FilterPart {
    /// Their places in the list.
    places: Range<usize>,
    automaton: AhoCorasick,
    /// For each literal where its patterns end in `patterns`; they begin where those of the one before end.
    ends: Box<[u32]>,
    /// Relative to the first pattern of the part.
    patterns: Box<[u16]>,
    /// Patterns without a literal.
    always: PatternBits,
}

impl PatternFilter {
    /// The filter for these patterns.
    pub fn new<'a>(patterns: impl ExactSizeIterator<Item = &'a Regex>) -> PatternFilter {
        let len = patterns.len();
        let mut parts = Vec::new();
        if len >= MIN_PATTERNS {
            let mut building = PartBuilder::default();
            for (place, regex) in patterns.enumerate() {
                if building.is_full() {
                    parts.push(building.build());
                    building = PartBuilder::at(place);
                }
                building.add(regex);
            }
            parts.push(building.build());
        }
        // What cannot be built, or knows nothing, is better left out with all that follows.
        let mut parts: Vec<FilterPart> = parts.into_iter().map_while(|part| part).collect();
        while parts.pop_if(|part| part.ends.is_empty()).is_some() {}
        PatternFilter {
            len,
            parts: parts.into(),
        }
    }

    /// Whether the filter can tell that this pattern does not match.
    pub fn knows(regex: &Regex) -> bool {
        necessary_literals(regex.pattern()).is_some()
    }

    /// The patterns that can match the subject, by their places in the list and in its order.
    pub fn candidates<'a>(&'a self, subject: &'a [u8]) -> CandidatePatterns<'a> {
        CandidatePatterns {
            subject,
            parts: self.parts.iter(),
            begin: 0,
            word: WORDS,
            found: PatternBits::default(),
            rest: self.parts.last().map_or(0, |part| part.places.end)..self.len,
        }
    }

    /// What the automatons take, in bytes.
    pub fn memory(&self) -> usize {
        let parts = self.parts.iter();
        let automatons = parts.map(|part| part.automaton.memory_usage() + 6 * part.patterns.len());
        automatons.sum::<usize>() + size_of_val(&*self.parts)
    }
}

/// A part while patterns are added.
#[derive(Default)]
struct PartBuilder {
    places: Range<usize>,
    /// Length of all literals, in bytes.
    bytes: usize,
    /// Literals and their patterns.
    literals: Vec<(Vec<u8>, u16)>,
    always: PatternBits,
}

impl PartBuilder {
    fn at(place: usize) -> PartBuilder {
        PartBuilder {
            places: place..place,
            ..PartBuilder::default()
        }
    }

    fn is_full(&self) -> bool {
        self.places.len() >= PART_PATTERNS || self.bytes >= PART_BYTES
    }

    fn add(&mut self, regex: &Regex) {
        let number = self.places.len() as u16;
        self.places.end += 1;
        let Some(texts) = necessary_literals(regex.pattern()) else {
            return set(&mut self.always, number);
        };
        for text in texts {
            self.bytes += text.len();
            self.literals.push((text, number));
        }
    }

    /// `None` if the automaton would have too many states.
    fn build(mut self) -> Option<FilterPart> {
        self.literals.sort_unstable();
        let mut texts: Vec<&[u8]> = Vec::new();
        let mut ends: Vec<u32> = Vec::new();
        for (at, (text, _)) in (1..).zip(&self.literals) {
            match texts.last() == Some(&&text[..]) {
                true => *ends.last_mut()? = at,
                false => {
                    texts.push(text);
                    ends.push(at);
                }
            }
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .build(&texts)
            .ok()?;
        Some(FilterPart {
            places: self.places,
            automaton,
            ends: ends.into(),
            patterns: self.literals.iter().map(|(_, number)| *number).collect(),
            always: self.always,
        })
    }
}

impl FilterPart {
    /// The patterns that can match.
    fn search(&self, subject: &[u8]) -> PatternBits {
        let mut found = self.always;
        for literal in self.automaton.find_overlapping_iter(subject) {
            let literal = literal.pattern().as_usize();
            let begin = literal
                .checked_sub(1)
                .map_or(0, |one_before| self.ends[one_before]);
            for number in &self.patterns[begin as usize..self.ends[literal] as usize] {
                set(&mut found, *number);
            }
        }
        found
    }
}

fn set(bits: &mut PatternBits, number: u16) {
    bits[usize::from(number / 64)] |= 1 << (number % 64);
}

/// Places of patterns that can match a subject. A part of the list is searched when it is its turn, so that the first
/// match ends all work.
pub struct CandidatePatterns<'a> {
    subject: &'a [u8],
    parts: std::slice::Iter<'a, FilterPart>,
    /// The first place of the part that was searched last.
    begin: usize,
    /// The word of `found` that is being read; what was read is cleared.
    word: usize,
    found: PatternBits,
    /// Behind the parts.
    rest: Range<usize>,
}

impl Iterator for CandidatePatterns<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        loop {
            if let Some(bits) = self.found.get_mut(self.word) {
                if *bits == 0 {
                    self.word += 1;
                    continue;
                }
                let bit = bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                return Some(self.begin + self.word * 64 + bit);
            }
            let Some(part) = self.parts.next() else {
                return self.rest.next();
            };
            self.found = part.search(self.subject);
            self.begin = part.places.start;
            self.word = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(patterns: &[&str]) -> PatternFilter {
        let patterns: Vec<Regex> = patterns
            .iter()
            .map(|pattern| Regex::new(pattern.as_bytes(), true).unwrap())
            .collect();
        PatternFilter::new(patterns.iter())
    }

    fn candidates(filter: &PatternFilter, subject: &str) -> Vec<usize> {
        filter.candidates(subject.as_bytes()).collect()
    }

    #[test]
    fn candidates_come_in_the_order_of_the_list() {
        let filter = filter(&["zebra", r"^\d+$", "bra|ket", "apple", "(zebra|bra)x?"]);
        assert_eq!(candidates(&filter, "a ZEBRA"), [0, 1, 2, 4]);
        assert_eq!(candidates(&filter, "kettle"), [1, 2]);
        assert_eq!(candidates(&filter, ""), [1]);
    }

    #[test]
    fn a_list_of_which_nothing_is_known_is_tried_in_full() {
        assert_eq!(
            candidates(&filter(&["a", "b", "c", r"\d"]), "x"),
            [0, 1, 2, 3]
        );
        assert_eq!(
            candidates(&filter(&["one", "two"]), "x"),
            [0, 1],
            "too short"
        );
        assert_eq!(filter(&["one", "two"]).memory(), 0);
    }

    #[test]
    fn a_long_list_has_several_automatons() {
        let patterns: Vec<String> = (0..3000).map(|n| format!("name{n:04}(x|y)")).collect();
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let filter = filter(&patterns);
        assert_eq!(filter.parts.len(), 3);
        let subject = "name2999x name0007y name1024x";
        assert_eq!(candidates(&filter, subject), [7, 1024, 2999]);
    }
}
