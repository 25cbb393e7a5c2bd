//! What stands below the seam of this crate when the server is simulated: one clock, one source of chance, one schedule of
//! loops, wires between sockets, and a record of the disk (docs/design/2026-11-27-simulation.md).
//!
//! Compiled only with the feature `simulation`, which no crate of the server switches on, and at work only after
//! [`Simulation::start`]: a process simulates once.

pub mod chance;
pub mod clock;
pub mod datagrams;
pub mod disk;
pub mod network;
mod schedule;
mod wire;

pub use schedule::{
    Simulation, SimulationEnd, do_jobs_at_once, living_loops, set_slow_disk, with_real_pools,
};

pub(crate) use clock::is_running;
pub(crate) use schedule::{enqueue_job, park, pause_job};

use base::sync::Mutex;

/// What happened, in order, and how often each fault was put in.
#[derive(Default)]
struct EventRecord {
    lines: Vec<String>,
    keeps_lines: bool,
    hash: u64,
    faults: std::collections::BTreeMap<&'static str, u64>,
}

static RECORD: Mutex<Option<EventRecord>> = Mutex::new(None);

/// Notes an event. All of them together tell two runs apart.
pub fn note(line: impl FnOnce() -> String) {
    let mut record = RECORD.lock();
    let Some(record) = record.as_mut() else {
        return;
    };
    let line = format!("{:>16} {}", clock::nanos(), line());
    for byte in line.bytes() {
        record.hash = (record.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    if record.keeps_lines {
        record.lines.push(line);
    }
}

/// Counts a fault that was put in.
pub fn count_fault(name: &'static str) {
    if let Some(record) = RECORD.lock().as_mut() {
        *record.faults.entry(name).or_default() += 1;
    }
}

/// How often each fault was put in so far.
pub fn faults() -> std::collections::BTreeMap<&'static str, u64> {
    RECORD
        .lock()
        .as_ref()
        .map(|record| record.faults.clone())
        .unwrap_or_default()
}

/// Two runs with the same number had the same events.
pub fn events_hash() -> u64 {
    RECORD.lock().as_ref().map_or(0, |record| record.hash)
}

/// The events so far, if they are kept; forgets them.
pub fn take_events() -> Vec<String> {
    RECORD
        .lock()
        .as_mut()
        .map(|record| std::mem::take(&mut record.lines))
        .unwrap_or_default()
}

fn start_record(keeps_lines: bool) {
    *RECORD.lock() = Some(EventRecord {
        keeps_lines,
        hash: 0xcbf2_9ce4_8422_2325,
        ..EventRecord::default()
    });
}
