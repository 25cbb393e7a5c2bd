//! Client connections on their way from one worker process to another.
//!
//! When a worker exits because another one replaces it (a new binary, or settings that a process
//! cannot change), its idle connections need not end with it. Each is sent as a message on a socket
//! pair, at whose other end the new worker reads:
//!
//! ```text
//! kind length u32, kind      the engine: http
//! socket length u32, socket  the listening address that it came by: "tcp 127.0.0.1:80"
//! rest: the engine's facts   see http::connection_transfer
//! ```
//!
//! with the connection as its descriptor, in one packet: with `worker_groups`, several workers send and several read.
//! There is no reply: the new worker closes what it cannot
//! use, as an idle connection may be closed at any time.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;

use host::channel::{Channel, ChannelMessage};
use host::listen::ListenAddress;
use host::loop_slots::MovingConnection;

/// The kind of these messages on the pair, and with it the version of their layout: another layout is another kind, which
/// a process that does not know it closes unread.
const CONNECTION: u8 = 1;

/// Sends the connections of the loops from a thread of its own, because the other worker may be slow,
/// and loops must not block. The queue is as long as the loops have connections, at most.
pub(crate) struct ConnectionSender {
    /// The queue. The thread ends when all its senders are dropped.
    to: mpsc::Sender<(&'static str, MovingConnection)>,
    thread: JoinHandle<()>,
}

impl ConnectionSender {
    /// Starts the thread.
    pub(crate) fn start(channel: Channel) -> io::Result<ConnectionSender> {
        // Unbounded on purpose: the sender is a loop, which must not block, and it has a limited number of
        // connections to send.
        let (to, connections) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("hand over".to_owned())
            .spawn(move || send_connections(&channel, &connections))?;
        Ok(ConnectionSender { to, thread })
    }

    /// The queue for a loop's connections.
    pub(crate) fn sender(&self) -> mpsc::Sender<(&'static str, MovingConnection)> {
        self.to.clone()
    }

    /// Waits until everything is sent. The loops must have ended: as long as one has a sender, the
    /// thread waits for its connections.
    pub(crate) fn finish(self) {
        drop(self.to);
        // A panic has been reported already, and the connections are closed.
        let _ = self.thread.join();
    }
}

/// The body of the thread: sends until the last loop has dropped its sender.
fn send_connections(
    channel: &Channel,
    connections: &mpsc::Receiver<(&'static str, MovingConnection)>,
) {
    for (kind, moving) in connections {
        let body = encode(kind, &moving);
        // If the other side is gone, the connections end with this process.
        if channel
            .send_enclosed(CONNECTION, &body, moving.descriptor.as_fd())
            .is_err()
        {
            return;
        }
    }
}

/// The message's body.
pub(crate) fn encode(kind: &str, moving: &MovingConnection) -> Vec<u8> {
    let mut body = Vec::new();
    // Little-endian lengths, and text for the address: both processes are on this machine, but may be different
    // releases.
    for part in [kind.as_bytes(), &address_text(&moving.socket)] {
        let length = u32::try_from(part.len()).expect("names and paths are short");
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(part);
    }
    body.extend_from_slice(&moving.facts);
    body
}

/// Parses a message; `kinds` are the engines of this process. `None` if it cannot be used here:
/// another version of the binary may have sent it.
pub(crate) fn decode(
    message: ChannelMessage,
    kinds: &[&'static str],
) -> Option<(&'static str, MovingConnection)> {
    if message.kind != CONNECTION {
        return None;
    }
    let descriptor = message.descriptors.into_iter().next()?;
    decode_moved(&message.body, descriptor, kinds)
}

/// The same without its envelope: from another worker group, where it is [`encode`]d, too.
pub(crate) fn decode_moved(
    mut rest: &[u8],
    descriptor: OwnedFd,
    kinds: &[&'static str],
) -> Option<(&'static str, MovingConnection)> {
    let name = take(&mut rest)?;
    // Only engines that this process runs: the other one may have had `stream`, too.
    let kind = kinds.iter().find(|kind| kind.as_bytes() == name)?;
    // An address that this process does not listen on is sorted out by the caller.
    let socket = parse_address(take(&mut rest)?)?;
    let facts = rest.to_vec();
    let moving = MovingConnection {
        socket,
        descriptor,
        facts,
        state: None,
    };
    Some((kind, moving))
}

/// Takes a part with its length in front.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    // Checked: the sender is trusted, but it may be another release with another layout.
    let (bytes, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

/// A listening address as text, for [`parse_address`].
pub(crate) fn address_text(address: &ListenAddress) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = |path: &std::path::Path| path.as_os_str().as_bytes().to_vec();
    match address {
        ListenAddress::Tcp(address) => format!("tcp {address}").into_bytes(),
        ListenAddress::Udp(address) => format!("udp {address}").into_bytes(),
        ListenAddress::Unix(at) => [b"unix ".as_slice(), &path(at)].concat(),
        ListenAddress::UnixDatagram(at) => [b"unixgram ".as_slice(), &path(at)].concat(),
    }
}

/// The inverse of [`address_text`].
fn parse_address(text: &[u8]) -> Option<ListenAddress> {
    use std::os::unix::ffi::OsStrExt as _;
    let space = text.iter().position(|byte| *byte == b' ')?;
    let (transport, rest) = (&text[..space], &text[space + 1..]);
    let ip = || std::str::from_utf8(rest).ok()?.parse().ok();
    let path = || std::ffi::OsStr::from_bytes(rest).into();
    Some(match transport {
        b"tcp" => ListenAddress::Tcp(ip()?),
        b"udp" => ListenAddress::Udp(ip()?),
        b"unix" => ListenAddress::Unix(path()),
        b"unixgram" => ListenAddress::UnixDatagram(path()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn moving(socket: ListenAddress) -> MovingConnection {
        let (one, _) = UnixStream::pair().expect("a socket pair");
        MovingConnection {
            socket,
            descriptor: one.into(),
            facts: b"facts".to_vec(),
            state: None,
        }
    }

    #[test]
    fn a_connection_arrives() {
        let (ours, theirs) = Channel::pair().expect("a socket pair");
        let sender = ConnectionSender::start(ours).expect("a thread");
        let address: ListenAddress = ListenAddress::Tcp("[::1]:80".parse().expect("an address"));
        for _ in 0..100 {
            let sent = sender.sender().send(("http", moving(address.clone())));
            assert!(sent.is_ok());
        }
        for _ in 0..100 {
            let message = theirs.receive().expect("received").expect("a message");
            let (kind, moving) = decode(message, &["stream", "http"]).expect("the same format");
            assert_eq!((kind, &moving.socket), ("http", &address));
            assert_eq!(moving.facts, b"facts");
        }
        sender.finish();
    }

    #[test]
    fn a_damaged_message_is_refused() {
        let whole = encode("http", &moving(ListenAddress::Unix("/x".into())));
        for cut in 0..whole.len() - b"facts".len() {
            let message = ChannelMessage {
                kind: CONNECTION,
                body: whole[..cut].to_vec(),
                descriptors: Vec::new(),
            };
            assert!(decode(message, &["http"]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn addresses_are_read_back() {
        for address in [
            ListenAddress::Tcp("127.0.0.1:80".parse().expect("an address")),
            ListenAddress::Udp("[::]:53".parse().expect("an address")),
            ListenAddress::Unix("/a b".into()),
            ListenAddress::UnixDatagram("/c".into()),
        ] {
            assert_eq!(parse_address(&address_text(&address)), Some(address));
        }
    }
}
