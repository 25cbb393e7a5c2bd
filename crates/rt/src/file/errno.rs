//! The errors that callers distinguish when a file cannot be opened.

use rustix::io::Errno;

/// There is no such file.
pub const NOENT: i32 = Errno::NOENT.raw_os_error();
/// A component of the path is not a directory.
pub const NOTDIR: i32 = Errno::NOTDIR.raw_os_error();
/// The name is too long.
pub const NAMETOOLONG: i32 = Errno::NAMETOOLONG.raw_os_error();
/// Permission denied.
pub const ACCES: i32 = Errno::ACCESS.raw_os_error();
/// A link, where links are refused (some systems).
pub const MLINK: i32 = Errno::MLINK.raw_os_error();
/// A link, where links are refused, or links in a circle.
pub const LOOP: i32 = Errno::LOOP.raw_os_error();
/// Reading failed.
pub const IO: i32 = Errno::IO.raw_os_error();
