//! The client's unidirectional streams (RFC 9114, section 6.2): its control stream, the two of QPACK, and others, which are
//! not read.

use std::task::{Context, Poll};

use net::quic::{QuicClosed, QuicReceiveStream, QuicReceived};
use proto::field_section::ResponsePriority;
use proto::h3::{
    FramePlace, H3Error, H3ErrorCode, H3Event, H3FrameReader, UniStreamType, VarintReader,
};
use proto::qpack::DecoderStreamReader;

use super::connection_link::Http3Link;
use crate::client_budget::price;

/// How much is taken of a stream at a time, in bytes.
const READ_SIZE: usize = 4096;

/// The client's unidirectional streams that are open. QUIC bounds their number, here each type occurs once.
#[derive(Default)]
pub(super) struct ClientUniStreams {
    open: Vec<UniStream>,
    /// Which of the three types that the connection needs have come.
    has_control: bool,
    has_encoder: bool,
    has_decoder: bool,
    control: ControlNumbers,
}

/// What the last GOAWAY and MAX_PUSH_ID of the client said.
#[derive(Default)]
struct ControlNumbers {
    goaway: Option<u64>,
    max_push: Option<u64>,
}

struct UniStream {
    stream: QuicReceiveStream,
    reader: UniReader,
}

/// What a stream is read by.
enum UniReader {
    /// Its type has not come yet.
    Typeless(VarintReader),
    Control(H3FrameReader),
    Encoder,
    Decoder(DecoderStreamReader),
}

/// What became of a stream.
#[derive(PartialEq, Eq)]
enum StreamFate {
    /// It is read on.
    Open,
    /// It is over, or not of interest.
    Dropped,
}

impl ClientUniStreams {
    /// Takes a stream that the client has opened.
    pub(super) fn add(&mut self, stream: QuicReceiveStream) {
        self.open.push(UniStream {
            stream,
            reader: UniReader::Typeless(VarintReader::default()),
        });
    }

    /// Reads what has come. An error ends the connection.
    pub(super) fn poll(
        &mut self,
        link: &Http3Link,
        context: &mut Context<'_>,
    ) -> Result<(), H3Error> {
        let mut index = 0;
        while index < self.open.len() {
            match self.read_stream(index, link, context)? {
                StreamFate::Open => index += 1,
                StreamFate::Dropped => drop(self.open.swap_remove(index)),
            }
        }
        Ok(())
    }

    fn read_stream(
        &mut self,
        index: usize,
        link: &Http3Link,
        context: &mut Context<'_>,
    ) -> Result<StreamFate, H3Error> {
        loop {
            let open = &mut self.open[index];
            let received = match open.stream.poll_read(context, READ_SIZE) {
                Poll::Ready(Ok(received)) => received,
                // The connection is over, which its task notices.
                Poll::Ready(Err(_closed)) => return Ok(StreamFate::Dropped),
                Poll::Pending => return Ok(StreamFate::Open),
            };
            let bytes = match received {
                QuicReceived::Data(bytes) => bytes,
                QuicReceived::Finished | QuicReceived::Reset(_) => {
                    return match open.reader {
                        UniReader::Typeless(_) => Ok(StreamFate::Dropped),
                        _ => Err(H3Error::connection(
                            H3ErrorCode::CLOSED_CRITICAL_STREAM,
                            "end of a stream that the connection needs",
                        )),
                    };
                }
            };
            link.count_taken(bytes.len())?;
            if self.take(index, link, &bytes)? == StreamFate::Dropped {
                return Ok(StreamFate::Dropped);
            }
        }
    }

    fn take(
        &mut self,
        index: usize,
        link: &Http3Link,
        bytes: &[u8],
    ) -> Result<StreamFate, H3Error> {
        let mut rest = bytes;
        if let UniReader::Typeless(number) = &mut self.open[index].reader {
            let Some(number) = number.take(&mut rest) else {
                return Ok(StreamFate::Open);
            };
            let kind = UniStreamType::from_number(number);
            link.debug(format_args!("http3 unidirectional stream: {kind:?}"));
            match self.reader_of(kind)? {
                Some(reader) => self.open[index].reader = reader,
                None => {
                    link.spend(price::FRAME)?;
                    let stream = &mut self.open[index].stream;
                    stream.stop_sending(H3ErrorCode::STREAM_CREATION_ERROR.0);
                    return Ok(StreamFate::Dropped);
                }
            }
        }
        match &mut self.open[index].reader {
            UniReader::Typeless(_) => {}
            UniReader::Control(reader) => self.control.read(reader, link, rest)?,
            UniReader::Encoder => {
                let result = link.decoder.borrow_mut().handle_instructions(rest);
                let instructions = result.map_err(|error| {
                    H3Error::connection(H3ErrorCode::QPACK_ENCODER_STREAM_ERROR, error.what())
                })?;
                link.spend(instructions.saturating_mul(price::INSTRUCTION))?;
                link.wake_unblocked();
            }
            UniReader::Decoder(reader) => {
                let instructions = reader.handle_instructions(rest).map_err(|_invalid| {
                    H3Error::connection(
                        H3ErrorCode::QPACK_DECODER_STREAM_ERROR,
                        "invalid instruction on the decoder stream",
                    )
                })?;
                link.spend(instructions.saturating_mul(price::INSTRUCTION))?;
            }
        }
        Ok(StreamFate::Open)
    }

    /// The reader for a stream of this type; `None` if it is not to be read.
    fn reader_of(&mut self, kind: UniStreamType) -> Result<Option<UniReader>, H3Error> {
        let error = |what| H3Error::connection(H3ErrorCode::STREAM_CREATION_ERROR, what);
        let (has, reader) = match kind {
            UniStreamType::Control => {
                let reader = H3FrameReader::new(FramePlace::Control, 0);
                (&mut self.has_control, UniReader::Control(reader))
            }
            UniStreamType::QpackEncoder => (&mut self.has_encoder, UniReader::Encoder),
            UniStreamType::QpackDecoder => {
                let reader = DecoderStreamReader::default();
                (&mut self.has_decoder, UniReader::Decoder(reader))
            }
            // Only servers push (section 6.2.2).
            UniStreamType::Push => return Err(error("push stream")),
            UniStreamType::Unknown(_) => return Ok(None),
        };
        match std::mem::replace(has, true) {
            true => Err(error("second stream of a type that occurs once")),
            false => Ok(Some(reader)),
        }
    }
}

impl ControlNumbers {
    /// Reads the frames of the control stream.
    fn read(
        &mut self,
        reader: &mut H3FrameReader,
        link: &Http3Link,
        bytes: &[u8],
    ) -> Result<(), H3Error> {
        let mut rest = bytes;
        loop {
            let (event, used) = reader.next_event(rest)?;
            rest = &rest[used..];
            if event == H3Event::More {
                return Ok(());
            }
            self.handle_event(event, link)?;
        }
    }

    fn handle_event(&mut self, event: H3Event<'_>, link: &Http3Link) -> Result<(), H3Error> {
        let id_error = |what| Err(H3Error::connection(H3ErrorCode::ID_ERROR, what));
        match event {
            H3Event::Settings(settings) => {
                // Our blocks need nothing of the client's table, and are far below any limit that it may set.
                link.debug(format_args!("http3 SETTINGS frame: {settings:?}"));
                link.spend(price::SETTINGS)
            }
            // The client takes no more pushes: there are none. The number must not grow (section 5.2).
            H3Event::GoAway(id) => {
                if self.goaway.replace(id).is_some_and(|earlier| id > earlier) {
                    return id_error("GOAWAY frame with a larger identifier");
                }
                link.spend(price::FRAME)
            }
            H3Event::MaxPushId(id) => {
                if self
                    .max_push
                    .replace(id)
                    .is_some_and(|earlier| id < earlier)
                {
                    return id_error("MAX_PUSH_ID frame with a smaller identifier");
                }
                link.spend(price::FRAME)
            }
            // Nothing was ever promised (section 7.2.3; RFC 9218, section 7.2).
            H3Event::CancelPush(_) | H3Event::PushPriorityUpdate { .. } => {
                id_error("frame for a push that was not promised")
            }
            H3Event::PriorityUpdate { stream, value } => {
                link.spend(price::FRAME)?;
                // Requests are on bidirectional streams of the client (RFC 9000, section 2.1).
                if !stream.is_multiple_of(4) {
                    return id_error("PRIORITY_UPDATE frame for a stream without a request");
                }
                let priority = ResponsePriority::parse(value);
                match link.stream(stream) {
                    Some(stream) => stream.set_priority(priority),
                    None => link.keep_priority(stream, priority),
                }
                Ok(())
            }
            H3Event::Unknown { kind, .. } => {
                link.debug(format_args!("http3 unknown frame type {kind:#x}"));
                link.spend(price::FRAME)
            }
            // The reader does not let these pass on a control stream.
            H3Event::More | H3Event::Head(_) | H3Event::Data { .. } | H3Event::Trailers(_) => {
                Ok(())
            }
        }
    }
}

/// Whether an ended connection is worth a line in the log.
pub(super) fn is_ordinary_end(closed: &QuicClosed) -> bool {
    match closed {
        QuicClosed::Here | QuicClosed::TimedOut => true,
        QuicClosed::ByApplication(code) => *code == H3ErrorCode::NO_ERROR.0 || *code == 0,
        QuicClosed::ByTransport(..) | QuicClosed::Reset | QuicClosed::Unreachable => false,
    }
}
