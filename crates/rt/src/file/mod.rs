//! Files: what the kernel has in memory is read at once, everything else on a pool.
//!
//! - [`open`], [`stat`] and [`lstat`] try `openat2(RESOLVE_CACHED)` on the loop's thread: it succeeds,
//!   or fails for good (`ENOENT`, `EACCES`), without looking at a disk, or says `EAGAIN`.
//! - [`File::read_at`] tries `preadv2(RWF_NOWAIT)`, which copies only what is in the page cache.
//! - Before `sendfile`, which has no such flag, [`File::resident_prefix`] says how far the page cache
//!   reaches, and [`File::load_range`] brings in what is missing.
//!
//! Where the kernel (before 5.12, or a seccomp profile) refuses these calls, everything goes to the
//! pool; that is decided once and reported. A file system may refuse `RWF_NOWAIT` by itself; that is
//! remembered by the [`File`].

pub mod changes;
pub mod errno;
mod listing;
mod locked_blocks;
mod metadata;
pub mod modes;
mod mounts;
mod namespace;
mod open_file;
mod open_path;
mod range_loads;
mod residency;
mod symlink_policy;
mod temporary;

pub use listing::{ListedFile, list_directory};
pub use metadata::{FileMetadata, InodeKind};
pub use namespace::{
    DirectoryEntry, create_directory, read_directory, read_link, remove_directory, remove_file,
    rename, set_times,
};
pub use open_file::{File, ReadCheck};
pub use open_path::{OpenOptions, lstat, open, open_at, stat, try_open, try_real_path, try_stat};
pub use residency::ProbeClient;
pub use symlink_policy::{SymlinkCheck, SymlinkPolicy, open_judged, try_open_judged};
pub use temporary::{TemporaryName, create_temporary};
