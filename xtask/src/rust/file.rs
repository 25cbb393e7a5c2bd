//! A Rust file, with what of it is compiled into the product: no test modules, no other `#[cfg(test)]` items.

use std::fs;
use std::path::{Path, PathBuf};

use super::lines::{self, Line};
use super::words;

const TEST: &str = "#[cfg(test)]";

/// One file of a crate's `src`.
#[derive(Debug)]
pub(crate) struct RustFile {
    /// The path in the project, with `/`.
    pub(crate) path: String,
    /// All lines, tests included.
    pub(crate) lines: Vec<Line>,
    /// For each line whether it belongs to the product.
    is_production: Vec<bool>,
    /// The code of the product; lines that do not belong to it are empty.
    pub(crate) code: String,
    /// Where the lines of `code` begin.
    line_starts: Vec<usize>,
}

impl RustFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let lines = lines::split(text);
        let is_production = production(&lines);
        let kept = lines.iter().zip(&is_production);
        let codes = kept.map(|(line, kept)| if *kept { line.code.as_str() } else { "" });
        let code = codes.collect::<Vec<_>>().join("\n");
        Self {
            path: path.to_owned(),
            lines,
            is_production,
            line_starts: std::iter::once(0)
                .chain(code.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
            code,
        }
    }

    /// The lines of the product, each with its number from 1.
    pub(crate) fn production(&self) -> impl Iterator<Item = (usize, &Line)> {
        let numbered = self.lines.iter().enumerate();
        numbered
            .filter(|(i, _)| self.is_production[*i])
            .map(|(i, line)| (i + 1, line))
    }

    /// The number of the line, from 1, of a place in `code`.
    pub(crate) fn line_at(&self, place: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= place)
    }

    /// The folder's name below `crates`.
    pub(crate) fn crate_name(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or_default()
    }

    /// The modules of a path in the crate: `h1/sender.rs` is `["h1", "sender"]`, `lib.rs` is `[]`.
    pub(crate) fn module(&self) -> Vec<&str> {
        let inside = self.path.split_once("/src/").map_or("", |(_, path)| path);
        let inside = inside.strip_suffix(".rs").unwrap_or(inside);
        let mut names: Vec<&str> = inside.split('/').collect();
        if names
            .last()
            .is_some_and(|name| ["mod", "lib", "main"].contains(name))
        {
            names.pop();
        }
        names
    }

    /// The names of `mod name;`, each with whether it is compiled for tests only.
    pub(crate) fn declared_modules(&self) -> Vec<(&str, bool)> {
        let numbered = self.lines.iter().enumerate();
        numbered
            .filter_map(|(i, line)| Some((declared_module(&line.code)?, !self.is_production[i])))
            .collect()
    }
}

/// The name in `mod name;`.
fn declared_module(code: &str) -> Option<&str> {
    let at = words::places(code, "mod").next()?;
    let is_item = code[..at]
        .split_whitespace()
        .all(|word| word.starts_with("pub"));
    let rest = code[at + 3..].trim();
    (is_item && rest.ends_with(';')).then(|| words::leading(rest))
}

fn production(lines: &[Line]) -> Vec<bool> {
    let mut kept = vec![true; lines.len()];
    if lines
        .iter()
        .any(|line| line.code.starts_with("#![cfg(test)]"))
    {
        kept.fill(false);
        return kept;
    }
    for start in 0..lines.len() {
        if !kept[start] || lines[start].code.trim() != TEST {
            continue;
        }
        let code: String = lines[start..]
            .iter()
            .map(|line| format!("{}\n", line.code))
            .collect();
        let end = words::item_end(code.as_bytes(), after_attributes(&code));
        let length = code[..end].bytes().filter(|byte| *byte == b'\n').count() + 1;
        kept[start..start + length].fill(false);
    }
    kept
}

/// The place where the item behind some attributes begins.
fn after_attributes(code: &str) -> usize {
    let mut at = 0;
    loop {
        let rest = &code[at..];
        let blanks = rest.len() - rest.trim_start().len();
        if !rest[blanks..].starts_with("#[") {
            return at + blanks;
        }
        at = words::after_closing(code.as_bytes(), at + blanks + 1);
    }
}

/// The files below `crates/*/src` of a tree that are compiled into the product, in the order of their paths.
pub(crate) fn of_product(root: &Path) -> Result<Vec<RustFile>, String> {
    let mut files = Vec::new();
    for path in below(&root.join("crates"))? {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        let name = name.replace('\\', "/");
        let is_source = name.split('/').nth(2) == Some("src") && name.ends_with(".rs");
        if is_source {
            let text = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
            files.push(RustFile::new(&name, &text));
        }
    }
    let tests = test_modules(files.iter());
    files.retain(|file| !tests.iter().any(|test| test.contains(&file.path)));
    Ok(files)
}

/// A module that is compiled for tests only, and what lies below it.
#[derive(Debug)]
pub(crate) struct TestModule {
    /// Without `.rs`.
    path: String,
}

impl TestModule {
    pub(crate) fn contains(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.path);
        rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }
}

/// The modules of some files that are compiled for tests only.
pub(crate) fn test_modules<'a>(files: impl Iterator<Item = &'a RustFile>) -> Vec<TestModule> {
    let declared = files.flat_map(|file| {
        let folder = child_folder(&file.path);
        let modules = file.declared_modules().into_iter();
        modules
            .filter(|(_, is_test)| *is_test)
            .map(move |(name, _)| TestModule {
                path: format!("{folder}/{name}"),
            })
    });
    declared.collect()
}

/// The folder in which the modules of a file lie.
pub(crate) fn child_folder(path: &str) -> &str {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if ["mod.rs", "lib.rs", "main.rs"].contains(&name) {
        folder
    } else {
        path.strip_suffix(".rs").unwrap_or(path)
    }
}

fn below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries =
            fs::read_dir(&next).map_err(|error| format!("{}: {error}", next.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compiled_for_tests_only_is_left_out() {
        let text = "fn a() {}\n#[cfg(test)]\n#[derive(Debug)]\nstruct B {\n    c: u8,\n}\nfn d() {}\n#[cfg(test)]\nmod tests {\n    fn e() {}\n}\n";
        let file = RustFile::new("crates/x/src/a.rs", text);
        let numbers: Vec<usize> = file.production().map(|(number, _)| number).collect();
        assert_eq!(numbers, [1, 7]);
        assert_eq!(
            file.code.split_whitespace().collect::<Vec<_>>(),
            ["fn", "a()", "{}", "fn", "d()", "{}"]
        );
    }

    #[test]
    fn a_file_knows_its_module() {
        let module = |path| RustFile::new(path, "").module().join("::");
        assert_eq!(module("crates/x/src/lib.rs"), "");
        assert_eq!(module("crates/x/src/a/mod.rs"), "a");
        assert_eq!(module("crates/x/src/a/b.rs"), "a::b");
    }

    #[test]
    fn modules_are_declared_for_all_or_for_tests() {
        let file = RustFile::new(
            "crates/x/src/a.rs",
            "pub(crate) mod b;\n#[cfg(test)]\nmod c;\nmod d { }\n",
        );
        assert_eq!(file.declared_modules(), [("b", false), ("c", true)]);
    }
}
