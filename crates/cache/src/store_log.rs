//! The writer of a store: one at a time, on the device's pool, appending to two open segments.
//!
//! Work comes as jobs in a queue; a pool thread runs them in order until the queue is empty. Records are gathered in
//! a buffer per side and written a megabyte at a time, or when nothing more is to do. Only then does the index learn
//! of them ([`WriteCallback`]): a reader never meets a record that is not in the file. What this does not do: choose
//! what to let go (`reclaim.rs`), decide what is stored (`fill`).

use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rt::file::changes;

use crate::disk_space;
use crate::format::{DiskRecord, HEADER, SegmentHeader, TABLE_MAX, TableEntry, UNIT};
use crate::index::RecordLocation;
use crate::s3_fifo::GhostTable;
use crate::segment::{Segment, table_entry};
use crate::store_core::StoreCore;

/// A piece of work for the writer.
pub(crate) type WriterJob = Box<dyn FnOnce(&Arc<StoreCore>, &mut StoreLog) + Send>;
/// What to do once a record is in the file (true) or is lost (false).
pub(crate) type WriteCallback = Box<dyn FnOnce(&StoreCore, bool) + Send>;

/// A buffer is written when it has this many bytes, so that a disk gets few large writes.
const WRITE_BYTES: usize = 1024 * 1024;
/// After a failed write the store takes nothing for this long: a broken disk is not tried for every response.
const PAUSE: Duration = Duration::from_secs(5);
/// The most removals without a tombstone that are remembered one by one.
const UNMARKED_MAX: usize = 65_536;

/// The writer of a store: two open segments, and what waits for them to be written.
pub(crate) struct StoreLog {
    /// The small side and the main side.
    open: [Option<OpenSegment>; 2],
    /// What waits for the buffers to be written, in the order of the records.
    pending: Vec<WriteCallback>,
    pub(crate) ghosts: GhostTable,
    pub(crate) unmarked: UnmarkedRemovals,
    pub(crate) next_segment: u32,
    /// Set while a segment is reclaimed, so that a new segment does not start another one.
    pub(crate) reclaiming: bool,
    paused_until: Option<Instant>,
    /// Another process has the store now.
    given_away: bool,
}

/// Objects that have left the index without a tombstone since the last checkpoint: until the next one, a crash brings them
/// back, which is harmless as long as nothing has taken their place. An object that does is marked as one that replaced
/// another, so that it leaves a tombstone in its turn.
#[derive(Default)]
pub(crate) struct UnmarkedRemovals {
    hashes: HashSet<u64>,
    /// There were more than fit: every object counts as one of them.
    is_full: bool,
}

impl UnmarkedRemovals {
    pub(crate) fn remember(&mut self, hash: u64) {
        self.is_full |= self.hashes.len() >= UNMARKED_MAX;
        if !self.is_full {
            self.hashes.insert(hash);
        }
    }

    pub(crate) fn contains(&self, hash: u64) -> bool {
        self.is_full || self.hashes.contains(&hash)
    }

    /// A checkpoint that knows that they are gone is on the disk.
    pub(crate) fn clear(&mut self) {
        *self = UnmarkedRemovals::default();
    }
}

/// A segment that is being written.
struct OpenSegment {
    segment: Arc<Segment>,
    buffer: Vec<u8>,
    /// Where the buffer will stand in the file.
    written: u64,
    table: Vec<TableEntry>,
}

impl StoreLog {
    pub(crate) fn new(next_segment: u32) -> Self {
        Self {
            open: [None, None],
            pending: Vec::new(),
            ghosts: GhostTable::new(),
            unmarked: UnmarkedRemovals::default(),
            next_segment,
            reclaiming: false,
            paused_until: None,
            given_away: false,
        }
    }

    /// Refuses all that is appended from now on: the process that has the store next would not see it.
    pub(crate) fn give_away(&mut self) {
        self.given_away = true;
    }

    /// The numbers of the segments that are being written.
    pub(crate) fn open_segments(&self) -> impl Iterator<Item = u32> {
        self.open.iter().flatten().map(|open| open.segment.number)
    }

    /// Appends a record; `record.segment` is set here. What `done` gives runs when the record is in the file. After an
    /// error, the failure has been reported, and all that was pending knows that it is lost.
    pub(crate) fn append(
        &mut self,
        core: &Arc<StoreCore>,
        main: bool,
        record: DiskRecord,
        parts: (&[u8], &[u8]),
        done: impl FnOnce(RecordLocation) -> Option<WriteCallback>,
    ) -> io::Result<RecordLocation> {
        let result = self.try_append(core, main, record, parts);
        match result {
            Ok(location) => {
                self.pending.extend(done(location));
                let full = self.open[usize::from(main)]
                    .as_ref()
                    .is_some_and(|open| open.buffer.len() >= WRITE_BYTES);
                if full {
                    self.flush(core)?;
                }
                Ok(location)
            }
            Err(error) => {
                self.fail(core, &error);
                Err(error)
            }
        }
    }

    fn try_append(
        &mut self,
        core: &Arc<StoreCore>,
        main: bool,
        mut record: DiskRecord,
        (meta, data): (&[u8], &[u8]),
    ) -> io::Result<RecordLocation> {
        if self.given_away {
            return Err(io::Error::other("another process has the store"));
        }
        if self
            .paused_until
            .is_some_and(|until| rt::clock::read_clock() < until)
        {
            return Err(io::Error::other("the store rests after a failed write"));
        }
        record.meta_len = meta.len() as u32;
        record.data_len = data.len() as u32;
        let open = self.segment_for(core, main, record.size())?;
        let position = open.written + open.buffer.len() as u64;
        record.segment = open.segment.number;
        record.write(meta, data, &mut open.buffer);
        let entry = table_entry(&record, position);
        open.table.push(entry);
        Ok(RecordLocation {
            segment: record.segment,
            at: entry.at,
            units: entry.units,
        })
    }

    /// The open segment of a side with room for `size` bytes more; a new one when it is full.
    fn segment_for(
        &mut self,
        core: &Arc<StoreCore>,
        main: bool,
        size: u64,
    ) -> io::Result<&mut OpenSegment> {
        let side = usize::from(main);
        let full = self.open[side].as_ref().is_some_and(|open| {
            let used = open.written + open.buffer.len() as u64;
            // A record that is larger than a segment gets one of its own: an empty segment takes anything.
            open.table.len() >= TABLE_MAX
                || (used + size > core.options.segment_size() && used > HEADER as u64)
        });
        if full {
            // The records before the table that lists them.
            self.write_buffers(core)?;
            if let Some(open) = self.open[side].take() {
                open.segment.finish(&open.table, open.written)?;
            }
        }
        if self.open[side].is_none() {
            if !self.reclaiming {
                crate::reclaim::make_room(core, self)?;
            }
            // Reclaiming may have opened the main side meanwhile.
            if self.open[side].is_none() {
                self.open[side] = Some(self.begin(core, main)?);
            }
        }
        self.open[side]
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn begin(&mut self, core: &StoreCore, main: bool) -> io::Result<OpenSegment> {
        let header = SegmentHeader {
            seed: core.seed,
            number: self.next_segment,
            main,
        };
        self.next_segment += 1;
        // Drawn before the first record: whether a segment can have something for a purge to hit is judged by this
        // number.
        let first = core.next_sequence();
        let segment = Segment::create(&core.options.path, header, first)?;
        // Known before any record of it is, so that an entry of the index always leads to a file.
        core.segments
            .write()
            .insert(segment.number, Arc::clone(&segment));
        Ok(OpenSegment {
            segment,
            buffer: Vec::new(),
            written: HEADER as u64,
            table: Vec::new(),
        })
    }

    /// Writes the buffers, then does what waited for that.
    pub(crate) fn flush(&mut self, core: &Arc<StoreCore>) -> io::Result<()> {
        let written = self.write_buffers(core);
        if let Err(error) = &written {
            self.fail(core, error);
        }
        written
    }

    fn write_buffers(&mut self, core: &StoreCore) -> io::Result<()> {
        for open in self
            .open
            .iter_mut()
            .flatten()
            .filter(|open| !open.buffer.is_empty())
        {
            // Reclaiming may use the reserve: it needs a little room to free much.
            if !self.reclaiming {
                disk_space::take_space(core, open.buffer.len() as u64)?;
            }
            open.segment.write(&open.buffer, open.written)?;
            open.written += open.buffer.len() as u64;
            core.written.fetch_add(open.buffer.len() as u64, Relaxed);
            open.buffer.clear();
        }
        if !self.pending.is_empty() {
            // The disk takes writes again: what was reported is over.
            core.clear_error();
        }
        // Only after both buffers: an object record on one side may refer to bodies on the other.
        for done in self.pending.drain(..) {
            done(core, true);
        }
        Ok(())
    }

    /// Gives up what is not in the files. The open segments are left as they are: the next start reads them record by
    /// record, and until then nothing points behind what was written.
    fn fail(&mut self, core: &Arc<StoreCore>, error: &io::Error) {
        // Failures within the pause follow from the first one: one report and one attempt to make room are enough.
        let first = self
            .paused_until
            .is_none_or(|until| rt::clock::read_clock() >= until);
        // Never continued: what a failed write has left in them behind the last record is not known.
        let left: Vec<OpenSegment> = self.open.iter_mut().filter_map(Option::take).collect();
        for done in self.pending.drain(..) {
            done(core, false);
        }
        if first && disk_space::is_full(error) {
            disk_space::truncate_segments(
                core,
                left.iter().map(|open| (&open.segment, &open.table[..])),
            );
            disk_space::check_space(core, self);
        }
        if first {
            self.paused_until = Some(rt::clock::read_clock() + PAUSE);
            core.report_error(&format!("writing to the cache failed: {error}"));
        }
    }

    /// Waits until what was written to the open segment of a side is on the disk. Segments that were finished are.
    pub(crate) fn sync_side(&self, main: bool) -> io::Result<()> {
        match &self.open[usize::from(main)] {
            Some(open) => changes::sync(&open.segment.file),
            None => Ok(()),
        }
    }

    /// Finishes the open segments, so that the next start reads two tables instead of two files.
    pub(crate) fn finish(&mut self, core: &Arc<StoreCore>) -> io::Result<()> {
        self.flush(core)?;
        for open in self.open.iter_mut().filter_map(Option::take) {
            open.segment.finish(&open.table, open.written)?;
        }
        Ok(())
    }
}

/// The position in the file of the first data byte of a record.
pub(crate) fn data_position(location: RecordLocation, meta_len: usize) -> u64 {
    u64::from(location.at) * UNIT + HEADER as u64 + meta_len as u64
}

/// Runs jobs until there is none: the body of the writer on its pool thread.
pub(crate) fn run_writer_jobs(core: &Arc<StoreCore>) {
    let mut log = core.log.lock();
    loop {
        let jobs = std::mem::take(&mut core.queue().jobs);
        if jobs.is_empty() {
            // A failure has been reported to those that wait.
            let _ = log.flush(core);
            // Looked at again under the lock: a job that came during the flush found a writer at work, and started
            // none.
            let mut queue = core.queue();
            if queue.jobs.is_empty() {
                queue.running = false;
                return;
            }
            continue;
        }
        for job in jobs {
            // A panic must not end the writer: the queue would count as served, and no job would ever run again.
            let ran = catch_unwind(AssertUnwindSafe(|| job(core, &mut log)));
            if ran.is_err() {
                log.fail(core, &io::Error::other("the writer panicked"));
            }
        }
    }
}
