//! The temporary file of a response that is larger than its buffers and faster than its client.
//!
//! Data is gathered in memory, written in batches by the thread pool, and comes back as ranges of the file. The file's
//! name is removed as soon as it is open, so that a crash leaves nothing behind.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use base::ErrnoText;
use bytes::Bytes;
use host::error_log::LogLevel;
use host::tight_memory::is_tight;
use rt::file::File;

use super::upstream_settings::UpstreamSettings;
use crate::body_reader::create_temporary;
use crate::memory_peak;
use crate::request::Request;
use crate::response_body::{BodyChunk, FileRange};

/// The maximum size of a temporary file, unless it is configured, in bytes. The default is nginx's.
const DEFAULT_MAX: u64 = 1 << 30;

/// The file, and the data on its way into it.
pub(super) struct ResponseSpool {
    folder: PathBuf,
    /// 0: there is no file.
    max: u64,
    batch_size: usize,
    file: Option<File>,
    /// The number of bytes in the file: the position of the next write.
    written: u64,
    /// Data that is waiting to be written.
    batch: Vec<u8>,
    writing: Option<SpoolWriting>,
    /// What is being written precedes everything that is in the queue.
    is_parking: bool,
    /// New data goes to the file rather than to the queue in memory.
    active: bool,
}

/// The file, its path if it has just been created, and the buffer for reuse.
type SpoolWritten = io::Result<(File, Option<PathBuf>, Vec<u8>)>;
type SpoolWriting = Pin<Box<dyn Future<Output = SpoolWritten>>>;

impl ResponseSpool {
    /// A spool by the settings of the location. It creates nothing yet.
    pub(super) fn new(settings: &UpstreamSettings, buffering: bool) -> ResponseSpool {
        let largest = settings.buffer_size.max(settings.buffers.size);
        let batch = settings.temp_file_write_size.unwrap_or(2 * largest);
        ResponseSpool {
            folder: if buffering {
                settings.temp_path.clone()
            } else {
                PathBuf::new()
            },
            max: if buffering {
                settings.max_temp_file_size.unwrap_or(DEFAULT_MAX)
            } else {
                0
            },
            batch_size: usize::try_from(batch).unwrap_or(usize::MAX).max(1),
            file: None,
            written: 0,
            batch: Vec::new(),
            writing: None,
            is_parking: false,
            active: false,
        }
    }

    /// Whether the file has room for what is taken out of memory, this many bytes.
    pub(super) fn may_park(&self, bytes: u64) -> bool {
        self.written + self.unwritten() + bytes <= self.max
    }

    /// Whether something is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether the beginning of what is left for the client is being written: until it has been, there is nothing for
    /// the client.
    pub(super) fn is_parking(&self) -> bool {
        self.is_parking
    }

    /// Writes what precedes everything in the queue: a slow client has left it in memory. Nothing else must be being
    /// written. What follows goes to the file as well, until the client has caught up.
    pub(super) fn park(&mut self, data: Vec<u8>) {
        self.active = true;
        self.is_parking = true;
        self.begin_write(data);
    }

    fn begin_write(&mut self, data: Vec<u8>) {
        let (file, folder, offset) = (self.file.clone(), self.folder.clone(), self.written);
        self.writing = Some(Box::pin(write(file, folder, data, offset)));
    }

    /// Directs further data to the file. `false` if there must be no file, or if it is full.
    pub(super) fn begin(&mut self, _request: &mut Request) -> bool {
        self.active = self.active || self.written < self.max;
        self.active
    }

    /// Whether new data goes to the file.
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Whether the file accepts no more at the moment. Up to two batches may wait besides the one that is being
    /// written, and none while memory is tight; beyond that, the upstream waits for the disk.
    pub(super) fn is_full(&self) -> bool {
        if is_tight() && self.is_writing() {
            return true;
        }
        self.active
            && (self.written + self.batch.len() as u64 >= self.max
                || self.batch.len() >= 2 * self.batch_size)
    }

    /// Whether some data has not come back yet.
    pub(super) fn is_busy(&self) -> bool {
        self.writing.is_some() || !self.batch.is_empty()
    }

    /// The number of bytes that are waiting to be written.
    pub(super) fn unwritten(&self) -> u64 {
        self.batch.len() as u64
    }

    /// Adds data that is to be written.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.batch.extend_from_slice(data);
    }

    /// Called when the client has read everything that was written. What is still in memory goes to the client
    /// directly, and so does what follows.
    pub(super) fn take_unwritten(&mut self) -> Option<Bytes> {
        // The data that is being written comes before what is waiting.
        if self.writing.is_some() {
            return None;
        }
        self.active = false;
        let batch = std::mem::take(&mut self.batch);
        (!batch.is_empty()).then(|| Bytes::from(batch))
    }

    /// Continues to write. What has been written is put into `queue`. An error has been logged.
    pub(super) fn poll(
        &mut self,
        request: &mut Request,
        queue: &mut VecDeque<BodyChunk>,
        ended: bool,
        context: &mut Context<'_>,
    ) -> Result<(), ()> {
        loop {
            if let Some(writing) = &mut self.writing {
                let Poll::Ready(result) = writing.as_mut().poll(context) else {
                    return Ok(());
                };
                self.writing = None;
                let is_first = std::mem::take(&mut self.is_parking);
                let (file, path, data) = result.map_err(|error| {
                    let folder = self.folder.display();
                    request.log_while(
                        LogLevel::Crit,
                        "reading upstream",
                        format_args!(
                            "writing a temporary file in \"{folder}\" failed{}",
                            ErrnoText(&error)
                        ),
                    );
                })?;
                if let Some(path) = path {
                    let path = path.display();
                    request.log_while(
                        LogLevel::Warn,
                        "reading upstream",
                        format_args!("an upstream response is buffered to a temporary file {path}"),
                    );
                }
                let length = data.len() as u64;
                match is_first {
                    true => {
                        memory_peak::note_dropped(data.len());
                        let offset = self.written;
                        queue.push_front(BodyChunk::File(FileRange {
                            file: file.clone(),
                            offset,
                            length,
                        }));
                    }
                    false => append(queue, &file, self.written, length),
                }
                self.file = Some(file);
                self.written += length;
                // The buffer of the previous batch is reused for the next one.
                if self.batch.is_empty() && !ended && !is_first {
                    self.batch = data;
                    self.batch.clear();
                }
            }
            // At the end, a last batch is written even if it is small.
            if self.batch.len() < self.batch_size && (!ended || self.batch.is_empty()) {
                return Ok(());
            }
            let batch = std::mem::take(&mut self.batch);
            self.begin_write(batch);
        }
    }
}

/// Writes a batch, and creates the file for the first one.
async fn write(file: Option<File>, folder: PathBuf, data: Vec<u8>, offset: u64) -> SpoolWritten {
    let (file, path) = match file {
        Some(file) => (file, None),
        None => {
            let (file, path) = create_temporary(&folder, false).await?;
            (file, Some(path))
        }
    };
    let data = file
        .write_all_at(data, offset, &rt::pool::default_pool())
        .await?;
    Ok((file, path, data))
}

/// Adds a range of the file to the queue. It is merged with the previous one if it follows that, so that `sendfile` can
/// send both with one call.
fn append(queue: &mut VecDeque<BodyChunk>, file: &File, offset: u64, length: u64) {
    match queue.back_mut() {
        Some(BodyChunk::File(range)) if range.offset + range.length == offset => {
            range.length += length
        }
        _ => queue.push_back(BodyChunk::File(FileRange {
            file: file.clone(),
            offset,
            length,
        })),
    }
}
