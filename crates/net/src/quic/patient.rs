//! Datagrams of clients that are new, or that cost more than they use: they are taken in patient rank ([`rt::TaskRank`]), a
//! few of one connection after a few of the next.
//!
//! A datagram is decrypted, its frames wake tasks, and it may open a hundred streams. A socket is one queue for all clients:
//! if each were taken where it is read, those of a flood would go before a good client's that came behind them. To read
//! and to find its connection costs a fraction of that. So known clients' datagrams are taken at once, and others wait
//! here, as their requests wait in `http`. So do first packets: keys are derived from each.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use quinn_proto::ConnectionEvent;
use rt::net::IncomingDatagram;

use super::endpoint::QuicEndpoint;
use super::link::ConnectionLink;
use super::loops::{ForwardedDatagram, received};

/// How many datagrams of a connection may wait: more than a client's window has before it is known. What comes beyond that
/// is lost, which slows its sender down.
const LIMIT_OF_ONE: usize = 128;

/// How many may wait at an endpoint.
const LIMIT_OF_ALL: usize = 4096;

/// How many datagrams of clients without a connection may wait at an endpoint. Who comes beyond that says hello again.
const LIMIT_OF_ARRIVALS: usize = 512;

/// How many datagrams of a connection are taken before the next connection's.
const TAKEN_AT_ONCE: usize = 4;

/// What waits of one connection.
#[derive(Default)]
pub(super) struct DatagramBacklog {
    waiting: RefCell<VecDeque<(ConnectionEvent, SocketAddr)>>,
}

/// The connections of an endpoint of which something waits.
#[derive(Default)]
pub(super) struct PatientLinks {
    /// Each is here once.
    queue: RefCell<VecDeque<Rc<ConnectionLink>>>,
    /// How many datagrams of theirs wait in all.
    waiting: Cell<usize>,
    /// Datagrams of clients that have no connection, or do not know its id yet.
    arrivals: RefCell<VecDeque<ForwardedDatagram>>,
    /// The task that takes them.
    task: Cell<Option<Waker>>,
    is_over: Cell<bool>,
}

impl DatagramBacklog {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

impl PatientLinks {
    /// Has a datagram wait.
    pub(super) fn add(&self, link: &Rc<ConnectionLink>, event: ConnectionEvent, from: SocketAddr) {
        let mut waiting = link.backlog.waiting.borrow_mut();
        if waiting.len() >= LIMIT_OF_ONE || self.waiting.get() >= LIMIT_OF_ALL {
            return;
        }
        waiting.push_back((event, from));
        self.waiting.set(self.waiting.get() + 1);
        if waiting.len() == 1 {
            self.queue.borrow_mut().push_back(Rc::clone(link));
            self.wake();
        }
    }

    /// Has a datagram of a client without a connection wait.
    pub(super) fn add_arrival(&self, datagram: &IncomingDatagram<'_>) {
        let mut arrivals = self.arrivals.borrow_mut();
        if arrivals.len() < LIMIT_OF_ARRIVALS {
            arrivals.push_back(ForwardedDatagram::of(datagram));
            self.wake();
        }
    }

    /// Takes some datagrams of the next connection, and one of a new client. Pending while none wait; ready at the end of the
    /// endpoint.
    fn poll(&self, endpoint: &Rc<QuicEndpoint>, context: &Context<'_>) -> Poll<()> {
        if self.is_over.get() {
            return Poll::Ready(());
        }
        let next = self.queue.borrow_mut().pop_front();
        if let Some(link) = next {
            for _ in 0..TAKEN_AT_ONCE {
                // Its own statement: what is woken may look here.
                let next = link.backlog.waiting.borrow_mut().pop_front();
                let Some((event, from)) = next else { break };
                self.waiting.set(self.waiting.get() - 1);
                link.take_now(event, from);
            }
            if !link.backlog.is_empty() {
                self.queue.borrow_mut().push_back(link);
            }
        }
        // Its own statement, as above.
        let arrival = self.arrivals.borrow_mut().pop_front();
        if let Some(datagram) = arrival {
            endpoint.take_datagram(&received(&datagram));
        }
        self.task.set(Some(context.waker().clone()));
        if !self.queue.borrow().is_empty() || !self.arrivals.borrow().is_empty() {
            // Behind other patient tasks, in this turn if they leave time for it.
            self.wake();
        }
        Poll::Pending
    }

    fn wake(&self) {
        if let Some(waker) = self.task.take() {
            waker.wake();
        }
    }

    /// Ends the task, with what waits.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        drop(self.arrivals.take());
        // Out of its cell first: what is dropped may look into it.
        let queue = self.queue.take();
        for link in &queue {
            drop(link.backlog.waiting.take());
        }
        drop(queue);
        self.wake();
    }
}

/// Takes the datagrams that wait at an endpoint, until that ends. To be run in patient rank.
pub(super) async fn take_patient(endpoint: Rc<QuicEndpoint>) {
    std::future::poll_fn(|context| endpoint.patient.poll(&endpoint, context)).await;
}
