//! `access_log … buffer= flush= gzip=`: lines are kept in memory and leave in batches.
//!
//! Every loop thread has a part of the buffer of its own, so that no two of them wait for each other; the lock on it
//! is there for the end of the process and for a reopen, which come from another thread. With one loop the order of
//! lines in the file is the order of requests, with several it is that within each batch.
//!
//! With `gzip` each batch is a gzip member of its own (RFC 1952, section 2.2 allows a file of several), made on a
//! thread of the pool.

use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rt::error_log::{Holder, LogFile};

use super::batch::Batch;

/// What `buffer=`, `flush=` and `gzip=` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffering {
    /// A batch has at most so many bytes.
    pub(crate) size: usize,
    /// No line waits longer.
    pub(crate) flush: Option<Duration>,
    /// The level of compression, 1 to 9.
    pub(crate) gzip: Option<u32>,
}

impl Buffering {
    /// `gzip` without a level.
    pub(crate) const FASTEST: u32 = 1;
    /// `gzip` without `buffer=`, in bytes.
    pub(crate) const COMPRESSED_SIZE: u64 = 64 * 1024;
}

/// A batch never grows larger, whatever `buffer=` says, in bytes: the sink below takes 8 megabytes at once.
const MAX_BATCH: usize = 2 << 20;

/// Parts of a buffer. With more loops than that some share one, which costs them a little waiting.
const PARTS: usize = 32;

/// A file that is written in batches.
pub(crate) struct Buffered {
    file: Arc<LogFile>,
    buffering: Buffering,
    parts: [Mutex<Part>; PARTS],
    compressor: Arc<Batch<Compress>>,
    itself: Weak<Buffered>,
}

#[derive(Default)]
struct Part {
    lines: Vec<u8>,
    /// A task waits to write the lines when their time has come.
    timed: bool,
}

/// A batch to compress.
struct Compress {
    lines: Vec<u8>,
    level: u32,
    file: Arc<LogFile>,
}

impl Buffered {
    pub(super) fn new(file: Arc<LogFile>, buffering: Buffering) -> Arc<Buffered> {
        let buffered = Arc::new_cyclic(|itself: &Weak<Buffered>| Buffered {
            file,
            buffering,
            parts: Default::default(),
            compressor: Batch::new(Compress::run),
            itself: itself.clone(),
        });
        let holder: Weak<dyn Holder> = buffered.itself.clone();
        buffered.file.add_holder(holder);
        buffered
    }

    pub(super) fn buffering(&self) -> Buffering {
        self.buffering
    }

    /// Appends a line. Only loops call this.
    pub(super) fn write(&self, line: &[u8]) {
        let size = self.buffering.size.min(MAX_BATCH);
        let index = own_part();
        let mut part = self.part(index);
        if part.lines.len() + line.len() > size {
            self.send(&mut part);
        }
        part.lines.extend_from_slice(line);
        if line.len() > size {
            self.send(&mut part);
        } else if let Some(after) = self.buffering.flush
            && !std::mem::replace(&mut part.timed, true)
        {
            let itself = self.itself.clone();
            rt::spawn(async move {
                rt::sleep(after).await;
                if let Some(buffered) = itself.upgrade() {
                    let mut part = buffered.part(index);
                    part.timed = false;
                    buffered.send(&mut part);
                }
            });
        }
    }

    fn part(&self, index: usize) -> MutexGuard<'_, Part> {
        self.parts[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the lines of a part over.
    fn send(&self, part: &mut Part) {
        if part.lines.is_empty() {
            return;
        }
        let Some(level) = self.buffering.gzip else {
            self.file.write(&part.lines);
            part.lines.clear();
            return;
        };
        let lines = std::mem::take(&mut part.lines);
        let compress = Compress {
            level,
            file: Arc::clone(&self.file),
            lines,
        };
        if let Err(compress) = self.compressor.add(compress.lines.len(), compress) {
            // The threads of the pool are behind. Better a loop that stands still for a moment than lost lines; and
            // for as long as it stands, it makes no new ones.
            self.compressor.empty();
            compress.run();
        }
    }

    fn send_all(&self) {
        for index in 0..PARTS {
            self.send(&mut self.part(index));
        }
        self.compressor.empty();
    }
}

impl Holder for Buffered {
    fn release(&self) {
        self.send_all();
    }
}

/// The configuration that named the file is gone, and with it everybody who writes here.
impl Drop for Buffered {
    fn drop(&mut self) {
        self.send_all();
    }
}

impl Compress {
    fn run(self) {
        let mut encoder = GzEncoder::new(
            Vec::with_capacity(self.lines.len() / 4),
            Compression::new(self.level),
        );
        // Neither can fail: the encoder writes to memory.
        if encoder.write_all(&self.lines).is_ok()
            && let Ok(compressed) = encoder.finish()
        {
            self.file.write(&compressed);
        }
    }
}

/// The part that belongs to this thread.
fn own_part() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PART: Cell<Option<usize>> = const { Cell::new(None) };
    }
    PART.get().unwrap_or_else(|| {
        let part = THREADS.fetch_add(1, Relaxed) % PARTS;
        PART.set(Some(part));
        part
    })
}
