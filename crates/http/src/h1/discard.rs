//! Discards the content of a request that no handler has read, so that the connection can serve the next request.
//!
//! The time limits are those of [`crate::lingering_close`].

use std::task::Poll;

use crate::body_reader::BodyReadError;
use crate::buffers;
use crate::request::Request;

/// How much is read at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// How much content is examined before a response that does not need it is sent, in bytes.
const LOOK_AHEAD: u64 = 64 * 1024;

/// Discards what has already arrived of content that no handler read. The error means that its framing is broken: then
/// the request was malformed, and the prepared response is not the right one.
pub(super) async fn discard_what_came(request: &mut Request) -> Result<(), ()> {
    if request.body.is_complete() || request.body.was_read() {
        return Ok(());
    }
    request.body.begin_discard();
    let mut scratch = Vec::new();
    std::future::poll_fn(|context| {
        // One pass over what is at hand, without waiting: the response must not be held up by content that no handler
        // needs. The bound keeps a fast sender from occupying the loop.
        let begin = request.body.length();
        while !request.body.is_complete() && request.body.length() - begin < LOOK_AHEAD {
            scratch.clear();
            match request.body.poll_read(&mut scratch, READ_SIZE, context) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(BodyReadError::Malformed)) => return Poll::Ready(Err(())),
                // The client left: sending the response will find out.
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Reads and discards the rest of a request's content, so that the connection can serve the next request. `false` if
/// that did not succeed within `lingering_time`.
pub(super) async fn discard_content(request: &mut Request) -> bool {
    request.body.begin_discard();
    // Discarding serves no request: tasks that do run first.
    rt::set_rank(rt::TaskRank::Patient);
    let done = discard_in_time(request).await;
    rt::set_rank(rt::TaskRank::Ordinary);
    done
}

async fn discard_in_time(request: &mut Request) -> bool {
    let core = std::sync::Arc::clone(&request.site.location(request.location).core);
    let deadline = rt::now() + core.lingering_time;
    let timer = rt::Timer::new();
    loop {
        // Two bounds, as in nginx: `lingering_timeout` for each read, `lingering_time` for all of them.
        let left = deadline.saturating_duration_since(rt::now());
        if left.is_zero() {
            return false;
        }
        timer.set(left.min(core.lingering_timeout));
        let result = std::future::poll_fn(|context| {
            let mut scratch = buffers::take_buffer();
            let read = request.body.poll_read(&mut scratch, READ_SIZE, context);
            // Others have it while this client sends nothing.
            buffers::give_buffer(scratch);
            if let Poll::Ready(result) = read {
                return Poll::Ready(Some(result));
            }
            timer.poll_expired(context).map(|()| None)
        })
        .await;
        match result {
            Some(Ok(true)) => return true,
            // A client that sends without pause would otherwise keep the loop to itself.
            Some(Ok(false)) => rt::yield_now().await,
            Some(Err(_)) | None => return false,
        }
    }
}
