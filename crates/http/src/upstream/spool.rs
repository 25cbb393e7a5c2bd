//! The temporary file of a response that is larger than its buffers and faster than its client.
//!
//! Data gathers in memory, is written in batches on the pool, and comes back as ranges of the file. The file has no
//! name from the moment it is open, so that nothing is left behind.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use base::Errno;
use bytes::Bytes;
use host::error_log::Level;
use rt::file::File;

use super::settings::Settings;
use crate::body::{Chunk, FileRange};
use crate::body_reader::create_temporary;
use crate::request::Request;

/// The bound of a temporary file that is not configured, in bytes.
const DEFAULT_MAX: u64 = 1 << 30;

/// See the module's page.
pub(super) struct Spool {
    folder: PathBuf,
    max: u64,
    batch_size: usize,
    file: Option<File>,
    written: u64,
    batch: Vec<u8>,
    writing: Option<Writing>,
    active: bool,
}

type Written = io::Result<(File, Option<PathBuf>, Vec<u8>)>;
type Writing = Pin<Box<dyn Future<Output = Written>>>;

impl Spool {
    pub(super) fn new(settings: &Settings, buffering: bool) -> Spool {
        let largest = settings.buffer_size.max(settings.buffers.size);
        let batch = settings.temp_file_write_size.unwrap_or(2 * largest);
        Spool {
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
            active: false,
        }
    }

    /// Sends what comes next to the file. `false` when there is to be none, or it is full.
    pub(super) fn begin(&mut self, _request: &mut Request) -> bool {
        self.active = self.active || self.written < self.max;
        self.active
    }

    /// Whether data goes to the file now.
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Whether the file takes no more for now.
    pub(super) fn is_full(&self) -> bool {
        self.active
            && (self.written + self.batch.len() as u64 >= self.max
                || self.batch.len() >= 2 * self.batch_size)
    }

    /// Whether something has still to come back.
    pub(super) fn is_busy(&self) -> bool {
        self.writing.is_some() || !self.batch.is_empty()
    }

    pub(super) fn unwritten(&self) -> u64 {
        self.batch.len() as u64
    }

    pub(super) fn add(&mut self, data: &[u8]) {
        self.batch.extend_from_slice(data);
    }

    /// The client has caught up: what is not written yet goes to it directly, and so does what follows.
    pub(super) fn take_unwritten(&mut self) -> Option<Bytes> {
        if self.writing.is_some() {
            return None;
        }
        self.active = false;
        let batch = std::mem::take(&mut self.batch);
        (!batch.is_empty()).then(|| Bytes::from(batch))
    }

    /// Goes on writing. What was written is put into `queue`. An error has been logged.
    pub(super) fn poll(
        &mut self,
        request: &mut Request,
        queue: &mut VecDeque<Chunk>,
        ended: bool,
        context: &mut Context<'_>,
    ) -> Result<(), ()> {
        loop {
            if let Some(writing) = &mut self.writing {
                let Poll::Ready(result) = writing.as_mut().poll(context) else {
                    return Ok(());
                };
                self.writing = None;
                let (file, path, data) = result.map_err(|error| {
                    let folder = self.folder.display();
                    request.log(Level::Crit, format_args!("writing a temporary file in \"{folder}\" failed{} while reading upstream", Errno(&error)));
                })?;
                if let Some(path) = path {
                    let path = path.display();
                    request.log(Level::Warn, format_args!("an upstream response is buffered to a temporary file {path} while reading upstream"));
                }
                let length = data.len() as u64;
                append(queue, &file, self.written, length);
                self.file = Some(file);
                self.written += length;
                if self.batch.is_empty() {
                    self.batch = data;
                    self.batch.clear();
                }
            }
            if self.batch.len() < self.batch_size && (!ended || self.batch.is_empty()) {
                return Ok(());
            }
            let (file, folder, offset) = (self.file.clone(), self.folder.clone(), self.written);
            self.writing = Some(Box::pin(write(
                file,
                folder,
                std::mem::take(&mut self.batch),
                offset,
            )));
        }
    }
}

async fn write(file: Option<File>, folder: PathBuf, data: Vec<u8>, offset: u64) -> Written {
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

/// Adds a range of the file to the queue, to the one before it if it follows that.
fn append(queue: &mut VecDeque<Chunk>, file: &File, offset: u64, length: u64) {
    match queue.back_mut() {
        Some(Chunk::File(range)) if range.offset + range.length == offset => range.length += length,
        _ => queue.push_back(Chunk::File(FileRange {
            file: file.clone(),
            offset,
            length,
        })),
    }
}
