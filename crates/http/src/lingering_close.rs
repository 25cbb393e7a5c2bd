//! `lingering_close`: what a client still sends when nothing of it is wanted any more.
//!
//! Closing a socket with unread input makes the kernel reset the connection, and a reset can destroy a response that
//! the client has not read yet (RFC 9112, section 9.6). So the input is read and thrown away for a while, within the
//! bounds that `lingering_time` and `lingering_timeout` set. HTTP/2 needs it as much for its last GOAWAY.

use std::task::Poll;

use net::Transport;

use crate::core::LocationConf;

/// Tells the client that nothing more comes, and waits until it closes too, its time is over, or it has sent `most` bytes.
pub(crate) async fn close(transport: &Transport, core: &LocationConf, most: u64) {
    if transport.shutdown_write().is_err() {
        return;
    }
    let deadline = rt::now() + core.lingering_time;
    let timer = rt::Timer::new();
    // What is thrown away is worth nothing to anybody: requests go first.
    rt::set_rank(rt::Rank::Patient);
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
        // One that never stops sending would have the loop for itself.
        rt::yield_now().await;
    }
}
