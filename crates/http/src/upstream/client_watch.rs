//! Waiting for something, but no longer than the client stays connected.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::client_stream::ClientStream;

/// The client has disconnected.
pub(crate) struct ClientLeft;

/// Waits for `future`. With `watch`, the wait ends when the client disconnects.
///
/// The caller pins the future: one that was handed over would be copied into this one, and have its space twice.
pub(crate) fn while_client_stays<F: Future>(
    client: &Rc<dyn ClientStream>,
    watch: bool,
    mut future: Pin<&mut F>,
) -> impl Future<Output = Result<F::Output, ClientLeft>> {
    std::future::poll_fn(move |context| {
        // The result comes first: if both happen at the same time, the work has been done already.
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        match watch && client.poll_left(context).is_ready() {
            true => Poll::Ready(Err(ClientLeft)),
            false => Poll::Pending,
        }
    })
}
