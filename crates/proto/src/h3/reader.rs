//! Reads frames from the bytes of a stream (RFC 9114, section 7), in pieces of any size.
//!
//! All input is taken. What is kept is the number of bytes of a frame's head that have come, and the payload of a frame
//! whose whole payload is needed, up to a bound for each type; content and the payloads of unknown frames pass through.

use super::error::{H3Error, H3ErrorCode};
use super::frame::kind;
use super::settings::H3Settings;
use super::varint::{self, VarintReader};

/// The largest SETTINGS frame that is read, in bytes: dozens of settings.
pub const MAX_SETTINGS: u64 = 1024;

/// The largest PRIORITY_UPDATE frame that is read, in bytes.
pub const MAX_PRIORITY_UPDATE: u64 = 256;

/// The largest integer, as GOAWAY and its relatives contain it, in bytes.
const MAX_ID: u64 = 8;

/// On which kind of stream the frames are, which decides what may occur (RFC 9114, section 7, table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePlace {
    /// A control stream.
    Control,
    /// A stream with a request, or with its response.
    Request,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum H3Event<'a> {
    /// All of the input was taken; the next event needs more.
    More,
    /// The block of a head, complete.
    Head(&'a [u8]),
    /// A piece of content. `begins`: a frame begins with it, which may be empty.
    Data {
        /// The piece.
        bytes: &'a [u8],
        /// Whether it is the first one of its frame.
        begins: bool,
    },
    /// The block of the trailers, complete. Nothing but unknown frames may follow.
    Trailers(&'a [u8]),
    /// The peer's settings.
    Settings(H3Settings),
    /// The peer goes away: it takes no pushes from this number on.
    GoAway(u64),
    /// How many pushes it accepts.
    MaxPushId(u64),
    /// It does not want this push.
    CancelPush(u64),
    /// The priority of the response on a request's stream.
    PriorityUpdate {
        /// The stream.
        stream: u64,
        /// The priority (RFC 9218, section 4).
        value: &'a [u8],
    },
    /// The priority of a push.
    PushPriorityUpdate {
        /// The push.
        push: u64,
    },
    /// A frame of an unknown type has begun; its payload is skipped.
    Unknown {
        /// Its type.
        kind: u64,
        /// The length of its payload.
        length: u64,
    },
}

/// What comes next on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// The type of a frame.
    Kind,
    /// The length of the frame's payload.
    Length(u64),
    /// Content. `true` before the first piece of a frame.
    Content(u64, bool),
    /// A payload that is not needed.
    Skipped(u64),
    /// A payload that is needed as a whole.
    Payload(u64, u64),
}

/// How far the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamProgress {
    /// Neither SETTINGS nor a head has come.
    Nothing,
    /// One has come.
    Begun,
    /// The trailers have come.
    Trailed,
}

/// Reads the frames of one stream.
#[derive(Debug)]
pub struct H3FrameReader {
    place: FramePlace,
    /// The largest header block, in bytes.
    max_block: u64,
    state: ReadState,
    progress: StreamProgress,
    number: VarintReader,
    /// The part of a needed payload that has come.
    gathered: Vec<u8>,
}

impl H3FrameReader {
    /// A reader for a stream of this kind, with header blocks of at most `max_block` bytes.
    pub fn new(place: FramePlace, max_block: u64) -> H3FrameReader {
        H3FrameReader {
            place,
            max_block,
            state: ReadState::Kind,
            progress: StreamProgress::Nothing,
            number: VarintReader::default(),
            gathered: Vec::new(),
        }
    }

    /// The next event, and how much of the input it took: all of it with [`H3Event::More`]. A payload that came in pieces
    /// is in memory of the reader until the next call.
    pub fn next_event<'a>(&'a mut self, input: &'a [u8]) -> Result<(H3Event<'a>, usize), H3Error> {
        let mut rest = input;
        loop {
            match self.state {
                ReadState::Kind => {
                    self.gathered.clear();
                    let Some(kind) = self.number.take(&mut rest) else {
                        return Ok((H3Event::More, input.len()));
                    };
                    self.check_kind(kind)?;
                    self.state = ReadState::Length(kind);
                }
                ReadState::Length(kind) => {
                    let Some(length) = self.number.take(&mut rest) else {
                        return Ok((H3Event::More, input.len()));
                    };
                    self.state = self.payload_state(kind, length)?;
                    if let ReadState::Skipped(_) = self.state {
                        let used = input.len() - rest.len();
                        return Ok((H3Event::Unknown { kind, length }, used));
                    }
                }
                ReadState::Content(left, begins) => {
                    if left == 0 && !begins {
                        self.state = ReadState::Kind;
                    } else if rest.is_empty() && left > 0 {
                        return Ok((H3Event::More, input.len()));
                    } else {
                        let (bytes, after) = rest.split_at(fitting(rest.len(), left));
                        self.state = ReadState::Content(left - bytes.len() as u64, false);
                        let used = input.len() - after.len();
                        return Ok((H3Event::Data { bytes, begins }, used));
                    }
                }
                ReadState::Skipped(left) => {
                    let (skipped, after) = rest.split_at(fitting(rest.len(), left));
                    rest = after;
                    match left - skipped.len() as u64 {
                        0 => self.state = ReadState::Kind,
                        left => {
                            self.state = ReadState::Skipped(left);
                            return Ok((H3Event::More, input.len()));
                        }
                    }
                }
                ReadState::Payload(kind, length) => {
                    return self.payload(kind, length, input, rest);
                }
            }
        }
    }

    /// Gathers a payload until it is complete.
    fn payload<'a>(
        &'a mut self,
        kind: u64,
        length: u64,
        input: &'a [u8],
        rest: &'a [u8],
    ) -> Result<(H3Event<'a>, usize), H3Error> {
        let missing = length - self.gathered.len() as u64;
        let (part, after) = rest.split_at(fitting(rest.len(), missing));
        if (part.len() as u64) < missing {
            self.gathered.extend_from_slice(part);
            return Ok((H3Event::More, input.len()));
        }
        self.state = ReadState::Kind;
        let payload = if self.gathered.is_empty() {
            part
        } else {
            self.gathered.extend_from_slice(part);
            &self.gathered[..]
        };
        let event = complete(kind, payload, &mut self.progress)?;
        Ok((event, input.len() - after.len()))
    }

    /// Called at the end of the stream: a frame must not have been cut (RFC 9114, section 7.1).
    pub fn finish(&self) -> Result<(), H3Error> {
        let is_whole = match self.state {
            ReadState::Kind => !self.number.is_begun(),
            ReadState::Content(left, begins) => left == 0 && !begins,
            ReadState::Skipped(left) => left == 0,
            ReadState::Length(_) | ReadState::Payload(..) => false,
        };
        if !is_whole {
            return Err(H3Error::connection(
                H3ErrorCode::FRAME_ERROR,
                "stream that ends inside a frame",
            ));
        }
        match (self.place, self.progress) {
            (FramePlace::Request, StreamProgress::Nothing) => Err(H3Error::stream(
                H3ErrorCode::REQUEST_INCOMPLETE,
                "stream without a request",
            )),
            _ => Ok(()),
        }
    }

    /// The head that has come was that of an interim response (1xx): another one follows (RFC 9114, section 4.1).
    pub fn expect_another_head(&mut self) {
        self.progress = StreamProgress::Nothing;
    }

    /// Frees the memory of large payloads.
    pub fn shrink(&mut self) {
        if self.state == ReadState::Kind {
            self.gathered = Vec::new();
        }
    }

    /// Whether a frame of this type may stand here.
    fn check_kind(&self, kind: u64) -> Result<(), H3Error> {
        use StreamProgress as Progress;
        let unexpected = |what| Err(H3Error::connection(H3ErrorCode::FRAME_UNEXPECTED, what));
        if kind::is_forbidden(kind) {
            return unexpected("frame of a type that belongs to HTTP/2");
        }
        match (self.place, kind, self.progress) {
            // The reason that counts is that SETTINGS are missing, whatever else comes (section 6.2.1).
            (FramePlace::Control, kind::SETTINGS, Progress::Nothing) => Ok(()),
            (FramePlace::Control, _, Progress::Nothing) => Err(H3Error::connection(
                H3ErrorCode::MISSING_SETTINGS,
                "control stream that does not begin with SETTINGS",
            )),
            (FramePlace::Control, kind::SETTINGS, _) => unexpected("SETTINGS frame twice"),
            (FramePlace::Control, kind::DATA | kind::HEADERS, _) => {
                unexpected("frame of a request on the control stream")
            }
            // Only servers push.
            (_, kind::PUSH_PROMISE, _) => unexpected("PUSH_PROMISE frame"),
            (FramePlace::Request, kind::DATA, Progress::Nothing) => {
                unexpected("DATA frame before a HEADERS frame")
            }
            (FramePlace::Request, kind::DATA | kind::HEADERS, Progress::Trailed) => {
                unexpected("frame after trailers")
            }
            (
                FramePlace::Request,
                kind::SETTINGS
                | kind::CANCEL_PUSH
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_PUSH,
                _,
            ) => unexpected("frame of the control stream on a stream with a request"),
            _ => Ok(()),
        }
    }

    /// What to do with the payload.
    fn payload_state(&self, kind: u64, length: u64) -> Result<ReadState, H3Error> {
        let bounded = |most: u64, error: H3Error| match length > most {
            true => Err(error),
            false => Ok(ReadState::Payload(kind, length)),
        };
        let excessive = |what| H3Error::connection(H3ErrorCode::EXCESSIVE_LOAD, what);
        let wrong = |what| H3Error::connection(H3ErrorCode::FRAME_ERROR, what);
        match kind {
            kind::DATA => Ok(ReadState::Content(length, true)),
            kind::HEADERS => bounded(
                self.max_block,
                // Only this request is too large: the connection's table does not depend on its block.
                H3Error::stream(H3ErrorCode::EXCESSIVE_LOAD, "too large header"),
            ),
            kind::SETTINGS => bounded(MAX_SETTINGS, excessive("too large SETTINGS frame")),
            kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH => {
                bounded(MAX_ID, wrong("frame of a wrong length"))
            }
            kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH => bounded(
                MAX_PRIORITY_UPDATE,
                excessive("too large PRIORITY_UPDATE frame"),
            ),
            _ => Ok(ReadState::Skipped(length)),
        }
    }
}

/// How much of what is here belongs to a payload of which `left` bytes are missing.
fn fitting(here: usize, left: u64) -> usize {
    usize::try_from(left).map_or(here, |left| left.min(here))
}

/// The event of a complete payload.
fn complete<'a>(
    kind: u64,
    payload: &'a [u8],
    progress: &mut StreamProgress,
) -> Result<H3Event<'a>, H3Error> {
    const WRONG: H3Error = H3Error::connection(H3ErrorCode::FRAME_ERROR, "frame of a wrong length");
    let mut rest = payload;
    let mut id = || varint::read(&mut rest).ok_or(WRONG);
    let event = match kind {
        kind::HEADERS => match std::mem::replace(progress, StreamProgress::Begun) {
            StreamProgress::Nothing => return Ok(H3Event::Head(payload)),
            StreamProgress::Begun | StreamProgress::Trailed => {
                *progress = StreamProgress::Trailed;
                return Ok(H3Event::Trailers(payload));
            }
        },
        kind::SETTINGS => {
            *progress = StreamProgress::Begun;
            return Ok(H3Event::Settings(H3Settings::parse(payload)?));
        }
        kind::PRIORITY_UPDATE => {
            let stream = id()?;
            return Ok(H3Event::PriorityUpdate {
                stream,
                value: rest,
            });
        }
        kind::PRIORITY_UPDATE_PUSH => return Ok(H3Event::PushPriorityUpdate { push: id()? }),
        kind::GOAWAY => H3Event::GoAway(id()?),
        kind::MAX_PUSH_ID => H3Event::MaxPushId(id()?),
        // Only the types of `payload_state` come here.
        _ => H3Event::CancelPush(id()?),
    };
    match rest.is_empty() {
        true => Ok(event),
        false => Err(WRONG),
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint::write(kind, &mut out);
        varint::write(payload.len() as u64, &mut out);
        out.extend_from_slice(payload);
        out
    }

    /// Feeds the input in steps, and prints the events. Pieces of a DATA frame are joined.
    fn run(place: FramePlace, input: &[u8], step: usize) -> (Vec<String>, Option<H3ErrorCode>) {
        let mut reader = H3FrameReader::new(place, 1000);
        let mut events: Vec<String> = Vec::new();
        for piece in input.chunks(step) {
            let mut at = 0;
            loop {
                let (event, used) = match reader.next_event(&piece[at..]) {
                    Ok(next) => next,
                    Err(error) => return (events, Some(error.code)),
                };
                at += used;
                match event {
                    H3Event::More => {
                        assert_eq!(at, piece.len());
                        break;
                    }
                    H3Event::Data { bytes, begins } => {
                        let text = String::from_utf8_lossy(bytes).into_owned();
                        match events.last_mut() {
                            Some(last) if !begins => last.push_str(&text),
                            _ => events.push(format!("data {text}")),
                        }
                    }
                    other => events.push(format!("{other:?}")),
                }
            }
        }
        let end = reader.finish().err().map(|error| error.code);
        (events, end)
    }

    fn request(frames: &[Vec<u8>]) -> (Vec<String>, Option<H3ErrorCode>) {
        let input = frames.concat();
        let whole = run(FramePlace::Request, &input, input.len().max(1));
        for step in 1..input.len() {
            assert_eq!(run(FramePlace::Request, &input, step), whole, "{step}");
        }
        whole
    }

    fn control(frames: &[Vec<u8>]) -> (Vec<String>, Option<H3ErrorCode>) {
        let mut input = frame(kind::SETTINGS, &[]);
        input.extend(frames.concat());
        let whole = run(FramePlace::Control, &input, input.len());
        for step in 1..input.len() {
            assert_eq!(run(FramePlace::Control, &input, step), whole, "{step}");
        }
        whole
    }

    #[test]
    fn the_pieces_of_a_request_do_not_matter() {
        let (events, error) = request(&[
            frame(0x21, b"grease"),
            frame(kind::HEADERS, b"\0\0\xd1"),
            frame(kind::DATA, b"abc"),
            frame(kind::DATA, b""),
            frame(0x40_0000, &[7; 100]),
            frame(kind::DATA, b"d"),
            frame(kind::HEADERS, b"\0\0"),
            frame(0x21, b""),
        ]);
        assert_eq!(error, None);
        assert_eq!(
            events,
            [
                "Unknown { kind: 33, length: 6 }",
                "Head([0, 0, 209])",
                "data abc",
                "data ",
                "Unknown { kind: 4194304, length: 100 }",
                "data d",
                "Trailers([0, 0])",
                "Unknown { kind: 33, length: 0 }",
            ]
        );
    }

    #[test]
    fn the_control_stream() {
        let mut update = vec![0x04];
        update.extend(b"u=1, i");
        let (events, error) = control(&[
            frame(kind::GOAWAY, &[0x40, 0x08]),
            frame(kind::MAX_PUSH_ID, &[5]),
            frame(kind::CANCEL_PUSH, &[5]),
            frame(kind::PRIORITY_UPDATE, &update),
            frame(kind::PRIORITY_UPDATE_PUSH, &[2, b'i']),
            frame(0x21, &[0; 9]),
        ]);
        assert_eq!(error, None);
        assert_eq!(events.len(), 7, "{events:#?}");
        assert_eq!(events[1..4], ["GoAway(8)", "MaxPushId(5)", "CancelPush(5)"]);
        assert!(events[4].starts_with("PriorityUpdate { stream: 4,"));
        assert_eq!(events[5], "PushPriorityUpdate { push: 2 }");
    }

    #[test]
    fn what_no_frame_may_be() {
        use H3ErrorCode as E;
        let head = || frame(kind::HEADERS, b"\0\0");
        for kind in [2, 6, 8, 9, kind::SETTINGS, kind::GOAWAY, kind::PUSH_PROMISE] {
            let (_, error) = request(&[head(), frame(kind, &[0])]);
            assert_eq!(error, Some(E::FRAME_UNEXPECTED), "{kind}");
        }
        for kind in [
            2,
            6,
            8,
            9,
            kind::DATA,
            kind::HEADERS,
            kind::SETTINGS,
            kind::PUSH_PROMISE,
        ] {
            let (_, error) = control(&[frame(kind, &[0])]);
            assert_eq!(error, Some(E::FRAME_UNEXPECTED), "{kind}");
        }
        let refused = |frames: &[Vec<u8>], code| assert_eq!(request(frames).1, Some(code));
        refused(&[frame(kind::DATA, b"x")], E::FRAME_UNEXPECTED);
        refused(&[head(), head(), head()], E::FRAME_UNEXPECTED);
        refused(
            &[head(), head(), frame(kind::DATA, b"")],
            E::FRAME_UNEXPECTED,
        );
        refused(&[], E::REQUEST_INCOMPLETE);
        refused(&[frame(0x21, b"")], E::REQUEST_INCOMPLETE);
        refused(&[head(), vec![0x00, 0x05, 1, 2]], E::FRAME_ERROR);
        refused(&[head(), vec![0x00]], E::FRAME_ERROR);
        refused(&[head(), vec![0x40]], E::FRAME_ERROR);
        refused(&[vec![0x01, 0x05, 1, 2]], E::FRAME_ERROR);
        let wrong = |frames: &[Vec<u8>]| assert_eq!(control(frames).1, Some(E::FRAME_ERROR));
        wrong(&[frame(kind::GOAWAY, &[])]);
        wrong(&[frame(kind::GOAWAY, &[1, 2])]);
        wrong(&[frame(kind::GOAWAY, &[0x40])]);
        wrong(&[frame(kind::MAX_PUSH_ID, &[0; 9])]);
        let missing = run(FramePlace::Control, &frame(kind::GOAWAY, &[0]), 1).1;
        assert_eq!(missing, Some(E::MISSING_SETTINGS));
    }

    #[test]
    fn payloads_have_bounds() {
        use H3ErrorCode as E;
        let begun = |place, kind, length| {
            let mut input = Vec::new();
            if place == FramePlace::Control && kind != kind::SETTINGS {
                input.extend(frame(kind::SETTINGS, &[]));
            }
            varint::write(kind, &mut input);
            varint::write(length, &mut input);
            match run(place, &input, 3).1 {
                // It would have been read.
                Some(E::FRAME_ERROR) => None,
                error => error,
            }
        };
        let (control, request) = (FramePlace::Control, FramePlace::Request);
        assert_eq!(begun(request, kind::HEADERS, 1000), None);
        assert_eq!(begun(request, kind::HEADERS, 1001), Some(E::EXCESSIVE_LOAD));
        assert_eq!(begun(control, kind::SETTINGS, MAX_SETTINGS), None);
        let large = begun(control, kind::SETTINGS, MAX_SETTINGS + 1);
        assert_eq!(large, Some(E::EXCESSIVE_LOAD));
        assert_eq!(
            begun(control, kind::PRIORITY_UPDATE, MAX_PRIORITY_UPDATE),
            None
        );
        let large = begun(control, kind::PRIORITY_UPDATE, MAX_PRIORITY_UPDATE + 1);
        assert_eq!(large, Some(E::EXCESSIVE_LOAD));
        // Content and unknown payloads are not kept, so they may be as long as the format allows.
        let mut reader = H3FrameReader::new(request, 1000);
        let mut input = frame(kind::HEADERS, b"\0\0");
        frame::write_data_head(varint::VARINT_MAX, &mut input);
        let (event, used) = reader.next_event(&input).expect("it is valid");
        assert_eq!(event, H3Event::Head(b"\0\0"));
        assert_eq!(
            reader.next_event(&input[used..]).expect("it is valid").0,
            H3Event::More
        );
        let (event, _) = reader.next_event(b"abc").expect("it is valid");
        assert!(matches!(
            event,
            H3Event::Data {
                bytes: b"abc",
                begins: true
            }
        ));
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 100, 0x3fff, 0x4000, 70_000] {
            let mut out = Vec::new();
            let begun = frame::HeadersFrame::begin(&mut out);
            out.resize(out.len() + length, 7);
            begun.finish(&mut out);
            let mut reader = H3FrameReader::new(FramePlace::Request, 100_000);
            let (event, used) = reader.next_event(&out).expect("it is valid");
            assert_eq!(event, H3Event::Head(&vec![7; length]));
            assert_eq!(used, out.len());
        }
        let mut out = Vec::new();
        frame::write_settings(&[(1, 4096), (7, 100), (8, 1)], &mut out);
        frame::write_goaway(1 << 20, &mut out);
        let (events, error) = run(FramePlace::Control, &out, 1);
        assert_eq!(error, None);
        assert!(events[0].contains("max_table_capacity: 4096"), "{events:?}");
        assert_eq!(events[1], "GoAway(1048576)");
    }
}
