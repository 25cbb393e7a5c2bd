//! Rules about crates: who may import whom, where `unsafe` may be.

use std::fs;

use super::Finding;
use super::source::Source;

/// The crates from the bottom up, each with the project's crates that it may import. What is
/// absent here is the architecture: `http` names no module, `cache` does not know HTTP.
const IMPORTS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("conf", &["base"]),
    ("proto", &["base"]),
    ("rt", &["base"]),
    ("host", &["base", "rt"]),
    ("net", &["base", "conf", "proto", "rt", "host"]),
    ("cache", &["base", "conf", "proto", "rt"]),
    (
        "http",
        &["base", "conf", "proto", "rt", "host", "net", "cache"],
    ),
    (
        "stream",
        &["base", "conf", "proto", "rt", "host", "net", "cache"],
    ),
    (
        "modules",
        &[
            "base", "conf", "proto", "rt", "host", "net", "cache", "http", "stream",
        ],
    ),
    (
        "lua",
        &[
            "base", "conf", "proto", "rt", "host", "net", "cache", "http", "stream",
        ],
    ),
    (
        "weir",
        &[
            "base", "conf", "proto", "rt", "host", "net", "cache", "http", "stream", "modules",
            "lua",
        ],
    ),
];

/// The crates that may use `unsafe`.
const UNSAFE: &[&str] = &["rt", "lua"];

pub(super) fn imports_point_down(_: &[Source], findings: &mut Vec<Finding>) {
    for name in crate_names() {
        let path = format!("crates/{name}/Cargo.toml");
        let manifest = fs::read_to_string(&path).unwrap_or_default();
        let Some((_, allowed)) = IMPORTS.iter().find(|(known, _)| *known == name) else {
            findings.push(Finding::new(path, "say in xtask/src/tidy/crates.rs what this new crate may import, and which import it forbids"));
            continue;
        };
        for dependency in dependencies(&manifest) {
            let ours = IMPORTS.iter().any(|(known, _)| *known == dependency);
            if ours && !allowed.contains(&dependency.as_str()) {
                findings.push(Finding::new(
                    &path,
                    format!(
                        "`{name}` must not import `{dependency}`: move what both need below both"
                    ),
                ));
            }
        }
    }
}

pub(super) fn unsafe_is_forbidden_but_where_allowed(
    sources: &[Source],
    findings: &mut Vec<Finding>,
) {
    for source in sources {
        let root = source.path.ends_with("/src/lib.rs")
            || source.path.ends_with("/src/main.rs")
            || source.path == "tests/harness/lib.rs";
        let name = source.path.split('/').nth(1).unwrap_or_default();
        if root && !UNSAFE.contains(&name) && !source.text.contains("#![forbid(unsafe_code)]") {
            findings.push(Finding::new(
                &source.path,
                "add #![forbid(unsafe_code)]: unsafe code belongs into rt",
            ));
        }
    }
}

fn crate_names() -> Vec<String> {
    let entries = fs::read_dir("crates").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The names in all dependency tables of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    [
        "[dependencies]",
        "[dev-dependencies]",
        "[build-dependencies]",
    ]
    .iter()
    .flat_map(|title| section(manifest, title))
    .collect()
}

/// The keys of one table of a TOML file, written one a line as all our manifests are.
pub(super) fn section(manifest: &str, title: &str) -> Vec<String> {
    let lines = manifest
        .lines()
        .skip_while(|line| line.trim() != title)
        .skip(1);
    let body = lines.take_while(|line| !line.starts_with('['));
    let keys = body.filter(|line| line.contains('=') && !line.starts_with(['#', ' ']));
    keys.filter_map(|line| line.split(['.', '=', ' ']).next())
        .map(str::to_owned)
        .collect()
}
