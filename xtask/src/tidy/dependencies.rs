//! The page that says why each dependency is there, compared with all manifests, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::rust::words;

use super::Finding;
use super::crates::section;
use super::source::{Source, files};

const PAGE: &str = "docs/design/dependencies.md";

/// The tables of a manifest, and how the page marks what stands there.
const TABLES: &[(&str, &str)] = &[
    ("[dependencies]", ""),
    ("[dev-dependencies]", " (tests)"),
    ("[build-dependencies]", " (build)"),
];

/// Each dependency, with who has it.
type Uses = BTreeMap<String, BTreeSet<String>>;

pub(super) fn are_justified(sources: &[Source], findings: &mut Vec<Finding>) {
    let paths = files().unwrap_or_default();
    let manifests = paths.iter().filter(|path| path.ends_with("Cargo.toml"));
    let mut uses = Uses::new();
    for path in manifests {
        let text = fs::read_to_string(path).unwrap_or_default();
        add_uses(path, &text, &mut uses);
        find_unused(path, &text, sources, findings);
    }
    let workspace = fs::read_to_string("Cargo.toml").unwrap_or_default();
    for name in section(&without_ours(&workspace), "[workspace.dependencies]") {
        if !uses.contains_key(&name) {
            findings.push(Finding::new(
                "Cargo.toml",
                format!("no crate has `{name}`: remove it from [workspace.dependencies]"),
            ));
        }
    }
    // What has a path in the workspace is ours, and is named without one elsewhere.
    let all = section(&workspace, "[workspace.dependencies]");
    let foreign = section(&without_ours(&workspace), "[workspace.dependencies]");
    uses.retain(|name, _| !all.contains(name) || foreign.contains(name));
    compare(
        &uses,
        &fs::read_to_string(PAGE).unwrap_or_default(),
        findings,
    );
}

fn without_ours(manifest: &str) -> String {
    let foreign: Vec<&str> = manifest
        .lines()
        .filter(|line| !line.contains("path = "))
        .collect();
    foreign.join("\n")
}

fn add_uses(path: &str, manifest: &str, uses: &mut Uses) {
    let folder = path.trim_end_matches("/Cargo.toml");
    let user = folder.trim_start_matches("crates/");
    for (table, mark) in TABLES {
        for name in section(&without_ours(manifest), table) {
            uses.entry(name)
                .or_default()
                .insert(format!("{user}{mark}"));
        }
    }
}

/// Packages whose library has another name.
const LIBRARIES: &[(&str, &str)] = &[("md-5", "md5")];

/// What a crate has and no file of it names is compiled for nothing.
fn find_unused(path: &str, manifest: &str, sources: &[Source], findings: &mut Vec<Finding>) {
    let folder = path.trim_end_matches("Cargo.toml");
    // The fuzz targets borrow files of other crates, and with them what those need.
    if folder == "fuzz/" {
        return;
    }
    let sources: Vec<&Source> = sources
        .iter()
        .filter(|source| source.is_in(folder))
        .collect();
    for name in TABLES
        .iter()
        .flat_map(|(table, _)| section(manifest, table))
    {
        let renamed = LIBRARIES.iter().find(|(package, _)| *package == name);
        let library = renamed.map_or_else(
            || name.replace('-', "_"),
            |(_, library)| (*library).to_owned(),
        );
        let is_named = |source: &&Source| {
            source
                .rust
                .lines
                .iter()
                .any(|line| words::has(&line.code, &library))
        };
        if !sources.iter().any(is_named) {
            findings.push(Finding::new(
                path,
                format!("no file names `{library}`: remove `{name}`"),
            ));
        }
    }
}

/// The page has rows `` | `name` | who | why | ``.
fn compare(uses: &Uses, page: &str, findings: &mut Vec<Finding>) {
    let rows: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| {
            let (name, rest) = line.split_once('`')?;
            Some((name, rest.split('|').nth(1)?.trim()))
        })
        .collect();
    for (name, users) in uses {
        let users = users
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        match rows.get(name.as_str()) {
            None => findings.push(Finding::new(PAGE, format!("say here why `{name}` is there (used by {users}), or remove it"))),
            Some(said) if *said != users => findings.push(Finding::new(PAGE, format!("`{name}` is used by {users}, not by {said}: correct its line, and see whether its reason still holds"))),
            Some(_) => {}
        }
    }
    for name in rows.keys().filter(|name| !uses.contains_key(**name)) {
        findings.push(Finding::new(
            PAGE,
            format!("`{name}` is no dependency any more: remove its line"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str) -> Vec<String> {
        let mut uses = Uses::new();
        let net = "[dependencies]\nbase.workspace = true\nrustls.workspace = true\nours = { path = \"../ours\" }\n[dev-dependencies]\nrcgen.workspace = true\n";
        add_uses("crates/net/Cargo.toml", net, &mut uses);
        add_uses(
            "tests/Cargo.toml",
            "[dependencies]\nrcgen.workspace = true\n",
            &mut uses,
        );
        uses.remove("base");
        let mut findings = Vec::new();
        compare(&uses, page, &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_no_file_names_is_unused() {
        let manifest = "[dependencies]\nmd-5.workspace = true\nserde_json.workspace = true\n";
        let source = Source::new(
            "crates/x/src/a.rs",
            "use md5::Md5;\n// serde_json\n".to_owned(),
        );
        let mut findings = Vec::new();
        find_unused("crates/x/Cargo.toml", manifest, &[source], &mut findings);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].remedy.contains("serde_json"));
    }

    #[test]
    fn the_page_says_who_uses_what() {
        let right = "| `rcgen` | net (tests), tests | certificates |\n| `rustls` | net | TLS |\n";
        assert_eq!(findings(right), [""; 0]);
        assert_eq!(
            findings(&right.replace("net (tests), tests", "tests")).len(),
            1
        );
        assert_eq!(findings("| `rcgen` | net (tests), tests | x |\n").len(), 1);
        assert_eq!(findings(&format!("{right}| `gone` | net | x |\n")).len(), 1);
    }
}
