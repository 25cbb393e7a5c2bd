//! Integer socket options that rustix has no function for: the one place where their `unsafe` is.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option whose value is a C int. Every option of the callers' is one.
pub fn set_int(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the descriptor is borrowed for the call; the pointer is to an int that lives through it, and
    // `size` is its size, so that the kernel reads within it whatever the option is.
    // JUSTIFICATION: TCP_DEFER_ACCEPT and TCP_FASTOPEN are parameters of `listen` (`deferred` saves 11 % of
    // the CPU of a short connection, SCORE P7); IP_BIND_ADDRESS_NO_PORT saves ephemeral ports.
    let code = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value, size) };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads an option whose value is a C int.
pub fn get_int(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    let mut value: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed for the call; the pointers are to an int and to its size, which live through it.
    // JUSTIFICATION: what a script asks for with `getoption` is the kernel's own number.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    if code == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
