//! A note of the caller that is kept beside the store, and objects that are hidden until it has been read: for a journal of
//! purges, whose reader must know after a start how far it had come.
//!
//! The note is never newer than what it is about: it is written after all purges that were handed in before it, and after
//! these are on the disk (`fdatasync`), so that not even a loss of power leaves the note without the purges. It may be
//! older, if the process ends before the note is written; the caller then reads the same entries again.

use std::fs;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rt::file::modes;

use crate::note_format::{self, NOTE_MAX};
use crate::store::CacheStore;
use crate::store_core::StoreCore;
use crate::store_log::StoreLog;

impl CacheStore {
    /// The note that was kept last.
    pub fn note(&self) -> Option<Vec<u8>> {
        self.0.note.lock().text.clone()
    }

    /// Keeps a note: on the disk once everything that was handed in before is there. Does not wait. A longer one than a
    /// few kilobytes is not kept. `then` is told, by the thread that writes, whether it is on the disk.
    pub fn keep_note(&self, text: Vec<u8>, then: impl FnOnce(bool) + Send + 'static) {
        if text.len() > NOTE_MAX {
            return then(false);
        }
        self.0.note.lock().text = Some(text.clone());
        self.0.enqueue(Box::new(move |core, log| {
            let written = write_note(core, log, &text);
            if let Err(error) = &written {
                core.report_error(&format!("writing a note failed: {error}"));
            }
            then(written.is_ok());
        }));
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

fn write_note(core: &Arc<StoreCore>, log: &mut StoreLog, text: &[u8]) -> io::Result<()> {
    log.flush(core)?;
    let open: Vec<u32> = log.open_segments().collect();
    let before = std::mem::replace(&mut core.note.lock().unsynced, open.clone());
    for number in before
        .iter()
        .chain(open.iter().filter(|number| !before.contains(number)))
    {
        // One that was reclaimed has nothing that counts.
        if let Some(segment) = core.segment(*number) {
            rustix::fs::fdatasync(&segment.file)?;
        }
    }
    let aside = core.options.path.join("note.new");
    let mut file = fs::OpenOptions::new();
    file.write(true).create(true).truncate(true);
    let mut file = {
        use std::os::unix::fs::OpenOptionsExt as _;
        file.mode(modes::PRIVATE_FILE).open(&aside)?
    };
    file.write_all(&note_format::encode(text, core.seed))?;
    // Before the rename, as with the checkpoint.
    file.sync_data()?;
    fs::rename(&aside, core.options.path.join("note"))
}
