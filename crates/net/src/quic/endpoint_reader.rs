//! The task that reads an endpoint's socket, for as long as new clients are taken or there are connections.

use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base::ErrnoText;
use host::error_log::LogLevel;

use super::endpoint::QuicEndpoint;
use super::loops;

/// How long a listener that is going waits for handshakes. A client takes two round trips; a hello with a forged address would
/// hold up the end of the process for as long as a client may take at most.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(3);

/// How many datagrams are read before the tasks that were woken have their turn, and what they say leaves. A flood fills the socket as fast as it is read, and others would wait for its end.
const DATAGRAMS_AT_ONCE: usize = 256;

/// Ends the connections with the task that reads: they and their endpoint own each other, and a socket that is open and not
/// read would swallow what is meant for others.
struct ReadingGuard(Rc<QuicEndpoint>);

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        let endpoint = &self.0;
        loops::unregister(endpoint.owner);
        // Out of their cells first: what is dropped may look into them.
        let connections = endpoint.connections.take();
        let (dirty, later) = (endpoint.dirty.take(), endpoint.later.take());
        drop((connections, dirty, later));
        endpoint.patient.end();
    }
}

/// Reads the socket for as long as new clients are taken or there are connections.
pub(super) async fn read(endpoint: Rc<QuicEndpoint>) {
    let _ends_them = ReadingGuard(Rc::clone(&endpoint));
    let grace = rt::Timer::new();
    std::future::poll_fn(|context| {
        *endpoint.reader.borrow_mut() = Some(context.waker().clone());
        endpoint.resume(context);
        if !endpoint.is_accepting.get() {
            if endpoint.is_idle() {
                return Poll::Ready(());
            }
            // A client has a time of its own for its handshake.
            if !grace.is_set() && !endpoint.is_client {
                grace.set(HANDSHAKE_GRACE);
            }
            if grace.is_set() && grace.poll_expired(context).is_ready() {
                endpoint.give_up_handshakes();
            }
        }
        if !endpoint.is_reading.get() {
            return Poll::Pending;
        }
        endpoint.work.set(0);
        while endpoint.work.get() < DATAGRAMS_AT_ONCE {
            // An error is work as well.
            endpoint.work.set(endpoint.work.get() + 1);
            match endpoint.receive(&endpoint.socket, context) {
                Poll::Ready(Ok(())) => {}
                // An error of a UDP socket is one of a datagram that was sent (ICMP), and is reported once.
                Poll::Ready(Err(error)) if is_of_datagram(&error) => {
                    if endpoint.is_client && error.kind() == io::ErrorKind::ConnectionRefused {
                        endpoint.refuse_handshake();
                    }
                }
                Poll::Ready(Err(error)) => {
                    let (address, reason) = (&endpoint.spec.address, ErrnoText(&error));
                    if let Some(log) = &endpoint.log {
                        log.log_plain(
                            LogLevel::Alert,
                            format_args!("reading datagrams from {address} failed{reason}"),
                        );
                    }
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        // There is probably more. The poll of a yield only arranges that this task is polled again soon.
        let _ = std::pin::pin!(rt::yield_now()).poll(context);
        Poll::Pending
    })
    .await;
}

/// Whether an error of the socket concerns a datagram and not the socket.
pub(super) fn is_of_datagram(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::Interrupted
    )
}
