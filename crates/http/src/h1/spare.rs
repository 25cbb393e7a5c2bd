//! What a connection that has ended leaves to the next one on its loop: memory, and the host that was asked for last.
//!
//! A connection that serves one request would allocate some fifteen times for it, and each time grow what the one before
//! had grown as well: a third of what such a connection costs.

use std::cell::RefCell;

use super::host::LastHost;
use crate::request::{Memory, Request};

/// Spares that a loop keeps: as many as tasks that wait for a connection.
const MOST: usize = 64;

/// What takes more memory than this is not kept, in bytes.
const LARGEST: usize = 16 * 1024;

/// Where the requests of a connection are, one after the other; between two connections, what the first has left.
#[derive(Default)]
pub(super) struct Room {
    /// The request, while there is a connection.
    pub(super) request: Option<Request>,
    /// What it is made of, while there is none.
    pub(super) memory: Memory,
    pub(super) last_host: LastHost,
}

/// What the connections of a loop left.
#[derive(Default)]
#[allow(clippy::vec_box)] // They travel in their boxes.
pub(crate) struct Spares(RefCell<Vec<Box<Room>>>);

impl Spares {
    /// A spare room; a new one where none is left.
    pub(super) fn take(&self) -> Box<Room> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the room of a connection that has ended, but for what is unusually large. The request must have ended, too.
    pub(super) fn give(&self, mut room: Box<Room>) {
        let mut spares = self.0.borrow_mut();
        if spares.len() >= MOST {
            return;
        }
        if let Some(request) = &mut room.request {
            request.leave(&mut room.memory);
        }
        // Dropped where it is: to move something so large costs as much as what is saved here.
        room.request = None;
        if room.memory.size() > LARGEST {
            room.memory = Memory::default();
        }
        spares.push(room);
    }
}
