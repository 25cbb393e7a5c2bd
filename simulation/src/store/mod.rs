//! The store alone: each crash of a short history, with each state that it may leave on the disk.
//!
//! The store is the real one, on real files; `rt::file::changes` writes down what it does to them. For a crash after
//! each change, the states that are allowed are made on another directory and opened there. What is found must fit the
//! model, and the store must go on: it stores more, and that is looked at as well. A sample of the states crashes again
//! while the store recovers.

pub(crate) mod disk_states;
mod driven_store;
mod history;
mod model;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rt::pool::PoolHandle;
use rt::simulation::disk::{self, DiskChange};

use crate::SimulationFlags;
use crate::chance::SeededChance;
use disk_states::{CrashPoint, CrashState, DiskImage, EXHAUSTIVE, QUICK, describe};
use driven_store::{BEGINNING, DrivenStore};
use history::{KEYS, StoreStep, random_history, written_histories};
use model::{Found, StoreFacts};

/// One state in this number crashes again during its recovery.
const CRASHES_AGAIN: usize = 200;

/// How long a history may be shortened.
const SHORTENING: Duration = Duration::from_secs(20);

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
struct StoreFigures {
    histories: usize,
    crashes: usize,
    states: usize,
    second_states: usize,
    found: usize,
    lost: usize,
    most_outstanding: usize,
}

/// A history that breaks a promise, with what it takes to see it again.
struct BrokenPromise {
    history: Vec<StoreStep>,
    text: String,
}

/// What was known when this number of changes had been made.
#[derive(Clone)]
struct HistoryMark {
    changes: usize,
    promised: [StoreFacts; 2],
    now_ms: u64,
    /// What was found, where that was asked for.
    found: Option<[Found; KEYS]>,
}

/// Tries histories, and prints what came of it. True: all promises were kept.
pub(crate) fn report_histories(flags: &SimulationFlags) -> bool {
    let (figures, outcome) = try_histories(flags);
    println!("store: from seed {}: {figures:?}", flags.seed);
    match outcome {
        Ok(()) => true,
        Err(broken) => {
            println!("{}\n{:#?}", broken.text, broken.history);
            false
        }
    }
}

/// Tries histories until the time is over: those that are written down, then those of seeds from `seed` on.
fn try_histories(flags: &SimulationFlags) -> (StoreFigures, Result<(), BrokenPromise>) {
    let began = rt::clock::read_clock();
    let combined = if flags.exhaustive { EXHAUSTIVE } else { QUICK };
    let SimulationFlags {
        seed,
        count,
        time,
        trace,
        ..
    } = *flags;
    rt::simulation::do_jobs_at_once();
    let mut figures = StoreFigures::default();
    let written = written_histories()
        .into_iter()
        .map(|(name, steps)| (name.to_owned(), steps));
    let drawn = (seed..seed.saturating_add(count)).map(|seed| {
        let steps = random_history(&mut SeededChance::new(seed));
        (format!("seed {seed}"), steps)
    });
    for (name, steps) in written.chain(drawn) {
        if rt::clock::elapsed(began) >= time {
            break;
        }
        if trace {
            println!("{name}: {steps:?}");
        }
        let mut explorer = CrashExplorer::new(seed, combined);
        let outcome = explorer.try_history(&steps);
        figures.add(&explorer.figures);
        if let Err(text) = outcome {
            let history = shorten(&steps, seed, combined);
            let text = explain(&history, seed, combined).unwrap_or(text);
            return (
                figures,
                Err(BrokenPromise {
                    history,
                    text: format!("{name}: {text}"),
                }),
            );
        }
    }
    (figures, Ok(()))
}

/// Leaves out steps for as long as the history still breaks a promise.
fn shorten(steps: &[StoreStep], seed: u64, combined: usize) -> Vec<StoreStep> {
    let began = rt::clock::read_clock();
    let mut steps = steps.to_vec();
    let mut at = 0;
    while at < steps.len() && rt::clock::elapsed(began) < SHORTENING {
        let mut shorter = steps.clone();
        shorter.remove(at);
        match explain(&shorter, seed, combined) {
            Some(_) => steps = shorter,
            None => at += 1,
        }
    }
    steps
}

fn explain(steps: &[StoreStep], seed: u64, combined: usize) -> Option<String> {
    CrashExplorer::new(seed, combined).try_history(steps).err()
}

impl StoreFigures {
    fn add(&mut self, other: &StoreFigures) {
        self.histories += 1;
        self.crashes += other.crashes;
        self.states += other.states;
        self.second_states += other.second_states;
        self.found += other.found;
        self.lost += other.lost;
        self.most_outstanding = self.most_outstanding.max(other.most_outstanding);
    }
}

struct CrashExplorer {
    root: PathBuf,
    pool: PoolHandle,
    chance: SeededChance,
    figures: StoreFigures,
    next_directory: Cell<u32>,
    /// How many outstanding changes are tried in all combinations.
    combined: usize,
}

impl Drop for CrashExplorer {
    fn drop(&mut self) {
        // Left behind if it fails: it is in a temporary directory.
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl CrashExplorer {
    fn new(seed: u64, combined: usize) -> CrashExplorer {
        // Memory is enough: what is on a disk is computed.
        let memory = Path::new("/dev/shm");
        let base = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        CrashExplorer {
            root: base.join(format!("weir-simulation-{}", std::process::id())),
            pool: PoolHandle::new("store", 1, 64),
            chance: SeededChance::new(seed),
            figures: StoreFigures::default(),
            next_directory: Cell::new(0),
            combined,
        }
    }

    fn directory(&self) -> PathBuf {
        let number = self.next_directory.get();
        self.next_directory.set(number + 1);
        self.root.join(number.to_string())
    }

    /// Does what the history says, then tries each crash of it.
    fn try_history(&mut self, steps: &[StoreStep]) -> Result<(), String> {
        let (changes, marks, next_number) = self.record(steps)?;
        let mut seen = HashSet::new();
        let mut chance = self.chance.clone();
        for crash in 1..=changes.len() {
            let mark = marks.iter().rev().find(|mark| mark.changes <= crash);
            let Some(mark) = mark else { continue };
            let point = CrashPoint::after(&changes[..crash]);
            self.figures.crashes += 1;
            self.figures.most_outstanding = self.figures.most_outstanding.max(point.outstanding());
            let mut states = 0;
            point.each_state(self.combined, &mut chance.clone(), &mut seen, |state| {
                states += 1;
                let again = chance.once_in(CRASHES_AGAIN);
                self.try_state(&state, mark, mark.changes == crash, next_number, again)
                    .map_err(|text| {
                        let last = describe(&changes[crash - 1]);
                        format!(
                            "{text}\n  crash after change {crash}, {last}; then\n{}",
                            state.description
                        )
                    })
            })?;
            self.figures.states += states;
        }
        Ok(())
    }

    /// Runs the history, and gives what happened to the directory.
    fn record(
        &mut self,
        steps: &[StoreStep],
    ) -> Result<(Vec<DiskChange>, Vec<HistoryMark>, u64), String> {
        let path = self.directory();
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        disk::start_recording(&path).map_err(|error| format!("recording: {error}"))?;
        let (pool, steps) = (self.pool.clone(), steps.to_vec());
        let marks = Rc::new(RefCell::new(Vec::new()));
        let place = Rc::clone(&marks);
        let outcome = run(async move {
            let mut driven = DrivenStore::open(&path, &pool, StoreFacts::default(), 1, BEGINNING)?;
            for step in steps {
                driven.step(step).await?;
                place.borrow_mut().push(HistoryMark {
                    changes: disk::recorded(),
                    promised: driven.promised,
                    now_ms: driven.now_ms(),
                    found: None,
                });
            }
            driven.step(StoreStep::Flush).await?;
            let changes = disk::recorded();
            let found = driven.look().await?;
            for (key, found) in found.into_iter().enumerate() {
                driven
                    .facts
                    .check(key, found)
                    .map_err(|text| format!("{text}, without a crash"))?;
            }
            place.borrow_mut().push(HistoryMark {
                changes,
                promised: driven.promised,
                now_ms: driven.now_ms(),
                found: Some(found),
            });
            Ok::<_, String>(driven.next_number())
        });
        let changes = disk::take_recording();
        let next_number = outcome?;
        let marks = marks.take();
        Ok((changes, marks, next_number))
    }

    /// Opens a state, and looks at what is there.
    fn try_state(
        &mut self,
        state: &CrashState,
        mark: &HistoryMark,
        is_at_mark: bool,
        next_number: u64,
        crashes_again: bool,
    ) -> Result<(), String> {
        let path = self.directory();
        write_image(&path, &state.image).map_err(|error| format!("{}: {error}", path.display()))?;
        let facts = mark.promised[usize::from(!state.is_complete)];
        if crashes_again {
            disk::start_recording(&path).map_err(|error| format!("recording: {error}"))?;
        }
        let pool = self.pool.clone();
        let at = path.clone();
        let lacks_file = state.lacks_file;
        let moment = (next_number, mark.now_ms);
        let outcome =
            run(async move { look_and_go_on(&at, &pool, facts, moment, lacks_file).await });
        let changes = match crashes_again {
            true => disk::take_recording(),
            false => Vec::new(),
        };
        fs::remove_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let found = outcome?;
        for (key, found) in found.into_iter().enumerate() {
            match found {
                Found::Nothing => self.figures.lost += 1,
                Found::Fresh(_) | Found::Stale(_) => self.figures.found += 1,
            }
            let promised = mark.found.filter(|_| is_at_mark && state.is_complete);
            if let Some(promised) = promised
                && promised[key] != Found::Nothing
                && promised[key] != found
            {
                return Err(format!(
                    "S4: key {key} was {:?}, and is {found:?}",
                    promised[key]
                ));
            }
        }
        if crashes_again {
            self.crash_again(&changes, facts, moment)?;
        }
        Ok(())
    }

    /// Tries crashes of a recovery.
    fn crash_again(
        &mut self,
        changes: &[DiskChange],
        facts: StoreFacts,
        (next_number, now_ms): (u64, u64),
    ) -> Result<(), String> {
        let mut seen = HashSet::new();
        let mut chance = self.chance.clone();
        // What was there before the recovery is on the disk.
        let begin = changes
            .iter()
            .position(|change| *change == DiskChange::DirectorySynced);
        for crash in begin.unwrap_or(0) + 1..=changes.len() {
            let point = CrashPoint::after(&changes[..crash]);
            let (root, pool) = (self.directory(), self.pool.clone());
            let states = point.each_state(QUICK, &mut chance, &mut seen, |state| {
                write_image(&root, &state.image).map_err(|error| error.to_string())?;
                let (at, pool) = (root.clone(), pool.clone());
                let looked = run(async move {
                    look_and_go_on(&at, &pool, facts, (next_number + 2, now_ms), false).await
                });
                fs::remove_dir_all(&root).map_err(|error| error.to_string())?;
                looked.map(|_| ()).map_err(|text| {
                    let last = describe(&changes[crash - 1]);
                    format!(
                        "{text}\n  second crash after {last}; then\n{}",
                        state.description
                    )
                })
            })?;
            self.figures.second_states += states;
        }
        Ok(())
    }
}

/// What is found in a store after a crash. Then more is stored, and all is looked at again.
async fn look_and_go_on(
    path: &Path,
    pool: &PoolHandle,
    facts: StoreFacts,
    (next_number, now_ms): (u64, u64),
    lacks_file: bool,
) -> Result<[Found; KEYS], String> {
    let mut driven = DrivenStore::open(path, pool, facts, next_number, now_ms)?;
    let mut found = [Found::Nothing; KEYS];
    let check = |facts: &StoreFacts, found: [Found; KEYS], when: &str| {
        let mut keys = found.into_iter().enumerate();
        keys.try_for_each(|(key, found)| facts.check(key, found))
            .map_err(|text| format!("{text}{when}"))
    };
    // A lookup forgets what it finds damaged. Where a file is missing, its number must not be taken for another one's even
    // before that: a body that takes a file of its own comes first.
    let puts = match lacks_file {
        true => [(KEYS - 2, 70_000), (KEYS - 1, 400)],
        false => [(KEYS - 1, 400), (KEYS - 1, 500)],
    };
    if !lacks_file {
        found = driven.look().await?;
        check(&driven.facts, found, "")?;
    }
    for (key, len) in puts {
        driven.step(StoreStep::Put(key, len)).await?;
        driven.step(StoreStep::Flush).await?;
        let after = driven.look().await?;
        check(&driven.facts, after, ", after more was stored")?;
        // A large one may have to make room for itself.
        if key == KEYS - 1 && len < 1_000 && after[key] == Found::Nothing {
            let why = driven.explain_miss(key).await;
            return Err(format!("S5: nothing is stored after the crash: {why}"));
        }
    }
    Ok(found)
}

/// Writes the files of an image into a directory.
pub(crate) fn write_image(path: &Path, image: &DiskImage) -> std::io::Result<()> {
    fs::create_dir_all(path)?;
    image
        .iter()
        .try_for_each(|(name, content)| fs::write(path.join(name), &**content))
}

fn run<T: 'static>(future: impl Future<Output = Result<T, String>> + 'static) -> Result<T, String> {
    rt::run(rt::LoopOptions::default(), || future).map_err(|error| format!("loop: {error}"))?
}
