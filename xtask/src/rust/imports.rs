//! Which file of a crate needs which other one: paths that begin with `crate::`, `super::` or `self::`, in `use` and
//! elsewhere. A name that a file only passes on (`pub use`) leads to the file that defines it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::file::RustFile;
use super::words;

/// The files of one crate, and for each the files that it needs.
pub(crate) struct Imports {
    /// Paths of files.
    pub(crate) files: Vec<String>,
    /// For each file the places, in `files`, of those it needs.
    pub(crate) needs: Vec<BTreeSet<usize>>,
}

/// More steps than names are ever passed on; only a circle of `pub use` is longer.
const MOST_STEPS: usize = 8;

impl Imports {
    /// Reads the files of one crate.
    pub(crate) fn of(files: &[&RustFile]) -> Self {
        let modules: HashMap<Vec<&str>, usize> = files
            .iter()
            .enumerate()
            .map(|(i, file)| (file.module(), i))
            .collect();
        let passed_on: Vec<_> = files.iter().map(|file| passed_on(file, &modules)).collect();
        let needs = files.iter().enumerate().map(|(i, file)| {
            let all = paths(&file.code, &file.module());
            let targets = all
                .iter()
                .filter_map(|path| target(path, &modules, &passed_on));
            targets.filter(|target| *target != i).collect()
        });
        Self {
            needs: needs.collect(),
            files: files.iter().map(|file| file.path.clone()).collect(),
        }
    }

    /// Groups of files that all need each other, the largest first.
    pub(crate) fn circles(&self) -> Vec<Vec<usize>> {
        let reached: Vec<BTreeSet<usize>> = (0..self.files.len())
            .map(|i| self.reached_from(i))
            .collect();
        let mut groups = BTreeSet::new();
        for (i, reach) in reached.iter().enumerate() {
            let group: Vec<usize> = reach
                .iter()
                .copied()
                .filter(|other| reached[*other].contains(&i))
                .collect();
            if group.len() > 1 {
                groups.insert(group);
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
        groups
    }

    fn reached_from(&self, start: usize) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(next) = open.pop() {
            for needed in &self.needs[next] {
                if seen.insert(*needed) {
                    open.push(*needed);
                }
            }
        }
        seen
    }
}

type PassedOn = BTreeMap<String, Vec<String>>;

/// The file in which a path ends.
fn target(
    path: &[String],
    modules: &HashMap<Vec<&str>, usize>,
    passed_on: &[PassedOn],
) -> Option<usize> {
    let mut path = path.to_vec();
    for _ in 0..MOST_STEPS {
        let (file, depth) = deepest(&path, modules)?;
        let Some(next) = path.get(depth).and_then(|name| passed_on[file].get(name)) else {
            return Some(file);
        };
        let rest = path.split_off(depth + 1);
        path = next.iter().cloned().chain(rest).collect();
    }
    None
}

/// The deepest module that a path names, and how many of its words that takes.
fn deepest(path: &[String], modules: &HashMap<Vec<&str>, usize>) -> Option<(usize, usize)> {
    (0..=path.len()).rev().find_map(|depth| {
        let start: Vec<&str> = path[..depth].iter().map(String::as_str).collect();
        modules.get(&start).map(|file| (*file, depth))
    })
}

/// The names that a file passes on, each with the path in the crate where it comes from.
fn passed_on(file: &RustFile, modules: &HashMap<Vec<&str>, usize>) -> PassedOn {
    let own = file.module();
    let mut found = BTreeMap::new();
    for at in words::places(&file.code, "use") {
        let line_start = file.code[..at].rfind('\n').map_or(0, |at| at + 1);
        if !file.code[line_start..at].trim_start().starts_with("pub") {
            continue;
        }
        for tree in trees(&file.code[at + 3..]) {
            let mut relative = tree.path;
            let first = relative.first().cloned().unwrap_or_default();
            // Without a leading word it names a child, or another crate.
            if !["crate", "super", "self"].contains(&first.as_str()) {
                let child: Vec<&str> = own.iter().copied().chain([first.as_str()]).collect();
                if !modules.contains_key(&child) {
                    continue;
                }
                relative.insert(0, "self".to_owned());
            }
            if let Some(path) = absolute(&relative, &own) {
                found.insert(tree.name, path);
            }
        }
    }
    found
}

/// All paths in code that begin in the crate, from its root.
fn paths(code: &str, own: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for at in words::places(code, start) {
            // The second `super` of a path was read with the first.
            if !code[..at].ends_with("::") {
                found.extend(
                    trees(&code[at..])
                        .into_iter()
                        .filter_map(|tree| absolute(&tree.path, own)),
                );
            }
        }
    }
    found
}

fn absolute(path: &[String], own: &[&str]) -> Option<Vec<String>> {
    let mut base: Vec<String> = own.iter().map(|&name| name.to_owned()).collect();
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop()?;
            }
            _ => break,
        }
        rest = behind;
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// One path of a `use`, and the name it gets there.
struct Tree {
    path: Vec<String>,
    name: String,
}

/// The paths of `a::{b, c::d as e}`.
fn trees(text: &str) -> Vec<Tree> {
    let mut path = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            return group_trees(&path, group);
        }
        let name = words::leading(rest);
        rest = &rest[name.len()..];
        if !name.is_empty() {
            path.push(name.to_owned());
        }
        match rest.strip_prefix("::") {
            Some(behind) if !name.is_empty() => rest = behind.trim_start(),
            _ => break,
        }
    }
    let alias = rest
        .trim_start()
        .strip_prefix("as ")
        .map(|rest| words::leading(rest.trim_start()));
    let name = alias.map(str::to_owned).or_else(|| path.last().cloned());
    let name = name.unwrap_or_default();
    // `a::{self}` is `a`.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    vec![Tree { path, name }]
}

fn group_trees(path: &[String], group: &str) -> Vec<Tree> {
    let mut depth = 0_usize;
    let mut start = 0;
    let mut found = Vec::new();
    for (at, byte) in group.bytes().enumerate() {
        let ends = depth == 0 && (byte == b',' || byte == b'}');
        if ends && !group[start..at].trim().is_empty() {
            for mut tree in trees(&group[start..at]) {
                tree.path.splice(0..0, path.iter().cloned());
                if tree.path.last().is_some_and(|last| last == "self") {
                    tree.path.pop();
                    tree.name = path.last().cloned().unwrap_or_default();
                }
                found.push(tree);
            }
        }
        match byte {
            b',' if depth == 0 => start = at + 1,
            b'{' => depth += 1,
            b'}' if depth == 0 => break,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<RustFile> = files
            .iter()
            .map(|(path, text)| RustFile::new(&format!("crates/x/src/{path}"), text))
            .collect();
        let imports = Imports::of(&files.iter().collect::<Vec<_>>());
        let name = |i: usize| imports.files[i].replace("crates/x/src/", "");
        let all = imports.needs.iter().enumerate();
        all.flat_map(|(i, needs)| {
            needs
                .iter()
                .map(move |need| format!("{} {}", name(i), name(*need)))
        })
        .collect()
    }

    #[test]
    fn paths_lead_to_the_file_that_defines_a_name() {
        let found = imports(&[
            (
                "lib.rs",
                "mod a;\nmod b;\npub use b::c::{Deep, Other as Alias};\n",
            ),
            (
                "a.rs",
                "use crate::{Deep, b::{self, d::E}};\nfn f() { super::b::c::g(); }\n",
            ),
            ("b/mod.rs", "mod c;\nmod d;\n"),
            ("b/c.rs", "use super::d;\n"),
            ("b/d.rs", "use super::super::Alias;\n"),
        ]);
        assert_eq!(
            found,
            [
                "a.rs b/mod.rs",
                "a.rs b/c.rs",
                "a.rs b/d.rs",
                "b/c.rs b/d.rs",
                "b/d.rs b/c.rs"
            ]
        );
    }

    #[test]
    fn files_that_need_each_other_are_a_circle() {
        let texts = [
            "use crate::b::B;",
            "use crate::c::C;",
            "use crate::a::A;",
            "use crate::a::A;",
        ];
        let files: Vec<RustFile> = texts
            .iter()
            .zip(["a", "b", "c", "d"])
            .map(|(text, name)| RustFile::new(&format!("crates/x/src/{name}.rs"), text))
            .collect();
        let imports = Imports::of(&files.iter().collect::<Vec<_>>());
        assert_eq!(imports.circles(), [vec![0, 1, 2]]);
    }
}
