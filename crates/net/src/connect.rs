//! Opening connections to servers.
//!
//! Every attempt is limited in time by the caller: the kernel alone would retry an unanswered SYN for two minutes.

use std::io;
use std::time::Duration;

use rt::net::{SocketAddress, StreamSocket};

/// The socket options and the time limit of a connection attempt.
#[derive(Clone, Debug)]
pub struct ConnectSettings {
    /// The local address to connect from (`proxy_bind`); port 0 leaves the port to the kernel.
    pub from: Option<SocketAddress>,
    /// `from` may be an address of another machine (`proxy_bind … transparent`). Without the capability for that
    /// (`CAP_NET_RAW` or `CAP_NET_ADMIN`) the attempt fails with `PermissionDenied`.
    pub transparent: bool,
    /// How long the attempt may take (`proxy_connect_timeout`). Name resolution is not part of it.
    pub timeout: Duration,
    /// TCP keep-alive probes with the system's times (`proxy_socket_keepalive`).
    pub keepalive: bool,
    /// Bytes of the socket's receive buffer (`proxy_socket_rcvbuf`); 0 leaves it to the kernel, which then tunes it
    /// by itself.
    pub receive_buffer: usize,
    /// Bytes of the socket's send buffer (`proxy_socket_sndbuf`); 0 as above.
    pub send_buffer: usize,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        ConnectSettings {
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
/// The error is the kernel's, or `TimedOut` without an errno when the options' own limit is reached: logs tell the
/// two apart.
pub async fn connect(
    address: &SocketAddress,
    options: &ConnectSettings,
) -> io::Result<StreamSocket> {
    let socket = rt::net::ConnectOptions {
        from: options.from.clone(),
        transparent: options.transparent,
        keepalive: options.keepalive,
        receive_buffer: options.receive_buffer,
        send_buffer: options.send_buffer,
    };
    let attempt = StreamSocket::connect_with(address, &socket);
    let stream = rt::timeout(options.timeout, attempt)
        .await
        .map_err(io::Error::from)??;
    // Without TCP_NODELAY, a request that is written in two pieces waits for the acknowledgement of the first,
    // which the server's kernel may delay by 40 ms.
    stream.set_nodelay(true)?;
    Ok(stream)
}
