//! What a fetch has for the client that started it, and for no other: interim responses, the record of its tries, and
//! the exchange itself if the response turns out not to be shareable.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use crate::ledger::{PhaseTimes, RequestLedger};
use crate::request::Request;
use crate::upstream::upstream_record::UpstreamTry;
use crate::upstream::{Exchange, RecordSlot};

/// The slot in which a fetch leaves what is for its first client. Both run on the same loop, hence no lock.
#[derive(Default)]
pub(super) struct FirstClientSlot {
    exchange: RefCell<Option<(Box<Exchange>, RecordSlot)>>,
    tries: RefCell<Vec<UpstreamTry>>,
    /// The columns of the fetch's ledger that the client's request does not have yet, and all of them.
    columns: RefCell<(PhaseTimes, PhaseTimes)>,
    /// The number of tries that the client's request had made before this fetch.
    before: Cell<Option<usize>>,
    /// Interim responses that have not been sent to the client yet.
    interim: RefCell<Vec<u8>>,
    /// Wakes the client's task when another one arrives.
    waiting: RefCell<Option<Waker>>,
}

impl FirstClientSlot {
    /// Takes the exchange, if the response is for this client alone. Its record becomes the request's.
    pub(super) fn take_exchange(&self, request: &mut Request) -> Option<Box<Exchange>> {
        let (exchange, slot) = self.exchange.borrow_mut().take()?;
        // The record contains all tries of the fetch, so the copies that were made of them are removed.
        if let Some(before) = self.before.get() {
            request.upstream.get_or_make().tries.truncate(before);
        }
        request.upstream.absorb_record(slot);
        Some(exchange)
    }

    /// Leaves the exchange, together with its record.
    pub(super) fn leave_exchange(&self, exchange: Box<Exchange>, record: RecordSlot) {
        self.exchange.replace(Some((exchange, record)));
    }

    /// Leaves a copy of the tries so far, and of what they took.
    pub(super) fn publish_tries(&self, tries: &Vec<UpstreamTry>, ledger: &RequestLedger) {
        self.tries.borrow_mut().clone_from(tries);
        let (news, all) = &mut *self.columns.borrow_mut();
        for (column, more) in news.iter_mut().zip(ledger.news(all)) {
            *column += more;
        }
    }

    /// Leaves an interim response.
    pub(super) fn relay_interim(&self, bytes: &[u8]) {
        self.interim.borrow_mut().extend_from_slice(bytes);
        if let Some(waiting) = self.waiting.borrow_mut().take() {
            waiting.wake();
        }
    }

    /// The interim responses since the last call. A later one wakes the task.
    pub(super) fn poll_interim(&self, context: &mut Context<'_>) -> Vec<u8> {
        self.waiting.replace(Some(context.waker().clone()));
        self.interim.take()
    }

    /// Copies the tries of the fetch into the request's record. It may be called again as more becomes known.
    pub(super) fn update_record(&self, request: &mut Request) {
        request
            .ledger
            .explain_fill(&std::mem::take(&mut self.columns.borrow_mut().0));
        let record = request.upstream.get_or_make();
        let before = self.before.get().unwrap_or(record.tries.len());
        self.before.set(Some(before));
        record.tries.truncate(before);
        let tries = self.tries.borrow();
        // An empty try separates those of two exchanges: `$upstream_addr` and the like put a colon there, as in nginx.
        if before > 0 && !tries.is_empty() {
            record.tries.push(UpstreamTry::default());
        }
        record.tries.extend(tries.iter().map(|made| UpstreamTry {
            is_of_fetch: true,
            ..made.clone()
        }));
        // As without a cache: the exchange whose response the client gets is not over before the client has it.
        if let Some(last) = record.tries.last_mut() {
            last.is_in_progress = last.header_time.is_some();
        }
    }
}
