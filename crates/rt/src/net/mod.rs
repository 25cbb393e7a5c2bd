//! Sockets: listening, connected, datagram. All are non-blocking. A call is tried first, and the descriptor is
//! registered with epoll only if the call would block.

mod address;
mod connect;
mod datagrams;
mod listener;
mod pipe;
pub mod reuse_port;
mod steering;
mod stream;
mod tcp_info;
mod udp;

pub use address::{SocketAddress, UnixPath};
pub use connect::ConnectOptions;
pub use datagrams::{BatchedUdpSocket, DatagramBuffers, IncomingDatagram, OutgoingDatagrams};
pub use listener::SocketListener;
pub use pipe::SplicePipe;
pub use steering::{DatagramSteering, steer_datagrams};
pub use stream::{DetachedSocket, SocketOption, StreamSocket, VECTORS};
pub use tcp_info::{TcpInfo, accept_queue};
pub use udp::UdpSocket;
