//! The socket pair between master and worker: messages of bytes and descriptors.
//!
//! A message is a head packet, then packets that carry descriptors:
//!
//! ```text
//! head     kind u8 | descriptor count u32 LE        + one descriptor: a memory file with the body
//! more     one byte, any value                      + up to 64 descriptors
//! ```
//!
//! With the highest bit of the count, the descriptors are in the head packet, behind the memory file. A packet is
//! atomic, so both ends of such a channel may be open in several processes: each message is received once, whole.
//!
//! The body travels as a memory file because a configuration may be larger than a socket buffer, and
//! the master must never wait for a worker that does not read. Both sides are one program, so there is
//! no version in the format; an upgraded binary starts its own worker.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Descriptors in one packet. The kernel's own bound is 253.
const PER_PACKET: usize = 64;
/// Descriptors in one message: sockets and logs of a very large configuration.
const MAX_DESCRIPTORS: u32 = 100_000;
/// A worker that has not made room for a packet in this time is stuck.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD: usize = 5;
/// In the count of descriptors: they are in this packet.
const ENCLOSED: u32 = 1 << 31;

/// One message.
pub struct ChannelMessage {
    /// What it asks for; the meaning is the caller's.
    pub kind: u8,
    /// Its content.
    pub body: Vec<u8>,
    /// Descriptors that travel with it.
    pub descriptors: Vec<OwnedFd>,
}

/// One end of the pair.
pub struct Channel(OwnedFd);

impl Channel {
    /// Two ends, each closed when a program is executed.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        for end in [&a, &b] {
            rustix::net::sockopt::set_socket_timeout(
                end,
                rustix::net::sockopt::Timeout::Send,
                Some(SEND_TIMEOUT),
            )?;
        }
        Ok((Channel(a), Channel(b)))
    }

    /// An end that came from another process.
    pub fn from_fd(descriptor: OwnedFd) -> Channel {
        Channel(descriptor)
    }

    /// A connection that was made by name, and does not wait so far.
    pub fn from_accepted(socket: OwnedFd) -> io::Result<Channel> {
        // Blocking from now on, with limits: a message consists of several packets, and if sending stopped after
        // one of them for lack of room, the receiver would have half a message.
        rustix::io::ioctl_fionbio(&socket, false)?;
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Send,
            Some(SEND_TIMEOUT),
        )?;
        Ok(Channel(socket))
    }

    /// From now on a packet that does not arrive in this time is an error. For a channel whose other end is open in
    /// several processes: if one dies in the middle of a message, the channel does not report an end.
    pub fn limit_wait(&self, time: Duration) -> io::Result<()> {
        let which = rustix::net::sockopt::Timeout::Recv;
        Ok(rustix::net::sockopt::set_socket_timeout(
            &self.0,
            which,
            Some(time),
        )?)
    }

    /// Sends a message. The descriptors stay the caller's; the other side gets duplicates.
    pub fn send(&self, kind: u8, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let count = u32::try_from(descriptors.len())
            .ok()
            .filter(|count| *count <= MAX_DESCRIPTORS);
        let count = count.ok_or_else(|| io::Error::other("too many descriptors in a message"))?;
        let file = memory_file(body)?;
        self.send_packet(&head_of(kind, count), &[file.as_fd()])?;
        for chunk in descriptors.chunks(PER_PACKET) {
            self.send_packet(b"+", chunk)?;
        }
        Ok(())
    }

    /// Sends a message with one descriptor as a single packet.
    pub fn send_enclosed(&self, kind: u8, body: &[u8], enclosed: BorrowedFd<'_>) -> io::Result<()> {
        let file = memory_file(body)?;
        self.send_packet(&head_of(kind, 1 | ENCLOSED), &[file.as_fd(), enclosed])
    }

    fn send_packet(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_PACKET))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors in a packet"));
        }
        rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Waits for a message. `None` means that the other process is gone.
    pub fn receive(&self) -> io::Result<Option<ChannelMessage>> {
        self.receive_with(RecvFlags::empty())
    }

    /// Receives a message that is there; the error `WouldBlock` if there is none, or if another process that shares
    /// this end was quicker.
    pub fn try_receive(&self) -> io::Result<Option<ChannelMessage>> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    /// Receives a message. `flags` are for its head; what follows that is on its way.
    fn receive_with(&self, flags: RecvFlags) -> io::Result<Option<ChannelMessage>> {
        let mut head = [0; HEAD];
        let mut descriptors = Vec::new();
        let size = self.receive_packet(&mut head, &mut descriptors, flags)?;
        if size == 0 {
            return Ok(None);
        }
        let count = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let (count, enclosed) = match count & ENCLOSED {
            0 => (count.min(MAX_DESCRIPTORS) as usize, 0),
            _ => (0, (count & !ENCLOSED) as usize),
        };
        // Exactly the head packet and its descriptors. If this is anything else, the boundaries of all later
        // messages are lost.
        if size != HEAD || descriptors.len() != enclosed + 1 {
            return Err(io::Error::other("a message without its head"));
        }
        let memory = File::from(descriptors.remove(0));
        while descriptors.len() < count {
            let before = descriptors.len();
            let size = self.receive_packet(&mut [0; 1], &mut descriptors, RecvFlags::empty())?;
            if size == 0 || descriptors.len() == before {
                return Err(io::Error::other("a message without its descriptors"));
            }
        }
        Ok(Some(ChannelMessage {
            kind: head[0],
            body: read_all(&memory)?,
            descriptors,
        }))
    }

    fn receive_packet(
        &self,
        bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_PACKET))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(bytes)];
            let flags = flags | RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.0, &mut slices, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                // A worker that was killed with unread messages resets the socket; this counts as its end.
                Err(rustix::io::Errno::CONNRESET) => return Ok(0),
                other => break other?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok(received.bytes)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where a file without a name is kept if the kernel, or a container's seccomp profile, has no memory files: in memory
/// too, where that is mounted.
const INSTEAD_OF_MEMORY: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// A memory file with this content.
fn memory_file(body: &[u8]) -> io::Result<File> {
    let memory = rustix::fs::memfd_create(c"weir message", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.or_else(nameless_file)?);
    file.write_all(body)?;
    Ok(file)
}

/// A file without a name, which no other process can open, in the first folder that takes one.
fn nameless_file(why: rustix::io::Errno) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut files = INSTEAD_OF_MEMORY.iter();
    let file = files.find_map(|folder| rustix::fs::open(*folder, flags, mode).ok());
    file.ok_or(why)
}

/// The head packet's bytes.
fn head_of(kind: u8, count: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = kind;
    head[1..].copy_from_slice(&count.to_le_bytes());
    head
}

/// The whole content of a memory file, read by position: both processes share its cursor.
fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let size = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut body = vec![0; size];
    file.read_exact_at(&mut body, 0)?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn bytes_and_descriptors_arrive_in_order() {
        let (master, worker) = Channel::pair().expect("a socket pair");
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let writer = OwnedFd::from(writer);
        let many: Vec<BorrowedFd<'_>> = (0..150).map(|_| writer.as_fd()).collect();
        let body = vec![7; 1 << 20];
        master.send(3, &body, &many).expect("sent");
        let message = worker.receive().expect("received").expect("a message");
        assert_eq!(
            (message.kind, message.body.len(), message.descriptors.len()),
            (3, body.len(), 150)
        );
        drop(writer);
        for descriptor in message.descriptors {
            File::from(descriptor)
                .write_all(b"x")
                .expect("the pipe is open");
        }
        let mut text = Vec::new();
        reader.read_to_end(&mut text).expect("the pipe ends");
        assert_eq!(text.len(), 150);
    }

    #[test]
    fn an_enclosed_message_is_received_once() {
        let (one, two) = Channel::pair().expect("a socket pair");
        let file = File::open("/dev/null").expect("always there");
        one.send_enclosed(9, b"body", file.as_fd()).expect("sent");
        let message = two.try_receive().expect("received").expect("a message");
        assert_eq!((message.kind, &*message.body), (9, &b"body"[..]));
        assert_eq!(message.descriptors.len(), 1);
        let nothing = two.try_receive().err().map(|error| error.kind());
        assert_eq!(nothing, Some(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_closed_peer_is_none() {
        let (master, worker) = Channel::pair().expect("a socket pair");
        master.send(1, b"", &[]).expect("sent");
        drop(master);
        assert_eq!(
            worker
                .receive()
                .expect("received")
                .map(|message| message.kind),
            Some(1)
        );
        assert!(worker.receive().expect("received").is_none());
    }
}
