//! The memory tier: small objects that are in use, head and body ready to be written to a client.
//!
//! It holds nothing that the index does not have: an object counts only while the index says that it stands where it
//! was read from. So a replaced or purged object need not be removed here as well.

use crate::CachedObject;
use crate::index::RecordLocation;
use crate::s3_fifo::S3Fifo;
use base::sync::Mutex;

const SHARDS: usize = 16;
/// What an object takes besides its bytes: its struct, its places in a map and a queue.
const OVERHEAD: usize = 512;

pub(crate) struct MemoryTier(Vec<Mutex<S3Fifo<u64, CachedObject>>>);

impl MemoryTier {
    /// Holds about `bytes`; 0 switches it off.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(
            (0..SHARDS)
                .map(|_| Mutex::new(S3Fifo::new(bytes / SHARDS)))
                .collect(),
        )
    }

    fn shard(&self, hash: u64) -> &Mutex<S3Fifo<u64, CachedObject>> {
        // Bits that choose neither the shard of the index nor the slot there.
        &self.0[(hash >> 40) as usize % SHARDS]
    }

    /// The object of `hash`, if it is the one at `location`.
    pub(crate) fn get(&self, hash: u64, location: RecordLocation) -> Option<CachedObject> {
        let mut shard = self.shard(hash).lock();
        let object = shard.get(&hash)?;
        (object.location() == location).then(|| object.clone())
    }

    pub(crate) fn insert(&self, hash: u64, object: &CachedObject) {
        // Large bodies leave by `sendfile`: the page cache is their memory tier.
        let Some(body) = object.body_in_memory() else {
            return;
        };
        let weight = body.len() + object.head().size() + object.key().text().len() + OVERHEAD;
        let mut shard = self.shard(hash).lock();
        shard.insert(hash, object.clone(), weight);
    }

    pub(crate) fn used(&self) -> usize {
        let shards = self.0.iter();
        shards.map(|shard| shard.lock().used()).sum()
    }
}
