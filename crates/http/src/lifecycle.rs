//! The life of a client's request, from its head to its last line in a log, whichever version of HTTP brings it.
//!
//! ```text
//!   head ──▶ begin ──▶ check ──▶ process_request ──▶ content that nothing has read ──▶ respond ──▶ finish
//!                        │                                     │ malformed                ▲      (log phase)
//!                        └────────────▶ refuse_request ◀───────┴──────────────────────────┘
//! ```
//!
//! A protocol takes part as a [`RequestCarrier`]: it knows how its content is framed, how a response is written, and what
//! becomes of its connection or stream afterwards. The order, and what is logged, is decided here, once.

use std::borrow::Cow;

use base::Errno;
use bstr::BStr;
use host::error_log::Level;
use proto::message::{Method, Reject, RejectKind};

use crate::body::BodyError;
use crate::http_loop::HttpLoop;
use crate::log_phase;
use crate::module::internal_status;
use crate::process_request::{process_request, refuse_request};
use crate::request::Request;
use crate::sending::SendError;
use crate::site::ServerId;

/// What a protocol does in the life of one request. The functions are called in the order in which they stand.
pub(crate) trait RequestCarrier {
    /// What becomes of the connection, or of the stream.
    type End;

    /// Whether a head has a request line, which is what the error log then says was being read.
    const HAS_REQUEST_LINE: bool;

    /// Enters the server that answers to the request's host.
    fn choose_server(&mut self, request: &mut Request) -> Result<(), Reject>;

    /// The protocol's own checks of a head whose server is known.
    fn check_head(&mut self, request: &mut Request) -> Result<(), Refusal>;

    /// Gives the request its content, if some is to come.
    fn attach_content(&mut self, request: &mut Request);

    /// Whether the client has given the request up already: then nothing needs to be found, opened or asked for it.
    fn is_given_up(&self) -> bool;

    /// Looks at content that has come and that no handler has read. The error is a status: the request was malformed, and no
    /// response to it can be right.
    async fn settle_content(&mut self, request: &mut Request) -> Result<(), u16>;

    /// Ends a request that gets no response at all.
    fn end_silently(&mut self, request: &mut Request) -> Self::End;

    /// Sends the response: head, content, trailers.
    async fn send(&mut self, request: &mut Request) -> Result<(), SendError>;

    /// The response was sent to its end.
    async fn after_response(&mut self, request: &mut Request) -> Self::End;

    /// The response broke off. Why was logged; the client must be able to tell it from one that is complete.
    fn after_failure(&mut self, request: &mut Request, error: SendError) -> Self::End;

    /// What the debug log says of the end.
    fn closing_words(end: &Self::End) -> &'static str;
}

/// Why a request is answered with a status before it is processed.
pub(crate) enum Refusal {
    /// Its head breaks a rule that all versions of HTTP share.
    Head(Reject),
    /// It breaks one of its protocol's own: the status, and the line for the log.
    Protocol(u16, Cow<'static, [u8]>),
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Refusal {
        Refusal::Head(reject)
    }
}

impl Refusal {
    fn status(&self) -> u16 {
        match self {
            Refusal::Head(reject) => reject.status(),
            Refusal::Protocol(status, _) => *status,
        }
    }

    /// Logs it, in nginx's words.
    pub(crate) fn log(&self, request: &Request, has_request_line: bool) {
        const READING_FIELDS: &str = "reading client request headers";
        let (line, action) = match self {
            Refusal::Head(reject) => {
                let line = reject.log_line(&request.head.wire).into();
                let action = match has_request_line {
                    true => reject.action(),
                    false => READING_FIELDS,
                };
                (line, action)
            }
            Refusal::Protocol(_, line) => (line.clone(), READING_FIELDS),
        };
        request.log(
            Level::Info,
            format_args!("{} while {action}", BStr::new(&line)),
        );
    }
}

/// Makes a complete head a request to `server`, the default one of its address, in the present configuration.
pub(crate) fn begin(http: &HttpLoop, request: &mut Request, server: ServerId) {
    http.counters.requests.add(1);
    http.with_site(|site| request.renew(site, server));
    request.method = request.head.wire.method;
    request.delivery.header_only = request.method == Method::Head;
}

/// Serves a request that has [begun](begin). `head` says what its protocol has found wrong with it so far.
pub(crate) async fn serve<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    head: Result<(), Refusal>,
) -> C::End {
    match check(carrier, request, head) {
        Ok(()) if carrier.is_given_up() => request.out.status = internal_status::CLIENT_CLOSED,
        Ok(()) => {
            process_request(request).await;
            if let Err(status) = carrier.settle_content(request).await {
                request.delivery.close();
                refuse_request(request, status).await;
            }
        }
        Err(refusal) => {
            refusal.log(request, C::HAS_REQUEST_LINE);
            request.delivery.close();
            refuse_request(request, refusal.status()).await;
        }
    }
    respond(carrier, request).await
}

/// Answers a head that did not become a request. Why was logged.
pub(crate) async fn refuse<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    status: u16,
) -> C::End {
    refuse_request(request, status).await;
    respond(carrier, request).await
}

/// The checks that need the whole head, and what follows from it: path, server, content.
fn check<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    head: Result<(), Refusal>,
) -> Result<(), Refusal> {
    check_in_order(carrier, request, head).map_err(|refusal| match refusal {
        Refusal::Head(reject) => Refusal::Head(judge_target_first(request, reject)),
        Refusal::Protocol(..) => refusal,
    })
}

fn check_in_order<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    head: Result<(), Refusal>,
) -> Result<(), Refusal> {
    // The path comes first: an error page of what is refused here may ask for it.
    let uri = set_uri(request);
    head?;
    carrier.choose_server(request)?;
    carrier.check_head(request)?;
    uri?;
    carrier.attach_content(request);
    Ok(())
}

async fn respond<C: RequestCarrier>(carrier: &mut C, request: &mut Request) -> C::End {
    let end = if request.delivery.is_silent() {
        carrier.end_silently(request)
    } else {
        match carrier.send(request).await {
            Ok(()) => carrier.after_response(request).await,
            Err(error) => {
                log_failure(request, &error);
                carrier.after_failure(request, error)
            }
        }
    };
    if log_phase::is_wanted(request) {
        log_phase::end(request).await;
    }
    request.debug(format_args!("{}", C::closing_words(&end)));
    // What modules hold for a request (a place among those of `limit_conn`) ends with it, not with the connection.
    request.variables.release_shared();
    if let Some(wait) = request.take_end_wait() {
        wait.await;
    }
    end
}

#[cold]
fn log_failure(request: &Request, error: &SendError) {
    match error {
        SendError::TimedOut => request.log(
            Level::Info,
            format_args!(
                "client timed out (110: Connection timed out) while sending response to client"
            ),
        ),
        SendError::Failed(error) => request.log(
            Level::Info,
            format_args!(
                "send() failed{} while sending response to client",
                Errno(error)
            ),
        ),
        // It was told of when it happened.
        SendError::ClientLeft => {}
        // A producer that stops short has said why itself.
        SendError::Body(BodyError::Producer | BodyError::Withdrawn) => {}
        SendError::Body(error) => request.log(
            Level::Alert,
            format_args!("response was truncated: {error}"),
        ),
    }
}

/// Why a request is refused, if its target is judged before anything else, as it came before anything else: one that
/// makes no sense is answered by the server that the connection belongs to, whatever host the fields name.
#[cold]
fn judge_target_first(request: &mut Request, reject: Reject) -> Reject {
    let first = request.client.first_server();
    let slashes = slashes_of(request, first);
    let target = request.head.wire.target();
    let is_bad = reject.kind == RejectKind::InvalidUri
        || proto::uri::normalize(target, slashes, &mut Vec::new()).is_err();
    if !is_bad {
        return reject;
    }
    request.server = first;
    request.enter_server();
    Reject::new(RejectKind::InvalidUri)
}

fn slashes_of(request: &Request, server: ServerId) -> proto::uri::Slashes {
    match request.site.server(server).core.merge_slashes {
        true => proto::uri::Slashes::Merge,
        false => proto::uri::Slashes::Keep,
    }
}

/// Makes the target the request's path and arguments.
pub(crate) fn set_uri(request: &mut Request) -> Result<(), Reject> {
    let slashes = slashes_of(request, request.server);
    let target = request.head.wire.target();
    let Ok(parsed) = proto::uri::normalize(target, slashes, &mut request.uri.path) else {
        request.uri.path.clear();
        request.uri.is_refused = true;
        return Err(Reject::new(RejectKind::InvalidUri));
    };
    request.uri.args.extend_from_slice(&target[parsed.args]);
    request.uri.original = parsed.valid_unparsed;
    Ok(())
}
