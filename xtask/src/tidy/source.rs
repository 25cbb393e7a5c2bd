//! The Rust files of the project, with what is test code in them known.

use std::fs;
use std::path::Path;

use crate::rust::file::{RustFile, test_modules};

/// One Rust file.
#[derive(Debug)]
pub(crate) struct Source {
    /// The path in the project, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The line (from 0) where the tests begin; the number of lines when there are none. Tests
    /// stand last in a file, so that one number is enough.
    pub(crate) tests_begin: usize,
    /// The same file, with strings and comments told from code.
    pub(crate) rust: RustFile,
    /// Compiled into the product: below `crates/*/src`, and no test.
    pub(crate) is_product: bool,
}

impl Source {
    pub(crate) fn new(path: &str, text: String) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let is_test_file = path.ends_with("/tests.rs")
            || path.starts_with("tests/")
            || path.starts_with("fuzz/")
            || path.contains("/tests/");
        let marks_tests = |i: usize| {
            let following = lines
                .iter()
                .skip(i + 1)
                .find(|line| !line.trim_start().starts_with("#["));
            lines[i] == "#[cfg(test)]" && following.is_some_and(|line| line.starts_with("mod "))
        };
        let tests_begin = if is_test_file {
            0
        } else {
            (0..lines.len())
                .find(|&i| marks_tests(i))
                .unwrap_or(lines.len())
        };
        Self {
            path: path.to_owned(),
            tests_begin,
            rust: RustFile::new(path, &text),
            is_product: is_in_product(path) && !is_test_file,
            text,
        }
    }

    /// The lines that are not tests, each with its number from 1.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .take(self.tests_begin)
            .enumerate()
            .map(|(i, line)| (i + 1, line))
    }

    /// Whether all of it is test code.
    pub(crate) fn is_test_file(&self) -> bool {
        self.tests_begin == 0
    }

    pub(crate) fn is_in(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }
}

/// A line without what follows `//`, unless that stands in a string.
pub(crate) fn without_comment(line: &str) -> &str {
    let cut = line
        .match_indices("//")
        .find(|(at, _)| line[..*at].matches('"').count().is_multiple_of(2));
    cut.map_or(line, |(at, _)| &line[..at])
}

/// All Rust files that git knows or would add, in the order of their paths.
pub(crate) fn all() -> Result<Vec<Source>, String> {
    let files = files()?.into_iter().filter(|path| path.ends_with(".rs"));
    let read = |path: String| match fs::read_to_string(&path) {
        Ok(text) => Ok(Source::new(&path, text)),
        Err(error) => Err(format!("{path}: {error}")),
    };
    let mut sources = files.map(read).collect::<Result<Vec<Source>, String>>()?;
    let tests = test_modules(sources.iter().map(|source| &source.rust));
    for source in &mut sources {
        source.is_product =
            source.is_product && !tests.iter().any(|test| test.contains(&source.path));
    }
    Ok(sources)
}

/// The files that are compiled into the product.
pub(crate) fn product(sources: &[Source]) -> Vec<&RustFile> {
    let sources = sources.iter().filter(|source| source.is_product);
    sources.map(|source| &source.rust).collect()
}

fn is_in_product(path: &str) -> bool {
    path.starts_with("crates/") && path.split('/').nth(2) == Some("src")
}

/// The paths of all files that git knows or would add.
pub(crate) fn files() -> Result<Vec<String>, String> {
    let mut git = std::process::Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let list = crate::shell::output(&mut git, std::time::Duration::from_secs(60))?;
    let mut paths: Vec<String> = list
        .lines()
        .filter(|path| Path::new(path).is_file())
        .map(str::to_owned)
        .collect();
    paths.sort();
    // While a merge has conflicts, git lists their files more than once.
    paths.dedup();
    Ok(paths)
}
