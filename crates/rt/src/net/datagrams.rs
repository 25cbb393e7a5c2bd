//! A UDP socket that many peers share: datagrams in batches, with what the kernel says of their way.
//!
//! `quinn-udp` does the system calls: `recvmmsg` with UDP_GRO, `sendmsg` with UDP_SEGMENT, and the control messages for ECN
//! (RFC 9000, section 13.4) and for our own address (IP_PKTINFO). A kernel that lacks one of these still works, only
//! slower.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::{SocketAddress, UdpSocket};
use crate::reactor::IoInterest;

/// How many buffers one call fills. The kernel puts up to 64 datagrams of one peer into a buffer.
const BUFFERS: usize = 8;

/// The most that the kernel puts into one buffer, in bytes.
const BUFFER_SIZE: usize = 65_536;

/// A UDP socket for datagrams in batches.
pub struct BatchedUdpSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    segments: bool,
}

/// The memory that datagrams are received into. One is enough for a loop.
pub struct DatagramBuffers {
    memory: Vec<u8>,
    metas: [RecvMeta; BUFFERS],
    filled: usize,
}

/// A received datagram.
pub struct IncomingDatagram<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// Which of our addresses it was sent to, if the system tells it.
    pub to: Option<IpAddr>,
    /// The ECN field of its IP header: two bits (RFC 3168).
    pub ecn: u8,
    /// The content.
    pub content: &'a [u8],
}

/// Datagrams to one peer, all of one size except the last, which may be smaller.
pub struct OutgoingDatagrams<'a> {
    /// The receiver.
    pub to: SocketAddr,
    /// Which of our addresses they come from; `None`: the system chooses.
    pub from: Option<IpAddr>,
    /// The ECN field of their IP headers.
    pub ecn: u8,
    /// The contents, one behind the other.
    pub content: &'a [u8],
    /// The size of each; `None` if there is only one.
    pub size: Option<usize>,
}

impl BatchedUdpSocket {
    /// Takes a bound UDP socket and sets its options.
    pub fn from_fd(fd: OwnedFd, segments: bool) -> io::Result<BatchedUdpSocket> {
        #[cfg(feature = "simulation")]
        if crate::simulation::is_running() {
            return BatchedUdpSocket::simulated(fd);
        }
        let state = UdpSocketState::new(UdpSockRef::from(&fd))?;
        Ok(BatchedUdpSocket {
            socket: UdpSocket::from_fd(fd)?,
            state,
            segments,
        })
    }

    /// Asks the system for buffers of this size; returns how much it gives for what was received, in bytes.
    pub fn grow_buffers(&self, size: usize) -> io::Result<usize> {
        use rustix::net::sockopt;
        // The kernel doubles what it is asked for, to count its own needs, and tells the double.
        let now = sockopt::socket_recv_buffer_size(&self.socket)? / 2;
        if now < size {
            sockopt::set_socket_recv_buffer_size(&self.socket, size)?;
        }
        if sockopt::socket_send_buffer_size(&self.socket)? / 2 < size {
            sockopt::set_socket_send_buffer_size(&self.socket, size)?;
        }
        Ok(sockopt::socket_recv_buffer_size(&self.socket)? / 2)
    }

    /// Where it is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddress> {
        self.socket.local_addr()
    }

    /// How many datagrams one call can send: more than one where the system divides them (UDP_SEGMENT).
    pub fn most_segments(&self) -> usize {
        match self.segments {
            true => self.state.max_gso_segments().max(1),
            false => 1,
        }
    }

    /// Whether a router or this system might divide a datagram: then its path's MTU cannot be measured.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Receives what is there. Empties `buffers` first.
    pub fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut DatagramBuffers,
    ) -> Poll<io::Result<()>> {
        buffers.filled = 0;
        let DatagramBuffers {
            memory,
            metas,
            filled,
        } = buffers;
        self.socket.poll_system_io(IoInterest::Read, context, || {
            #[cfg(feature = "simulation")]
            if let Some(simulated) = self.socket.simulated() {
                *filled = receive_simulated(simulated, &self.socket, memory, metas)?;
                return Ok(());
            }
            let mut chunks = memory.chunks_exact_mut(BUFFER_SIZE);
            let mut slices: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let socket = UdpSockRef::from(&self.socket);
            *filled = self.state.recv(socket, &mut slices, metas)?;
            Ok(())
        })
    }

    /// Sends datagrams if the socket takes them now (`WouldBlock`). Any other error means that they are lost, which the
    /// protocol above repairs.
    pub fn try_send(&self, datagrams: &OutgoingDatagrams<'_>) -> io::Result<()> {
        #[cfg(feature = "simulation")]
        if let Some(simulated) = self.socket.simulated() {
            let size = datagrams.size.unwrap_or(datagrams.content.len()).max(1);
            for content in datagrams.content.chunks(size) {
                simulated.send(content, Some(datagrams.to))?;
            }
            return Ok(());
        }
        let transmit = Transmit {
            destination: datagrams.to,
            ecn: quinn_udp::EcnCodepoint::from_bits(datagrams.ecn),
            contents: datagrams.content,
            segment_size: datagrams.size,
            src_ip: datagrams.from,
        };
        self.socket.attempt_system_io(IoInterest::Write, || {
            self.state
                .try_send(UdpSockRef::from(&self.socket), &transmit)
        })
    }

    /// Ready when the socket would probably take datagrams.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(context)
    }
}

#[cfg(feature = "simulation")]
impl BatchedUdpSocket {
    fn simulated(fd: OwnedFd) -> io::Result<BatchedUdpSocket> {
        // Options are those of another socket, which is bound to nothing: a unix socket has none of them.
        let aside = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        )?;
        Ok(BatchedUdpSocket {
            socket: UdpSocket::from_fd(fd)?,
            state: UdpSocketState::new(UdpSockRef::from(&aside))?,
            segments: false,
        })
    }
}

/// Fills buffers with one datagram each; gives their number.
#[cfg(feature = "simulation")]
fn receive_simulated(
    simulated: &crate::simulation::datagrams::SimulatedDatagrams,
    socket: &UdpSocket,
    memory: &mut [u8],
    metas: &mut [RecvMeta; BUFFERS],
) -> io::Result<usize> {
    let mut filled = 0;
    for (chunk, meta) in memory.chunks_exact_mut(BUFFER_SIZE).zip(metas.iter_mut()) {
        match simulated.receive(socket, chunk) {
            Ok((n, from)) => {
                *meta = RecvMeta::default();
                (meta.addr, meta.len, meta.stride) = (from, n, n.max(1));
                meta.dst_ip = Some(simulated.own().ip());
                filled += 1;
            }
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// Half a megabyte of memory.
impl Default for DatagramBuffers {
    fn default() -> DatagramBuffers {
        DatagramBuffers {
            memory: vec![0; BUFFERS * BUFFER_SIZE],
            metas: [RecvMeta::default(); BUFFERS],
            filled: 0,
        }
    }
}

impl DatagramBuffers {
    /// The datagrams received last.
    pub fn datagrams(&self) -> impl Iterator<Item = IncomingDatagram<'_>> {
        let filled = self.metas[..self.filled].iter();
        filled
            .zip(self.memory.chunks_exact(BUFFER_SIZE))
            .flat_map(|(meta, memory)| {
                let content = &memory[..meta.len.min(BUFFER_SIZE)];
                content
                    .chunks(meta.stride.max(1))
                    .map(|content| IncomingDatagram {
                        from: meta.addr,
                        to: meta.dst_ip,
                        ecn: meta.ecn.map_or(0, |ecn| ecn as u8),
                        content,
                    })
            })
    }
}

impl AsFd for BatchedUdpSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
