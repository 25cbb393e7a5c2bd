//! The project's own tasks: `cargo xtask TASK`. Each does all of its set-up and cleans up after
//! itself; none needs anything installed beyond Rust and a C compiler.
//!
//! What this is not: a build system. Cargo builds; a task only says in which order, and checks
//! what a compiler cannot.

#![forbid(unsafe_code)]

mod comparisons;
mod deb;
mod dist;
mod dist_trial;
mod docs;
mod figures;
mod image;
mod lua_suites;
mod planted;
mod release;
mod rust;
mod simulate;
mod site;
mod suites;
mod supply;
mod tidy;
mod whole_build;

use std::process::ExitCode;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

type Task = fn(&mut Flags) -> Outcome;

/// The tasks, in the order of the help text.
const TASKS: &[(&str, &str, Task)] = &[
    (
        "test",
        "unit tests, the integration tests on Weir, and the same tests on nginx",
        suites::test,
    ),
    (
        "ci",
        "everything that must pass: fmt, clippy, tidy, docs, test, some cases of differential",
        suites::ci,
    ),
    (
        "tidy",
        "the rules that the compiler does not check",
        tidy::run,
    ),
    (
        "figures",
        "the source in numbers: lengths, comments, names, circles (--types, --circles, --functions: lists; --tree DIR)",
        figures::run,
    ),
    (
        "docs",
        "writes docs/reference from the directive tables (--check: only compares)",
        docs::run,
    ),
    (
        "site",
        "the documentation as a site in target/site, with every link followed (--to DIR)",
        site::run,
    ),
    (
        "man",
        "the manual pages weir.8 and weir.conf.5 in target/man, from the tables (--to DIR)",
        docs::manual,
    ),
    (
        "differential",
        "compares Weir with nginx on generated configurations (--help lists the flags)",
        differential,
    ),
    (
        "simulate",
        "the server by seed on a simulated clock and network, and its store after every crash (--seed N --count K --seconds S \
         --only store|runs --exhaustive; --trace: one seed, with its events)",
        simulate::simulate,
    ),
    (
        "bench",
        "all experiments, compared with other servers, with a report; or one: bench NAME (--help lists them)",
        bench,
    ),
    (
        "suites",
        "applications and conformance suites through Weir and through nginx: suites [NAME…] (--help lists them)",
        applications,
    ),
    (
        "deb",
        "Debian packages in target/deb: weir-bin, weir, weir-nginx (--binary PATH: of this binary)",
        deb::run,
    ),
    (
        "dist",
        "the binary that is handed out, and its debug symbols (--target TRIPLE[.GLIBC]; --try: runs it; --verify: builds twice and compares)",
        dist::run,
    ),
    (
        "image",
        "container images in target/image, as an OCI layout (--slim: only the small one; --check: runs it; --binary PATH,…: one for each architecture; --base TAR)",
        image::run,
    ),
    (
        "supply",
        "licences and sources of all dependencies (--advisories: also known vulnerabilities, which are fetched)",
        supply::run,
    ),
    (
        "release",
        "all that is handed out, with sums, in target/release-out (--target TRIPLE[.GLIBC],…; --binary PATH,…; --key FILE: signs; --no-image)",
        release::run,
    ),
    (
        "lua-suites",
        "lua-nginx-module's own suites on nginx and on Weir: lua-suites --suites DIR [--oracle PATH]",
        lua_suites::run,
    ),
    (
        "strangers",
        "third-party configurations on nginx and on Weir: --repositories DIR [--oracle PATH] [--only TEXT]",
        strangers,
    ),
    (
        "planted-bugs",
        "three bugs put into a copy of the sources, and how soon the differential machine finds each (--seed N)",
        planted::run,
    ),
    (
        "comparisons",
        "all areas of differential beside two nginx, planted-bugs and strangers, with a summary (--help lists the flags)",
        comparisons::run,
    ),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some((_, _, task)) = TASKS.iter().find(|(task, _, _)| *task == name) else {
        eprintln!("usage: cargo xtask TASK [flags]\n");
        TASKS
            .iter()
            .for_each(|(name, what, _)| eprintln!("  {name:<11} {what}"));
        return ExitCode::from(2);
    };
    let outcome = shell::enter_project().and_then(|()| task(&mut Flags::new(arguments)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("\nxtask {name}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// What drives applications is a program of its own, which needs a built Weir and a lot of packages.
fn applications(flags: &mut Flags) -> Outcome {
    let limit = Duration::from_secs(3600);
    let rest = flags.take_rest();
    if !rest.iter().any(|word| word == "--help" || word == "--weir") {
        shell::run(
            shell::cargo().args(["build", "--quiet", "--package", "weir"]),
            limit,
        )?;
    }
    let mut command = shell::cargo();
    command.args(["run", "--quiet", "--package", "weir-suites", "--"]);
    shell::run(command.args(rest), limit)
}

/// The measuring program is one of its own, so that it also runs where there are no sources.
fn bench(flags: &mut Flags) -> Outcome {
    // Longer than all experiments together: each bounds its own time.
    let limit = Duration::from_secs(4 * 3600);
    let mut command = shell::cargo();
    command.args([
        "run",
        "--quiet",
        "--release",
        "--package",
        "weir-bench",
        "--",
    ]);
    shell::run(command.args(flags.take_rest()), limit)
}

/// The differential machine, on a fresh build of Weir. What it finds is its exit code.
fn differential(flags: &mut Flags) -> Outcome {
    packages::need(&[packages::NGINX, packages::NGINX_STREAM])?;
    // As long as the caller asks for; what hangs inside is bounded there.
    let limit = Duration::from_secs(24 * 3600);
    shell::run(
        shell::cargo().args(["build", "--quiet", "--package", "weir"]),
        limit,
    )?;
    let mut command = shell::cargo();
    command.args(["run", "--quiet", "--package", "weir-differential", "--"]);
    let weir = shell::target().join("debug/weir");
    command.arg("--weir").arg(weir);
    shell::run(command.args(flags.take_rest()), limit)
}

/// A program of its own too: it speaks TLS, and tasks must build in seconds.
fn strangers(flags: &mut Flags) -> Outcome {
    let limit = Duration::from_secs(30 * 60);
    shell::run(
        shell::cargo().args(["build", "--quiet", "--package", "weir"]),
        limit,
    )?;
    let mut command = shell::cargo();
    command.args(["run", "--quiet", "--package", "weir-strangers", "--"]);
    shell::run(command.args(flags.take_rest()), 16 * limit)
}
