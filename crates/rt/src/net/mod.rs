//! Sockets: listening, connected, datagram. All are non-blocking. A call is tried first, and the descriptor is
//! registered with epoll only if the call would block.

mod address;
mod connect;
mod listener;
mod pipe;
mod stream;
mod tcp_info;
mod udp;

pub use address::{Address, UnixPath};
pub use connect::ConnectOptions;
pub use listener::Listener;
pub use pipe::Pipe;
pub use stream::{Detached, SocketOption, Stream, VECTORS};
pub use tcp_info::TcpInfo;
pub use udp::UdpSocket;
