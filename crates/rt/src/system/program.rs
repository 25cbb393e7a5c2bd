//! Another program beside this one.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Runs another program beside this one. It keeps this one's environment, with `variables` besides,
/// and has the descriptors of `keep` open at the numbers that they have here. The answer is its number.
///
/// A file that the kernel does not take for a program is an error. `execvp`, which the standard library calls, gives
/// such a file to `/bin/sh`: a binary that was cut off or overwritten would be read as commands, by root.
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
    let image = ExecImage::new(program, arguments, variables)?;
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
        // The last thing that the child does of its own: what comes behind it is reached only if this fails, and is
        // told to the parent as the reason.
        Err(image.execute())
    };
    // SAFETY: between fork and exec the closure makes only the system calls above: no allocation, no
    // lock. JUSTIFICATION: as above.
    unsafe { command.pre_exec(clear) };
    // Its end is noticed by `reap`, like that of every child.
    Ok(command.spawn()?.id())
}

/// What `execve` is called with, made before the fork: between fork and exec nothing may allocate.
struct ExecImage {
    program: CString,
    arguments: CStringList,
    environment: CStringList,
}

impl ExecImage {
    fn new(
        program: &Path,
        arguments: &[OsString],
        variables: &[(&str, String)],
    ) -> io::Result<ExecImage> {
        use std::os::unix::ffi::OsStrExt as _;
        let is_set_anew = |name: &OsString| variables.iter().any(|(known, _)| name == known);
        let kept = std::env::vars_os().filter(|(name, _)| !is_set_anew(name));
        let new = variables
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = kept
            .chain(new)
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        Ok(ExecImage {
            program: CString::new(program.as_os_str().as_bytes())?,
            arguments: CStringList::new(arguments.iter().map(|word| word.as_bytes().to_vec()))?,
            environment: CStringList::new(environment)?,
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
struct CStringList {
    /// What the pointers point to: the bytes of a `CString` stay where they are when the list moves.
    _owned: Vec<CString>,
    /// With a null pointer at the end.
    pointers: Vec<*const libc::c_char>,
}

// SAFETY: the pointers lead to bytes on the heap that the value owns and that nothing changes.
// JUSTIFICATION: `Command::pre_exec` wants a closure that may move to another thread.
unsafe impl Send for CStringList {}
// SAFETY: as above: they are only read. JUSTIFICATION: as above.
unsafe impl Sync for CStringList {}

impl CStringList {
    fn new(words: impl Iterator<Item = Vec<u8>>) -> io::Result<CStringList> {
        let owned = words.map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let pointers = owned
            .iter()
            .map(|word| word.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Ok(CStringList {
            _owned: owned,
            pointers,
        })
    }
}
