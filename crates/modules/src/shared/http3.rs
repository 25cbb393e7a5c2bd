//! HTTP/3 as an upstream protocol (RFC 9114): `proxy_http_version 3`.
//!
//! Each request has a stream of its own, whose end is that of the request and of the response. A connection carries one
//! request at a time and is then kept for the next, as with the other protocols. Header blocks use the static table only, so a
//! connection has no state that requests would share. What to request is up to the [`StreamProfile`].

use bstr::BStr;
use http::Request;
use http::upstream::{
    CarriedState, ChunkPiece, ContentLength, HeadProgress, NoResponse, ProtocolFault,
    RequestLength, RequestTraits, UpstreamProtocol,
};
use proto::KnownField;
use proto::field_section::{FieldSecrecy, ListLimits};
use proto::fields::Fields;
use proto::h3::{FramePlace, H3Error, H3Event, H3FrameReader, frame};
use proto::message::ResponseHead;
use proto::qpack::{QpackDecoder, QpackEncoder, SectionOutcome};

use super::gateway::response::warn_of_repeated;
use super::stream_response::{MAX_LIST, StreamResponse, check_trailer, store_field};
use super::streamed_request::{StreamProfile, StreamedRequest};

/// The most fields of a response.
const MAX_FIELDS: usize = 1000;

/// The least that the exchange reads at a time, in bytes.
const LEAST_BUFFER: usize = 16 * 1024;

/// One request and its response.
pub(crate) struct Http3Exchange<S> {
    /// The module's side.
    profile: S,
    request: StreamedRequest,
    encoder: QpackEncoder,
    decoder: QpackDecoder,
    reader: H3FrameReader,
    response: StreamResponse,
    /// The fixed body has been written on this connection. Another try starts over.
    is_fixed_sent: bool,
    /// The response has come to its end.
    has_ended: bool,
}

impl<S: StreamProfile> Http3Exchange<S> {
    pub(crate) fn new(profile: S) -> Http3Exchange<S> {
        Http3Exchange {
            profile,
            request: StreamedRequest::default(),
            encoder: QpackEncoder::default(),
            // The SETTINGS that were sent allow no dynamic table.
            decoder: QpackDecoder::new(0, 0),
            reader: new_reader(),
            response: StreamResponse::default(),
            is_fixed_sent: false,
            has_ended: false,
        }
    }

    /// Appends a header block in its frame.
    fn write_section(&mut self, pseudo: &[(&[u8], &[u8])], fields: &Fields, out: &mut Vec<u8>) {
        let begun = frame::HeadersFrame::begin(out);
        self.encoder.begin(out);
        for (name, value) in pseudo {
            self.encoder.pseudo(name, value, out);
        }
        for (known, name, value) in fields.iter_known() {
            // They must not be guessable by the size of what is sent (RFC 9204, section 7.1).
            let secrecy = match known {
                KnownField::Authorization | KnownField::Cookie => FieldSecrecy::Secret,
                _ => FieldSecrecy::Open,
            };
            self.encoder.field(known, name, value, secrecy, out);
        }
        begun.finish(out);
    }

    fn has_fixed_content(&self) -> bool {
        self.request.content.is_some() && !self.is_fixed_sent
    }
}

fn new_reader() -> H3FrameReader {
    H3FrameReader::new(FramePlace::Request, MAX_LIST as u64)
}

/// Decodes a header block.
fn decode(
    decoder: &mut QpackDecoder,
    block: &[u8],
    take: impl FnMut(proto::field_section::DecodedField<'_>),
) -> Result<(), ProtocolFault> {
    let limits = ListLimits {
        max_size: MAX_LIST,
        max_fields: MAX_FIELDS,
    };
    match decoder.decode(0, block, limits, take) {
        Ok(SectionOutcome::Decoded(decoded)) if !decoded.too_large => Ok(()),
        Ok(SectionOutcome::Decoded(_)) => Err(ProtocolFault::new("upstream sent too big header")),
        // It refers to a table that we have not allowed.
        Ok(SectionOutcome::Blocked) => Err(ProtocolFault::new(
            "upstream sent a header block that needs a dynamic table",
        )),
        Err(error) => Err(ProtocolFault::new(format!(
            "upstream sent {}",
            error.what()
        ))),
    }
}

fn frame_fault(error: H3Error) -> ProtocolFault {
    ProtocolFault::new(format!("upstream sent {}", error.what))
}

/// A frame that has no place on the stream of a request; the reader lets none pass.
fn unexpected_frame() -> ProtocolFault {
    ProtocolFault::new("upstream sent unexpected http3 frame")
}

impl<S: StreamProfile> UpstreamProtocol for Http3Exchange<S> {
    fn scheme(&self) -> &'static str {
        self.profile.scheme()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.profile.secure_host()
    }

    fn dialect(&self) -> &'static str {
        "h3"
    }

    fn uses_quic(&self) -> bool {
        true
    }

    fn is_framed(&self) -> bool {
        true
    }

    fn least_buffer(&self) -> usize {
        LEAST_BUFFER
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        _out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        // What follows the head needs no announcement: the end of the stream ends it.
        self.request.fill(&mut self.profile, request, content)?;
        Ok(())
    }

    fn shown_fields(&self, _: &[u8]) -> http::upstream::ShownFields {
        self.request.shown_fields()
    }

    fn begin_request(&mut self, _carried: Option<CarriedState>, out: &mut Vec<u8>) {
        let request = std::mem::take(&mut self.request);
        let pseudo: [(&[u8], &[u8]); 4] = [
            (b":method", &request.method),
            (b":scheme", request.scheme.as_bytes()),
            (b":authority", &request.authority),
            (b":path", &request.path),
        ];
        self.write_section(&pseudo, &request.fields, out);
        // Put back for another try, which is the same request on another connection.
        self.request = request;
        self.is_fixed_sent = false;
    }

    fn has_control(&self) -> bool {
        self.has_fixed_content()
    }

    fn take_control(&mut self, out: &mut Vec<u8>) {
        if !self.has_fixed_content() {
            return;
        }
        self.is_fixed_sent = true;
        // An empty DATA frame would only cost bytes: the end of the stream ends the request.
        if let Some(content) = self.request.content.as_ref().filter(|all| !all.is_empty()) {
            frame::write_data_head(content.len() as u64, out);
            out.extend_from_slice(content);
        }
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if !piece.is_empty() {
            frame::write_data_head(piece.len() as u64, out);
            out.extend_from_slice(piece);
        }
    }

    fn write_content_end(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
        if !trailers.is_empty() {
            self.write_section(&[], trailers, out);
        }
    }

    fn begin_response(&mut self) {
        self.reader = new_reader();
        self.response.clear();
        self.has_ended = false;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        let (event, used) = self.reader.next_event(input).map_err(frame_fault)?;
        match event {
            // What the reader has taken must be reported, or the exchange would present it again.
            H3Event::More if used == 0 => Ok(HeadProgress::Partial),
            H3Event::More | H3Event::Unknown { .. } => Ok(HeadProgress::Interim(used)),
            H3Event::Head(block) => {
                let mut invalid = None;
                decode(&mut self.decoder, block, |field| {
                    if invalid.is_none() {
                        invalid = store_field(&field, head);
                    }
                })?;
                if let Some(fault) = invalid {
                    return Err(fault);
                }
                let is_head = self.request.is_head(request);
                let progress = self.response.accept_head(head, is_head, false, used)?;
                match progress {
                    HeadProgress::Interim(_) => self.reader.expect_another_head(),
                    HeadProgress::Complete(_) => warn_of_repeated(request, head),
                    HeadProgress::Partial => {}
                }
                Ok(progress)
            }
            _ => Err(unexpected_frame()),
        }
    }

    fn content_length(&self) -> ContentLength {
        self.response.content_length()
    }

    fn read_content(
        &mut self,
        _request: &Request,
        input: &[u8],
    ) -> Result<ChunkPiece, ProtocolFault> {
        if input.is_empty() {
            return Ok(ChunkPiece::More);
        }
        let (event, used) = self.reader.next_event(input).map_err(frame_fault)?;
        match event {
            // Frames of unknown types are skipped wherever they stand (RFC 9114, section 9).
            H3Event::More | H3Event::Unknown { .. } => Ok(ChunkPiece::Data(used..used)),
            H3Event::Data { bytes, .. } => {
                let length = bytes.len();
                self.response.count_content(length)?;
                // The event ends with the piece.
                Ok(ChunkPiece::Data(used - length..used))
            }
            H3Event::Trailers(block) => {
                let (mut invalid, trailers) = (None, &mut self.response.trailers);
                decode(&mut self.decoder, block, |field| {
                    invalid = invalid.take().or_else(|| check_trailer(&field));
                    trailers.push(field.name, field.value);
                })?;
                match invalid {
                    Some(fault) => Err(fault),
                    None => Ok(ChunkPiece::Data(used..used)),
                }
            }
            _ => Err(unexpected_frame()),
        }
    }

    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        // A stream that ends within a frame, or before the content that was announced, is a response cut off.
        self.reader.finish().map_err(frame_fault)?;
        self.response.check_end()?;
        self.has_ended = true;
        Ok(())
    }

    fn trailers(&self) -> Option<&Fields> {
        Some(&self.response.trailers)
    }

    fn passes_trailers(&self) -> bool {
        self.profile.passes_trailers()
    }

    fn request_traits(&self) -> RequestTraits {
        self.request.traits()
    }

    fn keeps_alive(&self) -> bool {
        self.has_ended
    }

    fn map_field(
        &mut self,
        request: &mut Request,
        field: KnownField,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        self.profile.map_field(request, field, value, out)
    }
}
