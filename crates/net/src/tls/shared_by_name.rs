//! Objects that have a name in the configuration and outlive it: all loops, and the configurations before and after
//! a reload, share one object of a name. It is dropped with its last user.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use base::sync::Mutex;

/// The objects of one kind in this process, by name, or by a digest of their content. Their number is limited by the
/// configurations in use.
pub(super) struct SharedByName<K, V> {
    known: Mutex<KnownObjects<K, V>>,
}

struct KnownObjects<K, V> {
    objects: HashMap<K, Weak<V>>,
    /// How many there may be before those that nobody uses are removed.
    sweep_at: usize,
}

/// Fewer than this are not worth a search for unused ones.
const FEW: usize = 64;

impl<K, V> Default for SharedByName<K, V> {
    fn default() -> Self {
        Self {
            known: Mutex::new(KnownObjects {
                objects: HashMap::new(),
                sweep_at: FEW,
            }),
        }
    }
}

impl<K: Hash + Eq, V> SharedByName<K, V> {
    /// The object of this name, if it is in use; otherwise a new one.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let mut known = self.known.lock();
        if let Some(one) = known.objects.get(&key).and_then(Weak::upgrade) {
            return one;
        }
        let one = make();
        known.insert(key, &one);
        one
    }

    /// The object of this name, if it is in use.
    pub(super) fn find(&self, key: &K) -> Option<Arc<V>> {
        self.known.lock().objects.get(key).and_then(Weak::upgrade)
    }

    /// Gives an object this name.
    pub(super) fn insert(&self, key: K, one: &Arc<V>) {
        self.known.lock().insert(key, one);
    }
}

impl<K: Hash + Eq, V> KnownObjects<K, V> {
    fn insert(&mut self, key: K, one: &Arc<V>) {
        // Unused ones are removed here, so that no destructor has to take the lock; and only when their number has
        // doubled, since thousands are added while a configuration is read.
        if self.objects.len() >= self.sweep_at {
            self.objects.retain(|_, one| one.strong_count() > 0);
            self.sweep_at = (self.objects.len() * 2).max(FEW);
        }
        self.objects.insert(key, Arc::downgrade(one));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_as_long_as_it_is_used() {
        let shared = SharedByName::<&str, u32>::default();
        let one = shared.get("a", || Arc::new(1));
        assert_eq!(
            (
                *shared.get("a", || Arc::new(2)),
                *shared.get("b", || Arc::new(3))
            ),
            (1, 3)
        );
        drop(one);
        assert_eq!(*shared.get("a", || Arc::new(4)), 4);
    }
}
