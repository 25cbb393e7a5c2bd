//! Opening connections.
//!
//! A connection attempt always has an end: the caller gives the time that it may take.

use std::io;
use std::time::Duration;

use rt::net::{Address, Stream};

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The local address to connect from (`proxy_bind`); port 0 leaves the port to the kernel.
    pub from: Option<Address>,
    /// `from` need not be an address of this machine (`proxy_bind … transparent`): without the right to that the attempt
    /// fails with `PermissionDenied`.
    pub transparent: bool,
    /// How long the attempt may take (`proxy_connect_timeout`).
    pub timeout: Duration,
    /// TCP keep-alive probes with the system's times (`proxy_socket_keepalive`).
    pub keepalive: bool,
    /// Bytes of the socket's receive buffer (`proxy_socket_rcvbuf`); 0: the system's.
    pub receive_buffer: usize,
    /// Bytes of the socket's send buffer (`proxy_socket_sndbuf`); 0: the system's.
    pub send_buffer: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            from: None,
            transparent: false,
            timeout: Duration::from_secs(60),
            keepalive: false,
            receive_buffer: 0,
            send_buffer: 0,
        }
    }
}

/// Connects to `address`.
///
/// The error is the system's; `TimedOut` without an errno when the time of the options is over.
pub async fn connect(address: &Address, options: &ConnectOptions) -> io::Result<Stream> {
    let socket = rt::net::ConnectOptions {
        from: options.from.clone(),
        transparent: options.transparent,
        keepalive: options.keepalive,
        receive_buffer: options.receive_buffer,
        send_buffer: options.send_buffer,
    };
    let attempt = Stream::connect_with(address, &socket);
    let stream = rt::timeout(options.timeout, attempt)
        .await
        .map_err(io::Error::from)??;
    // A small request must not wait for the acknowledgement of the one before it.
    stream.set_nodelay(true)?;
    Ok(stream)
}
