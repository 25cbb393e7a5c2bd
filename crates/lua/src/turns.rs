//! Scripts that were preempted take turns.
//!
//! Preempting long-running scripts is not enough: with a hundred of them ready at once, an
//! iteration of the loop would run a hundred time slices before it serves anything else. So a loop
//! grants one slice per iteration, to the script that has waited longest, and handles everything
//! else in between.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A place in the queue of preempted scripts. Dropping it gives the place up.
pub(crate) struct RunTurn(Rc<RefCell<TurnSlot>>);

/// What the script and the queue share about one place.
#[derive(Default)]
struct TurnSlot {
    /// It is this script's turn.
    granted: bool,
    /// The script was aborted: skip it.
    abandoned: bool,
    /// Wakes the script when it is called.
    waker: Option<Waker>,
}

/// The queue of one loop.
#[derive(Default)]
struct TurnQueue {
    /// The places in order; dropped ones are skipped when their turn comes.
    waiting: VecDeque<Rc<RefCell<TurnSlot>>>,
    /// A task is running that grants a turn in each iteration of the loop. It ends with the queue.
    is_granting: bool,
}

rt::local! {
    static ROW: RefCell<TurnQueue> = RefCell::default();
}

impl RunTurn {
    /// Queues up at the end.
    pub(crate) fn new() -> RunTurn {
        let place = Rc::new(RefCell::new(TurnSlot::default()));
        let begins = ROW.with_borrow_mut(|row| {
            row.waiting.push_back(Rc::clone(&place));
            !std::mem::replace(&mut row.is_granting, true)
        });
        if begins {
            rt::spawn_named("lua turns", grant_turns());
        }
        RunTurn(place)
    }

    /// Ready when it is this script's turn.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut place = self.0.borrow_mut();
        if place.granted {
            return Poll::Ready(());
        }
        place.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for RunTurn {
    fn drop(&mut self) {
        self.0.borrow_mut().abandoned = true;
    }
}

/// Grants a turn per iteration of the loop until the queue is empty.
async fn grant_turns() {
    loop {
        rt::yield_now().await;
        let next = ROW.with_borrow_mut(|row| {
            while let Some(place) = row.waiting.pop_front() {
                if !place.borrow().abandoned {
                    return Some(place);
                }
            }
            row.is_granting = false;
            None
        });
        let Some(place) = next else { return };
        let waker = {
            let mut place = place.borrow_mut();
            place.granted = true;
            place.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
