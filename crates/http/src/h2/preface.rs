//! Finds out which protocol a client speaks that has not negotiated one by TLS. HTTP/2 begins with its preface (RFC
//! 9113, section 3.3).
//!
//! Anything that is neither the preface nor a request line with a version of HTTP belongs to no protocol: the
//! connection ends without an answer, as after an invalid preface (section 3.4). A request line of HTTP/0.9 has no
//! version and remains valid.

use std::io;
use std::rc::Rc;
use std::task::Poll;

use host::error_log::LogLevel;
use proto::h2::PREFACE;

use crate::byte_stream::ByteStream;
use crate::client::{ConnectionOrder, HttpClient};
use crate::http_loop::HttpLoop;

/// How much is read at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// What the first bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpokenProtocol {
    /// HTTP/1, or something that HTTP/1 has the right error for.
    Http1,
    /// HTTP/2.
    Http2,
    /// Neither.
    Unknown,
    /// Nothing was sent before the timeout, or before the server stopped.
    Nothing,
}

/// Reads as many bytes as it takes to tell. They stay in the input.
pub(crate) async fn detect_protocol(
    http: &Rc<HttpLoop>,
    client: &Rc<HttpClient>,
    bytes: &ByteStream,
) -> SpokenProtocol {
    let site = http.site();
    let server = site.server(client.first_server());
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
                    LogLevel::Info,
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
            // With a part of a preface the connection is not idle any more. Without one it may be closed; and it may
            // move only as HTTP/1, because what it will be is not known yet.
            if input.is_empty() && matches!(client.control.poll_order(context), Poll::Ready(order) if order != ConnectionOrder::None)
            {
                return Poll::Ready(None);
            }
            timer.poll_expired(context).map(|()| None)
        })
        .await;
        // An incomplete line is left to HTTP/1, which has a timeout and a log line for it.
        let has_part = !bytes.input.borrow().is_empty();
        match read {
            Some(Ok(n)) if n > 0 => {}
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // The client left, or reading failed: HTTP/1 meets the same again, and logs it.
            Some(_) => return SpokenProtocol::Http1,
            None if has_part || client.control.pending_order() == ConnectionOrder::Transfer => {
                return SpokenProtocol::Http1;
            }
            None => return SpokenProtocol::Nothing,
        }
    }
}

/// Judges the bytes so far; `None` if they fit the preface but are not all of it.
fn judge(input: &[u8]) -> Option<SpokenProtocol> {
    let n = input.len().min(PREFACE.len());
    if input[..n] != PREFACE[..n] {
        return judge_line(input);
    }
    (n == PREFACE.len()).then_some(SpokenProtocol::Http2)
}

/// Judges input that is not the preface: by the second word if that can be a path, otherwise by the beginning of the
/// third.
fn judge_line(input: &[u8]) -> Option<SpokenProtocol> {
    const VERSION: &[u8] = b"HTTP/";
    let line = input.iter().position(|&b| b == b'\n');
    let text = &input[..line.unwrap_or(input.len())];
    let words = text.trim_ascii_end().split(|&b| b == b' ');
    // HTTP/1 accepts several spaces in place of one.
    let mut words = words.filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    // Whatever cannot be a method, such as a TLS hello, is refused by HTTP/1 at once. A line that fills the buffer is
    // left to it, too.
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
