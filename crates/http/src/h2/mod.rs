//! An HTTP/2 client connection (RFC 9113): many requests at once.
//!
//! One task reads the connection's frames and writes what there is to write; each stream is a task of its own, which
//! takes its request through the engine as HTTP/1 does. They meet in an [`Http2Link`](connection_link::Http2Link): a
//! stream appends its frames to the connection's output and wakes the connection, which sends what all streams have
//! appended in one call. A stream that has content to send first asks for room
//! ([`poll_room`](stream::Http2Stream::poll_room)): the client's windows, a bound on the output, and the priorities of
//! RFC 9218 decide whether it may, and a producer that may not is not asked for more.
//!
//! ```text
//!   socket ─▶ connection ─▶ events ─▶ stream_task ─▶ head, sender ───┐
//!      ▲         (frames)     │ DATA ─▶ body                         │ room?
//!      └── Http2Link::output ◀┴──────────────────────────────────────┘
//! ```
//!
//! Everything that a client can make the server do cheaply has a price, and its account is bounded: see
//! [`crate::client_budget`].

mod body;
mod connection;
mod connection_link;
mod events;
mod head;
mod limits;
mod preface;
mod sender;
mod stream;
mod stream_task;
mod timers;

use std::rc::Rc;

use crate::byte_stream::ByteStream;
use crate::client::HttpClient;
use crate::http_loop::HttpLoop;
use crate::lingering_close;

pub(crate) use preface::{SpokenProtocol, detect_protocol};

/// How much a client may still send after the final GOAWAY before the connection is broken off, in bytes: by then it
/// has either read that the connection is over, or it does not read at all.
const LINGER: u64 = 1 << 20;

/// Serves a connection until it ends. Its input holds what has been read of it, beginning with the preface.
pub(crate) async fn serve_connection(
    http: &Rc<HttpLoop>,
    client: &Rc<HttpClient>,
    bytes: &Rc<ByteStream>,
) {
    http.debug_client(client, format_args!("init http2 connection"));
    let mut connection = connection::Http2Connection::new(http, client, bytes);
    if connection.core().delivery.tcp_nodelay {
        bytes.send_without_delay();
    }
    // New connections, too, wait behind known clients: a client that only connects, again and again, must not delay
    // others.
    rt::continue_as(rt::TaskRank::Patient).await;
    let end = std::future::poll_fn(|context| connection.poll(context)).await;
    connection.end_streams();
    if end == connection::ConnectionEnd::Linger {
        let core = connection.core();
        lingering_close::linger_and_close(&bytes.transport, &core, LINGER).await;
    }
    // Handlers may finish work that is useful without a client (`proxy_ignore_client_abort`): the connection's state
    // must exist until they end.
    std::future::poll_fn(|context| connection.poll_ended(context)).await;
    // The task serves other connections after this one.
    rt::set_rank(rt::TaskRank::Ordinary);
    http.debug_client(client, format_args!("close http connection"));
}
