//! What the master and its worker ask of the kernel about processes.
//!
//! Forking, becoming a daemon or another user, limits, processor masks, the title that `ps` shows.
//! Everything here belongs to the time before the loops start: functions that need a process of one
//! thread say so and check it. Signals are in [`crate::signal`], the pipe between the processes in
//! [`crate::channel`]. What needs `unsafe` is done by [`rt::system`].

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Resource, Rlimit, Signal as RawSignal, WaitOptions, WaitStatus};

pub use rt::system::{
    ForkSide, SystemUser, become_user, execute, give_memory_back, inherit, is_root, lookup_user,
    set_environment, set_title, user_id,
};

use crate::signal::Signal;

/// The size of a page of memory, in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Makes a copy of this process: see [`rt::system::fork`]. The child writes its own numbers into the error log.
pub fn fork() -> io::Result<ForkSide> {
    let side = rt::system::fork()?;
    if side == ForkSide::Child {
        crate::error_log::after_fork();
    }
    Ok(side)
}

/// Runs `work` on a thread that exists for it only, and waits. The GNU allocator gives such a thread memory apart from all that
/// the process has allocated before. Does nothing if there can be no thread.
pub fn run_aside(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        // A panic has been reported by its thread; what the work was to change is as it was.
        let _ = thread.map(|thread| thread.join());
    });
    // A thread that has been joined may be listed for a moment longer, and a process with two does not fork.
    let deadline = rt::clock::read_clock() + Duration::from_millis(100);
    while !rt::system::has_one_thread() && rt::clock::read_clock() < deadline {
        std::thread::yield_now();
    }
}

/// Becomes a daemon: a new session, with standard input and output on `/dev/null`. The calling process exits with
/// code 0, and its child returns. Standard error stays open until the error log replaces it.
pub fn daemonize() -> io::Result<()> {
    if let ForkSide::Parent(_) = fork()? {
        std::process::exit(0);
    }
    // setsid() needs a process that is not a group leader, and the child of a fork never is one.
    rustix::process::setsid()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Redirects the standard error stream to `file`.
pub fn redirect_stderr(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Gives `path` to a user and group.
pub fn change_owner(path: &Path, user: &SystemUser) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
}

/// Exchanges two names in one step, so that neither is missing for a moment. On file systems that cannot, one after the other.
pub fn exchange_names(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let mut aside = one.as_os_str().to_owned();
            aside.push(".exchanged");
            std::fs::rename(one, &aside)?;
            std::fs::rename(other, one)?;
            std::fs::rename(&aside, other)
        }
        result => Ok(result?),
    }
}

/// Changes the owner of an empty directory that belongs to root. One with entries, a link, or one with another
/// owner is left alone.
pub fn give_empty_directory(path: &Path, user: &SystemUser) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    let directory = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    let is_empty = rustix::fs::Dir::read_from(&directory)?
        .flatten()
        .all(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."));
    if !is_empty || directory.metadata()?.uid() != 0 {
        return Ok(());
    }
    // By the descriptor: the path could by now lead to another directory.
    std::os::unix::fs::fchown(&directory, Some(user.uid), Some(user.gid))
}

/// A limit of the process that the configuration may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceLimit {
    /// Open descriptors.
    Descriptors,
    /// The size of a core dump in bytes.
    Core,
}

/// Sets a limit, soft and hard.
pub fn set_limit(limit: ResourceLimit, value: u64) -> io::Result<()> {
    let resource = match limit {
        ResourceLimit::Descriptors => Resource::Nofile,
        ResourceLimit::Core => Resource::Core,
    };
    Ok(rustix::process::setrlimit(
        resource,
        Rlimit {
            current: Some(value),
            maximum: Some(value),
        },
    )?)
}

/// The soft and the hard limit of open descriptors; `None` is no limit.
pub fn descriptor_limit() -> (Option<u64>, Option<u64>) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    (limit.current, limit.maximum)
}

/// Raises the soft limit of open descriptors to the hard one.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    Ok(rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?)
}

/// Sets this process's priority, -20 (first) to 20.
pub fn set_priority(priority: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, priority)?)
}

/// The processors this process may run on.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Binds the calling thread to processors, by number.
pub fn pin_thread(processors: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for processor in processors
        .iter()
        .copied()
        .filter(|number| *number < rustix::thread::CpuSet::MAX_CPU)
    {
        set.set(processor);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Asks the kernel for `signal` when the parent dies. Call it after [`become_user`], which clears it.
/// Returns false when the parent, `parent`, is dead already.
pub fn follow_parent(parent: u32, signal: Signal) -> io::Result<bool> {
    let signal = RawSignal::from_named_raw(signal.number()).ok_or(io::ErrorKind::InvalidInput)?;
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    // The parent may have died before the call, and then no signal comes.
    Ok(parent_id() == parent)
}

/// The number of the parent process, 0 when it is outside this namespace.
pub fn parent_id() -> u32 {
    rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
}

/// Lets the kernel write a core dump though the process has changed its user.
pub fn allow_core_dumps() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(
        rustix::process::DumpableBehavior::Dumpable,
    )?)
}

/// Sends a signal.
pub fn kill(process: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let signal = RawSignal::from_named_raw(signal.number()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// By this signal, with a core dump.
    CoreDumped(i32),
}

impl ChildExit {
    fn of(status: WaitStatus) -> ChildExit {
        /// In the kernel's status: a core dump was written.
        const CORE: i32 = 0x80;
        match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) if status.as_raw() & CORE != 0 => ChildExit::CoreDumped(signal),
            (Some(signal), _) => ChildExit::Signal(signal),
            (None, code) => ChildExit::Code(code.unwrap_or(0)),
        }
    }
}

/// A child that has ended since the last call, if any. Never waits.
pub fn reap_child() -> Option<(u32, ChildExit)> {
    let (pid, status) = rustix::process::waitpid(None, WaitOptions::NOHANG)
        .ok()
        .flatten()?;
    Some((
        pid.as_raw_nonzero().get().unsigned_abs(),
        ChildExit::of(status),
    ))
}

/// Waits for the end of one child.
pub fn wait_for(process: u32) -> io::Result<ChildExit> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    loop {
        match rustix::process::waitpid(pid, WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                return Ok(ChildExit::of(status));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until one of `descriptors` can be read (or was closed by the other side), at most `timeout`.
/// The answer has one entry for each descriptor.
pub fn wait_readable(
    descriptors: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let timeout = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        // A signal came: the caller reads its signals and waits again.
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Duplicates of the listening TCP and UDP sockets of another process, in the order of their numbers. What is something else, or is
/// closed meanwhile, is passed over.
///
/// # Errors
///
/// `ENOSYS` before Linux 5.6, `EPERM` without the right to trace the process (ptrace(2)).
pub fn listening_sockets_of(process: u32) -> io::Result<Vec<OwnedFd>> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let mut numbers: Vec<i32> = std::fs::read_dir(format!("/proc/{process}/fd"))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut sockets = Vec::new();
    for number in numbers {
        let link = std::fs::read_link(format!("/proc/{process}/fd/{number}"));
        if !link.is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:")) {
            continue;
        }
        match pidfd_getfd(&handle, number, PidfdGetfdFlags::empty()) {
            Ok(socket) if crate::listen::inherited(&socket).is_ok() => sockets.push(socket),
            Ok(_) | Err(rustix::io::Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sockets)
}

/// The kernel's name and release, such as `Linux 6.12.0`.
pub fn kernel() -> String {
    let name = rustix::system::uname();
    format!(
        "{} {}",
        printable(name.sysname()),
        printable(name.release())
    )
}

fn printable(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}

/// Duplicates a descriptor of the standard streams, for logs that name `/dev/stdout`.
pub fn duplicate_stdout() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Duplicates the standard error stream.
pub fn duplicate_stderr() -> io::Result<OwnedFd> {
    io::stderr().as_fd().try_clone_to_owned()
}

/// The machine's name, as `uname -n` prints it.
pub fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
