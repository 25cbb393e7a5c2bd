//! The ClientHello in a client's first packets, read before the connection exists.
//!
//! The settings of a connection depend on its hello, and choosing them may take time: a certificate is loaded, a script
//! runs. quinn-proto cannot wait in the middle of a handshake, but it can wait before its first packet is taken. So
//! Initial packets are also decrypted here, with the keys that anyone can derive (RFC 9001, section 5.2). A hello with a
//! post-quantum key comes in two datagrams.

use bytes::BytesMut;
use quinn_proto::ConnectionId;
use quinn_proto::crypto::{Keys, ServerConfig};

use super::frames::{FoundFrame, PacketCursor};
use super::handshake_crypto::{INITIAL, VERSION};

/// The longest hello, in bytes: what rustls takes is as long.
const LONGEST_HELLO: usize = 16 * 1024;

/// How many pieces of a hello wait for others: browsers cut and shuffle theirs.
const MOST_PIECES: usize = 64;

/// The header in front of a handshake message: its type and its length.
const MESSAGE_HEADER: usize = 4;

/// The bytes behind the beginning of the packet number of which the header's protection takes its sample, and its length
/// (RFC 9001, section 5.4.2).
const SAMPLE: usize = 4 + 16;

/// Collects a hello.
pub(super) struct HelloCollector {
    keys: Keys,
    id: Vec<u8>,
    pieces: Vec<(usize, Vec<u8>)>,
    is_authentic: bool,
}

/// What is known of a hello.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HelloProgress {
    /// Some of it is missing.
    Partial,
    /// The message.
    Complete(Vec<u8>),
    /// There will be none: the client breaks rules or bounds.
    Broken,
}

impl HelloCollector {
    /// For the client whose first packet has this destination. `None`: there are no keys, and so no connection.
    pub(super) fn new(id: &ConnectionId) -> Option<HelloCollector> {
        let initial = INITIAL.as_ref()?;
        Some(HelloCollector {
            keys: initial.initial_keys(VERSION, id).ok()?,
            id: id.to_vec(),
            pieces: Vec::new(),
            is_authentic: false,
        })
    }

    /// Whether it has taken a packet that was made with the keys: what has no such packet is no client.
    pub(super) fn is_authentic(&self) -> bool {
        self.is_authentic
    }

    /// Takes a datagram. What is no Initial packet of this client is ignored.
    pub(super) fn take_datagram(&mut self, datagram: &[u8]) -> HelloProgress {
        let mut rest = datagram;
        while let Some((packet, number_at, behind)) = self.next_initial(rest) {
            rest = behind;
            let mut packet = packet.to_vec();
            let Some(payload) = self.decrypt(&mut packet, number_at) else {
                continue;
            };
            self.is_authentic = true;
            if self.take_frames(&payload).is_none() {
                return HelloProgress::Broken;
            }
        }
        self.assemble()
    }

    /// The first packet of the rest of a datagram if it is an Initial packet: the packet, where its number begins, and
    /// what follows it.
    fn next_initial<'a>(&self, datagram: &'a [u8]) -> Option<(&'a [u8], usize, &'a [u8])> {
        let mut cursor = PacketCursor(datagram);
        // A long header of the type Initial (RFC 9000, section 17.2.2). The fixed bit says nothing: a client that remembers
        // our parameters, as for early data, may clear it (RFC 9287, section 3.1).
        if cursor.byte()? & 0xb0 != 0x80 || cursor.bytes(4)? != VERSION.to_be_bytes() {
            return None;
        }
        let length = cursor.byte()?;
        if cursor.bytes(length.into())? != self.id {
            return None;
        }
        let length = cursor.byte()?;
        cursor.bytes(length.into())?;
        let token = cursor.number()?;
        cursor.bytes(token)?;
        let length = cursor.number()?;
        let number_at = datagram.len() - cursor.0.len();
        cursor.bytes(length)?;
        let end = datagram.len() - cursor.0.len();
        Some((&datagram[..end], number_at, cursor.0))
    }

    fn decrypt(&self, packet: &mut [u8], number_at: usize) -> Option<BytesMut> {
        if packet.len() < number_at + SAMPLE {
            return None;
        }
        self.keys.header.remote.decrypt(number_at, packet);
        let payload_at = number_at + usize::from(packet[0] & 3) + 1;
        // The numbers of a client's first packets are small: they are not shortened.
        let number = packet[number_at..payload_at]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (header, payload) = packet.split_at(payload_at);
        let mut payload = BytesMut::from(payload);
        let decrypted = self
            .keys
            .packet
            .remote
            .decrypt(number, header, &mut payload);
        decrypted.is_ok().then_some(payload)
    }

    /// Takes the frames of a packet; `None` if there will be no hello.
    fn take_frames(&mut self, payload: &[u8]) -> Option<()> {
        let mut cursor = PacketCursor(payload);
        while let Some(frame) = cursor.next_found() {
            match frame {
                FoundFrame::Crypto(offset, content) => {
                    let offset = usize::try_from(offset).ok()?;
                    let end = offset.checked_add(content.len())?;
                    if end > LONGEST_HELLO || self.pieces.len() == MOST_PIECES {
                        return None;
                    }
                    self.pieces.push((offset, content.to_vec()));
                }
                FoundFrame::Close => return None,
                // Not allowed here, which quinn-proto will say.
                FoundFrame::Challenge(_) | FoundFrame::Response(_) => {}
            }
        }
        Some(())
    }

    fn assemble(&mut self) -> HelloProgress {
        self.pieces.sort();
        let mut message = Vec::new();
        for (offset, content) in &self.pieces {
            if *offset > message.len() {
                break;
            }
            message.extend_from_slice(content.get(message.len() - offset..).unwrap_or_default());
        }
        let Some(&[kind, high, middle, low]) = message.first_chunk::<MESSAGE_HEADER>() else {
            return HelloProgress::Partial;
        };
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        // 1: client_hello.
        if kind != 1 || length > LONGEST_HELLO {
            return HelloProgress::Broken;
        }
        match message.len() >= MESSAGE_HEADER + length {
            true => {
                message.truncate(MESSAGE_HEADER + length);
                HelloProgress::Complete(message)
            }
            false => HelloProgress::Partial,
        }
    }
}

/// The hello in decrypted packets that arrive in this order, which must not matter. For the fuzzer, which has no keys: what it has
/// is also taken as it would come.
pub fn hello_of_packets<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut collector = HelloCollector::new(&ConnectionId::new(&[7; 8]))?;
    for payload in payloads {
        collector.take_datagram(payload);
        collector.take_frames(payload)?;
    }
    match collector.assemble() {
        HelloProgress::Complete(hello) => Some(hello),
        HelloProgress::Partial | HelloProgress::Broken => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector() -> HelloCollector {
        HelloCollector::new(&ConnectionId::new(&[7; 8])).expect("keys")
    }

    #[test]
    fn a_hello_is_whole_when_its_pieces_are_in_whatever_order() {
        let hello = [&[1, 0, 0, 6][..], b"abcdef"].concat();
        let pieces = [(0, 3), (3, 4), (2, 7), (7, 10)];
        for turn in 0..pieces.len() {
            let mut collector = collector();
            let mut order = pieces;
            order.rotate_left(turn);
            for (from, to) in order {
                let piece = hello[from..to].to_vec();
                collector.pieces.push((from, piece));
            }
            assert_eq!(collector.assemble(), HelloProgress::Complete(hello.clone()));
        }
    }

    #[test]
    fn a_hello_is_read_whatever_the_fixed_bit_is() {
        let hello = [1, 0, 0, 2, 8, 9];
        for first in [0xc0, 0x80] {
            let mut collector = collector();
            let header = [&[first, 0, 0, 0, 1, 8][..], &[7; 8], &[0, 0, 0x40, 30, 0]].concat();
            let frame = [&[6, 0, 6][..], &hello, &[0; 4]].concat();
            let mut packet = [&header[..], &frame, &[0; 16]].concat();
            let keys = &collector.keys;
            keys.packet.remote.encrypt(0, &mut packet, header.len());
            keys.header.remote.encrypt(header.len() - 1, &mut packet);
            let progress = collector.take_datagram(&packet);
            assert_eq!(
                progress,
                HelloProgress::Complete(hello.to_vec()),
                "{first:x}"
            );
        }
    }

    #[test]
    fn what_is_no_hello_of_this_client_is_nothing() {
        let mut collector = collector();
        assert_eq!(collector.take_datagram(&[]), HelloProgress::Partial);
        let header = [&[0xc0, 0, 0, 0, 1, 8][..], &[7; 8], &[0, 0, 20]].concat();
        for length in 0..=header.len() {
            let cut = collector.take_datagram(&header[..length]);
            assert_eq!(cut, HelloProgress::Partial);
        }
        // A packet that does not decrypt.
        let forged = [&header[..], &[0; 20]].concat();
        assert_eq!(collector.take_datagram(&forged), HelloProgress::Partial);
        collector.pieces.push((0, vec![2, 0, 0, 0]));
        assert_eq!(collector.assemble(), HelloProgress::Broken);
    }
}
