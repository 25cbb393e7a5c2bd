//! The frames of a decrypted packet (RFC 9000, section 19), as far as something here looks for one of them.

/// What is left of a packet.
pub(super) struct PacketCursor<'a>(pub(super) &'a [u8]);

/// A frame that something here looks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundFrame<'a> {
    /// CRYPTO: a piece of the handshake, and where it belongs.
    Crypto(u64, &'a [u8]),
    /// PATH_CHALLENGE.
    Challenge(u64),
    /// PATH_RESPONSE.
    Response(u64),
    /// CONNECTION_CLOSE.
    Close,
}

impl<'a> PacketCursor<'a> {
    /// The next byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next bytes.
    pub(super) fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let count = usize::try_from(count).ok()?;
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A number of variable length (RFC 9000, section 16).
    pub(super) fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let mut number = u64::from(first & 0x3f);
        for byte in self.bytes((1 << (first >> 6)) - 1)? {
            number = number << 8 | u64::from(*byte);
        }
        Some(number)
    }

    fn skip_numbers(&mut self, count: u64) -> Option<()> {
        (0..count).try_for_each(|_| self.number().map(drop))
    }

    fn token(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.bytes(8)?.try_into().ok()?))
    }

    /// Skips frames up to one that is looked for. `None`: there is none, or something that is no frame.
    pub(super) fn next_found(&mut self) -> Option<FoundFrame<'a>> {
        loop {
            match self.number()? {
                // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK: nothing but the type.
                0x00 | 0x01 | 0x1e | 0x1f => {}
                kind @ (0x02 | 0x03) => self.skip_acknowledgement(kind == 0x03)?,
                // RESET_STREAM; ACK_FREQUENCY has one number more.
                0x04 => self.skip_numbers(3)?,
                0xaf => self.skip_numbers(4)?,
                // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED.
                0x05 | 0x11 | 0x15 => self.skip_numbers(2)?,
                // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID.
                0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => self.skip_numbers(1)?,
                0x06 => {
                    let (offset, length) = (self.number()?, self.number()?);
                    return Some(FoundFrame::Crypto(offset, self.bytes(length)?));
                }
                // NEW_TOKEN, DATAGRAM with a length.
                0x07 | 0x31 => self.skip_sized()?,
                kind @ 0x08..=0x0f => self.skip_stream(kind)?,
                0x18 => {
                    self.skip_numbers(2)?;
                    let length = self.byte()?;
                    self.bytes(u64::from(length) + 16)?;
                }
                0x1a => return Some(FoundFrame::Challenge(self.token()?)),
                0x1b => return Some(FoundFrame::Response(self.token()?)),
                0x1c | 0x1d => return Some(FoundFrame::Close),
                _ => return None,
            }
        }
    }

    fn skip_sized(&mut self) -> Option<()> {
        let length = self.number()?;
        self.bytes(length).map(drop)
    }

    fn skip_stream(&mut self, kind: u64) -> Option<()> {
        self.skip_numbers(1 + u64::from(kind & 4 != 0))?;
        match kind & 2 {
            // It fills the packet.
            0 => {
                self.0 = &[];
                None
            }
            _ => self.skip_sized(),
        }
    }

    fn skip_acknowledgement(&mut self, has_ecn: bool) -> Option<()> {
        self.skip_numbers(2)?;
        let ranges = self.number()?;
        // Each takes two bytes at least: the packet's end bounds the loop.
        self.skip_numbers(ranges.checked_mul(2)?.checked_add(1)?)?;
        self.skip_numbers(if has_ecn { 3 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_is_found_behind_other_frames() {
        let mut packet = vec![0, 0, 1, 2, 5, 0, 1, 0, 1, 2];
        packet.extend([3, 5, 0, 0, 0, 1, 2, 3]);
        packet.extend([0x0e, 4, 9, 2, 7, 7]);
        packet.extend([0x1a, 0, 0, 0, 0, 0, 0, 1, 2]);
        packet.extend([6, 0x40, 0x40, 1, 9, 0x08, 3, 1]);
        let mut cursor = PacketCursor(&packet);
        assert_eq!(cursor.next_found(), Some(FoundFrame::Challenge(258)));
        assert_eq!(cursor.next_found(), Some(FoundFrame::Crypto(64, &[9])));
        assert_eq!(cursor.next_found(), None);
        for length in 0..packet.len() {
            let mut cut = PacketCursor(&packet[..length]);
            while cut.next_found().is_some() {}
        }
    }

    #[test]
    fn every_beginning_of_a_packet_comes_to_an_end() {
        for first in 0..=255 {
            for second in 0..=255 {
                let mut packet = [0xff; 40];
                packet[..2].copy_from_slice(&[first, second]);
                let mut cursor = PacketCursor(&packet);
                while cursor.next_found().is_some() {}
            }
        }
    }
}
