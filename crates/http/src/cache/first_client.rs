//! What a fetch has for the client that began it, and for no other: interim responses, what is known of the tries, and the
//! exchange itself if the response turns out not to be shared.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use crate::request::Request;
use crate::upstream::record::Try;
use crate::upstream::{Exchange, Slot};

/// Where a fetch leaves what the client that began it gets, on the same loop.
#[derive(Default)]
pub(super) struct FirstClientSlot {
    exchange: RefCell<Option<(Box<Exchange>, Slot)>>,
    tries: RefCell<Vec<Try>>,
    /// How many tries the client's request had before.
    before: Cell<Option<usize>>,
    /// Interim responses that the client has not got yet.
    interim: RefCell<Vec<u8>>,
    /// Wakes the client's task when more of them come.
    waiting: RefCell<Option<Waker>>,
}

impl FirstClientSlot {
    /// The exchange itself, when the response is for this client alone. The request gets its record.
    pub(super) fn take_exchange(&self, request: &mut Request) -> Option<Box<Exchange>> {
        let (exchange, slot) = self.exchange.borrow_mut().take()?;
        // What was copied of its tries so far comes with the record itself.
        if let Some(before) = self.before.get() {
            request.upstream.get_or_make().tries.truncate(before);
        }
        request.upstream.absorb(slot);
        Some(exchange)
    }

    /// Leaves the exchange, with the record of the fetch.
    pub(super) fn leave_exchange(&self, exchange: Box<Exchange>, record: Slot) {
        self.exchange.replace(Some((exchange, record)));
    }

    /// Leaves what is known of the tries.
    pub(super) fn publish(&self, tries: &Vec<Try>) {
        self.tries.borrow_mut().clone_from(tries);
    }

    /// Takes an interim response for the client that began.
    pub(super) fn relay(&self, bytes: &[u8]) {
        self.interim.borrow_mut().extend_from_slice(bytes);
        if let Some(waiting) = self.waiting.borrow_mut().take() {
            waiting.wake();
        }
    }

    /// The interim responses that came since it was asked last. What comes later wakes the asker.
    pub(super) fn poll_interim(&self, context: &mut Context<'_>) -> Vec<u8> {
        self.waiting.replace(Some(context.waker().clone()));
        self.interim.take()
    }

    /// Copies what is known of the tries into the request's record.
    pub(super) fn update(&self, request: &mut Request) {
        let record = request.upstream.get_or_make();
        let before = self.before.get().unwrap_or(record.tries.len());
        self.before.set(Some(before));
        record.tries.truncate(before);
        let tries = self.tries.borrow();
        if before > 0 && !tries.is_empty() {
            record.tries.push(Try::default());
        }
        record.tries.extend(tries.iter().cloned());
    }
}
