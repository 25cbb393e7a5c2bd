//! Changes of shared dictionaries that timers wait for (`lua_wake_timers`).
//!
//! A script that keeps a copy of what a dictionary has usually asks once a second whether it changed. With the directive
//! its timer runs as soon as it does, on every loop; without it, a write looks at one flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base::sync::Mutex;
use rt::sync::remote_oneshot::{self, RemoteReceiver, RemoteSender};

use crate::shared_dict::SharedDict;

/// The shortest time between two runs that changes cause: a dictionary may be written all the time.
const PAUSE: Duration = Duration::from_millis(10);

/// The changes of one dictionary.
#[derive(Default)]
pub(crate) struct DictChanges {
    /// Whether a timer has ever watched; if not, changes are not counted.
    is_watched: AtomicBool,
    count: AtomicU64,
    /// One for each timer that waits, and those of timers that have ended, which the next one removes.
    waiting: Mutex<Vec<RemoteSender<()>>>,
}

impl DictChanges {
    /// Something was written.
    pub(crate) fn tell(&self) {
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        self.count.fetch_add(1, Ordering::Release);
        for one in std::mem::take(&mut *self.waiting.lock()) {
            // A timer that has ended is not interested.
            let _ = one.send(());
        }
    }

    /// Resolves at the next change.
    fn next(&self) -> RemoteReceiver<()> {
        let (sender, receiver) = remote_oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.retain(|one| !one.is_closed());
        waiting.push(sender);
        receiver
    }
}

/// What a repeated timer knows of the dictionaries that wake it.
pub(crate) struct DictWatch {
    dictionaries: Vec<Arc<SharedDict>>,
    seen: u64,
}

impl DictWatch {
    /// A watch of those dictionaries that are named; `None` if none is.
    pub(crate) fn of(names: &[String], all: &[Arc<SharedDict>]) -> Option<DictWatch> {
        let named = all.iter().filter(|one| names.contains(&one.name));
        let dictionaries: Vec<_> = named.cloned().collect();
        if dictionaries.is_empty() {
            return None;
        }
        for one in &dictionaries {
            one.changes.is_watched.store(true, Ordering::Relaxed);
        }
        let mut watch = DictWatch {
            dictionaries,
            seen: 0,
        };
        // What was written before counts as seen, and what is written from now on does not.
        watch.take_changes();
        Some(watch)
    }

    /// Resolves when there were changes since the last time.
    pub(crate) async fn changed(&mut self) {
        rt::sleep(PAUSE).await;
        loop {
            // Before the changes are counted: one that comes in between is noticed.
            let mut next: Vec<_> = self
                .dictionaries
                .iter()
                .map(|one| one.changes.next())
                .collect();
            if self.take_changes() {
                return;
            }
            std::future::poll_fn(|context| any_ready(&mut next, context)).await;
        }
    }

    /// Whether there were changes; they count as seen.
    fn take_changes(&mut self) -> bool {
        let counts = self.dictionaries.iter();
        let count = counts
            .map(|one| one.changes.count.load(Ordering::Acquire))
            .fold(0, u64::wrapping_add);
        std::mem::replace(&mut self.seen, count) != count
    }
}

/// Ready when one of them is.
fn any_ready(all: &mut [RemoteReceiver<()>], context: &mut Context<'_>) -> Poll<()> {
    let mut ready = all
        .iter_mut()
        .map(|one| std::pin::Pin::new(one).poll(context).is_ready());
    match ready.any(|is_ready| is_ready) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }
}
