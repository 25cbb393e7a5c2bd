//! The figures that have a bound, in one table. What is beyond a bound today is in the list of `ratchet.rs`.

use crate::figures;
use crate::figures::names::TypeNames;
use crate::rust::file::RustFile;
use crate::rust::functions;
use crate::rust::imports::Imports;

use super::copies;
use super::ratchet::{Bound, Measure, Measured};
use super::source::{Source, product};

pub(super) const ALL: &[Measure] = &[
    Measure {
        name: "function-lines",
        bound: Bound::AtMost(70),
        of: function_lines,
        remedy: "split it: decide at the top, work below",
    },
    Measure {
        name: "file-lines",
        bound: Bound::AtMost(600),
        of: file_lines,
        remedy: "make a folder of it, a file for each thing that it is",
    },
    Measure {
        name: "test-file-lines",
        bound: Bound::AtMost(1_000),
        of: test_file_lines,
        remedy: "make two test files of it, each named for its area",
    },
    Measure {
        name: "comment-percent",
        bound: Bound::AtLeast(15),
        of: comment_percent,
        remedy: "say why at the decisions of this crate; `cargo xtask figures` counts",
    },
    Measure {
        name: "one-word-type-percent",
        bound: Bound::AtMost(10),
        of: one_word_types,
        remedy: "give types names of two words that say what they are here; `cargo xtask figures --types` lists them",
    },
    Measure {
        name: "shared-type-name-percent",
        bound: Bound::AtMost(5),
        of: shared_type_names,
        remedy: "give a type a name that no other has; `cargo xtask figures --types` lists them",
    },
    Measure {
        name: "circle-files",
        bound: Bound::AtMost(4),
        of: circles,
        remedy: "move what both need below both; `cargo xtask figures --circles` lists the files",
    },
    Measure {
        name: "copied-lines",
        bound: Bound::AtMost(copies::LONGEST),
        of: copies::between_crates,
        remedy: "move what both crates need below both",
    },
];

fn measured(what: impl Into<String>, value: usize, place: impl Into<String>) -> Measured {
    Measured {
        what: what.into(),
        value,
        place: place.into(),
    }
}

/// Of code that is no test, the tools' too. Comments do not count: they must never be too long for a bound.
fn function_lines(sources: &[Source]) -> Vec<Measured> {
    let sources = sources.iter().filter(|source| !source.is_test_file());
    let all = sources.flat_map(|source| {
        functions::of(&source.rust)
            .into_iter()
            .map(move |function| {
                let (path, name) = (&source.path, &function.name);
                let place = format!("{path}:{} {name}", function.line);
                measured(
                    format!("{path} {name}"),
                    function.lines_without_comments,
                    place,
                )
            })
    });
    all.collect()
}

/// Without comments, as for functions.
fn file_lines(sources: &[Source]) -> Vec<Measured> {
    let sources = sources.iter().filter(|source| !source.is_test_file());
    let lines = |source: &Source| {
        let lines = source.rust.production();
        lines.filter(|(_, line)| !line.is_comment()).count()
    };
    sources
        .map(|source| measured(&source.path, lines(source), &source.path))
        .collect()
}

fn test_file_lines(sources: &[Source]) -> Vec<Measured> {
    let sources = sources.iter().filter(|source| source.is_test_file());
    sources
        .map(|source| measured(&source.path, source.rust.lines.len(), &source.path))
        .collect()
}

/// For each crate the share of lines that are comments, rounded down.
fn comment_percent(sources: &[Source]) -> Vec<Measured> {
    for_each_crate(sources, |files| {
        let lines = || files.iter().flat_map(|file| file.production());
        let code = lines().filter(|(_, line)| line.has_code()).count();
        let comments = lines().filter(|(_, line)| line.is_comment()).count();
        comments * 100 / (code + comments).max(1)
    })
}

/// Rounded up.
fn one_word_types(sources: &[Source]) -> Vec<Measured> {
    let names = TypeNames::of(&product(sources)).all;
    let share = (names.one_word * 100).div_ceil(names.count.max(1));
    vec![measured("crates", share, "crates")]
}

fn shared_type_names(sources: &[Source]) -> Vec<Measured> {
    let names = TypeNames::of(&product(sources)).all;
    let share = (names.shared * 100).div_ceil(names.count.max(1));
    vec![measured("crates", share, "crates")]
}

/// For each crate the largest group of files that all import each other.
fn circles(sources: &[Source]) -> Vec<Measured> {
    for_each_crate(sources, |files| {
        Imports::of(files).circles().first().map_or(1, Vec::len)
    })
}

fn for_each_crate(sources: &[Source], value: fn(&[&RustFile]) -> usize) -> Vec<Measured> {
    let files = product(sources);
    let crates = figures::by_crate(&files).into_iter();
    crates
        .map(|(name, files)| measured(name, value(&files), format!("crates/{name}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path, text.to_owned())
    }

    #[test]
    fn tests_count_for_the_bound_of_tests_only() {
        let sources = [
            source(
                "crates/x/src/a.rs",
                "fn a() {\n    // why\n}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n",
            ),
            source("tests/server/c.rs", "fn c() {}\n"),
        ];
        assert_eq!(
            file_lines(&sources),
            [measured("crates/x/src/a.rs", 2, "crates/x/src/a.rs")]
        );
        assert_eq!(
            test_file_lines(&sources),
            [measured("tests/server/c.rs", 1, "tests/server/c.rs")]
        );
        assert_eq!(
            function_lines(&sources),
            [measured("crates/x/src/a.rs a", 2, "crates/x/src/a.rs:1 a")]
        );
    }

    #[test]
    fn shares_are_of_crates() {
        let sources = [
            source(
                "crates/x/src/lib.rs",
                "//! x\nstruct Place;\nstruct CacheZone;\n",
            ),
            source("crates/y/src/lib.rs", "struct Place;\n"),
        ];
        assert_eq!(
            comment_percent(&sources),
            [measured("x", 33, "crates/x"), measured("y", 0, "crates/y")]
        );
        assert_eq!(one_word_types(&sources), [measured("crates", 67, "crates")]);
        assert_eq!(
            shared_type_names(&sources),
            [measured("crates", 67, "crates")]
        );
        assert_eq!(
            circles(&sources),
            [measured("x", 1, "crates/x"), measured("y", 1, "crates/y")]
        );
    }
}
