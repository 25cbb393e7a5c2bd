//! The scripts of the phases: rewrite, access, content, log.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bstr::ByteSlice;
use bytes::Bytes;
use http::body::{Body, BodyError, Chunk as Piece, Source};
use http::module::internal_status;
use http::{Outcome, Request, Step};
use rt::error_log::Level;

use crate::chunk::{Chunk, Kind};
use crate::directives::Code;
use crate::luajit::Value;
use crate::run::{End, Event, Run};
use crate::scope::{Guest, Scope};
use crate::vm;

/// A script that says more than this is sent while it runs, in bytes.
const GATHER: usize = 64 * 1024;

/// A script that waits is sent what it has said when that is at least so much, in bytes: nginx's `postpone_output`.
const WORTH_SENDING: usize = 1460;

pub(crate) fn server_rewrite(request: &mut Request) -> Step<'_> {
    at(request, |code| (true, &code.server_rewrite))
}

pub(crate) fn rewrite(request: &mut Request) -> Step<'_> {
    // `rewrite` has chosen another location already.
    if request.flow.uri_changed {
        return Outcome::Declined.into();
    }
    at(request, |code| (!code.early.rewrite, &code.rewrite))
}

pub(crate) fn early_rewrite(request: &mut Request) -> Step<'_> {
    at(request, |code| (code.early.rewrite, &code.rewrite))
}

pub(crate) fn access(request: &mut Request) -> Step<'_> {
    at(request, |code| (!code.early.access, &code.access))
}

pub(crate) fn early_access(request: &mut Request) -> Step<'_> {
    at(request, |code| (code.early.access, &code.access))
}

pub(crate) fn precontent(request: &mut Request) -> Step<'_> {
    at(request, |code| (!code.early.precontent, &code.precontent))
}

pub(crate) fn early_precontent(request: &mut Request) -> Step<'_> {
    at(request, |code| (code.early.precontent, &code.precontent))
}

/// Runs the script of a phase, where there is one and this is its place in the phase.
fn at(request: &mut Request, place: fn(&Code) -> (bool, &Option<Arc<Chunk>>)) -> Step<'_> {
    let chunk = match place(&request.conf::<Code>()) {
        (true, Some(chunk)) => Arc::clone(chunk),
        _ => return Outcome::Declined.into(),
    };
    with_body(request, chunk)
}

pub(crate) fn content(request: &mut Request) -> Step<'_> {
    match request.conf::<Code>().content.clone() {
        Some(chunk) => with_body(request, chunk),
        None => Outcome::Declined.into(),
    }
}

pub(crate) fn log(request: &mut Request) -> Step<'_> {
    let Some(chunk) = request.conf::<Code>().log.clone() else {
        return Outcome::Declined.into();
    };
    let Ok(mut run) = begin(request, &chunk) else {
        return Outcome::Declined.into();
    };
    match run.advance(request.into()) {
        Event::Waiting => Step::later(async move {
            // It can not wait; it only ran for long.
            let _ = poll_fn(|context| run.poll((&mut *request).into(), context)).await;
            Outcome::Declined
        }),
        _ => Outcome::Declined.into(),
    }
}

fn with_body(request: &mut Request, chunk: Arc<Chunk>) -> Step<'_> {
    if request.conf::<Code>().need_body && !request.body.is_complete() {
        return Step::later(async move {
            if let Err(status) = http::body_reader::read(request).await {
                return Outcome::Status(status);
            }
            script(request, &chunk).outcome().await
        });
    }
    script(request, &chunk)
}

/// A run of a chunk for a request; the status to answer with when it can not begin.
pub(crate) fn begin(request: &mut Request, chunk: &Chunk) -> Result<Run, u16> {
    let vm = vm::of(request).ok_or(500_u16)?;
    let function = match vm.function(chunk, request.into()) {
        Ok(function) => function,
        Err(unloaded) => {
            request.error(format_args!("{}", unloaded.message.as_bstr()));
            return Err(unloaded.status);
        }
    };
    let scope = Scope::new(Rc::clone(&vm), chunk.kind, request.logger().clone());
    Ok(Run::new(scope, &function, &vm.settings.limits))
}

/// Runs a script. Most are through at once.
fn script<'a>(request: &'a mut Request, chunk: &Chunk) -> Step<'a> {
    let mut run = match begin(request, chunk) {
        Ok(run) => run,
        Err(status) => return Outcome::Status(status).into(),
    };
    match run.advance(request.into()) {
        Event::Done(end) => finish(request, &run.scope, end).into(),
        event => Step::later(go_on(request, run, event)),
    }
}

async fn go_on(request: &mut Request, mut run: Run, mut event: Event) -> Outcome {
    let mut watch = request.conf::<Code>().check_client_abort;
    loop {
        match event {
            Event::Done(end) => return finish(request, &run.scope, end),
            Event::NeedBody(thread) => {
                let reply = match http::body_reader::read(request).await {
                    Ok(()) => Vec::new(),
                    Err(status) => return Outcome::Status(status),
                };
                run.answer(thread, reply);
            }
            Event::Flush(thread) => return stream(request, run, Some(thread)),
            Event::Waiting => {
                let said = run.scope.output.borrow().len();
                let gathers = may_gather(said) && is_gathered(request);
                if said >= WORTH_SENDING && run.scope.kind.speaks() && !gathers {
                    return stream(request, run, None);
                }
            }
        }
        let next = poll_fn(|context| match run.poll((&mut *request).into(), context) {
            Poll::Ready(event) => Poll::Ready(Some(event)),
            Poll::Pending if watch => request.poll_client_left(context).map(|()| None),
            Poll::Pending => Poll::Pending,
        });
        event = match next.await {
            Some(event) => event,
            None if run.client_left() => {
                watch = false;
                Event::Waiting
            }
            None => {
                log_departure(request);
                return Outcome::Status(internal_status::CLIENT_CLOSED);
            }
        };
    }
}

fn log_departure(request: &Request) {
    request.log(
        Level::Info,
        format_args!("client prematurely closed connection, so its script is aborted"),
    );
}

/// What becomes of a request whose script has ended.
fn finish(request: &mut Request, scope: &Scope, end: End) -> Outcome {
    crate::api::give_back(scope, request);
    if scope.raw.get() {
        // What is to be said was said by the script.
        return Outcome::Status(internal_status::CLOSE);
    }
    let spoke = scope.head_sent.get();
    match end {
        // What was said is no response: it would look whole.
        End::Failed | End::Exit(ERROR | NO_ANSWER) if spoke => end_connection(request),
        End::Failed => Outcome::Status(500),
        _ if spoke => respond(request, scope),
        End::Through(_) | End::Exit(0) => match scope.kind {
            Kind::Content => respond(request, scope),
            Kind::Access => Outcome::Ok,
            _ => Outcome::Declined,
        },
        End::Exit(DECLINED) if scope.kind != Kind::Content => Outcome::Declined,
        // nginx's `NGX_ERROR` ends the connection without a word, and so does content that is nobody's.
        End::Exit(ERROR | DECLINED) => end_connection(request),
        End::Exit(code) => match u16::try_from(code) {
            Ok(code @ (200..=299)) => {
                request.out.status = code;
                respond(request, scope)
            }
            Ok(code @ (101 | 300..=999)) => Outcome::Status(code),
            _ => Outcome::Status(500),
        },
        End::Exec(path, args) => match path.starts_with(b"@") {
            true => request.redirect_named(path.as_bstr()),
            false => request.redirect(path, args),
        },
        End::Jump => {
            request.flow.uri_changed = true;
            crate::api::forget_context(request);
            Outcome::Ok
        }
    }
}

/// nginx's code for "not mine".
const DECLINED: i32 = -5;

/// nginx's code for what cannot go on.
pub(crate) const ERROR: i32 = -1;

/// The status that means no answer at all.
const NO_ANSWER: i32 = 444;

/// Ends a request without an answer; one that is a part of another fails instead.
fn end_connection(request: &Request) -> Outcome {
    match request.is_subrequest() {
        true => Outcome::Status(500),
        false => Outcome::Status(internal_status::CLOSE),
    }
}

fn head(request: &mut Request) {
    if request.out.status == 0 {
        request.out.status = 200;
    }
    if request.out.status == 101 {
        // What follows is no content.
        request.flow.upgraded = true;
        return;
    }
    if let Some(usual) = crate::api::usual_type(request) {
        request.out.content_type = usual;
    }
}

/// Makes what the script said the response.
fn respond(request: &mut Request, scope: &Scope) -> Outcome {
    head(request);
    let out = &mut request.out;
    out.transforms.unannounced_length = out.content_length.is_none();
    out.body = Body::bytes(scope.output.take());
    Outcome::Respond
}

/// Sends the response while the script makes it.
fn stream(request: &mut Request, run: Run, flush: Option<usize>) -> Outcome {
    head(request);
    run.scope.head_sent.set(true);
    // The script may still ask for the content, all of it or as a socket.
    request.body.want();
    request.out.body = Body::stream(Speech {
        watch: request.conf::<Code>().check_client_abort,
        run: Some(run),
        flush,
        flushed: None,
    });
    Outcome::Respond
}

/// Content that a script makes while it is sent.
struct Speech {
    /// `None` when the script has ended.
    run: Option<Run>,
    /// It is to know when the client leaves.
    watch: bool,
    /// A coroutine waits until what was said is sent.
    flush: Option<usize>,
    /// That has been asked for; when the next piece is wanted, it was done.
    flushed: Option<usize>,
}

impl Source for Speech {
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
                self.flushed = Some(thread);
                return Poll::Ready(Some(Ok(Piece::Flush)));
            }
            if let Some(thread) = self.flushed.take() {
                run.answer(thread, vec![Value::Number(1.0)]);
            }
            if run.scope.over.get() {
                self.go_on_alone();
                return Poll::Ready(None);
            }
            match run.poll((&mut *request).into(), context) {
                Poll::Pending if run.scope.output.borrow().is_empty() => {
                    if !self.watch || request.poll_client_left(context).is_pending() {
                        return Poll::Pending;
                    }
                    self.watch = false;
                    if !run.client_left() {
                        log_departure(request);
                        request.flow.close = true;
                        self.run = None;
                    }
                }
                Poll::Pending | Poll::Ready(Event::Waiting) => {}
                Poll::Ready(Event::Flush(thread)) => self.flush = Some(thread),
                Poll::Ready(Event::NeedBody(thread)) => run.answer(
                    thread,
                    Value::failure(
                        "the request body cannot be read while the response is being sent",
                    ),
                ),
                Poll::Ready(Event::Done(end)) => {
                    crate::api::give_back(&run.scope, request);
                    let said = run.scope.output.take();
                    self.run = None;
                    if matches!(end, End::Failed) {
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

impl Speech {
    /// `ngx.eof`: the response is over, and what the script still does concerns nobody. It has no request any more.
    fn go_on_alone(&mut self) {
        if let Some(mut run) = self.run.take() {
            rt::spawn_named("lua after eof", async move {
                loop {
                    match poll_fn(|context| run.poll(Guest::Nobody, context)).await {
                        Event::Done(_) => return,
                        Event::NeedBody(thread) | Event::Flush(thread) => {
                            run.answer(thread, vec![Value::Number(1.0)]);
                        }
                        Event::Waiting => {}
                    }
                }
            });
        }
    }
}

/// How much may be gathered for a client that knows of no chunks, in bytes.
const MAX_GATHERED: usize = 16 << 20;

/// Whether so much may still be kept until the script is through.
pub(crate) fn may_gather(said: usize) -> bool {
    said < MAX_GATHERED
}

/// `lua_http10_buffering`: whether the response is to be sent at the end of the script, with its length.
pub(crate) fn is_gathered(request: &Request) -> bool {
    request.head.version() < http::request::Version::Http11
        && request.out.content_length.is_none()
        && !request.is_subrequest()
        && request.conf::<Code>().http10_buffering
}

/// Whether a script that has said so much must be asked to wait until it is sent.
pub(crate) fn is_much(said: usize) -> bool {
    said >= GATHER
}

/// Polls a run that says nothing to anybody to its end.
pub(crate) async fn to_the_end(run: &mut Run, mut guest: Guest<'_>) -> End {
    loop {
        let event = poll_fn(|context| Poll::Ready(ready!(run.poll(guest.again(), context)))).await;
        match event {
            Event::Done(end) => return end,
            Event::NeedBody(thread) | Event::Flush(thread) => {
                run.answer(thread, Value::failure("no request found"));
            }
            Event::Waiting => {}
        }
    }
}
