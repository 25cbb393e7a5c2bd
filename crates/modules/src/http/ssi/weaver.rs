//! A page on its way: carries the commands out in order and is the body that comes of it.
//!
//! It looks ahead: text and includes that have been come to wait in a queue, and all includes in it run at once, so
//! that a page waits for the slowest of them and not for their sum. The queue is bounded. A command that has to wait
//! for an include (`wait`, `set`) stops the look ahead until that include is through.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bstr::{BStr, BString, ByteSlice};
use bytes::{Buf, Bytes};
use http::Request;
use http::body::{Body, BodyError, Chunk, Source};
use http::subrequest::{self, Inclusion, Options, Stub};
use proto::uri::Escape;

use super::commands::{self, Kind};
use super::condition;
use super::date::TimeFormat;
use super::page::{self, Page};
use super::scanner::{Command, Event, MARK, Scanner};
use crate::shared::content::{Content, Piece};
use crate::shared::transform::poll_yield;

/// Includes of a page that may run at once. Beyond that, each part of the page has one that runs, so that it goes on.
const MAX_AHEAD: usize = 32;

/// Text that may wait in the queue before the look ahead ends, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// How deep `if` may stand in `if`.
const MAX_BRANCHES: usize = 64;

/// The longest block, in bytes.
const MAX_BLOCK: usize = 1024 * 1024;

/// Content that is looked at between two looks at the clock, in bytes.
const STEP: usize = 16 * 1024;

/// A body with commands, carried out.
pub(super) struct Weaver {
    content: Content,
    scanner: Scanner,
    silent_errors: bool,
    /// Content that has not been looked at.
    input: Bytes,
    /// The `if`s that the present place is in, outermost first.
    branches: Vec<Branch>,
    /// The block that the present place is in.
    block: Option<(BString, Vec<u8>)>,
    /// How `echo` writes values, until one says otherwise.
    encoding: Encoding,
    error_text: BString,
    queue: VecDeque<Item>,
    /// Bytes of text in the queue.
    text: usize,
    /// Includes in the queue.
    includes: usize,
    wait: Wait,
    end: Option<Result<(), BodyError>>,
    page: Rc<Page>,
}

/// A part of the page that waits for its turn.
enum Item {
    Text(Vec<u8>),
    Flush,
    Include(Inclusion),
}

/// What the look ahead waits for.
enum Wait {
    Nothing,
    /// For everything in the queue to be sent: `wait="yes"`.
    Queue,
    /// For an include whose content becomes a variable: `set`.
    Variable(Box<Gathering>),
}

/// An include that becomes a variable.
struct Gathering {
    name: BString,
    inclusion: Inclusion,
    content: Option<Content>,
    value: Vec<u8>,
}

/// An `if` up to its `endif`.
struct Branch {
    /// Whether what stands here is shown, as far as this `if` is concerned.
    is_shown: bool,
    /// Whether a branch of it was chosen already.
    is_chosen: bool,
    has_else: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    None,
    Url,
    Entity,
}

impl Weaver {
    /// Carries out the commands in `body`.
    pub(super) fn new(body: Body, page: Rc<Page>, max_value: usize, silent_errors: bool) -> Weaver {
        Weaver {
            content: Content::new(body),
            scanner: Scanner::new(max_value),
            silent_errors,
            input: Bytes::new(),
            branches: Vec::new(),
            block: None,
            encoding: Encoding::Entity,
            error_text: "[an error occurred while processing the directive]".into(),
            queue: VecDeque::new(),
            text: 0,
            includes: 0,
            wait: Wait::Nothing,
            end: None,
            page,
        }
    }

    /// Looks ahead for as long as there is content, and room in the queue.
    fn look_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        while self.may_look_ahead(request) {
            if !self.input.is_empty() {
                if self.page.is_turn_over() {
                    return poll_yield(context);
                }
                self.scan(request);
                continue;
            }
            match self.content.poll_next(request, context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(Piece::Bytes(bytes)))) => self.input = bytes,
                Poll::Ready(Some(Ok(Piece::Flush))) => self.queue.push_back(Item::Flush),
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => {
                    if let Some(Event::Held(held)) = self.scanner.end() {
                        self.write(&MARK[..held]);
                    }
                    self.end = Some(Ok(()));
                }
            }
        }
    }

    fn may_look_ahead(&self, request: &Request) -> bool {
        self.end.is_none()
            && matches!(self.wait, Wait::Nothing)
            && self.text < MAX_TEXT
            && (self.includes == 0 || subrequest::included(request) < MAX_AHEAD)
    }

    /// Looks at one step of the content, or as far as its next include.
    fn scan(&mut self, request: &mut Request) {
        let step = self.input.slice(..self.input.len().min(STEP));
        let mut at = 0;
        let includes = self.includes;
        while matches!(self.wait, Wait::Nothing)
            && self.includes == includes
            && let Some(event) = self.scanner.next(&step, &mut at)
        {
            match event {
                Event::Text(range) => self.write(&step[range]),
                Event::Held(held) => self.write(&MARK[..held]),
                Event::Broken(why) => self.fail(request, &why),
                Event::Command(command) => {
                    if let Err(why) = self.command(request, &command) {
                        self.fail(request, &why);
                    }
                }
            }
        }
        self.input.advance(at);
    }

    /// Whether the present place is in no branch that was not chosen.
    fn is_shown(&self) -> bool {
        self.branches.iter().all(|branch| branch.is_shown)
    }

    /// Text, or what a command wrote.
    fn write(&mut self, text: &[u8]) {
        if !self.is_shown() {
            return;
        }
        if let Some((_, block)) = &mut self.block {
            // What is longer than the bound is refused at its end.
            if block.len() <= MAX_BLOCK {
                block.extend_from_slice(text);
            }
            return;
        }
        self.text += text.len();
        match self.queue.back_mut() {
            Some(Item::Text(last)) => last.extend_from_slice(text),
            _ if text.is_empty() => {}
            _ => self.queue.push_back(Item::Text(text.to_vec())),
        }
    }

    fn fail(&mut self, request: &Request, why: &str) {
        if !self.is_shown() {
            return;
        }
        if !why.is_empty() {
            request.error(format_args!("{why}"));
        }
        if !self.silent_errors {
            let text = self.error_text.clone();
            self.write(&text);
        }
    }

    /// Carries out a command, or keeps it for the block that it stands in. The error is for the log.
    fn command(&mut self, request: &mut Request, command: &Command) -> Result<(), String> {
        let kind = match commands::kind(command) {
            Err(_) if !self.is_shown() => return Ok(()),
            other => other?,
        };
        if let Some((_, block)) = &mut self.block
            && kind != Kind::Endblock
        {
            if block.len() <= MAX_BLOCK {
                command.write(block);
            }
            return Ok(());
        }
        match kind {
            Kind::If => return self.begin_if(request, command),
            Kind::Elif => return self.elif(request, command),
            Kind::Else => return self.begin_else(command),
            Kind::Endif => {
                let closed = self.branches.pop().map(|_| ());
                return closed.ok_or_else(|| out_of_place(command));
            }
            _ if !self.is_shown() => return Ok(()),
            _ => {}
        }
        commands::check(command)?;
        match kind {
            Kind::Include => self.include(request, command),
            Kind::Echo => {
                self.echo(request, command);
                Ok(())
            }
            Kind::Config => {
                if let Some(format) = command.get("timefmt") {
                    request.set_state(TimeFormat(format.to_owned()));
                }
                if let Some(text) = command.get("errmsg") {
                    self.error_text = text.to_owned();
                }
                Ok(())
            }
            Kind::Set => {
                let value = page::evaluate(request, command.value("value"))?;
                self.page.set(command.value("var"), value)
            }
            Kind::Block => {
                self.block = Some((command.value("name").to_owned(), Vec::new()));
                Ok(())
            }
            Kind::Endblock => self.end_block(),
            Kind::If | Kind::Elif | Kind::Else | Kind::Endif => Ok(()),
        }
    }

    fn begin_if(&mut self, request: &mut Request, command: &Command) -> Result<(), String> {
        if self.branches.len() == MAX_BRANCHES {
            return Err("too many \"if\" commands inside one another".to_owned());
        }
        let is_shown = self.is_shown();
        // Inside a branch that is not shown nothing is, so nothing need be judged.
        let mut branch = Branch {
            is_shown: false,
            is_chosen: !is_shown,
            has_else: false,
        };
        let judged = match is_shown {
            true => judge(request, command),
            false => Ok(false),
        };
        branch.is_shown = judged.as_ref().is_ok_and(|holds| *holds);
        branch.is_chosen |= branch.is_shown;
        match judged {
            Ok(_) => {
                self.branches.push(branch);
                Ok(())
            }
            Err(why) => {
                // The error shows where the command stands; what the `if` is about does not.
                self.fail(request, &why);
                self.branches.push(branch);
                Ok(())
            }
        }
    }

    fn elif(&mut self, request: &mut Request, command: &Command) -> Result<(), String> {
        let Some(branch) = self.branches.last_mut().filter(|branch| !branch.has_else) else {
            return Err(out_of_place(command));
        };
        branch.is_shown = false;
        if branch.is_chosen {
            return Ok(());
        }
        let holds = judge(request, command)?;
        branch.is_shown = holds;
        branch.is_chosen = holds;
        Ok(())
    }

    fn begin_else(&mut self, command: &Command) -> Result<(), String> {
        let Some(branch) = self.branches.last_mut().filter(|branch| !branch.has_else) else {
            return Err(out_of_place(command));
        };
        branch.is_shown = !branch.is_chosen;
        branch.is_chosen = true;
        branch.has_else = true;
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), String> {
        let Some((name, content)) = self.block.take() else {
            return Ok(());
        };
        self.page.keep_block(name, content)
    }

    fn echo(&mut self, request: &mut Request, command: &Command) {
        let value = page::variable(request, command.value("var"));
        let value = match (&value, command.get("default")) {
            (Some(value), _) => value.as_bstr(),
            (None, Some(default)) => default,
            (None, None) => BStr::new("(none)"),
        };
        if value.is_empty() {
            return;
        }
        if let Some(encoding) = command.get("encoding") {
            match encoding.as_bytes() {
                b"none" => self.encoding = Encoding::None,
                b"url" => self.encoding = Encoding::Url,
                b"entity" => self.encoding = Encoding::Entity,
                _ => request.error(format_args!(
                    "unknown encoding \"{encoding}\" in the \"echo\" command"
                )),
            }
        }
        let mut out = Vec::new();
        match self.encoding {
            Encoding::None => return self.write(value),
            Encoding::Url => proto::uri::escape(Escape::Html, value, &mut out),
            Encoding::Entity => http::text::write_html(value, &mut out),
        }
        self.write(&out);
    }

    fn include(&mut self, request: &mut Request, command: &Command) -> Result<(), String> {
        let (target, waits) = target(command)?;
        let path = page::evaluate_path(request, target)?;
        let mut decoded = Vec::new();
        let args = match proto::uri::parse_internal(&path, &mut decoded) {
            Ok(args) => path[args].to_vec(),
            Err(_) => return Err(format!("unsafe URI \"{path}\" was detected")),
        };
        let page = page::of(request);
        let stub = match command.get("stub") {
            None => None,
            Some(name) => {
                let found = page.block(name);
                let content = found
                    .ok_or_else(|| format!("\"stub\"=\"{name}\" for \"include\" not found"))?;
                Some(Stub {
                    content_type: request.out.content_type.clone(),
                    content,
                })
            }
        };
        let options = Options {
            stub,
            ..Options::get(decoded, args)
        };
        let Some(inclusion) = Inclusion::new(request, options) else {
            // That was logged, once for very many.
            return Err(String::new());
        };
        match command.get("set") {
            Some(name) => {
                page.declare(name)?;
                let name = name.to_owned();
                self.wait = Wait::Variable(Box::new(Gathering {
                    name,
                    inclusion,
                    content: None,
                    value: Vec::new(),
                }));
            }
            None => {
                self.includes += 1;
                self.queue.push_back(Item::Include(inclusion));
                if waits {
                    self.wait = Wait::Queue;
                }
            }
        }
        Ok(())
    }

    /// Lets all includes make progress. `Ready` when the look ahead may go on.
    fn run_includes(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<()> {
        for item in &mut self.queue {
            if let Item::Include(inclusion) = item {
                inclusion.poll_ahead(context);
            }
        }
        let Wait::Variable(gathering) = &mut self.wait else {
            return Poll::Pending;
        };
        match ready!(gathering.poll(context)) {
            Ok(value) => {
                if let Some(value) = value
                    && let Err(why) = self.page.set(gathering.name.as_bstr(), value)
                {
                    request.error(format_args!("{why}"));
                }
            }
            Err(error) => self.end = Some(Err(error)),
        }
        self.wait = Wait::Nothing;
        Poll::Ready(())
    }

    /// What the queue has to send. `Pending`: its first part is not there yet, or it is empty.
    fn poll_queue(&mut self, context: &mut Context<'_>) -> Poll<Result<Chunk, BodyError>> {
        while let Some(item) = self.queue.front_mut() {
            let chunk = match item {
                Item::Text(text) => {
                    self.text -= text.len();
                    Some(Ok(Chunk::Bytes(std::mem::take(text).into())))
                }
                Item::Flush => Some(Ok(Chunk::Flush)),
                Item::Include(inclusion) => {
                    if let Some(chunk) = ready!(inclusion.poll_next(context)) {
                        return Poll::Ready(chunk);
                    }
                    self.includes -= 1;
                    None
                }
            };
            self.queue.pop_front();
            if let Some(chunk) = chunk {
                return Poll::Ready(chunk);
            }
        }
        Poll::Pending
    }
}

impl Source for Weaver {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        loop {
            self.look_ahead(request, context);
            if self.run_includes(request, context).is_ready() {
                continue;
            }
            let includes = self.includes;
            if let Poll::Ready(chunk) = self.poll_queue(context) {
                return Poll::Ready(Some(chunk));
            }
            if self.queue.is_empty() {
                if let Some(end) = self.end.take() {
                    return Poll::Ready(end.err().map(Err));
                }
                if matches!(self.wait, Wait::Queue) {
                    self.wait = Wait::Nothing;
                    continue;
                }
            }
            // There is room to look further ahead.
            if self.includes < includes {
                continue;
            }
            return Poll::Pending;
        }
    }

    /// An include that is too large for a variable ends the page.
    fn is_undecided(&self) -> bool {
        self.queue.is_empty() && matches!(self.wait, Wait::Variable(_))
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        loop {
            self.look_ahead(request, context);
            if self.run_includes(request, context).is_pending() {
                break;
            }
        }
        self.content.poll_ahead(request, context);
    }
}

impl Gathering {
    /// The whole content of the include; `None` when it is an error.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<BString>, BodyError>> {
        ready!(self.inclusion.poll_response(context));
        let Some(request) = self.inclusion.request_mut() else {
            return Poll::Ready(Ok(None));
        };
        let limit = request
            .site
            .location(request.location)
            .core
            .subrequest_output_buffer_size;
        let content = self
            .content
            .get_or_insert_with(|| Content::new(std::mem::take(&mut request.out.body)));
        loop {
            match ready!(content.poll_next(request, context)) {
                None => break,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(Piece::Flush)) => {}
                Some(Ok(Piece::Bytes(bytes))) => self.value.extend_from_slice(&bytes),
            }
            let length = self.value.len();
            if length as u64 > limit {
                request.error(format_args!("too big subrequest response: {length}"));
                return Poll::Ready(Err(BodyError::Withdrawn));
            }
        }
        let is_error = request.out.status >= 300;
        Poll::Ready(Ok(
            (!is_error).then(|| std::mem::take(&mut self.value).into())
        ))
    }
}

fn judge(request: &mut Request, command: &Command) -> Result<bool, String> {
    commands::check(command)?;
    condition::holds(request, command.value("expr"))
}

/// What an `include` names, and whether it has to be through before the page goes on.
fn target(command: &Command) -> Result<(&BStr, bool), String> {
    let waits = command.get("wait");
    let (target, waits) = match (command.get("virtual"), command.get("file")) {
        (Some(path), Some(file)) => {
            return Err(format!(
                "inclusion may be either virtual=\"{path}\" or file=\"{file}\""
            ));
        }
        (None, None) => return Err("no parameter in \"include\" SSI command".to_owned()),
        (None, Some(file)) if waits.is_some() => {
            return Err(format!("\"wait\" cannot be used with file=\"{file}\""));
        }
        (None, Some(file)) => (file, true),
        (Some(path), None) => match waits {
            None => (path, false),
            Some(word) if word.eq_ignore_ascii_case(b"no") => (path, false),
            Some(word) if word.eq_ignore_ascii_case(b"yes") => (path, true),
            Some(word) => {
                return Err(format!(
                    "invalid value \"{word}\" in the \"wait\" parameter"
                ));
            }
        },
    };
    if command.get("set").is_some() && command.get("stub").is_some() {
        return Err(
            "\"set\" and \"stub\" cannot be used together in \"include\" SSI command".to_owned(),
        );
    }
    Ok((target, waits))
}

fn out_of_place(command: &Command) -> String {
    format!("invalid context of SSI command: \"{}\"", command.name)
}
