//! Memory that one exchange leaves to the next on the same loop: allocating some KB anew for each request costs more
//! than anything else here.

use std::cell::RefCell;

use super::record::Record;

/// Buffers and records that a loop keeps; more than this are given back to the system.
const MOST: usize = 64;

/// A buffer that grew larger than this is not kept, in bytes.
const LARGEST: usize = 64 * 1024;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    // Boxes, because a record travels in the box that it will be given back in.
    #[allow(clippy::vec_box)]
    static RECORDS: RefCell<Vec<Box<Record>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer.
pub(super) fn take() -> Vec<u8> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Leaves a buffer to the next.
pub(super) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > LARGEST {
        return;
    }
    buffer.clear();
    BUFFERS.with_borrow_mut(|all| {
        if all.len() < MOST {
            all.push(buffer);
        }
    });
}

/// An empty record.
pub(super) fn take_record() -> Box<Record> {
    RECORDS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Leaves a record to the next.
pub(super) fn give_record(mut record: Box<Record>) {
    record.clear();
    // A thread that ends has no use for it any more.
    let _ended = RECORDS.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut()
            && all.len() < MOST
        {
            all.push(record);
        }
    });
}
