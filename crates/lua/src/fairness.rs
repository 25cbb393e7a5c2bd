//! Scripts that gave way take turns.
//!
//! However many scripts run for long, a loop gives one slice at a time to one of them, and serves everything else
//! between two slices.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A place in the row of those who gave way.
pub(crate) struct Turn(Rc<RefCell<Place>>);

#[derive(Default)]
struct Place {
    called: bool,
    gone: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Row {
    waiting: VecDeque<Rc<RefCell<Place>>>,
    /// A task calls the next one after each turn of the loop.
    calling: bool,
}

thread_local! {
    static ROW: RefCell<Row> = RefCell::default();
}

impl Turn {
    /// Goes to the end of the row.
    pub(crate) fn new() -> Turn {
        let place = Rc::new(RefCell::new(Place::default()));
        let begins = ROW.with_borrow_mut(|row| {
            row.waiting.push_back(Rc::clone(&place));
            !std::mem::replace(&mut row.calling, true)
        });
        if begins {
            rt::spawn_named("lua turns", call());
        }
        Turn(place)
    }

    /// Whether it is this one's turn.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut place = self.0.borrow_mut();
        if place.called {
            return Poll::Ready(());
        }
        place.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.borrow_mut().gone = true;
    }
}

async fn call() {
    loop {
        rt::yield_now().await;
        let next = ROW.with_borrow_mut(|row| {
            while let Some(place) = row.waiting.pop_front() {
                if !place.borrow().gone {
                    return Some(place);
                }
            }
            row.calling = false;
            None
        });
        let Some(place) = next else { return };
        let waker = {
            let mut place = place.borrow_mut();
            place.called = true;
            place.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
