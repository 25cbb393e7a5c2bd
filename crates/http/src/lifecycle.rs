//! The life of a client's request, from its head to its last line in a log, whichever version of HTTP brings it.
//!
//! ```text
//!   head ──▶ start_request ──▶ check_head ──▶ process_request ──▶ settle_content ──▶ respond, log phase
//!                                  │ refused                          │ malformed      ▲
//!                                  └──────────▶ refuse_request ◀──────┘                │
//!                                                     └────────────────────────────────┘
//! ```
//!
//! A protocol takes part as a [`RequestCarrier`]: it knows how its content is framed, how a response is written, and
//! what becomes of its connection or stream afterwards. The order, and what is logged, is decided here, once.

use std::borrow::Cow;
use std::rc::Rc;

use base::ErrnoText;
use bstr::BStr;
use host::error_log::LogLevel;
use proto::message::{Method, RejectKind, RejectedHead};

use crate::http_loop::HttpLoop;
use crate::http_site::ServerId;
use crate::ledger::{EndedBy, LedgerPhase};
use crate::log_phase;
use crate::module::internal_status;
use crate::process_request::{process_request, refuse_request};
use crate::request::Request;
use crate::response_body::BodyError;
use crate::response_send::ResponseSendError;

/// What a protocol does in the life of one request. The functions are called in the order in which they are listed.
pub(crate) trait RequestCarrier {
    /// What happens afterwards to the connection, or to the stream.
    type End;

    /// Whether a head has a request line: the error log then says that it was being read.
    const HAS_REQUEST_LINE: bool;

    /// Chooses the virtual server by the request's host.
    fn choose_server(&mut self, request: &mut Request) -> Result<(), RejectedHead>;

    /// The protocol's own checks of a head, once its server is known.
    fn check_head(&mut self, request: &mut Request) -> Result<(), RequestRefusal>;

    /// Gives the request its content, if there is to be any.
    fn attach_content(&mut self, request: &mut Request);

    /// Whether the client has already cancelled the request: then no file is opened and no upstream server is asked.
    fn is_given_up(&self) -> bool;

    /// Examines content that has arrived and that no handler has read. The error is a status: the request was
    /// malformed, and the prepared response is not the right one.
    async fn settle_content(&mut self, request: &mut Request) -> Result<(), u16>;

    /// Ends a request that gets no response at all.
    fn end_silently(&mut self, request: &mut Request) -> Self::End;

    /// Sends the response: head, content, trailers.
    async fn send(&mut self, request: &mut Request) -> Result<(), ResponseSendError>;

    /// Called when the response has been sent completely.
    async fn after_response(&mut self, request: &mut Request) -> Self::End;

    /// The response broke off, which has been logged. The client must be able to tell it from a complete one.
    fn after_failure(&mut self, request: &mut Request, error: ResponseSendError) -> Self::End;

    /// What the debug log says at the end.
    fn closing_words(end: &Self::End) -> &'static str;
}

/// Why a request is answered with a status without being processed.
pub(crate) enum RequestRefusal {
    /// Its head breaks a rule that all versions of HTTP share.
    Head(RejectedHead),
    /// It breaks a rule of its protocol: the status, and the line for the log.
    Protocol(u16, Cow<'static, [u8]>),
}

impl From<RejectedHead> for RequestRefusal {
    fn from(reject: RejectedHead) -> RequestRefusal {
        RequestRefusal::Head(reject)
    }
}

impl RequestRefusal {
    pub(crate) fn status(&self) -> u16 {
        match self {
            RequestRefusal::Head(reject) => reject.status(),
            RequestRefusal::Protocol(status, _) => *status,
        }
    }

    /// Logs the refusal, in nginx's words.
    pub(crate) fn log(&self, request: &Request, has_request_line: bool) {
        const READING_FIELDS: &str = "reading client request headers";
        let (line, action) = match self {
            RequestRefusal::Head(reject) => {
                let line = reject.log_line(&request.head.wire).into();
                let action = match has_request_line {
                    true => reject.log_action(),
                    false => READING_FIELDS,
                };
                (line, action)
            }
            RequestRefusal::Protocol(_, line) => (line.clone(), READING_FIELDS),
        };
        request.log_while(LogLevel::Info, action, format_args!("{}", BStr::new(&line)));
    }
}

/// Turns a complete head into a request to `server`, the default one of its address, in the current configuration.
pub(crate) fn start_request(http: &HttpLoop, request: &mut Request, server: ServerId) {
    http.counters.requests.add(1);
    rt::probes::request_start(request.client.number, request.head.number);
    // The configuration is fixed here, once per request: a reload in the middle of it does not change what it sees.
    http.with_site(|site| request.begin_next(site, server));
    request.method = request.head.wire.method;
    request.delivery.header_only = request.method == Method::Head;
}

/// Serves a request that [`start_request`] has begun. `head` is what its protocol has found wrong with it so far.
pub(crate) async fn run_lifecycle<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    head: Result<(), RequestRefusal>,
) -> C::End {
    let checked = check_head(carrier, request, head);
    log_phase::observe_beginning(request);
    match checked {
        // 499, nginx's status for it; only the log sees it.
        Ok(()) if carrier.is_given_up() => {
            request.ledger.end_by(EndedBy::Client);
            request.out.status = internal_status::CLIENT_CLOSED;
        }
        Ok(()) => {
            process_request(request).await;
            // After the handlers, because most of them read the content themselves; before the response, because a 200
            // to a request whose framing is broken would be the answer to something else.
            if let Err(status) = carrier.settle_content(request).await {
                request.delivery.close();
                request.ledger.end_in(EndedBy::Rule, LedgerPhase::Upload);
                refuse_request(request, status).await;
            }
        }
        Err(refusal) => {
            refusal.log(request, C::HAS_REQUEST_LINE);
            request.ledger.end_in(EndedBy::Rule, LedgerPhase::Head);
            request.delivery.close();
            refuse_request(request, refusal.status()).await;
        }
    }
    respond(carrier, request).await
}

/// Answers a head that could not be parsed. The reason has been logged.
pub(crate) async fn answer_refused<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    status: u16,
) -> C::End {
    request.ledger.end_in(EndedBy::Rule, LedgerPhase::Head);
    refuse_request(request, status).await;
    respond(carrier, request).await
}

/// Checks the head, and derives path, server and content from it. If it is refused for several reasons, this decides which
/// of them counts: the checks run in nginx's order, except that nginx has judged the target before it saw the rest.
pub(crate) fn check_head<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    head: Result<(), RequestRefusal>,
) -> Result<(), RequestRefusal> {
    check_in_order(carrier, request, head).map_err(|refusal| match refusal {
        RequestRefusal::Head(reject) => RequestRefusal::Head(judge_target_first(request, reject)),
        RequestRefusal::Protocol(..) => refusal,
    })
}

/// The checks, up to the first that refuses.
fn check_in_order<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    head: Result<(), RequestRefusal>,
) -> Result<(), RequestRefusal> {
    // Set first, since the error page of a refusal may depend on it. Its fault counts only if nothing before it fails.
    let uri = set_uri(request);
    // nginx's order: the fields are judged before the host, and the host before what only its server can judge. A
    // request with several faults gets the same status, from the same server, as in nginx.
    head?;
    carrier.choose_server(request)?;
    carrier.check_head(request)?;
    uri?;
    carrier.attach_content(request);
    Ok(())
}

async fn respond<C: RequestCarrier>(carrier: &mut C, request: &mut Request) -> C::End {
    let end = if request.delivery.is_silent() {
        request.ledger.finish();
        carrier.end_silently(request)
    } else {
        match carrier.send(request).await {
            Ok(()) => {
                request.ledger.finish();
                carrier.after_response(request).await
            }
            Err(error) => {
                note_end(request, &error);
                request.ledger.finish();
                // Before the connection or stream is torn down, so that the line precedes those about the close.
                log_failure(request, &error);
                carrier.after_failure(request, error)
            }
        }
    };
    crate::stall::blame_if_late(request);
    log_phase::observe_request(request);
    if log_phase::is_wanted(request) {
        log_phase::run_log_phase(request).await;
    }
    request.debug(format_args!("{}", C::closing_words(&end)));
    // What modules hold for a request (a slot of `limit_conn`) ends with the request, not with the connection.
    request.variables.release_shared();
    // Last: nothing of the request may be in use by others while the connection waits.
    if let Some(wait) = request.take_end_wait() {
        wait.await;
    }
    end
}

/// Notes in the ledger who broke the response off.
#[cold]
fn note_end(request: &mut Request, error: &ResponseSendError) {
    match error {
        ResponseSendError::TimedOut => {
            request
                .ledger
                .end_in(EndedBy::ClientTimeout, LedgerPhase::Client);
        }
        // While something else is waited for, that is the phase.
        ResponseSendError::ClientLeft => request.ledger.end_by(EndedBy::Client),
        ResponseSendError::Failed(_) => {
            request.ledger.end_in(EndedBy::Client, LedgerPhase::Client);
        }
        ResponseSendError::Body(BodyError::Producer | BodyError::Withdrawn) => {
            request.ledger.end_in(EndedBy::Upstream, LedgerPhase::Body);
        }
        ResponseSendError::Body(_) => request.ledger.end_in(EndedBy::Server, LedgerPhase::Disk),
    }
}

/// What is being done, in the words of the error log.
const SENDING: &str = "sending response to client";

#[cold]
fn log_failure(request: &Request, error: &ResponseSendError) {
    match error {
        ResponseSendError::TimedOut => request.log_while(
            LogLevel::Info,
            SENDING,
            format_args!("client timed out (110: Connection timed out)"),
        ),
        ResponseSendError::Failed(error) => request.log_while(
            LogLevel::Info,
            SENDING,
            format_args!("send() failed{}", ErrnoText(error)),
        ),
        // This was logged when it happened.
        ResponseSendError::ClientLeft => {}
        // A producer that fails has already logged why.
        ResponseSendError::Body(BodyError::Producer | BodyError::Withdrawn) => {}
        ResponseSendError::Body(error) => request.log(
            LogLevel::Alert,
            format_args!("response was truncated: {error}"),
        ),
    }
}

/// nginx judges the target first, because it arrives first. If it is malformed as well, that is the reason that counts,
/// and the server that the connection belongs to answers, whatever host the fields name.
#[cold]
fn judge_target_first(request: &mut Request, reject: RejectedHead) -> RejectedHead {
    let first = request.client.first_server();
    let slashes = slashes_of(request, first);
    let target = request.head.wire.target();
    let is_bad = reject.kind == RejectKind::InvalidUri
        || proto::uri::normalize_path(target, slashes, &mut Vec::new()).is_err();
    if !is_bad {
        return reject;
    }
    let head = Rc::get_mut(&mut request.head).expect("only handlers share the head");
    head.wire.cut_after_line();
    // `Host` comes later.
    head.host.clear();
    head.port = None;
    request.server = first;
    request.enter_server();
    RejectedHead::new(RejectKind::InvalidUri)
}

/// Gives a request whose head has a fault behind its target what stands before the fault: the path, and the server that
/// `Host` names, with its error pages and logs. Returns the fault that counts, which is the first.
#[cold]
pub(crate) fn place_refused<C: RequestCarrier>(
    carrier: &mut C,
    request: &mut Request,
    reject: RejectedHead,
) -> RejectedHead {
    if set_uri(request).is_err() {
        return judge_target_first(request, reject);
    }
    match carrier.choose_server(request) {
        Ok(()) => reject,
        Err(host) => host,
    }
}

fn slashes_of(request: &Request, server: ServerId) -> proto::uri::SlashMerging {
    match request.site.server(server).core.merge_slashes {
        true => proto::uri::SlashMerging::Merge,
        false => proto::uri::SlashMerging::Keep,
    }
}

/// Turns the target into the request's path and arguments.
pub(crate) fn set_uri(request: &mut Request) -> Result<(), RejectedHead> {
    let slashes = slashes_of(request, request.server);
    let target = request.head.wire.target();
    let Ok(parsed) = proto::uri::normalize_path(target, slashes, &mut request.uri.path) else {
        // Normalizing stops at the fault: half a path must not choose a location.
        request.uri.path.clear();
        return Err(RejectedHead::new(RejectKind::InvalidUri));
    };
    request.uri.args.extend_from_slice(&target[parsed.args]);
    request.uri.original = parsed.valid_unparsed;
    Ok(())
}
