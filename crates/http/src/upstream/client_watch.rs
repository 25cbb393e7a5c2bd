//! Waiting for something, but no longer than the client stays connected.

use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use crate::client_stream::ClientStream;

/// The client has disconnected.
pub(crate) struct ClientLeft;

/// Waits for `future`. With `watch`, the wait ends when the client disconnects.
pub(crate) async fn while_client_stays<T>(
    client: &Rc<dyn ClientStream>,
    watch: bool,
    future: impl Future<Output = T>,
) -> Result<T, ClientLeft> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        // The result comes first: if both happen at the same time, the work has been done already.
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        match watch && client.poll_left(context).is_ready() {
            true => Poll::Ready(Err(ClientLeft)),
            false => Poll::Pending,
        }
    })
    .await
}
