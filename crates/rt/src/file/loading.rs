//! Loads of ranges that clients wait for: one job for everybody who wants the same range, and before the jobs that one
//! client waits for.
//!
//! A file that many want and that has fallen out of memory would otherwise come back at the pace of one client among all
//! those who read cold files, while everybody waits for it.

use std::collections::HashMap;
use std::io;

use super::{File, locked, residency};
use crate::pool::{Device, Pool, Ticket};
use crate::sync::remote_oneshot::{self, Sender};
use base::sync::{Mutex, MutexGuard};

/// What is read ahead of a range that several clients want, in lengths of the range; of others it is one.
const AHEAD_OF_SHARED: u64 = 4;

/// So many who wait for one range show that it is in use: it is locked into memory.
const IN_USE_WAITERS: usize = 8;

/// A range that is being loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Range {
    file: u64,
    offset: u64,
    len: u64,
}

/// The number of the system's error, if there was one.
type Outcome = Result<(), i32>;

struct UnderWay {
    /// Everybody who waits for it.
    waiters: Vec<Sender<Outcome>>,
    /// Where its job is queued, once that is known, and until somebody has asked to have it sooner.
    place: Option<(Pool, Device, Ticket)>,
}

/// Bounded by the requests that wait: each waits for one range.
static UNDER_WAY: Mutex<Option<HashMap<Range, UnderWay>>> = Mutex::new(None);

fn under_way() -> MutexGuard<'static, Option<HashMap<Range, UnderWay>>> {
    // Nothing that can panic halfway is done under this lock.
    UNDER_WAY.lock()
}

/// Brings a range into the page cache; see [`File::load`].
pub(super) async fn load(
    file: &File,
    offset: u64,
    len: u64,
    rest: u64,
    pool: &Pool,
) -> io::Result<()> {
    let range = Range {
        file: file.identity(),
        offset,
        len,
    };
    if range.file == 0 {
        // It can not be told from others.
        let file = file.clone();
        let job = move || {
            residency::load(&file, offset, len, rest.min(len))?;
            file.check(offset, len)
        };
        return pool.run_on(Device::UNKNOWN, job).await;
    }
    let (sender, receiver) = remote_oneshot::channel();
    if !join(range, sender) {
        let device = file.device();
        let job = job(file.clone(), range, rest);
        let ticket = pool.queue(device, job);
        if let Some(under_way) = under_way().get_or_insert_default().get_mut(&range) {
            under_way.place = Some((pool.clone(), device, ticket));
        }
    }
    match receiver.await {
        Ok(outcome) => outcome.map_err(io::Error::from_raw_os_error),
        Err(_) => Err(io::Error::other("the load of a file did not end")),
    }
}

/// Adds one who waits; gives whether the range is being loaded already. Its job is called forward then.
fn join(range: Range, waiter: Sender<Outcome>) -> bool {
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
fn job(file: File, range: Range, rest: u64) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        let wanted = begin(range);
        let ahead = match wanted {
            // All of them have left.
            0 => return,
            1 => range.len,
            _ => range.len.saturating_mul(AHEAD_OF_SHARED),
        };
        let mut end = End(Some(range));
        let loaded = residency::load(&file, range.offset, range.len, rest.min(ahead))
            .and_then(|()| file.check(range.offset, range.len));
        let told = end.tell(loaded.map_err(|error| {
            let unknown = rustix::io::Errno::IO.raw_os_error();
            // What turned out to be damaged is an error of input, too.
            error.raw_os_error().unwrap_or(unknown)
        }));
        if told >= IN_USE_WAITERS {
            locked::want_range(&file, range.offset, range.len);
        }
    })
}

/// How many wait for a range whose job is about to run. If all of them have left, it is removed, and a later request for
/// it starts a job of its own.
fn begin(range: Range) -> usize {
    let mut guard = under_way();
    let Some(ranges) = guard.as_mut() else {
        return 0;
    };
    let waits = |waiter: &&Sender<Outcome>| !waiter.is_closed();
    let waiters = ranges.get(&range);
    let wanted = waiters.map_or(0, |range| range.waiters.iter().filter(waits).count());
    let gone = match wanted {
        0 => ranges.remove(&range),
        _ => None,
    };
    drop(guard);
    // The pool's handle goes here, without the lock.
    drop(gone);
    wanted
}

/// The end of a job, however it comes: the range is not under way any more. `None` once that is so: whoever has been told
/// may be loading it again.
struct End(Option<Range>);

impl End {
    /// Gives how many waited.
    fn tell(&mut self, outcome: Outcome) -> usize {
        let waiters = self.take();
        let count = waiters.len();
        for waiter in waiters {
            // One that has left does not want to know.
            let _ = waiter.send(outcome);
        }
        count
    }

    fn take(&mut self) -> Vec<Sender<Outcome>> {
        let Some(range) = self.0.take() else {
            return Vec::new();
        };
        let mut guard = under_way();
        let under_way = guard.as_mut().and_then(|ranges| ranges.remove(&range));
        drop(guard);
        // The pool's handle goes here, without the lock.
        under_way.map_or_else(Vec::new, |under_way| under_way.waiters)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of files that no other test has.
    fn range(file: u64) -> Range {
        Range {
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
        let mut end = End(Some(range));
        end.tell(Ok(()));
        // Somebody who was told finds it dropped, and asks again before the job's thread has gone on.
        let (second, _waits) = remote_oneshot::channel();
        assert!(!join(range, second));
        drop(end);
        assert_eq!(begin(range), 1, "it is still under way");
        drop(End(Some(range)));
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
        drop(End(Some(range)));
    }
}
