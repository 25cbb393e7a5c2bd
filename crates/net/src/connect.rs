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
    /// `from` need not be an address of this machine (`proxy_bind … transparent`).
    pub transparent: bool,
    /// How long the attempt may take (`proxy_connect_timeout`).
    pub timeout: Duration,
    /// TCP keep-alive probes with the system's times (`proxy_socket_keepalive`).
    pub keepalive: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions { from: None, transparent: false, timeout: Duration::from_secs(60), keepalive: false }
    }
}

/// Connects to `address`.
///
/// The error is the system's; `TimedOut` also when the time of the options is over, without an errno then.
pub async fn connect(address: &Address, options: &ConnectOptions) -> io::Result<Stream> {
    let attempt = Stream::connect_from(address, options.from.as_ref());
    let stream = rt::timeout(options.timeout, attempt).await.map_err(io::Error::from)??;
    // A small request must not wait for the acknowledgement of the one before it.
    stream.set_nodelay(true)?;
    if options.keepalive && !address.is_unix() {
        stream.set_keepalive(true)?;
    }
    Ok(stream)
}
