//! Our unidirectional streams: the control stream, and the one that tells the client's encoder what has arrived. Our own
//! encoder uses no table, so that it needs no stream (RFC 9204, section 4.2).

use std::task::{Context, Poll};

use bytes::Bytes;
use net::quic::QuicSendStream;
use proto::h3::settings::id;
use proto::h3::{H3Error, H3ErrorCode, UniStreamType, frame};

use super::connection_link::Http3Link;
use super::limits::{TABLE_CAPACITY, UNSENT};

/// The largest identifier of a request's stream: a first GOAWAY with it refuses nothing yet (RFC 9114, section 5.2).
pub(super) const LAST_REQUEST: u64 = (1 << 62) - 4;

/// Our two streams, and what is to be said on them.
pub(super) struct OurStreams {
    control: OurStream,
    decoder: OurStream,
}

/// A stream that may still have to be opened.
#[derive(Default)]
struct OurStream {
    stream: Option<QuicSendStream>,
    /// What the client's windows have not let through yet. [`UNSENT`] bounds it.
    unsent: Vec<u8>,
}

impl OurStreams {
    pub(super) fn new(link: &Http3Link) -> OurStreams {
        let mut control = OurStream::default();
        UniStreamType::Control.write(&mut control.unsent);
        // As many streams may be blocked as may be open, as in nginx: a client then never has to choose.
        let blocked = link.limits.borrow().max_streams as u64;
        frame::write_settings(
            &[
                (id::QPACK_MAX_TABLE_CAPACITY, TABLE_CAPACITY as u64),
                (id::QPACK_BLOCKED_STREAMS, blocked),
                (id::ENABLE_CONNECT_PROTOCOL, 1),
            ],
            &mut control.unsent,
        );
        let mut decoder = OurStream::default();
        UniStreamType::QpackDecoder.write(&mut decoder.unsent);
        OurStreams { control, decoder }
    }

    /// Appends GOAWAY.
    pub(super) fn write_goaway(&mut self, id: u64) {
        frame::write_goaway(id, &mut self.control.unsent);
    }

    /// Sends what there is to say. An error ends the connection.
    pub(super) fn poll(
        &mut self,
        link: &Http3Link,
        context: &mut Context<'_>,
    ) -> Result<(), H3Error> {
        let mut decoder = link.decoder.borrow_mut();
        if decoder.has_output() {
            self.decoder.unsent.append(&mut decoder.take_output());
        }
        drop(decoder);
        self.control.poll(link, context)?;
        self.decoder.poll(link, context)
    }

    /// How many of them are open.
    pub(super) fn open(&self) -> usize {
        let streams = [&self.control, &self.decoder];
        streams.iter().filter(|ours| ours.stream.is_some()).count()
    }

    /// Whether everything has been handed over.
    pub(super) fn is_flushed(&self) -> bool {
        self.control.unsent.is_empty()
    }
}

impl OurStream {
    fn poll(&mut self, link: &Http3Link, context: &mut Context<'_>) -> Result<(), H3Error> {
        const CLOSED: H3Error = H3Error::connection(
            H3ErrorCode::CLOSED_CRITICAL_STREAM,
            "STOP_SENDING for a stream that the connection needs",
        );
        if self.unsent.is_empty() {
            return Ok(());
        }
        if self.stream.is_none() {
            match link.quic.poll_open_unidirectional(context) {
                Poll::Ready(Ok(stream)) => {
                    // What it says is short, and others wait for it.
                    stream.set_priority(i32::MAX);
                    self.stream = Some(stream);
                }
                // The connection's task notices the end itself.
                Poll::Ready(Err(_closed)) => return Ok(()),
                Poll::Pending => return self.check_bound(),
            }
        }
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        let mut bytes = Bytes::from(std::mem::take(&mut self.unsent));
        while !bytes.is_empty() {
            match stream.poll_write(context, &mut bytes) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(net::quic::QuicStreamError::Stopped(_))) => return Err(CLOSED),
                Poll::Ready(Err(_over)) => return Ok(()),
                Poll::Pending => {
                    self.unsent = bytes.to_vec();
                    return self.check_bound();
                }
            }
        }
        Ok(())
    }

    /// A client that makes us say something and does not let us.
    fn check_bound(&self) -> Result<(), H3Error> {
        match self.unsent.len() > UNSENT {
            true => Err(H3Error::connection(
                H3ErrorCode::EXCESSIVE_LOAD,
                "http3 client does not read our streams",
            )),
            false => Ok(()),
        }
    }
}
