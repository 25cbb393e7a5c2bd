//! The worker processes of a master: what it knows of each, and when one that crashed is replaced.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rt::channel::Channel;
use rt::sandbox::{Listener, Rules};

/// A worker that ran this long has started well; the next crash is answered at once.
const HEALTHY: Duration = Duration::from_secs(10);
/// Crashes in a row that are answered at once: clients wait in the queues of the sockets, and a request that
/// brings a worker down now and then must not take the site with it.
const AT_ONCE: u32 = 20;
/// The first pause after that; doubled at each further one.
pub(crate) const RESPAWN_PAUSE: Duration = Duration::from_millis(100);
const MAX_RESPAWN_PAUSE: Duration = Duration::from_secs(5);

/// A worker process.
pub(crate) struct Child {
    pub(crate) process: u32,
    pub(crate) channel: Channel,
    pub(crate) started: Instant,
    /// Told to end: its end is no crash.
    pub(crate) exiting: bool,
    /// It runs a configuration.
    pub(crate) serves: bool,
    pub(crate) sandbox: Option<Sandbox>,
}

/// The sandbox that a worker runs in.
pub(crate) struct Sandbox {
    pub(crate) rules: Rules,
    /// What was at the paths of the rules when the worker began.
    seen: Vec<Option<(u64, u64)>>,
    /// Where denied calls are heard of.
    pub(crate) listener: Option<Listener>,
    /// Those that there was a line for, by number.
    pub(crate) told: HashSet<std::ffi::c_long>,
}

impl Sandbox {
    pub(crate) fn new(rules: Rules) -> Sandbox {
        Sandbox {
            seen: rules.seen(),
            rules,
            listener: None,
            told: HashSet::new(),
        }
    }

    /// Have other files taken the place of those that the worker may use?
    pub(crate) fn is_outdated(&self) -> bool {
        self.rules.seen() != self.seen
    }
}

impl Child {
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        let listener = self.sandbox.as_ref()?.listener.as_ref()?;
        Some(listener.as_fd())
    }
}

/// When a crashed worker is replaced.
#[derive(Default)]
pub(crate) struct Crashes {
    /// Crashes in a row, each soon after a start.
    pub(crate) in_a_row: u32,
    /// Start a worker then.
    pub(crate) respawn_at: Option<Instant>,
}

impl Crashes {
    /// A worker has crashed after `lived`.
    pub(crate) fn note(&mut self, lived: Duration, now: Instant) {
        self.in_a_row = if lived >= HEALTHY {
            0
        } else {
            self.in_a_row.saturating_add(1)
        };
        let pause = match self.in_a_row {
            0..=AT_ONCE => Duration::ZERO,
            crashes => {
                let doublings = (crashes - AT_ONCE - 1).min(16);
                (RESPAWN_PAUSE * 2_u32.saturating_pow(doublings)).min(MAX_RESPAWN_PAUSE)
            }
        };
        self.respawn_at = Some(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_in_a_row_are_answered_more_and_more_slowly() {
        let now = Instant::now();
        let mut crashes = Crashes::default();
        let mut pauses = Vec::new();
        for _ in 0..AT_ONCE + 8 {
            crashes.note(Duration::ZERO, now);
            pauses.push(
                crashes
                    .respawn_at
                    .expect("planned")
                    .duration_since(now)
                    .as_millis(),
            );
        }
        let (at_once, later) = pauses.split_at(AT_ONCE as usize);
        assert!(at_once.iter().all(|pause| *pause == 0));
        assert_eq!(later, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        crashes.note(HEALTHY, now);
        assert_eq!(
            crashes.respawn_at,
            Some(now),
            "a worker that ran well is replaced at once"
        );
    }
}
