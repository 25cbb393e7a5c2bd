//! Idle connections of scripts' sockets.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use net::Transport;

/// Idle connections of a machine, by pool.
#[derive(Default)]
pub(crate) struct Pools {
    by_key: RefCell<HashMap<String, VecDeque<Idle>>>,
    next: Cell<u64>,
}

struct Idle {
    number: u64,
    transport: Rc<Transport>,
    reused: u32,
    /// Watches it; ends with it.
    watch: rt::JoinHandle<()>,
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Pools {
    /// A connection that is still good.
    pub(super) fn take(&self, key: &str) -> Option<(Rc<Transport>, u32)> {
        loop {
            let idle = self.by_key.borrow_mut().get_mut(key)?.pop_back()?;
            if idle.transport.is_quiet() {
                return Some((Rc::clone(&idle.transport), idle.reused));
            }
        }
    }

    pub(super) fn keep(
        self: &Rc<Pools>,
        key: String,
        transport: Rc<Transport>,
        reused: u32,
        timeout: Duration,
        size: usize,
    ) {
        if size == 0 {
            return;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let (pools, watched, name) = (Rc::downgrade(self), Rc::clone(&transport), key.clone());
        let watch = rt::spawn_handle("lua idle connection", async move {
            if timeout == Duration::MAX {
                watched.closed().await;
            } else {
                let _ = rt::timeout(timeout, watched.closed()).await;
            }
            drop(watched);
            if let Some(pools) = pools.upgrade() {
                let gone = {
                    let mut by_key = pools.by_key.borrow_mut();
                    by_key.get_mut(&name).and_then(|list| {
                        let at = list.iter().position(|idle| idle.number == number)?;
                        list.remove(at)
                    })
                };
                drop(gone);
            }
        });
        let mut by_key = self.by_key.borrow_mut();
        let list = by_key.entry(key).or_default();
        list.push_back(Idle {
            number,
            transport,
            reused,
            watch,
        });
        let mut gone = Vec::new();
        while list.len() > size {
            gone.extend(list.pop_front());
        }
        drop(by_key);
        drop(gone);
    }
}
