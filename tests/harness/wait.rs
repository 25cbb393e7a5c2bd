//! Waiting for an event with a bound, in place of sleeping for a guess.

use std::time::{Duration, Instant};

/// How long a test waits for anything before it fails. Generous: it is reached only by a test
/// that fails anyway, and CI machines stall.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Asks again until `condition` gives a value; `None` when [`PATIENCE`] is over.
///
/// The polls start close together, since most events are there within a millisecond.
pub fn until<T>(mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
