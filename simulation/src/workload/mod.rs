//! A run: a server, an origin and clients by a seed, and what is asked of them at the end.

mod client;
mod invariants;
mod ledger;
mod message;
mod origin;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rt::simulation::network::{self, NetworkWeather};
use rt::simulation::{self, Simulation, SimulationEnd, clock};

use crate::chance::SeededChance;
use crate::server::{SimulatedServer, start_loop};
use client::{ClientPlan, SimulatedClient};
use invariants::{FILE_SALT, PATIENCE_SECONDS, VALID_SECONDS};
use ledger::{WorkloadLedger, content};

/// When files were last changed, after the epoch.
const FILES_AGE: Duration = Duration::from_secs(1_700_000_000);

/// The most steps of a run: more means that something turns in circles.
const MOST_STEPS: u64 = 3_000_000;

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunReport {
    pub(crate) violations: Vec<String>,
    pub(crate) simulated: Duration,
    pub(crate) steps: u64,
    pub(crate) hash: u64,
    pub(crate) counts: BTreeMap<String, u64>,
    pub(crate) events: Vec<String>,
    pub(crate) log: String,
}

/// What is decided by the seed before anything runs.
#[derive(Clone, Copy, Debug)]
struct RunPlan {
    loops: usize,
    clients: usize,
    requests: usize,
    is_calm: bool,
    reloads: usize,
    /// The wall clock is set at times: then nothing is said of lifetimes.
    shifts_wall: bool,
    weather: NetworkWeather,
}

impl RunPlan {
    fn draw(chance: &mut SeededChance) -> RunPlan {
        let is_calm = chance.once_in(3);
        let weather = match is_calm {
            true => NetworkWeather::CALM,
            false => NetworkWeather {
                breaks: *chance.choose(&[0, 6, 12, 40]),
                refusals: *chance.choose(&[0, 10, 30]),
                is_slow: chance.once_in(2),
            },
        };
        RunPlan {
            loops: 1 + chance.below(3),
            clients: 1 + chance.below(12),
            requests: 4 + chance.below(30),
            is_calm,
            reloads: *chance.choose(&[0, 0, 1, 4]),
            shifts_wall: !is_calm && chance.once_in(6),
            weather,
        }
    }
}

/// Runs a seed. A process can do this once.
pub(crate) fn run_seed(seed: u64, keeps_events: bool) -> RunReport {
    // The name is the seed's: the path is a part of keys and of what is drawn.
    let prefix = std::env::temp_dir().join(format!("weir-simulated-{seed}"));
    let _of_a_run_that_was_ended = fs::remove_dir_all(&prefix);
    let report = run_in(&prefix, seed, keeps_events);
    // Left behind if it fails: it is in a temporary directory.
    let _ = fs::remove_dir_all(&prefix);
    report.unwrap_or_else(|text| RunReport {
        violations: vec![format!("the run could not be set up: {text}")],
        ..RunReport::default()
    })
}

fn run_in(prefix: &Path, seed: u64, keeps_events: bool) -> Result<RunReport, String> {
    let mut chance = SeededChance::new(seed);
    let plan = RunPlan::draw(&mut chance);
    let ledger = WorkloadLedger::draw(&mut chance, plan.clients, !plan.is_calm);
    write_files(prefix, &ledger).map_err(|error| format!("{}: {error}", prefix.display()))?;
    let mut simulation = Simulation::start(seed, keeps_events);
    simulation::note(|| format!("{plan:?} {:?}", ledger.resources));
    network::set_weather(plan.weather);
    let origins: Vec<SocketAddr> = [9001, 9002]
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .into();
    let own = Arc::clone(&ledger);
    let origin_seed = chance.number();
    let started = start_loop(&mut simulation, "origin", move || {
        ledger_origin(own, origins, origin_seed)
    });
    started.map_err(|error| error.to_string())?;
    let mut server = SimulatedServer::start(
        &mut simulation,
        plan.loops,
        prefix,
        &configuration(prefix, 0),
    )?;
    let server_address = SocketAddr::from(([127, 0, 0, 1], 8080));
    let client_plan = ClientPlan {
        server: server_address,
        requests: plan.requests,
        is_calm: plan.is_calm,
        is_slow: plan.weather.is_slow,
        are_hostile: !plan.is_calm,
    };
    let own = Arc::clone(&ledger);
    let seeds: Vec<u64> = (0..plan.clients).map(|_| chance.number()).collect();
    let started = start_loop(&mut simulation, "clients", move || {
        run_clients(own, client_plan, seeds)
    });
    started.map_err(|error| error.to_string())?;
    disturb(&mut simulation, &mut server, &ledger, plan, &mut chance)?;
    let end = wait_for_clients(&mut simulation, &ledger);
    Ok(finish(simulation, &mut server, &ledger, plan, end))
}

/// Reloads, and sets the clock, at times that chance gives.
fn disturb(
    simulation: &mut Simulation,
    server: &mut SimulatedServer,
    ledger: &Arc<WorkloadLedger>,
    plan: RunPlan,
    chance: &mut SeededChance,
) -> Result<(), String> {
    for generation in 0..plan.reloads {
        let pause = Duration::from_millis(chance.below(20_000) as u64);
        simulation.run_until(pause, MOST_STEPS, || ledger.state().clients_left == 0);
        simulation::count_fault("reload");
        simulation::note(|| "reload".to_owned());
        server.apply(&configuration(server.prefix(), generation + 1))?;
        if plan.shifts_wall {
            simulation::count_fault("wall clock set");
            clock::shift_wall(chance.below(120_000) as i64 - 60_000);
        }
    }
    Ok(())
}

fn wait_for_clients(simulation: &mut Simulation, ledger: &Arc<WorkloadLedger>) -> SimulationEnd {
    simulation.run_until(
        Duration::from_secs(100 * PATIENCE_SECONDS),
        MOST_STEPS,
        || ledger.state().clients_left == 0,
    )
}

/// After the last client: what is left must go, and is counted.
fn finish(
    mut simulation: Simulation,
    server: &mut SimulatedServer,
    ledger: &Arc<WorkloadLedger>,
    plan: RunPlan,
    end: SimulationEnd,
) -> RunReport {
    if end != SimulationEnd::Done {
        let left = ledger.state().clients_left;
        ledger.violate(format!(
            "W6: {left} clients have not come to their end: {end:?}"
        ));
    }
    check_counters(&mut simulation, server, ledger);
    server.stop();
    ledger.state().stops_origin = true;
    let mut living = usize::MAX;
    simulation.run_until(Duration::from_secs(PATIENCE_SECONDS), MOST_STEPS, || {
        living = simulation::living_loops().len();
        living == 0 && network::wire_count() == 0
    });
    if living != 0 || network::wire_count() != 0 {
        let (loops, wires) = (simulation::living_loops(), network::wire_count());
        ledger.violate(format!(
            "W8: loops {loops:?} and {wires} connections are left"
        ));
    }
    let log = server.log_text();
    let faults = ["[alert]", "[emerg]", "panicked"];
    let is_ours = |line: &&str| faults.iter().any(|word| line.contains(word));
    if let Some(line) = log.lines().find(is_ours) {
        ledger.violate(format!("W9: {line}"));
    }
    if server.panics() > 0 {
        ledger.violate(format!("W9: {} panics", server.panics()));
    }
    let steps = simulation.steps();
    if living == 0 {
        simulation.join();
    }
    report(ledger, plan, steps, log)
}

/// Connections that clients have left open end by their timers, and the counters say so.
fn check_counters(
    simulation: &mut Simulation,
    server: &SimulatedServer,
    ledger: &Arc<WorkloadLedger>,
) {
    let patience = Duration::from_secs(2 * PATIENCE_SECONDS);
    let idle = simulation.run_until(patience, MOST_STEPS, || server.counters().active == 0);
    let counters = server.counters();
    simulation::note(|| format!("{counters:?}"));
    let open = counters.active + counters.reading + counters.writing + counters.waiting;
    if idle != SimulationEnd::Done || open != 0 {
        ledger.violate(format!("W7: after the last client {counters:?}"));
    }
    if counters.accepted != counters.handled {
        ledger.violate(format!(
            "W7: not all that was accepted was handled: {counters:?}"
        ));
    }
}

fn report(ledger: &Arc<WorkloadLedger>, plan: RunPlan, steps: u64, log: String) -> RunReport {
    let mut state = ledger.state();
    let doubled = std::mem::take(&mut state.doubled);
    let mut violations = std::mem::take(&mut state.violations);
    if plan.is_calm {
        violations.extend(doubled.into_iter().map(|text| format!("W5: {text}")));
    }
    if plan.shifts_wall {
        violations.retain(|text| !text.starts_with("W4"));
    }
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let said = state.counts.iter().map(|(name, count)| (*name, *count));
    for (name, count) in said.chain(simulation::faults()) {
        *counts.entry(name.to_owned()).or_default() += count;
    }
    RunReport {
        violations,
        simulated: Duration::from_nanos(clock::nanos()),
        steps,
        hash: simulation::events_hash(),
        counts,
        events: simulation::take_events(),
        log,
    }
}

async fn ledger_origin(ledger: Arc<WorkloadLedger>, addresses: Vec<SocketAddr>, seed: u64) {
    origin::run_origin(ledger, addresses, seed).await;
}

async fn run_clients(ledger: Arc<WorkloadLedger>, plan: ClientPlan, seeds: Vec<u64>) {
    for seed in seeds {
        let client = SimulatedClient {
            ledger: Arc::clone(&ledger),
            plan,
            chance: SeededChance::new(seed),
        };
        rt::spawn(client.run());
    }
    while ledger.state().clients_left > 0 {
        rt::sleep(Duration::from_millis(50)).await;
    }
}

fn write_files(prefix: &Path, ledger: &WorkloadLedger) -> std::io::Result<()> {
    fs::create_dir_all(prefix.join("files"))?;
    for (number, len) in ledger.files.iter().enumerate() {
        let path: PathBuf = prefix.join("files").join(format!("file{number}"));
        fs::write(&path, content(FILE_SALT + number as u64, 0, *len))?;
        // Their times are in the fields of responses.
        fs::File::options()
            .write(true)
            .open(&path)?
            .set_modified(UNIX_EPOCH + FILES_AGE)?;
    }
    Ok(())
}

/// The configuration of each run, as users write it.
fn configuration(prefix: &Path, generation: usize) -> String {
    let prefix = prefix.display();
    format!(
        "events {{}}
http {{
    access_log off;
    client_header_timeout 5s; client_body_timeout 5s; send_timeout 5s; keepalive_timeout 10s;
    proxy_connect_timeout 2s; proxy_read_timeout 5s; proxy_send_timeout 5s;
    proxy_http_version 1.1; proxy_set_header Connection \"\";
    proxy_cache_path {prefix}/cache levels=1:2 keys_zone=one:1m max_size=20m inactive=10m;
    upstream origin {{ server 127.0.0.1:9001; server 127.0.0.1:9002; keepalive 4; }}
    add_header X-Generation {generation} always;
    server {{
        listen 127.0.0.1:8080;
        root {prefix}/files;
        location = /return {{ return 200 'hello from the configuration'; }}
        location /p/ {{ proxy_pass http://origin; }}
        location /c/ {{
            proxy_pass http://origin; proxy_cache one; proxy_cache_lock on;
            proxy_cache_valid 200 {VALID_SECONDS}s; proxy_cache_revalidate on;
            add_header X-Cache $upstream_cache_status;
        }}
    }}
}}
"
    )
}
