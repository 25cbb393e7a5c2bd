//! The worker processes of a master: what it knows about each, and when a crashed one is replaced.
//!
//! The first crashes in a row are answered at once, because clients are waiting. If a worker
//! crashes again and again soon after its start, there are pauses between the attempts, twice as
//! long each time, so that a defect that strikes at the start does not keep a processor busy and
//! fill the logs.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use host::channel::Channel;
use host::worker_group::{GroupLinks, WorkerGroup};
use rt::sandbox::{SandboxRules, SeccompListener};

/// A worker that has run this long has started well; its crash begins a new count.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// The number of crashes in a row after which a new worker starts at once. Meanwhile clients wait
/// in the queues of the listening sockets, and a request that crashes a worker now and then must
/// not take the site down.
const RESPAWN_AT_ONCE: u32 = 20;
/// The first pause after that; it doubles with each further crash.
pub(crate) const RESPAWN_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: a broken configuration costs a start every five seconds, and a mended one is
/// noticed as soon.
const MAX_RESPAWN_PAUSE: Duration = Duration::from_secs(5);

/// A worker process.
pub(crate) struct WorkerChild {
    /// Its process number.
    pub(crate) process: u32,
    /// Which of the groups it is.
    pub(crate) group: WorkerGroup,
    /// The number of its batch.
    pub(crate) batch: u64,
    /// The master's end of the channel.
    pub(crate) channel: Channel,
    /// When it was forked, to tell a crash at the start from a later one.
    pub(crate) started: Instant,
    /// It was told to exit, so its end is no crash.
    pub(crate) is_exiting: bool,
    /// The number of the last configuration that it has taken; 0 if it serves none yet.
    pub(crate) applied: u64,
    /// Whether it has said that no loop is stuck, since systemd was told the last time.
    pub(crate) has_beaten: bool,
    /// Its sandbox, if the configuration wants one.
    pub(crate) sandbox: Option<WorkerSandbox>,
}

/// The sandbox of a worker.
pub(crate) struct WorkerSandbox {
    /// What it may do.
    pub(crate) rules: SandboxRules,
    /// Device and inode of the paths in the rules when the worker started. Rules hold for files,
    /// not for names.
    inodes_at_start: Vec<Option<(u64, u64)>>,
    /// Where the kernel reports denied system calls.
    pub(crate) listener: Option<SeccompListener>,
    /// The system calls that were logged, by number: one line per call is enough.
    pub(crate) reported_calls: HashSet<std::ffi::c_long>,
}

impl WorkerSandbox {
    /// The sandbox of a worker that is about to be forked: its rules refer to the files that are
    /// there now.
    pub(crate) fn new(rules: SandboxRules) -> WorkerSandbox {
        WorkerSandbox {
            inodes_at_start: rules.path_identities(),
            rules,
            listener: None,
            reported_calls: HashSet::new(),
        }
    }

    /// Whether other files have taken the place of those that the worker may access, as after a
    /// renewal of certificates: then a reload needs a new worker.
    pub(crate) fn is_outdated(&self) -> bool {
        self.rules.path_identities() != self.inodes_at_start
    }
}

impl WorkerChild {
    /// The descriptor on which denied system calls arrive, if the worker has a sandbox.
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        let listener = self.sandbox.as_ref()?.listener.as_ref()?;
        Some(listener.as_fd())
    }
}

/// The workers that were started together, one for each group; those in their place after a crash belong to it, too.
/// What a process cannot change needs another batch, which replaces this one as a whole.
pub(crate) struct WorkerBatch {
    /// Counts the batches of this master.
    pub(crate) number: u64,
    /// When crashed workers are replaced, by group.
    pub(crate) crashes: Vec<CrashBackoff>,
    /// What connects the groups; `None` if there is only one, or if the system has no room for it.
    pub(crate) links: Option<GroupLinks>,
    /// The batch that this one replaces, as long as that serves.
    pub(crate) replaced: Option<Box<WorkerBatch>>,
}

impl WorkerBatch {
    /// A batch of this number of groups, without workers so far. Fails if the groups cannot be connected: they serve even so.
    pub(crate) fn new(number: u64, groups: usize) -> (WorkerBatch, io::Result<()>) {
        let (links, result) = match groups {
            0 | 1 => (None, Ok(())),
            _ => match GroupLinks::new(groups) {
                Ok(links) => (Some(links), Ok(())),
                Err(error) => (None, Err(error)),
            },
        };
        let batch = WorkerBatch {
            number,
            crashes: (0..groups).map(|_| CrashBackoff::default()).collect(),
            links,
            replaced: None,
        };
        (batch, result)
    }

    /// How many groups it has.
    pub(crate) fn groups(&self) -> usize {
        self.crashes.len()
    }

    /// When the next crashed worker is to be replaced.
    pub(crate) fn respawn_at(&self) -> Option<Instant> {
        let crashes = self.crashes.iter();
        crashes.filter_map(|crashes| crashes.respawn_at).min()
    }

    /// Gives up plans to replace crashed workers.
    pub(crate) fn forget_respawns(&mut self) {
        for crashes in &mut self.crashes {
            crashes.respawn_at = None;
        }
    }
}

/// When a crashed worker is replaced.
#[derive(Default)]
pub(crate) struct CrashBackoff {
    /// Crashes in a row, each soon after the start.
    pub(crate) in_a_row: u32,
    /// When to start the next worker.
    pub(crate) respawn_at: Option<Instant>,
}

impl CrashBackoff {
    /// Notes that a worker has crashed after `lived`, and plans the next start.
    pub(crate) fn note(&mut self, lived: Duration, now: Instant) {
        self.in_a_row = if lived >= HEALTHY_AFTER {
            0
        } else {
            self.in_a_row.saturating_add(1)
        };
        let pause = match self.in_a_row {
            0..=RESPAWN_AT_ONCE => Duration::ZERO,
            crashes => {
                // The exponent is capped, so that a count which only grows cannot overflow the product.
                let doublings = (crashes - RESPAWN_AT_ONCE - 1).min(16);
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
        let mut crashes = CrashBackoff::default();
        let mut pauses = Vec::new();
        for _ in 0..RESPAWN_AT_ONCE + 8 {
            crashes.note(Duration::ZERO, now);
            pauses.push(
                crashes
                    .respawn_at
                    .expect("planned")
                    .duration_since(now)
                    .as_millis(),
            );
        }
        let (at_once, later) = pauses.split_at(RESPAWN_AT_ONCE as usize);
        assert!(at_once.iter().all(|pause| *pause == 0));
        assert_eq!(later, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        crashes.note(HEALTHY_AFTER, now);
        assert_eq!(
            crashes.respawn_at,
            Some(now),
            "a worker that ran well is replaced at once"
        );
    }
}
