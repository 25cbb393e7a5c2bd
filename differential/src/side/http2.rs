//! HTTP/2 as far as a client needs it to show what a server sends: requests in plain literals, frames, and what each stream
//! got. It forgives nothing and mends nothing: what is out of place is told as broken.
//!
//! Only the decompression of header blocks is shared with Weir; what it refuses shows on both sides.

use std::collections::{BTreeMap, VecDeque};

use proto::h2::hpack::{DecodedField, HpackDecoder, ListLimits};

use crate::case::{Body, Request};

use super::reply::{Framing, Response};

/// The state of a client's connection.
#[derive(Default)]
pub struct Http2 {
    decoder: HpackDecoder,
    /// A header block that goes on in the next frame: its stream, whether the stream ends, and what has come.
    block: Option<(u32, bool, Vec<u8>)>,
    next: u32,
    /// Streams whose responses were not read yet, in the order of their requests.
    asked: VecDeque<u32>,
    streams: BTreeMap<u32, Stream>,
    /// The last stream and the code of a GOAWAY.
    pub goaway: Option<(u32, u32)>,
    /// Windows are opened by the case's own frames only.
    pub holds: bool,
    /// How many answers to PING have come.
    pub pongs: usize,
    windows: Windows,
    /// Content of requests that waits for the server's windows.
    uploads: VecDeque<Upload>,
}

/// What each side may send.
struct Windows {
    /// What is left of ours for the connection.
    connection: i64,
    /// What streams have to begin with.
    initial: i64,
    /// What they have to begin with when the server has acknowledged it.
    lowered: Option<i64>,
    /// What is left of the server's, for the connection, and for streams to begin with.
    theirs: [i64; 2],
}

impl Default for Windows {
    fn default() -> Self {
        Windows {
            connection: 65535,
            initial: 65535,
            lowered: None,
            theirs: [65535, 65535],
        }
    }
}

/// What is still to be sent of a request's content, and the frame that ends it.
struct Upload {
    stream: u32,
    left: VecDeque<u8>,
    end: Vec<u8>,
}

#[derive(Debug, Default)]
struct Stream {
    interim: Vec<Response>,
    response: Response,
    /// It has ended; with the code of its RST_STREAM.
    ended: Option<Option<u32>>,
    /// How far our window differs from that which streams begin with, and the server's.
    window: i64,
    theirs: i64,
}

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const PRIORITY: u8 = 0x20;
/// The largest payload of a frame as long as nobody says otherwise.
pub(super) const LARGEST: usize = 16384;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// An integer of HPACK with a prefix of seven bits (RFC 7541, section 5.1).
fn integer(mut value: usize, out: &mut Vec<u8>) {
    let low = |value: usize| u8::try_from(value & 0x7f).unwrap_or(0);
    if value < 0x7f {
        return out.push(low(value));
    }
    out.push(0x7f);
    value -= 0x7f;
    while value >= 0x80 {
        out.push(low(value) | 0x80);
        value >>= 7;
    }
    out.push(low(value));
}

/// A field as a literal that is not indexed, without Huffman's code: every byte as the case has it.
pub(crate) fn field(name: &str, value: &str, out: &mut Vec<u8>) {
    out.push(0);
    for text in [name, value] {
        integer(text.len(), out);
        out.extend_from_slice(text.as_bytes());
    }
}

impl Http2 {
    /// The first bytes of a client, with a window of this size for each stream.
    pub fn begin(&mut self, window: u32) -> Vec<u8> {
        self.next = 1;
        self.windows.initial = i64::from(window);
        let mut settings = vec![0, 4];
        settings.extend(window.to_be_bytes());
        [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat()
    }

    /// The frames of a request on a new stream. Fields of the case that are no such thing in HTTP/2 are sent as they are.
    pub fn request(&mut self, request: &Request) -> Vec<u8> {
        let stream = self.next;
        self.next += 2;
        self.asked.push_back(stream);
        let mut block = Vec::new();
        field(":method", &request.method, &mut block);
        field(":scheme", "http", &mut block);
        field(":path", &request.target, &mut block);
        for (name, value) in &request.fields {
            match name.eq_ignore_ascii_case("host") {
                true => field(":authority", value, &mut block),
                false => field(&name.to_ascii_lowercase(), value, &mut block),
            }
        }
        let (content, trailers) = match &request.body {
            Body::None => (None, &[][..]),
            Body::Length(content) => {
                field("content-length", &content.len().to_string(), &mut block);
                (Some(content.bytes()), &[][..])
            }
            Body::Chunked(chunks, trailers) => {
                let bytes = chunks.iter().flat_map(|chunk| chunk.bytes()).collect();
                (Some(bytes), trailers.as_slice())
            }
        };
        let ends = if content.is_none() { END_STREAM } else { 0 };
        let mut out = frame(HEADERS, END_HEADERS | ends, stream, &block);
        self.streams.insert(stream, Stream::default());
        let Some(content) = content else {
            return out;
        };
        let end = if trailers.is_empty() {
            frame(DATA, END_STREAM, stream, &[])
        } else {
            let mut block = Vec::new();
            for (name, value) in trailers {
                field(&name.to_ascii_lowercase(), value, &mut block);
            }
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        };
        self.uploads.push_back(Upload {
            stream,
            left: content.into(),
            end,
        });
        self.upload(&mut out);
        out
    }

    /// Sends content as the server's windows allow: a frame of each stream in turn.
    fn upload(&mut self, out: &mut Vec<u8>) {
        let mut waiting = 0;
        while waiting < self.uploads.len() {
            let Some(mut next) = self.uploads.pop_front() else {
                return;
            };
            let of = self.streams.get_mut(&next.stream);
            let Some(of) = of.filter(|of| !matches!(of.ended, Some(Some(_)))) else {
                continue;
            };
            let [connection, initial] = self.windows.theirs;
            let room = connection.min(initial + of.theirs).max(0);
            let room = usize::try_from(room).unwrap_or(0);
            let length = next.left.len().min(LARGEST).min(room);
            if next.left.is_empty() {
                out.append(&mut next.end);
                waiting = 0;
                continue;
            }
            if length == 0 {
                self.uploads.push_back(next);
                waiting += 1;
                continue;
            }
            let piece: Vec<u8> = next.left.drain(..length).collect();
            out.extend(frame(DATA, 0, next.stream, &piece));
            let length = i64::try_from(length).unwrap_or(0);
            of.theirs -= length;
            self.windows.theirs[0] -= length;
            self.uploads.push_back(next);
            waiting = 0;
        }
    }

    /// A frame of the case's own, and what follows from it for what the server may send.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        match kind {
            HEADERS if !stream.is_multiple_of(2) && stream >= self.next => {
                self.next = stream + 2;
                self.asked.push_back(stream);
                self.streams.insert(stream, Stream::default());
            }
            WINDOW => {
                let by = payload.get(..4).map_or(0, number) & 0x7fff_ffff;
                self.opened(stream, i64::from(by));
            }
            SETTINGS if flags & 1 == 0 => {
                for pair in payload.chunks_exact(6).filter(|pair| pair[..2] == [0, 4]) {
                    let to = i64::from(number(&pair[2..]));
                    // What was sent before the server knew is no error: it counts from the acknowledgement on.
                    match to < self.windows.initial {
                        true => self.windows.lowered = Some(to),
                        false => (self.windows.initial, self.windows.lowered) = (to, None),
                    }
                }
            }
            _ => {}
        }
        frame(kind, flags, stream, payload)
    }

    /// Our windows are larger by this.
    fn opened(&mut self, stream: u32, by: i64) {
        match (stream, self.streams.get_mut(&stream)) {
            (0, _) => self.windows.connection += by,
            (_, Some(of)) => of.window += by,
            (_, None) => {}
        }
    }

    /// A PING, the answer to which is counted.
    pub fn ping(&self) -> Vec<u8> {
        frame(PING, 0, 0, b"machine.")
    }

    /// True when this much of a stream's content has come, or its end. Of the connection nothing has to come.
    pub fn has(&self, stream: u32, bytes: usize) -> bool {
        if stream == 0 {
            return true;
        }
        self.streams.get(&stream).is_some_and(|of| {
            let has_begun = of.response.status != 0 && of.response.body.len() >= bytes;
            has_begun || of.ended.is_some()
        })
    }

    /// What a stream has. Into how many frames its content was parted is no promise.
    pub fn told(&self, stream: u32) -> String {
        let Some(of) = self.streams.get(&stream) else {
            return "nothing".to_owned();
        };
        let state = match of.ended {
            None => "open".to_owned(),
            Some(None) => "ended".to_owned(),
            Some(Some(code)) => format!("reset {code}"),
        };
        let response = &of.response;
        format!("{} {} bytes, {state}", response.status, response.body.len())
    }

    /// Takes whole frames from the front of what was received; what is to be answered at once.
    pub fn take(&mut self, received: &mut Vec<u8>) -> Result<Vec<u8>, String> {
        let mut answers = Vec::new();
        loop {
            let Some(head) = received.get(..9) else {
                self.upload(&mut answers);
                return Ok(answers);
            };
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            let stream = number(&head[5..9]) & 0x7fff_ffff;
            if length > LARGEST {
                return Err(format!("a frame of {length} bytes"));
            }
            if received.len() < 9 + length {
                self.upload(&mut answers);
                return Ok(answers);
            }
            let payload = received[9..9 + length].to_vec();
            received.drain(..9 + length);
            self.frame(kind, flags, stream, &payload, &mut answers)?;
        }
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        answers: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.block.is_some() && kind != CONTINUATION {
            return Err(format!("a frame of kind {kind} within a header block"));
        }
        match kind {
            DATA => self.data(flags, stream, payload, answers)?,
            HEADERS => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block = block.get(5..).ok_or("a priority that is cut")?;
                }
                self.block = Some((stream, flags & END_STREAM != 0, block.to_vec()));
                if flags & END_HEADERS != 0 {
                    self.headers()?;
                }
            }
            CONTINUATION => {
                let block = self.block.as_mut().filter(|block| block.0 == stream);
                let block = block.ok_or("a CONTINUATION of nothing")?;
                block.2.extend_from_slice(payload);
                if flags & END_HEADERS != 0 {
                    self.headers()?;
                }
            }
            RESET => {
                let code = number(payload.get(..4).ok_or("a reset that is cut")?);
                if let Ok(of) = self.open(stream) {
                    of.ended = Some(Some(code));
                }
            }
            SETTINGS if flags & 1 == 0 => {
                for pair in payload.chunks_exact(6).filter(|pair| pair[..2] == [0, 4]) {
                    self.windows.theirs[1] = i64::from(number(&pair[2..]));
                }
                answers.extend(frame(SETTINGS, 1, 0, &[]));
            }
            SETTINGS => {
                if let Some(to) = self.windows.lowered.take() {
                    self.windows.initial = to;
                }
            }
            PING if flags & 1 == 1 => self.pongs += 1,
            WINDOW => {
                let by = i64::from(payload.get(..4).map_or(0, number));
                match (stream, self.streams.get_mut(&stream)) {
                    (0, _) => self.windows.theirs[0] += by,
                    (_, Some(of)) => of.theirs += by,
                    (_, None) => return Err(format!("a window of the stream {stream}")),
                }
            }
            PING if flags & 1 == 0 => answers.extend(frame(PING, 1, 0, payload)),
            GOAWAY => {
                let (last, code) = (payload.get(..4), payload.get(4..8));
                let (last, code) = last.zip(code).ok_or("a GOAWAY that is cut")?;
                self.goaway = Some((number(last), number(code)));
            }
            PING => {}
            _ => return Err(format!("a frame of kind {kind}")),
        }
        Ok(())
    }

    fn data(
        &mut self,
        flags: u8,
        stream: u32,
        payload: &[u8],
        answers: &mut Vec<u8>,
    ) -> Result<(), String> {
        let content = unpadded(flags, payload)?;
        let by = i64::try_from(payload.len()).unwrap_or(0);
        let initial = self.windows.initial;
        let of = self.open(stream)?;
        if of.response.status == 0 {
            return Err(format!("content of the stream {stream} before its head"));
        }
        of.response.body.extend_from_slice(content);
        if flags & END_STREAM != 0 {
            of.ended = Some(None);
        }
        of.window -= by;
        let left = initial + of.window;
        self.windows.connection -= by;
        if by > 0 && left.min(self.windows.connection) < 0 {
            return Err(format!("content of the stream {stream} beyond a window"));
        }
        if by == 0 || self.holds {
            return Ok(());
        }
        let increment = u32::try_from(by).unwrap_or(0).to_be_bytes();
        for stream in [0, stream] {
            answers.extend(frame(WINDOW, 0, stream, &increment));
            self.opened(stream, by);
        }
        Ok(())
    }

    /// A stream that was asked on and has not ended.
    fn open(&mut self, stream: u32) -> Result<&mut Stream, String> {
        if stream.is_multiple_of(2) || stream >= self.next {
            return Err(format!("a frame of the stream {stream}"));
        }
        let of = self.streams.entry(stream).or_default();
        match of.ended {
            None => Ok(of),
            Some(_) => Err(format!("a frame of the stream {stream} behind its end")),
        }
    }

    fn headers(&mut self) -> Result<(), String> {
        let Some((stream, ends, block)) = self.block.take() else {
            return Ok(());
        };
        let limits = ListLimits {
            max_size: usize::MAX,
            max_fields: usize::MAX,
        };
        let mut fields: Vec<(String, String)> = Vec::new();
        let text = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|&byte| char::from(byte))
                .collect::<String>()
        };
        let decoded = self
            .decoder
            .decode(&block, limits, |field: DecodedField<'_>| {
                fields.push((text(field.name), text(field.value)));
            });
        decoded.map_err(|error| format!("a header block: {error:?}"))?;
        let of = self.open(stream)?;
        if ends {
            of.ended = Some(None);
        }
        if of.response.status != 0 {
            of.response.trailers = fields.into_iter().map(usual).collect();
            return Ok(());
        }
        let is_status = |field: &(String, String)| field.0 == ":status";
        let status = fields.iter().find(|field| is_status(field));
        let status = status.and_then(|(_, status)| status.parse::<u16>().ok());
        let status = status.ok_or("a response without a status")?;
        fields.retain(|field| !is_status(field));
        let response = Response {
            line: format!("HTTP/2 {status}"),
            status,
            fields: fields.into_iter().map(usual).collect(),
            framing: if ends {
                Framing::Empty
            } else {
                Framing::Stream
            },
            ..Response::default()
        };
        match (100..200).contains(&status) {
            true => of.interim.push(response),
            false => of.response = response,
        }
        Ok(())
    }

    /// The oldest response that was not read, if it has ended: with the interim ones before it, and the code of a reset.
    pub fn response(&mut self, closed: bool) -> Option<(Vec<Response>, Option<u32>)> {
        let stream = *self.asked.front()?;
        let has_ended = |of: &Stream| of.ended.is_some() || (closed && of.response.status != 0);
        if !self.streams.get(&stream).is_some_and(has_ended) {
            return None;
        }
        self.asked.pop_front();
        // What follows its end shows as broken, so the stream stays known.
        let of = self.streams.get_mut(&stream)?;
        let mut all = std::mem::take(&mut of.interim);
        let mut last = std::mem::take(&mut of.response);
        let reset = of.ended.flatten();
        last.cut = of.ended.is_none() || reset.is_some();
        if last.status != 0 {
            all.push(last);
        }
        Some((all, reset))
    }
}

pub(super) fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

pub(super) fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], String> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (pad, rest) = payload.split_first().ok_or("padding that is cut")?;
    let end = rest.len().checked_sub(usize::from(*pad));
    Ok(&rest[..end.ok_or("more padding than frame")?])
}

/// A field under its name of HTTP/1, so that the same rules know it. One that is not in lower case stays: it is an error
/// (RFC 9113, section 8.2.1).
fn usual((name, value): (String, String)) -> (String, String) {
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return (name, value);
    }
    let name = match name.as_str() {
        "etag" => "ETag".to_owned(),
        "www-authenticate" => "WWW-Authenticate".to_owned(),
        _ => {
            let words = name.split('-').map(|word| {
                let (first, rest) =
                    word.split_at(usize::from(word.is_char_boundary(1) && !word.is_empty()));
                first.to_ascii_uppercase() + rest
            });
            words.collect::<Vec<_>>().join("-")
        }
    };
    (name, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_put_together_from_its_frames() {
        let mut client = Http2::default();
        client.begin(65535);
        let sent = client.request(&Request::new("GET", "/"));
        assert_eq!(sent[3..9], [HEADERS, END_HEADERS | END_STREAM, 0, 0, 0, 1]);
        let mut block = Vec::new();
        field(":status", "200", &mut block);
        field("etag", "x", &mut block);
        let mut input = frame(HEADERS, END_HEADERS, 1, &block);
        input.extend(frame(DATA, PADDED, 1, b"\x02abc\0\0"));
        input.extend(frame(DATA, END_STREAM, 1, b"d"));
        input.extend(frame(RESET, 0, 1, &[0, 0, 0, 1])[..5].to_vec());
        let answers = client.take(&mut input).expect("the frames are right");
        assert_eq!(answers.len(), 4 * 13);
        assert_eq!(input.len(), 5);
        let (all, reset) = client.response(false).expect("it has ended");
        assert_eq!((all.len(), reset), (1, None));
        assert_eq!(all[0].body, b"abcd");
        assert_eq!(all[0].field("ETag"), Some("x"));
        assert!(client.response(false).is_none());
    }

    #[test]
    fn long_texts_have_long_lengths() {
        let mut out = Vec::new();
        integer(126, &mut out);
        integer(127, &mut out);
        integer(127 + 300, &mut out);
        assert_eq!(out, [126, 0x7f, 0, 0x7f, 0xac, 2]);
    }
}
