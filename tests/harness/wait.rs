//! Waiting for an event with a bound, in place of sleeping for a guess.

use std::time::Duration;

/// How long a test waits for anything before it fails. Generous: it is reached only by a test
/// that fails anyway, and CI machines stall.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again until `condition` gives a value; `None` when [`PATIENCE`] is over.
///
/// The polls start close together, since most events are there within a millisecond. What counts is the time between
/// them: a machine that stands still for long, as virtual ones do, has used up one poll and not all patience.
pub fn until<T>(mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let mut waited = Duration::ZERO;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if waited >= PATIENCE {
            return None;
        }
        std::thread::sleep(pause);
        waited += pause;
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
