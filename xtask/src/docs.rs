//! `docs`: `docs/compat.md` has a section that is written from the known differences of the differential machine, and
//! `docs/reference/` is written by the `weir` binary from its directive tables, the only
//! home of those facts. It is committed, so that it can be read without building; this task
//! writes it anew, and `--check` fails when the committed pages differ.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::Outcome;
use xtask::flags::Flags;
use xtask::shell::{self, cargo};

const REFERENCE: &str = "docs/reference";
/// For a build.
const LIMIT: Duration = Duration::from_secs(15 * 60);

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let check = flags.has("--check");
    flags.finish()?;
    for package in ["weir", "weir-differential"] {
        let mut build = cargo();
        build.args(["build", "--quiet", "--package", package]);
        shell::run(&mut build, LIMIT)?;
    }
    let programs = shell::target().join("debug");
    write(
        &programs.join("weir"),
        &programs.join("weir-differential"),
        check,
    )
}

/// Writes the pages, or compares them with those that are committed.
pub(crate) fn write(weir: &Path, differential: &Path, check: bool) -> Outcome {
    let fresh = shell::target().join("reference");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|error| error.to_string())?;
    }
    fs::create_dir_all(&fresh).map_err(|error| error.to_string())?;
    shell::run(Command::new(weir).arg("reference").arg(&fresh), LIMIT)?;
    let mut known = Command::new(differential);
    known.arg("--compat").args(check.then_some("--check"));
    shell::run(&mut known, LIMIT)?;

    let (written, committed) = (pages(&fresh)?, pages(Path::new(REFERENCE))?);
    if written.is_empty() {
        return Err("`weir reference DIR` wrote no page".to_owned());
    }
    let differing = differences(&written, &committed);
    if differing.is_empty() {
        println!("{REFERENCE}: {} pages, as the tables say", written.len());
        return Ok(());
    }
    if check {
        let list = differing.join("\n  ");
        return Err(format!(
            "{REFERENCE} is not what the tables say; run `cargo xtask docs` and commit:\n  {list}"
        ));
    }
    if Path::new(REFERENCE).exists() {
        fs::remove_dir_all(REFERENCE).map_err(|error| error.to_string())?;
    }
    for (name, text) in &written {
        let path = Path::new(REFERENCE).join(name);
        let folder = path.parent().expect("a page lies in the folder");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| error.to_string())?;
    }
    println!(
        "{REFERENCE}: {} pages written, {} changed",
        written.len(),
        differing.len()
    );
    Ok(())
}

/// The manual pages.
pub(crate) const MANUAL: [&str; 2] = ["weir.8", "weir.conf.5"];

/// Writes the manual pages, which the binary prints.
pub(crate) fn manual(flags: &mut Flags) -> Outcome {
    let to: PathBuf = flags.value("--to", shell::target().join("man"))?;
    flags.finish()?;
    fs::create_dir_all(&to).map_err(|error| error.to_string())?;
    for name in MANUAL {
        let mut print = cargo();
        print.args(["run", "--quiet", "--package", "weir", "--", "man", name]);
        let text = shell::output(&mut print, LIMIT)?;
        let path = to.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn differences(
    written: &BTreeMap<String, Vec<u8>>,
    committed: &BTreeMap<String, Vec<u8>>,
) -> Vec<String> {
    let names = written
        .keys()
        .chain(committed.keys().filter(|name| !written.contains_key(*name)));
    names
        .filter(|name| written.get(*name) != committed.get(*name))
        .cloned()
        .collect()
}

/// All files below a folder, by their path in it; none when it is not there.
fn pages(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path
                .strip_prefix(folder)
                .expect("it was found below the folder");
            let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            found.insert(name.to_string_lossy().into_owned(), text);
        }
    }
    Ok(found)
}
