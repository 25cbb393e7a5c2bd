//! Up to which entry of a journal the disk knows that it has been applied. A member is named for a purge only then: after a
//! crash it must not claim an older position, with which it could get from another member what was purged, and must notice if
//! Redis has lost the purge. The purges themselves may come to the disk later: after a crash they are read again.
//!
//! The disk is asked when a request waits, once at a time: all that wait meanwhile share the next time.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use base::sync::Mutex;

use super::journal_position::{AppliedEntries, EntryKnowledge, JournalPosition};

/// How many requests are woken when entries have been kept. Others end with their own time: a disk that does not answer must
/// not collect them.
const MOST_WAITING: usize = 1024;

/// The entries, for all loops.
#[derive(Default)]
pub(super) struct KeptEntries(Mutex<KeepState>);

#[derive(Default)]
struct KeepState {
    entries: AppliedEntries,
    /// A request waits for one that is not among them.
    is_wanted: bool,
    /// The task that keeps them, while it has nothing to do.
    keeper: Option<Waker>,
    /// At most [`MOST_WAITING`].
    waiting: Vec<Waker>,
}

impl KeptEntries {
    /// Whether an entry that has been applied is kept. If not, that is wanted from now on, and the task is woken.
    pub(super) fn poll_kept(&self, entry: JournalPosition, context: &mut Context<'_>) -> Poll<()> {
        let keeper = {
            let mut state = self.0.lock();
            if state.entries.knowledge_of(entry) == EntryKnowledge::Applied {
                return Poll::Ready(());
            }
            // A request that is polled again waits once.
            let waits = state
                .waiting
                .iter()
                .any(|own| own.will_wake(context.waker()));
            if !waits && state.waiting.len() < MOST_WAITING {
                state.waiting.push(context.waker().clone());
            }
            state.is_wanted = true;
            state.keeper.take()
        };
        // Outside the lock: a waker may run its task at once.
        if let Some(keeper) = keeper {
            keeper.wake();
        }
        Poll::Pending
    }

    /// Waits until a request wants entries kept.
    pub(super) async fn until_wanted(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if std::mem::take(&mut state.is_wanted) {
                return Poll::Ready(());
            }
            state.keeper = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Notes what is kept now, and tells who waits. Those whose entry is not among them want the next time.
    pub(super) fn note(&self, entries: AppliedEntries) {
        let waiting = {
            let mut state = self.0.lock();
            state.entries = entries;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}
