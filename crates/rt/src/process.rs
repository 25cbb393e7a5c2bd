//! What the master and its worker ask of the kernel about processes.
//!
//! Forking, becoming a daemon or another user, limits, processor masks, the title that `ps` shows.
//! Everything here belongs to the time before the loops start: functions that need a process of one
//! thread say so and check it. Signals are in [`crate::signal`], the pipe between the processes in
//! [`crate::channel`].

use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Resource, Rlimit, Signal as RawSignal, WaitOptions};

use crate::signal::Signal;

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The process that called; the number is the child's.
    Parent(u32),
    /// The new process.
    Child,
}

/// Makes a copy of this process.
///
/// Fails with `EBUSY` when the process has more than one thread: the child would have only the
/// calling one, and locks that the others held would stay locked in it for ever.
pub fn fork() -> io::Result<Fork> {
    require_one_thread()?;
    // SAFETY: the process has exactly one thread (checked above), so no lock is held by a thread
    // that the child lacks, and the child may run any code.
    // JUSTIFICATION: the worker inherits open logs and sockets and starts without an exec; the
    // standard library has no fork.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            crate::error_log::after_fork();
            Ok(Fork::Child)
        }
        child => Ok(Fork::Parent(child.unsigned_abs())),
    }
}

pub(crate) fn require_one_thread() -> io::Result<()> {
    // Without /proc the promise in this module's contract has to do.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Ok(())
}

/// Runs another program beside this one. It keeps this one's environment, with `variables` besides,
/// and has the descriptors of `keep` open at the numbers that they have here. The answer is its number.
///
/// A file that the kernel does not take for a program is an error. `execvp`, which the standard library calls, gives such
/// a file to `/bin/sh`: a binary that was cut off or overwritten would be read as commands, by root.
pub fn execute(
    program: &Path,
    arguments: &[OsString],
    variables: &[(&str, String)],
    keep: &[BorrowedFd<'_>],
) -> io::Result<u32> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::CommandExt as _;
    // Its arguments and environment are those of the closure below.
    let mut command = std::process::Command::new(program);
    let image = Image::new(program, arguments, variables)?;
    let keep: Vec<i32> = keep
        .iter()
        .map(|descriptor| descriptor.as_raw_fd())
        .collect();
    let clear = move || {
        for number in &keep {
            // SAFETY: takes numbers only; the descriptors are borrowed until `spawn` below returns.
            // JUSTIFICATION: the standard library has no way to let a child keep descriptors.
            if unsafe { libc::fcntl(*number, libc::F_SETFD, 0) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        // The last thing that the child does of its own: what comes behind it is reached only if this fails, and is told
        // to the parent as the reason.
        Err(image.execute())
    };
    // SAFETY: between fork and exec the closure makes only the system calls above: no allocation, no
    // lock. JUSTIFICATION: as above.
    unsafe { command.pre_exec(clear) };
    // Its end is noticed by `reap`, like that of every child.
    Ok(command.spawn()?.id())
}

/// What `execve` is called with, made before the fork: between fork and exec nothing may allocate.
struct Image {
    program: CString,
    arguments: Strings,
    environment: Strings,
}

impl Image {
    fn new(
        program: &Path,
        arguments: &[OsString],
        variables: &[(&str, String)],
    ) -> io::Result<Image> {
        use std::os::unix::ffi::OsStrExt as _;
        let is_set_anew = |name: &OsString| variables.iter().any(|(known, _)| name == known);
        let kept = std::env::vars_os().filter(|(name, _)| !is_set_anew(name));
        let new = variables
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = kept
            .chain(new)
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        Ok(Image {
            program: CString::new(program.as_os_str().as_bytes())?,
            arguments: Strings::new(arguments.iter().map(|word| word.as_bytes().to_vec()))?,
            environment: Strings::new(environment)?,
        })
    }

    /// Becomes the program. Comes back only with the reason why not.
    fn execute(&self) -> io::Error {
        // SAFETY: the path ends with a zero byte, and so do the strings of both lists, which end with a null pointer; all
        // of it lives in `self`. JUSTIFICATION: the standard library has `execvp` only.
        unsafe {
            libc::execve(
                self.program.as_ptr(),
                self.arguments.pointers.as_ptr(),
                self.environment.pointers.as_ptr(),
            )
        };
        io::Error::last_os_error()
    }
}

/// Strings as C wants a list of them.
struct Strings {
    /// What the pointers point to: the bytes of a `CString` stay where they are when the list moves.
    _owned: Vec<CString>,
    /// With a null pointer at the end.
    pointers: Vec<*const libc::c_char>,
}

// SAFETY: the pointers lead to bytes on the heap that the value owns and that nothing changes.
// JUSTIFICATION: `Command::pre_exec` wants a closure that may move to another thread.
unsafe impl Send for Strings {}
// SAFETY: as above: they are only read. JUSTIFICATION: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new(words: impl Iterator<Item = Vec<u8>>) -> io::Result<Strings> {
        let owned = words.map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let pointers = owned
            .iter()
            .map(|word| word.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Ok(Strings {
            _owned: owned,
            pointers,
        })
    }
}

/// Takes a descriptor that the program that started this one has left open at `number`, and closes it
/// at exec from now on. An error when there is none.
///
/// To be called once for a number, before anything else in the process opens descriptors.
pub fn inherit(number: i32) -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd as _;
    if number <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: takes numbers only. JUSTIFICATION: what comes in by number can not be had as a safe value.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above says that the descriptor is open, and by this function's contract nothing
    // in this process owns it. JUSTIFICATION: as above.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(number) })
}

/// Goes to the background: a new session, standard input and output on `/dev/null`. The process that
/// called exits with code 0; its child returns. Standard error stays, the error log takes it over later.
pub fn daemonize() -> io::Result<()> {
    if let Fork::Parent(_) = fork()? {
        std::process::exit(0);
    }
    rustix::process::setsid()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Lets the standard error stream write to `file` from now on.
pub fn redirect_stderr(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// The user that the worker runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, for the supplementary groups.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// Looks up a user and a group by name. The error says which call failed, in nginx's words.
pub fn lookup_user(user: &str, group: &str) -> Result<User, String> {
    let uid = user_number(user).map_err(|error| failed("getpwnam", user, &error))?;
    let gid = group_number(group).map_err(|error| failed("getgrnam", group, &error))?;
    Ok(User {
        name: user.to_owned(),
        uid,
        gid,
    })
}

fn failed(call: &str, name: &str, error: &Option<io::Error>) -> String {
    match error {
        Some(error) => format!(
            "{call}(\"{name}\") failed{}",
            crate::error_log::Errno(error)
        ),
        None => format!("{call}(\"{name}\") failed"),
    }
}

/// The most memory a user or group entry may take; a group with that many members is a mistake.
const MAX_ENTRY: usize = 1 << 20;

/// Looks a user up; `Err(None)` means that there is none of this name.
fn user_number(name: &str) -> Result<u32, Option<io::Error>> {
    let name = CString::new(name).map_err(|_| None)?;
    let mut buffer = vec![0; 4096];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::zeroed();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call and `buffer` has the length that is passed;
        // `entry` is read only when the call says that it was filled (found is not null).
        // JUSTIFICATION: users come from NSS (LDAP, SSSD), not only from /etc/passwd.
        let (code, uid) = unsafe {
            let code = libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            );
            (
                code,
                if found.is_null() {
                    None
                } else {
                    Some((*found).pw_uid)
                },
            )
        };
        if code == libc::ERANGE && buffer.len() < MAX_ENTRY {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        return uid.ok_or_else(|| (code != 0).then(|| io::Error::from_raw_os_error(code)));
    }
}

/// Looks a group up; `Err(None)` means that there is none of this name.
fn group_number(name: &str) -> Result<u32, Option<io::Error>> {
    let name = CString::new(name).map_err(|_| None)?;
    let mut buffer = vec![0; 4096];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::group>::zeroed();
        let mut found = std::ptr::null_mut();
        // SAFETY: as in user_number.
        // JUSTIFICATION: as in user_number.
        let (code, gid) = unsafe {
            let code = libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            );
            (
                code,
                if found.is_null() {
                    None
                } else {
                    Some((*found).gr_gid)
                },
            )
        };
        if code == libc::ERANGE && buffer.len() < MAX_ENTRY {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        return gid.ok_or_else(|| (code != 0).then(|| io::Error::from_raw_os_error(code)));
    }
}

/// Is this process the super-user?
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The number of this process's (effective) user.
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Gives up the super-user for good: group, supplementary groups, user. The error names the call.
///
/// Must run before any thread is started, since the kernel keeps credentials per thread.
pub fn become_user(user: &User) -> Result<(), String> {
    require_one_thread().map_err(|error| error.to_string())?;
    let name = CString::new(user.name.as_str()).map_err(|_| "invalid user name".to_owned())?;
    // SAFETY: setgid and setuid take numbers; initgroups gets a valid C string that it only reads.
    // JUSTIFICATION: the C library's forms are needed for supplementary groups from NSS.
    let steps = unsafe {
        [
            (libc::setgid(user.gid), format!("setgid({})", user.gid)),
            (
                libc::initgroups(name.as_ptr(), user.gid),
                format!("initgroups({}, {})", user.name, user.gid),
            ),
            (libc::setuid(user.uid), format!("setuid({})", user.uid)),
        ]
    };
    for (code, call) in steps {
        if code != 0 {
            return Err(format!(
                "{call} failed{}",
                crate::error_log::Errno(&io::Error::last_os_error())
            ));
        }
    }
    Ok(())
}

/// Gives `path` to a user and group.
pub fn change_owner(path: &Path, user: &User) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
}

/// Gives an empty directory of root's to a user and group. One with entries, or a link, or somebody else's stays as it is.
pub fn give_empty_directory(path: &Path, user: &User) -> io::Result<()> {
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
    std::os::unix::fs::fchown(&directory, Some(user.uid), Some(user.gid))
}

/// A limit of the process that the configuration may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Open descriptors.
    Descriptors,
    /// The size of a core dump in bytes.
    Core,
}

/// Sets a limit, soft and hard.
pub fn set_limit(limit: Limit, value: u64) -> io::Result<()> {
    let resource = match limit {
        Limit::Descriptors => Resource::Nofile,
        Limit::Core => Resource::Core,
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
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A child that has ended since the last call, if any. Never waits.
pub fn reap() -> Option<(u32, Exit)> {
    let (pid, status) = rustix::process::waitpid(None, WaitOptions::NOHANG)
        .ok()
        .flatten()?;
    let exit = match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => Exit::Signal(signal),
        (None, code) => Exit::Code(code.unwrap_or(0)),
    };
    Some((pid.as_raw_nonzero().get().unsigned_abs(), exit))
}

/// Waits for the end of one child.
pub fn wait_for(process: u32) -> io::Result<Exit> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    loop {
        match rustix::process::waitpid(pid, WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                return Ok(match (status.terminating_signal(), status.exit_status()) {
                    (Some(signal), _) => Exit::Signal(signal),
                    (None, code) => Exit::Code(code.unwrap_or(0)),
                });
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
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the whole environment. Fails with `EBUSY` when the process has more than one thread.
pub fn set_environment(variables: &[(OsString, OsString)]) -> io::Result<()> {
    require_one_thread()?;
    let old: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    // SAFETY: the process has exactly one thread (checked above), so nobody reads the environment
    // at the same time. JUSTIFICATION: `env` lines must reach libraries that call getenv.
    unsafe {
        for name in old {
            std::env::remove_var(name);
        }
        for (name, value) in variables {
            std::env::set_var(name, value);
        }
    }
    Ok(())
}

/// Shows `title` as the command line in `ps`. Best effort: nothing happens where it can not be done.
///
/// The kernel shows the bytes where the arguments stood at the start, so `std::env::args` must not be
/// called any more after this, and the environment, which stands behind them, is copied away. So the
/// first call needs a process of one thread; later calls do not.
pub fn set_title(title: &str) {
    static AREA: OnceLock<Option<(usize, usize)>> = OnceLock::new();
    let area = AREA.get_or_init(|| {
        let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        title_area().filter(|_| set_environment(&environment).is_ok())
    });
    let Some((start, end)) = *area else { return };
    let length = title.len().min(end - start - 1);
    let area = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: start..end are the argument and environment strings of this process as the kernel
    // reports them: mapped, writable, contiguous (title_area), on the initial stack. The environment
    // was copied to the heap above, the arguments were read before (this function's contract), so
    // nothing in this process looks at these bytes any more.
    // JUSTIFICATION: operators and scripts look for "master process" and "worker process" in `ps`.
    unsafe {
        std::ptr::copy_nonoverlapping(title.as_ptr(), area, length);
        std::ptr::write_bytes(area.add(length), 0, end - start - length);
    }
}

/// Where the kernel keeps the arguments and the environment: start of the first, end of the second.
fn title_area() -> Option<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // proc(5): the name in parentheses may hold anything; fields are counted from behind it.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<usize> = after_name
        .split_ascii_whitespace()
        .map(|word| word.parse().unwrap_or(0))
        .collect();
    // arg_start, arg_end, env_start, env_end are fields 48 to 51; field 3 is the first here.
    let [arg_start, arg_end, env_start, env_end] = *fields.get(45..49)? else {
        return None;
    };
    let sound =
        arg_start > 0 && arg_start < arg_end && arg_end == env_start && env_start <= env_end;
    sound.then_some((arg_start, env_end))
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
pub fn duplicate_stdout() -> io::Result<std::os::fd::OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Duplicates the standard error stream.
pub fn duplicate_stderr() -> io::Result<std::os::fd::OwnedFd> {
    io::stderr().as_fd().try_clone_to_owned()
}

/// The machine's name, as `uname -n` prints it.
pub fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Gives memory that is free back to the system. The allocator keeps what was freed, which after something that is done
/// once, as reading a configuration, is far more than is ever used again.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number only, and locks what it works on.
    // JUSTIFICATION: without it a server of 20 MB has 100 MB after the first sample of a stack.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_nobody_else_is_invented() {
        let root = lookup_user("root", "root").expect("every system has root");
        assert_eq!((root.uid, root.gid), (0, 0));
        let error = lookup_user("no-such-user-here", "root").expect_err("not there");
        assert!(
            error.starts_with("getpwnam(\"no-such-user-here\") failed"),
            "{error}"
        );
    }

    #[test]
    fn the_title_area_is_found() {
        let (start, end) = title_area().expect("proc is mounted");
        assert!(start < end);
    }

    #[test]
    fn fork_is_refused_with_threads() {
        // The test harness itself runs threads.
        let (ready, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(fork().is_err());
        drop(ready);
        let _ = thread.join().expect("the thread does not panic");
    }
}
