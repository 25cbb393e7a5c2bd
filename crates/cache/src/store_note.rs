//! A note of the caller that is kept beside the store, and objects that are hidden until it has been read: for a journal of
//! purges, whose reader must know after a start how far it had come.
//!
//! There are two, in one file. The *note* is never newer than what it is about: it is written after all purges that were
//! handed in before it, and after these are on the disk (`fdatasync`), so that not even a loss of power leaves the note
//! without the purges. It may be older, if the process ends before it is written; the caller then reads the same entries
//! again. The *claim* is what others have been told: it waits for nothing but its own few bytes, and says after a start up to
//! where the caller has to read before it may be believed again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rt::file::changes;

use crate::note_file::NoteKind;
use crate::store::CacheStore;
use crate::store_core::StoreCore;
use crate::store_log::StoreLog;

impl CacheStore {
    /// The note that was kept last.
    pub fn note(&self) -> Option<Vec<u8>> {
        self.0.note.lock().kept.clone()
    }

    /// What was claimed last; a note that was kept since is a claim as well.
    pub fn claimed_note(&self) -> Option<Vec<u8>> {
        self.0.note.lock().claimed.clone()
    }

    /// Keeps a note: on the disk once everything that was handed in before is there. Does not wait. One longer than a few
    /// kilobytes is not kept.
    pub fn keep_note(&self, text: Vec<u8>) {
        let Some(count) = self.0.note.lock().hand_in(NoteKind::Kept, &text) else {
            return;
        };
        self.0.enqueue(Box::new(move |core, log| {
            let written = sync_segments(core, log)
                .and_then(|()| write_note(core, NoteKind::Kept, count, &text));
            if let Err(error) = written {
                core.report_error(&format!("writing a note failed: {error}"));
            }
        }));
    }

    /// Claims a note: it alone is on the disk when `then` is told so, by a thread of the pool. It does not wait for the writer,
    /// which may have much to write.
    pub fn claim_note(&self, text: Vec<u8>, then: impl FnOnce(bool) + Send + 'static) {
        let Some(count) = self.0.note.lock().hand_in(NoteKind::Claimed, &text) else {
            return then(false);
        };
        let core = Arc::clone(&self.0);
        let job = move || {
            let written = write_note(&core, NoteKind::Claimed, count, &text);
            if let Err(error) = &written {
                core.report_error(&format!("writing a note failed: {error}"));
            }
            then(written.is_ok());
        };
        self.0.options.pool.submit(self.0.device, Box::new(job));
    }

    /// Hides everything that is stored, and everything that is being fetched. What is fetched from now on is found.
    pub fn hide_stored(&self) {
        self.0.hidden.store(self.0.next_sequence(), Relaxed);
    }

    /// Ends [`CacheStore::hide_stored`].
    pub fn show_stored(&self) {
        self.0.hidden.store(0, Relaxed);
    }
}

fn write_note(core: &StoreCore, kind: NoteKind, count: u64, text: &[u8]) -> io::Result<()> {
    let mut file = core.note_file.lock();
    file.write(&core.options.path, core.seed, kind, count, text)
}

/// Brings everything that was handed in to the disk.
fn sync_segments(core: &Arc<StoreCore>, log: &mut StoreLog) -> io::Result<()> {
    log.flush(core)?;
    let open: Vec<u32> = log.open_segments().collect();
    let before = std::mem::replace(&mut core.note.lock().unsynced, open.clone());
    for number in before
        .iter()
        .chain(open.iter().filter(|number| !before.contains(number)))
    {
        // One that was reclaimed has nothing that counts.
        if let Some(segment) = core.segment(*number) {
            changes::sync(&segment.file)?;
        }
    }
    Ok(())
}
