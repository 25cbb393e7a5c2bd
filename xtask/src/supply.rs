//! `cargo xtask supply`: what we depend on: licences, sources, and the list of it for those who run the binary.
//!
//! The rules are those of `deny.toml`, for `cargo deny`, which is run when it is there. Building it takes longer than all of our
//! own tests, so that the two rules that need no network are checked here as well: every licence is one of the list, and
//! every crate comes from the one registry, with its checksum. Advisories are asked for only by `--advisories`, which fetches
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, shell};

const LIMIT: Duration = Duration::from_secs(600);

/// A dependency, as the lock file and its manifest describe it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockedCrate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The SHA-256 of its archive; `None`: it is ours.
    checksum: Option<String>,
    licence: String,
}

/// `cargo xtask supply [--advisories]`.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let advisories = flags.has("--advisories");
    flags.finish()?;
    let allowed = allowed_licences(&read("deny.toml")?);
    let all = crates(&["--workspace", "--edges", "normal,build,dev"])?;
    let problems: Vec<String> = all
        .iter()
        .filter_map(|one| problem_of(one, &allowed))
        .chain(foreign_sources(&read("Cargo.lock")?))
        .collect();
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    println!(
        "{} crates: licences and sources are those of deny.toml",
        all.len()
    );
    if !shell::is_installed("cargo-deny") {
        return match advisories {
            true => {
                Err("advisories need cargo-deny (cargo install --locked cargo-deny)".to_owned())
            }
            false => Ok(()),
        };
    }
    let mut deny = shell::cargo();
    deny.args(["deny", "check", "licenses", "bans", "sources"]);
    if advisories {
        deny.arg("advisories");
    }
    shell::run(&mut deny, LIMIT)
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

/// The words of the list `allow`.
fn allowed_licences(rules: &str) -> BTreeSet<String> {
    let list = rules.split_once("\nallow = [").map_or("", |(_, rest)| rest);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    let words = list.split('"').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

fn problem_of(one: &LockedCrate, allowed: &BTreeSet<String>) -> Option<String> {
    let (name, version, licence) = (&one.name, &one.version, &one.licence);
    if !is_allowed(licence, allowed) {
        return Some(format!(
            "{name} {version}: its licence {licence:?} is not in deny.toml"
        ));
    }
    None
}

/// Whether a licence expression can be met with the allowed licences.
///
/// ```text
/// either = both (("OR" | "/") both)*        both = one ("AND" one)*
/// one    = "(" either ")" | licence ["WITH" exception]
/// ```
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let verdict = either(&mut rest, allowed);
    rest.is_empty() && verdict == Some(true)
}

/// `None`: it is not an expression.
fn either(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut verdict = both(words, allowed)?;
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        // Read in any case, for what is behind it.
        verdict |= both(words, allowed)?;
    }
    Some(verdict)
}

fn both(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut verdict = one(words, allowed)?;
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        verdict &= one(words, allowed)?;
    }
    Some(verdict)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    if *first == "(" {
        let verdict = either(words, allowed)?;
        let (close, rest) = words.split_first()?;
        *words = rest;
        return (*close == ")").then_some(verdict);
    }
    if let [with, exception, rest @ ..] = *words
        && *with == "WITH"
    {
        *words = rest;
        return Some(allowed.contains(&format!("{first} WITH {exception}")));
    }
    Some(allowed.contains(*first))
}

/// Crates that come from git, from a second registry, or without a checksum.
fn foreign_sources(lock: &str) -> Vec<String> {
    let mut registries = BTreeSet::new();
    let mut problems = Vec::new();
    for entry in lock.split("[[package]]").skip(1) {
        let name = value(entry, "name").unwrap_or("a crate");
        match value(entry, "source") {
            None => {}
            Some(source) if source.starts_with("registry+") => {
                registries.insert(source);
                if value(entry, "checksum").is_none() {
                    problems.push(format!("{name} has no checksum in Cargo.lock"));
                }
            }
            Some(_) => problems.push(format!("{name} does not come from a registry")),
        }
    }
    if registries.len() > 1 {
        problems.push("Cargo.lock names two registries".to_owned());
    }
    problems
}

fn value<'a>(entry: &'a str, name: &str) -> Option<&'a str> {
    let line = entry.lines().find_map(|line| line.strip_prefix(name))?;
    line.strip_prefix(" = \"")?.strip_suffix('"')
}

/// The dependencies that cargo selects by these arguments.
fn crates(selection: &[&str]) -> Result<BTreeSet<LockedCrate>, String> {
    let mut tree = shell::cargo();
    tree.args([
        "tree",
        "--locked",
        "--prefix",
        "none",
        "--no-dedupe",
        "--format",
        "{p}|{l}",
    ]);
    let text = shell::output(tree.args(selection), LIMIT)?;
    let lock = read("Cargo.lock")?;
    let checksums: BTreeMap<(&str, &str), &str> = lock
        .split("[[package]]")
        .filter_map(|entry| {
            let key = (value(entry, "name")?, value(entry, "version")?);
            Some((key, value(entry, "checksum")?))
        })
        .collect();
    let locked = text.lines().filter_map(|line| {
        let (package, licence) = line.split_once('|')?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.trim_start_matches('v'));
        Some(LockedCrate {
            name: name.to_owned(),
            version: version.to_owned(),
            checksum: checksums.get(&(name, version)).map(|sum| (*sum).to_owned()),
            licence: licence.to_owned(),
        })
    });
    Ok(locked.collect())
}

/// Writes the list of what is in the binary, in CycloneDX 1.5.
pub(crate) fn write_bill(path: &Path, date: &str) -> Outcome {
    let inside = crates(&["--package", "weir", "--edges", "normal,build"])?;
    let version = env!("CARGO_PKG_VERSION");
    let components: Vec<String> = inside
        .iter()
        .filter(|one| one.checksum.is_some())
        .map(component)
        .collect();
    let references: Vec<String> = inside
        .iter()
        .filter(|one| one.checksum.is_some())
        .map(|one| format!("\"{}\"", package_url(one)))
        .collect();
    let text = format!(
        "{{\n\"bomFormat\": \"CycloneDX\",\n\"specVersion\": \"1.5\",\n\"version\": 1,\n\"metadata\": {{\n\
         \"timestamp\": \"{date}\",\n\"component\": {{\"type\": \"application\", \"bom-ref\": \"weir\", \"name\": \"weir\", \
         \"version\": \"{version}\", \"licenses\": [{{\"expression\": \"{licence}\"}}]}}\n}},\n\"components\": [\n{}\n],\n\
         \"dependencies\": [{{\"ref\": \"weir\", \"dependsOn\": [{}]}}]\n}}\n",
        components.join(",\n"),
        references.join(", "),
        licence = env!("CARGO_PKG_LICENSE"),
    );
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn package_url(one: &LockedCrate) -> String {
    format!("pkg:cargo/{}@{}", one.name, one.version)
}

fn component(one: &LockedCrate) -> String {
    // The old way to write OR is no expression.
    let licence = one.licence.replace('/', " OR ");
    format!(
        "{{\"type\": \"library\", \"bom-ref\": \"{url}\", \"name\": \"{}\", \"version\": \"{}\", \"purl\": \"{url}\", \
         \"licenses\": [{{\"expression\": \"{licence}\"}}], \"hashes\": [{{\"alg\": \"SHA-256\", \"content\": \"{}\"}}]}}",
        one.name,
        one.version,
        one.checksum.as_deref().unwrap_or_default(),
        url = package_url(one),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_judged() {
        let allowed = ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
        let allowed = allowed.map(str::to_owned).into_iter().collect();
        for (expression, verdict) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND (GPL-3.0 OR ISC)", true),
            ("(MIT OR GPL-3.0) AND GPL-2.0", false),
            ("GPL-2.0 AND MIT OR ISC", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            ("Apache-2.0 WITH Other-exception", false),
            ("(MIT", false),
            ("MIT ISC", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), verdict, "{expression}");
        }
    }

    #[test]
    fn sources_are_one_registry() {
        let entry = |more: &str| format!("[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n{more}");
        let registry = "source = \"registry+x\"\n";
        assert!(foreign_sources(&entry("")).is_empty());
        assert!(foreign_sources(&entry(&format!("{registry}checksum = \"0\"\n"))).is_empty());
        assert_eq!(foreign_sources(&entry(registry)).len(), 1);
        assert_eq!(foreign_sources(&entry("source = \"git+x\"\n")).len(), 1);
        let two = entry(&format!("{registry}checksum = \"0\"\n"));
        let two = format!("{two}\n{}", two.replace("registry+x", "registry+y"));
        assert_eq!(foreign_sources(&two).len(), 1);
    }
}
