//! The task of a stream: it reads the head of its request, and is HTTP/3's part in the request's life
//! ([`crate::lifecycle`]).

use std::rc::Rc;
use std::time::Duration;

use host::error_log::LogLevel;
use proto::KnownField;
use proto::h3::H3ErrorCode;
use proto::message::{Method, RejectedHead};

use super::body::Http3BodyInput;
use super::request_head::Http3Start;
use super::sender::Http3Sender;
use super::stream::Http3Stream;
use crate::body_reader::RequestBody;
use crate::client_stream::ClientStream;
use crate::lifecycle::{self, RequestCarrier, RequestRefusal};
use crate::request::Request;
use crate::response_body::ResponseBody;
use crate::response_send::ResponseSendError;
use crate::stream_request::{
    ConnectProtocol, StreamHeadFacts, announced_length, debug_head, misdirected, refusal_of,
    refuse_websocket,
};
use crate::stream_tasks::StreamTask;

/// Closes the stream however its task ends: a panic or an abort must not leave it open for the client.
struct OpenHttp3Stream(Rc<Http3Stream>);

impl Drop for OpenHttp3Stream {
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
pub(super) async fn serve_streams(serving: Rc<StreamTask<Rc<Http3Stream>>>) {
    loop {
        let stream = serving.next().await;
        let link = Rc::clone(&stream.link);
        serve_stream(stream).await;
        if !link.tasks.keep_task(&serving) {
            return;
        }
    }
}

/// Serves the request of a stream, from its first byte to its last log line.
async fn serve_stream(stream: Rc<Http3Stream>) {
    let open = OpenHttp3Stream(Rc::clone(&stream));
    let Some(start) = read_head(&stream).await else {
        return;
    };
    let Http3Start {
        mut request,
        verdict,
        mut facts,
        priority: _,
    } = start;
    facts.has_content = stream.may_have_content();
    let link = &stream.link;
    // An attacker with a copy of the packets can send them again before the handshake is complete. What such a repetition may
    // change waits for that (RFC 8470, section 4).
    if stream.is_early() && !is_safe(request.head.wire.method) {
        link.wait_for_handshake().await;
    }
    lifecycle::start_request(&link.http, &mut request, link.client.first_server());
    if let Some(remote) = link.present_remote() {
        request.remote = remote;
    }
    request.stream = Rc::clone(&stream) as Rc<dyn ClientStream>;
    if host::error_log::debug_is_on() {
        debug_head(&request, "http3");
    }
    let mut carrier = Http3Carrier {
        stream: &stream,
        is_malformed: verdict.is_err(),
        facts,
        announced: None,
    };
    // A malformed request is served nonetheless: it gets a response with its error page, as from nginx.
    let verdict = verdict.map_err(refusal_of);
    lifecycle::run_lifecycle(&mut carrier, &mut request, verdict).await;
    request.end();
    // The kept request must not refer to its stream: the stream holds the connection, which holds the kept request, and
    // the circle would never be freed.
    request.stream = link.client.stream();
    // The stream is closed before the struct is offered to the next one.
    drop(open);
    link.keep_spare_request(request);
}

/// Whether a method changes nothing (RFC 9110, section 9.2.1).
fn is_safe(method: Method) -> bool {
    matches!(method, Method::Get | Method::Head | Method::Options)
}

/// Reads the head of the request. `None`: there will be no request; why has been logged, and the stream is reset.
async fn read_head(stream: &Rc<Http3Stream>) -> Option<Http3Start> {
    let link = &stream.link;
    let timeout: Duration = link.limits.borrow().header_timeout;
    let timer = rt::Timer::new();
    let head = std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(head) = stream.poll_head(context) {
            return std::task::Poll::Ready(Some(head));
        }
        // A client that cancels a request whose head has not come. Reading shows a reset.
        if stream.poll_left(context).is_ready() {
            return std::task::Poll::Ready(Some(Err(super::stream::Http3StreamOver)));
        }
        if !timer.is_set() {
            timer.set(timeout);
        }
        timer.poll_expired(context).map(|()| None)
    })
    .await;
    match head {
        Some(Ok(start)) => Some(start),
        Some(Err(_over)) => None,
        None => {
            link.log(
                LogLevel::Info,
                format_args!(
                    "client timed out (110: Connection timed out) while reading client request headers"
                ),
            );
            stream.reset_stream(H3ErrorCode::GENERAL_PROTOCOL_ERROR);
            None
        }
    }
}

/// The part of one stream in the life of its request.
struct Http3Carrier<'a> {
    stream: &'a Rc<Http3Stream>,
    facts: StreamHeadFacts,
    /// `Content-Length`, if the client sent it.
    announced: Option<u64>,
    /// The request breaks a rule of RFC 9114, section 4.1.2: after the response the client is told so.
    is_malformed: bool,
}

impl Http3Carrier<'_> {
    /// Notes `Content-Length`, and compares it with what is already known of the content.
    fn take_length(&mut self, request: &Request) -> Result<(), RequestRefusal> {
        let Some(length) = announced_length(request)? else {
            return Ok(());
        };
        self.stream.announce_length(length);
        if length > 0 && !self.facts.has_content {
            self.is_malformed = true;
            let line = &b"client prematurely closed stream"[..];
            return Err(RequestRefusal::Protocol(400, line.into()));
        }
        self.announced = Some(length);
        Ok(())
    }
}

impl RequestCarrier for Http3Carrier<'_> {
    type End = ();

    const HAS_REQUEST_LINE: bool = false;

    fn choose_server(&mut self, request: &mut Request) -> Result<(), RejectedHead> {
        let mut last = self.stream.link.last_server.borrow_mut();
        last.choose_server(request)
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), RequestRefusal> {
        // The connection was opened to the server that TLS named. A request on it may name another server, for which
        // `http3` is off.
        if !request.site.server(request.server).core.http3.on {
            return Err(misdirected());
        }
        self.facts.log_ignored(request);
        self.take_length(request)?;
        self.facts.check_method(request)
    }

    fn attach_content(&mut self, request: &mut Request) {
        // The bytes of a WebSocket are not content: they belong to the handler that answers the request.
        let is_websocket = self.facts.protocol == ConnectProtocol::WebSocket;
        if is_websocket || !self.facts.has_content && self.announced.is_none() {
            return;
        }
        let expectation = request.head.wire.fields.get_known(KnownField::Expect);
        let expects = expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        let input = Http3BodyInput::new(Rc::clone(self.stream), self.announced, expects);
        request.body = RequestBody::from_input(Box::new(input));
    }

    fn is_given_up(&self) -> bool {
        self.stream.is_gone()
    }

    /// Other streams do not wait for the rest of this content. Only its length is judged, and the response is sent all
    /// the same.
    async fn settle_content(&mut self, _: &mut Request) -> Result<(), u16> {
        self.is_malformed |= self.stream.length_fault().is_some();
        Ok(())
    }

    /// As on HTTP/1 the client gets no response, only the end of the stream.
    fn end_silently(&mut self, request: &mut Request) {
        self.stream.reset_stream(match request.out.status {
            408 => H3ErrorCode::GENERAL_PROTOCOL_ERROR,
            _ => H3ErrorCode::INTERNAL_ERROR,
        });
    }

    async fn send(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        if self.stream.is_gone() {
            request.out.body = ResponseBody::Empty;
            return Err(ResponseSendError::ClientLeft);
        }
        refuse_websocket(request);
        request.times.responded = Some(rt::now());
        Http3Sender::new(request, self.stream).send(request).await
    }

    async fn after_response(&mut self, request: &mut Request) {
        request.times.complete = true;
        // Not the response itself: a reset would take away what has not been delivered of it.
        if self.is_malformed {
            self.stream.stop_content(H3ErrorCode::MESSAGE_ERROR);
        }
    }

    fn after_failure(&mut self, request: &mut Request, error: ResponseSendError) {
        match error {
            // The code that nginx uses for it.
            ResponseSendError::TimedOut => {
                self.stream
                    .reset_stream(H3ErrorCode::GENERAL_PROTOCOL_ERROR);
            }
            // The stream has been reset already, or the connection is over.
            ResponseSendError::ClientLeft | ResponseSendError::Failed(_) => {}
            ResponseSendError::Body(_) => {
                self.stream
                    .reset_stream(match request.delivery.is_upgraded() {
                        // The tunnel's TCP connection to the other end was reset (RFC 9220, section 3).
                        true => H3ErrorCode::REQUEST_CANCELLED,
                        false => H3ErrorCode::INTERNAL_ERROR,
                    });
            }
        }
    }

    fn closing_words((): &()) -> &'static str {
        "http close request"
    }
}
