//! Client connections on their way from one worker process to another.
//!
//! When a worker ends because another takes its place (a new binary, or settings that a process can
//! not change), its idle connections need not end with it. Each is a message on a socket pair whose
//! other end the other worker reads:
//!
//! ```text
//! kind length u32, kind      the engine: http
//! socket length u32, socket  the listening address that it came by: "tcp 127.0.0.1:80"
//! rest: the engine's facts   see http::moving
//! ```
//!
//! with the connection as its descriptor. There is no answer: what the other side can not use it closes,
//! as an idle connection may always be closed.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rt::channel::{Channel, Message};
use rt::listen::ListenAddress;
use rt::seats::Parcel;

/// The number of the message's kind on the pair.
const PARCEL: u8 = 1;

/// Takes parcels from the loops and sends them, on a thread of its own: the other worker may be slow.
/// At most as many wait as the loops have connections.
pub(crate) struct Courier {
    to: mpsc::Sender<(&'static str, Parcel)>,
    thread: JoinHandle<()>,
}

impl Courier {
    /// Starts the thread.
    pub(crate) fn start(channel: Channel) -> io::Result<Courier> {
        let (to, parcels) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("hand over".to_owned())
            .spawn(move || carry(&channel, &parcels))?;
        Ok(Courier { to, thread })
    }

    /// Where a loop leaves its parcels.
    pub(crate) fn sender(&self) -> mpsc::Sender<(&'static str, Parcel)> {
        self.to.clone()
    }

    /// Waits until all is sent. The loops must have ended.
    pub(crate) fn finish(self) {
        drop(self.to);
        // A panic has been reported, and there is nothing left to do for its parcels.
        let _ = self.thread.join();
    }
}

fn carry(channel: &Channel, parcels: &mpsc::Receiver<(&'static str, Parcel)>) {
    for (kind, parcel) in parcels {
        let body = encode(kind, &parcel);
        // If the other side is gone, the connections end with this process.
        if channel
            .send(PARCEL, &body, &[parcel.descriptor.as_fd()])
            .is_err()
        {
            return;
        }
    }
}

fn encode(kind: &str, parcel: &Parcel) -> Vec<u8> {
    let mut body = Vec::new();
    for part in [kind.as_bytes(), &address_text(&parcel.socket)] {
        let length = u32::try_from(part.len()).expect("names and paths are short");
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(part);
    }
    body.extend_from_slice(&parcel.facts);
    body
}

/// Reads a message; `kinds` are the engines of this process. `None`: it is of no use here.
pub(crate) fn decode(message: Message, kinds: &[&'static str]) -> Option<(&'static str, Parcel)> {
    if message.kind != PARCEL {
        return None;
    }
    let mut rest = message.body.as_slice();
    let name = take(&mut rest)?;
    let kind = kinds.iter().find(|kind| kind.as_bytes() == name)?;
    let socket = parse_address(take(&mut rest)?)?;
    let descriptor = message.descriptors.into_iter().next()?;
    let facts = rest.to_vec();
    let parcel = Parcel {
        socket,
        descriptor,
        facts,
        state: None,
    };
    Some((kind, parcel))
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (bytes, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

/// A listening address as bytes that [`parse_address`] reads.
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

    fn parcel(socket: ListenAddress) -> Parcel {
        let (one, _) = UnixStream::pair().expect("a socket pair");
        Parcel {
            socket,
            descriptor: one.into(),
            facts: b"facts".to_vec(),
            state: None,
        }
    }

    #[test]
    fn a_parcel_arrives() {
        let (ours, theirs) = Channel::pair().expect("a socket pair");
        let courier = Courier::start(ours).expect("a thread");
        let address: ListenAddress = ListenAddress::Tcp("[::1]:80".parse().expect("an address"));
        for _ in 0..100 {
            let sent = courier.sender().send(("http", parcel(address.clone())));
            assert!(sent.is_ok());
        }
        for _ in 0..100 {
            let message = theirs.receive().expect("received").expect("a message");
            let (kind, parcel) = decode(message, &["stream", "http"]).expect("the same format");
            assert_eq!((kind, &parcel.socket), ("http", &address));
            assert_eq!(parcel.facts, b"facts");
        }
        courier.finish();
    }

    #[test]
    fn a_damaged_parcel_is_refused() {
        let whole = encode("http", &parcel(ListenAddress::Unix("/x".into())));
        for cut in 0..whole.len() - b"facts".len() {
            let message = Message {
                kind: PARCEL,
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
