//! Loads ranges of files that clients wait for: one job for all that want the same range, which runs before jobs
//! that only one client waits for.
//!
//! Otherwise a file that many clients want and that has fallen out of memory would return at the pace of one client
//! among all that read cold files, while everyone else waits for it.

use std::collections::HashMap;
use std::io;

use super::{File, locked_blocks, residency};
use crate::pool::{DeviceNumber, JobTicket, PoolHandle};
use crate::sync::remote_oneshot::{self, RemoteSender};
use base::sync::{Mutex, MutexGuard};

/// How much is read ahead of a range that several clients want, in lengths of the range. For one client it is one
/// length.
const AHEAD_OF_SHARED: u64 = 4;

/// When this many requests wait for one range, it is in use and is locked into memory.
const IN_USE_WAITERS: usize = 8;

/// A range that is being loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LoadRange {
    file: u64,
    offset: u64,
    len: u64,
}

/// The errno, if the load failed.
type LoadOutcome = Result<(), i32>;

struct UnderWay {
    /// The requests that wait for it.
    waiters: Vec<RemoteSender<LoadOutcome>>,
    /// Where its job is queued: known after it was submitted, and taken out when the job is moved forward, which
    /// happens once.
    place: Option<(PoolHandle, DeviceNumber, JobTicket)>,
}

/// Bounded by the number of waiting requests: each waits for one range.
static UNDER_WAY: Mutex<Option<HashMap<LoadRange, UnderWay>>> = Mutex::new(None);

fn under_way() -> MutexGuard<'static, Option<HashMap<LoadRange, UnderWay>>> {
    // Nothing that can panic halfway is done under this lock.
    UNDER_WAY.lock()
}

/// Brings a range into the page cache; see [`File::load_range`].
pub(super) async fn load_shared(
    file: &File,
    offset: u64,
    len: u64,
    rest: u64,
    pool: &PoolHandle,
) -> io::Result<()> {
    let range = LoadRange {
        file: file.identity(),
        offset,
        len,
    };
    if range.file == 0 {
        // Without an identity the file cannot be compared with others: it gets a job of its own.
        let file = file.clone();
        let job = move || {
            residency::load_pages(&file, offset, len, rest.min(len))?;
            file.check(offset, len)
        };
        return pool.run_on(DeviceNumber::UNKNOWN, job).await;
    }
    let (sender, receiver) = remote_oneshot::channel();
    if !join(range, sender) {
        let device = file.device();
        let job = job(file.clone(), range, rest);
        let ticket = pool.enqueue_job(device, job);
        if let Some(under_way) = under_way().get_or_insert_default().get_mut(&range) {
            under_way.place = Some((pool.clone(), device, ticket));
        }
    }
    match receiver.await {
        Ok(outcome) => outcome.map_err(io::Error::from_raw_os_error),
        Err(_) => Err(io::Error::other("the load of a file did not end")),
    }
}

/// Adds a waiting request; returns whether the range is being loaded already. If so, its job is moved forward in
/// the queue.
fn join(range: LoadRange, waiter: RemoteSender<LoadOutcome>) -> bool {
    let mut guard = under_way();
    let ranges = guard.get_or_insert_default();
    let Some(under_way) = ranges.get_mut(&range) else {
        let under_way = UnderWay {
            waiters: vec![waiter],
            place: None,
        };
        ranges.insert(range, under_way);
        return false;
    };
    under_way.waiters.push(waiter);
    let place = under_way.place.take();
    drop(guard);
    if let Some((pool, device, ticket)) = place {
        pool.call_forward(device, ticket);
    }
    true
}

/// What a thread of the pool does.
fn job(file: File, range: LoadRange, rest: u64) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        let wanted = begin(range);
        let ahead = match wanted {
            // All requests have gone.
            0 => return,
            1 => range.len,
            _ => range.len.saturating_mul(AHEAD_OF_SHARED),
        };
        let mut end = LoadEnd(Some(range));
        let loaded = residency::load_pages(&file, range.offset, range.len, rest.min(ahead))
            .and_then(|()| file.check(range.offset, range.len));
        let told = end.tell(loaded.map_err(|error| {
            let unknown = rustix::io::Errno::IO.raw_os_error();
            // Data that fails its verification has no errno: it is reported as an I/O error.
            error.raw_os_error().unwrap_or(unknown)
        }));
        if told >= IN_USE_WAITERS {
            locked_blocks::want_range(&file, range.offset, range.len);
        }
    })
}

/// How many requests wait for a range whose job is about to run. If all have gone, the range is removed, and a
/// later request starts a job of its own.
fn begin(range: LoadRange) -> usize {
    let mut guard = under_way();
    let Some(ranges) = guard.as_mut() else {
        return 0;
    };
    let waits = |waiter: &&RemoteSender<LoadOutcome>| !waiter.is_closed();
    let waiters = ranges.get(&range);
    let wanted = waiters.map_or(0, |range| range.waiters.iter().filter(waits).count());
    let gone = match wanted {
        0 => ranges.remove(&range),
        _ => None,
    };
    drop(guard);
    // The entry holds a pool's handle, which is dropped outside the lock.
    drop(gone);
    wanted
}

/// Ends a job, however it ends: the range is no longer under way. `None` once that is done: after that, an entry
/// for the range may belong to the next job.
struct LoadEnd(Option<LoadRange>);

impl LoadEnd {
    /// Sends the result to all waiting requests; returns their number.
    fn tell(&mut self, outcome: LoadOutcome) -> usize {
        let waiters = self.take();
        let count = waiters.len();
        for waiter in waiters {
            // An error means that this request has gone.
            let _ = waiter.send(outcome);
        }
        count
    }

    fn take(&mut self) -> Vec<RemoteSender<LoadOutcome>> {
        let Some(range) = self.0.take() else {
            return Vec::new();
        };
        let mut guard = under_way();
        let under_way = guard.as_mut().and_then(|ranges| ranges.remove(&range));
        drop(guard);
        // The entry holds a pool's handle, which is dropped outside the lock.
        under_way.map_or_else(Vec::new, |under_way| under_way.waiters)
    }
}

impl Drop for LoadEnd {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of files that no other test has.
    fn range(file: u64) -> LoadRange {
        LoadRange {
            file: u64::MAX - file,
            offset: 0,
            len: 1,
        }
    }

    #[test]
    fn a_job_that_is_over_leaves_the_next_one_of_its_range_alone() {
        let range = range(0);
        let (first, _told) = remote_oneshot::channel();
        assert!(!join(range, first));
        assert_eq!(begin(range), 1);
        let mut end = LoadEnd(Some(range));
        end.tell(Ok(()));
        // A request that was told may find the range dropped, and ask again before this thread has gone on.
        let (second, _waits) = remote_oneshot::channel();
        assert!(!join(range, second));
        drop(end);
        assert_eq!(begin(range), 1, "it is still under way");
        drop(LoadEnd(Some(range)));
        assert_eq!(begin(range), 0);
    }

    #[test]
    fn who_comes_when_all_others_have_left_has_a_job_of_his_own() {
        let range = range(1);
        let (sender, receiver) = remote_oneshot::channel();
        assert!(!join(range, sender));
        drop(receiver);
        assert_eq!(begin(range), 0);
        let (sender, _waits) = remote_oneshot::channel();
        assert!(!join(range, sender), "nobody loads it any more");
        drop(LoadEnd(Some(range)));
    }
}
