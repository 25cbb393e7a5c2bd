//! What the content of a response is a copy of: a version of a file, a stored object, or the fill of one.
//!
//! Two responses with equal identities have the same content, byte for byte, so that what was made of one can be used
//! for the other. It says nothing about fields. Handlers set it in locations where a filter asks for it;
//! [`Response::content_changes`](crate::response::Response::content_changes) takes it back.

use cache::{CacheStore, CachedObject, FillFollower};
use rt::file::FileMetadata;

/// How long ago a file must have changed, in milliseconds, before its times tell its versions apart. The kernel's clock
/// for them ticks only a few hundred times a second, those of other systems, on the network, as rarely as every two
/// seconds: a write at the moment of our reading may leave the times as they were.
const QUIET_MS: u64 = 2_000;

/// What a content is.
#[derive(Clone)]
pub enum ContentIdentity {
    /// A regular file as a whole.
    File(FileIdentity),
    /// The whole body of a stored object.
    Object(StoredContent),
    /// The whole body of an object that is being stored.
    Filling(FillingContent),
}

/// A stored object, and where it is stored.
#[derive(Clone)]
pub struct StoredContent {
    /// The store.
    pub store: CacheStore,
    /// The object, of which nothing is missing.
    pub object: CachedObject,
}

/// A fill, with a cursor of its own, and where it is stored.
#[derive(Clone)]
pub struct FillingContent {
    /// The store.
    pub store: CacheStore,
    /// At the beginning of the body.
    pub follower: FillFollower,
}

/// A version of a file: what changes when it is replaced, or written in place. The time of the inode's change is a part
/// of it, since programs set the time of modification as they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device and inode.
    pub inode: (u64, u64),
    /// The length in bytes.
    pub length: u64,
    /// Seconds and nanoseconds of the last modification of the content.
    pub modified: (i64, u32),
    /// Seconds and nanoseconds of the last change of the inode.
    pub changed: (i64, u32),
}

impl FileIdentity {
    /// The version that `stat` describes.
    pub fn of(metadata: &FileMetadata) -> FileIdentity {
        FileIdentity {
            inode: (metadata.dev, metadata.ino),
            length: metadata.len,
            modified: (metadata.mtime, metadata.mtime_nanos),
            changed: (metadata.ctime, metadata.ctime_nanos),
        }
    }

    /// Whether the version has been there long enough that another one would have other times. A change in the future,
    /// after the clock was set back, is not long ago.
    pub fn is_quiet(&self, wall_ms: u64) -> bool {
        let changed_ms = u64::try_from(self.changed.0)
            .unwrap_or(0)
            .saturating_mul(1000);
        // The second may just have begun when it changed.
        changed_ms.saturating_add(1000 + QUIET_MS) <= wall_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_quiet_two_seconds_after_the_second_of_its_change() {
        let file = |seconds| FileIdentity {
            inode: (1, 2),
            length: 3,
            modified: (0, 0),
            changed: (seconds, 999_999_999),
        };
        assert!(!file(1_000).is_quiet(1_002_999));
        assert!(file(1_000).is_quiet(1_003_000));
        assert!(
            !file(i64::MAX).is_quiet(1_003_000),
            "the clock was set back"
        );
        assert!(file(-1).is_quiet(3_000), "before 1970");
    }
}
