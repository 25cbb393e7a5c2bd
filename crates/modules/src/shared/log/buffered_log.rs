//! `access_log … buffer= flush= gzip=`: lines are collected in memory and written in batches.
//!
//! Each loop thread has its own shard of the buffer, so that loops do not contend. The shard's lock
//! exists for shutdown and for reopening, which come from another thread. With one loop, lines are
//! in the order of the requests; with several, only within each batch.
//!
//! With `gzip`, each batch is a gzip member of its own, compressed on a pool thread; a file can
//! consist of several members (RFC 1952, section 2.2).

use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use flate2::Compression;
use flate2::write::GzEncoder;
use host::error_log::{LineBuffer, LogFile};

use super::ordered_work::OrderedWork;

/// The parameters `buffer=`, `flush=` and `gzip=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogBuffering {
    /// The maximum size of a batch, in bytes.
    pub(crate) size: usize,
    /// The longest time that a line waits.
    pub(crate) flush: Option<Duration>,
    /// The compression level, 1 to 9.
    pub(crate) gzip: Option<u32>,
}

impl LogBuffering {
    /// `gzip` without a level.
    pub(crate) const FASTEST: u32 = 1;
    /// `gzip` without `buffer=`, in bytes.
    pub(crate) const COMPRESSED_SIZE: u64 = 64 * 1024;
}

/// The upper bound for a batch, whatever `buffer=` says, in bytes: the writer below accepts 8
/// megabytes at a time.
const MAX_BATCH: usize = 2 << 20;

/// The number of shards. With more loops, some share one, which costs them a little waiting.
const SHARDS: usize = 32;

/// A log file written in batches.
pub(crate) struct BufferedLog {
    file: Arc<LogFile>,
    buffering: LogBuffering,
    shards: [Mutex<BufferShard>; SHARDS],
    compressor: Arc<OrderedWork<GzipBatch>>,
    /// For the flush task, which must not keep the log of an old configuration alive.
    weak_self: Weak<BufferedLog>,
}

/// The lines of one loop thread.
#[derive(Default)]
struct BufferShard {
    lines: Vec<u8>,
    /// A flush task is scheduled.
    flush_is_scheduled: bool,
}

/// A batch to compress.
struct GzipBatch {
    lines: Vec<u8>,
    level: u32,
    file: Arc<LogFile>,
}

impl BufferedLog {
    /// A buffer for a log. The file knows it, so that its lines are written before the file is
    /// reopened or closed.
    pub(super) fn new(file: Arc<LogFile>, buffering: LogBuffering) -> Arc<BufferedLog> {
        let buffered = Arc::new_cyclic(|itself: &Weak<BufferedLog>| BufferedLog {
            file,
            buffering,
            shards: Default::default(),
            compressor: OrderedWork::new(GzipBatch::run),
            weak_self: itself.clone(),
        });
        let buffer: Weak<dyn LineBuffer> = buffered.weak_self.clone();
        buffered.file.add_buffer(buffer);
        buffered
    }

    /// The parameters of the line, which all lines with this file have to share.
    pub(super) fn buffering(&self) -> LogBuffering {
        self.buffering
    }

    /// Appends a line. Called on loops only, since it may spawn a task.
    pub(super) fn write(&self, line: &[u8]) {
        let size = self.buffering.size.min(MAX_BATCH);
        let index = shard_of_thread();
        let mut part = self.shard(index);
        // A line is never split between batches: programs that read the log take them one by one.
        if part.lines.len() + line.len() > size {
            self.send(&mut part);
        }
        part.lines.extend_from_slice(line);
        if line.len() > size {
            self.send(&mut part);
        } else if let Some(after) = self.buffering.flush
            && !std::mem::replace(&mut part.flush_is_scheduled, true)
        {
            let itself = self.weak_self.clone();
            rt::spawn(async move {
                rt::sleep(after).await;
                if let Some(buffered) = itself.upgrade() {
                    let mut part = buffered.shard(index);
                    part.flush_is_scheduled = false;
                    buffered.send(&mut part);
                }
            });
        }
    }

    /// A shard, locked. Loops rarely share one, so the lock is mostly free.
    fn shard(&self, index: usize) -> MutexGuard<'_, BufferShard> {
        self.shards[index].lock()
    }

    /// Passes the lines of a shard on to the file or to the compressor.
    fn send(&self, part: &mut BufferShard) {
        if part.lines.is_empty() {
            return;
        }
        let Some(level) = self.buffering.gzip else {
            self.file.write(&part.lines);
            part.lines.clear();
            return;
        };
        let lines = std::mem::take(&mut part.lines);
        let compress = GzipBatch {
            level,
            file: Arc::clone(&self.file),
            lines,
        };
        if let Err(compress) = self.compressor.push(compress.lines.len(), compress) {
            // The pool is behind. Blocking this loop for a moment is better than losing lines, and
            // while it is blocked it produces no new ones.
            self.compressor.drain();
            compress.run();
        }
    }

    /// Writes everything, including what waits for the compressor.
    fn send_all(&self) {
        for index in 0..SHARDS {
            self.send(&mut self.shard(index));
        }
        self.compressor.drain();
    }
}

impl LineBuffer for BufferedLog {
    fn flush_lines(&self) {
        self.send_all();
    }
}

/// The configuration that named the file is gone, and with it all writers.
impl Drop for BufferedLog {
    fn drop(&mut self) {
        self.send_all();
    }
}

impl GzipBatch {
    /// Compresses a batch and writes it.
    fn run(self) {
        let mut encoder = GzEncoder::new(
            Vec::with_capacity(self.lines.len() / 4),
            Compression::new(self.level),
        );
        // Neither call can fail, since the encoder writes to memory.
        if encoder.write_all(&self.lines).is_ok()
            && let Ok(compressed) = encoder.finish()
        {
            self.file.write(&compressed);
        }
    }
}

/// The shard of the calling thread, assigned at its first line.
fn shard_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    rt::local! {
        static PART: Cell<Option<usize>> = const { Cell::new(None) };
    }
    PART.get().unwrap_or_else(|| {
        let part = THREADS.fetch_add(1, Relaxed) % SHARDS;
        PART.set(Some(part));
        part
    })
}
