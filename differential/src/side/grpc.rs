//! A server behind that speaks HTTP/2, as those of gRPC do: frames as the case has them, right or wrong.
//!
//! A text that is sent is one frame: its first line names the kind, the rest is what it holds.
//!
//! | first line | what follows |
//! |---|---|
//! | `HEADERS` | lines `name: value`, sent as literals; pseudo-headers with their colon |
//! | `DATA` | bytes, in as many frames as their length wants, when the windows are open |
//! | `RST_STREAM 8`, `GOAWAY 1 0`, `WINDOW_UPDATE 5`, `SETTINGS 3=100`, `PING` | nothing |
//! | `RAW` | bytes as they are |
//!
//! `end` behind the kind is END_STREAM, `split` puts half of a header block into a CONTINUATION, `padded` pads, and `zero` is for
//! the connection in place of the stream.

use std::collections::BTreeMap;

use proto::h2::hpack::{DecodedField, HpackDecoder, ListLimits};

use super::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, LARGEST, PADDED, PING, PREFACE,
    PRIORITY, RESET, SETTINGS, WINDOW, field, frame, number, unpadded,
};
use super::upstream::{Received, Wire};

/// What a window holds as long as nobody says otherwise.
const WINDOW_DEFAULT: i64 = 65535;

/// The state of a connection.
#[derive(Default)]
pub(super) struct Connection {
    decoder: HpackDecoder,
    has_begun: bool,
    /// What may still be sent, in all and on each stream.
    window: i64,
    initial: i64,
    windows: BTreeMap<u32, i64>,
    /// Requests of which the end has not come.
    reading: BTreeMap<u32, Received>,
    /// A header block that goes on: its stream, whether the stream ends.
    block: Option<(u32, bool, Vec<u8>)>,
    /// The stream that is answered.
    stream: u32,
}

impl Connection {
    /// Reads a request; `None` when the connection ends, and what was read of a request has been given.
    pub(super) fn read(&mut self, wire: &mut Wire) -> Option<Received> {
        if !self.has_begun {
            let preface = wire.take(PREFACE.len())?;
            if preface != PREFACE {
                return Some(Received {
                    head: preface,
                    cut: true,
                    ..Received::default()
                });
            }
            self.has_begun = true;
            (self.window, self.initial) = (WINDOW_DEFAULT, WINDOW_DEFAULT);
            wire.send(&frame(SETTINGS, 0, 0, &[]));
        }
        loop {
            let Some(ended) = self.frame(wire) else {
                let (_, mut received) = self.reading.pop_first()?;
                received.cut = true;
                return Some(received);
            };
            if let Some(received) = ended.and_then(|stream| self.finished(stream)) {
                return Some(received);
            }
        }
    }

    fn finished(&mut self, stream: u32) -> Option<Received> {
        let received = self.reading.remove(&stream)?;
        self.stream = stream;
        Some(received)
    }

    /// Reads a frame; the stream that it ended.
    fn frame(&mut self, wire: &mut Wire) -> Option<Option<u32>> {
        let head = wire.take(9)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = wire.take(length)?;
        let (kind, flags, stream) = (head[3], head[4], number(&head[5..9]) & 0x7fff_ffff);
        let ends = (flags & END_STREAM != 0).then_some(stream);
        match kind {
            DATA => {
                let content = unpadded(flags, &payload).ok()?;
                let received = self.reading.entry(stream).or_default();
                received.body.extend_from_slice(content);
                if let Some(by) = u32::try_from(length).ok().filter(|by| *by > 0) {
                    for stream in [0, stream] {
                        wire.send(&frame(WINDOW, 0, stream, &by.to_be_bytes()));
                    }
                }
                return Some(ends);
            }
            HEADERS => {
                let skipped = if flags & PRIORITY == 0 { 0 } else { 5 };
                let block = unpadded(flags, &payload).ok()?.get(skipped..)?;
                self.block = Some((stream, ends.is_some(), block.to_vec()));
                return self.headers(flags);
            }
            CONTINUATION => {
                self.block.as_mut()?.2.extend_from_slice(&payload);
                return self.headers(flags);
            }
            RESET => {
                if let Some(received) = self.reading.get_mut(&stream) {
                    received.cut = true;
                    return Some(Some(stream));
                }
            }
            SETTINGS if flags & 1 == 0 => {
                self.settings(&payload);
                wire.send(&frame(SETTINGS, 1, 0, &[]));
            }
            PING if flags & 1 == 0 => wire.send(&frame(PING, 1, 0, &payload)),
            WINDOW => {
                let by = i64::from(number(payload.get(..4)?));
                match stream {
                    0 => self.window += by,
                    _ => *self.windows.entry(stream).or_insert(self.initial) += by,
                }
            }
            _ => {}
        }
        Some(None)
    }

    fn settings(&mut self, payload: &[u8]) {
        for setting in payload.chunks_exact(6) {
            if setting[..2] == [0, 4] {
                let initial = i64::from(number(&setting[2..]));
                let by = initial - self.initial;
                self.windows.values_mut().for_each(|window| *window += by);
                self.initial = initial;
            }
        }
    }

    /// Decodes a header block when it is whole: of a request, or the trailers of one, which are told as content.
    fn headers(&mut self, flags: u8) -> Option<Option<u32>> {
        if flags & END_HEADERS == 0 {
            return Some(None);
        }
        let (stream, ends, block) = self.block.take()?;
        let mut fields: Vec<(String, String)> = Vec::new();
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let limits = ListLimits {
            max_size: usize::MAX,
            max_fields: usize::MAX,
        };
        let decoded = self
            .decoder
            .decode(&block, limits, |field: DecodedField<'_>| {
                fields.push((text(field.name), text(field.value)));
            });
        decoded.ok()?;
        let is_first = !self.reading.contains_key(&stream);
        let received = self.reading.entry(stream).or_default();
        let lines = |fields: &[(String, String)]| {
            let lines = fields.iter();
            lines.fold(String::new(), |text, (name, value)| {
                text + &format!("{name}: {value}\r\n")
            })
        };
        if is_first {
            let (pseudo, usual): (Vec<_>, Vec<_>) = fields
                .into_iter()
                .partition(|(name, _)| name.starts_with(':'));
            let words: Vec<String> = pseudo.into_iter().map(|(_, value)| value).collect();
            received.head = format!("{}\r\n{}\r\n", words.join(" "), lines(&usual)).into_bytes();
            received.framing = if ends { "none" } else { "frames" };
        } else {
            received.body.extend_from_slice(lines(&fields).as_bytes());
        }
        self.windows.entry(stream).or_insert(self.initial);
        Some(ends.then_some(stream))
    }

    /// Sends what a text of the case says.
    pub(super) fn send(&mut self, wire: &mut Wire, text: &[u8]) {
        let at = text.iter().position(|byte| *byte == b'\n');
        let (line, rest) = text.split_at(at.unwrap_or(text.len()));
        let rest = rest.get(1..).unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let has = |word: &str| words.contains(&word);
        let stream = if has("zero") { 0 } else { self.stream };
        let ends = if has("end") { END_STREAM } else { 0 };
        let value = |at: usize| -> u32 {
            let word = words.get(at).and_then(|word| word.parse().ok());
            word.unwrap_or(0)
        };
        let out = match kind {
            "HEADERS" => header_frames(stream, ends, has("split"), has("padded"), rest),
            "DATA" => return self.data(wire, stream, ends, has("padded"), rest),
            "RST_STREAM" => frame(RESET, 0, stream, &value(0).to_be_bytes()),
            "GOAWAY" => {
                let payload = [value(0).to_be_bytes(), value(1).to_be_bytes()].concat();
                frame(GOAWAY, 0, 0, &payload)
            }
            "WINDOW_UPDATE" => frame(WINDOW, 0, stream, &value(0).to_be_bytes()),
            "PING" => frame(PING, 0, 0, b"behind.."),
            "SETTINGS" => {
                let mut payload = Vec::new();
                for word in &words {
                    let (name, value) = word.split_once('=').unwrap_or((word, "0"));
                    payload.extend(name.parse::<u16>().unwrap_or(0).to_be_bytes());
                    payload.extend(value.parse::<u32>().unwrap_or(0).to_be_bytes());
                }
                frame(SETTINGS, 0, 0, &payload)
            }
            "RAW" => rest.to_vec(),
            _ => return,
        };
        wire.send(&out);
    }

    /// Sends content as the windows allow; what they never allow stays here.
    fn data(&mut self, wire: &mut Wire, stream: u32, ends: u8, padded: bool, content: &[u8]) {
        let mut rest = content;
        loop {
            let window = *self.windows.entry(stream).or_insert(self.initial);
            let most = usize::try_from(window.min(self.window)).unwrap_or(0);
            if !rest.is_empty() && most < rest.len().min(LARGEST) + 4 {
                let known: Vec<u32> = self.reading.keys().copied().collect();
                let Some(ended) = self.frame(wire) else {
                    return;
                };
                // Another request that has ended meanwhile waits for its turn, which a script has no words for.
                if ended.is_some_and(|stream| !known.contains(&stream)) {
                    return;
                }
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(LARGEST - 4));
            let flags = if later.is_empty() { ends } else { 0 };
            let (flags, payload) = match padded {
                true => (flags | PADDED, [b"\x03", now, b"\0\0\0"].concat()),
                false => (flags, now.to_vec()),
            };
            let by = i64::try_from(payload.len()).unwrap_or(0);
            self.window -= by;
            *self.windows.entry(stream).or_insert(self.initial) -= by;
            wire.send(&frame(DATA, flags, stream, &payload));
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }
}

fn header_frames(stream: u32, ends: u8, split: bool, padded: bool, lines: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    for line in String::from_utf8_lossy(lines).lines() {
        // A pseudo-header begins with a colon of its own.
        let at = line
            .char_indices()
            .find(|(at, c)| *at > 0 && *c == ':')
            .map_or(line.len(), |(at, _)| at);
        let (name, value) = line.split_at(at);
        let value = value.strip_prefix(':').unwrap_or(value);
        field(name, value.strip_prefix(' ').unwrap_or(value), &mut block);
    }
    if split {
        let (first, second) = block.split_at(block.len() / 2);
        return [
            frame(HEADERS, ends, stream, first),
            frame(CONTINUATION, END_HEADERS, stream, second),
        ]
        .concat();
    }
    match padded {
        true => frame(
            HEADERS,
            ends | END_HEADERS | PADDED,
            stream,
            &[b"\x02", block.as_slice(), b"\0\0"].concat(),
        ),
        false => frame(HEADERS, ends | END_HEADERS, stream, &block),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_a_header_block() {
        let out = header_frames(1, END_STREAM, false, false, b":status: 200\nx-a: b: c\n");
        let mut fields = Vec::new();
        let limits = ListLimits {
            max_size: 1000,
            max_fields: 10,
        };
        let decoded = HpackDecoder::default().decode(&out[9..], limits, |field| {
            fields.push((field.name.to_vec(), field.value.to_vec()));
        });
        assert!(decoded.is_ok());
        assert_eq!(fields[0], (b":status".to_vec(), b"200".to_vec()));
        assert_eq!(fields[1], (b"x-a".to_vec(), b"b: c".to_vec()));
        assert_eq!(out[4], END_STREAM | END_HEADERS);
    }
}
