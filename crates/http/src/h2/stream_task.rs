//! The task of a stream: what HTTP/2 does in the life of its request ([`crate::lifecycle`]).

use std::borrow::Cow;
use std::rc::Rc;

use bstr::BStr;
use host::error_log::Level;
use proto::Known;
use proto::h2::{ErrorCode, Malformed};
use proto::message::{Method, Reject, RejectKind};

use super::body::Input;
use super::sender::{self, Sender};
use super::stream::Stream;
use crate::body::Body;
use crate::body_reader::RequestBody;
use crate::client_stream::ClientStream;
use crate::lifecycle::{self, Refusal, RequestCarrier};
use crate::request::Request;
use crate::sending::SendError;

/// What a stream begins with.
pub(super) struct StreamStart {
    /// The request, of which only the head is there.
    pub(super) request: Box<Request>,
    pub(super) verdict: Result<(), Malformed>,
    pub(super) about: HeadFacts,
}

/// What the head does not say.
pub(super) struct HeadFacts {
    pub(super) protocol: ConnectProtocol,
    /// Something may follow the head: it did not end the client's side.
    pub(super) has_content: bool,
    /// Names of fields that were ignored.
    pub(super) ignored: Vec<Vec<u8>>,
}

/// What the client wants to speak on the stream after its request (RFC 8441).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectProtocol {
    /// Nothing else.
    None,
    WebSocket,
    Unknown,
}

/// Closes the stream however its task ends.
struct OpenStream(Rc<Stream>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let link = &self.0.link;
        link.ended.set(true);
        if !self.0.is_gone() {
            link.served.set(link.served.get() + 1);
            link.completed.set(link.completed.get().saturating_add(1));
        }
        self.0.close();
    }
}

/// Serves the request of a stream.
pub(super) async fn serve_stream(stream: Rc<Stream>, start: StreamStart) {
    let open = OpenStream(Rc::clone(&stream));
    let StreamStart {
        mut request,
        verdict,
        about,
    } = start;
    let link = &stream.link;
    lifecycle::begin(&link.http, &mut request, link.client.first_server());
    request.stream = Rc::clone(&stream) as Rc<dyn ClientStream>;
    if host::error_log::debug_is_on() {
        debug_head(&request);
    }
    let mut carrier = StreamCarrier {
        stream: &stream,
        is_malformed: verdict.is_err(),
        about,
        announced: None,
    };
    let verdict = verdict.map_err(refusal_of);
    lifecycle::serve(&mut carrier, &mut request, verdict).await;
    request.end();
    // The stream holds the connection, and the connection keeps the request.
    request.stream = stream.link.client.stream();
    drop(open);
    stream.link.keep(request);
}

fn refusal_of(malformed: Malformed) -> Refusal {
    Refusal::Protocol(malformed.status, Cow::Owned(malformed.line))
}

/// One stream in the life of its request.
struct StreamCarrier<'a> {
    stream: &'a Rc<Stream>,
    about: HeadFacts,
    /// The length that the client announced, if it did.
    announced: Option<u64>,
    /// The request breaks a rule of RFC 9113, section 8.1.1: its client gets an answer and the error.
    is_malformed: bool,
}

impl StreamCarrier<'_> {
    /// Notes the length that the client announced; it must be right as far as that can be told already.
    fn take_length(&mut self, request: &Request) -> Result<(), Refusal> {
        let Some(value) = request.head.wire.fields.get_known(Known::ContentLength) else {
            return Ok(());
        };
        let Some(length) = proto::message::parse_length(value) else {
            return Err(Reject::new(RejectKind::InvalidContentLength).into());
        };
        self.stream.announce(length);
        if length > 0 && !self.about.has_content {
            self.is_malformed = true;
            let line = &b"client prematurely closed stream"[..];
            return Err(Refusal::Protocol(400, line.into()));
        }
        self.announced = Some(length);
        Ok(())
    }

    /// The client has its answer; that the stream was in error it learns too (RFC 9113, section 8.1.1).
    fn reset_if_malformed(&self) {
        if self.is_malformed {
            self.stream.reset(ErrorCode::PROTOCOL_ERROR);
        }
    }
}

impl RequestCarrier for StreamCarrier<'_> {
    type End = ();

    const HAS_REQUEST_LINE: bool = false;

    fn choose_server(&mut self, request: &mut Request) -> Result<(), Reject> {
        let mut last = self.stream.link.last_server.borrow_mut();
        last.choose_server(request)
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), Refusal> {
        let speaks = request.site.server(request.server).core.http2.on;
        if !speaks && !request.client.endpoint.borrow().http2 {
            let why = b"client attempted to request the server name for which the negotiated protocol is disabled";
            return Err(Refusal::Protocol(421, why.into()));
        }
        for name in &self.about.ignored {
            request.log(
                Level::Info,
                format_args!(
                    "client sent invalid header: \"{}\" while reading client request headers",
                    BStr::new(name)
                ),
            );
        }
        self.take_length(request)?;
        match (request.method, self.about.protocol) {
            (_, ConnectProtocol::Unknown) => {
                let why = b"client sent unknown :protocol header";
                Err(Refusal::Protocol(501, why.into()))
            }
            (Method::Connect, ConnectProtocol::None) => {
                Err(Reject::new(RejectKind::ConnectNotAllowed).into())
            }
            (Method::Trace, _) => Err(Reject::new(RejectKind::TraceNotAllowed).into()),
            _ => Ok(()),
        }
    }

    fn attach_content(&mut self, request: &mut Request) {
        // A WebSocket's bytes are no content: they belong to whatever answers the request.
        let is_websocket = self.about.protocol == ConnectProtocol::WebSocket;
        if is_websocket || !self.about.has_content && self.announced.is_none() {
            return;
        }
        let expectation = request.head.wire.fields.get_known(Known::Expect);
        let expects = expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        let input = Input::new(Rc::clone(self.stream), self.announced, expects);
        request.body = RequestBody::from_input(Box::new(input));
    }

    /// It may have been reset in the same breath as it was begun.
    fn is_given_up(&self) -> bool {
        self.stream.is_gone()
    }

    /// The rest of the content holds up no other request: only its length is judged, and the response is sent all the same.
    async fn settle_content(&mut self, _: &mut Request) -> Result<(), u16> {
        self.is_malformed = self.stream.length_fault().is_some();
        Ok(())
    }

    /// As on HTTP/1: a client that is silent gets no answer but the end.
    fn end_silently(&mut self, request: &mut Request) {
        self.stream.reset(match request.out.status {
            408 => ErrorCode::PROTOCOL_ERROR,
            _ => ErrorCode::INTERNAL_ERROR,
        });
        self.reset_if_malformed();
    }

    async fn send(&mut self, request: &mut Request) -> Result<(), SendError> {
        if self.stream.is_gone() {
            request.out.body = Body::Empty;
            return Err(SendError::ClientLeft);
        }
        if is_refused_websocket(request) {
            request.log(
                Level::Info,
                format_args!("client sent CONNECT for a WebSocket where none is configured"),
            );
            request.out.status = 501;
            request.out.content_length = None;
            request.out.body = Body::Empty;
        }
        request.ledger.responded = Some(rt::now());
        match sender::send_at_once(request, self.stream) {
            Some(()) => Ok(()),
            None => Sender::new(request, self.stream).send(request).await,
        }
    }

    async fn after_response(&mut self, request: &mut Request) {
        request.ledger.complete = true;
        self.reset_if_malformed();
    }

    fn after_failure(&mut self, request: &mut Request, error: SendError) {
        match error {
            SendError::TimedOut => self.stream.reset(ErrorCode::PROTOCOL_ERROR),
            // It is reset, or the connection is over.
            SendError::ClientLeft | SendError::Failed(_) => {}
            SendError::Body(_) => self.stream.reset(match request.delivery.is_upgraded() {
                // The other end's TCP connection was reset (RFC 8441, section 5).
                true => ErrorCode::CANCEL,
                false => ErrorCode::INTERNAL_ERROR,
            }),
        }
        self.reset_if_malformed();
    }

    fn closing_words((): &()) -> &'static str {
        "http close request"
    }
}

fn debug_head(request: &Request) {
    let wire = &request.head.wire;
    request.debug(format_args!(
        "http2 request line: \"{}\"",
        BStr::new(wire.request_line())
    ));
    for (name, value) in wire.fields.iter() {
        request.debug(format_args!(
            "http2 header: \"{}: {}\"",
            BStr::new(name),
            BStr::new(value)
        ));
    }
}

/// Whether a client that asked for a WebSocket (RFC 8441) would take the answer, a page, for an open one.
fn is_refused_websocket(request: &Request) -> bool {
    // Clients of HTTP/2 cannot send this field: it stands for `:protocol`.
    let asked = request.head.wire.fields.has(Known::Upgrade);
    asked && !request.delivery.is_upgraded() && (200..300).contains(&request.out.status)
}
