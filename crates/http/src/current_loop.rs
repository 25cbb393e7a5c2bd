//! HTTP on the loop that runs on this thread, for variables that show its state.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::http_loop::HttpLoop;

rt::local! {
    static CURRENT: RefCell<Weak<HttpLoop>> = const { RefCell::new(Weak::new()) };
}

/// Notes the loop of this thread.
pub(crate) fn set(http: &Rc<HttpLoop>) {
    CURRENT.with(|current| *current.borrow_mut() = Rc::downgrade(http));
}

/// HTTP on this thread's loop; `None` on a thread that runs none.
pub fn http_loop() -> Option<Rc<HttpLoop>> {
    CURRENT.with(|current| current.borrow().upgrade())
}
