//! The body of a response written by the configuration.
//!
//! Each step runs when the output of the previous one has been taken: a slow client stops the
//! script like any other producer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bstr::{BString, ByteSlice as _};
use http::Request;
use http::body_reader::RequestBody;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::subrequest::{IncludedSubrequest, SubrequestOptions};
use proto::message::Method;

use super::{EchoCommand, EchoState, EchoSubrequest, pause, reset_timer, target};

/// The limit for the output of one `echo_duplicate`, in bytes.
const MAX_DUPLICATE: usize = 1 << 30;
/// How much of it is produced at a time, in bytes.
const DUPLICATE_CHUNK: usize = 64 << 10;

/// A number of copies; underscores between digits are for readers.
fn count_of(text: &[u8]) -> Option<usize> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'_').collect();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    digits.to_str().ok().filter(|_| is_number)?.parse().ok()
}

/// The steps of a script from a given one on.
pub(super) struct EchoBody {
    commands: Arc<Vec<EchoCommand>>,
    /// The next step.
    at: usize,
    wait: EchoWait,
    /// The loops being run, the innermost last.
    loops: Vec<ForeachLoop>,
    /// Subrequests started ahead of their turn, with their steps.
    ahead: VecDeque<(usize, IncludedSubrequest)>,
}

/// What the current step waits for.
enum EchoWait {
    Nothing,
    /// `echo_sleep`.
    Pause(Pin<Box<rt::Sleep>>),
    Include(IncludedSubrequest),
    /// `echo_request_body`.
    Content(ResponseBody),
    /// A text, and how many copies remain to be written.
    Copies(BString, usize),
}

/// A loop over the parts of a text.
struct ForeachLoop {
    /// The first step in it.
    body: usize,
    /// The parts still to come.
    parts: VecDeque<BString>,
}

impl EchoBody {
    /// The script from step `at` on.
    pub(super) fn new(commands: Arc<Vec<EchoCommand>>, at: usize) -> EchoBody {
        EchoBody {
            commands,
            at,
            wait: EchoWait::Nothing,
            loops: Vec::new(),
            ahead: VecDeque::new(),
        }
    }

    /// Runs the next step. Returns a chunk if the step produces one at once, and `None` at the end
    /// of the script.
    fn run_command(
        &mut self,
        request: &mut Request,
    ) -> Option<Result<Option<BodyChunk>, BodyError>> {
        let commands = Arc::clone(&self.commands);
        let command = commands.get(self.at)?;
        self.at += 1;
        match command {
            EchoCommand::Echo(words, ends_line) => {
                let text = text(request, words, *ends_line);
                return Some(Ok((!text.is_empty()).then(|| BodyChunk::Bytes(text.into()))));
            }
            EchoCommand::Flush => return Some(Ok(Some(BodyChunk::Flush))),
            EchoCommand::Duplicate(count, unit) => {
                let Some(count) = count_of(&request.value(count)) else {
                    request.error(format_args!("invalid number in \"echo_duplicate\""));
                    return Some(Err(BodyError::Producer));
                };
                let unit = request.value(unit);
                // The count may come from the client, so it is bounded.
                let most = MAX_DUPLICATE / unit.len().max(1);
                self.wait = EchoWait::Copies(unit, most.min(count));
            }
            EchoCommand::Sleep(seconds) => {
                self.wait = EchoWait::Pause(Box::pin(rt::sleep(pause(request, seconds))));
            }
            EchoCommand::ResetTimer => reset_timer(request),
            // Done before the response began.
            EchoCommand::ReadBody => {}
            EchoCommand::RequestBody => self.wait = EchoWait::Content(request.body.to_body()),
            EchoCommand::Include(include) => return self.include(request, include),
            // The head has left, so there is nothing to redirect any more.
            EchoCommand::Exec(..) => {
                request.error(format_args!("\"echo_exec\" after output is ignored"));
            }
            EchoCommand::Foreach(delimiter, list) => {
                let (delimiter, list) = (request.value(delimiter), request.value(list));
                self.loops.push(ForeachLoop {
                    body: self.at,
                    parts: parts(&list, &delimiter),
                });
                self.next_iteration(request);
            }
            EchoCommand::End => self.next_iteration(request),
        }
        Some(Ok(None))
    }

    /// Starts the next iteration of the innermost loop, or continues after it.
    fn next_iteration(&mut self, request: &mut Request) {
        // An `echo_end` without a loop has no effect.
        let Some(innermost) = self.loops.last_mut() else {
            return;
        };
        if let Some(part) = innermost.parts.pop_front() {
            self.at = innermost.body;
            request.state_or_default::<EchoState>().part = part;
            return;
        }
        self.loops.pop();
        request.state_or_default::<EchoState>().part.clear();
        let rest = self.commands.iter().skip(self.at);
        // If the text has no parts, the body of the loop has not run and has to be skipped. After
        // the last iteration the script is past it already.
        if !matches!(
            self.commands.get(self.at.wrapping_sub(1)),
            Some(EchoCommand::End)
        ) {
            self.at += rest
                .take_while(|command| !matches!(command, EchoCommand::End))
                .count()
                + 1;
        }
    }

    /// Starts a subrequest, or continues with one started ahead.
    fn include(
        &mut self,
        request: &mut Request,
        include: &EchoSubrequest,
    ) -> Option<Result<Option<BodyChunk>, BodyError>> {
        let step = self.at - 1;
        let inclusion = match self.ahead.front() {
            Some((at, _)) if *at == step => self.ahead.pop_front().map(|(_, inclusion)| inclusion),
            Some(_) | None => start_subrequest(request, include),
        };
        let Some(inclusion) = inclusion else {
            return Some(Err(BodyError::Producer));
        };
        self.wait = EchoWait::Include(inclusion);
        if include.is_async && self.ahead.is_empty() {
            self.start_ahead(request);
        }
        Some(Ok(None))
    }

    /// Starts the asynchronous subrequests that follow, as long as only texts are in between: any
    /// other step could affect them.
    fn start_ahead(&mut self, request: &mut Request) {
        for (step, command) in self.commands.iter().enumerate().skip(self.at) {
            match command {
                EchoCommand::Echo(..) => {}
                EchoCommand::Include(include) if include.is_async => {
                    match start_subrequest(request, include) {
                        Some(inclusion) => self.ahead.push_back((step, inclusion)),
                        None => return,
                    }
                }
                _ => return,
            }
        }
    }

    /// Continues the current step; `None` when it is done.
    fn poll_wait(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        for (_, inclusion) in &mut self.ahead {
            // Those started ahead make progress meanwhile.
            inclusion.poll_ahead(context);
        }
        let next = match &mut self.wait {
            EchoWait::Nothing => None,
            EchoWait::Pause(pause) => {
                ready!(pause.as_mut().poll(context));
                None
            }
            EchoWait::Include(inclusion) => ready!(inclusion.poll_next(context)),
            EchoWait::Content(body) => ready!(body.poll_next(request, context)),
            EchoWait::Copies(unit, left) => {
                let now = (DUPLICATE_CHUNK / unit.len().max(1)).clamp(1, (*left).max(1));
                let now = now.min(*left);
                *left -= now;
                let text = unit.repeat(now);
                (!text.is_empty()).then(|| Ok(BodyChunk::Bytes(text.into())))
            }
        };
        if next.is_none() {
            self.wait = EchoWait::Nothing;
        }
        Poll::Ready(next)
    }
}

impl BodySource for EchoBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        loop {
            if let Some(chunk) = ready!(self.poll_wait(request, context)) {
                return Poll::Ready(Some(chunk));
            }
            match self.run_command(request) {
                Some(Ok(Some(chunk))) => return Poll::Ready(Some(Ok(chunk))),
                Some(Ok(None)) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// The words separated by spaces.
fn text(request: &mut Request, words: &[conf::Expression], ends_line: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(&request.value(word));
    }
    if ends_line {
        out.push(b'\n');
    }
    out
}

/// The parts between delimiters, without empty ones.
fn parts(list: &[u8], delimiter: &[u8]) -> VecDeque<BString> {
    // Nothing to split at: the whole text is the one part.
    if delimiter.is_empty() {
        return VecDeque::from([BString::from(list)]);
    }
    let parts = list.split_str(delimiter);
    parts
        .filter(|part| !part.is_empty())
        .map(BString::from)
        .collect()
}

/// Starts a subrequest; `None` if they are nested too deep or too many, which has been logged.
fn start_subrequest(request: &mut Request, include: &EchoSubrequest) -> Option<IncludedSubrequest> {
    let (path, own) = target(request.value(&include.path));
    let args = include.args.as_ref().map(|args| request.value(args));
    let method = include.method.as_ref().map(|method| request.value(method));
    let body = include.body.as_ref().map(|body| request.value(body));
    let method = method.map_or(Method::Get, |method| Method::from_bytes(&method));
    let options = SubrequestOptions {
        method,
        header_only: method == Method::Head,
        body: body.map(|body| RequestBody::from_bytes(body.into())),
        ..SubrequestOptions::get(path, args.unwrap_or(own))
    };
    IncludedSubrequest::new(request, options)
}

/// A body with texts around it.
pub(super) struct SurroundedBody {
    before: Option<EchoBody>,
    body: Option<ResponseBody>,
    after: EchoBody,
}

impl SurroundedBody {
    /// Puts the output of two scripts around a body.
    pub(super) fn new(
        before: Arc<Vec<EchoCommand>>,
        body: ResponseBody,
        after: Arc<Vec<EchoCommand>>,
    ) -> SurroundedBody {
        SurroundedBody {
            before: Some(EchoBody::new(before, 0)),
            body: Some(body),
            after: EchoBody::new(after, 0),
        }
    }
}

impl BodySource for SurroundedBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        if let Some(before) = &mut self.before {
            if let Some(chunk) = ready!(before.poll_next(request, context)) {
                return Poll::Ready(Some(chunk));
            }
            self.before = None;
        }
        if let Some(body) = &mut self.body {
            if let Some(chunk) = ready!(body.poll_next(request, context)) {
                return Poll::Ready(Some(chunk));
            }
            self.body = None;
        }
        self.after.poll_next(request, context)
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        if let Some(body) = &mut self.body {
            body.poll_ahead(request, context);
        }
    }
}
