//! The scripts of http's phases: when they run, and what their end means for the request.
//!
//! ```text
//! returns, ngx.exit(0)   the next handler; of a content script, the response that it has printed
//! ngx.exit(2xx)          the response that it has printed, with this status
//! ngx.exit(status)       this status, perhaps with an error page
//! ngx.exit(-1)           the connection closes without a response
//! ngx.exec               an internal redirect
//! an error               500, or the connection closes if a part of the response was sent
//! ```
//!
//! Most scripts end at their first run, within the handler, and cost no future. One that waits
//! becomes a future that holds the request; one that waits with unsent output becomes the
//! response's body, which the engine polls for more.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bstr::ByteSlice;
use bytes::Bytes;
use host::error_log::LogLevel;
use http::body_reader::BodyReading;
use http::module::internal_status;
use http::response_body::{BodyChunk as Piece, BodyError, BodySource, ResponseBody};
use http::{HandlerOutcome, HandlerStep, Request};

use crate::body_wait::BodyWait;
use crate::chunk::{LuaChunk, ScriptKind};
use crate::luajit::LuaValue;
use crate::run::{RunEnd, RunEvent, ScriptRun};
use crate::run_owner::RunOwner;
use crate::scope::RunScope;
use crate::scripts::HttpScripts;
use crate::{begin_run, buffering};

/// When a script waits, its output so far is sent if it has at least this many bytes: the default
/// of nginx's `postpone_output`.
const POSTPONE_OUTPUT: usize = 1460;

/// `server_rewrite_by_lua`, before a location is selected.
pub(crate) fn server_rewrite(request: &mut Request) -> HandlerStep<'_> {
    run_phase(request, |code| (true, &code.server_rewrite))
}

/// `rewrite_by_lua`, which lua-nginx-module postpones to the end of the rewrite phase.
pub(crate) fn rewrite(request: &mut Request) -> HandlerStep<'_> {
    // A `rewrite` of this phase has changed the URI, so another location's script may apply.
    if request.flow.uri_changed {
        return HandlerOutcome::Declined.into();
    }
    run_phase(request, |code| (!code.no_postpone.rewrite, &code.rewrite))
}

/// The same with `rewrite_by_lua_no_postpone`: at the beginning of the phase.
pub(crate) fn early_rewrite(request: &mut Request) -> HandlerStep<'_> {
    run_phase(request, |code| (code.no_postpone.rewrite, &code.rewrite))
}

/// `access_by_lua`, postponed to the end of the access phase, so that `allow` and `deny` come
/// first.
pub(crate) fn access(request: &mut Request) -> HandlerStep<'_> {
    run_phase(request, |code| (!code.no_postpone.access, &code.access))
}

/// The same with `access_by_lua_no_postpone`.
pub(crate) fn early_access(request: &mut Request) -> HandlerStep<'_> {
    run_phase(request, |code| (code.no_postpone.access, &code.access))
}

/// `precontent_by_lua`, postponed likewise.
pub(crate) fn precontent(request: &mut Request) -> HandlerStep<'_> {
    run_phase(request, |code| {
        (!code.no_postpone.precontent, &code.precontent)
    })
}

/// The same, not postponed.
pub(crate) fn early_precontent(request: &mut Request) -> HandlerStep<'_> {
    run_phase(request, |code| {
        (code.no_postpone.precontent, &code.precontent)
    })
}

/// Runs the script of a phase if there is one and the handler is registered at its position.
fn run_phase(
    request: &mut Request,
    place: fn(&HttpScripts) -> (bool, &Option<Arc<LuaChunk>>),
) -> HandlerStep<'_> {
    let chunk = match place(&request.conf::<HttpScripts>()) {
        (true, Some(chunk)) => Arc::clone(chunk),
        _ => return HandlerOutcome::Declined.into(),
    };
    run_with_body(request, chunk)
}

/// `content_by_lua`.
pub(crate) fn content(request: &mut Request) -> HandlerStep<'_> {
    match request.conf::<HttpScripts>().content.clone() {
        Some(chunk) => run_with_body(request, chunk),
        None => HandlerOutcome::Declined.into(),
    }
}

/// `log_by_lua`. Whatever comes of it, the request is over.
pub(crate) fn log(request: &mut Request) -> HandlerStep<'_> {
    let Some(chunk) = request.conf::<HttpScripts>().log.clone() else {
        return HandlerOutcome::Declined.into();
    };
    let Ok(mut run) = begin_run::for_request(request, &chunk) else {
        return HandlerOutcome::Declined.into();
    };
    match run.advance(request.into()) {
        RunEvent::Waiting => HandlerStep::later(async move {
            // It cannot wait, it was only preempted.
            let _ = poll_fn(|context| run.poll((&mut *request).into(), context)).await;
            HandlerOutcome::Declined
        }),
        _ => HandlerOutcome::Declined.into(),
    }
}

/// `lua_need_request_body`: reads the body before the script runs.
fn run_with_body(request: &mut Request, chunk: Arc<LuaChunk>) -> HandlerStep<'_> {
    if request.conf::<HttpScripts>().need_request_body && !request.body.is_complete() {
        return HandlerStep::later(async move {
            let mut reading = BodyReading::new(request).with_named_file();
            let read = poll_fn(|context| reading.poll(request, context)).await;
            if let Err(status) = read {
                return HandlerOutcome::Status(status);
            }
            run_script(request, &chunk).outcome().await
        });
    }
    run_script(request, &chunk)
}

/// Runs a script. Most complete at once, and then no future is created.
fn run_script<'a>(request: &'a mut Request, chunk: &LuaChunk) -> HandlerStep<'a> {
    let mut run = match begin_run::for_request(request, chunk) {
        Ok(run) => run,
        Err(status) => return HandlerOutcome::Status(status).into(),
    };
    match run.advance(request.into()) {
        RunEvent::Ended(end) => outcome_of(request, &run.scope, end).into(),
        event => HandlerStep::later(drive_run(request, run, event)),
    }
}

/// Drives a run that waits until it has ended, or its output is to be sent. From then on the
/// response body drives it (`StreamedOutput`).
async fn drive_run(
    request: &mut Request,
    mut run: ScriptRun,
    mut event: RunEvent,
) -> HandlerOutcome {
    // Off by default, as in lua-nginx-module.
    let mut watch = request.conf::<HttpScripts>().check_client_abort;
    let mut body = BodyWait::default();
    loop {
        match event {
            RunEvent::Ended(end) => return outcome_of(request, &run.scope, end),
            RunEvent::NeedBody(thread) => body.add(request, thread),
            RunEvent::Flush(thread) => {
                return respond_streaming(request, (run, body), Some(thread));
            }
            RunEvent::Waiting => {
                let said = run.scope.output.borrow().len();
                let gathers = buffering::may_buffer(said) && buffering::is_http10_buffered(request);
                if said >= POSTPONE_OUTPUT && run.scope.kind.may_send_output() && !gathers {
                    return respond_streaming(request, (run, body), None);
                }
            }
        }
        let next = poll_fn(|context| {
            loop {
                if let Poll::Ready(event) = run.poll((&mut *request).into(), context) {
                    return Poll::Ready(DriveStep::Event(event));
                }
                match body.poll(request, &mut run, context) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(status)) => return Poll::Ready(DriveStep::NoBody(status)),
                    Poll::Pending if watch && !body.is_reading() => {
                        let left = request.stream.poll_left(context);
                        return left.map(|()| DriveStep::ClientLeft);
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        event = match next.await {
            DriveStep::Event(event) => event,
            DriveStep::NoBody(status) => return HandlerOutcome::Status(status),
            // The handler of `ngx.on_abort` decides what happens to the script.
            DriveStep::ClientLeft if run.on_client_abort() => {
                watch = false;
                RunEvent::Waiting
            }
            DriveStep::ClientLeft => {
                log_client_abort(request);
                return HandlerOutcome::Status(internal_status::CLIENT_CLOSED);
            }
        };
    }
}

/// What the driver of a run learns next.
enum DriveStep {
    Event(RunEvent),
    /// The request body that a coroutine waits for cannot be read; the status to answer with.
    NoBody(u16),
    ClientLeft,
}

/// The line about a script that is aborted because its client left.
fn log_client_abort(request: &Request) {
    request.log(
        LogLevel::Info,
        format_args!("client prematurely closed connection, so its script is aborted"),
    );
}

/// What becomes of a request whose script has ended.
fn outcome_of(request: &mut Request, scope: &RunScope, end: RunEnd) -> HandlerOutcome {
    crate::api::give_back(scope, request);
    if scope.raw_socket.get() {
        // The script has written the response itself, so there is nothing to add.
        return HandlerOutcome::Status(internal_status::CLOSE);
    }
    let spoke = scope.head_sent.get();
    match end {
        // Part of the body was produced. Ending the response normally would make it look complete.
        RunEnd::Failed | RunEnd::Exit(ERROR | CLOSE_WITHOUT_RESPONSE) if spoke => {
            end_connection(request)
        }
        RunEnd::Failed => HandlerOutcome::Status(500),
        _ if spoke => respond_with_output(request, scope),
        RunEnd::Completed(_) | RunEnd::Exit(0) => match scope.kind {
            ScriptKind::Content => respond_with_output(request, scope),
            // The access phase must be told "allowed" explicitly: with `satisfy any` that skips the
            // other checks.
            ScriptKind::Access => HandlerOutcome::Ok,
            _ => HandlerOutcome::Declined,
        },
        RunEnd::Exit(DECLINED) if scope.kind != ScriptKind::Content => HandlerOutcome::Declined,
        // `NGX_ERROR` closes the connection without a response, and so does a content handler that
        // declines.
        RunEnd::Exit(ERROR | DECLINED) => end_connection(request),
        RunEnd::Exit(code) => match u16::try_from(code) {
            // `ngx.exit(200)` ends the request with what the script has printed.
            Ok(code @ (200..=299)) => {
                request.out.status = code;
                respond_with_output(request, scope)
            }
            Ok(code @ (101 | 300..=999)) => {
                // Its page passes the header filter.
                request.set_state(LastExit(i32::from(code)));
                // As with lua-nginx-module, a script that makes the page of `error_page CODE = URI` keeps this status
                // if it sets none.
                if scope.kind == ScriptKind::Content && request.out.status == 0 {
                    request.out.status = code;
                }
                HandlerOutcome::Status(code)
            }
            _ => HandlerOutcome::Status(500),
        },
        // `@name` is a named location; it keeps the request's URI.
        RunEnd::Exec(path, args) => match path.starts_with(b"@") {
            true => request.redirect_named(path.as_bstr()),
            false => request.redirect(path, args),
        },
        RunEnd::Jump => {
            request.flow.uri_changed = true;
            crate::api::clear_request_ctx(request);
            HandlerOutcome::Ok
        }
    }
}

/// `ngx.DECLINED`, nginx's `NGX_DECLINED`.
const DECLINED: i32 = -5;

/// `ngx.ERROR`, nginx's `NGX_ERROR`.
pub(crate) const ERROR: i32 = -1;

/// nginx's status 444: close the connection without a response.
const CLOSE_WITHOUT_RESPONSE: i32 = 444;

/// The code other than 0 that `ngx.exit` was last called with for a request, in whatever phase. As in lua-nginx-module, a
/// header filter that says the same again changes nothing; an internal redirect forgets it.
pub(crate) struct LastExit(pub(crate) i32);

/// Closes the connection without a response. A subrequest fails with 500 instead: the connection
/// belongs to its parent.
fn end_connection(request: &Request) -> HandlerOutcome {
    match request.is_subrequest() {
        true => HandlerOutcome::Status(500),
        false => HandlerOutcome::Status(internal_status::CLOSE),
    }
}

/// Completes the response head before it is sent.
fn complete_head(request: &mut Request) {
    if request.out.status == 0 {
        request.out.status = 200;
    }
    if request.out.status == 101 {
        // What follows is not an HTTP body: the script speaks a protocol of its own.
        request.delivery.upgrade();
        return;
    }
    if let Some(usual) = crate::api::default_content_type(request) {
        request.out.content_type = usual;
    }
}

/// Makes the script's output the response, complete and with a known length.
fn respond_with_output(request: &mut Request, scope: &RunScope) -> HandlerOutcome {
    complete_head(request);
    let out = &mut request.out;
    // The script did not set a length: filters may still change the body.
    out.transforms.unannounced_length = out.content_length.is_none();
    out.body = ResponseBody::bytes(scope.output.take());
    HandlerOutcome::Respond
}

/// Starts the response while the script goes on producing it.
fn respond_streaming(
    request: &mut Request,
    (run, body): (ScriptRun, BodyWait),
    flush: Option<usize>,
) -> HandlerOutcome {
    complete_head(request);
    run.scope.head_sent.set(true);
    // The script may still ask for the request body, all of it or as a socket: it must not be
    // discarded when the response begins.
    request.body.keep_unread();
    request.out.body = ResponseBody::stream(StreamedOutput {
        watch: request.conf::<HttpScripts>().check_client_abort,
        run: Some(run),
        body,
        flush,
        flush_asked: None,
    });
    HandlerOutcome::Respond
}

/// A response body that a running script produces.
struct StreamedOutput {
    /// `None` once the script has ended.
    run: Option<ScriptRun>,
    /// Coroutines of it that wait for the request body.
    body: BodyWait,
    /// Whether to watch for the client's disconnect.
    watch: bool,
    /// A coroutine waits in `ngx.flush(true)`; the flush has not been passed on yet.
    flush: Option<usize>,
    /// It has been passed on. When the engine asks for the next chunk, everything before was sent.
    flush_asked: Option<usize>,
}

impl BodySource for StreamedOutput {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, BodyError>>> {
        loop {
            let Some(run) = &mut self.run else {
                return Poll::Ready(None);
            };
            let said = run.scope.output.take();
            if !said.is_empty() {
                return Poll::Ready(Some(Ok(Piece::Bytes(Bytes::from(said)))));
            }
            if let Some(thread) = self.flush.take() {
                self.flush_asked = Some(thread);
                return Poll::Ready(Some(Ok(Piece::Flush)));
            }
            if let Some(thread) = self.flush_asked.take() {
                run.resume_with(thread, vec![LuaValue::Number(1.0)]);
            }
            // After `ngx.eof` the client gets the end of the response while the script goes on.
            if run.scope.eof_sent.get() {
                self.detach_run();
                return Poll::Ready(None);
            }
            match run.poll((&mut *request).into(), context) {
                Poll::Pending if run.scope.output.borrow().is_empty() => {
                    match self.body.poll(request, run, context) {
                        Poll::Ready(Ok(())) => continue,
                        // The response has begun: all that can be said is that it is incomplete.
                        Poll::Ready(Err(_)) => {
                            crate::api::give_back(&run.scope, request);
                            self.run = None;
                            return Poll::Ready(Some(Err(BodyError::Producer)));
                        }
                        Poll::Pending if self.body.is_reading() => return Poll::Pending,
                        Poll::Pending => {}
                    }
                    if !self.watch || request.stream.poll_left(context).is_pending() {
                        return Poll::Pending;
                    }
                    self.watch = false;
                    if !run.on_client_abort() {
                        log_client_abort(request);
                        request.delivery.close();
                        self.run = None;
                    }
                }
                Poll::Pending | Poll::Ready(RunEvent::Waiting) => {}
                Poll::Ready(RunEvent::Flush(thread)) => self.flush = Some(thread),
                Poll::Ready(RunEvent::NeedBody(thread)) => self.body.add(request, thread),
                Poll::Ready(RunEvent::Ended(end)) => {
                    crate::api::give_back(&run.scope, request);
                    let said = run.scope.output.take();
                    self.run = None;
                    // Aborts the response, so that the client can tell that it is incomplete.
                    if matches!(end, RunEnd::Failed) {
                        return Poll::Ready(Some(Err(BodyError::Producer)));
                    }
                    if !said.is_empty() {
                        return Poll::Ready(Some(Ok(Piece::Bytes(Bytes::from(said)))));
                    }
                }
            }
        }
    }
}

impl StreamedOutput {
    /// `ngx.eof`: the response is complete, and the script goes on without a request.
    fn detach_run(&mut self) {
        if let Some(mut run) = self.run.take() {
            self.body.release(&mut run);
            rt::spawn_named("lua after eof", async move {
                loop {
                    match poll_fn(|context| run.poll(RunOwner::Server, context)).await {
                        RunEvent::Ended(_) => return,
                        RunEvent::NeedBody(thread) | RunEvent::Flush(thread) => {
                            run.resume_with(thread, vec![LuaValue::Number(1.0)]);
                        }
                        // Something slow: what has been written so far is worth a packet meanwhile.
                        RunEvent::Waiting => {}
                    }
                }
            });
        }
    }
}
