//! HTTP/3 connections to upstream servers, as far as they are not exchanges: our control stream, and what the server says on its
//! own (RFC 9114, section 6.2).
//!
//! Neither side has a dynamic table: our encoder uses the static one only, and the SETTINGS that we send leave the server none.
//! So the QPACK streams of the server have nothing to say that matters.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use net::quic::{QuicConnection, QuicReceiveStream, QuicReceived, QuicSendStream};
use net::upstream::{PeerStream, QuicPeerStream};
use proto::h3::{
    FramePlace, H3Error, H3ErrorCode, H3Event, H3FrameReader, UniStreamType, VarintReader, frame,
};

/// How much is taken of a stream at a time, in bytes.
const READ_SIZE: usize = 4096;

/// How many streams of unknown types a server may open.
const UNKNOWN_STREAMS: u32 = 100;

/// For idle connections that only requests of this loop may use.
pub(super) fn key_on_this_loop(key: u64) -> u64 {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    hasher.hash_one((key, net::quic::loop_number())).max(1)
}

/// Begins HTTP/3 on a new connection.
pub(super) fn begin(quic: Rc<QuicConnection>) -> PeerStream {
    quic.set_drop_code(H3ErrorCode::REQUEST_CANCELLED.0);
    let watch = ServerStreams {
        quic: Rc::clone(&quic),
        control: ControlStream::Unopened,
        open: Vec::new(),
        has_control: false,
        unknown: 0,
    };
    let task = rt::spawn_handle("http3 upstream", watch.run()).abort_on_drop();
    let stream = QuicPeerStream::new(quic, H3ErrorCode::NO_ERROR.0, Box::new(task));
    PeerStream::Quic(stream)
}

/// Our control stream.
enum ControlStream {
    Unopened,
    /// What has not been handed over.
    Open(QuicSendStream, Bytes),
}

/// What the server says on unidirectional streams.
struct ServerStreams {
    quic: Rc<QuicConnection>,
    control: ControlStream,
    open: Vec<(QuicReceiveStream, StreamReader)>,
    has_control: bool,
    unknown: u32,
}

/// What a stream of the server is.
enum StreamReader {
    /// Its type has not come.
    Typeless(VarintReader),
    Control(H3FrameReader),
    /// A QPACK stream.
    Qpack,
}

impl ServerStreams {
    /// Reads until the connection is over.
    async fn run(mut self) {
        std::future::poll_fn(|context| {
            if let Err(error) = self.poll(context) {
                self.quic.close(error.code.0, error.what.as_bytes());
            }
            self.quic.poll_closed(context).map(drop)
        })
        .await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Result<(), H3Error> {
        self.poll_control(context);
        while let Poll::Ready(Ok(stream)) = self.quic.poll_accept_unidirectional(context) {
            let reader = StreamReader::Typeless(VarintReader::default());
            self.open.push((stream, reader));
        }
        let mut index = 0;
        while index < self.open.len() {
            match self.read_stream(index, context)? {
                true => index += 1,
                false => drop(self.open.swap_remove(index)),
            }
        }
        Ok(())
    }

    /// Opens our control stream and sends SETTINGS, which must come first (section 6.2.1).
    fn poll_control(&mut self, context: &mut Context<'_>) {
        if let ControlStream::Unopened = self.control
            && let Poll::Ready(Ok(stream)) = self.quic.poll_open_unidirectional(context)
        {
            // The type of the stream.
            let mut out = vec![0x00];
            frame::write_settings(&[], &mut out);
            self.control = ControlStream::Open(stream, out.into());
        }
        if let ControlStream::Open(stream, unsent) = &mut self.control {
            // An error is the end of the connection, which is noticed.
            while !unsent.is_empty()
                && matches!(stream.poll_write(context, unsent), Poll::Ready(Ok(_)))
            {}
        }
    }

    /// Reads what has come. `false`: the stream is not needed any more.
    fn read_stream(&mut self, index: usize, context: &mut Context<'_>) -> Result<bool, H3Error> {
        loop {
            let (stream, reader) = &mut self.open[index];
            let bytes = match stream.poll_read(context, READ_SIZE) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Err(_closed)) => return Ok(false),
                Poll::Ready(Ok(QuicReceived::Data(bytes))) => bytes,
                Poll::Ready(Ok(QuicReceived::Finished | QuicReceived::Reset(_))) => {
                    return match reader {
                        StreamReader::Typeless(_) => Ok(false),
                        StreamReader::Control(_) | StreamReader::Qpack => Err(H3Error::connection(
                            H3ErrorCode::CLOSED_CRITICAL_STREAM,
                            "end of a stream that the connection needs",
                        )),
                    };
                }
            };
            let mut rest = &bytes[..];
            if let StreamReader::Typeless(number) = reader {
                let Some(number) = number.take(&mut rest) else {
                    continue;
                };
                match self.reader_of(UniStreamType::from_number(number))? {
                    Some(known) => self.open[index].1 = known,
                    None => {
                        let stream = &mut self.open[index].0;
                        stream.stop_sending(H3ErrorCode::STREAM_CREATION_ERROR.0);
                        return Ok(false);
                    }
                }
            }
            if let StreamReader::Control(reader) = &mut self.open[index].1 {
                read_control(reader, rest, &self.quic)?;
            }
        }
    }

    fn reader_of(&mut self, kind: UniStreamType) -> Result<Option<StreamReader>, H3Error> {
        let error = |code, what| Err(H3Error::connection(code, what));
        match kind {
            UniStreamType::Control if std::mem::replace(&mut self.has_control, true) => error(
                H3ErrorCode::STREAM_CREATION_ERROR,
                "second stream of a type that occurs once",
            ),
            UniStreamType::Control => {
                let reader = H3FrameReader::new(FramePlace::Control, 0);
                Ok(Some(StreamReader::Control(reader)))
            }
            UniStreamType::QpackEncoder | UniStreamType::QpackDecoder => {
                Ok(Some(StreamReader::Qpack))
            }
            // We have not allowed any (section 7.2.7).
            UniStreamType::Push => error(H3ErrorCode::ID_ERROR, "push stream"),
            UniStreamType::Unknown(_) => {
                self.unknown += 1;
                match self.unknown > UNKNOWN_STREAMS {
                    true => error(H3ErrorCode::EXCESSIVE_LOAD, "too many unknown streams"),
                    false => Ok(None),
                }
            }
        }
    }
}

/// Reads frames of the server's control stream.
fn read_control(
    reader: &mut H3FrameReader,
    bytes: &[u8],
    quic: &QuicConnection,
) -> Result<(), H3Error> {
    let mut rest = bytes;
    loop {
        let (event, used) = reader.next_event(rest)?;
        rest = &rest[used..];
        match event {
            H3Event::More => return Ok(()),
            // Requests that are under way go on (section 5.2).
            H3Event::GoAway(_) => quic.retire(),
            // Nothing of ours depends on what the server supports.
            H3Event::Settings(_) | H3Event::Unknown { .. } => {}
            H3Event::MaxPushId(_)
            | H3Event::CancelPush(_)
            | H3Event::PriorityUpdate { .. }
            | H3Event::PushPriorityUpdate { .. }
            | H3Event::Head(_)
            | H3Event::Data { .. }
            | H3Event::Trailers(_) => {
                return Err(H3Error::connection(
                    H3ErrorCode::FRAME_UNEXPECTED,
                    "frame that servers do not send",
                ));
            }
        }
    }
}
