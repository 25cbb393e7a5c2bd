//! HTTP/1 with a client: requests in, responses out, one after the other (RFC 9112).
//!
//! One task serves a connection while requests come. It reads a head ([`head_reading`]), has the request served
//! ([`crate::lifecycle`]), sends the response ([`head`], [`sender`]) and begins again. Pipelined requests wait in the
//! input until their turn.
//!
//! It does not accept connections, and does not move them: a connection that is asked to move is given back between two
//! requests.

mod body;
mod client_wait;
mod connection;
mod discard;
mod file_sender;
mod head;
mod head_reading;
mod recycled;
mod sender;
mod stream;

use std::rc::Rc;

use crate::byte_stream::ByteStream;
use crate::client::HttpClient;
use crate::http_loop::HttpLoop;
use crate::lingering_close;
use connection::{ConnectionFate, Http1Connection};

pub(crate) use head_reading::limits_of;
pub(crate) use recycled::RecycledSlots;

/// How many pipelined requests are served before other connections get their turn. Each finds its input in memory and
/// never waits, so that without this bound one client could keep the loop to itself.
const PIPELINED_IN_A_ROW: u32 = 16;

/// Why the protocol is done with a connection.
pub(crate) enum ProtocolEnd {
    /// It has been closed, or is to be.
    Closed,
    /// It was asked to move to another loop or process, and is between two requests.
    Transferred,
    /// It has been silent for a while, and may wait for the next request without the memory for one.
    Waiting,
}

/// Serves a connection until it ends, or is to move. On return nothing here refers to the client any more, so that the
/// caller can take the connection apart.
pub(crate) async fn serve_connection(
    http: &Rc<HttpLoop>,
    client: &Rc<HttpClient>,
    bytes: &Rc<ByteStream>,
    recycled: &RecycledSlots,
) -> ProtocolEnd {
    let mut connection = Http1Connection::new(http, client, bytes, recycled);
    let mut in_a_row = 0;
    loop {
        match connection.one_request().await {
            ConnectionFate::Request if connection.is_pipelined() => {
                in_a_row += 1;
                if in_a_row % PIPELINED_IN_A_ROW == 0 {
                    rt::yield_now().await;
                }
            }
            ConnectionFate::Request => {}
            ConnectionFate::Close => {
                // TLS closes with its own alert (RFC 8446, section 6.1): without it a truncation attack looks the same.
                bytes.transport.say_goodbye();
                http.debug_client(client, format_args!("close http connection"));
                return ProtocolEnd::Closed;
            }
            ConnectionFate::Linger(core) => {
                lingering_close::linger_and_close(&bytes.transport, &core, u64::MAX).await;
                return ProtocolEnd::Closed;
            }
            ConnectionFate::Transfer => return ProtocolEnd::Transferred,
            ConnectionFate::Wait => return ProtocolEnd::Waiting,
            ConnectionFate::Reset => {
                // The descriptor is closed with the client; this only makes its close a reset. If it fails the close is
                // an ordinary one.
                let _ = bytes.transport.socket().set_reset_on_close();
                return ProtocolEnd::Closed;
            }
        }
    }
}
