//! Runs of lines that stand in two crates: what both need belongs below both.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};

use super::ratchet::Measured;
use super::source::Source;

/// A run may be this long.
pub(super) const LONGEST: usize = 12;

/// Of a run's first lines, this number must have words: brackets and commas alone are the same everywhere.
const LINES_WITH_WORDS: usize = 6;

/// A line of code without its comment, and where it stands.
struct CodeLine<'a> {
    number: usize,
    text: &'a str,
    has_word: bool,
    hash: u64,
}

/// A file, and a line in it: places in lists.
type Place = (usize, usize);

/// For each pair of files of two crates the lines of the longest run that stands in both.
pub(super) fn between_crates(sources: &[Source]) -> Vec<Measured> {
    let sources: Vec<&Source> = sources.iter().filter(|source| source.is_product).collect();
    let lines: Vec<Vec<CodeLine<'_>>> = sources.iter().map(|source| code_lines(source)).collect();
    let mut longest: HashMap<(usize, usize), (usize, usize)> = HashMap::new();
    for places in windows(&lines).values().filter(|places| places.len() > 1) {
        for (i, one) in places.iter().enumerate() {
            let one_crate = sources[one.0].rust.crate_name();
            let others = places[i + 1..].iter();
            for other in others.filter(|other| sources[other.0].rust.crate_name() != one_crate) {
                let length = run_length(&lines[one.0][one.1..], &lines[other.0][other.1..]);
                let known = longest.entry((one.0, other.0)).or_default();
                *known = (*known).max((length, one.1));
            }
        }
    }
    let mut found: Vec<Measured> = longest
        .into_iter()
        .map(|((one, other), (value, at))| {
            let (path, twin) = (&sources[one].path, &sources[other].path);
            Measured {
                what: format!("{path} {twin}"),
                value,
                place: format!("{path}:{} and {twin}", lines[one][at].number),
            }
        })
        .collect();
    found.sort_by(|one, other| one.what.cmp(&other.what));
    found
}

/// Where runs begin that are longer than the bound, by what stands in their first lines.
fn windows(files: &[Vec<CodeLine<'_>>]) -> HashMap<u64, Vec<Place>> {
    let mut starts: HashMap<u64, Vec<Place>> = HashMap::new();
    for (file, lines) in files.iter().enumerate() {
        for (at, window) in lines.windows(LONGEST + 1).enumerate() {
            if window.iter().filter(|line| line.has_word).count() >= LINES_WITH_WORDS {
                let mut hasher = DefaultHasher::new();
                window.iter().for_each(|line| hasher.write_u64(line.hash));
                starts.entry(hasher.finish()).or_default().push((file, at));
            }
        }
    }
    starts
}

fn run_length(one: &[CodeLine<'_>], other: &[CodeLine<'_>]) -> usize {
    let pairs = one.iter().zip(other);
    pairs
        .take_while(|(one, other)| one.text == other.text)
        .count()
}

/// The lines of code, without what imports say: those of two files are alike and no copy.
fn code_lines(source: &Source) -> Vec<CodeLine<'_>> {
    let texts: Vec<&str> = source.text.lines().collect();
    let mut in_import = false;
    let mut found = Vec::new();
    for (number, line) in source.rust.production() {
        let code = line.code.trim_end();
        let begins = ["use ", "pub use ", "pub(crate) use "];
        in_import |= begins.iter().any(|begin| code.starts_with(begin));
        if line.has_code() && !in_import {
            // The code has blanks for what strings contain; the text has the strings.
            let text = texts[number - 1];
            let end = text.char_indices().nth(code.chars().count());
            let text = text[..end.map_or(text.len(), |(at, _)| at)].trim();
            let mut hasher = DefaultHasher::new();
            hasher.write(text.as_bytes());
            found.push(CodeLine {
                number,
                text,
                has_word: text.bytes().filter(u8::is_ascii_alphabetic).count() >= 3,
                hash: hasher.finish(),
            });
        }
        in_import &= !code.ends_with(';');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, body: &str) -> Source {
        Source::new(&format!("crates/{name}/src/a.rs"), body.to_owned())
    }

    fn lines(count: usize, word: &str) -> String {
        (0..count)
            .map(|i| format!("    let {word}_{i} = work({i}); // {word}\n"))
            .collect()
    }

    #[test]
    fn a_run_in_two_crates_is_found_whatever_its_comments() {
        let one = format!("use std::fs;\nfn a() {{\n{}}}\n", lines(13, "same"));
        let other = format!(
            "fn b() {{\n// why\n{}}}\n",
            lines(13, "same").replace("// same", "// more")
        );
        let found = between_crates(&[file("x", &one), file("y", &other)]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].value, found[0].place.as_str()),
            (14, "crates/x/src/a.rs:3 and crates/y/src/a.rs")
        );
        assert!(between_crates(&[file("x", &one), file("x", &other)]).is_empty());
    }

    #[test]
    fn a_run_at_the_bound_is_not_long() {
        let one = format!("fn a() {{\n{}", lines(12, "same"));
        let other = format!("fn b() {{\n{}", lines(12, "same"));
        assert!(between_crates(&[file("x", &one), file("y", &other)]).is_empty());
    }
}
