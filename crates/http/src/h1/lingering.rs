//! What a client still sends when nobody wants it any more.
//!
//! Closing a socket with unread input makes the kernel reset the connection, and a reset can destroy a response that
//! the client has not read yet (RFC 9112, section 9.6). So the input is read and thrown away for a while, within the
//! bounds that `lingering_time` and `lingering_timeout` set.

use std::task::Poll;

use crate::body_reader::BodyReadError;
use crate::client::Client;
use crate::core::LocationConf;
use crate::request::Request;

/// How much is read at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// Tells the client that nothing more comes, and waits until it closes too, its time is over, or it has sent `most` bytes.
pub(crate) async fn close(client: &Client, core: &LocationConf, most: u64) {
    if client.stream.shutdown_write().is_err() {
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
        let discarded = std::future::poll_fn(|context| match client.stream.poll_discard(context) {
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

/// The most content that is looked at before a response that does not want it is sent, in bytes.
const LOOK_AHEAD: u64 = 64 * 1024;

/// Throws away what has already come of content that no handler read. An error when its framing is broken: then the
/// request was malformed, and no response to it can be right.
pub(super) async fn discard_what_came(request: &mut Request) -> Result<(), ()> {
    if request.body.is_complete() || request.body.was_read() {
        return Ok(());
    }
    request.body.begin_discard();
    let mut scratch = Vec::new();
    std::future::poll_fn(|context| {
        let begin = request.body.length();
        while !request.body.is_complete() && request.body.length() - begin < LOOK_AHEAD {
            scratch.clear();
            match request.body.poll_read(&mut scratch, READ_SIZE, context) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(BodyReadError::Malformed)) => return Poll::Ready(Err(())),
                // The client left: sending will tell.
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Reads what is left of a request's content and throws it away, so that the connection can serve the next request.
/// `false` when that did not succeed within `lingering_time`.
pub(super) async fn discard(request: &mut Request) -> bool {
    request.body.begin_discard();
    rt::set_rank(rt::Rank::Patient);
    let done = discard_in_time(request).await;
    rt::set_rank(rt::Rank::Ordinary);
    done
}

async fn discard_in_time(request: &mut Request) -> bool {
    let core = std::sync::Arc::clone(&request.site.location(request.location).core);
    let deadline = rt::now() + core.lingering_time;
    let timer = rt::Timer::new();
    let mut scratch = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(rt::now());
        if left.is_zero() {
            return false;
        }
        timer.set(left.min(core.lingering_timeout));
        scratch.clear();
        let result = std::future::poll_fn(|context| {
            if let Poll::Ready(result) = request.body.poll_read(&mut scratch, READ_SIZE, context) {
                return Poll::Ready(Some(result));
            }
            timer.poll_expired(context).map(|()| None)
        })
        .await;
        match result {
            Some(Ok(true)) => return true,
            Some(Ok(false)) => rt::yield_now().await,
            Some(Err(_)) | None => return false,
        }
    }
}
