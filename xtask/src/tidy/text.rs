//! Rules about the text of files.

use std::collections::HashSet;
use std::fs;

use super::Finding;
use super::source::{Source, files, without_comment};

/// Long enough for a line about each file of the crates in [`MAPPED`], short enough to be read on the first day.
const MAP_LINES: usize = 280;

/// The crates whose files the map names one by one: those that a newcomer meets first, and that are too large to guess.
const MAPPED: [&str; 3] = ["crates/http/src/", "crates/rt/src/", "crates/host/src/"];

pub(super) fn begins_with_what_and_why(source: &Source, findings: &mut Vec<Finding>) {
    if !source.text.starts_with("//! ") {
        findings.push(Finding::new(
            &source.path,
            "begin the file with `//!`: what it is, why, what it does not do",
        ));
    }
}

pub(super) fn does_not_unwrap(source: &Source, findings: &mut Vec<Finding>) {
    if !source.is_in("crates/") {
        return;
    }
    for (number, line) in source.code() {
        if without_comment(line).contains(".unwrap()") {
            findings.push(Finding::new(
                format!("{}:{number}", source.path),
                "handle the error, or say in expect(\"…\") why it cannot be",
            ));
        }
    }
}

pub(super) fn says_what_is_to_do(source: &Source, findings: &mut Vec<Finding>) {
    // Spelled in two parts so that this file does not find itself.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    for (i, line) in source.text.lines().enumerate() {
        for mark in marks {
            let Some((_, rest)) = line.split_once(mark) else {
                continue;
            };
            let text = rest.trim_start_matches([':', ' ']);
            if text.len() < 15 {
                findings.push(Finding::new(
                    format!("{}:{}", source.path, i + 1),
                    format!("say after {mark} what is to be done and when, or do it"),
                ));
            }
        }
    }
}

/// `unsafe` is allowed in few crates, and there each block says why it is sound.
pub(super) fn justifies_unsafe(source: &Source, findings: &mut Vec<Finding>) {
    let lines: Vec<&str> = source.text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let code = without_comment(line);
        let opens = ["unsafe {", "unsafe impl"]
            .iter()
            .any(|word| code.contains(word) && !code.contains(&format!("\"{word}")));
        let before = &lines[i.saturating_sub(12)..i];
        if opens
            && source.is_in("crates/")
            && !before.iter().any(|line| line.contains("SAFETY:"))
            && !line.contains("SAFETY:")
        {
            findings.push(Finding::new(
                format!("{}:{}", source.path, i + 1),
                "put `// SAFETY:` above it: every precondition, and why it holds",
            ));
        }
    }
}

pub(super) fn tests_do_not_sleep(source: &Source, findings: &mut Vec<Finding>) {
    if !source.is_in("tests/") || source.path == "tests/harness/wait.rs" {
        return;
    }
    for (i, line) in source.text.lines().enumerate() {
        if without_comment(line).contains("thread::sleep") {
            findings.push(Finding::new(
                format!("{}:{}", source.path, i + 1),
                "wait for the event with `until` instead of sleeping for a guess",
            ));
        }
    }
}

pub(super) fn tests_are_not_ignored_silently(source: &Source, findings: &mut Vec<Finding>) {
    let mark = concat!("#[ig", "nore]");
    for (i, line) in source.text.lines().enumerate() {
        if line.trim() == mark {
            findings.push(Finding::new(
                format!("{}:{}", source.path, i + 1),
                "give the reason, as in #[ignore = \"…\"], or mend the test",
            ));
        }
    }
}

/// A path of somebody's machine in a committed file is a test that passes there only.
pub(super) fn no_file_names_a_machine(_: &[Source], findings: &mut Vec<Finding>) {
    let marks = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/Us", "ers/"),
    ];
    for path in files().unwrap_or_default() {
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for (i, line) in text.lines().enumerate() {
            // A URL's path is no machine's, nor is a path below a placeholder.
            let named = marks.iter().any(|mark| {
                line.match_indices(mark).any(|(at, _)| {
                    !line[..at].ends_with(|before: char| {
                        before.is_alphanumeric() || "}%._-*".contains(before)
                    })
                })
            });
            if named {
                findings.push(Finding::new(
                    format!("{path}:{}", i + 1),
                    "name no path of one machine; make it relative or ask the environment",
                ));
            }
        }
    }
}

pub(super) fn the_map_is_short(_: &[Source], findings: &mut Vec<Finding>) {
    let lines = fs::read_to_string("ARCHITECTURE.md")
        .unwrap_or_default()
        .lines()
        .count();
    if lines == 0 || lines > MAP_LINES {
        findings.push(Finding::new(
            "ARCHITECTURE.md",
            format!("{lines} lines: keep the map between 1 and {MAP_LINES}"),
        ));
    }
}

pub(super) fn the_map_names_every_file(sources: &[Source], findings: &mut Vec<Finding>) {
    let map = fs::read_to_string("ARCHITECTURE.md").unwrap_or_default();
    let words: HashSet<&str> = map
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    for source in sources {
        let Some(file) = MAPPED
            .iter()
            .find_map(|folder| source.path.strip_prefix(folder))
        else {
            continue;
        };
        // A folder is named by its folder, not by its `mod.rs`.
        let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
        let name = stem.rsplit('/').next().unwrap_or(stem);
        if name != "lib" && !words.contains(name) {
            findings.push(Finding::new(
                &source.path,
                format!("the map in ARCHITECTURE.md does not name `{name}`: say there what it is"),
            ));
        }
    }
}
