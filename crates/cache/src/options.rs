//! How a store is set up, and why it may not open.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rt::pool::PoolHandle;

use crate::format::{EXTENT_MAX, RUN_MAX};

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The directory; made if it is missing.
    pub path: PathBuf,
    /// Where file work is done.
    pub pool: PoolHandle,
    /// The most bytes of segments.
    pub max_size: u64,
    /// The most objects; 0 is no bound.
    pub max_objects: u64,
    /// Bytes of the file system to leave free; 0 is no bound.
    pub min_free: u64,
    /// An object that is not used for this long is removed; 0 is never.
    pub inactive_ms: u64,
    /// The most bytes of the memory tier.
    pub memory: usize,
    /// The most bytes of one fill in memory.
    pub fill_memory: usize,
    /// The size of a segment; `None` derives it from `max_size`.
    pub segment_size: Option<u64>,
}

/// A store has about 32 segments, so that reclaiming one evicts a small part of it. Their size has bounds, whatever
/// `max_size` is.
const SEGMENT_MIN: u64 = 64 * 1024;
const SEGMENT_MAX: u64 = 64 * 1024 * 1024;
const SEGMENTS: u64 = 32;
impl StoreOptions {
    /// The defaults: nginx's `inactive=10m`, no other bound but a very large `max_size`, 64 MB of memory.
    pub fn new(path: &Path, pool: PoolHandle) -> Self {
        Self {
            path: path.to_owned(),
            pool,
            max_size: 1 << 50,
            max_objects: 0,
            min_free: 0,
            inactive_ms: 600_000,
            memory: 64 * 1024 * 1024,
            fill_memory: 1024 * 1024,
            segment_size: None,
        }
    }

    pub(crate) fn segment_size(&self) -> u64 {
        let derived = (self.max_size / SEGMENTS).clamp(SEGMENT_MIN, SEGMENT_MAX);
        self.segment_size.unwrap_or(derived)
    }

    /// The most bytes of body in a record. Less in a small store, where such records would make segments exceed their
    /// size.
    pub(crate) fn run_size(&self) -> usize {
        let quarter = usize::try_from(self.segment_size() / 4).unwrap_or(RUN_MAX);
        quarter.clamp(EXTENT_MAX, RUN_MAX)
    }
}

/// Why a store could not be opened. The server goes on without it.
#[derive(Debug)]
pub enum StoreOpenError {
    /// Another process, or another store of this one, has it open.
    Locked(PathBuf),
    /// Another version of the program has written it, in a format of this number.
    Format(PathBuf, char),
    /// What the disk said, and about which path.
    Io(PathBuf, io::Error),
}

impl fmt::Display for StoreOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => {
                write!(f, "cache \"{}\" is used by another process", path.display())
            }
            Self::Format(path, number) => write!(
                f,
                "cache \"{}\" has format {number}, and this version reads format {}; nothing is stored, and the \
                 directory is left as it is",
                path.display(),
                crate::format::STORE_FORMAT
            ),
            Self::Io(path, error) => {
                write!(f, "cache \"{}\" cannot be opened: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for StoreOpenError {}

/// Bounds that can change while a store is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreLimits {
    pub(crate) max_size: u64,
    pub(crate) max_objects: u64,
    pub(crate) min_free: u64,
    pub(crate) inactive_ms: u64,
}

impl StoreLimits {
    pub(crate) fn of(options: &StoreOptions) -> Self {
        Self {
            max_size: options.max_size,
            max_objects: options.max_objects,
            min_free: options.min_free,
            inactive_ms: options.inactive_ms,
        }
    }
}
