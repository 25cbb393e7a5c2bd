//! Reads the content of a request into memory, and into a temporary file when it is large.
//!
//! How the bytes arrive is the protocol's business, behind [`BodyInput`]. Handlers either read all of it first
//! ([`read_body`]), or take it piece by piece ([`RequestBody::poll_read`]) when they pass it on unbuffered.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;

use crate::buffers;
use crate::core::BodyInFile;
use crate::request::Request;
use crate::response_body::ResponseBody;

pub use crate::request_body::{BodyInput, BodyReadError, RequestBody, TemporaryFile};

/// How much is copied from file to file at once, in bytes.
const COPY_SIZE: u64 = 256 * 1024;

/// How much one read takes from a connection that sends content, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// How much is written to the file at a time, in bytes, if that much is at hand: each write is a trip to another thread
/// and back. It is never waited for, so that a slow client occupies no more memory than `client_body_buffer_size`.
const WRITE_SIZE: usize = 128 * 1024;

impl RequestBody {
    /// The content as a response body, after [`read_body`].
    pub fn to_body(&self) -> ResponseBody {
        match &self.file {
            Some(file) => ResponseBody::file(file.file.clone(), 0, self.length),
            None => ResponseBody::bytes(Bytes::copy_from_slice(&self.memory)),
        }
    }
}

/// Reads the whole content of the request. The error is the status to answer with; it has been logged.
pub async fn read_body(request: &mut Request) -> Result<(), u16> {
    if request.body.complete {
        return Ok(());
    }
    // `client_body_in_file_only`: the file is created first, so that even small content ends up in it.
    let in_file = request.core().body_in_file_only;
    if in_file != BodyInFile::Off {
        let file = open_file(request, in_file).await?;
        warn_of_file(request, &file);
    }
    read_rest(request).await
}

/// Reads content that has arrived completely into memory. `client_body_in_file_only` does not apply: this content is
/// passed on as it comes. Errors are those of [`read_body`].
pub(crate) async fn read_arrived(request: &mut Request) -> Result<(), u16> {
    match request.body.complete {
        true => Ok(()),
        false => read_rest(request).await,
    }
}

/// Reads the whole content into a file with a name, for a handler that renames it to its place
/// ([`TemporaryFile::mark_moved`]). A file that is not moved is removed with the request. Errors are those of
/// [`read_body`].
pub async fn read_to_file(request: &mut Request) -> Result<Rc<TemporaryFile>, u16> {
    let earlier = request.body.file.take();
    let file = open_file(request, BodyInFile::Clean).await?;
    match (request.body.complete, earlier) {
        // The content may have been read before, by a script for example: then it is in memory, or in a file that was
        // unlinked at once and therefore has to be copied.
        (false, _) => read_rest(request).await?,
        (true, None) => flush(request, 0).await.map(drop)?,
        (true, Some(earlier)) => copy(request, &earlier).await?,
    }
    Ok(file)
}

/// Copies content from the file that an earlier reader made into the new one.
async fn copy(request: &mut Request, earlier: &TemporaryFile) -> Result<(), u16> {
    let mut at = 0;
    while at < request.body.length {
        let want = (request.body.length - at).min(COPY_SIZE) as usize;
        let buffer = std::mem::take(&mut request.body.memory);
        request.body.memory = match earlier
            .file
            .read_at(buffer, at, want, &rt::pool::default_pool())
            .await
        {
            Ok(data) if !data.is_empty() => data,
            // A temporary file that is shorter than what was written to it was damaged from outside.
            _ => return Err(500),
        };
        at = flush(request, at).await?;
    }
    Ok(())
}

async fn read_rest(request: &mut Request) -> Result<(), u16> {
    let site = Rc::clone(&request.site);
    let core = &site.location(request.location).core;
    let (limit, buffer) = (
        core.client_max_body_size,
        core.client_body_buffer_size as usize,
    );
    let mut silence = ClientSilence::new(core.client_body_timeout);
    let mut written = 0;
    loop {
        let done = match next_piece(request, &mut silence).await {
            Ok(ArrivedPiece::None) => {
                written = free_memory(request, buffer, written).await?;
                continue;
            }
            Ok(piece) => piece == ArrivedPiece::Last,
            Err(error) => return Err(refuse_body(request, error)),
        };
        // Between two successive reads, not for the whole content: nginx's meaning of `client_body_timeout`.
        silence.begin();
        // `Content-Length` was checked when the location was chosen; only content without one can exceed the limit
        // here.
        if limit != 0 && request.body.length > limit {
            let length = request.body.length;
            request.error(format_args!(
                "client intended to send too large chunked body: {length} bytes"
            ));
            // The error page must not see the part that was read.
            request.body.withhold_content();
            return Err(413);
        }
        if request.body.file.is_none() && request.body.memory.len() > buffer {
            let file = open_file(request, BodyInFile::Off).await?;
            warn_of_file(request, &file);
        }
        // To the file as soon as the buffer is full, and the rest at the end. The lower bound keeps a tiny
        // `client_body_buffer_size` from making a write of every read.
        if request.body.file.is_some()
            && (done || request.body.memory.len() >= buffer.max(READ_SIZE))
        {
            written = flush(request, written).await?;
        }
        if done {
            return Ok(());
        }
    }
}

/// How long a client sends nothing before its content goes to the file, and the memory to others.
const PATIENCE: Duration = Duration::from_secs(1);

/// `client_body_timeout`, in two parts: after the first one memory is freed.
struct ClientSilence {
    timer: rt::Timer,
    timeout: Duration,
    /// What follows the part that runs.
    rest: Duration,
}

impl ClientSilence {
    fn new(timeout: Duration) -> ClientSilence {
        let mut silence = ClientSilence {
            timer: rt::Timer::new(),
            timeout,
            rest: Duration::ZERO,
        };
        silence.begin();
        silence
    }

    fn begin(&mut self) {
        self.timer.set(self.timeout.min(PATIENCE));
        self.rest = self.timeout.saturating_sub(PATIENCE);
    }
}

/// What has come of the content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ArrivedPiece {
    /// Nothing for [`PATIENCE`].
    None,
    Some,
    Last,
}

async fn next_piece(
    request: &mut Request,
    silence: &mut ClientSilence,
) -> Result<ArrivedPiece, BodyReadError> {
    std::future::poll_fn(|context| {
        // The buffer is taken out for the call, because the content is borrowed as well.
        let body = &mut request.body;
        let mut memory = std::mem::take(&mut body.memory);
        if memory.capacity() == 0 && body.file.is_some() {
            memory = buffers::take_buffer();
        }
        let result = match body.file {
            Some(_) => poll_batch(body, &mut memory, context),
            None => body.poll_read(&mut memory, READ_SIZE, context),
        };
        // While nothing comes, an empty buffer is of use to others.
        if result.is_pending() && memory.is_empty() {
            buffers::give_buffer(std::mem::take(&mut memory));
        }
        body.memory = memory;
        // The timer comes second: content that has arrived counts even if the loop looks late.
        if let Poll::Ready(result) = result {
            return Poll::Ready(result.map(|is_last| match is_last {
                true => ArrivedPiece::Last,
                false => ArrivedPiece::Some,
            }));
        }
        ready!(silence.timer.poll_expired(context));
        let rest = std::mem::take(&mut silence.rest);
        silence.timer.set(rest);
        Poll::Ready(match rest.is_zero() {
            true => Err(BodyReadError::TimedOut),
            false => Ok(ArrivedPiece::None),
        })
    })
    .await
}

/// Has the file take what a silent client has sent, if that content ends up there anyway: `buffer` does not hold all
/// that is announced. Returns how much has been written.
async fn free_memory(request: &mut Request, buffer: usize, written: u64) -> Result<u64, u16> {
    let body = &request.body;
    let is_large = body
        .announced_length()
        .is_some_and(|length| length > buffer as u64);
    if body.memory.is_empty() || !is_large {
        return Ok(written);
    }
    if body.file.is_none() {
        let file = open_file(request, BodyInFile::Off).await?;
        warn_of_file(request, &file);
    }
    let written = flush(request, written).await?;
    buffers::give_buffer(std::mem::take(&mut request.body.memory));
    Ok(written)
}

/// Takes what is at hand, up to [`WRITE_SIZE`], so that one write to the file carries it.
fn poll_batch(
    body: &mut RequestBody,
    memory: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<Result<bool, BodyReadError>> {
    let mut so_far = Poll::Pending;
    loop {
        let room = WRITE_SIZE.saturating_sub(memory.len()).max(READ_SIZE);
        match body.poll_read(memory, room, context) {
            Poll::Ready(Ok(false)) => so_far = Poll::Ready(Ok(false)),
            // Whatever this call has appended is reported as ready; the task waits only if nothing came at all.
            Poll::Pending => return so_far,
            last => return last,
        }
        if memory.len() >= WRITE_SIZE {
            return so_far;
        }
    }
}

/// Logs why the content could not be read, and returns the status to answer with.
pub(crate) fn refuse_body(request: &mut Request, error: BodyReadError) -> u16 {
    use host::error_log::LogLevel;
    // The end of this content on the wire is unknown now, and with it the beginning of a next request.
    request.delivery.close();
    request.body.withhold_content();
    match error {
        BodyReadError::TimedOut => {
            request.log(
                LogLevel::Info,
                format_args!(
                    "client timed out (110: Connection timed out) while reading client request body"
                ),
            );
            408
        }
        BodyReadError::Closed => {
            // The status is only for the log: there is no client any more to send it to.
            request.flow.abandoned = true;
            request.log(
                LogLevel::Info,
                format_args!(
                    "client prematurely closed connection while reading client request body"
                ),
            );
            400
        }
        BodyReadError::Malformed => {
            request.log(
                LogLevel::Error,
                format_args!("client sent invalid chunked body"),
            );
            400
        }
        BodyReadError::Length(fault) => {
            request.log(LogLevel::Info, format_args!("{fault}"));
            400
        }
        BodyReadError::Io(error) => {
            request.log(
                LogLevel::Info,
                format_args!(
                    "{} while reading client request body",
                    net::ReadFailed(&error)
                ),
            );
            400
        }
    }
}

fn warn_of_file(request: &Request, file: &TemporaryFile) {
    let path = file.path.display();
    let message = format_args!("a client request body is buffered to a temporary file {path}");
    request.log(host::error_log::LogLevel::Warn, message);
}

/// Creates the file for the content; `keep` says whether it keeps its name.
async fn open_file(request: &mut Request, keep: BodyInFile) -> Result<Rc<TemporaryFile>, u16> {
    let site = Rc::clone(&request.site);
    let core = &site.location(request.location).core;
    match create_temporary(&core.client_body_temp_path, keep != BodyInFile::Off).await {
        Ok((file, path)) => {
            let unlink = Cell::new(keep == BodyInFile::Clean);
            let file = Rc::new(TemporaryFile { file, path, unlink });
            request.body.file = Some(Rc::clone(&file));
            Ok(file)
        }
        Err(error) => {
            let folder = core.client_body_temp_path.display();
            request.log(
                host::error_log::LogLevel::Crit,
                format_args!(
                    "open() of a temporary file in \"{folder}\" failed{}",
                    base::ErrnoText(&error)
                ),
            );
            Err(500)
        }
    }
}

/// The number of the next temporary file of this process, which is its name.
static TEMPORARY: AtomicU64 = AtomicU64::new(1);

/// How many names are tried when files of an earlier run are in the way. The bound keeps a folder full of old files
/// from holding up a request for good.
const NAMES_TRIED: u32 = 1000;

/// A new file in `folder`. Unless it is to be `named`, it is unlinked before this returns, so that nothing is left
/// behind even by a crash.
pub async fn create_temporary(folder: &Path, named: bool) -> io::Result<(rt::file::File, PathBuf)> {
    let pool = rt::pool::default_pool();
    let options = rt::file::OpenOptions::READ_WRITE.create_new().mode(0o600);
    for _ in 0..NAMES_TRIED {
        // The counter starts at 1 in each process, so the names of another worker, or of one that crashed, may be
        // taken. Exclusive creation finds that out without a race.
        let number = TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{number:010}"));
        match rt::file::open(&path, options, &pool).await {
            Ok(file) => {
                if !named {
                    rt::file::remove_file(&path, &pool).await?;
                }
                return Ok((file, path));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

async fn flush(request: &mut Request, written: u64) -> Result<u64, u16> {
    let Some(file) = request.body.file.clone() else {
        return Ok(written);
    };
    let data = std::mem::take(&mut request.body.memory);
    let length = data.len() as u64;
    match file
        .file
        .write_all_at(data, written, &rt::pool::default_pool())
        .await
    {
        Ok(mut buffer) => {
            // The write returns the buffer: the next read needs no new memory.
            buffer.clear();
            request.body.memory = buffer;
            Ok(written + length)
        }
        Err(error) => {
            let path = file.path.display().to_string();
            request.log(
                host::error_log::LogLevel::Crit,
                format_args!("write() to \"{path}\" failed{}", base::ErrnoText(&error)),
            );
            Err(500)
        }
    }
}
