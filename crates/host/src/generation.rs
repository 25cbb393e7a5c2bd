//! Generations of an engine's configuration: each reload makes one, and connections keep the one that they began under.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers generations, so that the sessions of one and of all before it can be found when their time is over.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// The number of a generation that is being made. It is above those of all before, whatever engine made them.
pub fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// A generation as one loop holds it: in an `Rc`, so that the count that every request or session moves is not one that all
/// processors fight over.
pub struct LoopGeneration<T>(Arc<T>);

impl<T> LoopGeneration<T> {
    /// Wraps a generation for one loop.
    pub fn new(generation: Arc<T>) -> Rc<Self> {
        Rc::new(LoopGeneration(generation))
    }

    /// The generation itself, for other threads.
    pub fn shared(&self) -> Arc<T> {
        Arc::clone(&self.0)
    }
}

impl<T> Deref for LoopGeneration<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
