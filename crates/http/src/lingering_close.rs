//! `lingering_close`: what a client still sends after the last response.
//!
//! Closing a socket with unread input makes the kernel reset the connection, and a reset can destroy a response that
//! the client has not read yet (RFC 9112, section 9.6). So the input is read and discarded for a while, within the
//! limits of `lingering_time` and `lingering_timeout`. HTTP/2 needs it as much for its last GOAWAY.

use std::task::Poll;

use net::Transport;

use crate::core::LocationConf;

/// Closes our side, and waits until the client closes its own, the time is over, or it has sent `most` bytes.
pub(crate) async fn linger_and_close(transport: &Transport, core: &LocationConf, most: u64) {
    // A connection that is gone has nothing to protect.
    if transport.shutdown_write().is_err() {
        return;
    }
    let deadline = rt::now() + core.lingering_time;
    let timer = rt::Timer::new();
    // Discarding is of no use to any request: those go first.
    rt::set_rank(rt::TaskRank::Patient);
    let mut seen = 0;
    while seen < most {
        let left = deadline.saturating_duration_since(rt::now());
        if left.is_zero() {
            return;
        }
        timer.set(left.min(core.lingering_timeout));
        let discarded = std::future::poll_fn(|context| match transport.poll_discard(context) {
            Poll::Ready(result) => Poll::Ready(result.unwrap_or(0)),
            Poll::Pending => timer.poll_expired(context).map(|()| 0),
        })
        .await;
        if discarded == 0 {
            return;
        }
        seen += discarded as u64;
        // A client that never stops sending would otherwise keep the loop to itself.
        rt::yield_now().await;
    }
}
