//! A run: a server, an origin and clients by a seed, and what is asked of them at the end.

mod certificate;
mod client;
mod configuration;
mod echo;
mod h2_stream;
mod invariants;
mod ledger;
mod message;
mod origin;
mod probe;
mod stream_client;

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
use configuration::configuration;
use invariants::{FILE_SALT, PATIENCE_SECONDS};
use ledger::{WorkloadLedger, content};

/// When files were last changed, after the epoch.
const FILES_AGE: Duration = Duration::from_secs(1_700_000_000);

/// The most tasks of a loop without clients: those that accept, and those of idle connections and modules.
const TASKS_MOST: u64 = 60;

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
    /// A successor takes over once.
    upgrades: bool,
    /// The clients meet at one resource.
    is_crowd: bool,
    /// One wait for the disk in this number is long.
    slow_disk: u64,
    /// The disk is full for a while.
    fills_disk: bool,
    /// The cache has room for a few objects only.
    has_small_cache: bool,
    /// The wall clock is set at times: then nothing is said of lifetimes.
    shifts_wall: bool,
    weather: NetworkWeather,
}

/// In one seed of this number all faults are put in. The odd ones are crowds.
const STORMS: u64 = 4;
/// How many clients, and requests of each, a crowd has at least.
const CROWD: (usize, usize) = (6, 20);

impl RunPlan {
    fn draw(seed: u64, chance: &mut SeededChance, cuts: &RunCuts) -> RunPlan {
        let is_storm = seed.is_multiple_of(STORMS);
        let is_calm = chance.once_in(3) && !is_storm;
        let drawn = NetworkWeather {
            breaks: *chance.choose(&[0, 6, 12, 40]),
            refusals: *chance.choose(&[0, 10, 30]),
            is_slow: chance.once_in(2),
            losses: *chance.choose(&[0, 5, 30]),
        };
        let weather = match (is_calm, is_storm) {
            (true, _) => NetworkWeather::CALM,
            (false, true) => NetworkWeather {
                breaks: 8,
                refusals: 10,
                is_slow: true,
                losses: 10,
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
            upgrades: chance.once_in(4),
            is_crowd: !seed.is_multiple_of(2),
            slow_disk: *chance.choose(&[4, 64, 64]),
            weather,
        };
        if plan.is_crowd {
            plan.clients = plan.clients.max(CROWD.0);
            plan.requests = plan.requests.max(CROWD.1);
        }
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
        weather.losses *= u64::from(!cuts.has("losses"));
        self.crash = self.crash.filter(|_| !cuts.has("crash"));
        self.upgrades &= !cuts.has("upgrade");
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
    /// A process that has a successor.
    former: Option<SimulatedServer>,
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
        let ledger = WorkloadLedger::draw(
            &mut chance,
            is_moody,
            (seed.is_multiple_of(STORMS), plan.is_crowd),
        );
        let set_up = write_files(prefix, &ledger)
            .and_then(|()| fs::create_dir_all(prefix.join("cache0")))
            .and_then(|()| disk::start_recording(&prefix.join("cache0")));
        set_up.map_err(|error| format!("{}: {error}", prefix.display()))?;
        let schedule = cuts.number("schedule").unwrap_or(0) as u64;
        let mut simulation = Simulation::start(seed ^ (schedule << 48), keeps_events);
        simulation::note(|| format!("{plan:?} {:?}", ledger.resources));
        set_ground(plan);
        let origins: Vec<SocketAddr> = [9001, 9002]
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .into();
        let own = Arc::clone(&ledger);
        let origin_seed = chance.number();
        let started = start_loop(&mut simulation, "origin", move || {
            origin::run_origin(own, origins, origin_seed)
        });
        started.map_err(|error| error.to_string())?;
        let text = configuration(prefix, plan.has_small_cache, (0, 0));
        let server = SimulatedServer::start(&mut simulation, plan.loops, prefix, &text)?;
        let client_plan = ClientPlan {
            server: SocketAddr::from(([127, 0, 0, 1], 8080)),
            requests: plan.requests,
            is_calm: plan.is_calm,
            is_slow: plan.weather.is_slow,
            are_hostile: !plan.is_calm,
            are_crowd: plan.is_crowd,
            has_room: !plan.has_small_cache,
            has_successor: plan.upgrades,
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
            former: None,
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
        if self.plan.upgrades {
            self.pause();
            self = self.upgrade()?;
        }
        for _ in 0..self.plan.reloads {
            self.pause();
            simulation::count_fault("reload");
            simulation::note(|| "reload".to_owned());
            self.generation += 1;
            let small = self.plan.has_small_cache;
            let numbers = (self.generation, self.directory);
            let text = configuration(self.server.prefix(), small, numbers);
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
        let text = configuration(&prefix, self.plan.has_small_cache, (generation, directory));
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
            former: self.former,
        })
    }

    /// A successor gets the sockets and the idle connections, and the store when its predecessor leaves it.
    fn upgrade(mut self) -> Result<WorkloadRun, String> {
        simulation::count_fault("upgrade");
        simulation::note(|| "upgrade".to_owned());
        self.ledger.note_upgrade();
        self.generation += 1;
        let numbers = (self.generation, self.directory);
        let text = configuration(self.server.prefix(), self.plan.has_small_cache, numbers);
        let (server, former) = self.server.upgrade(&mut self.simulation, &text)?;
        Ok(WorkloadRun {
            server,
            former: Some(former),
            ..self
        })
    }

    /// W17 to W19: the weather is calm again, and what the server says of itself fits.
    fn check_recovery(&mut self) {
        network::set_weather(NetworkWeather::CALM);
        simulation::set_slow_disk(64);
        self.ledger.state().probes = true;
        let ledger = Arc::clone(&self.ledger);
        let patience = Duration::from_secs(4 * PATIENCE_SECONDS);
        let end = self
            .simulation
            .run_until(patience, MOST_STEPS, || ledger.state().probed.is_some());
        let probed = ledger.state().probed.take();
        let Some(probed) = probed else {
            return ledger.violate(format!("W17: the last client has no end: {end:?}"));
        };
        let has_one_process = self.plan.crash.is_none() && !self.plan.upgrades;
        let counts = self.plan.is_calm && has_one_process;
        let size = configuration::cache_bytes(self.plan.has_small_cache);
        probe::check_gauges(&ledger, &probed, (self.server.loop_count(), size));
        if counts {
            probe::check_totals(&ledger, &probed, self.server.counters().requests);
        }
        let idle = self.server.tasks();
        if idle > TASKS_MOST {
            ledger.violate(format!("W18: an idle loop has {idle} tasks"));
        }
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
        self.check_recovery();
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
        if let Some(former) = &mut self.former {
            self.dead_log += &former.log_text();
            self.dead_panics += former.panics();
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

/// What the network and the disk are like.
fn set_ground(plan: RunPlan) {
    network::set_weather(plan.weather);
    simulation::set_slow_disk(plan.slow_disk);
    configuration::ENCRYPTED
        .into_iter()
        .for_each(network::note_encrypted);
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
        // A process does not know what another one fetches.
        let doubled = doubled.into_iter().filter(|_| !plan.upgrades);
        violations.extend(doubled.map(|text| format!("W5: {text}")));
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
    while !ledger.state().stops_origin {
        if std::mem::take(&mut ledger.state().probes) {
            rt::spawn(probe::probe(Arc::clone(&ledger), plan.server));
        }
        rt::sleep(Duration::from_millis(50)).await;
    }
}

fn write_files(prefix: &Path, ledger: &WorkloadLedger) -> std::io::Result<()> {
    fs::create_dir_all(prefix.join("files"))?;
    certificate::write_certificate(prefix)?;
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
