//! Rules about files and what they import: directive modules stay apart, and every file is compiled.

use std::collections::BTreeSet;

use crate::rust::file::{RustFile, child_folder};
use crate::rust::imports::Imports;

use super::Finding;
use super::source::{Source, files, product};

/// The crate of the directive modules, and its folders with a module for each file or folder in them.
const CRATE: &str = "modules";
const FOLDERS: &[&str] = &["http", "stream"];

/// Files that import another module, each with the reason.
const EXCEPT: &[(&str, &str)] = &[(
    "crates/modules/src/http/autoindex.rs",
    "a listing is written in the charset that `charset` is going to announce",
)];

/// A directive module knows the engine and no other module: what two share lies in `shared`, which knows no module.
pub(super) fn do_not_import_each_other(sources: &[Source], findings: &mut Vec<Finding>) {
    let files: Vec<&RustFile> = product(sources)
        .into_iter()
        .filter(|file| file.crate_name() == CRATE)
        .collect();
    let imports = Imports::of(&files);
    for (i, needs) in imports.needs.iter().enumerate() {
        let path = &imports.files[i];
        // The lists of modules name them all.
        if is_list(path) || EXCEPT.iter().any(|(known, _)| known == path) {
            continue;
        }
        for need in needs {
            let other = &imports.files[*need];
            if let Some(module) = owner(other).filter(|module| owner(path).as_ref() != Some(module))
            {
                let remedy = format!(
                    "do not import the module `{module}` ({other}): move what both need to crates/{CRATE}/src/shared, or into the engine"
                );
                findings.push(Finding::new(path, remedy));
            }
        }
    }
}

fn is_list(path: &str) -> bool {
    let inside = path.split_once("/src/").map_or("", |(_, inside)| inside);
    inside == "lib.rs"
        || FOLDERS
            .iter()
            .any(|folder| inside == format!("{folder}/mod.rs"))
}

/// The module that a file belongs to, as in `http/limit_req`; none for what is shared.
fn owner(path: &str) -> Option<String> {
    let inside = path.split_once("/src/")?.1;
    let mut parts = inside.strip_suffix(".rs")?.split('/');
    let folder = parts.next().filter(|folder| FOLDERS.contains(folder))?;
    let module = parts.next().filter(|module| *module != "mod")?;
    Some(format!("{folder}/{module}"))
}

/// A file that no `mod` names is not compiled, and its tests pass by not running.
pub(super) fn are_all_compiled(sources: &[Source], findings: &mut Vec<Finding>) {
    let manifests = files().unwrap_or_default();
    let manifests = manifests.iter().filter(|path| path.ends_with("Cargo.toml"));
    let named: BTreeSet<String> = manifests.flat_map(|path| named_in(path)).collect();
    find_dead(sources, &named, findings);
}

/// The files that a manifest gives to Cargo by their paths.
fn named_in(manifest: &str) -> Vec<String> {
    let folder = manifest.strip_suffix("Cargo.toml").unwrap_or_default();
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let paths = text
        .lines()
        .filter_map(|line| line.strip_prefix("path = \""));
    paths
        .map(|rest| format!("{folder}{}", rest.trim_end_matches('"')))
        .collect()
}

fn find_dead(sources: &[Source], named: &BTreeSet<String>, findings: &mut Vec<Finding>) {
    let compiled: BTreeSet<String> = sources
        .iter()
        .flat_map(|source| children(&source.rust))
        .collect();
    for source in sources {
        let path = &source.path;
        if compiled.contains(path) || named.contains(path) || is_root(path) {
            continue;
        }
        findings.push(Finding::new(path, "no `mod` names this file, so that it is not compiled: add the line, or remove the file"));
    }
}

/// Where the modules lie that a file declares, each in both its places.
fn children(file: &RustFile) -> Vec<String> {
    let folder = child_folder(&file.path);
    // A test's or a tool's main file has its modules beside it, whatever its name.
    let beside = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let folders = if is_root(&file.path) {
        vec![folder, beside]
    } else {
        vec![folder]
    };
    let names = file.declared_modules().into_iter();
    names
        .flat_map(|(name, _)| {
            folders.iter().flat_map(move |folder| {
                [
                    format!("{folder}/{name}.rs"),
                    format!("{folder}/{name}/mod.rs"),
                ]
            })
        })
        .collect()
}

/// Files that Cargo finds by itself.
fn is_root(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else {
        return false;
    };
    let last = folder.rsplit('/').next().unwrap_or_default();
    name == "build.rs"
        || (last == "src" && ["lib.rs", "main.rs"].contains(&name))
        || folder.ends_with("src/bin")
        || (["tests", "examples", "benches"].contains(&last) && !folder.contains("/src/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        files
            .iter()
            .map(|(path, text)| Source::new(path, (*text).to_owned()))
            .collect()
    }

    #[test]
    fn modules_use_what_is_shared_and_not_each_other() {
        let sources = sources(&[
            (
                "crates/modules/src/http/mod.rs",
                "use self::a::MODULE;\nmod a;\nmod b;\n",
            ),
            (
                "crates/modules/src/http/a/mod.rs",
                "mod deep;\nuse crate::shared::common;\nuse self::deep::D;\n",
            ),
            (
                "crates/modules/src/http/a/deep.rs",
                "use super::super::b::Other;\n",
            ),
            (
                "crates/modules/src/http/b.rs",
                "use crate::shared::common;\n",
            ),
            (
                "crates/modules/src/shared/common.rs",
                "use crate::http::b::Other;\n",
            ),
        ]);
        let mut findings = Vec::new();
        do_not_import_each_other(&sources, &mut findings);
        let places: Vec<&str> = findings
            .iter()
            .map(|finding| finding.place.as_str())
            .collect();
        assert_eq!(
            places,
            [
                "crates/modules/src/http/a/deep.rs",
                "crates/modules/src/shared/common.rs"
            ]
        );
    }

    #[test]
    fn a_file_that_no_mod_names_is_dead() {
        let sources = sources(&[
            ("crates/x/src/lib.rs", "mod a;\n"),
            ("crates/x/src/a.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/x/src/a/tests.rs", ""),
            ("crates/x/src/dead.rs", ""),
            ("crates/x/tests/whole.rs", ""),
            ("tests/server/main.rs", "mod b;\n"),
            ("tests/server/b.rs", ""),
            ("tests/server/forgotten.rs", ""),
        ]);
        let mut findings = Vec::new();
        find_dead(
            &sources,
            &BTreeSet::from(["tests/server/main.rs".to_owned()]),
            &mut findings,
        );
        let places: Vec<&str> = findings
            .iter()
            .map(|finding| finding.place.as_str())
            .collect();
        assert_eq!(
            places,
            ["crates/x/src/dead.rs", "tests/server/forgotten.rs"]
        );
    }
}
