//! What a connection that has ended leaves to the next one on its loop: memory, and the host that was asked for last.
//!
//! A connection that serves one request would allocate some fifteen times for it, and each time grow what the one before
//! had grown as well: a third of what such a connection costs.

use std::cell::RefCell;

use crate::request::{Request, RequestBuffers};
use crate::virtual_server::LastVirtualServer;

/// RecycledSlots that a loop keeps: as many as tasks that wait for a connection.
const MOST: usize = 64;

/// What takes more memory than this is not kept, in bytes.
const LARGEST: usize = 16 * 1024;

/// Where the requests of a connection are, one after the other; between two connections, what the first has left.
#[derive(Default)]
pub(super) struct RequestSlot {
    /// The request, while there is a connection.
    pub(super) request: Option<Request>,
    /// What it is made of, while there is none.
    pub(super) buffers: RequestBuffers,
    pub(super) last_server: LastVirtualServer,
}

/// What the connections of a loop left.
#[derive(Default)]
#[allow(clippy::vec_box)] // They travel in their boxes.
pub(crate) struct RecycledSlots(RefCell<Vec<Box<RequestSlot>>>);

impl RecycledSlots {
    /// A slot that a connection has left; a new one where there is none.
    pub(super) fn take(&self) -> Box<RequestSlot> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the slot of a connection that has ended, but for what is unusually large. The request must have ended, too.
    pub(super) fn give(&self, mut slot: Box<RequestSlot>) {
        let mut slots = self.0.borrow_mut();
        if slots.len() >= MOST {
            return;
        }
        if let Some(request) = &mut slot.request {
            request.leave_buffers(&mut slot.buffers);
        }
        // Dropped where it is: to move something so large costs as much as what is saved here.
        slot.request = None;
        if slot.buffers.size() > LARGEST {
            slot.buffers = RequestBuffers::default();
        }
        slots.push(slot);
    }
}
