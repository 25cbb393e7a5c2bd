//! What a connection that has ended leaves to the next one on its loop: memory, and the last virtual server.
//!
//! A connection that serves one request would make some fifteen allocations for it, and grow each of them again as the
//! previous one did: a third of what such a connection costs.

use std::cell::RefCell;

use crate::request::{Request, RequestBuffers};
use crate::virtual_server::LastVirtualServer;

/// How many a loop keeps: as many as tasks that wait for a connection.
const MOST: usize = 64;

/// How many it keeps after a peak of connections.
const KEPT: usize = 8;

/// Buffers above this size in total are freed, in bytes: one large request must not leave its memory with the loop.
const LARGEST: usize = 16 * 1024;

/// Holds the request of a connection.
#[derive(Default)]
pub(super) struct RequestSlot {
    /// The request, while there is a connection. All requests of the connection use this one struct.
    request: Option<Request>,
    pub(super) last_server: LastVirtualServer,
}

impl RequestSlot {
    /// The request of the connection, which `first` makes.
    pub(super) fn request_or_else(&mut self, first: impl FnOnce() -> Request) -> &mut Request {
        self.request.get_or_insert_with(first)
    }
}

/// What connections that have ended on this loop have left.
#[derive(Default)]
#[allow(clippy::vec_box)] // They travel in their boxes.
pub(crate) struct RecycledSlots {
    slots: RefCell<Vec<Box<RequestSlot>>>,
    /// The memory of their requests. Apart from the slots, which a slow client keeps for long: that of its own request is in the
    /// request.
    buffers: RefCell<KeptBuffers>,
}

/// The memory of requests that have ended. What is taken is left empty in its place, since it is half a kilobyte that would have
/// to be moved out and made again.
#[derive(Default)]
struct KeptBuffers {
    all: Vec<RequestBuffers>,
    /// How many of them have memory; those behind have none.
    filled: usize,
}

impl RecycledSlots {
    /// A slot that an earlier connection left; a new one if there is none.
    pub(super) fn take_recycled(&self) -> Box<RequestSlot> {
        self.slots.borrow_mut().pop().unwrap_or_default()
    }

    /// Makes the first request of a connection of the memory that an earlier one left.
    pub(super) fn first_request(
        &self,
        make: impl FnOnce(&mut RequestBuffers) -> Request,
    ) -> Request {
        let mut kept = self.buffers.borrow_mut();
        let Some(last) = kept.filled.checked_sub(1) else {
            return make(&mut RequestBuffers::default());
        };
        kept.filled = last;
        make(&mut kept.all[last])
    }

    /// Frees what only a peak of connections needed.
    pub(crate) fn shrink(&self) {
        let mut slots = self.slots.borrow_mut();
        slots.truncate(KEPT);
        slots.shrink_to_fit();
        let mut kept = self.buffers.borrow_mut();
        kept.filled = kept.filled.min(KEPT);
        let filled = kept.filled;
        kept.all.truncate(filled);
        kept.all.shrink_to_fit();
    }

    /// Keeps the slot of a connection that has ended, and the memory of its request unless that is unusually large. The request
    /// must have ended, too.
    pub(super) fn recycle(&self, mut slot: Box<RequestSlot>) {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= MOST {
            return;
        }
        if let Some(request) = &mut slot.request {
            self.buffers.borrow_mut().keep_those_of(request);
            slot.request = None;
        }
        slots.push(slot);
    }
}

impl KeptBuffers {
    /// Keeps the memory of a request that has ended, unless that is unusually large.
    fn keep_those_of(&mut self, request: &mut Request) {
        if self.filled == MOST {
            return;
        }
        if self.filled == self.all.len() {
            self.all.push(RequestBuffers::default());
        }
        let buffers = &mut self.all[self.filled];
        request.leave_buffers(buffers);
        match buffers.size() > LARGEST {
            true => *buffers = RequestBuffers::default(),
            false => self.filled += 1,
        }
    }
}
