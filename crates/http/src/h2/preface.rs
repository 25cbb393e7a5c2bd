//! Which protocol a client speaks that does not say so by TLS: HTTP/2 begins with its preface (RFC 9113, section 3.3).

use std::io;
use std::rc::Rc;
use std::task::Poll;

use proto::h2::PREFACE;

use crate::client::{Asked, Client};
use crate::engine::HttpLoop;

/// How much is read at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// HTTP/1, as far as one can tell.
    Http1,
    /// HTTP/2.
    Http2,
    /// Nothing: the client has had its time, or the server stops.
    Nothing,
}

/// Waits for as many bytes as it takes to tell. They stay in the client's input.
pub async fn spoken(engine: &Rc<HttpLoop>, client: &Rc<Client>) -> Spoken {
    let site = engine.site();
    let server = site.server(client.endpoint.borrow().default_server);
    let timer = rt::Timer::after(server.core.client_header_timeout);
    drop(site);
    client.idle.begin(rt::now(), client.sent.get());
    loop {
        if let Some(spoken) = judge(&client.input.borrow()) {
            return spoken;
        }
        let read = std::future::poll_fn(|context| {
            let mut input = client.input.borrow_mut();
            let read = client
                .stream
                .poll_read_into(context, &mut input, READ_SIZE);
            if let Poll::Ready(read) = read {
                return Poll::Ready(Some(read));
            }
            // With a part of a preface it is not idle any more; without, it may go elsewhere only as what it is by then.
            if input.is_empty() && matches!(client.idle.poll_asked(context), Poll::Ready(asked) if asked != Asked::Nothing)
            {
                return Poll::Ready(None);
            }
            timer.poll_expired(context).map(|()| None)
        })
        .await;
        match read {
            Some(Ok(n)) if n > 0 => {}
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // HTTP/1 finds the same end, and has words for it.
            Some(_) => return Spoken::Http1,
            None if client.idle.asked() == Asked::Leave => return Spoken::Http1,
            None => return Spoken::Nothing,
        }
    }
}

fn judge(input: &[u8]) -> Option<Spoken> {
    let n = input.len().min(PREFACE.len());
    if input[..n] != PREFACE[..n] {
        return Some(Spoken::Http1);
    }
    (n == PREFACE.len()).then_some(Spoken::Http2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_told_as_soon_as_it_can_be() {
        assert_eq!(judge(b""), None);
        for n in 1..PREFACE.len() {
            assert_eq!(judge(&PREFACE[..n]), None);
            let mut other = PREFACE[..n].to_vec();
            other[n - 1] ^= 1;
            assert_eq!(judge(&other), Some(Spoken::Http1));
        }
        let more = [&PREFACE[..], b"x"].concat();
        assert_eq!(judge(&more), Some(Spoken::Http2));
        assert_eq!(judge(b"GET / HTTP/1.1"), Some(Spoken::Http1));
        assert_eq!(judge(b"PRI / HTTP/1.1"), Some(Spoken::Http1));
    }
}
