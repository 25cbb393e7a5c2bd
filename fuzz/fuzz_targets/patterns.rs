//! The filter over a list of patterns leaves out none that matches. The last line is the subject, the others are patterns.
#![no_main]

use conf::{PatternFilter, Regex};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    let Some(subject) = lines.pop() else {
        return;
    };
    let patterns: Vec<Regex> = lines
        .iter()
        .flat_map(|line| [Regex::new(line, false), Regex::new(line, true)])
        .flatten()
        .collect();
    let filter = PatternFilter::new(patterns.iter());
    let candidates: Vec<usize> = filter.candidates(subject).collect();
    assert!(candidates.is_sorted());
    for (place, pattern) in patterns.iter().enumerate() {
        assert!(!pattern.is_match(subject) || candidates.contains(&place), "{pattern:?}");
    }
});
