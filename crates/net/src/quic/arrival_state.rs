//! What has arrived of a client before its handshake.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, Waker};

use quinn_proto::Incoming;

use super::initial_hello::{HelloCollector, HelloProgress};
use crate::tls::{HandshakeError, ReceivedHello};

/// What has arrived of a new client.
pub(super) struct ArrivalState {
    id: Vec<u8>,
    incoming: RefCell<Option<Incoming>>,
    collector: RefCell<HelloCollector>,
    hello: RefCell<HelloProgress>,
    waker: Cell<Option<Waker>>,
}

impl ArrivalState {
    pub(super) fn new(
        id: Vec<u8>,
        incoming: Incoming,
        collector: HelloCollector,
        hello: HelloProgress,
    ) -> ArrivalState {
        ArrivalState {
            id,
            incoming: RefCell::new(Some(incoming)),
            collector: RefCell::new(collector),
            hello: RefCell::new(hello),
            waker: Cell::default(),
        }
    }

    pub(super) fn id(&self) -> &[u8] {
        &self.id
    }

    /// Its address, and ours, as far as it is known.
    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<IpAddr>) {
        let incoming = self.incoming.borrow();
        let incoming = incoming.as_ref();
        (
            incoming.map(Incoming::remote_address),
            incoming.and_then(Incoming::local_ip),
        )
    }

    pub(super) fn take_incoming(&self) -> Option<Incoming> {
        self.incoming.borrow_mut().take()
    }

    pub(super) fn take_datagram(&self, datagram: &[u8]) {
        if *self.hello.borrow() != HelloProgress::Partial {
            return;
        }
        let progress = self.collector.borrow_mut().take_datagram(datagram);
        self.note_progress(progress);
    }

    /// Waits no longer for a hello that is not complete.
    pub(super) fn give_up(&self) {
        if *self.hello.borrow() == HelloProgress::Partial {
            self.note_progress(HelloProgress::Broken);
        }
    }

    fn note_progress(&self, progress: HelloProgress) {
        if progress == HelloProgress::Partial {
            return;
        }
        *self.hello.borrow_mut() = progress;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn poll_hello(
        &self,
        context: &Context<'_>,
    ) -> Poll<Result<Box<ReceivedHello>, HandshakeError>> {
        match &*self.hello.borrow() {
            HelloProgress::Complete(message) => Poll::Ready(ReceivedHello::of_message(message)),
            HelloProgress::Broken => Poll::Ready(Err(HandshakeError::NotTls)),
            HelloProgress::Partial => {
                self.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}
