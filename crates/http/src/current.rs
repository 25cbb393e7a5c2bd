//! The engine of the loop that runs on this thread, for variables that show its state.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::engine::HttpLoop;

thread_local! {
    static CURRENT: RefCell<Weak<HttpLoop>> = const { RefCell::new(Weak::new()) };
}

pub(crate) fn set(engine: &Rc<HttpLoop>) {
    CURRENT.with(|current| *current.borrow_mut() = Rc::downgrade(engine));
}

/// The engine of this thread's loop; `None` on a thread that runs none.
pub fn engine() -> Option<Rc<HttpLoop>> {
    CURRENT.with(|current| current.borrow().upgrade())
}
