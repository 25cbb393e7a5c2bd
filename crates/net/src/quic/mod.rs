//! QUIC (RFC 9000): connections whose datagrams share a UDP socket, and their streams.
//!
//! `quinn-proto` implements the protocol without I/O; here it gets the datagrams of a loop's sockets, the loop's timers
//! and TLS whose settings are chosen by the ClientHello. Nothing here knows HTTP. Everything belongs to one loop: no type
//! is `Send`, nothing blocks, and each `poll_…` wakes the task that asked last.
//!
//! ```text
//! socket ⇄ QuicEndpoint ─┬─ QuicArrival     a client whose ClientHello is read, and the settings chosen
//!                        └─ ConnectionLink  quinn-proto's connection, its timer, who waits for what
//!                             └─ QuicConnection, QuicSendStream, QuicReceiveStream: what the engine has
//! ```
//!
//! - [`QuicConnection`] is a connection of which the ClientHello was answered. Its streams are taken and opened there.
//! - [`QuicSendStream`] and [`QuicReceiveStream`] are the two directions of a stream. A bidirectional stream is one of
//!   each. Dropping a [`QuicSendStream`] that was not finished resets it, dropping a [`QuicReceiveStream`] that was not
//!   read to its end asks the peer to stop, both with the code of [`QuicConnection::set_drop_code`].
//!
//! Flow control: what is received waits in the connection, bounded by the windows that the peer was given, and the peer
//! gets more credit only when it is read. [`QuicSendStream::poll_write`] takes no more than the peer's windows and the
//! connection's send buffer have room for.
//!
//! What tasks write in a turn of the loop leaves at its end, in as few datagrams and system calls as it fits into: see
//! `QuicEndpoint::flush`.

mod arrival;
mod arrival_state;
mod client;
mod closed;
mod connection;
mod connection_ids;
mod cubic;
mod endpoint;
mod endpoint_reader;
mod frames;
mod handshake_crypto;
mod initial_hello;
mod link;
mod loops;
mod path_proof;
mod patient;
mod processes;
mod settings;
mod socket_advice;
mod stream;
mod used_tokens;

pub use arrival::{ArrivalHandler, QuicArrival, serve_listener};
pub use client::QuicConnectError;
pub(crate) use client::connect_quic;
pub use closed::QuicClosed;
pub use connection::QuicConnection;
pub use connection_ids::QuicSecret;
pub use endpoint::{QuicEndpointSettings, QuicListener};
pub use initial_hello::hello_of_packets;
pub use loops::{hand_over_datagrams, loop_number, receive_for_stuck_loop, update_endpoints};
pub use processes::serve_other_processes;
pub use settings::{CongestionControl, QuicTransport};
pub use stream::{QuicReceiveStream, QuicReceived, QuicSendStream, QuicStreamError};
