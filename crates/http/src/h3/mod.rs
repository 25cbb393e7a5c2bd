//! An HTTP/3 client connection (RFC 9114): many requests at once, each on a QUIC stream of its own.
//!
//! QUIC does what HTTP/2 has to do itself: it multiplexes, bounds what either side may send, and keeps streams apart. So the
//! connection's task only accepts streams and reads the client's control and QPACK streams; a request's task reads its own
//! stream, from the head on, and writes its response there. They meet in an [`Http3Link`](connection_link::Http3Link):
//! the compression table, the client's budget, and who waits for whom.
//!
//! ```text
//!   QuicConnection ─▶ connection ─▶ uni_streams (control, QPACK) ─▶ Http3Link: table ─┐ unblocks
//!                       │ accepts                                                     ▼
//!                       └──────────▶ stream_task ◀─▶ stream ◀─▶ QuicReceiveStream, QuicSendStream
//!                                     head, body, sender
//! ```
//!
//! Everything that a client can make the server do cheaply has a price, and its account is bounded: see
//! [`crate::client_budget`].

mod body;
mod connection;
mod connection_link;
mod limits;
mod our_streams;
mod request_head;
mod sender;
mod stream;
mod stream_task;
mod uni_streams;

use std::rc::Rc;

use net::quic::QuicConnection;

use crate::client::HttpClient;
use crate::http_loop::HttpLoop;

/// Serves a connection until it ends.
pub(crate) async fn serve_connection(
    http: &Rc<HttpLoop>,
    client: &Rc<HttpClient>,
    quic: &Rc<QuicConnection>,
) {
    http.debug_client(client, format_args!("init http3 connection"));
    // New connections wait behind known clients, as those of HTTP/2 do.
    rt::continue_as(rt::TaskRank::Patient).await;
    let mut connection = connection::Http3Connection::new(http, client, quic);
    std::future::poll_fn(|context| connection.poll(context)).await;
    connection.end_streams();
    // Handlers may finish work that is useful without a client (`proxy_ignore_client_abort`): the connection's state
    // must exist until they end.
    std::future::poll_fn(|context| connection.poll_ended(context)).await;
    rt::set_rank(rt::TaskRank::Ordinary);
    http.debug_client(client, format_args!("close http connection"));
}
