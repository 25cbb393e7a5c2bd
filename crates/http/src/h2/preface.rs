//! Which protocol a client speaks that does not say so by TLS: HTTP/2 begins with its preface (RFC 9113, section 3.3).
//!
//! What is neither that nor a request line with a version of HTTP is nobody's: the connection ends without an answer, as an
//! invalid preface wants it (section 3.4). A request of HTTP/0.9 has no third word and stays one.

use std::io;
use std::rc::Rc;
use std::task::Poll;

use host::error_log::Level;
use proto::h2::PREFACE;

use crate::byte_stream::ByteStream;
use crate::client::{Client, ConnectionOrder};
use crate::http_loop::HttpLoop;

/// How much is read at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpokenProtocol {
    /// HTTP/1, as far as one can tell.
    Http1,
    /// HTTP/2.
    Http2,
    /// Neither.
    Unknown,
    /// Nothing: the client has had its time, or the server stops.
    Nothing,
}

/// Waits for as many bytes as it takes to tell. They stay in the input.
pub(crate) async fn detect_protocol(
    http: &Rc<HttpLoop>,
    client: &Rc<Client>,
    bytes: &ByteStream,
) -> SpokenProtocol {
    let site = http.site();
    let server = site.server(client.endpoint.borrow().default_server);
    let timeout = server.core.client_header_timeout;
    drop(site);
    let timer = rt::Timer::after(client.rest_of(timeout));
    client.control.begin_waiting(rt::now(), bytes.sent.get());
    loop {
        let judged = judge(&bytes.input.borrow());
        match judged {
            None => {}
            Some(SpokenProtocol::Unknown) => {
                http.log_client(
                    Level::Info,
                    client,
                    format_args!(
                        "client sent invalid connection preface while processing HTTP/2 connection"
                    ),
                );
                return SpokenProtocol::Unknown;
            }
            Some(spoken) => return spoken,
        }
        let read = std::future::poll_fn(|context| {
            let mut input = bytes.input.borrow_mut();
            let read = bytes.transport.poll_read_into(context, &mut input, READ_SIZE);
            if let Poll::Ready(read) = read {
                return Poll::Ready(Some(read));
            }
            // With a part of a preface it is not idle any more; without, it may go elsewhere only as what it is by then.
            if input.is_empty() && matches!(client.control.poll_order(context), Poll::Ready(order) if order != ConnectionOrder::None)
            {
                return Poll::Ready(None);
            }
            timer.poll_expired(context).map(|()| None)
        })
        .await;
        // HTTP/1 has words, and a time, for a line that does not come to its end.
        let has_part = !bytes.input.borrow().is_empty();
        match read {
            Some(Ok(n)) if n > 0 => {}
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // HTTP/1 finds the same end, and has words for it.
            Some(_) => return SpokenProtocol::Http1,
            None if has_part || client.control.order() == ConnectionOrder::Leave => {
                return SpokenProtocol::Http1;
            }
            None => return SpokenProtocol::Nothing,
        }
    }
}

fn judge(input: &[u8]) -> Option<SpokenProtocol> {
    let n = input.len().min(PREFACE.len());
    if input[..n] != PREFACE[..n] {
        return judge_line(input);
    }
    (n == PREFACE.len()).then_some(SpokenProtocol::Http2)
}

/// Judges what is not the preface: by the second word if it can be a path, else by what a third one begins with.
fn judge_line(input: &[u8]) -> Option<SpokenProtocol> {
    const VERSION: &[u8] = b"HTTP/";
    let line = input.iter().position(|&b| b == b'\n');
    let text = &input[..line.unwrap_or(input.len())];
    let words = text.trim_ascii_end().split(|&b| b == b' ');
    // HTTP/1 takes several spaces for one.
    let mut words = words.filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    // What can not be a method is HTTP/1's to refuse at once, such as a hello of TLS.
    let is_method = |b: &u8| b.is_ascii_uppercase() || matches!(b, b'_' | b'-');
    if !first.iter().all(is_method) || second.starts_with(b"/") || input.len() >= READ_SIZE {
        return Some(SpokenProtocol::Http1);
    }
    match words.next() {
        Some(third) if third.starts_with(VERSION) => Some(SpokenProtocol::Http1),
        Some(third) if line.is_none() && VERSION.starts_with(third) => None,
        Some(_) => Some(SpokenProtocol::Unknown),
        None => line.map(|_| SpokenProtocol::Http1),
    }
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
            assert_ne!(judge(&other), Some(SpokenProtocol::Http2));
        }
        let more = [&PREFACE[..], b"x"].concat();
        assert_eq!(judge(&more), Some(SpokenProtocol::Http2));
        assert_eq!(judge(b"GET / HTTP/1.1"), Some(SpokenProtocol::Http1));
        assert_eq!(judge(b"PRI / HTTP/1.1"), Some(SpokenProtocol::Http1));
    }

    #[test]
    fn what_has_no_version_is_nobodys() {
        let line = b"INVALID CONNECTION PREFACE\r\n\r\n";
        assert_eq!(judge(line), Some(SpokenProtocol::Unknown));
        assert_eq!(judge(&line[..18]), None);
        assert_eq!(judge(b"CONNECT a:1 HT"), None);
        let http = [
            "GET /",
            "GET x\r\n",
            "GET /a b\r\n",
            "GET  / HTTP/1.1\r\n",
            "GET http://a/  HTTP/1.1\r\n",
            "GET http://a/ HTTP/1.1",
            "OPTIONS * HTTP/9\r\n",
            "\r\n",
            "\u{16}\u{3}\u{1}",
            "xxxxxxxx",
        ];
        for line in http {
            assert_eq!(
                judge(line.as_bytes()),
                Some(SpokenProtocol::Http1),
                "{line:?}"
            );
        }
    }
}
