//! `test` and `ci`: which suites run, in which order, and for how long at most.

use std::time::Duration;

use xtask::flags::Flags;
use xtask::shell::{cargo, run};
use xtask::{Outcome, packages};

use crate::{docs, tidy};

const BUILD: Duration = Duration::from_secs(15 * 60);
const SUITE: Duration = Duration::from_secs(10 * 60);

/// Where Debian's package puts nginx; `--oracle PATH` takes another.
const ORACLE: &str = "/usr/sbin/nginx";

/// The unit tests of all crates, the integration tests on Weir, the same tests on nginx.
pub(crate) fn test(flags: &mut Flags) -> Outcome {
    let release = flags.has("--release");
    let oracle = flags.value("--oracle", ORACLE.to_owned())?;
    flags.finish()?;
    packages::need(&[
        packages::NGINX,
        packages::PHP_FPM,
        packages::UWSGI,
        packages::UWSGI_PYTHON,
        packages::MEMCACHED,
    ])?;

    let profile: &[&str] = if release { &["--release"] } else { &[] };
    println!("\n== unit tests");
    run(
        cargo()
            .args(["test", "--workspace", "--exclude", "weir-tests"])
            .args(profile),
        BUILD + SUITE,
    )?;
    println!("\n== integration tests on Weir");
    run(
        cargo()
            .args(["build", "--package", "weir", "--features", "debug-stall"])
            .args(profile),
        BUILD,
    )?;
    run(
        cargo()
            .args(["test", "--package", "weir-tests"])
            .args(profile)
            .env_remove("ORACLE"),
        SUITE,
    )?;
    println!("\n== the same tests on nginx, the oracle");
    run(
        cargo()
            .args(["test", "--package", "weir-tests"])
            .args(profile)
            .env("ORACLE", oracle),
        SUITE,
    )
}

/// Everything that must hold before a change lands.
pub(crate) fn ci(flags: &mut Flags) -> Outcome {
    flags.finish()?;
    println!("== format");
    run(cargo().args(["fmt", "--all", "--check"]), SUITE)?;
    println!("\n== tidy");
    tidy::run(&mut Flags::new(std::iter::empty()))?;
    println!("\n== clippy");
    run(
        cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ]),
        BUILD,
    )?;
    println!("\n== documentation drift");
    docs::run(&mut Flags::new(std::iter::once("--check".to_owned())))?;
    test(&mut Flags::new(std::iter::empty()))
}
