//! Waiting for something no longer than the client does.

use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use crate::client_stream::ClientStream;

/// The client is gone.
pub(crate) struct ClientLeft;

/// Waits for `future`, but, with `watch`, not for longer than the client does.
pub(crate) async fn while_client_stays<T>(
    client: &Rc<dyn ClientStream>,
    watch: bool,
    future: impl Future<Output = T>,
) -> Result<T, ClientLeft> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
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
