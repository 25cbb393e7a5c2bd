//! Tells the program which compiler built it, and from which source, for `-V`.
//!
//! The date is that of the source and never that of the build, so that building the same source twice makes the same bytes.
//! In this order: what the one who builds says (`WEIR_COMMIT`, `SOURCE_DATE_EPOCH`), what git says, what `git archive` has
//! written into the file `packaging/source` of a tarball. A build for tests says nothing, for it would be linked again after
//! every commit.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Of a commit's hash: as many digits as are unique in any project.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(compiler).arg("--version"));
    let version = version.as_deref().unwrap_or("rustc");
    println!("cargo::rustc-env=WEIR_RUSTC={version}");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let source = is_release.then(source_text).unwrap_or_default();
    println!("cargo::rustc-env=WEIR_SOURCE={source}");
}

/// ` from commit 0123456789ab of 2026-11-23`, as far as it is known.
fn source_text() -> String {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
    let root = manifest.join("../..");
    let (commit, seconds) = from_git(&root).unwrap_or_else(|| from_archive(&root));
    let commit = variable("WEIR_COMMIT").or(commit);
    let seconds = variable("SOURCE_DATE_EPOCH").or(seconds);
    let mut text = String::new();
    if let Some(commit) = commit {
        text.push_str(" from commit ");
        text.extend(commit.chars().take(DIGITS));
    }
    if let Some(seconds) = seconds.and_then(|text| text.parse().ok()) {
        text.push_str(" of ");
        text.push_str(&date(seconds));
    }
    text
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// What is known of a source: its commit, and the second of it.
type Source = (Option<String>, Option<String>);

/// `None` if this is not the repository: a tarball may have been unpacked inside another repository.
fn from_git(root: &Path) -> Option<Source> {
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(root).args(arguments));
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // A line is appended to it by everything that changes the commit.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={}", root.join(log).display());
    let line = git(&["log", "-1", "--format=%H %ct"])?;
    Some(split(&line))
}

/// What `git archive` has put in the place of the two words in the file.
fn from_archive(root: &Path) -> Source {
    let file = root.join("packaging/source");
    println!("cargo::rerun-if-changed={}", file.display());
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| !line.starts_with('#'));
    split(line.filter(|line| !line.contains('$')).unwrap_or_default())
}

fn split(line: &str) -> Source {
    let mut words = line.split_ascii_whitespace().map(str::to_owned);
    (words.next(), words.next())
}

fn output(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned())
}

/// The day in UTC, in the calendar that counts years from March: the leap day is the last of its year.
fn date(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
