//! The file of the note that is kept beside a store, and what callers see of it: see [`crate::store_note`].

use std::fs::File;
use std::io;
use std::path::Path;

use rt::file::{changes, modes};

use crate::note_format::{NOTE_MAX, NotePair, SLOT};

/// What callers see of the note: the last ones that were handed in, on the disk or not.
#[derive(Debug, Default)]
pub(crate) struct StoreNote {
    pub(crate) kept: Option<Vec<u8>>,
    pub(crate) claimed: Option<Vec<u8>>,
    /// How many were handed in.
    count: u64,
    /// The segments that were being written when the last note was: they may have been finished since.
    pub(crate) unsynced: Vec<u32>,
}

/// The file. Its lock is held while the disk writes, so that loops never take it.
#[derive(Debug, Default)]
pub(crate) struct NoteFile {
    /// `None`: none was written by this process.
    file: Option<File>,
    pair: NotePair,
    /// The counts of the two in it, by [`StoreNote::count`].
    counts: [u64; 2],
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteKind {
    Kept,
    Claimed,
}

impl StoreNote {
    /// What was found on the disk.
    pub(crate) fn found(pair: &NotePair) -> StoreNote {
        StoreNote {
            kept: pair.kept.clone(),
            claimed: pair.claimed.clone(),
            ..StoreNote::default()
        }
    }

    /// Notes what is going to be written; its number among all that were. `None`: it is too long.
    pub(crate) fn hand_in(&mut self, kind: NoteKind, text: &[u8]) -> Option<u64> {
        if text.len() > NOTE_MAX {
            return None;
        }
        self.count += 1;
        self.claimed = Some(text.to_vec());
        if kind == NoteKind::Kept {
            self.kept = Some(text.to_vec());
        }
        Some(self.count)
    }
}

impl NoteFile {
    pub(crate) fn found(pair: NotePair) -> NoteFile {
        NoteFile {
            pair,
            ..NoteFile::default()
        }
    }

    /// Writes one of the two. A later one of the same kind may have been written before: its own is then no news.
    pub(crate) fn write(
        &mut self,
        folder: &Path,
        seed: u64,
        kind: NoteKind,
        count: u64,
        text: &[u8],
    ) -> io::Result<()> {
        let [kept, claimed] = self.counts;
        let is_news = match kind {
            NoteKind::Kept => count > kept,
            NoteKind::Claimed => count > claimed,
        };
        if !is_news {
            return Ok(());
        }
        let mut pair = self.pair.clone();
        let mut counts = self.counts;
        pair.number += 1;
        if kind == NoteKind::Kept {
            pair.kept = Some(text.to_vec());
            counts[0] = count;
        }
        // What is kept includes what was claimed before it was handed in.
        if count > claimed {
            pair.claimed = Some(text.to_vec());
            counts[1] = count;
        }
        let (bytes, at) = pair.encode(seed);
        // After a failure the file may be anything: the next write makes another one.
        let file = match self.file.take() {
            Some(file) => {
                changes::write_at(&file, &bytes, at)?;
                changes::sync(&file)?;
                file
            }
            None => create(folder, &bytes, at)?,
        };
        (self.file, self.pair, self.counts) = (Some(file), pair, counts);
        Ok(())
    }
}

/// Makes the file in place of a former one. All of it is written, so that later writes need no new blocks, of which the file
/// system would keep a record of its own.
fn create(folder: &Path, bytes: &[u8], at: u64) -> io::Result<File> {
    let aside = folder.join("note.new");
    let file = changes::create_empty(&aside, modes::PRIVATE_FILE)?;
    changes::write_at(&file, &[0; 2 * SLOT], 0)?;
    changes::write_at(&file, bytes, at)?;
    // Before the rename, as with the checkpoint.
    changes::sync(&file)?;
    changes::rename(&aside, &folder.join("note"))?;
    changes::sync_directory(folder)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes are written by the writer and claims by any thread, in any order: what is on the disk never goes back.
    #[test]
    fn a_note_that_comes_late_takes_nothing_back() {
        let path = std::env::temp_dir().join(format!("weir-note-{}", std::process::id()));
        let path = &path;
        std::fs::create_dir_all(path).expect("there is a folder for the test");
        let mut file = NoteFile::default();
        let mut seen = StoreNote::default();
        let mut count = |kind, text: &[u8]| seen.hand_in(kind, text).expect("it is short");
        let [first, second, third] = [
            count(NoteKind::Kept, b"1"),
            count(NoteKind::Claimed, b"2"),
            count(NoteKind::Kept, b"3"),
        ];
        let now = |file: &NoteFile| {
            let pair = NotePair::read(path, 7);
            assert_eq!(pair, file.pair);
            let text = |text: Option<Vec<u8>>| text.map_or(0, |text| text[0] - b'0');
            (text(pair.kept), text(pair.claimed))
        };
        let mut write = |kind, count, text: &[u8]| {
            file.write(path, 7, kind, count, text)
                .expect("it is written");
            now(&file)
        };
        assert_eq!(write(NoteKind::Claimed, second, b"2"), (0, 2));
        assert_eq!(write(NoteKind::Kept, first, b"1"), (1, 2));
        assert_eq!(
            write(NoteKind::Kept, third, b"3"),
            (3, 3),
            "it is a claim, too"
        );
        assert_eq!(write(NoteKind::Claimed, second, b"2"), (3, 3));
        assert_eq!(write(NoteKind::Claimed, 9, b"9"), (3, 9));
        // The next process finds both, and goes on in a file of its own.
        let mut next = NoteFile::found(NotePair::read(path, 7));
        next.write(path, 7, NoteKind::Claimed, 1, b"5")
            .expect("it is written");
        assert_eq!(now(&next), (3, 5));
        std::fs::remove_dir_all(path).expect("it is there");
    }
}
