//! Copies beside the objects of a cache: they outlive a restart, and a full memory.
//!
//! A copy is written at its second use, so that pages that are asked for once take no room twice. Nothing removes copies
//! from the store: once their object is gone nobody knows their key any more, and they leave like all that is not asked
//! for. Whatever goes wrong here (a full disk, damage, a purge in between) only means to compress again.

use std::sync::Arc;

use cache::{CacheKey, LookupResult, ObjectHead, ObjectKind, ObjectMeta};
use http::cache::CopyHead;
use http::content_identity::StoredContent;

use super::{CompressedCopy, CopyKey};

/// How much of a stored copy is read at a time, in bytes: an extent.
const PIECE: usize = 256 * 1024;

fn key_of(content: &StoredContent, key: &CopyKey) -> CacheKey {
    let mut made = key.coding.to_vec();
    made.push(0);
    made.extend_from_slice(&key.level.to_le_bytes());
    made.extend_from_slice(&key.variant.to_le_bytes());
    CopyHead::key_of(&content.object, &made)
}

/// The stored copy of an object of this length, if there is one.
pub(super) async fn load(content: &StoredContent, key: &CopyKey, original: u64) -> Option<Vec<u8>> {
    let stored = key_of(content, key);
    let LookupResult::Hit(object) = content.store.lookup(&stored, rt::wall_millis()).await else {
        return None;
    };
    let length = object.length();
    let is_it = CopyHead::decode(&object.head().opaque) == Some(CopyHead { original });
    // Longer than the content: not worth reading, and there is no memory reserved for it.
    if !is_it || !object.is_complete() || length > original {
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).ok()?);
    while (bytes.len() as u64) < length {
        let piece = object.read(bytes.len() as u64, PIECE).await.ok()?;
        if piece.is_empty() {
            return None;
        }
        bytes.extend_from_slice(&piece);
    }
    Some(bytes)
}

/// Stores a copy; `false` if there is no room for it.
pub(super) async fn save(content: StoredContent, key: CopyKey, copy: Arc<CompressedCopy>) -> bool {
    let (store, length) = (&content.store, copy.bytes.len() as u64);
    if store.lacks_room(Some(length)) {
        return false;
    }
    let now_ms = rt::wall_millis();
    let (mut writer, _follower) = store.start_fill(&key_of(&content, &key), now_ms);
    let original = copy.original;
    writer.start_storing(ObjectHead {
        meta: ObjectMeta {
            kind: ObjectKind::Object,
            stored_ms: now_ms,
            validated_ms: now_ms,
            // It is found only through its object, which has a freshness of its own.
            fresh_until_ms: u64::MAX,
            version: 0,
        },
        opaque: CopyHead { original }.encode(),
        tags: content.object.head().tags.clone(),
        length: Some(length),
    });
    let written = writer.write(copy.bytes.clone()).await.is_ok();
    writer.finish();
    written
}
