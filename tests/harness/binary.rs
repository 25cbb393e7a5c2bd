//! Which binary the tests drive: Weir as built, `WEIR_BIN`, or the oracle.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The path of the server under test. Builds Weir when nothing else was asked for.
pub(crate) fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let named = oracle().or_else(|| std::env::var_os("WEIR_BIN").map(PathBuf::from));
        let path = named.unwrap_or_else(build);
        assert!(
            path.is_file(),
            "there is no server binary at {}",
            path.display()
        );
        path
    })
}

/// The path of the server under test, for a test that starts it in a way of its own.
pub fn server_path() -> &'static Path {
    path()
}

/// True when the tests drive nginx instead of Weir.
pub fn is_oracle() -> bool {
    oracle().is_some()
}

/// The name under which the server under test speaks in its messages: `weir` or `nginx`.
pub fn program() -> &'static str {
    if is_oracle() { "nginx" } else { "weir" }
}

/// True, with a line of explanation, when nginx is under test and `reason` says why this test
/// holds for Weir alone. The caller returns early then.
#[must_use]
pub fn skip_on_oracle(reason: &str) -> bool {
    if is_oracle() {
        println!("skipped on nginx: {reason}");
    }
    is_oracle()
}

fn oracle() -> Option<PathBuf> {
    let value = std::env::var_os("ORACLE")?;
    (!value.is_empty()).then(|| PathBuf::from(value))
}

/// Builds `weir` with the profile and into the target folder of this very test binary. Cargo
/// builds a package's binaries for its own integration tests only, and these live in another
/// package; an up-to-date build costs a few tenths of a second.
fn build() -> PathBuf {
    // This program is TARGET/PROFILE/deps/server-HASH.
    let program = std::env::current_exe().expect("the test binary has a path");
    let profile = program
        .ancestors()
        .nth(2)
        .expect("a test binary lies in PROFILE/deps");
    let target = profile.parent().expect("PROFILE lies in the target folder");

    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "build",
            "--quiet",
            "--package",
            "weir",
            "--bin",
            "weir",
            "--target-dir",
        ])
        .arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo
        .status()
        .expect("cargo runs, since it started this test");
    assert!(status.success(), "the weir binary does not build");
    profile.join("weir")
}
