//! Locks without poisoning: a thread that panicked while it held one does not take it from the others.
//!
//! The standard library marks a lock whose holder panicked, and makes each later caller decide. Here the
//! decision is always the same. A panic is caught at the edge of a loop and costs one connection, so the
//! process goes on; what the locks guard (counters, queues, maps, pools) is changed in single steps that leave
//! it usable; and a lock that refused every later caller would turn one lost connection into an outage.
//! So `lock` simply gives the guard. Data that a panic could leave half-changed must not be guarded by these.
//!
//! The guards are the standard library's own, and there is no cost beyond its locks. Its `nonpoison` types,
//! once stable, replace this module.

use std::sync::PoisonError;
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// Mutual exclusion; see the module's page for what happens after a panic.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex that guards `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// What it guarded.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread holds it, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it if no other thread holds it now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The value, which no other thread can hold: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that many may hold to read, or one to write.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock that guards `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes, and takes it to read.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread holds it, and takes it to write.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, which no other thread can hold: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets threads that hold a [`Mutex`] wait for a change of what it guards.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// One that no thread waits for.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Gives the mutex up, waits for a notification, and takes the mutex again. It may also return without one.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`wait`](Self::wait), for at most `limit`; whether it was over comes with the guard.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout(guard, limit);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Waits for as long as `condition` holds, but no longer than `limit`; whether it was over comes with the guard.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout_while(guard, limit, condition);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes every waiting thread.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Runs `holds` and swallows the panic that it ends with.
    fn panics(holds: impl FnOnce()) {
        assert!(catch_unwind(AssertUnwindSafe(holds)).is_err());
    }

    #[test]
    fn a_mutex_whose_holder_panicked_is_taken_as_before() {
        let mutex = Mutex::new(1);
        panics(|| {
            let mut held = mutex.lock();
            *held = 2;
            panic!("while it is held");
        });
        assert_eq!(*mutex.lock(), 2);
        assert!(mutex.try_lock().is_some());
        assert_eq!(mutex.into_inner(), 2);
    }

    #[test]
    fn a_mutex_that_is_held_is_not_taken_twice() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn a_lock_whose_writer_panicked_is_taken_as_before() {
        let lock = RwLock::new(1);
        panics(|| {
            let mut held = lock.write();
            *held = 2;
            panic!("while it is held");
        });
        assert_eq!(*lock.read(), 2);
        *lock.write() = 3;
        assert_eq!(*lock.read(), 3);
    }

    #[test]
    fn waiting_ends_with_the_limit() {
        let (mutex, changed) = (Mutex::new(()), Condvar::new());
        let (_guard, timed_out) =
            changed.wait_timeout_while(mutex.lock(), Duration::from_millis(1), |()| true);
        assert!(timed_out);
    }
}
