//! The HTTP state of this thread's loop, for variables that show it.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::http_loop::HttpLoop;

rt::local! {
    static CURRENT: RefCell<Weak<HttpLoop>> = const { RefCell::new(Weak::new()) };
}

/// Sets the loop of this thread.
pub(crate) fn set_current_loop(http: &Rc<HttpLoop>) {
    CURRENT.with(|current| *current.borrow_mut() = Rc::downgrade(http));
}

/// The HTTP state of this thread's loop; `None` on a thread without a loop.
pub fn http_loop() -> Option<Rc<HttpLoop>> {
    CURRENT.with(|current| current.borrow().upgrade())
}
