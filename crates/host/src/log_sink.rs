//! Log sinks: lines are appended in memory, and a writer thread writes them.
//!
//! A loop's thread must not write to a log: a full disk queue, a slow network file system or a stuck pipe would
//! block it. [`LogSink::write`] copies the line into the sink's buffer and returns. The writer is woken at the end of
//! the loop's turn, once for all its lines, or at once on other threads. It takes the whole buffer and writes it
//! with one call. On an idle machine a line is in the file within some tens of microseconds.
//!
//! There is one writer thread for each device, one for each pipe or terminal (which may block for ever), and one
//! for all sockets (whose writes never block; to connect one may). So a stuck target does not hold up other lines, and a thousand logs on one
//! disk need one thread. A sink is drained by one writer at a time, in order.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::sync::{Condvar, Mutex, MutexGuard};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::SendFlags;

use rt::report::{self, ReportLimit, RuntimeEvent};
use rt::sync::remote_oneshot;

/// The most bytes that a sink buffers while its target is slow.
pub const BUFFER_LIMIT: usize = 8 << 20;
/// A larger buffer is freed once it is empty.
const BUFFER_KEPT: usize = 256 << 10;

/// Where lines go. Clones are the same sink.
#[derive(Clone)]
pub struct LogSink(Arc<SinkShared>);

struct SinkShared {
    name: String,
    state: Mutex<SinkState>,
    /// Signalled when a writer has emptied the buffer.
    drained: Condvar,
    lost: AtomicU64,
    report: ReportLimit,
}

struct SinkState {
    /// Lines that are not written yet; for a socket each is preceded by its length.
    buffer: Vec<u8>,
    target: Arc<SinkTarget>,
    /// Lines that belong to earlier targets, from before a reopen.
    before: Vec<(Arc<SinkTarget>, Vec<u8>)>,
    /// It is queued at a writer or being written, so no writer needs to be woken.
    scheduled: bool,
    /// Tasks that wait until the buffer is empty.
    waiting: Vec<remote_oneshot::RemoteSender<()>>,
}

/// Opens a socket for datagrams, and connects it. On a writer's thread.
type SocketOpener = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

enum SinkPlace {
    /// A file, pipe or terminal.
    File(OwnedFd),
    /// A socket: each line is a message of its own. It is opened for the first one, and again after an error.
    Datagrams(SocketOpener, Mutex<Option<OwnedFd>>),
}

struct SinkTarget {
    place: SinkPlace,
    writer: Arc<LogWriter>,
    /// The target has a writer of its own, which ends with it.
    own_writer: bool,
}

impl Drop for SinkTarget {
    fn drop(&mut self) {
        if self.own_writer {
            self.writer.close();
        }
    }
}

impl LogSink {
    /// A sink that appends to an open file, pipe or terminal (opened with `O_APPEND` if other processes write to it
    /// too).
    pub fn file(name: &str, fd: OwnedFd) -> Self {
        Self::new(name, SinkTarget::file(fd))
    }

    /// A sink that sends each line as a datagram over a connected socket (syslog), which `open` makes. A line that the
    /// socket does not take at once is lost, and counted.
    pub fn datagrams(
        name: &str,
        open: impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, SinkTarget::datagrams(Box::new(open)))
    }

    /// A sink to standard error.
    pub fn stderr() -> io::Result<Self> {
        Ok(Self::file(
            "stderr",
            rustix::io::fcntl_dupfd_cloexec(io::stderr(), 0)?,
        ))
    }

    fn new(name: &str, target: SinkTarget) -> Self {
        let state = SinkState {
            buffer: Vec::new(),
            target: Arc::new(target),
            before: Vec::new(),
            scheduled: false,
            waiting: Vec::new(),
        };
        Self(Arc::new(SinkShared {
            name: name.to_owned(),
            state: Mutex::new(state),
            drained: Condvar::new(),
            lost: AtomicU64::new(0),
            report: ReportLimit::new(),
        }))
    }

    /// Appends a line, which includes its line end. Never blocks: if the buffer is full, the line is lost. The
    /// writer is woken at the end of the loop's turn, once for all lines of the turn.
    pub fn write(&self, line: &[u8]) {
        if self.append(line) {
            return;
        }
        let sink = Arc::clone(&self.0);
        rt::at_turn_end(move || sink.schedule());
    }

    /// As [`LogSink::write`], but wakes the writer at once. For rare lines that are waited for, such as errors: they
    /// are on their way to the disk before the response that they are about.
    pub fn write_now(&self, line: &[u8]) {
        if !self.append(line) {
            self.0.schedule();
        }
    }

    /// Appends a line. Returns whether nothing more has to be done: a writer is on its way, or the line is lost.
    fn append(&self, line: &[u8]) -> bool {
        let mut state = self.0.state();
        if state.buffer.len() + line.len() > BUFFER_LIMIT {
            drop(state);
            self.0.lost(1, None);
            return true;
        }
        if matches!(state.target.place, SinkPlace::Datagrams(..)) {
            let len = u32::try_from(line.len()).expect("a line is shorter than the buffer");
            state.buffer.extend_from_slice(&len.to_ne_bytes());
        }
        state.buffer.extend_from_slice(line);
        std::mem::replace(&mut state.scheduled, true)
    }

    /// Continues in another file, as after `USR1`; earlier lines still go to the old one.
    pub fn reopen(&self, fd: OwnedFd) {
        let target = Arc::new(SinkTarget::file(fd));
        let mut state = self.0.state();
        let pending = std::mem::take(&mut state.buffer);
        let old = std::mem::replace(&mut state.target, target);
        if !pending.is_empty() {
            state.before.push((old, pending));
        }
    }

    /// Blocks until everything is written. Not for a loop's thread.
    pub fn flush_blocking(&self) {
        while !self.flush_within(Duration::from_secs(60)) {}
    }

    /// Blocks until everything is written, but no longer than this: a pipe may be stuck for ever. Whether it is written.
    pub fn flush_within(&self, limit: Duration) -> bool {
        let state = self.0.state();
        let waited = self
            .0
            .drained
            .wait_timeout_while(state, limit, |state| state.scheduled);
        let (state, timed_out) = waited;
        let is_left = !state.buffer.is_empty() && !state.scheduled;
        drop(state);
        if is_left {
            // No writer could be started for it. This thread may wait.
            self.0.drain();
        }
        !timed_out
    }

    /// Ready when everything is written; `None` if it already is.
    pub fn flushed_receiver(&self) -> Option<remote_oneshot::RemoteReceiver<()>> {
        let mut state = self.0.state();
        state.scheduled.then(|| {
            let (sender, receiver) = remote_oneshot::channel();
            state.waiting.push(sender);
            receiver
        })
    }

    /// Lines lost since the sink was made.
    pub fn lost_lines(&self) -> u64 {
        self.0.lost.load(Relaxed)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogSink").field(&self.0.name).finish()
    }
}

impl SinkShared {
    fn state(&self) -> MutexGuard<'_, SinkState> {
        // Nothing that can panic runs under this lock.
        self.state.lock()
    }

    fn lost(&self, lines: u64, error: Option<&io::Error>) {
        self.lost.fetch_add(lines, Relaxed);
        if lines > 0 && self.report.allows_report() {
            report::report_event(&RuntimeEvent::LogLost {
                sink: &self.name,
                lines,
                error,
            });
        }
    }

    /// Calls the writer of the present target.
    fn schedule(self: &Arc<Self>) {
        loop {
            let writer = Arc::clone(&self.state().target.writer);
            match writer.schedule(self) {
                SinkScheduling::Taken => return,
                // Only if the target was replaced meanwhile: then the new target's writer is asked.
                SinkScheduling::Refused => {}
                // The lines stay, and the next one tries again: a loop does not write, whatever happens.
                SinkScheduling::NoThread => {
                    let mut state = self.state();
                    state.scheduled = false;
                    drop(state);
                    self.drained.notify_all();
                    return;
                }
            }
        }
    }

    /// Writes until the buffer is empty, on a writer's thread.
    fn drain(&self) {
        let mut spare = Vec::new();
        loop {
            let mut state = self.state();
            if state.buffer.is_empty() && state.before.is_empty() {
                state.scheduled = false;
                if spare.capacity() <= BUFFER_KEPT {
                    state.buffer = spare;
                }
                self.drained.notify_all();
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                for waiting in waiting {
                    // An error means that this task has ended.
                    let _ = waiting.send(());
                }
                return;
            }
            // Two buffers take turns: loops append to one while the other is written, without the lock.
            let before = std::mem::take(&mut state.before);
            let bytes = std::mem::replace(&mut state.buffer, std::mem::take(&mut spare));
            let target = Arc::clone(&state.target);
            drop(state);
            for (target, bytes) in before {
                self.put(&target, &bytes);
            }
            self.put(&target, &bytes);
            spare = bytes;
            spare.clear();
        }
    }

    fn put(&self, target: &SinkTarget, bytes: &[u8]) {
        let outcome = match &target.place {
            SinkPlace::File(fd) => append(fd, bytes),
            SinkPlace::Datagrams(open, socket) => send_all(open, &mut socket.lock(), bytes),
        };
        if let Err((lines, error)) = outcome {
            self.lost(lines, Some(&error));
        }
    }
}

/// Lines lost, and why.
type LostLines = (u64, io::Error);

impl SinkTarget {
    fn file(fd: OwnedFd) -> Self {
        let (kind, device) = match rustix::fs::fstat(&fd) {
            Ok(stat) => (FileType::from_raw_mode(stat.st_mode), stat.st_dev),
            Err(_) => (FileType::Unknown, 0),
        };
        // /dev/null never blocks, but telling it from a terminal is not worth the effort.
        let own_writer = kind != FileType::RegularFile;
        let writer = if own_writer {
            Arc::default()
        } else {
            LogWriter::of(device)
        };
        Self {
            place: SinkPlace::File(fd),
            writer,
            own_writer,
        }
    }

    fn datagrams(open: SocketOpener) -> Self {
        /// No device has this number.
        const SOCKETS: u64 = u64::MAX;
        Self {
            place: SinkPlace::Datagrams(open, Mutex::new(None)),
            writer: LogWriter::of(SOCKETS),
            own_writer: false,
        }
    }
}

fn append(fd: &OwnedFd, mut bytes: &[u8]) -> Result<(), LostLines> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_writable(fd),
            Err(error) => {
                let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
                return Err((lines as u64, error.into()));
            }
        }
    }
    Ok(())
}

fn send_all(
    open: &SocketOpener,
    socket: &mut Option<OwnedFd>,
    mut bytes: &[u8],
) -> Result<(), LostLines> {
    let (mut lost, mut last_error) = (0, None);
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (line, rest) = rest.split_at(u32::from_ne_bytes(*len) as usize);
        bytes = rest;
        if let Err(error) = send_one(open, socket, line) {
            lost += 1;
            last_error = Some(error);
        }
    }
    match last_error {
        Some(error) => Err((lost, error)),
        None => Ok(()),
    }
}

fn send_one(open: &SocketOpener, socket: &mut Option<OwnedFd>, line: &[u8]) -> io::Result<()> {
    let connected = match socket {
        Some(socket) => socket,
        None => socket.insert(open()?),
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(&*connected, line, flags) {
        Ok(_) => Ok(()),
        // It has too much to do; the socket is right.
        Err(Errno::AGAIN) => Err(Errno::AGAIN.into()),
        Err(error) => {
            // The server went away; the next line tries again with another socket.
            *socket = None;
            Err(error.into())
        }
    }
}

/// Waits until a non-blocking pipe has room. The mode is shared with other processes, so it cannot be changed here.
fn wait_writable(fd: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)];
    // An error is ignored: the next write reports it.
    let _ = poll(&mut fds, None);
}

/// A thread that drains sinks. It starts with the first line.
#[derive(Default)]
struct LogWriter {
    queue: Mutex<LogWriterQueue>,
    work: Condvar,
}

#[derive(Default)]
struct LogWriterQueue {
    sinks: VecDeque<Arc<SinkShared>>,
    started: bool,
    closed: bool,
}

#[derive(PartialEq, Eq)]
enum SinkScheduling {
    Taken,
    /// The writer has ended with its target.
    Refused,
    /// It has no thread, and the system has none left.
    NoThread,
}

impl LogWriter {
    /// The writer of a device.
    fn of(device: u64) -> Arc<Self> {
        static WRITERS: Mutex<Option<HashMap<u64, Arc<LogWriter>>>> = Mutex::new(None);
        let mut writers = WRITERS.lock();
        Arc::clone(writers.get_or_insert_default().entry(device).or_default())
    }

    fn queue(&self) -> MutexGuard<'_, LogWriterQueue> {
        self.queue.lock()
    }

    /// Asks for a sink to be drained.
    fn schedule(self: &Arc<Self>, sink: &Arc<SinkShared>) -> SinkScheduling {
        let mut queue = self.queue();
        if queue.closed {
            return SinkScheduling::Refused;
        }
        queue.sinks.push_back(Arc::clone(sink));
        if !queue.started {
            let writer = Arc::clone(self);
            let builder = std::thread::Builder::new().name("log".to_owned());
            queue.started = builder.spawn(move || writer.work()).is_ok();
            if !queue.started {
                queue.sinks.pop_back();
                return SinkScheduling::NoThread;
            }
        }
        drop(queue);
        self.work.notify_one();
        SinkScheduling::Taken
    }

    fn close(&self) {
        self.queue().closed = true;
        self.work.notify_one();
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue();
            while queue.sinks.is_empty() {
                if queue.closed {
                    return;
                }
                queue = self.work.wait(queue);
            }
            let batch = std::mem::take(&mut queue.sinks);
            drop(queue);
            for sink in batch {
                sink.drain();
            }
        }
    }
}
