//! Inspection of what is stored under a key, for status requests and commands rather than for a response.

use std::sync::Arc;

use cache::{Key, Kind, Lookup, Object, Store};
use proto::fields::Fields;

use super::head::{Marker, StoredHead, values};

/// What is stored under a key.
pub struct Inspected {
    /// The object; if the response varies, the variant that the request would get.
    pub object: Object,
    /// Its head; `None` if another version of Weir wrote it.
    pub stored: Option<Arc<StoredHead>>,
    /// The request fields by which its variants differ.
    pub varies_by: Vec<Box<[u8]>>,
    /// It is stale, or it was purged softly.
    pub is_stale: bool,
}

/// Looks up a key as a request with these fields would. `None`: nothing is stored, or no such variant.
pub async fn inspect(store: &Store, key: &[u8], fields: &Fields, now_ms: u64) -> Option<Inspected> {
    let key = Key::new(key);
    let (mut object, mut is_stale) = found(store.lookup(&key, now_ms).await)?;
    let mut varies_by = Vec::new();
    if object.head().meta.kind == Kind::Variants {
        varies_by = Marker::decode(&object.head().head)?.names;
        let variant = key.variant_of(object.born(), &values(&varies_by, fields));
        let (found, stale) = found(store.lookup(&variant, now_ms).await)?;
        object = found;
        is_stale |= stale;
    }
    let stored = StoredHead::decode(&object.head().head).map(Arc::new);
    Some(Inspected {
        object,
        stored,
        varies_by,
        is_stale,
    })
}

fn found(lookup: Lookup) -> Option<(Object, bool)> {
    match lookup {
        Lookup::Hit(object) => Some((object, false)),
        Lookup::Stale(object, _) => Some((object, true)),
        Lookup::Miss(..) => None,
    }
}
