//! What has a name in a configuration and outlives it: those who name it share it, all loops and the configurations
//! before and after a reload. It goes with the last who uses it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use base::sync::Mutex;

/// The things of one kind in this process, by name. As many as configurations in use name.
pub(super) struct Shared<K, V> {
    known: Mutex<HashMap<K, Weak<V>>>,
}

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
        }
    }
}

impl<K: Hash + Eq, V> Shared<K, V> {
    /// The one of this name that is in use; without one, a new one.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let mut known = self.known.lock();
        known.retain(|_, one| one.strong_count() > 0);
        if let Some(one) = known.get(&key).and_then(Weak::upgrade) {
            return one;
        }
        let one = make();
        known.insert(key, Arc::downgrade(&one));
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_as_long_as_it_is_used() {
        let shared = Shared::<&str, u32>::default();
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
