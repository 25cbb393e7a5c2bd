//! Looking at a client's first bytes before it is decided what becomes of the session.
//!
//! What was read stays in [`Client::input`](crate::client::Client::input), where the content handler finds it.

use std::task::Poll;

use crate::phase::status;
use crate::session::Session;

/// What a look at the bytes so far came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// More of them are needed.
    More,
    /// They suffice.
    Enough,
}

/// Reads until `judge`, which gets all bytes that have come, has enough, but no more than `preread_buffer_size`. The error
/// is the status that the session ends with: that of a client that left or waited for too long is not one of failure.
pub async fn preread(
    session: &mut Session,
    mut judge: impl FnMut(&[u8]) -> Look,
) -> Result<(), u16> {
    let Some(stream) = session.client.stream().cloned() else {
        return Ok(());
    };
    let core = &session.server().core;
    let most = usize::try_from(core.preread_buffer_size).unwrap_or(usize::MAX);
    let timer = rt::Timer::new();
    timer.set(core.preread_timeout);
    loop {
        let held = {
            let input = session.client.input.borrow();
            if !input.is_empty() && judge(&input) == Look::Enough {
                return Ok(());
            }
            input.len()
        };
        if held >= most {
            session.error(format_args!("preread buffer full"));
            return Err(status::BAD_REQUEST);
        }
        let received = std::future::poll_fn(|context| {
            let mut input = session.client.input.borrow_mut();
            match stream.poll_read_into(context, &mut input, most - held) {
                Poll::Ready(received) => Poll::Ready(Some(received)),
                Poll::Pending => timer.poll_expired(context).map(|()| None),
            }
        });
        match received.await {
            Some(Ok(1..)) => {}
            // It left, or its time is over: nobody is to be told.
            Some(Ok(0)) | None => return Err(status::OK),
            Some(Err(error)) => {
                session.log(
                    host::error_log::Level::Info,
                    format_args!("{}", net::ReadFailed(&error)),
                );
                return Err(status::OK);
            }
        }
    }
}
