//! Splits a peer's bytes into frames (RFC 9113, sections 4 and 6).
//!
//! DATA and unknown frames are passed on in the pieces they arrive in; other frames are awaited as
//! a whole. Since frames may be large (16 MB), those have limits of their own: a header block that
//! of [`ReaderLimits`], all others `MAX_CONTROL`. A frame that exceeds its limit is rejected
//! before its payload arrives. A header block is one event, however many CONTINUATION frames it
//! has; its size and the number of its frames are limited, too.
//!
//! Errors that show in a frame alone are found here; errors that depend on the state of its stream
//! are left to the connection.

use super::error::{ConnectionError, ErrorCode};
use super::event::{FrameEvent, HeaderBlock};
use super::frame::{FrameHead, HEAD_LENGTH, MAX_FRAME_SIZE_DEFAULT, MAX_STREAM, flag, kind};

/// The largest payload of SETTINGS, GOAWAY and PRIORITY_UPDATE in bytes, whatever the maximum frame
/// size is: these frames are awaited as a whole.
const MAX_CONTROL: u32 = MAX_FRAME_SIZE_DEFAULT;

/// What a frame may contain besides its part of a header block, in bytes: padding with its length,
/// priority, a stream identifier.
const HEADERS_OVERHEAD: usize = 1 + 255 + 5 + 4;

/// The limits of what a peer may send.
#[derive(Clone, Copy, Debug)]
pub struct ReaderLimits {
    /// The largest payload of a frame: the `SETTINGS_MAX_FRAME_SIZE` that the peer was told.
    pub max_frame_size: u32,
    /// The size of a header block as it is on the wire.
    pub max_block: usize,
    /// The number of CONTINUATION frames of a header block: they may be empty, so a limit in bytes
    /// is not enough.
    pub max_continuations: u32,
    /// Whether PUSH_PROMISE is permitted: the peer is a server and was told that it may push.
    pub takes_pushes: bool,
}

impl Default for ReaderLimits {
    fn default() -> ReaderLimits {
        ReaderLimits {
            max_frame_size: MAX_FRAME_SIZE_DEFAULT,
            max_block: 64 * 1024,
            max_continuations: 32,
            takes_pushes: true,
        }
    }
}

/// Splits input into frames. See the module's description.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// The limits; they may be changed between calls.
    pub limits: ReaderLimits,
    state: FrameReaderState,
    /// The incomplete header block.
    block_fragments: Vec<u8>,
    /// The number of its CONTINUATION frames.
    continuations: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum FrameReaderState {
    /// At the beginning of a frame.
    #[default]
    Head,
    /// Within DATA: content, then padding. Both may be 0 only together with `begins`.
    Data {
        stream: u32,
        left: u32,
        padding: u32,
        /// Bytes before the content that count for flow control: the padding's length.
        extra: u32,
        begins: bool,
        end_stream: bool,
    },
    /// Within a payload that is skipped.
    Skip { left: u32 },
    /// Between the frames of a header block.
    Block(OpenHeaderBlock),
}

/// A header block that waits for CONTINUATION.
#[derive(Clone, Copy, Debug)]
struct OpenHeaderBlock {
    stream: u32,
    /// For PUSH_PROMISE.
    promised: Option<u32>,
    end_stream: bool,
    depends_on_itself: bool,
}

impl FrameReader {
    /// A reader for a connection, after the preface.
    pub fn new(limits: ReaderLimits) -> FrameReader {
        FrameReader {
            limits,
            ..FrameReader::default()
        }
    }

    /// Whether the next byte begins a frame and no header block is open.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, FrameReaderState::Head)
    }

    /// Whether the next byte belongs to a DATA frame's payload.
    pub fn is_in_data(&self) -> bool {
        matches!(self.state, FrameReaderState::Data { .. })
    }

    /// The stream whose header block is incomplete, if there is one. `input` is the unused input.
    pub fn incomplete_headers(&self, input: &[u8]) -> Option<u32> {
        match self.state {
            FrameReaderState::Block(opened) => Some(opened.stream),
            FrameReaderState::Head => {
                let head = FrameHead::parse(input.first_chunk()?);
                (head.kind == kind::HEADERS).then_some(head.stream)
            }
            FrameReaderState::Data { .. } | FrameReaderState::Skip { .. } => None,
        }
    }

    /// The bytes of memory that the buffer occupies.
    pub fn buffer_memory(&self) -> usize {
        self.block_fragments.capacity()
    }

    /// The next event, and how many bytes of `input` it consumed: the next call's input must begin
    /// after them. After an error the connection cannot be used any more.
    pub fn next_event<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<(FrameEvent<'a>, usize), ConnectionError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match self.state {
                FrameReaderState::Data { .. } => {
                    return Ok(match self.data(rest) {
                        Some((event, n)) => (event, used + n),
                        None => (FrameEvent::More, used),
                    });
                }
                FrameReaderState::Skip { left } => {
                    let n = (left as usize).min(rest.len());
                    used += n;
                    if n < left as usize {
                        self.state = FrameReaderState::Skip {
                            left: left - n as u32,
                        };
                        return Ok((FrameEvent::More, used));
                    }
                    self.state = FrameReaderState::Head;
                }
                FrameReaderState::Head | FrameReaderState::Block(_) => {
                    let Some((head, payload)) = rest.split_first_chunk::<HEAD_LENGTH>() else {
                        return Ok((FrameEvent::More, used));
                    };
                    let head = FrameHead::parse(head);
                    let (event, n) = match self.frame(head, payload)? {
                        FrameProgress::NeedMore => return Ok((FrameEvent::More, used)),
                        FrameProgress::ReadOn(n) => {
                            used += HEAD_LENGTH + n;
                            continue;
                        }
                        FrameProgress::Event(event, n) => (event, n),
                    };
                    return Ok((event, used + HEAD_LENGTH + n));
                }
            }
        }
    }

    /// The next piece of DATA; `None` if there is no input.
    fn data<'a>(&mut self, input: &'a [u8]) -> Option<(FrameEvent<'a>, usize)> {
        let FrameReaderState::Data {
            stream,
            left,
            padding,
            extra,
            begins,
            end_stream,
        } = self.state
        else {
            return None;
        };
        let n = (left as usize).min(input.len()) as u32;
        // Padding is skipped with the content that it arrives with: the last piece must not be held
        // back for it, but the frame ends only after it.
        let skipped = (padding as usize).min(input.len() - n as usize) as u32;
        let is_last = n == left && skipped == padding;
        if n + skipped == 0 && !is_last {
            return None;
        }
        self.state = if is_last {
            FrameReaderState::Head
        } else {
            FrameReaderState::Data {
                stream,
                left: left - n,
                padding: padding - skipped,
                extra: 0,
                begins: false,
                end_stream,
            }
        };
        let event = FrameEvent::Data {
            stream,
            bytes: &input[..n as usize],
            counted: extra + n + skipped,
            begins,
            end_stream: end_stream && is_last,
        };
        Some((event, (n + skipped) as usize))
    }

    /// Handles a frame whose header is complete; `payload` is the input after it.
    fn frame<'a>(
        &mut self,
        head: FrameHead,
        payload: &'a [u8],
    ) -> Result<FrameProgress<'a>, ConnectionError> {
        if head.length > self.limits.max_frame_size {
            return Err(ConnectionError::frame_size("too large frame"));
        }
        if let FrameReaderState::Block(opened) = self.state {
            return self.continuation(head, opened, payload);
        }
        let length = head.length as usize;
        match head.kind {
            kind::DATA => return self.data_head(head, payload),
            kind::HEADERS
            | kind::PUSH_PROMISE
            | kind::SETTINGS
            | kind::PING
            | kind::GOAWAY
            | kind::RST_STREAM
            | kind::WINDOW_UPDATE
            | kind::PRIORITY
            | kind::PRIORITY_UPDATE
            | kind::CONTINUATION => {}
            kind => {
                self.state = FrameReaderState::Skip { left: head.length };
                let length = head.length;
                return Ok(FrameProgress::Event(
                    FrameEvent::Unknown { kind, length },
                    0,
                ));
            }
        }
        if head.kind == kind::PUSH_PROMISE && !self.limits.takes_pushes {
            return Err(ConnectionError::protocol("PUSH_PROMISE frame"));
        }
        if head.kind == kind::CONTINUATION {
            return Err(ConnectionError::protocol("unexpected CONTINUATION frame"));
        }
        check_size(head)?;
        self.check_bounds(head)?;
        let Some(payload) = payload.get(..length) else {
            return Ok(FrameProgress::NeedMore);
        };
        let event = match head.kind {
            kind::HEADERS => return self.headers(head, payload),
            kind::PUSH_PROMISE => return self.push_promise(head, payload),
            kind::SETTINGS => settings(head, payload)?,
            kind::PING => ping(head, payload)?,
            kind::GOAWAY => goaway(head, payload)?,
            kind::RST_STREAM => reset(head, payload)?,
            kind::WINDOW_UPDATE => window_update(head, payload)?,
            kind::PRIORITY => priority(head, payload)?,
            _ => priority_update(head, payload)?,
        };
        Ok(FrameProgress::Event(event, length))
    }

    /// Whether a frame is small enough to be awaited as a whole.
    fn check_bounds(&self, head: FrameHead) -> Result<(), ConnectionError> {
        match head.kind {
            kind::HEADERS | kind::PUSH_PROMISE
                if head.length as usize
                    > self.limits.max_block.saturating_add(HEADERS_OVERHEAD) =>
            {
                Err(ConnectionError::enhance_your_calm("too large header block"))
            }
            kind::HEADERS | kind::PUSH_PROMISE => Ok(()),
            _ if head.length > MAX_CONTROL => {
                Err(ConnectionError::enhance_your_calm("too large frame"))
            }
            _ => Ok(()),
        }
    }

    fn data_head<'a>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameProgress<'a>, ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol(
                "DATA frame with incorrect identifier",
            ));
        }
        let mut extra = 0;
        let mut padding = 0;
        if head.flags & flag::PADDED != 0 {
            if head.length == 0 {
                return Err(ConnectionError::frame_size(
                    "padded DATA frame with incorrect length: 0",
                ));
            }
            let Some(&first) = payload.first() else {
                return Ok(FrameProgress::NeedMore);
            };
            extra = 1;
            padding = u32::from(first);
            if padding >= head.length {
                return Err(ConnectionError::protocol(
                    "padded DATA frame with incorrect length",
                ));
            }
        }
        self.state = FrameReaderState::Data {
            stream: head.stream,
            left: head.length - extra - padding,
            padding,
            extra,
            begins: true,
            end_stream: head.flags & flag::END_STREAM != 0,
        };
        Ok(FrameProgress::ReadOn(extra as usize))
    }

    fn headers<'a>(
        &mut self,
        head: FrameHead,
        payload: &'a [u8],
    ) -> Result<FrameProgress<'a>, ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol(
                "HEADERS frame with incorrect identifier",
            ));
        }
        let mut fragment = without_padding(head, payload)?;
        let mut depends_on_itself = false;
        if head.flags & flag::PRIORITY != 0 {
            let Some((dependency, rest)) = fragment.split_first_chunk::<5>() else {
                return Err(ConnectionError::frame_size(
                    "HEADERS frame with incorrect length",
                ));
            };
            let [a, b, c, d, _weight] = *dependency;
            depends_on_itself = u32::from_be_bytes([a, b, c, d]) & MAX_STREAM == head.stream;
            fragment = rest;
        }
        let opened = OpenHeaderBlock {
            stream: head.stream,
            promised: None,
            end_stream: head.flags & flag::END_STREAM != 0,
            depends_on_itself,
        };
        self.begin_block(head, opened, fragment)
    }

    fn push_promise<'a>(
        &mut self,
        head: FrameHead,
        payload: &'a [u8],
    ) -> Result<FrameProgress<'a>, ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol(
                "PUSH_PROMISE frame with incorrect identifier",
            ));
        }
        let fragment = without_padding(head, payload)?;
        let Some((promised, fragment)) = fragment.split_first_chunk::<4>() else {
            return Err(ConnectionError::frame_size(
                "PUSH_PROMISE frame with incorrect length",
            ));
        };
        let opened = OpenHeaderBlock {
            stream: head.stream,
            promised: Some(u32::from_be_bytes(*promised) & MAX_STREAM),
            end_stream: false,
            depends_on_itself: false,
        };
        self.begin_block(head, opened, fragment)
    }

    fn begin_block<'a>(
        &mut self,
        head: FrameHead,
        opened: OpenHeaderBlock,
        fragment: &'a [u8],
    ) -> Result<FrameProgress<'a>, ConnectionError> {
        let length = head.length as usize;
        if fragment.len() > self.limits.max_block {
            return Err(ConnectionError::enhance_your_calm("too large header block"));
        }
        if head.flags & flag::END_HEADERS != 0 {
            return Ok(FrameProgress::Event(
                opened.event(HeaderBlock::Input(fragment)),
                length,
            ));
        }
        self.block_fragments.clear();
        self.block_fragments.extend_from_slice(fragment);
        self.continuations = 0;
        self.state = FrameReaderState::Block(opened);
        Ok(FrameProgress::ReadOn(length))
    }

    fn continuation<'a>(
        &mut self,
        head: FrameHead,
        opened: OpenHeaderBlock,
        payload: &'a [u8],
    ) -> Result<FrameProgress<'a>, ConnectionError> {
        if head.kind != kind::CONTINUATION || head.stream != opened.stream {
            return Err(ConnectionError::protocol(
                "inappropriate frame while CONTINUATION was expected",
            ));
        }
        // Before the payload arrives: it is not worth waiting for.
        self.continuations += 1;
        if self.continuations > self.limits.max_continuations {
            return Err(ConnectionError::enhance_your_calm(
                "too many CONTINUATION frames",
            ));
        }
        let length = head.length as usize;
        if self.block_fragments.len() + length > self.limits.max_block {
            return Err(ConnectionError::enhance_your_calm("too large header block"));
        }
        let Some(payload) = payload.get(..length) else {
            self.continuations -= 1;
            return Ok(FrameProgress::NeedMore);
        };
        self.block_fragments.extend_from_slice(payload);
        if head.flags & flag::END_HEADERS == 0 {
            return Ok(FrameProgress::ReadOn(length));
        }
        self.state = FrameReaderState::Head;
        let block = HeaderBlock::Gathered(std::mem::take(&mut self.block_fragments));
        Ok(FrameProgress::Event(opened.event(block), length))
    }
}

impl OpenHeaderBlock {
    fn event(self, block: HeaderBlock<'_>) -> FrameEvent<'_> {
        match self.promised {
            Some(promised) => FrameEvent::PushPromise {
                stream: self.stream,
                promised,
                block,
            },
            None => FrameEvent::Headers {
                stream: self.stream,
                block,
                end_stream: self.end_stream,
                depends_on_itself: self.depends_on_itself,
            },
        }
    }
}

/// The result for a frame whose header is complete.
enum FrameProgress<'a> {
    /// More input is needed; nothing was consumed.
    NeedMore,
    /// The frame header and this many bytes of the payload were consumed; parsing goes on.
    ReadOn(usize),
    /// The frame header and this many bytes of the payload are this event.
    Event(FrameEvent<'a>, usize),
}

/// Rejects frames of a wrong size before their payload arrives.
fn check_size(head: FrameHead) -> Result<(), ConnectionError> {
    let what = match head.kind {
        kind::RST_STREAM if head.length != 4 => "RST_STREAM frame with incorrect length",
        kind::WINDOW_UPDATE if head.length != 4 => "WINDOW_UPDATE frame with incorrect length",
        kind::PING if head.length != 8 => "PING frame with incorrect length",
        kind::GOAWAY if head.length < 8 => "GOAWAY frame with incorrect length",
        kind::PRIORITY_UPDATE if head.length < 4 => "PRIORITY_UPDATE frame with incorrect length",
        kind::SETTINGS if head.flags & flag::ACK != 0 && head.length != 0 => {
            "SETTINGS frame with the ACK flag and nonzero length"
        }
        kind::SETTINGS if !head.length.is_multiple_of(6) => "SETTINGS frame with incorrect length",
        _ => return Ok(()),
    };
    Err(ConnectionError::frame_size(what))
}

fn without_padding(head: FrameHead, payload: &[u8]) -> Result<&[u8], ConnectionError> {
    if head.flags & flag::PADDED == 0 {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(ConnectionError::frame_size(
            "padded HEADERS frame with incorrect length",
        ));
    };
    rest.len()
        .checked_sub(usize::from(padding))
        .map(|end| &rest[..end])
        .ok_or(ConnectionError::protocol(
            "padded HEADERS frame with incorrect length",
        ))
}

/// A server's TLS settings for this address: those that offer HTTP/2 in ALPN, or those that do not.
fn settings<'a>(head: FrameHead, payload: &'a [u8]) -> Result<FrameEvent<'a>, ConnectionError> {
    if head.stream != 0 {
        return Err(ConnectionError::protocol(
            "SETTINGS frame with incorrect identifier",
        ));
    }
    Ok(if head.flags & flag::ACK != 0 {
        FrameEvent::SettingsAck
    } else {
        FrameEvent::Settings(payload)
    })
}

fn ping<'a>(head: FrameHead, payload: &[u8]) -> Result<FrameEvent<'a>, ConnectionError> {
    match payload.first_chunk() {
        Some(opaque) if head.stream == 0 => Ok(FrameEvent::Ping {
            ack: head.flags & flag::ACK != 0,
            opaque: *opaque,
        }),
        _ => Err(ConnectionError::protocol(
            "PING frame with incorrect identifier",
        )),
    }
}

fn goaway<'a>(head: FrameHead, payload: &[u8]) -> Result<FrameEvent<'a>, ConnectionError> {
    if head.stream != 0 {
        return Err(ConnectionError::protocol(
            "GOAWAY frame with incorrect identifier",
        ));
    }
    let [last, code] = [read_u32(payload, 0), read_u32(payload, 4)];
    Ok(FrameEvent::GoAway {
        last: last & MAX_STREAM,
        code: ErrorCode(code),
    })
}

fn reset<'a>(head: FrameHead, payload: &[u8]) -> Result<FrameEvent<'a>, ConnectionError> {
    if head.stream == 0 {
        return Err(ConnectionError::protocol(
            "RST_STREAM frame with incorrect identifier",
        ));
    }
    Ok(FrameEvent::Reset {
        stream: head.stream,
        code: ErrorCode(read_u32(payload, 0)),
    })
}

fn window_update<'a>(head: FrameHead, payload: &[u8]) -> Result<FrameEvent<'a>, ConnectionError> {
    const WHAT: &str = "WINDOW_UPDATE frame with incorrect window increment 0";
    let stream = head.stream;
    match read_u32(payload, 0) & MAX_STREAM {
        0 if stream == 0 => Err(ConnectionError::protocol(WHAT)),
        0 => Ok(FrameEvent::StreamError {
            stream,
            code: ErrorCode::PROTOCOL_ERROR,
            what: WHAT,
        }),
        increment => Ok(FrameEvent::WindowUpdate { stream, increment }),
    }
}

fn priority<'a>(head: FrameHead, payload: &[u8]) -> Result<FrameEvent<'a>, ConnectionError> {
    let stream = head.stream;
    if stream == 0 {
        return Err(ConnectionError::protocol(
            "PRIORITY frame with incorrect identifier",
        ));
    }
    let error = |code, what| FrameEvent::StreamError { stream, code, what };
    Ok(if payload.len() != 5 {
        error(
            ErrorCode::FRAME_SIZE_ERROR,
            "PRIORITY frame with incorrect length",
        )
    } else if read_u32(payload, 0) & MAX_STREAM == stream {
        error(
            ErrorCode::PROTOCOL_ERROR,
            "PRIORITY frame with incorrect dependency",
        )
    } else {
        FrameEvent::Priority { stream }
    })
}

fn priority_update<'a>(
    head: FrameHead,
    payload: &'a [u8],
) -> Result<FrameEvent<'a>, ConnectionError> {
    let stream = read_u32(payload, 0) & MAX_STREAM;
    if head.stream != 0 || stream == 0 {
        return Err(ConnectionError::protocol(
            "PRIORITY_UPDATE frame with incorrect identifier",
        ));
    }
    Ok(FrameEvent::PriorityUpdate {
        stream,
        value: &payload[4..],
    })
}

/// Four bytes as a number. The frame's size was checked; missing bytes are 0.
fn read_u32(payload: &[u8], at: usize) -> u32 {
    payload
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::super::frame::{self, write_head};
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(payload.len() as u32, kind, flags, stream, &mut out);
        out.extend_from_slice(payload);
        out
    }

    /// Feeds the input in steps of `step` bytes, keeping what was not used, and prints the events.
    /// Pieces of DATA are joined.
    fn run(input: &[u8], step: usize) -> (Vec<String>, Option<ConnectionError>) {
        let mut reader = FrameReader::default();
        let (mut kept, mut events): (Vec<u8>, Vec<String>) = Default::default();
        let mut data: (Vec<u8>, u32) = Default::default();
        for piece in input.chunks(step) {
            kept.extend_from_slice(piece);
            let mut at = 0;
            loop {
                let (event, used) = match reader.next_event(&kept[at..]) {
                    Ok(next) => next,
                    Err(error) => return (events, Some(error)),
                };
                at += used;
                match event {
                    FrameEvent::More => break,
                    FrameEvent::Data {
                        stream,
                        bytes,
                        counted,
                        end_stream,
                        ..
                    } => {
                        data.0.extend_from_slice(bytes);
                        data.1 += counted;
                        if reader.is_between_frames() {
                            events.push(format!("data {stream} {data:?} {end_stream}"));
                            data = Default::default();
                        }
                    }
                    FrameEvent::Headers {
                        stream,
                        block,
                        end_stream,
                        ..
                    } => {
                        events.push(format!("headers {stream} {:?} {end_stream}", &block[..]));
                    }
                    other => events.push(format!("{other:?}")),
                }
            }
            kept.drain(..at);
            assert!(kept.len() < HEAD_LENGTH + MAX_FRAME_SIZE_DEFAULT as usize);
        }
        (events, None)
    }

    #[test]
    fn the_pieces_do_not_matter() {
        let input = [
            frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 7]),
            frame(kind::HEADERS, flag::PRIORITY, 1, &[0, 0, 0, 0, 9, 1, 2]),
            frame(kind::CONTINUATION, 0, 1, &[]),
            frame(kind::CONTINUATION, flag::END_HEADERS, 1, &[3]),
            frame(kind::DATA, flag::PADDED, 1, &[2, b'a', b'b', 0, 0]),
            frame(kind::DATA, 0, 1, &[]),
            frame(77, 255, 3, &[1; 100]),
            frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &[0]),
            frame(kind::PING, flag::ACK, 0, b"12345678"),
            frame(kind::WINDOW_UPDATE, 0, 5, &[0x80, 0, 0, 0]),
            frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 5, b'i']),
            frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 2, b'x']),
        ]
        .concat();
        let (whole, error) = run(&input, input.len());
        assert_eq!(error, None);
        assert_eq!(whole.len(), 10, "{whole:#?}");
        assert_eq!(whole[1], "headers 1 [1, 2, 3] false");
        assert_eq!(whole[2], "data 1 ([97, 98], 5) false");
        assert_eq!(whole[5], "data 1 ([], 1) true");
        for step in 1..40 {
            assert_eq!(run(&input, step), (whole.clone(), None), "{step}");
        }
    }

    #[test]
    fn what_no_frame_may_be() {
        let refused = |input: Vec<u8>, code: ErrorCode| {
            let (_, error) = run(&input, 1);
            assert_eq!(error.map(|e| e.code), Some(code), "{input:?}");
        };
        use ErrorCode as E;
        refused(frame(kind::DATA, 0, 0, b"x"), E::PROTOCOL_ERROR);
        refused(frame(kind::DATA, flag::PADDED, 1, &[1]), E::PROTOCOL_ERROR);
        refused(frame(kind::DATA, flag::PADDED, 1, &[]), E::FRAME_SIZE_ERROR);
        refused(frame(kind::HEADERS, 0, 0, b"x"), E::PROTOCOL_ERROR);
        refused(
            frame(kind::HEADERS, flag::PADDED, 1, &[2, 0]),
            E::PROTOCOL_ERROR,
        );
        refused(
            frame(kind::HEADERS, flag::PRIORITY, 1, &[0; 4]),
            E::FRAME_SIZE_ERROR,
        );
        refused(frame(kind::CONTINUATION, 0, 1, b"x"), E::PROTOCOL_ERROR);
        refused(frame(kind::SETTINGS, 0, 0, &[0; 5]), E::FRAME_SIZE_ERROR);
        refused(
            frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]),
            E::FRAME_SIZE_ERROR,
        );
        refused(frame(kind::SETTINGS, 0, 1, &[]), E::PROTOCOL_ERROR);
        refused(frame(kind::PING, 0, 0, &[0; 7]), E::FRAME_SIZE_ERROR);
        refused(frame(kind::PING, 0, 1, &[0; 8]), E::PROTOCOL_ERROR);
        refused(frame(kind::RST_STREAM, 0, 1, &[0; 3]), E::FRAME_SIZE_ERROR);
        refused(frame(kind::RST_STREAM, 0, 0, &[0; 4]), E::PROTOCOL_ERROR);
        refused(frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), E::PROTOCOL_ERROR);
        refused(
            frame(kind::WINDOW_UPDATE, 0, 1, &[0; 5]),
            E::FRAME_SIZE_ERROR,
        );
        refused(frame(kind::GOAWAY, 0, 0, &[0; 7]), E::FRAME_SIZE_ERROR);
        refused(frame(kind::PRIORITY, 0, 0, &[0; 5]), E::PROTOCOL_ERROR);
        refused(frame(99, 0, 1, &[0; 16385]), E::FRAME_SIZE_ERROR);
    }

    #[test]
    fn an_open_header_block_takes_nothing_but_its_own_frames() {
        for other in [
            frame(kind::PING, 0, 0, &[0; 8]),
            frame(kind::CONTINUATION, 0, 3, b"x"),
            frame(77, 0, 1, b"x"),
        ] {
            let input = [frame(kind::HEADERS, 0, 1, b"x"), other].concat();
            let error = run(&input, 3).1.map(|e| e.code);
            assert_eq!(error, Some(ErrorCode::PROTOCOL_ERROR));
        }
    }

    #[test]
    fn large_frames_are_waited_for_within_bounds_only() {
        let limits = ReaderLimits {
            max_frame_size: super::super::frame::MAX_FRAME_SIZE_MAX,
            ..ReaderLimits::default()
        };
        let code = |kind: u8, length: u32| {
            let mut reader = FrameReader::new(limits);
            let mut head = Vec::new();
            write_head(length, kind, 0, u32::from(kind == kind::HEADERS), &mut head);
            reader.next_event(&head).err().map(|error| error.code)
        };
        let calm = Some(ErrorCode::ENHANCE_YOUR_CALM);
        assert_eq!(code(kind::HEADERS, 64 * 1024), None);
        assert_eq!(code(kind::HEADERS, 64 * 1024 + 1000), calm);
        for kind in [kind::SETTINGS, kind::GOAWAY, kind::PRIORITY_UPDATE] {
            assert_eq!(code(kind, 16_380), None);
            assert_eq!(code(kind, 16_386), calm);
        }
        // A payload that nobody needs, and content, come in pieces of any size.
        let mut reader = FrameReader::new(limits);
        let mut input = Vec::new();
        frame::write_data_head(1, 1 << 20, true, &mut input);
        input.extend_from_slice(b"abc");
        let (event, used) = reader.next_event(&input).expect("content may be large");
        assert!(matches!(event, FrameEvent::Data { bytes: b"abc", .. }));
        assert_eq!(used, input.len());
    }

    #[test]
    fn a_header_block_has_bounds() {
        let calm = Some(ErrorCode::ENHANCE_YOUR_CALM);
        let mut empty = frame(kind::HEADERS, 0, 1, b"x");
        for _ in 0..40 {
            empty.extend(frame(kind::CONTINUATION, 0, 1, &[]));
        }
        assert_eq!(run(&empty, 1).1.map(|e| e.code), calm);
        let mut large = frame(kind::HEADERS, 0, 1, b"x");
        for _ in 0..4 {
            large.extend(frame(kind::CONTINUATION, 0, 1, &[0; 16384]));
        }
        assert_eq!(run(&large, 4096).1.map(|e| e.code), calm);
    }
}
