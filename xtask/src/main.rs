//! The project's own tasks: `cargo xtask TASK`. Each does all of its set-up and cleans up after
//! itself; none needs anything installed beyond Rust and a C compiler.
//!
//! What this is not: a build system. Cargo builds; a task only says in which order, and checks
//! what a compiler cannot.

#![forbid(unsafe_code)]

mod bench;
mod bench_disk;
mod bench_php;
mod bench_proxy;
mod cache_tests;
mod cgroup;
mod coalesce;
mod connections;
mod docs;
mod flags;
mod loop_device;
mod packages;
mod server;
mod shell;
mod strace;
mod suites;
mod tidy;
mod wrk;

use std::process::ExitCode;

use flags::Flags;

/// A task's result: what went wrong, in words for the person at the terminal.
type Outcome = Result<(), String>;

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
        "everything that must hold: fmt, clippy, tidy, docs, test",
        suites::ci,
    ),
    (
        "tidy",
        "the rules that a compiler does not check",
        tidy::run,
    ),
    (
        "docs",
        "writes docs/reference from the directive tables (--check: only compares)",
        docs::run,
    ),
    (
        "bench",
        "CPU time per request beside nginx, by wrk (--help for the flags)",
        bench::run,
    ),
    (
        "bench-disk",
        "hot clients under cold load on a throttled disk; needs root",
        bench_disk::run,
    ),
    (
        "bench-proxy",
        "CPU of a proxied request beside nginx and HAProxy, and the connections that an origin sees",
        bench_proxy::run,
    ),
    (
        "bench-php",
        "bursts of clients for a slow PHP page, beside nginx and Apache",
        bench_php::run,
    ),
    (
        "bench-connections",
        "connections over reloads, upgrades, crashes and stalls, and how they spread, beside nginx and HAProxy",
        connections::run,
    ),
    (
        "bench-coalesce",
        "many clients for one key that is not cached, beside nginx and Varnish",
        coalesce::run,
    ),
    (
        "bench-hits",
        "CPU time per hit of the cache beside nginx and Varnish, by wrk",
        coalesce::hits::run,
    ),
    (
        "cache-tests",
        "the public conformance suite of HTTP caches (--help for the flags); needs node",
        cache_tests::run,
    ),
    (
        "strace",
        "the file system calls of a loaded server, by thread",
        strace::run,
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
