//! Inspection of what is stored under a key, for status requests and commands rather than for a response.

use std::sync::Arc;

use cache::{CacheKey, CacheStore, CachedObject, LookupResult, ObjectKind};
use proto::fields::Fields;

use super::stored_head::{MarkerHead, StoredHead, variant_values};

/// What is stored under a key.
pub struct InspectedEntry {
    /// The object; if the response varies, the variant that the request would get.
    pub object: CachedObject,
    /// Its head; `None` if another version of Weir wrote it.
    pub stored: Option<Arc<StoredHead>>,
    /// The request fields by which its variants differ.
    pub varies_by: Vec<Box<[u8]>>,
    /// It is stale, or it was purged softly.
    pub is_stale: bool,
}

/// Looks up a key as a request with these fields would. `None`: nothing is stored, or no such variant.
pub async fn inspect_stored(
    store: &CacheStore,
    key: &[u8],
    fields: &Fields,
    now_ms: u64,
) -> Option<InspectedEntry> {
    let key = CacheKey::new(key);
    let (mut object, mut is_stale) = found(store.lookup(&key, now_ms).await)?;
    let mut varies_by = Vec::new();
    if object.head().meta.kind == ObjectKind::Variants {
        varies_by = MarkerHead::decode(&object.head().opaque)?.names;
        let variant = key.variant_of(object.born(), &variant_values(&varies_by, fields));
        let (found, stale) = found(store.lookup(&variant, now_ms).await)?;
        object = found;
        is_stale |= stale;
    }
    let stored = StoredHead::decode(&object.head().opaque).map(Arc::new);
    Some(InspectedEntry {
        object,
        stored,
        varies_by,
        is_stale,
    })
}

fn found(lookup: LookupResult) -> Option<(CachedObject, bool)> {
    match lookup {
        LookupResult::Hit(object) => Some((object, false)),
        LookupResult::Stale(object, _) => Some((object, true)),
        LookupResult::Miss(..) => None,
    }
}
