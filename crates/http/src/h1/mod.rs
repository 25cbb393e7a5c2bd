//! HTTP/1 with a client: requests in, responses out, one after the other (RFC 9112).
//!
//! One task serves a connection from its first byte to its last. It reads a head ([`reading`]), has the request served
//! ([`crate::lifecycle`]), sends what comes of it ([`head`], [`sender`]) and begins again. Requests that a client sends ahead
//! wait in the input until their turn.
//!
//! It does not accept connections, and does not move them: a connection that is asked to go elsewhere is given back between
//! two requests.

mod body;
mod connection;
mod file_sender;
mod head;
mod lingering;
mod reading;
mod recycled;
mod sender;
mod stream;

use std::rc::Rc;

use crate::byte_stream::ByteStream;
use crate::client::Client;
use crate::http_loop::HttpLoop;
use crate::lingering_close;
use connection::{Connection, Next};

pub(crate) use recycled::RecycledSlots;

/// After so many requests that were sent ahead, others have their turn.
const PIPELINED_IN_A_ROW: u32 = 16;

/// How a connection left its protocol.
pub(crate) enum Ending {
    /// It is over.
    Closed,
    /// It was asked to go to another loop or process, and waits for a request.
    Leaves,
}

/// Serves a connection until it ends, or is to go elsewhere. Nothing here refers to the client then.
pub(crate) async fn serve_connection(
    http: &Rc<HttpLoop>,
    client: &Rc<Client>,
    bytes: &Rc<ByteStream>,
    recycled: &RecycledSlots,
) -> Ending {
    let mut connection = Connection::new(http, client, bytes, recycled);
    let mut in_a_row = 0;
    loop {
        match connection.one_request().await {
            Next::Request if connection.is_pipelined() => {
                in_a_row += 1;
                if in_a_row % PIPELINED_IN_A_ROW == 0 {
                    rt::yield_now().await;
                }
            }
            Next::Request => {}
            Next::Close => {
                bytes.transport.say_goodbye();
                http.debug_client(client, format_args!("close http connection"));
                return Ending::Closed;
            }
            Next::Linger(core) => {
                lingering_close::close(&bytes.transport, &core, u64::MAX).await;
                return Ending::Closed;
            }
            Next::Leave => return Ending::Leaves,
            Next::Reset => {
                // The descriptor goes with the client; how it goes is decided here.
                let _ = bytes.transport.socket().set_reset_on_close();
                return Ending::Closed;
            }
        }
    }
}
