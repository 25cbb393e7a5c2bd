//! The fills under way, one per key and beginning, and the keys that turned out not to be worth one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fill::Fill;

/// The most keys remembered as uncacheable.
const LEARNED_MAX: usize = 65_536;

#[derive(Default)]
pub(crate) struct Fills(Mutex<Tables>);

#[derive(Default)]
pub(crate) struct Tables {
    /// By hash and first byte.
    pub(crate) running: HashMap<(u64, u64), Arc<Fill>>,
    /// Hash, and until when in milliseconds.
    learned: HashMap<u64, u64>,
}

impl Fills {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a fill out, if it is still the one under its key.
    pub(crate) fn remove(&self, fill: &Fill) {
        let mut tables = self.lock();
        for hash in fill.hashes() {
            let place = (hash, fill.base);
            let same = tables
                .running
                .get(&place)
                .is_some_and(|found| std::ptr::eq(Arc::as_ptr(found), fill));
            if same {
                tables.running.remove(&place);
            }
        }
    }
}

impl Tables {
    /// Until when a key is known to be uncacheable, if it is now.
    pub(crate) fn learned(&mut self, hash: u64, now_ms: u64) -> Option<u64> {
        let until = *self.learned.get(&hash)?;
        if until > now_ms {
            return Some(until);
        }
        self.learned.remove(&hash);
        None
    }

    pub(crate) fn learn(&mut self, hash: u64, until_ms: u64) {
        if self.learned.len() >= LEARNED_MAX && !self.learned.contains_key(&hash) {
            // Any half may go: what is forgotten is learned again by one fill.
            let mut keep = false;
            self.learned.retain(|_, _| {
                keep = !keep;
                keep
            });
        }
        self.learned.insert(hash, until_ms);
    }

    pub(crate) fn forget(&mut self, hash: u64) {
        self.learned.remove(&hash);
    }

    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.learned.retain(|_, until| *until > now_ms);
    }
}
