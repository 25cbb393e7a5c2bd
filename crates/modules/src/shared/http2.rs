//! HTTP/2 as an upstream protocol (RFC 9113): what `grpc_pass` and `proxy_http_version 2` share.
//!
//! A connection carries one request at a time and is then kept for the next, as with HTTP/1;
//! concurrent requests use further connections, so pools, balancing and `max_conns` work as for
//! every other protocol. The connection's state ([`H2ClientConnection`]) travels with it between requests. What
//! to request is up to the [`StreamProfile`].

use std::ops::Range;

use bstr::BStr;
use http::Request;
use http::upstream::{
    CarriedState, ChunkPiece, ContentLength, HeadProgress, NoResponse, ProtocolFault,
    RequestLength, RequestTraits, ShownFields, UpstreamProtocol,
};
use proto::KnownField;
use proto::fields::Fields;
use proto::h2::ErrorCode;
use proto::h2::client::{ClientError, H2ClientConnection, OutgoingHead, ResponseEvent};
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, MAX_FRAME_SIZE_DEFAULT};
use proto::message::ResponseHead;

use super::gateway::response::warn_of_repeated;
use super::stream_response::{MAX_LIST, StreamResponse, check_trailer, store_field};
use super::streamed_request::{StreamProfile, StreamedRequest};

/// How much of a fixed body is framed at a time, in bytes.
const PIECE: usize = 64 * 1024;

/// One request and its response.
pub(crate) struct Http2Exchange<S> {
    /// The module's side.
    profile: S,
    request: StreamedRequest,
    /// The content that the request announces.
    content: RequestLength,
    /// The connection's state, from the beginning of the request until it goes back with the
    /// connection.
    client: Option<Box<H2ClientConnection>>,
    /// How much of the fixed body has been framed on this connection, in bytes. Another try starts
    /// over.
    framed: u64,
    response: StreamResponse,
    /// The beginning of an incomplete frame. The exchange hands out input only once, so an
    /// incomplete rest has to be kept here.
    partial_frame: Vec<u8>,
    /// Padding that follows the last piece of content, in bytes.
    padding_left: usize,
    /// Something unexpected followed the response, so the connection cannot be reused.
    is_unusable: bool,
}

impl<S: StreamProfile> Http2Exchange<S> {
    pub(crate) fn new(profile: S) -> Http2Exchange<S> {
        Http2Exchange {
            profile,
            request: StreamedRequest::default(),
            content: RequestLength::None,
            client: None,
            framed: 0,
            response: StreamResponse::default(),
            partial_frame: Vec::new(),
            padding_left: 0,
            is_unusable: false,
        }
    }

    /// The connection's state. The exchange begins a request before it reads or writes, so it is
    /// there; if not, that is a fault of ours and fails this exchange only.
    fn client(&mut self) -> Result<&mut H2ClientConnection, ProtocolFault> {
        self.client
            .as_deref_mut()
            .ok_or_else(|| ProtocolFault::new("no request was begun"))
    }

    /// The part of the fixed body that has not been framed.
    fn unsent_fixed_content(&self) -> &[u8] {
        let content = self.request.content.as_deref().unwrap_or_default();
        let from = usize::try_from(self.framed).unwrap_or(usize::MAX);
        content.get(from..).unwrap_or_default()
    }

    /// Reads one event from the part of the stream that carries content.
    fn content_event(&mut self, input: &[u8]) -> Result<ContentEvent, ProtocolFault> {
        let mut trailers = std::mem::take(&mut self.response.trailers);
        let mut invalid = None;
        let result = self.client()?.next_event(input, |field| {
            invalid = invalid.take().or_else(|| check_trailer(&field));
            trailers.push(field.name, field.value);
        });
        // Taken out above, because the closure would borrow them together with the connection.
        self.response.trailers = trailers;
        let (incoming, used) = result.map_err(client_fault)?;
        Ok(match incoming {
            ResponseEvent::More => ContentEvent::More(used),
            ResponseEvent::Control => ContentEvent::Skip(used),
            ResponseEvent::Data { bytes, .. } => {
                // The slice lies within the input, so its position there follows from the
                // addresses.
                let begin = bytes.as_ptr() as usize - input.as_ptr() as usize;
                self.response.count_content(bytes.len())?;
                ContentEvent::Data(begin..begin + bytes.len(), used)
            }
            // A second block of fields is the trailers; it has to end the stream (RFC 9113, section 8.1).
            ResponseEvent::Head { end } => match invalid {
                Some(fault) => return Err(fault),
                None if !end => {
                    return Err(ProtocolFault::new(
                        "upstream sent trailer without end stream flag",
                    ));
                }
                None => ContentEvent::Skip(used),
            },
            ResponseEvent::Reset(code) => return Err(reset_fault(code)),
            ResponseEvent::Gone(code) => return Err(goaway_fault(code)),
        })
    }

    /// The stream has ended. Examines what else has arrived on the connection.
    fn after_end(&mut self, input: &[u8]) -> Result<ChunkPiece, ProtocolFault> {
        // RFC 9113, section 8.1.1: content shorter than announced is malformed, although the stream has ended in
        // order.
        self.response.check_end()?;
        let mut rest = input;
        while !rest.is_empty() {
            match self
                .client()?
                .next_event(rest, |_| {})
                .map_err(client_fault)?
            {
                (ResponseEvent::Control, used) => rest = &rest[used..],
                // The server needed no more of the request; the response is complete nevertheless
                // (RFC 9113, section 8.1).
                (ResponseEvent::Reset(ErrorCode::NO_ERROR), used) => rest = &rest[used..],
                (ResponseEvent::Reset(code), _) => return Err(reset_fault(code)),
                _ => {
                    // Frames of a stream that is over. Rather than guess what the server means, do
                    // not reuse the connection.
                    self.is_unusable = true;
                    break;
                }
            }
        }
        Ok(ChunkPiece::End(input.len()))
    }

    /// Continues a frame whose beginning was kept.
    fn continue_frame(&mut self, input: &[u8]) -> Result<ChunkPiece, ProtocolFault> {
        let missing = bytes_missing(&self.partial_frame);
        let take = missing.min(input.len());
        self.partial_frame.extend_from_slice(&input[..take]);
        if take < missing {
            return Ok(ChunkPiece::More);
        }
        let mut carry = std::mem::take(&mut self.partial_frame);
        match self.content_event(&carry)? {
            // It contains no content: only as much as the frame's head, and the length of its
            // padding, was gathered.
            ContentEvent::Data(_, used) | ContentEvent::Skip(used) | ContentEvent::More(used) => {
                carry.drain(..used);
            }
        }
        self.partial_frame = carry;
        Ok(ChunkPiece::Data(take..take))
    }
}

/// One event while content is read, with the number of bytes of input it used.
enum ContentEvent {
    // The rest of the input is incomplete.
    More(usize),
    // A frame without content.
    Skip(usize),
    /// A piece of content, and the input it used including the frame around it.
    Data(Range<usize>, usize),
}

/// How many bytes are missing until the kept ones can be read: a whole frame, or the head of one
/// whose payload may pass in pieces.
fn bytes_missing(carry: &[u8]) -> usize {
    let Some((bytes, _)) = carry.split_first_chunk::<HEAD_LENGTH>() else {
        return HEAD_LENGTH - carry.len();
    };
    let head = FrameHead::parse(bytes);
    let payload = match head.kind {
        // One byte, the length of the padding (section 6.1), comes before the content.
        frame::kind::DATA => 1,
        _ => head.length as usize,
    };
    (HEAD_LENGTH + payload).saturating_sub(carry.len()).max(1)
}

impl<S: StreamProfile> UpstreamProtocol for Http2Exchange<S> {
    fn scheme(&self) -> &'static str {
        self.profile.scheme()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.profile.secure_host()
    }

    fn dialect(&self) -> &'static str {
        "h2"
    }

    fn is_framed(&self) -> bool {
        true
    }

    fn least_buffer(&self) -> usize {
        HEAD_LENGTH + MAX_FRAME_SIZE_DEFAULT as usize
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        _out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        self.content = self.request.fill(&mut self.profile, request, content)?;
        Ok(())
    }

    fn shown_fields(&self, _: &[u8]) -> ShownFields {
        self.request.shown_fields()
    }

    fn begin_request(&mut self, carried: Option<CarriedState>, out: &mut Vec<u8>) {
        // A reused connection brings its state along, most of all the HPACK table.
        let known = carried.and_then(|carried| carried.downcast::<H2ClientConnection>().ok());
        let mut client = known.unwrap_or_else(|| Box::new(H2ClientConnection::new(MAX_LIST)));
        let head = OutgoingHead {
            method: &self.request.method,
            scheme: self.request.scheme.as_bytes(),
            path: &self.request.path,
            authority: &self.request.authority,
            fields: &self.request.fields,
        };
        // Then the head itself ends the stream, which saves an empty DATA frame.
        let is_empty = matches!(self.content, RequestLength::None | RequestLength::Length(0));
        client.begin_request(head, is_empty, out);
        self.client = Some(client);
        self.framed = 0;
    }

    fn take_carried_state(&mut self) -> Option<CarriedState> {
        self.client.take().map(|client| client as CarriedState)
    }

    fn send_window(&self) -> usize {
        self.client
            .as_ref()
            .map_or(0, |client| client.send_window())
    }

    fn has_control(&self) -> bool {
        self.client.as_ref().is_some_and(|client| {
            client.has_control()
                || client.send_window() > 0 && !self.unsent_fixed_content().is_empty()
        })
    }

    fn take_control(&mut self, out: &mut Vec<u8>) {
        let Some(mut client) = self.client.take() else {
            return;
        };
        // Control frames first: an unanswered PING or SETTINGS must not wait for the flow-control window.
        client.take_control(out);
        let fixed = self.unsent_fixed_content();
        let piece = &fixed[..fixed.len().min(client.send_window()).min(PIECE)];
        client.append_content(piece, piece.len() == fixed.len(), out);
        self.framed += piece.len() as u64;
        self.client = Some(client);
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if let Some(client) = &mut self.client {
            client.append_content(piece, false, out);
        }
    }

    fn write_last_content(&mut self, piece: &[u8], trailers: &Fields, out: &mut Vec<u8>) {
        if let Some(client) = &mut self.client {
            client.append_content(piece, trailers.is_empty(), out);
            client.end_request(trailers, out);
        }
    }

    fn write_content_end(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
        if let Some(client) = &mut self.client {
            client.end_request(trailers, out);
        }
    }

    fn begin_response(&mut self) {
        self.response.clear();
        self.partial_frame.clear();
        self.padding_left = 0;
        self.is_unusable = false;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        let mut invalid = None;
        let result = self.client()?.next_event(input, |field| {
            if invalid.is_none() {
                invalid = store_field(&field, head);
            }
        });
        let (incoming, used) = result.map_err(client_fault)?;
        if let Some(fault) = invalid {
            return Err(fault);
        }
        match incoming {
            // What was consumed must be reported even without a head, or the exchange would present
            // it again.
            ResponseEvent::More if used == 0 => Ok(HeadProgress::Partial),
            ResponseEvent::More | ResponseEvent::Control => Ok(HeadProgress::Interim(used)),
            ResponseEvent::Head { end } => {
                let is_head = self.request.is_head(request);
                let progress = self.response.accept_head(head, is_head, end, used)?;
                if let HeadProgress::Complete(_) = progress {
                    warn_of_repeated(request, head);
                }
                Ok(progress)
            }
            ResponseEvent::Data { .. } => Err(ProtocolFault::new(
                "upstream sent unexpected http2 frame: 0",
            )),
            ResponseEvent::Reset(code) => Err(reset_fault(code)),
            ResponseEvent::Gone(code) => Err(goaway_fault(code)),
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
        // Before anything else: padding belongs to the frame whose content was handed out last.
        if self.padding_left > 0 {
            let n = self.padding_left.min(input.len());
            self.padding_left -= n;
            return Ok(match n {
                0 => ChunkPiece::More,
                n => ChunkPiece::Data(n..n),
            });
        }
        if self.client()?.has_ended() {
            return self.after_end(input);
        }
        if input.is_empty() {
            return Ok(ChunkPiece::More);
        }
        if !self.partial_frame.is_empty() {
            return self.continue_frame(input);
        }
        Ok(match self.content_event(input)? {
            ContentEvent::More(used) => {
                self.partial_frame.extend_from_slice(&input[used..]);
                ChunkPiece::More
            }
            ContentEvent::Skip(used) => ChunkPiece::Data(used..used),
            ContentEvent::Data(range, used) => {
                self.padding_left = used - range.end;
                ChunkPiece::Data(range)
            }
        })
    }

    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        // HTTP/2 ends responses by a flag, never by closing the connection.
        Err(ProtocolFault::new("upstream prematurely closed connection"))
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
        let is_free = self.client.as_ref().is_some_and(|client| client.is_free());
        // A fixed body that was not sent in full leaves its stream open, and the connection with it.
        is_free && !self.is_unusable && self.unsent_fixed_content().is_empty()
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

/// The fault of a stream that the server has reset.
fn reset_fault(code: ErrorCode) -> ProtocolFault {
    let message = format!("upstream rejected request with error {}", code.0);
    match code {
        // The server guarantees that it has not processed the request (RFC 9113, section 8.7), so
        // another try is safe for every method.
        ErrorCode::REFUSED_STREAM => ProtocolFault::request_unseen(message),
        _ => ProtocolFault::new(message),
    }
}

/// The fault of a stream that the server's GOAWAY leaves out.
fn goaway_fault(code: ErrorCode) -> ProtocolFault {
    let message = format!("upstream sent goaway with error {}", code.0);
    match code {
        // A graceful shutdown that crossed our request: it was not processed (section 6.8).
        ErrorCode::NO_ERROR => ProtocolFault::request_unseen(message),
        _ => ProtocolFault::new(message),
    }
}

/// The log line of a connection error.
fn client_fault(error: ClientError) -> ProtocolFault {
    ProtocolFault::new(match error {
        ClientError::Peer(error) => format!("upstream sent {}", error.what),
        ClientError::UnknownStream(stream) => {
            format!("upstream sent frame for unknown stream {stream}")
        }
        ClientError::ClosedStream(stream) => {
            format!("upstream sent frame for closed stream {stream}")
        }
        ClientError::Push => "upstream sent unexpected push promise frame".to_owned(),
    })
}
