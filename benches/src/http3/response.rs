//! The little of HTTP/3 that a load needs: a request's bytes, and whether a response is the right one.

use std::time::Instant;

use bytes::Bytes;

/// Indexed in QPACK's static table: `:status: 200`.
const STATUS_200: u8 = 0xc0 | 25;

/// A HEADERS frame with a request for this path.
pub(crate) fn request(path: &str) -> Bytes {
    // No dynamic table; `:method: GET` and `:scheme: https` from the static one.
    let mut block = vec![0, 0, 0xc0 | 17, 0xc0 | 23];
    for (index, value) in [(0, "localhost"), (1, path)] {
        block.push(0x50 | index);
        put_text(value, &mut block);
    }
    // `user-agent` has the number 95.
    block.extend_from_slice(&[0x5f, 95 - 15]);
    put_text("weir-bench", &mut block);
    frame(1, &block).into()
}

/// A HEADERS frame of a small response, and the head of a DATA frame with as much content.
pub(crate) fn response(length: usize) -> Vec<u8> {
    let mut block = vec![0, 0, STATUS_200];
    // `content-length`, `content-type`, `server`, `date`, `last-modified`, `etag`: what a file's response has.
    for (index, value) in [
        (4, "1024"),
        (44, "text/plain"),
        (92, "floor"),
        (6, "Fri, 27 Nov 2026 00:00:00 GMT"),
        (10, "Fri, 27 Nov 2026 00:00:00 GMT"),
        (7, "\"6926fb7c-400\""),
    ] {
        match index {
            0..15 => block.push(0x50 | index),
            _ => block.extend_from_slice(&[0x5f, index - 15]),
        }
        put_text(value, &mut block);
    }
    let mut out = frame(1, &block);
    out.push(0);
    put_varint(length as u64, &mut out);
    out
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    // Shorter than 127 bytes: the prefix of seven bits holds it.
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    put_varint(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

fn put_varint(value: u64, out: &mut Vec<u8>) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend((value as u16 | 0x4000).to_be_bytes()),
        _ => out.extend((value as u32 | 0x8000_0000).to_be_bytes()),
    }
}

/// Takes an integer of variable length off the front.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, byte| {
        value << 8 | u64::from(*byte)
    });
    Some((value, length))
}

/// What has come of a response.
pub(crate) struct ResponseReader {
    pub(crate) began: Instant,
    /// The beginning of a frame that is not complete.
    head: Vec<u8>,
    /// The frame that is being read: its type, and how much is to come.
    within: Option<(u64, u64)>,
    block: Vec<u8>,
    content: u64,
    /// Content that was not counted yet.
    pub(crate) fresh: u64,
}

impl ResponseReader {
    pub(crate) fn new() -> ResponseReader {
        ResponseReader {
            began: Instant::now(),
            head: Vec::new(),
            within: None,
            block: Vec::new(),
            content: 0,
            fresh: 0,
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let Some((kind, left)) = &mut self.within else {
                self.head.push(bytes[0]);
                bytes = &bytes[1..];
                if let Some((kind, used)) = varint(&self.head)
                    && let Some((length, _)) = varint(&self.head[used..])
                {
                    self.within = (length > 0).then_some((kind, length));
                    self.head.clear();
                }
                continue;
            };
            let take = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
            match *kind {
                0 => {
                    self.content += take as u64;
                    self.fresh += take as u64;
                }
                1 => self.block.extend_from_slice(&bytes[..take]),
                _ => {}
            }
            *left -= take as u64;
            if *left == 0 {
                self.within = None;
            }
            bytes = &bytes[take..];
        }
    }

    /// Whether it was a response with status 200 and as much content.
    pub(crate) fn is_good(&self, length: u64) -> bool {
        self.block.get(2) == Some(&STATUS_200) && self.content == length && self.within.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_in_whatever_pieces() {
        let mut bytes = response(1024);
        bytes.resize(bytes.len() + 1024, b'x');
        for size in [1, 7, 5000] {
            let mut reader = ResponseReader::new();
            bytes.chunks(size).for_each(|piece| reader.feed(piece));
            assert!(reader.is_good(1024) && !reader.is_good(1023));
        }
    }
}
