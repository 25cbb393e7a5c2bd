//! Reading the first bytes of a client before it is decided what becomes of the session.
//!
//! What was read stays in [`StreamClient::input`](crate::client::StreamClient::input), where the content handler finds
//! it.

use std::task::Poll;

use crate::phase::status;
use crate::session::StreamSession;

/// Whether the bytes that have come so far are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrereadProgress {
    /// More of them are needed.
    More,
    /// They are enough.
    Enough,
}

/// Reads until `judge`, which gets all bytes that have come, has enough, but at most `preread_buffer_size`. The error
/// is the status with which the session ends; for a client that left or was too slow that is not a failure, as in
/// nginx.
pub async fn read_preread(
    session: &mut StreamSession,
    mut judge: impl FnMut(&[u8]) -> PrereadProgress,
) -> Result<(), u16> {
    let Some(stream) = session.client.stream().cloned() else {
        return Ok(());
    };
    let core = &session.server().core;
    let most = usize::try_from(core.preread_buffer_size).unwrap_or(usize::MAX);
    // One timer for all reads: a client that sends a byte now and then must not hold the session for ever.
    let timer = rt::Timer::new();
    timer.set(core.preread_timeout);
    loop {
        let held = {
            let input = session.client.input.borrow();
            // Before any read: what came behind a PROXY protocol header may be enough.
            if !input.is_empty() && judge(&input) == PrereadProgress::Enough {
                return Ok(());
            }
            input.len()
        };
        // Judged first: a message that fills the buffer exactly is complete.
        if held >= most {
            session.error(format_args!("preread buffer full"));
            return Err(status::BAD_REQUEST);
        }
        let received = std::future::poll_fn(|context| {
            let mut input = session.client.input.borrow_mut();
            // Bytes before the timer: what has come in time counts, even if both are ready.
            match stream.poll_read_into(context, &mut input, most - held) {
                Poll::Ready(received) => Poll::Ready(Some(received)),
                Poll::Pending => timer.poll_expired(context).map(|()| None),
            }
        });
        match received.await {
            Some(Ok(1..)) => {}
            // The client has left or was too slow: there is nothing to tell it.
            Some(Ok(0)) | None => return Err(status::OK),
            Some(Err(error)) => {
                session.log(
                    host::error_log::LogLevel::Info,
                    format_args!("{}", net::ReadFailed(&error)),
                );
                return Err(status::OK);
            }
        }
    }
}
