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
mod sender;
mod stream;
mod stream_task;
mod uni_streams;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use net::quic::QuicConnection;
use net::tls::TlsSession;
use proto::fields::Fields;
use proto::h3::H3ErrorCode;
use rt::net::{SocketAddress, TcpInfo};

use crate::byte_stream::ByteStream;
use crate::client::HttpClient;
use crate::client_stream::{ClientConnection, ClientStream};
use crate::http_loop::HttpLoop;

/// Serves a connection until it ends. The client's `connection` is an [`Http3Client`] of the same one.
pub(crate) async fn serve_connection(
    http: &Rc<HttpLoop>,
    client: &Rc<HttpClient>,
    carrier: &Rc<Http3Client>,
) {
    http.debug_client(client, format_args!("init http3 connection"));
    // New connections wait behind known clients, as those of HTTP/2 do.
    rt::continue_as(rt::TaskRank::Patient).await;
    let mut connection = connection::Http3Connection::new(http, client, carrier);
    std::future::poll_fn(|context| connection.poll(context)).await;
    connection.end_streams();
    // Handlers may finish work that is useful without a client (`proxy_ignore_client_abort`): the connection's state
    // must exist until they end.
    std::future::poll_fn(|context| connection.poll_ended(context)).await;
    rt::set_rank(rt::TaskRank::Ordinary);
    http.debug_client(client, format_args!("close http connection"));
}

/// A QUIC connection as the client of requests: [`HttpClient::connection`].
pub(crate) struct Http3Client {
    pub(crate) quic: Rc<QuicConnection>,
    /// The connection's task has found that it is over.
    is_over: std::cell::Cell<bool>,
    /// Wakes who waits for that without a stream. Only one: a QUIC connection wakes who asked last, too.
    watcher: RefCell<Option<Waker>>,
}

impl Http3Client {
    pub(crate) fn new(quic: Rc<QuicConnection>) -> Rc<Http3Client> {
        // A stream whose task is dropped, by a panic say, is abandoned with this code.
        quic.set_drop_code(H3ErrorCode::INTERNAL_ERROR.0);
        Rc::new(Http3Client {
            quic,
            is_over: std::cell::Cell::new(false),
            watcher: RefCell::default(),
        })
    }

    /// Notes that the connection is over.
    fn note_end(&self) {
        self.is_over.set(true);
        if let Some(waker) = self.watcher.take() {
            waker.wake();
        }
    }
}

impl ClientConnection for Http3Client {
    fn stream(self: Rc<Self>) -> Rc<dyn ClientStream> {
        self
    }

    fn tls(&self) -> Option<&TlsSession> {
        Some(self.quic.tls())
    }

    fn local_address(&self) -> Option<SocketAddress> {
        Some(self.quic.local_address())
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }

    fn send_without_delay(&self) {}

    fn force_close(&self) {
        self.quic.close(H3ErrorCode::NO_ERROR.0, b"");
    }

    fn bytes(&self) -> Option<&ByteStream> {
        None
    }
}

/// The stream of a request that has none: it can only tell whether the client left.
impl ClientStream for Http3Client {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_over.get() || self.quic.closed().is_some() {
            return Poll::Ready(());
        }
        connection_link::register(&self.watcher, context);
        Poll::Pending
    }

    fn has_all(&self, _: Option<u64>, _: u64) -> bool {
        false
    }

    fn send_interim(&self, _: u16, _: &Fields) {}

    fn poll_take(&self, _: &mut Vec<u8>, _: usize, _: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(false)
    }

    fn end_output(&self) {}

    fn can_be_reset(&self) -> bool {
        true
    }

    fn exclusive_bytes(&self) -> Option<&ByteStream> {
        None
    }
}
