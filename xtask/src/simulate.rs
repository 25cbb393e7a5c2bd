//! `simulate`: the store after every crash, and the server on a simulated clock and network (the package `weir-simulation`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xtask::Outcome;
use xtask::flags::Flags;
use xtask::shell::{self, cargo, run};

const BUILD: Duration = Duration::from_secs(15 * 60);
/// What a run takes beyond its time: a history that breaks a promise is shortened, and the last seed ends.
const BEYOND: Duration = Duration::from_secs(120);

/// Builds the machine and runs it from a fresh seed, or from the one that is given.
pub(crate) fn simulate(flags: &mut Flags) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = now.map_or(1, |now| now.as_secs() % 1_000_000 * 1_000);
    let seed: u64 = flags.value("--seed", fresh)?;
    let count: u64 = flags.value("--count", 1_000_000)?;
    let seconds: u64 = flags.value("--seconds", 20)?;
    let only: String = flags.value("--only", String::new())?;
    let cuts: String = flags.value("--cut", String::new())?;
    let (trace, exhaustive) = (flags.has("--trace"), flags.has("--exhaustive"));
    let shorten = flags.has("--shorten");
    flags.finish()?;
    let build = [
        "build",
        "--quiet",
        "--package",
        "weir-simulation",
        "--features",
        "seam",
    ];
    run(cargo().args(build), BUILD)?;
    let tasks: &[&str] = match (only.as_str(), trace || shorten) {
        ("", true) => &["run"],
        ("", false) => &["store", "runs"],
        (one, _) => &[one],
    };
    let mut failed = Vec::new();
    for task in tasks {
        let mut command = std::process::Command::new(shell::target().join("debug/weir-simulation"));
        command.args([
            *task,
            "--seed",
            &seed.to_string(),
            "--count",
            &count.to_string(),
        ]);
        command.args(["--seconds", &seconds.to_string()]);
        command.args(trace.then_some("--trace"));
        command.args(exhaustive.then_some("--exhaustive"));
        command.args(shorten.then_some("--shorten"));
        command.args(["--cut", &cuts]);
        let limit = Duration::from_secs(seconds) + BEYOND;
        if let Err(error) = run(&mut command, limit) {
            failed.push(error);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ")),
    }
}
