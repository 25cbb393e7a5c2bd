//! Sends what a response takes from files: by `sendfile` what is in memory, by a copy what is small, what TLS encrypts,
//! and what cannot be had or asked for otherwise.

use std::io;

use proto::message::ResponseFraming;
use rt::file::ProbeClient;

use super::sender::{GATHER, Http1Sender, READ_FILES_UP_TO, SendJob};
use crate::ledger::LedgerPhase;
use crate::request::Request;
use crate::response_body::{BodyError, FileRange};
use crate::response_send::{ResponseSendError, aio_pool, file_error};

/// How much a thread of the pool brings into memory at a time, in bytes. Measured in
/// `docs/design/2026-11-21-cold-reads.md`.
const COLD_PIECE: u64 = 512 * 1024;

/// How much the page cache is asked about at a time, in bytes: hardly more than a socket accepts at once.
const ASKED_PIECE: u64 = 1024 * 1024;

/// Up to this size the output waits for what follows, and is kept for a client that takes nothing, in bytes.
const KEPT_OUTPUT: usize = 4 * 1024;

/// How much is copied at a time from a file that `sendfile` cannot be used for, in bytes: every slow client holds as
/// much memory.
const COPIED_PIECE: u64 = 64 * 1024;

/// What became of output that was read from a file.
#[derive(Default)]
struct FlushedCopy {
    /// How many bytes of its end were dropped, to be read again.
    dropped: u64,
    /// The client is slow, and the caller has to stop ([`SendJob::stops`]).
    is_stopped: bool,
}

impl Http1Sender {
    /// Sends a range of a file, part by part. If the client turns out to be slow and the rest of the range can be begun with
    /// again, that is returned.
    pub(super) async fn file(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        range: FileRange,
    ) -> Result<Option<FileRange>, ResponseSendError> {
        job.stops = job.may_stop(request);
        let mut offset = range.offset;
        let end = range.offset + range.length;
        // How much of the output's end was read from the range, and can be read again.
        let mut copied = 0;
        while offset < end {
            let mut want = (end - offset).min(job.portion);
            if job.pace.is_some() {
                want = want.min(self.pace(request, job).await?);
            }
            // TLS has to encrypt a copy, direct I/O has no pages in the cache to send from, and a small rest is cheaper
            // to copy.
            let read = !job.sendfile
                || self.bytes.transport.is_tls()
                || range.file.is_direct()
                || end - offset <= READ_FILES_UP_TO;
            let sent = if read {
                let want = want.min(job.buffer as u64).min(self.room(job, &range));
                copied += want;
                self.read_file(request, job, &range, offset, want).await?
            } else {
                copied = 0;
                // The chunk is announced before the file is sent. If the file turns out shorter the connection has to
                // be closed.
                self.begin_chunk(job, want);
                let sent = self.send_file(request, job, &range, offset, want).await?;
                if sent < want {
                    return Ok(Some(range.rest_from(offset + sent)));
                }
                self.end_chunk(job);
                want
            };
            offset += sent;
            job.paid(sent);
            // The last part leaves here, too, unless it is so small that it may wait for what follows.
            let is_much = self.out.len()
                >= if offset < end {
                    self.most_output()
                } else {
                    KEPT_OUTPUT
                };
            if job.pace.is_some() || is_much && job.framing == ResponseFraming::Chunked {
                self.flush(request, job).await?;
                copied = 0;
            } else if is_much {
                let flushed = self.flush_copied(request, job, copied).await?;
                offset -= flushed.dropped;
                // If only a head is left of the output, it is the caller's to send.
                if flushed.is_stopped && offset < end {
                    return Ok(Some(range.rest_from(offset)));
                }
                copied = 0;
            }
            if offset < end && job.pace.is_none() {
                // Other connections get their turn between two portions.
                rt::yield_now().await;
            }
        }
        Ok(None)
    }

    /// How much of a file is read before the output is sent. With TLS that is a whole number of records, counting the
    /// head in front: the head must not end up in a record of its own few bytes.
    fn room(&self, job: &SendJob, range: &FileRange) -> u64 {
        let whole = self.bytes.transport.is_tls()
            && job.framing != ResponseFraming::Chunked
            && !range.file.is_direct()
            && self.out.len() < GATHER;
        match whole {
            true => (GATHER - self.out.len()) as u64,
            false => u64::MAX,
        }
    }

    /// Sends the output, whose last `copied` bytes come from a file. If the client takes nothing for a while, they are
    /// dropped and have to be read again: a thousand slow clients would hold a thousand copies.
    async fn flush_copied(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        copied: u64,
    ) -> Result<FlushedCopy, ResponseSendError> {
        let mut at = 0;
        while at < self.out.len() {
            match self.bytes.transport.try_write(&self.out[at..]) {
                Ok(n) => {
                    self.bytes.count_sent(n);
                    at += n;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(ResponseSendError::Failed(error));
                }
                Err(_) => {
                    job.waited = self.patience(job);
                    if self.is_writable_within(request, job.waited).await? {
                        continue;
                    }
                    self.note_slow_client();
                    let dropped = copied.min((self.out.len() - at) as u64);
                    let kept = self.out.len() - dropped as usize;
                    let kept = self.out[at..kept].to_vec();
                    self.release();
                    self.out = kept;
                    if !job.stops {
                        self.wait_longer(request, job).await?;
                        self.flush(request, job).await?;
                    }
                    return Ok(FlushedCopy {
                        dropped,
                        is_stopped: job.stops,
                    });
                }
            }
        }
        self.out.clear();
        self.finish_write(request, job.timeout).await?;
        Ok(FlushedCopy::default())
    }

    /// Reads a part of a file into the output. Returns how much, which is all of it or an error.
    async fn read_file(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        range: &FileRange,
        offset: u64,
        length: u64,
    ) -> Result<u64, ResponseSendError> {
        self.begin_chunk(job, length);
        let mut done = 0;
        while done < length {
            let want = (length - done) as usize;
            let n = match range.file.try_read_into(&mut self.out, want, offset + done) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.read_cold(request, range, offset + done, want).await?
                }
                Err(error) => return Err(file_error(&error)),
            };
            // The file was truncated after its length had been announced. There is nothing to fill the gap with.
            if n == 0 {
                return Err(ResponseSendError::Body(BodyError::FileTruncated));
            }
            done += n as u64;
        }
        self.end_chunk(job);
        Ok(length)
    }

    /// Reads a part of a file that is not in the page cache, on a thread of the pool.
    async fn read_cold(
        &mut self,
        request: &mut Request,
        range: &FileRange,
        offset: u64,
        want: usize,
    ) -> Result<usize, ResponseSendError> {
        let former = request.ledger.enter(LedgerPhase::Disk);
        let pool = aio_pool(request);
        // The output buffer itself goes to the pool and back. Fresh memory for each read would come from `mmap`, whose
        // lock is held by threads of the pool that are faulting in pages.
        let before = self.out.len();
        let out = std::mem::take(&mut self.out);
        self.out = range
            .file
            .read_at(out, offset, want, &pool)
            .await
            .map_err(|error| file_error(&error))?;
        request.ledger.enter(former);
        Ok(self.out.len() - before)
    }

    /// Sends a part of a file by `sendfile`, as much at a time as is in memory. Returns how much: less if the client is slow and
    /// [`SendJob::stops`].
    async fn send_file(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        range: &FileRange,
        offset: u64,
        length: u64,
    ) -> Result<u64, ResponseSendError> {
        let end = offset + length;
        let mut at = offset;
        // The head has to be in the socket before `sendfile` writes there.
        if job.full_packets {
            self.flush_more(request, job).await?;
        } else {
            self.flush(request, job).await?;
        }
        // How far the pool has brought the file into memory.
        let mut loaded = at;
        // How far the page cache has been asked on behalf of this client. Asking again is not another use of the pages.
        let mut asked = at;
        while at < end {
            let taker = match at < asked {
                true => ProbeClient::Same,
                false => ProbeClient::New,
            };
            let piece = (end - at).min(ASKED_PIECE);
            let resident = range.file.resident_prefix_for(taker, at, piece);
            asked = asked.max(at + resident.max(1));
            if resident == 0 {
                let piece = (end - at).min(COLD_PIECE);
                // Once per piece. If it was loaded and is not there any more the kernel has dropped it, and loading it
                // again could go on forever: then it is copied.
                if loaded <= at && range.file.tells_residency() {
                    self.load(request, range, at, piece).await?;
                    loaded = at + piece;
                } else {
                    if loaded > at {
                        range.file.note_evicted();
                    }
                    at += self.send_copy(request, job, range, at, piece).await?;
                }
                continue;
            }
            let want = resident.min(end - at) as usize;
            let mut position = at;
            let sent =
                match self
                    .bytes
                    .transport
                    .socket()
                    .try_sendfile(&range.file, &mut position, want)
                {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // Back to asking the page cache: while a slow client made this wait, the kernel may have
                        // dropped the pages, and `sendfile` would block the loop.
                        if !self.writable(request, job).await? {
                            return Ok(at - offset);
                        }
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(ResponseSendError::Failed(error)),
                    Ok(n) => n as u64,
                };
            if sent == 0 {
                return Err(ResponseSendError::Body(BodyError::FileTruncated));
            }
            self.bytes.count_sent(sent as usize);
            at += sent;
        }
        Ok(length)
    }

    /// Brings a part of a file into the page cache, from where `sendfile` takes it. The device starts with the
    /// following part at the same time, so that it has work while this one is sent.
    async fn load(
        &self,
        request: &mut Request,
        range: &FileRange,
        offset: u64,
        length: u64,
    ) -> Result<(), ResponseSendError> {
        let former = request.ledger.enter(LedgerPhase::Disk);
        let pool = aio_pool(request);
        let rest = (range.offset + range.length).saturating_sub(offset + length);
        range
            .file
            .load_range(offset, length, rest, &pool)
            .await
            .map_err(|error| file_error(&error))?;
        request.ledger.enter(former);
        Ok(())
    }

    /// Sends a part of a file from a copy. Loaded pages may be dropped by the kernel before they are sent, and some
    /// file systems cannot tell what is in memory; `sendfile` would then block the loop. Returns how much was sent.
    async fn send_copy(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        range: &FileRange,
        offset: u64,
        length: u64,
    ) -> Result<u64, ResponseSendError> {
        let want = length.min(COPIED_PIECE) as usize;
        match self.read_cold(request, range, offset, want).await? {
            0 => Err(ResponseSendError::Body(BodyError::FileTruncated)),
            n => {
                self.flush(request, job).await?;
                Ok(n as u64)
            }
        }
    }
}
