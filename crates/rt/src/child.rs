//! Child programs that a loop runs, with pipes that it reads and writes without blocking.

use std::cell::{OnceCell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::reactor::{IoInterest, Registration};

/// The program to run.
#[derive(Clone, Debug)]
pub struct ChildProgram {
    /// The program, looked for in `PATH` if there is no slash in it, and its arguments.
    pub words: Vec<Vec<u8>>,
    /// Its environment, `NAME=value` each; `None`: this process's.
    pub environment: Option<Vec<Vec<u8>>>,
    /// Its standard error goes to the same pipe as its standard output.
    pub merged: bool,
}

/// A running program and our ends of its pipes, not yet bound to a loop.
#[derive(Debug)]
pub struct StartedProgram {
    process: std::process::Child,
    /// Its standard input.
    pub input: Option<OwnedFd>,
    /// Its standard output.
    pub output: Option<OwnedFd>,
    /// Its standard error.
    pub errors: Option<OwnedFd>,
}

impl ChildProgram {
    /// Starts the program. The calling thread waits until the kernel has loaded it, which may read from a disk: to
    /// be called on a pool's thread where possible.
    pub fn start_program(&self) -> io::Result<StartedProgram> {
        let (name, arguments) = self
            .words
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(OsStr::from_bytes(name));
        command.args(arguments.iter().map(|word| OsStr::from_bytes(word)));
        if let Some(environment) = &self.environment {
            command.env_clear();
            for entry in environment {
                let at = entry.iter().position(|byte| *byte == b'=');
                let (name, value) = entry.split_at(at.unwrap_or(entry.len()));
                let value = value.get(1..).unwrap_or_default();
                command.env(
                    OsString::from(OsStr::from_bytes(name)),
                    OsStr::from_bytes(value),
                );
            }
        }
        let (output, theirs) = io::pipe()?;
        let errors = match self.merged {
            true => {
                command.stderr(theirs.try_clone()?);
                None
            }
            false => {
                let (errors, theirs) = io::pipe()?;
                command.stderr(theirs);
                Some(errors)
            }
        };
        command.stdin(Stdio::piped()).stdout(theirs);
        unblock_signals(&mut command);
        let mut process = command.spawn()?;
        // The command holds our copies of the child's pipe ends. While those are open, no pipe reports its end.
        drop(command);
        Ok(StartedProgram {
            input: process.stdin.take().map(OwnedFd::from),
            output: Some(output.into()),
            errors: errors.map(OwnedFd::from),
            process,
        })
    }
}

/// This process blocks signals, and a child inherits the mask: without this, only SIGKILL would end the program.
fn unblock_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    let unblock = || {
        // SAFETY: the set is initialized before it is used and lives through the calls, which a child of a process with
        // threads may make.
        // JUSTIFICATION: the standard library hands its own mask on, and rustix has no function for it.
        let failed = unsafe {
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
        };
        match failed {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: the closure makes two calls that are allowed between fork and exec, and neither locks nor allocates.
    // JUSTIFICATION: there is no other moment at which only the child has the mask.
    unsafe { command.pre_exec(unblock) };
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramExit {
    /// By exiting, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// A running program on this loop. It is killed when this is dropped.
pub struct ChildProcess {
    /// `None` when it has ended and was waited for.
    process: RefCell<Option<std::process::Child>>,
    descriptor: OwnedFd,
    registration: OnceCell<Registration>,
    id: u32,
}

impl ChildProcess {
    /// Binds a running program to this loop.
    pub fn of(begun: StartedProgram) -> io::Result<ChildProcess> {
        let id = begun.process.id();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        Ok(ChildProcess {
            process: RefCell::new(Some(begun.process)),
            descriptor,
            registration: OnceCell::new(),
            id,
        })
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether its end was already reported by `poll_end`.
    pub fn is_over(&self) -> bool {
        self.process.borrow().is_none()
    }

    /// Waits for its end, which is reported once. Only one task may wait at a time.
    pub fn poll_end(&self, context: &mut Context<'_>) -> Poll<io::Result<ProgramExit>> {
        use std::os::unix::process::ExitStatusExt as _;
        let registration = match self.registration.get() {
            Some(registration) => registration,
            None => {
                let made = Registration::register_edge(self.descriptor.as_fd(), IoInterest::Read)?;
                self.registration.get_or_init(|| made)
            }
        };
        let mut process = self.process.borrow_mut();
        let Some(running) = process.as_mut() else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        match running.try_wait()? {
            Some(status) => {
                *process = None;
                Poll::Ready(Ok(match status.code() {
                    Some(code) => ProgramExit::Exit(code),
                    None => ProgramExit::Signal(status.signal().unwrap_or(0)),
                }))
            }
            None => {
                registration.arm(IoInterest::Read, context);
                Poll::Pending
            }
        }
    }

    /// Whether it has ended, reported or not.
    pub fn has_ended(&self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = i32::try_from(self.id).ok().and_then(Pid::from_raw);
        self.is_over()
            || pid.is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Sends it a signal, by number.
    pub fn kill(&self, signal: i32) -> io::Result<()> {
        // SAFETY: no pointers. The number is that of a child of ours that was not waited for, so no other process has it.
        // JUSTIFICATION: rustix takes the signals that it knows only, and a script names any.
        match unsafe { libc::kill(self.id.cast_signed(), signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for ChildProcess {
    /// Nothing can wait for its end any more, so it is killed, and reaped on the loop: it must not stay as a
    /// zombie.
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        if matches!(process.try_wait(), Ok(Some(_))) {
            return;
        }
        let _it_has_ended_otherwise = process.kill();
        let reaper = std::thread::Builder::new().name("reaper".to_owned());
        let _zombie_until_the_end = reaper.spawn(move || process.wait());
    }
}

impl fmt::Debug for ChildProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildProcess")
            .field("id", &self.id)
            .finish()
    }
}

/// Our end of a pipe.
pub struct ChildPipe {
    registration: OnceCell<Registration>,
    descriptor: OwnedFd,
}

impl ChildPipe {
    /// Binds a pipe to this loop.
    pub fn of(descriptor: OwnedFd) -> io::Result<ChildPipe> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(ChildPipe {
            registration: OnceCell::new(),
            descriptor,
        })
    }

    fn poll_ready(&self, interest: IoInterest, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let registration = match self.registration.get() {
            Some(registration) => registration,
            None => {
                let made = Registration::register_edge(self.descriptor.as_fd(), interest)?;
                self.registration.get_or_init(|| made)
            }
        };
        // The previous call would have blocked. An event since then is a reason to try again.
        if registration.is_ready(interest) {
            registration.clear_ready(interest);
            context.waker().wake_by_ref();
        }
        registration.arm(interest, context);
        Poll::Pending
    }

    /// Appends what is there to `buffer`, at most `max` bytes; 0 at the end.
    pub fn poll_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut Vec<u8>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let before = buffer.len();
        buffer.resize(before + max, 0);
        let read = loop {
            match rustix::io::read(&self.descriptor, &mut buffer[before..]) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        buffer.truncate(before + read.unwrap_or(0));
        match read {
            Ok(n) => Poll::Ready(Ok(n)),
            Err(Errno::AGAIN) => {
                ready!(self.poll_ready(IoInterest::Read, context))?;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Writes as much as the pipe has room for.
    pub fn poll_write(&self, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match rustix::io::write(&self.descriptor, data) {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    ready!(self.poll_ready(IoInterest::Write, context))?;
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl fmt::Debug for ChildPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildPipe").finish_non_exhaustive()
    }
}
