//! The task of a stream: its request from the head to the end of the response.

use std::rc::Rc;

use bstr::BStr;
use proto::Known;
use proto::h1::{Method, Reject, RejectKind};
use proto::h2::{ErrorCode, Malformed};
use rt::error_log::Level;

use super::body::Input;
use super::sender::{self, Sender};
use super::stream::Stream;
use crate::body::{Body, BodyError};
use crate::body_reader::RequestBody;
use crate::h1;
use crate::h1::sender::SendError;
use crate::lane::Lane;
use crate::request::Request;
use crate::{log_phase, serve};

/// What a stream begins with.
pub(super) struct Start {
    /// The request, of which only the head is there.
    pub(super) request: Box<Request>,
    pub(super) verdict: Result<(), Malformed>,
    pub(super) about: About,
}

/// What the head does not say.
pub(super) struct About {
    pub(super) protocol: Protocol,
    /// Something may follow the head: it did not end the client's side.
    pub(super) has_content: bool,
    /// Names of fields that were ignored.
    pub(super) ignored: Vec<Vec<u8>>,
}

/// What the client wants to speak on the stream after its request (RFC 8441).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Nothing else.
    None,
    WebSocket,
    Unknown,
}

/// Closes the stream however its task ends.
struct Open(Rc<Stream>);

impl Drop for Open {
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

/// Why a request is answered with a status at once.
enum Refusal {
    Malformed(Malformed),
    Reject(Reject),
    /// A status, and the line for the log.
    Status(u16, &'static str),
}

/// Serves the request of a stream.
pub(super) async fn serve(stream: Rc<Stream>, start: Start) {
    let open = Open(Rc::clone(&stream));
    let Start {
        mut request,
        verdict,
        about,
    } = start;
    begin(&stream, &mut request);
    let checked = check(&mut request, &stream, verdict, about);
    let checked = checked.map_err(|refusal| match refusal {
        Refusal::Reject(reject) => h1::judge_target_first(&mut request, reject).into(),
        other => other,
    });
    let malformed = match checked {
        // The client has given it up in the same breath: nothing needs to be found, opened or asked for it.
        Ok(()) if stream.is_gone() => {
            request.out.status = crate::module::internal_status::CLIENT_CLOSED;
            false
        }
        Ok(()) => {
            serve::serve(&mut request).await;
            stream.length_fault().is_some()
        }
        Err(refusal) => {
            log_refusal(&request, &refusal);
            request.flow.close = true;
            serve::refuse(&mut request, refusal.status()).await;
            matches!(refusal, Refusal::Malformed(_))
        }
    };
    respond(&mut request, &stream).await;
    if malformed {
        // The client has its answer; that the stream was in error it learns too (RFC 9113, section 8.1.1).
        stream.reset(ErrorCode::PROTOCOL_ERROR);
    }
    if log_phase::is_wanted(&request) {
        log_phase::end(&mut request).await;
    }
    request.debug(format_args!("http close request"));
    // What modules hold for a request (a place among those of `limit_conn`) ends with it, not with the connection.
    request.variables.release_shared();
    if let Some(farewell) = request.flow.farewell.take() {
        farewell.await;
    }
    request.end();
    drop(open);
    stream.link.keep(request);
}

/// Makes a complete head a request to the default server of its address.
fn begin(stream: &Rc<Stream>, request: &mut Request) {
    let link = &stream.link;
    link.engine.counters.requests.add(1);
    let server = link.client.first_server();
    request.renew(&link.engine.site(), server);
    request.lane = Some(Rc::clone(stream) as Rc<dyn Lane>);
    request.method = request.head.wire.method;
    request.flow.header_only = request.method == Method::Head;
    if rt::error_log::debug_is_on() {
        debug_head(request);
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

/// The checks that need the whole head, and what follows from it: server, path, content.
fn check(
    request: &mut Request,
    stream: &Rc<Stream>,
    verdict: Result<(), Malformed>,
    about: About,
) -> Result<(), Refusal> {
    // The path comes first: an error page of what is refused here may ask for it.
    let uri = h1::set_uri(request);
    verdict.map_err(Refusal::Malformed)?;
    stream.link.last_host.borrow_mut().choose_server(request)?;
    let speaks = request.site.server(request.server).core.http2.on;
    if !speaks && !request.client.endpoint.borrow().http2 {
        let why = "client attempted to request the server name for which the negotiated protocol is disabled";
        return Err(Refusal::Status(421, why));
    }
    for name in &about.ignored {
        request.log(
            Level::Info,
            format_args!(
                "client sent invalid header: \"{}\" while reading client request headers",
                BStr::new(name)
            ),
        );
    }
    let length = content_length(request, stream, about.has_content)?;
    match (request.method, about.protocol) {
        (_, Protocol::Unknown) => {
            return Err(Refusal::Status(501, "client sent unknown :protocol header"));
        }
        (Method::Connect, Protocol::None) => {
            return Err(Reject::new(RejectKind::ConnectNotAllowed).into());
        }
        (Method::Trace, _) => return Err(Reject::new(RejectKind::TraceNotAllowed).into()),
        _ => {}
    }
    uri?;
    if about.protocol == Protocol::WebSocket || !about.has_content && length.is_none() {
        return Ok(());
    }
    let expectation = request.head.wire.fields.get_known(Known::Expect);
    let expects = expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    let input = Input::new(Rc::clone(stream), length, expects);
    request.body = RequestBody::from_input(Box::new(input));
    Ok(())
}

/// The length that the client announced, if it did; it must be right as far as that can be told already.
fn content_length(
    request: &Request,
    stream: &Stream,
    has_content: bool,
) -> Result<Option<u64>, Refusal> {
    let Some(value) = request.head.wire.fields.get_known(Known::ContentLength) else {
        return Ok(None);
    };
    let Some(length) = proto::h1::body::parse_length(value) else {
        return Err(Reject::new(RejectKind::InvalidContentLength).into());
    };
    stream.announce(length);
    if length > 0 && !has_content {
        return Err(Refusal::Malformed(Malformed {
            status: 400,
            line: b"client prematurely closed stream".to_vec(),
        }));
    }
    Ok(Some(length))
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Refusal {
        Refusal::Reject(reject)
    }
}

impl Refusal {
    fn status(&self) -> u16 {
        match self {
            Refusal::Malformed(malformed) => malformed.status,
            Refusal::Reject(reject) => reject.status(),
            Refusal::Status(status, _) => *status,
        }
    }
}

fn log_refusal(request: &Request, refusal: &Refusal) {
    let line = match refusal {
        Refusal::Malformed(malformed) => malformed.line.clone(),
        Refusal::Reject(reject) => reject.log_line(&request.head.wire),
        Refusal::Status(_, why) => why.as_bytes().to_vec(),
    };
    request.log(
        Level::Info,
        format_args!("{} while reading client request headers", BStr::new(&line)),
    );
}

/// Sends the response.
async fn respond(request: &mut Request, stream: &Rc<Stream>) {
    if request.flow.silent {
        // As on HTTP/1: a client that is silent gets no answer but the end.
        return stream.reset(match request.out.status {
            408 => ErrorCode::PROTOCOL_ERROR,
            _ => ErrorCode::INTERNAL_ERROR,
        });
    }
    if stream.is_gone() {
        request.out.body = Body::Empty;
        return;
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
    let sent = match sender::send_at_once(request, stream) {
        Some(()) => Ok(()),
        None => Sender::new(request, stream).send(request).await,
    };
    let Err(error) = sent else {
        request.ledger.complete = true;
        return;
    };
    match error {
        SendError::TimedOut => {
            request.log(
                Level::Info,
                format_args!(
                    "client timed out (110: Connection timed out) while sending response to client"
                ),
            );
            stream.reset(ErrorCode::PROTOCOL_ERROR);
        }
        // It was told of when it happened.
        SendError::Client(_) => {}
        SendError::Body(error) => {
            // A producer that stops short has said why itself.
            if !matches!(error, BodyError::Producer | BodyError::Withdrawn) {
                request.log(
                    Level::Alert,
                    format_args!("response was truncated: {error}"),
                );
            }
            stream.reset(match request.flow.upgraded {
                // The other end's TCP connection was reset (RFC 8441, section 5).
                true => ErrorCode::CANCEL,
                false => ErrorCode::INTERNAL_ERROR,
            });
        }
    }
}

/// Whether a client that asked for a WebSocket (RFC 8441) would take the answer, a page, for an open one.
fn is_refused_websocket(request: &Request) -> bool {
    // Clients of HTTP/2 cannot send this field: it stands for `:protocol`.
    let asked = request.head.wire.fields.has(Known::Upgrade);
    asked && !request.flow.upgraded && (200..300).contains(&request.out.status)
}
