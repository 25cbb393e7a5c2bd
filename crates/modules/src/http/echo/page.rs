//! The content of a response that the configuration writes.
//!
//! Each step is done when the one before it has left: a slow client stops the script, as it stops any other producer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bstr::{BString, ByteSlice as _};
use http::Request;
use http::body::{Body, BodyError, Chunk, Source};
use http::body_reader::RequestBody;
use http::subrequest::{Inclusion, Options};
use proto::h1::Method;

use super::{Command, Include, State, pause, reset_timer, split_args};

/// The largest text that `echo_duplicate` writes.
const MAX_DUPLICATE: usize = 1 << 30;
/// Bytes of it that are made at a time.
const DUPLICATE_CHUNK: usize = 64 << 10;

/// The steps from one on.
pub(super) struct Page {
    commands: Arc<Vec<Command>>,
    /// The step that comes next.
    at: usize,
    wait: Wait,
    /// The loops that are being run, the innermost last.
    loops: Vec<Loop>,
    /// Subrequests that were asked for before their turn, with their steps.
    ahead: VecDeque<(usize, Inclusion)>,
}

/// What the present step waits for.
enum Wait {
    Nothing,
    Pause(Pin<Box<rt::Sleep>>),
    Include(Inclusion),
    Content(Body),
    /// A text, and how often it is still to be written.
    Copies(BString, usize),
}

/// A loop over the parts of a text.
struct Loop {
    /// Its first step.
    body: usize,
    parts: VecDeque<BString>,
}

impl Page {
    pub(super) fn new(commands: Arc<Vec<Command>>, at: usize) -> Page {
        Page {
            commands,
            at,
            wait: Wait::Nothing,
            loops: Vec::new(),
            ahead: VecDeque::new(),
        }
    }

    /// Does the next step: a chunk if it makes one at once, `None` at the end of the script.
    fn step(&mut self, request: &mut Request) -> Option<Result<Option<Chunk>, BodyError>> {
        let commands = Arc::clone(&self.commands);
        let command = commands.get(self.at)?;
        self.at += 1;
        match command {
            Command::Say(words, ends_line) => {
                let text = text(request, words, *ends_line);
                return Some(Ok((!text.is_empty()).then(|| Chunk::Bytes(text.into()))));
            }
            Command::Flush => return Some(Ok(Some(Chunk::Flush))),
            Command::Duplicate(count, unit) => {
                let count = request.value(count);
                let count = count.to_str().ok().and_then(|count| count.parse().ok());
                let Some(count) = count else {
                    request.error(format_args!("invalid number in \"echo_duplicate\""));
                    return Some(Err(BodyError::Producer));
                };
                let unit = request.value(unit);
                let most = MAX_DUPLICATE / unit.len().max(1);
                self.wait = Wait::Copies(unit, most.min(count));
            }
            Command::Sleep(seconds) => {
                self.wait = Wait::Pause(Box::pin(rt::sleep(pause(request, seconds))));
            }
            Command::ResetTimer => reset_timer(request),
            // It was read before the response began.
            Command::ReadBody => {}
            Command::RequestBody => self.wait = Wait::Content(request.body.to_body()),
            Command::Include(include) => return self.include(request, include),
            Command::Exec(..) => {
                request.error(format_args!("\"echo_exec\" after output is ignored"));
            }
            Command::Foreach(delimiter, list) => {
                let (delimiter, list) = (request.value(delimiter), request.value(list));
                self.loops.push(Loop {
                    body: self.at,
                    parts: parts(&list, &delimiter),
                });
                self.turn(request);
            }
            Command::End => self.turn(request),
        }
        Some(Ok(None))
    }

    /// Begins the next turn of the innermost loop, or goes on after it.
    fn turn(&mut self, request: &mut Request) {
        let Some(innermost) = self.loops.last_mut() else {
            return;
        };
        if let Some(part) = innermost.parts.pop_front() {
            self.at = innermost.body;
            request.state_or_default::<State>().part = part;
            return;
        }
        self.loops.pop();
        request.state_or_default::<State>().part.clear();
        let rest = self.commands.iter().skip(self.at);
        // When there is no part at all the steps are skipped; after the last turn the script is past them already.
        if !matches!(
            self.commands.get(self.at.wrapping_sub(1)),
            Some(Command::End)
        ) {
            self.at += rest
                .take_while(|command| !matches!(command, Command::End))
                .count()
                + 1;
        }
    }

    fn include(
        &mut self,
        request: &mut Request,
        include: &Include,
    ) -> Option<Result<Option<Chunk>, BodyError>> {
        let step = self.at - 1;
        let inclusion = match self.ahead.front() {
            Some((at, _)) if *at == step => self.ahead.pop_front().map(|(_, inclusion)| inclusion),
            Some(_) | None => begin(request, include),
        };
        let Some(inclusion) = inclusion else {
            return Some(Err(BodyError::Producer));
        };
        self.wait = Wait::Include(inclusion);
        if include.is_async && self.ahead.is_empty() {
            self.look_ahead(request);
        }
        Some(Ok(None))
    }

    /// Asks for what follows and need not wait, as far as nothing but texts is between.
    fn look_ahead(&mut self, request: &mut Request) {
        for (step, command) in self.commands.iter().enumerate().skip(self.at) {
            match command {
                Command::Say(..) => {}
                Command::Include(include) if include.is_async => match begin(request, include) {
                    Some(inclusion) => self.ahead.push_back((step, inclusion)),
                    None => return,
                },
                _ => return,
            }
        }
    }

    /// What the present step still has to give, `None` when it is done.
    fn poll_wait(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        for (_, inclusion) in &mut self.ahead {
            inclusion.poll_ahead(context);
        }
        let next = match &mut self.wait {
            Wait::Nothing => None,
            Wait::Pause(pause) => {
                ready!(pause.as_mut().poll(context));
                None
            }
            Wait::Include(inclusion) => ready!(inclusion.poll_next(context)),
            Wait::Content(body) => ready!(body.poll_next(request, context)),
            Wait::Copies(unit, left) => {
                let now = (DUPLICATE_CHUNK / unit.len().max(1)).clamp(1, (*left).max(1));
                let now = now.min(*left);
                *left -= now;
                let text = unit.repeat(now);
                (!text.is_empty()).then(|| Ok(Chunk::Bytes(text.into())))
            }
        };
        if next.is_none() {
            self.wait = Wait::Nothing;
        }
        Poll::Ready(next)
    }
}

impl Source for Page {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        loop {
            if let Some(chunk) = ready!(self.poll_wait(request, context)) {
                return Poll::Ready(Some(chunk));
            }
            match self.step(request) {
                Some(Ok(Some(chunk))) => return Poll::Ready(Some(Ok(chunk))),
                Some(Ok(None)) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// The words with blanks between them.
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

/// The parts between delimiters, the empty ones left out.
fn parts(list: &[u8], delimiter: &[u8]) -> VecDeque<BString> {
    if delimiter.is_empty() {
        return VecDeque::from([BString::from(list)]);
    }
    let parts = list.split_str(delimiter);
    parts
        .filter(|part| !part.is_empty())
        .map(BString::from)
        .collect()
}

/// Asks for a subrequest; `None` where they stand too deep or are too many, which was logged.
fn begin(request: &mut Request, include: &Include) -> Option<Inclusion> {
    let (path, own) = split_args(request.value(&include.path));
    let args = include.args.as_ref().map(|args| request.value(args));
    let method = include.method.as_ref().map(|method| request.value(method));
    let body = include.body.as_ref().map(|body| request.value(body));
    let method = method.map_or(Method::Get, |method| Method::from_bytes(&method));
    let options = Options {
        method,
        header_only: method == Method::Head,
        body: body.map(|body| RequestBody::from_bytes(body.into())),
        ..Options::get(path, args.unwrap_or(own))
    };
    Inclusion::new(request, options)
}

/// A response with texts around it.
pub(super) struct Around {
    before: Option<Page>,
    body: Option<Body>,
    after: Page,
}

impl Around {
    pub(super) fn new(before: Arc<Vec<Command>>, body: Body, after: Arc<Vec<Command>>) -> Around {
        Around {
            before: Some(Page::new(before, 0)),
            body: Some(body),
            after: Page::new(after, 0),
        }
    }
}

impl Source for Around {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
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
