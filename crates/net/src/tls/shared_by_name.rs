//! Objects that have a name in the configuration and outlive it: all loops, and the configurations before and after
//! a reload, share one object of a name. It is dropped with its last user.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use base::sync::Mutex;

/// The objects of one kind in this process, by name. Their number is limited by the configurations in use.
pub(super) struct SharedByName<K, V> {
    known: Mutex<HashMap<K, Weak<V>>>,
}

impl<K, V> Default for SharedByName<K, V> {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
        }
    }
}

impl<K: Hash + Eq, V> SharedByName<K, V> {
    /// The object of this name, if it is in use; otherwise a new one.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let mut known = self.known.lock();
        // Called while a configuration is read, so a walk over all is cheap, and no destructor has to take this
        // lock.
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
