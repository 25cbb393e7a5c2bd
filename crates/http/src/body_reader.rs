//! Reads the content of a request into memory, and into a temporary file when it is large.
//!
//! How the bytes arrive is the protocol's business, behind [`BodyInput`]. Handlers either read all of it first
//! ([`read_body`]), or take it piece by piece ([`RequestBody::poll_read`]) when they pass it on unbuffered.

use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;

use crate::buffers;
use crate::core::BodyInFile;
use crate::ledger::LedgerPhase;
use crate::memory_peak;
use crate::request::Request;
use crate::response_body::ResponseBody;

use crate::request_body::FileWork;
pub use crate::request_body::{BodyInput, BodyReadError, CreatedFile, RequestBody, TemporaryFile};

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
    if request.body.is_complete() {
        return Ok(());
    }
    let mut reading = BodyReading::new(request);
    poll_fn(|context| reading.poll(request, context)).await
}

/// Reads content that has arrived completely into memory. `client_body_in_file_only` does not apply: this content is
/// passed on as it comes. Errors are those of [`read_body`].
pub(crate) async fn read_arrived(request: &mut Request) -> Result<(), u16> {
    match request.body.is_complete() {
        true => Ok(()),
        false => read_rest(request).await,
    }
}

/// Reads the whole content into a file with a name, for a handler that renames it to its place
/// ([`TemporaryFile::mark_moved`]). A file that is not moved is removed with the request. Errors are those of
/// [`read_body`].
pub async fn read_to_file(request: &mut Request) -> Result<Rc<TemporaryFile>, u16> {
    poll_fn(|context| poll_file_work(request, context)).await?;
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
    let mut reading = BodyReading::of_rest(request);
    poll_fn(|context| reading.poll(request, context)).await
}

/// The whole content being read, for a caller that needs the request in between, such as a script whose light threads
/// go on meanwhile: it is lent to each poll. The content that was read stays with the request if this is dropped.
pub struct BodyReading {
    /// `client_body_timeout`, since the last read.
    silence: ClientSilence,
    /// The client is silent: what it has sent goes to the file.
    is_freeing: bool,
    /// Whether a file for what exceeds `client_body_buffer_size` keeps its name.
    keep: BodyInFile,
}

impl BodyReading {
    /// Reads what [`read_body`] reads.
    pub fn new(request: &mut Request) -> Self {
        let reading = Self::of_rest(request);
        // `client_body_in_file_only`: the file is created first, so that even small content ends up in it.
        let in_file = request.core().body_in_file_only;
        let body = &request.body;
        if in_file != BodyInFile::Off && body.file.is_none() && body.file_work.is_none() {
            request.body.file_work = Some(FileWork::create(request, in_file));
        }
        reading
    }

    fn of_rest(request: &Request) -> Self {
        Self {
            silence: ClientSilence::new(request.core().client_body_timeout),
            is_freeing: false,
            keep: BodyInFile::Off,
        }
    }

    /// A file has a name until the request ends: scripts open it.
    #[must_use]
    pub fn with_named_file(mut self) -> Self {
        self.keep = BodyInFile::Clean;
        self
    }

    /// Ready when everything has been read. Errors are those of [`read_body`].
    pub fn poll(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), u16>> {
        let result = self.poll_content(request, context);
        match (result.is_pending(), request.ledger.phase()) {
            (true, LedgerPhase::Upload) | (false, LedgerPhase::Work) => {}
            (true, _) => _ = request.ledger.enter(LedgerPhase::Upload),
            (false, LedgerPhase::Upload) => _ = request.ledger.enter(LedgerPhase::Work),
            (false, _) => {}
        }
        result
    }

    fn poll_content(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), u16>> {
        let buffer = request.core().client_body_buffer_size as usize;
        loop {
            ready!(poll_file_work(request, context))?;
            let body = &request.body;
            let (done, held) = (body.complete, body.memory.len());
            if body.file.is_none() && (held > buffer || self.is_freeing) {
                request.body.file_work = Some(FileWork::create(request, self.keep));
                continue;
            }
            // To the file as soon as the buffer is full, and the rest at the end. The lower bound keeps a tiny
            // `client_body_buffer_size` from making a write of every read.
            if held > 0
                && (done || self.is_freeing || held >= buffer.max(READ_SIZE))
                && let Some(file) = body.file.clone()
            {
                self.is_freeing = false;
                request.body.file_work = Some(FileWork::write(request, file));
                continue;
            }
            if done {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_piece(request, context))?;
        }
    }

    /// Reads once from the client.
    fn poll_piece(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), u16>> {
        match ready!(next_piece(request, &mut self.silence, context)) {
            Ok(ArrivedPiece::None) => {
                self.is_freeing = ends_in_file(request);
                memory_peak::note_dropped(READ_SIZE);
                return Poll::Ready(Ok(()));
            }
            Ok(ArrivedPiece::Some) => {}
            Err(error) => return Poll::Ready(Err(refuse_body(request, error))),
        }
        let limit = request.core().client_max_body_size;
        // Between two successive reads, not for the whole content: nginx's meaning of `client_body_timeout`.
        self.silence.begin();
        // `Content-Length` was checked when the location was chosen; only content without one can exceed the limit
        // here.
        if limit != 0 && request.body.length > limit {
            let length = request.body.length;
            request.error(format_args!(
                "client intended to send too large chunked body: {length} bytes"
            ));
            // The error page must not see the part that was read.
            request.body.withhold_content();
            return Poll::Ready(Err(413));
        }
        Poll::Ready(Ok(()))
    }
}

impl FileWork {
    fn create(request: &Request, keep: BodyInFile) -> Self {
        let folder = request.core().client_body_temp_path.clone();
        let named = keep != BodyInFile::Off;
        Self::Creating(
            keep,
            Box::pin(async move { create_temporary(&folder, named).await }),
        )
    }

    /// Appends what is in memory.
    fn write(request: &mut Request, file: Rc<TemporaryFile>) -> Self {
        let body = &mut request.body;
        let at = body.length - body.memory.len() as u64;
        let data = std::mem::take(&mut body.memory);
        Self::Writing(Box::pin(async move {
            let pool = rt::pool::default_pool();
            file.file.write_all_at(data, at, &pool).await
        }))
    }
}

/// Completes what is being done with the file. The error is the status to answer with; it has been logged.
fn poll_file_work(request: &mut Request, context: &mut Context<'_>) -> Poll<Result<(), u16>> {
    let result = match &mut request.body.file_work {
        None => return Poll::Ready(Ok(())),
        Some(FileWork::Creating(keep, created)) => {
            let created = ready!(created.as_mut().poll(context));
            let keep = *keep;
            take_file(request, keep, created).map(|file| warn_of_file(request, &file))
        }
        Some(FileWork::Writing(written)) => {
            let written = ready!(written.as_mut().poll(context));
            take_buffer(request, written)
        }
    };
    request.body.file_work = None;
    Poll::Ready(result)
}

/// How long a client sends nothing before its content goes to the file, and the memory to others.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same while memory is tight: long enough for what is on its way.
const PATIENCE_IF_TIGHT: Duration = Duration::from_millis(10);

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
        let patience = match host::tight_memory::is_tight() {
            true => PATIENCE_IF_TIGHT,
            false => PATIENCE,
        };
        self.timer.set(self.timeout.min(patience));
        self.rest = self.timeout.saturating_sub(patience);
    }
}

/// What has come of the content.
enum ArrivedPiece {
    /// Nothing for [`PATIENCE`].
    None,
    /// Something, or the end.
    Some,
}

fn next_piece(
    request: &mut Request,
    silence: &mut ClientSilence,
    context: &mut Context<'_>,
) -> Poll<Result<ArrivedPiece, BodyReadError>> {
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
        return Poll::Ready(result.map(|_| ArrivedPiece::Some));
    }
    ready!(silence.timer.poll_expired(context));
    let rest = std::mem::take(&mut silence.rest);
    silence.timer.set(rest);
    Poll::Ready(match rest.is_zero() {
        true => Err(BodyReadError::TimedOut),
        false => Ok(ArrivedPiece::None),
    })
}

/// Whether what a silent client has sent ends up in the file anyway: `client_body_buffer_size` does not hold all that is
/// announced.
fn ends_in_file(request: &Request) -> bool {
    let body = &request.body;
    let announced = body.announced_length();
    !body.memory.is_empty()
        && announced.is_some_and(|length| length > request.core().client_body_buffer_size)
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

/// What is being done, in the words of the error log.
const READING: &str = "reading client request body";

/// Logs why the content could not be read, and returns the status to answer with.
pub(crate) fn refuse_body(request: &mut Request, error: BodyReadError) -> u16 {
    use host::error_log::LogLevel;
    // The end of this content on the wire is unknown now, and with it the beginning of a next request.
    request.delivery.close();
    request.body.withhold_content();
    match error {
        BodyReadError::TimedOut => {
            request.log_while(
                LogLevel::Info,
                READING,
                format_args!("client timed out (110: Connection timed out)"),
            );
            408
        }
        BodyReadError::Closed => {
            // The status is only for the log: there is no client any more to send it to.
            request.flow.abandoned = true;
            request.log_while(
                LogLevel::Info,
                READING,
                format_args!("client prematurely closed connection"),
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
            request.log_while(
                LogLevel::Info,
                READING,
                format_args!("{}", net::ReadFailed(&error)),
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
    let folder = &site.location(request.location).core.client_body_temp_path;
    let created = create_temporary(folder, keep != BodyInFile::Off).await;
    take_file(request, keep, created)
}

/// Gives the request its new file.
fn take_file(
    request: &mut Request,
    keep: BodyInFile,
    created: io::Result<CreatedFile>,
) -> Result<Rc<TemporaryFile>, u16> {
    match created {
        Ok((file, path)) => {
            let unlink = keep == BodyInFile::Clean;
            let file = Rc::new(TemporaryFile::new(file, path, unlink));
            request.body.file = Some(Rc::clone(&file));
            Ok(file)
        }
        Err(error) => {
            let core = request.core();
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
pub async fn create_temporary(folder: &Path, named: bool) -> io::Result<CreatedFile> {
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
    let pool = rt::pool::default_pool();
    let result = file.file.write_all_at(data, written, &pool).await;
    take_buffer(request, result).map(|()| written + length)
}

/// A write to the file returns the buffer: the next read needs no new memory.
fn take_buffer(request: &mut Request, written: io::Result<Vec<u8>>) -> Result<(), u16> {
    match written {
        Ok(mut buffer) => {
            buffer.clear();
            request.body.memory = buffer;
            Ok(())
        }
        Err(error) => {
            let path = request.body.file.as_ref();
            let path = path.map(|file| file.path.display().to_string());
            let path = path.unwrap_or_default();
            request.log(
                host::error_log::LogLevel::Crit,
                format_args!("write() to \"{path}\" failed{}", base::ErrnoText(&error)),
            );
            Err(500)
        }
    }
}
