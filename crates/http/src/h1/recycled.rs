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

/// Holds the request of a connection, and between two connections the memory that the first one left.
#[derive(Default)]
pub(super) struct RequestSlot {
    /// The request, while there is a connection. All requests of the connection use this one struct.
    request: Option<Request>,
    /// The memory for the next connection's request, while there is no connection. Not one enum with the request: what
    /// one leaves to the other would be copied on its way.
    buffers: RequestBuffers,
    pub(super) last_server: LastVirtualServer,
}

impl RequestSlot {
    /// The request of the connection, which `first` makes of the memory that is here.
    pub(super) fn request_or_else(
        &mut self,
        first: impl FnOnce(&mut RequestBuffers) -> Request,
    ) -> &mut Request {
        self.request.get_or_insert_with(|| first(&mut self.buffers))
    }
}

/// The slots of connections that have ended on this loop.
#[derive(Default)]
#[allow(clippy::vec_box)] // They travel in their boxes.
pub(crate) struct RecycledSlots(RefCell<Vec<Box<RequestSlot>>>);

impl RecycledSlots {
    /// A slot that an earlier connection left; a new one if there is none.
    pub(super) fn take_recycled(&self) -> Box<RequestSlot> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Frees what only a peak of connections needed.
    pub(crate) fn shrink(&self) {
        let mut slots = self.0.borrow_mut();
        slots.truncate(KEPT);
        slots.shrink_to_fit();
    }

    /// Keeps the slot of a connection that has ended, without unusually large buffers. Its request must have ended,
    /// too.
    pub(super) fn recycle(&self, mut slot: Box<RequestSlot>) {
        let mut slots = self.0.borrow_mut();
        if slots.len() >= MOST {
            return;
        }
        if let Some(request) = &mut slot.request {
            request.leave_buffers(&mut slot.buffers);
            if slot.buffers.size() > LARGEST {
                slot.buffers = RequestBuffers::default();
            }
            slot.request = None;
        }
        slots.push(slot);
    }
}
