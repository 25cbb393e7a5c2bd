//! QUIC (RFC 9000): connections whose datagrams share a UDP socket, and their streams.
//!
//! `quinn-proto` implements the protocol without I/O; here it gets the datagrams of a loop's sockets, the loop's timers
//! and TLS whose settings are chosen by the ClientHello. Nothing here knows HTTP. Everything belongs to one loop: no type
//! is `Send`, nothing blocks, and each `poll_…` wakes the task that asked last.
//!
//! - [`QuicConnection`] is a connection of which the ClientHello was answered. Its streams are taken and opened there.
//! - [`QuicSendStream`] and [`QuicReceiveStream`] are the two directions of a stream. A bidirectional stream is one of
//!   each. Dropping a [`QuicSendStream`] that was not finished resets it, dropping a [`QuicReceiveStream`] that was not
//!   read to its end asks the peer to stop, both with the code of [`QuicConnection::set_drop_code`].
//!
//! Flow control: what is received waits in the connection, bounded by the windows that the peer was given, and the peer
//! gets more credit only when it is read. [`QuicSendStream::poll_write`] takes no more than the peer's windows and the
//! connection's send buffer have room for.

mod connection;
mod stream;

pub use connection::{QuicClosed, QuicConnection};
pub use stream::{QuicReceiveStream, QuicReceived, QuicSendStream, QuicStreamError};
