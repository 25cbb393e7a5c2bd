//! Runs of many seeds, each in a process of its own, so that nothing of one is left for the next.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::SimulationFlags;
use crate::cuts::RunCuts;
use crate::workload::run_seed;

/// One seed in this number runs twice, and must have the same events.
const TWICE: u64 = 8;

/// Seeds that have found something, with the workload of their day: they are run first.
const FOUND: [u64; 6] = [
    7,
    765_000_013,
    765_000_015,
    765_100_007,
    765_200_011,
    765_200_013,
];

/// How long a run may take, on a machine that is busy. Most take a second.
const LONGEST: Duration = Duration::from_secs(180);

/// How long the first seed that fails may be shortened.
const SHORTENING: Duration = Duration::from_secs(60);

/// The faults and the rare paths that must have been seen when this number of seeds has run: one in four of them puts in all.
const ASSERTED_AFTER: u64 = 12;
const ASSERTED: [&str; 37] = [
    // Faults.
    "client leaves",
    "connection never arrives",
    "connection refused",
    "DNS answer is forged",
    "datagram lost",
    "datagram twice",
    "full disk",
    "half-close",
    "hostile client",
    "origin closes an idle connection",
    "origin closes instead of an answer",
    "origin is silent",
    "origin sends drops",
    "origin sends garbage",
    "receiver's buffer full",
    "reload",
    "reset",
    "silence",
    "slow disk",
    "slow reader",
    "slow wire",
    "upgrade",
    // What the server must have done.
    "204",
    "206",
    "EXPIRED",
    "HIT",
    "REVALIDATED",
    "STALE",
    "UPDATING",
    "DNS queries",
    "by name",
    "datagrams answered",
    "quic",
    "stream sessions",
    "tls",
    "datagrams sent",
    "origin sends a part",
];

/// Those that a few seeds may well not have, and the number that must have had them.
const RARE: [&str; 2] = ["DNS is silent", "origin breaks off"];
const RARE_ASSERTED_AFTER: u64 = 60;

/// Runs one seed in this process, and prints what came of it. True: everything held.
pub(crate) fn report_run(flags: &SimulationFlags) -> bool {
    let report = run_seed(flags.seed, &flags.cuts, flags.trace);
    for event in &report.events {
        println!("{event}");
    }
    if flags.trace {
        println!("error log:\n{}", report.log);
    }
    for violation in &report.violations {
        println!("violation {violation}");
    }
    for (name, count) in &report.counts {
        println!("count {count} {name}");
    }
    println!("millis {}", report.simulated.as_millis());
    println!("steps {}", report.steps);
    println!("hash {:016x}", report.hash);
    report.violations.is_empty()
}

/// What a process has printed.
#[derive(Default)]
struct PrintedRun {
    violations: Vec<String>,
    counts: BTreeMap<String, u64>,
    millis: u64,
    steps: u64,
    hash: String,
}

fn run_process(seed: u64, cuts: &RunCuts) -> PrintedRun {
    let program = std::env::current_exe().unwrap_or_default();
    let mut command = Command::new(program);
    command.args([
        "run",
        "--seed",
        &seed.to_string(),
        "--cut",
        &cuts.to_string(),
    ]);
    let output = output_in_time(&mut command);
    let mut printed = PrintedRun::default();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            printed.violations.push(format!("no run: {error}"));
            return printed;
        }
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "violation" => printed.violations.push(rest.to_owned()),
            "count" => {
                let (count, name) = rest.split_once(' ').unwrap_or(("0", rest));
                printed
                    .counts
                    .insert(name.to_owned(), count.parse().unwrap_or(0));
            }
            "millis" => printed.millis = rest.parse().unwrap_or(0),
            "steps" => printed.steps = rest.parse().unwrap_or(0),
            "hash" => printed.hash = rest.to_owned(),
            _ => {}
        }
    }
    if printed.hash.is_empty() {
        let text = String::from_utf8_lossy(&output.stderr);
        printed
            .violations
            .push(format!("the process ended with {}: {text}", output.status));
    }
    printed
}

/// What a process prints. One that hangs is ended: then a thread waits for what another one holds, which no schedule resolves.
fn output_in_time(command: &mut Command) -> std::io::Result<Output> {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let process = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Nobody waits for it when the time is over and the end was not told.
        let _ = sender.send(child.wait_with_output());
    });
    let output = receiver.recv_timeout(LONGEST);
    output.unwrap_or_else(|_| {
        // It may just have ended.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        let text = format!("W6: the process hangs for {} s", LONGEST.as_secs());
        Err(std::io::Error::other(text))
    })
}

/// The rule that a violation names, such as `W4`.
fn rule_of(violation: &str) -> &str {
    violation.split(':').next().unwrap_or_default()
}

/// Cuts a run that breaks an invariant, and prints what is left of it. True: it breaks none.
pub(crate) fn report_shortened(flags: &SimulationFlags) -> bool {
    let broken = run_process(flags.seed, &flags.cuts).violations;
    let Some(first) = broken.first() else {
        println!("seed {} breaks no invariant", flags.seed);
        return true;
    };
    let rule = rule_of(first).to_owned();
    let began = rt::clock::read_clock();
    let mut last = broken.clone();
    let mut tried = 0;
    let cuts = flags.cuts.clone().extend(
        |cuts| {
            tried += 1;
            let broken = run_process(flags.seed, cuts).violations;
            let is_same = broken.iter().any(|violation| rule_of(violation) == rule);
            if is_same {
                last = broken;
            }
            is_same
        },
        || rt::clock::elapsed(began) < flags.time,
    );
    println!("shortened in {tried} runs:");
    println!(
        "    weir-simulation run --seed {} --cut \"{cuts}\" --trace",
        flags.seed
    );
    for violation in last.iter().take(3) {
        println!("    {violation}");
    }
    false
}

/// What should have been seen when this number of seeds has run, and was not.
fn missing_after(done: u64, is_seen: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let asserted = ASSERTED.iter().filter(|_| done >= ASSERTED_AFTER);
    let rare = RARE.iter().filter(|_| done >= RARE_ASSERTED_AFTER);
    let all = asserted.chain(rare).copied();
    all.filter(|name| !is_seen(name)).collect()
}

/// Runs seeds from `seed` on until one breaks an invariant, or the time is over.
pub(crate) fn report_runs(flags: &SimulationFlags) -> bool {
    let began = rt::clock::read_clock();
    // How often, and in how many runs.
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut done, mut millis, mut steps) = (0, 0, 0);
    let mut failed = Vec::new();
    let fresh = flags.seed..flags.seed.saturating_add(flags.count);
    for seed in FOUND.into_iter().chain(fresh) {
        if rt::clock::elapsed(began) >= flags.time {
            break;
        }
        let mut printed = run_process(seed, &flags.cuts);
        if seed.is_multiple_of(TWICE) {
            let again = run_process(seed, &flags.cuts);
            if again.hash != printed.hash {
                let text = format!(
                    "two runs of the seed differ: {} and {}",
                    printed.hash, again.hash
                );
                printed.violations.push(text);
            }
        }
        done += 1;
        millis += printed.millis;
        steps += printed.steps;
        for (name, count) in printed.counts {
            let (all, in_runs) = counts.entry(name).or_default();
            *all += count;
            *in_runs += 1;
        }
        if !printed.violations.is_empty() {
            println!(
                "seed {seed} breaks an invariant (weir-simulation run --seed {seed} --trace):"
            );
            for violation in printed.violations.iter().take(5) {
                println!("    {violation}");
            }
            if failed.is_empty() {
                report_shortened(&SimulationFlags {
                    seed,
                    time: SHORTENING,
                    ..flags.clone()
                });
            }
            failed.push(seed);
            if failed.len() >= 5 {
                break;
            }
        }
    }
    let seconds = rt::clock::elapsed(began).as_secs_f64();
    println!(
        "server: {done} runs from seed {}, {:.1} h simulated in {seconds:.1} s ({:.0} simulated seconds a second), {steps} steps",
        flags.seed,
        millis as f64 / 3_600_000.0,
        millis as f64 / 1000.0 / seconds.max(0.001),
    );
    for (name, (count, in_runs)) in &counts {
        println!("    {count:>8} in {in_runs:>4} runs: {name}");
    }
    let missing = missing_after(done, |name| counts.contains_key(name));
    if !missing.is_empty() {
        println!("never seen: {}", missing.join(", "));
        return false;
    }
    failed.is_empty()
}
