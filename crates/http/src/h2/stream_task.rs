//! The task of a stream: what HTTP/2 does in the life of its request ([`crate::lifecycle`]).

use std::rc::Rc;

use proto::KnownField;
use proto::h2::ErrorCode;
use proto::message::RejectedHead;

use super::body::Http2BodyInput;
use super::sender::{self, Http2Sender};
use super::stream::Http2Stream;
use crate::body_reader::RequestBody;
use crate::client_stream::ClientStream;
use crate::lifecycle::{self, RequestCarrier, RequestRefusal};
use crate::request::Request;
use crate::response_body::ResponseBody;
use crate::response_send::ResponseSendError;
use crate::stream_request::{
    ConnectProtocol, StreamHeadFacts, StreamStart, announced_length, debug_head, misdirected,
    refusal_of, refuse_websocket,
};
use crate::stream_tasks::StreamTask;

/// Closes the stream however its task ends: a panic or an abort must not leave it open for the client.
struct OpenStream(Rc<Http2Stream>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let link = &self.0.link;
        link.has_ended_tasks.set(true);
        // Only a request that ran to its end earns the client credit: see [`crate::client_budget`].
        if !self.0.is_gone() {
            link.served.set(link.served.get() + 1);
            link.completed.set(link.completed.get().saturating_add(1));
        }
        self.0.close_stream();
    }
}

/// Serves one stream of a connection after another.
pub(super) async fn serve_streams(serving: Rc<StreamTask<(Rc<Http2Stream>, StreamStart)>>) {
    loop {
        let (stream, start) = serving.next().await;
        let link = Rc::clone(&stream.link);
        serve_stream(stream, start).await;
        if !link.tasks.keep_task(&serving) {
            return;
        }
    }
}

/// Serves the request of a stream, from its head to its last log line.
async fn serve_stream(stream: Rc<Http2Stream>, start: StreamStart) {
    let open = OpenStream(Rc::clone(&stream));
    let StreamStart {
        mut request,
        verdict,
        about,
    } = start;
    let link = &stream.link;
    lifecycle::start_request(&link.http, &mut request, link.client.first_server());
    request.stream = Rc::clone(&stream) as Rc<dyn ClientStream>;
    if host::error_log::debug_is_on() {
        debug_head(&request, "http2");
    }
    // A malformed request is served nonetheless: it gets a response with its error page, as from nginx, and then the
    // reset.
    let mut carrier = StreamCarrier {
        stream: &stream,
        is_malformed: verdict.is_err(),
        about,
        announced: None,
    };
    let verdict = verdict.map_err(refusal_of);
    lifecycle::run_lifecycle(&mut carrier, &mut request, verdict).await;
    request.end();
    // The kept request must not refer to its stream: the stream holds the connection, which holds the kept request, and
    // the circle would never be freed.
    request.stream = stream.link.client.stream();
    // The stream is closed before the struct is offered to the next one.
    drop(open);
    stream.link.keep_spare_request(request);
}

/// The part of one stream in the life of its request.
struct StreamCarrier<'a> {
    stream: &'a Rc<Http2Stream>,
    about: StreamHeadFacts,
    /// `Content-Length`, if the client sent it.
    announced: Option<u64>,
    /// The request breaks a rule of RFC 9113, section 8.1.1: after the response its stream is reset.
    is_malformed: bool,
}

impl StreamCarrier<'_> {
    /// Notes `Content-Length`, and compares it with what is already known of the content.
    fn take_length(&mut self, request: &Request) -> Result<(), RequestRefusal> {
        let Some(length) = announced_length(request)? else {
            return Ok(());
        };
        self.stream.announce_length(length);
        // The client has ended the stream without content: the sum of its DATA frames cannot equal the length any more
        // (RFC 9113, section 8.1.1).
        if length > 0 && !self.about.has_content {
            self.is_malformed = true;
            let line = &b"client prematurely closed stream"[..];
            return Err(RequestRefusal::Protocol(400, line.into()));
        }
        self.announced = Some(length);
        Ok(())
    }

    /// The client has a response; the reset tells it that the fault was its own (RFC 9113, section 8.1.1).
    fn reset_if_malformed(&self) {
        if self.is_malformed {
            self.stream.reset_stream(ErrorCode::PROTOCOL_ERROR);
        }
    }
}

impl RequestCarrier for StreamCarrier<'_> {
    type End = ();

    const HAS_REQUEST_LINE: bool = false;

    fn choose_server(&mut self, request: &mut Request) -> Result<(), RejectedHead> {
        let mut last = self.stream.link.last_server.borrow_mut();
        last.choose_server(request)
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), RequestRefusal> {
        // The connection was opened to the server that TLS named. A request on it may name another server, for which
        // `http2` is off.
        let speaks = request.site.server(request.server).core.http2.on;
        if !speaks && !request.client.endpoint.borrow().http2 {
            return Err(misdirected());
        }
        self.about.log_ignored(request);
        self.take_length(request)?;
        self.about.check_method(request)
    }

    fn attach_content(&mut self, request: &mut Request) {
        // The bytes of a WebSocket are not content: they belong to the handler that answers the request.
        let is_websocket = self.about.protocol == ConnectProtocol::WebSocket;
        if is_websocket || !self.about.has_content && self.announced.is_none() {
            return;
        }
        let expectation = request.head.wire.fields.get_known(KnownField::Expect);
        let expects = expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        let input = Http2BodyInput::new(Rc::clone(self.stream), self.announced, expects);
        request.body = RequestBody::from_input(Box::new(input));
    }

    /// A client may reset a stream right behind its HEADERS frame ("rapid reset", CVE-2023-44487): the task then runs
    /// only after both frames have been read.
    fn is_given_up(&self) -> bool {
        self.stream.is_gone()
    }

    /// Other streams do not wait for the rest of this content. Only its length is judged, and the response is sent all
    /// the same.
    async fn settle_content(&mut self, _: &mut Request) -> Result<(), u16> {
        self.is_malformed = self.stream.length_fault().is_some();
        Ok(())
    }

    /// As on HTTP/1 the client gets no response, only the end of the stream.
    fn end_silently(&mut self, request: &mut Request) {
        self.stream.reset_stream(match request.out.status {
            408 => ErrorCode::PROTOCOL_ERROR,
            _ => ErrorCode::INTERNAL_ERROR,
        });
        self.reset_if_malformed();
    }

    async fn send(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        if self.stream.is_gone() {
            request.out.body = ResponseBody::Empty;
            return Err(ResponseSendError::ClientLeft);
        }
        refuse_websocket(request);
        request.times.responded = Some(rt::now());
        match sender::send_at_once(request, self.stream) {
            Some(()) => Ok(()),
            None => Http2Sender::new(request, self.stream).send(request).await,
        }
    }

    async fn after_response(&mut self, request: &mut Request) {
        request.times.complete = true;
        self.reset_if_malformed();
    }

    fn after_failure(&mut self, request: &mut Request, error: ResponseSendError) {
        match error {
            // The code that nginx uses for it.
            ResponseSendError::TimedOut => self.stream.reset_stream(ErrorCode::PROTOCOL_ERROR),
            // The stream has been reset already, or the connection is over.
            ResponseSendError::ClientLeft | ResponseSendError::Failed(_) => {}
            ResponseSendError::Body(_) => {
                self.stream
                    .reset_stream(match request.delivery.is_upgraded() {
                        // The tunnel's TCP connection to the other end was reset (RFC 8441, section 5).
                        true => ErrorCode::CANCEL,
                        false => ErrorCode::INTERNAL_ERROR,
                    })
            }
        }
        self.reset_if_malformed();
    }

    fn closing_words((): &()) -> &'static str {
        "http close request"
    }
}
