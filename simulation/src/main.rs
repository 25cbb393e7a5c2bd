//! The server on a simulated clock and network, and its store after every crash.
//!
//! ```text
//! weir-simulation store [--seed N] [--count K] [--seconds S] [--exhaustive] [--trace]   crashes of histories of the store
//! weir-simulation run --seed N [--cut LIST] [--trace]                    one run of the server
//! weir-simulation run --seed N --shorten [--seconds S]                   what can be cut of a run that breaks an invariant
//! weir-simulation runs [--seed N] [--count K] [--seconds S]              runs of following seeds, each twice at times
//! ```
//!
//! `cargo xtask simulate` builds and runs this (docs/design/2026-11-27-simulation.md). What happens follows from a seed, and
//! the seed is printed.

#![forbid(unsafe_code)]

mod chance;
mod cuts;
mod runs;
mod server;
mod store;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

/// What the command line asks for.
#[derive(Clone)]
pub(crate) struct SimulationFlags {
    seed: u64,
    count: u64,
    time: Duration,
    trace: bool,
    exhaustive: bool,
    shorten: bool,
    cuts: cuts::RunCuts,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let text = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)
    };
    let value = |name: &str| text(name)?.parse::<u64>().ok();
    let flags = SimulationFlags {
        seed: value("--seed").unwrap_or(1),
        count: value("--count").unwrap_or(1_000),
        time: Duration::from_secs(value("--seconds").unwrap_or(30)),
        trace: words.iter().any(|word| word == "--trace"),
        exhaustive: words.iter().any(|word| word == "--exhaustive"),
        shorten: words.iter().any(|word| word == "--shorten"),
        cuts: text("--cut").map_or_else(Default::default, |text| cuts::RunCuts::parse(text)),
    };
    let holds = match words.first().map(String::as_str) {
        Some("store") => store::report_histories(&flags),
        Some("run") if flags.shorten => runs::report_shortened(&flags),
        Some("run") => runs::report_run(&flags),
        Some("runs") => runs::report_runs(&flags),
        _ => {
            println!("store, run or runs: see the head of simulation/src/main.rs");
            false
        }
    };
    match holds {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
