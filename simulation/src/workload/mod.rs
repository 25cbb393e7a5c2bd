//! A run: a server, an origin and clients by a seed, and what is asked of them at the end.

mod client;
mod h2_stream;
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
use rt::simulation::{self, Simulation, SimulationEnd, clock, disk};

use crate::chance::SeededChance;
use crate::cuts::RunCuts;
use crate::server::{SimulatedServer, start_loop};
use crate::store::disk_states::CrashPoint;
use crate::store::write_image;
use client::{ClientPlan, SimulatedClient};
use invariants::{
    FILE_SALT, LIMIT_BURST, LIMIT_CONNECTIONS, LIMIT_RATE, PATIENCE_SECONDS, VALID_SECONDS,
    return_text,
};
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
    /// The process dies once, and whether what was not on the disk is lost.
    crash: Option<bool>,
    /// The disk is full for a while.
    fills_disk: bool,
    /// The cache has room for a few objects only.
    has_small_cache: bool,
    /// The wall clock is set at times: then nothing is said of lifetimes.
    shifts_wall: bool,
    weather: NetworkWeather,
}

/// In one seed of this number all faults are put in.
const STORMS: u64 = 4;

impl RunPlan {
    fn draw(seed: u64, chance: &mut SeededChance, cuts: &RunCuts) -> RunPlan {
        let is_storm = seed.is_multiple_of(STORMS);
        let is_calm = chance.once_in(3) && !is_storm;
        let drawn = NetworkWeather {
            breaks: *chance.choose(&[0, 6, 12, 40]),
            refusals: *chance.choose(&[0, 10, 30]),
            is_slow: chance.once_in(2),
        };
        let weather = match (is_calm, is_storm) {
            (true, _) => NetworkWeather::CALM,
            (false, true) => NetworkWeather {
                breaks: 8,
                refusals: 10,
                is_slow: true,
            },
            (false, false) => drawn,
        };
        let mut plan = RunPlan {
            loops: 1 + chance.below(3),
            clients: 1 + chance.below(12),
            requests: 4 + chance.below(30),
            is_calm,
            reloads: *chance.choose(&[0, 0, 1, 4]),
            crash: (chance.once_in(3) && !is_calm).then(|| chance.once_in(2)),
            fills_disk: chance.once_in(6) && !is_calm,
            has_small_cache: chance.once_in(3),
            shifts_wall: chance.once_in(6) && !is_calm && !is_storm,
            weather,
        };
        if is_storm {
            (plan.clients, plan.requests) = (10, 24);
            (plan.reloads, plan.fills_disk) = (plan.reloads.max(1), true);
            plan.crash = Some(chance.once_in(2));
        }
        plan.cut(cuts)
    }

    fn cut(mut self, cuts: &RunCuts) -> RunPlan {
        let weather = &mut self.weather;
        if cuts.has("breaks") {
            weather.breaks = 0;
        }
        if cuts.has("refusals") {
            weather.refusals = 0;
        }
        weather.is_slow &= !cuts.has("slow wires");
        self.shifts_wall &= !cuts.has("wall");
        self.fills_disk &= !cuts.has("full disk");
        if cuts.has("reloads") {
            self.reloads = 0;
        }
        if cuts.has("loops") {
            self.loops = 1;
        }
        self.crash = self.crash.filter(|_| !cuts.has("crash"));
        let most = cuts.number("requests").unwrap_or(usize::MAX);
        self.requests = self.requests.min(most);
        self
    }
}

/// Runs a seed. A process can do this once.
pub(crate) fn run_seed(seed: u64, cuts: &RunCuts, keeps_events: bool) -> RunReport {
    // The name is the seed's: the path is a part of keys and of what is drawn.
    let prefix = std::env::temp_dir().join(format!("weir-simulated-{seed}"));
    let _of_a_run_that_was_ended = fs::remove_dir_all(&prefix);
    let report = WorkloadRun::start(&prefix, seed, cuts, keeps_events).and_then(WorkloadRun::go_on);
    // Left behind if it fails: it is in a temporary directory.
    let _ = fs::remove_dir_all(&prefix);
    report.unwrap_or_else(|text| RunReport {
        violations: vec![format!("the run could not be set up: {text}")],
        ..RunReport::default()
    })
}

/// A run at work.
struct WorkloadRun {
    simulation: Simulation,
    server: SimulatedServer,
    ledger: Arc<WorkloadLedger>,
    plan: RunPlan,
    chance: SeededChance,
    /// How many configurations there were, and how many directories of the cache.
    generation: usize,
    directory: usize,
    /// The error logs and the panics of processes that have died.
    dead_log: String,
    dead_panics: u64,
}

impl WorkloadRun {
    fn start(
        prefix: &Path,
        seed: u64,
        cuts: &RunCuts,
        keeps_events: bool,
    ) -> Result<WorkloadRun, String> {
        let mut chance = SeededChance::new(seed);
        let plan = RunPlan::draw(seed, &mut chance, cuts);
        let is_moody = !plan.is_calm && !cuts.has("moods");
        let ledger = WorkloadLedger::draw(&mut chance, is_moody, seed.is_multiple_of(STORMS));
        let set_up = write_files(prefix, &ledger)
            .and_then(|()| fs::create_dir_all(prefix.join("cache0")))
            .and_then(|()| disk::start_recording(&prefix.join("cache0")));
        set_up.map_err(|error| format!("{}: {error}", prefix.display()))?;
        let schedule = cuts.number("schedule").unwrap_or(0) as u64;
        let mut simulation = Simulation::start(seed ^ (schedule << 48), keeps_events);
        simulation::note(|| format!("{plan:?} {:?}", ledger.resources));
        network::set_weather(plan.weather);
        let origins: Vec<SocketAddr> = [9001, 9002]
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .into();
        let own = Arc::clone(&ledger);
        let origin_seed = chance.number();
        let started = start_loop(&mut simulation, "origin", move || {
            origin::run_origin(own, origins, origin_seed)
        });
        started.map_err(|error| error.to_string())?;
        let text = configuration(prefix, plan.has_small_cache, 0, 0);
        let server = SimulatedServer::start(&mut simulation, plan.loops, prefix, &text)?;
        let client_plan = ClientPlan {
            server: SocketAddr::from(([127, 0, 0, 1], 8080)),
            requests: plan.requests,
            is_calm: plan.is_calm,
            is_slow: plan.weather.is_slow,
            are_hostile: !plan.is_calm,
        };
        let seeds: Vec<u64> = (0..plan.clients).map(|_| chance.number()).collect();
        let seeds = seeds.into_iter().enumerate();
        let seeds: Vec<u64> = seeds
            .filter(|(client, _)| !cuts.has_one("client", *client))
            .map(|(_, seed)| seed)
            .collect();
        ledger.state().clients_left = seeds.len();
        let (own, cuts) = (Arc::clone(&ledger), Arc::new(cuts.clone()));
        let started = start_loop(&mut simulation, "clients", move || {
            run_clients(own, client_plan, seeds, cuts)
        });
        started.map_err(|error| error.to_string())?;
        Ok(WorkloadRun {
            simulation,
            server,
            ledger,
            plan,
            chance,
            generation: 0,
            directory: 0,
            dead_log: String::new(),
            dead_panics: 0,
        })
    }

    fn go_on(mut self) -> Result<RunReport, String> {
        self = self.disturb()?;
        let end = wait_for_clients(&mut self.simulation, &self.ledger);
        Ok(self.finish(end))
    }

    /// Lets time pass, by chance.
    fn pause(&mut self) {
        let pause = Duration::from_millis(self.chance.below(20_000) as u64);
        let ledger = Arc::clone(&self.ledger);
        self.simulation
            .run_until(pause, MOST_STEPS, || ledger.state().clients_left == 0);
    }

    /// Reloads, dies, fills the disk and sets the clock, at times that chance gives.
    fn disturb(mut self) -> Result<WorkloadRun, String> {
        if self.plan.fills_disk {
            self.pause();
            simulation::count_fault("full disk");
            disk::limit_room(Some(self.chance.below(200_000)));
            self.pause();
            disk::limit_room(None);
        }
        if let Some(loses_power) = self.plan.crash {
            self.pause();
            self = self.crash(loses_power)?;
        }
        for _ in 0..self.plan.reloads {
            self.pause();
            simulation::count_fault("reload");
            simulation::note(|| "reload".to_owned());
            self.generation += 1;
            let small = self.plan.has_small_cache;
            let text = configuration(self.server.prefix(), small, self.generation, self.directory);
            self.server.apply(&text)?;
            if self.plan.shifts_wall {
                simulation::count_fault("wall clock set");
                clock::shift_wall(self.chance.below(120_000) as i64 - 60_000);
            }
        }
        Ok(self)
    }

    /// The process dies, and is started again on what the disk has.
    fn crash(self, loses_power: bool) -> Result<WorkloadRun, String> {
        let WorkloadRun {
            mut simulation,
            server,
            ledger,
            mut chance,
            generation,
            directory,
            ..
        } = self;
        simulation::count_fault(match loses_power {
            true => "loss of power",
            false => "death of the process",
        });
        ledger.note_crash();
        let (generation, directory) = (generation + 1, directory + 1);
        let prefix = server.prefix().to_owned();
        let text = configuration(&prefix, self.plan.has_small_cache, generation, directory);
        let recover = || {
            let changes = disk::take_recording();
            let state = CrashPoint::after(&changes).draw_state(loses_power, &mut chance);
            let path = prefix.join(format!("cache{directory}"));
            write_image(&path, &state.image)
                .and_then(|()| disk::start_recording(&path))
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        let (server, panics, log) = server.crash(&mut simulation, recover, &text)?;
        Ok(WorkloadRun {
            simulation,
            server,
            ledger,
            chance,
            generation,
            directory,
            plan: self.plan,
            dead_log: self.dead_log + &log,
            dead_panics: self.dead_panics + panics,
        })
    }

    /// After the last client: what is left must go, and is counted.
    fn finish(mut self, end: SimulationEnd) -> RunReport {
        let ledger = Arc::clone(&self.ledger);
        if end != SimulationEnd::Done {
            let left = ledger.state().clients_left;
            ledger.violate(format!(
                "W6: {left} clients have not come to their end: {end:?}"
            ));
        }
        check_counters(&mut self.simulation, &self.server, &ledger);
        self.server.stop();
        ledger.state().stops_origin = true;
        let mut living = usize::MAX;
        let patience = Duration::from_secs(PATIENCE_SECONDS);
        self.simulation.run_until(patience, MOST_STEPS, || {
            living = simulation::living_loops().len();
            living == 0 && network::wire_count() == 0
        });
        if living != 0 || network::wire_count() != 0 {
            let (loops, wires) = (simulation::living_loops(), network::wire_count());
            ledger.violate(format!(
                "W8: loops {loops:?} and {wires} connections are left"
            ));
        }
        let log = self.dead_log + &self.server.log_text();
        let faults = ["[alert]", "[emerg]", "panicked"];
        let is_ours = |line: &&str| faults.iter().any(|word| line.contains(word));
        if let Some(line) = log.lines().find(is_ours) {
            ledger.violate(format!("W9: {line}"));
        }
        let panics = self.dead_panics + self.server.panics();
        if panics > 0 {
            ledger.violate(format!("W9: {panics} panics"));
        }
        let steps = self.simulation.steps();
        if living == 0 {
            self.simulation.join();
        }
        report(&ledger, self.plan, steps, log)
    }
}

fn wait_for_clients(simulation: &mut Simulation, ledger: &Arc<WorkloadLedger>) -> SimulationEnd {
    simulation.run_until(
        Duration::from_secs(100 * PATIENCE_SECONDS),
        MOST_STEPS,
        || ledger.state().clients_left == 0,
    )
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
        violations.extend(invariants::check_limits(&state));
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

async fn run_clients(
    ledger: Arc<WorkloadLedger>,
    plan: ClientPlan,
    seeds: Vec<u64>,
    cuts: Arc<RunCuts>,
) {
    for seed in seeds {
        let client = SimulatedClient {
            ledger: Arc::clone(&ledger),
            plan,
            chance: SeededChance::new(seed),
            cuts: Arc::clone(&cuts),
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
fn configuration(
    prefix: &Path,
    has_small_cache: bool,
    generation: usize,
    directory: usize,
) -> String {
    let prefix = prefix.display();
    let size = if has_small_cache { "1m" } else { "20m" };
    let (first, second) = (return_text(false), return_text(true));
    let cached = format!(
        "proxy_pass http://origin; proxy_cache one; proxy_cache_lock on; proxy_cache_purge $purges;
            proxy_cache_valid 200 206 {VALID_SECONDS}s; proxy_cache_revalidate on;
            add_header X-Cache $upstream_cache_status;"
    );
    format!(
        "events {{}}
http {{
    access_log off;
    client_header_timeout 5s; client_body_timeout 5s; send_timeout 5s; keepalive_timeout 10s;
    proxy_connect_timeout 2s; proxy_read_timeout 5s; proxy_send_timeout 5s;
    proxy_http_version 1.1; proxy_set_header Connection \"\";
    proxy_cache_path {prefix}/cache{directory} levels=1:2 keys_zone=one:1m max_size={size} inactive=10m;
    map $request_method $purges {{ PURGE 1; default 0; }}
    limit_conn_zone $server_port zone=at_once:1m;
    limit_req_zone $server_port zone=paced:1m rate={LIMIT_RATE}r/s;
    upstream origin {{ server 127.0.0.1:9001; server 127.0.0.1:9002; keepalive 4; }}
    add_header X-Generation {generation} always;
    server {{
        listen 127.0.0.1:8080;
        http2 on;
        server_name simulated;
        root {prefix}/files;
        location = /return {{ return 200 '{first}'; }}
        location = /purge {{ cache_purge one; }}
        location /p/ {{ proxy_pass http://origin; }}
        location /n/ {{ limit_conn at_once {LIMIT_CONNECTIONS}; proxy_pass http://origin; }}
        location /q/ {{ limit_req zone=paced burst={LIMIT_BURST} nodelay; proxy_pass http://origin; }}
        location /c/ {{ {cached} }}
        location /s/ {{ {cached} proxy_cache_use_stale error timeout invalid_header updating; proxy_cache_background_update on; }}
        location /r/ {{ {cached} proxy_cache_partial on; }}
        location /v/ {{ {cached} }}
        location /l/ {{
            {cached} slice 16k; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;
            proxy_set_header Connection \"\";
        }}
    }}
    server {{
        listen 127.0.0.1:8080;
        http2 on;
        server_name second.simulated;
        location = /return {{ return 200 '{second}'; }}
    }}
}}
"
    )
}
