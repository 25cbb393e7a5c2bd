//! Files: what the kernel has in memory is read at once, everything else on a pool.
//!
//! - [`open`], [`stat`] and [`lstat`] try `openat2(RESOLVE_CACHED)` on the loop's thread: it succeeds,
//!   or fails for good (`ENOENT`, `EACCES`), without looking at a disk, or says `EAGAIN`.
//! - [`File::read_at`] tries `preadv2(RWF_NOWAIT)`, which copies only what is in the page cache.
//! - Before `sendfile`, which has no such flag, [`File::resident_prefix`] says how far the page cache
//!   reaches, and [`File::load`] brings in what is missing.
//!
//! Where the kernel (before 5.12, or a seccomp profile) refuses these calls, everything goes to the
//! pool; that is decided once and reported. A file system may refuse `RWF_NOWAIT` by itself; that is
//! remembered by the [`File`].

mod content;
pub mod errno;
mod links;
mod listing;
mod loading;
mod locked;
mod metadata;
pub mod modes;
mod mounts;
mod namespace;
mod open;
mod residency;
mod temporary;

pub use content::{Check, File};
pub use links::{Judged, Links, open_judged, try_open_judged};
pub use listing::{Listed, list_directory};
pub use metadata::{Kind, Metadata};
pub use namespace::{
    DirectoryEntry, create_directory, read_directory, read_link, remove_directory, remove_file,
    rename, set_times,
};
pub use open::{OpenOptions, lstat, open, open_at, stat, try_open, try_real_path, try_stat};
pub use residency::Taker;
pub use temporary::{Name, create_temporary};
